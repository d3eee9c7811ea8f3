//! The prober: sends probes to responders and reports their results.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use adverb_verbs::internal::WithCauses;
use adverb_verbs::{Device, Error, Key, Traffic};

use crate::error::{ProbeError, Result, check_range};
use crate::format::{MAX_PROBE_LEN, Message, PROBE_LEN, ParseError, Sequence};
use crate::key::TagKey;
use crate::random;
use crate::session::{Lookup, ProbeCounts, ProbeEvent, ProbeEventKind, ProbeResult, Session, SessionConfig};
use crate::stamp::Stamp;
use crate::ud_queue::{Event, LookupResult, Sent, Service, UdQueue, Waker};

/// The options of a prober.
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct ProberOptions {
    local_addr: Option<IpAddr>,
    key: Option<TagKey>,
    session: SessionConfig,
    probe_len: usize,
    lookup_timeout: Duration,
    recv_slots: u32,
    spin: Duration,
    process_stamps: bool,
}

impl ProberOptions {
    /// Creates the default options: the device's first address, no key, probes of 96 bytes, a timeout of 500 ms.
    pub fn new() -> ProberOptions {
        ProberOptions {
            local_addr: None,
            key: None,
            session: SessionConfig::default(),
            probe_len: PROBE_LEN,
            lookup_timeout: DEFAULT_LOOKUP_TIMEOUT,
            recv_slots: DEFAULT_RECV_SLOTS,
            spin: Duration::ZERO,
            process_stamps: false,
        }
    }

    /// Sets the local address, which selects the device's port and GID.
    pub fn local_addr(mut self, addr: IpAddr) -> ProberOptions {
        self.local_addr = Some(addr);
        self
    }

    /// Sets the key, which must be that of the responders.
    pub fn key(mut self, key: &Key) -> ProberOptions {
        self.key = Some(TagKey::new(key));
        self
    }

    /// Sets the time after which a probe without complete answers has timed out. The default is 500 ms.
    pub fn timeout(mut self, timeout: Duration) -> ProberOptions {
        self.session.timeout = timeout;
        self
    }

    /// Sets the time after the timeout for which late answers are accepted. The default is 500 ms.
    pub fn grace(mut self, grace: Duration) -> ProberOptions {
        self.session.grace = grace;
        self
    }

    /// Sets the maximum number of outstanding probes for each responder, between 1 and 1024. The default is 64.
    pub fn max_outstanding(mut self, count: usize) -> ProberOptions {
        self.session.max_outstanding = count;
        self
    }

    /// Sets the length of probes in bytes, between [`PROBE_LEN`] and [`MAX_PROBE_LEN`]. It must not exceed the MTU.
    pub fn probe_len(mut self, len: usize) -> ProberOptions {
        self.probe_len = len;
        self
    }

    /// Sets the time limit of looking up a responder in [`Prober::connect`], which repeats the request until then. The
    /// default is [`DEFAULT_LOOKUP_TIMEOUT`].
    pub fn lookup_timeout(mut self, timeout: Duration) -> ProberOptions {
        self.lookup_timeout = timeout;
        self
    }

    /// Sets the number of acknowledgements that may arrive before the caller polls. A probe has two acknowledgements, and
    /// each slot takes the memory of a packet of the MTU. The default is 1024.
    pub fn recv_slots(mut self, count: u32) -> ProberOptions {
        self.recv_slots = count;
        self
    }

    /// Sets the time for which a waiting caller spins before it sleeps: see
    /// [`UdQueueBuilder::spin`](crate::ud_queue::UdQueueBuilder::spin).
    pub fn spin(mut self, spin: Duration) -> ProberOptions {
        self.spin = spin;
        self
    }

    /// Sets whether all stamps are the process's: see
    /// [`UdQueueBuilder::process_stamps`](crate::ud_queue::UdQueueBuilder::process_stamps).
    pub fn process_stamps(mut self, enabled: bool) -> ProberOptions {
        self.process_stamps = enabled;
        self
    }

