//! The error of connecting.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use adverb_verbs as verbs;
use adverb_verbs::Gid;
use adverb_verbs::cm::RejectReason;

use super::{ConnectionError, DESCRIPTORS_HINT, FOREIGN_POOL_HINT, into_io_error, is_descriptor_shortage};
use crate::protocol::handshake::{Flaw, Refusal, VERSION};

/// The error of a connection that could not be established.
///
/// If the peer has several addresses, this is the error of the last one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host name could not be resolved.
    #[error("resolving {host} failed")]
    Resolve {
        /// The host name and port.
        host: Box<str>,
        /// The cause. Its kind is [`InvalidInput`](io::ErrorKind::InvalidInput) if the text is no host with a port.
        source: io::Error,
    },
    /// No program listens at the address.
    #[error("{peer} refused the connection")]
    Refused {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// There is no route to the peer, or another error of the network.
    #[error("{peer} is unreachable")]
    Unreachable {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The peer's listener answers over TCP or by the connection manager, but RDMA packets do not arrive. A firewall may
    /// drop UDP packets to port 4791.
    #[error("{peer} is reachable, but not over RDMA")]
    RdmaUnreachable {
        /// The peer's address.
        peer: SocketAddr,
        /// Whether this side's device is a software NIC, whose packets pass the firewall of the host. Packets of
        /// hardware bypass it.
        is_software: bool,
        /// The packets that did not arrive.
        source: io::Error,
    },
    /// The peer did not answer in time.
    #[error("{peer} did not {} within {timeout:?}", .stage.missing())]
    TimedOut {
        /// The peer's address.
        peer: SocketAddr,
        /// The time limit.
        timeout: Duration,
        /// The step that was not finished.
        stage: HandshakeStage,
    },
    /// The peer ended the handshake: its program has exited, has dropped its listener, or has found an error that only
    /// its log shows.
    #[error("{peer} ended the handshake before it {}", .stage.unfinished())]
    Aborted {
        /// The peer's address.
        peer: SocketAddr,
        /// The step that was not finished.
        stage: HandshakeStage,
    },
    /// The keys of the two sides do not match.
    #[error("authenticating the connection to {peer} failed: {mismatch}")]
    Authentication {
        /// The peer's address.
        peer: SocketAddr,
        /// The difference between the keys.
        mismatch: KeyMismatch,
    },
    /// The peer uses another version of the protocol.
    #[error("{peer} uses version {version} of the protocol, but this side supports only version {VERSION}")]
    Version {
        /// The peer's address.
        peer: SocketAddr,
        /// The peer's version.
        version: u16,
    },
    /// The peer does not use Adverb's protocol.
    #[error("the program at {peer} does not use Adverb's protocol")]
    NotAdverb {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The listener rejected the connection for another reason.
    #[error("{peer} rejected the connection: {message}")]
    Rejected {
        /// The peer's address.
        peer: SocketAddr,
        /// The reason.
        reason: RefusalReason,
        /// The reason in the peer's words, without control characters.
        message: Box<str>,
    },
    /// The peer's GID is not an address of the peer of the TCP connection, so packets to it may reach a third party.
    #[error("the GID {gid} is not an address of {peer}")]
    ForeignGid {
        /// The peer's address.
        peer: SocketAddr,
        /// The GID that the peer has sent.
        gid: Gid,
    },
    /// The peer violated the protocol in the handshake.
    #[error("{peer} violated the protocol in the handshake: {reason}")]
    ProtocolViolation {
        /// The peer's address.
        peer: SocketAddr,
        /// The violation, as a clause about the peer: "it sent ...".
        reason: &'static str,
    },
    /// No RDMA device of this machine has the local address of the route to the peer.
    #[error("no RDMA device serves the route to {peer}")]
    NoDevice {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause, which names the local address and the devices that exist.
        source: Box<verbs::Error>,
    },
    /// The process or the system has no file descriptors left.
    #[error("connecting failed for lack of file descriptors")]
    DescriptorLimit {
        /// The cause.
        source: io::Error,
    },
    /// An option is outside its range.
    #[error("`Options::{option}` is {value}, but must be from {min} to {max}")]
    InvalidOption {
        /// The name of the option's setter.
        option: &'static str,
        /// The value.
        value: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// The options have a device, and a pool of another device.
    #[error("`Options::pool` is a pool of {of_pool}, but `Options::device` is {device}")]
    ForeignPool {
        /// The name of the device.
        device: Box<str>,
        /// The name of the pool's device.
        of_pool: Box<str>,
    },
    /// The peer does not know the connection that is to be re-established: its program has restarted, has closed the
    /// connection, or has stopped waiting. Only [`ConnectionError::ReconnectFailed`] has this error, as its source.
    #[error("{peer} does not know the connection")]
    SessionUnknown {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// The connection was not re-established in time. If the peer is the connector, it did not dial again; otherwise,
    /// no dial of this side has ended. Only [`ConnectionError::ReconnectFailed`] has this error, as its source.
    #[error("the connection to {peer} was not re-established within {timeout:?}")]
    ReconnectTimedOut {
        /// The peer's address.
        peer: SocketAddr,
        /// The time limit.
        timeout: Duration,
    },
    /// A call to this side's RDMA device failed. [`verbs::Error`] tells lack of permission, of locked memory and of other
    /// resources apart.
    #[error("preparing the RDMA device for the connection to {peer} failed")]
    Device {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        source: Arc<verbs::Error>,
    },
    /// A call to the operating system or the runtime failed.
    #[error("{action} failed")]
    System {
        /// The failed operation: "reading random bytes".
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The connection failed before it was established.
    #[error(transparent)]
    ConnectionLost(#[from] ConnectionError),
}

/// A step of connecting.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum HandshakeStage {
    /// The peer's system accepts the TCP connection.
    Tcp,
    /// The peer's connection manager answers.
    ConnectionManager,
    /// The peer's program sends its greeting over TCP.
    Greeting,
    /// The peer's program answers over RDMA. The peer's device has this side's first packets.
    Hello,
}

/// The difference between the keys of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum KeyMismatch {
    /// The peer requires a key, and this side has none.
    LocalKeyMissing,
    /// This side requires a key, and the peer has none.
    PeerKeyMissing,
    /// The two sides have different keys.
    KeysDiffer,
}

/// The reason why a listener has rejected a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The listener has no RDMA device at the address that this side has dialed.
    AddressNotServed,
    /// This side's GID is not an address of its end of the TCP connection.
    ForeignGid,
    /// The listener could not parse this side's greeting.
    Malformed,
    /// The listener could not establish the connection. Its log has the cause, which it does not send.
    Internal,
    /// A reason that this version of Adverb does not know.
    Unknown,
}

impl ConnectError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            ConnectError::Resolve { source, .. } => resolve_hint(source),
            ConnectError::Refused { .. } => "start the listener: no program listens at this address and port",
            ConnectError::Unreachable { .. } => {
                "check the address, the routes of this machine and the state of the host"
            }
            ConnectError::RdmaUnreachable { is_software: true, .. } => {
                "let the firewalls of both hosts and of the network pass UDP port 4791 in both directions; `adverb doctor` \
                 finds a rule of this host"
            }
            ConnectError::RdmaUnreachable { is_software: false, .. } => {
                "check the path between the two RDMA devices and the state of the peer's device; an RDMA device's \
                 packets bypass the firewall of its host"
            }
            ConnectError::TimedOut { stage, .. } => match stage {
                HandshakeStage::Tcp => {
                    "check that the host is up, and that firewalls pass TCP to this port and UDP port 4791 in both \
                     directions"
                }
                HandshakeStage::ConnectionManager => {
                    "check that a listener has this address and port, and that the network passes UDP port 4791"
                }
                HandshakeStage::Greeting => {
                    "check that the program at this port is an Adverb listener, and that it calls `accept`"
                }
                HandshakeStage::Hello => {
                    "check that the peer's program calls `accept` in time, or raise `Options::connect_timeout`"
                }
            },
            ConnectError::Aborted { stage: HandshakeStage::Hello, .. } => {
                "the peer's error or log has the cause; check that both sides have the same `Options::key`; a peer \
                 whose long packets are lost connects again with a smaller MTU"
            }
            ConnectError::Aborted { .. } => "the peer's error or log has the cause",
            ConnectError::Authentication { mismatch, .. } => match mismatch {
                KeyMismatch::LocalKeyMissing => {
                    "this side has no key: set the same key as the peer's with `Options::key`"
                }
                KeyMismatch::PeerKeyMissing => {
                    "the peer has no key: set the same key as this side's in the peer's program with `Options::key`"
                }
                KeyMismatch::KeysDiffer => "set the same key on both sides with `Options::key`",
            },
            ConnectError::Version { .. } => "use the same version of Adverb on both sides",
            ConnectError::NotAdverb { .. } => "check the port: another program listens there",
            ConnectError::Rejected { reason, .. } => match reason {
                RefusalReason::AddressNotServed => {
                    "bind the listener to that address, or open `soft:ADDRESS` on its side before it binds"
                }
                RefusalReason::ForeignGid => FOREIGN_GID_HINT,
                RefusalReason::Internal => "the peer's log has the cause",
                RefusalReason::Malformed | RefusalReason::Unknown => return None,
            },
            ConnectError::ForeignGid { .. } => FOREIGN_GID_HINT,
            ConnectError::ProtocolViolation { .. } => "use the same version of Adverb on both sides",
            ConnectError::DescriptorLimit { .. } => DESCRIPTORS_HINT,
            ConnectError::ForeignPool { .. } => FOREIGN_POOL_HINT,
            ConnectError::ReconnectTimedOut { .. } => {
                "check that the peer's program runs, and that the listener of the connection exists"
            }
            ConnectError::NoDevice { source, .. } => return source.hint(),
            ConnectError::Device { source, .. } => return source.hint(),
            ConnectError::ConnectionLost(error) => return error.hint(),
            ConnectError::InvalidOption { .. }
            | ConnectError::SessionUnknown { .. }
            | ConnectError::System { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether a time limit has expired: the peer was silent, or RDMA packets did not arrive.
    pub fn is_timeout(&self) -> bool {
        match self {
            ConnectError::TimedOut { .. }
            | ConnectError::RdmaUnreachable { .. }
            | ConnectError::ReconnectTimedOut { .. } => true,
            ConnectError::Unreachable { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            ConnectError::Device { source, .. } => source.is_timeout(),
            ConnectError::ConnectionLost(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Whether connecting again later can succeed, without a change of the program or the configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            ConnectError::Resolve { source, .. } => source.kind() != io::ErrorKind::InvalidInput,
            ConnectError::Refused { .. }
            | ConnectError::Unreachable { .. }
            | ConnectError::RdmaUnreachable { .. }
            | ConnectError::TimedOut { .. }
            | ConnectError::Aborted { .. }
            | ConnectError::DescriptorLimit { .. } => true,
            ConnectError::Rejected { reason, .. } => *reason == RefusalReason::Internal,
            ConnectError::NoDevice { source, .. } => source.is_retryable(),
            ConnectError::Device { source, .. } => source.is_retryable(),
            ConnectError::ConnectionLost(error) => error.is_retryable(),
            ConnectError::Authentication { .. }
            | ConnectError::Version { .. }
            | ConnectError::NotAdverb { .. }
            | ConnectError::ForeignGid { .. }
            | ConnectError::ProtocolViolation { .. }
            | ConnectError::InvalidOption { .. }
            | ConnectError::ForeignPool { .. }
            | ConnectError::SessionUnknown { .. }
            | ConnectError::ReconnectTimedOut { .. }
            | ConnectError::System { .. } => false,
        }
    }

    /// Returns the error of an address or a host name that can't be resolved. `host` is its `Debug` text.
    pub(crate) fn resolve(host: &str, source: io::Error) -> ConnectError {
        if is_descriptor_shortage(&source) {
            return ConnectError::DescriptorLimit { source };
        }
        ConnectError::Resolve { host: host_name(host), source }
    }

    /// Returns the error of a TCP connection that failed at this step.
    pub(crate) fn tcp(peer: SocketAddr, stage: HandshakeStage, source: io::Error) -> ConnectError {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
        match source.kind() {
            _ if is_descriptor_shortage(&source) => ConnectError::DescriptorLimit { source },
            ConnectionRefused => ConnectError::Refused { peer, source },
            ConnectionReset | UnexpectedEof | BrokenPipe => ConnectError::Aborted { peer, stage },
            _ => ConnectError::Unreachable { peer, source },
        }
    }

    /// Returns the error of a device or a connection manager. `timeout` is the time limit of the handshake.
    pub(crate) fn device(peer: SocketAddr, timeout: Duration, error: verbs::Error) -> ConnectError {
        let stage = HandshakeStage::ConnectionManager;
        match &error {
            verbs::Error::NoDevice { .. } => ConnectError::NoDevice { peer, source: Box::new(error) },
            verbs::Error::CmRejected { reason: RejectReason::InvalidServiceId, .. } => {
                ConnectError::Refused { peer, source: error.into() }
            }
            verbs::Error::Unreachable { source, .. } => match source.kind() {
                io::ErrorKind::TimedOut => ConnectError::TimedOut { peer, timeout, stage },
                io::ErrorKind::ConnectionReset => ConnectError::Aborted { peer, stage },
                _ => ConnectError::Unreachable { peer, source: error.into() },
            },
            _ if is_descriptor_shortage(&error) => ConnectError::DescriptorLimit { source: error.into() },
            _ => ConnectError::Device { peer, source: Arc::new(error) },
        }
    }

    /// Returns the error of a call to the system.
    pub(crate) fn system(action: &'static str, source: io::Error) -> ConnectError {
        if is_descriptor_shortage(&source) {
            return ConnectError::DescriptorLimit { source };
        }
        ConnectError::System { action, source }
    }

    /// Returns the error of a connector that has found a flaw in the listener's greeting.
    pub(crate) fn flaw(peer: SocketAddr, flaw: &Flaw) -> ConnectError {
        let authentication = |mismatch| ConnectError::Authentication { peer, mismatch };
        match flaw {
            Flaw::NotAdverb => ConnectError::NotAdverb { peer },
            Flaw::Version(version) => ConnectError::Version { peer, version: *version },
            Flaw::ConnectorHasNoKey => authentication(KeyMismatch::LocalKeyMissing),
            Flaw::ListenerHasNoKey => authentication(KeyMismatch::PeerKeyMissing),
            Flaw::KeyWrong => authentication(KeyMismatch::KeysDiffer),
            Flaw::ForeignGid(gid) => ConnectError::ForeignGid { peer, gid: *gid },
            Flaw::Malformed | Flaw::AddressNotServed(_) => {
                ConnectError::ProtocolViolation { peer, reason: "it sent a malformed greeting" }
            }
        }
    }

    /// Returns the error of a connector that the listener has refused.
    pub(crate) fn refusal(peer: SocketAddr, refusal: Refusal) -> ConnectError {
        use crate::protocol::handshake::RefusalCode;
        let authentication = |mismatch| ConnectError::Authentication { peer, mismatch };
        let Refusal { version, code, message } = refusal;
        let rejected = |reason| ConnectError::Rejected { peer, reason, message: message.into() };
        match code {
            RefusalCode::Version => ConnectError::Version { peer, version },
            RefusalCode::ConnectorHasNoKey => authentication(KeyMismatch::LocalKeyMissing),
            RefusalCode::ListenerHasNoKey => authentication(KeyMismatch::PeerKeyMissing),
            RefusalCode::KeyWrong => authentication(KeyMismatch::KeysDiffer),
            RefusalCode::AddressNotServed => rejected(RefusalReason::AddressNotServed),
            RefusalCode::ForeignGid => rejected(RefusalReason::ForeignGid),
            RefusalCode::Malformed => rejected(RefusalReason::Malformed),
            RefusalCode::Internal => rejected(RefusalReason::Internal),
            RefusalCode::Unknown(_) => rejected(RefusalReason::Unknown),
        }
    }
}

/// Returns the hint for a host name that can't be resolved.
pub(super) fn resolve_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::InvalidInput => "use a host and a port, such as 192.0.2.7:7471",
        _ => "check the name, and that this machine can resolve it: `getent hosts NAME`",
    }
}

/// Returns a host name without the quotation marks of its `Debug`.
pub(super) fn host_name(host: &str) -> Box<str> {
    host.trim_matches('"').into()
}

const FOREIGN_GID_HINT: &str = "if the RDMA network has other addresses than the TCP connection, set `Options::allow_foreign_gid` on both sides";

impl HandshakeStage {
    /// Returns the step that the peer has not finished, as a verb: "it did not ...".
    fn missing(self) -> &'static str {
        match self {
            HandshakeStage::Tcp => "accept the TCP connection",
            HandshakeStage::ConnectionManager => "answer by the connection manager",
            HandshakeStage::Greeting => "send a greeting",
            HandshakeStage::Hello => "answer over RDMA",
        }
    }

    /// Returns the step that the peer has not finished, as a verb: "before it ...".
    fn unfinished(self) -> &'static str {
        match self {
            HandshakeStage::Tcp => "accepted the TCP connection",
            HandshakeStage::ConnectionManager => "answered by the connection manager",
            HandshakeStage::Greeting => "sent a greeting",
            HandshakeStage::Hello => "answered over RDMA",
        }
    }
}

impl fmt::Display for KeyMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyMismatch::LocalKeyMissing => "the peer requires a key, but this side has none",
            KeyMismatch::PeerKeyMissing => "this side requires a key, but the peer has none",
            KeyMismatch::KeysDiffer => "the two sides have different keys",
        })
    }
}

