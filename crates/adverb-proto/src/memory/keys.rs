//! Protection domains, memory regions and their keys.

use core::fmt;
use std::collections::HashMap;

use adverb_wire::Qpn;

use super::windows::{StorageRange, Windows};
use super::{Span, StorageId};
use crate::hash::BuildNumberHasher;
use crate::mutation::mutant;
use crate::slots::FreeSlots;
use crate::types::{Access, Segment};

/// A protection domain: a queue pair can use only the regions and windows of its own domain (vol. 1, 10.2.3). The
/// requests of a shared receive queue use the regions of the queue's domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pd(u32);

/// The attributes of a memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The address of the region's first byte, as requests use it (the IOVA). This address may differ from the address
    /// of the bytes in the process.
    pub addr: u64,
    /// The length in bytes.
    pub length: u64,
    /// The access that the region grants to this side and to peers.
    pub access: Access,
    /// The identifier of the storage that holds the bytes. The region starts at offset 0 of the storage.
    pub storage: StorageId,
    /// Whether a peer may invalidate the key by a SEND with invalidate.
    pub remote_invalidate: RemoteInvalidate,
}

/// The permission of peers to invalidate the key of a region (vol. 1, 10.6.5). The key of a bound window needs no such
/// permission: the peer of the window's queue pair may always invalidate it.
///
/// The default is `Denied`: several peers may use a region, and one of them should not invalidate the key for the
/// others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RemoteInvalidate {
    /// A SEND with invalidate that names the key fails.
    #[default]
    Denied,
    /// Any peer of a queue pair in the protection domain may invalidate the key.
    Allowed,
}

/// The table of protection domains and keys.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// The number of objects in each domain, or `None` if the domain was destroyed.
    domains: Vec<Option<u32>>,
    free_domains: FreeSlots,
    regions: HashMap<u32, Region, BuildNumberHasher>,
    pub(super) windows: Windows,
    /// Deregistered regions, for a mutation that still uses them.
    #[cfg(feature = "mutants")]
    deregistered: HashMap<u32, Region, BuildNumberHasher>,
}

/// A region. Its local and remote keys are the same number: the access rights restrict each use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) registration: Registration,
    pd: Pd,
    /// The number of windows that are bound to the region.
    pub(super) windows: u32,
    /// Whether the key is valid. An invalidated key stays in the table until it is deregistered, so that no
    /// other region gets the number.
    valid: bool,
}

impl Keys {
    /// Creates a protection domain.
    pub(crate) fn create_domain(&mut self) -> Pd {
        Pd(self.free_domains.occupy(&mut self.domains, 0))
    }

    /// Destroys a protection domain that has no objects.
    pub(crate) fn destroy_domain(&mut self, pd: Pd) -> Result<(), DomainError> {
        match self.domains.get(pd.0 as usize) {
            Some(Some(0)) => {
                self.free_domains.vacate(&mut self.domains, pd.0);
                Ok(())
            }
            Some(Some(users)) => Err(DomainError::InUse { user_count: *users }),
            _ => Err(DomainError::Unknown),
        }
    }

    /// Adds an object to a domain's count.
    pub(crate) fn add_domain_user(&mut self, pd: Pd) -> Result<(), DomainError> {
        match self.domains.get_mut(pd.0 as usize) {
            Some(Some(users)) => {
                *users += 1;
                Ok(())
            }
            _ => Err(DomainError::Unknown),
        }
    }

    /// Removes an object from a domain's count.
    pub(crate) fn remove_domain_user(&mut self, pd: Pd) {
        if let Some(Some(users)) = self.domains.get_mut(pd.0 as usize) {
            *users = users.saturating_sub(1);
        }
    }

    /// Registers memory and returns its key.
    ///
    /// A peer that has the key can access the memory, so `random` must be unpredictable: a cryptographically secure
    /// generator, except in a simulation.
    pub(crate) fn register(
        &mut self,
        pd: Pd,
        registration: Registration,
        mut random: impl FnMut() -> u32,
    ) -> Result<u32, RegisterError> {
        if registration.length == 0 || registration.addr.checked_add(registration.length).is_none() {
            return Err(RegisterError::InvalidRange);
        }
        if !registration.access.is_consistent() {
            return Err(RegisterError::InvalidAccess);
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(RegisterError::TooMany);
        }
        self.add_domain_user(pd).map_err(|_| RegisterError::UnknownDomain)?;
        // Key 0 is never assigned: it stands for no key.
        let key = loop {
            let key = random();
            if key != 0 && !self.has_region(key) && !self.windows.has(key) {
                break key;
            }
        };
        self.regions.insert(key, Region { registration, pd, windows: 0, valid: true });
        Ok(key)
    }

