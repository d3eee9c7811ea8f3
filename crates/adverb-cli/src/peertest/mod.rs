//! `adverb peertest`: tests two devices against each other.

use std::io::{self, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::ExitCode;

use adverb::verbs::{Device, PathMtu};
use adverb_conformance::peer::{self, Case, CaseOutcome, CaseResult, Port, Session, Settings};
use anyhow::{Context, Result};

use crate::json;

/// The options of `adverb peertest`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two processes, usually on two machines, each open a device. One listens; the
other connects over TCP and chooses the test cases. The cases run between the
devices: every transport and operation in both directions, with zero-length
messages, single packets and many packets. Every received byte is compared.

  adverb peertest --device mlx5_0 --listen 192.0.2.7:7472
  adverb peertest --device mlx5_1 --peer 192.0.2.7:7472

The exit status is 0 if no case failed. Any host that connects can run the tests
on the listener's device, so listen only on a trusted network.")]
pub(crate) struct Args {
    /// The name of the device: see `adverb devices`.
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    device: Option<String>,
    /// The device's address to use, if it has several.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    #[command(flatten)]
    role: Role,
    /// The path MTU of connections, and the maximum size of a datagram. The default is the smaller of the two devices'
    /// active MTUs.
    #[arg(long, value_name = "BYTES", value_parser = mtu, requires = "peer")]
    mtu: Option<PathMtu>,
    /// Allow lost messages on unreliable transports, for a network that loses packets. Messages that arrive must be
    /// complete.
    #[arg(long, requires = "peer")]
    lossy: bool,
    /// Run only this case, such as `rc-write:forward`. The option can be repeated.
    #[arg(long, value_name = "OPERATION:DIRECTION", requires = "peer")]
    only: Vec<Case>,
    /// Print one line of JSON per case, and nothing else. The fields keep their names and meanings while `version` is 1.
    #[arg(long, requires = "peer")]
    json: bool,
    /// List the cases and exit.
    #[arg(long)]
    list: bool,
}

/// The role of this process.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Role {
    /// Listen for the peer on this TCP address.
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present_any = ["list", "peer"])]
    listen: Option<String>,
    /// Connect to the listening peer at this TCP address.
    #[arg(long, value_name = "ADDRESS:PORT")]
    peer: Option<String>,
}

fn mtu(text: &str) -> Result<PathMtu, String> {
    let bytes: usize = text.parse().map_err(|_| "the MTU must be a number of bytes".to_owned())?;
    let found = PathMtu::at_most(bytes).filter(|mtu| usize::from(mtu.bytes()) == bytes);
    found.ok_or_else(|| "the MTU must be 256, 512, 1024, 2048 or 4096".to_owned())
}

/// Serves a peer, or runs the cases with one.
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
            TcpListener::bind(address).with_context(|| format!("could not listen on {address}"))?;
        eprintln!(
            "listening on {}: run `adverb peertest --peer ADDRESS` on the other machine",
            listener.local_addr()?
        );
        let (stream, _) = listener.accept().context("could not accept a connection")?;
        peer::serve(port, stream)?;
        return Ok(ExitCode::SUCCESS);
    }
    let address = args.role.peer.as_deref().unwrap_or_default();
    let stream = TcpStream::connect(address).with_context(|| format!("could not connect to {address}"))?;
    let mut settings = Settings::default();
    settings.mtu = args.mtu;
    settings.lossy = args.lossy;
    let session = Session::new(port, stream, settings)?;
    run_all(session, args)
}

fn run_all(mut session: Session, args: &Args) -> Result<ExitCode> {
    let cases: Vec<Case> = if args.only.is_empty() { Case::all().collect() } else { args.only.clone() };
    let (mut failed, mut skipped) = (0, 0);
    for case in &cases {
        let result = session.run(*case)?;
        failed += u32::from(matches!(result.outcome, CaseOutcome::Failed { .. }));
        skipped += u32::from(matches!(result.outcome, CaseOutcome::Skipped { .. }));
        print_result(&result, args.json)?;
    }
    session.end()?;
    if !args.json {
        let passed = cases.len() - failed as usize - skipped as usize;
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_result(result: &CaseResult, is_json: bool) -> Result<()> {
    let line = if is_json {
        json::line("peertest", result)?
    } else {
        // The width is that of `rc-write-imm:forward`. Results of longer names begin further right.
        format!("{:20}  {result}", result.case.to_string())
    };
    // Each result is shown at once.
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
