//! Rules of the broker, with a driver that collects the broker's requests.

use std::collections::VecDeque;
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::types::{
    CompletedOperation, Completion, Failure, Qpn, RemoteMemory, Segment, SendFlags, SendOperation, Status,
    Success,
};

use super::*;
use crate::credits;
use crate::{LocalMemory, Post, PostError, RemoteRange, Transfer, TransferOperation};

const P: PeerId = PeerId(0);

fn config() -> BrokerConfig {
    BrokerConfig {
        send_slots: 4,
        recv_slots: 4,
        slot_size: 64,
        queue_depth: 8,
        send_queue_depth: 8,
        doorbell_batch: 4,
        signal_interval: 4,
        keepalive: None,
    }
}

fn completion(wr_id: u64, operation: CompletedOperation, length: u32) -> Completion {
    Completion { wr_id, qpn: Qpn::GSI, outcome: Ok(Success { operation, length }) }
}

fn failure(wr_id: u64, status: Status) -> Completion {
    Completion { wr_id, qpn: Qpn::GSI, outcome: Err(Failure { status, vendor_error: 0 }) }
}

fn segment(length: u32) -> Segment {
    Segment { addr: 0x1000, length, lkey: 7 }
}

fn remote(epoch: u64, len: u64) -> RemoteRange {
    RemoteRange { epoch, memory: RemoteMemory { addr: 0x8000, rkey: 9, len } }
}

/// A broker, and the requests that it posted.
struct Driver {
    broker: Broker,
    receives: VecDeque<RecvPost>,
    lists: Vec<Vec<SendPost>>,
    closed: Vec<PeerId>,
}

impl Driver {
    /// Opens a session with one peer, which grants four credits.
    fn open(config: BrokerConfig) -> Driver {
        let mut driver = Driver {
            broker: Broker::new(config, 2).unwrap(),
            receives: VecDeque::new(),
            lists: Vec::new(),
            closed: Vec::new(),
        };
        driver.prepare();
        driver.broker.establish(P, 1, 4, Time::ZERO).unwrap();
        driver.drain();
        driver
    }

    fn prepare(&mut self) {
        self.broker.prepare(P).unwrap();
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(post) = self.broker.poll_post() {
            match post {
                Post::Receives { requests, .. } => self.receives.extend(requests),
                Post::Sends { requests, .. } => self.lists.push(requests.to_vec()),
                Post::Close { peer } => self.closed.push(peer),
            }
        }
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.broker.poll_event()).collect()
    }

    /// Delivers a message of the peer, and returns its slot.
    fn deliver(&mut self, immediate: u32) -> Option<RecvSlot> {
        let recv = self.receives.pop_front().expect("a receive is posted");
        let operation = CompletedOperation::Recv {
            immediate: Some(immediate),
            invalidated: None,
            source: None,
            has_grh: false,
        };
        self.broker.handle_completion(&completion(recv.wr_id, operation, 5));
        match self.broker.poll_event()? {
            Event::Message { slot, .. } => Some(slot),
            other => panic!("{other:?}"),
        }
    }

    /// Completes the signaled requests of all lists.
    fn complete_all(&mut self) {
        for post in std::mem::take(&mut self.lists).into_iter().flatten() {
            if post.flags.contains(SendFlags::SIGNALED) {
                self.broker.handle_completion(&completion(post.wr_id, CompletedOperation::Send, 0));
            }
        }
    }
}

