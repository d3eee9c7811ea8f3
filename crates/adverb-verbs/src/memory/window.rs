//! Memory windows: revocable access of one peer to a part of a region.

use std::fmt;
use std::sync::Arc;

use adverb_proto::types::{Access, SendOperation, WindowBind};

use super::{RegionSlice, RemoteMemory};
use crate::backend::{RawOutcome, SendList};
use crate::device::{DeviceWindow, Phase, ProtectionDomain};
#[allow(unused_imports, reason = "for links")]
use crate::error::{Error, Feature, Result};

/// A memory window of type 2B: access to a part of a [`MemoryRegion`](crate::memory::MemoryRegion) for the peer of one
/// queue pair only, with its own key. A program can revoke the access without a system call.
///
/// A request owns the window as it owns buffers: [`SendRequest::bind`](crate::SendRequest::bind) consumes it, and the completion returns it with
/// [`Completion::into_window`](crate::Completion::into_window), so that a program can't use a window while the device binds or invalidates it. A bound
/// window has a [`remote`](MemoryWindow::remote) key for the peer. The binding ends when
///
/// - this side invalidates the window, with [`SendRequest::local_invalidate`](crate::SendRequest::local_invalidate);
/// - the peer invalidates it, with [`SendRequest::send_invalidate`](crate::SendRequest::send_invalidate): the completion of the receive reports the
///   invalidation, and the window is unbound once this completion has been polled;
/// - the window, or the queue pair on which it was bound, is dropped.
///
/// Afterwards the window can be bound again, with a new key; the device rejects the old key. The region stays
/// registered while a window is bound to it, even if all other handles to it are dropped.
///
/// ```no_run
/// # use std::time::Duration;
/// # use adverb::memory::RemoteMemory;
/// # use adverb::verbs::{Access, CompletionQueue, ProtectionDomain, QueuePair, SendRequest};
/// # fn example(domain: &ProtectionDomain, queue_pair: &QueuePair, completions: &CompletionQueue) -> adverb::verbs::Result<()> {
/// # let timeout = Duration::from_secs(1);
/// # fn send_to_peer(_: RemoteMemory) {}
/// let region = domain.allocate_region(4096, Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
/// let window = domain.create_memory_window()?;
///
/// let bind = SendRequest::bind(window, region.slice(1024..2048)?, Access::REMOTE_WRITE);
/// let bound = completions.wait(queue_pair.post_send(bind)?, timeout)?;
/// bound.result()?;
/// let window = bound.into_window().expect("the request had one");
/// send_to_peer(window.remote().expect("it is bound"));
/// // …
/// let invalidated = completions.wait(queue_pair.post_send(SendRequest::local_invalidate(window))?, timeout)?;
/// invalidated.result()?;
/// # Ok(())
/// # }
/// ```
///
/// # Failures
///
/// After a bind or an invalidation that failed or was flushed, the peer's access rights are unknown. The window is then
/// deallocated, which ends all access, and can't be used again: [`is_usable`](MemoryWindow::is_usable) returns `false`.
/// The same applies to windows that are bound, or being bound, on a queue pair that is dropped or
/// [reset](crate::QueuePair::reset). Create a new window instead.
///
/// # Devices
///
/// Only devices with [`has_memory_windows`](crate::DeviceAttributes::has_memory_windows) support memory windows. Linux
/// soft-RoCE checks the access rights, but as of Linux 6.1 not the bounds: the peer can access the whole region. It may
/// also complete a message that is being written while the window is invalidated.
pub struct MemoryWindow {
    shared: Arc<DeviceWindow>,
    /// The memory that the window is bound to, or will be bound to. It is kept until the binding has certainly ended.
    /// (It is boxed to keep requests small.)
    slice: Option<Box<RegionSlice>>,
}

impl ProtectionDomain {
    /// Allocates a memory window. The window gives no access until it is [bound](crate::SendRequest::bind).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the device has no memory windows of type 2B, and [`Error::CallFailed`] if the device
    /// can't allocate another window.
    pub fn create_memory_window(&self) -> Result<MemoryWindow> {
        if !self.device().attributes().has_memory_windows {
            return Err(self.unsupported(Feature::MemoryWindow));
        }
        Ok(MemoryWindow { shared: DeviceWindow::new(self)?, slice: None })
    }
}

impl MemoryWindow {
    /// Returns the address and the key with which the peer accesses the memory, or `None` if the window isn't bound.
    pub fn remote(&self) -> Option<RemoteMemory> {
        let rkey = self.shared.bound_rkey()?;
        let slice = self.slice.as_ref()?;
        Some(RemoteMemory { addr: slice.addr(), rkey, len: slice.len() as u64 })
    }

    /// Whether the window is bound, so that a peer may access memory with it.
    pub fn is_bound(&self) -> bool {
        self.shared.phase().is_bound()
    }

    /// Whether the window can be bound, now or after it is invalidated. An unusable window gives no access.
    pub fn is_usable(&self) -> bool {
        self.shared.phase() != Phase::Freed
    }

    /// Returns the protection domain that the window belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        self.shared.domain()
    }

    /// Sets the window and the memory of the bind request at `index` of the list, which `operation` doesn't contain. The
    /// request owns this window.
    #[cold]
    pub(crate) fn encode_bind(&self, operation: &SendOperation, list: &mut SendList, index: usize) {
        if let (SendOperation::BindWindow(bind), Some(slice)) = (operation, &self.slice) {
            list.bind(index, self.shared.backend(), slice.registration(), bind);
        }
    }

    /// Returns the device's part of the window.
    pub(crate) fn shared(&self) -> &Arc<DeviceWindow> {
        &self.shared
    }

    /// Returns the memory that the window is bound to, or will be bound to.
    pub(crate) fn slice(&self) -> Option<&RegionSlice> {
        self.slice.as_deref()
    }

    /// Prepares a request that binds the window to a slice. The slice is dropped if the window is bound or freed:
    /// posting the request then fails.
    pub(crate) fn prepare_bind(&mut self, slice: RegionSlice, access: Access) -> WindowBind {
        let (rkey, is_free) = self.shared.prepare_bind();
        let (lkey, addr, length) = (slice.lkey(), slice.addr(), slice.len() as u64);
        if is_free {
            self.slice = Some(Box::new(slice));
        }
        WindowBind { rkey, lkey, addr, length, access }
    }

    /// Updates the state by the outcome of a request.
    #[inline]
    pub(crate) fn handle_outcome(&self, outcome: &RawOutcome) {
        self.shared.handle_outcome(outcome);
    }

    /// Releases the memory if the window no longer gives access to it.
    pub(crate) fn release_slice(&mut self) {
        if matches!(self.shared.phase(), Phase::Free | Phase::Freed) {
            self.slice = None;
        }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if !self.shared.domain().device().is_owned() {
            return;
        }
        // The window is freed before the region, because a region with a bound window can't be deregistered.
        self.shared.free();
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.shared.phase();
        f.debug_struct("MemoryWindow").field("phase", &phase).field("slice", &self.slice).finish()
    }
}

// These auto traits are part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<MemoryWindow>();
};