    /// Creates a prober on the device that `open_device` opens. The prober calls the function again after the device has
    /// failed.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::Verbs`] if the device can't be opened, [`ProbeError::ProbeTooLong`] if probes are longer than
    /// the MTU, and [`ProbeError::InvalidOption`] if an option is outside its range.
    pub fn open(
        self,
        open_device: impl FnMut() -> adverb_verbs::Result<Device> + Send + 'static,
    ) -> Result<Prober> {
        let max_outstanding = self.session.max_outstanding as u64;
        check_range("ProberOptions::max_outstanding", max_outstanding, 1..=MAX_OUTSTANDING)?;
        let (min, max) = (PROBE_LEN as u64, MAX_PROBE_LEN as u64);
        check_range("ProberOptions::probe_len", self.probe_len as u64, min..=max)?;
        let builder = UdQueue::builder(open_device)
            .send_slots(SEND_SLOTS)
            .recv_slots(self.recv_slots)
            .spin(self.spin)
            .process_stamps(self.process_stamps);
        let builder = match self.local_addr {
            Some(addr) => builder.local_addr(addr),
            None => builder,
        };
        let queue = builder.open()?;
        if self.probe_len > queue.max_payload() {
            return Err(ProbeError::ProbeTooLong { len: self.probe_len, max: queue.max_payload() });
        }
        let targets = Targets {
            options: self,
            list: Vec::new(),
            by_epoch: HashMap::new(),
            strays: Strays::default(),
            lookup_results: Vec::new(),
            connecting: None,
            connect_count: 0,
        };
        Ok(Prober { queue, targets })
    }
}

impl Default for ProberOptions {
    fn default() -> ProberOptions {
        ProberOptions::new()
    }
}

/// The maximum of [`ProberOptions::max_outstanding`].
const MAX_OUTSTANDING: u64 = 1024;
/// The maximum number of probes in flight, to all responders together.
const SEND_SLOTS: u32 = 512;
/// Default of [`ProberOptions::recv_slots`].
const DEFAULT_RECV_SLOTS: u32 = 1024;
/// Default of [`ProberOptions::lookup_timeout`].
pub const DEFAULT_LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between lookups of a responder that doesn't answer.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum duration of one lookup, after which another one is sent.
const MAX_LOOKUP_DURATION: Duration = Duration::from_secs(2);
/// Time after which the first request of [`Prober::connect`] is repeated. The interval doubles with each repetition. The
/// kernel's connection manager repeats a lost request only after 4 s.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The bit of a lookup's number that distinguishes the lookups of [`Prober::connect`] from those of known responders.
const CONNECT_ID: u64 = 1 << 63;

/// A responder that a [`Prober`] knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer(usize);

/// The path and class of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ProbePath {
    /// The flow label, which selects the source port; 0 to let the device choose: see [`paths`](crate::paths).
    pub flow_label: u32,
    /// The differentiated services code point.
    pub dscp: u8,
}

/// The numbers of datagrams that a prober received and that belong to none of its probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Strays {
    /// Acknowledgements of an epoch that is not the prober's.
    pub unmatched_acks: u64,
    /// Acknowledgements with an invalid tag: the prober has a key, and the responder has none. (A responder with a key
    /// doesn't answer probes of another key, which count as lost.)
    pub bad_tags: u64,
    /// Datagrams that are no acknowledgements.
    pub invalid: u64,
}

/// A prober: sends probes to any number of responders. One thread uses it; it has no thread of its own.
///
/// [`Responder`](crate::Responder) has an example, and [`Summary`](crate::histogram::Summary) one of many probes.
/// [`probe`](Prober::probe) sends one probe and waits for its result; [`post`](Prober::post) and [`wait`](Prober::wait) have
/// many probes outstanding. On an in-memory [`Switch`](adverb_verbs::Switch), the round-trip time of the network is unknown.
#[derive(Debug)]
pub struct Prober {
    queue: UdQueue,
    targets: Targets,
}

/// The prober's state besides its queue.
#[derive(Debug)]
struct Targets {
    options: ProberOptions,
    list: Vec<Target>,
    /// The targets by the epochs of their sessions.
    by_epoch: HashMap<u32, usize>,
    strays: Strays,
    /// The results of lookups, until the acknowledgements that arrived before them are handled.
    lookup_results: Vec<LookupResult>,
    /// The responder that [`Prober::connect`] looks up.
    connecting: Option<Connecting>,
    /// The number of calls of [`Prober::connect`].
    connect_count: u64,
}

/// The lookup of [`Prober::connect`]. Earlier requests stay pending when the request is repeated, because a slow host may
/// answer only the first one.
#[derive(Debug)]
struct Connecting {
    id: u64,
    addr: SocketAddr,
    next_request: Instant,
    retry_interval: Duration,
    result: Option<Result<Service>>,
}

