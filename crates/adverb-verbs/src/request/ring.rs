//! A ring buffer with one producer and one consumer, which holds requests while the device processes them.
//!
//! The two ends belong to different locks (posting and polling), so that neither waits for the other. This is sound
//! because there is one [`Producer`] and one [`Consumer`], which can't be cloned and change the ring only through
//! `&mut`. The consumer owns the slots from `taken` to `put`, the producer owns the others, and each end passes slots
//! to the other by storing its counter.

use sync::{Arc, AtomicU32, Ordering, Slot};

/// The end that adds values.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// The position of the next value.
    next: u32,
    /// The consumer's counter when it was last read.
    taken: u32,
}

/// The end that removes values, oldest first.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// The position of the oldest value.
    oldest: u32,
}

#[derive(Debug)]
struct Shared<T> {
    /// The slots. Their number is a power of two, at least `depth`, so that a mask converts a position to an index.
    slots: Box<[Slot<T>]>,
    depth: u32,
    put: AtomicU32,
    taken: AtomicU32,
}

// SAFETY: only one end at a time accesses a slot (see the module), so values are moved between threads, not shared.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

/// Creates a ring for `depth` values, or for one value if `depth` is 0.
pub(super) fn ring<T>(depth: u32) -> (Producer<T>, Consumer<T>) {
    let depth = depth.max(1);
    let slots = (0..depth.next_power_of_two()).map(|_| Slot::new()).collect();
    let shared = Arc::new(Shared { slots, depth, put: AtomicU32::new(0), taken: AtomicU32::new(0) });
    (Producer { shared: Arc::clone(&shared), next: 0, taken: 0 }, Consumer { shared, oldest: 0 })
}

impl<T> Producer<T> {
    /// Returns the position of the next value. Positions count up and wrap.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Returns the number of values in the ring.
    pub(super) fn len(&self) -> u32 {
        self.next.wrapping_sub(self.shared.taken.load(Ordering::Acquire))
    }

    /// Returns the maximum number of values.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.shared.depth
    }

    /// Whether `count` more values fit.
    #[inline]
    pub(super) fn has_free_slots(&mut self, count: u32) -> bool {
        if count <= self.depth() - self.next.wrapping_sub(self.taken) {
            return true;
        }
        self.taken = self.shared.taken.load(Ordering::Acquire);
        count <= self.depth() - self.next.wrapping_sub(self.taken)
    }

    /// Returns a vacancy for a value, if there is one.
    #[inline]
    pub(crate) fn vacancy(&mut self) -> Option<Vacancy<'_, T>> {
        self.has_free_slots(1).then_some(Vacancy(self))
    }

    /// Adds all values of a list, and empties the list. Returns `false`, and changes nothing, if they don't all fit.
    pub(super) fn push_all(&mut self, values: &mut Vec<T>) -> bool {
        let Ok(count) = u32::try_from(values.len()) else { return false };
        if !self.has_free_slots(count) {
            return false;
        }
        for value in values.drain(..) {
            // SAFETY: all values fit, so the slot belongs to the producer and is empty.
            unsafe { self.shared.slot(self.next).put(value) };
            self.next = self.next.wrapping_add(1);
        }
        self.shared.put.store(self.next, Ordering::Release);
        true
    }
}

/// A free slot for a value.
pub(crate) struct Vacancy<'a, T>(&'a mut Producer<T>);

impl<T> Vacancy<'_, T> {
    /// Returns the position of the value.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.0.next
    }

    /// Adds the value.
    #[inline]
    pub(crate) fn fill(self, value: T) {
        let Vacancy(producer) = self;
        // SAFETY: there has been a free slot since the vacancy was created, because it borrows the producer. The slot
        // is not among those from `taken` to `put`, so it belongs to the producer and is empty.
        unsafe { producer.shared.slot(producer.next).put(value) };
        producer.next = producer.next.wrapping_add(1);
        producer.shared.put.store(producer.next, Ordering::Release);
    }
}

