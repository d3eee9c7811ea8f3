//! What two ends of a connection say to each other, without any of the means: no memory, no queue pair, no clock.
//!
//! `docs/protocol.md` is the same in prose.

mod frame;
pub(super) mod handshake;
mod immediate;
mod inbound;
mod outbound;
pub(super) mod proof;

pub(super) use frame::{
    ANNOUNCEMENT_LEN, Announced, Frame, FrameKind, HEADER_LEN, LONGEST_NAME, OFFER_LEN, frame_len,
};
pub(super) use immediate::{Credits, Immediate};
pub(super) use inbound::Inbound;
pub(super) use outbound::Outbound;

use std::fmt;

/// What places and lengths in a ring are multiples of.
pub(super) const UNIT: u32 = 16;
/// The longest ring: its units, twice, are what an immediate can tell apart.
pub(super) const LONGEST_RING: u32 = 16 << 20;
/// The shortest ring.
pub(super) const SHORTEST_RING: u32 = 512;
/// The most writes that may be on their way or unread.
pub(super) const MOST_WRITES: u32 = 256;
/// The fewest.
pub(super) const FEWEST_WRITES: u32 = 4;
/// How many messages may wait for the peer to read them from where they are.
pub(super) const OFFERS: u32 = 8;
/// How many receives there are for what the peer may send without credit. Each report of credits is of a quarter of the ring
/// or half of the writes, so that six say all that there is to say until they are answered.
pub(super) const REPORTS: u32 = 8;
/// The longest message.
pub(super) const LONGEST_MESSAGE: u32 = 1 << 30;

/// The longest write into a ring: with what is skipped at its end, and what may go unreported, it always fits.
pub(super) const fn longest_write(ring: u32) -> u32 {
    ring / 4 / UNIT * UNIT
}

/// What a peer did that no peer may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation(pub(super) &'static str);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protocol violation by the peer: {}", self.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
