//! Protection domains, and registration of memory in them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Device;
use crate::backend;
use crate::error::{DomainObject, Error, Feature, Result};

/// A protection domain: a queue pair can access only memory of its own domain, for its own requests and for those of
/// its peer. Cloning returns another handle to the same domain.
#[derive(Clone)]
pub struct ProtectionDomain {
    device: Device,
    backend: backend::ProtectionDomain,
    id: u64,
}

impl ProtectionDomain {
    pub(super) fn new(device: &Device) -> Result<ProtectionDomain> {
        // Numbers are never reused, so a number identifies one domain for the lifetime of the process.
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let backend = device.backend().protection_domain()?;
        Ok(ProtectionDomain { device: device.clone(), backend, id: NEXT_ID.fetch_add(1, Ordering::Relaxed) })
    }

    /// Returns the device that the domain belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the number that identifies the domain in errors. The number is unique in this process, across all
    /// devices.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the device can register dma-bufs.
    pub(super) fn can_register_dmabuf(&self) -> bool {
        self.backend.can_register_dmabuf()
    }

    pub(crate) fn backend(&self) -> &backend::ProtectionDomain {
        &self.backend
    }

    /// Returns the error of a feature that the device doesn't support.
    #[cold]
    pub(crate) fn unsupported(&self, feature: Feature) -> Error {
        self.device().unsupported(feature)
    }

    /// Returns the error for an object that belongs to `other` and was posted to a queue of this domain.
    #[cold]
    pub(crate) fn foreign_domain_error(
        &self,
        object: DomainObject,
        other: &ProtectionDomain,
        queue: String,
    ) -> Error {
        Error::ForeignDomain {
            object,
            domain: other.to_string().into(),
            queue: queue.into(),
            queue_domain: self.to_string().into(),
        }
    }
}

/// Handles to the same domain are equal.
impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &ProtectionDomain) -> bool {
        self.id == other.id
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("id", &self.id).field("device", &self.device).finish()
    }
}

impl fmt::Display for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protection domain {} of {}", self.id, self.device.name())
    }
}
