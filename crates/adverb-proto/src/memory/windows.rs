//! Memory windows of type 2B: parts of regions that the peer of one queue pair may access (vol. 1, 10.6.7; `rxe_mw.c`).

use core::fmt;
use std::collections::{HashMap, HashSet};

use adverb_wire::Qpn;

use super::keys::{Denied, Keys, Pd, Range};
use super::{Span, StorageId};
use crate::hash::BuildNumberHasher;
use crate::mutation::mutant;
use crate::types::{Access, WindowBind};

/// The windows of a device.
///
/// A key consists of the 24-bit index of the window and 8 bits that the owner changes with each binding, so that a peer
/// can't use the key of an earlier binding (vol. 1, 10.6.3).
#[derive(Debug, Default)]
pub(super) struct Windows {
    by_index: HashMap<u32, Window, BuildNumberHasher>,
    /// The indexes of the windows that are bound on each queue pair.
    by_queue_pair: HashMap<u32, HashSet<u32, BuildNumberHasher>, BuildNumberHasher>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    pd: Pd,
    /// The key of the last binding, or the key from the creation of the window.
    key: u32,
    binding: Option<Binding>,
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    qpn: Qpn,
    /// The key of the region.
    region: u32,
    storage: StorageId,
    /// The offset of the window in the storage.
    start: u64,
    /// The address of the first byte in a peer's requests.
    addr: u64,
    length: u64,
    access: Access,
}

/// The part of a storage that a key gives access to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StorageRange {
    pub(crate) storage: StorageId,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// The number of key bits that the owner chooses.
const OWNER_KEY_BITS: u32 = 8;

/// The maximum number of windows: a quarter of the indexes, so that a random index is likely free.
const MAX_WINDOWS: usize = 1 << 22;

impl Windows {
    /// Whether a key has the index of a window.
    pub(super) fn has(&self, key: u32) -> bool {
        self.by_index.contains_key(&(key >> OWNER_KEY_BITS))
    }

    pub(super) fn len(&self) -> usize {
        self.by_index.len()
    }

    /// Returns the binding of a key, after checking that the peer of this queue pair may use it with this access.
    fn binding(&self, pd: Pd, qpn: Qpn, key: u32, need: Access) -> Result<&Binding, Denied> {
        let window = self.by_index.get(&(key >> OWNER_KEY_BITS)).ok_or(Denied::Key)?;
        let is_stale = window.key != key && !mutant!(StaleWindowKey);
        if is_stale {
            return Err(Denied::Key);
        }
        let binding = window.binding.as_ref().ok_or(Denied::Key)?;
        let is_other_qp = binding.qpn != qpn && !mutant!(WindowForAnyQueuePair);
        if window.pd != pd || is_other_qp {
            return Err(Denied::Domain);
        }
        let is_allowed = binding.access.contains(need) || mutant!(SkipRightsCheck);
        if !is_allowed {
            return Err(Denied::Access);
        }
        Ok(binding)
    }
}

impl Keys {
    /// Creates an unbound window and returns its key.
    pub(crate) fn create_window(
        &mut self,
        pd: Pd,
        mut random: impl FnMut() -> u32,
    ) -> Result<u32, WindowError> {
        if self.windows.len() >= MAX_WINDOWS {
            return Err(WindowError::TooMany);
        }
        self.add_domain_user(pd).map_err(|_| WindowError::UnknownDomain)?;
        let key = loop {
            let key = random();
            let first = key >> OWNER_KEY_BITS << OWNER_KEY_BITS;
            // None of the window's possible keys may be a region's key, or 0, which stands for no key.
            let taken = (0..1 << OWNER_KEY_BITS).any(|bits| self.has_region(first | bits));
            if first != 0 && !taken && !self.windows.has(key) {
                break key;
            }
        };
        self.windows.by_index.insert(key >> OWNER_KEY_BITS, Window { pd, key, binding: None });
        Ok(key)
    }

    /// Destroys a window and its binding. `key` may be the key of any of its bindings.
    pub(crate) fn destroy_window(&mut self, key: u32) -> Result<(), WindowError> {
        let window = self.windows.by_index.get(&(key >> OWNER_KEY_BITS)).ok_or(WindowError::UnknownWindow)?;
        let pd = window.pd;
        self.unbind(key >> OWNER_KEY_BITS);
        self.windows.by_index.remove(&(key >> OWNER_KEY_BITS));
        self.remove_domain_user(pd);
        Ok(())
    }

