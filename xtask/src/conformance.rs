//! `cargo xtask conformance`: does a device do what an RDMA device must do?

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::{Cli, process};

/// The options of `cargo xtask conformance`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is under the API.
    #[arg(long, value_enum, default_value_t = Backend::Ibv)]
    backend: Backend,
    /// Run only tests whose group or name contains this; may be given again.
    #[arg(long, value_name = "WORDS")]
    filter: Vec<String>,
    /// A directory for the results, as conformance.json and conformance.txt.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print a line for every test.
    #[arg(long, short)]
    verbose: bool,
}

/// What Adverb's API can stand on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Backend {
    /// rdma-core, with Linux soft-RoCE under it, in a virtual machine.
    Ibv,
}

/// How long the guest may take, booting included.
const SECONDS: &str = "420";

/// Builds the suite, and runs it on the device of the backend. The status is that of the suite.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let Backend::Ibv = args.backend;
    let mut words: Vec<String> = ["xtask", "vm", "--timeout", SECONDS].map(str::to_owned).into();
    if let Some(out) = &args.out {
        words.extend(["--out".to_owned(), out.display().to_string()]);
    }
    words.extend([
        "--".to_owned(),
        process::build("build --release -p adverb-cli")?,
        "selftest".to_owned(),
        "--device".to_owned(),
        "rxe0".to_owned(),
    ]);
    if args.out.is_some() {
        words.extend(["--report".to_owned(), "/run/out/conformance.json".to_owned()]);
    }
    for filter in args.filter {
        words.extend(["--filter".to_owned(), filter]);
    }
    if args.verbose {
        words.push("--verbose".to_owned());
    }
    // Through the command line's own parser, so that this is something a person can type.
    Cli::try_parse_from(words)?.command.run()
}
