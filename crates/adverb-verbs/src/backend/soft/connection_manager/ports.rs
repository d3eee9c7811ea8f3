//! Which ports of a NIC are taken.
//!
//! They have nothing to do with those of TCP and UDP but that they look the same.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use adverb_proto::cm::BindAddr;
use adverb_proto::types::Gid;

use super::super::Device;
use crate::backend::connection_manager::Purpose;

/// The ports of a NIC that somebody listens at or connects from.
#[derive(Default)]
pub(in crate::backend::soft) struct Ports(HashMap<(Purpose, u16), Vec<Holder>>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Holder {
    bind: BindAddr,
    /// Whether it lets others have it who do so too.
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

/// A port that is taken, on each of some NICs, until this is dropped.
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

    /// Takes a port on all of the NICs; any that is free on all of them if it is 0.
    ///
    /// # Errors
    ///
    /// If somebody has it who doesn't share it.
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
        // One that was somebody's a moment ago may be looked for by that one's peers: begin anywhere.
        let start = getrandom::u32().map_err(io::Error::other)? as u16;
        let ports = (0..EPHEMERAL_PORT_COUNT)
            .map(|step| u16::MAX - (start.wrapping_add(step) % EPHEMERAL_PORT_COUNT));
        // Nobody else has an ephemeral port, or it isn't one.
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

/// How many ports, up to the last, are given to who doesn't care.
const EPHEMERAL_PORT_COUNT: u16 = 1 << 15;
