//! Throughput and latency of the software NIC. `cargo xtask bench` runs it.
//!
//! ```text
//! soft write DEVICE DEVICE [MILLISECONDS] [BYTES] [asleep]
//!                                                      RDMA WRITEs from one process to another: MB/s
//! soft rate DEVICE DEVICE [MILLISECONDS] [BYTES] [recorded]
//!                                                      SENDs, of 8 bytes unless said, which both sides record: messages/s
//! soft latency DEVICE DEVICE [MESSAGES]                round trips of 8-byte SENDs: half a round trip
//! soft fetch-add DEVICE DEVICE [TIMES] [asleep]        atomics on a peer that polls, or that sleeps: a round trip
//! soft queue-pairs DEVICE DEVICE COUNT [MILLISECONDS]  SENDs of 8 bytes, over COUNT connections in turn
//! soft seeds LINK [MILLISECONDS]                       post, process, poll and notify, within one process
//! soft threads [MILLISECONDS]                          WRITEs of one and two threads, on one and two NICs: requests/s
//! ```
//!
//! The two devices are those of two processes, named as in `Device::open`. The environment variable `PEER_CPU` pins the
//! other process to a CPU. Each result is a line with a name and a number.

mod peer;
mod processes;
mod seeds;
mod threads;

use std::time::Duration;

use peer::Plan;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse::<u64>());
    let time = |at| number(at, 1000).map(Duration::from_millis);
    match words[..] {
        [] => println!("nothing to do: `cargo xtask bench` runs this with arguments"),
        ["serve", plan, device] => processes::serve(&serde_json::from_str(plan)?, device)?,
        ["write", ours, theirs, ..] => {
            let asleep = words.get(5) == Some(&"asleep");
            processes::write(ours, theirs, time(3)?, number(4, 65_536)? as usize, asleep)?;
        }
        ["rate", ours, theirs, ..] => {
            let (len, is_recorded) = (number(4, 8)? as usize, words.get(5) == Some(&"recorded"));
            processes::rate(ours, theirs, Plan::Rate { queue_pairs: 1, len, is_recorded }, time(3)?)?;
        }
        ["queue-pairs", ours, theirs, ..] => {
            let plan = Plan::Rate { queue_pairs: number(3, 10_000)? as u32, len: 8, is_recorded: false };
            processes::rate(ours, theirs, plan, time(4)?)?;
        }
        ["latency", ours, theirs, ..] => processes::latency(ours, theirs, number(3, 20_000)? as u32)?,
        ["fetch-add", ours, theirs, ..] => {
            let asleep = words.get(4) == Some(&"asleep");
            processes::fetch_add(ours, theirs, number(3, 20_000)? as u32, asleep)?;
        }
        ["seeds", link, ..] => seeds::run(link, time(2)?)?,
        ["threads", ..] => threads::run(time(1)?)?,
        _ => return Err("usage: see the top of benches/soft/main.rs".into()),
    }
    Ok(())
}

/// Prints a result as a line that programs parse.
fn print_result(name: &str, number: f64) {
    println!("{name} {number:.4}");
}

/// The CPU time of this process.
fn cpu_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let line = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}
