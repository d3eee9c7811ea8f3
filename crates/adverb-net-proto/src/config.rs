//! Sizes and time limits of a connection.

use std::time::Duration;

use crate::frame::HEADER_LEN;
use crate::ring::max_write_len;
use crate::{
    MAX_MESSAGE_SIZE, MAX_OUTSTANDING_WRITES, MAX_RENDEZVOUS, MAX_RING_SIZE, MIN_OUTSTANDING_WRITES,
    MIN_RING_SIZE, RING_ALIGN, UNCREDITED_WRITES,
};

/// The sizes and time limits of one side. Those of the two sides may differ.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// The size of the receive ring in bytes: 512 bytes to 16 MiB, a multiple of 16.
    pub recv_ring_size: u32,
    /// The maximum number of the peer's writes that are in flight or unread: 4 to 256.
    pub max_outstanding_writes: u32,
    /// The maximum size of an eager message. A quarter of the peer's ring limits it further.
    pub eager_threshold: u32,
    /// The maximum number of bytes in messages that the application has not received yet. Each message counts as its
    /// size plus 64 bytes. One message is buffered regardless of its size.
    pub recv_buffer_limit: usize,
    /// The maximum size of a message that this side accepts.
    pub max_message_size: u32,
    /// The maximum length of a READ that the device supports.
    pub max_read_len: u32,
    /// The time limit of the handshake over a lane.
    pub handshake_timeout: Duration,
    /// The time limit of a close.
    pub close_timeout: Duration,
    /// The time for which a side that has received the peer's close keeps its lane, waiting for the peer's last write:
    /// the peer may retransmit the close until then.
    pub linger: Duration,
    /// The time for which the closing side waits for the completion of its last write, the acknowledgement of the
    /// close.
    pub close_ack_timeout: Duration,
    /// The time without traffic from the peer after which the connection probes it.
    pub keepalive: Option<Duration>,
    /// The time limit for resuming the session after a lane has failed. Without it, a failed lane ends the connection.
    pub reconnect: Option<Duration>,
    /// The pause between two attempts to dial.
    pub redial_interval: Duration,
}

/// The sizes of one lane, which depend on its device, and on the listener that accepted it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LaneConfig {
    /// See [`Config::recv_ring_size`].
    pub recv_ring_size: u32,
    /// See [`Config::max_outstanding_writes`].
    pub max_outstanding_writes: u32,
    /// See [`Config::max_read_len`].
    pub max_read_len: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            recv_ring_size: 256 << 10,
            max_outstanding_writes: 64,
            eager_threshold: 16 << 10,
            recv_buffer_limit: 4 << 20,
            max_message_size: 64 << 20,
            max_read_len: 1 << 30,
            handshake_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            linger: Duration::from_secs(2),
            close_ack_timeout: Duration::from_millis(20),
            keepalive: Some(Duration::from_secs(5)),
            reconnect: None,
            redial_interval: Duration::from_millis(50),
        }
    }
}

impl Config {
    /// Returns the configuration with every size in its range.
    #[must_use]
    pub fn clamped(mut self) -> Config {
        self.recv_ring_size =
            self.recv_ring_size.clamp(MIN_RING_SIZE, MAX_RING_SIZE) / RING_ALIGN * RING_ALIGN;
        self.max_outstanding_writes =
            self.max_outstanding_writes.clamp(MIN_OUTSTANDING_WRITES, MAX_OUTSTANDING_WRITES);
        self.max_message_size = self.max_message_size.min(MAX_MESSAGE_SIZE);
        self.max_read_len = self.max_read_len.max(self.max_message_size.div_ceil(MAX_READ_PARTS)).max(1);
        self
    }

    /// Returns the sizes of a lane with this configuration.
    pub fn lane(&self) -> LaneConfig {
        LaneConfig {
            recv_ring_size: self.recv_ring_size,
            max_outstanding_writes: self.max_outstanding_writes,
            max_read_len: self.max_read_len,
        }
    }

    /// Returns the configuration with the sizes of another lane.
    #[must_use]
    pub(crate) fn with_lane(self, lane: LaneConfig) -> Config {
        let LaneConfig { recv_ring_size, max_outstanding_writes, max_read_len } = lane;
        Config { recv_ring_size, max_outstanding_writes, max_read_len, ..self }.clamped()
    }

    /// Returns the depth of the receive queue: a receive for the hello, one for each write that the peer may have in
    /// flight, and those that wait until a batch of them is posted.
    pub fn recv_queue_depth(&self) -> u32 {
        1 + self.receives()
    }

    /// Returns the depth of the send queue. Half of it may be unsignaled requests.
    pub fn send_queue_depth(&self) -> u32 {
        let parts = self.max_message_size.div_ceil(self.max_read_len.max(1)).max(1);
        2 * (self.max_outstanding_writes + UNCREDITED_WRITES + 2 * MAX_RENDEZVOUS) + parts
    }

    /// Returns the number of receives for the peer's writes. All but one of a batch are spare, because so many may wait
    /// to be posted.
    pub(crate) fn receives(&self) -> u32 {
        self.max_outstanding_writes + UNCREDITED_WRITES + MAX_RENDEZVOUS + self.recv_batch() - 1
    }

    /// Returns the number of receives that are posted together. Posting them one by one takes twice as long.
    pub(crate) fn recv_batch(&self) -> u32 {
        (self.max_outstanding_writes / 4).clamp(1, MAX_RECV_BATCH)
    }

    /// Returns the maximum size of an eager message for a ring of this size.
    pub(crate) fn eager_limit(&self, ring: u32) -> u32 {
        self.eager_threshold.min(max_write_len(ring) - HEADER_LEN as u32)
    }
}

/// The maximum number of receives that are posted together.
const MAX_RECV_BATCH: u32 = 16;
/// The maximum number of READs for one message.
const MAX_READ_PARTS: u32 = 128;
