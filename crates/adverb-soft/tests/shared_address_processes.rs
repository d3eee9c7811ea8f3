//! Packets between links at one address, as between several processes.

#![cfg(target_os = "linux")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb_soft::link::{AddressShare, Link, ReceiveTimestamps, RxPacket, TxPacket, UdpConfig, UdpLink};

use support::{Packet, open_loopback, wait};

const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// Opens links at one address.
fn links<const N: usize>() -> [UdpLink; N] {
    let first = loop {
        let link = open_loopback(|config| config.shared = true);
        // Another process might have the address.
        if link.address_share() == AddressShare::new(0) {
            break link;
        }
    };
    let mut links = vec![first];
    while links.len() < N {
        let link = join(&mut links.iter_mut().collect::<Vec<_>>());
        links.push(link);
    }
    links.try_into().unwrap()
}

/// Opens another link at the address of the `others`, which respond to it.
fn join(others: &mut [&mut UdpLink]) -> UdpLink {
    let mut config = UdpConfig::new(others[0].local_addr().ip());
    config.shared = true;
    let joining = std::thread::spawn(move || UdpLink::open(&config).unwrap());
    while !joining.is_finished() {
        for link in &mut *others {
            assert_eq!(receive_numbers(link), []);
        }
    }
    joining.join().unwrap()
}

/// Returns the bytes of a packet to a queue pair of a link. The bytes after the destination are arbitrary.
fn bytes_to(link: &UdpLink, number: u32, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length as u32).map(|index| (index * 7).wrapping_add(number) as u8).collect();
    bytes[4..8].copy_from_slice(&link.address_share().unwrap().qpn(0x1_0000).to_be_bytes());
    bytes[8..12].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Returns a packet from a link to its own address.
fn packet<'a>(link: &UdpLink, bytes: &'a [u8]) -> TxPacket<'a> {
    let local = link.local_addr();
    let source = link.source_addr(0xc000);
    TxPacket { source, destination: local, traffic_class: 0, hop_limit: 7, flow_label: 0, bytes }
}

/// Receives packets, and returns their numbers.
fn receive_numbers(link: &mut UdpLink) -> Vec<u32> {
    let mut numbers = Vec::new();
    link.receive(usize::MAX, &mut |packet| {
        numbers.push(u32::from_be_bytes(packet.bytes[8..12].try_into().unwrap()));
    })
    .unwrap();
    numbers
}

/// Sends packets until the link receives one of them in shared memory, so that later packets of `sender` arrive there, too.
fn connect(sender: &mut UdpLink, receiver: &mut UdpLink) {
    let bytes = bytes_to(receiver, u32::MAX, 20);
    receiver.set_timestamps(true).unwrap();
    let (mut is_in_memory, start) = (false, Instant::now());
    while !is_in_memory {
        assert_eq!(sender.send(&[packet(sender, &bytes)]).unwrap(), 1);
        let mut count = 0;
        while count == 0 {
            let each = &mut |packet: &RxPacket<'_>| {
                assert_eq!(packet.bytes, bytes);
                is_in_memory = packet.received_at.is_none();
                count += 1;
            };
            receiver.receive(usize::MAX, each).unwrap();
            assert!(start.elapsed() < TEST_DEADLINE, "no packet arrived");
        }
    }
    receiver.set_timestamps(false).unwrap();
}

#[test]
fn packets_of_all_lengths_arrive_intact_and_in_order() {
    let [mut sender, mut receiver] = links();
    connect(&mut sender, &mut receiver);
    // Runs of one length form batches, which are longer than a message at the end.
    let lengths = (20..=4096 + 68).step_by(77).chain([80, 20, 80, 80, 20]).chain([4160; 100]).chain([20]);
    let bytes: Vec<Vec<u8>> =
        lengths.zip(0..).map(|(length, number)| bytes_to(&receiver, number, length)).collect();
    let packets: Vec<TxPacket<'_>> = bytes
        .iter()
        .map(|bytes| TxPacket { traffic_class: (bytes.len() / 77) as u8, ..packet(&sender, bytes) })
        .collect();
    let expected: Vec<Packet> = packets.iter().map(Packet::from).collect();
    let (mut sent, mut got, start) = (0, Vec::<Packet>::new(), Instant::now());
    while got.len() < expected.len() {
        sent += sender.send(&packets[sent..]).unwrap();
        receiver.receive(usize::MAX, &mut |packet| got.push(packet.into())).unwrap();
        assert!(start.elapsed() < TEST_DEADLINE, "{} packets arrived", got.len());
    }
    assert!(got == expected);
    assert_eq!((sender.statistics().passed_on, receiver.statistics().passed_on), (0, 0));
}

/// The number of packets in memory that a receiver waits for.
const MIN_IN_MEMORY: usize = 300;

