//! The error type of every operation, with hints.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use adverb_proto::explain::{self, Call};
use adverb_proto::types::{Failure, QpState, RejectReason};

/// The result type of fallible operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: the failed operation, the cause and, for most errors, a [hint](Error::hint).
///
/// `Display` prints a message for users: the failed operation, the cause, and the hint on a separate line. `Debug`
/// prints the variant and its fields. A `main` that returns a `Result` prints `Debug`: return `adverb::Report` there,
/// which prints the message and the hint.
///
/// The message includes the cause, so [`source`](std::error::Error::source) returns `None`: programs that print the chain
/// of sources print the cause once.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library of rdma-core is not installed, or cannot be loaded.
    #[error("{reason}{}", hint_line(.hint))]
    NotInstalled {
        /// The library, and the dynamic linker's message.
        reason: String,
        /// An action to try.
        hint: Cow<'static, str>,
    },
    /// No device matches the request.
    #[error("{reason}{}", hint_line(.hint))]
    NoDevice {
        /// The name, address or property that no device has.
        reason: String,
        /// The devices that exist, or an action to try.
        hint: String,
    },
    /// The device, the kernel or Adverb does not support the operation.
    #[error("{feature} is not supported{}", hint_line(.hint))]
    Unsupported {
        /// The unsupported operation or property: "multicast on mlx5_0".
        feature: Cow<'static, str>,
        /// An alternative.
        hint: Cow<'static, str>,
    },
    /// A call to the device or the operating system failed.
    #[error("{action} failed: {error}{}", hint_line(.hint))]
    Verb {
        /// The failed operation and its object: "creating a queue pair on rxe0".
        action: String,
        /// The operating system's error.
        error: io::Error,
        /// An action to try, or an empty string.
        hint: Cow<'static, str>,
    },
    /// A requested quantity is outside its limit.
    #[error("{quantity} is {requested}, but the {}{}", limit(*.requested, *.max), hint_line(.hint))]
    LimitExceeded {
        /// The limited quantity: "completion queue depth".
        quantity: Cow<'static, str>,
        /// The requested value.
        requested: u64,
        /// The largest allowed value.
        max: u64,
        /// An action to try, or an empty string.
        hint: Cow<'static, str>,
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
    /// A message is longer than the queue pair, the request or the peer allows.
    #[error("a message of {len} bytes exceeds the maximum of {max} bytes{}", hint_line(.hint))]
    MessageTooLong {
        /// The message's length, in bytes.
        len: u64,
        /// The maximum length, in bytes.
        max: u64,
        /// An action to try.
        hint: &'static str,
    },
    /// The queue has no free entries for the requests.
    #[error("the {queue} queue is full: {depth} requests are outstanding{}", hint_line(&QUEUE_FULL_HINT))]
    QueueFull {
        /// The queue: "send", "receive" or "shared receive".
        queue: &'static str,
        /// The queue's depth, in requests.
        depth: u32,
    },
    /// The queue pair's state does not allow the operation.
    #[error("{action} failed: the queue pair is in state “{state}”{}", hint_line(.hint))]
    WrongState {
        /// The failed operation: "posting a send request".
        action: &'static str,
        /// The queue pair's state.
        state: QpState,
        /// An action to try.
        hint: &'static str,
    },
    /// The arguments of an operation are invalid or inconsistent.
    #[error("invalid request: {reason}")]
    InvalidRequest {
        /// The violated rule.
        reason: Cow<'static, str>,
    },
    /// A request's memory or memory window belongs to a different protection domain than the queue.
    #[error("posting to {queue} failed: the queue is in {queue_domain}, but the {object} is in {domain}{}", hint_line(&FOREIGN_DOMAIN_HINT))]
    ForeignDomain {
        /// The object: "memory" or "memory window".
        object: &'static str,
        /// The object's protection domain, with its number and its device.
        domain: String,
        /// The queue: "queue pair 17".
        queue: String,
        /// The queue's protection domain, with its number and its device.
        queue_domain: String,
    },
    /// A request completed with an error.
    #[error("request failed: {}{}{}", .failure.status, vendor_error(.failure), hint_line(&.failure.status.hint().unwrap_or_default()))]
    RequestFailed {
        /// The completion's status and vendor error.
        failure: Failure,
    },
    /// An operation did not finish within its timeout.
    #[error("timed out after {timeout:?} while {action}")]
    Timeout {
        /// The timeout.
        timeout: std::time::Duration,
        /// The operation: "waiting for a completion".
        action: Cow<'static, str>,
    },
    /// The operation cannot finish without waiting.
    #[error("{action} would block: earlier messages are still queued, or the peer's receive ring is full{}", hint_line(&WOULD_BLOCK_HINT))]
    WouldBlock {
        /// The operation: "sending a message".
        action: &'static str,
    },
    /// A connection could not be established: the peer did not reply, or there is no route to the peer.
    #[error("connecting to {peer} failed while {stage}: {error}{}", hint_line(.hint))]
    Unreachable {
        /// The peer's address.
        peer: SocketAddr,
        /// The step that failed: "resolving the route".
        stage: &'static str,
        /// The cause; its kind is [`TimedOut`](io::ErrorKind::TimedOut) if the peer did not reply.
        error: io::Error,
        /// An action to try.
        hint: Cow<'static, str>,
    },
    /// The peer's connection manager or program rejected the connect request.
    #[error("{peer} rejected the connect request: {reason}{}", hint_line(.hint))]
    CmRejected {
        /// The peer's address.
        peer: SocketAddr,
        /// The connection manager's reason.
        reason: RejectReason,
        /// The private data from the peer's program, possibly padded with zeros. The data is empty unless the program
        /// rejected the request.
        private_data: Vec<u8>,
        /// An action to try.
        hint: Cow<'static, str>,
    },
    /// The connection is closed or lost.
    #[error("the connection to {peer} has ended: {reason}{}", hint_line(.hint))]
    Disconnected {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause.
        reason: String,
        /// An action to try, or an empty string.
        hint: Cow<'static, str>,
    },
    /// The handshake of a connection failed: one side rejected the other, or the peer does not use Adverb's protocol.
    #[error("the handshake with {peer} failed: {reason}")]
    HandshakeRejected {
        /// The peer's address.
        peer: SocketAddr,
        /// The cause, as reported by the peer or detected by this side.
        reason: String,
    },
    /// Memory could not be allocated.
    #[error("allocating {len} bytes failed: {error}")]
    Allocation {
        /// The length of the allocation, in bytes.
        len: usize,
        /// The operating system's error.
        error: io::Error,
    },
}

