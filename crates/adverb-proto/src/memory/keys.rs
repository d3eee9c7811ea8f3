//! Protection domains, and the keys under which regions are known.

use core::fmt;
use std::collections::HashMap;

use adverb_wire::Qpn;

use super::windows::{Whole, Windows};
use super::{Backing, Span};
use crate::hash::NumberHasher;
use crate::mutation::mutant;
use crate::slots::FreeSlots;
use crate::types::{Access, Segment};

/// A protection domain: queue pairs and regions work together only within one (vol. 1, 10.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pd(u32);

/// What a region is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The first address, as requests name it. It need not be the address where the bytes are.
    pub addr: u64,
    /// How many bytes.
    pub length: u64,
    /// What may be done to them, and by whom.
    pub access: Access,
    /// Where they are kept; the region begins there at offset 0.
    pub backing: Backing,
    /// Whether a peer may invalidate the key with a SEND.
    pub remote_invalidate: RemoteInvalidate,
}

/// Whether a peer may make a key invalid (vol. 1, 10.6.5).
///
/// Off by default: a region may serve several peers, and one shouldn't take it from the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RemoteInvalidate {
    /// A SEND with invalidate that names the key is refused.
    #[default]
    Denied,
    /// Any peer with a queue pair in the domain may do it.
    Allowed,
}

/// The table of protection domains and keys.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// How many things hold each domain; `None` where one was destroyed.
    domains: Vec<Option<u32>>,
    free_domains: FreeSlots,
    regions: HashMap<u32, Region, NumberHasher>,
    pub(super) windows: Windows,
    /// What was deregistered, for a planted fault that still uses it.
    #[cfg(feature = "mutants")]
    buried: HashMap<u32, Region, NumberHasher>,
}

/// A region under its key. The local and the remote key are the same number: rights tell who may use it for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) registration: Registration,
    pd: Pd,
    /// How many windows show a part of it.
    pub(super) windows: u32,
    /// Invalidated keys stay, so that nobody else is given the number, until their owner deregisters them.
    valid: bool,
}

impl Keys {
    /// Makes a protection domain.
    pub(crate) fn create_domain(&mut self) -> Pd {
        Pd(self.free_domains.occupy(&mut self.domains, 0))
    }

    /// Ends a protection domain, if nothing belongs to it.
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

    /// Counts one more thing that belongs to a domain.
    pub(crate) fn hold_domain(&mut self, pd: Pd) -> Result<(), DomainError> {
        match self.domains.get_mut(pd.0 as usize) {
            Some(Some(users)) => {
                *users += 1;
                Ok(())
            }
            _ => Err(DomainError::Unknown),
        }
    }

    /// Counts one thing fewer.
    pub(crate) fn release_domain(&mut self, pd: Pd) {
        if let Some(Some(users)) = self.domains.get_mut(pd.0 as usize) {
            *users = users.saturating_sub(1);
        }
    }

