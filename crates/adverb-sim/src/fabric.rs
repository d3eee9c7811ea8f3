//! The fabric, which carries packets and injects faults.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::time::Duration;

use adverb_proto::Time;

use crate::Random;
use crate::congestion::WIRE_OVERHEAD;

/// The faults that a fabric injects.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The probability that a packet is lost, in millionths.
    pub loss_per_million: u32,
    /// The probability that a packet is duplicated, in millionths.
    pub duplication_per_million: u32,
    /// The probability that later packets can overtake a packet, in millionths.
    pub reordering_per_million: u32,
    /// The probability that up to three bits of a packet are flipped, in millionths.
    pub corruption_per_million: u32,
    /// The probability that a packet is delayed by 0.5 to 2.5 times a timeout, in millionths.
    pub delay_per_million: u32,
    /// The periods during which packets between two devices are lost.
    pub partitions: Vec<Partition>,
    /// The periods during which a device processes no packets.
    pub stalls: Vec<Stall>,
    /// The slow link of the fabric, if any.
    pub bottleneck: Option<Bottleneck>,
}

/// A link with a limited rate to one device. The link ECN-marks packets while its queue is longer than a threshold, and
/// drops packets that don't fit in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// The index of the device.
    pub device: usize,
    /// The link's rate in bits per second.
    pub rate: u64,
    /// The queue length in bytes above which the link ECN-marks packets.
    pub mark_threshold: u64,
    /// The maximum queue length in bytes.
    pub queue_capacity: u64,
}

/// A period during which packets between two devices are lost.
#[derive(Clone, Copy, Debug)]
pub struct Partition {
    /// The indexes of the devices.
    pub devices: [usize; 2],
    /// The start of the period.
    pub start: Time,
    /// The end of the period.
    pub end: Time,
}

/// A period during which a device processes no packets.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// The index of the device.
    pub device: usize,
    /// The start of the period.
    pub start: Time,
    /// The end of the period.
    pub end: Time,
}

/// The numbers of injected faults, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// The number of lost packets.
    pub lost: u64,
    /// The number of duplicated packets.
    pub duplicated: u64,
    /// The number of packets that later packets could overtake.
    pub reordered: u64,
    /// The number of corrupted packets.
    pub corrupted: u64,
    /// The number of delayed packets.
    pub delayed: u64,
    /// The number of packets lost because of a [`Partition`].
    pub partitioned: u64,
    /// The number of packets delayed by a [`Stall`].
    pub stalled: u64,
    /// The number of packets that a [`Bottleneck`] ECN-marked.
    pub marked: u64,
}

impl FaultCounts {
    /// Returns the total number of faults.
    pub fn total(&self) -> u64 {
        self.lost
            + self.duplicated
            + self.reordered
            + self.corrupted
            + self.delayed
            + self.partitioned
            + self.stalled
            + self.marked
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &FaultCounts) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.delayed += other.delayed;
        self.partitioned += other.partitioned;
        self.stalled += other.stalled;
        self.marked += other.marked;
    }
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lost, {} duplicated, {} reordered, {} corrupted, {} delayed, {} partitioned, {} stalled, \
             {} marked",
            self.lost,
            self.duplicated,
            self.reordered,
            self.corrupted,
            self.delayed,
            self.partitioned,
            self.stalled,
            self.marked,
        )
    }
}

/// A packet in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) source_port: u16,
    pub(crate) ip_id: u16,
    pub(crate) bytes: Vec<u8>,
    /// Whether the packet may be ECN-marked.
    pub(crate) ecn_capable: bool,
    /// Whether the packet is ECN-marked.
    pub(crate) is_ecn_marked: bool,
}

/// The result of sending a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    Carried,
    Lost,
    Duplicated,
    Reordered,
    Corrupted,
    Delayed,
    Partitioned,
    Stalled,
    Marked,
}

/// The fabric between the devices.
#[derive(Debug)]
pub(crate) struct Fabric {
    faults: Faults,
    faults_end_at: Time,
    latency: Duration,
    /// The base duration of a delay: about a timeout.
    base_delay: Duration,
    random: Random,
    queue: BinaryHeap<Reverse<Queued>>,
    sent: u64,
    /// The arrival time of the last packet from one device to another. Later packets overtake it only because of a
    /// fault.
    latest: HashMap<(usize, usize), Time>,
    /// The time at which the slow link's queue will be empty.
    busy_until: Time,
    pub(crate) counts: FaultCounts,
}

/// A packet in the queue. Packets are ordered by arrival time, then by the order of sending.
#[derive(Debug, PartialEq, Eq)]
struct Queued {
    at: Time,
    order: u64,
    packet: InFlight,
}

