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
///
/// Two UD queue pairs with the same queue key. Usually they belong to different programs, and the receiver sends its
/// [endpoint](QueuePair::endpoint) to the sender over another connection.
///
/// ```
/// # #[cfg(feature = "soft")]
/// # fn main() -> adverb::verbs::Result<()> {
/// use std::time::Duration;
/// use adverb::verbs::{Device, SendRequest, SoftDevice, Switch, Transport};
///
/// const QKEY: u32 = 0x1234;
/// const GRH_LEN: usize = 40; // the device writes the global route header before each message
///
/// let switch = Switch::default();
/// let here = SoftDevice::on_switch(&switch, "10.0.0.1".parse().unwrap()).open()?;
/// let there = SoftDevice::on_switch(&switch, "10.0.0.2".parse().unwrap()).open()?;
/// let create = |device: &Device| {
///     let domain = device.create_protection_domain()?;
///     let completions = device.completion_queue(16).create()?;
///     domain.queue_pair(Transport::Ud).completion_queue(&completions).depth(8, 8).qkey(QKEY).create()
/// };
/// let (sender, receiver) = (create(&here)?, create(&there)?);
///
/// // A receive needs memory for the header and for the longest message, which is the MTU.
/// let len = GRH_LEN + receiver.max_message_size() as usize;
/// let id = receiver.post_recv(receiver.protection_domain().allocate_buffer(len)?)?;
/// receiver.move_to_rts()?; // before this call, the device drops datagrams
///
/// sender.move_to_rts()?;
/// let destination = sender.create_ud_destination(&receiver.endpoint(), QKEY)?; // for any number of datagrams
/// let mut message = sender.protection_domain().allocate_buffer(8)?;
/// message.copy_from_slice(b"datagram");
/// sender.post_send(SendRequest::send(message).destination(&destination))?;
///
/// let completion = receiver.recv_completion_queue().wait(id, Duration::from_secs(5))?;
/// assert_eq!(completion.result()?.length, 48); // with the header
/// let datagram = completion.into_datagram()?;
/// assert_eq!(&datagram.message[..], b"datagram"); // without it
/// let reply_destination = datagram.create_reply_destination(&receiver, QKEY)?;
/// assert_eq!(reply_destination.qpn, sender.qpn());
///
/// // The buffer's range is the message: the next receive needs the whole buffer.
/// let mut buffer = datagram.message;
/// buffer.reset_range();
/// receiver.post_recv(buffer)?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram {
    /// The message: the buffer of the receive request, with its range set to the received bytes, without the 40 bytes of
    /// the global route header (GRH). [`reset_range`](Buffer::reset_range) makes the buffer ready for the next receive.
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
    /// Returns the datagram that a receive request received. The message lacks the 40 bytes of the GRH, which
    /// [`Success::length`](crate::Success::length) includes.
    ///
    /// For a receive into a [`PoolBuf`](crate::memory::PoolBuf), call [`into_pool_message`](Completion::into_pool_message)
    /// instead, which includes the GRH. The [operation](crate::CompletedOperation::Recv) has the sender's number and the
    /// immediate data.
    ///
    /// # Errors
    ///
    /// Returns [`Error::RequestFailed`] if the request failed, and [`Error::InvalidRequest`] if it is not a receive
    /// of a datagram into exactly one [`Buffer`]. Both drop the payload; [`into_payload`](Completion::into_payload) returns
    /// it in all cases.
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
