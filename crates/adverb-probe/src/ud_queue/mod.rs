//! A queue of unreliable datagrams with send and receive slots, for probers and responders.
//!
//! A [`UdQueue`] is a UD queue pair with the parts that a program with many small datagrams needs: buffers that are
//! registered once, an address-handle cache, completions with [timestamps](crate::stamp), the lookup of peers by their address
//! and port, and a device that is opened again after it has failed. It works on RDMA NICs and on the software NIC.
//!
//! One thread owns a queue. It sends, and handles events in [`poll`](UdQueue::poll) or [`wait`](UdQueue::wait). Other
//! threads wake or stop it with a [`Waker`].
//!
//! ```
//! # #[cfg(feature = "soft")] {
//! use std::time::Duration;
//! use adverb::probe::ud_queue::{Event, UdQueue};
//! use adverb::verbs::{Device, Traffic};
//!
//! // A service that returns each datagram, in its own thread.
//! let mut service = UdQueue::builder(|| Device::open("soft:127.83.0.1")).open()?;
//! let address = service.listen(0, b"epoch 1")?;
//! let stop = service.waker();
//! let thread = std::thread::spawn(move || {
//!     while !service.is_stopped() {
//!         service.wait(None, |queue, event| {
//!             if let Event::Received(datagram) = event {
//!                 let reply = queue.send(0, &datagram.source(), Traffic::new(), datagram.payload);
//!                 reply.expect("there is a free slot");
//!             }
//!         });
//!     }
//! });
//!
//! let mut client = UdQueue::builder(|| Device::open("soft:127.83.0.2")).open()?;
//! let found = client.lookup(address, Duration::from_secs(5))?;
//! assert_eq!(&found.private_data[..7], b"epoch 1");
//! client.send(7, &found.destination, Traffic::new().dscp(26).flow_label(0x123), b"hello")?;
//! let mut reply = Vec::new();
//! while reply.is_empty() {
//!     client.wait(Duration::from_secs(5), |_, event| match event {
//!         Event::Sent(sent) => assert_eq!(sent.id, 7),
//!         Event::Received(datagram) => reply.extend_from_slice(datagram.payload),
//!         other => panic!("{other:?}"),
//!     });
//! }
//! assert_eq!(reply, b"hello");
//!
//! stop.stop();
//! thread.join().unwrap();
//! # }
//! # Ok::<(), adverb::probe::ProbeError>(())
//! ```

mod addresses;
mod builder;
mod nic_clock;
mod open;
mod service;
mod slots;
mod waker;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use adverb_verbs::cm::{MAX_DATAGRAM_REPLY_DATA, UD_QKEY};
use adverb_verbs::internal::{WithCauses, wait_either};
use adverb_verbs::{
    ArmFor, Completion, Device, DeviceEvent, Failure, Gid, GidEntry, IpHeader, Qpn, Status, Traffic,
};

pub use builder::UdQueueBuilder;
use builder::{Opener, Options};
use open::{OpenQueue, RECV_TAG, watch_error};
use service::{LOOKUP, PendingLookup};
pub use service::{LookupResult, Service};
use slots::Match;
pub use waker::Waker;

use crate::error::{ProbeError, Result};
use crate::stamp::{Stamp, StampKind};

/// A queue of unreliable datagrams. See the [module](self) for an example.
pub struct UdQueue {
    state: Lifecycle,
    opener: Opener,
    options: Options,
    waker: Waker,
    /// The port at which peers find the queue, and the private data of the answers.
    service: Option<(u16, Vec<u8>)>,
    stats: UdQueueStats,
}

/// The state of a queue's device.
enum Lifecycle {
    Open(Box<OpenQueue>),
    Failed {
        /// The time of the next attempt to open the device.
        retry_at: Instant,
        /// The delay after that attempt, if it fails.
        next_delay: Duration,
    },
}

/// The destination of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Destination {
    /// The GID of the peer's port.
    pub gid: Gid,
    /// The number of the peer's queue pair.
    pub qpn: Qpn,
    /// The queue key of the peer's queue pair.
    pub qkey: u32,
}

