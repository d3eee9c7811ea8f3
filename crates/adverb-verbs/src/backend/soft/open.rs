//! Opening software NICs, and the registry of open ones.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use adverb_proto::explain::Call;
use adverb_proto::types::Gid;
use adverb_soft::link::{Interface, RingPeers, UdpConfig, UdpLink};

use super::Device;
use super::device::guid;
use crate::error::{Error, NoDeviceReason, Result, call_failed};
pub(crate) use adverb_soft::open::{LinkKind, Options};

/// Whether a device of this name would be a software NIC.
pub(in crate::backend) fn is_soft(name: &str) -> bool {
    name == LOOPBACK_NAME || name.starts_with(NAME_PREFIX)
}

/// The location of a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Location {
    /// Any loopback address.
    Loopback,
    /// An address, with any UDP port unless the address encodes one.
    Address(IpAddr),
    /// An address with the UDP port that it encodes.
    ExactAddress(IpAddr),
}

impl Location {
    fn of(name: &str) -> Result<Location> {
        if name == LOOPBACK_NAME {
            return Ok(Location::Loopback);
        }
        let address = name.strip_prefix(NAME_PREFIX).unwrap_or(name);
        let address = address.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(address);
        // A link-local address is usually written with its interface, as in `fe80::7%eth0`.
        let (text, interface) = match address.split_once('%') {
            Some((text, interface)) => (text, Some(interface)),
            None => (address, None),
        };
        let address: IpAddr =
            text.parse().map_err(|_| no_device(name, &format!("{address:?} is not an IP address")))?;
        let has_address = |wanted: &str| {
            Interface::of(address)
                .is_ok_and(|found| found.name == wanted || found.index.to_string() == wanted)
        };
        match interface {
            Some(interface) if !has_address(interface) => Err(no_device(
                name,
                &format!("the interface {interface} does not have the address {address}"),
            )),
            _ => Ok(Location::Address(address)),
        }
    }
}

/// Returns the error of a name that no software NIC has.
fn no_device(name: &str, reason: &str) -> Error {
    Error::NoDevice {
        problem: format!("no software device is named {name}: {reason}").into(),
        reason: NoDeviceReason::InvalidName,
        available: Box::default(),
    }
}

impl Device {
    /// Returns the NIC of this name: the one that is open in this process, or a new one.
    pub(in crate::backend) fn open(name: &str) -> Result<Arc<Device>> {
        let location = Location::of(name)?;
        let mut registry = Registry::lock();
        if let Some(device) = registry.find(location) {
            return Ok(device);
        }
        let mut options = Options::new(LinkKind::Sockets);
        let name = match location {
            Location::Loopback => Some(LOOPBACK_NAME),
            Location::Address(address) | Location::ExactAddress(address) => {
                options.addresses.push(address);
                options.shared = !UdpConfig::is_exclusive_requested();
                None
            }
        };
        Ok(registry.add(Device::create(&options, name)?))
    }

    /// Creates a NIC.
    pub(in crate::backend) fn build(options: &Options) -> Result<Arc<Device>> {
        let mut registry = Registry::lock();
        let mut options = options.clone();
        // All addresses of a device have the same queue pair numbers, so a device with several can't share
        // them.
        options.shared =
            options.addresses.len() == 1 && !options.exclusive && !UdpConfig::is_exclusive_requested();
        for address in &options.addresses {
            // `find` waits until a device that is being closed has released its port. An open device keeps its port:
            // within a process, an address and a port identify a device.
            options.shared &= registry.find(Location::Address(*address)).is_none();
        }
        Ok(registry.add(Device::create(&options, None)?))
    }

    /// Creates a NIC with this name, or with the name of its first address.
    fn create(options: &Options, name: Option<&str>) -> Result<Device> {
        let mut options = options.clone();
        options.exclusive |= UdpConfig::is_exclusive_requested();
        if UdpConfig::is_wire_only_requested() {
            options.ring_peers = RingPeers::None;
        }
        let name_of = |addresses: &[IpAddr]| match addresses.first() {
            Some(address) => format!("{NAME_PREFIX}{address}"),
            None => LOOPBACK_NAME.to_owned(),
        };
        let nic = options.open(warn_about_port).map_err(|error| {
            call_failed(
                Call::OpenSoftDevice,
                format!("opening device {}", name_of(&options.addresses)),
                error,
            )
        })?;
        let name = name.map_or_else(|| name_of(nic.addresses()), str::to_owned);
        Ok(Device::new(nic, name, &options))
    }

    /// Returns the open NIC of this process that receives packets to this address.
    pub(super) fn find_exact(address: IpAddr) -> Option<Arc<Device>> {
        Registry::lock().find(Location::ExactAddress(address))
    }

    /// Returns the open NIC of this process that receives packets to this address or, if there is none, a NIC at this
    /// address with another UDP port.
    pub(super) fn find_near(address: IpAddr) -> Option<Arc<Device>> {
        Registry::lock().find(Location::Address(address))
    }

    /// Returns the addresses that software NICs of this process have or could have.
    pub(in crate::backend) fn addresses() -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> =
            Registry::lock().0.iter().flat_map(|entry| entry.addresses.clone()).collect();
        let interfaces = Interface::all().unwrap_or_default();
        addresses.extend(interfaces.into_iter().map(|interface| interface.address));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Returns the NICs that are open in this process, in the order of opening.
    pub(super) fn all() -> Vec<Arc<Device>> {
        Registry::lock().0.iter().filter_map(|entry| entry.device.upgrade()).collect()
    }

