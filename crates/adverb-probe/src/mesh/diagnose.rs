//! The diagnosis of a mesh from its results.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::condition::Condition;
use super::diagnosis::{Diagnosis, Evidence, Fault, Gap, Suspect};
use super::matrix::{CellKey, Matrix};
use super::statistics::{binomial_tail, hypergeometric_tail, log_likelihood, loss_bound};

/// The minimum number of members that must witness a fault of one part, so that it is not another part's fault.
pub const MIN_WITNESSES: usize = 3;

/// The expected number of false alarms per hour, at most, if one diagnosis is made per window.
///
/// This holds for losses that are independent and rarer than [`BACKGROUND_LOSS`], or as frequent everywhere.
pub const FALSE_ALARMS_PER_HOUR: f64 = 0.01;

/// The maximum probability of a loss per probe that is not reported as a fault.
pub const BACKGROUND_LOSS: f64 = 0.001;

/// The number of windows, of the last [`SPAN`](super::SPAN), in which a member must answer nothing before it is called
/// unreachable.
pub const SILENT_WINDOWS: usize = 5;

/// The minimum number of windows with losses. Losses of one moment are not a fault that lasts.
const MIN_LOSS_WINDOWS: u32 = 3;

/// The minimum number of losses before the whole mesh is called lossy.
const MIN_LOSSES_EVERYWHERE: u64 = 50;

/// The maximum probability that a suspect is named in place of another one.
const MAX_MISNAMING_PROBABILITY: f64 = 0.001;

/// Diagnoses a mesh from the results of its last windows.
///
/// The diagnosis uses the last [`SPAN`](super::SPAN) windows, except the last [`SETTLE_WINDOWS`](super::SETTLE_WINDOWS).
///
/// - **Processes are examined first.** The responder delay, the prober delay and the prober's own schedule tell when a process
///   stalled. The losses of its members during a stall of at least [`LONG_STALL`](super::LONG_STALL) say nothing about
///   the network and are left out. A process that stalls in at least [`STALLED_WINDOWS`](super::STALLED_WINDOWS), for
///   at least [`STALLED_SHARE`](super::STALLED_SHARE) of the time, is a [`Suspect::SlowProcess`]; the shorter stalls of
///   a busy machine are not.
/// - **A member that answers nothing** in a window may be stopped, restarted, unplugged or dead. Such windows are no
///   evidence for a lossy NIC either; [`SILENT_WINDOWS`] of them make a [`Suspect::Unreachable`].
/// - **Only losses are evidence about the network.** Round-trip times are not used. For each suspect, two exact tests
///   compare its losses with [`BACKGROUND_LOSS`] (binomial) and with the rest of the mesh (Fisher). Both must be
///   significant, corrected for the number of suspects and of diagnoses per hour ([`FALSE_ALARMS_PER_HOUR`]).
/// - **The suspect with the highest likelihood is named**, if no other suspect explains the losses nearly as well, at
///   least [`MIN_WITNESSES`] members saw losses, and the losses are spread over at least three windows. The search is
///   repeated without its probes.
///
/// ```
/// use std::net::IpAddr;
///
/// use adverb::probe::mesh::{Cell, Matrix, Member, CellKey, Suspect, diagnose};
///
/// let nics: Vec<IpAddr> = (1..=5).map(|host| [10, 0, 0, host].into()).collect();
/// // A process for each NIC.
/// let members = nics.iter().zip(0..).map(|(&address, process)| Member { address, process, rail: None });
/// let mut matrix = Matrix::new(members);
/// for window in 0..10 {
///     for &source in &nics {
///         for &destination in nics.iter().filter(|&&nic| nic != source) {
///             // The third NIC loses one probe of ten.
///             let lost = u64::from(source == nics[2] || destination == nics[2]);
///             let cell = Cell { probes: 10, lost, ..Cell::default() };
///             matrix.record(window, CellKey { source, destination, class: 0 }, &cell);
///         }
///     }
///     matrix.advance(window + 1);
/// }
/// let diagnosis = diagnose(&matrix);
/// assert_eq!(diagnosis.faults[0].suspect, Suspect::Nic(nics[2]));
/// ```
pub fn diagnose(matrix: &Matrix) -> Diagnosis {
    let condition = Condition::new(matrix);
    let mut diagnosis = Diagnosis { loss_bound: 1.0, ..Diagnosis::default() };
    slow_processes(matrix, &condition, &mut diagnosis);
    silent_members(matrix, &condition, &mut diagnosis);
    let (evidence, excluded) = collect_evidence(matrix, &condition);
    diagnosis.probes = evidence.iter().map(|cell| cell.probes).sum();
    diagnosis.losses = evidence.iter().map(|cell| cell.losses).sum();
    diagnosis.loss_bound = worst_bound(matrix, &evidence);
    few_probes(matrix, &evidence, &excluded, &mut diagnosis);
    lossy_parts(matrix, evidence, &mut diagnosis);
    diagnosis
}

