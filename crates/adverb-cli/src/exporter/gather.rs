//! Reading of the values: the kernel's RDMA devices and network interfaces from sysfs, the statistics of drivers by
//! ethtool's system call, and the software NICs of this process.
//!
//! The kernel's devices are not opened, so the exporter needs neither rdma-core nor access to `/dev/infiniband`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use adverb::verbs::{Device, LinkLayer, PortState};

use super::probing::Probing;
use super::snapshot::{Netdev, RdmaDevice, RdmaPort, ReadErrors, Snapshot, Source};

/// The maximum number of devices, and of network interfaces, that are read.
const MAX_ENTRIES: usize = 256;

/// The maximum number of counters of a port or an interface that are read.
const MAX_COUNTERS: usize = 512;

/// A reader of the values.
pub(super) struct Gatherer {
    /// The directory of sysfs, usually `/sys`.
    sysfs: PathBuf,
    /// The names of the kernel's devices to read, or `None` for all.
    only: Option<Vec<String>>,
    /// The software NICs of this process.
    software: Vec<Device>,
    /// Reads the statistics of a network interface's driver.
    driver_statistics: DriverStatistics,
    /// The totals of probes.
    probing: Probing,
}

/// A function that reads the statistics of a network interface's driver. Tests use another function, because virtual
/// interfaces lack most statistics.
pub(super) type DriverStatistics = fn(&str) -> io::Result<BTreeMap<String, u64>>;

impl Gatherer {
    /// Creates a reader of the sysfs at a directory, and of software NICs.
    pub(super) fn new(sysfs: &Path, software: Vec<Device>) -> Gatherer {
        let driver_statistics = adverb_sys::ethtool::statistics;
        let probing = Probing::default();
        Gatherer { sysfs: sysfs.to_owned(), only: None, software, driver_statistics, probing }
    }

    /// Sets the totals of probes.
    pub(super) fn set_probes(&mut self, probing: Probing) {
        self.probing = probing;
    }

    /// Limits the kernel's devices to those with these names.
    pub(super) fn limit_to(&mut self, names: Vec<String>) {
        self.only = Some(names);
    }

    /// Reads all values. A value that can't be read is left out and counted.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut errors = ReadErrors::default();
        let mut devices = self.kernel_devices(&mut errors);
        devices.extend(self.software.iter().map(|device| software_device(device, &mut errors)));
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        let ports = devices.iter().flat_map(|device| &device.ports);
        let names: BTreeSet<String> = ports.filter_map(|port| port.netdev.clone()).collect();
        let netdevs = names.into_iter().take(MAX_ENTRIES);
        let netdevs = netdevs.map(|name| self.netdev(name, &mut errors)).collect();
        Snapshot { devices, netdevs, destinations: self.probing.destinations(), read_errors: errors }
    }

    fn kernel_devices(&self, errors: &mut ReadErrors) -> Vec<RdmaDevice> {
        let class = self.sysfs.join("class/infiniband");
        let mut names = names_in(&class, Source::Rdma, errors);
        names.retain(|name| self.only.as_ref().is_none_or(|only| only.contains(name)));
        names.truncate(MAX_ENTRIES);
        names.into_iter().map(|name| self.kernel_device(&class.join(&name), name, errors)).collect()
    }

    fn kernel_device(&self, directory: &Path, name: String, errors: &mut ReadErrors) -> RdmaDevice {
        let mut read = |file: &str| text(&directory.join(file), Source::Rdma, errors).unwrap_or_default();
        let (firmware, board, guid) = (read("fw_ver"), read("board_id"), read("node_guid"));
        let ports = directory.join("ports");
        let mut numbers: Vec<u8> =
            names_in(&ports, Source::Rdma, errors).iter().filter_map(|number| number.parse().ok()).collect();
        numbers.sort_unstable();
        let ports = numbers.into_iter().map(|number| self.kernel_port(directory, number, errors)).collect();
        RdmaDevice { name, is_software: false, firmware, board, guid, ports }
    }

    fn kernel_port(&self, device: &Path, number: u8, errors: &mut ReadErrors) -> RdmaPort {
        let directory = device.join("ports").join(number.to_string());
        let mut read = |file: &str| text(&directory.join(file), Source::Rdma, errors).unwrap_or_default();
        // "4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)".
        let (state, physical_state) = (read("state"), read("phys_state"));
        let (rate, link_layer) = (read("rate"), read("link_layer"));
        let mut counters = BTreeMap::new();
        // If both have a counter of the same name, the driver's own counter is used, as in `Device::counters`.
        for group in ["counters", "hw_counters"] {
            counters.extend(numbers_in(&directory.join(group), Source::Rdma, errors));
        }
        // `lifespan` is no counter: it is the time for which the kernel caches the counters, in ms.
        counters.remove("lifespan");
        RdmaPort {
            number,
            state: without_number(&state).to_lowercase(),
            physical_state: without_number(&physical_state).to_owned(),
            link_layer,
            netdev: netdev_of_port(device, &directory, number),
            bits_per_second: parse_rate(&rate),
            counters,
        }
    }

    fn netdev(&self, name: String, errors: &mut ReadErrors) -> Netdev {
        let directory = self.sysfs.join("class/net").join(&name);
        let mut read = |file: &str| text(&directory.join(file), Source::Netdev, errors);
        let is_up = match read("operstate").as_deref() {
            Some("up") => Some(true),
            Some("unknown") | None => None,
            Some(_) => Some(false),
        };
        let mtu = read("mtu").and_then(|mtu| mtu.parse().ok());
        let carrier_changes = read("carrier_changes").and_then(|count| count.parse().ok());
        // The speed is in megabits per second. It can't be read, or is -1, while the interface is down, and on virtual interfaces.
        let speed = fs::read_to_string(directory.join("speed")).ok();
        let speed = speed.and_then(|speed| speed.trim().parse::<u32>().ok());
        let bits_per_second = speed.filter(|speed| *speed != u32::MAX).map(|speed| f64::from(speed) * 1e6);
        let statistics = numbers_in(&directory.join("statistics"), Source::Netdev, errors);
        let driver_statistics = match (self.driver_statistics)(&name) {
            Ok(statistics) => statistics,
            // The sysfs of a test, or of another network namespace, has interfaces that this process can't see.
            Err(error) if error.raw_os_error() == Some(ENODEV) => BTreeMap::new(),
            Err(_) => {
                errors.count(Source::Ethtool);
                BTreeMap::new()
            }
        };
        Netdev { name, is_up, mtu, bits_per_second, carrier_changes, statistics, driver_statistics }
    }
}

