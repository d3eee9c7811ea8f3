//! DSCP and ECN over UDP sockets: the marks of sent packets, and congestion notifications.
//!
//! `cargo xtask traffic` runs these tests while the kernel captures the packets.

#![cfg(feature = "soft")]

#[path = "common/sockets.rs"]
mod sockets;

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use adverb::memory::MemoryRegion;
use adverb::verbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Dcqcn, Device, FaultConfig, QueuePair, SendRequest,
    SoftDevice, Traffic, Transport,
};
use adverb_wire::{Frame, IpHeader, Opcode};
use sockets::{address, capture_file, open};

/// The DSCP of the test.
const DSCP: u8 = 26;

/// The ECN codepoints: not ECN-capable, ECN-capable, and congestion experienced.
const NOT_ECT: u8 = 0b00;
const ECT: u8 = 0b10;
const CE: u8 = 0b11;

#[test]
fn packets_have_the_dscp_of_their_queue_pair() {
    let file = capture_file("dscp");
    let receiver = open(SoftDevice::at_addr(address(1)));
    let sender = open(SoftDevice::at_addr(address(2)).capture(&file));
    let marked = Traffic::new().dscp(DSCP);
    for traffic in [marked, Traffic::new()] {
        // The timeout is so long that no packet is sent twice, even on a busy machine.
        let (connection, peer) = connect(&sender, &receiver, traffic, 22);
        connection.write(&peer.memory, 20_000);
    }
    drop(sender);
    let packets = packets(&file, address(2));
    let classes = |opcode: Opcode| -> Vec<u8> {
        packets.iter().filter(|packet| packet.opcode == opcode).map(|packet| packet.traffic_class).collect()
    };
    // Each write has five packets.
    assert_eq!(classes(Opcode::RcWriteFirst), [DSCP << 2 | NOT_ECT, 0]);
    assert_eq!(classes(Opcode::RcWriteLast), [DSCP << 2 | NOT_ECT, 0]);
}

#[test]
fn ecn_marks_cause_notifications_that_slow_the_sender() {
    let file = capture_file("ecn");
    // The intervals suit a slow machine and a debug build. The rate recovers slowly, too.
    let mut dcqcn = Dcqcn::new(100_000_000);
    (dcqcn.increase_interval, dcqcn.alpha_interval) = (Duration::from_millis(5), Duration::from_millis(5));
    (dcqcn.additive_increase, dcqcn.min_rate) = (1_000_000, 5_000_000);
    let marks = FaultConfig { ecn_mark_ppm: 500_000, ..FaultConfig::new(7) };
    let receiver = open(SoftDevice::at_addr(address(11)));
    let free = open(SoftDevice::at_addr(address(12)).dcqcn(dcqcn));
    let congested = open(SoftDevice::at_addr(address(13)).dcqcn(dcqcn).faults(marks).capture(&file));
    let without_dcqcn = open(SoftDevice::at_addr(address(14)).faults(marks));

    let rate = |device: &Device| {
        // The timeout is long, because packets that wait for the rate limiter aren't lost.
        let (connection, peer) = connect(device, &receiver, Traffic::new().dscp(DSCP), 17);
        connection.rate(&peer.memory)
    };
    let counter = |device: &Device, name: &str| device.counters(1).unwrap().get(name).unwrap();
    // A measurement without congestion.
    let mut before = rate(&free);
    assert_eq!(counter(&receiver, "np_ecn_marked_roce_packets"), 0);
    assert_eq!(counter(&free, "rp_cnp_handled"), 0);
    // Packets of a sender without DCQCN aren't ECN-capable, so they aren't marked.
    let unmarked = rate(&without_dcqcn);
    assert_eq!(counter(&receiver, "np_ecn_marked_roce_packets"), 0);
    // Half of the packets of a sender with DCQCN are marked.
    let after = rate(&congested);
    let marked = counter(&receiver, "np_ecn_marked_roce_packets");
    let (sent, received) = (counter(&receiver, "np_cnp_sent"), counter(&congested, "rp_cnp_handled"));
    // On a busy machine, the measurement without congestion may be too low, so it is repeated.
    for _ in 1..10 {
        if after < before / 4.0 {
            break;
        }
        before = before.max(rate(&free));
    }
    println!(
        "64 KiB WRITEs with DCQCN: {before:.0} Mbit/s before; {after:.0} Mbit/s with every other packet marked \
         ({marked} marked, {sent} notifications sent, {received} received); without DCQCN {unmarked:.0} Mbit/s"
    );
    assert!(marked > 0 && sent > 0 && received > 0 && received <= sent && sent <= marked);
    assert!(after < before / 4.0, "the sender hardly slows down");

    drop(congested);
    let packets = packets(&file, address(13));
    let ecn =
        |bits: u8| packets.iter().filter(move |packet| packet.traffic_class == DSCP << 2 | bits).count();
    assert!(ecn(ECT) > 0 && ecn(CE) > 0, "{} and {}", ecn(ECT), ecn(CE));
    assert_eq!(ecn(ECT) + ecn(CE), packets.len());
    let all = self::all_packets(&file);
    let cnp_count = all.iter().filter(|packet| packet.opcode == Opcode::Cnp).count();
    assert!(cnp_count as u64 >= received, "{cnp_count} notifications in the capture");
}

