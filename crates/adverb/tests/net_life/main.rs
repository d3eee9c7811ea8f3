//! Long-lived connections, and connections that fail. Each test is short by default. Environment variables make it
//! longer:
//!
//! ```text
//! ADVERB_MESSAGES=10000000 cargo test -p adverb --release --test net_life wrap -- --nocapture
//! ADVERB_KILLS=200 cargo test -p adverb --release --test net_life killed_peers -- --nocapture
//! ADVERB_MEBIBYTES=1024 ADVERB_RESTARTS=10 cargo test -p adverb --release --test net_life transfer -- --nocapture
//! ADVERB_SECONDS=5 cargo test -p adverb --release --test net_life path -- --nocapture   # as root
//! ```

#![cfg(feature = "soft")]

mod child;
#[path = "../common/connections.rs"]
mod connections;
mod kill;
mod paths;
#[path = "../common/random.rs"]
mod random;
mod restart;
mod stall;
mod wrap;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use random::Random;

/// The lock of tests that count the resources of the whole process: `cargo test` runs tests as threads of one process.
static PROCESS: RwLock<()> = RwLock::new(());

/// Shares the process with other tests until the guard is dropped.
fn share_process() -> RwLockReadGuard<'static, ()> {
    PROCESS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other tests from running until the guard is dropped.
fn own_process() -> RwLockWriteGuard<'static, ()> {
    PROCESS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a number from an environment variable, or the default.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("the variable is a number"))
}

/// The maximum length of a message of [`Messages`].
const MAX_LEN: usize = 64 << 10;

/// Messages whose content depends on their numbers: slices of pseudo-random bytes, which are fast to create.
struct Messages(Vec<u8>);

impl Messages {
    fn new() -> Messages {
        let mut random = Random(42);
        Messages((0..2 * MAX_LEN).map(|_| random.below(256) as u8).collect())
    }

    /// Returns the message with this number and length.
    fn message(&self, number: usize, len: usize) -> &[u8] {
        let start = number.wrapping_mul(7919) % MAX_LEN;
        &self.0[start..start + len]
    }
}
