//! The error of probers, responders, queues and traces.

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use adverb_verbs::{DeviceEvent, Failure};

pub(crate) type Result<T, E = ProbeError> = std::result::Result<T, E>;

/// An error of a [`Prober`](crate::Prober), a [`Responder`](crate::Responder), a [`UdQueue`](crate::ud_queue::UdQueue) or a
/// trace. A probe that is lost is no error, but a [result](crate::session::ProbeResult).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// An option is outside its range.
    #[error("`{option}` is {requested}, but must be from {min} to {max}")]
    InvalidOption {
        /// The option.
        option: &'static str,
        /// The requested value.
        requested: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// The maximum delay before a device is opened again is below the minimum.
    #[error(
        "the delays before a device is opened again are invalid: the minimum is {min:?}, and the maximum {max:?}"
    )]
    ReopenDelays {
        /// The minimum.
        min: Duration,
        /// The maximum.
        max: Duration,
    },
    /// The confidence of a trace is outside its range.
    #[error("`TraceOptions::confidence` is {requested}, but must be from 0.0001 to 0.999999")]
    InvalidConfidence {
        /// The requested value.
        requested: f64,
    },
    /// Probes are longer than a packet.
    #[error("a probe of {len} bytes exceeds the MTU of {max} bytes")]
    ProbeTooLong {
        /// The length of a probe.
        len: usize,
        /// The MTU.
        max: usize,
    },
    /// A payload is longer than a packet.
    #[error("a datagram of {len} bytes exceeds the maximum of {max} bytes")]
    PayloadTooLong {
        /// The length of the payload.
        len: usize,
        /// The maximum.
        max: usize,
    },
    /// The private data of an answer to a lookup is too long.
    #[error("private data of {len} bytes exceeds the maximum of {max} bytes")]
    PrivateDataTooLong {
        /// The length of the data.
        len: usize,
        /// The maximum.
        max: usize,
    },
    /// All send slots are in flight.
    #[error("all {slots} send slots are in flight")]
    SendSlotsFull {
        /// The number of send slots.
        slots: u32,
    },
    /// The maximum number of lookups is pending.
    #[error("{max} lookups are pending")]
    TooManyLookups {
        /// The maximum.
        max: usize,
    },
    /// The queue doesn't listen for lookups.
    #[error("the queue does not listen for lookups")]
    NotListening,
    /// The device has failed, and the queue opens it again.
    #[error("{action} failed: the device has failed, and is opened again")]
    DeviceFailed {
        /// The failed operation.
        action: &'static str,
    },
    /// The device reported an event that ends the queue.
    #[error("the device {device} has failed: {event:?}")]
    FatalEvent {
        /// The name of the device.
        device: Box<str>,
        /// The event.
        event: DeviceEvent,
    },
    /// A request failed, and the queue pair with it.
    #[error("a request failed: {}", failure.status)]
    RequestFailed {
        /// The status of the request.
        failure: Failure,
    },
    /// A [waker](crate::ud_queue::Waker) stopped the operation.
    #[error("{action} was stopped")]
    Stopped {
        /// The operation.
        action: &'static str,
    },
    /// An operation didn't finish in time.
    #[error("{action} timed out after {timeout:?}")]
    TimedOut {
        /// The operation.
        action: &'static str,
        /// The time limit.
        timeout: Duration,
    },
    /// The two ends of a trace have addresses of different IP versions.
    #[error("no path leads from {local} to {destination}: they are of different IP versions")]
    AddressFamilyMismatch {
        /// The local address.
        local: IpAddr,
        /// The destination.
        destination: IpAddr,
    },
    /// A system call failed.
    #[error("{action} failed")]
    System {
        /// The failed operation and its object.
        action: Cow<'static, str>,
        /// The cause.
        source: io::Error,
    },
    /// A verb failed: the device can't be opened, or a responder was not found.
    #[error(transparent)]
    Verbs(#[from] adverb_verbs::Error),
}

impl ProbeError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            ProbeError::ProbeTooLong { .. } => "a probe is one packet: choose a length up to the MTU",
            ProbeError::PrivateDataTooLong { .. } => "send the rest in a datagram",
            ProbeError::SendSlotsFull { .. } => "poll, or open the queue with more send slots",
            ProbeError::TooManyLookups { .. } => "poll until a lookup has ended",
            ProbeError::NotListening => "call `UdQueue::listen` first",
            ProbeError::DeviceFailed { .. } => "poll until `Event::Reopened`",
            ProbeError::FatalEvent { .. } => "check the kernel's log",
            ProbeError::RequestFailed { failure } => failure.status.hint()?,
            ProbeError::System { source, .. } => system_hint(source)?,
            ProbeError::Verbs(error) => return error.hint(),
            ProbeError::InvalidOption { .. }
            | ProbeError::ReopenDelays { .. }
            | ProbeError::InvalidConfidence { .. }
            | ProbeError::PayloadTooLong { .. }
            | ProbeError::Stopped { .. }
            | ProbeError::TimedOut { .. }
            | ProbeError::AddressFamilyMismatch { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether an operation didn't finish in time, or a peer didn't answer in time.
    pub fn is_timeout(&self) -> bool {
        match self {
            ProbeError::TimedOut { .. } => true,
            ProbeError::Verbs(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Whether the same operation can succeed later, without a change of the program or the configuration: resources may
    /// become free, the device may be opened again, or a responder may start.
    pub fn is_retryable(&self) -> bool {
        match self {
            ProbeError::SendSlotsFull { .. }
            | ProbeError::TooManyLookups { .. }
            | ProbeError::DeviceFailed { .. }
            | ProbeError::TimedOut { .. } => true,
            ProbeError::Verbs(error) => error.is_retryable(),
            ProbeError::System { source, .. } => limit_hint(source).is_some(),
            _ => false,
        }
    }
}

pub(crate) fn check_range(option: &'static str, requested: u64, range: RangeInclusive<u64>) -> Result<()> {
    if range.contains(&requested) {
        return Ok(());
    }
    let (min, max) = range.into_inner();
    Err(ProbeError::InvalidOption { option, requested, min, max })
}

fn system_hint(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::Unsupported => Some("trace from a device with an IP address of this machine"),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            Some("check the routes of this machine (`ip route get ADDRESS`)")
        }
        _ => limit_hint(error),
    }
}

/// Returns the hint for a system call that failed because a limit of the process is reached.
fn limit_hint(error: &io::Error) -> Option<&'static str> {
    const EAGAIN: i32 = 11;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    match error.raw_os_error()? {
        EMFILE | ENFILE => Some("raise the limit of open files (`ulimit -n`)"),
        EAGAIN => Some("raise the limit of threads (`ulimit -u`)"),
        _ => None,
    }
}
