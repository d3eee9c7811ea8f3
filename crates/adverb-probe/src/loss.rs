//! The path that loses packets: a test whether one of several paths loses more than the others, with its error probability.
//!
//! Probes use the paths in turn. If all paths lose alike, each loss is on a path with the probability of the path's share
//! of the probes. [`lossy_paths`] compares this with the alternative that one path loses 2, 5, 20 or 100 times as much as
//! another. The caller may call it after each probe, and stop when a path is named: the probability that any of these calls
//! names a path although all paths lose alike is at most [`MAX_ERROR`].
//!
//! This holds for losses that are independent of each other. A burst that loses successive probes is spread over all
//! paths, because successive probes are on different paths.
//!
//! # Both directions
//!
//! The path of the answers is not the reverse of the probes' path: switches choose it by the answers' own ports. So each
//! direction has its own counts. If one of the two answers arrives, the probe did. If none arrives, the probe or both
//! answers were lost; the number of the latter is estimated from the number of single losses. (Then the evidence is a
//! generalized likelihood ratio, and [`MAX_ERROR`] holds approximately.)
//!
//! ```
//! use adverb::probe::loss::{LossCount, PacketCount, lossy_paths, probes_to_name};
//!
//! let clean = LossCount::new(PacketCount { sent: 150, lost: 0 });
//! let lossy = LossCount::new(PacketCount { sent: 150, lost: 14 });
//! let named = lossy_paths(&[clean, lossy]);
//! assert_eq!((named.len(), named[0].index), (1, 1));
//! // The number of probes that name a path which loses 10 %, with a probability of 99 %, if the other path loses nothing.
//! assert_eq!(probes_to_name(0.1, 2, 0.99), 446);
//! ```

use crate::session::ProbeCounts;

/// The maximum probability with which a path is named although all paths lose alike.
pub const MAX_ERROR: f64 = 0.001;

/// The ratios of two paths' losses that are compared with the ratio 1, each with the same weight.
const RATIOS: [f64; 4] = [2.0, 5.0, 20.0, 100.0];

/// The number of standard deviations on each side of a confidence interval of 99 %.
const DEVIATIONS: f64 = 2.575_829_3;

/// The number of packets that were sent on a path, and of those that were lost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LossCount {
    trials: f64,
    losses: f64,
    /// The estimated number of losses that the other direction has caused, and the standard deviation of the estimate.
    foreign: f64,
    foreign_deviation: f64,
}

/// The number of packets of which each lost one is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketCount {
    /// The number of packets that were sent.
    pub sent: u64,
    /// The number of those that were lost.
    pub lost: u64,
}

/// A path that loses more than the others.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct LossyPath {
    /// The index of the path.
    pub index: usize,
    /// The maximum probability with which paths that lose alike show so much evidence against this one.
    pub error: f64,
}

/// The results of a port's probes.
struct PortResults {
    complete: f64,
    one_answer: f64,
    unanswered: f64,
}

impl PortResults {
    fn new(counts: &ProbeCounts) -> PortResults {
        let complete = counts.answered + counts.late + counts.impossible + counts.unstamped;
        let unanswered = counts.lost + counts.unreachable;
        PortResults {
            complete: complete as f64,
            one_answer: counts.return_lost as f64,
            unanswered: unanswered as f64,
        }
    }

    /// Returns the estimated number of probes that arrived, but both of whose answers were lost, and the standard
    /// deviation of the estimate. With a probability *q* of losing an answer, the shares of probes with 2, 1 and 0 answers
    /// are (1 − q)², 2q(1 − q) and q²; the last one is the square of the second one, divided by 4 times the first one.
    fn both_answers_lost(&self) -> (f64, f64) {
        let (one, two) = (self.one_answer, self.complete.max(1.0));
        let estimate = one * one / (4.0 * two);
        (estimate, estimate * (4.0 / one.max(1.0) + 1.0 / two).sqrt())
    }
}

impl LossCount {
    /// Creates the counts of a path of which each lost packet is known.
    pub fn new(packets: PacketCount) -> LossCount {
        let PacketCount { sent, lost } = packets;
        LossCount { trials: sent as f64, losses: lost as f64, ..LossCount::default() }
    }

