//! The builder of queue pairs.

use std::net::IpAddr;

use adverb_proto::explain::Call;
use adverb_proto::trace::Queue;
use adverb_proto::types::{Access, FlushCapabilities, LinkLayer, Psn, Transport};
use parking_lot::Mutex;

use super::datagram::Datagrams;
use super::source::Source;
use super::state::StateCell;
use super::{QueuePair, Receives};
use crate::backend::QueuePairOptions;
use crate::completion_queue::{Attached, CompletionQueue};
use crate::device::{ProtectionDomain, Traffic};
use crate::error::{Error, Limit, NoDeviceReason, Result, call_failed};
use crate::shared_receive_queue::SharedReceiveQueue;

/// A builder of queue pairs, returned by [`ProtectionDomain::queue_pair`].
///
/// ```no_run
/// # use adverb::verbs::{Device, Transport};
/// let device = Device::open_first()?;
/// let domain = device.create_protection_domain()?;
/// let completions = device.completion_queue(256).create()?;
/// let queue_pair = domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(128, 128).create()?;
/// # Ok::<(), adverb::Error>(())
/// ```
#[must_use = "a builder does nothing until `create` is called"]
#[derive(Clone, Debug)]
pub struct QueuePairBuilder {
    domain: ProtectionDomain,
    transport: Transport,
    send_cq: Option<CompletionQueue>,
    recv_cq: Option<CompletionQueue>,
    send_depth: u32,
    recv_depth: u32,
    send_segments: u32,
    recv_segments: u32,
    inline: u32,
    access: Access,
    port: u8,
    address: Option<IpAddr>,
    gid_index: Option<u8>,
    pkey_index: u16,
    qkey: u32,
    traffic: Traffic,
    shared: Option<SharedReceiveQueue>,
}

impl ProtectionDomain {
    /// Returns a builder of a queue pair.
    pub fn queue_pair(&self, transport: Transport) -> QueuePairBuilder {
        QueuePairBuilder::new(self, transport)
    }
}

impl QueuePairBuilder {
    fn new(domain: &ProtectionDomain, transport: Transport) -> QueuePairBuilder {
        QueuePairBuilder {
            domain: domain.clone(),
            transport,
            send_cq: None,
            recv_cq: None,
            send_depth: 64,
            recv_depth: 64,
            send_segments: 1,
            recv_segments: 1,
            inline: 0,
            access: default_access(domain.device().attributes().flush),
            port: 1,
            address: None,
            gid_index: None,
            pkey_index: 0,
            qkey: 0,
            traffic: Traffic::new(),
            shared: None,
        }
    }

    /// Sets the completion queue of both queues.
    pub fn completion_queue(self, queue: &CompletionQueue) -> QueuePairBuilder {
        self.send_completion_queue(queue).recv_completion_queue(queue)
    }

    /// Sets the completion queue of the send queue.
    pub fn send_completion_queue(mut self, queue: &CompletionQueue) -> QueuePairBuilder {
        self.send_cq = Some(queue.clone());
        self
    }

    /// Sets the completion queue of the receive queue.
    pub fn recv_completion_queue(mut self, queue: &CompletionQueue) -> QueuePairBuilder {
        self.recv_cq = Some(queue.clone());
        self
    }

    /// Sets the maximum number of outstanding send and receive requests. The default is 64 each.
    pub fn depth(mut self, send: u32, recv: u32) -> QueuePairBuilder {
        (self.send_depth, self.recv_depth) = (send, recv);
        self
    }

    /// Sets the maximum number of scatter/gather elements (segments of memory) of a send and of a receive request. The
    /// default is 1 each.
    pub fn max_sge(mut self, send: u32, recv: u32) -> QueuePairBuilder {
        (self.send_segments, self.recv_segments) = (send, recv);
        self
    }

    /// Sets the maximum number of bytes of an [inline](crate::SendRequest::inline) request. The default is 0.
    pub fn max_inline_data(mut self, bytes: u32) -> QueuePairBuilder {
        self.inline = bytes;
        self
    }

    /// Sets the operations that the peer may execute through this queue pair on memory whose registration allows them
    /// too. The default is remote write, remote read, remote atomics, and the kinds of FLUSH that the device supports.
    pub fn access(mut self, access: Access) -> QueuePairBuilder {
        self.access = access;
        self
    }

    /// Sets the device's port. The default is 1.
    pub fn port(mut self, port: u8) -> QueuePairBuilder {
        self.port = port;
        self
    }

    /// Sets the local IP address, which selects a GID of the port: see [`Device::gid_for`](crate::Device::gid_for). On
    /// InfiniBand, the address is ignored.
    pub fn local_addr(mut self, address: IpAddr) -> QueuePairBuilder {
        self.address = Some(address);
        self
    }

    /// Sets the index in the port's GID table. By default, Adverb chooses the index: see
    /// [`Device::gid_for`](crate::Device::gid_for).
    pub fn gid_index(mut self, index: u8) -> QueuePairBuilder {
        self.gid_index = Some(index);
        self
    }

    /// Sets the index in the port's partition key table. The default is 0.
    pub fn pkey_index(mut self, index: u16) -> QueuePairBuilder {
        self.pkey_index = index;
        self
    }

    /// Sets the queue key of a UD queue pair, which drops datagrams with a different key. The default is 0.
    pub fn qkey(mut self, qkey: u32) -> QueuePairBuilder {
        self.qkey = qkey;
        self
    }

    /// Sets the traffic options of the packets. The options of a connection or an address handle take precedence.
    pub fn traffic(mut self, traffic: Traffic) -> QueuePairBuilder {
        self.traffic = traffic;
        self
    }

