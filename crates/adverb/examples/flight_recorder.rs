//! A flight recorder: the device always keeps its last events, and when a request fails, the program prints the events
//! before the failure. Here the peer is a process that is killed.
//!
//! ```text
//! $ cargo run --example flight_recorder              # prints the report
//! $ cargo run --example flight_recorder -- dump.html # also writes the recording as a page
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use adverb::verbs::{
    ConnectOptions, Endpoint, Gid, Psn, Qpn, QueuePair, RecvRequest, SendRequest, SoftDevice, Transport,
};
use adverb_trace::Trace;

const TIMEOUT: Duration = Duration::from_secs(10);

type Outcome<T> = Result<T, adverb::Report>;

fn main() {
    let run = match std::env::args().nth(1).as_deref() {
        Some("--peer") => peer(),
        page => client(page),
    };
    run.unwrap_or_else(|error| {
        eprintln!("error: {error:?}");
        std::process::exit(1)
    });
}

fn client(page: Option<&str>) -> Outcome<()> {
    let device = SoftDevice::new().open()?;
    // The callback runs on a thread of its own when the first request has failed.
    let (sender, receiver) = mpsc::channel();
    let _flight_recorder = device
        .recording()
        .capacity(10_000)
        .stop_on_failure()
        .on_stop(move |recording| drop(sender.send(recording)))
        .start()?;

    let mut peer = Command::new(std::env::current_exe()?)
        .arg("--peer")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let queue_pair = queue_pair(&device)?;
    let mut to_peer = peer.stdin.take().ok_or("the peer has no standard input")?;
    let from_peer = peer.stdout.take().ok_or("the peer has no standard output")?;
    print_endpoint(&mut to_peer, &queue_pair)?;
    connect(&queue_pair, &mut BufReader::new(from_peer))?;

    for number in 1.. {
        let message = queue_pair.protection_domain().allocate_buffer(64)?;
        let sent = queue_pair.post_send(SendRequest::send(message).tag(number))?;
        let completion = queue_pair.send_completion_queue().wait(sent, TIMEOUT)?;
        if let Err(error) = completion.result() {
            println!("message {number}: {error}\n");
            break;
        }
        if number == 3 {
            peer.kill()?;
            peer.wait()?;
        }
    }

    let trace = Trace::new([receiver.recv_timeout(TIMEOUT)?]);
    trace.write_report(&mut std::io::stdout().lock())?;
    if let Some(page) = page {
        trace.write_html(&mut BufWriter::new(File::create(page)?))?;
        eprintln!("wrote {page}");
    }
    Ok(())
}

/// Receives messages until the process is killed.
fn peer() -> Outcome<()> {
    let device = SoftDevice::new().open()?;
    let queue_pair = queue_pair(&device)?;
    for _ in 0..16 {
        queue_pair.post_recv(RecvRequest::new(queue_pair.protection_domain().allocate_buffer(64)?))?;
    }
    connect(&queue_pair, &mut std::io::stdin().lock())?;
    print_endpoint(&mut std::io::stdout(), &queue_pair)?;
    loop {
        std::thread::park();
    }
}

fn queue_pair(device: &adverb::verbs::Device) -> Outcome<QueuePair> {
    let completions = device.completion_queue(32).create()?;
    let domain = device.create_protection_domain()?;
    Ok(domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(16, 16).create()?)
}

/// Writes the queue pair's endpoint as one line, for the other process.
fn print_endpoint(out: &mut impl Write, queue_pair: &QueuePair) -> Outcome<()> {
    let Endpoint { gid, qpn, psn, .. } = queue_pair.endpoint();
    writeln!(out, "{} {} {}", gid.ip(), qpn.get(), psn.get())?;
    out.flush()?;
    Ok(())
}

/// Reads the endpoint of the other process's queue pair, and connects to it.
fn connect(queue_pair: &QueuePair, input: &mut impl BufRead) -> Outcome<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let [address, qpn, psn] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err("the other process ended before it was connected".into());
    };
    let address: std::net::IpAddr = address.parse()?;
    let endpoint =
        Endpoint::new(Gid::from(address), Qpn::truncate(qpn.parse()?), Psn::wrapping(psn.parse()?));
    // Give up after about 4 × 67 ms without an acknowledgement.
    let options = ConnectOptions::new().ack_timeout(14).retry_count(3);
    queue_pair.connect_with(&endpoint, &options)?;
    Ok(())
}
