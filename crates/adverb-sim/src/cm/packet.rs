//! Messages and pings as packets, with their ICRC.

use std::net::SocketAddr;

use adverb_proto::cm::AddrPair;
use adverb_wire::cm::{GSI_QKEY, Mad};
use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Packet, Psn, Qpn, ROCE_PORT, Ud};

use crate::fabric::InFlight;

pub(super) const SOURCE_PORT: u16 = 0xc001;

/// The content of a packet.
pub(super) enum Content {
    /// A message, from queue pair 1 to queue pair 1.
    Mad(Box<Mad>),
    /// A ping, which represents the traffic of a connection.
    Ping { to: Qpn, from: Qpn, psn: Psn, reply: bool },
}

pub(super) fn write(addrs: AddrPair, content: &Content, ip_id: u16) -> Vec<u8> {
    let (to, from, psn, payload) = match content {
        Content::Mad(mad) => (Qpn::GSI, Qpn::GSI, Psn::ZERO, mad.emit().to_vec()),
        Content::Ping { to, from, psn, reply } => (*to, *from, *psn, vec![u8::from(*reply); 4]),
    };
    let operation = Operation::Ud(Ud { qkey: GSI_QKEY, source_qp: from, immediate: None });
    let header = Header::new(to, psn, operation);
    let mut head = [0; MAX_HEADER_LEN];
    let Some(emitted) = flow(addrs.local, addrs.remote)
        .and_then(|flow| flow.emit(&header, ip_id, &[&payload], &mut head).ok())
    else {
        return Vec::new();
    };
    [&head[..emitted.header_len], &payload, &emitted.trailer].concat()
}

/// Parses a packet. Returns `None` if it is corrupt.
pub(super) fn read(addrs: AddrPair, packet: &InFlight) -> Option<Content> {
    let parsed = Packet::parse(&packet.bytes).ok()?;
    flow(addrs.remote, addrs.local)?.verify(&parsed, packet.ip_id).ok()?;
    let header = parsed.header();
    let Operation::Ud(ud) = header.operation else { return None };
    if header.dest_qp == Qpn::GSI {
        return Some(Content::Mad(Box::new(Mad::parse(parsed.payload()).ok()?)));
    }
    let reply = parsed.payload().first() == Some(&1);
    Some(Content::Ping { to: header.dest_qp, from: ud.source_qp, psn: header.psn, reply })
}

fn flow(from: std::net::IpAddr, to: std::net::IpAddr) -> Option<Flow> {
    Flow::new(SocketAddr::new(from, SOURCE_PORT), SocketAddr::new(to, ROCE_PORT))
}
