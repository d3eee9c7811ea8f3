//! The connection manager of a NIC: its calls, and the delivery of its events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::cm::{
    CallError, ConnectParams, ConnectionId, Event, ListenParams, ListenerId, LocalQp, Manager, QpAttributes,
    QueryId, ResolveParams, ResourceCounts, State, Statistics,
};
use adverb_wire::Qpn;
use adverb_wire::cm::{RejectReason, ServiceId, SidrStatus};

use super::Nic;
use super::engine::Engine;
use super::gsi::random_ids;
use super::lock::Notifications;
use crate::cm_event_channel::{CmEvent, CmEventChannel};
use crate::error::Error;

/// The connection manager of a NIC: it connects queue pairs by address and port. The peers must implement InfiniBand's
/// communication management protocol. See [`Nic::cm`].
///
/// Its methods correspond to the methods of [`Manager`]. The results are delivered as events to a [`CmEventChannel`].
#[derive(Clone, Copy, Debug)]
pub struct Cm<'a> {
    nic: &'a Nic,
}

impl Nic {
    /// Returns the NIC's connection manager.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use adverb_proto::cm::{BindAddr, ListenParams};
    /// use adverb_proto::types::Transport;
    /// use adverb_soft::{CmEventChannel, Nic, NicOptions};
    /// use adverb_wire::cm::ServiceId;
    ///
    /// let nic = Nic::open(NicOptions::loopback())?;
    /// let events = Arc::new(CmEventChannel::new()?);
    /// let service = ServiceId::tcp_port(7471);
    /// let listen = ListenParams { service, bind: BindAddr::Any, transport: Transport::Rc, backlog: 16 };
    /// let listener = nic.cm().listen(listen, &events)?;
    /// assert_eq!(events.take(), None);
    /// nic.cm().close_listener(listener)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cm(&self) -> Cm<'_> {
        Cm { nic: self }
    }
}

