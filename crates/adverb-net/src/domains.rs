//! Protection domains that connections share.

use std::fmt;
use std::sync::Arc;

use adverb_verbs::internal::is_same_device;
use adverb_verbs::memory::Pool;
use adverb_verbs::{Device, Result};
use parking_lot::Mutex;

/// The shared protection domains of the connections with the same options, one per device.
#[derive(Default)]
pub(crate) struct SharedDomains(Mutex<Vec<Arc<SharedDomain>>>);

/// A protection domain that connections share, with its pool.
pub(crate) struct SharedDomain {
    pub(crate) pool: Pool,
}

impl SharedDomains {
    /// Returns the domain for a device, or that of a pool if the options have one. The first call for a device creates
    /// its domain.
    ///
    /// # Errors
    ///
    /// Returns the device's error if the domain can't be created.
    pub(crate) fn get(&self, device: &Device, pool: Option<&Pool>) -> Result<Arc<SharedDomain>> {
        let mut domains = self.0.lock();
        let is_same = |domain: &&Arc<SharedDomain>| {
            let known = domain.pool.protection_domain();
            match pool {
                Some(pool) => known == pool.protection_domain(),
                None => is_same_device(known.device(), device),
            }
        };
        if let Some(domain) = domains.iter().find(is_same) {
            return Ok(Arc::clone(domain));
        }
        let pool = match pool {
            Some(pool) => pool.clone(),
            None => Pool::builder().create(&device.create_protection_domain()?),
        };
        let domain = Arc::new(SharedDomain { pool });
        domains.push(Arc::clone(&domain));
        Ok(domain)
    }
}

impl fmt::Debug for SharedDomains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domains = self.0.lock();
        let devices = domains.iter().map(|domain| domain.pool.protection_domain().device().name().to_owned());
        f.debug_list().entries(devices).finish()
    }
}
