//! The 32 bits that come with every write into a ring.

use super::Violation;

/// What the immediate of a write says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Immediate {
    /// There are frames in the ring.
    Frames(Credits),
    /// Nothing was written: only what was read is told.
    Credits(Credits),
    /// Nothing was written: so many offers, the oldest, were read, and aren't needed any more.
    Read(u32),
    /// Nothing was written: who is gone knows that this was heard, and nothing more comes.
    Farewell,
}

/// How far a receiver has come, counted from the beginning, as far as an immediate has room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Credits {
    /// Units of the ring that were read, modulo 2²¹.
    pub(crate) units: u32,
    /// Writes that were read, modulo 2⁹.
    pub(crate) writes: u32,
}

const UNIT_BITS: u32 = 21;
const WRITE_BITS: u32 = 9;
const FRAMES: u32 = 0;
const CREDITS: u32 = 1;
const READ: u32 = 2;
const FAREWELL: u32 = 3;

impl Credits {
    pub(super) fn new(units: u64, writes: u64) -> Credits {
        Credits { units: units as u32 & mask(UNIT_BITS), writes: writes as u32 & mask(WRITE_BITS) }
    }

    /// By how much the count of units is ahead of this one, if it is by less than 2²¹.
    pub(super) fn units_since(self, before: u64) -> u64 {
        u64::from(self.units.wrapping_sub(before as u32) & mask(UNIT_BITS))
    }

    /// As [`units_since`](Credits::units_since), of writes.
    pub(super) fn writes_since(self, before: u64) -> u64 {
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
            Immediate::Read(count) => (READ, count & mask(UNIT_BITS + WRITE_BITS)),
            Immediate::Farewell => (FAREWELL, 0),
        };
        kind << (UNIT_BITS + WRITE_BITS) | rest
    }

    pub(crate) fn parse(bits: u32) -> Result<Immediate, Violation> {
        let credits = Credits { units: bits & mask(UNIT_BITS), writes: bits >> UNIT_BITS & mask(WRITE_BITS) };
        match bits >> (UNIT_BITS + WRITE_BITS) {
            FRAMES => Ok(Immediate::Frames(credits)),
            CREDITS => Ok(Immediate::Credits(credits)),
            READ if credits.bits() > 0 => Ok(Immediate::Read(credits.bits())),
            FAREWELL if credits.bits() == 0 => Ok(Immediate::Farewell),
            _ => Err(Violation("it sent an immediate of an unknown kind")),
        }
    }
}

const fn mask(bits: u32) -> u32 {
    (1 << bits) - 1
}

// What is outstanding, all of it read or none, can be told apart.
const _: () = {
    assert!(super::LONGEST_RING / super::UNIT < 1 << UNIT_BITS);
    assert!(super::MOST_WRITES < 1 << WRITE_BITS);
};
