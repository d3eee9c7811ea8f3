//! Two connections whose requests are executed at once.

use std::collections::BTreeMap;
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::types::{RemoteMemory, Status};

use crate::*;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct TestRegion(RemoteMemory);

impl Region for TestRegion {
    fn remote(&self) -> RemoteMemory {
        self.0
    }
}

#[derive(Default)]
struct TestMemory {
    regions: BTreeMap<u32, Vec<u8>>,
    next_rkey: u32,
}

impl TestMemory {
    fn register(&mut self, bytes: Vec<u8>) -> TestRegion {
        self.next_rkey += 1;
        let len = bytes.len() as u64;
        self.regions.insert(self.next_rkey, bytes);
        TestRegion(RemoteMemory { addr: 0, rkey: self.next_rkey, len })
    }

    /// Returns the region of this length. There is only one.
    fn only_region_of(&self, len: u64) -> TestRegion {
        let mut regions = self.regions.iter().filter(|(_, bytes)| bytes.len() as u64 == len);
        let (rkey, _) = regions.next().expect("a region of this length");
        assert!(regions.next().is_none());
        TestRegion(RemoteMemory { addr: 0, rkey: *rkey, len })
    }

    fn release(&mut self, region: &TestRegion) -> Vec<u8> {
        self.regions.remove(&region.0.rkey).expect("the region is registered")
    }
}

impl Memory for TestMemory {
    type Buf = Vec<u8>;
    type Region = TestRegion;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        Some(vec![0; len])
    }

    fn read_ring(&mut self, ring: &TestRegion, offset: u32, out: &mut Vec<u8>) {
        let len = out.len();
        out.copy_from_slice(&self.regions[&ring.0.rkey][offset as usize..offset as usize + len]);
    }
}

type TestConnection = Connection<Vec<u8>, TestRegion>;

/// Two sides; the second one has no connection before the hello.
struct Pair {
    sides: [Option<TestConnection>; 2],
    memory: [TestMemory; 2],
    config: Config,
    now: Time,
    /// Whether requests are lost instead of executed.
    is_broken: bool,
    /// The READs that are not executed, if they are withheld.
    withheld: Option<Vec<(usize, Post<Vec<u8>>)>>,
    events: [Vec<Event<TestRegion>>; 2],
    reads: usize,
    writes: usize,
    /// The executed requests that have no completion of their own, if such requests are distinguished.
    unsignaled: Option<[Requests; 2]>,
}

type Requests = Vec<(Tag, Option<Vec<u8>>)>;

/// Takes the unsignaled requests of a side, which complete with the next signaled one.
fn take_unsignaled(unsignaled: &mut Option<[Requests; 2]>, side: usize) -> Requests {
    unsignaled.as_mut().map(|sides| std::mem::take(&mut sides[side])).unwrap_or_default()
}

impl Pair {
    fn new(config: Config) -> Pair {
        let connection = Connection::connect(config.clone(), [1; 16], Time::ZERO);
        let mut pair = Pair {
            sides: [Some(connection), None],
            memory: [TestMemory::default(), TestMemory::default()],
            config,
            now: Time::ZERO,
            is_broken: false,
            withheld: None,
            events: [Vec::new(), Vec::new()],
            reads: 0,
            writes: 0,
            unsignaled: None,
        };
        pair.run();
        pair
    }

    fn side(&mut self, side: usize) -> (&mut TestConnection, &mut TestMemory) {
        (self.sides[side].as_mut().expect("the side is connected"), &mut self.memory[side])
    }

    /// Executes all requests of both sides.
    fn run(&mut self) {
        while (0..2).any(|side| self.step(side)) {}
    }