    /// Binds a window to a range, with access rights and a new key (vol. 1, 10.6.7 and 11.4.1; `rxe_mw.c`,
    /// `rxe_check_bind_mw`).
    pub(crate) fn bind(&mut self, pd: Pd, qpn: Qpn, bind: &WindowBind) -> Result<(), Denied> {
        let &WindowBind { rkey, lkey, addr, length, access } = bind;
        let window = self.windows.by_index.get(&(rkey >> OWNER_KEY_BITS)).ok_or(Denied::Key)?;
        if window.pd != pd {
            return Err(Denied::Domain);
        }
        // A bound window must be invalidated first, and the new key must differ.
        if window.binding.is_some() || window.key == rkey {
            return Err(Denied::Key);
        }
        let rights = access.difference(Access::ZERO_BASED);
        // A window without rights is valid: it denies a peer all access.
        if !Access::REMOTE.contains(rights) {
            return Err(Denied::Access);
        }
        let region = self.valid_region(pd, lkey)?;
        let registration = &region.registration;
        // A window may grant a peer READs, WRITEs and atomics that its region doesn't grant. The region must grant the
        // kinds of FLUSH that the window grants and, for WRITEs and atomics, local write access.
        let flushes = rights & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        let mut need = Access::WINDOW_BIND | flushes;
        need.set(Access::LOCAL_WRITE, rights.is_remotely_writable());
        let is_allowed = registration.access.contains(need) || mutant!(SkipRightsCheck);
        if !is_allowed {
            return Err(Denied::Access);
        }
        let start = addr.checked_sub(registration.addr).ok_or(Denied::Bounds)?;
        let left = registration.length.checked_sub(start).ok_or(Denied::Bounds)?;
        if length == 0 || length > left {
            return Err(Denied::Bounds);
        }
        let storage = registration.storage;
        region.windows += 1;
        let addr = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        let binding = Binding { qpn, region: lkey, storage, start, addr, length, access: rights };
        let index = rkey >> OWNER_KEY_BITS;
        if let Some(window) = self.windows.by_index.get_mut(&index) {
            window.key = rkey;
            window.binding = Some(binding);
        }
        self.windows.by_queue_pair.entry(qpn.get()).or_default().insert(index);
        Ok(())
    }

    /// Removes the binding of a window.
    fn unbind(&mut self, index: u32) {
        let Some(window) = self.windows.by_index.get_mut(&index) else { return };
        let Some(binding) = window.binding.take() else { return };
        if let Some(windows) = self.windows.by_queue_pair.get_mut(&binding.qpn.get()) {
            windows.remove(&index);
        }
        self.release_region(binding.region);
    }

    /// Removes all bindings on a queue pair, which is destroyed or may get another peer.
    pub(crate) fn unbind_all(&mut self, qpn: Qpn) {
        if mutant!(WindowOutlivesQueuePair) {
            return;
        }
        let Some(windows) = self.windows.by_queue_pair.remove(&qpn.get()) else { return };
        for index in windows {
            if let Some(window) = self.windows.by_index.get_mut(&index)
                && let Some(binding) = window.binding.take()
            {
                self.release_region(binding.region);
            }
        }
    }

    /// Invalidates a window's key at the request of its owner or of the peer (vol. 1, 10.6.5).
    pub(super) fn invalidate_window(&mut self, pd: Pd, qpn: Qpn, key: u32) -> Result<(), Denied> {
        self.windows.binding(pd, qpn, key, Access::empty())?;
        if !mutant!(WindowOutlivesInvalidation) {
            self.unbind(key >> OWNER_KEY_BITS);
        }
        Ok(())
    }

    /// Translates a range that a peer's request names by a window's key.
    pub(super) fn through_window(
        &self,
        pd: Pd,
        qpn: Qpn,
        range: Range,
        need: Access,
    ) -> Result<Span, Denied> {
        let binding = self.windows.binding(pd, qpn, range.key, need)?;
        // As for regions, the checked subtractions reject a range that is outside of the window or wraps.
        let offset = range.addr.checked_sub(binding.addr).ok_or(Denied::Bounds)?;
        let left = binding.length.checked_sub(offset).ok_or(Denied::Bounds)?;
        let slack = u64::from(mutant!(WindowBoundsOffByOne));
        if u64::from(range.length) > left + slack {
            return Err(Denied::Bounds);
        }
        Ok(Span { storage: binding.storage, offset: binding.start + offset, length: range.length })
    }

    pub(super) fn whole_window(
        &self,
        pd: Pd,
        qpn: Qpn,
        key: u32,
        need: Access,
    ) -> Result<StorageRange, Denied> {
        let &Binding { storage, start, length, .. } = self.windows.binding(pd, qpn, key, need)?;
        Ok(StorageRange { storage, start, length })
    }
}

/// The error of creating or destroying a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WindowError {
    /// The protection domain does not exist.
    UnknownDomain,
    /// The window does not exist.
    UnknownWindow,
    /// The maximum number of windows, 2^22, is reached.
    TooMany,
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WindowError::UnknownDomain => "the protection domain does not exist",
            WindowError::UnknownWindow => "the memory window does not exist",
            WindowError::TooMany => "too many memory windows: destroy some first",
        })
    }
}

impl core::error::Error for WindowError {}
