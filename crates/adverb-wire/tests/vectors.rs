//! Packets with known bytes from other sources.

use adverb_wire::{
    Flow, Frame, Header, IpHeader, Ipv4Header, MAX_HEADER_LEN, MAX_OUTER_HEADER_LEN, Operation, Psn, Qpn,
    Send, Uc,
};

/// A CNP captured from a ConnectX-4 Lx, as published in the tests of scapy's RoCE layer (without its Ethernet
/// header). Its source port is 0.
const CNP: &str = "45c2003c718c40004011 9161 0a001101 0a001201 0000 12b7 0028 0000 \
                   8100ffff 40000118 00000000 00000000000000000000000000000000 82fd002a";

/// A UC SEND, also from scapy's tests, with IP ID 1144, the ECN bits 01, and two bytes of padding.
const UC_SEND: &str = "45010040 0478 4000 4011 b4d5 c0a80007 c0a80007 c000 12b7 002c aca2 \
                       2460ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3";

#[test]
fn the_icrc_of_a_cnp_from_connectx_verifies() {
    let bytes = hex(CNP);
    let frame = Frame::parse(&bytes).expect("a frame");
    frame.verify().expect("a correct ICRC");
    assert_eq!(frame.packet().icrc().to_le_bytes(), [0x82, 0xfd, 0x00, 0x2a]);
    assert_eq!(frame.packet().operation(), &Operation::Cnp);
    assert_eq!(emit(&frame), bytes);
}

#[test]
fn the_icrc_of_a_uc_send_verifies() {
    let bytes = hex(UC_SEND);
    let frame = Frame::parse(&bytes).expect("a frame");
    frame.verify().expect("a correct ICRC");
    let packet = frame.packet();
    assert_eq!(packet.icrc().to_le_bytes(), [0x78, 0xf3, 0x53, 0xf3]);
    assert_eq!(packet.payload().len(), 18);
    let expected =
        Header::new(Qpn::truncate(211), Psn::wrapping(13_571_856), Operation::Uc(Uc::Send(Send::Only(None))));
    assert_eq!(packet.header(), &expected);
    let mut sent = emit(&frame);
    sent[26..28].copy_from_slice(&bytes[26..28]); // the UDP checksum, which Adverb sends as 0 and the ICRC doesn't cover
    assert_eq!(sent, bytes);
}

#[test]
fn the_ip_id_of_the_vectors_is_recovered() {
    for (bytes, ip_id) in [(CNP, 0x718c), (UC_SEND, 1144)] {
        let bytes = hex(bytes);
        let frame = Frame::parse(&bytes).expect("a frame");
        let flow = Flow::new(frame.source(), frame.destination()).expect("one family");
        assert_eq!(flow.recover_ip_id(frame.packet()), Ok(ip_id));
    }
}

#[test]
fn an_icrc_over_other_addresses_is_rejected() {
    for bytes in [CNP, UC_SEND] {
        let bytes = hex(bytes);
        let frame = Frame::parse(&bytes).expect("a frame");
        let other_source = "10.9.8.7:49152".parse().expect("an address");
        let flow = Flow::new(other_source, frame.destination()).expect("one family");
        assert!(flow.verify(frame.packet(), 0).is_err());
        assert!(flow.recover_ip_id(frame.packet()).is_err());
    }
}

#[test]
fn the_icrc_covers_all_fields_but_those_that_routers_change() {
    let original = hex(UC_SEND);
    // TOS, TTL, the IPv4 checksum (corrected after each change), the UDP checksum, and the byte of FECN and BECN.
    let may_change = [1, 8, 10, 11, 26, 27, 32];
    for at in 0..original.len() {
        for bit in 0..8 {
            let mut bytes = original.clone();
            bytes[at] ^= 1 << bit;
            fix_ipv4_checksum(&mut bytes);
            let accepted = Frame::parse(&bytes).is_ok_and(|frame| frame.verify().is_ok());
            assert_eq!(accepted, may_change.contains(&at), "byte {at} bit {bit}");
        }
    }
}

/// Emits a parsed frame again.
fn emit(frame: &Frame<'_>) -> Vec<u8> {
    let IpHeader::V4(Ipv4Header { ip_id, .. }) = *frame.ip() else { panic!("IPv4") };
    let packet = frame.packet();
    let flow = Flow::new(frame.source(), frame.destination()).expect("one family");
    let mut head = [0; MAX_HEADER_LEN];
    let payload = [packet.payload()];
    // The migration bit of the CNP vector is 0, and parsing preserves it.
    let emitted = flow.emit(packet.header(), ip_id, &payload, &mut head).expect("it fits");
    let mut outer = [0; MAX_OUTER_HEADER_LEN];
    let outer_len = Frame::emit_outer(frame.ip(), frame.source().port(), packet.as_bytes().len(), &mut outer);
    [&outer[..outer_len], &head[..emitted.header_len], payload[0], &emitted.trailer].concat()
}

fn fix_ipv4_checksum(bytes: &mut [u8]) {
    bytes[10..12].fill(0);
    let sum: u32 = bytes[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
    bytes[10..12].copy_from_slice(&(!sum).to_be_bytes());
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|c| !c.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}
