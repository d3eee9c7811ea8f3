//! The lock of a NIC's engine, and the notifications that are sent after it is released.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::engine::Engine;
use crate::channel::Channel;

/// The lock of a NIC's engine.
pub(super) struct EngineLock {
    engine: Mutex<Engine>,
    /// The number of times that a thread lets others run before it sleeps until the lock is released.
    yields: u32,
}

impl EngineLock {
    pub(super) fn new(engine: Engine) -> EngineLock {
        // On one CPU, a thread that yields instead of sleeping takes time from the thread that has the lock.
        let cpu_count = std::thread::available_parallelism().map_or(1, usize::from);
        EngineLock { engine: Mutex::new(engine), yields: if cpu_count > 1 { YIELDS } else { 0 } }
    }

    #[inline]
    pub(super) fn lock(&self) -> EngineGuard<'_> {
        let engine = self.engine.try_lock().unwrap_or_else(|| self.wait());
        EngineGuard { engine, notifications: Notifications::default() }
    }

    /// Whether a thread holds the lock.
    pub(super) fn is_locked(&self) -> bool {
        self.engine.is_locked()
    }

    /// Waits for the lock. The caller may be the thread of an async runtime, which should not sleep. So it yields to other
    /// threads, and sleeps only if the lock is held for long.
    #[cold]
    fn wait(&self) -> MutexGuard<'_, Engine> {
        for _ in 0..self.yields {
            std::thread::yield_now();
            if let Some(engine) = self.engine.try_lock() {
                return engine;
            }
        }
        self.engine.lock()
    }
}

/// The number of yields with several CPUs. They take about half a millisecond. A thread that sends a full batch of packets
/// holds the lock for a fifth of that, and longer if it loses its CPU.
const YIELDS: u32 = 1000;

/// The guard of a locked engine. Dropping it releases the lock, then sends the engine's notifications.
pub(super) struct EngineGuard<'a> {
    // Fields are dropped in this order.
    engine: MutexGuard<'a, Engine>,
    notifications: Notifications,
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Drop for EngineGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.engine.notifications.0.is_some() {
            std::mem::swap(&mut self.notifications, &mut self.engine.notifications);
        }
    }
}

/// Channels to notify after the lock is released. Dropping the list notifies them.
///
/// A notification wakes a thread, and the kernel may run the woken thread at once instead of the notifying thread. If the
/// notifying thread held the lock, the woken thread would wait for it.
// Every release of the lock checks for a list, so the check is one comparison.
#[derive(Default)]
pub(super) struct Notifications(Option<Channels>);

/// A list of channels that isn't empty. Most lists have only one channel, which needs no allocation.
struct Channels {
    first: Arc<Channel>,
    others: Vec<Arc<Channel>>,
}

impl Notifications {
    /// Adds an event to a channel, after the lock is released.
    pub(super) fn push(&mut self, channel: &Arc<Channel>) {
        let channel = Arc::clone(channel);
        match &mut self.0 {
            None => self.0 = Some(Channels { first: channel, others: Vec::new() }),
            Some(channels) => channels.others.push(channel),
        }
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        self.first.notify();
        self.others.iter().for_each(|channel| channel.notify());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_notified_after_the_lock_is_released() {
        let channels = [(); 3].map(|()| Arc::new(Channel::new().unwrap()));
        let pending = || channels.each_ref().map(|channel| channel.take().unwrap());
        let engine =
            Engine::new(Vec::new(), None, Arc::clone(&channels[0]), adverb_proto::types::PathMtu::Mtu1024);
        let lock = EngineLock::new(engine.unwrap());
        let mut guard = lock.lock();
        channels.iter().for_each(|channel| guard.notifications.push(channel));
        assert_eq!(pending(), [false; 3]);
        drop(guard);
        assert_eq!(pending(), [true; 3]);
        // Each was notified once.
        drop(lock.lock());
        assert_eq!(pending(), [false; 3]);
    }
}
