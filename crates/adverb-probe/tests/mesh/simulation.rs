//! A simulated mesh: probes in virtual time, with faults of the network and of processes.

use std::net::IpAddr;
use std::time::Duration;

use adverb_probe::mesh::{Cell, CellKey, Delays, Diagnosis, Matrix, Member, STALL, diagnose};
use adverb_wire::random::SplitMix64;

/// The time between two probes of a member, in microseconds.
const INTERVAL: u64 = 100_000;
/// The time that a packet takes from one member to another.
const PACKET_DELAY: u64 = 20;
/// The time after which a probe is lost.
const TIMEOUT: u64 = 1_000_000;
const SECOND: u64 = 1_000_000;

/// A loss of packets, each with this probability.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// Packets from and to a member.
    Nic(usize, f64),
    /// Packets of a class.
    Class(u8, f64),
    /// Packets of a class, from and to a member.
    NicClass(usize, u8, f64),
    /// Packets between two members.
    Path(usize, usize, f64),
    /// Packets from and to the members of a rail.
    Rail(usize, f64),
    /// All packets.
    All(f64),
}

/// The times in which a process does not run, in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stops(Vec<(u64, u64)>);

impl Stops {
    /// Returns stops of `stopped` ms, between which the process runs for `running` ms, both varied by up to a quarter.
    pub(crate) fn bursts(random: &mut SplitMix64, stopped: u64, running: u64, end: u64) -> Stops {
        let mut stops = Vec::new();
        let mut vary = |ms: u64| ms * 750 + random.below(ms * 500 + 1);
        let mut time = vary(running);
        while time < end * SECOND {
            let until = time + vary(stopped);
            stops.push((time, until));
            time = until + vary(running);
        }
        Stops(stops)
    }

    /// Returns the stops of a process on a busy machine: up to 90 ms about once a second, and one of 25 up to 400 ms.
    pub(crate) fn busy(random: &mut SplitMix64, end: u64) -> Stops {
        let mut stops = Vec::new();
        let mut time = 0;
        while time < end * SECOND {
            time += random.below(2 * SECOND);
            let limit = if random.below(25) == 0 { 400_000 } else { 90_000 };
            let until = time + random.below(limit);
            stops.push((time, until));
            time = until;
        }
        Stops(stops)
    }

    /// Returns these stops and other ones, as if a process that is stopped at times also waits for a core.
    pub(crate) fn and(mut self, other: Stops) -> Stops {
        self.0.extend(other.0);
        self.0.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in self.0 {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Stops(merged)
    }

    /// Returns the stop that contains the time: its number, its start and its end.
    fn at(&self, time: u64) -> Option<(usize, u64, u64)> {
        let n = self.0.partition_point(|&(_, end)| end <= time);
        self.0.get(n).filter(|&&(start, _)| start <= time).map(|&(start, end)| (n, start, end))
    }
}

/// A mesh to simulate.
pub(crate) struct Simulation {
    pub(crate) random: SplitMix64,
    pub(crate) members: Vec<Member>,
    /// The members that only answer.
    pub(crate) passive: Vec<usize>,
    pub(crate) classes: Vec<u8>,
    pub(crate) losses: Vec<Loss>,
    /// The stops of processes, by their identifiers.
    pub(crate) stops: Vec<Stops>,
    /// The number of packets that a stopped process' socket holds.
    pub(crate) queue: u64,
}

/// Returns the address of a member.
pub(crate) fn address(n: usize) -> IpAddr {
    [10, 0, 0, n as u8 + 1].into()
}

impl Simulation {
    /// Creates a mesh of eight members, two rails and two classes. Each member has its own process, or one process serves them
    /// all.
    pub(crate) fn new(seed: u64, has_own_processes: bool) -> Simulation {
        let member = |n: usize| Member {
            address: address(n),
            process: if has_own_processes { n as u64 } else { 0 },
            rail: Some(format!("rail{}", n % 2)),
        };
        Simulation {
            random: SplitMix64(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed),
            members: (0..8).map(member).collect(),
            passive: Vec::new(),
            classes: vec![0, 26],
            losses: vec![Loss::All(1e-4)],
            stops: vec![Stops::default(); 8],
            queue: 32,
        }
    }

    /// Makes the machine busy, in addition to other stops: every process waits for a core now and then.
    pub(crate) fn make_busy(&mut self) {
        for stops in &mut self.stops {
            *stops = std::mem::take(stops).and(Stops::busy(&mut self.random, 1800));
        }
    }

