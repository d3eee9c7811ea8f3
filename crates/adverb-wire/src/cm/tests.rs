//! Tests of all messages: no field is lost, and no input makes the parser panic.

#![allow(clippy::indexing_slicing, reason = "a test may panic")]

mod positions;

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use super::*;
use crate::random::SplitMix64;
use crate::{Psn, Qpn};

fn bits<const N: usize>(value: u32) -> Bits<N> {
    Bits::new(value).unwrap()
}

fn qpn(value: u32) -> Qpn {
    Qpn::new(value).unwrap()
}

fn psn(value: u32) -> Psn {
    Psn::new(value).unwrap()
}

fn timeout(code: u8) -> Timeout {
    Timeout::new(code).unwrap()
}

fn path(seed: u8) -> Path {
    Path {
        local_lid: 0x1200 | u16::from(seed),
        remote_lid: 0x3400 | u16::from(seed),
        local_gid: [0x10 | seed; 16].into(),
        remote_gid: [0x20 | seed; 16].into(),
        flow_label: bits(0xabcd0 | u32::from(seed)),
        packet_rate: bits(0x21),
        traffic_class: 0x30 | seed,
        hop_limit: 0x40 | seed,
        sl: bits(9),
        subnet_local: true,
        local_ack_timeout: timeout(18),
    }
}

fn req() -> Req {
    Req {
        local_comm_id: 0x0102_0304,
        ece: Ece { vendor_id: bits(0x0002_c9ab), options: 0x0506_0708 },
        service_id: ServiceId::tcp_port(7471),
        ca_guid: 0x1112_1314_1516_1718,
        qkey: 0x2122_2324,
        qpn: qpn(0x31_3233),
        responder_resources: 0x41,
        local_eecn: bits(0x51_5253),
        initiator_depth: 0x61,
        remote_eecn: bits(0x71_7273),
        remote_cm_response_timeout: timeout(20),
        transport: TransportService::UnreliableConnection,
        end_to_end_flow_control: true,
        starting_psn: psn(0x81_8283),
        local_cm_response_timeout: timeout(21),
        retry_count: bits(6),
        pkey: 0xffff,
        path_mtu: Ok(PathMtu::Mtu1024),
        rdc_exists: true,
        rnr_retry_count: bits(5),
        max_cm_retries: bits(15),
        srq: true,
        extended_transport: bits(2),
        primary_path: path(1),
        alternate_path: path(2),
        sap_supported: true,
        private_data: PrivateData::new(b"request").unwrap(),
    }
}

/// Returns one message of each kind, with different values in all fields.
fn samples() -> [Message; 9] {
    let (local_comm_id, remote_comm_id) = (0x0102_0304, 0x0506_0708);
    [
        Message::Req(req()),
        Message::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            acknowledged: MessageKind::Rep,
            service_timeout: timeout(24),
            private_data: PrivateData::new(b"wait").unwrap(),
        }),
        Message::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            rejected: MessageKind::Other,
            reason: RejectReason::StaleConnection,
            additional_info: AdditionalInfo::new(&[0, 1, 2, 0]).unwrap(),
            private_data: PrivateData::new(b"no").unwrap(),
        }),
        Message::Rep(Rep {
            local_comm_id,
            remote_comm_id,
            qkey: 0x2122_2324,
            qpn: qpn(0x31_3233),
            ece: Ece { vendor_id: bits(0xaa_bbcc), options: 0x0506_0708 },
            eecn: bits(0x51_5253),
            starting_psn: psn(0x81_8283),
            responder_resources: 0x41,
            initiator_depth: 0x61,
            target_ack_delay: timeout(15),
            failover: Failover::NotSupported,
            end_to_end_flow_control: true,
            rnr_retry_count: bits(5),
            srq: true,
            ca_guid: 0x1112_1314_1516_1718,
            private_data: PrivateData::new(b"yes").unwrap(),
        }),
        Message::Rtu(Rtu { local_comm_id, remote_comm_id, private_data: PrivateData::new(b"go").unwrap() }),
        Message::Dreq(Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: qpn(0x31_3233),
            private_data: PrivateData::new(b"bye").unwrap(),
        }),
        Message::Drep(Drep {
            local_comm_id,
            remote_comm_id,
            private_data: PrivateData::new(b"bye, then").unwrap(),
        }),
        Message::SidrReq(SidrReq {
            request_id: 0x0102_0304,
            pkey: 0x8001,
            service_id: ServiceId::udp_port(7174),
            private_data: PrivateData::new(b"where?").unwrap(),
        }),
        Message::SidrRep(SidrRep {
            request_id: 0x0102_0304,
            status: SidrStatus::Redirected,
            additional_info: AdditionalInfo::new(&[5; 72]).unwrap(),
            ece: Ece { vendor_id: bits(0xaa_bbcc), options: 0x0506_0708 },
            qpn: qpn(0x31_3233),
            service_id: ServiceId::new(0x1112_1314_1516_1718),
            qkey: 0x2122_2324,
            private_data: PrivateData::new(b"here").unwrap(),
        }),
    ]
}

