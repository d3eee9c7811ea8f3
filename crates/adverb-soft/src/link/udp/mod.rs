//! Packets in UDP datagrams of ordinary sockets.
//!
//! The ICRC covers the ID and the flags of the IPv4 header, which a socket neither sets nor shows. Two facts make the
//! ICRC work anyway:
//!
//! - Linux sends IP ID 0 and "don't fragment" from a socket that isn't connected and never fragments
//!   (`ip_select_ident_segs` in `include/net/ip.h`), so the ICRC can be computed in advance. A
//!   [self-test](UdpLink::is_ip_id_verified) checks that the kernel does this.
//! - The IP ID of a peer's packet can be recovered from its ICRC ([`IcrcCheck::AnyIpId`]).
//!
//! IPv6 has no such ID.
//!
//! Packets of equal length to one destination are sent as a GSO batch, with IP IDs from 0 on ([`message`]).

mod clock;
mod config;
mod interface;
mod message;
mod neighbors;
mod path;
mod ports;
mod self_test;
mod shared;
mod socket;

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use adverb_proto::IcrcCheck;
use adverb_proto::types::{Gid, TimestampSource};
use adverb_wire::ROCE_PORT;

use super::datagram::Datagram;
use super::local::{Delivery, Guarded};
use super::readiness::Readiness;
use super::{
    AddressShare, AddressSharing, Link, MulticastGroups, ReceiveTimestamps, RxPacket, STRICT_ICRC,
    SourcePorts, TimedSend, TxPacket,
};
use clock::Clock;
pub use config::{UdpConfig, UdpStatistics};
pub use interface::Interface;
use message::Receiver;
use neighbors::Neighbors;
pub use path::{IcmpError, PathSocket};
use ports::{HopLimits, SendingSockets};

/// A link over UDP sockets. The link needs no privileges. Its peers can be RDMA NICs, Linux soft-RoCE devices and
/// Adverb's software NICs.
///
/// One socket receives on port 4791. The other sockets send, and each has its own source port. The link opens
/// [`source_port_count`](UdpConfig::source_port_count) of them at once, and the others when
/// [`open_source_port`](SourcePorts::open_source_port) requests their ports. If [`UdpConfig::port`] is another port, one
/// socket sends and receives on that port, and [`gid`](UdpLink::gid) encodes the port. Only Adverb's devices can reach
/// such a link.
///
/// ```no_run
/// use adverb_soft::link::{Link, TxPacket, UdpConfig, UdpLink};
///
/// let mut here = UdpLink::open(&UdpConfig::new("127.77.1.1".parse().unwrap()))?;
/// let mut there = UdpLink::open(&UdpConfig::new("127.77.1.2".parse().unwrap()))?;
/// here.send(&[TxPacket {
///     source: here.source_addr(0xc123),
///     destination: there.local_addr(),
///     traffic_class: 0,
///     hop_limit: 0,
///     flow_label: 0,
///     bytes: b"a packet",
/// }])?;
/// let mut got = Vec::new();
/// while there.receive(usize::MAX, &mut |packet| got.extend_from_slice(packet.bytes))? == 0 {}
/// assert_eq!(got, b"a packet");
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct UdpLink {
    local: SocketAddr,
    icrc: IcrcCheck,
    config: UdpConfig,
    /// The index of the interface with the local address.
    interface: u32,
    receiving: Receiving,
    receiver: Receiver,
    receive_buffer_bytes: usize,
    /// The other processes, if the link shares its address or memory with them.
    neighbors: Option<Neighbors>,
    groups: Vec<Group>,
    /// The socket that is read first: 0 is `receiving`, the others are in `groups`.
    first_socket: usize,
    /// The descriptors of `receiving`, `neighbors` and `groups`.
    readiness: Readiness,
    /// The sending sockets.
    sending: SendingSockets,
    is_ip_id_verified: bool,
    gso: Gso,
    has_timestamps: bool,
    /// The converter of send times. It is created with the first send time.
    send_clock: Option<Clock>,
    /// The number of datagrams in a row whose send times the kernel did not return in time.
    missed_send_times: u32,
    statistics: UdpStatistics,
}

