//! The inventory as text for people.

use std::net::{IpAddr, SocketAddr};

use super::inventory::{
    Device, Gid, GidType, Inventory, LinkLayer, PassedOver, Port, PortState, Problem, Software, Unusable,
};
use crate::prose::{HINT, wrap};
use crate::table::{Column, Table};

/// Returns the tables of devices, ports and GIDs, with remarks.
pub(super) fn tables(inventory: &Inventory) -> String {
    let devices = &inventory.devices;
    let parts = [
        device_table(devices).to_string(),
        operation_table(devices).to_string(),
        port_table(devices).to_string(),
        gid_table(devices).to_string(),
        legend(devices),
        remarks(devices),
        software(&inventory.software),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

/// Returns the reason why there are no devices or only software devices, with hints.
pub(super) fn problem(problem: &Problem, is_failure: bool) -> String {
    let prefix = if is_failure { "error: " } else { "" };
    let mut text = wrap(&format!("{prefix}{}", problem.message));
    text.extend(problem.hints.iter().map(|hint| wrap(&format!("{HINT}{hint}"))));
    text
}

/// Returns the names of the software devices that peers could reach, or nothing if this machine has no address for
/// them.
fn software(software: &[Software]) -> String {
    let names: Vec<&str> = software.iter().map(|software| software.name.as_str()).collect();
    match names.len() {
        0 => String::new(),
        _ => wrap(&format!(
            "To let other hosts reach a software device, open it as {}. Any host that can send packets to its \
             address can then send it RDMA packets.",
            names.join(" or ")
        )),
    }
}

fn device_table(devices: &[Device]) -> Table<6> {
    let mut table = Table::new([
        Column::Left("DEVICE"),
        Column::Left("GUID"),
        Column::Left("FIRMWARE"),
        Column::Left("VENDOR"),
        Column::Left("PART"),
        Column::Left("USABLE"),
    ]);
    for device in devices {
        table.add_row([
            device.name.clone(),
            device.guid.clone().unwrap_or_default(),
            device.firmware.clone().unwrap_or_default(),
            device.vendor_id.map(|id| format!("{id:#06x}")).unwrap_or_default(),
            device.vendor_part_id.map(|id| id.to_string()).unwrap_or_default(),
            if device.unusable.is_none() { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

fn operation_table(devices: &[Device]) -> Table<4> {
    let mut table = Table::new([
        Column::Left("DEVICE"),
        Column::Left("ATOMICS"),
        Column::Left("ATOMIC WRITE"),
        Column::Left("FLUSH"),
    ]);
    let yes_or_no = |is_supported| if is_supported { "yes" } else { "no" }.to_owned();
    for device in devices {
        let Some(operations) = device.operations else { continue };
        let flush = match (operations.flush_global, operations.flush_persistent) {
            (true, true) => "global, persistent",
            (true, false) => "global",
            (false, true) => "persistent",
            (false, false) => "no",
        };
        table.add_row([
            device.name.clone(),
            yes_or_no(operations.atomics),
            yes_or_no(operations.atomic_write),
            flush.to_owned(),
        ]);
    }
    table
}

fn port_table(devices: &[Device]) -> Table<7> {
    let mut table = Table::new([
        Column::Left("PORT"),
        Column::Left("STATE"),
        Column::Left("LINK"),
        Column::Right("MTU"),
        Column::Right("MAX MTU"),
        Column::Right("MAX MESSAGE"),
        Column::Right("LID"),
    ]);
    for (device, port) in ports(devices) {
        table.add_row([
            port_name(device, port),
            state(port.state).to_owned(),
            link_layer(port.link_layer).to_owned(),
            port.active_mtu.to_string(),
            port.max_mtu.to_string(),
            size(port.max_message_size),
            port.lid.map(|lid| lid.to_string()).unwrap_or_default(),
        ]);
    }
    table
}

fn gid_table(devices: &[Device]) -> Table<8> {
    let mut table = Table::new([
        Column::Left(""),
        Column::Left("PORT"),
        Column::Right("INDEX"),
        Column::Left("GID"),
        Column::Left("IPv4"),
        Column::Left("TYPE"),
        Column::Left("NETDEV"),
        Column::Left("WHY NOT"),
    ]);
    for (device, port) in ports(devices) {
        for gid in &port.gids {
            table.add_row([
                if gid.chosen { "*" } else { "" }.to_owned(),
                port_name(device, port),
                gid.index.to_string(),
                gid.gid.clone(),
                address(gid),
                gid_type(gid.gid_type).to_owned(),
                gid.netdev.clone().unwrap_or_default(),
                gid.passed_over.map(passed_over).unwrap_or_default().to_owned(),
            ]);
        }
    }
    table
}

/// Returns the address of a GID, if the GID itself doesn't show it.
fn address(gid: &Gid) -> String {
    match (gid.ip, gid.udp_port) {
        (Some(ip), Some(port)) => SocketAddr::new(ip, port).to_string(),
        (Some(IpAddr::V4(ip)), None) => ip.to_string(),
        _ => String::new(),
    }
}

/// Returns the legend of the GID table, or nothing if the table has no marks.
fn legend(devices: &[Device]) -> String {
    let chosen: Vec<&Gid> = ports(devices).filter_map(|(_, port)| port.chosen()).collect();
    if chosen.is_empty() {
        return String::new();
    }
    let mut text =
        "* is the GID that Adverb uses unless the program chooses an address or an index.".to_owned();
    if chosen.iter().any(|gid| gid.gid_type != GidType::InfiniBand) {
        text += " Adverb prefers RoCE v2, because v1 is not routed; then addresses that are not link-local (fe80::), \
                 because those are valid on one link only; then IPv4; then the lowest index.";
    }
    if ports(devices).any(|(_, port)| port.gids.iter().any(|gid| gid.udp_port.is_some())) {
        text += " A GID with a UDP port belongs to a software device whose address has RoCE's port 4791 in use by \
                 another program: only Adverb's devices can reach it.";
    }
    wrap(&text)
}

/// Returns the reasons why devices and ports don't work, with hints.
fn remarks(devices: &[Device]) -> String {
    let devices_unusable = devices.iter().filter_map(|device| {
        let Unusable { reason, hint } = device.unusable.as_ref()?;
        Some((format!("{} cannot be used: {reason}", device.name), hint.clone()))
    });
    let ports_idle = ports(devices).filter_map(|(device, port)| {
        let (what, hint) = remark(port)?;
        Some((format!("{} {what}", port_name(device, port)), Some(hint)))
    });
    let mut remarks = devices_unusable.chain(ports_idle).peekable();
    let mut text = String::new();
    while let Some((what, hint)) = remarks.next() {
        text += &wrap(&what);
        // Devices often fail for the same reason: consecutive remarks share one hint.
        let is_hint_repeated = remarks.peek().is_some_and(|(_, next)| *next == hint);
        if let Some(hint) = hint.filter(|_| !is_hint_repeated) {
            text += &wrap(&format!("{HINT}{hint}"));
        }
    }
    text
}

/// Returns the reason why a port doesn't work, and a hint.
fn remark(port: &Port) -> Option<(&'static str, String)> {
    let netdev = port.gids.iter().find_map(|gid| gid.netdev.as_deref()).unwrap_or("INTERFACE");
    let add_address = || format!("add an address: `ip address add ADDRESS/LENGTH dev {netdev}`");
    match (port.link_layer, port.state) {
        (LinkLayer::Ethernet, PortState::Active) => match port.chosen() {
            None => Some(("has no address", add_address())),
            Some(gid) if gid.link_local => {
                Some(("has only a link-local address, which is valid on one link only", add_address()))
            }
            Some(_) => None,
        },
        (_, PortState::Active) => None,
        (LinkLayer::Ethernet, _) => Some((
            "is not active",
            format!("bring its network interface up (`ip link set {netdev} up`) and check the cable"),
        )),
        (_, PortState::Init | PortState::Armed) => Some((
            "waits for a subnet manager",
            "run a subnet manager in a switch of the subnet, or `opensm` on a host".to_owned(),
        )),
        _ => Some(("is not active", "check the cable and the device at its other end".to_owned())),
    }
}

fn ports(devices: &[Device]) -> impl Iterator<Item = (&Device, &Port)> {
    devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

/// Returns a port's name in the format of `rdma link`.
fn port_name(device: &Device, port: &Port) -> String {
    format!("{}/{}", device.name, port.number)
}

fn state(state: PortState) -> &'static str {
    match state {
        PortState::Down => "down",
        PortState::Init => "init",
        PortState::Armed => "armed",
        PortState::Active => "active",
        PortState::ActiveDefer => "deferred",
        PortState::Unknown => "unknown",
    }
}

fn link_layer(link_layer: LinkLayer) -> &'static str {
    match link_layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Unknown => "unknown",
    }
}

fn gid_type(gid_type: GidType) -> &'static str {
    match gid_type {
        GidType::InfiniBand => "InfiniBand",
        GidType::RoceV1 => "RoCE v1",
        GidType::RoceV2 => "RoCE v2",
        GidType::Unknown => "unknown",
    }
}

/// Returns the reason why Adverb doesn't choose a GID.
fn passed_over(reason: PassedOver) -> &'static str {
    match reason {
        PassedOver::LinkLocal => "link-local",
        PassedOver::RoceV1 => "RoCE v1",
        PassedOver::Ipv6 => "IPv6",
        PassedOver::LaterIndex => "later index",
    }
}

/// Formats a number of bytes in the largest unit that divides it.
fn size(bytes: u32) -> String {
    match bytes.trailing_zeros() {
        10..20 => format!("{} KiB", bytes >> 10),
        20..30 => format!("{} MiB", bytes >> 20),
        30..32 => format!("{} GiB", bytes >> 30),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inventory::{Operations, ProblemKind, samples};
    use super::*;

    #[test]
    fn roce_device_is_shown_with_the_chosen_gid() {
        assert_eq!(
            tables(&samples::roce()),
            "\
DEVICE  GUID                 FIRMWARE    VENDOR  PART  USABLE
mlx5_0  0c42:a103:0012:3456  22.39.1002  0x02c9  4125  yes

DEVICE  ATOMICS  ATOMIC WRITE  FLUSH
mlx5_0  yes      no            no

PORT      STATE   LINK       MTU  MAX MTU  MAX MESSAGE  LID
mlx5_0/1  active  Ethernet  1024     4096        1 GiB    -

   PORT      INDEX  GID                       IPv4       TYPE     NETDEV        WHY NOT
   mlx5_0/1      0  fe80::e42:a1ff:fe12:3456  -          RoCE v1  enp65s0f0np0  link-local
   mlx5_0/1      1  fe80::e42:a1ff:fe12:3456  -          RoCE v2  enp65s0f0np0  link-local
   mlx5_0/1      2  ::ffff:192.0.2.7          192.0.2.7  RoCE v1  enp65s0f0np0  RoCE v1
*  mlx5_0/1      3  ::ffff:192.0.2.7          192.0.2.7  RoCE v2  enp65s0f0np0  -
   mlx5_0/1      4  2001:db8::7               -          RoCE v2  enp65s0f0np0  IPv6
   mlx5_0/1      5  ::ffff:192.0.2.8          192.0.2.8  RoCE v2  enp65s0f0np0  later index

* is the GID that Adverb uses unless the program chooses an address or an index.
  Adverb prefers RoCE v2, because v1 is not routed; then addresses that are not
  link-local (fe80::), because those are valid on one link only; then IPv4; then
  the lowest index.
"
        );
    }

    #[test]
    fn another_udp_port_is_shown() {
        let mut gid = samples::gid(0, "100::12b8:c000:207", "192.0.2.7", GidType::RoceV2);
        gid.udp_port = Some(4792);
        let mut port = samples::port(LinkLayer::Ethernet, vec![gid]);
        port.choose(0);
        let text = tables(&inventory(vec![samples::device("soft:100::12b8:c000:207", vec![port])]));
        assert!(text.contains("100::12b8:c000:207  192.0.2.7:4792  RoCE v2"), "{text}");
        assert!(text.contains("only Adverb's"), "{text}");
    }

    #[test]
    fn infiniband_port_has_its_lid_and_no_text_about_roce() {
        let gid = samples::gid(0, "fe80::c42:a103:12:3456", "", GidType::InfiniBand);
        let mut port = samples::port(LinkLayer::InfiniBand, vec![gid]);
        port.choose(0);
        let text = tables(&inventory(vec![samples::device("ib0", vec![port])]));
        let shown = "\
PORT   STATE   LINK         MTU  MAX MTU  MAX MESSAGE  LID
ib0/1  active  InfiniBand  1024     4096        1 GiB    7

   PORT   INDEX  GID                     IPv4  TYPE        NETDEV  WHY NOT
*  ib0/1      0  fe80::c42:a103:12:3456  -     InfiniBand  -       -

* is the GID that Adverb uses unless the program chooses an address or an index.
";
        assert!(text.ends_with(shown), "{text}");
    }

    #[test]
    fn unusable_devices_have_reasons_and_share_a_hint() {
        let unusable = |name, reason: &str, hint: Option<&str>| {
            let mut device = samples::device(name, Vec::new());
            device.unusable = Some(Unusable { reason: reason.to_owned(), hint: hint.map(str::to_owned) });
            (device.guid, device.firmware, device.vendor_id, device.vendor_part_id) =
                (None, None, None, None);
            device.operations = None;
            device
        };
        let text = tables(&inventory(vec![
            unusable("mlx5_0", "there is no uverbs0", Some("in a container?")),
            unusable("mlx5_1", "there is no uverbs1", Some("in a container?")),
            unusable("siw0", "iWARP needs its connection manager", None),
        ]));
        assert_eq!(
            text,
            "\
DEVICE  GUID  FIRMWARE  VENDOR  PART  USABLE
mlx5_0  -     -         -       -     no
mlx5_1  -     -         -       -     no
siw0    -     -         -       -     no

mlx5_0 cannot be used: there is no uverbs0
mlx5_1 cannot be used: there is no uverbs1
  hint: in a container?
siw0 cannot be used: iWARP needs its connection manager
"
        );
    }

    #[test]
    fn kinds_of_flush_are_named() {
        let device = |name, atomic_write, flush_global, flush_persistent| {
            let mut device = samples::device(name, Vec::new());
            let atomics = true;
            device.operations = Some(Operations { atomics, atomic_write, flush_global, flush_persistent });
            device
        };
        let devices = [device("soft", true, true, false), device("rxe0", true, true, true)];
        assert_eq!(
            operation_table(&devices).to_string(),
            "\
DEVICE  ATOMICS  ATOMIC WRITE  FLUSH
soft    yes      yes           global
rxe0    yes      yes           global, persistent
"
        );
    }

    #[test]
    fn unusable_port_has_a_hint() {
        let remark_of = |link_layer, state, gids: &[&str]| {
            let gids = (0..).zip(gids).map(|(n, gid)| samples::gid(n, gid, gid, GidType::RoceV2)).collect();
            let mut port = samples::port(link_layer, gids);
            port.state = state;
            port.choose(0);
            remark(&port).map(|(what, hint)| format!("{what}: {hint}")).unwrap_or_default()
        };
        let (roce, ib) = (LinkLayer::Ethernet, LinkLayer::InfiniBand);
        assert_eq!(remark_of(roce, PortState::Active, &["2001:db8::7"]), "");
        assert!(remark_of(roce, PortState::Active, &[]).starts_with("has no address: add an address"));
        assert!(remark_of(roce, PortState::Active, &["fe80::7"]).contains("link-local"));
        assert!(remark_of(roce, PortState::Down, &["fe80::7"]).contains("`ip link set enp65s0f0np0 up`"));
        assert_eq!(remark_of(ib, PortState::Active, &["fe80::7"]), "");
        assert!(remark_of(ib, PortState::Init, &["fe80::7"]).contains("opensm"));
        assert!(remark_of(ib, PortState::Down, &["fe80::7"]).contains("cable"));
    }

    #[test]
    fn without_devices_only_the_reason_is_shown() {
        assert_eq!(tables(&samples::empty()), "");
        let reason = |kind| {
            let hints = vec!["load a driver".to_owned(), "make one".to_owned()];
            let problem_with_hints = Problem { kind, message: "there are no RDMA devices".to_owned(), hints };
            problem(&problem_with_hints, problem_with_hints.is_failure())
        };
        let text = "there are no RDMA devices\n  hint: load a driver\n  hint: make one\n";
        assert_eq!(reason(ProblemKind::NoDevices), text);
        assert_eq!(reason(ProblemKind::NoKernelSupport), format!("error: {text}"));
    }

    #[test]
    fn sizes_are_exact() {
        let sizes = [0, 100, 4096, 8 << 20, 1 << 30, i32::MAX.cast_unsigned()].map(size);
        assert_eq!(sizes, ["0 B", "100 B", "4 KiB", "8 MiB", "1 GiB", "2147483647 B"]);
    }

    fn inventory(devices: Vec<Device>) -> Inventory {
        Inventory { devices, ..samples::empty() }
    }
}
