//! The test that compares this crate's error messages, its states, and the hints of statuses with `messages.txt`.

use adverb_wire::cm::{DataTooLong, ServiceId};
use adverb_wire::{EmitError, Qpn};
use messages::samples;

use crate::cm::{CallError, State};
use crate::memory::{DeregisterError, DomainError, Fault, RegisterError, WindowError};
use crate::types::{QpState, Status, Transport};
use crate::{Cq, CreateQpError, ModifyError, MulticastError, PostError, Srq, SrqError, WriteError};

#[test]
fn error_messages_are_as_listed() {
    let qpn = Qpn::truncate(17);
    let lists = [
        samples!(CreateQpError {
            CreateQpError::UnknownDomain => CreateQpError::UnknownDomain,
            CreateQpError::UnknownCq(_) => CreateQpError::UnknownCq(Cq(3)),
            CreateQpError::UnknownSrq(_) => CreateQpError::UnknownSrq(Srq(3)),
            CreateQpError::TooMany => CreateQpError::TooMany,
            CreateQpError::InvalidGsi => CreateQpError::InvalidGsi,
        }),
        samples!(ModifyError {
            ModifyError::UnknownQp => ModifyError::UnknownQp,
            ModifyError::WrongState(_) => ModifyError::WrongState(QpState::Reset),
            ModifyError::OutOfRange(_) => ModifyError::OutOfRange("rnr_retry"),
        }),
        samples!(PostError {
            PostError::UnknownQp => PostError::UnknownQp,
            PostError::WrongState(_) => PostError::WrongState(QpState::Init),
            PostError::QueueFull => PostError::QueueFull,
            PostError::TooManySegments => PostError::TooManySegments,
            PostError::InvalidLength => PostError::InvalidLength,
            PostError::InvalidInline => PostError::InvalidInline,
            PostError::Unsupported => PostError::Unsupported,
            PostError::InvalidDestination => PostError::InvalidDestination,
            PostError::HasSharedReceiveQueue => PostError::HasSharedReceiveQueue,
        }),
        samples!(SrqError {
            SrqError::UnknownSrq => SrqError::UnknownSrq,
            SrqError::UnknownDomain => SrqError::UnknownDomain,
            SrqError::QueueFull => SrqError::QueueFull,
            SrqError::TooManySegments => SrqError::TooManySegments,
            SrqError::InvalidLimit => SrqError::InvalidLimit,
            SrqError::InUse { .. } => SrqError::InUse { queue_pair_count: 2 },
        }),
        samples!(MulticastError {
            MulticastError::UnknownQp => MulticastError::UnknownQp,
            MulticastError::UnsupportedTransport(_) => MulticastError::UnsupportedTransport(Transport::Rc),
            MulticastError::NotMulticast => MulticastError::NotMulticast,
            MulticastError::AlreadyAttached => MulticastError::AlreadyAttached,
            MulticastError::NotAttached => MulticastError::NotAttached,
        }),
        samples!(RegisterError {
            RegisterError::InvalidRange => RegisterError::InvalidRange,
            RegisterError::InvalidAccess => RegisterError::InvalidAccess,
            RegisterError::UnknownDomain => RegisterError::UnknownDomain,
            RegisterError::TooMany => RegisterError::TooMany,
        }),
        samples!(DeregisterError {
            DeregisterError::UnknownKey => DeregisterError::UnknownKey,
            DeregisterError::WindowsBound { .. } => DeregisterError::WindowsBound { window_count: 2 },
        }),
        samples!(DomainError {
            DomainError::Unknown => DomainError::Unknown,
            DomainError::InUse { .. } => DomainError::InUse { user_count: 2 },
        }),
        samples!(WindowError {
            WindowError::UnknownDomain => WindowError::UnknownDomain,
            WindowError::UnknownWindow => WindowError::UnknownWindow,
            WindowError::TooMany => WindowError::TooMany,
        }),
        samples!(Fault { Fault => Fault, }),
        samples!(WriteError {
            WriteError::Memory(_) => WriteError::Memory(Fault),
            WriteError::Emit(_) => WriteError::Emit(EmitError::TooLong { payload_len: 70_000 }),
        }),
        samples!(CallError {
            CallError::Unknown => CallError::Unknown,
            CallError::WrongState(_) => CallError::WrongState(State::TimeWait),
            CallError::PrivateDataTooLong(_) => CallError::PrivateDataTooLong(DataTooLong { len: 57, max: 56 }),
            CallError::QpInUse(_) => CallError::QpInUse(qpn),
            CallError::ServiceInUse(_) => CallError::ServiceInUse(ServiceId::tcp_port(7471)),
            CallError::AddressFamilyMismatch => CallError::AddressFamilyMismatch,
            CallError::UnsupportedTransport(_) => CallError::UnsupportedTransport(Transport::Ud),
            CallError::TooMany => CallError::TooMany,
            CallError::OutOfRange(_) => CallError::OutOfRange("rnr_retry"),
        }),
        samples!(State {
            State::ReqSent => State::ReqSent,
            State::RepReceived => State::RepReceived,
            State::ReqReceived => State::ReqReceived,
            State::RepSent => State::RepSent,
            State::Established => State::Established,
            State::DreqSent => State::DreqSent,
            State::TimeWait => State::TimeWait,
        }),
        samples!(QpState {
            QpState::Reset => QpState::Reset,
            QpState::Init => QpState::Init,
            QpState::ReadyToReceive => QpState::ReadyToReceive,
            QpState::ReadyToSend => QpState::ReadyToSend,
            QpState::SendQueueDrained => QpState::SendQueueDrained,
            QpState::SendQueueError => QpState::SendQueueError,
            QpState::Error => QpState::Error,
        }),
        "## Status, with hints\n\n".to_owned(),
    ];
    let with_hint = |status: Status| match status.hint() {
        Some(hint) => format!("{status}\n  hint: {hint}\n\n"),
        None => format!("{status}\n\n"),
    };
    // All statuses that have a name, and one that has none.
    let named = (0..).map(Status::from_code).take_while(|status| !matches!(status, Status::Other(_)));
    let statuses = named.chain([Status::Other(99)]).map(with_hint);
    let all: Vec<_> = lists.into_iter().chain(statuses).collect();
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &all);
}
