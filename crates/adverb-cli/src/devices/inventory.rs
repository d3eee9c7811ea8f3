//! What is printed: plain data, whose shape is that of the JSON.

use std::net::IpAddr;

use serde::Serialize;

/// The version of the JSON. Fields may be added without another one; what is there keeps its name and meaning.
pub(super) const VERSION: u32 = 1;

/// All that is known about this machine's RDMA devices.
#[derive(Debug, Serialize)]
pub(super) struct Inventory {
    /// Always [`VERSION`].
    pub version: u32,
    /// The devices, those that can't be used among them.
    pub devices: Vec<Device>,
    /// The software devices that could be opened at addresses of this machine.
    pub software: Vec<Software>,
    /// Why they couldn't be listed, or why there are none but software.
    pub problem: Option<Problem>,
}

/// A software device that could be opened.
#[derive(Debug, Serialize)]
pub(super) struct Software {
    /// Its name.
    pub name: String,
    /// The address that it would have.
    pub address: IpAddr,
}

impl Inventory {
    /// Whether the question couldn't be answered.
    pub(super) fn is_failure(&self) -> bool {
        self.devices.is_empty() && self.problem.as_ref().is_some_and(Problem::is_failure)
    }
}

/// Why devices couldn't be listed, or why there are none.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    /// For programs.
    pub kind: ProblemKind,
    /// For people.
    pub message: String,
    /// What to try.
    pub hints: Vec<String>,
}

/// What kept devices from being listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProblemKind {
    /// The devices were listed, and there are none.
    NoDevices,
    /// rdma-core isn't installed.
    NoRdmaCore,
    /// The kernel has no RDMA, or doesn't offer it to programs.
    NoKernelSupport,
    /// Something else.
    Failed,
}

impl Problem {
    /// Whether the question couldn't even be asked.
    pub(super) fn is_failure(&self) -> bool {
        self.kind != ProblemKind::NoDevices
    }
}

/// A device.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    /// Its name.
    pub name: String,
    /// Its globally unique identifier, as `ibv_devinfo` writes it: `0000:00ff:fe00:7701`.
    pub guid: Option<String>,
    /// Why it can't be used, if it can't.
    pub unusable: Option<Unusable>,
    /// The version of its firmware, if it has any.
    pub firmware: Option<String>,
    /// Its maker's number.
    pub vendor_id: Option<u32>,
    /// Its maker's number for the part.
    pub vendor_part_id: Option<u32>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// Why a device can't be used.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Unusable {
    /// Why.
    pub reason: String,
    /// What to try.
    pub hint: Option<String>,
}

/// A port of a device.
#[derive(Debug, Serialize)]
pub(super) struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries data.
    pub state: PortState,
    /// What is under it.
    pub link_layer: LinkLayer,
    /// The MTU that it has, in bytes.
    pub active_mtu: u16,
    /// The largest MTU that it could have, in bytes.
    pub max_mtu: u16,
    /// Its local identifier. Only InfiniBand has them.
    pub lid: Option<u16>,
    /// How many bytes a message may have.
    pub max_message_size: u32,
    /// The used entries of its GID table.
    pub gids: Vec<Gid>,
}

/// Whether a port carries data.
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

/// What is under a port.
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
    /// The IP address that it stands for, with RoCE.
    pub ip: Option<IpAddr>,
    /// The UDP port of a software device that has another than RoCE's 4791, so that only Adverb's devices reach it.
    pub udp_port: Option<u16>,
    /// What goes on the wire for it.
    #[serde(rename = "type")]
    pub gid_type: GidType,
    /// The network interface that it comes from, with RoCE.
    pub netdev: Option<String>,
    /// Whether it is only good within one link.
    pub link_local: bool,
    /// Whether Adverb chooses it if no address is named.
    pub chosen: bool,
    /// Why Adverb chooses another one before it.
    pub passed_over: Option<PassedOver>,
}

/// What goes on the wire for a GID.
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

