//! A hash for numbers that the engine chooses: random keys, queue pair numbers and communication IDs.

use core::hash::{BuildHasher, Hasher};

/// A builder of [`NumberHasher`]s.
///
/// A peer can't choose the keys in these tables, only the keys that are looked up, so it can't cause collisions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BuildNumberHasher;

impl BuildHasher for BuildNumberHasher {
    type Hasher = NumberHasher;

    #[inline]
    fn build_hasher(&self) -> NumberHasher {
        NumberHasher(0)
    }
}

/// Fibonacci hashing: a multiplication distributes a number over the high bits, and a shift mixes these into the low
/// bits, because the table uses the highest and the lowest ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
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
