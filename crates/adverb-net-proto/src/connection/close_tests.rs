//! The steps of a close, one request at a time.

use super::*;
use crate::immediate::{Credits, Immediate};

/// Returns the tags of the requests that a side posts, which are lost.
fn tags(connection: &mut TestConnection, memory: &mut TestMemory) -> Vec<Tag> {
    let posts = std::iter::from_fn(|| connection.poll_post(memory, Time::ZERO));
    let tag = |post| match post {
        Post::Write { tag, .. } => Some(tag),
        Post::Probe { .. } => Some(Tag::Probe),
        _ => None,
    };
    posts.filter_map(tag).collect()
}

/// Returns a pair whose side 0 has closed, and whose side 1 has the close frame. The write has no completion yet.
fn pair_with_close() -> Pair {
    let mut pair = Pair::new(small());
    pair.side(0).0.close(Time::ZERO);
    let (connection, memory) = pair.side(0);
    let post = connection.poll_post(memory, Time::ZERO);
    let Some(Post::Write { tag: Tag::Close, buf: Some(frames), immediate, .. }) = post else {
        panic!("{post:?}")
    };
    let len = frames.len() as u32;
    let (connection, memory) = pair.side(1);
    memory.regions.values_mut().next().expect("the ring")[..frames.len()].copy_from_slice(&frames);
    connection.handle_completion(memory, Completed::Received { immediate, len }, Time::ZERO);
    pair
}

#[test]
fn a_close_is_acknowledged_after_its_completion() {
    let mut pair = pair_with_close();
    let (connection, memory) = pair.side(0);
    assert_eq!(tags(connection, memory), []);
    connection.handle_completion(memory, Completed::Sent { tag: Tag::Close, buf: None }, Time::ZERO);
    assert_eq!(tags(connection, memory), [Tag::CloseAck]);
    assert_eq!(connection.poll_timeout(), Some(Time::ZERO + small().close_ack_timeout));
}

#[test]
fn an_abort_ends_the_peer_unless_it_knows_the_end() {
    let mut pair = Pair::new(small());
    let post = pair.side(0).0.abort_write();
    let Some(Post::Write { buf: None, immediate, .. }) = post else { panic!("{post:?}") };
    let (connection, memory) = pair.side(1);
    connection.handle_completion(memory, Completed::Received { immediate, len: 0 }, Time::ZERO);
    connection.handle_drained(memory, Vec::new(), Time::ZERO);
    assert_eq!(connection.end_reason(), Some(EndReason::PeerAborted));
    let mut pair = pair_with_close();
    for side in 0..2 {
        assert_eq!(pair.side(side).0.abort_write(), None, "side {side}");
    }
}

#[test]
fn a_close_that_waits_for_credits_does_not_replace_an_abort() {
    let mut pair = Pair::new(small());
    let (connection, memory) = pair.side(0);
    // The peer reads nothing, so it returns no credits.
    while connection.send(memory, b"message", None).is_ok() {
        tags(connection, memory);
    }
    connection.close(Time::ZERO);
    assert_eq!(tags(connection, memory), []);
    assert!(connection.clone().abort_write().is_some());
    let deadline = connection.poll_timeout().expect("the time limit of the close");
    connection.handle_timeout(memory, deadline);
    assert_eq!(connection.phase(), PhaseKind::Draining);
    assert!(connection.abort_write().is_some());
    connection.handle_drained(memory, Vec::new(), deadline);
    assert_eq!(connection.end_reason(), Some(EndReason::CloseTimedOut));
    assert_eq!(connection.abort_write(), None);
}

#[test]
fn a_close_probes_the_peer_after_an_unsignaled_report() {
    let mut pair = pair_with_unreported_message();
    pair.side(0).0.close(Time::ZERO);
    let writes = pair.writes;
    while pair.writes == writes {
        assert!(pair.step(0), "the close is not posted");
    }
    let (connection, memory) = pair.side(0);
    assert_eq!(tags(connection, memory), [Tag::RendezvousDone, Tag::Probe]);
}

#[test]
fn credits_replace_the_completion_of_a_close() {
    let mut pair = pair_with_close();
    while pair.step(1) {}
    let (connection, memory) = pair.side(0);
    assert_eq!(tags(connection, memory), [Tag::CloseAck]);
    // The completion arrives late, and changes nothing.
    connection.handle_completion(memory, Completed::Sent { tag: Tag::Close, buf: None }, Time::ZERO);
    assert_eq!(tags(connection, memory), []);
}

#[test]
fn a_side_that_has_not_closed_acknowledges_no_close() {
    let mut pair = pair_with_close();
    let (connection, memory) = pair.side(1);
    assert_eq!(tags(connection, memory), [Tag::Credits]);
    connection.handle_completion(memory, Completed::Sent { tag: Tag::Credits, buf: None }, Time::ZERO);
    assert_eq!(tags(connection, memory), []);
}

#[test]
fn a_close_whose_acknowledgement_is_outstanding_ends_gracefully() {
    let config = Config {
        close_timeout: Duration::from_millis(1),
        close_ack_timeout: Duration::from_secs(1),
        ..small()
    };
    let mut pair = Pair::new(config);
    pair.side(0).0.close(Time::ZERO);
    assert!(pair.step(0));
    let (connection, memory) = pair.side(0);
    assert_eq!(tags(connection, memory), [Tag::CloseAck]);
    connection.handle_timeout(memory, Time::ZERO + Duration::from_millis(1));
    while pair.step(0) {}
    assert_eq!(pair.end(0), Some(EndReason::Closed));
}

#[test]
fn only_writes_with_frames_have_bytes() {
    let immediates =
        [Immediate::Credits(Credits::new(0, 0)), Immediate::RendezvousDone(1), Immediate::CloseAck];
    for immediate in immediates {
        let mut pair = Pair::new(small());
        let (connection, memory) = pair.side(0);
        let completed = Completed::Received { immediate: immediate.emit(), len: 16 };
        connection.handle_completion(memory, completed, Time::ZERO);
        pair.run();
        let violation = Violation("it wrote bytes without frames");
        assert_eq!(pair.end(0), Some(EndReason::ProtocolViolation(violation)), "{immediate:?}");
    }
}

#[test]
fn messages_are_read_ahead_up_to_the_limit() {
    // Each message counts as 114 bytes.
    for (limit, reads) in [(228, 2), (227, 1)] {
        let mut pair = Pair::new(Config { recv_buffer_limit: limit, ..small() });
        (0..3).for_each(|_| pair.send_rendezvous(0, &[1; 50]).expect("credits"));
        pair.run();
        assert_eq!(pair.reads, reads);
        assert_eq!(pair.side(1).0.buffered_bytes(), (114 * reads, 0));
    }
}
