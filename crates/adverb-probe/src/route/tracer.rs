//! The state machine of a trace.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::pace::Level;
use super::paths::{Path, Route, ports_needed};
use super::{Hop, HopState, PathEnd, TraceOptions, Unreachable};
use crate::error::Result;

/// A probe that the caller sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteProbe {
    /// The number of the probe, from 0 on. The packet carries it, so that an answer can be matched with the probe.
    pub id: u32,
    /// The UDP source port.
    pub source_port: u16,
    /// The IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
}

/// A message of ICMP or ICMPv6 about a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpMessage {
    /// The hop limit became 0 in transit.
    TimeExceeded,
    /// The packet can't be delivered.
    Unreachable(Unreachable),
}

/// The progress of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TraceProgress {
    /// The number of source ports whose paths are known.
    pub finished_port_count: usize,
    /// The number of source ports that the trace needs, as far as is known.
    pub port_count: usize,
    /// The number of distinct paths.
    pub path_count: usize,
    /// The number of probes that were sent.
    pub probe_count: u64,
}

/// A trace of the paths to a destination, as a state machine without I/O.
///
/// The caller repeats these steps until [`is_finished`](Tracer::is_finished):
///
/// 1. Send the probes that [`poll_transmit`](Tracer::poll_transmit) returns.
/// 2. Wait for answers, at most until [`poll_timeout`](Tracer::poll_timeout).
/// 3. Pass the answers to [`handle_icmp`](Tracer::handle_icmp) and [`handle_ack`](Tracer::handle_ack).
///
/// ```
/// use std::time::Instant;
/// use adverb::probe::route::{IcmpMessage, TraceOptions, Tracer};
///
/// // In this network, the destination is behind one router.
/// let (router, destination) = ("10.0.0.1".parse()?, "10.0.1.2".parse()?);
/// let mut now = Instant::now();
/// let mut tracer = Tracer::new(TraceOptions::new(), destination, 0xc001..=0xffff)?;
/// while !tracer.is_finished() {
///     while let Some(probe) = tracer.poll_transmit(now) {
///         match probe.hop_limit {
///             1 => tracer.handle_icmp(probe.source_port, Some(probe.id), router, IcmpMessage::TimeExceeded, now),
///             _ => tracer.handle_ack(probe.id, now),
///         }
///     }
///     now = tracer.poll_timeout().unwrap_or(now);
/// }
/// let route = tracer.into_route();
/// assert!(route.paths[0].addresses().eq([Some(router), Some(destination)]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tracer {
    options: TraceOptions,
    destination: IpAddr,
    /// Source ports that were not used so far, the next one last.
    candidates: Vec<u16>,
    /// The source ports that are traced.
    active: Vec<Trace>,
    /// Finished traces with a silent hop that no source port has had an answer from.
    provisional: Vec<Trace>,
    /// The number of source ports to trace, as far as is known.
    target: usize,
    started_count: usize,
    /// The state of the hops at each distance, the first hop first.
    levels: Vec<Level>,
    /// All probes from active source ports, by number.
    sent: BTreeMap<u32, SentProbe>,
    next_id: u32,
    /// The time of the last probe.
    last_sent_at: Option<Instant>,
    /// The smallest hop limit with which a probe reached the destination.
    distance: Option<u8>,
    /// Whether a router reported packets without enough of their bytes to identify the probe. Then only one probe per
    /// source port is outstanding at a time.
    is_serial: bool,
    route: Route,
}

#[derive(Clone, Copy, Debug)]
struct SentProbe {
    source_port: u16,
    hop_limit: u8,
    sent_at: Instant,
    /// Whether the timeout has not elapsed and no answer arrived.
    is_outstanding: bool,
}

/// The trace of one source port.
#[derive(Debug)]
struct Trace {
    source_port: u16,
    /// The state of each hop, the first hop first.
    hops: Vec<Progress>,
    /// Whether the trace was finished before, and resumed because a silent hop answered another source port.
    is_resumed: bool,
}

/// The state of a hop of one source port.
#[derive(Clone, Copy, Debug)]
enum Progress {
    /// The hop has not answered.
    Unknown {
        /// The number of unanswered probes.
        timeout_count: u8,
        /// The time before which no probe is sent.
        retry_at: Option<Instant>,
        is_outstanding: bool,
    },
    /// The hop answered, or is inferred (without a round-trip time).
    Known { address: IpAddr, terminal: Option<Terminal>, rtt: Option<Duration> },
    /// The hop is silent.
    Silent,
}

