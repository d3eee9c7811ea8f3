//! The send slots of a queue: buffers that are registered once and used in turn.

use adverb_verbs::memory::Buffer;
use adverb_verbs::{RequestId, Result};

use crate::stamp::Stamp;

#[derive(Debug)]
pub(super) struct SendSlots {
    slots: Vec<Slot>,
    /// The numbers of the free slots.
    free: Vec<u32>,
}

#[derive(Debug)]
enum Slot {
    Free(Buffer),
    /// The caller writes the datagram.
    Taken,
    InFlight(InFlight),
    /// Posting failed, and the device may nevertheless execute the request: its completion returns the buffer.
    Abandoned,
}

/// A datagram that was posted and has not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// The number that the caller chose.
    pub(super) id: u64,
    pub(super) request: RequestId,
    pub(super) posted_at: Stamp,
}

/// The meaning of a send completion.
#[derive(Debug)]
pub(super) enum Match {
    /// The completion of this datagram.
    Sent(InFlight),
    /// The completion of a request whose posting had failed.
    Abandoned,
    /// The completion of no request.
    Unmatched,
}

impl SendSlots {
    /// Creates one slot of `size` bytes in each part of the buffer.
    pub(super) fn new(mut memory: Buffer, size: usize) -> Result<SendSlots> {
        let mut slots = Vec::new();
        while memory.capacity() > size {
            let rest = memory.split_off(size)?;
            slots.push(Slot::Free(std::mem::replace(&mut memory, rest)));
        }
        slots.push(Slot::Free(memory));
        let free = (0..).take(slots.len()).collect();
        Ok(SendSlots { slots, free })
    }

    /// Takes a free slot, if there is one, and returns its number and its buffer, with its whole length.
    pub(super) fn take(&mut self) -> Option<(u32, Buffer)> {
        let number = self.free.pop()?;
        match std::mem::replace(&mut self.slots[number as usize], Slot::Taken) {
            Slot::Free(mut buffer) => {
                buffer.reset_range();
                Some((number, buffer))
            }
            // A free slot has its buffer.
            slot => {
                self.slots[number as usize] = slot;
                None
            }
        }
    }

    /// Records that a taken slot was posted.
    pub(super) fn set_posted(&mut self, number: u32, in_flight: InFlight) {
        self.slots[number as usize] = Slot::InFlight(in_flight);
    }

    /// Records that posting a taken slot failed. Without its buffer, the slot stays in use until a completion returns
    /// the buffer.
    pub(super) fn set_not_posted(&mut self, number: u32, buffer: Option<Buffer>) {
        match buffer {
            Some(buffer) => self.release(number, buffer),
            None => self.slots[number as usize] = Slot::Abandoned,
        }
    }

    /// Matches a completion with its request and frees the slot.
    pub(super) fn complete(&mut self, number: u64, request: RequestId, buffer: Option<Buffer>) -> Match {
        let slot = usize::try_from(number).ok().and_then(|number| self.slots.get(number));
        let outcome = match slot {
            Some(Slot::InFlight(in_flight)) if in_flight.request == request => Match::Sent(*in_flight),
            Some(Slot::Abandoned) => Match::Abandoned,
            _ => return Match::Unmatched,
        };
        if let (Ok(number), Some(buffer)) = (u32::try_from(number), buffer) {
            self.release(number, buffer);
        }
        outcome
    }

    fn release(&mut self, number: u32, buffer: Buffer) {
        self.slots[number as usize] = Slot::Free(buffer);
        self.free.push(number);
    }

    /// Returns the number of slots, free or not.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Returns the datagrams that have not completed.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = InFlight> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::InFlight(in_flight) => Some(*in_flight),
            _ => None,
        })
    }
}
