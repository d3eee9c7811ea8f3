//! Compares a trace with the actual packets of many operations over a network that loses, duplicates and reorders
//! packets. The test knows the sequence numbers of each request, because a queue pair numbers the packets of its requests
//! in the order of their posting, and it knows which packets the network delivered.

mod harness;

use adverb_proto::trace::Queue;
use adverb_proto::types::{FlushRange, Psn, SendFlags, SendOperation, Transport};
use adverb_trace::{
    CqeState, Direction, Packet, PacketId, PacketRole, PsnRange, Request, RequestId, Trace, WqeState,
};
use adverb_wire::random::SplitMix64;
use adverb_wire::{Operation, Rc, Syndrome};
use harness::{Faults, MTU, Seen, Side, World};

/// An operation that the test posted.
#[derive(Clone, Copy, Debug)]
struct Posted {
    /// The sequence number of the first packet, counted from the connection's first.
    first: u64,
    count: u64,
    consumes_receive: bool,
    has_response: bool,
    is_signaled: bool,
}

/// The operations that a side has posted, and the receives that it must post.
#[derive(Debug)]
struct Driver {
    posted: Vec<Posted>,
    next: u64,
    first_psn: u32,
    outstanding: usize,
    /// The number of messages of the peer that need a receive.
    recvs_needed: usize,
    recvs_posted: usize,
}

impl Driver {
    fn new(first_psn: u32) -> Driver {
        Driver { posted: Vec::new(), next: 0, first_psn, outstanding: 0, recvs_needed: 0, recvs_posted: 0 }
    }

    /// Returns the operation that has a sequence number, with the sequence number counted from the first.
    fn find(&self, psn: Psn) -> Option<(usize, u64)> {
        // The test sends fewer packets than there are sequence numbers.
        let number = u64::from(psn.get().wrapping_sub(self.first_psn) & 0xff_ffff);
        let index = self.posted.partition_point(|posted| posted.first + posted.count <= number);
        self.posted.get(index).map(|_| (index, number))
    }

    fn psn(&self, number: u64) -> Psn {
        Psn::wrapping(self.first_psn.wrapping_add(number as u32))
    }
}

fn post(world: &mut World, drivers: &mut [Driver; 2], from: usize) {
    let (now, to) = (world.now, 1 - from);
    let random = &mut world.random;
    let length = match random.below(10) {
        0 => 0,
        1..=6 => random.below(1000) as u32,
        7 => u32::from(MTU.bytes()),
        _ => random.below(9000) as u32,
    };
    let (kind, value, offset) = (random.below(11), random.next_u64(), random.below(1000) * 8);
    let remote = world.sides[to].remote_address(100_000 + offset);
    let operation = match kind {
        0 | 1 => SendOperation::Send,
        2 => SendOperation::SendWithImm(value as u32),
        3 => SendOperation::SendInvalidate(world.sides[to].register_invalidatable()),
        4 => SendOperation::Write(remote),
        5 => SendOperation::WriteWithImm(remote, value as u32),
        6 => SendOperation::Read(remote),
        7 => SendOperation::CompareSwap { remote, compare: 1, swap: value },
        8 => SendOperation::FetchAdd { remote, add: value },
        9 => SendOperation::AtomicWrite { remote, bytes: value.to_ne_bytes() },
        _ => SendOperation::Flush(FlushRange {
            remote,
            length: 64,
            whole_region: false,
            global: true,
            persistent: false,
        }),
    };
    let length = match operation {
        SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => 8,
        SendOperation::AtomicWrite { .. } | SendOperation::Flush(_) => 0,
        _ => length,
    };
    // Unsignaled requests succeed without a completion.
    let is_signaled = world.random.below(100) < 80;
    let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    let driver = &mut drivers[from];
    let tag = driver.posted.len() as u64;
    let side = &mut world.sides[from];
    let segments = [side.segment(200_000, length)];
    // Ids repeat, as those of applications may.
    side.send(now, (tag % 3, tag), operation, flags, &segments[..usize::from(length > 0)]);
    let count = if length == 0 { 1 } else { u64::from(length.div_ceil(u32::from(MTU.bytes()))) };
    let consumes_receive = matches!(
        operation,
        SendOperation::Send
            | SendOperation::SendWithImm(_)
            | SendOperation::SendInvalidate(_)
            | SendOperation::WriteWithImm(..)
    );
    let has_response = matches!(
        operation,
        SendOperation::Read(_)
            | SendOperation::CompareSwap { .. }
            | SendOperation::FetchAdd { .. }
            | SendOperation::AtomicWrite { .. }
            | SendOperation::Flush(_)
    );
    driver.posted.push(Posted { first: driver.next, count, consumes_receive, has_response, is_signaled });
    driver.next += count;
    driver.outstanding += usize::from(is_signaled);
    drivers[to].recvs_needed += usize::from(consumes_receive);
}

