//! Tests of the exchange of keys, without a network.

use proptest::prelude::*;

use super::message::parse_addition;
use super::*;

const PEER: PeerId = PeerId(0);
const MEMBER: u32 = 3;
const EPOCH: u64 = 9;

/// Returns the memory of a segment.
fn memory(number: u32) -> RemoteMemory {
    RemoteMemory { addr: u64::from(number) << 16, rkey: number + 100, len: 4096 }
}

fn segments(numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, RemoteMemory)> {
    numbers.into_iter().map(|number| (number, memory(number))).collect()
}

fn ptr(segment: u32) -> RemotePtr {
    RemotePtr { member: MEMBER, epoch: EPOCH, segment, offset: 16, len: 8 }
}

/// Returns an owner that has published these segments, and a user, with an open session.
fn pair(numbers: impl IntoIterator<Item = u32>) -> (Keys, Keys) {
    let (mut owner, mut user) = (Keys::new(1), Keys::new(1));
    owner.publish(MEMBER, 4096).unwrap();
    owner.update(&segments(numbers));
    owner.open(PEER, 1);
    user.open(PEER, EPOCH);
    (owner, user)
}

/// Takes the messages from one end to the other, of at most `max_len` bytes each. Returns their number.
fn pass(from: &mut Keys, to: &mut Keys, max_len: usize, outstanding_tickets: usize) -> usize {
    let mut count = 0;
    while let Some(peer) = from.poll_ready() {
        while let Some(message) = from.poll_output(peer, max_len) {
            assert!(message.len() <= max_len);
            to.handle_message(PEER, message, outstanding_tickets).unwrap();
            count += 1;
        }
    }
    count
}

fn released(keys: &mut Keys) -> Vec<u32> {
    core::iter::from_fn(|| keys.poll_released()).collect()
}

#[test]
fn pointers_resolve_to_announced_segments_only() {
    let (mut owner, mut user) = pair([0, 5]);
    assert_eq!(user.resolve(PEER, ptr(5)), Err(RemotePtrError::UnknownSegment { segment: 5 }));
    assert_eq!(pass(&mut owner, &mut user, 4096, 0), 1);
    let range = user.resolve(PEER, ptr(5)).unwrap();
    assert_eq!(range.epoch, EPOCH);
    assert_eq!(range.memory, RemoteMemory { addr: (5 << 16) + 16, rkey: 105, len: 8 });
    assert_eq!(user.segment_count(PEER), 2);

    let ptr = ptr(5);
    let refusals = [
        (RemotePtr { epoch: 8, ..ptr }, RemotePtrError::StaleEpoch { epoch: 8, current: 9 }),
        (RemotePtr { member: 2, ..ptr }, RemotePtrError::WrongMember { member: 2, expected: 3 }),
        (RemotePtr { segment: 4, ..ptr }, RemotePtrError::UnknownSegment { segment: 4 }),
        (
            RemotePtr { offset: 4089, ..ptr },
            RemotePtrError::OutOfBounds { offset: 4089, len: 8, segment_len: 4096 },
        ),
        (
            RemotePtr { offset: u64::MAX, ..ptr },
            RemotePtrError::OutOfBounds { offset: u64::MAX, len: 8, segment_len: 4096 },
        ),
    ];
    for (ptr, error) in refusals {
        assert_eq!(user.resolve(PEER, ptr), Err(error));
    }
    assert!(user.resolve(PEER, RemotePtr { offset: 4088, ..ptr }).is_ok());
    assert_eq!(user.resolve(PeerId(1), ptr), Err(RemotePtrError::UnknownSegment { segment: 5 }));
}

#[test]
fn a_withdrawal_is_confirmed_after_the_transfers_before_it() {
    let (mut owner, mut user) = pair([0, 1]);
    pass(&mut owner, &mut user, 4096, 0);
    owner.update(&segments([1]));
    assert_eq!(owner.poll_released(), None, "the withdrawal has not reached the peer");
    // Two tickets are outstanding when the withdrawal arrives. A third one is posted later.
    pass(&mut owner, &mut user, 4096, 2);
    assert_eq!(user.resolve(PEER, ptr(0)), Err(RemotePtrError::UnknownSegment { segment: 0 }));
    assert!(user.resolve(PEER, ptr(1)).is_ok());
    assert_eq!(pass(&mut user, &mut owner, 4096, 0), 0);
    user.end_ticket(PEER);
    assert_eq!(pass(&mut user, &mut owner, 4096, 0), 0);
    user.end_ticket(PEER);
    assert_eq!(pass(&mut user, &mut owner, 4096, 0), 1);
    assert_eq!(released(&mut owner), [0]);
}

#[test]
fn a_segment_that_no_peer_knows_is_released_at_once() {
    let (mut owner, _) = pair([0]);
    owner.update(&[]);
    assert_eq!(released(&mut owner), [0]);
    assert!(!owner.has_output(PEER));
    // Its number is not used again.
    owner.update(&segments([0, 1]));
    assert_eq!(owner.publication.as_ref().unwrap().segments.len(), 1);
}