/// Finds processes that stalled in many windows, and for a large share of the time.
fn slow_processes(matrix: &Matrix, condition: &Condition, diagnosis: &mut Diagnosis) {
    for (process, stalls) in condition.stalls() {
        if let Some(windows) = stalls.slow_windows {
            let members = matrix.members().filter(|member| member.process == process);
            diagnosis.faults.push(Fault {
                suspect: Suspect::SlowProcess(members.map(|member| member.address).collect()),
                evidence: Evidence::Stalls { windows, longest: stalls.longest },
            });
        }
    }
}

/// Finds members that answered nothing.
fn silent_members(matrix: &Matrix, condition: &Condition, diagnosis: &mut Diagnosis) {
    for member in matrix.members() {
        let is_silent = |number: &u64| {
            condition.is_silent(&member.address, *number) && !condition.is_absent(member.process, *number)
        };
        // A very lossy NIC is silent in single windows too, but rarely in two in a row.
        let is_outage = |number: &u64| {
            is_silent(number)
                && (is_silent(&(number + 1)) || number.checked_sub(1).is_some_and(|n| is_silent(&n)))
        };
        let silent: Vec<u64> = matrix.settled().map(|(number, _)| number).filter(is_outage).collect();
        let Some(&last) = silent.last() else { continue };
        let windows = u32::try_from(silent.len()).unwrap_or(u32::MAX);
        let duration = matrix.window().saturating_mul(windows);
        let witnesses = witnesses_of_silence(matrix, condition, member.address, &silent);
        if silent.len() < SILENT_WINDOWS {
            diagnosis.gaps.push(Gap::Silent { member: member.address, duration });
        } else if witnesses < MIN_WITNESSES {
            diagnosis
                .gaps
                .push(Gap::FewWitnesses { suspect: Suspect::Unreachable(member.address), witnesses });
        } else {
            let answers_again = matrix.windows().any(|(number, window)| {
                let mut to_member =
                    window.cells.iter().filter(|(route, _)| route.destination == member.address);
                number > last && to_member.any(|(_, cell)| cell.probes > cell.unanswered())
            });
            diagnosis.faults.push(Fault {
                suspect: Suspect::Unreachable(member.address),
                evidence: Evidence::Silence { duration, witnesses, answers_again },
            });
        }
    }
}

/// Returns the number of members that probed a silent member and were answered by another one at the same time.
fn witnesses_of_silence(matrix: &Matrix, condition: &Condition, silent: IpAddr, windows: &[u64]) -> usize {
    let mut witnesses = BTreeSet::new();
    for (number, window) in matrix.settled().filter(|(number, _)| windows.contains(number)) {
        for route in window.cells.keys().filter(|route| route.destination == silent) {
            let is_answered = window
                .cells
                .iter()
                .any(|(other, cell)| other.source == route.source && cell.probes > cell.unanswered());
            let is_absent =
                matrix.member(&route.source).is_none_or(|source| condition.is_absent(source.process, number));
            if is_answered && !is_absent {
                witnesses.insert(route.source);
            }
        }
    }
    witnesses.len()
}

/// The evidence of a route about the network: the sum over the windows that are evidence.
#[derive(Clone, Copy, Debug)]
struct RouteEvidence {
    route: CellKey,
    probes: u64,
    losses: u64,
    /// The windows with losses, as bits.
    loss_windows: u64,
}