    /// Returns the counts of the direction to the responder, of the ports that share a path.
    pub fn of_probes<'a>(ports: impl IntoIterator<Item = &'a ProbeCounts>) -> LossCount {
        let mut sum = LossCount::default();
        for results in ports.into_iter().map(PortResults::new) {
            let (foreign, deviation) = results.both_answers_lost();
            sum += LossCount {
                trials: results.complete + results.one_answer + results.unanswered,
                losses: results.unanswered,
                foreign,
                foreign_deviation: deviation,
            };
        }
        sum
    }

    /// Returns the counts of the direction from the responder, of the ports that share a path. Answers to a probe of
    /// which both were lost are not counted.
    pub fn of_answers<'a>(ports: impl IntoIterator<Item = &'a ProbeCounts>) -> LossCount {
        let mut sum = LossCount::default();
        for results in ports.into_iter().map(PortResults::new) {
            // The share of losses is then the most likely *q*, given that at least one answer arrived.
            let trials = 2.0 * results.complete + results.one_answer;
            sum += LossCount { trials, losses: results.one_answer, ..LossCount::default() };
        }
        sum
    }

    /// Returns the share of lost packets, or `None` if there were no packets.
    pub fn rate(&self) -> Option<f64> {
        (self.trials > 0.0).then(|| (self.losses - self.foreign).max(0.0) / self.trials)
    }

    /// Whether a packet was lost, here or, perhaps, in the other direction.
    pub fn has_losses(&self) -> bool {
        self.losses > 0.0
    }

    /// Returns a confidence interval (99 %) of the probability of a loss, by Wilson's formula.
    pub fn interval(&self) -> (f64, f64) {
        let Some(rate) = self.rate() else { return (0.0, 1.0) };
        let squared = DEVIATIONS * DEVIATIONS / self.trials;
        let middle = rate + squared / 2.0;
        let half = DEVIATIONS * (rate * (1.0 - rate) / self.trials + squared / (4.0 * self.trials)).sqrt();
        let bound = |value: f64| (value / (1.0 + squared)).clamp(0.0, 1.0);
        (bound(middle - half), bound(middle + half))
    }
}

impl std::ops::AddAssign for LossCount {
    fn add_assign(&mut self, other: LossCount) {
        self.trials += other.trials;
        self.losses += other.losses;
        self.foreign += other.foreign;
        self.foreign_deviation += other.foreign_deviation;
    }
}

/// Returns the paths that lose more than others, in the order of their indices. Names none if there is only one path, and
/// none if all lose alike: then the loss is in a part that all paths share.
pub fn lossy_paths(paths: &[LossCount]) -> Vec<LossyPath> {
    let mut named = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let others = paths.iter().enumerate().filter(|&(other, _)| other != index);
        let evidence: f64 = others.map(|(_, other)| evidence(path, other)).sum();
        // The mean of the evidence against each other path is also evidence (an e-value). The error probability is
        // divided equally among the paths.
        let error = paths.len() as f64 * (paths.len() as f64 - 1.0) / evidence;
        if error <= MAX_ERROR {
            named.push(LossyPath { index, error });
        }
    }
    named
}

/// Returns the evidence that a path loses more than another one: the probability of the losses if it does, divided by
/// their probability if both lose alike. If both lose alike and all losses are of this direction, its expected value is
/// at most 1 after any number of probes (an e-value).
fn evidence(path: &LossCount, other: &LossCount) -> f64 {
    if path.trials <= 0.0 || other.trials <= 0.0 {
        return 0.0;
    }
    let alike = log_likelihood(path, other, 1.0);
    let ratios = RATIOS.into_iter().map(|ratio| (log_likelihood(path, other, ratio) - alike).exp());
    ratios.sum::<f64>() / RATIOS.len() as f64
}

