//! The connection managers of both backends, behind [`verbs::cm`](crate::cm).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use adverb_proto::explain::Call;
use adverb_proto::types::{Gid, Qpn, RejectReason, Transport};

use super::{Address, PeerEnd, ReadyToSend};
use crate::error::{Error, Result, call_failed};
#[cfg(feature = "soft")]
use std::sync::Arc;

#[cfg(feature = "ibv")]
use super::ibv;
#[cfg(feature = "soft")]
use super::soft::connection_manager as soft;

/// Calls the backend that the value belongs to.
macro_rules! dispatch {
    ($value:expr, $backend:ident => $call:expr) => {
        match *$value {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref $backend) => $call,
            #[cfg(feature = "soft")]
            Self::Soft(ref $backend) => $call,
        }
    };
}

/// A connection manager ID: an endpoint of connections, as a socket is for TCP. It has its own event queue.
pub(crate) enum Identifier {
    #[cfg(feature = "ibv")]
    Ibv(ibv::Identifier),
    #[cfg(feature = "soft")]
    Soft(Box<soft::Identifier>),
}

impl Identifier {
    /// Creates an identifier that listens at a local address, or at every address.
    ///
    /// It is on the software devices that are open in this process and have the address. If there are none, it is on
    /// hardware, if hardware may have the address. Otherwise, at a loopback address or the unspecified address, a software
    /// device is opened.
    pub(crate) fn at(purpose: Purpose, address: IpAddr) -> Result<Identifier> {
        #[cfg(feature = "soft")]
        {
            let open_devices = soft::listening_devices(address);
            if !open_devices.is_empty() {
                return Identifier::on_software(purpose, open_devices);
            }
            if (address.is_loopback() || address.is_unspecified()) && !is_hardware_addr(address) {
                let device = soft::open_listening(address)?;
                return Identifier::on_software(purpose, vec![device]);
            }
        }
        Identifier::on_hardware(purpose, address)
    }

    /// Creates an identifier that connects to a peer, from the local address if one is given. The device is chosen as
    /// for listening.
    pub(crate) fn for_connecting(
        purpose: Purpose,
        local: Option<IpAddr>,
        peer: IpAddr,
    ) -> Result<Identifier> {
        #[cfg(feature = "soft")]
        {
            if let Some(device) = soft::connecting_device(local, peer) {
                return Identifier::on_software(purpose, vec![device]);
            }
            if soft::is_loopback(peer) && !is_hardware_addr(local.unwrap_or(peer)) {
                let device = soft::open_connecting(local, peer)?;
                return Identifier::on_software(purpose, vec![device]);
            }
        }
        #[cfg(not(feature = "soft"))]
        let _ = local; // It is passed to the kernel when the address is resolved.
        Identifier::on_hardware(purpose, peer)
    }

    #[cfg(feature = "soft")]
    fn on_software(purpose: Purpose, devices: Vec<Arc<soft::Device>>) -> Result<Identifier> {
        Ok(Identifier::Soft(Box::new(soft::Identifier::new(purpose, devices)?)))
    }

    /// Creates an identifier on hardware. The error contains `address`.
    pub(crate) fn on_hardware(purpose: Purpose, address: IpAddr) -> Result<Identifier> {
        #[cfg(feature = "ibv")]
        let created = ibv::Identifier::new(purpose).map(Identifier::Ibv);
        #[cfg(not(feature = "ibv"))]
        let created = Err(super::no_backend());
        if cfg!(feature = "soft") {
            return created.map_err(|error| match error {
                error @ (Error::PermissionDenied { .. } | Error::DescriptorLimit { .. }) => error,
                error => call_failed(
                    Call::CmAddress,
                    format!("finding an RDMA device for {address}"),
                    io::Error::new(io::ErrorKind::NotFound, error),
                ),
            });
        }
        created
    }