/// The error numbers of Linux that are handled separately.
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

fn software_device(device: &Device, errors: &mut ReadErrors) -> RdmaDevice {
    let gids = device.gids().unwrap_or_default();
    let ports = device.ports().unwrap_or_else(|_| {
        errors.count(Source::Software);
        Vec::new()
    });
    let ports = ports.into_iter().map(|port| {
        let counters = device.counters(port.number).map_or_else(
            |_| {
                errors.count(Source::Software);
                BTreeMap::new()
            },
            |counters| counters.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        );
        let state = match port.state {
            PortState::Down => "down",
            PortState::Init => "init",
            PortState::Armed => "armed",
            PortState::Active => "active",
            PortState::ActiveDefer => "active_defer",
            _ => "unknown",
        };
        let link_layer = match port.link_layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            _ => "",
        };
        let netdev = gids.iter().filter(|gid| gid.port == port.number).find_map(|gid| gid.netdev.clone());
        RdmaPort {
            number: port.number,
            state: state.to_owned(),
            physical_state: String::new(),
            link_layer: link_layer.to_owned(),
            netdev,
            bits_per_second: None,
            counters,
        }
    });
    RdmaDevice {
        name: device.name().to_owned(),
        is_software: true,
        ports: ports.collect(),
        firmware: device.attributes().firmware.clone(),
        board: String::new(),
        guid: String::new(),
    }
}

/// Returns the network interface of a port, if it has one: that of its first GID, or else that of its PCI function.
fn netdev_of_port(device: &Path, port: &Path, number: u8) -> Option<String> {
    let gids = port.join("gid_attrs/ndevs");
    // An unused entry of the GID table can't be read.
    let by_gid = (0..MAX_ENTRIES).find_map(|index| {
        let name = fs::read_to_string(gids.join(index.to_string())).ok()?;
        Some(name.trim().to_owned()).filter(|name| is_name(name))
    });
    by_gid.or_else(|| {
        let siblings = device.join("device/net");
        names_in(&siblings, Source::Rdma, &mut ReadErrors::default()).into_iter().find(|name| {
            let dev_port = fs::read_to_string(siblings.join(name).join("dev_port")).unwrap_or_default();
            dev_port.trim().parse::<u8>().is_ok_and(|dev_port| dev_port.checked_add(1) == Some(number))
        })
    })
}

