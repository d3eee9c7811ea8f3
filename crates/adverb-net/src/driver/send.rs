//! Sending messages.

use adverb_net_proto::{EndReason, PhaseKind, SendError as Refusal};
use adverb_verbs as verbs;

use super::region::Region;
use super::{Core, Driver, MAX_UNPOLLED, ended, lost_buffer};
use crate::error::{ConnectionError, SendError, SendErrorKind};
use crate::message::SendData;

/// A message that is to be sent.
pub(crate) struct Outgoing<'a> {
    body: Body<'a>,
    immediate: Option<u32>,
}

enum Body<'a> {
    /// A message that is copied into the peer's ring.
    Eager(SendData<'a>),
    /// A message that the peer reads, registered for the lane of this number.
    Rendezvous { region: Region, is_copy: bool, lane: u32 },
}

type Result<T, E = SendErrorKind> = std::result::Result<T, E>;

/// The result of enqueueing an [`Outgoing`].
enum Enqueued {
    /// The message is part of the write of this number.
    Write(u64),
    /// The connection has no credits, or no lane.
    WouldBlock,
    /// The message was prepared for another lane.
    Stale,
}

/// The result of [`Driver::send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    Posted,
    /// The message was prepared for another lane: the caller prepares it [again](Driver::prepare_again).
    Stale,
}

