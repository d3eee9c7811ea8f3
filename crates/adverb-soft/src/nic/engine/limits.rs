//! The limits of a NIC's queue pairs.

use adverb_proto::types::PathMtu;
use adverb_proto::{CreateQpError, QpConfig};

use crate::link::AddressShare;

/// The limits of queue pairs, so that the data in flight fits the link's receive buffer.
pub(in crate::nic) struct Limits {
    /// The maximum number of outstanding packets of a queue pair.
    window: u32,
    /// The maximum number of outstanding bytes of READ responses of a queue pair. The responses must fit this NIC's
    /// receive buffer.
    read_window: u32,
    /// The maximum number of small requests that are coalesced.
    coalesce_limit: u32,
    /// The maximum number of queue pairs.
    max_qp_count: usize,
}

impl Limits {
    /// Returns the limits of a link with this receive buffer, and this share of the queue pair numbers.
    pub(super) fn new(buffer: Option<usize>, share: Option<AddressShare>, mtu: PathMtu) -> Limits {
        Limits {
            window: buffer.map_or(u32::MAX, |buffer| window(buffer, mtu)),
            read_window: buffer.map_or(u32::MAX, read_window),
            coalesce_limit: if buffer.is_some() { COALESCE_LIMIT } else { 0 },
            max_qp_count: share.map_or(usize::MAX, |_| AddressShare::MAX_QUEUE_PAIRS),
        }
    }

    /// Reduces the limits of a queue pair to those of the NIC, which has `qp_count` queue pairs.
    ///
    /// # Errors
    ///
    /// Returns [`CreateQpError::TooMany`] if the NIC has no number for another queue pair.
    pub(in crate::nic) fn apply(&self, config: &mut QpConfig, qp_count: usize) -> Result<(), CreateQpError> {
        config.window = config.window.min(self.window);
        config.read_window = config.read_window.min(self.read_window);
        config.coalesce_limit = config.coalesce_limit.max(self.coalesce_limit);
        if qp_count < self.max_qp_count { Ok(()) } else { Err(CreateQpError::TooMany) }
    }
}

/// Returns the number of packets that fit a receive buffer. With Linux's default limit for unprivileged processes, 416
/// KiB, this is 92 packets of 4 KiB. A larger window loses packets.
pub(in crate::nic) fn window(buffer: usize, mtu: PathMtu) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_fits_the_receive_buffer() {
        assert_eq!(window(2 * 212_992, PathMtu::Mtu4096), 92);
        assert_eq!(window(8 << 20, PathMtu::Mtu1024), 5461);
        assert_eq!(window(0, PathMtu::Mtu256), MIN_WINDOW);
    }
}
