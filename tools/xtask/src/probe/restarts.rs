//! `cargo xtask probe restarts`: a responder and a prober are killed (SIGKILL) and restarted in turn, while the prober
//! sends probes. No probe may count as lost: the network loses none.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use support::programs;

use super::parts::Process;

/// The options of `cargo xtask probe restarts`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of restarts.
    #[arg(long, default_value_t = 50)]
    count: u32,
    /// Time between two probes, in seconds.
    #[arg(long, default_value = "0.001")]
    interval: String,
}

/// The timeout of a probe. Late answers are accepted for the same time again.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Time within which probes must be answered after a restart. It is reached only if a process hangs.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which each turn continues after the first answer, so that all earlier probes have a result.
const SETTLE_TIME: Duration = Duration::from_millis(800);

/// Kills and restarts the processes.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = programs::adverb()?;
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let [here, there] = [113, 114].map(|network| format!("127.{network}.{high}.{low}"));
    let respond = || {
        let mut command = Command::new(&program);
        Process::respond(command.args(["respond", "--json", "--device", &format!("soft:{there}")]))
    };
    let ping = || {
        let mut command = Command::new(&program);
        command.args(["ping", &there, "--device", &format!("soft:{here}"), "--json"]);
        command.args(["--count", "10000000", "--interval", &args.interval]);
        Prober::start(command.args(["--timeout", &TIMEOUT.as_secs_f64().to_string()]))
    };
    let mut results = Results::default();
    let mut responder = respond()?;
    let mut prober = ping()?;
    prober.read_until_answered(&mut results, None)?;
    let mut recoveries = [Vec::new(), Vec::new()];
    for turn in 0..args.count {
        let killed = Instant::now();
        if turn % 2 == 0 {
            responder.kill()?;
            // The probes of this run have the last epoch that the prober printed.
            let ended_epoch = prober.epoch;
            responder = respond()?;
            prober.read_until_answered(&mut results, ended_epoch)?;
        } else {
            prober.process.kill()?;
            prober = ping()?;
            prober.read_until_answered(&mut results, None)?;
        }
        recoveries[turn as usize % 2].push(killed.elapsed());
        prober.read_for(SETTLE_TIME, &mut results)?;
    }
    println!("{} restarts; probes by result: {:?}", args.count, results.counts);
    println!("{} probes had two results, {} had none", results.duplicates, results.missing());
    for (name, recoveries) in ["responder", "prober"].into_iter().zip(&mut recoveries) {
        recoveries.sort();
        let [median, max] = [recoveries.len() / 2, recoveries.len().saturating_sub(1)]
            .map(|index| recoveries.get(index).copied().unwrap_or_default().as_millis());
        println!("from a kill of the {name} to an answered probe: median {median} ms, maximum {max} ms");
    }
    let false_losses: u64 =
        ["lost", "return_lost", "unreachable"].iter().filter_map(|name| results.counts.get(*name)).sum();
    println!("false losses: {false_losses}");
    ensure!(
        false_losses == 0 && results.duplicates == 0 && results.missing() == 0,
        "probes have a wrong result"
    );
    Ok(())
}

/// The results of all probes.
#[derive(Default)]
struct Results {
    counts: BTreeMap<String, u64>,
    /// The numbers of probes with a result, by epoch.
    numbers: BTreeMap<u64, BTreeSet<u64>>,
    duplicates: u64,
}

impl Results {
    fn record(&mut self, line: &Value) -> Result<()> {
        let result = line["result"].as_str().context("a probe without a result")?;
        let [epoch, number] = ["epoch", "number"].map(|name| line[name].as_u64());
        let (epoch, number) = epoch.zip(number).context("a probe without a number")?;
        *self.counts.entry(result.to_owned()).or_default() += 1;
        self.duplicates += u64::from(!self.numbers.entry(epoch).or_default().insert(number));
        Ok(())
    }

    /// Returns the number of probes without a result although probes that were sent a second later have one.
    fn missing(&self) -> u64 {
        let missing = |numbers: &BTreeSet<u64>| {
            let last = numbers.last().copied().unwrap_or_default();
            // The probes of the last second may be outstanding when their prober is killed.
            let settled = last.saturating_sub(1000);
            settled - numbers.range(..settled).count() as u64
        };
        self.numbers.values().map(missing).sum()
    }
}

/// `adverb ping`, with a thread that reads its output.
struct Prober {
    process: Process,
    lines: Receiver<Value>,
    /// The epoch of the probe whose result was printed last.
    epoch: Option<u64>,
}

impl Prober {
    fn start(command: &mut Command) -> Result<Prober> {
        let (process, output) = Process::start(command)?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.map_while(Result::ok) {
                let Ok(line) = serde_json::from_str::<Value>(&line) else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Prober { process, lines, epoch: None })
    }

    /// Reads results until a probe of an epoch other than `ended_epoch` is answered.
    fn read_until_answered(&mut self, results: &mut Results, ended_epoch: Option<u64>) -> Result<()> {
        let deadline = Instant::now() + RECOVERY_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).context("no probe was answered after a restart")?;
            if self.record(&line, results)? && self.epoch != ended_epoch {
                return Ok(());
            }
        }
    }

    fn read_for(&mut self, time: Duration, results: &mut Results) -> Result<()> {
        let deadline = Instant::now() + time;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => _ = self.record(&line, results)?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => bail!("`adverb ping` ended"),
            }
        }
    }

    /// Records a line of the output, and returns whether it shows that a probe was answered.
    fn record(&mut self, line: &Value, results: &mut Results) -> Result<bool> {
        if line["event"] != "probe" {
            return Ok(false);
        }
        self.epoch = line["epoch"].as_u64();
        results.record(line)?;
        Ok(line["result"] == "answered" || line["result"] == "late")
    }
}
