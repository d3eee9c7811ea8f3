//! Queue pairs.

mod address;
mod address_cache;
mod builder;
mod connect_options;
mod datagram;
mod drain;
mod multicast;
mod post;
mod query;
pub mod raw;
mod recording;
mod scope;
mod source;
mod state;
mod window;

pub use builder::QueuePairBuilder;
pub use connect_options::ConnectOptions;
pub use datagram::Datagram;
pub use scope::Scope;

use std::fmt;
use std::sync::atomic::AtomicU32;

use adverb_proto::trace::TraceEvent;
use adverb_proto::types::{Access, Endpoint, LinkLayer, Qpn, Transport};
use parking_lot::Mutex;

use datagram::Datagrams;
use source::Source;
use state::StateCell;

use crate::backend::{self, QueuePairLimits};
use crate::completion_queue::{Attached, AttachedShared, CompletionQueue};
use crate::device::ProtectionDomain;
use crate::error::WithCauses;
use crate::request::Completion;
use crate::stats::QueuePairStats;

/// A queue pair: a send queue and a receive queue, connected to those of a peer.
///
/// Any thread may post requests, and any thread may poll their completions.
///
/// Dropping a queue pair destroys it. Requests that are still in flight then produce no completion, and their buffers
/// are freed. To recover the buffers, call [`drain`](QueuePair::drain) first.
pub struct QueuePair {
    backend: backend::QueuePair,
    send: Attached,
    recv: Receives,
    transport: Transport,
    limits: QueuePairLimits,
    max_message_size: u32,
    pub(crate) source: Source,
    /// The [`Psn`] of the first packet.
    pub(crate) psn: AtomicU32,
    /// The state that this side last set or queried. The device may have moved the queue pair to the error state
    /// since.
    pub(crate) state: StateCell,
    access: Access,
    pub(crate) datagrams: Datagrams,
    /// The `Connected` event of a connected queue pair, if the backend doesn't record it.
    connection: Mutex<Option<Box<TraceEvent>>>,
    domain: ProtectionDomain,
}

/// The source of a queue pair's receive requests.
enum Receives {
    Own(Box<Attached>),
    Shared(AttachedShared),
}

impl Receives {
    /// Returns the queue pair's own receive queue, if it has one.
    #[inline]
    fn own(&self) -> Option<&Attached> {
        match self {
            Receives::Own(queue) => Some(queue),
            Receives::Shared(_) => None,
        }
    }
}

impl QueuePair {
    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.backend.qpn()
    }

    /// Returns the transport.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns the maximum length of a message, in bytes.
    pub fn max_message_size(&self) -> u32 {
        self.max_message_size
    }

    /// Returns the protection domain that the queue pair belongs to.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the completion queue of the send queue.
    pub fn send_completion_queue(&self) -> &CompletionQueue {
        self.send.completion_queue()
    }

    /// Returns the completion queue of the receive queue.
    pub fn recv_completion_queue(&self) -> &CompletionQueue {
        match &self.recv {
            Receives::Own(queue) => queue.completion_queue(),
            Receives::Shared(queue) => queue.completion_queue(),
        }
    }

    /// Whether the queue pair takes its receive requests from a shared receive queue.
    pub(crate) fn has_shared_receives(&self) -> bool {
        self.recv.own().is_none()
    }

    /// Returns the link layer of the queue pair's port.
    pub fn link_layer(&self) -> LinkLayer {
        self.source.port.link_layer
    }

    /// Returns the endpoint: the data that a peer needs to connect to this queue pair.
    pub fn endpoint(&self) -> Endpoint {
        let mut endpoint = Endpoint::new(self.source.gid.gid, self.qpn(), self.psn());
        endpoint.lid = self.source.port.lid;
        endpoint.mtu = self.source.port.active_mtu.bytes();
        endpoint
    }

    /// Returns the statistics of both queues.
    pub fn stats(&self) -> QueuePairStats {
        let recv = self.recv.own().map(Attached::stats).unwrap_or_default();
        QueuePairStats { send: self.send.stats(), recv }
    }

    /// Returns the number of outstanding send requests.
    pub fn outstanding_send_count(&self) -> u32 {
        self.send.lock().len()
    }

    /// Returns the number of outstanding receive requests in the queue pair's own receive queue. The number is 0 if the
    /// queue pair uses a shared receive queue.
    pub fn outstanding_recv_count(&self) -> u32 {
        self.recv.own().map_or(0, |queue| queue.lock().len())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.domain.device().is_owned() {
            return;
        }
        self.free_windows();
        self.datagrams.memberships.leave_all(&self.backend);
        self.return_shared_receives();
        let destroyed = self.backend.destroy();
        let left = self.take_all();
        if let Err(error) = destroyed {
            // The device may still use the memory, so it is leaked. This happens before logging, because a log
            // subscriber may panic.
            let requests = left.len();
            std::mem::forget(left);
            tracing::error!(error = %WithCauses(&error), requests, "destroying a queue pair failed; its buffers are leaked");
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

// These auto traits are part of the API: a program may post from one thread and poll from another.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<QueuePair>();
    const fn sent_between_threads<T: Send>() {}
    sent_between_threads::<Completion>();
};
