//! The connection.

mod close;
mod input;
mod one_sided;
mod output;
mod resume;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use adverb_proto::Time;

use crate::config::{Config, LaneConfig};
use crate::expose::Exposed;
use crate::frame::{Frame, FrameKind, HEADER_LEN, RENDEZVOUS_LEN, copy, frame_len};
use crate::hello::{Hello, SessionId};
use crate::lane::{HelloState, Lane, Linger, Peer, Probe};
use crate::memory::{Buf, Memory, Region};
use crate::mutation::mutant;
use crate::recv::{RecvHalf, RecvState};
use crate::replay::Replay;
use crate::send::{Batch, ControlFrame, Delivery, SendHalf, SendState, Timing, UnreadRendezvous};
use crate::types::{EndReason, Event, Received, Role, SendError, Tag, Unacknowledged};
use crate::{MAX_RENDEZVOUS, RING_ALIGN};

/// The maximum number of bytes in a batch of coalesced messages.
const MAX_COALESCED_LEN: usize = 16 << 10;
/// The minimum number of bytes of a stream that are added to a batch with other frames, if more bytes follow.
const MIN_STREAM_PART: usize = 1 << 10;

/// One side of a connection.
///
/// The type parameters are the buffers and the registered memory of the driver, see [`Memory`]. The connection is
/// [`Clone`] and [`Hash`](std::hash::Hash) if they are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Connection<B, R> {
    role: Role,
    config: Config,
    session: Session,
    phase: Phase<R>,
    send: SendHalf<B, R>,
    recv: RecvHalf<B>,
    /// Present if the session can resume, and once the connection has ended.
    replay: Option<Replay<B, R>>,
    /// The regions that this side exposes, in order.
    exposed: Vec<Exposed<R>>,
    /// The number of regions that were ever exposed.
    exposed_total: u64,
    /// The number of the current or the last lane.
    lane_number: u32,
    close_deadline: Option<Time>,
    events: VecDeque<Event<R>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Session {
    /// A failed lane ends the connection.
    None,
    /// The connector has requested a session, and the listener has not answered.
    Requested(SessionId),
    /// Both sides resume the session over another lane.
    Resumable(SessionId),
}

/// The phase of a connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase<R> {
    /// The hellos are exchanged over a new lane. At the listener, `hello` is the connector's.
    Handshake { lane: Lane<R>, hello: Option<Hello>, deadline: Time, origin: Origin },
    /// Messages are exchanged.
    Established { lane: Lane<R>, peer: Peer },
    /// The driver stops the lane. Completions that arrive still count.
    Draining { lane: Lane<R>, peer: Option<Peer>, next: Next },
    /// The session has no lane.
    Disconnected { until: Time, redial: Redial },
    /// The connection has ended.
    Closed(EndReason),
}

/// The origin of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Origin {
    /// The first lane of the connection.
    Begin,
    /// Another lane of a session, which ends at `until` if it doesn't resume.
    Resume { until: Time },
}

/// The phase after [`Phase::Draining`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Next {
    End(EndReason),
    /// The session resumes, over the lane of `successor` if the peer has already dialed again.
    Resume {
        until: Time,
        successor: Option<(Hello, LaneConfig)>,
    },
}

/// The next attempt to dial.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Redial {
    /// The peer dials.
    ByPeer,
    /// The driver is dialing.
    Dialing,
    At(Time),
}

/// The phase of a connection, without its data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PhaseKind {
    /// The hellos are exchanged over a new lane.
    Handshake,
    /// Messages are exchanged.
    Established,
    /// The driver stops the lane.
    Draining,
    /// The session has no lane.
    Disconnected,
    /// The connection has ended.
    Closed,
}

/// The maximum sizes of messages to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// The maximum size of an eager message. A longer message is sent from a registered region.
    pub eager: u32,
    /// The maximum size of a message.
    pub max_message_size: u32,
    /// The maximum length of a write, with its frames' headers.
    pub max_write_len: u32,
    /// The number of the lane, for which a region must be registered.
    pub lane: u32,
}

impl<B: Buf, R: Region> Connection<B, R> {
    /// Creates the connector's side, over a connected queue pair on which a receive for the listener's hello is posted.
    ///
    /// `session` is a random ID, which is used if [`Config::reconnect`] is set.
    pub fn connect(config: Config, session: SessionId, now: Time) -> Connection<B, R> {
        let session = match config.reconnect {
            Some(_) => Session::Requested(session),
            None => Session::None,
        };
        Connection::new(Role::Connector, config, session, None, now)
    }