/// Returns the sorted names in a directory, or none if it doesn't exist.
fn names_in(directory: &Path, source: Source, errors: &mut ReadErrors) -> Vec<String> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            count(&error, source, errors);
            return Vec::new();
        }
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_name(name)).take(MAX_COUNTERS).collect();
    names.sort();
    names
}

/// Returns the files in a directory that contain a number, or none if the directory doesn't exist.
fn numbers_in(directory: &Path, source: Source, errors: &mut ReadErrors) -> BTreeMap<String, u64> {
    let mut numbers = BTreeMap::new();
    for name in names_in(directory, source, errors) {
        // The file of a counter that the hardware lacks contains text, such as "N/A (no PMA)".
        let number = text(&directory.join(&name), source, errors).and_then(|text| text.parse().ok());
        numbers.extend(number.map(|number| (name, number)));
    }
    numbers
}

/// Returns the trimmed content of a file, or `None` if it doesn't exist or can't be read.
fn text(path: &Path, source: Source, errors: &mut ReadErrors) -> Option<String> {
    match fs::read_to_string(path) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) => {
            count(&error, source, errors);
            None
        }
    }
}

/// Counts an error, unless it means that the kernel or the driver doesn't have the value.
fn count(error: &io::Error, source: Source, errors: &mut ReadErrors) {
    let is_absent = error.kind() == io::ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(ENODEV | EINVAL | EOPNOTSUPP));
    if !is_absent {
        errors.count(source);
    }
}

/// Whether a name is short and printable, as all names of the kernel are.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the name in a state of sysfs, such as `4: ACTIVE`.
fn without_number(state: &str) -> &str {
    state.split_once(':').map_or(state, |(_, name)| name).trim()
}