impl<T> Consumer<T> {
    /// Returns the position of the oldest value, or of the next value if the ring is empty.
    #[inline]
    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Returns the number of values.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.shared.put.load(Ordering::Acquire).wrapping_sub(self.oldest)
    }

    /// Removes the oldest value.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.len() == 0 {
            return None;
        }
        // SAFETY: the slot is among those from `taken` to `put`, so it belongs to the consumer and is full.
        let value = unsafe { self.shared.slot(self.oldest).take() };
        self.oldest = self.oldest.wrapping_add(1);
        self.shared.taken.store(self.oldest, Ordering::Release);
        Some(value)
    }

    /// Removes the oldest value, converts it with `make`, and appends the first part of the result to `out`. The second
    /// part is dropped. If `make` panics, the process is aborted. Returns the number of values before the call.
    ///
    /// Every completion passes through this function: the value moves directly from the ring to its place in the list.
    #[inline(always)]
    pub(super) fn pop_into<U, V>(&mut self, out: &mut Vec<U>, make: impl FnOnce(T) -> (U, V)) -> u32 {
        let len = self.len();
        if len == 0 {
            return 0;
        }
        out.reserve(1);
        // If `make` panicked, its value would be taken again.
        let abort_guard = AbortOnDrop;
        // SAFETY: the slot is among those from `taken` to `put`, so it belongs to the consumer and is full.
        let (converted, left) = make(unsafe { self.shared.slot(self.oldest).take() });
        // SAFETY: the capacity for one more value was reserved.
        unsafe {
            out.as_mut_ptr().add(out.len()).write(converted);
            out.set_len(out.len() + 1);
        }
        self.oldest = self.oldest.wrapping_add(1);
        self.shared.taken.store(self.oldest, Ordering::Release);
        std::mem::forget(abort_guard);
        drop(left);
        len
    }

    /// Removes the newest value, as if it had never been added. The producer must belong to this ring.
    pub(super) fn retract(&mut self, producer: &mut Producer<T>) -> Option<T> {
        assert!(Arc::ptr_eq(&self.shared, &producer.shared), "the two ends of one ring");
        if self.len() == 0 {
            return None;
        }
        producer.next = producer.next.wrapping_sub(1);
        self.shared.put.store(producer.next, Ordering::Relaxed);
        // SAFETY: both ends are borrowed exclusively, so no other code accesses any slot. This slot was full.
        Some(unsafe { self.shared.slot(producer.next).take() })
    }
}

/// A guard that aborts the process when it is dropped, that is, when the function that it guards panics.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl<T> Shared<T> {
    #[inline]
    fn slot(&self, position: u32) -> &Slot<T> {
        // SAFETY: the number of slots is a power of two, and not 0, so the index is within bounds.
        unsafe { self.slots.get_unchecked(position as usize & (self.slots.len() - 1)) }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut position, put) = (self.taken.load(Ordering::Acquire), self.put.load(Ordering::Acquire));
        while position != put {
            // SAFETY: both ends are dropped, and the slots from `taken` to `put` are full.
            drop(unsafe { self.slot(position).take() });
            position = position.wrapping_add(1);
        }
    }
}

/// The types that the ring consists of: those of the standard library, or those of loom, which checks every order of
/// events.
mod sync {
    use std::mem::MaybeUninit;

    #[cfg(not(loom))]
    use std::cell::UnsafeCell;
    #[cfg(not(loom))]
    pub(super) use std::sync::Arc;
    #[cfg(not(loom))]
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};

    #[cfg(loom)]
    use loom::cell::UnsafeCell;
    #[cfg(loom)]
    pub(super) use loom::sync::Arc;
    #[cfg(loom)]
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering};

    /// A slot for a value.
    #[derive(Debug)]
    pub(super) struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

    impl<T> Slot<T> {
        pub(super) fn new() -> Slot<T> {
            Slot(UnsafeCell::new(MaybeUninit::uninit()))
        }

        /// Stores a value.
        ///
        /// # Safety
        ///
        /// No other code accesses the slot meanwhile.
        #[inline]
        pub(super) unsafe fn put(&self, value: T) {
            #[cfg(not(loom))]
            // SAFETY: the caller guarantees that no other code accesses the slot.
            unsafe {
                (*self.0.get()).write(value);
            }
            #[cfg(loom)]
            // SAFETY: as above, and loom checks it.
            self.0.with_mut(|slot| unsafe {
                (*slot).write(value);
            });
        }

        /// Removes the value.
        ///
        /// # Safety
        ///
        /// No other code accesses the slot meanwhile, and it has a value, which isn't removed again.
        #[inline]
        pub(super) unsafe fn take(&self) -> T {
            #[cfg(not(loom))]
            // SAFETY: the caller guarantees that no other code accesses the slot, and that it is full.
            return unsafe { (*self.0.get()).assume_init_read() };
            #[cfg(loom)]
            // SAFETY: as above, and loom checks it.
            self.0.with_mut(|slot| unsafe { (*slot).assume_init_read() })
        }
    }
}

