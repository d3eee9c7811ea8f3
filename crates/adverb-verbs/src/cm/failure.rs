//! The errors of connections that can't be established.

use std::io;
use std::net::SocketAddr;

use adverb_proto::explain::Call;
use adverb_proto::types::RejectReason;

use super::Deadline;
use crate::error::{ConnectStage, Error};

/// Returns the error of a peer that couldn't be reached.
pub(super) fn unreachable(peer: SocketAddr, stage: ConnectStage, source: io::Error) -> Error {
    Error::Unreachable { peer, stage, source }
}

/// Returns the error of a device that is being removed.
pub(crate) fn device_removed(action: String) -> Error {
    let source = io::Error::from_raw_os_error(libc::ENODEV);
    Error::DeviceFailed { action: action.into(), call: Call::Poll, source }
}

/// Returns the error of a deadline that passed.
pub(super) fn timed_out(peer: SocketAddr, stage: ConnectStage, deadline: &Deadline) -> Error {
    let description = format!("no answer within {:?}", deadline.timeout);
    unreachable(peer, stage, io::Error::new(io::ErrorKind::TimedOut, description))
}

/// Returns the error of a peer that ended the connection before it was established.
pub(super) fn connection_reset(peer: SocketAddr, stage: ConnectStage) -> Error {
    unreachable(peer, stage, io::Error::from_raw_os_error(libc::ECONNRESET))
}

/// Returns the error of a rejection.
pub(super) fn rejected(peer: SocketAddr, reason: RejectReason, private_data: Vec<u8>) -> Error {
    // Only a program's rejection has private data. Otherwise the data is zeros.
    let private_data = if reason == RejectReason::ConsumerReject { private_data } else { Vec::new() };
    Error::CmRejected { peer, reason, private_data: private_data.into() }
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
        assert_eq!(error.to_string(), "192.0.2.7:7471 rejected the connect request: invalid service ID (8)");
        assert_eq!(error.hint().as_deref(), Some("check the port: no program on the host listens on it"));
    }

    #[test]
    fn a_timeout_reports_the_limit_and_has_a_hint() {
        let error = timed_out(peer(), ConnectStage::Request, &Deadline::new(Duration::from_secs(2)));
        assert_eq!(
            error.to_string(),
            "connecting to 192.0.2.7:7471 failed while sending the connect request"
        );
        assert_eq!(error.io_error().unwrap().to_string(), "no answer within 2s");
        assert!(error.is_timeout());
        assert!(error.hint().unwrap().contains("UDP port 4791"), "{error}");
    }
}
