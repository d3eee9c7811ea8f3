//! The software NIC of this process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use adverb_proto::types::{Gid, PathMtu};
use adverb_proto::{Cq, Path, Route, Srq};
use adverb_soft::Nic;
use adverb_soft::link::{RingPeers, UdpConfig, UdpLink};
use adverb_soft::open::{LinkKind, Options, open_at};
use adverb_sys::ibv_ah_attr;
use libc::c_int;
use parking_lot::Mutex;

use crate::calls::invalid;
use crate::context::Context;
use crate::cq::CompletionQueue;
use crate::exit::{Exit, Work};
use crate::fork::PerProcess;
use crate::qp::QueuePair;
use crate::report::{Output, RequestCounts};
use crate::settings::Settings;
use crate::signals::BlockedSignals;
use crate::srq::SharedReceiveQueue;

/// The software NIC of this process. It stays open until the process exits, because opening it again could give it
/// another address.
pub(crate) struct OpenNic {
    pub(crate) nic: Nic,
    /// The objects that asynchronous events name.
    pub(crate) objects: Mutex<Objects>,
    /// The number of address handles so far, which use the source ports in turn.
    datagram_ports: AtomicU16,
    /// The number of objects so far, which is the handle of the next one.
    handles: AtomicU32,
    /// The service level of received datagrams: on RoCEv2, drivers put the type of the IP header there.
    pub(crate) l3_type: u8,
    pub(crate) counts: RequestCounts,
    /// The files that are written at exit.
    pub(crate) output: Output,
    pub(crate) exit: Exit,
    /// The mappings of this process, `/proc/self/maps`.
    pub(crate) maps: Option<File>,
}

/// A pointer to an object of this library, which any thread may use while the object is listed in [`Objects`].
pub(crate) struct Listed<T: ?Sized>(pub(crate) NonNull<T>);

// SAFETY: the objects behind these pointers are usable from all threads.
unsafe impl<T: ?Sized> Send for Listed<T> {}

/// The objects that asynchronous events name.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) contexts: Vec<Listed<Context>>,
    pub(crate) qps: BTreeMap<u32, Listed<QueuePair>>,
    pub(crate) cqs: BTreeMap<Cq, Listed<CompletionQueue>>,
    pub(crate) srqs: BTreeMap<Srq, Listed<SharedReceiveQueue>>,
}

pub(crate) static OPEN: PerProcess<&'static OpenNic> = PerProcess::new();

impl OpenNic {
    /// Returns this process's NIC. The first call opens it.
    pub(crate) fn get() -> io::Result<&'static OpenNic> {
        crate::fork::install_handler();
        let mut open = OPEN.value().lock();
        if let Some(nic) = *open
            && !nic.nic.has_failed()
        {
            return Ok(nic);
        }
        let settings = Settings::from_environment();
        let settings = settings.map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
        let _blocked = BlockedSignals::new();
        let nic = open_nic(&settings)?;
        let nic: &'static OpenNic = Box::leak(Box::new(OpenNic {
            output: Output::start(&settings, &nic)?,
            l3_type: l3_type(nic.addresses()),
            nic,
            objects: Mutex::default(),
            datagram_ports: AtomicU16::default(),
            handles: AtomicU32::default(),
            counts: RequestCounts::default(),
            exit: Exit::new()?,
            maps: File::open("/proc/self/maps").ok(),
        }));
        crate::event::start(nic)?;
        // SAFETY: the function has no preconditions. If it can't be registered, the last acknowledgements may be lost.
        unsafe { libc::atexit(acknowledge_at_exit) };
        *open = Some(nic);
        Ok(nic)
    }

    /// Returns the NIC if it is open, without waiting for a thread that opens it.
    pub(crate) fn if_open() -> Option<&'static OpenNic> {
        OPEN.value().try_lock().and_then(|open| *open)
    }

    /// Returns a number for the `handle` field of an object.
    pub(crate) fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the GID at an index of the table.
    pub(crate) fn gid(&self, index: usize) -> Option<Gid> {
        self.nic.addresses().get(index).map(|address| Gid::from(*address))
    }

    /// Returns the path of datagrams to an address.
    pub(crate) fn datagram_path(&self, attr: &ibv_ah_attr) -> Result<OpenPath, c_int> {
        // Without a flow label, the device's source ports take turns.
        let turn = self.datagram_ports.fetch_add(1, Ordering::Relaxed);
        self.path(attr, FIRST_SOURCE_PORT | turn)
    }

    /// Returns the path to an address. Its source port is that of the flow label. If the flow label is 0, the device
    /// chooses the source port, if possible `wanted_port`. Returns EINVAL if the address isn't valid on this device.
    pub(crate) fn path(&self, attr: &ibv_ah_attr, wanted_port: u16) -> Result<OpenPath, c_int> {
        // Every RoCE address is a GID.
        if attr.is_global == 0 || attr.port_num > 1 {
            return Err(invalid(format_args!(
                "ah_attr.is_global is {} and ah_attr.port_num {}: RoCE addresses are global, and the device has port 1",
                attr.is_global, attr.port_num
            )));
        }
        let grh = &attr.grh;
        let local = self.nic.addresses().get(usize::from(grh.sgid_index));
        let local = *local.ok_or_else(|| {
            let gids = self.nic.addresses().len();
            invalid(format_args!(
                "ah_attr.grh.sgid_index is {}, but the device has {gids} GIDs",
                grh.sgid_index
            ))
        })?;
        let remote = Gid::new(grh.dgid.octets()).ip();
        let flow_label = grh.flow_label & 0xf_ffff;
        let path = match flow_label {
            0 => self.nic.path(local, remote, wanted_port),
            _ => self.nic.open_path(local, remote, flow_label),
        };
        let path =
            path.ok_or_else(|| invalid(format_args!("no path from {local} to ah_attr.grh.dgid {remote}")))?;
        let hop_limit = (grh.hop_limit != 0).then_some(grh.hop_limit);
        let route = Route { traffic_class: grh.traffic_class, flow_label, hop_limit };
        Ok(OpenPath { path: path.with_route(route) })
    }
}

