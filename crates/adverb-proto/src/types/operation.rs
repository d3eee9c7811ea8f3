//! The operations of send requests, and a table of their facts.

#![deny(clippy::wildcard_enum_match_arm)]

use super::{Access, CompletedOperation, RemoteAddress, Transport};

/// The operation of a send request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SendOperation {
    /// A message to the peer's next receive buffer.
    Send,
    /// A message with 32 bits of immediate data.
    SendWithImm(u32),
    /// A message that invalidates a remote key of the peer's memory.
    SendInvalidate(u32),
    /// A write to the peer's memory.
    Write(RemoteAddress),
    /// A write to the peer's memory that completes a receive request of the peer with 32 bits of immediate data.
    WriteWithImm(RemoteAddress, u32),
    /// A read from the peer's memory.
    Read(RemoteAddress),
    /// An atomic compare-and-swap: the responder replaces a 64-bit word of its memory with `swap` if the word equals
    /// `compare`, and returns the old value.
    CompareSwap {
        /// The address of the word.
        remote: RemoteAddress,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// An atomic fetch-and-add: the responder adds `add` to a 64-bit word of its memory, with wraparound, and returns
    /// the old value.
    FetchAdd {
        /// The address of the word.
        remote: RemoteAddress,
        /// The addend.
        add: u64,
    },
    /// An atomic write of eight bytes to an aligned address of the peer's memory (Annex A19.5).
    AtomicWrite {
        /// The address, which must be a multiple of 8.
        remote: RemoteAddress,
        /// The bytes to write, in memory order.
        bytes: [u8; 8],
    },
    /// A flush, which makes earlier writes to the peer's memory globally visible or persistent (Annex A19.4).
    Flush(FlushRange),
    /// An invalidation of the key of a local region, or of the remote key of a local window.
    LocalInvalidate(u32),
    /// A bind of a memory window to a range of a region.
    BindWindow(WindowBind),
}

/// An operation of Annex A19. `ibv_post_send` can't post it, and devices and drivers may lack it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtendedOperation {
    /// [`SendOperation::AtomicWrite`].
    AtomicWrite {
        /// The address, which must be a multiple of 8.
        remote: RemoteAddress,
        /// The bytes to write, in memory order.
        bytes: [u8; 8],
    },
    /// [`SendOperation::Flush`].
    Flush(FlushRange),
}

struct Transports {
    rc: bool,
    uc: bool,
    ud: bool,
}

impl Transports {
    const fn has(&self, transport: Transport) -> bool {
        match transport {
            Transport::Rc => self.rc,
            Transport::Uc => self.uc,
            Transport::Ud => self.ud,
        }
    }
}

const ALL: Transports = Transports { rc: true, uc: true, ud: true };

/// The transports with connections.
const CONNECTED: Transports = Transports { rc: true, uc: true, ud: false };

const RELIABLE: Transports = Transports { rc: true, uc: false, ud: false };

/// The use of the local memory of a send request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LocalMemory {
    /// The request has no local memory.
    None,
    /// The peer gets the bytes.
    Source,
    /// The bytes of the peer's answer are written to the memory.
    Target,
    /// The old value of the peer's 64-bit word is written to the memory.
    Word,
}

impl LocalMemory {
    /// Whether the device writes to the memory.
    pub const fn is_written(self) -> bool {
        matches!(self, LocalMemory::Target | LocalMemory::Word)
    }
}

/// A peer's answer to a request on a reliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The request is executed locally, without a packet.
    None,
    /// An acknowledgement, which may acknowledge other requests, too.
    Acknowledgement,
    /// READ responses with the bytes.
    Read,
    /// A READ response without bytes.
    EmptyRead,
    /// An atomic response with the old value.
    Atomic,
}

impl Answer {
    /// Whether the request needs a response of its own, not only an acknowledgement, and therefore one of the peer's
    /// slots for READs and atomics (vol. 1, 9.4.3 to 9.4.5; Annex A19.4, A19.5).
    pub const fn is_response(self) -> bool {
        match self {
            Answer::Read | Answer::EmptyRead | Answer::Atomic => true,
            Answer::None | Answer::Acknowledgement => false,
        }
    }
}

