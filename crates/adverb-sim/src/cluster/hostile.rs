//! A hostile peer of a broker. For any bytes that it sends, the broker, its calls and its keys keep their invariants.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use adverb_cluster_proto::keys::{Keys, MAX_PEER_SEGMENTS};
use adverb_cluster_proto::rpc::{self, CallId, Failure, Incoming, RequestId, Rpc, RpcCounters};
use adverb_cluster_proto::{
    Broker, BrokerConfig, Event, PeerId, Phase, Post, PostError, RemotePtr, Transfer, TransferOperation,
};
use adverb_proto::Time;
use adverb_proto::types::{
    CompletedOperation, Completion, Failure as FailedRequest, Qpn, RemoteMemory, Segment, SendFlags, Status,
    Success,
};

const PEER: PeerId = PeerId(0);

const CONFIG: BrokerConfig = BrokerConfig {
    send_slots: 4,
    recv_slots: 4,
    slot_size: 256,
    queue_depth: 8,
    send_queue_depth: 8,
    doorbell_batch: 4,
    signal_interval: 4,
    keepalive: None,
};

const CALL_CONFIG: rpc::RpcConfig = rpc::RpcConfig { max_calls: 4, max_requests: 4 };

/// The maximum size of the broker's state.
const MAX_BROKER_BYTES: usize = 64 << 10;
/// The maximum size of the state of calls. Most of it is for the refused requests of a peer that grants no credits.
const MAX_CALL_BYTES: usize = 512 << 10;
/// The maximum size of the state of keys.
const MAX_KEY_BYTES: usize = 128 * MAX_PEER_SEGMENTS;

/// The input, as a sequence of choices.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns the next four bytes as a number. Bytes after the end of the input are zero.
    fn number(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte().unwrap_or(0)))
    }

    fn bytes(&mut self, max: usize) -> &'a [u8] {
        let length = usize::from(self.byte().unwrap_or(0)).min(max).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }
}

/// A member with one peer.
struct Member {
    broker: Broker,
    rpc: Rpc,
    keys: Keys,
    now: Time,
    epoch: u64,
    /// The `wr_id`s of the posted receives and of the signaled requests, in order.
    receives: VecDeque<u64>,
    signaled: VecDeque<u64>,
    /// The count of credits that the peer announced last.
    credits: u32,
    tickets: usize,
    next_segment: u32,
    /// The numbers of the outstanding calls.
    calls: BTreeSet<u64>,
    /// The same calls, in any order, from which the application chooses one to cancel.
    outstanding: Vec<CallId>,
    requests: Vec<RequestId>,
}

/// Lets a peer send the messages that the bytes describe, to a member that calls, serves and publishes segments.
///
/// # Errors
///
/// Returns the violated invariant: each message is counted once, each call ends once, pointers resolve to memory that
/// the peer announced, and the memory of the state machines is bounded.
pub fn cluster_attack_from_bytes(bytes: &[u8]) -> Result<(), String> {
    let mut member = Member::new().map_err(|error| error.to_string())?;
    let mut choices = Choices(bytes);
    while let Some(choice) = choices.byte() {
        member.step(choice, &mut choices)?;
        member.drive()?;
        member.check()?;
    }
    member.broker.close(PEER);
    member.drive()?;
    if !member.calls.is_empty() || member.tickets > 0 {
        return Err("a call or a ticket did not end with its session".to_owned());
    }
    Ok(())
}

impl Member {
    fn new() -> Result<Member, Box<dyn std::error::Error>> {
        let mut member = Member {
            broker: Broker::new(CONFIG, 1)?,
            rpc: Rpc::new(CALL_CONFIG, 1)?,
            keys: Keys::new(1),
            now: Time::ZERO,
            epoch: 1,
            receives: VecDeque::new(),
            signaled: VecDeque::new(),
            credits: 0,
            tickets: 0,
            next_segment: 0,
            calls: BTreeSet::new(),
            outstanding: Vec::new(),
            requests: Vec::new(),
        };
        member.keys.publish(1, CONFIG.slot_size)?;
        member.drive()?;
        Ok(member)
    }

