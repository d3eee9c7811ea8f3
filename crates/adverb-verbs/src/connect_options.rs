//! The options of a connection between two queue pairs.

use adverb_proto::types::PathMtu;

use super::Traffic;

/// How to connect: timeouts, retries, and what the packets carry.
///
/// The defaults suit a network that is well: retries for about half a second, and a receiver that is never ready for
/// ever. A connection that has flow control of its own doesn't meet the latter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct ConnectOptions {
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) max_rd_atomic: Option<u8>,
    pub(super) mtu: Option<PathMtu>,
    pub(super) traffic: Traffic,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            timeout: 14,
            retry_count: 6,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: None,
            mtu: None,
            traffic: Traffic::new(),
        }
    }
}

impl ConnectOptions {
    /// The defaults.
    pub fn new() -> ConnectOptions {
        ConnectOptions::default()
    }

    /// How long to wait for an acknowledgement: 4.096 µs × 2 to this power; 0 is for ever. 14, about 67 ms, unless set;
    /// at most 31.
    pub fn timeout(mut self, code: u8) -> ConnectOptions {
        self.timeout = code.min(31);
        self
    }

    /// How often to send again when no acknowledgement comes: 6 unless set, at most 7.
    pub fn retry_count(mut self, count: u8) -> ConnectOptions {
        self.retry_count = count.min(7);
        self
    }

    /// How often to send again when the peer has no receive posted: 7, the default and the most, is for ever.
    pub fn rnr_retry(mut self, count: u8) -> ConnectOptions {
        self.rnr_retry = count.min(7);
        self
    }

    /// How long the peer is to wait when this side has no receive posted, as a code: 12, or 0.64 ms, unless set.
    pub fn min_rnr_timer(mut self, code: u8) -> ConnectOptions {
        self.min_rnr_timer = code.min(31);
        self
    }

    /// How many READs and atomics may be outstanding, in each direction: as many as the device can, up to 16, unless
    /// set. Both ends must set the same.
    pub fn max_rd_atomic(mut self, count: u8) -> ConnectOptions {
        self.max_rd_atomic = Some(count);
        self
    }

    /// The MTU, if it is to be smaller than what both ports have.
    pub fn mtu(mut self, mtu: PathMtu) -> ConnectOptions {
        self.mtu = Some(mtu);
        self
    }

    /// How the network is to treat the packets: what isn't said here is as the queue pair's, or the process'.
    pub fn traffic(mut self, traffic: Traffic) -> ConnectOptions {
        self.traffic = traffic;
        self
    }
}
