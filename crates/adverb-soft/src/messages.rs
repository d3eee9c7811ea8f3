//! The list of this crate's error messages, `messages.txt`. The messages that it wraps are in the list of adverb-proto.

use std::io;

use adverb_proto::cm::CallError;
use adverb_proto::memory::{DeregisterError, DomainError, RegisterError, WindowError};
use adverb_proto::trace::InvalidCapacity;
use adverb_proto::{CreateQpError, ModifyError, MulticastError, PostError, SrqError};
use messages::samples;

use crate::{BatchPostError, Error};

#[test]
fn error_messages_are_as_listed() {
    let lists = [
        samples!(Error {
            Error::NicFailed => Error::NicFailed,
            Error::InvalidCompletionQueue => Error::InvalidCompletionQueue,
            Error::JoinFailed(_) => Error::JoinFailed(io::ErrorKind::NetworkDown),
            Error::AlreadyRecording => Error::AlreadyRecording,
            Error::InvalidRecorderCapacity(_) => Error::InvalidRecorderCapacity(InvalidCapacity { capacity: 0 }),
            Error::TimestampsFailed(_) => Error::TimestampsFailed(io::ErrorKind::Unsupported),
            Error::Domain(_) => Error::Domain(DomainError::Unknown),
            Error::Register(_) => Error::Register(RegisterError::InvalidAccess),
            Error::Deregister(_) => Error::Deregister(DeregisterError::UnknownKey),
            Error::Window(_) => Error::Window(WindowError::TooMany),
            Error::CreateQp(_) => Error::CreateQp(CreateQpError::TooMany),
            Error::Modify(_) => Error::Modify(ModifyError::UnknownQp),
            Error::Post(_) => Error::Post(PostError::QueueFull),
            Error::Srq(_) => Error::Srq(SrqError::UnknownSrq),
            Error::Multicast(_) => Error::Multicast(MulticastError::NotAttached),
            Error::Cm(_) => Error::Cm(CallError::Unknown),
        }),
        samples!(BatchPostError {
            BatchPostError { .. } => BatchPostError { posted_count: 3, error: Error::Post(PostError::QueueFull) },
        }),
    ];
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &lists);
}
