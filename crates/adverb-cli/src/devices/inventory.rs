//! The data that is printed, in the structure of the JSON output.

use std::net::IpAddr;

use serde::Serialize;

/// The RDMA devices of this machine.
#[derive(Debug, Serialize)]
pub(super) struct Inventory {
    /// The devices, including unusable ones.
    pub devices: Vec<Device>,
    /// The software devices that can be opened at addresses of this machine.
    pub software: Vec<Software>,
    /// The reason why the devices could not be listed, or why there are only software devices.
    pub problem: Option<Problem>,
}

/// A software device that can be opened.
#[derive(Debug, Serialize)]
pub(super) struct Software {
    /// The device's name.
    pub name: String,
    /// The device's address.
    pub address: IpAddr,
}

impl Inventory {
    /// Whether the devices could not be listed.
    pub(super) fn is_failure(&self) -> bool {
        self.devices.is_empty() && self.problem.as_ref().is_some_and(Problem::is_failure)
    }
}

/// The reason why devices could not be listed, or why there are none.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    /// The kind of problem, for programs.
    pub kind: ProblemKind,
    /// The message, for people.
    pub message: String,
    /// Suggested actions.
    pub hints: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProblemKind {
    /// There are no devices.
    NoDevices,
    /// rdma-core is not installed.
    NoRdmaCore,
    /// The kernel has no RDMA support, or doesn't expose it to programs.
    NoKernelSupport,
    /// Another error.
    Failed,
}

impl Problem {
    /// Whether the devices could not be listed.
    pub(super) fn is_failure(&self) -> bool {
        self.kind != ProblemKind::NoDevices
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Device {
    /// The device's name.
    pub name: String,
    /// The device's GUID, in the format of `ibv_devinfo`: `0000:00ff:fe00:7701`.
    pub guid: Option<String>,
    /// The reason why the device can't be used, if any.
    pub unusable: Option<Unusable>,
    /// The version of the device's firmware, if it has any.
    pub firmware: Option<String>,
    /// The vendor ID.
    pub vendor_id: Option<u32>,
    /// The vendor's part ID.
    pub vendor_part_id: Option<u32>,
    /// The optional operations that the device supports.
    pub operations: Option<Operations>,
    /// The device's ports.
    pub ports: Vec<Port>,
}

/// The optional operations of a device.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Operations {
    /// Whether the device supports compare-and-swap and fetch-and-add.
    pub atomics: bool,
    /// Whether the device supports ATOMIC WRITE.
    pub atomic_write: bool,
    /// Whether the device supports FLUSH to global visibility.
    pub flush_global: bool,
    /// Whether the device supports FLUSH to persistence.
    pub flush_persistent: bool,
}

/// The reason why a device can't be used.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Unusable {
    /// The reason.
    pub reason: String,
    /// Suggested actions.
    pub hint: Option<String>,
}

/// A port of a device.
#[derive(Debug, Serialize)]
pub(super) struct Port {
    /// The port's number, from 1.
    pub number: u8,
    /// The port's state.
    pub state: PortState,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The port's active MTU in bytes.
    pub active_mtu: u16,
    /// The port's maximum MTU in bytes.
    pub max_mtu: u16,
    /// The port's LID (InfiniBand only).
    pub lid: Option<u16>,
    /// The maximum size of a message in bytes.
    pub max_message_size: u32,
    /// The used entries of the port's GID table.
    pub gids: Vec<Gid>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PortState {
    Down,
    Init,
    Armed,
    Active,
    ActiveDefer,
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) enum LinkLayer {
    #[serde(rename = "infiniband")]
    InfiniBand,
    #[serde(rename = "ethernet")]
    Ethernet,
    #[serde(rename = "unknown")]
    Unknown,
}

/// An entry of a GID table.
#[derive(Debug, Serialize)]
pub(super) struct Gid {
    /// The index in the table.
    pub index: u32,
    /// The GID, as an IPv6 address.
    pub gid: String,
    /// The IP address of the GID (RoCE only).
    pub ip: Option<IpAddr>,
    /// The UDP port of a software device that doesn't use RoCE's 4791. Only Adverb's devices can reach it.
    pub udp_port: Option<u16>,
    /// The GID's protocol.
    #[serde(rename = "type")]
    pub gid_type: GidType,
    /// The network interface of the GID (RoCE only).
    pub netdev: Option<String>,
    /// Whether the address is link-local.
    pub link_local: bool,
    /// Whether Adverb uses this GID by default.
    pub chosen: bool,
    /// The reason why Adverb prefers another GID.
    pub passed_over: Option<PassedOver>,
}

/// The protocol of a GID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) enum GidType {
    #[serde(rename = "infiniband")]
    InfiniBand,
    #[serde(rename = "roce_v1")]
    RoceV1,
    #[serde(rename = "roce_v2")]
    RoceV2,
    #[serde(rename = "unknown")]
    Unknown,
}

