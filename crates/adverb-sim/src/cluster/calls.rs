//! The calls of a member: its application as caller and callee, and the checks of each call's end.

use std::collections::BTreeMap;
use std::time::Duration;

use adverb_cluster_proto::rpc::{CallId, Failure, HEADER_LEN, Header, Incoming, RequestId, RpcCounters};
use adverb_cluster_proto::{PeerId, PostError, RemotePtr, SendSlot};
use adverb_proto::Time;

use super::application::ExpectedPost;
use super::run::ClusterRun;
use crate::Random;

/// The calls and requests of a member.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The calls that have not ended, by number.
    outstanding: BTreeMap<u64, Outstanding>,
    /// The requests that the application answers later.
    pending: Vec<Pending>,
}

impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.outstanding.is_empty() && self.pending.is_empty()
    }
}

/// A call that has not ended.
#[derive(Debug)]
struct Outstanding {
    call: CallId,
    to: usize,
    serial: usize,
    deadline: Option<Time>,
    /// The request that the application answers after this call.
    parent: Option<Pending>,
}

/// A request that the application has not answered.
#[derive(Debug)]
struct Pending {
    request: RequestId,
    from: usize,
    /// The number of the session.
    session: u64,
    serial: usize,
}

/// A call of any member. Its serial number is its index in [`ClusterRun::issued`].
#[derive(Debug)]
pub(super) struct Issued {
    from: usize,
    to: usize,
    session: u64,
    is_delivered: bool,
    answer: Option<Result<(), Failure>>,
    /// Whether the call has ended for the caller's application, or the application cancelled it.
    is_ended: bool,
}

/// An answer of the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Reply,
    Fail(Failure),
}

/// The segment number in a request that means no segment.
const NO_SEGMENT: u32 = u32::MAX;

fn method(serial: usize) -> u16 {
    (serial as u16).wrapping_mul(40_503)
}

/// Returns the data of a request: the serial number, a segment of the caller, and other bytes.
fn request_data(serial: usize, segment: u32, max: usize) -> Vec<u8> {
    let mut random = Random::new(serial as u64 ^ 0x7265_7175);
    let mut data = (serial as u64).to_le_bytes().to_vec();
    data.extend(segment.to_le_bytes());
    let length = random.below((max - data.len()) as u64 + 1) as usize;
    data.extend(random.bytes(length));
    data
}

/// Returns the data of the reply to a request.
fn reply_data(serial: usize, max: usize) -> Vec<u8> {
    let mut random = Random::new(serial as u64 ^ 0x7265_706c);
    let length = random.below(max as u64 + 1) as usize;
    random.bytes(length)
}

impl ClusterRun {
    fn max_data_len(&self) -> usize {
        self.config.slot_size as usize - HEADER_LEN
    }

    /// Performs a random action of the application: starts or cancels a call, or answers a request.
    pub(super) fn act_calls(&mut self, from: usize, to: usize) {
        match self.random.below(32) {
            0..=18 => _ = self.start_call(from, to, None),
            19 => self.cancel_call(from),
            _ => self.answer_pending(from),
        }
    }

    /// Starts a call. Returns the parent if no call was started.
    fn start_call(&mut self, from: usize, to: usize, parent: Option<Pending>) -> Result<(), Option<Pending>> {
        let peer = PeerId(to as u16);
        if !self.is_open(from, to) || self.members[from].peers[to].message_blocked {
            return Err(parent);
        }
        match self.members[from].rpc.check_call(peer) {
            Ok(()) => {}
            Err(PostError::TooManyCalls { .. }) => return Err(parent),
            Err(error) => {
                self.report_violation(&format!("a call was rejected: {error}"));
                return Err(parent);
            }
        }
        let Some(slot) = self.take_call_slot(from, to) else { return Err(parent) };
        let segment = self.members[from].segments.newest().unwrap_or(NO_SEGMENT);
        let timeout = match self.random.below(3) {
            _ if self.is_finishing => None,
            0 => None,
            _ => Some(Duration::from_nanos(self.random.below(40_000))),
        };
        let serial = self.issued.len();
        let now = self.now;
        let state = &mut self.members[from];
        let (call, header) = match state.rpc.call(peer, method(serial), timeout, now) {
            Ok(started) => started,
            Err(error) => {
                self.report_violation(&format!("a call was rejected after its check succeeded: {error}"));
                return Err(parent);
            }
        };
        if self.random.chance_per_million(30_000) {
            state.rpc.withdraw(call);
            state.broker.discard(slot);
            return Err(parent);
        }
        let session = state.peers[to].session.as_ref().map_or(0, |session| session.id);
        let data = request_data(serial, segment, self.max_data_len());
        let deadline = timeout.map(|timeout| now + timeout);
        let state = &mut self.members[from];
        let outstanding = Outstanding { call, to, serial, deadline, parent };
        let is_new = state.calls.outstanding.insert(call.number(), outstanding).is_none();
        let is_bounded = state.rpc.outstanding_call_count(peer) <= usize::from(self.call_config.max_calls);
        self.issued.push(Issued { from, to, session, is_delivered: false, answer: None, is_ended: false });
        self.layers.calls += 1;
        self.log.note(now, || format!("member {from} calls {to}: {serial}, {call:?}"));
        if !is_new || !is_bounded {
            self.report_violation("two calls have the same number, or there are too many calls");
        }
        self.post_call_message(from, to, slot, header, &data);
        let left = &mut self.members[from].peers[to].messages_left;
        *left = left.saturating_sub(1);
        Ok(())
    }