impl Cm<'_> {
    /// Listens for connection requests and service queries, which are delivered to `channel`. The caller must
    /// [subscribe](Cm::subscribe) to each connection request before it accepts or rejects the request.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Cm`] if another listener uses the service, or [`Error::NicFailed`] if the NIC has failed.
    pub fn listen(&self, listen: ListenParams, channel: &Arc<CmEventChannel>) -> Result<ListenerId, Error> {
        self.call(|engine, _| {
            // Another process at the address may listen on the service. Claiming it also fails if no file descriptor is
            // free.
            engine.port.claim_service(listen.service).map_err(|_| CallError::ServiceInUse(listen.service))?;
            let listened = engine.gsi.manager.listen(listen);
            if listened.is_err() {
                engine.port.release_service(listen.service);
            }
            let id = listened?;
            let listener_channel = ListenerChannel {
                channel: Arc::clone(channel),
                backlog: listen.backlog.max(1),
                service: listen.service,
            };
            engine.gsi.channels.listeners.insert(id, listener_channel);
            Ok(id)
        })
    }

    /// Closes a listener. Requests and queries that are still in its event channel are rejected.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Cm`] if the listener doesn't exist.
    pub fn close_listener(&self, listener: ListenerId) -> Result<(), Error> {
        let addresses = self.nic.addresses();
        self.call_even_if_failed(|engine, now| {
            let (manager, channels) = (&mut engine.gsi.manager, &mut engine.gsi.channels);
            let service = channels.listeners.get(&listener).map(|channel| channel.service);
            // Listeners of several NICs may share an event channel.
            let is_local = |address: &_| addresses.contains(address);
            if let Some(listener_channel) = channels.listeners.remove(&listener) {
                listener_channel.channel.retain(|event| match event {
                    CmEvent::Event(Event::Request(request))
                        if request.listener == listener && is_local(&request.addrs.local) =>
                    {
                        // The peer may have abandoned the request.
                        _ = manager.reject(now, request.id, RejectReason::ConsumerReject, &[]);
                        false
                    }
                    CmEvent::Event(Event::Query(query))
                        if query.listener == listener && is_local(&query.addrs.local) =>
                    {
                        _ = manager.reject_query(now, query.id, SidrStatus::Rejected, &[]);
                        false
                    }
                    _ => true,
                });
            }
            let closed = manager.close_listener(now, listener);
            if let Some(service) = service {
                engine.port.release_service(service);
            }
            Ok(closed?)
        })
    }

    /// Delivers the further events of a connection request to `channel`. The caller must subscribe before it accepts or
    /// rejects the request.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Cm`] if the peer has abandoned the request, or if the request was already accepted or rejected.
    pub fn subscribe(&self, request: ConnectionId, channel: &Arc<CmEventChannel>) -> Result<(), Error> {
        self.call(|engine, _| match engine.gsi.manager.state(request) {
            Some(State::ReqReceived) => {
                engine.gsi.channels.connections.insert(request, Arc::clone(channel));
                Ok(())
            }
            Some(state) => Err(CallError::WrongState(state).into()),
            None => Err(CallError::Unknown.into()),
        })
    }

    /// Requests a connection to a peer, with this timeout. The deadline in `connect` is ignored.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::connect`], or [`Error::NicFailed`] if the NIC has failed.
    pub fn connect(
        &self,
        mut connect: ConnectParams<'_>,
        timeout: Duration,
        channel: &Arc<CmEventChannel>,
    ) -> Result<ConnectionId, Error> {
        self.call(|engine, now| {
            connect.deadline = now + timeout;
            let id = engine.gsi.manager.connect(now, &connect, &mut random_ids(engine.gsi.share))?;
            engine.gsi.channels.connections.insert(id, Arc::clone(channel));
            Ok(id)
        })
    }

    /// Returns the attributes for the queue pair's transitions. The attributes are available after [`Event::Request`]
    /// or [`Event::Accepted`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::qp_attributes`].
    pub fn qp_attributes(&self, id: ConnectionId, local_qp: &LocalQp) -> Result<QpAttributes, Error> {
        self.call(|engine, _| {
            let mut ready = engine.gsi.manager.qp_attributes(id, local_qp)?;
            let path = &mut ready.ready_to_receive.path;
            let linked = engine.port.path(path.local(), path.remote(), path.source_port());
            *path = linked.map_or(*path, |linked| linked.with_route(path.route()));
            Ok(ready)
        })
    }

    /// Accepts a connection request, with a queue pair in the state RTR.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::accept`].
    pub fn accept(
        &self,
        id: ConnectionId,
        local_qp: &LocalQp,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<(), Error> {
        self.call(|engine, now| {
            Ok(engine.gsi.manager.accept(now, id, local_qp, private_data, now + timeout)?)
        })
    }

    /// Establishes a connection that the peer has accepted, with a queue pair in the state RTS.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::establish`].
    pub fn establish(&self, id: ConnectionId) -> Result<(), Error> {
        self.call(|engine, now| Ok(engine.gsi.manager.establish(now, id)?))
    }

    /// Rejects a connection that the peer requested or accepted.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::reject`].
    pub fn reject(&self, id: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.call(|engine, now| {
            Ok(engine.gsi.manager.reject(now, id, RejectReason::ConsumerReject, private_data)?)
        })
    }

    /// Disconnects an established connection. After `timeout`, the connection ends even if the peer doesn't reply.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::disconnect`].
    pub fn disconnect(&self, id: ConnectionId, timeout: Duration) -> Result<(), Error> {
        self.call(|engine, now| Ok(engine.gsi.manager.disconnect(now, id, now + timeout)?))
    }

    /// Abandons a connection in any state: the peer is notified, and no further events are delivered.
    pub fn abort(&self, id: ConnectionId, timeout: Duration) {
        _ = self.call_even_if_failed(|engine, now| {
            engine.gsi.channels.connections.remove(&id);
            // The connection may be closed already.
            _ = engine.gsi.manager.abort(now, id, now + timeout);
            Ok(())
        });
    }

    /// Queries a peer for the UD queue pair of a service (SIDR), with this timeout. The deadline in `resolve` is
    /// ignored.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::resolve_service`].
    pub fn resolve_service(
        &self,
        mut resolve: ResolveParams<'_>,
        timeout: Duration,
        channel: &Arc<CmEventChannel>,
    ) -> Result<QueryId, Error> {
        self.call(|engine, now| {
            resolve.deadline = now + timeout;
            let id = engine.gsi.manager.resolve_service(now, &resolve, &mut random_ids(engine.gsi.share))?;
            engine.gsi.channels.queries.insert(id, Arc::clone(channel));
            Ok(id)
        })
    }

    /// Replies to a peer's query with the UD queue pair of the service.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::accept_query`].
    pub fn accept_query(&self, id: QueryId, qpn: Qpn, qkey: u32, private_data: &[u8]) -> Result<(), Error> {
        self.call(|engine, now| Ok(engine.gsi.manager.accept_query(now, id, qpn, qkey, private_data)?))
    }

    /// Rejects a peer's query.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Manager::reject_query`].
    pub fn reject_query(&self, id: QueryId, private_data: &[u8]) -> Result<(), Error> {
        self.call(|engine, now| {
            Ok(engine.gsi.manager.reject_query(now, id, SidrStatus::Rejected, private_data)?)
        })
    }

    /// Abandons a query. A peer's query without a reply is rejected. The NIC's own query delivers no further events.
    pub fn cancel_query(&self, id: QueryId) {
        _ = self.call_even_if_failed(|engine, now| {
            if engine.gsi.channels.queries.remove(&id).is_none() {
                _ = engine.gsi.manager.reject_query(now, id, SidrStatus::Rejected, &[]);
            }
            Ok(())
        });
    }

    /// Returns the state of a connection, or `None` if it doesn't exist.
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.nic.shared.engine.lock().gsi.manager.state(id)
    }

    /// Returns the connection manager's statistics.
    pub fn statistics(&self) -> Statistics {
        *self.nic.shared.engine.lock().gsi.manager.statistics()
    }

    /// Returns the numbers of objects that the connection manager holds, to detect leaks.
    pub fn resource_counts(&self) -> ResourceCounts {
        self.nic.shared.engine.lock().gsi.manager.resource_counts()
    }

    /// Calls the manager, then drives the NIC.
    fn call<T>(&self, call: impl FnOnce(&mut Engine, Time) -> Result<T, Error>) -> Result<T, Error> {
        self.nic.call_and_drive(|engine| {
            engine.gsi.request_serve();
            call(engine, engine.now())
        })
    }

    /// Calls the manager for an operation that must also work if the NIC has failed.
    fn call_even_if_failed<T>(
        &self,
        call: impl FnOnce(&mut Engine, Time) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let failed = self.nic.shared.engine.lock().schedule.has_failed();
        if failed {
            self.nic.call_engine_even_if_failed(|engine| call(engine, engine.now()))
        } else {
            self.call(call)
        }
    }
}

