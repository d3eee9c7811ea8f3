//! The places of inbound connections, and the choice of the connection that must make room for a new one.
//!
//! Any host can open connections, and send nothing over them. Each member has places that are reserved for its address. The
//! other places are shared. If all are taken, the address with the most connections beyond its reserved places loses one:
//! among those with the fewest complete messages, the oldest one.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

/// The number of places for any address.
const SHARED_PLACES: usize = 64;
/// The number of places for the address of a member. A member dials with one connection at a time, and the previous one may
/// not have ended.
const PLACES_PER_MEMBER: usize = 2;

/// An inbound connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    /// The number of the connection. Later ones have larger numbers.
    pub(super) number: u64,
    pub(super) ip: IpAddr,
    /// The number of complete messages that arrived.
    pub(super) message_count: usize,
}

/// Returns the maximum number of inbound connections.
pub(super) fn place_count(member_count: usize) -> usize {
    SHARED_PLACES + PLACES_PER_MEMBER * member_count
}

/// Returns the connection to close, if an address has more connections than its members have reserved places.
pub(super) fn choose_evicted(inbound: &[Inbound], members: impl Iterator<Item = IpAddr>) -> Option<u64> {
    let mut excess: HashMap<IpAddr, isize> = HashMap::new();
    for connection in inbound {
        *excess.entry(connection.ip).or_default() += 1;
    }
    for ip in members {
        if let Some(excess) = excess.get_mut(&ip) {
            *excess -= PLACES_PER_MEMBER as isize;
        }
    }
    let candidates = inbound.iter().filter(|connection| excess[&connection.ip] > 0);
    let rank = |connection: &&Inbound| {
        (Reverse(excess[&connection.ip]), connection.message_count, connection.number)
    };
    candidates.min_by_key(rank).map(|connection| connection.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn inbound(number: u64, last: u8, message_count: usize) -> Inbound {
        Inbound { number, ip: ip(last), message_count }
    }

    fn evicted(inbound: &[Inbound], members: &[u8]) -> Option<u64> {
        choose_evicted(inbound, members.iter().map(|last| ip(*last)))
    }

    #[test]
    fn the_oldest_silent_connection_is_evicted() {
        let connections = [inbound(1, 9, 1), inbound(2, 9, 0), inbound(3, 9, 0), inbound(4, 9, 2)];
        assert_eq!(evicted(&connections, &[]), Some(2));
        assert_eq!(evicted(&[connections[0], connections[3]], &[]), Some(1));
        assert_eq!(evicted(&[], &[1]), None);
    }

    #[test]
    fn the_address_with_the_most_connections_loses_one() {
        let connections = [inbound(1, 8, 0), inbound(2, 9, 1), inbound(3, 9, 1)];
        assert_eq!(evicted(&connections, &[]), Some(2));
    }

    #[test]
    fn a_member_keeps_its_places_however_many_addresses_connect() {
        let mut connections = vec![inbound(0, 1, 0), inbound(1, 1, 0)];
        connections.extend((2..200).map(|number| inbound(number, number as u8, 2)));
        assert_eq!(evicted(&connections, &[1]), Some(2));
        // Further connections from the member's address have no reserved place.
        connections.push(inbound(200, 1, 0));
        assert_eq!(evicted(&connections, &[1]), Some(0));
        // Two members at one address have four.
        assert_eq!(evicted(&connections, &[1, 1]), Some(2));
    }

    #[test]
    fn a_full_table_always_has_a_connection_to_evict() {
        for member_count in [1, 2, 100] {
            let members = Vec::from_iter(0..member_count as u8);
            let count = place_count(member_count) as u64;
            // Each member occupies its places, and one stranger occupies the others, or all at one address.
            let spread = |number: u64| (number / 2).min(member_count as u64) as u8;
            let connections = Vec::from_iter((0..count).map(|number| inbound(number, spread(number), 0)));
            assert_eq!(evicted(&connections, &members), Some(2 * member_count as u64));
            let connections = Vec::from_iter((0..count).map(|number| inbound(number, 0, 0)));
            assert_eq!(evicted(&connections, &members), Some(0));
        }
    }
}