    /// Sets a shared receive queue, which the queue pair uses instead of its own receive queue.
    pub fn shared_receive_queue(mut self, queue: &SharedReceiveQueue) -> QueuePairBuilder {
        self.shared = Some(queue.clone());
        self
    }

    /// Creates the queue pair. Receives may be posted to it, and it can be [connected](QueuePair::connect) or, for
    /// UD, [moved to ready-to-send](QueuePair::move_to_rts).
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if no completion queue was set, [`Error::LimitExceeded`] if a completion queue
    /// has too few free entries or a limit of the device is exceeded, [`Error::NoDevice`] if the port doesn't have the
    /// address or the GID index, and [`Error::CallFailed`] if the operation fails.
    pub fn create(self) -> Result<QueuePair> {
        let device = self.domain.device().clone();
        let (Some(send_cq), Some(recv_cq)) = (&self.send_cq, &self.recv_cq) else {
            let reason = "a queue pair requires a completion queue: call `completion_queue` before `create`";
            return Err(Error::InvalidRequest { reason: reason.into() });
        };
        let limits = [
            (Limit::SendQueueDepth, self.send_depth, device.attributes().max_queue_depth),
            (Limit::RecvQueueDepth, self.recv_depth, device.attributes().max_queue_depth),
            (Limit::SendSegments, self.send_segments, device.attributes().max_sge),
            (Limit::RecvSegments, self.recv_segments, device.attributes().max_sge),
        ];
        for (limit, requested, max) in limits {
            if requested == 0 || requested > max {
                let (requested, max) = (requested.into(), max.into());
                return Err(Error::LimitExceeded { limit, requested, max });
            }
        }
        let port = device.port(self.port)?;
        // The default index isn't checked here: the device rejects it if it is invalid.
        if self.pkey_index > 0 && self.pkey_index >= port.pkey_table_len {
            return Err(Error::LimitExceeded {
                limit: Limit::PkeyIndex,
                requested: self.pkey_index.into(),
                max: port.pkey_table_len.saturating_sub(1).into(),
            });
        }
        let gid = match (self.gid_index, port.link_layer) {
            (Some(index), _) => {
                let gids = device.gids()?;
                let found =
                    gids.iter().find(|entry| entry.port == self.port && entry.index == u32::from(index));
                found.cloned().ok_or_else(|| Error::NoDevice {
                    problem: format!("port {} of {} has no GID with index {index}", self.port, device.name())
                        .into(),
                    reason: NoDeviceReason::NoGid,
                    available: Box::default(),
                })?
            }
            (None, LinkLayer::InfiniBand) => device.gid_for(self.port, None)?,
            (None, _) => device.gid_for(self.port, self.address)?,
        };
        let gid_index = u8::try_from(gid.index).map_err(|_| Error::LimitExceeded {
            limit: Limit::GidIndex,
            requested: gid.index.into(),
            max: 255,
        })?;

        // Entries are reserved before the queue pair exists, so that its completions always fit.
        if self.shared.is_none() && send_cq.is_same(recv_cq) {
            // The error must have the need of both queues, and not first that of one of them.
            send_cq.check_free(u64::from(self.send_depth) + u64::from(self.recv_depth))?;
        }
        let send: Attached = send_cq.attach(self.send_depth, Queue::Send, self.transport)?;
        let recv = match &self.shared {
            Some(shared) => Receives::Shared(recv_cq.attach_shared(shared)?),
            None => Receives::Own(Box::new(recv_cq.attach(self.recv_depth, Queue::Recv, self.transport)?)),
        };
        if let (Transport::Ud, Receives::Shared(shared)) = (self.transport, &recv) {
            shared.queue.lock().mark_datagrams();
        }
        let shared = self.shared.as_ref().map(SharedReceiveQueue::backend);
        let options = QueuePairOptions {
            transport: self.transport,
            send_depth: self.send_depth,
            recv_depth: self.recv_depth,
            send_segments: self.send_segments,
            recv_segments: self.recv_segments,
            inline: self.inline,
        };
        let (backend, limits) =
            self.domain.backend().queue_pair(send_cq.backend(), recv_cq.backend(), shared, &options)?;
        if device.backend().recorder().is_some() {
            send.set_qpn(backend.qpn());
            recv.own().into_iter().for_each(|recv| recv.set_qpn(backend.qpn()));
        }
        let queue_pair = QueuePair {
            backend,
            send,
            recv,
            state: StateCell::new(),
            transport: self.transport,
            limits,
            max_message_size: match self.transport {
                // A datagram is one packet.
                Transport::Ud => u32::from(port.active_mtu.bytes()),
                _ => port.max_message_size,
            },
            source: Source { port, gid, gid_index, pkey_index: self.pkey_index, traffic: self.traffic },
            psn: random_psn()?.get().into(),
            access: self.access,
            datagrams: Datagrams::new(self.qkey),
            connection: Mutex::default(),
            domain: self.domain,
        };
        queue_pair.move_to_init()?;
        Ok(queue_pair)
    }
}

/// Returns the default access rights of a queue pair: all, except the kinds of FLUSH that the device does not support.
fn default_access(flush: FlushCapabilities) -> Access {
    let mut access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    access.set(Access::FLUSH_GLOBAL, flush.global);
    access.set(Access::FLUSH_PERSISTENT, flush.persistent);
    access
}

/// Returns the PSN of a queue pair's first packet. It is random, so that neither a packet of an earlier connection
/// nor a guessed one is accepted.
pub(super) fn random_psn() -> Result<Psn> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes)
        .map_err(|error| call_failed(Call::System, "reading random bytes", std::io::Error::other(error)))?;
    Ok(Psn::wrapping(u32::from_ne_bytes(bytes)))
}
