//! Hints: actions that may solve the problem of an error.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use adverb_proto::explain::{self, Call};
use adverb_proto::types::QpState;

use super::{ConnectStage, Error, NoDeviceReason, error_number};

/// Returns the hint of an error.
pub(super) fn hint(error: &Error) -> Option<Cow<'_, str>> {
    if let Error::NoDevice { available, .. } = error
        && !available.is_empty()
    {
        return Some(format!("use one of these: {}", available.join(", ")).into());
    }
    if let Error::LimitExceeded { limit, max, .. } = error
        && limit.is_from_one()
    {
        return Some(format!("use a value from 1 to {max}").into());
    }
    fixed(error).map(Cow::Borrowed)
}

fn fixed(error: &Error) -> Option<&'static str> {
    match error {
        Error::NotInstalled { source } => Some(not_installed(&**source)),
        Error::NoDevice { reason, .. } => Some(reason.hint()),
        Error::Unsupported { feature, .. } => Some(feature.hint()),
        Error::MemlockLimit { .. } => explain::errno_hint(libc::ENOMEM, Call::RegisterMemory),
        Error::DeviceFailed { .. } => Some(
            "check the kernel's log: the device has failed or was removed; if it is a software device, check the program's \
             earlier output: its progress thread panicked, or its link failed; then close the device, and open it again",
        ),
        Error::PermissionDenied { call, source, .. }
        | Error::DescriptorLimit { call, source, .. }
        | Error::CallFailed { call, source, .. } => of_call(*call, source),
        Error::LimitExceeded { limit, .. } => limit.hint(),
        Error::MessageTooLong { limit, .. } => Some(limit.hint()),
        Error::QueueFull { queue: "receive" | "shared receive", .. } => Some(
            "poll the completion queue: an entry is free again when the completion of its message was polled, so a full \
             queue without messages needs no more receives; or create the queue with a larger depth",
        ),
        Error::QueueFull { .. } => {
            Some("poll the completion queue, or create the queue pair with a larger depth")
        }
        Error::WrongState { state, .. } => Some(wrong_state(*state)),
        Error::ForeignDomain { .. } => Some(
            "register the memory in the queue's protection domain, or post the request to a queue of the memory's; \
             `ProtectionDomain::id` returns the number of each",
        ),
        Error::RequestFailed { failure, .. } => failure.status.hint(),
        Error::Unreachable { peer, stage, source } => Some(unreachable(*peer, *stage, source)),
        Error::CmRejected { reason, .. } => explain::reject_reason(*reason)?.hint,
        Error::OutOfBounds { .. }
        | Error::Unaligned { .. }
        | Error::InvalidRequest { .. }
        | Error::TimedOut { .. }
        | Error::Allocation { .. } => None,
    }
}

/// Returns the hint of a library that can't be loaded.
fn not_installed(source: &(dyn std::error::Error + 'static)) -> &'static str {
    #[cfg(feature = "ibv")]
    if let Some(error) = source.downcast_ref::<adverb_sys::LoadError>() {
        return error.hint();
    }
    #[cfg(not(feature = "ibv"))]
    let _ = source;
    "enable adverb's feature `ibv`, or `soft` for software devices"
}

/// Returns the hint of a failed call.
fn of_call(call: Call, source: &io::Error) -> Option<&'static str> {
    match (call, source.kind()) {
        (Call::CmAddress, io::ErrorKind::NotFound) => return Some(NO_HARDWARE),
        // The software device's own texts say more.
        (Call::OpenSoftDevice, io::ErrorKind::AddrInUse) if source.raw_os_error().is_none() => return None,
        _ => {}
    }
    let number = error_number(source)?;
    explain::errno_hint(number, call).or_else(|| {
        // The general hints are about rdma-core's devices, except those of the limits.
        let is_general = matches!(number, libc::EMFILE | libc::ENFILE)
            || (source.raw_os_error().is_some() && !matches!(call, Call::OpenSoftDevice | Call::System));
        explain::errno(number).filter(|_| is_general)?.hint
    })
}

/// Returns the hint of an operation that a queue pair in this state doesn't allow.
fn wrong_state(state: QpState) -> &'static str {
    match state {
        QpState::Error => {
            "check earlier completions: the first failed one has the cause; then `reset` the queue pair, or create a new one"
        }
        QpState::Reset | QpState::Init => {
            "connect the queue pair first; if it is a UD queue pair, call `move_to_rts` first"
        }
        _ => "call `reset` before connecting the queue pair again",
    }
}

/// Returns the hint of a peer that couldn't be reached.
fn unreachable(peer: SocketAddr, stage: ConnectStage, source: &io::Error) -> &'static str {
    if peer.ip().is_loopback() && cfg!(not(feature = "soft")) {
        return "use an address of an RDMA device, even for a peer on the same machine: none has the loopback address";
    }
    if let Some(hint) = error_number(source).and_then(|number| explain::errno_hint(number, Call::CmConnect)) {
        return hint;
    }
    match stage {
        _ if source.kind() == io::ErrorKind::NotFound => NO_HARDWARE,
        ConnectStage::Address => {
            "check that the host is up and the address is right: address resolution got no answer"
        }
        ConnectStage::Route => "check that the subnet manager is up",
        ConnectStage::Acceptance => "use a longer timeout at the peer: it may have canceled the connection",
        ConnectStage::Request | ConnectStage::Service => {
            "check that an RDMA device of the host has that address, that its program accepts requests, and that the \
             network passes RoCEv2 (UDP port 4791)"
        }
    }
}

impl NoDeviceReason {
    fn hint(self) -> &'static str {
        match self {
            NoDeviceReason::NoneExists => {
                "load the device's driver and the kernel module ib_uverbs; without RDMA hardware, use soft-RoCE \
                 (`rdma link add rxe0 type rxe netdev eth0`) or the software device `soft`"
            }
            NoDeviceReason::NotFound => "check the output of `ibv_devices`: it lists the devices",
            NoDeviceReason::PortsDown => "set a port's network interface up: all ports are down",
            NoDeviceReason::NoAddress => {
                "assign an IP address to the port's network interface, and set the interface up"
            }
            NoDeviceReason::NoGid => "call `local_addr` instead, which selects the GID",
            NoDeviceReason::InvalidName => {
                "use `soft:` and an address of this machine, such as `soft:192.0.2.7` or `soft:2001:db8::7`; or `soft`, \
                 which only programs on this machine reach"
            }
        }
    }
}

/// The hint of a missing RDMA device.
const NO_HARDWARE: &str = "no RDMA device has a route to that address: open a software device with \
                           `Device::open(\"soft:ADDRESS\")`, where ADDRESS is an IP address of this machine";
