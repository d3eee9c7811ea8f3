//! Packets in memory between links at different addresses, as between several processes.

#![cfg(target_os = "linux")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb_soft::link::{
    AddressShare, Bundle, Link, ReceiveTimestamps, RingPeers, TxPacket, UdpConfig, UdpLink,
};

use support::open_loopback;

const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// Opens a link at an address of its own.
fn open(ring_peers: RingPeers) -> UdpLink {
    let mut link = open_loopback(|config| config.ring_peers = ring_peers);
    link.set_timestamps(true).unwrap();
    link
}

/// Opens a link at an address that it shares with other links.
fn open_shared(ring_peers: RingPeers) -> UdpLink {
    let mut link = open_loopback(|config| (config.shared, config.ring_peers) = (true, ring_peers));
    link.set_timestamps(true).unwrap();
    link
}

/// Opens another link at the shared address of a link.
fn join(first: &mut UdpLink, ring_peers: RingPeers) -> UdpLink {
    let mut config = UdpConfig::new(first.local_addr().ip());
    (config.shared, config.ring_peers) = (true, ring_peers);
    let joining = std::thread::spawn(move || UdpLink::open(&config).unwrap());
    while !joining.is_finished() {
        first.receive(usize::MAX, &mut |_| panic!("a packet arrived")).unwrap();
    }
    let mut link = joining.join().unwrap();
    link.set_timestamps(true).unwrap();
    link
}

/// Returns the bytes of a packet with a number to a queue pair of a link.
fn bytes_to(link: &UdpLink, number: u32, length: usize) -> Vec<u8> {
    let share = link.address_share().unwrap_or_else(|| AddressShare::new(77).unwrap());
    let mut bytes = vec![0; length];
    bytes[4..8].copy_from_slice(&share.qpn(0x1_0000).to_be_bytes());
    bytes[8..12].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Returns a packet from one link to another.
fn packet<'a>(from: &UdpLink, to: &UdpLink, bytes: &'a [u8]) -> TxPacket<'a> {
    let (source, destination) = (from.source_addr(0xc000), to.local_addr());
    TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes }
}

/// A received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Received {
    number: u32,
    source: SocketAddr,
    is_in_memory: bool,
}

fn receive(link: &mut UdpLink) -> Vec<Received> {
    let mut packets = Vec::new();
    link.receive(usize::MAX, &mut |packet| {
        packets.push(Received {
            number: u32::from_be_bytes(packet.bytes[8..12].try_into().unwrap()),
            source: packet.source,
            // The kernel has no receive time for packets in memory.
            is_in_memory: packet.received_at.is_none(),
        });
    })
    .unwrap();
    packets
}

/// Sends one packet and returns how it was received.
fn exchange(from: &mut UdpLink, to: &mut UdpLink) -> Received {
    let (bytes, start) = (bytes_to(to, 7, 60), Instant::now());
    assert_eq!(from.send(&[packet(from, to, &bytes)]).unwrap(), 1);
    loop {
        if let [received] = receive(to)[..] {
            assert_eq!((received.number, received.source), (7, from.source_addr(0xc000)));
            return received;
        }
        assert!(start.elapsed() < TEST_DEADLINE, "the packet did not arrive");
    }
}

/// Sends packets one after the other until one arrives in memory.
fn connect(from: &mut UdpLink, to: &mut UdpLink) {
    let start = Instant::now();
    while !exchange(from, to).is_in_memory {
        assert!(start.elapsed() < TEST_DEADLINE, "all packets arrive over UDP");
    }
}

/// The time for which packets must arrive over UDP: a ring would be offered again within this time.
const UDP_TIME: Duration = Duration::from_millis(1500);