impl Driver {
    /// Prepares a message. A long one is copied and registered here, without the lock.
    #[inline]
    pub(crate) fn prepare<'a>(
        &self,
        message: SendData<'a>,
        immediate: Option<u32>,
    ) -> Result<Outgoing<'a>, SendError> {
        let (eager, _) = self.limits();
        if message.bytes().len() <= eager as usize {
            return Ok(Outgoing { body: Body::Eager(message), immediate });
        }
        self.prepare_rendezvous(message, immediate)
    }

    fn prepare_rendezvous<'a>(
        &self,
        message: SendData<'a>,
        immediate: Option<u32>,
    ) -> Result<Outgoing<'a>, SendError> {
        let len = message.bytes().len();
        let (_, max) = self.limits();
        if u32::try_from(len).ok().is_none_or(|len| len > max) {
            let (len, max) = (len as u64, max.into());
            return Err(message.into_error(SendErrorKind::TooLong { peer: self.peer, len, max }));
        }
        let (lane, number) = {
            let mut core = self.lock();
            // Copying takes long, and the peer may read the previous message meanwhile. So the next call polls.
            core.unpolled = MAX_UNPOLLED;
            (core.lane(), core.connection.lane())
        };
        let failed = |error| SendErrorKind::memory(self.peer, error);
        let (buffer, is_copy) = match message.into_buffer_of(lane.pool.protection_domain()) {
            Ok(buffer) => (buffer, false),
            // The peer can't read a buffer of another protection domain.
            Err(message) => match lane.pool.allocate_copy(message.bytes()) {
                Ok(copy) => (copy, true),
                Err(error) => return Err(message.into_error(failed(error))),
            },
        };
        let region = Region::message(&lane, buffer).map_err(failed)?;
        Ok(Outgoing { body: Body::Rendezvous { region, is_copy, lane: number }, immediate })
    }

    /// Prepares a message for the current lane that was prepared for another one.
    pub(crate) fn prepare_again<'a>(
        &self,
        outgoing: Option<Outgoing<'a>>,
    ) -> Result<Option<Outgoing<'a>>, SendError> {
        let Some(Outgoing { body, immediate }) = outgoing else { return Ok(None) };
        let message = match body {
            Body::Eager(message) => message,
            Body::Rendezvous { region, .. } => match region.reclaim() {
                Some(buffer) => buffer.into(),
                None => return Err(SendErrorKind::from(lost_buffer(self.peer)).into()),
            },
        };
        self.prepare(message, immediate).map(Some)
    }

    /// Enqueues a message, if credits or a place in the batch are available. `outgoing` is then `None`.
    fn enqueue(&self, core: &mut Core, outgoing: &mut Option<Outgoing<'_>>) -> Result<Enqueued> {
        let (connection, mut memory, _) = core.parts();
        // An eager message, the usual case, is not moved.
        if let Some(Outgoing { body: Body::Eager(data), immediate }) = outgoing {
            return match connection.send(&mut memory, data.bytes(), *immediate) {
                Ok(()) => {
                    *outgoing = None;
                    Ok(Enqueued::Write(core.connection.last_write()))
                }
                Err(refusal) => {
                    let failure = memory.failure;
                    self.classify_refusal(core, refusal, failure)
                }
            };
        }
        let Some(Outgoing { body: Body::Rendezvous { mut region, is_copy, lane: number }, immediate }) =
            outgoing.take()
        else {
            return Ok(Enqueued::Write(core.connection.last_write()));
        };
        // A window is bound only for a message that is sent next.
        if region.is_unbound() && number == core.connection.lane() {
            if core.connection.can_send_region() && core.binds.has_room() {
                let lane = core.lane();
                core.bind(&lane, &mut region);
            } else if core.connection.check_send().is_ok() {
                *outgoing =
                    Some(Outgoing { body: Body::Rendezvous { region, is_copy, lane: number }, immediate });
                return Ok(Enqueued::WouldBlock);
            }
        }
        let (connection, mut memory, _) = core.parts();
        let Err((refusal, region)) = connection.send_region(&mut memory, region, number, immediate) else {
            return Ok(Enqueued::Write(core.connection.last_write()));
        };
        *outgoing = Some(Outgoing { body: Body::Rendezvous { region, is_copy, lane: number }, immediate });
        let failure = memory.failure;
        self.classify_refusal(core, refusal, failure)
    }

    /// Converts a refusal to a result. `failure` is the error of an allocation.
    fn classify_refusal(
        &self,
        core: &Core,
        refusal: Refusal,
        failure: Option<verbs::Error>,
    ) -> Result<Enqueued> {
        match (refusal, failure) {
            (Refusal::WouldBlock, Some(error)) => Err(SendErrorKind::memory(self.peer, error)),
            (Refusal::WouldBlock, None) => Ok(Enqueued::WouldBlock),
            (Refusal::StaleRegion | Refusal::TooLong { .. }, _) => Ok(Enqueued::Stale),
            (refusal, _) => Err(refused(core, refusal)),
        }
    }

    /// Enqueues a message. If the current batch has no place for it, flushes the batch first.
    fn try_enqueue(&self, core: &mut Core, outgoing: &mut Option<Outgoing<'_>>) -> Result<Enqueued> {
        let mut enqueued = self.enqueue(core, outgoing)?;
        if let Enqueued::WouldBlock = enqueued
            && !core.connection.is_posted(core.connection.last_write())
        {
            self.flush(core);
            enqueued = self.enqueue(core, outgoing)?;
        }
        Ok(enqueued)
    }

    /// Enqueues a message, and returns a result once it is posted. The first successful call sets `write` to the number
    /// of its write.
    pub(crate) fn send(
        &self,
        core: &mut Core,
        outgoing: &mut Option<Outgoing<'_>>,
        write: &mut Option<u64>,
    ) -> Result<Option<Sent>> {
        let number = match *write {
            Some(number) => number,
            None if self.send_at_once(core, outgoing) => *write.insert(core.connection.last_write()),
            None => match self.try_enqueue(core, outgoing)? {
                Enqueued::Write(number) => {
                    *write = Some(number);
                    self.post_all(core);
                    number
                }
                Enqueued::WouldBlock => return Ok(None),
                Enqueued::Stale => return Ok(Some(Sent::Stale)),
            },
        };
        Ok(self.is_posted(core, number)?.map(|()| Sent::Posted))
    }

    /// Posts a message at once, if no other message or report must be posted before. Returns whether it did, which is
    /// the usual case.
    #[inline]
    fn send_at_once(&self, core: &mut Core, outgoing: &mut Option<Outgoing<'_>>) -> bool {
        let Some(Outgoing { body: Body::Eager(data), immediate }) = outgoing else { return false };
        let (connection, mut memory, _) = core.parts();
        let Some(write) = connection.send_at_once(&mut memory, data.bytes(), *immediate) else {
            return false;
        };
        *outgoing = None;
        self.post_write(core, write);
        true
    }

    /// Enqueues a message for coalescing with others. The batch is posted when it is large enough, or a call waits or
    /// flushes.
    pub(crate) fn feed(&self, core: &mut Core, outgoing: &mut Option<Outgoing<'_>>) -> Result<Option<Sent>> {
        for _ in 0..2 {
            let Some(Outgoing { body: Body::Eager(data), immediate }) = outgoing else {
                return Ok(match self.try_enqueue(core, outgoing)? {
                    Enqueued::Write(_) => {
                        self.post_all(core);
                        Some(Sent::Posted)
                    }
                    Enqueued::WouldBlock => None,
                    Enqueued::Stale => Some(Sent::Stale),
                });
            };
            let (connection, mut memory, _) = core.parts();
            match connection.feed(&mut memory, data.bytes(), *immediate) {
                Ok(()) => {
                    *outgoing = None;
                    if connection.is_due() {
                        self.post_all(core);
                    }
                    return Ok(Some(Sent::Posted));
                }
                Err(Refusal::WouldBlock) => {
                    if let Some(error) = memory.failure {
                        return Err(SendErrorKind::memory(self.peer, error));
                    }
                    self.post_all(core);
                }
                Err(Refusal::TooLong { .. }) => return Ok(Some(Sent::Stale)),
                Err(refusal) => return Err(refused(core, refusal)),
            }
        }
        Ok(None)
    }

    /// Enqueues a message and posts it, if both are possible at once.
    pub(crate) fn try_send(&self, core: &mut Core, outgoing: Outgoing<'_>) -> Result<(), SendError> {
        self.flush(core);
        let len = match &outgoing.body {
            Body::Eager(data) => data.bytes().len(),
            Body::Rendezvous { .. } => 0,
        };
        let mut outgoing = Some(outgoing);
        // Without this check, a message that cannot be posted would be enqueued.
        let is_refused = !matches!(core.connection.check_send(), Ok(()) | Err(Refusal::WouldBlock));
        let enqueued = if is_refused || core.connection.can_post(len) {
            self.enqueue(core, &mut outgoing)
        } else {
            Ok(Enqueued::WouldBlock)
        };
        let error = match enqueued {
            Ok(Enqueued::Write(_)) => {
                self.post_all(core);
                return Ok(());
            }
            Ok(_) => SendErrorKind::WouldBlock { peer: self.peer },
            Err(error) => error,
        };
        Err(Outgoing::into_error(outgoing, error))
    }

    /// Enqueues and posts a copy of bytes of a stream. Returns whether the copy was enqueued.
    pub(super) fn send_copy(&self, core: &mut Core, copy: Outgoing<'_>) -> Result<bool> {
        let is_enqueued = matches!(self.try_enqueue(core, &mut Some(copy))?, Enqueued::Write(_));
        self.post_all(core);
        Ok(is_enqueued)
    }

    /// Posts the messages that were fed, or has them posted once the peer grants credits. Returns whether there may have
    /// been requests to post.
    pub(crate) fn flush(&self, core: &mut Core) -> bool {
        core.connection.flush();
        self.post_all(core)
    }

    /// Whether the write of this number was posted.
    pub(crate) fn is_posted(&self, core: &Core, write: u64) -> Result<Option<()>> {
        if core.connection.is_posted(write) {
            return Ok(Some(()));
        }
        self.check_ended(core)?;
        Ok(None)
    }

    /// Returns an error if nothing more can be sent.
    pub(super) fn check_ended(&self, core: &Core) -> Result<(), ConnectionError> {
        match core.connection.end_reason() {
            Some(reason) => Err(ended(core, reason)),
            None if core.connection.has_peer_closed() => Err(ConnectionError::PeerClosed { peer: self.peer }),
            None => Ok(()),
        }
    }

    /// Whether all messages were posted.
    pub(crate) fn is_flushed(&self, core: &Core) -> Result<Option<()>> {
        if core.connection.is_flushed() {
            return Ok(Some(()));
        }
        self.check_ended(core)?;
        Ok(None)
    }

    /// Returns the number of the last write.
    pub(crate) fn last_write(&self) -> u64 {
        self.lock().connection.last_write()
    }

    /// Whether calls may still use the connection.
    pub(crate) fn is_open(&self, core: &Core) -> bool {
        core.connection.phase() != PhaseKind::Closed && !core.connection.is_closing()
    }
}