/// Returns the bits per second of a rate in sysfs' notation, such as `2.5 Gb/sec (1X SDR)`.
fn parse_rate(rate: &str) -> Option<f64> {
    let (number, unit) = rate.split_once(' ')?;
    let number: f64 = number.parse().ok()?;
    (unit.starts_with("Gb/sec") && number.is_finite() && number >= 0.0).then_some(number * 1e9)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sysfs in a temporary directory, which is removed on drop.
    pub(in super::super) struct Sysfs(pub(in super::super) PathBuf);

    impl Sysfs {
        pub(in super::super) fn new(test: &str, files: &[(&str, &str)]) -> Sysfs {
            let root = std::env::temp_dir().join(format!("adverb-sysfs-{test}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Sysfs(root)
        }

        /// Returns a reader of these files, and of a driver's statistics.
        pub(in super::super) fn gatherer(&self, software: Vec<Device>, driver: DriverStatistics) -> Gatherer {
            Gatherer { driver_statistics: driver, ..Gatherer::new(&self.0, software) }
        }

        fn snapshot(&self) -> Snapshot {
            Gatherer::new(&self.0, Vec::new()).snapshot()
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The files of a ConnectX with one port.
    pub(in super::super) const CONNECTX: &[(&str, &str)] = &[
        ("class/infiniband/mlx5_0/fw_ver", "22.39.1002\n"),
        ("class/infiniband/mlx5_0/board_id", "MT_0000000359\n"),
        ("class/infiniband/mlx5_0/node_guid", "0c42:a103:0012:3456\n"),
        ("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
        ("class/infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp\n"),
        ("class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n"),
        ("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "adverb-mlx0\n"),
        ("class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "1000\n"),
        ("class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets", "70\n"),
        ("class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait", "N/A (no PMA)\n"),
        ("class/infiniband/mlx5_0/ports/1/hw_counters/lifespan", "10\n"),
        ("class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", "3\n"),
        ("class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent", "5\n"),
        ("class/net/adverb-mlx0/operstate", "up\n"),
        ("class/net/adverb-mlx0/mtu", "9000\n"),
        ("class/net/adverb-mlx0/speed", "100000\n"),
        ("class/net/adverb-mlx0/carrier_changes", "2\n"),
        ("class/net/adverb-mlx0/statistics/rx_dropped", "11\n"),
        ("class/net/adverb-mlx0/statistics/rx_packets", "500\n"),
        ("class/net/adverb-mlx0/statistics/rx_crc_errors", "1\n"),
    ];

    #[test]
    fn a_device_is_read_with_its_ports_counters_and_interface() {
        let sysfs = Sysfs::new("device", CONNECTX);
        let snapshot = sysfs.snapshot();
        let [device] = &snapshot.devices[..] else { panic!("{snapshot:?}") };
        assert_eq!((device.name.as_str(), device.firmware.as_str()), ("mlx5_0", "22.39.1002"));
        let [port] = &device.ports[..] else { panic!("{device:?}") };
        assert_eq!((port.state.as_str(), port.physical_state.as_str()), ("active", "LinkUp"));
        assert_eq!((port.bits_per_second, port.netdev.as_deref()), (Some(100e9), Some("adverb-mlx0")));
        let names: Vec<&str> = port.counters.keys().map(String::as_str).collect();
        assert_eq!(names, ["np_cnp_sent", "out_of_sequence", "port_rcv_data", "port_rcv_packets"]);
        let [netdev] = &snapshot.netdevs[..] else { panic!("{snapshot:?}") };
        assert_eq!((netdev.is_up, netdev.mtu, netdev.carrier_changes), (Some(true), Some(9000), Some(2)));
        assert_eq!((netdev.bits_per_second, netdev.statistics["rx_dropped"]), (Some(100e9), 11));
        assert_eq!(snapshot.read_errors, ReadErrors::default());
    }

    #[test]
    fn devices_can_be_chosen() {
        let sysfs = Sysfs::new("chosen", CONNECTX);
        let mut gatherer = Gatherer::new(&sysfs.0, Vec::new());
        gatherer.limit_to(vec!["mlx5_0".to_owned()]);
        assert_eq!(gatherer.snapshot().devices.len(), 1);
        gatherer.limit_to(vec!["mlx5_1".to_owned()]);
        assert_eq!(gatherer.snapshot(), Snapshot::default());
    }

    #[test]
    fn a_machine_without_rdma_is_no_error() {
        let sysfs = Sysfs::new("nothing", &[("class/net/lo/mtu", "65536\n")]);
        assert_eq!(sysfs.snapshot(), Snapshot::default());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_counted() {
        // A directory in place of a file: even root can't read it.
        let sysfs = Sysfs::new(
            "unreadable",
            &[
                ("class/infiniband/rxe0/ports/1/state/oops", ""),
                ("class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", "1\n"),
                ("class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts/oops", ""),
            ],
        );
        let snapshot = sysfs.snapshot();
        assert_eq!(snapshot.read_errors.get(Source::Rdma), 2);
        let port = &snapshot.devices[0].ports[0];
        assert_eq!((port.state.as_str(), port.counters.len()), ("", 1));
    }

    #[test]
    fn the_interface_of_a_port_without_gids_is_that_of_its_pci_function() {
        let sysfs = Sysfs::new(
            "function",
            &[
                ("class/infiniband/mlx4_0/ports/1/state", "1: DOWN\n"),
                ("class/infiniband/mlx4_0/ports/2/state", "1: DOWN\n"),
                ("class/infiniband/mlx4_0/device/net/eth7/dev_port", "0\n"),
                ("class/infiniband/mlx4_0/device/net/eth8/dev_port", "1\n"),
            ],
        );
        let snapshot = sysfs.snapshot();
        let netdevs: Vec<_> =
            snapshot.devices[0].ports.iter().map(|port| (port.number, port.netdev.as_deref())).collect();
        assert_eq!(netdevs, [(1, Some("eth7")), (2, Some("eth8"))]);
    }

    #[test]
    fn rates_are_in_bits_per_second() {
        assert_eq!(parse_rate("2.5 Gb/sec (1X SDR)"), Some(2.5e9));
        assert_eq!(parse_rate("400 Gb/sec (4X NDR)"), Some(400e9));
        for rate in ["", "fast", "-1 Gb/sec", "NaN Gb/sec", "5 MB/s"] {
            assert_eq!(parse_rate(rate), None, "{rate}");
        }
    }

    #[test]
    fn a_software_nic_is_read_through_its_device() {
        let device = Device::open("soft").unwrap();
        let snapshot = Gatherer::new(Path::new("/nonexistent"), vec![device]).snapshot();
        let [device] = &snapshot.devices[..] else { panic!("{snapshot:?}") };
        assert!(device.is_software && device.ports[0].state == "active", "{device:?}");
        assert!(device.ports[0].counters.contains_key("sent_pkts"), "{device:?}");
        assert_eq!(snapshot.read_errors, ReadErrors::default());
    }
}