impl Error {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<&str> {
        let hint: &str = match self {
            Error::NoDevice { hint, .. } => hint,
            Error::NotInstalled { hint, .. }
            | Error::Unsupported { hint, .. }
            | Error::Verb { hint, .. }
            | Error::LimitExceeded { hint, .. }
            | Error::Unreachable { hint, .. }
            | Error::CmRejected { hint, .. }
            | Error::Disconnected { hint, .. } => hint,
            Error::MessageTooLong { hint, .. } | Error::WrongState { hint, .. } => hint,
            Error::ForeignDomain { .. } => FOREIGN_DOMAIN_HINT,
            Error::RequestFailed { failure } => failure.status.hint().unwrap_or_default(),
            Error::QueueFull { .. } => QUEUE_FULL_HINT,
            Error::WouldBlock { .. } => WOULD_BLOCK_HINT,
            Error::OutOfBounds { .. }
            | Error::Unaligned { .. }
            | Error::InvalidRequest { .. }
            | Error::Timeout { .. }
            | Error::HandshakeRejected { .. }
            | Error::Allocation { .. } => "",
        };
        (!hint.is_empty()).then_some(hint)
    }
}

/// Keeps the message and the hint. The variant determines the kind.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Disconnected { .. } => io::ErrorKind::ConnectionReset,
            Error::HandshakeRejected { .. } | Error::CmRejected { .. } => io::ErrorKind::ConnectionRefused,
            Error::Unreachable { error, .. }
            | Error::Verb { error, .. }
            | Error::Allocation { error, .. } => error.kind(),
            Error::Timeout { .. } => io::ErrorKind::TimedOut,
            Error::WouldBlock { .. } => io::ErrorKind::WouldBlock,
            Error::Unsupported { .. } => io::ErrorKind::Unsupported,
            Error::NotInstalled { .. } | Error::NoDevice { .. } => io::ErrorKind::NotFound,
            Error::OutOfBounds { .. }
            | Error::Unaligned { .. }
            | Error::LimitExceeded { .. }
            | Error::MessageTooLong { .. }
            | Error::ForeignDomain { .. }
            | Error::InvalidRequest { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// The hint of [`Error::ForeignDomain`].
const FOREIGN_DOMAIN_HINT: &str = "register the memory in the queue's protection domain, or post the request to a queue of the memory's; \
     `ProtectionDomain::id` returns the number of each";

/// The hint of [`Error::QueueFull`].
const QUEUE_FULL_HINT: &str = "poll the completion queue, or create the queue pair with a larger depth";

/// The hint of [`Error::WouldBlock`].
const WOULD_BLOCK_HINT: &str = "try again after the peer has received messages, or use the method that waits";

/// Returns the hint for an error number in a group of calls, or an empty string.
pub(crate) fn errno_hint(number: Option<i32>, call: Call) -> &'static str {
    number.and_then(|number| explain::errno_hint(number, call)).unwrap_or_default()
}

