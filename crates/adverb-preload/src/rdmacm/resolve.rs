//! Binding to local addresses, and resolving addresses and routes of peers.

use std::net::{IpAddr, SocketAddr};

use adverb_proto::types::Gid;
use adverb_sys::*;
use libc::{c_int, sockaddr};

use super::address::{self, Destination, destination};
use super::channel::Event;
use super::id::{Id, Stage};
use super::manager::{Families, Manager};
use super::{Status, status};

impl Id {
    /// Binds the identifier to a local address. A wildcard address is no address of the device yet.
    pub(super) fn bind(&self, addr: SocketAddr) -> Result<(), c_int> {
        let manager = Manager::get()?;
        let (stage, options) = {
            let state = self.state.lock();
            (state.stage, state.options)
        };
        if stage != Stage::Idle {
            return Err(libc::EINVAL);
        }
        let own = manager.local();
        if !addr.ip().is_unspecified() && destination(own, addr.ip()) != Some(Destination::Own) {
            return Err(libc::EADDRNOTAVAIL);
        }
        // SAFETY: the field is never written.
        let space = unsafe { (*self.as_ptr()).ps };
        let families = match addr {
            _ if !options.family_only => Families::Both,
            SocketAddr::V4(_) => Families::V4,
            SocketAddr::V6(_) => Families::V6,
        };
        let port = manager.claim_port(space, addr.port(), families, options.reuse_address)?;
        self.set_local(SocketAddr::new(addr.ip(), port.number));
        {
            let mut state = self.state.lock();
            (state.port, state.stage) = (Some(port), Stage::Bound);
        }
        if addr.ip().is_unspecified() { Ok(()) } else { self.attach_device(manager) }
    }

    fn resolve_address(&self, source: Option<SocketAddr>, addr: SocketAddr) -> Result<(), c_int> {
        let manager = Manager::get()?;
        let own = manager.local();
        let shown: IpAddr = Gid::from(own).udp_addr().ip();
        match self.state.lock().stage {
            Stage::Idle | Stage::Bound => {}
            _ => return Err(libc::EINVAL),
        }
        if self.state.lock().stage == Stage::Idle {
            let any = SocketAddr::new(shown, 0);
            // A program that names a wildcard address wants a port of its own.
            let source = source.map_or(any, |source| match source.ip().is_unspecified() {
                true => SocketAddr::new(shown, source.port()),
                false => source,
            });
            self.bind(source)?;
        } else if let Some(local) = self.local().filter(|local| local.ip().is_unspecified()) {
            self.set_local(SocketAddr::new(shown, local.port()));
        }
        let remote = match destination(own, addr.ip()) {
            Some(Destination::Own) => own,
            Some(Destination::Other(ip)) => ip,
            None => {
                self.put(Event::new(self, RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV));
                return Ok(());
            }
        };
        self.attach_device(manager)?;
        self.set_peer(addr, remote);
        {
            let mut state = self.state.lock();
            (state.remote, state.stage) = (Some(remote), Stage::AddressResolved);
        }
        self.put(Event::new(self, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        Ok(())
    }

    /// Sets the path to the peer, and reports it with an event, as the kernel does.
    pub(super) fn resolve_route(&self) -> Result<(), c_int> {
        let manager = Manager::get()?;
        {
            let mut state = self.state.lock();
            if state.stage != Stage::AddressResolved {
                return Err(libc::EINVAL);
            }
            state.stage = Stage::RouteResolved;
        }
        self.set_path(manager);
        self.put(Event::new(self, RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        Ok(())
    }
}

entry! {
    /// Binds an identifier to a local address.
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> Status {
        // SAFETY: the identifier is alive, and the address is complete.
        status(unsafe { address::read(addr).and_then(|addr| Id::of(id).bind(addr)) })
    }

    /// Resolves the address of a peer.
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src_addr: *mut sockaddr,
        dst_addr: *mut sockaddr,
        _timeout_ms: c_int,
    ) -> Status {
        // SAFETY: the identifier is alive, and the addresses are complete.
        let (id, source, addr) = unsafe {
            let source = (!src_addr.is_null()).then(|| address::read(src_addr)).transpose();
            (Id::of(id), source, address::read(dst_addr))
        };
        let resolved = source.and_then(|source| id.resolve_address(source, addr?));
        status(resolved.and_then(|()| id.complete()))
    }

    /// Resolves the route to a peer.
    fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> Status {
        // SAFETY: the identifier is alive.
        let id = unsafe { Id::of(id) };
        status(id.resolve_route().and_then(|()| id.complete()))
    }
}
