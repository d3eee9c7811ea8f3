//! The process's connection manager: the device that identifiers use, and the identifiers that events are for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::Time;
use adverb_proto::cm::{
    AddrPair, ConnectParams, ConnectionId, ListenerId, LocalQp, QueryId, State as ConnectionState,
};
use adverb_soft::{Cm, CmEventChannel};
use adverb_sys::*;
use adverb_wire::cm::ServiceId;
use libc::c_int;
use parking_lot::Mutex;

use super::id::{CONNECT_TIMEOUT, DISCONNECT_TIMEOUT, Id, Stage};
use crate::context::Context;
use crate::exit::Work;
use crate::fork::PerProcess;
use crate::nic::{Listed, OpenNic};
use crate::pd::ProtectionDomain;

/// The process's connection manager.
pub(crate) struct Manager {
    /// The context of all identifiers, which stays open.
    context: Arc<Context>,
    /// The default protection domain of all identifiers, allocated when the first one needs it.
    pd: Mutex<Option<Listed<ibv_pd>>>,
    /// The events of connections and of own queries.
    pub(super) events: Arc<CmEventChannel>,
    /// An epoll descriptor over the event channels.
    pub(super) readiness: OwnedFd,
    /// The identifiers. The lock also guards the channel of each identifier.
    pub(super) table: Mutex<Table>,
}

// SAFETY: contexts and protection domains are usable from all threads.
unsafe impl Sync for Manager {}

/// The identifiers that events are for.
#[derive(Default)]
pub(super) struct Table {
    pub(super) connections: HashMap<ConnectionId, Peer>,
    pub(super) queries: HashMap<QueryId, Listed<Id>>,
    pub(super) listeners: HashMap<ListenerId, Listener>,
    /// The connections whose identifiers were destroyed, and which may not be disconnected yet.
    ending: Vec<ConnectionId>,
    /// The rejected connections whose requests are repeated, and the times of the next requests.
    pub(super) repeats: Vec<(Instant, ConnectionId)>,
    /// The number of identifiers with each claim.
    ports: HashMap<Port, u32>,
}

/// The identifier of a connection.
pub(super) struct Peer {
    pub(super) id: Listed<Id>,
    /// The request, if this side sent it.
    pub(super) request: Option<Box<OwnRequest>>,
}

/// A connection request of this side, which is repeated if no process listens yet.
///
/// On RDMA adapters, a client takes milliseconds to resolve a route, and programs such as perftest rely on the server to listen
/// by then. Here the route is known at once, so a request that arrives too early is rejected, and is sent again after a pause.
pub(super) struct OwnRequest {
    pub(super) addrs: AddrPair,
    pub(super) service: ServiceId,
    pub(super) source_port: u16,
    pub(super) local_qp: LocalQp,
    pub(super) traffic_class: u8,
    pub(super) private_data: Vec<u8>,
    /// The time until which a rejected request is repeated.
    pub(super) repeat_until: Instant,
}

impl OwnRequest {
    pub(super) fn send(&self, manager: &Manager) -> Result<ConnectionId, c_int> {
        let mut connect = ConnectParams::new(self.addrs, self.service, self.local_qp, Time::ZERO);
        connect.source_port = self.source_port;
        connect.path_mtu = manager.nic().nic.mtu();
        connect.traffic_class = self.traffic_class;
        connect.private_data = &self.private_data;
        manager.cm().connect(connect, CONNECT_TIMEOUT, &manager.events).map_err(super::errno_of)
    }
}

/// A listener: its identifier and its events.
pub(super) struct Listener {
    pub(super) id: Listed<Id>,
    pub(super) events: Arc<CmEventChannel>,
}

/// The claim of a local port by an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Port {
    space: rdma_port_space,
    pub(super) number: u16,
    families: Families,
}

/// The address families that the claim of a port is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Families {
    V4,
    V6,
    Both,
}

impl Families {
    /// Returns the families whose claims exclude a claim of these.
    fn conflicts(self) -> &'static [Families] {
        match self {
            Families::V4 => &[Families::V4, Families::Both],
            Families::V6 => &[Families::V6, Families::Both],
            Families::Both => &[Families::V4, Families::V6, Families::Both],
        }
    }
}

