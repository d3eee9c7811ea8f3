//! Calls between the threads of members.
//!
//! The protocol is in [`adverb_cluster_proto::rpc`]; this module sends its messages with a [`Broker`].

mod buf;
mod event;
#[cfg(all(test, feature = "soft"))]
mod hostile_tests;
mod outgoing;
mod reply;
#[cfg(all(test, feature = "soft"))]
mod tests;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use adverb_cluster_proto::rpc::{
    CallError, CallId, Failure, HEADER_LEN, Incoming, Rpc as Core, RpcConfig, RpcCounters, split_frame,
};
use adverb_cluster_proto::{ConfigError, EndReason, PeerId, PostError};
use adverb_proto::Time;
use adverb_verbs::internal::Deadline;

use crate::broker::{BrokerOwner, Filter, deliver};
use crate::{Broker, BrokerError, Event};
use outgoing::Outgoing;
use reply::DroppedReplies;

pub use buf::RpcBuf;
pub use event::RpcEvent;
pub use reply::{RefusedReply, Reply};

type Result<T, E = BrokerError> = std::result::Result<T, E>;

/// Calls between the threads of members: requests and replies as messages of a [`Broker`].
///
/// Both sides of a session call and serve. A call has a method, which is any number, and data, which is any bytes up to
/// [`max_data_len`](Rpc::max_data_len). It ends exactly once, with [`RpcEvent::CallEnded`] or [`cancel`](Rpc::cancel): with
/// the reply, when its timeout expires, or when the session ends. Many calls can be outstanding
/// ([`RpcConfig::max_calls`] for each peer), and their replies arrive in any order. A call that timed out
/// or whose session ended may have been executed.
///
/// The handler of [`poll`](Rpc::poll) runs in the caller's thread. It borrows the data from the receive slots, and it has
/// the `Rpc`, so it can reply, call, and post transfers with [`broker_mut`](Rpc::broker_mut). It can also keep the
/// [`Reply`] token and answer later.
///
/// Messages are posted like those of the broker: in batches, by [`flush_all`](Rpc::flush_all), and at the end of each poll.
/// The data of [`call`](Rpc::call) and [`reply`](Rpc::reply) is copied, and up to
/// [`doorbell_batch`](crate::BrokerConfig::doorbell_batch) requests and replies to a peer share one message, if they
/// fit its slot. A request or reply that the caller writes into a slot of its own ([`allocate_send_buf`](Rpc::allocate_send_buf)) is a
/// message of its own. Without a send slot or a credit of the peer, a call is refused with [`PostError::WouldBlock`],
/// and a reply waits in this process. A call allocates no memory, except for such replies, whose memory is used again.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use adverb::cluster::{Broker, Failure, PeerId, Rpc, RpcConfig, RpcEvent};
/// use adverb::verbs::SoftDevice;
///
/// const REVERSE: u16 = 1;
///
/// let domain = SoftDevice::loopback().open()?.create_protection_domain()?;
/// let (mut a, mut b) = (
///     Broker::builder(&domain).epoch(7).create()?,
///     Broker::builder(&domain).epoch(8).create()?,
/// );
/// let peer = PeerId(0);
/// let (offer_of_a, offer_of_b) = (a.prepare(peer)?, b.prepare(peer)?); // a `Cluster` does this
/// a.establish(peer, &offer_of_b)?;
/// b.establish(peer, &offer_of_a)?;
///
/// let mut client = Rpc::new(a, RpcConfig::default())?;
/// let mut server = Rpc::new(b, RpcConfig::default())?;
/// let call = client.call(peer, REVERSE, b"abc", Some(Duration::from_secs(5)))?;
/// client.flush_all();
///
/// let mut answer = None;
/// while answer.is_none() {
///     server.poll(|server, event| {
///         if let RpcEvent::Request { method, bytes, reply, .. } = event {
///             match method {
///                 REVERSE => {
///                     let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
///                     server.reply(reply, &reversed).expect("the caller waits");
///                 }
///                 _ => server.reject(reply, Failure::UnknownMethod),
///             }
///         }
///     })?;
///     client.poll(|_, event| {
///         if let RpcEvent::CallEnded { call: ended, result } = event {
///             assert_eq!(ended, call);
///             answer = Some(result.map(|bytes| bytes.to_vec()));
///         }
///     })?;
/// }
/// assert_eq!(answer, Some(Ok(b"cba".to_vec())));
/// # Ok(())
/// # }
/// ```
pub struct Rpc {
    broker: Broker,
    core: Core,
    /// The messages to each peer that were not posted.
    outgoing: Vec<Outgoing>,
    /// The peers with an open message.
    open_peers: Vec<PeerId>,
    dropped: Arc<DroppedReplies>,
}