/// An answer that ends a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Terminal {
    Destination,
    Unreachable(Unreachable),
}

/// The maximum time before a silent hop is probed again.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

impl Progress {
    const NEW: Progress = Progress::Unknown { timeout_count: 0, retry_at: None, is_outstanding: false };
}

impl Tracer {
    /// Creates a trace to `destination` that may use these source ports, the first ones first. Repeated ports have no
    /// effect.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::InvalidOption`](crate::ProbeError::InvalidOption) if a number of the options is 0, and
    /// [`ProbeError::InvalidConfidence`](crate::ProbeError::InvalidConfidence).
    pub fn new(
        options: TraceOptions,
        destination: IpAddr,
        source_ports: impl IntoIterator<Item = u16>,
    ) -> Result<Tracer> {
        options.check()?;
        let mut is_seen = vec![false; 1 << 16];
        let mut candidates: Vec<u16> = source_ports.into_iter().collect();
        candidates.retain(|&port| !std::mem::replace(&mut is_seen[usize::from(port)], true));
        candidates.reverse();
        Ok(Tracer {
            destination,
            candidates,
            active: Vec::new(),
            provisional: Vec::new(),
            target: 1,
            started_count: 0,
            levels: (0..options.max_hops).map(|_| Level::default()).collect(),
            sent: BTreeMap::new(),
            next_id: 0,
            last_sent_at: None,
            distance: None,
            is_serial: false,
            route: Route::default(),
            options,
        })
    }

