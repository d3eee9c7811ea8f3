//! Connections that live long and end badly. Each test is short as it is, and of any length by the environment:
//!
//! ```text
//! ADVERB_MESSAGES=10000000 cargo test -p adverb --release --test net_life wrap -- --nocapture
//! ADVERB_KILLS=200 cargo test -p adverb --release --test net_life killed_peers -- --nocapture
//! ADVERB_MEBIBYTES=1024 ADVERB_RESTARTS=10 cargo test -p adverb --release --test net_life transfer -- --nocapture
//! ADVERB_SECONDS=5 cargo test -p adverb --release --test net_life path -- --nocapture   # as root
//! ```

#![cfg(feature = "soft")]

mod child;
mod kill;
mod paths;
mod restart;
mod stall;
mod wrap;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::scope;

use adverb::net::Options;
use adverb::net::blocking::{Connection, Connector, Listener};

/// Lets a test that counts what the whole process holds run alone: `cargo test` runs tests as threads of one process.
static PROCESS: RwLock<()> = RwLock::new(());

/// Shares the process with other tests until the guard is dropped.
fn share_process() -> RwLockReadGuard<'static, ()> {
    PROCESS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps other tests from running until the guard is dropped.
fn own_process() -> RwLockWriteGuard<'static, ()> {
    PROCESS.write().unwrap_or_else(PoisonError::into_inner)
}

/// A number of the environment's, or this one.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("it is a number"))
}

/// Two sides that are connected.
fn pair(client: &Options, server: &Options) -> (Connection, Connection) {
    let listener = Listener::bind_with("127.0.0.1:0", server).unwrap();
    let address = listener.local_addr();
    scope(|scope| {
        let client = scope.spawn(|| Connector::new().options(client).connect(address).unwrap());
        let server = listener.accept().unwrap();
        (client.join().unwrap(), server)
    })
}

/// Random numbers that are the same every time.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

/// The longest message of [`Messages`].
const MAX_LEN: usize = 64 << 10;

/// Messages whose content follows from their numbers: pieces of bytes that look random, which takes neither side long to make.
struct Messages(Vec<u8>);

impl Messages {
    fn new() -> Messages {
        let mut random = Random(42);
        Messages((0..2 * MAX_LEN).map(|_| random.below(256) as u8).collect())
    }

    /// The message of this number, if it has so many bytes.
    fn message(&self, number: usize, len: usize) -> &[u8] {
        let start = number.wrapping_mul(7919) % MAX_LEN;
        &self.0[start..start + len]
    }
}
