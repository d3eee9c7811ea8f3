//! The coordinator, which starts the processes, kills some, and prints the results.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use adverb_wire::random::SplitMix64;
use anyhow::{Context, Result, bail, ensure};

use crate::session::{MAX_SLACK, RETRY_BOUND, SLACK};
use crate::worker::{FAULT_PPM, Report};

/// The number of processes. The first is never killed.
const PROCESS_COUNT: u8 = 4;

/// The maximum time between two reports of a process, which reports every second. A process that takes longer hangs.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// The maximum time that a busy machine needs, in addition to the duration of the test, for the last round of each pair.
const MAX_EXTRA_TIME: Duration = Duration::from_secs(60);

/// The maximum growth of the first process's memory from its second quarter to its last, in KiB.
const MAX_MEMORY_GROWTH: u64 = 4 << 10;

/// The coordinator of the processes.
struct Coordinator {
    random: SplitMix64,
    network: Ipv4Addr,
    start: Instant,
    processes: Vec<WorkerProcess>,
    sender: Sender<Line>,
    lines: Receiver<Line>,
    /// The last report of each process, by its index and the number of restarts.
    reports: BTreeMap<(u8, u64), Report>,
    /// The memory of the first process, every second, in KiB.
    memory: Vec<u64>,
    kills: u64,
}

/// A process and its restarts.
struct WorkerProcess {
    child: Option<Child>,
    /// The number of restarts.
    restart_count: u64,
    /// The time of the start or of the last report.
    last_report_at: Instant,
    /// The time of the next start.
    start_at: Option<Instant>,
}

/// A line of a process's output.
struct Line {
    index: u8,
    restart_count: u64,
    text: String,
}

/// Runs the test.
pub(crate) fn run(seconds: u64, seed: u64) -> Result<()> {
    let length = Duration::from_secs(seconds);
    let mut this = Coordinator::new(seed)?;
    println!(
        "{PROCESS_COUNT} processes at {}, {seconds} s, seed {seed}; {} % of the packets each are lost, duplicated, corrupted and \
         delayed; a request to a killed process must fail within {RETRY_BOUND:.3?}, plus {SLACK:?} of scheduling delay, or \
         {MAX_SLACK:?} in rare cases",
        this.network,
        f64::from(FAULT_PPM) / 10_000.0
    );
    // No process is killed at the end, so that all sessions work once more.
    let quiet = length - Duration::from_secs((seconds / 4).min(20));
    let mut next_kill = this.pause(2.0, 4.0);
    let mut next_line = Duration::ZERO;
    let mut at_quiet = None;
    loop {
        let elapsed = this.start.elapsed();
        let is_done = at_quiet.as_ref().is_some_and(|before| this.idle_peer(before).is_none());
        if elapsed > length && (is_done || elapsed > length + MAX_EXTRA_TIME) {
            break;
        }
        this.read_report(Duration::from_millis(20))?;
        this.start_due_processes()?;
        if elapsed >= next_line {
            next_line = elapsed + Duration::from_secs(if seconds > 60 { 30 } else { 5 });
            println!("{}", this.line());
        }
        if elapsed < quiet {
            if elapsed >= next_kill {
                this.kill_one()?;
                next_kill = elapsed + this.pause(1.5, 6.0);
            }
        } else if at_quiet.is_none() && this.processes.iter().all(|process| process.child.is_some()) {
            at_quiet = Some(this.with_first());
        }
    }
    let before = at_quiet.context("not all processes ran at the end")?;
    if let Some(peer) = this.idle_peer(&before) {
        bail!("the first process and process {peer} finished no round at the end");
    }
    this.stop()?;
    this.check_results()
}

