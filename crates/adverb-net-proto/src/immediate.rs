//! The immediate data of writes into a ring.

use crate::{MAX_OUTSTANDING_WRITES, MAX_RING_SIZE, RING_ALIGN, Violation};

/// The immediate data of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Immediate {
    /// The write has frames.
    Frames(Credits),
    /// The write is empty, and returns credits.
    Credits(Credits),
    /// The write is empty: the sender has read this number of rendezvous messages, the oldest ones.
    RendezvousDone(u32),
    /// The write is empty: the sender of a close knows that the close has arrived, and sends nothing more.
    CloseAck,
    /// The write is empty: the sender ends the connection without a close, and sends nothing more.
    Abort,
}

/// The receiver's progress since the beginning of the lane, as far as an immediate has bits for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Credits {
    /// Units of the ring that were read, modulo 2²¹.
    units: u32,
    /// Writes that were read, modulo 2⁹.
    writes: u32,
}

const UNIT_BITS: u32 = 21;
const WRITE_BITS: u32 = 9;
const FRAMES: u32 = 0;
const CREDITS: u32 = 1;
const RENDEZVOUS_DONE: u32 = 2;
const LAST_WRITE: u32 = 3;
/// The other bits of an abort.
const ABORT: u32 = 1;

impl Credits {
    pub(crate) fn new(units: u64, writes: u64) -> Credits {
        Credits { units: units as u32 & mask(UNIT_BITS), writes: writes as u32 & mask(WRITE_BITS) }
    }

    /// Returns the number of units after `before`, if there are fewer than 2²¹.
    pub(crate) fn units_since(self, before: u64) -> u64 {
        u64::from(self.units.wrapping_sub(before as u32) & mask(UNIT_BITS))
    }

    /// Returns the number of writes after `before`, if there are fewer than 2⁹.
    pub(crate) fn writes_since(self, before: u64) -> u64 {
        u64::from(self.writes.wrapping_sub(before as u32) & mask(WRITE_BITS))
    }

    fn bits(self) -> u32 {
        self.writes << UNIT_BITS | self.units
    }
}

impl Immediate {
    pub(crate) fn emit(self) -> u32 {
        let (kind, rest) = match self {
            Immediate::Frames(credits) => (FRAMES, credits.bits()),
            Immediate::Credits(credits) => (CREDITS, credits.bits()),
            Immediate::RendezvousDone(count) => (RENDEZVOUS_DONE, count & mask(UNIT_BITS + WRITE_BITS)),
            Immediate::CloseAck => (LAST_WRITE, 0),
            Immediate::Abort => (LAST_WRITE, ABORT),
        };
        kind << (UNIT_BITS + WRITE_BITS) | rest
    }

    pub(crate) fn parse(bits: u32) -> Result<Immediate, Violation> {
        let credits = Credits { units: bits & mask(UNIT_BITS), writes: bits >> UNIT_BITS & mask(WRITE_BITS) };
        match bits >> (UNIT_BITS + WRITE_BITS) {
            FRAMES => Ok(Immediate::Frames(credits)),
            CREDITS => Ok(Immediate::Credits(credits)),
            RENDEZVOUS_DONE if credits.bits() > 0 => Ok(Immediate::RendezvousDone(credits.bits())),
            LAST_WRITE if credits.bits() == 0 => Ok(Immediate::CloseAck),
            LAST_WRITE if credits.bits() == ABORT => Ok(Immediate::Abort),
            _ => Err(Violation("it sent malformed immediate data")),
        }
    }
}

const fn mask(bits: u32) -> u32 {
    (1 << bits) - 1
}

// "All outstanding units are read" and "none is read" have different counts.
const _: () = {
    assert!(MAX_RING_SIZE / RING_ALIGN < 1 << UNIT_BITS);
    assert!(MAX_OUTSTANDING_WRITES < 1 << WRITE_BITS);
};
