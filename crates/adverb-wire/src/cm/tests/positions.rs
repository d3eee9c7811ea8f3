//! Tests of the position of each field in its message.

use std::vec::Vec;

use super::{samples, valid_header};
use crate::cm::*;
use crate::{Psn, Qpn};

#[test]
fn each_field_sets_its_own_bits_and_no_others() {
    for mut position in positions() {
        position.bits.sort_unstable();
        assert_eq!(
            positions_of_set_bits(&Mad { transaction_id: 0, message: position.message }.emit()),
            position.bits,
            "{}",
            position.name
        );
    }
}

#[test]
fn bits_outside_of_all_fields_are_emitted_as_zero() {
    for attribute in 0x10..=0x18 {
        let mut bytes = [0xff; MAD_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&valid_header(attribute));
        let emitted = Mad::parse(&bytes).unwrap().emit();
        let positions_of_message =
            positions().into_iter().filter(|position| position.message.attribute_id() == attribute.into());
        let mut field_bits: Vec<usize> = positions_of_message.flat_map(|position| position.bits).collect();
        let bit_count = field_bits.len();
        field_bits.sort_unstable();
        field_bits.dedup();
        assert_eq!(field_bits.len(), bit_count, "two fields of attribute {attribute:#x} overlap");
        assert_eq!(positions_of_set_bits(&emitted), field_bits, "attribute {attribute:#x}");
    }
}

/// The bytes are worked out by hand, so that this test also checks the byte order.
#[test]
fn the_samples_are_emitted_as_specified() {
    let hex_samples = [
        "01020304 0002c9ab 0000000001061d2f 1112131415161718 00000000 21222324 31323341 51525361 717273a3
         818283ae ffff 3d fa
         1201 3401 11111111111111111111111111111111 21212121212121212121212121212121 abcd1021 31419890
         1202 3402 12121212121212121212121212121212 22222222222222222222222222222222 abcd2021 32429894
         72657175657374",
        "01020304 05060708 40 c0 77616974",
        "01020304 05060708 80 08 000a 00010200 00000000 0000000000000000 0000000000000000 0000000000000000
         0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 6e6f",
        "01020304 05060708 21222324 313233aa 515253bb 818283cc 41 61 7b b0 1112131415161718 796573",
        "01020304 05060708 676f",
        "01020304 05060708 31323300 627965",
        "01020304 05060708 6279652c207468656e",
        "01020304 8001 0000 0000000001111c06 77686572653f",
        "01020304 04 48 aabb 313233cc 1112131415161718 21222324
         050505050505050505050505050505050505050505050505 050505050505050505050505050505050505050505050505
         050505050505050505050505050505050505050505050505 68657265",
    ];
    for (message, hex) in samples().into_iter().zip(hex_samples) {
        let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
        let expected = digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap());
        let expected = expected.chain(core::iter::repeat(0)).take(DATA_LEN);
        let emitted = Mad { transaction_id: 0, message }.emit();
        assert!(emitted[HEADER_LEN..].iter().copied().eq(expected), "{message}");
    }
}

/// A message in which one field is all ones and the others are zero, and the bits that must be set in its data.
struct FieldPosition {
    name: &'static str,
    message: Message,
    bits: Vec<usize>,
}

/// The position of a field of `$width` bits that start at bit `$bit` of byte `$byte`.
macro_rules! field {
    ($message:ident, $($field:ident).+, $ones:expr, $byte:literal, $bit:literal, $width:literal) => {{
        let mut message = $message::read(&layout::Block([0; DATA_LEN]));
        message.$($field).+ = $ones;
        FieldPosition {
            name: concat!(stringify!($message), $(".", stringify!($field)),+),
            message: Message::$message(message),
            bits: ($byte * 8 + $bit..$byte * 8 + $bit + $width).collect(),
        }
    }};
}

