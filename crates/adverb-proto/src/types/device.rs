//! Devices: their names, attributes and limits.

use std::time::Duration;

use super::FlushPlacement;

/// The name and identity of a device, as the list of devices reports them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name by which programs open the device.
    pub name: String,
    /// The device's globally unique identifier (GUID).
    pub guid: u64,
    /// The reason why Adverb can't use the device, or `None` if Adverb can use it. iWARP devices, for example, don't
    /// support datagrams.
    pub unsupported_reason: Option<&'static str>,
}

impl DeviceInfo {
    /// Creates the entry of a device that Adverb can use.
    pub fn new(name: String, guid: u64) -> DeviceInfo {
        DeviceInfo { name, guid, unsupported_reason: None }
    }
}

/// The attributes and limits of a device.
///
/// In the default value, every number is 0 and every capability is absent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// The firmware version, in the vendor's notation.
    pub firmware: String,
    /// The device's globally unique identifier (GUID).
    pub guid: u64,
    /// The vendor's identifier (IEEE OUI).
    pub vendor_id: u32,
    /// The identifier of the device model, assigned by the vendor.
    pub vendor_part_id: u32,
    /// The number of ports.
    pub port_count: u8,
    /// The maximum number of queue pairs.
    pub max_queue_pairs: u32,
    /// The maximum number of outstanding requests on one queue.
    pub max_queue_depth: u32,
    /// The maximum number of segments (scatter/gather elements) of a request.
    pub max_sge: u32,
    /// The maximum number of completion queues.
    pub max_completion_queues: u32,
    /// The maximum number of completions that a completion queue can hold.
    pub max_completion_queue_depth: u32,
    /// The maximum number of memory regions.
    pub max_memory_regions: u32,
    /// The maximum length of a memory region, in bytes.
    pub max_memory_region_len: u64,
    /// The maximum number of protection domains.
    pub max_protection_domains: u32,
    /// The maximum number of a peer's READs and atomics that a queue pair serves concurrently.
    pub max_dest_rd_atomic: u8,
    /// The maximum number of outstanding READs and atomics of a queue pair.
    pub max_rd_atomic: u8,
    /// Whether the device supports the atomic operations compare-and-swap and fetch-and-add.
    pub has_atomics: bool,
    /// Whether the device supports ATOMIC WRITE.
    pub has_atomic_write: bool,
    /// The kinds of FLUSH that the device supports.
    pub flush: FlushCapabilities,
    /// Whether the device supports memory windows of type 2B.
    pub has_memory_windows: bool,
    /// The maximum number of shared receive queues.
    pub max_shared_receive_queues: u32,
    /// The maximum number of multicast groups. The value is 0 if the device does not support multicast.
    pub max_multicast_groups: u32,
    /// The operations that can use memory registered with [`Access::ON_DEMAND`](super::Access::ON_DEMAND).
    pub odp: OdpCapabilities,
    /// The number of completion vectors. Each vector is an interrupt for completion events; vectors are numbered from
    /// 0.
    pub completion_vector_count: u32,
    /// The limits of completion event moderation, if the device supports it.
    pub moderation: Option<ModerationLimits>,
    /// The clock of completion timestamps, if the device supports completion timestamps.
    pub timestamp_clock: Option<TimestampClock>,
    /// Whether the connection manager can connect queue pairs of this device by IP address and port.
    pub has_connection_manager: bool,
}

/// A device's support for FLUSH, by placement type. A device without FLUSH supports neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FlushCapabilities {
    /// Whether a FLUSH can make bytes globally visible.
    pub global: bool,
    /// Whether a FLUSH can make bytes persistent.
    pub persistent: bool,
}

impl FlushCapabilities {
    /// Whether the device supports every placement type in `placement`.
    pub const fn supports(self, placement: FlushPlacement) -> bool {
        (self.global || !placement.contains(FlushPlacement::GLOBAL))
            && (self.persistent || !placement.contains(FlushPlacement::PERSISTENT))
    }
}

/// The clock of a device's completion timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TimestampClock {
    /// The mask of a timestamp's valid bits. The clock wraps to 0 after this value.
    pub mask: u64,
    /// The clock's frequency in kHz. The value is 0 if the device doesn't report the frequency.
    pub frequency_khz: u64,
}

impl TimestampClock {
    /// Creates the description of a clock.
    pub const fn new(mask: u64, frequency_khz: u64) -> TimestampClock {
        TimestampClock { mask, frequency_khz }
    }
}

/// The limits of completion event moderation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ModerationLimits {
    /// The maximum number of completions that one event can announce.
    pub max_count: u16,
    /// The maximum delay of an event.
    pub max_period: Duration,
}

impl ModerationLimits {
    /// Creates the limits of a device.
    pub const fn new(max_count: u16, max_period: Duration) -> ModerationLimits {
        ModerationLimits { max_count, max_period }
    }
}

/// A device's support for on-demand paging (ODP): memory that is registered without pinning its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OdpCapabilities {
    /// Whether the device supports on-demand paging at all.
    pub supported: bool,
    /// The operations supported on reliable connections.
    pub rc: OdpOperations,
    /// The operations supported on unreliable connections.
    pub uc: OdpOperations,
    /// The operations supported with unreliable datagrams.
    pub ud: OdpOperations,
}

/// The operations that support on-demand paging on a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OdpOperations {
    /// Whether a SEND can read from on-demand-paged memory.
    pub send: bool,
    /// Whether a receive can write to on-demand-paged memory.
    pub recv: bool,
    /// Whether a WRITE can use on-demand-paged memory, local or remote.
    pub write: bool,
    /// Whether a READ can use on-demand-paged memory, local or remote.
    pub read: bool,
    /// Whether an atomic operation can use on-demand-paged memory, local or remote.
    pub atomic: bool,
    /// Whether a receive of a shared receive queue can write to on-demand-paged memory.
    pub shared_recv: bool,
}