impl Rpc {
    /// Creates an `Rpc` over a broker. It receives all messages of the broker.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Config`] if the configuration is invalid or the broker's message slots are too small, and
    /// [`BrokerError::System`] if a descriptor can't be created.
    pub fn new(mut broker: Broker, config: RpcConfig) -> Result<Rpc> {
        let (size, min) = (broker.config().slot_size, HEADER_LEN as u32);
        if size < min {
            return Err(ConfigError::SlotTooSmall { size, min }.into());
        }
        let peer_count = broker.peer_count();
        let mut core = Core::new(config, peer_count)?;
        // The events of these sessions may have been delivered before.
        for peer in (0..peer_count).map(|index| PeerId(index as u16)) {
            if let Some(epoch) = broker.peer_epoch(peer) {
                core.open(peer, epoch)?;
            }
        }
        let dropped = Arc::new(DroppedReplies::new(broker.waker()?));
        let outgoing = std::iter::repeat_with(Outgoing::default).take(peer_count).collect();
        Ok(Rpc { broker, core, outgoing, open_peers: Vec::with_capacity(peer_count), dropped })
    }

    /// Returns the broker.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Returns the broker, to post transfers and to manage sessions.
    ///
    /// Don't send messages with the broker: the peer drops them, because they are no calls. Don't poll it either:
    /// events of calls that the broker delivers are missing in [`poll`](Rpc::poll).
    pub fn broker_mut(&mut self) -> &mut Broker {
        &mut self.broker
    }

    /// Returns the numbers of calls, requests and unexpected messages so far.
    pub fn counters(&self) -> &RpcCounters {
        self.core.counters()
    }

    /// Returns the number of calls to a peer that have not ended.
    pub fn outstanding_call_count(&self, peer: PeerId) -> usize {
        self.core.outstanding_call_count(peer)
    }

    /// Returns the number of requests of a peer that were not answered.
    pub fn pending_request_count(&self, peer: PeerId) -> usize {
        self.core.pending_request_count(peer)
    }

    /// Returns the maximum length of the data of a request or reply, in bytes: the
    /// [slot size](crate::BrokerConfig::slot_size) without the header.
    pub fn max_data_len(&self) -> usize {
        self.broker.config().slot_size as usize - HEADER_LEN
    }

    /// Calls a method of a peer, and returns the id that [`RpcEvent::CallEnded`] will have.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::NotOpen`] without a session, or before its [`Event::SessionOpened`] was delivered;
    /// [`PostError::WouldBlock`] if the send slots, the peer's credits or
    /// the request queue are exhausted, in which case [`Event::Unblocked`] follows; [`PostError::TooManyCalls`]; and
    /// [`PostError::MessageTooLong`].
    pub fn call(
        &mut self,
        peer: PeerId,
        method: u16,
        bytes: &[u8],
        timeout: Option<Duration>,
    ) -> Result<CallId, PostError> {
        self.core.check_call(peer)?;
        self.reserve_frame(peer, bytes.len())?;
        let (call, header) = self.core.call(peer, method, timeout, self.call_time(timeout))?;
        self.push_frame(peer, header, bytes);
        Ok(call)
    }

