//! Calls on the software NIC.

use std::collections::HashMap;
use std::time::Instant;

use adverb_verbs::memory::RemoteMemory;
use adverb_verbs::{Access, SoftDevice};

use super::*;
use crate::{Arena, BrokerConfig, RemotePtr, RemoteRange};

/// The time after which a test that makes no progress fails.
pub(super) const TEST_DEADLINE: Duration = Duration::from_secs(60);
const PEER: PeerId = PeerId(0);

const ECHO: u16 = 1;
const KEEP: u16 = 2;
const DROP: u16 = 3;
const FORWARD: u16 = 4;
const RESOLVE: u16 = 5;

pub(super) fn config() -> BrokerConfig {
    BrokerConfig { send_slots: 8, recv_slots: 8, slot_size: 256, ..BrokerConfig::default() }
}

pub(super) fn brokers<const N: usize>(config: BrokerConfig) -> [Broker; N] {
    let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
    std::array::from_fn(|index| {
        Broker::builder(&domain).config(config).peer_count(N).epoch(index as u64 + 1).create().unwrap()
    })
}

pub(super) fn connect(a: &mut Rpc, to_b: PeerId, b: &mut Rpc, to_a: PeerId) {
    let offer_of_a = a.broker_mut().prepare(to_b).unwrap();
    let offer_of_b = b.broker_mut().prepare(to_a).unwrap();
    a.broker_mut().establish(to_b, &offer_of_b).unwrap();
    b.broker_mut().establish(to_a, &offer_of_a).unwrap();
}

/// Two connected members that have each other as peer 0. Both have received the event of the new session.
fn pair_with(config: BrokerConfig, rpc_config: RpcConfig) -> (TestMember, TestMember) {
    let [mut a, mut b] =
        brokers::<2>(config).map(|broker| TestMember::new(Rpc::new(broker, rpc_config).unwrap()));
    connect(&mut a.rpc, PEER, &mut b.rpc, PEER);
    poll_until(&mut [&mut a, &mut b], |members| members.iter().all(|member| member.opened.len() == 1));
    (a, b)
}

fn pair() -> (TestMember, TestMember) {
    pair_with(config(), RpcConfig::default())
}

/// A member that serves requests and keeps the results of its calls.
struct TestMember {
    rpc: Rpc,
    results: HashMap<CallId, Result<Vec<u8>, CallError>>,
    /// Tokens of requests to answer later, and their data.
    kept: Vec<(Reply, Vec<u8>)>,
    /// Tokens of requests that were forwarded, by the call.
    forwarded: HashMap<CallId, Reply>,
    opened: Vec<PeerId>,
    ended: Vec<PeerId>,
    timeouts: Vec<Option<Duration>>,
}

impl TestMember {
    fn new(rpc: Rpc) -> TestMember {
        TestMember {
            rpc,
            results: HashMap::new(),
            kept: Vec::new(),
            forwarded: HashMap::new(),
            opened: Vec::new(),
            ended: Vec::new(),
            timeouts: Vec::new(),
        }
    }

    fn poll(&mut self) -> usize {
        let TestMember { rpc, results, kept, forwarded, opened, ended, timeouts } = self;
        rpc.poll(|rpc, event| match event {
            RpcEvent::Request { method, bytes, timeout, reply, .. } => {
                timeouts.push(timeout);
                match method {
                    ECHO => rpc.reply(reply, bytes).unwrap(),
                    KEEP => kept.push((reply, bytes.to_vec())),
                    DROP => drop(reply),
                    // The first byte is the next member.
                    FORWARD => {
                        let (next, rest) = bytes.split_first().unwrap();
                        let call = rpc.call(PeerId(u16::from(*next)), ECHO, rest, None).unwrap();
                        forwarded.insert(call, reply);
                    }
                    // The reply tells whether the caller's pointer can be used.
                    RESOLVE => {
                        let ptr = RemotePtr::from_bytes(bytes).unwrap();
                        let is_known = rpc.broker().resolve(PEER, ptr).is_ok();
                        rpc.reply(reply, &[u8::from(is_known)]).unwrap();
                    }
                    _ => rpc.reject(reply, Failure::UnknownMethod),
                }
            }
            RpcEvent::CallEnded { call, result } => {
                let result = result.map(<[u8]>::to_vec);
                match forwarded.remove(&call) {
                    Some(reply) => rpc.reply(reply, &result.unwrap()).unwrap(),
                    None => assert_eq!(results.insert(call, result), None, "a call ends once"),
                }
            }
            RpcEvent::Broker(Event::SessionOpened { peer, .. }) => opened.push(peer),
            RpcEvent::Broker(Event::SessionEnded { peer, .. }) => ended.push(peer),
            RpcEvent::Broker(_) => {}
        })
        .unwrap()
    }

