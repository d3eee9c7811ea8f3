//! `cargo xtask conformance`: the conformance suite, on soft-RoCE or on the software NIC.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use support::{process, programs};

use crate::Cli;

/// The options of `cargo xtask conformance`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Backend under the API.
    #[arg(long, value_enum, default_value_t = Backend::Ibv)]
    backend: Backend,
    /// Link of the software NIC; repeatable. All links if omitted.
    #[arg(long, value_enum, value_name = "LINK")]
    link: Vec<Link>,
    /// Packet loss in percent; repeatable. If omitted: 0 on every link, and also 1 and 5 on udp.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=50))]
    loss: Vec<u32>,
    /// Run only tests whose group or name contains this text; repeatable.
    #[arg(long, value_name = "WORDS")]
    filter: Vec<String>,
    /// Directory for the results: conformance.json and conformance.txt.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print a line for every test.
    #[arg(long, short)]
    verbose: bool,
}

/// A backend of Adverb's API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Backend {
    /// rdma-core on Linux soft-RoCE, in a virtual machine.
    Ibv,
    /// The software NIC on this machine, as an unprivileged user.
    Soft,
}

/// A link of the software NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Link {
    /// Direct delivery between queue pairs of one device.
    Loopback,
    /// An in-memory switch.
    Mem,
    /// UDP sockets.
    Udp,
    /// UDP sockets on a port other than RoCE's, which the addresses contain.
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

    /// Returns the default loss rates of the link, in percent.
    const fn losses(self) -> &'static [u32] {
        match self {
            Link::Loopback | Link::Mem | Link::UdpPort => &[0],
            Link::Udp => &[0, 1, 5],
        }
    }
}

/// Time limit of the guest in seconds, including boot.
const SECONDS: &str = "420";

/// Builds the suite and runs it on the backend's device. Returns the suite's exit status.
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
        programs::adverb()?,
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
    // Run it through the command-line parser, so that a developer can type the same command.
    Cli::try_parse_from(words)?.command.run()
}

/// Builds the suite and runs it on the software NIC. Returns the suite's exit status.
fn run_soft(args: &Args) -> Result<ExitCode> {
    let binary = programs::adverb()?;
    // A directory in which any user can read the program and write the results.
    let directory = std::env::temp_dir().join(format!("adverb-conformance-{}", std::process::id()));
    fs::create_dir_all(&directory).with_context(|| format!("could not create {}", directory.display()))?;
    let result = fs::set_permissions(&directory, Permissions::from_mode(0o777))
        .and_then(|()| fs::copy(&binary, directory.join("adverb")).map(drop))
        .with_context(|| format!("could not copy {binary} to {}", directory.display()))
        .and_then(|()| run_links_in(&directory, args));
    fs::remove_dir_all(&directory).with_context(|| format!("could not remove {}", directory.display()))?;
    result
}

/// Runs the suite in `directory` over every requested link.
fn run_links_in(directory: &Path, args: &Args) -> Result<ExitCode> {
    let links = if args.link.is_empty() { &Link::ALL[..] } else { &args.link };
    let mut failed = Vec::new();
    for link in links {
        let losses = if args.loss.is_empty() { link.losses() } else { &args.loss };
        for &loss in losses.iter().filter(|loss| **loss == 0 || *link != Link::Loopback) {
            let words = match loss {
                0 => link.name().to_owned(),
                loss => format!("{} with {loss} % loss", link.name()),
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
    eprintln!("error: the conformance suite failed over {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Runs the suite in `directory` as an unprivileged user over one link; returns whether it passed.
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
        fs::create_dir_all(&out).with_context(|| format!("could not create {}", out.display()))?;
        for name in ["conformance.json", "conformance.txt"] {
            fs::copy(directory.join(name), out.join(name))
                .with_context(|| format!("the suite wrote no {name}"))?;
        }
    }
    Ok(status.success())
}
