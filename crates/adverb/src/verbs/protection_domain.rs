//! Protection domains, and memory in them.

use std::fmt;

use adverb_proto::vocabulary::{Access, Transport};

use super::{Device, QueuePairBuilder, SharedReceiveQueueBuilder};
use crate::backend;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Memory, MemoryRegion, Pages, Region};

/// What memory and queue pairs belong to: a queue pair reaches only memory of its own domain, for its own requests and
/// for its peer's. Cloning gives another handle to it.
#[derive(Clone)]
pub struct ProtectionDomain {
    device: Device,
    backend: backend::ProtectionDomain,
}

impl ProtectionDomain {
    pub(super) fn new(device: &Device) -> Result<ProtectionDomain> {
        Ok(ProtectionDomain { device: device.clone(), backend: device.backend().protection_domain()? })
    }

    /// The device that it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Makes a buffer of `len` zeros: registered, and out of any peer's reach.
    ///
    /// Registering costs far more than using: make buffers once and use them again.
    ///
    /// # Errors
    ///
    /// If there is no memory, or it can't be registered (the limit on locked memory is a common reason).
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        let region = self.region(len, Access::LOCAL_WRITE)?;
        let too_long =
            |region: MemoryRegion| Error::TooLong { len: region.len() as u64, most: u64::from(u32::MAX) };
        region.into_buffer().map_err(too_long)
    }

    /// Makes a region of `len` zeros, with these rights.
    ///
    /// # Errors
    ///
    /// If there is no memory, or it can't be registered.
    pub fn region(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        let pages = Pages::new(len).map_err(|error| Error::Allocation { len, error })?;
        self.register(pages, access)
    }

    /// Registers memory, with these rights.
    ///
    /// # Errors
    ///
    /// If it can't be registered, or the rights don't go together: remote writing needs local writing.
    pub fn register(&self, memory: impl Memory, access: Access) -> Result<MemoryRegion> {
        if !access.is_consistent() {
            let reason = "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let memory: Box<dyn Memory> = Box::new(memory);
        let registration = self.backend.register(&*memory, access)?;
        Ok(MemoryRegion::new(Region::new(registration, memory, access)))
    }

    /// Begins to make a receive queue of `depth` requests that queue pairs share.
    pub fn shared_receive_queue(&self, depth: u32) -> SharedReceiveQueueBuilder {
        SharedReceiveQueueBuilder::new(self, depth)
    }

    /// Begins to make a queue pair.
    pub fn queue_pair(&self, transport: Transport) -> QueuePairBuilder {
        QueuePairBuilder::new(self, transport)
    }

    pub(super) fn backend(&self) -> &backend::ProtectionDomain {
        &self.backend
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("device", &self.device).finish()
    }
}
