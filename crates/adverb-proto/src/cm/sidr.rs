//! Queries for UD queue pairs: service ID resolution (SIDR; vol. 1, 12.11).

use core::net::SocketAddr;
use std::collections::{BTreeMap, HashMap};

use adverb_wire::cm::{
    AdditionalInfo, Ece, Mad, Message, PrivateData, ServiceId, SidrRep, SidrReq, SidrStatus,
};

use super::compose;
use super::event::{Query, Resolution};
use super::manager::{Manager, Outbox};
use super::parameters::{has_ip_header, private_data};
use super::sources::Sources;
use super::timers::{Retransmission, Timers};
use super::{AddrPair, CallError, Event, ListenerId, QueryId, ResolveParams};
use crate::Time;
use crate::hash::BuildNumberHasher;
use crate::types::{Qpn, Transport};

/// The queries that this side and peers sent.
#[derive(Debug, Default)]
pub(super) struct Queries {
    entries: HashMap<u32, Entry, BuildNumberHasher>,
    /// Peers' queries, by addresses and the peer's request ID.
    by_peer: BTreeMap<(AddrPair, u32), u32>,
    /// The number of peers' queries that the application has not responded to, by listener.
    waiting: BTreeMap<ListenerId, usize>,
    timers: Timers,
    /// Slots that peers' queries occupy, by source.
    sources: Sources,
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
    addrs: AddrPair,
    /// The request ID of the querying side.
    request_id: u32,
    service: ServiceId,
    transaction_id: u64,
    deadline: Time,
    timer: Option<Time>,
}

#[derive(Debug)]
enum Stage {
    /// This side sent the query.
    Sent(Retransmission<Box<Mad>>),
    /// A peer sent the query, and the application has to respond.
    Waiting(ListenerId),
    /// A peer sent the query, and this is the response, which is retransmitted if the peer repeats the query.
    Responded(Box<Mad>),
}

impl Manager {
    /// Queries a peer for the UD queue pair of a service. By the deadline, the manager reports
    /// [`Resolved`](Event::Resolved), [`QueryRejected`](Event::QueryRejected) or
    /// [`QueryTimedOut`](Event::QueryTimedOut).
    ///
    /// # Errors
    ///
    /// Returns:
    ///
    /// - [`CallError::AddressFamilyMismatch`] if one address is IPv4 and the other IPv6.
    /// - [`CallError::PrivateDataTooLong`] if the private data is too long.
    /// - [`CallError::TooMany`] if there are [`Config::max_connections`](super::Config::max_connections) queries.
    pub fn resolve_service(
        &mut self,
        now: Time,
        resolve: &ResolveParams<'_>,
        random: &mut impl FnMut() -> u32,
    ) -> Result<QueryId, CallError> {
        let ResolveParams { addrs, service, source_port, deadline, .. } = *resolve;
        if !addrs.is_one_family() {
            return Err(CallError::AddressFamilyMismatch);
        }
        if self.queries.entries.len() >= self.config.max_connections {
            return Err(CallError::TooMany);
        }
        let private_data = private_data(addrs, service, source_port, resolve.private_data)?;
        let id = self.queries.unused_id(random);
        let transaction_id = compose::transaction_id(&self.config, id);
        let request = SidrReq { request_id: id, pkey: self.config.pkey, service_id: service, private_data };
        let mad = Mad { transaction_id, message: Message::SidrReq(request) };
        let stage = Stage::Sent(self.retransmission(now, mad));
        self.queries.insert(
            id,
            Entry { stage, addrs, request_id: id, service, transaction_id, deadline, timer: None },
        );
        self.out.send(addrs, mad);
        Ok(QueryId(id))
    }

    /// Replies to a peer's [query](Event::Query) with the UD queue pair of the service and its queue key, which in
    /// `rdma_cm`'s UDP port space is [`UDP_QKEY`](super::UDP_QKEY).
    ///
    /// # Errors
    ///
    /// Returns [`CallError::Unknown`] if the query does not exist, was already replied to or rejected, or has expired
    /// after [`Config::request_timeout`](super::Config::request_timeout), and [`CallError::PrivateDataTooLong`] if the
    /// private data is longer than 136 bytes.
    pub fn accept_query(
        &mut self,
        now: Time,
        id: QueryId,
        qpn: Qpn,
        qkey: u32,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        let private_data = PrivateData::new(private_data).map_err(CallError::PrivateDataTooLong)?;
        self.respond(now, id, SidrStatus::Valid, qpn, qkey, private_data)
    }