#[derive(Debug)]
struct Target {
    addr: SocketAddr,
    session: Session,
    /// The responder's queue pair, as the last successful lookup found it.
    service: Option<Service>,
    lookup: LookupState,
}

#[derive(Clone, Copy, Debug)]
enum LookupState {
    Idle { not_before: Instant },
    Pending,
}

impl Prober {
    /// Creates a prober with the default options on an open device.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ProberOptions::open`].
    pub fn open(device: &Device) -> Result<Prober> {
        let device = device.clone();
        ProberOptions::new().open(move || Ok(device.clone()))
    }

    /// Looks up a responder and waits for the answer. The request is repeated until the
    /// [timeout](ProberOptions::lookup_timeout), because requests and answers can be lost.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::Verbs`] with [`Unreachable`](adverb_verbs::Error::Unreachable) if the responder's host doesn't
    /// answer in time, or with [`CmRejected`](adverb_verbs::Error::CmRejected) if no responder listens at the port; and
    /// [`ProbeError::Stopped`] if a [waker](Prober::waker) stops the prober.
    pub fn connect(&mut self, addr: SocketAddr) -> Result<Peer> {
        self.begin_connect(addr);
        loop {
            self.poll_events();
            if let Some(connected) = self.poll_connect() {
                return connected;
            }
            let now = Instant::now();
            let left = self.next_due(now).map_or(Duration::MAX, |due| due.saturating_duration_since(now));
            let Prober { queue, targets } = self;
            queue.wait(left, |queue, event| targets.handle(queue, event));
        }
    }

    /// Begins to look up a responder. An earlier lookup that is not complete is cancelled.
    pub(crate) fn begin_connect(&mut self, addr: SocketAddr) {
        self.end_connect();
        self.targets.connect_count += 1;
        self.targets.connecting = Some(Connecting {
            id: CONNECT_ID | self.targets.connect_count,
            addr,
            next_request: Instant::now(),
            retry_interval: CONNECT_RETRY_INTERVAL,
            result: None,
        });
    }

    /// Cancels the requests of [`begin_connect`](Prober::begin_connect).
    fn end_connect(&mut self) {
        if let Some(connecting) = self.targets.connecting.take() {
            self.queue.cancel_lookups(connecting.id);
        }
    }

    /// Returns the result of [`begin_connect`](Prober::begin_connect), if there is one.
    pub(crate) fn poll_connect(&mut self) -> Option<Result<Peer>> {
        let connecting = self.targets.connecting.as_mut()?;
        let result = match connecting.result.take() {
            None if self.queue.is_stopped() => Err(ProbeError::Stopped { action: "looking up a responder" }),
            None => return None,
            Some(result) => result,
        };
        let addr = connecting.addr;
        self.end_connect();
        Some(result.and_then(|service| {
            let peer = self.add(addr)?;
            self.targets.list[peer.0].service = Some(service);
            Ok(peer)
        }))
    }

    /// Adds a responder without waiting. [`wait`](Prober::wait) repeats its lookup until it answers;
    /// [`is_found`](Prober::is_found) returns whether it did.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::System`] if the system has no random numbers.
    pub fn add(&mut self, addr: SocketAddr) -> Result<Peer> {
        let epoch = random::<4>().map(u32::from_be_bytes)?;
        let index = self.targets.list.len();
        self.targets.by_epoch.insert(epoch, index);
        self.targets.list.push(Target {
            addr,
            session: Session::with_epoch(epoch, self.targets.options.session),
            service: None,
            lookup: LookupState::Idle { not_before: Instant::now() },
        });
        Ok(Peer(index))
    }

    /// Whether the responder has been found.
    pub fn is_found(&self, peer: &Peer) -> bool {
        self.targets.list[peer.0].service.is_some()
    }

    /// Returns the responder's queue pair, as the last successful lookup found it.
    pub fn service(&self, peer: &Peer) -> Option<&Service> {
        self.targets.list[peer.0].service.as_ref()
    }

    /// Sends a probe, without waiting. Its events are passed to the function of [`wait`](Prober::wait). Returns `false`
    /// if the responder hasn't been found, if too many probes are outstanding, or while the device has failed. After
    /// 2^32 − 1 probes it returns `false` until they all have a result, and then begins a new epoch.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::Verbs`] if the address handle can't be created.
    pub fn post(&mut self, peer: &Peer, path: ProbePath) -> Result<bool> {
        Ok(self.post_probe(peer, path)?.is_some())
    }

