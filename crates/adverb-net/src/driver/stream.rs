//! Byte streams: messages without boundaries.

use std::io::IoSlice;
use std::sync::Arc;

use adverb_net_proto::SendError as Refusal;
use adverb_verbs::memory::PoolBuf;

use super::region::Region;
use super::send::refused;
use super::{Core, Driver, Lane, MAX_UNPOLLED, Outgoing};
use crate::error::{RecvError, SendErrorKind};
use crate::message::Message;

/// The minimum number of bytes for which a rendezvous message is faster than a copy into the peer's ring.
const MIN_RENDEZVOUS_LEN: usize = 32 << 10;
/// The maximum number of bytes in a rendezvous message, so that the peer reads some bytes while others are copied.
const MAX_RENDEZVOUS_LEN: usize = 512 << 10;

/// The result of [`Driver::write_some`].
pub(crate) enum StreamWrite {
    /// This number of bytes was enqueued.
    Queued(usize),
    /// [`finish_write`](Driver::finish_write) copies this number of bytes, for the lane of this number.
    Copy { len: usize, lane: Arc<Lane>, number: u32 },
}

impl Driver {
    /// Enqueues as many of these bytes as there are credits for, or returns `None`. A short write is sent as one
    /// message, or joins the batch. A long write is copied, and the peer reads the copies.
    pub(crate) fn write_some(
        &self,
        core: &mut Core,
        slices: &[IoSlice<'_>],
    ) -> Result<Option<StreamWrite>, SendErrorKind> {
        match core.connection.check_send() {
            Ok(()) | Err(Refusal::WouldBlock) => {}
            Err(refusal) => return Err(refused(core, refusal)),
        }
        // Messages that were fed precede the bytes.
        self.flush(core);
        let Some(limits) = core.connection.limits() else { return Ok(None) };
        let len = slices.iter().fold(0, |len: usize, slice| len.saturating_add(slice.len()));
        let len = len.min(limits.max_message_size as usize);
        if len >= MIN_RENDEZVOUS_LEN.max(limits.max_write_len as usize) {
            // Copying takes long, and the peer may read earlier messages meanwhile. So the next call polls.
            core.unpolled = MAX_UNPOLLED;
            let copy = || StreamWrite::Copy {
                len: len.min(MAX_RENDEZVOUS_LEN),
                lane: core.lane(),
                number: limits.lane,
            };
            return Ok(core.connection.can_send_region().then(copy));
        }
        let Some(len) = core.connection.stream_len(len) else { return Ok(None) };
        let (connection, mut memory, _) = core.parts();
        match connection.send_with(&mut memory, len, None, |out| copy_slices(slices, out)) {
            Ok(()) => {
                self.post_all(core);
                Ok(Some(StreamWrite::Queued(len)))
            }
            Err(Refusal::WouldBlock) => {
                memory.failure.map_or(Ok(None), |error| Err(SendErrorKind::memory(self.peer, error)))
            }
            Err(refusal) => Err(refused(core, refusal)),
        }
    }

    /// Copies bytes into registered memory without the lock, and enqueues them, unless they are enqueued. Returns their
    /// number, or `None` if the connection has another lane or no lane by now.
    pub(crate) fn finish_write(
        &self,
        write: StreamWrite,
        slices: &[IoSlice<'_>],
    ) -> Result<Option<usize>, SendErrorKind> {
        let (len, lane, number) = match write {
            StreamWrite::Queued(count) => return Ok(Some(count)),
            StreamWrite::Copy { len, lane, number } => (len, lane, number),
        };
        let failed = |error| SendErrorKind::memory(self.peer, error);
        let mut buffer = lane.pool.allocate(len).map_err(failed)?;
        copy_slices(slices, &mut buffer);
        let copy = Outgoing::rendezvous(Region::message(&lane, buffer).map_err(failed)?, number);
        Ok(self.send_copy(&mut self.lock(), copy)?.then_some(len))
    }

    /// Returns the next bytes of the stream, or `Some(None)` at its end. Returns `None` if neither has arrived.
    pub(crate) fn next_bytes(&self, core: &mut Core) -> Result<Option<Option<PoolBuf>>, RecvError> {
        loop {
            match self.try_recv(core)? {
                // An empty message would look like the end of the stream.
                Some(Some(message)) if message.is_empty() => {}
                next => return Ok(next.map(|message| message.map(Message::into_buffer))),
            }
        }
    }
}

/// Fills `out` with the first bytes of the slices.
fn copy_slices(slices: &[IoSlice<'_>], mut out: &mut [u8]) {
    for slice in slices {
        let (to_slice, rest) = out.split_at_mut(slice.len().min(out.len()));
        to_slice.copy_from_slice(&slice[..to_slice.len()]);
        out = rest;
    }
    debug_assert!(out.is_empty(), "the slices have enough bytes");
}
