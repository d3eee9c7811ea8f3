//! Traces whose answers a fuzzer's bytes control.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use adverb_verbs::Qpn;
use adverb_wire::Psn;

use super::packet::{Packets, icmp_message};
use super::{RouteTarget, TraceOptions, Tracer};
use crate::fuzzing::Script;

/// The source ports. A trace with few of them ends soon.
const PORTS: std::ops::Range<u16> = 0xc001..0xc011;

/// Traces a route of which all ICMP messages and acknowledgements may be forged, and checks that the trace ends with
/// paths within its limits.
///
/// # Panics
///
/// Panics if an invariant is violated.
pub(crate) fn trace(script: &mut Script<'_>) {
    let destination = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));
    let source = (Ipv4Addr::new(10, 0, 0, 1), 0xc001).into();
    let target = RouteTarget { address: destination, qpn: Qpn::truncate(0x1234), qkey: 7 };
    let first_psn = Psn::wrapping(script.word());
    let packets = Packets { target, source_qp: Qpn::truncate(0x55), first_psn };
    let options = TraceOptions { max_paths: 3, max_hops: 5, max_active_ports: 4, ..TraceOptions::new() };
    let mut tracer = Tracer::new(options, destination, PORTS).expect("valid options");
    let mut now = Instant::now();
    let mut sent = Vec::new();
    while let Some(action) = script.next() {
        match action % 8 {
            0 | 1 => {
                if let Some(probe) = tracer.poll_transmit(now) {
                    let packet = packets.build(probe.id, source, &[0; 96]).expect("addresses of one family");
                    assert_eq!(packets.id_of(&packet), Ok(Some(probe.id & 0xff_ffff)));
                    sent.push((probe, packet));
                }
            }
            2..=4 => {
                // An ICMP message that quotes a packet of the trace, changed or not, or any bytes.
                let quoted = match (script.byte() % 4, script.pick(&sent)) {
                    (0, _) | (_, None) => script.bytes(64).to_vec(),
                    (1, Some((_, packet))) => script.change(packet),
                    (_, Some((_, packet))) => packet.clone(),
                };
                let port = script.pick(&sent).map_or(PORTS.start, |(probe, _)| probe.source_port);
                let from = IpAddr::V4(Ipv4Addr::new(10, 0, script.byte() & 1, script.byte() & 3));
                let (is_ipv6, kind, code) = (script.byte() & 7 == 0, script.byte() % 16, script.byte() % 16);
                if let (Some(message), Ok(id)) = (icmp_message(is_ipv6, kind, code), packets.id_of(&quoted)) {
                    assert!(id.is_none_or(|id| id < 1 << 24));
                    tracer.handle_icmp(port, id, from, message, now);
                }
            }
            5 => {
                let any = script.word();
                let id = script.pick(&sent).map_or(any, |(probe, _)| probe.id);
                tracer.handle_ack(if any & 1 == 0 { id } else { any }, now);
            }
            6 => now += Duration::from_millis(u64::from(script.byte()) * 8),
            _ => tracer.handle_unavailable_port(PORTS.start + u16::from(script.byte() % 16)),
        }
    }
    // Without further answers, the trace ends by itself.
    for _ in 0..100_000 {
        if tracer.is_finished() {
            break;
        }
        if tracer.poll_transmit(now).is_none() && !tracer.is_finished() {
            now = tracer.poll_timeout().map_or(now, |due| due.max(now));
        }
    }
    assert!(tracer.is_finished(), "{:?}", tracer.progress());
    let route = tracer.into_route();
    assert!(route.port_count <= PORTS.len());
    for path in &route.paths {
        assert!(path.hops.len() <= usize::from(options.max_hops), "{path:?}");
        assert!(!path.source_ports.is_empty() && path.source_ports.contains(&path.source_port));
    }
}
