//! A cache of address handles.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::backend::Address;
use crate::device::AddressHandle;
use crate::error::Result;

/// A queue pair's address handles. Creating one is a system call, and every reply to a datagram needs one.
///
/// The cache keeps the most recently used handles, in two generations. A used handle moves to the young generation.
/// When that is full, the old generation is dropped and the young one becomes the old.
#[derive(Default)]
pub(crate) struct AddressCache(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<Address, AddressHandle>,
    old: HashMap<Address, AddressHandle>,
}

/// The maximum number of handles in a generation.
const MAX_GENERATION_LEN: usize = 512;

impl AddressCache {
    /// Returns the cached handle for an address, or creates one with `make`.
    pub(super) fn get(
        &self,
        address: &Address,
        make: impl FnOnce() -> Result<AddressHandle>,
    ) -> Result<AddressHandle> {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old } = &mut *generations;
        if let Some(handle) = young.get(address) {
            return Ok(handle.clone());
        }
        let handle = match old.remove(address) {
            Some(handle) => handle,
            None => make()?,
        };
        if young.len() >= MAX_GENERATION_LEN {
            *old = std::mem::take(young);
        }
        young.insert(*address, handle.clone());
        Ok(handle)
    }
}
