//! Memory windows of type 2B: parts of regions that a peer may reach through one queue pair (vol. 1, 10.6.7;
//! `rxe_mw.c`).

use core::fmt;
use std::collections::{HashMap, HashSet};

use adverb_wire::Qpn;

use super::keys::{Denied, Keys, Pd, Range};
use super::{Backing, Span};
use crate::hash::NumberHasher;
use crate::mutation::mutant;
use crate::types::{Access, WindowBind};

/// The windows of a device.
///
/// A key has 24 bits that name the window, and 8 that its owner chooses anew with each binding, so that a peer who kept
/// an old key reaches nothing (vol. 1, 10.6.3).
#[derive(Debug, Default)]
pub(super) struct Windows {
    by_index: HashMap<u32, Window, NumberHasher>,
    /// Which are bound on a queue pair.
    by_queue_pair: HashMap<u32, HashSet<u32, NumberHasher>, NumberHasher>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    pd: Pd,
    /// The key of the last binding, or the one that it was made with.
    key: u32,
    bound: Option<Bound>,
}

/// What a window shows.
#[derive(Clone, Copy, Debug)]
struct Bound {
    qpn: Qpn,
    /// The key of the region.
    region: u32,
    backing: Backing,
    /// Where in the backing the window begins.
    start: u64,
    /// The address that a peer gives for its first byte.
    addr: u64,
    length: u64,
    access: Access,
}

/// A part of a backing that a key shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    pub(crate) backing: Backing,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// How many of a key's bits its owner chooses.
const OWNERS_BITS: u32 = 8;

/// So many that a free name is found soon.
const MAX_WINDOWS: usize = 1 << 22;

impl Windows {
    /// Whether a key is, or may become, one of a window.
    pub(super) fn has(&self, key: u32) -> bool {
        self.by_index.contains_key(&(key >> OWNERS_BITS))
    }

    pub(super) fn len(&self) -> usize {
        self.by_index.len()
    }

    /// What a key shows to a peer of this queue pair.
    fn bound(&self, pd: Pd, qpn: Qpn, key: u32, need: Access) -> Result<&Bound, Denied> {
        let window = self.by_index.get(&(key >> OWNERS_BITS)).ok_or(Denied::Key)?;
        if window.key != key && !mutant!(StaleWindowKey) {
            return Err(Denied::Key);
        }
        let bound = window.bound.as_ref().ok_or(Denied::Key)?;
        if window.pd != pd || (bound.qpn != qpn && !mutant!(WindowForAnyQueuePair)) {
            return Err(Denied::Domain);
        }
        if !bound.access.contains(need) && !mutant!(SkipRightsCheck) {
            return Err(Denied::Access);
        }
        Ok(bound)
    }
}

impl Keys {
    /// Makes a window, which shows nothing yet, and gives its key.
    pub(crate) fn create_window(
        &mut self,
        pd: Pd,
        mut random: impl FnMut() -> u32,
    ) -> Result<u32, WindowError> {
        if self.windows.len() >= MAX_WINDOWS {
            return Err(WindowError::TooMany);
        }
        self.hold_domain(pd).map_err(|_| WindowError::UnknownDomain)?;
        let key = loop {
            let key = random();
            let first = key >> OWNERS_BITS << OWNERS_BITS;
            // None of the keys that it may get is a region's, nor 0, which is what people send who have no key.
            let taken = (0..1 << OWNERS_BITS).any(|bits| self.has_region(first | bits));
            if first != 0 && !taken && !self.windows.has(key) {
                break key;
            }
        };
        self.windows.by_index.insert(key >> OWNERS_BITS, Window { pd, key, bound: None });
        Ok(key)
    }

    /// Ends a window, and what it shows. Any of its keys names it.
    pub(crate) fn destroy_window(&mut self, key: u32) -> Result<(), WindowError> {
        let window = self.windows.by_index.get(&(key >> OWNERS_BITS)).ok_or(WindowError::UnknownWindow)?;
        let pd = window.pd;
        self.unbind(key >> OWNERS_BITS);
        self.windows.by_index.remove(&(key >> OWNERS_BITS));
        self.release_domain(pd);
        Ok(())
    }