into_io_error! {
    ConnectError: |error| match error {
        ConnectError::Resolve { source, .. }
        | ConnectError::Refused { source, .. }
        | ConnectError::Unreachable { source, .. }
        | ConnectError::DescriptorLimit { source }
        | ConnectError::System { source, .. } => source.kind(),
        ConnectError::RdmaUnreachable { .. }
        | ConnectError::TimedOut { .. }
        | ConnectError::ReconnectTimedOut { .. } => io::ErrorKind::TimedOut,
        ConnectError::Aborted { .. } => io::ErrorKind::ConnectionAborted,
        ConnectError::Authentication { .. }
        | ConnectError::Version { .. }
        | ConnectError::NotAdverb { .. }
        | ConnectError::Rejected { .. }
        | ConnectError::ForeignGid { .. }
        | ConnectError::ProtocolViolation { .. }
        | ConnectError::SessionUnknown { .. } => io::ErrorKind::ConnectionRefused,
        ConnectError::NoDevice { .. } => io::ErrorKind::NotFound,
        ConnectError::InvalidOption { .. } | ConnectError::ForeignPool { .. } => io::ErrorKind::InvalidInput,
        ConnectError::Device { .. } => io::ErrorKind::Other,
        ConnectError::ConnectionLost(error) => error.io_kind(),
    },
}
