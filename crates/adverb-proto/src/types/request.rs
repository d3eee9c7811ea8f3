//! Work requests.

use adverb_wire::Qpn;

use super::SendOperation;

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
/// # mod adverb { pub use adverb_proto::types as memory; }
/// use adverb::memory::RemoteMemory;
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
