//! The deadlines of calls, in a heap.

use adverb_proto::Time;

use crate::mutation::mutant;

/// A timer in [`Timers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimerId(u32);

/// A binary heap whose entries can be removed. Its size is the maximum number of timers so far: unlike a heap in which
/// removed entries stay until their time, it doesn't grow with the number of calls.
#[derive(Debug)]
pub(super) struct Timers<K> {
    /// Indices of `entries`. No entry is later than its two children.
    heap: Vec<u32>,
    entries: Vec<Entry<K>>,
    /// Indices of unused entries.
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<K> {
    at: Time,
    key: K,
    /// The index in the heap.
    position: usize,
}

impl<K: Copy> Timers<K> {
    pub(super) fn new() -> Timers<K> {
        Timers { heap: Vec::new(), entries: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, at: Time, key: K) -> TimerId {
        let entry = Entry { at, key, position: self.heap.len() };
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.heap.push(id);
        self.move_up(self.heap.len() - 1);
        TimerId(id)
    }

    /// Removes a timer, which must exist.
    pub(super) fn remove(&mut self, TimerId(id): TimerId) {
        let position = self.entries[id as usize].position;
        self.heap.swap_remove(position);
        self.free.push(id);
        if position < self.heap.len() {
            self.set_position(position);
            if !mutant!(TimersUnsorted) {
                self.move_up(position);
                self.move_down(position);
            }
        }
    }

    /// Returns the earliest timer.
    pub(super) fn first(&self) -> Option<(Time, K)> {
        let entry = &self.entries[*self.heap.first()? as usize];
        Some((entry.at, entry.key))
    }

    /// Returns the heap bytes of the state.
    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<K>>()
            + (self.heap.capacity() + self.free.capacity()) * size_of::<u32>()
    }

    fn at(&self, position: usize) -> Time {
        self.entries[self.heap[position] as usize].at
    }

    fn set_position(&mut self, position: usize) {
        self.entries[self.heap[position] as usize].position = position;
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.set_position(a);
        self.set_position(b);
    }

    fn move_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.at(parent) <= self.at(position) {
                break;
            }
            self.swap(parent, position);
            position = parent;
        }
    }

    fn move_down(&mut self, mut position: usize) {
        loop {
            let children = 2 * position + 1..(2 * position + 3).min(self.heap.len());
            let Some(child) = children.min_by_key(|child| self.at(*child)) else { break };
            if self.at(position) <= self.at(child) {
                break;
            }
            self.swap(position, child);
            position = child;
        }
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
            // By time and number of insertion, as equal times may be in any order.
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
                prop_assert!(timers.entries.len() <= 200 && timers.heap.len() == model.len());
                for position in 0..timers.heap.len() {
                    prop_assert!(position == 0 || timers.at((position - 1) / 2) <= timers.at(position));
                    prop_assert_eq!(timers.entries[timers.heap[position] as usize].position, position);
                }
            }
        }
    }
}
