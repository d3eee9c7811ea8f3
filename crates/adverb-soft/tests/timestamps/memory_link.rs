//! The in-memory switch, with injected delays, and loopback.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::types::{TimestampSource, Transport};
use adverb_soft::NicOptions;
use adverb_soft::link::{
    AddressSharing, Bundle, Capture, FaultConfig, FaultLink, Link, MemLink, MulticastGroups,
    ReceiveTimestamps, RxPacket, SourcePorts, Switch, SwitchConfig, TimedSend, TxPacket,
};
// ThreadSanitizer doesn't see the locks of the standard library, which is not instrumented.
use parking_lot::Mutex;

use crate::node::{Node, distance};
use crate::support::{address, packet};

/// The calls of a [`SendRecordingLink`].
#[derive(Debug, Default)]
struct Calls {
    /// The times before and after each send that the link accepted.
    sends: Vec<(Instant, Instant)>,
    set_timestamps: Vec<bool>,
    /// The number of sends that the link will reject.
    rejected_send_count: u32,
    /// The time of the last send that the link rejected.
    rejected_at: Option<Instant>,
}

/// A link that records when it sends.
struct SendRecordingLink(MemLink, Arc<Mutex<Calls>>);

impl Link for SendRecordingLink {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        let mut calls = self.1.lock();
        if calls.rejected_send_count > 0 {
            calls.rejected_send_count -= 1;
            calls.rejected_at = Some(Instant::now());
            return Ok(0);
        }
        let before = Instant::now();
        let sent = self.0.send(packets);
        calls.sends.push((before, Instant::now()));
        sent
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
        Some(self)
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        self.0.address_sharing()
    }
}

impl ReceiveTimestamps for SendRecordingLink {
    fn set_timestamps(&mut self, enabled: bool) -> io::Result<TimestampSource> {
        self.1.lock().set_timestamps.push(enabled);
        self.0.set_timestamps(enabled)
    }
}

fn delaying_faults(delay: Duration) -> FaultConfig {
    FaultConfig { delay_ppm: 1_000_000, min_delay: delay, max_delay: delay, ..FaultConfig::new(1) }
}

/// Creates two nodes on a switch. The sends of the first node are delayed and recorded.
fn nodes(transport: Transport, latency: Duration) -> (Node, Node, Arc<Mutex<Calls>>) {
    let switch = Switch::new(SwitchConfig::default());
    let [here, there] = [1, 2].map(|host| switch.attach(address(host)).unwrap());
    let calls = Arc::new(Mutex::new(Calls::default()));
    let here = SendRecordingLink(here, Arc::clone(&calls));
    let one = match latency {
        Duration::ZERO => NicOptions::new([address(1)], here),
        latency => NicOptions::new([address(1)], FaultLink::new(here, delaying_faults(latency))),
    };
    let (one, other) =
        (Node::new(transport, one), Node::new(transport, NicOptions::new([address(2)], there)));
    one.connect(&other);
    other.connect(&one);
    (one, other, calls)
}

#[test]
fn timestamp_differences_include_link_delays() {
    for milliseconds in [1, 5, 20] {
        let latency = Duration::from_millis(milliseconds);
        let (one, other, calls) = nodes(Transport::Ud, latency);
        for number in 0..10 {
            other.post_recv();
            let before = Instant::now();
            one.post_send(&other, b"delayed");
            let sent = one.completion();
            assert_eq!(distance(sent, (before, Instant::now())), Duration::ZERO);
            let received = other.completion();
            // The packet was delivered when the delaying link sent it on, which is never early and may be late.
            let delivered = calls.lock().sends[number];
            assert_eq!(distance(received, delivered), Duration::ZERO);
            let difference = received.duration_since(sent);
            let late = delivered.1.saturating_duration_since(sent + latency);
            assert!(difference >= latency && difference <= latency + late, "{difference:?}");
        }
    }
}

#[test]
fn a_packet_that_waits_in_the_queue_has_the_time_of_its_delivery() {
    let switch = Switch::new(SwitchConfig::default());
    let mut here = switch.attach(address(1)).unwrap();
    let mut there = switch.attach(address(2)).unwrap();
    let receive_times = |link: &mut MemLink| {
        let mut times = Vec::new();
        link.receive(usize::MAX, &mut |packet| times.push(packet.received_at)).unwrap();
        times
    };
    here.send(&[packet(1, 2, b"a")]).unwrap();
    assert_eq!(receive_times(&mut there), [None], "timestamps are disabled");
    there.set_timestamps(true).unwrap();
    let mut sends = Vec::new();
    for _ in 0..3 {
        let before = Instant::now();
        here.send(&[packet(1, 2, b"a")]).unwrap();
        sends.push((before, Instant::now()));
        std::thread::sleep(Duration::from_millis(5));
    }
    let times = receive_times(&mut there);
    assert_eq!(times.len(), 3);
    for (time, send) in times.into_iter().zip(sends) {
        assert_eq!(distance(time.unwrap(), send), Duration::ZERO);
    }
    there.set_timestamps(false).unwrap();
    here.send(&[packet(1, 2, b"a")]).unwrap();
    assert_eq!(receive_times(&mut there), [None]);
}

