//! The decisions about the packets to another process: a pure state machine. [`Writers`](super::writers::Writers) does
//! the work, and reports the results.

use std::time::{Duration, Instant};

/// The state of another process, as far as this one knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Peer {
    ring: Option<RingState>,
    /// The time until which no ring is opened.
    avoided_until: Option<Instant>,
    /// Whether the process has refused the last ring, because it has no file descriptor or no memory.
    has_refused: bool,
}

/// The state of the ring to the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RingState {
    /// The state until the process opens the ring.
    unopened: Option<Unopened>,
    refusals: Option<Refusals>,
}

/// The state of a ring that the process has not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unopened {
    /// The time until which packets are written into the ring nevertheless.
    deadline: Instant,
    /// The number of packets in the ring.
    packet_count: u64,
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
    /// Open a ring first.
    NewRing,
    /// Send the packets over UDP.
    Udp,
}

/// The reason for which no ring could be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpenFailure {
    /// The process doesn't exist, or this one has no file descriptor or no memory.
    Unavailable,
    /// The process has too many connections that it has not accepted.
    QueueFull,
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

/// The time after which packets to a process that has not opened its ring are sent over UDP, until it opens the ring: it
/// may be stopped, or have no file descriptor.
const MAX_OPENING_TIME: Duration = Duration::from_millis(100);

/// The time for which no ring is opened after a failure.
const AVOIDANCE_TIME: Duration = Duration::from_secs(1);

/// The time for which no ring is opened after the process had too many connections that it has not accepted. Another user
/// may have opened them, so this process tries often.
const FULL_QUEUE_AVOIDANCE_TIME: Duration = Duration::from_millis(1);

impl Peer {
    /// Returns the way of packets. `is_opened` returns whether the process has opened the ring. The clock is read only if
    /// the result depends on it.
    #[inline]
    pub(super) fn route(&mut self, now: impl Fn() -> Instant, is_opened: impl FnOnce() -> bool) -> Route {
        match &mut self.ring {
            Some(RingState { unopened: None, .. }) => Route::Ring,
            Some(ring) if is_opened() => {
                ring.unopened = None;
                Route::Ring
            }
            Some(RingState { unopened: Some(unopened), .. }) if now() < unopened.deadline => Route::Ring,
            Some(_) => Route::Udp,
            None if self.avoided_until.is_some_and(|until| now() < until) => Route::Udp,
            None => Route::NewRing,
        }
    }

    /// Records that a ring was offered to the process.
    pub(super) fn record_offer(&mut self, now: Instant) {
        // A process that has refused a ring may refuse this one, too. Its packets would be lost.
        let time = if self.has_refused { Duration::ZERO } else { MAX_OPENING_TIME };
        let unopened = Some(Unopened { deadline: now + time, packet_count: 0 });
        *self = Peer { ring: Some(RingState { unopened, refusals: None }), ..Peer::default() };
    }

    /// Records that no ring could be opened.
    pub(super) fn record_failure(&mut self, now: Instant, failure: OpenFailure) {
        self.avoided_until = Some(match failure {
            OpenFailure::Unavailable => now + AVOIDANCE_TIME,
            OpenFailure::QueueFull => now + FULL_QUEUE_AVOIDANCE_TIME,
        });
    }

