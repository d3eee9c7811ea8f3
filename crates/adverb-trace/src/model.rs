//! Traces: devices, requests and packets, and how they belong together.

use std::fmt;
use std::net::SocketAddr;

use adverb_proto::trace::{ClockOrigin, DropReason, Queue, RecvQueueId, RetryCause, StopCause, TraceEvent};
use adverb_proto::types::{
    Failure, PathMtu, Psn, Qpn, Segment, SendFlags, SendOperation, Success, Transport,
};
use adverb_proto::{Cq, Time};
use adverb_wire::{Header, Syndrome};

/// A record of the requests, packets and events of one or more devices.
///
/// [`Trace::new`] builds a trace from recordings.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub(crate) devices: Vec<Device>,
    pub(crate) requests: Vec<Request>,
    pub(crate) packets: Vec<Packet>,
    pub(crate) other_events: Vec<TimedEvent>,
    pub(crate) events: Vec<TimedEvent>,
}

/// The index of a device in [`Trace::devices`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub usize);

/// The index of a request in [`Trace::requests`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub usize);

/// The index of a packet in [`Trace::packets`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PacketId(pub usize);

/// A device that was recorded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Device {
    /// The name of the device.
    pub name: String,
    /// The origin of the device's clock. Devices with the same nonzero `host_id` have one clock.
    pub clock: ClockOrigin,
    /// The connections of the device's queue pairs, in the order in which they were established.
    pub connections: Vec<Connection>,
    /// The number of events that were overwritten in the recorder's ring buffer.
    pub lost_count: u64,
    /// The cause of the recording's end.
    pub stop_cause: StopCause,
}

/// A connection of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Connection {
    /// The time at which the queue pair was connected, or at which the recording began.
    pub time: Time,
    /// The queue pair.
    pub qpn: Qpn,
    /// The transport.
    pub transport: Transport,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The address and UDP port of this side's packets.
    pub local: SocketAddr,
    /// The address and UDP port that packets are sent to.
    pub remote: SocketAddr,
    /// The maximum payload of a packet.
    pub path_mtu: PathMtu,
    /// The sequence number of the next packet from the peer at `time`.
    pub recv_psn: Psn,
    /// The sequence number of the next new packet to the peer at `time`, if the queue pair was ready to send.
    pub send_psn: Option<Psn>,
}

/// A work request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The device.
    pub device: DeviceId,
    /// The queue pair. The value is `None` for a receive in a shared receive queue that no message has consumed.
    pub qpn: Option<Qpn>,
    /// The queue.
    pub queue: Queue,
    /// The number of the request in its queue: requests are numbered from 0, in the order of their posting. Requests of
    /// a shared receive queue of rdma-core have arbitrary numbers.
    pub number_in_queue: u32,
    /// The index of the queue pair's connection in [`Device::connections`]. The value is `None` if the queue pair was
    /// not connected, and for datagrams.
    pub connection: Option<usize>,
    /// The id of the request.
    pub wr_id: u64,
    /// The request as posted. The value is `None` if it was posted before the recording began, or if the event was
    /// overwritten.
    pub posted: Option<WorkRequest>,
    /// The times of the request's steps.
    pub times: RequestTimes,
    /// The sequence numbers of the request's packets. A READ takes those of its responses.
    pub psn_range: Option<PsnRange>,
    /// For a send request, its packets, including retransmissions, and their responses, such as those to a READ. For a
    /// receive request, the packets of the message that it received. All are packets of the request's device, in the
    /// order of their times; [`Packet::peer_packet`] is the same packet at the other end.
    pub packets: Vec<PacketId>,
    /// The ACKs and NAKs that acknowledged sequence numbers of a send request for the first time, or that rejected the
    /// request, at the request's device and in the order of their times.
    pub acks: Vec<PacketId>,
    /// The retransmissions that included packets of the request.
    pub retransmissions: Vec<Retransmission>,
    /// The completion's details. The value is `None` if the request has no completion.
    pub outcome: Option<Result<Success, Failure>>,
    /// The completion queue of the completion.
    pub cq: Option<Cq>,
    /// The request at the other end of a message: the receive that the message consumed, or the send request of the
    /// message, if the other end was recorded too.
    pub peer_request: Option<RequestId>,
}

/// A work request as it was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WorkRequest {
    /// The application's tag.
    pub tag: u64,
    /// The operation, with its parameters. The value is `None` for a receive request. [`Request::operation_name`] returns
    /// its name.
    pub operation: Option<SendOperation>,
    /// The flags of a send request.
    pub flags: SendFlags,
    /// The number of bytes.
    pub length: u64,
    /// The number of scatter/gather elements.
    pub sge_count: u16,
    /// The first scatter/gather element.
    pub first_sge: Option<Segment>,
    /// The receive queue, for a receive request.
    pub recv_queue: Option<RecvQueueId>,
}