    /// Sends a probe like [`post`](Prober::post), and returns its sequence.
    pub(crate) fn post_probe(&mut self, peer: &Peer, path: ProbePath) -> Result<Option<Sequence>> {
        if self.targets.list[peer.0].session.is_exhausted() {
            self.targets.begin_epoch(peer.0);
        }
        let target = &mut self.targets.list[peer.0];
        let Some(service) = &target.service else { return Ok(None) };
        let Some(prober) = self.queue.local().filter(|_| self.queue.free_send_slots() > 0) else {
            return Ok(None);
        };
        let Some(probe) = target.session.begin(Stamp::now(), path.flow_label, path.dscp) else {
            return Ok(None);
        };
        let traffic = Traffic::new().dscp(path.dscp);
        let traffic = if path.flow_label == 0 { traffic } else { traffic.flow_label(path.flow_label) };
        let id = u64::from(probe.sequence.epoch) << 32 | u64::from(probe.sequence.number);
        let (len, key) = (self.targets.options.probe_len, self.targets.options.key.as_ref());
        let posted = self.queue.send_with(id, &service.destination, traffic, |slot| {
            if let Some(slot) = slot.get_mut(..len) {
                probe.write(slot, &prober, key);
            }
            len
        });
        if posted.is_err() {
            target.session.handle_not_sent(probe.sequence);
        }
        match posted {
            Ok(_) => Ok(Some(probe.sequence)),
            Err(
                ProbeError::SendSlotsFull { .. }
                | ProbeError::DeviceFailed { .. }
                | ProbeError::Verbs(Error::QueueFull { .. } | Error::WrongState { .. }),
            ) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for events of probes, and calls `handle` with each of them. Returns their number, which is 0 if the timeout
    /// expires or a [waker](Prober::waker) ends the wait. A `timeout` of `None` means no limit.
    pub fn wait(
        &mut self,
        timeout: impl Into<Option<Duration>>,
        mut handle: impl FnMut(Peer, ProbeEvent),
    ) -> usize {
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let now = Instant::now();
            let due = deadline.into_iter().chain(self.next_due(now)).min();
            let left = due.map_or(Duration::MAX, |due| due.saturating_duration_since(now));
            let Prober { queue, targets } = self;
            queue.wait(left, |queue, event| targets.handle(queue, event));
            self.poll_events();
            let count = self.take_events(&mut handle);
            let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
            if count > 0 || is_over || self.queue.is_stopped() {
                return count;
            }
        }
    }

    /// Handles all available events, without waiting, and begins the lookups that are due.
    pub(crate) fn poll_events(&mut self) {
        let Prober { queue, targets } = self;
        // Acknowledgements that arrived before this time are handled before any probe times out or counts as lost,
        // even if this process was suspended.
        let now = loop {
            let now = Stamp::now();
            if queue.poll(|queue, event| targets.handle(queue, event)) == 0 {
                break now;
            }
        };
        targets.handle_lookups(now.nanos);
        targets.handle_timeout(now.nanos);
        targets.begin_lookups(queue, Instant::now());
    }

    /// Calls `handle` with the events of probes that are available, and returns their number.
    pub(crate) fn take_events(&mut self, handle: &mut impl FnMut(Peer, ProbeEvent)) -> usize {
        let mut count = 0;
        for (index, target) in self.targets.list.iter_mut().enumerate() {
            while let Some(event) = target.session.poll_event() {
                count += 1;
                handle(Peer(index), event);
            }
        }
        count
    }

    /// Returns the time of the next action of a session or a lookup, apart from events of the queue.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.targets.next_due(now)
    }

