//! One-sided access: memory that this side exposes, and operations on the peer's memory.

use adverb_proto::Time;

use super::{Connection, Next, Phase};
use crate::expose::{Exposed, Registration};
use crate::frame::{ExposedRegion, Frame, FrameKind, MAX_NAME_LEN, copy};
use crate::memory::{Buf, Memory, Region};
use crate::mutation::mutant;
use crate::recv::RecvState;
use crate::types::{EndReason, Event, SendError, Tag, Violation};

impl<B: Buf, R: Region> Connection<B, R> {
    /// Exposes a region, which the driver has registered for the current lane, to the peer. The frame is sent in order
    /// with the messages. After a resume, the connection announces the region again, before it replays messages.
    /// [`Event::Release`] returns the region at the end of the connection.
    ///
    /// # Errors
    ///
    /// Returns the region with the reason, as for [`send`](Connection::send), or if the name is too long.
    pub fn expose<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        name: &str,
        region: R,
        rights: u8,
        lane: u32,
    ) -> Result<(), (SendError, R)> {
        if let Err(error) = self.check_open().and_then(|_| self.check_replayed()) {
            return Err((error, region));
        }
        if lane != self.lane_number {
            return Err((SendError::StaleRegion, region));
        }
        if name.len() > MAX_NAME_LEN {
            return Err((SendError::TooLong { len: name.len() as u64, max: MAX_NAME_LEN as u32 }, region));
        }
        if !self.add_frame(memory, &expose_frame(name, &region, rights), Tag::Frames, copy(name.as_bytes())) {
            return Err((SendError::WouldBlock, region));
        }
        self.flush();
        let registration = Registration::Registered { region, lane };
        self.exposed.push(Exposed { name: name.to_owned(), rights, registration });
        if let Some((lane, _)) = self.lane_mut() {
            lane.exposed_count += 1;
        }
        Ok(())
    }

    /// Whether a region was not announced over the current lane.
    pub(super) fn has_unannounced(&self) -> bool {
        match &self.phase {
            Phase::Established { lane, .. } => lane.exposed_count < self.exposed.len(),
            _ => !self.exposed.is_empty(),
        }
    }

    /// Announces regions over a new lane.
    pub(super) fn take_exposed<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M) {
        loop {
            let Phase::Established { lane, .. } = &self.phase else { return };
            let Some(item) = self.exposed.get(lane.exposed_count) else { return };
            let Registration::Registered { region, lane } = &item.registration else { return };
            if *lane != self.lane_number && !mutant!(StaleRegionExposed) {
                return;
            }
            let frame = expose_frame(&item.name, region, item.rights);
            let name = item.name.clone();
            if !self.add_frame(memory, &frame, Tag::Frames, copy(name.as_bytes())) {
                return;
            }
            self.flush();
            if let Some((lane, _)) = self.lane_mut() {
                lane.exposed_count += 1;
            }
        }
    }

    /// Takes a region that was registered for the lane of this number.
    pub(super) fn set_exposed(&mut self, index: usize, region: R, lane: u32) {
        match self.exposed.get_mut(index) {
            Some(item) => item.registration = Registration::Registered { region, lane },
            // The connection has ended.
            None => self.events.push_back(Event::Release(region)),
        }
    }

    /// Counts a one-sided operation, which the driver posts at once, signaled, and with [`Tag::Operation`]. `lane` is
    /// the number of the lane over which the peer has exposed the memory. The driver passes on the operation's
    /// completion, without its buffer.
    ///
    /// # Errors
    ///
    /// Returns an error if the send queue is full, if the lane is another or not established, or if the connection has
    /// ended.
    pub fn post_operation(&mut self, lane: u32) -> Result<(), SendError> {
        if let Phase::Closed(reason) | Phase::Draining { next: Next::End(reason), .. } = self.phase {
            return Err(SendError::Ended(reason));
        }
        if let RecvState::Closed { .. } = self.recv.state {
            return Err(SendError::Ended(EndReason::PeerClosed));
        }
        match &mut self.phase {
            Phase::Established { lane: current, .. } if lane == self.lane_number => {
                if !current.queue.has_room(1) && !mutant!(OperationUnlimited) {
                    return Err(SendError::WouldBlock);
                }
                current.queue.post(Tag::Operation, true);
                Ok(())
            }
            _ => Err(SendError::StaleRegion),
        }
    }

    /// Notes that the queue pair refused the last operation, which fails the lane.
    pub fn handle_operation_refused(&mut self, now: Time) {
        if let Some((lane, _)) = self.lane_mut() {
            lane.queue.complete(Tag::Operation);
        }
        self.fail_lane(EndReason::LaneFailed, now);
    }

    /// Ends the connection, because the driver has found a protocol violation: for example, the peer has exposed more
    /// regions than the driver keeps.
    pub fn end_for_violation(&mut self, violation: Violation) {
        self.end(EndReason::ProtocolViolation(violation));
    }
}

fn expose_frame<R: Region>(name: &str, region: &R, rights: u8) -> Frame {
    let remote = region.remote();
    let region = ExposedRegion { addr: remote.addr, len: remote.len, rkey: remote.rkey, rights };
    Frame { kind: FrameKind::Expose { name_len: name.len() as u32, region }, immediate: None }
}
