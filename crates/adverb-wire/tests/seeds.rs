//! Packets that triggered former bugs of kernel soft-RoCE. They are also seeds of the fuzzer.
//!
//! Two former bugs of kernel soft-RoCE involve no packet, so the tests of adverb-proto cover them: indexing
//! the segments of a work request before counting them, and a timer that outlives its queue pair.

use adverb_wire::{Opcode, Operation, Packet, ParseError, Rc, Write};

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../fuzz/seeds/packet/", $name))
    };
}

#[test]
fn a_forged_pad_count_cannot_make_the_payload_length_negative() {
    let error = Packet::parse(seed!("forged-pad-makes-payload-negative")).unwrap_err();
    assert_eq!(error, ParseError::Truncated { needed_len: 19, found_len: 16 });
}

#[test]
fn a_packet_shorter_than_its_headers_is_rejected() {
    let error = Packet::parse(seed!("shorter-than-its-headers")).unwrap_err();
    assert_eq!(error, ParseError::Truncated { needed_len: 28, found_len: 24 });
}

#[test]
fn an_unknown_opcode_to_the_multicast_queue_pair_is_rejected() {
    let error = Packet::parse(seed!("opcode-ff-to-the-multicast-qp")).unwrap_err();
    assert_eq!(error, ParseError::UnknownOpcode(0xff));
}

#[test]
fn an_atomic_write_of_other_than_eight_bytes_is_rejected() {
    let error = |payload_len| ParseError::InvalidPayloadLength { opcode: Opcode::RcAtomicWrite, payload_len };
    assert_eq!(Packet::parse(seed!("atomic-write-of-four-bytes")).unwrap_err(), error(4));
    assert_eq!(Packet::parse(seed!("atomic-write-of-sixteen-bytes")).unwrap_err(), error(16));
}

#[test]
fn an_address_range_that_wraps_has_no_end() {
    let packet = Packet::parse(seed!("address-range-that-wraps")).expect("a well-formed packet");
    let Operation::Rc(Rc::Write(Write::Only(reth, None))) = packet.operation() else {
        panic!("expected a WRITE only, got {packet}")
    };
    assert_eq!(reth.end(), None);
}
