//! The state that a NIC's lock protects: the protocol engine, the memory, the link and the event channels.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::trace::Recorder;
use adverb_proto::types::{Gid, TimestampSource};
use adverb_proto::{
    Cq, EventSink, IcrcCheck, Path, QueueEvent, Route, RxMeta, Statistics, Time, Timestamp, TraceEvent,
    Transition,
};
use adverb_wire::cm::{PathMtu, ServiceId};
use adverb_wire::{Packet, Qpn};

use super::NicEvent;
use super::gsi::Gsi;
use super::lock::Notifications;
use super::schedule::{DelayedAck, POLLS_UNTIL_COMPLETION, Schedule};
use super::transmit_queue::{QueuedPacket, TransmitQueue};
use crate::channel::Channel;
use crate::error::Error;
use crate::link::{AddressShare, Link, PathSocket};
use crate::memory::RegisteredMemory;

/// The protocol engine, with a recorder of its events.
pub(super) type Device = adverb_proto::Device<Recorder>;

/// A NIC without its lock and its progress thread.
pub(super) struct Engine {
    pub(super) device: Device,
    pub(super) memory: RegisteredMemory,
    pub(super) gsi: Gsi,
    link: Option<Box<dyn Link>>,
    /// The share of the queue pair numbers, if other processes have the other shares.
    pub(super) share: Option<AddressShare>,
    /// The NIC's addresses and ports. Packets between queue pairs at these addresses are delivered without the link.
    addresses: Vec<SocketAddr>,
    /// Whether loopback packets are sent through the link instead of being delivered directly.
    pub(super) loopback_via_link: bool,
    /// The maximum number of outstanding packets of a queue pair.
    pub(super) window: u32,
    /// The maximum number of outstanding bytes of READ responses of a queue pair. The responses must fit this NIC's
    /// receive buffer.
    pub(super) read_window: u32,
    /// The maximum number of small requests that are coalesced.
    pub(super) coalesce_limit: u32,
    /// The multicast groups that the link has joined.
    groups: Vec<Gid>,
    /// The event channels of completion queues.
    pub(super) channels: BTreeMap<Cq, Arc<Channel>>,
    /// The queue pairs that exist. All of them move to the error state if the NIC fails.
    pub(super) qps: HashSet<Qpn>,
    pub(super) events: VecDeque<NicEvent>,
    /// The channel that is notified of `events`.
    pub(super) event_channel: Arc<Channel>,
    pub(super) notifications: Notifications,
    /// The payload of a packet between queue pairs of this NIC.
    payload: Vec<u8>,
    transmit_queue: TransmitQueue,
    /// The queue pair of the last packet in `transmit_queue`, if that packet completes a request with a timestamp.
    timed_qpn: Option<Qpn>,
    /// The number of completion queues with timestamps.
    timed_cq_count: u32,
    /// The completion queues with the kernel's send times.
    send_timed_cqs: Vec<Cq>,
    /// The source of the link's receive times.
    receive_time_source: TimestampSource,
    /// The channel that is notified when the recorder stops by itself.
    pub(super) recorder_channel: Option<Arc<Channel>>,
    /// The origin of the engine's clock.
    pub(super) start: Instant,
    /// The time at which the engine was last served.
    served_at: Time,
    /// The state that decides which thread drives the engine, and when.
    pub(super) schedule: Schedule,
}

/// Whether the engine has more work at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Neither the engine nor its link was driven, so the deadline is the same as before.
    None,
    /// The engine has no work until a packet arrives or a timer expires.
    Done,
    /// The engine may have more work, because its budget is used up.
    More,
}

