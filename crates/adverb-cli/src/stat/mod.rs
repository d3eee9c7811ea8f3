//! `adverb stat`: shows the rates of devices' counters.

mod sample;
mod text;

use std::io::{self, Write};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adverb::verbs::{Counters, Device};
use anyhow::{Context, Result};

use crate::devices::{self, NoUsableDevice};
use crate::json;
use sample::{PortSample, Sample};

/// The options of `adverb stat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command prints the increase of each counter per interval and per second.
Error counters, which don't increase on a healthy network, are marked with ! and
also shown per million packets. The counters belong to the device, include all
programs that use it, and have the names that its driver gives them. A software
NIC is an exception: it belongs to the process that opened it, and this command
opens one of its own, which has no traffic. A program reads the counters of its
software NICs with `Device::counters`.

  adverb stat --device mlx5_0 --interval 5
  adverb stat --count 1 --json | jq '.ports[].errors'")]
pub(crate) struct Args {
    /// The name of a device. The option can be repeated. The default is all usable devices.
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// The length of an interval.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// The number of intervals. The default is no limit.
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,
    /// Also print counters that did not change.
    #[arg(long, short)]
    all: bool,
    /// Print JSON, one line per interval. Its fields keep their names and meanings while `version` is 1.
    #[arg(long)]
    json: bool,
}

/// Prints the counters for the given number of intervals.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let names = if args.device.is_empty() { devices::usable() } else { Ok(args.device.clone()) };
    let names = match names {
        Ok(names) => names,
        Err(no_device) => return print_no_device(args, &no_device),
    };
    let mut watched = Vec::new();
    for name in &names {
        let device = Device::open(name)?;
        for port in device.ports()? {
            watched.push(Watched {
                before: device.counters(port.number)?,
                device: device.clone(),
                port: port.number,
            });
        }
    }
    let start = Instant::now();
    let mut number = 0;
    while args.count.is_none_or(|count| number < count.get()) {
        number += 1;
        // Relative to the start, so that the time for printing doesn't accumulate.
        let until = start + args.interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        let ports = watched.iter_mut().map(Watched::sample).collect::<Result<Vec<_>>>()?;
        let time_ns = json::nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        print(args, &Sample { time_ns, ports, problem: None })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A port with its counters at the end of the last interval.
struct Watched {
    device: Device,
    port: u8,
    before: Counters,
}

impl Watched {
    fn sample(&mut self) -> Result<PortSample> {
        let now = self.device.counters(self.port)?;
        let sample = PortSample::new(self.device.name(), self.port, &self.before, &now);
        self.before = now;
        Ok(sample)
    }
}

/// Prints the reason why there are no counters.
fn print_no_device(args: &Args, no_device: &NoUsableDevice) -> Result<ExitCode> {
    if args.json {
        let problem = Some(no_device.message.clone());
        print(args, &Sample { time_ns: 0, ports: Vec::new(), problem })?;
    } else {
        eprint!("{}", no_device.text);
    }
    Ok(if no_device.is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(args: &Args, sample: &Sample) -> Result<()> {
    let output = match args.json {
        true => json::line("stat", sample)? + "\n",
        false => text::tables(sample, args.all),
    };
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(output.as_bytes())
        .and_then(|()| stdout.flush())
        .context("could not write to standard output")
}

/// Parses a time of at least 10 ms, for which the kernel caches counters.
fn seconds(word: &str) -> std::result::Result<Duration, String> {
    let number: f64 = word.parse().map_err(|_| "the interval must be a number of seconds".to_owned())?;
    let duration = Duration::try_from_secs_f64(number).map_err(|error| error.to_string())?;
    if duration < Duration::from_millis(10) {
        return Err(
            "the interval must be at least 0.01 s, because the kernel caches counters that long".to_owned()
        );
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn invalid_intervals_are_rejected() {
        assert_eq!(seconds("2.5").unwrap().as_millis(), 2500);
        for bad in ["0", "-1", "soon", "NaN", "0.001", "1e300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