impl Coordinator {
    fn new(seed: u64) -> Result<Coordinator> {
        // Other soak tests may run on this machine.
        let [a, b, ..] = std::process::id().wrapping_mul(0x9e37_79b1).to_be_bytes();
        let (sender, lines) = channel();
        let start = Instant::now();
        let process =
            |_| WorkerProcess { child: None, restart_count: 0, last_report_at: start, start_at: Some(start) };
        let mut this = Coordinator {
            random: SplitMix64(seed),
            network: Ipv4Addr::new(127, 64 | a & 63, b, 0),
            start,
            processes: (0..PROCESS_COUNT).map(process).collect(),
            sender,
            lines,
            reports: BTreeMap::new(),
            memory: Vec::new(),
            kills: 0,
        };
        this.start_due_processes()?;
        Ok(this)
    }

    fn pause(&mut self, min: f64, max: f64) -> Duration {
        let share = self.random.below(1 << 20) as f64 / f64::from(1 << 20);
        Duration::from_secs_f64(min + (max - min) * share)
    }

    /// Starts the processes that are due.
    fn start_due_processes(&mut self) -> Result<()> {
        let now = Instant::now();
        for (index, process) in (0..PROCESS_COUNT).zip(&mut self.processes) {
            if process.start_at.is_none_or(|start_at| start_at > now) {
                continue;
            }
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["worker", &index.to_string(), &PROCESS_COUNT.to_string()]);
            command.args([self.network.to_string(), self.random.next_u64().to_string()]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let output = BufReader::new(child.stdout.take().context("its output")?);
            (process.child, process.start_at, process.last_report_at) = (Some(child), None, now);
            let (sender, restart_count) = (self.sender.clone(), process.restart_count);
            std::thread::spawn(move || {
                for text in output.lines().map_while(std::result::Result::ok) {
                    _ = sender.send(Line { index, restart_count, text });
                }
            });
        }
        Ok(())
    }

    /// Kills a process, and schedules its restart.
    fn kill_one(&mut self) -> Result<()> {
        let victim = 1 + self.random.below(u64::from(PROCESS_COUNT) - 1) as usize;
        let later = self.pause(0.05, 1.5);
        let process = &mut self.processes[victim];
        if let Some(mut child) = process.child.take() {
            child.kill()?;
            child.wait()?;
            process.restart_count += 1;
            process.start_at = Some(Instant::now() + later);
            self.kills += 1;
        }
        Ok(())
    }

    /// Reads the processes' output, and checks that all of them report.
    fn read_report(&mut self, timeout: Duration) -> Result<()> {
        let mut line = self.lines.recv_timeout(timeout).ok();
        while let Some(Line { index, restart_count, text }) = line {
            if let Some(failure) = text.strip_prefix("FAIL ") {
                bail!("process {index}, {:?} after the start: {failure}", self.start.elapsed());
            }
            if let Some(report) = text.strip_prefix("REPORT ") {
                let report: Report = serde_json::from_str(report).context("a report")?;
                if index == 0 {
                    self.memory.push(report.resident);
                }
                self.reports.insert((index, restart_count), report);
                self.processes[usize::from(index)].last_report_at = Instant::now();
            }
            line = self.lines.try_recv().ok();
        }
        for (index, process) in self.processes.iter_mut().enumerate() {
            let Some(child) = &mut process.child else { continue };
            ensure!(
                process.last_report_at.elapsed() < REPORT_TIMEOUT,
                "process {index} has not reported for {REPORT_TIMEOUT:?}"
            );
            if let Some(status) = child.try_wait()? {
                ensure!(status.success(), "process {index} exited: {status}");
            }
        }
        Ok(())
    }

    /// Ends all processes. Each checks that it has released its resources.
    fn stop(&mut self) -> Result<()> {
        for process in &mut self.processes {
            // The processes end when their standard input is closed.
            process.child.as_mut().and_then(|child| child.stdin.take());
        }
        let start = Instant::now();
        let is_running = |process: &mut WorkerProcess| {
            process.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
        };
        while self.processes.iter_mut().any(is_running) {
            self.read_report(Duration::from_millis(20))?;
            ensure!(start.elapsed() < Duration::from_secs(30), "not all processes ended within 30 s");
        }
        self.read_report(Duration::from_millis(200))
    }

