//! What this side sends: messages become frames, frames become writes, now or when there is room.

use std::io::IoSlice;
use std::sync::Arc;

use adverb_verbs::memory::{MemoryRegion, RemoteMemory};
use adverb_verbs::{Access, Error, Result, internal};

use super::progress::has_room;
use super::{Batch, DELIVERED, END, Exposed, GONE, Lane, Link, Offered, PeerRing, State, UNLOOKED};
use crate::message::{SendData, SendError, Source};
use crate::protocol::{
    ANNOUNCEMENT_LEN, Announced, Frame, FrameKind, HEADER_LEN, OFFER_LEN, OFFERS, frame_len,
};

/// How many bytes of messages that are fed go at once: enough that the cost of a write is nothing beside them, and few enough
/// that many fit a ring.
const GATHERED: usize = 16 << 10;

/// A message that is ready to be sent.
pub(crate) struct Ready<'a> {
    pub(super) body: Body<'a>,
    pub(super) immediate: Option<u32>,
}

pub(super) enum Body<'a> {
    Bytes(SendData<'a>),
    /// The first `len` bytes of these.
    Pieces {
        len: u32,
        pieces: &'a [IoSlice<'a>],
    },
    /// Somebody's own buffer, or a copy.
    Offer {
        len: u32,
        region: MemoryRegion,
        is_copy: bool,
        /// For what it was made.
        lane: Arc<Lane>,
    },
    Announcement {
        name: String,
        memory: Announced,
        region: MemoryRegion,
    },
    End,
    Gone,
}