#[test]
fn requests_wait_for_a_batch_or_a_flush() {
    let mut driver = Driver::open(BrokerConfig { send_slots: 8, ..config() });
    for expected in [0, 0, 0, 1] {
        driver.broker.post_read(P, segment(8), remote(1, 8)).unwrap();
        driver.drain();
        assert_eq!(driver.lists.len(), expected);
    }
    assert_eq!(driver.lists[0].len(), 4);
    // One completion for four tickets.
    let signaled = driver.lists[0].iter().map(|post| post.flags.contains(SendFlags::SIGNALED));
    assert_eq!(signaled.collect::<Vec<_>>(), [false, false, false, true]);
    driver.complete_all();
    let tickets = driver.events().into_iter().map(|event| match event {
        Event::Completed { ticket, result: Ok(()), .. } => ticket.number(),
        other => panic!("{other:?}"),
    });
    assert_eq!(tickets.collect::<Vec<_>>(), [0, 1, 2, 3]);
    driver.broker.post_write(P, segment(8), remote(1, 8)).unwrap();
    driver.broker.flush(PeerId(1));
    driver.drain();
    assert!(driver.lists.is_empty());
    driver.broker.flush_all();
    driver.drain();
    assert_eq!(driver.lists.len(), 1);
    assert_eq!(driver.lists[0][0].local, LocalMemory::Segment(segment(8)));
}

#[test]
fn control_messages_are_distinguished_from_messages() {
    let mut driver = Driver::open(config());
    for is_control in [false, true] {
        let slot = driver.broker.allocate_send_buf(P).unwrap();
        let post = if is_control { Broker::post_control } else { Broker::post_send };
        post(&mut driver.broker, slot, 5).unwrap();
    }
    driver.broker.flush_all();
    driver.drain();
    let immediates = driver.lists[0].iter().map(|post| match post.operation {
        SendOperation::SendWithImm(immediate) => immediate,
        other => panic!("{other:?}"),
    });
    let immediates: Vec<u32> = immediates.collect();
    assert_eq!(immediates, [4, 1 << 30 | 4], "both carry the credits");
    // The peer sends the same.
    for immediate in immediates {
        let recv = driver.receives.pop_front().unwrap();
        let (immediate, invalidated) = (Some(immediate), None);
        let operation = CompletedOperation::Recv { immediate, invalidated, source: None, has_grh: false };
        driver.broker.handle_completion(&completion(recv.wr_id, operation, 5));
    }
    let events = driver.events();
    assert!(matches!(events[..], [Event::Message { length: 5, .. }, Event::Control { length: 5, .. }]));
}

#[test]
fn a_flush_posts_the_messages_of_a_ring_smaller_than_the_batch() {
    let config = BrokerConfig { send_slots: 1, doorbell_batch: 16, ..config() };
    let mut driver = Driver::open(config);
    for _ in 0..4 {
        let slot = driver.broker.allocate_send_buf(P).unwrap();
        driver.broker.post_send(slot, 3).unwrap();
        assert_eq!(driver.broker.allocate_send_buf(P), Err(PostError::WouldBlock { peer: P }));
        driver.broker.flush_all();
        driver.drain();
        driver.complete_all();
    }
}

#[test]
fn messages_stop_without_credits_and_continue_with_them() {
    let mut driver = Driver::open(config());
    for index in 0..4 {
        let slot = driver.broker.allocate_send_buf(P).unwrap();
        driver.broker.post_send(slot, index).unwrap();
    }
    driver.drain();
    driver.complete_all();
    assert_eq!(driver.broker.allocate_send_buf(P), Err(PostError::WouldBlock { peer: P }));
    let with_imm = driver.broker.post_write_with_imm(P, segment(8), remote(1, 8), 1);
    assert_eq!(with_imm, Err(PostError::WouldBlock { peer: P }));
    // A transfer needs no credit.
    driver.broker.post_write(P, segment(8), remote(1, 8)).unwrap();
    assert_eq!(driver.events(), []);
    // A credit message raises the count to 5.
    let recv = driver.receives.pop_front().unwrap();
    let operation = CompletedOperation::Recv {
        immediate: Some(credits_of(5)),
        invalidated: None,
        source: None,
        has_grh: false,
    };
    driver.broker.handle_completion(&completion(recv.wr_id, operation, 0));
    assert_eq!(driver.events(), [Event::Unblocked { peer: P }]);
    let slot = driver.broker.allocate_send_buf(P).unwrap();
    assert_eq!(driver.broker.allocate_send_buf(P), Err(PostError::WouldBlock { peer: P }));
    driver.broker.discard(slot);
    assert_eq!(driver.events(), [Event::Unblocked { peer: P }]);
    // The receive of the credit message is posted again, without a credit for the peer.
    driver.broker.flush_all();
    driver.drain();
    assert_eq!(driver.receives.len(), 7);
}

