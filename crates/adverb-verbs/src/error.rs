//! What can go wrong, and what to try.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use adverb_proto::types::{Failure, QpState, RejectReason};

/// The result of what can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong: the verb, the object, the reason in words, and where there is one a hint.
///
/// `Display` is for people: it prints the failed operation, the cause, and the [hint](Error::hint) on a line of its own.
/// `Debug` prints the variant and its fields. A `main` that returns a `Result` prints `Debug`; to show people the message
/// and the hint instead:
///
/// ```no_run
/// # fn run() -> adverb::Result<()> { Ok(()) }
/// fn main() {
///     run().unwrap_or_else(|error| { eprintln!("error: {error}"); std::process::exit(1) })
/// }
/// ```
///
/// The message includes the cause, so [`source`](std::error::Error::source) returns `None`: programs that print the chain
/// of sources print the cause once.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no RDMA library on this machine.
    #[error("{reason}")]
    NotInstalled {
        /// What is missing, and how to get it.
        reason: String,
    },
    /// There is no such device.
    #[error("{what}{}", hint_line(.hint))]
    NoDevice {
        /// Which wasn't found.
        what: String,
        /// What there is instead, or why there is none.
        hint: String,
    },
    /// The device, or Adverb, can't do this.
    #[error("{what} isn't supported{}", hint_line(.hint))]
    Unsupported {
        /// What was asked.
        what: Cow<'static, str>,
        /// What to do instead.
        hint: Cow<'static, str>,
    },
    /// A verb failed.
    #[error("{action} failed: {error}{}", hint_line(.hint))]
    Verb {
        /// What was tried, on what: "creating a queue pair on rxe0".
        action: String,
        /// The operating system's answer.
        error: io::Error,
        /// What to try.
        hint: Cow<'static, str>,
    },
    /// A limit was passed.
    #[error("{what} is {asked}, and the most is {most}{}", hint_line(.hint))]
    Limit {
        /// Of what.
        what: Cow<'static, str>,
        /// What was asked.
        asked: u64,
        /// What there is.
        most: u64,
        /// What to try.
        hint: Cow<'static, str>,
    },
    /// A range of memory doesn't lie where it should.
    #[error("{len} bytes at offset {offset} don't lie within {room}")]
    OutOfBounds {
        /// Where it begins.
        offset: usize,
        /// How long it is.
        len: usize,
        /// How much there is.
        room: usize,
    },
    /// A word isn't aligned to its size.
    #[error("offset {offset} isn't a multiple of 8")]
    Unaligned {
        /// Where it is.
        offset: usize,
    },
    /// A message is longer than it may be.
    #[error("{len} bytes are more than the {most} that fit")]
    TooLong {
        /// How long it is.
        len: u64,
        /// How long it may be.
        most: u64,
    },
    /// The queue has no room for the requests.
    #[error("the {queue} queue is full: {depth} requests are outstanding{}", hint_line(&QUEUE_FULL_HINT))]
    QueueFull {
        /// Which: send or receive.
        queue: &'static str,
        /// How many fit.
        depth: u32,
    },
    /// The queue pair's state doesn't allow this.
    #[error("{action} isn't possible in state “{state}”{}", hint_line(.hint))]
    WrongState {
        /// What was tried.
        action: &'static str,
        /// The state.
        state: QpState,
        /// What to do first.
        hint: &'static str,
    },
    /// A request doesn't fit the queue pair or its buffers.
    #[error("{reason}")]
    InvalidRequest {
        /// Why.
        reason: Cow<'static, str>,
    },
    /// A request's memory, or its memory window, belongs to another protection domain than the queue.
    #[error("posting to {queue} failed: the queue is in {queue_domain}, but the {what} is in {domain}{}", hint_line(&FOREIGN_DOMAIN_HINT))]
    ForeignDomain {
        /// The object: "memory" or "memory window".
        what: &'static str,
        /// The object's protection domain, with its number and its device.
        domain: String,
        /// The queue: "queue pair 17".
        queue: String,
        /// The queue's protection domain, with its number and its device.
        queue_domain: String,
    },
    /// A request failed.
    #[error("{}{}{}", .failure.status, vendor_error(.failure), hint_line(&.failure.status.hint().unwrap_or_default()))]
    Failed {
        /// How.
        failure: Failure,
    },
    /// Nothing came in time.
    #[error("nothing came within {timeout:?} while {waiting}")]
    Timeout {
        /// How long was waited.
        timeout: std::time::Duration,
        /// For what.
        waiting: &'static str,
    },
    /// It would have to be waited for.
    #[error("there is no room {what} now")]
    WouldBlock {
        /// For what.
        what: &'static str,
    },
    /// A peer couldn't be reached: in time, or at all.
    #[error("{peer} couldn't be reached while {stage}: {error}{}", hint_line(.hint))]
    Unreachable {
        /// The peer.
        peer: SocketAddr,
        /// How far it came: "asking for a connection".
        stage: &'static str,
        /// Why not; its kind is [`TimedOut`](io::ErrorKind::TimedOut) if there was no answer.
        error: io::Error,
        /// What to try.
        hint: Cow<'static, str>,
    },
    /// A peer doesn't want to be connected.
    #[error("{peer} rejected the connection: {reason}{}", hint_line(.hint))]
    Rejected {
        /// The peer.
        peer: SocketAddr,
        /// Why.
        reason: RejectReason,
        /// What the peer's program sent along, if it was the program that rejected; zeros may follow.
        private_data: Vec<u8>,
        /// What to try.
        hint: Cow<'static, str>,
    },
    /// A connection has ended, and not because both sides wanted it to.
    #[error("the connection to {peer} has ended: {reason}{}", hint_line(.hint))]
    Disconnected {
        /// The peer.
        peer: SocketAddr,
        /// Why.
        reason: String,
        /// What to try.
        hint: Cow<'static, str>,
    },
    /// One side refused to be connected with the other, or that isn't a program that can be.
    #[error("the connection with {peer} was refused: {reason}")]
    Refused {
        /// The peer.
        peer: SocketAddr,
        /// Why: in the peer's words, or because of what it said.
        reason: String,
    },
    /// Memory couldn't be had.
    #[error("allocating {len} bytes failed: {error}")]
    Allocation {
        /// How many bytes.
        len: usize,
        /// Why.
        error: io::Error,
    },
}