fn mad(message: Message) -> Mad {
    Mad { transaction_id: 0xf1f2_f3f4_f5f6_f7f8, message }
}

#[test]
fn every_message_round_trips() {
    for message in samples() {
        let mad = mad(message);
        assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
    }
}

#[test]
fn every_value_of_the_small_fields_of_a_req_round_trips() {
    let assert_round_trips = |req: Req| {
        let mad = mad(Message::Req(req));
        assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
    };
    for value in 0..=255u8 {
        let wide = u32::from(value);
        let block = layout::Block([value; DATA_LEN]);
        assert_round_trips(Req::read(&block));
        assert_round_trips(Req {
            retry_count: Bits::truncate(wide),
            rnr_retry_count: Bits::truncate(!wide),
            ..req()
        });
        assert_round_trips(Req {
            max_cm_retries: Bits::truncate(wide),
            extended_transport: Bits::truncate(wide),
            ..req()
        });
        let local_ack_timeout = timeout(value % 32);
        assert_round_trips(Req { alternate_path: Path { local_ack_timeout, ..Path::NONE }, ..req() });
        assert_round_trips(Req { sap_supported: value % 2 == 0, alternate_path: Path::NONE, ..req() });
    }
    for mtu in PathMtu::ALL {
        assert_round_trips(Req { path_mtu: Ok(mtu), ..req() });
    }
}

#[test]
fn the_mad_header_has_the_values_of_the_cm() {
    for (message, attribute) in samples().into_iter().zip(0x10..) {
        let bytes = mad(message).emit();
        let modifier = if message.ece().is_some() { [5, 6, 7, 8] } else { [0; 4] };
        assert_eq!(bytes[..4], [1, 7, 2, 3]);
        assert_eq!(bytes[4..8], [0; 4], "the status and the class-specific field");
        assert_eq!(bytes[8..16], [0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8]);
        assert_eq!(bytes[16..20], [0, attribute, 0, 0]);
        assert_eq!(bytes[20..24], modifier);
        assert_eq!(message.attribute_id(), attribute.into());
    }
}

fn valid_header(attribute: u8) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&[1, 7, 2, 3]);
    header[17] = attribute;
    header
}

#[test]
fn a_mad_of_another_length_is_rejected() {
    let bytes = mad(samples()[0]).emit();
    for length in 0..MAD_LEN {
        assert_eq!(Mad::parse(&bytes[..length]), Err(MadError::Length(length)));
    }
    let mut longer = Vec::from(bytes);
    longer.push(0);
    assert_eq!(Mad::parse(&longer), Err(MadError::Length(257)));
}

