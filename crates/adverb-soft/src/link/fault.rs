//! Fault injection in front of another link.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use adverb_wire::random::SplitMix64;

use super::{
    AddressSharing, Link, MulticastGroups, ReceiveTimestamps, RxPacket, STRICT_ICRC, SourcePorts, TimedSend,
    TxPacket,
};

/// The configuration of the faults that a link injects (`FaultLink` of adverb-soft). The rates are in packets per million. A packet has at most one fault.
///
/// The packets to one queue pair at one address are a flow, and flows are numbered in the order of their first packets. Three
/// numbers determine the fault of a packet: the seed, the flow's number, and the packet's number in the flow. For example,
/// with seed 7, the third packet of flow 2 has the same fault in every run, however many packets the other flows have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultConfig {
    /// The seed of all random choices.
    pub seed: u64,
    /// The rate of dropped packets.
    pub loss_ppm: u32,
    /// The rate of packets that are sent twice.
    pub duplication_ppm: u32,
    /// The rate of corrupted packets. One bit covered by the ICRC is flipped.
    pub corruption_ppm: u32,
    /// The rate of delayed packets. Later packets overtake them.
    pub delay_ppm: u32,
    /// The rate of ECN-marked packets. The link marks packets as a congested switch does. Only ECN-capable packets are
    /// marked (RFC 3168).
    pub ecn_mark_ppm: u32,
    /// The minimum delay of delayed packets.
    pub min_delay: Duration,
    /// The maximum delay of delayed packets.
    pub max_delay: Duration,
    /// The time for which every packet is held before it is sent, in order, in addition to the delay of delayed packets.
    /// While 65,536 packets are held, the link accepts no more.
    pub latency: Duration,
    /// Whether every received packet must have a correct ICRC for a small IPv4 ID, as Adverb's packets have, even if
    /// the wrapped link requires a weaker check or none. If this is false, about one in 65,536 corrupted packets is
    /// accepted when the IPv4 ID is unknown, and every corrupted packet is accepted when the wrapped link requires no
    /// check.
    pub strict_icrc: bool,
    /// The number of packets after which the link fails, as if its network interface were removed. The device then
    /// fails too. `None` means never.
    pub link_failure_after: Option<u64>,
}

impl FaultConfig {
    /// Creates a configuration without faults, with strict ICRC checks, and with delays from 0.1 ms to 2 ms.
    pub const fn new(seed: u64) -> FaultConfig {
        FaultConfig {
            seed,
            loss_ppm: 0,
            duplication_ppm: 0,
            corruption_ppm: 0,
            delay_ppm: 0,
            ecn_mark_ppm: 0,
            min_delay: Duration::from_micros(100),
            max_delay: Duration::from_millis(2),
            latency: Duration::ZERO,
            strict_icrc: true,
            link_failure_after: None,
        }
    }
}

/// The numbers of packets that a [`FaultLink`] accepted, by fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// The number of packets sent without a fault.
    pub untouched: u64,
    /// The number of dropped packets.
    pub lost: u64,
    /// The number of packets that were sent twice.
    pub duplicated: u64,
    /// The number of corrupted packets.
    pub corrupted: u64,
    /// The number of delayed packets.
    pub delayed: u64,
    /// The number of ECN-marked packets.
    pub marked: u64,
}

impl FaultCounts {
    /// Returns the number of accepted packets.
    const fn total(&self) -> u64 {
        self.untouched + self.lost + self.duplicated + self.corrupted + self.delayed + self.marked
    }
}

