//! Address handles: how to reach a peer with datagrams.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use adverb_proto::vocabulary::{Gid, Qpn};

use super::{Endpoint, QueuePair};
use crate::backend;
use crate::error::Result;

/// How to reach a port with datagrams: made once per peer, and used for any number of them. Cloning gives another handle
/// to it.
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
    pub(super) fn new(queue_pair: &QueuePair, address: &backend::Address) -> Result<AddressHandle> {
        let backend = queue_pair.domain.backend().address_handle(address)?;
        Ok(AddressHandle(Arc::new(Inner { backend, gid: address.gid })))
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
pub struct Recipient {
    /// The way to the port.
    pub address: AddressHandle,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key: a datagram with another is dropped.
    pub qkey: u32,
}

impl QueuePair {
    /// Makes an address handle for the port that has this IP address.
    ///
    /// # Errors
    ///
    /// If the device refuses: the address may be of another family than the queue pair's own.
    pub fn address_handle(&self, address: IpAddr) -> Result<AddressHandle> {
        AddressHandle::new(self, &self.address_of(Gid::from(address), 0))
    }

    /// Whom to send datagrams to reach another queue pair, with the queue key that it was made with.
    ///
    /// # Errors
    ///
    /// As [`address_handle`](QueuePair::address_handle).
    pub fn recipient(&self, remote: &Endpoint, qkey: u32) -> Result<Recipient> {
        let address = AddressHandle::new(self, &self.address_of(remote.gid, remote.lid))?;
        Ok(Recipient { address, qpn: remote.qpn, qkey })
    }
}
