//! The text of `adverb ping`.

use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use adverb::probe::ProbePath;
use adverb::probe::format::Probe;
use adverb::probe::histogram::{DurationHistogram, Summary};
use adverb::probe::loss::LossCount;
use adverb::probe::paths;
use adverb::probe::session::{ProbeEventKind, ProbeResult};

use super::paths::PingPath;
use crate::symbols;

/// The first line.
pub(super) struct Start {
    pub(super) host: String,
    pub(super) addr: SocketAddr,
    pub(super) device: String,
    pub(super) gid: String,
    pub(super) gid_index: u32,
    pub(super) size: u16,
    pub(super) dscp: Vec<u8>,
    pub(super) paths: u16,
    pub(super) is_traced: bool,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dscp: Vec<String> = self.dscp.iter().map(u8::to_string).collect();
        write!(
            f,
            "PING {} ({}) from {}, GID {} (index {}): {}-byte probes, DSCP {}, {}{} path{}",
            self.host,
            self.addr,
            self.device,
            self.gid,
            self.gid_index,
            self.size,
            dscp.join(", "),
            if self.is_traced { "up to " } else { "" },
            self.paths,
            if self.paths == 1 { "" } else { "s" }
        )
    }
}

pub(super) fn probe_line(start: &Start, probe: &Probe, kind: &ProbeEventKind) -> String {
    let mut line = format!("{}: probe {}", start.addr.ip(), probe.sequence.number);
    if let Some(port) = paths::source_port_of(probe.flow_label) {
        _ = write!(line, " port {port}");
    }
    if start.dscp.len() > 1 {
        _ = write!(line, " DSCP {}", probe.dscp);
    }
    line.push_str(": ");
    let ProbeEventKind::Finished(result) = kind else {
        return line + "timed out";
    };
    if let Some(figures) = result.figures() {
        _ = match figures.network_rtt() {
            Some(rtt) => write!(line, "network {}", duration(rtt)),
            None => {
                write!(line, "round trip {} (no evidence about the network)", duration(figures.round_trip))
            }
        };
        _ = write!(
            line,
            ", prober {}, responder {} ({} stamps)",
            duration(figures.prober_delay),
            duration(figures.responder_delay),
            figures.stamps
        );
    }
    line.push_str(match result {
        ProbeResult::Answered(_) => "",
        ProbeResult::Late(_) => ", late",
        ProbeResult::Impossible(_) => "answered, with impossible stamps",
        ProbeResult::Unstamped => "answered, without stamps",
        ProbeResult::ReturnLost => "one of the two answers was lost",
        ProbeResult::Lost => "lost",
        ProbeResult::Ended => "the responder stopped or restarted",
        ProbeResult::Unreachable => "unreachable: lookups of the responder were not answered either",
        ProbeResult::NotSent => "not sent by this host's device",
        _ => "unknown result",
    });
    line
}

/// The size of a probe that fits every network with an MTU of at least 1280 bytes.
const MAX_SIZE_OF_EVERY_PATH: u16 = 1024;

