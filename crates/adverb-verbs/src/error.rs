//! The error type of every operation.

mod call;
mod hint;
mod kind;

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adverb_proto::explain::Call;
use adverb_proto::types::{Failure, QpState, RejectReason, Status};

pub use call::call_failed;
pub(crate) use call::error_number;
pub use kind::{ConnectStage, DomainObject, Feature, Limit, MessageLimit, NoDeviceReason};

/// The result type of fallible operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a device, of memory, of a queue, of a request, or of the connection manager.
///
/// `Display` prints one line: the failed operation and its object. [`source`](StdError::source) returns the cause, such
/// as the operating system's error, whose text is not part of that line. [`hint`](Error::hint) returns an action that
/// may solve the problem. A `main` that returns `Result<(), adverb::Report>` prints all three.
///
/// A program distinguishes errors by their variants, and an operating system's errors by [`io_error`](Error::io_error):
///
/// ```
/// use adverb::verbs::Error;
///
/// fn exit_code(error: &Error) -> u8 {
///     match error {
///         Error::NotInstalled { .. } | Error::NoDevice { .. } => 2,
///         Error::PermissionDenied { .. } => 3,
///         Error::MemlockLimit { .. } | Error::DescriptorLimit { .. } => 4,
///         error if error.is_timeout() => 5,
///         _ => 1,
///     }
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library of rdma-core is not installed, or cannot be loaded.
    #[error("rdma-core is not available")]
    NotInstalled {
        /// The library, and the dynamic linker's message.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// No device matches the request.
    #[error("{problem}")]
    NoDevice {
        /// The name, address or property that no device has: "no RDMA device is named mlx5_0".
        problem: Box<str>,
        /// The reason.
        reason: NoDeviceReason,
        /// The names or addresses that exist instead.
        available: Box<[String]>,
    },
    /// The device, its driver or Adverb does not support the operation.
    #[error("{device} does not support {feature}")]
    Unsupported {
        /// The unsupported operation or property.
        feature: Feature,
        /// The name of the device.
        device: Box<str>,
    },
    /// The process is not permitted to make a call, for example to open a device file in `/dev/infiniband`.
    #[error("{action} failed")]
    PermissionDenied {
        /// The failed operation and its object: "opening device mlx5_0".
        action: Box<str>,
        /// The kind of call.
        call: Call,
        /// The operating system's error.
        source: io::Error,
    },
    /// Registering memory would exceed the limit of locked memory (`RLIMIT_MEMLOCK`).
    #[error("{action} failed: the limit of locked memory is {limit} bytes")]
    MemlockLimit {
        /// The failed operation and its object: "registering 4096 bytes with mlx5_0".
        action: Box<str>,
        /// The limit, in bytes.
        limit: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// The process or the system has too many open file descriptors.
    #[error("{action} failed")]
    DescriptorLimit {
        /// The failed operation and its object: "creating a connection manager ID".
        action: Box<str>,
        /// The kind of call.
        call: Call,
        /// The operating system's error.
        source: io::Error,
    },
    /// The device has failed or was removed. All of its objects are unusable.
    #[error("{action} failed")]
    DeviceFailed {
        /// The failed operation and its object: "creating a completion queue on mlx5_0".
        action: Box<str>,
        /// The kind of call.
        call: Call,
        /// The operating system's error, or the software device's.
        source: io::Error,
    },
    /// Another call to the device or the operating system failed.
    ///
    /// Methods that return this variant also return [`PermissionDenied`](Error::PermissionDenied),
    /// [`DescriptorLimit`](Error::DescriptorLimit) and [`DeviceFailed`](Error::DeviceFailed) for these causes.
    #[error("{action} failed")]
    CallFailed {
        /// The failed operation and its object: "creating a queue pair on rxe0".
        action: Box<str>,
        /// The kind of call.
        call: Call,
        /// The operating system's error, or the software device's.
        source: io::Error,
    },
    /// A requested quantity is outside its limit.
    #[error("{limit} is {requested}, but the {}", bound(*.requested, *.max))]
    LimitExceeded {
        /// The limited quantity.
        limit: Limit,
        /// The requested value.
        requested: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// A range lies outside its memory.
    #[error("the range of {len} bytes at offset {offset} is out of bounds: the memory has {size} bytes")]
    OutOfBounds {
        /// The range's start, in bytes from the start of the memory.
        offset: usize,
        /// The range's length, in bytes.
        len: usize,
        /// The memory's size, in bytes.
        size: usize,
    },
    /// A 64-bit word is not aligned to its size.
    #[error("the 64-bit word at offset {offset} is not aligned: the offset must be a multiple of 8")]
    Unaligned {
        /// The word's offset, in bytes.
        offset: usize,
    },
    /// A message is longer than the queue pair or the request allows.
    #[error("a message of {len} bytes exceeds the maximum of {max} bytes")]
    MessageTooLong {
        /// The message's length, in bytes.
        len: u64,
        /// The maximum length, in bytes.
        max: u64,
        /// The object or option that determines the maximum.
        limit: MessageLimit,
    },
    /// The queue has no free entries for the requests.
    #[error("the {queue} queue is full: {depth} requests are outstanding")]
    QueueFull {
        /// The queue: "send", "receive" or "shared receive".
        queue: &'static str,
        /// The queue's depth, in requests.
        depth: u32,
    },
    /// The queue pair's state does not allow the operation.
    #[error("{action} failed: the queue pair is in state “{state}”")]
    WrongState {
        /// The failed operation: "posting a send request".
        action: &'static str,
        /// The queue pair's state.
        state: QpState,
    },
    /// The arguments of an operation are invalid or inconsistent.
    #[error("invalid request: {reason}")]
    InvalidRequest {
        /// The violated rule.
        reason: Cow<'static, str>,
    },
    /// A request's memory or memory window belongs to a different protection domain than the queue.
    #[error("posting to {queue} failed: the queue is in {queue_domain}, but the {object} is in {domain}")]
    ForeignDomain {
        /// The object of the request.
        object: DomainObject,
        /// The object's protection domain, with its number and its device.
        domain: Box<str>,
        /// The queue: "queue pair 17".
        queue: Box<str>,
        /// The queue's protection domain, with its number and its device.
        queue_domain: Box<str>,
    },
    /// A request completed with an error.
    #[error("{} failed: {}{}", request_of(*.is_receive, .peer), .failure.status, vendor_error(.failure))]
    RequestFailed {
        /// The completion's status and vendor error.
        failure: Failure,
        /// Whether the request was a receive request.
        is_receive: bool,
        /// The address of the peer, if the queue pair is connected and the request was posted to one of its own queues.
        peer: Option<IpAddr>,
    },
    /// An operation did not finish within its timeout.
    #[error("timed out after {timeout:?} while {action}")]
    TimedOut {
        /// The timeout.
        timeout: Duration,
        /// The operation: "waiting for a completion".
        action: Cow<'static, str>,
    },
    /// A connection could not be established: the peer did not reply, or there is no route to the peer.
    #[error("connecting to {peer} failed while {stage}")]
    Unreachable {
        /// The peer's address.
        peer: SocketAddr,
        /// The step that failed.
        stage: ConnectStage,
        /// The cause; its kind is [`TimedOut`](io::ErrorKind::TimedOut) if the peer did not reply.
        source: io::Error,
    },
    /// The peer's connection manager or program rejected the connect request.
    #[error("{peer} rejected the connect request: {reason}")]
    CmRejected {
        /// The peer's address.
        peer: SocketAddr,
        /// The connection manager's reason.
        reason: RejectReason,
        /// The private data from the peer's program, possibly padded with zeros. The data is empty unless the program
        /// rejected the request.
        private_data: Box<[u8]>,
    },
    /// Memory could not be allocated.
    #[error("allocating {len} bytes failed")]
    Allocation {
        /// The length of the allocation, in bytes.
        len: usize,
        /// The operating system's error.
        source: io::Error,
    },
}

const _: () = assert!(size_of::<Error>() <= 64);

impl Error {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        hint::hint(self)
    }

    /// Returns the operating system's error, or the software device's, if the operation failed because of one. Its
    /// [`kind`](io::Error::kind) and [`raw_os_error`](io::Error::raw_os_error) distinguish the errors of calls further.
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            Error::PermissionDenied { source, .. }
            | Error::MemlockLimit { source, .. }
            | Error::DescriptorLimit { source, .. }
            | Error::DeviceFailed { source, .. }
            | Error::CallFailed { source, .. }
            | Error::Unreachable { source, .. }
            | Error::Allocation { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Whether a time limit expired: the operation's [timeout](Error::TimedOut), or the time within which a peer or a
    /// service of the network must reply.
    ///
    /// A request whose retransmissions got no answer has [failed](Error::RequestFailed), and is not a timeout in this
    /// sense: its queue pair is in the error state.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::TimedOut { .. })
            || self.io_error().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    /// Whether trying again later, without a change of the program or the configuration, can succeed.
    ///
    /// This holds for a full queue, a timeout, an unreachable peer, a peer that does not listen yet or is short of
    /// resources, and for a temporary lack of ports, descriptors or memory. It does not hold for a failed request,
    /// because its queue pair must be connected again first, nor for a device that has failed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::QueueFull { .. }
            | Error::TimedOut { .. }
            | Error::MemlockLimit { .. }
            | Error::DescriptorLimit { .. }
            | Error::Allocation { .. } => true,
            Error::NoDevice { reason, .. } => *reason == NoDeviceReason::PortsDown,
            Error::CmRejected { reason, .. } => matches!(
                reason,
                RejectReason::NoQueuePair
                    | RejectReason::NoResources
                    | RejectReason::Timeout
                    | RejectReason::InvalidServiceId
                    | RejectReason::StaleConnection
            ),
            // No hardware has a route: a device must be opened first.
            Error::Unreachable { source, .. } => source.kind() != io::ErrorKind::NotFound,
            Error::CallFailed { source, .. } => call::is_transient(source),
            _ => false,
        }
    }
}

