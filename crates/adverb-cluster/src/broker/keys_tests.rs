//! Pointers to arenas of peers, on the software NIC.

use std::time::{Duration, Instant};

use adverb_cluster_proto::{BrokerConfig, EndReason, PostError, RemoteRange};
use adverb_verbs::memory::RemoteMemory;
use adverb_verbs::{Access, ProtectionDomain};

use super::tests::{Log, TEST_DEADLINE, buffer, connect, domain, pair, poll_until, small};
use super::*;
use crate::{Arena, ConfigError, RemotePtr, RemotePtrError, TransferOperation};

const PEER: PeerId = PeerId(0);
const ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const SEGMENT_SIZE: usize = 64 << 10;

/// An arena of member 1, in the epoch of the second broker of a [`pair`].
fn arena(domain: &ProtectionDomain) -> Arena {
    let builder = Arena::builder().member(1).epoch(20).slab_size(SEGMENT_SIZE);
    builder.create(std::slice::from_ref(domain)).unwrap()
}

fn is_known(broker: &Broker, ptr: RemotePtr) -> bool {
    broker.resolve(PEER, ptr).is_ok()
}

/// Polls two brokers until the condition holds.
fn poll_both(a: &mut Broker, b: &mut Broker, mut is_done: impl FnMut(&Broker, &Broker) -> bool) {
    let started = Instant::now();
    while !is_done(a, b) {
        a.poll(|_, event| assert!(!matches!(event, Event::SessionEnded { .. }), "{event:?}")).unwrap();
        b.poll(|_, event| assert!(!matches!(event, Event::SessionEnded { .. }), "{event:?}")).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE, "no progress");
        std::thread::yield_now();
    }
}

#[test]
fn pointers_are_checked_and_used() {
    let (mut a, mut b, domain) = pair(small());
    let (mut log_a, mut log_b) = (Log::default(), Log::default());
    let arena = arena(&domain);
    let segment = arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap();
    let item = arena.allocate_copy(b"a value").unwrap();
    let ptr = item.remote_ptr();
    let refused = a.post_read(PEER, domain.allocate_buffer(7).unwrap(), ptr).unwrap_err();
    assert_eq!(refused.error, RemotePtrError::UnknownSegment { segment: segment.id }.into());

    b.publish(&arena).unwrap();
    poll_both(&mut a, &mut b, |a, _| is_known(a, ptr));
    a.post_read(PEER, domain.allocate_buffer(7).unwrap(), ptr).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].completed.len() == 1);
    assert_eq!(&log_a.take_buffer()[..], b"a value");
    a.post_write(PEER, buffer(&domain, b"VALUE"), ptr.part(2..7).unwrap()).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].completed.len() == 1);
    log_a.take_buffer();
    assert_eq!(item.to_vec(), b"a VALUE");
    let remote = a.resolve(PEER, ptr).unwrap();
    let mut batch = vec![Transfer {
        operation: TransferOperation::Read,
        local: domain.allocate_buffer(7).unwrap().into(),
        remote,
    }];
    a.post_batch(PEER, &mut batch).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].completed.len() == 1);
    assert_eq!(&log_a.take_buffer()[..], b"a VALUE");

    let len = segment.len as u64;
    let refusals = [
        (RemotePtr { epoch: 19, ..ptr }, RemotePtrError::StaleEpoch { epoch: 19, current: 20 }),
        (RemotePtr { member: 2, ..ptr }, RemotePtrError::WrongMember { member: 2, expected: 1 }),
        (RemotePtr { segment: 9, ..ptr }, RemotePtrError::UnknownSegment { segment: 9 }),
        (
            RemotePtr { offset: len - 6, ..ptr },
            RemotePtrError::OutOfBounds { offset: len - 6, len: 7, segment_len: len },
        ),
        (
            RemotePtr { offset: u64::MAX, ..ptr },
            RemotePtrError::OutOfBounds { offset: u64::MAX, len: 7, segment_len: len },
        ),
    ];
    for (ptr, error) in refusals {
        let refused = a.post_read(PEER, domain.allocate_buffer(7).unwrap(), ptr).unwrap_err();
        assert_eq!(refused.error, TransferError::Pointer(error));
        assert_eq!(refused.payload.len(), 7, "the payload is returned");
    }
    // The local range is longer than the pointer's.
    let refused = a.post_read(PEER, domain.allocate_buffer(8).unwrap(), ptr).unwrap_err();
    assert!(matches!(refused.error, TransferError::Post(PostError::OutOfBounds { .. })));
    assert!(log_a.messages.is_empty() && log_a.ended.is_empty() && log_b.ended.is_empty());
}