#[test]
fn a_new_session_starts_anew() {
    let (mut owner, mut user) = pair([0, 1]);
    pass(&mut owner, &mut user, 4096, 0);
    owner.update(&segments([1, 2]));
    pass(&mut owner, &mut user, 4096, 5);
    for keys in [&mut owner, &mut user] {
        keys.end(PEER);
        assert!(!keys.has_output(PEER));
    }
    assert_eq!(released(&mut owner), [0], "the end of the session replaces the confirmation");
    assert_eq!(user.segment_count(PEER), 0);
    // The owner has restarted: it has another epoch, and the same segments.
    owner.open(PEER, 1);
    user.open(PEER, EPOCH + 1);
    assert_eq!(user.resolve(PEER, ptr(1)), Err(RemotePtrError::StaleEpoch { epoch: 9, current: 10 }));
    let ptr = RemotePtr { epoch: EPOCH + 1, ..ptr(1) };
    assert_eq!(user.resolve(PEER, ptr), Err(RemotePtrError::UnknownSegment { segment: 1 }));
    pass(&mut owner, &mut user, 4096, 0);
    assert!(user.resolve(PEER, ptr).is_ok());
    // The count of tickets starts anew, too: the five of the last session don't delay the confirmation.
    owner.update(&segments([2]));
    pass(&mut owner, &mut user, 4096, 0);
    pass(&mut user, &mut owner, 4096, 0);
    assert_eq!(released(&mut owner), [1]);
}

#[test]
fn keys_can_arrive_before_the_session_is_opened() {
    let (mut owner, _) = pair([0]);
    let mut user = Keys::new(1);
    pass(&mut owner, &mut user, 4096, 0);
    assert_eq!(user.resolve(PEER, ptr(0)), Err(RemotePtrError::UnknownSegment { segment: 0 }));
    user.open(PEER, EPOCH);
    assert!(user.resolve(PEER, ptr(0)).is_ok());
}

#[test]
fn messages_fit_the_smallest_slot() {
    let (mut owner, mut user) = pair(0..20);
    assert_eq!(pass(&mut owner, &mut user, 32, 0), 20);
    owner.update(&segments((0..20).filter(|number| number % 2 == 1)));
    assert_eq!(pass(&mut owner, &mut user, 32, 0), 2, "six numbers in each message");
    assert_eq!(pass(&mut user, &mut owner, 32, 0), 2);
    assert_eq!(released(&mut owner), (0..20).step_by(2).collect::<Vec<_>>());
    assert!((0..20).all(|number| user.resolve(PEER, ptr(number)).is_ok() == (number % 2 == 1)));
    let refused = Keys::new(1).publish(MEMBER, 31);
    assert_eq!(refused, Err(ConfigError::SlotTooSmall { size: 31, min: 32 }));
}

#[test]
fn the_number_of_segments_of_a_peer_is_bounded() {
    let max = MAX_PEER_SEGMENTS as u32;
    let (mut owner, mut user) = pair(0..max + 1);
    pass(&mut owner, &mut user, 4096, 0);
    assert_eq!(user.segment_count(PEER), MAX_PEER_SEGMENTS, "the owner announces no more");
    let mut message = Vec::new();
    message::start(&mut message, Kind::Addition, MEMBER);
    message::push_addition(&mut message, max, memory(max));
    assert_eq!(user.handle_message(PEER, &message, 0), Err(INVALID_MESSAGE));
    // A withdrawn segment counts until it is confirmed.
    owner.update(&segments(1..max + 1));
    pass(&mut owner, &mut user, 4096, 1);
    assert_eq!(user.handle_message(PEER, &message, 0), Err(INVALID_MESSAGE));
    assert!(user.state_bytes() < 512 << 10);
    user.end_ticket(PEER);
    pass(&mut user, &mut owner, 4096, 0);
    assert_eq!(pass(&mut owner, &mut user, 4096, 0), 1, "there is room for the last one");
    assert!(user.resolve(PEER, ptr(max)).is_ok());
}