#[test]
fn another_class_version_method_or_attribute_is_rejected() {
    let good = mad(samples()[4]).emit();
    let parse_with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Mad::parse(&bytes)
    };
    for value in 0..=255 {
        let expect = |good: u8, error: MadError| if value == good { Ok(()) } else { Err(error) };
        assert_eq!(parse_with(0, value).map(drop), expect(1, MadError::BaseVersion(value)));
        assert_eq!(parse_with(1, value).map(drop), expect(7, MadError::Class(value)));
        assert_eq!(parse_with(2, value).map(drop), expect(2, MadError::ClassVersion(value)));
        assert_eq!(parse_with(3, value).map(drop), expect(3, MadError::Method(value)));
        let known = (0x10..=0x18).contains(&value);
        let attribute = MadError::Attribute(value.into());
        assert_eq!(parse_with(17, value).map(drop), if known { Ok(()) } else { Err(attribute) });
    }
    assert_eq!(parse_with(16, 1).map(drop), Err(MadError::Attribute(0x0114)));
    assert_eq!(MadError::Attribute(0x19).to_string(), "LAP (load alternate path) is not supported");
    assert_eq!(MadError::Method(0x81).to_string(), "MAD method 0x81 is not Send (0x03), the only CM method");
}

#[test]
fn random_bytes_cause_no_panic_and_parsed_messages_round_trip() {
    let mut random = SplitMix64(1);
    for round in 0..20_000u32 {
        let mut bytes = [0; MAD_LEN];
        random.fill(&mut bytes);
        let _ = Mad::parse(&bytes);
        let attribute = 0x10 + u8::try_from(round % 9).unwrap();
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        let parsed = Mad::parse(&bytes).unwrap();
        assert_eq!(Mad::parse(&parsed.emit()), Ok(parsed));
        if round % 64 == 0 {
            let _: String = format!("{} {parsed:?}", parsed.message);
        }
    }
}

#[test]
fn messages_are_printed_on_one_line() {
    let v4 = |last| core::net::Ipv4Addr::new(10, 0, 0, last);
    let header = CmaHeader { source_port: 40_000, addresses: (v4(1), v4(2)).into() };
    let primary_path = Path {
        local_gid: v4(1).to_ipv6_mapped(),
        remote_gid: v4(2).to_ipv6_mapped(),
        local_ack_timeout: timeout(14),
        ..Path::NONE
    };
    let req = Req {
        local_comm_id: 0x1234,
        ece: Ece::NONE,
        qpn: qpn(0x12),
        starting_psn: psn(77),
        transport: TransportService::ReliableConnection,
        responder_resources: 16,
        initiator_depth: 8,
        primary_path,
        alternate_path: Path::NONE,
        private_data: header.prepend_to(b"hello").unwrap(),
        ..req()
    };
    assert_eq!(
        req.to_string(),
        "CM REQ local 0x1234 service tcp/7471 RC qp 0x000012 psn 77 mtu 1024 resources 16 depth 8 retry 6 \
         rnr 5 pkey 0xffff path 10.0.0.1 > 10.0.0.2 timeout 67.108864ms ip 10.0.0.1:40000 > 10.0.0.2"
    );
    assert_eq!(req.cma_header().unwrap().0, header);
    let rest = [
        "CM MRA local 0x1020304 remote 0x5060708 of REP wait 68.719476736s",
        "CM REJ local 0x1020304 remote 0x5060708 of other reason: stale connection (10)",
        "CM REP local 0x1020304 remote 0x5060708 qp 0x313233 psn 8487555 resources 65 depth 97 rnr 5 \
         ece 0xaabbcc/0x5060708",
        "CM RTU local 0x1020304 remote 0x5060708",
        "CM DREQ local 0x1020304 remote 0x5060708 qp 0x313233",
        "CM DREP local 0x1020304 remote 0x5060708",
        "CM SIDR_REQ id 0x1020304 service udp/7174 pkey 0x8001",
        "CM SIDR_REP id 0x1020304 service 0x1112131415161718 status: redirected (4) ece 0xaabbcc/0x5060708",
    ];
    for (message, line) in samples().iter().skip(1).zip(rest) {
        assert_eq!(message.to_string(), line);
    }
}