    /// Returns the time at which a call with this timeout starts. Without a timeout, the clock isn't read.
    fn call_time(&self, timeout: Option<Duration>) -> Time {
        if timeout.is_some() { self.broker.now() } else { Time::ZERO }
    }

    /// Allocates a slot, to write a request or a reply without a copy.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::NotOpen`] without a session, and [`PostError::WouldBlock`] as [`call`](Rpc::call) does.
    pub fn allocate_send_buf(&mut self, peer: PeerId) -> Result<RpcBuf, PostError> {
        self.check_sendable(peer)?;
        RpcBuf::new(self.broker.allocate_send_buf(peer)?)
    }

    /// Calls a method of the slot's peer, with the data in the slot.
    ///
    /// # Errors
    ///
    /// Returns [`PostError::NotOpen`] if the session of the slot has ended, and [`PostError::TooManyCalls`].
    pub fn post_call(
        &mut self,
        request: RpcBuf,
        method: u16,
        timeout: Option<Duration>,
    ) -> Result<CallId, PostError> {
        let peer = request.peer();
        if !self.is_current(peer) {
            return Err(PostError::NotOpen { peer });
        }
        let (call, header) = self.core.call(peer, method, timeout, self.call_time(timeout))?;
        self.post_open_message(peer);
        if let Err(error) = self.broker.post_send(request.finish(header)) {
            self.core.withdraw(call);
            return Err(error);
        }
        Ok(call)
    }

