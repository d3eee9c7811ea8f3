//! Received packets, before their destination is known.

use std::net::SocketAddr;
use std::time::Instant;

use adverb_proto::IcrcCheck;

use super::RxPacket;

/// A received datagram.
pub(super) struct Datagram<'a> {
    pub(super) source: SocketAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: Option<u8>,
    pub(super) flow_label: u32,
    pub(super) received_at: Option<Instant>,
    pub(super) bytes: &'a [u8],
}

impl Datagram<'_> {
    /// Returns the packet in the datagram.
    #[inline]
    pub(super) fn to_packet(&self, destination: SocketAddr, icrc: IcrcCheck) -> RxPacket<'_> {
        RxPacket {
            source: self.source,
            destination,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            icrc,
            received_at: self.received_at,
            bytes: self.bytes,
        }
    }
}
