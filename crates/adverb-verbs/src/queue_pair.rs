//! Queue pairs: where work is posted.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use adverb_proto::types::{Access, Gid, Psn, QpState, Qpn, Transport};

use super::address_cache::AddressCache;
use super::completion_queue::{Attached, AttachedShared};
use super::deadline::Deadline;
use super::multicast::Memberships;
use super::queue_pair_builder::random_psn;
use super::stats::QueuePairStats;
use super::{
    Completion, CompletionQueue, ConnectOptions, Endpoint, GidEntry, LinkLayer, Port, ProtectionDomain,
    Traffic,
};
use crate::backend::{
    self, Address, Connection, Init, QueuePairLimits, ReadyToReceive, ReadyToSend, StateChange,
};
use crate::error::{Error, Result};
use crate::memory::Payload;

/// A queue pair: a send queue and a receive queue, connected to those of a peer.
///
/// Requests may be posted from any thread, and completions polled from any other.
///
/// Dropping it destroys it. Requests that it still has then come to nothing: their buffers are freed, and no completion
/// comes. [`drain`](QueuePair::drain) gets them back first.
pub struct QueuePair {
    pub(super) backend: backend::QueuePair,
    pub(super) send: Attached,
    pub(super) recv: Receives,
    pub(super) transport: Transport,
    pub(super) limits: QueuePairLimits,
    pub(super) max_message_size: u32,
    pub(super) port: Port,
    pub(super) gid: GidEntry,
    pub(super) gid_index: u8,
    /// Where its packets begin to count: a [`Psn`].
    pub(super) psn: AtomicU32,
    /// As far as this side has brought it; the device may have gone on to the error state.
    pub(super) state: StateCell,
    pub(super) access: Access,
    pub(super) pkey_index: u16,
    pub(super) qkey: u32,
    pub(super) memberships: Memberships,
    pub(super) traffic: Traffic,
    pub(super) addresses: AddressCache,
    pub(super) domain: ProtectionDomain,
}

/// Where a queue pair's receives come from.
pub(super) enum Receives {
    Own(Box<Attached>),
    Shared(AttachedShared),
}

impl Receives {
    /// The queue pair's own queue, if it has one.
    #[inline]
    pub(super) fn own(&self) -> Option<&Attached> {
        match self {
            Receives::Own(queue) => Some(queue),
            Receives::Shared(_) => None,
        }
    }
}