/// Receives packets, a few at a time, until some have arrived in memory. The packets of each port must be in order. Returns the
/// number of packets over UDP.
fn receive_in_order(receiver: &mut UdpLink) -> usize {
    let (mut over_udp, mut in_memory, mut last) = (0, 0, [None; 3]);
    let start = Instant::now();
    while in_memory < MIN_IN_MEMORY {
        receiver
            .receive(4, &mut |packet| {
                let is_over_udp = packet.received_at.is_some();
                *if is_over_udp { &mut over_udp } else { &mut in_memory } += 1;
                let number = u32::from_be_bytes(packet.bytes[8..12].try_into().unwrap());
                let last = &mut last[number as usize % 3];
                assert!(*last < Some(number), "{number} after {last:?}, over UDP: {is_over_udp}");
                *last = Some(number);
            })
            .unwrap();
        assert!(start.elapsed() < TEST_DEADLINE, "{over_udp} packets over UDP, {in_memory} in memory");
    }
    over_udp
}

#[test]
fn packets_stay_in_order_when_they_change_to_memory() {
    let [mut receiver, mut sender] = links();
    receiver.set_timestamps(true).unwrap();
    let mut over_udp = 0;
    for round in 0..30 {
        let bytes: Vec<Vec<u8>> = (0..60_000).map(|number| bytes_to(&receiver, number, 60)).collect();
        let is_done = AtomicBool::new(false);
        receiver.set_wake_interest(round % 2 == 0).unwrap();
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let ports = [0xc000, 0xc001, 0xc002].map(|port| sender.source_addr(port));
                for (number, bytes) in bytes.iter().enumerate() {
                    let packet = TxPacket { source: ports[number % 3], ..packet(&sender, bytes) };
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
            over_udp += receive_in_order(&mut receiver);
            is_done.store(true, Ordering::Relaxed);
            // ThreadSanitizer sees a join, but not the end of the scope.
            sending.join().unwrap();
        });
        drop(sender);
        let start = Instant::now();
        while !receive_numbers(&mut receiver).is_empty() {
            assert!(start.elapsed() < TEST_DEADLINE, "packets still arrive");
        }
        sender = join(&mut [&mut receiver]);
    }
    println!("{over_udp} packets over UDP");
    assert!(over_udp > 30);
}

/// Otherwise they would overtake earlier packets, which may still be in memory.
#[test]
fn packets_behind_others_to_a_remote_device_are_sent_in_memory() {
    let [mut sender, mut receiver] = links();
    connect(&mut sender, &mut receiver);
    receiver.set_timestamps(true).unwrap();
    let mut remote = open_loopback(|_| ());
    let bytes = [0, 1, 2, 3].map(|number| bytes_to(&receiver, number, 60));
    let remote_addr = remote.local_addr();
    let packets = [0, 1, 2, 3].map(|index| {
        let packet = packet(&sender, &bytes[index]);
        if index % 2 == 0 { TxPacket { destination: remote_addr, ..packet } } else { packet }
    });
    assert_eq!(sender.send(&packets).unwrap(), packets.len());
    let (mut in_memory, mut over_udp, start) = (Vec::new(), Vec::new(), Instant::now());
    while in_memory.len() < 2 || over_udp.len() < 2 {
        receiver
            .receive(usize::MAX, &mut |packet| {
                assert_eq!(packet.received_at, None, "a packet came over UDP");
                in_memory.push(packet.bytes[11]);
            })
            .unwrap();
        remote.receive(usize::MAX, &mut |packet| over_udp.push(packet.bytes[11])).unwrap();
        assert!(start.elapsed() < TEST_DEADLINE, "{in_memory:?} in memory, {over_udp:?} over UDP");
    }
    assert_eq!((in_memory, over_udp), (vec![1, 3], vec![0, 2]));
}

#[test]
fn a_slow_process_loses_no_packets() {
    let [mut sender, mut receiver] = links();
    connect(&mut sender, &mut receiver);
    const COUNT: u32 = 50_000;
    let bytes: Vec<Vec<u8>> = (0..COUNT).map(|number| bytes_to(&receiver, number, 1024)).collect();
    let packets: Vec<TxPacket<'_>> = bytes.iter().map(|bytes| packet(&sender, bytes)).collect();
    let (mut sent, mut got, mut refusals, start) = (0, Vec::new(), 0, Instant::now());
    while got.len() < COUNT as usize {
        assert!(start.elapsed() < TEST_DEADLINE, "{} packets arrived", got.len());
        // The receiver reads nothing while the sender can send.
        let accepted = sender.send(&packets[sent..]).unwrap();
        sent += accepted;
        if accepted == 0 {
            refusals += 1;
            got.extend(receive_numbers(&mut receiver));
        }
    }
    assert!(got.into_iter().eq(0..COUNT));
    assert!(refusals > 0);
    assert_eq!(sender.statistics().not_passed_on, 0);
}

