//! The addresses of a peer.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::options::Options;

/// The addresses and host names of a peer, and the options for dialing them.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    addresses: Vec<SocketAddr>,
    names: Vec<HostName>,
    /// As the caller has set them, before a path has determined the device.
    pub(super) options: Options,
}

/// A host name with a port, and its addresses as of the last successful lookup.
#[derive(Clone, Debug)]
struct HostName {
    pub(crate) name: String,
    addresses: Vec<SocketAddr>,
    /// Whether the name is an address, which needs no lookup.
    is_literal: bool,
}

impl Paths {
    /// Returns the paths over these addresses, and over host names that were not looked up yet.
    pub(crate) fn new(addresses: Vec<SocketAddr>, names: &[String], options: &Options) -> Paths {
        let host_name = |name: &String| {
            let literal: Option<SocketAddr> = name.parse().ok();
            HostName { name: name.clone(), addresses: Vec::from_iter(literal), is_literal: literal.is_some() }
        };
        Paths { addresses, names: names.iter().map(host_name).collect(), options: options.clone() }
    }

    /// Returns the names that need a lookup.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter(|name| !name.is_literal).map(|name| &*name.name)
    }

    /// Records the result of a lookup. If the lookup has failed, the addresses of the last successful one remain.
    pub(crate) fn set_resolved(&mut self, name: &str, addresses: &[SocketAddr]) {
        for known in self.names.iter_mut().filter(|known| known.name == name) {
            if !known.is_literal && !addresses.is_empty() {
                known.addresses = addresses.to_vec();
            }
        }
    }

    /// Looks up all names. Blocks.
    pub(crate) fn resolve(&mut self) {
        for name in Vec::from_iter(self.names().map(str::to_owned)) {
            self.set_resolved(&name, &look_up(&name));
        }
    }

    /// Returns all known addresses, each once.
    pub(crate) fn peers(&self) -> Vec<SocketAddr> {
        let mut peers = Vec::new();
        for address in self.addresses.iter().chain(self.names.iter().flat_map(|name| &name.addresses)) {
            if !peers.contains(address) {
                peers.push(*address);
            }
        }
        peers
    }
}

/// Returns the addresses of a host name: none if the lookup fails. Blocks.
pub(super) fn look_up(name: &str) -> Vec<SocketAddr> {
    match name.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            tracing::debug!(name, %error, "could not resolve a host name");
            Vec::new()
        }
    }
}
