//! The messages that a connection sends.

use core::net::IpAddr;
use core::time::Duration;

use adverb_wire::cm::{
    AdditionalInfo, Bits, Drep, Dreq, Failover, Mad, Message, MessageKind, Mra, Path, PrivateData, Rej,
    RejectReason, Rep, Req, Rtu, Timeout, TransportService,
};

use super::connection::{Connection, State};
use super::parameters::{bits, private_data};
use super::{CallError, Config, ConnectParams, LocalQp};
use crate::mutation::mutant;
use crate::types::{Gid, Qpn, Transport};

/// Returns the transaction ID of an exchange that this side starts (`cm_form_tid` in `cm.c`).
pub(super) fn transaction_id(config: &Config, local_id: u32) -> u64 {
    let prefix = config.ca_guid ^ config.ca_guid >> 32;
    prefix << 32 | u64::from(local_id)
}

/// Builds the REQ that opens a connection.
pub(super) fn req(
    config: &Config,
    connection: &Connection,
    connect: &ConnectParams<'_>,
) -> Result<Mad, CallError> {
    let ConnectParams { addrs, local_qp, .. } = connect;
    let req = Req {
        local_comm_id: connection.local_id,
        ece: local_qp.ece,
        service_id: connect.service,
        ca_guid: config.ca_guid,
        qkey: 0,
        qpn: local_qp.qpn,
        responder_resources: local_qp.rd_atomic_limits.max_dest_rd_atomic,
        local_eecn: Bits::ZERO,
        initiator_depth: local_qp.rd_atomic_limits.max_rd_atomic,
        remote_eecn: Bits::ZERO,
        remote_cm_response_timeout: config.response_timeout,
        transport: match local_qp.transport {
            Transport::Uc => TransportService::UnreliableConnection,
            _ => TransportService::ReliableConnection,
        },
        end_to_end_flow_control: false,
        starting_psn: connection.receive_psn,
        local_cm_response_timeout: config.response_timeout,
        retry_count: bits(local_qp.retry_count, "retry_count")?,
        pkey: config.pkey,
        path_mtu: Ok(connect.path_mtu),
        rdc_exists: false,
        rnr_retry_count: bits(local_qp.rnr_retry, "rnr_retry")?,
        max_cm_retries: bits(config.max_retries, "max_retries")?,
        srq: local_qp.has_srq,
        extended_transport: Bits::ZERO,
        primary_path: Path {
            // For RoCE, `cm_format_req` in `cm.c` sends permissive LIDs and clears the subnet-local bit.
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: Gid::from(addrs.local).bytes().into(),
            remote_gid: Gid::from(addrs.remote).bytes().into(),
            flow_label: Bits::ZERO,
            packet_rate: Bits::truncate(RATE_10G),
            traffic_class: connect.traffic_class,
            hop_limit: HOP_LIMIT,
            sl: Bits::ZERO,
            subnet_local: false,
            local_ack_timeout: local_qp.ack_timeout,
        },
        alternate_path: Path::NONE,
        sap_supported: false,
        private_data: private_data(*addrs, connect.service, connect.source_port, connect.private_data)?,
    };
    Ok(Mad { transaction_id: connection.transaction_id, message: Message::Req(req) })
}

/// The code of a static rate of 10 Gb/s, which software devices ignore.
const RATE_10G: u32 = 3;
const HOP_LIMIT: u8 = 64;

/// Builds the REP that accepts a REQ.
pub(super) fn rep(
    config: &Config,
    connection: &Connection,
    local_qp: &LocalQp,
    data: &[u8],
) -> Result<Mad, CallError> {
    let rd_atomic_limits = connection.rd_atomic_limits(local_qp);
    let rep = Rep {
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id.unwrap_or(0),
        qkey: 0,
        qpn: local_qp.qpn,
        ece: local_qp.ece,
        eecn: Bits::ZERO,
        starting_psn: if mutant!(CmPsnOfTheWrongSide) { connection.send_psn } else { connection.receive_psn },
        responder_resources: rd_atomic_limits.max_dest_rd_atomic,
        initiator_depth: rd_atomic_limits.max_rd_atomic,
        target_ack_delay: Timeout::ZERO,
        failover: Failover::NotSupported,
        end_to_end_flow_control: false,
        rnr_retry_count: bits(local_qp.rnr_retry, "rnr_retry")?,
        srq: local_qp.has_srq,
        ca_guid: config.ca_guid,
        private_data: PrivateData::new(data).map_err(CallError::PrivateDataTooLong)?,
    };
    Ok(Mad { transaction_id: connection.transaction_id, message: Message::Rep(rep) })
}

