//! Protection domains.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use adverb_proto::explain::Call;
use adverb_sys::ibv_pd;

use super::{Device, check};
use crate::error::{Result, WithCauses, call_failed};

pub(crate) struct ProtectionDomain {
    pub(super) device: Arc<Device>,
    pub(super) handle: NonNull<ibv_pd>,
}

// SAFETY: libibverbs' protection domains may be used from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(in crate::backend) fn new(device: &Arc<Device>) -> Result<ProtectionDomain> {
        // SAFETY: the context is open.
        let handle = unsafe { device.library.ibv_alloc_pd(device.context.as_ptr()) };
        let action = || format!("creating a protection domain on {}", device.name);
        let handle = NonNull::new(handle)
            .ok_or_else(|| call_failed(Call::Create, action(), io::Error::last_os_error()))?;
        Ok(ProtectionDomain { device: Arc::clone(device), handle })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if self.device.is_owned() {
            // SAFETY: the domain is freed once, and all objects that were created in it are destroyed, because they
            // hold the domain.
            let code = unsafe { self.device.library.ibv_dealloc_pd(self.handle.as_ptr()) };
            if let Err(error) = check(Call::Destroy, code, || "freeing a protection domain".to_owned()) {
                tracing::error!(error = %WithCauses(&error), "freeing a protection domain failed");
            }
        }
    }
}
