//! The results so far: the matrix, the round-trip times and the faults that were named.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use adverb::probe::histogram::DurationHistogram;
use adverb::probe::mesh::{Cell, CellKey, Diagnosis, Fault, Matrix, Member, diagnose};

use super::agent::Report;
use super::members::LOCAL_PROCESS;

/// The results of a run.
pub(super) struct Results {
    pub(super) matrix: Matrix,
    pub(super) classes: Vec<u8>,
    /// The round-trip times of the network per source and destination.
    rtts: BTreeMap<(IpAddr, IpAddr), DurationHistogram>,
    pub(super) diagnosis: Diagnosis,
    /// The faults that were named, each with the time at which it was named first and its last evidence.
    pub(super) named: Vec<(Duration, Fault)>,
}

/// A cell of the printed matrix: the results of a source and a destination in all classes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Summary {
    pub(super) cell: Cell,
    pub(super) median: Option<Duration>,
}

impl Results {
    pub(super) fn new(members: &[Member], classes: &[u8]) -> Results {
        let matrix = Matrix::new(members.iter().cloned());
        let diagnosis = diagnose(&matrix);
        Results { matrix, classes: classes.to_vec(), rtts: BTreeMap::new(), diagnosis, named: Vec::new() }
    }

    pub(super) fn record(&mut self, report: Report) {
        match report {
            Report::Cell(window, route, cell) => self.matrix.record(window, route, &cell),
            Report::Stall(window, member, duration) => self.matrix.record_stall(window, member, duration),
            Report::NetworkRtt(route, rtt) => {
                self.rtts.entry((route.source, route.destination)).or_default().record(rtt);
            }
        }
    }

    /// Begins a window, and makes a diagnosis. Returns the faults that were named for the first time.
    pub(super) fn advance(&mut self, window: u64, elapsed: Duration) -> Vec<Fault> {
        self.matrix.advance(window);
        self.diagnosis = diagnose(&self.matrix);
        let mut new = Vec::new();
        for fault in &self.diagnosis.faults {
            match self.named.iter_mut().find(|(_, named)| named.suspect == fault.suspect) {
                Some((_, named)) => *named = fault.clone(),
                None => {
                    self.named.push((elapsed, fault.clone()));
                    new.push(fault.clone());
                }
            }
        }
        new
    }

    pub(super) fn members(&self) -> Vec<IpAddr> {
        self.matrix.members().map(|member| member.address).collect()
    }

    /// Returns the members that are not of this process, were probed, and have never answered.
    pub(super) fn missing_responders(&self) -> impl Iterator<Item = IpAddr> {
        let remote = self.matrix.members().filter(|member| member.process != LOCAL_PROCESS);
        remote.map(|member| member.address).filter(|address| {
            let mut to_member = Cell::default();
            let cells = self.matrix.totals().filter(|(route, _)| route.destination == *address);
            cells.for_each(|(_, cell)| to_member.merge(cell));
            to_member.probes > 0 && to_member.unanswered() == to_member.probes
        })
    }

    /// Returns the results of a source and a destination, in all classes: of the last windows, or of the whole run.
    pub(super) fn summary(&self, source: IpAddr, destination: IpAddr, is_recent: bool) -> Summary {
        let mut sum = Cell::default();
        for &class in &self.classes {
            let route = CellKey { source, destination, class };
            sum.merge(&match is_recent {
                true => self.matrix.recent(route),
                false => self.matrix.total(route),
            });
        }
        Summary { cell: sum, median: self.percentile(source, destination, 50.0) }
    }

    /// Returns a percentile of the network's round-trip time.
    pub(super) fn percentile(
        &self,
        source: IpAddr,
        destination: IpAddr,
        percentile: f64,
    ) -> Option<Duration> {
        self.rtts.get(&(source, destination))?.percentile(percentile)
    }
}

#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// Returns a member that a process serves.
    fn member(host: u8, process: u64) -> Member {
        Member { address: [10, 0, 0, host].into(), process, rail: None }
    }

    /// Returns the results of members after ten windows. The third member loses one probe of ten.
    pub(in super::super) fn lossy(count: u8) -> Results {
        let members: Vec<Member> = (1..=count).map(|host| member(host, 0)).collect();
        let mut results = Results::new(&members, &[0]);
        let addresses = results.members();
        for window in 0..10 {
            for &source in &addresses {
                for &destination in addresses.iter().filter(|&&address| address != source) {
                    let lost = u64::from(source == addresses[2] || destination == addresses[2]);
                    let route = CellKey { source, destination, class: 0 };
                    let cell = Cell { probes: 10, lost, ..Cell::default() };
                    results.record(Report::Cell(window, route, cell));
                    results.record(Report::NetworkRtt(route, Duration::from_micros(23)));
                }
            }
            results.advance(window + 1, Duration::from_secs(window + 1));
        }
        results
    }

    /// Returns the results of members after ten windows: `local` ones of this process, and a host without a responder.
    pub(in super::super) fn without_responder(local: u8) -> Results {
        let process = |host| u64::from(host > local);
        let members: Vec<Member> = (1..=local + 1).map(|host| member(host, process(host))).collect();
        let mut results = Results::new(&members, &[0]);
        let addresses = results.members();
        for window in 0..10 {
            for &source in &addresses[..usize::from(local)] {
                for &destination in addresses.iter().filter(|&&address| address != source) {
                    let lost = if destination == addresses[usize::from(local)] { 10 } else { 0 };
                    let route = CellKey { source, destination, class: 0 };
                    results.record(Report::Cell(window, route, Cell { probes: 10, lost, ..Cell::default() }));
                }
            }
            results.advance(window + 1, Duration::from_secs(window + 1));
        }
        results
    }
}