/// The event channels of listeners, connections and queries.
#[derive(Debug, Default)]
pub(super) struct CmEventChannels {
    listeners: HashMap<ListenerId, ListenerChannel>,
    connections: HashMap<ConnectionId, Arc<CmEventChannel>>,
    queries: HashMap<QueryId, Arc<CmEventChannel>>,
}

/// A listener's event channel, and the maximum number of events in it.
#[derive(Debug)]
struct ListenerChannel {
    channel: Arc<CmEventChannel>,
    backlog: usize,
    service: ServiceId,
}

impl CmEventChannels {
    /// Delivers an event to its channel, if the channel is still subscribed.
    pub(super) fn deliver(&mut self, event: Event, manager: &Manager, notifications: &mut Notifications) {
        let channel = match &event {
            Event::Request(request) => self.listener_channel(request.listener, manager),
            Event::Query(query) => self.listener_channel(query.listener, manager),
            Event::Accepted(acceptance) => self.connections.get(&acceptance.id),
            Event::Rejected(rejection) => self.connections.get(&rejection.id),
            Event::Established(id)
            | Event::Unreachable(id)
            | Event::Disconnected(id)
            | Event::TimewaitExit { id, .. } => self.connections.get(id),
            Event::Resolved(resolution) => self.queries.get(&resolution.id),
            Event::QueryRejected { id, .. } | Event::QueryTimedOut(id) => self.queries.get(id),
            _ => None,
        };
        if let Some(channel) = channel {
            notifications.push(channel.put(CmEvent::Event(event)));
        }
    }

    /// Returns the event channel of a listener. The manager enforces the backlog, so if the channel is full, its oldest
    /// requests have been abandoned.
    fn listener_channel(&self, listener: ListenerId, manager: &Manager) -> Option<&Arc<CmEventChannel>> {
        let ListenerChannel { channel, backlog, .. } = self.listeners.get(&listener)?;
        if channel.len() >= *backlog {
            channel.retain(|event| match event {
                CmEvent::Event(Event::Request(request)) => {
                    manager.state(request.id) == Some(State::ReqReceived)
                }
                _ => true,
            });
        }
        while channel.len() >= *backlog {
            channel.take();
        }
        Some(channel)
    }

    /// Delivers [`CmEvent::NicFailed`] to all channels.
    pub(super) fn fail(&mut self, notifications: &mut Notifications) {
        let listeners = self.listeners.values().map(|listener_channel| &listener_channel.channel);
        for channel in listeners.chain(self.connections.values()).chain(self.queries.values()) {
            notifications.push(channel.put(CmEvent::NicFailed));
        }
    }
}
