//! Requests of the caller.

use adverb_cluster_proto::{
    Broker as Core, PeerId, PostError, RemoteRange, SendSlot, Ticket, Transfer as CoreTransfer,
    TransferOperation,
};
use adverb_proto::types::Segment;
use adverb_verbs::memory::Payload;

use super::{Broker, MAX_SEGMENTS, RefusedTransfer, RemoteTarget, Result, SendBuf, TransferError};

/// The maximum length of a transfer in bytes.
const MAX_TRANSFER_LEN: usize = 1 << 30;

/// A one-sided transfer of a [batch](Broker::post_batch).
#[derive(Debug)]
pub struct Transfer {
    /// The operation.
    pub operation: TransferOperation,
    /// The local memory. Its length is that of the transfer.
    pub local: Payload,
    /// The remote range, which must be at least as long.
    pub remote: RemoteRange,
}

impl Broker {
    /// Allocates a slot for a message to a peer.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::NotOpen`] without a session, and [`PostError::WouldBlock`] if the slots, the peer's credits or
    /// the request queue are exhausted; [`Event::Unblocked`](super::Event::Unblocked) follows.
    pub fn allocate_send_buf(&mut self, peer: PeerId) -> Result<SendBuf, PostError> {
        // The keys of segments precede the messages that may contain pointers to them.
        if self.has_due_keys(peer) {
            self.update_segments();
            self.send_keys(peer)?;
        }
        self.take_send_buf(peer)
    }

    /// Takes a slot for a message of the application, or a control message.
    pub(super) fn take_send_buf(&mut self, peer: PeerId) -> Result<SendBuf, PostError> {
        self.take_returned_slots();
        let slot = self.core.allocate_send_buf(peer)?;
        let state = self.peers.get_mut(usize::from(peer.0));
        match state.and_then(|state| state.free_send_buffers.pop()) {
            Some(mut buffer) => {
                buffer.reset_range();
                Ok(SendBuf::new(slot, buffer, &self.returns))
            }
            // The state machine has as many slots as the peer has buffers, so a buffer is missing only after a failure.
            None => {
                self.core.discard(slot);
                Err(PostError::NotOpen { peer })
            }
        }
    }

    /// Posts a message.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::NotOpen`] if the session of the slot has ended. The message is lost then.
    pub fn post_send(&mut self, message: SendBuf) -> Result<(), PostError> {
        self.post_message(message, Core::post_send)
    }

    fn post_message(
        &mut self,
        message: SendBuf,
        post: impl FnOnce(&mut Core, SendSlot, u32) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let peer = message.peer();
        let Some((slot, buffer)) = message.into_parts() else { return Err(PostError::NotOpen { peer }) };
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else {
            return Err(PostError::NotOpen { peer });
        };
        let (index, length) = (usize::from(slot.index()), buffer.len() as u32);
        if let Err(error) = post(&mut self.core, slot, length) {
            state.free_send_buffers.push(buffer);
            return Err(error);
        }
        if let Some(place) = state.waiting_messages.get_mut(index) {
            *place = Some(buffer);
        }
        self.post_requests();
        Ok(())
    }

    /// Posts a message to the driver of the peer.
    pub(super) fn post_control(&mut self, message: SendBuf) -> Result<(), PostError> {
        self.post_message(message, Core::post_control)
    }

    /// Copies a message to a slot and posts it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`allocate_send_buf`](Broker::allocate_send_buf), and [`PostError::MessageTooLong`] if the message is longer than a
    /// slot.
    pub fn send(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), PostError> {
        let mut message = self.allocate_send_buf(peer)?;
        message.write(bytes)?;
        self.post_send(message)
    }

    /// Posts a WRITE of `local` to `remote`: a [`RemotePtr`](crate::RemotePtr) of the arena that the peer has
    /// [published](Broker::publish), or a [`RemoteRange`].
    ///
    /// # Errors
    ///
    /// Returns the payload and the cause:
    ///
    /// - [`TransferError::Pointer`] if the pointer is stale, out of bounds, or to a segment that the peer has not announced
    ///   or has withdrawn.
    /// - [`TransferError::TooManySegments`], [`TransferError::TooLong`] or [`TransferError::WindowPayload`] if the payload
    ///   can't be transferred.
    /// - [`TransferError::Post`] if there is no session ([`NotOpen`](PostError::NotOpen)), if the memory belongs to an earlier
    ///   run of the peer ([`StaleEpoch`](PostError::StaleEpoch)), if the request queue is full
    ///   ([`WouldBlock`](PostError::WouldBlock)), or if the local range is longer than the remote range
    ///   ([`OutOfBounds`](PostError::OutOfBounds)).
    ///
    /// Local memory of another protection domain is detected only when the request is posted, and ends the session. So does
    /// local memory that a READ or an atomic may not write.
    pub fn post_write(
        &mut self,
        peer: PeerId,
        local: impl Into<Payload>,
        remote: impl Into<RemoteTarget>,
    ) -> Result<Ticket, RefusedTransfer> {
        self.post_transfer(peer, TransferOperation::Write, local.into(), remote.into())
    }

