//! The errors of connections that can't be established.

use std::io;
use std::net::SocketAddr;

use adverb_proto::types::RejectReason;

use super::Deadline;
use crate::backend::connection_manager::NO_HARDWARE;
use crate::error::Error;

/// The step of connecting that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Address,
    Route,
    Request,
    Acceptance,
    Question,
}

impl Stage {
    fn words(self) -> &'static str {
        match self {
            Stage::Address => "looking for the device that leads there",
            Stage::Route => "looking for a route",
            Stage::Request => "asking for a connection",
            Stage::Acceptance => "waiting for the peer to complete the connection",
            Stage::Question => "asking for its datagram queue pair",
        }
    }
}

/// The error of a peer that couldn't be reached.
pub(super) fn unreachable(peer: SocketAddr, stage: Stage, error: io::Error) -> Error {
    let hint = match (stage, error.raw_os_error()) {
        _ if peer.ip().is_loopback() && cfg!(not(feature = "soft")) => {
            "no RDMA device has the loopback address: use an address of the device, also for the same machine"
        }
        (_, Some(libc::EADDRINUSE)) => {
            "another connection comes from that local port, or a listener has it: port 0 takes a free one"
        }
        (_, Some(libc::ENODEV | libc::EADDRNOTAVAIL)) => {
            "no RDMA device of this machine leads there: `Device::gids` tells the addresses that devices have"
        }
        _ if error.kind() == io::ErrorKind::NotFound => NO_HARDWARE,
        (_, Some(libc::ENETUNREACH)) => "there is no route to that network",
        (Stage::Address, _) => "nobody answers for that address: is the host up, and the address right?",
        (Stage::Route, _) => "is the subnet manager up?",
        (Stage::Request | Stage::Question, _) => {
            "the host may have no RDMA device with that address, its program may be slow to accept, or the network \
             may not pass RoCE: UDP port 4791"
        }
        (Stage::Acceptance, _) => "the peer may have given up: its deadline may be too short",
    };
    Error::Unreachable { peer, stage: stage.words(), error, hint: hint.into() }
}

/// The error of a deadline that passed.
pub(super) fn too_late(peer: SocketAddr, stage: Stage, deadline: &Deadline) -> Error {
    let words = format!("no answer within {:?}", deadline.timeout);
    unreachable(peer, stage, io::Error::new(io::ErrorKind::TimedOut, words))
}

/// The error of a peer that ended the connection before it was one.
pub(super) fn cut_off(peer: SocketAddr, stage: Stage) -> Error {
    unreachable(peer, stage, io::Error::from_raw_os_error(libc::ECONNRESET))
}

/// The error of a rejection.
pub(super) fn rejected(peer: SocketAddr, reason: RejectReason, private_data: Vec<u8>) -> Error {
    let hint = match reason {
        RejectReason::InvalidServiceId => format!("nobody listens on port {} there", peer.port()).into(),
        RejectReason::ConsumerReject => {
            "the program there said no (its private data may say why), went away, or listens at another address of \
             that host"
                .into()
        }
        RejectReason::StaleConnection => {
            "the peer remembers an earlier connection of a queue pair of this number: try again with another"
                .into()
        }
        RejectReason::NoQueuePair | RejectReason::NoResources => "the peer is short of resources".into(),
        RejectReason::InvalidPrimaryGid => "the peer's device doesn't have that address any more".into(),
        RejectReason::Timeout => "the peer waited too long for an answer".into(),
        _ => "".into(),
    };
    // Only programs have something to say; the rest is zeros.
    let private_data = if reason == RejectReason::ConsumerReject { private_data } else { Vec::new() };
    Error::CmRejected { peer, reason, private_data, hint }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn peer() -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 7], 7471))
    }

    #[test]
    fn a_port_without_listener_is_said_in_words() {
        let error = rejected(peer(), RejectReason::InvalidServiceId, Vec::new());
        assert_eq!(
            error.to_string(),
            "192.0.2.7:7471 rejected the connection: invalid service ID (8)\n  hint: nobody listens on port 7471 there"
        );
    }

    #[test]
    fn a_deadline_that_passed_says_how_long_it_was_and_what_to_look_at() {
        let error = too_late(peer(), Stage::Request, &Deadline::new(Duration::from_secs(2)));
        let text = error.to_string();
        assert!(
            text.starts_with("192.0.2.7:7471 couldn't be reached while asking for a connection: no answer")
        );
        assert!(text.contains("within 2s") && text.contains("UDP port 4791"), "{text}");
        assert!(matches!(error, Error::Unreachable { error, .. } if error.kind() == io::ErrorKind::TimedOut));
    }
}