#[test]
fn messages_of_no_correct_peer_are_refused() {
    let header = |kind: u8| [kind, 0, 0, 0, 3, 0, 0, 0];
    let addition = |number, memory| {
        let mut message = Vec::new();
        message::start(&mut message, Kind::Addition, MEMBER);
        message::push_addition(&mut message, number, memory);
        message
    };
    let invalid = [
        vec![],
        vec![0; 7],
        header(1).to_vec(),
        [&header(1)[..], &[0; 23]].concat(),
        [&header(2)[..], &[0; 4]].concat(), // a segment that was never announced
        [&header(2)[..], &[0; 5]].concat(),
        [&header(3)[..], &[0; 4]].concat(),
        [&header(3)[..], &[5, 0, 0, 0]].concat(), // announced, but not withdrawn
        [&header(4)[..], &[0; 4]].concat(),
        [&[1, 0, 1, 0, 3, 0, 0, 0][..], &[0; 24]].concat(),
        addition(1, RemoteMemory { addr: u64::MAX, rkey: 0, len: 1 }),
        [addition(1, memory(1)), addition(1, memory(1))[8..].to_vec()].concat(),
    ];
    for message in invalid {
        let (mut owner, mut user) = pair([5]);
        pass(&mut owner, &mut user, 4096, 0);
        assert_eq!(owner.handle_message(PEER, &message, 0), Err(INVALID_MESSAGE), "{message:?}");
        assert_eq!(user.handle_message(PeerId(1), &message, 0), Err(INVALID_MESSAGE));
    }
    // The peer announces another member number than before.
    let (_, mut user) = pair([]);
    assert_eq!(user.handle_message(PEER, &addition(1, memory(1)), 0), Ok(true));
    let mut other = addition(2, memory(2));
    other[4] = 4;
    assert_eq!(user.handle_message(PEER, &other, 0), Err(INVALID_MESSAGE));
    assert!(matches!(INVALID_MESSAGE, EndReason::ProtocolViolation { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn entries_round_trip(number: u32, addr: u64, rkey: u32, len: u64) {
        let memory = RemoteMemory { addr, rkey, len };
        let mut message = Vec::new();
        message::start(&mut message, Kind::Addition, 7);
        message::push_addition(&mut message, number, memory);
        let parsed = Message::parse(&message);
        let Some(Message::Addition { member: 7, entries: [entry] }) = parsed else {
            return Err(TestCaseError::fail("not an addition"));
        };
        let is_valid = addr.checked_add(len).is_some();
        prop_assert_eq!(parse_addition(entry), is_valid.then_some((number, memory)));
    }

    /// The memory of a segment is registered whenever the other end resolves a pointer to it or has a transfer in flight.
    #[test]
    fn a_segment_in_use_is_never_released(
        steps in proptest::collection::vec((0..8u8, 0..6u32), 1..200),
    ) {
        let (mut owner, mut user) = pair([]);
        let (mut next, mut current) = (0, Vec::<u32>::new());
        let mut registered = std::collections::BTreeSet::new();
        // The messages in flight, and the segments of the outstanding tickets, in order.
        let (mut to_user, mut to_owner) = (VecDeque::<Vec<u8>>::new(), VecDeque::<Vec<u8>>::new());
        let mut tickets = VecDeque::new();
        for (step, choice) in steps {
            match step {
                0 => {
                    registered.insert(next);
                    current.push(next);
                    next += 1;
                    owner.update(&segments(current.iter().copied()));
                }
                1 if !current.is_empty() => {
                    current.remove(choice as usize % current.len());
                    owner.update(&segments(current.iter().copied()));
                }
                2 | 3 => {
                    for (keys, messages) in [(&mut owner, &mut to_user), (&mut user, &mut to_owner)] {
                        while let Some(peer) = keys.poll_ready() {
                            while let Some(message) = keys.poll_output(peer, 40) {
                                messages.push_back(message.to_vec());
                            }
                        }
                    }
                }
                4 => {
                    if let Some(message) = to_user.pop_front() {
                        prop_assert!(user.handle_message(PEER, &message, tickets.len()).is_ok());
                    }
                }
                5 => {
                    if let Some(message) = to_owner.pop_front() {
                        prop_assert_eq!(owner.handle_message(PEER, &message, 0), Ok(false));
                    }
                }
                6 => {
                    if let Ok(range) = user.resolve(PEER, ptr(choice)) {
                        prop_assert_eq!(range.memory.rkey, choice + 100);
                        tickets.push_back(choice);
                    }
                }
                _ => {
                    if tickets.pop_front().is_some() {
                        user.end_ticket(PEER);
                    }
                }
            }
            for number in released(&mut owner) {
                prop_assert!(registered.remove(&number));
                prop_assert!(!current.contains(&number));
            }
            prop_assert!(tickets.iter().all(|number| registered.contains(number)));
            for number in 0..next {
                prop_assert!(user.resolve(PEER, ptr(number)).is_err() || registered.contains(&number));
            }
        }
        // Without further transfers, all withdrawn segments are released.
        for _ in 0..tickets.len() {
            user.end_ticket(PEER);
        }
        to_user.drain(..).for_each(|message| { let _ = user.handle_message(PEER, &message, 0); });
        to_owner.drain(..).for_each(|message| { let _ = owner.handle_message(PEER, &message, 0); });
        for _ in 0..2 {
            pass(&mut owner, &mut user, 40, 0);
            pass(&mut user, &mut owner, 40, 0);
        }
        for number in released(&mut owner) {
            registered.remove(&number);
        }
        prop_assert_eq!(registered.into_iter().collect::<Vec<_>>(), current);
    }
}
