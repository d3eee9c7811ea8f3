//! The connection manager of an adapter: what applications ask of it, and who is told what comes of that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::cm::{
    CallError, Connect, ConnectionId, Event, Listen, ListenerId, Manager, Offer, QueryId, Ready, Resolve,
    ResourceCounts, State, Statistics,
};
use adverb_wire::Qpn;
use adverb_wire::cm::{RejectReason, SidrStatus};

use super::Nic;
use super::engine::Engine;
use super::random;
use crate::cm_event_channel::{CmEvent, CmEventChannel};
use crate::error::Error;

/// The connection manager of an adapter: connections by address and port, with whoever speaks InfiniBand's communication
/// management protocol. See [`Nic::cm`].
///
/// What comes of a call is told in an [`CmEventChannel`]. Calls are those of [`Manager`], whose words hold here too.
#[derive(Clone, Copy, Debug)]
pub struct Cm<'a> {
    nic: &'a Nic,
}

impl Nic {
    /// Its connection manager.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use adverb_proto::cm::{Bind, Listen};
    /// use adverb_proto::types::Transport;
    /// use adverb_soft::{CmEventChannel, Nic, NicOptions};
    /// use adverb_wire::cm::ServiceId;
    ///
    /// let nic = Nic::open(NicOptions::loopback())?;
    /// let inbox = Arc::new(CmEventChannel::new()?);
    /// let service = ServiceId::tcp_port(7471);
    /// let listen = Listen { service, bind: Bind::Any, transport: Transport::Rc, backlog: 16 };
    /// let listener = nic.cm().listen(listen, &inbox)?;
    /// assert_eq!(inbox.take(), None);
    /// nic.cm().close(listener)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cm(&self) -> Cm<'_> {
        Cm { nic: self }
    }
}

