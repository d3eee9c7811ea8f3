//! `cargo xtask examples`: the examples of connections, clusters and traces, run with the commands that they document.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use support::{paths, process, programs};

/// The examples.
const NAMES: [&str; 7] = [
    "echo",
    "remote_counter",
    "parameter_read",
    "file_transfer",
    "from_rdmalib",
    "seed_trace",
    "flight_recorder",
];

/// Runs each example as a server and as a client, on the software NIC.
pub(crate) fn run() -> Result<()> {
    let directory = paths::cache()?.join("examples");
    fs::create_dir_all(&directory)?;
    let (original, copy) = (directory.join("original"), directory.join("copy"));
    fs::write(&original, (0..5_000_001u32).map(|at| (at ^ at >> 8) as u8).collect::<Vec<_>>())?;
    let (from, to) = (original.display().to_string(), copy.display().to_string());

    let programs: HashMap<&str, String> = NAMES.into_iter().zip(programs::examples(NAMES)?).collect();

    // Name, arguments of the server and of the client (ADDRESS stands for the server's address), and a part of the
    // client's expected output.
    let examples: [(&str, &[&str], &[&str], &str); 4] = [
        ("echo", &["serve", "ADDRESS"], &["ADDRESS"], "1048576 bytes: "),
        (
            "remote_counter",
            &["serve", "ADDRESS"],
            &["ADDRESS"],
            "the counter was 1000 before the last increment",
        ),
        ("parameter_read", &["serve", "ADDRESS"], &["ADDRESS"], ": consistent"),
        (
            "file_transfer",
            &["receive", "ADDRESS", &to],
            &["send", "ADDRESS", &from],
            "sent 5000001 bytes in ",
        ),
    ];
    for (name, server, client, expected) in examples {
        let program = &programs[name];
        let (mut server, address) =
            serve(program, server).with_context(|| format!("the server of the example {name} failed"))?;
        // Each example takes far less than a minute.
        let mut client = command("timeout", &[&["60", program], client].concat(), &address);
        let printed =
            process::text(&mut client).with_context(|| format!("the client of the example {name} failed"))?;
        ensure!(
            printed.contains(expected),
            "the output of the example {name} does not contain `{expected}`:\n{printed}"
        );
        println!("{name}: {}", printed.lines().last().unwrap_or_default());
        if name == "file_transfer" {
            ensure!(server.0.wait()?.success(), "the receiver failed");
        }
    }
    ensure!(fs::read(&original)? == fs::read(&copy)?, "the transferred file differs from the original");
    cluster(&programs["from_rdmalib"])?;
    traces(&programs["seed_trace"], &programs["flight_recorder"], &directory.join("traces"))
}

/// Runs the example of a cluster: two servers, each a process with an address of its own.
fn cluster(program: &str) -> Result<()> {
    // Other runs of this command have other process ids, and so other addresses.
    let pid = std::process::id();
    let address =
        |server| format!("127.{}.{}.{}:7471", 64 + 2 * (pid >> 16 & 31) + server, pid >> 8 & 255, pid & 255);
    let servers = format!("{},{}", address(0), address(1));
    let mut server = Command::new(program);
    let _server = Server(server.args(["1", &servers]).stdout(Stdio::null()).spawn()?);
    let mut client = Command::new("timeout");
    let printed = process::text(client.args(["60", program, "0", &servers]))
        .context("server 0 of the example from_rdmalib failed")?;
    let expected = "1000 requests and answers, and 1000 READs of 40 bytes";
    ensure!(
        printed.contains(expected),
        "the output of from_rdmalib does not contain `{expected}`:\n{printed}"
    );
    println!("from_rdmalib: {expected}");
    Ok(())
}

/// Runs the examples of traces, and checks their output and their files.
fn traces(seed_trace: &str, flight_recorder: &str, directory: &Path) -> Result<()> {
    let listing = output(seed_trace, &[&directory.display().to_string()])?;
    for expected in [
        "Opcode: RC SEND only (0x04)",
        "Opcode: RC WRITE only (0x0a)",
        "Opcode: RC READ request (0x0c)",
        "Opcode: RC READ response only (0x10)",
        "Opcode: RC CAS (0x13)",
        "Opcode: RC ATOMIC ACK (0x12)",
        "Opcode: RC ACK (0x11)",
        "Syndrome: 0x62",
        "Status: IBV_WC_REM_ACCESS_ERR (10)",
        "Work Queue Entry (WQE) for RECEIVE",
        "completion notification",
    ] {
        ensure!(
            listing.contains(expected),
            "the listing of seed_trace does not contain `{expected}`:\n{listing}"
        );
    }
    for file in ["trace.html", "trace.jsonl", "trace.json"] {
        ensure!(fs::metadata(directory.join(file))?.len() > 1000, "{file} is nearly empty");
    }
    let capture = directory.join("trace.pcapng");
    let fields = ["-T", "fields", "-e", "frame.comment", "-e", "_ws.malformed"];
    let comments = process::text(Command::new("tshark").arg("-r").arg(&capture).args(fields))?;
    // Five requests and their five responses, each at both ends.
    ensure!(comments.lines().count() == 20, "tshark shows {} packets:\n{comments}", comments.lines().count());
    ensure!(comments.lines().all(|line| line.contains("qp 0x")), "a packet has no comment:\n{comments}");
    ensure!(!comments.contains("alformed"), "tshark finds a malformed packet:\n{comments}");
    println!("seed_trace: {} lines, 20 packets with comments", listing.lines().count());

    let report = output(flight_recorder, &[])?;
    for expected in ["IBV_WC_RETRY_EXC_ERR (12)", "peer:", "acknowledged:", "retransmissions: 3", "timeouts:"]
    {
        ensure!(
            report.contains(expected),
            "the report of flight_recorder does not contain `{expected}`:\n{report}"
        );
    }
    println!("flight_recorder: {}", report.lines().next().unwrap_or_default());
    Ok(())
}

/// Returns the output of an example that needs no server.
fn output(program: &str, words: &[&str]) -> Result<String> {
    let mut command = command("timeout", &[&["60", program], words].concat(), "");
    process::text(&mut command).with_context(|| format!("the example {program} failed"))
}

/// A server process; killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Errors are expected: the server may already have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on a free port, and returns its address.
fn serve(program: &str, words: &[&str]) -> Result<(Server, String)> {
    let mut server = Server(command(program, words, "127.0.0.1:0").stdout(Stdio::piped()).spawn()?);
    let mut output = BufReader::new(server.0.stdout.take().context("the server's output is not captured")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    let address =
        line.trim().strip_prefix("listening at ").context("the server's first line is not its address")?;
    let address = address.to_owned();
    // Keep reading the pipe, so that the server can print more.
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    Ok((server, address))
}

fn command(program: &str, words: &[&str], address: &str) -> Command {
    let mut command = Command::new(program);
    command.args(words.iter().map(|word| word.replace("ADDRESS", address)));
    command
}