#[test]
fn a_withdrawn_segment_stays_until_the_peer_has_confirmed() {
    let (mut a, mut b, domain) = pair(small());
    let arena = arena(&domain);
    b.publish(&arena).unwrap();
    let first = arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap().id;
    let second =
        arena.lend_segment(domain.allocate_region(4096, ACCESS | Access::LOCAL_WRITE).unwrap()).unwrap().id;
    let [in_first, in_second] = [first, second].map(|id| arena.remote_ptr(id, 0..64).unwrap());
    poll_both(&mut a, &mut b, |a, _| is_known(a, in_first) && is_known(a, in_second));

    let withdrawal = arena.withdraw(second).unwrap();
    // A segment that no peer ever knew is released at once.
    let third = arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap().id;
    assert!(arena.withdraw(third).unwrap().is_released());
    for _ in 0..20 {
        b.poll(|_, _| ()).unwrap();
    }
    assert!(!withdrawal.is_released(), "the withdrawal has not reached the peer");
    // The peer posted its transfers before the withdrawal arrived, so they succeed.
    let mut log = Log::default();
    for _ in 0..4 {
        a.post_read(PEER, domain.allocate_buffer(64).unwrap(), in_second).unwrap();
    }
    let started = Instant::now();
    while !withdrawal.is_released() {
        a.poll(|_, event| log.record(event)).unwrap();
        b.poll(|_, _| ()).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    assert_eq!(log.completed.len(), 4, "the peer confirms after its transfers");
    assert!(log.completed.iter().all(|(_, result, _)| result.is_ok()) && log.ended.is_empty());
    let refused = a.post_read(PEER, domain.allocate_buffer(64).unwrap(), in_second).unwrap_err();
    assert_eq!(refused.error, RemotePtrError::UnknownSegment { segment: second }.into());
    assert!(is_known(&a, in_first));
}

#[test]
fn keys_end_with_their_session() {
    let (mut a, mut b, domain) = pair(small());
    let arena = arena(&domain);
    let [first, second] = [(); 2].map(|()| arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap().id);
    let [in_first, in_second] = [first, second].map(|id| arena.remote_ptr(id, 0..64).unwrap());
    b.publish(&arena).unwrap();
    poll_both(&mut a, &mut b, |a, _| is_known(a, in_first) && is_known(a, in_second));
    a.close(PEER);
    b.close(PEER);
    assert_eq!(a.resolve(PEER, in_first), Err(PostError::NotOpen { peer: PEER }.into()));
    let withdrawal = arena.withdraw(second).unwrap();
    b.poll(|_, _| ()).unwrap();
    assert!(withdrawal.is_released(), "no peer has the key");

    for broker in [&mut a, &mut b] {
        broker.poll(|_, _| ()).unwrap();
    }
    connect((&mut a, PEER), (&mut b, PEER));
    assert!(!is_known(&a, in_first));
    poll_both(&mut a, &mut b, |a, _| is_known(a, in_first));
    assert!(!is_known(&a, in_second));
}

#[test]
fn keys_of_many_segments_fit_small_rings() {
    let config = BrokerConfig { send_slots: 1, recv_slots: 1, slot_size: 32, ..small() };
    let (mut a, mut b, domain) = pair(config);
    let arena = arena(&domain);
    let ids: Vec<u32> = (0..20).map(|_| arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap().id).collect();
    let ptrs: Vec<RemotePtr> = ids.iter().map(|id| arena.remote_ptr(*id, 0..8).unwrap()).collect();
    b.publish(&arena).unwrap();
    poll_both(&mut a, &mut b, |a, _| ptrs.iter().all(|ptr| is_known(a, *ptr)));
    let withdrawals: Vec<_> = ids.iter().step_by(2).map(|id| arena.withdraw(*id).unwrap()).collect();
    poll_both(&mut a, &mut b, |_, _| withdrawals.iter().all(|withdrawal| withdrawal.is_released()));
    for (index, ptr) in ptrs.iter().enumerate() {
        assert_eq!(is_known(&a, *ptr), index % 2 == 1);
    }
}

#[test]
fn keys_precede_the_messages_of_a_session() {
    let domain = domain();
    let mut a = Broker::builder(&domain).config(small()).epoch(10).create().unwrap();
    let mut b = Broker::builder(&domain).config(small()).epoch(20).create().unwrap();
    let arena = arena(&domain);
    arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap();
    b.publish(&arena).unwrap();
    let item = arena.allocate_copy(b"a value").unwrap();
    let (offer_of_a, offer_of_b) = (a.prepare(PEER).unwrap(), b.prepare(PEER).unwrap());
    // The queue pair of `a` is connected, but its session is opened later.
    a.peers[0].link.as_ref().unwrap().queue_pair.connect(&offer_of_b.endpoint).unwrap();
    b.establish(PEER, &offer_of_a).unwrap();
    b.send(PEER, &item.remote_ptr().to_bytes()).unwrap();
    let started = Instant::now();
    while a.peers[0].early_events.is_empty() {
        b.poll(|_, _| ()).unwrap();
        a.poll(|_, event| panic!("{event:?}")).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    a.open(PEER, &offer_of_b).unwrap();
    let mut log = Log::default();
    while log.completed.is_empty() {
        a.poll(|a, event| {
            if let Event::Message { bytes, .. } = event {
                let ptr = RemotePtr::from_bytes(bytes).unwrap();
                let local = a.protection_domain().allocate_buffer(ptr.len as usize).unwrap();
                a.post_read(PEER, local, ptr).unwrap();
            } else {
                log.record(event);
            }
        })
        .unwrap();
        b.poll(|_, _| ()).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    assert_eq!(&log.take_buffer()[..], b"a value");
}

#[test]
fn the_key_of_a_new_segment_precedes_the_next_message() {
    // Each message uses the only slot and the only credit.
    let config = BrokerConfig { send_slots: 1, recv_slots: 1, slot_size: 32, ..small() };
    let (mut a, mut b, domain) = pair(config);
    let arena = arena(&domain);
    b.publish(&arena).unwrap();
    let started = Instant::now();
    for _ in 0..5 {
        let id = arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap().id;
        let ptr = arena.remote_ptr(id, 0..8).unwrap();
        let (mut is_sent, mut is_received) = (false, false);
        while !is_received {
            is_sent = is_sent || b.send(PEER, &ptr.to_bytes()).is_ok();
            b.poll(|_, _| ()).unwrap();
            a.poll(|a, event| {
                if let Event::Message { bytes, .. } = event {
                    let ptr = RemotePtr::from_bytes(bytes).unwrap();
                    assert!(a.resolve(PEER, ptr).is_ok(), "the key precedes the pointer");
                    is_received = true;
                }
            })
            .unwrap();
            assert!(started.elapsed() < TEST_DEADLINE, "no progress");
        }
    }
}

#[test]
fn changes_of_segments_have_events() {
    let (mut a, mut b, domain) = pair(small());
    let (mut log_a, mut log_b) = (Log::default(), Log::default());
    let arena = arena(&domain);
    let id = arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap().id;
    let ptr = arena.remote_ptr(id, 0..8).unwrap();
    b.publish(&arena).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].segment_changes == 1);
    assert!(is_known(&a, ptr));
    // After a new session, a pointer from before is valid again once the keys have arrived.
    a.close(PEER);
    b.close(PEER);
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| {
        logs.iter().all(|log| log.ended.len() == 1)
    });
    connect((&mut a, PEER), (&mut b, PEER));
    assert!(!is_known(&a, ptr));
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].segment_changes == 2);
    assert!(is_known(&a, ptr));
    let _withdrawal = arena.withdraw(id).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].segment_changes == 3);
    assert!(!is_known(&a, ptr));
    assert_eq!(log_b.segment_changes, 0, "confirmations are no changes");
}

