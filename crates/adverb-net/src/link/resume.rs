//! Going on over other queue pairs.
//!
//! Messages are numbered, in the order in which they are sent. What was written is kept until the peer has said that it read
//! it, so that what it didn't get can be written again: when a lane breaks, each side counts what it has, tells the other
//! in its hello over the next one, and the other begins behind that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use adverb_verbs::memory::PoolBuf;
use adverb_verbs::{ArmFor, Error, Result, internal};

use super::sending::Body;
use super::{
    Batch, Entry, Exposed, FRAMES, Link, OPERATION, Offered, Ready, State, end_for_good, operation, weight,
};
use crate::key::Key;
use crate::message::{SendData, Source, UnacknowledgedMessage};
use crate::protocol::handshake::{Session, SessionId};
use crate::protocol::proof::Role;
use crate::protocol::{Announced, Frame, FrameKind, HEADER_LEN, LONGEST_RING, Violation};
use crate::session::{self, RedialHandle};

/// What is kept and counted. If the connection isn't one that goes on, nothing is kept.
#[derive(Default)]
pub(super) struct Resume {
    /// Whether both sides want it to go on.
    pub(super) is_on: bool,
    id: SessionId,
    /// How many lanes there were before this one.
    pub(super) generation: u32,
    /// How many messages were taken to be sent, and how many came. (The end is one.)
    pub(super) sent: u64,
    pub(super) taken: u64,
    /// Of what came, how much were ends.
    pub(super) ends: u64,
    /// The writes that the device has: their numbers, and those of their first messages.
    posted: VecDeque<(u64, u64)>,
    /// Those that the device gave back and the peer hasn't read.
    kept: VecDeque<(u64, u64, PoolBuf)>,
    /// How many bytes these have.
    kept_len: usize,
    /// Those that the device didn't take.
    refused: Vec<(u64, PoolBuf)>,
    /// How many writes the peer has read.
    read: u64,
    /// What is to be sent before anything else.
    pub(super) replay: VecDeque<Ready<'static>>,
    /// Why the lane is broken; and whether all that it had was taken in, and how many messages that were.
    down: Option<String>,
    received: Option<u64>,
    /// The connection that this is to be the next lane of, while its old lane is not drained yet.
    interrupting: Option<Arc<Link>>,
    /// The connection that this is to be the next lane of, how many messages that has, and how many its peer.
    goes_on: Option<(Arc<Link>, u64)>,
    peer_received: u64,
    /// Whether one of the sides knows nothing of the connection that is to go on.
    pub(super) is_unknown: bool,
    /// The redialer's work for this connection while it is broken.
    redial: Option<RedialHandle>,
}

/// What a peer says that doesn't know a connection any more.
pub(crate) const UNKNOWN: &str = "the peer does not know the session: its program has restarted, closed the connection, or stopped \
     waiting";

impl Resume {
    pub(super) fn is_down(&self) -> bool {
        self.down.is_some()
    }

    /// Whether there is something to be sent that isn't.
    pub(super) fn is_behind(&self) -> bool {
        self.is_down() || !self.replay.is_empty()
    }

    /// Whether so much is kept that no more is written: a peer that says it has read what comes after an offer, and never that
    /// it has read that, doesn't have this side keep things without end.
    pub(super) fn is_full(&self) -> bool {
        self.kept_len >= MOST_KEPT
    }

    /// Whether the hello waits for the old lane of the connection that is to go on.
    pub(super) fn is_interrupting(&self) -> bool {
        self.interrupting.is_some()
    }

    /// Notes that the lane is broken; says whether there may be another.
    pub(super) fn goes_down(&mut self, reason: &str) -> bool {
        if self.is_on {
            self.down.get_or_insert_with(|| reason.to_owned());
        }
        self.is_on
    }

    /// A write goes to the device.
    pub(super) fn writes(&mut self, number: u64, first: u64) {
        self.posted.push_back((number, first));
    }
}

/// The device didn't take the last write.
pub(super) fn refused(state: &mut State, buffer: Option<PoolBuf>) {
    if let Some((_, first)) = state.resume.posted.pop_back()
        && let Some(buffer) = buffer
    {
        state.resume.refused.push((first, buffer));
    }
}

/// The device gives the oldest write back, done or not. (What isn't a write of frames has no buffer.)
pub(super) fn written(state: &mut State, buffer: Option<PoolBuf>) {
    if let Some(buffer) = buffer
        && let Some((number, first)) = state.resume.posted.pop_front()
    {
        state.resume.kept_len += buffer.len();
        state.resume.kept.push_back((number, first, buffer));
        forget(state);
    }
}

