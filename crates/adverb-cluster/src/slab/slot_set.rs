//! A set of slot numbers.

/// A set of slot numbers as a bitmap of three levels. All operations take constant time and allocate nothing.
///
/// Invariant: `top` has bit `i` exactly if `middle[i] != 0`, and `middle[i]` has bit `j` exactly if
/// `bottom[64 * i + j] != 0`. `bottom[n]` has bit `k` exactly if `64 * n + k` is a member.
///
/// With words of 4 bits instead of 64, the lowest bit first, the set {5, 7, 13} of numbers below 16 has two levels:
///
/// ```text
/// middle                0101
/// bottom    0000  0101  0000  0100
/// ```
///
/// The smallest member is in word 1, whose lowest bit is 1: 4 * 1 + 1 = 5.
#[derive(Debug)]
pub(super) struct SlotSet {
    top: u64,
    middle: Box<[u64]>,
    bottom: Box<[u64]>,
}

impl SlotSet {
    /// The maximum capacity.
    pub(super) const MAX_LEN: usize = 64 * 64 * 64;

    /// Creates an empty set of numbers below `capacity`, which is at most [`MAX_LEN`](SlotSet::MAX_LEN).
    pub(super) fn with_capacity(capacity: usize) -> SlotSet {
        debug_assert!(capacity <= SlotSet::MAX_LEN);
        let bottom = capacity.div_ceil(64);
        SlotSet { top: 0, middle: vec![0; bottom.div_ceil(64)].into(), bottom: vec![0; bottom].into() }
    }

    /// Sets the members to all numbers below `count`, which is at most the capacity.
    pub(super) fn fill(&mut self, count: usize) {
        fill(&mut self.bottom, count);
        fill(&mut self.middle, count.div_ceil(64));
        fill(std::slice::from_mut(&mut self.top), count.div_ceil(64 * 64));
    }

    /// Removes the smallest member.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.top == 0 {
            return None;
        }
        let upper = self.top.trailing_zeros() as usize;
        let middle = &mut self.middle[upper];
        let lower = upper * 64 + middle.trailing_zeros() as usize;
        let bottom = &mut self.bottom[lower];
        let slot = lower * 64 + bottom.trailing_zeros() as usize;
        // Clears the bit of the slot, and in the levels above the bit of each word that is 0 now.
        *bottom &= *bottom - 1;
        if *bottom == 0 {
            *middle &= *middle - 1;
            if *middle == 0 {
                self.top &= self.top - 1;
            }
        }
        Some(slot as u32)
    }

    /// Adds a number below the capacity. Returns `false` if it is a member already.
    #[inline]
    pub(super) fn insert(&mut self, slot: u32) -> bool {
        let lower = slot as usize / 64;
        let (bottom, bit) = (&mut self.bottom[lower], 1 << (slot % 64));
        if *bottom & bit != 0 {
            return false;
        }
        if *bottom == 0 {
            self.middle[lower / 64] |= 1 << (lower % 64);
            self.top |= 1 << (lower / 64);
        }
        *bottom |= bit;
        true
    }
}

/// Sets the lowest `count` bits, and clears the others.
fn fill(words: &mut [u64], count: usize) {
    for (index, word) in words.iter_mut().enumerate() {
        *word = match count.saturating_sub(64 * index) {
            0 => 0,
            rest if rest < 64 => (1 << rest) - 1,
            _ => u64::MAX,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_slot_set_is_a_set(
            count in 0usize..9000,
            steps in proptest::collection::vec(proptest::option::of(any::<u32>()), 0..300),
        ) {
            let mut set = SlotSet::with_capacity(9000);
            set.fill(count);
            let mut model: BTreeSet<u32> = (0..count as u32).collect();
            for step in steps {
                match step {
                    None => prop_assert_eq!(set.take(), model.pop_first()),
                    Some(slot) if count > 0 => {
                        let slot = slot % count as u32;
                        prop_assert_eq!(set.insert(slot), model.insert(slot));
                    }
                    Some(_) => {}
                }
            }
            while let Some(slot) = set.take() {
                prop_assert_eq!(Some(slot), model.pop_first());
            }
            prop_assert!(model.is_empty());
        }
    }

    #[test]
    fn the_largest_set_is_filled_and_emptied() {
        for count in [1, 63, 64, 65, 4095, 4096, 4097, SlotSet::MAX_LEN - 1, SlotSet::MAX_LEN] {
            let mut set = SlotSet::with_capacity(count);
            set.fill(count);
            assert!((0..count as u32).all(|slot| set.take() == Some(slot)));
            assert_eq!(set.take(), None);
            assert!((0..count as u32).rev().all(|slot| set.insert(slot)));
            assert!((0..count as u32).all(|slot| set.take() == Some(slot)));
            assert_eq!(set.take(), None);
        }
    }
}
