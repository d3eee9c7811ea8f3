//! Memory windows of type 2B.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use adverb_proto::explain::Call;

use super::{ProtectionDomain, nic_error};
use crate::error::Result;

pub(crate) struct MemoryWindow {
    domain: Arc<ProtectionDomain>,
    /// The current key. Binding the window changes it to the next key.
    rkey: AtomicU32,
    freed: AtomicBool,
}

impl MemoryWindow {
    pub(in crate::backend) fn new(domain: &Arc<ProtectionDomain>) -> Result<MemoryWindow> {
        let device = &domain.device;
        let created = device.nic.create_window(domain.pd);
        let key = created.map_err(|error| {
            nic_error(Call::Create, error, format!("creating a memory window on {}", device.name))
        })?;
        Ok(MemoryWindow {
            domain: Arc::clone(domain),
            rkey: AtomicU32::new(key),
            freed: AtomicBool::new(false),
        })
    }

    /// Returns the key of the next binding. The owner of a window chooses the lowest 8 bits of its key.
    pub(in crate::backend) fn next_rkey(&self) -> u32 {
        let rkey = self.rkey.load(Ordering::Relaxed);
        rkey & !0xff | rkey.wrapping_add(1) & 0xff
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
        let freed = self.domain.device.nic.destroy_window(self.rkey.load(Ordering::Relaxed));
        freed.map_err(|error| nic_error(Call::Destroy, error, "freeing a memory window"))
    }
}