impl Cm<'_> {
    /// Listens. Requests and questions come to the inbox; each request is to be [claimed](Cm::subscribe).
    ///
    /// # Errors
    ///
    /// If somebody listens there already, or the adapter has failed.
    pub fn listen(&self, listen: Listen, inbox: &Arc<CmEventChannel>) -> Result<ListenerId, Error> {
        self.call(|engine, _| {
            let id = engine.gsi.manager.listen(listen)?;
            let desk = Desk { inbox: Arc::clone(inbox), backlog: listen.backlog.max(1) };
            engine.gsi.inboxes.listeners.insert(id, desk);
            Ok(id)
        })
    }

    /// Listens no longer. What nobody has taken from the inbox is rejected.
    ///
    /// # Errors
    ///
    /// If there is no such listener.
    pub fn close(&self, listener: ListenerId) -> Result<(), Error> {
        let addresses = self.nic.addresses();
        self.end(|engine, now| {
            let (manager, inboxes) = (&mut engine.gsi.manager, &mut engine.gsi.inboxes);
            // Listeners of several adapters may share an inbox.
            let is_ours = |address: &_| addresses.contains(address);
            if let Some(desk) = inboxes.listeners.remove(&listener) {
                desk.inbox.retain(|event| match event {
                    CmEvent::Event(Event::Request(request))
                        if request.listener == listener && is_ours(&request.ends.local) =>
                    {
                        // Some may have been given up by their peers.
                        _ = manager.reject(now, request.id, RejectReason::ConsumerReject, &[]);
                        false
                    }
                    CmEvent::Event(Event::Query(query))
                        if query.listener == listener && is_ours(&query.ends.local) =>
                    {
                        _ = manager.refuse_query(now, query.id, SidrStatus::Rejected, &[]);
                        false
                    }
                    _ => true,
                });
            }
            Ok(manager.close(now, listener)?)
        })
    }

    /// Has what becomes of a request told in this inbox: before it is answered.
    ///
    /// # Errors
    ///
    /// If the peer has given up meanwhile.
    pub fn subscribe(&self, request: ConnectionId, inbox: &Arc<CmEventChannel>) -> Result<(), Error> {
        self.call(|engine, _| match engine.gsi.manager.state(request) {
            Some(State::ReqReceived) => {
                engine.gsi.inboxes.connections.insert(request, Arc::clone(inbox));
                Ok(())
            }
            Some(state) => Err(CallError::WrongState(state).into()),
            None => Err(CallError::Unknown.into()),
        })
    }

    /// Asks a peer for a connection, for as long as `timeout`: the deadline in `connect` isn't looked at.
    ///
    /// # Errors
    ///
    /// As [`Manager::connect`], and if the adapter has failed.
    pub fn connect(
        &self,
        mut connect: Connect<'_>,
        timeout: Duration,
        inbox: &Arc<CmEventChannel>,
    ) -> Result<ConnectionId, Error> {
        self.call(|engine, now| {
            connect.deadline = now + timeout;
            let id = engine.gsi.manager.connect(now, &connect, &mut random)?;
            engine.gsi.inboxes.connections.insert(id, Arc::clone(inbox));
            Ok(id)
        })
    }

    /// What the queue pair must be told: once a request or an acceptance has come.
    ///
    /// # Errors
    ///
    /// As [`Manager::ready`].
    pub fn ready(&self, id: ConnectionId, offer: &Offer) -> Result<Ready, Error> {
        self.call(|engine, _| {
            let mut ready = engine.gsi.manager.ready(id, offer)?;
            let path = &mut ready.receiving.path;
            let linked = engine.path(path.local(), path.remote(), path.source_port());
            *path = linked.map_or(*path, |linked| linked.with_route(path.route()));
            Ok(ready)
        })
    }

    /// Accepts a request, with a queue pair that is ready to receive.
    ///
    /// # Errors
    ///
    /// As [`Manager::accept`].
    pub fn accept(
        &self,
        id: ConnectionId,
        offer: &Offer,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<(), Error> {
        self.call(|engine, now| Ok(engine.gsi.manager.accept(now, id, offer, private_data, now + timeout)?))
    }

    /// Completes a connection that the peer has accepted, with a queue pair that is ready to send.
    ///
    /// # Errors
    ///
    /// As [`Manager::establish`].
    pub fn establish(&self, id: ConnectionId) -> Result<(), Error> {
        self.call(|engine, now| Ok(engine.gsi.manager.establish(now, id)?))
    }

    /// Says no to a peer that asked for, or accepted, a connection.
    ///
    /// # Errors
    ///
    /// As [`Manager::reject`].
    pub fn reject(&self, id: ConnectionId, private_data: &[u8]) -> Result<(), Error> {
        self.call(|engine, now| {
            Ok(engine.gsi.manager.reject(now, id, RejectReason::ConsumerReject, private_data)?)
        })
    }

    /// Ends a connection that stands; by the end of `timeout` it is, whatever the peer says.
    ///
    /// # Errors
    ///
    /// As [`Manager::disconnect`].
    pub fn disconnect(&self, id: ConnectionId, timeout: Duration) -> Result<(), Error> {
        self.call(|engine, now| Ok(engine.gsi.manager.disconnect(now, id, now + timeout)?))
    }

    /// Wants nothing more of a connection, however far it has come: the peer is told, and the inbox is told no more.
    pub fn abandon(&self, id: ConnectionId, timeout: Duration) {
        _ = self.end(|engine, now| {
            engine.gsi.inboxes.connections.remove(&id);
            // It may be gone already.
            _ = engine.gsi.manager.abandon(now, id, now + timeout);
            Ok(())
        });
    }

    /// Asks a peer for a datagram queue pair, for as long as `timeout`: the deadline in `resolve` isn't looked at.
    ///
    /// # Errors
    ///
    /// As [`Manager::resolve`].
    pub fn resolve(
        &self,
        mut resolve: Resolve<'_>,
        timeout: Duration,
        inbox: &Arc<CmEventChannel>,
    ) -> Result<QueryId, Error> {
        self.call(|engine, now| {
            resolve.deadline = now + timeout;
            let id = engine.gsi.manager.resolve(now, &resolve, &mut random)?;
            engine.gsi.inboxes.queries.insert(id, Arc::clone(inbox));
            Ok(id)
        })
    }

    /// Tells a peer that asked for it a datagram queue pair.
    ///
    /// # Errors
    ///
    /// As [`Manager::answer`].
    pub fn answer_query(&self, id: QueryId, qpn: Qpn, qkey: u32, private_data: &[u8]) -> Result<(), Error> {
        self.call(|engine, now| Ok(engine.gsi.manager.answer(now, id, qpn, qkey, private_data)?))
    }

    /// Refuses to tell a peer a datagram queue pair.
    ///
    /// # Errors
    ///
    /// As [`Manager::refuse_query`].
    pub fn refuse_query(&self, id: QueryId, private_data: &[u8]) -> Result<(), Error> {
        self.call(|engine, now| {
            Ok(engine.gsi.manager.refuse_query(now, id, SidrStatus::Rejected, private_data)?)
        })
    }

    /// Wants nothing more of a question: a peer's is refused, if it wasn't answered, and ours is told of no more.
    pub fn abandon_query(&self, id: QueryId) {
        _ = self.end(|engine, now| {
            if engine.gsi.inboxes.queries.remove(&id).is_none() {
                _ = engine.gsi.manager.refuse_query(now, id, SidrStatus::Rejected, &[]);
            }
            Ok(())
        });
    }

    /// How far a connection has come, or `None` if it is gone.
    pub fn state(&self, id: ConnectionId) -> Option<State> {
        self.nic.shared.engine.lock().gsi.manager.state(id)
    }

    /// What has been counted.
    pub fn statistics(&self) -> Statistics {
        *self.nic.shared.engine.lock().gsi.manager.statistics()
    }

    /// What it holds: for finding leaks.
    pub fn resource_counts(&self) -> ResourceCounts {
        self.nic.shared.engine.lock().gsi.manager.resource_counts()
    }

    /// Has the manager do something, and what comes of it.
    fn call<T>(&self, call: impl FnOnce(&mut Engine, Time) -> Result<T, Error>) -> Result<T, Error> {
        self.nic.work(|engine| {
            engine.gsi.attend();
            call(engine, engine.now())
        })
    }

    /// Has the manager end something, which also one of an adapter that has failed does.
    fn end<T>(&self, end: impl FnOnce(&mut Engine, Time) -> Result<T, Error>) -> Result<T, Error> {
        let failed = self.nic.shared.engine.lock().failed;
        if failed { self.nic.end(|engine| end(engine, engine.now())) } else { self.call(end) }
    }
}

