//! The signals that end a command: SIGINT (Ctrl-C) and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// The request to end the command. The command then prints its results; a second signal ends it at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    is_requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Blocks the signals in this thread and in the threads that it starts, and starts a thread that waits for them.
    /// Threads that already run are not covered, so a command calls this function before it opens a device.
    pub(crate) fn new() -> Result<Interrupt> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("could not block signals")?;
        let is_requested = Arc::new(AtomicBool::new(false));
        let interrupt = Interrupt { is_requested: Arc::clone(&is_requested) };
        let caller = thread::current();
        let watch = move || watch(&signals, &is_requested, &caller);
        thread::Builder::new().name("signals".to_owned()).spawn(watch).context("could not start a thread")?;
        Ok(interrupt)
    }

    /// Whether a signal has arrived.
    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed)
    }

    /// Waits for a signal, at most for this time. Only the thread that called [`new`](Interrupt::new) is woken.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while !self.is_requested() {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return,
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }
}

fn watch(signals: &SigSet, is_requested: &AtomicBool, caller: &Thread) {
    while let Ok(signal) = signals.wait() {
        if is_requested.swap(true, Ordering::Relaxed) {
            // Shells report this status for a process that a signal ended.
            std::process::exit(128 + signal as i32);
        }
        caller.unpark();
    }
}
