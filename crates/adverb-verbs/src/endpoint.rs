//! What two queue pairs must know of each other to be connected.

use adverb_proto::types::{Gid, PathMtu, Psn, Qpn};

use super::Traffic;

/// What a peer must know of a queue pair to connect to it. Exchanged however you like; with the feature `serde` it can be
/// serialised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Endpoint {
    /// The address of its port.
    pub gid: Gid,
    /// The local identifier of its port, on InfiniBand.
    pub lid: u16,
    /// Its number.
    #[cfg_attr(feature = "serde", serde(with = "qpn"))]
    pub qpn: Qpn,
    /// The sequence number of its first packet.
    #[cfg_attr(feature = "serde", serde(with = "psn"))]
    pub psn: Psn,
    /// The largest MTU that its port has, in bytes; a connection uses the smaller of the two ends'.
    pub mtu: u16,
}

impl Endpoint {
    /// What a peer says that doesn't speak of more: of its MTU, which is taken to be what ours is, and of the local
    /// identifier of its port, which only InfiniBand has.
    ///
    /// ```
    /// use adverb::verbs::{Endpoint, Gid, Psn, Qpn};
    ///
    /// let address: std::net::IpAddr = "192.0.2.7".parse()?;
    /// let peer = Endpoint::new(Gid::from(address), Qpn::truncate(0x11), Psn::wrapping(0x1234));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn new(gid: Gid, qpn: Qpn, psn: Psn) -> Endpoint {
        Endpoint { gid, lid: 0, qpn, psn, mtu: PathMtu::Mtu4096.bytes() }
    }

    /// The MTU to use between this endpoint and a port with `mtu`.
    pub(super) fn common_mtu(&self, mtu: PathMtu) -> PathMtu {
        PathMtu::at_most(usize::from(self.mtu)).map_or(PathMtu::Mtu256, |theirs| theirs.min(mtu))
    }
}

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

/// Declares how a 24-bit number is serialised: as a number that is checked.
#[cfg(feature = "serde")]
macro_rules! as_number {
    ($module:ident, $type:ident) => {
        mod $module {
            use adverb_proto::types::$type;
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            pub(super) fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u32(value.get())
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let number = u32::deserialize(deserializer)?;
                $type::new(number).ok_or_else(|| D::Error::custom(format!("{number} has more than 24 bits")))
            }
        }
    };
}

#[cfg(feature = "serde")]
as_number!(qpn, Qpn);
#[cfg(feature = "serde")]
as_number!(psn, Psn);
