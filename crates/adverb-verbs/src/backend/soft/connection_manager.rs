//! Identifiers of the connection manager on software NICs, each with its own event channel.
//!
//! As in the backend of librdmacm, queue pairs aren't created on identifiers: the connection manager gets only their
//! numbers.

mod choice;
mod event;
mod ports;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::cm::{
    self, AddrPair, BindAddr, CallError, ConnectParams, ConnectionId, ListenParams, ListenerId, LocalQp,
    QueryId, ResolveParams, State, UDP_QKEY,
};
use adverb_proto::explain::Call;
use adverb_proto::types::{Gid, PathMtu, Qpn, RejectReason, Transport};
use adverb_soft::CmEventChannel;
use adverb_wire::cm::{ServiceId, Timeout};
use parking_lot::Mutex;

use self::ports::PortLease;
use super::nic_error;
use crate::backend::connection_manager::{Event, Parameters, Path, Purpose};
use crate::backend::{Address, PeerEnd, ReadyToSend};
use crate::error::{Error, Result, call_failed};
use crate::os::wait_either;

pub(in crate::backend) use self::choice::{
    connecting_device, is_loopback, listening_devices, open_connecting, open_listening,
};
pub(super) use self::ports::Ports;
pub(in crate::backend) use super::Device;

pub(crate) struct Identifier {
    purpose: Purpose,
    /// The identifier's own channel, so that no caller consumes an event of another identifier.
    channel: Arc<CmEventChannel>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The NICs that the identifier is on: one, except for a listener at every address.
    devices: Vec<Arc<Device>>,
    role: Role,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    ack_timeout: Timeout,
    traffic_class: u8,
    shares_port: bool,
    port: Option<PortLease>,
    /// The private data and the path MTU of the connect request, until the peer replies.
    pending_request: Option<(Vec<u8>, PathMtu)>,
    /// Events of operations that complete at once. They precede the events of the channel.
    local_events: VecDeque<Event>,
}

/// The role of an identifier.
#[derive(Clone)]
enum Role {
    /// The identifier has no role yet.
    New,
    /// The identifier listens, on each of its NICs.
    Listening(Vec<ListenerId>),
    /// A connection in any state, and this side's parameters, once they are set.
    Connection(ConnectionId, Option<LocalQp>),
    /// The identifier queries a peer for its UD queue pair.
    Querying(QueryId),
    /// A peer queries the identifier for a UD queue pair.
    Queried(QueryId),
}

impl Identifier {
    /// Creates an identifier on these NICs, of which there is at least one.
    pub(in crate::backend) fn new(purpose: Purpose, devices: Vec<Arc<Device>>) -> Result<Identifier> {
        let channel = CmEventChannel::new()
            .map_err(|error| call_failed(Call::CmChannel, "creating a connection manager ID", error))?;
        let inner = Inner {
            devices,
            role: Role::New,
            local: None,
            peer: None,
            ack_timeout: Timeout::ZERO,
            traffic_class: 0,
            shares_port: false,
            port: None,
            pending_request: None,
            local_events: VecDeque::new(),
        };
        Ok(Identifier { purpose, channel: Arc::new(channel), inner: Mutex::new(inner) })
    }

