//! The checks of facts. No check does I/O.

use std::net::Ipv6Addr;

use super::facts::{Access, CgroupLimit, Device, Facts, Gid, IdleNic, Namespaces, Netdev, Port};
use super::result::CheckResult;

/// The limit on locked memory below which programs usually fail: a few queues and buffers fit into it.
const MIN_MEMLOCK_BYTES: u64 = 64 << 20;
/// The number of file descriptors below which programs with a software NIC usually fail.
const MIN_FILES: u64 = 64;
/// The limits of a cgroup, on open devices and on other RDMA objects, below which programs usually fail.
const MIN_CGROUP_HANDLES: u64 = 1;
const MIN_CGROUP_OBJECTS: u64 = 16;
/// The bytes of an Ethernet frame's payload around the data of a RoCE packet: IPv6, UDP, transport headers and checksum.
const ROCE_OVERHEAD: u32 = 40 + 8 + 12 + 16 + 4;

pub(super) fn all(facts: &Facts) -> Vec<CheckResult> {
    let mut results = devices(facts);
    for device in &facts.devices {
        results.extend(access(device));
        for port in &device.ports {
            results.push(port_state(device, port));
            if port.is_ethernet && device.has_gids {
                results.push(addresses(device, port));
                results.extend(port.netdevs.iter().map(|netdev| mtu(device, port, netdev)));
            }
            results.extend(port.netdevs.iter().filter_map(|netdev| congestion(device, port, netdev)));
        }
    }
    results.extend([memlock(facts), files(facts), connection_manager(facts)]);
    results.extend(namespaces(facts));
    results.push(cgroup(facts));
    results
}

fn devices(facts: &Facts) -> Vec<CheckResult> {
    let mut results = Vec::new();
    if facts.devices.is_empty() {
        results.push(CheckResult::note(
            "devices",
            "the kernel shows no RDMA device (hardware or soft-RoCE) here: programs use the software NIC",
        ));
    } else {
        let names: Vec<String> = facts.devices.iter().map(describe).collect();
        results.push(CheckResult::ok("devices", names.join(", ")));
    }
    // With exclusive namespaces, the device can be in another namespace.
    if facts.namespaces != Some(Namespaces::Exclusive) {
        results.extend(facts.idle_nics.iter().filter_map(idle_nic));
    }
    results
}

fn describe(Device { name, driver, firmware, .. }: &Device) -> String {
    match (driver, firmware) {
        (None, _) => format!("{name} (software)"),
        (Some(driver), None) => format!("{name} ({driver})"),
        (Some(driver), Some(firmware)) => format!("{name} ({driver}, firmware {firmware})"),
    }
}

fn idle_nic(nic: &IdleNic) -> Option<CheckResult> {
    let address = &nic.address;
    let (cause, module) = match nic.driver.as_deref() {
        None => ("it has no driver", "mlx5_core"),
        Some("mlx5_core") => ("the RDMA part of its driver is not loaded, or RoCE is disabled", "mlx5_ib"),
        Some("mlx4_core") => ("the RDMA part of its driver is not loaded", "mlx4_ib"),
        // For example vfio-pci, which passes the NIC to a virtual machine.
        Some(_) => return None,
    };
    Some(CheckResult::problem(
        "devices",
        format!("the NIC at PCI address {address} supports RDMA, but has no RDMA device: {cause}"),
        &[
            &format!("load the driver: `modprobe {module}`"),
            &format!("look whether RoCE is enabled: `devlink dev param show pci/{address} name enable_roce`"),
        ],
    ))
}

fn access(device: &Device) -> Option<CheckResult> {
    let name = &device.name;
    let (message, fixes) = denial(&device.access)?;
    Some(CheckResult::problem("device file", format!("{name} cannot be opened: {message}"), &fixes))
}

/// Returns the reason why a file can't be opened, and the actions that change it.
fn denial(access: &Access) -> Option<(String, Vec<String>)> {
    match access {
        Access::Granted => None,
        Access::NoFile { reason, fix } => Some((reason.clone(), fix.iter().cloned().collect())),
        Access::Denied(file) => {
            let file = file.display();
            let permit = format!("permit it: `chmod a+rw {file}`, or a udev rule that does so at each start");
            let container =
                "in a container, also permit it in the device cgroup: `docker run --device=/dev/infiniband`";
            Some((format!("no permission for {file}"), vec![permit, container.to_owned()]))
        }
    }
}