    fn step(&mut self, side: usize) -> bool {
        let now = self.now;
        let Some(connection) = &mut self.sides[side] else { return false };
        while let Some(event) = connection.poll_event() {
            match event {
                Event::Release(region) => drop(self.memory[side].release(&region)),
                Event::Drain => {
                    let left = take_unsignaled(&mut self.unsignaled, side);
                    connection.handle_drained(&mut self.memory[side], left, now);
                }
                event => self.events[side].push(event),
            }
        }
        if let Some(Register { id, memory }) = connection.poll_register() {
            let bytes = match memory {
                RegisterMemory::Ring { len } => vec![0; len as usize],
                RegisterMemory::Message(Payload::Buf(buf)) => buf,
                RegisterMemory::Message(Payload::Region(region)) | RegisterMemory::Exposed(region) => {
                    self.memory[side].release(&region)
                }
            };
            connection.handle_registered(id, self.memory[side].register(bytes), now);
            return true;
        }
        let has_output = connection.has_output();
        let Some(post) = connection.poll_post(&mut self.memory[side], now) else { return false };
        assert!(has_output, "{post:?} was not announced");
        if self.is_broken && !matches!(post, Post::Receives { .. }) {
            self.fail(side, post);
        } else if let (Some(withheld), Post::Read { .. }) = (&mut self.withheld, &post) {
            withheld.push((side, post));
        } else {
            self.execute(side, post);
        }
        true
    }

    fn fail(&mut self, side: usize, post: Post<Vec<u8>>) {
        let (tag, buf) = match post {
            Post::Write { tag, buf, .. } => (tag, buf),
            Post::Read { buf, .. } => (Tag::Read, Some(buf)),
            Post::Hello { .. } => (Tag::Hello, None),
            Post::Probe { .. } | Post::Receives { .. } => (Tag::Probe, None),
        };
        self.complete(side, Completed::Failed { tag, buf, status: Status::RetryExceeded });
    }

    /// Passes on a completion, after those of the unsignaled requests before it.
    fn complete(&mut self, side: usize, completed: Completed<Vec<u8>>) {
        let now = self.now;
        let before = take_unsignaled(&mut self.unsignaled, side);
        let (connection, memory) = self.side(side);
        for (tag, buf) in before {
            connection.handle_completion(memory, Completed::Sent { tag, buf }, now);
        }
        connection.handle_completion(memory, completed, now);
    }

    fn execute(&mut self, side: usize, post: Post<Vec<u8>>) {
        let now = self.now;
        let (tag, buf) = match post {
            Post::Receives { .. } => return,
            Post::Hello { bytes } => {
                let hello = Hello::parse(&bytes).expect("a valid hello");
                let is_new = hello.session.is_none_or(|session| session.received.is_none());
                match &mut self.sides[1 - side] {
                    None => self.sides[1] = Some(Connection::accept(self.config.clone(), hello, now)),
                    Some(connection) if side == 0 => {
                        assert!(!is_new && connection.resume(hello, self.config.lane(), now));
                    }
                    Some(connection) => connection.handle_hello(&mut self.memory[1 - side], &bytes, now),
                }
                (Tag::Hello, None)
            }
            Post::Write { tag, buf, remote, immediate, is_signaled } => {
                self.writes += 1;
                let bytes = buf.as_deref().unwrap_or_default();
                let ring = self.memory[1 - side].regions.get_mut(&remote.rkey).expect("a valid key");
                ring[remote.addr as usize..remote.addr as usize + bytes.len()].copy_from_slice(bytes);
                let len = bytes.len() as u32;
                let (peer, memory) = self.side(1 - side);
                peer.handle_completion(memory, Completed::Received { immediate, len }, now);
                if let Some(unsignaled) = &mut self.unsignaled
                    && !is_signaled
                {
                    return unsignaled[side].push((tag, buf));
                }
                (tag, buf)
            }
            Post::Probe { .. } => (Tag::Probe, None),
            Post::Read { mut buf, remote } => {
                self.reads += 1;
                let source = &self.memory[1 - side].regions[&remote.rkey];
                let len = buf.len();
                buf.copy_from_slice(&source[remote.addr as usize..remote.addr as usize + len]);
                (Tag::Read, Some(buf))
            }
        };
        self.complete(side, Completed::Sent { tag, buf });
    }