/// A link that injects faults into the packets that it sends: it drops, duplicates, corrupts, delays and ECN-marks
/// them. Its random choices are derived from [`FaultConfig::seed`]. To inject faults in both directions, wrap the links
/// of both ends.
///
/// ```
/// use adverb_soft::link::{FaultConfig, FaultLink, Link, TxPacket, Switch, SwitchConfig};
///
/// let switch = Switch::new(SwitchConfig::default());
/// let config = FaultConfig { loss_ppm: 10_000, ..FaultConfig::new(7) }; // one packet in a hundred
/// let mut here = FaultLink::new(switch.attach("10.0.0.1".parse().unwrap())?, config);
/// let packet = TxPacket {
///     source: "10.0.0.1:49152".parse().unwrap(),
///     destination: "10.0.0.2:4791".parse().unwrap(),
///     traffic_class: 0,
///     hop_limit: 64,
///     flow_label: 0,
///     bytes: b"a packet",
/// };
/// here.send(&[packet; 1000])?;
/// assert!(here.counts().lost > 0);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct FaultLink<L> {
    inner: L,
    config: FaultConfig,
    seed: u64,
    flows: HashMap<(SocketAddr, u32), Flow>,
    /// The number of the next new flow.
    next_flow: u64,
    counts: FaultCounts,
    /// The delayed packets, with the earliest due packet on top.
    delayed: BinaryHeap<Reverse<DelayedPacket>>,
    /// The sequence number of the next delayed packet.
    next: u64,
    scratch: Vec<u8>,
}

impl<L: Link> FaultLink<L> {
    /// Creates a link that sends and receives over `inner`, and injects faults into the sent packets.
    pub fn new(inner: L, config: FaultConfig) -> FaultLink<L> {
        FaultLink {
            inner,
            config,
            seed: config.seed,
            flows: HashMap::new(),
            next_flow: 0,
            counts: FaultCounts::default(),
            delayed: BinaryHeap::new(),
            next: 0,
            scratch: Vec::new(),
        }
    }

    /// Returns the numbers of packets that the link has accepted so far, by fault.
    pub const fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Sets the fault rates for the packets sent from now on. The random sequences continue; `config.seed` is ignored.
    pub fn set_config(&mut self, config: FaultConfig) {
        self.config = config;
    }

    /// Returns the wrapped link.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    /// Returns an error if the link has failed.
    fn check_limit(&self) -> io::Result<()> {
        match self.config.link_failure_after {
            Some(limit) if self.counts.total() >= limit => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(()),
        }
    }

