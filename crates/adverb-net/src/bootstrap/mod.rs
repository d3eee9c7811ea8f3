//! Establishing connections: state machines that threads, tasks and the redialer drive alike.
//!
//! A [`Dial`] is a connector's attempt to reach one address. A [`Listening`] accepts connections. Both run
//! [`Handshake`]s, over TCP or the connection manager. None of them blocks: each has one descriptor, and a time after
//! which it must be polled.

mod devices;
mod dial;
mod gid;
mod greeting_stream;
mod handshake;
mod listening;
mod log;

pub(super) use dial::Dial;
#[cfg(fuzzing)]
pub(super) use gid::belongs_to;
use handshake::Handshake;
pub(super) use listening::{AcceptFd, Accepted, Listening, ServeResult};

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use adverb_verbs::{Device, Error, Result};

use super::protocol::handshake::{Flaw, VERSION};
use super::{Bootstrap, Options, session};

/// A channel over which a connector reaches a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DialChannel {
    Tcp,
    /// From this local address, if it is known.
    ConnectionManager(Option<IpAddr>),
}

/// Returns the channels to a peer, the preferred one first, and the options for them: with a session if the connection
/// reconnects, and with the device of the route if there is one.
fn dial_channels(peer: SocketAddr, options: &Options) -> Result<(Options, Vec<DialChannel>)> {
    let mut options = options.clone();
    if options.reconnect.is_some() && options.session.is_none() {
        options.session = Some(session::begin()?);
    }
    let local = route(peer.ip());
    if options.bootstrap == Bootstrap::Auto && options.device.is_none() {
        // The device is opened once for all channels. A channel that needs a device reports that there is none.
        options.device = local.and_then(|local| device(local, &options).ok());
    }
    let from = options.device.as_ref().and_then(|device| {
        let is_routed = |local: &IpAddr| device.has_addr(*local);
        local.filter(is_routed).or_else(|| address_like(device, peer.ip()))
    });
    let is_hardware = options.device.as_ref().is_some_and(|device| !device.is_software());
    let channels = match options.bootstrap {
        Bootstrap::Tcp => vec![DialChannel::Tcp],
        Bootstrap::ConnectionManager => vec![DialChannel::ConnectionManager(from)],
        Bootstrap::Auto if is_hardware && from.is_some() => {
            vec![DialChannel::ConnectionManager(from), DialChannel::Tcp]
        }
        Bootstrap::Auto => vec![DialChannel::Tcp],
    };
    Ok((options, channels))
}

/// Returns the device for connections from this local address.
fn device(local: IpAddr, options: &Options) -> Result<Device> {
    if let Some(device) = &options.device {
        return Ok(device.clone());
    }
    match Device::open_by_addr(local) {
        // All loopback addresses reach the same machine, and another program may use this one.
        Err(_) if local.is_loopback() => Device::open("soft"),
        found => found,
    }
}

/// Returns the local address of the route to a peer. Sends nothing.
fn route(peer: IpAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((peer, 1)).ok()?;
    socket.local_addr().ok().map(|address| address.ip().to_canonical())
}

/// Returns an address of a device with the same family and scope as a peer's address.
fn address_like(device: &Device, peer: IpAddr) -> Option<IpAddr> {
    let is_like = |ip: &IpAddr| ip.is_ipv4() == peer.is_ipv4() && ip.is_loopback() == peer.is_loopback();
    device.gids().ok()?.iter().map(|entry| entry.gid.ip()).find(is_like)
}

/// Describes a flaw for the log of one side and the error of the other.
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

/// Returns the error of a handshake that this side refuses.
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
    verb_error("resolving the peer's address", error, "use a host and a port, such as 192.0.2.7:7471")
}

pub(super) fn not_bound(error: io::Error) -> Error {
    verb_error("listening", error, "use an address of this machine and a free port, such as 127.0.0.1:7471")
}

pub(super) fn not_watched(error: io::Error) -> Error {
    verb_error("waiting for a peer", error, "raise the limit of open files (`ulimit -n`)")
}

pub(super) fn verb_error(action: &str, error: io::Error, hint: &'static str) -> Error {
    Error::Verb { action: action.to_owned(), error, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::handshake::MAX_REASON_LEN;
    use adverb_verbs::Gid;

    #[test]
    fn reasons_with_addresses_fit_a_refusal() {
        let longest = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff);
        for flaw in [Flaw::AddressNotServed(longest.into()), Flaw::ForeignGid(Gid::new(longest.octets()))] {
            let reason = explain(&flaw);
            assert!(reason.len() <= MAX_REASON_LEN, "{} bytes: {reason}", reason.len());
        }
    }
}
