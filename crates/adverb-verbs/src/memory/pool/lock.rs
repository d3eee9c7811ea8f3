//! A lock for what takes a few nanoseconds.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Guards a value that is held only to put something in or take something out.
///
/// Releasing it is a plain store, where a lock that puts threads to sleep must look for sleepers: half of the atomic
/// operations, which are most of what a pool's buffer costs. Nobody does anything that takes long while they have it; and
/// if the system stops who has it, those who want it let others run.
#[derive(Default)]
pub(super) struct Lock<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, of which there is one at a time.
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
        /// Longer than anybody has the lock who isn't stopped.
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

/// Has the lock.
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
    fn one_has_it_at_a_time() {
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
