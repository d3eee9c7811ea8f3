//! A trace with many kinds of requests, packets and events, for the tests of the sinks.

use std::net::SocketAddr;

use adverb_proto::memory::Pd;
use adverb_proto::trace::{
    ClockOrigin, DropReason, Queue, RecvQueueId, RetryCause, StopCause, TimerKind, TraceEvent,
};
use adverb_proto::types::{
    CompletedOperation, Failure, PathMtu, Psn, QpState, Qpn, RemoteAddress, Segment, SendFlags,
    SendOperation, Status, Success, Transport,
};
use adverb_proto::{Cq, Device as Engine, QueueEvent, Srq, SrqConfig, Time};
use adverb_wire::{
    Aeth, CompareSwap, Credits, Header, NakCode, Operation, Rc, ReadResponse, Reth, RnrTimer, Send, Syndrome,
    Ud, Write,
};

use crate::model::{
    Connection, Device, DeviceId, Direction, Packet, PacketId, PacketRole, PsnRange, Request, RequestId,
    RequestTimes, Retransmission, TimedEvent, Trace, WorkRequest,
};

pub(crate) const CLIENT: DeviceId = DeviceId(0);
pub(crate) const SERVER: DeviceId = DeviceId(1);
pub(crate) const FAR: DeviceId = DeviceId(2);

/// The queue pairs of the client and of the server.
const QPS: [u32; 2] = [0x12, 0x13];
const ADDRS: [&str; 2] = ["10.0.0.1:49300", "10.0.0.2:4791"];

/// Returns a trace of a client and a server on one host, and of a device with a clock of its own.
///
/// The client sends a message, writes 2500 bytes of which a packet is lost, reads 1500 bytes, swaps a word, and writes
/// with a wrong key. The requests are posted 100 µs apart.
pub(crate) fn trace() -> Trace {
    let mut sample = Sample::new();
    sample.send();
    sample.write_with_loss();
    sample.read();
    sample.swap();
    sample.add_rejected_write();
    sample.add_other_packets();
    sample.add_other_requests();
    sample.add_other_events();
    sample.trace
}

/// Returns the range that contains one sequence number.
fn only(psn: Psn) -> PsnRange {
    PsnRange { first: psn, last: psn }
}

pub(crate) fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1000)
}

struct Sample {
    trace: Trace,
    cq: Cq,
    srq: Srq,
}

impl Sample {
    fn new() -> Sample {
        let mut engine = Engine::new(());
        let pd: Pd = engine.create_domain();
        let srq = engine.create_srq(SrqConfig::new(pd)).unwrap();
        let cq = engine.create_cq(16);
        let mut trace = Trace::default();
        let clock = |host_id, monotonic_nanos| ClockOrigin {
            host_id,
            monotonic_nanos,
            unix_nanos: 1_700_000_000_000_000_000 + monotonic_nanos,
        };
        // The server's clock started 5 µs after the client's.
        let devices = [
            ("soft0", clock(u128::MAX, 1000)),
            ("soft1", clock(u128::MAX, 6000)),
            ("far \"2\"", clock(0, 9)),
        ];
        for (name, clock) in devices {
            trace.devices.push(Device {
                name: name.to_owned(),
                clock,
                connections: Vec::new(),
                lost_count: 0,
                stop_cause: StopCause::Manual,
            });
        }
        trace.devices[2].lost_count = 3;
        trace.devices[2].stop_cause = StopCause::Timeout;
        for (device, (local, remote)) in [(0, 1), (1, 0)].into_iter().enumerate() {
            trace.devices[device].connections.push(Connection {
                time: at(0),
                qpn: Qpn::truncate(QPS[local]),
                transport: Transport::Rc,
                remote_qpn: Qpn::truncate(QPS[remote]),
                local: ADDRS[local].parse().unwrap(),
                remote: ADDRS[remote].parse().unwrap(),
                path_mtu: PathMtu::Mtu1024,
                recv_psn: Psn::MAX,
                send_psn: (local == 0).then_some(Psn::MAX),
            });
        }
        Sample { trace, cq, srq }
    }