#[test]
fn two_processes_that_send_much_are_both_heard() {
    let [mut receiver, first, second] = links();
    let bytes: [Vec<u8>; 2] = [0, 1].map(|number| bytes_to(&receiver, number, 200));
    let mut senders = [first, second];
    senders.iter_mut().for_each(|sender| connect(sender, &mut receiver));
    let (mut counts, start) = ([0_u32; 2], Instant::now());
    for _ in 0..200 {
        for (sender, bytes) in senders.iter_mut().zip(&bytes) {
            // The packets of a batch are one message, of which a receive takes only a few.
            let batch = [packet(sender, bytes); 64];
            while sender.send(&batch).unwrap() == batch.len() {
                assert!(start.elapsed() < TEST_DEADLINE, "no packet is refused");
            }
        }
        receiver.receive(256, &mut |packet| counts[packet.bytes[11] as usize] += 1).unwrap();
    }
    let [first, second] = counts;
    assert!(first.min(second) * 3 > first.max(second), "{first} and {second} packets were received");
}

#[test]
fn a_process_that_reads_nothing_does_not_block_packets_to_others() {
    let [mut sender, mut stuck, mut receiver] = links();
    connect(&mut sender, &mut stuck);
    connect(&mut sender, &mut receiver);
    let (to_stuck, to_receiver) = (bytes_to(&stuck, 0, 1024), bytes_to(&receiver, 1, 1024));
    let start = Instant::now();
    while sender.send(&[packet(&sender, &to_stuck)]).unwrap() > 0 {
        assert!(start.elapsed() < TEST_DEADLINE, "no packet is refused");
    }
    // Packets to both processes are in one queue.
    let queue = [packet(&sender, &to_stuck), packet(&sender, &to_receiver)];
    let (start, mut sent) = (Instant::now(), 0);
    while sent < queue.len() {
        sent += sender.send(&queue[sent..]).unwrap();
        assert!(start.elapsed() < TEST_DEADLINE, "the packets are still refused");
    }
    let start = Instant::now();
    while receive_numbers(&mut receiver) != [1] {
        assert!(start.elapsed() < TEST_DEADLINE, "no packet arrived");
    }
    assert!(sender.statistics().not_passed_on > 0, "the packets to the process that reads nothing are lost");
}

#[test]
fn a_sleeping_process_is_woken() {
    let [mut sender, mut receiver] = links();
    connect(&mut sender, &mut receiver);
    let bytes = bytes_to(&receiver, 1, 20);
    let packet = packet(&sender, &bytes);
    std::thread::scope(|scope| {
        // The sender waits for each packet to be received, so that the receiver sleeps again.
        let (requests, responses) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        scope.spawn(move || {
            for () in requests.1 {
                assert_eq!(sender.send(&[packet]).unwrap(), 1);
                responses.0.send(()).unwrap();
            }
        });
        for round in 0..2000 {
            // Sometimes the receiver only begins to sleep when the packet is already there.
            let is_late = round % 3 == 0;
            if is_late {
                receiver.set_wake_interest(false).unwrap();
            }
            requests.0.send(()).unwrap();
            if is_late {
                responses.1.recv().unwrap();
                receiver.set_wake_interest(true).unwrap();
            }
            let mut count = 0;
            while count == 0 {
                wait(&receiver);
                count = receive_numbers(&mut receiver).len();
            }
            assert_eq!(count, 1);
            if !is_late {
                responses.1.recv().unwrap();
            }
        }
        drop(requests.0);
    });
}

#[test]
fn a_process_receives_the_packets_of_a_process_that_has_ended() {
    let [mut sender, mut receiver] = links();
    connect(&mut sender, &mut receiver);
    let bytes: Vec<Vec<u8>> = (0..100).map(|number| bytes_to(&receiver, number, 100)).collect();
    let packets: Vec<TxPacket<'_>> = bytes.iter().map(|bytes| packet(&sender, bytes)).collect();
    assert_eq!(sender.send(&packets).unwrap(), packets.len());
    drop(packets);
    drop(sender);
    let (mut got, start) = (Vec::new(), Instant::now());
    while got.len() < 100 {
        got.extend(receive_numbers(&mut receiver));
        assert!(start.elapsed() < TEST_DEADLINE, "{} packets arrived", got.len());
    }
    assert!(got.into_iter().eq(0..100));
}

#[test]
fn packets_reach_the_process_that_takes_over_a_share() {
    let [mut sender, mut ended, mut other] = links();
    for _ in 0..3 {
        connect(&mut sender, &mut ended);
        let share = ended.address_share();
        drop(ended);
        ended = join(&mut [&mut sender, &mut other]);
        assert_eq!(ended.address_share(), share);
        connect(&mut other, &mut ended);
    }
}