/// A path whose source port is open.
#[derive(Debug)]
pub(crate) struct OpenPath {
    pub(crate) path: Path,
}

impl OpenPath {
    /// Ends the use of the path.
    pub(crate) fn close(&self, nic: &OpenNic) {
        if self.path.route().flow_label != 0 {
            nic.nic.close_path(&self.path);
        }
    }
}

/// Sends the acknowledgements that a NIC delays, and the packets that its link refused. An RDMA adapter acknowledges
/// messages even if the program that received them has exited.
extern "C" fn acknowledge_at_exit() {
    _ = crate::entry::catch(|| {
        if let Some(nic) = OpenNic::if_open() {
            nic.exit.request(nic, Work::Acknowledge);
        }
    });
}

fn open_nic(settings: &Settings) -> io::Result<Nic> {
    let mut options = Options::new(LinkKind::Sockets);
    options.faults = settings.faults;
    options.loopback_via_link = settings.faults.is_some();
    options.open_with(vec![open_link(settings)?])
}

/// Opens sockets at UDP port 4791 of the device's address, which all processes of a user share. If another program has
/// this port, the sockets are at the next of [`places`], and a message says so. A place is an address with a UDP port.
fn open_link(settings: &Settings) -> io::Result<(UdpLink, PathMtu)> {
    let wanted = Gid::from(settings.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))).udp_addr();
    // SAFETY: the function has no preconditions.
    let user = unsafe { libc::geteuid() };
    let own = settings.address.is_none().then(|| SocketAddr::from((user_address(user), wanted.port())));
    // If processes of the user are at the user's own place already, this one joins them, so that all have one address.
    let stays = own.is_some_and(|own| owner_of(own) == Some(user));
    let mut result = Err(io::ErrorKind::AddrInUse.into());
    for place in places(wanted, own, stays) {
        let configure = |config: &mut UdpConfig| {
            config.shared = !settings.is_exclusive;
            // Faults are those of a wire.
            if settings.is_wire_only || settings.faults.is_some() {
                config.ring_peers = RingPeers::None;
            }
        };
        match open_at(place, configure) {
            // A network namespace without the user's own address still has ports.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse || Some(place) == own => {
                result = Err(error);
            }
            opened => {
                if opened.is_ok() && place != wanted && settings.is_first_to_report("moved") {
                    let stays = stays && Some(place) == own;
                    eprintln!("adverb: {}", move_message(wanted, place, stays, owner_of(wanted)));
                }
                return opened;
            }
        }
    }
    result
}

/// Returns the places to try, in order: the wanted one, the user's own, and then other ports of the wanted address. If
/// the device `stays` at the user's own place, that one is first.
fn places(wanted: SocketAddr, own: Option<SocketAddr>, stays: bool) -> impl Iterator<Item = SocketAddr> {
    let ports = Gid::UDP_PORTS.map(move |port| SocketAddr::new(wanted.ip(), port));
    // A GID can't carry the port of every IPv6 address.
    let ports = ports.filter(|place| Gid::from(*place).has_udp_port());
    own.filter(|_| stays).into_iter().chain([wanted]).chain(own).chain(ports)
}

/// Returns the loopback address of a user, in 127.128.0.0/9. All network namespaces have these addresses.
fn user_address(user: u32) -> Ipv4Addr {
    // The last address of the network is the broadcast address.
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 128, 0, 0).to_bits() + user % 0x7f_ffff)
}

