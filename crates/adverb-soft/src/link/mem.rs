//! Links between devices in the memory of one process.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use adverb_proto::IcrcCheck;
use adverb_proto::types::{Gid, TimestampSource};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, RwLock};

use super::{
    AddressSharing, Link, MulticastGroups, ReceiveTimestamps, RxPacket, SourcePorts, TimedSend, TxPacket,
};

/// An in-memory switch that forwards packets between devices of this process by destination address.
///
/// Of the crate adverb-verbs, `SoftDevice::on_switch` creates devices on a switch.
#[derive(Clone, Debug)]
pub struct Switch {
    shared: Arc<Shared>,
}

/// The configuration of a [`Switch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchConfig {
    /// The maximum number of packets queued for one device. Packets that exceed the limit are dropped.
    pub max_queued_packets: usize,
    /// The maximum number of bytes queued for one device. Packets that exceed the limit are dropped.
    pub max_queued_bytes: usize,
    /// The ICRC check that receivers perform. The default is no check. A check is necessary if a wrapper link may
    /// corrupt packets.
    pub icrc: IcrcCheck,
}

impl Default for SwitchConfig {
    /// Returns a configuration with 4096 packets, 16 MiB, and no ICRC check.
    fn default() -> SwitchConfig {
        SwitchConfig { max_queued_packets: 4096, max_queued_bytes: 16 << 20, icrc: IcrcCheck::Trusted }
    }
}

impl Switch {
    /// Creates a switch without devices.
    pub fn new(config: SwitchConfig) -> Switch {
        Switch { shared: Arc::new(Shared { config, ports: RwLock::default(), groups: RwLock::default() }) }
    }

