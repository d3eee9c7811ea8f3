//! `cargo xtask mesh`: `adverb mesh host` with eight addresses in network namespaces, with a fault of the network or of a
//! process. Five addresses are local; the other three are in another namespace, where an `adverb respond` runs for each.
//!
//! The faults of one round happen at the same time, each in namespaces of its own, next to a healthy mesh.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{packages, process};

/// The options of `cargo xtask mesh`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of runs of each fault.
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// The duration of a healthy run at the same time, in minutes.
    #[arg(long, default_value_t = 0)]
    healthy_minutes: u32,
    /// Run only this fault.
    #[arg(long)]
    fault: Option<Fault>,
}

/// The time in which a fault must be named.
const LIMIT: Duration = Duration::from_secs(20);

/// The maximum number of false alarms in all runs.
const MAX_FALSE_ALARMS: usize = 1;

/// The local addresses, and those of the other namespace.
const LOCAL: std::ops::Range<u32> = 1..6;
const REMOTE: std::ops::Range<u32> = 6..9;

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Fault {
    /// A NIC drops 10 % of the packets.
    Nic,
    /// A NIC drops all packets, or a process is killed.
    Dead,
    /// All NICs drop 10 % of the packets with DSCP 26.
    Class,
    /// A process that answers probes is stopped for 400 ms of each second.
    Stops,
    /// A process that answers probes has used up its CPU quota.
    Quota,
    /// The process of `adverb mesh host` is stopped for 400 ms of each second.
    OwnStops,
}

const FAULTS: [Fault; 6] =
    [Fault::Nic, Fault::Dead, Fault::Class, Fault::Stops, Fault::Quota, Fault::OwnStops];

/// A run: a fault that begins after some time, or no fault.
#[derive(Clone, Copy, Debug)]
struct Plan {
    fault: Option<Fault>,
    /// The number of the run, which is part of the names of its namespaces.
    number: u32,
    /// The last byte of the address at fault.
    victim: u32,
    /// The time before the fault, for which the mesh is healthy.
    delay: Duration,
    duration: Duration,
}

impl Plan {
    fn new(fault: Fault, run: u32) -> Plan {
        // The faults of one run have different numbers, and so do the runs.
        let number = run * FAULTS.len() as u32 + fault as u32;
        let victim = match fault {
            Fault::Nic | Fault::Dead if run % 2 == 1 => 3,
            _ => 8,
        };
        // In every third run, the fault exists from the start.
        let delay = Duration::from_secs(u64::from(run % 3) * 4);
        Plan { fault: Some(fault), number, victim, delay, duration: delay + LIMIT + Duration::from_secs(1) }
    }

    fn healthy(number: u32, duration: Duration) -> Plan {
        Plan { fault: None, number, victim: 8, delay: Duration::ZERO, duration }
    }

    /// Returns the rules of nftables that cause the fault. They are in the hook of received packets: a packet that is
    /// dropped on output makes the system call of its sender fail, so that the prober knows that it was not sent.
    fn rules(&self) -> Vec<String> {
        let victim = address(self.victim);
        let either = |rule: &str| ["saddr", "daddr"].map(|end| format!("ip {end} {victim} {rule}")).to_vec();
        match self.fault {
            Some(Fault::Nic) => either("numgen random mod 100 < 10 drop"),
            Some(Fault::Dead) if LOCAL.contains(&self.victim) => either("drop"),
            Some(Fault::Class) => vec!["ip dscp 26 numgen random mod 100 < 10 drop".to_owned()],
            _ => Vec::new(),
        }
    }

