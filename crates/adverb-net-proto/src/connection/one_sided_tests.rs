//! One-sided access, streams, and the numbers of writes.

use super::*;
use crate::frame::BY_ADDRESS;

const TABLE: &[u8] = &[5; 64];

impl Pair {
    fn expose(&mut self, side: usize, name: &str) -> Result<(), SendError> {
        let (connection, memory) = self.side(side);
        let region = memory.register(TABLE.to_vec());
        connection.expose(name, region, 3).map(drop).map_err(|(error, region)| {
            memory.release(&region);
            error
        })
    }

    fn withdraw(&mut self, side: usize, name: &str) -> bool {
        self.side(side).0.withdraw(|_, exposed, _| exposed == Some(name))
    }

    /// Returns the name and the key of each region that the other side has announced to this side: the key 0 if it has
    /// withdrawn the region.
    fn exposed(&self, side: usize) -> Vec<(&str, u32)> {
        let exposed = |event| match event {
            &Event::Exposed { ref name, region } => Some((name.as_str(), region.rkey)),
            Event::Withdrawn { name } => Some((name.as_str(), 0)),
            _ => None,
        };
        self.events[side].iter().filter_map(exposed).collect()
    }
}

#[test]
fn regions_are_announced_again_before_messages_are_replayed() {
    let mut pair = Pair::new(resumable());
    pair.expose(0, "table").expect("credits");
    pair.send(0, b"zero").expect("credits");
    pair.run();
    let [("table", first)] = pair.exposed(1)[..] else { panic!("{:?}", pair.events[1]) };
    pair.is_broken = true;
    pair.send(0, b"one").expect("credits");
    pair.run();
    assert_eq!(pair.side(0).0.post_operation(0), Err(SendError::StaleRegion));
    pair.is_broken = false;
    pair.events[1].clear();
    let lane = pair.config.lane();
    assert!(pair.side(0).0.attach(lane, Time::ZERO));
    pair.run();
    let [("table", second)] = pair.exposed(1)[..] else { panic!("{:?}", pair.events[1]) };
    assert_ne!(first, second);
    assert!(!pair.memory[0].regions.contains_key(&first) && pair.memory[0].regions[&second] == TABLE);
    assert_eq!([pair.recv_bytes(1), pair.recv_bytes(1)], [b"zero".to_vec(), b"one".to_vec()]);
    // The end of the connection releases the region.
    pair.side(0).0.abort();
    pair.run();
    assert!(pair.memory[0].regions.is_empty());
}

#[test]
fn a_name_or_region_that_does_not_fit_is_returned() {
    let mut pair = Pair::new(small());
    let name = "x".repeat(MAX_NAME_LEN + 1);
    assert!(matches!(pair.expose(0, &name), Err(SendError::TooLong { len: 65, max: 64 })));
    pair.side(0).0.shutdown();
    assert_eq!(pair.expose(0, "b"), Err(SendError::Shutdown));
}

#[test]
fn a_region_that_is_exposed_without_a_lane_is_announced_over_the_next() {
    let mut pair = Pair::new(resumable());
    pair.is_broken = true;
    pair.send(0, b"zero").expect("credits");
    pair.run();
    assert_eq!((pair.side(0).0.phase(), pair.expose(0, "late")), (PhaseKind::Disconnected, Ok(())));
    assert!(!pair.side(0).0.is_announced(0) && pair.side(0).0.is_announced(1));
    pair.is_broken = false;
    let lane = pair.config.lane();
    assert!(pair.side(0).0.attach(lane, Time::ZERO));
    pair.run();
    assert!(pair.side(0).0.is_announced(0));
    assert!(matches!(pair.exposed(1)[..], [("late", 1..)]));
}

