//! The states of a queue pair, and the calls that change them.

use std::sync::atomic::{AtomicU8, Ordering};

use adverb_proto::explain::Call;
use adverb_proto::types::{Access, Endpoint, Gid, Psn, QpState, Transport};
use parking_lot::{Mutex, MutexGuard};

use super::builder::random_psn;
use super::{ConnectOptions, QueuePair, Receives};
use crate::backend::{Init, PeerEnd, ReadyToReceive, ReadyToSend, StateChange};
use crate::completion_queue::Attached;
use crate::error::{Error, Limit, Result, WithCauses, call_failed};
use crate::memory::Payload;
use crate::request::ReclaimedRequest;

/// A [`QpState`] that is read by every post.
pub(crate) struct StateCell {
    index: AtomicU8,
    /// Held while the device's state and this one change. Otherwise a state that one thread has queried or set at the
    /// device could replace the state that another thread has set since, and requests would be posted in a wrong state.
    changing: Mutex<()>,
}

impl StateCell {
    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::ReadyToSend,
        QpState::SendQueueDrained,
        QpState::SendQueueError,
        QpState::Error,
    ];

    /// The index of [`QpState::ReadyToSend`] in `STATES`.
    const READY_TO_SEND: u8 = 3;

    pub(super) fn new() -> StateCell {
        StateCell { index: AtomicU8::new(0), changing: Mutex::new(()) }
    }

    pub(crate) fn get(&self) -> QpState {
        Self::STATES[usize::from(self.index.load(Ordering::Acquire)) % Self::STATES.len()]
    }

    /// Whether the state is [`QpState::ReadyToSend`]. Every post checks this.
    #[inline]
    pub(super) fn is_ready_to_send(&self) -> bool {
        self.index.load(Ordering::Acquire) == Self::READY_TO_SEND
    }

    /// Records that the queue pair has failed permanently.
    pub(super) fn fail(&self) {
        self.set(QpState::Error);
    }

    /// Prevents other threads from changing the state.
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    fn set(&self, state: QpState) {
        let index =
            (0u8..).zip(Self::STATES).find(|(_, other)| *other == state).map_or(0, |(index, _)| index);
        self.index.store(index, Ordering::Release);
    }
}

impl QueuePair {
    /// Connects the queue pair to a peer and moves it to the ready-to-send state. The peer must connect its queue pair
    /// to this queue pair's [endpoint](QueuePair::endpoint).
    ///
    /// # Errors
    ///
    /// Returns [`Error::WrongState`] if the queue pair is already connected, [`Error::InvalidRequest`] if it is a UD
    /// queue pair, and [`Error::CallFailed`] if the operation fails. The message names the addresses of both ends.
    pub fn connect(&self, remote: &Endpoint) -> Result<()> {
        self.connect_with(remote, &ConnectOptions::default())
    }

