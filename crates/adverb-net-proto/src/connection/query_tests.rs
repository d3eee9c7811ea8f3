//! Queries of a connection's state, and the sizes of writes and queues.

use super::*;
use crate::config::LaneConfig;
use crate::hello::SessionHello;
use crate::immediate::{Credits, Immediate};

impl Pair {
    /// Sends messages whose writes the peer doesn't receive, until no credits are left.
    fn use_all_credits(&mut self, side: usize) {
        let now = self.now;
        let (connection, memory) = self.side(side);
        while connection.can_post(6) {
            connection.send(memory, b"unread", None).expect("credits");
            assert!(matches!(connection.poll_post(memory, now), Some(Post::Write { .. })));
        }
    }
}

/// A configuration in which the maximum length of a write is 2048 bytes.
fn medium() -> Config {
    Config { recv_ring_size: 8192, max_message_size: 4096, ..small() }
}

#[test]
fn queues_have_room_for_all_requests() {
    let config = small();
    // Writes with credits, writes without, READs and their reports; and the parts of a message, of 100 bytes each.
    assert_eq!(config.send_queue_depth(), 2 * (4 + 8 + 2 * 8) + 10);
    assert_eq!(config.recv_queue_depth(), 1 + 4 + 8 + 8);
}

#[test]
fn receives_are_posted_in_batches() {
    let config = Config { max_outstanding_writes: 16, ..medium() };
    // Of 16 writes, a quarter. Up to three receives wait for a fourth, so there are three more.
    assert_eq!(config.recv_queue_depth(), 1 + 16 + 8 + 8 + 3);
    let mut pair = Pair::new(config);
    let now = pair.now;
    let (connection, memory) = pair.side(0);
    for posted in [None, None, None, Some(4), None] {
        let immediate = Immediate::Credits(Credits::new(0, 0)).emit();
        connection.handle_completion(memory, Completed::Received { immediate, len: 0 }, now);
        assert_eq!(connection.has_output(), posted.is_some());
        let post = connection.poll_post(memory, now);
        let count = match post {
            Some(Post::Receives { count }) => Some(count),
            None => None,
            Some(_) => panic!("{post:?}"),
        };
        assert_eq!(count, posted);
    }
}

#[test]
fn a_lane_has_sizes_of_its_own() {
    let config = small();
    let lane = LaneConfig { recv_ring_size: 1024, max_outstanding_writes: 8, max_read_len: 200 };
    assert_eq!(config.clone().with_lane(lane).lane(), lane);
    assert_eq!(config.clone().with_lane(lane).with_lane(config.lane()), config);
}

#[test]
fn sizes_are_multiples_and_have_maximums() {
    let config = Config {
        recv_ring_size: 1000,
        max_outstanding_writes: 1000,
        max_message_size: u32::MAX,
        ..Config::default()
    };
    let config = config.clamped();
    assert_eq!((config.recv_ring_size, config.max_outstanding_writes), (992, 256));
    assert_eq!(config.max_message_size, MAX_MESSAGE_SIZE);
}

#[test]
fn a_session_needs_both_sides_and_a_first_hello() {
    let mut pair = Pair::new(resumable());
    assert_eq!([0, 1].map(|side| pair.side(side).0.session()), [Some([1; 16]); 2]);
    let mut pair = Pair::new(small());
    assert_eq!([0, 1].map(|side| pair.side(side).0.session()), [None; 2]);
    for received in [None, Some(0)] {
        let session = Some(SessionHello { id: [2; 16], received });
        let hello = Hello { session, ..Hello::unknown_session() };
        let connection = TestConnection::accept(resumable(), hello, Time::ZERO);
        assert_eq!(connection.session().is_some(), received.is_none());
        assert_eq!(TestConnection::accept(small(), hello, Time::ZERO).session(), None);
    }
}