    /// Runs for some seconds, and calls `inspect` with each second's number and diagnosis.
    pub(crate) fn run(mut self, seconds: u64, mut inspect: impl FnMut(u64, &Diagnosis)) -> Matrix {
        let mut matrix = Matrix::new(self.members.iter().cloned());
        let mut queues: Vec<Vec<u64>> = self.stops.iter().map(|stops| vec![0; stops.0.len()]).collect();
        // Results by the second in which the prober knows them.
        let mut results: Vec<Vec<(u64, CellKey, Cell)>> = vec![Vec::new(); seconds as usize + 60];
        for second in 0..seconds {
            for source in 0..self.members.len() {
                if self.passive.contains(&source) {
                    continue;
                }
                for tick in 0..SECOND / INTERVAL {
                    let time = second * SECOND + tick * INTERVAL + source as u64 * 7_001;
                    let process = self.members[source].process as usize;
                    if let Some((_, start, end)) = self.stops[process].at(time) {
                        // The prober notices a stop once, by the first probe that is late.
                        if end - time >= STALL.as_micros() as u64 && time - start < INTERVAL {
                            let stall = Duration::from_micros(end - time);
                            let known = (end / SECOND) as usize;
                            let known = known.min(results.len() - 1);
                            let route = self.route(source, source, 0);
                            let prober = Delays { count: 1, stall_count: 1, max: stall };
                            results[known].push((second, route, Cell { prober, ..Cell::default() }));
                        }
                        continue;
                    }
                    let count = second * (SECOND / INTERVAL) + tick;
                    self.probe(source, count, time, &mut queues, &mut results);
                }
            }
            for (window, route, cell) in std::mem::take(&mut results[second as usize]) {
                match route.source == route.destination {
                    true => matrix.record_stall(window, route.source, cell.prober.max),
                    false => matrix.record(window, route, &cell),
                }
            }
            matrix.advance(second + 1);
            inspect(second + 1, &diagnose(&matrix));
        }
        matrix
    }

    fn route(&self, source: usize, destination: usize, class: u8) -> CellKey {
        CellKey { source: address(source), destination: address(destination), class }
    }

    /// Sends one probe, and adds its result.
    fn probe(
        &mut self,
        source: usize,
        count: u64,
        time: u64,
        queues: &mut [Vec<u64>],
        results: &mut [Vec<(u64, CellKey, Cell)>],
    ) {
        let others = self.members.len() as u64 - 1;
        let destination = ((count % others) as usize + source + 1) % self.members.len();
        let class = self.classes[(count / others) as usize % self.classes.len()];
        let route = self.route(source, destination, class);
        let window = time / SECOND;
        let last = results.len() - 1;
        let mut add =
            |at: u64, cell: Cell| results[((at / SECOND) as usize).min(last)].push((window, route, cell));
        let timeout = self.resumed(source, time + TIMEOUT);
        let lost = Cell { probes: 1, lost: 1, ..Cell::default() };
        let received = time + PACKET_DELAY;
        if self.draw_loss(source, destination, class) || !self.is_queued(destination, received, queues) {
            return add(timeout, lost);
        }
        let answered = self.resumed(destination, received);
        let acknowledged = answered + PACKET_DELAY;
        if self.draw_loss(destination, source, class) || !self.is_queued(source, acknowledged, queues) {
            return add(timeout, lost);
        }
        let processed = self.resumed(source, acknowledged);
        let has_ack2 = !self.draw_loss(destination, source, class);
        let delay = |duration: u64| {
            let mut delays = Delays::default();
            delays.record(Duration::from_micros(duration));
            delays
        };
        let mut cell = Cell { probes: 1, ..Cell::default() };
        if has_ack2 {
            cell.network = delay(2 * PACKET_DELAY);
            cell.responder = delay(answered - received);
            cell.prober = delay(processed - acknowledged);
        } else {
            (cell.lost, cell.return_lost) = (1, 1);
        }
        if processed > timeout {
            add(timeout, lost);
            add(processed, Cell { probes: 0, lost: 0, late: u64::from(has_ack2), ..cell });
        } else {
            add(if has_ack2 { processed } else { timeout }, cell);
        }
    }

    /// Returns the time at which the member's process runs, from this time on.
    fn resumed(&self, member: usize, time: u64) -> u64 {
        self.stops[self.members[member].process as usize].at(time).map_or(time, |(_, _, end)| end)
    }

    /// Whether a packet fits the socket of a process that may be stopped.
    fn is_queued(&self, member: usize, time: u64, queues: &mut [Vec<u64>]) -> bool {
        let process = self.members[member].process as usize;
        let Some((stop, ..)) = self.stops[process].at(time) else { return true };
        queues[process][stop] += 1;
        queues[process][stop] <= self.queue
    }

    fn draw_loss(&mut self, from: usize, to: usize, class: u8) -> bool {
        let mut is_lost = false;
        for &loss in &self.losses {
            let has_end = |member: usize| from == member || to == member;
            let probability = match loss {
                Loss::Nic(member, probability) if has_end(member) => probability,
                Loss::Class(lossy, probability) if class == lossy => probability,
                Loss::NicClass(member, lossy, probability) if has_end(member) && class == lossy => {
                    probability
                }
                Loss::Path(one, other, probability) if has_end(one) && has_end(other) => probability,
                Loss::Rail(rail, probability) if from % 2 == rail || to % 2 == rail => probability,
                Loss::All(probability) => probability,
                _ => 0.0,
            };
            is_lost |= self.random.chance(probability);
        }
        is_lost
    }
}