    /// Takes a send slot for a message of a call, after sending the segment keys that must precede the message.
    fn take_call_slot(&mut self, from: usize, to: usize) -> Option<SendSlot> {
        if !self.send_keys(from, to) {
            self.members[from].peers[to].message_blocked = true;
            return None;
        }
        match self.take_slot(from, to) {
            Ok(slot) => Some(slot),
            Err(PostError::WouldBlock { .. }) => {
                self.members[from].peers[to].message_blocked = true;
                None
            }
            Err(error) => {
                self.report_violation(&format!("no send slot: {error}"));
                None
            }
        }
    }

    fn post_call_message(&mut self, from: usize, to: usize, slot: SendSlot, header: Header, data: &[u8]) {
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(data);
        let (index, length) = (slot.index(), bytes.len() as u32);
        let state = &mut self.members[from];
        state.memory.write(state.memory.send_slot(to, index, length), &bytes);
        match state.broker.post_send(slot, length) {
            Ok(()) => self.expect_post(from, to, ExpectedPost::Message { slot: index, length }),
            Err(error) => self.report_violation(&format!("a message was not posted: {error}")),
        }
    }

    fn cancel_call(&mut self, member: usize) {
        let count = self.members[member].calls.outstanding.len() as u64;
        if count == 0 {
            return;
        }
        let index = self.random.below(count) as usize;
        let Some(number) = self.members[member].calls.outstanding.keys().nth(index).copied() else { return };
        let Some(record) = self.take_outstanding(member, number) else { return };
        self.layers.cancelled_calls += 1;
        let rpc = &mut self.members[member].rpc;
        if !rpc.cancel(record.call) || rpc.cancel(record.call) || rpc.is_outstanding(record.call) {
            self.report_violation("an outstanding call was not cancelled exactly once");
        }
    }

    /// Removes a call that has ended, and makes its parent pending.
    fn take_outstanding(&mut self, member: usize, number: u64) -> Option<Outstanding> {
        let Some(mut record) = self.members[member].calls.outstanding.remove(&number) else {
            self.report_violation("a call ended that was not outstanding");
            return None;
        };
        self.issued[record.serial].is_ended = true;
        self.members[member].calls.pending.extend(record.parent.take());
        Some(record)
    }

    /// Answers one of the pending requests.
    fn answer_pending(&mut self, member: usize) {
        let count = self.members[member].calls.pending.len() as u64;
        if count > 0 {
            let index = self.random.below(count) as usize;
            let pending = self.members[member].calls.pending.swap_remove(index);
            let session = self.members[member].peers[pending.from].session.as_ref();
            let is_stale = session.is_none_or(|session| session.id != pending.session);
            if is_stale && !self.is_finishing && self.random.below(8) > 0 {
                // The application keeps the request until a later session.
                return self.members[member].calls.pending.push(pending);
            }
            let answer = match self.random.below(5) {
                0 if !self.is_finishing => Answer::Fail(Failure::NoReply),
                1 if !self.is_finishing => Answer::Fail(Failure::Application(pending.serial as u16)),
                _ => Answer::Reply,
            };
            self.answer(member, pending, answer);
        }
    }

    /// Answers all pending requests.
    pub(super) fn answer_all(&mut self, member: usize) {
        while !self.members[member].calls.pending.is_empty() && self.log.violation.is_none() {
            self.answer_pending(member);
        }
    }

