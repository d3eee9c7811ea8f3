//! Creating a broker.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use adverb_cluster_proto::keys::Keys;
use adverb_cluster_proto::{Broker as Core, BrokerConfig};
use adverb_verbs::ProtectionDomain;
use adverb_verbs::internal::{OwnerProcess, Watch};

use super::event_queue::EventQueue;
use super::peer::Peer;
use super::{Broker, BrokerError, Result};

/// The options of a [`Broker`], created by [`Broker::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct BrokerBuilder {
    domain: ProtectionDomain,
    config: BrokerConfig,
    peer_count: usize,
    epoch: Option<u64>,
}

impl BrokerBuilder {
    pub(super) fn new(domain: &ProtectionDomain) -> BrokerBuilder {
        BrokerBuilder { domain: domain.clone(), config: BrokerConfig::default(), peer_count: 1, epoch: None }
    }

    /// Sets the sizes of the broker's queues and rings.
    pub fn config(mut self, config: BrokerConfig) -> BrokerBuilder {
        self.config = config;
        self
    }

    /// Sets the number of peers. The default is 1.
    pub fn peer_count(mut self, count: usize) -> BrokerBuilder {
        self.peer_count = count;
        self
    }

    /// Sets the epoch, which identifies this run of the member: a member that restarts must use another number, which
    /// should be larger. The default is the system time in nanoseconds when the broker is created.
    pub fn epoch(mut self, epoch: u64) -> BrokerBuilder {
        self.epoch = Some(epoch);
        self
    }

    /// Creates the broker.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Config`] if the configuration is invalid, [`BrokerError::CompletionQueueTooDeep`] if the device has
    /// no completion queue for the requests of all peers, and [`BrokerError::Verbs`] if the completion queue can't be created.
    pub fn create(self) -> Result<Broker> {
        let BrokerBuilder { domain, config, peer_count, epoch } = self;
        let core = Core::new(config, peer_count)?;
        let device = domain.device();
        let per_peer = u32::from(config.send_queue_depth) + u32::from(config.recv_queue_depth());
        // A queue pair of a new session can exist before that of the ended one is destroyed.
        let queue_pairs = u32::try_from(peer_count + peer_count.min(8)).unwrap_or(u32::MAX).max(1);
        let depth = per_peer.saturating_mul(queue_pairs);
        let max = device.attributes().max_completion_queue_depth;
        if depth > max {
            return Err(BrokerError::CompletionQueueTooDeep { peer_count, requested: depth, max });
        }
        let completion_queue = device.completion_queue(depth).events().create()?;
        let action = "creating an epoll descriptor";
        let watch = Watch::new().map_err(|source| BrokerError::System { action, source })?;
        if let Some(fd) = completion_queue.event_fd() {
            watch.add(fd).map_err(|source| BrokerError::System { action, source })?;
        }
        Ok(Broker {
            core,
            epoch: epoch.unwrap_or_else(clock_epoch),
            owner: OwnerProcess::current(),
            peers: (0..peer_count).map(|_| Peer::default()).collect(),
            domain,
            completion_queue,
            watch,
            mailbox: None,
            waker: None,
            keys: Keys::new(peer_count),
            publication: None,
            returns: Arc::default(),
            events: EventQueue::new(peer_count),
            closing: Vec::new(),
            started: Instant::now(),
            polls: 0,
            is_polled: false,
            completions: Vec::with_capacity(64),
            payloads: Vec::with_capacity(16),
            transfers: Vec::with_capacity(16),
        })
    }
}

/// Returns an epoch that differs from those of earlier runs, and is larger unless the clock went back.
pub(crate) fn clock_epoch() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
