//! Reads the events of a device.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use adverb_proto::trace::{DropReason, Queue, RecordedEvent, Recording, RecvQueueId, TraceEvent};
use adverb_proto::types::{Answer, Failure, Gid, Psn, QpState, Qpn, Status, Success};
use adverb_proto::{Cq, Srq, Time};
use adverb_wire::{Header, Operation, ROCE_PORT, Rc, Reth, Syndrome};

use super::Build;
use super::receiver::Receiver;
use super::sequence::SendSequence;
use crate::model::{
    Connection, Device, DeviceId, Direction, Packet, PacketId, PacketRole, PsnRange, Request, RequestId,
    RequestTimes, Retransmission, TimedEvent, WorkRequest,
};

/// A connection of a queue pair, or a queue pair that has none.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) device: DeviceId,
    pub(super) qpn: Qpn,
    /// The index in the device's connections.
    pub(super) connection: Option<usize>,
    pub(super) sequence: SendSequence,
    receiver: Receiver,
    /// The send requests by number.
    sends: HashMap<u32, RequestId>,
    /// The receive requests by number.
    recvs: HashMap<u32, RequestId>,
    /// The shared receive queue, once a message has consumed one of its requests.
    srq: Option<Srq>,
    /// The requests that wait for a doorbell.
    waiting: Vec<RequestId>,
    /// The last retransmission.
    retransmission: Option<Retransmission>,
    /// The response that is being handled.
    response: Option<PacketId>,
}

impl Qp {
    fn new(device: DeviceId, qpn: Qpn) -> Qp {
        Qp {
            device,
            qpn,
            connection: None,
            sequence: SendSequence::default(),
            receiver: Receiver::default(),
            sends: HashMap::new(),
            recvs: HashMap::new(),
            srq: None,
            waiting: Vec::new(),
            retransmission: None,
            response: None,
        }
    }

    fn is_new(&self) -> bool {
        self.connection.is_none() && self.sends.is_empty() && self.recvs.is_empty()
    }
}

/// A reader of a device's events.
pub(super) struct EventReader<'a> {
    build: &'a mut Build,
    device: DeviceId,
    /// The current queue pair of each number.
    qps: HashMap<Qpn, usize>,
    /// The receive requests of shared receive queues.
    srq_recvs: HashMap<Srq, HashMap<u32, RequestId>>,
    /// The requests that have completed, and whose completions have not been polled.
    completions: HashMap<(Cq, Qpn, u64), VecDeque<RequestId>>,
    /// The completions of each completion queue that were polled last, and the time of the poll.
    polled: HashMap<Cq, (Time, Vec<RequestId>)>,
    /// The polled receive requests of each queue, which the application may replace.
    replaceable: HashMap<RecvQueueId, VecDeque<RequestId>>,
    /// The addresses of the next packet of a queue pair.
    datagram_addrs: Option<(Qpn, SocketAddr, SocketAddr)>,
    /// The packet that is being handled.
    arriving: Option<PacketId>,
    /// Whether the sequence numbers in the event of a connection are those of the connection's next packets.
    has_current_psns: bool,
}