/// Implements the facts of operations that don't depend on their parameters, from one table. Each fact is a function of its
/// own, because the compiler turns its `match` into a few instructions.
macro_rules! operations {
    ($($operation:ident: $name:literal, $transports:ident, $memory:ident, $answer:ident, $receive:literal, $completed:ident;)*) => {
        impl SendOperation {
            /// Returns the operation's name, such as `"RDMA WRITE"`.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(SendOperation::$operation { .. } => $name,)*
                }
            }

            /// Whether a transport has the operation (vol. 1, 9.4 and 10.8.2; Annex A19).
            #[inline]
            pub const fn is_supported(&self, transport: Transport) -> bool {
                match self {
                    $(SendOperation::$operation { .. } => $transports.has(transport),)*
                }
            }

            /// Returns the use of the local memory.
            #[inline]
            pub const fn local_memory(&self) -> LocalMemory {
                match self {
                    $(SendOperation::$operation { .. } => LocalMemory::$memory,)*
                }
            }

            /// Returns the kind of the peer's answer.
            #[inline]
            pub const fn answer(&self) -> Answer {
                match self {
                    $(SendOperation::$operation { .. } => Answer::$answer,)*
                }
            }

            /// Whether the operation consumes one of the peer's receive requests, and therefore needs a credit (vol. 1,
            /// 9.7.7). The peer gets the receive request's completion.
            #[inline]
            pub const fn consumes_receive(&self) -> bool {
                match self {
                    $(SendOperation::$operation { .. } => $receive,)*
                }
            }

            /// Returns the operation that the completion reports.
            #[inline]
            pub const fn completed(&self) -> CompletedOperation {
                match self {
                    $(SendOperation::$operation { .. } => CompletedOperation::$completed,)*
                }
            }
        }
    };
}

operations! {
    // operation: name, transports, local memory, answer, whether it consumes a receive, completed operation
    Send: "SEND", ALL, Source, Acknowledgement, true, Send;
    SendWithImm: "SEND with immediate", ALL, Source, Acknowledgement, true, Send;
    SendInvalidate: "SEND with invalidate", RELIABLE, Source, Acknowledgement, true, Send;
    Write: "RDMA WRITE", CONNECTED, Source, Acknowledgement, false, Write;
    WriteWithImm: "RDMA WRITE with immediate", CONNECTED, Source, Acknowledgement, true, Write;
    Read: "RDMA READ", RELIABLE, Target, Read, false, Read;
    CompareSwap: "COMPARE SWAP", RELIABLE, Word, Atomic, false, CompareSwap;
    FetchAdd: "FETCH ADD", RELIABLE, Word, Atomic, false, FetchAdd;
    AtomicWrite: "ATOMIC WRITE", RELIABLE, None, EmptyRead, false, AtomicWrite;
    Flush: "FLUSH", RELIABLE, None, EmptyRead, false, Flush;
    LocalInvalidate: "LOCAL INVALIDATE", CONNECTED, None, None, false, LocalInvalidate;
    BindWindow: "BIND MW", CONNECTED, None, None, false, BindWindow;
}

impl SendOperation {
    /// Returns the immediate data, if the operation has any.
    #[inline]
    pub const fn immediate(&self) -> Option<u32> {
        match *self {
            SendOperation::SendWithImm(immediate) | SendOperation::WriteWithImm(_, immediate) => {
                Some(immediate)
            }
            SendOperation::Send
            | SendOperation::SendInvalidate(_)
            | SendOperation::Write(_)
            | SendOperation::Read(_)
            | SendOperation::CompareSwap { .. }
            | SendOperation::FetchAdd { .. }
            | SendOperation::AtomicWrite { .. }
            | SendOperation::Flush(_)
            | SendOperation::LocalInvalidate(_)
            | SendOperation::BindWindow(_) => None,
        }
    }

    /// Returns the address in the peer's memory, if the operation has one.
    #[inline]
    pub const fn remote(&self) -> Option<RemoteAddress> {
        match *self {
            SendOperation::Write(remote)
            | SendOperation::WriteWithImm(remote, _)
            | SendOperation::Read(remote)
            | SendOperation::CompareSwap { remote, .. }
            | SendOperation::FetchAdd { remote, .. }
            | SendOperation::AtomicWrite { remote, .. }
            | SendOperation::Flush(FlushRange { remote, .. }) => Some(remote),
            SendOperation::Send
            | SendOperation::SendWithImm(_)
            | SendOperation::SendInvalidate(_)
            | SendOperation::LocalInvalidate(_)
            | SendOperation::BindWindow(_) => None,
        }
    }