    /// Answers a request. Checks that this succeeds while the caller waits, and fails after the session has ended.
    fn answer(&mut self, member: usize, pending: Pending, answer: Answer) {
        let Pending { request, from, session, serial } = pending;
        let data = reply_data(serial, self.max_data_len());
        let is_open = self.is_open(member, from);
        let is_current =
            self.members[member].peers[from].session.as_ref().is_some_and(|view| view.id == session);
        let is_blocked = self.members[member].peers[from].message_blocked;
        let result = match answer {
            Answer::Fail(failure) => self.members[member].rpc.queue_failure(request, failure),
            Answer::Reply if !is_open => self.members[member].rpc.queue_reply(request, &data),
            Answer::Reply => match (!is_blocked).then(|| self.take_call_slot(member, from)).flatten() {
                Some(slot) => match self.members[member].rpc.answer(request) {
                    Ok(header) => {
                        self.post_call_message(member, from, slot, header, &data);
                        Ok(())
                    }
                    Err(error) => {
                        self.members[member].broker.discard(slot);
                        Err(error)
                    }
                },
                None => self.members[member].rpc.queue_reply(request, &data),
            },
        };
        let issued = &mut self.issued[serial];
        match result {
            Ok(()) if !is_current => self.report_violation("a request of an earlier session was answered"),
            Ok(()) if issued.answer.is_some() => self.report_violation("a request was answered twice"),
            Ok(()) => {
                issued.answer = Some(match answer {
                    Answer::Reply => Ok(()),
                    Answer::Fail(failure) => Err(failure),
                });
            }
            Err(_) if is_current && !issued.is_ended => {
                self.report_violation("a request whose caller waits could not be answered");
            }
            Err(_) => {}
        }
    }

    /// Processes a message of a call from a peer.
    pub(super) fn handle_call_message(&mut self, member: usize, from: usize, bytes: &[u8]) {
        match self.members[member].rpc.handle_message(PeerId(from as u16), bytes) {
            Incoming::Request { request, method: number, data, .. } => {
                self.handle_request(member, from, request, number, data);
            }
            Incoming::Reply { call, result } => {
                let result = result.map(<[u8]>::to_vec);
                self.handle_reply(member, from, call, result);
            }
            Incoming::Ignored => {}
        }
        self.check_counters(member);
    }

    fn handle_request(&mut self, member: usize, from: usize, request: RequestId, number: u16, data: &[u8]) {
        let max = self.max_data_len();
        let serial = data.first_chunk::<8>().map_or(usize::MAX, |bytes| u64::from_le_bytes(*bytes) as usize);
        let session = self.members[member].peers[from].session.as_ref().map(|session| session.id);
        let segment = data.get(8..).and_then(|data| data.first_chunk::<4>());
        let segment = segment.map_or(NO_SEGMENT, |bytes| u32::from_le_bytes(*bytes));
        self.mix(&[6, member as u64, from as u64, serial as u64]);
        let Some(issued) = self.issued.get_mut(serial) else {
            return self.report_violation("a request arrived that no member sent");
        };
        let is_expected = (issued.from, issued.to, Some(issued.session)) == (from, member, session)
            && !issued.is_delivered
            && number == method(serial)
            && data == request_data(serial, segment, max);
        issued.is_delivered = true;
        if !is_expected {
            return self.report_violation("a request arrived altered, twice, or in another session");
        }
        self.check_segment_of_request(member, from, segment);
        let pending = Pending { request, from, session: session.unwrap_or(0), serial };
        let choice = self.random.below(8);
        if self.is_finishing && choice < 4 || choice == 0 {
            self.answer(member, pending, Answer::Reply);
        } else if choice == 1 {
            self.answer(member, pending, Answer::Fail(Failure::NoReply));
        } else if choice < 5 && !self.is_finishing {
            // The handler calls another member, or the caller, and answers after the reply.
            let to = self.random.below(self.members.len() as u64) as usize;
            if to == member {
                self.members[member].calls.pending.push(pending);
            } else {
                match self.start_call(member, to, Some(pending)) {
                    Ok(()) => self.layers.nested_calls += 1,
                    Err(parent) => self.members[member].calls.pending.extend(parent),
                }
            }
        } else {
            self.members[member].calls.pending.push(pending);
        }
    }

    /// Checks that the key of the segment in a request has arrived before the request.
    fn check_segment_of_request(&mut self, member: usize, from: usize, segment: u32) {
        let peer = PeerId(from as u16);
        let Some(epoch) = self.members[member].broker.epoch(peer) else { return };
        let owner = &self.members[from];
        // The withdrawal of a segment may precede the message, so only segments that are still announced are checked.
        if segment == NO_SEGMENT || owner.epoch != epoch || !owner.segments.is_current(segment) {
            return;
        }
        let ptr = RemotePtr { member: from as u32, epoch, segment, offset: 0, len: 8 };
        if let Err(error) = self.members[member].keys.resolve(peer, ptr) {
            self.report_violation(&format!("a message arrived before the key of a segment: {error}"));
        }
    }

