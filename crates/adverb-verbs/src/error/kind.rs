//! The details that distinguish errors of one variant.

use std::fmt;

/// The reason why [no device](super::Error::NoDevice) matches a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NoDeviceReason {
    /// This machine has no RDMA device, or its kernel has no RDMA support.
    NoneExists,
    /// No device has the name or the address.
    NotFound,
    /// No device has an active port.
    PortsDown,
    /// The device's port has no address.
    NoAddress,
    /// The device's port has no GID with the index.
    NoGid,
    /// The name of a software device contains no address, or an address that its interface does not have.
    InvalidName,
}

/// Declares an enum whose variants have a name for messages, and a hint.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident, $hint:ty: $($(#[$variant_doc:meta])* $variant:ident = $text:literal, $value:expr;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Returns the name, as in messages, and the hint.
            const fn facts(self) -> (&'static str, $hint) {
                match self {
                    $($name::$variant => ($text, $value),)*
                }
            }

            /// Returns an action to try.
            pub(super) const fn hint(self) -> $hint {
                self.facts().1
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.facts().0)
            }
        }
    };
}

kinds! {
    /// An operation or property that a device or its driver [does not support](super::Error::Unsupported). `Display`
    /// prints a name: "memory windows of type 2B".
    Feature, &'static str:
    /// The protocol of the device: it is neither an InfiniBand nor a RoCE device.
    Protocol = "InfiniBand or RoCE",
        "use a RoCE or InfiniBand device: Adverb supports neither iWARP nor devices with a protocol of their own, such as \
         EFA's SRD";
    /// Completion queues with timestamps or other extended features.
    ExtendedCompletionQueue = "extended completion queues",
        "create a completion queue without extended features";
    /// Timestamps of completions.
    CompletionTimestamps = "completion timestamps", "read the process's clock when polling a completion";
    /// Reading the clock of completion timestamps.
    Clock = "reading its clock",
        "compare timestamps with each other: the driver cannot read the clock";
    /// Event moderation of completion queues.
    Moderation = "completion event moderation", "poll for a while after each event instead, as `Poller` does";
    /// Resizing completion queues.
    Resize = "resizing a completion queue", "create a larger completion queue";
    /// Multicast groups.
    Multicast = "multicast", "send a datagram to each receiver";
    /// Joining a multicast group by its IP address, on InfiniBand.
    MulticastByIp = "joining a multicast group by IP address on InfiniBand",
        "join the group at the subnet manager, and call `attach_multicast` with the GID and LID it returns";
    /// Addressing a UD peer by its IP address or GID without its LID, on InfiniBand.
    UdWithoutLid = "addressing a UD peer on InfiniBand without its LID",
        "exchange endpoints out of band, and call `create_ud_destination` with the peer's endpoint";
    /// Registration of dma-bufs.
    Dmabuf = "registering a dma-buf",
        "copy through host memory, or map the dma-buf and register the mapping: the device's rdma-core provider or its \
         kernel driver lacks dma-buf support";
    /// On-demand paging.
    OnDemandPaging = "on-demand paging", "register the memory without ON_DEMAND, which pins it";
    /// Memory windows of type 2B.
    MemoryWindow = "memory windows of type 2B",
        "register the memory as a separate region with the peer's access rights";
    /// ATOMIC WRITE.
    AtomicWrite = "ATOMIC WRITE",
        "use `compare_swap`, or a WRITE if no reader depends on the word being written as a whole";
    /// FLUSH to global visibility, as a request or as a right of a peer.
    FlushGlobal = "FLUSH to global visibility",
        "post a READ of the written memory instead: it completes after the earlier writes to that memory; register the \
         memory without FLUSH_GLOBAL";
    /// FLUSH to persistence, as a request or as a right of a peer.
    FlushPersistent = "FLUSH to persistence",
        "send a message to the peer's program, and let it persist the bytes; register the memory without FLUSH_PERSISTENT";
    /// Posting an ATOMIC WRITE or a FLUSH, which the device supports, with the installed rdma-core.
    ExtendedPost = "posting ATOMIC WRITE or FLUSH with the installed rdma-core",
        "update rdma-core: ATOMIC WRITE requires version 44, FLUSH version 45, and the device's provider must support it";
}

