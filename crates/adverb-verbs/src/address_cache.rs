//! Address handles that were made, for those who need the same again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::AddressHandle;
use crate::backend::Address;
use crate::error::Result;

/// A queue pair's address handles: making one is a system call, and whoever answers datagrams needs one for each.
///
/// It keeps those that were used last. They are in two generations: what is used goes to the young one, and when that is
/// full the old one is forgotten and the young one is the old.
#[derive(Default)]
pub(super) struct AddressCache(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<Address, AddressHandle>,
    old: HashMap<Address, AddressHandle>,
}

/// How many a generation has at most.
const MOST: usize = 512;

impl AddressCache {
    /// The handle for an address: one that was made before, or what `make` makes.
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
        if young.len() >= MOST {
            *old = std::mem::take(young);
        }
        young.insert(*address, handle.clone());
        Ok(handle)
    }
}