/// Returns the evidence of all routes, and the members for which results were excluded.
fn collect_evidence(matrix: &Matrix, condition: &Condition) -> (Vec<RouteEvidence>, BTreeSet<IpAddr>) {
    let mut routes: BTreeMap<CellKey, RouteEvidence> = BTreeMap::new();
    let mut excluded = BTreeSet::new();
    for (number, window) in matrix.settled() {
        for (&route, cell) in window.cells.iter().filter(|(_, cell)| cell.probes > 0) {
            if !condition.is_evidence(matrix, &route, number) {
                excluded.extend([route.source, route.destination]);
                continue;
            }
            let sum =
                routes.entry(route).or_insert(RouteEvidence { route, probes: 0, losses: 0, loss_windows: 0 });
            sum.probes += cell.probes;
            sum.losses += cell.losses().min(cell.probes);
            // The span has fewer than 64 windows, so that each has its own bit.
            sum.loss_windows |= u64::from(cell.losses() > 0) << (number % 64);
        }
    }
    (routes.into_values().collect(), excluded)
}

/// Reports members about which nothing is known.
fn few_probes(
    matrix: &Matrix,
    evidence: &[RouteEvidence],
    excluded: &BTreeSet<IpAddr>,
    diagnosis: &mut Diagnosis,
) {
    let mut are_few = evidence.is_empty() && excluded.is_empty();
    let mut stalled = Vec::new();
    for member in matrix.members().map(|member| member.address) {
        if evidence.iter().any(|cell| cell.route.source == member || cell.route.destination == member) {
            continue;
        }
        let is_silent = |gap: &Gap| matches!(gap, Gap::Silent { member: silent, .. } if *silent == member);
        let is_dead = |fault: &Fault| fault.suspect == Suspect::Unreachable(member);
        if diagnosis.gaps.iter().any(is_silent) || diagnosis.faults.iter().any(is_dead) {
            continue;
        }
        match excluded.contains(&member) {
            true => stalled.push(member),
            false => are_few = true,
        }
    }
    if !stalled.is_empty() {
        diagnosis.gaps.push(Gap::Stalled(stalled));
    }
    if are_few {
        diagnosis.gaps.push(Gap::FewProbes);
    }
}

/// Returns the highest bound of the loss at any one member.
fn worst_bound(matrix: &Matrix, evidence: &[RouteEvidence]) -> f64 {
    let bound = |member: IpAddr| {
        let at_member =
            evidence.iter().filter(|cell| cell.route.source == member || cell.route.destination == member);
        let (losses, probes) =
            at_member.fold((0, 0), |(losses, probes), cell| (losses + cell.losses, probes + cell.probes));
        loss_bound(losses, probes, 0.95)
    };
    matrix.members().map(|member| bound(member.address)).fold(0.0, f64::max)
}

/// Finds the parts of the network that lose packets.
fn lossy_parts(matrix: &Matrix, mut evidence: Vec<RouteEvidence>, diagnosis: &mut Diagnosis) {
    if evidence.iter().all(|cell| cell.losses == 0) {
        return;
    }
    let suspects = suspects(matrix, &evidence);
    let looks_per_hour = 3600.0 / matrix.window().as_secs_f64().max(1e-3);
    let significance = FALSE_ALARMS_PER_HOUR / looks_per_hour / (suspects.len() + 1) as f64;
    let margin = (suspects.len() as f64 / MAX_MISNAMING_PROBABILITY).ln();
    let uses = |suspect: &Suspect, route: &CellKey| suspect_uses(matrix, suspect, route);
    loop {
        let tests: Vec<LossTest<'_>> =
            suspects.iter().filter_map(|suspect| LossTest::new(&evidence, suspect, &uses)).collect();
        let significant = tests.iter().filter(|test| test.p_value <= significance);
        let Some(best) = significant.max_by(|one, other| one.likelihood.total_cmp(&other.likelihood)) else {
            lossy_everywhere(&evidence, &tests, significance, diagnosis);
            return;
        };
        let rest: Vec<RouteEvidence> =
            evidence.iter().filter(|cell| !uses(best.suspect, &cell.route)).copied().collect();
        // A suspect that is significant without the probes of the best one is another fault, not a rival.
        let is_rival = |test: &&LossTest<'_>| {
            test.suspect != best.suspect
                && test.likelihood > best.likelihood - margin
                && LossTest::new(&rest, test.suspect, &uses).is_none_or(|test| test.p_value > significance)
        };
        let rival =
            tests.iter().filter(is_rival).max_by(|one, other| one.likelihood.total_cmp(&other.likelihood));
        let suspect = best.suspect.clone();
        let witnesses = witnesses(&evidence, best.suspect, &uses);
        if witnesses < MIN_WITNESSES {
            diagnosis.gaps.push(Gap::FewWitnesses { suspect, witnesses });
        } else if let Some(rival) = rival {
            // The search ends here: it would continue without the probes of one of the two, perhaps the wrong one.
            diagnosis.gaps.push(Gap::Ambiguous { suspect, rival: rival.suspect.clone() });
            return;
        } else if best.loss_windows >= MIN_LOSS_WINDOWS {
            diagnosis.faults.push(Fault { suspect, evidence: best.evidence(witnesses) });
        }
        evidence = rest;
    }
}

