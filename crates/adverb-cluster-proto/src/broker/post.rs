//! Requests of the caller.

use adverb_proto::types::{RemoteAddress, Segment, SendOperation};

use super::Broker;
use crate::credits::CONTROL_MESSAGE;
use crate::mutation::mutant;
use crate::rail::RequestKind;
use crate::session::WaitingRequest;
use crate::{LocalMemory, PeerId, PostError, RemoteRange, SendSlot, Ticket, Transfer, TransferOperation};

impl Broker {
    /// Takes a send slot and a credit for a message to a peer. The caller writes the message to the slot's memory, and
    /// then calls [`post_send`](Broker::post_send), or [`discard`](Broker::discard).
    ///
    /// A slot has a place in the request queue, so a slot of an open session can always be posted.
    pub fn allocate_send_buf(&mut self, peer: PeerId) -> Result<SendSlot, PostError> {
        let config = self.config;
        let not_open = PostError::NotOpen { peer };
        let state = self.peers.get_mut(usize::from(peer.0)).ok_or(not_open)?;
        let free_slot = state.free_send_slots.last().copied();
        let (session, _) = state.open().ok_or(not_open)?;
        let has_room = session.queue_room(&config) > 0;
        let Some(index) = free_slot.filter(|_| has_room && session.send_credits.available() > 0) else {
            session.blocked.on_message = true;
            return Err(PostError::WouldBlock { peer });
        };
        session.send_credits.take(1);
        session.reserved += 1;
        let number = session.number;
        state.free_send_slots.pop();
        Ok(SendSlot { peer, session: number, index })
    }

    /// Posts the first `length` bytes of a slot as a message. If the call fails, the slot is discarded.
    pub fn post_send(&mut self, slot: SendSlot, length: u32) -> Result<(), PostError> {
        self.post_message(slot, length, 0)
    }

    /// Posts the first `length` bytes of a slot as a control message: a message between the drivers, which the peer
    /// receives as [`Event::Control`](crate::Event::Control). If the call fails, the slot is discarded.
    pub fn post_control(&mut self, slot: SendSlot, length: u32) -> Result<(), PostError> {
        self.post_message(slot, length, CONTROL_MESSAGE)
    }

    fn post_message(&mut self, slot: SendSlot, length: u32, flags: u32) -> Result<(), PostError> {
        let max = self.config.slot_size;
        let batch = self.config.effective_doorbell_batch();
        let SendSlot { peer, session: number, index } = slot;
        if length > max {
            self.discard(slot);
            return Err(PostError::MessageTooLong { len: length as usize, max: max as usize });
        }
        let is_current = |current: u16| current == number || mutant!(AcceptStaleSlot);
        let state = self.peers.get_mut(usize::from(peer.0)).ok_or(PostError::NotOpen { peer })?;
        let Some((session, _)) = state.open().filter(|(session, _)| is_current(session.number)) else {
            self.discard(slot);
            return Err(PostError::NotOpen { peer });
        };
        session.reserved = session.reserved.saturating_sub(1);
        // The broker adds the credits to the immediate data when it posts the request.
        let request = WaitingRequest {
            kind: RequestKind::Message(index),
            operation: SendOperation::SendWithImm(flags),
            local: LocalMemory::Slot { index, length },
            ticket: None,
        };
        let is_full = session.push(request, batch);
        self.mark_posted(peer, is_full);
        Ok(())
    }

    /// Returns a send slot and its credit to the broker.
    pub fn discard(&mut self, slot: SendSlot) {
        let SendSlot { peer, session: number, index } = slot;
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        state.free_send_slots.push(index);
        if let Some((session, _)) = state.open().filter(|(session, _)| session.number == number) {
            session.reserved -= 1;
            if !mutant!(DiscardLosesCredit) {
                session.send_credits.put_back();
            }
        }
        self.check_unblocked(peer);
    }

    /// Posts a write of `local` to `remote`.
    pub fn post_write(
        &mut self,
        peer: PeerId,
        local: Segment,
        remote: RemoteRange,
    ) -> Result<Ticket, PostError> {
        self.post_batch(peer, &[Transfer { operation: TransferOperation::Write, local, remote }])
    }

    /// Posts a write of `local` to `remote` that delivers `immediate` to the peer. The request needs a credit.
    pub fn post_write_with_imm(
        &mut self,
        peer: PeerId,
        local: Segment,
        remote: RemoteRange,
        immediate: u32,
    ) -> Result<Ticket, PostError> {
        let operation = TransferOperation::WriteWithImm(immediate);
        self.post_batch(peer, &[Transfer { operation, local, remote }])
    }

    /// Posts a read of `remote` into `local`.
    pub fn post_read(
        &mut self,
        peer: PeerId,
        local: Segment,
        remote: RemoteRange,
    ) -> Result<Ticket, PostError> {
        self.post_batch(peer, &[Transfer { operation: TransferOperation::Read, local, remote }])
    }