impl Link {
    /// Makes a message ready to be sent: what can be done without the connection.
    #[inline]
    pub(crate) fn ready<'a>(
        &self,
        message: SendData<'a>,
        immediate: Option<u32>,
    ) -> Result<Ready<'a>, SendError> {
        let (eager, most) = self.limits();
        if message.bytes().len() <= eager as usize {
            return Ok(Ready { body: Body::Bytes(message), immediate });
        }
        self.ready_long(most, message, immediate)
    }

    /// The same, for a message that doesn't go through the peer's ring.
    fn ready_long<'a>(
        &self,
        most: u32,
        message: SendData<'a>,
        immediate: Option<u32>,
    ) -> Result<Ready<'a>, SendError> {
        let ready = self.ready_to_offer(&self.lane(), most, message, immediate);
        // To copy it takes long, and the peer may have asked for the one before it meanwhile.
        self.lock().unlooked = UNLOOKED;
        ready
    }

    /// Makes a message ready that the peer is to read from where it is.
    pub(super) fn ready_to_offer<'a>(
        &self,
        lane: &Arc<Lane>,
        most: u32,
        message: SendData<'a>,
        immediate: Option<u32>,
    ) -> Result<Ready<'a>, SendError> {
        let len = message.bytes().len();
        let Some(len) = u32::try_from(len).ok().filter(|len| *len <= most) else {
            let hint = "split the message, or raise `Options::max_message_size` on the peer";
            let error = Error::MessageTooLong { len: len as u64, max: most.into(), hint };
            return Err(message.refused(error));
        };
        let (buffer, is_copy) = match message.0 {
            Source::Buffer(buffer) if buffer.protection_domain() == lane.pool.protection_domain() => {
                (buffer, false)
            }
            // Of another domain, the peer couldn't read it.
            _ => match lane.pool.copy_from(message.bytes()) {
                Ok(copy) => (copy, true),
                Err(error) => return Err(message.refused(error)),
            },
        };
        let region = buffer.register(Access::REMOTE_READ)?;
        Ok(Ready { body: Body::Offer { len, region, is_copy, lane: Arc::clone(lane) }, immediate })
    }

    /// Takes a message, if there is room: then `ready` is empty, and the number of the write that it goes with is returned.
    pub(crate) fn try_send(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<Option<u64>> {
        let Some(Ready { body, .. }) = ready else { return Ok(Some(state.batches)) };
        // Also for what waits for something else than room.
        if let Some(end) = &state.end {
            return Err(self.ended(end));
        }
        if state.is_gone || state.is_shut && !matches!(body, Body::Gone) {
            return Err(self.disconnected("this side has shut down sending", ""));
        }
        if state.peer_is_gone {
            return Err(self.disconnected("the peer closed the connection", ""));
        }
        // What the peer may have missed comes first.
        if state.outbound.is_none() || !state.resume.replay.is_empty() {
            return Ok(None);
        }
        // It may have been made ready for another lane, of which the peer's ring was longer.
        let is_stale = match body {
            Body::Bytes(message) => message.bytes().len() > self.limits().0 as usize,
            Body::Offer { lane, .. } => !Arc::ptr_eq(lane, &state.lane),
            _ => false,
        };
        if is_stale {
            *ready = ready.take().map(|ready| self.again(state, ready)).transpose()?;
        }
        self.take(state, ready)
    }

    /// Takes a message, whatever it is: see [`try_send`](Link::try_send).
    pub(super) fn take(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<Option<u64>> {
        let Some(Ready { body, immediate }) = ready else { return Ok(Some(state.batches)) };
        let one: [IoSlice<'_>; 1];
        let (kind, bytes): (FrameKind, &[IoSlice<'_>]) = match body {
            Body::Bytes(message) => {
                one = [IoSlice::new(message.bytes())];
                (FrameKind::Message { len: one[0].len() as u32 }, &one)
            }
            Body::Pieces { len, pieces } => (FrameKind::Message { len: *len }, pieces),
            Body::Offer { .. } if state.offers.len() == OFFERS as usize => return Ok(None),
            Body::Offer { len, region, .. } => {
                let RemoteMemory { addr, rkey, .. } = region.remote();
                (FrameKind::Offer { len: *len, addr, rkey }, &[])
            }
            Body::Announcement { name, memory, .. } => {
                one = [IoSlice::new(name.as_bytes())];
                (FrameKind::Announcement { name_len: name.len() as u32, memory: *memory }, &one)
            }
            Body::End => (FrameKind::End, &[]),
            Body::Gone => (FrameKind::Gone, &[]),
        };
        let frame = Frame { kind, immediate: *immediate };
        let tag = match kind {
            FrameKind::End => END,
            FrameKind::Gone => GONE,
            _ => DELIVERED,
        };
        let number = state.resume.sent;
        let Some(write) = self.add_frame(state, &frame, bytes, tag)? else { return Ok(None) };
        state.resume.sent += u64::from(kind.is_numbered());
        state.is_shut |= matches!(kind, FrameKind::End | FrameKind::Gone);
        state.is_gone |= kind == FrameKind::Gone;
        match ready.take() {
            Some(Ready { body: Body::Offer { region, .. }, immediate }) => {
                state.offers.push_back(Offered { number, region, immediate });
            }
            Some(Ready { body: Body::Announcement { name, memory, region }, .. }) => {
                state.exposed.push(Exposed { name, rights: memory.rights, region });
            }
            _ => {}
        }
        Ok(Some(write))
    }

    /// Adds a frame to those that wait, or writes it at once if none does. Returns the number of the write, or nothing if
    /// there is no room.
    pub(super) fn add_frame(
        &self,
        state: &mut State,
        frame: &Frame,
        body: &[IoSlice<'_>],
        tag: u64,
    ) -> Result<Option<u64>> {
        if let Some(end) = &state.end {
            return Err(self.ended(end));
        }
        let Some(PeerRing { longest_write, .. }) = state.outbound else { return Ok(None) };
        let len = frame.len();
        if let Some(batch) = &mut state.batch {
            if len > batch.buffer.len() - batch.len {
                return Ok(None);
            }
            put(frame, body, &mut batch.buffer[batch.len..batch.len + len]);
            batch.len += len;
            batch.tag |= tag;
            return Ok(Some(state.batches));
        }
        let goes_now = can_write(state, len);
        // If it has to wait others may join it.
        let mut buffer = state.lane.pool.alloc(if goes_now { len } else { longest_write })?;
        put(frame, body, &mut buffer[..len]);
        let batch = Batch { buffer, len, tag, is_due: true, first: state.resume.sent };
        state.batch = if goes_now { self.write(state, batch).err() } else { Some(batch) };
        state.batches += 1;
        match &state.end {
            Some(end) => Err(self.ended(end)),
            None => Ok(Some(state.batches)),
        }
    }

    /// Takes a message, and then waits until it is posted: `number` is that of its write, once it has one.
    pub(crate) fn send(
        &self,
        state: &mut State,
        ready: &mut Option<Ready<'_>>,
        number: &mut Option<u64>,
    ) -> Result<Option<()>> {
        if number.is_none() {
            *number = self.try_send(state, ready)?;
            // It may have joined what was gathered.
            self.flush(state);
        }
        number.map_or(Ok(None), |number| self.is_posted(state, number))
    }

    /// Takes a message that is to go together with others: when enough has gathered, or somebody waits or flushes.
    pub(crate) fn feed(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<Option<()>> {
        let Some(len) = ready.as_ref().map(Ready::frame_len) else { return Ok(Some(())) };
        if state.batch.as_ref().is_some_and(|batch| len > batch.buffer.len() - batch.len) {
            self.flush(state);
        }
        let Some(PeerRing { longest_write, .. }) = state.outbound else {
            // It is being made again; or couldn't be, and that says why.
            return Ok(self.try_send(state, ready)?.map(drop));
        };
        let most = GATHERED.min(longest_write);
        if state.batch.is_none() && len <= most / 2 {
            state.batch = Some(Batch {
                buffer: state.lane.pool.alloc(most)?,
                len: 0,
                tag: 0,
                is_due: false,
                first: state.resume.sent,
            });
            state.batches += 1;
        }
        let taken = self.try_send(state, ready);
        match state.batch.as_ref().map(|batch| batch.len) {
            // It was refused.
            Some(0) => {
                state.batch = None;
                state.batches -= 1;
            }
            Some(len) if len > most / 4 * 3 => self.flush(state),
            _ => {}
        }
        Ok(taken?.map(drop))
    }

    /// Takes a message and posts it, if both can be done now.
    pub(crate) fn try_send_now(&self, state: &mut State, ready: Ready<'_>) -> Result<(), SendError> {
        let mut ready = Some(ready);
        let sent = self.try_post(state, &mut ready);
        let failure = match sent {
            Ok(true) => return Ok(()),
            Ok(false) => Error::WouldBlock { action: "sending a message" },
            Err(error) => error,
        };
        Err(Ready::refused(ready, failure))
    }

    fn try_post(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<bool> {
        let Some(len) = ready.as_ref().map(Ready::frame_len) else { return Ok(true) };
        self.flush(state);
        // Otherwise it would be taken, and wait.
        let is_free = state.batch.is_none() && state.resume.replay.is_empty() && can_write(state, len);
        if !is_free && state.end.is_none() {
            return Ok(false);
        }
        Ok(self.try_send(state, ready)?.is_some())
    }

    /// The end of what this side sends.
    pub(crate) fn end_frame() -> Ready<'static> {
        Ready { body: Body::End, immediate: None }
    }

    /// The end of the connection.
    pub(crate) fn gone_frame() -> Ready<'static> {
        Ready { body: Body::Gone, immediate: None }
    }

    /// Whether the write of this number was posted.
    pub(crate) fn is_posted(&self, state: &State, number: u64) -> Result<Option<()>> {
        if state.batches - u64::from(state.batch.is_some()) >= number {
            return Ok(Some(()));
        }
        match &state.end {
            Some(end) => Err(self.ended(end)),
            None => Ok(None),
        }
    }
}

impl Ready<'_> {
    /// How many bytes its frame takes.
    pub(super) fn frame_len(&self) -> usize {
        frame_len(match &self.body {
            Body::Bytes(message) => message.bytes().len(),
            Body::Pieces { len, .. } => *len as usize,
            Body::Offer { .. } => OFFER_LEN,
            Body::Announcement { name, .. } => ANNOUNCEMENT_LEN + name.len(),
            Body::End | Body::Gone => 0,
        })
    }

    /// Why it wasn't sent, with the buffer that it was made of, if it wasn't taken.
    pub(crate) fn refused(ready: Option<Ready<'_>>, error: Error) -> SendError {
        let buffer = match ready.map(|ready| ready.body) {
            Some(Body::Bytes(message)) => return message.refused(error),
            Some(Body::Offer { region, is_copy: false, .. }) => internal::reclaim(region),
            _ => None,
        };
        SendError { error, buffer }
    }
}

/// Puts a frame where it just fits. Nothing of what was there before is left.
pub(super) fn put(frame: &Frame, body: &[IoSlice<'_>], out: &mut [u8]) {
    frame.emit(out);
    let (begin, len) = match frame.kind {
        FrameKind::Message { len } => (HEADER_LEN, len),
        FrameKind::Announcement { name_len, .. } => (HEADER_LEN + ANNOUNCEMENT_LEN, name_len),
        FrameKind::Offer { .. } | FrameKind::End | FrameKind::Gone => return,
    };
    let (to_body, padding) = out[begin..].split_at_mut(len as usize);
    gather(body, to_body);
    padding.fill(0);
}

/// Copies as many of the pieces' bytes as there is room for, which must be filled by them.
pub(super) fn gather(pieces: &[IoSlice<'_>], mut out: &mut [u8]) {
    for piece in pieces {
        let (to_piece, behind) = out.split_at_mut(piece.len().min(out.len()));
        to_piece.copy_from_slice(&piece[..to_piece.len()]);
        out = behind;
    }
    debug_assert!(out.is_empty(), "there are as many bytes as were promised");
}

/// Whether a frame of `len` bytes would be taken now: to go at once, or to wait together with others.
pub(super) fn can_take(state: &State, len: usize) -> bool {
    let fits = state.batch.as_ref().is_none_or(|batch| len <= batch.buffer.len() - batch.len);
    fits && state.outbound.is_some() && state.resume.replay.is_empty()
}

/// Whether a write of `len` bytes can be posted now.
pub(super) fn can_write(state: &State, len: usize) -> bool {
    let fits = state.outbound.as_ref().is_some_and(|ring| ring.outbound.fits(len as u32));
    fits && has_room(state) && state.end.is_none() && !state.resume.is_down() && !state.resume.is_full()
}