    /// Records that packets were written into the ring.
    #[inline]
    pub(super) fn record_packets(&mut self, packet_count: usize) {
        if let Some(RingState { unopened: Some(unopened), .. }) = &mut self.ring {
            unopened.packet_count += packet_count as u64;
        }
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

    /// Records that the connection of the ring has ended. Returns the number of packets that are lost, because the process
    /// has never opened the ring.
    pub(super) fn record_end(&mut self, now: Instant, is_opened: bool) -> u64 {
        let Some(RingState { unopened: Some(unopened), .. }) = self.ring.take() else { return 0 };
        if is_opened {
            return 0;
        }
        self.has_refused = true;
        self.record_failure(now, OpenFailure::Unavailable);
        unopened.packet_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(peer: &mut Peer, now: Instant, is_opened: bool) -> Route {
        peer.route(|| now, || is_opened)
    }

    /// Returns a peer whose ring was offered at this time.
    fn offered(now: Instant) -> Peer {
        let mut peer = Peer::default();
        assert_eq!(route(&mut peer, now, false), Route::NewRing);
        peer.record_offer(now);
        peer
    }

    #[test]
    fn packets_go_over_udp_while_the_process_does_not_open_its_ring() {
        let now = Instant::now();
        let mut peer = offered(now);
        assert_eq!(route(&mut peer, now + MAX_OPENING_TIME - Duration::from_nanos(1), false), Route::Ring);
        assert_eq!(route(&mut peer, now + MAX_OPENING_TIME, false), Route::Udp);
        assert_eq!(route(&mut peer, now + MAX_OPENING_TIME, true), Route::Ring);
        // An open ring needs no clock.
        let no_clock = || -> Instant { panic!("the clock was read") };
        assert_eq!(peer.route(no_clock, || panic!("the ring was checked")), Route::Ring);
    }

    #[test]
    fn packets_in_a_refused_ring_are_lost_and_the_next_ring_is_used_when_it_is_open() {
        let now = Instant::now();
        let mut peer = offered(now);
        peer.record_packets(7);
        peer.record_packets(2);
        assert_eq!(peer.record_end(now, false), 9);
        let soon = now + AVOIDANCE_TIME - Duration::from_nanos(1);
        assert_eq!(route(&mut peer, soon, false), Route::Udp);
        let later = now + AVOIDANCE_TIME;
        assert_eq!(route(&mut peer, later, false), Route::NewRing);
        peer.record_offer(later);
        assert_eq!(route(&mut peer, later, false), Route::Udp);
        assert_eq!(route(&mut peer, later, true), Route::Ring);
        peer.record_packets(5);
        assert_eq!(peer.record_end(later, true), 0, "the process reads the packets");
        assert_eq!(route(&mut peer, later, false), Route::NewRing);
        // The refusal is forgotten.
        peer.record_offer(later);
        assert_eq!(route(&mut peer, later, false), Route::Ring);
    }

    #[test]
    fn the_next_ring_is_opened_after_a_time_that_depends_on_the_failure() {
        let now = Instant::now();
        for (failure, time) in
            [(OpenFailure::Unavailable, AVOIDANCE_TIME), (OpenFailure::QueueFull, FULL_QUEUE_AVOIDANCE_TIME)]
        {
            let mut peer = Peer::default();
            peer.record_failure(now, failure);
            assert_eq!(route(&mut peer, now + time - Duration::from_nanos(1), false), Route::Udp);
            assert_eq!(route(&mut peer, now + time, false), Route::NewRing);
        }
    }

    #[test]
    fn a_process_is_stuck_after_enough_refusals_and_enough_time() {
        let now = Instant::now();
        let mut peer = offered(now);
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
            let mut peer = offered(now);
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

    /// Each packet that was written into a ring is lost or read, whatever happens.
    #[test]
    fn all_packets_of_rings_that_were_never_opened_are_counted() {
        let (mut now, mut state) = (Instant::now(), 1_u64);
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % limit
        };
        let (mut peer, mut is_opened, mut in_ring, mut lost, mut expected) =
            (Peer::default(), false, 0, 0, 0);
        for _ in 0..100_000 {
            now += Duration::from_micros(below(20_000));
            match below(8) {
                0 => {
                    lost += peer.record_end(now, is_opened);
                    expected += if is_opened { 0 } else { in_ring };
                    (in_ring, is_opened) = (0, false);
                }
                1 => is_opened |= peer.ring.is_some(),
                2 => _ = peer.record_refusal(now, in_ring),
                _ => match route(&mut peer, now, is_opened) {
                    Route::Ring => {
                        peer.record_packets(3);
                        in_ring += 3;
                        peer.record_progress(in_ring, || is_opened);
                    }
                    Route::NewRing if below(2) == 0 => peer.record_failure(now, OpenFailure::QueueFull),
                    Route::NewRing => peer.record_offer(now),
                    Route::Udp => {}
                },
            }
        }
        assert!(lost > 1000, "{lost}");
        assert_eq!(lost, expected);
    }
}
