//! The sum of the errors of all operations.

use std::borrow::Cow;
use std::fmt;
use std::io;

#[cfg(feature = "cluster")]
use adverb_cluster as cluster;
use adverb_net as net;
#[cfg(feature = "probe")]
use adverb_probe as probe;
use adverb_verbs as verbs;

/// The result type of programs that use several parts of Adverb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of any operation of Adverb, for programs that only report errors. The operator `?` converts the error of
/// each operation into this type.
///
/// Each operation returns an error type of its own, whose variants are the situations that the program may want to
/// handle. Match on that type before the conversion:
///
/// ```no_run
/// use adverb::net::ConnectError;
/// use adverb::net::blocking::{Connection, connect};
///
/// /// Connects to the first server, or to the second one if no program listens at the first.
/// fn connect_to_any() -> adverb::Result<Connection> {
///     match connect("db1:7471") {
///         Err(ConnectError::Refused { .. }) => Ok(connect("db2:7471")?),
///         connected => Ok(connected?),
///     }
/// }
/// ```
///
/// `Display` prints one line, which names the operation, and not its cause. [`source`](std::error::Error::source) returns
/// the cause. [`Report`](crate::Report) prints an error with its causes and the hint.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A device, memory, a queue, a request, or a call to the connection manager failed.
    Verbs(Box<verbs::Error>),
    /// A connection could not be established.
    Connect(Box<net::ConnectError>),
    /// A listener could not be bound to an address.
    Bind(Box<net::BindError>),
    /// A listener could not accept a connection.
    Accept(Box<net::AcceptError>),
    /// A connection has ended.
    Connection(Box<net::ConnectionError>),
    /// A message could not be sent.
    Send(Box<net::SendErrorKind>),
    /// No message could be received.
    Recv(Box<net::RecvError>),
    /// Memory could not be exposed to a peer.
    Expose(Box<net::ExposeError>),
    /// An access to a peer's memory failed.
    Remote(Box<net::RemoteErrorKind>),
    /// A key could not be made.
    Key(Box<verbs::KeyError>),
    /// A member could not join a cluster, or use it.
    #[cfg(feature = "cluster")]
    Cluster(Box<cluster::ClusterError>),
    /// A broker could not be created, or a session of a broker failed.
    #[cfg(feature = "cluster")]
    Broker(Box<cluster::BrokerError>),
    /// A message of a broker or a call could not be posted.
    #[cfg(feature = "cluster")]
    Post(Box<cluster::PostError>),
    /// A transfer of a broker could not be posted.
    #[cfg(feature = "cluster")]
    Transfer(Box<cluster::TransferError>),
    /// A transfer of a broker failed.
    #[cfg(feature = "cluster")]
    Ticket(Box<cluster::TicketError>),
    /// A session with a member of a cluster could not be established.
    #[cfg(feature = "cluster")]
    Establish(Box<cluster::EstablishError>),
    /// A call has no reply.
    #[cfg(feature = "cluster")]
    Call(Box<cluster::CallError>),
    /// A call of a task failed.
    #[cfg(all(feature = "cluster", feature = "tokio"))]
    Caller(Box<cluster::CallerError>),
    /// An operation on an arena failed.
    #[cfg(feature = "cluster")]
    Arena(Box<cluster::ArenaError>),
    /// A probe, a prober or a responder failed.
    #[cfg(feature = "probe")]
    Probe(Box<probe::ProbeError>),
}

const _: () = assert!(size_of::<Error>() <= 64);

/// Evaluates an expression with the error of each variant.
macro_rules! with_each {
    ($value:expr, $error:ident => $result:expr) => {
        match $value {
            Error::Verbs($error) => $result,
            Error::Connect($error) => $result,
            Error::Bind($error) => $result,
            Error::Accept($error) => $result,
            Error::Connection($error) => $result,
            Error::Send($error) => $result,
            Error::Recv($error) => $result,
            Error::Expose($error) => $result,
            Error::Remote($error) => $result,
            Error::Key($error) => $result,
            #[cfg(feature = "cluster")]
            Error::Cluster($error) => $result,
            #[cfg(feature = "cluster")]
            Error::Broker($error) => $result,
            #[cfg(feature = "cluster")]
            Error::Post($error) => $result,
            #[cfg(feature = "cluster")]
            Error::Transfer($error) => $result,
            #[cfg(feature = "cluster")]
            Error::Ticket($error) => $result,
            #[cfg(feature = "cluster")]
            Error::Establish($error) => $result,
            #[cfg(feature = "cluster")]
            Error::Call($error) => $result,
            #[cfg(all(feature = "cluster", feature = "tokio"))]
            Error::Caller($error) => $result,
            #[cfg(feature = "cluster")]
            Error::Arena($error) => $result,
            #[cfg(feature = "probe")]
            Error::Probe($error) => $result,
        }
    };
}

