//! Memory windows: revocable access of one peer to a part of a region.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adverb_proto::types::{Access, Qpn, SendFlags, SendOperation, Transport, WindowBind};

use super::{Completion, ProtectionDomain, QueuePair, SendRequest, log_without_unwinding};
use crate::backend::{self, RawOutcome, SendList, flag, opcode};
use crate::error::{Error, Result};
use crate::memory::{Payload, RegionSlice, RemoteMemory};

/// A memory window of type 2B: access to a part of a [`MemoryRegion`](crate::memory::MemoryRegion) for the peer of one
/// queue pair only, with its own key. A program can revoke the access without a system call.
///
/// A request owns the window as it owns buffers: [`SendRequest::bind`] consumes it, and the completion returns it with
/// [`Completion::into_window`], so that a program can't use a window while the device binds or invalidates it. A bound
/// window has a [`remote`](MemoryWindow::remote) key for the peer. The binding ends when
///
/// - this side invalidates the window, with [`SendRequest::local_invalidate`];
/// - the peer invalidates it, with [`SendRequest::send_invalidate`]: the completion of the receive reports the
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
/// # fn example(domain: &ProtectionDomain, queue_pair: &QueuePair, completions: &CompletionQueue) -> adverb::Result<()> {
/// # let timeout = Duration::from_secs(1);
/// # fn send_to_peer(_: RemoteMemory) {}
/// let region = domain.region(4096, Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
/// let window = domain.memory_window()?;
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
/// [reset](QueuePair::reset). Create a new window instead.
///
/// # Devices
///
/// Only devices with [`has_memory_windows`](super::DeviceAttributes::has_memory_windows) support memory windows. Linux
/// soft-RoCE checks the access rights, but as of Linux 6.1 not the bounds: the peer can access the whole region. It may
/// also complete a message that is being written while the window is invalidated.
pub struct MemoryWindow {
    shared: Arc<Shared>,
    /// The memory that the window is bound to, or will be bound to. It is kept until the binding has certainly ended.
    /// (It is boxed to keep requests small.)
    slice: Option<Box<RegionSlice>>,
}

/// The part of a window that its queue pair and device need, too.
pub(super) struct Shared {
    domain: ProtectionDomain,
    backend: backend::MemoryWindow,
    state: Mutex<State>,
}

/// The state of a window.
///
/// A window that the user holds has no request in flight, regardless of the phase: a request that was created and not
/// posted has no effect. Requests in flight are owned by the queue pair.
#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    /// The key of the last requested binding.
    rkey: u32,
    /// The queue pair to which that request was posted.
    queue_pair: Option<Qpn>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Not bound.
    Free,
    /// A bind may be in flight.
    Binding,
    /// Bound.
    Bound,
    /// An invalidation may be in flight.
    Invalidating,
    /// Deallocated.
    Freed,
}

impl ProtectionDomain {
    /// Allocates a memory window. The window gives no access until it is [bound](SendRequest::bind).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the device has no memory windows of type 2B, and [`Error::Verb`] if the device
    /// can't allocate another window.
    pub fn memory_window(&self) -> Result<MemoryWindow> {
        if !self.device().attributes().has_memory_windows {
            return Err(Error::Unsupported {
                feature: format!("a type 2B memory window on {}", self.device().name()).into(),
                hint: "register the memory as a separate region with the peer's access rights".into(),
            });
        }
        let state = Mutex::new(State { phase: Phase::Free, rkey: 0, queue_pair: None });
        let shared = Shared { domain: self.clone(), backend: self.backend().memory_window()?, state };
        Ok(MemoryWindow { shared: Arc::new(shared), slice: None })
    }
}

impl MemoryWindow {
    /// Returns the address and the key with which the peer accesses the memory, or `None` if the window isn't bound.
    pub fn remote(&self) -> Option<RemoteMemory> {
        let state = *self.shared.lock();
        let slice = self.slice.as_ref().filter(|_| state.phase.is_bound())?;
        Some(RemoteMemory { addr: slice.addr(), rkey: state.rkey, len: slice.len() as u64 })
    }

    /// Whether the window is bound, so that a peer may access memory with it.
    pub fn is_bound(&self) -> bool {
        self.shared.lock().phase.is_bound()
    }

    /// Whether the window can be bound, now or after it is invalidated. An unusable window gives no access.
    pub fn is_usable(&self) -> bool {
        self.shared.lock().phase != Phase::Freed
    }

    /// Returns the protection domain that the window belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }

    /// Sets the window and the memory of the bind request at `index` of the list, which `operation` doesn't contain. The
    /// request owns this window.
    #[cold]
    pub(super) fn encode_bind(&self, operation: &SendOperation, list: &mut SendList, index: usize) {
        if let (SendOperation::BindWindow(bind), Some(slice)) = (operation, &self.slice) {
            list.bind(index, &self.shared.backend, slice.registration(), bind);
        }
    }