fn credits_of(count: u32) -> u32 {
    crate::credits::encode(count, true)
}

#[test]
fn released_messages_are_announced_by_messages_or_by_credit_messages() {
    let mut driver = Driver::open(config());
    let first = driver.deliver(4).unwrap();
    driver.broker.release(first);
    driver.broker.flush_all();
    driver.drain();
    // One of four credits is below the threshold of a credit message.
    assert!(driver.lists.is_empty());
    let second = driver.deliver(4).unwrap();
    driver.broker.release(second);
    driver.broker.flush_all();
    driver.drain();
    assert_eq!(driver.lists.pop().unwrap()[0].operation, SendOperation::SendWithImm(credits_of(6)));
    // A message carries the count instead.
    for _ in 0..2 {
        let slot = driver.deliver(4).unwrap();
        driver.broker.release(slot);
    }
    let slot = driver.broker.allocate_send_buf(P).unwrap();
    driver.broker.post_send(slot, 1).unwrap();
    driver.broker.flush_all();
    driver.drain();
    let list = driver.lists.pop().unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].operation, SendOperation::SendWithImm(8));
}

#[test]
fn a_peer_that_uses_its_last_credit_gets_the_earlier_grants() {
    let mut driver = Driver::open(config());
    let first = driver.deliver(4).unwrap();
    driver.broker.release(first);
    driver.broker.flush_all();
    driver.drain();
    assert!(driver.lists.is_empty());
    // The application holds the other three messages.
    let _held: Vec<_> = (0..3).map(|_| driver.deliver(4).unwrap()).collect();
    driver.broker.flush_all();
    driver.drain();
    assert_eq!(driver.lists.concat()[0].operation, SendOperation::SendWithImm(credits_of(5)));
}

#[test]
fn an_older_run_replaces_a_session_only_if_the_newer_run_is_unconfirmed_or_dead() {
    let mut driver = Driver::open(config());
    // The peer has shown nothing but its offer, whose epoch can be any number.
    assert_eq!(driver.broker.check_epoch(P, 0), Ok(()));
    let held = driver.deliver(4).unwrap();
    let stale = Err(SessionError::StaleEpoch { peer: P, newest: 1, requested: 0 });
    assert_eq!(driver.broker.check_epoch(P, 0), stale);
    assert_eq!((driver.broker.check_epoch(P, 1), driver.broker.check_epoch(P, 2)), (Ok(()), Ok(())));
    // The newer run is probed once, although the session has no keepalive.
    assert_eq!(driver.broker.check_epoch(P, 0), stale);
    driver.drain();
    let [probe] = driver.lists.pop().unwrap()[..] else { panic!("one probe") };
    assert!(matches!(probe.operation, SendOperation::Write(_)) && driver.lists.is_empty());
    driver.broker.handle_completion(&failure(probe.wr_id, Status::RetryExceeded));
    assert_eq!(driver.broker.check_epoch(P, 0), Ok(()));
    driver.drain();
    driver.broker.handle_closed(P).unwrap();
    driver.broker.release(held);
    driver.prepare();
    driver.broker.establish(P, 0, 4, Time::ZERO).unwrap();
    assert_eq!(driver.broker.epoch(P), Some(0));
    // A request that was acknowledged confirms a session, too.
    driver.broker.post_read(P, segment(8), remote(0, 8)).unwrap();
    driver.broker.flush_all();
    driver.drain();
    driver.complete_all();
    assert_eq!(driver.broker.check_epoch(P, 0), Ok(()));
    let error = SessionError::UnknownPeer { peer: PeerId(2) };
    assert_eq!(driver.broker.check_epoch(PeerId(2), 0), Err(error));
}

