//! Making a queue pair.

use std::net::IpAddr;

use adverb_proto::types::{Access, Psn, Transport};

use super::address_cache::AddressCache;
use super::completion_queue::Attached;
use super::multicast::Memberships;
use super::queue_pair::{QueuePair, Receives, StateCell};
use super::{CompletionQueue, LinkLayer, ProtectionDomain, SharedReceiveQueue, Traffic};
use crate::backend::QueuePairOptions;
use crate::error::{Error, Result};

/// Makes a queue pair: see [`ProtectionDomain::queue_pair`].
///
/// ```no_run
/// # use adverb::verbs::{Device, Transport};
/// let device = Device::first()?;
/// let domain = device.protection_domain()?;
/// let completions = device.completion_queue(256).create()?;
/// let queue_pair = domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(128, 128).create()?;
/// # Ok::<(), adverb::Error>(())
/// ```
#[must_use = "nothing is made until `create` is called"]
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

impl QueuePairBuilder {
    pub(super) fn new(domain: &ProtectionDomain, transport: Transport) -> QueuePairBuilder {
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
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            port: 1,
            address: None,
            gid_index: None,
            pkey_index: 0,
            qkey: 0,
            traffic: Traffic::new(),
            shared: None,
        }
    }

    /// Where the completions of both queues go.
    pub fn completion_queue(self, queue: &CompletionQueue) -> QueuePairBuilder {
        self.send_completion_queue(queue).recv_completion_queue(queue)
    }

    /// Where the completions of the send queue go.
    pub fn send_completion_queue(mut self, queue: &CompletionQueue) -> QueuePairBuilder {
        self.send_cq = Some(queue.clone());
        self
    }

    /// Where the completions of the receive queue go.
    pub fn recv_completion_queue(mut self, queue: &CompletionQueue) -> QueuePairBuilder {
        self.recv_cq = Some(queue.clone());
        self
    }

    /// How many send and receive requests may be outstanding: 64 each unless set.
    pub fn depth(mut self, send: u32, recv: u32) -> QueuePairBuilder {
        (self.send_depth, self.recv_depth) = (send, recv);
        self
    }

    /// How many pieces of memory a send and a receive request may have: 1 each unless set.
    pub fn max_sge(mut self, send: u32, recv: u32) -> QueuePairBuilder {
        (self.send_segments, self.recv_segments) = (send, recv);
        self
    }

    /// How many bytes a request may have that is [inlined](super::SendRequest::inline): 0 unless set.
    pub fn max_inline_data(mut self, bytes: u32) -> QueuePairBuilder {
        self.inline = bytes;
        self
    }

    /// What the peer may do through this queue pair, where memory allows it too: writing, reading and atomics unless
    /// set.
    pub fn access(mut self, access: Access) -> QueuePairBuilder {
        self.access = access;
        self
    }

    /// The device's port: 1 unless set.
    pub fn port(mut self, port: u8) -> QueuePairBuilder {
        self.port = port;
        self
    }

    /// The address of the port to use, if it has several: see [`Device::gid_for`](super::Device::gid_for).
    pub fn address(mut self, address: IpAddr) -> QueuePairBuilder {
        self.address = Some(address);
        self
    }

    /// The index in the port's GID table to use, for those who know it.
    pub fn gid_index(mut self, index: u8) -> QueuePairBuilder {
        self.gid_index = Some(index);
        self
    }

    /// The index in the port's table of partition keys: 0 unless set.
    pub fn pkey_index(mut self, index: u16) -> QueuePairBuilder {
        self.pkey_index = index;
        self
    }

    /// The queue key of a datagram queue pair: it drops datagrams that come with another. 0 unless set.
    pub fn qkey(mut self, qkey: u32) -> QueuePairBuilder {
        self.qkey = qkey;
        self
    }

    /// How the network is to treat its packets, unless a connection or an address handle says otherwise.
    pub fn traffic(mut self, traffic: Traffic) -> QueuePairBuilder {
        self.traffic = traffic;
        self
    }

    /// Takes receives from a queue that is shared, instead of one of its own.
    pub fn shared_receive_queue(mut self, queue: &SharedReceiveQueue) -> QueuePairBuilder {
        self.shared = Some(queue.clone());
        self
    }

    /// Makes it. It is ready to have receives posted, and to be [connected](QueuePair::connect) or, for datagrams,
    /// [activated](QueuePair::move_to_rts).
    ///
    /// # Errors
    ///
    /// If a completion queue is missing or too small, a limit is passed, or the device has no more.
    pub fn create(self) -> Result<QueuePair> {
        let device = self.domain.device().clone();
        let (Some(send_cq), Some(recv_cq)) = (&self.send_cq, &self.recv_cq) else {
            let reason = "a queue pair needs a completion queue: call `completion_queue` before `create`";
            return Err(Error::InvalidRequest { reason: reason.into() });
        };
        let limits = [
            ("the depth of a send queue", self.send_depth, device.attributes().max_queue_depth),
            ("the depth of a receive queue", self.recv_depth, device.attributes().max_queue_depth),
            ("the number of segments of a send request", self.send_segments, device.attributes().max_sge),
            ("the number of segments of a receive request", self.recv_segments, device.attributes().max_sge),
        ];
        for (what, asked, most) in limits {
            if asked == 0 || asked > most {
                let hint = "it must be at least 1".into();
                return Err(Error::LimitExceeded {
                    quantity: what.into(),
                    requested: asked.into(),
                    max: most.into(),
                    hint,
                });
            }
        }
        let port = device.port(self.port)?;
        // What is there unless one is set isn't asked about: it is the device's to refuse.
        if self.pkey_index > 0 && self.pkey_index >= port.pkey_table_len {
            return Err(Error::LimitExceeded {
                quantity: "the index of a partition key".into(),
                requested: self.pkey_index.into(),
                max: port.pkey_table_len.saturating_sub(1).into(),
                hint: "`Device::pkeys` has the port's table".into(),
            });
        }
        let gid = match (self.gid_index, port.link_layer) {
            (Some(index), _) => {
                let gids = device.gids()?;
                let found =
                    gids.iter().find(|entry| entry.port == self.port && entry.index == u32::from(index));
                found.cloned().ok_or_else(|| Error::NoDevice {
                    reason: format!("port {} of {} has no GID with index {index}", self.port, device.name()),
                    hint: "call `address` instead, and let Adverb choose".into(),
                })?
            }
            (None, LinkLayer::InfiniBand) => device.gid_for(self.port, None)?,
            (None, _) => device.gid_for(self.port, self.address)?,
        };
        let gid_index = u8::try_from(gid.index).map_err(|_| Error::LimitExceeded {
            quantity: "a GID index".into(),
            requested: gid.index.into(),
            max: 255,
            hint: "only the first 256 can be used by a queue pair".into(),
        })?;

        // Reserved before the queue pair exists, so that its completions always have room.
        let send: Attached = send_cq.attach(self.send_depth, self.transport)?;
        let recv = match &self.shared {
            Some(shared) => Receives::Shared(recv_cq.attach_shared(shared)?),
            None => Receives::Own(Box::new(recv_cq.attach(self.recv_depth, self.transport)?)),
        };
        if let (Transport::Ud, Receives::Shared(shared)) = (self.transport, &recv) {
            shared.queue.lock().carry_datagrams();
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
            port,
            gid,
            gid_index,
            psn: random_psn()?.get().into(),
            access: self.access,
            pkey_index: self.pkey_index,
            qkey: self.qkey,
            memberships: Memberships::default(),
            traffic: self.traffic,
            addresses: AddressCache::default(),
            domain: self.domain,
        };
        queue_pair.initialise()?;
        Ok(queue_pair)
    }
}

/// Where a queue pair's packets begin to count: random, so that a packet of an earlier connection, or of somebody who
/// guesses, doesn't fit.
pub(super) fn random_psn() -> Result<Psn> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| Error::Verb {
        action: "asking for random bytes".into(),
        error: std::io::Error::other(error),
        hint: "".into(),
    })?;
    Ok(Psn::wrapping(u32::from_ne_bytes(bytes)))
}
