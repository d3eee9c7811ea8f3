//! Reproducible pseudo-random numbers.

/// A generator with this state.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}
