//! The condition of processes and members per window: which results say nothing about the network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::matrix::{Cell, Matrix, Route, SPAN, STALL};

/// The windows whose results say nothing about the network, with the reasons.
#[derive(Debug, Default)]
pub(super) struct Condition {
    /// The windows in which a process did not run for at least [`STALL`].
    stalled: BTreeMap<u64, Stalls>,
    /// The windows in which an answer between two members was delayed, and it is unknown by which host.
    doubtful: BTreeMap<(IpAddr, IpAddr), BTreeSet<u64>>,
    /// The windows in which a member answered nothing.
    silent: BTreeMap<IpAddr, BTreeSet<u64>>,
}

/// The stalls of a process.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    pub(super) windows: BTreeSet<u64>,
    pub(super) longest: Duration,
}

/// The results that a member's probers saw in a window.
#[derive(Debug, Default)]
struct Seen {
    has_answered: bool,
    sources: BTreeSet<IpAddr>,
}

impl Condition {
    pub(super) fn new(matrix: &Matrix) -> Condition {
        let mut condition = Condition::default();
        for (number, window) in matrix.windows() {
            let mut seen: BTreeMap<IpAddr, Seen> = BTreeMap::new();
            for (route, cell) in window.cells.iter().filter(|(_, cell)| cell.probes + cell.late > 0) {
                condition.add(matrix, number, route, cell);
                let seen = seen.entry(route.destination).or_default();
                seen.has_answered |= cell.probes > cell.unanswered();
                if !seen.has_answered {
                    seen.sources.insert(route.source);
                }
            }
            for (member, &duration) in &window.stalls {
                condition.add_stall(matrix, number, member, duration);
            }
            // One silent route is a fault of that route, not of the member.
            let is_silent = |seen: &Seen| !seen.has_answered && seen.sources.len() >= 2;
            for (member, _) in seen.into_iter().filter(|(_, seen)| is_silent(seen)) {
                condition.silent.entry(member).or_default().insert(number);
            }
        }
        condition
    }

    fn add(&mut self, matrix: &Matrix, number: u64, route: &Route, cell: &Cell) {
        self.add_stall(matrix, number, &route.destination, cell.responder.max);
        self.add_stall(matrix, number, &route.source, cell.prober.max);
        if cell.late == 0 && cell.process_stamped.max < STALL {
            return;
        }
        let is_explained = cell.responder.max >= STALL || cell.prober.max >= STALL;
        if cell.process_stamped.max >= STALL || (cell.late > 0 && !is_explained) {
            let windows = self.doubtful.entry(pair(route)).or_default();
            windows.extend(stalled_windows(matrix, number, cell.process_stamped.max));
        }
    }

    fn add_stall(&mut self, matrix: &Matrix, number: u64, member: &IpAddr, duration: Duration) {
        let Some(member) = matrix.member(member) else { return };
        if duration >= STALL {
            let stalls = self.stalled.entry(member.process).or_default();
            stalls.windows.extend(stalled_windows(matrix, number, duration));
            stalls.longest = stalls.longest.max(duration);
        }
    }

    /// Returns the processes that stalled.
    pub(super) fn stalls(&self) -> impl Iterator<Item = (u64, &Stalls)> {
        self.stalled.iter().map(|(&process, stalls)| (process, stalls))
    }

    /// Whether the process stalled in this window or next to it.
    ///
    /// A stall is known by the windows of the probes that it delayed. The windows next to them are included, because
    /// probes that were sent just before the stall, or were queued behind it, are affected too.
    pub(super) fn is_stalled(&self, process: u64, number: u64) -> bool {
        self.stalled.get(&process).is_some_and(|stalls| is_near(&stalls.windows, number))
    }

    /// Whether the member answered nothing in this window.
    pub(super) fn is_silent(&self, member: &IpAddr, number: u64) -> bool {
        self.silent.get(member).is_some_and(|windows| windows.contains(&number))
    }

    /// Whether the losses of a route in this window are evidence about the network.
    pub(super) fn is_evidence(&self, matrix: &Matrix, route: &Route, number: u64) -> bool {
        let is_clean = |address: &IpAddr| {
            let is_stalled =
                matrix.member(address).is_none_or(|member| self.is_stalled(member.process, number));
            !is_stalled && !self.silent.get(address).is_some_and(|windows| is_near(windows, number))
        };
        let is_doubtful = self.doubtful.get(&pair(route)).is_some_and(|windows| is_near(windows, number));
        is_clean(&route.source) && is_clean(&route.destination) && !is_doubtful
    }
}

/// Returns the two members of a route in the order of their addresses.
fn pair(route: &Route) -> (IpAddr, IpAddr) {
    (route.source.min(route.destination), route.source.max(route.destination))
}

/// Returns the windows of a stall that began in the window `number`.
fn stalled_windows(matrix: &Matrix, number: u64, duration: Duration) -> impl Iterator<Item = u64> {
    let count = duration.as_nanos() / matrix.window().as_nanos().max(1);
    number..=number.saturating_add(u64::try_from(count).unwrap_or(u64::MAX).min(SPAN))
}

/// Whether one of the windows is `number` or next to it.
fn is_near(windows: &BTreeSet<u64>, number: u64) -> bool {
    windows.range(number.saturating_sub(1)..=number.saturating_add(1)).next().is_some()
}
