//! Traces of each transport, of shared receive queues, of connections one after the other, and of incomplete recordings.

mod harness;

use adverb_proto::trace::{
    ClockOrigin, DropReason, Queue, RecordedEvent, RecorderOptions, Recording, RecvQueueId, TraceEvent,
};
use adverb_proto::types::{
    Access, CompletedOperation, Destination, Qpn, SendFlags, SendOperation, SendRequest, Success, Transport,
};
use adverb_proto::{Device, Init, Path, QpConfig, SrqConfig, Time, Transition};
use adverb_trace::{CqeState, Direction, Packet, PacketRole, PsnRange, Request, Trace, WqeState};
use adverb_wire::Header;
use harness::{Faults, FirstPsns, QKEY, Side, World};

fn sends(trace: &Trace, device: usize) -> Vec<&Request> {
    let is_send = |request: &&Request| request.device.0 == device && request.queue == Queue::Send;
    trace.requests().iter().filter(is_send).collect()
}

fn recvs(trace: &Trace, device: usize) -> Vec<&Request> {
    let is_recv = |request: &&Request| request.device.0 == device && request.queue == Queue::Recv;
    trace.requests().iter().filter(is_recv).collect()
}

fn packets(trace: &Trace, device: usize, direction: Direction) -> Vec<&Packet> {
    let is_selected = |packet: &&Packet| packet.device.0 == device && packet.direction == direction;
    trace.packets().iter().filter(is_selected).collect()
}

fn tag_of_peer(trace: &Trace, request: &Request) -> Option<u64> {
    let peer = trace.request(request.peer_request?)?;
    Some(peer.posted?.tag)
}

/// Creates two sides with datagram queue pairs.
fn datagram_world() -> World {
    let mut world = World::new([Side::new(1, Transport::Ud), Side::new(2, Transport::Ud)], Faults::NONE, 1);
    let now = world.now;
    world.sides[0].start_datagrams(now, 0xff_fffe);
    world.sides[1].start_datagrams(now, 50);
    world
}

fn send_datagram(world: &mut World, to: std::net::IpAddr, qpn: Qpn, tag: u64, length: u32) {
    let (now, side) = (world.now, &mut world.sides[0]);
    let path = Path::new(side.address, to, 0xc000 + tag as u16).unwrap();
    let segments = [side.segment(0, length)];
    let request = SendRequest {
        wr_id: 9,
        tag,
        operation: SendOperation::Send,
        flags: SendFlags::SIGNALED,
        segments: &segments,
        destination: Some(Destination { handle: path, qpn, qkey: QKEY }),
    };
    side.device.post_send(now, side.qpn, &request).unwrap();
    world.run();
}

#[test]
fn datagrams_have_their_own_addresses_and_receives() {
    let mut world = datagram_world();
    let (to, qpn, now) = (world.sides[1].address, world.sides[1].qpn, world.now);
    for tag in 0..4 {
        world.sides[1].recv(now, 7, tag, 2000);
    }
    for tag in 0..5 {
        send_datagram(&mut world, to, qpn, tag, 100 + tag as u32);
    }
    let trace = Trace::new(world.recordings(0));
    let out = packets(&trace, 0, Direction::Out);
    let arrived = packets(&trace, 1, Direction::In);
    assert_eq!((out.len(), arrived.len()), (5, 5));
    for (tag, (sent, received)) in (0u16..).zip(out.into_iter().zip(arrived)) {
        assert_eq!(sent.source.unwrap().port(), 0xc000 + tag);
        assert_eq!((sent.source, sent.destination), (received.source, received.destination));
        assert_eq!(trace.packet(received.peer_packet.unwrap()).unwrap().payload_len, 100 + u32::from(tag));
        let PacketRole::Request(Some(request)) = received.role else { panic!("{received:?}") };
        assert_eq!(trace.request(request).unwrap().posted.unwrap().tag, tag.into());
        assert_eq!(received.dropped, (tag == 4).then_some(DropReason::NoReceivePosted));
    }
    for (tag, recv) in (0..).zip(recvs(&trace, 1)) {
        assert_eq!(tag_of_peer(&trace, recv), Some(tag));
        assert_eq!((recv.packets.len(), recv.wqe_state()), (1, WqeState::Completed));
    }
    let sends = sends(&trace, 0);
    let peers: Vec<bool> = sends.iter().map(|send| send.peer_request.is_some()).collect();
    assert_eq!(peers, [true, true, true, true, false]);
    assert!(sends.iter().all(|send| send.times.acknowledged.is_none() && send.times.completed.is_some()));
}

