//! Source ports that a link opens on demand, on loopback.

#![cfg(target_os = "linux")]

mod support;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use adverb_proto::Path;
use adverb_soft::link::{Bundle, Link, SourcePorts, TxPacket, UdpConfig, UdpLink};
use adverb_wire::Flow;

use support::{collect, datagram, open_loopback};

/// Returns the address of a link.
fn ip(link: &UdpLink) -> IpAddr {
    link.local_addr().ip()
}

/// Opens a source port of a link.
fn open(link: &mut UdpLink, preferred: u16) -> u16 {
    link.open_source_port(ip(link), preferred)
}

/// Whether another program could bind this port at the link's address.
fn is_free(link: &UdpLink, port: u16) -> bool {
    UdpSocket::bind((ip(link), port)).is_ok()
}

/// Returns packets from these source ports to a link. Their PSNs count from 0.
fn packets<'a>(
    from: &UdpLink,
    to: &UdpLink,
    ports: &[u16],
    bytes: &'a mut Vec<Vec<u8>>,
) -> Vec<TxPacket<'a>> {
    let sources: Vec<_> = ports.iter().map(|port| SocketAddr::new(ip(from), *port)).collect();
    *bytes = (0..)
        .zip(&sources)
        .map(|(psn, source)| {
            let flow = Flow::new(*source, to.local_addr()).unwrap();
            datagram(&flow, 0, psn, b"a payload")
        })
        .collect();
    let to_packet = |(source, bytes): (SocketAddr, &'a Vec<u8>)| TxPacket {
        source,
        destination: to.local_addr(),
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        bytes,
    };
    sources.into_iter().zip(&*bytes).map(to_packet).collect()
}

#[test]
fn packets_leave_from_the_ports_of_their_flow_labels() {
    let [mut here, mut there] = [(); 2].map(|()| open_loopback(|_| ()));
    // The permanent ports, other ports (beyond the system's ephemeral ports), and a port that two labels map to.
    let labels = (1..=15).chain((0..48).map(|number| (0x1_4321 * number) | 0x3000)).chain([0x4000]);
    let ports: Vec<u16> = labels
        .map(|label| {
            let preferred = Path::source_port_of_label(label);
            assert_eq!(open(&mut here, preferred), preferred, "the port of label {label:#x}");
            preferred
        })
        .collect();
    assert_eq!(ports.len(), 64);
    let mut bytes = Vec::new();
    let packets = packets(&here, &there, &ports, &mut bytes);
    assert_eq!(here.send(&packets).unwrap(), 64);
    for got in collect(&mut there, 64) {
        let flow = Flow::new(got.source, got.destination).unwrap();
        let packet = adverb_wire::Packet::parse(&got.bytes).unwrap();
        assert!(flow.recover_ip_id(&packet).is_ok(), "the ICRC covers the port {}", got.source.port());
        assert_eq!(got.source.port(), ports[packet.header().psn.get() as usize]);
    }
    assert_eq!(here.statistics(), Default::default());
}

#[test]
fn a_port_of_another_program_is_replaced_by_a_permanent_one() {
    let mut link = open_loopback(|_| ());
    let port = 0xf00a;
    let other = UdpSocket::bind((ip(&link), port)).unwrap();
    let fallback = link.source_port(ip(&link), port);
    assert_eq!(open(&mut link, port), fallback);
    assert!((0xc000..0xc020).contains(&fallback));
    assert_eq!(open(&mut link, port), fallback, "the same each time");
    assert_eq!(link.statistics().source_port_fallbacks, 2);
    // Ending the use of a permanent port changes nothing.
    link.close_source_port(ip(&link), fallback);
    link.close_source_port(ip(&link), fallback);
    drop(other);
    assert_eq!(open(&mut link, port), port);
    assert_eq!(link.statistics().source_port_fallbacks, 2);
}

#[test]
fn at_the_limit_the_port_that_was_unused_for_the_longest_time_is_closed() {
    let mut link = open_loopback(|config| config.max_on_demand_ports = 3);
    for port in [0xf000, 0xf001, 0xf002, 0xf001] {
        assert_eq!(open(&mut link, port), port);
    }
    let fallback = link.source_port(ip(&link), 0xf003);
    assert_eq!(open(&mut link, 0xf003), fallback, "all ports are in use");
    assert_eq!(link.statistics().source_port_fallbacks, 1);
    // A port that has been used twice is in use until both uses end.
    link.close_source_port(ip(&link), 0xf001);
    assert_eq!(open(&mut link, 0xf003), fallback);
    link.close_source_port(ip(&link), 0xf001);
    link.close_source_port(ip(&link), 0xf000);
    assert!(!is_free(&link, 0xf000) && !is_free(&link, 0xf001), "unused ports stay open");
    assert_eq!(open(&mut link, 0xf003), 0xf003);
    assert!(is_free(&link, 0xf001) && !is_free(&link, 0xf000) && !is_free(&link, 0xf002));
    // A port that is used again isn't closed.
    assert_eq!(open(&mut link, 0xf000), 0xf000);
    assert_eq!(open(&mut link, 0xf001), link.source_port(ip(&link), 0xf001));
    assert_eq!(link.statistics().source_port_fallbacks, 3);

    let mut bytes = Vec::new();
    let packets_to_itself = packets(&link, &link, &[0xf000, 0xf001, 0xf003], &mut bytes);
    assert_eq!(link.send(&packets_to_itself).unwrap(), 3);
    let got: Vec<u16> = collect(&mut link, 2).iter().map(|packet| packet.source.port()).collect();
    assert_eq!(got, [0xf000, 0xf003]);
    assert_eq!(link.statistics().unsendable, 1, "a closed port sends nothing");
}

#[test]
fn flows_without_a_flow_label_never_get_a_port_that_may_be_closed() {
    let mut link = open_loopback(|config| config.max_on_demand_ports = 1);
    let before = link.source_port(ip(&link), 0xf005);
    assert_eq!(open(&mut link, 0xf005), 0xf005);
    assert_eq!(link.source_port(ip(&link), 0xf005), before);
    assert_ne!(before, 0xf005);
}

#[test]
fn a_link_without_ports_on_demand_has_only_the_permanent_ones() {
    let mut link = open_loopback(|config| config.max_on_demand_ports = 0);
    assert_eq!(open(&mut link, 0xc003), 0xc003);
    assert_eq!(open(&mut link, 0xf003), link.source_port(ip(&link), 0xf003));
    assert_eq!(link.statistics().source_port_fallbacks, 1);
}

#[test]
fn a_link_at_another_port_sends_from_that_port_only() {
    let default_link = open_loopback(|_| ());
    let mut config = UdpConfig::new(ip(&default_link));
    config.port = 4792;
    let mut other = UdpLink::open(&config).unwrap();
    assert_eq!(open(&mut other, 0xf000), 4792);
    other.close_source_port(ip(&other), 4792);
    assert_eq!(other.statistics().source_port_fallbacks, 0, "the address determines the port");
    assert!(is_free(&other, 0xf000));
}

#[test]
fn a_bundle_opens_the_port_of_the_link_that_has_the_address() {
    let links = [(); 2].map(|()| open_loopback(|_| ()));
    let addresses = [ip(&links[0]), ip(&links[1])];
    let mut bundle = Bundle::new().unwrap();
    for link in links {
        bundle.add(ip(&link), link).unwrap();
    }
    assert_eq!(bundle.open_source_port(addresses[1], 0xf000), 0xf000);
    let is_taken = |address| {
        let bound = UdpSocket::bind((address, 0xf000));
        bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    };
    assert_eq!(addresses.map(is_taken), [false, true]);
}
