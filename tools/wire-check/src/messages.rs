//! Test packets with the connection manager's messages.

use std::net::{Ipv4Addr, Ipv6Addr};

use adverb_wire::cm::{
    AdditionalInfo, CmaHeader, Drep, Dreq, Ece, Failover, GSI_QKEY, IpPair, Mad, Message, MessageKind, Mra,
    Path, PathMtu, PrivateData, Rej, RejectReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus,
    TransportService,
};
use adverb_wire::{Header, Operation, Qpn, Ud};
use anyhow::{Context, Result, ensure};

use super::case::{Case, Contents};
use super::cm_fields::{self, IpInside};
use super::outer::{Family, Outer};
use super::values::Values;
use super::vectors::{MessageVector, Vectors};

/// Returns the messages of the vectors, and the messages that tshark dissects with other values; each over IPv4 and
/// IPv6.
pub(super) fn cases(vectors: &Vectors) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for family in Family::ALL {
        for vector in vectors.messages() {
            cases.push(from_vector(vector, family, cases.len() as u64)?);
        }
        for values in SETS {
            for (message, ip) in messages(&mut values.fork(cases.len() as u64))? {
                let inside = ip.map_or("", |ip| match ip.header.addresses {
                    IpPair::V4 { .. } => ", IPv4 in the private data",
                    IpPair::V6 { .. } => ", IPv6 in the private data",
                });
                let details = format!("{}, {}{inside}", family.name(), values.name());
                let mut values = values.fork(cases.len() as u64);
                let mad = Mad { transaction_id: values.u64(), message };
                cases.push(case(mad, ip, family, values)?.details(details));
            }
        }
    }
    Ok(cases)
}

/// The sources of field values.
const SETS: &[Values] =
    &[Values::Mixed(1), Values::Mixed(2), Values::Mixed(3), Values::Mixed(4), Values::Ones, Values::Zeros];

/// Returns a packet with a vector's message. Where tshark shows its raw bytes, they must be the vector's.
fn from_vector(vector: &MessageVector, family: Family, number: u64) -> Result<Case> {
    let mut case = case(vector.mad, vector.ip, family, Values::Mixed(6).fork(number))?;
    let data = &vector.bytes[24..];
    case.expected.undissected("infiniband.mad", vector.bytes.clone());
    case.expected.undissected("infiniband.mad.data", data);
    case.expected.undissected("infiniband.smplid.smpdata", data);
    Ok(case.details(format!("{}, {}", family.name(), vector.name)))
}

/// Returns a packet with a message from queue pair 1 to queue pair 1, as connection managers send it.
fn case(mad: Mad, ip: Option<IpInside>, family: Family, mut values: Values) -> Result<Case> {
    ensure!(
        GSI_QKEY == 0x8001_0000,
        "GSI_QKEY is {GSI_QKEY:#x}, not the Q_Key of queue pair 1 (vol. 1, 10.2.5)"
    );
    let outer = Outer::new(family, &mut values);
    let operation = Operation::Ud(Ud { qkey: GSI_QKEY, source_qp: Qpn::GSI, immediate: None });
    let header = Header {
        dest_qp: Qpn::GSI,
        psn: values.psn(),
        solicited: values.bool(),
        migrated: values.bool(),
        pkey: values.u16(),
        fecn: values.bool(),
        becn: values.bool(),
        ack_request: values.bool(),
        operation,
    };
    let payload = mad.emit().to_vec();
    let mut case =
        Case::emitted(cm_fields::name(&mad.message), Contents { outer, header, payload, mad: Some(mad) })?;
    cm_fields::expect(&mut case.expected, &mad, family, ip.as_ref());
    case.expected.number("infiniband.invariant.crc", case.icrc());
    Ok(case)
}

/// Returns the messages that tshark dissects, with these values.
fn messages(values: &mut Values) -> Result<Vec<(Message, Option<IpInside>)>> {
    let (req4, ip4) = req_with_ip(values, Family::V4)?;
    let (req6, ip6) = req_with_ip(values, Family::V6)?;
    let (local_comm_id, remote_comm_id) = (values.u32(), values.u32());
    let rtu = Rtu { local_comm_id, remote_comm_id, private_data: private_data(values) };
    let remote_qpn = values.qpn();
    let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data: private_data(values) };
    let drep = Drep { local_comm_id, remote_comm_id, private_data: private_data(values) };
    Ok(vec![
        (Message::Req(req(values)?), None),
        (Message::Req(req4), Some(ip4)),
        (Message::Req(req6), Some(ip6)),
        (Message::Rej(rej(values)?), None),
        (Message::Rep(rep(values)), None),
        (Message::Rtu(rtu), None),
        (Message::Dreq(dreq), None),
        (Message::Drep(drep), None),
    ])
}

