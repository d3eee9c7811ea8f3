//! The memory windows of a device: their states, and which queue pair each is bound on.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adverb_proto::types::Qpn;

use super::ProtectionDomain;
use crate::backend::{self, RawOutcome, flag, opcode};
use crate::error::WithCauses;
use crate::logging::log_without_unwinding;

/// A memory window, as its device and its queue pair know it: the program's handle and, while the window is bound, the
/// device share it.
pub(crate) struct DeviceWindow {
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
    /// Whether the device failed to deallocate the window, so that it may still give access.
    is_leaked: bool,
}

/// The phase of a window's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Not bound.
    Free,
    /// A bind may be in flight.
    Binding,
    /// Bound.
    Bound,
    /// An invalidation may be in flight.
    Invalidating,
    /// Deallocated, or leaked because the device failed to do that.
    Freed,
}

impl Phase {
    /// Whether a peer may access memory, if no request is in flight.
    pub(crate) fn is_bound(self) -> bool {
        matches!(self, Phase::Bound | Phase::Invalidating)
    }

    /// Returns the reason why a window in this phase can't be bound.
    pub(crate) fn check_bindable(self) -> Result<(), &'static str> {
        match self {
            Phase::Free | Phase::Binding => Ok(()),
            Phase::Bound | Phase::Invalidating => {
                Err("the memory window is already bound: invalidate it first")
            }
            Phase::Freed => Err(FREED),
        }
    }
}

/// The reason why a window that was deallocated can't be used.
const FREED: &str =
    "the memory window was freed: one of its requests failed, or its queue pair was reset or destroyed";

impl DeviceWindow {
    /// Allocates a window.
    pub(crate) fn new(domain: &ProtectionDomain) -> crate::error::Result<Arc<DeviceWindow>> {
        let state = Mutex::new(State { phase: Phase::Free, rkey: 0, queue_pair: None, is_leaked: false });
        let backend = domain.backend().memory_window()?;
        Ok(Arc::new(DeviceWindow { domain: domain.clone(), backend, state }))
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(crate) fn backend(&self) -> &backend::MemoryWindow {
        &self.backend
    }

    pub(crate) fn phase(&self) -> Phase {
        self.lock().phase
    }

    /// Returns the key of the last requested binding.
    pub(crate) fn rkey(&self) -> u32 {
        self.lock().rkey
    }

    /// Returns the key of the window if it is bound.
    pub(crate) fn bound_rkey(&self) -> Option<u32> {
        let state = self.lock();
        state.phase.is_bound().then_some(state.rkey)
    }

    /// Prepares a bind request: returns the key that it requests, and whether the window is free to be bound.
    pub(crate) fn prepare_bind(&self) -> (u32, bool) {
        let mut state = self.lock();
        let rkey = self.backend.next_rkey();
        let is_free = matches!(state.phase, Phase::Free | Phase::Binding);
        if is_free {
            // The earlier bind request was never posted.
            self.unregister(&mut state);
            state.phase = Phase::Free;
        }
        (rkey, is_free)
    }

    /// Records that a bind request for this key is being posted to a queue pair.
    pub(crate) fn begin_bind(self: &Arc<Self>, rkey: u32, queue_pair: Qpn) -> Result<(), &'static str> {
        let mut state = self.lock();
        state.phase.check_bindable()?;
        self.unregister(&mut state);
        *state = State { phase: Phase::Binding, rkey, queue_pair: Some(queue_pair), ..*state };
        self.domain.device().windows().insert(rkey, queue_pair, self);
        Ok(())
    }

    /// Records that a request which invalidates this key is being posted to a queue pair.
    pub(crate) fn begin_invalidation(&self, rkey: u32, queue_pair: Qpn) -> Result<(), &'static str> {
        let mut state = self.lock();
        if state.phase == Phase::Freed {
            return Err(FREED);
        }
        // This is checked here, because soft-RoCE (rxe_do_invalidate_mw) dereferences a null pointer.
        if !state.phase.is_bound() || state.rkey != rkey {
            return Err("the memory window is not bound");
        }
        if state.queue_pair != Some(queue_pair) {
            return Err("the memory window was bound on another queue pair: invalidate it there");
        }
        state.phase = Phase::Invalidating;
        Ok(())
    }

    /// Records the outcome of a request. Recording it again has no effect, because no request is in flight in the new
    /// phase.
    pub(crate) fn handle_outcome(&self, outcome: &RawOutcome) {
        let mut state = self.lock();
        match (state.phase, outcome.status, outcome.opcode) {
            // The request may be a receive, if the program used the window as its payload. Freeing is always safe.
            (_, 1.., _) => _ = self.free_locked(&mut state),
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

    /// Deallocates the window, which ends all access. Returns `false` if that fails, or has failed before. Without effect if
    /// the window was deallocated before.
    pub(crate) fn free(&self) -> bool {
        self.free_locked(&mut self.lock())
    }

    /// Deallocates the window if it is bound, or being bound, on this queue pair.
    fn free_on(&self, queue_pair: Qpn) {
        let mut state = self.lock();
        // The window may have been freed, or bound on another queue pair, since it was found.
        if state.queue_pair == Some(queue_pair) {
            let _ = self.free_locked(&mut state);
        }
    }

    fn free_locked(&self, state: &mut State) -> bool {
        self.unregister(state);
        if state.phase == Phase::Freed {
            return !state.is_leaked;
        }
        state.phase = Phase::Freed;
        let freed = self.backend.free();
        state.is_leaked = freed.is_err();
        if let Err(error) = &freed {
            // Deregistering the region fails, too, and its memory is then never freed.
            log_without_unwinding(
                || tracing::error!(error = %WithCauses(error), "freeing a memory window failed"),
            );
        }
        !state.is_leaked
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
pub(crate) struct Windows(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    by_key: HashMap<u32, Arc<DeviceWindow>>,
    by_queue_pair: BTreeSet<(Qpn, u32)>,
}

impl Windows {
    /// Records an invalidation if the outcome is that of a receive whose sender invalidated a key.
    #[cold]
    pub(crate) fn handle_invalidation(&self, outcome: &RawOutcome) {
        // A failed receive doesn't report invalidations.
        if outcome.status == 0 && outcome.opcode == opcode::RECV && outcome.flags & flag::INVALIDATED != 0 {
            let window = self.lock().by_key.get(&outcome.immediate).cloned();
            if let Some(window) = window {
                window.record_invalidation(outcome.immediate);
            }
        }
    }

    fn insert(&self, rkey: u32, queue_pair: Qpn, window: &Arc<DeviceWindow>) {
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

    /// Deallocates the windows that are bound, or being bound, on a queue pair.
    pub(crate) fn free_on(&self, queue_pair: Qpn) {
        for window in self.of_queue_pair(queue_pair) {
            window.free_on(queue_pair);
        }
    }

    fn of_queue_pair(&self, queue_pair: Qpn) -> Vec<Arc<DeviceWindow>> {
        let lists = self.lock();
        let keys = lists.by_queue_pair.range((queue_pair, 0)..=(queue_pair, u32::MAX));
        keys.filter_map(|(_, rkey)| lists.by_key.get(rkey).cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