/// The reason why Adverb prefers another GID of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) enum PassedOver {
    /// The address is link-local.
    #[serde(rename = "link_local")]
    LinkLocal,
    /// The GID is for RoCE v1, which isn't routed.
    #[serde(rename = "roce_v1")]
    RoceV1,
    /// The address is IPv6, and the port has IPv4.
    #[serde(rename = "ipv6")]
    Ipv6,
    /// The chosen GID is equivalent, and has a lower index.
    #[serde(rename = "later_index")]
    LaterIndex,
}

impl Port {
    /// Marks the GID with this index as chosen, and the others with the reasons why they aren't.
    pub(super) fn choose(&mut self, index: u32) {
        let Some(at) = self.gids.iter().position(|gid| gid.index == index) else {
            return;
        };
        let reasons: Vec<PassedOver> = self.gids.iter().map(|gid| gid.compared_to(&self.gids[at])).collect();
        for (gid, reason) in self.gids.iter_mut().zip(reasons) {
            gid.chosen = gid.index == index;
            gid.passed_over = (!gid.chosen).then_some(reason);
        }
    }

    /// Returns the GID that Adverb uses by default.
    pub(super) fn chosen(&self) -> Option<&Gid> {
        self.gids.iter().find(|gid| gid.chosen)
    }
}

impl Gid {
    /// Returns the reason why the chosen GID is preferred over this one.
    fn compared_to(&self, chosen: &Gid) -> PassedOver {
        // The table shows the type of an entry anyway, so link-local is the more useful reason.
        if self.link_local && !chosen.link_local {
            PassedOver::LinkLocal
        } else if self.gid_type == GidType::RoceV1 && chosen.gid_type != GidType::RoceV1 {
            PassedOver::RoceV1
        } else if self.is_ipv6() && !chosen.is_ipv6() {
            PassedOver::Ipv6
        } else {
            PassedOver::LaterIndex
        }
    }

    fn is_ipv6(&self) -> bool {
        self.ip.is_some_and(|ip| ip.is_ipv6())
    }
}

/// Sample data for tests.
#[cfg(test)]
pub(super) mod samples {
    use std::net::IpAddr;

    use super::*;

    /// Returns the inventory of a RoCE NIC whose GID table has each address twice.
    pub(in super::super) fn roce() -> Inventory {
        let (ll, v6) = ("fe80::e42:a1ff:fe12:3456", "2001:db8::7");
        let gids = vec![
            gid(0, ll, ll, GidType::RoceV1),
            gid(1, ll, ll, GidType::RoceV2),
            gid(2, "::ffff:192.0.2.7", "192.0.2.7", GidType::RoceV1),
            gid(3, "::ffff:192.0.2.7", "192.0.2.7", GidType::RoceV2),
            gid(4, v6, v6, GidType::RoceV2),
            gid(5, "::ffff:192.0.2.8", "192.0.2.8", GidType::RoceV2),
        ];
        let mut port = port(LinkLayer::Ethernet, gids);
        port.choose(3);
        let devices = vec![device("mlx5_0", vec![port])];
        Inventory { devices, software: Vec::new(), problem: None }
    }

    /// Returns an inventory without devices.
    pub(in super::super) fn empty() -> Inventory {
        Inventory { devices: Vec::new(), software: Vec::new(), problem: None }
    }

    pub(in super::super) fn device(name: &str, ports: Vec<Port>) -> Device {
        Device {
            name: name.to_owned(),
            guid: Some("0c42:a103:0012:3456".to_owned()),
            unusable: None,
            firmware: Some("22.39.1002".to_owned()),
            vendor_id: Some(0x02c9),
            vendor_part_id: Some(4125),
            operations: Some(Operations {
                atomics: true,
                atomic_write: false,
                flush_global: false,
                flush_persistent: false,
            }),
            ports,
        }
    }

    pub(in super::super) fn port(link_layer: LinkLayer, gids: Vec<Gid>) -> Port {
        Port {
            number: 1,
            state: PortState::Active,
            link_layer,
            active_mtu: 1024,
            max_mtu: 4096,
            lid: (link_layer == LinkLayer::InfiniBand).then_some(7),
            max_message_size: 1 << 30,
            gids,
        }
    }

