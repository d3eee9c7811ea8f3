//! Tests of librdmacm with rdma-core's programs.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::check::{DEADLINE, Stopped, address, command, wait};

/// A pair of programs: a server and a client of it.
#[derive(Clone, Copy)]
struct Pair {
    server: &'static [&'static str],
    client: &'static [&'static str],
    /// The client's option before the server's address.
    address_option: &'static str,
    /// The percentage of lost packets.
    loss: Option<&'static str>,
    /// Whether the server serves clients until it is killed.
    serves_forever: bool,
}

impl Pair {
    const fn new(
        server: &'static [&'static str],
        client: &'static [&'static str],
        address_option: &'static str,
    ) -> Pair {
        Pair { server, client, address_option, loss: None, serves_forever: false }
    }

    const fn with_loss(self) -> Pair {
        Pair { loss: Some("1"), ..self }
    }

    const fn serving_forever(self) -> Pair {
        Pair { serves_forever: true, ..self }
    }
}

/// The pairs that run one after the other: event channels with data checked, with a queue pair that the program manages,
/// with messages of several packets, the synchronous functions, datagrams, and many connections.
const PAIRS: [Pair; 7] = [
    Pair::new(
        &["rping", "-s", "-V", "-C", "20", "-p", "7801"],
        &["rping", "-c", "-V", "-C", "20", "-p", "7801"],
        "-a",
    ),
    Pair::new(
        &["rping", "-s", "-q", "-V", "-C", "5", "-p", "7802"],
        &["rping", "-c", "-q", "-V", "-C", "5", "-p", "7802"],
        "-a",
    ),
    Pair::new(
        &["ucmatose", "-c", "4", "-C", "5", "-S", "9000", "-p", "7803"],
        &["ucmatose", "-c", "4", "-C", "5", "-S", "9000", "-p", "7803"],
        "-s",
    ),
    Pair::new(&["rdma_server", "-p", "7804"], &["rdma_client", "-p", "7804"], "-s"),
    // Its port is fixed.
    Pair::new(&["udaddy"], &["udaddy"], "-s"),
    Pair::new(&["cmtime", "-c", "20", "-p", "7805"], &["cmtime", "-c", "20", "-p", "7805"], "-s")
        .serving_forever(),
    Pair::new(
        &["rping", "-s", "-V", "-C", "20", "-p", "7806"],
        &["rping", "-c", "-V", "-C", "20", "-p", "7806"],
        "-a",
    )
    .with_loss(),
];

/// The pairs that run at the same time.
const CONCURRENT: [Pair; 3] = [
    Pair::new(
        &["rping", "-s", "-V", "-C", "5", "-p", "7811"],
        &["rping", "-c", "-V", "-C", "5", "-p", "7811"],
        "-a",
    ),
    Pair::new(
        &["rping", "-s", "-V", "-C", "5", "-p", "7812"],
        &["rping", "-c", "-V", "-C", "5", "-p", "7812"],
        "-a",
    ),
    Pair::new(&["rdma_server", "-p", "7813"], &["rdma_client", "-p", "7813"], "-s"),
];

/// Runs the programs.
pub(super) fn run(libraries: &Path) -> Result<()> {
    for pair in &PAIRS {
        run_pair(libraries, pair)?;
    }
    std::thread::scope(|scope| {
        let runs = CONCURRENT.each_ref().map(|pair| scope.spawn(move || run_pair(libraries, pair)));
        runs.into_iter()
            .try_for_each(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Runs a server and a client, and checks that both succeed.
fn run_pair(libraries: &Path, pair: &Pair) -> Result<()> {
    let start = Instant::now();
    let (program, options) = (pair.server[0], &pair.server[1..]);
    let mut server = command(program, libraries, pair.loss)?;
    let mut server = Stopped(server.args(options).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    let client = run_client(libraries, pair, &mut server, start)?;
    let server_succeeded = pair.serves_forever || wait(&mut server, start)?;
    let line = pair.client.join(" ");
    ensure!(
        client.status.success() && server_succeeded,
        "{line} failed: the client with {}, the server with {server_succeeded}\n{}{}",
        client.status,
        String::from_utf8_lossy(&client.stdout),
        String::from_utf8_lossy(&client.stderr),
    );
    let loss = pair.loss.map(|loss| format!(" with {loss} % loss")).unwrap_or_default();
    println!("{line}{loss}: {} ms", start.elapsed().as_millis());
    Ok(())
}

/// Runs the client until the server listens.
fn run_client(libraries: &Path, pair: &Pair, server: &mut Stopped, start: Instant) -> Result<Output> {
    loop {
        let mut client = command("timeout", libraries, pair.loss)?;
        client.arg("60").args(pair.client).arg(pair.address_option).arg(address().to_string());
        let output = client.stdin(Stdio::null()).output()?;
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8_lossy(&text);
        // The clients' texts if no process listens.
        let is_refused = ["REJECTED", "UNREACHABLE", "refused"].iter().any(|word| text.contains(word));
        if output.status.success() || !is_refused || server.0.try_wait()?.is_some() {
            return Ok(output);
        }
        ensure!(
            start.elapsed() < DEADLINE,
            "the server of {} did not listen in time:\n{text}",
            pair.client.join(" ")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
