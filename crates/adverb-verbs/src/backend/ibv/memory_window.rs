//! Memory windows of type 2B.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use adverb_proto::types::WindowBind;
use adverb_sys::{self as sys, ibv_mw, ibv_mw_bind_info, ibv_send_wr_bind_mw};

use super::{ProtectionDomain, Registration, check, verb_error};
use crate::backend::request_list::SendList;
use crate::error::Result;

pub(crate) struct MemoryWindow {
    domain: Arc<ProtectionDomain>,
    handle: NonNull<ibv_mw>,
    /// The key that it has now; it gets the next when it is bound.
    rkey: AtomicU32,
    freed: AtomicBool,
}

// SAFETY: libibverbs' memory windows may be used from any thread.
unsafe impl Send for MemoryWindow {}
// SAFETY: as above; only `SendList::bind` and `free` look at the library's object, and their caller sees to it that they
// don't do so at once.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    pub(crate) fn new(domain: &Arc<ProtectionDomain>) -> Result<MemoryWindow> {
        // SAFETY: the domain is alive.
        let handle = unsafe { sys::ibv_alloc_mw(domain.handle.as_ptr(), sys::IBV_MW_TYPE_2) };
        let action = || format!("creating a memory window on {}", domain.device.name);
        let handle = NonNull::new(handle).ok_or_else(|| verb_error(io::Error::last_os_error(), action()))?;
        // SAFETY: the window was just made.
        let rkey = AtomicU32::new(unsafe { (*handle.as_ptr()).rkey });
        Ok(MemoryWindow { domain: Arc::clone(domain), handle, rkey, freed: AtomicBool::new(false) })
    }

    /// The key that it gets when it is bound next.
    pub(crate) fn next_rkey(&self) -> u32 {
        sys::ibv_inc_rkey(self.rkey.load(Ordering::Relaxed))
    }

    /// Says that it was bound, and has this key now.
    pub(crate) fn set_rkey(&self, rkey: u32) {
        self.rkey.store(rkey, Ordering::Relaxed);
    }

    /// Frees it: afterwards nobody reaches memory through it. If that fails somebody may.
    pub(crate) fn free(&self) -> Result<()> {
        if !self.domain.device.is_owned() || self.freed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: freed once, as the flag sees to, and not used afterwards: its owner knows that it is gone. A context
        // that makes windows also frees them.
        let code = unsafe { sys::ibv_dealloc_mw(self.handle.as_ptr()) };
        check(code, || "freeing a memory window".to_owned())
    }
}

impl SendList {
    /// Says of a request to what it binds which window. The request must keep both until it has completed.
    #[cold]
    pub(crate) fn bind(
        &mut self,
        index: usize,
        window: &MemoryWindow,
        region: &Registration,
        bind: &WindowBind,
    ) {
        let mw = window.handle.as_ptr();
        // Providers take the key that the window has now from here, and leave it to us to keep it.
        // SAFETY: the window isn't freed: the request that has it is about to be posted. Nobody else uses the key.
        unsafe { (*mw).rkey = window.rkey.load(Ordering::Relaxed) };
        let bind = ibv_send_wr_bind_mw {
            mw,
            rkey: bind.rkey,
            bind_info: ibv_mw_bind_info {
                mr: region.handle.as_ptr(),
                addr: bind.addr,
                length: bind.length,
                mw_access_flags: bind.access.bits(),
            },
        };
        self.set_bind(index, bind);
    }
}
