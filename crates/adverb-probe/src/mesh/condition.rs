//! The condition of processes and members per window, and the results that are no evidence about the network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::matrix::{Cell, CellKey, LONG_STALL, Matrix, SPAN, STALL, Window};

/// The number of windows, of the last [`SPAN`], in which a process must stall before it is called slow.
///
/// If a healthy process stalls in 1 % of the windows, the probability of six among 20 is 4e-8. A single stop of up to
/// 4 windows is not called slow.
pub const STALLED_WINDOWS: usize = 6;

/// The share of the time of the last [`SPAN`] windows in which a process must stall before it is called slow.
///
/// The processes of a busy machine may stall in most windows, but only for a small part of each. A process that has
/// used up its CPU quota, or is stopped repeatedly, stalls for most of the time.
pub const STALLED_SHARE: f64 = 0.15;

/// The windows whose results say nothing about the network, with the reasons.
#[derive(Debug, Default)]
pub(super) struct Condition {
    /// The windows in which a process did not run for at least [`STALL`].
    stalled: BTreeMap<u64, Stalls>,
    /// The windows in which an answer between two members was delayed, and it is unknown by which host.
    doubtful: BTreeMap<(IpAddr, IpAddr), BTreeSet<u64>>,
    /// The windows in which a member answered nothing.
    silent: BTreeMap<IpAddr, BTreeSet<u64>>,
    /// The windows in which a process answered for at least one of its members.
    answering: BTreeMap<u64, BTreeSet<u64>>,
    /// The length of a window.
    window: Duration,
}

/// The stalls of a process.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    windows: BTreeMap<u64, Stalled>,
    pub(super) longest: Duration,
    /// The number of windows with stalls, if the process is slow.
    pub(super) slow_windows: Option<usize>,
}

/// The stalls of a process in one window.
#[derive(Clone, Copy, Debug, Default)]
struct Stalled {
    longest: Duration,
    /// The sum of the stalls that the process itself noticed.
    own: Duration,
    delays: DelayCount,
}

/// The results that a member's probers saw in a window.
#[derive(Debug, Default)]
struct Seen {
    has_answered: bool,
    sources: BTreeSet<IpAddr>,
}

/// The number of delays of a process in a window.
#[derive(Clone, Copy, Debug, Default)]
struct DelayCount {
    all: u64,
    stalls: u64,
}

impl Condition {
    pub(super) fn new(matrix: &Matrix) -> Condition {
        let mut condition = Condition { window: matrix.window(), ..Condition::default() };
        for (number, window) in matrix.windows() {
            condition.add_window(matrix, number, window);
        }
        let recent = matrix.current_window().saturating_sub(SPAN)..=matrix.current_window();
        let span = matrix.window().mul_f64(SPAN as f64);
        for stalls in condition.stalled.values_mut() {
            let windows = stalls.windows.range(recent.clone()).map(|(_, stalled)| stalled);
            let count = windows.clone().count();
            let time = stalled_time(windows, matrix.window());
            stalls.slow_windows =
                (count >= STALLED_WINDOWS && time >= span.mul_f64(STALLED_SHARE)).then_some(count);
        }
        condition
    }

    fn add_window(&mut self, matrix: &Matrix, number: u64, window: &Window) {
        let mut seen: BTreeMap<IpAddr, Seen> = BTreeMap::new();
        let mut delays: BTreeMap<u64, DelayCount> = BTreeMap::new();
        for (route, cell) in window.cells.iter().filter(|(_, cell)| cell.probes + cell.late > 0) {
            self.add(matrix, number, route, cell);
            for (address, part) in [(route.destination, &cell.responder), (route.source, &cell.prober)] {
                let Some(member) = matrix.member(&address) else { continue };
                let count = delays.entry(member.process).or_default();
                count.all += part.count;
                count.stalls += part.stall_count;
            }
            let seen = seen.entry(route.destination).or_default();
            seen.has_answered |= cell.probes > cell.unanswered();
            if !seen.has_answered {
                seen.sources.insert(route.source);
            }
        }
        for (address, stalls) in &window.stalls {
            let Some(member) = matrix.member(address) else { continue };
            self.add_stall(member.process, number, stalls.longest);
            if let Some(stalled) = self.stalled_mut(member.process, number) {
                stalled.own = stalled.own.max(stalls.total);
            }
        }
        for (process, count) in delays {
            if let Some(stalled) = self.stalled_mut(process, number) {
                stalled.delays = count;
            }
        }
        for (address, seen) in seen {
            if seen.has_answered {
                if let Some(member) = matrix.member(&address) {
                    self.answering.entry(member.process).or_default().insert(number);
                }
            } else if seen.sources.len() >= 2 {
                // One silent route is a fault of that route, not of the member.
                self.silent.entry(address).or_default().insert(number);
            }
        }
    }

    fn add(&mut self, matrix: &Matrix, number: u64, route: &CellKey, cell: &Cell) {
        for (address, delay) in [(route.destination, cell.responder.max), (route.source, cell.prober.max)] {
            if let Some(member) = matrix.member(&address) {
                self.add_stall(member.process, number, delay);
            }
        }
        let is_explained = cell.responder.max >= STALL || cell.prober.max >= STALL;
        if cell.process_stamped.max >= LONG_STALL || (cell.late > 0 && !is_explained) {
            let windows = stalled_windows(self.window, number, cell.process_stamped.max);
            self.doubtful.entry(pair(route)).or_default().extend(windows);
        }
    }

