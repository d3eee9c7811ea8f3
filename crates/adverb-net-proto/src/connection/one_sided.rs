//! One-sided access: memory that this side exposes, and operations on the peer's memory.

use std::collections::VecDeque;

use adverb_proto::Time;

use super::{Connection, Phase};
use crate::expose::{Exposed, Registration};
use crate::frame::{ExposedRegion, Frame, FrameKind, MAX_NAME_LEN, copy};
use crate::memory::{Buf, Memory, Region};
use crate::mutation::mutant;
use crate::send::SendState;
use crate::types::{EndReason, Event, SendError, Tag, Violation};

impl<B: Buf, R: Region> Connection<B, R> {
    /// Exposes a region to the peer, and returns the number of the region. The connection passes the region to
    /// [`poll_register`](Connection::poll_register) before it announces it, over this lane and each later one. The frame
    /// is sent in order with the messages; after a resume, before messages are replayed. [`Event::Release`] returns the
    /// region when it is [withdrawn](Connection::withdraw), or the connection ends.
    ///
    /// # Errors
    ///
    /// Returns the region with the reason if the connection has ended, if either side sends nothing more, or if the name
    /// is too long.
    pub fn expose(&mut self, name: &str, region: R, rights: u8) -> Result<u64, (SendError, R)> {
        match self.check_open() {
            Ok(_) | Err(SendError::WouldBlock) => {}
            Err(error) => return Err((error, region)),
        }
        if name.len() > MAX_NAME_LEN {
            return Err((SendError::TooLong { len: name.len() as u64, max: MAX_NAME_LEN as u32 }, region));
        }
        let number = self.exposed_total;
        self.exposed_total += 1;
        let registration = Registration::Registered { region, lane: None };
        self.exposed.push(Exposed { number, name: name.to_owned(), rights, registration });
        Ok(number)
    }

    /// Whether the frame of the region with this number was taken over the current lane, or the region was withdrawn.
    pub fn is_announced(&self, number: u64) -> bool {
        let announced = self.announced_count();
        self.exposed.iter().skip(announced).all(|item| item.number != number)
    }

    /// Whether a region is exposed under a name.
    pub fn is_exposed(&self, name: &str) -> bool {
        self.exposed.iter().any(|item| item.is_named() && item.name == name)
    }

    /// Withdraws the regions for which `is_withdrawn` returns `true`. It is called with the number of each region, the
    /// name unless the region is found by its addresses, and the region unless the driver is registering it.
    /// [`Event::Release`] returns the regions at once, and the peer is told of named regions in order with the messages.
    /// Returns whether a region was withdrawn that the peer knows.
    pub fn withdraw(&mut self, mut is_withdrawn: impl FnMut(u64, Option<&str>, Option<&R>) -> bool) -> bool {
        let announced = self.announced_count();
        let mut names = VecDeque::new();
        let mut kept: Vec<Exposed<R>> = Vec::with_capacity(self.exposed.len());
        let mut kept_announced = 0;
        for (index, item) in std::mem::take(&mut self.exposed).into_iter().enumerate() {
            let is_announced = index < announced;
            let name = item.is_named().then_some(&*item.name);
            if !is_withdrawn(item.number, name, item.region()) {
                kept_announced += usize::from(is_announced);
                // The peer finds this region by the name, and no earlier one.
                names.retain(|name| !is_announced || !item.is_named() || *name != item.name);
                kept.push(item);
                continue;
            }
            if is_announced && item.is_named() {
                names.push_back(item.name.clone());
            }
            if mutant!(WithdrawnKept) {
                kept_announced += usize::from(is_announced);
                kept.push(item);
            } else {
                self.events.extend(item.into_region().map(Event::Release));
            }
        }
        self.exposed = kept;
        let Phase::Established { lane, .. } = &mut self.phase else { return false };
        let is_known = lane.exposed_count > kept_announced;
        lane.exposed_count = kept_announced;
        // A side that closes sends no more frames.
        if !matches!(self.send.state, SendState::Closing(_)) && !mutant!(WithdrawUnannounced) {
            lane.withdrawn.append(&mut names);
        }
        is_known
    }

    /// Returns the number of regions that were announced over the current lane.
    fn announced_count(&self) -> usize {
        match &self.phase {
            Phase::Established { lane, .. } => lane.exposed_count,
            _ => 0,
        }
    }

    /// Whether a region, or its withdrawal, was not announced over the current lane.
    pub(super) fn has_unannounced(&self) -> bool {
        match &self.phase {
            Phase::Established { lane, .. } => {
                lane.exposed_count < self.exposed.len()
                    || !lane.withdrawn.is_empty() && !mutant!(WithdrawDelayed)
            }
            _ => !self.exposed.is_empty(),
        }
    }

    /// Tells the peer which regions were withdrawn.
    pub(super) fn take_withdrawn<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M) {
        loop {
            let Phase::Established { lane, .. } = &mut self.phase else { return };
            let Some(name) = lane.withdrawn.pop_front() else { return };
            let kind = FrameKind::Withdraw { name_len: name.len() as u32 };
            let frame = Frame { kind, immediate: None };
            if !self.add_frame(memory, &frame, Tag::Frames, copy(name.as_bytes())) {
                if let Some((lane, _)) = self.lane_mut() {
                    lane.withdrawn.push_front(name);
                }
                return;
            }
            self.flush();
        }
    }

    /// Announces regions over a new lane.
    pub(super) fn take_exposed<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M) {
        loop {
            let Phase::Established { lane, .. } = &self.phase else { return };
            let Some(item) = self.exposed.get(lane.exposed_count) else { return };
            let Registration::Registered { region, lane } = &item.registration else { return };
            if *lane != Some(self.lane_number) && !mutant!(StaleRegionExposed) {
                return;
            }
            let frame = expose_frame(&item.name, region, item.rights);
            // The peer can't be told of a withdrawal of addresses. So their frame does not wait for credits in a batch:
            // without them, the peer never learns of a region that is withdrawn.
            if !item.is_named() && !self.can_post_frame(&frame) {
                return self.flush();
            }
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

    /// Takes a region that was registered for the lane of this number, or could not be registered.
    pub(super) fn set_exposed(&mut self, number: u64, region: R, lane: Option<u32>) {
        match self.exposed.iter_mut().find(|item| item.number == number) {
            Some(item) => item.registration = Registration::Registered { region, lane },
            // The region was withdrawn, or the connection has ended.
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
        self.check_not_ended()?;
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
