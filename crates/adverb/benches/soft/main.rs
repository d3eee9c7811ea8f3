//! How fast the software NIC is: what `cargo xtask bench` runs.
//!
//! ```text
//! soft write DEVICE DEVICE [MILLISECONDS] [BYTES] [asleep]
//!                                                      RDMA WRITEs, one process to another: MB/s
//! soft rate DEVICE DEVICE [MILLISECONDS]               SENDs of 8 bytes: messages a second
//! soft latency DEVICE DEVICE [MESSAGES]                SENDs of 8 bytes there and back: half a round trip
//! soft fetch-add DEVICE DEVICE [TIMES] [asleep]        atomics on a peer that polls, or that sleeps: a round trip
//! soft queue-pairs DEVICE DEVICE COUNT [MILLISECONDS]  SENDs of 8 bytes, over so many connections by turns
//! soft seeds LINK [MILLISECONDS]                       post, process, poll, notify; within one process
//! ```
//!
//! With `PEER_CPU` in the environment the other process runs on that processor. Devices are named as `Device::open` has it; two names are two processes. Results are lines of a name and a number.

mod duel;
mod peer;
mod seeds;

use std::time::Duration;

use peer::Plan;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, usual: u64| words.get(at).map_or(Ok(usual), |word| word.parse::<u64>());
    let time = |at| number(at, 1000).map(Duration::from_millis);
    match words[..] {
        [] => println!("nothing to do: this is run by `cargo xtask bench`"),
        ["serve", plan, device] => duel::serve(&serde_json::from_str(plan)?, device)?,
        ["write", ours, theirs, ..] => {
            let asleep = words.get(5) == Some(&"asleep");
            duel::write(ours, theirs, time(3)?, number(4, 65_536)? as usize, asleep)?;
        }
        ["rate", ours, theirs, ..] => duel::rate(ours, theirs, Plan::Rate { queue_pairs: 1 }, time(3)?)?,
        ["queue-pairs", ours, theirs, ..] => {
            let plan = Plan::Rate { queue_pairs: number(3, 10_000)? as u32 };
            duel::rate(ours, theirs, plan, time(4)?)?;
        }
        ["latency", ours, theirs, ..] => duel::latency(ours, theirs, number(3, 20_000)? as u32)?,
        ["fetch-add", ours, theirs, ..] => {
            let asleep = words.get(4) == Some(&"asleep");
            duel::fetch_add(ours, theirs, number(3, 20_000)? as u32, asleep)?;
        }
        ["seeds", link, ..] => seeds::run(link, time(2)?)?,
        _ => return Err("see the head of benches/soft/main.rs for what can be said".into()),
    }
    Ok(())
}

/// Says a result: a line that programs read.
fn say(name: &str, number: f64) {
    println!("{name} {number:.4}");
}

/// The time of the processor that the threads of this process have used.
fn processor_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let line = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}
