//! The tests that there are, and what they need of a device.

use std::fmt;
use std::net::IpAddr;

use adverb::verbs::{Device, GidEntry, LinkLayer, PortState};

use crate::fixture::Fixture;
use crate::suite;

/// A test: a rule, and a function that checks it.
pub struct Test {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) check: fn(&Fixture) -> anyhow::Result<()>,
}

impl Test {
    /// The rule that it checks, in words that are joined by underscores.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What the rule is about.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// What the device must have for the rule to make sense.
    pub fn needs(&self) -> &'static [Need] {
        self.needs
    }
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Test({}: {})", self.group, self.name)
    }
}

/// Declares the tests of a group: `tests! { "group"; a_rule, [Need::Atomics] another_rule }`.
macro_rules! tests {
    ($group:literal; $($([$($need:expr),+])? $name:ident),* $(,)?) => {
        pub(super) const TESTS: &[$crate::Test] = &[
            $($crate::Test {
                name: stringify!($name),
                group: $group,
                needs: &[$($($need),+)?],
                check: $name,
            }),*
        ];
    };
}
pub(crate) use tests;

/// What a test needs of a device. A device says of itself whether it has it; nothing is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Need {
    /// Atomic operations.
    Atomics,
    /// Queues of this depth.
    Depth(u32),
    /// Requests of this many segments.
    Segments(u32),
    /// Shared receive queues.
    SharedReceives,
    /// Memory windows of type 2B.
    MemoryWindows,
    /// Memory that is registered on demand, and written and read on reliable connections.
    OnDemand,
    /// Completion events that wait for company.
    Moderation,
    /// Completions with timestamps.
    Timestamps,
    /// Multicast, with RoCE.
    Multicast,
    /// A global IPv6 address.
    Ipv6,
    /// Addresses of both kinds.
    BothFamilies,
    /// A connection manager, and an IP address for it.
    ConnectionManager,
    /// Two partitions to belong to.
    TwoPartitions,
}

impl Need {
    /// Why the device lacks it, or `None` if it doesn't.
    ///
    /// # Errors
    ///
    /// If the device can't be asked.
    pub fn missing(self, device: &Device) -> adverb::Result<Option<String>> {
        let attributes = device.attributes();
        let at_least = |what: &str, has: u32, needed: u32| {
            (has < needed).then(|| format!("the device's {what} is {has}, and {needed} is needed"))
        };
        Ok(match self {
            Need::Atomics => {
                (!attributes.has_atomics).then(|| "the device has no atomic operations".to_owned())
            }
            Need::Depth(depth) => at_least("largest queue depth", attributes.max_queue_depth, depth),
            Need::Segments(count) => at_least("largest number of segments", attributes.max_sge, count),
            Need::SharedReceives => (attributes.max_shared_receive_queues == 0)
                .then(|| "the device has no shared receive queues".to_owned()),
            Need::MemoryWindows => (!attributes.has_memory_windows)
                .then(|| "the device has no memory windows of type 2B".to_owned()),
            Need::OnDemand => {
                let on_demand = attributes.odp;
                let can = on_demand.supported && on_demand.rc.write && on_demand.rc.read;
                (!can).then(|| "the device can't register memory on demand".to_owned())
            }
            Need::Moderation => attributes
                .moderation
                .is_none()
                .then(|| "the device can't have completion events wait for company".to_owned()),
            Need::Timestamps => attributes
                .timestamp_clock
                .is_none()
                .then(|| "the device gives completions no timestamps".to_owned()),
            Need::Multicast => {
                let is_roce = device.ports()?.iter().all(|port| port.link_layer == LinkLayer::Ethernet);
                match (attributes.max_multicast_groups, is_roce) {
                    (0, _) => Some("the device has no multicast".to_owned()),
                    (_, false) => Some("groups on InfiniBand are the subnet manager's".to_owned()),
                    _ => None,
                }
            }
            Need::Ipv6 => (!has_address(device, IpAddr::is_ipv6)?)
                .then(|| "the port has no global IPv6 address".to_owned()),
            Need::ConnectionManager if !attributes.has_connection_manager => {
                Some("the device has no connection manager".to_owned())
            }
            Need::ConnectionManager => {
                address(device)?.is_none().then(|| "no port of the device has an IP address".to_owned())
            }
            Need::TwoPartitions => two_partitions(device)?
                .is_none()
                .then(|| "the port's table of partition keys has but one partition".to_owned()),
            Need::BothFamilies => {
                let both = has_address(device, IpAddr::is_ipv6)? && has_address(device, IpAddr::is_ipv4)?;
                (!both).then(|| "the port doesn't have both IPv4 and global IPv6 addresses".to_owned())
            }
        })
    }
}