/// Returns the logarithm of the maximum likelihood of the losses if a path loses `ratio` times as much as another one, up
/// to a constant. Losses are rare, so their numbers have Poisson distributions.
fn log_likelihood(path: &LossCount, other: &LossCount, ratio: f64) -> f64 {
    // If the other path loses packets with the probability x, the expected numbers of losses are a·(p + x) and b·(q + x),
    // where a·p and b·q are the losses of the other direction.
    let (a, b) = (path.trials * ratio, other.trials);
    // The error of their estimates is counted in favor of the path.
    let max_foreign = path.foreign + 2.0 * path.foreign_deviation;
    let min_foreign = (other.foreign - 2.0 * other.foreign_deviation).max(0.0);
    let (p, q) = (max_foreign / a, min_foreign / b);
    // The likelihood has its maximum where its derivative is 0, a quadratic equation, or at x = 0.
    let linear = (a + b) * (p + q) - path.losses - other.losses;
    let constant = (a + b) * p * q - path.losses * q - other.losses * p;
    let root = (linear * linear - 4.0 * (a + b) * constant).max(0.0).sqrt();
    let x = ((root - linear) / (2.0 * (a + b))).max(0.0);
    let term = |losses: f64, expected: f64| match losses > 0.0 {
        true => losses * expected.ln() - expected,
        false => -expected,
    };
    term(path.losses, a * (p + x)) + term(other.losses, b * (q + x))
}

/// Returns the number of losses on one path after which it is named, if each path has the same number of probes and the
/// others lose nothing.
pub fn losses_to_name(path_count: usize) -> u64 {
    let is_named = |losses: u64| {
        let mut paths = vec![LossCount::new(PacketCount { sent: losses, lost: 0 }); path_count.max(2)];
        paths[0] = LossCount::new(PacketCount { sent: losses, lost: losses });
        !lossy_paths(&paths).is_empty()
    };
    (1..).find(|&losses| is_named(losses)).unwrap_or(u64::MAX)
}

/// Returns the number of probes on all paths together after which one path that loses packets with the probability `loss`
/// is named with this probability, if the others lose nothing. If answers are lost, too, up to twice as many are
/// needed.
///
/// # Panics
///
/// Panics if `loss` or `probability` isn't between 0 and 1, both excluded.
pub fn probes_to_name(loss: f64, path_count: usize, probability: f64) -> u64 {
    assert!(loss > 0.0 && loss < 1.0, "a loss of {loss}");
    assert!(probability > 0.0 && probability < 1.0, "a probability of {probability}");
    let losses = losses_to_name(path_count);
    // The probability that loss number `losses` is the one of probe number `probes` (negative binomial), and the sum.
    let mut probes = losses;
    let mut term = losses as f64 * loss.ln();
    let mut sum = term.exp();
    while sum < probability {
        term += (-loss).ln_1p() + (probes as f64).ln() - ((probes + 1 - losses) as f64).ln();
        sum += term.exp();
        probes += 1;
    }
    probes * path_count.max(2) as u64
}

#[cfg(test)]
mod tests {
    use adverb_wire::random::SplitMix64;

    use super::*;

    /// A path with its probabilities of losing a probe and of losing an answer.
    type Loss = (f64, f64);

    /// The named paths of each direction, and the number of probes at which the first one that loses probes was named.
    #[derive(Default, Debug)]
    struct Outcome {
        of_probes: Vec<usize>,
        of_answers: Vec<usize>,
        named_after: Option<u64>,
    }

    /// Sends probes on the paths in turn, and looks for a lossy path after each loss.
    fn run(paths: &[Loss], probes: u64, seed: u64) -> Outcome {
        let mut random = SplitMix64(seed);
        let mut counts = vec![ProbeCounts::default(); paths.len()];
        let mut outcome = Outcome::default();
        for probe in 0..probes {
            let index = probe as usize % paths.len();
            let (forward, back) = paths[index];
            let is_lost = random.chance(forward);
            let answers =
                [random.chance(back), random.chance(back)].into_iter().filter(|is_lost| !is_lost).count();
            match answers {
                _ if is_lost => counts[index].lost += 1,
                0 => counts[index].lost += 1,
                1 => counts[index].return_lost += 1,
                _ => {
                    counts[index].answered += 1;
                    continue;
                }
            }
            let of_probes: Vec<LossCount> = counts.iter().map(|path| LossCount::of_probes([path])).collect();
            let of_answers: Vec<LossCount> =
                counts.iter().map(|path| LossCount::of_answers([path])).collect();
            add(&mut outcome.of_answers, &of_answers);
            if add(&mut outcome.of_probes, &of_probes) {
                outcome.named_after.get_or_insert(probe + 1);
            }
        }
        outcome
    }