/// Returns the summary of all probes.
pub(super) fn summary(
    start: &Start,
    summary: &Summary,
    duplicates: u64,
    unmatched: u64,
    bad_tags: u64,
) -> String {
    let counts = &summary.counts;
    let mut text = format!("\n--- {} ---\n", start.host);
    let all = counts.conclusive() + counts.ended + counts.not_sent;
    let answered = counts.answered + counts.late + counts.impossible + counts.unstamped;
    _ = write!(text, "{all} probes, {answered} answered");
    let parts = [
        (counts.lost, "lost"),
        (counts.return_lost, "with a lost answer"),
        (counts.unreachable, "unreachable"),
        (counts.late, "late"),
        (counts.impossible, "with impossible stamps"),
        (counts.unstamped, "without stamps"),
        (counts.ended, "without a verdict because the responder stopped"),
        (counts.not_sent, "not sent"),
        (duplicates, "duplicate answers"),
        (unmatched, "unmatched answers"),
        (bad_tags, "answers with a wrong key"),
    ];
    for (count, name) in parts.into_iter().filter(|&(count, _)| count > 0) {
        _ = write!(text, ", {count} {name}");
    }
    _ = match counts.loss() {
        Some(loss) => writeln!(text, "; loss {:.2} %", 100.0 * loss),
        None => writeln!(text, "; loss unknown"),
    };
    if counts.lost > 0 && answered == 0 && counts.return_lost == 0 {
        // The lookup found the responder, so the network passes short packets.
        if start.size > MAX_SIZE_OF_EVERY_PATH {
            _ = writeln!(
                text,
                "hint: the responder answers short packets: the MTU of a network on the path is too small for {}-byte \
                 probes, or the responder has a key (--key-file); try --size {MAX_SIZE_OF_EVERY_PATH}",
                start.size
            );
        } else {
            text.push_str(
                "hint: a responder with a key drops probes without it: check --key-file at both ends\n",
            );
        }
    }
    let rows = [
        ("network", &summary.network_rtt),
        ("round trip*", &summary.process_rtt),
        ("prober", &summary.prober_delay),
        ("responder", &summary.responder_delay),
    ];
    let rows = rows.into_iter().filter(|(_, histogram)| !histogram.is_empty());
    let rows: Vec<(String, &DurationHistogram)> =
        rows.map(|(name, histogram)| (name.to_owned(), histogram)).collect();
    text.push_str(&percentiles("", &rows));
    if !summary.process_rtt.is_empty() {
        text.push_str(
            "* by stamps of a process: it includes scheduling, and is no evidence about the network\n",
        );
    }
    let shown = match summary.network_rtt.is_empty() {
        true => ("round trip*", &summary.process_rtt),
        false => ("network", &summary.network_rtt),
    };
    if shown.1.count() > 1 {
        _ = write!(text, "\n{}", histogram(shown.0, shown.1));
    }
    text
}

/// Returns the lines of the paths that a trace found.
pub(super) fn traced(paths: &[PingPath], seconds: f64) -> String {
    let mut text =
        format!("traced {} path{} in {seconds:.1} s\n", paths.len(), if paths.len() == 1 { "" } else { "s" });
    for (index, path) in paths.iter().enumerate() {
        let port = paths::source_port_of(path.flow_label).unwrap_or_default();
        _ = writeln!(text, "path {}: port {port}: {}", index + 1, path.route());
    }
    text
}

