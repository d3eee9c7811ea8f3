//! The facts about RDMA in the kernel's files.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;

use super::dcb;
use crate::devices::kernel::{Kernel, names_in};

/// The facts about a machine.
#[derive(Clone, Default, Debug)]
pub(super) struct Facts {
    pub(super) devices: Vec<Device>,
    pub(super) idle_nics: Vec<IdleNic>,
    /// The maximum number of bytes that this process may lock in memory. `None` means that there is no limit, also if
    /// the process has `CAP_IPC_LOCK`.
    pub(super) memlock_bytes: Option<u64>,
    /// The maximum number of file descriptors of this process.
    pub(super) max_files: Option<u64>,
    /// The access to the kernel's connection manager.
    pub(super) connection_manager: Access,
    /// The limits of the process's cgroup and of the cgroups above it.
    pub(super) cgroup_limits: Vec<CgroupLimit>,
    /// The visibility of RDMA devices in network namespaces, if the kernel supports RDMA.
    pub(super) namespaces: Option<Namespaces>,
}

/// An RDMA device of the kernel.
#[derive(Clone, Default, Debug)]
pub(super) struct Device {
    pub(super) name: String,
    /// The driver of the PCI device. `None` if the device has no hardware, as soft-RoCE.
    pub(super) driver: Option<String>,
    pub(super) firmware: Option<String>,
    /// Whether the device uses RoCE or InfiniBand, in contrast to iWARP and EFA.
    pub(super) has_gids: bool,
    pub(super) access: Access,
    pub(super) ports: Vec<Port>,
}

/// An RDMA-capable NIC on the PCI bus for which the kernel has no RDMA device.
#[derive(Clone, Debug)]
pub(super) struct IdleNic {
    pub(super) address: String,
    pub(super) driver: Option<String>,
}

/// The visibility of RDMA devices in network namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Namespaces {
    /// Each device is visible in all namespaces.
    Shared,
    /// Each device is visible in one namespace.
    Exclusive,
}

/// A limit of a cgroup on the objects of a device.
#[derive(Clone, Debug)]
pub(super) struct CgroupLimit {
    pub(super) directory: PathBuf,
    pub(super) device: String,
    /// The kind of objects: `hca_handle` are open devices, `hca_object` all objects of rdma-core.
    pub(super) kind: &'static str,
    pub(super) max: u64,
    pub(super) used: u64,
}

/// The access of this process to a device file.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) enum Access {
    #[default]
    Granted,
    NoFile {
        reason: String,
        fix: Option<String>,
    },
    /// The process has no permission for this file.
    Denied(PathBuf),
}

/// A port of a device.
#[derive(Clone, Default, Debug)]
pub(super) struct Port {
    pub(super) number: u8,
    /// The state, as the kernel names it: `ACTIVE`, `DOWN`, `INIT`, `ARMED`.
    pub(super) state: String,
    pub(super) is_ethernet: bool,
    /// The used entries of the GID table.
    pub(super) gids: Vec<Gid>,
    /// The network interfaces of the port in this network namespace.
    pub(super) netdevs: Vec<Netdev>,
}

/// An entry of a GID table.
#[derive(Clone, Debug)]
pub(super) struct Gid {
    pub(super) gid: Ipv6Addr,
    pub(super) is_roce_v2: bool,
    /// The network interface with the address.
    pub(super) netdev: String,
    /// Whether the network interface is in this network namespace.
    pub(super) is_here: bool,
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Netdev {
    pub(super) name: String,
    pub(super) is_up: bool,
    pub(super) has_carrier: bool,
    pub(super) mtu: u32,
    /// Whether congestion control reacts to marked packets, in any priority. `None` if the driver doesn't report it.
    pub(super) has_ecn: Option<bool>,
    /// The priorities with priority flow control (PFC). `None` if the driver doesn't report them.
    pub(super) pfc_priorities: Option<Vec<u8>>,
}

/// The PCI vendor ID of NVIDIA (Mellanox) network devices.
const NVIDIA: &str = "0x15b3";
/// The PCI classes of Ethernet and InfiniBand controllers.
const NETWORK_CLASSES: [&str; 2] = ["0x0200", "0x0207"];
/// The bit of the capability that permits to lock any amount of memory.
const CAP_IPC_LOCK: u32 = 14;
/// The bit of an interface's flags that is set while the interface is up.
const IFF_UP: u32 = 1;

impl Facts {
    /// Reads the facts from the files below `root`. Files that don't exist or can't be read yield no facts.
    pub(super) fn read(root: &Path) -> Facts {
        Files { root, interfaces: None }.facts()
    }