/// The peer has read so many writes.
pub(super) fn acknowledged(state: &mut State, writes: u64) {
    state.resume.read = writes;
    forget(state);
}

/// Forgets what the peer has, whatever comes: all that it has read before the first message that it is still to read from where
/// that is. What is behind that it can't count as received.
pub(super) fn forget(state: &mut State) {
    let State { resume, offers, batch, .. } = state;
    let offered = offers.front().map_or(u64::MAX, |offered| offered.number);
    while let Some((number, ..)) = resume.kept.front()
        && *number <= resume.read
    {
        let next = resume.kept.get(1).map(|(_, first, _)| *first);
        let next = next.or_else(|| resume.posted.front().map(|(_, first)| *first));
        let end = next.or_else(|| batch.as_ref().map(|batch| batch.first)).unwrap_or(resume.sent);
        if offered < end {
            break;
        }
        if let Some((.., buffer)) = resume.kept.pop_front() {
            resume.kept_len -= buffer.len();
        }
    }
}

/// What was sent and the peer may not have.
struct Outstanding {
    /// By number.
    messages: BTreeMap<u64, Ready<'static>>,
    exposed: Vec<Exposed>,
    /// How many were sent, with those that are here.
    sent: u64,
}

/// The result of interrupting a connection.
enum Interrupt {
    /// The lane is not drained yet.
    Pending,
    /// The connection has received so many messages over all its lanes.
    Drained(u64),
    /// The connection has ended.
    Ended,
}

impl Link {
    /// What the hello says of the connection.
    pub(super) fn session_to_tell(&self, state: &State) -> Option<Session> {
        match self.role {
            Role::Connector => self.options.session,
            Role::Listener if !state.resume.is_on => None,
            Role::Listener => {
                let received = state.resume.goes_on.as_ref().map(|(_, received)| *received);
                Some(Session { id: state.resume.id, received })
            }
        }
    }

    /// Takes in what the peer's hello says of the connection.
    pub(super) fn recognise(&self, state: &mut State, session: Option<Session>) -> Result<(), Violation> {
        let resume = &mut state.resume;
        match (self.role, self.options.session, session) {
            // It goes on, or isn't known.
            (Role::Connector, Some(Session { id, received: Some(_) }), answer) => match answer {
                Some(Session { id: known, received: Some(received) }) if known == id => {
                    (resume.is_on, resume.id, resume.peer_received) = (true, id, received);
                }
                _ => resume.is_unknown = true,
            },
            // It begins.
            (Role::Connector, Some(Session { id, received: None }), Some(answer)) => {
                if answer != (Session { id, received: None }) {
                    return Err(Violation("it answered a new session with an old one"));
                }
                (resume.is_on, resume.id) = (true, id);
            }
            (Role::Connector, None, Some(_)) => {
                return Err(Violation("it sent a session, but none was requested"));
            }
            (Role::Listener, _, Some(Session { id, received: None })) => {
                (resume.is_on, resume.id) = (self.options.reconnect.is_some(), id);
            }
            (Role::Listener, _, Some(Session { id, received: Some(peer_received) })) => {
                // Sessions are those of all listeners, and who has heard one's number may not know another's key.
                let keys_fit =
                    |link: &Arc<Link>| Key::is_same(self.options.key.as_ref(), link.options.key.as_ref());
                (resume.id, resume.peer_received) = (id, peer_received);
                resume.interrupting = session::find(&id).filter(keys_fit);
                resume.is_unknown = resume.interrupting.is_none();
                self.poll_interrupt(state);
            }
            (_, _, None) => {}
        }
        Ok(())
    }

    /// Looks whether the old lane of the connection that this one resumes has drained. Only then is the hello sent: it says how
    /// many messages arrived over the old lane. Never blocks.
    pub(super) fn poll_interrupt(&self, state: &mut State) {
        let Some(link) = state.resume.interrupting.take() else { return };
        match link.interrupt() {
            Interrupt::Pending => state.resume.interrupting = Some(link),
            Interrupt::Drained(received) => {
                state.resume.is_on = true;
                state.resume.goes_on = Some((link, received));
            }
            Interrupt::Ended => state.resume.is_unknown = true,
        }
    }

    /// Whether the hello waits for the old lane of the connection that this one resumes.
    pub(crate) fn is_interrupting(&self) -> bool {
        self.lock().resume.is_interrupting()
    }

    /// The connection that this one is the next lane of, if it is.
    pub(crate) fn goes_on(&self) -> Option<Arc<Link>> {
        self.lock().resume.goes_on.take().map(|(link, _)| link)
    }

