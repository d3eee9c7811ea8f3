//! Devices: finding one, and what it is.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use adverb_proto::vocabulary::Gid;

use super::memory_window::Windows;
use super::{CompletionQueueBuilder, GidEntry, GidType, Port, PortState, ProtectionDomain};
use crate::backend;
use crate::error::{Error, Result};

/// A device that is open. Cloning gives another handle to it; it is closed when the last handle, and the last object
/// that was made from it, is gone.
///
/// ```no_run
/// use adverb::verbs::Device;
///
/// let device = Device::by_address("192.0.2.7".parse()?)?;
/// for gid in device.gids()? {
///     println!("port {} index {}: {} ({})", gid.port, gid.index, gid.gid, gid.gid_type);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: backend::Device,
    name: String,
    attributes: DeviceAttributes,
    windows: Windows,
}

/// A device that could be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name, by which it can be opened.
    pub name: String,
    /// Its globally unique identifier.
    pub guid: u64,
    /// Why Adverb can't use it, if it can't: iWARP, for one, has no datagrams and needs a connection manager.
    pub unsupported: Option<&'static str>,
}

/// What a device is and can do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// The version of its firmware, as its maker writes it.
    pub firmware: String,
    /// Its globally unique identifier.
    pub guid: u64,
    /// Its maker's number.
    pub vendor_id: u32,
    /// Its maker's number for the part.
    pub vendor_part_id: u32,
    /// How many ports it has.
    pub ports: u8,
    /// How many queue pairs it can have.
    pub max_queue_pairs: u32,
    /// How many requests a queue can have outstanding.
    pub max_depth: u32,
    /// How many segments a request can have.
    pub max_segments: u32,
    /// How many completion queues it can have.
    pub max_completion_queues: u32,
    /// How many completions fit a completion queue.
    pub max_completions: u32,
    /// How many memory regions it can have.
    pub max_memory_regions: u32,
    /// How many bytes a memory region can have.
    pub max_memory_region_len: u64,
    /// How many protection domains it can have.
    pub max_protection_domains: u32,
    /// How many READs and atomics of a peer a queue pair can work on at once.
    pub max_dest_rd_atomic: u8,
    /// How many READs and atomics of its own a queue pair can have outstanding.
    pub max_rd_atomic: u8,
    /// Whether it does atomic operations.
    pub atomics: bool,
    /// Whether memory windows of type 2B can be had.
    pub memory_windows: bool,
    /// How many shared receive queues it can have.
    pub max_shared_receive_queues: u32,
    /// How many multicast groups its queue pairs can belong to: none if it has no multicast.
    pub max_multicast_groups: u32,
    /// What memory that is registered [on demand](adverb_proto::vocabulary::Access::ON_DEMAND) can be used for.
    pub on_demand: OnDemand,
    /// How many interrupts there are for completion events: [`vector`](CompletionQueueBuilder::vector) counts them from 0.
    pub completion_vectors: u32,
    /// How long completion events can be had to [wait](super::CompletionQueue::moderate) for company, if they can.
    pub moderation: Option<Moderation>,
    /// The clock of [timestamps](CompletionQueueBuilder::timestamps), if there are any.
    pub timestamps: Option<Timestamps>,
    /// Whether connections can be made [by address and port](super::cm): so far not with software devices.
    pub connection_manager: bool,
}

/// The clock of a device, by which completions can have timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Timestamps {
    /// The bits that count: when they are all set, the next time is 0.
    pub mask: u64,
    /// How often it ticks in a millisecond; 0 if the device doesn't say.
    pub kilohertz: u64,
}

/// The most that completion events can be had to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Moderation {
    /// So many completions.
    pub count: u16,
    /// So long.
    pub period: Duration,
}

/// What memory can be used for that is registered on demand: its pages are brought in when they are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OnDemand {
    /// Whether there is such a thing at all.
    pub supported: bool,
    /// On reliable connections.
    pub rc: OnDemandOperations,
    /// On unreliable connections.
    pub uc: OnDemandOperations,
    /// With datagrams.
    pub ud: OnDemandOperations,
}

