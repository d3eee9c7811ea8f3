//! The fields that tshark should show for the connection manager's messages.

use std::net::Ipv4Addr;

use adverb_wire::cm::{
    CmaHeader, Dreq, Failover, IpPair, Mad, Message, MessageKind, Path, Rej, Rep, Req, TransportService,
};

use super::field::Expected;
use super::outer::Family;

/// Returns the kind of message, as [`notes`](super::notes) name it.
pub(super) fn name(message: &Message) -> &'static str {
    match message {
        Message::Req(_) => "CM REQ",
        Message::Mra(_) => "CM MRA",
        Message::Rej(_) => "CM REJ",
        Message::Rep(_) => "CM REP",
        Message::Rtu(_) => "CM RTU",
        Message::Dreq(_) => "CM DREQ",
        Message::Drep(_) => "CM DREP",
        Message::SidrReq(_) => "CM SIDR_REQ",
        Message::SidrRep(_) => "CM SIDR_REP",
    }
}

/// The IP information in an rdma_cm REQ (Annex A11).
#[derive(Clone, Copy)]
pub(super) struct IpInside {
    /// The destination's TCP port, in the service ID.
    pub(super) port: u16,
    /// The header at the beginning of the private data.
    pub(super) header: CmaHeader,
    /// The consumer's private data after that header.
    pub(super) consumers: [u8; 56],
}

/// Adds the fields of a management datagram. `family` is the outer IP header's; tshark's format of GIDs in a REQ
/// depends on it.
pub(super) fn expect(expected: &mut Expected, mad: &Mad, family: Family, ip: Option<&IpInside>) {
    expect_header(expected, mad);
    match &mad.message {
        Message::Req(req) => expect_req(expected, req, family, ip),
        Message::Rej(rej) => expect_rej(expected, rej),
        Message::Rep(rep) => expect_rep(expected, rep),
        Message::Rtu(rtu) => {
            expected.number("infiniband.cm.rtu.localcommid", rtu.local_comm_id);
            expected.number("infiniband.cm.rtu.remotecommid", rtu.remote_comm_id);
            expected.bytes("infiniband.cm.rtu.private", rtu.private_data.as_bytes());
        }
        Message::Dreq(dreq) => expect_dreq(expected, dreq),
        Message::Drep(drep) => {
            expected.number("infiniband.cm.drsp.localcommid", drep.local_comm_id);
            expected.number("infiniband.cm.drsp.remotecommid", drep.remote_comm_id);
            expected.bytes("infiniband.cm.drsp.private", drep.private_data.as_bytes());
        }
        // For these messages, tshark shows only the MAD header.
        Message::Mra(_) | Message::SidrReq(_) | Message::SidrRep(_) => {}
    }
}

/// Adds the fields of the MAD header (vol. 1, 13.4.3).
fn expect_header(expected: &mut Expected, mad: &Mad) {
    let (attribute, modifier) = match &mad.message {
        Message::Req(req) => (0x10u16, req.ece.options),
        Message::Mra(_) => (0x11, 0),
        Message::Rej(_) => (0x12, 0),
        Message::Rep(rep) => (0x13, rep.ece.options),
        Message::Rtu(_) => (0x14, 0),
        Message::Dreq(_) => (0x15, 0),
        Message::Drep(_) => (0x16, 0),
        Message::SidrReq(_) => (0x17, 0),
        Message::SidrRep(response) => (0x18, response.ece.options),
    };
    expected.number("infiniband.mad.baseversion", 1u8);
    expected.number("infiniband.mad.mgmtclass", 7u8);
    expected.number("infiniband.mad.classversion", 2u8);
    expected.number("infiniband.mad.method", 3u8);
    expected.number("infiniband.mad.status", 0u8);
    expected.number("infiniband.mad.classspecific", 0u8);
    expected.number("infiniband.mad.transactionid", mad.transaction_id);
    expected.number("infiniband.mad.attributeid", attribute);
    expected.bytes("infiniband.reserved", [0; 2]);
    expected.number("infiniband.mad.attributemodifier", modifier);
}