#[test]
fn immediate_data_keeps_its_credit_until_it_is_released() {
    let mut driver = Driver::open(config());
    let mut slots = Vec::new();
    for number in 0..4 {
        let recv = driver.receives.pop_front().unwrap();
        let operation = CompletedOperation::RecvWrite { immediate: number };
        driver.broker.handle_completion(&completion(recv.wr_id, operation, 0));
        match driver.broker.poll_event() {
            Some(Event::Immediate { slot, immediate, .. }) if immediate == number => slots.push(slot),
            other => panic!("{other:?}"),
        }
    }
    driver.broker.flush_all();
    driver.drain();
    assert_eq!((driver.receives.len(), driver.lists.len()), (3, 0), "the reserved receives, and no credits");
    driver.broker.release(slots.pop().unwrap());
    driver.broker.flush_all();
    driver.drain();
    assert_eq!(driver.receives.len(), 4);
    let [credit] = driver.lists[0][..] else { panic!("a credit message") };
    assert_eq!(credit.operation, SendOperation::SendWithImm(credits::encode(5, true)));
    // A slot that is held when the session ends reduces the credits of the next one.
    driver.broker.close(P);
    driver.drain();
    driver.broker.handle_closed(P).unwrap();
    assert_eq!(driver.broker.prepare(P), Ok(1));
}

#[test]
fn a_stale_epoch_is_refused_before_posting() {
    let mut driver = Driver::open(config());
    let refused = driver.broker.post_read(P, segment(8), remote(0, 8));
    assert_eq!(refused, Err(PostError::StaleEpoch { peer: P, current: 1, requested: 0 }));
    let good = Transfer { operation: TransferOperation::Write, local: segment(8), remote: remote(1, 8) };
    let bad = Transfer { remote: remote(2, 8), ..good };
    assert!(driver.broker.post_batch(P, &[good, bad]).is_err());
    driver.broker.flush_all();
    driver.drain();
    assert!(driver.lists.is_empty());
}

#[test]
fn invalid_transfers_are_refused() {
    let mut driver = Driver::open(config());
    let broker = &mut driver.broker;
    let out_of_bounds = broker.post_write(P, segment(9), remote(1, 8));
    assert_eq!(out_of_bounds, Err(PostError::OutOfBounds { requested: 9, size: 8 }));
    assert_eq!(broker.post_fetch_add(P, segment(4), remote(1, 8), 1), Err(PostError::InvalidAtomic));
    assert_eq!(broker.post_batch(P, &[]), Err(PostError::EmptyBatch));
    let write = Transfer { operation: TransferOperation::Write, local: segment(8), remote: remote(1, 8) };
    assert_eq!(broker.post_batch(P, &[write; 9]), Err(PostError::BatchTooLong { len: 9, max: 8 }));
    let slot = broker.allocate_send_buf(P).unwrap();
    assert_eq!(broker.post_send(slot, 65), Err(PostError::MessageTooLong { len: 65, max: 64 }));
    assert_eq!(broker.allocate_send_buf(PeerId(1)), Err(PostError::NotOpen { peer: PeerId(1) }));
    assert_eq!(broker.allocate_send_buf(PeerId(2)), Err(PostError::NotOpen { peer: PeerId(2) }));
    for _ in 0..4 {
        let _ = broker.allocate_send_buf(P).unwrap();
    }
}

