//! What an attacker decides by: a seed, or the bytes that a fuzzer gives.

use crate::Random;

/// Where decisions come from.
#[derive(Debug)]
pub enum Choices<'a> {
    /// From a seed, without end.
    Seed(Random),
    /// From these bytes, until there are no more.
    Bytes(&'a [u8]),
}

impl Choices<'_> {
    /// Whether there are more decisions to come.
    pub fn has_more(&self) -> bool {
        !matches!(self, Choices::Bytes([]))
    }

    /// A number below `end`, which isn't 0.
    pub fn below(&mut self, end: u64) -> u64 {
        match self {
            Choices::Seed(random) => random.below(end),
            Choices::Bytes(bytes) => {
                // As few bytes as will do, so that a fuzzer's small changes have small effects.
                let wanted = (64 - (end - 1).leading_zeros()).div_ceil(8) as usize;
                let (now, later) = bytes.split_at(wanted.min(bytes.len()));
                *bytes = later;
                now.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) % end
            }
        }
    }

    /// Any number of so many bits.
    pub fn bits(&mut self, count: u32) -> u64 {
        match self {
            Choices::Seed(random) => random.u64() >> (64 - count),
            Choices::Bytes(_) => self.below(1 << count.min(63)),
        }
    }

    /// Whether a thing happens that happens once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == times - 1
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
