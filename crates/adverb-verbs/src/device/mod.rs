//! Devices.

mod address_handle;
pub(crate) mod clock;
pub(crate) mod counters;
mod event;
mod protection_domain;
mod traffic;
mod windows;

pub use address_handle::{AddressHandle, UdDestination};
pub use protection_domain::ProtectionDomain;
pub use traffic::Traffic;
pub(crate) use windows::{DeviceWindow, Phase};

use std::fmt;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use adverb_proto::types::{DeviceAttributes, DeviceInfo, Gid, GidEntry, GidType, Port, PortState};

use windows::Windows;

use crate::backend;
use crate::error::{Error, Feature, NoDeviceReason, Result, WithCauses};

/// An open RDMA device. Cloning returns another handle to the same device. The device is closed when the last handle to
/// it, and the last object created from it, is dropped.
///
/// ```no_run
/// use adverb::verbs::Device;
///
/// let device = Device::open_by_addr("192.0.2.7".parse()?)?;
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

impl Device {
    /// Lists all RDMA devices of this machine: first those of rdma-core, then Adverb's software devices. These are
    /// `soft`, which always exists, and the ones that this process has open.
    ///
    /// # Errors
    ///
    /// Without the feature `soft`, returns [`Error::NotInstalled`] if rdma-core isn't installed, and [`Error::CallFailed`] if
    /// the devices can't be listed.
    pub fn list() -> Result<Vec<DeviceInfo>> {
        backend::Device::list()
    }

    /// Lists the RDMA devices of this machine except Adverb's software devices.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotInstalled`] if rdma-core isn't installed, and [`Error::CallFailed`] if the devices can't be
    /// listed.
    pub fn list_hardware() -> Result<Vec<DeviceInfo>> {
        backend::Device::list_hardware()
    }

    /// Opens a device by name, for example `mlx5_0`.
    ///
    /// Software devices exist on any machine and need no privilege. They use RoCE v2 on UDP port 4791.
    ///
    /// - `soft` is for programs on this machine. It has the addresses 127.0.0.1 and ::1, or, if another process uses
    ///   them, another address in 127.0.0.0/8 and another port of ::1.
    /// - `soft:192.0.2.7` or `soft:2001:db8::7` has this address of the machine. Any host that can send UDP packets
    ///   to it can send RDMA packets, so the address must be given explicitly. A link-local address may have its
    ///   interface: `soft:fe80::7%eth0`.
    ///
    /// Opening a software device that this process already has open returns another handle to it. Up to 128 processes of
    /// a user may open `soft:ADDRESS` with the same address: the devices have the same GID, and a connector finds the
    /// process that listens on a port. Each process has up to 114,688 queue pairs at such an address.
    ///
    /// Port 4791 is unavailable if another user's process or another program uses it at the given IPv4 address or at ::1,
    /// or if Linux soft-RoCE uses it at all addresses. The device then uses one of the next 256 ports and, unless it has a
    /// loopback address, logs a warning.
    ///
    /// The GID of a device at another port contains the port: port 4792 of 192.0.2.7 is `100::12b8:c000:207`
    /// ([`Gid::udp_addr`]). Adverb's devices can send to such a GID; RDMA NICs and Linux soft-RoCE can't. Keep port
    /// 4791 free, therefore, for devices that connect to other machines. The name `soft:` followed by such a GID opens
    /// a device at exactly that port.
    ///
    /// ```
    /// # #[cfg(feature = "soft")] {
    /// use adverb::verbs::Device;
    ///
    /// let device = Device::open("soft")?;
    /// assert!(device.gids()?.iter().all(|entry| entry.gid.udp_addr().ip().is_loopback()));
    /// # }
    /// # Ok::<(), adverb::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoDevice`] if the device doesn't exist, and [`Error::CallFailed`] if it can't be opened.
    pub fn open(name: &str) -> Result<Device> {
        let backend = backend::Device::open(name)?;
        match backend.shared_name().map(str::to_owned) {
            Some(name) => Device::find_or_add(backend, name),
            None => Device::new(backend, name.to_owned()),
        }
    }