    /// Performs an action of the peer or of the application.
    fn step(&mut self, choice: u8, choices: &mut Choices<'_>) -> Result<(), String> {
        match choice % 16 {
            // Messages of the peer, with any bytes, and with a count of credits that is plausible or not.
            0..=5 => {
                let count = match choice >> 4 {
                    0 => choices.number(),
                    increase => self.credits.wrapping_add(u32::from(increase) - 1),
                };
                let flags = match choice % 16 {
                    0 => choices.number() & 3 << 30,
                    1 | 2 => 1 << 30,
                    _ => 0,
                };
                let bytes = choices.bytes(CONFIG.slot_size as usize).to_vec();
                self.receive(count & !(3 << 30) | flags, &bytes)?;
            }
            6 => {
                let operation = CompletedOperation::RecvWrite { immediate: choices.number() };
                self.complete_receive(operation, u32::from(choice), &[])?;
            }
            7 => {
                let failure = FailedRequest { status: Status::RemoteAccess, vendor_error: 0 };
                let wr_id =
                    if choice & 16 == 0 { self.receives.pop_front() } else { self.signaled.pop_front() };
                if let Some(wr_id) = wr_id.filter(|_| choice >> 5 == 0) {
                    self.complete(Completion { wr_id, qpn: Qpn::GSI, outcome: Err(failure) }, &[])?;
                }
            }
            8 => self.call(choice, choices),
            9 => {
                if !self.outstanding.is_empty() {
                    let call =
                        self.outstanding.swap_remove(usize::from(choice >> 4) % self.outstanding.len());
                    if self.rpc.cancel(call) != self.calls.remove(&call.number()) {
                        return Err("the result of cancelling a call was wrong".to_owned());
                    }
                }
            }
            10 => {
                if let Some(request) = self.requests.pop() {
                    // The peer may have cancelled the request.
                    let _ = match choice >> 4 {
                        0..=7 => self.rpc.queue_reply(request, choices.bytes(64)),
                        _ => self.rpc.queue_failure(request, Failure::NoReply),
                    };
                }
            }
            11 => {
                self.now = self.now + Duration::from_micros(u64::from(choice));
                while let Some(call) = self.rpc.poll_expired(self.now) {
                    self.end_call(call)?;
                }
            }
            12 => {
                let last = self.next_segment;
                self.next_segment = last + u32::from(choice >> 4);
                let first = last.saturating_sub(u32::from(choices.byte().unwrap_or(0) % 8));
                let segment = |number| (number, RemoteMemory { addr: 0, rkey: number, len: 64 });
                let segments: Vec<_> = (first..self.next_segment).map(segment).collect();
                self.keys.update(&segments);
                while self.keys.poll_released().is_some() {}
            }
            13 => self.transfer(choices)?,
            14 => {
                let operation = CompletedOperation::Send;
                if let Some(wr_id) = self.signaled.pop_front() {
                    let outcome = Ok(Success { operation, length: 0 });
                    self.complete(Completion { wr_id, qpn: Qpn::GSI, outcome }, &[])?;
                }
            }
            _ => {
                if choice >> 4 == 0 {
                    self.broker.close(PEER);
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, immediate: u32, bytes: &[u8]) -> Result<(), String> {
        self.credits = immediate & !(3 << 30);
        let operation = CompletedOperation::Recv {
            immediate: Some(immediate),
            invalidated: None,
            source: None,
            has_grh: false,
        };
        self.complete_receive(operation, bytes.len() as u32, bytes)
    }

    fn complete_receive(
        &mut self,
        operation: CompletedOperation,
        length: u32,
        bytes: &[u8],
    ) -> Result<(), String> {
        let Some(wr_id) = self.receives.pop_front() else { return Ok(()) };
        let outcome = Ok(Success { operation, length });
        self.complete(Completion { wr_id, qpn: Qpn::GSI, outcome }, bytes)
    }

    fn complete(&mut self, completion: Completion, bytes: &[u8]) -> Result<(), String> {
        self.broker.handle_completion(&completion);
        self.handle_events(bytes)
    }

    /// Processes the events of the broker. `bytes` is the message that just arrived.
    fn handle_events(&mut self, bytes: &[u8]) -> Result<(), String> {
        while let Some(event) = self.broker.poll_event() {
            match event {
                Event::Message { slot, .. } => {
                    self.handle_message(bytes)?;
                    self.broker.release(slot);
                }
                Event::Control { from, slot, .. } => {
                    if let Err(reason) = self.keys.handle_message(from, bytes, self.tickets) {
                        self.broker.abort(from, reason);
                    }
                    self.broker.release(slot);
                    while self.keys.poll_released().is_some() {}
                }
                Event::Immediate { slot, .. } => self.broker.release(slot),
                Event::Completed { peer, .. } => {
                    self.tickets = self.tickets.checked_sub(1).ok_or("a ticket ended twice")?;
                    self.keys.end_ticket(peer);
                }
                Event::SessionEnded { peer, .. } => {
                    self.rpc.end(peer);
                    self.keys.end(peer);
                    while let Some(call) = self.rpc.poll_ended(peer) {
                        self.end_call(call)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn handle_message(&mut self, bytes: &[u8]) -> Result<(), String> {
        let before = message_count(self.rpc.counters());
        let incoming = self.rpc.handle_message(PEER, bytes);
        let (request, call) = match incoming {
            Incoming::Request { request, .. } => (Some(request), None),
            Incoming::Reply { call, .. } => (None, Some(call)),
            Incoming::Ignored => (None, None),
        };
        if message_count(self.rpc.counters()) != before + 1 {
            return Err("a message was counted not at all or twice".to_owned());
        }
        self.requests.extend(request);
        // The application keeps at most eight requests. It never answers the older ones.
        if self.requests.len() > 8 {
            self.requests.remove(0);
        }
        call.map_or(Ok(()), |call| self.end_call(call))
    }

    fn end_call(&mut self, call: CallId) -> Result<(), String> {
        self.outstanding.retain(|outstanding| *outstanding != call);
        let is_outstanding = self.calls.remove(&call.number());
        if is_outstanding { Ok(()) } else { Err("a call ended that was not outstanding".to_owned()) }
    }

    fn call(&mut self, choice: u8, choices: &mut Choices<'_>) {
        if self.rpc.check_call(PEER).is_err() {
            return;
        }
        let Ok(slot) = self.broker.allocate_send_buf(PEER) else { return };
        let timeout =
            (choice & 16 == 0).then(|| Duration::from_micros(u64::from(choices.byte().unwrap_or(0))));
        let posted = self.broker.post_send(slot, 16);
        if let (Ok(()), Ok((call, _))) = (posted, self.rpc.call(PEER, 7, timeout, self.now)) {
            self.calls.insert(call.number());
            self.outstanding.push(call);
        }
    }

    /// Resolves a pointer that the peer sent, and posts a transfer.
    fn transfer(&mut self, choices: &mut Choices<'_>) -> Result<(), String> {
        let mut bytes = [0; RemotePtr::ENCODED_LEN];
        for byte in &mut bytes {
            *byte = choices.byte().unwrap_or(0);
        }
        let ptr = RemotePtr::from_bytes(&bytes).ok();
        let small = RemotePtr {
            member: u32::from(bytes[0]),
            segment: u32::from(bytes[1]),
            epoch: self.epoch,
            offset: u64::from(bytes[2]),
            len: u64::from(bytes[3]),
        };
        for ptr in ptr.into_iter().chain([small]) {
            let Ok(range) = self.keys.resolve(PEER, ptr) else { continue };
            let is_inside = range.memory.len == ptr.len && range.memory.addr.checked_add(ptr.len).is_some();
            if range.epoch != self.epoch || !is_inside {
                return Err(format!("{ptr:?} was resolved to {range:?}"));
            }
            let local = Segment { addr: 0, length: ptr.len.min(64) as u32, lkey: 0 };
            let transfer = Transfer { operation: TransferOperation::Read, local, remote: range };
            match self.broker.post_batch(PEER, &[transfer]) {
                Ok(_) => self.tickets += 1,
                Err(PostError::WouldBlock { .. } | PostError::NotOpen { .. }) => {}
                Err(error) => return Err(format!("a transfer was rejected: {error}")),
            }
        }
        Ok(())
    }

    /// Performs a driver's work: posts requests, sends waiting messages, and opens a new session after an end.
    fn drive(&mut self) -> Result<(), String> {
        self.handle_events(&[])?;
        while let Some(peer) = self.rpc.poll_ready() {
            while self.rpc.has_output(peer) {
                let Ok(slot) = self.broker.allocate_send_buf(peer) else { break };
                let length = self.rpc.poll_output(peer).map_or(0, |output| 16 + output.data.len() as u32);
                self.broker.post_send(slot, length).map_err(|error| error.to_string())?;
            }
        }
        for _ in 0..self.keys.ready_count() {
            let Some(peer) = self.keys.poll_ready() else { break };
            while self.keys.has_output(peer) {
                let Ok(slot) = self.broker.allocate_send_buf(peer) else {
                    self.keys.mark_ready(peer);
                    break;
                };
                let message = self.keys.poll_output(peer, CONFIG.slot_size as usize);
                let length = message.ok_or("a control message is missing")?.len() as u32;
                self.broker.post_control(slot, length).map_err(|error| error.to_string())?;
            }
        }
        self.broker.flush_all();
        self.post()?;
        if self.broker.phase(PEER) == Phase::Closed {
            self.epoch += 1;
            self.credits = self.broker.prepare(PEER).map_err(|error| error.to_string())?;
            self.post()?;
            let established = self.broker.establish(PEER, self.epoch, self.credits, self.now);
            established.map_err(|error| error.to_string())?;
            self.rpc.open(PEER, self.epoch).map_err(|error| error.to_string())?;
            self.keys.open(PEER, self.epoch);
        }
        Ok(())
    }

    fn post(&mut self) -> Result<(), String> {
        while let Some(post) = self.broker.poll_post() {
            match post {
                Post::Receives { requests, .. } => {
                    self.receives.extend(requests.iter().map(|request| request.wr_id));
                }
                Post::Sends { requests, .. } => {
                    let signaled = requests.iter().filter(|post| post.flags.contains(SendFlags::SIGNALED));
                    self.signaled.extend(signaled.map(|request| request.wr_id));
                }
                Post::Close { peer } => {
                    self.receives.clear();
                    self.signaled.clear();
                    self.broker.handle_closed(peer).map_err(|error| error.to_string())?;
                    self.handle_events(&[])?;
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let bytes = [self.broker.memory_use().state_bytes, self.rpc.state_bytes(), self.keys.state_bytes()];
        let max = [MAX_BROKER_BYTES, MAX_CALL_BYTES, MAX_KEY_BYTES];
        if bytes.iter().zip(max).any(|(bytes, max)| *bytes > max) {
            return Err(format!("the broker, its calls and its keys occupy {bytes:?} bytes"));
        }
        if self.rpc.outstanding_call_count(PEER) != self.calls.len() {
            return Err("the number of outstanding calls is wrong".to_owned());
        }
        Ok(())
    }
}

/// Returns the number of messages that were processed. Exactly one of the counters includes each of them.
fn message_count(counters: &RpcCounters) -> u64 {
    counters.answered_calls
        + counters.requests
        + counters.cancelled_requests
        + counters.refused_requests
        + counters.late_replies
        + counters.late_cancellations
        + counters.unknown_replies
        + counters.duplicate_requests
        + counters.malformed_messages
}