/// Returns a REQ with these values.
pub(super) fn req(values: &mut Values) -> Result<Req> {
    Ok(Req {
        local_comm_id: values.u32(),
        ece: ece(values),
        service_id: ServiceId::new(values.u64()),
        ca_guid: values.u64(),
        qkey: values.u32(),
        qpn: values.qpn(),
        responder_resources: values.u8(),
        local_eecn: values.bits(),
        initiator_depth: values.u8(),
        remote_eecn: values.bits(),
        remote_cm_response_timeout: values.timeout(),
        transport: match values.u8() >> 6 {
            0 => TransportService::ReliableConnection,
            1 => TransportService::UnreliableConnection,
            2 => TransportService::ReliableDatagram,
            _ => TransportService::Extended,
        },
        end_to_end_flow_control: values.bool(),
        starting_psn: values.psn(),
        local_cm_response_timeout: values.timeout(),
        retry_count: values.bits(),
        pkey: values.u16(),
        path_mtu: Ok(PathMtu::from_code(values.u8() / 52 + 1).context("255 / 52 + 1 is 5")?),
        rdc_exists: values.bool(),
        rnr_retry_count: values.bits(),
        max_cm_retries: values.bits(),
        srq: values.bool(),
        extended_transport: values.bits(),
        primary_path: path(values),
        alternate_path: path(values),
        sap_supported: values.bool(),
        private_data: private_data(values),
    })
}

/// Returns a REQ with these values and rdma_cm's IP header in its private data.
fn req_with_ip(values: &mut Values, family: Family) -> Result<(Req, IpInside)> {
    let addresses = match family {
        Family::V4 => (Ipv4Addr::from(values.array()), Ipv4Addr::from(values.array())).into(),
        Family::V6 => (Ipv6Addr::from(values.array()), Ipv6Addr::from(values.array())).into(),
    };
    let header = CmaHeader { source_port: values.u16(), addresses };
    let ip = IpInside { port: values.u16(), header, consumers: values.array() };
    let private_data = header.prepend_to(&ip.consumers)?;
    Ok((Req { service_id: ServiceId::tcp_port(ip.port), private_data, ..req(values)? }, ip))
}

/// Returns a path with these values.
fn path(values: &mut Values) -> Path {
    Path {
        local_lid: values.u16(),
        remote_lid: values.u16(),
        local_gid: Ipv6Addr::from(values.array()),
        remote_gid: Ipv6Addr::from(values.array()),
        flow_label: values.bits(),
        packet_rate: values.bits(),
        traffic_class: values.u8(),
        hop_limit: values.u8(),
        sl: values.bits(),
        subnet_local: values.bool(),
        local_ack_timeout: values.timeout(),
    }
}

/// Returns an MRA with these values.
pub(super) fn mra(values: &mut Values) -> Mra {
    Mra {
        local_comm_id: values.u32(),
        remote_comm_id: values.u32(),
        acknowledged: subject(values),
        service_timeout: values.timeout(),
        private_data: private_data(values),
    }
}

/// Returns a REJ with these values.
pub(super) fn rej(values: &mut Values) -> Result<Rej> {
    Ok(Rej {
        local_comm_id: values.u32(),
        remote_comm_id: values.u32(),
        rejected: subject(values),
        reason: RejectReason::from_code(values.u16()),
        additional_info: additional_info(values)?,
        private_data: private_data(values),
    })
}

/// Returns a REP with these values.
pub(super) fn rep(values: &mut Values) -> Rep {
    Rep {
        local_comm_id: values.u32(),
        remote_comm_id: values.u32(),
        qkey: values.u32(),
        qpn: values.qpn(),
        ece: ece(values),
        eecn: values.bits(),
        starting_psn: values.psn(),
        responder_resources: values.u8(),
        initiator_depth: values.u8(),
        target_ack_delay: values.timeout(),
        failover: match values.u8() >> 6 {
            0 => Failover::Accepted,
            1 => Failover::NotSupported,
            2 => Failover::Rejected,
            _ => Failover::Reserved,
        },
        end_to_end_flow_control: values.bool(),
        rnr_retry_count: values.bits(),
        srq: values.bool(),
        ca_guid: values.u64(),
        private_data: private_data(values),
    }
}

/// Returns a SIDR_REQ with these values.
pub(super) fn sidr_req(values: &mut Values) -> SidrReq {
    SidrReq {
        request_id: values.u32(),
        pkey: values.u16(),
        service_id: ServiceId::new(values.u64()),
        private_data: private_data(values),
    }
}

/// Returns a SIDR_REP with these values.
pub(super) fn sidr_rep(values: &mut Values) -> Result<SidrRep> {
    Ok(SidrRep {
        request_id: values.u32(),
        status: SidrStatus::from_code(values.u8()),
        additional_info: additional_info(values)?,
        ece: ece(values),
        qpn: values.qpn(),
        service_id: ServiceId::new(values.u64()),
        qkey: values.u32(),
        private_data: private_data(values),
    })
}

fn ece(values: &mut Values) -> Ece {
    Ece { vendor_id: values.bits(), options: values.u32() }
}

fn subject(values: &mut Values) -> MessageKind {
    match values.u8() >> 6 {
        0 => MessageKind::Req,
        1 => MessageKind::Rep,
        2 => MessageKind::Other,
        _ => MessageKind::Reserved,
    }
}

fn additional_info(values: &mut Values) -> Result<AdditionalInfo> {
    let len = usize::from(values.u8()).min(AdditionalInfo::MAX_LEN);
    Ok(AdditionalInfo::new(&values.bytes(len))?)
}

fn private_data<const N: usize>(values: &mut Values) -> PrivateData<N> {
    PrivateData::from(values.array())
}