#[test]
fn fed_messages_wait_until_a_write_is_almost_full() {
    let mut pair = Pair::new(medium());
    let (connection, memory) = pair.side(0);
    // Each frame has 528 bytes.
    for is_due in [false, false, true] {
        connection.feed(memory, &[1; 500], None).expect("memory");
        assert_eq!((connection.is_due(), connection.last_write()), (is_due, 1));
    }
    assert!(!connection.is_posted(1));
    pair.run();
    let (connection, memory) = pair.side(0);
    assert!(connection.is_posted(1) && !connection.is_posted(2));
    // A message longer than half a write is written at once.
    connection.feed(memory, &[2; 1009], None).expect("memory");
    assert!(connection.is_due());
    // A message that doesn't fit lets the others be written.
    pair.run();
    let (connection, memory) = pair.side(0);
    connection.feed(memory, &[3; 1008], None).expect("memory");
    assert!(!connection.is_due());
    assert_eq!(connection.feed(memory, &[4; 1009], None), Err(SendError::WouldBlock));
    assert!(connection.is_due());
}

#[test]
fn a_refused_message_begins_no_write() {
    let mut pair = Pair::new(Config { eager_threshold: 16, ..medium() });
    let (connection, memory) = pair.side(0);
    let too_long = Err(SendError::TooLong { len: 17, max: 16 });
    assert_eq!(connection.feed(memory, &[1; 17], None), too_long);
    assert_eq!(connection.send(memory, &[1; 17], None), too_long);
    assert!(connection.can_post(16) && connection.is_flushed());
    assert_eq!((connection.last_write(), connection.is_posted(1)), (0, false));
    connection.feed(memory, &[1; 16], None).expect("memory");
    assert!(connection.last_write() == 1 && !connection.is_posted(1) && !connection.is_flushed());
    // The close shares the write of the message.
    connection.close(Time::ZERO);
    let post = connection.poll_post(memory, Time::ZERO);
    assert!(matches!(post, Some(Post::Write { tag: Tag::Close, is_signaled: true, .. })), "{post:?}");
    assert!(connection.is_posted(1));
}

#[test]
fn messages_join_a_write_that_waits_for_credits() {
    let mut pair = Pair::new(small());
    let (connection, memory) = pair.side(0);
    // This write can be posted, so it has room for one message only.
    connection.send(memory, &[1; 16], None).expect("credits");
    assert_eq!(connection.send(memory, &[2; 16], None), Err(SendError::WouldBlock));
    assert!(!connection.can_send_region());
    pair.run();

    pair.use_all_credits(0);
    let (connection, memory) = pair.side(0);
    let write = connection.last_write() + 1;
    for _ in 0..2 {
        connection.send(memory, &[3; 16], None).expect("room in the write");
    }
    assert!(connection.can_send_region());
    assert_eq!((connection.last_write(), connection.is_posted(write)), (write, false));
    connection.send(memory, &[4; 16], None).expect("room in the write");
    // 96 of 128 bytes are taken.
    connection.send(memory, &[5; 16], None).expect("room in the write");
    assert!(!connection.can_send_region());
    assert_eq!(connection.send(memory, b"", None), Err(SendError::WouldBlock));
    assert_eq!(connection.poll_post(memory, Time::ZERO), None);
}

#[test]
fn messages_join_a_write_that_waits_for_the_send_queue() {
    let mut pair = Pair::new(small());
    let (connection, memory) = pair.side(0);
    assert!(connection.can_post(0));
    while connection.post_operation(0).is_ok() {}
    assert!(!connection.can_post(0));
    for _ in 0..2 {
        connection.send(memory, &[1; 16], None).expect("room in the write");
    }
}

#[test]
fn regions_are_taken_only_over_a_lane_and_up_to_eight() {
    let connection = TestConnection::connect(small(), [1; 16], Time::ZERO);
    assert!(!connection.can_send_region() && !connection.can_post(0));
    assert_eq!((connection.stream_len(1), connection.limits()), (None, None));
    let mut pair = Pair::new(Config { recv_buffer_limit: 300, ..small() });
    for number in 0..9u8 {
        assert!(pair.side(0).0.can_send_region());
        pair.send_rendezvous(0, &[number; 200]).expect("one of them is read");
        assert_eq!(pair.side(0).0.unacknowledged().end, u64::from(number) + 1);
        pair.run();
    }
    assert!(!pair.side(0).0.can_send_region());
    pair.recv_bytes(1);
    pair.run();
    assert!(pair.side(0).0.can_send_region());
}

