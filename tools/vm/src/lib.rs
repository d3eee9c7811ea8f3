//! `cargo xtask vm`: commands under a kernel with soft-RoCE, in a QEMU guest.
//!
//! The machines that build Adverb have no RDMA device, and many load no kernel modules. A Debian kernel has
//! rdma_rxe, and QEMU boots it anywhere, without KVM, in some seconds. The guest sees this machine's files
//! read-only, so that whatever is built or installed here runs there as it is.
//!
//! In the guest:
//! - `rxe0` is on `v0` (10.77.0.1, fd77::1). Its GID 1 is the IPv4 address, GID 2 the IPv6 address.
//! - `v1` (10.77.0.2, fd77::2), the other end of that cable, is in the network namespace `peer`, where there is
//!   no RDMA device: the place for a user-space peer (`ip netns exec peer …`).
//! - `/run` is the guest's own; what is written to `/tmp` stays in the guest; `/run/out` is the directory that
//!   `--out` names, and what is written there comes back.

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

pub use console::Trouble;
pub use guest::{Ending, Guest, Observer, Report, Stream};

/// What `cargo xtask vm` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit status is that of the first command that failed; 124 if the time was over; 125 if the guest itself
failed (it didn't boot, its kernel panicked, or its kernel oopsed though the commands succeeded).

  cargo xtask vm -- ibv_devinfo -d rxe0 -v
  cargo xtask vm --mtu 9000 --run 'ibv_devices' --run 'ip netns exec peer ping -c 1 10.77.0.1'
  cargo xtask vm smoke")]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// A line for the shell; may be given again. They run in order, in one boot, up to the first that fails.
    #[arg(long, value_name = "SHELL LINE", conflicts_with = "command")]
    run: Vec<String>,
    #[command(subcommand)]
    known: Option<Known>,
    /// The one command to run, as it is, without a shell.
    #[arg(last = true, value_name = "WORD")]
    command: Vec<String>,
}

/// Things to run in the guest that have a name.
#[derive(Debug, Subcommand)]
enum Known {
    /// Check that the guest is good for something: verbs on rxe0, and adverb-wire talking to it.
    Smoke,
}

/// What the guest is like.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How long it may take, booting included.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 180)]
    pub timeout: u64,
    /// The MTU of the cable between v0 and v1.
    #[arg(long, global = true, value_name = "BYTES", default_value_t = 1500,
          value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub mtu: u32,
    /// How many CPUs the guest has.
    #[arg(long, global = true, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    pub cpus: u8,
    /// One CPU in virtual time, which goes by the instructions it executes: timings repeat.
    #[arg(long, global = true, conflicts_with = "cpus")]
    pub icount: bool,
    /// A directory that the guest can write to, as /run/out.
    #[arg(long, global = true, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Say how long booting took, and show what the guest's kernel printed.
    #[arg(long, short, global = true)]
    pub verbose: bool,
}

/// The status of a run that took too long, as coreutils' timeout has it.
const STATUS_TIMED_OUT: u8 = 124;

/// The status of a run in which not a command failed but the guest.
const STATUS_GUEST_FAILED: u8 = 125;

/// Boots a guest and does in it what was asked for.
pub fn run(args: Args) -> Result<ExitCode> {
    let Args { options, run: mut lines, known, command } = args;
    if !command.is_empty() {
        lines.push(command.iter().map(|word| process::quote(word)).collect::<Vec<_>>().join(" "));
    }
    match known {
        Some(Known::Smoke) if lines.is_empty() => smoke::run(&options),
        Some(Known::Smoke) => bail!("`smoke` takes no commands"),
        None if lines.is_empty() => {
            bail!("say what to run: `cargo xtask vm -- COMMAND…`, `--run 'SHELL LINE'`, or `smoke`")
        }
        None => run_lines(&options, &lines),
    }
}

fn run_lines(options: &Options, lines: &[String]) -> Result<ExitCode> {
    let mut guest = prepare(options)?;
    let report = guest.run(lines, &mut PassOn { lines })?;
    let status = explain(&report, options);
    let oops = report.trouble == Some(Trouble::Oops);
    Ok(ExitCode::from(if oops && status == 0 { STATUS_GUEST_FAILED } else { status }))
}

/// Gets together what booting takes.
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

/// Says what there is to say about a run beyond its output, which is nothing if it went well; gives the status
/// that stands for its ending.
pub fn explain(report: &Report, options: &Options) -> u8 {
    if options.verbose
        && let Some(boot) = report.boot
    {
        eprintln!("vm: ready after {:.1} s", boot.as_secs_f64());
    }
    let status = match &report.ending {
        Ending::Completed => report.statuses.iter().copied().find(|status| *status != 0).unwrap_or(0),
        Ending::TimedOut => {
            let doing = match (report.boot, report.statuses.len()) {
                (None, _) => "the guest was still booting".to_owned(),
                (Some(_), done) => format!("command {} was still running", done + 1),
            };
            let seconds = options.timeout;
            eprintln!("vm: stopped after {seconds} s, when {doing}; `--timeout SECONDS` gives it more");
            STATUS_TIMED_OUT
        }
        Ending::Died(why) => {
            eprintln!("vm: the guest went down before it was done ({why})");
            STATUS_GUEST_FAILED
        }
    };
    if let Some(trouble) = report.trouble {
        eprintln!("vm: {trouble} in the guest's kernel");
    }
    let ended_early = matches!(report.ending, Ending::Died(_)) || report.boot.is_none();
    if options.verbose || report.trouble.is_some() || ended_early {
        eprintln!("vm: the guest's console:");
        report.console.lines().for_each(|line| eprintln!("  | {line}"));
    }
    status
}

/// Passes the guest's output on to ours as it comes.
struct PassOn<'a> {
    lines: &'a [String],
}

impl Observer for PassOn<'_> {
    fn started(&mut self, index: usize) {
        // With a single command there is nothing to tell apart.
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

/// A command as one line, however many it has.
fn title(command: &str) -> String {
    match command.trim().split_once('\n') {
        Some((first, _)) => format!("{first} …"),
        None => command.trim().to_owned(),
    }
}
