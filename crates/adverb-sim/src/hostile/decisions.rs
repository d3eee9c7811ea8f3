//! The source of an attacker's decisions: a seed, or the bytes of a fuzzer.

use crate::Random;

/// A source of the decisions of an attack.
#[derive(Debug)]
pub enum DecisionSource<'a> {
    /// A pseudorandom number generator, which supplies an unlimited number of decisions.
    Random(Random),
    /// The input bytes of a fuzzer. After the last byte, all decisions are 0.
    Bytes(&'a [u8]),
}

impl DecisionSource<'_> {
    /// Whether more decisions are available. The result is always `true` for a generator.
    pub fn has_more(&self) -> bool {
        !matches!(self, DecisionSource::Bytes([]))
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        match self {
            DecisionSource::Random(random) => random.below(end),
            DecisionSource::Bytes(bytes) => {
                // Use as few bytes as possible, so that a fuzzer's small changes have small effects.
                let wanted = (64 - (end - 1).leading_zeros()).div_ceil(8) as usize;
                let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
                *bytes = rest;
                taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) % end
            }
        }
    }

    /// Returns a number of `count` bits, 1 to 64. A number from a fuzzer's bytes has at most 63 bits.
    pub fn bits(&mut self, count: u32) -> u64 {
        match self {
            DecisionSource::Random(random) => random.u64() >> (64 - count),
            DecisionSource::Bytes(_) => self.below(1 << count.min(63)),
        }
    }

    /// Returns `true` with a probability of 1 in `times`, which must not be 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == times - 1
    }

    /// Returns an element of `elements`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, elements: &[T]) -> T {
        elements[self.below(elements.len() as u64) as usize]
    }
}
