//! Markers: the last datagrams that a process sends to another one before it writes into the ring.
//!
//! The packets of a queue pair must stay in order when they change from UDP to the ring. So the writer sends a marker from each
//! source port that it has used, because the kernel keeps the datagrams of a port in order, and the first message of the ring
//! is the number of markers. The reader reads the ring after the markers. If a marker is lost, it waits for a short time.
//! These functions do no I/O.

use std::time::{Duration, Instant};

use crate::link::AddressShare;

/// The length of a marker. No RoCEv2 packet is as short, so a receiver that doesn't know the ring drops it.
pub(super) const MARKER_LEN: usize = 12;

/// A random number that both ends of a ring know, and no other process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token(pub(super) [u8; 8]);

impl Token {
    /// Creates a random token.
    pub(super) fn random() -> std::io::Result<Token> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Token(bytes))
    }

    /// Returns the marker for a process with a share of its address. The kernel delivers it like packets to the queue pairs of
    /// the process.
    pub(super) fn marker(self, share: Option<AddressShare>) -> [u8; MARKER_LEN] {
        let qpn = share.map_or(u32::MAX, |share| share.qpn(u32::MAX));
        let [a, b, c, d, e, f, g, h] = self.0;
        let [_, x, y, z] = qpn.to_be_bytes();
        [a, b, c, d, 0, x, y, z, e, f, g, h]
    }

    /// Returns the token of a marker, or `None` if a datagram isn't a marker.
    #[inline]
    pub(super) fn of_marker(datagram: &[u8]) -> Option<Token> {
        match *datagram {
            [a, b, c, d, _, _, _, _, e, f, g, h] => Some(Token([a, b, c, d, e, f, g, h])),
            _ => None,
        }
    }
}

/// The time after which a marker may be lost. It is, if the socket then has no datagrams.
const MIN_LOSS_TIME: Duration = Duration::from_millis(10);

/// The time after which a marker is lost, even if the socket always has datagrams.
const MAX_LOSS_TIME: Duration = Duration::from_millis(100);

/// The wait of a reader for the markers of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct MarkerWait {
    /// The number of markers that have arrived.
    arrived: u32,
    expected: Option<Expected>,
}

/// The contents of the first message of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Expected {
    /// The number of markers that the writer has sent.
    count: u32,
    /// The time at which the message was read.
    since: Instant,
    /// Whether the socket had no datagrams after [`MIN_LOSS_TIME`].
    is_udp_empty: bool,
}

impl MarkerWait {
    /// Records that a marker has arrived.
    pub(super) const fn record_marker(&mut self) {
        self.arrived = self.arrived.saturating_add(1);
    }

    /// Records the first message of the ring: the number of markers.
    pub(super) const fn record_count(&mut self, count: u32, now: Instant) {
        self.expected = Some(Expected { count, since: now, is_udp_empty: false });
    }

    /// Whether the first message was recorded.
    pub(super) const fn has_count(&self) -> bool {
        self.expected.is_some()
    }

    /// Records that the socket had no datagrams.
    pub(super) fn record_empty_udp(&mut self, now: Instant) {
        if let Some(expected) = &mut self.expected {
            expected.is_udp_empty |= now.saturating_duration_since(expected.since) >= MIN_LOSS_TIME;
        }
    }

    /// Whether the ring may be read.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.expected.is_some_and(|expected| {
            self.arrived >= expected.count
                || expected.is_udp_empty
                || now.saturating_duration_since(expected.since) >= MAX_LOSS_TIME
        })
    }

    /// Returns the time at which the socket and the ring must be read if no marker arrives until then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.expected.map(|expected| expected.since + MIN_LOSS_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_packets_to_the_process_with_their_token() {
        let token = Token::random().unwrap();
        assert_ne!(token, Token::random().unwrap());
        for share in [None, AddressShare::new(0), AddressShare::new(77), AddressShare::new(127)] {
            let marker = token.marker(share);
            assert_eq!(Token::of_marker(&marker), Some(token));
            assert_eq!(Token::of_marker(&marker[1..]), None);
            let word = u32::from_be_bytes(*marker[4..].first_chunk().unwrap());
            let qpn = adverb_wire::Qpn::new(word).unwrap();
            assert!(share.is_none_or(|share| AddressShare::of_qpn(qpn) == share));
        }
    }

    #[test]
    fn a_ring_is_read_after_all_its_markers() {
        let now = Instant::now();
        let mut wait = MarkerWait::default();
        // Markers may arrive before the message is read.
        wait.record_marker();
        assert!(!wait.is_over(now) && !wait.has_count());
        wait.record_count(2, now);
        assert!(!wait.is_over(now) && wait.has_count());
        wait.record_marker();
        assert!(wait.is_over(now));
        let mut wait = MarkerWait::default();
        wait.record_count(0, now);
        assert!(wait.is_over(now));
    }

    #[test]
    fn a_lost_marker_delays_a_ring_until_the_socket_is_empty() {
        let now = Instant::now();
        let mut wait = MarkerWait::default();
        wait.record_empty_udp(now);
        wait.record_count(1, now);
        assert_eq!(wait.deadline(), Some(now + MIN_LOSS_TIME));
        wait.record_empty_udp(now + MIN_LOSS_TIME - Duration::from_nanos(1));
        assert!(!wait.is_over(now + MIN_LOSS_TIME), "the marker may still arrive");
        assert!(!wait.is_over(now + MAX_LOSS_TIME - Duration::from_nanos(1)), "the socket has datagrams");
        assert!(wait.is_over(now + MAX_LOSS_TIME));
        wait.record_empty_udp(now + MIN_LOSS_TIME);
        assert!(wait.is_over(now + MIN_LOSS_TIME));
    }
}