    /// Deregisters a region and returns its attributes. Outstanding requests that still need the key fail, because the
    /// key is looked up for each packet.
    pub(crate) fn deregister(&mut self, key: u32) -> Result<Registration, DeregisterError> {
        let region = *self.regions.get(&key).ok_or(DeregisterError::UnknownKey)?;
        // The key of a window must not give access to deregistered memory (vol. 1, 11.2.8).
        if region.windows > 0 {
            return Err(DeregisterError::WindowsBound { window_count: region.windows });
        }
        self.regions.remove(&key);
        #[cfg(feature = "mutants")]
        self.deregistered.insert(key, region);
        self.remove_domain_user(region.pd);
        Ok(region.registration)
    }

    pub(super) fn has_region(&self, key: u32) -> bool {
        self.regions.contains_key(&key)
    }

    /// Returns a region of a domain whose key is valid.
    pub(super) fn valid_region(&mut self, pd: Pd, key: u32) -> Result<&mut Region, Denied> {
        let region = self.regions.get_mut(&key).filter(|region| region.valid).ok_or(Denied::Key)?;
        if region.pd == pd { Ok(region) } else { Err(Denied::Domain) }
    }

    /// Removes a bound window from a region's count.
    pub(super) fn release_region(&mut self, key: u32) {
        if let Some(region) = self.regions.get_mut(&key) {
            region.windows -= 1;
        }
    }

    /// Returns the number of windows.
    pub(crate) fn window_count(&self) -> usize {
        self.windows.len()
    }

    /// Returns the number of regions, including those with invalidated keys.
    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    /// Translates a range that a peer's request names, after checking key, domain, access and bounds (vol. 1, 9.7.4 and
    /// 10.6.3; `rxe_resp.c`, `check_rkey`).
    #[inline]
    pub(crate) fn remote(&self, pd: Pd, qpn: Qpn, range: Range, need: Access) -> Result<Span, Denied> {
        match self.regions.get(&range.key) {
            Some(region) => region.check(pd, range, need),
            None => self.through_window(pd, qpn, range, need),
        }
    }

    /// Translates a range even if its region was deregistered (for a mutation).
    #[cfg(feature = "mutants")]
    pub(crate) fn remote_ignoring_deregistration(
        &self,
        pd: Pd,
        qpn: Qpn,
        range: Range,
        need: Access,
    ) -> Result<Span, Denied> {
        match self.deregistered.get(&range.key) {
            Some(region) => {
                let offset = range.addr.wrapping_sub(region.registration.addr);
                Ok(Span { storage: region.registration.storage, offset, length: range.length })
            }
            None => self.remote(pd, qpn, range, need),
        }
    }

    /// Translates a part of a local segment (vol. 1, 10.6.3).
    #[inline]
    pub(crate) fn local(&self, pd: Pd, segment: &Segment, part: Part, need: Access) -> Result<Span, Denied> {
        let addr = segment.addr.checked_add(u64::from(part.offset)).ok_or(Denied::Bounds)?;
        let region = self.regions.get(&segment.lkey).ok_or(Denied::Key)?;
        region.check(pd, Range { addr, length: part.length, key: segment.lkey }, need)
    }

    /// Returns the whole region or window of a key, for a FLUSH of the whole (Annex A19.4).
    pub(crate) fn whole(&self, pd: Pd, qpn: Qpn, key: u32, need: Access) -> Result<StorageRange, Denied> {
        let Some(region) = self.regions.get(&key) else {
            return self.whole_window(pd, qpn, key, need);
        };
        if !region.valid {
            return Err(Denied::Key);
        }
        if region.pd != pd {
            return Err(Denied::Domain);
        }
        if !region.registration.access.contains(need) {
            return Err(Denied::Access);
        }
        let Registration { storage, length, .. } = region.registration;
        Ok(StorageRange { storage, start: 0, length })
    }

    /// Invalidates a key at the request of its owner (vol. 1, 10.6.5: local invalidate).
    pub(crate) fn invalidate_local(&mut self, pd: Pd, qpn: Qpn, key: u32) -> Result<(), Denied> {
        if !self.has_region(key) {
            return self.invalidate_window(pd, qpn, key);
        }
        let region = self.valid_region(pd, key)?;
        if region.windows > 0 {
            return Err(Denied::WindowsBound);
        }
        region.valid = false;
        Ok(())
    }