#[test]
fn a_failure_ends_the_session_and_every_ticket_after_the_queue_pair_is_destroyed() {
    let mut driver = Driver::open(config());
    let tickets: Vec<_> =
        (0..6).map(|_| driver.broker.post_read(P, segment(8), remote(1, 8)).unwrap()).collect();
    driver.drain();
    let list = driver.lists.pop().unwrap();
    // The first request is unsignaled, and succeeded. The second one fails, and flushes the others.
    driver.broker.handle_completion(&failure(list[1].wr_id, Status::RetryExceeded));
    driver.broker.handle_completion(&failure(list[2].wr_id, Status::Flushed));
    let ok = |ticket| Event::Completed { peer: P, ticket, result: Ok(()) };
    assert_eq!(driver.events(), [ok(tickets[0])]);
    assert_eq!(driver.broker.post_read(P, segment(8), remote(1, 8)), Err(PostError::NotOpen { peer: P }));
    driver.drain();
    assert_eq!(driver.closed, [P]);
    assert_eq!(driver.events(), []);
    driver.broker.handle_closed(P).unwrap();
    let reason = EndReason::RequestFailed { status: Status::RetryExceeded };
    let result = Err(TicketError { peer: P, reason });
    let mut expected: Vec<_> =
        tickets[1..].iter().map(|ticket| Event::Completed { peer: P, ticket: *ticket, result }).collect();
    expected.push(Event::SessionEnded { peer: P, epoch: Some(1), reason });
    assert_eq!(driver.events(), expected);
    assert_eq!(driver.broker.phase(P), Phase::Closed);
}

#[test]
fn a_later_session_ignores_completions_and_slots_of_an_earlier_one() {
    let mut driver = Driver::open(config());
    let slot = driver.broker.allocate_send_buf(P).unwrap();
    driver.broker.post_read(P, segment(8), remote(1, 8)).unwrap();
    let held = driver.deliver(4).unwrap();
    driver.broker.flush_all();
    driver.drain();
    let old = driver.lists.pop().unwrap()[0];
    driver.broker.close(P);
    driver.broker.close(P);
    driver.drain();
    driver.broker.handle_closed(P).unwrap();
    assert!(driver.broker.handle_closed(P).is_err());
    driver.events();
    driver.receives.clear();
    // The caller holds one receive slot, so there is a credit less.
    assert_eq!(driver.broker.prepare(P), Ok(3));
    driver.drain();
    assert_eq!(driver.receives.len(), 6);
    driver.broker.establish(P, 2, 4, Time::ZERO).unwrap();
    let ticket = driver.broker.post_read(P, segment(8), remote(2, 8)).unwrap();
    driver.broker.flush_all();
    driver.drain();
    driver.broker.handle_completion(&completion(old.wr_id, CompletedOperation::Read, 8));
    driver.broker.handle_completion(&failure(old.wr_id, Status::Flushed));
    assert_eq!(driver.events(), []);
    assert_eq!(driver.broker.post_send(slot, 1), Err(PostError::NotOpen { peer: P }));
    driver.complete_all();
    assert_eq!(driver.events(), [Event::Completed { peer: P, ticket, result: Ok(()) }]);
    driver.broker.release(held);
    driver.broker.flush_all();
    driver.drain();
    assert_eq!(driver.receives.len(), 7);
    // All four send slots are free again.
    for _ in 0..4 {
        let _ = driver.broker.allocate_send_buf(P).unwrap();
    }
}