    /// Opens the device that has this IP address. An RDMA NIC takes precedence over a software device, and a software device
    /// with a network over one without (`SoftDevice::loopback`). An RDMA NIC that can't be opened, for example for lack of
    /// permission for its device file, is skipped with a warning in the log.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoDevice`] if no device has the address; the hint lists the addresses of all devices. Returns
    /// [`Error::CallFailed`] if the device can't be opened.
    pub fn open_by_addr(address: IpAddr) -> Result<Device> {
        let hardware = match Device::list_hardware() {
            Err(error) if !cfg!(feature = "soft") => return Err(error),
            listed => listed.unwrap_or_default(),
        };
        let mut found = Vec::new();
        for device in open_each(hardware) {
            if device.has_addr(address) {
                return Ok(device);
            }
            let gids = device.gids().unwrap_or_default();
            found.extend(gids.iter().map(|entry| format!("{} on {}", entry.gid.ip(), device.name())));
        }
        if cfg!(feature = "soft") {
            match Device::open(&format!("soft:{address}")) {
                // The address doesn't belong to this machine.
                Err(Error::CallFailed { source, .. }) if source.kind() == ErrorKind::AddrNotAvailable => {}
                opened => return opened,
            }
        }
        let soft = backend::Device::soft_addresses();
        found.extend(soft.iter().map(|address| format!("{address} as soft:{address}")));
        let reason = if found.is_empty() { NoDeviceReason::NoneExists } else { NoDeviceReason::NotFound };
        let problem = format!("no RDMA device has the address {address}").into();
        Err(Error::NoDevice { problem, reason, available: found.into() })
    }

    /// Creates a software device.
    #[cfg(feature = "soft")]
    pub(super) fn soft(options: &backend::SoftOptions) -> Result<Device> {
        let backend = backend::Device::soft(options)?;
        let name = backend.shared_name().unwrap_or_default().to_owned();
        Device::find_or_add(backend, name)
    }

    /// Opens a socket that traces the path of packets from a local address and source port.
    #[cfg(feature = "soft")]
    pub(crate) fn path_socket(&self, local: IpAddr, port: u16) -> std::io::Result<backend::PathSocket> {
        self.0.backend.path_socket(local, port)
    }

    fn new(backend: backend::Device, name: String) -> Result<Device> {
        let attributes = backend.attributes()?;
        let windows = Windows::default();
        Ok(Device(Arc::new(Inner { backend, name, attributes, windows })))
    }

    /// Returns a handle to a device that a process opens only once. If the device is already open, the handle refers to the
    /// open device, and `backend` is dropped.
    fn find_or_add(backend: backend::Device, name: String) -> Result<Device> {
        let mut registry = DeviceRegistry::lock();
        if let Some(device) = registry.find(|device| device.backend.is(&backend)) {
            return Ok(device);
        }
        let device = Device::new(backend, name)?;
        registry.add(&device);
        Ok(device)
    }

    /// Opens the first device with an active port. Adverb's software device `soft` is opened only if no device of
    /// rdma-core has an active port.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoDevice`] if no device has an active port.
    pub fn open_first() -> Result<Device> {
        let mut found = false;
        let is_active = |device: &Device| {
            found = true;
            device.ports().is_ok_and(|ports| ports.iter().any(|port| port.state == PortState::Active))
        };
        if let Some(device) = open_each(Device::list()?).find(is_active) {
            return Ok(device);
        }
        let reason = if found { NoDeviceReason::PortsDown } else { NoDeviceReason::NoneExists };
        let problem = "no RDMA device has an active port".into();
        Err(Error::NoDevice { problem, reason, available: Box::default() })
    }