pub(crate) static MANAGER: PerProcess<&'static Manager> = PerProcess::new();

impl Manager {
    /// Returns this process's connection manager. The first call opens the device and starts a thread.
    pub(super) fn get() -> Result<&'static Manager, c_int> {
        crate::fork::install_handler();
        let mut running = MANAGER.value().lock();
        if let Some(manager) = *running {
            return Ok(manager);
        }
        let io = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        // SAFETY: the function has no preconditions.
        let readiness = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if readiness < 0 {
            return Err(crate::entry::errno());
        }
        let manager = Manager {
            // SAFETY: the descriptor is open, and has no other owner.
            readiness: unsafe { OwnedFd::from_raw_fd(readiness) },
            events: Arc::new(CmEventChannel::new().map_err(io)?),
            context: Context::open(crate::device::device(), true)?,
            pd: Mutex::new(None),
            table: Mutex::default(),
        };
        manager.watch(&manager.events)?;
        // The thread uses the manager until the process ends. Without the thread, the manager is not used at all.
        let manager: &'static Manager = Box::leak(Box::new(manager));
        if let Err(error) = super::dispatch::start(manager) {
            // SAFETY: nothing else has a reference.
            drop(unsafe { Box::from_raw((&raw const *manager).cast_mut()) });
            return Err(io(error));
        }
        // SAFETY: the function has no preconditions. If it can't be registered, peers learn of the exit later.
        unsafe { libc::atexit(disconnect_at_exit) };
        *running = Some(manager);
        Ok(manager)
    }

    /// Returns the connection manager if an identifier was created, without waiting for a thread that starts it.
    pub(super) fn if_running() -> Option<&'static Manager> {
        MANAGER.value().try_lock().and_then(|running| *running)
    }

    #[cfg(test)]
    pub(crate) fn lock_table(&self) -> impl Sized {
        self.table.lock()
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(super) fn nic(&self) -> &'static OpenNic {
        self.context.nic
    }

    pub(super) fn cm(&self) -> Cm<'static> {
        self.nic().nic.cm()
    }

    /// Returns the address of the device for the connection manager's calls.
    pub(super) fn local(&self) -> IpAddr {
        self.nic().nic.addresses()[0]
    }

    /// Returns the default protection domain.
    pub(super) fn default_pd(&self) -> Result<*mut ibv_pd, c_int> {
        let mut pd = self.pd.lock();
        if pd.is_none() {
            let allocated = ProtectionDomain::create(self.context())?;
            // The program doesn't leak a domain that it did not allocate.
            self.nic().counts.destroy_domain();
            *pd = NonNull::new(allocated).map(Listed);
        }
        Ok(pd.as_ref().map_or(std::ptr::null_mut(), |pd| pd.0.as_ptr()))
    }

    /// Wakes the dispatching thread for events of a channel.
    pub(super) fn watch(&self, events: &CmEventChannel) -> Result<(), c_int> {
        use std::os::fd::AsFd;
        let fd = events.as_fd().as_raw_fd();
        let mut interest = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open, and the pointer is valid for reads.
        match unsafe {
            libc::epoll_ctl(self.readiness.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut interest)
        } {
            0 => Ok(()),
            _ => Err(crate::entry::errno()),
        }
    }

    /// Claims a local port, or any free port if the number is 0. `reuse` permits a port that other identifiers have.
    pub(super) fn claim_port(
        &self,
        space: rdma_port_space,
        number: u16,
        families: Families,
        reuse: bool,
    ) -> Result<Port, c_int> {
        let mut table = self.table.lock();
        if number != 0 {
            let port = Port { space, number, families };
            if table.is_claimed(port) && !reuse {
                return Err(libc::EADDRINUSE);
            }
            *table.ports.entry(port).or_default() += 1;
            return Ok(port);
        }
        for _ in 0..PORT_ATTEMPTS {
            let random = getrandom::u32().map_err(|_| libc::EIO)?;
            let number = FIRST_EPHEMERAL_PORT + (random % u32::from(EPHEMERAL_PORT_COUNT)) as u16;
            let port = Port { space, number, families };
            if !table.is_claimed(port) {
                table.ports.insert(port, 1);
                return Ok(port);
            }
        }
        Err(libc::EADDRNOTAVAIL)
    }

    /// Ends the connection, listener or query of an identifier, so that no further events are added.
    pub(super) fn end(&self, id: &Id) {
        // The dispatching thread changes the stage under the same lock.
        let mut table = self.table.lock();
        let (stage, port) = {
            let mut state = id.state.lock();
            (std::mem::replace(&mut state.stage, Stage::Idle), state.port.take())
        };
        if let Some(port) = port {
            table.release(port);
        }
        match stage {
            Stage::Listening(listener) => {
                // The dispatching thread rejects requests of listeners that aren't in the table.
                table.listeners.remove(&listener);
                _ = self.cm().close_listener(listener);
            }
            Stage::Connected(connection) => {
                table.connections.remove(&connection);
                self.cm().abort(connection, DISCONNECT_TIMEOUT);
                table.end(self.cm(), connection);
            }
            Stage::Querying(query) => {
                table.queries.remove(&query);
                self.cm().cancel_query(query);
            }
            Stage::Queried(query) => self.cm().cancel_query(query),
            Stage::Idle | Stage::Bound | Stage::AddressResolved | Stage::RouteResolved | Stage::Resolved => {}
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.context.close();
    }
}