/// A datagram that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Posted {
    /// The time before posting. It is always the process's.
    pub at: Stamp,
    /// The UDP source port, on the software NIC. RDMA NICs don't report it.
    pub source_port: Option<u16>,
}

/// An event of a [`UdQueue`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A datagram was sent, or failed.
    Sent(Sent),
    /// A datagram was received.
    Received(Received<'a>),
    /// A lookup is complete.
    LookedUp(LookupResult),
    /// The device reported an event that doesn't end the queue: a port is up or down, or GIDs have changed.
    Device(DeviceEvent),
    /// The device, or the queue pair, has failed. Datagrams in flight and lookups have failed before this event. The
    /// queue opens the device again.
    Failed(ProbeError),
    /// The device was opened again. The queue pair has a new number.
    Reopened,
}

/// The completion of a datagram that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sent {
    /// The number that the caller chose.
    pub id: u64,
    /// The time before posting.
    pub posted_at: Stamp,
    /// The time at which the datagram was sent.
    pub stamp: Stamp,
    /// The reason why the datagram was not sent, if it wasn't.
    pub failure: Option<Failure>,
}

/// A received datagram. Its receive slot is posted again when the caller's function returns.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Received<'a> {
    /// The time at which the datagram was received.
    pub stamp: Stamp,
    /// The number of the sender's queue pair.
    pub source_qpn: Qpn,
    /// The IP header: addresses, traffic class, hop limit, flow label.
    pub ip_header: IpHeader,
    /// The payload.
    pub payload: &'a [u8],
}

impl Received<'_> {
    /// Returns the sender, as the destination of a reply. The sender's queue key must be [`UD_QKEY`], which is that of
    /// every [`UdQueue`].
    pub fn source(&self) -> Destination {
        Destination { gid: Gid::from(self.source_addr()), qpn: self.source_qpn, qkey: UD_QKEY }
    }

    /// Returns the IP address of the sender. If the sender is a software NIC that doesn't use UDP port 4791, this is the
    /// address form of its GID ([`Gid::udp_addr`]).
    pub fn source_addr(&self) -> IpAddr {
        self.ip_header.source()
    }

    /// Returns the differentiated services code point (DSCP) with which the datagram arrived.
    pub fn dscp(&self) -> u8 {
        self.ip_header.traffic_class() >> 2
    }

    /// Returns the remaining hop limit (TTL).
    pub fn hop_limit(&self) -> u8 {
        match self.ip_header {
            IpHeader::V4(header) => header.ttl,
            IpHeader::V6(header) => header.hop_limit,
        }
    }
}

/// Counters of a queue, since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct UdQueueStats {
    /// Datagrams whose sending completed successfully.
    pub sent: u64,
    /// Datagrams whose sending failed.
    pub send_failures: u64,
    /// Received datagrams.
    pub received: u64,
    /// Received datagrams without a valid IP header, and receives that failed.
    pub recv_failures: u64,
    /// Completions that match no request.
    pub unmatched: u64,
    /// Datagrams that were not posted, because all send slots were in flight.
    pub slots_exhausted: u64,
    /// Address handles that were created.
    pub address_handles_created: u64,
    /// Address handles that were dropped because the cache was full.
    pub address_handles_evicted: u64,
    /// Answered lookups of peers.
    pub answered: u64,
    /// Lookups of peers that could not be answered.
    pub rejected: u64,
    /// Failures of the device or the queue pair.
    pub device_failures: u64,
    /// Successful attempts to open the device again.
    pub reopens: u64,
}

/// The interval of checks for events other than completions, while the caller polls without waiting.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The maximum number of pending lookups.
pub const MAX_LOOKUPS: usize = 64;

impl UdQueue {
    /// Returns a builder of a queue on the device that `open_device` opens. The queue calls the function again after the
    /// device has failed.
    pub fn builder(
        open_device: impl FnMut() -> adverb_verbs::Result<Device> + Send + 'static,
    ) -> UdQueueBuilder {
        UdQueueBuilder::new(Box::new(open_device))
    }

