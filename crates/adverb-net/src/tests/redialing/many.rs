//! Many connections whose lanes break at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{DESCRIPTOR_LOCK, devices};
use crate::driver::Driver;
use crate::session::tests::{RECONNECT_TIMEOUT, options};

/// The short form of `cargo xtask redial`, which sets the number of connections.
#[test]
fn connections_that_break_at_once_all_resume() {
    let _lock = DESCRIPTOR_LOCK.lock();
    let count = std::env::var("ADVERB_CONNECTIONS").map_or(50, |count| count.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(break_many(count));
}

async fn break_many(count: usize) {
    let devices = devices();
    let [connector, listener] = devices.each_ref().map(|device| {
        options(device).recv_ring_size(4096).max_outstanding_writes(4).connect_timeout(RECONNECT_TIMEOUT)
    });
    let listener = crate::Listener::builder().options(&listener).bind("127.0.0.1:0").await.unwrap();
    let connector = crate::Connector::new().options(&connector);
    let mut drivers: Vec<Arc<Driver>> = Vec::new();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (client, server) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        drivers.extend([client.driver(), server.driver()].map(Arc::clone));
        clients.push(client);
        servers.push(tokio::spawn(async move {
            while let Some(message) = server.recv().await.unwrap() {
                server.send(message).await.unwrap();
            }
        }));
    }
    let sampler = ThreadSampler::start();
    let before = threads().len();
    let start = Instant::now();
    for driver in &drivers {
        driver.fail_lane();
    }
    let broken = start.elapsed();
    let exchange = |client: crate::Connection| async move {
        client.send(b"ping").await.unwrap();
        assert_eq!(&client.recv().await.unwrap().unwrap()[..], b"ping");
        client
    };
    let exchanges = Vec::from_iter(clients.into_iter().map(|client| tokio::spawn(exchange(client))));
    let mut clients = Vec::new();
    for exchange in exchanges {
        clients.push(exchange.await.unwrap());
    }
    let resumed = start.elapsed();
    let lanes = drivers.iter().filter(|driver| driver.lane_number() > 0).count();
    println!("{count} connections: all lanes broken after {broken:?}, all resumed after {resumed:?}");
    let (peak, redialers) = sampler.stop();
    println!("threads: {before} before, at most {peak} during, {} after", threads().len());
    assert_eq!(lanes, drivers.len(), "each side has another lane");
    // Threads that other tests needed may be about to exit.
    assert!(redialers < 10, "one thread redials all connections, not {redialers}");
    servers.iter().for_each(|server| server.abort());
}

/// Returns the names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

/// A thread that samples the number of threads.
struct ThreadSampler {
    thread: std::thread::JoinHandle<()>,
    shared: Arc<Samples>,
}

#[derive(Default)]
struct Samples {
    is_over: AtomicBool,
    threads: AtomicUsize,
    redialers: AtomicUsize,
}

impl ThreadSampler {
    fn start() -> ThreadSampler {
        let shared = Arc::new(Samples::default());
        let samples = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !samples.is_over.load(Ordering::Relaxed) {
                let threads = threads();
                samples.threads.fetch_max(threads.len(), Ordering::Relaxed);
                let redials = |name: &&String| name.starts_with("adverb-redial");
                samples.redialers.fetch_max(threads.iter().filter(redials).count(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        ThreadSampler { thread, shared }
    }

    /// Returns the maximum number of threads, and that of threads that redial.
    fn stop(self) -> (usize, usize) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        (self.shared.threads.load(Ordering::Relaxed), self.shared.redialers.load(Ordering::Relaxed))
    }
}