    /// Returns the error of a feature that the device doesn't support.
    #[cold]
    pub(crate) fn unsupported(&self, feature: Feature) -> Error {
        Error::Unsupported { feature, device: self.name().into() }
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the identity, the capabilities and the limits of the device.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.0.attributes
    }

    /// Queries one of the device's ports. Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the port doesn't exist or the query fails.
    pub fn port(&self, number: u8) -> Result<Port> {
        self.0.backend.port(number)
    }

    /// Queries all ports.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if a query fails.
    pub fn ports(&self) -> Result<Vec<Port>> {
        (1..=self.attributes().port_count).map(|number| self.port(number)).collect()
    }

    /// Queries the GID tables of all ports and returns the entries in use.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the query fails.
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        self.0.backend.gid_table()
    }

    /// Returns the best entry of a port's GID table, or the best entry for `address` if an address is given.
    ///
    /// A wrong GID index is the most common mistake with RoCE: the table contains link-local addresses, and each
    /// address twice, for RoCE v1 and v2. This function prefers RoCE v2 to v1. Then it prefers IPv4 addresses, and
    /// after them IPv6 addresses, GIDs that contain a UDP port (which only Adverb can reach), and link-local addresses,
    /// in this order.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoDevice`] if the port doesn't have the address or has no address at all. The hint lists the
    /// addresses of the port.
    pub fn gid_for(&self, port: u8, address: Option<IpAddr>) -> Result<GidEntry> {
        let gids: Vec<GidEntry> = self.gids()?.into_iter().filter(|entry| entry.port == port).collect();
        let rank = |entry: &GidEntry| {
            (
                entry.gid_type == GidType::RoceV1,
                entry.gid.is_link_local(),
                entry.gid.has_udp_port(),
                entry.gid.ip().is_ipv6(),
                entry.index,
            )
        };
        // A GID that encodes a port has the address, too.
        let has = |gid: Gid, address| gid == Gid::from(address) || gid.udp_addr().ip() == address;
        let fits = |entry: &&GidEntry| address.is_none_or(|address| has(entry.gid, address));
        gids.iter().filter(fits).min_by_key(|entry| rank(entry)).cloned().ok_or_else(|| {
            let available: Box<[String]> = gids.iter().map(|entry| entry.gid.ip().to_string()).collect();
            let problem = match address {
                Some(address) => {
                    format!("port {port} of {} does not have the address {address}", self.name())
                }
                None => format!("port {port} of {} has no address", self.name()),
            };
            let reason =
                if available.is_empty() { NoDeviceReason::NoAddress } else { NoDeviceReason::NotFound };
            Error::NoDevice { problem: problem.into(), reason, available }
        })
    }

    /// Creates a protection domain. Memory and queue pairs can be used together only within one domain.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the device can't create another domain.
    pub fn create_protection_domain(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// Returns the partition key table of a port. [`pkey_index`](crate::QueuePairBuilder::pkey_index) is an index into
    /// this table.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the port doesn't exist or the query fails.
    pub fn pkeys(&self, port: u8) -> Result<Vec<u16>> {
        self.0.backend.pkeys(port)
    }

    /// Whether the device can register memory of other devices: [dma-bufs](ProtectionDomain::register_dmabuf).
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the query fails.
    pub fn can_register_dmabuf(&self) -> Result<bool> {
        Ok(self.create_protection_domain()?.can_register_dmabuf())
    }

    /// Opens a device that all callers of this function share while any of them keeps it, so that their objects can
    /// be used together.
    pub(super) fn shared(name: &str) -> Result<Device> {
        // A hardware device that was removed and added again under its name is another device: the old one returns
        // errors.
        let is_shared = |device: &Inner| {
            device.name == name && device.backend.shared_name().is_none() && device.backend.port(1).is_ok()
        };
        if let Some(device) = DeviceRegistry::lock().find(is_shared) {
            return Ok(device);
        }
        let device = Device::open(name)?;
        if device.0.backend.shared_name().is_none() {
            DeviceRegistry::lock().add(&device);
        }
        Ok(device)
    }

    /// Opens all RDMA hardware of this machine that Adverb can use.
    pub(crate) fn open_hardware() -> Vec<Device> {
        open_each(Device::list_hardware().unwrap_or_default()).collect()
    }

    /// Returns the software devices that this process has open, in reverse order of opening.
    pub(crate) fn software_in_use() -> Vec<Device> {
        let registry = DeviceRegistry::lock();
        let devices = registry.0.iter().rev().filter_map(|(_, device)| device.upgrade().map(Device));
        devices.filter(Device::is_software).collect()
    }

    /// Whether two handles refer to the same device. A process may open RDMA hardware several times.
    pub(crate) fn is_same(&self, other: &Device) -> bool {
        let is_hardware = !self.is_software() && !other.is_software();
        Arc::ptr_eq(&self.0, &other.0) || is_hardware && self.name() == other.name()
    }

    /// Whether this is one of Adverb's software devices.
    pub fn is_software(&self) -> bool {
        self.0.backend.shared_name().is_some()
    }

    /// Whether the device sends its packets over an IP network, and not over an in-process switch.
    pub fn is_on_ip_network(&self) -> bool {
        self.0.backend.is_on_ip_network()
    }

    /// Whether the device has no network, so that its queue pairs can connect only to each other.
    pub(crate) fn is_isolated(&self) -> bool {
        self.0.backend.is_isolated()
    }

    /// Whether one of the device's GIDs is this address.
    pub fn has_addr(&self, address: IpAddr) -> bool {
        self.gids().is_ok_and(|gids| gids.iter().any(|entry| entry.gid == Gid::from(address)))
    }

    /// Whether this process opened the device. In a forked child the device, and all objects created from it, are the
    /// parent's, and their locks may be held by threads that the child doesn't have: dropping them there does
    /// nothing.
    pub(super) fn is_owned(&self) -> bool {
        self.0.backend.is_owned()
    }

    /// Whether both are handles to the same open device.
    pub(super) fn is(&self, other: &Device) -> bool {
        self.0.backend.is(&other.0.backend)
    }

    /// Returns the memory windows that are bound.
    pub(super) fn windows(&self) -> &Windows {
        &self.0.windows
    }

    pub(super) fn backend(&self) -> &backend::Device {
        &self.0.backend
    }
}

