//! Errors of a cluster, and the state of its members.

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use adverb_cluster_proto::{EndReason, PeerId};

use crate::{BrokerError, limit_hint};

/// An error of a [`Cluster`](super::Cluster).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The cluster has no member with this name.
    #[error("the cluster has no member {name:?}")]
    UnknownMember {
        /// The name.
        name: Box<str>,
    },
    /// Two members have the same name.
    #[error("two members of the cluster have the name {name:?}")]
    DuplicateMember {
        /// The name.
        name: Box<str>,
    },
    /// An option is out of range.
    #[error("the cluster's number of {option} is {requested}, but must be from 1 to {max}")]
    OutOfRange {
        /// The option: `members` or `threads`.
        option: &'static str,
        /// The requested number.
        requested: usize,
        /// The maximum.
        max: usize,
    },
    /// The address of this member could not be resolved.
    #[error("resolving the address of this member, {name:?}, failed")]
    Resolve {
        /// The name of the member.
        name: Box<str>,
        /// The cause.
        source: io::Error,
    },
    /// Listening for other members failed.
    #[error("listening for members at {addr} failed")]
    Listen {
        /// The address of this member.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// A thread or a descriptor could not be created.
    #[error("{action} failed")]
    System {
        /// The failed action.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The broker of a thread was taken before, or the member has fewer threads.
    #[error("the broker of thread {thread} was already taken, or the member has fewer threads")]
    BrokerTaken {
        /// The index of the thread.
        thread: usize,
    },
    /// A device could not be opened.
    #[error(transparent)]
    Verbs(#[from] adverb_verbs::Error),
    /// A broker could not be created.
    #[error(transparent)]
    Broker(Box<BrokerError>),
}

impl From<BrokerError> for ClusterError {
    fn from(error: BrokerError) -> ClusterError {
        ClusterError::Broker(error.into())
    }
}

impl ClusterError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            ClusterError::UnknownMember { .. } => "join with one of the names in the list of members",
            ClusterError::Resolve { .. } => {
                "the address of a member is `host:port`, for example 10.0.0.1:7471"
            }
            ClusterError::Listen { .. } => {
                "the address must be one of this host, and no other program may listen at the port"
            }
            ClusterError::System { source, .. } => limit_hint(source)?,
            ClusterError::BrokerTaken { .. } => {
                "take each broker once; `ClusterBuilder::threads` sets their number"
            }
            ClusterError::Verbs(error) => return error.hint(),
            ClusterError::Broker(error) => return error.hint(),
            ClusterError::DuplicateMember { .. } | ClusterError::OutOfRange { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether joining later can succeed, without a change of the program or the configuration: a port may become free, or
    /// a name may be resolved.
    pub fn is_retryable(&self) -> bool {
        match self {
            ClusterError::Resolve { .. } => true,
            ClusterError::Listen { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            ClusterError::System { source, .. } => limit_hint(source).is_some(),
            ClusterError::Verbs(error) => error.is_retryable(),
            ClusterError::Broker(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// The state of the sessions with a member, which [`Cluster::status`](super::Cluster::status) returns.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemberStatus {
    /// The number of open sessions: at most one for each thread of this member. It changes shortly after the events of the
    /// brokers.
    pub open_session_count: usize,
    /// The error of the last failed attempt to establish a session. Opening a session clears it. The cluster tries
    /// again as long as the session is needed.
    ///
    /// Of two members, the one with the larger number dials. So after a session has ended, the member with the smaller
    /// number starts no attempt, and this field stays `None` there until an attempt of the other member fails:
    /// [`last_end`](MemberStatus::last_end) has the reason.
    ///
    /// If the other member begins an attempt that fails, its error is stored here only while no session with that member
    /// is open. Three causes are not stored: the other member closed the connection, the connection timed out, or a
    /// thread is not ready. The address in the error is that of the host, which may also be a stranger that claims to be
    /// the member.
    pub last_error: Option<EstablishError>,
    /// The reason why the last session with the member ended. It remains when a session is opened again. `None` if no
    /// session with the member has ended.
    pub last_end: Option<EndReason>,
}

impl MemberStatus {
    /// Returns the state of a member without sessions or attempts.
    pub(super) fn new() -> MemberStatus {
        MemberStatus { open_session_count: 0, last_error: None, last_end: None }
    }
}

/// The reason why a session with a member was not established. The cluster tries again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstablishError {
    /// The address of the member could not be resolved.
    #[error("resolving the address of {peer} failed")]
    Resolve {
        /// The member.
        peer: PeerId,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The connection over TCP failed: the member doesn't run, or the network doesn't reach it.
    #[error("the connection to {peer} at {addr} failed")]
    Unreachable {
        /// The member.
        peer: PeerId,
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: Arc<io::Error>,
    },
    /// The host doesn't use this version of the cluster's protocol.
    #[error("the host of {peer} at {addr} does not use this version of the cluster's protocol")]
    ProtocolMismatch {
        /// The member.
        peer: PeerId,
        /// The address of the host.
        addr: SocketAddr,
    },
    /// The member has another list of members, another order, or another number of threads.
    #[error("{peer} at {addr} has another list of members, or another number of threads")]
    ListsDiffer {
        /// The member, according to the list of this member.
        peer: PeerId,
        /// The address of the host.
        addr: SocketAddr,
    },
    /// The member has another key, or only one side has a key.
    #[error("{peer} at {addr} has another key, or only one side has a key")]
    Authentication {
        /// The member.
        peer: PeerId,
        /// The address of the host.
        addr: SocketAddr,
    },
    /// The member has a session with another run of this member, whose epoch is newer.
    #[error(
        "{peer} has a session with a run of this member of epoch {newest}, and this run has the older epoch {epoch}"
    )]
    StaleEpoch {
        /// The member that refused the session.
        peer: PeerId,
        /// The epoch of this run.
        epoch: u64,
        /// The epoch of the run that has the session.
        newest: u64,
    },
    /// This member has a session with another run of the member, whose epoch is newer.
    #[error(
        "a run of {peer} with epoch {epoch} was refused: a session with its newer epoch {newest} is open"
    )]
    PeerStaleEpoch {
        /// The member.
        peer: PeerId,
        /// The epoch of the run that was refused.
        epoch: u64,
        /// The epoch of the run that has the session.
        newest: u64,
    },
    /// The thread of the member is not ready: it doesn't poll its broker, or could not prepare a session.
    #[error("the thread of {peer} is not ready")]
    NotReady {
        /// The member.
        peer: PeerId,
    },
    /// A thread of this member does not poll its broker.
    #[error("thread {thread} of this member does not poll its broker for a session with {peer}")]
    NotPolled {
        /// The member.
        peer: PeerId,
        /// The index of the thread.
        thread: u16,
    },
    /// The member offered an address that is not its own.
    #[error("{peer} at {addr} offered a queue pair at {offered}, which is another host")]
    ForeignAddress {
        /// The member.
        peer: PeerId,
        /// The address of the host.
        addr: SocketAddr,
        /// The offered address.
        offered: IpAddr,
    },
    /// Too many hosts have connected at the same time.
    #[error("the connection of {peer} was closed: too many connections were open")]
    TooManyConnections {
        /// The member.
        peer: PeerId,
    },
    /// A broker could not prepare or open the session.
    #[error("preparing the session with {peer} failed")]
    Broker {
        /// The member.
        peer: PeerId,
        /// The cause.
        source: Arc<BrokerError>,
    },
}

impl EstablishError {
    /// Returns the member.
    pub const fn peer(&self) -> PeerId {
        match self {
            EstablishError::Resolve { peer, .. }
            | EstablishError::Unreachable { peer, .. }
            | EstablishError::ProtocolMismatch { peer, .. }
            | EstablishError::ListsDiffer { peer, .. }
            | EstablishError::Authentication { peer, .. }
            | EstablishError::StaleEpoch { peer, .. }
            | EstablishError::PeerStaleEpoch { peer, .. }
            | EstablishError::NotReady { peer }
            | EstablishError::NotPolled { peer, .. }
            | EstablishError::ForeignAddress { peer, .. }
            | EstablishError::TooManyConnections { peer }
            | EstablishError::Broker { peer, .. } => *peer,
        }
    }

    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            EstablishError::Unreachable { .. } => {
                "check that the member runs at this address, and that no firewall blocks the port"
            }
            EstablishError::ProtocolMismatch { .. } => {
                "use the same version of Adverb at all members, and check the address of the member"
            }
            EstablishError::ListsDiffer { .. } => {
                "start all members with the same names, in the same order, and with the same number of threads"
            }
            EstablishError::Authentication { .. } => "give all members the same key",
            EstablishError::StaleEpoch { .. } => {
                "stop the other run of this member, or correct the clock of this host; if that run has ended, its session \
                 ends soon"
            }
            EstablishError::PeerStaleEpoch { .. } => {
                "stop the other run of the member, or correct the clock of its host; if that run has ended, its session \
                 ends soon"
            }
            EstablishError::NotReady { .. } => {
                "each thread of a member takes its broker from the cluster, and polls it"
            }
            EstablishError::NotPolled { .. } => "poll the broker at least once per second",
            EstablishError::ForeignAddress { .. } => {
                "the address of a member in the list must be one of its RDMA device"
            }
            EstablishError::Broker { source, .. } => return source.hint(),
            EstablishError::Resolve { .. } | EstablishError::TooManyConnections { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether the member did not answer in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, EstablishError::Unreachable { source, .. } if source.kind() == io::ErrorKind::TimedOut)
    }

    /// Whether one of the cluster's further attempts can succeed without a change of the configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            EstablishError::ProtocolMismatch { .. }
            | EstablishError::ListsDiffer { .. }
            | EstablishError::Authentication { .. }
            | EstablishError::ForeignAddress { .. } => false,
            EstablishError::Broker { source, .. } => source.is_retryable(),
            _ => true,
        }
    }
}

const _: () = assert!(size_of::<ClusterError>() <= 64 && size_of::<EstablishError>() <= 64);
