//! The addresses and the device of a connection.

use std::fmt;
use std::net::SocketAddr;

use adverb_proto::types::{Gid, QpState, Transport};

use crate::backend::connection_manager as backend;
use crate::device::{Device, ProtectionDomain};
use crate::error::{Error, Result};
use crate::queue_pair::{QueuePair, QueuePairBuilder};

/// The local address, the peer's address, and the local device of a connection or route.
pub struct Path(backend::Path);

impl Path {
    pub(super) fn new(identifier: &backend::Identifier) -> Result<Path> {
        Ok(Path(identifier.path()?))
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer
    }

    /// Returns the name of the local device.
    pub fn device_name(&self) -> &str {
        &self.0.device
    }

    /// Returns the number of the local device's port.
    pub fn port(&self) -> u8 {
        self.0.port
    }

    /// Returns the GID of the local device's port.
    pub fn gid(&self) -> Gid {
        self.0.gid
    }

    /// Opens the local device.
    ///
    /// All paths over one device return the same handle, so that connections can share protection domains and
    /// completion queues. The device is closed when all objects that use it have been dropped.
    ///
    /// The caller may also use a device that [`Device::open`] has returned, if it has the same
    /// [name](Path::device_name).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Device::open`].
    pub fn open_device(&self) -> Result<Device> {
        Device::shared(&self.0.device)
    }

    /// Returns a builder of a reliable connected queue pair with the path's port and address.
    ///
    /// The caller sets the completion queues and the depths.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the domain belongs to another device.
    pub fn queue_pair(&self, domain: &ProtectionDomain) -> Result<QueuePairBuilder> {
        self.builder(domain, Transport::Rc)
    }

    pub(super) fn builder(
        &self,
        domain: &ProtectionDomain,
        transport: Transport,
    ) -> Result<QueuePairBuilder> {
        self.check_device(domain)?;
        let builder = domain.queue_pair(transport).port(self.0.port).pkey_index(self.0.pkey_index);
        Ok(builder.local_addr(self.0.gid.ip()))
    }

    /// Checks that a queue pair can be connected over this path.
    pub(super) fn check(&self, queue_pair: &QueuePair) -> Result<()> {
        self.check_port(queue_pair)?;
        if queue_pair.transport() != Transport::Rc {
            let reason = format!(
                "a {} queue pair cannot be connected by address: create the queue pair with `Path::queue_pair`, which \
                 creates an RC queue pair",
                queue_pair.transport()
            );
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let state = queue_pair.state.get();
        if state != QpState::Init {
            return Err(Error::WrongState { action: "connecting a queue pair", state });
        }
        Ok(())
    }

    /// Checks that a queue pair belongs to the path's device and port.
    pub(super) fn check_port(&self, queue_pair: &QueuePair) -> Result<()> {
        self.check_device(queue_pair.protection_domain())?;
        if queue_pair.source.port.number != self.0.port {
            let reason = format!(
                "the queue pair uses port {} of {}, but the connection uses port {}: create the queue pair with \
                 `Path::queue_pair`",
                queue_pair.source.port.number, self.0.device, self.0.port
            );
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        Ok(())
    }

    fn check_device(&self, domain: &ProtectionDomain) -> Result<()> {
        if domain.device().name() == self.0.device {
            return Ok(());
        }
        let reason = format!(
            "the connection uses {}, but the protection domain belongs to {}: create one on the device that `Path::open_device` returns",
            self.0.device,
            domain.device().name()
        );
        Err(Error::InvalidRequest { reason: reason.into() })
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Path")
            .field("local_addr", &self.0.local)
            .field("peer_addr", &self.0.peer)
            .field("device", &self.0.device)
            .field("port", &self.0.port)
            .finish_non_exhaustive()
    }
}

/// Shows both addresses, the device and its port.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backend::Path { local, peer, device, port, .. } = &self.0;
        write!(f, "{local} to {peer} over {device} port {port}")
    }
}
