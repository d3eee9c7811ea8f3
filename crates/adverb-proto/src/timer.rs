//! Timers of queue pairs: one for each, in a heap with an index of positions.
//!
//! A timer that is set to a later time isn't moved in the heap: it expires early, and is set again if its deadline has
//! not passed. So a queue pair that makes progress has no cost per packet, and one operation per timeout. Clearing a
//! timer removes it from the heap at once, so that no timer outlives its queue pair.

use crate::Time;

/// The timers of a device, by the slot of their queue pair.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Time, u32)>,
    /// The position of each slot's timer in the heap; `ABSENT` if it isn't set.
    positions: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl Timers {
    /// Sets the timer of a slot, unless it is already set to an earlier time.
    #[inline]
    pub(crate) fn set_no_later(&mut self, slot: u32, time: Time) {
        match self.position(slot) {
            Some(position) if self.heap[position].0 <= time => {}
            Some(position) => {
                self.heap[position].0 = time;
                self.sift_up(position);
            }
            None => self.insert(slot, time),
        }
    }

    /// Unsets a slot's timer.
    pub(crate) fn clear(&mut self, slot: u32) {
        if let Some(position) = self.position(slot) {
            self.remove(position);
        }
    }

    /// Returns the earliest time of any timer, which can be earlier than its deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.first().map(|(time, _)| *time)
    }

    /// Removes a timer that has expired, and returns its slot.
    pub(crate) fn pop(&mut self, now: Time) -> Option<u32> {
        let (time, slot) = *self.heap.first()?;
        if time > now {
            return None;
        }
        self.remove(0);
        Some(slot)
    }

    /// Returns the number of timers.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    #[inline]
    fn position(&self, slot: u32) -> Option<usize> {
        self.positions.get(slot as usize).filter(|position| **position != ABSENT).map(|p| *p as usize)
    }

    fn insert(&mut self, slot: u32, time: Time) {
        if self.positions.len() <= slot as usize {
            self.positions.resize(slot as usize + 1, ABSENT);
        }
        self.heap.push((time, slot));
        self.positions[slot as usize] = self.heap.len() as u32 - 1;
        self.sift_up(self.heap.len() - 1);
    }

    fn remove(&mut self, position: usize) {
        let (_, slot) = self.heap.swap_remove(position);
        self.positions[slot as usize] = ABSENT;
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
        let mut timers = Timers::default();
        let mut state = 1u64;
        let mut wanted = vec![None; 200];
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let slot = (state >> 40) as usize % wanted.len();
            if (state >> 20).is_multiple_of(5) {
                timers.clear(slot as u32);
                wanted[slot] = None;
            } else {
                let time = at(state >> 54);
                timers.set_no_later(slot as u32, time);
                wanted[slot] = Some(wanted[slot].map_or(time, |old: Time| old.min(time)));
            }
        }
        let mut expected: Vec<Time> = wanted.iter().flatten().copied().collect();
        expected.sort();
        for time in expected {
            assert_eq!(timers.next(), Some(time));
            let slot = timers.pop(time).unwrap();
            assert_eq!(wanted[slot as usize], Some(time));
        }
        assert_eq!(timers.len(), 0);
    }

    #[test]
    fn a_timer_set_to_a_later_time_keeps_its_earlier_time() {
        let mut timers = Timers::default();
        timers.set_no_later(3, at(10));
        timers.set_no_later(3, at(20));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop(at(9)), None);
        assert_eq!(timers.pop(at(10)), Some(3));
        assert_eq!(timers.next(), None);
    }
}
