//! Reproducible pseudorandom numbers.

use adverb_wire::random::SplitMix64;

/// A pseudorandom number generator: xoshiro256**, seeded by splitmix64.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Random {
        let mut seeds = SplitMix64(seed);
        Random([(); 4].map(|()| seeds.next_u64()))
    }

    /// Returns a random 64-bit number.
    pub fn u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Returns a random 32-bit number.
    pub fn u32(&mut self) -> u32 {
        (self.u64() >> 32) as u32
    }

    /// Returns a random number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a random number from `first` to `last`, inclusive.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// Returns `true` with a probability of `per_million` in a million.
    pub fn chance_per_million(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Returns a random element of `elements`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, elements: &[T]) -> T {
        elements[self.below(elements.len() as u64) as usize]
    }

    /// Returns `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.u64().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}
