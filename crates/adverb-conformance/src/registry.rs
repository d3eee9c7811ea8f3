//! The registry of tests, and the device features that they need.

use std::fmt;
use std::net::IpAddr;

use adverb::verbs::{Device, GidEntry, LinkLayer, PortState};

use crate::fixture::Fixture;
use crate::suite;

/// A test that checks one rule.
pub struct Test {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) check: fn(&Fixture) -> anyhow::Result<()>,
}

impl Test {
    /// Returns the test's name: the rule that it checks, in words joined by underscores.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the group of the rule.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// Returns the features that the device must have to run the test.
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

/// A device feature that a test needs. The device's attributes and tables show whether the device has the feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Need {
    /// Atomic operations.
    Atomics,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH to global visibility.
    Flush,
    /// Queues of at least this depth.
    QueueDepth(u32),
    /// Requests with at least this many scatter-gather segments.
    Segments(u32),
    /// Shared receive queues.
    SharedReceiveQueues,
    /// Memory windows of type 2B.
    MemoryWindows,
    /// On-demand paging (ODP) with writes and reads on reliable connections.
    OnDemandPaging,
    /// Moderation of completion events.
    Moderation,
    /// Completions with timestamps.
    Timestamps,
    /// Multicast over RoCE.
    Multicast,
    /// A global IPv6 address.
    Ipv6,
    /// An IPv4 and a global IPv6 address.
    Ipv4AndIpv6,
    /// A connection manager, and an IP address for it.
    ConnectionManager,
    /// Two partitions in the partition key table.
    TwoPartitions,
}

impl Need {
    /// Returns a description of the missing feature if the device lacks it, or `None` if the device has the feature.
    ///
    /// # Errors
    ///
    /// Returns an error if the device's ports or GIDs can't be queried.
    pub fn missing(self, device: &Device) -> adverb::verbs::Result<Option<String>> {
        let attributes = device.attributes();
        let at_least = |what: &str, has: u32, needed: u32| {
            (has < needed).then(|| format!("the device's {what} is {has}, but the test needs {needed}"))
        };
        Ok(match self {
            Need::Atomics => {
                (!attributes.has_atomics).then(|| "the device has no atomic operations".to_owned())
            }
            Need::AtomicWrite => {
                (!attributes.has_atomic_write).then(|| "the device has no ATOMIC WRITE".to_owned())
            }
            Need::Flush => {
                (!attributes.flush.global).then(|| "the device has no FLUSH to global visibility".to_owned())
            }
            Need::QueueDepth(depth) => at_least("maximum queue depth", attributes.max_queue_depth, depth),
            Need::Segments(count) => at_least("maximum number of segments", attributes.max_sge, count),
            Need::SharedReceiveQueues => (attributes.max_shared_receive_queues == 0)
                .then(|| "the device has no shared receive queues".to_owned()),
            Need::MemoryWindows => (!attributes.has_memory_windows)
                .then(|| "the device has no memory windows of type 2B".to_owned()),
            Need::OnDemandPaging => {
                let on_demand = attributes.odp;
                let can = on_demand.supported && on_demand.rc.write && on_demand.rc.read;
                (!can).then(|| "the device has no on-demand paging (ODP) for reliable connections".to_owned())
            }
            Need::Moderation => attributes
                .moderation
                .is_none()
                .then(|| "the device has no moderation of completion events".to_owned()),
            Need::Timestamps => attributes
                .timestamp_clock
                .is_none()
                .then(|| "the device has no completion timestamps".to_owned()),
            Need::Multicast => {
                let is_roce = device.ports()?.iter().all(|port| port.link_layer == LinkLayer::Ethernet);
                match (attributes.max_multicast_groups, is_roce) {
                    (0, _) => Some("the device has no multicast".to_owned()),
                    (_, false) => {
                        Some("on InfiniBand the subnet manager owns the multicast groups".to_owned())
                    }
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
                .then(|| "the port's partition key table has only one partition".to_owned()),
            Need::Ipv4AndIpv6 => {
                let both = has_address(device, IpAddr::is_ipv6)? && has_address(device, IpAddr::is_ipv4)?;
                (!both).then(|| "the port doesn't have both IPv4 and global IPv6 addresses".to_owned())
            }
        })
    }
}

/// Whether the device has an address of this kind that isn't link-local.
fn has_address(device: &Device, kind: impl Fn(&IpAddr) -> bool) -> adverb::verbs::Result<bool> {
    Ok(device.gids()?.iter().any(|entry| !entry.gid.is_link_local() && kind(&entry.gid.udp_addr().ip())))
}

/// Returns an IP address by which the connection manager finds the device.
pub(crate) fn address(device: &Device) -> adverb::verbs::Result<Option<IpAddr>> {
    let gids = device.gids()?;
    // A hardware GID without an interface belongs to another network namespace. A software device has its own
    // connection manager.
    let is_soft = device.name().starts_with("soft");
    let is_usable = |entry: &&GidEntry| (entry.netdev.is_some() || is_soft) && !entry.gid.is_link_local();
    let mut usable = gids.iter().filter(is_usable);
    Ok(usable.next().map(|entry| entry.gid.ip()))
}

/// Returns the indexes of two different partitions in the active port's partition key table.
pub(crate) fn two_partitions(device: &Device) -> adverb::verbs::Result<Option<(u16, u16)>> {
    let Some(port) = device.ports()?.into_iter().find(|port| port.state == PortState::Active) else {
        return Ok(None);
    };
    Ok(different_partitions(&device.pkeys(port.number)?))
}

/// Returns the indexes of two different partitions in a partition key table. The most significant bit is set for full
/// membership; two limited members may not communicate.
fn different_partitions(keys: &[u16]) -> Option<(u16, u16)> {
    let mut full = (0..).zip(keys).filter(|(_, key)| **key & 0x8000 != 0 && **key & 0x7fff != 0);
    let (one, key) = full.next()?;
    full.find(|(_, other)| *other != key).map(|(other, _)| (one, other))
}

/// A set of tests to run.
#[derive(Debug)]
pub struct Suite {
    pub(crate) tests: Vec<&'static Test>,
}

impl Suite {
    /// Creates a suite of all tests.
    pub fn all() -> Suite {
        Suite { tests: suite::GROUPS.iter().copied().flatten().collect() }
    }

    /// Keeps the tests whose group or name contains `words`.
    #[must_use]
    pub fn matching(self, words: &str) -> Suite {
        self.matching_any(&[words])
    }

    /// Keeps the tests whose group or name contains any of `words`. Keeps all tests if `words` is empty.
    #[must_use]
    pub fn matching_any<S: AsRef<str>>(mut self, words: &[S]) -> Suite {
        let matches = |text: &str| words.iter().any(|words| text.contains(words.as_ref()));
        self.tests.retain(|test| words.is_empty() || matches(test.name) || matches(test.group));
        self
    }

    /// Returns an iterator over the tests of the suite.
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
            assert!(names.insert(test.name()), "{} occurs twice", test.name());
        }
    }

    #[test]
    fn partitions_that_differ_only_in_membership_are_the_same() {
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
