//! The states of a queue pair, and the calls that change them.

use std::sync::atomic::{AtomicU8, Ordering};

use adverb_proto::explain::Call;
use adverb_proto::types::{Access, Endpoint, Gid, Psn, QpState, Transport};

use super::builder::random_psn;
use super::{ConnectOptions, QueuePair, Receives};
use crate::backend::{Init, PeerEnd, ReadyToReceive, ReadyToSend, StateChange};
use crate::completion_queue::Attached;
use crate::error::{Error, Limit, Result, call_failed};
use crate::memory::Payload;

/// A [`QpState`] that is read by every post.
pub(crate) struct StateCell(AtomicU8);

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
        StateCell(AtomicU8::new(0))
    }

    pub(crate) fn get(&self) -> QpState {
        Self::STATES[usize::from(self.0.load(Ordering::Acquire)) % Self::STATES.len()]
    }

    /// Whether the state is [`QpState::ReadyToSend`]. Every post checks this.
    #[inline]
    pub(super) fn is_ready_to_send(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::READY_TO_SEND
    }

    /// Records that the queue pair has failed permanently.
    pub(super) fn fail(&self) {
        self.set(QpState::Error);
    }

    fn set(&self, state: QpState) {
        let index =
            (0u8..).zip(Self::STATES).find(|(_, other)| *other == state).map_or(0, |(index, _)| index);
        self.0.store(index, Ordering::Release);
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
    /// [endpoint](QueuePair::endpoint). Outstanding requests produce no completion; the call returns their payloads,
    /// those of send requests first.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the operation fails.
    pub fn reset(&self) -> Result<Vec<Payload>> {
        // No thread can post meanwhile, so the outstanding requests are those that the device drops.
        let _posting_locks = (self.send.lock(), self.recv.own().map(Attached::lock));
        self.free_windows();
        self.change(&StateChange::Reset)?;
        let left = self.take_all().into_iter().map(|(_, memory)| memory).collect();
        self.psn.store(random_psn()?.get(), Ordering::Relaxed);
        self.move_to_init()?;
        Ok(left)
    }

    /// Resets the queue pair and returns the tags and the memory of requests that did not complete, sends first. The
    /// queue pair can't be used afterwards.
    pub(crate) fn reset_and_reclaim(&self) -> Result<Vec<(u64, Payload)>> {
        let _posting_locks = (self.send.lock(), self.recv.own().map(Attached::lock));
        self.change(&StateChange::Reset)?;
        Ok(self.take_all())
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
        self.backend.modify(change)?;
        let from = self.state.get();
        let to = match change {
            StateChange::Reset => QpState::Reset,
            StateChange::Init(_) => QpState::Init,
            StateChange::ReadyToReceive(_) => QpState::ReadyToReceive,
            StateChange::ReadyToSend(_) | StateChange::Access(_) => QpState::ReadyToSend,
            StateChange::Error => QpState::Error,
        };
        self.state.set(to);
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

    /// Completes the receives that the queue pair took from a shared receive queue, before the queue pair is destroyed.
    /// Afterwards, the receives' completions couldn't be matched to the queue pair, and the shared receive queue would
    /// lose these receives permanently.
    pub(super) fn return_shared_receives(&self) {
        if let Receives::Shared(queue) = &self.recv
            && !self.backend.is_destroyed()
        {
            // Failures are ignored: the queue pair is destroyed next anyway.
            let _ = self.backend.modify(&StateChange::Error);
            let _ = queue.completion_queue().fetch_completions();
        }
    }

    pub(super) fn psn(&self) -> Psn {
        Psn::wrapping(self.psn.load(Ordering::Relaxed))
    }
}
