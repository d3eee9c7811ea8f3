//! The matrix and the diagnosis as text.

use std::net::IpAddr;
use std::time::Duration;

use adverb::probe::mesh::{Fault, Gap, Suspect, Verdict};

use super::results::{Results, Summary};
use crate::{prose, symbols};

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
        return CellText { text: ".".to_owned(), level: Level::Unknown };
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
        _ if micros < 9.95 => format!("{micros:.1}{}s", symbols::micro()),
        _ if micros < 999.5 => format!("{micros:.0}{}s", symbols::micro()),
        _ if micros < 99_500.0 => format!("{:.1}ms", micros / 1e3),
        _ => format!("{:.0}ms", micros / 1e3),
    }
}

/// The width of a column of the matrix.
pub(super) const COLUMN_WIDTH: usize = 7;

/// Returns the width of the first column of the matrix, which has the number and the address of a source.
pub(super) fn label_width(members: &[IpAddr]) -> usize {
    5 + members.iter().map(|member| member.to_string().len()).max().unwrap_or_default()
}

/// Returns the first column of a row of the matrix.
pub(super) fn label(index: usize, source: IpAddr, width: usize) -> String {
    format!("{:<width$}", format!("{:>3} {source}", index + 1))
}

/// Returns the heading of a column of the matrix.
pub(super) fn heading(index: usize) -> String {
    format!("{:>COLUMN_WIDTH$}", format!("{}{}", symbols::arrow(), index + 1))
}

/// Returns the matrix: a line for each source, and a column for each destination. Destinations that don't fit into a
/// line follow in another block of lines.
pub(super) fn matrix(results: &Results) -> String {
    let members = results.members();
    let width = label_width(&members);
    let column_count = (prose::MAX_WIDTH.saturating_sub(width) / COLUMN_WIDTH).max(1);
    let columns: Vec<usize> = (0..members.len()).collect();
    let block = |columns: &[usize]| {
        let mut text = " ".repeat(width) + &columns.iter().map(|&column| heading(column)).collect::<String>();
        for (row, &source) in members.iter().enumerate() {
            text += &format!("\n{}", label(row, source, width));
            for &column in columns {
                let cell = match row == column {
                    true => "-".to_owned(),
                    false => cell(&results.summary(source, members[column], false)).text,
                };
                text += &format!("{cell:>COLUMN_WIDTH$}");
            }
        }
        text + "\n"
    };
    columns.chunks(column_count).map(block).collect::<Vec<_>>().join("\n")
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
        text += &format!("fault: {fault} ({when})\n  hint: {}\n", next_step(results, fault));
    }
    if results.named.is_empty() {
        text += &format!("{}\n", findings(results).join("\n"));
        if results.diagnosis.verdict() == Verdict::NotEnoughEvidence {
            let missing: Vec<IpAddr> = results.missing_responders().collect();
            match missing.is_empty() {
                true => text += "  hint: run `adverb mesh host` for a longer time, or with more addresses\n",
                false => missing
                    .iter()
                    .for_each(|address| text += &format!("  hint: {}\n", start_responder(*address))),
            }
        }
    }
    text
}

/// Returns the current faults, or the reasons why the evidence is not enough, one per line.
pub(super) fn findings(results: &Results) -> Vec<String> {
    let diagnosis = &results.diagnosis;
    match diagnosis.verdict() {
        Verdict::Healthy | Verdict::Faulty => diagnosis.to_string().lines().map(str::to_owned).collect(),
        Verdict::NotEnoughEvidence => {
            gaps(results).into_iter().map(|gap| format!("not enough evidence: {gap}")).collect()
        }
    }
}

/// Returns the reasons why the evidence is not enough. A member that has never answered probably has no responder, and
/// losses of probes to it say nothing about the network.
pub(super) fn gaps(results: &Results) -> Vec<String> {
    let missing: Vec<IpAddr> = results.missing_responders().collect();
    let is_explained = |gap: &&Gap| {
        let is_about_loss =
            matches!(gap, Gap::FewWitnesses { .. } | Gap::Ambiguous { .. } | Gap::Silent { .. });
        let mut losses = results.matrix.totals().filter(|(_, cell)| cell.losses() > 0);
        is_about_loss && losses.all(|(route, _)| missing.contains(&route.destination))
    };
    let no_responder = missing
        .iter()
        .map(|address| format!("no responder answers at {address}: start `adverb respond` there"));
    let others = results.diagnosis.gaps.iter().filter(|gap| !is_explained(gap)).map(ToString::to_string);
    no_responder.chain(others).collect()
}

fn start_responder(address: IpAddr) -> String {
    format!(
        "on the host of {address}, run `adverb respond --device NAME`, without a key, with the device of this \
         address or `soft:{address}`"
    )
}

/// Returns the next command to run.
fn next_step(results: &Results, fault: &Fault) -> String {
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
        Suspect::Unreachable(address) if results.missing_responders().any(|missing| missing == *address) => {
            start_responder(*address)
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
        let text = matrix(&samples::lossy(5));
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
        let text = diagnosis(&samples::lossy(5));
        assert!(text.starts_with("fault: the NIC 10.0.0.3 or its cable loses packets: "), "{text}");
        assert!(text.contains("\n  hint: run `adverb stat --interval 5`"), "{text}");
    }

    #[test]
    fn a_host_without_a_responder_needs_one() {
        for local in [1, 2] {
            let (results, address) = (samples::without_responder(local), format!("10.0.0.{}", local + 1));
            let text = diagnosis(&results);
            let expected = format!("no responder answers at {address}: start `adverb respond` there\n");
            assert!(text.starts_with(&format!("not enough evidence: {expected}")), "{text}");
            assert!(
                text.contains(&format!("\n  hint: on the host of {address}, run `adverb respond ")),
                "{text}"
            );
            assert!(!text.contains("packets are lost") && !text.contains("add addresses"), "{text}");
        }
    }

    #[test]
    fn a_matrix_of_many_members_fits_into_lines() {
        let text = matrix(&samples::lossy(12));
        assert!(text.lines().all(|line| line.chars().count() <= prose::MAX_WIDTH), "{text}");
        assert!(text.contains("→12\n"), "{text}");
        assert_eq!(text.matches(" 12 10.0.0.12 ").count(), 2, "{text}");
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
