//! Identifiers: the connection manager's counterpart of sockets.

use std::cell::UnsafeCell;
use std::net::{IpAddr, SocketAddr};
use std::ptr::null_mut;
use std::time::Duration;

use adverb_proto::cm::{ConnectionId, ListenerId, LocalQp, QueryId, RdAtomicLimits};
use adverb_proto::types::Gid;
use adverb_sys::*;
use libc::{c_int, c_void};
use parking_lot::Mutex;

use super::channel::{self, Channel, Event};
use super::dispatch::HOP_LIMIT;
use super::manager::{Manager, Port};
use super::multicast::Group;
use super::{Status, address, status};
use crate::acks::Acks;
use crate::entry::{Pointee, Purpose, fail};

/// An identifier.
#[repr(C)]
pub(crate) struct Id {
    base: UnsafeCell<rdma_cm_id>,
    generation: u32,
    pub(super) state: Mutex<State>,
    /// The acknowledgements of the events of this identifier. An event of a request counts for the listener.
    pub(super) acks: Acks,
}

/// The part of an identifier that programs don't see.
pub(super) struct State {
    pub(super) stage: Stage,
    /// The reserved local port.
    pub(super) port: Option<Port>,
    /// The peer's address for the connection manager, after it was resolved.
    pub(super) remote: Option<IpAddr>,
    /// The local queue pair and the attributes of `rdma_connect` or `rdma_accept`.
    pub(super) local_qp: Option<LocalQp>,
    /// The peer's limits on READs and atomics, from this side's point of view, if the peer requested the connection.
    pub(super) requested_limits: RdAtomicLimits,
    /// Whether the identifier was made without a channel, so that calls wait for their events.
    pub(super) is_sync: bool,
    pub(super) options: Options,
    /// The number of requests that a listener can still queue for the program.
    pub(super) backlog: usize,
    /// The attributes of the queue pairs of a listening endpoint.
    pub(super) qp_init: Option<ibv_qp_init_attr>,
    /// The private data of an endpoint's connection request.
    pub(super) connect_data: Vec<u8>,
    pub(super) groups: Vec<Group>,
}

// SAFETY: the pointers are to objects that all threads may use.
unsafe impl Send for State {}

/// The progress of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The identifier has no address.
    Idle,
    /// It has a local address.
    Bound,
    /// It has the peer's address.
    AddressResolved,
    /// It has the path to the peer.
    RouteResolved,
    /// It listens.
    Listening(ListenerId),
    /// It has a connection, which one side requested.
    Connected(ConnectionId),
    /// It has sent a query for a peer's UD queue pair.
    Querying(QueryId),
    /// A peer has sent a query for a UD queue pair.
    Queried(QueryId),
    /// The query was answered: one side knows the UD queue pair of the other.
    Resolved,
}

/// The options of an identifier.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Options {
    pub(super) traffic_class: u8,
    pub(super) ack_timeout: Option<u8>,
    pub(super) reuse_address: bool,
    /// Whether a wildcard address covers only its own address family.
    pub(super) family_only: bool,
}

impl Pointee for rdma_cm_id {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut rdma_cm_id, _purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        crate::fork::check(unsafe { Id::of(this) }.generation)
    }
}

impl Id {
    /// Returns the identifier that contains this `rdma_cm_id`.
    ///
    /// # Safety
    ///
    /// The identifier is alive.
    pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a Id {
        // SAFETY: as the caller says; the struct starts with `base`.
        unsafe { &*id.cast() }
    }