#[test]
fn invalid_control_messages_end_the_session() {
    let header = |kind: u8| [kind, 0, 0, 0, 1, 0, 0, 0];
    let addition = |id: u32, addr: u64, len: u64| {
        [&header(1)[..], &id.to_le_bytes(), &[0; 4], &addr.to_le_bytes(), &len.to_le_bytes()].concat()
    };
    let messages = [
        vec![],
        vec![0; 7],
        header(1).to_vec(),
        [&header(1)[..], &[0; 23]].concat(),
        [&header(2)[..], &[0; 4]].concat(), // a segment that was never announced
        [&header(3)[..], &[0; 4]].concat(),
        [&header(4)[..], &[0; 4]].concat(),
        addition(1, u64::MAX, 1),
        [addition(1, 0, 8), addition(1, 0, 8)[8..].to_vec()].concat(),
    ];
    for message in messages {
        let (mut a, mut b, _domain) = pair(small());
        let mut slot = a.allocate_send_buf(PEER).unwrap();
        slot.write(&message).unwrap();
        a.post_control(slot).unwrap();
        let (mut log_a, mut log_b) = (Log::default(), Log::default());
        poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| !logs[1].ended.is_empty());
        assert!(log_b.messages.is_empty(), "the application sees no control message");
        assert!(matches!(log_b.ended[0].2, EndReason::ProtocolViolation { .. }), "{:?}", log_b.ended);
    }
}

