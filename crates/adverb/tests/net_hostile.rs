//! Hostile bytes sent to a listener, over TCP and through the connection manager, with a key and without, while other
//! connections work and new ones are established.
//!
//! The test runs for a few seconds by default. An environment variable sets the time:
//!
//! ```text
//! ADVERB_SECONDS=300 cargo test -p adverb --release --test net_hostile -- --nocapture
//! ```

#![cfg(feature = "soft")]

mod common;
#[path = "common/greeting.rs"]
mod greeting;
#[path = "common/random.rs"]
mod random;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::net::{Key, Options};
use adverb::verbs::{Device, SoftDevice, cm};
use common::End;
use greeting::greeting;
use random::Random;

/// The number of TCP connections that one attacker holds open.
const MAX_HELD: usize = 16;
const TCP_ATTACKERS: usize = 2;
const MANAGER_ATTACKERS: usize = 1;
/// The descriptors of one pending handshake: its socket, its epoll instance, and those of its completion queue.
const HANDSHAKE_FDS: usize = 8;
/// The time after which too low counts, or resources that are still in use, are a failure.
const MAX_EXTRA_TIME: Duration = Duration::from_secs(60);

/// The resources of this process.
#[derive(Clone, Copy, Debug)]
struct Usage {
    threads: usize,
    fds: usize,
    resident_kib: usize,
}

impl Usage {
    fn now() -> Usage {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
        Usage { threads: field("Threads:"), fds, resident_kib: field("VmRSS:") }
    }
}

/// The counts of attacks and of correct operations.
#[derive(Default, Debug)]
struct Counts {
    tcp: AtomicUsize,
    manager: AtomicUsize,
    echoes: AtomicUsize,
    connections: AtomicUsize,
}

impl Counts {
    /// Whether each kind of attack and of correct traffic has happened often enough.
    fn are_sufficient(&self) -> bool {
        let minimums = [(&self.tcp, 200), (&self.manager, 50), (&self.connections, 2), (&self.echoes, 10)];
        minimums.iter().all(|(counter, minimum)| counter.load(Ordering::Relaxed) >= *minimum)
    }
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Sends every received message back, until the peer closes the connection.
fn echo(connection: &Connection) {
    while let Some(message) = connection.recv().unwrap() {
        connection.send(message).unwrap();
    }
}

/// Sends a message and checks its echo.
fn check_echo(connection: &Connection, number: usize) {
    let len = if number.is_multiple_of(16) { 100_000 } else { number % 2000 };
    let message = vec![number as u8; len];
    connection.send(&message[..]).unwrap();
    assert!(connection.recv().unwrap().unwrap()[..] == message[..], "message {number}");
}

/// Truncates a greeting, changes a bit or a part of it, or replaces it.
fn mutate(random: &mut Random, mut bytes: Vec<u8>) -> Vec<u8> {
    match random.below(5) {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        2 => {
            let at = random.below(bytes.len());
            bytes[at..].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        }
        3 => bytes = (0..random.below(400)).map(|_| random.below(256) as u8).collect(),
        // Unchanged: a replay of the greeting, of a queue pair that doesn't respond.
        _ => {}
    }
    bytes
}

/// Sends hostile greetings over TCP until `stop` is set, each in one write or one byte at a time.
fn attack_over_tcp(addr: SocketAddr, valid: &[u8], seed: u64, stop: &AtomicBool, counts: &Counts) {
    let mut random = Random(seed);
    let mut held: VecDeque<(TcpStream, VecDeque<u8>)> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(addr).unwrap();
        let bytes = mutate(&mut random, valid.to_vec());
        count(&counts.tcp);
        match random.below(8) {
            0 => held.push_back((stream, bytes.into())),
            method => {
                // The listener may reject the greeting and close the connection before it has received all bytes.
                let _ = stream.write_all(&bytes);
                if method < 3 {
                    let _ = stream.shutdown(Shutdown::Write);
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
                    let _ = stream.read(&mut [0; 256]);
                } else if method == 3 {
                    held.push_back((stream, VecDeque::new()));
                }
            }
        }
        for (stream, rest) in &mut held {
            if let Some(byte) = rest.pop_front() {
                let _ = stream.write(&[byte]);
            }
        }
        while held.len() > MAX_HELD {
            held.pop_front();
        }
    }
}