    /// Calls a method. On a busy machine, send slots may be in use a little longer than usual.
    fn call(&mut self, method: u16, bytes: &[u8]) -> CallId {
        let started = Instant::now();
        loop {
            match self.rpc.call(PEER, method, bytes, None) {
                Err(PostError::WouldBlock { .. }) => self.poll(),
                called => return called.unwrap(),
            };
            assert!(started.elapsed() < TEST_DEADLINE);
        }
    }
}

fn poll_until(members: &mut [&mut TestMember], mut is_done: impl FnMut(&mut [&mut TestMember]) -> bool) {
    let started = Instant::now();
    while !is_done(members) {
        members.iter_mut().for_each(|member| {
            member.poll();
        });
        let counters = || members.iter().map(|member| *member.rpc.counters()).collect::<Vec<_>>();
        assert!(started.elapsed() < TEST_DEADLINE, "no progress: {:?}", counters());
        std::thread::yield_now();
    }
}

#[test]
fn calls_are_answered_in_both_directions_with_rings_of_any_size() {
    for (send_slots, recv_slots, max_calls) in [(1, 1, 4), (2, 1, 1), (1, 3, 64), (8, 8, 64)] {
        let config = BrokerConfig { send_slots, recv_slots, send_queue_depth: 4, ..config() };
        let (mut a, mut b) = pair_with(config, RpcConfig { max_calls, max_requests: 64 });
        let count = 300u32;
        let mut sent: [HashMap<CallId, u32>; 2] = Default::default();
        let started = Instant::now();
        while a.results.len() < count as usize || b.results.len() < count as usize {
            for (member, sent) in [&mut a, &mut b].into_iter().zip(&mut sent) {
                while (sent.len() as u32) < count {
                    let number = sent.len() as u32;
                    match member.rpc.call(PEER, ECHO, &number.to_le_bytes(), None) {
                        Ok(call) => assert_eq!(sent.insert(call, number), None),
                        Err(PostError::WouldBlock { .. } | PostError::TooManyCalls { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(member.rpc.outstanding_call_count(PEER) <= usize::from(max_calls));
                member.poll();
            }
            assert!(started.elapsed() < TEST_DEADLINE, "{send_slots} and {recv_slots} slots: no progress");
        }
        for (member, sent) in [&a, &b].into_iter().zip(&sent) {
            for (call, number) in sent {
                assert_eq!(member.results[call].as_deref(), Ok(&number.to_le_bytes()[..]));
            }
            let counters = member.rpc.counters();
            assert_eq!((counters.answered_calls, counters.requests), (u64::from(count), u64::from(count)));
            assert_eq!((counters.late_replies, counters.duplicate_requests), (0, 0));
            assert!(member.ended.is_empty());
        }
    }
}

#[test]
fn requests_and_replies_share_messages() {
    // With one slot, only requests of the same message are accepted before the peer has received it.
    let small = BrokerConfig { send_slots: 1, recv_slots: 1, ..config() };
    let (mut a, mut b) = pair_with(small, RpcConfig::default());
    let data: Vec<Vec<u8>> = (0..6).map(|index| vec![index as u8; 3 * index]).collect();
    let calls: Vec<CallId> = data.iter().map(|bytes| a.rpc.call(PEER, ECHO, bytes, None).unwrap()).collect();
    let other = a.rpc.call(PEER, ECHO, &[0; 200], None);
    assert_eq!(other, Err(PostError::WouldBlock { peer: PEER }), "the message is full");
    poll_until(&mut [&mut a, &mut b], |members| members[0].results.len() == 6);
    for (call, bytes) in calls.iter().zip(&data) {
        assert_eq!(a.results[call].as_deref(), Ok(&bytes[..]));
    }

    // A cancellation follows its request.
    let (cancelled, other) = (a.call(KEEP, b""), a.call(ECHO, b"other"));
    assert!(a.rpc.cancel(cancelled));
    poll_until(&mut [&mut a, &mut b], |members| {
        members[0].results.contains_key(&other) && members[1].rpc.counters().cancelled_requests == 1
    });
    assert_eq!(b.rpc.counters().late_cancellations, 0);

    // Requests that share messages, and requests in slots of their own, arrive in the order of the calls.
    let (mut a, mut b) = pair();
    let calls: Vec<CallId> = (0..8u8)
        .map(|number| match number % 2 {
            0 => a.rpc.call(PEER, KEEP, &[number], None).unwrap(),
            _ => {
                let mut request = a.rpc.allocate_send_buf(PEER).unwrap();
                request.write(&[number]).unwrap();
                a.rpc.post_call(request, KEEP, None).unwrap()
            }
        })
        .collect();
    poll_until(&mut [&mut a, &mut b], |members| members[1].kept.len() == 8);
    assert!(b.kept.iter().enumerate().all(|(index, (_, bytes))| bytes[..] == [index as u8]));
    assert!(calls.iter().all(|call| a.rpc.is_outstanding(*call)));
}

#[test]
fn the_key_of_a_new_segment_precedes_the_next_request() {
    let (mut a, mut b) = pair();
    let domain = b.rpc.broker().protection_domain().clone();
    let arena = Arena::builder().member(1).epoch(2).slab_size(64 << 10).create(&[domain]).unwrap();
    b.rpc.broker_mut().publish(&arena).unwrap();
    for _ in 0..3 {
        // The message of the first request has room for the second.
        let (echo, segment) =
            (b.call(ECHO, b""), arena.allocate_segment(64 << 10, Access::REMOTE_READ).unwrap());
        let ptr = arena.remote_ptr(segment.id, 0..8).unwrap();
        let resolved = b.call(RESOLVE, &ptr.to_bytes());
        poll_until(&mut [&mut a, &mut b], |members| {
            [echo, resolved].iter().all(|call| members[1].results.contains_key(call))
        });
        assert_eq!(b.results[&resolved].as_deref(), Ok(&[1][..]), "the peer has no key");
    }
}

#[test]
fn a_full_batch_is_sent_without_a_flush() {
    let (mut a, mut b) = pair_with(BrokerConfig { doorbell_batch: 3, ..config() }, RpcConfig::default());
    for number in 0..3u8 {
        assert_eq!(b.rpc.pending_request_count(PEER), 0);
        a.call(KEEP, &[number]);
    }
    // Only the server polls.
    poll_until(&mut [&mut b], |members| members[0].kept.len() == 3);
}

#[test]
fn requests_of_an_open_message_end_with_the_session() {
    let small = BrokerConfig { send_slots: 1, recv_slots: 1, ..config() };
    let (mut a, mut b) = pair_with(small, RpcConfig::default());
    for round in 1..=3 {
        let call = a.call(KEEP, b"");
        a.rpc.broker_mut().close(PEER);
        b.rpc.broker_mut().close(PEER);
        poll_until(&mut [&mut a, &mut b], |members| members.iter().all(|member| member.ended.len() == round));
        assert_eq!(a.results[&call], Err(CallError::SessionEnded { peer: PEER, reason: EndReason::Closed }));
        connect(&mut a.rpc, PEER, &mut b.rpc, PEER);
        poll_until(&mut [&mut a, &mut b], |members| {
            members.iter().all(|member| member.opened.len() == round + 1)
        });
        // The only slot is free again.
        let echo = a.call(ECHO, b"new");
        poll_until(&mut [&mut a, &mut b], |members| members[0].results.contains_key(&echo));
    }
}

#[test]
fn a_handler_answers_later_and_in_any_order() {
    let (mut a, mut b) = pair();
    let calls = [b"first", b"other", b"third"].map(|bytes| a.call(KEEP, bytes));
    poll_until(&mut [&mut a, &mut b], |members| members[1].kept.len() == 3);
    assert_eq!(b.rpc.pending_request_count(PEER), 3);
    while let Some((reply, bytes)) = b.kept.pop() {
        assert!(b.rpc.is_pending(&reply));
        // The reply is written to the slot directly.
        let mut message = b.rpc.allocate_send_buf(PEER).unwrap();
        message.write(b"later ").unwrap();
        message.write(&bytes).unwrap();
        assert_eq!(&message[..6], b"later ");
        b.rpc.post_reply(reply, message).unwrap();
    }
    poll_until(&mut [&mut a, &mut b], |members| members[0].results.len() == 3);
    for (call, expected) in calls.iter().zip([b"later first", b"later other", b"later third"]) {
        assert_eq!(a.results[call].as_deref(), Ok(&expected[..]));
    }
    assert_eq!(b.rpc.pending_request_count(PEER), 0);
}

#[test]
fn calls_without_an_answer_fail() {
    let (mut a, mut b) = pair();
    let (dropped, unknown) = (a.call(DROP, b""), a.call(99, b""));
    poll_until(&mut [&mut a, &mut b], |members| members[0].results.len() == 2);
    assert_eq!(a.results[&dropped], Err(CallError::Failed { peer: PEER, source: Failure::NoReply }));
    assert_eq!(a.results[&unknown], Err(CallError::Failed { peer: PEER, source: Failure::UnknownMethod }));

    let rejected = a.call(KEEP, b"");
    poll_until(&mut [&mut a, &mut b], |members| members[1].kept.len() == 1);
    let (reply, _) = b.kept.pop().unwrap();
    // A reply that is too long returns the token.
    let RefusedReply { error, reply } = b.rpc.reply(reply, &[0; 241]).unwrap_err();
    assert_eq!(error, PostError::MessageTooLong { len: 241, max: 240 });
    b.rpc.reject(reply, Failure::Application(7));
    poll_until(&mut [&mut a, &mut b], |members| members[0].results.len() == 3);
    assert_eq!(a.results[&rejected], Err(CallError::Failed { peer: PEER, source: Failure::Application(7) }));
}

#[test]
fn an_expired_call_ends_and_its_request_with_it() {
    let (mut a, mut b) = pair();
    let timeout = Some(Duration::from_millis(20));
    let expired = a.rpc.call(PEER, KEEP, b"", timeout).unwrap();
    let without_timeout = a.call(KEEP, b"");
    assert!(a.rpc.timeout().is_some_and(|timeout| timeout <= Duration::from_millis(20)));
    poll_until(&mut [&mut a, &mut b], |members| !members[0].results.is_empty() && members[1].kept.len() == 2);
    assert_eq!(a.results[&expired], Err(CallError::TimedOut { peer: PEER }));
    assert_eq!(b.timeouts, [timeout, None], "the peer knows the timeout");
    assert!(a.rpc.is_outstanding(without_timeout) && !a.rpc.is_outstanding(expired));
    poll_until(&mut [&mut a, &mut b], |members| members[1].rpc.pending_request_count(PEER) == 1);
    let (reply, _) = b.kept.remove(0);
    assert!(!b.rpc.is_pending(&reply));
    let refused = b.rpc.reply(reply, b"too late").unwrap_err();
    assert_eq!(refused.error, PostError::RequestEnded { peer: PEER });
    drop(refused);
    let (reply, _) = b.kept.remove(0);
    b.rpc.reply(reply, b"in time").unwrap();
    poll_until(&mut [&mut a, &mut b], |members| members[0].results.len() == 2);
    assert_eq!(a.results[&without_timeout].as_deref(), Ok(&b"in time"[..]));
    assert_eq!((a.rpc.counters().expired_calls, a.rpc.counters().late_replies), (1, 0));
}

#[test]
fn a_waiting_thread_is_woken_when_a_call_expires() {
    let (mut a, _b) = pair_with(BrokerConfig { keepalive: None, ..config() }, RpcConfig::default());
    let started = Instant::now();
    let call = a.rpc.call(PEER, KEEP, b"", Some(Duration::from_millis(10))).unwrap();
    while a.results.is_empty() {
        assert!(a.rpc.wait(TEST_DEADLINE).unwrap());
        a.poll();
    }
    assert_eq!(a.results[&call], Err(CallError::TimedOut { peer: PEER }));
    assert!(started.elapsed() >= Duration::from_millis(10));
    assert!(!a.rpc.wait(Duration::from_millis(1)).unwrap());
}

#[test]
fn a_late_reply_is_dropped() {
    let (mut a, mut b) = pair();
    let call = a.call(KEEP, b"");
    poll_until(&mut [&mut a, &mut b], |members| members[1].kept.len() == 1);
    let (reply, _) = b.kept.pop().unwrap();
    b.rpc.reply(reply, b"reply").unwrap();
    b.rpc.flush_all();
    // The reply is in flight, or arrived but was not delivered.
    assert!(a.rpc.cancel(call) && !a.rpc.cancel(call));
    poll_until(&mut [&mut a, &mut b], |members| members[0].rpc.counters().late_replies == 1);
    let echo = a.call(ECHO, b"next");
    poll_until(&mut [&mut a, &mut b], |members| members[0].results.len() == 1);
    assert_eq!(a.results[&echo].as_deref(), Ok(&b"next"[..]));
    assert_eq!((a.rpc.counters().cancelled_calls, b.rpc.counters().late_cancellations), (1, 1));
}

#[test]
fn a_cancelled_call_has_no_event_and_frees_its_place() {
    let (mut a, mut b) = pair_with(config(), RpcConfig { max_calls: 1, max_requests: 1 });
    for round in 0..20u8 {
        let call = a.call(KEEP, &[round]);
        let refused = a.rpc.call(PEER, KEEP, b"", None).unwrap_err();
        assert_eq!(refused, PostError::TooManyCalls { peer: PEER, max: 1 });
        poll_until(&mut [&mut a, &mut b], |members| !members[1].kept.is_empty());
        assert!(a.rpc.cancel(call));
        a.rpc.flush_all();
        let echo = a.call(ECHO, &[round]);
        poll_until(&mut [&mut a, &mut b], |members| members[0].results.contains_key(&echo));
        let (reply, bytes) = b.kept.pop().unwrap();
        assert_eq!(bytes, [round]);
        assert!(!b.rpc.is_pending(&reply));
        assert!(!a.results.contains_key(&call));
    }
    assert_eq!((b.rpc.counters().cancelled_requests, b.rpc.counters().refused_requests), (20, 0));
}

#[test]
fn replies_wait_for_credits_and_none_is_lost() {
    // The caller doesn't poll, so it grants credits for two replies only.
    let config = BrokerConfig { send_slots: 16, recv_slots: 2, ..config() };
    let [a, b] = brokers::<2>(config);
    let mut a = TestMember::new(Rpc::new(a, RpcConfig::default()).unwrap());
    let mut b = TestMember::new(Rpc::new(b, RpcConfig::default()).unwrap());
    connect(&mut a.rpc, PEER, &mut b.rpc, PEER);
    poll_until(&mut [&mut a, &mut b], |members| members.iter().all(|member| member.opened.len() == 1));
    let mut calls = Vec::new();
    let started = Instant::now();
    while calls.len() < 20 {
        match a.rpc.call(PEER, KEEP, &[calls.len() as u8], None) {
            Ok(call) => calls.push(call),
            Err(PostError::WouldBlock { .. }) => {
                a.poll();
                b.poll();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    poll_until(&mut [&mut a, &mut b], |members| members[1].kept.len() == 20);
    // All requests are answered at once, with and without a slot.
    for (reply, bytes) in b.kept.drain(..) {
        b.rpc.reply(reply, &[bytes[0]; 200]).unwrap();
    }
    b.rpc.flush_all();
    assert!(b.rpc.is_blocked(PEER), "20 replies exceed two credits");
    assert!(matches!(b.rpc.call(PEER, ECHO, b"", None), Err(PostError::WouldBlock { .. })));
    // A queued reply is not sent if its call is cancelled first.
    assert!(a.rpc.cancel(calls[19]));
    poll_until(&mut [&mut a, &mut b], |members| members[0].results.len() == 19);
    for (number, call) in calls.iter().enumerate().take(19) {
        assert_eq!(a.results[call].as_deref(), Ok(&[number as u8; 200][..]));
    }
    // The peer that was refused can call again.
    let mut echo = None;
    poll_until(&mut [&mut a, &mut b], |members| {
        echo = echo.or_else(|| members[1].rpc.call(PEER, ECHO, b"again", None).ok());
        echo.is_some_and(|echo| members[1].results.contains_key(&echo))
    });
    assert!(a.ended.is_empty() && b.ended.is_empty());
}

#[test]
fn a_handler_calls_other_members() {
    let mut members = brokers::<3>(config()).map(|broker| Rpc::new(broker, RpcConfig::default()).unwrap());
    let ids = [PeerId(0), PeerId(1), PeerId(2)];
    let [a, b, c] = &mut members;
    connect(a, ids[1], b, ids[0]);
    connect(b, ids[2], c, ids[1]);
    let [mut a, mut b, mut c] = members.map(TestMember::new);
    poll_until(&mut [&mut a, &mut b, &mut c], |members| members[1].opened.len() == 2);
    assert!(matches!(a.rpc.call(ids[2], ECHO, b"", None), Err(PostError::NotOpen { .. })));

    // The request goes to c by way of b, which answers when c has answered.
    let calls: Vec<CallId> =
        (0..5u8).map(|number| a.rpc.call(ids[1], FORWARD, &[2, number], None).unwrap()).collect();
    poll_until(&mut [&mut a, &mut b, &mut c], |members| members[0].results.len() == 5);
    for (number, call) in (0..).zip(&calls) {
        assert_eq!(a.results[call].as_deref(), Ok(&[number][..]));
    }
    assert_eq!((b.rpc.counters().requests, b.rpc.counters().answered_calls), (5, 5));
    assert_eq!(c.rpc.counters().requests, 5);
}

#[test]
fn a_token_dropped_in_another_thread_wakes_the_server() {
    let (mut a, mut b) = pair();
    for _ in 0..20 {
        let call = a.call(KEEP, b"");
        poll_until(&mut [&mut a, &mut b], |members| members[1].kept.len() == 1);
        let (reply, _) = b.kept.pop().unwrap();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                // Only the dropped token and the end of the test wake this thread.
                while !is_done.load(std::sync::atomic::Ordering::Acquire) {
                    b.rpc.wait(TEST_DEADLINE).unwrap();
                    b.poll();
                }
            });
            // The server usually sleeps by now. The test holds if it doesn't.
            std::thread::sleep(Duration::from_millis(2));
            drop(reply);
            let started = Instant::now();
            while !a.results.contains_key(&call) {
                a.rpc.wait(Duration::from_millis(100)).unwrap();
                a.poll();
                assert!(started.elapsed() < TEST_DEADLINE);
            }
            is_done.store(true, std::sync::atomic::Ordering::Release);
            // The request wakes the server.
            let last = a.call(ECHO, b"");
            while !server.is_finished() && !a.results.contains_key(&last) {
                a.rpc.wait(Duration::from_millis(10)).unwrap();
                a.poll();
            }
        });
        assert_eq!(a.results[&call], Err(CallError::Failed { peer: PEER, source: Failure::NoReply }));
        poll_until(&mut [&mut a, &mut b], |members| members[0].rpc.outstanding_call_count(PEER) == 0);
    }
}

#[test]
fn a_session_end_fails_its_calls_only() {
    let mut members = brokers::<3>(config()).map(|broker| Rpc::new(broker, RpcConfig::default()).unwrap());
    let [to_a, to_b, to_c] = [PeerId(0), PeerId(1), PeerId(2)];
    let [a, b, c] = &mut members;
    connect(a, to_b, b, to_a);
    connect(a, to_c, c, to_a);
    let [mut a, mut b, mut c] = members.map(TestMember::new);
    poll_until(&mut [&mut a, &mut b, &mut c], |members| members[0].opened.len() == 2);
    let lost: Vec<CallId> = (0..5).map(|_| a.rpc.call(to_b, KEEP, b"", None).unwrap()).collect();
    let with_timeout = a.rpc.call(to_b, KEEP, b"", Some(Duration::from_secs(3600))).unwrap();
    let other = a.rpc.call(to_c, KEEP, b"", None).unwrap();
    poll_until(&mut [&mut a, &mut b, &mut c], |members| {
        members[1].kept.len() == 6 && members[2].kept.len() == 1
    });
    // A READ with an invalid key breaks the connection.
    let remote = RemoteRange { epoch: 2, memory: RemoteMemory { addr: 0, rkey: 0x5a5a_5a5a, len: 8 } };
    let local = a.rpc.broker().protection_domain().allocate_buffer(8).unwrap();
    a.rpc.broker_mut().post_read(to_b, local, remote).unwrap();
    poll_until(&mut [&mut a, &mut b, &mut c], |members| {
        !members[0].ended.is_empty() && !members[1].ended.is_empty()
    });
    for call in lost.iter().chain([&with_timeout]) {
        assert!(matches!(
            a.results[call],
            Err(CallError::SessionEnded { reason: EndReason::RequestFailed { .. }, .. })
        ));
    }
    assert!(a.rpc.is_outstanding(other));
    assert!(matches!(a.rpc.call(to_b, ECHO, b"", None), Err(PostError::NotOpen { .. })));

    // Requests of the ended session can't be answered, even in the next session.
    connect(&mut a.rpc, to_b, &mut b.rpc, to_a);
    poll_until(&mut [&mut a, &mut b, &mut c], |members| members[0].opened.len() == 3);
    let echo = a.rpc.call(to_b, ECHO, b"new", None).unwrap();
    poll_until(&mut [&mut a, &mut b, &mut c], |members| members[0].results.contains_key(&echo));
    for (reply, _) in b.kept.drain(..) {
        let refused = b.rpc.reply(reply, b"old").unwrap_err();
        assert_eq!(refused.error, PostError::RequestEnded { peer: to_a });
    }
    let (reply, _) = c.kept.pop().unwrap();
    c.rpc.reply(reply, b"from c").unwrap();
    poll_until(&mut [&mut a, &mut b, &mut c], |members| members[0].results.contains_key(&other));
    assert_eq!(a.results[&other].as_deref(), Ok(&b"from c"[..]));
    assert_eq!((a.rpc.counters().lost_calls, a.rpc.counters().late_replies), (6, 0));
}

#[test]
fn a_member_that_dies_fails_its_calls() {
    let config = BrokerConfig { keepalive: Some(Duration::from_millis(50)), ..config() };
    let (mut a, mut b) = pair_with(config, RpcConfig::default());
    let call = a.call(KEEP, b"");
    poll_until(&mut [&mut a, &mut b], |members| members[1].kept.len() == 1);
    let TestMember { mut rpc, kept, .. } = b;
    // A member that dies doesn't leave.
    rpc.broker_mut().close(PEER);
    drop(rpc);
    poll_until(&mut [&mut a], |members| !members[0].ended.is_empty());
    assert!(matches!(
        a.results[&call],
        Err(CallError::SessionEnded { reason: EndReason::RequestFailed { .. }, .. })
    ));
    // The tokens outlive their server.
    drop(kept);

    // The member returns with a new epoch, and its calls have the numbers of old ones.
    let domain = a.rpc.broker().protection_domain().clone();
    let broker = Broker::builder(&domain).config(config).peer_count(2).epoch(9).create().unwrap();
    let mut b = TestMember::new(Rpc::new(broker, RpcConfig::default()).unwrap());
    connect(&mut a.rpc, PEER, &mut b.rpc, PEER);
    poll_until(&mut [&mut a, &mut b], |members| members[0].opened.len() == 2);
    let (from_a, from_b) = (a.call(ECHO, b"from a"), b.call(ECHO, b"from b"));
    poll_until(&mut [&mut a, &mut b], |members| {
        members[0].results.contains_key(&from_a) && members[1].results.contains_key(&from_b)
    });
    assert_eq!(a.results[&from_a].as_deref(), Ok(&b"from a"[..]));
    assert_eq!(b.results[&from_b].as_deref(), Ok(&b"from b"[..]));
}

#[test]
fn a_session_that_is_replaced_ends_first() {
    let (mut a, mut b) = pair();
    let (call, _) = (a.call(KEEP, b""), b.call(KEEP, b""));
    poll_until(&mut [&mut a, &mut b], |members| members.iter().all(|member| member.kept.len() == 1));
    // The session ends and is established again before its events are delivered.
    a.rpc.broker_mut().close(PEER);
    b.rpc.broker_mut().close(PEER);
    connect(&mut a.rpc, PEER, &mut b.rpc, PEER);
    assert_eq!(a.poll(), 3, "the end of the call, the end of the session, and the new session");
    assert_eq!(a.results[&call], Err(CallError::SessionEnded { peer: PEER, reason: EndReason::Closed }));
    assert_eq!((a.ended.len(), a.opened.len()), (1, 2));
    let echo = a.call(ECHO, b"new");
    poll_until(&mut [&mut a, &mut b], |members| members[0].results.contains_key(&echo));
}

#[test]
fn messages_that_are_no_calls_are_counted() {
    let (mut a, mut b) = pair();
    for bytes in [&b""[..], b"short", &[0xff; 100]] {
        a.rpc.broker_mut().send(PEER, bytes).unwrap();
    }
    poll_until(&mut [&mut a, &mut b], |members| members[1].rpc.counters().malformed_messages == 3);
    let small = BrokerConfig { slot_size: 8, ..config() };
    let [broker, _] = brokers::<2>(small);
    let refused = Rpc::new(broker, RpcConfig::default()).unwrap_err();
    assert!(matches!(refused, BrokerError::Config(ConfigError::SlotTooSmall { size: 8, min: 16 })));
}
