//! Memory windows of type 2B.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use adverb_proto::explain::Call;
use adverb_proto::types::WindowBind;
use adverb_sys::{self as sys, ibv_mw, ibv_mw_bind_info, ibv_send_wr_bind_mw};

use super::request_list::SendList;
use super::{ProtectionDomain, Registration, check};
use crate::error::{Result, call_failed};

pub(crate) struct MemoryWindow {
    domain: Arc<ProtectionDomain>,
    handle: NonNull<ibv_mw>,
    /// The current key. Binding the window changes it to the next key.
    rkey: AtomicU32,
    freed: AtomicBool,
}

// SAFETY: libibverbs' memory windows may be used from any thread.
unsafe impl Send for MemoryWindow {}
// SAFETY: as above. Only `SendList::bind` and `free` access the library's object, and their callers guarantee that they
// don't do so at the same time.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    pub(in crate::backend) fn new(domain: &Arc<ProtectionDomain>) -> Result<MemoryWindow> {
        // SAFETY: the domain exists.
        let handle = unsafe { sys::ibv_alloc_mw(domain.handle.as_ptr(), sys::IBV_MW_TYPE_2) };
        let action = || format!("creating a memory window on {}", domain.device.name);
        let handle = NonNull::new(handle)
            .ok_or_else(|| call_failed(Call::Create, action(), io::Error::last_os_error()))?;
        // SAFETY: the window was just created.
        let rkey = AtomicU32::new(unsafe { (*handle.as_ptr()).rkey });
        Ok(MemoryWindow { domain: Arc::clone(domain), handle, rkey, freed: AtomicBool::new(false) })
    }

    /// Returns the key of the next binding.
    pub(in crate::backend) fn next_rkey(&self) -> u32 {
        sys::ibv_inc_rkey(self.rkey.load(Ordering::Relaxed))
    }

    /// Sets the current key, after the window was bound.
    pub(in crate::backend) fn set_rkey(&self, rkey: u32) {
        self.rkey.store(rkey, Ordering::Relaxed);
    }

    /// Frees the window, which ends all access through it. After an error, the access may continue.
    pub(in crate::backend) fn free(&self) -> Result<()> {
        if !self.domain.device.is_owned() || self.freed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: the flag makes sure that the window is freed once, and its owner doesn't use it afterwards. A context
        // that can allocate windows can also free them.
        let code = unsafe { sys::ibv_dealloc_mw(self.handle.as_ptr()) };
        check(Call::Destroy, code, || "freeing a memory window".to_owned())
    }
}

impl SendList {
    /// Sets the window that the request at `index` binds, and its region. The request must keep both until it has
    /// completed.
    #[cold]
    pub(in crate::backend) fn bind(
        &mut self,
        index: usize,
        window: &MemoryWindow,
        region: &Registration,
        bind: &WindowBind,
    ) {
        let mw = window.handle.as_ptr();
        // Providers read the current key from this field, and leave updating it to the application.
        // SAFETY: the window isn't freed, because the request that owns it is about to be posted. Nothing else uses the
        // key.
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
