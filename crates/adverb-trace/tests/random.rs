//! Traces of arbitrary events: no sequence of events makes the crate panic, and long recordings take little time.

mod harness;

use std::net::SocketAddr;
use std::time::Instant;

use adverb_proto::trace::{
    ClockOrigin, DropReason, Queue, RecordedEvent, Recording, RecvQueueId, RetryCause, TimerKind, TraceEvent,
};
use adverb_proto::types::{
    CompletedOperation, Failure, PathMtu, Psn, QpState, Qpn, RemoteAddress, Segment, SendFlags,
    SendOperation, Status, Success, Transport,
};
use adverb_proto::{Cq, Device, QueueEvent, Srq, SrqConfig, Time};
use adverb_trace::Trace;
use adverb_wire::random::SplitMix64;
use adverb_wire::{
    Aeth, CompareSwap, Header, Operation, Rc, ReadResponse, Reth, Send, Syndrome, Uc, Ud, Write,
};

/// A generator of events. Most of the numbers by which events match are from small ranges, so that many events do.
struct Events {
    random: SplitMix64,
    cqs: Vec<Cq>,
    srqs: Vec<Srq>,
}

impl Events {
    fn new(seed: u64) -> Events {
        let mut device = Device::new(());
        let pd = device.create_domain();
        let cqs = (0..3).map(|_| device.create_cq(1)).collect();
        let srqs = (0..3).map(|_| device.create_srq(SrqConfig::new(pd)).unwrap()).collect();
        Events { random: SplitMix64(seed), cqs, srqs }
    }

    fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.random.below(values.len() as u64) as usize].clone()
    }

    fn qpn(&mut self) -> Qpn {
        let numbers = [1, 2, 3, 0xff_ffff].map(Qpn::truncate);
        self.pick(&numbers)
    }

    fn psn(&mut self) -> Psn {
        let is_far = self.random.below(100) < 2;
        let bound = if is_far { 1 << 24 } else { 12 };
        Psn::wrapping((self.random.below(bound) as u32).wrapping_sub(6))
    }

    fn request(&mut self) -> u32 {
        (self.random.below(6) as u32).wrapping_sub(3)
    }

    fn addr(&mut self) -> SocketAddr {
        let addrs = ["10.0.0.1:4791", "10.0.0.2:0", "[::1]:4791", "224.0.0.1:4791"];
        self.pick(&addrs).parse().unwrap()
    }

    fn recv_queue(&mut self) -> RecvQueueId {
        let srqs = self.srqs.clone();
        if self.random.below(100) < 50 {
            RecvQueueId::Srq(self.pick(&srqs))
        } else {
            RecvQueueId::Qp(self.qpn())
        }
    }

    fn header(&mut self) -> Header {
        let reth = Reth { va: 8, rkey: 1, length: self.random.below(5000) as u32 };
        let syndrome = Syndrome::from_byte(self.random.next_u64() as u8);
        let aeth = Aeth { syndrome, msn: self.random.below(10) as u32 };
        let source_qp = self.qpn();
        let operations = [
            Operation::Rc(Rc::Send(Send::First)),
            Operation::Rc(Rc::Send(Send::Middle)),
            Operation::Rc(Rc::Send(Send::Last(Some(1)))),
            Operation::Rc(Rc::Send(Send::Only(None))),
            Operation::Rc(Rc::SendOnlyInvalidate(7)),
            Operation::Rc(Rc::Write(Write::First(reth))),
            Operation::Rc(Rc::Write(Write::Last(Some(4)))),
            Operation::Rc(Rc::ReadRequest(Reth { length: u32::MAX, ..reth })),
            Operation::Rc(Rc::ReadResponse(ReadResponse::Only(aeth))),
            Operation::Rc(Rc::ReadResponse(ReadResponse::Middle)),
            Operation::Rc(Rc::Acknowledge(aeth)),
            Operation::Rc(Rc::Acknowledge(aeth)),
            Operation::Rc(Rc::AtomicAcknowledge(aeth, 5)),
            Operation::Rc(Rc::CompareSwap(CompareSwap { va: 1, rkey: 2, swap: 3, compare: 4 })),
            Operation::Uc(Uc::Send(Send::Only(None))),
            Operation::Uc(Uc::Write(Write::Middle)),
            Operation::Ud(Ud { qkey: 1, source_qp, immediate: None }),
            Operation::Cnp,
        ];
        let operation = self.pick(&operations);
        Header::new(self.qpn(), self.psn(), operation)
    }

    fn outcome(&mut self) -> Result<Success, Failure> {
        let operation =
            CompletedOperation::Recv { immediate: None, invalidated: None, source: None, has_grh: false };
        let failure = |status| Err(Failure { status, vendor_error: 0 });
        let outcomes = [
            Ok(Success { operation, length: 3 }),
            Ok(Success { operation: CompletedOperation::Send, length: 3 }),
            failure(Status::Flushed),
            failure(Status::RetryExceeded),
            failure(Status::Other(999)),
        ];
        self.pick(&outcomes)
    }

    fn operation(&mut self) -> SendOperation {
        let remote = RemoteAddress { addr: 1, rkey: 2 };
        let operations = [
            SendOperation::Send,
            SendOperation::Write(remote),
            SendOperation::Read(remote),
            SendOperation::FetchAdd { remote, add: 1 },
            SendOperation::LocalInvalidate(4),
        ];
        self.pick(&operations)
    }

    fn event(&mut self) -> TraceEvent {
        let (qpn, psn, request) = (self.qpn(), self.psn(), self.request());
        let (cqs, wr_id) = (self.cqs.clone(), self.random.below(3));
        let cq = self.pick(&cqs);
        let length = self.random.next_u64() as u32 >> self.random.below(32);
        let segment = Segment { addr: 1, length, lkey: 3 };
        let states = [QpState::Reset, QpState::Init, QpState::ReadyToSend, QpState::Error];
        match self.random.below(20) {
            0 => TraceEvent::Connected {
                qpn,
                transport: self.pick(&[Transport::Rc, Transport::Uc, Transport::Ud]),
                remote_qpn: self.qpn(),
                local: self.addr(),
                remote: self.addr(),
                path_mtu: PathMtu::Mtu256,
                recv_psn: psn,
                send_psn: (self.random.below(100) < 70).then(|| self.psn()),
            },
            1 | 2 => TraceEvent::PostedSend {
                qpn,
                request,
                wr_id,
                tag: wr_id,
                operation: self.operation(),
                flags: SendFlags::from_bits_retain(self.random.next_u64() as u32),
                length,
                sge_count: self.random.next_u64() as u16,
                first_sge: Some(segment),
            },
            3 => TraceEvent::PostedRecv {
                queue: self.recv_queue(),
                request,
                wr_id,
                tag: wr_id,
                length: length.into(),
                sge_count: 1,
                first_sge: None,
            },
            4 => TraceEvent::Doorbell { qpn },
            5 => TraceEvent::DatagramAddrs { qpn, source: self.addr(), destination: self.addr() },
            6..=8 => TraceEvent::PacketSent {
                qpn,
                request: (self.random.below(100) < 70).then_some(request),
                header: self.header(),
                payload_len: length,
                is_retransmission: self.random.below(100) < 30,
            },
            9 | 10 => TraceEvent::PacketReceived {
                qpn,
                request: (self.random.below(100) < 50).then_some(request),
                header: self.header(),
                payload_len: length,
            },
            11 => TraceEvent::Dropped {
                qpn,
                psn,
                opcode: self.header().opcode(),
                reason: self.pick(&[
                    DropReason::WrongIcrc,
                    DropReason::OutOfSequence,
                    DropReason::NoReceivePosted,
                ]),
            },
            12 => TraceEvent::Acknowledged { qpn, psn },
            13 => TraceEvent::NakSent { qpn, psn, syndrome: Syndrome::from_byte(0x60) },
            14 => {
                TraceEvent::Retransmit { qpn, psn, cause: self.pick(&[RetryCause::Timeout, RetryCause::Rnr]) }
            }
            15 => TraceEvent::TimerExpired { qpn, timer: TimerKind::AckTimeout },
            16 => TraceEvent::Completed {
                qpn,
                queue: self.pick(&[Queue::Send, Queue::Recv]),
                request,
                wr_id,
                cq,
                outcome: self.outcome(),
            },
            17 => TraceEvent::CompletedUnsignaled { qpn, request },
            18 => TraceEvent::Polled { cq, qpn, wr_id },
            _ => match self.random.below(3) {
                0 => TraceEvent::StateChanged { qpn, from: self.pick(&states), to: self.pick(&states) },
                1 => TraceEvent::QueueEventDelivered { event: QueueEvent::Fatal(qpn) },
                _ => TraceEvent::CqEventDelivered { cq },
            },
        }
    }

    fn recording(&mut self, name: &str, count: usize) -> Recording {
        let host_id = self.random.below(3).into();
        let clock = ClockOrigin { host_id, monotonic_nanos: self.random.next_u64(), unix_nanos: 1 };
        let mut time = self.random.below(1000);
        let events = (0..count).map(|_| {
            // Times of forged recordings can go back.
            time = if self.random.below(100) < 1 {
                self.random.next_u64()
            } else {
                time.wrapping_add(self.random.below(9))
            };
            let payload = (self.random.below(100) < 20).then(|| [1, 7, 2, 3].repeat(9).into_boxed_slice());
            RecordedEvent { time: Time::from_nanos(time), event: self.event(), payload }
        });
        let events = events.collect();
        let mut recording = Recording::new(name, clock, events);
        recording.earlier_connections =
            (0..self.random.below(3)).map(|_| (Time::ZERO, self.event())).collect();
        recording.lost_count = self.random.below(2);
        recording
    }
}

