//! The connection as a stream of bytes: messages without borders.

use std::io::IoSlice;

use super::sending::Body;
use super::{Link, PeerRing, Ready, State};
use crate::error::Result;
use crate::memory::RegisteredBuf;
use crate::net::Message;
use crate::net::protocol::{HEADER_LEN, OFFERS, UNIT};
use crate::verbs::Access;

/// Fewer bytes than this aren't cut off to fill a write that waits.
const SHORTEST_CUT: usize = 1 << 10;
/// Fewer bytes than this aren't worth being read by the peer from where they are.
const SHORTEST_OFFER: usize = 32 << 10;
/// More bytes than this aren't offered at once, so that the peer reads some while others are copied.
const LONGEST_OFFER: usize = 256 << 10;

impl Link {
    /// Takes as many of these bytes as there is room for, and says how many; nothing if there is no room. A short write goes as
    /// it is, or joins what waits; of a long one, the peer reads copies from where they are.
    pub(in crate::net) fn write_some(
        &self,
        state: &mut State,
        pieces: &[IoSlice<'_>],
    ) -> Result<Option<usize>> {
        let Some(PeerRing { longest_write, .. }) = state.outbound else { return Ok(None) };
        let longest_message = state.limits.1;
        let len = pieces.iter().fold(0, |len: usize, piece| len.saturating_add(piece.len()));
        let len = len.min(longest_message as usize);
        let is_over = state.end.is_some() || state.is_shut || state.peer_is_gone;
        // What was gathered before goes first.
        self.flush(state);
        if len >= SHORTEST_OFFER.max(longest_write) && !is_over {
            return self.offer_some(state, pieces, len.min(LONGEST_OFFER));
        }
        let (taken, most) =
            state.batch.as_ref().map_or((0, longest_write), |batch| (batch.len, batch.buffer.len()));
        let room = (most - taken).saturating_sub(HEADER_LEN) / UNIT as usize * UNIT as usize;
        let is_full = taken > 0 && len > room && room < SHORTEST_CUT.min(longest_write / 2);
        if is_full && !is_over {
            return Ok(None);
        }
        let len = len.min(room);
        let body = Body::Pieces { len: len as u32, pieces };
        Ok(self.try_send(state, &mut Some(Ready { body, immediate: None }))?.map(|_| len))
    }

    /// Offers the peer a copy of the first `len` bytes, unless it has enough to read.
    fn offer_some(&self, state: &mut State, pieces: &[IoSlice<'_>], len: usize) -> Result<Option<usize>> {
        if state.offers.len() == OFFERS as usize {
            return Ok(None);
        }
        let mut buffer = state.lane.pool.alloc(len)?;
        super::sending::gather(pieces, &mut buffer);
        let region = buffer.register(Access::REMOTE_READ)?;
        let body = Body::Offer { len: len as u32, region, is_copy: true, lane: state.lane() };
        Ok(self.try_send(state, &mut Some(Ready { body, immediate: None }))?.map(|_| len))
    }

    /// The next bytes of the stream, or `None` when there are no more, if that is known.
    pub(in crate::net) fn next_piece(&self, state: &mut State) -> Result<Option<Option<RegisteredBuf>>> {
        loop {
            match self.try_recv(state)? {
                // What has no bytes is no part of a stream, and would look like its end.
                Some(Some(message)) if message.is_empty() => {}
                next => return Ok(next.map(|message| message.map(Message::into_buffer))),
            }
        }
    }

    /// Whether all that was taken is posted.
    pub(in crate::net) fn is_flushed(&self, state: &State) -> Result<Option<()>> {
        if state.batch.is_some() && state.peer_is_gone {
            return Err(self.disconnected("the peer has closed it", ""));
        }
        self.is_posted(state, state.batches)
    }
}