    fn handle_reply(&mut self, member: usize, from: usize, call: CallId, result: Result<Vec<u8>, Failure>) {
        let Some(record) = self.take_outstanding(member, call.number()) else { return };
        self.mix(&[7, member as u64, from as u64, record.serial as u64, u64::from(result.is_ok())]);
        let max = self.max_data_len();
        let issued = &self.issued[record.serial];
        let may_be_overloaded =
            !issued.is_delivered && self.call_config.max_requests < self.call_config.max_calls;
        let is_correct = match &result {
            Ok(data) => issued.answer == Some(Ok(())) && *data == reply_data(record.serial, max),
            Err(Failure::Overloaded) => may_be_overloaded,
            Err(failure) => issued.answer == Some(Err(*failure)),
        };
        match result {
            Ok(_) => self.layers.answered_calls += 1,
            Err(_) => self.layers.failed_calls += 1,
        }
        if !is_correct || record.to != from || record.call != call {
            self.report_violation("a reply does not belong to its call");
        }
    }

    /// Ends the calls whose deadlines have expired.
    pub(super) fn expire_calls(&mut self, member: usize) {
        let now = self.now;
        while let Some(call) = self.members[member].rpc.poll_expired(now) {
            let Some(record) = self.take_outstanding(member, call.number()) else { return };
            self.mix(&[8, member as u64, record.serial as u64]);
            self.layers.expired_calls += 1;
            if record.deadline.is_none_or(|deadline| deadline > now) {
                self.report_violation("a call expired before its deadline");
            }
        }
        let is_late = |record: &Outstanding| record.deadline.is_some_and(|deadline| deadline <= now);
        if self.members[member].calls.outstanding.values().any(is_late) {
            self.report_violation("a call did not expire at its deadline");
        }
    }

    /// Ends the calls of an ended session.
    pub(super) fn end_calls(&mut self, member: usize, peer: usize) {
        let id = PeerId(peer as u16);
        self.members[member].rpc.end(id);
        while let Some(call) = self.members[member].rpc.poll_ended(id) {
            if self.take_outstanding(member, call.number()).is_none() {
                return;
            }
            self.mix(&[9, member as u64, peer as u64]);
            self.layers.lost_calls += 1;
        }
        let is_left = |record: &Outstanding| record.to == peer;
        if self.members[member].calls.outstanding.values().any(is_left) {
            self.report_violation("a call did not end with its session");
        }
    }

    /// Sends the queued messages of a member's calls.
    pub(super) fn send_call_messages(&mut self, member: usize) {
        while let Some(peer) = self.members[member].rpc.poll_ready() {
            self.send_queued(member, usize::from(peer.0));
        }
    }

    /// Sends the queued messages to a peer, as far as slots and credits allow.
    pub(super) fn send_queued(&mut self, member: usize, peer: usize) {
        let id = PeerId(peer as u16);
        while self.is_open(member, peer)
            && !self.members[member].peers[peer].message_blocked
            && self.members[member].rpc.has_output(id)
        {
            let Some(slot) = self.take_call_slot(member, peer) else { return };
            let Some((header, data)) =
                self.members[member].rpc.poll_output(id).map(|output| (output.header, output.data.to_vec()))
            else {
                return self.report_violation("a waiting message is missing");
            };
            self.post_call_message(member, peer, slot, header, &data);
        }
    }

    /// Checks that no member violated the protocol, and that each call is counted exactly once.
    fn check_counters(&mut self, member: usize) {
        let RpcCounters {
            calls,
            answered_calls,
            expired_calls,
            cancelled_calls,
            lost_calls,
            unknown_replies,
            duplicate_requests,
            malformed_messages,
            ..
        } = *self.members[member].rpc.counters();
        if unknown_replies + duplicate_requests + malformed_messages > 0 {
            self.report_violation("a message of a correct member was rejected");
        }
        let ended = answered_calls + expired_calls + cancelled_calls + lost_calls;
        if calls - ended != self.members[member].calls.outstanding.len() as u64 {
            self.report_violation("a call was counted not at all or twice");
        }
    }

    /// Describes the calls and requests of a member that have not ended.
    pub(super) fn describe_calls(&self, member: usize) -> String {
        let Calls { outstanding, pending } = &self.members[member].calls;
        let issued = outstanding.values().next().map(|record| &self.issued[record.serial]);
        format!("member {member}: {} calls ({issued:?}), {} requests", outstanding.len(), pending.len())
    }
}
