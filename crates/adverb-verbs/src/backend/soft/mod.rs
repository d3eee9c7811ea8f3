//! The software NIC: devices in memory and over sockets, on any machine.
//!
//! Each type owns one object of a [`Nic`](adverb_soft::Nic) and holds the objects that it was created from, as the
//! types of rdma-core do. In a forked child they are not destroyed, because the progress thread belongs to the parent.

mod address_handle;
mod completion_queue;
pub(super) mod connection_manager;
mod counters;
mod device;
mod event;
mod memory_window;
mod multicast;
mod open;
mod protection_domain;
mod query;
mod queue_pair;
mod recording;
mod registration;
mod request_list;
mod shared_receive_queue;

pub(super) use address_handle::AddressHandle;
pub(super) use completion_queue::CompletionQueue;
pub(super) use device::Device;
pub(super) use memory_window::MemoryWindow;
pub(super) use open::is_soft;
pub(crate) use open::{LinkKind, Options};
pub(super) use protection_domain::ProtectionDomain;
pub(super) use queue_pair::QueuePair;
pub(super) use registration::Registration;
pub(super) use request_list::{RecvList, SendList};
pub(super) use shared_receive_queue::SharedReceiveQueue;

use std::io;

use adverb_proto::explain::Call;

use crate::error::Error;

/// Returns the error of an operation on the NIC.
#[cold]
fn nic_error(call: Call, error: adverb_soft::Error, action: impl Into<Box<str>>) -> Error {
    let (action, source) = (action.into(), io::Error::other(error));
    match error {
        adverb_soft::Error::NicFailed => Error::DeviceFailed { action, call, source },
        _ => Error::CallFailed { action, call, source },
    }
}
