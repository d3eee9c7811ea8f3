//! Shares of the slots for half-open connections and for queries of peers, so that one source can't occupy all of them.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeMap;

use crate::types::Gid;

/// The occupied slots, by source. Only sources that occupy a slot have an entry.
#[derive(Debug, Default)]
pub(super) struct Sources {
    counts: BTreeMap<IpAddr, usize>,
    total: usize,
}

impl Sources {
    /// Counts a slot that this peer occupies.
    pub(super) fn add(&mut self, peer: IpAddr) {
        *self.counts.entry(source(peer)).or_default() += 1;
        self.total += 1;
    }

    /// Subtracts a slot that this peer no longer occupies.
    pub(super) fn remove(&mut self, peer: IpAddr) {
        let source = source(peer);
        let Some(count) = self.counts.get_mut(&source) else { return };
        *count -= 1;
        self.total -= 1;
        if *count == 0 {
            self.counts.remove(&source);
        }
    }

    /// Returns the number of occupied slots.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Returns the number of sources that occupy slots.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether this peer may occupy another of `slots` slots. Any peer may while fewer than half of the slots are
    /// occupied; after that, only a peer whose source occupies less than its share may.
    pub(super) fn admits(&self, peer: IpAddr, slots: usize) -> bool {
        self.total < slots && (self.total < slots / 2 || self.count(peer) < share(slots))
    }

    /// Whether half of the slots are occupied, or this peer's source occupies its share. In that case, messages to
    /// addresses that may be spoofed are retransmitted less often.
    pub(super) fn is_crowded(&self, peer: IpAddr, slots: usize) -> bool {
        self.total >= slots.div_ceil(2) || self.count(peer) >= share(slots)
    }

    fn count(&self, peer: IpAddr) -> usize {
        self.counts.get(&source(peer)).copied().unwrap_or(0)
    }
}

/// Returns the number of slots that a source may occupy once half of them are occupied.
fn share(slots: usize) -> usize {
    (slots / 16).max(1)
}

/// Returns the network that a peer counts as: an IPv4 address, or the /64 of an IPv6 address, because one host may use
/// all addresses of a /64. A GID that encodes a UDP port counts as the address in it.
fn source(peer: IpAddr) -> IpAddr {
    match Gid::from(peer).udp_addr().ip().to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_ipv6_source_is_a_slash_64_and_an_ipv4_source_is_an_address() {
        let same = |a, b| source(address(a)) == source(address(b));
        assert!(same("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(!same("192.0.2.1", "192.0.2.2"));
        assert!(same("192.0.2.1", "::ffff:192.0.2.1"));
        // GIDs with UDP ports 4792 and 4793.
        assert!(same("100::12b8:c000:207", "100::12b9:c000:207"));
        assert!(same("100::12b8:c000:207", "192.0.2.7"));
        assert!(!same("100::12b8:c000:207", "100::12b8:c000:208"));
    }

    #[test]
    fn one_source_gets_half_of_the_slots_and_others_their_share_of_the_rest() {
        let mut sources = Sources::default();
        let occupy = |sources: &mut Sources, peer: &str| {
            let mut occupied = 0;
            while sources.admits(address(peer), 1024) {
                sources.add(address(peer));
                occupied += 1;
            }
            occupied
        };
        assert_eq!(occupy(&mut sources, "192.0.2.1"), 512);
        for last in 2..10 {
            assert_eq!(occupy(&mut sources, &format!("192.0.2.{last}")), 64);
        }
        assert_eq!(occupy(&mut sources, "192.0.2.10"), 0, "all slots are occupied");
        assert_eq!((sources.total(), sources.len()), (1024, 9));
        sources.remove(address("192.0.2.2"));
        assert!(!sources.admits(address("192.0.2.1"), 1024));
        assert!(sources.admits(address("192.0.2.10"), 1024));
    }

    #[test]
    fn a_source_without_slots_has_no_entry() {
        let mut sources = Sources::default();
        sources.add(address("2001:db8::1"));
        sources.add(address("2001:db8::2"));
        sources.remove(address("2001:db8::1"));
        sources.remove(address("192.0.2.1"));
        assert_eq!((sources.total(), sources.len()), (1, 1));
        sources.remove(address("2001:db8::1"));
        assert_eq!((sources.total(), sources.len()), (0, 0));
    }
}
