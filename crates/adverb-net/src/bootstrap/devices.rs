//! The devices that a listener serves.

use std::net::IpAddr;

use adverb_verbs::internal::{self, WithCauses};
use adverb_verbs::{self as verbs, Device, Gid, GidType, cm};

use super::device;
use crate::options::Options;
use crate::protocol::handshake::Flaw;

/// The devices that a listener serves. All of them are opened when the listener is bound, so that no peer can make the
/// listener open a device, or wait while one is opened.
pub(super) enum ServedDevices {
    /// The device of the options, or of the address that the listener is bound to.
    One(Device),
    /// The devices of a wildcard listener, the preferred ones first.
    Wildcard(Vec<ServedDevice>),
}

/// A device of a wildcard listener.
pub(super) struct ServedDevice {
    device: Device,
    /// The GIDs of the device that are IP addresses, as of the time when the listener was bound.
    gids: Vec<Gid>,
}

impl ServedDevices {
    /// Opens the devices of a listener at `ip`.
    ///
    /// A wildcard listener serves all RDMA hardware, the software devices with a network that the process has open, and
    /// `soft`, which has loopback addresses only. It opens no software device at a routable address: such an address must be named.
    ///
    /// # Errors
    ///
    /// Returns an error if no device has the address, or the device can't be opened. Returns `None` as the error if no
    /// device exists.
    pub(super) fn open(ip: IpAddr, options: &Options) -> Result<ServedDevices, Option<verbs::Error>> {
        let ip = ip.to_canonical();
        if options.device.is_some() || !ip.is_unspecified() {
            return device(ip, options).map(ServedDevices::One).map_err(Some);
        }
        let mut devices = internal::open_hardware();
        let mut failure = None;
        if cfg!(feature = "soft") {
            match Device::open("soft") {
                Ok(loopback) => devices.push(loopback),
                Err(error) => failure = Some(error),
            }
        }
        let is_other = |device: &Device| device.name() != "soft" && !internal::is_isolated(device);
        devices.extend(internal::software_in_use().into_iter().filter(is_other));
        if devices.is_empty() {
            return Err(failure);
        }
        if let Some(error) = failure {
            tracing::warn!(error = %WithCauses(&error), "a wildcard listener cannot serve loopback addresses");
        }
        Ok(ServedDevices::Wildcard(devices.into_iter().map(ServedDevice::new).collect()))
    }

    /// Returns the device for connections to an address of this machine.
    pub(super) fn at(&self, local: IpAddr) -> Result<&Device, Flaw> {
        let served = match self {
            ServedDevices::One(device) => return Ok(device),
            ServedDevices::Wildcard(served) => served,
        };
        let has_gid = |served: &&ServedDevice| served.gids.contains(&Gid::from(local));
        // A GID with a UDP port belongs to the address too.
        let has_addr = |served: &&ServedDevice| served.addrs().any(|addr| addr == local);
        // All loopback addresses reach the same machine.
        let is_loopback =
            |served: &&ServedDevice| local.is_loopback() && served.addrs().any(|addr| addr.is_loopback());
        let found = served.iter().find(has_gid).or_else(|| served.iter().find(has_addr));
        let found = found.or_else(|| served.iter().find(is_loopback));
        found.map(|served| &served.device).ok_or(Flaw::AddressNotServed(local))
    }

    /// Returns the device for a path of the connection manager.
    pub(super) fn on_path(&self, path: &cm::Path) -> Result<&Device, Flaw> {
        match self {
            ServedDevices::One(device) => Ok(device),
            ServedDevices::Wildcard(served) => {
                let found = served.iter().find(|served| served.device.name() == path.device_name());
                let not_served = || Flaw::AddressNotServed(path.local_addr().ip().to_canonical());
                found.map(|served| &served.device).ok_or_else(not_served)
            }
        }
    }

    /// Returns the devices.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Device> {
        let (one, served) = match self {
            ServedDevices::One(device) => (Some(device), &[][..]),
            ServedDevices::Wildcard(served) => (None, &served[..]),
        };
        one.into_iter().chain(served.iter().map(|served| &served.device))
    }

    /// Whether RDMA hardware with a connection manager is among the devices.
    pub(super) fn has_hardware_manager(&self) -> bool {
        let is_managed =
            |device: &Device| !device.is_software() && device.attributes().has_connection_manager;
        match self {
            ServedDevices::One(device) => is_managed(device),
            ServedDevices::Wildcard(served) => served.iter().any(|served| is_managed(&served.device)),
        }
    }
}

impl ServedDevice {
    fn new(device: Device) -> ServedDevice {
        let entries = device.gids().unwrap_or_default().into_iter();
        let gids = entries.filter(|entry| entry.gid_type != GidType::InfiniBand).map(|entry| entry.gid);
        ServedDevice { gids: gids.collect(), device }
    }

    fn addrs(&self) -> impl Iterator<Item = IpAddr> {
        self.gids.iter().map(|gid| gid.udp_addr().ip())
    }
}