    /// Registers memory, and gives its key.
    ///
    /// Keys are all that stands between a peer and memory, so `random` must not be guessable: a cryptographic
    /// generator, or a seed in a simulation.
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
        self.hold_domain(pd).map_err(|_| RegisterError::UnknownDomain)?;
        // Key 0 is what people send who have no key.
        let key = loop {
            let key = random();
            if key != 0 && !self.has_region(key) && !self.windows.has(key) {
                break key;
            }
        };
        self.regions.insert(key, Region { registration, pd, windows: 0, valid: true });
        Ok(key)
    }

    /// Ends a registration. Requests under way that use the key fail from now on: it is looked up for each packet.
    /// Says what was registered.
    pub(crate) fn deregister(&mut self, key: u32) -> Result<Registration, DeregisterError> {
        let region = *self.regions.get(&key).ok_or(DeregisterError::UnknownKey)?;
        // Whoever has a window's key must not reach what isn't registered any more (vol. 1, 11.2.8).
        if region.windows > 0 {
            return Err(DeregisterError::WindowsBound { window_count: region.windows });
        }
        self.regions.remove(&key);
        #[cfg(feature = "mutants")]
        self.buried.insert(key, region);
        self.release_domain(region.pd);
        Ok(region.registration)
    }

    pub(super) fn has_region(&self, key: u32) -> bool {
        self.regions.contains_key(&key)
    }

    /// A region of a domain, to be changed.
    pub(super) fn valid_region(&mut self, pd: Pd, key: u32) -> Result<&mut Region, Denied> {
        let region = self.regions.get_mut(&key).filter(|region| region.valid).ok_or(Denied::Key)?;
        if region.pd == pd { Ok(region) } else { Err(Denied::Domain) }
    }

    /// A window shows a region no more.
    pub(super) fn release_region(&mut self, key: u32) {
        if let Some(region) = self.regions.get_mut(&key) {
            region.windows -= 1;
        }
    }

    /// How many windows there are.
    pub(crate) fn window_count(&self) -> usize {
        self.windows.len()
    }

    /// How many regions are registered, the invalidated among them.
    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    /// The bytes that a peer asks for, if it may (vol. 1, 9.7.4 and 10.6.3; `rxe_resp.c`, `check_rkey`).
    #[inline]
    pub(crate) fn remote(&self, pd: Pd, qpn: Qpn, range: Range, need: Access) -> Result<Span, Denied> {
        match self.regions.get(&range.key) {
            Some(region) => region.check(pd, range, need),
            None => self.through_window(pd, qpn, range, need),
        }
    }

    /// The bytes that a peer asks for, whether or not the key is still registered: a planted fault.
    #[cfg(feature = "mutants")]
    pub(crate) fn remote_even_if_gone(
        &self,
        pd: Pd,
        qpn: Qpn,
        range: Range,
        need: Access,
    ) -> Result<Span, Denied> {
        match self.buried.get(&range.key) {
            Some(region) => {
                let offset = range.addr.wrapping_sub(region.registration.addr);
                Ok(Span { backing: region.registration.backing, offset, length: range.length })
            }
            None => self.remote(pd, qpn, range, need),
        }
    }

    /// The bytes of a part of a local segment (vol. 1, 10.6.3).
    #[inline]
    pub(crate) fn local(&self, pd: Pd, segment: &Segment, part: Part, need: Access) -> Result<Span, Denied> {
        let addr = segment.addr.checked_add(u64::from(part.offset)).ok_or(Denied::Bounds)?;
        let region = self.regions.get(&segment.lkey).ok_or(Denied::Key)?;
        region.check(pd, Range { addr, length: part.length, key: segment.lkey }, need)
    }

    /// All that a key shows, for a FLUSH of the whole (Annex A19.4).
    pub(crate) fn whole(&self, pd: Pd, qpn: Qpn, key: u32, need: Access) -> Result<Whole, Denied> {
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
        let Registration { backing, length, .. } = region.registration;
        Ok(Whole { backing, start: 0, length })
    }

    /// Makes a key invalid on its owner's behalf (vol. 1, 10.6.5: local invalidate).
    pub(crate) fn invalidate_local(&mut self, pd: Pd, qpn: Qpn, key: u32) -> Result<(), Denied> {
        if !self.has_region(key) {
            return self.invalidate_window(pd, qpn, key);
        }
        let region = self.valid_region(pd, key)?;
        if region.windows > 0 {
            return Err(Denied::Shown);
        }
        region.valid = false;
        Ok(())
    }

    /// Makes a key invalid on a peer's behalf (vol. 1, 9.4.1: SEND with invalidate).
    pub(crate) fn invalidate_remote(&mut self, pd: Pd, qpn: Qpn, key: u32) -> Result<(), Denied> {
        if !self.has_region(key) {
            return self.invalidate_window(pd, qpn, key);
        }
        let region = self.valid_region(pd, key)?;
        if region.windows > 0 {
            return Err(Denied::Shown);
        }
        if region.registration.remote_invalidate == RemoteInvalidate::Denied {
            return Err(Denied::Access);
        }
        region.valid = mutant!(InvalidateNothing);
        Ok(())
    }

    /// How many things hold any domain: for finding leaks.
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
        if self.pd != pd && !mutant!(SkipDomainCheck) {
            return Err(Denied::Domain);
        }
        let Registration { addr, length, access, backing, .. } = self.registration;
        if !access.contains(need) && !mutant!(SkipRightsCheck) {
            return Err(Denied::Access);
        }
        // Subtracting first: neither the offset nor what is left behind it can wrap, whatever a peer asks for.
        let offset = range.addr.checked_sub(addr).ok_or(Denied::Bounds)?;
        let left = length.checked_sub(offset).ok_or(Denied::Bounds)?;
        let slack = u64::from(mutant!(BoundsOffByOne));
        if u64::from(range.length) > left + slack {
            return Err(Denied::Bounds);
        }
        Ok(Span { backing, offset, length: range.length })
    }
}

/// As many regions as leave random keys sparse: a guess hits one in 256 at most.
const MAX_REGIONS: usize = 1 << 24;

/// A range of addresses under a key.
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

/// Why memory may not be touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denied {
    /// No such key, or it was invalidated.
    Key,
    /// The region belongs to another protection domain.
    Domain,
    /// The region hasn't the right.
    Access,
    /// The range isn't within the region.
    Bounds,
    /// Windows show a part of the region.
    Shown,
}

/// The error of registering memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// The range is empty, or exceeds the address space.
    InvalidRange,
    /// Remote write and atomic access require local write access (vol. 1, 10.6.3).
    InvalidAccess,
    /// The protection domain does not exist.
    UnknownDomain,
    /// The maximum number of regions is reached. With more of them, a peer could guess keys.
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
