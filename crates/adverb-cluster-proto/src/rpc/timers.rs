//! The deadlines of calls, in a heap.

use adverb_proto::Time;
use adverb_proto::timer::TimerHeap;

use crate::mutation::mutant;

/// A timer in [`Timers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimerId(u32);

/// Timers with keys of any kind. The size is the maximum number of timers so far.
#[derive(Debug)]
pub(super) struct Timers<K> {
    heap: TimerHeap,
    /// The key of each timer ID.
    keys: Vec<K>,
    /// Unused timer IDs.
    free: Vec<u32>,
}

impl<K: Copy> Timers<K> {
    pub(super) fn new() -> Timers<K> {
        Timers { heap: TimerHeap::default(), keys: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, at: Time, key: K) -> TimerId {
        let id = match self.free.pop() {
            Some(id) => {
                if !mutant!(TimerKeepsCall) {
                    self.keys[id as usize] = key;
                }
                id
            }
            None => {
                self.keys.push(key);
                (self.keys.len() - 1) as u32
            }
        };
        self.heap.set_no_later(id, at);
        TimerId(id)
    }

    /// Removes a timer, which must exist.
    pub(super) fn remove(&mut self, TimerId(id): TimerId) {
        self.heap.remove(id);
        self.free.push(id);
    }

    /// Returns the earliest timer.
    pub(super) fn first(&self) -> Option<(Time, K)> {
        let (at, id) = self.heap.first()?;
        Some((at, self.keys[id as usize]))
    }

    /// Returns the heap bytes of the state.
    pub(super) fn heap_bytes(&self) -> usize {
        self.heap.heap_bytes()
            + self.keys.capacity() * size_of::<K>()
            + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn timers_agree_with_a_sorted_map(
            steps in proptest::collection::vec((0..4u8, 0..50u64, any::<proptest::sample::Index>()), 1..200),
        ) {
            let mut timers = Timers::new();
            // The keys are time and insertion number, because several timers may have the same time.
            let mut model = BTreeMap::new();
            for (number, (choice, at, index)) in steps.into_iter().enumerate() {
                if choice > 0 || model.is_empty() {
                    let id = timers.insert(Time::from_nanos(at), number);
                    model.insert((at, number), id);
                } else {
                    let key = *model.keys().nth(index.index(model.len())).unwrap();
                    timers.remove(model.remove(&key).unwrap());
                }
                let first = timers.first();
                prop_assert_eq!(
                    first.map(|(at, _)| at.as_nanos()),
                    model.keys().next().map(|(at, _)| *at),
                );
                prop_assert!(first.is_none_or(|(at, number)| model.contains_key(&(at.as_nanos(), number))));
                prop_assert!(timers.keys.len() <= 200 && timers.heap.len() == model.len());
            }
        }
    }
}