    /// What the connection is known by, if it goes on.
    pub(crate) fn session(&self) -> Option<SessionId> {
        let state = self.lock();
        state.resume.is_on.then_some(state.resume.id)
    }

    /// Breaks the lane, because the peer has reconnected over another one. Never blocks.
    fn interrupt(&self) -> Interrupt {
        // The holder of the lock may be draining the lane.
        let Some(mut state) = self.state.try_lock() else { return Interrupt::Pending };
        if state.end.is_some() || !state.resume.goes_down("the peer reconnected over another path") {
            return Interrupt::Ended;
        }
        if state.resume.received.is_none() {
            if let Err(error) = state.lane.queue_pair.move_to_error() {
                tracing::debug!(%error, "could not stop the failed queue pair of a connection");
            }
            // A thread that waits for events may have taken some; the flushed requests wake it.
            if state.waiting.leader {
                return Interrupt::Pending;
            }
        }
        self.suspend(&mut state);
        state.resume.received.map_or(Interrupt::Ended, Interrupt::Drained)
    }

    /// Takes in all that a broken lane had, and has the connection made again, once.
    pub(crate) fn suspend(&self, state: &mut State) {
        if state.resume.received.is_some() || state.end.is_some() {
            return;
        }
        state.resume.received = Some(0);
        self.drain(state);
        // What is still to be read from the peer comes again, and all behind it.
        let is_whole = |entry: &Entry| matches!(entry, Entry::Message(_));
        let whole = state.inbox.iter().position(|entry| !is_whole(entry)).unwrap_or(state.inbox.len());
        let mut lost = (state.inbox.len() - whole) as u64;
        if lost > 0 {
            lost += state.resume.ends;
            state.resume.ends = 0;
            (state.peer_is_shut, state.peer_is_gone) = (false, false);
            state.inbox.truncate(whole);
            state.to_read.clear();
            state.reading.clear();
            state.buffered = state.inbox.iter().map(Entry::weight).sum();
        }
        state.resume.received = Some(state.resume.taken - lost);
        (state.outbound, state.reads_to_tell, state.has_news) = (None, 0, true);
        // The peer exposes its memory anew.
        state.announced.clear();
        state.addresses.clear();
        if let Some(Batch { mut buffer, len, first, .. }) = state.batch.take()
            && buffer.resize(len).is_ok()
        {
            state.resume.refused.push((first, buffer));
        }
        self.redial(state);
    }

    /// Takes in all that has come over a lane, and takes back all that was to go over it.
    fn drain(&self, state: &mut State) {
        let lane = Arc::clone(&state.lane);
        let mut done = Vec::new();
        if let Err(error) = lane.drain(&mut done) {
            // What has not completed is taken from the queue pair below.
            tracing::debug!(%error, "could not drain the failed queue pair of a connection");
        }
        self.take_in(state, &mut done);
        match internal::reset_and_reclaim(&lane.queue_pair) {
            Ok(forgotten) => {
                for (tag, memory) in forgotten.into_iter().filter(|(tag, _)| tag & FRAMES != 0) {
                    if tag & OPERATION == 0 {
                        written(state, memory.into_pool_buf());
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "lost the outstanding requests of a failed queue pair"),
        }
        operation::abandon(state);
    }

    /// Makes the redialer reconnect the connection, or end it when the time limit expires.
    fn redial(&self, state: &mut State) {
        if let (Some(origin), Some(timeout)) = (self.origin.get(), self.options.reconnect) {
            let session = Session { id: state.resume.id, received: state.resume.received };
            let reason = state.resume.down.clone().unwrap_or_default();
            tracing::info!(peer = %self.peer, %reason, "a connection failed; reconnecting");
            match origin.redial(session, state.resume.generation, timeout) {
                Ok(handle) => state.resume.redial = Some(handle),
                Err(error) => self.give_up(state, &error.to_string()),
            }
        }
    }

    /// Breaks the lane, as a failing network does.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn fail_lane(&self) {
        let lane = self.lane();
        lane.queue_pair.move_to_error().expect("the queue pair can be moved to the error state");
    }

    /// Returns the number of lanes before the current one.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn generation(&self) -> u32 {
        self.lock().resume.generation
    }

    /// Ends the connection that has had `generation` lanes before, if it still is broken.
    pub(crate) fn give_up_after(&self, generation: u32, reason: &str) {
        let mut state = self.lock();
        if state.is_broken_since(generation) {
            self.give_up(&mut state, reason);
        }
    }

