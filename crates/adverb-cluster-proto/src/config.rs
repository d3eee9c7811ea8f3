//! The configuration of a broker.

use core::fmt;
use core::time::Duration;

use crate::credits::RESERVED_RECEIVES;

/// The maximum of each count in a [`BrokerConfig`].
pub const MAX_COUNT: u16 = 1 << 14;

/// The maximum number of peers: request ids have 16 bits for them.
pub(crate) const MAX_PEERS: usize = 1 << 16;

/// The sizes of a broker's queues and rings, which are the same for each peer.
///
/// ```
/// # mod adverb { pub use adverb_cluster_proto as cluster; }
/// use adverb::cluster::BrokerConfig;
///
/// let config = BrokerConfig { send_slots: 4, recv_slots: 4, slot_size: 256, ..BrokerConfig::default() };
/// config.validate()?;
/// // Four slots to send, four to receive, two for credit messages, and one for a leave message.
/// assert_eq!(config.message_bytes_per_peer(), 11 * 256);
/// # Ok::<(), adverb::cluster::ConfigError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokerConfig {
    /// The number of send slots per peer. A slot is in use until the NIC has sent its message. The default is 64.
    pub send_slots: u16,
    /// The number of messages from a peer that the broker accepts before the application releases one. The default is 64.
    pub recv_slots: u16,
    /// The size of a send or receive slot in bytes: the maximum message size. The default is 4096.
    pub slot_size: u32,
    /// The maximum number of requests per peer that wait to be posted. The default is 128.
    pub queue_depth: u16,
    /// The number of requests that fit the send queue of a peer's queue pair. The default is 128.
    pub send_queue_depth: u16,
    /// The number of waiting requests at which the broker posts them without a flush. The default is 32.
    pub doorbell_batch: u16,
    /// The signal interval: at least one of so many successive requests is signaled. The broker uses a smaller number if a
    /// ring or the send queue is smaller. The default is 16.
    pub signal_interval: u16,
    /// The time after which an idle session is checked with a WRITE of zero bytes. It detects a peer whose NIC stopped
    /// responding. `None` disables the check. The default is 1 s.
    pub keepalive: Option<Duration>,
}

impl Default for BrokerConfig {
    fn default() -> BrokerConfig {
        BrokerConfig {
            send_slots: 64,
            recv_slots: 64,
            slot_size: 4096,
            queue_depth: 128,
            send_queue_depth: 128,
            doorbell_batch: 32,
            signal_interval: 16,
            keepalive: Some(Duration::from_secs(1)),
        }
    }
}

impl BrokerConfig {
    /// Checks that each number is in its range.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::OutOfRange`] and [`ConfigError::ZeroKeepalive`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        let counts = [
            ("send_slots", self.send_slots),
            ("recv_slots", self.recv_slots),
            ("queue_depth", self.queue_depth),
            ("send_queue_depth", self.send_queue_depth),
            ("doorbell_batch", self.doorbell_batch),
            ("signal_interval", self.signal_interval),
        ];
        for (field, count) in counts {
            if count == 0 || count > MAX_COUNT {
                let (requested, max) = (count.into(), MAX_COUNT.into());
                return Err(ConfigError::OutOfRange { field, requested, max });
            }
        }
        let (requested, max) = (self.slot_size, i32::MAX as u32);
        if requested == 0 || requested > max {
            return Err(ConfigError::OutOfRange { field: "slot_size", requested, max });
        }
        if self.keepalive.is_some_and(|interval| interval.is_zero()) {
            return Err(ConfigError::ZeroKeepalive);
        }
        Ok(())
    }

    /// Returns the number of receives that the broker posts for each peer: the receive slots, two for credit
    /// messages, and one for a leave message. The receive queue of the queue pair must have at least this size.
    pub const fn recv_queue_depth(&self) -> u16 {
        self.recv_slots + RESERVED_RECEIVES
    }

    /// Returns the size of a peer's message slots, in bytes: registered memory that the driver allocates.
    pub const fn message_bytes_per_peer(&self) -> u64 {
        (self.send_slots as u64 + self.recv_queue_depth() as u64) * self.slot_size as u64
    }

    /// Returns the signal interval, reduced so that a full ring and a full send queue always contain a signaled
    /// request: otherwise no completion would free their places.
    pub(crate) fn effective_signal_interval(&self) -> u16 {
        self.signal_interval.min(self.send_slots.div_ceil(2)).min(self.send_queue_depth.div_ceil(2))
    }

    /// Returns the size of a batch that fits the queue.
    pub(crate) fn effective_doorbell_batch(&self) -> usize {
        usize::from(self.doorbell_batch.min(self.queue_depth))
    }
}

