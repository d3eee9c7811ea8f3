//! Calls between the brokers of a cluster, as a pure state machine.
//!
//! An [`Rpc`] belongs to a [`Broker`](crate::Broker), whose messages it interprets: requests, replies, failures and
//! cancellations. It knows the outstanding calls to each peer and their deadlines, and the requests of each peer that
//! were not answered. Both numbers are bounded for each session. It does no I/O: a driver passes on messages and the time.
//!
//! | input | output |
//! |---|---|
//! | [`open`](Rpc::open), [`end`](Rpc::end) | [`poll_ended`](Rpc::poll_ended): the calls of an ended session |
//! | [`call`](Rpc::call), [`cancel`](Rpc::cancel), [`answer`](Rpc::answer), [`queue_reply`](Rpc::queue_reply), [`queue_failure`](Rpc::queue_failure) | [`poll_ready`](Rpc::poll_ready), [`poll_output`](Rpc::poll_output): messages to send |
//! | [`handle_message`](Rpc::handle_message) | [`Incoming`] |
//! | [`poll_expired`](Rpc::poll_expired) with the time | [`poll_timeout`](Rpc::poll_timeout) |
//!
//! # Calls
//!
//! A call ends exactly once: with its reply or failure, when its deadline expires, when it is cancelled, or when its
//! session ends. Replies may arrive in any order. A reply to a call that has ended is dropped and
//! [counted](RpcCounters::late_replies). For each expired or cancelled call, this side sends the peer a cancellation. The index of
//! the call is reused only after that message, so the peer never has more requests than [`RpcConfig::max_calls`].
//!
//! # Frames
//!
//! A message of the broker has one or more frames, each of them a request, a reply, a failure or a cancellation. The
//! driver splits a message with [`split_frame`], and passes each frame to [`handle_message`](Rpc::handle_message).
//!
//! # Peers are not trusted
//!
//! A peer can end only its own calls and requests. Messages that no correct peer sends have no effect and are counted.
//! A peer that grants no credits can make this side keep at most one answer for each of its requests.
//!
//! ```
//! use adverb_cluster_proto::PeerId;
//! use adverb_cluster_proto::rpc::{RpcConfig, Header, Incoming, Rpc};
//! use adverb_proto::Time;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let peer = PeerId(0);
//! let (mut client, mut server) = (Rpc::new(RpcConfig::default(), 1)?, Rpc::new(RpcConfig::default(), 1)?);
//! client.open(peer, 1)?;
//! server.open(peer, 1)?;
//!
//! let (call, header) = client.call(peer, 7, None, Time::ZERO)?;
//! let mut message = header.to_bytes().to_vec();
//! message.extend(b"ping");
//!
//! let Incoming::Request { request, method: 7, data, .. } = server.handle_message(peer, &message) else {
//!     unreachable!()
//! };
//! assert_eq!(data, b"ping");
//! let mut reply = server.answer(request)?.to_bytes().to_vec();
//! reply.extend(b"pong");
//!
//! let Incoming::Reply { call: answered, result } = client.handle_message(peer, &reply) else { unreachable!() };
//! assert_eq!((answered, result), (call, Ok(&b"pong"[..])));
//! # Ok(())
//! # }
//! ```

mod calls;
mod header;
mod requests;
#[cfg(test)]
mod tests;
mod timers;
mod types;

use core::time::Duration;
use std::collections::VecDeque;

use adverb_proto::Time;

use crate::config::MAX_PEERS;
use crate::mutation::mutant;
use crate::{ConfigError, PeerId, PostError, SessionError};
use calls::{Calls, ReplyMatch};
use requests::{Admission, Answer, Requests};
use timers::Timers;

pub use header::{Failure, HEADER_LEN, Header, WireId, set_frame_len, split_frame};
pub use types::{CallError, CallId, Execution, Incoming, Output, RequestId, RpcConfig, RpcCounters};

/// The calls and requests of a broker.
#[derive(Debug)]
pub struct Rpc {
    config: RpcConfig,
    peers: Vec<RpcPeer>,
    timers: Timers<CallId>,
    /// The peers with messages to send.
    ready: VecDeque<PeerId>,
    counters: RpcCounters,
}

#[derive(Debug)]
struct RpcPeer {
    phase: RpcPhase,
    /// The number of the session.
    session: u32,
    calls: Calls,
    requests: Requests,
    /// Whether the peer is in the list of peers with messages to send.
    is_ready: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RpcPhase {
    Closed,
    Open {
        epoch: u64,
    },
    /// The session ended, but its calls were not reported yet.
    Ending,
}

impl RpcPeer {
    fn is_open(&self) -> bool {
        matches!(self.phase, RpcPhase::Open { .. })
    }

