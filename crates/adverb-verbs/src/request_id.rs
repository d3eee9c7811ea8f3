//! Identifiers of requests.

/// The identifier of a posted request: posting returns it, and the request's completion contains it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// The bit that marks identifiers of UD queues. (Requests of a shared receive queue may be posted before a UD
    /// queue pair uses it, so their outcomes carry a flag instead.)
    pub(crate) const DATAGRAM: u64 = 1 << 62;
}

/// The bit that marks identifiers of shared receive queues.
pub(crate) const SHARED: u64 = 1 << 63;

/// Returns the shared receive queue that an identifier belongs to, if it belongs to one.
#[inline]
pub(crate) fn shared_queue_of(wr_id: u64) -> Option<u32> {
    let [a, b, c, d, ..] = (wr_id & !SHARED).to_be_bytes();
    (wr_id & SHARED != 0).then(|| u32::from_be_bytes([a, b, c, d]))
}
