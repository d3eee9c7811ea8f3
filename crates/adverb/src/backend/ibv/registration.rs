//! Memory that the device knows.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::vocabulary::Access;
use adverb_sys::ibv_mr;

use super::{ProtectionDomain, check};
use crate::error::{Error, Result};
use crate::memory::Memory;

pub(crate) struct Registration {
    domain: Arc<ProtectionDomain>,
    pub(super) handle: NonNull<ibv_mr>,
    addr: u64,
    lkey: u32,
    rkey: u32,
    gone: AtomicBool,
}

// SAFETY: libibverbs' memory regions may be used from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above; what is read often is copied out.
unsafe impl Sync for Registration {}

impl Registration {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        memory: &dyn Memory,
        access: Access,
    ) -> Result<Registration> {
        let device = &domain.device;
        let address = memory.as_ptr().as_ptr();
        // SAFETY: the domain is alive; the memory is readable and writable, and its owner keeps it until after
        // `deregister`.
        let handle = unsafe {
            device.library.ibv_reg_mr(domain.handle.as_ptr(), address.cast(), memory.len(), access.bits())
        };
        let Some(handle) = NonNull::new(handle) else {
            let error = io::Error::last_os_error();
            return Err(Error::Verb {
                action: format!("registering {} bytes with {}", memory.len(), device.name),
                hint: registration_hint(&error, memory.len()).into(),
                error,
            });
        };
        // SAFETY: the region was just made, and its keys don't change.
        let (lkey, rkey) = unsafe { ((*handle.as_ptr()).lkey, (*handle.as_ptr()).rkey) };
        let addr = if access.contains(Access::ZERO_BASED) { 0 } else { address.expose_provenance() as u64 };
        Ok(Registration {
            domain: Arc::clone(domain),
            handle,
            addr,
            lkey,
            rkey,
            gone: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    pub(crate) fn is_in(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    pub(crate) fn deregister(&self) -> Result<()> {
        if !self.domain.device.is_ours() || self.gone.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: deregistered once, as the flag sees to.
        let code = unsafe { self.domain.device.library.ibv_dereg_mr(self.handle.as_ptr()) };
        check(code, || "deregistering memory".to_owned())
    }
}

/// Registering locks memory, and the limit on that is often what it fails at.
fn registration_hint(error: &io::Error, len: usize) -> String {
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return String::new();
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit may be written.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    if asked != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return "the device or the machine has too little memory for this".to_owned();
    }
    format!(
        "registered memory is locked, this asks for {len} bytes, and the process may lock {} (ulimit -l): raise \
         memlock in /etc/security/limits.conf, LimitMEMLOCK= of the service, or --ulimit memlock of the container",
        limit.rlim_cur
    )
}
