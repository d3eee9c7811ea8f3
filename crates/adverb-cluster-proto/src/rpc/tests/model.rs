//! Two state machines and the channels between them, compared with a model.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const HOSTILE: PeerId = PeerId(1);

#[derive(Clone, Debug)]
enum Step {
    Call {
        node: usize,
        timeout: Option<u64>,
    },
    Cancel {
        node: usize,
        call: Index,
    },
    Advance {
        micros: u64,
    },
    Deliver {
        node: usize,
    },
    Answer {
        node: usize,
        request: Index,
        mode: AnswerMode,
    },
    Transmit {
        node: usize,
        count: usize,
    },
    EndSession,
    /// A message of another peer, which has no calls and may send any bytes.
    Inject {
        node: usize,
        bytes: Vec<u8>,
    },
}

#[derive(Clone, Copy, Debug)]
enum AnswerMode {
    Now,
    Later,
    Fail(Failure),
}

fn node() -> impl Strategy<Value = usize> {
    0..2usize
}

fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    // Mostly valid kinds, and the small numbers that calls have.
    let header = (0..6u8, 0..5u8, 0..4u32, 0..6u16, 0..20usize);
    let plausible = header.prop_map(|(kind, code, generation, index, len)| {
        let mut bytes = vec![0; HEADER_LEN + len];
        (bytes[0], bytes[1]) = (kind, if kind == 3 { code } else { 0 });
        bytes[8..12].copy_from_slice(&generation.to_le_bytes());
        bytes[12..14].copy_from_slice(&index.to_le_bytes());
        bytes.truncate(if kind > 2 { HEADER_LEN } else { bytes.len() });
        bytes
    });
    prop_oneof![4 => plausible, 1 => proptest::collection::vec(any::<u8>(), 0..40)]
}

fn step(is_hostile: bool) -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        Just(AnswerMode::Now),
        Just(AnswerMode::Later),
        Just(AnswerMode::Fail(Failure::NoReply)),
        (0..3u16).prop_map(|code| AnswerMode::Fail(Failure::Application(code))),
    ];
    prop_oneof![
        8 => (node(), proptest::option::of(0..30u64)).prop_map(|(node, timeout)| Step::Call { node, timeout }),
        2 => (node(), any::<Index>()).prop_map(|(node, call)| Step::Cancel { node, call }),
        2 => (0..10u64).prop_map(|micros| Step::Advance { micros }),
        10 => node().prop_map(|node| Step::Deliver { node }),
        8 => (node(), any::<Index>(), mode)
            .prop_map(|(node, request, mode)| Step::Answer { node, request, mode }),
        4 => (node(), 0..4usize).prop_map(|(node, count)| Step::Transmit { node, count }),
        1 => Just(Step::EndSession),
        if is_hostile { 4 } else { 0 } =>
            (node(), hostile_bytes()).prop_map(|(node, bytes)| Step::Inject { node, bytes }),
    ]
}

/// A call of the model. Its data, in the request and in the reply, is its serial number.
#[derive(Debug)]
struct Call {
    id: CallId,
    serial: u32,
    deadline: Option<Time>,
    is_outstanding: bool,
    /// The result that the caller must get, once there is an answer.
    answer: Option<Result<u32, Failure>>,
}

/// A request that was delivered to the application.
#[derive(Debug)]
struct Request {
    id: RequestId,
    serial: u32,
    is_pending: bool,
}

struct Node {
    rpc: Rpc,
    calls: Vec<Call>,
    requests: Vec<Request>,
    /// Requests of the hostile peer.
    hostile: Vec<RequestId>,
    inbox: VecDeque<Vec<u8>>,
    late_replies: u64,
}

struct World {
    config: RpcConfig,
    nodes: [Node; 2],
    now: Time,
    serial: u32,
    epoch: u64,
    /// The serial numbers of the requests in messages, by caller and wire id.
    serials: HashMap<(usize, WireId), u32>,
}

