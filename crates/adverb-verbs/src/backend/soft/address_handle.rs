//! Address handles: routes to peers for datagrams.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adverb_proto::explain::Call;
use adverb_proto::{Path, Route};

use super::{Device, ProtectionDomain};
use crate::backend::Address;
use crate::error::{Error, Result, call_failed};

pub(crate) struct AddressHandle {
    domain: Arc<ProtectionDomain>,
    path: OpenPath,
}

impl AddressHandle {
    pub(in crate::backend) fn new(
        domain: &Arc<ProtectionDomain>,
        address: &Address,
    ) -> Result<AddressHandle> {
        // Without a flow label, rdma-core's driver of mlx5 chooses a random port for each address handle
        // (`mlx5_ah_set_udp_sport` in `providers/mlx5/verbs.c`). Here, handles use the device's ports in turn.
        let offset = domain.device.address_handle_count.fetch_add(1, Ordering::Relaxed);
        let path = OpenPath::new(&domain.device, address, FIRST_SOURCE_PORT | offset)?;
        Ok(AddressHandle { domain: Arc::clone(domain), path })
    }

    #[inline]
    pub(in crate::backend) fn is_of(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    /// Returns the path. Its source port is open as long as the handle exists.
    #[inline]
    pub(super) fn plain_path(&self) -> Path {
        self.path.path
    }

    pub(in crate::backend) fn source_port(&self) -> u16 {
        self.path.path.source_port()
    }
}

/// A path from one of a device's addresses to another address. Its source port is open as long as this exists.
pub(super) struct OpenPath {
    device: Arc<Device>,
    pub(super) path: Path,
}

impl OpenPath {
    /// Opens the path to an address. Its source port is the port of the flow label or, if the label is 0, the device's
    /// port for flows that prefer `preferred_port`.
    pub(super) fn new(device: &Arc<Device>, address: &Address, preferred_port: u16) -> Result<OpenPath> {
        device.check_port(address.port)?;
        let invalid_error = |reason: String| Error::InvalidRequest { reason: reason.into() };
        let local = device.nic.addresses().get(usize::from(address.gid_index)).ok_or_else(|| {
            invalid_error(format!("{} has no address with index {}", device.name, address.gid_index))
        })?;
        let (remote, flow_label) = (address.gid.ip(), address.flow_label & 0xf_ffff);
        let path = match flow_label {
            0 => device.nic.path(*local, remote, preferred_port),
            _ => device.nic.open_path(*local, remote, flow_label),
        };
        let path = path.ok_or_else(|| {
            let action = format!("finding a route from {local} to {remote}");
            call_failed(Call::ResolvePeer, action, io::ErrorKind::NetworkUnreachable.into())
        })?;
        let hop_limit = (address.hop_limit != 0).then_some(address.hop_limit);
        let route = Route { traffic_class: address.traffic_class, flow_label, hop_limit };
        Ok(OpenPath { device: Arc::clone(device), path: path.with_route(route) })
    }
}

impl Drop for OpenPath {
    fn drop(&mut self) {
        if self.path.route().flow_label != 0 && self.device.is_owned() {
            self.device.nic.close_path(&self.path);
        }
    }
}

/// The first of the UDP source ports of RoCEv2.
const FIRST_SOURCE_PORT: u16 = 0xc000;