    /// Gives a window a range, rights and a new key (vol. 1, 10.6.7 and 11.4.1; `rxe_mw.c`,
    /// `rxe_check_bind_mw`). Says whether it was allowed.
    pub(crate) fn bind(&mut self, pd: Pd, qpn: Qpn, bind: &WindowBind) -> Result<(), Denied> {
        let &WindowBind { rkey, lkey, addr, length, access } = bind;
        let window = self.windows.by_index.get(&(rkey >> OWNERS_BITS)).ok_or(Denied::Key)?;
        if window.pd != pd {
            return Err(Denied::Domain);
        }
        // One that is bound must be invalidated first, and the next key must be another.
        if window.bound.is_some() || window.key == rkey {
            return Err(Denied::Key);
        }
        let rights = access.difference(Access::ZERO_BASED);
        if rights.is_empty() || !Access::REMOTE.contains(rights) {
            return Err(Denied::Access);
        }
        let region = self.valid_region(pd, lkey)?;
        let registration = &region.registration;
        // A window may give a peer what its region doesn't, except what the device itself may not do.
        let flushes = rights & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        let mut need = Access::WINDOW_BIND | flushes;
        need.set(Access::LOCAL_WRITE, rights.is_remotely_writable());
        if !registration.access.contains(need) && !mutant!(SkipRightsCheck) {
            return Err(Denied::Access);
        }
        let start = addr.checked_sub(registration.addr).ok_or(Denied::Bounds)?;
        let left = registration.length.checked_sub(start).ok_or(Denied::Bounds)?;
        if length == 0 || length > left {
            return Err(Denied::Bounds);
        }
        let backing = registration.backing;
        region.windows += 1;
        let addr = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        let bound = Bound { qpn, region: lkey, backing, start, addr, length, access: rights };
        let index = rkey >> OWNERS_BITS;
        if let Some(window) = self.windows.by_index.get_mut(&index) {
            window.key = rkey;
            window.bound = Some(bound);
        }
        self.windows.by_queue_pair.entry(qpn.get()).or_default().insert(index);
        Ok(())
    }

    /// Makes a window show nothing.
    fn unbind(&mut self, index: u32) {
        let Some(window) = self.windows.by_index.get_mut(&index) else { return };
        let Some(bound) = window.bound.take() else { return };
        if let Some(windows) = self.windows.by_queue_pair.get_mut(&bound.qpn.get()) {
            windows.remove(&index);
        }
        self.release_region(bound.region);
    }

    /// Ends all that windows show through a queue pair: it is no more, or soon another peer's.
    pub(crate) fn unbind_all(&mut self, qpn: Qpn) {
        if mutant!(WindowOutlivesQueuePair) {
            return;
        }
        let Some(windows) = self.windows.by_queue_pair.remove(&qpn.get()) else { return };
        for index in windows {
            if let Some(window) = self.windows.by_index.get_mut(&index)
                && let Some(bound) = window.bound.take()
            {
                self.release_region(bound.region);
            }
        }
    }

    /// Makes a window's key invalid, at the wish of its owner or of the peer that it was for (vol. 1, 10.6.5).
    pub(super) fn invalidate_window(&mut self, pd: Pd, qpn: Qpn, key: u32) -> Result<(), Denied> {
        self.windows.bound(pd, qpn, key, Access::empty())?;
        if !mutant!(WindowOutlivesInvalidation) {
            self.unbind(key >> OWNERS_BITS);
        }
        Ok(())
    }

    /// The bytes that a peer asks for through a window.
    pub(super) fn through_window(
        &self,
        pd: Pd,
        qpn: Qpn,
        range: Range,
        need: Access,
    ) -> Result<Span, Denied> {
        let bound = self.windows.bound(pd, qpn, range.key, need)?;
        // As for regions: nothing can wrap, whatever a peer asks for.
        let offset = range.addr.checked_sub(bound.addr).ok_or(Denied::Bounds)?;
        let left = bound.length.checked_sub(offset).ok_or(Denied::Bounds)?;
        let slack = u64::from(mutant!(WindowBoundsOffByOne));
        if u64::from(range.length) > left + slack {
            return Err(Denied::Bounds);
        }
        Ok(Span { backing: bound.backing, offset: bound.start + offset, length: range.length })
    }

    /// All that a window shows.
    pub(super) fn whole_window(&self, pd: Pd, qpn: Qpn, key: u32, need: Access) -> Result<Whole, Denied> {
        let &Bound { backing, start, length, .. } = self.windows.bound(pd, qpn, key, need)?;
        Ok(Whole { backing, start, length })
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
    /// The maximum number of windows is reached. With more of them, a peer could guess keys.
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
