//! `adverb peertest`: do two devices understand each other?

use std::io::{self, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::ExitCode;

use adverb::verbs::{Device, PathMtu};
use adverb_conformance::peer::{self, Case, CaseOutcome, CaseResult, Port, Session, Settings};
use anyhow::{Context, Result};

/// What `adverb peertest` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two machines, or two processes of one, each with a device: one listens, the
other says what is done. They agree over TCP, and what is tried goes from device
to device: every transport and operation, in both directions, empty messages,
single packets and many, and every byte is compared.

  adverb peertest --device mlx5_0 --listen 192.0.2.7:7472
  adverb peertest --device mlx5_1 --peer 192.0.2.7:7472

The exit status is 0 if nothing failed. Whoever connects may use the device of
the one who listens for the tests: listen where only those connect whom you know.")]
pub(crate) struct Args {
    /// The device, by its name: see `adverb devices`.
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    device: Option<String>,
    /// The address of the device to use, if it has several.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    #[command(flatten)]
    role: Role,
    /// The MTU of connections, and the longest datagram: what both devices have unless given.
    #[arg(long, value_name = "BYTES", value_parser = mtu, requires = "peer")]
    mtu: Option<PathMtu>,
    /// The network loses packets: messages may be absent, but not damaged, where nothing brings them again.
    #[arg(long, requires = "peer")]
    lossy: bool,
    /// Try only this, such as `rc-write:forward`; may be given again.
    #[arg(long, value_name = "OPERATION:DIRECTION", requires = "peer")]
    only: Vec<Case>,
    /// Print a line of JSON for everything that was tried, and nothing else.
    #[arg(long, requires = "peer")]
    json: bool,
    /// Only list what can be tried.
    #[arg(long)]
    list: bool,
}

/// Which of the two this is.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Role {
    /// Where to wait (over TCP) for the other.
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present_any = ["list", "peer"])]
    listen: Option<String>,
    /// Where the other waits.
    #[arg(long, value_name = "ADDRESS:PORT")]
    peer: Option<String>,
}

fn mtu(text: &str) -> Result<PathMtu, String> {
    let bytes: usize = text.parse().map_err(|_| "that is no number of bytes".to_owned())?;
    let found = PathMtu::at_most(bytes).filter(|mtu| usize::from(mtu.bytes()) == bytes);
    found.ok_or_else(|| "it is 256, 512, 1024, 2048 or 4096".to_owned())
}

/// Serves a peer, or tries everything with one.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Some(device) = args.device.as_ref().filter(|_| !args.list) else {
        Case::all().for_each(|case| println!("{case}"));
        return Ok(ExitCode::SUCCESS);
    };
    let port = Port::new(Device::open(device)?);
    let port = match args.address {
        Some(address) => port.address(address),
        None => port,
    };
    if let Some(address) = &args.role.listen {
        let listener =
            TcpListener::bind(address).with_context(|| format!("could not listen at {address}"))?;
        eprintln!("waiting at {} for a peer: `adverb peertest --peer …`", listener.local_addr()?);
        let (stream, _) = listener.accept().context("could not take a connection")?;
        peer::serve(port, stream)?;
        return Ok(ExitCode::SUCCESS);
    }
    let address = args.role.peer.as_deref().unwrap_or_default();
    let stream = TcpStream::connect(address).with_context(|| format!("could not connect to {address}"))?;
    let mut settings = Settings::default();
    settings.mtu = args.mtu;
    settings.lossy = args.lossy;
    let session = Session::new(port, stream, settings)?;
    try_all(session, args)
}

fn try_all(mut session: Session, args: &Args) -> Result<ExitCode> {
    let cases: Vec<Case> = if args.only.is_empty() { Case::all().collect() } else { args.only.clone() };
    let (mut failed, mut skipped) = (0, 0);
    for case in &cases {
        let result = session.run(*case)?;
        failed += u32::from(matches!(result.outcome, CaseOutcome::Failed { .. }));
        skipped += u32::from(matches!(result.outcome, CaseOutcome::Skipped { .. }));
        tell(&result, args.json)?;
    }
    session.end()?;
    if !args.json {
        let passed = cases.len() - failed as usize - skipped as usize;
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(result: &CaseResult, json: bool) -> Result<()> {
    let line = if json {
        serde_json::to_string(result)?
    } else {
        // In columns that line up: the longest name is that of `rc-write-imm:forward`.
        format!("{:20}  {result}", result.case.to_string())
    };
    // Whoever follows wants to see each at once.
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
