//! Address handles: routes to peers for datagrams.

use std::fmt;
use std::sync::Arc;

use adverb_proto::types::{Destination, Gid, Qpn};

use super::ProtectionDomain;
use crate::backend;
use crate::error::Result;

/// An address handle: a route to a port, for datagrams. A program creates one handle per peer and uses it for any
/// number of datagrams. Queue pairs cache the handles that they used last. Cloning returns another handle to the same
/// object.
///
/// [`QueuePair::create_address_handle`](crate::QueuePair::create_address_handle) creates a handle from an IP address, and
/// [`Datagram::create_reply_destination`](crate::Datagram::create_reply_destination) creates one from a received datagram.
#[derive(Clone)]
pub struct AddressHandle(Arc<Inner>);

struct Inner {
    backend: backend::AddressHandle,
    gid: Gid,
}

impl AddressHandle {
    /// Creates a handle for this address.
    pub(crate) fn new(domain: &ProtectionDomain, address: &backend::Address) -> Result<AddressHandle> {
        let backend = domain.backend().address_handle(address)?;
        Ok(AddressHandle(Arc::new(Inner { backend, gid: address.gid })))
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
    /// [`Traffic::flow_label`](crate::Traffic::flow_label) maps to, unless the device couldn't open it. Returns `None` on a device of rdma-core,
    /// which doesn't report the port.
    ///
    /// ```
    /// # use adverb::verbs::*;
    /// # let device = SoftDevice::on_switch(&Switch::default(), "10.0.0.1".parse()?).open()?;
    /// # let domain = device.create_protection_domain()?;
    /// # let completions = device.completion_queue(128).create()?;
    /// let queue_pair = domain.queue_pair(Transport::Ud).completion_queue(&completions).create()?;
    /// let traffic = Traffic::new().flow_label(0x123);
    /// let handle = queue_pair.create_address_handle_with("10.0.0.2".parse()?, traffic)?;
    /// assert_eq!(handle.source_port(), Some(0xc123));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn source_port(&self) -> Option<u16> {
        self.0.backend.source_port()
    }

    pub(crate) fn backend(&self) -> &backend::AddressHandle {
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

impl UdDestination {
    /// Returns the destination in plain form.
    #[inline]
    pub(crate) fn plain(&self) -> Destination<&backend::AddressHandle> {
        Destination { handle: self.address_handle.backend(), qpn: self.qpn, qkey: self.qkey }
    }
}