/// The times of a request's steps, on its device's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RequestTimes {
    /// The time of the post.
    pub posted: Option<Time>,
    /// The time of the doorbell that covered a send request. The value is `None` if the queue pair was already sending
    /// when the request was posted, or if the device records no doorbells, as devices of rdma-core.
    pub doorbell: Option<Time>,
    /// The time of the first packet.
    pub first_packet: Option<Time>,
    /// The time of the last packet that was sent or received for the request, including retransmissions.
    pub last_packet: Option<Time>,
    /// The time at which the peer had acknowledged or answered the whole request.
    pub acknowledged: Option<Time>,
    /// The time of the completion, or of the end of an unsignaled request.
    pub completed: Option<Time>,
    /// The time at which the application polled the completion.
    pub polled: Option<Time>,
    /// The time at which the application had processed the completion: see [`CqeState::Processed`].
    pub processed: Option<Time>,
}

/// A range of packet sequence numbers, including the last one. Sequence numbers wrap after 2²⁴ − 1, so `last` can be
/// smaller than `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PsnRange {
    /// The first sequence number.
    pub first: Psn,
    /// The last sequence number.
    pub last: Psn,
}

/// Writes the range as `5..9`, or as `5` if it contains a single sequence number.
impl fmt::Display for PsnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PsnRange { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}..{last}") }
    }
}

/// The state of a work queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WqeState {
    /// The request is in its queue.
    Posted,
    /// The device sends or receives packets of the request.
    Processing,
    /// The request succeeded.
    Completed,
    /// The request failed.
    Error,
}

/// The state of a completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CqeState {
    /// The completion is in the completion queue, or the request has not completed yet.
    Pending,
    /// The application polled the completion.
    Polled,
    /// The application polled the completion, and continued: at a later time it polled another completion from the same
    /// completion queue, or it posted a receive request in place of the completed one. A device doesn't know when an
    /// application has processed a completion, so this is the earliest sign of it.
    Processed,
}

/// A retransmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Retransmission {
    /// The time.
    pub time: Time,
    /// The sequence number of the first retransmitted packet.
    pub psn: Psn,
    /// The cause.
    pub cause: RetryCause,
}

/// A packet at one device. A packet that was recorded at both ends occurs twice.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Packet {
    /// The device.
    pub device: DeviceId,
    /// The time at which the device sent or received the packet.
    pub time: Time,
    /// Whether the device sent or received the packet.
    pub direction: Direction,
    /// The device's queue pair.
    pub qpn: Qpn,
    /// The sender's address and UDP port, if they are known. The port is 0 if only the address is known.
    pub source: Option<SocketAddr>,
    /// The destination's address and UDP port, if they are known.
    pub destination: Option<SocketAddr>,
    /// The headers.
    pub header: Header,
    /// The length of the payload in bytes.
    pub payload_len: u32,
    /// The first bytes of the payload, if they were recorded.
    pub payload: Option<Box<[u8]>>,
    /// Whether a packet with this sequence number was sent before. The value is `false` for a received packet whose
    /// sender was not recorded.
    pub is_retransmission: bool,
    /// The cause of the retransmission, if the packet is one and the sender was recorded.
    pub retry_cause: Option<RetryCause>,
    /// The reason why the device dropped the packet, if it did.
    pub dropped: Option<DropReason>,
    /// The role of the packet.
    pub role: PacketRole,
    /// The same packet at the other end, if the other end was recorded too and the packet arrived. For a multicast
    /// datagram that was sent, it is the packet of one of the receivers.
    pub peer_packet: Option<PacketId>,
}

/// The direction of a packet, seen from its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The device sent the packet.
    Out,
    /// The device received the packet.
    In,
}

/// The role of a packet, with the request that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PacketRole {
    /// A packet of a send request. The value is `None` if the requester was not recorded.
    Request(Option<RequestId>),
    /// A response to a READ, an atomic, a FLUSH or an ATOMIC WRITE. The value is `None` if the requester was not
    /// recorded.
    Response(Option<RequestId>),
    /// An ACK of all packets up to its sequence number.
    Ack {
        /// The sequence numbers that the ACK acknowledges for the first time, as its device knows: the sender of the ACK
        /// compares with the ACKs that it sent before, and the receiver with those that it received before. The value is
        /// `None` if the ACK acknowledges nothing new.
        acked_psns: Option<PsnRange>,
        /// The send requests that these sequence numbers belong to, if the requester was recorded.
        acked_requests: Vec<RequestId>,
    },
    /// A NAK, which also acknowledges all packets before its sequence number.
    Nak {
        /// The kind of NAK.
        syndrome: Syndrome,
        /// The sequence numbers that the NAK acknowledges for the first time.
        acked_psns: Option<PsnRange>,
        /// The send requests that these sequence numbers belong to, if the requester was recorded.
        acked_requests: Vec<RequestId>,
        /// The send request that has the NAK's sequence number, if the requester was recorded: the request that the
        /// NAK rejects, or that is to be retransmitted.
        nacked_request: Option<RequestId>,
    },
    /// A message of the connection manager.
    Cm {
        /// The message's name, such as `"REQ"`, if the message's header was recorded.
        message: Option<&'static str>,
    },
    /// A congestion notification packet.
    Cnp,
}