fn expect_req(expected: &mut Expected, req: &Req, family: Family, ip: Option<&IpInside>) {
    expected.number("infiniband.cm.req", req.local_comm_id);
    // The vendor ID was reserved in older specifications, and tshark shows it as reserved.
    expected.bytes("infiniband.reserved", req.ece.vendor_id.get().to_be_bytes());
    expect_service_id(expected, req, ip);
    expected.number("infiniband.cm.req.localcaguid", req.ca_guid);
    expected.bytes("infiniband.reserved", [0; 4]);
    expected.number("infiniband.cm.req.localqkey", req.qkey);
    expected.number("infiniband.cm.req.localqpn", req.qpn.get());
    expected.number("infiniband.cm.req.responderres", req.responder_resources);
    expected.number("infiniband.cm.req.localeecn", req.local_eecn.get());
    expected.number("infiniband.cm.req.initdepth", req.initiator_depth);
    expected.number("infiniband.cm.req.remoteeecn", req.remote_eecn.get());
    expected.number("infiniband.cm.req.remoteresptout", req.remote_cm_response_timeout.code());
    let transport: u8 = match req.transport {
        TransportService::ReliableConnection => 0,
        TransportService::UnreliableConnection => 1,
        TransportService::ReliableDatagram => 2,
        TransportService::Extended => 3,
    };
    expected.number("infiniband.cm.req.transpsvctype", transport);
    expected.number("infiniband.cm.req.e2eflowctrl", req.end_to_end_flow_control);
    expected.number("infiniband.cm.req.startpsn", req.starting_psn.get());
    expected.number("infiniband.cm.req.localresptout", req.local_cm_response_timeout.code());
    expected.number("infiniband.cm.req.retrcount", req.retry_count.get());
    expected.number("infiniband.cm.req.pkey", req.pkey);
    let mtu = match req.path_mtu.map(|mtu| mtu.bytes()) {
        Ok(256) => 1,
        Ok(512) => 2,
        Ok(1024) => 3,
        Ok(2048) => 4,
        Ok(4096) => 5,
        Ok(_) => u8::MAX,
        Err(unknown) => unknown.code(),
    };
    expected.number("infiniband.cm.req.pppmtu", mtu);
    expected.number("infiniband.cm.req.rdcexist", req.rdc_exists);
    expected.number("infiniband.cm.req.rnrretrcount", req.rnr_retry_count.get());
    expected.number("infiniband.cm.req.maxcmretr", req.max_cm_retries.get());
    expected.number("infiniband.cm.req.srq", req.srq);
    expected.number("infiniband.cm.req.ext_transport", req.extended_transport.get());
    expect_primary_path(expected, &req.primary_path, family);
    expect_alternate_path(expected, &req.alternate_path, req.sap_supported);
    match ip {
        Some(ip) => expect_ip_inside(expected, ip),
        None => expected.bytes("infiniband.cm.req.private", req.private_data.as_bytes()),
    }
}

fn expect_primary_path(expected: &mut Expected, path: &Path, family: Family) {
    expected.number("infiniband.cm.req.prim_locallid", path.local_lid);
    expected.number("infiniband.cm.req.prim_remotelid", path.remote_lid);
    match family {
        // Over IPv4, tshark assumes that GIDs are IPv4-mapped, and shows only their last four bytes.
        Family::V4 => {
            let last_four = |[.., a, b, c, d]: [u8; 16]| Ipv4Addr::new(a, b, c, d);
            let (local, remote) = (path.local_gid.octets(), path.remote_gid.octets());
            expected.address("infiniband.cm.req.prim_localgid_ipv4", last_four(local));
            expected.address("infiniband.cm.req.prim_remotegid_ipv4", last_four(remote));
        }
        Family::V6 => {
            expected.address("infiniband.cm.req.prim_localgid", path.local_gid);
            expected.address("infiniband.cm.req.prim_remotegid", path.remote_gid);
        }
    }
    let misread = MisreadLabel::of(path);
    expected.misread("infiniband.cm.req.prim_flowlabel", misread.label);
    expected.misread("infiniband.cm.req.prim_reserved0", misread.reserved);
    expected.misread("infiniband.cm.req.prim_pktrate", misread.rate);
    expected.number("infiniband.cm.req.prim_tfcclass", path.traffic_class);
    expected.number("infiniband.cm.req.prim_hoplim", path.hop_limit);
    expected.number("infiniband.cm.req.prim_sl", path.sl.get());
    expected.number("infiniband.cm.req.prim_subnetlocal", path.subnet_local);
    expected.number("infiniband.cm.req.prim_reserved1", 0u8);
    expected.number("infiniband.cm.req.prim_localacktout", path.local_ack_timeout.code());
    expected.number("infiniband.cm.req.prim_reserved2", 0u8);
}