#[test]
fn unsuitable_arenas_are_refused() {
    let (mut a, mut b, domain) = pair(small());
    let refused = a.publish(&arena(&domain)).unwrap_err();
    assert!(matches!(refused, BrokerError::ArenaEpochMismatch { arena: 20, broker: 10 }), "{refused:?}");
    let foreign = super::tests::domain();
    let refused = b.publish(&arena(&foreign)).unwrap_err();
    assert!(matches!(refused, BrokerError::ArenaNotRegistered { .. }), "{refused:?}");
    b.publish(&arena(&domain)).unwrap();
    assert!(matches!(b.publish(&arena(&domain)), Err(BrokerError::AlreadyPublished)));
    let config = BrokerConfig { slot_size: 31, ..small() };
    let mut small = Broker::builder(&domain).config(config).epoch(20).create().unwrap();
    let refused = small.publish(&arena(&domain)).unwrap_err();
    assert!(matches!(refused, BrokerError::Config(ConfigError::SlotTooSmall { size: 31, min: 32 })));
    // A range needs no published arena, but is not checked.
    let remote = RemoteRange { epoch: 20, memory: RemoteMemory { addr: 0, rkey: 0, len: 8 } };
    assert_eq!(RemoteTarget::from(remote), RemoteTarget::Range(remote));
}

#[test]
fn a_sleeping_broker_announces_new_segments() {
    let (mut a, mut b, domain) = pair(BrokerConfig { keepalive: None, ..small() });
    let arena = arena(&domain);
    b.publish(&arena).unwrap();
    poll_both(&mut a, &mut b, |_, b| b.is_open(PEER));
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Acquire) {
                b.wait(TEST_DEADLINE).unwrap();
                b.poll(|_, _| ()).unwrap();
            }
        });
        for _ in 0..10 {
            // The other thread usually sleeps by now. The test holds if it doesn't.
            std::thread::sleep(Duration::from_millis(2));
            let id = arena.allocate_segment(SEGMENT_SIZE, ACCESS).unwrap().id;
            let ptr = arena.remote_ptr(id, 0..8).unwrap();
            let started = Instant::now();
            while !is_known(&a, ptr) {
                a.poll(|_, _| ()).unwrap();
                assert!(started.elapsed() < TEST_DEADLINE);
            }
        }
        is_done.store(true, std::sync::atomic::Ordering::Release);
        // Wakes the other thread, whether it sleeps or not.
        a.send(PEER, b"done").unwrap();
        a.flush_all();
    });
}