    /// Posts a WRITE of `local` to `remote` that also delivers `immediate` to the peer, as
    /// [`Event::Immediate`](super::Event::Immediate). The request needs a credit.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_write`](Broker::post_write).
    pub fn post_write_with_imm(
        &mut self,
        peer: PeerId,
        local: impl Into<Payload>,
        remote: impl Into<RemoteTarget>,
        immediate: u32,
    ) -> Result<Ticket, RefusedTransfer> {
        self.post_transfer(peer, TransferOperation::WriteWithImm(immediate), local.into(), remote.into())
    }

    /// Posts a READ of `remote` into `local`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_write`](Broker::post_write).
    pub fn post_read(
        &mut self,
        peer: PeerId,
        local: impl Into<Payload>,
        remote: impl Into<RemoteTarget>,
    ) -> Result<Ticket, RefusedTransfer> {
        self.post_transfer(peer, TransferOperation::Read, local.into(), remote.into())
    }

    /// Posts an atomic compare-and-swap of a remote word. The eight bytes of `local` receive the old value, in this
    /// machine's byte order.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_write`](Broker::post_write), and [`PostError::InvalidAtomic`].
    pub fn post_compare_swap(
        &mut self,
        peer: PeerId,
        local: impl Into<Payload>,
        remote: impl Into<RemoteTarget>,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, RefusedTransfer> {
        self.post_transfer(
            peer,
            TransferOperation::CompareSwap { compare, swap },
            local.into(),
            remote.into(),
        )
    }

    /// Posts an atomic fetch-and-add of a remote word. The eight bytes of `local` receive the old value, in this machine's
    /// byte order.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_write`](Broker::post_write), and [`PostError::InvalidAtomic`].
    pub fn post_fetch_add(
        &mut self,
        peer: PeerId,
        local: impl Into<Payload>,
        remote: impl Into<RemoteTarget>,
        add: u64,
    ) -> Result<Ticket, RefusedTransfer> {
        self.post_transfer(peer, TransferOperation::FetchAdd { add }, local.into(), remote.into())
    }

    /// Posts transfers to one peer under one ticket, which ends when all of them have completed. The call takes all
    /// transfers out of the list, or, after an error, none.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_write`](Broker::post_write), [`PostError::EmptyBatch`], and
    /// [`PostError::BatchTooLong`] if the list is longer than the [request queue](crate::BrokerConfig::queue_depth).
    pub fn post_batch(
        &mut self,
        peer: PeerId,
        transfers: &mut Vec<Transfer>,
    ) -> Result<Ticket, TransferError> {
        self.transfers.clear();
        for Transfer { operation, local, remote } in transfers.iter() {
            let local = self.check_payload(local)?;
            self.transfers.push(CoreTransfer { operation: *operation, local, remote: *remote });
        }
        let ticket = self.core.post_batch(peer, &self.transfers)?;
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
            state.ticket_sizes.push_back(transfers.len());
            state.waiting_transfers.extend(transfers.drain(..).map(|transfer| transfer.local));
        }
        self.post_requests();
        Ok(ticket)
    }

    fn post_transfer(
        &mut self,
        peer: PeerId,
        operation: TransferOperation,
        payload: Payload,
        remote: RemoteTarget,
    ) -> Result<Ticket, RefusedTransfer> {
        let checked = self.check_payload(&payload);
        let posted = checked.and_then(|local| {
            let remote = self.resolve_target(peer, remote)?;
            Ok(self.core.post_batch(peer, &[CoreTransfer { operation, local, remote }])?)
        });
        let ticket = match posted {
            Ok(ticket) => ticket,
            Err(error) => return Err(RefusedTransfer { error, payload }),
        };
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
            state.ticket_sizes.push_back(1);
            state.waiting_transfers.push_back(payload);
        }
        self.post_requests();
        Ok(ticket)
    }

    /// Returns the length of a payload in the form that the state machine takes, which doesn't use the other fields.
    fn check_payload(&self, payload: &Payload) -> Result<Segment, TransferError> {
        if matches!(payload, Payload::Window(_)) {
            return Err(TransferError::WindowPayload);
        }
        let max = MAX_SEGMENTS.min(self.domain.device().attributes().max_sge) as usize;
        let count = payload.segments().len();
        if count > max {
            return Err(TransferError::TooManySegments { count, max });
        }
        let (len, max) = (payload.len(), MAX_TRANSFER_LEN);
        if len > max {
            return Err(TransferError::TooLong { len, max });
        }
        Ok(Segment { addr: 0, length: len as u32, lkey: 0 })
    }

    /// Posts the waiting requests of a peer.
    pub fn flush(&mut self, peer: PeerId) {
        self.core.flush(peer);
        self.post_requests();
    }

    /// Posts the waiting requests of all peers.
    pub fn flush_all(&mut self) {
        self.take_returned_slots();
        self.exchange_keys();
        self.core.flush_all();
        self.post_requests();
    }

    /// Takes back slots that were dropped.
    fn take_returned_slots(&mut self) {
        while let Some((slot, buffer)) = self.returns.take() {
            if let Some(state) = self.peers.get_mut(usize::from(slot.peer().0)) {
                state.free_send_buffers.push(buffer);
            }
            self.core.discard(slot);
        }
    }
}