/// A configuration that a broker can't use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is zero or exceeds its maximum.
    OutOfRange {
        /// The field of the configuration.
        field: &'static str,
        /// The number.
        requested: u32,
        /// The maximum. The minimum is 1.
        max: u32,
    },
    /// The keepalive interval is zero.
    ZeroKeepalive,
    /// A broker has more peers than request ids can distinguish.
    TooManyPeers {
        /// The requested number.
        requested: usize,
        /// The maximum.
        max: usize,
    },
    /// The message slots are too small for the headers of calls, or for the keys of an arena.
    SlotTooSmall {
        /// The size in bytes.
        size: u32,
        /// The minimum.
        min: u32,
    },
}

impl ConfigError {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            ConfigError::ZeroKeepalive => Some("use `None` to disable the keepalive"),
            ConfigError::SlotTooSmall { .. } => Some("use a larger `slot_size` at all members"),
            ConfigError::OutOfRange { .. } | ConfigError::TooManyPeers { .. } => None,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::OutOfRange { field, requested, max } => {
                write!(f, "`{field}` of the configuration is {requested}, but must be from 1 to {max}")
            }
            ConfigError::ZeroKeepalive => f.write_str("the broker's keepalive interval is zero"),
            ConfigError::TooManyPeers { requested, max } => {
                write!(f, "a broker with {requested} peers exceeds the maximum of {max}")
            }
            ConfigError::SlotTooSmall { size, min } => {
                write!(f, "the broker's `slot_size` of {size} bytes is below the minimum of {min} bytes")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

const _: () = assert!(size_of::<ConfigError>() <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked() {
        assert_eq!(BrokerConfig::default().validate(), Ok(()));
        let config = BrokerConfig { send_slots: 0, ..BrokerConfig::default() };
        assert!(matches!(config.validate(), Err(ConfigError::OutOfRange { field: "send_slots", .. })));
        let config = BrokerConfig { recv_slots: MAX_COUNT + 1, ..BrokerConfig::default() };
        assert!(matches!(config.validate(), Err(ConfigError::OutOfRange { field: "recv_slots", .. })));
        let config = BrokerConfig { keepalive: Some(Duration::ZERO), ..BrokerConfig::default() };
        assert_eq!(config.validate(), Err(ConfigError::ZeroKeepalive));
    }

    #[test]
    fn the_documentation_has_the_defaults() {
        let BrokerConfig {
            send_slots,
            recv_slots,
            slot_size,
            queue_depth,
            send_queue_depth,
            doorbell_batch,
            signal_interval,
            keepalive,
        } = BrokerConfig::default();
        let source = include_str!("config.rs");
        let check = |field: &str, default: &str| {
            let (docs, _) = source.split_once(&format!("    pub {field}: ")).expect("a field");
            assert!(docs.trim_end().ends_with(&format!("The default is {default}.")), "{field} {default}");
        };
        check("send_slots", &send_slots.to_string());
        check("recv_slots", &recv_slots.to_string());
        check("slot_size", &slot_size.to_string());
        check("queue_depth", &queue_depth.to_string());
        check("send_queue_depth", &send_queue_depth.to_string());
        check("doorbell_batch", &doorbell_batch.to_string());
        check("signal_interval", &signal_interval.to_string());
        check("keepalive", &format!("{} s", keepalive.expect("enabled by default").as_secs()));
    }

    #[test]
    fn the_smallest_ring_limits_the_signal_interval() {
        let config = BrokerConfig { send_slots: 1, ..BrokerConfig::default() };
        assert_eq!(config.effective_signal_interval(), 1);
        let config = BrokerConfig { send_slots: 5, signal_interval: 100, ..BrokerConfig::default() };
        assert_eq!(config.effective_signal_interval(), 3);
    }
}
