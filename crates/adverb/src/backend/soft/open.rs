//! Opening software NICs, and finding those that are open.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use adverb_proto::vocabulary::PathMtu;
use adverb_soft::link::{Bundle, Interface, UdpConfig, UdpLink};
use adverb_soft::{Nic, NicOptions};

use super::Device;
use super::device::guid;
use crate::error::{Error, Result};

/// Whether a device of this name would be a software NIC.
pub(crate) fn is_soft(name: &str) -> bool {
    name == ANYWHERE || name.starts_with(PREFIX)
}

/// Where a NIC is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At a loopback address.
    Anywhere,
    At(IpAddr),
}

impl Place {
    fn of(name: &str) -> Result<Place> {
        if name == ANYWHERE {
            return Ok(Place::Anywhere);
        }
        let address = name.strip_prefix(PREFIX).unwrap_or(name);
        let address = address.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(address);
        address.parse().map(Place::At).map_err(|_| Error::NoDevice {
            what: format!("there is no software device {name}: {address:?} is no IP address"),
            hint:
                "one at an address of this machine is `soft:192.0.2.7`, or `soft:2001:db8::7`; one for this \
                   machine alone is `soft`"
                    .to_owned(),
        })
    }

    /// The name of the NIC here.
    fn name(self) -> String {
        match self {
            Place::Anywhere => ANYWHERE.to_owned(),
            Place::At(address) => format!("{PREFIX}{address}"),
        }
    }
}

impl Device {
    /// The NIC of this name: the one that is open in this process, or a new one.
    pub(crate) fn open(name: &str) -> Result<Arc<Device>> {
        let place = Place::of(name)?;
        let is_meant = |entry: &Entry| match place {
            Place::Anywhere => entry.name == ANYWHERE,
            Place::At(address) => entry.addresses.contains(&address),
        };
        let mut registry = Registry::lock();
        while let Some(entry) = registry.find(is_meant) {
            if let Some(device) = entry.device.upgrade() {
                return Ok(device);
            }
            // Somebody is closing it just now, and its address will soon be free.
            drop(registry);
            std::thread::sleep(Duration::from_millis(1));
            registry = Registry::lock();
        }
        let opened = match place {
            Place::Anywhere => anywhere(),
            Place::At(address) => at(address),
        };
        let nic = opened.map_err(|error| Error::Verb {
            action: format!("opening the device {name}"),
            hint: hint(&error).into(),
            error,
        })?;
        Ok(registry.add(Device::new(nic, place.name())))
    }

    /// The NIC that is open in this process and has this address.
    pub(crate) fn at(address: IpAddr) -> Option<Arc<Device>> {
        let mut registry = Registry::lock();
        registry.find(|entry| entry.addresses.contains(&address))?.device.upgrade()
    }

    /// The addresses that software NICs have in this process, or could have.
    pub(crate) fn addresses() -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> =
            Registry::lock().0.iter().flat_map(|entry| entry.addresses.clone()).collect();
        let interfaces = Interface::all().unwrap_or_default();
        addresses.extend(interfaces.into_iter().map(|interface| interface.address));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Those that are open in this process, in the order in which they were opened.
    pub(super) fn all() -> Vec<Arc<Device>> {
        Registry::lock().0.iter().filter_map(|entry| entry.device.upgrade()).collect()
    }

    /// The names and identifiers of those that are open in this process.
    pub(super) fn open_ones() -> Vec<(String, u64)> {
        let one = |entry: &Entry| (entry.name.clone(), guid(&entry.addresses));
        Registry::lock().0.iter().map(one).collect()
    }
}