    /// Returns the descriptor that is readable while events are pending.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        dispatch!(self, identifier => identifier.event_fd())
    }

    /// Waits until events are pending. Returns `false` if the timeout expires first, or a signal interrupts the wait.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        dispatch!(self, identifier => identifier.wait(timeout))
    }

    /// Copies, acknowledges and returns the next event, if there is one.
    pub(crate) fn try_event(&self) -> Result<Option<Event>> {
        dispatch!(self, identifier => identifier.try_event())
    }

    /// Lets other identifiers use the same address. This must be called before binding.
    pub(crate) fn reuse_addr(&self) -> Result<()> {
        dispatch!(self, identifier => identifier.reuse_addr())
    }

    /// Sets the ACK timeout of both ends, as a code. Devices that can't choose it ignore the call.
    pub(crate) fn set_ack_timeout(&self, code: u8) {
        dispatch!(self, identifier => identifier.set_ack_timeout(code));
    }

    /// Sets the traffic class of the connection's packets.
    pub(crate) fn set_traffic_class(&self, traffic_class: u8) -> Result<()> {
        dispatch!(self, identifier => identifier.set_traffic_class(traffic_class))
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<()> {
        dispatch!(self, identifier => identifier.bind(address))
    }

    pub(crate) fn listen(&self, backlog: u32) -> Result<()> {
        dispatch!(self, identifier => identifier.listen(backlog))
    }

    /// Starts to resolve the device that has a route to an address.
    pub(crate) fn resolve_address(
        &self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        dispatch!(self, identifier => identifier.resolve_address(local, peer, timeout))
    }

    /// Starts to resolve the path from that device.
    pub(crate) fn resolve_route(&self, timeout: Duration) -> Result<()> {
        dispatch!(self, identifier => identifier.resolve_route(timeout))
    }

    /// Returns the local address, once the identifier has one.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        dispatch!(self, identifier => identifier.local_addr())
    }

    /// Returns the addresses and the device of the connection, once the route is resolved, or for a request.
    pub(crate) fn path(&self) -> Result<Path> {
        dispatch!(self, identifier => identifier.path())
    }

    /// Returns the attributes that move a queue pair to RTR and RTS: for a request, or after a response.
    pub(crate) fn qp_attributes(&self, transport: Transport) -> Result<(PeerEnd, ReadyToSend)> {
        dispatch!(self, identifier => identifier.qp_attributes(transport))
    }

    /// Sends a connect request to the peer.
    pub(crate) fn connect(&self, parameters: &Parameters<'_>) -> Result<()> {
        dispatch!(self, identifier => identifier.connect(parameters))
    }

    /// Accepts a request, with a queue pair that is ready to send.
    pub(crate) fn accept(&self, parameters: &Parameters<'_>) -> Result<()> {
        dispatch!(self, identifier => identifier.accept(parameters))
    }

    /// Queries the peer for its UD queue pair.
    pub(crate) fn resolve_service(&self, private_data: &[u8]) -> Result<()> {
        dispatch!(self, identifier => identifier.resolve_service(private_data))
    }

    /// Sends a UD queue pair to a peer that queries for it.
    pub(crate) fn accept_query(&self, qpn: Qpn, private_data: &[u8]) -> Result<()> {
        dispatch!(self, identifier => identifier.accept_query(qpn, private_data))
    }

    /// Rejects a request, or a response.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        dispatch!(self, identifier => identifier.reject(private_data))
    }

    /// Establishes a connection that the peer accepted, with a queue pair that is ready to send.
    pub(crate) fn establish(&self) -> Result<()> {
        dispatch!(self, identifier => identifier.establish())
    }

    /// Disconnects, or replies to the peer's disconnect request.
    pub(crate) fn disconnect(&self) -> Result<()> {
        dispatch!(self, identifier => identifier.disconnect())
    }
}

/// Whether hardware has a loopback address, as the kernel's software devices may. For the unspecified address: whether
/// there is any hardware.
/// (The kernel's connection manager can be bound to any loopback address, even if no device has a route to it.)
#[cfg(feature = "soft")]
fn is_hardware_addr(address: IpAddr) -> bool {
    #[cfg(feature = "ibv")]
    let found = ibv::Device::list().unwrap_or_default().iter().any(|info| {
        let gids = || ibv::Device::open(&info.name).and_then(|device| device.gid_table()).unwrap_or_default();
        address.is_unspecified() || gids().iter().any(|entry| entry.gid == Gid::from(address))
    });
    #[cfg(not(feature = "ibv"))]
    let found = false;
    found
}

/// Returns the reject reason that corresponds to the status of a rejected query (vol. 1, 12.11.2).
pub(super) fn sidr_reject_reason(status: u8) -> RejectReason {
    match status {
        1 => RejectReason::InvalidServiceId,
        2 => RejectReason::ConsumerReject,
        3 => RejectReason::NoQueuePair,
        4 => RejectReason::PortAndCmRedirection,
        _ => RejectReason::UnsupportedRequest,
    }
}

/// The purpose of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Purpose {
    /// Reliable connections.
    Connections,
    /// Resolving UD queue pairs.
    Datagrams,
}

/// The addresses and the device of a connection.
pub(crate) struct Path {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) gid: Gid,
    pub(crate) pkey_index: u16,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// The parameters of a connect request or of its acceptance.
pub(crate) struct Parameters<'a> {
    pub(crate) qpn: Qpn,
    /// Whether the queue pair uses a shared receive queue.
    pub(crate) shared_receives: bool,
    pub(crate) private_data: &'a [u8],
    pub(crate) depths: Depths,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
}

/// The maximum numbers of outstanding READs and atomics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Depths {
    /// The maximum number of the peer's requests that this side serves.
    pub(crate) max_dest_rd_atomic: u8,
    /// The maximum number of this side's requests that the peer serves.
    pub(crate) max_rd_atomic: u8,
}

impl Depths {
    /// Returns the smaller of both values, for each direction.
    pub(crate) fn min(self, other: Depths) -> Depths {
        Depths {
            max_dest_rd_atomic: self.max_dest_rd_atomic.min(other.max_dest_rd_atomic),
            max_rd_atomic: self.max_rd_atomic.min(other.max_rd_atomic),
        }
    }
}

/// An event of an identifier.
pub(crate) enum Event {
    AddressResolved,
    RouteResolved,
    /// A peer requests a connection.
    Request(Request),
    /// The peer accepted.
    Response {
        private_data: Vec<u8>,
    },
    /// The peer replied to a query with its UD queue pair.
    ServiceResolved {
        qpn: Qpn,
        qkey: u32,
        address: Address,
        private_data: Vec<u8>,
    },
    /// The peer rejected.
    Rejected {
        reason: RejectReason,
        private_data: Vec<u8>,
    },
    /// The address, the route or the peer couldn't be reached.
    Failed(io::Error),
    Established,
    Disconnected,
    DeviceRemoved,
    AddressChanged,
    /// The queue pair's number may be used for a new connection.
    TimewaitExit,
    /// An event that this crate doesn't use.
    Other,
}

/// A peer's request for a connection.
pub(crate) struct Request {
    /// The identifier of the future connection.
    pub(crate) identifier: Identifier,
    /// The numbers that the peer requests and offers.
    pub(crate) depths: Depths,
    pub(crate) private_data: Vec<u8>,
}