/// Posts receives, often too late, so that the peer gets RNR NAKs.
fn post_recvs(side: &mut Side, random: &mut SplitMix64, now: adverb_proto::Time, driver: &mut Driver) {
    if driver.recvs_posted < driver.recvs_needed && random.below(100) < 15 {
        let tag = driver.recvs_posted as u64;
        side.recv(now, 77, tag, 10_000);
        driver.recvs_posted += 1;
    }
}

/// Runs `count` operations of each side.
fn drive(count: usize, seed: u64) -> (World, [Driver; 2]) {
    let faults = Faults { loss: 2, duplication: 1, reordering: 1 };
    let first_psn = 0xff_ff00;
    let mut world = World::connected(Transport::Rc, faults, seed, first_psn);
    let mut drivers = [Driver::new(first_psn), Driver::new(7000)];
    let is_done = |drivers: &[Driver; 2]| {
        drivers.iter().all(|driver| driver.posted.len() >= count && driver.outstanding == 0)
            && drivers.iter().all(|driver| driver.recvs_posted == driver.recvs_needed)
    };
    while !is_done(&drivers) {
        for from in 0..2 {
            let burst = world.random.below(4);
            for _ in 0..burst {
                if drivers[from].posted.len() < count && drivers[from].outstanding < 12 {
                    post(&mut world, &mut drivers, from);
                }
            }
        }
        for (side, driver) in world.sides.iter_mut().zip(&mut drivers) {
            post_recvs(side, &mut world.random, world.now, driver);
        }
        world.transmit();
        world.handle_next_event();
        for (side, driver) in world.sides.iter_mut().zip(&mut drivers) {
            while let Some(completion) = side.poll(world.now) {
                let success = completion.outcome.unwrap();
                let is_recv = matches!(
                    success.operation,
                    adverb_proto::types::CompletedOperation::Recv { .. }
                        | adverb_proto::types::CompletedOperation::RecvWrite { .. }
                );
                driver.outstanding -= usize::from(!is_recv);
            }
        }
        world.advance_clock(100);
    }
    world.run();
    for side in &mut world.sides {
        while side.poll(world.now).is_some() {}
    }
    (world, drivers)
}

/// The packets that a requester knows to be acknowledged. An ACK acknowledges all packets up to its number, or up to
/// the first request whose response is missing, such as a READ.
struct Requester<'a> {
    driver: &'a Driver,
    unacked: u64,
}

impl Requester<'_> {
    /// Acknowledges the numbers before `end`, up to the first response that is missing.
    fn acknowledge_before(&mut self, end: u64) -> Option<PsnRange> {
        let first = self.unacked;
        while self.unacked < end {
            let (index, _) = self.driver.find(self.driver.psn(self.unacked)).unwrap();
            let posted = &self.driver.posted[index];
            if posted.has_response {
                break;
            }
            self.unacked = (posted.first + posted.count).min(end);
        }
        (self.unacked > first)
            .then(|| PsnRange { first: self.driver.psn(first), last: self.driver.psn(self.unacked - 1) })
    }

    /// Receives a response. Returns the range that an ACK or a NAK acknowledges.
    fn receive(&mut self, seen: &Seen) -> Option<PsnRange> {
        let (_, number) = self.driver.find(seen.header.psn)?;
        if number < self.unacked {
            return None;
        }
        match seen.header.operation {
            Operation::Rc(Rc::Acknowledge(aeth)) => match aeth.syndrome {
                Syndrome::Ack(_) => self.acknowledge_before(number + 1),
                _ => self.acknowledge_before(number),
            },
            Operation::Rc(rc) => {
                let is_middle = matches!(rc, Rc::ReadResponse(adverb_wire::ReadResponse::Middle));
                if !is_middle || number == self.unacked {
                    self.acknowledge_before(number);
                }
                if self.unacked == number {
                    self.unacked += 1;
                }
                None
            }
            _ => None,
        }
    }
}

/// The packets that a responder has acknowledged.
struct Responder<'a> {
    peer: &'a Driver,
    unacked: u64,
}

impl Responder<'_> {
    fn send(&mut self, seen: &Seen) -> Option<PsnRange> {
        // A responder can acknowledge the packet before the first one.
        let first = self.peer.first_psn;
        let end = match seen.header.operation {
            Operation::Rc(Rc::Acknowledge(aeth)) if !matches!(aeth.syndrome, Syndrome::Ack(_)) => {
                u64::from(seen.header.psn.get().wrapping_sub(first) & 0xff_ffff)
            }
            _ => u64::from((seen.header.psn + 1).get().wrapping_sub(first) & 0xff_ffff),
        };
        let range = (end > self.unacked)
            .then(|| PsnRange { first: self.peer.psn(self.unacked), last: self.peer.psn(end - 1) });
        self.unacked = self.unacked.max(end);
        range
    }
}

