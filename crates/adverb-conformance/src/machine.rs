//! What tests ran on: the device, and the machine that it is in.

use std::fs;
use std::path::Path;

use adverb::verbs::{Device, DeviceAttributes};
use serde::{Serialize, Serializer};

/// The device that tests ran on. It has no addresses in it: a report may be shown to anybody.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// The kernel's driver for it; `None` if it is made of software.
    pub driver: Option<String>,
    /// What it says of itself, but for its identifier.
    #[serde(serialize_with = "without_guid")]
    pub attributes: DeviceAttributes,
    /// Its ports.
    pub ports: Vec<PortReport>,
}

/// A port of the device that tests ran on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct PortReport {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries data.
    pub state: String,
    /// What is under it.
    pub link_layer: String,
    /// The MTU that it has.
    pub active_mtu: u16,
    /// The largest MTU that it could have.
    pub max_mtu: u16,
    /// How many bytes a message may have.
    pub max_message_size: u32,
    /// How many partition keys fit its table.
    pub pkeys: u16,
    /// The kinds of addresses in its table: `RoCE v2, IPv4`.
    pub gids: Vec<String>,
}

/// The machine that the device is in, and the software that drives it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SystemReport {
    /// The kernel and its version.
    pub kernel: String,
    /// The distribution.
    pub distribution: String,
    /// The architecture of the processor.
    pub architecture: String,
    /// The libraries of rdma-core that are loaded: the files, which have versions in their names.
    pub libraries: Vec<String>,
}

impl DeviceReport {
    pub(crate) fn new(device: &Device) -> adverb::Result<DeviceReport> {
        let gids = device.gids()?;
        let kinds = |port: u8| {
            let of_port = gids.iter().filter(|entry| entry.port == port);
            let mut kinds: Vec<String> = of_port
                .map(|entry| {
                    let ip = entry.gid.udp_address().ip();
                    let family = match (ip.is_ipv4(), entry.gid.is_link_local()) {
                        (true, _) => "IPv4",
                        (false, true) => "link-local",
                        (false, false) => "IPv6",
                    };
                    format!("{}, {family}", entry.gid_type)
                })
                .collect();
            kinds.sort();
            kinds.dedup();
            kinds
        };
        let ports = device.ports()?.into_iter().map(|port| PortReport {
            number: port.number,
            state: port.state.to_string(),
            link_layer: port.link_layer.to_string(),
            active_mtu: port.active_mtu.bytes(),
            max_mtu: port.max_mtu.bytes(),
            max_message_size: port.max_message_size,
            pkeys: port.pkey_table_len,
            gids: kinds(port.number),
        });
        Ok(DeviceReport {
            name: device.name().to_owned(),
            driver: driver(device.name()),
            attributes: device.attributes().clone(),
            ports: ports.collect(),
        })
    }
}

impl SystemReport {
    /// This machine, as far as it tells. Libraries are seen once they are loaded.
    pub(crate) fn here() -> SystemReport {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let line = |path: &str| read(path).trim().to_owned();
        SystemReport {
            kernel: [line("/proc/sys/kernel/ostype"), line("/proc/sys/kernel/osrelease")].join(" "),
            distribution: distribution(&read("/etc/os-release")).unwrap_or_default(),
            architecture: std::env::consts::ARCH.to_owned(),
            libraries: libraries(&read("/proc/self/maps")),
        }
    }
}

/// The kernel's driver for a device.
fn driver(device: &str) -> Option<String> {
    let driver = Path::new("/sys/class/infiniband").join(device).join("device/driver");
    Some(driver.canonicalize().ok()?.file_name()?.to_string_lossy().into_owned())
}

/// The name of the distribution in /etc/os-release.
fn distribution(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// The libraries of rdma-core among the files in /proc/self/maps. (It also loads all drivers that it has, whatever devices
/// there are: they say nothing.)
fn libraries(maps: &str) -> Vec<String> {
    let names = maps.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    let is_rdma_core =
        |name: &&str| ["libibverbs.", "librdmacm."].iter().any(|start| name.starts_with(start));
    let mut names: Vec<String> = names.filter(is_rdma_core).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

fn without_guid<S: Serializer>(attributes: &DeviceAttributes, serializer: S) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(attributes).map_err(serde::ser::Error::custom)?;
    if let Some(fields) = value.as_object_mut() {
        fields.remove("guid");
    }
    value.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_named_once_with_their_versions() {
        let maps = "7f00-7f01 r-xp 0 08:01 1  /usr/lib/libibverbs.so.1.14.44.0\n\
                    7f01-7f02 rw-p 0 08:01 1  /usr/lib/libibverbs.so.1.14.44.0\n\
                    7f02-7f03 r-xp 0 08:01 2  /usr/lib/libibverbs/librxe-rdmav34.so\n\
                    7f03-7f04 r-xp 0 08:01 3  /usr/lib/libc.so.6\n\
                    7f04-7f05 rw-p 0 00:00 0\n";
        assert_eq!(libraries(maps), ["libibverbs.so.1.14.44.0"]);
    }

    #[test]
    fn distributions_have_names() {
        let text = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(distribution(text).as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
        assert_eq!(distribution(""), None);
    }

    #[test]
    fn reports_tell_nothing_that_identifies_a_device() {
        #[derive(Serialize)]
        struct Part(#[serde(serialize_with = "without_guid")] DeviceAttributes);
        let value = serde_json::to_value(Part(DeviceAttributes::default())).unwrap();
        assert_eq!(value.get("guid"), None);
        assert_eq!(value["max_queue_depth"], 0);
    }
}
