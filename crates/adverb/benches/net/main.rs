//! How fast connections are, beside the device under them and TCP: what `cargo xtask bench net` runs.
//!
//! ```text
//! net rate WHO OURS THEIRS [MILLISECONDS] [BYTES]      messages, one process to another: a second, and MB/s
//! net latency WHO OURS THEIRS [TIMES]                  64 bytes there and back: µs
//! net idle WHO OURS THEIRS [MILLISECONDS]              both ends wait for messages that don't come
//! ```
//!
//! `WHO` is `raw` (SENDs on queue pairs, requests posted and receives refilled many at a time), `raw-single` (one at a time),
//! `threads`, `tasks` (connections), `fed` (messages that gather), `given` (buffers of the pool, which aren't copied), `stream`
//! or `tcp` (tokio's TCP: for devices there are addresses). With `PEER_CPU` in the environment the other process runs on that
//! processor. Results are lines of a name and a number.

mod bytes;
mod connection;
mod peer;
mod raw;

use std::time::{Duration, Instant};

use connection::How;
use peer::Peer;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What is done by the two processes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Messages of so many bytes go one way for so long.
    Rate { time: Duration, len: usize },
    /// Messages of 64 bytes go there and back so often.
    Latency { times: usize },
    /// Nothing happens for so long.
    Idle { time: Duration },
}

/// How long the messages are that go there and back.
pub(crate) const SHORT: usize = 64;

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, usual: u64| words.get(at).map_or(Ok(usual), |word| word.parse::<u64>());
    let time = || number(4, 700).map(Duration::from_millis);
    match words[..] {
        [] => println!("nothing to do: this is run by `cargo xtask bench net`"),
        ["serve", who, device, ref work @ ..] => serve(who, device, Work::read(work)?)?,
        ["rate", who, ours, theirs, ..] => {
            let work = Work::Rate { time: time()?, len: number(5, SHORT as u64)? as usize };
            begin(who, ours, theirs, work)?;
        }
        ["latency", who, ours, theirs, ..] => {
            begin(who, ours, theirs, Work::Latency { times: number(4, 20_000)? as usize })?;
        }
        ["idle", who, ours, theirs, ..] => begin(who, ours, theirs, Work::Idle { time: time()? })?,
        _ => return Err("see the head of benches/net/main.rs for what can be said".into()),
    }
    Ok(())
}

/// Starts the other process, works with it, and says how it went.
fn begin(who: &str, ours: &str, theirs: &str, work: Work) -> Outcome {
    let mut peer = Peer::start(who, theirs, &work.words())?;
    match who {
        "raw" => raw::begin(&mut peer, ours, work, raw::BATCH),
        "raw-single" => raw::begin(&mut peer, ours, work, 1),
        "threads" => connection::begin(&mut peer, ours, work, How::Sent),
        "fed" => connection::begin(&mut peer, ours, work, How::Fed),
        "given" => connection::begin(&mut peer, ours, work, How::Given),
        "tasks" => connection::begin_tasks(&mut peer, ours, work),
        "stream" => bytes::begin_stream(&mut peer, ours, work),
        "tcp" => bytes::begin(&mut peer, work),
        _ => Err(format!("nobody is {who}").into()),
    }?;
    let theirs: f64 = peer.dismiss()?.parse()?;
    say("processor-seconds-peer", theirs);
    Ok(())
}

/// Does its part in what the process that started it wants, and tells it how much of the processor that took.
fn serve(who: &str, device: &str, work: Work) -> Outcome {
    let processor = match who {
        "raw" | "raw-single" => raw::serve(device, work),
        "threads" | "fed" | "given" => connection::serve(device, work),
        "tasks" => connection::serve_tasks(device, work),
        "stream" => bytes::serve_stream(device, work),
        "tcp" => bytes::serve(device, work),
        _ => Err(format!("nobody is {who}").into()),
    }?;
    peer::tell(&processor.as_secs_f64().to_string());
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
            _ => return Err("no such work".into()),
        })
    }
}

/// What is measured of messages that go one way, once they are on their way.
pub(crate) struct Meter {
    time: Duration,
    begun: Option<(Instant, Duration, u64)>,
}

/// How many messages go before the time counts.
const WARM: u64 = 200;

impl Meter {
    pub(crate) fn new(time: Duration) -> Meter {
        Meter { time, begun: None }
    }

    /// Says whether to go on, after so many messages.
    pub(crate) fn goes_on(&mut self, messages: u64) -> bool {
        match self.begun {
            None if messages < WARM => true,
            None => {
                self.begun = Some((Instant::now(), processor_time(), messages));
                true
            }
            // The clock isn't looked at for every message, which would be a part of what is measured.
            Some(_) if !messages.is_multiple_of(16) => true,
            Some((start, ..)) => start.elapsed() < self.time,
        }
    }

    /// Says how it went.
    pub(crate) fn say(&self, messages: u64, len: usize) -> Outcome {
        let (start, processor, before) = self.begun.ok_or("there were too few messages")?;
        let (seconds, count) = (start.elapsed().as_secs_f64(), (messages - before) as f64);
        say("rate", count / seconds);
        say("bandwidth", count * len as f64 / seconds / 1e6);
        say("gibibytes", count * len as f64 / f64::from(1 << 30));
        say("processor-seconds", (processor_time() - processor).as_secs_f64());
        Ok(())
    }
}

/// Does something so often, and says how long it took.
pub(crate) fn round_trips(times: usize, mut round: impl FnMut() -> Outcome) -> Outcome {
    let mut rounds = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        round()?;
        rounds.push(start.elapsed());
    }
    say_round_trips(rounds);
    Ok(())
}

pub(crate) fn say_round_trips(mut rounds: Vec<Duration>) {
    rounds.sort_unstable();
    for (name, per_mille) in [("round-us-p50", 500), ("round-us-p99", 990)] {
        let at = rounds.get(rounds.len() * per_mille / 1000).copied().unwrap_or_default();
        say(name, at.as_secs_f64() * 1e6);
    }
}

/// Says a result: a line that programs read.
pub(crate) fn say(name: &str, number: f64) {
    println!("{name} {number:.4}");
}

/// The time of the processor that this process has used.
pub(crate) fn processor_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let line = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}
