//! The thread that turns the NIC's connection manager events into events of identifiers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::cm::{self, Acceptance, AddrPair, Query, RdAtomicLimits, Request, Resolution};
use adverb_proto::types::Gid;
use adverb_soft::CmEvent;
use adverb_sys::*;
use adverb_wire::cm::{RejectReason, ServiceId};
use libc::c_int;

use super::channel::Event;
use super::id::{DISCONNECT_TIMEOUT, Id, Stage};
use super::manager::{Manager, Peer, Table};
use crate::nic::Listed;
use crate::signals::BlockedSignals;

/// Starts the thread.
pub(super) fn start(manager: &'static Manager) -> io::Result<()> {
    let dispatch = move || _ = crate::entry::catch(|| run(manager));
    let _blocked = BlockedSignals::new();
    std::thread::Builder::new().name("adverb-cm".to_owned()).spawn(dispatch).map(drop)
}

fn run(manager: &Manager) {
    let mut ready = libc::epoll_event { events: 0, u64: 0 };
    loop {
        let timeout = repeat(manager).map_or(-1, |timeout| timeout.as_millis() as c_int + 1);
        // SAFETY: the pointer is to one event. After an error the thread polls the channels, and waits again.
        unsafe { libc::epoll_wait(manager.readiness.as_raw_fd(), &raw mut ready, 1, timeout) };
        let mut channels = vec![Arc::clone(&manager.events)];
        channels.extend(manager.table.lock().listeners.values().map(|listener| Arc::clone(&listener.events)));
        for channel in channels {
            while let Some(event) = channel.take() {
                dispatch(manager, event);
            }
        }
    }
}

/// Repeats the requests that are due, and returns the time until the next one.
fn repeat(manager: &Manager) -> Option<Duration> {
    let mut table = manager.table.lock();
    let now = Instant::now();
    while let Some(at) = table.repeats.iter().position(|(due, _)| *due <= now) {
        let (_, rejected) = table.repeats.swap_remove(at);
        // The identifier may have been destroyed.
        let Some(peer) = table.connections.remove(&rejected) else { continue };
        let Some(request) = &peer.request else { continue };
        // SAFETY: an identifier in the table is alive.
        let id = unsafe { peer.id.0.as_ref() };
        match request.send(manager) {
            Ok(connection) => {
                id.state.lock().stage = Stage::Connected(connection);
                table.connections.insert(connection, peer);
            }
            Err(errno) => id.put_locked(Event::new(id, RDMA_CM_EVENT_CONNECT_ERROR, -errno)),
        }
    }
    table.repeats.iter().map(|(due, _)| due.saturating_duration_since(now)).min()
}