impl Ord for Queued {
    fn cmp(&self, other: &Queued) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Queued) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Fabric {
    pub(crate) fn new(
        faults: Faults,
        faults_end_at: Time,
        latency: Duration,
        base_delay: Duration,
        seed: u64,
    ) -> Fabric {
        Fabric {
            faults,
            faults_end_at,
            latency,
            base_delay,
            random: Random::new(seed),
            queue: BinaryHeap::new(),
            sent: 0,
            latest: HashMap::new(),
            busy_until: Time::ZERO,
            counts: FaultCounts::default(),
        }
    }

    /// Accepts a packet, and decides how it is delivered.
    pub(crate) fn send(&mut self, now: Time, mut packet: InFlight) -> Delivery {
        // The same random numbers are drawn for each packet, so that removing one kind of fault does not affect the
        // others.
        let draws = [(); 6].map(|()| self.random.below(1_000_000) as u32);
        let amount = self.random.u64();
        let Some((depart, marked)) = self.pass_bottleneck(now, &packet) else {
            self.counts.lost += 1;
            return Delivery::Lost;
        };
        packet.is_ecn_marked = marked;
        self.counts.marked += u64::from(marked);
        let latest = self.latest.entry((packet.from, packet.to)).or_default();
        let mut at = (depart + self.latency + Duration::from_nanos(amount % 64)).max(*latest);
        *latest = at;
        if now >= self.faults_end_at {
            self.queue(at, packet);
            return Delivery::Carried;
        }
        let between =
            |p: &Partition| p.devices == [packet.from, packet.to] || p.devices == [packet.to, packet.from];
        if self.faults.partitions.iter().any(|p| between(p) && p.start <= now && now < p.end) {
            self.counts.partitioned += 1;
            return Delivery::Partitioned;
        }
        if draws[0] < self.faults.loss_per_million {
            self.counts.lost += 1;
            return Delivery::Lost;
        }
        let mut delivery = if marked { Delivery::Marked } else { Delivery::Carried };
        if draws[1] < self.faults.duplication_per_million {
            self.counts.duplicated += 1;
            delivery = Delivery::Duplicated;
            let extra = if amount & 1 == 0 { self.latency } else { self.base_delay };
            self.queue(at + extra.mul_f64((amount >> 40) as f64 / (1u64 << 24) as f64), packet.clone());
        }
        if draws[2] < self.faults.reordering_per_million {
            self.counts.reordered += 1;
            delivery = Delivery::Reordered;
            at = at + self.latency * (1 + (amount >> 8 & 3) as u32);
        }
        if draws[3] < self.faults.corruption_per_million {
            self.counts.corrupted += 1;
            delivery = Delivery::Corrupted;
            // A 32-bit CRC detects up to three wrong bits anywhere in a packet of this length.
            for shift in 0..1 + (amount >> 16 & 3).min(2) {
                let bit = (amount >> (20 + 12 * shift)) as usize % (packet.bytes.len() * 8);
                packet.bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        if draws[4] < self.faults.delay_per_million {
            self.counts.delayed += 1;
            delivery = Delivery::Delayed;
            at = at + self.base_delay.mul_f64(0.5 + (amount >> 40) as f64 / (1u64 << 23) as f64);
        }
        let stalled = |s: &&Stall| s.device == packet.to && s.start <= at && at < s.end;
        if let Some(stall) = self.faults.stalls.iter().find(stalled) {
            self.counts.stalled += 1;
            delivery = Delivery::Stalled;
            at = stall.end;
        }
        self.queue(at, packet);
        delivery
    }

    /// Returns the time at which a packet leaves the slow link, and whether it is ECN-marked; `None` if the link's
    /// queue is full. A packet to another device leaves at once.
    fn pass_bottleneck(&mut self, now: Time, packet: &InFlight) -> Option<(Time, bool)> {
        let slow = self.faults.bottleneck.filter(|slow| slow.device == packet.to && now < self.faults_end_at);
        let Some(Bottleneck { rate, mark_threshold, queue_capacity: capacity, .. }) = slow else {
            return Some((now, false));
        };
        let start = self.busy_until.max(now);
        let waiting = (start - now).as_nanos() as u64 * (rate / 1_000_000) / 8000;
        let length = packet.bytes.len() as u64 + WIRE_OVERHEAD;
        if waiting + length > capacity {
            return None;
        }
        self.busy_until = start + Duration::from_nanos(length * 8_000_000 / (rate / 1000));
        Some((self.busy_until, packet.ecn_capable && waiting > mark_threshold))
    }

    fn queue(&mut self, at: Time, packet: InFlight) {
        self.sent += 1;
        self.queue.push(Reverse(Queued { at, order: self.sent, packet }));
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse(queued)| queued.at)
    }

    pub(crate) fn receive(&mut self, now: Time) -> Option<InFlight> {
        if self.next()? > now {
            return None;
        }
        self.queue.pop().map(|Reverse(queued)| queued.packet)
    }
}
