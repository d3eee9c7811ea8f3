//! Checks of requests with memory windows, and the windows of a queue pair that ends.

use adverb_proto::types::{Access, SendFlags, SendOperation, Transport};

use super::QueuePair;
use crate::error::{DomainObject, Error, Result};
use crate::memory::{MemoryWindow, RegionSlice};
use crate::request::SendRequest;

impl QueuePair {
    /// Checks that a request with a window suits the queue pair and the window, and records that a request for the
    /// window is in flight. The caller holds the lock of the send queue, so the queue pair isn't reset meanwhile.
    #[cold]
    pub(super) fn check_window(&self, request: &SendRequest, window: &MemoryWindow) -> Result<()> {
        let reject = |reason: &'static str| Err(Error::InvalidRequest { reason: reason.into() });
        if self.transport != Transport::Rc || request.destination.is_some() {
            return reject("memory windows require an RC queue pair");
        }
        if request.flags.contains(SendFlags::INLINE) {
            return reject("only SEND and WRITE can be inline");
        }
        let shared = window.shared();
        if *shared.domain() != self.domain {
            return Err(self.domain.foreign_domain_error(
                DomainObject::MemoryWindow,
                shared.domain(),
                self.name(),
            ));
        }
        match request.operation {
            SendOperation::BindWindow(bind) => {
                shared.phase().check_bindable().or_else(reject)?;
                let Some(slice) = window.slice() else {
                    return reject("the bind request has no memory slice");
                };
                if *slice.domain() != self.domain {
                    return Err(self.domain.foreign_domain_error(
                        DomainObject::Memory,
                        slice.domain(),
                        self.name(),
                    ));
                }
                if let Some(reason) = invalid_reason(slice, bind.access) {
                    return reject(reason);
                }
                shared.begin_bind(bind.rkey, self.qpn()).or_else(reject)
            }
            SendOperation::LocalInvalidate(rkey) => {
                shared.begin_invalidation(rkey, self.qpn()).or_else(reject)
            }
            _ => reject("a memory window can only be bound or invalidated"),
        }
    }

    /// Deallocates the windows that are bound on this queue pair. The caller prevents posting meanwhile.
    ///
    /// A device may refuse to destroy a queue pair with windows (soft-RoCE warns), and a queue pair that is reset may
    /// be connected to another peer next.
    pub(super) fn free_windows(&self) {
        if self.backend.is_destroyed() {
            // Another queue pair may have the number by now.
            return;
        }
        self.domain.device().windows().free_on(self.qpn());
    }
}

/// Returns a reason why a window can't be bound to a slice with this access.
fn invalid_reason(slice: &RegionSlice, access: Access) -> Option<&'static str> {
    let region = slice.access();
    if slice.is_empty() {
        Some("a memory window must contain at least one byte")
    } else if !region.contains(Access::WINDOW_BIND) {
        Some("binding a memory window requires a region with WINDOW_BIND access")
    } else if !access.is_remote() || !Access::REMOTE.contains(access) {
        Some("a memory window's access must be one or more of REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC")
    } else if access.is_remotely_writable() && !region.contains(Access::LOCAL_WRITE) {
        // Vol. 1, 10.6.7.2.2.
        Some("remote write or atomic access to a memory window requires a region with LOCAL_WRITE access")
    } else {
        None
    }
}
