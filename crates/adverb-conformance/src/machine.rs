//! Descriptions of the tested device and of its machine.

use std::fs;
use std::path::Path;

use adverb::verbs::{Device, DeviceAttributes};
use serde::{Serialize, Serializer};

/// A description of the tested device. It contains no addresses, so a report can be published.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The device's name.
    pub name: String,
    /// The device's kernel driver, or `None` for a software device.
    pub driver: Option<String>,
    /// The device's attributes. The GUID is not serialized.
    #[serde(serialize_with = "without_guid")]
    pub attributes: DeviceAttributes,
    /// The device's ports.
    pub ports: Vec<PortReport>,
}

/// A description of a port of the tested device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct PortReport {
    /// The port's number, from 1.
    pub number: u8,
    /// The port's state.
    pub state: String,
    /// The port's link layer.
    pub link_layer: String,
    /// The port's active MTU in bytes.
    pub active_mtu: u16,
    /// The port's maximum MTU in bytes.
    pub max_mtu: u16,
    /// The maximum size of a message in bytes.
    pub max_message_size: u32,
    /// The size of the port's partition key table.
    #[serde(rename = "pkeys")]
    pub pkey_table_len: u16,
    /// The kinds of addresses in the port's GID table, such as `RoCE v2, IPv4`.
    pub gids: Vec<String>,
}

/// A description of the machine with the tested device, and of the machine's RDMA software.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct SystemReport {
    /// The kernel's name and version.
    pub kernel: String,
    /// The name of the Linux distribution.
    pub distribution: String,
    /// The CPU architecture.
    pub architecture: String,
    /// The file names of the loaded libraries of rdma-core, which contain their versions.
    pub libraries: Vec<String>,
}

impl DeviceReport {
    pub(crate) fn new(device: &Device) -> adverb::verbs::Result<DeviceReport> {
        let gids = device.gids()?;
        let kinds = |port: u8| {
            let of_port = gids.iter().filter(|entry| entry.port == port);
            let mut kinds: Vec<String> = of_port
                .map(|entry| {
                    let ip = entry.gid.udp_addr().ip();
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
            pkey_table_len: port.pkey_table_len,
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
    /// Describes this machine. Libraries are listed once they are loaded.
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

/// Returns the kernel driver of a device.
fn driver(device: &str) -> Option<String> {
    let driver = Path::new("/sys/class/infiniband").join(device).join("device/driver");
    Some(driver.canonicalize().ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Returns the name of the distribution in /etc/os-release.
fn distribution(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// Returns the libraries of rdma-core among the files in /proc/self/maps. (rdma-core loads all its drivers, so they are
/// left out.)
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
    fn the_distribution_is_its_pretty_name() {
        let text = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(distribution(text).as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
        assert_eq!(distribution(""), None);
    }

    #[test]
    fn reports_contain_nothing_that_identifies_a_device() {
        #[derive(Serialize)]
        struct Part(#[serde(serialize_with = "without_guid")] DeviceAttributes);
        let value = serde_json::to_value(Part(DeviceAttributes::default())).unwrap();
        assert_eq!(value.get("guid"), None);
        assert_eq!(value["max_queue_depth"], 0);
    }
}