/// Delivers an event.
fn dispatch(manager: &Manager, event: CmEvent) {
    let mut table = manager.table.lock();
    let CmEvent::Event(event) = event else {
        return table.fail();
    };
    match event {
        cm::Event::Request(request) => table.request(manager, *request),
        cm::Event::Query(query) => table.query(manager, *query),
        cm::Event::Accepted(acceptance) => table.accepted(*acceptance),
        // A connector gets no event here, because its program already got one for the acceptance.
        cm::Event::Established(id) if table.is_connector(id) => {}
        cm::Event::Established(id) => table.put_event(id, RDMA_CM_EVENT_ESTABLISHED, 0),
        cm::Event::Rejected(rejection) => {
            let Some(peer) = table.connections.get(&rejection.id) else { return };
            let now = Instant::now();
            if rejection.reason == RejectReason::InvalidServiceId
                && peer.request.as_ref().is_some_and(|request| now < request.repeat_until)
            {
                return table.repeats.push((now + REPEAT_INTERVAL, rejection.id));
            }
            // SAFETY: an identifier in the table is alive.
            let id = unsafe { peer.id.0.as_ref() };
            let event = Event::new(id, RDMA_CM_EVENT_REJECTED, c_int::from(rejection.reason.code()));
            id.put_locked(event.with_connection(rdma_conn_param::zeroed(), rejection.private_data));
        }
        cm::Event::Unreachable(id) => table.put_event(id, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        cm::Event::Disconnected(id) => table.put_event(id, RDMA_CM_EVENT_DISCONNECTED, 0),
        cm::Event::TimewaitExit { id, .. } => {
            table.put_event(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
            table.connections.remove(&id);
        }
        cm::Event::Resolved(resolution) => table.resolved(*resolution),
        cm::Event::QueryRejected { id, status, private_data } => {
            let Some(listed) = table.queries.remove(&id) else { return };
            // SAFETY: an identifier in the table is alive.
            let id = unsafe { listed.0.as_ref() };
            let event = Event::new(id, RDMA_CM_EVENT_UNREACHABLE, c_int::from(status.code()));
            id.put_locked(event.with_datagram(rdma_ud_param::zeroed(), private_data));
        }
        cm::Event::QueryTimedOut(id) => {
            let Some(listed) = table.queries.remove(&id) else { return };
            // SAFETY: an identifier in the table is alive.
            let id = unsafe { listed.0.as_ref() };
            id.put_locked(Event::new(id, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT));
        }
        // An event of a later version of the connection manager.
        _ => {}
    }
}

impl Table {
    /// Whether this side requested a connection.
    fn is_connector(&self, connection: cm::ConnectionId) -> bool {
        self.connections.get(&connection).is_some_and(|peer| peer.request.is_some())
    }

    /// Adds an event without parameters to a connection's identifier.
    fn put_event(&self, connection: cm::ConnectionId, event: rdma_cm_event_type, status: c_int) {
        if let Some(peer) = self.connections.get(&connection) {
            // SAFETY: an identifier in the table is alive.
            let id = unsafe { peer.id.0.as_ref() };
            id.put_locked(Event::new(id, event, status));
        }
    }

    /// Adds an event to each identifier: the device has failed.
    fn fail(&self) {
        let connections = self.connections.values().map(|peer| &peer.id);
        let listeners = self.listeners.values().map(|listener| &listener.id);
        for listed in connections.chain(self.queries.values()).chain(listeners) {
            // SAFETY: an identifier in the table is alive.
            let id = unsafe { listed.0.as_ref() };
            id.put_locked(Event::new(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
        }
    }

    /// Makes an identifier for a connection request.
    fn request(&mut self, manager: &Manager, request: Request) {
        let cm = manager.cm();
        // This thread also handles the later events of the request. The call fails if the peer has abandoned the
        // request.
        if cm.subscribe(request.id, &manager.events).is_err() {
            return;
        }
        let peer = Incoming { addrs: request.addrs, service: request.service, source: request.source };
        let Some((listener, id)) = self.accept(manager, request.listener, &peer) else {
            return cm.abort(request.id, DISCONNECT_TIMEOUT);
        };
        let limits = request.rd_atomic_limits;
        {
            let mut state = id.state.lock();
            state.stage = Stage::Connected(request.id);
            state.requested_limits = limits;
        }
        self.connections.insert(request.id, Peer { id: Listed(NonNull::from(id)), request: None });
        let mut conn = connection_param(limits);
        (conn.retry_count, conn.rnr_retry_count) = (request.retry_count, request.rnr_retry);
        (conn.srq, conn.qp_num) = (u8::from(request.has_srq), request.remote_qpn.get());
        conn.flow_control = 1;
        let mut event =
            Event::new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0).with_connection(conn, request.private_data);
        event.base.get_mut().listen_id = listener.as_ptr();
        listener.put_locked(event);
    }

    /// Makes an identifier for a peer's query.
    fn query(&mut self, manager: &Manager, query: Query) {
        let peer = Incoming { addrs: query.addrs, service: query.service, source: query.source };
        let Some((listener, id)) = self.accept(manager, query.listener, &peer) else {
            return manager.cm().cancel_query(query.id);
        };
        id.state.lock().stage = Stage::Queried(query.id);
        let ud = rdma_ud_param::zeroed();
        let mut event =
            Event::new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0).with_datagram(ud, query.private_data);
        event.base.get_mut().listen_id = listener.as_ptr();
        listener.put_locked(event);
    }

    /// Makes an identifier for a peer of a listener. Returns `None` if the listener is closed, or if the program has not
    /// taken as many requests as its backlog, as in the kernel.
    fn accept(
        &self,
        manager: &Manager,
        listener: cm::ListenerId,
        peer: &Incoming,
    ) -> Option<(&'static Id, &'static Id)> {
        let listener = self.listeners.get(&listener)?;
        // SAFETY: an identifier in the table is alive.
        let is_full = unsafe { listener.id.0.as_ref() }.state.lock().backlog == 0;
        if is_full {
            return None;
        }
        // SAFETY: an identifier in the table is alive; its fields don't change while it listens.
        let (listener, id) = unsafe {
            let listener: &'static Id = &*listener.id.0.as_ptr();
            let base = listener.as_ptr();
            (listener, Id::leak((*base).channel, (*base).context, (*base).ps, (*base).qp_type))
        };
        if id.attach_device(manager).is_err() {
            // SAFETY: no program knows the identifier, which `leak` made with a box.
            drop(unsafe { Box::from_raw(id.as_ptr().cast::<Id>()) });
            return None;
        }
        let port = peer.service.port().unwrap_or_default();
        id.set_local(SocketAddr::new(Gid::from(peer.addrs.local).udp_addr().ip(), port));
        let source = peer.source.map_or(0, |source| source.port());
        let address = Gid::from(peer.addrs.remote).udp_addr().ip();
        id.set_peer(SocketAddr::new(address, source), peer.addrs.remote);
        id.state.lock().remote = Some(peer.addrs.remote);
        id.set_path(manager);
        listener.state.lock().backlog -= 1;
        Some((listener, id))
    }

    fn accepted(&self, acceptance: Acceptance) {
        let Some(peer) = self.connections.get(&acceptance.id) else { return };
        // SAFETY: an identifier in the table is alive.
        let id = unsafe { peer.id.0.as_ref() };
        let mut conn = connection_param(acceptance.rd_atomic_limits);
        (conn.srq, conn.qp_num) = (u8::from(acceptance.has_srq), acceptance.remote_qpn.get());
        conn.flow_control = 1;
        let event = Event::new(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
        id.put_locked(event.with_connection(conn, acceptance.private_data));
    }

    fn resolved(&mut self, resolution: Resolution) {
        let Some(listed) = self.queries.remove(&resolution.id) else { return };
        // SAFETY: an identifier in the table is alive.
        let id = unsafe { listed.0.as_ref() };
        let mut ud = rdma_ud_param::zeroed();
        (ud.qp_num, ud.qkey) = (resolution.qpn.get(), resolution.qkey);
        ud.ah_attr = address_of(Gid::from(resolution.addrs.remote), id.state.lock().options.traffic_class);
        let event = Event::new(id, RDMA_CM_EVENT_ESTABLISHED, 0);
        id.put_locked(event.with_datagram(ud, resolution.private_data));
    }
}

/// The addresses of a peer that requests something.
struct Incoming {
    addrs: AddrPair,
    service: ServiceId,
    source: Option<SocketAddr>,
}

fn connection_param(limits: RdAtomicLimits) -> rdma_conn_param {
    let mut conn = rdma_conn_param::zeroed();
    (conn.responder_resources, conn.initiator_depth) = (limits.max_dest_rd_atomic, limits.max_rd_atomic);
    conn
}

/// Returns the attributes of an address handle for a GID.
pub(super) fn address_of(gid: Gid, traffic_class: u8) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = gid.bytes().into();
    (attr.grh.hop_limit, attr.grh.traffic_class) = (HOP_LIMIT, traffic_class);
    (attr.is_global, attr.port_num) = (1, 1);
    attr
}

/// The hop limit of packets to peers, Linux's default.
pub(super) const HOP_LIMIT: u8 = 64;

/// The time between requests while no process listens.
const REPEAT_INTERVAL: Duration = Duration::from_millis(20);
