//! One of the processes: a device, and a session with each of the others.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adverb::verbs::{Device, FaultConfig, SoftDevice};
use adverb_wire::random::SplitMix64;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::session::{self, Ended, Role};

/// The rates of lost, duplicated, corrupted and delayed packets, each in packets per million.
pub(crate) const FAULT_PPM: u32 = 20_000;

/// The TCP port on which the processes listen.
const PORT: u16 = 4791;

/// The report that a process prints every second.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Rounds of all sessions, as their clients count them.
    pub(crate) rounds: u64,
    /// Reliable requests that were checked.
    pub(crate) operations: u64,
    /// Bytes that were checked.
    pub(crate) bytes: u64,
    /// Messages and datagrams that were sent without acknowledgements.
    pub(crate) unreliable_sent: u64,
    /// Unacknowledged messages and datagrams that arrived.
    pub(crate) unreliable_received: u64,
    /// Sessions that were begun.
    pub(crate) sessions: u64,
    /// The time until a lost peer was detected, in milliseconds, for each lost peer.
    pub(crate) losses: Vec<f64>,
    /// The resident memory of the process, in KiB.
    pub(crate) resident: u64,
    /// The number of the device's objects and timers.
    pub(crate) resource_count: u64,
    /// The device's counters.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Rounds with each peer, as the client counts them.
    pub(crate) rounds_by_peer: BTreeMap<u8, u64>,
}

/// The state that all threads of a process share.
pub(crate) struct Worker {
    pub(crate) device: Device,
    pub(crate) report: Mutex<Report>,
    pub(crate) is_stopping: AtomicBool,
}

/// Runs until the standard input ends.
pub(crate) fn run(index: u8, count: u8, network: Ipv4Addr, seed: u64) -> Result<()> {
    let address = address(network, index);
    let each = FAULT_PPM;
    let faults = FaultConfig {
        loss_ppm: each,
        duplication_ppm: each,
        corruption_ppm: each,
        delay_ppm: each,
        ..FaultConfig::new(seed ^ u64::from(index))
    };
    let device =
        SoftDevice::at_addr(IpAddr::V4(address)).faults(faults).open().context("opening the device")?;
    let initial_count = resource_count(&device);
    let worker = Arc::new(Worker { device, report: Mutex::default(), is_stopping: AtomicBool::new(false) });
    let listener = TcpListener::bind((address, PORT)).context("listening")?;
    listener.set_nonblocking(true)?;
    let mut threads = Vec::new();
    for peer in index + 1..count {
        let (worker, random) = (Arc::clone(&worker), SplitMix64(seed.wrapping_mul(0x1000) + u64::from(peer)));
        let addr = SocketAddr::from((self::address(network, peer), PORT));
        threads.push(std::thread::spawn(move || client(&worker, peer, addr, random)));
    }
    let end = {
        let worker = Arc::clone(&worker);
        std::thread::spawn(move || {
            // The input ends when the coordinator closes it.
            _ = io::stdin().read_to_end(&mut Vec::new());
            worker.is_stopping.store(true, Ordering::Relaxed);
        })
    };
    let mut reported_at = Instant::now();
    while !worker.is_stopping.load(Ordering::Relaxed) || threads.iter().any(|thread| !thread.is_finished()) {
        match listener.accept() {
            Ok((stream, _)) => {
                let worker = Arc::clone(&worker);
                threads.push(std::thread::spawn(move || server(&worker, stream)));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
        for done in threads.extract_if(.., |thread| thread.is_finished()) {
            done.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        if reported_at.elapsed() >= Duration::from_secs(1) {
            reported_at = Instant::now();
            worker.print_report()?;
        }
    }
    _ = end.join();
    // All resources must have been released.
    worker.print_report()?;
    let left = resource_count(&worker.device);
    ensure!(
        left == initial_count,
        "the device has {left} resources after all sessions, and had {initial_count} before"
    );
    Ok(())
}

/// Runs sessions with a peer, one after the other.
fn client(worker: &Worker, peer: u8, addr: SocketAddr, mut random: SplitMix64) -> Result<()> {
    while !worker.is_stopping.load(Ordering::Relaxed) {
        let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(200)) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let seed = random.next_u64();
        run_session(worker, stream, Role::Client { peer, seed })
            .with_context(|| format!("with process {peer}"))?;
    }
    Ok(())
}

/// Runs one session with the client that connected.
fn server(worker: &Worker, stream: TcpStream) -> Result<()> {
    run_session(worker, stream, Role::Server).context("as a server")
}

fn run_session(worker: &Worker, stream: TcpStream, role: Role) -> Result<()> {
    let ended = session::run(worker, stream, role)?;
    let mut report = worker.report.lock().expect("no thread panics");
    report.sessions += 1;
    if let Ended::Lost(after) = ended {
        report.losses.push(after.as_secs_f64() * 1000.0);
    }
    Ok(())
}

impl Worker {
    fn print_report(&self) -> Result<()> {
        let mut report = self.report.lock().expect("no thread panics").clone();
        report.resident = resident()?;
        report.resource_count = resource_count(&self.device);
        report.counters =
            self.device.counters(1)?.iter().map(|(name, count)| (name.to_owned(), count)).collect();
        println!("REPORT {}", serde_json::to_string(&report)?);
        Ok(())
    }
}

/// Returns the number of the device's objects and timers.
fn resource_count(device: &Device) -> u64 {
    let counts = device.resource_counts().unwrap_or_default();
    let counts = [
        counts.queue_pairs,
        counts.timers,
        counts.regions,
        counts.completions,
        counts.responses,
        counts.windows,
    ];
    counts.into_iter().sum::<usize>() as u64
}

/// Returns the resident memory of this process, in KiB.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Returns the address of a process.
fn address(network: Ipv4Addr, index: u8) -> Ipv4Addr {
    let [a, b, c, _] = network.octets();
    Ipv4Addr::new(a, b, c, index + 1)
}