#[test]
fn multicast_datagram_has_several_receivers() {
    let mut world = datagram_world();
    let now = world.now;
    // The second device has two queue pairs.
    let side = &mut world.sides[1];
    let first = side.qpn;
    let random = &mut side.random;
    let config = QpConfig::new(Transport::Ud, side.pd, side.cq, side.cq);
    let second = side.device.create_qp(config, || random.next_u64() as u32).unwrap();
    side.qpn = second;
    side.start_datagrams(now, 60);
    let group: std::net::IpAddr = "239.1.2.3".parse().unwrap();
    for (tag, qpn) in [first, second].into_iter().enumerate() {
        side.device.attach_multicast(qpn, group.into()).unwrap();
        side.qpn = qpn;
        side.recv(now, 1, tag as u64, 2000);
    }
    send_datagram(&mut world, group, Qpn::MULTICAST, 77, 10);
    let trace = Trace::new(world.recordings(1));
    let out = packets(&trace, 0, Direction::Out);
    let arrived = packets(&trace, 1, Direction::In);
    assert_eq!((out.len(), arrived.len()), (1, 2));
    assert!(arrived.iter().all(|packet| packet.peer_packet.is_some()));
    let recvs = recvs(&trace, 1);
    assert_eq!(recvs.len(), 2);
    assert!(recvs.iter().all(|recv| tag_of_peer(&trace, recv) == Some(77)), "{recvs:?}");
}

#[test]
fn messages_of_an_unreliable_connection_are_matched_despite_losses() {
    let faults = Faults { loss: 10, duplication: 0, reordering: 0 };
    let mut world = World::connected(Transport::Uc, faults, 3, 0xff_fff0);
    let count = 400;
    for tag in 0..count {
        let now = world.now;
        world.sides[1].recv(now, 7, tag, 4000);
        let segments = [world.sides[0].segment(0, 5 * tag as u32 + 1)];
        world.sides[0].send(now, (1, tag), SendOperation::Send, SendFlags::empty(), &segments);
        world.run();
        let now = world.now;
        while world.sides[1].poll(now).is_some() {}
        while world.sides[0].poll(now).is_some() {}
    }
    let trace = Trace::new(world.recordings(0));
    let received = recvs(&trace, 1).into_iter().filter(|recv| recv.outcome.is_some());
    let mut matched = 0;
    for recv in received {
        let send = trace.request(recv.peer_request.unwrap()).unwrap();
        let length = recv.outcome.unwrap().unwrap().length;
        assert_eq!(u64::from(length), send.posted.unwrap().length);
        let bytes: u32 = recv.packets.iter().map(|id| trace.packet(*id).unwrap().payload_len).sum();
        assert_eq!(bytes, length);
        matched += 1;
    }
    assert!(matched > 200 && matched < count, "{matched}");
    assert!(sends(&trace, 0).iter().all(|send| send.cqe_state().is_none() && send.times.completed.is_some()));
}