/// Exchanges packets in both directions, all of which must arrive over UDP.
fn assert_over_udp(first: &mut UdpLink, second: &mut UdpLink) {
    let start = Instant::now();
    while start.elapsed() < UDP_TIME {
        assert!(!exchange(first, second).is_in_memory && !exchange(second, first).is_in_memory);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((first.statistics().sent_in_memory, second.statistics().sent_in_memory), (0, 0));
}

#[test]
fn links_at_different_addresses_exchange_packets_in_memory() {
    let openers: [fn(RingPeers) -> UdpLink; 2] = [open, open_shared];
    for (open_first, open_second) in
        openers.into_iter().flat_map(|first| openers.map(|second| (first, second)))
    {
        let (mut first, mut second) = (open_first(RingPeers::AllLocal), open_second(RingPeers::AllLocal));
        connect(&mut first, &mut second);
        connect(&mut second, &mut first);
        let sent = first.statistics().sent_in_memory;
        for _ in 0..100 {
            assert!(exchange(&mut first, &mut second).is_in_memory);
            assert!(exchange(&mut second, &mut first).is_in_memory);
        }
        assert_eq!(first.statistics().sent_in_memory, sent + 100);
        assert_eq!(first.statistics().not_passed_on, 0);
    }
}

#[test]
fn links_with_a_udp_port_of_their_own_exchange_packets_in_memory() {
    let mut first = open_loopback(|config| (config.ring_peers, config.port) = (RingPeers::AllLocal, 4795));
    first.set_timestamps(true).unwrap();
    let mut config = UdpConfig::new(first.local_addr().ip());
    (config.ring_peers, config.port) = (RingPeers::AllLocal, 4796);
    let mut second = UdpLink::open(&config).unwrap();
    second.set_timestamps(true).unwrap();
    connect(&mut first, &mut second);
    connect(&mut second, &mut first);
}

/// The receiver decides, and it offers no memory itself.
#[test]
fn packets_to_and_from_a_link_without_memory_use_travel_over_udp() {
    for ring_peers in [RingPeers::None, RingPeers::SharedAddress] {
        let (mut first, mut second) = (open(RingPeers::AllLocal), open(ring_peers));
        assert_over_udp(&mut first, &mut second);
        let (mut first, mut second) = (open(RingPeers::AllLocal), open_shared(ring_peers));
        assert_over_udp(&mut first, &mut second);
    }
}

#[test]
fn packets_between_processes_at_one_address_travel_over_udp_if_one_uses_no_memory() {
    for (first, second) in
        [(RingPeers::None, RingPeers::AllLocal), (RingPeers::SharedAddress, RingPeers::None)]
    {
        let mut first = open_shared(first);
        let mut second = join(&mut first, second);
        assert_over_udp(&mut first, &mut second);
    }
    let mut first = open_shared(RingPeers::AllLocal);
    let mut second = join(&mut first, RingPeers::SharedAddress);
    connect(&mut first, &mut second);
    connect(&mut second, &mut first);
}

/// The number of packets in memory that a receiver waits for.
const MIN_IN_MEMORY: usize = 300;

#[test]
fn packets_stay_in_order_when_they_change_to_memory() {
    let mut receiver = open(RingPeers::AllLocal);
    let mut over_udp = 0;
    for round in 0..20 {
        let mut sender = open(RingPeers::AllLocal);
        let bytes: Vec<Vec<u8>> = (0..60_000).map(|number| bytes_to(&receiver, number, 60)).collect();
        let is_done = AtomicBool::new(false);
        receiver.set_wake_interest(round % 2 == 0).unwrap();
        let destination = receiver.local_addr();
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let ports = [0xc000, 0xc001, 0xc002].map(|port| sender.source_addr(port));
                for (number, bytes) in bytes.iter().enumerate() {
                    let source = ports[number % 3];
                    let packet = TxPacket {
                        source,
                        destination,
                        traffic_class: 0,
                        hop_limit: 0,
                        flow_label: 0,
                        bytes,
                    };
                    while sender.send(&[packet]).unwrap() == 0 && !is_done.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            // Packets over UDP wait until the receiver opens the ring.
            std::thread::sleep(Duration::from_millis(1));
            let (mut in_memory, mut last, start) = (0, [None; 3], Instant::now());
            while in_memory < MIN_IN_MEMORY {
                for received in receive(&mut receiver) {
                    *if received.is_in_memory { &mut in_memory } else { &mut over_udp } += 1;
                    let last = &mut last[received.number as usize % 3];
                    assert!(*last < Some(received.number), "{received:?} after {last:?}");
                    *last = Some(received.number);
                }
                assert!(start.elapsed() < TEST_DEADLINE, "{in_memory} packets in memory");
            }
            is_done.store(true, Ordering::Relaxed);
            sending.join().unwrap();
        });
        drop(sender);
        let start = Instant::now();
        while !receive(&mut receiver).is_empty() {
            assert!(start.elapsed() < TEST_DEADLINE, "packets still arrive");
        }
    }
    println!("{over_udp} packets over UDP");
    assert!(over_udp > 20);
}