    pub(in super::super) fn gid(index: u32, gid: &str, ip: &str, gid_type: GidType) -> Gid {
        Gid {
            index,
            gid: gid.to_owned(),
            ip: ip.parse::<IpAddr>().ok(),
            udp_port: None,
            gid_type,
            netdev: (gid_type != GidType::InfiniBand).then(|| "enp65s0f0np0".to_owned()),
            link_local: gid.starts_with("fe80"),
            chosen: false,
            passed_over: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn passed_over_names_the_advantage_of_the_chosen_gid() {
        let inventory = samples::roce();
        let reasons: Vec<_> = inventory.devices[0].ports[0].gids.iter().map(|gid| gid.passed_over).collect();
        let expected = [
            Some(PassedOver::LinkLocal),
            Some(PassedOver::LinkLocal),
            Some(PassedOver::RoceV1),
            None,
            Some(PassedOver::Ipv6),
            Some(PassedOver::LaterIndex),
        ];
        assert_eq!(reasons, expected);
        assert_eq!(inventory.devices[0].ports[0].chosen().map(|gid| gid.index), Some(3));
    }

    #[test]
    fn missing_index_chooses_nothing() {
        let mut port = samples::port(LinkLayer::Ethernet, Vec::new());
        port.choose(3);
        assert!(port.chosen().is_none());
    }

    #[test]
    fn json_has_all_fields() {
        let mut inventory = samples::roce();
        inventory.devices[0].ports[0].gids.drain(1..3);
        inventory.devices[0].ports[0].gids.truncate(2);
        assert_eq!(
            serde_json::to_value(inventory).unwrap(),
            json!({
                "devices": [{
                    "name": "mlx5_0",
                    "guid": "0c42:a103:0012:3456",
                    "unusable": null,
                    "firmware": "22.39.1002",
                    "vendor_id": 0x02c9,
                    "vendor_part_id": 4125,
                    "operations": {
                        "atomics": true,
                        "atomic_write": false,
                        "flush_global": false,
                        "flush_persistent": false,
                    },
                    "ports": [{
                        "number": 1,
                        "state": "active",
                        "link_layer": "ethernet",
                        "active_mtu": 1024,
                        "max_mtu": 4096,
                        "lid": null,
                        "max_message_size": 1 << 30,
                        "gids": [
                            {
                                "index": 0,
                                "gid": "fe80::e42:a1ff:fe12:3456",
                                "ip": "fe80::e42:a1ff:fe12:3456",
                                "udp_port": null,
                                "type": "roce_v1",
                                "netdev": "enp65s0f0np0",
                                "link_local": true,
                                "chosen": false,
                                "passed_over": "link_local",
                            },
                            {
                                "index": 3,
                                "gid": "::ffff:192.0.2.7",
                                "ip": "192.0.2.7",
                                "udp_port": null,
                                "type": "roce_v2",
                                "netdev": "enp65s0f0np0",
                                "link_local": false,
                                "chosen": true,
                                "passed_over": null,
                            },
                        ],
                    }],
                }],
                "software": [],
                "problem": null,
            })
        );
    }

    #[test]
    fn json_without_devices_has_the_same_fields_and_the_problem() {
        let mut inventory = samples::empty();
        inventory.problem = Some(Problem {
            kind: ProblemKind::NoRdmaCore,
            message: "rdma-core isn't installed".to_owned(),
            hints: vec!["install it".to_owned()],
        });
        assert_eq!(
            serde_json::to_value(inventory).unwrap(),
            json!({
                "devices": [],
                "software": [],
                "problem": {
                    "kind": "no_rdma_core",
                    "message": "rdma-core isn't installed",
                    "hints": ["install it"],
                },
            })
        );
    }

    #[test]
    fn json_values_are_stable() {
        fn json_value(value: impl Serialize) -> serde_json::Value {
            serde_json::to_value(value).unwrap()
        }
        assert_eq!(json_value(ProblemKind::NoDevices), json!("no_devices"));
        assert_eq!(json_value(ProblemKind::NoKernelSupport), json!("no_kernel_support"));
        assert_eq!(json_value(ProblemKind::Failed), json!("failed"));
        assert_eq!(json_value(PortState::ActiveDefer), json!("active_defer"));
        assert_eq!(json_value(LinkLayer::InfiniBand), json!("infiniband"));
        assert_eq!(json_value(GidType::InfiniBand), json!("infiniband"));
        assert_eq!(json_value(PassedOver::Ipv6), json!("ipv6"));
        assert_eq!(json_value(PassedOver::LaterIndex), json!("later_index"));
        assert_eq!(json_value(PassedOver::RoceV1), json!("roce_v1"));
    }
}
