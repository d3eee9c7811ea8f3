//! The values of the vectors in `vectors.txt`, under the same names.

use std::net::{Ipv4Addr, Ipv6Addr};

use adverb_wire::cm::{
    AdditionalInfo, Bits, CmaHeader, Drep, Dreq, Ece, Failover, Mad, Message, MessageKind, Mra, Path,
    PathMtu, PrivateData, Rej, RejectReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, Timeout,
    TransportService,
};
use adverb_wire::{Flush, Header, Operation, Psn, Qpn, Rc, Reth};
use anyhow::{Context, Result};

use super::cm_fields::IpInside;
use super::messages;
use super::values::Values;

/// Returns the packets' names, headers and payloads.
pub(super) fn packets() -> Vec<(&'static str, Header, Vec<u8>)> {
    let plain = |operation| Header {
        dest_qp: Qpn::truncate(0x01_0203),
        psn: Psn::wrapping(0x04_0506),
        solicited: false,
        migrated: true,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        ack_request: true,
        operation,
    };
    let ones = |operation| Header {
        dest_qp: Qpn::truncate(0xff_ffff),
        psn: Psn::wrapping(0xff_ffff),
        solicited: true,
        migrated: true,
        pkey: 0xffff,
        fecn: true,
        becn: true,
        ack_request: true,
        operation,
    };
    let flush = |global, persistent, whole_region, range| {
        Operation::Rc(Rc::Flush(Flush { global, persistent, whole_region, range }))
    };
    let reth = |length| Reth { va: 0x1112_1314_1516_1718, rkey: 0x2122_2324, length };
    let range_of_ones = |length| Reth { va: u64::MAX, rkey: u32::MAX, length };
    let region = Reth { va: 0x8000_0000_0000_0001, rkey: 0x100, length: 0 };
    let persistent_region = Header {
        dest_qp: Qpn::truncate(0xa1_a2a3),
        psn: Psn::wrapping(0xb1_b2b3),
        solicited: true,
        migrated: false,
        pkey: 0x7fff,
        fecn: true,
        becn: false,
        ack_request: false,
        operation: flush(false, true, true, region),
    };
    let cnp = Header::cnp(Qpn::truncate(0x01_0203));
    let cnp_of_a_connectx = Header { dest_qp: Qpn::truncate(0x118), migrated: false, ..cnp };
    vec![
        ("flush-global", plain(flush(true, false, false, reth(0x3132_3334))), Vec::new()),
        ("flush-persistent-region", persistent_region, Vec::new()),
        ("flush-ones", ones(flush(true, true, true, range_of_ones(u32::MAX))), Vec::new()),
        ("atomic-write", plain(Operation::Rc(Rc::AtomicWrite(reth(8)))), b"ABCDEFGH".to_vec()),
        ("atomic-write-ones", ones(Operation::Rc(Rc::AtomicWrite(range_of_ones(8)))), vec![0xff; 8]),
        ("cnp", cnp, Vec::new()),
        ("cnp-of-a-connectx", cnp_of_a_connectx, Vec::new()),
    ]
}

/// Returns the connection manager's messages, with the IP information of rdma_cm's.
pub(super) fn messages() -> Result<Vec<(&'static str, Mad, Option<IpInside>)>> {
    let (req_ip4, ip4) = req_ip4()?;
    let req_ip4 = Mad { transaction_id: 0x1_0000_0002, message: Message::Req(req_ip4) };
    let others = messages_without_ip()?.into_iter().map(|(name, mad)| (name, mad, None));
    Ok(others.chain([("req-ip4", req_ip4, Some(ip4))]).collect())
}

