//! The results of a mesh, per source, destination, class and window.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The delay from which a process counts as stalled.
///
/// A process on a busy machine waits a few milliseconds for a core. A stopped process, or one that has used up its CPU
/// quota, waits much longer.
pub const STALL: Duration = Duration::from_millis(50);

/// The minimum stall in which a process can lose packets, because its receive queues overflow.
///
/// It is longer than most stalls on a busy machine: with a shorter one, little evidence would remain on such a machine. At
/// 10 probes per second, a receive queue of 4 packets holds the packets of such a stall.
pub const LONG_STALL: Duration = Duration::from_millis(100);

/// The number of windows that a diagnosis uses. The matrix also keeps the [`SETTLE_WINDOWS`] windows before the current
/// one, and the current one.
pub const SPAN: u64 = 20;

/// The number of windows between a window and the first diagnosis that uses it.
///
/// An answer that is delayed by a stalled process must be recorded before its probe is judged. Otherwise the probe
/// would be a loss of the network.
pub const SETTLE_WINDOWS: u64 = 2;

/// The usual length of a window.
pub const WINDOW: Duration = Duration::from_secs(1);

/// A member of a mesh: an address that answers probes, and usually sends them too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member {
    /// The address of the NIC.
    pub address: IpAddr,
    /// An identifier of the process that serves the address, equal for all members that this process serves.
    ///
    /// Members of one process stall together.
    pub process: u64,
    /// The name of the rail, the switch or the subnet that the NIC shares with other members, if it is known.
    pub rail: Option<String>,
}

/// A source, a destination and a traffic class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CellKey {
    /// The member that sends the probes.
    pub source: IpAddr,
    /// The member that answers them.
    pub destination: IpAddr,
    /// The DSCP of the probes and of their answers.
    pub class: u8,
}

/// A summary of delays of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delays {
    /// The number of delays.
    pub count: u64,
    /// The number of delays of at least [`STALL`].
    pub stall_count: u64,
    /// The longest delay.
    pub max: Duration,
}

impl Delays {
    /// Adds a delay.
    pub fn record(&mut self, delay: Duration) {
        self.merge(&Delays { count: 1, stall_count: u64::from(delay >= STALL), max: delay });
    }

    /// Adds the delays of another summary.
    pub fn merge(&mut self, other: &Delays) {
        self.count += other.count;
        self.stall_count += other.stall_count;
        self.max = self.max.max(other.max);
    }
}

/// The results of a route in a window. The window of a probe is the one in which it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cell {
    /// The number of probes that were answered or lost. Probes that wait for their answers are not included.
    pub probes: u64,
    /// The number of probes of which at least one acknowledgement, ACK1 or ACK2, was missing when their timeout expired.
    pub lost: u64,
    /// The number of the [`lost`](Cell::lost) probes that were answered after their timeout.
    pub late: u64,
    /// The number of the [`lost`](Cell::lost) probes of which only one acknowledgement arrived.
    pub return_lost: u64,
    /// Round-trip times of the network, from timestamps of NICs and kernels only.
    pub network: Delays,
    /// Round-trip times with at least one timestamp of a process. They include delays of both hosts.
    pub process_stamped: Delays,
    /// Delays of the responder, from the receipt of the probe to the sending of ACK1.
    pub responder: Delays,
    /// Delays of the prober.
    pub prober: Delays,
}

impl Cell {
    /// Adds the results of another cell.
    pub fn merge(&mut self, other: &Cell) {
        self.probes += other.probes;
        self.lost += other.lost;
        self.late += other.late;
        self.return_lost += other.return_lost;
        self.network.merge(&other.network);
        self.process_stamped.merge(&other.process_stamped);
        self.responder.merge(&other.responder);
        self.prober.merge(&other.prober);
    }

    /// Returns the number of probes of which a packet was lost: the probe, ACK1 or ACK2.
    pub fn losses(&self) -> u64 {
        self.lost.saturating_sub(self.late)
    }

    /// Returns the number of probes that were never answered, not even by one acknowledgement.
    pub fn unanswered(&self) -> u64 {
        self.losses().saturating_sub(self.return_lost)
    }
}

/// The results of one window.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Window {
    pub(super) cells: BTreeMap<CellKey, Cell>,
    /// The stalls of each member's process that the process itself noticed.
    pub(super) stalls: BTreeMap<IpAddr, OwnStalls>,
}

/// The stalls that a process itself noticed in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct OwnStalls {
    pub(super) longest: Duration,
    pub(super) total: Duration,
}

impl OwnStalls {
    fn merge(&mut self, other: &OwnStalls) {
        self.longest = self.longest.max(other.longest);
        self.total = self.total.saturating_add(other.total);
    }
}

