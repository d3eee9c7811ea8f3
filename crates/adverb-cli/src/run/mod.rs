//! `adverb run`: runs an unmodified verbs program on the software NIC.

mod environment;
mod executable;
mod owner;
mod print;
mod program;
mod summary;
mod sysfs;

use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};

use crate::interrupt::Interrupt;
use environment::Options;
pub(crate) use environment::libraries;
use executable::Obstacle;
use print::Format;
use program::Program;
use summary::Summary;
use sysfs::Sysfs;

pub(crate) use print::{Args as EnvArgs, run as run_env};

/// The options of `adverb run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
PROGRAM is built against rdma-core's libibverbs or librdmacm, and needs neither
an RDMA NIC nor privileges: it finds one device, adverb0, whose packets are RoCE
v2 over UDP sockets, or in memory between programs at one address. All programs
of a user share the device, as they share RDMA hardware:

  adverb run -- ib_send_bw -d adverb0 -x 0
  adverb run -- ib_send_bw -d adverb0 -x 0 127.0.0.1
  adverb run --loss 1 --seed 7 -- ./my_test
  adverb run --trace trace.html -- ./my_test

--trace writes one file for the first process that exits. Each further process
adds its number to the name. The end of the name tells the format: .html (a page
with a sequence diagram), .pcapng (Wireshark), .jsonl, .perfetto, or else text.

The packets to one queue pair are a flow. The same seed takes the same decision
for packet n of the k-th flow of a process.

At the end, a summary of all processes is written to the standard error:
messages, bytes, retransmissions, failed completions by status, the objects that
the program did not destroy, and the calls that failed, with their reasons. A
process that is killed or calls _exit isn't part of it.

Adverb's packages install the libraries that PROGRAM loads. They are looked for
in --libraries, or else in $ADVERB_LIBRARIES, in the directory `preload` beside
this command, and in `../lib/adverb` from there. If the command is a symbolic
link, the directory is that of the file.

With --print-env, the command prints the environment and runs nothing, as
`adverb env` does, whose help shows the formats.

The exit status is that of PROGRAM, 128 and the number of the signal that ended
it, or 1 if PROGRAM could not be started.")]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// Write all counters of the device in the summary.
    #[arg(long)]
    stat: bool,
    /// Write no summary.
    #[arg(long, conflicts_with = "stat")]
    quiet: bool,
    /// Print the environment of the program instead of running one, as `adverb env` does.
    #[arg(long, conflicts_with_all = ["stat", "quiet", "program"])]
    print_env: bool,
    /// The format of the printed environment. The default is `shell`.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The program and its arguments.
    #[arg(
        value_name = "PROGRAM",
        required_unless_present = "print_env",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// Runs the program and returns its exit status.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let options = &args.options;
    if args.print_env {
        return print::print(options, args.format.unwrap_or(Format::Shell));
    }
    if args.format.is_some() {
        bail!("--format has no effect without --print-env");
    }
    let libraries = environment::libraries(options.libraries.as_deref())?;
    let trace = options.trace.as_deref().map(prepare_trace).transpose()?;
    match args.program.first().and_then(|program| executable::find_obstacle(program)) {
        Some(blocked) if matches!(blocked.obstacle, Obstacle::Musl(_)) => bail!("{blocked}"),
        // The program runs without the device, but it may start other programs that use it.
        Some(blocked) => eprintln!("adverb: {blocked}"),
        None => {}
    }
    let address = options.device.as_ref().map(|device| device.address);
    let sysfs = Sysfs::create(address, &sysfs::directories()).inspect_err(|error| {
        eprintln!(
            "adverb: no directory is writable ({error}): there is no summary, and programs don't find the device in \
             sysfs; name a writable directory in TMPDIR"
        );
    });
    let sysfs = sysfs.ok();
    let mut variables = environment::variables(options, &libraries, trace, |name| env::var_os(name))?;
    if let Some(sysfs) = &sysfs {
        variables.push(("ADVERB_SYSFS", sysfs.root().as_os_str().to_owned()));
        variables.push(("ADVERB_REPORT", sysfs.reports().as_os_str().to_owned()));
    }
    let mask = SigSet::thread_get_mask()?;
    let interrupt = Interrupt::new()?;
    let status = wait(&Program::start(&args.program, variables, &mask)?, &interrupt)?;
    if let Some(sysfs) = sysfs.filter(|_| !args.quiet) {
        let summary = Summary::read(sysfs.reports()).context("reading the processes' reports failed")?;
        eprint!("{}", summary.text(args.stat));
    }
    Ok(ExitCode::from(status))
}

/// Removes the file of an earlier recording, and checks that a new one can be created. Returns its absolute path, because
/// the program may change its working directory.
fn prepare_trace(trace: &Path) -> Result<PathBuf> {
    let context = || format!("writing the recording {} failed", trace.display());
    if trace.is_file() {
        // The path may be a symbolic link, such as /dev/stdout.
        let file = trace.canonicalize().with_context(context)?;
        fs::remove_file(&file).with_context(context)?;
        check_creation(&file).with_context(context)?;
        return Ok(file);
    }
    match trace.metadata() {
        Ok(file) if file.is_dir() => {
            bail!("writing the recording {} failed: it is a directory", trace.display())
        }
        // A device or a pipe, whose reader need not have started.
        Ok(_) => {}
        Err(_) => check_creation(trace).with_context(context)?,
    }
    std::path::absolute(trace).with_context(context)
}

/// Creates a file and removes it, because a process that finds a recording uses another name.
fn check_creation(file: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    fs::remove_file(file)
}

/// Waits for the program, and returns its exit status. If this command gets SIGINT or SIGTERM, it sends SIGTERM to the
/// program, except if a terminal has sent SIGINT to both.
fn wait(program: &Program, interrupt: &Interrupt) -> Result<u8> {
    while !interrupt.is_requested() {
        if let Some(status) = program.try_wait()? {
            return Ok(status);
        }
        interrupt.wait(Some(POLL_INTERVAL));
    }
    if interrupt.signal() == Some(Signal::SIGINT) && is_in_foreground() {
        // The program may take its time to clean up, as test runners do. A second SIGINT ends this command.
        return program.wait();
    }
    program.terminate()
}

/// Whether a terminal sends its signals to this process and to the program.
fn is_in_foreground() -> bool {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name before the parenthesis may contain spaces. The state, the parent, the process group, the session, the
    // terminal and its foreground group follow.
    let fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect::<Vec<_>>());
    fields.is_some_and(|fields| fields.len() > 5 && fields[2] == fields[5])
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

    #[test]
    fn a_program_and_its_arguments_follow_the_options() {
        let args = Cli::try_parse_from("run --loss 1 -- prog -x --loss 9".split(' ')).unwrap().args;
        assert_eq!(args.options.loss, Some(1.0));
        assert_eq!(args.program, ["prog", "-x", "--loss", "9"].map(OsString::from));
    }

    #[test]
    fn contradictory_options_are_rejected() {
        for line in ["run", "run --quiet --stat x", "run --print-env x", "run --print-env --stat"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
        assert!(Cli::try_parse_from("run --print-env --format json".split(' ')).is_ok());
    }
}