    pub(in crate::backend) fn event_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    pub(in crate::backend) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        wait_either(self.channel.as_fd(), None, timeout)
            .map_err(|error| call_failed(Call::Poll, "waiting for an event", error))
    }

    pub(in crate::backend) fn reuse_addr(&self) -> Result<()> {
        self.inner.lock().shares_port = true;
        Ok(())
    }

    pub(in crate::backend) fn set_ack_timeout(&self, code: u8) {
        self.inner.lock().ack_timeout = Timeout::new(code).unwrap_or(Timeout::ZERO);
    }

    pub(in crate::backend) fn set_traffic_class(&self, traffic_class: u8) -> Result<()> {
        self.inner.lock().traffic_class = traffic_class;
        Ok(())
    }

    pub(in crate::backend) fn bind(&self, address: SocketAddr) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let bind = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => BindAddr::AnyV4,
            IpAddr::V6(ip) if ip.is_unspecified() => BindAddr::Any,
            ip => BindAddr::Address(ip),
        };
        let lease = PortLease::new(&inner.devices, self.purpose, bind, address.port(), inner.shares_port);
        let lease =
            lease.map_err(|error| call_failed(Call::CmAddress, format!("binding to {address}"), error))?;
        inner.local = Some(SocketAddr::new(address.ip(), lease.port));
        inner.port = Some(lease);
        Ok(())
    }

    pub(in crate::backend) fn listen(&self, backlog: u32) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let (Some(local), Some(lease)) = (inner.local, &inner.port) else {
            return Err(Error::InvalidRequest {
                reason: "listening requires a local address: bind first".into(),
            });
        };
        let listen = ListenParams {
            service: service(self.purpose, local.port()),
            bind: lease.bind(),
            transport: match self.purpose {
                Purpose::Connections => Transport::Rc,
                Purpose::Datagrams => Transport::Ud,
            },
            backlog: backlog as usize,
        };
        let mut listeners = Vec::new();
        for device in &inner.devices {
            match device.nic.cm().listen(listen, &self.channel) {
                Ok(listener) => listeners.push(listener),
                Err(error) => {
                    for (device, listener) in inner.devices.iter().zip(listeners) {
                        _ = device.nic.cm().close_listener(listener);
                    }
                    return Err(nic_error(Call::CmAddress, error, format!("listening at {local}")));
                }
            }
        }
        inner.role = Role::Listening(listeners);
        Ok(())
    }

    pub(in crate::backend) fn resolve_address(
        &self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        _timeout: Duration,
    ) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let action = || format!("resolving the address {peer}");
        let preferred = local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let device = inner.device()?;
        let ip = choice::source(device, preferred, peer.ip()).ok_or_else(|| {
            let error = io::Error::from_raw_os_error(libc::ENETUNREACH);
            call_failed(Call::CmAddress, action(), error)
        })?;
        let port = local.map_or(0, |local| local.port());
        let lease =
            PortLease::new(&inner.devices, self.purpose, BindAddr::Address(ip), port, inner.shares_port);
        let lease = lease.map_err(|error| call_failed(Call::CmAddress, action(), error))?;
        inner.local = Some(SocketAddr::new(ip, lease.port));
        inner.port = Some(lease);
        inner.peer = Some(peer);
        self.push_local_event(inner, Event::AddressResolved);
        Ok(())
    }

    pub(in crate::backend) fn resolve_route(&self, _timeout: Duration) -> Result<()> {
        self.push_local_event(&mut self.inner.lock(), Event::RouteResolved);
        Ok(())
    }

    /// Adds the event of an operation that completes at once.
    fn push_local_event(&self, inner: &mut Inner, event: Event) {
        inner.local_events.push_back(event);
        self.channel.wake();
    }

    pub(in crate::backend) fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.lock().local
    }

    pub(in crate::backend) fn path(&self) -> Result<Path> {
        let inner = self.inner.lock();
        let (local, peer) = inner.addrs()?;
        Ok(Path {
            device: inner.device()?.name.clone(),
            port: 1,
            gid: Gid::from(local.ip()),
            pkey_index: 0,
            local,
            peer,
        })
    }

    pub(in crate::backend) fn qp_attributes(&self, transport: Transport) -> Result<(PeerEnd, ReadyToSend)> {
        let inner = self.inner.lock();
        let (device, (id, local_qp)) = (inner.device()?, inner.connection()?);
        // Until this side's parameters are set, the peer's are used. The caller reduces the values later.
        let local_qp = local_qp.unwrap_or_else(|| {
            let mut local_qp = LocalQp::new(Qpn::truncate(0));
            local_qp.rd_atomic_limits =
                cm::RdAtomicLimits { max_dest_rd_atomic: u8::MAX, max_rd_atomic: u8::MAX };
            local_qp
        });
        let ready = device
            .nic
            .cm()
            .qp_attributes(id, &local_qp)
            .map_err(|error| abandoned_error(error, "querying the peer's queue pair"))?;
        let (receiving, sending) = (ready.ready_to_receive, ready.ready_to_send);
        let connection = PeerEnd {
            address: inner.address(device, receiving.path.remote())?,
            qpn: receiving.remote_qpn,
            psn: receiving.psn,
            mtu: receiving.path_mtu,
            max_dest_rd_atomic: receiving.max_dest_rd_atomic,
            min_rnr_timer: receiving.min_rnr_timer.code(),
        };
        let send = ReadyToSend {
            transport,
            psn: sending.psn,
            timeout: sending.timeout.code(),
            retry_count: sending.retry_count,
            rnr_retry: sending.rnr_retry,
            max_rd_atomic: sending.max_rd_atomic,
        };
        Ok((connection, send))
    }

    pub(in crate::backend) fn connect(&self, parameters: &Parameters<'_>) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let local_qp = inner.local_qp(parameters);
        let mtu = inner.device()?.nic.mtu();
        inner.pending_request = Some((parameters.private_data.to_vec(), mtu));
        self.send_request(inner, local_qp)
    }

    /// Sends the connect request, or sends it again with another path MTU.
    fn send_request(&self, inner: &mut Inner, local_qp: LocalQp) -> Result<()> {
        let (device, (local, peer)) = (inner.device()?, inner.addrs()?);
        let (private_data, mtu) = inner.pending_request.as_ref().ok_or_else(not_established)?;
        let addrs = AddrPair { local: local.ip(), remote: peer.ip() };
        let mut connect = ConnectParams::new(addrs, service(self.purpose, peer.port()), local_qp, Time::MAX);
        connect.source_port = local.port();
        connect.path_mtu = *mtu;
        connect.traffic_class = inner.traffic_class;
        connect.private_data = private_data;
        let requested = device.nic.cm().connect(connect, CM_TIMEOUT, &self.channel);
        let id =
            requested.map_err(|error| nic_error(Call::CmConnect, error, "sending the connect request"))?;
        inner.role = Role::Connection(id, Some(local_qp));
        Ok(())
    }

    /// Sends the request again with a smaller path MTU, if the peer rejected it because of its MTU. Returns whether the
    /// request was sent.
    fn retry_with_smaller_mtu(&self, rejection: &cm::Rejection) -> Result<bool> {
        let inner = &mut *self.inner.lock();
        let preferred = rejection.info.as_bytes().first().and_then(|code| PathMtu::from_code(*code));
        let (Some((_, mtu)), Some(preferred), RejectReason::InvalidPathMtu) =
            (&mut inner.pending_request, preferred, rejection.reason)
        else {
            return Ok(false);
        };
        if preferred >= *mtu {
            return Ok(false);
        }
        *mtu = preferred;
        let (id, local_qp) = inner.connection()?;
        inner.device()?.nic.cm().abort(id, DISCONNECT_TIMEOUT);
        self.send_request(inner, local_qp.ok_or_else(not_established)?)?;
        Ok(true)
    }

    pub(in crate::backend) fn accept(&self, parameters: &Parameters<'_>) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let (id, _) = inner.connection()?;
        let local_qp = inner.local_qp(parameters);
        let accepted = inner.device()?.nic.cm().accept(id, &local_qp, parameters.private_data, CM_TIMEOUT);
        accepted.map_err(|error| abandoned_error(error, "accepting a connect request"))?;
        inner.role = Role::Connection(id, Some(local_qp));
        Ok(())
    }

    pub(in crate::backend) fn resolve_service(&self, private_data: &[u8]) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let (local, peer) = inner.addrs()?;
        let resolve = ResolveParams {
            addrs: AddrPair { local: local.ip(), remote: peer.ip() },
            service: service(self.purpose, peer.port()),
            source_port: local.port(),
            private_data,
            deadline: Time::MAX,
        };
        let requested = inner.device()?.nic.cm().resolve_service(resolve, CM_TIMEOUT, &self.channel);
        let id = requested.map_err(|error| {
            nic_error(Call::CmConnect, error, "sending the service ID resolution request")
        })?;
        inner.role = Role::Querying(id);
        Ok(())
    }

    pub(in crate::backend) fn accept_query(&self, qpn: Qpn, private_data: &[u8]) -> Result<()> {
        let inner = self.inner.lock();
        let Role::Queried(id) = inner.role else { return Err(not_established()) };
        let accepted = inner.device()?.nic.cm().accept_query(id, qpn, UDP_QKEY, private_data);
        accepted.map_err(|error| abandoned_error(error, "answering the service ID resolution request"))
    }

    pub(in crate::backend) fn reject(&self, private_data: &[u8]) -> Result<()> {
        let inner = self.inner.lock();
        let manager = inner.device()?.nic.cm();
        let rejected = match inner.role {
            Role::Queried(id) => manager.reject_query(id, private_data),
            _ => manager.reject(inner.connection()?.0, private_data),
        };
        rejected.map_err(|error| abandoned_error(error, "rejecting a request"))
    }

    pub(in crate::backend) fn establish(&self) -> Result<()> {
        let inner = self.inner.lock();
        let established = inner.device()?.nic.cm().establish(inner.connection()?.0);
        established.map_err(|error| abandoned_error(error, "establishing the connection"))
    }

    pub(in crate::backend) fn disconnect(&self) -> Result<()> {
        let inner = self.inner.lock();
        match inner.device()?.nic.cm().disconnect(inner.connection()?.0, DISCONNECT_TIMEOUT) {
            // The peer disconnected first, and this side has replied.
            Err(adverb_soft::Error::Cm(CallError::WrongState(State::TimeWait) | CallError::Unknown)) => {
                Ok(())
            }
            ended => ended.map_err(|error| nic_error(Call::CmConnect, error, "disconnecting")),
        }
    }
}