    /// Posts an atomic compare-and-swap of the remote word. `local` receives the old value.
    pub fn post_compare_swap(
        &mut self,
        peer: PeerId,
        local: Segment,
        remote: RemoteRange,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, PostError> {
        let operation = TransferOperation::CompareSwap { compare, swap };
        self.post_batch(peer, &[Transfer { operation, local, remote }])
    }

    /// Posts an atomic fetch-and-add of the remote word. `local` receives the old value.
    pub fn post_fetch_add(
        &mut self,
        peer: PeerId,
        local: Segment,
        remote: RemoteRange,
        add: u64,
    ) -> Result<Ticket, PostError> {
        self.post_batch(peer, &[Transfer { operation: TransferOperation::FetchAdd { add }, local, remote }])
    }

    /// Posts transfers to one peer under one ticket, which ends when all of them have completed. The broker accepts all of
    /// them or none.
    pub fn post_batch(&mut self, peer: PeerId, transfers: &[Transfer]) -> Result<Ticket, PostError> {
        let config = self.config;
        let batch = config.effective_doorbell_batch();
        let not_open = PostError::NotOpen { peer };
        let state = self.peers.get_mut(usize::from(peer.0)).ok_or(not_open)?;
        let (session, epoch) = state.open().ok_or(not_open)?;
        let [.., last] = transfers else { return Err(PostError::EmptyBatch) };
        for transfer in transfers {
            check(peer, epoch, transfer)?;
        }
        let needs_credit = |transfer: &&Transfer| {
            matches!(transfer.operation, TransferOperation::WriteWithImm(_))
                && !mutant!(ImmediateUsesNoCredit)
        };
        let credits = transfers.iter().filter(needs_credit).count();
        for (len, max) in [(transfers.len(), config.queue_depth), (credits, config.recv_slots)] {
            if len > usize::from(max) {
                return Err(PostError::BatchTooLong { len, max: usize::from(max) });
            }
        }
        if session.queue_room(&config) < transfers.len() {
            session.blocked.on_queue = true;
            return Err(PostError::WouldBlock { peer });
        }
        let credits = if mutant!(BatchTakesOneCredit) { credits.min(1) as u32 } else { credits as u32 };
        if session.send_credits.available() < credits {
            session.blocked.on_message = true;
            return Err(PostError::WouldBlock { peer });
        }
        session.send_credits.take(credits);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let mut is_full = false;
        for (index, transfer) in transfers.iter().enumerate() {
            let is_last =
                if mutant!(TicketOfFirstTransfer) { index == 0 } else { core::ptr::eq(transfer, last) };
            is_full = session.push(waiting_request(transfer, is_last.then_some(ticket)), batch);
        }
        self.mark_posted(peer, is_full);
        Ok(ticket)
    }

    /// Posts the waiting requests of a peer, with the next [`poll_post`](Broker::poll_post).
    pub fn flush(&mut self, peer: PeerId) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        if let Some((session, _)) = state.open() {
            session.flush();
        }
        self.mark_ready(peer);
    }

    /// Posts the waiting requests of all peers, and the released receives. A driver calls this function in each poll. It
    /// visits only peers that have something to post.
    pub fn flush_all(&mut self) {
        if mutant!(FlushAllSkipsPeer) && self.unflushed.len() > 1 {
            self.unflushed.pop();
        }
        while let Some(peer) = self.unflushed.pop() {
            if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
                state.is_unflushed = false;
            }
            self.flush(peer);
        }
    }

    /// Schedules the output of a new request.
    fn mark_posted(&mut self, peer: PeerId, is_full: bool) {
        if is_full {
            self.mark_ready(peer);
        } else {
            self.mark_unflushed(peer);
        }
    }
}

/// Checks a transfer before anything is posted, because a transfer that the peer rejects breaks the connection.
fn check(peer: PeerId, epoch: u64, transfer: &Transfer) -> Result<(), PostError> {
    let Transfer { operation, local, remote } = transfer;
    if remote.epoch != epoch && !mutant!(SkipEpochCheck) {
        return Err(PostError::StaleEpoch { peer, current: epoch, requested: remote.epoch });
    }
    if u64::from(local.length) > remote.memory.len {
        return Err(PostError::OutOfBounds { requested: u64::from(local.length), size: remote.memory.len });
    }
    let is_atomic =
        matches!(operation, TransferOperation::CompareSwap { .. } | TransferOperation::FetchAdd { .. });
    if is_atomic && (local.length != 8 || !remote.memory.addr.is_multiple_of(8)) {
        return Err(PostError::InvalidAtomic);
    }
    Ok(())
}

fn waiting_request(transfer: &Transfer, ticket: Option<Ticket>) -> WaitingRequest {
    let remote: RemoteAddress = transfer.remote.memory.at(0);
    let operation = match transfer.operation {
        TransferOperation::Write => SendOperation::Write(remote),
        TransferOperation::WriteWithImm(immediate) => SendOperation::WriteWithImm(remote, immediate),
        TransferOperation::Read => SendOperation::Read(remote),
        TransferOperation::CompareSwap { compare, swap } => {
            SendOperation::CompareSwap { remote, compare, swap }
        }
        TransferOperation::FetchAdd { add } => SendOperation::FetchAdd { remote, add },
    };
    WaitingRequest {
        kind: RequestKind::Transfer,
        operation,
        local: LocalMemory::Segment(transfer.local),
        ticket,
    }
}