    /// Sends a message, after the driver has posted the earlier ones.
    fn send(&mut self, side: usize, bytes: &[u8]) -> Result<(), SendError> {
        self.run();
        let (connection, memory) = self.side(side);
        connection.send(memory, bytes, None)
    }

    fn send_rendezvous(&mut self, side: usize, bytes: &[u8]) -> Result<(), SendError> {
        self.run();
        let (connection, memory) = self.side(side);
        let region = memory.register(bytes.to_vec());
        let lane = connection.limits().map_or(0, |limits| limits.lane);
        connection.send_region(memory, region, lane, Some(5)).map_err(|(error, region)| {
            memory.release(&region);
            error
        })
    }

    fn recv(&mut self, side: usize) -> Received<Vec<u8>> {
        let now = self.now;
        let (connection, memory) = self.side(side);
        connection.recv(memory, now)
    }

    fn recv_bytes(&mut self, side: usize) -> Vec<u8> {
        match self.recv(side) {
            Received::Message(message) => message.buf,
            other => panic!("{other:?}"),
        }
    }

    /// Lets the next timeout of a side pass.
    fn time_out(&mut self, side: usize) {
        let now = self.side(side).0.poll_timeout().expect("a timeout");
        self.now = self.now.max(now);
        let (connection, memory) = self.side(side);
        connection.handle_timeout(memory, now);
        self.run();
    }

    fn end(&mut self, side: usize) -> Option<EndReason> {
        self.side(side).0.end_reason()
    }
}

fn small() -> Config {
    Config {
        recv_ring_size: 512,
        max_outstanding_writes: 4,
        max_read_len: 100,
        max_message_size: 1000,
        ..Config::default()
    }
}

fn resumable() -> Config {
    Config { reconnect: Some(Duration::from_secs(1)), ..small() }
}

#[test]
fn messages_arrive_in_order_and_long_ones_are_read_in_parts() {
    let mut pair = Pair::new(small());
    pair.send(0, b"first").expect("credits");
    let long: Vec<u8> = (0..250).map(|at| at as u8).collect();
    pair.send_rendezvous(0, &long).expect("credits");
    pair.send(0, b"last").expect("credits");
    pair.run();
    assert_eq!(pair.reads, 3);
    assert_eq!(pair.recv_bytes(1), b"first");
    assert_eq!(pair.recv(1), Received::Message(Message { buf: long, immediate: Some(5) }));
    assert_eq!(pair.recv_bytes(1), b"last");
    assert_eq!(pair.recv(1), Received::Pending);
    assert!(pair.side(0).0.is_delivered());
    // Only the sender's ring is still registered.
    assert_eq!(pair.memory[0].regions.len(), 1);
}

#[test]
fn fed_messages_share_a_write() {
    let mut pair = Pair::new(small());
    let before = pair.writes;
    for _ in 0..3 {
        let (connection, memory) = pair.side(0);
        connection.feed(memory, b"x", None).expect("credits");
    }
    pair.run();
    assert_eq!(pair.writes, before);
    pair.side(0).0.flush();
    pair.run();
    assert_eq!(pair.writes, before + 1);
    (0..3).for_each(|_| assert_eq!(pair.recv_bytes(1), b"x"));
}

#[test]
fn a_receiver_that_does_not_receive_stops_its_sender() {
    let mut pair = Pair::new(Config { recv_buffer_limit: 100, ..small() });
    let mut sent = 0u8;
    while pair.send(0, &[sent; 40]).is_ok() {
        sent += 1;
        pair.run();
        assert!(sent < 50, "the sender is never stopped");
    }
    assert!(pair.side(1).0.buffered_bytes().0 < 1000);
    for expected in 0..sent {
        assert_eq!(pair.recv_bytes(1), [expected; 40]);
        pair.run();
    }
    pair.send(0, b"more").expect("the receiver has returned credits");
}