#[test]
fn a_withdrawn_region_is_released_at_once_and_announced_over_no_later_lane() {
    let mut pair = Pair::new(resumable());
    pair.expose(0, "a").expect("an open connection");
    pair.expose(0, "b").expect("an open connection");
    pair.run();
    assert_eq!(pair.memory[0].regions.len(), 3);
    assert!(!pair.withdraw(0, "c"));
    assert!(pair.withdraw(0, "a"));
    assert!(matches!(pair.side(0).0.poll_event(), Some(Event::Release(_))));
    assert!(!pair.withdraw(0, "a"));
    // The peer is told before it receives later messages.
    assert!(!pair.side(0).0.can_post(1));
    pair.run();
    assert!(matches!(pair.exposed(1)[..], [("a", 1..), ("b", 1..), ("a", 0)]));
    pair.events[1].clear();
    pair.reconnect();
    pair.run();
    assert!(matches!(pair.exposed(1)[..], [("b", 1..)]), "{:?}", pair.exposed(1));
}

#[test]
fn a_withdrawal_without_a_lane_is_not_announced() {
    let mut pair = Pair::new(resumable());
    pair.expose(0, "a").expect("an open connection");
    pair.run();
    pair.events[1].clear();
    pair.is_broken = true;
    pair.send(0, b"zero").expect("credits");
    pair.run();
    assert!(!pair.withdraw(0, "a"));
    pair.is_broken = false;
    let lane = pair.config.lane();
    assert!(pair.side(0).0.attach(lane, Time::ZERO));
    pair.run();
    assert!(pair.exposed(1).is_empty());
    assert_eq!(pair.recv_bytes(1), b"zero");
}

#[test]
fn a_region_that_is_withdrawn_while_it_is_registered_is_released() {
    let mut pair = Pair::new(small());
    pair.expose(0, "a").expect("an open connection");
    let connection = pair.side(0).0;
    let Register { id, memory } = connection.poll_register().expect("the region");
    let RegisterMemory::Exposed(region) = memory else { panic!("{memory:?}") };
    let mut seen = Vec::new();
    connection.withdraw(|number, name, region| {
        seen.push((number, name.map(str::to_owned), region.is_some()));
        true
    });
    assert_eq!(seen, [(0, Some("a".to_owned()), false)]);
    connection.handle_registered(id, region.clone(), Time::ZERO);
    assert_eq!(connection.poll_event(), Some(Event::Release(region)));
    assert!(!connection.has_output() || connection.poll_register().is_none());
}

#[test]
fn a_name_that_refers_to_a_later_region_is_not_withdrawn() {
    let mut pair = Pair::new(small());
    pair.expose(0, "a").expect("an open connection");
    pair.expose(0, "a").expect("an open connection");
    pair.run();
    let mut count = 0;
    pair.side(0).0.withdraw(|_, _, _| {
        count += 1;
        count == 1
    });
    pair.run();
    assert!(matches!(pair.exposed(1)[..], [("a", 1..), ("a", 1..)]), "{:?}", pair.exposed(1));
    assert!(pair.withdraw(0, "a"));
    pair.run();
    assert!(matches!(pair.exposed(1)[..], [_, _, ("a", 0)]), "{:?}", pair.exposed(1));
}

#[test]
fn operations_share_the_send_queue() {
    let mut pair = Pair::new(small());
    let depth = pair.config.clone().clamped().send_queue_depth();
    let (connection, memory) = pair.side(0);
    for _ in 0..depth {
        connection.post_operation(0).expect("the queue has room");
    }
    assert_eq!(connection.post_operation(0), Err(SendError::WouldBlock));
    // A message waits for the queue.
    connection.send(memory, b"message", None).expect("there are credits");
    let write = connection.last_write();
    assert!(connection.poll_post(memory, Time::ZERO).is_none() && !connection.is_posted(write));
    connection.handle_completion(memory, Completed::Sent { tag: Tag::Operation, buf: None }, Time::ZERO);
    assert!(connection.poll_post(memory, Time::ZERO).is_some() && connection.is_posted(write));
    // A refused operation fails the lane.
    connection.handle_completion(memory, Completed::Sent { tag: Tag::Operation, buf: None }, Time::ZERO);
    connection.post_operation(0).expect("the queue has room");
    connection.handle_operation_refused(Time::ZERO);
    assert_eq!(connection.phase(), PhaseKind::Draining);
    assert!(matches!(connection.post_operation(0), Err(SendError::Ended(EndReason::LaneFailed))));
}

