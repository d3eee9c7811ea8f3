//! The connections of each host to a listener.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Weak};

use crate::options::Options;

/// The default limit of connections from another host to a listener without a key.
const DEFAULT_MAX_CONNECTIONS_PER_SOURCE: usize = 4096;

/// The connections of each source: an IPv4 address, or the /64 network of an IPv6 address, because one host may use all
/// addresses of a /64.
pub(super) struct Sources<T> {
    connections: HashMap<IpAddr, Vec<Weak<T>>>,
}

impl<T> Sources<T> {
    pub(super) fn new() -> Sources<T> {
        Sources { connections: HashMap::new() }
    }

    /// Adds a connection. Returns `false` if its source has as many connections as the options permit.
    pub(super) fn add(&mut self, peer: IpAddr, connection: &Arc<T>, options: &Options) -> bool {
        let peer = peer.to_canonical();
        let Some(max) = limit(peer, options) else { return true };
        let source = match peer {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
            address => address,
        };
        if self.connections.len() == self.connections.capacity() {
            self.connections.retain(|_, of_source| remove_ended(of_source));
        }
        let of_source = self.connections.entry(source).or_default();
        // The list is searched for ended connections only if it would grow, which is rare.
        if of_source.len() >= max || of_source.len() == of_source.capacity() {
            remove_ended(of_source);
        }
        let is_permitted = of_source.len() < max;
        if is_permitted {
            of_source.push(Arc::downgrade(connection));
        }
        is_permitted
    }
}

/// Removes ended connections. Returns whether others remain.
fn remove_ended<T>(connections: &mut Vec<Weak<T>>) -> bool {
    connections.retain(|connection| connection.strong_count() > 0);
    // Half of the list is free, so that it is rarely searched.
    connections.reserve(connections.len());
    !connections.is_empty()
}

/// Returns the maximum number of connections of a source, if there is one. A local user can choose any loopback address
/// as its source, so a limit per address would limit nothing.
fn limit(peer: IpAddr, options: &Options) -> Option<usize> {
    let default =
        || (options.key.is_none() && !peer.is_loopback()).then_some(DEFAULT_MAX_CONNECTIONS_PER_SOURCE);
    options.max_connections_per_source.or_else(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    #[test]
    fn each_source_has_its_own_limit_and_ended_connections_do_not_count() {
        let options = Options::new().max_connections_per_source(2);
        let mut sources = Sources::new();
        let mut add = |peer: &str| {
            let connection = Arc::new(());
            sources.add(peer.parse().unwrap(), &connection, &options).then_some(connection)
        };
        let (first, second) = (add("2001:db8::1"), add("2001:db8::2:1"));
        assert!(first.is_some() && second.is_some());
        // The same /64.
        assert!(add("2001:db8::3").is_none());
        let others = [add("2001:db8:0:1::3"), add("192.0.2.1"), add("::ffff:192.0.2.1")];
        assert!(others.iter().all(Option::is_some) && add("192.0.2.1").is_none());
        drop(first);
        assert!(add("2001:db8::4").is_some());
    }

    #[test]
    fn a_full_list_is_not_searched_for_each_connection() {
        let connections: Vec<_> = (0..100).map(Arc::new).collect();
        let mut list: Vec<_> = connections.iter().map(Arc::downgrade).collect();
        assert!(remove_ended(&mut list));
        assert!(list.capacity() >= 200, "{}", list.capacity());
        drop(connections);
        assert!(!remove_ended(&mut list));
    }

    #[test]
    fn only_other_hosts_without_a_key_have_a_default_limit() {
        let (host, local) = ("192.0.2.1".parse().unwrap(), "127.0.0.1".parse().unwrap());
        let key = Options::new().key(&Key::new([1; 32]).unwrap());
        assert_eq!(limit(host, &Options::new()), Some(DEFAULT_MAX_CONNECTIONS_PER_SOURCE));
        assert_eq!((limit(local, &Options::new()), limit(host, &key)), (None, None));
        let key = key.max_connections_per_source(7);
        assert_eq!((limit(local, &key), limit(host, &key)), (Some(7), Some(7)));
    }
}
