//! `adverb run`: runs an unmodified verbs program on the software NIC.

mod program;
mod summary;
mod sysfs;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::SigSet;

use crate::interrupt::Interrupt;
use program::Program;
use summary::Summary;
use sysfs::Sysfs;

/// The options of `adverb run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
PROGRAM is built against rdma-core's libibverbs or librdmacm, and needs neither an RDMA
NIC nor privileges: it finds one device, adverb0, whose packets are RoCE v2 over UDP
sockets, or in memory between programs at one address. All programs of a user share
the device, as they share RDMA hardware:

  adverb run -- ib_send_bw -d adverb0 -x 0
  adverb run -- ib_send_bw -d adverb0 -x 0 127.0.0.1
  adverb run --loss 1 --seed 7 -- ./my_test
  adverb run --trace trace.html -- ./my_test

--trace writes one file for the first process that exits. Each further process adds
its number to the name. The end of the name tells the format: .html (a page with a
sequence diagram), .pcapng (Wireshark), .jsonl, .perfetto, or else text.

The packets to one queue pair are a flow. The same seed takes the same decision for
packet n of the k-th flow of a process.

At the end, a summary of all processes is written to the standard error: messages,
bytes, retransmissions, failed completions by status, and the objects that the
program did not destroy. A process that is killed or calls _exit isn't part of it.

The libraries are those that `cargo xtask preload` links in a checkout of Adverb.
They are looked for in --libraries, in $ADVERB_LIBRARIES, in the directory
`preload` beside this command, and in `../lib/adverb` from there.

The exit status is that of PROGRAM, 128 and the number of the signal that ended it,
or 1 if PROGRAM could not be started.")]
pub(crate) struct Args {
    /// The device: `soft:` and an address of this machine. The default is 127.0.0.1.
    #[arg(long, value_name = "NAME", value_parser = device)]
    device: Option<IpAddr>,
    /// The percentage of sent packets that are lost.
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    loss: Option<f64>,
    /// The percentage of sent packets that are delayed, so that later packets overtake them.
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    reorder: Option<f64>,
    /// The percentage of sent packets that are sent twice.
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    duplicate: Option<f64>,
    /// The percentage of sent packets that are corrupted.
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    corrupt: Option<f64>,
    /// The time in milliseconds by which each sent packet is delayed.
    #[arg(long, value_name = "MILLISECONDS", value_parser = delay)]
    delay: Option<f64>,
    /// The seed of these faults.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// The file of a recording of the program's requests, packets and completions.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write all counters of the device in the summary.
    #[arg(long)]
    stat: bool,
    /// Write no summary.
    #[arg(long, conflicts_with = "stat")]
    quiet: bool,
    /// The directory of the libraries.
    #[arg(long, value_name = "DIRECTORY")]
    libraries: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Runs the program and returns its exit status.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let libraries = libraries(args.libraries.as_deref())?;
    let sysfs = Sysfs::create(args.device).context("creating the device's sysfs directory failed")?;
    if let Some(trace) = args.trace.as_deref().filter(|trace| trace.is_file()) {
        fs::remove_file(trace).with_context(|| format!("replacing {} failed", trace.display()))?;
    }
    let variables = variables(args, &libraries, &sysfs, |name| env::var_os(name))?;
    let mask = SigSet::thread_get_mask()?;
    let interrupt = Interrupt::new()?;
    let status = wait(&Program::start(&args.program, variables, &mask)?, &interrupt)?;
    if !args.quiet {
        let summary = Summary::read(sysfs.reports()).context("reading the processes' reports failed")?;
        eprint!("{}", summary.text(args.stat));
    }
    Ok(ExitCode::from(status))
}

/// Waits for the program, and returns its exit status. If this command gets SIGINT or SIGTERM, it sends SIGTERM to the
/// program.
fn wait(program: &Program, interrupt: &Interrupt) -> Result<u8> {
    while !interrupt.is_requested() {
        if let Some(status) = program.try_wait()? {
            return Ok(status);
        }
        interrupt.wait(Some(POLL_INTERVAL));
    }
    program.terminate()
}

