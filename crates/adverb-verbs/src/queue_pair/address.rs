//! Routes from a queue pair to the ports of datagrams.

use std::net::IpAddr;

use adverb_proto::types::{Endpoint, Gid, LinkLayer};

use super::QueuePair;
use crate::backend::Address;
use crate::device::{AddressHandle, Traffic, UdDestination};
#[allow(unused_imports, reason = "for links")]
use crate::error::{Error, Feature, Result};

impl QueuePair {
    /// Returns a route to a port, cached if possible.
    pub(super) fn route(&self, gid: Gid, lid: u16, traffic: Traffic) -> Result<AddressHandle> {
        if self.source.port.link_layer == LinkLayer::InfiniBand && lid == 0 {
            return Err(self.domain.unsupported(Feature::UdWithoutLid));
        }
        self.route_to(&self.source.address_of(gid, lid, traffic))
    }

    /// Returns a route to an address, cached if possible.
    pub(crate) fn route_to(&self, address: &Address) -> Result<AddressHandle> {
        let make = || AddressHandle::new(&self.domain, address);
        // A cached handle would keep the UDP source port of its flow label in use.
        if address.flow_label != 0 && self.domain.device().is_software() {
            return make();
        }
        self.datagrams.addresses.get(address, make)
    }

    /// Creates an address handle for the port that has this IP address, or returns a cached one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`] if the operation fails, for example because the address family differs from that of the
    /// queue pair, and [`Error::Unsupported`] on InfiniBand, where an IP address doesn't identify a route: see
    /// [`create_ud_destination`](QueuePair::create_ud_destination).
    pub fn create_address_handle(&self, address: IpAddr) -> Result<AddressHandle> {
        self.create_address_handle_with(address, Traffic::new())
    }

    /// Creates an address handle like [`create_address_handle`](QueuePair::create_address_handle), with traffic options for the
    /// packets.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`create_address_handle`](QueuePair::create_address_handle).
    pub fn create_address_handle_with(&self, address: IpAddr, traffic: Traffic) -> Result<AddressHandle> {
        self.route(Gid::from(address), 0, traffic)
    }

    /// Creates the destination for datagrams to another queue pair, which was created with the queue key `qkey`. Its
    /// address handle is a cached one if possible.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`create_address_handle`](QueuePair::create_address_handle).
    pub fn create_ud_destination(&self, remote: &Endpoint, qkey: u32) -> Result<UdDestination> {
        self.create_ud_destination_with(remote, qkey, Traffic::new())
    }

    /// Creates a destination like [`create_ud_destination`](QueuePair::create_ud_destination), with traffic options for the
    /// packets.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`create_address_handle`](QueuePair::create_address_handle).
    pub fn create_ud_destination_with(
        &self,
        remote: &Endpoint,
        qkey: u32,
        traffic: Traffic,
    ) -> Result<UdDestination> {
        let address_handle = self.route(remote.gid, remote.lid, traffic)?;
        Ok(UdDestination { address_handle, qpn: remote.qpn, qkey })
    }
}
