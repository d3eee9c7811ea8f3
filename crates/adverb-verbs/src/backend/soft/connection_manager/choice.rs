//! The choice of the software NIC for an address.
//!
//! NICs that are open in this process are used, no matter which code opened them. Others are opened only at loopback
//! addresses, where they can't affect the network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use adverb_proto::explain::Call;
use adverb_proto::types::Gid;

use super::super::Device;
use crate::error::{Result, call_failed};

/// Returns the open NICs that can listen at `address`: those with this address, for `0.0.0.0` those with any IPv4
/// address, and for `::` all.
pub(in crate::backend) fn listening_devices(address: IpAddr) -> Vec<Arc<Device>> {
    if !address.is_unspecified() {
        return Device::find_exact(address).into_iter().collect();
    }
    let fits = |device: &Arc<Device>| {
        address.is_ipv6() || device.nic.addresses().iter().any(|local| network_addr(*local).is_ipv4())
    };
    Device::all().into_iter().filter(fits).collect()
}

/// Opens a NIC to listen at a loopback address, or at every address.
///
/// # Errors
///
/// Returns an error if another process has the address, or the NIC can't be opened.
pub(in crate::backend) fn open_listening(address: IpAddr) -> Result<Arc<Device>> {
    let device = open(address)?;
    if address.is_unspecified() || device.nic.addresses().contains(&address) {
        return Ok(device);
    }
    let error = io::Error::from_raw_os_error(libc::EADDRINUSE);
    Err(call_failed(Call::OpenSoftDevice, format!("listening at {address}"), error))
}

/// Opens a NIC at a loopback address. If `address` is unspecified or the default loopback address, the NIC may have
/// another loopback address.
fn open(address: IpAddr) -> Result<Arc<Device>> {
    let is_default =
        address.is_unspecified() || address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST;
    if is_default { Device::open("soft") } else { Device::open(&format!("soft:{address}")) }
}

/// Returns an open NIC with a route to a peer, from `local` if it is given.
pub(in crate::backend) fn connecting_device(local: Option<IpAddr>, peer: IpAddr) -> Option<Arc<Device>> {
    if let Some(local) = local.filter(|local| !local.is_unspecified()) {
        return Device::find_near(local);
    }
    let has_network = |device: &Arc<Device>| !device.is_isolated();
    let find_at_loopback = || {
        let has = |device: &Arc<Device>| has_network(device) && loopback(device, peer).is_some();
        if is_loopback(peer) { Device::all().into_iter().find(has) } else { None }
    };
    let found = Device::find_exact(peer).or_else(find_at_loopback);
    found.or_else(|| Device::find_near(source_addr(peer)?).filter(has_network))
}

/// Whether a peer is on this machine, at an address of the loopback interface.
pub(in crate::backend) fn is_loopback(peer: IpAddr) -> bool {
    network_addr(peer).is_loopback()
}

/// Opens a NIC with a route to a peer at a loopback address, from `local` if it is given.
///
/// # Errors
///
/// Returns an error if the NIC can't be opened.
pub(in crate::backend) fn open_connecting(local: Option<IpAddr>, peer: IpAddr) -> Result<Arc<Device>> {
    match local.filter(|local| !local.is_unspecified()) {
        Some(local) => open_listening(local),
        // There is only one IPv6 loopback address, but any port works.
        None if network_addr(peer).is_ipv6() => open(Ipv6Addr::LOCALHOST.into()),
        // The default address is left to listeners.
        None => open_random_loopback(),
    }
}

/// Opens a NIC at a random loopback address, which is most likely unused.
fn open_random_loopback() -> Result<Arc<Device>> {
    let address = adverb_soft::open::random_loopback()
        .map_err(|error| call_failed(Call::System, "choosing a loopback address", error))?;
    open(address.into())
}

/// Returns the address of a NIC from which to connect to a peer.
pub(super) fn source(device: &Device, preferred: Option<IpAddr>, peer: IpAddr) -> Option<IpAddr> {
    let addresses = device.nic.addresses();
    let has = |address: &IpAddr| addresses.contains(address);
    let local_addr_at = |address: IpAddr| {
        let exact = Some(address).filter(has);
        exact.or_else(|| addresses.iter().find(|local| network_addr(**local) == address).copied())
    };
    let fits = |address: &&IpAddr| network_addr(**address).is_ipv4() == network_addr(peer).is_ipv4();
    match preferred {
        Some(preferred) => local_addr_at(preferred).filter(|preferred| fits(&preferred)),
        None => Some(peer)
            .filter(has)
            .or_else(|| local_addr_at(source_addr(peer)?))
            .or_else(|| loopback(device, peer))
            .or_else(|| addresses.iter().find(fits).copied()),
    }
}

/// Returns the NIC's loopback address of the peer's address family.
fn loopback(device: &Device, peer: IpAddr) -> Option<IpAddr> {
    let peer = network_addr(peer);
    let fits = |address: &&IpAddr| {
        let network_addr = network_addr(**address);
        network_addr.is_loopback() && network_addr.is_ipv4() == peer.is_ipv4()
    };
    device.nic.addresses().iter().find(fits).copied()
}

/// Returns the IP address of packets to an address, which may encode a port.
fn network_addr(address: IpAddr) -> IpAddr {
    Gid::from(address).udp_addr().ip()
}

/// Returns the local address that the system's routing table selects for a peer. No packet is sent.
fn source_addr(peer: IpAddr) -> Option<IpAddr> {
    let peer = network_addr(peer);
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((peer, adverb_wire::ROCE_PORT)).ok()?;
    socket.local_addr().ok().map(|address: SocketAddr| address.ip())
}