    /// Reads the facts about this machine.
    pub(super) fn of_this_machine() -> Facts {
        let root = Path::new("/");
        let mut facts = Files { root, interfaces: interface_addresses() }.facts();
        let ports = facts.devices.iter_mut().flat_map(|device| &mut device.ports);
        for netdev in ports.flat_map(|port| &mut port.netdevs) {
            netdev.pfc_priorities = dcb::pfc_priorities(&netdev.name);
        }
        facts
    }
}

/// The names of network interfaces, with an address of each.
type Interfaces = Vec<(String, Ipv6Addr)>;

/// Returns the addresses of the interfaces in this network namespace.
fn interface_addresses() -> Option<Interfaces> {
    let addresses = getifaddrs().ok()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| address.ip().to_ipv6_mapped());
        // An address with a label has the name `eth2:label`.
        let name = interface.interface_name.split(':').next()?.to_owned();
        Some((name, v4.or_else(|| Some(address.as_sockaddr_in6()?.ip()))?))
    });
    Some(addresses.collect())
}

/// The files of a machine.
struct Files<'a> {
    root: &'a Path,
    /// The interfaces of this network namespace. `None` if they aren't known.
    interfaces: Option<Interfaces>,
}

impl Files<'_> {
    fn facts(&self) -> Facts {
        let kernel = Kernel::at(self.root);
        let devices = kernel.devices().into_iter().map(|name| self.device(&kernel, name)).collect();
        let namespaces = match self.text("sys/module/ib_core/parameters/netns_mode").as_deref() {
            Some("Y") => Some(Namespaces::Shared),
            Some("N") => Some(Namespaces::Exclusive),
            _ => None,
        };
        Facts {
            devices,
            idle_nics: self.idle_nics(),
            memlock_bytes: self.memlock_bytes(),
            max_files: self.limit("Max open files"),
            connection_manager: self.connection_manager(),
            cgroup_limits: self.cgroup_limits(),
            namespaces,
        }
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// Returns the driver of a device on a bus.
    fn driver(&self, device: &Path) -> Option<String> {
        let driver = fs::read_link(self.path(device.join("driver"))).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }

    fn device(&self, kernel: &Kernel, name: String) -> Device {
        let access = match kernel.missing_file(&name) {
            Some(unusable) => Access::NoFile { reason: unusable.reason, fix: unusable.hint },
            None => kernel.file(&name).map_or(Access::Granted, access),
        };
        let class = Path::new("sys/class/infiniband").join(&name);
        let numbers: Vec<u8> = names_in(&self.path(class.join("ports")))
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        let ports = numbers.iter().map(|&number| self.port(&class, number, numbers.len())).collect();
        Device {
            driver: self.driver(&class.join("device")),
            firmware: self.text(class.join("fw_ver")).filter(|version| !version.is_empty()),
            has_gids: self.text(class.join("node_type")).is_none_or(|kind| kind.starts_with("1:")),
            name,
            access,
            ports,
        }
    }

    fn connection_manager(&self) -> Access {
        match self.path("dev/infiniband/rdma_cm") {
            file if file.exists() => access(file),
            _ => Access::NoFile {
                reason: "/dev/infiniband/rdma_cm does not exist".to_owned(),
                fix: Some(
                    "`modprobe rdma_ucm`; for a container: `docker run --device=/dev/infiniband`".to_owned(),
                ),
            },
        }
    }

    fn port(&self, device: &Path, number: u8, port_count: usize) -> Port {
        let path = device.join("ports").join(number.to_string());
        // The kernel writes a number and a name, such as `4: ACTIVE`.
        let state = self.text(path.join("state")).unwrap_or_default();
        let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name).to_owned();
        let mut gids = Vec::new();
        for index in names_in(&self.path(path.join("gids"))) {
            let text = self.text(path.join("gids").join(&index)).unwrap_or_default();
            let Some(gid) = text.parse().ok().filter(|gid: &Ipv6Addr| !gid.is_unspecified()) else {
                continue;
            };
            let kind = self.text(path.join("gid_attrs/types").join(&index)).unwrap_or_default();
            let netdev = self.text(path.join("gid_attrs/ndevs").join(&index)).unwrap_or_default();
            gids.push(Gid { gid, is_roce_v2: kind == "RoCE v2", netdev, is_here: false });
        }
        let mut names: Vec<String> = gids.iter().map(|entry| entry.netdev.clone()).collect();
        names.sort();
        names.dedup();
        names.retain(|name| self.is_here(name, &gids));
        for entry in &mut gids {
            entry.is_here = names.contains(&entry.netdev);
        }
        // Without GIDs, soft-RoCE names its interface. A PCI device can have interfaces of several ports, and those of
        // virtual functions.
        if gids.is_empty() && port_count == 1 {
            let parent = self.text(device.join("parent")).map(|name| vec![name]);
            let parents = parent.unwrap_or_else(|| names_in(&self.path(device.join("device/net"))));
            names = if parents.len() == 1 { parents } else { Vec::new() };
        }
        Port {
            number,
            state,
            is_ethernet: self.text(path.join("link_layer")).as_deref() == Some("Ethernet"),
            gids,
            netdevs: names.into_iter().map(|name| self.netdev(name)).collect(),
        }
    }

    /// Whether a network interface of GIDs is in this network namespace. A different interface in this namespace can have
    /// the same name, but not the same addresses.
    fn is_here(&self, netdev: &str, gids: &[Gid]) -> bool {
        let exists = !netdev.is_empty() && self.path("sys/class/net").join(netdev).exists();
        let routable =
            || gids.iter().filter(|entry| entry.netdev == netdev && !entry.gid.is_unicast_link_local());
        let has_address = |interfaces: &Interfaces| {
            let mut gids = routable();
            gids.any(|entry| interfaces.iter().any(|(name, address)| name == netdev && *address == entry.gid))
        };
        exists && (routable().next().is_none() || self.interfaces.as_ref().is_none_or(has_address))
    }

    fn netdev(&self, name: String) -> Netdev {
        let class = Path::new("sys/class/net").join(&name);
        let flags = self.text(class.join("flags")).unwrap_or_default();
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap_or(0);
        let mtu = self.text(class.join("mtu")).and_then(|text| text.parse().ok()).unwrap_or(0);
        let ecn = class.join("ecn/roce_rp/enable");
        let classes: Vec<String> = names_in(&self.path(&ecn))
            .into_iter()
            .filter_map(|priority| self.text(ecn.join(priority)))
            .collect();
        Netdev {
            name,
            is_up: flags & IFF_UP != 0,
            // Reading the carrier of an interface that is down fails.
            has_carrier: self.text(class.join("carrier")).as_deref() == Some("1"),
            mtu,
            pfc_priorities: None,
            has_ecn: (!classes.is_empty()).then(|| classes.iter().any(|enabled| enabled == "1")),
        }
    }

    fn idle_nics(&self) -> Vec<IdleNic> {
        let bus = Path::new("sys/bus/pci/devices");
        let idle_nic = |address: String| {
            let device = bus.join(&address);
            let class = self.text(device.join("class")).unwrap_or_default();
            let is_idle_nic = self.text(device.join("vendor")).as_deref() == Some(NVIDIA)
                && NETWORK_CLASSES.iter().any(|network| class.starts_with(network))
                && !self.path(device.join("infiniband")).exists();
            is_idle_nic.then(|| IdleNic { driver: self.driver(&device), address })
        };
        names_in(&self.path(bus)).into_iter().filter_map(idle_nic).collect()
    }

    /// Returns a limit of this process, or `None` if it is unlimited or unknown.
    fn limit(&self, name: &str) -> Option<u64> {
        let text = self.text("proc/self/limits")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    }

    fn memlock_bytes(&self) -> Option<u64> {
        let status = self.text("proc/self/status").unwrap_or_default();
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities =
            capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
        // The kernel requires the capability in the initial user namespace. In another one, it has no effect.
        let is_initial = self
            .text("proc/self/uid_map")
            .is_some_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
        match capabilities >> CAP_IPC_LOCK & 1 == 1 && is_initial {
            true => None,
            false => self.limit("Max locked memory"),
        }
    }

    fn cgroup_limits(&self) -> Vec<CgroupLimit> {
        let groups = self.text("proc/self/cgroup").unwrap_or_default();
        // Version 2 has one line, `0::/path`; version 1 one for each controller, such as `5:rdma:/path`.
        let group = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let mount = match controllers {
                "" => "sys/fs/cgroup",
                _ if controllers.split(',').any(|name| name == "rdma") => "sys/fs/cgroup/rdma",
                _ => return None,
            };
            Some((Path::new(mount), PathBuf::from(path.trim_start_matches('/'))))
        };
        let mut limits = Vec::new();
        for (mount, path) in groups.lines().filter_map(group) {
            for directory in path.ancestors().map(|path| mount.join(path)) {
                self.add_limits(&directory, &mut limits);
            }
        }
        limits
    }

    fn add_limits(&self, directory: &Path, limits: &mut Vec<CgroupLimit>) {
        let [max, used] =
            ["rdma.max", "rdma.current"].map(|file| self.text(directory.join(file)).unwrap_or_default());
        for line in max.lines() {
            let device = line.split_whitespace().next().unwrap_or_default();
            let used = used.lines().find(|line| line.split_whitespace().next() == Some(device));
            for kind in ["hca_handle", "hca_object"] {
                // A kind without a limit has the value `max`.
                if let Some(max) = value_of(kind, line) {
                    let used = used.and_then(|line| value_of(kind, line)).unwrap_or(0);
                    let directory = Path::new("/").join(directory);
                    limits.push(CgroupLimit { directory, device: device.to_owned(), kind, max, used });
                }
            }
        }
    }
}

/// Returns the number of a key in a line such as `mlx5_0 hca_handle=2 hca_object=max`.
fn value_of(key: &str, line: &str) -> Option<u64> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?.parse().ok()
}

/// Returns the access of this process to a device file that exists.
fn access(file: PathBuf) -> Access {
    let opened = fs::OpenOptions::new().read(true).write(true).open(&file);
    match opened {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Access::Denied(file),
        _ => Access::Granted,
    }
}