impl World {
    fn new(config: RpcConfig) -> World {
        let node = || {
            let mut rpc = Rpc::new(config, 2).unwrap();
            rpc.open(PEER, 1).unwrap();
            rpc.open(HOSTILE, 1).unwrap();
            let (calls, requests, hostile) = Default::default();
            Node { rpc, calls, requests, hostile, inbox: VecDeque::new(), late_replies: 0 }
        };
        let nodes = [node(), node()];
        World { config, nodes, now: Time::ZERO, serial: 0, epoch: 1, serials: HashMap::new() }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Call { node, timeout } => self.call(node, timeout),
            Step::Cancel { node, call } => {
                let Node { rpc, calls, .. } = &mut self.nodes[node];
                if !calls.is_empty() {
                    let call = call.get_mut_of(calls);
                    assert_eq!(rpc.cancel(call.id), core::mem::take(&mut call.is_outstanding));
                }
            }
            Step::Advance { micros } => {
                self.now = self.now + Duration::from_micros(micros);
                (0..2).for_each(|node| self.expire(node));
            }
            Step::Deliver { node } => self.deliver(node),
            Step::Answer { node, request, mode } => self.answer(node, request, mode),
            Step::Transmit { node, count } => self.transmit(node, count),
            Step::EndSession => self.end_session(),
            Step::Inject { node, bytes } => {
                let Node { rpc, hostile, .. } = &mut self.nodes[node];
                match rpc.handle_message(HOSTILE, &bytes) {
                    Incoming::Request { request, .. } => hostile.push(request),
                    Incoming::Ignored => {}
                    Incoming::Reply { .. } => panic!("a peer without calls ended one"),
                }
                assert!(rpc.pending_request_count(HOSTILE) <= usize::from(self.config.max_requests));
            }
        }
        self.check();
    }

    fn call(&mut self, node: usize, timeout: Option<u64>) {
        let timeout = timeout.map(Duration::from_micros);
        let Node { rpc, calls, .. } = &mut self.nodes[node];
        let outstanding = calls.iter().filter(|call| call.is_outstanding).count();
        let check = rpc.check_call(PEER);
        let called = rpc.call(PEER, node as u16, timeout, self.now);
        assert_eq!(called.map(|_| ()), check);
        match called {
            Ok((id, header)) => {
                self.serial += 1;
                let Header::Request { id: wire_id, .. } = header else { panic!("{header:?}") };
                let deadline = timeout.map(|timeout| self.now + timeout);
                let serial = self.serial;
                calls.push(Call { id, serial, deadline, is_outstanding: true, answer: None });
                self.serials.insert((node, wire_id), serial);
                self.nodes[1 - node].inbox.push_back(message(header, &serial.to_le_bytes()));
            }
            Err(error) => {
                assert_eq!(error, PostError::TooManyCalls { peer: PEER, max: self.config.max_calls });
                // Cancelled calls count until the cancellation is sent.
                assert!(outstanding == usize::from(self.config.max_calls) || rpc.has_output(PEER));
            }
        }
    }

    fn expire(&mut self, node: usize) {
        let Node { rpc, calls, .. } = &mut self.nodes[node];
        let mut last = Time::ZERO;
        while let Some(id) = rpc.poll_expired(self.now) {
            let call = calls.iter_mut().find(|call| call.id == id && call.is_outstanding).unwrap();
            let deadline = call.deadline.unwrap();
            assert!(last <= deadline && deadline <= self.now);
            last = deadline;
            call.is_outstanding = false;
        }
        let deadlines = calls.iter().filter(|call| call.is_outstanding).filter_map(|call| call.deadline);
        assert_eq!(rpc.poll_timeout(), deadlines.min());
    }

    fn deliver(&mut self, node: usize) {
        let caller = 1 - node;
        let Some(bytes) = self.nodes[node].inbox.pop_front() else { return };
        let (header, _) = Header::parse(&bytes).unwrap();
        match (header, self.nodes[node].rpc.handle_message(PEER, &bytes)) {
            (Header::Request { id, .. }, incoming) => {
                let serial = self.serials[&(caller, id)];
                if id.index >= self.config.max_requests {
                    assert_eq!(incoming, Incoming::Ignored);
                    self.set_answer(caller, serial, Err(Failure::Overloaded));
                    return;
                }
                let Incoming::Request { request, method, data, .. } = incoming else {
                    panic!("{incoming:?}")
                };
                assert_eq!((method, data), (caller as u16, &serial.to_le_bytes()[..]));
                self.nodes[node].requests.push(Request { id: request, serial, is_pending: true });
            }
            (Header::Cancel { id }, incoming) => {
                assert_eq!(incoming, Incoming::Ignored);
                let serial = self.serials[&(caller, id)];
                let request = self.nodes[node].requests.iter_mut().find(|request| request.serial == serial);
                request.into_iter().for_each(|request| request.is_pending = false);
            }
            (Header::Reply { id } | Header::Failure { id, .. }, incoming) => {
                let serial = self.serials[&(node, id)];
                let Node { calls, late_replies, .. } = &mut self.nodes[node];
                let call = calls.iter_mut().find(|call| call.serial == serial).unwrap();
                if core::mem::take(&mut call.is_outstanding) {
                    let expected = call.answer.unwrap();
                    let Incoming::Reply { call: id, result } = incoming else { panic!("{incoming:?}") };
                    assert_eq!(id, call.id);
                    let serial = result.map(|data| u32::from_le_bytes(data.try_into().unwrap()));
                    assert_eq!(serial, expected);
                } else {
                    assert_eq!(incoming, Incoming::Ignored);
                    *late_replies += 1;
                }
            }
        }
    }

    fn set_answer(&mut self, caller: usize, serial: u32, answer: Result<u32, Failure>) {
        let call = self.nodes[caller].calls.iter_mut().find(|call| call.serial == serial).unwrap();
        assert_eq!(call.answer.replace(answer), None, "answered twice");
    }

    fn answer(&mut self, node: usize, index: Index, mode: AnswerMode) {
        let Node { rpc, requests, hostile, .. } = &mut self.nodes[node];
        if let Some(request) = hostile.pop() {
            let _ = rpc.queue_reply(request, b"reply");
        }
        if requests.is_empty() {
            return;
        }
        let request = index.get_mut_of(requests);
        assert_eq!(rpc.is_pending(request.id), request.is_pending);
        let serial = request.serial;
        let mut reply = None;
        let answered = match mode {
            AnswerMode::Now => rpc.answer(request.id).map(|header| {
                reply = Some(message(header, &serial.to_le_bytes()));
            }),
            AnswerMode::Later => rpc.queue_reply(request.id, &serial.to_le_bytes()),
            AnswerMode::Fail(failure) => rpc.queue_failure(request.id, failure),
        };
        assert_eq!(answered.is_ok(), core::mem::take(&mut request.is_pending));
        if answered.is_ok() {
            let result = if let AnswerMode::Fail(failure) = mode { Err(failure) } else { Ok(serial) };
            self.set_answer(1 - node, serial, result);
        }
        self.nodes[1 - node].inbox.extend(reply);
    }

    /// Sends up to `count` messages that wait.
    fn transmit(&mut self, node: usize, count: usize) {
        let rpc = &mut self.nodes[node].rpc;
        let mut messages = Vec::new();
        let mut is_ready = false;
        while let Some(peer) = rpc.poll_ready() {
            if peer == PEER {
                is_ready = true;
            } else {
                while rpc.poll_output(peer).is_some() {}
            }
        }
        assert_eq!(is_ready, rpc.has_output(PEER), "a peer with messages is ready");
        for _ in 0..count {
            messages.extend(rpc.poll_output(PEER).map(|Output { header, data }| message(header, data)));
        }
        // The rest waits for credits.
        rpc.mark_ready(PEER);
        self.nodes[1 - node].inbox.extend(messages);
    }

    fn end_session(&mut self) {
        self.epoch += 1;
        for Node { rpc, calls, requests, inbox, .. } in &mut self.nodes {
            rpc.end(PEER);
            while let Some(id) = rpc.poll_ended(PEER) {
                let call = calls.iter_mut().find(|call| call.id == id).unwrap();
                assert!(core::mem::take(&mut call.is_outstanding));
            }
            assert!(calls.iter().all(|call| !call.is_outstanding), "every call of the session ends");
            requests.iter_mut().for_each(|request| request.is_pending = false);
            inbox.clear();
            rpc.open(PEER, self.epoch).unwrap();
        }
    }

    fn check(&self) {
        for Node { rpc, calls, requests, late_replies, .. } in &self.nodes {
            let outstanding = calls.iter().filter(|call| call.is_outstanding).count();
            let pending = requests.iter().filter(|request| request.is_pending).count();
            assert_eq!(rpc.outstanding_call_count(PEER), outstanding);
            assert_eq!(rpc.pending_request_count(PEER), pending);
            assert!(outstanding <= usize::from(self.config.max_calls));
            assert!(pending <= usize::from(self.config.max_requests));
            let RpcCounters { calls, answered_calls, expired_calls, cancelled_calls, lost_calls, .. } =
                *rpc.counters();
            let ended = answered_calls + expired_calls + cancelled_calls + lost_calls;
            assert_eq!(calls, ended + outstanding as u64);
            assert!(rpc.counters().late_replies >= *late_replies);
        }
    }

    /// Answers everything, and delivers all messages.
    fn finish(&mut self, is_hostile: bool) {
        for node in [0, 1].repeat(4) {
            self.transmit(node, 1000);
            while !self.nodes[node].inbox.is_empty() {
                self.deliver(node);
            }
            for index in 0..self.nodes[node].requests.len() {
                let Request { id, serial, is_pending } = self.nodes[node].requests[index];
                if is_pending {
                    self.nodes[node].rpc.queue_reply(id, &serial.to_le_bytes()).unwrap();
                    self.nodes[node].requests[index].is_pending = false;
                    self.set_answer(1 - node, serial, Ok(serial));
                }
            }
        }
        self.check();
        for Node { rpc, inbox, late_replies, .. } in &self.nodes {
            assert_eq!((rpc.outstanding_call_count(PEER), inbox.len()), (0, 0), "every call ends");
            assert_eq!((rpc.poll_timeout(), rpc.has_output(PEER)), (None, false));
            if !is_hostile {
                let counters = rpc.counters();
                let unexpected =
                    [counters.unknown_replies, counters.duplicate_requests, counters.malformed_messages];
                assert_eq!(unexpected, [0; 3]);
                assert_eq!(counters.late_replies, *late_replies);
            }
        }
    }
}

/// Selects an element of a list, which is not empty.
trait GetMut {
    fn get_mut_of<T>(self, list: &mut [T]) -> &mut T;
}

impl GetMut for Index {
    fn get_mut_of<T>(self, list: &mut [T]) -> &mut T {
        // The newest elements are more likely to be in use.
        let count = list.len().min(8);
        let start = list.len() - count;
        &mut list[start + self.index(count)]
    }
}

fn config() -> impl Strategy<Value = RpcConfig> {
    (1..6u16, 1..6u16).prop_map(|(max_calls, max_requests)| RpcConfig { max_calls, max_requests })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn calls_agree_with_the_model(config in config(), steps in proptest::collection::vec(step(false), 1..150)) {
        let mut world = World::new(config);
        steps.into_iter().for_each(|step| world.run(step));
        world.finish(false);
    }

    #[test]
    fn a_hostile_peer_changes_nothing(config in config(), steps in proptest::collection::vec(step(true), 1..150)) {
        let mut world = World::new(config);
        steps.into_iter().for_each(|step| world.run(step));
        world.finish(true);
    }
}
