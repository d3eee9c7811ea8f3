//! Properties of all packets, checked on 10,000 random cases each.
//!
//! These tests are slow without optimization: run them with `cargo xtask exhaustive`.

use std::net::SocketAddr;

use adverb_wire::{
    Aeth, CompareSwap, FetchAdd, Flow, Flush, Frame, GRH_LEN, Header, IpHeader, Ipv4Header, Ipv6Header,
    MAX_HEADER_LEN, MAX_OUTER_HEADER_LEN, Operation, Packet, PayloadRule, Psn, Qpn, Rc, ReadResponse, Reth,
    Send, Syndrome, Uc, Ud, Write,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_parsed_frame_equals_the_emitted_frame(
        (header, payload) in header_and_payload(),
        ip in ip_header(),
        source_port: u16,
    ) {
        let bytes = emit_frame(&ip, source_port, &header, &[&payload]);
        let frame = Frame::parse(&bytes).expect("an emitted frame");
        prop_assert_eq!(frame.verify(), Ok(()));
        prop_assert_eq!(frame.ip(), &ip);
        prop_assert_eq!(frame.source(), SocketAddr::new(ip.source(), source_port));
        prop_assert_eq!(frame.packet().header(), &header);
        prop_assert_eq!(frame.packet().payload(), &payload);
        prop_assert!(frame.to_string().starts_with(&ip.source().to_string()));
    }

    #[test]
    fn the_icrc_does_not_depend_on_how_the_payload_is_split(
        (header, payload) in header_and_payload(),
        ip in ip_header(),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(payload.len() + 1)).collect();
        cuts.sort_unstable();
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([payload.len()]);
        let pieces: Vec<&[u8]> = starts.zip(ends).map(|(start, end)| &payload[start..end]).collect();
        prop_assert_eq!(emit_frame(&ip, 4791, &header, &pieces), emit_frame(&ip, 4791, &header, &[&payload]));
    }

    #[test]
    fn verify_detects_a_changed_byte(
        (header, payload) in header_and_payload(),
        ip in ip_header(),
        at: Index,
        change in 1u8..,
    ) {
        let mut bytes = emit_frame(&ip, 4791, &header, &[&payload]);
        let packet_at = bytes.len() - Frame::parse(&bytes).expect("a frame").packet().as_bytes().len();
        // The ICRC detects a change of any byte of the packet except byte 4 of the base transport header.
        let at = packet_at + at.index(bytes.len() - packet_at);
        prop_assume!(at != packet_at + 4);
        bytes[at] ^= change;
        prop_assert!(!Frame::parse(&bytes).is_ok_and(|frame| frame.verify().is_ok()));
    }

    #[test]
    fn recover_ip_id_agrees_with_verify(
        (header, payload) in header_and_payload(),
        ip_id: u16,
    ) {
        let flow = Flow::v4("192.0.2.1:50000".parse().unwrap(), "192.0.2.2:4791".parse().unwrap());
        let mut head = [0; MAX_HEADER_LEN];
        let emitted = flow.emit(&header, ip_id, &[&payload], &mut head).expect("it fits");
        let bytes = [&head[..emitted.header_len], &payload, &emitted.trailer].concat();
        let packet = Packet::parse(&bytes).expect("a packet");
        prop_assert_eq!(flow.recover_ip_id(&packet), Ok(ip_id));
        prop_assert_eq!(flow.verify(&packet, ip_id), Ok(()));
        prop_assert!(flow.verify(&packet, ip_id ^ 1).is_err());
    }

    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in vec(any::<u8>(), 0..400)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert_eq!(packet.as_bytes().len(), bytes.len());
        }
        if let Ok(frame) = Frame::parse(&bytes) {
            let _ = (frame.verify(), frame.to_string());
        }
        let _ = adverb_wire::cm::Mad::parse(&bytes);
    }

    #[test]
    fn a_parsed_grh_equals_the_written_grh(ip in ip_header(), udp_len in 8u16..5000, undefined_bytes: [u8; 20]) {
        let mut grh = ip.to_grh(udp_len);
        prop_assert_eq!(IpHeader::from_grh(&grh), Some(ip));
        // With IPv4, the first 20 bytes are undefined, and may resemble an IPv6 header.
        if let IpHeader::V4(_) = ip {
            grh[..20].copy_from_slice(&undefined_bytes);
            prop_assert_eq!(IpHeader::from_grh(&grh), Some(ip));
            grh[0] = 0x60;
            prop_assert_eq!(IpHeader::from_grh(&grh), Some(ip));
        }
        prop_assert_eq!(grh.len(), GRH_LEN);
    }

    #[test]
    fn psn_arithmetic_is_modulo_2_to_the_24(a: u32, count in 0u32..1 << 23) {
        let psn = Psn::wrapping(a);
        prop_assert_eq!((psn + count).get(), (a.wrapping_add(count)) & 0xff_ffff);
        prop_assert_eq!(psn + count - count, psn);
        prop_assert_eq!((psn + count).since(psn), i32::try_from(count).unwrap());
        prop_assert_eq!((psn + count).is_after(psn), count > 0);
        prop_assert_eq!(psn.is_before(psn + count), count > 0);
        prop_assert_eq!((psn + count).is_within(psn, count), false);
        prop_assert!((psn + count).is_within(psn, count + 1));
    }
}

