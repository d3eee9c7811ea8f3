//! The state that a NIC's lock protects: the protocol engine, the memory, the link and the event channels.

mod clock;
mod events;
mod groups;
mod limits;
mod loopback;
mod port;
mod record;
mod timestamps;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use adverb_proto::trace::Recorder;
use adverb_proto::types::Gid;
use adverb_proto::{Cq, EventSink, IcrcCheck, Path, Route, RxMeta, Statistics, Time, Timestamp, Transition};
use adverb_wire::cm::PathMtu;
use adverb_wire::{Packet, Qpn};

use super::NicEvent;
use super::gsi::Gsi;
use super::lock::Notifications;
use super::schedule::{DelayedAck, POLLS_UNTIL_COMPLETION, Schedule};
use crate::channel::Channel;
use crate::error::Error;
use crate::link::Link;
use crate::memory::RegisteredMemory;
use clock::Clock;
use events::Events;
use groups::Groups;
use limits::Limits;
#[cfg(test)]
pub(super) use limits::window;
use loopback::Loopback;
use port::Port;
use timestamps::Timestamps;

/// The protocol engine, with a recorder of its events.
pub(super) type Device = adverb_proto::Device<Recorder>;

/// A NIC without its lock and its progress thread.
pub(super) struct Engine {
    pub(super) device: Device,
    pub(super) memory: RegisteredMemory,
    pub(super) gsi: Gsi,
    pub(super) port: Port,
    pub(super) loopback: Loopback,
    pub(super) limits: Limits,
    groups: Groups,
    pub(super) events: Events,
    pub(super) notifications: Notifications,
    timestamps: Timestamps,
    pub(super) clock: Clock,
    /// The queue pairs that exist. All of them move to the error state if the NIC fails.
    pub(super) qps: HashSet<Qpn>,
    /// The payload of a packet between queue pairs of this NIC.
    payload: Vec<u8>,
    /// The data of an inline request, while it is posted.
    pub(super) inline: Vec<u8>,
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
        mut link: Option<Box<dyn Link>>,
        event_channel: Arc<Channel>,
        mtu: PathMtu,
    ) -> Result<Engine, Error> {
        let (mut device, mut memory) = (Device::new(Recorder::default()), RegisteredMemory::default());
        device.set_port_mtu(mtu);
        let buffer = link.as_ref().and_then(|link| link.receive_buffer_bytes());
        let unicast = addresses.iter().map(|address| Gid::from(*address).ip()).collect();
        let sharing = link.as_mut().and_then(|link| link.address_sharing());
        let share = sharing.map(|sharing| sharing.address_share());
        let mut gsi = Gsi::new(&mut device, &mut memory, unicast, mtu)?;
        gsi.share = share;
        Ok(Engine {
            device,
            memory,
            gsi,
            port: Port::new(link),
            loopback: Loopback::new(addresses, share),
            limits: Limits::new(buffer, share, mtu),
            groups: Groups::default(),
            events: Events::new(event_channel),
            notifications: Notifications::default(),
            timestamps: Timestamps::new(),
            clock: Clock::start(),
            qps: HashSet::new(),
            payload: Vec::new(),
            inline: Vec::new(),
            schedule: Schedule::new(),
        })
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Returns the time at which receives are posted. Callers often post a receive right after a poll, and reading the clock
    /// takes as long as posting it. So the result is then the time of the poll, unless a recording or a completion queue
    /// with timestamps would show it.
    #[inline]
    pub(super) fn recv_time(&self) -> Time {
        let is_visible = self.device.sink().is_recording() || self.timestamps.are_visible();
        if self.schedule.delayed_ack.is_pending() && !is_visible {
            self.clock.served_at()
        } else {
            self.now()
        }
    }

    /// Returns the time at which the engine has work again without a packet or a caller, or [`Time::MAX`].
    pub(super) fn deadline(&self) -> Time {
        if self.schedule.has_failed() {
            return Time::MAX;
        }
        let acks = self.schedule.delayed_ack.deadline();
        let timers = self.device.poll_timeout().unwrap_or(Time::MAX);
        timers.min(self.port.deadline(&self.clock)).min(acks).min(self.gsi.due())
    }

    /// Passes the wake interest to the link if it has changed.
    pub(super) fn update_wake_interest(&mut self) -> io::Result<()> {
        match self.schedule.wake_interest_change() {
            Some(interest) => self.port.set_wake_interest(interest),
            None => Ok(()),
        }
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
        if self.schedule.pacing.try_skip_link() && self.device.has_completions(cq) {
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
        let max_count = self.loopback.max_burst();
        let sent = self.transmit(now, max_count)?;
        if !self.device.may_transmit() {
            self.schedule.delayed_ack = DelayedAck::Idle;
        }
        self.deliver_events();
        Ok(if sent < max_count { Work::Done } else { Work::More })
    }

    /// Whether packets wait for the link to accept them.
    pub(super) fn has_queued_packets(&self) -> bool {
        !self.schedule.has_failed() && self.port.has_queued_packets()
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
            if is_first && received == 0 && poller.is_some() && self.count_empty_poll() {
                // The link may have received a packet that it delays, so its deadline may have changed.
                return Ok(Work::Done);
            }
            let now = received_at.unwrap_or_else(|| self.now());
            self.clock.record_served(now);
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
            let max_burst = self.loopback.max_burst();
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

    /// Counts a poll that received no packet. Returns whether it has nothing else to do, and may return without reading
    /// the clock.
    fn count_empty_poll(&mut self) -> bool {
        self.schedule.pacing.try_skip_clock()
            && !self.schedule.delayed_ack.is_pending()
            && !self.port.has_queued_packets()
            && !self.device.may_transmit()
    }

    /// Serves the connection manager, and returns whether it has packets to send.
    #[cold]
    fn serve_gsi(&mut self, now: Time) -> bool {
        let Engine { device, memory, gsi, port, notifications, .. } = self;
        let preferred = Path::source_port_between(Qpn::GSI, Qpn::GSI);
        gsi.serve(now, device, memory, notifications, |addrs| port.path(addrs.local, addrs.remote, preferred))
    }

    /// Receives a batch of about `max` packets. Returns their number, and the time at which the first was received.
    fn receive(&mut self, max: usize) -> io::Result<(usize, Option<Time>)> {
        let Engine { device, memory, port, clock, timestamps, .. } = self;
        // The clock is read with the first packet, because most calls receive none.
        let mut time = None;
        let count = port.receive(max, &mut |rx_packet| {
            let now = *time.get_or_insert_with(|| clock.now());
            // Datagrams that aren't packets are dropped. The packet isn't moved, because a copy would wait for its fields.
            let parsed = Packet::parse(rx_packet.bytes);
            let Ok(packet) = &parsed else { return };
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
                    time: clock.time_of(received_at),
                    source: timestamps.receive_source(),
                }),
            };
            device.handle_packet(now, &rx_meta, packet, memory);
            if device.sink().wants_payload() {
                device.sink_mut().record_payload(packet.payload());
            }
        })?;
        Ok((count, time))
    }

    /// Sends at most `max_count` packets, and returns the number of packets sent.
    fn transmit(&mut self, mut now: Time, max_count: usize) -> io::Result<usize> {
        let mut count = 0;
        if self.port.has_blocked() {
            self.port.retry_blocked(now, &mut self.device)?;
        }
        if self.timestamps.is_sending() && !self.send_timed(self.now())? {
            return Ok(count);
        }
        self.port.send()?;
        while count < max_count && !self.port.is_full() {
            // After other packets, acknowledgements cost little: they are shorter, so they end GSO batches.
            if count == 0 && self.schedule.delayed_ack.is_pending() && self.device.is_only_acknowledging() {
                break;
            }
            let Some(transmit) = self.device.poll_transmit(now) else { break };
            count += 1;
            let (source, destination) = (transmit.path.source(), transmit.path.destination());
            let route = transmit.path.route();
            let has_link = self.port.has_link();
            let is_local = self.loopback.delivers(&destination, transmit.header.dest_qp, has_link);
            // A multicast group may have members at this NIC and elsewhere.
            let is_group = destination.ip().is_multicast();
            let timed = transmit.timed;
            if timed.is_some() {
                // The packets before this one are sent first, so that its timestamp doesn't include them.
                self.port.send()?;
            }
            let mut queued = None;
            if !is_local && has_link {
                queued = self.port.queue(&transmit, &self.memory);
            }
            let mut is_gathered = false;
            if is_local || is_group {
                self.payload.clear();
                is_gathered = transmit.payload.gather(&self.memory, &mut self.payload).is_ok();
            }
            let header = transmit.header;
            if timed.is_some() {
                now = self.now();
            }
            if is_gathered {
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
            if let Some(qpn) = timed
                && !self.begin_timed(now, qpn)?
            {
                return Ok(count);
            }
            if self.port.is_full() {
                self.port.send()?;
            }
        }
        self.port.send()?;
        Ok(count)
    }

    /// Returns the device's counters, with the packets that its link and its connection manager could not send.
    pub(super) fn statistics(&self) -> Statistics {
        let mut statistics = *self.device.statistics();
        statistics.unsendable_packets += self.gsi.unsendable + self.port.unsendable_packets();
        statistics
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
        self.events.push(NicEvent::Failed, &mut self.notifications);
        // All waiting callers are woken.
        self.gsi.channels.fail(&mut self.notifications);
        self.events.notify_all_cqs(&mut self.notifications);
        self.port.drop_link();
    }
}

/// The number of packets that are received, up to a batch, and the maximum number that are sent, before other threads get
/// the lock.
pub(super) const BUDGET: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

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

        fn is_receiver_full(&self, _: &crate::link::TxPacket<'_>) -> bool {
            false
        }

        fn send_timed(&mut self, _: &crate::link::TxPacket<'_>) -> io::Result<crate::link::TimedSend> {
            Ok(crate::link::TimedSend::Accepted(None))
        }

        fn unsendable_packets(&self) -> u64 {
            0
        }

        fn receive_buffer_bytes(&self) -> Option<usize> {
            None
        }

        fn readiness_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }

        fn set_wake_interest(&mut self, _: bool) -> io::Result<()> {
            Ok(())
        }

        fn deadline(&self) -> Option<std::time::Instant> {
            None
        }

        fn source_ports(&mut self) -> Option<&mut dyn crate::link::SourcePorts> {
            None
        }

        fn multicast_groups(&mut self) -> Option<&mut dyn crate::link::MulticastGroups> {
            None
        }

        fn receive_timestamps(&mut self) -> Option<&mut dyn crate::link::ReceiveTimestamps> {
            None
        }

        fn address_sharing(&mut self) -> Option<&mut dyn crate::link::AddressSharing> {
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