    /// Releases the memory if the window no longer gives access to it.
    fn release_slice(&mut self) {
        if matches!(self.shared.lock().phase, Phase::Free | Phase::Freed) {
            self.slice = None;
        }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if !self.shared.domain.device().is_owned() {
            return;
        }
        // The window is freed before the region, because a region with a bound window can't be deregistered.
        self.shared.free(&mut self.shared.lock());
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.shared.lock().phase;
        f.debug_struct("MemoryWindow").field("phase", &phase).field("slice", &self.slice).finish()
    }
}

impl Phase {
    /// Whether a peer may access memory, if no request is in flight.
    fn is_bound(self) -> bool {
        matches!(self, Phase::Bound | Phase::Invalidating)
    }
}

impl SendRequest {
    /// Creates a request that binds a window to a part of a region: the peer may then execute the operations in
    /// `access` (`REMOTE_WRITE`, `REMOTE_READ` and `REMOTE_ATOMIC`) on that part, independently of the access rights of
    /// the region itself. The completion [returns](Completion::into_window) the window.
    ///
    /// Memory that a peer may write is never a `[u8]`, so a window can't be bound to a buffer:
    ///
    /// ```compile_fail,E0308
    /// # use adverb::{memory::Buffer, verbs::{Access, MemoryWindow, SendRequest}};
    /// fn show(window: MemoryWindow, buffer: Buffer) -> SendRequest {
    ///     SendRequest::bind(window, buffer, Access::REMOTE_READ)
    /// }
    /// ```
    ///
    /// The region needs the access right `WINDOW_BIND`, and `LOCAL_WRITE` if the peer may write. A bound window must be
    /// invalidated before it is bound again. Windows require a reliable connection.
    pub fn bind(mut window: MemoryWindow, slice: RegionSlice, access: Access) -> SendRequest {
        let mut state = window.shared.lock();
        let rkey = window.shared.backend.next_rkey();
        let (lkey, addr, length) = (slice.lkey(), slice.addr(), slice.len() as u64);
        let is_free = matches!(state.phase, Phase::Free | Phase::Binding);
        if is_free {
            // The earlier bind request was never posted.
            window.shared.unregister(&mut state);
            state.phase = Phase::Free;
        }
        drop(state);
        if is_free {
            window.slice = Some(Box::new(slice));
        }
        let bind = WindowBind { rkey, lkey, addr, length, access };
        SendRequest::new(SendOperation::BindWindow(bind), Payload::Window(window))
    }

    /// Creates a request that revokes the access of a window: the device rejects the window's key afterwards. The
    /// completion [returns](Completion::into_window) the window.
    ///
    /// The request must be posted to the queue pair on which the window was bound. Posting fails if the window isn't
    /// bound, because it was never bound or because one of the two sides has invalidated it.
    ///
    /// If the peer may also invalidate the window, only one of the two sides should invalidate it: if both sides
    /// invalidate at once, the second invalidation is an error that moves the queue pair to the error state, and a bug
    /// of Linux 6.1's soft-RoCE then crashes the kernel.
    pub fn local_invalidate(window: MemoryWindow) -> SendRequest {
        let rkey = window.shared.lock().rkey;
        SendRequest::new(SendOperation::LocalInvalidate(rkey), Payload::Window(window))
    }

    /// Returns the window of a request that was not posted.
    pub fn into_window(self) -> Option<MemoryWindow> {
        window_of(self.payload)
    }
}

impl Completion {
    /// Returns the window of a bind or an invalidation. If the request failed, the window isn't
    /// [usable](MemoryWindow::is_usable).
    pub fn into_window(self) -> Option<MemoryWindow> {
        self.update_window();
        window_of(self.payload)
    }

    /// Updates the state of the request's window, if it has one, by the outcome of the request.
    #[inline]
    pub(super) fn update_window(&self) {
        if let Payload::Window(window) = &self.payload {
            window.shared.update_window(&self.outcome);
        }
    }
}

