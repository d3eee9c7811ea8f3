//! A thread that makes calls, and answers those of the peers.
//!
//! Requests of a session are numbered from 0, and arrive in order. A request starts with its number. Some are answered
//! later and in another order, some are dropped, some have an unknown method, and some are cancelled or time out.

use std::collections::HashMap;
use std::time::Duration;

use adverb::cluster::{CallError, CallId, Event, Failure, PeerId, Reply, Rpc, RpcEvent};
use anyhow::{Context, Result, bail, ensure};

use crate::content::Purpose;
use crate::lines::{Fault, Tally};
use crate::session::{Pointers, Refusal, Session, refusal};
use crate::worker::{BURST, EVENT_TIMEOUT, FAULT_AT, Worker};

/// The methods.
const POINTERS: u16 = 1;
const ANSWER: u16 = 2;
const ANSWER_LATER: u16 = 3;
const DROP: u16 = 4;
const WROTE: u16 = 5;
const FINAL: u16 = 6;
const UNKNOWN: u16 = 7;

/// The maximum number of outstanding calls to a peer.
const MAX_CALLS: usize = 32;
/// The maximum length of a request's content.
const MAX_CONTENT: usize = 400;

/// A thread that makes calls, and answers those of the peers.
pub(crate) struct CallThread {
    worker: Worker,
    peers: Vec<Option<Link>>,
    /// The requests to answer later.
    later: Vec<(Reply, u64)>,
}

/// An open session.
struct Link {
    session: Session,
    /// The outstanding calls.
    calls: HashMap<CallId, Call>,
    /// The number of requests and answers, which count as the messages of the quota.
    message_count: u64,
    is_blocked: bool,
    has_sent_pointers: bool,
    has_sent_final: bool,
    is_final_confirmed: bool,
    has_received_final: bool,
    is_flowing: bool,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    number: u64,
    method: u16,
    has_timeout: bool,
}

impl CallThread {
    pub(crate) fn new(worker: Worker) -> CallThread {
        let peers = worker.settings.addrs.iter().map(|_| None).collect();
        CallThread { worker, peers, later: Vec::new() }
    }

    /// Runs until the coordinator closes the input.
    pub(crate) fn run(mut self, mut rpc: Rpc) -> Result<()> {
        while !self.worker.is_stopping() {
            let mut is_idle = true;
            for index in 0..self.peers.len() {
                is_idle &= !self.send(&mut rpc, index).with_context(|| format!("with member {index}"))?;
            }
            self.answer_some(&mut rpc)?;
            if is_idle && self.later.is_empty() {
                rpc.wait(EVENT_TIMEOUT)?;
            }
            let mut failure = None;
            rpc.poll(|rpc, event| {
                let peer = match &event {
                    RpcEvent::Request { from, .. } => from.0,
                    RpcEvent::CallEnded { call, .. } => call.peer().0,
                    RpcEvent::Broker(event) => event.peer().0,
                    _ => return,
                };
                if let Err(error) = self.handle(rpc, event, usize::from(peer)) {
                    failure.get_or_insert(error.context(format!("from member {peer}")));
                }
            })?;
            failure.map_or(Ok(()), Err)?;
            self.check_counters(&rpc)?;
            self.finish()?;
        }
        Ok(())
    }

    /// Checks the counters of messages that no correct peer sends.
    fn check_counters(&self, rpc: &Rpc) -> Result<()> {
        let counters = rpc.counters();
        let wrong = counters.unknown_replies
            + counters.duplicate_requests
            + counters.malformed_messages
            + counters.refused_requests;
        ensure!(wrong == 0, "invalid messages arrived: {counters:?}");
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let links = || self.peers.iter().flatten();
        let is_finished = |link: &Link| link.is_final_confirmed && link.has_received_final;
        if links().count() == self.peers.len() - 1 && links().all(is_finished) {
            self.worker.finish(links().map(|link| &link.session))?;
        }
        let this_member = usize::from(self.worker.settings.member);
        let peers = self.peers.iter().enumerate().filter(|(index, _)| *index != this_member);
        self.worker.publish(|| {
            let describe = |(index, link): (usize, &Option<Link>)| match link {
                None => Some(format!("{index}: no session")),
                Some(link) if is_finished(link) => None,
                Some(link) => Some(format!("{index}: {}", link.describe())),
            };
            peers.filter_map(describe).collect::<Vec<_>>().join("; ")
        });
        Ok(())
    }