    /// Whether a line of the output is about the fault of this run.
    fn is_expected(&self, line: &Value) -> bool {
        let victim = address(self.victim);
        let expected = match self.fault {
            None => return false,
            Some(Fault::Nic) => json!({ "kind": "nic", "address": victim }),
            Some(Fault::Dead) => json!({ "kind": "unreachable", "address": victim }),
            Some(Fault::Class) => json!({ "kind": "class", "class": 26 }),
            Some(Fault::Stops | Fault::Quota) => json!({ "kind": "slow_process", "addresses": [victim] }),
            Some(Fault::OwnStops) => {
                json!({ "kind": "slow_process", "addresses": LOCAL.map(address).collect::<Vec<_>>() })
            }
        };
        let mut fields = expected.as_object().into_iter().flatten();
        fields.all(|(name, field)| line[name] == *field)
    }
}

fn address(n: u32) -> String {
    format!("10.77.0.{n}")
}

/// The outcome of a run.
#[derive(Debug, Default)]
struct Outcome {
    /// The time from the fault until it was named.
    named: Option<Duration>,
    /// The other faults that were named.
    false_alarms: Vec<String>,
    /// The last line, if the fault was not named or there is no fault.
    summary: String,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.named {
            Some(time) => write!(f, "named after {:.1} s", time.as_secs_f64())?,
            None => write!(f, "{}", self.summary)?,
        }
        self.false_alarms.iter().try_for_each(|text| write!(f, "\n    FALSE ALARM: {text}"))
    }
}

/// The outcomes of all runs of a fault.
#[derive(Debug, Default)]
struct Row {
    runs: usize,
    times: Vec<Duration>,
    false_alarms: usize,
}

impl Row {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.times.extend(outcome.named);
        self.false_alarms += outcome.false_alarms.len();
    }

    fn print(&mut self, name: &str) {
        self.times.sort_unstable();
        let time = |time: Option<&Duration>| time.map_or(0.0, Duration::as_secs_f64);
        println!(
            "{name:<10} {:>4} {:>6} {:>9.1} {:>10.1} {:>13}",
            self.runs,
            self.times.len(),
            time(self.times.get(self.times.len() / 2)),
            time(self.times.last()),
            self.false_alarms
        );
    }
}

/// Runs all faults, and fails if one was not named in time, or if there was more than one false alarm.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !packages::is_root() {
        println!("mesh: SKIPPED, because network namespaces need root");
        return Ok(());
    }
    packages::ensure(&["nftables", "iproute2"])?;
    let adverb = PathBuf::from(process::build("build -p adverb-cli")?);
    let faults: Vec<Fault> =
        FAULTS.into_iter().filter(|fault| args.fault.is_none_or(|only| only == *fault)).collect();
    let mut rows: Vec<Row> = faults.iter().map(|_| Row::default()).collect();
    let healthy = std::thread::scope(|scope| -> Result<Outcome> {
        let duration = Duration::from_secs(60 * u64::from(args.healthy_minutes));
        let probe_with = |plan: Plan| probe(&adverb, plan);
        let healthy = scope.spawn(move || match duration.is_zero() {
            true => Ok(Outcome::default()),
            false => probe_with(Plan::healthy(0, duration)),
        });
        for run in 1..=args.runs {
            let start = |&fault: &Fault| scope.spawn(move || probe_with(Plan::new(fault, run)));
            let threads: Vec<_> = faults.iter().map(start).collect();
            for ((fault, row), thread) in faults.iter().zip(&mut rows).zip(threads) {
                let outcome = thread.join().expect("a run panicked");
                let outcome = outcome.with_context(|| format!("run {run}, {fault:?}"))?;
                println!("run {run} of {}, {fault:?}: {outcome}", args.runs);
                row.add(&outcome);
            }
        }
        healthy.join().expect("the healthy run panicked").context("the healthy run")
    })?;
    println!(
        "{:<10} {:>4} {:>6} {:>9} {:>10} {:>13}",
        "fault", "runs", "named", "median/s", "slowest/s", "false alarms"
    );
    for (fault, row) in faults.iter().zip(&mut rows) {
        row.print(&format!("{fault:?}"));
    }
    if args.healthy_minutes > 0 {
        println!("{} minutes without a fault: {healthy}", args.healthy_minutes);
    }
    let false_alarms = rows.iter().map(|row| row.false_alarms).sum::<usize>();
    ensure!(rows.iter().all(|row| row.times.len() == row.runs), "a fault was not named in {LIMIT:?}");
    ensure!(false_alarms <= MAX_FALSE_ALARMS, "{false_alarms} false alarms");
    ensure!(healthy.false_alarms.is_empty(), "a false alarm in the healthy run");
    Ok(())
}

