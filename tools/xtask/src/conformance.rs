//! `cargo xtask conformance`: does a device do what an RDMA device must do?

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use support::process;

use crate::Cli;

/// The options of `cargo xtask conformance`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is under the API.
    #[arg(long, value_enum, default_value_t = Backend::Ibv)]
    backend: Backend,
    /// What the packets of the software NIC go over; may be given again. All of these, if none is given.
    #[arg(long, value_enum, value_name = "LINK")]
    link: Vec<Link>,
    /// How many packets in a hundred are lost on the way; may be given again. None are, and of those over UDP then 1 and 5,
    /// if nothing is given.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=50))]
    loss: Vec<u32>,
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
    /// The software NIC, here, as a user without any privilege.
    Soft,
}

/// What the packets of the software NIC can go over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Link {
    /// Nothing: from queue pair to queue pair.
    Loopback,
    /// A switch in memory.
    Mem,
    /// UDP sockets.
    Udp,
    /// UDP sockets at another port than RoCE's, which addresses say.
    UdpPort,
}

impl Link {
    const ALL: [Link; 4] = [Link::Loopback, Link::Mem, Link::Udp, Link::UdpPort];

    const fn name(self) -> &'static str {
        match self {
            Link::Loopback => "loopback",
            Link::Mem => "mem",
            Link::Udp => "udp",
            Link::UdpPort => "udp-port",
        }
    }

    /// The losses that are tried over it, if nothing else is asked for.
    const fn losses(self) -> &'static [u32] {
        match self {
            Link::Loopback | Link::Mem | Link::UdpPort => &[0],
            Link::Udp => &[0, 1, 5],
        }
    }
}

/// How long the guest may take, booting included.
const SECONDS: &str = "420";

/// Builds the suite, and runs it on the device of the backend. The status is that of the suite.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if args.backend == Backend::Soft {
        return run_soft(&args);
    }
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

/// Builds the suite, and runs it on the software NIC. The status is that of the suite.
fn run_soft(args: &Args) -> Result<ExitCode> {
    let binary = process::build("build --release -p adverb-cli")?;
    // Where anybody may read it, and write what comes of it.
    let directory = std::env::temp_dir().join(format!("adverb-conformance-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| format!("could not make {}", directory.display()))?;
    let result = fs::set_permissions(&directory, Permissions::from_mode(0o777))
        .and_then(|()| fs::copy(&binary, directory.join("adverb")).map(drop))
        .with_context(|| format!("could not copy {binary} to {}", directory.display()))
        .and_then(|()| run_links_in(&directory, args));
    fs::remove_dir_all(&directory).with_context(|| format!("could not remove {}", directory.display()))?;
    result
}

/// Runs the suite that is in a directory over every link that is asked for.
fn run_links_in(directory: &Path, args: &Args) -> Result<ExitCode> {
    let links = if args.link.is_empty() { &Link::ALL[..] } else { &args.link };
    let mut failed = Vec::new();
    for link in links {
        let losses = if args.loss.is_empty() { link.losses() } else { &args.loss };
        for &loss in losses.iter().filter(|loss| **loss == 0 || *link != Link::Loopback) {
            let words = match loss {
                0 => link.name().to_owned(),
                loss => format!("{} with a loss of {loss} %", link.name()),
            };
            println!("soft over {words}:");
            if !run_soft_in(directory, args, *link, loss)? {
                failed.push(words);
            }
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("error: not as it must be over {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Runs the suite that is in a directory, as nobody in particular and without capabilities; says whether it passed.
fn run_soft_in(directory: &Path, args: &Args, link: Link, loss: u32) -> Result<bool> {
    let binary = directory.join("adverb");
    let mut command = process::as_nobody(&binary);
    let report = directory.join("conformance.json");
    command.args(["selftest", "--device", "soft", "--link", link.name(), "--loss", &loss.to_string()]);
    command.arg("--report").arg(&report);
    for filter in &args.filter {
        command.args(["--filter", filter]);
    }
    if args.verbose {
        command.arg("--verbose");
    }
    let status = command.status().with_context(|| format!("could not run {command:?}"))?;
    if let Some(out) = &args.out {
        let out = out.join(format!("{}-{loss}", link.name()));
        fs::create_dir_all(&out).with_context(|| format!("could not make {}", out.display()))?;
        for name in ["conformance.json", "conformance.txt"] {
            fs::copy(directory.join(name), out.join(name)).with_context(|| format!("there is no {name}"))?;
        }
    }
    Ok(status.success())
}