#[test]
fn parts_of_a_stream_fill_writes() {
    let mut pair =
        Pair::new(Config { eager_threshold: 16, recv_ring_size: 8192, max_message_size: 4096, ..small() });
    let (connection, memory) = pair.side(0);
    // A quarter of the ring, without the header.
    assert_eq!(connection.stream_len(10_000), Some(2032));
    assert_eq!(connection.stream_len(3), Some(3));
    assert!(matches!(
        connection.send_with(memory, 2033, None, |_| ()),
        Err(SendError::TooLong { len: 2033, max: 2032 })
    ));
    assert!(connection.can_post(2032) && connection.can_send_region());
    connection.send_with(memory, 2032, None, |out| out.fill(7)).expect("credits");
    assert!(!connection.can_post(0));
    pair.run();
    assert_eq!(pair.recv_bytes(1), [7; 2032]);
    assert!(pair.side(0).0.is_delivered());
}

#[test]
fn delivery_is_confirmed_by_a_probe() {
    let mut pair = Pair::new(small());
    let (connection, memory) = pair.side(0);
    connection.confirm();
    assert_eq!(connection.poll_post(memory, Time::ZERO), None);
    connection.send(memory, b"message", None).expect("credits");
    let Some(Post::Write { is_signaled: false, .. }) = connection.poll_post(memory, Time::ZERO) else {
        panic!("a write")
    };
    connection.confirm();
    assert!(matches!(connection.poll_post(memory, Time::ZERO), Some(Post::Probe { .. })));
    assert!(!connection.is_delivered());
}

#[test]
fn a_side_whose_peer_has_closed_sends_no_close() {
    let mut pair = Pair::new(small());
    let now = pair.now;
    pair.side(0).0.close(now);
    let (connection, memory) = pair.side(0);
    let Some(Post::Write { tag: Tag::Close, buf: Some(frames), immediate, .. }) =
        connection.poll_post(memory, now)
    else {
        panic!("a close")
    };
    let len = frames.len() as u32;
    let (connection, memory) = pair.side(1);
    let ring = memory.regions.values_mut().next().expect("the ring");
    ring[..frames.len()].copy_from_slice(&frames);
    connection.handle_completion(memory, Completed::Received { immediate, len }, now);
    assert!(connection.has_peer_closed() && connection.is_lingering());
    connection.close(now);
    while let Some(post) = connection.poll_post(memory, now) {
        assert!(!matches!(post, Post::Write { tag: Tag::Close, .. }), "{post:?}");
    }
    assert!(!connection.has_output() || connection.is_closing());
}

/// Without credits, the peer never learns of addresses that are withdrawn.
#[test]
fn addresses_are_announced_with_the_first_credits() {
    let mut pair = Pair::new(small());
    // The peer receives nothing, so the credits run out.
    let mut unread = 0;
    while pair.side(0).0.can_post(40) {
        pair.send(0, &[7; 40]).expect("credits");
        pair.run();
        unread += 1;
    }
    let (connection, memory) = pair.side(0);
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let region = memory.register(TABLE.to_vec());
        numbers.push(connection.expose("", region, 3 | BY_ADDRESS).expect("an open connection"));
    }
    pair.run();
    assert!(!pair.side(0).0.is_announced(numbers[0]));
    assert!(!pair.side(0).0.is_exposed(""));
    assert!(!pair.side(0).0.withdraw(|number, name, _| number == numbers[0] && name.is_none()));
    while !pair.side(0).0.is_announced(numbers[1]) {
        pair.recv_bytes(1);
        pair.run();
        unread -= 1;
    }
    (0..unread).for_each(|_| drop(pair.recv_bytes(1)));
    pair.run();
    assert_eq!(pair.exposed(1).len(), 1);
    // The peer can't be told of a withdrawal now.
    assert!(pair.side(0).0.withdraw(|_, name, _| name.is_none()));
    pair.run();
    assert_eq!(pair.exposed(1).len(), 1);
}
