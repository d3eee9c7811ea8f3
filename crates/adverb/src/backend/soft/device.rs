//! Devices that are open.

use std::io;
use std::net::IpAddr;

use adverb_proto::Srq;
use adverb_proto::vocabulary::Gid;
use adverb_soft::{Nic, NicOptions};
use adverb_wire::DEFAULT_PKEY;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::verbs::{DeviceAttributes, DeviceInfo, GidEntry, GidType, LinkLayer, Port, PortState};

/// A software NIC. The one there is so far talks to itself.
pub(crate) struct Device {
    pub(super) nic: Nic,
    pub(super) name: String,
    /// The numbers of shared receive queues, and the ids that events carry for them.
    pub(super) shared: Mutex<Vec<(Srq, u32)>>,
}

/// Whether a device of this name would be one of these.
pub(crate) fn is_soft(name: &str) -> bool {
    name == NAME
}

impl Device {
    pub(crate) fn list() -> Vec<DeviceInfo> {
        vec![DeviceInfo { name: NAME.to_owned(), guid: GUID, unsupported: None }]
    }

    pub(crate) fn open(name: &str) -> Result<Device> {
        let nic = Nic::open(NicOptions::loopback()).map_err(|error| Error::Verb {
            action: format!("opening the device {name}"),
            error,
            hint: "it needs a thread and a few descriptors: see `ulimit -n` and `ulimit -u`".into(),
        })?;
        Ok(Device { nic, name: name.to_owned(), shared: Mutex::default() })
    }

    /// Whether this process opened the device. A forked child didn't, and must leave its objects alone.
    pub(crate) fn is_ours(&self) -> bool {
        self.nic.is_ours()
    }

    pub(crate) fn attributes(&self) -> Result<DeviceAttributes> {
        Ok(DeviceAttributes {
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            guid: GUID,
            ports: 1,
            max_queue_pairs: 1 << 20,
            max_depth: MAX_DEPTH,
            max_segments: MAX_SEGMENTS,
            max_completion_queues: 1 << 16,
            max_completions: 1 << 20,
            max_memory_regions: 1 << 20,
            max_memory_region_len: 1 << 46,
            max_protection_domains: 1 << 16,
            max_dest_rd_atomic: 128,
            max_rd_atomic: 128,
            atomics: true,
            memory_windows: true,
            max_shared_receive_queues: 1 << 16,
            max_multicast_groups: 1 << 12,
            completion_vectors: 1,
            ..DeviceAttributes::default()
        })
    }

    pub(crate) fn port(&self, number: u8) -> Result<Port> {
        self.check_port(number)?;
        Ok(Port {
            number,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            max_mtu: self.nic.mtu(),
            active_mtu: self.nic.mtu(),
            lid: 0,
            max_message: 1 << 31,
            gid_table_len: self.nic.addresses().len() as u32,
            pkey_table_len: 1,
            needs_grh: true,
        })
    }

    pub(crate) fn pkeys(&self, port: u8) -> Result<Vec<u16>> {
        self.check_port(port)?;
        Ok(vec![DEFAULT_PKEY])
    }

    pub(crate) fn gid_table(&self) -> Result<Vec<GidEntry>> {
        let entry = |(index, address): (usize, &IpAddr)| GidEntry {
            port: 1,
            index: index as u32,
            gid: Gid::from(*address),
            gid_type: GidType::RoceV2,
            netdev: Some("lo".to_owned()),
        };
        Ok(self.nic.addresses().iter().enumerate().map(entry).collect())
    }

    /// There is one port.
    pub(super) fn check_port(&self, number: u8) -> Result<()> {
        if number == 1 {
            return Ok(());
        }
        Err(Error::Verb {
            action: format!("asking for port {number} of {}", self.name),
            error: io::ErrorKind::InvalidInput.into(),
            hint: "it has one, with the number 1".into(),
        })
    }
}

/// The name of the NIC that talks to itself.
const NAME: &str = "soft";

/// An identifier that nobody else has been given: one of those that everybody may use.
const GUID: u64 = 0x0200_00ff_fe7f_0001;

/// How many requests a queue may have outstanding. Queues take memory as they fill.
pub(super) const MAX_DEPTH: u32 = 1 << 15;

/// How many segments a request may have.
pub(super) const MAX_SEGMENTS: u32 = 32;