    /// Connects the queue pair to a peer, with options.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`connect`](QueuePair::connect), and [`Error::LimitExceeded`] if the MTU in the
    /// options is larger than the MTU of either port.
    pub fn connect_with(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        if self.transport == Transport::Ud {
            let reason = "datagrams need no connection: call `move_to_rts`, and set the destination of each";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let state = self.state.get();
        if state != QpState::Init {
            return Err(Error::WrongState { action: "connecting a queue pair", state });
        }
        let common = remote.common_mtu(self.source.port.active_mtu);
        let mtu = options.mtu.unwrap_or(common);
        if mtu > common {
            return Err(Error::LimitExceeded {
                limit: Limit::Mtu,
                requested: mtu.bytes().into(),
                max: common.bytes().into(),
            });
        }
        let attributes = self.domain.device().attributes();
        let rd_atomic = |max: u8| options.max_rd_atomic.unwrap_or(max.min(16));
        let connection = PeerEnd {
            address: self.source.address_of(remote.gid, remote.lid, options.traffic),
            qpn: remote.qpn,
            psn: remote.psn,
            mtu,
            max_dest_rd_atomic: rd_atomic(attributes.max_dest_rd_atomic),
            min_rnr_timer: options.min_rnr_timer,
        };
        self.change(&StateChange::ReadyToReceive(ReadyToReceive {
            transport: self.transport,
            connection: Some(connection),
        }))
        .map_err(|error| self.explain_connect(error, remote))?;
        self.change(&StateChange::ReadyToSend(ReadyToSend {
            transport: self.transport,
            psn: self.psn(),
            timeout: options.ack_timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: rd_atomic(attributes.max_rd_atomic),
        }))
    }

    /// Moves a UD queue pair to the ready-to-send state, in which it sends and receives datagrams.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if it is not a UD queue pair, [`Error::WrongState`] if it is already ready
    /// to send, and [`Error::CallFailed`] if the operation fails.
    pub fn move_to_rts(&self) -> Result<()> {
        if self.transport != Transport::Ud {
            let reason = "only a UD queue pair can be ready to send without a peer: call `connect`";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let state = self.state.get();
        if state != QpState::Init {
            return Err(Error::WrongState { action: "moving a UD queue pair to ready to send", state });
        }
        self.change(&StateChange::ReadyToReceive(ReadyToReceive {
            transport: self.transport,
            connection: None,
        }))?;
        self.change(&StateChange::ReadyToSend(ReadyToSend {
            transport: self.transport,
            psn: self.psn(),
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
        }))
    }

    /// Queries the queue pair's state from the device.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the query fails.
    pub fn state(&self) -> Result<QpState> {
        let _changing = self.state.lock();
        let state = self.backend.state()?;
        self.state.set(state);
        Ok(state)
    }

    /// Changes the operations that the peer may execute through this queue pair on memory whose registration allows
    /// them too. The queue pair must be connected.
    ///
    /// A program can create a queue pair with few [access rights](crate::QueuePairBuilder::access) and add more after
    /// it has authenticated the peer.
    ///
    /// # Errors
    ///
    /// Returns [`Error::WrongState`] if the queue pair is not ready to send, and [`Error::CallFailed`] if the operation
    /// fails.
    pub fn modify_access(&self, access: Access) -> Result<()> {
        let state = self.state.get();
        if state != QpState::ReadyToSend {
            return Err(Error::WrongState { action: "modifying the peer's access", state });
        }
        self.change(&StateChange::Access(access))
    }

    /// Moves the queue pair to the error state: all outstanding requests are flushed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the operation fails.
    pub fn move_to_error(&self) -> Result<()> {
        self.change(&StateChange::Error)
    }

    /// Resets the queue pair, so that it can be [connected](QueuePair::connect) again, with a new
    /// [endpoint](QueuePair::endpoint), and returns the outstanding requests, sends first and each queue's in the order
    /// of posting. The device no longer uses their memory, and they produce no completion. A
    /// [drain](QueuePair::begin_drain) that has not ended is canceled.
    ///
    /// A program can thus recover the memory of a queue pair that has failed, without waiting for its completions. A
    /// request that is returned may have been executed: a queue pair that has been [drained](QueuePair::drain) has none.
    ///
    /// ```no_run
    /// # fn example(queue_pair: &adverb::verbs::QueuePair) -> adverb::verbs::Result<()> {
    /// for request in queue_pair.reset()? {
    ///     println!("request {} of {} bytes was not completed", request.tag, request.payload.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the device can't reset the queue pair. If the queue pair can be reset, but not be
    /// moved to the init state, the call returns the requests all the same. Posting and connecting then return
    /// [`Error::WrongState`].
    pub fn reset(&self) -> Result<Vec<ReclaimedRequest>> {
        let psn = random_psn()?;
        // No thread can post meanwhile, so the outstanding requests are those that the device drops.
        let posting_locks = (self.send.lock(), self.recv.own().map(Attached::lock));
        self.free_windows();
        self.return_shared_receives();
        self.change(&StateChange::Reset)?;
        let left = self.take_all();
        // The device may keep the completions of requests before the reset. They are removed, because the queue pair has
        // reserved room in its completion queues for one round of requests only. A later poll returns an error that occurs
        // here.
        for completions in [self.send_completion_queue(), self.recv_completion_queue()] {
            let _ = completions.fetch_completions();
        }
        self.psn.store(psn.get(), Ordering::Relaxed);
        let moved = self.move_to_init();
        drop(posting_locks);
        if let Err(error) = moved {
            // The requests would be lost if this were an error of the call.
            tracing::warn!(error = %WithCauses(&error), "could not move a queue pair that was reset to the init state");
        }
        Ok(left.into_iter().map(|(tag, payload)| ReclaimedRequest { tag, payload }).collect())
    }

    /// Moves the queue pair from the reset state to the init state, in which receives may be posted.
    pub(super) fn move_to_init(&self) -> Result<()> {
        self.change(&StateChange::Init(Init {
            transport: self.transport,
            port: self.source.port.number,
            pkey_index: self.source.pkey_index,
            access: self.access,
            qkey: self.datagrams.qkey,
        }))
    }

    /// Removes all requests, after the device has dropped them, and returns their tags and memory, sends first.
    pub(super) fn take_all(&self) -> Vec<(u64, Payload)> {
        let mut left = self.send.take_all();
        left.extend(self.recv.own().map(Attached::take_all).unwrap_or_default());
        left
    }

    /// Changes the state at the device and records it.
    pub(crate) fn change(&self, change: &StateChange) -> Result<()> {
        let changing = self.state.lock();
        self.backend.modify(change)?;
        let from = self.state.get();
        let to = match change {
            StateChange::Reset => QpState::Reset,
            StateChange::Init(_) => QpState::Init,
            StateChange::ReadyToReceive(_) => QpState::ReadyToReceive,
            StateChange::ReadyToSend(_) => QpState::ReadyToSend,
            // The queue pair may have failed since the caller checked the state.
            StateChange::Access(_) => from,
            StateChange::Error => QpState::Error,
        };
        self.state.set(to);
        drop(changing);
        match change {
            StateChange::ReadyToReceive(ReadyToReceive { connection: Some(peer), .. }) => {
                self.set_peer(Some(peer.address.gid));
            }
            StateChange::Reset => self.set_peer(None),
            _ => {}
        }
        self.record_change(change, from, to);
        Ok(())
    }

    /// Sets the peer that the errors of failed requests contain.
    fn set_peer(&self, peer: Option<Gid>) {
        self.send.set_peer(peer);
        self.recv.own().into_iter().for_each(|recv| recv.set_peer(peer));
    }

    /// Adds the addresses of both ends to the error of a failed connect.
    fn explain_connect(&self, error: Error, remote: &Endpoint) -> Error {
        let Error::CallFailed { source, .. } = error else { return error };
        let (local_gid, remote_gid) = (self.source.gid.gid, remote.gid);
        let action = format!(
            "connecting queue pair {} of {} from {local_gid} (GID {}) to {remote_gid}",
            self.qpn(),
            self.domain.device().name(),
            self.source.gid_index
        );
        call_failed(Call::ResolvePeer, action, source)
    }

    /// Completes the receives that the queue pair took from a shared receive queue, before the queue pair is destroyed or
    /// reset. Afterwards, the receives' completions couldn't be matched to the queue pair, and the shared receive queue
    /// would lose these receives permanently.
    pub(super) fn return_shared_receives(&self) {
        if let Receives::Shared(queue) = &self.recv
            && !self.backend.is_destroyed()
        {
            // Failures are ignored: the queue pair is destroyed or reset next anyway.
            let _ = self.backend.modify(&StateChange::Error);
            let _ = queue.completion_queue().fetch_completions();
        }
    }

    pub(super) fn psn(&self) -> Psn {
        Psn::wrapping(self.psn.load(Ordering::Relaxed))
    }
}
