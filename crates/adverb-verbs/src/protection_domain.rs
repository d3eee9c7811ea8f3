//! Protection domains, and memory in them.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use adverb_proto::types::{Access, Transport};

use super::{Device, QueuePairBuilder, SharedReceiveQueueBuilder};
use crate::backend;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Memory, MemoryRegion, Pages, Payload, Region};

/// What memory and queue pairs belong to: a queue pair reaches only memory of its own domain, for its own requests and
/// for its peer's. Cloning gives another handle to it.
#[derive(Clone)]
pub struct ProtectionDomain {
    device: Device,
    backend: backend::ProtectionDomain,
    id: u64,
}

impl ProtectionDomain {
    pub(super) fn new(device: &Device) -> Result<ProtectionDomain> {
        // Never reused, not even when the domain is gone: a number names one domain for the life of the process.
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let backend = device.backend().protection_domain()?;
        Ok(ProtectionDomain { device: device.clone(), backend, id: NEXT_ID.fetch_add(1, Ordering::Relaxed) })
    }

    /// The device that it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the number by which errors name it: unique in this process, over all devices.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
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
        let too_long = |region: MemoryRegion| Error::LimitExceeded {
            quantity: "buffer size".into(),
            requested: region.len() as u64,
            max: u64::from(u32::MAX),
            hint: "create a region, and use slices of it: `ProtectionDomain::region`".into(),
        };
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

    /// Registers memory, with these rights. Peers name it by its own addresses, or with
    /// [`ZERO_BASED`](Access::ZERO_BASED) by those from 0.
    ///
    /// # Errors
    ///
    /// If it can't be registered, or the rights don't go together: remote writing needs local writing.
    /// [`Error::Unsupported`] for [`ON_DEMAND`](Access::ON_DEMAND) if the device [can't](super::DeviceAttributes::odp).
    /// With `ZERO_BASED`, if it doesn't begin with a page.
    pub fn register(&self, memory: impl Memory, access: Access) -> Result<MemoryRegion> {
        let iova = access.contains(Access::ZERO_BASED).then_some(0);
        self.register_as(Box::new(memory), iova, access)
    }

    /// Registers memory under addresses of your choice: peers, and the device, name its first byte by `iova`.
    ///
    /// So a peer can know the addresses beforehand, or find the same bytes under the same addresses after they moved.
    ///
    /// ```no_run
    /// # use adverb::memory::Pages;
    /// # use adverb::verbs::{Access, ProtectionDomain};
    /// # fn example(domain: &ProtectionDomain) -> Result<(), Box<dyn std::error::Error>> {
    /// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// let table = domain.register_at(Pages::new(1 << 20)?, 0x10_0000_0000, access)?;
    /// assert_eq!(table.remote().addr, 0x10_0000_0000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`register`](ProtectionDomain::register); if the address doesn't lie as far into its page as the memory does,
    /// or the last byte would have an address beyond 64 bits.
    pub fn register_at(&self, memory: impl Memory, iova: u64, access: Access) -> Result<MemoryRegion> {
        self.register_as(Box::new(memory), Some(iova), access)
    }

    /// Registers memory of another device, a GPU say, that its driver exports as a dma-buf: the bytes from `offset`,
    /// under addresses that begin with `iova`. The descriptor may be closed afterwards.
    ///
    /// This process can't look at the region: only requests, and peers with the rights, move its bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device [can't](super::Device::can_register_dmabuf); if the rights don't go together,
    /// or the device refuses, because the bytes don't lie in the dma-buf, for one.
    pub fn register_dmabuf(
        &self,
        dmabuf: impl AsFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        self.check_access(access)?;
        check_addresses(offset, iova, len, access)?;
        let registration = self.backend.register_dmabuf(dmabuf.as_fd(), offset, len, iova, access)?;
        Ok(MemoryRegion::new(Region::elsewhere(self, registration, len, access)))
    }

    fn register_as(
        &self,
        memory: Box<dyn Memory>,
        iova: Option<u64>,
        access: Access,
    ) -> Result<MemoryRegion> {
        self.check_access(access)?;
        if let Some(iova) = iova {
            check_addresses(memory.as_ptr().addr().get() as u64, iova, memory.len(), access)?;
        }
        let registration = self.backend.register(&*memory, iova, access)?;
        Ok(MemoryRegion::new(Region::new(self, registration, memory, access)))
    }

    /// Whether the rights go together, and the device can give them.
    fn check_access(&self, access: Access) -> Result<()> {
        if !access.is_consistent() {
            let reason = "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        if access.contains(Access::ON_DEMAND) && !self.device.attributes().odp.supported {
            return Err(Error::Unsupported {
                feature: format!("registering memory on demand with {}", self.device.name()).into(),
                hint: "register it without ON_DEMAND: it is pinned then".into(),
            });
        }
        Ok(())
    }

    /// Whether the device can register dma-bufs.
    pub(super) fn can_register_dmabuf(&self) -> bool {
        self.backend.can_register_dmabuf()
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

    /// Checks that every piece of a payload belongs to this domain, which is that of `queue`.
    ///
    /// The device can't be relied on for this: an lkey is unique within one device only, so that another device may know
    /// other memory by the same key and address.
    #[inline]
    pub(super) fn check_payload(&self, payload: &Payload, queue: impl FnOnce() -> String) -> Result<()> {
        match payload.pieces().iter().find(|piece| piece.domain().id != self.id) {
            None => Ok(()),
            Some(foreign) => Err(self.foreign("memory", foreign.domain(), queue())),
        }
    }

    /// Returns the error for an object that belongs to `other` and was posted to a queue of this domain.
    #[cold]
    pub(super) fn foreign(&self, what: &'static str, other: &ProtectionDomain, queue: String) -> Error {
        Error::ForeignDomain {
            object: what,
            domain: other.to_string(),
            queue,
            queue_domain: self.to_string(),
        }
    }
}

/// Whether memory can have these addresses: they must lie as far into their pages as the memory itself, at `place`, does
/// (`ib_uverbs_reg_mr` of the kernel), and not wrap.
fn check_addresses(place: u64, iova: u64, len: usize, access: Access) -> Result<()> {
    /// The smallest page of any machine; where they are larger the kernel refuses more.
    const PAGE: u64 = 4096;
    let refuse = |reason: String| Err(Error::InvalidRequest { reason: reason.into() });
    if access.contains(Access::ZERO_BASED) && iova != 0 {
        return refuse(format!("ZERO_BASED addresses begin with 0, and not with {iova:#x}: leave it out"));
    }
    if place % PAGE != iova % PAGE {
        return refuse(format!(
            "the memory begins {} bytes into its page, and the address {iova:#x} would be {}: they must be the same",
            place % PAGE,
            iova % PAGE
        ));
    }
    match iova.checked_add(len as u64) {
        Some(_) => Ok(()),
        None => refuse(format!("{len} bytes from the address {iova:#x} go beyond the last address")),
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