#[test]
fn packets_to_several_processes_at_another_address_reach_each_of_them() {
    let mut first = open_shared(RingPeers::AllLocal);
    let mut second = join(&mut first, RingPeers::AllLocal);
    let mut sender = open(RingPeers::AllLocal);
    let destination = first.local_addr();
    let bytes = [bytes_to(&first, 0, 60), bytes_to(&second, 1, 60)];
    let source = sender.source_addr(0xc000);
    let packets = [0, 1, 1, 0, 0, 0, 1, 1].map(|index: usize| TxPacket {
        source,
        destination,
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        bytes: &bytes[index],
    });
    let start = Instant::now();
    // Packets of a batch over UDP may reach the other process, which passes them on.
    let (mut in_memory, mut rounds) = ([0; 2], 0);
    while in_memory.iter().any(|count| *count < 100) {
        let (mut sent, mut counts) = (0, [0; 2]);
        while sent < packets.len() || counts != [4, 4] {
            sent += sender.send(&packets[sent..]).unwrap();
            for (index, link) in [&mut first, &mut second].into_iter().enumerate() {
                for received in receive(link) {
                    assert_eq!(received.number as usize, index);
                    counts[index] += 1;
                    in_memory[index] += usize::from(received.is_in_memory);
                }
            }
            assert!(start.elapsed() < TEST_DEADLINE, "{counts:?} in round {rounds}");
        }
        rounds += 1;
    }
}

#[test]
fn a_link_at_the_address_of_one_that_has_ended_gets_packets_in_memory() {
    let mut sender = open(RingPeers::AllLocal);
    let mut receiver = open(RingPeers::AllLocal);
    let mut config = UdpConfig::new(receiver.local_addr().ip());
    config.ring_peers = RingPeers::AllLocal;
    for round in 0..6 {
        connect(&mut sender, &mut receiver);
        drop(receiver);
        // The address has one process, or several.
        config.shared = round % 2 == 0;
        receiver = UdpLink::open(&config).unwrap();
        receiver.set_timestamps(true).unwrap();
        // The sender reads its connections, and finds that the old one has ended.
        for _ in 0..200 {
            assert_eq!(receive(&mut sender), []);
        }
    }
}

/// One of the destinations has a ring.
#[test]
fn packets_to_two_destinations_take_different_ways_in_order() {
    let mut sender = open(RingPeers::AllLocal);
    let (mut near, mut far) = (open(RingPeers::AllLocal), open(RingPeers::None));
    connect(&mut sender, &mut near);
    assert!(!exchange(&mut sender, &mut far).is_in_memory);
    let bytes: Vec<Vec<u8>> =
        (0..60).map(|number| bytes_to(if number % 3 == 0 { &near } else { &far }, number, 60)).collect();
    let packets: Vec<TxPacket<'_>> = (0..60)
        .map(|number| packet(&sender, if number % 3 == 0 { &near } else { &far }, &bytes[number]))
        .collect();
    assert_eq!(sender.send(&packets).unwrap(), packets.len());
    let (mut got, start) = (BTreeMap::<bool, Vec<u32>>::new(), Instant::now());
    while got.values().map(Vec::len).sum::<usize>() < packets.len() {
        for received in receive(&mut near).into_iter().chain(receive(&mut far)) {
            got.entry(received.is_in_memory).or_default().push(received.number);
        }
        assert!(start.elapsed() < TEST_DEADLINE, "{got:?}");
    }
    let expected =
        |is_near: bool| (0..60).filter(|number| (number % 3 == 0) == is_near).collect::<Vec<u32>>();
    assert_eq!((&got[&true], &got[&false]), (&expected(true), &expected(false)));
}

