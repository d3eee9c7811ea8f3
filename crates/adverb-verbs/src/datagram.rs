//! Datagrams that came.

use adverb_proto::types::{CompletedOperation, Gid, Qpn};
use adverb_wire::{GRH_LEN, IpHeader};

use super::{AddressHandle, Completion, QueuePair, Traffic, UdDestination};
use crate::error::{Error, Result};
use crate::memory::Buffer;

/// A datagram that came: what it says, and from whom.
#[derive(Debug)]
pub struct Datagram {
    /// What it says: the buffer that received it, narrowed to that.
    pub message: Buffer,
    /// The queue pair that sent it.
    pub source: Qpn,
    /// The header of the IP packet that it came in, with RoCE.
    pub ip: Option<IpHeader>,
    /// Immediate data.
    pub immediate: Option<u32>,
}

impl Datagram {
    /// Whom to answer, on the queue pair that received it. The address handle is kept for the next that comes from there.
    ///
    /// # Errors
    ///
    /// If the datagram came without a route header, or the device refuses. [`Error::Unsupported`] on InfiniBand: have the
    /// sender say its [endpoint](super::Endpoint).
    pub fn reply_to(&self, queue_pair: &QueuePair, qkey: u32) -> Result<UdDestination> {
        let no_header = Error::InvalidRequest { reason: "the datagram came without a route header".into() };
        let source = self.ip.ok_or(no_header)?.source();
        let address = AddressHandle::of(queue_pair, Gid::from(source), 0, Traffic::new())?;
        Ok(UdDestination { address, qpn: self.source, qkey })
    }
}

impl Completion {
    /// The datagram that a receive request got.
    ///
    /// # Errors
    ///
    /// If the request failed, or isn't a receive of a datagram into one buffer.
    pub fn into_datagram(self) -> Result<Datagram> {
        let CompletedOperation::Recv { immediate, source: Some(source), has_grh, .. } =
            self.success()?.operation
        else {
            return Err(Error::InvalidRequest { reason: "the request isn't a receive of a datagram".into() });
        };
        let mut message = self.into_message()?;
        let ip = match message.first_chunk::<GRH_LEN>() {
            Some(grh) if has_grh => IpHeader::from_grh(grh),
            _ => None,
        };
        // The room of the header is there whether it was filled or not.
        let range = message.range();
        message.set_range((range.start + GRH_LEN).min(range.end)..range.end)?;
        Ok(Datagram { message, source, ip, immediate })
    }
}
