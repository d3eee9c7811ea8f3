//! The failure of a handshake, on either side.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use adverb_verbs as verbs;
use adverb_verbs::internal::WithCauses;

use super::ConnectError;
use crate::protocol::handshake::{Flaw, Refusal, RefusalCode};

/// The failure of a handshake. A connector returns it as a [`ConnectError`]; a listener logs it, and sends a refusal.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// This side has found a flaw in the peer's greeting.
    Flaw(Flaw),
    /// The listener has refused the connection.
    Refused(Refusal),
    /// A call to the device or the connection manager failed.
    Device(verbs::Error),
    /// Another error, of either side.
    Other(ConnectError),
}

impl HandshakeError {
    /// Returns the error of a call to the system.
    pub(crate) fn system(action: &'static str, source: io::Error) -> HandshakeError {
        ConnectError::system(action, source).into()
    }

    /// Returns the error of a connector. `timeout` is the time limit of the handshake.
    pub(crate) fn for_connector(self, peer: SocketAddr, timeout: Duration) -> ConnectError {
        match self {
            HandshakeError::Flaw(flaw) => ConnectError::flaw(peer, &flaw),
            HandshakeError::Refused(refusal) => ConnectError::refusal(peer, refusal),
            HandshakeError::Device(error) => ConnectError::device(peer, timeout, error),
            HandshakeError::Other(error) => error,
        }
    }

    /// Returns the refusal that a listener sends to the connector.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            HandshakeError::Flaw(flaw) => flaw.into(),
            // An unauthenticated peer must not learn about the state of this machine.
            _ => Refusal::new(RefusalCode::Internal, "the listener's log has the cause"),
        }
    }
}

/// Prints the failure with its causes and its hint in one line, for the log of a listener.
impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (error, hint): (&dyn std::error::Error, _) = match self {
            HandshakeError::Flaw(flaw) => return write!(f, "{flaw}"),
            HandshakeError::Refused(refusal) => {
                return write!(f, "the peer sent a refusal: {}", refusal.message);
            }
            HandshakeError::Device(error) => (error, error.hint()),
            HandshakeError::Other(error) => (error, error.hint()),
        };
        write!(f, "{}", WithCauses(error))?;
        hint.map_or(Ok(()), |hint| write!(f, " (hint: {hint})"))
    }
}

impl From<Flaw> for HandshakeError {
    fn from(flaw: Flaw) -> HandshakeError {
        HandshakeError::Flaw(flaw)
    }
}

impl From<verbs::Error> for HandshakeError {
    fn from(error: verbs::Error) -> HandshakeError {
        HandshakeError::Device(error)
    }
}

impl From<ConnectError> for HandshakeError {
    fn from(error: ConnectError) -> HandshakeError {
        HandshakeError::Other(error)
    }
}