/// Connects, sends a message with each of the tags, and resets, so that the next connection has the same queue pair
/// numbers.
fn run_connection(world: &mut World, psns: [u32; 2], tags: core::ops::Range<u64>) {
    let now = world.now;
    // Receives can be posted before the queue pair is connected.
    world.sides[1].modify(now, Transition::Init(Init::new(Access::empty())));
    world.sides[1].recv(now, 7, tags.start, 4000);
    let first = tags.start;
    let ends = [0, 1].map(|side: usize| (world.sides[side].qpn, world.sides[side].address));
    world.sides[0].connect(now, ends[1], FirstPsns { send: psns[0], recv: psns[1] });
    world.sides[1].connect(now, ends[0], FirstPsns { send: psns[1], recv: psns[0] });
    for tag in tags {
        let now = world.now;
        let segments = [world.sides[0].segment(0, 2000)];
        if tag != first {
            world.sides[1].recv(now, 7, tag, 4000);
        }
        world.sides[0].send(now, (1, tag), SendOperation::Send, SendFlags::SIGNALED, &segments);
        world.run();
        let now = world.now;
        while world.sides[0].poll(now).is_some() {}
        while world.sides[1].poll(now).is_some() {}
    }
    let now = world.now;
    for side in &mut world.sides {
        side.modify(now, Transition::Reset);
    }
}

#[test]
fn reused_queue_pair_numbers_belong_to_other_connections() {
    let mut world = World::new([Side::new(1, Transport::Rc), Side::new(2, Transport::Rc)], Faults::NONE, 1);
    // The second connection has the sequence numbers of the first, and the third has others.
    for (round, psns) in [[10, 900], [10, 900], [5_000_000, 12]].into_iter().enumerate() {
        let first = round as u64 * 3;
        run_connection(&mut world, psns, first..first + 3);
    }
    for host_id in [0, 1] {
        let trace = Trace::new(world.recordings(host_id));
        assert!(trace.devices().iter().all(|device| device.connections.len() == 3));
        for (tag, send) in (0..).zip(sends(&trace, 0)) {
            assert_eq!((send.posted.unwrap().tag, send.number_in_queue), (tag, tag as u32 % 3));
            assert_eq!((send.connection, send.packets.len()), (Some(tag as usize / 3), 2));
        }
        for (tag, recv) in (0..).zip(recvs(&trace, 1)) {
            assert_eq!(tag_of_peer(&trace, recv), Some(tag));
            assert_eq!(recv.connection, Some(tag as usize / 3));
        }
        assert!(trace.packets().iter().all(|packet| packet.peer_packet.is_some()));
    }
}

#[test]
fn overwritten_events_leave_a_trace_that_is_incomplete_but_right() {
    let mut world = World::connected(Transport::Rc, Faults::NONE, 1, 0xff_ff00);
    let options = RecorderOptions { capacity: 100, ..RecorderOptions::default() };
    let now = world.now;
    for side in &mut world.sides {
        side.device.sink_mut().start(&options).unwrap();
        side.device.record_connections(now);
    }
    for tag in 0..200 {
        let now = world.now;
        let segments = [world.sides[0].segment(0, 3000)];
        world.sides[1].recv(now, 7, tag, 4000);
        world.sides[0].send(now, (tag, tag), SendOperation::Send, SendFlags::SIGNALED, &segments);
        world.run();
        let now = world.now;
        while world.sides[0].poll(now).is_some() {}
        while world.sides[1].poll(now).is_some() {}
    }
    let trace = Trace::new(world.recordings(1));
    for device in trace.devices() {
        assert!(device.lost_count > 1000);
        assert_eq!(device.connections.len(), 1, "connections are kept");
    }
    let sends = sends(&trace, 0);
    let whole: Vec<_> = sends.iter().filter(|send| send.posted.is_some()).collect();
    assert!(whole.len() >= 5, "{}", whole.len());
    for send in whole {
        assert_eq!((send.packets.len(), send.wqe_state()), (3, WqeState::Completed));
        let first = send.psn_range.unwrap().first;
        assert_eq!(first.since(adverb_wire::Psn::wrapping(0xff_ff00)), send.number_in_queue as i32 * 3);
        assert_eq!(send.acks.len(), 1);
    }
    for packet in packets(&trace, 0, Direction::In) {
        let PacketRole::Ack { acked_psns: Some(PsnRange { first, last }), acked_requests } = &packet.role
        else {
            panic!("{packet:?}")
        };
        assert_eq!(*last, packet.header.psn);
        assert!(acked_requests.len() <= 1 && last.since(*first) <= 2);
    }
    for recv in recvs(&trace, 1).into_iter().filter(|recv| recv.posted.is_some()) {
        let tag = recv.posted.unwrap().tag;
        assert!(tag_of_peer(&trace, recv).is_none_or(|peer| peer == tag));
    }
}

