//! Ports and their GID tables.

use core::fmt;

use super::{Gid, PathMtu};

/// The attributes of a device's port.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Port {
    /// The port's number, counted from 1.
    pub number: u8,
    /// The state of the port's link.
    pub state: PortState,
    /// The link layer.
    pub link_layer: LinkLayer,
    /// The maximum MTU that the port supports.
    pub max_mtu: PathMtu,
    /// The MTU in use.
    pub active_mtu: PathMtu,
    /// The port's local identifier (LID), on InfiniBand.
    pub lid: u16,
    /// The maximum length of a message, in bytes.
    pub max_message_size: u32,
    /// The number of entries of the GID table, including unused ones.
    pub gid_table_len: u32,
    /// The number of entries of the partition-key table.
    pub pkey_table_len: u16,
    /// Whether every packet needs a global route header (GRH), even within one InfiniBand subnet.
    pub needs_grh: bool,
}

impl Port {
    /// Creates the attributes of a port with an MTU of 256 bytes and empty tables. The caller sets the other fields.
    pub const fn new(number: u8, state: PortState, link_layer: LinkLayer) -> Port {
        Port {
            number,
            state,
            link_layer,
            max_mtu: PathMtu::Mtu256,
            active_mtu: PathMtu::Mtu256,
            lid: 0,
            max_message_size: 0,
            gid_table_len: 0,
            pkey_table_len: 0,
            needs_grh: false,
        }
    }
}

/// The state of a port's link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PortState {
    /// The port has no link.
    Down,
    /// The link is up, but not configured.
    Init,
    /// The link is configured, but not active.
    Armed,
    /// The port carries data.
    Active,
    /// The port was active, and its link is recovering from errors.
    ActiveDefer,
    /// The device reports a state that Adverb doesn't know.
    Unknown,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PortState::Down => "down",
            PortState::Init => "init",
            PortState::Armed => "armed",
            PortState::Active => "active",
            PortState::ActiveDefer => "active, deferred",
            PortState::Unknown => "unknown",
        })
    }
}

/// The link layer of a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet, which carries RoCE.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

/// An entry of a port's GID table: an address of the port.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GidEntry {
    /// The port's number.
    pub port: u8,
    /// The entry's index in the table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The packet format that the entry selects.
    pub gid_type: GidType,
    /// The network interface that has the address, if the port uses RoCE.
    pub netdev: Option<String>,
}

impl GidEntry {
    /// Creates an entry without a network interface.
    pub const fn new(port: u8, index: u32, gid: Gid, gid_type: GidType) -> GidEntry {
        GidEntry { port, index, gid, gid_type, netdev: None }
    }
}

/// The packet format that a GID table entry selects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames carry the packets directly, and routers don't forward them.
    RoceV1,
    /// RoCE version 2: UDP datagrams carry the packets.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GidType::InfiniBand => "InfiniBand",
            GidType::RoceV1 => "RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        })
    }
}
