//! Handling of received messages.

use adverb_wire::cm::{
    AdditionalInfo, Drep, Dreq, Mad, Message, MessageKind, Mra, Rej, RejectReason, Rep, Req, Rtu,
    TransportService,
};

use super::compose;
use super::connection::{Connection, State};
use super::event::{Acceptance, Rejection, Request};
use super::manager::{Manager, is_connectable};
use super::parameters::has_ip_header;
use super::{AddrPair, ConnectionId, Event, ListenerId, RdAtomicLimits};
use crate::Time;
use crate::mutation::mutant;
use crate::types::{Gid, Psn, Qpn, Transport};

impl Manager {
    /// Handles a datagram that queue pair 1 received with the queue key [`GSI_QKEY`](adverb_wire::cm::GSI_QKEY):
    /// `payload` is its payload, and `addrs` are its addresses. A datagram is counted as
    /// [malformed](super::Statistics::malformed) and dropped if its payload is not a CM message, or if one of its
    /// addresses is IPv4 and the other IPv6.
    pub fn handle(&mut self, now: Time, addrs: AddrPair, payload: &[u8], random: &mut impl FnMut() -> u32) {
        let (Ok(Mad { transaction_id, message }), true) = (Mad::parse(payload), addrs.is_one_family()) else {
            self.out.statistics.malformed += 1;
            return;
        };
        self.out.statistics.received += 1;
        match &message {
            Message::Req(req) => self.handle_req(now, addrs, transaction_id, req, random),
            Message::Mra(mra) => self.handle_mra(now, addrs, mra),
            Message::Rej(rej) => self.handle_rej(now, addrs, rej),
            Message::Rep(rep) => self.handle_rep(now, addrs, transaction_id, rep),
            Message::Rtu(rtu) => self.handle_rtu(addrs, transaction_id, rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, addrs, transaction_id, dreq),
            Message::Drep(drep) => self.handle_drep(now, addrs, drep),
            Message::SidrReq(request) => self.handle_sidr_req(now, addrs, transaction_id, request, random),
            Message::SidrRep(response) => self.queries.handle_response(addrs, response, &mut self.out),
        }
    }

    /// Handles a connection request (vol. 1, 12.9.8; `cm_req_handler` and `cm_match_req` in `cm.c`).
    fn handle_req(
        &mut self,
        now: Time,
        addrs: AddrPair,
        transaction_id: u64,
        req: &Req,
        random: &mut impl FnMut() -> u32,
    ) {
        let address = addrs.remote;
        let duplicated = self.table.by_remote_id(address, req.ca_guid, req.local_comm_id);
        if let Some(id) = duplicated.filter(|_| !mutant!(CmDuplicateRequestIsNew)) {
            self.out.statistics.duplicates += 1;
            return self.respond_to_duplicate_req(now, id);
        }
        if let Some(stale) = self.table.by_remote_qp(address, req.ca_guid, req.qpn) {
            self.reject_request(
                addrs,
                transaction_id,
                req,
                RejectReason::StaleConnection,
                AdditionalInfo::EMPTY,
            );
            return self.handle_stale(now, stale);
        }
        if let Some(id) = self.table.by_peer(address, req.service_id)
            && self.table.get(id).is_some_and(|connection| connection.addrs == addrs)
        {
            return self.resolve_collision(addrs, transaction_id, req, id);
        }
        let Some((listener, found)) = self.table.listener(req.service_id, addrs.local) else {
            return self.reject_request(
                addrs,
                transaction_id,
                req,
                RejectReason::InvalidServiceId,
                AdditionalInfo::EMPTY,
            );
        };
        let is_full = found.waiting >= found.listen.backlog;
        let transport = match validate_req(addrs, req, found.listen.transport, &self.config) {
            Ok(transport) => transport,
            Err((reason, info)) => return self.reject_request(addrs, transaction_id, req, reason, info),
        };
        if is_full
            || !self.table.half_open().admits(addrs.remote, self.config.max_half_open)
            || self.table.len() >= self.config.max_connections
            || self.out.events.len() >= self.config.max_connections
        {
            // A live peer retransmits its REQ.
            self.out.statistics.dropped_requests += 1;
            return;
        }
        let ip = if has_ip_header(req.service_id) { req.cma_header().ok() } else { None };
        let private_data = ip.map_or(&req.private_data.as_bytes()[..], |(_, rest)| rest).to_vec();
        let local_id = self.table.unused_id(random);
        let (receive_psn, deadline) = (Psn::wrapping(random()), now + self.config.request_timeout);
        let mut connection = Connection {
            state: State::ReqReceived,
            active: false,
            peer_to_peer: false,
            listener: Some(ListenerId(listener)),
            local_id,
            remote_id: None,
            addrs,
            transaction_id,
            service: req.service_id,
            remote_guid: 0,
            remote_qpn: None,
            local_qp: None,
            receive_psn,
            send_psn: receive_psn,
            transport,
            path_mtu: self.config.path_mtu,
            pkey: self.config.pkey,
            remote_limits: RdAtomicLimits { max_dest_rd_atomic: 0, max_rd_atomic: 0 },
            ack_timeout: req.primary_path.local_ack_timeout,
            retry_count: 0,
            rnr_retry: 0,
            retransmission: None,
            deadline: Some(deadline),
            timewait_response: None,
            last_probe: None,
            timer: None,
        };
        copy_peer_attributes(&mut connection, transaction_id, req);
        let request = Request {
            id: ConnectionId(local_id),
            listener: ListenerId(listener),
            addrs,
            service: req.service_id,
            source: ip.map(|(header, _)| addrs.source(&header)),
            transport,
            remote_qpn: req.qpn,
            path_mtu: connection.path_mtu,
            rd_atomic_limits: connection.remote_limits,
            retry_count: connection.retry_count,
            rnr_retry: connection.rnr_retry,
            has_srq: req.srq,
            ece: req.ece,
            path: req.primary_path,
            private_data,
        };
        self.table.insert(connection);
        self.out.events.push_back(Event::Request(Box::new(request)));
    }