/// One end of a connection.
struct End {
    queue_pair: QueuePair,
    completions: CompletionQueue,
    memory: MemoryRegion,
}

impl End {
    fn new(device: &Device, traffic: Traffic) -> End {
        let domain = device.create_protection_domain().unwrap();
        let completions = device.completion_queue(64).events().create().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let builder = domain.queue_pair(Transport::Rc).completion_queue(&completions).access(access);
        let queue_pair = builder.depth(32, 1).traffic(traffic).create().unwrap();
        End { queue_pair, completions, memory: domain.allocate_region(LENGTH, access).unwrap() }
    }

    /// Posts a WRITE of `length` bytes.
    fn post(&self, remote: &MemoryRegion, length: usize) {
        let from = self.memory.slice(0..length).unwrap();
        self.queue_pair.post_send(SendRequest::write(from, remote.remote().at(0))).unwrap();
    }

    /// Writes `length` bytes, and waits for the completion.
    fn write(&self, remote: &MemoryRegion, length: usize) {
        self.post(remote, length);
        self.wait_completions(Duration::from_secs(20));
    }

    /// Waits for completions, and returns their number.
    fn wait_completions(&self, timeout: Duration) -> usize {
        let mut done: Vec<Completion> = Vec::new();
        self.completions.poll_timeout(&mut done, timeout).unwrap();
        done.iter().for_each(|completion| _ = completion.result().unwrap());
        done.len()
    }

    /// Measures the write rate for about a second. Returns Mbit/s.
    fn rate(&self, remote: &MemoryRegion) -> f64 {
        const DEPTH: usize = 8;
        (0..DEPTH).for_each(|_| self.post(remote, LENGTH));
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(1) {
            let done = self.wait_completions(Duration::from_secs(1));
            (0..done).for_each(|_| self.post(remote, LENGTH));
            count += done;
        }
        (count * LENGTH * 8) as f64 / start.elapsed().as_secs_f64() / 1e6
    }
}

const LENGTH: usize = 64 << 10;

/// Connects two devices with this acknowledgement timeout.
fn connect(left: &Device, right: &Device, traffic: Traffic, ack_timeout: u8) -> (End, End) {
    let (left, right) = (End::new(left, traffic), End::new(right, Traffic::new()));
    let options = ConnectOptions::new().ack_timeout(ack_timeout);
    left.queue_pair.connect_with(&right.queue_pair.endpoint(), &options).unwrap();
    right.queue_pair.connect_with(&left.queue_pair.endpoint(), &options).unwrap();
    (left, right)
}

/// A packet in a capture.
struct Captured {
    source: IpAddr,
    traffic_class: u8,
    opcode: Opcode,
}

/// Returns the packets of a capture from an address, in order.
fn packets(file: &Path, source: IpAddr) -> Vec<Captured> {
    all_packets(file).into_iter().filter(|packet| packet.source == source).collect()
}

/// Returns the packets of a capture (draft-ietf-opsawg-pcapng, 4.3).
fn all_packets(file: &Path) -> Vec<Captured> {
    const ENHANCED_PACKET: u32 = 6;
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut packets) = (0, Vec::new());
    while at + 12 <= bytes.len() {
        if word(at) == ENHANCED_PACKET {
            let length = word(at + 20) as usize;
            let frame = Frame::parse(&bytes[at + 28..][..length]).unwrap();
            let traffic_class = match frame.ip() {
                IpHeader::V4(header) => header.tos,
                IpHeader::V6(header) => header.traffic_class,
            };
            let (source, opcode) = (frame.ip().source(), frame.packet().header().opcode());
            packets.push(Captured { source, traffic_class, opcode });
        }
        at += word(at + 4) as usize;
    }
    packets
}