    /// Adds the lossy paths. Returns whether there are any.
    fn add(named: &mut Vec<usize>, counts: &[LossCount]) -> bool {
        let found = lossy_paths(counts);
        for path in &found {
            if !named.contains(&path.index) {
                named.push(path.index);
            }
        }
        !found.is_empty()
    }

    #[test]
    fn the_lossy_path_is_named_and_the_clean_one_never() {
        for (loss, seeds) in [(0.1, 0..200), (0.01, 0..40)] {
            let limit = probes_to_name(loss, 2, 0.99);
            let mut late = 0;
            for seed in seeds.clone() {
                let outcome = run(&[(0.0, 0.0), (loss, 0.0)], 2 * limit, seed);
                assert_eq!((outcome.of_probes, outcome.of_answers), (vec![1], vec![]), "{loss} {seed}");
                late += u64::from(outcome.named_after > Some(limit));
                // The lossy spine is on the return path of one of the two ports.
                let back = seed as usize % 2;
                let mut paths = [(0.0, 0.0), (loss, 0.0)];
                paths[back].1 = loss;
                let outcome = run(&paths, 2 * limit, seed);
                assert_eq!((outcome.of_probes, outcome.of_answers), (vec![1], vec![back]), "{loss} {seed}");
            }
            assert!(
                late <= 1 + seeds.end / 50,
                "{late} of {} runs needed more than {limit} probes",
                seeds.end
            );
        }
    }

    #[test]
    fn no_path_is_named_if_all_lose_alike() {
        for (paths, loss) in [(2, 0.1), (2, 0.01), (4, 0.1), (2, 0.5)] {
            for seed in 0..40 {
                let outcome = run(&vec![(loss, loss); paths], 4_000, seed);
                let named = (&outcome.of_probes, &outcome.of_answers);
                assert_eq!(named, (&vec![], &vec![]), "{paths} paths, {loss}, seed {seed}");
            }
        }
    }

    #[test]
    fn lost_answers_are_not_taken_for_lost_probes() {
        // Without the estimate of answers that were both lost, path 0 would lose 4 % of the probes.
        for seed in 0..50 {
            let outcome = run(&[(0.0, 0.2), (0.0, 0.0)], 10_000, seed);
            assert_eq!((outcome.of_probes, outcome.of_answers), (vec![], vec![0]), "seed {seed}");
        }
    }

    #[test]
    fn several_lossy_paths_are_named() {
        let outcome = run(&[(0.1, 0.0), (0.0, 0.0), (0.02, 0.0), (0.1, 0.0)], 20_000, 5);
        let mut named = outcome.of_probes;
        named.sort_unstable();
        assert_eq!(named, [0, 2, 3]);
    }

    #[test]
    fn numbers_of_probes_are_those_of_the_binomial_distribution() {
        assert_eq!([2, 4, 16].map(losses_to_name), [13, 14, 16]);
        // The probability of at least 13 losses among 223 and 222 probes: 0.9902 and 0.9897.
        assert_eq!(probes_to_name(0.1, 2, 0.99), 446);
        assert_eq!(probes_to_name(0.1, 2, 0.5), 254);
        assert_eq!(probes_to_name(0.01, 2, 0.5), 2534);
        assert_eq!(probes_to_name(0.01, 2, 0.99), 4554);
    }

    #[test]
    fn without_probes_nothing_is_named() {
        assert_eq!(lossy_paths(&[]), []);
        let lossy = LossCount::new(PacketCount { sent: 1_000_000, lost: 100_000 });
        assert_eq!(lossy_paths(&[lossy]), []);
        assert_eq!(lossy_paths(&[lossy, LossCount::default()]), []);
        assert_eq!(LossCount::default().interval(), (0.0, 1.0));
    }

    #[test]
    fn intervals_contain_the_rate() {
        let count = LossCount::new(PacketCount { sent: 1000, lost: 100 });
        let (low, high) = count.interval();
        assert!((low - 0.0782).abs() < 1e-3 && (high - 0.1272).abs() < 1e-3, "{low} {high}");
        let (low, high) = LossCount::new(PacketCount { sent: 1000, lost: 0 }).interval();
        assert!(low == 0.0 && (high - 0.0066).abs() < 1e-4, "{high}");
    }
}