    /// Invalidates a key at the request of a peer (vol. 1, 9.4.1: SEND with invalidate).
    pub(crate) fn invalidate_remote(&mut self, pd: Pd, qpn: Qpn, key: u32) -> Result<(), Denied> {
        if !self.has_region(key) {
            return self.invalidate_window(pd, qpn, key);
        }
        let region = self.valid_region(pd, key)?;
        if region.windows > 0 {
            return Err(Denied::WindowsBound);
        }
        if region.registration.remote_invalidate == RemoteInvalidate::Denied {
            return Err(Denied::Access);
        }
        region.valid = mutant!(SkipInvalidate);
        Ok(())
    }

    /// Returns the number of objects in all domains, for finding leaks.
    pub(crate) fn domain_users(&self) -> u32 {
        self.domains.iter().flatten().sum()
    }
}

impl Region {
    #[inline]
    fn check(&self, pd: Pd, range: Range, need: Access) -> Result<Span, Denied> {
        if !self.valid {
            return Err(Denied::Key);
        }
        let is_other_domain = self.pd != pd && !mutant!(SkipDomainCheck);
        if is_other_domain {
            return Err(Denied::Domain);
        }
        let Registration { addr, length, access, storage, .. } = self.registration;
        let is_allowed = access.contains(need) || mutant!(SkipRightsCheck);
        if !is_allowed {
            return Err(Denied::Access);
        }
        // The order of the subtractions keeps offset and remainder from wrapping for any range that a peer names.
        let offset = range.addr.checked_sub(addr).ok_or(Denied::Bounds)?;
        let left = length.checked_sub(offset).ok_or(Denied::Bounds)?;
        let slack = u64::from(mutant!(BoundsOffByOne));
        if u64::from(range.length) > left + slack {
            return Err(Denied::Bounds);
        }
        Ok(Span { storage, offset, length: range.length })
    }
}

/// The maximum number of regions. A random key is then valid with a probability of at most 1/256.
const MAX_REGIONS: usize = 1 << 24;

/// A range of addresses and its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// The reason why an access is denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denied {
    /// The key does not exist or is not valid, or a window can't be bound with this key.
    Key,
    /// The region or window belongs to another protection domain, or the window is bound on another queue pair.
    Domain,
    /// The region or window does not grant the access.
    Access,
    /// The range is not within the region or window.
    Bounds,
    /// Windows are bound to the region.
    WindowsBound,
}

/// The error of registering memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// The range is empty, or exceeds the address space.
    InvalidRange,
    /// The access rights include remote write or atomic access without local write access (vol. 1, 10.6.3).
    InvalidAccess,
    /// The protection domain does not exist.
    UnknownDomain,
    /// The maximum number of regions, 2^24, is reached. Within this limit, a random key is valid with a probability of
    /// at most 1/256.
    TooMany,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RegisterError::InvalidRange => "the range is empty or exceeds the address space",
            RegisterError::InvalidAccess => "remote write and atomic access require LOCAL_WRITE",
            RegisterError::UnknownDomain => "the protection domain does not exist",
            RegisterError::TooMany => "too many memory regions: register fewer, larger ones",
        })
    }
}

impl core::error::Error for RegisterError {}

/// The error of deregistering memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeregisterError {
    /// No region has this key.
    UnknownKey,
    /// Memory windows are bound to the region.
    WindowsBound {
        /// The number of bound windows.
        window_count: u32,
    },
}

impl fmt::Display for DeregisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeregisterError::UnknownKey => f.write_str("no memory region has this key"),
            DeregisterError::WindowsBound { window_count } => {
                write!(f, "{window_count} memory windows are bound to the region: invalidate them first")
            }
        }
    }
}

impl core::error::Error for DeregisterError {}

/// The error of using or destroying a protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DomainError {
    /// The protection domain does not exist.
    Unknown,
    /// Objects belong to the protection domain.
    InUse {
        /// The number of regions, windows, queue pairs and shared receive queues.
        user_count: u32,
    },
}

impl fmt::Display for DomainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DomainError::Unknown => f.write_str("the protection domain does not exist"),
            DomainError::InUse { user_count } => {
                write!(f, "{user_count} objects belong to the protection domain: destroy them first")
            }
        }
    }
}

impl core::error::Error for DomainError {}
