//! Open software devices.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::time::{Duration, Instant};

use adverb_proto::types::{
    DeviceAttributes, DeviceInfo, Gid, GidEntry, GidType, LinkLayer, Port, PortState, TimestampClock,
};
use adverb_proto::{Congestion, Srq};
use adverb_soft::Nic;
use adverb_soft::link::Interface;
use adverb_wire::DEFAULT_PKEY;
use parking_lot::Mutex;

use super::connection_manager::Ports;
use super::open::{LOOPBACK_NAME, LinkKind, Options};
use crate::error::{Error, Limit, Result};

/// A software NIC.
pub(crate) struct Device {
    pub(super) nic: Nic,
    pub(super) name: String,
    /// Whether the addresses belong to network interfaces.
    is_on_interface: bool,
    /// Whether the NIC has no link, so that its queue pairs can connect only to each other.
    is_isolated: bool,
    /// The names of the addresses' interfaces, as they were when the device was opened. Listing the interfaces takes long
    /// on a machine with many, and every new queue pair needs them.
    netdevs: Vec<Option<String>>,
    /// The congestion control of queue pairs.
    pub(super) congestion: Congestion,
    /// The ids of shared receive queues in events, by the NIC's numbers.
    pub(super) shared: Mutex<BTreeMap<Srq, u32>>,
    /// The ports of the connection manager that are in use.
    pub(super) ports: Mutex<Ports>,
    /// The number of address handles so far, which determines the source port of the next one.
    pub(super) address_handle_count: AtomicU16,
    /// A value that is dropped after the NIC. Weak references to it show whether the NIC is closed.
    pub(super) open_marker: Arc<()>,
}

impl Device {
    /// Lists the device that can be opened on any machine, and those that are open in this process.
    pub(in crate::backend) fn list() -> Vec<DeviceInfo> {
        let mut list = vec![DeviceInfo::new(LOOPBACK_NAME.to_owned(), BASE_GUID)];
        for (name, guid) in Device::open_names() {
            match list.iter_mut().find(|info| info.name == name) {
                Some(info) => info.guid = guid,
                None => list.push(DeviceInfo::new(name, guid)),
            }
        }
        list
    }

    pub(super) fn new(nic: Nic, name: String, options: &Options) -> Device {
        let is_on_interface = !matches!(options.link, LinkKind::Memory(_));
        let is_isolated = matches!(options.link, LinkKind::None);
        let (shared, ports) = (Mutex::default(), Mutex::default());
        let (address_handle_count, open_marker) = (AtomicU16::default(), Arc::default());
        let netdev = |address: &IpAddr| interface(*address).ok().map(|interface| interface.name);
        let netdevs = match is_on_interface {
            true => nic.addresses().iter().map(netdev).collect(),
            false => vec![None; nic.addresses().len()],
        };
        Device {
            nic,
            name,
            is_on_interface,
            is_isolated,
            netdevs,
            congestion: options.congestion,
            shared,
            ports,
            address_handle_count,
            open_marker,
        }
    }

    pub(in crate::backend) fn is_on_interface(&self) -> bool {
        self.is_on_interface
    }

    pub(in crate::backend) fn is_isolated(&self) -> bool {
        self.is_isolated
    }

    pub(in crate::backend) fn nic(&self) -> &Nic {
        &self.nic
    }

    pub(in crate::backend) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this process opened the device. A forked child must not change the parent's objects.
    pub(in crate::backend) fn is_owned(&self) -> bool {
        self.nic.is_owned_by_this_process()
    }

    pub(in crate::backend) fn attributes(&self) -> Result<DeviceAttributes> {
        let mut attributes = DeviceAttributes::default();
        attributes.firmware = env!("CARGO_PKG_VERSION").to_owned();
        attributes.guid = guid(self.nic.addresses());
        attributes.port_count = 1;
        attributes.max_queue_pairs = 1 << 20;
        attributes.max_queue_depth = MAX_DEPTH;
        attributes.max_sge = MAX_SEGMENTS;
        attributes.max_completion_queues = 1 << 16;
        attributes.max_completion_queue_depth = 1 << 20;
        attributes.max_memory_regions = 1 << 20;
        attributes.max_memory_region_len = 1 << 46;
        attributes.max_protection_domains = 1 << 16;
        attributes.max_dest_rd_atomic = 128;
        attributes.max_rd_atomic = 128;
        attributes.has_atomics = true;
        attributes.has_atomic_write = true;
        // FLUSH to persistence is not supported: the memory of a process does not survive a power loss.
        attributes.flush.global = true;
        attributes.has_memory_windows = true;
        attributes.max_shared_receive_queues = 1 << 16;
        attributes.max_multicast_groups = 1 << 12;
        attributes.completion_vector_count = 1;
        attributes.timestamp_clock = Some(CLOCK);
        attributes.has_connection_manager = true;
        Ok(attributes)
    }