    /// Cancels a call, which has no event then, and sends the peer a cancellation. Returns `false` if the call has ended
    /// already.
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.core.cancel(call)
    }

    /// Whether a call has not ended.
    pub fn is_outstanding(&self, call: CallId) -> bool {
        self.core.is_outstanding(call)
    }

    /// Whether the caller of a request still waits for an answer, as far as this side knows.
    pub fn is_pending(&self, reply: &Reply) -> bool {
        self.core.is_pending(reply.request())
    }

    /// Answers a request. Without a slot or a credit, the reply waits in this process until it can be sent.
    ///
    /// # Errors
    ///
    /// Returns the token, and [`PostError::MessageTooLong`], or [`PostError::RequestEnded`] if the caller doesn't wait anymore.
    pub fn reply(&mut self, reply: Reply, bytes: &[u8]) -> Result<(), RefusedReply> {
        match self.try_reply(&reply, bytes) {
            Ok(()) => {
                reply.consume();
                Ok(())
            }
            Err(error) => Err(RefusedReply { error, reply }),
        }
    }

    fn try_reply(&mut self, reply: &Reply, bytes: &[u8]) -> Result<(), PostError> {
        let (request, peer, max) = (reply.request(), reply.peer(), self.max_data_len());
        if bytes.len() > max {
            return Err(PostError::MessageTooLong { len: bytes.len(), max });
        }
        if !self.core.is_pending(request) {
            return Err(PostError::RequestEnded { peer });
        }
        match self.reserve_frame(peer, bytes.len()) {
            Ok(()) => {
                let header = self.core.answer(request)?;
                self.push_frame(peer, header, bytes);
                Ok(())
            }
            Err(PostError::WouldBlock { .. }) => self.core.queue_reply(request, bytes),
            // The session has ended, but its event was not delivered yet.
            Err(_) => Err(PostError::RequestEnded { peer }),
        }
    }

    /// Answers a request with the data in a slot of the same peer.
    ///
    /// # Errors
    ///
    /// Returns the token, and [`PostError::RequestEnded`] if the caller doesn't wait anymore, or if the slot is one of
    /// another peer.
    pub fn post_reply(&mut self, reply: Reply, message: RpcBuf) -> Result<(), RefusedReply> {
        match self.answer(&reply, message) {
            Ok(()) => {
                reply.consume();
                Ok(())
            }
            Err(error) => Err(RefusedReply { error, reply }),
        }
    }

    fn answer(&mut self, reply: &Reply, message: RpcBuf) -> Result<(), PostError> {
        let peer = reply.peer();
        let ended = PostError::RequestEnded { peer };
        if message.peer() != peer || !self.is_current(peer) {
            return Err(ended);
        }
        let header = self.core.answer(reply.request())?;
        self.post_open_message(peer);
        self.broker.post_send(message.finish(header)).map_err(|_| ended)
    }

    /// Answers a request with a failure. If the caller doesn't wait anymore, nothing is sent.
    pub fn reject(&mut self, reply: Reply, failure: Failure) {
        // A request that has ended needs no failure.
        let _ = self.core.queue_failure(reply.request(), failure);
        reply.consume();
    }

    /// Processes completions, delivers all events to the handler, and then posts the waiting messages and requests of all
    /// peers. Returns the number of events.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Verbs`] if the device failed. All sessions have ended then, and their events were delivered.
    pub fn poll(&mut self, mut handler: impl FnMut(&mut Rpc, RpcEvent<'_>)) -> Result<usize> {
        let progress = self.broker.progress_unless_polled();
        let mut count = 0;
        deliver(self, Filter::All, &mut |rpc, event| count += rpc.handle_event(event, &mut handler));
        // Calls expire after the replies are delivered, so a caller that polls rarely still gets the replies that
        // arrived.
        count += self.expire_calls(&mut handler);
        self.flush_all();
        self.broker.close_sessions();
        progress.map(|()| count)
    }

    /// Posts the waiting messages and requests of all peers.
    pub fn flush_all(&mut self) {
        while let Some(request) = self.dropped.take() {
            // A request that has ended needs no failure.
            let _ = self.core.queue_failure(request, Failure::NoReply);
        }
        while let Some(peer) = self.core.poll_ready() {
            self.send_waiting(peer);
        }
        self.post_open_messages();
        self.broker.flush_all();
    }

    /// Waits until [`poll`](Rpc::poll) has events to deliver, and posts the waiting messages and requests of all peers.
    /// Returns `false` if the timeout expires first. A `timeout` of `None` means no limit.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Verbs`] if the device failed, and [`BrokerError::System`] if the system call failed.
    pub fn wait(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let deadline = Deadline::new(timeout);
        loop {
            self.flush_all();
            let until_expiry = self.until_expiry();
            if until_expiry.is_some_and(|until| until.is_zero()) {
                return Ok(true);
            }
            let left = deadline.left();
            // The broker also returns if a token was dropped, which is no event.
            let is_woken = self.broker.wait(until_expiry.map_or(left, |until| until.min(left)))?;
            if is_woken && self.broker.has_queued_events() {
                return Ok(true);
            }
            if left.is_zero() {
                self.flush_all();
                return Ok(false);
            }
        }
    }

    /// Prepares to wait for [`fd`](Rpc::fd) in an event loop, and posts the waiting messages and requests of all peers.
    /// Returns `true` if the caller must [poll](Rpc::poll) instead of waiting. The caller also polls after the time that
    /// [`timeout`](Rpc::timeout) returns.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Verbs`] if the device failed.
    pub fn arm(&mut self) -> Result<bool> {
        self.flush_all();
        let is_expired = self.until_expiry().is_some_and(|until| until.is_zero());
        Ok(self.broker.arm()? || is_expired)
    }

    /// Returns the descriptor that becomes readable when completions arrive, or tokens are dropped, after
    /// [`arm`](Rpc::arm).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.broker.fd()
    }

    /// Returns the time after which the caller must poll even if the descriptor is not readable, or `None` if there is no
    /// such time.
    pub fn timeout(&self) -> Option<Duration> {
        self.broker.timeout().into_iter().chain(self.until_expiry()).min()
    }

    /// Returns the time until the next call expires.
    fn until_expiry(&self) -> Option<Duration> {
        self.core.poll_timeout().map(|at| at - self.broker.now())
    }

    /// Whether the calls belong to the broker's current session with the peer. Returns `false` if the session ended and
    /// was established again, and the events of this were not delivered yet.
    pub(crate) fn is_current(&self, peer: PeerId) -> bool {
        let epoch = self.core.epoch(peer);
        epoch.is_some() && epoch == self.broker.peer_epoch(peer)
    }

    /// Handles an event of the broker, and returns the number of events for the application.
    fn handle_event(&mut self, event: Event<'_>, handler: &mut impl FnMut(&mut Rpc, RpcEvent<'_>)) -> usize {
        match event {
            Event::Message { from, bytes } => {
                let (mut count, mut message) = (0, bytes);
                loop {
                    let (frame, rest) = split_frame(message);
                    count += self.handle_frame(from, frame, handler);
                    if rest.is_empty() {
                        return count;
                    }
                    message = rest;
                }
            }
            Event::SessionOpened { peer, epoch } => {
                let mut count = 0;
                if self.core.epoch(peer) != Some(epoch) {
                    count = self.end_session(peer, EndReason::Closed, handler);
                    // The peer exists, and has no session.
                    let opened = self.core.open(peer, epoch);
                    debug_assert!(opened.is_ok());
                }
                self.set_blocked(peer, false);
                handler(self, RpcEvent::Broker(event));
                count + 1
            }
            Event::SessionEnded { peer, reason, .. } => {
                let count = self.end_session(peer, reason, handler);
                handler(self, RpcEvent::Broker(event));
                count + 1
            }
            Event::Unblocked { peer } => {
                self.set_blocked(peer, false);
                self.send_waiting(peer);
                // If messages still wait, another event follows.
                if self.is_blocked(peer) {
                    return 0;
                }
                handler(self, RpcEvent::Broker(event));
                1
            }
            event => {
                handler(self, RpcEvent::Broker(event));
                1
            }
        }
    }

    /// Handles a frame of a message, and returns the number of events for the application.
    fn handle_frame(
        &mut self,
        from: PeerId,
        frame: &[u8],
        handler: &mut impl FnMut(&mut Rpc, RpcEvent<'_>),
    ) -> usize {
        match self.core.handle_message(from, frame) {
            Incoming::Request { request, method, timeout, data } => {
                let reply = Reply::new(request, &self.dropped);
                handler(self, RpcEvent::Request { from, method, bytes: data, timeout, reply });
                1
            }
            Incoming::Reply { call, result } => {
                let result = result.map_err(|source| CallError::Failed { peer: from, source });
                handler(self, RpcEvent::CallEnded { call, result });
                1
            }
            Incoming::Ignored => 0,
        }
    }

    /// Ends the calls and requests of a session, and returns the number of calls.
    fn end_session(
        &mut self,
        peer: PeerId,
        reason: EndReason,
        handler: &mut impl FnMut(&mut Rpc, RpcEvent<'_>),
    ) -> usize {
        self.core.end(peer);
        self.set_blocked(peer, false);
        self.discard_open_message(peer);
        let mut count = 0;
        while let Some(call) = self.core.poll_ended(peer) {
            handler(
                self,
                RpcEvent::CallEnded { call, result: Err(CallError::SessionEnded { peer, reason }) },
            );
            count += 1;
        }
        count
    }

    fn expire_calls(&mut self, handler: &mut impl FnMut(&mut Rpc, RpcEvent<'_>)) -> usize {
        if self.core.poll_timeout().is_none() {
            return 0;
        }
        let now = self.broker.now();
        let mut count = 0;
        while let Some(call) = self.core.poll_expired(now) {
            handler(
                self,
                RpcEvent::CallEnded { call, result: Err(CallError::TimedOut { peer: call.peer() }) },
            );
            count += 1;
        }
        count
    }
}

impl BrokerOwner for Rpc {
    fn broker_mut(&mut self) -> &mut Broker {
        &mut self.broker
    }
}

impl fmt::Debug for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rpc")
            .field("broker", &self.broker)
            .field("counters", self.core.counters())
            .finish_non_exhaustive()
    }
}
