//! Why an adapter doesn't do what it is asked for.

use std::fmt;
use std::io;

use adverb_proto::cm::CallError;
use adverb_proto::memory::{DeregisterError, DomainError, RegisterError, WindowError};
use adverb_proto::{CreateQpError, ModifyError, MulticastError, PostError, SrqError};

/// Declares what the engine may answer.
macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident($inner:ty);)*) => {
        /// Why an adapter doesn't do what it is asked for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum Error {
            /// The adapter has failed: all that was posted has come back, and nothing goes any more.
            NicFailed,
            /// There is no such completion queue, or it is in use, or it can't be made so small.
            CompletionQueue,
            /// The network or the system doesn't let the link join a multicast group.
            Join(io::ErrorKind),
            $($(#[$doc])* $variant($inner),)*
        }

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Error::NicFailed => f.write_str("the adapter has failed: open it again"),
                    Error::CompletionQueue => {
                        f.write_str("no such completion queue, or it is in use, or more is in it than would fit")
                    }
                    Error::Join(kind) => write!(f, "the group can't be joined: {kind}"),
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
    /// Of a protection domain.
    Domain(DomainError);
    /// Memory can't be registered.
    Register(RegisterError);
    /// A key can't be deregistered.
    Deregister(DeregisterError);
    /// Of a memory window.
    Window(WindowError);
    /// A queue pair can't be made.
    CreateQp(CreateQpError);
    /// A queue pair can't change its state.
    Modify(ModifyError);
    /// A request can't be posted.
    Post(PostError);
    /// Of a shared receive queue.
    Srq(SrqError);
    /// Of a multicast group.
    Multicast(MulticastError);
    /// The connection manager refuses a call.
    Cm(CallError);
}

impl std::error::Error for Error {}

/// Posting stopped at a request that can't be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchPostError {
    /// How many requests before it were posted.
    pub posted_count: usize,
    /// What is wrong with it.
    pub error: Error,
}

impl fmt::Display for BatchPostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} can't be posted: {}", self.posted_count, self.error)
    }
}

impl std::error::Error for BatchPostError {}
