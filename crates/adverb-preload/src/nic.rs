//! The software NIC of this process.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use adverb_proto::types::{Gid, PathMtu};
use adverb_proto::{Cq, Path, Route, Srq};
use adverb_soft::link::{FaultLink, Interface, UdpConfig, UdpLink};
use adverb_soft::{Nic, NicOptions};
use adverb_sys::ibv_ah_attr;
use parking_lot::Mutex;

use crate::context::Context;
use crate::cq::CompletionQueue;
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
}

/// A pointer to an object of this library, which any thread may use while the object is listed in [`Objects`].
pub(crate) struct Listed<T>(pub(crate) NonNull<T>);

// SAFETY: the objects behind these pointers are usable from all threads.
unsafe impl<T> Send for Listed<T> {}

/// The objects that asynchronous events name.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) contexts: Vec<Listed<Context>>,
    pub(crate) qps: BTreeMap<u32, Listed<QueuePair>>,
    pub(crate) cqs: BTreeMap<Cq, Listed<CompletionQueue>>,
    pub(crate) srqs: BTreeMap<Srq, Listed<SharedReceiveQueue>>,
}

static OPEN: Mutex<Option<&'static OpenNic>> = Mutex::new(None);

impl OpenNic {
    /// Returns this process's NIC. The first call opens it.
    pub(crate) fn get() -> io::Result<&'static OpenNic> {
        let mut open = OPEN.lock();
        if let Some(nic) = *open
            && nic.nic.is_owned_by_this_process()
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
        }));
        crate::event::start(nic)?;
        // SAFETY: the function has no preconditions. If it can't be registered, the last acknowledgements may be lost.
        unsafe { libc::atexit(acknowledge_at_exit) };
        *open = Some(nic);
        Ok(nic)
    }

    /// Returns the NIC if it is open, without waiting for a lock that may never be released after a fork.
    pub(crate) fn if_open() -> Option<&'static OpenNic> {
        OPEN.try_lock().and_then(|open| *open)
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
    pub(crate) fn datagram_path(&self, attr: &ibv_ah_attr) -> Option<OpenPath> {
        // Without a flow label, the device's source ports take turns.
        let turn = self.datagram_ports.fetch_add(1, Ordering::Relaxed);
        self.path(attr, FIRST_SOURCE_PORT | turn)
    }

    /// Returns the path to an address: from the port of its flow label or, if that is 0, from the device's port for flows
    /// that prefer `wanted_port`. Returns `None` if the address isn't valid on this device.
    pub(crate) fn path(&self, attr: &ibv_ah_attr, wanted_port: u16) -> Option<OpenPath> {
        // Every RoCE address is a GID.
        if attr.is_global == 0 || attr.port_num > 1 {
            return None;
        }
        let grh = &attr.grh;
        let local = *self.nic.addresses().get(usize::from(grh.sgid_index))?;
        let remote = Gid::new(grh.dgid.octets()).ip();
        let flow_label = grh.flow_label & 0xf_ffff;
        let path = match flow_label {
            0 => self.nic.path(local, remote, wanted_port)?,
            _ => self.nic.open_path(local, remote, flow_label)?,
        };
        let hop_limit = (grh.hop_limit != 0).then_some(grh.hop_limit);
        let route = Route { traffic_class: grh.traffic_class, flow_label, hop_limit };
        Some(OpenPath { path: path.with_route(route) })
    }
}

/// A path whose source port is open.
#[derive(Debug)]
pub(crate) struct OpenPath {
    pub(crate) path: Path,
}

impl OpenPath {
    /// Ends the use of the path.
    pub(crate) fn close(self, nic: &OpenNic) {
        if self.path.route().flow_label != 0 {
            nic.nic.close_path(&self.path);
        }
    }
}

/// Sends the acknowledgements that a NIC delays, and the packets that its link refused. An RDMA adapter acknowledges
/// messages even if the program that received them has exited.
extern "C" fn acknowledge_at_exit() {
    crate::entry::call(|| {
        if let Some(nic) = OpenNic::if_open()
            && nic.nic.is_owned_by_this_process()
        {
            nic.nic.flush();
        }
    });
}

fn open_nic(settings: &Settings) -> io::Result<Nic> {
    let (link, mtu) = match settings.address {
        Some(address) => open_near(address)?,
        None => open_loopback()?,
    };
    let address = link.gid().ip();
    let options = match settings.faults {
        Some(faults) => NicOptions::new([address], FaultLink::new(link, faults)).loopback_via_link(true),
        None => NicOptions::new([address], link),
    };
    Nic::open(options.mtu(mtu))
}

/// Opens sockets at 127.0.0.1, which all processes of a user share. If another user's processes have this address, the sockets
/// are at another address of 127.0.0.0/8.
fn open_loopback() -> io::Result<(UdpLink, PathMtu)> {
    let mut address = Ipv4Addr::LOCALHOST;
    for _ in 0..ATTEMPTS {
        match open_at(SocketAddr::new(address.into(), adverb_wire::ROCE_PORT)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            opened => return opened,
        }
        let [a, b, c, _] = getrandom::u32().map_err(io::Error::other)?.to_ne_bytes();
        address = Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254));
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Opens sockets at UDP port 4791 of an address, which all processes of a user share. If another user's processes have this
/// port, the sockets are at another port that a GID can carry.
fn open_near(address: IpAddr) -> io::Result<(UdpLink, PathMtu)> {
    let mut opened = open_at(Gid::from(address).udp_addr());
    for port in Gid::UDP_PORTS {
        let place = SocketAddr::new(address, port);
        let is_in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        if !opened.as_ref().is_err_and(is_in_use) || !Gid::from(place).has_udp_port() {
            break;
        }
        opened = open_at(place);
    }
    opened
}

/// Opens sockets, and returns the path MTU of their interface.
fn open_at(place: SocketAddr) -> io::Result<(UdpLink, PathMtu)> {
    let interface = Interface::of(place.ip())?;
    let mtu = interface.path_mtu().ok_or_else(|| {
        let text = format!("the MTU of {}, {} bytes, is too small for RoCEv2", interface.name, interface.mtu);
        io::Error::new(io::ErrorKind::Unsupported, text)
    })?;
    let mut config = UdpConfig::new(place.ip());
    config.port = place.port();
    config.shared = true;
    if matches!(place.ip(), IpAddr::V6(address) if address.is_unicast_link_local()) {
        config.scope_id = interface.index;
    }
    Ok((UdpLink::open(&config)?, mtu))
}

/// Returns the type of the IP header of packets to these addresses, as mlx5 devices report it: bit 3 stands for a UDP
/// header; 1 is IPv6, and 2 IPv4.
fn l3_type(addresses: &[IpAddr]) -> u8 {
    if addresses.iter().all(|address| address.is_ipv4()) { 0b1010 } else { 0b1001 }
}

/// The number of loopback addresses to try.
const ATTEMPTS: u32 = 64;

/// The first of the UDP source ports of RoCEv2.
const FIRST_SOURCE_PORT: u16 = 0xc000;
