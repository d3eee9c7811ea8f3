//! Registered memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::explain::Call;
use adverb_proto::types::Access;
use adverb_sys::ibv_mr;

use super::{ProtectionDomain, check};
use crate::backend::{Memory, MemoryKeys};
use crate::error::{Error, Feature, Result, call_failed};

pub(crate) struct Registration {
    domain: Arc<ProtectionDomain>,
    pub(super) handle: NonNull<ibv_mr>,
    keys: MemoryKeys,
    deregistered: AtomicBool,
}

// SAFETY: libibverbs' memory regions may be used from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above. The keys are copied when the region is created.
unsafe impl Sync for Registration {}

impl Registration {
    pub(in crate::backend) fn new(
        domain: &Arc<ProtectionDomain>,
        memory: &dyn Memory,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Registration> {
        let device = &domain.device;
        let address = memory.as_ptr().as_ptr();
        let own_addr = address.expose_provenance() as u64;
        let iova = iova.unwrap_or(own_addr);
        // SAFETY: the domain exists. The memory is readable and writable, and its owner keeps it until after
        // `deregister`.
        let handle = unsafe {
            let domain = domain.handle.as_ptr();
            device.library.ibv_reg_mr_iova2(domain, address.cast(), memory.len(), iova, flags(access))
        };
        let Some(handle) = NonNull::new(handle) else {
            let error = io::Error::last_os_error();
            let action = format!("registering {} bytes with {}", memory.len(), device.name);
            return Err(match (error.raw_os_error(), memlock_limit()) {
                // Registering locks memory, so the limit on locked memory is the most common cause. Linux returns EPERM if
                // the limit is 0 (`can_do_mlock`).
                (Some(libc::ENOMEM), Some(limit)) | (Some(libc::EPERM), Some(limit @ 0)) => {
                    Error::MemlockLimit { action: action.into(), limit, source: error }
                }
                // Without a limit, the machine or the device has too little memory.
                (Some(libc::ENOMEM), None) => call_failed(Call::Create, action, error),
                _ => call_failed(Call::RegisterMemory, action, error),
            });
        };
        // SAFETY: the region was just created in this domain.
        Ok(unsafe { Registration::from_handle(domain, handle, iova, iova == own_addr) })
    }

    /// Registers memory of another device.
    pub(in crate::backend) fn of_dmabuf(
        domain: &Arc<ProtectionDomain>,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Registration> {
        let device = &domain.device;
        // SAFETY: the domain exists, and the descriptor is open. The kernel keeps the dma-buf as long as the region
        // exists, and no code has it as a slice, because it has no address in this process.
        let handle = unsafe {
            let (domain, fd) = (domain.handle.as_ptr(), dmabuf.as_raw_fd());
            device.library.ibv_reg_dmabuf_mr(domain, offset, len, iova, fd, flags(access))
        };
        let Some(handle) = NonNull::new(handle) else {
            let error = io::Error::last_os_error();
            let action = format!("registering {len} bytes of a dma-buf with {}", device.name);
            return Err(match is_unsupported(&error) {
                true => Error::Unsupported { feature: Feature::Dmabuf, device: device.name.as_str().into() },
                false => call_failed(Call::RegisterDmabuf, action, error),
            });
        };
        // SAFETY: the region was just created in this domain.
        Ok(unsafe { Registration::from_handle(domain, handle, iova, false) })
    }

    /// Whether the device can register dma-bufs. Its attributes don't include this, so this function registers an
    /// invalid descriptor: a device with support rejects the descriptor, and a device without support rejects the
    /// operation.
    pub(in crate::backend) fn supports_dmabuf(domain: &ProtectionDomain) -> bool {
        let device = &domain.device;
        // SAFETY: the domain exists. The descriptor is invalid, so nothing is registered.
        let handle = unsafe {
            device.library.ibv_reg_dmabuf_mr(domain.handle.as_ptr(), 0, 4096, 0, -1, flags(Access::empty()))
        };
        handle.is_null() && !is_unsupported(&io::Error::last_os_error())
    }

    /// Takes ownership of a region.
    ///
    /// # Safety
    ///
    /// The region exists, belongs to this domain, and has no other owner.
    unsafe fn from_handle(
        domain: &Arc<ProtectionDomain>,
        handle: NonNull<ibv_mr>,
        addr: u64,
        is_identity_mapped: bool,
    ) -> Registration {
        // SAFETY: the region was just created, and its keys don't change.
        let (lkey, rkey) = unsafe { ((*handle.as_ptr()).lkey, (*handle.as_ptr()).rkey) };
        Registration {
            domain: Arc::clone(domain),
            handle,
            keys: MemoryKeys { addr, is_identity_mapped, lkey, rkey },
            deregistered: AtomicBool::new(false),
        }
    }

    pub(in crate::backend) fn keys(&self) -> MemoryKeys {
        self.keys
    }

    pub(in crate::backend) fn deregister(&self) -> Result<()> {
        if !self.domain.device.is_owned() || self.deregistered.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: the flag makes sure that the region is deregistered once.
        let code = unsafe { self.domain.device.library.ibv_dereg_mr(self.handle.as_ptr()) };
        check(Call::Destroy, code, || "deregistering memory".to_owned())
    }
}

/// Encodes access rights in the library's format. The `iova` alone determines the addresses: devices treat the flag
/// `ZERO_BASED` differently, and some (rxe) ignore it.
fn flags(access: Access) -> libc::c_uint {
    access.difference(Access::ZERO_BASED).bits()
}

/// Whether an error means that the library, the device's provider or the kernel doesn't support the operation.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS | libc::ENOTTY)
    )
}

/// Returns the limit of locked memory in bytes, if there is one.
pub(super) fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit may be written.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
