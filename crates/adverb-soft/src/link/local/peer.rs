//! The decisions about the packets to another process: a pure state machine. [`Writers`](super::writers::Writers) does
//! the work, and reports the results.

use std::time::{Duration, Instant};

/// The state of another process, as far as this one knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Peer {
    ring: Option<RingState>,
    /// The time until which no ring is opened.
    avoided_until: Option<Instant>,
    /// The number of failures in a row. Each doubles the time for which no ring is opened.
    failure_count: u32,
    /// The source ports of the packets that were sent over UDP since the ring was last used, in order.
    udp_ports: Vec<u16>,
    /// Whether packets may have been sent over UDP from other ports, too.
    has_unknown_ports: bool,
}

/// The state of the ring to the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RingState {
    phase: Phase,
    refusals: Option<Refusals>,
}

/// The use of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The process has not opened the ring, as far as this one knows. Packets are sent over UDP.
    Offered,
    /// Packets are written into the ring.
    Used,
}

/// The refusals of messages while the process reads too slowly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Refusals {
    count: u32,
    since: Instant,
    /// The number of bytes that were written into the ring before.
    written_len: u64,
}

/// The way of packets to the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// Write the packets into the ring.
    Ring,
    /// Write the packets into the ring from now on: first, send a [marker](super::marker) from each
    /// [source port](Peer::udp_ports) of the packets that were sent over UDP.
    Switch,
    /// Open a ring first.
    NewRing,
    /// Send the packets over UDP.
    Udp,
}

/// The handling of packets that don't fit into the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backpressure {
    /// The packets wait until the process has read others.
    Wait,
    /// The packets are lost, because the process has read too little for [`MAX_REFUSAL_TIME`].
    Drop,
}

/// The time after which a process that doesn't read its packets is considered stuck. Until then, the queue pairs that send
/// to it wait.
const MAX_REFUSAL_TIME: Duration = Duration::from_millis(10);

/// The number of refusals after which a process can be considered stuck. If they are few, this process may have had no
/// CPU.
const MIN_REFUSALS: u32 = 16;

/// The number of bytes that a process must read in [`MAX_REFUSAL_TIME`] while messages are refused.
const MIN_PROGRESS: u64 = 64 << 10;

/// The time for which no ring is opened after a failure: there is no such process, another user has its name, or this one has no
/// file descriptor or no memory. Each further failure doubles the time, up to [`MAX_AVOIDANCE_TIME`].
const MIN_AVOIDANCE_TIME: Duration = Duration::from_millis(1);

/// The time for which no ring is opened after the process has refused one, and after many failures.
const MAX_AVOIDANCE_TIME: Duration = Duration::from_secs(1);

impl Peer {
    /// Creates the state of a process to which packets may have been sent over UDP, from any port.
    pub(super) fn with_unknown_ports() -> Peer {
        Peer { has_unknown_ports: true, ..Peer::default() }
    }

    /// Returns the way of packets. `is_opened` returns whether the process has opened the ring. The clock is read only if
    /// the result depends on it.
    #[inline]
    pub(super) fn route(&mut self, now: impl Fn() -> Instant, is_opened: impl FnOnce() -> bool) -> Route {
        match self.ring {
            Some(RingState { phase: Phase::Used, .. }) => Route::Ring,
            Some(_) if is_opened() => Route::Switch,
            Some(_) => Route::Udp,
            None if self.avoided_until.is_some_and(|until| now() < until) => Route::Udp,
            None => Route::NewRing,
        }
    }

    /// Records that a ring was offered to the process.
    pub(super) fn record_offer(&mut self) {
        self.ring = Some(RingState { phase: Phase::Offered, refusals: None });
        self.avoided_until = None;
    }

    /// Whether packets are sent over UDP until some time has passed, because no ring could be opened.
    pub(super) fn is_avoided(&self, now: impl FnOnce() -> Instant) -> bool {
        self.ring.is_none() && self.avoided_until.is_some_and(|until| now() < until)
    }

    /// Returns the source ports of the packets that were sent over UDP since the ring was last used.
    pub(super) fn udp_ports(&self) -> &[u16] {
        &self.udp_ports
    }

    /// Whether packets may have been sent over UDP from other [ports](Peer::udp_ports), too.
    pub(super) const fn has_unknown_ports(&self) -> bool {
        self.has_unknown_ports
    }

    /// Adds what is known about the packets over UDP, and about failures, to the same process, or to all processes at its
    /// address.
    pub(super) fn inherit(&mut self, other: &Peer) {
        self.has_unknown_ports |= other.has_unknown_ports;
        other.udp_ports.iter().for_each(|port| self.record_udp(*port));
        self.avoided_until = self.avoided_until.max(other.avoided_until);
        self.failure_count = self.failure_count.max(other.failure_count);
    }

