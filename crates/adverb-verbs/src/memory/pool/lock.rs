//! A lock for critical sections of a few nanoseconds.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// A spin lock for short critical sections.
///
/// Releasing it is a plain store, while a lock with sleeping waiters must check for them. That halves the atomic
/// operations, which are most of the cost of allocating a buffer from a pool. Holders never block or make system calls.
/// If the system preempts a holder, waiters yield.
#[derive(Default)]
pub(super) struct Lock<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only through a guard, and only one guard exists at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        if self.is_locked.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        /// The number of spins before yielding: more than a holder that isn't preempted needs.
        const SPINS: u32 = 100;
        let mut spins = 0;
        while self.is_locked.load(Ordering::Relaxed) || self.is_locked.swap(true, Ordering::Acquire) {
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// A guard that holds the lock until it is dropped.
pub(super) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, and is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_locked.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_holds_the_lock_at_a_time() {
        let counter = Lock::<(u64, u64)>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let mut counter = counter.lock();
                        counter.0 += 1;
                        assert_eq!(counter.0, counter.1 + 1);
                        counter.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*counter.lock(), (200_000, 200_000));
    }
}