    /// Prepares a sleep until the queue is [ready](UdQueue::readiness). Returns whether there were events, which were
    /// handled, so that the caller must not sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let Prober { queue, targets } = self;
        queue.prepare_sleep(&mut |queue, event| targets.handle(queue, event)) > 0
    }

    /// Handles the end of a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn handle_readiness(&mut self) {
        let Prober { queue, targets } = self;
        queue.handle_readiness(&mut |queue, event| targets.handle(queue, event));
    }

    /// Returns the time limit of sending one probe, and of waiting for its result.
    pub(crate) fn probe_timeout(&self) -> Duration {
        let ProberOptions { session, lookup_timeout, .. } = &self.targets.options;
        session.timeout + session.grace + (*lookup_timeout).min(MAX_LOOKUP_DURATION)
    }

    /// Returns the error of a probe that can't be sent.
    pub(crate) fn not_sent(&self) -> ProbeError {
        let action = "sending a probe";
        match self.queue.is_stopped() {
            true => ProbeError::Stopped { action },
            false => ProbeError::TimedOut { action, timeout: self.probe_timeout() },
        }
    }

    /// Sends a probe and waits for its result.
    ///
    /// Events of other probes are dropped: don't mix this method with [`post`](Prober::post).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`post`](Prober::post), and [`ProbeError::TimedOut`] or
    /// [`ProbeError::Stopped`] if the probe can't be sent.
    pub fn probe(&mut self, peer: &Peer) -> Result<ProbeResult> {
        self.probe_on(peer, ProbePath::default())
    }

    /// Sends a probe like [`probe`](Prober::probe), on a path and in a class.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`probe`](Prober::probe).
    pub fn probe_on(&mut self, peer: &Peer, path: ProbePath) -> Result<ProbeResult> {
        let limit = self.probe_timeout();
        let started = Instant::now();
        let sequence = loop {
            if let Some(sequence) = self.post_probe(peer, path)? {
                break sequence;
            }
            if started.elapsed() >= limit || self.queue.is_stopped() {
                return Err(self.not_sent());
            }
            self.wait(Duration::from_millis(10), |_, _| {});
        };
        let mut result = None;
        let posted = Instant::now();
        while result.is_none() {
            let left = limit.saturating_sub(posted.elapsed());
            if left.is_zero() || self.queue.is_stopped() {
                // Neither the probe nor the lookups of the responder were answered.
                self.finish(peer);
            }
            self.wait(left, |event_peer, event| {
                if let ProbeEventKind::Finished(finished) = event.kind
                    && event_peer == *peer
                    && event.probe.sequence == sequence
                {
                    result = Some(finished);
                }
            });
        }
        result.ok_or(ProbeError::TimedOut { action: "waiting for a probe", timeout: limit })
    }

    /// Ends all probes of a responder that have no result. The result of a probe that has not timed out is
    /// [`Ended`](crate::session::ProbeResult::Ended). That of a probe that timed out without any answer is
    /// [`Unreachable`](crate::session::ProbeResult::Unreachable). The next [`wait`](Prober::wait) passes the results.
    pub fn finish(&mut self, peer: &Peer) {
        self.targets.list[peer.0].session.finish();
    }

    /// Returns the counts of a responder's probes.
    pub fn counts(&self, peer: &Peer) -> ProbeCounts {
        *self.targets.list[peer.0].session.counts()
    }

    /// Returns the number of a responder's probes that have no result.
    pub fn open_count(&self, peer: &Peer) -> usize {
        let session = &self.targets.list[peer.0].session;
        session.outstanding_count() + session.timed_out_count()
    }

    /// Returns the number of a responder's probes that have neither a result nor timed out.
    pub fn outstanding_count(&self, peer: &Peer) -> usize {
        self.targets.list[peer.0].session.outstanding_count()
    }

    /// Returns the numbers of datagrams that belong to no probe.
    pub fn strays(&self) -> Strays {
        self.targets.strays
    }

    /// Returns a handle that wakes or stops a waiting caller from another thread.
    pub fn waker(&self) -> Waker {
        self.queue.waker()
    }

    /// Returns the queue.
    pub fn queue(&self) -> &UdQueue {
        &self.queue
    }
}

impl Targets {
    fn handle(&mut self, queue: &UdQueue, event: Event<'_>) {
        match event {
            Event::Sent(sent) => self.handle_sent(&sent),
            Event::Received(datagram) => {
                // A queue that receives a datagram is open.
                let Some(prober) = queue.local() else { return };
                match Message::parse(datagram.payload, &prober, self.options.key.as_ref()) {
                    Ok(Message::Ack(ack)) => match self.by_epoch.get(&ack.sequence.epoch) {
                        Some(&index) => {
                            self.list[index].session.handle_ack(&ack, datagram.stamp, Stamp::now());
                        }
                        None => self.strays.unmatched_acks += 1,
                    },
                    Err(ParseError::Tag) => self.strays.bad_tags += 1,
                    _ => self.strays.invalid += 1,
                }
            }
            Event::LookedUp(result) => self.lookup_results.push(result),
            // Probes in flight were lost in this host, and a reopened device has another clock.
            Event::Failed(_) => (0..self.list.len()).for_each(|index| self.end_epoch(index)),
            _ => {}
        }
    }