impl Engine {
    pub(super) fn new(
        addresses: Vec<SocketAddr>,
        link: Option<Box<dyn Link>>,
        event_channel: Arc<Channel>,
        mtu: PathMtu,
    ) -> Result<Engine, Error> {
        let (mut device, mut memory) = (Device::new(Recorder::default()), RegisteredMemory::default());
        device.set_port_mtu(mtu);
        let buffer = link.as_ref().and_then(|link| link.receive_buffer_bytes());
        let window = buffer.map_or(u32::MAX, |buffer| window(buffer, mtu));
        let read_window = buffer.map_or(u32::MAX, read_window);
        let unicast = addresses.iter().map(|address| Gid::from(*address).ip()).collect();
        let share = link.as_ref().and_then(|link| link.address_share());
        let mut gsi = Gsi::new(&mut device, &mut memory, unicast, mtu)?;
        gsi.share = share;
        Ok(Engine {
            device,
            memory,
            gsi,
            link,
            share,
            addresses,
            loopback_via_link: false,
            window,
            read_window,
            coalesce_limit: if buffer.is_some() { COALESCE_LIMIT } else { 0 },
            groups: Vec::new(),
            channels: BTreeMap::new(),
            qps: HashSet::new(),
            events: VecDeque::new(),
            event_channel,
            notifications: Notifications::default(),
            payload: Vec::new(),
            transmit_queue: TransmitQueue::default(),
            timed_qpn: None,
            timed_cq_count: 0,
            send_timed_cqs: Vec::new(),
            receive_time_source: TimestampSource::Process,
            recorder_channel: None,
            start: Instant::now(),
            served_at: Time::ZERO,
            schedule: Schedule::new(),
        })
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Returns the time at which receives are posted. Callers often post a receive right after a poll, and reading the clock
    /// takes as long as posting it. So the result is then the time of the poll, unless a recording or a completion queue
    /// with timestamps would show it.
    #[inline]
    pub(super) fn recv_time(&self) -> Time {
        let is_visible = self.device.sink().is_recording() || self.timed_cq_count > 0;
        if self.schedule.delayed_ack.is_pending() && !is_visible { self.served_at } else { self.now() }
    }

    /// Returns the time at which the engine has work again without a packet or a caller, or [`Time::MAX`].
    pub(super) fn deadline(&self) -> Time {
        if self.schedule.has_failed() {
            return Time::MAX;
        }
        let link_deadline = self.link.as_ref().and_then(|link| link.deadline());
        let link_deadline = link_deadline.map_or(Time::MAX, |link_deadline| {
            Time::ZERO + link_deadline.saturating_duration_since(self.start)
        });
        // Packets that the link did not accept are retried soon.
        let transmit_queue =
            if self.transmit_queue.is_empty() { Time::MAX } else { self.now() + RETRY_DELAY };
        let acks = self.schedule.delayed_ack.deadline();
        let timers = self.device.poll_timeout().unwrap_or(Time::MAX);
        timers.min(link_deadline).min(transmit_queue).min(acks).min(self.gsi.due())
    }

    /// Passes the wake interest to the link if it has changed.
    pub(super) fn update_wake_interest(&mut self) -> io::Result<()> {
        match (self.schedule.wake_interest_change(), &mut self.link) {
            (Some(interest), Some(link)) => link.set_wake_interest(interest),
            _ => Ok(()),
        }
    }

    /// Returns the path of packets between two addresses, from the source port that the link has for a flow with this
    /// preferred port.
    pub(super) fn path(&self, local: IpAddr, remote: IpAddr, preferred_port: u16) -> Option<Path> {
        let port = self.link.as_ref().map_or(preferred_port, |link| link.source_port(local, preferred_port));
        Path::new(local, remote, port)
    }

    /// Returns the path of packets between two addresses from this source port, which the link opens if it can.
    pub(super) fn open_path(&mut self, local: IpAddr, remote: IpAddr, preferred_port: u16) -> Option<Path> {
        // Without a path, no port is opened.
        let path = Path::new(local, remote, preferred_port)?;
        let Some(link) = &mut self.link else { return Some(path) };
        Path::new(local, remote, link.open_source_port(local, preferred_port))
    }

    /// Ends the use of a path that was [opened](Engine::open_path).
    pub(super) fn close_path(&mut self, path: &Path) {
        if let Some(link) = &mut self.link {
            link.close_source_port(path.source().ip(), path.source_port());
        }
    }

    /// Claims a service at the link's address.
    pub(super) fn claim_service(&mut self, service: ServiceId) -> io::Result<()> {
        self.link.as_mut().map_or(Ok(()), |link| link.claim_service(service))
    }

    /// Ends a claim of a service.
    pub(super) fn release_service(&mut self, service: ServiceId) {
        if let Some(link) = &mut self.link {
            link.release_service(service);
        }
    }

    /// Returns a socket that traces the path of packets from a source port.
    pub(super) fn path_socket(&mut self, local: IpAddr, port: u16) -> io::Result<PathSocket> {
        self.link.as_mut().ok_or(io::ErrorKind::Unsupported)?.path_socket(local, port)
    }

    /// Receives packets, handles expired timers, sends packets, and delivers events.
    ///
    /// # Errors
    ///
    /// Returns an error if the link no longer works.
    pub(super) fn drive(&mut self) -> io::Result<Work> {
        self.serve(None)
    }

    /// Does the same as [`drive`](Engine::drive) for a caller that polls `cq`, until a queue gets completions. The
    /// acknowledgements of those may be [delayed](DelayedAck).
    pub(super) fn drive_for(&mut self, cq: Cq) -> io::Result<Work> {
        if self.schedule.pacing.may_skip_link() && self.device.has_completions(cq) {
            return Ok(Work::None);
        }
        self.serve(Some(cq))
    }

    /// Sends posted requests, and delayed acknowledgements after them. If no request can be sent, the acknowledgements
    /// stay delayed.
    pub(super) fn send_posted(&mut self, now: Time) -> io::Result<Work> {
        if self.schedule.has_failed() {
            return Ok(Work::Done);
        }
        let max_count = self.max_burst();
        let sent = self.transmit(now, max_count)?;
        if !self.device.may_transmit() {
            self.schedule.delayed_ack = DelayedAck::Idle;
        }
        self.deliver_events();
        Ok(if sent < max_count { Work::Done } else { Work::More })
    }

    /// Whether packets wait for the link to accept them.
    pub(super) fn has_queued_packets(&self) -> bool {
        !self.schedule.has_failed() && !self.transmit_queue.is_empty()
    }

    /// Sends delayed acknowledgements, because their queue pair may be about to be destroyed.
    pub(super) fn flush_delayed_acks(&mut self) -> io::Result<Work> {
        if !std::mem::take(&mut self.schedule.delayed_ack).is_pending() {
            return Ok(Work::Done);
        }
        self.send_posted(self.now())
    }

    fn serve(&mut self, poller: Option<Cq>) -> io::Result<Work> {
        if self.schedule.has_failed() {
            return Ok(Work::Done);
        }
        self.schedule.pacing.record_link_driven();
        let mut budget = BUDGET;
        loop {
            let completions = self.device.statistics().completions;
            let (received, received_at) = self.receive(budget)?;
            // A packet of an earlier round may have completed a request of another queue, whose event is not delivered yet.
            let is_first = budget == BUDGET;
            if is_first && received == 0 && poller.is_some() && self.is_idle() {
                // The link may have received a packet that it delays, so its deadline may have changed.
                return Ok(Work::Done);
            }
            let now = received_at.unwrap_or_else(|| self.now());
            self.served_at = now;
            if poller.is_some() {
                self.schedule.record_poll(now);
            }
            // A caller with several queues polls them in turn, so it will also get the completions of other queues.
            let is_served = poller.is_some() && self.device.statistics().completions != completions;
            let can_delay = || is_served && self.device.is_only_acknowledging();
            let gets_completions = poller.is_some_and(|cq| self.device.has_completions(cq));
            let max_polls = if gets_completions { 1 } else { POLLS_UNTIL_COMPLETION };
            self.schedule.delayed_ack =
                self.schedule.delayed_ack.after_poll(now, received > 0, || can_delay().then_some(max_polls));
            let max_burst = self.max_burst();
            let sent = self.transmit(now, budget.min(max_burst))?;
            budget = budget.saturating_sub(received + sent);
            // Timeouts are handled after sending, because a queue pair of this NIC may have responded to the sent
            // packets already. With the work of a whole budget between a response and this check, a slow machine would
            // always find the timer expired.
            let is_late = self.device.poll_timeout().is_some_and(|due| due <= now);
            if is_late {
                self.device.handle_timeout(now);
            }
            if budget == 0 || is_served {
                self.deliver_events();
                return Ok(if budget == 0 || is_late { Work::More } else { Work::Done });
            }
            // Packets between local queue pairs are all delivered when nothing more is sent, and packets of the link
            // when nothing more is received.
            if received == 0 && sent < max_burst && !is_late {
                self.deliver_events();
                if !self.gsi.may_have_work(now) || !self.serve_gsi(now) {
                    return Ok(Work::Done);
                }
            }
        }
    }

    /// Returns the maximum number of packets to send before packets are received. A NIC that sends to itself over the
    /// link must receive its packets before they exceed the receive buffer.
    fn max_burst(&self) -> usize {
        if self.loopback_via_link { LOOPBACK_BURST } else { BUDGET }
    }

    /// Whether a poll that received no packet has nothing else to do, and may return without reading the clock.
    fn is_idle(&mut self) -> bool {
        self.schedule.pacing.may_skip_clock()
            && !self.schedule.delayed_ack.is_pending()
            && self.transmit_queue.is_empty()
            && !self.device.may_transmit()
    }

    /// Serves the connection manager, and returns whether it has packets to send.
    #[cold]
    fn serve_gsi(&mut self, now: Time) -> bool {
        let Engine { device, memory, gsi, link, notifications, .. } = self;
        let preferred = Path::source_port_between(Qpn::GSI, Qpn::GSI);
        gsi.serve(now, device, memory, notifications, |addrs| {
            let port = link.as_ref().map_or(preferred, |link| link.source_port(addrs.local, preferred));
            Path::new(addrs.local, addrs.remote, port)
        })
    }

    /// Receives a batch of about `max` packets. Returns their number, and the time at which the first was received.
    fn receive(&mut self, max: usize) -> io::Result<(usize, Option<Time>)> {
        let Engine { device, memory, link: Some(link), start, receive_time_source: source, .. } = self else {
            return Ok((0, None));
        };
        // The clock is read with the first packet, because most calls receive none.
        let mut time = None;
        let count = link.receive(max, &mut |rx_packet| {
            let now = *time.get_or_insert_with(|| Time::ZERO + start.elapsed());
            // Datagrams that aren't packets are dropped.
            let Ok(packet) = Packet::parse(rx_packet.bytes) else { return };
            let rx_meta = RxMeta {
                source: rx_packet.source,
                destination: rx_packet.destination,
                icrc: rx_packet.icrc,
                is_ecn_marked: rx_packet.is_ecn_marked(),
                route: Route {
                    traffic_class: rx_packet.traffic_class,
                    flow_label: rx_packet.flow_label,
                    hop_limit: rx_packet.hop_limit,
                },
                received_at: rx_packet.received_at.map(|received_at| Timestamp {
                    time: Time::ZERO + received_at.saturating_duration_since(*start),
                    source: *source,
                }),
            };
            device.handle_packet(now, &rx_meta, &packet, memory);
            if device.sink().wants_payload() {
                device.sink_mut().record_payload(packet.payload());
            }
        })?;
        Ok((count, time))
    }

    /// Sends at most `max_count` packets, and returns the number of packets sent.
    fn transmit(&mut self, mut now: Time, max_count: usize) -> io::Result<usize> {
        let mut count = 0;
        if self.timed_qpn.is_some() && !self.send_timed(self.now())? {
            return Ok(count);
        }
        self.send_queued()?;
        while count < max_count && !self.transmit_queue.is_full() {
            // After other packets, acknowledgements cost little: they are shorter, so they end GSO batches.
            if count == 0 && self.schedule.delayed_ack.is_pending() && self.device.is_only_acknowledging() {
                break;
            }
            let Some(transmit) = self.device.poll_transmit(now) else { break };
            count += 1;
            let (source, destination) = (transmit.path.source(), transmit.path.destination());
            let route = transmit.path.route();
            let delivers_directly = self.link.is_none() || !self.loopback_via_link;
            let is_local = delivers_directly
                && self.addresses.contains(&destination)
                && self.share.is_none_or(|share| share.contains(transmit.header.dest_qp));
            // A multicast group may have members at this NIC and elsewhere.
            let is_group = destination.ip().is_multicast();
            let timed = transmit.timed;
            if timed.is_some()
                && let Some(link) = self.link.as_mut()
            {
                // The packets before this one are sent first, so that its timestamp doesn't include them.
                self.transmit_queue.send_to(link)?;
            }
            let mut queued = None;
            if !is_local && self.link.is_some() {
                let start = self.transmit_queue.bytes.len();
                // If the memory can't be read, the packet is lost.
                if transmit.write_to(&self.memory, 0, &mut self.transmit_queue.bytes).is_ok() {
                    let ecn = if transmit.ecn_capable { ECN_CAPABLE } else { 0 };
                    let traffic_class = route.traffic_class | ecn;
                    let hop_limit = route.hop_limit.unwrap_or(0);
                    self.transmit_queue.push(QueuedPacket {
                        source,
                        destination,
                        traffic_class,
                        hop_limit,
                        flow_label: route.flow_label,
                        bytes: start..self.transmit_queue.bytes.len(),
                    });
                    queued = Some(start);
                }
            }
            let mut local_header = None;
            if is_local || is_group {
                self.payload.clear();
                if transmit.payload.gather(&self.memory, &mut self.payload).is_ok() {
                    local_header = Some(transmit.header);
                }
            }
            if timed.is_some() {
                now = self.now();
            }
            if let Some(header) = local_header {
                self.record_payload();
                let rx_meta = RxMeta {
                    source,
                    destination,
                    icrc: IcrcCheck::Trusted,
                    is_ecn_marked: false,
                    route,
                    received_at: None,
                };
                if is_local || self.device.has_multicast_members(destination.ip().into()) {
                    let Engine { device, payload, memory, .. } = self;
                    device.handle_split_packet(now, &rx_meta, &header, payload, memory);
                    self.record_payload();
                }
            } else if let Some(start) = queued
                && self.device.sink().wants_payload()
            {
                self.record_queued_payload(start);
            }
            // A packet that was neither queued nor delivered is lost.
            if timed.is_some() {
                self.timed_qpn = timed;
                // A refused packet is sent by the next call, which reads its time again.
                if !self.send_timed(now)? {
                    return Ok(count);
                }
            }
            if self.transmit_queue.is_full() {
                self.send_queued()?;
            }
        }
        self.send_queued()?;
        Ok(count)
    }

    /// Passes the payload of a packet between queue pairs of this NIC to the recorder, if the recorder keeps it.
    #[inline(always)]
    fn record_payload(&mut self) {
        if self.device.sink().wants_payload() {
            self.device.sink_mut().record_payload(&self.payload);
        }
    }

    /// Passes the payload of the packet at `start` of the transmit queue to the recorder.
    #[cold]
    fn record_queued_payload(&mut self, start: usize) {
        if let Ok(packet) = Packet::parse(&self.transmit_queue.bytes[start..]) {
            self.device.sink_mut().record_payload(packet.payload());
        }
    }

    /// Records an event that the protocol engine can't observe.
    #[inline]
    pub(super) fn record(&mut self, event: impl FnOnce() -> TraceEvent) {
        if self.device.sink().is_recording() {
            let now = self.now();
            self.device.record(now, event);
        }
    }

    /// Records that the `max` oldest completions of a completion queue are polled.
    #[cold]
    pub(super) fn record_polled(&mut self, cq: Cq, max: usize) {
        if self.device.has_completions(cq) {
            let now = self.now();
            self.device.record_polled(now, cq, max);
        }
    }

    /// Passes queued packets to the link.
    #[inline]
    fn send_queued(&mut self) -> io::Result<()> {
        match self.link.as_mut() {
            Some(link) if !self.transmit_queue.is_empty() => self.transmit_queue.send_to(link),
            _ => Ok(()),
        }
    }

    /// Sends the packet that completes a request with a timestamp, and returns whether the link accepted it. The
    /// timestamp is the kernel's send time if a completion queue needs it and the link knows it. Otherwise it is `now`,
    /// the time before the system call: over loopback and veth, the call returns after the receiver's kernel has received
    /// the packet.
    #[cold]
    fn send_timed(&mut self, now: Time) -> io::Result<bool> {
        let mut sent_at = Timestamp::from(now);
        match self.link.as_mut() {
            Some(link) if !self.send_timed_cqs.is_empty() => {
                if let Some(time) = self.transmit_queue.send_timed_to(link)? {
                    let time = Time::ZERO + time.saturating_duration_since(self.start);
                    sent_at = Timestamp { time, source: TimestampSource::Kernel };
                }
            }
            _ => self.send_queued()?,
        }
        let is_sent = self.transmit_queue.is_empty();
        if is_sent && let Some(qpn) = self.timed_qpn.take() {
            self.device.packet_sent(sent_at, qpn);
        }
        Ok(is_sent)
    }

    /// Creates a completion queue with timestamps. The link stamps packets only while such a queue exists, because
    /// stamping costs time.
    pub(super) fn create_timed_cq(&mut self, capacity: u32) -> io::Result<Cq> {
        if self.timed_cq_count == 0
            && let Some(link) = self.link.as_mut()
        {
            link.set_timestamps(true)?;
            self.receive_time_source = link.timestamp_source();
        }
        self.timed_cq_count += 1;
        Ok(self.device.create_timed_cq(capacity))
    }

    /// Creates a completion queue with timestamps, and with the kernel's send times of datagrams.
    pub(super) fn create_send_timed_cq(&mut self, capacity: u32) -> io::Result<Cq> {
        let cq = self.create_timed_cq(capacity)?;
        self.send_timed_cqs.push(cq);
        Ok(cq)
    }

    /// Destroys a completion queue, and returns whether it existed and no queue pair used it.
    pub(super) fn destroy_cq(&mut self, cq: Cq) -> bool {
        let has_timestamps = self.device.has_timestamps(cq);
        let is_destroyed = self.device.destroy_cq(cq);
        if is_destroyed && has_timestamps {
            self.send_timed_cqs.retain(|timed| *timed != cq);
            self.timed_cq_count -= 1;
            if self.timed_cq_count == 0
                && let Some(link) = self.link.as_mut()
            {
                // If the link continues to stamp packets, the timestamps are ignored.
                _ = link.set_timestamps(false);
            }
        }
        is_destroyed
    }

    /// Returns the device's counters, with the packets that its link and its connection manager could not send.
    pub(super) fn statistics(&self) -> Statistics {
        let mut statistics = *self.device.statistics();
        statistics.unsendable_packets +=
            self.gsi.unsendable + self.link.as_ref().map_or(0, |link| link.unsendable_packets());
        statistics
    }

    /// Makes the link join a multicast group, if it has not joined the group yet.
    pub(super) fn join(&mut self, group: Gid) -> io::Result<()> {
        if let Some(link) = self.link.as_mut()
            && !self.groups.contains(&group)
        {
            link.join(group.ip())?;
            self.groups.push(group);
        }
        Ok(())
    }

    /// Makes the link leave the multicast groups that have no members.
    pub(super) fn leave(&mut self) {
        let Engine { device, link: Some(link), groups, .. } = self else { return };
        groups.retain(|group| {
            let has_members = device.has_multicast_members(*group);
            if !has_members {
                link.leave(group.ip());
            }
            has_members
        });
    }

    /// Delivers pending events to their channels.
    fn deliver_events(&mut self) {
        while let Some(cq) = self.device.poll_cq_event() {
            if self.gsi.owns_cq(cq) {
                self.gsi.request_serve();
            } else if let Some(channel) = self.channels.get(&cq) {
                self.notifications.push(channel);
                self.schedule.record_event();
                self.record(|| TraceEvent::CqEventDelivered { cq });
            }
        }
        while let Some(event) = self.device.poll_queue_event() {
            if let QueueEvent::Established(qpn) = event {
                self.gsi.manager.communication_established(qpn);
                self.gsi.request_serve();
            }
            self.events.push_back(NicEvent::Queue(event));
            self.notifications.push(&self.event_channel);
            self.record(|| TraceEvent::QueueEventDelivered { event });
        }
        if self.recorder_channel.is_some() && self.device.sink().stop_cause().is_some() {
            self.notify_stopped_recorder();
        }
    }

    #[cold]
    fn notify_stopped_recorder(&mut self) {
        if let Some(channel) = self.recorder_channel.take() {
            self.notifications.push(&channel);
        }
    }

    /// Discards the events of a destroyed object, because its number may be reused soon.
    pub(super) fn discard_events(&mut self, is_stale: impl Fn(&QueueEvent) -> bool) {
        // Events that are still in the engine would be delivered later.
        self.deliver_events();
        // The channel may then have more notifications than events, so a caller may find no event.
        self.events.retain(|event| !matches!(event, NicEvent::Queue(event) if is_stale(event)));
    }

    /// Fails the NIC: completes all requests as far as the engine still can, notifies all channels, and drops the link.
    pub(super) fn fail(&mut self) {
        if !self.schedule.fail() {
            return;
        }
        let now = self.now();
        for &qpn in &self.qps {
            // After a panic, the engine's state may be invalid for one queue pair or for all.
            let device = &mut self.device;
            _ = catch_unwind(AssertUnwindSafe(|| device.modify_qp(now, qpn, &Transition::Error)));
        }
        self.device.sink_mut().stop_at_device_failure();
        _ = catch_unwind(AssertUnwindSafe(|| self.deliver_events()));
        self.events.push_back(NicEvent::Failed);
        self.notifications.push(&self.event_channel);
        self.gsi.channels.fail(&mut self.notifications);
        // All waiting callers are woken, even if their queue isn't armed.
        for channel in self.channels.values() {
            self.notifications.push(channel);
        }
        self.link = None;
    }
}

/// Returns the number of packets that fit a receive buffer. With Linux's default limit for unprivileged processes, 416
/// KiB, this is 92 packets of 4 KiB. A larger window loses packets.
fn window(buffer: usize, mtu: PathMtu) -> u32 {
    let packets = buffer / (mtu.bytes() as usize + PACKET_OVERHEAD);
    u32::try_from(packets).unwrap_or(u32::MAX).max(MIN_WINDOW)
}

/// Returns the number of bytes of READ responses that fit a receive buffer. Peers other than Adverb send packets one by
/// one, and Linux counts each with up to twice its length. After a loss, the responses behind the lost one still arrive
/// before they are retransmitted. Without this limit, long READs from soft-RoCE lose most packets and often fail.
fn read_window(buffer: usize) -> u32 {
    u32::try_from(buffer / 4).unwrap_or(u32::MAX)
}

/// The number of bytes that the kernel needs for a packet in addition to its payload.
const PACKET_OVERHEAD: usize = 512;

/// The minimum window.
const MIN_WINDOW: u32 = 16;

/// The [`coalesce_limit`](adverb_proto::QpConfig::coalesce_limit) of queue pairs whose link has a receive buffer. The
/// kernel sends and receives a GSO batch for little more than the cost of one packet, and a request that is held back
/// would wait for the busy peer anyway.
const COALESCE_LIMIT: u32 = 16;

/// The number of packets that are received, up to a batch, and the maximum number that are sent, before other threads get
/// the lock.
pub(super) const BUDGET: usize = 256;

/// The maximum number of packets that a NIC sends to itself over the link before it receives them.
const LOOPBACK_BURST: usize = 16;

/// The delay before queued packets are passed to a full link again.
const RETRY_DELAY: Duration = Duration::from_micros(50);

/// The ECN bits of a sender that reacts to congestion (RFC 3168: ECT(0)).
const ECN_CAPABLE: u8 = 0b10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_fits_the_receive_buffer() {
        assert_eq!(window(2 * 212_992, PathMtu::Mtu4096), 92);
        assert_eq!(window(8 << 20, PathMtu::Mtu1024), 5461);
        assert_eq!(window(0, PathMtu::Mtu256), MIN_WINDOW);
    }

