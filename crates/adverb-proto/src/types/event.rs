//! Asynchronous events of a device.

use super::Qpn;

/// An asynchronous event of a device, one of its ports or one of its queues (vol. 1, 11.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The device and all its objects have failed.
    DeviceFatal,
    /// The link of the port with this number has become active.
    PortActive(u8),
    /// The port with this number has lost its link.
    PortError(u8),
    /// The GID table of the port with this number has changed: an index may refer to another GID than before.
    GidsChanged(u8),
    /// A completion queue has overflowed or failed.
    CompletionQueueError,
    /// A queue pair has failed.
    QueuePairFatal(Qpn),
    /// A queue pair has failed because its peer sent an invalid request.
    QueuePairRequestError(Qpn),
    /// A queue pair has failed because its peer's request violated access rights.
    QueuePairAccessError(Qpn),
    /// The first packet of a connection arrived before the queue pair was ready to send.
    Established(Qpn),
    /// The send queue of a queue pair is drained.
    SendQueueDrained(Qpn),
    /// A queue pair in the error state has consumed its last request from its shared receive queue.
    LastReceiveReached(Qpn),
    /// The shared receive queue with this id has failed.
    SharedReceiveQueueError(u32),
    /// The shared receive queue with this id holds fewer requests than its limit.
    SharedReceiveQueueLimit(u32),
    /// An event without a variant of its own, with its number in `ibv_event_type`.
    Other(u32),
}
