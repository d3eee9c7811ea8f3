//! Memory windows: rights to a part of a region, given to one peer and taken back.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adverb_proto::types::{Access, Qpn, SendFlags, SendOperation, Transport, WindowBind};

use super::{Completion, ProtectionDomain, QueuePair, SendRequest, contained};
use crate::backend::{self, RawOutcome, SendList, flag, opcode};
use crate::error::{Error, Result};
use crate::memory::{Payload, RegionSlice, RemoteMemory};

/// A memory window of type 2B: rights to a part of a [`MemoryRegion`](crate::memory::MemoryRegion) that only the peer of
/// one queue pair has, under a key of their own, and that are taken back without a word to the kernel.
///
/// A request owns the window as it owns buffers: [`SendRequest::bind`] takes it, and its completion gives it back with
/// [`Completion::into_window`], so that nothing can be done with a window while the device is at it. Once bound it has a
/// [`remote`](MemoryWindow::remote) to tell the peer, until
///
/// - this side takes the rights back, with [`SendRequest::local_invalidate`];
/// - the peer gives them back, with [`SendRequest::send_invalidate`]: the completion of the receive says so, and from the
///   moment that it is polled the window knows;
/// - the window, or the queue pair that it was bound on, is dropped.
///
/// Then it can be bound again, and gets another key: the old one is refused. The region stays registered while the
/// window shows it, whatever else is dropped.
///
/// ```no_run
/// # use std::time::Duration;
/// # use adverb::memory::RemoteMemory;
/// # use adverb::verbs::{Access, CompletionQueue, ProtectionDomain, QueuePair, SendRequest};
/// # fn example(domain: &ProtectionDomain, queue_pair: &QueuePair, completions: &CompletionQueue) -> adverb::Result<()> {
/// # let patience = Duration::from_secs(1);
/// # fn tell_the_peer(_: RemoteMemory) {}
/// let region = domain.region(4096, Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
/// let window = domain.memory_window()?;
///
/// let bind = SendRequest::bind(window, region.slice(1024..2048)?, Access::REMOTE_WRITE);
/// let bound = completions.wait(queue_pair.post_send(bind)?, patience)?;
/// bound.success()?;
/// let window = bound.into_window().expect("the request had one");
/// tell_the_peer(window.remote().expect("it is bound"));
/// // …
/// let invalidated = completions.wait(queue_pair.post_send(SendRequest::local_invalidate(window))?, patience)?;
/// invalidated.success()?;
/// # Ok(())
/// # }
/// ```
///
/// # When something fails
///
/// After a bind or an invalidation that failed, or that came back flushed, nobody can say what the peer may do. The
/// window is freed then, which ends all rights, and is of no more use: [`is_usable`](MemoryWindow::is_usable) says so.
/// The same goes for windows that are bound, or being bound, on a queue pair that is dropped or
/// [reset](QueuePair::reset). Make another.
///
/// # Devices
///
/// Only devices whose [`has_memory_windows`](super::DeviceAttributes::has_memory_windows) says so have them. Linux soft-RoCE
/// checks the rights, but as of Linux 6.1 not the bounds: with it the peer reaches the whole region. A message that
/// is being written when a window is invalidated may still be written to its end there.
pub struct MemoryWindow {
    shared: Arc<Shared>,
    /// What it shows, or is to show. Held until that is certainly over. (In a box, so that all requests stay small.)
    slice: Option<Box<RegionSlice>>,
}

/// What the queue pair and the device must know of a window, beside its owner.
pub(super) struct Shared {
    domain: ProtectionDomain,
    backend: backend::MemoryWindow,
    state: Mutex<State>,
}

/// How it is with a window.
///
/// A window that its user holds has no request in flight, whatever the phase says: what was asked for and then not
/// posted counts as not asked for. What is in flight is owned by the queue pair.
#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    /// The key of the last binding that was asked for.
    rkey: u32,
    /// Where that was posted.
    queue_pair: Option<Qpn>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Shows nothing.
    Free,
    /// A request may be binding it.
    Binding,
    /// Shows something.
    Bound,
    /// A request may be invalidating it.
    Invalidating,
    /// The device has it no more.
    Gone,
}

