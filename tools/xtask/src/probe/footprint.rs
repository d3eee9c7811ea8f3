//! `cargo xtask probe footprint`: the CPU time and the memory of `adverb exporter --probe` with several devices, and of
//! the responders that it probes. Each device is a software NIC at one end of a link between two network namespaces.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use support::{packages, process, programs};

use super::parts::{Interface, Namespace, Process};

/// The options of `cargo xtask probe footprint`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of devices, each of which probes one responder.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    devices: u8,
    /// Time between two probes of a device, in seconds.
    #[arg(long, default_value = "0.1")]
    interval: String,
    /// Duration of the measurement in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Time for which the processes run before the measurement.
const WARM_UP: Duration = Duration::from_secs(3);
/// The length of a clock tick of `/proc/PID/stat`: 1/100 s on all platforms of Linux that Adverb supports.
const TICK: Duration = Duration::from_millis(10);

/// Measures the exporter and the responders.
pub(crate) fn run(args: &Args) -> Result<()> {
    packages::ensure(&["curl", "iproute2"])?;
    let program = programs::adverb()?;
    let [here, there] = [Namespace::new("here")?, Namespace::new("there")?];
    let mut exporter = here.command(&program);
    exporter.args(["exporter", "--listen", "127.0.0.1:9879", "--probe-interval", &args.interval]);
    let mut responders = Vec::new();
    for number in 1..=args.devices {
        let [own, other] = [1, 2].map(|host| format!("10.92.{number}.{host}"));
        let name = format!("net{number}");
        let [own_end, other_end] = [&own, &other].map(|address| format!("{address}/24"));
        let end = |address| Interface { name: &name, address: Some(address) };
        here.connect(end(&own_end), &there, end(&other_end))?;
        let mut respond = there.command(&program);
        let device = format!("soft:{other}");
        responders.push(Process::respond(respond.args(["respond", "--json", "--device", &device]))?);
        exporter.args(["--probe", &other]);
    }
    let (exporter, mut output) = Process::start(&mut exporter)?;
    output.next().context("`adverb exporter` ended")??;
    std::thread::sleep(WARM_UP);
    let usage = || -> Result<Vec<Usage>> {
        std::iter::once(&exporter).chain(&responders).map(|process| Usage::read(process.id())).collect()
    };
    let (before, started) = (usage()?, Instant::now());
    std::thread::sleep(Duration::from_secs(args.seconds));
    let (after, elapsed) = (usage()?, started.elapsed());
    println!("{} devices, a probe each {} s, {:.0} s", args.devices, args.interval, elapsed.as_secs_f64());
    println!("process         CPU (% of a core)  memory (MiB)  wake-ups/s");
    for (index, (before, after)) in before.iter().zip(&after).enumerate() {
        let name = match index {
            0 => "exporter".to_owned(),
            number => format!("responder {number}"),
        };
        let cpu = 100.0 * (after.cpu - before.cpu).as_secs_f64() / elapsed.as_secs_f64();
        let wakeups = (after.wakeups - before.wakeups) as f64 / elapsed.as_secs_f64();
        println!("{name:<14}  {cpu:17.2}  {:12.1}  {wakeups:10.1}", after.resident_kib as f64 / 1024.0);
    }
    let metrics = process::text(here.command("curl").args(["-s", "http://127.0.0.1:9879/metrics"]))?;
    let is_result = |line: &&str| line.starts_with("adverb_probe_results_total") && !line.ends_with(" 0");
    for line in metrics.lines().filter(is_result) {
        println!("{line}");
    }
    ensure!(metrics.lines().any(|line| is_result(&line)), "the exporter has no results of probes");
    Ok(())
}

/// The resources that a process has used.
struct Usage {
    cpu: Duration,
    resident_kib: u64,
    /// Voluntary context switches of all threads.
    wakeups: u64,
}

impl Usage {
    fn read(id: u32) -> Result<Usage> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
        // The name of the program, in parentheses, may contain spaces.
        let (_, fields) = stat.rsplit_once(')').context("an unknown format of /proc/PID/stat")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
        let ticks: u32 = ticks.sum::<Result<u32, _>>()?;
        let mut wakeups = 0;
        for thread in fs::read_dir(format!("/proc/{id}/task"))? {
            wakeups += status(&thread?.path().join("status"), "voluntary_ctxt_switches:")?;
        }
        let resident_kib = status(format!("/proc/{id}/status").as_ref(), "VmRSS:")?;
        Ok(Usage { cpu: TICK * ticks, resident_kib, wakeups })
    }
}

/// Returns a number in a status file of a process or thread.
fn status(path: &std::path::Path, name: &str) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let value = value.and_then(|value| value.split_whitespace().next());
    Ok(value.with_context(|| format!("{} has no {name}", path.display()))?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_this_process_is_read() {
        let usage = Usage::read(std::process::id()).unwrap();
        assert!(usage.resident_kib > 0);
    }
}