    /// Creates the listener's side, over a queue pair that has received the connector's hello.
    ///
    /// A hello that resumes a session belongs to the connection with that session: see [`resume`](Connection::resume).
    pub fn accept(config: Config, hello: Hello, now: Time) -> Connection<B, R> {
        let session = match (config.reconnect, hello.session) {
            (Some(_), Some(session)) if session.received.is_none() => Session::Resumable(session.id),
            _ => Session::None,
        };
        Connection::new(Role::Listener, config, session, Some(hello), now)
    }

    fn new(
        role: Role,
        config: Config,
        session: Session,
        hello: Option<Hello>,
        now: Time,
    ) -> Connection<B, R> {
        let config = config.clamped();
        let lane = Lane::new(&config, now);
        let deadline = now + config.handshake_timeout;
        let replay = matches!(session, Session::Resumable(_)).then(Replay::new);
        Connection {
            role,
            session,
            phase: Phase::Handshake { lane, hello, deadline, origin: Origin::Begin },
            send: SendHalf::new(),
            recv: RecvHalf::new(),
            replay,
            exposed: Vec::new(),
            exposed_total: 0,
            lane_number: 0,
            close_deadline: None,
            events: VecDeque::new(),
            config,
        }
    }

    /// Returns the phase.
    pub fn phase(&self) -> PhaseKind {
        match self.phase {
            Phase::Handshake { .. } => PhaseKind::Handshake,
            Phase::Established { .. } => PhaseKind::Established,
            Phase::Draining { .. } => PhaseKind::Draining,
            Phase::Disconnected { .. } => PhaseKind::Disconnected,
            Phase::Closed(_) => PhaseKind::Closed,
        }
    }

    /// Returns the reason of the end, if the connection has ended.
    pub fn end_reason(&self) -> Option<EndReason> {
        match self.phase {
            Phase::Closed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns the session, if it can resume over another lane.
    pub fn session(&self) -> Option<SessionId> {
        match self.session {
            Session::Resumable(id) => Some(id),
            Session::None | Session::Requested(_) => None,
        }
    }

    /// Returns the maximum sizes of messages, if the lane is established.
    pub fn limits(&self) -> Option<Limits> {
        match &self.phase {
            Phase::Established { peer, .. } => Some(Limits {
                eager: peer.eager_limit,
                max_message_size: peer.max_message_size,
                max_write_len: peer.max_write_len as u32,
                lane: self.lane_number,
            }),
            _ => None,
        }
    }

    /// Returns the number of bytes in messages that the application has not received, and in messages that are kept for
    /// a replay.
    pub fn buffered_bytes(&self) -> (usize, usize) {
        (self.recv.buffered, self.replay.as_ref().map_or(0, Replay::kept_bytes))
    }

    /// Sends an eager message: copies it to a batch, which is written with the first credits.
    ///
    /// # Errors
    ///
    /// Returns an error if the message is longer than [`Limits::eager`], if credits or the lane are missing, or if the
    /// connection has ended.
    pub fn send<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<(), SendError> {
        let max = self.check_open()?.eager_limit;
        self.take_eager(memory, bytes.len(), max, immediate, copy(bytes))?;
        self.flush();
        Ok(())
    }

    /// Sends an eager message of `len` bytes, which `fill` writes. The message may be longer than [`Limits::eager`], up
    /// to the result of [`stream_len`](Connection::stream_len).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](Connection::send).
    pub fn send_with<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        len: usize,
        immediate: Option<u32>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let peer = self.check_open()?;
        let max = ((peer.max_write_len - HEADER_LEN) as u32).min(peer.max_message_size);
        self.take_eager(memory, len, max, immediate, fill)?;
        self.flush();
        Ok(())
    }

    /// Sends an eager message like [`send`](Connection::send), but together with others: after a
    /// [`flush`](Connection::flush), or when enough bytes are waiting.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](Connection::send).
    pub fn feed<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<(), SendError> {
        let peer = self.check_open()?;
        let (max, eager_limit) = (peer.max_write_len.min(MAX_COALESCED_LEN), peer.eager_limit);
        let len = frame_len(bytes.len());
        if self.send.batch.is_none() && len <= max / 2 {
            let buf = memory.alloc(max).ok_or(SendError::WouldBlock)?;
            let (first, tag, timing) = (self.send.next, Tag::Frames, Timing::Coalescing);
            self.send.batch = Some(Batch { buf, len: 0, first, tag, timing });
            self.send.batch_count += 1;
        }
        let result = self.take_eager(memory, bytes.len(), eager_limit, immediate, copy(bytes));
        match &self.send.batch {
            Some(batch) if batch.len == 0 => {
                self.send.batch = None;
                self.send.batch_count -= 1;
            }
            Some(batch) if batch.len > max / 4 * 3 => self.flush(),
            _ => {}
        }
        if result == Err(SendError::WouldBlock) {
            self.flush();
        }
        result
    }

    /// Lets the messages of [`feed`](Connection::feed) be written.
    pub fn flush(&mut self) {
        if let Some(batch) = &mut self.send.batch {
            batch.timing = Timing::Due;
        }
    }

    fn take_eager<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        len: usize,
        max: u32,
        immediate: Option<u32>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let too_long = SendError::TooLong { len: len as u64, max };
        let len = u32::try_from(len).ok().filter(|len| *len <= max).ok_or(too_long)?;
        self.check_replayed()?;
        let frame = Frame { kind: FrameKind::Message { len }, immediate };
        if !self.add_frame(memory, &frame, Tag::Frames, fill) {
            return Err(SendError::WouldBlock);
        }
        (self.send.next, self.send.taken) = (self.send.next + 1, self.send.taken + 1);
        Ok(())
    }