impl UdpLink {
    /// Opens the sockets, and checks that the kernel sends IP ID 0.
    ///
    /// # Errors
    ///
    /// - Returns `AddrInUse` if another socket is bound to the port at this address. If the address is
    ///   [shared](UdpConfig::shared), sockets of shared links of the same user are permitted, up to
    ///   [`AddressShare::MAX_COUNT`] in all.
    /// - Returns `AddrNotAvailable` if the address doesn't belong to this machine.
    /// - Returns `InvalidInput` if the address isn't a unicast address, its GID can't encode the port, or the number of
    ///   source ports is 0.
    /// - Returns `Unsupported` if the kernel sends IP IDs other than 0.
    pub fn open(config: &UdpConfig) -> io::Result<UdpLink> {
        let address = config.address;
        if address.is_unspecified() || address.is_multicast() || config.source_port_count == 0 {
            let text = format!(
                "a software device requires a unicast address and at least one source port, not {address} and {}",
                config.source_port_count
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let socket_addr = |port| match address {
            IpAddr::V4(address) => SocketAddr::V4(SocketAddrV4::new(address, port)),
            IpAddr::V6(address) => SocketAddr::V6(SocketAddrV6::new(address, port, 0, config.scope_id)),
        };
        let local = socket_addr(config.port);
        if Gid::from(local).udp_addr().port() != config.port {
            let text =
                format!("{address} cannot use UDP port {}: its GID can encode only port 4791", config.port);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (neighbors, receiving, receive_buffer_bytes) = Neighbors::open(local, config)?;
        let readiness = Readiness::new()?;
        readiness.add(receiving.socket())?;
        if let Some(neighbors) = &neighbors {
            readiness.add(neighbors.readiness())?;
        }
        let interface = Interface::of(address).map_or(config.scope_id, |interface| interface.index);
        let is_roce_port = config.port == ROCE_PORT;
        let sending = if is_roce_port {
            SendingSockets::open(local, config.source_port_count, config.max_on_demand_ports, interface)?
        } else {
            SendingSockets::single(receiving.socket().try_clone()?, local, interface)?
        };
        let is_ip_id_verified = match sending.permanent().next() {
            Some(socket) if address.is_ipv4() => self_test::run(socket)?,
            _ => true,
        };
        if is_roce_port {
            sending.permanent().for_each(socket::minimize_receive_buffer);
        }
        let icrc = match address {
            IpAddr::V6(_) => IcrcCheck::IpId(0),
            IpAddr::V4(_) if config.adverb_peers_only => STRICT_ICRC,
            IpAddr::V4(_) => IcrcCheck::AnyIpId,
        };
        let statistics = UdpStatistics::default();
        let receiver = Receiver::new();
        Ok(UdpLink {
            local,
            icrc,
            config: *config,
            interface,
            receiving,
            receiver,
            receive_buffer_bytes,
            neighbors,
            groups: Vec::new(),
            first_socket: 0,
            readiness,
            sending,
            is_ip_id_verified,
            gso: if config.gso { Gso::Enabled } else { Gso::Disabled },
            has_timestamps: false,
            send_clock: None,
            missed_send_times: 0,
            statistics,
        })
    }

    /// Returns the address and port that the link receives on.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the source address and port of packets of a flow whose preferred port is `preferred`
    /// ([`SourcePorts::source_port`]).
    pub fn source_addr(&self, preferred: u16) -> SocketAddr {
        SocketAddr::new(self.local.ip(), self.sending.permanent_port(preferred))
    }

    /// Returns the share of the link in its address, or `None` if the address isn't shared
    /// ([`AddressSharing::address_share`]).
    pub fn address_share(&self) -> Option<AddressShare> {
        self.neighbors.as_ref()?.address_share()
    }

    /// Returns the GID that encodes the local address and port.
    pub fn gid(&self) -> Gid {
        Gid::from(self.local)
    }

    /// Returns the size of the kernel's receive buffer in bytes, including the kernel's overhead: a packet occupies
    /// about twice its length. All packets in flight to this link should fit in the buffer.
    pub const fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Whether the self-test in [`open`](UdpLink::open) verified that the kernel sends IP ID 0. If this is false, the
    /// kernel didn't deliver the sent packets to the self-test. Adverb's devices accept the link's packets in any case;
    /// RDMA NICs and soft-RoCE may drop them.
    pub const fn is_ip_id_verified(&self) -> bool {
        self.is_ip_id_verified
    }

    /// Whether the link sends GSO batches: [`UdpConfig::gso`] is set, and the kernel has not rejected a batch in the last
    /// second.
    pub fn is_gso_enabled(&self) -> bool {
        match self.gso {
            Gso::Enabled => true,
            Gso::Suspended { until } => Instant::now() >= until,
            Gso::Disabled => false,
        }
    }

    /// Returns the counters of packets that the link failed to send or receive.
    pub fn statistics(&self) -> UdpStatistics {
        self.neighbors.as_ref().map_or(self.statistics, |neighbors| neighbors.count(self.statistics))
    }

    /// Returns the socket that sends packets with this packet's source, and its hop limits. Returns `None` if the source's
    /// address or port isn't the link's.
    #[inline]
    fn socket_for(&mut self, packet: &TxPacket<'_>) -> Option<(&UdpSocket, HopLimits)> {
        if packet.source.ip() != self.local.ip() {
            return None;
        }
        self.sending.get_for(packet.source.port(), packet.hop_limit)
    }

    /// Counts packets that can't be sent.
    fn count_unsendable(&mut self, count: usize, cause: io::ErrorKind) {
        self.statistics.unsendable += count as u64;
        self.statistics.last_send_error = Some(cause);
    }

    /// Sends a packet and returns the kernel's send time. Returns `None` if the packet was not sent, because the kernel
    /// returned an error or can't return send times.
    fn try_send_timed(&mut self, packet: &TxPacket<'_>) -> Option<TimedSend> {
        let start = Instant::now();
        if packet.source.ip() != self.local.ip() || self.missed_send_times >= MAX_MISSED_SEND_TIMES {
            return None;
        }
        // A packet over UDP could overtake earlier packets in memory.
        if let Some(neighbors) = &mut self.neighbors
            && !neighbors.endpoint_mut().is_over_udp(packet, || start)
        {
            return None;
        }
        let (socket, number, hop_limits) = self.sending.timed_socket(packet.source.port())?;
        message::send_timed(socket.as_fd(), packet, hop_limits).ok()?;
        let expected = *number;
        *number = number.wrapping_add(1);
        let time = loop {
            match message::take_send_time(socket.as_fd()) {
                // The times of earlier datagrams, which arrived too late, have lower numbers.
                Ok(Some((found, time))) if found.wrapping_sub(expected) <= u32::MAX / 2 => {
                    *number = found.wrapping_add(1);
                    break time;
                }
                Ok(Some(_)) => {}
                Ok(None) if start.elapsed() < MAX_SEND_TIME_WAIT => std::hint::spin_loop(),
                Ok(None) | Err(_) => {
                    self.missed_send_times += 1;
                    return Some(TimedSend::Accepted(None));
                }
            }
        };
        self.missed_send_times = 0;
        let clock = self.send_clock.get_or_insert_with(Clock::new);
        clock.record_empty_queue(start);
        Some(TimedSend::Accepted(Some(clock.convert(time, Instant::now()).max(start))))
    }

    /// Receives up to about `max` packets to the link's own address, and returns their number, including dropped ones.
    fn receive_unicast(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        let UdpLink { local, icrc, statistics, receiving, receiver, neighbors, .. } = self;
        let mut deliver = |datagram: &Datagram<'_>| each(&datagram.to_packet(*local, *icrc));
        let socket = receiving.socket().as_fd();
        let Some(neighbors) = neighbors else {
            return receiver.receive(socket, max, statistics, &mut deliver);
        };
        let mut count = 0;
        if neighbors.endpoint_mut().count_receive() {
            // Packets over UDP leave half of the packets to the other processes.
            let udp_max = if neighbors.endpoint().has_rings() { max.div_ceil(2) } else { max };
            count = receiver.receive(socket, udp_max, statistics, &mut |datagram| {
                if neighbors.accept(datagram) {
                    deliver(datagram);
                }
            })?;
            neighbors.endpoint_mut().record_udp(count);
        }
        // This is called even after `max` packets, so that many packets over UDP can't keep other processes waiting.
        count += neighbors.receive(max.saturating_sub(count).max(1), &mut deliver);
        Ok(count)
    }

    /// Sends packets from one source, and returns the number of accepted packets.
    fn send_from_one_source(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        let mut accepted = 0;
        // The index of the packet whose send failed last.
        let mut failed_index = None;
        while let mut rest @ [first, ..] = &packets[accepted..] {
            let uses_gso = self.is_gso_enabled();
            let mut shared = None;
            if let Some(neighbors) = &mut self.neighbors {
                let endpoint = neighbors.endpoint_mut();
                shared = endpoint.is_shared(first.destination).then_some(first.destination);
                let mut udp_len = 0;
                if let Some(receiver) = endpoint.receiver(first) {
                    let batch = &rest[..message::gso_batch_len(rest, true, shared)];
                    let sending = &mut self.sending;
                    let send_datagram = |port, bytes: &[u8]| sending.send(port, first.destination, bytes);
                    match endpoint.send(receiver, batch, send_datagram) {
                        Delivery::Accepted => {
                            accepted += batch.len();
                            continue;
                        }
                        Delivery::Full => break,
                        Delivery::OverUdp => udp_len = batch.len(),
                    }
                }
                // Packets behind these may be for another process, in memory.
                udp_len += endpoint.over_udp_len(&rest[udp_len..], shared);
                rest = &rest[..udp_len];
            }
            let Some((socket, hop_limits)) = self.socket_for(first) else {
                self.count_unsendable(rest.len(), io::ErrorKind::InvalidInput);
                accepted += rest.len();
                continue;
            };
            let socket = socket.as_fd();
            match message::send(socket, rest, uses_gso, shared, hop_limits) {
                Ok(count) => accepted += count,
                Err(error) => match SendFailure::of(&error) {
                    SendFailure::BufferFull => break,
                    SendFailure::Interrupted => {}
                    // If the port has a `PathSocket`, the error may be an ICMP message about an earlier packet.
                    SendFailure::Packet if failed_index.replace(accepted) != Some(accepted) => {}
                    // Some interfaces don't support GSO, so the packet is sent alone.
                    SendFailure::Packet
                        if message::gso_batch_len(rest, uses_gso, shared) > 1
                            && message::send(socket, &rest[..1], false, shared, hop_limits).is_ok() =>
                    {
                        accepted += 1;
                        self.gso = Gso::Suspended { until: Instant::now() + GSO_SUSPENSION };
                    }
                    SendFailure::Packet => {
                        accepted += 1;
                        self.count_unsendable(1, error.kind());
                    }
                    SendFailure::SocketUnusable if accepted > 0 => break,
                    SendFailure::SocketUnusable => return Err(error),
                },
            }
        }
        Ok(accepted)
    }
}

impl Link for UdpLink {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        let mut accepted = 0;
        for run in packets.chunk_by(|a, b| a.source == b.source) {
            match self.send_from_one_source(run) {
                Ok(count) if count == run.len() => accepted += count,
                Ok(count) => return Ok(accepted + count),
                // The next call returns the error again.
                Err(_) if accepted > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(accepted)
    }

    fn is_receiver_full(&self, packet: &TxPacket<'_>) -> bool {
        self.neighbors.as_ref().is_some_and(|neighbors| {
            let endpoint = neighbors.endpoint();
            endpoint.receiver(packet).is_some_and(|receiver| endpoint.is_full(receiver))
        })
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        match self.try_send_timed(packet) {
            Some(sent) => Ok(sent),
            None => Ok(TimedSend::untimed(self.send(std::slice::from_ref(packet))?)),
        }
    }

    fn unsendable_packets(&self) -> u64 {
        self.statistics.unsendable
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        if self.groups.is_empty() {
            return self.receive_unicast(max, each);
        }
        let socket_count = 1 + self.groups.len();
        let (first, mut count) = (self.first_socket % socket_count, 0);
        for index in (first..socket_count).chain(0..first) {
            // `count` includes dropped datagrams, so it may exceed `max`.
            let left = max.saturating_sub(count);
            if left == 0 {
                // The next call starts with this socket, so that packets to one socket can't starve the others.
                self.first_socket = index;
                break;
            }
            let Some(group) = index.checked_sub(1) else {
                count += self.receive_unicast(left, each)?;
                continue;
            };
            let UdpLink { local, icrc, statistics, sending, groups, .. } = self;
            let Group { address, socket, receiver } = &mut groups[group];
            let destination = SocketAddr::new(*address, ROCE_PORT);
            count += receiver.receive(socket.as_fd(), left, statistics, &mut |datagram| {
                let is_own = datagram.source.ip() == local.ip() && sending.contains(datagram.source.port());
                if !is_own {
                    each(&datagram.to_packet(destination, *icrc));
                }
            })?;
        }
        Ok(count)
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        Some(self.receive_buffer_bytes)
    }

    fn deadline(&self) -> Option<Instant> {
        let mut groups = self.groups.iter();
        if self.receiver.has_buffered() || groups.any(|group| group.receiver.has_buffered()) {
            return Some(Instant::now());
        }
        self.neighbors.as_ref()?.deadline()
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readiness.as_fd())
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        if let Some(neighbors) = &mut self.neighbors {
            neighbors.endpoint_mut().set_wants_wakeup(enabled);
        }
        Ok(())
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        Some(self)
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        Some(self)
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        Some(self)
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        self.neighbors.as_mut()?.address_sharing()
    }
}

impl ReceiveTimestamps for UdpLink {
    fn set_timestamps(&mut self, enabled: bool) -> io::Result<TimestampSource> {
        let groups = self.groups.iter_mut().map(|group| (&group.socket, &mut group.receiver));
        for (socket, receiver) in std::iter::once((self.receiving.socket(), &mut self.receiver)).chain(groups)
        {
            socket::set_timestamps(socket, enabled)?;
            receiver.set_timestamps(enabled);
        }
        self.has_timestamps = enabled;
        Ok(TimestampSource::Kernel)
    }
}

impl MulticastGroups for UdpLink {
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if group.is_ipv4() != self.local.is_ipv4() || self.groups.iter().any(|known| known.address == group) {
            return Ok(());
        }
        let socket = socket::open_group(group, self.local.ip(), self.interface, &self.config)?;
        let mut receiver = Receiver::new();
        if self.has_timestamps {
            socket::set_timestamps(&socket, true)?;
            receiver.set_timestamps(true);
        }
        self.readiness.add(&socket)?;
        self.groups.push(Group { address: group, socket, receiver });
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|known| known.address != group);
    }
}

impl SourcePorts for UdpLink {
    fn source_port(&mut self, _local: IpAddr, preferred: u16) -> u16 {
        self.sending.permanent_port(preferred)
    }