    /// Adds a send request of the client that is posted at `micros` and polled 40 µs later.
    fn post(&mut self, micros: u64, operation: SendOperation, length: u64, psn_range: PsnRange) -> RequestId {
        let number = self.trace.requests.iter().filter(|request| request.device == CLIENT).count() as u32;
        let id = RequestId(self.trace.requests.len());
        self.trace.requests.push(Request {
            device: CLIENT,
            qpn: Some(Qpn::truncate(QPS[0])),
            queue: Queue::Send,
            number_in_queue: number,
            connection: Some(0),
            wr_id: u64::MAX - u64::from(number),
            posted: Some(WorkRequest {
                tag: 7 + u64::from(number),
                operation: Some(operation),
                flags: SendFlags::SIGNALED | SendFlags::FENCE,
                length,
                sge_count: 1,
                first_sge: Some(Segment { addr: 0xffff_8000_0000_1000, length: length as u32, lkey: 0x11 }),
                recv_queue: None,
            }),
            times: RequestTimes {
                posted: Some(at(micros)),
                doorbell: Some(at(micros + 1)),
                first_packet: Some(at(micros + 2)),
                last_packet: Some(at(micros + 30)),
                acknowledged: Some(at(micros + 30)),
                completed: Some(at(micros + 31)),
                polled: Some(at(micros + 40)),
                processed: Some(at(micros + 50)),
            },
            psn_range: Some(psn_range),
            packets: Vec::new(),
            acks: Vec::new(),
            retransmissions: Vec::new(),
            outcome: Some(Ok(Success { operation: CompletedOperation::Send, length: 0 })),
            cq: Some(self.cq),
            peer_request: None,
        });
        id
    }

    /// Adds a packet that `sender` sends at `micros` on the client's clock, and that is received 3 µs later.
    fn add_packet(
        &mut self,
        micros: u64,
        sender: DeviceId,
        operation: Operation,
        psn: Psn,
        payload: Payload<'_>,
        role: PacketRole,
    ) {
        let receiver = DeviceId(1 - sender.0);
        let out = PacketId(self.trace.packets.len());
        let [source, destination] = match sender {
            CLIENT => ADDRS,
            _ => ["10.0.0.2:50000", "10.0.0.1:4791"],
        };
        let header = Header {
            ack_request: sender == CLIENT,
            ..Header::new(Qpn::truncate(QPS[receiver.0]), psn, operation)
        };
        let (payload_len, payload) = match payload {
            Payload::Len(len) => (len, None),
            Payload::Part(len, bytes) => (len, Some(bytes.into())),
        };
        let copies =
            [(sender, Direction::Out, micros, out.0 + 1), (receiver, Direction::In, micros + 3, out.0)];
        for (device, direction, micros, peer) in copies {
            // The server's clock is 5 µs behind the client's.
            let micros = if device == SERVER { micros - 5 } else { micros };
            if let PacketRole::Request(Some(request)) | PacketRole::Response(Some(request)) = role
                && device == CLIENT
            {
                self.trace.requests[request.0].packets.push(PacketId(self.trace.packets.len()));
            }
            self.trace.packets.push(Packet {
                device,
                time: at(micros),
                direction,
                qpn: Qpn::truncate(QPS[device.0]),
                source: Some(source.parse().unwrap()),
                destination: Some(destination.parse().unwrap()),
                header,
                payload_len,
                payload: payload.clone(),
                is_retransmission: false,
                retry_cause: None,
                dropped: None,
                role: role.clone(),
                peer_packet: Some(PacketId(peer)),
            });
        }
    }