    /// Returns the flow of a packet.
    fn flow(&mut self, packet: &TxPacket<'_>) -> &mut Flow {
        // The destination's queue pair number in the base transport header.
        let qpn = match packet.bytes.get(5..8) {
            Some(&[a, b, c]) => u32::from_be_bytes([0, a, b, c]),
            _ => 0,
        };
        let key = (packet.destination, qpn);
        if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&key) {
            self.flows.clear();
        }
        self.flows.entry(key).or_insert_with(|| {
            let number = self.next_flow;
            self.next_flow += 1;
            Flow { number, next: 0 }
        })
    }

    /// Draws the fault of the next packet of a flow, if any. Further random choices about the packet follow from the
    /// returned generator.
    fn draw(&mut self, packet: &TxPacket<'_>) -> (Option<Fault>, SplitMix64) {
        let seed = self.seed;
        let flow = self.flow(packet);
        let mut random = flow.random(seed);
        flow.next += 1;
        let mut drawn = ((u128::from(random.next_u64()) * 1_000_000) >> 64) as u32;
        let config = self.config;
        for (ppm, fault) in [
            (config.loss_ppm, Fault::Loss),
            (config.duplication_ppm, Fault::Duplication),
            (config.corruption_ppm, Fault::Corruption),
            (config.delay_ppm, Fault::Delay),
            (config.ecn_mark_ppm, Fault::EcnMark),
        ] {
            if drawn < ppm {
                return (Some(fault), random);
            }
            drawn -= ppm;
        }
        (None, random)
    }

    /// Undoes the draws of packets that the wrapped link did not accept, so that the same faults are drawn for them again.
    fn undo_draws(&mut self, packets: &[TxPacket<'_>]) {
        for packet in packets {
            let flow = self.flow(packet);
            flow.next = flow.next.saturating_sub(1);
        }
    }

    /// Sends a packet with a fault, and returns whether it was accepted.
    fn send_with_fault(
        &mut self,
        fault: Fault,
        random: &mut SplitMix64,
        packet: &TxPacket<'_>,
    ) -> io::Result<bool> {
        match fault {
            Fault::Loss => self.counts.lost += 1,
            Fault::Duplication => match self.forward(&[*packet; 2])? {
                0 => return Ok(false),
                1 => self.counts.untouched += 1,
                _ => self.counts.duplicated += 1,
            },
            Fault::Corruption => {
                let mut bytes = std::mem::take(&mut self.scratch);
                bytes.clear();
                bytes.extend_from_slice(packet.bytes);
                // The ICRC covers all but the fifth byte, which switches may change.
                let index = random.next_u64() as usize % bytes.len().max(1);
                let index = if index == UNCOVERED_BYTE { 0 } else { index };
                if let Some(byte) = bytes.get_mut(index) {
                    *byte ^= 1 << (random.next_u64() & 7);
                }
                let sent = self.forward(&[TxPacket { bytes: &bytes, ..*packet }]);
                self.scratch = bytes;
                if sent? == 0 {
                    return Ok(false);
                }
                self.counts.corrupted += 1;
            }
            Fault::EcnMark => {
                // A packet that isn't ECN-capable is sent unchanged, although a congested switch would drop it.
                let is_ecn_capable = packet.traffic_class & ECN_CE != 0;
                let mark = if is_ecn_capable { ECN_CE } else { 0 };
                let traffic_class = packet.traffic_class | mark;
                if self.forward(&[TxPacket { traffic_class, ..*packet }])? == 0 {
                    return Ok(false);
                }
                *(if is_ecn_capable { &mut self.counts.marked } else { &mut self.counts.untouched }) += 1;
            }
            Fault::Delay => {
                let FaultConfig { min_delay, max_delay, latency, .. } = self.config;
                let fraction = (random.next_u64() >> 32) as f64 / f64::from(u32::MAX);
                let delay = min_delay + max_delay.saturating_sub(min_delay).mul_f64(fraction);
                if !self.hold(packet, latency + delay) {
                    return Ok(false);
                }
                self.counts.delayed += 1;
            }
        }
        Ok(true)
    }

    /// Sends packets, or holds them for the configured latency. Returns the number of accepted packets.
    fn forward(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        let latency = self.config.latency;
        if latency.is_zero() {
            return self.inner.send(packets);
        }
        Ok(packets.iter().take_while(|packet| self.hold(packet, latency)).count())
    }

    /// Holds a packet for some time. Returns false if it isn't accepted, because too many packets are held.
    fn hold(&mut self, packet: &TxPacket<'_>, delay: Duration) -> bool {
        if self.delayed.len() >= MAX_DELAYED {
            return false;
        }
        self.delayed.push(Reverse(DelayedPacket {
            due: Instant::now() + delay,
            number: self.next,
            source: packet.source,
            destination: packet.destination,
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            flow_label: packet.flow_label,
            bytes: packet.bytes.to_vec(),
        }));
        self.next += 1;
        true
    }

    /// Sends packets, each with its fault if it has one, and adds the number of accepted packets to `accepted`.
    fn send_each(&mut self, packets: &[TxPacket<'_>], accepted: &mut usize) -> io::Result<()> {
        while *accepted < packets.len() {
            // Packets without faults are sent as one batch.
            let rest = &packets[*accepted..];
            let mut fault = None;
            let faultless = rest.iter().take_while(|packet| {
                let (drawn, random) = self.draw(packet);
                fault = drawn.map(|fault| (fault, random));
                fault.is_none()
            });
            let faultless = faultless.count();
            let drawn = faultless + usize::from(fault.is_some());
            if faultless > 0 {
                let sent = self.forward(&rest[..faultless])?;
                self.counts.untouched += sent as u64;
                *accepted += sent;
                if sent < faultless {
                    self.undo_draws(&rest[sent..drawn]);
                    break;
                }
            }
            if let Some((fault, mut random)) = fault {
                if !self.send_with_fault(fault, &mut random, &rest[faultless])? {
                    self.undo_draws(&rest[faultless..drawn]);
                    break;
                }
                *accepted += 1;
            }
        }
        Ok(())
    }

    /// Sends the delayed packets that are due.
    fn send_due(&mut self) -> io::Result<()> {
        if self.delayed.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        while let Some(Reverse(delayed)) = self.delayed.peek()
            && delayed.due <= now
            && self.inner.send(&[delayed.packet()])? == 1
        {
            self.delayed.pop();
        }
        Ok(())
    }
}

impl<L: Link> Link for FaultLink<L> {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        self.check_limit()?;
        let mut accepted = 0;
        match self.send_due().and_then(|()| self.send_each(packets, &mut accepted)) {
            Err(error) if accepted == 0 => Err(error),
            _ => Ok(accepted),
        }
    }

    fn is_receiver_full(&self, packet: &TxPacket<'_>) -> bool {
        self.inner.is_receiver_full(packet)
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        self.check_limit()?;
        self.send_due()?;
        let sent = match self.draw(packet) {
            (Some(fault), mut random) => {
                TimedSend::untimed(usize::from(self.send_with_fault(fault, &mut random, packet)?))
            }
            (None, _) => {
                let sent = match self.config.latency.is_zero() {
                    true => self.inner.send_timed(packet)?,
                    false => TimedSend::untimed(self.forward(&[*packet])?),
                };
                self.counts.untouched += u64::from(sent != TimedSend::Refused);
                sent
            }
        };
        if sent == TimedSend::Refused {
            self.undo_draws(&[*packet]);
        }
        Ok(sent)
    }

    fn unsendable_packets(&self) -> u64 {
        self.inner.unsendable_packets()
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        self.send_due()?;
        if !self.config.strict_icrc {
            return self.inner.receive(max, each);
        }
        self.inner.receive(max, &mut |packet| each(&RxPacket { icrc: STRICT_ICRC, ..*packet }))
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        self.inner.receive_buffer_bytes()
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readiness_fd()
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        self.inner.set_wake_interest(enabled)
    }

    fn deadline(&self) -> Option<Instant> {
        let due = self.delayed.peek().map(|Reverse(delayed)| delayed.due);
        due.into_iter().chain(self.inner.deadline()).min()
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        self.inner.source_ports()
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        self.inner.multicast_groups()
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        self.inner.receive_timestamps()
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        self.inner.address_sharing()
    }
}

