//! Opening software NICs, and the registry of open ones.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use adverb_proto::Congestion;
use adverb_proto::explain::Call;
use adverb_proto::types::{Gid, PathMtu};
use adverb_soft::link::{
    Bundle, Capture, FaultConfig, FaultLink, Interface, Link, Switch, UdpConfig, UdpLink,
};
use adverb_soft::{Nic, NicOptions};

use super::Device;
use super::device::guid;
use crate::error::{Error, Result, errno_hint};

/// Whether a device of this name would be a software NIC.
pub(crate) fn is_soft(name: &str) -> bool {
    name == LOOPBACK_NAME || name.starts_with(NAME_PREFIX)
}

/// The location of a NIC.
#[derive(Clone, Copy, PartialEq, Eq)]
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
        address.parse().map(Location::Address).map_err(|_| Error::NoDevice {
            reason: format!("no software device is named {name}: {address:?} is not an IP address"),
            hint:
                "use `soft:` and an address of this machine, such as `soft:192.0.2.7` or `soft:2001:db8::7`; or `soft`, \
                   which only programs on this machine reach"
                    .to_owned(),
        })
    }
}

impl Device {
    /// Returns the NIC of this name: the one that is open in this process, or a new one.
    pub(crate) fn open(name: &str) -> Result<Arc<Device>> {
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
                options.shared = true;
                None
            }
        };
        Ok(registry.add(Device::create(&options, name)?))
    }

    /// Creates a NIC.
    pub(crate) fn build(options: &Options) -> Result<Arc<Device>> {
        let mut registry = Registry::lock();
        let mut options = options.clone();
        // All addresses of a device have the same queue pair numbers, so a device with several can't share
        // them.
        options.shared = options.addresses.len() == 1;
        for address in &options.addresses {
            // `find` waits until a device that is being closed has released its port. An open device keeps its port:
            // within a process, an address and a port identify a device.
            options.shared &= registry.find(Location::Address(*address)).is_none();
        }
        Ok(registry.add(Device::create(&options, None)?))
    }

    /// Creates a NIC with this name, or with the name of its first address.
    fn create(options: &Options, name: Option<&str>) -> Result<Device> {
        let name_of = |addresses: &[IpAddr]| match addresses.first() {
            Some(address) => format!("{NAME_PREFIX}{address}"),
            None => LOOPBACK_NAME.to_owned(),
        };
        let nic = options.open().map_err(|error| Error::Verb {
            action: format!("opening device {}", name_of(&options.addresses)),
            hint: hint(&error, &options.addresses).into(),
            error,
        })?;
        let name = name.map_or_else(|| name_of(nic.addresses()), str::to_owned);
        let is_on_interface = !matches!(options.link, LinkKind::Memory(_));
        Ok(Device::new(nic, name, is_on_interface, options.congestion))
    }

    /// Returns the open NIC of this process that receives packets to this address.
    pub(crate) fn find_exact(address: IpAddr) -> Option<Arc<Device>> {
        Registry::lock().find(Location::ExactAddress(address))
    }

    /// Returns the open NIC of this process that receives packets to this address or, if there is none, a NIC at this
    /// address with another UDP port.
    pub(crate) fn find_near(address: IpAddr) -> Option<Arc<Device>> {
        Registry::lock().find(Location::Address(address))
    }

    /// Returns the addresses that software NICs of this process have or could have.
    pub(crate) fn addresses() -> Vec<IpAddr> {
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

    /// Returns the last opened NIC at this location.
    fn find(&mut self, location: Location) -> Option<Arc<Device>> {
        if let Location::Address(address) = location
            && let Some(device) = self.find(Location::ExactAddress(address))
        {
            return Some(device);
        }
        let matches = |entry: &&Entry| match location {
            Location::Loopback => entry.name == LOOPBACK_NAME,
            Location::Address(address) => {
                entry.addresses.iter().any(|ours| Gid::from(*ours).udp_addr().ip() == address)
            }
            Location::ExactAddress(address) => entry.addresses.contains(&address),
        };
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
            device: Arc::downgrade(&device),
            open_marker: Arc::downgrade(&device.open_marker),
        });
        device
    }
}