impl EventReader<'_> {
    pub(super) fn read(build: &mut Build, recording: Recording) {
        let device = build.next_device();
        let Recording { device: name, clock, earlier_connections, events, lost_count, stop_cause, .. } =
            recording;
        build.trace.devices.push(Device { name, clock, connections: Vec::new(), lost_count, stop_cause });
        let mut reader = EventReader {
            build,
            device,
            qps: HashMap::new(),
            srq_recvs: HashMap::new(),
            completions: HashMap::new(),
            polled: HashMap::new(),
            replaceable: HashMap::new(),
            datagram_addrs: None,
            arriving: None,
            // If events were overwritten, packets of earlier connections are probably among them, and the first
            // sequence numbers of these connections are out of date.
            has_current_psns: lost_count == 0,
        };
        for (time, event) in earlier_connections {
            reader.handle_event(time, event, None);
        }
        reader.has_current_psns = true;
        reader.build.trace.events.reserve(events.len());
        for RecordedEvent { time, event, payload } in events {
            reader.build.trace.events.push(TimedEvent { device, time, event });
            reader.handle_event(time, event, payload);
        }
    }

    fn handle_event(&mut self, time: Time, event: TraceEvent, payload: Option<Box<[u8]>>) {
        let addrs = self.datagram_addrs.take();
        match event {
            TraceEvent::Connected { .. } => self.connect(time, &event),
            TraceEvent::PostedSend {
                qpn,
                request,
                wr_id,
                tag,
                operation,
                flags,
                length,
                sge_count,
                first_sge,
            } => {
                let posted = WorkRequest {
                    tag,
                    operation: Some(operation),
                    flags,
                    length: length.into(),
                    sge_count,
                    first_sge,
                    recv_queue: None,
                };
                let qp = self.qp(qpn);
                let id = self.add_request(Some(qp), Queue::Send, request, wr_id, Some((time, posted)));
                if let Some(qp) = self.build.qps.get_mut(qp) {
                    qp.sends.insert(request, id);
                    qp.waiting.push(id);
                }
            }
            TraceEvent::PostedRecv { queue, request, wr_id, tag, length, sge_count, first_sge } => {
                let posted = WorkRequest {
                    tag,
                    operation: None,
                    flags: adverb_proto::types::SendFlags::empty(),
                    length,
                    sge_count,
                    first_sge,
                    recv_queue: Some(queue),
                };
                self.post_recv(time, queue, request, wr_id, posted);
            }
            TraceEvent::Doorbell { qpn } => {
                let qp = self.qp(qpn);
                let waiting = self.build.qps.get_mut(qp).map(|qp| core::mem::take(&mut qp.waiting));
                for id in waiting.unwrap_or_default() {
                    if let Some(request) = self.build.request_mut(id)
                        && request.times.first_packet.is_none()
                    {
                        request.times.doorbell = Some(time);
                    }
                }
            }
            TraceEvent::DatagramAddrs { qpn, source, destination } => {
                self.datagram_addrs = Some((qpn, source, destination));
            }
            TraceEvent::PacketSent { qpn, request, header, payload_len, is_retransmission } => {
                let mut packet = self.packet(time, Direction::Out, qpn, addrs, header, payload_len, payload);
                packet.is_retransmission = is_retransmission;
                self.send_packet(packet, request);
            }
            TraceEvent::PacketReceived { qpn, request, header, payload_len } => {
                let packet = self.packet(time, Direction::In, qpn, addrs, header, payload_len, payload);
                self.receive_packet(packet, request);
            }
            TraceEvent::Dropped { qpn, psn, opcode, reason } => {
                let is_delivered = !matches!(
                    reason,
                    DropReason::UnknownQp
                        | DropReason::WrongTransport
                        | DropReason::WrongAddress
                        | DropReason::WrongPkey
                        | DropReason::WrongIcrc
                        | DropReason::NoMulticastMember
                );
                let dropped = self.arriving.filter(|_| is_delivered).filter(|id| {
                    let matches = |packet: &Packet| {
                        packet.qpn == qpn
                            && packet.header.psn == psn
                            && packet.header.opcode() == opcode
                            && packet.dropped.is_none()
                    };
                    self.build.packet(*id).is_some_and(matches)
                });
                match dropped {
                    Some(id) => self.drop_packet(qpn, id, reason),
                    None => self.add_other_event(time, event),
                }
            }
            TraceEvent::Acknowledged { qpn, psn } => self.acknowledge(time, qpn, psn),
            TraceEvent::NakReceived { .. } => {}
            TraceEvent::NakSent { qpn, psn, .. } => {
                let qp = self.qp(qpn);
                if let Some(qp) = self.build.qps.get_mut(qp) {
                    qp.receiver.reject(psn);
                }
            }
            TraceEvent::Retransmit { qpn, psn, cause } => {
                let qp = self.qp(qpn);
                let retransmission = Retransmission { time, psn, cause };
                if let Some(qp) = self.build.qps.get_mut(qp) {
                    qp.retransmission = Some(retransmission);
                    let first = qp.sequence.find(psn);
                    if let Some(request) = first.and_then(|id| self.build.request_mut(id)) {
                        request.retransmissions.push(retransmission);
                    }
                }
                self.add_other_event(time, event);
            }
            TraceEvent::Completed { qpn, queue, request, wr_id, cq, outcome } => {
                self.complete(time, qpn, queue, request, wr_id, cq, outcome);
            }
            TraceEvent::CompletedUnsignaled { qpn, request } => {
                let qp = self.qp(qpn);
                let id = self.send_request(qp, request, None);
                self.end_send(time, id, true);
            }
            TraceEvent::Polled { cq, qpn, wr_id } => self.poll(time, cq, qpn, wr_id),
            TraceEvent::StateChanged { qpn, from, to } => {
                let is_reset = to == QpState::Reset || (from, to) == (QpState::Reset, QpState::Init);
                if is_reset {
                    self.renew(qpn);
                }
                self.arriving = None;
                self.add_other_event(time, event);
            }
            _ => self.add_other_event(time, event),
        }
    }

    fn add_other_event(&mut self, time: Time, event: TraceEvent) {
        self.build.trace.other_events.push(TimedEvent { device: self.device, time, event });
    }

    /// Returns the index of a queue pair.
    fn qp(&mut self, qpn: Qpn) -> usize {
        let (build, device) = (&mut *self.build, self.device);
        *self.qps.entry(qpn).or_insert_with(|| build.add_qp(Qp::new(device, qpn)))
    }

    /// Records that later events of this number are those of another queue pair, or of another connection.
    fn renew(&mut self, qpn: Qpn) {
        let qp = self.qp(qpn);
        if self.build.qps.get(qp).is_some_and(|qp| !qp.is_new()) {
            let qp = self.build.add_qp(Qp::new(self.device, qpn));
            self.qps.insert(qpn, qp);
        }
    }

    fn connect(&mut self, time: Time, event: &TraceEvent) {
        let &TraceEvent::Connected {
            qpn,
            transport,
            remote_qpn,
            local,
            remote,
            path_mtu,
            recv_psn,
            send_psn,
        } = event
        else {
            return;
        };
        self.add_other_event(time, *event);
        let qp = self.qp(qpn);
        let device = self.device.0;
        let current = self.build.qps.get(qp).and_then(|qp| qp.connection);
        let connections = self.build.trace.devices.get_mut(device).map(|device| &mut device.connections);
        let Some(connections) = connections else { return };
        if let Some(connection) = current.and_then(|index| connections.get_mut(index)) {
            let is_same = connection.remote_qpn == remote_qpn && connection.remote == remote;
            if is_same && (connection.send_psn.is_none() || send_psn.is_some()) {
                if connection.send_psn.is_none()
                    && let (Some(psn), Some(qp)) = (send_psn, self.build.qps.get_mut(qp))
                {
                    connection.send_psn = Some(psn);
                    if self.has_current_psns {
                        qp.sequence.start(psn);
                    }
                }
                return;
            }
            self.renew(qpn);
        }
        let qp = self.qp(qpn);
        let Some(connections) =
            self.build.trace.devices.get_mut(device).map(|device| &mut device.connections)
        else {
            return;
        };
        connections.push(Connection {
            time,
            qpn,
            transport,
            remote_qpn,
            local,
            remote,
            path_mtu,
            recv_psn,
            send_psn,
        });
        let index = connections.len() - 1;
        if let Some(qp) = self.build.qps.get_mut(qp) {
            qp.connection = Some(index);
            // Receives can be posted before the queue pair is connected.
            for id in qp.recvs.values().chain(qp.sends.values()) {
                if let Some(request) = self.build.trace.requests.get_mut(id.0) {
                    request.connection = Some(index);
                }
            }
            if self.has_current_psns {
                qp.receiver.start(recv_psn);
                if let Some(psn) = send_psn {
                    qp.sequence.start(psn);
                }
            }
        }
    }

    fn connection(&self, qp: usize) -> Option<&Connection> {
        let index = self.build.qps.get(qp)?.connection?;
        self.build.trace.devices.get(self.device.0)?.connections.get(index)
    }

    fn add_request(
        &mut self,
        qp: Option<usize>,
        queue: Queue,
        number: u32,
        wr_id: u64,
        posted: Option<(Time, WorkRequest)>,
    ) -> RequestId {
        let qp = qp.and_then(|qp| self.build.qps.get(qp));
        let request = Request {
            device: self.device,
            qpn: qp.map(|qp| qp.qpn),
            queue,
            number_in_queue: number,
            connection: qp.and_then(|qp| qp.connection),
            wr_id,
            posted: posted.map(|(_, posted)| posted),
            times: RequestTimes { posted: posted.map(|(time, _)| time), ..RequestTimes::default() },
            psn_range: None,
            packets: Vec::new(),
            acks: Vec::new(),
            retransmissions: Vec::new(),
            outcome: None,
            cq: None,
            peer_request: None,
        };
        self.build.add_request(request)
    }

    fn post_recv(&mut self, time: Time, queue: RecvQueueId, number: u32, wr_id: u64, posted: WorkRequest) {
        // A post is the replacement of the oldest receive request that the application has polled.
        if let Some(queue) = self.replaceable.get_mut(&queue) {
            while let Some(id) = queue.pop_front() {
                if let Some(request) = self.build.trace.requests.get_mut(id.0)
                    && request.times.processed.is_none()
                {
                    request.times.processed = Some(time);
                    break;
                }
            }
        }
        match queue {
            RecvQueueId::Qp(qpn) => {
                let qp = self.qp(qpn);
                let id = self.add_request(Some(qp), Queue::Recv, number, wr_id, Some((time, posted)));
                if let Some(qp) = self.build.qps.get_mut(qp) {
                    qp.recvs.insert(number, id);
                }
            }
            RecvQueueId::Srq(srq) => {
                let id = self.add_request(None, Queue::Recv, number, wr_id, Some((time, posted)));
                self.srq_recvs.entry(srq).or_default().insert(number, id);
            }
        }
    }

    /// Returns the send request with this number, which may have been posted before the recording began.
    fn send_request(&mut self, qp: usize, number: u32, wr_id: Option<u64>) -> RequestId {
        let known = self.build.qps.get(qp).and_then(|qp| qp.sends.get(&number)).copied();
        let matches = |request: &Request| {
            // A completion has the id of its request, and a request completes once.
            wr_id.is_none_or(|wr_id| {
                request.times.completed.is_none() && (request.posted.is_none() || request.wr_id == wr_id)
            })
        };
        if let Some(id) = known
            && self.build.request(id).is_some_and(matches)
        {
            return id;
        }
        let id = self.add_request(Some(qp), Queue::Send, number, wr_id.unwrap_or(0), None);
        if let Some(qp) = self.build.qps.get_mut(qp) {
            qp.sends.insert(number, id);
        }
        id
    }

    /// Returns the receive request that completes.
    fn recv_request(&mut self, qp: usize, number: u32, wr_id: u64) -> RequestId {
        let build = &*self.build;
        let matches = |id: &RequestId| {
            build
                .request(*id)
                .is_some_and(|request| request.wr_id == wr_id && request.times.completed.is_none())
        };
        let owner = build.qps.get(qp);
        let own = owner.and_then(|qp| qp.recvs.get(&number)).copied().filter(matches);
        let shared = || {
            let known = owner.and_then(|qp| qp.srq).and_then(|srq| self.srq_recvs.get_key_value(&srq));
            let in_queue = |(srq, recvs): (&Srq, &HashMap<u32, RequestId>)| {
                let id = recvs.get(&number).copied().filter(matches)?;
                Some((*srq, id))
            };
            known.and_then(in_queue).or_else(|| self.srq_recvs.iter().find_map(in_queue))
        };
        if let Some(id) = own {
            return id;
        }
        if let Some((srq, id)) = shared() {
            let mut connection = None;
            let mut qpn = None;
            if let Some(qp) = self.build.qps.get_mut(qp) {
                qp.srq = Some(srq);
                (connection, qpn) = (qp.connection, Some(qp.qpn));
            }
            if let Some(request) = self.build.request_mut(id) {
                (request.connection, request.qpn) = (connection, qpn);
            }
            return id;
        }
        self.add_request(Some(qp), Queue::Recv, number, wr_id, None)
    }

    #[expect(clippy::too_many_arguments, reason = "these are the fields of an event")]
    fn packet(
        &mut self,
        time: Time,
        direction: Direction,
        qpn: Qpn,
        addrs: Option<(Qpn, SocketAddr, SocketAddr)>,
        header: Header,
        payload_len: u32,
        payload: Option<Box<[u8]>>,
    ) -> Packet {
        let qp = self.qp(qpn);
        let addresses = match (addrs.filter(|(owner, ..)| *owner == qpn), self.connection(qp)) {
            (Some((_, source, destination)), _) => Some((source, destination)),
            (None, Some(connection)) => Some(match direction {
                Direction::Out => (connection.local, connection.remote),
                Direction::In => {
                    (received_addr(connection.remote, 0), received_addr(connection.local, ROCE_PORT))
                }
            }),
            (None, None) => None,
        };
        Packet {
            device: self.device,
            time,
            direction,
            qpn,
            source: addresses.map(|(source, _)| source),
            destination: addresses.map(|(_, destination)| destination),
            role: role(qpn, &header, payload.as_deref()),
            header,
            payload_len,
            payload,
            is_retransmission: false,
            retry_cause: None,
            dropped: None,
            peer_packet: None,
        }
    }

    fn send_packet(&mut self, mut packet: Packet, number: Option<u32>) {
        self.arriving = None;
        let qp_index = self.qp(packet.qpn);
        let mtu = self.connection(qp_index).map(|connection| u32::from(connection.path_mtu.bytes()));
        let request = number.map(|number| self.send_request(qp_index, number, None));
        let Some(qp) = self.build.qps.get_mut(qp_index) else { return };
        qp.response = None;
        match &mut packet.role {
            PacketRole::Request(owner) => *owner = request,
            PacketRole::Response(_) => packet.is_retransmission |= qp.receiver.respond(packet.header.psn),
            PacketRole::Ack { acked_psns, .. } => {
                *acked_psns = qp.receiver.acknowledge(packet.header.psn + 1);
            }
            PacketRole::Nak { acked_psns, .. } => *acked_psns = qp.receiver.acknowledge(packet.header.psn),
            PacketRole::Cm { .. } | PacketRole::Cnp => {}
        }
        let retransmission = qp.retransmission.filter(|_| packet.is_retransmission && request.is_some());
        packet.retry_cause = retransmission.map(|retransmission| retransmission.cause);
        let (time, header) = (packet.time, packet.header);
        let id = self.build.add_packet(qp_index, packet, request);
        let Some(request) = request else { return };
        self.number_packet(qp_index, request, &header, mtu);
        self.attach(request, id, time);
        if let Some(request) = self.build.request_mut(request)
            && let Some(retransmission) = retransmission
            && request.retransmissions.last() != Some(&retransmission)
        {
            request.retransmissions.push(retransmission);
        }
    }

    /// Extends the sequence numbers of a request to those of a packet.
    fn number_packet(&mut self, qp: usize, id: RequestId, header: &Header, mtu: Option<u32>) {
        let posted = self.build.request(id).and_then(|request| request.posted);
        let before = self.build.first_numbers.get(id.0).copied().flatten();
        let Some(qp) = self.build.qps.get_mut(qp) else { return };
        let number = qp.sequence.advance(header.psn);
        let end = number.saturating_add(u64::from(span(header, mtu)) - 1);
        let (first, last) = match before {
            Some(first) => (first.min(number), qp.sequence.last(first).map_or(end, |last| last.max(end))),
            None => {
                let count = posted.map_or(1, |posted| packet_count(&posted, mtu));
                (number, end.max(number.saturating_add(count - 1)))
            }
        };
        qp.sequence.set(id, before, first, last);
        let psn_range = PsnRange { first: qp.sequence.psn(first), last: qp.sequence.psn(last) };
        if let Some(slot) = self.build.first_numbers.get_mut(id.0) {
            *slot = Some(first);
        }
        if let Some(request) = self.build.request_mut(id) {
            request.psn_range = Some(psn_range);
        }
    }

    /// Adds a packet to a request.
    fn attach(&mut self, id: RequestId, packet: PacketId, time: Time) {
        if let Some(request) = self.build.request_mut(id) {
            request.packets.push(packet);
            request.times.first_packet.get_or_insert(time);
            request.times.last_packet = Some(time);
        }
    }

    fn receive_packet(&mut self, mut packet: Packet, number: Option<u32>) {
        let qp_index = self.qp(packet.qpn);
        let mtu = self.connection(qp_index).map(|connection| u32::from(connection.path_mtu.bytes()));
        let Some(qp) = self.build.qps.get(qp_index) else { return };
        let psn = packet.header.psn;
        let owner =
            number.and_then(|number| qp.sends.get(&number).copied()).or_else(|| qp.sequence.find(psn));
        let is_response = matches!(packet.role, PacketRole::Response(_));
        let nacked_request = match &mut packet.role {
            PacketRole::Response(request) => {
                *request = owner;
                None
            }
            PacketRole::Nak { nacked_request, .. } => {
                *nacked_request = owner;
                owner
            }
            _ => None,
        };
        let is_request = matches!(packet.role, PacketRole::Request(_) | PacketRole::Cm { .. });
        let (time, header) = (packet.time, packet.header);
        let id = self.build.add_packet(qp_index, packet, None);
        self.arriving = Some(id);
        if let Some(qp) = self.build.qps.get_mut(qp_index) {
            qp.response = (!is_request && header.operation != Operation::Cnp).then_some(id);
            if is_request {
                qp.receiver.receive(&header, span(&header, mtu), id);
            }
        }
        if let Some(owner) = owner.filter(|_| is_response) {
            self.attach(owner, id, time);
        }
        if let Some(request) = nacked_request.and_then(|id| self.build.request_mut(id)) {
            request.acks.push(id);
        }
    }

    fn drop_packet(&mut self, qpn: Qpn, id: PacketId, reason: DropReason) {
        let qp = self.qp(qpn);
        let is_reliable = match self.build.packet_mut(id) {
            Some(packet) => {
                packet.dropped = Some(reason);
                matches!(packet.header.operation, Operation::Rc(_))
            }
            None => return,
        };
        if let Some(qp) = self.build.qps.get_mut(qp) {
            qp.receiver.drop(id, is_reliable);
        }
    }

    fn acknowledge(&mut self, time: Time, qpn: Qpn, psn: Psn) {
        let qp = self.qp(qpn);
        let Some(qp) = self.build.qps.get_mut(qp) else { return };
        let (first, last) = qp.sequence.acknowledge(psn);
        let requests = qp.sequence.find_all(first, last);
        let response = qp.response;
        let range = PsnRange { first: qp.sequence.psn(first), last: qp.sequence.psn(last) };
        let sequence = &qp.sequence;
        let mut own = None;
        for &id in &requests {
            let number = self.build.first_numbers.get(id.0).copied().flatten();
            if let Some(request) = self.build.trace.requests.get_mut(id.0)
                && number.is_some_and(|number| sequence.is_acknowledged(number))
            {
                request.times.acknowledged.get_or_insert(time);
            }
        }
        let Some(response) = response else { return };
        match self.build.trace.packets.get_mut(response.0).map(|packet| &mut packet.role) {
            Some(
                PacketRole::Ack { acked_psns, acked_requests }
                | PacketRole::Nak { acked_psns, acked_requests, .. },
            ) => {
                // One response can acknowledge in two steps.
                let first = acked_psns.map_or(range.first, |acked| acked.first);
                *acked_psns = Some(PsnRange { first, ..range });
                for id in &requests {
                    if acked_requests.last() != Some(id) {
                        acked_requests.push(*id);
                    }
                }
            }
            Some(PacketRole::Response(request)) => own = *request,
            _ => {}
        }
        for id in requests.into_iter().filter(|id| Some(*id) != own) {
            if let Some(request) = self.build.request_mut(id)
                && request.acks.last() != Some(&response)
            {
                request.acks.push(response);
            }
        }
    }

    /// Records the end of a send request.
    fn end_send(&mut self, time: Time, id: RequestId, is_success: bool) {
        let first = self.build.request(id).and_then(|request| request.packets.first().copied());
        let is_reliable = first
            .and_then(|id| self.build.packet(id))
            .is_some_and(|packet| matches!(packet.header.operation, Operation::Rc(_)));
        if let Some(request) = self.build.request_mut(id) {
            request.times.completed.get_or_insert(time);
            if is_success && is_reliable {
                request.times.acknowledged.get_or_insert(time);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "these are the fields of an event")]
    fn complete(
        &mut self,
        time: Time,
        qpn: Qpn,
        queue: Queue,
        number: u32,
        wr_id: u64,
        cq: Cq,
        outcome: Result<Success, Failure>,
    ) {
        let qp = self.qp(qpn);
        let id = match queue {
            Queue::Send => self.send_request(qp, number, Some(wr_id)),
            Queue::Recv => self.recv_request(qp, number, wr_id),
        };
        if let Some(request) = self.build.request_mut(id) {
            request.wr_id = wr_id;
            request.cq = Some(cq);
            request.outcome = Some(outcome);
        }
        self.completions.entry((cq, qpn, wr_id)).or_default().push_back(id);
        if queue == Queue::Send {
            return self.end_send(time, id, outcome.is_ok());
        }
        if let Some(request) = self.build.request_mut(id) {
            request.times.completed = Some(time);
        }
        if !matches!(outcome, Err(Failure { status: Status::Flushed, .. })) {
            let message = self.build.qps.get_mut(qp).map(|qp| qp.receiver.take_message());
            self.fill_recv(id, &message.unwrap_or_default());
        }
    }

    /// Sets the packets of a receive request's message.
    fn fill_recv(&mut self, id: RequestId, message: &[PacketId]) {
        for &packet in message {
            let Some((time, psn)) = self.build.packet(packet).map(|packet| (packet.time, packet.header.psn))
            else {
                continue;
            };
            self.attach(id, packet, time);
            if let Some(request) = self.build.request_mut(id) {
                let first = request.psn_range.map_or(psn, |range| range.first);
                request.psn_range = Some(PsnRange { first, last: psn });
            }
        }
    }

    fn poll(&mut self, time: Time, cq: Cq, qpn: Qpn, wr_id: u64) {
        let (last_poll, unprocessed) = self.polled.entry(cq).or_insert_with(|| (time, Vec::new()));
        // Completions of one poll have one time.
        if time > *last_poll {
            for id in unprocessed.drain(..) {
                if let Some(request) = self.build.trace.requests.get_mut(id.0) {
                    request.times.processed.get_or_insert(time);
                }
            }
            *last_poll = time;
        }
        let completed = self.completions.get_mut(&(cq, qpn, wr_id)).and_then(VecDeque::pop_front);
        let Some(id) = completed else { return };
        unprocessed.push(id);
        let Some(request) = self.build.request_mut(id) else { return };
        request.times.polled = Some(time);
        if request.queue == Queue::Recv {
            let queue = request.posted.and_then(|posted| posted.recv_queue).unwrap_or(RecvQueueId::Qp(qpn));
            self.replaceable.entry(queue).or_default().push_back(id);
        }
    }
}