    /// Attaches a device with this address, and returns its link. Dropping the link detaches the device.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse` if a device with this address is attached, `InvalidInput` if the address encodes a UDP port
    /// ([`Gid::udp_addr`]), or another error if the operating system can't create a file descriptor.
    pub fn attach(&self, address: IpAddr) -> io::Result<MemLink> {
        if Gid::from(address).has_udp_port() {
            let text = format!(
                "attaching at {address} failed: the address encodes a UDP port, which a switch does not support"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let port = Arc::new(Port { queue: Mutex::default(), event, overflows: AtomicU64::new(0) });
        let mut ports = self.shared.ports.write();
        if ports.contains_key(&address) {
            let text = format!(
                "attaching at {address} failed: another device is already attached to the switch at this address"
            );
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        ports.insert(address, Arc::clone(&port));
        let shared = Arc::clone(&self.shared);
        Ok(MemLink {
            address,
            port,
            shared,
            current: Batch::default(),
            passed_on: (0, 0),
            last_port: None,
            unreachable: 0,
        })
    }
}

impl Default for Switch {
    fn default() -> Switch {
        Switch::new(SwitchConfig::default())
    }
}

/// A device's link to a [`Switch`].
///
/// ```
/// use adverb_soft::link::{Link, TxPacket, Switch, SwitchConfig};
///
/// let switch = Switch::new(SwitchConfig::default());
/// let mut here = switch.attach("10.0.0.1".parse().unwrap())?;
/// let mut there = switch.attach("10.0.0.2".parse().unwrap())?;
/// here.send(&[TxPacket {
///     source: "10.0.0.1:49152".parse().unwrap(),
///     destination: "10.0.0.2:4791".parse().unwrap(),
///     traffic_class: 0,
///     hop_limit: 64,
///     flow_label: 0,
///     bytes: b"a packet",
/// }])?;
/// let mut got = Vec::new();
/// there.receive(usize::MAX, &mut |packet| got.extend_from_slice(packet.bytes))?;
/// assert_eq!(got, b"a packet");
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct MemLink {
    address: IpAddr,
    port: Arc<Port>,
    shared: Arc<Shared>,
    /// The packets being received. The batch is swapped with the port's batch, so that the memory of both is reused.
    current: Batch,
    /// The number of packets of `current` that were passed on, and the number of their bytes.
    passed_on: (usize, usize),
    /// The last destination and its port. The next packets mostly have the same destination.
    last_port: Option<(IpAddr, Arc<Port>)>,
    unreachable: u64,
}

impl MemLink {
    /// Returns the address of this device.
    pub const fn local_addr(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of packets to this device that were lost because its queue was full.
    pub fn overflowed_packets(&self) -> u64 {
        self.port.overflows.load(Ordering::Relaxed)
    }

    /// Returns the number of packets that this device sent to addresses without a device.
    pub const fn unreachable_packets(&self) -> u64 {
        self.unreachable
    }

    /// Delivers packets that all have the destination `address`.
    fn deliver(&mut self, address: IpAddr, packets: &[TxPacket<'_>]) {
        let config = &self.shared.config;
        if address.is_multicast() {
            let groups = self.shared.groups.read();
            let members = groups.get(&address).into_iter().flatten();
            for member in members.filter(|member| !Arc::ptr_eq(member, &self.port)) {
                member.put(packets, config);
            }
            return;
        }
        if let Some((last_address, port)) = &self.last_port
            && *last_address == address
            && port.put(packets, config)
        {
            return;
        }
        self.last_port = self.shared.ports.read().get(&address).map(|port| (address, Arc::clone(port)));
        match &self.last_port {
            Some((_, port)) if port.put(packets, config) => {}
            _ => self.unreachable += packets.len() as u64,
        }
    }
}

impl Link for MemLink {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        for run in packets.chunk_by(|a, b| a.destination.ip() == b.destination.ip()) {
            self.deliver(run[0].destination.ip(), run);
        }
        Ok(packets.len())
    }

    fn is_receiver_full(&self, _: &TxPacket<'_>) -> bool {
        false
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        Ok(TimedSend::untimed(self.send(std::slice::from_ref(packet))?))
    }

    fn unsendable_packets(&self) -> u64 {
        self.unreachable
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        let (mut next, mut offset) = self.passed_on;
        if next == self.current.entries.len() {
            self.current.clear();
            (next, offset) = (0, 0);
            self.passed_on = (0, 0);
            if !self.port.take(&mut self.current)? {
                return Ok(0);
            }
        }
        let first = next;
        for entry in self.current.entries[first..].iter().take(max) {
            let bytes = &self.current.bytes[offset..][..entry.length];
            each(&RxPacket {
                source: entry.source,
                destination: entry.destination,
                traffic_class: entry.traffic_class,
                hop_limit: Some(entry.hop_limit),
                flow_label: entry.flow_label,
                icrc: self.shared.config.icrc,
                received_at: entry.received_at,
                bytes,
            });
            (next, offset) = (next + 1, offset + entry.length);
        }
        self.passed_on = (next, offset);
        Ok(next - first)
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        None
    }

    fn deadline(&self) -> Option<Instant> {
        (self.passed_on.0 < self.current.entries.len()).then(Instant::now)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.port.event.as_fd())
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        let mut queue = self.port.queue.lock();
        queue.wake_disabled = !enabled;
        self.port.signal(&mut queue)
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        None
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        Some(self)
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        Some(self)
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        None
    }
}

impl ReceiveTimestamps for MemLink {
    fn set_timestamps(&mut self, enabled: bool) -> io::Result<TimestampSource> {
        self.port.queue.lock().has_timestamps = enabled;
        Ok(TimestampSource::Process)
    }
}

impl MulticastGroups for MemLink {
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.leave(group);
        self.shared.groups.write().entry(group).or_default().push(Arc::clone(&self.port));
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        if let Some(members) = self.shared.groups.write().get_mut(&group) {
            members.retain(|member| !Arc::ptr_eq(member, &self.port));
        }
    }
}

impl Drop for MemLink {
    fn drop(&mut self) {
        self.shared.ports.write().remove(&self.address);
        for members in self.shared.groups.write().values_mut() {
            members.retain(|member| !Arc::ptr_eq(member, &self.port));
        }
        // Other links may still have the port as their `last_port`.
        self.port.queue.lock().is_detached = true;
    }
}

#[derive(Debug)]
struct Shared {
    config: SwitchConfig,
    ports: RwLock<HashMap<IpAddr, Arc<Port>>>,
    /// The members of multicast groups.
    groups: RwLock<HashMap<IpAddr, Vec<Arc<Port>>>>,
}

/// The queue of packets for a device.
#[derive(Debug)]
struct Port {
    queue: Mutex<Queue>,
    event: EventFd,
    overflows: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    batch: Batch,
    /// Whether the descriptor is readable. It is written only when it isn't readable, and read only when the queue is
    /// empty, so that a stream of packets needs no system call.
    signaled: bool,
    /// Whether wake interest is disabled. The descriptor isn't written then.
    wake_disabled: bool,
    /// Whether packets get the time at which they were queued.
    has_timestamps: bool,
    /// Whether the device is detached.
    is_detached: bool,
}

impl Port {
    /// Queues packets up to the limits, and returns whether the device is attached.
    fn put(&self, packets: &[TxPacket<'_>], config: &SwitchConfig) -> bool {
        let mut queue = self.queue.lock();
        if queue.is_detached {
            return false;
        }
        let received_at = queue.has_timestamps.then(Instant::now);
        let mut lost = 0;
        for packet in packets {
            let Batch { bytes, entries } = &mut queue.batch;
            if entries.len() >= config.max_queued_packets
                || bytes.len() + packet.bytes.len() > config.max_queued_bytes
            {
                lost += 1;
                continue;
            }
            bytes.extend_from_slice(packet.bytes);
            entries.push(Entry {
                source: packet.source,
                destination: packet.destination,
                traffic_class: packet.traffic_class,
                hop_limit: if packet.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { packet.hop_limit },
                flow_label: packet.flow_label,
                length: packet.bytes.len(),
                received_at,
            });
        }
        self.overflows.fetch_add(lost, Ordering::Relaxed);
        // The descriptor belongs to the receiver, so an error here is the receiver's failure, not the sender's.
        _ = self.signal(&mut queue);
        true
    }

    /// Makes the descriptor readable if packets are queued and it isn't readable yet.
    fn signal(&self, queue: &mut Queue) -> io::Result<()> {
        if !queue.wake_disabled && !queue.signaled && !queue.batch.entries.is_empty() {
            match self.event.write(1) {
                // A full counter is readable already.
                Ok(_) | Err(Errno::EAGAIN) => queue.signaled = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Swaps the queued packets for an empty batch, and returns whether there were any.
    fn take(&self, empty: &mut Batch) -> io::Result<bool> {
        let mut queue = self.queue.lock();
        if !queue.batch.entries.is_empty() {
            mem::swap(&mut queue.batch, empty);
            return Ok(true);
        }
        if mem::take(&mut queue.signaled) {
            match self.event.read() {
                Ok(_) | Err(Errno::EAGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }
}

/// Packets in contiguous memory.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    source: SocketAddr,
    destination: SocketAddr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    length: usize,
    received_at: Option<Instant>,
}

/// Linux's default hop limit.
const DEFAULT_HOP_LIMIT: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sending_succeeds_while_the_receivers_event_counter_is_full() {
        let switch = Switch::default();
        let [mut here, mut there] = [1, 2].map(|host| switch.attach(IpAddr::from([10, 0, 0, host])).unwrap());
        there.port.event.write(u64::MAX - 1).unwrap();
        let packet = TxPacket {
            source: "10.0.0.1:49152".parse().unwrap(),
            destination: "10.0.0.2:4791".parse().unwrap(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            bytes: b"a packet",
        };
        assert_eq!(here.send(&[packet]).unwrap(), 1);
        assert_eq!(there.receive(usize::MAX, &mut |_| ()).unwrap(), 1);
    }
}