/// Who is told what.
#[derive(Debug, Default)]
pub(super) struct Inboxes {
    listeners: HashMap<ListenerId, Desk>,
    connections: HashMap<ConnectionId, Arc<CmEventChannel>>,
    queries: HashMap<QueryId, Arc<CmEventChannel>>,
}

/// Where requests come, and how many may wait there.
#[derive(Debug)]
struct Desk {
    inbox: Arc<CmEventChannel>,
    backlog: usize,
}

impl Inboxes {
    /// Gives an event to whom it concerns. Nobody may be left who cares.
    pub(super) fn deliver(&mut self, event: Event, manager: &Manager) {
        let inbox = match &event {
            Event::Request(request) => self.desk(request.listener, manager),
            Event::Query(query) => self.desk(query.listener, manager),
            Event::Accepted(acceptance) => self.connections.get(&acceptance.id),
            Event::Rejected(rejection) => self.connections.get(&rejection.id),
            Event::Established(id)
            | Event::Unreachable(id)
            | Event::Disconnected(id)
            | Event::TimewaitOver { id, .. } => self.connections.get(id),
            Event::Resolved(resolution) => self.queries.get(&resolution.id),
            Event::Refused { id, .. } | Event::NoAnswer(id) => self.queries.get(id),
            _ => None,
        };
        if let Some(inbox) = inbox {
            inbox.put(CmEvent::Event(event));
        }
    }

    /// The inbox of a listener. The manager lets no more wait than may; if more are there, then some have been given up,
    /// the oldest first.
    fn desk(&self, listener: ListenerId, manager: &Manager) -> Option<&Arc<CmEventChannel>> {
        let Desk { inbox, backlog } = self.listeners.get(&listener)?;
        if inbox.len() >= *backlog {
            inbox.retain(|event| match event {
                CmEvent::Event(Event::Request(request)) => {
                    manager.state(request.id) == Some(State::ReqReceived)
                }
                _ => true,
            });
        }
        while inbox.len() >= *backlog {
            inbox.take();
        }
        Some(inbox)
    }

    /// Tells everybody that nothing more will come.
    pub(super) fn fail(&mut self) {
        let listeners = self.listeners.values().map(|desk| &desk.inbox);
        for inbox in listeners.chain(self.connections.values()).chain(self.queries.values()) {
            inbox.put(CmEvent::NicFailed);
        }
    }
}