    fn give_up(&self, state: &mut State, reason: &str) {
        let kept = state.resume.kept.front().map(|(_, first, _)| *first);
        let offered = state.offers.front().map(|offered| offered.number);
        let refused = state.resume.refused.first().map(|(first, _)| *first);
        let first = kept.into_iter().chain(offered).chain(refused).min().unwrap_or(state.resume.sent);
        let broken = state.resume.down.take().unwrap_or_default();
        let unknown = match state.resume.sent - first {
            0 => "all messages were acknowledged".to_owned(),
            count => format!("messages {first} to {} were not acknowledged ({count})", state.resume.sent - 1),
        };
        let reason = format!("{broken}; reconnecting failed: {reason}; {unknown}");
        end_for_good(
            state,
            reason,
            "call `take_unacknowledged` for the messages that the peer may not have received",
        );
        self.news.notify_all();
        if let Some(wake_fd) = self.wake_fd.get() {
            wake_fd.wake_forever();
        }
    }

    /// Goes on over another lane.
    pub(crate) fn adopt(&self, link: Link) {
        let (eager, most) = link.limits();
        let new = link.state.into_inner();
        let mut state = self.lock();
        if state.end.is_some() || state.resume.received.is_none() {
            return;
        }
        // The peer's ring may be shorter than the one before.
        self.set_limits(eager, most);
        let outstanding = self.outstanding(&mut state);
        let peer_received = new.resume.peer_received;
        let mut old = std::mem::replace(&mut *state, new);
        state.waiting = std::mem::take(&mut old.waiting);
        // What came before comes before.
        let before = old.inbox.len() as u64;
        let State { to_read, reading, .. } = &mut *state;
        to_read.iter_mut().chain(reading).for_each(|number| *number += before);
        old.inbox.append(&mut state.inbox);
        state.inbox = old.inbox;
        state.buffered += old.buffered;
        state.resume.taken += old.resume.received.unwrap_or(0);
        state.resume.ends += old.resume.ends;
        state.resume.generation = old.resume.generation + 1;
        let generation = state.resume.generation;
        let State { announced, addresses, .. } = &mut *state;
        let announced = announced.values_mut().chain(addresses);
        announced.for_each(|memory| memory.generation = generation);
        (state.operations, state.next_operation) = (old.operations, old.next_operation);
        state.batches += old.batches;
        (state.is_shut, state.is_gone) = (old.is_shut, old.is_gone);
        state.peer_is_shut |= old.peer_is_shut;
        state.peer_is_gone |= old.peer_is_gone;
        state.has_news = true;
        drop(old.lane);

        state.resume.sent = peer_received;
        let result = self.plan(&mut state, outstanding);
        if let Err(error) = result {
            end_for_good(&mut state, error.to_string(), "");
        }
        tracing::info!(peer = %state.lane.peer, replayed = state.resume.replay.len(), "reconnected");
        if let Some(wake_fd) = self.wake_fd.get()
            && let Some(events) = state.lane.completions.event_fd()
            && let Err(error) = wake_fd.watch(events, state.lane.manager_events())
        {
            end_for_good(&mut state, error.to_string(), "");
        }
        if let Some(received) = &mut state.resume.received {
            // It broke before it was used.
            *received += old.resume.received.unwrap_or(0);
            self.redial(&mut state);
        }
        self.advance(&mut state);
        // Its completion wakes tasks, which wait for events only.
        let _ = state.lane.completions.arm(ArmFor::Any);
        self.ask(&mut state);
        self.news.notify_all();
    }

    /// Plans what is sent first over a new lane.
    fn plan(&self, state: &mut State, outstanding: Outstanding) -> Result<()> {
        let Outstanding { messages, exposed, sent } = outstanding;
        let from = state.resume.sent;
        let lost = || Error::Disconnected {
            peer: self.peer,
            reason: format!(
                "the peer acknowledged {from} of {sent} messages, but only {} are available for replay",
                messages.len()
            ),
            hint: "use the same version of Adverb on both sides".into(),
        };
        if from > sent || (messages.range(from..).count() as u64) < sent - from {
            return Err(lost());
        }
        for Exposed { name, rights, region } in exposed {
            let region = internal::register_again(&region, state.lane.pool.protection_domain())?;
            let remote = region.remote();
            let memory =
                Announced { addr: remote.addr, len: remote.len, rkey: remote.rkey, rights, generation: 0 };
            let body = Body::Announcement { name, memory, region };
            state.resume.replay.push_back(Ready { body, immediate: None });
        }
        for (_, ready) in messages.into_iter().skip_while(|(number, _)| *number < from) {
            let ready = self.again(state, ready)?;
            state.resume.replay.push_back(ready);
        }
        Ok(())
    }