/// Returns the source or destination of a received packet. `addr` is the connection's address of that side. The result
/// is `addr` itself if a GID can encode its port, and otherwise its IP address with `port`.
fn received_addr(addr: SocketAddr, port: u16) -> SocketAddr {
    if Gid::UDP_PORTS.contains(&addr.port()) { addr } else { SocketAddr::new(addr.ip(), port) }
}

/// Returns the role of a packet, as far as its headers determine it.
fn role(qpn: Qpn, header: &Header, payload: Option<&[u8]>) -> PacketRole {
    match header.operation {
        Operation::Cnp => PacketRole::Cnp,
        Operation::Ud(_) if qpn == Qpn::GSI => {
            PacketRole::Cm { message: payload.and_then(crate::cm::message_name) }
        }
        Operation::Rc(Rc::Acknowledge(aeth)) => match aeth.syndrome {
            Syndrome::Ack(_) => PacketRole::Ack { acked_psns: None, acked_requests: Vec::new() },
            syndrome => PacketRole::Nak {
                syndrome,
                acked_psns: None,
                acked_requests: Vec::new(),
                nacked_request: None,
            },
        },
        Operation::Rc(Rc::ReadResponse(_) | Rc::AtomicAcknowledge(..)) => PacketRole::Response(None),
        Operation::Rc(_) | Operation::Uc(_) | Operation::Ud(_) => PacketRole::Request(None),
    }
}

/// Returns the number of sequence numbers of a packet: a READ takes those of its responses.
fn span(header: &Header, mtu: Option<u32>) -> u32 {
    match (header.operation, mtu) {
        (Operation::Rc(Rc::ReadRequest(Reth { length, .. })), Some(mtu)) => {
            length.div_ceil(mtu.max(1)).max(1)
        }
        _ => 1,
    }
}

/// Returns the number of sequence numbers of a request.
fn packet_count(posted: &WorkRequest, mtu: Option<u32>) -> u64 {
    let is_one_packet = match posted.operation.map(|operation| operation.answer()) {
        Some(Answer::Atomic | Answer::EmptyRead) => true,
        Some(Answer::None | Answer::Acknowledgement | Answer::Read) | None => false,
    };
    match mtu {
        Some(mtu) if !is_one_packet => posted.length.div_ceil(u64::from(mtu.max(1))).max(1),
        _ => 1,
    }
}
