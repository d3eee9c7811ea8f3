//! Registered memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::explain::Call;
use adverb_proto::types::Access;

use super::{ProtectionDomain, nic_error};
use crate::backend::{Memory, MemoryKeys};
use crate::error::{Error, Feature, Result};

pub(crate) struct Registration {
    domain: Arc<ProtectionDomain>,
    keys: MemoryKeys,
    deregistered: AtomicBool,
}

impl Registration {
    pub(in crate::backend) fn new(
        domain: &Arc<ProtectionDomain>,
        memory: &dyn Memory,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Registration> {
        let device = &domain.device;
        // The address is exposed, because inline requests refer to memory by its address.
        let own_addr = memory.as_ptr().as_ptr().expose_provenance() as u64;
        let addr = iova.unwrap_or(own_addr);
        let access = access.difference(Access::ZERO_BASED);
        // SAFETY: the memory is readable and writable, and its owner keeps it until after `deregister`. Other code
        // accesses it by copies and word atomics (`memory/access.rs`), or exclusively.
        let key = unsafe { device.nic.register(domain.pd, memory.as_ptr(), memory.len(), addr, access) };
        let action = || format!("registering {} bytes with {}", memory.len(), device.name);
        let key = key.map_err(|error| nic_error(Call::RegisterMemory, error, action()))?;
        Ok(Registration {
            domain: Arc::clone(domain),
            keys: MemoryKeys { addr, is_identity_mapped: addr == own_addr, lkey: key, rkey: key },
            deregistered: AtomicBool::new(false),
        })
    }

    /// Returns an error: the software NIC can't access the memory of other devices.
    pub(in crate::backend) fn of_dmabuf(domain: &ProtectionDomain) -> Result<Registration> {
        Err(Error::Unsupported { feature: Feature::Dmabuf, device: domain.device.name.as_str().into() })
    }

    pub(in crate::backend) fn keys(&self) -> MemoryKeys {
        self.keys
    }

    pub(in crate::backend) fn deregister(&self) -> Result<()> {
        if !self.domain.device.is_owned() || self.deregistered.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let nic = &self.domain.device.nic;
        nic.deregister(self.keys.lkey)
            .map_err(|error| nic_error(Call::Destroy, error, "deregistering memory"))
    }
}