/// Devices that are opened once and shared by all callers.
struct DeviceRegistry(MutexGuard<'static, Vec<(u32, Weak<Inner>)>>);

impl DeviceRegistry {
    fn lock() -> DeviceRegistry {
        /// Devices, and the processes that opened them: a forked child must not use its parent's.
        static DEVICES: Mutex<Vec<(u32, Weak<Inner>)>> = Mutex::new(Vec::new());
        let mut registry = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        registry.retain(|(owner, device)| *owner == process && device.strong_count() > 0);
        DeviceRegistry(registry)
    }

    fn find(&self, matches: impl Fn(&Inner) -> bool) -> Option<Device> {
        let mut registry = self.0.iter().filter_map(|(_, device)| device.upgrade());
        registry.find(|device| matches(device)).map(Device)
    }

    fn add(&mut self, device: &Device) {
        self.0.push((std::process::id(), Arc::downgrade(&device.0)));
    }
}

/// Opens the devices of the list that Adverb supports, one after the other. A device that can't be opened is skipped.
fn open_each(list: Vec<DeviceInfo>) -> impl Iterator<Item = Device> {
    let usable = list.into_iter().filter(|info| info.unsupported_reason.is_none());
    usable.filter_map(|info| {
        Device::open(&info.name)
            .inspect_err(
                |error| tracing::warn!(error = %WithCauses(error), device = info.name, "opening a device failed; it is skipped"),
            )
            .ok()
    })
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.0.name).finish()
    }
}