    /// Rejects a peer's [query](Event::Query).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`accept_query`](Manager::accept_query).
    pub fn reject_query(
        &mut self,
        now: Time,
        id: QueryId,
        status: SidrStatus,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        let private_data = PrivateData::new(private_data).map_err(CallError::PrivateDataTooLong)?;
        self.respond(now, id, status, Qpn::truncate(0), 0, private_data)
    }

    fn respond(
        &mut self,
        now: Time,
        id: QueryId,
        status: SidrStatus,
        qpn: Qpn,
        qkey: u32,
        private_data: PrivateData<136>,
    ) -> Result<(), CallError> {
        let Queries { entries, waiting, timers, .. } = &mut self.queries;
        let entry = entries.get_mut(&id.0).ok_or(CallError::Unknown)?;
        let Stage::Waiting(listener) = entry.stage else { return Err(CallError::Unknown) };
        decrement_waiting(waiting, listener);
        let response = SidrRep {
            qpn,
            qkey,
            private_data,
            ..response_without_qp(entry.request_id, entry.service, status)
        };
        let mad = Mad { transaction_id: entry.transaction_id, message: Message::SidrRep(response) };
        entry.stage = Stage::Responded(Box::new(mad));
        entry.deadline = now + self.config.timewait;
        timers.set(id.0, &mut entry.timer, Some(entry.deadline));
        self.out.send(entry.addrs, mad);
        Ok(())
    }

    /// Handles a peer's query (`cm_sidr_req_handler` in `cm.c`).
    pub(super) fn handle_sidr_req(
        &mut self,
        now: Time,
        addrs: AddrPair,
        transaction_id: u64,
        request: &SidrReq,
        random: &mut impl FnMut() -> u32,
    ) {
        let SidrReq { request_id, service_id: service, .. } = *request;
        if let Some(entry) = self.queries.by_peer.get(&(addrs, request_id)) {
            self.out.statistics.duplicates += 1;
            if let Some(Entry { stage: Stage::Responded(response), .. }) = self.queries.entries.get(entry) {
                self.out.send(addrs, **response);
            }
            return;
        }
        let mut reject = |status| {
            let message = Message::SidrRep(response_without_qp(request_id, service, status));
            self.out.send(addrs, Mad { transaction_id, message });
        };
        let found = self.table.listener(service, addrs.local);
        let Some((listener, found)) = found.filter(|(_, found)| found.listen.transport == Transport::Ud)
        else {
            return reject(SidrStatus::ServiceIdNotSupported);
        };
        let (source, data) = match (has_ip_header(service), request.cma_header()) {
            (false, _) => (None, &request.private_data.as_bytes()[..]),
            (true, Ok((header, data))) if addrs.are_named_by(&header) => (Some(addrs.source(&header)), data),
            _ => return reject(SidrStatus::Rejected),
        };
        let id = ListenerId(listener);
        if self.queries.waiting.get(&id).is_some_and(|waiting| *waiting >= found.listen.backlog)
            || found.listen.backlog == 0
            || !self.queries.sources.admits(addrs.remote, self.config.max_half_open)
            || self.out.events.len() >= self.config.max_connections
        {
            self.out.statistics.dropped_requests += 1;
            return;
        }
        self.add_query(now, addrs, transaction_id, request, id, (source, data), random);
    }

    #[allow(clippy::too_many_arguments, reason = "the second half of `handle_sidr_req`")]
    fn add_query(
        &mut self,
        now: Time,
        addrs: AddrPair,
        transaction_id: u64,
        request: &SidrReq,
        listener: ListenerId,
        (source, data): (Option<SocketAddr>, &[u8]),
        random: &mut impl FnMut() -> u32,
    ) {
        let id = self.queries.unused_id(random);
        let service = request.service_id;
        *self.queries.waiting.entry(listener).or_default() += 1;
        self.queries.by_peer.insert((addrs, request.request_id), id);
        self.queries.sources.add(addrs.remote);
        self.queries.insert(
            id,
            Entry {
                stage: Stage::Waiting(listener),
                addrs,
                request_id: request.request_id,
                service,
                transaction_id,
                deadline: now + self.config.request_timeout,
                timer: None,
            },
        );
        let query = Query { id: QueryId(id), listener, addrs, service, source, private_data: data.to_vec() };
        self.out.events.push_back(Event::Query(Box::new(query)));
    }
}

