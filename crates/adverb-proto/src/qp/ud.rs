//! The responder of datagrams (vol. 1, 9.8.3; `rxe_resp.c`).

use core::net::IpAddr;

use adverb_wire::{GRH_LEN, ICRC_LEN, IpHeader, UDP_HEADER_LEN, Ud};

use super::{Context, QueuePair, Received};
use crate::memory::Memory;
use crate::mutation::mutant;
use crate::path::{IcrcCheck, RxMeta};
use crate::trace::{DropReason, EventSink};
use crate::types::{CompletedOperation, Gid, Status, Success};

impl QueuePair {
    /// Handles a datagram whose ICRC has been checked.
    pub(crate) fn handle_datagram<S: EventSink>(
        &mut self,
        cx: &mut Context<'_, S>,
        rx_meta: &RxMeta,
        packet: Received<'_>,
        datagram: &Ud,
        memory: &mut impl Memory,
    ) {
        // A datagram with a wrong queue key is dropped without a response (vol. 1, 9.6.1).
        let is_qkey_wrong = datagram.qkey != self.qkey && !mutant!(SkipQueueKeyCheck);
        if is_qkey_wrong {
            cx.stats.qkey_violations += 1;
            return self.drop_packet(cx, packet, DropReason::WrongQkey);
        }
        let payload = packet.payload;
        let length = payload.len() + GRH_LEN;
        let reason = match self.front_receive(cx) {
            None => DropReason::NoReceivePosted,
            Some(entry) if payload.len() > self.mtu as usize || length as u64 > entry.length => {
                DropReason::MessageTooLong
            }
            Some(entry) => {
                let grh = if mutant!(ZeroedRouteHeader) { [0; GRH_LEN] } else { build_grh(rx_meta, packet) };
                let (keys, pd) = (&*cx.keys, self.recv_pd);
                let segments = &self.recv_queue.segments;
                let payload_offset = GRH_LEN as u32;
                let scattered = segments.scatter(entry.segments, 0, &grh, keys, pd, memory).and_then(|()| {
                    segments.scatter(entry.segments, payload_offset, payload, keys, pd, memory)
                });
                if let Err(error) = scattered {
                    self.fail_receive(cx, Status::from(error));
                    return self.fail(cx);
                }
                let operation = CompletedOperation::Recv {
                    immediate: datagram.immediate,
                    invalidated: None,
                    source: Some(datagram.source_qp),
                    has_grh: true,
                };
                let success = Success { operation, length: length as u32 };
                return self.complete_recv(cx, success, packet.header.solicited);
            }
        };
        cx.stats.messages_dropped += 1;
        self.drop_packet(cx, packet, reason);
    }
}

/// The ECN bits (the two lowest bits of the traffic class) that a switch sets when its queue is long (RFC 3168).
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Returns the GRH: the 40 bytes before a datagram's payload, from its IP header (Annex A17.4).
fn build_grh(rx_meta: &RxMeta, packet: Received<'_>) -> [u8; GRH_LEN] {
    let gids = [rx_meta.source, rx_meta.destination].map(Gid::from);
    let ip_header = if gids.iter().any(|gid| gid.has_udp_port()) {
        // Only an IPv6 header has space for an address that encodes a port. An IPv4 address in the same header is
        // mapped.
        let [source, destination] = gids.map(|gid| IpAddr::V6(gid.bytes().into()));
        IpHeader::new(source, destination)
    } else {
        IpHeader::new(rx_meta.source.ip(), rx_meta.destination.ip())
    };
    let Some(mut ip) = ip_header else { return [0; GRH_LEN] };
    // Unknown fields have default values.
    let route = &rx_meta.route;
    let class = route.traffic_class | if rx_meta.is_ecn_marked { CONGESTION_EXPERIENCED } else { 0 };
    match &mut ip {
        IpHeader::V4(ip) => {
            ip.tos = class;
            ip.ttl = route.hop_limit.unwrap_or(ip.ttl);
            if let IcrcCheck::IpId(identification) = rx_meta.icrc {
                ip.ip_id = identification;
            }
        }
        IpHeader::V6(ip) => {
            ip.traffic_class = class;
            ip.flow_label = route.flow_label & 0xf_ffff;
            ip.hop_limit = route.hop_limit.unwrap_or(ip.hop_limit);
        }
    }
    let payload_len = packet.payload.len();
    let udp_len = UDP_HEADER_LEN + packet.header.len() + payload_len.next_multiple_of(4) + ICRC_LEN;
    ip.to_grh(u16::try_from(udp_len).unwrap_or(u16::MAX))
}
