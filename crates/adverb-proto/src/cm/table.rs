//! The connections and listeners, with their indexes.

use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap};

use adverb_wire::cm::ServiceId;

use super::connection::{Connection, State};
use super::parameters::is_ipv4;
use super::sources::Sources;
use super::timers::Timers;
use super::{BindAddr, ListenParams};
use crate::Time;
use crate::hash::BuildNumberHasher;
use crate::mutation::mutant;
use crate::types::Qpn;

/// The connections and listeners, with their indexes. Keys that peers choose are in trees, which can't be degraded by a
/// choice of keys.
#[derive(Debug, Default)]
pub(super) struct Table {
    connections: HashMap<u32, Box<Connection>, BuildNumberHasher>,
    /// The connections by the peer's address, GUID and communication ID, for detecting duplicate REQs.
    remote_ids: BTreeMap<(IpAddr, u64, u32), u32>,
    /// The connections by the peer's address, GUID and queue pair, for detecting stale connections.
    remote_qps: BTreeMap<(IpAddr, u64, Qpn), u32>,
    local_qps: HashMap<u32, u32, BuildNumberHasher>,
    /// The peer-to-peer connections that wait for the peer.
    peers: BTreeMap<(IpAddr, ServiceId), u32>,
    listeners: BTreeMap<u32, Listener>,
    services: BTreeMap<(ServiceId, BindAddr), u32>,
    timers: Timers,
    half_open: Sources,
}

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) listen: ListenParams,
    /// The number of requests that wait for the application.
    pub(super) waiting: usize,
}

/// The sizes of the table's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) connections: usize,
    pub(super) half_open: usize,
    pub(super) sources: usize,
    pub(super) remote_ids: usize,
    pub(super) remote_qps: usize,
    pub(super) local_qps: usize,
    pub(super) peers: usize,
    pub(super) timers: usize,
    pub(super) listeners: usize,
}

impl Table {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            connections: self.connections.len(),
            half_open: self.half_open.total(),
            sources: self.half_open.len(),
            remote_ids: self.remote_ids.len(),
            remote_qps: self.remote_qps.len(),
            local_qps: self.local_qps.len(),
            peers: self.peers.len(),
            timers: self.timers.len(),
            listeners: self.listeners.len(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn half_open(&self) -> &Sources {
        &self.half_open
    }

    /// Returns an ID that no connection has. The ID is never 0, which means none (`cm_format_rej` in `cm.c`).
    pub(super) fn unused_id(&self, random: &mut impl FnMut() -> u32) -> u32 {
        let mut id = random();
        while id == 0 || self.connections.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        id
    }

    pub(super) fn get(&self, id: u32) -> Option<&Connection> {
        self.connections.get(&id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&id).map(Box::as_mut)
    }

    pub(super) fn by_remote_id(&self, address: IpAddr, guid: u64, id: u32) -> Option<u32> {
        self.remote_ids.get(&(address, guid, id)).copied()
    }

    pub(super) fn by_remote_qp(&self, address: IpAddr, guid: u64, qpn: Qpn) -> Option<u32> {
        self.remote_qps.get(&(address, guid, qpn)).copied()
    }

    pub(super) fn by_local_qp(&self, qpn: Qpn) -> Option<u32> {
        self.local_qps.get(&qpn.get()).copied()
    }

    pub(super) fn by_peer(&self, address: IpAddr, service: ServiceId) -> Option<u32> {
        self.peers.get(&(address, service)).copied()
    }

    /// Inserts a connection in any state, and indexes it.
    pub(super) fn insert(&mut self, connection: Connection) {
        let id = connection.local_id;
        self.count(&connection, true);
        self.connections.insert(id, Box::new(connection));
        self.add_to_indexes(id);
        self.update_timer(id);
    }

    /// Indexes a connection by its attributes that are known by now.
    pub(super) fn add_to_indexes(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (address, guid) = (connection.addrs.remote, connection.remote_guid);
        if let Some(remote_id) = connection.remote_id {
            self.remote_ids.entry((address, guid, remote_id)).or_insert(id);
        }
        if let Some(qpn) = connection.remote_qpn
            && connection.state != State::TimeWait
        {
            self.remote_qps.entry((address, guid, qpn)).or_insert(id);
        }
        if let Some(local_qp) = &connection.local_qp {
            self.local_qps.insert(local_qp.qpn.get(), id);
        }
        if connection.peer_to_peer && connection.state == State::ReqSent {
            self.peers.insert((address, connection.service), id);
        }
    }

    /// Moves a connection to another state, with a new deadline and without retransmissions.
    pub(super) fn change_state(
        &mut self,
        id: u32,
        state: State,
        deadline: Option<Time>,
    ) -> Option<&mut Connection> {
        let mut connection = self.connections.remove(&id)?;
        self.count(&connection, false);
        self.remove_from_peers(&connection);
        if state == State::TimeWait {
            // Only this side's numbers are reserved. A peer may reuse its queue pair number at once: packets of the old
            // connection don't reach the queue pair of the new one here (`cm_enter_timewait` in `cm.c`).
            self.remove_from_remote_qps(&connection);
        }
        connection.state = state;
        connection.deadline = deadline;
        connection.retransmission = None;
        self.count(&connection, true);
        self.connections.insert(id, connection);
        self.update_timer(id);
        self.get_mut(id)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Box<Connection>> {
        let mut connection = self.connections.remove(&id)?;
        self.count(&connection, false);
        self.timers.set(id, &mut connection.timer, None);
        self.remove_from_peers(&connection);
        self.remove_from_remote_qps(&connection);
        if let Some(remote_id) = connection.remote_id.filter(|_| !mutant!(CmRemoteIdLeaks)) {
            remove_own(
                &mut self.remote_ids,
                &(connection.addrs.remote, connection.remote_guid, remote_id),
                id,
            );
        }
        if let Some(local_qp) = &connection.local_qp
            && self.local_qps.get(&local_qp.qpn.get()) == Some(&id)
        {
            self.local_qps.remove(&local_qp.qpn.get());
        }
        Some(connection)
    }

    /// Updates the timer of a connection, after a change of its deadline or its retransmission.
    pub(super) fn update_timer(&mut self, id: u32) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let next = connection.next();
            self.timers.set(id, &mut connection.timer, next);
        }
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.timers.next()
    }