    /// Responds to a duplicate REQ (vol. 1, 12.9.8; `cm_dup_req_handler` in `cm.c`).
    fn respond_to_duplicate_req(&mut self, now: Time, id: u32) {
        let Some(connection) = self.table.get(id) else { return };
        let response = match (connection.state, connection.deadline) {
            // The application has not decided yet: the MRA makes the peer wait.
            (State::ReqReceived, Some(deadline)) if !connection.active => {
                compose::mra(connection, MessageKind::Req, deadline - now)
            }
            (State::RepSent, _) => match &connection.retransmission {
                Some(retransmission) => *retransmission.message,
                None => return,
            },
            (State::TimeWait, _) => match &connection.timewait_response {
                Some(timewait_response) => **timewait_response,
                None => compose::rej_unknown(
                    connection.transaction_id,
                    (connection.remote_id.unwrap_or(0), 0),
                    MessageKind::Req,
                    RejectReason::StaleConnection,
                    AdditionalInfo::EMPTY,
                ),
            },
            _ => return,
        };
        self.out.send(connection.addrs, response);
    }

    /// Handles a message that names a queue pair of the peer which already has a connection here. Either the peer has
    /// lost that connection (vol. 1, 12.4.1 and 12.9.8), or another host has forged the message, which contains
    /// neither communication ID of the connection. An established connection is therefore probed, and ends only if the
    /// peer confirms. A connection that the peer requested and that is not established yet ends at once.
    fn handle_stale(&mut self, now: Time, id: u32) {
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            State::Established => self.probe(now, id),
            State::ReqReceived | State::RepSent => {
                self.report_rejected(id, RejectReason::StaleConnection, AdditionalInfo::EMPTY, &[]);
                self.end(now, id, None);
            }
            _ => {}
        }
    }

    /// Sends a probe for an established connection, at most once per response timeout.
    ///
    /// The probe is a DREQ with both communication IDs and a queue pair number that no connection has. A peer without
    /// such a connection responds with a DREP. A peer that still has the connection drops the DREQ because of the wrong
    /// number (`cm_dreq_handler` in `cm.c` does both). The probe itself doesn't change the state: [`handle_drep`] ends
    /// the connection if a DREP arrives.
    ///
    /// [`handle_drep`]: Manager::handle_drep
    fn probe(&mut self, now: Time, id: u32) {
        let interval = self.config.response_timeout.duration();
        let Some(connection) = self.table.get_mut(id) else { return };
        if connection.last_probe.is_some_and(|last| now < last + interval) {
            return;
        }
        connection.last_probe = Some(now);
        self.out.statistics.probes += 1;
        self.out.send(connection.addrs, compose::dreq(&self.config, connection, Qpn::truncate(0)));
    }

    /// Resolves a peer-to-peer collision, where both sides sent a REQ. The side with the greater GUID (then the greater
    /// queue pair number) stays active, and the other becomes passive (vol. 1, 12.10.4).
    fn resolve_collision(&mut self, addrs: AddrPair, transaction_id: u64, req: &Req, id: u32) {
        let Some(connection) = self.table.get(id) else { return };
        let Some(local_qp) = connection.local_qp else { return };
        if (self.config.ca_guid, local_qp.qpn) > (req.ca_guid, req.qpn) {
            return;
        }
        match validate_req(addrs, req, connection.transport, &self.config) {
            Ok(_) if req.path_mtu == Ok(connection.path_mtu) => {}
            Ok(_) => {
                let info = mtu_info(connection.path_mtu.code());
                return self.reject_request(addrs, transaction_id, req, RejectReason::InvalidPathMtu, info);
            }
            Err((reason, info)) => return self.reject_request(addrs, transaction_id, req, reason, info),
        }
        let deadline = connection.deadline;
        if let Some(connection) = self.table.change_state(id, State::ReqReceived, deadline) {
            connection.active = false;
            copy_peer_attributes(connection, transaction_id, req);
            let private_data = match req.cma_header() {
                Ok((_, rest)) if has_ip_header(req.service_id) => rest.to_vec(),
                _ => req.private_data.as_bytes().to_vec(),
            };
            let acceptance = Acceptance {
                id: ConnectionId(id),
                remote_qpn: req.qpn,
                rd_atomic_limits: connection.rd_atomic_limits(&local_qp),
                ece: req.ece,
                has_srq: req.srq,
                private_data,
            };
            self.out.events.push_back(Event::Accepted(Box::new(acceptance)));
        }
        self.table.add_to_indexes(id);
    }

    fn reject_request(
        &mut self,
        addrs: AddrPair,
        transaction_id: u64,
        req: &Req,
        reason: RejectReason,
        info: AdditionalInfo,
    ) {
        let ids = (req.local_comm_id, 0);
        self.out.send(addrs, compose::rej_unknown(transaction_id, ids, MessageKind::Req, reason, info));
    }

    /// Handles a REP: the peer accepts (vol. 1, 12.9.7; `cm_rep_handler` and `cm_dup_rep_handler` in `cm.c`).
    fn handle_rep(&mut self, now: Time, addrs: AddrPair, transaction_id: u64, rep: &Rep) {
        let Some(connection) = self.table.get(rep.remote_comm_id).filter(|found| found.addrs == addrs) else {
            self.out.statistics.unmatched += 1;
            // Without the REJ, the peer would wait until its deadline for an RTU.
            let ids = (rep.local_comm_id, rep.remote_comm_id);
            let (reason, none) = (RejectReason::InvalidCommId, AdditionalInfo::EMPTY);
            return self
                .out
                .send(addrs, compose::rej_unknown(transaction_id, ids, MessageKind::Rep, reason, none));
        };
        let id = connection.local_id;
        if connection.state == State::ReqSent {
            return self.accept_rep(now, addrs, transaction_id, rep, id);
        }
        self.out.statistics.duplicates += 1;
        // A duplicate REP that arrives before the connection is established gets no MRA: after an MRA, the peer would
        // retransmit the REP later, which delays the recovery from a lost RTU.
        let sends_rtu = connection.active && !mutant!(CmLostRtuStaysLost);
        let response = match connection.state {
            State::TimeWait => match &connection.timewait_response {
                Some(timewait_response) => **timewait_response,
                None => return,
            },
            _ if connection.remote_id != Some(rep.local_comm_id) => return,
            State::Established if sends_rtu => compose::rtu(connection),
            _ => return,
        };
        self.out.send(addrs, response);
    }

    fn accept_rep(&mut self, now: Time, addrs: AddrPair, transaction_id: u64, rep: &Rep, id: u32) {
        if !is_connectable(rep.qpn) {
            self.out.statistics.unmatched += 1;
            return;
        }
        let stale = self.table.by_remote_qp(addrs.remote, rep.ca_guid, rep.qpn);
        if stale.is_some() || self.table.by_remote_id(addrs.remote, rep.ca_guid, rep.local_comm_id).is_some()
        {
            self.out.statistics.unmatched += 1;
            let ids = (rep.local_comm_id, rep.remote_comm_id);
            let (reason, none) = (RejectReason::StaleConnection, AdditionalInfo::EMPTY);
            self.out.send(addrs, compose::rej_unknown(transaction_id, ids, MessageKind::Rep, reason, none));
            if let Some(stale) = stale {
                self.handle_stale(now, stale);
            }
            return;
        }
        let deadline = self.table.get(id).and_then(|connection| connection.deadline);
        let Some(connection) = self.table.change_state(id, State::RepReceived, deadline) else { return };
        let Some(local_qp) = connection.local_qp else { return };
        connection.remote_id = Some(rep.local_comm_id);
        connection.remote_guid = rep.ca_guid;
        connection.remote_qpn = Some(rep.qpn);
        connection.send_psn = rep.starting_psn;
        connection.rnr_retry = rep.rnr_retry_count.into();
        connection.ack_timeout = local_qp.ack_timeout.max(rep.target_ack_delay);
        connection.remote_limits = RdAtomicLimits {
            max_dest_rd_atomic: rep.initiator_depth,
            max_rd_atomic: rep.responder_resources,
        };
        let acceptance = Acceptance {
            id: ConnectionId(id),
            remote_qpn: rep.qpn,
            rd_atomic_limits: connection.rd_atomic_limits(&local_qp),
            ece: rep.ece,
            has_srq: rep.srq,
            private_data: rep.private_data.as_bytes().to_vec(),
        };
        self.table.add_to_indexes(id);
        self.out.events.push_back(Event::Accepted(Box::new(acceptance)));
    }

    /// Handles an RTU: the peer considers the connection established (`cm_rtu_handler` in `cm.c`).
    fn handle_rtu(&mut self, addrs: AddrPair, transaction_id: u64, rtu: &Rtu) {
        let found = self.table.get(rtu.remote_comm_id);
        let Some(connection) = found.filter(|found| found.matches(addrs, rtu.local_comm_id)) else {
            self.out.statistics.unmatched += 1;
            // The REJ ends the peer's connection, which has no counterpart here.
            let ids = (rtu.local_comm_id, rtu.remote_comm_id);
            let (reason, none) = (RejectReason::InvalidCommId, AdditionalInfo::EMPTY);
            return self
                .out
                .send(addrs, compose::rej_unknown(transaction_id, ids, MessageKind::Other, reason, none));
        };
        match connection.state {
            State::RepSent => self.set_established(rtu.remote_comm_id),
            State::TimeWait => {
                if let Some(timewait_response) = &connection.timewait_response {
                    self.out.send(addrs, **timewait_response);
                }
            }
            _ => {
                self.out.statistics.duplicates += 1;
                if mutant!(CmEstablishedTwice) && connection.state == State::Established {
                    self.set_established(rtu.remote_comm_id);
                }
            }
        }
    }

    /// Handles an MRA: the peer needs more time (`cm_mra_handler` in `cm.c`). This side's deadline still applies.
    fn handle_mra(&mut self, now: Time, addrs: AddrPair, mra: &Mra) {
        let wait = mra.service_timeout.duration() + self.config.response_timeout.duration();
        let Some(connection) = self.table.get_mut(mra.remote_comm_id) else { return };
        let is_expected = connection.addrs == addrs
            && match mra.acknowledged {
                MessageKind::Req => connection.state == State::ReqSent,
                MessageKind::Rep => {
                    connection.state == State::RepSent && connection.remote_id == Some(mra.local_comm_id)
                }
                MessageKind::Other | MessageKind::Reserved => false,
            };
        if is_expected && let Some(retransmission) = &mut connection.retransmission {
            retransmission.delay_until(now + wait);
            self.table.update_timer(mra.remote_comm_id);
        }
    }

    /// Handles a REJ: the peer rejects or aborts the connection (`cm_rej_handler` and `cm_acquire_rejected_id` in
    /// `cm.c`). A REJ gets no response.
    fn handle_rej(&mut self, now: Time, addrs: AddrPair, rej: &Rej) {
        let names_adapter = rej.remote_comm_id == 0 && rej.reason == RejectReason::Timeout;
        let id = if names_adapter {
            // A peer that reached its deadline before it knew this side's ID identifies itself by its GUID.
            let guid = rej.additional_info.as_bytes().first_chunk().map(|guid| u64::from_be_bytes(*guid));
            guid.and_then(|guid| self.table.by_remote_id(addrs.remote, guid, rej.local_comm_id))
        } else {
            Some(rej.remote_comm_id)
        };
        let found = id.and_then(|id| self.table.get(id)).filter(|connection| {
            // Only a peer that has received no REP lacks this side's ID.
            let lacks_id = matches!(connection.state, State::ReqReceived | State::RepSent);
            connection.addrs == addrs && (lacks_id || !names_adapter)
        });
        let Some(connection) = found else {
            self.out.statistics.unmatched += 1;
            if mutant!(CmRejAnsweredByRej) {
                let ids = (rej.local_comm_id, rej.remote_comm_id);
                let (reason, none) = (RejectReason::InvalidCommId, AdditionalInfo::EMPTY);
                self.out.send(addrs, compose::rej_unknown(0, ids, MessageKind::Other, reason, none));
            }
            return;
        };
        let (id, state) = (connection.local_id, connection.state);
        // A peer that knows both IDs must name both; the REJ of a REQ needs only the one in the REQ.
        if connection.remote_id.is_some_and(|remote_id| rej.local_comm_id != remote_id) {
            self.out.statistics.unmatched += 1;
            return;
        }
        match state {
            State::ReqSent => {
                self.report_rejected(id, rej.reason, rej.additional_info, rej.private_data.as_bytes());
                if rej.reason == RejectReason::StaleConnection {
                    self.end(now, id, None);
                } else {
                    self.table.remove(id);
                }
            }
            State::RepReceived | State::ReqReceived | State::RepSent => {
                self.report_rejected(id, rej.reason, rej.additional_info, rej.private_data.as_bytes());
                self.end(now, id, None);
            }
            State::Established | State::DreqSent => {
                self.out.events.push_back(Event::Disconnected(ConnectionId(id)));
                self.end(now, id, None);
            }
            State::TimeWait => self.out.statistics.duplicates += 1,
        }
    }

    fn report_rejected(&mut self, id: u32, reason: RejectReason, info: AdditionalInfo, private_data: &[u8]) {
        let rejection = Rejection { id: ConnectionId(id), reason, info, private_data: private_data.to_vec() };
        self.out.events.push_back(Event::Rejected(Box::new(rejection)));
    }

    /// Handles a DREQ: the peer disconnects (vol. 1, 12.9.8; `cm_dreq_handler` in `cm.c`). The DREQ gets a DREP at
    /// once, even if the DREQ is a duplicate or the connection is unknown. A DREQ is dropped if it names another queue
    /// pair, or a connection that the peer can't have established.
    fn handle_dreq(&mut self, now: Time, addrs: AddrPair, transaction_id: u64, dreq: &Dreq) {
        let found = self.table.get(dreq.remote_comm_id);
        let Some(connection) = found.filter(|found| found.matches(addrs, dreq.local_comm_id)) else {
            self.out.statistics.unmatched += 1;
            return self.out.send(addrs, compose::drep(transaction_id, dreq));
        };
        if connection.local_qp.map(|local_qp| local_qp.qpn) != Some(dreq.remote_qpn) {
            self.out.statistics.unmatched += 1;
            return;
        }
        match connection.state {
            // The peer considers the connection established, even if its RTU was lost, or this side has sent no RTU.
            State::RepReceived | State::RepSent | State::Established | State::DreqSent => {
                self.out.send(addrs, compose::drep(transaction_id, dreq));
                self.out.events.push_back(Event::Disconnected(ConnectionId(dreq.remote_comm_id)));
                self.end(now, dreq.remote_comm_id, None);
            }
            State::TimeWait => {
                self.out.statistics.duplicates += 1;
                self.out.send(addrs, compose::drep(transaction_id, dreq));
            }
            State::ReqSent | State::ReqReceived => self.out.statistics.unmatched += 1,
        }
    }

    /// Handles a DREP: the peer confirms a disconnect (`cm_drep_handler` in `cm.c`), or responds to a
    /// [probe](Manager::probe) because it has no such connection.
    fn handle_drep(&mut self, now: Time, addrs: AddrPair, drep: &Drep) {
        let found = self.table.get(drep.remote_comm_id);
        let found = found.filter(|found| found.matches(addrs, drep.local_comm_id));
        let is_awaited = found.is_some_and(|connection| match connection.state {
            State::DreqSent => true,
            State::Established => connection.last_probe.is_some(),
            _ => false,
        });
        if is_awaited {
            self.out.events.push_back(Event::Disconnected(ConnectionId(drep.remote_comm_id)));
            self.end(now, drep.remote_comm_id, None);
        } else {
            self.out.statistics.unmatched += 1;
        }
    }
}