/// The ECN bits of a marked packet (congestion experienced).
const ECN_CE: u8 = 0b11;

/// The index of the byte of the base transport header that the ICRC doesn't cover. It contains the congestion marks.
const UNCOVERED_BYTE: usize = 4;

/// The maximum number of flows that are distinguished. If there are more, all get new numbers.
const MAX_FLOWS: usize = 1 << 16;

/// The maximum number of delayed packets.
const MAX_DELAYED: usize = 1 << 16;

/// The packets to one queue pair.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// The number of flows before this one.
    number: u64,
    /// The number of the next packet.
    next: u64,
}

impl Flow {
    /// Returns the generator of the random choices about the next packet.
    fn random(self, seed: u64) -> SplitMix64 {
        let flow = SplitMix64(seed ^ SplitMix64(self.number).next_u64()).next_u64();
        SplitMix64(flow ^ SplitMix64(self.next).next_u64())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Loss,
    Duplication,
    Corruption,
    Delay,
    EcnMark,
}

/// A delayed packet. Delayed packets are ordered by due time.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct DelayedPacket {
    due: Instant,
    number: u64,
    source: SocketAddr,
    destination: SocketAddr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    bytes: Vec<u8>,
}

impl DelayedPacket {
    fn packet(&self) -> TxPacket<'_> {
        TxPacket {
            source: self.source,
            destination: self.destination,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            bytes: &self.bytes,
        }
    }
}