fn expect_alternate_path(expected: &mut Expected, path: &Path, sap_supported: bool) {
    expected.number("infiniband.cm.req.alt_locallid", path.local_lid);
    expected.number("infiniband.cm.req.alt_remotelid", path.remote_lid);
    expected.bytes("infiniband.cm.req.alt_localgid", path.local_gid.octets());
    expected.bytes("infiniband.cm.req.alt_remotegid", path.remote_gid.octets());
    let misread = MisreadLabel::of(path);
    expected.misread("infiniband.cm.req.alt_flowlabel", misread.label);
    expected.misread("infiniband.cm.req.alt_reserved0", misread.reserved);
    expected.misread("infiniband.cm.req.alt_pktrate", misread.rate);
    expected.number("infiniband.cm.req.alt_tfcclass", path.traffic_class);
    expected.number("infiniband.cm.req.alt_hoplim", path.hop_limit);
    expected.number("infiniband.cm.req.alt_sl", path.sl.get());
    expected.number("infiniband.cm.req.alt_subnetlocal", path.subnet_local);
    expected.number("infiniband.cm.req.alt_reserved1", 0u8);
    expected.number("infiniband.cm.req.alt_localacktout", path.local_ack_timeout.code());
    // The first of these three bits is the SAP (suggest alternate path) flag. tshark shows all three as reserved, under
    // a name that it already used.
    expected.number("infiniband.cm.req.alt_reserved1", u8::from(sap_supported) << 2);
}

/// tshark's wrong values for a word of a 20-bit flow label, 6 reserved bits and a 6-bit packet rate (vol. 1, table 106;
/// in Linux `CM_REQ_PRIMARY_FLOW_LABEL` and `CM_REQ_PRIMARY_PACKET_RATE`). tshark's masks are for four bytes, but it
/// reads three bytes for the label and one for the others, which shifts all values.
struct MisreadLabel {
    label: u32,
    reserved: u32,
    rate: u32,
}

impl MisreadLabel {
    fn of(path: &Path) -> MisreadLabel {
        let label = path.flow_label.get();
        let (first_byte, three_bytes) = (label >> 12, label << 4);
        MisreadLabel {
            label: (three_bytes & 0xffff_f000) >> 12,
            reserved: (first_byte & 0xfc0) >> 6,
            rate: first_byte & 0x3f,
        }
    }
}

fn expect_service_id(expected: &mut Expected, req: &Req, ip: Option<&IpInside>) {
    let Some(IpInside { port, .. }) = ip else {
        expected.number("infiniband.cm.req.serviceid", req.service_id.get());
        return;
    };
    expected.number("infiniband.cm.req.serviceid", 0x0000_0000_0106_0000 | u64::from(*port));
    expected.bytes("infiniband.cm.req.serviceid.prefix", [0, 0, 0, 0, 1]);
    expected.number("infiniband.cm.req.serviceid.protocol", 6u8);
    expected.number("infiniband.cm.req.serviceid.dport", *port);
}

fn expect_ip_inside(expected: &mut Expected, IpInside { header: ip, consumers, .. }: &IpInside) {
    expected.number("infiniband.cm.req.ip_cm.majv", 0u8);
    expected.number("infiniband.cm.req.ip_cm.minv", 0u8);
    expected.number("infiniband.cm.req.ip_cm.reserved", 0u8);
    expected.number("infiniband.cm.req.ip_cm.sport", ip.source_port);
    match ip.addresses {
        IpPair::V4 { source, destination } => {
            expected.number("infiniband.cm.req.ip_cm.ipv", 4u8);
            expected.address("infiniband.cm.req.ip_cm.sip4", source);
            expected.address("infiniband.cm.req.ip_cm.dip4", destination);
        }
        IpPair::V6 { source, destination } => {
            expected.number("infiniband.cm.req.ip_cm.ipv", 6u8);
            expected.address("infiniband.cm.req.ip_cm.sip6", source);
            expected.address("infiniband.cm.req.ip_cm.dip6", destination);
        }
    }
    expected.bytes("infiniband.cm.req.ip_cm.private", *consumers);
}