    /// Sends what the peer may not have, as there is room.
    pub(super) fn replay(&self, state: &mut State) {
        while let Some(ready) = state.resume.replay.pop_front() {
            let mut ready = Some(ready);
            if let Err(error) = self.take(state, &mut ready) {
                super::end(state, error.to_string(), "");
            }
            if let Some(ready) = ready {
                return state.resume.replay.push_front(ready);
            }
        }
    }

    /// A message that was made ready for another lane, for this one.
    pub(super) fn again<'a>(&self, state: &State, ready: Ready<'a>) -> Result<Ready<'a>> {
        let Ready { body, immediate } = ready;
        let message = match body {
            Body::Offer { region, .. } => {
                let lost = || self.disconnected("the device did not return a buffer", "");
                SendData(Source::Buffer(internal::reclaim(region).ok_or_else(lost)?))
            }
            Body::Bytes(message) => message,
            body => return Ok(Ready { body, immediate }),
        };
        let (eager, most) = self.limits();
        if message.bytes().len() <= eager as usize {
            return Ok(Ready { body: Body::Bytes(message), immediate });
        }
        Ok(self.ready_to_offer(&state.lane, most, message, immediate)?)
    }

    /// Takes what was sent and the peer may not have.
    fn outstanding(&self, state: &mut State) -> Outstanding {
        let mut messages = BTreeMap::new();
        state.resume.kept_len = 0;
        for (_, first, frames) in state.resume.kept.drain(..) {
            numbered(first, frames, &mut messages);
        }
        for (first, frames) in state.resume.refused.drain(..) {
            numbered(first, frames, &mut messages);
        }
        for Offered { number, region, immediate } in state.offers.drain(..) {
            let (len, lane) = (region.len() as u32, Arc::clone(&state.lane));
            let body = Body::Offer { len, region, is_copy: true, lane };
            messages.insert(number, Ready { body, immediate });
        }
        let (mut exposed, mut sent) = (std::mem::take(&mut state.exposed), state.resume.sent);
        for ready in state.resume.replay.drain(..) {
            match ready.body {
                Body::Announcement { name, memory, region } => {
                    exposed.push(Exposed { name, rights: memory.rights, region });
                }
                body => {
                    messages.insert(sent, Ready { body, immediate: ready.immediate });
                    sent += 1;
                }
            }
        }
        Outstanding { messages, exposed, sent }
    }

    /// The messages that the peer may not have, once the connection has ended.
    pub(crate) fn take_unacknowledged(&self) -> Vec<UnacknowledgedMessage> {
        let mut state = self.lock();
        if state.end.is_none() {
            return Vec::new();
        }
        let messages = self.outstanding(&mut state).messages.into_iter();
        let message = |(number, Ready { body, immediate }): (u64, Ready<'static>)| {
            let message = match body {
                Body::Bytes(SendData(Source::Buffer(buffer))) => buffer,
                Body::Offer { region, .. } => internal::reclaim(region)?,
                _ => return None,
            };
            Some(UnacknowledgedMessage { index: number, buffer: message, immediate })
        };
        messages.filter_map(message).collect()
    }
}

/// The messages among these frames, and the ends, by their numbers; not the offers, which lie elsewhere.
fn numbered(first: u64, mut frames: PoolBuf, messages: &mut BTreeMap<u64, Ready<'static>>) {
    let mut number = first;
    while let Ok(frame) = Frame::parse(&frames)
        && let Ok(mut this) = frames.split_to(frame.len())
    {
        let body = match frame.kind {
            FrameKind::Message { len } => {
                match this.advance(HEADER_LEN).and_then(|()| this.resize(len as usize)) {
                    Ok(()) => Some(Body::Bytes(SendData(Source::Buffer(this)))),
                    Err(_) => None,
                }
            }
            FrameKind::End => Some(Body::End),
            FrameKind::Gone => Some(Body::Gone),
            FrameKind::Offer { .. } | FrameKind::Announcement { .. } => None,
        };
        if let Some(body) = body {
            messages.insert(number, Ready { body, immediate: frame.immediate });
        }
        number += u64::from(frame.kind.is_numbered());
    }
}

impl Entry {
    fn weight(&self) -> usize {
        match self {
            Entry::Message(message) => weight(message.len()),
            Entry::Offer { .. } | Entry::Reading { .. } => 0,
        }
    }
}

/// How many bytes are kept at most, and a write: more than any ring has, of which the peer hasn't told that it read them.
const MOST_KEPT: usize = 2 * LONGEST_RING as usize;