impl Queries {
    pub(super) fn next(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Returns the numbers of queries, timers and index entries.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.entries.len(), self.timers.len(), self.by_peer.len() + self.waiting.len() + self.sources.len())
    }

    fn unused_id(&self, random: &mut impl FnMut() -> u32) -> u32 {
        let mut id = random();
        while id == 0 || self.entries.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        id
    }

    fn insert(&mut self, id: u32, mut entry: Entry) {
        let next = entry.next();
        self.timers.set(id, &mut entry.timer, next);
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: u32) -> Option<Entry> {
        let mut entry = self.entries.remove(&id)?;
        self.timers.set(id, &mut entry.timer, None);
        if let Stage::Waiting(listener) = entry.stage {
            decrement_waiting(&mut self.waiting, listener);
        }
        if !matches!(entry.stage, Stage::Sent(_)) {
            self.by_peer.remove(&(entry.addrs, entry.request_id));
            self.sources.remove(entry.addrs.remote);
        }
        Some(entry)
    }

    pub(super) fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        while let Some(id) = self.timers.due(now) {
            let Some(entry) = self.entries.get_mut(&id) else { return };
            if entry.deadline <= now {
                if let Some(Entry { stage: Stage::Sent(_), .. }) = self.remove(id) {
                    out.events.push_back(Event::QueryTimedOut(QueryId(id)));
                }
                continue;
            }
            if let Stage::Sent(retransmission) = &mut entry.stage
                && let Some(mad) = retransmission.poll(now)
            {
                out.statistics.retransmitted += 1;
                out.send(entry.addrs, **mad);
            }
            let next = entry.next();
            self.timers.set(id, &mut entry.timer, next);
        }
    }

    /// Handles the response to a query (`cm_sidr_rep_handler` in `cm.c`).
    pub(super) fn handle_response(&mut self, addrs: AddrPair, response: &SidrRep, out: &mut Outbox) {
        let id = response.request_id;
        let is_expected = self.entries.get(&id).is_some_and(|entry| {
            matches!(entry.stage, Stage::Sent(_))
                && entry.addrs == addrs
                && entry.service == response.service_id
        });
        if !is_expected {
            out.statistics.unmatched += 1;
            return;
        }
        self.remove(id);
        out.events.push_back(match response.status {
            SidrStatus::Valid => Event::Resolved(Box::new(Resolution {
                id: QueryId(id),
                addrs,
                qpn: response.qpn,
                qkey: response.qkey,
                ece: response.ece,
                private_data: response.private_data.as_bytes().to_vec(),
            })),
            status => Event::QueryRejected {
                id: QueryId(id),
                status,
                private_data: response.private_data.as_bytes().to_vec(),
            },
        });
    }
}

impl Entry {
    fn next(&self) -> Option<Time> {
        let retransmission = match &self.stage {
            Stage::Sent(retransmission) => retransmission.next(),
            _ => None,
        };
        Some(retransmission.map_or(self.deadline, |at| at.min(self.deadline)))
    }
}

/// Subtracts 1 from the number of queries of this listener that wait for the application.
fn decrement_waiting(waiting: &mut BTreeMap<ListenerId, usize>, listener: ListenerId) {
    if let Some(count) = waiting.get_mut(&listener) {
        *count -= 1;
        if *count == 0 {
            waiting.remove(&listener);
        }
    }
}

/// Returns a response without a queue pair.
fn response_without_qp(request_id: u32, service_id: ServiceId, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id,
        status,
        additional_info: AdditionalInfo::EMPTY,
        ece: Ece::NONE,
        qpn: Qpn::truncate(0),
        service_id,
        qkey: 0,
        private_data: PrivateData::EMPTY,
    }
}
