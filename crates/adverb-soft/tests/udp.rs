//! RoCEv2 over UDP sockets on the loopback interface. The tests need no privileges.

#![cfg(target_os = "linux")]

mod support;

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use adverb_proto::IcrcCheck;
use adverb_soft::link::{Bundle, Link, TxPacket, UdpConfig, UdpLink};
use adverb_wire::Flow;

use support::{Packet, collect, datagram, drain, is_readable, open_loopback, wait};

/// Returns a packet from one link to another.
fn packet_between<'a>(from: &UdpLink, to: &UdpLink, bytes: &'a [u8]) -> TxPacket<'a> {
    TxPacket {
        source: from.source_addr(0xc000),
        destination: to.local_addr(),
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        bytes,
    }
}

/// Sends packets and receives them, a few at a time so that no buffer overflows. Returns the received packets.
fn exchange(from: &mut UdpLink, to: &mut UdpLink, packets: &[TxPacket<'_>]) -> Vec<Packet> {
    let mut got = Vec::new();
    for batch in packets.chunks(100) {
        let mut rest = batch;
        while !rest.is_empty() {
            rest = &rest[from.send(rest).unwrap()..];
        }
        got.extend(collect(to, batch.len()));
    }
    got
}

/// Opens a link at `::1`, the only IPv6 loopback address, at the first unused port.
fn open_v6() -> UdpLink {
    let mut config = UdpConfig::new("::1".parse().unwrap());
    loop {
        match UdpLink::open(&config) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => config.port += 1,
            link => return link.unwrap(),
        }
    }
}