fn is_response(seen: &Seen) -> bool {
    matches!(
        seen.header.operation,
        Operation::Rc(Rc::Acknowledge(_) | Rc::ReadResponse(_) | Rc::AtomicAcknowledge(..))
    )
}

/// Returns the packets of a device, in one direction.
fn packets_of(trace: &Trace, device: usize, direction: Direction) -> Vec<(PacketId, &Packet)> {
    let packets = trace.packets().iter().enumerate().map(|(index, packet)| (PacketId(index), packet));
    packets.filter(|(_, packet)| packet.device.0 == device && packet.direction == direction).collect()
}

/// Returns the send requests of a device, in the order of their tags.
fn sends_of(trace: &Trace, device: usize) -> Vec<(RequestId, &Request)> {
    let requests = trace.requests().iter().enumerate().map(|(index, request)| (RequestId(index), request));
    requests.filter(|(_, request)| request.device.0 == device && request.queue == Queue::Send).collect()
}

fn check(world: &World, drivers: &[Driver; 2], trace: &Trace) {
    let sends = [sends_of(trace, 0), sends_of(trace, 1)];
    // Returns the id of the side's request that has the sequence number.
    let owner = |side: usize, psn: Psn| drivers[side].find(psn).map(|(index, _)| sends[side][index].0);
    let owners = |side: usize, psns: Option<PsnRange>| -> Vec<RequestId> {
        let Some(PsnRange { first, last }) = psns else { return Vec::new() };
        let (first, last) = (owner(side, first).unwrap(), owner(side, last).unwrap());
        let position = |id| sends[side].iter().position(|(other, _)| *other == id).unwrap();
        sends[side][position(first)..=position(last)].iter().map(|(id, _)| *id).collect()
    };
    let out = [0, 1].map(|side| packets_of(trace, side, Direction::Out));
    let arrived = [0, 1].map(|side| packets_of(trace, side, Direction::In));
    let mut requesters = [0, 1].map(|side: usize| Requester { driver: &drivers[side], unacked: 0 });
    let mut responders = [1, 0].map(|peer: usize| Responder { peer: &drivers[peer], unacked: 0 });
    let (mut received, mut exact) = ([0; 2], 0);
    for seen in &world.seen {
        let (side, psn) = (seen.side, seen.header.psn);
        let (id, packet) = if seen.is_received {
            received[side] += 1;
            arrived[side][received[side] - 1]
        } else {
            out[side][seen.number]
        };
        assert_eq!(packet.header, seen.header);
        assert_eq!(packet.payload_len as usize, seen.payload_len);
        // The side whose request the packet belongs to.
        let requester = if is_response(seen) == seen.is_received { side } else { 1 - side };
        let psns = match (is_response(seen), seen.is_received) {
            (true, true) => requesters[side].receive(seen),
            (true, false) => responders[side].send(seen),
            (false, _) => None,
        };
        match &packet.role {
            PacketRole::Request(request) => {
                assert!(!is_response(seen));
                assert_eq!(*request, owner(requester, psn), "{packet:?}");
            }
            PacketRole::Response(request) => {
                assert!(is_response(seen));
                assert_eq!(*request, owner(requester, psn), "{packet:?}");
            }
            PacketRole::Ack { acked_psns: range, acked_requests } => {
                assert_eq!(*range, psns, "{packet:?}");
                assert_eq!(*acked_requests, owners(requester, psns));
            }
            PacketRole::Nak { acked_psns: range, acked_requests, nacked_request, .. } => {
                assert_eq!(*range, psns, "{packet:?}");
                assert_eq!(*acked_requests, owners(requester, psns));
                assert_eq!(*nacked_request, owner(requester, psn));
            }
            _ => panic!("{packet:?}"),
        }
        if seen.is_received {
            let peer = trace.packet(packet.peer_packet.expect("the other end sent the packet")).unwrap();
            assert_eq!((peer.header, peer.direction), (packet.header, Direction::Out));
            assert_eq!((peer.source, peer.destination), (packet.source, packet.destination));
            exact += usize::from(packet.peer_packet == Some(out[1 - side][seen.number].0));
        }
        let request_of_role = match packet.role {
            PacketRole::Request(Some(request)) | PacketRole::Response(Some(request)) => Some(request),
            _ => None,
        };
        if let Some(request) = request_of_role.filter(|_| requester == side) {
            let request = trace.request(request).unwrap();
            assert!(request.packets.binary_search(&id).is_ok(), "{packet:?}");
        }
    }
    // A trace can't always tell which copy of a retransmitted packet arrived, in particular if the network duplicated one.
    let total = received[0] + received[1];
    assert!(exact * 100 >= total * 98, "{exact} of {total} packets are matched with the right copy");
    check_requests(drivers, trace, &sends);
}

