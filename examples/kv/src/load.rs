//! The load generator: the mixes A, B and C of YCSB, with zipfian keys.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::client::{Client, KvError, Outcome};
use crate::hash::hash;

/// A mix of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Mix {
    /// Half GETs and half PUTs.
    A,
    /// 95 % GETs and 5 % PUTs.
    B,
    /// GETs only.
    C,
}

impl Mix {
    /// Returns the share of GETs in percent.
    pub fn get_percent(self) -> u64 {
        match self {
            Mix::A => 50,
            Mix::B => 95,
            Mix::C => 100,
        }
    }
}

/// The options of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadConfig {
    /// The mix of operations.
    pub mix: Mix,
    /// The number of keys.
    pub keys: u64,
    /// The length of values in bytes.
    pub value_len: usize,
    /// The number of operations.
    pub operations: u64,
    /// The maximum number of outstanding operations.
    pub window: usize,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// The results of a load.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// The number of operations that succeeded.
    pub succeeded: u64,
    /// The number of GETs of keys that don't exist.
    pub missing: u64,
    /// The number of operations that failed.
    pub failed: u64,
    /// The time from the first operation to the end of the last one.
    pub elapsed: Duration,
    /// The latencies in ns.
    pub latencies: Histogram<u64>,
}

/// A client with outstanding operations, over any transport.
pub trait Connection {
    /// Starts a GET.
    ///
    /// # Errors
    ///
    /// Returns an error if the GET can't be started.
    fn start_get(&mut self, key: &[u8], tag: u64) -> Result<(), KvError>;

    /// Starts a PUT.
    ///
    /// # Errors
    ///
    /// Returns an error if the PUT can't be started.
    fn start_put(&mut self, key: &[u8], value: &[u8], tag: u64) -> Result<(), KvError>;

