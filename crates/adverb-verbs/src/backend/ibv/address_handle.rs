//! Address handles: routes to peers for datagrams.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use adverb_proto::explain::Call;
use adverb_sys::{self as sys, ibv_ah, ibv_ah_attr};

use super::{ProtectionDomain, check};
use crate::backend::Address;
use crate::error::{Result, WithCauses, call_failed};

pub(crate) struct AddressHandle {
    domain: Arc<ProtectionDomain>,
    pub(in crate::backend) handle: NonNull<ibv_ah>,
}

// SAFETY: libibverbs' address handles may be used from any thread.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    pub(in crate::backend) fn new(
        domain: &Arc<ProtectionDomain>,
        address: &Address,
    ) -> Result<AddressHandle> {
        let mut attr = encode_address(address);
        // SAFETY: the domain exists, and the attributes are set.
        let handle = unsafe { domain.device.library.ibv_create_ah(domain.handle.as_ptr(), &mut attr) };
        let action =
            || format!("creating an address handle for {} on {}", address.gid.ip(), domain.device.name);
        let handle = NonNull::new(handle)
            .ok_or_else(|| call_failed(Call::ResolvePeer, action(), io::Error::last_os_error()))?;
        Ok(AddressHandle { domain: Arc::clone(domain), handle })
    }

    #[inline]
    pub(in crate::backend) fn is_of(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        if self.domain.device.is_owned() {
            // SAFETY: the handle is destroyed once, and no request uses it any more, because requests hold it until
            // they complete.
            let code = unsafe { self.domain.device.library.ibv_destroy_ah(self.handle.as_ptr()) };
            if let Err(error) = check(Call::Destroy, code, || "destroying an address handle".to_owned()) {
                tracing::error!(error = %WithCauses(&error), "destroying an address handle failed");
            }
        }
    }
}

/// Encodes an address in the library's format.
pub(super) fn encode_address(address: &Address) -> ibv_ah_attr {
    let mut attr = sys::ibv_ah_attr::zeroed();
    attr.port_num = address.port;
    attr.dlid = address.lid;
    attr.sl = address.service_level;
    if address.uses_grh {
        attr.is_global = 1;
        attr.grh.dgid = address.gid.bytes().into();
        attr.grh.sgid_index = address.gid_index;
        attr.grh.hop_limit = address.hop_limit;
        attr.grh.traffic_class = address.traffic_class;
        attr.grh.flow_label = address.flow_label;
    }
    attr
}