fn check_requests(drivers: &[Driver; 2], trace: &Trace, sends: &[Vec<(RequestId, &Request)>; 2]) {
    let mut counts = [0; 2];
    for request in trace.requests() {
        match request.queue {
            Queue::Send => {
                let side = request.device.0;
                let posted = drivers[side].posted[counts[side]];
                assert_eq!(request.posted.unwrap().tag, counts[side] as u64);
                counts[side] += 1;
                let psns = [posted.first, posted.first + posted.count - 1];
                let [first, last] = psns.map(|number| drivers[side].psn(number));
                assert_eq!(request.psn_range, Some(PsnRange { first, last }));
                assert_eq!(request.wqe_state(), WqeState::Completed);
                assert_eq!(request.outcome.is_some(), posted.is_signaled);
                assert_eq!(request.cqe_state().is_some(), posted.is_signaled);
                assert_eq!(request.peer_request.is_some(), posted.consumes_receive);
                assert_eq!(request.acks.is_empty(), posted.has_response && request.acks.is_empty());
                let times = request.times;
                let steps = [
                    times.posted,
                    times.first_packet,
                    times.last_packet.min(times.acknowledged),
                    times.completed,
                ];
                assert!(steps.is_sorted() && steps.iter().all(Option::is_some), "{request:?}");
                let has_cause = request
                    .packets
                    .iter()
                    .filter_map(|id| trace.packet(*id))
                    .filter(|packet| packet.direction == Direction::Out && packet.is_retransmission)
                    .all(|packet| packet.retry_cause.is_some());
                assert!(has_cause && (request.retransmissions.is_empty() || !request.packets.is_empty()));
            }
            Queue::Recv => {
                assert_eq!(request.wqe_state(), WqeState::Completed);
                assert!(request.cqe_state() >= Some(CqeState::Polled));
                let message = trace.request(request.peer_request.unwrap()).unwrap();
                assert_eq!(request.psn_range, message.psn_range);
                assert_eq!(request.packets.len() as u64, {
                    let PsnRange { first, last } = message.psn_range.unwrap();
                    last.since(first) as u64 + 1
                });
            }
        }
    }
    assert_eq!(counts, [sends[0].len(), sends[1].len()]);
    // The n-th receive received the n-th message that needs one.
    for side in 0..2 {
        let consuming = sends[1 - side].iter().filter(|(_, request)| {
            drivers[1 - side].posted[request.posted.unwrap().tag as usize].consumes_receive
        });
        let recvs = trace
            .requests()
            .iter()
            .filter(|request| request.queue == Queue::Recv && request.device.0 == side);
        let pairs: Vec<_> = consuming.zip(recvs).collect();
        assert_eq!(pairs.len(), drivers[side].recvs_needed);
        for ((id, send), recv) in pairs {
            assert_eq!(recv.peer_request, Some(*id));
            assert_eq!(
                trace.request(send.peer_request.unwrap()).unwrap().number_in_queue,
                recv.number_in_queue
            );
        }
    }
}

#[test]
fn every_packet_belongs_to_the_right_request() {
    let (world, drivers) = drive(5000, 1);
    let statistics = world.sides[0].device.statistics();
    assert!(statistics.ack_timeouts > 0 && statistics.rnr_naks_received > 0, "{statistics:?}");
    assert!(statistics.sequence_naks_received > 0 && statistics.implied_naks > 0, "{statistics:?}");
    check(&world, &drivers, &Trace::new(world.recordings(1)));
}

#[test]
fn every_packet_belongs_to_the_right_request_without_a_common_clock() {
    let (world, drivers) = drive(500, 2);
    check(&world, &drivers, &Trace::new(world.recordings(0)));
}

/// A million events: `cargo test --release -p adverb-trace --test truth -- --ignored --nocapture`.
#[test]
#[ignore = "takes long without optimization"]
fn million_events_take_little_time() {
    let (world, drivers) = drive(30_000, 3);
    let recordings = world.recordings(1);
    let start = std::time::Instant::now();
    let trace = Trace::new(recordings);
    let elapsed = start.elapsed();
    println!("{} events, {} packets: {elapsed:?}", trace.events().len(), trace.packets().len());
    assert!(elapsed.as_secs() < 10);
    check(&world, &drivers, &trace);
}