    /// Waits for completions, and passes the results of ended operations to the handler.
    ///
    /// # Errors
    ///
    /// Returns an error if the transport failed.
    fn advance(&mut self, handler: &mut dyn FnMut(u64, Result<Outcome<'_>, KvError>)) -> Result<(), KvError>;
}

impl Connection for Client {
    fn start_get(&mut self, key: &[u8], tag: u64) -> Result<(), KvError> {
        self.get(key, tag)
    }

    fn start_put(&mut self, key: &[u8], value: &[u8], tag: u64) -> Result<(), KvError> {
        self.put(key, value, tag)
    }

    fn advance(&mut self, handler: &mut dyn FnMut(u64, Result<Outcome<'_>, KvError>)) -> Result<(), KvError> {
        self.wait(Duration::MAX)?;
        self.poll(handler)
    }
}

/// A generator of random numbers (SplitMix64). Adverb's own is not public API, and an example uses only that.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns a number from 0 to 2^64 − 1.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a number that is at least 0 and below 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The zipfian distribution of YCSB: item `i` is chosen with a probability proportional to 1 / (i + 1)^0.99.
///
/// The method is that of Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (1994).
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;
/// The maximum latency in ns that is recorded. Longer ones count as this one.
const MAX_LATENCY: u64 = 60_000_000_000;

impl Zipfian {
    /// Creates the distribution over `items` items.
    pub fn new(items: u64) -> Zipfian {
        let zeta_of = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let zeta = zeta_of(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta_of(2) / zeta);
        Zipfian { items, alpha: 1.0 / (1.0 - THETA), zeta, eta }
    }

    /// Returns a rank: 0 is the most frequent one.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let fraction = random.fraction();
        let scaled = fraction * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(THETA) {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * fraction - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }

    /// Returns a key number. The frequent keys are spread over all numbers.
    pub fn key(&self, random: &mut Random) -> u64 {
        hash(0, &self.rank(random).to_le_bytes()) % self.items
    }
}

/// Returns the key with a number: `user` and 16 hexadecimal digits.
pub fn key_of(number: u64) -> [u8; 20] {
    let mut key = *b"user0000000000000000";
    for (digit, byte) in key[4..].iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[(number >> (60 - 4 * digit)) as usize & 15];
    }
    key
}

/// Stores all keys.
///
/// # Errors
///
/// Returns the first error of a PUT.
pub fn fill(connection: &mut impl Connection, config: &LoadConfig) -> Result<(), KvError> {
    let value = vec![b'v'; config.value_len];
    let (mut started, mut ended) = (0, 0);
    let mut failure = None;
    while ended < config.keys {
        while started < config.keys && started - ended < config.window as u64 {
            connection.start_put(&key_of(started), &value, started)?;
            started += 1;
        }
        connection.advance(&mut |_, result| {
            ended += 1;
            failure = failure.take().or(result.err());
        })?;
    }
    failure.map_or(Ok(()), Err)
}

/// Runs the load, and measures it. An operation that fails is counted, and the load continues.
///
/// # Errors
///
/// Returns an error if the transport failed.
pub fn run(connection: &mut impl Connection, config: &LoadConfig) -> Result<LoadReport, KvError> {
    let zipfian = Zipfian::new(config.keys);
    let mut random = Random::new(config.seed);
    let value = vec![b'w'; config.value_len];
    // The start of each outstanding operation, by tag.
    let mut starts = vec![Instant::now(); config.window];
    let mut free: Vec<usize> = (0..config.window).rev().collect();
    let histogram = Histogram::new_with_bounds(1, MAX_LATENCY, 3).expect("the bounds are valid");
    let started_at = Instant::now();
    let mut report =
        LoadReport { succeeded: 0, missing: 0, failed: 0, elapsed: Duration::ZERO, latencies: histogram };
    let mut started = 0;
    loop {
        while started < config.operations
            && let Some(tag) = free.pop()
        {
            let key = key_of(zipfian.key(&mut random));
            let is_get = random.below(100) < config.mix.get_percent();
            starts[tag] = Instant::now();
            let operation = if is_get {
                connection.start_get(&key, tag as u64)
            } else {
                connection.start_put(&key, &value, tag as u64)
            };
            started += 1;
            if operation.is_err() {
                report.failed += 1;
                free.push(tag);
            }
        }
        if free.len() == config.window {
            break;
        }
        connection.advance(&mut |tag, result| {
            let latency = starts[tag as usize].elapsed();
            report.latencies.saturating_record(latency.as_nanos() as u64);
            match result {
                Ok(Outcome::Missing) => report.missing += 1,
                Ok(_) => report.succeeded += 1,
                Err(_) => report.failed += 1,
            }
            free.push(tag as usize);
        })?;
    }
    report.elapsed = started_at.elapsed();
    Ok(report)
}

impl LoadReport {
    /// Returns the number of operations per second, without those that failed.
    pub fn rate(&self) -> f64 {
        (self.succeeded + self.missing) as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns a quantile of the latency in µs.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// Adds the results of another thread.
    pub fn merge(&mut self, other: &LoadReport) {
        self.succeeded += other.succeeded;
        self.missing += other.missing;
        self.failed += other.failed;
        self.elapsed = self.elapsed.max(other.elapsed);
        // Both histograms have the same bounds.
        let added = self.latencies.add(&other.latencies);
        debug_assert!(added.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_digits_of_their_number() {
        assert_eq!(&key_of(0xab), b"user00000000000000ab");
        assert_eq!(&key_of(u64::MAX), b"userffffffffffffffff");
    }

    #[test]
    fn frequent_ranks_have_the_zipfian_shares() {
        let (zipfian, mut random) = (Zipfian::new(1000), Random::new(1));
        let mut counts = vec![0u32; 1000];
        for _ in 0..200_000 {
            counts[zipfian.rank(&mut random) as usize] += 1;
        }
        let zeta: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-THETA)).sum();
        let expected = |rank: usize| 200_000.0 * (rank as f64 + 1.0).powf(-THETA) / zeta;
        // The method is exact for the first two ranks, and approximate for the others.
        for rank in [0, 1] {
            let ratio = f64::from(counts[rank]) / expected(rank);
            assert!((0.95..1.05).contains(&ratio), "rank {rank}: {ratio}");
        }
        let (first_half, second_half) = counts.split_at(500);
        assert!(first_half.iter().sum::<u32>() > 5 * second_half.iter().sum::<u32>());
        assert!(second_half.iter().any(|count| *count > 0));
    }
}