/// The results of a mesh: a [`Cell`] per route and window, for the last windows.
///
/// Matrices of several agents can be [merged](Matrix::merge) if their windows have equal lengths and numbers.
///
/// ```
/// use std::net::IpAddr;
///
/// use adverb::probe::mesh::{Cell, Matrix, Member, CellKey};
///
/// let addresses: Vec<IpAddr> = (1..=4).map(|host| [10, 0, 0, host].into()).collect();
/// let members = addresses.iter().zip(0..).map(|(&address, process)| Member { address, process, rail: None });
/// let mut matrix = Matrix::new(members);
/// let route = CellKey { source: addresses[0], destination: addresses[1], class: 0 };
/// matrix.record(0, route, &Cell { probes: 10, lost: 1, ..Cell::default() });
/// assert_eq!(matrix.total(route).losses(), 1);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Matrix {
    members: BTreeMap<IpAddr, Member>,
    window: Duration,
    current: u64,
    windows: BTreeMap<u64, Window>,
    totals: BTreeMap<CellKey, Cell>,
}

impl Matrix {
    /// Returns an empty matrix of these members, with windows of 1 s.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Matrix {
        let members = members.into_iter().map(|member| (member.address, member)).collect();
        Matrix { members, window: WINDOW, current: 0, windows: BTreeMap::new(), totals: BTreeMap::new() }
    }

    /// Sets the length of a window.
    ///
    /// Each member should receive at least 8 probes per window. The timeout of a probe should be at most one window.
    #[must_use]
    pub fn with_window(mut self, window: Duration) -> Matrix {
        self.window = window;
        self
    }

    /// Returns the members, in the order of their addresses.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Returns the length of a window.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Returns the number of the current window.
    pub fn current_window(&self) -> u64 {
        self.current
    }

    /// Adds results of a route in a window.
    ///
    /// Results of windows that are no longer kept change only the totals. Results of addresses that are not members
    /// are ignored, and so are probes from a member to itself.
    pub fn record(&mut self, window: u64, route: CellKey, cell: &Cell) {
        let is_member = |address| self.members.contains_key(address);
        if !is_member(&route.source) || !is_member(&route.destination) || route.source == route.destination {
            return;
        }
        self.totals.entry(route).or_default().merge(cell);
        if let Some(window) = self.kept(window) {
            window.cells.entry(route).or_default().merge(cell);
        }
    }

    /// Records a stall that began in this window: the member's process did not run for `duration`.
    ///
    /// A prober calls this if it sends a probe later than scheduled, once for each stall.
    pub fn record_stall(&mut self, window: u64, member: IpAddr, duration: Duration) {
        if let Some(window) = self.kept(window) {
            window.stalls.entry(member).or_default().merge(&OwnStalls { longest: duration, total: duration });
        }
    }

    /// Begins a window: later calls of [`diagnose`](super::diagnose) use windows that ended at least
    /// [`SETTLE_WINDOWS`] before it. Drops the results of windows that are too old.
    pub fn advance(&mut self, window: u64) {
        self.current = self.current.max(window);
        let oldest = self.oldest();
        self.windows.retain(|&number, _| number >= oldest);
    }

    /// Adds the members and results of another matrix.
    pub fn merge(&mut self, other: &Matrix) {
        for member in other.members.values() {
            self.members.entry(member.address).or_insert_with(|| member.clone());
        }
        self.advance(other.current);
        for (&number, window) in &other.windows {
            let Some(into) = self.kept(number) else { continue };
            for (&route, cell) in &window.cells {
                into.cells.entry(route).or_default().merge(cell);
            }
            for (&member, stalls) in &window.stalls {
                into.stalls.entry(member).or_default().merge(stalls);
            }
        }
        for (&route, cell) in &other.totals {
            self.totals.entry(route).or_default().merge(cell);
        }
    }

    /// Returns the results of a route since the beginning.
    pub fn total(&self, route: CellKey) -> Cell {
        self.totals.get(&route).copied().unwrap_or_default()
    }

    /// Returns the results of all routes since the beginning.
    pub fn totals(&self) -> impl Iterator<Item = (CellKey, &Cell)> {
        self.totals.iter().map(|(&route, cell)| (route, cell))
    }

    /// Returns the results of a route in the windows that are kept.
    pub fn recent(&self, route: CellKey) -> Cell {
        let mut sum = Cell::default();
        for window in self.windows.values() {
            if let Some(cell) = window.cells.get(&route) {
                sum.merge(cell);
            }
        }
        sum
    }

    /// Returns the windows that a diagnosis uses, with their numbers.
    pub(super) fn settled(&self) -> impl Iterator<Item = (u64, &Window)> {
        let end = self.current.saturating_sub(SETTLE_WINDOWS);
        self.windows.range(..end).map(|(&number, window)| (number, window))
    }

    /// Returns all windows that are kept, with their numbers.
    pub(super) fn windows(&self) -> impl Iterator<Item = (u64, &Window)> {
        self.windows.iter().map(|(&number, window)| (number, window))
    }

    pub(super) fn member(&self, address: &IpAddr) -> Option<&Member> {
        self.members.get(address)
    }

    /// Returns the oldest window that is kept.
    fn oldest(&self) -> u64 {
        self.current.saturating_sub(SPAN + SETTLE_WINDOWS)
    }

    fn kept(&mut self, window: u64) -> Option<&mut Window> {
        (window >= self.oldest()).then(|| self.windows.entry(window).or_default())
    }
}
