//! Collects the devices from Adverb, and from sysfs the devices that rdma-core doesn't list.

use std::net::IpAddr;

use adverb::verbs::{self, DeviceInfo, Error, GidEntry, SoftDevice};

use super::inventory::{
    Device, Gid, GidType, Inventory, LinkLayer, Operations, Port, PortState, Problem, ProblemKind, Software,
    Unusable,
};
use super::kernel::Kernel;
use crate::report;

/// Returns all devices of this machine.
pub(super) fn query_all() -> Inventory {
    let kernel = Kernel::new();
    let (mut devices, mut problem) = match verbs::Device::list_hardware() {
        Ok(infos) => (infos.into_iter().map(device).collect(), None),
        Err(error) => (Vec::new(), Some(not_listed(&error))),
    };
    add_unlisted(&mut devices, &kernel, problem.as_ref());
    if devices.is_empty() && problem.is_none() {
        problem = Some(Problem {
            kind: ProblemKind::NoDevices,
            message: "this machine has no RDMA hardware or soft-RoCE devices, only software devices"
                .to_owned(),
            hints: device_hints(),
        });
    }
    let all = verbs::Device::list().unwrap_or_default();
    let software = all.into_iter().filter(|info| info.name.starts_with("soft"));
    devices.extend(software.map(device));
    let is_routable = |address: &IpAddr| match address {
        _ if address.is_loopback() => false,
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let addresses = SoftDevice::available_addrs().into_iter().filter(is_routable);
    let software = addresses.map(|address| Software { name: format!("soft:{address}"), address }).collect();
    Inventory { devices, software, problem }
}

/// Returns the reason why the devices could not be listed.
fn not_listed(error: &Error) -> Problem {
    let (kind, hints) = match error {
        Error::NotInstalled { .. } => (ProblemKind::NoRdmaCore, report::hints(error)),
        Error::NoDevice { .. } => (ProblemKind::NoKernelSupport, device_hints()),
        _ => (ProblemKind::Failed, report::hints(error)),
    };
    Problem { kind, message: report::message(error), hints }
}

/// Returns hints for a machine without devices.
fn device_hints() -> Vec<String> {
    [
        "for an RDMA NIC, load its driver: for a ConnectX, `modprobe mlx5_ib`",
        "without an RDMA NIC, create a soft-RoCE device on a network interface, such as eth0: \
         `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`",
        "run both as root; for a container or a sandbox, on its host",
    ]
    .map(str::to_owned)
    .into()
}

/// Adds the kernel's devices that rdma-core doesn't list.
fn add_unlisted(devices: &mut Vec<Device>, kernel: &Kernel, problem: Option<&Problem>) {
    for name in kernel.devices() {
        if devices.iter().any(|device| device.name == name) {
            continue;
        }
        let unusable = match problem.map(|problem| problem.kind) {
            Some(ProblemKind::NoRdmaCore) => Unusable {
                reason: "rdma-core, which contains its user-space driver, is not installed".to_owned(),
                hint: None,
            },
            _ => kernel.unlisted_reason(&name),
        };
        let guid = kernel.guid(&name);
        devices.push(unknown_device(name, guid, Some(unusable)));
    }
}

/// Returns the attributes of a device, or the reason why it can't be opened.
fn device(info: DeviceInfo) -> Device {
    let guid = Some(format_guid(info.guid));
    if let Some(reason) = info.unsupported_reason {
        let unusable = Unusable { reason: reason.to_owned(), hint: None };
        return unknown_device(info.name, guid, Some(unusable));
    }
    let mut device = unknown_device(info.name, guid, None);
    if let Err(error) = fill(&mut device) {
        let hint = error.hint().map(Into::into);
        device.unusable = Some(Unusable { reason: report::message(&error), hint });
    }
    device
}

/// Returns a device without attributes.
fn unknown_device(name: String, guid: Option<String>, unusable: Option<Unusable>) -> Device {
    Device {
        name,
        guid,
        unusable,
        firmware: None,
        vendor_id: None,
        vendor_part_id: None,
        operations: None,
        ports: Vec::new(),
    }
}

/// Opens a device and adds its attributes, ports and GIDs.
fn fill(device: &mut Device) -> adverb::verbs::Result<()> {
    let open = verbs::Device::open(&device.name)?;
    let attributes = open.attributes();
    device.firmware = Some(attributes.firmware.clone()).filter(|firmware| !firmware.is_empty());
    device.vendor_id = Some(attributes.vendor_id);
    device.vendor_part_id = Some(attributes.vendor_part_id);
    device.operations = Some(Operations {
        atomics: attributes.has_atomics,
        atomic_write: attributes.has_atomic_write,
        flush_global: attributes.flush.global,
        flush_persistent: attributes.flush.persistent,
    });
    let entries = open.gids()?;
    for found in open.ports()? {
        let mut port = port(&found, &entries);
        // A port without GIDs has no chosen GID.
        if let Ok(chosen) = open.gid_for(found.number, None) {
            port.choose(chosen.index);
        }
        device.ports.push(port);
    }
    Ok(())
}

/// Returns a port with its GIDs.
fn port(port: &verbs::Port, entries: &[GidEntry]) -> Port {
    let link_layer = match port.link_layer {
        verbs::LinkLayer::InfiniBand => LinkLayer::InfiniBand,
        verbs::LinkLayer::Ethernet => LinkLayer::Ethernet,
        _ => LinkLayer::Unknown,
    };
    Port {
        number: port.number,
        state: match port.state {
            verbs::PortState::Down => PortState::Down,
            verbs::PortState::Init => PortState::Init,
            verbs::PortState::Armed => PortState::Armed,
            verbs::PortState::Active => PortState::Active,
            verbs::PortState::ActiveDefer => PortState::ActiveDefer,
            _ => PortState::Unknown,
        },
        link_layer,
        active_mtu: port.active_mtu.bytes(),
        max_mtu: port.max_mtu.bytes(),
        lid: (link_layer == LinkLayer::InfiniBand).then_some(port.lid),
        max_message_size: port.max_message_size,
        gids: entries.iter().filter(|entry| entry.port == port.number).map(gid).collect(),
    }
}

fn gid(entry: &GidEntry) -> Gid {
    let gid_type = match entry.gid_type {
        verbs::GidType::InfiniBand => GidType::InfiniBand,
        verbs::GidType::RoceV1 => GidType::RoceV1,
        verbs::GidType::RoceV2 => GidType::RoceV2,
        _ => GidType::Unknown,
    };
    Gid {
        index: entry.index,
        gid: entry.gid.to_string(),
        ip: matches!(gid_type, GidType::RoceV1 | GidType::RoceV2).then(|| entry.gid.udp_addr().ip()),
        udp_port: entry.gid.has_udp_port().then(|| entry.gid.udp_addr().port()),
        gid_type,
        netdev: entry.netdev.clone(),
        link_local: entry.gid.is_link_local(),
        chosen: false,
        passed_over: None,
    }
}

/// Formats a GUID like `ibv_devinfo`.
fn format_guid(guid: u64) -> String {
    [48, 32, 16, 0].map(|shift| format!("{:04x}", (guid >> shift) & 0xffff)).join(":")
}

#[cfg(test)]
mod tests {
    use adverb::verbs::NoDeviceReason;
    use adverb::verbs::explain::Call;

    use super::*;

    #[test]
    fn guid_is_written_as_ibv_devinfo_writes_it() {
        assert_eq!(format_guid(0x0000_00ff_fe00_7701), "0000:00ff:fe00:7701");
    }

    #[test]
    fn kernel_without_rdma_has_hints_about_devices() {
        let error = Error::NoDevice {
            problem: "listing RDMA devices failed: the kernel has no RDMA support".into(),
            reason: NoDeviceReason::NoneExists,
            available: Box::default(),
        };
        let problem = not_listed(&error);
        assert_eq!(problem.kind, ProblemKind::NoKernelSupport);
        assert_eq!(problem.message, "listing RDMA devices failed: the kernel has no RDMA support");
        assert!(problem.hints.iter().any(|hint| hint.contains("rdma link add rxe0 type rxe netdev")));
        assert!(problem.is_failure());
    }

    #[test]
    fn missing_rdma_core_is_distinguished() {
        let problem = not_listed(&Error::NotInstalled { source: "loading it failed".into() });
        assert_eq!(problem.kind, ProblemKind::NoRdmaCore);
        assert_eq!(problem.message, "rdma-core is not available: loading it failed");
        assert_eq!(problem.hints.len(), 1);
    }

    #[test]
    fn hint_of_another_error_is_kept_and_printed_once() {
        let error = Error::CallFailed {
            action: "listing RDMA devices".into(),
            call: Call::OpenDevice,
            source: std::io::Error::from_raw_os_error(12),
        };
        let problem = not_listed(&error);
        assert_eq!(problem.kind, ProblemKind::Failed);
        assert_eq!(problem.message, "listing RDMA devices failed: Cannot allocate memory (os error 12)");
        assert_eq!(problem.hints, [error.hint().expect("a hint").into_owned()]);
    }
}