impl Error {
    /// What to try, where there is something.
    pub fn hint(&self) -> Option<&str> {
        let hint: &str = match self {
            Error::NoDevice { hint, .. } => hint,
            Error::Unsupported { hint, .. } | Error::Verb { hint, .. } | Error::Limit { hint, .. } => hint,
            Error::Unreachable { hint, .. }
            | Error::Rejected { hint, .. }
            | Error::Disconnected { hint, .. } => hint,
            Error::WrongState { hint, .. } => hint,
            Error::ForeignDomain { .. } => FOREIGN_DOMAIN_HINT,
            Error::Failed { failure } => failure.status.hint().unwrap_or_default(),
            Error::QueueFull { .. } => QUEUE_FULL_HINT,
            _ => "",
        };
        (!hint.is_empty()).then_some(hint)
    }
}

/// For those who read and write streams.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Disconnected { .. } => io::ErrorKind::ConnectionReset,
            Error::Refused { .. } | Error::Rejected { .. } => io::ErrorKind::ConnectionRefused,
            Error::Unreachable { error, .. }
            | Error::Verb { error, .. }
            | Error::Allocation { error, .. } => error.kind(),
            Error::Timeout { .. } => io::ErrorKind::TimedOut,
            Error::WouldBlock { .. } => io::ErrorKind::WouldBlock,
            Error::Unsupported { .. } => io::ErrorKind::Unsupported,
            Error::NotInstalled { .. } | Error::NoDevice { .. } => io::ErrorKind::NotFound,
            Error::OutOfBounds { .. }
            | Error::Unaligned { .. }
            | Error::TooLong { .. }
            | Error::ForeignDomain { .. }
            | Error::InvalidRequest { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// The hint of [`Error::ForeignDomain`].
const FOREIGN_DOMAIN_HINT: &str = "register the memory in the queue's protection domain, or post the request to a queue of the memory's; \
     `ProtectionDomain::id` is the number of each";

/// The hint of [`Error::QueueFull`].
const QUEUE_FULL_HINT: &str = "poll the completion queue, or create the queue pair with a larger depth";

/// The hint on a line of its own, if there is one.
fn hint_line(hint: &impl AsRef<str>) -> String {
    match hint.as_ref() {
        "" => String::new(),
        hint => format!("\n  hint: {hint}"),
    }
}

/// What the device's maker calls it, if there is a name.
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
        let error = || Error::NoDevice { what: "there is no device mlx5_0".into(), hint: "try soft".into() };
        let message = "there is no device mlx5_0\n  hint: try soft";
        assert_eq!(error().to_string(), message);
        let fields = r#"NoDevice { what: "there is no device mlx5_0", hint: "try soft" }"#;
        assert_eq!(format!("{:?}", error()), fields);
    }

    #[test]
    fn a_full_queue_has_a_hint() {
        let error = Error::QueueFull { queue: "send", depth: 16 };
        let hint = error.hint().expect("a hint");
        assert!(error.to_string().ends_with(&format!("\n  hint: {hint}")), "{error}");
    }

    #[test]
    fn what_caused_an_error_is_said_once() {
        use crate::{PostError, raw::RawPostError};
        let error = || Error::Unreachable {
            peer: ([192, 0, 2, 1], 7471).into(),
            stage: "asking for a connection",
            error: io::ErrorKind::TimedOut.into(),
            hint: "".into(),
        };
        let all: [Box<dyn std::error::Error>; 3] = [
            error().into(),
            PostError::<()> { error: error(), requests: Vec::new() }.into(),
            RawPostError { error: error(), posted: None }.into(),
        ];
        for error in all {
            let causes = std::iter::successors(Some(&*error), |error| error.source());
            let said: Vec<String> = causes.map(ToString::to_string).collect();
            assert_eq!(said, ["192.0.2.1:7471 couldn't be reached while asking for a connection: timed out"]);
        }
    }

    #[test]
    fn what_a_maker_calls_a_failure_is_said() {
        use adverb_proto::types::Status;
        let failed = |vendor_error| {
            let failure = Failure { status: Status::LocalProtection, vendor_error };
            Error::Failed { failure }.to_string()
        };
        assert!(failed(0x51).contains("(vendor error 0x51)"), "{}", failed(0x51));
        assert!(!failed(0).contains("vendor"), "{}", failed(0));
    }
}
