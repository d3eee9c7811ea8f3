//! Connecting, accepting, rejecting and disconnecting.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use adverb_proto::Time;
use adverb_proto::cm::{
    AddrPair, ConnectionId, LocalQp, RdAtomicLimits, ResolveParams, State as ConnectionState, UDP_QKEY,
};
use adverb_proto::types::{Gid, Qpn};
use adverb_sys::*;
use adverb_wire::cm::{ServiceId, Timeout};
use libc::{c_int, c_void};

use super::dispatch::address_of;
use super::id::{CONNECT_TIMEOUT, DISCONNECT_TIMEOUT, Id, Stage};
use super::manager::{Manager, OwnRequest, Peer};
use super::{Status, errno_of, status};
use crate::nic::Listed;
use crate::query::MAX_RD_ATOMIC;

/// Returns private data of a program.
///
/// # Safety
///
/// The pointer is NULL or valid for reads of `length` bytes.
unsafe fn private_data<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(data.cast(), length.into()) }
}

/// Returns a limit on outstanding READs and atomics: `default` if the program requests the maximum, or states no limit.
fn limit(wanted: Option<u8>, default: u8) -> Result<u8, c_int> {
    match wanted {
        None | Some(RDMA_MAX_RESP_RES) => Ok(default.min(MAX_RD_ATOMIC)),
        Some(wanted) if wanted > MAX_RD_ATOMIC => Err(libc::EINVAL),
        Some(wanted) => Ok(wanted),
    }
}

impl Id {
    /// Returns the local queue pair with the attributes that a program requests. `defaults` are the limits that it gets if
    /// it requests the maximum, or states none.
    fn local_qp(&self, param: Option<&rdma_conn_param>, defaults: RdAtomicLimits) -> Result<LocalQp, c_int> {
        let (qpn, has_srq) = match (self.qp(), param) {
            // SAFETY: the queue pair is alive.
            (Some(qp), _) => unsafe { ((*qp).qp_num, !(*qp).srq.is_null()) },
            (None, Some(param)) => (param.qp_num, param.srq != 0),
            (None, None) => return Err(libc::EINVAL),
        };
        let mut local_qp = LocalQp::new(Qpn::truncate(qpn));
        local_qp.has_srq = has_srq;
        local_qp.rd_atomic_limits = RdAtomicLimits {
            max_dest_rd_atomic: limit(
                param.map(|param| param.responder_resources),
                defaults.max_dest_rd_atomic,
            )?,
            max_rd_atomic: limit(param.map(|param| param.initiator_depth), defaults.max_rd_atomic)?,
        };
        // The fields have three bits.
        local_qp.retry_count = param.map_or(7, |param| param.retry_count).min(7);
        local_qp.rnr_retry = param.map_or(7, |param| param.rnr_retry_count).min(7);
        let ack_timeout = self.state.lock().options.ack_timeout.unwrap_or(ACK_TIMEOUT);
        local_qp.ack_timeout = Timeout::new(ack_timeout).ok_or(libc::EINVAL)?;
        Ok(local_qp)
    }

    fn connect(&self, param: Option<&rdma_conn_param>) -> Result<(), c_int> {
        let manager = Manager::get()?;
        let (stage, remote, traffic_class) = {
            let state = self.state.lock();
            (state.stage, state.remote, state.options.traffic_class)
        };
        let is_resolved =
            stage == Stage::RouteResolved || self.is_datagram() && stage == Stage::AddressResolved;
        let (true, Some(remote)) = (is_resolved, remote) else { return Err(libc::EINVAL) };
        let (local, peer) = (self.local().ok_or(libc::EINVAL)?, self.peer().ok_or(libc::EINVAL)?);
        let addrs = AddrPair { local: manager.local(), remote };
        let connect_data = std::mem::take(&mut self.state.lock().connect_data);
        let data = match param {
            // SAFETY: the parameters are those of a call that isn't over.
            Some(param) if !param.private_data.is_null() => unsafe {
                private_data(param.private_data, param.private_data_len)
            },
            _ => &connect_data,
        };
        if self.is_datagram() {
            let resolve = ResolveParams {
                addrs,
                service: ServiceId::udp_port(peer.port()),
                source_port: local.port(),
                private_data: data,
                deadline: Time::ZERO,
            };
            let mut table = manager.table.lock();
            let query = manager.cm().resolve_service(resolve, CONNECT_TIMEOUT, &manager.events);
            let query = query.map_err(errno_of)?;
            table.queries.insert(query, Listed(NonNull::from(self)));
            self.state.lock().stage = Stage::Querying(query);
            return Ok(());
        }
        let max_limits = RdAtomicLimits { max_dest_rd_atomic: MAX_RD_ATOMIC, max_rd_atomic: MAX_RD_ATOMIC };
        let local_qp = self.local_qp(param, max_limits)?;
        let service = ServiceId::tcp_port(peer.port());
        let request = OwnRequest {
            addrs,
            service,
            source_port: local.port(),
            local_qp,
            traffic_class,
            private_data: data.to_vec(),
            repeat_until: Instant::now() + LISTEN_GRACE,
        };
        // The lock keeps the dispatching thread from handling the response before the connection is in the table.
        let mut table = manager.table.lock();
        let connection = request.send(manager)?;
        let id = Listed(NonNull::from(self));
        table.connections.insert(connection, Peer { id, request: Some(Box::new(request)) });
        let mut state = self.state.lock();
        (state.stage, state.local_qp) = (Stage::Connected(connection), Some(local_qp));
        Ok(())
    }