    /// Adds a stall that began in the window `number`.
    fn add_stall(&mut self, process: u64, number: u64, duration: Duration) {
        if duration < STALL {
            return;
        }
        let stalls = self.stalled.entry(process).or_default();
        stalls.longest = stalls.longest.max(duration);
        for number in stalled_windows(self.window, number, duration) {
            let stalled = stalls.windows.entry(number).or_default();
            stalled.longest = stalled.longest.max(duration);
        }
    }

    /// Returns the stalls of a process in a window, if it stalled.
    fn stalled_mut(&mut self, process: u64, number: u64) -> Option<&mut Stalled> {
        self.stalled.get_mut(&process)?.windows.get_mut(&number)
    }

    /// Returns the processes that stalled.
    pub(super) fn stalls(&self) -> impl Iterator<Item = (u64, &Stalls)> {
        self.stalled.iter().map(|(&process, stalls)| (process, stalls))
    }

    /// Whether the process may have lost packets in this window, because it stalled in it or next to it.
    ///
    /// A stall is known by the windows of the probes that it delayed. The windows next to them are included, because
    /// probes that were sent just before the stall, or were queued behind it, are affected too.
    fn may_lose(&self, process: u64, number: u64) -> bool {
        self.stalled.get(&process).is_some_and(|stalls| {
            // The stalls of a slow process follow each other so soon that its queues stay full.
            let min = if stalls.slow_windows.is_some() { STALL } else { LONG_STALL };
            stalls.has_near(number, min)
        })
    }

    /// Whether the process may have stalled for this whole window.
    pub(super) fn is_absent(&self, process: u64, number: u64) -> bool {
        let is_answering = self.answering.get(&process).is_some_and(|windows| windows.contains(&number));
        !is_answering
            && self.stalled.get(&process).is_some_and(|stalls| stalls.has_near(number, self.window / 2))
    }

    /// Whether the member answered nothing in this window.
    pub(super) fn is_silent(&self, member: &IpAddr, number: u64) -> bool {
        self.silent.get(member).is_some_and(|windows| windows.contains(&number))
    }

    /// Whether the losses of a route in this window are evidence about the network.
    pub(super) fn is_evidence(&self, matrix: &Matrix, route: &CellKey, number: u64) -> bool {
        let is_clean = |address: &IpAddr| {
            let may_lose = matrix.member(address).is_none_or(|member| self.may_lose(member.process, number));
            !may_lose && !self.silent.get(address).is_some_and(|windows| is_near(windows, number))
        };
        let is_doubtful = self.doubtful.get(&pair(route)).is_some_and(|windows| is_near(windows, number));
        is_clean(&route.source) && is_clean(&route.destination) && !is_doubtful
    }
}

impl Stalls {
    /// Whether the process stalled for at least this time, in the window or next to it.
    fn has_near(&self, number: u64, min: Duration) -> bool {
        let mut near = self.windows.range(number.saturating_sub(1)..=number.saturating_add(1));
        near.any(|(_, stalled)| stalled.longest >= min)
    }
}

/// Returns the time in which a process did not run, from its windows with stalls.
///
/// Three estimates of this time are lower bounds: the longest stall of each window, the stalls that the process
/// noticed, and the percentage of delayed probes, which are sent at regular intervals. Each is summed over all windows,
/// and the largest sum is the result. (The sum of each window's largest estimate would be too large, because it adds up
/// the errors.)
fn stalled_time<'a>(windows: impl Iterator<Item = &'a Stalled> + Clone, window: Duration) -> Duration {
    let longest = windows.clone().map(|stalled| stalled.longest.min(window)).sum::<Duration>();
    let own = windows.clone().map(|stalled| stalled.own.min(window)).sum::<Duration>();
    let (all, stalls, count) = windows.fold((0, 0, 0.0), |(all, stalls, count), stalled| {
        (all + stalled.delays.all, stalls + stalled.delays.stalls, count + 1.0)
    });
    let delayed = window.mul_f64(count * stalls as f64 / all.max(1) as f64);
    longest.max(own).max(delayed)
}

/// Returns the two members of a route in the order of their addresses.
fn pair(route: &CellKey) -> (IpAddr, IpAddr) {
    (route.source.min(route.destination), route.source.max(route.destination))
}

/// Returns the windows of a stall that began in the window `number`.
fn stalled_windows(window: Duration, number: u64, duration: Duration) -> impl Iterator<Item = u64> {
    let count = duration.as_nanos() / window.as_nanos().max(1);
    number..=number.saturating_add(u64::try_from(count).unwrap_or(u64::MAX).min(SPAN))
}

/// Whether one of the windows is `number` or next to it.
fn is_near(windows: &BTreeSet<u64>, number: u64) -> bool {
    windows.range(number.saturating_sub(1)..=number.saturating_add(1)).next().is_some()
}