/// Returns the hint on a line of its own, or nothing for an empty hint.
fn hint_line(hint: &impl AsRef<str>) -> String {
    match hint.as_ref() {
        "" => String::new(),
        hint => format!("\n  hint: {hint}"),
    }
}

/// Returns the violated limit: the maximum, or the minimum, which is 1 for every quantity.
fn limit(requested: u64, max: u64) -> String {
    if requested > max { format!("maximum is {max}") } else { "minimum is 1".to_owned() }
}

/// Returns the vendor's error code in parentheses, or nothing for code 0.
fn vendor_error(failure: &Failure) -> String {
    match failure.vendor_error {
        0 => String::new(),
        code => format!(" (vendor error {code:#x})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_prints_the_hint_and_debug_the_fields() {
        let error =
            || Error::NoDevice { reason: "no RDMA device is named mlx5_0".into(), hint: "try soft".into() };
        let message = "no RDMA device is named mlx5_0\n  hint: try soft";
        assert_eq!(error().to_string(), message);
        let fields = r#"NoDevice { reason: "no RDMA device is named mlx5_0", hint: "try soft" }"#;
        assert_eq!(format!("{:?}", error()), fields);
    }

    #[test]
    fn a_full_queue_has_a_hint() {
        let error = Error::QueueFull { queue: "send", depth: 16 };
        let hint = error.hint().expect("a hint");
        assert!(error.to_string().ends_with(&format!("\n  hint: {hint}")), "{error}");
    }

    #[test]
    fn cause_appears_once() {
        use crate::raw::RawPostError;
        use crate::request::PostError;
        let error = || Error::Unreachable {
            peer: ([192, 0, 2, 1], 7471).into(),
            stage: "sending the connect request",
            error: io::ErrorKind::TimedOut.into(),
            hint: "".into(),
        };
        let all: [Box<dyn std::error::Error>; 3] = [
            error().into(),
            PostError::<()> { error: error(), requests: Vec::new() }.into(),
            RawPostError { error: error(), posted_count: None }.into(),
        ];
        for error in all {
            let causes = std::iter::successors(Some(&*error), |error| error.source());
            let messages: Vec<String> = causes.map(ToString::to_string).collect();
            assert_eq!(
                messages,
                ["connecting to 192.0.2.1:7471 failed while sending the connect request: timed out"]
            );
        }
    }

    #[test]
    fn vendor_error_appears_in_the_message() {
        use adverb_proto::types::Status;
        let message = |vendor_error| {
            let failure = Failure { status: Status::LocalProtection, vendor_error };
            Error::RequestFailed { failure }.to_string()
        };
        assert!(message(0x51).contains("(vendor error 0x51)"), "{}", message(0x51));
        assert!(!message(0).contains("vendor"), "{}", message(0));
    }
}
