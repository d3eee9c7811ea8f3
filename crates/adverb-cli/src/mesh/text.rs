//! The matrix and the diagnosis as text.

use std::time::Duration;

use adverb::probe::mesh::{Fault, Suspect, Verdict};

use super::results::{Results, Summary};

/// The text of a cell, and its severity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CellText {
    pub(super) text: String,
    pub(super) level: Level,
}

/// The severity of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// There are no results.
    Unknown,
    Good,
    /// A process stalled, or up to 1 % of the probes were lost.
    Suspicious,
    Bad,
}

/// Returns the share of lost probes, or the median round-trip time if none was lost.
pub(super) fn cell(summary: &Summary) -> CellText {
    let cell = &summary.cell;
    let (losses, probes) = (cell.losses(), cell.probes);
    if probes == 0 {
        return CellText { text: "·".to_owned(), level: Level::Unknown };
    }
    if losses > 0 {
        let share = 100.0 * losses as f64 / probes as f64;
        let text = if share < 9.95 { format!("{share:.1}%") } else { format!("{share:.0}%") };
        return CellText { text, level: if share > 1.0 { Level::Bad } else { Level::Suspicious } };
    }
    if cell.responder.stall_count + cell.prober.stall_count + cell.late > 0 {
        return CellText { text: "stall".to_owned(), level: Level::Suspicious };
    }
    CellText { text: summary.median.map_or_else(|| "ok".to_owned(), rtt), level: Level::Good }
}

/// Returns a round-trip time with at most three digits, if it is shorter than a second.
fn rtt(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        _ if micros < 9.95 => format!("{micros:.1}µs"),
        _ if micros < 999.5 => format!("{micros:.0}µs"),
        _ if micros < 99_500.0 => format!("{:.1}ms", micros / 1e3),
        _ => format!("{:.0}ms", micros / 1e3),
    }
}

/// Returns the matrix: a line for each source, and a column for each destination.
pub(super) fn matrix(results: &Results) -> String {
    let members = results.members();
    let width = members.iter().map(|member| member.to_string().len()).max().unwrap_or_default();
    let mut text = format!("{:width$}     ", "");
    for n in 1..=members.len() {
        text += &format!("{:>7}", format!("→{n}"));
    }
    for (n, &source) in members.iter().enumerate() {
        text += &format!("\n{:>3} {:width$} ", n + 1, source.to_string());
        for &destination in &members {
            let cell = match source == destination {
                true => "-".to_owned(),
                false => cell(&results.summary(source, destination, false)).text,
            };
            text += &format!("{cell:>7}");
        }
    }
    text + "\n"
}

/// Returns the diagnosis in words, and the next command to run.
pub(super) fn diagnosis(results: &Results) -> String {
    let mut text = String::new();
    for (time, fault) in &results.named {
        let is_current = results.diagnosis.faults.iter().any(|current| current.suspect == fault.suspect);
        let when = match is_current {
            true => format!("named after {:.0} s", time.as_secs_f64()),
            false => format!("named after {:.0} s, not seen at the end", time.as_secs_f64()),
        };
        text += &format!("fault: {fault} ({when})\n  hint: {}\n", next_step(fault));
    }
    if results.named.is_empty() {
        text += &format!("{}\n", results.diagnosis);
        if results.diagnosis.verdict() == Verdict::NotEnoughEvidence {
            text += "  hint: run `adverb mesh host` for a longer time, or with more addresses\n";
        }
    }
    text
}

/// Returns the next command to run.
pub(super) fn next_step(fault: &Fault) -> String {
    match &fault.suspect {
        Suspect::Nic(address) => format!(
            "run `adverb stat --interval 5`: if error counters of the device with {address} rise, replace its cable or \
             transceiver first, then the NIC"
        ),
        Suspect::Path(one, other) => format!(
            "on the host of {one}, run `adverb traceroute {other} --address {one}` for the routers between both"
        ),
        Suspect::Rail(name) => {
            format!("check the switch of the rail {name}: its counters of drops and errors")
        }
        Suspect::Class(class) => format!(
            "compare `adverb ping HOST --dscp {class}` with `--dscp 0`: the queue or the PFC setting of this class is \
             wrong in a switch"
        ),
        Suspect::NicClass(address, class) => format!(
            "compare `adverb ping {address} --dscp {class}` with `--dscp 0`: the queue or the PFC setting of this \
             class is wrong at this NIC or its switch port"
        ),
        Suspect::Everywhere => {
            "run `adverb stat --interval 5` for drops in this host, then check the common switch".to_owned()
        }
        Suspect::Unreachable(address) => format!(
            "run `adverb devices` for the state of its port, and `adverb ping {address}` from another host"
        ),
        Suspect::SlowProcess(_) => {
            "check the CPU quota (`cpu.stat` of its cgroup: nr_throttled), the load of the host \
                                    (`top`), and whether the process is stopped"
                .to_owned()
        }
        _ => "run `adverb stat --interval 5`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use adverb::probe::mesh::Cell;

    use super::super::results::samples;
    use super::*;

    #[test]
    fn matrix_shows_losses_and_round_trip_times() {
        let text = matrix(&samples::lossy());
        assert_eq!(
            text,
            "                  →1     →2     →3     →4     →5\n  \
             1 10.0.0.1       -   23µs    10%   23µs   23µs\n  \
             2 10.0.0.2    23µs      -    10%   23µs   23µs\n  \
             3 10.0.0.3     10%    10%      -    10%    10%\n  \
             4 10.0.0.4    23µs   23µs    10%      -   23µs\n  \
             5 10.0.0.5    23µs   23µs    10%   23µs      -\n"
        );
    }

    #[test]
    fn diagnosis_ends_with_the_next_command() {
        let text = diagnosis(&samples::lossy());
        assert!(text.starts_with("fault: the NIC 10.0.0.3 or its cable loses packets: "), "{text}");
        assert!(text.contains("\n  hint: run `adverb stat --interval 5`"), "{text}");
    }

    #[test]
    fn stalls_and_missing_results_are_distinguished_from_losses() {
        let text = |cell| super::cell(&Summary { cell, median: None });
        assert_eq!(text(Cell::default()).level, Level::Unknown);
        let mut stalled = Cell { probes: 5, ..Cell::default() };
        stalled.responder.record(Duration::from_millis(60));
        assert_eq!(text(stalled).text, "stall");
        assert_eq!(text(Cell { probes: 1000, lost: 5, ..Cell::default() }).level, Level::Suspicious);
        assert_eq!(text(Cell { probes: 10, ..Cell::default() }).text, "ok");
    }

    #[test]
    fn times_have_at_most_three_digits() {
        let texts = [8_700, 23_400, 999_600, 12_340_000, 250_000_000].map(|ns| rtt(Duration::from_nanos(ns)));
        assert_eq!(texts, ["8.7µs", "23µs", "1.0ms", "12.3ms", "250ms"]);
    }
}