    /// Returns the operation of Annex A19, if it is one.
    #[inline]
    pub const fn extended(&self) -> Option<ExtendedOperation> {
        match *self {
            SendOperation::AtomicWrite { remote, bytes } => {
                Some(ExtendedOperation::AtomicWrite { remote, bytes })
            }
            SendOperation::Flush(range) => Some(ExtendedOperation::Flush(range)),
            SendOperation::Send
            | SendOperation::SendWithImm(_)
            | SendOperation::SendInvalidate(_)
            | SendOperation::Write(_)
            | SendOperation::WriteWithImm(..)
            | SendOperation::Read(_)
            | SendOperation::CompareSwap { .. }
            | SendOperation::FetchAdd { .. }
            | SendOperation::LocalInvalidate(_)
            | SendOperation::BindWindow(_) => None,
        }
    }

    /// Returns the bytes that the request itself contains, instead of local memory.
    #[inline]
    pub const fn word(&self) -> Option<[u8; 8]> {
        match self.extended() {
            Some(ExtendedOperation::AtomicWrite { bytes, .. }) => Some(bytes),
            Some(ExtendedOperation::Flush(_)) | None => None,
        }
    }

    /// Returns the rights that the peer's region or window, and its queue pair, must give.
    pub const fn remote_rights(&self) -> Access {
        match self {
            SendOperation::Write(_) | SendOperation::WriteWithImm(..) | SendOperation::AtomicWrite { .. } => {
                Access::REMOTE_WRITE
            }
            SendOperation::Read(_) => Access::REMOTE_READ,
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => Access::REMOTE_ATOMIC,
            SendOperation::Flush(range) => range.placement().rights(),
            SendOperation::Send
            | SendOperation::SendWithImm(_)
            | SendOperation::SendInvalidate(_)
            | SendOperation::LocalInvalidate(_)
            | SendOperation::BindWindow(_) => Access::empty(),
        }
    }
}

/// A range of a peer's memory to flush, and the kind of flush.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlushRange {
    /// The address of the first byte, and the remote key.
    pub remote: RemoteAddress,
    /// The length in bytes.
    pub length: u32,
    /// Whether to flush the whole region or window of the key instead of the range.
    pub whole_region: bool,
    /// Whether the bytes must become globally visible: to every processor and device of the peer's system.
    pub global: bool,
    /// Whether the bytes must become persistent.
    pub persistent: bool,
}

impl FlushRange {
    /// Returns the placement that the flush requests.
    pub const fn placement(&self) -> FlushPlacement {
        let global = if self.global { FlushPlacement::GLOBAL } else { FlushPlacement::empty() };
        let persistent = if self.persistent { FlushPlacement::PERSISTENT } else { FlushPlacement::empty() };
        global.union(persistent)
    }
}

bitflags::bitflags! {
    /// The placement type of a FLUSH: the guarantee for the flushed bytes (Annex A19.4). The values are those of
    /// `ibv_placement_type`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct FlushPlacement: u8 {
        /// The bytes are globally visible: every processor and device of the peer's system can read them.
        const GLOBAL = 1 << 0;
        /// The bytes are persistent: they survive a power loss.
        const PERSISTENT = 1 << 1;
    }
}

/// The parameters of binding a memory window: a range of a region, and the peer's access rights to the range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowBind {
    /// The window's new key.
    pub rkey: u32,
    /// The region's local key.
    pub lkey: u32,
    /// The address of the first byte of the range.
    pub addr: u64,
    /// The length of the range, in bytes.
    pub length: u64,
    /// The access rights of the peer.
    pub access: Access,
}

impl FlushPlacement {
    /// Returns the rights that the peer's region or window, and its queue pair, must give.
    pub const fn rights(self) -> Access {
        let global =
            if self.contains(FlushPlacement::GLOBAL) { Access::FLUSH_GLOBAL } else { Access::empty() };
        let persistent = if self.contains(FlushPlacement::PERSISTENT) {
            Access::FLUSH_PERSISTENT
        } else {
            Access::empty()
        };
        global.union(persistent)
    }
}