    /// Returns the next probe to send now, or `None` if no probe is due.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<RouteProbe> {
        self.expire(now);
        self.advance();
        if self.last_sent_at.is_some_and(|sent_at| now < sent_at + self.options.gap) {
            return None;
        }
        let (at, index, hop) = self.next_probe(now)?;
        if at > now {
            return None;
        }
        let probe = RouteProbe {
            id: self.next_id,
            source_port: self.active[index].source_port,
            hop_limit: hop as u8 + 1,
        };
        self.next_id += 1;
        let Progress::Unknown { is_outstanding, .. } = &mut self.active[index].hops[hop] else { return None };
        *is_outstanding = true;
        let RouteProbe { source_port, hop_limit, .. } = probe;
        self.sent.insert(probe.id, SentProbe { source_port, hop_limit, sent_at: now, is_outstanding: true });
        self.levels[hop].note_sent(now);
        self.last_sent_at = Some(now);
        self.route.probe_count += 1;
        Some(probe)
    }

    /// Returns the time of the next call of [`poll_transmit`](Tracer::poll_transmit), or `None` if the trace is
    /// finished.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let outstanding = self.sent.values().filter(|sent| sent.is_outstanding);
        let expiry = outstanding.map(|sent| sent.sent_at + self.options.timeout).min();
        let earliest = self.last_sent_at.map(|sent_at| sent_at + self.options.gap);
        // Before the first probe any time will do, and the caller's first call has no wait before it.
        let transmit = earliest.and_then(|earliest| self.next_probe(earliest)).map(|(at, ..)| at);
        expiry.into_iter().chain(transmit).min()
    }

    /// Whether all paths are known that the options ask for.
    pub fn is_finished(&self) -> bool {
        self.started_count > 0 && self.active.is_empty()
            || self.started_count == 0 && self.candidates.is_empty()
    }

    /// Whether the trace still sends probes from this source port, or may receive answers to it.
    pub fn is_active(&self, source_port: u16) -> bool {
        self.active.iter().any(|trace| trace.source_port == source_port)
    }

    /// Returns the progress of the trace.
    pub fn progress(&self) -> TraceProgress {
        TraceProgress {
            finished_port_count: self.route.port_count,
            port_count: self.target.max(self.started_count),
            path_count: self.route.paths.len(),
            probe_count: self.route.probe_count,
        }
    }

    /// Returns the paths that are known so far. Source ports whose trace isn't finished are missing.
    pub fn into_route(self) -> Route {
        self.route
    }

    /// Takes a message of ICMP about a packet from `source_port`. `id` is the number of the probe, or `None` if the
    /// message has too few bytes of the packet.
    pub fn handle_icmp(
        &mut self,
        source_port: u16,
        id: Option<u32>,
        from: IpAddr,
        message: IcmpMessage,
        received_at: Instant,
    ) {
        let terminal = match message {
            IcmpMessage::TimeExceeded => None,
            IcmpMessage::Unreachable(Unreachable::Port) if from == self.destination => {
                Some(Terminal::Destination)
            }
            IcmpMessage::Unreachable(reason) => Some(Terminal::Unreachable(reason)),
        };
        let Some(id) = id.or_else(|| self.only_outstanding(source_port)) else { return };
        // A router can't choose the source port to which the kernel delivers its message, but it can write any number.
        if self.sent.get(&id).is_some_and(|sent| sent.source_port == source_port) {
            self.handle_answer(id, from, terminal, received_at);
        }
    }

    /// Takes an acknowledgement of a probe by the destination's responder.
    pub fn handle_ack(&mut self, id: u32, received_at: Instant) {
        self.handle_answer(id, self.destination, Some(Terminal::Destination), received_at);
    }

    /// Replaces a source port that can't be used, for example because another program has it.
    pub fn handle_unavailable_port(&mut self, source_port: u16) {
        let Some(index) = self.active.iter().position(|trace| trace.source_port == source_port) else {
            return;
        };
        self.active.remove(index);
        self.sent.retain(|_, sent| sent.source_port != source_port);
        self.started_count -= 1;
        self.advance();
    }

    /// Returns the only outstanding probe of a source port. If there are several, only one will be outstanding from now
    /// on.
    fn only_outstanding(&mut self, source_port: u16) -> Option<u32> {
        let of_port = |sent: &SentProbe| sent.source_port == source_port && sent.is_outstanding;
        let mut ids = self.sent.iter().filter(|(_, sent)| of_port(sent)).map(|(&id, _)| id);
        let (first, second) = (ids.next(), ids.next());
        self.is_serial |= second.is_some();
        first.filter(|_| second.is_none())
    }

    fn handle_answer(&mut self, id: u32, address: IpAddr, terminal: Option<Terminal>, received_at: Instant) {
        let Some(sent) = self.sent.get_mut(&id) else { return };
        sent.is_outstanding = false;
        let SentProbe { source_port, hop_limit, sent_at, .. } = *sent;
        let Some(trace) = self.active.iter_mut().find(|trace| trace.source_port == source_port) else {
            return;
        };
        let (hop, level) = (usize::from(hop_limit) - 1, &mut self.levels[usize::from(hop_limit) - 1]);
        match trace.hops[hop] {
            Progress::Unknown { timeout_count, .. } => {
                level.note_answer(address, terminal, timeout_count > 0);
            }
            Progress::Silent => level.note_late_answer(address, terminal),
            // A duplicate, or a late answer to an earlier probe.
            Progress::Known { .. } => return,
        }
        let rtt = Some(received_at.saturating_duration_since(sent_at));
        trace.hops[hop] = Progress::Known { address, terminal, rtt };
        if terminal == Some(Terminal::Destination) {
            self.distance = Some(self.distance.map_or(hop_limit, |distance| distance.min(hop_limit)));
        }
        self.advance();
    }

    /// Ends the wait for probes whose timeout has elapsed.
    fn expire(&mut self, now: Instant) {
        for sent in self.sent.values_mut() {
            if !sent.is_outstanding || now < sent.sent_at + self.options.timeout {
                continue;
            }
            sent.is_outstanding = false;
            let level = &mut self.levels[usize::from(sent.hop_limit) - 1];
            let mut traces = self.active.iter_mut();
            let Some(trace) = traces.find(|trace| trace.source_port == sent.source_port) else { continue };
            let hop = &mut trace.hops[usize::from(sent.hop_limit) - 1];
            let Progress::Unknown { timeout_count, retry_at, is_outstanding } = hop else { continue };
            level.note_timeout(sent.sent_at, now, *timeout_count == 0);
            *timeout_count += 1;
            *is_outstanding = false;
            if *timeout_count >= level.max_attempts(&self.options) {
                level.note_silent();
                *hop = Progress::Silent;
            } else if !level.has_answered() {
                let backoff = self.options.timeout * 2_u32.pow(u32::from(*timeout_count - 1).min(8));
                *retry_at = Some(now + backoff.min(MAX_BACKOFF));
            }
        }
    }

    /// Infers hops, ends traces that are finished, and starts others.
    fn advance(&mut self) {
        let port_count = ports_needed(2, self.options.confidence);
        let mut index = 0;
        while index < self.active.len() {
            self.infer(index, port_count);
            if self.active[index].end(&self.options).is_none() {
                index += 1;
                continue;
            }
            let trace = self.active.remove(index);
            self.sent.retain(|_, sent| sent.source_port != trace.source_port);
            if !trace.is_resumed && trace.silent_hops().any(|hop| !self.levels[hop].has_answered()) {
                self.provisional.push(trace);
            } else {
                self.route.port_count += 1;
                self.route.add(trace.path(&self.options));
            }
        }
        let max_paths = self.options.max_paths;
        if self.route.paths.len() >= max_paths {
            // The remaining source ports take these paths, too, or paths beyond the maximum number.
            self.active.clear();
            self.provisional.clear();
            self.sent.clear();
            self.target = self.started_count;
            return;
        }
        if self.active.is_empty() && self.started_count > 0 {
            self.resume_provisional();
        }
        if self.active.is_empty() && self.started_count > 0 {
            let mut route = self.route.clone();
            self.provisional.iter().for_each(|trace| route.add(trace.path(&self.options)));
            // If there were one more path, this number of ports would have found it with the wanted probability.
            let path_count = (route.paths.len() + 1).min(max_paths);
            self.target = self.target.max(ports_needed(path_count, self.options.confidence));
        }
        self.start();
        if self.active.is_empty() {
            self.route.port_count += self.provisional.len();
            self.provisional.drain(..).for_each(|trace| self.route.add(trace.path(&self.options)));
        }
    }

    /// Resumes finished traces with a silent hop that has answered another source port since.
    fn resume_provisional(&mut self) {
        let levels = &self.levels;
        let has_answered = |trace: &mut Trace| trace.silent_hops().any(|hop| levels[hop].has_answered());
        let mut resumed: Vec<Trace> = self.provisional.extract_if(.., has_answered).collect();
        for trace in &mut resumed {
            trace.is_resumed = true;
            for (hop, level) in trace.hops.iter_mut().zip(levels) {
                match hop {
                    Progress::Silent if level.has_answered() => *hop = Progress::NEW,
                    // Its outstanding probes were forgotten.
                    Progress::Unknown { is_outstanding, .. } => *is_outstanding = false,
                    _ => {}
                }
            }
        }
        self.active.append(&mut resumed);
    }

    /// Starts traces of further source ports. The first one is traced alone, because the others need fewer probes if the
    /// distance of the destination is known.
    fn start(&mut self) {
        while self.started_count < self.target && self.active.len() < self.options.max_active_ports {
            let Some(source_port) = self.candidates.pop() else { return };
            let hops = vec![Progress::NEW; usize::from(self.options.max_hops)];
            self.active.push(Trace { source_port, hops, is_resumed: false });
            self.started_count += 1;
        }
    }

    /// Takes hops that all source ports share from the other source ports.
    fn infer(&mut self, index: usize, port_count: usize) {
        for (hop, level) in self.active[index].hops.iter_mut().zip(&self.levels) {
            let is_new = matches!(hop, Progress::Unknown { timeout_count: 0, is_outstanding: false, .. });
            if let Some((address, terminal)) = level.unanimous(port_count)
                && is_new
            {
                *hop = Progress::Known { address, terminal, rtt: None };
            }
        }
    }

    /// Returns the next probe as its time, its source port's index and its hop's index.
    fn next_probe(&self, now: Instant) -> Option<(Instant, usize, usize)> {
        let mut next: Option<(Instant, usize, usize)> = None;
        for (index, trace) in self.active.iter().enumerate() {
            if self.is_serial && trace.is_waiting() {
                continue;
            }
            for hop in trace.window(self.distance) {
                let Progress::Unknown { retry_at, is_outstanding: false, .. } = trace.hops[hop] else {
                    continue;
                };
                let at = self.levels[hop].next_at(now).max(retry_at.unwrap_or(now));
                if next.is_none_or(|(earliest, ..)| at < earliest) {
                    next = Some((at, index, hop));
                }
            }
        }
        next
    }
}

