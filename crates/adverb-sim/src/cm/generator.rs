//! An attacker's connection manager messages.

use std::net::IpAddr;

use adverb_proto::Time;
use adverb_proto::cm::{AddrPair, BindAddr, Config, ConnectParams, Event, ListenParams, LocalQp, Manager};
use adverb_proto::types::{Qpn, RejectReason, Transport};
use adverb_wire::cm::{
    AdditionalInfo, CmaHeader, Drep, Dreq, Ece, Mad, Message, MessageKind, Mra, PrivateData, Rej, Rep, Req,
    Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, Timeout,
};

use crate::hostile::decisions::DecisionSource;

/// The service ID of the connection requests that a [`CmMessageGenerator`] generates.
pub const CM_ATTACK_TCP_SERVICE_ID: ServiceId = ServiceId::tcp_port(7471);

/// The service ID of the SIDR requests (service ID resolution) that a [`CmMessageGenerator`] generates.
pub const CM_ATTACK_UDP_SERVICE_ID: ServiceId = ServiceId::udp_port(7471);

/// The maximum number of recorded messages of the manager.
const MAX_RECEIVED: usize = 64;

/// A generator of hostile connection manager messages. The decisions and the recorded messages of the manager determine
/// the generated messages.
#[derive(Clone, Debug)]
pub struct CmMessageGenerator {
    /// The manager's latest messages.
    received: Vec<(AddrPair, Mad)>,
    /// A valid REQ and a valid REP.
    models: (Req, Rep),
}

impl Default for CmMessageGenerator {
    fn default() -> CmMessageGenerator {
        CmMessageGenerator { received: Vec::new(), models: models() }
    }
}

impl CmMessageGenerator {
    /// Records a message that the manager sent.
    pub fn record_manager_message(&mut self, addrs: AddrPair, mad: Mad) {
        if self.received.len() == MAX_RECEIVED {
            self.received.remove(0);
        }
        self.received.push((addrs, mad));
    }

    /// Returns a plausible message, and the addresses of the connection to which the message belongs.
    ///
    /// The addresses are an element of `candidates`, or those of a recorded message of the manager. `candidates` must
    /// not be empty.
    pub fn next_message(
        &self,
        decisions: &mut DecisionSource<'_>,
        candidates: &[AddrPair],
    ) -> (AddrPair, Mad) {
        let addrs = decisions.pick(candidates);
        // Recent messages are chosen more often: their connections are still in use.
        let reach = if decisions.one_in(4) { self.received.len() } else { self.received.len().min(6) };
        let back = 1 + decisions.below(reach.max(1) as u64) as usize;
        let received =
            self.received.len().checked_sub(back).and_then(|index| self.received.get(index)).copied();
        // The addresses and both IDs of the recorded message's connection, if there is one.
        let (addrs, manager_id, attacker_id) = match received {
            Some((addrs, mad)) => {
                let (manager_id, attacker_id) = ids(&mad.message);
                (
                    if decisions.one_in(10) { decisions.pick(candidates) } else { addrs },
                    manager_id,
                    attacker_id,
                )
            }
            None => (addrs, 0, 0),
        };
        let attacker_id =
            if attacker_id == 0 || decisions.one_in(8) { 1 + decisions.below(6) as u32 } else { attacker_id };
        let manager_id = if decisions.one_in(12) { decisions.bits(32) as u32 } else { manager_id };
        let qpn = Qpn::truncate(decisions.below(64) as u32);
        let ca_guid = 1 + decisions.below(2);
        let (local_comm_id, remote_comm_id) = (attacker_id, manager_id);
        let message = match decisions.below(12) {
            0..=3 => Message::Req(self.req(decisions, addrs, qpn, ca_guid)),
            4 => Message::Rep(Rep { local_comm_id, remote_comm_id, qpn, ca_guid, ..self.models.1 }),
            5 => Message::Rtu(Rtu { local_comm_id, remote_comm_id, private_data: PrivateData::EMPTY }),
            6 => {
                let reason = RejectReason::from_code(decisions.pick(&[4, 6, 10, 28, 999]));
                let guid = ca_guid.to_be_bytes();
                let info = if decisions.one_in(2) { &guid[..] } else { &[] };
                Message::Rej(Rej {
                    local_comm_id,
                    remote_comm_id: if decisions.one_in(3) { 0 } else { remote_comm_id },
                    rejected: decisions.pick(&[MessageKind::Req, MessageKind::Rep, MessageKind::Other]),
                    reason,
                    additional_info: AdditionalInfo::new(info).unwrap_or_default(),
                    private_data: PrivateData::EMPTY,
                })
            }
            7 => {
                // The DREQ names the queue pair of the recorded message, or a random one.
                let named = match received.map(|(_, mad)| mad.message) {
                    Some(Message::Req(req)) => req.qpn,
                    Some(Message::Rep(rep)) => rep.qpn,
                    _ => qpn,
                };
                let private_data = PrivateData::EMPTY;
                Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: named, private_data })
            }
            8 => Message::Drep(Drep { local_comm_id, remote_comm_id, private_data: PrivateData::EMPTY }),
            9 => Message::Mra(Mra {
                local_comm_id,
                remote_comm_id,
                acknowledged: decisions.pick(&[MessageKind::Req, MessageKind::Rep, MessageKind::Other]),
                service_timeout: Timeout::new(decisions.below(32) as u8).unwrap_or(Timeout::MAX),
                private_data: PrivateData::EMPTY,
            }),
            10 => {
                let header = CmaHeader::new((addrs.remote, 5).into(), addrs.local);
                Message::SidrReq(SidrReq {
                    request_id: decisions.below(40) as u32,
                    pkey: 0xffff,
                    service_id: CM_ATTACK_UDP_SERVICE_ID,
                    private_data: header.and_then(|header| header.prepend_to(b"?").ok()).unwrap_or_default(),
                })
            }
            _ => Message::SidrRep(SidrRep {
                request_id: manager_id,
                status: SidrStatus::from_code(decisions.below(3) as u8),
                additional_info: AdditionalInfo::EMPTY,
                ece: Ece::NONE,
                qpn,
                service_id: CM_ATTACK_UDP_SERVICE_ID,
                qkey: 1,
                private_data: PrivateData::EMPTY,
            }),
        };
        (addrs, Mad { transaction_id: decisions.bits(8), message })
    }

    fn req(&self, decisions: &mut DecisionSource<'_>, addrs: AddrPair, qpn: Qpn, ca_guid: u64) -> Req {
        let mut req = self.models.0;
        req.local_comm_id = 1 + decisions.below(30) as u32;
        (req.qpn, req.ca_guid) = (qpn, ca_guid);
        req.primary_path.local_gid = gid(addrs.remote);
        req.primary_path.remote_gid = gid(addrs.local);
        let header = CmaHeader::new((addrs.remote, 5).into(), addrs.local);
        req.private_data = header.and_then(|header| header.prepend_to(b"hello").ok()).unwrap_or_default();
        req
    }
}

