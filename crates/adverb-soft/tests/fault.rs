//! Links that inject faults.

#![cfg(target_os = "linux")]

mod support;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use adverb_proto::IcrcCheck;
use adverb_soft::link::{
    AddressSharing, FaultConfig, FaultCounts, FaultLink, Link, MemLink, MulticastGroups, ReceiveTimestamps,
    RxPacket, SourcePorts, Switch, SwitchConfig, TimedSend, TxPacket,
};

use support::{Packet, address, drain, packet};

const PACKET_COUNT: usize = 20_000;

/// Attaches two links to a switch with queues for all packets of a test. The first link injects faults.
fn attach_two(config: FaultConfig) -> (FaultLink<MemLink>, MemLink) {
    let switch =
        Switch::new(SwitchConfig { max_queued_packets: 4 * PACKET_COUNT, ..SwitchConfig::default() });
    let [here, there] = [1, 2].map(|host| switch.attach(address(host)).unwrap());
    (FaultLink::new(here, config), there)
}

/// Sends numbered packets over a link that injects faults. Returns the received bytes and the counts of the faults.
fn send_numbered(config: FaultConfig) -> (Vec<Vec<u8>>, FaultCounts) {
    let (mut here, mut there) = attach_two(config);
    let numbers: Vec<[u8; 32]> = (0..PACKET_COUNT as u64).map(numbered_bytes).collect();
    let packets: Vec<_> = numbers.iter().map(|bytes| packet(1, 2, bytes)).collect();
    for batch in packets.chunks(37) {
        assert_eq!(here.send(batch).unwrap(), batch.len());
    }
    while let Some(deadline) = here.deadline() {
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        here.receive(usize::MAX, &mut |_| ()).unwrap();
    }
    (drain(&mut there).into_iter().map(|packet| packet.bytes).collect(), here.counts())
}

