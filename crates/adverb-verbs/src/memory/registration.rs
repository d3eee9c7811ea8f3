//! Registration of memory in protection domains.

use std::os::fd::AsFd;

use adverb_proto::types::Access;

use super::{Buffer, Memory, MemoryRegion, Pages, Payload, Region};
use crate::device::ProtectionDomain;
use crate::error::{DomainObject, Error, Feature, Limit, Result};

impl ProtectionDomain {
    /// Allocates and registers a buffer of `len` zeros, which no peer can access.
    ///
    /// Registration is much slower than a transfer: allocate buffers once and reuse them.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Allocation`] if there is not enough memory, [`Error::LimitExceeded`] if `len` doesn't fit into
    /// 32 bits, and [`Error::CallFailed`] if registration fails, often because of the limit on locked memory
    /// (`RLIMIT_MEMLOCK`).
    pub fn allocate_buffer(&self, len: usize) -> Result<Buffer> {
        let region = self.allocate_region(len, Access::LOCAL_WRITE)?;
        let too_long = |region: MemoryRegion| Error::LimitExceeded {
            limit: Limit::BufferLen,
            requested: region.len() as u64,
            max: u64::from(u32::MAX),
        };
        region.into_buffer().map_err(too_long)
    }

    /// Allocates and registers a region of `len` zeros with these access rights.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Allocation`] if there is not enough memory, and otherwise the same errors as
    /// [`register`](ProtectionDomain::register).
    pub fn allocate_region(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        let pages = Pages::new(len).map_err(|source| Error::Allocation { len, source })?;
        self.register(pages, access)
    }

    /// Registers memory with these access rights. Peers address the memory by its virtual addresses, or from 0 with
    /// [`ZERO_BASED`](Access::ZERO_BASED).
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the access rights are inconsistent (remote write requires local write), or
    /// if `ZERO_BASED` memory doesn't start at a page boundary; [`Error::Unsupported`] if the access rights contain
    /// [`ON_DEMAND`](Access::ON_DEMAND) and the device [doesn't support it](crate::DeviceAttributes::odp), or
    /// [`FLUSH_GLOBAL`](Access::FLUSH_GLOBAL) or [`FLUSH_PERSISTENT`](Access::FLUSH_PERSISTENT) and the device [doesn't
    /// support it](crate::DeviceAttributes::flush); and [`Error::CallFailed`] if registration fails.
    pub fn register(&self, memory: impl Memory, access: Access) -> Result<MemoryRegion> {
        let iova = access.contains(Access::ZERO_BASED).then_some(0);
        self.register_as(Box::new(memory), iova, access)
    }

    /// Registers memory at addresses that the caller chooses: the address of the first byte is `iova`, for the device
    /// and for peers.
    ///
    /// A peer can thus know the addresses in advance, and the addresses can stay the same when the bytes move to other
    /// memory.
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
    /// Returns the same errors as [`register`](ProtectionDomain::register), and [`Error::InvalidRequest`] if `iova`
    /// and the memory have different offsets within their pages, or if the last address exceeds 64 bits.
    pub fn register_at(&self, memory: impl Memory, iova: u64, access: Access) -> Result<MemoryRegion> {
        self.register_as(Box::new(memory), Some(iova), access)
    }

    /// Registers memory of another device, such as a GPU, that its driver exports as a dma-buf: `len` bytes from
    /// `offset`, at addresses that start at `iova`. The file descriptor may be closed afterwards.
    ///
    /// This process can't read or write the region: only requests, and peers with access rights, can.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the device [can't register dma-bufs](crate::Device::can_register_dmabuf),
    /// [`Error::InvalidRequest`] if the access rights are inconsistent or the addresses invalid, and [`Error::CallFailed`] if
    /// the operation fails, for example because the bytes lie outside the dma-buf.
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
        let registration = self.backend().register_dmabuf(dmabuf.as_fd(), offset, len, iova, access)?;
        Ok(MemoryRegion::new(Region::of_other_device(self, registration, len, access)))
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
        let registration = self.backend().register(&*memory, iova, access)?;
        Ok(MemoryRegion::new(Region::new(self, registration, memory, access)))
    }

    /// Checks that the access rights are consistent, and that the device supports them.
    fn check_access(&self, access: Access) -> Result<()> {
        if !access.is_consistent() {
            let reason = "REMOTE_WRITE and REMOTE_ATOMIC require LOCAL_WRITE";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        if access.contains(Access::ON_DEMAND) && !self.device().attributes().odp.supported {
            return Err(self.unsupported(Feature::OnDemandPaging));
        }
        let flush = self.device().attributes().flush;
        let rights = [
            (Access::FLUSH_GLOBAL, flush.global, Feature::FlushGlobal),
            (Access::FLUSH_PERSISTENT, flush.persistent, Feature::FlushPersistent),
        ];
        for (right, is_supported, feature) in rights {
            if access.contains(right) && !is_supported {
                return Err(self.unsupported(feature));
            }
        }
        Ok(())
    }

    /// Checks that every segment of a payload belongs to this domain. `queue` returns the name of the queue for the error.
    ///
    /// The device can't be relied on for this: an lkey is unique within one device only, so another device may have
    /// other memory with the same key and address.
    #[inline]
    pub(crate) fn check_payload(&self, payload: &Payload, queue: impl FnOnce() -> String) -> Result<()> {
        match payload.segments().iter().find(|piece| piece.domain().id() != self.id()) {
            None => Ok(()),
            Some(foreign) => Err(self.foreign_domain_error(DomainObject::Memory, foreign.domain(), queue())),
        }
    }
}

/// Checks the addresses of memory to register: their offset within a page must be that of the memory itself, at
/// `memory_addr` (`ib_uverbs_reg_mr` in the kernel), and they must not wrap.
fn check_addresses(memory_addr: u64, iova: u64, len: usize, access: Access) -> Result<()> {
    /// The smallest page size of any machine. With larger pages, the kernel rejects more addresses.
    const PAGE: u64 = 4096;
    let reject = |reason: String| Err(Error::InvalidRequest { reason: reason.into() });
    if access.contains(Access::ZERO_BASED) && iova != 0 {
        return reject(format!("ZERO_BASED requires the address 0, not {iova:#x}"));
    }
    if memory_addr % PAGE != iova % PAGE {
        return reject(format!(
            "memory and address must have the same offset within their pages: the memory's is {}, that of {iova:#x} is {}",
            memory_addr % PAGE,
            iova % PAGE
        ));
    }
    match iova.checked_add(len as u64) {
        Some(_) => Ok(()),
        None => reject(format!("{len} bytes at the address {iova:#x} exceed the address space")),
    }
}