fn window_of(payload: Payload) -> Option<MemoryWindow> {
    match payload {
        Payload::Window(mut window) => {
            window.release_slice();
            Some(window)
        }
        _ => None,
    }
}

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
        let shared = &window.shared;
        if shared.domain != self.domain {
            return Err(self.domain.foreign_domain_error("memory window", &shared.domain, self.name()));
        }
        let mut state = shared.lock();
        match request.operation {
            _ if state.phase == Phase::Freed => reject(
                "the memory window was freed: one of its requests failed, or its queue pair was reset or destroyed",
            ),
            SendOperation::BindWindow(bind) => {
                if state.phase.is_bound() {
                    return reject("the memory window is already bound: invalidate it first");
                }
                let Some(slice) = &window.slice else {
                    return reject("the bind request has no memory slice");
                };
                if *slice.domain() != self.domain {
                    return Err(self.domain.foreign_domain_error("memory", slice.domain(), self.name()));
                }
                if let Some(reason) = invalid_reason(slice, bind.access) {
                    return reject(reason);
                }
                shared.unregister(&mut state);
                *state = State { phase: Phase::Binding, rkey: bind.rkey, queue_pair: Some(self.qpn()) };
                self.domain.device().windows().insert(bind.rkey, self.qpn(), shared);
                Ok(())
            }
            SendOperation::LocalInvalidate(rkey) => {
                // This is checked here, because soft-RoCE (rxe_do_invalidate_mw) dereferences a null pointer.
                if !state.phase.is_bound() || state.rkey != rkey {
                    return reject("the memory window is not bound");
                }
                if state.queue_pair != Some(self.qpn()) {
                    return reject("the memory window was bound on another queue pair: invalidate it there");
                }
                state.phase = Phase::Invalidating;
                Ok(())
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
        for window in self.domain.device().windows().of_queue_pair(self.qpn()) {
            let mut state = window.lock();
            // The window may have been freed, or bound on another queue pair, since it was found.
            if state.queue_pair == Some(self.qpn()) {
                window.free(&mut state);
            }
        }
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

impl Shared {
    /// Records the outcome of a request. Recording it again has no effect, because no request is in flight in the new
    /// phase.
    fn update_window(&self, outcome: &RawOutcome) {
        let mut state = self.lock();
        match (state.phase, outcome.status, outcome.opcode) {
            // The request may be a receive, if the program used the window as its payload. Freeing is always safe.
            (_, 1.., _) => self.free(&mut state),
            (Phase::Binding, 0, opcode::BIND_WINDOW) => {
                self.backend.set_rkey(state.rkey);
                state.phase = Phase::Bound;
            }
            (Phase::Free, 0, opcode::BIND_WINDOW) => self.backend.set_rkey(state.rkey),
            (Phase::Invalidating, 0, opcode::LOCAL_INVALIDATE) => {
                self.unregister(&mut state);
                state.phase = Phase::Free;
            }
            _ => {}
        }
    }

    /// Records that the peer invalidated the key. The owner releases the memory later, because the caller holds the lock
    /// of a completion queue.
    fn record_invalidation(&self, rkey: u32) {
        let mut state = self.lock();
        if state.rkey == rkey && state.phase != Phase::Freed {
            self.unregister(&mut state);
            state.phase = Phase::Free;
        }
    }

    /// Deallocates the window, which ends all access.
    fn free(&self, state: &mut State) {
        self.unregister(state);
        if state.phase == Phase::Freed {
            return;
        }
        state.phase = Phase::Freed;
        if let Err(error) = self.backend.free() {
            // Deregistering the region fails, too, and its memory is then never freed.
            log_without_unwinding(|| tracing::error!(%error, "freeing a memory window failed"));
        }
    }

    /// Removes the window from the device's list. The caller holds the lock of the state, so lists and states agree.
    fn unregister(&self, state: &mut State) {
        if let Some(queue_pair) = state.queue_pair.take() {
            self.domain.device().windows().remove(state.rkey, queue_pair);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The windows of a device that are bound, or being bound.
///
/// Its lock may be taken while the lock of a window's state is held, but not the other way round.
#[derive(Default)]
pub(super) struct Windows(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    by_key: HashMap<u32, Arc<Shared>>,
    by_queue_pair: BTreeSet<(Qpn, u32)>,
}

impl Windows {
    /// Records an invalidation if the outcome is that of a receive whose sender invalidated a key.
    #[cold]
    pub(super) fn handle_invalidation(&self, outcome: &RawOutcome) {
        // A failed receive doesn't report invalidations.
        if outcome.status == 0 && outcome.opcode == opcode::RECV && outcome.flags & flag::INVALIDATED != 0 {
            let window = self.lock().by_key.get(&outcome.immediate).cloned();
            if let Some(window) = window {
                window.record_invalidation(outcome.immediate);
            }
        }
    }

    fn insert(&self, rkey: u32, queue_pair: Qpn, window: &Arc<Shared>) {
        let mut lists = self.lock();
        lists.by_key.insert(rkey, Arc::clone(window));
        lists.by_queue_pair.insert((queue_pair, rkey));
    }

    fn remove(&self, rkey: u32, queue_pair: Qpn) {
        let mut lists = self.lock();
        let removed = lists.by_key.remove(&rkey);
        lists.by_queue_pair.remove(&(queue_pair, rkey));
        drop(lists);
        drop(removed);
    }

    /// Returns the windows of a queue pair.
    fn of_queue_pair(&self, queue_pair: Qpn) -> Vec<Arc<Shared>> {
        let lists = self.lock();
        let keys = lists.by_queue_pair.range((queue_pair, 0)..=(queue_pair, u32::MAX));
        keys.filter_map(|(_, rkey)| lists.by_key.get(rkey).cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// These auto traits are part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<MemoryWindow>();
};
