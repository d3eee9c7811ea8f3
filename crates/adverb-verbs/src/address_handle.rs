//! Address handles: routes to peers for datagrams.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use adverb_proto::types::{Gid, Qpn};

use super::{Endpoint, LinkLayer, QueuePair, Traffic};
use crate::backend;
use crate::error::{Error, Result};

/// An address handle: a route to a port, for datagrams. A program creates one handle per peer and uses it for any
/// number of datagrams. Queue pairs cache the handles that they used last. Cloning returns another handle to the same
/// object.
///
/// [`QueuePair::address_handle`] creates a handle from an IP address, and
/// [`Datagram::reply_destination`](super::Datagram::reply_destination) creates one from a received datagram.
#[derive(Clone)]
pub struct AddressHandle(Arc<Inner>);

struct Inner {
    backend: backend::AddressHandle,
    gid: Gid,
}

impl AddressHandle {
    /// Returns a route from a queue pair to a port, cached if possible.
    pub(super) fn of(queue_pair: &QueuePair, gid: Gid, lid: u16, traffic: Traffic) -> Result<AddressHandle> {
        if queue_pair.port.link_layer == LinkLayer::InfiniBand && lid == 0 {
            return Err(Error::Unsupported {
                feature: "addressing a UD peer on InfiniBand without its LID".into(),
                hint: "exchange endpoints out of band, and call `ud_destination` with the peer's endpoint"
                    .into(),
            });
        }
        AddressHandle::at(queue_pair, &queue_pair.address_of(gid, lid, traffic))
    }

    /// Returns the handle for an address, cached if possible.
    pub(super) fn at(queue_pair: &QueuePair, address: &backend::Address) -> Result<AddressHandle> {
        let make = || {
            let backend = queue_pair.domain.backend().address_handle(address)?;
            Ok(AddressHandle(Arc::new(Inner { backend, gid: address.gid })))
        };
        // A cached handle would keep the UDP source port of its flow label in use.
        if address.flow_label != 0 && queue_pair.domain.device().is_software() {
            return make();
        }
        queue_pair.addresses.get(address, make)
    }

    /// Whether `self` and `other` are handles to the same object.
    pub fn is_same(&self, other: &AddressHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the GID of the destination port.
    pub fn gid(&self) -> Gid {
        self.0.gid
    }

    /// Returns the UDP source port of datagrams sent with this handle, on the software NIC. The port is the one that
    /// [`Traffic::flow_label`] maps to, unless the device couldn't open it. Returns `None` on a device of rdma-core,
    /// which doesn't report the port.
    ///
    /// ```
    /// # use adverb::verbs::*;
    /// # let device = SoftDevice::on_switch(&Switch::default(), "10.0.0.1".parse()?).open()?;
    /// # let domain = device.create_protection_domain()?;
    /// # let completions = device.completion_queue(128).create()?;
    /// let queue_pair = domain.queue_pair(Transport::Ud).completion_queue(&completions).create()?;
    /// let traffic = Traffic::new().flow_label(0x123);
    /// let handle = queue_pair.address_handle_with("10.0.0.2".parse()?, traffic)?;
    /// assert_eq!(handle.source_port(), Some(0xc123));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn source_port(&self) -> Option<u16> {
        self.0.backend.source_port()
    }

    pub(super) fn backend(&self) -> &backend::AddressHandle {
        &self.0.backend
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressHandle").field(&self.0.gid).finish()
    }
}

/// The destination of a datagram: a port, a queue pair at that port, and the queue key of that queue pair.
#[derive(Clone, Debug)]
pub struct UdDestination {
    /// The route to the port.
    pub address_handle: AddressHandle,
    /// The number of the receiving queue pair.
    pub qpn: Qpn,
    /// The queue key of the receiving queue pair, which drops datagrams with a different key.
    pub qkey: u32,
}

impl QueuePair {
    /// Creates an address handle for the port that has this IP address, or returns a cached one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Verb`] if the operation fails, for example because the address family differs from that of the
    /// queue pair, and [`Error::Unsupported`] on InfiniBand, where an IP address doesn't identify a route: see
    /// [`ud_destination`](QueuePair::ud_destination).
    pub fn address_handle(&self, address: IpAddr) -> Result<AddressHandle> {
        self.address_handle_with(address, Traffic::new())
    }

    /// Creates an address handle like [`address_handle`](QueuePair::address_handle), with traffic options for the
    /// packets.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`address_handle`](QueuePair::address_handle).
    pub fn address_handle_with(&self, address: IpAddr, traffic: Traffic) -> Result<AddressHandle> {
        AddressHandle::of(self, Gid::from(address), 0, traffic)
    }

    /// Returns the destination for datagrams to another queue pair, which was created with the queue key `qkey`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`address_handle`](QueuePair::address_handle).
    pub fn ud_destination(&self, remote: &Endpoint, qkey: u32) -> Result<UdDestination> {
        self.ud_destination_with(remote, qkey, Traffic::new())
    }

    /// Returns the destination like [`ud_destination`](QueuePair::ud_destination), with traffic options for the
    /// packets.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`address_handle`](QueuePair::address_handle).
    pub fn ud_destination_with(
        &self,
        remote: &Endpoint,
        qkey: u32,
        traffic: Traffic,
    ) -> Result<UdDestination> {
        let address_handle = AddressHandle::of(self, remote.gid, remote.lid, traffic)?;
        Ok(UdDestination { address_handle, qpn: remote.qpn, qkey })
    }
}
