//! Network interfaces of this machine.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use adverb_proto::types::PathMtu;
use adverb_wire::{ICRC_LEN, MAX_HEADER_LEN};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::libc;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, socket};

/// A network interface of this machine, with one of its addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Interface {
    /// The interface's name, such as `eth0`.
    pub name: String,
    /// The interface's index.
    pub index: u32,
    /// The requested address, or one of the interface's addresses.
    pub address: IpAddr,
    /// Whether the interface is up and running.
    pub is_up: bool,
    /// Whether this is the loopback interface.
    pub is_loopback: bool,
    /// The interface's MTU: the maximum size of an IP packet in bytes.
    pub mtu: u32,
}

impl Interface {
    /// Returns the interface with this address. All addresses in 127.0.0.0/8 belong to the loopback interface.
    ///
    /// # Errors
    ///
    /// Returns `AddrNotAvailable` if no interface has the address, or another error if the interfaces can't be listed.
    pub fn of(address: IpAddr) -> io::Result<Interface> {
        let entries: Vec<InterfaceAddress> = getifaddrs()?.collect();
        let is_loopback = |entry: &&InterfaceAddress| {
            address.is_loopback() && entry.flags.contains(InterfaceFlags::IFF_LOOPBACK)
        };
        let entry = entries.iter().find(|entry| address_of(entry) == Some(address));
        let Some(entry) = entry.or_else(|| entries.iter().find(is_loopback)) else {
            let text = format!("no network interface has the address {address}");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        };
        describe(entry, address)
    }

    /// Whether the interface with this name is up and running. This doesn't list the interfaces, so it takes the same time
    /// on a machine with many.
    ///
    /// # Errors
    ///
    /// Returns an error if no interface has the name.
    pub fn is_running(name: &str) -> io::Result<bool> {
        Ok(flags(name)?.contains(UP_AND_RUNNING))
    }

    /// Returns the interfaces of this machine, with one entry per address.
    ///
    /// # Errors
    ///
    /// Returns an error if the interfaces can't be listed.
    pub fn all() -> io::Result<Vec<Interface>> {
        let with_address = |entry: InterfaceAddress| Some((address_of(&entry)?, entry));
        let all = getifaddrs()?.filter_map(with_address);
        // An interface may disappear between the two calls.
        Ok(all.filter_map(|(address, entry)| describe(&entry, address).ok()).collect())
    }

    /// Returns the addresses of all interfaces.
    ///
    /// # Errors
    ///
    /// Returns an error if the interfaces can't be listed.
    pub(in crate::link) fn addresses() -> io::Result<Vec<IpAddr>> {
        Ok(getifaddrs()?.filter_map(|entry| address_of(&entry)).collect())
    }

    /// Returns the largest path MTU (RDMA payload per packet) that fits the interface's MTU, or `None` if the
    /// interface's MTU is too small for any path MTU.
    pub fn path_mtu(&self) -> Option<PathMtu> {
        let outer = if self.address.is_ipv4() { 20 } else { 40 } + 8;
        (self.mtu as usize).checked_sub(outer + MAX_HEADER_LEN + ICRC_LEN).and_then(PathMtu::at_most)
    }
}

/// The flags of an interface that can send and receive.
const UP_AND_RUNNING: InterfaceFlags = InterfaceFlags::IFF_UP.union(InterfaceFlags::IFF_RUNNING);

fn describe(entry: &InterfaceAddress, address: IpAddr) -> io::Result<Interface> {
    let name = &entry.interface_name;
    Ok(Interface {
        index: if_nametoindex(name.as_str())?,
        mtu: mtu(name)?,
        name: name.clone(),
        address,
        is_up: entry.flags.contains(UP_AND_RUNNING),
        is_loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
    })
}

