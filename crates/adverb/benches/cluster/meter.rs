//! Rates and times of calls.

use std::time::{Duration, Instant};

use crate::{LEN, Outcome};

/// The duration of the warm-up.
const WARM_UP: Duration = Duration::from_millis(50);

/// Measures messages or calls in an interval that follows a warm-up.
pub(crate) struct Meter {
    origin: Instant,
    begin: u64,
    end: u64,
    /// The times of the measured calls, in nanoseconds.
    times: Vec<u32>,
}

impl Meter {
    pub(crate) fn new(time: Duration) -> Meter {
        let (begin, end) = (WARM_UP.as_nanos() as u64, (WARM_UP + time).as_nanos() as u64);
        Meter { origin: Instant::now(), begin, end, times: Vec::with_capacity(4 << 20) }
    }

    /// Returns the nanoseconds since the meter was created.
    pub(crate) fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    pub(crate) fn has_started(&self, now: u64) -> bool {
        now >= self.begin
    }

    pub(crate) fn is_over(&self, now: u64) -> bool {
        now >= self.end
    }

    /// Returns the data of a request that is made now. The peer echoes it, so the reply has the time.
    pub(crate) fn request(&self, now: u64) -> [u8; LEN] {
        let mut request = [7; LEN];
        request[..8].copy_from_slice(&now.to_le_bytes());
        request
    }

    /// Counts a call that ended with a reply. Returns the data of the next request, unless the measurement is over.
    pub(crate) fn count(&mut self, reply: &[u8]) -> Outcome<Option<[u8; LEN]>> {
        let Some((start, rest)) = reply.split_first_chunk().filter(|(_, rest)| rest.len() == LEN - 8) else {
            return Err(format!("a reply has {} bytes", reply.len()).into());
        };
        if rest.iter().any(|byte| *byte != 7) {
            return Err("a reply has other data than its request".into());
        }
        let now = self.now();
        if self.has_started(now) && !self.is_over(now) {
            self.times.push((now - u64::from_le_bytes(*start)) as u32);
        }
        Ok((!self.is_over(now)).then(|| self.request(now)))
    }

    /// Prints the rate and the percentiles of the measured calls.
    pub(crate) fn print_calls(mut self) -> Outcome {
        self.times.sort_unstable();
        print("rate", self.times.len() as f64 * 1e9 / (self.end - self.begin) as f64);
        for (name, per_mille) in [("call-us-p50", 500), ("call-us-p99", 990), ("call-us-p999", 999)] {
            let time = self.times.get(self.times.len() * per_mille / 1000).ok_or("no call has ended")?;
            print(name, f64::from(*time) / 1e3);
        }
        Ok(())
    }

    /// Prints the rate of `count` messages, which were sent since `since`.
    pub(crate) fn print_messages(&self, count: u64, since: u64) {
        print("rate", count as f64 * 1e9 / (self.now() - since) as f64);
    }
}

/// Prints a result as a line that programs parse.
fn print(name: &str, number: f64) {
    println!("{name} {number:.4}");
}