    /// Records that the markers were sent.
    pub(super) fn record_switch(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.phase = Phase::Used;
            self.udp_ports.clear();
            self.has_unknown_ports = false;
            self.failure_count = 0;
        }
    }

    /// Records that packets from a source port are sent over UDP.
    pub(super) fn record_udp(&mut self, port: u16) {
        // A process with unknown ports gets no markers.
        if !self.has_unknown_ports
            && let Err(index) = self.udp_ports.binary_search(&port)
        {
            self.udp_ports.insert(index, port);
        }
    }

    /// Records that no ring can be opened now, though one may be soon: the process has many new connections, or this one has looked
    /// up many processes.
    pub(super) fn record_delay(&mut self, now: Instant) {
        self.avoided_until = Some(now + MIN_AVOIDANCE_TIME);
    }

    /// Records that no ring could be opened.
    pub(super) fn record_failure(&mut self, now: Instant) {
        let time = MIN_AVOIDANCE_TIME.saturating_mul(1 << self.failure_count.min(10));
        self.avoided_until = Some(now + time.min(MAX_AVOIDANCE_TIME));
        self.failure_count = self.failure_count.saturating_add(1);
    }

    /// Records that a message was written, which made the ring's length `written_len`. `is_half_empty` returns whether the
    /// process has read at least half of the ring.
    #[inline]
    pub(super) fn record_progress(&mut self, written_len: u64, is_half_empty: impl FnOnce() -> bool) {
        let Some(RingState { refusals: Some(refusals), .. }) = &self.ring else { return };
        if written_len - refusals.written_len >= MIN_PROGRESS || is_half_empty() {
            self.end_refusals();
        }
    }

    fn end_refusals(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.refusals = None;
        }
    }

    /// Records that a message didn't fit into the ring, into which `written_len` bytes were written before.
    pub(super) fn record_refusal(&mut self, now: Instant, written_len: u64) -> Backpressure {
        let Some(ring) = &mut self.ring else { return Backpressure::Drop };
        let refusals = ring.refusals.get_or_insert(Refusals { count: 0, since: now, written_len });
        refusals.count = refusals.count.saturating_add(1);
        let is_stuck = refusals.count >= MIN_REFUSALS
            && now.saturating_duration_since(refusals.since) >= MAX_REFUSAL_TIME;
        if is_stuck { Backpressure::Drop } else { Backpressure::Wait }
    }

    /// Whether a message didn't fit into the ring, and the process has read little since then.
    pub(super) fn is_full(&self) -> bool {
        self.ring.is_some_and(|ring| ring.refusals.is_some())
    }

    /// Records that the connection of the ring has ended. If the process has not opened the ring, it may refuse the next one,
    /// too, because it has no file descriptor or no memory.
    pub(super) fn record_end(&mut self, now: Instant) {
        if let Some(RingState { phase: Phase::Offered, .. }) = self.ring.take() {
            self.avoided_until = Some(now + MAX_AVOIDANCE_TIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(peer: &mut Peer, now: Instant, is_opened: bool) -> Route {
        peer.route(|| now, || is_opened)
    }

    /// Returns a peer with a ring that it has opened.
    fn opened(now: Instant) -> Peer {
        let mut peer = Peer::default();
        assert_eq!(route(&mut peer, now, false), Route::NewRing);
        peer.record_offer();
        assert_eq!(route(&mut peer, now, true), Route::Switch);
        peer.record_switch();
        peer
    }

    #[test]
    fn packets_go_over_udp_until_the_process_opens_its_ring() {
        let now = Instant::now();
        let mut peer = Peer::default();
        peer.record_offer();
        assert_eq!(route(&mut peer, now, false), Route::Udp);
        assert_eq!(route(&mut peer, now + Duration::from_secs(60), false), Route::Udp);
        assert_eq!(route(&mut peer, now, true), Route::Switch);
        // The markers could not be sent yet.
        assert_eq!(route(&mut peer, now, true), Route::Switch);
        peer.record_switch();
        // A ring in use needs no clock.
        let no_clock = || -> Instant { panic!("the clock was read") };
        assert_eq!(peer.route(no_clock, || panic!("the ring was checked")), Route::Ring);
    }

    #[test]
    fn each_port_of_packets_over_udp_has_a_marker() {
        let now = Instant::now();
        let mut peer = Peer::default();
        peer.record_offer();
        for port in [7, 3, 7, 5, 3] {
            peer.record_udp(port);
        }
        assert_eq!(peer.udp_ports(), [3, 5, 7]);
        peer.record_switch();
        assert_eq!(peer.udp_ports(), []);
        // The ports of packets before the next ring is offered count, too.
        peer.record_end(now);
        peer.record_udp(9);
        peer.record_offer();
        assert_eq!(peer.udp_ports(), [9]);
    }

    #[test]
    fn a_process_that_refuses_a_ring_gets_none_for_a_while() {
        let now = Instant::now();
        let mut peer = Peer::default();
        peer.record_offer();
        peer.record_end(now);
        assert_eq!(route(&mut peer, now + MAX_AVOIDANCE_TIME - Duration::from_nanos(1), false), Route::Udp);
        assert_eq!(route(&mut peer, now + MAX_AVOIDANCE_TIME, false), Route::NewRing);
        // A process that has opened a ring has not refused it.
        let mut peer = opened(now);
        peer.record_end(now);
        assert_eq!(route(&mut peer, now, false), Route::NewRing);
    }

    #[test]
    fn each_failure_doubles_the_time_without_a_ring_up_to_a_second() {
        let mut now = Instant::now();
        let mut peer = Peer::default();
        for milliseconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000] {
            assert!(!peer.is_avoided(|| now));
            peer.record_failure(now);
            now += Duration::from_millis(milliseconds);
            assert!(peer.is_avoided(|| now - Duration::from_nanos(1)), "{milliseconds} ms");
            assert_eq!(route(&mut peer, now - Duration::from_nanos(1), false), Route::Udp);
            assert_eq!(route(&mut peer, now, false), Route::NewRing);
        }
        // A ring that was used ends the count.
        peer.record_offer();
        peer.record_switch();
        peer.record_end(now);
        assert_eq!(route(&mut peer, now, false), Route::NewRing);
        peer.record_failure(now);
        assert_eq!(route(&mut peer, now + MIN_AVOIDANCE_TIME, false), Route::NewRing);
    }

    #[test]
    fn unknown_ports_replace_known_ones_until_a_ring_is_used() {
        let mut peer = Peer::with_unknown_ports();
        peer.record_udp(7);
        assert!(peer.has_unknown_ports() && peer.udp_ports().is_empty());
        peer.record_offer();
        peer.record_switch();
        assert!(!peer.has_unknown_ports());
        peer.record_udp(7);
        let mut heir = Peer::default();
        heir.record_udp(9);
        heir.inherit(&peer);
        assert_eq!((heir.udp_ports(), heir.has_unknown_ports()), (&[7, 9][..], false));
        heir.inherit(&Peer::with_unknown_ports());
        assert!(heir.has_unknown_ports());
    }

    #[test]
    fn a_process_is_stuck_after_enough_refusals_and_enough_time() {
        let now = Instant::now();
        let mut peer = opened(now);
        // A single refusal doesn't show that the process had time to read.
        assert_eq!(peer.record_refusal(now, 0), Backpressure::Wait);
        assert_eq!(peer.record_refusal(now + MAX_REFUSAL_TIME, 0), Backpressure::Wait);
        for _ in 2..MIN_REFUSALS - 1 {
            assert_eq!(peer.record_refusal(now + MAX_REFUSAL_TIME, 0), Backpressure::Wait);
        }
        let early = now + MAX_REFUSAL_TIME - Duration::from_nanos(1);
        assert_eq!(peer.record_refusal(early, 0), Backpressure::Wait);
        assert_eq!(peer.record_refusal(now + MAX_REFUSAL_TIME, 0), Backpressure::Drop);
        // A little progress changes nothing: each packet would be refused for another 10 ms.
        peer.record_progress(MIN_PROGRESS - 1, || false);
        assert_eq!(peer.record_refusal(now + MAX_REFUSAL_TIME, MIN_PROGRESS - 1), Backpressure::Drop);
    }

    #[test]
    fn a_process_that_reads_again_is_not_stuck() {
        let now = Instant::now();
        for (written_len, is_half_empty) in [(MIN_PROGRESS, false), (8, true)] {
            let mut peer = opened(now);
            while peer.record_refusal(now + MAX_REFUSAL_TIME, 0) == Backpressure::Wait {
                // The first refusal was earlier.
                if let Some(RingState { refusals: Some(refusals), .. }) = &mut peer.ring {
                    refusals.since = now;
                }
            }
            peer.record_progress(written_len, || is_half_empty);
            assert_eq!(peer.record_refusal(now + MAX_REFUSAL_TIME, written_len), Backpressure::Wait);
        }
    }
}