    /// Sends a rendezvous message: the peer reads it from a region, which the driver has registered for the current
    /// [lane](Limits::lane). [`Event::Release`] returns the region.
    ///
    /// # Errors
    ///
    /// Returns the region with the reason, as for [`send`](Connection::send), or if eight rendezvous messages are
    /// outstanding.
    pub fn send_region<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        region: R,
        lane: u32,
        immediate: Option<u32>,
    ) -> Result<(), (SendError, R)> {
        let remote = region.remote();
        let max =
            match self.check_open().and_then(|peer| self.check_replayed().map(|()| peer.max_message_size)) {
                Ok(max) => max,
                Err(error) => return Err((error, region)),
            };
        if lane != self.lane_number {
            return Err((SendError::StaleRegion, region));
        }
        let Some(len) = u32::try_from(remote.len).ok().filter(|len| *len <= max) else {
            return Err((SendError::TooLong { len: remote.len, max }, region));
        };
        let is_full =
            self.send.unread_rendezvous.len() >= MAX_RENDEZVOUS as usize && !mutant!(RendezvousUnlimited);
        let kind = FrameKind::Rendezvous { len, addr: remote.addr, rkey: remote.rkey };
        if is_full || !self.add_frame(memory, &Frame { kind, immediate }, Tag::Frames, copy(&[])) {
            return Err((SendError::WouldBlock, region));
        }
        self.flush();
        self.add_unread_rendezvous(region, immediate);
        self.send.taken += 1;
        Ok(())
    }

    /// Keeps the region of a rendezvous message, whose frame is in a batch, until the peer has read the message.
    fn add_unread_rendezvous(&mut self, region: R, immediate: Option<u32>) {
        let number = self.send.next;
        self.send.next += 1;
        if mutant!(RegionReleasedEarly) {
            self.events.push_back(Event::Release(region));
        } else {
            self.send.unread_rendezvous.push_back(UnreadRendezvous { number, region, immediate });
        }
    }

    /// Adds a frame to the batch, or makes a batch of it. Returns `false` if the batch is full, or there is no memory
    /// or lane.
    fn add_frame<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        frame: &Frame,
        tag: Tag,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Phase::Established { lane, peer } = &self.phase else { return false };
        let len = frame.frame_len();
        if let Some(batch) = &mut self.send.batch {
            let Some(out) = batch.buf.as_mut().get_mut(batch.len..batch.len + len) else { return false };
            frame.emit_with(out, fill);
            batch.len += len;
            if tag == Tag::Close {
                batch.tag = tag;
            }
            return true;
        }
        // Other frames may join a batch that waits.
        let is_waiting = !peer.ring.fits(len as u32) || !lane.queue.has_room(1);
        let capacity = if is_waiting { peer.max_write_len } else { len };
        let Some(mut buf) = memory.alloc(capacity.max(len)) else { return false };
        frame.emit_with(&mut buf.as_mut()[..len], fill);
        self.send.batch = Some(Batch { buf, len, first: self.send.next, tag, timing: Timing::Due });
        self.send.batch_count += 1;
        true
    }

    /// Checks that the application may send, and returns the peer.
    fn check_open(&self) -> Result<&Peer, SendError> {
        match self.send.state {
            SendState::Open => {}
            SendState::Shutdown(_) if mutant!(SendAfterShutdown) => {}
            SendState::Shutdown(_) | SendState::Closing(_) => return Err(SendError::Shutdown),
        }
        self.check_not_ended()?;
        match &self.phase {
            Phase::Established { peer, .. } => Ok(peer),
            _ => Err(SendError::WouldBlock),
        }
    }

    /// Checks that the connection has not ended, is not ending, and was not closed by the peer.
    ///
    /// # Errors
    ///
    /// Returns [`SendError::Ended`] with the reason.
    pub fn check_not_ended(&self) -> Result<(), SendError> {
        match self.phase {
            Phase::Closed(reason) | Phase::Draining { next: Next::End(reason), .. } => {
                Err(SendError::Ended(reason))
            }
            _ if self.has_peer_closed() => Err(SendError::Ended(EndReason::PeerClosed)),
            _ => Ok(()),
        }
    }

    /// Checks that all earlier messages were replayed.
    fn check_replayed(&self) -> Result<(), SendError> {
        if self.is_behind() && !mutant!(NewBeforeReplayed) { Err(SendError::WouldBlock) } else { Ok(()) }
    }

    /// Whether regions are to be announced, or messages to be replayed, over the current lane.
    fn is_behind(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| !replay.queue.is_empty()) || self.has_unannounced()
    }

    /// Returns the number of the write that contains the last message or region: see
    /// [`is_posted`](Connection::is_posted).
    pub fn last_write(&self) -> u64 {
        self.send.batch_count
    }

    /// Whether the write of this number was posted, or is part of a replay.
    pub fn is_posted(&self, write: u64) -> bool {
        self.send.batch_count - u64::from(self.send.batch.is_some()) >= write
    }

    /// Whether an eager message of `len` bytes would be posted at once.
    pub fn can_post(&self, len: usize) -> bool {
        let is_full = self.replay.as_ref().is_some_and(|replay| replay.is_full());
        match &self.phase {
            Phase::Established { lane, peer } => {
                let fits = peer.ring.fits(frame_len(len) as u32) && lane.queue.has_room(1);
                fits && self.send.batch.is_none() && !is_full && !self.is_behind()
            }
            _ => false,
        }
    }

    /// Whether a frame in a batch of its own would be posted at once.
    fn can_post_frame(&self, frame: &Frame) -> bool {
        let is_full = self.replay.as_ref().is_some_and(|replay| replay.is_full());
        let Phase::Established { lane, peer } = &self.phase else { return false };
        self.send.batch.is_none()
            && !is_full
            && peer.ring.fits(frame.frame_len() as u32)
            && lane.queue.has_room(1)
    }

    /// Whether a [rendezvous message](Connection::send_region) would be taken at once.
    pub fn can_send_region(&self) -> bool {
        let len = frame_len(RENDEZVOUS_LEN);
        let fits = self.send.batch.as_ref().is_none_or(|batch| batch.len + len <= batch.buf.as_ref().len());
        let is_full = self.send.unread_rendezvous.len() >= MAX_RENDEZVOUS as usize;
        fits && !is_full && !self.is_behind() && matches!(self.phase, Phase::Established { .. })
    }

    /// Returns the length of the next message for `len` bytes of a stream: as many bytes as one write has room for.
    /// Returns `None` if the batch is almost full, so that the rest of it isn't worth a message, or if there is no
    /// lane.
    pub fn stream_len(&self, len: usize) -> Option<usize> {
        let Phase::Established { peer, .. } = &self.phase else { return None };
        let batch = self.send.batch.as_ref();
        let (taken, capacity) =
            batch.map_or((0, peer.max_write_len), |batch| (batch.len, batch.buf.as_ref().len()));
        let align = RING_ALIGN as usize;
        let room = (capacity - taken).saturating_sub(HEADER_LEN) / align * align;
        let is_full = taken > 0 && len > room && room < MIN_STREAM_PART.min(peer.max_write_len / 2);
        (!is_full).then(|| len.min(room).min(peer.max_message_size as usize))
    }

    /// Requests a probe, if no outstanding completion will show that the peer's device has all messages.
    pub fn confirm(&mut self) {
        if let Phase::Established { lane, .. } = &mut self.phase
            && !lane.queue.is_delivered()
            && !lane.queue.awaits_completion()
        {
            lane.probe = Probe::Due;
        }
    }

    /// Whether a batch is written as soon as the credits and the send queue allow it.
    pub fn is_due(&self) -> bool {
        self.send.batch.as_ref().is_some_and(|batch| batch.timing == Timing::Due)
    }

    /// Checks that the application may send a message.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](Connection::send).
    pub fn check_send(&self) -> Result<(), SendError> {
        self.check_open()?;
        self.check_replayed()
    }

    /// Whether the peer's device has this side's hello, and the peer's hello has not arrived.
    pub fn is_hello_acknowledged(&self) -> bool {
        matches!(&self.phase, Phase::Handshake { lane, .. }
            if lane.hello == HelloState::Posted && !lane.queue.awaits_completion())
    }

    /// Whether this side has closed or aborted the connection.
    pub fn is_closing(&self) -> bool {
        matches!(self.send.state, SendState::Closing(_))
    }

    /// Whether the peer has shut down sending, or closed the connection. Its last messages may still be unread.
    pub fn has_peer_shutdown(&self) -> bool {
        self.recv.state != RecvState::Open
    }

    /// Whether the peer has closed the connection.
    pub fn has_peer_closed(&self) -> bool {
        matches!(self.recv.state, RecvState::Closed { .. })
    }

    /// Whether this side has shut down sending, or closed the connection.
    pub fn has_shutdown(&self) -> bool {
        self.send.state != SendState::Open
    }

    /// Whether the peer has closed the connection, and may not know that this side has received the close.
    pub fn is_lingering(&self) -> bool {
        matches!(&self.phase, Phase::Established { lane, .. } if matches!(lane.linger, Linger::Until(_)))
    }

    /// Returns the number of the current or the last lane, counted from 0.
    pub fn lane(&self) -> u32 {
        self.lane_number
    }

    /// Returns the numbers of the messages that the peer may not have received, once the connection has ended.
    pub fn unacknowledged(&self) -> Range<u64> {
        let queued = self.replay.as_ref().and_then(|replay| replay.queue.front());
        queued.map_or(self.send.taken, |message| message.number)..self.send.taken
    }

    /// Whether all messages were posted.
    pub fn is_flushed(&self) -> bool {
        let is_pending = matches!(
            self.send.state,
            SendState::Shutdown(ControlFrame::Pending) | SendState::Closing(ControlFrame::Pending)
        );
        self.send.batch.is_none() && !is_pending && self.check_replayed().is_ok()
    }

    /// Whether the peer's device has all messages that were sent, and the peer has read the rendezvous messages among
    /// them.
    pub fn is_delivered(&self) -> bool {
        match &self.phase {
            Phase::Established { lane, peer } => {
                let has_arrived = lane.queue.is_delivered() || peer.ring.is_read();
                self.is_flushed() && self.send.unread_rendezvous.is_empty() && has_arrived
            }
            _ => false,
        }
    }

    /// Whether the peer may have ended the connection without some of the messages, once the connection has ended.
    pub fn has_undelivered(&self) -> bool {
        self.send.delivery == Delivery::Incomplete
    }

    /// Takes the next message that has arrived.
    pub fn recv<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M, now: Time) -> Received<B> {
        if let Some(message) = self.recv.pop() {
            self.advance(memory, now);
            return Received::Message(message);
        }
        match (&self.phase, self.recv.state) {
            (_, RecvState::Shutdown | RecvState::Closed { .. }) if self.recv.inbox.is_empty() => {
                Received::Shutdown
            }
            (Phase::Closed(reason), _) => Received::Ended(*reason),
            _ => Received::Pending,
        }
    }

    /// Takes the messages that the peer may not have received, once the connection has ended. Without a session, only
    /// messages that were never posted and rendezvous messages are known.
    pub fn take_unacknowledged(&mut self) -> Vec<Unacknowledged<B, R>> {
        match (&self.phase, &mut self.replay) {
            (Phase::Closed(_), Some(replay)) => replay.take_messages(),
            _ => Vec::new(),
        }
    }

    /// Whether there are events.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event<R>> {
        self.events.pop_front()
    }
}