    /// Returns the number of rounds of the first process with each other process.
    fn with_first(&self) -> BTreeMap<u8, u64> {
        self.reports.get(&(0, 0)).map(|report| report.rounds_by_peer.clone()).unwrap_or_default()
    }

    /// Returns a process with which the first process has finished no round since it had finished these numbers.
    fn idle_peer(&self, before: &BTreeMap<u8, u64>) -> Option<u8> {
        let after = self.with_first();
        (1..PROCESS_COUNT).find(|peer| after.get(peer).unwrap_or(&0) <= before.get(peer).unwrap_or(&0))
    }

    fn sum(&self, of: impl Fn(&Report) -> u64) -> u64 {
        self.reports.values().map(of).sum()
    }

    fn line(&self) -> String {
        format!(
            "{:5.0} s: {} sessions, {} rounds, {} reliable requests, {} MiB checked; {} processes killed; the first process uses {} KiB",
            self.start.elapsed().as_secs_f64(),
            self.sum(|report| report.sessions),
            self.sum(|report| report.rounds),
            self.sum(|report| report.operations),
            self.sum(|report| report.bytes) >> 20,
            self.kills,
            self.memory.last().unwrap_or(&0)
        )
    }

    /// Prints the results, and checks them.
    fn check_results(&self) -> Result<()> {
        println!("{}", self.line());
        let counter = |name: &str| self.sum(|report| report.counters.get(name).copied().unwrap_or(0));
        let names: std::collections::BTreeSet<&String> =
            self.reports.values().flat_map(|report| report.counters.keys()).collect();
        let counted: Vec<String> = names
            .into_iter()
            .filter(|name| counter(name) > 0)
            .map(|name| format!("{name} {}", counter(name)))
            .collect();
        println!("device counters: {}", counted.join(", "));

        let (sent, received) = (self.sum(|r| r.unreliable_sent), self.sum(|r| r.unreliable_received));
        let lost = 100.0 * (1.0 - received as f64 / sent.max(1) as f64);
        println!("{received} of {sent} unreliable messages arrived, {lost:.1} % were lost");
        ensure!(received <= sent && received * 2 > sent, "too few unreliable messages arrived");

        let mut losses: Vec<f64> = self.reports.values().flat_map(|r| r.losses.iter().copied()).collect();
        losses.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (losses.first(), losses.last()) else {
            bail!("no process lost a peer, so that case was not tested");
        };
        let bound = RETRY_BOUND.as_secs_f64() * 1000.0;
        let beyond = losses.iter().filter(|loss| **loss > bound).count();
        let median = losses[losses.len() / 2];
        println!(
            "{} lost peers: the first error completion arrived after {min:.0} to {max:.0} ms, median {median:.0} ms; {beyond} \
             exceeded the bound of {bound:.0} ms",
            losses.len()
        );
        // If the machine doesn't run a process for a while, few requests fail later than this.
        ensure!(
            median < bound + SLACK.as_secs_f64() * 1000.0,
            "half of the requests to killed processes failed too late"
        );

        let quarter = self.memory.len() / 4;
        ensure!(quarter > 1, "the first process sent too few reports");
        let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len() as u64;
        let (early, late) = (mean(&self.memory[quarter..2 * quarter]), mean(&self.memory[3 * quarter..]));
        println!(
            "the first process used {early} KiB on average in the second quarter, and {late} KiB in the last"
        );
        ensure!(late <= early + MAX_MEMORY_GROWTH, "the memory of the first process grows");
        let rounds = self.sum(|report| report.rounds);
        ensure!(
            rounds > 0 && self.kills > 0,
            "there were {rounds} rounds, and {} processes were killed",
            self.kills
        );
        println!("no wrong bytes, no hangs, all resources released");
        Ok(())
    }
}
