//! UDP sockets on the loopback interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use adverb_proto::types::Transport;
use adverb_soft::NicOptions;
use adverb_soft::link::{Link, MulticastGroups, ReceiveTimestamps, TimedSend, TxPacket, UdpLink};

use crate::node::{Node, distance};
use crate::support::{open_loopback, wait};

/// The maximum error of a receive time over sockets. It is usually below 1 µs, and larger if the thread that measures
/// the offset of the clocks is preempted repeatedly.
const MAX_ERROR: Duration = Duration::from_micros(2);

fn packet(from: &UdpLink, to: SocketAddr) -> TxPacket<'static> {
    TxPacket {
        source: from.source_addr(0xc000),
        destination: to,
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        bytes: b"stamped by the kernel",
    }
}

fn receive_times(link: &mut UdpLink) -> Vec<Option<Instant>> {
    let mut times = Vec::new();
    wait(link);
    while link.receive(usize::MAX, &mut |packet| times.push(packet.received_at)).unwrap() > 0 {}
    times
}

/// Enables timestamps, and waits until the kernel stamps packets when it receives them. At first, it stamps them when
/// they are read.
fn enable_timestamps(sender: &mut UdpLink, receiver: &mut UdpLink) {
    receiver.set_timestamps(true).unwrap();
    let start = Instant::now();
    loop {
        sender.send(&[packet(sender, receiver.local_addr())]).unwrap();
        let sent = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        if receive_times(receiver).iter().all(|time| time.unwrap() <= sent + MAX_ERROR) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "the kernel does not stamp packets");
    }
}

#[test]
fn a_datagram_has_the_time_at_which_the_kernel_received_it() {
    let (mut here, mut there) = (open_loopback(|_| ()), open_loopback(|_| ()));
    let packet = packet(&here, there.local_addr());
    here.send(&[packet]).unwrap();
    assert_eq!(receive_times(&mut there), [None], "timestamps are disabled");
    enable_timestamps(&mut here, &mut there);
    for pause in [0, 1, 10, 150] {
        let before = Instant::now();
        here.send(&[packet]).unwrap();
        let send = (before, Instant::now());
        // On the loopback interface, the kernel receives a packet before the call that sends it returns, even if the
        // receiver reads it much later.
        std::thread::sleep(Duration::from_millis(pause));
        let times = receive_times(&mut there);
        assert_eq!(times.len(), 1);
        assert!(
            distance(times[0].unwrap(), send) < MAX_ERROR,
            "{:?} after {pause} ms",
            times[0].unwrap() - before
        );
    }
    there.set_timestamps(false).unwrap();
    here.send(&[packet]).unwrap();
    assert_eq!(receive_times(&mut there), [None]);
}

#[test]
fn the_packets_of_a_batch_have_one_time() {
    let (mut here, mut there) = (open_loopback(|_| ()), open_loopback(|_| ()));
    let packet = packet(&here, there.local_addr());
    enable_timestamps(&mut here, &mut there);
    let before = Instant::now();
    assert_eq!(here.send(&[packet; 20]).unwrap(), 20);
    let send = (before, Instant::now());
    let times = receive_times(&mut there);
    assert_eq!(times.len(), 20);
    assert!(times.iter().all(|time| distance(time.unwrap(), send) < MAX_ERROR));
    if here.is_gso_enabled() {
        assert!(times.iter().all(|time| *time == times[0]), "the kernel delivers the batch as a whole");
    }
}

#[test]
fn packets_to_groups_joined_before_and_after_enabling_timestamps_have_times() {
    let (mut here, mut there) = (open_loopback(|_| ()), open_loopback(|_| ()));
    let groups = [1, 2].map(|number| IpAddr::V4(Ipv4Addr::new(239, 77, 200, number)));
    there.join(groups[0]).unwrap();
    enable_timestamps(&mut here, &mut there);
    there.join(groups[1]).unwrap();
    for group in groups {
        let before = Instant::now();
        here.send(&[packet(&here, SocketAddr::new(group, 4791))]).unwrap();
        let send = (before, Instant::now());
        let times = receive_times(&mut there);
        assert!(!times.is_empty());
        assert!(times.iter().any(|time| distance(time.unwrap(), send) < MAX_ERROR));
    }
}