/// The options of a NIC.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) link: LinkKind,
    /// The addresses. Without any, the NIC has loopback addresses.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) mtu: Option<PathMtu>,
    pub(crate) faults: Option<FaultConfig>,
    pub(crate) capture: Option<PathBuf>,
    pub(crate) loopback_via_link: bool,
    /// Whether the NIC accepts only packets of Adverb's devices.
    pub(crate) adverb_peers_only: bool,
    /// Whether other processes may have devices at the same address and port.
    pub(crate) shared: bool,
    /// The congestion control of queue pairs.
    pub(crate) congestion: Congestion,
}

/// The kind of a NIC's link.
#[derive(Clone, Debug)]
pub(crate) enum LinkKind {
    Sockets,
    Memory(Switch),
    None,
}

impl Options {
    pub(crate) fn new(link: LinkKind) -> Options {
        Options {
            link,
            addresses: Vec::new(),
            mtu: None,
            faults: None,
            capture: None,
            loopback_via_link: false,
            adverb_peers_only: false,
            shared: false,
            congestion: Congestion::None,
        }
    }

    /// Opens the NIC.
    fn open(&self) -> io::Result<Nic> {
        let mut options = match self.link {
            LinkKind::None => NicOptions::loopback(),
            LinkKind::Sockets => {
                let links = match &self.addresses[..] {
                    [] => open_loopback(self.adverb_peers_only)?,
                    addresses => addresses
                        .iter()
                        .map(|address| {
                            open_near(*address, self.adverb_peers_only, self.shared)
                                .inspect(|(link, _)| warn_about_port(*address, link))
                        })
                        .collect::<io::Result<_>>()?,
                };
                let mtu = links.iter().map(|(_, mtu)| *mtu).min().unwrap_or(PathMtu::Mtu4096);
                self.with_links(links.into_iter().map(|(link, _)| (link.gid().ip(), link)).collect())?
                    .mtu(mtu)
            }
            LinkKind::Memory(ref switch) => {
                let attach = |address: &IpAddr| Ok((*address, switch.attach(*address)?));
                self.with_links(self.addresses.iter().map(attach).collect::<io::Result<_>>()?)?
            }
        };
        if let Some(mtu) = self.mtu {
            options = options.mtu(mtu);
        }
        Nic::open(options.loopback_via_link(self.loopback_via_link))
    }

    /// Returns the options of a NIC over links, with capture and fault injection if they are configured.
    fn with_links<L: Link + 'static>(&self, mut links: Vec<(IpAddr, L)>) -> io::Result<NicOptions> {
        let addresses: Vec<IpAddr> = links.iter().map(|(address, _)| *address).collect();
        let mut link: Box<dyn Link> = match links.pop() {
            Some((_, link)) if links.is_empty() => Box::new(link),
            last => {
                let mut bundle = Bundle::new()?;
                for (address, link) in links.into_iter().chain(last) {
                    bundle.add(Gid::from(address).udp_addr().ip(), link)?;
                }
                Box::new(bundle)
            }
        };
        if let Some(file) = &self.capture {
            let name = addresses.first().map(IpAddr::to_string).unwrap_or_default();
            link = Box::new(Capture::create(file)?.watch(&name, link));
        }
        if let Some(faults) = self.faults {
            link = Box::new(FaultLink::new(link, faults));
        }
        Ok(NicOptions::boxed(addresses, link))
    }
}

/// Opens links that only this machine can reach: at 127.0.0.1 and ::1 or, if another process uses these, at another
/// address in 127.0.0.0/8 and another port of ::1, which is the only IPv6 loopback address.
fn open_loopback(adverb_peers_only: bool) -> io::Result<Vec<(UdpLink, PathMtu)>> {
    let mut tried = 0;
    let mut address = Ipv4Addr::LOCALHOST;
    let v4 = loop {
        match open_at(address.into(), adverb_peers_only, false) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tried < MAX_ATTEMPTS => {
                tried += 1;
                address = random_loopback()?;
            }
            opened => break opened,
        }
    };
    let v6 = open_near(Ipv6Addr::LOCALHOST.into(), adverb_peers_only, false);
    match (v4, v6) {
        (Ok(v4), v6) => Ok(std::iter::once(v4).chain(v6.ok()).collect()),
        // The machine may have no IPv4.
        (Err(_), Ok(v6)) => Ok(vec![v6]),
        (Err(error), Err(_)) => Err(error),
    }
}