    fn has_output(&self) -> bool {
        self.is_open() && (self.calls.has_cancellation() || self.requests.has_answer())
    }
}

impl Rpc {
    /// Creates a state machine for a broker with `peer_count` peers. It has no session.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError`] if a number is out of range.
    pub fn new(config: RpcConfig, peer_count: usize) -> Result<Rpc, ConfigError> {
        config.validate()?;
        if peer_count > MAX_PEERS {
            return Err(ConfigError::TooManyPeers { requested: peer_count, max: MAX_PEERS });
        }
        let peer = || RpcPeer {
            phase: RpcPhase::Closed,
            session: 0,
            calls: Calls::default(),
            requests: Requests::default(),
            is_ready: false,
        };
        Ok(Rpc {
            config,
            peers: core::iter::repeat_with(peer).take(peer_count).collect(),
            timers: Timers::new(),
            ready: VecDeque::new(),
            counters: RpcCounters::default(),
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &RpcConfig {
        &self.config
    }

    /// Returns the numbers of calls, requests and unexpected messages so far.
    pub fn counters(&self) -> &RpcCounters {
        &self.counters
    }

    /// Returns the epoch of a peer's session, if it is open.
    pub fn epoch(&self, peer: PeerId) -> Option<u64> {
        match self.peers.get(usize::from(peer.0))?.phase {
            RpcPhase::Open { epoch } => Some(epoch),
            _ => None,
        }
    }

    /// Returns the number of calls to a peer that wait for a reply.
    pub fn outstanding_call_count(&self, peer: PeerId) -> usize {
        self.peers.get(usize::from(peer.0)).map_or(0, |state| state.calls.outstanding_count())
    }

    /// Returns the number of requests of a peer that the application has not answered.
    pub fn pending_request_count(&self, peer: PeerId) -> usize {
        self.peers.get(usize::from(peer.0)).map_or(0, |state| state.requests.pending_count())
    }

    /// Returns the bytes of the state. The call visits all peers.
    pub fn state_bytes(&self) -> usize {
        let peer_bytes = |state: &RpcPeer| state.calls.heap_bytes() + state.requests.heap_bytes();
        size_of::<Rpc>()
            + self.peers.capacity() * size_of::<RpcPeer>()
            + self.peers.iter().map(peer_bytes).sum::<usize>()
            + self.timers.heap_bytes()
            + self.ready.capacity() * size_of::<PeerId>()
    }

    /// Opens a session with a peer.
    ///
    /// # Errors
    ///
    /// Returns [`SessionError::UnknownPeer`], or [`SessionError::WrongPhase`] if a session exists or its calls were not
    /// [taken](Rpc::poll_ended).
    pub fn open(&mut self, peer: PeerId, epoch: u64) -> Result<(), SessionError> {
        let unknown = SessionError::UnknownPeer { peer };
        let state = self.peers.get_mut(usize::from(peer.0)).ok_or(unknown)?;
        if state.phase != RpcPhase::Closed {
            return Err(SessionError::WrongPhase { peer, expected: crate::Phase::Closed });
        }
        state.phase = RpcPhase::Open { epoch };
        state.session = state.session.wrapping_add(1);
        Ok(())
    }

    /// Ends the session with a peer. Its requests end without an answer, and [`poll_ended`](Rpc::poll_ended) returns its
    /// calls.
    pub fn end(&mut self, peer: PeerId) {
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)).filter(|state| state.is_open()) {
            state.phase = RpcPhase::Ending;
            state.calls.end();
            state.requests.end();
        }
    }

    /// Returns the next call that ended because its session did.
    pub fn poll_ended(&mut self, peer: PeerId) -> Option<CallId> {
        let state =
            self.peers.get_mut(usize::from(peer.0)).filter(|state| state.phase == RpcPhase::Ending)?;
        let Some((id, timer)) = state.calls.take_ended() else {
            state.phase = RpcPhase::Closed;
            return None;
        };
        if let Some(timer) = timer {
            self.timers.remove(timer);
        }
        self.counters.lost_calls += 1;
        Some(CallId { peer, id })
    }

    /// Checks that a call to a peer can be started.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`call`](Rpc::call).
    pub fn check_call(&self, peer: PeerId) -> Result<(), PostError> {
        let state = self.peers.get(usize::from(peer.0)).filter(|state| state.is_open());
        let max = self.config.max_calls;
        match state {
            None => Err(PostError::NotOpen { peer }),
            Some(state) if state.calls.is_full(max) => Err(PostError::TooManyCalls { peer, max }),
            Some(_) => Ok(()),
        }
    }

    /// Starts a call, and returns the header of its request. The driver sends the request, or calls
    /// [`withdraw`](Rpc::withdraw).
    ///
    /// # Errors
    ///
    /// Returns [`PostError::NotOpen`] without a session, and [`PostError::TooManyCalls`] if the session has
    /// [`max_calls`](RpcConfig::max_calls) calls.
    pub fn call(
        &mut self,
        peer: PeerId,
        method: u16,
        timeout: Option<Duration>,
        now: Time,
    ) -> Result<(CallId, Header), PostError> {
        let state = self.peers.get_mut(usize::from(peer.0)).filter(|state| state.is_open());
        let state = state.ok_or(PostError::NotOpen { peer })?;
        let max = self.config.max_calls;
        let id = state.calls.start(max).ok_or(PostError::TooManyCalls { peer, max })?;
        let call = CallId { peer, id };
        if let Some(timeout) = timeout {
            state.calls.set_timer(id, self.timers.insert(now + timeout, call));
        }
        self.counters.calls += 1;
        Ok((call, Header::Request { id, method, timeout }))
    }

    /// Whether a call waits for its reply.
    pub fn is_outstanding(&self, call: CallId) -> bool {
        let state = self.peers.get(usize::from(call.peer.0));
        state.is_some_and(|state| state.calls.is_outstanding(call.id))
    }

    /// Ends a call whose request was not sent.
    pub fn withdraw(&mut self, call: CallId) {
        let Some(state) = self.peers.get_mut(usize::from(call.peer.0)) else { return };
        if !state.calls.is_outstanding(call.id) {
            return;
        }
        if let ReplyMatch::Outstanding { timer: Some(timer) } = state.calls.finish(call.id) {
            self.timers.remove(timer);
        }
        self.counters.calls -= 1;
    }

    /// Cancels a call. Returns `false` if it has ended already.
    pub fn cancel(&mut self, call: CallId) -> bool {
        let is_cancelled = self.end_call(call);
        self.counters.cancelled_calls += u64::from(is_cancelled);
        is_cancelled
    }

    /// Ends the next call whose deadline has expired, and returns it.
    pub fn poll_expired(&mut self, now: Time) -> Option<CallId> {
        let (_, call) = self.timers.first().filter(|(at, _)| *at <= now && !mutant!(DeadlinesIgnored))?;
        if mutant!(ExpiryUnannounced) {
            self.withdraw(call);
            self.counters.calls += 1;
        }
        self.end_call(call);
        self.counters.expired_calls += 1;
        Some(call)
    }

    /// Returns the time at which the next call expires.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| at)
    }

