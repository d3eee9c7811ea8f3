//! Work requests.

use adverb_wire::Qpn;

/// A range of registered memory: a scatter/gather element, in the layout of `ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct Segment {
    /// The address of the first byte, in the region's address space (its IOVA).
    pub addr: u64,
    /// The length in bytes.
    pub length: u32,
    /// The local key of the region.
    pub lkey: u32,
}

/// An address in a peer's memory, with its key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteAddress {
    /// The address, in the address space of the peer's region or window.
    pub addr: u64,
    /// The remote key of the region or window.
    pub rkey: u32,
}

/// A range of a peer's memory: its address, remote key and length.
///
/// Programs exchange this value out of band. With the feature `serde` it can be serialized.
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
    /// The address of the first byte, in the address space of the peer's region or window.
    pub addr: u64,
    /// The remote key of the region or window.
    pub rkey: u32,
    /// The length in bytes.
    pub len: u64,
}

impl RemoteMemory {
    /// Returns the address `offset` bytes into the range. This function doesn't check the bounds of the range; the
    /// peer's device checks those of the region or window.
    pub const fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// The operation of a send request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
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

impl SendOperation {
    /// Returns the operation's name, such as `"RDMA WRITE"`.
    pub const fn name(&self) -> &'static str {
        match self {
            SendOperation::Send => "SEND",
            SendOperation::SendWithImm(_) => "SEND with immediate",
            SendOperation::SendInvalidate(_) => "SEND with invalidate",
            SendOperation::Write(_) => "RDMA WRITE",
            SendOperation::WriteWithImm(..) => "RDMA WRITE with immediate",
            SendOperation::Read(_) => "RDMA READ",
            SendOperation::CompareSwap { .. } => "COMPARE SWAP",
            SendOperation::FetchAdd { .. } => "FETCH ADD",
            SendOperation::AtomicWrite { .. } => "ATOMIC WRITE",
            SendOperation::Flush(_) => "FLUSH",
            SendOperation::LocalInvalidate(_) => "LOCAL INVALIDATE",
            SendOperation::BindWindow(_) => "BIND MW",
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
    pub fn placement(&self) -> FlushPlacement {
        let mut placement = FlushPlacement::empty();
        placement.set(FlushPlacement::GLOBAL, self.global);
        placement.set(FlushPlacement::PERSISTENT, self.persistent);
        placement
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
    pub access: super::Access,
}

bitflags::bitflags! {
    /// The flags of a send request. The values are those of `ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// The request is executed only after all earlier READs and atomics of the queue pair have completed.
        const FENCE = 1 << 0;
        /// The request produces a completion. An unsignaled request produces one only if it fails, or if the queue pair
        /// signals all requests.
        const SIGNALED = 1 << 1;
        /// The message generates a completion event at the peer, even if the peer's completion queue is armed for
        /// solicited events only.
        const SOLICITED = 1 << 2;
        /// The payload is copied when the request is posted, so that the buffer can be reused at once.
        const INLINE = 1 << 3;
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Destination<Handle> {
    /// The address handle.
    pub handle: Handle,
    /// The receiving queue pair.
    pub qpn: Qpn,
    /// The queue key of the receiving queue pair. A value with the highest bit set selects the sending queue pair's own
    /// key instead.
    pub qkey: u32,
}

/// A send request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest<'a, Handle> {
    /// The id that the completion carries.
    pub wr_id: u64,
    /// The application's tag. Only recordings contain it.
    pub tag: u64,
    /// The operation.
    pub operation: SendOperation,
    /// The flags.
    pub flags: SendFlags,
    /// The local memory: the source of a SEND or WRITE, or the target of the bytes that a READ or an atomic returns.
    pub segments: &'a [Segment],
    /// The destination, if the queue pair is UD.
    pub destination: Option<Destination<Handle>>,
}

/// A receive request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvRequest<'a> {
    /// The id that the completion carries.
    pub wr_id: u64,
    /// The application's tag. Only recordings contain it.
    pub tag: u64,
    /// The local memory that receives the message.
    pub segments: &'a [Segment],
}

impl RecvRequest<'_> {
    /// Returns the total length of the segments, in bytes.
    pub fn length(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.length)).sum()
    }
}