/// Returns a random address of the loopback interface, which is most likely unused.
pub(super) fn random_loopback() -> io::Result<Ipv4Addr> {
    let [a, b, c, _] = getrandom::u32().map_err(io::Error::other)?.to_ne_bytes();
    // The result is neither the first nor the last address of a network.
    Ok(Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254)))
}

/// Opens a link at an address or, if port 4791 is in use there, at another port that its GID can encode.
fn open_near(address: IpAddr, adverb_peers_only: bool, shared: bool) -> io::Result<(UdpLink, PathMtu)> {
    let is_taken = |opened: &io::Result<_>| {
        opened.as_ref().err().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    let mut opened = open_at(address, adverb_peers_only, shared);
    let others = Gid::UDP_PORTS.map(|port| Gid::from(SocketAddr::new(address, port)));
    for other in others.filter(|other| other.has_udp_port()) {
        if !is_taken(&opened) {
            break;
        }
        opened = open_at(other.ip(), adverb_peers_only, false);
    }
    opened
}

/// Logs a warning if a link doesn't have the expected port.
fn warn_about_port(requested: IpAddr, link: &UdpLink) {
    if link.gid() != Gid::from(requested) {
        tracing::warn!(
            address = %requested,
            port = link.local_addr().port(),
            gid = %link.gid(),
            "another program or rdma_rxe uses UDP port 4791: only Adverb devices can reach the opened device"
        );
    }
}

/// Opens a link at an address, at the port that it encodes. Returns the link and its path MTU.
fn open_at(address: IpAddr, adverb_peers_only: bool, shared: bool) -> io::Result<(UdpLink, PathMtu)> {
    let location = Gid::from(address).udp_addr();
    let address = location.ip();
    let interface = Interface::of(address)?;
    let mtu = interface.path_mtu().ok_or_else(|| {
        let Interface { name, mtu, .. } = &interface;
        let text = format!("the MTU of {name}, {mtu} bytes, is too small for RoCEv2");
        io::Error::new(io::ErrorKind::Unsupported, text)
    })?;
    let mut config = UdpConfig::new(address);
    (config.adverb_peers_only, config.shared) = (adverb_peers_only, shared);
    config.port = location.port();
    if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
        config.scope_id = interface.index;
    }
    Ok((UdpLink::open(&config)?, mtu))
}

/// Returns the hint of a NIC that can't be opened at these addresses. Without addresses, it is a loopback device.
fn hint(error: &io::Error, addresses: &[IpAddr]) -> &'static str {
    let is_loopback = |address: &IpAddr| Gid::from(*address).udp_addr().ip().is_loopback();
    match error.kind() {
        io::ErrorKind::AddrNotAvailable if addresses.iter().all(is_loopback) => {
            "set the loopback interface up: `ip link set lo up`"
        }
        io::ErrorKind::AddrNotAvailable => errno_hint(Some(libc::EADDRNOTAVAIL), Call::OpenSoftDevice),
        // The error's text contains the hint.
        io::ErrorKind::AddrInUse | io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => "",
        _ => errno_hint(Some(libc::EMFILE), Call::OpenSoftDevice),
    }
}

/// The name of the NIC that only this machine can reach.
pub(super) const LOOPBACK_NAME: &str = "soft";

/// The prefix of other names, which is followed by the address.
const NAME_PREFIX: &str = "soft:";

/// The maximum number of loopback addresses to try.
const MAX_ATTEMPTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unavailable_address_has_a_hint() {
        let error = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let hint_of = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
            hint(&error, &addresses)
        };
        for loopback in [&[][..], &["127.0.0.3"], &["::1"]] {
            assert!(hint_of(loopback).contains("ip link set lo up"), "{loopback:?}");
        }
        assert!(hint_of(&["192.0.2.7"]).contains("`ip address` list them"));
    }
}
