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

use adverb_verbs::{self as verbs, Device, PathMtu, internal};

use crate::error::ConnectError;
use crate::options::{Bootstrap, Options};

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
fn device(local: IpAddr, options: &Options) -> Result<Device, verbs::Error> {
    if let Some(device) = &options.device {
        return Ok(device.clone());
    }
    match Device::open_by_addr(local) {
        // All loopback addresses reach the same machine, and another program may use this one.
        Err(_) if local.is_loopback() => Device::open("soft"),
        // The program has opened `SoftDevice::loopback`, which no other device reaches.
        Ok(device) if internal::is_isolated(&device) => Device::open("soft"),
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

/// Fills a nonce or the ID of a session with random bytes.
fn fill_random(bytes: &mut [u8]) -> Result<(), ConnectError> {
    let failed = |error| ConnectError::system("reading random bytes", io::Error::other(error));
    getrandom::fill(bytes).map_err(failed)
}