#[test]
fn at_most_eight_rendezvous_messages_are_outstanding() {
    let mut pair = Pair::new(Config { recv_buffer_limit: 300, ..small() });
    for number in 0..9u8 {
        pair.send_rendezvous(0, &[number; 200]).expect("one of them is read");
        pair.run();
    }
    assert_eq!(pair.send_rendezvous(0, b"tenth"), Err(SendError::WouldBlock));
    for number in 0..9u8 {
        assert_eq!(pair.recv_bytes(1), [number; 200]);
        pair.run();
    }
    pair.send_rendezvous(0, b"tenth").expect("all were read");
}

#[test]
fn calls_are_refused_with_a_reason() {
    let mut pair = Pair::new(small());
    let max = pair.side(0).0.limits().expect("established").eager;
    assert_eq!(max, 512 / 4 - 16);
    assert_eq!(pair.send(0, &[0; 113]), Err(SendError::TooLong { len: 113, max }));
    assert_eq!(pair.send_rendezvous(0, &[0; 1001]), Err(SendError::TooLong { len: 1001, max: 1000 }));
    let (connection, memory) = pair.side(0);
    let region = memory.register(vec![0; 200]);
    assert!(matches!(connection.send_region(memory, region, 7, None), Err((SendError::StaleRegion, _))));
    pair.side(0).0.shutdown();
    assert_eq!(pair.send(0, b"late"), Err(SendError::Shutdown));
}

#[test]
fn a_close_delivers_all_messages_and_ends_both_sides() {
    let mut pair = Pair::new(small());
    pair.send(0, b"eager").expect("credits");
    pair.send_rendezvous(0, &[3; 300]).expect("credits");
    pair.side(0).0.close(Time::ZERO);
    pair.run();
    assert_eq!((pair.end(0), pair.end(1)), (Some(EndReason::Closed), Some(EndReason::PeerClosed)));
    assert_eq!(pair.recv_bytes(1), b"eager");
    assert_eq!(pair.recv_bytes(1), [3; 300]);
    assert_eq!(pair.recv(1), Received::Shutdown);
    assert_eq!(pair.send(1, b"late"), Err(SendError::Ended(EndReason::PeerClosed)));
    assert!(pair.memory.iter().all(|memory| memory.regions.is_empty()));
    assert!(pair.side(0).0.take_unacknowledged().is_empty());
}

/// Returns a pair whose side 0 has read a rendezvous message, but has not reported it as read.
fn pair_with_unreported_message() -> Pair {
    let mut pair = Pair::new(small());
    pair.unsignaled = Some([Vec::new(), Vec::new()]);
    pair.send_rendezvous(1, &[3; 50]).expect("credits");
    while pair.reads == 0 {
        assert!((0..2).rev().any(|side| pair.step(side)), "the message is not read");
    }
    pair
}

#[test]
fn a_close_continues_after_its_last_report() {
    let mut pair = pair_with_unreported_message();
    pair.side(0).0.close(Time::ZERO);
    // The close completes, and the peer returns its credits, before this side reports the message as read.
    let writes = pair.writes;
    while pair.writes == writes {
        assert!(pair.step(0), "the close is not posted");
    }
    while pair.step(1) {}
    assert_eq!(pair.end(0), None);
    pair.run();
    assert_eq!((pair.end(0), pair.end(1)), (Some(EndReason::Closed), Some(EndReason::PeerClosed)));
    assert_eq!(pair.now, Time::ZERO);
}

#[test]
fn a_side_lingers_from_its_last_report_on() {
    let mut pair = pair_with_unreported_message();
    pair.side(1).0.close(Time::ZERO);
    while pair.step(1) {}
    let (connection, memory) = pair.side(0);
    assert!(connection.has_peer_closed() && !connection.is_lingering());
    // The requests are lost, and have no completion.
    let mut posts = std::iter::from_fn(|| connection.poll_post(memory, Time::ZERO));
    assert!(posts.any(|post| matches!(post, Post::Write { tag: Tag::RendezvousDone, .. })));
    assert!(connection.is_lingering());
}

