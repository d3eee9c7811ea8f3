//! A hash for numbers that the engine chose itself: random keys and queue pair numbers.

use core::hash::{BuildHasher, Hasher};

/// Builds [`NumberHash`].
///
/// A peer can't choose what is in these tables, only what is looked up, so there is nothing to flood.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher;

impl BuildHasher for NumberHasher {
    type Hasher = NumberHash;

    #[inline]
    fn build_hasher(&self) -> NumberHash {
        NumberHash(0)
    }
}

/// Fibonacci hashing: one multiplication spreads a number over all bits, as the table wants both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberHash(u64);

impl Hasher for NumberHash {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        let spread = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}