impl Inner {
    /// Returns the NIC that the identifier is on.
    fn device(&self) -> Result<&Arc<Device>> {
        self.devices.first().ok_or_else(not_established)
    }

    fn addrs(&self) -> Result<(SocketAddr, SocketAddr)> {
        self.local.zip(self.peer).ok_or_else(not_established)
    }

    fn connection(&self) -> Result<(ConnectionId, Option<LocalQp>)> {
        match self.role {
            Role::Connection(id, local_qp) => Ok((id, local_qp)),
            _ => Err(not_established()),
        }
    }

    fn local_qp(&self, parameters: &Parameters<'_>) -> LocalQp {
        let mut local_qp = LocalQp::new(parameters.qpn);
        local_qp.rd_atomic_limits = cm::RdAtomicLimits {
            max_dest_rd_atomic: parameters.depths.max_dest_rd_atomic,
            max_rd_atomic: parameters.depths.max_rd_atomic,
        };
        local_qp.retry_count = parameters.retry_count;
        local_qp.rnr_retry = parameters.rnr_retry;
        local_qp.ack_timeout = self.ack_timeout;
        local_qp.has_srq = parameters.shared_receives;
        local_qp
    }

    /// Returns a peer's address in the form that queue pairs use.
    fn address(&self, device: &Device, remote: IpAddr) -> Result<Address> {
        let (local, _) = self.addrs()?;
        let index = device.nic.addresses().iter().position(|address| *address == local.ip());
        Ok(Address {
            gid: Gid::from(remote),
            lid: 0,
            port: 1,
            gid_index: index.and_then(|index| u8::try_from(index).ok()).ok_or_else(not_established)?,
            uses_grh: true,
            traffic_class: self.traffic_class,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            service_level: 0,
        })
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        // A forked child must not change the parent's connections.
        let Some(device) = inner.devices.first().filter(|device| device.is_owned()) else { return };
        let manager = device.nic.cm();
        match &inner.role {
            Role::New => {}
            Role::Listening(listeners) => {
                for (device, listener) in inner.devices.iter().zip(listeners) {
                    _ = device.nic.cm().close_listener(*listener);
                }
            }
            Role::Connection(id, _) => manager.abort(*id, DISCONNECT_TIMEOUT),
            Role::Querying(id) | Role::Queried(id) => manager.cancel_query(*id),
        }
    }
}

fn service(purpose: Purpose, port: u16) -> ServiceId {
    match purpose {
        Purpose::Connections => ServiceId::tcp_port(port),
        Purpose::Datagrams => ServiceId::udp_port(port),
    }
}

/// Returns the error of an operation on a connection, whose peer may have abandoned it.
fn abandoned_error(error: adverb_soft::Error, action: &str) -> Error {
    match error {
        adverb_soft::Error::Cm(_) => {
            let source = io::Error::new(io::ErrorKind::NotConnected, error);
            call_failed(Call::CmAccept, action, source)
        }
        _ => nic_error(Call::CmAccept, error, action),
    }
}

fn not_established() -> Error {
    Error::InvalidRequest { reason: "the connection is not established, or already closed".into() }
}

/// The timeout of the connection manager for a peer's reply. Callers have their own, shorter deadlines.
const CM_TIMEOUT: Duration = Duration::from_secs(600);

/// The timeout of a disconnect request.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const HOP_LIMIT: u8 = 64;