impl ProtectionDomain {
    /// Makes a memory window. It shows nothing until it is [bound](SendRequest::bind).
    ///
    /// # Errors
    ///
    /// If the device can't, or has no more.
    pub fn memory_window(&self) -> Result<MemoryWindow> {
        if !self.device().attributes().has_memory_windows {
            return Err(Error::Unsupported {
                feature: format!("memory windows of type 2B on {}", self.device().name()).into(),
                hint: "register the memory as a region of its own, with the rights that the peer is to have"
                    .into(),
            });
        }
        let state = Mutex::new(State { phase: Phase::Free, rkey: 0, queue_pair: None });
        let shared = Shared { domain: self.clone(), backend: self.backend().memory_window()?, state };
        Ok(MemoryWindow { shared: Arc::new(shared), slice: None })
    }
}

impl MemoryWindow {
    /// What the peer needs to reach the memory that the window shows; `None` while it isn't bound.
    pub fn remote(&self) -> Option<RemoteMemory> {
        let state = *self.shared.lock();
        let slice = self.slice.as_ref().filter(|_| state.phase.is_bound())?;
        Some(RemoteMemory { addr: slice.addr(), rkey: state.rkey, len: slice.len() as u64 })
    }

    /// Whether a peer may reach memory with it.
    pub fn is_bound(&self) -> bool {
        self.shared.lock().phase.is_bound()
    }

    /// Whether it can be bound, now or after it is invalidated. If not, nobody reaches anything with it.
    pub fn is_usable(&self) -> bool {
        self.shared.lock().phase != Phase::Gone
    }

    /// The protection domain that it belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.shared.domain
    }

    /// Notes in the list what the request at `index`, which has this window, tells the device beside the plain form.
    #[cold]
    pub(super) fn lower(&self, operation: &SendOperation, list: &mut SendList, index: usize) {
        if let (SendOperation::BindWindow(bind), Some(slice)) = (operation, &self.slice) {
            list.bind(index, &self.shared.backend, slice.registration(), bind);
        }
    }

    /// Lets go of the memory if nobody reaches it any more.
    fn tidy(&mut self) {
        if matches!(self.shared.lock().phase, Phase::Free | Phase::Gone) {
            self.slice = None;
        }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if !self.shared.domain.device().is_ours() {
            return;
        }
        // Before the region: one that is shown can't be deregistered.
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
    /// Whether a peer may reach memory, if no request is in flight.
    fn is_bound(self) -> bool {
        matches!(self, Phase::Bound | Phase::Invalidating)
    }
}

