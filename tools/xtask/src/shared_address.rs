//! `cargo xtask shared-address`: processes with software devices at one address start, connect to each other, end, and
//! are killed; then pairs exchange messages while others join and leave (see `crates/adverb-conformance/examples/shared_address`).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};
use support::{process, programs};

/// The options of `cargo xtask shared-address`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of processes to start.
    #[arg(long, default_value_t = 100)]
    processes: usize,
    /// The maximum number of processes at a time.
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// The number of pairs of processes that exchange messages without retransmission while others join and leave.
    #[arg(long, default_value_t = 150)]
    pairs: usize,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Builds and runs the processes. If this process is root's, they run as the user 65534, without capabilities.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = programs::example("shared_address")?;
    // Only root can read the files of any other process.
    if fs::read_dir("/proc/1/fd").is_err() {
        return process::run(Command::new(program).args(arguments(args)));
    }
    // The other user may not be able to read the build directory.
    let folder = env::temp_dir().join(format!("adverb-shared-address-{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let result = run_as_nobody(args, Path::new(&program), &folder);
    fs::remove_dir_all(&folder)?;
    result
}

fn arguments(args: &Args) -> Vec<String> {
    let mut arguments = vec!["run".to_owned()];
    let options = [("processes", args.processes), ("at-once", args.at_once), ("pairs", args.pairs)];
    arguments.extend(options.map(|(name, value)| format!("--{name}={value}")));
    arguments.push(format!("--seed={}", args.seed));
    arguments
}

fn run_as_nobody(args: &Args, program: &Path, folder: &Path) -> Result<()> {
    let copy = folder.join("shared_address");
    fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    fs::copy(program, &copy).context("copying the program")?;
    fs::set_permissions(&copy, PermissionsExt::from_mode(0o755))?;
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
        "--inh-caps=-all",
    ]);
    process::run(command.arg(&copy).args(arguments(args)).current_dir("/"))
}
