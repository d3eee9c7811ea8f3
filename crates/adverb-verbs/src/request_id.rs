//! Identifiers of requests.

/// The identifier of a posted request: posting returns it, and the request's completion contains it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// The bit that marks identifiers of UD queues. (Requests of a shared receive queue may be posted before a UD
    /// queue pair uses it, so their outcomes carry a flag instead.)
    pub(crate) const DATAGRAM: u64 = 1 << 62;
}
