//! Items for other crates of Adverb. They are not public API and may change in any version.

#[cfg(feature = "soft")]
use std::io;
#[cfg(feature = "soft")]
use std::net::IpAddr;
use std::sync::Arc;

use adverb_proto::types::{Access, Endpoint, Failure, SendOperation, Success, WindowBind};

use crate::cm;
use crate::device::{Device, DeviceWindow};
use crate::error::{Error, Result};
use crate::memory::{MemoryRegion, MemoryWindow, Payload, RemoteMemory};
use crate::queue_pair::QueuePair;
use crate::request::{Completion, SendRequest};

#[cfg(feature = "soft")]
pub use crate::backend::{IcmpError, PathSocket};
pub use crate::deadline::Deadline;
pub use crate::error::{WithCauses, call_failed};
pub use crate::key::DerivedKey;
pub use crate::os::{Interest, OwnerProcess, Watch, call_at_exit, start_connect, wait_either, wait_many};

/// Returns the error of a device that is being removed.
pub fn device_removed(action: &str) -> Error {
    cm::device_removed(action.to_owned())
}

/// Opens all RDMA hardware of this machine that Adverb supports.
pub fn open_hardware() -> Vec<Device> {
    Device::open_hardware()
}

/// Whether two handles refer to the same device. A process may open RDMA hardware several times.
pub fn is_same_device(first: &Device, second: &Device) -> bool {
    first.is_same(second)
}

/// Returns the software NICs that this process has open, the last opened first.
pub fn software_in_use() -> Vec<Device> {
    Device::software_in_use()
}

/// Whether a device has no network, so that its queue pairs can connect only to each other.
pub fn is_isolated(device: &Device) -> bool {
    device.is_isolated()
}

/// Opens a socket that sends packets with any hop limit from a local address and source port, and receives the ICMP
/// messages about them. On the software NIC it is the NIC's own socket.
///
/// # Errors
///
/// Returns `Unsupported` if the device is a software NIC without sockets for this address, and `AddrInUse` if another
/// program uses the port.
#[cfg(feature = "soft")]
pub fn path_socket(device: &Device, local: IpAddr, source_port: u16) -> io::Result<PathSocket> {
    device.path_socket(local, source_port)
}

/// Limits the total time of connecting, regardless of the connector's timeout.
pub fn with_deadline(connector: cm::Connector, deadline: Deadline) -> cm::Connector {
    connector.deadline(deadline)
}

/// Makes a listener use RDMA hardware even if the process has software NICs open.
pub fn hardware_only(builder: cm::ListenerBuilder, hardware_only: bool) -> cm::ListenerBuilder {
    builder.hardware_only(hardware_only)
}

/// Accepts a request with private data computed from both queue pairs: the local one, ready to send, and the peer's.
///
/// # Errors
///
/// Returns the same errors as [`cm::ConnectRequest::begin_accept`].
pub fn begin_accept_with(
    request: cm::ConnectRequest,
    queue_pair: QueuePair,
    private_data: impl FnOnce(&QueuePair, &Endpoint) -> Vec<u8>,
) -> Result<cm::PendingConnection> {
    request.begin_accept_with(queue_pair, private_data)
}

/// Creates a send request from the plain form of its operation.
pub fn send_request(operation: SendOperation, payload: Payload) -> SendRequest {
    SendRequest::new(operation, payload)
}

/// Returns the plain form of a completion's outcome.
pub fn plain_outcome(completion: &Completion) -> std::result::Result<Success, Failure> {
    completion.plain_outcome()
}

/// The access of a peer through a window, which this handle can end at any time, also while the request that binds the
/// window is in flight.
pub struct WindowAccess {
    window: Arc<DeviceWindow>,
    remote: RemoteMemory,
}

impl WindowAccess {
    /// Returns the address and the key with which the peer accesses the memory.
    pub fn remote(&self) -> RemoteMemory {
        self.remote
    }

    /// Deallocates the window, which ends the access. If the bind is in flight, it may fail, and the queue pair with it.
    /// Returns `false` if the device could not deallocate the window: the access may then continue until the queue pair is
    /// destroyed.
    pub fn revoke(&self) -> bool {
        self.window.free()
    }
}

/// Creates a request that binds a window to a whole region, also one of 4 GiB or more, and a handle that can end the
/// access. The window must not be bound.
pub fn bind_whole(
    window: MemoryWindow,
    region: &MemoryRegion,
    access: Access,
) -> (SendRequest, WindowAccess) {
    let shared = Arc::clone(window.shared());
    let request = SendRequest::bind(window, region.whole(), access);
    let remote = match request.operation {
        SendOperation::BindWindow(WindowBind { rkey, addr, length, .. }) => {
            RemoteMemory { addr, rkey, len: length }
        }
        _ => unreachable!("the operation is a bind"),
    };
    (request, WindowAccess { window: shared, remote })
}
