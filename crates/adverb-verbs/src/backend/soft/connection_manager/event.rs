//! Events of connections on software NICs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use adverb_proto::cm::{self, ListenerId};
use adverb_soft::CmEvent;

use super::{Identifier, Role};
use crate::backend::connection_manager::{self as plain, Depths, Event, Request, sidr_reject_reason};
use crate::error::Result;

impl Identifier {
    pub(in crate::backend) fn try_event(&self) -> Result<Option<Event>> {
        if let Some(event) = self.inner.lock().local_events.pop_front() {
            self.channel.clear_wake();
            return Ok(Some(event));
        }
        loop {
            match self.channel.take() {
                None => return Ok(None),
                Some(CmEvent::Event(event)) => {
                    if let Some(event) = self.convert(event)? {
                        return Ok(Some(event));
                    }
                }
                Some(_) => return Ok(Some(Event::DeviceRemoved)),
            }
        }
    }

    /// Converts an event to the common form of all backends. Returns `None` if it was handled here.
    fn convert(&self, event: cm::Event) -> Result<Option<Event>> {
        Ok(Some(match event {
            cm::Event::Request(request) => return self.request(*request),
            cm::Event::Query(query) => return self.query(*query),
            cm::Event::Accepted(acceptance) => Event::Response { private_data: acceptance.private_data },
            cm::Event::Rejected(rejection) => {
                if self.retry_with_smaller_mtu(&rejection)? {
                    return Ok(None);
                }
                Event::Rejected { reason: rejection.reason, private_data: rejection.private_data }
            }
            cm::Event::QueryRejected { status, private_data, .. } => {
                Event::Rejected { reason: sidr_reject_reason(status.code()), private_data }
            }
            cm::Event::Resolved(found) => {
                let inner = self.inner.lock();
                Event::ServiceResolved {
                    qpn: found.qpn,
                    qkey: found.qkey,
                    address: inner.address(inner.device()?, found.addrs.remote)?,
                    private_data: found.private_data,
                }
            }
            cm::Event::Unreachable(_) | cm::Event::QueryTimedOut(_) => {
                Event::Failed(io::Error::from_raw_os_error(libc::ETIMEDOUT))
            }
            cm::Event::Established(_) => Event::Established,
            cm::Event::Disconnected(_) => Event::Disconnected,
            cm::Event::TimewaitExit { .. } => Event::TimewaitExit,
            _ => Event::Other,
        }))
    }

    /// Returns a peer's connect request, with its own identifier, or `None` if the peer has abandoned it.
    fn request(&self, request: cm::Request) -> Result<Option<Event>> {
        let peer = request.source.unwrap_or_else(|| SocketAddr::new(request.addrs.remote, 0));
        let role = Role::Connection(request.id, None);
        let mut identifier = self.create_identifier(request.addrs, request.listener, peer, role)?;
        identifier.inner.get_mut().traffic_class = request.path.traffic_class;
        let subscribed = {
            let inner = identifier.inner.lock();
            inner.device()?.nic.cm().subscribe(request.id, &identifier.channel)
        };
        if subscribed.is_err() {
            return Ok(None);
        }
        let depths = Depths {
            max_dest_rd_atomic: request.rd_atomic_limits.max_dest_rd_atomic,
            max_rd_atomic: request.rd_atomic_limits.max_rd_atomic,
        };
        let identifier = plain::Identifier::Soft(Box::new(identifier));
        Ok(Some(Event::Request(Request { identifier, depths, private_data: request.private_data })))
    }

    /// Returns a peer's query for a UD queue pair.
    fn query(&self, query: cm::Query) -> Result<Option<Event>> {
        let peer = query.source.unwrap_or_else(|| SocketAddr::new(query.addrs.remote, 0));
        let identifier =
            self.create_identifier(query.addrs, query.listener, peer, Role::Queried(query.id))?;
        let depths = Depths { max_dest_rd_atomic: 0, max_rd_atomic: 0 };
        let identifier = plain::Identifier::Soft(Box::new(identifier));
        Ok(Some(Event::Request(Request { identifier, depths, private_data: query.private_data })))
    }

    /// Creates the identifier of a request to this listener. If that fails, the request is rejected.
    fn create_identifier(
        &self,
        addrs: cm::AddrPair,
        listener: ListenerId,
        peer: SocketAddr,
        role: Role,
    ) -> Result<Identifier> {
        let inner = self.inner.lock();
        let Role::Listening(listeners) = &inner.role else { return Err(super::not_established()) };
        // A listener at every address has one channel for all its NICs.
        let is_requested = |(device, id): &(&Arc<_>, &ListenerId)| **id == listener && is_at(device, addrs);
        let requested = inner.devices.iter().zip(listeners).find(is_requested);
        let (device, _) = requested.ok_or_else(super::not_established)?;
        let local = inner.local.map(|local| SocketAddr::new(addrs.local, local.port()));
        match Identifier::new(self.purpose, vec![Arc::clone(device)]) {
            Ok(mut identifier) => {
                let inner = identifier.inner.get_mut();
                (inner.role, inner.local, inner.peer) = (role, local, Some(peer));
                Ok(identifier)
            }
            Err(error) => {
                match role {
                    Role::Connection(id, _) => device.nic.cm().abort(id, super::DISCONNECT_TIMEOUT),
                    Role::Queried(id) => device.nic.cm().cancel_query(id),
                    _ => {}
                }
                Err(error)
            }
        }
    }
}

fn is_at(device: &super::Device, addrs: cm::AddrPair) -> bool {
    device.nic.addresses().contains(&addrs.local)
}