/// An event, with its device and its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TimedEvent {
    /// The device.
    pub device: DeviceId,
    /// The time.
    pub time: Time,
    /// The event.
    pub event: TraceEvent,
}

impl Trace {
    /// Returns the devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the requests, those of each device in the order in which its events mention them first. Requests that
    /// were posted while the device was recorded are in the order of their posting.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Returns the packets, those of each device in the order of their times.
    pub fn packets(&self) -> &[Packet] {
        &self.packets
    }

    /// Returns the events that belong to no single request or packet: connections, state changes, timeouts and
    /// asynchronous events, for example.
    pub fn other_events(&self) -> &[TimedEvent] {
        &self.other_events
    }

    /// Returns all events that were recorded, those of each device in order.
    pub fn events(&self) -> &[TimedEvent] {
        &self.events
    }

    /// Returns a device.
    pub fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(id.0)
    }

    /// Returns a request.
    pub fn request(&self, id: RequestId) -> Option<&Request> {
        self.requests.get(id.0)
    }

    /// Returns a packet.
    pub fn packet(&self, id: PacketId) -> Option<&Packet> {
        self.packets.get(id.0)
    }

    /// Whether the times of two devices are on one clock, so that they can be compared.
    pub fn is_clock_shared(&self, one: DeviceId, other: DeviceId) -> bool {
        match (self.device(one), self.device(other)) {
            (Some(a), Some(b)) => {
                one == other || (a.clock.host_id != 0 && a.clock.host_id == b.clock.host_id)
            }
            _ => false,
        }
    }

    /// Returns a device's time in nanoseconds on its host's monotonic clock. Times of devices that
    /// [share a clock](Trace::is_clock_shared) are comparable in this form.
    pub fn host_nanos(&self, device: DeviceId, time: Time) -> u64 {
        self.device(device).map_or(0, |device| device.clock.monotonic_nanos).saturating_add(time.as_nanos())
    }
}

impl RequestTimes {
    /// Returns the name and the time of each step, in the order of the steps.
    pub(crate) const fn steps(&self) -> [(&'static str, Option<Time>); 8] {
        let RequestTimes {
            posted,
            doorbell,
            first_packet,
            last_packet,
            acknowledged,
            completed,
            polled,
            processed,
        } = *self;
        [
            ("posted", posted),
            ("doorbell", doorbell),
            ("first_packet", first_packet),
            ("last_packet", last_packet),
            ("acknowledged", acknowledged),
            ("completed", completed),
            ("polled", polled),
            ("processed", processed),
        ]
    }
}

impl Request {
    /// Returns the state of the work queue entry at the end of the trace.
    pub fn wqe_state(&self) -> WqeState {
        match (&self.outcome, self.times.completed) {
            (Some(Err(_)), _) => WqeState::Error,
            (Some(Ok(_)), _) | (None, Some(_)) => WqeState::Completed,
            (None, None) if self.times.first_packet.is_some() => WqeState::Processing,
            (None, None) => WqeState::Posted,
        }
    }

    /// Returns the state of the completion queue entry at the end of the trace, or `None` if the request is unsignaled
    /// and succeeded, so that it has no completion.
    pub fn cqe_state(&self) -> Option<CqeState> {
        let RequestTimes { completed, polled, processed, .. } = self.times;
        match (self.outcome.is_some(), completed, polled) {
            (_, _, Some(_)) if processed.is_some() => Some(CqeState::Processed),
            (_, _, Some(_)) => Some(CqeState::Polled),
            (false, Some(_), None) => None,
            _ => Some(CqeState::Pending),
        }
    }

    /// Returns the operation's name, for people: [`SendOperation::name`], such as `"RDMA WRITE"`; `"RECEIVE"`; or `"request
    /// posted before the recording"`. A program matches [`queue`](Request::queue) and [`WorkRequest::operation`] instead.
    pub fn operation_name(&self) -> &'static str {
        match (self.queue, self.posted.and_then(|posted| posted.operation)) {
            (Queue::Recv, _) => "RECEIVE",
            (Queue::Send, Some(operation)) => operation.name(),
            (Queue::Send, None) => "request posted before the recording",
        }
    }
}