/// Reports losses that no single part explains.
fn lossy_everywhere(
    evidence: &[RouteEvidence],
    tests: &[LossTest<'_>],
    significance: f64,
    diagnosis: &mut Diagnosis,
) {
    let probes = evidence.iter().map(|cell| cell.probes).sum();
    let losses = evidence.iter().map(|cell| cell.losses).sum();
    let p_value = binomial_tail(losses, probes, BACKGROUND_LOSS);
    if p_value > significance {
        return;
    }
    let lossy = || evidence.iter().filter(|cell| cell.losses > 0);
    let witnesses: BTreeSet<IpAddr> =
        lossy().flat_map(|cell| [cell.route.source, cell.route.destination]).collect();
    let windows = lossy().fold(0, |windows, cell| windows | cell.loss_windows).count_ones();
    let favorite = tests.iter().min_by(|one, other| one.p_value.total_cmp(&other.p_value));
    // A part that is suspicious, though not significant yet, may explain the losses after more probes.
    let is_even = favorite.is_none_or(|test| test.p_value > 0.01 / tests.len() as f64);
    // Two or three members are too few for a comparison.
    if witnesses.len() <= MIN_WITNESSES {
        diagnosis.gaps.push(Gap::FewWitnesses {
            suspect: favorite.map_or(Suspect::Everywhere, |test| test.suspect.clone()),
            witnesses: witnesses.len().saturating_sub(1),
        });
    } else if is_even && losses >= MIN_LOSSES_EVERYWHERE && windows >= MIN_LOSS_WINDOWS {
        diagnosis.faults.push(Fault {
            suspect: Suspect::Everywhere,
            evidence: Evidence::Loss {
                probes,
                losses,
                other_probes: 0,
                other_losses: 0,
                witnesses: witnesses.len(),
                p_value,
            },
        });
    } else if let Some(test) = favorite.filter(|_| windows >= MIN_LOSS_WINDOWS) {
        diagnosis.gaps.push(Gap::Ambiguous { suspect: test.suspect.clone(), rival: Suspect::Everywhere });
    }
}

/// Returns all parts of the network that can be compared with the rest of the mesh.
fn suspects(matrix: &Matrix, evidence: &[RouteEvidence]) -> Vec<Suspect> {
    let members: Vec<IpAddr> = matrix.members().map(|member| member.address).collect();
    let classes: BTreeSet<u8> = evidence.iter().map(|cell| cell.route.class).collect();
    let mut rails: BTreeMap<&str, usize> = BTreeMap::new();
    for rail in matrix.members().filter_map(|member| member.rail.as_deref()) {
        *rails.entry(rail).or_default() += 1;
    }
    let mut suspects: Vec<Suspect> = members.iter().map(|&member| Suspect::Nic(member)).collect();
    for (n, &one) in members.iter().enumerate() {
        suspects.extend(members[n + 1..].iter().map(|&other| Suspect::Path(one, other)));
    }
    // A rail of one member is its NIC.
    let rails = rails.into_iter().filter(|&(_, count)| count > 1);
    suspects.extend(rails.map(|(rail, _)| Suspect::Rail(rail.to_owned())));
    if classes.len() > 1 {
        suspects.extend(classes.iter().map(|&class| Suspect::Class(class)));
        for &member in &members {
            suspects.extend(classes.iter().map(|&class| Suspect::NicClass(member, class)));
        }
    }
    suspects
}

/// Whether the packets of a route use this part of the network.
fn suspect_uses(matrix: &Matrix, suspect: &Suspect, route: &CellKey) -> bool {
    let has_end = |member: &IpAddr| route.source == *member || route.destination == *member;
    match suspect {
        Suspect::Nic(member) => has_end(member),
        Suspect::Path(one, other) => has_end(one) && has_end(other),
        Suspect::Rail(name) => [route.source, route.destination]
            .iter()
            .any(|address| matrix.member(address).is_some_and(|member| member.rail.as_ref() == Some(name))),
        Suspect::Class(class) => route.class == *class,
        Suspect::NicClass(member, class) => has_end(member) && route.class == *class,
        Suspect::Everywhere => true,
        Suspect::Unreachable(_) | Suspect::SlowProcess(_) => false,
    }
}

/// A comparison of a suspect's losses with those of the rest of the mesh.
#[derive(Debug)]
struct LossTest<'a> {
    suspect: &'a Suspect,
    probes: u64,
    losses: u64,
    other_probes: u64,
    other_losses: u64,
    loss_windows: u32,
    p_value: f64,
    /// The logarithm of the likelihood ratio of two loss probabilities, inside and outside, to one.
    likelihood: f64,
}

