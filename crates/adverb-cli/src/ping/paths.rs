//! The paths of `adverb ping`: their ports and routers, and those that lose packets.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

use adverb::probe::format::Sequence;
use adverb::probe::histogram::Summary;
use adverb::probe::loss::{LossCount, lossy_paths, probes_to_name};
use adverb::probe::paths;
use adverb::probe::route::Route;
use serde_json::{Value, json};

/// The direction of the packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// To the responder.
    Forward,
    /// From the responder.
    Return,
}

/// A path of the probes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PingPath {
    pub(super) flow_label: u32,
    /// The address of each router and of the host, or `None` for one that doesn't answer. Empty without a trace.
    pub(super) hops: Vec<Option<IpAddr>>,
}

/// A path that was found to lose more packets than others.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Named {
    pub(super) direction: Direction,
    /// The index of the path.
    pub(super) path: usize,
    /// The number of probes, on all paths, after which it was named.
    pub(super) after: u64,
    /// The maximum probability of an error.
    pub(super) error: f64,
}

#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) list: Vec<PingPath>,
    pub(super) named: Vec<Named>,
    /// The number of probes of earlier epochs, the current epoch, and the number of its probes.
    position: (u64, u32, u64),
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Return => "return",
        }
    }

    const fn packets(self) -> &'static str {
        match self {
            Direction::Forward => "probes",
            Direction::Return => "answers",
        }
    }
}

impl PingPath {
    fn port(&self) -> Option<u16> {
        paths::source_port_of(self.flow_label)
    }

    /// Returns the addresses of the hops.
    pub(super) fn route(&self) -> String {
        let hop = |hop: &Option<IpAddr>| hop.map_or("*".to_owned(), |address| address.to_string());
        self.hops.iter().map(hop).collect::<Vec<_>>().join(", ")
    }
}

impl Paths {
    /// Creates the paths of these flow labels, without routes.
    pub(super) fn of_labels(labels: impl IntoIterator<Item = u32>) -> Paths {
        let list = labels.into_iter().map(|flow_label| PingPath { flow_label, hops: Vec::new() });
        Paths { list: list.collect(), ..Paths::default() }
    }

    /// Creates the paths of a trace, each with one port.
    pub(super) fn of_route(route: &Route) -> Paths {
        let list = route.paths.iter().take(paths::MAX_PATHS).filter_map(|path| {
            let flow_label = paths::flow_label_of(path.source_port)?;
            Some(PingPath { flow_label, hops: path.addresses().collect() })
        });
        Paths { list: list.collect(), ..Paths::default() }
    }

    /// Returns the counts of each path. The summaries are sorted by path, with one for each class.
    pub(super) fn counts(&self, direction: Direction, summaries: &[Summary]) -> Vec<LossCount> {
        let classes = summaries.len() / self.list.len().max(1);
        let loss_count = |summaries: &[Summary]| match direction {
            Direction::Forward => LossCount::of_probes(summaries.iter().map(|summary| &summary.counts)),
            Direction::Return => LossCount::of_answers(summaries.iter().map(|summary| &summary.counts)),
        };
        summaries.chunks(classes.max(1)).map(loss_count).collect()
    }

    /// Looks for paths that lose packets, after the loss of this probe. Returns those that were not named before.
    pub(super) fn find_lossy(&mut self, lost: Sequence, summaries: &[Summary]) -> Vec<Named> {
        let (earlier, epoch, count) = &mut self.position;
        if *epoch != lost.epoch {
            (*earlier, *epoch, *count) = (*earlier + *count, lost.epoch, 0);
        }
        *count = (*count).max(u64::from(lost.number) + 1);
        let after = *earlier + *count;
        let mut new = Vec::new();
        for direction in [Direction::Forward, Direction::Return] {
            for found in lossy_paths(&self.counts(direction, summaries)) {
                let mut known = self.named.iter_mut();
                match known.find(|named| named.direction == direction && named.path == found.index) {
                    Some(named) => named.error = named.error.min(found.error),
                    None => new.push(Named { direction, path: found.index, after, error: found.error }),
                }
            }
        }
        self.named.extend(new.iter().cloned());
        new
    }

