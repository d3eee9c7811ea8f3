//! Establishing connections: state machines that threads, tasks and the redialer drive alike.
//!
//! A [`Dial`] is a connector's attempt to reach one address. A [`Listening`] accepts connections. Both run
//! [handshakes](handshake::Handshake), over TCP or the connection manager. None of them blocks: each has one descriptor,
//! and a time after which it must be polled.

mod devices;
mod dial;
mod gid;
mod greeting_stream;
mod handshake;
mod listening;
mod log;
mod sources;

pub(super) use dial::Dial;
#[cfg(fuzzing)]
pub(super) use gid::belongs_to;
pub(super) use listening::{AcceptFd, Accepted, Listening, ServeResult};

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use adverb_verbs::{Device, Error, PathMtu, Result};

use crate::error::verb_error;
use crate::options::{Bootstrap, Options};
use crate::protocol::handshake::{Flaw, VERSION};

/// A channel over which a connector reaches a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DialChannel {
    Tcp,
    /// From this local address, if it is known.
    ConnectionManager(Option<IpAddr>),
}

/// Returns the channels to a peer, the preferred one first, and the options for them: with the device of the route if
/// there is one.
fn dial_channels(peer: SocketAddr, options: &Options) -> (Options, Vec<DialChannel>) {
    let mut options = options.clone();
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
        // A connection manager negotiates the MTU itself.
        Bootstrap::Auto if is_hardware && from.is_some() && options.mtu == PathMtu::Mtu4096 => {
            vec![DialChannel::ConnectionManager(from), DialChannel::Tcp]
        }
        Bootstrap::Auto => vec![DialChannel::Tcp],
    };
    (options, channels)
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

/// Fills a nonce or the ID of a session with random bytes.
fn fill_random(bytes: &mut [u8]) -> Result<()> {
    let failed = |error| verb_error("reading random bytes", io::Error::other(error), "");
    getrandom::fill(bytes).map_err(failed)
}

/// Returns the error of a handshake that this side refuses.
fn refused(peer: SocketAddr, flaw: &Flaw) -> Error {
    Error::HandshakeRejected { peer, reason: explain(flaw) }
}

#[cfg(test)]
mod tests {
    use adverb_net_proto::EndReason;
    use adverb_verbs::Gid;

    use super::*;
    use crate::protocol::handshake::MAX_REASON_LEN;

    #[test]
    fn reasons_fit_a_refusal() {
        let longest = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff);
        let long = [
            Flaw::Version(u16::MAX),
            Flaw::ConnectorHasNoKey,
            Flaw::ListenerHasNoKey,
            Flaw::AddressNotServed(longest.into()),
            Flaw::ForeignGid(Gid::new(longest.octets())),
        ];
        for reason in long.iter().map(explain).chain([EndReason::SessionUnknown.to_string()]) {
            assert!(reason.len() <= MAX_REASON_LEN, "{} bytes: {reason}", reason.len());
        }
    }
}