/// Keeps the error as the inner error. The variant, or the operating system's error, determines the kind.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::PermissionDenied { .. } => io::ErrorKind::PermissionDenied,
            Error::MemlockLimit { .. } => io::ErrorKind::OutOfMemory,
            Error::CmRejected { .. } => io::ErrorKind::ConnectionRefused,
            Error::RequestFailed { failure, .. } => match failure.status {
                Status::RetryExceeded | Status::RnrRetryExceeded | Status::Flushed => {
                    io::ErrorKind::ConnectionAborted
                }
                _ => io::ErrorKind::Other,
            },
            Error::TimedOut { .. } => io::ErrorKind::TimedOut,
            Error::QueueFull { .. } => io::ErrorKind::WouldBlock,
            Error::Unsupported { .. } => io::ErrorKind::Unsupported,
            Error::NotInstalled { .. } | Error::NoDevice { .. } => io::ErrorKind::NotFound,
            Error::OutOfBounds { .. }
            | Error::Unaligned { .. }
            | Error::LimitExceeded { .. }
            | Error::MessageTooLong { .. }
            | Error::ForeignDomain { .. }
            | Error::InvalidRequest { .. } => io::ErrorKind::InvalidInput,
            error => error.io_error().map_or(io::ErrorKind::Other, io::Error::kind),
        };
        io::Error::new(kind, error)
    }
}

/// An error with its causes in one line, for logs.
pub struct WithCauses<'a>(pub &'a (dyn StdError + 'static));

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// Returns the violated bound: the maximum, or the minimum, which is 1 for every quantity.
fn bound(requested: u64, max: u64) -> String {
    if requested > max { format!("maximum is {max}") } else { "minimum is 1".to_owned() }
}

/// Returns the peer as part of a sentence, or nothing if it is unknown.
fn request_of(is_receive: bool, peer: &Option<IpAddr>) -> String {
    match (is_receive, peer) {
        (true, Some(peer)) => format!("a receive from {peer}"),
        (true, None) => "a receive".into(),
        (false, Some(peer)) => format!("a request to {peer}"),
        (false, None) => "a request".into(),
    }
}

/// Returns the vendor's error code in parentheses, or nothing for code 0.
fn vendor_error(failure: &Failure) -> String {
    match failure.vendor_error {
        0 => String::new(),
        code => format!(" (vendor error {code:#x})"),
    }
}

#[cfg(test)]
mod tests;
