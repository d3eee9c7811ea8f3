//! Work requests in their plain form.

use adverb_wire::Qpn;

/// A piece of registered memory: the plain form of a scatter or gather element, in the layout of `ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct Segment {
    /// The address, in the region's own terms.
    pub addr: u64,
    /// How many bytes.
    pub length: u32,
    /// The local key of the region.
    pub lkey: u32,
}

/// A place in a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteAddress {
    /// The address, in the peer's terms.
    pub addr: u64,
    /// The remote key of its region or window.
    pub rkey: u32,
}

/// A range of a peer's memory: its address, remote key and length.
///
/// Programs exchange it by any means they like. With the feature `serde` it can be serialized.
///
/// ```
/// use adverb_proto::types::RemoteMemory;
///
/// let table = RemoteMemory { addr: 0x7f00_0000_0000, rkey: 0x1234, len: 1 << 20 };
/// assert_eq!(table.at(4096).addr, 0x7f00_0000_1000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteMemory {
    /// The address of the first byte, as the peer's device counts.
    pub addr: u64,
    /// The remote key.
    pub rkey: u32,
    /// The length in bytes.
    pub len: u64,
}

impl RemoteMemory {
    /// Returns the address `offset` bytes into the range. The peer's device checks the bounds; this function doesn't.
    pub const fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SendOperation {
    /// A message into the peer's next receive buffer.
    Send,
    /// A message with 32 bits beside it.
    SendWithImm(u32),
    /// A message that also invalidates a remote key of the peer's.
    SendInvalidate(u32),
    /// Bytes into the peer's memory.
    Write(RemoteAddress),
    /// Bytes into the peer's memory, and 32 bits that consume a receive request there.
    WriteWithImm(RemoteAddress, u32),
    /// Bytes from the peer's memory.
    Read(RemoteAddress),
    /// If the 64-bit word there is `compare`, make it `swap`; its old value comes back either way.
    CompareSwap {
        /// The word.
        remote: RemoteAddress,
        /// What it must be.
        compare: u64,
        /// What it becomes then.
        swap: u64,
    },
    /// Add to the 64-bit word there, wrapping; its old value comes back.
    FetchAdd {
        /// The word.
        remote: RemoteAddress,
        /// What to add.
        add: u64,
    },
    /// Put eight bytes at an aligned place of the peer's memory, never to be seen in part (Annex A19.5).
    AtomicWrite {
        /// The place.
        remote: RemoteAddress,
        /// The bytes, as they come to lie in memory.
        bytes: [u8; 8],
    },
    /// Bring earlier writes to where others see them, or where they outlast a loss of power (Annex A19.4).
    Flush(FlushRange),
    /// Make a local key, of a region or a window, invalid.
    LocalInvalidate(u32),
    /// Give a window a range and rights.
    BindWindow(WindowBind),
}

/// Which bytes of a peer's memory to flush, and how far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlushRange {
    /// Where the range begins, and the key.
    pub remote: RemoteAddress,
    /// How many bytes.
    pub length: u32,
    /// The whole region of the key is meant, not just the range.
    pub whole_region: bool,
    /// Everyone at the peer must see the bytes.
    pub global: bool,
    /// The bytes must outlast a loss of power.
    pub persistent: bool,
}

/// Which range of which region a memory window shows, and with what rights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowBind {
    /// The window's new key.
    pub rkey: u32,
    /// The region's local key.
    pub lkey: u32,
    /// Where the range begins.
    pub addr: u64,
    /// How long it is.
    pub length: u64,
    /// What a peer may do there.
    pub access: super::Access,
}

bitflags::bitflags! {
    /// How a send request is to be treated. The values are those of `ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Wait until earlier READs and atomics of this queue pair are done.
        const FENCE = 1 << 0;
        /// Make a completion; without it only a failure makes one.
        const SIGNALED = 1 << 1;
        /// Wake the peer, if it waits for solicited events only.
        const SOLICITED = 1 << 2;
        /// Take the bytes at once, so that the buffer may be used again when the post returns.
        const INLINE = 1 << 3;
    }
}

/// To whom a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Destination<Handle> {
    /// The address handle.
    pub handle: Handle,
    /// The receiving queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: u32,
}

/// A send request in its plain form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest<'a, Handle> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: SendOperation,
    /// How.
    pub flags: SendFlags,
    /// The bytes to send, or the place for those that come back.
    pub segments: &'a [Segment],
    /// To whom, on a datagram queue pair.
    pub destination: Option<Destination<Handle>>,
}

/// A receive request in its plain form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub segments: &'a [Segment],
}

impl RecvRequest<'_> {
    /// How many bytes there is room for.
    pub fn length(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.length)).sum()
    }
}
