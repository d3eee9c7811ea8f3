//! The wakers of waiting tasks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

/// The wakers of the tasks that wait for a connection.
#[derive(Default)]
pub(crate) struct Wakers(Mutex<VecDeque<(WakerId, Waker)>>);

/// The ID of a task's wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WakerId(u64);

impl WakerId {
    pub(crate) fn new() -> WakerId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        WakerId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Wakers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Adds the waker of a wait that has none.
    pub(crate) fn add(&self, id: WakerId, waker: &Waker) {
        self.0.lock().push_back((id, waker.clone()));
    }

    /// Removes the waker of a wait, unless [`wake_all`](Wakers::wake_all) has removed it.
    pub(crate) fn remove(&self, id: WakerId) {
        let mut wakers = self.0.lock();
        let position = wakers.iter().position(|(other, _)| *other == id);
        let removed = position.and_then(|position| wakers.remove(position));
        drop((wakers, removed));
    }

    /// Wakes all tasks that wait.
    pub(crate) fn wake_all(&self) {
        // Woken tasks may add wakers again, which are not woken by this call.
        let count = self.0.lock().len();
        for _ in 0..count {
            let Some((_, waker)) = self.0.lock().pop_front() else { return };
            waker.wake();
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}
