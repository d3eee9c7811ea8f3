//! The connection as a stream of bytes: messages without borders.

use std::io::IoSlice;
use std::sync::Arc;

use adverb_verbs::memory::PoolBuf;
use adverb_verbs::{Access, Result};

use super::sending::{Body, can_take, gather};
use super::{Lane, Link, Ready, State, UNLOOKED};
use crate::Message;
use crate::protocol::{HEADER_LEN, OFFER_LEN, OFFERS, UNIT, frame_len};

/// Fewer bytes than this aren't cut off to fill a write that waits.
const SHORTEST_CUT: usize = 1 << 10;
/// Fewer bytes than this aren't worth being read by the peer from where they are.
const SHORTEST_OFFER: usize = 32 << 10;
/// More bytes than this aren't offered at once, so that the peer reads some while others are copied.
const LONGEST_OFFER: usize = 512 << 10;

/// What becomes of a write.
pub(crate) enum Taken {
    /// So many of its bytes were taken.
    Bytes(usize),
    /// So many of its bytes are to be copied, while nobody else waits for the connection, and offered to the peer.
    ToCopy(usize, Arc<Lane>),
}

impl Link {
    /// Takes as many of these bytes as there is room for; nothing if there is no room. A short write goes as it is, or joins
    /// what waits; of a long one, the peer reads [copies](Link::copy) from where they are.
    pub(crate) fn write_some(&self, state: &mut State, pieces: &[IoSlice<'_>]) -> Result<Option<Taken>> {
        let is_over = state.end.is_some() || state.is_shut || state.peer_is_gone;
        let longest_write = state.outbound.as_ref().map(|ring| ring.longest_write);
        let Some(longest_write) = longest_write.filter(|_| !is_over) else {
            // That says why, unless it is only being made again.
            let nothing = Ready { body: Body::Pieces { len: 0, pieces: &[] }, immediate: None };
            return Ok(self.try_send(state, &mut Some(nothing))?.map(|_| Taken::Bytes(0)));
        };
        let (_, max_message_size) = self.limits();
        let len = pieces.iter().fold(0, |len: usize, piece| len.saturating_add(piece.len()));
        let len = len.min(max_message_size as usize);
        // What was gathered before goes first.
        self.flush(state);
        if len >= SHORTEST_OFFER.max(longest_write) {
            let has_room = state.offers.len() < OFFERS as usize && can_take(state, frame_len(OFFER_LEN));
            // To copy takes long, and the peer may ask for what was offered before meanwhile: the next call looks.
            state.unlooked = UNLOOKED;
            return Ok(has_room.then(|| Taken::ToCopy(len.min(LONGEST_OFFER), state.lane())));
        }
        let (taken, most) =
            state.batch.as_ref().map_or((0, longest_write), |batch| (batch.len, batch.buffer.len()));
        let room = (most - taken).saturating_sub(HEADER_LEN) / UNIT as usize * UNIT as usize;
        let is_full = taken > 0 && len > room && room < SHORTEST_CUT.min(longest_write / 2);
        if is_full {
            return Ok(None);
        }
        let len = len.min(room);
        let body = Body::Pieces { len: len as u32, pieces };
        let sent = self.try_send(state, &mut Some(Ready { body, immediate: None }))?;
        Ok(sent.map(|_| Taken::Bytes(len)))
    }

    /// Copies the first `len` bytes of these, for the peer to read; to be sent when the connection is locked again.
    pub(crate) fn copy(&self, lane: Arc<Lane>, pieces: &[IoSlice<'_>], len: usize) -> Result<Ready<'static>> {
        let mut buffer = lane.pool.alloc(len)?;
        gather(pieces, &mut buffer);
        let region = buffer.register(Access::REMOTE_READ)?;
        Ok(Ready { body: Body::Offer { len: len as u32, region, is_copy: true, lane }, immediate: None })
    }

    /// The next bytes of the stream, or `None` when there are no more, if that is known.
    pub(crate) fn next_piece(&self, state: &mut State) -> Result<Option<Option<PoolBuf>>> {
        loop {
            match self.try_recv(state)? {
                // What has no bytes is no part of a stream, and would look like its end.
                Some(Some(message)) if message.is_empty() => {}
                next => return Ok(next.map(|message| message.map(Message::into_buffer))),
            }
        }
    }

    /// Whether all that was taken is posted.
    pub(crate) fn is_flushed(&self, state: &State) -> Result<Option<()>> {
        if state.batch.is_some() && state.peer_is_gone {
            return Err(self.disconnected("the peer closed the connection", ""));
        }
        self.is_posted(state, state.batches)
    }
}