fn gid(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Returns the two IDs in a message of the manager. The first one is the manager's communication ID, or the request ID
/// of a SIDR message. The second one is the peer's, or 0 if the message has none.
fn ids(message: &Message) -> (u32, u32) {
    match message {
        Message::Req(req) => (req.local_comm_id, 0),
        Message::Rep(rep) => (rep.local_comm_id, rep.remote_comm_id),
        Message::Rtu(rtu) => (rtu.local_comm_id, rtu.remote_comm_id),
        Message::Rej(rej) => (rej.local_comm_id, rej.remote_comm_id),
        Message::Mra(mra) => (mra.local_comm_id, mra.remote_comm_id),
        Message::Dreq(dreq) => (dreq.local_comm_id, dreq.remote_comm_id),
        Message::Drep(drep) => (drep.local_comm_id, drep.remote_comm_id),
        Message::SidrReq(request) => (request.request_id, 0),
        Message::SidrRep(response) => (response.request_id, 0),
    }
}

/// Lets two managers create a valid REQ and a valid REP.
fn models() -> (Req, Rep) {
    let (mut active, mut passive) = (Manager::new(Config::new(1)), Manager::new(Config::new(2)));
    let addrs = AddrPair { local: [10, 0, 0, 2].into(), remote: IpAddr::from([10, 0, 0, 1]) };
    let back = AddrPair { local: IpAddr::from([10, 0, 0, 1]), remote: [10, 0, 0, 2].into() };
    let deadline = Time::MAX;
    let local_qp = LocalQp::new(Qpn::truncate(2));
    let _ = passive.listen(ListenParams {
        service: CM_ATTACK_TCP_SERVICE_ID,
        bind: BindAddr::Any,
        transport: Transport::Rc,
        backlog: 1,
    });
    let _ = active.connect(
        Time::ZERO,
        &ConnectParams::new(addrs, CM_ATTACK_TCP_SERVICE_ID, local_qp, deadline),
        &mut || 7,
    );
    let Some(Message::Req(req)) = active.poll_transmit().map(|datagram| datagram.mad.message) else {
        unreachable!("a manager that connects sends a REQ");
    };
    let mad = Mad { transaction_id: 1, message: Message::Req(req) };
    passive.handle(Time::ZERO, back, &mad.emit(), &mut || 8);
    if let Some(Event::Request(request)) = passive.poll_event() {
        let _ = passive.accept(Time::ZERO, request.id, &local_qp, &[], deadline);
    }
    let Some(Message::Rep(rep)) = passive.poll_transmit().map(|datagram| datagram.mad.message) else {
        unreachable!("a manager that accepts sends a REP");
    };
    (req, rep)
}