/// Sends connect requests with hostile private data until `stop` is set.
fn attack_by_manager(addr: SocketAddr, valid: &[u8], seed: u64, stop: &AtomicBool, counts: &Counts) {
    let device = SoftDevice::new().open().unwrap();
    let from = SocketAddr::new(device.gids().unwrap()[0].gid.ip(), 0);
    let mut random = Random(seed);
    while !stop.load(Ordering::Relaxed) {
        let mut data = mutate(&mut random, valid.to_vec());
        data.truncate(cm::MAX_CONNECT_DATA);
        let connector =
            cm::Connector::new().local_addr(from).timeout(Duration::from_secs(5)).private_data(&data);
        let result = connector.connect(addr, |path| {
            let (domain, completions) =
                (device.create_protection_domain()?, device.completion_queue(8).create()?);
            path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()
        });
        count(&counts.manager);
        match result {
            Ok(_) | Err(adverb::verbs::Error::CmRejected { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Attacks a listener for a while, and uses correct connections meanwhile.
fn attack(key: Option<&Key>, time: Duration) {
    let device = Device::open("soft").unwrap();
    let with_key = |options: Options| key.map_or(options.clone(), |key| options.key(key));
    let client_options = with_key(Options::new().device(&device).timeout(Duration::from_secs(60)))
        .connect_timeout(Duration::from_secs(30));
    let ip = device.gid_for(1, None).unwrap().gid.ip();
    // The timeout is short, so that silent connections are closed soon, but long enough for a busy machine.
    let listener_options = client_options.clone().connect_timeout(Duration::from_secs(3));
    let listener = Listener::builder().options(&listener_options).bind((ip, 0)).unwrap();
    let addr = listener.local_addr();
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    let end = End::new(&device, 8, false);
    let nonce = key.map(|_| [3; 32]);
    let (over_tcp, by_manager) =
        (greeting(Some(end.queue_pair.endpoint()), nonce, None), greeting(None, nonce, None));
    let connect = || Connector::new().options(&client_options).connect(addr).unwrap();
    scope(|scope| {
        /// Stops the listener and the attackers, also when an assertion fails.
        struct Stop<'a>(&'a Listener, &'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.1.store(true, Ordering::Relaxed);
                self.0.stop();
            }
        }
        let guard = Stop(&listener, &stop);
        scope.spawn(|| {
            while let Ok(connection) = listener.accept() {
                scope.spawn(move || echo(&connection));
            }
        });
        let long_lived = connect();
        check_echo(&long_lived, 0);
        let before = Usage::now();
        let peak = scope.spawn(|| {
            let mut peak = Usage::now();
            while !stop.load(Ordering::Relaxed) {
                let now = Usage::now();
                peak.threads = peak.threads.max(now.threads);
                peak.fds = peak.fds.max(now.fds);
                peak.resident_kib = peak.resident_kib.max(now.resident_kib);
                sleep(Duration::from_millis(20));
            }
            peak
        });
        let (stop, counts, over_tcp, by_manager) = (&stop, &counts, &over_tcp, &by_manager);
        for seed in 0..TCP_ATTACKERS as u64 {
            scope.spawn(move || attack_over_tcp(addr, over_tcp, seed, stop, counts));
        }
        for seed in 0..MANAGER_ATTACKERS as u64 {
            scope.spawn(move || attack_by_manager(addr, by_manager, 100 + seed, stop, counts));
        }
        let newcomers = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let connection = connect();
                (0..3).for_each(|number| check_echo(&connection, number));
                connection.close().unwrap();
                count(&counts.connections);
            }
        });
        let start = Instant::now();
        // A busy machine takes longer to reach the minimum counts.
        while start.elapsed() < time || !counts.are_sufficient() {
            assert!(start.elapsed() < time + MAX_EXTRA_TIME, "{counts:?}");
            check_echo(&long_lived, counts.echoes.load(Ordering::Relaxed));
            count(&counts.echoes);
        }
        stop.store(true, Ordering::Relaxed);
        newcomers.join().unwrap();
        let peak = peak.join().unwrap();
        // The attackers' last connections end at the listener's timeout.
        let stopped_at = Instant::now();
        let mut after = Usage::now();
        while (after.fds > before.fds || after.threads > before.threads)
            && stopped_at.elapsed() < MAX_EXTRA_TIME
        {
            sleep(Duration::from_millis(50));
            after = Usage::now();
        }
        println!("key: {}, {counts:?}", key.is_some());
        println!("before {before:?}\npeak {peak:?}\nafter {after:?}, released in {:?}", stopped_at.elapsed());
        // The listener and the first connection still work.
        check_echo(&long_lived, 1);
        connect().close().unwrap();
        long_lived.close().unwrap();
        drop(guard);

        let own_threads = TCP_ATTACKERS + MANAGER_ATTACKERS + 2;
        // Each attacker's device has a thread, and so has each accepted connection.
        assert!(peak.threads <= before.threads + own_threads + MANAGER_ATTACKERS + 4, "{before:?} {peak:?}");
        let held = TCP_ATTACKERS * (MAX_HELD + 2);
        let max_fds = held * (1 + HANDSHAKE_FDS) + 256 + MANAGER_ATTACKERS * 64;
        assert!(peak.fds <= before.fds + max_fds, "{before:?} {peak:?}");
        assert!(after.fds <= before.fds && after.threads <= before.threads, "{before:?} {after:?}");
        assert!(peak.resident_kib <= before.resident_kib + (128 << 10), "{before:?} {peak:?}");
    });
}

#[test]
fn hostile_bytes_stop_neither_a_listener_nor_other_connections() {
    let seconds = std::env::var("ADVERB_SECONDS").ok().map_or(3, |value| value.parse().unwrap());
    for key in [None, Some(Key::new([7; 32]).unwrap())] {
        attack(key.as_ref(), Duration::from_secs(seconds));
    }
}