    /// Answers some of the requests that wait, in random order.
    fn answer_some(&mut self, rpc: &mut Rpc) -> Result<()> {
        for _ in 0..self.later.len().div_ceil(2) {
            let index = self.worker.random.below(self.later.len() as u64) as usize;
            let (reply, number) = self.later.swap_remove(index);
            let Some(link) = &self.peers[usize::from(reply.peer().0)] else { continue };
            link.answer(rpc, reply, number)?;
        }
        Ok(())
    }

    /// Sends requests to a peer. Returns whether more can be sent at once.
    fn send(&mut self, rpc: &mut Rpc, index: usize) -> Result<bool> {
        let CallThread { worker, peers, .. } = self;
        let Some(link) = &mut peers[index] else { return Ok(false) };
        for _ in 0..BURST {
            if link.is_blocked {
                return Ok(false);
            }
            if worker.choose_close(&link.session) {
                rpc.broker_mut().close(PeerId(index as u16));
                return Ok(false);
            }
            match link.send_next(worker, rpc, PeerId(index as u16))? {
                Ok(true) | Err(Refusal::Later) => {}
                Ok(false) | Err(Refusal::NotOpen) => return Ok(false),
                Err(Refusal::Blocked) => link.is_blocked = true,
            }
        }
        Ok(true)
    }