fn expect_rej(expected: &mut Expected, rej: &Rej) {
    let rejected: u8 = match rej.rejected {
        MessageKind::Req => 0,
        MessageKind::Rep => 1,
        MessageKind::Other => 2,
        MessageKind::Reserved => 3,
    };
    let info = rej.additional_info.as_bytes();
    let mut padded = info.to_vec();
    padded.resize(72, 0);
    expected.number("infiniband.cm.rej.localcommid", rej.local_comm_id);
    expected.number("infiniband.cm.rej.remotecommid", rej.remote_comm_id);
    expected.number("infiniband.cm.rej.msgrej", rejected);
    expected.number("infiniband.cm.rej.reserved0", 0u8);
    expected.number("infiniband.cm.rej.rejinfolen", info.len() as u64);
    expected.number("infiniband.cm.rej.reserved1", 0u8);
    expected.number("infiniband.cm.rej.reason", rej.reason.code());
    expected.bytes("infiniband.cm.rej.ari", padded);
    expected.bytes("infiniband.cm.rej.private", rej.private_data.as_bytes());
}

fn expect_rep(expected: &mut Expected, rep: &Rep) {
    let failover: u8 = match rep.failover {
        Failover::Accepted => 0,
        Failover::NotSupported => 1,
        Failover::Rejected => 2,
        Failover::Reserved => 3,
    };
    // As in a REQ, but each byte of the vendor ID is a separate field.
    let [_, high, middle, low] = rep.ece.vendor_id.get().to_be_bytes();
    expected.number("infiniband.cm.rep", rep.local_comm_id);
    expected.number("infiniband.cm.rep.remotecommid", rep.remote_comm_id);
    expected.number("infiniband.cm.rep.localqkey", rep.qkey);
    expected.number("infiniband.cm.rep.localqpn", rep.qpn.get());
    expected.bytes("infiniband.reserved", [high]);
    expected.number("infiniband.cm.rep.localeecn", rep.eecn.get());
    expected.bytes("infiniband.reserved", [middle]);
    expected.number("infiniband.cm.rep.startpsn", rep.starting_psn.get());
    expected.bytes("infiniband.reserved", [low]);
    expected.number("infiniband.cm.rep.respres", rep.responder_resources);
    expected.number("infiniband.cm.rep.initdepth", rep.initiator_depth);
    expected.number("infiniband.cm.rep.tgtackdelay", rep.target_ack_delay.code());
    expected.number("infiniband.cm.rep.failoveracc", failover);
    expected.number("infiniband.cm.rep.e2eflowctrl", rep.end_to_end_flow_control);
    expected.number("infiniband.cm.rep.rnrretrcount", rep.rnr_retry_count.get());
    expected.number("infiniband.cm.rep.srq", rep.srq);
    expected.number("infiniband.cm.rep.reserved", 0u8);
    expected.number("infiniband.cm.rep.localcaguid", rep.ca_guid);
    expected.bytes("infiniband.cm.rep.private", rep.private_data.as_bytes());
}

fn expect_dreq(expected: &mut Expected, dreq: &Dreq) {
    expected.number("infiniband.cm.dreq.localcommid", dreq.local_comm_id);
    expected.number("infiniband.cm.dreq.remotecommid", dreq.remote_comm_id);
    // tshark's name belongs to the REQ, but the field's position is correct.
    expected.number("infiniband.cm.req.remoteqpneecn", dreq.remote_qpn.get());
    expected.bytes("infiniband.reserved", [0]);
    expected.bytes("infiniband.cm.dreq.private", dreq.private_data.as_bytes());
}
