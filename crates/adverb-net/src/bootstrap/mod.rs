//! How two sides find each other, by steps that threads and tasks take alike.
//!
//! A [`Handshake`] goes from a first word to a connection, over TCP or the connection manager, at either side; [`Arrivals`] are
//! a listener's. Both have one descriptor to wait for, and a time until when.

mod arrivals;
mod devices;
mod gid;
mod handshake;
mod log;

pub(super) use arrivals::{Accepted, Listening};
#[cfg(fuzzing)]
pub(super) use gid::belongs_to;
pub(super) use handshake::Handshake;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use adverb_verbs::{Device, Error, Result};

use super::protocol::handshake::{Flaw, VERSION};
use super::{Bootstrap, Options, session};

/// How to ask a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Tcp,
    /// From this address, if one is known to be right.
    ConnectionManager(Option<IpAddr>),
}

/// The ways to a peer, the best first, and the options with which to go them.
pub(super) fn ways(peer: SocketAddr, options: &Options) -> Result<(Options, Vec<Way>)> {
    let mut options = options.clone();
    if options.reconnect.is_some() && options.session.is_none() {
        options.session = Some(session::begin()?);
    }
    let local = route(peer.ip());
    if options.bootstrap == Bootstrap::Auto && options.device.is_none() {
        // Looked for once. If there is none, whoever needs it says so.
        options.device = local.and_then(|local| device(local, &options).ok());
    }
    let from = options.device.as_ref().and_then(|device| {
        let is_routed = |local: &IpAddr| device.has_addr(*local);
        local.filter(is_routed).or_else(|| address_like(device, peer.ip()))
    });
    let is_hardware = options.device.as_ref().is_some_and(|device| !device.is_software());
    let ways = match options.bootstrap {
        Bootstrap::Tcp => vec![Way::Tcp],
        Bootstrap::ConnectionManager => vec![Way::ConnectionManager(from)],
        Bootstrap::Auto if is_hardware && from.is_some() => vec![Way::ConnectionManager(from), Way::Tcp],
        Bootstrap::Auto => vec![Way::Tcp],
    };
    Ok((options, ways))
}

/// Whether another way may lead where this one failed: the peer answered nothing that another would hear too.
pub(super) fn is_worth_another(error: &Error) -> bool {
    match error {
        Error::HandshakeRejected { .. } => false,
        Error::Unreachable { error, .. } => error.kind() != io::ErrorKind::TimedOut,
        _ => true,
    }
}

/// The device of connections by this address.
fn device(local: IpAddr, options: &Options) -> Result<Device> {
    if let Some(device) = &options.device {
        return Ok(device.clone());
    }
    match Device::open_by_addr(local) {
        // Within the machine any address does: another program may have this one.
        Err(_) if local.is_loopback() => Device::open("soft"),
        found => found,
    }
}

/// The address of this machine from which packets to a peer go. Nothing is sent.
fn route(peer: IpAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((peer, 1)).ok()?;
    socket.local_addr().ok().map(|address| address.ip().to_canonical())
}

/// An address of a device's, of a peer's kind.
fn address_like(device: &Device, peer: IpAddr) -> Option<IpAddr> {
    let is_like = |ip: &IpAddr| ip.is_ipv4() == peer.is_ipv4() && ip.is_loopback() == peer.is_loopback();
    device.gids().ok()?.iter().map(|entry| entry.gid.ip()).find(is_like)
}

/// A flaw, in words for the log of one side and the error of the other: they are as true at either.
pub(super) fn explain(flaw: &Flaw) -> String {
    match flaw {
        Flaw::NotAdverb => "the other side does not speak Adverb's protocol".to_owned(),
        Flaw::Version(version) => {
            format!("protocol version {version} was received, but only version {VERSION} is supported")
        }
        Flaw::Malformed => "a malformed greeting was received".to_owned(),
        Flaw::ConnectorHasNoKey => {
            "the listener requires a key (`Options::key`), but the connector has none".to_owned()
        }
        Flaw::ListenerHasNoKey => {
            "the connector requires a key (`Options::key`), but the listener has none".to_owned()
        }
        Flaw::KeyWrong => "the two sides have different keys (`Options::key`)".to_owned(),
        Flaw::ForeignGid(gid) => {
            format!("GID {gid} is not an address of the TCP peer (`Options::allow_foreign_gid`)")
        }
        Flaw::AddressNotServed(addr) => format!(
            "the listener has no RDMA device at {addr}: bind to that address, or open `soft:ADDRESS` first"
        ),
    }
}

fn refused(peer: SocketAddr, flaw: &Flaw) -> Error {
    Error::HandshakeRejected { peer, reason: explain(flaw) }
}

pub(super) fn unreachable(peer: SocketAddr, error: io::Error) -> Error {
    Error::Unreachable {
        peer,
        stage: "connecting over TCP",
        error,
        hint: "check that a listener has this address and port".into(),
    }
}

pub(super) fn no_address(error: io::Error) -> Error {
    verb("resolving the peer's address", error, "use a host and a port, such as 192.0.2.7:7471")
}

pub(super) fn not_bound(error: io::Error) -> Error {
    verb("listening", error, "use an address of this machine and a free port, such as 127.0.0.1:7471")
}

pub(super) fn not_watched(error: io::Error) -> Error {
    verb("waiting for a peer", error, "raise the limit of open files (`ulimit -n`)")
}

pub(super) fn verb(action: &str, error: io::Error, hint: &'static str) -> Error {
    Error::Verb { action: action.to_owned(), error, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::handshake::LONGEST_REASON;
    use adverb_verbs::Gid;

    #[test]
    fn reasons_with_addresses_fit_a_refusal() {
        let longest = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff);
        for flaw in [Flaw::AddressNotServed(longest.into()), Flaw::ForeignGid(Gid::new(longest.octets()))] {
            let reason = explain(&flaw);
            assert!(reason.len() <= LONGEST_REASON, "{} bytes: {reason}", reason.len());
        }
    }
}