    pub(super) fn due(&self, now: Time) -> Option<u32> {
        self.timers.due(now)
    }

    pub(super) fn listen(&mut self, id: u32, listen: ListenParams) -> bool {
        let key = (listen.service, listen.bind);
        if self.services.contains_key(&key) {
            return false;
        }
        self.services.insert(key, id);
        self.listeners.insert(id, Listener { listen, waiting: 0 });
        true
    }

    pub(super) fn close(&mut self, id: u32) -> bool {
        let Some(listener) = self.listeners.remove(&id) else { return false };
        self.services.remove(&(listener.listen.service, listener.listen.bind));
        true
    }

    /// Returns the listener for a service at a local address: the one with the most specific bind address.
    pub(super) fn listener(&self, service: ServiceId, address: IpAddr) -> Option<(u32, &Listener)> {
        let binds = [
            Some(BindAddr::Address(address)),
            is_ipv4(address).then_some(BindAddr::AnyV4),
            Some(BindAddr::Any),
        ];
        let id = binds.into_iter().flatten().find_map(|bind| self.services.get(&(service, bind)))?;
        Some((*id, self.listeners.get(id)?))
    }

    fn count(&mut self, connection: &Connection, add: bool) {
        let step = |number: &mut usize| *number = if add { *number + 1 } else { number.saturating_sub(1) };
        if matches!(connection.state, State::ReqReceived | State::RepSent) {
            let peer = connection.addrs.remote;
            if add { self.half_open.add(peer) } else { self.half_open.remove(peer) }
        }
        if connection.state == State::ReqReceived
            && let Some(listener) = connection.listener.and_then(|id| self.listeners.get_mut(&id.0))
        {
            step(&mut listener.waiting);
        }
    }

    fn remove_from_peers(&mut self, connection: &Connection) {
        if connection.peer_to_peer {
            remove_own(&mut self.peers, &(connection.addrs.remote, connection.service), connection.local_id);
        }
    }

    fn remove_from_remote_qps(&mut self, connection: &Connection) {
        if let Some(qpn) = connection.remote_qpn {
            let key = (connection.addrs.remote, connection.remote_guid, qpn);
            remove_own(&mut self.remote_qps, &key, connection.local_id);
        }
    }
}

/// Removes a key if it maps to `id`.
fn remove_own<K: Ord>(map: &mut BTreeMap<K, u32>, key: &K, id: u32) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}