/// Why another GID of the port is chosen before this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) enum PassedOver {
    /// It is only good within one link.
    #[serde(rename = "link_local")]
    LinkLocal,
    /// It is for RoCE v1, which isn't routed.
    #[serde(rename = "roce_v1")]
    RoceV1,
    /// It is IPv6, where there is IPv4.
    #[serde(rename = "ipv6")]
    Ipv6,
    /// It is as good as the other one, which comes first in the table.
    #[serde(rename = "later_index")]
    LaterIndex,
}

impl Port {
    /// Marks the GID with this index as the chosen one, and the others with why they aren't.
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

    /// The GID that Adverb chooses if no address is named.
    pub(super) fn chosen(&self) -> Option<&Gid> {
        self.gids.iter().find(|gid| gid.chosen)
    }
}

impl Gid {
    /// In what way this GID is worse than the one that was chosen.
    fn compared_to(&self, chosen: &Gid) -> PassedOver {
        // A RoCE v1 entry shows that it is one; that it is link-local too says more.
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

/// Hand-made data, for tests.
#[cfg(test)]
pub(super) mod samples {
    use std::net::IpAddr;

    use super::*;

    /// What a port of a RoCE card has: each address twice.
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
        Inventory { version: VERSION, devices, software: Vec::new(), problem: None }
    }

    /// Nothing.
    pub(in super::super) fn empty() -> Inventory {
        Inventory { version: VERSION, devices: Vec::new(), software: Vec::new(), problem: None }
    }

    pub(in super::super) fn device(name: &str, ports: Vec<Port>) -> Device {
        Device {
            name: name.to_owned(),
            guid: Some("0c42:a103:0012:3456".to_owned()),
            unusable: None,
            firmware: Some("22.39.1002".to_owned()),
            vendor_id: Some(0x02c9),
            vendor_part_id: Some(4125),
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
    fn passed_over_says_what_the_chosen_gid_has_and_another_has_not() {
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
    fn index_that_is_gone_chooses_nothing() {
        let mut port = samples::port(LinkLayer::Ethernet, Vec::new());
        port.choose(3);
        assert!(port.chosen().is_none());
    }

    #[test]
    fn json_keeps_its_shape() {
        let mut inventory = samples::roce();
        inventory.devices[0].ports[0].gids.drain(1..3);
        inventory.devices[0].ports[0].gids.truncate(2);
        assert_eq!(
            serde_json::to_value(inventory).unwrap(),
            json!({
                "version": 1,
                "devices": [{
                    "name": "mlx5_0",
                    "guid": "0c42:a103:0012:3456",
                    "unusable": null,
                    "firmware": "22.39.1002",
                    "vendor_id": 0x02c9,
                    "vendor_part_id": 4125,
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
    fn json_of_nothing_has_the_same_shape_and_the_problem() {
        let mut inventory = samples::empty();
        inventory.problem = Some(Problem {
            kind: ProblemKind::NoRdmaCore,
            message: "rdma-core isn't installed".to_owned(),
            hints: vec!["install it".to_owned()],
        });
        assert_eq!(
            serde_json::to_value(inventory).unwrap(),
            json!({
                "version": 1,
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
    fn words_of_json_are_stable() {
        fn words(value: impl Serialize) -> serde_json::Value {
            serde_json::to_value(value).unwrap()
        }
        assert_eq!(words(ProblemKind::NoDevices), json!("no_devices"));
        assert_eq!(words(ProblemKind::NoKernelSupport), json!("no_kernel_support"));
        assert_eq!(words(ProblemKind::Failed), json!("failed"));
        assert_eq!(words(PortState::ActiveDefer), json!("active_defer"));
        assert_eq!(words(LinkLayer::InfiniBand), json!("infiniband"));
        assert_eq!(words(GidType::InfiniBand), json!("infiniband"));
        assert_eq!(words(PassedOver::Ipv6), json!("ipv6"));
        assert_eq!(words(PassedOver::LaterIndex), json!("later_index"));
        assert_eq!(words(PassedOver::RoceV1), json!("roce_v1"));
    }
}