/// Copies the peer's attributes from its REQ.
fn copy_peer_attributes(connection: &mut Connection, transaction_id: u64, req: &Req) {
    connection.transaction_id = transaction_id;
    connection.remote_id = Some(req.local_comm_id);
    connection.remote_guid = req.ca_guid;
    connection.remote_qpn = Some(req.qpn);
    connection.send_psn = req.starting_psn;
    if let Ok(mtu) = req.path_mtu {
        connection.path_mtu = mtu;
    }
    connection.remote_limits =
        RdAtomicLimits { max_dest_rd_atomic: req.initiator_depth, max_rd_atomic: req.responder_resources };
    connection.ack_timeout = req.primary_path.local_ack_timeout;
    connection.retry_count = req.retry_count.into();
    connection.rnr_retry = req.rnr_retry_count.into();
}

/// Returns the transport of a valid REQ, or the reason to reject it.
fn validate_req(
    addrs: AddrPair,
    req: &Req,
    wanted: Transport,
    config: &super::Config,
) -> Result<Transport, (RejectReason, AdditionalInfo)> {
    let plain = |reason| (reason, AdditionalInfo::EMPTY);
    let transport = match req.transport {
        TransportService::ReliableConnection => Transport::Rc,
        TransportService::UnreliableConnection => Transport::Uc,
        _ => return Err(plain(RejectReason::InvalidTransportType)),
    };
    if transport != wanted {
        return Err(plain(RejectReason::InvalidTransportType));
    }
    // The path must match the addresses that the REQ was received with: responses are sent only there. A wrong
    // partition gets the same reason, because Linux finds no GID table entry for such a path (`cm_init_av_by_path` in
    // `cm.c`).
    let path = &req.primary_path;
    if Gid::from(addrs.local).bytes() != path.remote_gid.octets()
        || Gid::from(addrs.remote).bytes() != path.local_gid.octets()
        || req.pkey != config.pkey
    {
        return Err((RejectReason::InvalidPrimaryGid, compose::gid_info(addrs.local)));
    }
    if req.path_mtu.map_or(true, |mtu| mtu > config.path_mtu) {
        return Err((RejectReason::InvalidPathMtu, mtu_info(config.path_mtu.code())));
    }
    if !is_connectable(req.qpn) {
        return Err(plain(RejectReason::UnsupportedRequest));
    }
    if has_ip_header(req.service_id) {
        match req.cma_header() {
            Ok((header, _)) if addrs.are_named_by(&header) => {}
            _ => return Err(plain(RejectReason::ConsumerReject)),
        }
    }
    Ok(transport)
}

fn mtu_info(code: u8) -> AdditionalInfo {
    AdditionalInfo::new(&[code]).unwrap_or_default()
}