    fn open_source_port(&mut self, _local: IpAddr, preferred: u16) -> u16 {
        if self.sending.acquire(preferred).is_ok() {
            return preferred;
        }
        self.statistics.source_port_fallbacks += u64::from(self.sending.can_open(preferred));
        self.sending.permanent_port(preferred)
    }

    fn close_source_port(&mut self, _local: IpAddr, port: u16) {
        self.sending.release(port);
    }

    fn path_socket(&mut self, _local: IpAddr, port: u16) -> io::Result<PathSocket> {
        let mut address = self.local;
        address.set_port(port);
        if !self.sending.can_open(port) {
            return PathSocket::bind(address);
        }
        // The returned socket keeps the port open, so it needs no user.
        self.sending.acquire(port)?;
        self.sending.release(port);
        let socket = self.sending.get(port).ok_or(io::ErrorKind::NotFound)?.try_clone()?;
        PathSocket::new(socket, address, true)
    }
}

/// The maximum time from sending a datagram until the kernel returns its send time. The loopback interface and veth pairs
/// send a datagram within the system call; a NIC whose queue is busy sends it later.
const MAX_SEND_TIME_WAIT: Duration = Duration::from_micros(50);

/// The number of missed send times in a row after which the link no longer requests them: the driver of the network
/// interface doesn't support them, or always returns them late.
const MAX_MISSED_SEND_TIMES: u32 = 32;

/// The use of GSO batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gso {
    Enabled,
    /// The kernel has rejected a batch: the interface doesn't support GSO, or the cause was temporary.
    Suspended {
        until: Instant,
    },
    Disabled,
}

