//! The list of this crate's error messages and hints, `messages.txt`. The statuses of failed requests are in the list
//! of adverb-proto.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use adverb_proto::types::{Failure, QpState, RejectReason, Status};
use messages::samples;

use crate::Error;

#[test]
fn error_messages_are_as_listed() {
    let peer = SocketAddr::from(([192, 0, 2, 1], 7471));
    let limit = |requested| Error::LimitExceeded {
        quantity: "send queue depth".into(),
        requested,
        max: 16_384,
        hint: "use a value from 1 to the maximum".into(),
    };
    let list = samples!(Error {
        Error::NotInstalled { .. } => Error::NotInstalled {
            reason: "loading libibverbs.so.1 failed: no such file".into(),
            hint: "install rdma-core".into(),
        },
        Error::NoDevice { .. } => Error::NoDevice {
            reason: "no RDMA device is named mlx5_0".into(),
            hint: "use one of these: mlx5_1, soft".into(),
        },
        Error::Unsupported { .. } => Error::Unsupported {
            feature: "multicast on mlx5_0".into(),
            hint: "send a datagram to each receiver".into(),
        },
        Error::Verb { .. } => Error::Verb {
            action: "creating a UD queue pair on mlx5_0".into(),
            error: io::ErrorKind::OutOfMemory.into(),
            hint: "".into(),
        },
        Error::LimitExceeded { requested: 1.., .. } => limit(70_000),
        Error::LimitExceeded { requested: 0, .. } => limit(0),
        Error::OutOfBounds { .. } => Error::OutOfBounds { offset: 4000, len: 100, size: 4096 },
        Error::Unaligned { .. } => Error::Unaligned { offset: 12 },
        Error::MessageTooLong { .. } => Error::MessageTooLong {
            len: 5_000_000_000,
            max: 1 << 30,
            hint: "split the message: `QueuePair::max_message_size` returns the maximum",
        },
        Error::QueueFull { .. } => Error::QueueFull { queue: "send", depth: 64 },
        Error::WrongState { .. } => Error::WrongState {
            action: "posting a send request",
            state: QpState::Init,
            hint: "connect the queue pair first",
        },
        Error::InvalidRequest { .. } => Error::InvalidRequest {
            reason: "an atomic operation requires a payload of exactly 8 bytes".into(),
        },
        Error::ForeignDomain { .. } => Error::ForeignDomain {
            object: "memory",
            domain: "protection domain 2 of mlx5_0".into(),
            queue: "queue pair 17".into(),
            queue_domain: "protection domain 1 of mlx5_0".into(),
        },
        Error::RequestFailed { .. } => Error::RequestFailed {
            failure: Failure { status: Status::RetryExceeded, vendor_error: 0x81 },
        },
        Error::Timeout { .. } => {
            Error::Timeout { timeout: Duration::from_secs(5), action: "waiting for a completion" }
        },
        Error::WouldBlock { .. } => Error::WouldBlock { action: "sending a message" },
        Error::Unreachable { .. } => Error::Unreachable {
            peer,
            stage: "sending the connect request",
            error: io::ErrorKind::TimedOut.into(),
            hint: "check that the network passes RoCEv2 (UDP port 4791)".into(),
        },
        Error::CmRejected { .. } => Error::CmRejected {
            peer,
            reason: RejectReason::InvalidServiceId,
            private_data: Vec::new(),
            hint: "check the port: no program on the host listens on it".into(),
        },
        Error::Disconnected { .. } => Error::Disconnected {
            peer,
            reason: "the peer closed the connection".into(),
            hint: "".into(),
        },
        Error::HandshakeRejected { .. } => Error::HandshakeRejected {
            peer,
            reason: "the two sides have different keys (`Options::key`)".into(),
        },
        Error::Allocation { .. } => Error::Allocation { len: 4096, error: io::ErrorKind::OutOfMemory.into() },
    });
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &[list]);
}