/// Returns the positions of all fields, taken from the specification's tables independently of the declarations under
/// test.
#[rustfmt::skip]
fn positions() -> Vec<FieldPosition> {
    let all = u32::MAX;
    let gid = [0xff; 16].into();
    let vendor = Ece { vendor_id: Bits::MAX, options: 0 };
    let info = AdditionalInfo::new(&[0xff; 72]).unwrap();
    let mut positions = Vec::from([
        field!(Req, local_comm_id, all, 0, 0, 32),
        field!(Req, ece, vendor, 5, 0, 24),
        field!(Req, service_id, ServiceId::new(u64::MAX), 8, 0, 64),
        field!(Req, ca_guid, u64::MAX, 16, 0, 64),
        field!(Req, qkey, all, 28, 0, 32),
        field!(Req, qpn, Qpn::truncate(all), 32, 0, 24),
        field!(Req, responder_resources, 255, 35, 0, 8),
        field!(Req, local_eecn, Bits::MAX, 36, 0, 24),
        field!(Req, initiator_depth, 255, 39, 0, 8),
        field!(Req, remote_eecn, Bits::MAX, 40, 0, 24),
        field!(Req, remote_cm_response_timeout, Timeout::MAX, 43, 0, 5),
        field!(Req, transport, TransportService::Extended, 43, 5, 2),
        field!(Req, end_to_end_flow_control, true, 43, 7, 1),
        field!(Req, starting_psn, Psn::MAX, 44, 0, 24),
        field!(Req, local_cm_response_timeout, Timeout::MAX, 47, 0, 5),
        field!(Req, retry_count, Bits::MAX, 47, 5, 3),
        field!(Req, pkey, 0xffff, 48, 0, 16),
        field!(Req, path_mtu, Req::read(&layout::Block([0xff; DATA_LEN])).path_mtu, 50, 0, 4),
        field!(Req, rdc_exists, true, 50, 4, 1),
        field!(Req, rnr_retry_count, Bits::MAX, 50, 5, 3),
        field!(Req, max_cm_retries, Bits::MAX, 51, 0, 4),
        field!(Req, srq, true, 51, 4, 1),
        field!(Req, extended_transport, Bits::MAX, 51, 5, 3),
        field!(Req, primary_path.local_lid, 0xffff, 52, 0, 16),
        field!(Req, primary_path.remote_lid, 0xffff, 54, 0, 16),
        field!(Req, primary_path.local_gid, gid, 56, 0, 128),
        field!(Req, primary_path.remote_gid, gid, 72, 0, 128),
        field!(Req, primary_path.flow_label, Bits::MAX, 88, 0, 20),
        field!(Req, primary_path.packet_rate, Bits::MAX, 91, 2, 6),
        field!(Req, primary_path.traffic_class, 255, 92, 0, 8),
        field!(Req, primary_path.hop_limit, 255, 93, 0, 8),
        field!(Req, primary_path.sl, Bits::MAX, 94, 0, 4),
        field!(Req, primary_path.subnet_local, true, 94, 4, 1),
        field!(Req, primary_path.local_ack_timeout, Timeout::MAX, 95, 0, 5),
        field!(Req, alternate_path.local_lid, 0xffff, 96, 0, 16),
        field!(Req, alternate_path.remote_lid, 0xffff, 98, 0, 16),
        field!(Req, alternate_path.local_gid, gid, 100, 0, 128),
        field!(Req, alternate_path.remote_gid, gid, 116, 0, 128),
        field!(Req, alternate_path.flow_label, Bits::MAX, 132, 0, 20),
        field!(Req, alternate_path.packet_rate, Bits::MAX, 135, 2, 6),
        field!(Req, alternate_path.traffic_class, 255, 136, 0, 8),
        field!(Req, alternate_path.hop_limit, 255, 137, 0, 8),
        field!(Req, alternate_path.sl, Bits::MAX, 138, 0, 4),
        field!(Req, alternate_path.subnet_local, true, 138, 4, 1),
        field!(Req, alternate_path.local_ack_timeout, Timeout::MAX, 139, 0, 5),
        field!(Req, sap_supported, true, 139, 5, 1),
        field!(Req, private_data, [0xff; 92].into(), 140, 0, 736),

        field!(Mra, local_comm_id, all, 0, 0, 32),
        field!(Mra, remote_comm_id, all, 4, 0, 32),
        field!(Mra, acknowledged, MessageKind::Reserved, 8, 0, 2),
        field!(Mra, service_timeout, Timeout::MAX, 9, 0, 5),
        field!(Mra, private_data, [0xff; 222].into(), 10, 0, 1776),

        field!(Rej, local_comm_id, all, 0, 0, 32),
        field!(Rej, remote_comm_id, all, 4, 0, 32),
        field!(Rej, rejected, MessageKind::Reserved, 8, 0, 2),
        field!(Rej, reason, RejectReason::from_code(0xffff), 10, 0, 16),
        field!(Rej, private_data, [0xff; 148].into(), 84, 0, 1184),

        field!(Rep, local_comm_id, all, 0, 0, 32),
        field!(Rep, remote_comm_id, all, 4, 0, 32),
        field!(Rep, qkey, all, 8, 0, 32),
        field!(Rep, qpn, Qpn::truncate(all), 12, 0, 24),
        field!(Rep, eecn, Bits::MAX, 16, 0, 24),
        field!(Rep, starting_psn, Psn::MAX, 20, 0, 24),
        field!(Rep, responder_resources, 255, 24, 0, 8),
        field!(Rep, initiator_depth, 255, 25, 0, 8),
        field!(Rep, target_ack_delay, Timeout::MAX, 26, 0, 5),
        field!(Rep, failover, Failover::Reserved, 26, 5, 2),
        field!(Rep, end_to_end_flow_control, true, 26, 7, 1),
        field!(Rep, rnr_retry_count, Bits::MAX, 27, 0, 3),
        field!(Rep, srq, true, 27, 3, 1),
        field!(Rep, ca_guid, u64::MAX, 28, 0, 64),
        field!(Rep, private_data, [0xff; 196].into(), 36, 0, 1568),

        field!(Rtu, local_comm_id, all, 0, 0, 32),
        field!(Rtu, remote_comm_id, all, 4, 0, 32),
        field!(Rtu, private_data, [0xff; 224].into(), 8, 0, 1792),

        field!(Dreq, local_comm_id, all, 0, 0, 32),
        field!(Dreq, remote_comm_id, all, 4, 0, 32),
        field!(Dreq, remote_qpn, Qpn::truncate(all), 8, 0, 24),
        field!(Dreq, private_data, [0xff; 220].into(), 12, 0, 1760),

        field!(Drep, local_comm_id, all, 0, 0, 32),
        field!(Drep, remote_comm_id, all, 4, 0, 32),
        field!(Drep, private_data, [0xff; 224].into(), 8, 0, 1792),

        field!(SidrReq, request_id, all, 0, 0, 32),
        field!(SidrReq, pkey, 0xffff, 4, 0, 16),
        field!(SidrReq, service_id, ServiceId::new(u64::MAX), 8, 0, 64),
        field!(SidrReq, private_data, [0xff; 216].into(), 16, 0, 1728),

        field!(SidrRep, request_id, all, 0, 0, 32),
        field!(SidrRep, status, SidrStatus::from_code(255), 4, 0, 8),
        field!(SidrRep, qpn, Qpn::truncate(all), 8, 0, 24),
        field!(SidrRep, service_id, ServiceId::new(u64::MAX), 12, 0, 64),
        field!(SidrRep, qkey, all, 20, 0, 32),
        field!(SidrRep, private_data, [0xff; 136].into(), 96, 0, 1088),
    ]);
    // The three bytes of the vendor ID are not adjacent in these two messages.
    positions.push(FieldPosition { bits: bits_of([15, 19, 23]), ..field!(Rep, ece, vendor, 0, 0, 0) });
    positions.push(FieldPosition { bits: bits_of([6, 7, 11]), ..field!(SidrRep, ece, vendor, 0, 0, 0) });
    // Additional information is preceded by its length, 72. In a REJ, the length is shifted up by one bit.
    let bits = bits_of(12..84).into_iter().chain([9 * 8, 9 * 8 + 3]).collect();
    positions.push(FieldPosition { bits, ..field!(Rej, additional_info, info, 0, 0, 0) });
    let bits = bits_of(24..96).into_iter().chain([5 * 8 + 1, 5 * 8 + 4]).collect();
    positions.push(FieldPosition { bits, ..field!(SidrRep, additional_info, info, 0, 0, 0) });
    positions
}

/// Returns the positions of all bits of these bytes.
fn bits_of(bytes: impl IntoIterator<Item = usize>) -> Vec<usize> {
    bytes.into_iter().flat_map(|byte| byte * 8..byte * 8 + 8).collect()
}

/// Returns the positions of the bits that are set in the data.
fn positions_of_set_bits(mad: &[u8; MAD_LEN]) -> Vec<usize> {
    (0..DATA_LEN * 8).filter(|bit| mad[HEADER_LEN + bit / 8] & (0x80 >> (bit % 8)) != 0).collect()
}
