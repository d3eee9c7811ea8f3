//! Tests of librdmacm with rdma-core's programs.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use support::{paths, process};

use super::check::{DEADLINE, KillOnDrop, address, command, repeatedly, wait};

/// A pair of programs: a server and a client of it.
#[derive(Clone, Copy)]
struct Pair {
    server: &'static [&'static str],
    client: &'static [&'static str],
    /// The client's option before the server's address.
    address_option: &'static str,
    /// Whether the server serves clients until it is killed.
    serves_forever: bool,
}

impl Pair {
    const fn new(
        server: &'static [&'static str],
        client: &'static [&'static str],
        address_option: &'static str,
    ) -> Pair {
        Pair { server, client, address_option, serves_forever: false }
    }

    const fn serving_forever(self) -> Pair {
        Pair { serves_forever: true, ..self }
    }
}

/// The pairs that run one after the other: event channels with data checked, with a queue pair that the program manages,
/// with messages of several packets, the synchronous functions, and many connections.
const PAIRS: [Pair; 5] = [
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
    Pair::new(&["cmtime", "-c", "20", "-p", "7805"], &["cmtime", "-c", "20", "-p", "7805"], "-s")
        .serving_forever(),
];

/// The pair for datagrams. Its port is fixed.
const DATAGRAMS: Pair = Pair::new(&["udaddy"], &["udaddy"], "-s");

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
    run_own(libraries)?;
    for pair in &PAIRS {
        run_pair(libraries, pair, None)?;
    }
    run_pair(libraries, &DATAGRAMS, None)?;
    repeatedly(|seed| run_pair(libraries, &PAIRS[0], Some(seed)))?;
    std::thread::scope(|scope| {
        let runs = CONCURRENT.each_ref().map(|pair| scope.spawn(move || run_pair(libraries, pair, None)));
        runs.into_iter()
            .try_for_each(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Compiles and runs the program beside this file, which is linked against rdma-core's libraries like any other program.
fn run_own(libraries: &Path) -> Result<()> {
    let program = libraries.join("rdmacm-test");
    let source = paths::root().join("tools/xtask/src/preload/rdmacm.c");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source).args(["-lrdmacm", "-libverbs", "-ldl"]);
    process::run(&mut cc)?;
    let mut timeout = command("timeout", libraries, None)?;
    process::run(timeout.arg("60").arg(program).arg(address().to_string()))
}

/// Runs a server and a client, and checks that both succeed.
fn run_pair(libraries: &Path, pair: &Pair, loss_seed: Option<u64>) -> Result<()> {
    let start = Instant::now();
    let (program, options) = (pair.server[0], &pair.server[1..]);
    let mut server = command(program, libraries, loss_seed)?;
    let mut server = KillOnDrop(server.args(options).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    let client = run_client(libraries, pair, loss_seed, &mut server, start)?;
    let server_succeeded = pair.serves_forever || wait(&mut server, start)?;
    let line = pair.client.join(" ");
    ensure!(
        client.status.success() && server_succeeded,
        "{line} failed: the client with {}, the server with {server_succeeded}\n{}{}",
        client.status,
        String::from_utf8_lossy(&client.stdout),
        String::from_utf8_lossy(&client.stderr),
    );
    let loss = if loss_seed.is_some() { " with 1 % loss" } else { "" };
    println!("{line}{loss}: {} ms", start.elapsed().as_millis());
    Ok(())
}

/// Runs the client until the server listens.
fn run_client(
    libraries: &Path,
    pair: &Pair,
    loss_seed: Option<u64>,
    server: &mut KillOnDrop,
    start: Instant,
) -> Result<Output> {
    loop {
        let mut client = command("timeout", libraries, loss_seed)?;
        client.arg("30").args(pair.client).arg(pair.address_option).arg(address().to_string());
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