    fn accept(&self, param: Option<&rdma_conn_param>) -> Result<(), c_int> {
        let manager = Manager::get()?;
        // SAFETY: the parameters are those of a call that isn't over.
        let data = param
            .map_or(&[][..], |param| unsafe { private_data(param.private_data, param.private_data_len) });
        let (stage, requested) = {
            let state = self.state.lock();
            (state.stage, state.requested_limits)
        };
        match stage {
            Stage::Queried(query) => {
                let qpn = match (self.qp(), param) {
                    // SAFETY: the queue pair is alive.
                    (Some(qp), _) => unsafe { (*qp).qp_num },
                    (None, Some(param)) => param.qp_num,
                    (None, None) => return Err(libc::EINVAL),
                };
                let accepted = manager.cm().accept_query(query, Qpn::truncate(qpn), UDP_QKEY, data);
                accepted.map_err(errno_of)?;
                self.state.lock().stage = Stage::Resolved;
                if self.state.lock().is_sync {
                    self.acknowledge_last();
                }
                Ok(())
            }
            Stage::Connected(connection) => {
                let local_qp = self.local_qp(param, requested)?;
                self.state.lock().local_qp = Some(local_qp);
                if self.qp().is_some() {
                    self.move_qp_to_rts()?;
                }
                let accepted = manager.cm().accept(connection, &local_qp, data, CONNECT_TIMEOUT);
                accepted.map_err(errno_of)?;
                self.complete()
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn reject(&self, data: &[u8]) -> Result<(), c_int> {
        let manager = Manager::get()?;
        let stage = self.state.lock().stage;
        match stage {
            Stage::Queried(query) => {
                manager.cm().reject_query(query, data).map_err(errno_of)?;
                self.state.lock().stage = Stage::Resolved;
                Ok(())
            }
            Stage::Connected(connection) => manager.cm().reject(connection, data).map_err(errno_of),
            _ => Err(libc::EINVAL),
        }
    }

    fn disconnect(&self) -> Result<(), c_int> {
        let manager = Manager::get()?;
        let stage = self.state.lock().stage;
        let Stage::Connected(connection) = stage else { return Err(libc::EINVAL) };
        self.move_qp_to_error();
        match manager.cm().state(connection) {
            Some(ConnectionState::Established | ConnectionState::DreqSent) => {
                // The peer may disconnect at the same time, which is reported as an event too.
                _ = manager.cm().disconnect(connection, DISCONNECT_TIMEOUT);
            }
            Some(ConnectionState::TimeWait) | None => {}
            // The connection isn't established: the peer receives a rejection, and no event follows.
            Some(_) => {
                manager.cm().abort(connection, DISCONNECT_TIMEOUT);
                return Ok(());
            }
        }
        self.complete()
    }

    /// Moves the queue pair to the states RTR and RTS, with the attributes of the connection.
    pub(super) fn move_qp_to_rts(&self) -> Result<(), c_int> {
        let qp = self.qp().ok_or(libc::EINVAL)?;
        for next in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            let (mut attr, mask) = self.qp_attributes(next)?;
            // SAFETY: the queue pair is alive.
            match unsafe { crate::modify::ibv_modify_qp(qp, &raw mut attr, mask) } {
                0 => {}
                errno => return Err(errno),
            }
        }
        Ok(())
    }

    /// Returns the attributes for the queue pair's transition to a state, and their mask.
    pub(super) fn qp_attributes(&self, next: ibv_qp_state) -> Result<(ibv_qp_attr, c_int), c_int> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = next;
        if next == IBV_QPS_INIT {
            attr.port_num = 1;
            if self.is_datagram() {
                attr.qkey = RDMA_UDP_QKEY;
                return Ok((attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
            }
            attr.qp_access_flags =
                IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            return Ok((attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
        }
        if self.is_datagram() {
            return match next {
                IBV_QPS_RTR => Ok((attr, IBV_QP_STATE)),
                IBV_QPS_RTS => Ok((attr, IBV_QP_STATE | IBV_QP_SQ_PSN)),
                _ => Err(libc::EINVAL),
            };
        }
        let manager = Manager::get()?;
        let (stage, local_qp, requested, traffic_class) = {
            let state = self.state.lock();
            (state.stage, state.local_qp, state.requested_limits, state.options.traffic_class)
        };
        let Stage::Connected(connection) = stage else { return Err(libc::EINVAL) };
        // A program that manages its queue pair needs the attributes before it accepts the request.
        let mut default = LocalQp::new(Qpn::truncate(0));
        default.rd_atomic_limits = requested;
        let local_qp = local_qp.unwrap_or(default);
        let ready = manager.cm().qp_attributes(connection, &local_qp).map_err(errno_of)?;
        match next {
            IBV_QPS_RTR => {
                let receive = &ready.ready_to_receive;
                attr.ah_attr = address_of(Gid::from(receive.path.remote()), traffic_class);
                attr.path_mtu = receive.path_mtu.code().into();
                attr.dest_qp_num = receive.remote_qpn.get();
                attr.rq_psn = receive.psn.get();
                attr.max_dest_rd_atomic = receive.max_dest_rd_atomic;
                attr.min_rnr_timer = receive.min_rnr_timer.code();
                let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
                Ok((attr, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
            }
            IBV_QPS_RTS => {
                let send = &ready.ready_to_send;
                attr.sq_psn = send.psn.get();
                attr.timeout = send.timeout.code();
                (attr.retry_cnt, attr.rnr_retry) = (send.retry_count, send.rnr_retry);
                attr.max_rd_atomic = send.max_rd_atomic;
                let mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
                Ok((attr, mask | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn connection(&self) -> Result<ConnectionId, c_int> {
        match self.state.lock().stage {
            Stage::Connected(connection) => Ok(connection),
            _ => Err(libc::EINVAL),
        }
    }
}

/// Establishes a connection that the peer has accepted, unless the program manages the queue pair. The event then says
/// that the connection is established, or that this failed.
pub(super) fn complete(id: &Id, event: &mut rdma_cm_event) {
    if id.qp().is_none() {
        return;
    }
    let established =
        id.move_qp_to_rts().and_then(|()| Manager::get()?.cm().establish(id.connection()?).map_err(errno_of));
    match established {
        Ok(()) => event.event = RDMA_CM_EVENT_ESTABLISHED,
        Err(errno) => {
            (event.event, event.status) = (RDMA_CM_EVENT_CONNECT_ERROR, -errno);
            id.move_qp_to_error();
            _ = id.reject(&[]);
        }
    }
}

entry! {
    /// Requests a connection, or the UD queue pair of a service.
    fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> Status {
        // SAFETY: the identifier is alive, and the parameters are NULL or valid for reads.
        let (id, param) = unsafe { (Id::of(id), conn_param.as_ref()) };
        status(id.connect(param).and_then(|()| id.complete()))
    }

    /// Accepts a connection request, or replies with the UD queue pair.
    fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> Status {
        // SAFETY: as above.
        let (id, param) = unsafe { (Id::of(id), conn_param.as_ref()) };
        status(id.accept(param))
    }

    /// Rejects a request.
    fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> Status {
        // SAFETY: the identifier is alive, and the data is valid for reads.
        status(unsafe { Id::of(id).reject(private_data(data, length)) })
    }

    /// Rejects a request because of its vendor options.
    fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> Status {
        // SAFETY: as above.
        status(unsafe { Id::of(id).reject(private_data(data, length)) })
    }

    /// Ends a connection.
    fn rdma_disconnect(id: *mut rdma_cm_id) -> Status {
        // SAFETY: the identifier is alive.
        status(unsafe { Id::of(id) }.disconnect())
    }

    /// Establishes a connection whose queue pair the program manages.
    fn rdma_establish(id: *mut rdma_cm_id) -> Status {
        // SAFETY: the identifier is alive.
        let id = unsafe { Id::of(id) };
        if id.qp().is_some() {
            return crate::entry::fail(libc::EINVAL);
        }
        let established = id.connection().and_then(|connection| {
            Manager::get()?.cm().establish(connection).map_err(errno_of)
        });
        status(established)
    }

    /// Does nothing for IBV_EVENT_COMM_EST, because the NIC itself notifies the connection manager, and fails for other events.
    fn rdma_notify(_id: *mut rdma_cm_id, event: ibv_event_type) -> Status {
        if event == IBV_EVENT_COMM_EST { Status::SUCCESS } else { crate::entry::fail(libc::EINVAL) }
    }

    /// Fills in the attributes for a transition of the queue pair.
    fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> Status {
        // SAFETY: the identifier is alive, and the attributes are valid for reads.
        let attributes = unsafe { Id::of(id).qp_attributes((*qp_attr).qp_state) };
        // SAFETY: the pointers are valid for writes.
        status(attributes.map(|(attr, mask)| unsafe {
            qp_attr.write(attr);
            qp_attr_mask.write(mask);
        }))
    }
}

/// The code of the acknowledgement timeout: 0.54 s, about as long as with RDMA adapters on Linux.
const ACK_TIMEOUT: u8 = 17;

/// The time for which a connection request is repeated while no process listens.
const LISTEN_GRACE: Duration = Duration::from_millis(500);