#[test]
fn a_link_at_another_port_receives_and_sends_there() {
    let default_link = open_loopback(|_| ());
    let mut config = UdpConfig::new(default_link.local_addr().ip());
    config.port = 4792;
    let mut other = UdpLink::open(&config).unwrap();
    assert_eq!((other.local_addr().ip(), other.local_addr().port()), (default_link.local_addr().ip(), 4792));
    assert_eq!(other.gid().udp_addr(), other.local_addr());
    assert_eq!(other.source_addr(0xc123), other.local_addr());
    // The packets are more than one GSO batch, so the IP IDs and ICRCs of batches are checked, too.
    let mut default_link = default_link;
    for (from, to) in [(0, 1), (1, 0)] {
        let links = [&mut default_link, &mut other];
        let packet = packet_between(links[from], links[to], b"");
        let flow = Flow::new(packet.source, packet.destination).unwrap();
        let bytes: Vec<Vec<u8>> = (0..100).map(|psn| datagram(&flow, 0, psn, b"some bytes!!")).collect();
        let packets: Vec<_> = bytes.iter().map(|bytes| TxPacket { bytes, ..packet }).collect();
        let mut rest = &packets[..];
        while !rest.is_empty() {
            rest = &rest[links[from].send(rest).unwrap()..];
        }
        for (psn, got) in (0..).zip(collect(links[to], 100)) {
            assert_eq!((got.source, got.destination), (packet.source, packet.destination));
            let parsed = adverb_wire::Packet::parse(&got.bytes).unwrap();
            assert_eq!(parsed.header().psn.get(), psn);
            assert!(flow.recover_ip_id(&parsed).unwrap() < 64);
        }
    }
    assert_eq!(UdpLink::open(&config).unwrap_err().kind(), ErrorKind::AddrInUse);
    for (address, port) in [(config.address, 4790), (config.address, 0), ("fd77::1".parse().unwrap(), 4792)] {
        let mut config = UdpConfig::new(address);
        config.port = port;
        assert_eq!(UdpLink::open(&config).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn packets_of_all_lengths_arrive_intact_and_in_order() {
    let [mut here, mut there] = [(); 2].map(|()| open_loopback(|_| ()));
    let bytes: Vec<u8> = (0..5000).map(|number| (number % 251) as u8).collect();
    let mut packets = Vec::new();
    for length in (0..=4096 + 68).step_by(7) {
        packets.push(TxPacket {
            traffic_class: (length % 256) as u8,
            hop_limit: (length % 65) as u8,
            ..packet_between(&here, &there, &bytes[length % 13..][..length])
        });
    }
    let expected: Vec<Packet> = packets.iter().map(Packet::from).collect();
    let got = exchange(&mut here, &mut there, &packets);
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(got, expected);
        assert_eq!(got.icrc, Some(IcrcCheck::AnyIpId));
    }
    assert!(!is_readable(&there));
    assert_eq!(there.receive(usize::MAX, &mut |_| ()).unwrap(), 0);
    assert_eq!(here.statistics(), Default::default());
    assert_eq!(there.statistics(), Default::default());
}

#[test]
fn packets_of_a_gso_batch_have_ascending_ip_ids_and_matching_icrcs() {
    let [mut here, mut there] = [(); 2].map(|()| open_loopback(|_| ()));
    let template = packet_between(&here, &there, &[]);
    let flow = Flow::new(template.source, template.destination).unwrap();
    // Runs of packets of one length, each followed by a shorter packet, and one packet of another traffic class.
    let mut lengths = vec![1024; 100];
    lengths.extend([512, 1024, 1024, 4, 8, 8, 8, 8, 0, 1024, 4096, 4096, 4096, 100]);
    let bytes: Vec<Vec<u8>> = lengths
        .iter()
        .zip(0..)
        .map(|(length, psn)| datagram(&flow, 0, psn, &vec![psn as u8; *length]))
        .collect();
    let mut packets: Vec<_> = bytes.iter().map(|bytes| TxPacket { bytes, ..template }).collect();
    packets[10].traffic_class = 2;
    let got = exchange(&mut here, &mut there, &packets);
    assert_eq!(got.len(), packets.len());
    let mut numbers = Vec::new();
    for (got, sent) in got.iter().zip(&packets) {
        let packet = adverb_wire::Packet::parse(&got.bytes).unwrap();
        numbers.push(flow.recover_ip_id(&packet).unwrap());
        // All bytes but the ICRC are equal.
        assert_eq!(got.bytes[..got.bytes.len() - 4], sent.bytes[..sent.bytes.len() - 4]);
        assert_eq!(got.traffic_class, sent.traffic_class);
    }
    let expected: Vec<u16> = (0..10).chain([0]).chain(0..53).collect();
    assert_eq!(numbers[..64], expected[..]);
    assert!(numbers.iter().all(|number| *number < 64));
    assert!(here.is_gso_enabled());
}

#[test]
fn gso_batches_of_short_packets_have_matching_icrcs() {
    let [mut here, mut there] = [(); 2].map(|()| open_loopback(|_| ()));
    let template = packet_between(&here, &there, &[]);
    let flow = Flow::new(template.source, template.destination).unwrap();
    // A packet has 24 bytes besides its payload. The link copies the first four batches; the others are too long, or their
    // second packet is longer than the first.
    for lengths in [&[64, 0][..], &[64, 64], &[8, 8, 8, 8], &[104, 104], &[104, 108], &[105, 105], &[40; 5]] {
        let payload =
            |psn: u32, length: usize| (0..length).map(|index| (psn as usize + index) as u8).collect();
        let payloads: Vec<Vec<u8>> =
            lengths.iter().zip(0..).map(|(length, psn)| payload(psn, *length)).collect();
        let bytes: Vec<Vec<u8>> =
            payloads.iter().zip(0..).map(|(payload, psn)| datagram(&flow, 0, psn, payload)).collect();
        let packets: Vec<_> = bytes.iter().map(|bytes| TxPacket { bytes, ..template }).collect();
        let got = exchange(&mut here, &mut there, &packets);
        assert_eq!(got.len(), lengths.len());
        for (index, got) in got.iter().enumerate() {
            let packet = adverb_wire::Packet::parse(&got.bytes).unwrap();
            assert_eq!((packet.header().psn.get(), packet.payload()), (index as u32, &payloads[index][..]));
            // A longer packet begins another batch.
            let number = if lengths[index] > lengths[0] { 0 } else { index as u16 };
            assert_eq!(flow.recover_ip_id(&packet), Ok(number), "{lengths:?}");
        }
    }
    assert!(here.is_gso_enabled());
}

#[test]
fn ipv6_packets_arrive_intact_and_in_order() {
    if UdpSocket::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let mut link = open_v6();
    let bytes: Vec<u8> = (0..4096).map(|number| (number % 241) as u8).collect();
    let packets: Vec<_> = (0..400_usize)
        .map(|number| {
            let bytes = &bytes[..number * 10];
            let (traffic_class, hop_limit) = ((number % 256) as u8, (number % 65) as u8);
            TxPacket { traffic_class, hop_limit, bytes, ..packet_to_itself(&link) }
        })
        .collect();
    let mut got = Vec::new();
    for batch in packets.chunks(100) {
        assert_eq!(link.send(batch).unwrap(), batch.len());
        got.extend(collect(&mut link, batch.len()));
    }
    assert_eq!(got, packets.iter().map(Packet::from).collect::<Vec<_>>());
    assert!(got.iter().all(|packet| packet.icrc == Some(IcrcCheck::IpId(0))));
}

/// Returns a packet from a link to itself.
fn packet_to_itself(link: &UdpLink) -> TxPacket<'static> {
    packet_between(link, link, &[])
}

#[test]
fn received_packets_have_their_ecn_marks() {
    let [mut here, mut there] = [(); 2].map(|()| open_loopback(|_| ()));
    let marks = [0, 1, 2, 3, 0xfb, 0xfc];
    for traffic_class in marks {
        let packet = TxPacket { traffic_class, ..packet_between(&here, &there, b"x") };
        here.send(&[packet]).unwrap();
    }
    let mut got = Vec::new();
    while got.len() < marks.len() {
        wait(&there);
        there
            .receive(usize::MAX, &mut |packet| got.push((packet.traffic_class, packet.is_ecn_marked())))
            .unwrap();
    }
    assert_eq!(got, marks.map(|class| (class, class == 3 || class == 0xfb)));
}

#[test]
fn the_self_test_verifies_ip_id_0() {
    assert!(open_loopback(|_| ()).is_ip_id_verified());
}

#[test]
fn flows_share_a_bounded_number_of_source_ports() {
    let [mut here, mut there] = [(); 2].map(|()| open_loopback(|config| config.source_port_count = 5));
    let ports: HashSet<u16> = (0xc000..=0xffff).map(|preferred| here.source_addr(preferred).port()).collect();
    assert_eq!(ports.len(), 5);
    assert!(ports.iter().all(|port| *port >= 0xc000));
    for port in &ports {
        assert_eq!(here.source_addr(*port).port(), *port);
    }
    let packets: Vec<_> = (0xc000..0xc020)
        .map(|preferred| TxPacket {
            source: here.source_addr(preferred),
            ..packet_between(&here, &there, b"flow")
        })
        .collect();
    let got = exchange(&mut here, &mut there, &packets);
    let key = |packet: &Packet| packet.source;
    let mut expected: Vec<_> = packets.iter().map(|packet| packet.source).collect();
    let mut got: Vec<_> = got.iter().map(key).collect();
    expected.sort();
    got.sort();
    assert_eq!(got, expected);
}

#[test]
fn packets_from_other_sources_are_dropped_and_counted() {
    let mut link = open_loopback(|_| ());
    let packet = packet_to_itself(&link);
    let sources = [
        SocketAddr::new(packet.source.ip(), 4791),
        SocketAddr::new("127.0.0.1".parse().unwrap(), packet.source.port()),
        SocketAddr::new("239.255.77.9".parse().unwrap(), packet.source.port()),
        SocketAddr::new("::1".parse().unwrap(), packet.source.port()),
    ];
    for (count, source) in (1..).zip(sources) {
        let lost = TxPacket { source, ..packet };
        assert_eq!(link.send(&[packet, lost, lost, packet]).unwrap(), 4);
        assert_eq!(collect(&mut link, 2).len(), 2, "the packets around them are sent");
        assert_eq!(link.unsendable_packets(), 2 * count);
        assert_eq!(link.statistics().last_send_error, Some(ErrorKind::InvalidInput));
    }
}

#[test]
fn a_bundle_drops_and_counts_packets_from_other_addresses() {
    let link = open_loopback(|_| ());
    let packet = packet_to_itself(&link);
    let mut bundle = Bundle::new().unwrap();
    bundle.add(link.local_addr().ip(), link).unwrap();
    let lost = TxPacket { source: "239.255.77.9:49152".parse().unwrap(), ..packet };
    assert_eq!(bundle.send(&[packet, lost, lost, packet]).unwrap(), 4);
    assert_eq!(collect(&mut bundle, 2).len(), 2, "the packets around them are sent");
    assert_eq!(bundle.unsendable_packets(), 2);
    // Packets that the link itself can't send are counted, too.
    let no_route = TxPacket { destination: "192.0.2.1:4791".parse().unwrap(), ..packet };
    assert_eq!(bundle.send(&[no_route]).unwrap(), 1);
    assert_eq!(bundle.unsendable_packets(), 3);
}

#[test]
fn a_second_link_at_an_address_fails_with_a_hint() {
    let link = open_loopback(|_| ());
    let error = UdpLink::open(&UdpConfig::new(link.local_addr().ip())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains("another address"), "{error}");

    let error = UdpLink::open(&UdpConfig::new("192.0.2.1".parse().unwrap())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    for address in ["0.0.0.0", "::", "224.0.0.1"] {
        let error = UdpLink::open(&UdpConfig::new(address.parse().unwrap())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_packet_that_cannot_be_sent_is_counted_and_others_are_sent() {
    let [mut here, mut there] = [(); 2].map(|()| open_loopback(|_| ()));
    let good = packet_between(&here, &there, b"good");
    // The kernel sends no packet from a loopback address to another machine.
    let bad = TxPacket { destination: "192.0.2.1:4791".parse().unwrap(), ..good };
    let long = vec![0; 65_535];
    let too_long = TxPacket { bytes: &long, ..good };
    assert_eq!(here.send(&[good, bad, good, too_long, good]).unwrap(), 5);
    assert_eq!(collect(&mut there, 3).len(), 3);
    assert_eq!(here.statistics().unsendable, 2);
    assert!(here.statistics().last_send_error.is_some());
}

#[test]
fn a_datagram_longer_than_any_packet_is_dropped_and_counted() {
    let mut link = open_loopback(|_| ());
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(&[7; 9000], link.local_addr()).unwrap();
    sender.send_to(&[8; 4096], link.local_addr()).unwrap();
    let got = collect(&mut link, 1);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].bytes, [8; 4096]);
    assert_eq!(link.statistics().too_long, 1);
}

#[test]
fn packets_lost_to_a_full_receive_buffer_are_counted() {
    let mut here = open_loopback(|config| config.gso = false);
    let mut there = open_loopback(|config| config.receive_buffer_bytes = 20_000);
    let packet = packet_between(&here, &there, &[5; 1000]);
    let mut sent = 200;
    for _ in 0..2 {
        assert_eq!(here.send(&[packet; 100]).unwrap(), 100);
    }
    let mut got = drain(&mut there).len();
    // The kernel reports lost packets with the next packet.
    here.send(&[packet]).unwrap();
    sent += 1;
    wait(&there);
    got += drain(&mut there).len();
    assert!(got < sent, "{got} of {sent} fit {} bytes", there.receive_buffer_bytes());
    assert_eq!(got as u64 + there.statistics().overflows, sent as u64);
}

#[test]
fn adverb_peers_only_selects_the_strict_icrc_check() {
    let mut link = open_loopback(|config| config.adverb_peers_only = true);
    link.send(&[packet_to_itself(&link)]).unwrap();
    assert_eq!(collect(&mut link, 1)[0].icrc, Some(IcrcCheck::IpIdBelow(64)));
    assert_eq!(link.local_addr().port(), 4791);
    assert!(matches!(link.local_addr().ip(), IpAddr::V4(_)));
}

#[test]
fn receive_passes_at_most_max_packets_and_loses_none() {
    let [mut here, mut there] = [(); 2].map(|()| open_loopback(|_| ()));
    let bytes: Vec<[u8; 8]> = (0..600_u64).map(|number| (number << 32).to_be_bytes()).collect();
    let packet = packet_between(&here, &there, b"");
    let packets: Vec<_> = bytes.iter().map(|bytes| TxPacket { bytes, ..packet }).collect();
    assert_eq!(here.send(&packets).unwrap(), packets.len());
    assert!(here.is_gso_enabled(), "the packets are sent as GSO batches");
    let mut numbers = Vec::new();
    for max in [1, 5, 7, 256].into_iter().cycle() {
        let mut got = 0;
        let count = there.receive(max, &mut |packet| {
            // The other four bytes are at the position of the ICRC, which a batch changes.
            numbers.push(u32::from_be_bytes(packet.bytes[..4].try_into().unwrap()));
            got += 1;
        });
        assert_eq!(count.unwrap(), got);
        assert!(got <= max, "{got} packets of {max}");
        // If the descriptor isn't readable, the deadline shows that the link holds packets.
        assert!(there.deadline().is_some() || is_readable(&there) || numbers.len() == 600);
        if numbers.len() == 600 {
            break;
        }
    }
    assert_eq!(there.deadline(), None);
    assert!(numbers.into_iter().eq(0..600), "all, in order");
}