impl Outgoing<'_> {
    pub(super) fn rendezvous(region: Region, lane: u32) -> Outgoing<'static> {
        Outgoing { body: Body::Rendezvous { region, is_copy: true, lane }, immediate: None }
    }

    /// Returns the error of a message that was not sent. It contains the message's buffer, if the message was not
    /// enqueued.
    pub(crate) fn into_error(outgoing: Option<Outgoing<'_>>, kind: SendErrorKind) -> SendError {
        let buffer = match outgoing.map(|outgoing| outgoing.body) {
            Some(Body::Eager(message)) => return message.into_error(kind),
            Some(Body::Rendezvous { region, is_copy: false, .. }) => region.reclaim(),
            _ => None,
        };
        SendError { kind, buffer }
    }
}

/// Returns the error of a call that the connection has refused, and would refuse again.
pub(super) fn refused(core: &Core, refusal: Refusal) -> SendErrorKind {
    let peer = core.lane.peer;
    match refusal {
        Refusal::Ended(EndReason::PeerClosed) => ConnectionError::PeerClosed { peer }.into(),
        Refusal::Ended(reason) => ended(core, reason).into(),
        Refusal::Shutdown if core.connection.is_closing() => ConnectionError::LocallyClosed { peer }.into(),
        _ => SendErrorKind::ShutDown { peer },
    }
}
