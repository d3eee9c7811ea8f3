//! Reproducible pseudorandom numbers for simulations, injected faults and tests.

/// The generator splitmix64 of Steele, Lea and Flood. The field is its state, and any number is a valid seed.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

/// The difference between consecutive states.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SplitMix64 {
    /// Returns the next number.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.skip(1);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Skips this many numbers.
    #[inline]
    pub fn skip(&mut self, count: u64) {
        self.0 = self.0.wrapping_add(STEP.wrapping_mul(count));
    }

    /// Returns a number below `end`, which must not be 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// Returns `true` with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.next_u64() >> 11) as f64) / ((1_u64 << 53) as f64) < probability
    }

    /// Fills in random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let numbers = self.next_u64().to_le_bytes();
            for (byte, number) in chunk.iter_mut().zip(numbers) {
                *byte = number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of the authors' reference implementation with seed 1234567.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = SplitMix64(1_234_567);
        let numbers = [(); 3].map(|()| random.next_u64());
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        let mut skipped = SplitMix64(1_234_567);
        skipped.skip(3);
        assert_eq!(skipped.next_u64(), random.next_u64());
    }
}