/// The time for which packets are sent one by one after the kernel has rejected a GSO batch.
const GSO_SUSPENSION: Duration = Duration::from_secs(1);

/// The receiving socket.
#[derive(Debug)]
enum Receiving {
    /// The only socket at the address.
    Exclusive(UdpSocket),
    /// One of several sockets at a shared address.
    Shared(Guarded<UdpSocket>),
}

impl Receiving {
    const fn socket(&self) -> &UdpSocket {
        match self {
            Receiving::Exclusive(socket) => socket,
            Receiving::Shared(socket) => socket.socket(),
        }
    }
}

/// A joined multicast group.
#[derive(Debug)]
struct Group {
    address: IpAddr,
    socket: UdpSocket,
    receiver: Receiver,
}

/// The meaning of a send error.
enum SendFailure {
    /// The send buffer is full, or the kernel has no memory for the packet.
    BufferFull,
    /// A signal interrupted the call.
    Interrupted,
    /// This packet can't be sent: there is no route, the packet is too long or forbidden, or another error occurred
    /// that doesn't show the socket to be unusable.
    Packet,
    /// The descriptor is closed or isn't a socket.
    SocketUnusable,
}

impl SendFailure {
    fn of(error: &io::Error) -> SendFailure {
        use nix::libc;
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => SendFailure::BufferFull,
            Some(libc::EINTR) => SendFailure::Interrupted,
            Some(libc::EBADF | libc::ENOTSOCK) => SendFailure::SocketUnusable,
            _ => SendFailure::Packet,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use nix::libc;
    use nix::sys::socket::setsockopt;
    use nix::sys::socket::sockopt::{Ipv4RecvErr, SetBool};

    use super::*;

    #[derive(Clone, Copy)]
    struct NoChecksum;
    nix::setsockopt_impl!(NoChecksum, libc::SOL_SOCKET, libc::SO_NO_CHECK, bool, SetBool);

    /// Returns a loopback address of this process. Each test has its own address, because tests run at once.
    pub(in crate::link) fn loopback(test: u32) -> std::net::Ipv4Addr {
        let host = std::process::id().wrapping_mul(0x9e37_79b1) >> 9;
        std::net::Ipv4Addr::from_bits(127 << 24 | 0x80_0000 | host & !15 | test)
    }

    #[test]
    fn packets_are_sent_one_by_one_for_a_while_after_the_kernel_rejects_gso() {
        let address = loopback(0);
        let mut link = UdpLink::open(&UdpConfig::new(address.into())).unwrap();
        let set_checksums = |link: &UdpLink, enabled: bool| {
            for socket in link.sending.permanent() {
                // The kernel sends no GSO batches without a checksum.
                setsockopt(socket, NoChecksum, &!enabled).unwrap();
            }
        };
        set_checksums(&link, false);
        assert!(link.is_gso_enabled());
        let source = link.source_addr(0);
        let (destination, bytes) = (link.local_addr(), &b"twelve bytes"[..]);
        let packet = TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes };
        assert_eq!(link.send(&[packet; 20]).unwrap(), 20);
        assert!(!link.is_gso_enabled());
        let mut count = 0;
        while count < 20 {
            link.receive(usize::MAX, &mut |packet| {
                assert_eq!(packet.bytes, bytes);
                count += 1;
            })
            .unwrap();
        }
        assert_eq!(link.statistics(), UdpStatistics::default());
        set_checksums(&link, true);
        let start = Instant::now();
        while !link.is_gso_enabled() {
            assert!(start.elapsed() < 60 * GSO_SUSPENSION);
            std::thread::sleep(GSO_SUSPENSION / 10);
        }
        assert_eq!(link.send(&[packet; 20]).unwrap(), 20);
        assert!(link.is_gso_enabled(), "the kernel accepts batches again");
    }

