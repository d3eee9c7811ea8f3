//! Address handles: how to reach a peer with datagrams.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use adverb_proto::types::{Gid, Qpn};

use super::{Endpoint, LinkLayer, QueuePair, Traffic};
use crate::backend;
use crate::error::{Error, Result};

/// How to reach a port with datagrams: made once per peer, and used for any number of them. Queue pairs remember those that
/// they made last. Cloning gives another handle to it.
///
/// [`QueuePair::address_handle`] makes one from an address, and
/// [`Datagram::reply_to`](super::Datagram::reply_to) from a datagram that came.
#[derive(Clone)]
pub struct AddressHandle(Arc<Inner>);

struct Inner {
    backend: backend::AddressHandle,
    gid: Gid,
}

impl AddressHandle {
    /// The way from a queue pair to a port: one that was made before, if it was.
    pub(super) fn of(queue_pair: &QueuePair, gid: Gid, lid: u16, traffic: Traffic) -> Result<AddressHandle> {
        if queue_pair.port.link_layer == LinkLayer::InfiniBand && lid == 0 {
            return Err(Error::Unsupported {
                feature: "sending datagrams on InfiniBand without the recipient's local identifier".into(),
                hint: "have the recipient say its endpoint, and call `ud_destination`".into(),
            });
        }
        AddressHandle::at(queue_pair, &queue_pair.address_of(gid, lid, traffic))
    }

    /// The handle for an address: one that was made before, if it was.
    pub(super) fn at(queue_pair: &QueuePair, address: &backend::Address) -> Result<AddressHandle> {
        queue_pair.addresses.get(address, || {
            let backend = queue_pair.domain.backend().address_handle(address)?;
            Ok(AddressHandle(Arc::new(Inner { backend, gid: address.gid })))
        })
    }

    /// Whether both are handles to the same.
    pub fn is_same(&self, other: &AddressHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whom it reaches.
    pub fn gid(&self) -> Gid {
        self.0.gid
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

/// To whom a datagram goes: a port, a queue pair there, and that one's queue key.
#[derive(Clone, Debug)]
pub struct UdDestination {
    /// The way to the port.
    pub address: AddressHandle,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key: a datagram with another is dropped.
    pub qkey: u32,
}

impl QueuePair {
    /// Makes an address handle for the port that has this IP address, or gives one that was made before.
    ///
    /// # Errors
    ///
    /// If the device refuses: the address may be of another family than the queue pair's own. [`Error::Unsupported`] on
    /// InfiniBand, where an address alone doesn't tell the way: see [`ud_destination`](QueuePair::ud_destination).
    pub fn address_handle(&self, address: IpAddr) -> Result<AddressHandle> {
        self.address_handle_with(address, Traffic::new())
    }

    /// The same, with a say in how the network is to treat the packets.
    ///
    /// # Errors
    ///
    /// As [`address_handle`](QueuePair::address_handle).
    pub fn address_handle_with(&self, address: IpAddr, traffic: Traffic) -> Result<AddressHandle> {
        AddressHandle::of(self, Gid::from(address), 0, traffic)
    }

    /// Whom to send datagrams to reach another queue pair, with the queue key that it was made with.
    ///
    /// # Errors
    ///
    /// As [`address_handle`](QueuePair::address_handle).
    pub fn ud_destination(&self, remote: &Endpoint, qkey: u32) -> Result<UdDestination> {
        self.ud_destination_with(remote, qkey, Traffic::new())
    }

    /// The same, with a say in how the network is to treat the packets.
    ///
    /// # Errors
    ///
    /// As [`address_handle`](QueuePair::address_handle).
    pub fn ud_destination_with(
        &self,
        remote: &Endpoint,
        qkey: u32,
        traffic: Traffic,
    ) -> Result<UdDestination> {
        let address = AddressHandle::of(self, remote.gid, remote.lid, traffic)?;
        Ok(UdDestination { address, qpn: remote.qpn, qkey })
    }
}
