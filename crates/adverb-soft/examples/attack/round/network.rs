//! The NICs and the hostile sockets, all on the loopback interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use adverb_proto::types::{Gid, PathMtu};
use adverb_soft::link::{Bundle, UdpConfig, UdpLink};
use adverb_soft::{Nic, NicOptions};
use adverb_wire::ROCE_PORT;

use super::sender::Sender;

/// The NICs and the hostile sockets.
pub(super) struct Network {
    pub(super) victim: Arc<Nic>,
    pub(super) peer: Arc<Nic>,
    /// The pairs of addresses by which the NICs reach each other, the attacked NIC's address first.
    pub(super) address_pairs: Vec<[IpAddr; 2]>,
    /// The hostile sockets. The last one of each address family is one that the attacked NIC can respond to.
    pub(super) senders: Vec<Sender>,
    pub(super) spoofer: Sender,
    pub(super) groups: Vec<SocketAddr>,
}

impl Network {
    /// Opens the network in an unused part of 127.0.0.0/8.
    pub(super) fn open() -> io::Result<Network> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let first = std::process::id().wrapping_mul(0x9e37_79b1) >> 12;
            match Network::open_at(first.wrapping_add(number)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                network => return network,
            }
        }
    }

    fn open_at(number: u32) -> io::Result<Network> {
        // 127.128.0.0/10, eight addresses for each number.
        let host = |host: u32| Ipv4Addr::from_bits(127 << 24 | 0x80_0000 | (number & 0x7_ffff) << 3 | host);
        let v6 = || open_v6(number);
        let (victim_nic, victim_v6) = open_nic(&[(host(1), ROCE_PORT), (host(2), ROCE_PORT + 1)], v6()?)?;
        let (peer_nic, peer_v6) = open_nic(&[(host(3), ROCE_PORT)], v6()?)?;
        let mut address_pairs = vec![
            [victim_nic.addresses()[0], peer_nic.addresses()[0]],
            [victim_nic.addresses()[1], peer_nic.addresses()[0]],
        ];
        let ports = [0, ROCE_PORT + 2, ROCE_PORT];
        let mut senders = Vec::new();
        for port in ports {
            senders.push(Sender::bind(SocketAddr::new(host(4).into(), port))?);
        }
        let mut groups = vec![SocketAddr::new([239, 255, 77, 9].into(), ROCE_PORT)];
        if let (Some(victim_addr), Some(peer_addr)) = (victim_v6, peer_v6) {
            address_pairs.push([victim_addr, peer_addr]);
            senders.push(Sender::bind(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0))?);
            senders.push(bind_v6(number)?);
            groups.push(SocketAddr::new([0xff02, 0, 0, 0, 0, 0, 7, 0x7709].into(), ROCE_PORT));
        }
        let spoofer = Sender::bind(SocketAddr::new(host(3).into(), 0))?;
        Ok(Network {
            victim: Arc::new(victim_nic),
            peer: Arc::new(peer_nic),
            address_pairs,
            senders,
            spoofer,
            groups,
        })
    }
}

/// Opens a NIC at these addresses and ports, and with the IPv6 link if there is one. Returns the NIC and its IPv6
/// address.
fn open_nic(at: &[(Ipv4Addr, u16)], v6: Option<UdpLink>) -> io::Result<(Nic, Option<IpAddr>)> {
    let mut bundle = Bundle::new()?;
    let mut addresses = Vec::new();
    let mut links = Vec::new();
    for (address, port) in at {
        let mut config = UdpConfig::new((*address).into());
        config.port = *port;
        // The link opens few ports, so that a round starts quickly.
        config.source_port_count = 2;
        links.push(UdpLink::open(&config)?);
    }
    let v6_gid = v6.as_ref().map(|link| link.gid().ip());
    for link in links.into_iter().chain(v6) {
        addresses.push(link.gid().ip());
        bundle.add(link.local_addr().ip(), link)?;
    }
    let nic = Nic::open(NicOptions::new(addresses, bundle).mtu(PathMtu::Mtu1024))?;
    Ok((nic, v6_gid))
}

/// Opens a link at `::1` and an unused port. Returns `None` if this machine has no such address.
fn open_v6(number: u32) -> io::Result<Option<UdpLink>> {
    let open = |port| {
        let mut config = UdpConfig::new(Ipv6Addr::LOCALHOST.into());
        config.port = port;
        config.source_port_count = 2;
        UdpLink::open(&config)
    };
    match open_first_free(number, open) {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a hostile socket at `::1`, at a port that a GID can encode.
fn bind_v6(number: u32) -> io::Result<Sender> {
    open_first_free(number, |port| Sender::bind(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)))
}

/// Tries the ports that a GID can encode, starting at one that is derived from `number`, until one is free.
fn open_first_free<T>(number: u32, open: impl Fn(u16) -> io::Result<T>) -> io::Result<T> {
    let count = Gid::UDP_PORTS.len();
    let ports = Gid::UDP_PORTS.clone().cycle().skip(number as usize % count).take(count);
    let mut result = Err(io::ErrorKind::AddrInUse.into());
    for port in ports {
        result = open(port);
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            break;
        }
    }
    result
}
