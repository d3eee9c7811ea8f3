//! The packets of a trace.

use std::net::{IpAddr, SocketAddr};

use adverb_verbs::{Psn, Qpn};
use adverb_wire::cm::{GSI_QKEY, MAD_LEN};
use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Opcode, Operation, ROCE_PORT, Ud};

use super::{IcmpMessage, Unreachable};

/// The destination of a trace's packets. They are valid RoCE v2 packets, because others would count as errors at the
/// destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteTarget {
    /// The IP address of the destination.
    pub address: IpAddr,
    /// The queue pair that receives the packets.
    pub qpn: Qpn,
    /// The queue key of this queue pair.
    pub qkey: u32,
}

impl RouteTarget {
    /// Creates the target for a destination without a responder: its queue pair 1, which each device has. The packets
    /// are management datagrams that don't ask for an answer.
    pub const fn without_responder(address: IpAddr) -> RouteTarget {
        RouteTarget { address, qpn: Qpn::GSI, qkey: GSI_QKEY }
    }

    /// Returns the UDP address of the packets.
    pub(super) fn udp_addr(&self) -> SocketAddr {
        SocketAddr::new(self.address, ROCE_PORT)
    }
}

/// The builder and reader of a trace's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packets {
    pub(super) target: RouteTarget,
    /// The local queue pair, which receives acknowledgements.
    pub(super) source_qp: Qpn,
    /// The packet sequence number of probe 0. Receivers of unreliable datagrams ignore it.
    pub(super) first_psn: Psn,
}

/// The length of the base transport header, which has the packet sequence number at its end.
const BTH_LEN: usize = 12;

impl Packets {
    /// Returns the packet of a probe with this number, or `None` if the addresses are not of one family.
    pub(super) fn build(&self, id: u32, source: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
        let flow = Flow::new(source, self.target.udp_addr())?;
        let datagram = Ud { qkey: self.target.qkey, source_qp: self.source_qp, immediate: None };
        let psn = Psn::wrapping(self.first_psn.get().wrapping_add(id));
        let header = Header::new(self.target.qpn, psn, Operation::Ud(datagram));
        let mut head = [0; MAX_HEADER_LEN];
        let emitted = flow.emit(&header, 0, &[payload], &mut head).ok()?;
        Some([&head[..emitted.header_len], payload, &emitted.trailer[..]].concat())
    }

    /// Returns the number of the probe whose packet begins with these bytes, or `None` if there are too few bytes.
    /// Returns an error if it is another packet.
    pub(super) fn id_of(&self, quoted: &[u8]) -> Result<Option<u32>, OtherPacket> {
        let Some(header) = quoted.first_chunk::<BTH_LEN>() else { return Ok(None) };
        let &[opcode, _, _, _, _, q0, q1, q2, _, p0, p1, p2] = header;
        let target = self.target.qpn.get().to_be_bytes();
        if opcode != Opcode::UdSendOnly.byte() || [0, q0, q1, q2] != target {
            return Err(OtherPacket);
        }
        let psn = u32::from_be_bytes([0, p0, p1, p2]);
        Ok(Some(psn.wrapping_sub(self.first_psn.get()) & 0xff_ffff))
    }
}

/// The fact that a packet isn't one of a trace's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OtherPacket;

/// Returns a management datagram of the connection manager's class that doesn't ask for an answer: the attribute
/// ClassPortInfo with the method Send, which no device handles.
pub(super) fn quiet_mad() -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    // The base version, the class, its version, and the method.
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    // The attribute.
    mad[16..18].copy_from_slice(&1_u16.to_be_bytes());
    mad
}

/// Returns the meaning of an ICMP (or ICMPv6) message, or `None` if it says nothing about the path.
pub(super) fn icmp_message(is_ipv6: bool, kind: u8, code: u8) -> Option<IcmpMessage> {
    let reason = match (is_ipv6, kind, code) {
        (false, 11, 0) | (true, 3, 0) => return Some(IcmpMessage::TimeExceeded),
        (false, 3, 0) | (true, 1, 0) => Unreachable::Network,
        (false, 3, 1) | (true, 1, 3) => Unreachable::Host,
        (false, 3, 2) => Unreachable::Protocol,
        (false, 3, 3) | (true, 1, 4) => Unreachable::Port,
        (false, 3, 4) | (true, 2, _) => Unreachable::TooLong,
        (false, 3, 9 | 10 | 13) | (true, 1, 1 | 5 | 6) => Unreachable::Prohibited,
        (false, 3, code) | (true, 1, code) => Unreachable::Other(code),
        _ => return None,
    };
    Some(IcmpMessage::Unreachable(reason))
}

#[cfg(test)]
mod tests {
    use adverb_wire::Packet;

    use super::*;

    #[test]
    fn packets_are_valid_and_carry_the_number_of_their_probe() {
        for (source, address) in [("10.0.0.1:50000", "10.0.1.2"), ("[fd00::1]:50000", "fd00::2")] {
            let target = RouteTarget { address: address.parse().unwrap(), qpn: Qpn::truncate(0x12), qkey: 7 };
            let source: SocketAddr = source.parse().unwrap();
            let packets =
                Packets { target, source_qp: Qpn::truncate(0x34), first_psn: Psn::wrapping(0xff_fffe) };
            for id in 0..4 {
                let bytes = packets.build(id, source, &[1; 96]).unwrap();
                let packet = Packet::parse(&bytes).unwrap();
                let flow = Flow::new(source, target.udp_addr()).unwrap();
                flow.verify(&packet, 0).unwrap();
                assert_eq!(packet.header().dest_qp, target.qpn);
                assert_eq!(packet.payload(), [1; 96]);
                let expected = Ud { qkey: 7, source_qp: Qpn::truncate(0x34), immediate: None };
                assert_eq!(packet.header().operation, Operation::Ud(expected));
                for len in [BTH_LEN, bytes.len()] {
                    assert_eq!(packets.id_of(&bytes[..len]), Ok(Some(id)));
                }
                assert_eq!(packets.id_of(&bytes[..BTH_LEN - 1]), Ok(None));
                let other = Packets { target: RouteTarget { qpn: Qpn::truncate(0x13), ..target }, ..packets };
                assert_eq!(other.id_of(&bytes), Err(OtherPacket));
            }
        }
        let target = RouteTarget::without_responder("10.0.0.1".parse().unwrap());
        let packets = Packets { target, source_qp: Qpn::GSI, first_psn: Psn::ZERO };
        assert_eq!(packets.build(0, "[::1]:1".parse().unwrap(), &[]), None, "two address families");
        assert!(packets.build(0, "10.0.0.2:50000".parse().unwrap(), &quiet_mad()).is_some());
    }

    #[test]
    fn icmp_messages_have_one_meaning_in_both_versions() {
        assert_eq!(icmp_message(false, 11, 0), Some(IcmpMessage::TimeExceeded));
        assert_eq!(icmp_message(true, 3, 0), Some(IcmpMessage::TimeExceeded));
        for (reason, v4, v6) in [
            (Unreachable::Network, 0, 0),
            (Unreachable::Host, 1, 3),
            (Unreachable::Port, 3, 4),
            (Unreachable::Prohibited, 13, 1),
        ] {
            assert_eq!(icmp_message(false, 3, v4), Some(IcmpMessage::Unreachable(reason)));
            assert_eq!(icmp_message(true, 1, v6), Some(IcmpMessage::Unreachable(reason)));
        }
        assert_eq!(icmp_message(false, 11, 1), None, "the time for reassembly is exceeded");
        assert_eq!(icmp_message(false, 8, 0), None);
    }
}