    /// A link that always has more packets, and counts the packets that it delivered.
    struct FloodingLink(Arc<std::sync::atomic::AtomicUsize>);

    impl Link for FloodingLink {
        fn send(&mut self, packets: &[crate::link::TxPacket<'_>]) -> io::Result<usize> {
            Ok(packets.len())
        }

        fn receive(
            &mut self,
            max: usize,
            each: &mut dyn FnMut(&crate::link::RxPacket<'_>),
        ) -> io::Result<usize> {
            let count = max.min(10_000);
            for _ in 0..count {
                each(&crate::link::RxPacket {
                    source: SocketAddr::new([10, 0, 0, 2].into(), 0xc000),
                    destination: SocketAddr::new([10, 0, 0, 1].into(), 4791),
                    traffic_class: 0,
                    hop_limit: None,
                    flow_label: 0,
                    icrc: IcrcCheck::Trusted,
                    received_at: None,
                    bytes: b"noise",
                });
            }
            self.0.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            Ok(count)
        }

        fn readiness_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }
    }

    #[test]
    fn drive_receives_at_most_its_budget() {
        let delivered = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let addresses = vec![SocketAddr::new([10, 0, 0, 1].into(), 4791)];
        let channel = Arc::new(Channel::new().unwrap());
        let link = Box::new(FloodingLink(Arc::clone(&delivered)));
        let mut engine = Engine::new(addresses, Some(link), channel, PathMtu::Mtu1024).unwrap();
        let cq = engine.device.create_cq(1);
        for drives in 1..=3 {
            assert_eq!(engine.drive().unwrap(), Work::More);
            assert_eq!(delivered.load(std::sync::atomic::Ordering::Relaxed), (2 * drives - 1) * BUDGET);
            assert_eq!(engine.drive_for(cq).unwrap(), Work::More);
            assert_eq!(delivered.load(std::sync::atomic::Ordering::Relaxed), 2 * drives * BUDGET);
        }
    }
}
