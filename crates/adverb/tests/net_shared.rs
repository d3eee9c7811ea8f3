//! One region that a listener exposes to many connections. The test is short by default. Environment variables make it
//! longer:
//!
//! ```text
//! ADVERB_CONNECTIONS=1000 ADVERB_MEBIBYTES=1024 \
//!     cargo test -p adverb --release --test net_shared -- --nocapture
//! ```

#![cfg(feature = "soft")]

#[path = "common/connections.rs"]
mod connections;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::net::{Options, RemoteAccess, SharedRegion};

/// Returns a number from an environment variable, or the default.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("the variable is a number"))
}

/// Returns the bytes of this process's memory that are resident.
fn resident_bytes() -> i64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: i64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Connects clients one after the other. Returns both ends, the clients first.
fn connect(listener: &Listener, options: &Options, count: usize) -> (Vec<Connection>, Vec<Connection>) {
    let (address, connector): (SocketAddr, _) = (listener.local_addr(), Connector::new().options(options));
    scope(|scope| {
        let servers =
            scope.spawn(|| (0..count).map(|_| listener.accept().unwrap()).collect::<Vec<Connection>>());
        let clients = (0..count).map(|_| connector.connect(address).unwrap()).collect();
        (clients, servers.join().unwrap())
    })
}

/// Reads a word of "chunks", which contains its offset.
fn read(client: &Connection, at: u64) -> adverb::Result<()> {
    let bytes = client.remote_region("chunks")?.read(at..at + 8)?;
    assert_eq!(bytes[..], at.to_le_bytes());
    Ok(())
}

#[test]
fn one_region_is_exposed_to_many_connections() {
    let (count, mebibytes) = (number("ADVERB_CONNECTIONS", 50), number("ADVERB_MEBIBYTES", 64));
    let options = connections::options().recv_ring_size(16 << 10).max_outstanding_writes(8);
    let device = connections::device();
    let regions = || device.resource_counts().map(|counts| (counts.regions, counts.windows));

    // The same connections without a region, for comparison.
    let plain =
        Listener::builder().options(&options.clone().shared_domain(true)).bind("127.0.0.1:0").unwrap();
    let (before, start) = (resident_bytes(), Instant::now());
    let ends = connect(&plain, &options, count);
    println!(
        "{count} connections without a region: {:?} and {} KiB of memory each, both ends together",
        start.elapsed() / count as u32,
        (resident_bytes() - before) / count as i64 / 1024
    );
    println!("regions and windows of the device: {:?}", regions());
    drop((plain, ends));

    let chunks = SharedRegion::allocate(mebibytes << 20).unwrap();
    for at in (0..chunks.len()).step_by(4096) {
        chunks.write(at, &(at as u64).to_le_bytes()).unwrap();
    }
    let (before, registered, start) = (resident_bytes(), regions(), Instant::now());
    let listener = Listener::builder().options(&options).expose_region("chunks", &chunks, RemoteAccess::READ);
    let listener = listener.bind("127.0.0.1:0").unwrap();
    println!("bound, with a region of {mebibytes} MiB, in {:?}", start.elapsed());
    let start = Instant::now();
    let (clients, servers) = connect(&listener, &options, count);
    println!(
        "{count} connections with the region: {:?} and {} KiB of memory each, both ends together",
        start.elapsed() / count as u32,
        (resident_bytes() - before) / count as i64 / 1024
    );
    println!("regions and windows of the device: {registered:?} before, {:?} now", regions());
    let start = Instant::now();
    for (number, client) in clients.iter().enumerate() {
        read(client, (number as u64 * 4096) % chunks.len() as u64).unwrap();
    }
    println!("one read by each of them: {:?} each", start.elapsed() / count as u32);

    // One peer loses its access while the others read.
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let (withdrawn, others) = clients.split_first().unwrap();
    scope(|scope| {
        for part in others.chunks(others.len().div_ceil(2)) {
            let (is_over, reads) = (&is_over, &reads);
            scope.spawn(move || {
                for client in part.iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    read(client, 4096).unwrap();
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while reads.load(Ordering::Relaxed) < others.len() as u64 {
            std::thread::yield_now();
        }
        let region = withdrawn.remote_region("chunks").unwrap();
        let start = Instant::now();
        assert!(servers[0].withdraw("chunks"));
        println!("withdrawn from one peer in {:?}", start.elapsed());
        servers[0].send(b"withdrawn").unwrap();
        assert_eq!(&withdrawn.recv().unwrap().unwrap()[..], b"withdrawn");
        let error = region.read(0..8).unwrap_err().to_string();
        assert!(error.contains("withdrawn"), "{error}");
        let at_withdrawal = reads.load(Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(60);
        while reads.load(Ordering::Relaxed) < at_withdrawal + others.len() as u64 {
            assert!(Instant::now() < deadline, "the other peers do not read");
            std::thread::yield_now();
        }
        println!("{} reads by the other peers during and after that", reads.load(Ordering::Relaxed));
        is_over.store(true, Ordering::Relaxed);
    });

    let start = Instant::now();
    chunks.withdraw();
    println!("withdrawn from all peers in {:?}: {:?}", start.elapsed(), regions());
    let start = Instant::now();
    drop((clients, servers));
    println!("dropped in {:?} per connection", start.elapsed() / count as u32);
}