#[test]
fn completions_have_the_times_of_their_packets() {
    for transport in [Transport::Ud, Transport::Rc] {
        let nodes = [(), ()].map(|()| {
            let link = open_loopback(|_| ());
            Node::new(transport, NicOptions::new([link.local_addr().ip()], link))
        });
        let [one, other] = &nodes;
        one.connect(other);
        other.connect(one);
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..20 {
            other.post_recv();
            let before = Instant::now();
            one.post_send(other, b"hello");
            let posted = Instant::now();
            let received = other.completion();
            // The progress thread may have sent the packet after the call.
            assert!(received + MAX_ERROR >= before && received <= posted + Duration::from_secs(10));
            let sent = loop {
                assert_eq!(other.try_completion(), None);
                if let Some(sent) = one.try_completion() {
                    break sent;
                }
            };
            match transport {
                Transport::Ud => assert!(sent >= before && sent <= received + MAX_ERROR),
                _ => assert!(sent + MAX_ERROR >= received, "the acknowledgement follows the message"),
            }
        }
    }
}

#[test]
fn the_kernel_returns_the_send_time_of_each_packet_whose_send_time_is_requested() {
    let (mut here, mut there) = (open_loopback(|_| ()), open_loopback(|_| ()));
    enable_timestamps(&mut here, &mut there);
    let packet = packet(&here, there.local_addr());
    for round in 0..500 {
        // Packets whose send time isn't requested don't change the numbers of the others.
        if round % 7 == 0 {
            here.send(&[packet]).unwrap();
            receive_times(&mut there);
        }
        let before = Instant::now();
        let sent = here.send_timed(&packet).unwrap();
        let after = Instant::now();
        let TimedSend::Accepted(Some(time)) = sent else { panic!("{sent:?} in round {round}") };
        assert!(time >= before && time <= after, "round {round}");
        let received = receive_times(&mut there);
        let received = received[0].expect("a receive time");
        // The loopback interface sends a packet before it receives it.
        assert!(
            received + MAX_ERROR >= time,
            "round {round}: received {:?} before it was sent",
            time - received
        );
    }
    assert_eq!(here.unsendable_packets(), 0);
}

#[test]
fn a_packet_that_cannot_be_sent_has_no_send_time_and_is_counted() {
    let (mut here, mut there) = (open_loopback(|_| ()), open_loopback(|_| ()));
    let good = packet(&here, there.local_addr());
    assert!(matches!(here.send_timed(&good).unwrap(), TimedSend::Accepted(Some(_))));
    // The source isn't an address of the link.
    let foreign = TxPacket { source: SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 0xc000), ..good };
    assert_eq!(here.send_timed(&foreign).unwrap(), TimedSend::Accepted(None));
    // The packet is longer than any datagram.
    let long = TxPacket { bytes: &[0; 70_000], ..good };
    assert_eq!(here.send_timed(&long).unwrap(), TimedSend::Accepted(None));
    assert_eq!(here.unsendable_packets(), 2);
    assert!(matches!(here.send_timed(&good).unwrap(), TimedSend::Accepted(Some(_))), "later ones have times");
    assert_eq!(receive_times(&mut there).len(), 2);
}

#[test]
fn a_link_with_a_single_port_has_send_times_and_loses_no_header_fields() {
    let mut here = open_loopback(|config| config.port = 4800);
    let mut there = open_loopback(|config| config.port = 4801);
    enable_timestamps(&mut here, &mut there);
    let address = here.local_addr();
    let send_to_here = |there: &mut UdpLink| {
        let packet = TxPacket { traffic_class: 0x68, hop_limit: 7, ..packet(there, address) };
        there.send(&[packet]).unwrap();
    };
    // The socket that sends also receives.
    here.set_timestamps(true).unwrap();
    let sent = here.send_timed(&packet(&here, there.local_addr())).unwrap();
    assert!(matches!(sent, TimedSend::Accepted(Some(_))), "{sent:?}");
    send_to_here(&mut there);
    wait(&here);
    let mut seen = Vec::new();
    here.receive(usize::MAX, &mut |packet| {
        seen.push((packet.traffic_class, packet.hop_limit, packet.received_at.is_some()));
    })
    .unwrap();
    assert_eq!(seen, [(0x68, Some(7), true)]);
}