impl Error {
    /// Returns an action that may solve the problem, if one is known.
    #[allow(clippy::useless_conversion, reason = "some of the errors return a `&'static str`")]
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        with_each!(self, error => error.hint().map(Cow::from))
    }

    /// Whether a time limit has expired.
    pub fn is_timeout(&self) -> bool {
        match self {
            Error::Verbs(error) => error.is_timeout(),
            Error::Connect(error) => error.is_timeout(),
            Error::Connection(error) => error.is_timeout(),
            Error::Send(error) => error.is_timeout(),
            Error::Recv(error) => error.is_timeout(),
            Error::Expose(error) => error.is_timeout(),
            Error::Remote(error) => error.is_timeout(),
            #[cfg(feature = "cluster")]
            Error::Establish(error) => error.is_timeout(),
            #[cfg(feature = "cluster")]
            Error::Call(error) => error.is_timeout(),
            #[cfg(all(feature = "cluster", feature = "tokio"))]
            Error::Caller(error) => error.is_timeout(),
            #[cfg(feature = "probe")]
            Error::Probe(error) => error.is_timeout(),
            // The other operations have no time limits.
            _ => false,
        }
    }

    /// Whether trying again later can succeed, without a change of the program or the configuration: after the end of a
    /// connection, over a new one.
    pub fn is_retryable(&self) -> bool {
        with_each!(self, error => error.is_retryable())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_each!(self, error => error.fmt(f))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        with_each!(self, error => error.source())
    }
}

/// Keeps the operation's error as the inner error.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error {
            Error::Verbs(error) => (*error).into(),
            Error::Connect(error) => (*error).into(),
            Error::Bind(error) => (*error).into(),
            Error::Accept(error) => (*error).into(),
            Error::Connection(error) => (*error).into(),
            Error::Send(error) => (*error).into(),
            Error::Recv(error) => (*error).into(),
            Error::Expose(error) => (*error).into(),
            Error::Remote(error) => (*error).into(),
            Error::Key(error) => io::Error::new(io::ErrorKind::InvalidInput, error),
            #[cfg(any(feature = "cluster", feature = "probe"))]
            error if error.is_timeout() => io::Error::new(io::ErrorKind::TimedOut, error),
            #[cfg(any(feature = "cluster", feature = "probe"))]
            error => io::Error::other(error),
        }
    }
}

macro_rules! from {
    ($($error:ty => $variant:ident,)*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::$variant(Box::new(error.into()))
            }
        }
    )*};
}

from! {
    verbs::Error => Verbs,
    verbs::raw::RawPostError => Verbs,
    net::ConnectError => Connect,
    net::BindError => Bind,
    net::AcceptError => Accept,
    net::ConnectionError => Connection,
    net::SendError => Send,
    net::SendErrorKind => Send,
    net::RecvError => Recv,
    net::ExposeError => Expose,
    net::RemoteError => Remote,
    net::RemoteErrorKind => Remote,
    verbs::KeyError => Key,
}

#[cfg(feature = "cluster")]
from! {
    cluster::ClusterError => Cluster,
    cluster::BrokerError => Broker,
    cluster::ConfigError => Broker,
    cluster::SessionError => Broker,
    cluster::PostError => Post,
    cluster::TransferError => Transfer,
    cluster::RefusedTransfer => Transfer,
    cluster::RemotePtrError => Transfer,
    cluster::RefusedReply => Post,
    cluster::TicketError => Ticket,
    cluster::EstablishError => Establish,
    cluster::CallError => Call,
    cluster::ArenaError => Arena,
}

#[cfg(all(feature = "cluster", feature = "tokio"))]
from! {
    cluster::CallerError => Caller,
}

#[cfg(feature = "probe")]
from! {
    probe::ProbeError => Probe,
}

/// Drops the requests, and returns their buffers to the pool.
impl<R> From<verbs::PostError<R>> for Error {
    fn from(error: verbs::PostError<R>) -> Error {
        verbs::Error::from(error).into()
    }
}