#[test]
fn trace_of_one_end_has_the_requests_and_packets_of_that_end() {
    let mut world = World::connected(Transport::Rc, Faults::NONE, 1, 7);
    let remote = world.sides[1].remote_address(0);
    for (tag, operation) in
        [SendOperation::Write(remote), SendOperation::Read(remote)].into_iter().enumerate()
    {
        let (now, segments) = (world.now, [world.sides[0].segment(0, 1500)]);
        world.sides[0].send(now, (1, tag as u64), operation, SendFlags::SIGNALED, &segments);
        world.run();
    }
    let [requester, responder] = world.recordings(0);
    let trace = Trace::new([responder]);
    assert!(trace.requests().is_empty());
    let roles: Vec<&PacketRole> = trace.packets().iter().map(|packet| &packet.role).collect();
    let acked_psns =
        Some(PsnRange { first: adverb_wire::Psn::wrapping(7), last: adverb_wire::Psn::wrapping(8) });
    assert_eq!(
        roles,
        [
            &PacketRole::Request(None),
            &PacketRole::Request(None),
            &PacketRole::Ack { acked_psns, acked_requests: Vec::new() },
            &PacketRole::Request(None),
            &PacketRole::Response(None),
            &PacketRole::Response(None),
        ]
    );
    let trace = Trace::new([requester]);
    let [write, read] = &sends(&trace, 0)[..] else { panic!("{:?}", trace.requests()) };
    assert_eq!((write.packets.len(), write.acks.len()), (2, 1));
    assert_eq!((read.packets.len(), read.acks.len()), (3, 0));
    let source = trace.packet(read.packets[1]).unwrap().source.unwrap();
    assert_eq!((source.ip(), source.port()), (world.sides[1].address, 0), "the port is not known");
}

#[test]
fn completion_is_processed_at_the_next_poll_or_when_its_receive_is_replaced() {
    let mut world = World::connected(Transport::Rc, Faults::NONE, 1, 7);
    for tag in 0..3 {
        let now = world.now;
        let segments = [world.sides[0].segment(0, 10)];
        world.sides[1].recv(now, 7, tag, 100);
        world.sides[0].send(now, (1, tag), SendOperation::Send, SendFlags::SIGNALED, &segments);
    }
    world.run();
    for _ in 0..2 {
        world.advance_clock(1000);
        let now = world.now;
        world.sides[0].poll(now).unwrap();
        world.sides[1].poll(now).unwrap();
    }
    let states = |world: &World, device: usize| -> Vec<Option<CqeState>> {
        let trace = Trace::new(world.recordings(0));
        let (sends, recvs) = (sends(&trace, device), recvs(&trace, device));
        sends.iter().chain(&recvs).map(|request| request.cqe_state()).collect()
    };
    let expected = [CqeState::Processed, CqeState::Polled, CqeState::Pending].map(Some);
    assert_eq!(states(&world, 0), expected);
    assert_eq!(states(&world, 1), expected);
    // A replacement is a sign of processing too.
    let now = world.now;
    world.sides[1].recv(now, 7, 9, 100);
    assert_eq!(states(&world, 1)[..2], [Some(CqeState::Processed); 2]);
}