pub(super) fn rtu(connection: &Connection) -> Mad {
    let rtu = Rtu {
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id.unwrap_or(0),
        private_data: PrivateData::EMPTY,
    };
    Mad { transaction_id: connection.transaction_id, message: Message::Rtu(rtu) }
}

/// Builds a REJ (`cm_format_rej` in `cm.c`). It names the rejected message if that is a REQ or a REP, according to the
/// state.
pub(super) fn rej(
    connection: &Connection,
    reason: RejectReason,
    info: AdditionalInfo,
    private_data: PrivateData<148>,
) -> Mad {
    let (local_comm_id, rejected) = match connection.state {
        State::ReqReceived => (0, MessageKind::Req),
        State::RepReceived => (connection.local_id, MessageKind::Rep),
        _ => (connection.local_id, MessageKind::Other),
    };
    let rej = Rej {
        local_comm_id,
        remote_comm_id: connection.remote_id.unwrap_or(0),
        rejected,
        reason,
        additional_info: info,
        private_data,
    };
    Mad { transaction_id: connection.transaction_id, message: Message::Rej(rej) }
}

/// Builds the REJ of a side whose deadline passed, or whose application aborts the connection. The REJ always carries
/// the CA GUID, because a peer that does not know this side's ID yet finds the connection by the GUID
/// (`cm_acquire_rejected_id` in `cm.c`).
pub(super) fn rej_timeout(config: &Config, connection: &Connection) -> Mad {
    let info = AdditionalInfo::new(&config.ca_guid.to_be_bytes()).unwrap_or_default();
    rej(connection, RejectReason::Timeout, info, PrivateData::EMPTY)
}

/// Builds an MRA, which announces that the response may take up to `wait`.
pub(super) fn mra(connection: &Connection, acknowledged: MessageKind, wait: Duration) -> Mad {
    let mra = Mra {
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id.unwrap_or(0),
        acknowledged,
        service_timeout: Timeout::at_least(wait),
        private_data: PrivateData::EMPTY,
    };
    Mad { transaction_id: connection.transaction_id, message: Message::Mra(mra) }
}

pub(super) fn dreq(config: &Config, connection: &Connection, remote_qpn: Qpn) -> Mad {
    let dreq = Dreq {
        local_comm_id: connection.local_id,
        remote_comm_id: connection.remote_id.unwrap_or(0),
        remote_qpn,
        private_data: PrivateData::EMPTY,
    };
    let transaction_id = transaction_id(config, connection.local_id);
    Mad { transaction_id, message: Message::Dreq(dreq) }
}

/// Builds the DREP that confirms a DREQ, also for an unknown connection: in both cases the connection has ended
/// (`cm_issue_drep` in `cm.c`).
pub(super) fn drep(transaction_id: u64, dreq: &Dreq) -> Mad {
    let drep = Drep {
        local_comm_id: dreq.remote_comm_id,
        remote_comm_id: dreq.local_comm_id,
        private_data: PrivateData::EMPTY,
    };
    Mad { transaction_id, message: Message::Drep(drep) }
}

/// Builds the REJ of a message that belongs to no connection here, or to one in timewait (`cm_issue_rej` in `cm.c`).
/// `ids` are the peer's and this side's communication IDs.
pub(super) fn rej_unknown(
    transaction_id: u64,
    ids: (u32, u32),
    rejected: MessageKind,
    reason: RejectReason,
    info: AdditionalInfo,
) -> Mad {
    let (remote_id, local_id) = ids;
    let rej = Rej {
        local_comm_id: local_id,
        remote_comm_id: remote_id,
        rejected,
        reason,
        additional_info: info,
        private_data: PrivateData::EMPTY,
    };
    Mad { transaction_id, message: Message::Rej(rej) }
}

/// Returns the GID of an address as the additional information of a REJ.
pub(super) fn gid_info(address: IpAddr) -> AdditionalInfo {
    AdditionalInfo::new(&Gid::from(address).bytes()).unwrap_or_default()
}
