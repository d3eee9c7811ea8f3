//! The errors of a software NIC.

use std::fmt;
use std::io;

use adverb_proto::cm::CallError;
use adverb_proto::memory::{DeregisterError, DomainError, RegisterError, WindowError};
use adverb_proto::trace::InvalidCapacity;
use adverb_proto::{CreateQpError, ModifyError, MulticastError, PostError, SrqError};

/// Declares the errors that wrap those of the protocol engine.
macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident($inner:ty);)*) => {
        /// The error of an operation on a software NIC.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum Error {
            /// The NIC has failed: all outstanding requests were flushed, and every operation fails from now on.
            NicFailed,
            /// The completion queue does not exist, is in use, or holds more completions than the new depth.
            InvalidCompletionQueue,
            /// The link could not join the multicast group.
            JoinFailed(io::ErrorKind),
            /// A recording of the NIC's events is already in progress.
            AlreadyRecording,
            /// The link could not enable timestamps.
            TimestampsFailed(io::ErrorKind),
            $($(#[$doc])* $variant($inner),)*
        }

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Error::NicFailed => f.write_str("the software NIC has failed: open it again"),
                    Error::InvalidCompletionQueue => f.write_str(
                        "the completion queue does not exist, is in use, or holds more completions than the new depth",
                    ),
                    Error::JoinFailed(kind) => write!(f, "joining the multicast group failed: {kind}"),
                    Error::AlreadyRecording => {
                        f.write_str("a recording of this NIC is in progress: stop it before starting another")
                    }
                    Error::TimestampsFailed(kind) => write!(f, "enabling receive timestamps failed: {kind}"),
                    $(Error::$variant(error) => error.fmt(f),)*
                }
            }
        }

        $(impl From<$inner> for Error {
            fn from(error: $inner) -> Error {
                Error::$variant(error)
            }
        })*
    };
}

errors! {
    /// Using or destroying a protection domain failed.
    Domain(DomainError);
    /// Registering memory failed.
    Register(RegisterError);
    /// Deregistering memory failed.
    Deregister(DeregisterError);
    /// Creating or destroying a memory window failed.
    Window(WindowError);
    /// Creating a queue pair failed.
    CreateQp(CreateQpError);
    /// Modifying a queue pair failed.
    Modify(ModifyError);
    /// Posting a request failed.
    Post(PostError);
    /// Creating, using or destroying a shared receive queue failed.
    Srq(SrqError);
    /// Attaching to or detaching from a multicast group failed.
    Multicast(MulticastError);
    /// A call to the connection manager failed.
    Cm(CallError);
    /// The capacity of a recorder is invalid.
    InvalidRecorderCapacity(InvalidCapacity);
}

impl std::error::Error for Error {}

/// The error of posting several requests: posting stopped at a request that could not be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchPostError {
    /// The number of requests that were posted. This is also the index of the request that could not be posted.
    pub posted_count: usize,
    /// The error of the request that could not be posted.
    pub error: Error,
}

impl fmt::Display for BatchPostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "posting request {} failed: {}", self.posted_count, self.error)
    }
}

impl std::error::Error for BatchPostError {}