impl Trace {
    /// Returns the unknown hops that may be probed at the same time. If other source ports reach the destination at a
    /// distance, these are all hops up to it. Otherwise each hop is probed when the hop before it has answered, or has
    /// not answered in time, so that no more probes than necessary reach the destination.
    fn window(&self, distance: Option<u8>) -> impl Iterator<Item = usize> {
        let is_unknown = |hop: &Progress| matches!(hop, Progress::Unknown { .. });
        let distance = distance.map_or(0, usize::from);
        let is_usual = self.hops[..distance].iter().any(is_unknown);
        let ends = |hop: &Progress| matches!(hop, Progress::Known { terminal: Some(_), .. });
        let is_new = |hop: &Progress| matches!(hop, Progress::Unknown { timeout_count: 0, .. });
        let mut new_count = 0;
        let hops = self.hops.iter().enumerate().take_while(move |(_, hop)| !ends(hop));
        let due = hops.take_while(move |&(index, hop)| {
            let is_due = if is_usual { index < distance } else { new_count == 0 };
            new_count += usize::from(is_new(hop));
            is_due
        });
        due.filter(move |(_, hop)| is_unknown(hop)).map(|(index, _)| index)
    }

    /// Returns the number of hops and the end of a path, or `None` if it isn't known.
    fn end(&self, options: &TraceOptions) -> Option<(usize, PathEnd)> {
        let hops = &self.hops;
        let mut silent_count = 0;
        for (hop, progress) in hops.iter().enumerate() {
            match *progress {
                Progress::Unknown { .. } => return None,
                Progress::Silent => silent_count += 1,
                Progress::Known { terminal: Some(Terminal::Destination), .. } => {
                    return Some((hop + 1, PathEnd::Destination));
                }
                Progress::Known { terminal: Some(Terminal::Unreachable(reason)), .. } => {
                    return Some((hop + 1, PathEnd::Unreachable(reason)));
                }
                Progress::Known { address, .. } if closes_loop(&hops[..hop], address) => {
                    return Some((hop + 1, PathEnd::Loop));
                }
                Progress::Known { .. } => silent_count = 0,
            }
            if silent_count >= usize::from(options.max_silent_hops) {
                return Some((hop + 1 - silent_count, PathEnd::NoAnswer));
            }
        }
        match silent_count {
            0 => Some((hops.len(), PathEnd::MaxHops)),
            _ => Some((hops.len() - silent_count, PathEnd::NoAnswer)),
        }
    }