#[test]
fn a_shutdown_ends_one_direction() {
    let mut pair = Pair::new(small());
    pair.send(0, b"last").expect("credits");
    pair.side(0).0.shutdown();
    pair.run();
    assert_eq!(pair.recv_bytes(1), b"last");
    assert_eq!(pair.recv(1), Received::Shutdown);
    pair.send(1, b"answer").expect("this direction is open");
    pair.run();
    assert_eq!(pair.recv_bytes(0), b"answer");
}

#[test]
fn a_close_has_a_time_limit() {
    let mut pair = Pair::new(Config { recv_buffer_limit: 0, ..small() });
    (0..3).for_each(|_| pair.send_rendezvous(0, &[1; 200]).expect("credits"));
    pair.run();
    // The peer's application receives nothing.
    pair.side(0).0.close(Time::ZERO);
    pair.run();
    while pair.end(0).is_none() {
        pair.time_out(0);
    }
    assert_eq!(pair.end(0), Some(EndReason::CloseTimedOut));
    assert_eq!(pair.now, Time::ZERO + Duration::from_secs(5));
    let unacknowledged = pair.side(0).0.take_unacknowledged();
    assert_eq!(unacknowledged.last().map(|message| message.number), Some(2));
}

#[test]
fn a_failed_lane_ends_a_connection_without_a_session() {
    let mut pair = Pair::new(small());
    pair.is_broken = true;
    pair.send(0, b"lost").expect("credits");
    pair.run();
    assert_eq!(pair.end(0), Some(EndReason::RequestFailed(Status::RetryExceeded)));
    assert_eq!(pair.events[0].last(), Some(&Event::Closed(EndReason::RequestFailed(Status::RetryExceeded))));
    assert!(pair.memory[0].regions.is_empty());
}

#[test]
fn a_session_resumes_and_replays() {
    let mut pair = Pair::new(resumable());
    pair.send(0, b"zero").expect("credits");
    pair.run();
    let (connection, memory) = pair.side(0);
    connection.feed(memory, b"one", None).expect("credits");
    pair.send_rendezvous(0, &[2; 300]).expect("credits");
    pair.is_broken = true;
    pair.run();
    assert_eq!(pair.side(0).0.phase(), PhaseKind::Disconnected);
    assert!(matches!(pair.events[0].last(), Some(Event::Redial { session: [1, ..] })));
    assert_eq!(pair.send(0, b"later"), Err(SendError::WouldBlock));
    pair.is_broken = false;
    assert!(pair.side(0).0.attach(Config::default().lane(), Time::ZERO));
    pair.run();
    pair.send(0, b"three").expect("credits");
    pair.run();
    assert_eq!(pair.recv_bytes(1), b"zero");
    assert_eq!(pair.recv_bytes(1), b"one");
    assert_eq!(pair.recv_bytes(1), [2; 300]);
    assert_eq!(pair.recv_bytes(1), b"three");
    assert_eq!(pair.recv(1), Received::Pending);
    assert!(pair.events[1].contains(&Event::Established { lane: 1 }));
    assert!(!pair.side(0).0.attach(Config::default().lane(), Time::ZERO));
}

#[test]
fn an_unknown_session_ends_with_the_unacknowledged_messages() {
    let mut pair = Pair::new(resumable());
    pair.is_broken = true;
    pair.send(0, b"lost").expect("credits");
    pair.run();
    assert!(pair.side(0).0.take_unacknowledged().is_empty());
    pair.side(0).0.attach(Config::default().lane(), Time::ZERO);
    let (connection, memory) = pair.side(0);
    connection.handle_hello(memory, &Hello::unknown_session().emit(), Time::ZERO);
    pair.run();
    assert_eq!(pair.end(0), Some(EndReason::SessionUnknown));
    let unacknowledged = pair.side(0).0.take_unacknowledged();
    let expected = Unacknowledged { number: 0, payload: Payload::Buf(b"lost".to_vec()), immediate: None };
    assert_eq!(unacknowledged, [expected]);
    assert!(pair.side(0).0.take_unacknowledged().is_empty());
}

