//! Parts that other crates of Adverb use and that are not public API: they may change with any version.

use crate::cm;
use crate::memory::{MemoryRegion, Payload, RegisteredBuf};
use crate::{Device, Endpoint, ProtectionDomain, QueuePair, Result};

pub use crate::backend::{Watch, wait_either};
pub use crate::cm::connection::CmHandle;
pub use crate::deadline::Deadline;

/// Opens all RDMA hardware of this machine that Adverb can use.
pub fn open_hardware() -> Vec<Device> {
    Device::open_hardware()
}

/// Returns the software NICs that this process has open, the last opened first.
pub fn software_in_use() -> Vec<Device> {
    Device::software_in_use()
}

/// Limits the whole of a connector's work, from its start, whatever its timeout.
pub fn with_deadline(connector: cm::Connector, deadline: Deadline) -> cm::Connector {
    connector.deadline(deadline)
}

/// Lets a listener listen on RDMA hardware even if the process has software NICs open.
pub fn hardware_only(builder: cm::ListenerBuilder, hardware_only: bool) -> cm::ListenerBuilder {
    builder.hardware_only(hardware_only)
}

/// Accepts a request with private data made from both queue pairs: the local one, ready to send, and the peer's.
///
/// # Errors
///
/// As [`cm::ConnectRequest::begin_accept`].
pub fn begin_accept_with(
    request: cm::ConnectRequest,
    queue_pair: QueuePair,
    private_data: impl FnOnce(&QueuePair, &Endpoint) -> Vec<u8>,
) -> Result<cm::PendingConnection> {
    request.begin_accept_with(queue_pair, private_data)
}

/// Splits a connection into its queue pair, the handle that keeps it connected, the peer's queue pair where it is known, and
/// the peer's private data.
pub fn into_parts(connection: cm::Connection) -> (QueuePair, CmHandle, Option<Endpoint>, Vec<u8>) {
    connection.into_parts()
}

/// Resets a queue pair, and returns the tags and the memory of requests that did not complete, sends first.
///
/// # Errors
///
/// If the device refuses.
pub fn reset_and_reclaim(queue_pair: &QueuePair) -> Result<Vec<(u64, Payload)>> {
    queue_pair.reset_and_reclaim()
}

/// Registers the memory of a region in another protection domain too, with the same rights.
///
/// # Errors
///
/// If the device refuses.
pub fn register_again(region: &MemoryRegion, domain: &ProtectionDomain) -> Result<MemoryRegion> {
    region.again_in(domain)
}

/// Takes a buffer back that was registered as a region, and its rights with it. Returns `None` if there are other handles to
/// the region, or if it isn't a buffer's.
pub fn reclaim(region: MemoryRegion) -> Option<RegisteredBuf> {
    RegisteredBuf::reclaim(region)
}