    fn handle(&mut self, rpc: &mut Rpc, event: RpcEvent<'_>, index: usize) -> Result<()> {
        let CallThread { worker, peers, later } = self;
        let place = &mut peers[index];
        if let RpcEvent::Broker(Event::SessionOpened { epoch, .. }) = event {
            ensure!(place.is_none(), "a session was opened before the last one ended");
            *place = Some(Link {
                session: worker.open(index as u16, epoch)?,
                calls: HashMap::new(),
                message_count: 0,
                is_blocked: false,
                has_sent_pointers: false,
                has_sent_final: false,
                is_final_confirmed: false,
                has_received_final: false,
                is_flowing: false,
            });
            return Ok(());
        }
        let link = place.as_mut().context("an event without a session")?;
        match event {
            RpcEvent::Request { method, bytes, reply, .. } => {
                let number = link.session.received.messages;
                link.handle_request(worker, rpc, method, bytes, reply, later)
                    .with_context(|| format!("request {number} of the session, method {method}"))?;
            }
            RpcEvent::CallEnded { call, result } => {
                let ended = link.calls.remove(&call).context("a call ended that was not outstanding")?;
                link.handle_answer(worker, ended, result).with_context(|| format!("{ended:?}"))?;
            }
            RpcEvent::Broker(Event::Immediate { immediate, length, .. }) => {
                link.session.handle_immediate(immediate, length, &mut worker.counts)?;
            }
            RpcEvent::Broker(Event::Completed { ticket, result, payloads, .. }) => {
                link.session.handle_completed(ticket, result, payloads, &mut worker.counts)?;
            }
            RpcEvent::Broker(Event::Unblocked { .. }) => link.is_blocked = false,
            RpcEvent::Broker(Event::SessionEnded { epoch, reason, .. }) => {
                ensure!(link.calls.is_empty(), "the session ended before {} of its calls", link.calls.len());
                worker.end(&link.session, epoch, reason)?;
                *place = None;
                later.retain(|(reply, _)| usize::from(reply.peer().0) != index);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Link {
    /// Sends the next request or transfer. Returns `false` if there is none.
    fn send_next(
        &mut self,
        worker: &mut Worker,
        rpc: &mut Rpc,
        peer: PeerId,
    ) -> Result<std::result::Result<bool, Refusal>> {
        if self.has_sent_final || self.calls.len() >= MAX_CALLS {
            return Ok(Ok(false));
        }
        let is_final = self.has_sent_pointers && !worker.has_more(self.message_count);
        // The peer gets the final counts after all transfers and calls.
        if is_final && (self.session.ticket_count() > 0 || !self.calls.is_empty()) {
            return Ok(Ok(false));
        }
        if self.has_sent_pointers
            && !is_final
            && let Some(kind) = Worker::choose(&mut self.session.random)
        {
            let posted = self.session.post(rpc.broker_mut(), kind, &mut worker.counts)?;
            return Ok(posted.map(|()| true));
        }
        let mut request = match rpc.allocate_send_buf(peer) {
            Ok(request) => request,
            Err(error) => return Ok(Err(refusal(error)?)),
        };
        let number = self.session.sent.messages;
        request.write(&number.to_le_bytes())?;
        let (mut timeout, mut is_cancelled) = (None, false);
        let method = if !self.has_sent_pointers {
            POINTERS
        } else if is_final {
            let tally = Tally { messages: number + 1, ..self.session.sent };
            request.write(&tally.to_bytes())?;
            FINAL
        } else {
            let method = match self.session.random.below(64) {
                0..8 if self.session.can_write() => WROTE,
                8..16 => ANSWER_LATER,
                16 => DROP,
                17 => UNKNOWN,
                _ => ANSWER,
            };
            if method == WROTE {
                let is_batch = self.session.random.below(2) == 0;
                match self.session.post_write(rpc.broker_mut(), is_batch, &mut worker.counts)? {
                    Ok(write) => request.write(&write.to_le_bytes())?,
                    Err(refusal) => return Ok(Err(refusal)),
                }
            } else {
                let stream = self.session.outgoing(Purpose::Message);
                let len = stream.len(number, MAX_CONTENT);
                request.resize(8 + len)?;
                stream.fill(number, &mut request[8..]);
                match self.session.random.below(64) {
                    0 => is_cancelled = true,
                    1 => timeout = Some(Duration::from_millis(self.session.random.below(4))),
                    _ => {}
                }
            }
            method
        };
        let call = match rpc.post_call(request, method, timeout) {
            Ok(call) => call,
            Err(error) => return Ok(Err(refusal(error)?)),
        };
        self.session.sent.messages += 1;
        self.message_count += 1;
        self.has_sent_pointers = true;
        self.has_sent_final = is_final;
        if is_cancelled {
            ensure!(rpc.cancel(call), "a new call was not cancelled");
            worker.counts.unanswered_calls += 1;
        } else {
            let has_timeout = timeout.is_some();
            let last = self.calls.insert(call, Call { number, method, has_timeout });
            ensure!(last.is_none(), "two outstanding calls have the same id");
        }
        Ok(Ok(true))
    }

    fn handle_request(
        &mut self,
        worker: &mut Worker,
        rpc: &mut Rpc,
        method: u16,
        bytes: &[u8],
        reply: Reply,
        later: &mut Vec<(Reply, u64)>,
    ) -> Result<()> {
        let (number, body) = bytes.split_first_chunk::<8>().context("the request has no number")?;
        let number = u64::from_le_bytes(*number);
        let expected = self.session.received.messages;
        ensure!(number == expected, "number {number} arrived instead of {expected}");
        ensure!(!self.has_received_final, "it arrived after the final counts");
        self.session.received.messages += 1;
        worker.counts.requests += 1;
        worker.counts.bytes += bytes.len() as u64;
        match method {
            POINTERS => {
                let pointers = self.session.local_pointers(&worker.shared);
                self.send_reply(rpc, reply, &pointers.to_bytes())?;
            }
            WROTE => {
                let write = u64::from_le_bytes(body.try_into().context("the number of a WRITE")?);
                self.session.handle_write(write, &mut worker.counts)?;
                self.send_reply(rpc, reply, &self.session.received.writes.to_le_bytes())?;
            }
            FINAL => {
                let tally = Tally::from_bytes(body.try_into().context("the final counts")?);
                let received = self.session.received.messages;
                ensure!(tally.messages == received, "the peer made {} calls", tally.messages);
                self.session.handle_final(tally)?;
                self.has_received_final = true;
                self.send_reply(rpc, reply, &[])?;
            }
            _ => {
                let stream = self.session.incoming(Purpose::Message);
                let len = stream.len(number, MAX_CONTENT);
                ensure!(body.len() == len, "it has {} bytes instead of {len}", body.len());
                stream.check(number, 0, body)?;
                match method {
                    ANSWER if worker.fault() == Some(Fault::LostReply) && number > FAULT_AT => {
                        std::mem::forget(reply);
                    }
                    ANSWER => self.answer(rpc, reply, number)?,
                    ANSWER_LATER => later.push((reply, number)),
                    DROP => drop(reply),
                    _ => rpc.reject(reply, Failure::UnknownMethod),
                }
            }
        }
        Ok(())
    }

    /// Answers a request with content.
    fn answer(&self, rpc: &mut Rpc, reply: Reply, number: u64) -> Result<()> {
        let stream = self.session.outgoing(Purpose::Reply);
        let mut bytes = [0; MAX_CONTENT];
        let bytes = &mut bytes[..stream.len(number, MAX_CONTENT)];
        stream.fill(number, bytes);
        self.send_reply(rpc, reply, bytes)
    }

    fn send_reply(&self, rpc: &mut Rpc, reply: Reply, bytes: &[u8]) -> Result<()> {
        match rpc.reply(reply, bytes) {
            Ok(()) => Ok(()),
            // The call was cancelled, timed out, or its session ended.
            Err(refused) if matches!(refused.error, adverb::cluster::PostError::RequestEnded { .. }) => {
                Ok(())
            }
            Err(refused) => Err(refused.error).context("a reply was rejected"),
        }
    }

    fn handle_answer(
        &mut self,
        worker: &mut Worker,
        call: Call,
        result: std::result::Result<&[u8], CallError>,
    ) -> Result<()> {
        let Call { number, method, has_timeout } = call;
        match result {
            Err(CallError::SessionEnded { .. }) => {
                worker.counts.unanswered_calls += 1;
                return Ok(());
            }
            Err(CallError::TimedOut { .. }) => {
                ensure!(has_timeout, "a call without a timeout timed out");
                worker.counts.unanswered_calls += 1;
                return Ok(());
            }
            Err(CallError::Failed { source: Failure::NoReply, .. }) => {
                ensure!(method == DROP, "the call was dropped");
            }
            Err(CallError::Failed { source: Failure::UnknownMethod, .. }) => {
                ensure!(method == UNKNOWN, "the peer doesn't know the method");
            }
            Err(error) => bail!("{error}"),
            Ok(bytes) => {
                worker.counts.bytes += bytes.len() as u64;
                match method {
                    POINTERS => self.session.pointers = Some(Pointers::from_bytes(bytes)?),
                    WROTE => {
                        let checked = u64::from_le_bytes(bytes.try_into().context("a number of WRITEs")?);
                        self.session.handle_checked(checked)?;
                    }
                    FINAL => self.is_final_confirmed = true,
                    ANSWER | ANSWER_LATER => {
                        let stream = self.session.incoming(Purpose::Reply);
                        let len = stream.len(number, MAX_CONTENT);
                        ensure!(bytes.len() == len, "the reply has {} bytes instead of {len}", bytes.len());
                        stream.check(number, 0, bytes)?;
                    }
                    _ => bail!("a call of method {method} has a reply"),
                }
            }
        }
        self.message_count += 1;
        worker.counts.replies += 1;
        if number > 0 && !self.is_flowing {
            self.is_flowing = true;
            worker.print_flowing(&self.session);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let Link { session, calls, is_blocked, is_final_confirmed, has_received_final, .. } = self;
        format!(
            "called {}, received {}, {} calls and {} tickets outstanding, blocked {is_blocked}, final confirmed \
             {is_final_confirmed}, received {has_received_final}",
            session.sent.messages,
            session.received.messages,
            calls.len(),
            session.ticket_count()
        )
    }
}
