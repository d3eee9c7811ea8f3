//! Helpers of the tests of links.

#![allow(dead_code, reason = "each test uses some of it")]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_proto::IcrcCheck;
use adverb_soft::link::{Link, RxPacket, TxPacket, UdpConfig, UdpLink};
use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Psn, Qpn, Ud};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A received or expected packet.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: Option<u8>,
    pub(crate) icrc: Option<IcrcCheck>,
    pub(crate) bytes: Vec<u8>,
}

impl PartialEq for Packet {
    /// Compares all fields except the ICRC check.
    fn eq(&self, other: &Packet) -> bool {
        let header_fields = |packet: &Packet| {
            let Packet { source, destination, traffic_class, hop_limit, .. } = *packet;
            (source, destination, traffic_class, hop_limit)
        };
        header_fields(self) == header_fields(other) && self.bytes == other.bytes
    }
}

impl From<&TxPacket<'_>> for Packet {
    fn from(packet: &TxPacket<'_>) -> Packet {
        Packet {
            source: packet.source,
            destination: packet.destination,
            traffic_class: packet.traffic_class,
            hop_limit: Some(if packet.hop_limit == 0 { 64 } else { packet.hop_limit }),
            icrc: None,
            bytes: packet.bytes.to_vec(),
        }
    }
}

impl From<&RxPacket<'_>> for Packet {
    fn from(packet: &RxPacket<'_>) -> Packet {
        Packet {
            source: packet.source,
            destination: packet.destination,
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            icrc: Some(packet.icrc),
            bytes: packet.bytes.to_vec(),
        }
    }
}

/// Returns the address of a host with this number.
pub(crate) fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

/// Returns the number of the host with this address.
pub(crate) fn host(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    }
}

/// Returns a packet from one host to another.
pub(crate) fn packet(from: u8, to: u8, bytes: &[u8]) -> TxPacket<'_> {
    TxPacket {
        source: SocketAddr::new(address(from), 0xc000),
        destination: SocketAddr::new(address(to), 4791),
        traffic_class: 0x1a,
        hop_limit: 9,
        flow_label: 0,
        bytes,
    }
}

/// Returns a whole packet, whose ICRC is correct for this IP ID.
pub(crate) fn datagram(flow: &Flow, ip_id: u16, psn: u32, payload: &[u8]) -> Vec<u8> {
    let operation = Operation::Ud(Ud { qkey: 0x1111_1111, source_qp: Qpn::truncate(0x42), immediate: None });
    let header = Header::new(Qpn::truncate(0x11), Psn::wrapping(psn), operation);
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(&header, ip_id, &[payload], &mut head).unwrap();
    [&head[..emitted.header_len], payload, &emitted.trailer].concat()
}

/// Receives all available packets.
pub(crate) fn drain(link: &mut impl Link) -> Vec<Packet> {
    let mut packets = Vec::new();
    while link.receive(usize::MAX, &mut |packet| packets.push(packet.into())).unwrap() > 0 {}
    packets
}

/// Receives at least `count` packets. Waits at most ten seconds whenever no packet is available.
pub(crate) fn collect(link: &mut impl Link, count: usize) -> Vec<Packet> {
    let mut packets = Vec::new();
    while packets.len() < count {
        wait(link);
        packets.extend(drain(link));
    }
    packets
}

/// Whether a link's descriptor is readable.
pub(crate) fn is_readable(link: &impl Link) -> bool {
    poll_for(link, PollTimeout::ZERO)
}

/// Waits at most ten seconds until a link's descriptor is readable.
pub(crate) fn wait(link: &impl Link) {
    assert!(poll_for(link, PollTimeout::from(10_000_u16)), "no packet arrived within ten seconds");
}

fn poll_for(link: &impl Link, timeout: PollTimeout) -> bool {
    let fd = link.readiness_fd().expect("a descriptor");
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout).unwrap() > 0
}

/// Opens a link at an unused loopback address, with a configuration that `change` changes.
pub(crate) fn open_loopback(change: impl Fn(&mut UdpConfig)) -> UdpLink {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Tests run in many processes at once, so each process starts at another address.
        let first = std::process::id().wrapping_mul(0x9e37_79b1) >> 9;
        let host = first.wrapping_add(number) & 0x7f_ffff | 0x10_0000;
        let mut config = UdpConfig::new(IpAddr::V4(Ipv4Addr::from_bits(127 << 24 | host)));
        change(&mut config);
        match UdpLink::open(&config) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            link => return link.unwrap(),
        }
    }
}
