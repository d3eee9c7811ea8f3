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
    /// Creates the description of a clock of an unknown frequency, with the mask of a timestamp's valid bits.
    pub const fn new(mask: u64) -> TimestampClock {
        TimestampClock { mask, frequency_khz: 0 }
    }

    /// Returns the description with a frequency in kHz.
    pub const fn with_frequency_khz(self, frequency_khz: u64) -> TimestampClock {
        TimestampClock { frequency_khz, ..self }
    }

    /// Returns the number of ticks from one timestamp to a later one, which is less than one wrap of the clock later.
    ///
    /// ```
    /// # mod adverb { pub use adverb_proto::types as verbs; }
    /// use adverb::verbs::TimestampClock;
    ///
    /// // 48 bits, 1 GHz.
    /// let clock = TimestampClock::new((1 << 48) - 1).with_frequency_khz(1_000_000);
    /// assert_eq!(clock.ticks_between(0xffff_ffff_fff0, 0x10), 0x20);
    /// ```
    pub const fn ticks_between(&self, earlier: u64, later: u64) -> u64 {
        later.wrapping_sub(earlier) & self.mask
    }

    /// Returns the time from one timestamp to a later one, which is less than one [period](TimestampClock::period)
    /// later. Returns `None` if the frequency isn't known.
    pub fn duration_between(&self, earlier: u64, later: u64) -> Option<Duration> {
        self.duration_of(self.ticks_between(earlier, later))
    }

    /// Returns the duration of a number of ticks, rounded down to nanoseconds, or `None` if the frequency isn't known.
    pub fn duration_of(&self, ticks: u64) -> Option<Duration> {
        let nanos = (u128::from(ticks) * 1_000_000).checked_div(u128::from(self.frequency_khz))?;
        let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
        Some(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
    }

    /// Returns the time after which the clock wraps, or `None` if the frequency isn't known.
    pub fn period(&self) -> Option<Duration> {
        self.duration_of(self.mask)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_counted_across_a_wrap() {
        for bits in [32, 48, 63, 64] {
            let mask = u64::MAX >> (64 - bits);
            let clock = TimestampClock::new(mask).with_frequency_khz(1_000_000);
            assert_eq!(clock.ticks_between(0, 0), 0);
            assert_eq!(clock.ticks_between(0, mask), mask);
            assert_eq!(clock.ticks_between(mask, 0), 1);
            assert_eq!(clock.ticks_between(mask - 9, 90), 100);
            assert_eq!(clock.ticks_between(5, 4), mask);
            assert_eq!(clock.duration_between(mask - 9, 90), Some(Duration::from_nanos(100)));
        }
    }

    #[test]
    fn ticks_are_converted_by_the_frequency() {
        let clock = |frequency_khz| TimestampClock::new(u64::MAX).with_frequency_khz(frequency_khz);
        assert_eq!(clock(156_250).duration_of(156_250_000), Some(Duration::from_secs(1)));
        assert_eq!(clock(78_125).duration_of(1), Some(Duration::from_nanos(12)));
        assert_eq!(clock(1_000_000).duration_of(1), Some(Duration::from_nanos(1)));
        assert_eq!(clock(1).duration_of(u64::MAX), Some(Duration::from_millis(u64::MAX)));
        assert_eq!(clock(0).duration_of(1), None);
        let connect_x = TimestampClock::new((1 << 48) - 1).with_frequency_khz(156_250);
        assert_eq!(connect_x.period().map(|period| period.as_secs() / 86_400), Some(20), "in days");
    }
}
