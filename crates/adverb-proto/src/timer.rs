//! Timers in a heap whose entries can be removed: those of queue pairs, and those of calls in adverb-cluster-proto.
//!
//! A queue pair's timer that is set to a later time isn't moved in the heap: it expires early, and is set again if its
//! deadline has not passed. So a queue pair that makes progress has no cost per packet, and one operation per timeout.
//! Removing a timer shrinks the heap at once, so that no timer outlives its queue pair, and the heap doesn't grow with the
//! number of calls.

use crate::Time;

/// Timers by key, at most one per key. Keys are small numbers: the memory grows with the largest one.
#[derive(Debug, Default)]
pub struct TimerHeap {
    /// No entry is later than its two children.
    heap: Vec<(Time, u32)>,
    /// The position of each key's timer in the heap; `ABSENT` if it isn't set.
    positions: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl TimerHeap {
    /// Sets the timer of a key, unless it is already set to an earlier time.
    #[inline]
    pub fn set_no_later(&mut self, key: u32, time: Time) {
        match self.position(key) {
            Some(position) if self.heap[position].0 <= time => {}
            Some(position) => {
                self.heap[position].0 = time;
                self.sift_up(position);
            }
            None => self.insert(key, time),
        }
    }

    /// Removes the timer of a key, if it is set.
    pub fn remove(&mut self, key: u32) {
        if let Some(position) = self.position(key) {
            self.remove_at(position);
        }
    }

    /// Returns the earliest timer: its time and its key.
    pub fn first(&self) -> Option<(Time, u32)> {
        self.heap.first().copied()
    }

    /// Removes the earliest timer if it has expired, and returns its key.
    pub fn pop(&mut self, now: Time) -> Option<u32> {
        let (_, key) = self.first().filter(|(time, _)| *time <= now)?;
        self.remove_at(0);
        Some(key)
    }

    /// Returns the number of timers.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no timer is set.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns the heap bytes of the state.
    pub fn heap_bytes(&self) -> usize {
        self.heap.capacity() * size_of::<(Time, u32)>() + self.positions.capacity() * size_of::<u32>()
    }

    #[inline]
    fn position(&self, key: u32) -> Option<usize> {
        self.positions.get(key as usize).filter(|position| **position != ABSENT).map(|p| *p as usize)
    }

    fn insert(&mut self, key: u32, time: Time) {
        if self.positions.len() <= key as usize {
            self.positions.resize(key as usize + 1, ABSENT);
        }
        self.heap.push((time, key));
        self.positions[key as usize] = self.heap.len() as u32 - 1;
        self.sift_up(self.heap.len() - 1);
    }

    fn remove_at(&mut self, position: usize) {
        let (_, key) = self.heap.swap_remove(position);
        self.positions[key as usize] = ABSENT;
        if let Some((_, moved)) = self.heap.get(position) {
            self.positions[*moved as usize] = position as u32;
            self.sift_down(position);
            self.sift_up(position);
        }
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent].0 <= self.heap[position].0 {
                break;
            }
            self.swap(position, parent);
            position = parent;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            let children = [left, left + 1].into_iter().filter(|child| *child < self.heap.len());
            let Some(child) = children.min_by_key(|child| self.heap[*child].0) else { break };
            if self.heap[position].0 <= self.heap[child].0 {
                break;
            }
            self.swap(position, child);
            position = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.positions[self.heap[a].1 as usize] = a as u32;
        self.positions[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn timers_expire_in_order_after_any_sets_and_clears() {
        let mut timers = TimerHeap::default();
        let mut state = 1u64;
        let mut wanted = vec![None; 200];
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let slot = (state >> 40) as usize % wanted.len();
            if (state >> 20).is_multiple_of(5) {
                timers.remove(slot as u32);
                wanted[slot] = None;
            } else {
                let time = at(state >> 54);
                timers.set_no_later(slot as u32, time);
                wanted[slot] = Some(wanted[slot].map_or(time, |old: Time| old.min(time)));
            }
            assert_eq!(timers.len(), wanted.iter().flatten().count());
            for (position, &(time, key)) in timers.heap.iter().enumerate() {
                assert!(timers.heap[position.saturating_sub(1) / 2].0 <= time);
                assert_eq!(timers.position(key), Some(position));
                assert_eq!(wanted[key as usize], Some(time));
            }
        }
        let mut expected: Vec<Time> = wanted.iter().flatten().copied().collect();
        expected.sort();
        for time in expected {
            assert_eq!(timers.first().map(|(time, _)| time), Some(time));
            let slot = timers.pop(time).unwrap();
            assert_eq!(wanted[slot as usize], Some(time));
        }
        assert!(timers.is_empty());
    }

    #[test]
    fn a_timer_set_to_a_later_time_keeps_its_earlier_time() {
        let mut timers = TimerHeap::default();
        timers.set_no_later(3, at(10));
        timers.set_no_later(3, at(20));
        assert_eq!(timers.first(), Some((at(10), 3)));
        assert_eq!(timers.pop(at(9)), None);
        assert_eq!(timers.pop(at(10)), Some(3));
        assert_eq!(timers.first(), None);
    }
}