fn port_state(device: &Device, port: &Port) -> CheckResult {
    let name = port_name(device, port);
    let problem = |cause: String, fix: &str| CheckResult::problem("port", format!("{name} {cause}"), &[fix]);
    match port.state.as_str() {
        "ACTIVE" => CheckResult::ok("port", format!("{name} is active")),
        state if port.is_ethernet => {
            match port.netdevs.iter().find(|netdev| !netdev.is_up || !netdev.has_carrier) {
                Some(Netdev { name: netdev, is_up: false, .. }) => problem(
                    format!("is {}: its network interface {netdev} is down", state.to_lowercase()),
                    &format!("`ip link set {netdev} up`"),
                ),
                Some(Netdev { name: netdev, .. }) => problem(
                    format!("is {}: its network interface {netdev} has no carrier", state.to_lowercase()),
                    "check the cable, the transceiver and the port of the switch",
                ),
                None => problem(
                    format!("is {}", state.to_lowercase()),
                    "bring its network interface up (`rdma link` names it), and check the cable",
                ),
            }
        }
        state @ ("INIT" | "ARMED") => problem(
            format!("is in the state {}: no subnet manager has configured it", state.to_lowercase()),
            "run a subnet manager in a switch of the subnet, or `opensm` on a host",
        ),
        state => {
            problem(format!("is {}", state.to_lowercase()), "check the cable, and the port at its other end")
        }
    }
}

fn addresses(device: &Device, port: &Port) -> CheckResult {
    let name = port_name(device, port);
    let netdev = port.netdevs.first().map_or("INTERFACE", |netdev| netdev.name.as_str());
    let add = format!("`ip address add ADDRESS/LENGTH dev {netdev}`");
    let v2 = || port.gids.iter().filter(|entry| entry.is_roce_v2);
    let routable = || v2().filter(|entry| !entry.gid.is_unicast_link_local());
    let problem =
        |cause: String, fixes: &[&str]| CheckResult::problem("address", format!("{name} has {cause}"), fixes);
    if let Some(entry) = routable().find(|entry| entry.is_here) {
        CheckResult::ok("address", format!("{name} has {} for RoCE v2", display(entry.gid)))
    } else if let Some(Gid { gid, netdev, .. }) = routable().next() {
        problem(
            format!(
                "{} for RoCE v2, but its network interface {netdev} is in another network namespace: programs that connect \
                 by address cannot use it",
                display(*gid)
            ),
            &[
                "run the program in the namespace of the host: for a container, `docker run --network=host`",
                &format!(
                    "or give this namespace an interface on the same port: on the host, `ip link add link {netdev} name \
                     NAME netns NAMESPACE type macvlan mode bridge`, with an address"
                ),
            ],
        )
    } else if port.gids.is_empty() {
        problem(format!("no GID: {netdev} has no address"), &[&add])
    } else if v2().next().is_some() {
        problem("only link-local GIDs, which are valid on one link only".to_owned(), &[&add])
    } else {
        let Device { name, .. } = device;
        let set = format!(
            "set the default: `cma_roce_mode -d {name} -p {} -m 2`; some NICs need newer firmware for v2",
            port.number
        );
        problem("GIDs for RoCE v1 only, which is not routed and which few peers use".to_owned(), &[&set])
    }
}

fn mtu(device: &Device, port: &Port, netdev: &Netdev) -> CheckResult {
    let name = port_name(device, port);
    let Netdev { name: netdev, mtu, .. } = netdev;
    let fitting = [4096, 2048, 1024, 512, 256].into_iter().find(|bytes| bytes + ROCE_OVERHEAD <= *mtu);
    match fitting {
        Some(bytes @ 1024..) => {
            CheckResult::ok("MTU", format!("{netdev} of {name} has {mtu}: packets carry up to {bytes} bytes"))
        }
        _ => CheckResult::problem(
            "MTU",
            format!(
                "{netdev} of {name} has an MTU of {mtu}, so packets carry {} bytes at most",
                fitting.unwrap_or(0)
            ),
            &[&format!("`ip link set {netdev} mtu 1500` or more, if the network supports it")],
        ),
    }
}