kinds! {
    /// A quantity with a [limit](super::Error::LimitExceeded). `Display` prints a name: "completion queue depth".
    Limit, Option<&'static str>:
    /// The depth of a completion queue.
    CompletionQueueDepth = "completion queue depth", FROM_ONE;
    /// The completion vector of a completion queue.
    CompletionVector = "completion vector",
        Some("use a vector below `DeviceAttributes::completion_vector_count`");
    /// The total depth of the queues that use a completion queue.
    QueueDepths = "total depth of the queues of a completion queue",
        Some("use a completion queue with at least the total depth of all queues that use it, or destroy some of the \
              queue pairs");
    /// The number of queues that use a completion queue.
    QueueCount = "number of send and receive queues of a completion queue",
        Some("distribute the queue pairs over several completion queues");
    /// The number of completions per event.
    ModerationCount = "number of completions per event", MODERATION;
    /// The maximum delay of an event, in microseconds.
    ModerationPeriod = "moderation period in microseconds", MODERATION;
    /// The depth of a send queue.
    SendQueueDepth = "send queue depth", FROM_ONE;
    /// The depth of a receive queue.
    RecvQueueDepth = "receive queue depth", FROM_ONE;
    /// The depth of a shared receive queue.
    SharedReceiveQueueDepth = "shared receive queue depth", FROM_ONE;
    /// The maximum number of segments per send request, when a queue pair is created.
    SendSegments = "number of segments per send request", FROM_ONE;
    /// The maximum number of segments per receive request, when a queue is created.
    RecvSegments = "number of segments per receive request", FROM_ONE;
    /// The number of segments of a request.
    Segments = "number of segments in a request",
        Some("use fewer segments, or create the queue with a larger `max_sge`");
    /// The inline data of a queue pair, in bytes.
    InlineData = "inline data size", Some("send longer messages without `inline`");
    /// The path MTU of a connection, in bytes.
    Mtu = "MTU of the connection", Some("use an MTU that both ports support");
    /// The number of a port.
    Port = "port number", Some("use a port from 1 to `DeviceAttributes::port_count`");
    /// The index of a P_Key.
    PkeyIndex = "P_Key index", Some("use an index of the port's P_Key table: `Device::pkeys` returns it");
    /// The index of a GID.
    GidIndex = "GID index", Some("use one of the first 256 GIDs");
    /// The length of a buffer, in bytes.
    BufferLen = "buffer size", Some("create a region, and use slices of it: `ProtectionDomain::region`");
    /// The length of a slice of a region, in bytes.
    SliceLen = "region slice size", Some("use several slices");
    /// The length of a pool's buffer, in bytes.
    PoolBufferLen = "pool allocation size", Some("use a region of its own: `ProtectionDomain::region`");
    /// The memory of a pool, in bytes.
    PoolBytes = "pool size in bytes", Some("drop buffers, or create the pool with a larger `max_bytes`");
    /// The private data of a message of the connection manager, in bytes.
    PrivateData = "private data length",
        Some("send the rest as a message once the connection is established");
    /// The number of events in a recording.
    RecordingCapacity = "capacity of a recording", FROM_ONE;
    // Removed once adverb-probe has its own errors.
    /// The length of a probe, in bytes.
    ProbeLen = "length of a probe", Some("a probe is one packet: choose a length up to the MTU");
}

/// The hint of limits whose minimum is 1. The errors print the maximum instead of the last words.
const FROM_ONE: Option<&str> = Some("use a value from 1 to the maximum");
const MODERATION: Option<&str> = Some("`DeviceAttributes::moderation` has the maximum of the device");

impl Limit {
    /// Whether the values are from 1 to the maximum.
    pub(super) fn is_from_one(self) -> bool {
        self.hint() == FROM_ONE
    }
}

kinds! {
    /// The object or option that limits the length of a [message](super::Error::MessageTooLong).
    MessageLimit, &'static str:
    /// The maximum message size of the queue pair.
    QueuePair = "queue pair", "split the message: `QueuePair::max_message_size` returns the maximum";
    /// The inline data of the queue pair.
    Inline = "inline data",
        "send the message without `inline`, or create the queue pair with a larger `max_inline_data`";
    /// The buffers of a receive request.
    Recv = "receive request", "post shorter buffers: a receive request takes less than 4 GiB";
}

/// An object of a request that belongs to a protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DomainObject {
    /// Memory.
    Memory,
    /// A memory window.
    MemoryWindow,
}

impl fmt::Display for DomainObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DomainObject::Memory => "memory",
            DomainObject::MemoryWindow => "memory window",
        })
    }
}

/// The step of connecting at which a [peer could not be reached](super::Error::Unreachable). `Display` prints a
/// description: "resolving the route".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConnectStage {
    /// The address of the peer is resolved.
    Address,
    /// The route to the peer is resolved.
    Route,
    /// The connect request is sent, and the peer's reply is awaited.
    Request,
    /// This side has accepted a connect request, and waits for the peer to establish the connection.
    Acceptance,
    /// The UD queue pair of a service is looked up.
    Service,
}

impl fmt::Display for ConnectStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ConnectStage::Address => "resolving the address",
            ConnectStage::Route => "resolving the route",
            ConnectStage::Request => "sending the connect request",
            ConnectStage::Acceptance => "waiting for the peer to establish the connection",
            ConnectStage::Service => "resolving the service ID",
        })
    }
}