    fn open(mut opener: Opener, options: Options, waker: Waker) -> Result<UdQueue> {
        let queue = OpenQueue::open(opener()?, &options, &waker)?;
        let stats = UdQueueStats::default();
        Ok(UdQueue { state: Lifecycle::Open(Box::new(queue)), opener, options, waker, service: None, stats })
    }

    /// Posts a datagram. Its completion is an [`Event::Sent`] with the number `id`, which may be any number.
    ///
    /// `traffic` has the DSCP and the flow label, and the latter determines the UDP source port: see
    /// [`flow_label_of`](crate::paths::flow_label_of).
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::SendSlotsFull`] if all send slots are in flight, [`ProbeError::PayloadTooLong`] if the payload
    /// is longer than [`max_payload`](UdQueue::max_payload), [`ProbeError::DeviceFailed`] while the device has failed, and
    /// [`ProbeError::Verbs`] if the address handle can't be created.
    pub fn send(
        &mut self,
        id: u64,
        destination: &Destination,
        traffic: Traffic,
        payload: &[u8],
    ) -> Result<Posted> {
        self.send_with(id, destination, traffic, |slot| {
            if let Some(slot) = slot.get_mut(..payload.len()) {
                slot.copy_from_slice(payload);
            }
            payload.len()
        })
    }

    /// Posts a datagram like [`send`](UdQueue::send). The function `write` writes the payload into the send slot, which
    /// has [`max_payload`](UdQueue::max_payload) bytes with the content of an earlier datagram, and returns its length.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](UdQueue::send).
    pub fn send_with(
        &mut self,
        id: u64,
        destination: &Destination,
        traffic: Traffic,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Posted> {
        let posted = self.open_queue("sending a datagram")?.send(id, destination, traffic, write);
        self.stats.slots_exhausted += u64::from(matches!(posted, Err(ProbeError::SendSlotsFull { .. })));
        posted
    }

    /// Handles all available events without waiting: calls `handle` with each of them, and returns their number. The
    /// function may send from the queue that it gets.
    ///
    /// A failure of the device is an [event](Event::Failed), not an error: the queue opens the device again.
    pub fn poll(&mut self, mut handle: impl FnMut(&mut UdQueue, Event<'_>)) -> usize {
        self.poll_events(&mut handle)
    }

    /// Waits for events, and handles them like [`poll`](UdQueue::poll). Returns their number.
    ///
    /// Returns 0 if the timeout expires first, or the [waker](UdQueue::waker) ends the wait. A `timeout` of
    /// `None` means no limit.
    pub fn wait(
        &mut self,
        timeout: impl Into<Option<Duration>>,
        mut handle: impl FnMut(&mut UdQueue, Event<'_>),
    ) -> usize {
        let start = Instant::now();
        let deadline = timeout.into().and_then(|timeout| start.checked_add(timeout));
        loop {
            let count = self.poll_events(&mut handle);
            // The wake-up is consumed by this wait even if there are events.
            if self.waker.take() || self.waker.is_stopped() || count > 0 {
                return count;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return 0;
            }
            if now.saturating_duration_since(start) < self.options.spin {
                std::hint::spin_loop();
                continue;
            }
            let count = self.sleep(deadline, now, &mut handle);
            if count > 0 {
                self.waker.take();
                return count;
            }
        }
    }

    /// Sleeps until an event may be available. Returns the number of events that arrived before it could sleep.
    fn sleep(
        &mut self,
        deadline: Option<Instant>,
        now: Instant,
        handle: &mut dyn FnMut(&mut UdQueue, Event<'_>),
    ) -> usize {
        let count = self.prepare_sleep(handle);
        if count > 0 {
            return count;
        }
        let due = deadline.into_iter().chain(self.next_due()).min();
        let left = due.map(|due| due.saturating_duration_since(now));
        let slept = wait_either(self.readiness(), None, left);
        match slept {
            Err(error) if self.if_open().is_some() => self.fail(watch_error(error), handle),
            _ => self.handle_readiness(handle),
        }
    }

    /// Makes [`readiness`](UdQueue::readiness) readable at the next event. Returns the number of events that arrived
    /// before, which were handled.
    pub(crate) fn prepare_sleep(&mut self, handle: &mut dyn FnMut(&mut UdQueue, Event<'_>)) -> usize {
        let Lifecycle::Open(queue) = &self.state else { return 0 };
        if let Err(error) = queue.completions.arm(ArmFor::Any) {
            return self.fail(error.into(), handle);
        }
        // A completion that arrived before arming raises no event.
        self.poll_events(handle)
    }

    /// Returns the time at which the caller must poll even if nothing is readable.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        match &self.state {
            Lifecycle::Open(queue) => queue.deadline(),
            Lifecycle::Failed { retry_at, .. } => Some(*retry_at),
        }
    }

    /// Returns a descriptor that is readable when an event may be available. It changes when the device fails, and when
    /// it is opened again.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        match &self.state {
            Lifecycle::Open(queue) => queue.watch.as_fd(),
            Lifecycle::Failed { .. } => self.waker.as_fd(),
        }
    }

    /// Handles the readiness of the descriptor: the next poll checks all sources of events. Returns the number of events.
    pub(crate) fn handle_readiness(&mut self, handle: &mut dyn FnMut(&mut UdQueue, Event<'_>)) -> usize {
        let Lifecycle::Open(queue) = &mut self.state else { return 0 };
        let now = Instant::now();
        queue.checked_at = now.checked_sub(CHECK_INTERVAL).unwrap_or(now);
        match queue.completions.try_event() {
            Ok(_) => 0,
            Err(error) => self.fail(error.into(), handle),
        }
    }

    fn poll_events(&mut self, handle: &mut dyn FnMut(&mut UdQueue, Event<'_>)) -> usize {
        let mut count = self.reopen_if_due(handle);
        let Lifecycle::Open(queue) = &mut self.state else { return count };
        let polled = if queue.batch.is_empty() {
            let polled = queue.completions.poll(&mut queue.batch);
            // The oldest is handled first.
            queue.batch.reverse();
            polled
        } else {
            Ok(0)
        };
        let polled_at = Instant::now();
        if polled_at.saturating_duration_since(queue.checked_at) >= CHECK_INTERVAL {
            queue.checked_at = polled_at;
            match self.check(handle) {
                Ok(events) => count += events,
                Err(error) => return count + self.fail(error, handle),
            }
        }
        let polled_at = Stamp::from_instant(polled_at, StampKind::Process);
        let mut failure = None;
        while let Lifecycle::Open(queue) = &mut self.state
            && let Some(completion) = queue.batch.pop()
        {
            let stamp = queue.stamp(&completion, polled_at);
            count += 1;
            let handled = match completion.tag() {
                RECV_TAG => self.received(completion, stamp, handle),
                _ => self.sent(completion, stamp, handle),
            };
            if let Err(error) = handled {
                failure = Some(error);
            }
        }
        match polled.err().map(ProbeError::from).or(failure) {
            Some(error) => count + self.fail(self.root_cause(error), handle),
            None => count,
        }
    }

    /// Handles the completion of a receive. Returns an error if the queue pair has failed.
    fn received(
        &mut self,
        completion: Completion,
        stamp: Stamp,
        handle: &mut dyn FnMut(&mut UdQueue, Event<'_>),
    ) -> Result<()> {
        let Lifecycle::Open(queue) = &mut self.state else { return Ok(()) };
        queue.posted_receives -= 1;
        if let Err(failure) = completion.outcome() {
            self.stats.recv_failures += 1;
            queue.check_state(failure)?;
            return completion.into_buffer().map_or(Ok(()), |buffer| queue.post_recv(buffer));
        }
        let datagram = completion.into_datagram()?;
        if let Some(ip_header) = datagram.ip_header {
            self.stats.received += 1;
            let received =
                Received { stamp, source_qpn: datagram.source_qpn, ip_header, payload: &datagram.message };
            handle(self, Event::Received(received));
        } else {
            self.stats.recv_failures += 1;
        }
        // The slot is posted only now, after the caller has read it.
        match &mut self.state {
            Lifecycle::Open(queue) => queue.post_recv(datagram.message),
            Lifecycle::Failed { .. } => Ok(()),
        }
    }

    /// Handles the completion of a send. Returns an error if the queue pair has failed.
    fn sent(
        &mut self,
        completion: Completion,
        stamp: Stamp,
        handle: &mut dyn FnMut(&mut UdQueue, Event<'_>),
    ) -> Result<()> {
        let Lifecycle::Open(queue) = &mut self.state else { return Ok(()) };
        let (number, request, failure) = (completion.tag(), completion.id(), completion.outcome().err());
        let state = failure.map_or(Ok(()), |failure| queue.check_state(failure));
        match queue.slots.complete(number, request, completion.into_buffer()) {
            Match::Sent(datagram) => {
                *(if failure.is_none() { &mut self.stats.sent } else { &mut self.stats.send_failures }) += 1;
                let sent = Sent { id: datagram.id, posted_at: datagram.posted_at, stamp, failure };
                handle(self, Event::Sent(sent));
            }
            Match::Abandoned => self.stats.send_failures += 1,
            Match::Unmatched => self.stats.unmatched += 1,
        }
        state
    }

    /// Checks the sources of rare events, and returns the number of events.
    fn check(&mut self, handle: &mut dyn FnMut(&mut UdQueue, Event<'_>)) -> Result<usize> {
        let mut count = 0;
        while let Lifecycle::Open(queue) = &self.state
            && let Some(event) = queue.device_event()?
        {
            if queue.is_fatal(event) {
                return Err(queue.failure(event));
            }
            count += 1;
            handle(self, Event::Device(event));
        }
        let Lifecycle::Open(queue) = &mut self.state else { return Ok(count) };
        queue.replace_receives()?;
        if let (Some(listener), Some((_, private_data))) = (&queue.listener, &self.service) {
            let (answered, rejected) = service::answer(listener, &queue.queue_pair, private_data)?;
            self.stats.answered += answered;
            self.stats.rejected += rejected;
        }
        let mut index = 0;
        while let Lifecycle::Open(queue) = &mut self.state
            && let Some(lookup) = queue.lookups.get_mut(index)
        {
            let Some(result) = lookup.poll(&queue.queue_pair) else {
                index += 1;
                continue;
            };
            queue.lookups.swap_remove(index);
            count += 1;
            handle(self, Event::LookedUp(result));
        }
        Ok(count)
    }

    /// Returns the device's failure, if it has reported one, and otherwise the error of a request.
    fn root_cause(&self, error: ProbeError) -> ProbeError {
        while let Lifecycle::Open(queue) = &self.state
            && let Ok(Some(event)) = queue.device_event()
        {
            if queue.is_fatal(event) {
                return queue.failure(event);
            }
        }
        error
    }

    /// Ends the use of a failed device: datagrams in flight and lookups fail. Returns the number of events.
    fn fail(&mut self, error: ProbeError, handle: &mut dyn FnMut(&mut UdQueue, Event<'_>)) -> usize {
        let delay = self.options.min_reopen_delay;
        let retry_at = Instant::now() + delay;
        let failed = Lifecycle::Failed { retry_at, next_delay: self.next_delay(delay) };
        let Lifecycle::Open(queue) = std::mem::replace(&mut self.state, failed) else { return 0 };
        self.stats.device_failures += 1;
        self.count_handles(&queue);
        tracing::warn!(
            error = %WithCauses(&error),
            device = queue.device.name(),
            "a UD queue has failed; its device is opened again"
        );
        let now = Stamp::now();
        let mut count = 1;
        for datagram in queue.slots.in_flight() {
            count += 1;
            self.stats.send_failures += 1;
            let failure = Some(Failure { status: Status::Flushed, vendor_error: 0 });
            let sent = Sent { id: datagram.id, posted_at: datagram.posted_at, stamp: now, failure };
            handle(self, Event::Sent(sent));
        }
        for lookup in queue.lookups {
            count += 1;
            handle(self, Event::LookedUp(lookup.into_failure()));
        }
        handle(self, Event::Failed(error));
        count
    }

    /// Opens the device again, if it has failed and the delay is over. Returns the number of events.
    fn reopen_if_due(&mut self, handle: &mut dyn FnMut(&mut UdQueue, Event<'_>)) -> usize {
        let Lifecycle::Failed { retry_at, next_delay } = self.state else { return 0 };
        let now = Instant::now();
        if now < retry_at {
            return 0;
        }
        match self.reopen() {
            Ok(queue) => {
                self.state = Lifecycle::Open(Box::new(queue));
                self.stats.reopens += 1;
                handle(self, Event::Reopened);
                1
            }
            Err(error) => {
                tracing::warn!(error = %WithCauses(&error), "opening the device of a UD queue again failed");
                let retry_at = now + next_delay;
                self.state = Lifecycle::Failed { retry_at, next_delay: self.next_delay(next_delay) };
                0
            }
        }
    }

    fn reopen(&mut self) -> Result<OpenQueue> {
        let mut queue = OpenQueue::open((self.opener)()?, &self.options, &self.waker)?;
        if let Some((port, _)) = self.service {
            queue.listen(port)?;
        }
        Ok(queue)
    }

    fn next_delay(&self, delay: Duration) -> Duration {
        (2 * delay).min(self.options.max_reopen_delay)
    }

    /// Makes the queue findable: peers that look up the queue's address and this port get its queue pair number, and
    /// `private_data`. With port 0, the system chooses a free port. Returns the address and port.
    ///
    /// [`poll`](UdQueue::poll) and [`wait`](UdQueue::wait) answer the lookups.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::PrivateDataTooLong`] if the private data is longer than [`MAX_DATAGRAM_REPLY_DATA`] bytes,
    /// [`ProbeError::DeviceFailed`] while the device has failed, and [`ProbeError::Verbs`] if the port is in use.
    pub fn listen(&mut self, port: u16, private_data: &[u8]) -> Result<SocketAddr> {
        check_private_data(private_data)?;
        let address = self.open_queue("listening for lookups")?.listen(port)?;
        self.service = Some((address.port(), private_data.to_vec()));
        Ok(address)
    }

    /// Changes the private data of the answers to lookups.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::PrivateDataTooLong`], and [`ProbeError::NotListening`] if the queue doesn't
    /// [listen](UdQueue::listen).
    pub fn set_private_data(&mut self, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data)?;
        let Some((_, current)) = &mut self.service else {
            return Err(ProbeError::NotListening);
        };
        private_data.clone_into(current);
        Ok(())
    }

    /// Looks up the queue pair that listens at an address and port, and waits for the answer. [`Waker::stop`] ends the
    /// wait.
    ///
    /// Events are not handled meanwhile: see [`begin_lookup`](UdQueue::begin_lookup).
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::Verbs`] with [`Unreachable`](adverb_verbs::Error::Unreachable) if there is no route to the
    /// peer or the peer doesn't answer in time, with [`CmRejected`](adverb_verbs::Error::CmRejected) if no listener is at
    /// that port, and with [`InvalidRequest`](adverb_verbs::Error::InvalidRequest) if the route to the peer begins at
    /// another device; [`ProbeError::DeviceFailed`] while the device has failed; and [`ProbeError::Stopped`].
    pub fn lookup(&mut self, peer: SocketAddr, timeout: Duration) -> Result<Service> {
        let waker = self.waker.clone();
        let queue = self.open_queue(LOOKUP)?;
        PendingLookup::begin(&queue.queue_pair, 0, peer, timeout)?.wait(&queue.queue_pair, &waker)
    }

    /// Starts a lookup like [`lookup`](UdQueue::lookup). Its result is an [`Event::LookedUp`] with the number `id`,
    /// which may be any number.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::TooManyLookups`] if [`MAX_LOOKUPS`] lookups are pending, and the same errors as
    /// [`lookup`](UdQueue::lookup) if the lookup can't be started.
    pub fn begin_lookup(&mut self, id: u64, peer: SocketAddr, timeout: Duration) -> Result<()> {
        let queue = self.open_queue(LOOKUP)?;
        if queue.lookups.len() >= MAX_LOOKUPS {
            return Err(ProbeError::TooManyLookups { max: MAX_LOOKUPS });
        }
        let lookup = PendingLookup::begin(&queue.queue_pair, id, peer, timeout)?;
        queue.watch.add(lookup.as_fd()).map_err(watch_error)?;
        queue.lookups.push(lookup);
        Ok(())
    }

    /// Cancels the pending lookups with this number.
    pub(crate) fn cancel_lookups(&mut self, id: u64) {
        if let Lifecycle::Open(queue) = &mut self.state {
            queue.lookups.retain(|lookup| lookup.id != id);
        }
    }

    /// Returns a handle that wakes or stops the caller of [`wait`](UdQueue::wait).
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Whether [`Waker::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.waker.is_stopped()
    }

    /// Returns the device, or `None` while it has failed.
    pub fn device(&self) -> Option<&Device> {
        self.if_open().map(|queue| &queue.device)
    }

    /// Returns the number of the queue pair, or `None` while the device has failed.
    pub fn qpn(&self) -> Option<Qpn> {
        self.if_open().map(|queue| queue.queue_pair.qpn())
    }

    /// Returns the GID of the queue pair, or `None` while the device has failed.
    pub fn gid(&self) -> Option<&GidEntry> {
        self.if_open().map(|queue| &queue.gid)
    }

    /// Returns this queue as the destination of datagrams, or `None` while the device has failed.
    pub fn local(&self) -> Option<Destination> {
        let queue = self.if_open()?;
        Some(Destination { gid: queue.gid.gid, qpn: queue.queue_pair.qpn(), qkey: UD_QKEY })
    }

    /// Returns the maximum length of a payload in bytes: the MTU of the port. It is 0 while the device has failed.
    pub fn max_payload(&self) -> usize {
        self.if_open().map_or(0, |queue| queue.queue_pair.max_message_size() as usize)
    }

    /// Returns the number of datagrams that can be sent now.
    pub fn free_send_slots(&self) -> usize {
        self.if_open().map_or(0, |queue| queue.slots.free_count())
    }

    /// Returns the number of cached address handles.
    pub fn address_handle_count(&self) -> usize {
        self.if_open().map_or(0, |queue| queue.addresses.len())
    }

    /// Returns the counters.
    pub fn stats(&self) -> UdQueueStats {
        let mut stats = self.stats;
        if let Some(queue) = self.if_open() {
            stats.address_handles_created += queue.addresses.created_count;
            stats.address_handles_evicted += queue.addresses.evicted_count;
        }
        stats
    }

    /// Adds the counters of a device that has failed.
    fn count_handles(&mut self, queue: &OpenQueue) {
        self.stats.address_handles_created += queue.addresses.created_count;
        self.stats.address_handles_evicted += queue.addresses.evicted_count;
    }

    fn if_open(&self) -> Option<&OpenQueue> {
        match &self.state {
            Lifecycle::Open(queue) => Some(queue),
            Lifecycle::Failed { .. } => None,
        }
    }

    fn open_queue(&mut self, action: &'static str) -> Result<&mut OpenQueue> {
        match &mut self.state {
            Lifecycle::Open(queue) => Ok(queue),
            Lifecycle::Failed { .. } => Err(ProbeError::DeviceFailed { action }),
        }
    }
}

impl fmt::Debug for UdQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdQueue")
            .field("device", &self.device())
            .field("qpn", &self.qpn())
            .finish_non_exhaustive()
    }
}

fn check_private_data(private_data: &[u8]) -> Result<()> {
    let (len, max) = (private_data.len(), MAX_DATAGRAM_REPLY_DATA);
    if len > max { Err(ProbeError::PrivateDataTooLong { len, max }) } else { Ok(()) }
}
