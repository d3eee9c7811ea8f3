//! The check of torn reads: a writer replaces items at full speed while a client reads them.
//!
//! The store has no grace period, so memory that clients may be reading is reused at once. Each value contains its key and
//! the number of its PUT, and all other bytes follow from them. So the reader recognizes a value that no PUT has stored, one
//! of another key, and one that is older than a PUT that had returned before the GET began.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb::verbs::{ConnectOptions, SoftDevice};
use anyhow::{Context, Result, ensure};

use crate::client::{Client, ClientConfig, ClientStats, Outcome};
use crate::hash::hash;
use crate::item::Verify;
use crate::load::{Random, Zipfian, key_of};
use crate::members::{MAX_SOFT_READS, MAX_WINDOW, Members, NamedAddr};
use crate::server::Server;
use crate::store::{Store, StoreConfig};

/// The time in which the client must connect to the server, and in which the server must answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The options of the check.
#[derive(Clone, Copy, Debug)]
pub struct CheckConfig {
    /// The number of GETs.
    pub reads: u64,
    /// The number of keys.
    pub keys: u64,
    /// The length of values in bytes.
    pub value_len: usize,
    /// The checks of items by the client.
    pub verify: Verify,
    /// The network between the client and the server.
    pub link: Link,
    /// The interval of progress reports.
    pub progress: Option<Duration>,
}

/// The network between the client and the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Link {
    /// Client and server have a software NIC each, and exchange UDP packets.
    Udp,
    /// Client and server share a software NIC, which passes packets in memory. This is several times faster.
    Memory,
}

/// The results of the check.
#[derive(Clone, Copy, Default, Debug)]
pub struct CheckReport {
    /// The number of values that the client accepted.
    pub accepted: u64,
    /// The number of accepted values that no PUT has stored, or that were stored for another key.
    pub wrong: u64,
    /// The number of accepted values that were older than a PUT that had returned before the GET began.
    pub stale: u64,
    /// The number of GETs that did not find the key, which always exists.
    pub missing: u64,
    /// The number of PUTs.
    pub puts: u64,
    /// The time from the first GET to the end of the last one.
    pub elapsed: Duration,
    /// The numbers of READs.
    pub stats: ClientStats,
}

/// Writes the value of a PUT to `value`.
fn fill_value(value: &mut [u8], key: u64, number: u64) {
    let (words, tail) = value.as_chunks_mut::<8>();
    let base = hash(key, &number.to_le_bytes());
    for (index, word) in words.iter_mut().enumerate() {
        *word = value_word(index, key, number, base).to_le_bytes();
    }
    tail.fill(base as u8);
}

fn value_word(index: usize, key: u64, number: u64, base: u64) -> u64 {
    match index {
        0 => number,
        1 => key,
        _ => base.wrapping_add(index as u64),
    }
}

/// Returns the number of the PUT that stored a value, or `None` if no PUT of the key did.
fn number_of(value: &[u8], key: u64, value_len: usize) -> Option<u64> {
    let (words, tail) = value.as_chunks::<8>();
    let number = u64::from_le_bytes(*words.first()?);
    let base = hash(key, &number.to_le_bytes());
    let is_expected =
        |(index, word): (usize, &[u8; 8])| u64::from_le_bytes(*word) == value_word(index, key, number, base);
    let is_whole = value.len() == value_len
        && words.iter().enumerate().all(is_expected)
        && tail.iter().all(|byte| *byte == base as u8);
    is_whole.then_some(number)
}