/// Packets to more destinations than a link remembers are all sent, and a link that opens later gets packets in memory.
#[test]
fn packets_to_many_destinations_do_not_prevent_memory_use() {
    let mut sender = open(RingPeers::AllLocal);
    let source = sender.source_addr(0xc000);
    let mut bytes = [0; 60];
    bytes[4..8].copy_from_slice(&0x1_0000_u32.to_be_bytes());
    // No process has these addresses. The loopback interface returns ICMP messages, which the link counts.
    let addresses: Vec<IpAddr> = (0..3000_u16)
        .map(|host| {
            let [high, low] = host.to_be_bytes();
            IpAddr::from([127, 3, high, low])
        })
        .collect();
    let start = Instant::now();
    for round in 0..3 {
        for address in &addresses {
            let destination = SocketAddr::new(*address, 4791);
            let packet = TxPacket {
                source,
                destination,
                traffic_class: 0,
                hop_limit: 0,
                flow_label: 0,
                bytes: &bytes,
            };
            while sender.send(&[packet]).unwrap() == 0 {
                assert!(start.elapsed() < TEST_DEADLINE, "round {round}");
            }
        }
    }
    let time = start.elapsed() / (3 * addresses.len() as u32);
    println!("{time:?} for a packet to one of many destinations");
    let mut receiver = open(RingPeers::AllLocal);
    connect(&mut sender, &mut receiver);
}

#[test]
fn the_links_of_a_bundle_exchange_packets_in_memory() {
    let mut bundle = Bundle::new().unwrap();
    let sources = [(); 2].map(|()| {
        let link = open(RingPeers::AllLocal);
        let source = link.source_addr(0xc000);
        bundle.add(source.ip(), link).unwrap();
        source
    });
    let mut peer = open(RingPeers::AllLocal);
    let (bytes, destination) = (bytes_to(&peer, 7, 60), peer.local_addr());
    for source in sources {
        let (mut is_in_memory, start) = (false, Instant::now());
        while !is_in_memory {
            let packet = TxPacket {
                source,
                destination,
                traffic_class: 0,
                hop_limit: 0,
                flow_label: 0,
                bytes: &bytes,
            };
            bundle.send(&[packet]).unwrap();
            for received in receive(&mut peer) {
                assert_eq!(received.source, source);
                is_in_memory = received.is_in_memory;
            }
            assert!(start.elapsed() < TEST_DEADLINE, "no packet arrived in memory");
        }
    }
}

/// The environment variable of a receiver that the test below starts: its address.
const ADDRESS: &str = "ADVERB_TEST_ADDRESS";

/// Receives packets until it is killed, and prints a line for the first one in memory.
#[test]
#[ignore = "run by the other test"]
fn receiver() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let mut config = UdpConfig::new(address.parse().unwrap());
    config.ring_peers = RingPeers::AllLocal;
    let mut link = UdpLink::open(&config).unwrap();
    link.set_timestamps(true).unwrap();
    let mut has_printed = false;
    loop {
        let packets = receive(&mut link);
        if !has_printed && packets.iter().any(|received| received.is_in_memory) {
            println!("receiver: memory");
            has_printed = true;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_process_that_takes_the_place_of_a_killed_one_gets_packets_in_memory() {
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    let address = open(RingPeers::None).local_addr().ip();
    let mut sender = open(RingPeers::AllLocal);
    let (source, destination) = (sender.source_addr(0xc000), SocketAddr::new(address, 4791));
    let mut bytes = [0; 60];
    bytes[4..8].copy_from_slice(&0x1_0000_u32.to_be_bytes());
    let packet =
        TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes: &bytes };
    for round in 0..20 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "receiver", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ADDRESS, address.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        let output = BufReader::new(child.0.stdout.take().unwrap());
        let (lines, received) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok).filter(|line| line.contains("receiver: ")) {
                let _ = lines.send(line);
            }
        });
        let start = Instant::now();
        while received.try_recv().is_err() {
            sender.send(&[packet]).unwrap();
            receive(&mut sender);
            std::thread::sleep(Duration::from_micros(100));
            assert!(start.elapsed() < TEST_DEADLINE, "no packet arrived in memory in round {round}");
        }
    }
}