impl SendRequest {
    /// Binds a window to a part of a region: from then on the peer may do there what `access` says, of `REMOTE_WRITE`,
    /// `REMOTE_READ` and `REMOTE_ATOMIC`, whatever rights the region itself gives. The completion gives the window
    /// [back](Completion::into_window).
    ///
    /// What a peer may write is never a `[u8]` here, so that a buffer can't be shown:
    ///
    /// ```compile_fail,E0308
    /// # use adverb::{memory::Buffer, verbs::{Access, MemoryWindow, SendRequest}};
    /// fn show(window: MemoryWindow, buffer: Buffer) -> SendRequest {
    ///     SendRequest::bind(window, buffer, Access::REMOTE_READ)
    /// }
    /// ```
    ///
    /// The region needs the right `WINDOW_BIND`, and `LOCAL_WRITE` if the peer is to write. A window that is bound must
    /// be invalidated first. Only a reliable connection has windows.
    pub fn bind(mut window: MemoryWindow, slice: RegionSlice, access: Access) -> SendRequest {
        let mut state = window.shared.lock();
        let rkey = window.shared.backend.next_rkey();
        let (lkey, addr, length) = (slice.lkey(), slice.addr(), slice.len() as u64);
        let is_free = matches!(state.phase, Phase::Free | Phase::Binding);
        if is_free {
            // What was asked for before was never posted.
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

    /// Takes back what a window gives the peer: its key is refused from then on. The completion gives the window
    /// [back](Completion::into_window).
    ///
    /// It must be posted to the queue pair on which the window was bound. One that isn't bound, because it never was, or
    /// was invalidated before by either side, is refused.
    ///
    /// If the peer may also invalidate it, agree on who does: when both do at once, the second is an error that fails the
    /// queue pair, and Linux 6.1's soft-RoCE has a bug there that takes the kernel down.
    pub fn local_invalidate(window: MemoryWindow) -> SendRequest {
        let rkey = window.shared.lock().rkey;
        SendRequest::new(SendOperation::LocalInvalidate(rkey), Payload::Window(window))
    }

    /// The request's window, to use otherwise: of one that wasn't posted.
    pub fn into_window(self) -> Option<MemoryWindow> {
        window_of(self.payload)
    }
}

impl Completion {
    /// The window of a request that bound or invalidated it. The request may have failed all the same: then the window
    /// isn't [usable](MemoryWindow::is_usable).
    pub fn into_window(self) -> Option<MemoryWindow> {
        self.settle();
        window_of(self.payload)
    }

    /// Lets the window, if the request had one, know what became of the request.
    #[inline]
    pub(super) fn settle(&self) {
        if let Payload::Window(window) = &self.payload {
            window.shared.settle(&self.outcome);
        }
    }
}

fn window_of(payload: Payload) -> Option<MemoryWindow> {
    match payload {
        Payload::Window(mut window) => {
            window.tidy();
            Some(window)
        }
        _ => None,
    }
}

impl QueuePair {
    /// What of a request with a window doesn't fit the queue pair or the window. If it does, the window counts as being
    /// worked on. The send queue is locked, so that the queue pair isn't reset meanwhile.
    #[cold]
    pub(super) fn check_window(&self, request: &SendRequest, window: &MemoryWindow) -> Result<()> {
        let refuse = |reason: &'static str| Err(Error::InvalidRequest { reason: reason.into() });
        if self.transport != Transport::Rc || request.recipient.is_some() {
            return refuse("memory windows need a reliable connection");
        }
        if request.flags.contains(SendFlags::INLINE) {
            return refuse("only SEND and WRITE can be inlined");
        }
        let shared = &window.shared;
        if shared.domain != self.domain {
            return Err(self.domain.foreign("memory window", &shared.domain, self.name()));
        }
        let mut state = shared.lock();
        match request.operation {
            _ if state.phase == Phase::Gone => {
                refuse("the window is gone: a request on it failed, or its queue pair is no more")
            }
            SendOperation::BindWindow(bind) => {
                if state.phase.is_bound() {
                    return refuse("the window is bound: invalidate it first");
                }
                let Some(slice) = &window.slice else {
                    return refuse("there is nothing to bind the window to");
                };
                if *slice.domain() != self.domain {
                    return Err(self.domain.foreign("memory", slice.domain(), self.name()));
                }
                if let Some(reason) = flaw(slice, bind.access) {
                    return refuse(reason);
                }
                shared.unregister(&mut state);
                *state = State { phase: Phase::Binding, rkey: bind.rkey, queue_pair: Some(self.qpn()) };
                self.domain.device().windows().insert(bind.rkey, self.qpn(), shared);
                Ok(())
            }
            SendOperation::LocalInvalidate(rkey) => {
                // Checked here and not by the device: soft-RoCE (rxe_do_invalidate_mw) follows a null pointer.
                if !state.phase.is_bound() || state.rkey != rkey {
                    return refuse("the window isn't bound: there is nothing to invalidate");
                }
                if state.queue_pair != Some(self.qpn()) {
                    return refuse("the window was bound on another queue pair: invalidate it there");
                }
                state.phase = Phase::Invalidating;
                Ok(())
            }
            _ => refuse("a window isn't memory: it can be bound and invalidated, and nothing else"),
        }
    }

    /// Frees the windows that peers may reach memory with through this queue pair. Nothing is posted meanwhile.
    ///
    /// A device may not let go of a queue pair with windows (soft-RoCE warns), and one that is reset is soon another
    /// peer's.
    pub(super) fn free_windows(&self) {
        if self.backend.is_gone() {
            // Its number may be another's by now.
            return;
        }
        for window in self.domain.device().windows().of(self.qpn()) {
            let mut state = window.lock();
            // It may have been freed, or bound elsewhere, since it was found.
            if state.queue_pair == Some(self.qpn()) {
                window.free(&mut state);
            }
        }
    }
}

/// Why a slice can't be shown with these rights, if it can't.
fn flaw(slice: &RegionSlice, access: Access) -> Option<&'static str> {
    let region = slice.access();
    if slice.is_empty() {
        Some("a window needs at least one byte to show")
    } else if !region.contains(Access::WINDOW_BIND) {
        Some("a window can be bound only to a region with the right WINDOW_BIND")
    } else if !access.is_remote() || !Access::REMOTE.contains(access) {
        Some("a window gives rights to a peer, and only those: REMOTE_WRITE, REMOTE_READ or REMOTE_ATOMIC")
    } else if access.is_remotely_writable() && !region.contains(Access::LOCAL_WRITE) {
        // Vol. 1, 10.6.7.2.2.
        Some("a window that lets a peer write needs a region with the right LOCAL_WRITE")
    } else {
        None
    }
}

impl Shared {
    /// Notes what became of a request, once: afterwards the phase is one in which none is in flight.
    fn settle(&self, outcome: &RawOutcome) {
        let mut state = self.lock();
        match (state.phase, outcome.status, outcome.opcode) {
            // Also if the request was another's, which some user's ingenuity may lead to: this is always safe.
            (_, 1.., _) => self.free(&mut state),
            (Phase::Binding, 0, opcode::BIND_WINDOW) => {
                self.backend.has_rkey(state.rkey);
                state.phase = Phase::Bound;
            }
            (Phase::Free, 0, opcode::BIND_WINDOW) => self.backend.has_rkey(state.rkey),
            (Phase::Invalidating, 0, opcode::LOCAL_INVALIDATE) => {
                self.unregister(&mut state);
                state.phase = Phase::Free;
            }
            _ => {}
        }
    }