/// Two namespaces that a link connects. Dropping it removes them.
struct Namespaces {
    near: String,
    far: String,
}

impl Namespaces {
    fn new(number: u32) -> Result<Namespaces> {
        let id = format!("{}-{number}", std::process::id());
        let names = Namespaces { near: format!("advmesh{id}n"), far: format!("advmesh{id}f") };
        let Namespaces { near, far } = &names;
        ip(&format!("netns add {near}"))?;
        ip(&format!("netns add {far}"))?;
        ip(&format!("-n {near} link add mesh type veth peer name mesh netns {far}"))?;
        for (namespace, addresses) in [(near, LOCAL), (far, REMOTE)] {
            for n in addresses {
                ip(&format!("-n {namespace} address add {}/24 dev mesh", address(n)))?;
            }
            ip(&format!("-n {namespace} link set mesh up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        Ok(names)
    }

    /// Starts `adverb` in a namespace.
    fn start(namespace: &str, adverb: &Path, arguments: &[&str]) -> Result<Killed> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(adverb).args(arguments);
        // `ip netns exec` replaces itself, so that the child is the program.
        let child = command.stdout(Stdio::piped()).spawn().context("could not start adverb")?;
        Ok(Killed(child))
    }

    /// Adds rules for received packets in both namespaces.
    fn add_rules(&self, rules: &[String]) -> Result<()> {
        for namespace in [&self.near, &self.far] {
            let mut script = "add table ip mesh\n\
                 add chain ip mesh input { type filter hook input priority 0 ; }\n"
                .to_owned();
            rules.iter().for_each(|rule| script += &format!("add rule ip mesh input {rule}\n"));
            process::output(Command::new("ip").args(["netns", "exec", namespace, "nft", &script]))?;
        }
        Ok(())
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            // The namespace may not exist yet.
            _ = ip(&format!("netns del {namespace}"));
        }
    }
}

fn ip(arguments: &str) -> Result<()> {
    process::output(Command::new("ip").args(arguments.split_whitespace())).map(|_| ())
}

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Runs the mesh of a plan.
fn probe(adverb: &Path, plan: Plan) -> Result<Outcome> {
    let namespaces = Namespaces::new(plan.number)?;
    let mut responders = Vec::new();
    for n in REMOTE {
        let arguments = ["respond", "--device", &format!("soft:{}", address(n)), "--json"];
        responders.push(Namespaces::start(&namespaces.far, adverb, &arguments)?);
    }
    for responder in &mut responders {
        // The responder prints a line when it is ready.
        let output = responder.0.stdout.as_mut().context("the output of adverb is missing")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("could not read the output of adverb")?;
        ensure!(line.contains("listening"), "adverb respond did not start: {line}");
    }
    let addresses: Vec<String> = LOCAL.chain(REMOTE).map(address).collect();
    let duration = plan.duration.as_secs().to_string();
    let mut arguments = vec!["mesh", "host", "--json", "--dscp", "0,26", "--duration", &duration];
    arguments.extend(addresses.iter().map(String::as_str));
    let mut mesh = Namespaces::start(&namespaces.near, adverb, &arguments)?;
    let started = Instant::now();
    let mesh_process = mesh.0.id();
    let output = mesh.0.stdout.take().context("the output of adverb is missing")?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let outcome = read(&plan, started, BufReader::new(output));
            is_over.store(true, Ordering::Relaxed);
            outcome
        });
        std::thread::sleep(plan.delay);
        let victim = &mut responders[plan.victim.saturating_sub(REMOTE.start) as usize];
        let _quota = match plan.fault {
            Some(Fault::Stops) => {
                stop_repeatedly(victim.0.id(), &is_over);
                None
            }
            Some(Fault::OwnStops) => {
                stop_repeatedly(mesh_process, &is_over);
                None
            }
            Some(Fault::Quota) => Some(Quota::new(victim, plan.number)?),
            Some(Fault::Dead) if REMOTE.contains(&plan.victim) => {
                victim.0.kill().context("could not kill adverb respond")?;
                None
            }
            _ => {
                namespaces.add_rules(&plan.rules())?;
                None
            }
        };
        reader.join().expect("the reader panicked")
    })
}

