//! Ports and their addresses.

use std::fmt;

use adverb_proto::types::{Gid, PathMtu};

/// A port of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries data.
    pub state: PortState,
    /// What is under it.
    pub link_layer: LinkLayer,
    /// The largest MTU that it could have.
    pub max_mtu: PathMtu,
    /// The MTU that it has.
    pub active_mtu: PathMtu,
    /// Its local identifier, on InfiniBand.
    pub lid: u16,
    /// How many bytes a message may have.
    pub max_message_size: u32,
    /// How many entries its GID table has, used or not.
    pub gid_table_len: u32,
    /// How many entries its partition-key table has.
    pub pkey_table_len: u16,
    /// Whether every packet needs a global route header, also within one InfiniBand subnet.
    pub needs_grh: bool,
}

/// Whether a port carries data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PortState {
    /// There is no link.
    Down,
    /// There is a link, which isn't configured yet.
    Init,
    /// It is configured, and not in use yet.
    Armed,
    /// It carries data.
    Active,
    /// Its link is in trouble.
    ActiveDefer,
    /// Something else.
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

/// What is under a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
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

/// An entry of a port's GID table: an address that the port has.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GidEntry {
    /// The port.
    pub port: u8,
    /// The index in its table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// What goes on the wire for it.
    pub gid_type: GidType,
    /// The network interface that it comes from, with RoCE.
    pub netdev: Option<String>,
}

/// What goes on the wire for a GID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: right above Ethernet, not routable.
    RoceV1,
    /// RoCE version 2: in UDP.
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