    /// Returns the indices of the silent hops.
    fn silent_hops(&self) -> impl Iterator<Item = usize> {
        let hops = self.hops.iter().enumerate();
        hops.filter(|(_, hop)| matches!(hop, Progress::Silent)).map(|(index, _)| index)
    }

    /// Whether a probe is outstanding.
    fn is_waiting(&self) -> bool {
        self.hops.iter().any(|hop| matches!(hop, Progress::Unknown { is_outstanding: true, .. }))
    }

    /// Returns the path of a finished trace.
    fn path(&self, options: &TraceOptions) -> Path {
        let (hop_count, end) = self.end(options).unwrap_or((0, PathEnd::NoAnswer));
        let hops = self.hops.iter().take(hop_count).zip(1..).map(|(progress, hop_limit)| {
            let state = match *progress {
                Progress::Known { address, rtt: Some(rtt), .. } => HopState::Answered { address, rtt },
                Progress::Known { address, rtt: None, .. } => HopState::Inferred { address },
                Progress::Silent | Progress::Unknown { .. } => HopState::Silent,
            };
            Hop { hop_limit, state }
        });
        Path {
            source_port: self.source_port,
            source_ports: vec![self.source_port],
            hops: hops.collect(),
            end,
        }
    }
}

/// Whether the hops before an address contain it, other than as the last one. (A router that forwards packets with a
/// hop limit of 0 makes the next router answer twice.)
fn closes_loop(before: &[Progress], address: IpAddr) -> bool {
    let is_same = |hop: &Progress| matches!(hop, Progress::Known { address: known, .. } if *known == address);
    before.split_last().is_some_and(|(_, earlier)| earlier.iter().any(is_same))
}
