//! Tests of the messages, causes, hints and kinds of errors.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use adverb_proto::explain::Call;
use adverb_proto::types::{Failure, QpState, RejectReason, Status};

use super::{ConnectStage, Error, Limit, NoDeviceReason, WithCauses, call_failed};
use crate::queue_pair::raw::RawPostError;
use crate::request::PostError;

fn peer() -> SocketAddr {
    ([192, 0, 2, 1], 7471).into()
}

fn failed(call: Call, number: i32) -> Error {
    call_failed(call, "working", io::Error::from_raw_os_error(number))
}

fn hint(error: &Error) -> String {
    error.hint().unwrap_or_else(|| panic!("no hint: {error}")).into_owned()
}

#[test]
fn a_message_has_one_line_without_cause_and_hint() {
    let error = failed(Call::RegisterMemory, libc::EINVAL);
    assert_eq!(error.to_string(), "working failed");
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), io::Error::from_raw_os_error(libc::EINVAL).to_string());
    assert_eq!(WithCauses(&error).to_string(), format!("working failed: {source}"));
}

#[test]
fn a_wrapping_error_prints_each_text_once() {
    let error = || Error::Unreachable {
        peer: peer(),
        stage: ConnectStage::Request,
        source: io::ErrorKind::TimedOut.into(),
    };
    let all: [Box<dyn std::error::Error>; 4] = [
        error().into(),
        PostError::<()> { error: error(), requests: Vec::new() }.into(),
        RawPostError { error: error(), posted_count: None }.into(),
        io::Error::from(error()).into(),
    ];
    for error in all {
        let causes = std::iter::successors(Some(&*error), |error| error.source());
        let messages: Vec<String> = causes.map(ToString::to_string).collect();
        let expected = ["connecting to 192.0.2.1:7471 failed while sending the connect request", "timed out"];
        assert_eq!(messages, expected);
    }
}

#[test]
fn calls_fail_with_variants_for_permissions_limits_and_failed_devices() {
    for number in [libc::EACCES, libc::EPERM] {
        let error = failed(Call::OpenDevice, number);
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
        assert!(hint(&error).contains("uverbs"), "{}", hint(&error));
        assert!(hint(&failed(Call::CmChannel, number)).contains("rdma_cm"));
    }
    for number in [libc::EMFILE, libc::ENFILE] {
        for call in [Call::OpenDevice, Call::CmChannel, Call::Create, Call::System, Call::OpenSoftDevice] {
            let error = failed(call, number);
            assert!(matches!(error, Error::DescriptorLimit { .. }), "{error:?}");
            assert!(hint(&error).contains("ulimit -n") || hint(&error).contains("fs.file-max"), "{call:?}");
        }
    }
    for call in
        [Call::Create, Call::Destroy, Call::Query, Call::RegisterMemory, Call::ModifyQueuePair, Call::Poll]
    {
        for number in [libc::EIO, libc::ENODEV] {
            let error = failed(call, number);
            assert!(matches!(error, Error::DeviceFailed { .. }), "{error:?}");
            assert!(hint(&error).contains("kernel's log"), "{}", hint(&error));
            assert!(!error.is_retryable());
        }
    }
    // These calls return the number if no device has the address.
    for call in [Call::CmAddress, Call::CmConnect, Call::OpenDevice] {
        assert!(matches!(failed(call, libc::ENODEV), Error::CallFailed { .. }), "{call:?}");
    }
    assert!(hint(&failed(Call::CmAddress, libc::EADDRINUSE)).contains("another port"));
}

#[test]
fn a_memlock_limit_has_a_hint_about_the_limit() {
    let source = io::Error::from_raw_os_error(libc::ENOMEM);
    let error = Error::MemlockLimit { action: "registering 8192 bytes".into(), limit: 4096, source };
    assert_eq!(error.to_string(), "registering 8192 bytes failed: the limit of locked memory is 4096 bytes");
    assert!(hint(&error).contains("ulimit -l"));
    assert!(hint(&failed(Call::Create, libc::ENOMEM)).contains("smaller queues"));
}