/// Checks that all indices of a trace exist, that the two copies of a packet match, and that writing the trace as
/// text succeeds.
fn check(trace: &Trace) {
    for request in trace.requests() {
        assert!(trace.device(request.device).is_some());
        assert!(request.packets.iter().chain(&request.acks).all(|id| trace.packet(*id).is_some()));
        assert!(request.peer_request.is_none_or(|peer| trace.request(peer).is_some()));
        let _ = (request.wqe_state(), request.cqe_state(), request.operation_name());
    }
    for packet in trace.packets() {
        if let Some(peer) = packet.peer_packet {
            let peer = trace.packet(peer).unwrap();
            assert_eq!(peer.header, packet.header);
            assert_ne!(peer.direction, packet.direction);
        }
    }
    let mut sink = std::io::sink();
    trace.write_text(&mut sink).unwrap();
    trace.write_lines(&mut sink).unwrap();
    trace.write_summary(&mut sink).unwrap();
    trace.write_report(&mut sink).unwrap();
}

#[test]
fn no_sequence_of_events_causes_a_panic() {
    for seed in 0..300 {
        let mut events = Events::new(seed);
        let count = events.random.below(300) as usize;
        let recordings =
            [events.recording("a", count), events.recording("b", 100), events.recording("c", 20)];
        check(&Trace::new(recordings));
    }
}

/// If each event took time in proportion to the number of events, this test would take an hour.
#[test]
fn long_recording_takes_little_time() {
    let recording = Events::new(1).recording("a", 100_000);
    let start = Instant::now();
    check(&Trace::new([recording]));
    let elapsed = start.elapsed();
    assert!(elapsed.as_secs() < 60, "{elapsed:?}");
}

/// A million events: `cargo test --release -p adverb-trace --test random -- --ignored --nocapture`.
#[test]
#[ignore = "takes long without optimization"]
fn million_events_take_little_time() {
    let recording = Events::new(1).recording("a", 1_000_000);
    let start = Instant::now();
    let trace = Trace::new([recording]);
    let elapsed = start.elapsed();
    println!("{} events, {} packets, {elapsed:?}", trace.events().len(), trace.packets().len());
    assert!(elapsed.as_secs() < 10);
}
