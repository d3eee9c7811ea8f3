//! Address handles: how to reach a peer with datagrams.

use std::io;
use std::sync::Arc;

use adverb_proto::{AddressVector, Path, Route};

use super::{Device, ProtectionDomain};
use crate::backend::Address;
use crate::error::{Error, Result};

pub(crate) struct AddressHandle {
    domain: Arc<ProtectionDomain>,
    path: Path,
}

impl AddressHandle {
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, address: &Address) -> Result<AddressHandle> {
        let path = domain.device.path(address, DATAGRAM_PORT)?;
        Ok(AddressHandle { domain: Arc::clone(domain), path })
    }

    #[inline]
    pub(crate) fn is_of(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }
}

impl AddressVector for AddressHandle {
    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

impl Device {
    /// The path from one of our addresses to another.
    pub(super) fn path(&self, address: &Address, source_port: u16) -> Result<Path> {
        self.check_port(address.port)?;
        let invalid = |reason: String| Error::InvalidRequest { reason: reason.into() };
        let local = self.nic.addresses().get(usize::from(address.gid_index)).ok_or_else(|| {
            invalid(format!("{} has no address with index {}", self.name, address.gid_index))
        })?;
        let remote = address.gid.ip();
        let path = self.nic.path(*local, remote, source_port).ok_or_else(|| Error::Verb {
            action: format!("finding a route from {local}"),
            error: io::ErrorKind::NetworkUnreachable.into(),
            hint: format!("use a local address of the same IP version as {remote} ({})", address.gid).into(),
        })?;
        let hop_limit = (address.hop_limit != 0).then_some(address.hop_limit);
        let Address { traffic_class, flow_label, .. } = *address;
        Ok(path.with_route(Route { traffic_class, flow_label, hop_limit }))
    }
}

/// The UDP source port of datagrams.
const DATAGRAM_PORT: u16 = 0xc000;