    /// Returns the `rdma_cm_id` that programs use.
    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.base.get()
    }

    /// Allocates an identifier, which `destroy` frees.
    pub(super) fn leak(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> &'static Id {
        let mut base = rdma_cm_id::zeroed();
        (base.channel, base.context, base.ps, base.qp_type) = (channel, context, ps, qp_type);
        Box::leak(Box::new(Id {
            base: UnsafeCell::new(base),
            generation: crate::fork::generation(),
            state: Mutex::new(State {
                stage: Stage::Idle,
                port: None,
                remote: None,
                local_qp: None,
                requested_limits: RdAtomicLimits { max_dest_rd_atomic: 0, max_rd_atomic: 0 },
                is_sync: false,
                options: Options::default(),
                backlog: 0,
                qp_init: None,
                connect_data: Vec::new(),
                groups: Vec::new(),
            }),
            acks: Acks::default(),
        }))
    }

    /// Creates an identifier. Without a channel, it gets one of its own.
    pub(super) fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Result<&'static Id, c_int> {
        Manager::get()?;
        let is_sync = channel.is_null();
        let channel = if is_sync { Channel::create()? } else { channel };
        let id = Id::leak(channel, context, ps, qp_type);
        id.state.lock().is_sync = is_sync;
        Ok(id)
    }

    /// Whether the identifier is for datagrams.
    pub(super) fn is_datagram(&self) -> bool {
        // SAFETY: the fields are written only before the identifier is returned.
        unsafe { (*self.as_ptr()).qp_type == IBV_QPT_UD || (*self.as_ptr()).ps == RDMA_PS_UDP }
    }

    /// Returns the queue pair, or `None` if the program manages it.
    pub(super) fn qp(&self) -> Option<*mut ibv_qp> {
        // SAFETY: programs don't create or destroy the queue pair while another call uses it.
        let qp = unsafe { (*self.as_ptr()).qp };
        (!qp.is_null()).then_some(qp)
    }

    /// Adds an event to the identifier's channel.
    pub(super) fn put(&self, event: Box<Event>) {
        let manager = Manager::if_running();
        // The lock keeps other threads from changing the identifier's channel.
        let _table = manager.map(|manager| manager.table.lock());
        self.put_locked(event);
    }

    /// Adds an event to the identifier's channel. The caller holds the lock of the manager's table.
    pub(super) fn put_locked(&self, event: Box<Event>) {
        // SAFETY: the channel of an identifier is alive, and the lock keeps it from being changed.
        unsafe { Channel::of((*self.as_ptr()).channel) }.put(event);
    }

    /// Waits for the event that completes a call, if the identifier has no channel of the program.
    pub(super) fn complete(&self) -> Result<(), c_int> {
        if !self.state.lock().is_sync {
            return Ok(());
        }
        self.acknowledge_last();
        // SAFETY: the channel of an identifier is alive.
        let event = unsafe { Channel::of((*self.as_ptr()).channel) }.next()?;
        // SAFETY: only the calling thread uses the identifier; the event is alive until it is acknowledged.
        let (kind, result) = unsafe {
            (*self.as_ptr()).event = event;
            ((*event).event, (*event).status)
        };
        match result {
            0 => Ok(()),
            _ if kind == RDMA_CM_EVENT_REJECTED => Err(libc::ECONNREFUSED),
            result => Err(result.abs()),
        }
    }

    /// Acknowledges the event that completed the last call.
    pub(super) fn acknowledge_last(&self) {
        // SAFETY: programs don't use the identifier in other threads meanwhile; its event is alive.
        unsafe {
            let event = std::mem::replace(&mut (*self.as_ptr()).event, null_mut());
            if !event.is_null() {
                channel::acknowledge(event);
            }
        }
    }

    /// Sets the identifier's device.
    pub(super) fn attach_device(&self, manager: &Manager) -> Result<(), c_int> {
        let pd = manager.default_pd()?;
        // SAFETY: no other thread uses these fields before the address is resolved.
        unsafe {
            let base = self.as_ptr();
            (*base).verbs = manager.context();
            (*base).port_num = 1;
            if (*base).pd.is_null() {
                (*base).pd = pd;
            }
            let ib = &mut (*base).route.addr.addr.ibaddr;
            ib.sgid = Gid::from(manager.local()).bytes().into();
            ib.pkey = adverb_wire::DEFAULT_PKEY.to_be();
        }
        Ok(())
    }

    /// Sets the local address that programs see.
    pub(super) fn set_local(&self, addr: SocketAddr) {
        // SAFETY: programs don't read the address during a call that sets it.
        unsafe { address::write(rdma_get_local_addr(self.as_ptr()), addr) };
    }

    /// Returns the local address.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: as above; an address that isn't set has no known family.
        unsafe { address::read(rdma_get_local_addr(self.as_ptr())) }.ok()
    }

    /// Sets the peer's address that programs see, and its GID.
    pub(super) fn set_peer(&self, addr: SocketAddr, remote: IpAddr) {
        // SAFETY: as in `set_local`.
        unsafe {
            address::write(rdma_get_peer_addr(self.as_ptr()), addr);
            (*self.as_ptr()).route.addr.addr.ibaddr.dgid = Gid::from(remote).bytes().into();
        }
    }

    /// Returns the peer's address.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: as in `local`.
        unsafe { address::read(rdma_get_peer_addr(self.as_ptr())) }.ok()
    }

    /// Adds the path record that programs see, after the addresses are known.
    pub(super) fn set_path(&self, manager: &Manager) {
        let traffic_class = self.state.lock().options.traffic_class;
        // SAFETY: programs don't read the route during a call that sets it.
        unsafe {
            let route = &mut (*self.as_ptr()).route;
            if !route.path_rec.is_null() {
                return;
            }
            let ib = route.addr.addr.ibaddr;
            let mut path = ibv_sa_path_rec::zeroed();
            (path.dgid, path.sgid, path.pkey) = (ib.dgid, ib.sgid, ib.pkey);
            (path.hop_limit, path.traffic_class) = (HOP_LIMIT, traffic_class);
            (path.reversible, path.numb_path) = (1, 1);
            // Each selector says that the value is exact.
            (path.mtu_selector, path.mtu) = (2, manager.nic().nic.mtu().code());
            (path.rate_selector, path.rate) = (2, IBV_RATE_10_GBPS as u8);
            (path.packet_life_time_selector, path.packet_life_time) = (2, 0);
            route.path_rec = Box::into_raw(Box::new(path));
            route.num_paths = 1;
        }
    }

    /// Moves the queue pair to the error state.
    pub(super) fn move_qp_to_error(&self) {
        if let Some(qp) = self.qp() {
            let mut attr = ibv_qp_attr::zeroed();
            attr.qp_state = IBV_QPS_ERR;
            // SAFETY: the queue pair is alive. It can move to this state from any other.
            unsafe { crate::modify::ibv_modify_qp(qp, &raw mut attr, IBV_QP_STATE) };
        }
    }

    /// Moves the identifier and its pending events to a channel, or to a channel of its own.
    pub(super) fn migrate(&self, channel: *mut rdma_event_channel) -> Result<(), c_int> {
        let manager = Manager::get()?;
        let is_sync = channel.is_null();
        let new = if is_sync { Channel::create()? } else { channel };
        self.acknowledge_last();
        let was_sync = std::mem::replace(&mut self.state.lock().is_sync, is_sync);
        let old = {
            let _table = manager.table.lock();
            // SAFETY: both channels are alive; the lock keeps other threads from using the identifier's channel.
            unsafe {
                let old = std::mem::replace(&mut (*self.as_ptr()).channel, new);
                for event in Channel::of(old).remove_events(self.as_ptr()) {
                    Channel::of(new).put(event);
                }
                old
            }
        };
        self.acks.wait();
        if was_sync {
            // SAFETY: the channel was the identifier's own.
            unsafe { Channel::destroy(old) };
        }
        Ok(())
    }

    /// Ends the identifier's connection, listener or query, and frees the identifier.
    ///
    /// # Safety
    ///
    /// The identifier is alive, and isn't used afterwards.
    pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        let this = unsafe { Id::of(id) };
        let manager = Manager::get()?;
        this.acknowledge_last();
        // The listener's requests are rejected, and no further events are added.
        manager.end(this);
        // SAFETY: the channel of an identifier is alive.
        let (channel, events) = unsafe {
            let channel = (*id).channel;
            (channel, Channel::of(channel).remove_events(id))
        };
        for requested in events.iter().filter_map(|event| event.requested()) {
            // SAFETY: no program knows the identifier of a pending request.
            _ = unsafe { Id::destroy(requested) };
        }
        this.acks.wait();
        leave_groups(this);
        // SAFETY: `leak` made the identifier and `set_path` the path record with boxes; nothing uses them any more.
        unsafe {
            let path = (*id).route.path_rec;
            if !path.is_null() {
                drop(Box::from_raw(path));
            }
            let this = Box::from_raw(id.cast::<Id>());
            if this.state.lock().is_sync {
                Channel::destroy(channel);
            }
        }
        Ok(())
    }
}