    fn handle_sent(&mut self, sent: &Sent) {
        let sequence = Sequence { epoch: (sent.id >> 32) as u32, number: sent.id as u32 };
        let Some(&index) = self.by_epoch.get(&sequence.epoch) else { return };
        let session = &mut self.list[index].session;
        match sent.failure {
            None => session.handle_sent(sequence, Some(sent.stamp)),
            Some(_) => session.handle_not_sent(sequence),
        }
    }

    fn handle_lookups(&mut self, now: u64) {
        while let Some(result) = self.lookup_results.pop() {
            self.handle_lookup(result, now);
        }
    }

    fn handle_lookup(&mut self, result: LookupResult, now: u64) {
        if result.id & CONNECT_ID != 0 {
            if let Some(connecting) = &mut self.connecting
                && connecting.id == result.id
            {
                connecting.result.get_or_insert(result.service);
            }
            return;
        }
        let index = result.id as usize;
        let Some(target) = self.list.get_mut(index) else { return };
        target.lookup = LookupState::Idle { not_before: Instant::now() + LOOKUP_INTERVAL };
        match result.service {
            Ok(found) if target.service.as_ref() == Some(&found) => {
                let epoch = target.session.epoch();
                target.session.handle_lookup(Lookup::Same, epoch, now);
            }
            Ok(found) => {
                let is_known = target.service.replace(found).is_some();
                if is_known {
                    self.end_epoch(index);
                }
            }
            // The host answered that there is no responder.
            Err(ProbeError::Verbs(Error::CmRejected { .. })) => {
                if target.service.take().is_some() {
                    self.end_epoch(index);
                }
            }
            // Nothing is known until a lookup is answered.
            Err(error) => {
                tracing::debug!(error = %WithCauses(&error), peer = %target.addr, "a lookup of a responder failed");
            }
        }
    }

    fn end_epoch(&mut self, index: usize) {
        let epoch = self.next_epoch(index);
        self.list[index].session.handle_lookup(Lookup::Ended, epoch, Stamp::now().nanos);
        self.remember_epoch(index, epoch);
    }

    /// Begins the next epoch of a session that has used all its numbers, unless probes have no result yet.
    fn begin_epoch(&mut self, index: usize) {
        let epoch = self.next_epoch(index);
        if self.list[index].session.begin_epoch(epoch) {
            self.remember_epoch(index, epoch);
        }
    }

    fn next_epoch(&self, index: usize) -> u32 {
        // Without random numbers, the successor is at least different.
        let next = self.list[index].session.epoch().wrapping_add(1);
        random::<4>().map_or(next, u32::from_be_bytes)
    }

    /// Maps the new epoch of a session to its target.
    fn remember_epoch(&mut self, index: usize, epoch: u32) {
        self.by_epoch.insert(epoch, index);
        let list = &self.list;
        self.by_epoch.retain(|&epoch, &mut index| list[index].session.is_own_epoch(epoch));
    }

    fn begin_lookups(&mut self, queue: &mut UdQueue, now: Instant) {
        if let Some(connecting) = &mut self.connecting
            && connecting.next_request <= now
            && connecting.result.is_none()
        {
            let is_first = connecting.retry_interval == CONNECT_RETRY_INTERVAL;
            connecting.next_request = now + connecting.retry_interval;
            connecting.retry_interval *= 2;
            // All requests have the same time limit, so the first one ends first, at the time limit of the caller.
            let begun = queue.begin_lookup(connecting.id, connecting.addr, self.options.lookup_timeout);
            if let Err(error) = begun
                && is_first
            {
                connecting.result = Some(Err(error));
            }
        }
        let timeout = self.options.lookup_timeout.min(MAX_LOOKUP_DURATION);
        for (index, target) in self.list.iter_mut().enumerate() {
            if target.lookup_due().is_some_and(|due| due <= now) {
                let begun = queue.begin_lookup(index as u64, target.addr, timeout);
                target.lookup = match begun {
                    Ok(()) => LookupState::Pending,
                    Err(_) => LookupState::Idle { not_before: now + LOOKUP_INTERVAL },
                };
            }
        }
    }