#[test]
fn a_reliable_send_has_the_receive_time_of_the_acknowledgement() {
    let latency = Duration::from_millis(5);
    // The acknowledgements of the receiving node are delayed.
    let (other, one, calls) = nodes(Transport::Rc, latency);
    for number in 0..5 {
        other.post_recv();
        one.post_send(&other, b"acknowledged");
        let received = other.completion();
        let completed = loop {
            // The acknowledgement is sent when the receiver polls again.
            assert_eq!(other.try_completion(), None);
            if let Some(completed) = one.try_completion() {
                break completed;
            }
        };
        assert_eq!(distance(completed, calls.lock().sends[number]), Duration::ZERO);
        assert!(completed >= received + latency);
    }
}

#[test]
fn a_retried_packet_is_stamped_when_it_is_sent() {
    for rejected_send_count in 1..=4 {
        let (one, other, calls) = nodes(Transport::Ud, Duration::ZERO);
        other.post_recv();
        calls.lock().rejected_send_count = rejected_send_count;
        one.post_send(&other, b"refused");
        std::thread::sleep(Duration::from_millis(2));
        let (sent, received) = (one.completion(), other.completion());
        let calls = calls.lock();
        assert_eq!((calls.rejected_send_count, calls.sends.len()), (0, 1));
        let (before, after) = calls.sends[0];
        assert!(sent <= before, "the time is read before the packet is sent");
        assert!(distance(received, (before, after)) == Duration::ZERO);
        // Each attempt reads the time again.
        assert!(calls.rejected_at.is_some_and(|rejected_at| rejected_at <= sent));
    }
}

#[test]
fn timed_datagrams_are_sent_one_by_one_each_with_its_own_time() {
    let (one, other, calls) = nodes(Transport::Ud, Duration::ZERO);
    for _ in 0..40 {
        other.post_recv();
    }
    for _ in 0..40 {
        one.post_send(&other, b"one of many");
    }
    let sends = calls.lock().sends.clone();
    assert_eq!(sends.len(), 40);
    let mut last = None;
    for (index, send) in sends.into_iter().enumerate() {
        let (sent, received) = (one.completion(), other.completion());
        assert!(sent <= send.0 && last < Some(sent), "{index}");
        assert_eq!(distance(received, send), Duration::ZERO, "{index}");
        last = Some(sent);
    }
}

#[test]
fn queue_pairs_of_one_nic_use_its_clock() {
    for transport in [Transport::Ud, Transport::Rc] {
        let node = Node::new(transport, NicOptions::loopback());
        node.connect(&node);
        for _ in 0..3 {
            node.post_recv();
            let before = Instant::now();
            node.post_send(&node, b"to myself");
            let stamps = [node.completion(), node.completion()];
            let call = (before, Instant::now());
            assert!(stamps.iter().all(|stamp| distance(*stamp, call) == Duration::ZERO), "{transport:?}");
        }
    }
}

#[test]
fn the_link_stamps_packets_while_a_queue_with_timestamps_exists() {
    let calls = Arc::new(Mutex::new(Calls::default()));
    let link = SendRecordingLink(Switch::default().attach(address(1)).unwrap(), Arc::clone(&calls));
    let nic = adverb_soft::Nic::open(NicOptions::new([address(1)], link)).unwrap();
    let history = || calls.lock().set_timestamps.clone();
    let plain = nic.create_cq(8, None).unwrap();
    assert_eq!(history(), []);
    let timed = [nic.create_timed_cq(8, None).unwrap(), nic.create_timed_cq(8, None).unwrap()];
    assert_eq!(history(), [true]);
    nic.destroy_cq(plain).unwrap();
    nic.destroy_cq(timed[0]).unwrap();
    assert_eq!(history(), [true]);
    nic.destroy_cq(timed[1]).unwrap();
    assert_eq!(history(), [true, false]);
    assert!(nic.destroy_cq(timed[1]).is_err());
    nic.create_timed_cq(8, None).unwrap();
    assert_eq!(history(), [true, false, true]);
}

#[test]
fn links_around_links_pass_timestamps_on() {
    let switch = Switch::default();
    let mut here = switch.attach(address(1)).unwrap();
    let there = switch.attach(address(2)).unwrap();
    let capture = Capture::new(io::sink());
    let wrapped = capture.watch("wrapped", FaultLink::new(there, FaultConfig::new(1)));
    let mut bundle = Bundle::new().unwrap();
    bundle.add(address(2), wrapped).unwrap();
    let mut there: Box<dyn Link> = Box::new(bundle);
    let timestamps = there.receive_timestamps().unwrap();
    assert_eq!(timestamps.set_timestamps(true).unwrap(), TimestampSource::Process);
    let before = Instant::now();
    here.send(&[packet(1, 2, b"wrapped")]).unwrap();
    let send = (before, Instant::now());
    let mut time = None;
    there.receive(1, &mut |packet| time = packet.received_at).unwrap();
    assert_eq!(distance(time.unwrap(), send), Duration::ZERO);
}