/// Leaves the multicast groups of an identifier.
fn leave_groups(id: &Id) {
    let groups = std::mem::take(&mut id.state.lock().groups);
    for group in groups {
        group.leave(id);
    }
}

/// Returns the type of queue pair for a port space.
fn qp_type_of(ps: rdma_port_space) -> Result<ibv_qp_type, c_int> {
    match ps {
        RDMA_PS_TCP => Ok(IBV_QPT_RC),
        RDMA_PS_UDP => Ok(IBV_QPT_UD),
        // Datagrams of IP over InfiniBand, and addresses that are GIDs.
        RDMA_PS_IPOIB | RDMA_PS_IB => Err(libc::EPROTONOSUPPORT),
        _ => Err(libc::EINVAL),
    }
}

entry! {
    /// Creates an identifier.
    fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> Status {
        let created = qp_type_of(ps).and_then(|qp_type| Id::create(channel, context, ps, qp_type));
        // SAFETY: the pointer is valid for writes.
        status(created.map(|created| unsafe { id.write(created.as_ptr()) }))
    }

    /// Destroys an identifier, after its events are acknowledged.
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> Status {
        if id.is_null() {
            return fail(libc::EINVAL);
        }
        // SAFETY: the identifier is alive, and the program doesn't use it any more.
        status(unsafe { Id::destroy(id) })
    }

    /// Moves an identifier to another channel.
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Status {
        // SAFETY: the identifier is alive.
        status(unsafe { Id::of(id) }.migrate(channel))
    }
}

/// Returns the number of requests that a listener can still queue.
#[cfg(test)]
pub(crate) fn backlog_of(id: *mut rdma_cm_id) -> usize {
    // SAFETY: the test's identifier is alive.
    unsafe { Id::of(id) }.state.lock().backlog
}

/// The time limit of a connection request and of its acceptance.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The time limit of disconnecting.
pub(super) const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(10);
