//! How two queue pairs come to know each other: over TCP, at the same address and port.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::Options;
use super::link::Link;
use super::protocol::handshake::{Flaw, Greeting, VERSION};
use crate::error::{Error, Result};
use crate::verbs::{Device, Endpoint};

/// Makes what is to be connected, on the device that has the address by which the peer is reached.
pub(super) fn link(local: SocketAddr, peer: SocketAddr, options: &Options) -> Result<Link> {
    let local = local.ip().to_canonical();
    Link::new(&device(local, options)?, Some(local), peer, options)
}

/// The device of connections by this address.
fn device(local: IpAddr, options: &Options) -> Result<Device> {
    if let Some(device) = &options.device {
        return Ok(device.clone());
    }
    match Device::by_address(local) {
        // Within the machine any address does: another program may have this one.
        Err(_) if local.is_loopback() => Device::open("soft"),
        found => found,
    }
}

/// The options of a listener at this address. If it has only that one, its device is opened now, once, and kept.
pub(super) fn listening(address: SocketAddr, options: &Options) -> Result<Options> {
    let mut options = options.clone();
    let address = address.ip().to_canonical();
    if !address.is_unspecified() {
        options.device = Some(device(address, &options)?);
    }
    Ok(options)
}

/// The endpoint in a listener's answer.
pub(super) fn accepted(peer: SocketAddr, greeting: Result<Greeting, Flaw>) -> Result<Endpoint> {
    match greeting {
        Ok(Greeting::Endpoint(endpoint)) => Ok(endpoint),
        Ok(Greeting::Refusal(reason)) => Err(Error::Refused { peer, reason }),
        Err(flaw) => Err(Error::Refused { peer, reason: explain(&flaw) }),
    }
}

/// Connects to who greets a listener, or says why not.
pub(super) fn answer(
    local: SocketAddr,
    peer: SocketAddr,
    options: &Options,
    greeting: Result<Greeting, Flaw>,
) -> Result<Link> {
    let endpoint = accepted(peer, greeting)?;
    let link = link(local, peer, options)?;
    link.connect(&endpoint, false)?;
    Ok(link)
}

/// What a listener tells who greeted it.
pub(super) fn answer_greeting(answered: &Result<Link>) -> Greeting {
    match answered {
        Ok(link) => Greeting::Endpoint(link.endpoint()),
        Err(Error::Refused { reason, .. }) => Greeting::Refusal(reason.clone()),
        // What is the matter on this machine isn't for everybody.
        Err(_) => {
            Greeting::Refusal("the connection could not be made; the listener's log says why".to_owned())
        }
    }
}

fn explain(flaw: &Flaw) -> String {
    match flaw {
        Flaw::NotAdverb => "it doesn't speak Adverb's protocol".to_owned(),
        Flaw::Version(version) => {
            format!("it speaks version {version} of the protocol, and this side {VERSION}")
        }
        Flaw::Malformed => "what it says makes no sense".to_owned(),
    }
}

pub(super) fn unreachable(peer: SocketAddr, error: io::Error) -> Error {
    let error = match error.kind() {
        // What a socket's timeout gives.
        io::ErrorKind::WouldBlock => io::Error::from(io::ErrorKind::TimedOut),
        _ => error,
    };
    Error::Unreachable {
        peer,
        stage: "telling each other of the queue pairs over TCP",
        error,
        hint: "is there a listener at this address and port?".into(),
    }
}

pub(super) fn no_address(error: io::Error) -> Error {
    verb("finding the peer's address", error, "a host and a port are needed: 192.0.2.7:7471")
}

pub(super) fn not_bound(error: io::Error) -> Error {
    verb("listening", error, "is the address one of this machine's, and the port free?")
}

pub(super) fn not_accepted(error: io::Error) -> Error {
    verb("accepting a connection", error, "")
}

pub(super) fn verb(action: &str, error: io::Error, hint: &'static str) -> Error {
    Error::Verb { action: action.to_owned(), error, hint: hint.into() }
}