    /// Returns the names and GUIDs of the NICs that are open in this process.
    pub(super) fn open_names() -> Vec<(String, u64)> {
        let name_and_guid = |entry: &Entry| (entry.name.clone(), guid(&entry.addresses));
        Registry::lock().0.iter().map(name_and_guid).collect()
    }
}

/// The NICs that are open in this process. Opening one of them again returns the same NIC.
struct Registry(MutexGuard<'static, Vec<Entry>>);

struct Entry {
    /// The process that opened the NIC. In a forked child the NIC isn't open.
    owner: u32,
    name: String,
    addresses: Vec<IpAddr>,
    is_isolated: bool,
    device: Weak<Device>,
    /// A reference that expires when the sockets are closed, which is shortly after the device is dropped.
    open_marker: Weak<()>,
}

impl Registry {
    /// Locks the registry of NICs that are open or being closed.
    fn lock() -> Registry {
        static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
        let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
        Registry::remove_closed(&mut entries);
        Registry(entries)
    }

    /// Removes closed and failed NICs.
    fn remove_closed(entries: &mut Vec<Entry>) {
        let process = std::process::id();
        entries.retain(|entry| {
            let has_failed = || entry.device.upgrade().is_some_and(|device| device.nic.has_failed());
            entry.owner == process && entry.open_marker.strong_count() > 0 && !has_failed()
        });
    }

    /// Returns the last opened NIC at this location. A NIC without a link comes last: no packets of other NICs reach it.
    fn find(&mut self, location: Location) -> Option<Arc<Device>> {
        [false, true].into_iter().find_map(|is_isolated| self.find_among(is_isolated, location))
    }

    fn find_among(&mut self, is_isolated: bool, location: Location) -> Option<Arc<Device>> {
        if let Location::Address(address) = location
            && let Some(device) = self.find_among(is_isolated, Location::ExactAddress(address))
        {
            return Some(device);
        }
        let is_at = |entry: &Entry| match location {
            Location::Loopback => entry.name == LOOPBACK_NAME,
            Location::Address(address) => {
                entry.addresses.iter().any(|ours| Gid::from(*ours).udp_addr().ip() == address)
            }
            Location::ExactAddress(address) => entry.addresses.contains(&address),
        };
        let matches = |entry: &&Entry| entry.is_isolated == is_isolated && is_at(entry);
        while let Some(entry) = self.0.iter().rev().find(matches) {
            if let Some(device) = entry.device.upgrade() {
                return Some(device);
            }
            // Another thread is closing the NIC, and its address will be free soon.
            std::thread::sleep(Duration::from_millis(1));
            Registry::remove_closed(&mut self.0);
        }
        None
    }

    fn add(&mut self, device: Device) -> Arc<Device> {
        let device = Arc::new(device);
        self.0.push(Entry {
            owner: std::process::id(),
            name: device.name.clone(),
            addresses: device.nic.addresses().to_vec(),
            is_isolated: device.is_isolated(),
            device: Arc::downgrade(&device),
            open_marker: Arc::downgrade(&device.open_marker),
        });
        device
    }
}

/// Logs a warning if a link doesn't have the expected port. On a loopback address that has no consequence: the programs
/// of this machine that use Adverb reach the link.
fn warn_about_port(requested: IpAddr, link: &UdpLink) {
    if link.gid() != Gid::from(requested) && !requested.is_loopback() {
        tracing::warn!(
            address = %requested,
            port = link.local_addr().port(),
            gid = %link.gid(),
            "another program or rdma_rxe uses UDP port 4791: only Adverb devices can reach the opened device"
        );
    }
}

/// The name of the NIC that only this machine can reach.
pub(super) const LOOPBACK_NAME: &str = "soft";

/// The prefix of other names, which is followed by the address.
const NAME_PREFIX: &str = "soft:";

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::connection_manager::connecting_device;
    use super::*;

    /// Unlike the other devices at an address, a device without a link reaches no other process.
    #[test]
    fn a_device_without_a_link_is_found_only_if_no_other_has_the_address() {
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        let isolated = Device::build(&Options::new(LinkKind::None)).unwrap();
        let mut options = Options::new(LinkKind::Sockets);
        options.addresses.push(localhost);
        // Another process may have port 4791 of the address, so that this device has another port.
        let _linked = Device::build(&options).unwrap();
        let _isolated = Device::build(&Options::new(LinkKind::None)).unwrap();
        assert!(isolated.nic().addresses().contains(&localhost));
        let found = [
            Device::open(&format!("{NAME_PREFIX}{localhost}")).ok(),
            Device::find_near(localhost),
            connecting_device(Some(localhost), localhost),
            connecting_device(None, "127.98.76.54".parse().unwrap()),
        ];
        for found in found {
            assert!(!found.expect("a device is open").is_isolated());
        }
    }

    #[test]
    fn an_unavailable_address_has_a_hint() {
        let error = Device::open("soft:192.0.2.7").err().expect("the address belongs to no interface");
        let hint = error.hint().expect("a hint");
        assert!(hint.contains("`ip address` list them") && hint.contains("ip link set lo up"), "{hint}");
    }

    #[test]
    fn a_name_may_have_the_interface_of_the_address() {
        let address: IpAddr = "::1".parse().unwrap();
        let Interface { name, index, .. } = Interface::of(address).unwrap();
        for name in [format!("soft:::1%{name}"), format!("soft:[::1%{index}]")] {
            assert_eq!(Location::of(&name).unwrap(), Location::Address(address), "{name}");
        }
        let error = Location::of("soft:::1%absent").unwrap_err().to_string();
        assert!(error.contains("the interface absent does not have the address ::1"), "{error}");
        assert!(Location::of("soft:%eth0").unwrap_err().to_string().contains("is not an IP address"));
    }
}
