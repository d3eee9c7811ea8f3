//! `cargo xtask vm`: commands in a QEMU guest whose kernel has soft-RoCE.
//!
//! The machines that build Adverb have no RDMA device, and many cannot load kernel modules. Debian's kernel includes
//! rdma_rxe, and QEMU boots it on any machine, without KVM, in about ten seconds. The guest sees the host's files
//! read-only, so programs that are built or installed on the host run in the guest unchanged.
//!
//! In the guest:
//! - `rxe0` is on `v0` (10.77.0.1, fd77::1). Its GID 1 is the IPv4 address, GID 2 the IPv6 address.
//! - `v1` (10.77.0.2, fd77::2), the other end of the veth pair, is in the network namespace `peer`, which has no RDMA
//!   device: user-space peers run there (`ip netns exec peer …`).
//! - `/run` is the guest's own. Files written to `/tmp` stay in the guest. `/run/out` is the host's directory that
//!   `--out` names, and is writable.

mod console;
mod cpio;
mod guest;
mod initramfs;
mod kernel;
mod scratch;
mod share;
mod smoke;
pub mod virtual_time;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use support::{packages, process};

pub use console::KernelProblem;
pub use guest::{Ending, Guest, Observer, Report, Stream};

/// The options of `cargo xtask vm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit status is that of the first failed command; 124 if the time limit was exceeded; 125 if the guest failed
(it did not boot, its kernel panicked, or its kernel oopsed although the commands succeeded).

  cargo xtask vm -- ibv_devinfo -d rxe0 -v
  cargo xtask vm --mtu 9000 --run 'ibv_devices' --run 'ip netns exec peer ping -c 1 10.77.0.1'
  cargo xtask vm smoke")]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Shell command; repeatable. The commands run in order in one guest until one fails.
    #[arg(long, value_name = "SHELL COMMAND", conflicts_with = "command")]
    run: Vec<String>,
    #[command(subcommand)]
    predefined_run: Option<PredefinedRun>,
    /// Command to run without a shell.
    #[arg(last = true, value_name = "WORD")]
    command: Vec<String>,
}

/// A predefined run.
#[derive(Debug, Subcommand)]
enum PredefinedRun {
    /// Check the guest: verbs on rxe0, and Adverb's packets and connection manager against it.
    Smoke,
}

/// The options of a guest.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Time limit, including boot.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 180)]
    pub timeout: u64,
    /// MTU of the link between v0 and v1.
    #[arg(long, global = true, value_name = "BYTES", default_value_t = 1500,
          value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub mtu: u32,
    /// Number of CPUs of the guest.
    #[arg(long, global = true, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    pub cpus: u8,
    /// Use one CPU and a virtual clock that counts instructions, for reproducible timings.
    #[arg(long, global = true, conflicts_with = "cpus")]
    pub icount: bool,
    /// Host directory that the guest can write to, as /run/out.
    #[arg(long, global = true, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the boot time and the output of the guest's kernel.
    #[arg(long, short, global = true)]
    pub verbose: bool,
}

/// The exit status of a run that exceeded its time limit, as in coreutils' timeout.
const STATUS_TIMED_OUT: u8 = 124;

/// The exit status of a run in which the guest failed.
const STATUS_GUEST_FAILED: u8 = 125;

/// Boots a guest, runs the commands in it, and returns their status.
///
/// # Errors
///
/// Returns an error if there is no command, or if the guest can't be prepared or started.
pub fn run(args: Args) -> Result<ExitCode> {
    let Args { options, run: mut lines, predefined_run, command } = args;
    if !command.is_empty() {
        lines.push(command.iter().map(|word| process::quote(word)).collect::<Vec<_>>().join(" "));
    }
    match predefined_run {
        Some(PredefinedRun::Smoke) if lines.is_empty() => smoke::run(&options),
        Some(PredefinedRun::Smoke) => bail!("`smoke` takes no commands"),
        None if lines.is_empty() => {
            bail!("no command: use `cargo xtask vm -- COMMAND…`, `--run 'SHELL COMMAND'`, or `smoke`")
        }
        None => run_lines(&options, &lines),
    }
}

fn run_lines(options: &Options, lines: &[String]) -> Result<ExitCode> {
    let mut guest = prepare(options)?;
    let report = guest.run(lines, &mut Forward { lines })?;
    let status = explain(&report, options);
    let oops = report.kernel_problem == Some(KernelProblem::Oops);
    Ok(ExitCode::from(if oops && status == 0 { STATUS_GUEST_FAILED } else { status }))
}

/// Installs missing packages, and prepares a guest.
///
/// # Errors
///
/// Returns an error if packages are missing, or if there is no kernel in the cache and none can be downloaded.
pub fn prepare(options: &Options) -> Result<Guest> {
    packages::ensure(packages::VM)?;
    if let Some(out) = &options.out {
        fs::create_dir_all(out).with_context(|| format!("could not create {}", out.display()))?;
    }
    Guest::new(guest::Config {
        kernel: kernel::cached()?,
        timeout: Duration::from_secs(options.timeout),
        mtu: options.mtu,
        cpus: options.cpus,
        icount: options.icount,
        out: options.out.clone(),
        keep_going: false,
    })
}

/// Prints the problems of a run, and returns its exit status. Prints nothing for a run without a problem, unless
/// [`Options::verbose`] is set.
pub fn explain(report: &Report, options: &Options) -> u8 {
    if options.verbose
        && let Some(boot) = report.boot
    {
        eprintln!("vm: booted in {:.1} s", boot.as_secs_f64());
    }
    let status = match &report.ending {
        Ending::Completed => report.statuses.iter().copied().find(|status| *status != 0).unwrap_or(0),
        Ending::TimedOut => {
            let doing = match (report.boot, report.statuses.len()) {
                (None, _) => "the guest was booting".to_owned(),
                (Some(_), done) => format!("command {} was running", done + 1),
            };
            let seconds = options.timeout;
            eprintln!(
                "vm: exceeded the time limit of {seconds} s while {doing}; `--timeout SECONDS` changes the limit"
            );
            STATUS_TIMED_OUT
        }
        Ending::Died(why) => {
            eprintln!("vm: the guest exited before the commands finished ({why})");
            STATUS_GUEST_FAILED
        }
    };
    if let Some(kernel_problem) = report.kernel_problem {
        eprintln!("vm: {kernel_problem} in the guest's kernel");
    }
    let ended_early = matches!(report.ending, Ending::Died(_)) || report.boot.is_none();
    if options.verbose || report.kernel_problem.is_some() || ended_early {
        eprintln!("vm: output of the guest's console:");
        report.console.lines().for_each(|line| eprintln!("  | {line}"));
    }
    status
}

/// An observer that forwards the guest's output to this process's output.
struct Forward<'a> {
    lines: &'a [String],
}

impl Observer for Forward<'_> {
    fn started(&mut self, index: usize) {
        // A single command needs no title.
        if self.lines.len() > 1 {
            eprintln!("==> {}", title(&self.lines[index]));
        }
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Out => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
            Stream::Err => io::stderr().write_all(bytes),
        }
    }

    fn finished(&mut self, index: usize, status: u8) {
        if status != 0 && self.lines.len() > 1 {
            eprintln!("==> exit status {status}: {}", title(&self.lines[index]));
        }
    }
}

/// Returns the first line of a command as its title.
fn title(command: &str) -> String {
    match command.trim().split_once('\n') {
        Some((first, _)) => format!("{first} …"),
        None => command.trim().to_owned(),
    }
}