    #[test]
    fn an_icmp_error_is_counted_and_the_link_still_receives() {
        let address = loopback(1);
        let mut link = UdpLink::open(&UdpConfig::new(address.into())).unwrap();
        // With this option, the kernel queues ICMP messages about the socket's packets: here, that the port is closed.
        setsockopt(link.receiving.socket(), Ipv4RecvErr, &true).unwrap();
        let closed = SocketAddr::new(address.into(), 4790);
        link.receiving.socket().send_to(b"to a closed port", closed).unwrap();
        assert_eq!(link.receive(usize::MAX, &mut |_| ()).unwrap(), 0);
        assert_eq!(link.statistics().receive_errors, 1, "ECONNREFUSED");
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(b"a datagram", link.local_addr()).unwrap();
        let mut got = Vec::new();
        while link.receive(usize::MAX, &mut |packet| got.extend_from_slice(packet.bytes)).unwrap() == 0 {}
        assert_eq!(got, b"a datagram");
    }

    #[test]
    fn only_ebadf_and_enotsock_make_the_socket_unusable() {
        for errno in 1..=133 {
            let error = io::Error::from_raw_os_error(errno);
            let is_unusable = matches!(SendFailure::of(&error), SendFailure::SocketUnusable);
            assert_eq!(is_unusable, matches!(errno, libc::EBADF | libc::ENOTSOCK), "{error}");
        }
        assert!(!matches!(SendFailure::of(&io::ErrorKind::InvalidInput.into()), SendFailure::SocketUnusable));
    }
}
