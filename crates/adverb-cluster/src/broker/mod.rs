//! The broker of a thread: messages and one-sided transfers to the peers.
//!
//! The protocol is in [`adverb_cluster_proto`]; this module owns the memory and drives the queue pairs.

mod builder;
mod error;
mod event;
mod event_queue;
mod keys;
#[cfg(all(test, feature = "soft"))]
mod keys_tests;
mod mailbox;
mod offer;
mod peer;
mod post;
mod progress;
mod slot;
#[cfg(all(test, feature = "soft"))]
mod tests;
mod wait;
mod waker;

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_cluster_proto::keys::Keys;
use adverb_cluster_proto::{
    Broker as Core, BrokerConfig, MemoryUse, PeerId, Phase, SessionError, Transfer as CoreTransfer,
};
use adverb_proto::Time;
use adverb_verbs::internal::{Deadline, OwnerProcess, Watch};
use adverb_verbs::memory::Payload;
use adverb_verbs::{Completion, CompletionQueue, ProtectionDomain, QueuePair, QueuePairBuilder, Transport};

pub use builder::BrokerBuilder;
pub(crate) use builder::clock_epoch;
pub use error::{BrokerError, RefusedTransfer, TransferError};
pub(crate) use event::Filter;
pub use event::{Event, Payloads};
pub use keys::RemoteTarget;
pub(crate) use mailbox::{Command, Mailbox, Notice, Notices};
pub use offer::Offer;
pub use post::Transfer;
pub(crate) use progress::{BrokerOwner, deliver};
pub use slot::SendBuf;
pub(crate) use waker::Waker;

use event::QueuedEvent;
use event_queue::EventQueue;
use keys::Publication;
use peer::{Link, Peer};
use slot::Returns;

type Result<T, E = BrokerError> = std::result::Result<T, E>;

/// The maximum number of segments of a transfer's payload, unless the device allows fewer.
const MAX_SEGMENTS: u32 = 4;

/// The broker of one thread: its sessions with the peers, each over a queue pair (RC) of its own.
///
/// A broker belongs to one thread, and shares no lock with other brokers. It sends messages from slots
/// ([`allocate_send_buf`](Broker::allocate_send_buf), [`post_send`](Broker::post_send)), and transfers data to and from the memory of peers
/// ([`post_write`](Broker::post_write), [`post_read`](Broker::post_read) and others). Requests to a peer wait until there are
/// [`doorbell_batch`](BrokerConfig::doorbell_batch) of them, until [`flush`](Broker::flush) or [`flush_all`](Broker::flush_all), or
/// until the end of the poll.
///
/// [`Cluster::take_broker`](crate::Cluster::take_broker) returns a broker whose sessions the cluster establishes. The example shows
/// brokers without a cluster.
///
/// [`poll`](Broker::poll) passes [events](Event) to a handler in the caller's thread. The handler has the broker, so it
/// can post.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use adverb::cluster::{Broker, Event, PeerId};
/// use adverb::verbs::SoftDevice;
///
/// let domain = SoftDevice::loopback().open()?.create_protection_domain()?;
/// let (mut a, mut b) = (
///     Broker::builder(&domain).epoch(7).create()?,
///     Broker::builder(&domain).epoch(8).create()?,
/// );
/// let peer = PeerId(0);
/// let (offer_of_a, offer_of_b) = (a.prepare(peer)?, b.prepare(peer)?); // exchanged by any means
/// a.establish(peer, &offer_of_b)?;
/// b.establish(peer, &offer_of_a)?;
///
/// let mut slot = a.allocate_send_buf(peer)?;
/// slot.write(b"request")?;
/// a.post_send(slot)?;
/// a.flush_all();
///
/// let mut reply = None;
/// while reply.is_none() {
///     b.poll(|b, event| {
///         if let Event::Message { from, bytes } = event {
///             let mut slot = b.allocate_send_buf(from).expect("a credit");
///             slot.write(bytes).expect("the same length");
///             b.post_send(slot).expect("an open session"); // posted at the end of the poll
///         }
///     })?;
///     a.poll(|_, event| {
///         if let Event::Message { bytes, .. } = event {
///             reply = Some(bytes.to_vec());
///         }
///     })?;
/// }
/// assert_eq!(reply.as_deref(), Some(&b"request"[..]));
/// # Ok(())
/// # }
/// ```
pub struct Broker {
    core: Core,
    epoch: u64,
    owner: OwnerProcess,
    peers: Vec<Peer>,
    domain: ProtectionDomain,
    completion_queue: CompletionQueue,
    /// Readable while the completion queue has an event, or the mailbox has a command.
    watch: Watch,
    /// The commands of the cluster that the broker belongs to.
    mailbox: Option<Arc<Mailbox>>,
    /// Wakes a waiting thread from another one.
    waker: Option<Arc<Waker>>,
    /// The keys of this member's segments and of those of the peers.
    keys: Keys,
    /// The arena whose segments are announced to the peers.
    publication: Option<Publication>,
    returns: Arc<Returns>,
    /// The events that were not delivered yet.
    events: EventQueue,
    /// The peers whose queue pairs must be destroyed, once all polled completions are processed.
    closing: Vec<PeerId>,
    started: Instant,
    /// The number of polls since the clock was last read.
    polls: u32,
    /// Whether a caller that waited has processed the completions of the queued events.
    is_polled: bool,
    /// Lists that are reused.
    completions: Vec<Completion>,
    payloads: Vec<Payload>,
    transfers: Vec<CoreTransfer>,
}