    /// Ends an outstanding call before its reply.
    fn end_call(&mut self, call: CallId) -> bool {
        let Some(state) = self.peers.get_mut(usize::from(call.peer.0)) else { return false };
        // The calls of an ended session are returned by `poll_ended`, but may expire before.
        let cancelled = if state.is_open() {
            state.calls.cancel(call.id)
        } else {
            match state.calls.is_outstanding(call.id).then(|| state.calls.finish(call.id)) {
                Some(ReplyMatch::Outstanding { timer }) => Some(timer),
                _ => None,
            }
        };
        let Some(timer) = cancelled else { return false };
        if let Some(timer) = timer {
            self.timers.remove(timer);
        }
        self.mark_ready(call.peer);
        true
    }

    /// Processes a frame of a peer's message. The peer must have an open session.
    pub fn handle_message<'a>(&mut self, peer: PeerId, frame: &'a [u8]) -> Incoming<'a> {
        let state = self.peers.get_mut(usize::from(peer.0)).filter(|state| state.is_open());
        let Some((state, (header, data))) = state.zip(Header::parse(frame)) else {
            self.counters.malformed_messages += 1;
            return Incoming::Ignored;
        };
        match header {
            Header::Request { id, method, timeout } => {
                match state.requests.admit(id, self.config.max_requests) {
                    Admission::Accepted => {
                        self.counters.requests += 1;
                        let request = RequestId { peer, session: state.session, id };
                        return Incoming::Request { request, method, timeout, data };
                    }
                    Admission::Refused => {
                        self.counters.refused_requests += 1;
                        self.mark_ready(peer);
                    }
                    Admission::Excess => self.counters.refused_requests += 1,
                    Admission::Duplicate => self.counters.duplicate_requests += 1,
                }
                Incoming::Ignored
            }
            Header::Reply { id } => self.finish_call(CallId { peer, id }, Ok(data)),
            Header::Failure { id, failure } => self.finish_call(CallId { peer, id }, Err(failure)),
            Header::Cancel { id } => {
                if state.requests.cancel(id) {
                    self.counters.cancelled_requests += 1;
                } else {
                    self.counters.late_cancellations += 1;
                }
                Incoming::Ignored
            }
        }
    }

    fn finish_call<'a>(&mut self, call: CallId, result: Result<&'a [u8], Failure>) -> Incoming<'a> {
        let Some(state) = self.peers.get_mut(usize::from(call.peer.0)) else { return Incoming::Ignored };
        match state.calls.finish(call.id) {
            ReplyMatch::Outstanding { timer } => {
                if let Some(timer) = timer.filter(|_| !mutant!(DeadlineOfAnsweredCall)) {
                    self.timers.remove(timer);
                }
                self.counters.answered_calls += 1;
                return Incoming::Reply { call, result };
            }
            ReplyMatch::Late => self.counters.late_replies += 1,
            ReplyMatch::Unknown => self.counters.unknown_replies += 1,
        }
        Incoming::Ignored
    }

    /// Whether a request can be answered: its caller waits, and its session is open.
    pub fn is_pending(&self, request: RequestId) -> bool {
        let state = self.peers.get(usize::from(request.peer.0));
        let is_current = |session: u32| session == request.session || mutant!(RequestSurvivesSession);
        let state = state.filter(|state| state.is_open() && is_current(state.session));
        state.is_some_and(|state| state.requests.is_pending(request.id))
    }

    /// Ends a request whose reply the driver sends now, and returns the header of the reply.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::RequestEnded`] if the request was answered or cancelled, or if its session has ended.
    pub fn answer(&mut self, request: RequestId) -> Result<Header, PostError> {
        let RequestId { peer, id, .. } = request;
        let is_answered = self.peer_of(request).is_some_and(|state| state.requests.finish(id));
        if is_answered { Ok(Header::Reply { id }) } else { Err(PostError::RequestEnded { peer }) }
    }

    /// Ends a request, and keeps its reply until [`poll_output`](Rpc::poll_output) returns it.
    ///
    /// # Errors
    ///
    /// Returns the same error as [`answer`](Rpc::answer).
    pub fn queue_reply(&mut self, request: RequestId, data: &[u8]) -> Result<(), PostError> {
        self.queue_answer(request, Answer::Reply, data)
    }

    /// Ends a request, and keeps its failure until [`poll_output`](Rpc::poll_output) returns it.
    ///
    /// # Errors
    ///
    /// Returns the same error as [`answer`](Rpc::answer).
    pub fn queue_failure(&mut self, request: RequestId, failure: Failure) -> Result<(), PostError> {
        self.queue_answer(request, Answer::Failure(failure), &[])
    }

    fn queue_answer(&mut self, request: RequestId, answer: Answer, data: &[u8]) -> Result<(), PostError> {
        let RequestId { peer, id, .. } = request;
        if !self.peer_of(request).is_some_and(|state| state.requests.queue(id, answer, data)) {
            return Err(PostError::RequestEnded { peer });
        }
        self.mark_ready(peer);
        Ok(())
    }

    /// Returns the peer of a request, if the request's session is open.
    fn peer_of(&mut self, request: RequestId) -> Option<&mut RpcPeer> {
        let state = self.peers.get_mut(usize::from(request.peer.0))?;
        let is_current = state.session == request.session || mutant!(RequestSurvivesSession);
        (state.is_open() && is_current).then_some(state)
    }

    /// Returns a peer to which messages are to be sent. A peer whose messages were not all taken is returned again after
    /// [`mark_ready`](Rpc::mark_ready), or when there is another message.
    pub fn poll_ready(&mut self) -> Option<PeerId> {
        while let Some(peer) = self.ready.pop_front() {
            if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
                state.is_ready = false;
                if state.has_output() {
                    return Some(peer);
                }
            }
        }
        None
    }

    /// Whether there are messages to send to a peer.
    pub fn has_output(&self, peer: PeerId) -> bool {
        self.peers.get(usize::from(peer.0)).is_some_and(RpcPeer::has_output)
    }

    /// Makes [`poll_ready`](Rpc::poll_ready) return a peer if there are messages to send to it.
    pub fn mark_ready(&mut self, peer: PeerId) {
        let state = self.peers.get_mut(usize::from(peer.0));
        if let Some(state) = state.filter(|state| !state.is_ready && state.has_output()) {
            state.is_ready = true;
            self.ready.push_back(peer);
        }
    }

    /// Takes the next message to a peer. The driver must send it before any later one.
    pub fn poll_output(&mut self, peer: PeerId) -> Option<Output<'_>> {
        let state = self.peers.get_mut(usize::from(peer.0)).filter(|state| state.is_open())?;
        if let Some(id) = state.calls.take_cancellation() {
            return Some(Output { header: Header::Cancel { id }, data: &[] });
        }
        let (header, data) = state.requests.take_answer()?;
        Some(Output { header, data })
    }
}