    /// Reads the clock, which counts nanoseconds of the process's monotonic clock, so the reading is exact.
    pub(in crate::backend) fn read_clock(&self) -> Result<Option<(u64, Instant, Duration)>> {
        let at = Instant::now();
        let ticks = at.saturating_duration_since(self.nic.clock_origin()).as_nanos() as u64;
        Ok(Some((ticks, at, Duration::ZERO)))
    }

    pub(in crate::backend) fn port(&self, number: u8) -> Result<Port> {
        self.check_port(number)?;
        let mut port = Port::new(number, self.state(), LinkLayer::Ethernet);
        port.max_mtu = self.nic.mtu();
        port.active_mtu = self.nic.mtu();
        port.max_message_size = 1 << 31;
        port.gid_table_len = self.nic.addresses().len() as u32;
        port.pkey_table_len = 1;
        port.needs_grh = true;
        Ok(port)
    }

    pub(in crate::backend) fn pkeys(&self, port: u8) -> Result<Vec<u16>> {
        self.check_port(port)?;
        Ok(vec![DEFAULT_PKEY])
    }

    pub(in crate::backend) fn gid_table(&self) -> Result<Vec<GidEntry>> {
        let entry = |(index, (address, netdev)): (usize, (&IpAddr, &Option<String>))| {
            let mut entry = GidEntry::new(1, index as u32, Gid::from(*address), GidType::RoceV2);
            entry.netdev.clone_from(netdev);
            entry
        };
        Ok(self.nic.addresses().iter().zip(&self.netdevs).enumerate().map(entry).collect())
    }

    /// Returns the state of the port: active if an interface with one of the addresses is up or not needed.
    fn state(&self) -> PortState {
        let is_up = |(address, netdev): (&IpAddr, &Option<String>)| {
            let name = netdev.as_deref().unwrap_or_default();
            // The interface may have another name now.
            let is_up = Interface::is_running(name).or_else(|_| interface(*address).map(|found| found.is_up));
            is_up.unwrap_or(false)
        };
        match !self.is_on_interface || self.nic.addresses().iter().zip(&self.netdevs).any(is_up) {
            true => PortState::Active,
            false => PortState::Down,
        }
    }

    /// Checks the number of a port: there is only port 1.
    pub(super) fn check_port(&self, number: u8) -> Result<()> {
        if number == 1 {
            return Ok(());
        }
        Err(Error::LimitExceeded { limit: Limit::Port, requested: number.into(), max: 1 })
    }
}

/// Returns the interface of a NIC's address.
fn interface(address: IpAddr) -> io::Result<Interface> {
    Interface::of(Gid::from(address).udp_addr().ip())
}

/// Returns the GUID of a NIC with these addresses: a locally administered one. It differs for each IPv4 address, and
/// most likely for each IPv6 address.
pub(super) fn guid(addresses: &[IpAddr]) -> u64 {
    let low = match addresses.first() {
        Some(IpAddr::V4(address)) => address.to_bits(),
        Some(IpAddr::V6(address)) => {
            let bits = address.to_bits();
            // Addresses of one network differ in their last bits.
            (bits ^ bits >> 32 ^ bits >> 64 ^ bits >> 96) as u32
        }
        None => 0,
    };
    BASE_GUID | u64::from(low)
}

/// The first GUID of software NICs.
const BASE_GUID: u64 = 0x0200_00ff_0000_0000;

/// The clock of timestamps, which are nanoseconds.
const CLOCK: TimestampClock = TimestampClock::new(u64::MAX).with_frequency_khz(1_000_000);

/// The maximum number of outstanding requests of a queue. Queues allocate memory as they fill.
pub(super) const MAX_DEPTH: u32 = 1 << 15;

/// The maximum number of segments of a request.
pub(super) const MAX_SEGMENTS: u32 = 32;