impl Table {
    /// Whether an identifier has a port for one of the same families.
    fn is_claimed(&self, port: Port) -> bool {
        let conflicts = port.families.conflicts().iter();
        conflicts.map(|&families| Port { families, ..port }).any(|port| self.ports.contains_key(&port))
    }

    /// Ends the claim of a port.
    fn release(&mut self, port: Port) {
        if let Entry::Occupied(mut claims) = self.ports.entry(port) {
            *claims.get_mut() -= 1;
            if *claims.get() == 0 {
                claims.remove();
            }
        }
    }

    /// Notes that a connection is ending.
    fn end(&mut self, cm: Cm<'_>, connection: ConnectionId) {
        self.ending.retain(|ending| is_ending(cm, *ending));
        self.ending.push(connection);
    }
}

/// Whether the peer has not confirmed the end of a connection.
fn is_ending(cm: Cm<'_>, connection: ConnectionId) -> bool {
    cm.state(connection) == Some(ConnectionState::DreqSent)
}

extern "C" fn disconnect_at_exit() {
    _ = crate::entry::catch(|| {
        if let Some(manager) = Manager::if_running() {
            manager.nic().exit.request(manager.nic(), Work::Disconnect);
        }
    });
}

/// Disconnects the connections of a process that exits, as the kernel does. Waits up to [`EXIT_TIMEOUT`] for the peers'
/// replies, because lost messages are repeated meanwhile.
pub(crate) fn disconnect() {
    let Some(manager) = Manager::if_running() else { return };
    if manager.nic().nic.has_failed() {
        return;
    }
    // Another thread may hold the lock, and may have ended.
    let Some(mut table) = manager.table.try_lock_for(EXIT_TIMEOUT) else { return };
    let cm = manager.cm();
    let connections: Vec<ConnectionId> =
        table.connections.drain().map(|(connection, _)| connection).collect();
    for connection in connections {
        cm.abort(connection, DISCONNECT_TIMEOUT);
        table.ending.push(connection);
    }
    let start = Instant::now();
    while table.ending.iter().any(|ending| is_ending(cm, *ending)) && start.elapsed() < EXIT_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The time that an exiting process waits for its peers to confirm the ends of connections.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of random ports to try.
const PORT_ATTEMPTS: u32 = 10_000;

/// The first of the ports that identifiers get without asking for one, as in Linux.
const FIRST_EPHEMERAL_PORT: u16 = 32_768;

/// The number of these ports.
const EPHEMERAL_PORT_COUNT: u16 = 28_232;
