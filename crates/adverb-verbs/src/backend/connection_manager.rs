//! The engines below [`verbs::cm`](crate::cm): what establishes connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
#[cfg(feature = "soft")]
use std::sync::Arc;
use std::time::Duration;

use adverb_proto::types::{Gid, Qpn, RejectReason, Transport};

#[cfg(feature = "ibv")]
use super::ibv;
#[cfg(feature = "soft")]
use super::soft::connection_manager as soft;
use super::{Address, Connection, ReadyToSend};
use crate::error::{Error, Result};

/// Asks whichever engine it is.
macro_rules! dispatch {
    ($value:expr, $engine:ident => $call:expr) => {
        match *$value {
            #[cfg(feature = "ibv")]
            Self::Ibv(ref $engine) => $call,
            #[cfg(feature = "soft")]
            Self::Soft(ref $engine) => $call,
        }
    };
}

/// An identifier: to connections what a socket is to TCP. It has an event queue of its own.
pub(crate) enum Identifier {
    #[cfg(feature = "ibv")]
    Ibv(ibv::Identifier),
    #[cfg(feature = "soft")]
    Soft(Box<soft::Identifier>),
}

impl Identifier {
    /// A new one, to listen at an address of ours, or at every address.
    ///
    /// A software device that is open in this process and has the address is meant; else hardware is, if it may have it;
    /// else, at loopback addresses, a software device is opened.
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

    /// A new one, to connect to a peer, from an address of ours if one is said: chosen as for listening.
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
        let _ = local; // Which the kernel is told when the way is looked for.
        Identifier::on_hardware(purpose, peer)
    }

    #[cfg(feature = "soft")]
    fn on_software(purpose: Purpose, devices: Vec<Arc<soft::Device>>) -> Result<Identifier> {
        Ok(Identifier::Soft(Box::new(soft::Identifier::new(purpose, devices)?)))
    }

    /// One of hardware, which is all that may lead to `address`.
    pub(crate) fn on_hardware(purpose: Purpose, address: IpAddr) -> Result<Identifier> {
        #[cfg(feature = "ibv")]
        let created = ibv::Identifier::new(purpose).map(Identifier::Ibv);
        #[cfg(not(feature = "ibv"))]
        let created = Err(super::no_engine());
        if cfg!(feature = "soft") {
            return created.map_err(|error| Error::Verb {
                action: format!("finding an RDMA device for {address}"),
                error: io::Error::new(io::ErrorKind::NotFound, error.to_string()),
                hint: NO_HARDWARE.into(),
            });
        }
        created
    }

    /// The descriptor that is readable while there are events.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        dispatch!(self, identifier => identifier.event_fd())
    }

    /// Waits until there are events; `false` if none came in time, or the wait was interrupted.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        dispatch!(self, identifier => identifier.wait(timeout))
    }

    /// Takes an event, copied and acknowledged, if there is one.
    pub(crate) fn try_event(&self) -> Result<Option<Event>> {
        dispatch!(self, identifier => identifier.try_event())
    }

    /// Lets its address be used by others too. Before it is bound.
    pub(crate) fn reuse_addr(&self) -> Result<()> {
        dispatch!(self, identifier => identifier.reuse_addr())
    }

    /// How long both ends are to wait for acknowledgements, as a code; ignored where it can't be chosen.
    pub(crate) fn ack_timeout(&self, code: u8) {
        dispatch!(self, identifier => identifier.ack_timeout(code));
    }

    /// The traffic class of the connection's packets.
    pub(crate) fn traffic_class(&self, traffic_class: u8) -> Result<()> {
        dispatch!(self, identifier => identifier.traffic_class(traffic_class))
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<()> {
        dispatch!(self, identifier => identifier.bind(address))
    }

    pub(crate) fn listen(&self, backlog: u32) -> Result<()> {
        dispatch!(self, identifier => identifier.listen(backlog))
    }

    /// Begins to find the device that leads to an address.
    pub(crate) fn resolve_address(
        &self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        dispatch!(self, identifier => identifier.resolve_address(local, peer, timeout))
    }

    /// Begins to find the path from that device.
    pub(crate) fn resolve_route(&self, timeout: Duration) -> Result<()> {
        dispatch!(self, identifier => identifier.resolve_route(timeout))
    }

    /// The local address, once there is one.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        dispatch!(self, identifier => identifier.local_addr())
    }

    /// Between which addresses, and over which device. Once the route is known, or for a request.
    pub(crate) fn path(&self) -> Result<Path> {
        dispatch!(self, identifier => identifier.path())
    }

    /// With what a queue pair becomes ready: for a request, or after a response.
    pub(crate) fn qp_attributes(&self, transport: Transport) -> Result<(Connection, ReadyToSend)> {
        dispatch!(self, identifier => identifier.qp_attributes(transport))
    }

    /// Asks the peer for a connection.
    pub(crate) fn connect(&self, parameters: &Parameters<'_>) -> Result<()> {
        dispatch!(self, identifier => identifier.connect(parameters))
    }

    /// Accepts a request, with a queue pair that is ready.
    pub(crate) fn accept(&self, parameters: &Parameters<'_>) -> Result<()> {
        dispatch!(self, identifier => identifier.accept(parameters))
    }

    /// Asks the peer for its datagram queue pair.
    pub(crate) fn resolve_service(&self, private_data: &[u8]) -> Result<()> {
        dispatch!(self, identifier => identifier.resolve_service(private_data))
    }

    /// Tells a peer that asks for it a datagram queue pair.
    pub(crate) fn accept_query(&self, qpn: Qpn, private_data: &[u8]) -> Result<()> {
        dispatch!(self, identifier => identifier.accept_query(qpn, private_data))
    }

    /// Rejects a request, or a response.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        dispatch!(self, identifier => identifier.reject(private_data))
    }

    /// Completes a connection that the peer accepted, with a queue pair that is ready.
    pub(crate) fn establish(&self) -> Result<()> {
        dispatch!(self, identifier => identifier.establish())
    }

    /// Ends a connection, or agrees to its end.
    pub(crate) fn disconnect(&self) -> Result<()> {
        dispatch!(self, identifier => identifier.disconnect())
    }
}