#[test]
fn a_protocol_violation_ends_the_session() {
    let cases: [(CompletedOperation, &str); 3] = [
        (
            CompletedOperation::Recv { immediate: None, invalidated: None, source: None, has_grh: false },
            "message without credits",
        ),
        (
            CompletedOperation::Recv { immediate: Some(3), invalidated: None, source: None, has_grh: false },
            "invalid number of credits",
        ),
        (CompletedOperation::Read, "message without credits"),
    ];
    for (operation, violation) in cases {
        let mut driver = Driver::open(config());
        let recv = driver.receives.pop_front().unwrap();
        driver.broker.handle_completion(&completion(recv.wr_id, operation, 5));
        driver.drain();
        assert_eq!(driver.closed, [P]);
        driver.broker.handle_closed(P).unwrap();
        let reason = EndReason::ProtocolViolation { violation };
        let ended = Event::SessionEnded { peer: P, epoch: Some(1), reason };
        assert_eq!(driver.events().last(), Some(&ended));
    }
    let mut driver = Driver::open(config());
    let _held: Vec<_> = (0..4).map(|_| driver.deliver(4)).collect();
    // The fifth message uses a receive that is reserved for credit messages.
    assert_eq!(driver.deliver(4), None);
    assert_eq!(driver.broker.phase(P), Phase::Closing);
}

#[test]
fn an_idle_session_is_probed_once_per_interval() {
    let interval = Duration::from_secs(1);
    let mut driver = Driver::open(BrokerConfig { keepalive: Some(interval), ..config() });
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    assert_eq!(driver.broker.poll_timeout(), Some(at(1)));
    driver.broker.handle_timeout(at(1));
    driver.drain();
    assert!(driver.lists.is_empty(), "the session was active");
    driver.broker.handle_timeout(at(2));
    driver.drain();
    let probe = driver.lists[0][0];
    assert!(probe.flags.contains(SendFlags::SIGNALED));
    assert_eq!(probe.local, LocalMemory::None);
    driver.broker.handle_timeout(at(3));
    driver.drain();
    assert_eq!(driver.lists.len(), 1, "one probe at a time");
    driver.broker.handle_completion(&failure(probe.wr_id, Status::RetryExceeded));
    driver.drain();
    driver.broker.handle_closed(P).unwrap();
    driver.broker.handle_timeout(at(4));
    assert_eq!(driver.broker.poll_timeout(), None);
}

#[test]
fn the_send_queue_never_overflows() {
    let mut driver = Driver::open(BrokerConfig { queue_depth: 8, send_queue_depth: 2, ..config() });
    for _ in 0..8 {
        driver.broker.post_read(P, segment(8), remote(1, 8)).unwrap();
    }
    assert_eq!(driver.broker.post_read(P, segment(8), remote(1, 8)), Err(PostError::WouldBlock { peer: P }));
    let mut completed = 0;
    for _ in 0..4 {
        driver.drain();
        assert_eq!(driver.lists.concat().len(), 2);
        driver.complete_all();
        completed += driver.events().iter().filter(|event| matches!(event, Event::Completed { .. })).count();
    }
    assert_eq!(completed, 8);
}

#[test]
fn a_leave_message_follows_all_requests_and_ends_the_session_when_it_completes() {
    let mut driver = Driver::open(BrokerConfig { send_queue_depth: 2, ..config() });
    let slot = driver.broker.allocate_send_buf(P).unwrap();
    driver.broker.post_send(slot, 5).unwrap();
    let unposted = driver.broker.allocate_send_buf(P).unwrap();
    let tickets = [(); 2].map(|()| driver.broker.post_read(P, segment(8), remote(1, 8)).unwrap());
    driver.broker.leave(P);
    assert_eq!((driver.broker.phase(P), driver.broker.epoch(P)), (Phase::Leaving, None));
    assert_eq!(driver.broker.post_send(unposted, 5), Err(PostError::NotOpen { peer: P }));
    assert_eq!(driver.broker.allocate_send_buf(P), Err(PostError::NotOpen { peer: P }));
    let mut posts = Vec::new();
    for count in [2, 2] {
        driver.drain();
        assert_eq!(driver.lists.concat().len(), count, "the send queue limits the requests");
        posts.extend(driver.lists.concat());
        driver.complete_all();
    }
    let leave = posts[3];
    assert_eq!(leave.local, LocalMemory::None);
    assert!(leave.flags.contains(SendFlags::SIGNALED));
    assert!(matches!(leave.operation, SendOperation::SendWithImm(immediate) if immediate >> 30 == 3));
    driver.drain();
    assert_eq!((driver.lists.len(), &driver.closed[..]), (0, &[P][..]));
    driver.broker.handle_closed(P).unwrap();
    let completed = tickets.map(|ticket| Event::Completed { peer: P, ticket, result: Ok(()) });
    let ended = Event::SessionEnded { peer: P, epoch: Some(1), reason: EndReason::Closed };
    assert_eq!(driver.events(), Vec::from_iter(completed.into_iter().chain([ended])));
    // The peer's slots are free for the next session.
    assert_eq!(driver.broker.prepare(P), Ok(4));
    driver.broker.establish(P, 2, 4, Time::ZERO).unwrap();
    for _ in 0..4 {
        let slot = driver.broker.allocate_send_buf(P).unwrap();
        driver.broker.post_send(slot, 1).unwrap();
    }
}