/// A [`QpState`] that is read by every post.
pub(super) struct StateCell(AtomicU8);

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

    /// The place of [`QpState::ReadyToSend`] among them.
    const READY_TO_SEND: u8 = 3;

    pub(super) fn new() -> StateCell {
        StateCell(AtomicU8::new(0))
    }

    pub(super) fn get(&self) -> QpState {
        Self::STATES[usize::from(self.0.load(Ordering::Acquire)) % Self::STATES.len()]
    }

    /// Whether it is the state of work: what every post asks.
    #[inline]
    pub(super) fn is_ready_to_send(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::READY_TO_SEND
    }

    /// Notes that the queue pair has failed for good.
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
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.backend.qpn()
    }

    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns the maximum length of a message, in bytes.
    pub fn max_message_size(&self) -> u32 {
        self.max_message_size
    }

    /// The protection domain that it belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Where the completions of its send queue go.
    pub fn send_completion_queue(&self) -> &CompletionQueue {
        self.send.completion_queue()
    }

    /// Where the completions of its receive queue go.
    pub fn recv_completion_queue(&self) -> &CompletionQueue {
        match &self.recv {
            Receives::Own(queue) => queue.completion_queue(),
            Receives::Shared(queue) => queue.completion_queue(),
        }
    }

    /// Returns the link layer of its port.
    pub fn link_layer(&self) -> LinkLayer {
        self.port.link_layer
    }

    /// What a peer must know to connect to it.
    pub fn endpoint(&self) -> Endpoint {
        let mut endpoint = Endpoint::new(self.gid.gid, self.qpn(), self.psn());
        endpoint.lid = self.port.lid;
        endpoint.mtu = self.port.active_mtu.bytes();
        endpoint
    }

    /// Connects it to a peer, which must do the same with this one's [endpoint](QueuePair::endpoint).
    ///
    /// # Errors
    ///
    /// If it is connected already, or the device refuses: the error says what of the addresses looks wrong.
    pub fn connect(&self, remote: &Endpoint) -> Result<()> {
        self.connect_with(remote, &ConnectOptions::default())
    }

    /// Connects it to a peer, with options.
    ///
    /// # Errors
    ///
    /// As [`connect`](QueuePair::connect), and if the MTU of the options is more than both ports have.
    pub fn connect_with(&self, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
        if self.transport == Transport::Ud {
            let reason = "datagrams need no connection: call `move_to_rts`, and name the recipient of each";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let state = self.state.get();
        if state != QpState::Init {
            let hint = "a queue pair is connected once; `reset` it to connect it again";
            return Err(Error::WrongState { action: "connecting", state, hint });
        }
        let common = remote.common_mtu(self.port.active_mtu);
        let mtu = options.mtu.unwrap_or(common);
        if mtu > common {
            return Err(Error::LimitExceeded {
                quantity: "the MTU of a connection".into(),
                requested: mtu.bytes().into(),
                max: common.bytes().into(),
                hint: "both ports must have it".into(),
            });
        }
        let attributes = self.domain.device().attributes();
        let rd_atomic = |most: u8| options.max_rd_atomic.unwrap_or(most.min(16));
        let connection = Connection {
            address: self.address_of(remote.gid, remote.lid, options.traffic),
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
            timeout: options.timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: rd_atomic(attributes.max_rd_atomic),
        }))
    }

    /// Makes a datagram queue pair ready to send and receive.
    ///
    /// # Errors
    ///
    /// If it isn't for datagrams, is active already, or the device refuses.
    pub fn move_to_rts(&self) -> Result<()> {
        if self.transport != Transport::Ud {
            let reason = "only a datagram queue pair is active without a peer: call `connect`";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let state = self.state.get();
        if state != QpState::Init {
            let hint = "a queue pair is activated once; `reset` it to do so again";
            return Err(Error::WrongState { action: "activating", state, hint });
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

    /// The way from here to a port.
    pub(super) fn address_of(&self, gid: Gid, lid: u16, traffic: Traffic) -> Address {
        let subnet = |gid: Gid| gid.bytes().first_chunk::<8>().copied();
        let mut address = Address {
            gid,
            lid,
            port: self.port.number,
            gid_index: self.gid_index,
            uses_grh: self.port.link_layer == LinkLayer::Ethernet
                || self.port.needs_grh
                || subnet(gid) != subnet(self.gid.gid),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            service_level: 0,
        };
        self.traffic(traffic).apply(&mut address);
        address
    }

    /// How the network is to treat packets, as far as anybody says: whoever is nearer is asked first.
    pub(super) fn traffic(&self, nearer: Traffic) -> Traffic {
        nearer.or(self.traffic).or(Traffic::process_default())
    }

    /// The state as the device has it.
    ///
    /// # Errors
    ///
    /// If it can't be asked.
    pub fn state(&self) -> Result<QpState> {
        let state = self.backend.state()?;
        self.state.set(state);
        Ok(state)
    }

    /// Changes what the peer may do through this queue pair, where memory allows it too. It must be connected.
    ///
    /// A queue pair that was made with few [rights](super::QueuePairBuilder::access) can be given more once the peer has shown
    /// who it is.
    ///
    /// # Errors
    ///
    /// If it isn't ready to send, or the device refuses.
    pub fn modify_access(&self, access: Access) -> Result<()> {
        let state = self.state.get();
        if state != QpState::ReadyToSend {
            let hint = "connect it first; what it is made with is said by `QueuePairBuilder::access`";
            return Err(Error::WrongState { action: "changing a peer's rights", state, hint });
        }
        self.change(&StateChange::Access(access))
    }

    /// Moves it to the error state: all requests that it has come back flushed.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    pub fn move_to_error(&self) -> Result<()> {
        self.change(&StateChange::Error)
    }

    /// Moves it to the error state, and waits until all its requests have come back. Their completions, and those of
    /// other queue pairs that came meanwhile, are then to be had from the completion queues.
    ///
    /// Requests that asked for no completion and succeeded come back with the completion of a later one, here as anywhere: if
    /// there is none, this waits in vain. [`reset`](QueuePair::reset) gives their memory back.
    ///
    /// # Errors
    ///
    /// If they don't come in time, or the device refuses.
    pub fn drain(&self, timeout: Duration) -> Result<()> {
        self.move_to_error()?;
        let deadline = Deadline::new(timeout);
        loop {
            self.send_completion_queue().gather()?;
            self.recv_completion_queue().gather()?;
            if self.outstanding_send_count() == 0 && self.outstanding_recv_count() == 0 {
                return Ok(());
            }
            if deadline.left().is_zero() {
                return Err(Error::Timeout { timeout, action: "draining a queue pair" });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Makes it as new: ready to be [connected](QueuePair::connect) again, with another
    /// [endpoint](QueuePair::endpoint). The requests that it had come to nothing; their memory is returned, sends first.
    ///
    /// # Errors
    ///
    /// If the device refuses.
    pub fn reset(&self) -> Result<Vec<Payload>> {
        // Nobody posts meanwhile, so that what is outstanding is what the device forgets.
        let _nobody_posts = (self.send.lock(), self.recv.own().map(Attached::lock));
        self.free_windows();
        self.change(&StateChange::Reset)?;
        let left = self.take_all().into_iter().map(|(_, memory)| memory).collect();
        self.psn.store(random_psn()?.get(), Ordering::Relaxed);
        self.initialise()?;
        Ok(left)
    }

    /// Has the device forget all its requests, of which those come back that nobody has heard of: tags and memory, sends first.
    /// It isn't good for anything then.
    pub(crate) fn reset_and_reclaim(&self) -> Result<Vec<(u64, Payload)>> {
        let _nobody_posts = (self.send.lock(), self.recv.own().map(Attached::lock));
        self.change(&StateChange::Reset)?;
        Ok(self.take_all())
    }

    /// Brings it from the reset state to one in which receives may be posted.
    pub(super) fn initialise(&self) -> Result<()> {
        self.change(&StateChange::Init(Init {
            transport: self.transport,
            port: self.port.number,
            pkey_index: self.pkey_index,
            access: self.access,
            qkey: self.qkey,
        }))
    }

    /// What it has done.
    pub fn stats(&self) -> QueuePairStats {
        let recv = self.recv.own().map(Attached::stats).unwrap_or_default();
        QueuePairStats { send: self.send.stats(), recv }
    }

    /// How many send requests are outstanding.
    pub fn outstanding_send_count(&self) -> u32 {
        self.send.lock().len()
    }

    /// How many receive requests are outstanding in its own queue: none, if it has a shared one.
    pub fn outstanding_recv_count(&self) -> u32 {
        self.recv.own().map_or(0, |queue| queue.lock().len())
    }

    /// The tags and the memory of all its requests, sends first: for when the device has forgotten them.
    pub(super) fn take_all(&self) -> Vec<(u64, Payload)> {
        let mut left = self.send.take_all();
        left.extend(self.recv.own().map(Attached::take_all).unwrap_or_default());
        left
    }

    /// Changes the state, here and at the device.
    pub(super) fn change(&self, change: &StateChange) -> Result<()> {
        self.backend.modify(change)?;
        self.state.set(match change {
            StateChange::Reset => QpState::Reset,
            StateChange::Init(_) => QpState::Init,
            StateChange::ReadyToReceive(_) => QpState::ReadyToReceive,
            StateChange::ReadyToSend(_) | StateChange::Access(_) => QpState::ReadyToSend,
            StateChange::Error => QpState::Error,
        });
        Ok(())
    }

    /// Adds to a refused connection what looks wrong with its addresses.
    fn explain_connect(&self, error: Error, remote: &Endpoint) -> Error {
        let Error::Verb { action, error, .. } = error else { return error };
        let (ours, theirs) = (self.gid.gid, remote.gid);
        let hint = if ours.is_link_local() != theirs.is_link_local()
            || ours.udp_address().is_ipv4() != theirs.udp_address().is_ipv4()
        {
            format!(
                "GID index {} of {} is {ours}, and the peer's is {theirs}: name an address of the peer's kind with \
                 `address`",
                self.gid_index,
                self.domain.device().name()
            )
        } else {
            format!("is there a route from {} to {}?", ours.udp_address().ip(), theirs.udp_address().ip())
        };
        Error::Verb { action, error, hint: hint.into() }
    }

    /// Has the receives that it took from a shared receive queue complete, before it is destroyed: afterwards their
    /// completions could no longer be told from those of strangers, and the shared queue would be short of them for good.
    pub(super) fn return_shared_receives(&self) {
        if let Receives::Shared(queue) = &self.recv
            && !self.backend.is_gone()
        {
            // If either fails, there is nothing to be had from a device that is to be left anyway.
            let _ = self.backend.modify(&StateChange::Error);
            let _ = queue.completion_queue().gather();
        }
    }

    fn psn(&self) -> Psn {
        Psn::wrapping(self.psn.load(Ordering::Relaxed))
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.domain.device().is_ours() {
            return;
        }
        self.free_windows();
        self.memberships.leave_all(&self.backend);
        self.return_shared_receives();
        let destroyed = self.backend.destroy();
        let left = self.take_all();
        if let Err(error) = destroyed {
            // The device may still use the memory: better lost than written to. Lost first: a subscriber may panic.
            let requests = left.len();
            std::mem::forget(left);
            tracing::error!(%error, requests, "a queue pair could not be destroyed; its buffers are leaked");
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.qpn())
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

// What the compiler finds out here is part of the API: post from one thread, poll from another.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<QueuePair>();
    const fn sent_between_threads<T: Send>() {}
    sent_between_threads::<Completion>();
};