/// Whether hardware has an address, though it is a loopback address, or every address: the kernel's software devices may. (Its
/// connection manager can be bound to any loopback address, and then leads nowhere.)
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

/// What helps where there is no hardware.
pub(crate) const NO_HARDWARE: &str = "no RDMA device has a route to that address: open a software device with \
    `Device::open(\"soft:ADDRESS\")`, where ADDRESS is an IP address of this machine";

/// Why a question for a datagram queue pair was rejected, in the words of connections (vol. 1, 12.11.2, table 119).
pub(super) fn sidr_reject_reason(status: u8) -> RejectReason {
    match status {
        1 => RejectReason::InvalidServiceId,
        2 => RejectReason::ConsumerReject,
        3 => RejectReason::NoQueuePair,
        4 => RejectReason::PortAndCmRedirection,
        _ => RejectReason::UnsupportedRequest,
    }
}

/// What an identifier is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Purpose {
    /// Reliable connections.
    Connections,
    /// Finding datagram queue pairs.
    Datagrams,
}

/// Between which addresses a connection is, and over which device.
pub(crate) struct Path {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) gid: Gid,
    pub(crate) pkey_index: u16,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// What a connection is asked for or accepted with.
pub(crate) struct Parameters<'a> {
    pub(crate) qpn: Qpn,
    /// Whether its receives come from a shared queue.
    pub(crate) shared_receives: bool,
    pub(crate) private_data: &'a [u8],
    pub(crate) depths: Depths,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
}

/// How many READs and atomics may be outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Depths {
    /// Of the peer's, at this side.
    pub(crate) max_dest_rd_atomic: u8,
    /// Of this side's, at the peer.
    pub(crate) max_rd_atomic: u8,
}

impl Depths {
    /// The smaller of both.
    pub(crate) fn min(self, other: Depths) -> Depths {
        Depths {
            max_dest_rd_atomic: self.max_dest_rd_atomic.min(other.max_dest_rd_atomic),
            max_rd_atomic: self.max_rd_atomic.min(other.max_rd_atomic),
        }
    }
}

/// What happened to an identifier.
pub(crate) enum Event {
    AddressResolved,
    RouteResolved,
    /// A peer asks for a connection.
    Request(Request),
    /// The peer accepted.
    Response {
        private_data: Vec<u8>,
    },
    /// The peer told its datagram queue pair.
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
    /// Something that nobody here asked for.
    Other,
}

/// A peer's wish for a connection.
pub(crate) struct Request {
    /// The connection to be.
    pub(crate) identifier: Identifier,
    /// As many as the peer would use, and offers.
    pub(crate) depths: Depths,
    pub(crate) private_data: Vec<u8>,
}