fn numbered_bytes(number: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[24..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Whether a fault occurred as often as configured, within five standard deviations.
fn is_about(count: u64, per_million: u32) -> bool {
    let mean = PACKET_COUNT as f64 * f64::from(per_million) / 1e6;
    (count as f64 - mean).abs() < 5.0 * mean.sqrt()
}

#[test]
fn without_faults_all_packets_arrive_in_order() {
    let (got, counts) = send_numbered(FaultConfig::new(1));
    assert!(got.iter().zip(0..).all(|(bytes, number)| *bytes == numbered_bytes(number)));
    assert_eq!((got.len(), counts.untouched), (PACKET_COUNT, PACKET_COUNT as u64));
}

#[test]
fn each_fault_occurs_at_its_configured_rate() {
    let config = FaultConfig {
        loss_ppm: 50_000,
        duplication_ppm: 20_000,
        corruption_ppm: 10_000,
        delay_ppm: 30_000,
        ..FaultConfig::new(2)
    };
    let (got, counts) = send_numbered(config);
    let FaultCounts { untouched, lost, duplicated, corrupted, delayed, .. } = counts;
    assert_eq!(untouched + lost + duplicated + corrupted + delayed, PACKET_COUNT as u64);
    assert_eq!(untouched + 2 * duplicated + corrupted + delayed, got.len() as u64);
    assert!(is_about(lost, 50_000), "{counts:?}");
    assert!(is_about(duplicated, 20_000), "{counts:?}");
    assert!(is_about(corrupted, 10_000), "{counts:?}");
    assert!(is_about(delayed, 30_000), "{counts:?}");
}

#[test]
fn the_seed_determines_all_faults() {
    let config = |seed| FaultConfig { loss_ppm: 100_000, corruption_ppm: 100_000, ..FaultConfig::new(seed) };
    assert_eq!(send_numbered(config(3)), send_numbered(config(3)));
    assert_ne!(send_numbered(config(3)).0, send_numbered(config(4)).0);
}

/// Returns the bytes of a packet to a queue pair.
fn bytes_to_qp(qpn: u32, number: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    bytes[15] = number;
    bytes
}

/// Sends packets to the queue pair `qpn`, each followed by packets to the other queue pairs. Returns the numbers of the
/// packets to `qpn` that arrive.
fn send_and_collect(qpn: u32, others: &[u32], batch_len: usize) -> Vec<u8> {
    let (mut here, mut there) = attach_two(FaultConfig { loss_ppm: 300_000, ..FaultConfig::new(9) });
    let mut sent = Vec::new();
    for number in 0..200 {
        sent.push(bytes_to_qp(qpn, number));
        sent.extend(others.iter().map(|other| bytes_to_qp(*other, number)));
    }
    let packets: Vec<_> = sent.iter().map(|bytes| packet(1, 2, bytes)).collect();
    for batch in packets.chunks(batch_len) {
        assert_eq!(here.send(batch).unwrap(), batch.len());
    }
    let got = drain(&mut there).into_iter().map(|packet| packet.bytes);
    got.filter(|bytes| bytes[4..8] == qpn.to_be_bytes()).map(|bytes| bytes[15]).collect()
}

#[test]
fn faults_of_a_flow_do_not_depend_on_other_flows() {
    let alone = send_and_collect(0x1234, &[], 200);
    assert!((100..180).contains(&alone.len()), "{alone:?}");
    assert_eq!(send_and_collect(0x1234, &[0x99, 0x42], 1), alone);
    // Queue pair numbers are random, so the faults depend on the flow's position, not on its queue pair number.
    assert_eq!(send_and_collect(0x77, &[0x99], 37), alone);
    let (first, second) = (send_and_collect(1, &[2], 10), {
        let (mut here, mut there) = attach_two(FaultConfig { loss_ppm: 300_000, ..FaultConfig::new(9) });
        here.send(&[packet(1, 2, &bytes_to_qp(1, 0))]).unwrap();
        for number in 0..200 {
            here.send(&[packet(1, 2, &bytes_to_qp(2, number))]).unwrap();
        }
        drain(&mut there).into_iter().map(|packet| packet.bytes[15]).collect::<Vec<_>>()
    });
    assert_ne!(first, second);
}

#[test]
fn a_refused_packet_keeps_its_fault() {
    let config = FaultConfig { loss_ppm: 300_000, ..FaultConfig::new(9) };
    let switch = Switch::new(SwitchConfig { max_queued_packets: PACKET_COUNT, ..SwitchConfig::default() });
    let [here, mut there] = [1, 2].map(|host| switch.attach(address(host)).unwrap());
    let mut here = FaultLink::new(LimitedLink(here, 0), config);
    let sent: Vec<_> = (0..200).map(|number| bytes_to_qp(0x1234, number)).collect();
    let packets: Vec<_> = sent.iter().map(|bytes| packet(1, 2, bytes)).collect();
    let mut rest = &packets[..];
    while !rest.is_empty() {
        rest = &rest[here.send(rest).unwrap()..];
    }
    let got: Vec<u8> = drain(&mut there).into_iter().map(|packet| packet.bytes[15]).collect();
    assert_eq!(got, send_and_collect(0x1234, &[], 200));
}

#[test]
fn latency_holds_all_packets_in_order() {
    let latency = Duration::from_millis(20);
    let (mut here, mut there) = attach_two(FaultConfig { latency, ..FaultConfig::new(10) });
    let start = Instant::now();
    let numbers: Vec<[u8; 32]> = (0..100).map(numbered_bytes).collect();
    let packets: Vec<_> = numbers.iter().map(|bytes| packet(1, 2, bytes)).collect();
    assert_eq!(here.send(&packets).unwrap(), 100);
    assert_eq!((here.counts().untouched, drain(&mut there).len()), (100, 0));
    assert!(here.deadline().unwrap() >= start + latency);
    while let Some(deadline) = here.deadline() {
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        here.receive(usize::MAX, &mut |_| ()).unwrap();
    }
    assert!(start.elapsed() >= latency);
    let got: Vec<_> = drain(&mut there).into_iter().map(|packet| packet.bytes).collect();
    assert!(got.iter().eq(numbers.iter()), "{got:?}");
}

#[test]
fn corruption_flips_one_bit_that_the_icrc_covers() {
    let (got, counts) = send_numbered(FaultConfig { corruption_ppm: 1_000_000, ..FaultConfig::new(5) });
    assert_eq!(counts.corrupted, PACKET_COUNT as u64);
    for (bytes, number) in got.iter().zip(0..) {
        let expected = numbered_bytes(number);
        let flipped: u32 = bytes.iter().zip(expected).map(|(got, sent)| (got ^ sent).count_ones()).sum();
        assert_eq!(flipped, 1);
        assert_eq!(bytes[4], expected[4]);
    }
}

#[test]
fn delayed_packets_are_overtaken_and_arrive_by_the_deadline() {
    let min_delay = Duration::from_millis(5);
    let test_start = Instant::now();
    let (mut here, mut there, start) = loop {
        let (mut here, there) = attach_two(FaultConfig {
            delay_ppm: 1_000_000,
            min_delay,
            max_delay: Duration::from_millis(10),
            ..FaultConfig::new(6)
        });
        let start = Instant::now();
        here.send(&[packet(1, 2, b"late")]).unwrap();
        here.set_config(FaultConfig::new(0));
        here.send(&[packet(1, 2, b"early")]).unwrap();
        // On a busy machine, the delay may be over before the second packet is sent.
        if start.elapsed() < min_delay {
            break (here, there, start);
        }
        assert!(test_start.elapsed() < Duration::from_secs(60), "two packets take longer than {min_delay:?}");
    };
    assert_eq!(drain(&mut there), [Packet::from(&packet(1, 2, b"early"))]);
    let delay = here.deadline().unwrap() - start;
    assert!(delay >= min_delay, "{delay:?}");
    std::thread::sleep(delay);
    assert_eq!(here.receive(usize::MAX, &mut |_| ()).unwrap(), 0);
    assert_eq!(drain(&mut there), [Packet::from(&packet(1, 2, b"late"))]);
    assert_eq!(here.deadline(), None);
}

#[test]
fn received_packets_get_the_configured_icrc_check() {
    for (strict_icrc, expected) in [(true, IcrcCheck::IpIdBelow(64)), (false, IcrcCheck::Trusted)] {
        let (mut here, mut there) = attach_two(FaultConfig { strict_icrc, ..FaultConfig::new(0) });
        there.send(&[packet(2, 1, b"x")]).unwrap();
        assert_eq!(drain(&mut here)[0].icrc, Some(expected));
    }
}

/// A link that accepts few packets at a time, and sometimes none.
struct LimitedLink(MemLink, usize);

impl Link for LimitedLink {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        self.1 += 1;
        self.0.send(&packets[..packets.len().min(self.1 % 4)])
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        self.0.receive(max, each)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.readiness_fd()
    }

    fn is_receiver_full(&self, packet: &TxPacket<'_>) -> bool {
        self.0.is_receiver_full(packet)
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        Ok(TimedSend::untimed(self.send(std::slice::from_ref(packet))?))
    }

    fn unsendable_packets(&self) -> u64 {
        self.0.unsendable_packets()
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        self.0.receive_buffer_bytes()
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        self.0.set_wake_interest(enabled)
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        self.0.source_ports()
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        self.0.multicast_groups()
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        self.0.receive_timestamps()
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        self.0.address_sharing()
    }
}

#[test]
fn a_link_that_accepts_few_packets_gets_each_once() {
    let switch = Switch::new(SwitchConfig { max_queued_packets: PACKET_COUNT, ..SwitchConfig::default() });
    let [here, mut there] = [1, 2].map(|host| switch.attach(address(host)).unwrap());
    let config = FaultConfig { loss_ppm: 100_000, corruption_ppm: 100_000, ..FaultConfig::new(8) };
    let mut here = FaultLink::new(LimitedLink(here, 0), config);
    let numbers: Vec<[u8; 32]> = (0..1000).map(numbered_bytes).collect();
    let packets: Vec<_> = numbers.iter().map(|bytes| packet(1, 2, bytes)).collect();
    let mut rest = &packets[..];
    while !rest.is_empty() {
        rest = &rest[here.send(rest).unwrap()..];
    }
    let FaultCounts { untouched, lost, corrupted, .. } = here.counts();
    assert_eq!(untouched + lost + corrupted, 1000);
    let got = drain(&mut there);
    assert_eq!(got.len() as u64, untouched + corrupted);
    // The packet contains its number twice, and at most one of the two is corrupt.
    let mut last = None;
    for packet in got {
        let number = numbers
            .iter()
            .position(|sent| sent[..8] == packet.bytes[..8] || sent[24..] == packet.bytes[24..]);
        let intact = packet.bytes[..8] == packet.bytes[24..];
        assert!(number.is_some());
        if intact {
            assert!(last < number);
            last = number;
        }
    }
}