impl LossTest<'_> {
    /// Returns the comparison, or `None` if the suspect has no losses, or a lower rate of them than the rest.
    fn new<'a>(
        evidence: &[RouteEvidence],
        suspect: &'a Suspect,
        uses: &impl Fn(&Suspect, &CellKey) -> bool,
    ) -> Option<LossTest<'a>> {
        let (mut probes, mut losses, mut other_probes, mut other_losses) = (0, 0, 0, 0);
        let mut windows = 0;
        for cell in evidence {
            if !uses(suspect, &cell.route) {
                other_probes += cell.probes;
                other_losses += cell.losses;
                continue;
            }
            probes += cell.probes;
            losses += cell.losses;
            windows |= cell.loss_windows;
        }
        if losses == 0 || other_probes == 0 || losses * other_probes <= other_losses * probes {
            return None;
        }
        let background = binomial_tail(losses, probes, BACKGROUND_LOSS);
        let comparison = hypergeometric_tail(losses, probes, losses + other_losses, probes + other_probes);
        let likelihood = log_likelihood(losses, probes) + log_likelihood(other_losses, other_probes)
            - log_likelihood(losses + other_losses, probes + other_probes);
        Some(LossTest {
            suspect,
            probes,
            losses,
            other_probes,
            other_losses,
            loss_windows: windows.count_ones(),
            p_value: background.max(comparison),
            likelihood,
        })
    }

    fn evidence(&self, witnesses: usize) -> Evidence {
        Evidence::Loss {
            probes: self.probes,
            losses: self.losses,
            other_probes: self.other_probes,
            other_losses: self.other_losses,
            witnesses,
            p_value: self.p_value,
        }
    }
}

/// Returns the number of members that witness the losses of a suspect.
fn witnesses(
    evidence: &[RouteEvidence],
    suspect: &Suspect,
    uses: &impl Fn(&Suspect, &CellKey) -> bool,
) -> usize {
    let lossy = evidence.iter().filter(|cell| cell.losses > 0 && uses(suspect, &cell.route));
    let mut ends: BTreeSet<IpAddr> =
        lossy.flat_map(|cell| [cell.route.source, cell.route.destination]).collect();
    match suspect {
        Suspect::Nic(member) | Suspect::NicClass(member, _) => {
            ends.remove(member);
            ends.len()
        }
        Suspect::Path(one, other) => witnesses_of_path(evidence, one, other),
        _ => ends.len(),
    }
}

/// Returns the number of members that exchanged probes with both ends of a path.
fn witnesses_of_path(evidence: &[RouteEvidence], one: &IpAddr, other: &IpAddr) -> usize {
    let peers = |end: &IpAddr| -> BTreeSet<IpAddr> {
        let ends = evidence.iter().map(|cell| (cell.route.source, cell.route.destination));
        ends.filter_map(|(source, destination)| match (source == *end, destination == *end) {
            (true, false) => Some(destination),
            (false, true) => Some(source),
            _ => None,
        })
        .collect()
    };
    peers(one).intersection(&peers(other)).count()
}