/// Returns the messages without an IP header in tshark's dissection. A SIDR_REQ can have one, but tshark doesn't
/// dissect it.
fn messages_without_ip() -> Result<Vec<(&'static str, Mad)>> {
    let mad = |transaction_id, message| Mad { transaction_id, message };
    let distinct = |message| mad(0xf1f2_f3f4_f5f6_f7f8, message);
    let (local_comm_id, remote_comm_id) = (0x0102_0304, 0x0506_0708);
    let ones = &mut Values::Ones;
    Ok(vec![
        ("req-distinct", distinct(Message::Req(req_distinct()?))),
        ("req-ones", mad(u64::MAX, Message::Req(messages::req(ones)?))),
        (
            "mra-distinct",
            distinct(Message::Mra(Mra {
                local_comm_id,
                remote_comm_id,
                acknowledged: MessageKind::Rep,
                service_timeout: timeout(0b11000)?,
                private_data: counting(),
            })),
        ),
        (
            "mra-of-a-req",
            mad(
                1,
                Message::Mra(Mra {
                    local_comm_id: 0xfedc_ba98,
                    remote_comm_id: 0x7654_3210,
                    acknowledged: MessageKind::Req,
                    service_timeout: timeout(1)?,
                    private_data: PrivateData::EMPTY,
                }),
            ),
        ),
        ("mra-ones", mad(u64::MAX, Message::Mra(messages::mra(ones)))),
        (
            "rej-distinct",
            distinct(Message::Rej(Rej {
                local_comm_id,
                remote_comm_id,
                rejected: MessageKind::Other,
                reason: RejectReason::StaleConnection,
                additional_info: AdditionalInfo::new(b"abcd")?,
                private_data: counting(),
            })),
        ),
        ("rej-ones", mad(u64::MAX, Message::Rej(messages::rej(ones)?))),
        ("rep-distinct", distinct(Message::Rep(rep_distinct()?))),
        ("rep-ones", mad(u64::MAX, Message::Rep(messages::rep(ones)))),
        (
            "rtu-distinct",
            distinct(Message::Rtu(Rtu { local_comm_id, remote_comm_id, private_data: counting() })),
        ),
        (
            "dreq-distinct",
            distinct(Message::Dreq(Dreq {
                local_comm_id,
                remote_comm_id,
                remote_qpn: Qpn::truncate(0x21_2223),
                private_data: counting(),
            })),
        ),
        (
            "drep-distinct",
            distinct(Message::Drep(Drep { local_comm_id, remote_comm_id, private_data: counting() })),
        ),
        (
            "sidr-req-distinct",
            distinct(Message::SidrReq(SidrReq {
                request_id: 0x0102_0304,
                pkey: 0x0506,
                service_id: ServiceId::new(0x1112_1314_1516_1718),
                private_data: counting(),
            })),
        ),
        ("sidr-req-ones", mad(u64::MAX, Message::SidrReq(messages::sidr_req(ones)))),
        ("sidr-req-ip4", mad(0x1_0000_0003, Message::SidrReq(sidr_req_ip4()?))),
        ("sidr-req-ip6", mad(0x1_0000_0004, Message::SidrReq(sidr_req_ip6()?))),
        (
            "sidr-rep-distinct",
            distinct(Message::SidrRep(SidrRep {
                request_id: 0x0102_0304,
                status: SidrStatus::Redirected,
                additional_info: AdditionalInfo::new(b"abc")?,
                ece: Ece { vendor_id: bits(0xa1_b2c3)?, options: 0x0a0b_0c0d },
                qpn: Qpn::truncate(0x21_2223),
                service_id: ServiceId::new(0x1112_1314_1516_1718),
                qkey: 0x3132_3334,
                private_data: counting(),
            })),
        ),
        ("sidr-rep-ones", mad(u64::MAX, Message::SidrRep(messages::sidr_rep(ones)?))),
    ])
}

fn req_distinct() -> Result<Req> {
    Ok(Req {
        local_comm_id: 0x0102_0304,
        ece: Ece { vendor_id: bits(0x0002c9)?, options: 0x0a0b_0c0d },
        service_id: ServiceId::new(0x1112_1314_1516_1718),
        ca_guid: 0x2122_2324_2526_2728,
        qkey: 0x3132_3334,
        qpn: Qpn::truncate(0x41_4243),
        responder_resources: 0x44,
        local_eecn: bits(0x51_5253)?,
        initiator_depth: 0x54,
        remote_eecn: bits(0x61_6263)?,
        remote_cm_response_timeout: timeout(0b10110)?,
        transport: TransportService::UnreliableConnection,
        end_to_end_flow_control: true,
        starting_psn: Psn::wrapping(0x71_7273),
        local_cm_response_timeout: timeout(0b01101)?,
        retry_count: bits(0b101)?,
        pkey: 0x8182,
        path_mtu: Ok(PathMtu::Mtu1024),
        rdc_exists: true,
        rnr_retry_count: bits(0b110)?,
        max_cm_retries: bits(0b1001)?,
        srq: false,
        extended_transport: bits(0b101)?,
        primary_path: Path {
            local_lid: 0xa1a2,
            remote_lid: 0xa3a4,
            local_gid: Ipv6Addr::from(counting_from(0xb0)),
            remote_gid: Ipv6Addr::from(counting_from(0xc0)),
            flow_label: bits(0xd1d2d)?,
            packet_rate: bits(0b101011)?,
            traffic_class: 0xe1,
            hop_limit: 0xe2,
            sl: bits(0b1010)?,
            subnet_local: true,
            local_ack_timeout: timeout(0b10011)?,
        },
        alternate_path: Path {
            local_lid: 0x0506,
            remote_lid: 0x0708,
            local_gid: Ipv6Addr::from(counting_from(0xd0)),
            remote_gid: Ipv6Addr::from(counting_from(0xe0)),
            flow_label: bits(0x98765)?,
            packet_rate: bits(0b010101)?,
            traffic_class: 0x91,
            hop_limit: 0x92,
            sl: bits(0b0101)?,
            subnet_local: false,
            local_ack_timeout: timeout(0b01110)?,
        },
        sap_supported: true,
        private_data: counting(),
    })
}

