//! Sessions that resume over lanes of other sizes, and sessions that don't resume.

use super::*;
use crate::hello::SessionHello;

/// Returns the number of READs in a replay of `count` messages of `len` bytes over a lane whose ring has 512 bytes.
fn reads_after_replay(count: usize, len: usize) -> usize {
    let mut pair = Pair::new(Config { recv_ring_size: 64 << 10, max_outstanding_writes: 64, ..resumable() });
    let (connection, memory) = pair.side(0);
    let mut left = Vec::new();
    for number in 0..count {
        connection.send(memory, &vec![number as u8; len], None).expect("credits");
        let Some(Post::Write { tag, buf, .. }) = connection.poll_post(memory, Time::ZERO) else {
            panic!("no write")
        };
        left.push((tag, buf));
    }
    connection.handle_lane_failed(Time::ZERO);
    assert_eq!(connection.poll_event(), Some(Event::Drain));
    connection.handle_drained(memory, left, Time::ZERO);
    pair.config.recv_ring_size = 512;
    let lane = pair.config.lane();
    assert!(pair.side(0).0.attach(lane, Time::ZERO));
    for number in 0..count {
        pair.run();
        assert_eq!(pair.recv_bytes(1), vec![number as u8; len]);
    }
    pair.run();
    assert_eq!((pair.end(0), pair.end(1)), (None, None));
    pair.reads
}

#[test]
fn eager_messages_are_replayed_as_rendezvous_messages_over_a_smaller_ring() {
    // The eager limit is a quarter of the ring, without a header.
    assert_eq!(reads_after_replay(3, 112), 0);
    // A READ has at most 100 bytes.
    assert_eq!(reads_after_replay(1, 113), 2);
    // Ten messages are more than can be outstanding.
    assert_eq!(reads_after_replay(10, 300), 10 * 3);
}

#[test]
fn a_message_is_read_in_as_few_parts_as_possible() {
    for (len, reads) in [(99, 1), (100, 1), (101, 2), (200, 2)] {
        let mut pair = Pair::new(small());
        pair.withheld = Some(Vec::new());
        pair.send_rendezvous(0, &vec![1; len]).expect("credits");
        pair.send_rendezvous(0, &[2; 3]).expect("credits");
        pair.run();
        let posts = pair.withheld.take().expect("READs are withheld");
        assert_eq!(posts.len(), reads + 1, "{len} bytes");
        posts.into_iter().for_each(|(side, post)| pair.execute(side, post));
        assert_eq!((pair.recv_bytes(1), pair.recv_bytes(1)), (vec![1; len], vec![2; 3]));
    }
}

#[test]
fn only_the_listener_of_a_session_resumes_it() {
    let mut pair = Pair::new(resumable());
    let lane = pair.config.lane();
    let hello =
        |id, received| Hello { session: Some(SessionHello { id, received }), ..Hello::unknown_session() };
    assert!(!pair.side(0).0.resume(hello([1; 16], Some(0)), lane, Time::ZERO));
    assert!(!pair.side(1).0.resume(hello([2; 16], Some(0)), lane, Time::ZERO));
    assert!(!pair.side(1).0.resume(hello([1; 16], None), lane, Time::ZERO));
    assert!(!pair.side(1).0.resume(Hello::unknown_session(), lane, Time::ZERO));
    assert_eq!(pair.side(1).0.phase(), PhaseKind::Established);
    assert!(pair.side(1).0.resume(hello([1; 16], Some(0)), lane, Time::ZERO));
    assert_eq!(pair.side(1).0.phase(), PhaseKind::Draining);
}

/// Returns a pair whose connector has lost its lane, and whose driver is dialing.
fn redialing() -> Pair {
    let mut pair = Pair::new(resumable());
    pair.side(0).0.handle_lane_failed(Time::ZERO);
    while pair.step(0) {}
    pair
}

#[test]
fn another_session_is_not_resumed() {
    for (id, reason) in [([1; 16], None), ([2; 16], Some(EndReason::SessionUnknown))] {
        let mut pair = redialing();
        let lane = pair.config.lane();
        assert!(pair.side(0).0.attach(lane, Time::ZERO));
        let hello =
            Hello { session: Some(SessionHello { id, received: Some(0) }), ..Hello::unknown_session() };
        let (connection, memory) = pair.side(0);
        connection.handle_hello(memory, &hello.emit(), Time::ZERO);
        while pair.sides[0].as_mut().is_some_and(|connection| connection.has_events()) {
            pair.step(0);
        }
        assert_eq!(pair.end(0), reason);
    }
}

#[test]
fn the_driver_can_give_up_dialing() {
    let mut pair = redialing();
    assert_eq!(pair.side(0).0.phase(), PhaseKind::Disconnected);
    pair.side(0).0.handle_redial_failed();
    assert_eq!(pair.end(0), Some(EndReason::ReconnectTimedOut));
    // A connection with a lane continues.
    let mut pair = Pair::new(resumable());
    pair.side(0).0.handle_redial_failed();
    assert_eq!(pair.side(0).0.phase(), PhaseKind::Established);
}