/// Returns the environment variables of the program.
fn variables(
    args: &Args,
    libraries: &Path,
    sysfs: &Sysfs,
    existing: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<(&'static str, OsString)>> {
    let mut preload = vec![libraries.join("libadverb-paths.so"), libraries.join("libibverbs.so.1")];
    // The dynamic linker splits this list at colons and spaces, so a part that contains spaces is passed on unchanged.
    if let Some(list) = existing("LD_PRELOAD") {
        preload.extend(env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()));
    }
    let mut search = vec![libraries.to_owned()];
    if let Some(list) = existing("LD_LIBRARY_PATH") {
        search.extend(env::split_paths(&list));
    }
    let mut variables = vec![
        ("LD_PRELOAD", env::join_paths(preload).context("the directory of the libraries has a colon")?),
        ("LD_LIBRARY_PATH", env::join_paths(search)?),
        ("ADVERB_SYSFS", sysfs.root().as_os_str().to_owned()),
        ("ADVERB_REPORT", sysfs.reports().as_os_str().to_owned()),
        ("ADVERB_SEED", args.seed.to_string().into()),
    ];
    if let Some(device) = args.device {
        variables.push(("ADVERB_DEVICE", format!("soft:{device}").into()));
    }
    let faults = [
        ("ADVERB_LOSS", args.loss),
        ("ADVERB_REORDER", args.reorder),
        ("ADVERB_DUPLICATION", args.duplicate),
        ("ADVERB_CORRUPTION", args.corrupt),
        ("ADVERB_DELAY", args.delay),
    ];
    let given = faults.into_iter().filter_map(|(name, rate)| Some((name, rate?.to_string().into())));
    variables.extend(given);
    if let Some(trace) = &args.trace {
        // The program may change its working directory.
        variables.push(("ADVERB_TRACE", std::path::absolute(trace)?.into()));
    }
    Ok(variables)
}

/// Returns the directory of the libraries.
fn libraries(given: Option<&Path>) -> Result<PathBuf> {
    let beside = env::current_exe().ok();
    let beside = beside.as_deref().and_then(Path::parent);
    let candidates = match given {
        Some(given) => vec![given.to_owned()],
        None => {
            let named = env::var_os("ADVERB_LIBRARIES").map(PathBuf::from);
            let near = beside.map(|directory| [directory.join("preload"), directory.join("../lib/adverb")]);
            named.into_iter().chain(near.into_iter().flatten()).collect()
        }
    };
    let found = candidates.iter().find(|directory| directory.join("libibverbs.so.1").is_file());
    let Some(found) = found else {
        let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "no libibverbs.so.1 of Adverb is in {}\nhint: `cargo xtask preload` links it in a checkout of Adverb and \
             prints its directory; name the directory with --libraries",
            tried.join(" or ")
        );
    };
    found.canonicalize().with_context(|| format!("{} is not accessible", found.display()))
}

/// Parses the name of a software device.
fn device(name: &str) -> Result<IpAddr, String> {
    let address = name.strip_prefix("soft:").and_then(|address| address.parse().ok());
    address.ok_or_else(|| "use `soft:` and an IP address of this machine".to_owned())
}

/// Parses a percentage.
fn percentage(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches('%').parse().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| "use a number from 0 to 100".to_owned())
}

/// Parses a number of milliseconds.
fn delay(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches("ms").parse().ok().filter(|value| (0.0..=10_000.0).contains(value));
    value.ok_or_else(|| "use a number of milliseconds from 0 to 10000".to_owned())
}

/// The interval between two checks whether the program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Args {
        Cli::try_parse_from(line.split(' ')).unwrap().args
    }

    fn value(variables: &[(&'static str, OsString)], name: &str) -> Option<String> {
        let found = variables.iter().find(|(key, _)| *key == name)?;
        Some(found.1.to_string_lossy().into_owned())
    }

    #[test]
    fn options_become_variables() {
        let line =
            "run --device soft:127.0.0.9 --loss 0.5 --seed 7 --delay 2 --trace /t.html -- prog -x --loss 9";
        let args = parse(line);
        assert_eq!(args.program, ["prog", "-x", "--loss", "9"].map(OsString::from));
        let existing = |name: &str| (name == "LD_PRELOAD").then(|| OsString::from("/x/a.so"));
        let sysfs = Sysfs::create(None).unwrap();
        let variables = variables(&args, Path::new("/l"), &sysfs, existing).unwrap();
        let value = |name| value(&variables, name);
        assert_eq!(value("LD_PRELOAD").unwrap(), "/l/libadverb-paths.so:/l/libibverbs.so.1:/x/a.so");
        assert_eq!(value("LD_LIBRARY_PATH").unwrap(), "/l");
        assert_eq!(value("ADVERB_DEVICE").unwrap(), "soft:127.0.0.9");
        assert_eq!(value("ADVERB_LOSS").unwrap(), "0.5");
        assert_eq!(value("ADVERB_SEED").unwrap(), "7");
        assert_eq!(value("ADVERB_REORDER"), None);
        assert_eq!(value("ADVERB_DELAY").unwrap(), "2");
        assert_eq!(value("ADVERB_TRACE").unwrap(), "/t.html");
        assert!(Path::new(&value("ADVERB_REPORT").unwrap()).is_dir());
    }

    #[test]
    fn invalid_values_are_rejected() {
        assert!(device("mlx5_0").is_err() && device("soft:x").is_err());
        assert!(percentage("-1").is_err() && percentage("101").is_err() && percentage("NaN").is_err());
        assert!(delay("-1").is_err() && delay("1 s").is_err() && delay("10001").is_err());
        assert!(Cli::try_parse_from(["run", "--quiet", "--stat", "x"]).is_err());
        assert!(Cli::try_parse_from(["run"]).is_err());
    }
}