    /// Returns the counts of the other paths that are not named in the same direction.
    fn others(&self, named: &Named, counts: &[LossCount]) -> LossCount {
        let mut sum = LossCount::default();
        for (index, &count) in counts.iter().enumerate() {
            let is_named =
                self.named.iter().any(|other| other.direction == named.direction && other.path == index);
            if !is_named {
                sum += count;
            }
        }
        sum
    }

    /// Returns the routers of a named path that no unnamed path passes: one of them may lose the packets. The list is
    /// empty for the return direction, which isn't traced.
    fn only_hops(&self, named: &Named) -> Vec<IpAddr> {
        if named.direction == Direction::Return {
            return Vec::new();
        }
        let is_named = |index| {
            self.named.iter().any(|other| other.direction == Direction::Forward && other.path == index)
        };
        let clean = self.list.iter().enumerate().filter(|&(index, _)| !is_named(index));
        let clean: BTreeSet<IpAddr> =
            clean.flat_map(|(_, path)| path.hops.iter().flatten().copied()).collect();
        self.list[named.path].hops.iter().flatten().copied().filter(|hop| !clean.contains(hop)).collect()
    }

    /// Returns the sentence about a path that loses packets.
    pub(super) fn named_text(&self, named: &Named, summaries: &[Summary]) -> String {
        let counts = self.counts(named.direction, summaries);
        let count = counts[named.path];
        let (low, high) = count.interval();
        let percent = |rate: f64| format!("{:.2}", 100.0 * rate);
        let packets = named.direction.packets();
        let mut text = format!("path {}", named.path + 1);
        if let Some(port) = self.list[named.path].port() {
            _ = write!(text, " (port {port})");
        }
        _ = write!(
            text,
            " loses {packets}: {} % ({} to {} %)",
            percent(count.rate().unwrap_or_default()),
            percent(low),
            percent(high)
        );
        if let Some(others) = self.others(named, &counts).rate() {
            _ = write!(text, ", the others {} %", percent(others));
        }
        let only = self.only_hops(named);
        if !only.is_empty() {
            let only: Vec<String> = only.iter().map(IpAddr::to_string).collect();
            _ = write!(text, "; no other path passes {}", only.join(", "));
        }
        text
    }

    /// Returns the verdict about all paths.
    pub(super) fn verdict(&self, summaries: &[Summary]) -> String {
        let mut text = String::from("\n");
        for named in &self.named {
            _ = writeln!(text, "{}", self.named_text(named, summaries));
            let error = match named.error {
                ..1e-6 => "below 0.0001 %".to_owned(),
                error => format!("at most {:.4} %", 100.0 * error),
            };
            _ = writeln!(text, "  named after {} probes; probability of an error {error}", named.after);
            if named.direction == Direction::Return {
                _ = writeln!(
                    text,
                    "  the way back isn't traced from here: run `adverb traceroute` on the other host"
                );
            }
        }
        if self.named.is_empty() {
            let counts =
                [Direction::Forward, Direction::Return].map(|direction| self.counts(direction, summaries));
            let has_losses = counts.iter().flatten().any(LossCount::has_losses);
            let bound = counts[0].iter().map(|count| count.interval().1).fold(0.0, f64::max);
            let bound = 100.0 * bound;
            _ = match has_losses {
                true => writeln!(text, "no path is known to lose more than the others"),
                false => writeln!(
                    text,
                    "no loss: each path loses less than {bound:.2} % of the probes (99 % sure)"
                ),
            };
            let [tenth, hundredth] = [0.1, 0.01].map(|loss| probes_to_name(loss, self.list.len(), 0.99));
            _ = writeln!(
                text,
                "a path that loses 10 % of the probes is named after {tenth} probes, one that loses 1 % after \
                 {hundredth} (with 99 % probability)"
            );
        }
        text
    }