#[test]
fn dialing_is_repeated_until_the_time_limit() {
    let mut pair = Pair::new(resumable());
    pair.side(0).0.handle_lane_failed(Time::ZERO);
    pair.run();
    let redials =
        |pair: &Pair| pair.events[0].iter().filter(|event| matches!(event, Event::Redial { .. })).count();
    assert_eq!(redials(&pair), 1);
    let now = pair.now;
    pair.side(0).0.handle_dial_failed(now);
    pair.time_out(0);
    assert_eq!(redials(&pair), 2);
    while pair.end(0).is_none() {
        let now = pair.now;
        pair.side(0).0.handle_dial_failed(now);
        pair.time_out(0);
    }
    assert_eq!(pair.end(0), Some(EndReason::ReconnectTimedOut));
    assert_eq!(pair.now, Time::ZERO + Duration::from_secs(1));
}

#[test]
fn an_idle_connection_is_probed() {
    let mut pair = Pair::new(resumable());
    pair.time_out(1);
    assert_eq!(pair.side(1).0.phase(), PhaseKind::Established);
    pair.is_broken = true;
    pair.time_out(1);
    assert_eq!(pair.side(1).0.phase(), PhaseKind::Disconnected);
}

#[test]
fn a_peer_that_violates_the_protocol_is_disconnected() {
    let mut pair = Pair::new(resumable());
    let (connection, memory) = pair.side(1);
    // Credits for units that were never written.
    let completed = Completed::Received { immediate: 1 << 30 | 9, len: 0 };
    connection.handle_completion(memory, completed, Time::ZERO);
    pair.run();
    assert!(matches!(pair.end(1), Some(EndReason::ProtocolViolation(_))));
    assert!(pair.memory[1].regions.is_empty());
}

#[test]
fn memory_that_cannot_be_registered_ends_the_connection() {
    let mut connection: TestConnection = Connection::connect(small(), [1; 16], Time::ZERO);
    let Register { id, memory } = connection.poll_register().expect("the ring");
    connection.handle_register_failed(id, memory);
    assert_eq!(connection.poll_event(), Some(Event::Drain));
    connection.handle_drained(&mut TestMemory::default(), Vec::new(), Time::ZERO);
    assert_eq!(connection.end_reason(), Some(EndReason::OutOfMemory));
    // A ring that is registered too late is released.
    let region = TestMemory::default().register(vec![0; 512]);
    connection.handle_registered(id, region.clone(), Time::ZERO);
    assert_eq!(connection.poll_event(), Some(Event::Closed(EndReason::OutOfMemory)));
    assert_eq!(connection.poll_event(), Some(Event::Release(region)));
}

#[test]
fn a_message_sent_at_once_is_posted_like_another_one() {
    for config in [small(), resumable()] {
        let mut pair = Pair::new(Config { recv_buffer_limit: 200, ..config });
        let (mut sent, mut refused) = (0u8, 0);
        for round in 0..40u8 {
            if round % 5 == 4 {
                // Other frames are in the batch, a rendezvous message is read, or the credits are used up.
                let _ = if round % 2 == 0 {
                    pair.send_rendezvous(0, &[round; 200])
                } else {
                    pair.send(0, b"waits")
                };
            }
            let (connection, memory) = pair.side(0);
            let (mut other, bytes) = (connection.clone(), [round; 30]);
            match connection.send_at_once(memory, &bytes, Some(7)) {
                Some(write) => {
                    other.send(memory, &bytes, Some(7)).expect("credits");
                    let post = Post::from(write);
                    assert_eq!(other.poll_post(memory, Time::ZERO).as_ref(), Some(&post));
                    assert_eq!(*connection, other);
                    pair.execute(0, post);
                    sent += 1;
                }
                None => {
                    assert_eq!(*connection, other, "the call has no effect");
                    refused += 1;
                    pair.run();
                    pair.recv(1);
                }
            }
        }
        assert!(sent > 5 && refused > 5, "{sent} sent, {refused} refused");
        pair.side(0).0.shutdown();
        let (connection, memory) = pair.side(0);
        assert_eq!(connection.send_at_once(memory, b"late", None), None);
    }
}