    /// Notes that the peer invalidated the key. The memory is let go of by the owner: this runs while others wait.
    fn invalidated(&self, rkey: u32) {
        let mut state = self.lock();
        if state.rkey == rkey && state.phase != Phase::Gone {
            self.unregister(&mut state);
            state.phase = Phase::Free;
        }
    }

    /// Frees the window, so that nobody reaches anything with it.
    fn free(&self, state: &mut State) {
        self.unregister(state);
        if state.phase == Phase::Gone {
            return;
        }
        state.phase = Phase::Gone;
        if let Err(error) = self.backend.free() {
            // Its region notices too, and then keeps its memory for good.
            contained(|| tracing::error!(%error, "a memory window could not be freed"));
        }
    }

    /// Takes it from the device's list. Only ever asked with the state locked, so that lists and states agree.
    fn unregister(&self, state: &mut State) {
        if let Some(queue_pair) = state.queue_pair.take() {
            self.domain.device().windows().remove(state.rkey, queue_pair);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two of its changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The windows of a device that peers may reach memory with.
///
/// Its lock may be taken with that of a window's state held, and not the other way round.
#[derive(Default)]
pub(super) struct Windows(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    by_key: HashMap<u32, Arc<Shared>>,
    by_queue_pair: BTreeSet<(Qpn, u32)>,
}

impl Windows {
    /// Takes note if a receive request has completed whose sender invalidated a key.
    #[cold]
    pub(super) fn look_at(&self, outcome: &RawOutcome) {
        // Of a failure no such thing is known.
        if outcome.status == 0 && outcome.opcode == opcode::RECV && outcome.flags & flag::INVALIDATED != 0 {
            let window = self.lock().by_key.get(&outcome.immediate).cloned();
            if let Some(window) = window {
                window.invalidated(outcome.immediate);
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

    /// Those of a queue pair.
    fn of(&self, queue_pair: Qpn) -> Vec<Arc<Shared>> {
        let lists = self.lock();
        let keys = lists.by_queue_pair.range((queue_pair, 0)..=(queue_pair, u32::MAX));
        keys.filter_map(|(_, rkey)| lists.by_key.get(rkey).cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// What the compiler finds out here is part of the API.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<MemoryWindow>();
};
