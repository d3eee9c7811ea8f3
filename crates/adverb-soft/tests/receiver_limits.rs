//! Packets to a process that has too few file descriptors or too little memory to share memory with the sender. The limits
//! apply to whole processes, so the receiver is another process of this program.

#![cfg(target_os = "linux")]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adverb_soft::link::{AddressShare, Link, RingPeers, TxPacket, UdpConfig, UdpLink};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use support::open_loopback;

const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// The environment variables of the receiver: its address, whether it shares the address with the sender, and its limit.
const ADDRESS: &str = "ADVERB_TEST_ADDRESS";
const SHARED: &str = "ADVERB_TEST_SHARED";
const LIMIT: &str = "ADVERB_TEST_LIMIT";

/// The number of packets that the sender sends, one in a millisecond. It tries again to share memory after a second.
const PACKET_COUNT: usize = 1300;

/// Sets the options of a link that exchanges packets in memory: with links at its address, or at other addresses.
fn configure(config: &mut UdpConfig, shared: bool) {
    if shared {
        config.shared = true;
    } else {
        config.ring_peers = RingPeers::AllLocal;
    }
}

/// Receives packets until the standard input ends, and prints their number.
#[test]
#[ignore = "run by the other tests"]
fn receiver() {
    let (Ok(address), Ok(limit)) = (std::env::var(ADDRESS), std::env::var(LIMIT)) else { return };
    let address: IpAddr = address.parse().unwrap();
    let mut config = UdpConfig::new(address);
    configure(&mut config, std::env::var(SHARED).unwrap() == "true");
    let mut link = UdpLink::open(&config).unwrap();
    // A thread needs memory and descriptors until it runs.
    let (sender, input) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(());
        let _ = std::io::stdin().read(&mut [0]);
        let _ = sender.send(());
    });
    input.recv().unwrap();
    let mut files = Vec::new();
    match limit.parse::<usize>() {
        Ok(free) => {
            let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, soft.min(100), hard).unwrap();
            files.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
            files.truncate(files.len() - free);
        }
        Err(_) => {
            let (_, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            // The heap may grow, but the memory of a ring can't be mapped.
            setrlimit(Resource::RLIMIT_AS, pages * 4096 + (512 << 10), hard).unwrap();
        }
    }
    println!("receiver: {}", link.address_share().map_or(0, |share| share.index()));
    std::io::stdout().flush().unwrap();
    let (mut count, mut ends_at) = (0, None);
    // After the input has ended, some packets may still be in memory.
    while ends_at.is_none_or(|time| Instant::now() < time) {
        link.receive(256, &mut |_| count += 1).unwrap();
        if ends_at.is_none() && input.try_recv().is_ok() {
            files.clear();
            ends_at = Some(Instant::now() + Duration::from_millis(500));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    thread.join().unwrap();
    println!("receiver: {count} {}", link.statistics().overflows);
}

#[test]
fn packets_are_delivered_or_counted_whatever_the_receiver_lacks() {
    send_to_limited_receivers(true);
}

#[test]
fn packets_to_another_address_are_delivered_or_counted_whatever_the_receiver_lacks() {
    send_to_limited_receivers(false);
}

/// Sends packets to receivers that have the same address, or another one.
fn send_to_limited_receivers(shared: bool) {
    for limit in ["0", "1", "2", "3", "memory"] {
        let mut link = open_loopback(|config| configure(config, shared));
        let destination = if shared { link.local_addr() } else { open_loopback(|_| ()).local_addr() };
        let address = destination.ip();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "receiver", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ADDRESS, address.to_string())
            .env(SHARED, shared.to_string())
            .env(LIMIT, limit)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, received) = std::sync::mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, text)) = line.split_once("receiver: ") {
                    let _ = lines.send(text.to_owned());
                }
            }
        });
        let start = Instant::now();
        let next_line = |link: &mut UdpLink| loop {
            link.receive(256, &mut |_| {}).unwrap();
            if let Ok(line) = received.try_recv() {
                return line;
            }
            assert!(start.elapsed() < TEST_DEADLINE, "the receiver with the limit {limit} does not respond");
        };
        let share = AddressShare::new(next_line(&mut link).parse().unwrap()).unwrap();
        let mut bytes = [0; 100];
        bytes[4..8].copy_from_slice(&share.qpn(0x1_0000).to_be_bytes());
        let source = link.source_addr(0xc000);
        let packet =
            TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes: &bytes };
        let mut accepted = 0;
        while accepted < PACKET_COUNT {
            accepted += link.send(&[packet]).unwrap();
            link.receive(256, &mut |_| {}).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(child.stdin.take());
        let report = next_line(&mut link);
        child.wait().unwrap();
        let (delivered, overflows) = report.split_once(' ').unwrap();
        let (delivered, overflows): (u64, u64) = (delivered.parse().unwrap(), overflows.parse().unwrap());
        let lost = link.statistics().not_passed_on;
        let in_memory = link.statistics().sent_in_memory;
        println!(
            "limit {limit}, shared {shared}: accepted {accepted}, delivered {delivered}, in memory {in_memory}, lost {lost}"
        );
        assert_eq!(delivered + lost + overflows, accepted as u64, "limit {limit}, shared {shared}");
        // The sender uses UDP after a few packets.
        assert!(delivered > PACKET_COUNT as u64 / 2, "limit {limit}, shared {shared}");
    }
}