    /// Returns a path that loses packets, as JSON.
    pub(super) fn named_json(&self, named: &Named, summaries: &[Summary]) -> Value {
        let counts = self.counts(named.direction, summaries);
        let (low, high) = counts[named.path].interval();
        json!({
            "direction": named.direction.name(),
            "path": named.path + 1,
            "source_port": self.list[named.path].port(),
            "after_probes": named.after,
            "error_probability": named.error,
            "loss": counts[named.path].rate(),
            "loss_interval": [low, high],
            "loss_of_others": self.others(named, &counts).rate(),
            "hops": self.list[named.path].hops,
            "only_hops": self.only_hops(named),
        })
    }

    /// Returns the number of probes after which a lossy path is named, for several losses.
    pub(super) fn needed_json(&self) -> Value {
        let needed = [0.1, 0.01, 0.001].map(|loss| {
            let [median, p99] = [0.5, 0.99].map(|share| probes_to_name(loss, self.list.len(), share));
            json!({ "loss": loss, "median": median, "p99": p99 })
        });
        needed.to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use adverb::probe::loss::PacketCount;
    use adverb::probe::session::ProbeResult;

    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        text.parse().ok()
    }

    fn two_paths() -> Paths {
        let mut paths = Paths::of_labels([0x123, 0x456]);
        paths.list[0].hops = ["10.0.0.1", "10.0.1.1", "10.0.9.2"].map(address).to_vec();
        paths.list[1].hops = vec![address("10.0.0.1"), address("10.0.2.1"), None, address("10.0.9.2")];
        paths
    }

    #[test]
    fn the_router_of_the_lossy_path_is_named() {
        let mut paths = two_paths();
        let mut summaries = vec![Summary::new(); 2];
        let mut found = Vec::new();
        for number in 0..400 {
            let index = number as usize % 2;
            let is_lost = index == 1 && number % 20 == 1;
            summaries[index].record(if is_lost { &ProbeResult::Lost } else { &ProbeResult::Unstamped });
            if is_lost {
                found.extend(paths.find_lossy(Sequence { epoch: 7, number }, &summaries));
            }
        }
        // This is loss number 13.
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].direction, found[0].path, found[0].after), (Direction::Forward, 1, 242));
        assert_eq!(paths.only_hops(&found[0]), [address("10.0.2.1").unwrap()]);
        let text = paths.verdict(&summaries);
        assert!(text.starts_with("\npath 2 (port 50262) loses probes: 10.00 % ("), "{text}");
        assert!(text.contains(" %), the others 0.00 %; no other path passes 10.0.2.1\n"), "{text}");
        assert!(text.contains("named after 242 probes; probability of an error at most "), "{text}");
        let json = paths.named_json(&found[0], &summaries);
        assert_eq!((&json["path"], &json["only_hops"][0]), (&2.into(), &"10.0.2.1".into()));
    }

    #[test]
    fn without_losses_the_verdict_states_the_excluded_rate() {
        let paths = two_paths();
        let mut summaries = vec![Summary::new(); 2];
        (0..1000)
            .for_each(|_| summaries.iter_mut().for_each(|summary| summary.record(&ProbeResult::Unstamped)));
        let text = paths.verdict(&summaries);
        assert!(text.contains("no loss: each path loses less than 0.66 %"), "{text}");
        assert!(text.contains("10 % of the probes is named after 446 probes"), "{text}");
        summaries[0].record(&ProbeResult::ReturnLost);
        assert!(paths.verdict(&summaries).contains("no path is known to lose more than the others"));
    }

    #[test]
    fn classes_of_a_path_are_counted_together() {
        let paths = two_paths();
        let mut summaries = vec![Summary::new(); 4];
        summaries[2].record(&ProbeResult::Lost);
        summaries[3].record(&ProbeResult::Unstamped);
        let counts = paths.counts(Direction::Forward, &summaries);
        assert_eq!(counts, [LossCount::default(), LossCount::new(PacketCount { sent: 2, lost: 1 })]);
    }
}