#[test]
fn a_leave_message_of_the_peer_ends_the_session_after_its_messages() {
    let mut driver = Driver::open(config());
    let ticket = driver.broker.post_read(P, segment(8), remote(1, 8)).unwrap();
    driver.broker.flush_all();
    driver.drain();
    let slot = driver.deliver(4).unwrap();
    assert_eq!(driver.deliver(credits::LEAVE_MESSAGE | 4), None);
    driver.drain();
    assert_eq!(driver.closed, [P]);
    driver.broker.handle_closed(P).unwrap();
    let error = TicketError { peer: P, reason: EndReason::Left };
    assert_eq!(
        driver.events(),
        [
            Event::Completed { peer: P, ticket, result: Err(error) },
            Event::SessionEnded { peer: P, epoch: Some(1), reason: EndReason::Left },
        ]
    );
    driver.broker.release(slot);
    // The peer may return.
    driver.prepare();
    driver.broker.establish(P, 2, 4, Time::ZERO).unwrap();
    assert!(driver.broker.allocate_send_buf(P).is_ok());
}

#[test]
fn leaving_without_an_open_session_closes_it() {
    let mut driver = Driver::open(config());
    driver.broker.leave(PeerId(1));
    driver.broker.leave(PeerId(7));
    assert_eq!(driver.broker.phase(PeerId(1)), Phase::Closed);
    driver.broker.prepare(PeerId(1)).unwrap();
    driver.broker.leave(PeerId(1));
    driver.broker.leave(PeerId(1));
    driver.drain();
    assert_eq!(driver.closed, [PeerId(1)]);
    // A peer that doesn't respond: the driver closes the session.
    driver.broker.leave(P);
    driver.drain();
    driver.broker.close(P);
    driver.drain();
    assert_eq!(driver.closed, [PeerId(1), P]);
}

#[test]
fn messages_allocate_no_memory() {
    let mut driver = Driver::open(config());
    let round = |driver: &mut Driver, count: u32| {
        let slot = driver.broker.allocate_send_buf(P).unwrap();
        driver.broker.post_send(slot, 1).unwrap();
        driver.broker.post_write(P, segment(8), remote(1, 8)).unwrap();
        let slot = driver.deliver(4 + count).unwrap();
        driver.broker.release(slot);
        driver.broker.flush_all();
        driver.drain();
        driver.complete_all();
        driver.events();
    };
    round(&mut driver, 0);
    let before = driver.broker.memory_use();
    for count in 1..10_000 {
        round(&mut driver, count);
    }
    assert_eq!(driver.broker.memory_use(), before);
}

#[test]
fn a_peer_without_a_session_needs_little_memory() {
    let broker = Broker::new(BrokerConfig::default(), 1000).unwrap();
    let MemoryUse { state_bytes, message_bytes } = broker.memory_use();
    assert!(state_bytes < 1000 * 256, "{state_bytes}");
    assert_eq!(message_bytes, 0);
    assert!(Broker::new(BrokerConfig::default(), 65_537).is_err());
}