/// Returns the user who owns the socket that receives packets to a place, if the kernel's tables have one.
fn owner_of(place: SocketAddr) -> Option<u32> {
    let tables =
        ["/proc/net/udp", "/proc/net/udp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).find_map(|line| owner_in(line, place))
}

/// Returns the owner of the socket in a line of the kernel's tables, if the socket is bound to the place, or to its
/// port at all addresses.
fn owner_in(line: &str, place: SocketAddr) -> Option<u32> {
    let mut words = line.split_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != place.port() {
        return None;
    }
    // The table has words of 4 bytes of the address, as numbers.
    let octets: Vec<u8> = match place.ip() {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    };
    let words_of_place =
        octets.chunks(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let text: String = words_of_place.map(|word| format!("{word:08X}")).collect();
    let is_wildcard = address.bytes().all(|digit| digit == b'0');
    (is_wildcard || address == text).then(|| words.nth(5)?.parse().ok()).flatten()
}

/// Returns the message about a device that isn't at the wanted place. The reason is a socket of `owner` at that port
/// or, if `stays` is set, another process of the user that has its device elsewhere.
fn move_message(wanted: SocketAddr, place: SocketAddr, stays: bool, owner: Option<u32>) -> String {
    let to = place.ip();
    if stays {
        return format!("the device is at {to}, because another process of this user has its device there");
    }
    let owner = owner.map(|owner| format!(" by user {owner}")).unwrap_or_default();
    let note = match place.port() == wanted.port() {
        true => String::new(),
        false => format!(", UDP port {}, where only Adverb's devices reach it", place.port()),
    };
    let (port, from) = (wanted.port(), wanted.ip());
    format!("UDP port {port} of {from} is used{owner}, so the device is at {to}{note}")
}

/// Returns the type of the IP header of packets to these addresses, as mlx5 devices report it: bit 3 stands for a UDP
/// header; 1 is IPv6, and 2 IPv4.
fn l3_type(addresses: &[IpAddr]) -> u8 {
    if addresses.iter().all(|address| address.is_ipv4()) { 0b1010 } else { 0b1001 }
}

/// The first of the UDP source ports of RoCEv2.
const FIRST_SOURCE_PORT: u16 = 0xc000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_an_address() {
        assert_eq!(user_address(0), Ipv4Addr::new(127, 128, 0, 0));
        assert_eq!(user_address(1000), Ipv4Addr::new(127, 128, 3, 232));
        assert_eq!(user_address(65_534), Ipv4Addr::new(127, 128, 255, 254));
        for user in [0x7f_ffff, u32::MAX] {
            assert_ne!(user_address(user), Ipv4Addr::new(127, 255, 255, 255));
        }
    }

    #[test]
    fn the_owner_of_a_port_is_read_from_the_kernels_table() {
        let line = |address: &str| {
            format!(
                " 4137: {address}:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 2913"
            )
        };
        let owner = |address: &str, place: &str| owner_in(&line(address), place.parse().unwrap());
        let (loopback, all) =
            (if cfg!(target_endian = "little") { "0100007F" } else { "7F000001" }, "00000000");
        assert_eq!(owner(loopback, "127.0.0.1:4791"), Some(1001));
        assert_eq!(owner(all, "127.0.0.1:4791"), Some(1001));
        assert_eq!(owner(&all.repeat(4), "127.0.0.1:4791"), Some(1001));
        assert_eq!(owner(loopback, "127.0.0.1:4792"), None);
        assert_eq!(owner(loopback, "127.0.0.2:4791"), None);
        assert_eq!(owner(loopback, "[::1]:4791"), None);
        let title = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        assert_eq!(owner_in(title, "127.0.0.1:4791".parse().unwrap()), None);
    }

    #[test]
    fn the_message_says_where_a_moved_device_is_and_why() {
        let message = |wanted: &str, place: &str, owner| {
            move_message(wanted.parse().unwrap(), place.parse().unwrap(), false, owner)
        };
        assert_eq!(
            message("127.0.0.1:4791", "127.128.3.232:4791", Some(1001)),
            "UDP port 4791 of 127.0.0.1 is used by user 1001, so the device is at 127.128.3.232"
        );
        assert_eq!(
            message("192.0.2.7:4791", "192.0.2.7:4792", None),
            "UDP port 4791 of 192.0.2.7 is used, so the device is at 192.0.2.7, UDP port 4792, where only Adverb's \
             devices reach it"
        );
        let (wanted, own) = ("127.0.0.1:4791".parse().unwrap(), "127.128.3.232:4791".parse().unwrap());
        assert_eq!(
            move_message(wanted, own, true, None),
            "the device is at 127.128.3.232, because another process of this user has its device there"
        );
    }

    #[test]
    fn other_ports_are_tried_last() {
        let wanted = "127.0.0.1:4791".parse().unwrap();
        let own = "127.128.3.232:4791".parse().unwrap();
        let tried: Vec<SocketAddr> = places(wanted, Some(own), false).take(3).collect();
        assert_eq!(tried, [wanted, own, "127.0.0.1:4792".parse().unwrap()]);
        assert_eq!(places(wanted, Some(own), true).next(), Some(own));
    }
}