/// Reads the output of a mesh until its end.
fn read(plan: &Plan, started: Instant, output: impl BufRead) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for line in output.lines() {
        let line = line.context("could not read the output of adverb")?;
        let value: Value = serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))?;
        let time = started.elapsed();
        if value["event"] == "summary" {
            outcome.summary = format!(
                "{} after {:.0} s, {} probes in the last windows, {}",
                value["verdict"],
                time.as_secs_f64(),
                value["probes"],
                value["gaps"]
            );
        } else if value["event"] == "fault" && plan.is_expected(&value) && time >= plan.delay {
            outcome.named = Some(time - plan.delay).filter(|time| *time <= LIMIT);
        } else if value["event"] == "fault" {
            outcome.false_alarms.push(format!("after {:.1} s: {}", time.as_secs_f64(), value["text"]));
        }
    }
    ensure!(!outcome.summary.is_empty(), "adverb printed no summary");
    Ok(outcome)
}

/// Stops a process for 400 ms of each second.
fn stop_repeatedly(process: u32, is_over: &AtomicBool) {
    // This is the shell's builtin `kill`, because some machines have no such program.
    let signal = |name: &str| {
        _ = Command::new("sh").args(["-c", &format!("kill -{name} {process} 2>/dev/null")]).status();
    };
    while !is_over.load(Ordering::Relaxed) {
        signal("STOP");
        std::thread::sleep(Duration::from_millis(400));
        signal("CONT");
        std::thread::sleep(Duration::from_millis(600));
    }
}

/// A CPU quota of 5 ms in 100 ms, which the process shares with other processes that use it up. One of these runs on
/// each CPU: the kernel divides the quota among CPUs, and a process that has a part to itself is hardly throttled.
struct Quota {
    group: PathBuf,
    hogs: Vec<Killed>,
}

impl Quota {
    fn new(process: &Killed, number: u32) -> Result<Quota> {
        let group = format!("/sys/fs/cgroup/cpu/adverb-mesh-{}-{number}", std::process::id());
        let group = PathBuf::from(group);
        std::fs::create_dir(&group).context("could not create a group with a CPU quota (cgroup v1)")?;
        let mut quota = Quota { group, hogs: Vec::new() };
        quota.write("cpu.cfs_period_us", 100_000)?;
        quota.write("cpu.cfs_quota_us", 5_000)?;
        for cpu in 0..std::thread::available_parallelism()?.get() {
            let mut hog = Command::new("taskset");
            hog.args(["-c", &cpu.to_string(), "sh", "-c", "while :; do :; done"]);
            let hog = hog.spawn().map(Killed).context("could not start taskset")?;
            quota.write("cgroup.procs", hog.0.id())?;
            quota.hogs.push(hog);
        }
        quota.write("cgroup.procs", process.0.id())?;
        Ok(quota)
    }

    fn write(&self, file: &str, value: u32) -> Result<()> {
        let path = self.group.join(file);
        std::fs::write(&path, value.to_string())
            .with_context(|| format!("could not write {}", path.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        self.hogs.clear();
        // The processes leave the group before it is removed.
        if let Ok(processes) = std::fs::read_to_string(self.group.join("cgroup.procs")) {
            for process in processes.lines() {
                _ = std::fs::write("/sys/fs/cgroup/cpu/cgroup.procs", process);
            }
        }
        _ = std::fs::remove_dir(&self.group);
    }
}
