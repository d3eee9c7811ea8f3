//! One of the processes: a server that echoes messages, and a client that the coordinator commands.

use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use adverb::blocking::{Connection, Connector, Listener};
use adverb::net::{Bootstrap, Options};
use adverb::verbs::Device;
use anyhow::{Result, bail, ensure};

/// The timeout of every wait of a process.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a process: prints `ready PORT`, and `done` or `failed REASON` for each line `exchange PORT COUNT BOOTSTRAP` that
/// it reads, until its input ends.
pub(crate) fn run(address: IpAddr) -> Result<()> {
    let device = Device::open(&format!("soft:{address}"))?;
    let gid = device.gids()?[0].gid;
    ensure!(gid.udp_addr() == SocketAddr::new(address, 4791), "the device has the GID {gid}");
    let options = Options::new().device(&device).connect_timeout(TIMEOUT).timeout(TIMEOUT);
    let listener = Listener::builder().options(&options).bind((address, 0))?;
    print_line(&format!("ready {}", listener.local_addr().port()))?;
    thread::spawn(move || {
        while let Ok(connection) = listener.accept() {
            thread::spawn(move || echo(&connection));
        }
    });
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let ["exchange", port, count, bootstrap] = words[..] else { bail!("unknown command: {line}") };
        let options = options.clone().bootstrap(match bootstrap {
            "tcp" => Bootstrap::Tcp,
            _ => Bootstrap::ConnectionManager,
        });
        let peer = SocketAddr::new(address, port.parse()?);
        match exchange(&options, peer, count.parse()?) {
            Ok(()) => print_line("done")?,
            Err(error) => print_line(&format!("failed {bootstrap}: {error:#}"))?,
        }
    }
    Ok(())
}

/// Prints a line for the coordinator.
pub(crate) fn print_line(line: &str) -> Result<()> {
    // The test harness prints other lines to the same output.
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{}{line}", super::coordinator::MARK)?;
    Ok(out.flush()?)
}

/// Returns messages to their sender until the connection ends.
fn echo(connection: &Connection) {
    while let Ok(Some(message)) = connection.recv() {
        if connection.send(&message[..]).is_err() {
            break;
        }
    }
}

/// Sends messages to another process, and checks that they return.
fn exchange(options: &Options, peer: SocketAddr, count: u32) -> Result<()> {
    let connection = Connector::new().options(options).connect(peer)?;
    for number in 0..count {
        // Some messages are eager, and some are rendezvous messages.
        let length = if number % 16 == 15 { 100_000 } else { 64 + number as usize % 1000 };
        let message: Vec<u8> =
            (0..length).map(|index| (index as u32).wrapping_mul(number + 7) as u8).collect();
        connection.send(&message)?;
        let Some(reply) = connection.recv_timeout(TIMEOUT)? else { bail!("the connection ended early") };
        ensure!(reply[..] == message[..], "message {number} was altered");
    }
    connection.close()?;
    Ok(())
}
