//! Protection domains.

use std::sync::Arc;

use adverb_proto::explain::Call;
use adverb_proto::memory::Pd;

use super::{Device, nic_error};
use crate::error::Result;

pub(crate) struct ProtectionDomain {
    pub(super) device: Arc<Device>,
    pub(super) pd: Pd,
}

impl ProtectionDomain {
    pub(in crate::backend) fn new(device: &Arc<Device>) -> Result<ProtectionDomain> {
        let created = device.nic.create_domain();
        let pd = created.map_err(|error| {
            nic_error(Call::Create, error, format!("creating a protection domain on {}", device.name))
        })?;
        Ok(ProtectionDomain { device: Arc::clone(device), pd })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if self.device.is_owned()
            && let Err(error) = self.device.nic.destroy_domain(self.pd)
        {
            tracing::error!(%error, "freeing a protection domain failed");
        }
    }
}