/// Returns the whole datagram, starting with the IP header.
fn emit_frame(ip: &IpHeader, source_port: u16, header: &Header, pieces: &[&[u8]]) -> Vec<u8> {
    let source = SocketAddr::new(ip.source(), source_port);
    let flow = Flow::new(source, SocketAddr::new(ip.destination(), 4791)).expect("one family");
    let ip_id = match ip {
        IpHeader::V4(ip) => ip.ip_id,
        IpHeader::V6(_) => 0,
    };
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(header, ip_id, pieces, &mut head).expect("it fits");
    let packet = [&head[..emitted.header_len], &pieces.concat(), &emitted.trailer].concat();
    let mut outer = [0; MAX_OUTER_HEADER_LEN];
    let outer_len = Frame::emit_outer(ip, source_port, packet.len(), &mut outer);
    [&outer[..outer_len], &packet].concat()
}

fn header_and_payload() -> impl Strategy<Value = (Header, Vec<u8>)> {
    header().prop_flat_map(|header| {
        let lengths = match header.opcode().payload_rule() {
            PayloadRule::Empty => 0..1,
            PayloadRule::EightBytes => 8..9,
            PayloadRule::Any => 0..1200,
        };
        (Just(header), vec(any::<u8>(), lengths))
    })
}

fn header() -> impl Strategy<Value = Header> {
    let flags = any::<[bool; 5]>();
    (any::<u32>(), any::<u32>(), any::<u16>(), flags, operation()).prop_map(
        |(qpn, psn, pkey, [solicited, migrated, fecn, becn, ack_request], operation)| Header {
            dest_qp: Qpn::truncate(qpn),
            psn: Psn::wrapping(psn),
            solicited,
            migrated,
            pkey,
            fecn,
            becn,
            ack_request,
            operation,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let invalidate = any::<u32>();
    let rc =
        prop_oneof![
            send().prop_map(Rc::Send),
            invalidate.prop_map(Rc::SendLastInvalidate),
            invalidate.prop_map(Rc::SendOnlyInvalidate),
            write().prop_map(Rc::Write),
            reth().prop_map(Rc::ReadRequest),
            prop_oneof![
                aeth().prop_map(ReadResponse::First),
                Just(ReadResponse::Middle),
                aeth().prop_map(ReadResponse::Last),
                aeth().prop_map(ReadResponse::Only),
            ]
            .prop_map(Rc::ReadResponse),
            aeth().prop_map(Rc::Acknowledge),
            (aeth(), any::<u64>()).prop_map(|(aeth, original)| Rc::AtomicAcknowledge(aeth, original)),
            any::<(u64, u32, u64, u64)>().prop_map(|(va, rkey, swap, compare)| Rc::CompareSwap(
                CompareSwap { va, rkey, swap, compare }
            )),
            any::<(u64, u32, u64)>().prop_map(|(va, rkey, add)| Rc::FetchAdd(FetchAdd { va, rkey, add })),
            (any::<[bool; 3]>(), reth()).prop_map(|([global, persistent, whole_region], range)| Rc::Flush(
                Flush { global, persistent, whole_region, range }
            )),
            reth().prop_map(Rc::AtomicWrite),
        ];
    prop_oneof![
        12 => rc.prop_map(Operation::Rc),
        2 => send().prop_map(|send| Operation::Uc(Uc::Send(send))),
        2 => write().prop_map(|write| Operation::Uc(Uc::Write(write))),
        1 => any::<(u32, u32, Option<u32>)>().prop_map(|(qkey, source_qp, immediate)| {
            Operation::Ud(Ud { qkey, source_qp: Qpn::truncate(source_qp), immediate })
        }),
        1 => Just(Operation::Cnp),
    ]
}

fn send() -> impl Strategy<Value = Send> {
    prop_oneof![
        Just(Send::First),
        Just(Send::Middle),
        any::<Option<u32>>().prop_map(Send::Last),
        any::<Option<u32>>().prop_map(Send::Only),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        reth().prop_map(Write::First),
        Just(Write::Middle),
        any::<Option<u32>>().prop_map(Write::Last),
        (reth(), any::<Option<u32>>()).prop_map(|(reth, immediate)| Write::Only(reth, immediate)),
    ]
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(va, rkey, length)| Reth { va, rkey, length })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    (any::<u8>(), 0u32..1 << 24).prop_map(|(byte, msn)| Aeth { syndrome: Syndrome::from_byte(byte), msn })
}

fn ip_header() -> impl Strategy<Value = IpHeader> {
    let v4 = (any::<([u8; 4], [u8; 4])>(), any::<(u8, u16, u8)>()).prop_map(
        |((source, destination), (tos, ip_id, ttl))| {
            IpHeader::V4(Ipv4Header {
                tos,
                ip_id,
                flags_and_offset: 0x4000,
                ttl,
                source: source.into(),
                destination: destination.into(),
            })
        },
    );
    let v6 = (any::<([u8; 16], [u8; 16])>(), any::<(u8, u8)>(), 0u32..1 << 20).prop_map(
        |((source, destination), (traffic_class, hop_limit), flow_label)| {
            IpHeader::V6(Ipv6Header {
                traffic_class,
                flow_label,
                hop_limit,
                source: source.into(),
                destination: destination.into(),
            })
        },
    );
    prop_oneof![v4, v6]
}