#[test]
fn a_missing_device_has_the_existing_ones_as_hint() {
    let error = |reason, available: &[&str]| Error::NoDevice {
        problem: "no RDMA device is named mlx5_0".into(),
        reason,
        available: available.iter().map(|name| (*name).to_owned()).collect(),
    };
    let other = error(NoDeviceReason::NotFound, &["rxe0", "soft"]);
    assert_eq!(other.to_string(), "no RDMA device is named mlx5_0");
    assert_eq!(hint(&other), "use one of these: rxe0, soft");
    assert!(hint(&error(NoDeviceReason::NoneExists, &[])).contains("ib_uverbs"));
}

#[test]
fn a_wrong_state_has_a_hint_that_fits_the_state() {
    let hint_in = |state| hint(&Error::WrongState { action: "posting a send request", state });
    assert!(hint_in(QpState::Error).contains("earlier completions"));
    assert!(hint_in(QpState::Init).contains("connect the queue pair first"));
    assert!(hint_in(QpState::Init).contains("move_to_rts"));
    assert!(hint_in(QpState::ReadyToSend).contains("reset"));
}

#[test]
fn a_failed_request_names_the_peer_and_the_vendor_error() {
    let error = |vendor_error, peer| {
        let failure = Failure { status: Status::RetryExceeded, vendor_error };
        Error::RequestFailed { failure, is_receive: false, peer }
    };
    let known = error(0x51, Some(peer().ip()));
    assert!(known.to_string().starts_with("a request to 192.0.2.1 failed: "), "{known}");
    assert!(known.to_string().ends_with(" (vendor error 0x51)"), "{known}");
    assert_eq!(hint(&known), Status::RetryExceeded.hint().unwrap());
    let unknown = error(0, None).to_string();
    assert!(unknown.starts_with("a request failed: ") && !unknown.contains("vendor"), "{unknown}");
    let failure = Failure { status: Status::Flushed, vendor_error: 0 };
    let flushed = Error::RequestFailed { failure, is_receive: true, peer: Some(peer().ip()) };
    assert!(flushed.to_string().starts_with("a receive from 192.0.2.1 failed: "), "{flushed}");
}

#[test]
fn hints_have_the_maximum_and_fit_the_queue() {
    let error = Error::LimitExceeded { limit: Limit::SendQueueDepth, requested: 0, max: 16384 };
    assert_eq!(hint(&error), "use a value from 1 to 16384");
    assert!(hint(&Error::QueueFull { queue: "send", depth: 16 }).starts_with("poll"));
    assert!(hint(&Error::QueueFull { queue: "receive", depth: 16 }).contains("no more receives"));
}

#[test]
fn timeouts_and_temporary_lacks_are_retryable() {
    let timeout = Error::TimedOut { timeout: Duration::from_secs(1), action: "waiting".into() };
    assert!(timeout.is_timeout() && timeout.is_retryable());
    let unanswered = Error::Unreachable {
        peer: peer(),
        stage: ConnectStage::Request,
        source: io::ErrorKind::TimedOut.into(),
    };
    assert!(unanswered.is_timeout() && unanswered.is_retryable());
    let rejected =
        |reason| Error::CmRejected { peer: peer(), reason, private_data: Box::default() }.is_retryable();
    assert!(rejected(RejectReason::InvalidServiceId) && !rejected(RejectReason::ConsumerReject));
    let full = Error::QueueFull { queue: "send", depth: 16 };
    assert!(full.is_retryable() && !full.is_timeout() && full.hint().is_some());
    assert!(failed(Call::System, libc::EAGAIN).is_retryable());
    assert!(!failed(Call::Create, libc::EINVAL).is_retryable());
    assert!(!failed(Call::OpenDevice, libc::EACCES).is_retryable());
}

#[test]
fn an_io_error_has_the_kind_of_the_error() {
    let kind = |error: Error| io::Error::from(error).kind();
    assert_eq!(kind(failed(Call::CmAddress, libc::EADDRINUSE)), io::ErrorKind::AddrInUse);
    assert_eq!(kind(failed(Call::OpenDevice, libc::EACCES)), io::ErrorKind::PermissionDenied);
    assert_eq!(kind(Error::QueueFull { queue: "send", depth: 1 }), io::ErrorKind::WouldBlock);
    let inner = io::Error::from(Error::Unaligned { offset: 1 });
    assert!(inner.get_ref().is_some_and(|inner| inner.is::<Error>()));
}
