//! Several links combined into one, each with its own address.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use adverb_proto::types::TimestampSource;

use super::readiness::Readiness;
use super::{
    AddressSharing, Link, MulticastGroups, PathSocket, ReceiveTimestamps, RxPacket, SourcePorts, TimedSend,
    TxPacket,
};

/// A link that combines several links. It receives from all of them, and sends each packet over the link with the
/// packet's source address. With a bundle, a device can have an IPv4 and an IPv6 address.
///
/// ```no_run
/// use adverb_soft::link::{Bundle, UdpConfig, UdpLink};
///
/// let mut bundle = Bundle::new()?;
/// for address in ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()] {
///     bundle.add(address, UdpLink::open(&UdpConfig::new(address))?)?;
/// }
/// # std::io::Result::Ok(())
/// ```
pub struct Bundle {
    links: Vec<(IpAddr, Box<dyn Link>)>,
    /// The links' descriptors.
    readiness: Readiness,
    /// Whether every link has a descriptor.
    have_all_fds: bool,
    /// The link that received packets last. The other links are polled less often, because each poll is a system call.
    busy: usize,
    poll_count: u32,
    /// The number of dropped packets whose source address no link has.
    unsendable: u64,
}

/// The number of polls of the busy link for each poll of the other links.
const POLLS_PER_ROUND: u32 = 16;

impl Bundle {
    /// Creates a bundle without links.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system can't create a file descriptor.
    pub fn new() -> io::Result<Bundle> {
        let readiness = Readiness::new()?;
        Ok(Bundle { links: Vec::new(), readiness, have_all_fds: true, busy: 0, poll_count: 0, unsendable: 0 })
    }

    /// Adds a link. The link sends the packets with the source address `address`.
    ///
    /// # Errors
    ///
    /// Returns `InvalidInput` if the link [shares its address](Link::address_sharing) with other processes: each link
    /// has a share of its own, but a queue pair has one number at all addresses. Returns another error if the link's
    /// file descriptor can't be added to the bundle's epoll instance.
    pub fn add(&mut self, address: IpAddr, mut link: impl Link + 'static) -> io::Result<()> {
        if link.address_sharing().is_some() {
            let text = format!(
                "adding a link at {address} failed: other processes share the address, and a device with several addresses \
                 must have each of them to itself"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        match link.readiness_fd() {
            Some(descriptor) => self.readiness.add(descriptor)?,
            None => self.have_all_fds = false,
        }
        self.links.push((address, Box::new(link)));
        Ok(())
    }

    /// Returns the index of the link with this address.
    fn index_of(&self, address: IpAddr) -> Option<usize> {
        self.links.iter().position(|(local, _)| *local == address)
    }

    /// Returns the source ports of the link with this address.
    fn source_ports_at(&mut self, address: IpAddr) -> Option<&mut dyn SourcePorts> {
        let index = self.index_of(address)?;
        self.links[index].1.source_ports()
    }
}

impl Link for Bundle {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        let mut accepted = 0;
        for run in packets.chunk_by(|a, b| a.source.ip() == b.source.ip()) {
            let Some(index) = self.index_of(run[0].source.ip()) else {
                self.unsendable += run.len() as u64;
                accepted += run.len();
                continue;
            };
            match self.links[index].1.send(run) {
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
        self.index_of(packet.source.ip()).is_some_and(|index| self.links[index].1.is_receiver_full(packet))
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        match self.index_of(packet.source.ip()) {
            Some(index) => self.links[index].1.send_timed(packet),
            None => Ok(TimedSend::untimed(self.send(std::slice::from_ref(packet))?)),
        }
    }

    fn unsendable_packets(&self) -> u64 {
        self.unsendable + self.links.iter().map(|(_, link)| link.unsendable_packets()).sum::<u64>()
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        let (mut count, busy, link_count) = (0, self.busy, self.links.len());
        self.poll_count += 1;
        // A thread that sleeps on the descriptor is woken until all packets are received, so skipping a poll of the
        // other links loses no wake-up.
        if self.poll_count >= POLLS_PER_ROUND {
            self.poll_count = 0;
            // The links after the busy one are polled first, in turn, so that no two links can starve a third.
            for index in (1..link_count).map(|offset| (busy + offset) % link_count) {
                let received = match max.saturating_sub(count) {
                    0 => break,
                    left => self.links[index].1.receive(left, each)?,
                };
                if received > 0 {
                    self.busy = index;
                    count += received;
                }
            }
        }
        match self.links.get_mut(busy) {
            Some((_, link)) if count < max => Ok(count + link.receive(max - count, each)?),
            _ => Ok(count),
        }
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        self.links.iter().filter_map(|(_, link)| link.receive_buffer_bytes()).min()
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.have_all_fds.then_some(self.readiness.as_fd())
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        self.links.iter_mut().try_for_each(|(_, link)| link.set_wake_interest(enabled))
    }

    fn deadline(&self) -> Option<Instant> {
        self.links.iter().filter_map(|(_, link)| link.deadline()).min()
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
        // `add` accepts no link that shares its address.
        None
    }
}

impl SourcePorts for Bundle {
    fn source_port(&mut self, local: IpAddr, preferred: u16) -> u16 {
        self.source_ports_at(local).map_or(preferred, |ports| ports.source_port(local, preferred))
    }

    fn open_source_port(&mut self, local: IpAddr, preferred: u16) -> u16 {
        self.source_ports_at(local).map_or(preferred, |ports| ports.open_source_port(local, preferred))
    }

    fn close_source_port(&mut self, local: IpAddr, port: u16) {
        if let Some(ports) = self.source_ports_at(local) {
            ports.close_source_port(local, port);
        }
    }

    fn path_socket(&mut self, local: IpAddr, port: u16) -> io::Result<PathSocket> {
        self.source_ports_at(local).ok_or(io::ErrorKind::Unsupported)?.path_socket(local, port)
    }
}

impl MulticastGroups for Bundle {
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        for index in 0..self.links.len() {
            let Some(groups) = self.links[index].1.multicast_groups() else { continue };
            if let Err(error) = groups.join(group) {
                leave(&mut self.links[..index], group);
                return Err(error);
            }
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        leave(&mut self.links, group);
    }
}

/// Makes links leave a multicast group.
fn leave(links: &mut [(IpAddr, Box<dyn Link>)], group: IpAddr) {
    for groups in links.iter_mut().filter_map(|(_, link)| link.multicast_groups()) {
        groups.leave(group);
    }
}

impl ReceiveTimestamps for Bundle {
    /// Sets the timestamps of all links. The returned source is that of the first link with receive times.
    fn set_timestamps(&mut self, enabled: bool) -> io::Result<TimestampSource> {
        let mut source = None;
        for timestamps in self.links.iter_mut().filter_map(|(_, link)| link.receive_timestamps()) {
            source = source.or(Some(timestamps.set_timestamps(enabled)?));
        }
        Ok(source.unwrap_or(TimestampSource::Process))
    }
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.links.iter().map(|(address, _)| address)).finish()
    }
}