    fn add_ack(&mut self, micros: u64, psns: PsnRange, acked_requests: Vec<RequestId>) {
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: 1 };
        if let [request] = acked_requests[..] {
            self.trace.requests[request.0].acks.push(PacketId(self.trace.packets.len() + 1));
        }
        let role = PacketRole::Ack { acked_psns: Some(psns), acked_requests };
        self.add_packet(
            micros,
            SERVER,
            Operation::Rc(Rc::Acknowledge(aeth)),
            psns.last,
            Payload::Len(0),
            role,
        );
    }

    fn send(&mut self) {
        let psn = Psn::MAX;
        let request = self.post(10, SendOperation::SendWithImm(0xabcd), 5, only(psn));
        let operation = Operation::Rc(Rc::Send(Send::Only(Some(0xabcd))));
        let role = PacketRole::Request(Some(request));
        self.add_packet(12, CLIENT, operation, psn, Payload::Part(5, b"hello"), role);
        self.add_ack(20, only(psn), vec![request]);
    }

    fn write_with_loss(&mut self) {
        let psns = PsnRange { first: Psn::ZERO, last: Psn::wrapping(2) };
        let remote = RemoteAddress { addr: 0x7000_0000_0000, rkey: 0xffff_fff0 };
        let request = self.post(110, SendOperation::Write(remote), 2500, psns);
        let reth = Reth { va: remote.addr, rkey: remote.rkey, length: 2500 };
        let role = PacketRole::Request(Some(request));
        let packets = [Write::First(reth), Write::Middle, Write::Last(None)];
        let lens = [1024, 1024, 452];
        for (index, write) in packets.into_iter().enumerate() {
            let operation = Operation::Rc(Rc::Write(write));
            let psn = Psn::wrapping(index as u32);
            let payload = Payload::Part(lens[index], &[0xee; 64]);
            self.add_packet(112 + index as u64, CLIENT, operation, psn, payload, role.clone());
            if index == 1 {
                // The packet is lost: it has no copy at the server.
                self.trace.packets.pop();
                self.trace.packets.last_mut().unwrap().peer_packet = None;
            }
        }
        self.trace.packets.last_mut().unwrap().dropped = Some(DropReason::OutOfSequence);
        let syndrome = Syndrome::Nak(NakCode::SequenceError);
        let nak = Operation::Rc(Rc::Acknowledge(Aeth { syndrome, msn: 1 }));
        let nak_role = PacketRole::Nak {
            syndrome,
            acked_psns: Some(only(Psn::ZERO)),
            acked_requests: vec![request],
            nacked_request: Some(request),
        };
        self.add_packet(118, SERVER, nak, Psn::wrapping(1), Payload::Len(0), nak_role);
        let retransmission = |time, cause| Retransmission { time: at(time), psn: Psn::wrapping(1), cause };
        self.trace.requests[request.0].retransmissions =
            vec![retransmission(122, RetryCause::SequenceNak), retransmission(125, RetryCause::Timeout)];
        for (index, micros, cause) in [(1, 123, RetryCause::SequenceNak), (2, 126, RetryCause::Timeout)] {
            let operation = Operation::Rc(Rc::Write(packets[index]));
            let psn = Psn::wrapping(index as u32);
            self.add_packet(micros, CLIENT, operation, psn, Payload::Len(lens[index]), role.clone());
            self.trace.packets.iter_mut().rev().take(2).for_each(|packet| {
                packet.is_retransmission = true;
                packet.retry_cause = Some(cause);
            });
        }
        self.add_ack(130, PsnRange { first: Psn::wrapping(1), last: Psn::wrapping(2) }, vec![request]);
    }

    fn read(&mut self) {
        let psns = PsnRange { first: Psn::wrapping(3), last: Psn::wrapping(4) };
        let remote = RemoteAddress { addr: 0x7000_0000_2000, rkey: 5 };
        let request = self.post(210, SendOperation::Read(remote), 1500, psns);
        let reth = Reth { va: remote.addr, rkey: remote.rkey, length: 1500 };
        let role = PacketRole::Request(Some(request));
        self.add_packet(212, CLIENT, Operation::Rc(Rc::ReadRequest(reth)), psns.first, Payload::Len(0), role);
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: 3 };
        let responses = [(ReadResponse::First(aeth), 1024), (ReadResponse::Last(aeth), 476)];
        for (index, (response, len)) in (0..).zip(responses) {
            let role = PacketRole::Response(Some(request));
            let operation = Operation::Rc(Rc::ReadResponse(response));
            self.add_packet(
                220 + u64::from(index),
                SERVER,
                operation,
                psns.first + index,
                Payload::Len(len),
                role,
            );
        }
    }

    fn swap(&mut self) {
        let psn = Psn::wrapping(5);
        let remote = RemoteAddress { addr: 0x7000_0000_3000, rkey: 5 };
        let (compare, swap) = (u64::MAX, 1 << 60);
        let request = self.post(310, SendOperation::CompareSwap { remote, compare, swap }, 8, only(psn));
        let atomic = CompareSwap { va: remote.addr, rkey: 5, swap, compare };
        let role = PacketRole::Request(Some(request));
        self.add_packet(312, CLIENT, Operation::Rc(Rc::CompareSwap(atomic)), psn, Payload::Len(0), role);
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn: 4 };
        let operation = Operation::Rc(Rc::AtomicAcknowledge(aeth, u64::MAX - 1));
        self.add_packet(320, SERVER, operation, psn, Payload::Len(0), PacketRole::Response(Some(request)));
    }

    fn add_rejected_write(&mut self) {
        let psn = Psn::wrapping(6);
        let remote = RemoteAddress { addr: 0xdead_0000, rkey: 0xbad };
        let request = self.post(410, SendOperation::Write(remote), 0, only(psn));
        let status = Status::RemoteAccess;
        self.trace.requests[request.0].outcome = Some(Err(Failure { status, vendor_error: 0x55 }));
        self.trace.requests[request.0].times.polled = None;
        let reth = Reth { va: remote.addr, rkey: remote.rkey, length: 0 };
        let role = PacketRole::Request(Some(request));
        let operation = Operation::Rc(Rc::Write(Write::Only(reth, None)));
        self.add_packet(412, CLIENT, operation, psn, Payload::Len(0), role);
        for (micros, syndrome) in
            [(418, Syndrome::RnrNak(RnrTimer::new(14).unwrap())), (420, Syndrome::Nak(NakCode::RemoteAccess))]
        {
            let operation = Operation::Rc(Rc::Acknowledge(Aeth { syndrome, msn: 4 }));
            let role = PacketRole::Nak {
                syndrome,
                acked_psns: None,
                acked_requests: Vec::new(),
                nacked_request: Some(request),
            };
            self.add_packet(micros, SERVER, operation, psn, Payload::Len(0), role);
        }
    }

    fn add_other_packets(&mut self) {
        let datagram = Operation::Ud(Ud { qkey: 0x8001_0000, source_qp: Qpn::GSI, immediate: None });
        // The first 36 bytes of a REQ: the header of a management datagram, whose attribute is the kind of message,
        // and zeros.
        let mut mad = [0_u8; 36];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&0x10_u16.to_be_bytes());
        let role = PacketRole::Cm { message: Some("REQ") };
        self.add_packet(500, CLIENT, datagram, Psn::ZERO, Payload::Part(256, &mad), role);
        self.add_packet(
            510,
            CLIENT,
            datagram,
            Psn::ZERO,
            Payload::Len(256),
            PacketRole::Cm { message: None },
        );
        self.trace.packets.iter_mut().rev().take(4).for_each(|packet| {
            packet.header.dest_qp = Qpn::GSI;
            packet.qpn = Qpn::GSI;
        });
        self.add_packet(520, SERVER, Operation::Cnp, Psn::ZERO, Payload::Len(0), PacketRole::Cnp);
        let nothing_new = PacketRole::Ack { acked_psns: None, acked_requests: Vec::new() };
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::at_most(4)), msn: 4 };
        let ack = Operation::Rc(Rc::Acknowledge(aeth));
        self.add_packet(530, SERVER, ack, Psn::wrapping(5), Payload::Len(0), nothing_new);
        self.trace.packets.last_mut().unwrap().dropped = Some(DropReason::WrongIcrc);
        let acked_requests = (0..5).map(RequestId).collect();
        self.add_ack(540, PsnRange { first: Psn::MAX, last: Psn::wrapping(6) }, acked_requests);

        // Packets of a device whose peer was not recorded.
        let send = Operation::Rc(Rc::Send(Send::Only(None)));
        let addrs: [Option<SocketAddr>; 4] =
            [None, Some("[fd77::1]:4791".parse().unwrap()), Some("10.9.9.9:4791".parse().unwrap()), None];
        for (index, destination) in (0..).zip(addrs) {
            self.trace.packets.push(Packet {
                device: FAR,
                time: at(u64::from(index)),
                direction: if index == 3 { Direction::Out } else { Direction::In },
                qpn: Qpn::truncate(0x77),
                source: (index == 2).then(|| "[fd77::2]:4791".parse().unwrap()),
                destination,
                header: Header::new(Qpn::truncate(0x77), Psn::wrapping(index), send),
                payload_len: 3,
                payload: Some(b"abc"[..].into()),
                is_retransmission: false,
                retry_cause: None,
                dropped: None,
                role: if index == 3 { PacketRole::Response(None) } else { PacketRole::Request(None) },
                peer_packet: None,
            });
        }
    }

    /// Adds receives, and a send that was posted before the recording and has not completed.
    fn add_other_requests(&mut self) {
        let first_far = self.trace.packets.iter().position(|packet| packet.device == FAR).unwrap();
        let queues = [(SERVER, QPS[1], Some(0)), (FAR, 0x77, None)];
        for (device, qpn, peer) in queues {
            let qpn = Qpn::truncate(qpn);
            let packet = if device == FAR { first_far } else { 1 };
            let time = self.trace.packets[packet].time;
            self.trace.requests.push(Request {
                device,
                qpn: Some(qpn),
                queue: Queue::Recv,
                number_in_queue: 9,
                connection: None,
                wr_id: 1,
                posted: Some(WorkRequest {
                    tag: 3,
                    operation: None,
                    flags: SendFlags::empty(),
                    length: 4096,
                    sge_count: 2,
                    first_sge: None,
                    recv_queue: Some(RecvQueueId::Qp(qpn)),
                }),
                times: RequestTimes {
                    posted: Some(at(0)),
                    first_packet: Some(time),
                    last_packet: Some(time),
                    completed: Some(time),
                    polled: Some(time),
                    ..RequestTimes::default()
                },
                psn_range: None,
                packets: vec![PacketId(packet)],
                acks: Vec::new(),
                retransmissions: Vec::new(),
                outcome: Some(Ok(Success {
                    operation: CompletedOperation::Recv {
                        immediate: Some(0xabcd),
                        invalidated: None,
                        source: None,
                        has_grh: false,
                    },
                    length: 5,
                })),
                cq: Some(self.cq),
                peer_request: peer.map(RequestId),
            });
        }
        self.trace.requests[0].peer_request = Some(RequestId(self.trace.requests.len() - 2));
        let receive = self.trace.requests.last().unwrap().clone();
        self.trace.requests.push(Request {
            qpn: None,
            posted: receive
                .posted
                .map(|posted| WorkRequest { recv_queue: Some(RecvQueueId::Srq(self.srq)), ..posted }),
            times: RequestTimes { posted: Some(at(1)), ..RequestTimes::default() },
            packets: Vec::new(),
            outcome: None,
            cq: None,
            ..receive
        });
        let earlier = Request {
            number_in_queue: 8,
            posted: None,
            times: RequestTimes {
                first_packet: Some(at(600)),
                last_packet: Some(at(601)),
                ..RequestTimes::default()
            },
            packets: Vec::new(),
            outcome: None,
            cq: None,
            peer_request: None,
            ..self.trace.requests[0].clone()
        };
        self.trace.requests.push(earlier);
    }

    fn add_other_events(&mut self) {
        let qpn = Qpn::truncate(QPS[0]);
        let events = [
            TraceEvent::StateChanged { qpn, from: QpState::Init, to: QpState::ReadyToReceive },
            TraceEvent::TimerExpired { qpn, timer: TimerKind::AckTimeout },
            TraceEvent::CqEventDelivered { cq: self.cq },
            TraceEvent::QueueEventDelivered { event: QueueEvent::AccessError(qpn) },
            TraceEvent::QueueEventDelivered { event: QueueEvent::SrqLimit(self.srq) },
            TraceEvent::Retransmit { qpn, psn: Psn::wrapping(1), cause: RetryCause::ImpliedNak },
            TraceEvent::CnpReceived { qpn, rate: Some(40_000_000_000) },
        ];
        for (index, event) in (0..).zip(events) {
            self.trace.other_events.push(TimedEvent { device: CLIENT, time: at(700 + index), event });
        }
    }
}

/// The payload of a packet: its length, and the bytes that were recorded.
enum Payload<'a> {
    Len(u32),
    Part(u32, &'a [u8]),
}
