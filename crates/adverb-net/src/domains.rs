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

    /// Removes the domain of a device that has failed or was removed. When the device is back, it gets another domain: the
    /// name of RDMA hardware stays the same.
    pub(crate) fn remove(&self, device: &Device) {
        let is_other =
            |domain: &Arc<SharedDomain>| !is_same_device(domain.pool.protection_domain().device(), device);
        // The last handle of a domain is dropped without the lock.
        let _removed;
        let mut domains = self.0.lock();
        let known = std::mem::take(&mut *domains);
        (*domains, _removed) = known.into_iter().partition::<Vec<_>, _>(is_other);
    }
}

impl fmt::Debug for SharedDomains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domains = self.0.lock();
        let devices = domains.iter().map(|domain| domain.pool.protection_domain().device().name().to_owned());
        f.debug_list().entries(devices).finish()
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use adverb_verbs::SoftDevice;

    use super::*;

    #[test]
    fn a_device_that_has_failed_gets_another_domain() {
        let devices = [(); 2].map(|()| SoftDevice::loopback().open().unwrap());
        let domains = SharedDomains::default();
        let get = |number: usize| domains.get(&devices[number], None).unwrap();
        let (failed, other) = (get(0), get(1));
        assert!(Arc::ptr_eq(&failed, &get(0)));
        domains.remove(&devices[0]);
        assert!(!Arc::ptr_eq(&failed, &get(0)));
        assert!(Arc::ptr_eq(&other, &get(1)));
    }
}
