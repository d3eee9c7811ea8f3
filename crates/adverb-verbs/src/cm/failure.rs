//! The errors of connections that can't be established.

use std::io;
use std::net::SocketAddr;

use adverb_proto::explain::{self, Call};
use adverb_proto::types::RejectReason;

use super::Deadline;
use crate::backend::connection_manager::NO_HARDWARE;
use crate::error::{Error, errno_hint};

/// The step of connecting that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Address,
    Route,
    Request,
    Acceptance,
    Service,
}

impl Stage {
    fn description(self) -> &'static str {
        match self {
            Stage::Address => "resolving the address",
            Stage::Route => "resolving the route",
            Stage::Request => "sending the connect request",
            Stage::Acceptance => "waiting for the peer to establish the connection",
            Stage::Service => "resolving the service ID",
        }
    }
}

/// Returns the error of a peer that couldn't be reached.
pub(super) fn unreachable(peer: SocketAddr, stage: Stage, error: io::Error) -> Error {
    let hint = match (stage, errno_hint(error.raw_os_error(), Call::CmConnect)) {
        _ if peer.ip().is_loopback() && cfg!(not(feature = "soft")) => {
            "use an address of an RDMA device, even for a peer on the same machine: none has the loopback address"
        }
        (_, hint) if !hint.is_empty() => hint,
        _ if error.kind() == io::ErrorKind::NotFound => NO_HARDWARE,
        (Stage::Address, _) => {
            "check that the host is up and the address is right: address resolution got no answer"
        }
        (Stage::Route, _) => "check that the subnet manager is up",
        (Stage::Request | Stage::Service, _) => {
            "check that an RDMA device of the host has that address, that its program accepts requests, and that the \
             network passes RoCEv2 (UDP port 4791)"
        }
        (Stage::Acceptance, _) => "use a longer timeout at the peer: it may have canceled the connection",
    };
    Error::Unreachable { peer, stage: stage.description(), error, hint: hint.into() }
}

/// Returns the error of a deadline that passed.
pub(super) fn timed_out(peer: SocketAddr, stage: Stage, deadline: &Deadline) -> Error {
    let description = format!("no answer within {:?}", deadline.timeout);
    unreachable(peer, stage, io::Error::new(io::ErrorKind::TimedOut, description))
}

/// Returns the error of a peer that ended the connection before it was established.
pub(super) fn connection_reset(peer: SocketAddr, stage: Stage) -> Error {
    unreachable(peer, stage, io::Error::from_raw_os_error(libc::ECONNRESET))
}

/// Returns the error of a rejection.
pub(super) fn rejected(peer: SocketAddr, reason: RejectReason, private_data: Vec<u8>) -> Error {
    let hint = explain::reject_reason(reason).and_then(|explanation| explanation.hint).unwrap_or_default();
    // Only a program's rejection has private data. Otherwise the data is zeros.
    let private_data = if reason == RejectReason::ConsumerReject { private_data } else { Vec::new() };
    Error::CmRejected { peer, reason, private_data, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn peer() -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 7], 7471))
    }

    #[test]
    fn port_without_listener_has_a_hint() {
        let error = rejected(peer(), RejectReason::InvalidServiceId, Vec::new());
        assert_eq!(
            error.to_string(),
            "192.0.2.7:7471 rejected the connect request: invalid service ID (8)\n  hint: check the port: no program on the host \
             listens on it"
        );
    }

    #[test]
    fn a_timeout_reports_the_limit_and_has_a_hint() {
        let error = timed_out(peer(), Stage::Request, &Deadline::new(Duration::from_secs(2)));
        let text = error.to_string();
        assert!(
            text.starts_with(
                "connecting to 192.0.2.7:7471 failed while sending the connect request: no answer"
            )
        );
        assert!(text.contains("within 2s") && text.contains("UDP port 4791"), "{text}");
        assert!(matches!(error, Error::Unreachable { error, .. } if error.kind() == io::ErrorKind::TimedOut));
    }
}
