//! `cargo xtask cluster`: processes of a cluster that exchange data and check it, while one of them is killed and restarted
//! (see `crates/adverb-conformance/examples/cluster`).

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Parser;
use support::{process, programs};

use crate::Cli;

/// The faults that `--faults` injects, and parts of messages, of which one must report each.
const FAULTS: &[(&str, &[&str])] = &[
    ("wrong-byte", &[" instead of "]),
    ("lost-message", &["arrived instead of"]),
    ("duplicate-message", &["arrived instead of"]),
    ("wrong-write", &["the bytes of"]),
    ("extra-add", &["a fetch-and-add returned"]),
    ("lost-reply", &["made no progress"]),
    // The thread may stop before all sessions of the member are open.
    ("stopped-thread", &["member 0, thread 0 made no progress", "no messages after 5s: from member 0"]),
    ("closed-session", &[" ended: the session was closed"]),
];

/// The options of `cargo xtask cluster`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
  cargo xtask cluster --members 8 --messages 10000000 --kill-minutes 5
  cargo xtask cluster --vm --messages 100000 --kill-seconds 60
  cargo xtask cluster --faults")]
pub(crate) struct Args {
    /// Number of members, each a process.
    #[arg(long, default_value_t = 3)]
    members: u16,
    /// Number of threads of each member. Threads with odd numbers make calls.
    #[arg(long, default_value_t = 2)]
    threads: u16,
    /// Number of messages, requests and replies of the first part, in which no session may end.
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Duration of the second part, in which members are killed and restarted.
    #[arg(long, value_name = "SECONDS", default_value_t = 6)]
    kill_seconds: u64,
    /// The same in minutes.
    #[arg(long, value_name = "MINUTES", conflicts_with = "kill_seconds")]
    kill_minutes: Option<u64>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// ACK timeout, as 4.096 µs × 2^CODE. A member that doesn't respond for seven times this period loses its sessions.
    /// The default of the library is 14 (0.5 s in total). The default here is 16 (1.9 s), or 17 in a virtual machine, so
    /// that no session ends on a machine with any load.
    #[arg(long, value_name = "CODE")]
    ack_timeout: Option<u8>,
    /// Run the processes on soft-RoCE in a virtual machine.
    #[arg(long)]
    vm: bool,
    /// Instead, let a member make mistakes of every kind, and check that each is reported.
    #[arg(long, conflicts_with = "vm")]
    faults: bool,
}

/// Builds and runs the processes.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let program = build()?;
    if args.faults {
        return inject_faults(&program);
    }
    let seconds = args.kill_minutes.map_or(args.kill_seconds, |minutes| minutes * 60);
    let Args { members, threads, messages, seed, .. } = args;
    let mut options = format!(
        "run --members {members} --threads {threads} --messages {messages} --kill-seconds {seconds} --seed {seed}"
    );
    if let Some(code) = args.ack_timeout {
        options += &format!(" --ack-timeout {code}");
    } else if args.vm {
        options += VM_ACK_TIMEOUT;
    }
    if args.vm {
        let command = format!("{} {options} {VM_OPTIONS}", process::quote(&program));
        // Run it through the command-line parser, so that a developer can type the same command.
        return Cli::try_parse_from(["xtask", "vm", "--timeout", "7200", "--run", &command])?.command.run();
    }
    process::run(Command::new(program).args(options.split(' ')))?;
    Ok(ExitCode::SUCCESS)
}

/// The options in the guest, where all members have the address of soft-RoCE.
const VM_OPTIONS: &str = "--addr 10.77.0.1 --hang-seconds 180";
/// The ACK timeout in the guest. Emulated CPUs stall for longer.
const VM_ACK_TIMEOUT: &str = " --ack-timeout 17";

/// Builds the program.
pub(crate) fn build() -> Result<String> {
    programs::example("cluster")
}

/// Returns the command of a short run in a guest with soft-RoCE, in which one member is killed. The ACK timeout is longer
/// (7.5 s in total), because the guest's CPUs may be busy with other tests of the host.
pub(crate) fn short_command(program: &str) -> String {
    format!("{} run --messages 0 --kill-seconds 1 {VM_OPTIONS} --ack-timeout 18", process::quote(program))
}

fn inject_faults(program: &str) -> Result<ExitCode> {
    let mut is_passed = true;
    for (fault, expected) in FAULTS {
        let mut command = Command::new(program);
        command.args(["run", "--messages", "20000", "--kill-seconds", "0", "--hang-seconds", "5"]);
        let output = command.args(["--fault", fault]).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let error = text.lines().find(|line| line.starts_with("Error: ")).unwrap_or("no error");
        let is_reported = !output.status.success() && expected.iter().any(|part| text.contains(part));
        println!("{fault}: {}, {error}", if is_reported { "reported" } else { "NOT REPORTED" });
        is_passed &= is_reported;
    }
    Ok(if is_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