fn req_ip4() -> Result<(Req, IpInside)> {
    let (local, remote) = (Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2));
    let header = CmaHeader { source_port: 40_000, addresses: (local, remote).into() };
    let mut consumers = [0; 56];
    consumers[..5].copy_from_slice(b"hello");
    let req = Req {
        local_comm_id: 0x5a3c_1e0f,
        ece: Ece::NONE,
        service_id: ServiceId::tcp_port(7471),
        ca_guid: 0x5254_00ff_fe12_3456,
        qkey: 0,
        qpn: Qpn::truncate(0x11),
        responder_resources: 1,
        local_eecn: Bits::ZERO,
        initiator_depth: 2,
        remote_eecn: Bits::ZERO,
        remote_cm_response_timeout: timeout(20)?,
        transport: TransportService::ReliableConnection,
        end_to_end_flow_control: true,
        starting_psn: Psn::wrapping(0xab_cdef),
        local_cm_response_timeout: timeout(20)?,
        retry_count: bits(6)?,
        pkey: 0xffff,
        path_mtu: Ok(PathMtu::Mtu1024),
        rdc_exists: false,
        rnr_retry_count: bits(7)?,
        max_cm_retries: bits(15)?,
        srq: false,
        extended_transport: Bits::ZERO,
        primary_path: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: local.to_ipv6_mapped(),
            remote_gid: remote.to_ipv6_mapped(),
            packet_rate: bits(3)?,
            hop_limit: 64,
            local_ack_timeout: timeout(19)?,
            ..Path::NONE
        },
        alternate_path: Path::NONE,
        sap_supported: false,
        private_data: header.prepend_to(b"hello")?,
    };
    Ok((req, IpInside { port: 7471, header, consumers }))
}

fn rep_distinct() -> Result<Rep> {
    Ok(Rep {
        local_comm_id: 0x0102_0304,
        remote_comm_id: 0x0506_0708,
        qkey: 0x1112_1314,
        qpn: Qpn::truncate(0x21_2223),
        ece: Ece { vendor_id: bits(0xa1_b2c3)?, options: 0x0a0b_0c0d },
        eecn: bits(0x31_3233)?,
        starting_psn: Psn::wrapping(0x41_4243),
        responder_resources: 0x51,
        initiator_depth: 0x52,
        target_ack_delay: timeout(0b10110)?,
        failover: Failover::NotSupported,
        end_to_end_flow_control: true,
        rnr_retry_count: bits(0b101)?,
        srq: true,
        ca_guid: 0x6162_6364_6566_6768,
        private_data: counting(),
    })
}

fn sidr_req_ip4() -> Result<SidrReq> {
    let addresses = (Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(10, 4, 5, 6)).into();
    Ok(SidrReq {
        request_id: 0x5a3c_1e0f,
        pkey: 0xffff,
        service_id: ServiceId::udp_port(7174),
        private_data: CmaHeader { source_port: 40_000, addresses }.prepend_to(b"hello")?,
    })
}

fn sidr_req_ip6() -> Result<SidrReq> {
    let source = Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6);
    let destination = Ipv6Addr::new(0x2001, 0xdb8, 0x1112, 0x1314, 0x1516, 0x1718, 0x1920, 0x2122);
    let addresses = (source, destination).into();
    Ok(SidrReq {
        request_id: 0x5a3c_1e10,
        pkey: 0x8001,
        service_id: ServiceId::udp_port(0xffff),
        private_data: CmaHeader { source_port: 0xffff, addresses }.prepend_to(&[])?,
    })
}

/// Returns the bytes 1, 2, 3 and so on.
fn counting<const N: usize>() -> PrivateData<N> {
    PrivateData::from(counting_from(1))
}

fn counting_from<const N: usize>(first: u8) -> [u8; N] {
    let mut next = first;
    std::array::from_fn(|_| {
        let byte = next;
        next = next.wrapping_add(1);
        byte
    })
}

fn bits<const N: usize>(value: u32) -> Result<Bits<N>> {
    Bits::new(value).with_context(|| format!("{value:#x} has more than {N} bits"))
}

fn timeout(code: u8) -> Result<Timeout> {
    Timeout::new(code).with_context(|| format!("{code} has more than 5 bits"))
}
