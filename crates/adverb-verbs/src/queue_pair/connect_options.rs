//! Options of connections.

use adverb_proto::types::PathMtu;

use crate::device::Traffic;

/// Options of a connection: timeouts, retries, MTU and traffic options.
///
/// The defaults suit a healthy network: a request is retransmitted for about half a second, and RNR retries are
/// unlimited. A protocol with its own flow control doesn't cause RNR NAKs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct ConnectOptions {
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: Option<u8>,
    pub(crate) mtu: Option<PathMtu>,
    pub(crate) traffic: Traffic,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            ack_timeout: 14,
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
    /// Creates options with the default values.
    pub fn new() -> ConnectOptions {
        ConnectOptions::default()
    }

    /// Sets the ACK timeout to 4.096 µs × 2<sup>`code`</sup>. A `code` of 0 means no timeout. The default is 14 (about
    /// 67 ms), and the maximum is 31.
    pub fn ack_timeout(mut self, code: u8) -> ConnectOptions {
        self.ack_timeout = code.min(31);
        self
    }

    /// Sets the maximum number of retransmissions after an ACK timeout or a lost packet. The default is 6, and the
    /// maximum is 7. Linux soft-RoCE takes 7 as no limit: requests to a peer that doesn't exist anymore never fail.
    pub fn retry_count(mut self, count: u8) -> ConnectOptions {
        self.retry_count = count.min(7);
        self
    }

    /// Sets the maximum number of retransmissions after RNR NAKs (the peer has no receive posted). The value 7, which
    /// is the default and the maximum, means no limit.
    pub fn rnr_retry(mut self, count: u8) -> ConnectOptions {
        self.rnr_retry = count.min(7);
        self
    }

    /// Sets the RNR backoff that this side demands of the peer when this side has no receive posted. The value is
    /// encoded as in the InfiniBand specification. The default is 12, which means 0.64 ms.
    pub fn min_rnr_timer(mut self, code: u8) -> ConnectOptions {
        self.min_rnr_timer = code.min(31);
        self
    }

    /// Sets the maximum number of outstanding READs and atomics in each direction. Both ends must set the same number.
    /// The default is the device's limit, but at most 16.
    pub fn max_rd_atomic(mut self, count: u8) -> ConnectOptions {
        self.max_rd_atomic = Some(count);
        self
    }

    /// Sets a path MTU that is smaller than the MTUs of both ports. The default is the smaller of these two MTUs.
    pub fn mtu(mut self, mtu: PathMtu) -> ConnectOptions {
        self.mtu = Some(mtu);
        self
    }

    /// Sets the traffic options of the packets. Fields that these options don't set have the values of the queue
    /// pair.
    pub fn traffic(mut self, traffic: Traffic) -> ConnectOptions {
        self.traffic = traffic;
        self
    }
}
