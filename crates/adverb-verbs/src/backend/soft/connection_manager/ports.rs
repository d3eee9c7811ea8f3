//! The ports of a NIC that are in use.
//!
//! These port numbers are independent of those of TCP and UDP.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use adverb_proto::cm::BindAddr;
use adverb_proto::types::Gid;

use super::super::Device;
use crate::backend::connection_manager::Purpose;

/// The ports of a NIC that identifiers are bound to.
#[derive(Default)]
pub(in crate::backend::soft) struct Ports(HashMap<(Purpose, u16), Vec<Holder>>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Holder {
    bind: BindAddr,
    /// Whether other holders that share the port may use it, too.
    shares: bool,
}

impl Holder {
    fn conflicts_with(&self, other: &Holder) -> bool {
        let overlaps = match (self.bind, other.bind) {
            (BindAddr::Address(one), BindAddr::Address(other)) => one == other,
            (BindAddr::AnyV4, BindAddr::Address(address)) | (BindAddr::Address(address), BindAddr::AnyV4) => {
                Gid::from(address).udp_addr().is_ipv4()
            }
            _ => true,
        };
        overlaps && !(self.shares && other.shares)
    }
}

impl Ports {
    fn try_add(&mut self, purpose: Purpose, port: u16, holder: Holder) -> bool {
        let holders = self.0.entry((purpose, port)).or_default();
        let is_free = !holders.iter().any(|other| other.conflicts_with(&holder));
        if is_free {
            holders.push(holder);
        }
        is_free
    }

    fn remove(&mut self, purpose: Purpose, port: u16, holder: Holder) {
        let Some(holders) = self.0.get_mut(&(purpose, port)) else { return };
        if let Some(index) = holders.iter().position(|other| *other == holder) {
            holders.swap_remove(index);
        }
        if holders.is_empty() {
            self.0.remove(&(purpose, port));
        }
    }
}

/// The use of a port on each of several NICs, until it is dropped.
pub(super) struct PortLease {
    pub(super) port: u16,
    purpose: Purpose,
    holder: Holder,
    devices: Vec<Arc<Device>>,
}

impl PortLease {
    pub(super) fn bind(&self) -> BindAddr {
        self.holder.bind
    }

    /// Reserves a port on all of the NICs. If `port` is 0, this function chooses one that is free on all of them.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse` if another identifier uses the port, unless both share it, and `AddrNotAvailable` if `port`
    /// is 0 and no port is free.
    pub(super) fn new(
        devices: &[Arc<Device>],
        purpose: Purpose,
        bind: BindAddr,
        port: u16,
        shares: bool,
    ) -> io::Result<PortLease> {
        let holder = Holder { bind, shares };
        if port != 0 {
            return PortLease::with_port(devices, purpose, holder, port)
                .ok_or(io::ErrorKind::AddrInUse.into());
        }
        // The search starts at a random port, because peers may still send to a port that was used recently.
        let start = getrandom::u32().map_err(io::Error::other)? as u16;
        let ports = (0..EPHEMERAL_PORT_COUNT)
            .map(|step| u16::MAX - (start.wrapping_add(step) % EPHEMERAL_PORT_COUNT));
        // An ephemeral port must have no other holder.
        let exclusive = Holder { bind: BindAddr::Any, shares: false };
        let is_unused = |port: &u16| {
            devices.iter().all(|device| {
                let ports = device.ports.lock();
                let holders = ports.0.get(&(purpose, *port));
                holders.is_none_or(|holders| !holders.iter().any(|other| other.conflicts_with(&exclusive)))
            })
        };
        let mut unused = ports.filter(is_unused);
        unused
            .find_map(|port| PortLease::with_port(devices, purpose, holder, port))
            .ok_or(io::ErrorKind::AddrNotAvailable.into())
    }

    fn with_port(devices: &[Arc<Device>], purpose: Purpose, holder: Holder, port: u16) -> Option<PortLease> {
        let mut lease = PortLease { port, purpose, holder, devices: Vec::new() };
        for device in devices {
            if !device.ports.lock().try_add(purpose, port, holder) {
                return None;
            }
            lease.devices.push(Arc::clone(device));
        }
        Some(lease)
    }
}

impl Drop for PortLease {
    fn drop(&mut self) {
        for device in self.devices.iter().filter(|device| device.is_owned()) {
            device.ports.lock().remove(self.purpose, self.port, self.holder);
        }
    }
}

/// The number of ephemeral ports, which are the last ports.
const EPHEMERAL_PORT_COUNT: u16 = 1 << 15;
