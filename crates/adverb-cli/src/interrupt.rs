//! The signals that end a command: SIGINT (Ctrl-C), SIGTERM, and for some commands SIGHUP.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// The request to end the command. The command then prints its results; a second signal ends it at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    /// The number of the signal that has arrived, or 0.
    signal: Arc<AtomicI32>,
}

impl Interrupt {
    /// Blocks the signals in this thread and in the threads that it starts, and starts a thread that waits for them.
    /// Threads that already run are not covered, so a command calls this function before it opens a device.
    pub(crate) fn new() -> Result<Interrupt> {
        Interrupt::of(&[Signal::SIGINT, Signal::SIGTERM], || {})
    }

    /// Does the same for a command that changes the terminal's state. SIGHUP also ends the command, unless it is ignored
    /// (`nohup`). `restore` is called before a second signal ends the process.
    pub(crate) fn with_terminal(restore: fn()) -> Result<Interrupt> {
        let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        let count = if is_ignored(Signal::SIGHUP) { 2 } else { 3 };
        Interrupt::of(&signals[..count], restore)
    }

    fn of(ending: &[Signal], restore: fn()) -> Result<Interrupt> {
        let mut signals = SigSet::empty();
        ending.iter().for_each(|signal| signals.add(*signal));
        signals.thread_block().context("could not block signals")?;
        let arrived = Arc::new(AtomicI32::new(0));
        let interrupt = Interrupt { signal: Arc::clone(&arrived) };
        let caller = thread::current();
        let watch = move || watch(&signals, &arrived, &caller, restore);
        thread::Builder::new().name("signals".to_owned()).spawn(watch).context("could not start a thread")?;
        Ok(interrupt)
    }

    /// Whether a signal has arrived.
    pub(crate) fn is_requested(&self) -> bool {
        self.signal().is_some()
    }

    /// Returns the signal that has arrived.
    pub(crate) fn signal(&self) -> Option<Signal> {
        Signal::try_from(self.signal.load(Ordering::Relaxed)).ok()
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

fn watch(signals: &SigSet, arrived: &AtomicI32, caller: &Thread, restore: fn()) {
    while let Ok(signal) = signals.wait() {
        if arrived.swap(signal as i32, Ordering::Relaxed) != 0 {
            restore();
            // Shells report this status for a process that a signal ended.
            std::process::exit(128 + signal as i32);
        }
        caller.unpark();
    }
}

/// Whether the process was started with this signal ignored.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}