/// For which operations memory can be registered on demand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OnDemandOperations {
    /// SEND from it.
    pub send: bool,
    /// Receive into it.
    pub recv: bool,
    /// WRITE, from it and to it.
    pub write: bool,
    /// READ, from it and to it.
    pub read: bool,
    /// Atomic operations, from it and to it.
    pub atomic: bool,
    /// Receive into it through a shared receive queue.
    pub shared_recv: bool,
}

impl Device {
    /// All RDMA devices of this machine.
    ///
    /// # Errors
    ///
    /// If rdma-core isn't installed, or can't be asked.
    pub fn list() -> Result<Vec<DeviceInfo>> {
        backend::Device::list()
    }

    /// Opens the device of this name: `mlx5_0`, say.
    ///
    /// # Errors
    ///
    /// If there is none, or it can't be opened.
    pub fn open(name: &str) -> Result<Device> {
        let backend = backend::Device::open(name)?;
        let attributes = backend.attributes()?;
        Ok(Device(Arc::new(Inner {
            backend,
            name: name.to_owned(),
            attributes,
            windows: Windows::default(),
        })))
    }

    /// Opens the device that has this IP address.
    ///
    /// # Errors
    ///
    /// If no device has it; then the error lists the addresses that there are.
    pub fn by_address(address: IpAddr) -> Result<Device> {
        let mut found = Vec::new();
        for device in usable()? {
            let gids = device.gids().unwrap_or_default();
            if gids.iter().any(|entry| entry.gid == Gid::from(address)) {
                return Ok(device);
            }
            found.extend(gids.iter().map(|entry| format!("{} on {}", entry.gid.ip(), device.name())));
        }
        let hint = match found.len() {
            0 => "there is no RDMA device; `ibv_devices` lists them".to_owned(),
            _ => format!("there is {}", found.join(", ")),
        };
        Err(Error::NoDevice { what: format!("no RDMA device has the address {address}"), hint })
    }