fn recorded_event(nanos: u64, event: TraceEvent) -> RecordedEvent {
    RecordedEvent { time: Time::from_nanos(nanos), event, payload: None }
}

#[test]
fn receives_of_shared_queues_belong_to_the_queue_pair_that_consumed_them() {
    let mut device = Device::new(());
    let (pd, cq) = (device.create_domain(), device.create_cq(1));
    let srqs = [0, 1].map(|_| device.create_srq(SrqConfig::new(pd)).unwrap());
    let qps = [5, 6].map(Qpn::truncate);
    let post = |srq, request: u32| TraceEvent::PostedRecv {
        queue: RecvQueueId::Srq(srqs[srq]),
        request,
        wr_id: u64::from(request) + 10 * srq as u64,
        tag: 0,
        length: 64,
        sge_count: 1,
        first_sge: None,
    };
    let complete = |qp: usize, request: u32, wr_id| TraceEvent::Completed {
        qpn: qps[qp],
        queue: Queue::Recv,
        request,
        wr_id,
        cq,
        outcome: Ok(Success { operation: CompletedOperation::RecvWrite { immediate: 1 }, length: 0 }),
    };
    // Both shared queues have requests with the numbers 0 and 1.
    let events = [
        post(0, 0),
        post(1, 0),
        post(0, 1),
        post(1, 1),
        post(0, 2),
        complete(1, 0, 10),
        complete(0, 0, 0),
        complete(0, 1, 1),
        complete(1, 1, 11),
    ];
    let events = (0..).zip(events).map(|(nanos, event)| recorded_event(nanos, event)).collect();
    let trace = Trace::new([Recording::new("soft0", ClockOrigin::default(), events)]);
    let owners: Vec<Option<Qpn>> = trace.requests().iter().map(|request| request.qpn).collect();
    assert_eq!(owners, [Some(qps[0]), Some(qps[1]), Some(qps[0]), Some(qps[1]), None]);
    let is_completed = |request: &Request| request.wqe_state() == WqeState::Completed;
    assert_eq!(trace.requests().iter().filter(|request| is_completed(request)).count(), 4);
}

#[test]
fn packets_of_the_connection_manager_and_of_congestion_control_are_named() {
    let mut payload = vec![0; 36];
    payload[..4].copy_from_slice(&[1, 7, 2, 3]);
    payload[17] = 0x13;
    let datagram = adverb_wire::Ud { qkey: 1, source_qp: Qpn::GSI, immediate: None };
    let header = Header::new(Qpn::GSI, adverb_wire::Psn::ZERO, adverb_wire::Operation::Ud(datagram));
    let packet = |qpn, header| TraceEvent::PacketReceived { qpn, request: None, header, payload_len: 256 };
    let mut events = vec![
        recorded_event(1, packet(Qpn::GSI, header)),
        recorded_event(2, packet(Qpn::GSI, header)),
        recorded_event(3, packet(Qpn::truncate(9), Header::cnp(Qpn::truncate(9)))),
        recorded_event(
            4,
            TraceEvent::Dropped {
                qpn: Qpn::truncate(9),
                psn: adverb_wire::Psn::ZERO,
                opcode: adverb_wire::Opcode::Cnp,
                reason: DropReason::WrongIcrc,
            },
        ),
    ];
    events[0].payload = Some(payload.into_boxed_slice());
    let trace = Trace::new([Recording::new("soft0", ClockOrigin::default(), events)]);
    let roles: Vec<&PacketRole> = trace.packets().iter().map(|packet| &packet.role).collect();
    let named = [Some("REP"), None].map(|message| PacketRole::Cm { message });
    assert_eq!(roles, [&named[0], &named[1], &PacketRole::Cnp]);
    // A device that drops a packet because of its ICRC records only the drop, so the event is not about the CNP.
    assert!(trace.packets().iter().all(|packet| packet.dropped.is_none()));
    assert_eq!(trace.other_events().len(), 1);
}