fn address_of(entry: &InterfaceAddress) -> Option<IpAddr> {
    let address: &SockaddrStorage = entry.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

nix::ioctl_readwrite_bad!(interface_mtu, libc::SIOCGIFMTU, libc::ifreq);
nix::ioctl_readwrite_bad!(interface_flags, libc::SIOCGIFFLAGS, libc::ifreq);

/// Returns the MTU of an interface. The file `mtu` in sysfs isn't read, because it may be that of another network
/// namespace.
fn mtu(name: &str) -> io::Result<u32> {
    let (socket, mut request) = (any_socket()?, request(name));
    // SAFETY: the name ends with a zero, and this request writes only the MTU.
    unsafe { interface_mtu(socket.as_raw_fd(), &mut request) }?;
    // SAFETY: any bytes are a valid number, and these are initialized.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(io::Error::other)
}

/// Returns the flags of an interface.
fn flags(name: &str) -> io::Result<InterfaceFlags> {
    let (socket, mut request) = (any_socket()?, request(name));
    // SAFETY: the name ends with a zero, and this request writes only the flags.
    unsafe { interface_flags(socket.as_raw_fd(), &mut request) }?;
    // SAFETY: any bytes are a valid number, and these are initialized.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(InterfaceFlags::from_bits_truncate(flags.into()))
}

/// Opens a socket to request the properties of an interface. Any socket works, even without an address. The machine may
/// support only one of the address families.
fn any_socket() -> io::Result<OwnedFd> {
    let socket = |family| socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
    Ok(socket(AddressFamily::Inet).or_else(|_| socket(AddressFamily::Inet6))?)
}

/// Returns a request for a property of an interface.
fn request(name: &str) -> libc::ifreq {
    let mut request =
        libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_mtu: 0 } };
    for (target, byte) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *target = byte as libc::c_char;
    }
    request
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn all_addresses_in_127_0_0_0_8_belong_to_the_loopback_interface() {
        let loopback = Interface::of("127.0.0.1".parse().unwrap()).unwrap();
        assert!(loopback.is_loopback && loopback.is_up, "{loopback:?}");
        assert_eq!(loopback.path_mtu(), Some(PathMtu::Mtu4096));
        let other = Interface::of("127.77.3.4".parse().unwrap()).unwrap();
        assert_eq!(Interface { address: loopback.address, ..other.clone() }, loopback);
        assert_eq!(other.address.to_string(), "127.77.3.4");
        assert!(Interface::all().unwrap().contains(&loopback));
        assert!(Interface::is_running(&loopback.name).unwrap());
    }

    #[test]
    fn an_interface_is_described_while_all_interfaces_are_down() {
        // The thread gets its own network namespace, whose loopback interface is down.
        let isolated = std::thread::spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                return println!("skipped: can't create a network namespace: {error}");
            }
            let down = Interface::of("127.0.0.1".parse().unwrap()).unwrap();
            assert_eq!((down.name.as_str(), down.is_up, down.mtu), ("lo", false, 65536));
            assert!(!Interface::is_running("lo").unwrap());
        });
        isolated.join().unwrap();
    }

    #[test]
    fn an_address_of_no_interface_is_an_error() {
        let error = Interface::of("203.0.113.77".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        for name in ["", "adverb-missing", "a-name-that-no-interface-can-have"] {
            assert_eq!(Interface::is_running(name).unwrap_err().raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }

    #[test]
    fn packets_of_the_path_mtu_fit_the_interface_mtu() {
        let path_mtu = |mtu, address: &str| {
            let address = address.parse().unwrap();
            let (name, is_up, is_loopback) = ("eth0".to_owned(), true, false);
            Interface { name, index: 2, address, is_up, is_loopback, mtu }.path_mtu()
        };
        assert_eq!(path_mtu(1500, "192.0.2.7"), Some(PathMtu::Mtu1024));
        assert_eq!(path_mtu(1500, "2001:db8::7"), Some(PathMtu::Mtu1024));
        // 20 + 8 + 12 + 28 + 4096 + 4
        assert_eq!(path_mtu(4168, "192.0.2.7"), Some(PathMtu::Mtu4096));
        assert_eq!(path_mtu(4167, "192.0.2.7"), Some(PathMtu::Mtu2048));
        assert_eq!(path_mtu(4168, "2001:db8::7"), Some(PathMtu::Mtu2048));
        assert_eq!(path_mtu(4188, "2001:db8::7"), Some(PathMtu::Mtu4096));
        assert_eq!(path_mtu(300, "192.0.2.7"), None);
        assert_eq!(path_mtu(0, "192.0.2.7"), None);
    }
}