    /// Opens the first device with a port that carries data.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn first() -> Result<Device> {
        let devices = usable()?;
        let hint = match devices.as_slice() {
            [] => "none was found: is the driver loaded? Without an RDMA card, Linux has soft-RoCE: \
                   `rdma link add rxe0 type rxe netdev eth0`"
                .to_owned(),
            _ => "there are devices, but all their ports are down".to_owned(),
        };
        let is_active = |device: &Device| {
            device.ports().is_ok_and(|ports| ports.iter().any(|port| port.state == PortState::Active))
        };
        let no_device = Error::NoDevice { what: "no RDMA device with an active port".to_owned(), hint };
        devices.into_iter().find(is_active).ok_or(no_device)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it is and can do.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.0.attributes
    }

    /// One of its ports, as it is now. They count from 1.
    ///
    /// # Errors
    ///
    /// If there is no such port, or it can't be asked.
    pub fn port(&self, number: u8) -> Result<Port> {
        self.0.backend.port(number)
    }

    /// Its ports, as they are now.
    ///
    /// # Errors
    ///
    /// If they can't be asked.
    pub fn ports(&self) -> Result<Vec<Port>> {
        (1..=self.attributes().ports).map(|number| self.port(number)).collect()
    }

    /// The addresses that its ports have now: the used entries of their GID tables.
    ///
    /// # Errors
    ///
    /// If they can't be asked.
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        self.0.backend.gid_table()
    }

    /// The entry of the GID table to use for a port, and for `address` if one is given.
    ///
    /// Which index is right is the first thing that goes wrong with RoCE: the table has link-local addresses, and the
    /// same address twice, for RoCE v1 and v2. This takes the given address, or the best there is: RoCE v2 before v1,
    /// IPv4 before IPv6 before link-local.
    ///
    /// # Errors
    ///
    /// If the port has no such address, or none at all; then the error lists those that there are.
    pub fn gid_for(&self, port: u8, address: Option<IpAddr>) -> Result<GidEntry> {
        let gids: Vec<GidEntry> = self.gids()?.into_iter().filter(|entry| entry.port == port).collect();
        let rank = |entry: &GidEntry| {
            (
                entry.gid_type == GidType::RoceV1,
                entry.gid.is_link_local(),
                entry.gid.ip().is_ipv6(),
                entry.index,
            )
        };
        let fits = |entry: &&GidEntry| address.is_none_or(|address| entry.gid == Gid::from(address));
        gids.iter().filter(fits).min_by_key(|entry| rank(entry)).cloned().ok_or_else(|| {
            let list: Vec<String> = gids.iter().map(|entry| entry.gid.ip().to_string()).collect();
            let what = match address {
                Some(address) => format!("port {port} of {} doesn't have the address {address}", self.name()),
                None => format!("port {port} of {} has no address", self.name()),
            };
            let hint = match list.len() {
                0 => "give its network interface an IP address, and set it up".to_owned(),
                _ => format!("it has {}", list.join(", ")),
            };
            Error::NoDevice { what, hint }
        })
    }

    /// Makes a protection domain: what memory and queue pairs belong to that may use each other.
    ///
    /// # Errors
    ///
    /// If the device has no more.
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// The partition keys of a port, by their index: what a queue pair's
    /// [`pkey_index`](super::QueuePairBuilder::pkey_index) means.
    ///
    /// # Errors
    ///
    /// If there is no such port, or it can't be asked.
    pub fn pkeys(&self, port: u8) -> Result<Vec<u16>> {
        self.0.backend.pkeys(port)
    }

    /// Whether it can register memory of other devices: [dma-bufs](ProtectionDomain::register_dmabuf).
    ///
    /// # Errors
    ///
    /// If it can't be asked.
    pub fn can_register_dmabuf(&self) -> Result<bool> {
        Ok(self.protection_domain()?.can_register_dmabuf())
    }

    /// Begins to make a completion queue with room for `depth` completions.
    pub fn completion_queue(&self, depth: u32) -> CompletionQueueBuilder {
        CompletionQueueBuilder::new(self, depth)
    }

    /// The device of this name, opened once for all who ask here while any of them keeps it: what they make of it goes
    /// together.
    pub(super) fn shared(name: &str) -> Result<Device> {
        /// Devices, and the processes that opened them: a forked child must not use its parent's.
        static SHARED: Mutex<Vec<(u32, Weak<Inner>)>> = Mutex::new(Vec::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        shared.retain(|(owner, device)| *owner == process && device.strong_count() > 0);
        // One that was removed, and came back under its name, is another: the old one doesn't answer.
        let is_it = |device: &Arc<Inner>| device.name == name && device.backend.port(1).is_ok();
        let found = shared.iter().filter_map(|(_, device)| device.upgrade()).find(is_it);
        if let Some(device) = found {
            return Ok(Device(device));
        }
        let device = Device::open(name)?;
        shared.push((process, Arc::downgrade(&device.0)));
        Ok(device)
    }

    /// Whether this process opened it. In a forked child it is the parent's, as is whatever was made from it, and locks
    /// may be held by threads that the child doesn't have: what is dropped there does nothing.
    pub(super) fn is_ours(&self) -> bool {
        self.0.backend.is_ours()
    }

    /// The memory windows that are bound.
    pub(super) fn windows(&self) -> &Windows {
        &self.0.windows
    }

    pub(super) fn backend(&self) -> &backend::Device {
        &self.0.backend
    }
}

/// Opens every device that Adverb can use. One that can't be opened doesn't keep others from being found.
fn usable() -> Result<Vec<Device>> {
    let usable = Device::list()?.into_iter().filter(|info| info.unsupported.is_none());
    let open = |info: DeviceInfo| {
        Device::open(&info.name)
            .inspect_err(|error| tracing::warn!(%error, device = info.name, "a device is passed over"))
            .ok()
    };
    Ok(usable.filter_map(open).collect())
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.0.name).finish()
    }
}