/// Adds a value, or returns it if the ring is full.
#[cfg(test)]
fn push<T>(producer: &mut Producer<T>, value: T) -> Result<(), T> {
    let Some(vacancy) = producer.vacancy() else { return Err(value) };
    vacancy.fill(value);
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_are_popped_in_order_and_positions_wrap() {
        let (mut producer, mut consumer) = ring(3);
        (producer.next, producer.taken, consumer.oldest) = (u32::MAX - 1, u32::MAX - 1, u32::MAX - 1);
        producer.shared.put.store(u32::MAX - 1, Ordering::Relaxed);
        producer.shared.taken.store(u32::MAX - 1, Ordering::Relaxed);
        for round in 0..10 {
            for n in 0..3 {
                assert_eq!(push(&mut producer, round * 3 + n), Ok(()));
            }
            assert_eq!(push(&mut producer, 99), Err(99));
            assert_eq!((producer.len(), consumer.len()), (3, 3));
            for n in 0..3 {
                assert_eq!(consumer.pop(), Some(round * 3 + n));
            }
            assert_eq!(consumer.pop(), None);
        }
    }

    #[test]
    fn a_retracted_value_is_not_popped() {
        let (mut producer, mut consumer) = ring(4);
        for n in 0..4 {
            assert_eq!(push(&mut producer, n), Ok(()));
        }
        assert_eq!(consumer.retract(&mut producer), Some(3));
        assert_eq!(consumer.retract(&mut producer), Some(2));
        assert_eq!(push(&mut producer, 7), Ok(()));
        assert_eq!(
            [consumer.pop(), consumer.pop(), consumer.pop(), consumer.pop()],
            [Some(0), Some(1), Some(7), None]
        );
        assert_eq!(consumer.retract(&mut producer), None);
    }

    #[test]
    fn remaining_values_are_dropped_once() {
        let value = Arc::new(());
        let (mut producer, mut consumer) = ring(8);
        for _ in 0..5 {
            assert!(push(&mut producer, Arc::clone(&value)).is_ok());
        }
        drop(consumer.pop());
        assert_eq!(Arc::strong_count(&value), 5);
        drop(producer);
        drop(consumer);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_million_values_cross_between_two_threads() {
        // The ring isn't short, because on a machine with few cores a context switch is needed whenever it is full or
        // empty.
        let (mut producer, mut consumer) = ring(1024);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..1_000_000u32 {
                    while push(&mut producer, n).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
            for n in 0..1_000_000 {
                loop {
                    match consumer.pop() {
                        Some(value) => break assert_eq!(value, n),
                        None => std::thread::yield_now(),
                    }
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;

    #[test]
    fn every_value_crosses_once_and_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(2);
            let producing = loom::thread::spawn(move || {
                let mut n = 0;
                while n < 3 {
                    match push(&mut producer, Box::new(n)) {
                        Ok(()) => n += 1,
                        Err(_) => loom::thread::yield_now(),
                    }
                }
            });
            let mut out: Vec<Box<i32>> = Vec::new();
            while out.len() < 3 {
                if consumer.pop_into(&mut out, |value| (value, ())) == 0 {
                    loom::thread::yield_now();
                }
            }
            assert!(out.iter().map(|value| **value).eq(0..3));
            producing.join().unwrap();
        });
    }

    #[test]
    fn the_last_end_drops_the_remaining_values() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(2);
            let producing = loom::thread::spawn(move || {
                assert!(producer.push_all(&mut vec![Box::new(1), Box::new(2)]));
            });
            let _ = consumer.pop();
            drop(consumer);
            producing.join().unwrap();
        });
    }
}
