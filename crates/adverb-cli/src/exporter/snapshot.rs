//! The values of one scrape, as read from the kernel and from software NICs.

use std::collections::BTreeMap;

use super::totals::Destination;

/// The values of one scrape.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Snapshot {
    /// The RDMA devices, sorted by name.
    pub devices: Vec<RdmaDevice>,
    /// The network interfaces of the devices' ports, sorted by name.
    pub netdevs: Vec<Netdev>,
    /// The responders that are probed, with the totals of their probes.
    pub destinations: Vec<Destination>,
    /// The reads that failed.
    pub read_errors: ReadErrors,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct RdmaDevice {
    /// The device's name.
    pub name: String,
    /// Whether the device is a software NIC of the exporter's own process.
    pub is_software: bool,
    /// The version of the firmware.
    pub firmware: String,
    /// The vendor's board identifier.
    pub board: String,
    /// The node GUID, in the kernel's notation.
    pub guid: String,
    /// The device's ports.
    pub ports: Vec<RdmaPort>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct RdmaPort {
    /// The port's number, from 1.
    pub number: u8,
    /// The logical state in lower case, such as `active`.
    pub state: String,
    /// The physical state, such as `LinkUp`; empty if unknown.
    pub physical_state: String,
    /// The link layer, such as `Ethernet`.
    pub link_layer: String,
    /// The port's network interface, if it has one.
    pub netdev: Option<String>,
    /// The link's rate in bits per second.
    pub bits_per_second: Option<f64>,
    /// The counters, by the driver's names.
    pub counters: BTreeMap<String, u64>,
}

/// A network interface.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Netdev {
    /// The interface's name.
    pub name: String,
    /// Whether the interface is operational; unknown for some virtual interfaces.
    pub is_up: Option<bool>,
    /// The MTU in bytes.
    pub mtu: Option<u64>,
    /// The link's rate in bits per second.
    pub bits_per_second: Option<f64>,
    /// The number of changes of the carrier.
    pub carrier_changes: Option<u64>,
    /// The kernel's statistics.
    pub statistics: BTreeMap<String, u64>,
    /// The driver's statistics, as `ethtool -S` prints them.
    pub driver_statistics: BTreeMap<String, u64>,
}

/// The sources of values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Source {
    /// The kernel's RDMA devices in sysfs.
    Rdma,
    /// A software NIC of this process.
    Software,
    /// The kernel's network interfaces in sysfs.
    Netdev,
    /// The statistics of network interfaces' drivers.
    Ethtool,
}

impl Source {
    pub(super) const ALL: [Source; 4] = [Self::Rdma, Self::Software, Self::Netdev, Self::Ethtool];

    /// Returns the value of the label `source`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Software => "software",
            Self::Netdev => "netdev",
            Self::Ethtool => "ethtool",
        }
    }
}

/// The numbers of failed reads by source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ReadErrors(BTreeMap<Source, u64>);

impl ReadErrors {
    /// Counts a failed read.
    pub(super) fn count(&mut self, source: Source) {
        *self.0.entry(source).or_default() += 1;
    }

    /// Adds the failed reads of another scrape.
    pub(super) fn add(&mut self, other: &ReadErrors) {
        for (source, count) in &other.0 {
            *self.0.entry(*source).or_default() += count;
        }
    }

    /// Returns the number of failed reads from a source.
    pub(super) fn get(&self, source: Source) -> u64 {
        self.0.get(&source).copied().unwrap_or_default()
    }
}