pub(super) fn path_table(paths: &[ProbePath], summaries: &[Summary], classes: usize) -> String {
    let mut text = String::from(
        "\npath  port   DSCP  probes  loss      probes lost  answers lost  p50        p99        max\n",
    );
    for (index, (path, summary)) in paths.iter().zip(summaries).enumerate() {
        let number = index / classes.max(1) + 1;
        let port = paths::source_port_of(path.flow_label).map_or("any".to_owned(), |port| port.to_string());
        let loss = summary.counts.loss().map_or("-".to_owned(), |loss| format!("{:.2} %", 100.0 * loss));
        let histogram = match summary.network_rtt.is_empty() {
            true => &summary.process_rtt,
            false => &summary.network_rtt,
        };
        let at = |percentile| histogram.percentile(percentile).map_or("-".to_owned(), duration);
        let probes = summary.counts.conclusive();
        let rate =
            |count: LossCount| count.rate().map_or("-".to_owned(), |rate| format!("{:.2} %", 100.0 * rate));
        let line = format!(
            "{number:4}  {port:5}  {:4}  {probes:6}  {loss:8}  {:11}  {:12}  {:9}  {:9}  {}",
            path.dscp,
            rate(LossCount::of_probes([&summary.counts])),
            rate(LossCount::of_answers([&summary.counts])),
            at(50.0),
            at(99.0),
            at(100.0)
        );
        _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn percentiles(heading: &str, rows: &[(String, &DurationHistogram)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!("{heading:12} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "min", "p50", "p90", "p99", "max");
    for (name, histogram) in rows {
        let cell = |value: Option<Duration>| value.map_or("-".to_owned(), duration);
        let cells = [
            cell(histogram.min()),
            cell(histogram.percentile(50.0)),
            cell(histogram.percentile(90.0)),
            cell(histogram.percentile(99.0)),
            cell(histogram.max()),
        ];
        let [min, p50, p90, p99, max] = cells;
        _ = writeln!(text, "{name:12} {min:>9} {p50:>9} {p90:>9} {p99:>9} {max:>9}");
    }
    text
}

/// The maximum width of a bar.
const MAX_BAR_WIDTH: u64 = 40;

/// Returns a histogram with one bar per bucket. Buckets end at 1, 2 and 5 times a power of ten.
fn histogram(name: &str, histogram: &DurationHistogram) -> String {
    let (Some(min), Some(max)) = (histogram.min(), histogram.max()) else { return String::new() };
    let mut limits =
        (0..12).flat_map(|power| [1, 2, 5].map(|digit| Duration::from_nanos(digit * 10_u64.pow(power))));
    let mut rows = Vec::new();
    let mut below = 0;
    let mut lower = Duration::ZERO;
    for limit in limits.by_ref() {
        let up_to = if limit >= max { histogram.count() } else { histogram.count_up_to(limit) };
        if limit >= min {
            rows.push((lower, limit, up_to - below));
        }
        (below, lower) = (up_to, limit);
        if limit >= max {
            break;
        }
    }
    let max_count = rows.iter().map(|&(_, _, count)| count).max().unwrap_or(1).max(1);
    let mut text = format!("{name}:\n");
    for (lower, limit, count) in rows {
        // A count that is not 0 has a bar.
        let bar = (count * MAX_BAR_WIDTH).div_ceil(max_count);
        let bar = symbols::bar().repeat(bar as usize);
        let line = format!("{:>9} to {:>9}  {count:6}  {bar}", duration(lower), duration(limit));
        _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Returns a duration with three digits and its unit.
fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos() as f64;
    let (value, unit) = match nanos {
        ..1e3 => return format!("{nanos:.0} ns"),
        ..1e6 => return format!("{} {}s", three_digits(nanos / 1e3), symbols::micro()),
        ..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

fn three_digits(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let text = |nanos| duration(Duration::from_nanos(nanos));
        assert_eq!([text(0), text(999), text(1_000), text(12_340)], ["0 ns", "999 ns", "1.00 µs", "12.3 µs"]);
        assert_eq!([text(123_400), text(7_920_000), text(1_500_000_000)], ["123 µs", "7.92 ms", "1.50 s"]);
    }

    #[test]
    fn lost_long_probes_are_explained_by_the_path_mtu() {
        let mut lost = Summary::default();
        lost.counts.lost = 5;
        let hint = |size| {
            let start = Start {
                host: "storage".to_owned(),
                addr: ([192, 0, 2, 7], 18516).into(),
                device: "soft:192.0.2.1".to_owned(),
                gid: "::ffff:192.0.2.1".to_owned(),
                gid_index: 0,
                size,
                dscp: vec![0],
                paths: 1,
                is_traced: false,
            };
            let text = summary(&start, &lost, 0, 0, 0);
            text.split_once("hint: ").expect("a hint").1.to_owned()
        };
        assert!(hint(4000).contains("MTU of a network on the path is too small for 4000-byte probes"));
        assert!(hint(4000).contains("--size 1024"), "{}", hint(4000));
        assert!(!hint(64).contains("MTU") && hint(64).contains("--key-file"), "{}", hint(64));
    }

    #[test]
    fn a_histogram_counts_every_probe_once() {
        let mut durations = DurationHistogram::new();
        for nanos in [900, 7_000, 7_500, 8_000, 15_000, 15_100, 480_000] {
            durations.record(Duration::from_nanos(nanos));
        }
        let text = histogram("network", &durations);
        let counts = text.lines().skip(1).map(|line| {
            let counts = line[line.find("  ").unwrap_or(0)..].split_whitespace();
            counts.filter_map(|word| word.parse::<u64>().ok()).next_back().unwrap_or(0)
        });
        assert_eq!(counts.sum::<u64>(), 7, "{text}");
        assert!(text.contains("5.00 µs to   10.0 µs       3  ████"), "{text}");
        assert!(text.lines().count() <= 12, "{text}");
    }
}