/// Whether the device has an address of a kind that is good beyond its link.
fn has_address(device: &Device, kind: impl Fn(&IpAddr) -> bool) -> adverb::Result<bool> {
    Ok(device.gids()?.iter().any(|entry| !entry.gid.is_link_local() && kind(&entry.gid.udp_address().ip())))
}

/// An IP address that the connection manager can use the device by.
pub(crate) fn address(device: &Device) -> adverb::Result<Option<IpAddr>> {
    let gids = device.gids()?;
    // The addresses of hardware without an interface are another network namespace's; a software device has its own manager.
    let is_soft = device.name().starts_with("soft");
    let is_usable = |entry: &&GidEntry| (entry.netdev.is_some() || is_soft) && !entry.gid.is_link_local();
    let mut usable = gids.iter().filter(is_usable);
    Ok(usable.next().map(|entry| entry.gid.ip()))
}

/// Two entries of the active port's table of partition keys that are of different partitions.
pub(crate) fn two_partitions(device: &Device) -> adverb::Result<Option<(u16, u16)>> {
    let Some(port) = device.ports()?.into_iter().find(|port| port.state == PortState::Active) else {
        return Ok(None);
    };
    Ok(different_partitions(&device.pkeys(port.number)?))
}

/// Two entries of a table of partition keys that are of different partitions. The uppermost bit only says whether it is a
/// full membership; two that aren't may not talk to each other.
fn different_partitions(keys: &[u16]) -> Option<(u16, u16)> {
    let mut full = (0..).zip(keys).filter(|(_, key)| **key & 0x8000 != 0 && **key & 0x7fff != 0);
    let (one, key) = full.next()?;
    full.find(|(_, other)| *other != key).map(|(other, _)| (one, other))
}

/// Tests to run.
#[derive(Debug)]
pub struct Suite {
    pub(crate) tests: Vec<&'static Test>,
}

impl Suite {
    /// All tests that there are.
    pub fn all() -> Suite {
        Suite { tests: suite::GROUPS.iter().copied().flatten().collect() }
    }

    /// Those of them whose group or name contains `words`.
    #[must_use]
    pub fn matching(self, words: &str) -> Suite {
        self.matching_any(&[words])
    }

    /// Those of them whose group or name contains any of these; all, if there are none of these.
    #[must_use]
    pub fn matching_any<S: AsRef<str>>(mut self, words: &[S]) -> Suite {
        let fits = |text: &str| words.iter().any(|words| text.contains(words.as_ref()));
        self.tests.retain(|test| words.is_empty() || fits(test.name) || fits(test.group));
        self
    }

    /// The tests.
    pub fn tests(&self) -> impl ExactSizeIterator<Item = &'static Test> {
        self.tests.iter().copied()
    }
}

#[cfg(test)]
mod rules {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_rule_has_its_own_name() {
        let mut names = HashSet::new();
        for test in Suite::all().tests() {
            assert!(names.insert(test.name()), "{} is there twice", test.name());
        }
    }

    #[test]
    fn partitions_differ_by_their_keys_but_for_membership() {
        assert_eq!(different_partitions(&[0xffff]), None);
        assert_eq!(different_partitions(&[0xffff, 0x7fff, 0xffff, 0, 0x8000, 0x0007]), None);
        assert_eq!(different_partitions(&[0, 0xffff, 0x7fff, 0x8007]), Some((1, 3)));
    }

    #[test]
    fn tests_are_found_by_group_and_name() {
        let all = Suite::all().tests().len();
        let some = Suite::all().matching("atomic").tests().len();
        assert!(some > 0 && some < all);
        assert_eq!(Suite::all().matching("no such rule").tests().len(), 0);
        assert_eq!(Suite::all().matching_any(&["atomic", "no such rule"]).tests().len(), some);
        assert_eq!(Suite::all().matching_any::<&str>(&[]).tests().len(), all);
    }
}
