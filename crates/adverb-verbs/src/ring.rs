//! A ring between one who puts in and one who takes out: where requests wait while the device has them.
//!
//! The two ends belong to different locks (posting and polling), so that neither waits for the other. What makes it sound
//! is that there is one [`Producer`] and one [`Consumer`], which can't be cloned and change the ring only through
//! `&mut`: the slots from `taken` to `put` are the consumer's, the others the producer's, and each hands slots over by
//! storing its own counter.

use sync::{Arc, AtomicU32, Ordering, Slot};

/// The end where values are put in.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// The position of the next value.
    next: u32,
    /// How far the consumer was when last looked.
    taken: u32,
}

/// The end where values are taken out, oldest first.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// The position of the oldest value.
    oldest: u32,
}

#[derive(Debug)]
struct Shared<T> {
    /// As many as a power of two that holds `depth`, so that a position finds its slot by a mask.
    slots: Box<[Slot<T>]>,
    depth: u32,
    put: AtomicU32,
    taken: AtomicU32,
}

// SAFETY: a slot is only ever touched by one end at a time (see the module), so that values are handed over, not shared.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

/// A ring with room for `depth` values, at least 1.
pub(crate) fn ring<T>(depth: u32) -> (Producer<T>, Consumer<T>) {
    let depth = depth.max(1);
    let slots = (0..depth.next_power_of_two()).map(|_| Slot::new()).collect();
    let shared = Arc::new(Shared { slots, depth, put: AtomicU32::new(0), taken: AtomicU32::new(0) });
    (Producer { shared: Arc::clone(&shared), next: 0, taken: 0 }, Consumer { shared, oldest: 0 })
}

impl<T> Producer<T> {
    /// The position that the next value gets. Positions count up and wrap.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// How many values the ring has.
    pub(crate) fn len(&self) -> u32 {
        self.next.wrapping_sub(self.shared.taken.load(Ordering::Acquire))
    }

    /// How many values fit.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.shared.depth
    }

    /// Whether `count` more values fit.
    #[inline]
    pub(crate) fn has_room(&mut self, count: u32) -> bool {
        if count <= self.depth() - self.next.wrapping_sub(self.taken) {
            return true;
        }
        self.taken = self.shared.taken.load(Ordering::Acquire);
        count <= self.depth() - self.next.wrapping_sub(self.taken)
    }

    /// Room for a value, if there is any.
    #[inline]
    pub(crate) fn vacancy(&mut self) -> Option<Vacancy<'_, T>> {
        self.has_room(1).then_some(Vacancy(self))
    }

    /// Puts all values of a list in, and empties it; or does nothing, and says so, if there is no room for them.
    pub(crate) fn push_all(&mut self, values: &mut Vec<T>) -> bool {
        let Ok(count) = u32::try_from(values.len()) else { return false };
        if !self.has_room(count) {
            return false;
        }
        for value in values.drain(..) {
            // SAFETY: there is room for all, so that the slot is the producer's, and empty.
            unsafe { self.shared.slot(self.next).put(value) };
            self.next = self.next.wrapping_add(1);
        }
        self.shared.put.store(self.next, Ordering::Release);
        true
    }
}

/// Room for a value.
pub(crate) struct Vacancy<'a, T>(&'a mut Producer<T>);

impl<T> Vacancy<'_, T> {
    /// The position that the value gets.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.0.next
    }

    /// Puts the value in.
    #[inline]
    pub(crate) fn fill(self, value: T) {
        let Vacancy(producer) = self;
        // SAFETY: there is room, and has been since this was made, which borrows the producer. So the slot is behind those
        // from `taken` to `put`, is the producer's, and empty.
        unsafe { producer.shared.slot(producer.next).put(value) };
        producer.next = producer.next.wrapping_add(1);
        producer.shared.put.store(producer.next, Ordering::Release);
    }
}