/// Runs a server with a writer, and a client, in threads of this process.
///
/// # Errors
///
/// Returns an error if the options are invalid or a device fails.
pub fn run(config: &CheckConfig) -> Result<CheckReport> {
    ensure!(
        config.value_len >= 24,
        "a value has at least 24 bytes: the number of the PUT, the key, and a hash of both"
    );
    ensure!(config.keys > 0, "the check needs a key");
    let listen = || TcpListener::bind("127.0.0.1:0").context("listening at a loopback address failed");
    let listeners = [listen()?, listen()?];
    let named = |name: &str, listener: &TcpListener| -> Result<NamedAddr> {
        Ok(NamedAddr { name: name.to_owned(), addr: listener.local_addr()?.to_string() })
    };
    let members = Members {
        servers: vec![named("server", &listeners[0])?],
        clients: vec![named("client", &listeners[1])?],
        // A long timeout, so that a thread that waits for a CPU for seconds doesn't end the session.
        connect_options: ConnectOptions::new().max_rd_atomic(MAX_SOFT_READS).ack_timeout(18),
    };
    let shared_device = match config.link {
        Link::Udp => None,
        Link::Memory => Some(SoftDevice::loopback().open()?),
    };
    let join =
        |name, listener| members.builder(1).listener(listener).devices(shared_device.clone()).join(name);
    let [server_listener, client_listener] = listeners;
    let server_cluster = join("server", server_listener)?;
    let client_cluster = join("client", client_listener)?;

    let store_config = StoreConfig {
        memory: (config.keys as usize * (config.value_len + 256)).max(4 << 20),
        shards: 1,
        // A quarter of the words is used, so that no item is evicted.
        buckets: (config.keys as usize).div_ceil(2),
        grace: Duration::ZERO,
    };
    let member = server_cluster.this_member().0.into();
    let domains = server_cluster.protection_domains();
    let store = Arc::new(Store::new(&store_config, 1, member, server_cluster.epoch(), domains)?);
    let mut server = Server::new(server_cluster.take_broker(0)?, Arc::clone(&store))?;
    // The number of the last PUT of each key that has returned.
    let stored: Vec<AtomicU64> = (0..config.keys).map(|_| AtomicU64::new(0)).collect();
    let mut value = vec![0; config.value_len];
    for key in 0..config.keys {
        fill_value(&mut value, key, 0);
        store.put(&key_of(key), &value, Instant::now())?;
    }

    let stop = AtomicBool::new(false);
    let puts = AtomicU64::new(0);
    let (stop, puts, stored, store) = (&stop, &puts, &stored[..], &store);
    std::thread::scope(|scope| {
        let served = scope.spawn(move || server.run(stop));
        let written = scope.spawn(move || write(config, store, stored, stop, puts));
        let client_config = ClientConfig {
            window: MAX_WINDOW,
            verify: config.verify,
            // About half of the GETs find a cached word.
            cached_words: (config.keys as usize / 2).max(1),
            max_item_len: config.value_len + 128,
            call_timeout: TIMEOUT,
            ..ClientConfig::default()
        };
        let report = client_cluster
            .take_broker(0)
            .context("taking the client's broker failed")
            .and_then(|broker| Ok(Client::new(broker, &members.servers, client_config)?))
            .and_then(|mut client| read(config, &mut client, stored, puts));
        stop.store(true, Ordering::Relaxed);
        written.join().expect("the writer does not panic")?;
        served.join().expect("the server does not panic")?;
        report
    })
}

/// Replaces items at full speed. The keys are zipfian: some items are replaced every few microseconds, and most seldom, so that
/// GETs of most keys succeed at the first attempt.
fn write(
    config: &CheckConfig,
    store: &Store,
    stored: &[AtomicU64],
    stop: &AtomicBool,
    puts: &AtomicU64,
) -> Result<()> {
    let (mut random, zipfian) = (Random::new(2), Zipfian::new(config.keys));
    let mut value = vec![0; config.value_len];
    let now = Instant::now();
    for number in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = zipfian.key(&mut random);
        fill_value(&mut value, key, number);
        store.put(&key_of(key), &value, now)?;
        stored[key as usize].store(number, Ordering::Release);
        puts.store(number, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads and checks values.
fn read(
    config: &CheckConfig,
    client: &mut Client,
    stored: &[AtomicU64],
    puts: &AtomicU64,
) -> Result<CheckReport> {
    ensure!(client.wait_available(TIMEOUT)?, "the client did not connect to the server");
    let mut random = Random::new(1);
    let start = Instant::now();
    let mut report = CheckReport::default();
    let mut next_progress = config.progress;
    let (mut started, mut ended) = (0, 0);
    // The key and the oldest allowed PUT of each outstanding GET, by tag.
    let mut expected = vec![(0, 0); MAX_WINDOW];
    let mut free: Vec<usize> = (0..MAX_WINDOW).collect();
    let mut failure = None;
    while ended < config.reads {
        while started < config.reads
            && let Some(tag) = free.pop()
        {
            let key = random.below(config.keys);
            expected[tag] = (key, stored[key as usize].load(Ordering::Acquire));
            client.get(&key_of(key), tag as u64)?;
            started += 1;
        }
        client.wait(Duration::MAX)?;
        client.poll(|tag, result| {
            let (key, oldest) = expected[tag as usize];
            ended += 1;
            free.push(tag as usize);
            match result {
                Ok(Outcome::Value(value)) => {
                    report.accepted += 1;
                    match number_of(value, key, config.value_len) {
                        Some(number) if number < oldest => report.stale += 1,
                        Some(_) => {}
                        None => report.wrong += 1,
                    }
                }
                Ok(_) => report.missing += 1,
                Err(error) => failure = Some(error),
            }
        })?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        if let Some(at) = next_progress
            && start.elapsed() >= at
        {
            let rate = ended as f64 / start.elapsed().as_secs_f64();
            let CheckReport { wrong, stale, .. } = report;
            let torn = client.stats().torn;
            println!("{ended} reads, {rate:.0}/s, {torn} torn reads detected, {wrong} wrong, {stale} stale");
            next_progress = config.progress.map(|interval| at + interval);
        }
    }
    report.puts = puts.load(Ordering::Relaxed);
    report.elapsed = start.elapsed();
    report.stats = *client.stats();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_of_puts_are_recognized() {
        for len in [24, 100, 103] {
            let mut value = vec![0; len];
            fill_value(&mut value, 3, 77);
            assert_eq!(number_of(&value, 3, len), Some(77));
            assert_eq!(number_of(&value, 4, len), None, "another key");
            assert_eq!(number_of(&value, 3, len + 1), None, "another length");
            for at in 0..len {
                value[at] ^= 1;
                assert_eq!(number_of(&value, 3, len), None, "byte {at}");
                value[at] ^= 1;
            }
        }
    }
}