impl Broker {
    /// Creates a builder of a broker on the device of `domain`.
    ///
    /// On the software NIC, each thread should have its own device, because the threads that share one wait for its locks.
    pub fn builder(domain: &ProtectionDomain) -> BrokerBuilder {
        BrokerBuilder::new(domain)
    }

    /// Makes the broker execute the commands in a mailbox.
    pub(crate) fn attach(&mut self, mailbox: Arc<Mailbox>) -> Result<()> {
        let added = self.watch.add(mailbox.as_fd());
        added.map_err(|source| BrokerError::System { action: "watching a socket", source })?;
        self.mailbox = Some(mailbox);
        Ok(())
    }

    /// Returns a handle that wakes the broker's thread when it waits.
    pub(crate) fn waker(&mut self) -> Result<Arc<Waker>> {
        if let Some(waker) = &self.waker {
            return Ok(Arc::clone(waker));
        }
        let failed = |source| BrokerError::System { action: "creating a socket", source };
        let waker = Arc::new(Waker::new().map_err(failed)?);
        self.watch.add(waker.as_fd()).map_err(failed)?;
        self.waker = Some(Arc::clone(&waker));
        Ok(waker)
    }

    /// Returns the configuration.
    pub fn config(&self) -> &BrokerConfig {
        self.core.config()
    }

    /// Returns the epoch of this member.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the protection domain of the broker's queue pairs. The memory of transfers must be registered in it.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the number of peers.
    pub fn peer_count(&self) -> usize {
        self.core.peer_count()
    }

    /// Returns the epoch of a peer, if its session is open.
    pub fn peer_epoch(&self, peer: PeerId) -> Option<u64> {
        self.core.epoch(peer)
    }

    /// Whether requests to a peer can be posted.
    pub fn is_open(&self, peer: PeerId) -> bool {
        self.core.phase(peer) == Phase::Open
    }

    /// Returns the memory of the broker's state and of the message slots. The call visits all peers.
    pub fn memory_use(&self) -> MemoryUse {
        self.core.memory_use()
    }