#[test]
fn a_stream_continues_a_write_only_with_a_part_that_is_long_enough() {
    let mut pair = Pair::new(medium());
    let (connection, memory) = pair.side(0);
    connection.feed(memory, &[1; 500], None).expect("memory");
    // 528 of 2048 bytes are taken; a header takes 16.
    assert_eq!([5000, 1504, 100].map(|len| connection.stream_len(len)), [Some(1504), Some(1504), Some(100)]);
    connection.feed(memory, &[1; 500], None).expect("memory");
    // 976 bytes fit. Of more bytes, only a part would fit, and that part would have fewer than 1024 bytes.
    assert_eq!([976, 977].map(|len| connection.stream_len(len)), [Some(976), None]);

    // Half of a small write is enough.
    let mut pair = Pair::new(small());
    let (connection, memory) = pair.side(0);
    connection.feed(memory, &[1; 20], None).expect("memory");
    assert_eq!(connection.stream_len(500), Some(64));
    connection.feed(memory, &[1; 20], None).expect("memory");
    assert_eq!([16, 17].map(|len| connection.stream_len(len)), [Some(16), None]);

    let pair = &mut Pair::new(Config { max_message_size: 1000, ..medium() });
    assert_eq!(pair.side(0).0.stream_len(5000), Some(1000));
}

#[test]
fn each_side_knows_which_sides_have_shut_down_or_closed() {
    let state = |connection: &TestConnection| {
        [
            connection.has_shutdown(),
            connection.has_peer_shutdown(),
            connection.is_closing(),
            connection.has_peer_closed(),
        ]
    };
    let mut pair = Pair::new(small());
    assert_eq!([0, 1].map(|side| state(pair.side(side).0)), [[false; 4]; 2]);
    pair.side(0).0.shutdown();
    assert!(!pair.side(0).0.is_flushed());
    pair.run();
    assert!(pair.side(0).0.is_flushed());
    assert_eq!(state(pair.side(0).0), [true, false, false, false]);
    assert_eq!(state(pair.side(1).0), [false, true, false, false]);
    assert_eq!(pair.side(0).0.check_send(), Err(SendError::Shutdown));
    assert_eq!(pair.side(1).0.check_send(), Ok(()));
    pair.side(1).0.close(Time::ZERO);
    pair.run();
    assert_eq!(state(pair.side(0).0), [true, true, false, true]);
    assert_eq!(state(pair.side(1).0), [true, true, true, false]);
    (0..2).for_each(|side| assert_eq!(pair.recv(side), Received::Shutdown));
}

#[test]
fn calls_after_the_end_return_its_reason() {
    let mut pair = Pair::new(small());
    pair.send(0, b"last").expect("credits");
    pair.run();
    let (connection, memory) = pair.side(1);
    assert!(!connection.has_events());
    connection.abort();
    assert!(connection.has_events());
    while let Some(event) = connection.poll_event() {
        if event == Event::Drain {
            connection.handle_drained(memory, Vec::new(), Time::ZERO);
        }
    }
    assert!(!connection.has_events());
    assert_eq!(pair.recv(1), Received::Ended(EndReason::Aborted));

    pair.is_broken = true;
    pair.send(0, b"lost").expect("credits");
    pair.run();
    let reason = EndReason::RequestFailed(Status::RetryExceeded);
    assert_eq!((pair.end(0), pair.recv(0)), (Some(reason), Received::Ended(reason)));
    assert_eq!(pair.side(0).0.check_send(), Err(SendError::Ended(reason)));
}

#[test]
fn a_shutdown_is_received_after_a_message_that_is_being_read() {
    let mut pair = pair_with_unreported_message();
    pair.send_rendezvous(1, &[4; 50]).expect("credits");
    pair.side(1).0.shutdown();
    while pair.step(1) {}
    assert!(pair.side(0).0.has_peer_shutdown());
    assert_eq!(pair.recv_bytes(0), [3; 50]);
    assert_eq!(pair.recv(0), Received::Pending);
    pair.run();
    assert_eq!(pair.recv_bytes(0), [4; 50]);
    assert_eq!(pair.recv(0), Received::Shutdown);
}