/// Returns the settings for congestion. Which of them are right depends on the network.
fn congestion(device: &Device, port: &Port, netdev: &Netdev) -> Option<CheckResult> {
    let name = port_name(device, port);
    let pfc = netdev.pfc_priorities.as_ref().map(|priorities| match priorities.as_slice() {
        [] => "pauses no priority (PFC)".to_owned(),
        priorities => {
            let priorities: Vec<String> = priorities.iter().map(ToString::to_string).collect();
            format!("pauses priority {} (PFC)", priorities.join(", "))
        }
    });
    let ecn = netdev.has_ecn.map(|reacts| match reacts {
        true => "reacts to congestion marks (ECN)".to_owned(),
        false => "ignores congestion marks (ECN)".to_owned(),
    });
    let settings: Vec<String> = [pfc, ecn].into_iter().flatten().collect();
    match settings.as_slice() {
        [] if device.driver.is_none() => None,
        [] => Some(CheckResult::not_checked(
            "congestion",
            format!("the driver of {name} does not tell its PFC and ECN settings"),
        )),
        settings => Some(CheckResult::note("congestion", format!("{name} {}", settings.join(" and ")))),
    }
}

fn memlock(facts: &Facts) -> CheckResult {
    match facts.memlock_bytes {
        _ if facts.devices.is_empty() => {
            CheckResult::not_checked("locked memory", "only RDMA devices of the kernel lock memory")
        }
        None => CheckResult::ok("locked memory", "this process may lock any amount of memory"),
        Some(limit) if limit >= MIN_MEMLOCK_BYTES => {
            CheckResult::ok("locked memory", format!("this process may lock {} MiB", limit >> 20))
        }
        Some(limit) => CheckResult::problem(
            "locked memory",
            format!(
                "this process may lock only {} KiB, and registered memory and queues are locked memory",
                limit >> 10
            ),
            &[
                "for a shell: `ulimit -l unlimited`, after `* - memlock unlimited` in /etc/security/limits.conf",
                "for a service: `LimitMEMLOCK=infinity` in its unit; for a container: `docker run --ulimit memlock=-1`",
            ],
        ),
    }
}

fn files(facts: &Facts) -> CheckResult {
    match facts.max_files {
        Some(limit) if limit < MIN_FILES => CheckResult::problem(
            "open files",
            format!("this process may have only {limit} file descriptors"),
            &["`ulimit -n 1024` or more"],
        ),
        Some(limit) => {
            CheckResult::ok("open files", format!("this process may have {limit} file descriptors"))
        }
        None => CheckResult::not_checked("open files", "the limit is not known"),
    }
}

fn connection_manager(facts: &Facts) -> CheckResult {
    let check = "connections";
    if facts.devices.is_empty() {
        return CheckResult::not_checked(check, "the software NIC has a connection manager of its own");
    }
    match denial(&facts.connection_manager) {
        None => CheckResult::ok(check, "/dev/infiniband/rdma_cm can be opened"),
        Some((message, fixes)) => CheckResult::problem(
            check,
            format!("the kernel's connection manager cannot be used: {message}"),
            &fixes,
        ),
    }
}

fn namespaces(facts: &Facts) -> Option<CheckResult> {
    let message = match (facts.namespaces?, facts.devices.is_empty()) {
        (Namespaces::Shared, _) => "each RDMA device is visible in all network namespaces",
        (Namespaces::Exclusive, false) => "each RDMA device is visible in one network namespace only",
        (Namespaces::Exclusive, true) => {
            "each RDMA device is visible in one network namespace only: on the host, `rdma dev set DEVICE netns NAMESPACE` \
             moves one to this namespace"
        }
    };
    Some(CheckResult::note("namespaces", message))
}

fn cgroup(facts: &Facts) -> CheckResult {
    let is_reached = |limit: &&CgroupLimit| {
        let min = if limit.kind == "hca_handle" { MIN_CGROUP_HANDLES } else { MIN_CGROUP_OBJECTS };
        limit.max.saturating_sub(limit.used) < min
    };
    match facts.cgroup_limits.iter().find(is_reached) {
        Some(CgroupLimit { directory, device, kind, max, used }) => {
            let file = directory.join("rdma.max");
            let objects = if *kind == "hca_handle" { "open devices" } else { "objects" };
            CheckResult::problem(
                "cgroup",
                format!(
                    "{} limits {device} to {max} {objects} ({kind}), of which {used} are used",
                    file.display()
                ),
                &[&format!("as root: `echo \"{device} {kind}=max\" > {}`", file.display())],
            )
        }
        None if facts.cgroup_limits.is_empty() => {
            CheckResult::ok("cgroup", "no limit on the RDMA objects of this process was found")
        }
        None => CheckResult::ok("cgroup", "the process's cgroup permits enough RDMA objects"),
    }
}

fn port_name(device: &Device, port: &Port) -> String {
    format!("{}/{}", device.name, port.number)
}

/// Formats a GID as the address that it contains.
fn display(gid: Ipv6Addr) -> String {
    gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |address| address.to_string())
}