    fn handle_timeout(&mut self, now: u64) {
        for target in &mut self.list {
            target.session.handle_timeout(now);
        }
    }

    /// Returns the time of the next action of a session or a lookup.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let now_nanos = Stamp::now().nanos;
        let sessions = self.list.iter().filter_map(|target| target.session.poll_timeout());
        let session = sessions.min().map(|due| now + Duration::from_nanos(due.saturating_sub(now_nanos)));
        let lookups = self.list.iter().filter_map(Target::lookup_due);
        let is_open = |connecting: &&Connecting| connecting.result.is_none();
        let request = self.connecting.as_ref().filter(is_open).map(|connecting| connecting.next_request);
        session.into_iter().chain(lookups).chain(request).min()
    }
}

impl Target {
    /// Returns the time at which the responder is to be looked up.
    fn lookup_due(&self) -> Option<Instant> {
        match self.lookup {
            LookupState::Idle { not_before } if self.service.is_none() || self.session.is_unresponsive() => {
                Some(not_before)
            }
            _ => None,
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use adverb_verbs::{SoftDevice, Switch};

    use super::*;
    use crate::Responder;

    #[test]
    fn a_prober_that_used_all_numbers_begins_a_new_epoch() {
        let switch = Switch::default();
        let addrs = [[10, 9, 1, 1], [10, 9, 1, 2]].map(IpAddr::from);
        let [here, there] = addrs.map(|addr| SoftDevice::on_switch(&switch, addr).open().unwrap());
        let responder = Responder::start(&there).unwrap();
        // A timeout that a loaded machine doesn't reach.
        let options = ProberOptions::new().timeout(Duration::from_secs(60)).grace(Duration::from_secs(1));
        let mut prober = options.open(move || Ok(here.clone())).unwrap();
        let peer = prober.connect(responder.local_addr()).unwrap();
        prober.targets.list[0].session.skip_to(u32::MAX - 2);
        let first_epoch = prober.targets.list[0].session.epoch();
        let post = |prober: &mut Prober| prober.post(&peer, ProbePath::default()).unwrap();
        assert!(post(&mut prober) && post(&mut prober));
        // The last probes of the epoch have no result yet.
        assert!(!post(&mut prober));
        let mut finished = Vec::new();
        while finished.len() < 4 {
            if prober.open_count(&peer) == 0 {
                assert!(post(&mut prober));
            }
            prober.wait(Duration::from_secs(1), |_, event| {
                if let ProbeEventKind::Finished(result) = event.kind {
                    finished.push((event.probe.sequence, result.name()));
                }
            });
        }
        let numbers: Vec<u32> = finished.iter().map(|(sequence, _)| sequence.number).collect();
        assert_eq!((numbers[2], numbers[3]), (0, 1), "{finished:?}");
        assert!(finished[..2].iter().all(|(sequence, _)| sequence.epoch == first_epoch), "{finished:?}");
        let counts = prober.counts(&peer);
        assert_eq!((counts.begun, counts.conclusive(), counts.loss()), (4, 4, Some(0.0)), "{finished:?}");
        assert_eq!((prober.targets.by_epoch.len(), prober.strays().unmatched_acks), (2, 0));
    }

    #[test]
    fn an_abandoned_lookup_is_not_due_after_its_end() {
        let device = SoftDevice::on_switch(&Switch::default(), [10, 0, 3, 1].into()).open().unwrap();
        let options = ProberOptions::new().lookup_timeout(Duration::from_millis(10));
        let mut prober = options.open(move || Ok(device.clone())).unwrap();
        let absent = SocketAddr::new([10, 0, 3, 2].into(), 7);
        prober.begin_connect(absent);
        assert!(prober.next_due(Instant::now()).is_some());
        // A task that is cancelled doesn't take the result.
        let is_open =
            |prober: &Prober| prober.targets.connecting.as_ref().is_some_and(|it| it.result.is_none());
        while is_open(&prober) {
            prober.poll_events();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(prober.next_due(Instant::now()), None, "a wait would spin");
        let unreachable = prober.connect(absent);
        assert!(matches!(unreachable, Err(ProbeError::Verbs(Error::Unreachable { .. }))), "{unreachable:?}");
        assert!(prober.targets.connecting.is_none());
    }
}