impl<T> Consumer<T> {
    /// The position of the oldest value, or of the next if there is none.
    #[inline]
    pub(crate) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// How many values there are.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.shared.put.load(Ordering::Acquire).wrapping_sub(self.oldest)
    }

    /// Takes the oldest value.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.len() == 0 {
            return None;
        }
        // SAFETY: the slot is one of those from `taken` to `put`, so it is the consumer's, and full.
        let value = unsafe { self.shared.slot(self.oldest).take() };
        self.oldest = self.oldest.wrapping_add(1);
        self.shared.taken.store(self.oldest, Ordering::Release);
        Some(value)
    }

    /// Takes the oldest value, and adds to `out` what `make` makes of it; what it leaves is dropped. It must not panic:
    /// that ends the process. Says how many values there were.
    ///
    /// This is where every completion passes: the value goes from the ring to its place in the list, and lies nowhere
    /// between.
    #[inline(always)]
    pub(crate) fn pop_into<U, V>(&mut self, out: &mut Vec<U>, make: impl FnOnce(T) -> (U, V)) -> u32 {
        let len = self.len();
        if len == 0 {
            return 0;
        }
        out.reserve(1);
        // A value that `make` panicked with would be taken again.
        let abort_guard = AbortOnDrop;
        // SAFETY: the slot is one of those from `taken` to `put`, so it is the consumer's, and full.
        let (converted, left) = make(unsafe { self.shared.slot(self.oldest).take() });
        // SAFETY: there is room for one more.
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

    /// Takes the newest value back, as if it had never been put in. The producer must be that of this ring.
    pub(crate) fn retract(&mut self, producer: &mut Producer<T>) -> Option<T> {
        assert!(Arc::ptr_eq(&self.shared, &producer.shared), "the two ends of one ring");
        if self.len() == 0 {
            return None;
        }
        producer.next = producer.next.wrapping_sub(1);
        self.shared.put.store(producer.next, Ordering::Relaxed);
        // SAFETY: both ends are borrowed exclusively, so nobody else touches any slot; this one was full.
        Some(unsafe { self.shared.slot(producer.next).take() })
    }
}

/// Ends the process if it is dropped: if what must not panic did.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl<T> Shared<T> {
    #[inline]
    fn slot(&self, position: u32) -> &Slot<T> {
        // SAFETY: the number of slots is a power of two, and not 0, so that this is within bounds.
        unsafe { self.slots.get_unchecked(position as usize & (self.slots.len() - 1)) }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut position, put) = (self.taken.load(Ordering::Acquire), self.put.load(Ordering::Acquire));
        while position != put {
            // SAFETY: both ends are gone; the slots from `taken` to `put` are full.
            drop(unsafe { self.slot(position).take() });
            position = position.wrapping_add(1);
        }
    }
}

/// What the ring is made of: the standard library's, or loom's, which tries every order of events.
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

    /// A place for a value.
    #[derive(Debug)]
    pub(super) struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

    impl<T> Slot<T> {
        pub(super) fn new() -> Slot<T> {
            Slot(UnsafeCell::new(MaybeUninit::uninit()))
        }

        /// Puts a value in.
        ///
        /// # Safety
        ///
        /// Nobody else touches the slot meanwhile.
        #[inline]
        pub(super) unsafe fn put(&self, value: T) {
            #[cfg(not(loom))]
            // SAFETY: the caller sees to it that nobody else touches the slot.
            unsafe {
                (*self.0.get()).write(value);
            }
            #[cfg(loom)]
            // SAFETY: as above, and loom checks it.
            self.0.with_mut(|slot| unsafe {
                (*slot).write(value);
            });
        }

        /// Takes the value out.
        ///
        /// # Safety
        ///
        /// Nobody else touches the slot meanwhile, and there is a value, which isn't taken again.
        #[inline]
        pub(super) unsafe fn take(&self) -> T {
            #[cfg(not(loom))]
            // SAFETY: the caller sees to it that nobody else touches the slot, and that it is full.
            return unsafe { (*self.0.get()).assume_init_read() };
            #[cfg(loom)]
            // SAFETY: as above, and loom checks it.
            self.0.with_mut(|slot| unsafe { (*slot).assume_init_read() })
        }
    }
}

/// Puts a value in, or gives it back if there is no room.
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
    fn values_come_out_in_order_and_positions_wrap() {
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
        // Where a core is another's, each time that it is full or empty costs a turn of that one: so it isn't too short.
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
