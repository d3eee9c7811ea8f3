//! Throughput and latency of connections, compared with the bare device and with TCP. `cargo xtask bench net` runs it.
//!
//! ```text
//! net rate KIND OURS THEIRS [MILLISECONDS] [BYTES]      messages from one process to another: messages/s and MB/s
//! net latency KIND OURS THEIRS [TIMES]                  round trips of 64 bytes: µs
//! net idle KIND OURS THEIRS [MILLISECONDS]              both ends wait, and no message is sent: CPU time
//! ```
//!
//! `KIND` is one of
//!
//! - `raw`: SENDs on queue pairs, with requests and receives posted in batches; `raw-single`: one at a time;
//! - `threads`, `tasks`: connections, blocking and async;
//! - `fed`: coalesced messages; `given`: buffers of the pool, which aren't copied;
//! - `stream`: a connection as a byte stream; `tcp`: tokio's TCP, with addresses in place of devices.
//!
//! `OURS` and `THEIRS` are the devices of the two processes. The environment variable `PEER_CPU` pins the other process
//! to a CPU. Each result is a line with a name and a number.

mod bytes;
mod connection;
mod peer;
mod raw;

use std::time::{Duration, Instant};

use connection::SendMethod;
use peer::Peer;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Messages of `len` bytes in one direction for `time`.
    Rate { time: Duration, len: usize },
    /// `times` round trips of 64 bytes.
    Latency { times: usize },
    /// No message for `time`.
    Idle { time: Duration },
}

/// The length of the messages of round trips.
pub(crate) const MESSAGE_LEN: usize = 64;

/// The timeout of every operation.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse::<u64>());
    let time = || number(4, 700).map(Duration::from_millis);
    match words[..] {
        [] => println!("nothing to do: `cargo xtask bench net` runs this with arguments"),
        ["serve", kind, device, ref work @ ..] => serve(kind, device, Work::read(work)?)?,
        ["rate", kind, ours, theirs, ..] => {
            let work = Work::Rate { time: time()?, len: number(5, MESSAGE_LEN as u64)? as usize };
            run_client(kind, ours, theirs, work)?;
        }
        ["latency", kind, ours, theirs, ..] => {
            run_client(kind, ours, theirs, Work::Latency { times: number(4, 20_000)? as usize })?;
        }
        ["idle", kind, ours, theirs, ..] => run_client(kind, ours, theirs, Work::Idle { time: time()? })?,
        _ => return Err("usage: see the top of benches/net/main.rs".into()),
    }
    Ok(())
}

/// Starts the other process, measures with it, and prints the results.
fn run_client(kind: &str, ours: &str, theirs: &str, work: Work) -> Outcome {
    let mut peer = Peer::start(kind, theirs, &work.words())?;
    match kind {
        "raw" => raw::run_client(&mut peer, ours, work, raw::BATCH),
        "raw-single" => raw::run_client(&mut peer, ours, work, 1),
        "threads" => connection::run_client(&mut peer, ours, work, SendMethod::Copied),
        "fed" => connection::run_client(&mut peer, ours, work, SendMethod::Coalesced),
        "given" => connection::run_client(&mut peer, ours, work, SendMethod::ZeroCopy),
        "tasks" => connection::run_tasks_client(&mut peer, ours, work),
        "stream" => bytes::run_stream_client(&mut peer, ours, work),
        "tcp" => bytes::run_client(&mut peer, work),
        _ => Err(format!("unknown kind {kind}").into()),
    }?;
    let theirs: f64 = peer.finish()?.parse()?;
    print_result("processor-seconds-peer", theirs);
    Ok(())
}

/// Runs the other side of a measurement, and sends its CPU time to the process that started it.
fn serve(kind: &str, device: &str, work: Work) -> Outcome {
    let cpu = match kind {
        "raw" | "raw-single" => raw::serve(device, work),
        "threads" | "fed" | "given" => connection::serve(device, work),
        "tasks" => connection::serve_tasks(device, work),
        "stream" => bytes::serve_stream(device, work),
        "tcp" => bytes::serve(device, work),
        _ => Err(format!("unknown kind {kind}").into()),
    }?;
    peer::send_line(&cpu.as_secs_f64().to_string());
    Ok(())
}

impl Work {
    fn words(self) -> Vec<String> {
        match self {
            Work::Rate { time, len } => vec!["rate".into(), time.as_millis().to_string(), len.to_string()],
            Work::Latency { times } => vec!["latency".into(), times.to_string()],
            Work::Idle { time } => vec!["idle".into(), time.as_millis().to_string()],
        }
    }

    fn read(words: &[&str]) -> Outcome<Work> {
        Ok(match *words {
            ["rate", time, len] => {
                Work::Rate { time: Duration::from_millis(time.parse()?), len: len.parse()? }
            }
            ["latency", times] => Work::Latency { times: times.parse()? },
            ["idle", time] => Work::Idle { time: Duration::from_millis(time.parse()?) },
            _ => return Err("unknown measurement".into()),
        })
    }
}

/// Measures messages in one direction, after a warm-up.
pub(crate) struct Meter {
    time: Duration,
    started: Option<(Instant, Duration, u64)>,
}

/// The number of messages before the measurement starts.
const WARM_UP: u64 = 200;

impl Meter {
    pub(crate) fn new(time: Duration) -> Meter {
        Meter { time, started: None }
    }

    /// Whether to send more, after `messages` messages.
    pub(crate) fn should_continue(&mut self, messages: u64) -> bool {
        match self.started {
            None if messages < WARM_UP => true,
            None => {
                self.started = Some((Instant::now(), cpu_time(), messages));
                true
            }
            // Reading the clock for every message would distort the measurement.
            Some(_) if !messages.is_multiple_of(16) => true,
            Some((start, ..)) => start.elapsed() < self.time,
        }
    }

    /// Prints the results.
    pub(crate) fn print_result(&self, messages: u64, len: usize) -> Outcome {
        let (start, cpu, before) = self.started.ok_or("too few messages were sent")?;
        let (seconds, count) = (start.elapsed().as_secs_f64(), (messages - before) as f64);
        print_result("rate", count / seconds);
        print_result("bandwidth", count * len as f64 / seconds / 1e6);
        print_result("gibibytes", count * len as f64 / f64::from(1 << 30));
        print_result("processor-seconds", (cpu_time() - cpu).as_secs_f64());
        Ok(())
    }
}

/// Runs `round` `times` times, and prints percentiles of its duration.
pub(crate) fn round_trips(times: usize, mut round: impl FnMut() -> Outcome) -> Outcome {
    let mut rounds = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        round()?;
        rounds.push(start.elapsed());
    }
    print_round_trips(rounds);
    Ok(())
}

pub(crate) fn print_round_trips(mut rounds: Vec<Duration>) {
    rounds.sort_unstable();
    for (name, per_mille) in [("round-us-p50", 500), ("round-us-p99", 990)] {
        let at = rounds.get(rounds.len() * per_mille / 1000).copied().unwrap_or_default();
        print_result(name, at.as_secs_f64() * 1e6);
    }
}

/// Prints a result as a line that programs parse.
pub(crate) fn print_result(name: &str, number: f64) {
    println!("{name} {number:.4}");
}

/// The CPU time of this process.
pub(crate) fn cpu_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let line = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}
