//! Datagrams: received ones, and the part of a queue pair for them.

use adverb_proto::types::{Gid, Qpn};
use adverb_wire::{GRH_LEN, IpHeader};

use super::QueuePair;
use super::address_cache::AddressCache;
use super::multicast::Memberships;
use crate::device::{Traffic, UdDestination};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::request::{CompletedOperation, Completion};

/// A received datagram.
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// The message: the buffer of the receive request, with its range set to the received bytes.
    pub message: Buffer,
    /// The number of the sending queue pair.
    pub source_qpn: Qpn,
    /// The header of the IP packet that carried the datagram, on RoCE.
    pub ip_header: Option<IpHeader>,
    /// The immediate data, if the sender added any.
    pub immediate: Option<u32>,
}

impl Datagram {
    /// Creates the destination for a reply from `queue_pair`, the queue pair that received the datagram. The address
    /// handle is cached for the next datagram from the same sender.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the datagram has no IP header, [`Error::Unsupported`] on InfiniBand (the
    /// sender must transmit its [endpoint](crate::Endpoint) instead), and [`Error::CallFailed`] if the operation fails.
    pub fn create_reply_destination(&self, queue_pair: &QueuePair, qkey: u32) -> Result<UdDestination> {
        let no_header = Error::InvalidRequest { reason: "the received datagram has no GRH".into() };
        let source = self.ip_header.ok_or(no_header)?.source();
        let address_handle = queue_pair.route(Gid::from(source), 0, Traffic::new())?;
        Ok(UdDestination { address_handle, qpn: self.source_qpn, qkey })
    }
}

impl Completion {
    /// Returns the datagram that a receive request received.
    ///
    /// # Errors
    ///
    /// Returns [`Error::RequestFailed`] if the request failed, and [`Error::InvalidRequest`] if it is not a receive
    /// of a datagram into exactly one [`Buffer`].
    pub fn into_datagram(self) -> Result<Datagram> {
        let CompletedOperation::Recv { immediate, source: Some(source), has_grh, .. } =
            self.result()?.operation
        else {
            return Err(Error::InvalidRequest {
                reason: "the completion is not that of a received UD message".into(),
            });
        };
        let mut message = self.into_message()?;
        let ip = match message.first_chunk::<GRH_LEN>() {
            Some(grh) if has_grh => IpHeader::from_grh(grh),
            _ => None,
        };
        // The buffer starts with the space for the header, even if the device didn't write one.
        let range = message.range();
        message.set_range((range.start + GRH_LEN).min(range.end)..range.end)?;
        Ok(Datagram { message, source_qpn: source, ip_header: ip, immediate })
    }
}

/// The part of a queue pair for datagrams; only UD queue pairs use it.
pub(crate) struct Datagrams {
    /// The queue key: the queue pair drops datagrams with a different key.
    pub(crate) qkey: u32,
    /// The multicast groups that the queue pair belongs to.
    pub(super) memberships: Memberships,
    /// The routes that the queue pair used last.
    pub(super) addresses: AddressCache,
}

impl Datagrams {
    pub(super) fn new(qkey: u32) -> Datagrams {
        Datagrams { qkey, memberships: Memberships::default(), addresses: AddressCache::default() }
    }
}
