//! Bytes that follow from a seed, so that a receiver can check every one of them.

use adverb_wire::random::SplitMix64;
use anyhow::{Result, ensure};

/// A sequence of byte strings in one direction of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(u64);

/// The use of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Messages and requests.
    Message = 1,
    /// Replies to requests of the peer.
    Reply,
    /// Bytes that the peer reads.
    Known,
    /// Bytes that are written to the peer's memory.
    Written,
    /// Words that are swapped into the peer's memory.
    Swapped,
}

/// A side of a session: the number of a member, and its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Side {
    pub(crate) member: u16,
    pub(crate) epoch: u64,
}

impl Stream {
    pub(crate) fn new(seed: u64, thread: u16, from: Side, to: Side, purpose: Purpose) -> Stream {
        let words = [u64::from(thread), from.member.into(), from.epoch, to.member.into(), to.epoch];
        let mut random = SplitMix64(seed.wrapping_add(purpose as u64));
        for word in words {
            random = SplitMix64(random.next_u64() ^ word);
        }
        Stream(random.next_u64())
    }

    fn random(self, number: u64) -> SplitMix64 {
        SplitMix64(self.0 ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    /// Returns the length of a byte string, which is at most `max`.
    pub(crate) fn len(self, number: u64, max: usize) -> usize {
        // This number must differ from the first word of the string.
        let mixed = SplitMix64(!self.random(number).0).next_u64();
        // One of 16 strings has a length up to the maximum. The others are short.
        let max = if mixed & 15 == 0 { max } else { max.min(64) };
        (mixed >> 8) as usize % (max + 1)
    }

    /// Returns a word.
    pub(crate) fn word(self, number: u64) -> u64 {
        self.random(number).next_u64()
    }

    /// Fills in a byte string.
    pub(crate) fn fill(self, number: u64, bytes: &mut [u8]) {
        self.random(number).fill(bytes);
    }

    /// Checks a byte string, or a part of one that starts at a multiple of 8.
    pub(crate) fn check(self, number: u64, start: usize, bytes: &[u8]) -> Result<()> {
        let mut random = self.random(number);
        let skipped = (start / 8) as u64;
        random.skip(skipped);
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let expected = random.next_u64().to_le_bytes();
            ensure!(
                chunk == &expected[..chunk.len()],
                "bytes {} to {} of {} are {chunk:02x?} instead of {:02x?}",
                8 * index,
                8 * index + chunk.len() - 1,
                bytes.len(),
                &expected[..chunk.len()]
            );
        }
        Ok(())
    }
}