    /// Asks the cluster to establish the session with a peer, and returns at once.
    /// [`Event::SessionOpened`] follows when it is established, however long that takes.
    ///
    /// Only a cluster with [lazy](crate::ClusterBuilder::lazy) sessions needs this call, after it was joined and after each
    /// end of a session. Until the session is open, requests are refused with
    /// [`PostError::NotOpen`](crate::PostError::NotOpen).
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Session`] if the peer doesn't exist, and [`BrokerError::NoCluster`] if the broker belongs to no
    /// cluster, or has left it.
    pub fn connect(&mut self, peer: PeerId) -> Result<()> {
        if usize::from(peer.0) >= self.peers.len() {
            return Err(SessionError::UnknownPeer { peer }.into());
        }
        let mailbox = self.mailbox.as_ref().filter(|mailbox| mailbox.is_taken());
        let mailbox = mailbox.ok_or(BrokerError::NoCluster)?;
        if !self.is_open(peer) {
            mailbox.want(peer);
        }
        Ok(())
    }

    /// Starts a session with a peer: creates a queue pair, posts its receives, and returns the data that the peer needs to
    /// [establish](Broker::establish) the session.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Session`] if a session with the peer exists, and [`BrokerError::Verbs`] if the queue pair or
    /// the message slots can't be created.
    pub fn prepare(&mut self, peer: PeerId) -> Result<Offer> {
        let queue_pair = self.queue_pair_builder().create()?;
        self.prepare_with(peer, Arc::new(queue_pair), 0)
    }

    /// Returns a builder of queue pairs for the broker's sessions.
    pub(crate) fn queue_pair_builder(&self) -> QueuePairBuilder {
        let config = self.core.config();
        let segments = MAX_SEGMENTS.min(self.domain.device().attributes().max_sge);
        let builder = self.domain.queue_pair(Transport::Rc).completion_queue(&self.completion_queue);
        let (send, recv) = (config.send_queue_depth, config.recv_queue_depth());
        builder.depth(u32::from(send), u32::from(recv)).max_sge(segments, 1)
    }

    /// Starts a session over a queue pair that was created for this broker.
    pub(crate) fn prepare_with(
        &mut self,
        peer: PeerId,
        queue_pair: Arc<QueuePair>,
        attempt: u64,
    ) -> Result<Offer> {
        let config = *self.core.config();
        let unknown = SessionError::UnknownPeer { peer };
        let state = self.peers.get_mut(usize::from(peer.0)).ok_or(unknown)?;
        state.allocate(&self.domain, &config)?;
        let credits = self.core.prepare(peer)?;
        let endpoint = queue_pair.endpoint();
        state.link = Some(Link { queue_pair, attempt });
        self.post_requests();
        self.close_sessions();
        if self.core.phase(peer) != Phase::Preparing {
            return Err(BrokerError::SessionLost { peer });
        }
        Ok(Offer { endpoint, epoch: self.epoch, credits, slot_size: config.slot_size })
    }

    /// Connects a prepared session to the queue pair of the peer's offer, and opens it.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Session`] if the session is not prepared, [`BrokerError::SlotSizeMismatch`],
    /// and [`BrokerError::Verbs`] if the queue pair can't be connected. After an error,
    /// no session exists.
    pub fn establish(&mut self, peer: PeerId, offer: &Offer) -> Result<()> {
        let link = self.peers.get(usize::from(peer.0)).and_then(|state| state.link.as_ref());
        let wrong_phase = SessionError::WrongPhase { peer, expected: Phase::Preparing };
        let link = link.filter(|_| self.core.phase(peer) == Phase::Preparing).ok_or(wrong_phase)?;
        let connected = link.queue_pair.connect(&offer.endpoint).map_err(BrokerError::from);
        let opened = connected.and_then(|()| self.open(peer, offer));
        if opened.is_err() {
            self.close(peer);
        }
        opened
    }

    /// Opens a session whose queue pair is connected.
    pub(crate) fn open(&mut self, peer: PeerId, offer: &Offer) -> Result<()> {
        let local = self.core.config().slot_size;
        if offer.slot_size != local {
            return Err(BrokerError::SlotSizeMismatch { peer, local, remote: offer.slot_size });
        }
        self.core.establish(peer, offer.epoch, offer.credits, self.now())?;
        // The keys precede the messages of the application.
        self.keys.open(peer, offer.epoch);
        self.exchange_keys();
        self.push_session_event(QueuedEvent::SessionOpened { peer, epoch: offer.epoch });
        self.take_early_events(peer, |broker, event| broker.events.push(event));
        if let Some(mailbox) = &self.mailbox {
            mailbox.session_opened(peer);
        }
        self.post_requests();
        Ok(())
    }

    /// Ends the session with a peer, if one exists. The next poll delivers the events of its tickets.
    pub fn close(&mut self, peer: PeerId) {
        self.core.close(peer);
        self.post_requests();
        self.close_sessions();
    }

    /// Leaves all sessions, and waits until they have ended. Requests that wait are posted first. A peer receives all
    /// messages, and then its session ends with [`EndReason::Left`](crate::EndReason::Left). The events of this side are
    /// delivered by the next poll.
    ///
    /// Returns `false` if the timeout expires first. The remaining sessions are closed then, and their peers may detect
    /// this only when a request fails. A broker of a cluster establishes no sessions afterwards.
    ///
    /// A dropped broker also sends leave messages to its peers, but doesn't wait. A leave message that is lost is not
    /// retransmitted then. The manual's chapter about clusters compares the ways to leave.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use adverb::cluster::{Broker, EndReason, Event, PeerId};
    /// # use adverb::verbs::SoftDevice;
    /// use std::time::Duration;
    ///
    /// # let domain = SoftDevice::loopback().open()?.create_protection_domain()?;
    /// # let mut a = Broker::builder(&domain).epoch(7).create()?;
    /// # let mut b = Broker::builder(&domain).epoch(8).create()?;
    /// # let peer = PeerId(0);
    /// # let (offer_of_a, offer_of_b) = (a.prepare(peer)?, b.prepare(peer)?);
    /// # a.establish(peer, &offer_of_b)?;
    /// # b.establish(peer, &offer_of_a)?;
    /// # std::thread::scope(|scope| {
    /// # let other = scope.spawn(move || {
    /// #     let mut reason = None;
    /// #     while reason.is_none() {
    /// #         b.wait(None).unwrap();
    /// #         b.poll(|_, event| if let Event::SessionEnded { reason: ended, .. } = event { reason = Some(ended) }).unwrap();
    /// #     }
    /// #     reason
    /// # });
    /// a.send(peer, b"the last message")?;
    /// let has_left = a.leave(Duration::from_secs(5))?;
    /// # assert_eq!(other.join().unwrap(), Some(EndReason::Left));
    /// # let _ = has_left;
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Verbs`] if the device failed, and [`BrokerError::System`] if the system call failed.
    pub fn leave(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let deadline = Deadline::new(timeout);
        self.start_leaving();
        loop {
            self.arm()?;
            if !self.has_sessions() {
                return Ok(true);
            }
            let left = deadline.left();
            if left.is_zero() {
                (0..self.peers.len()).for_each(|index| self.close(PeerId(index as u16)));
                return Ok(false);
            }
            self.sleep(left)?;
        }
    }

    /// Posts the waiting requests, and then a leave message to each peer. The sessions end when the peers have
    /// acknowledged it.
    pub(crate) fn start_leaving(&mut self) {
        if let Some(mailbox) = &self.mailbox {
            mailbox.close();
        }
        for index in 0..self.peers.len() {
            self.core.leave(PeerId(index as u16));
        }
        self.post_requests();
        self.close_sessions();
    }

    /// Whether a session exists, even one that has not ended completely.
    pub(crate) fn has_sessions(&self) -> bool {
        (0..self.peers.len()).any(|index| self.core.phase(PeerId(index as u16)) != Phase::Closed)
    }

    /// Returns the number of events that were not delivered.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn queued_event_count(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.owner.is_current() {
            self.start_leaving();
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("epoch", &self.epoch)
            .field("peer_count", &self.peers.len())
            .field("queued_event_count", &self.events.len())
            .finish_non_exhaustive()
    }
}