#[test]
fn bytes_kept_for_a_peer_that_reads_no_rendezvous_message_are_bounded() {
    let config = Config {
        recv_ring_size: 1 << 20,
        max_outstanding_writes: 64,
        eager_threshold: 1 << 20,
        max_message_size: 1 << 20,
        max_read_len: 1 << 20,
        recv_buffer_limit: usize::MAX,
        ..resumable()
    };
    let mut pair = Pair::new(config);
    pair.withheld = Some(Vec::new());
    pair.send_rendezvous(0, &[1; 1000]).expect("credits");
    let message = vec![2; (1 << 18) - 16];
    let mut sent = 0;
    while pair.send(0, &message).is_ok() {
        sent += 1;
        assert!(sent < 1000, "the sender is never stopped");
        pair.run();
    }
    let kept = pair.side(0).0.buffered_bytes().1;
    assert!((32 << 20..33 << 20).contains(&kept), "{kept} bytes are kept");
    // The sender continues when the peer has read the rendezvous message.
    for (side, post) in pair.withheld.take().expect("READs are withheld") {
        pair.execute(side, post);
    }
    pair.run();
    assert_eq!(pair.recv_bytes(1), [1; 1000]);
    assert_eq!(pair.side(0).0.buffered_bytes().1, 0);
    pair.send(0, &message).expect("credits");
    pair.run();
    (0..=sent).for_each(|_| assert_eq!(pair.recv_bytes(1), message));
}

#[test]
fn a_close_knows_whether_the_peer_closed_without_some_messages() {
    // The peer closes while messages of this side wait for credits or are unread, or while there are none.
    for is_undelivered in [true, false] {
        let mut pair = Pair::new(Config { recv_buffer_limit: 100, ..small() });
        while is_undelivered && pair.send(0, &[0; 40]).is_ok() {
            pair.run();
        }
        pair.side(1).0.close(Time::ZERO);
        let now = pair.now;
        pair.side(0).0.close(now);
        pair.is_broken = true;
        for side in 0..2 {
            pair.side(side).0.handle_lane_failed(now);
        }
        pair.run();
        let connection = pair.side(0).0;
        assert!(connection.end_reason().is_some());
        assert_eq!(connection.has_undelivered(), is_undelivered);
    }
}

#[test]
fn a_message_whose_write_is_refused_is_undelivered() {
    let mut pair = Pair::new(small());
    pair.side(1).0.close(Time::ZERO);
    let (connection, memory) = pair.side(0);
    connection.send(memory, b"lost", None).expect("credits");
    let post = connection.poll_post(memory, Time::ZERO).expect("the message is posted");
    assert!(matches!(post, Post::Write { .. }), "{post:?}");
    connection.handle_refused(post, Time::ZERO);
    pair.is_broken = true;
    pair.run();
    let connection = pair.side(0).0;
    assert!(connection.end_reason().is_some());
    assert!(connection.has_undelivered());
}

#[path = "close_tests.rs"]
mod close;
#[path = "one_sided_tests.rs"]
mod one_sided;
#[path = "query_tests.rs"]
mod queries;
#[path = "registration_tests.rs"]
mod registration;
#[path = "replay_tests.rs"]
mod replay;
