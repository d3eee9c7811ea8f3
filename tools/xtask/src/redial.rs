//! `cargo xtask redial`: breaks the lanes of many connections between two software devices at once, and prints the time
//! until all have resumed, and the number of threads before, during and after (see
//! `crates/adverb-net/src/tests/redialing/many.rs`).

use std::process::Command;

use anyhow::Result;
use support::process;

/// The options of `cargo xtask redial`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of connections. Each one needs about 12 file descriptors.
    #[arg(long, default_value_t = 1000)]
    connections: usize,
}

/// Builds the tests of adverb-net in release mode, and runs one of them.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = process::build("test --release -p adverb-net --lib --no-run")?;
    let test = "tests::redialing::many::connections_that_break_at_once_all_resume";
    // The limit of open files is often 1,024; a process may raise it to its hard limit.
    let script = r#"ulimit -n "$(ulimit -Hn)" && exec "$0" "$@""#;
    let mut redial = Command::new("sh");
    redial.args(["-c", script, &program, "--exact", test, "--nocapture"]);
    process::run(redial.env("ADVERB_CONNECTIONS", args.connections.to_string()))
}