/// The NICs that are open in this process: opening one again gives the same.
struct Registry(MutexGuard<'static, Vec<Entry>>);

struct Entry {
    /// The process that opened it: in a forked child it isn't open.
    owner: u32,
    name: String,
    addresses: Vec<IpAddr>,
    device: Weak<Device>,
    /// Gone when its sockets are closed, which is a little after the device is gone.
    open: Weak<()>,
}

impl Registry {
    /// Those that are open, or being closed, at the moment.
    fn lock() -> Registry {
        static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
        let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        entries.retain(|entry| {
            let has_failed = || entry.device.upgrade().is_some_and(|device| device.nic.has_failed());
            entry.owner == process && entry.open.strong_count() > 0 && !has_failed()
        });
        Registry(entries)
    }

    /// The one that was opened last of those that are meant.
    fn find(&mut self, is_meant: impl Fn(&Entry) -> bool) -> Option<&Entry> {
        self.0.iter().rev().find(|entry| is_meant(entry))
    }

    fn add(&mut self, device: Device) -> Arc<Device> {
        let device = Arc::new(device);
        self.0.push(Entry {
            owner: std::process::id(),
            name: device.name.clone(),
            addresses: device.nic.addresses().to_vec(),
            device: Arc::downgrade(&device),
            open: Arc::downgrade(&device.open),
        });
        device
    }
}

/// A NIC that can be reached from this machine alone: at 127.0.0.1 and ::1, as far as no other process has them, and else
/// at another of the addresses that every machine has for itself.
fn anywhere() -> io::Result<Nic> {
    let mut bundle = Bundle::new()?;
    let mut addresses = Vec::new();
    let mut add = |link: UdpLink| {
        addresses.push(link.local().ip());
        bundle.add(link.local().ip(), link)
    };
    let mut tried = 0;
    let mut address = Ipv4Addr::LOCALHOST;
    let v4 = loop {
        match UdpLink::open(&UdpConfig::new(address.into())) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tried < ATTEMPTS => {
                tried += 1;
                address = any_loopback()?;
            }
            opened => break opened,
        }
    };
    let v6 = UdpLink::open(&UdpConfig::new(Ipv6Addr::LOCALHOST.into()));
    match (v4, v6) {
        (Ok(v4), v6) => {
            add(v4)?;
            v6.map_or(Ok(()), add)?;
        }
        // A machine may have no IPv4.
        (Err(_), Ok(v6)) => add(v6)?,
        (Err(error), Err(_)) => return Err(error),
    }
    Nic::open(NicOptions::new(addresses, bundle))
}

/// An address of the loopback interface that hardly anybody has.
pub(super) fn any_loopback() -> io::Result<Ipv4Addr> {
    let [a, b, c, _] = getrandom::u32().map_err(io::Error::other)?.to_ne_bytes();
    // No address of a network's first or last.
    Ok(Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254)))
}

/// A NIC at an address of this machine.
fn at(address: IpAddr) -> io::Result<Nic> {
    let (config, mtu) = sockets_at(address)?;
    let link = UdpLink::open(&config)?;
    Nic::open(NicOptions::new([address], link).mtu(mtu))
}

/// How sockets at an address are to be, and the payload of the longest packet that they send.
fn sockets_at(address: IpAddr) -> io::Result<(UdpConfig, PathMtu)> {
    let interface = Interface::of(address)?;
    let mtu = interface.path_mtu().ok_or_else(|| {
        let Interface { name, mtu, .. } = &interface;
        let text = format!("the packets of {name}, of {mtu} bytes at most, are too short for RoCEv2");
        io::Error::new(io::ErrorKind::Unsupported, text)
    })?;
    let mut config = UdpConfig::new(address);
    if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
        config.scope_id = interface.index;
    }
    Ok((config, mtu))
}

/// What to try when a NIC can't be opened.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "`adverb devices` and `ip address` list the addresses of this machine"
        }
        // Its text says what to do.
        io::ErrorKind::AddrInUse | io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => "",
        _ => "it needs a thread and a few dozen descriptors: see `ulimit -n` and `ulimit -u`",
    }
}

/// The name of the NIC that can be reached from this machine alone.
pub(super) const ANYWHERE: &str = "soft";

/// What the names of others begin with, before their address.
const PREFIX: &str = "soft:";

/// How many addresses are tried that others may have.
const ATTEMPTS: usize = 64;
