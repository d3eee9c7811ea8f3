//! The result of a diagnosis, and its text.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// A part of the mesh that can be at fault.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Suspect {
    /// A NIC or its cable: packets from and to this member are lost. Probes cannot tell a NIC from its cable.
    Nic(IpAddr),
    /// The path between two members, in both directions. Packets between other members are not affected.
    Path(IpAddr, IpAddr),
    /// A rail: packets from and to all its members are lost.
    Rail(String),
    /// A traffic class (DSCP): its packets are lost between all members.
    Class(u8),
    /// A traffic class (DSCP) at one NIC.
    NicClass(IpAddr, u8),
    /// The whole mesh: packets between all members are lost at a similar rate.
    Everywhere,
    /// A member that answers nothing: its host, process, NIC or cable is down.
    Unreachable(IpAddr),
    /// A process that is stopped or starved of CPU time. It serves these members. This is no fault of the network.
    SlowProcess(Vec<IpAddr>),
}

impl Suspect {
    /// Whether the network or a NIC is at fault, and not a process.
    ///
    /// For an unreachable member, which of both is down is unknown, so the result is `false`.
    pub fn is_network(&self) -> bool {
        !matches!(self, Suspect::SlowProcess(_) | Suspect::Unreachable(_))
    }
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suspect::Nic(address) => write!(f, "the NIC {address} or its cable"),
            Suspect::Path(one, other) => write!(f, "the path between {one} and {other}"),
            Suspect::Rail(name) => write!(f, "the rail {name}"),
            Suspect::Class(class) => write!(f, "the traffic class DSCP {class}"),
            Suspect::NicClass(address, class) => {
                write!(f, "the traffic class DSCP {class} at the NIC {address}")
            }
            Suspect::Everywhere => write!(f, "the whole mesh"),
            Suspect::Unreachable(address) => write!(f, "the member {address}"),
            Suspect::SlowProcess(members) => write!(f, "the process that serves {}", List(members)),
        }
    }
}

/// Addresses with commas between them.
struct List<'a>(&'a [IpAddr]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(n, address)| {
            let separator = if n == 0 { "" } else { ", " };
            write!(f, "{separator}{address}")
        })
    }
}

/// The evidence for a fault.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Evidence {
    /// Packets were lost more often than in the rest of the mesh.
    Loss {
        /// The number of probes that used the suspect.
        probes: u64,
        /// The number of those probes of which a packet was lost.
        losses: u64,
        /// The number of probes that did not use the suspect.
        other_probes: u64,
        /// The number of those probes of which a packet was lost.
        other_losses: u64,
        /// The number of members that saw losses.
        witnesses: usize,
        /// The probability of as many losses without a fault, before the correction for several comparisons.
        p_value: f64,
    },
    /// A member did not answer.
    Silence {
        /// The time in which it answered nothing.
        duration: Duration,
        /// The number of members whose probes it did not answer, although other members answered theirs.
        witnesses: usize,
        /// Whether it answers again.
        answers_again: bool,
    },
    /// A process did not run, according to the timestamps of NICs and kernels, or to its own clock.
    Stalls {
        /// The number of windows with stalls.
        windows: usize,
        /// The longest stall.
        longest: Duration,
    },
}

/// A fault, with its evidence.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Fault {
    /// The part that is at fault.
    pub suspect: Suspect,
    /// The evidence.
    pub evidence: Evidence,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suspect = &self.suspect;
        match &self.evidence {
            Evidence::Loss { probes, losses, other_probes, other_losses, witnesses, p_value } => {
                write!(
                    f,
                    "{suspect} loses packets: {losses} of {probes} probes lost ({})",
                    Percent(*losses, *probes)
                )?;
                if *other_probes > 0 {
                    write!(f, ", elsewhere {other_losses} of {other_probes}")?;
                }
                write!(f, "; {witnesses} witnesses, p = {p_value:.0e}")
            }
            Evidence::Silence { duration, witnesses, answers_again } => {
                let seconds = duration.as_secs_f64();
                match answers_again {
                    false => write!(f, "{suspect} is dead: it has answered nothing for {seconds:.0} s")?,
                    true => write!(
                        f,
                        "{suspect} is unreachable at times: it answered nothing for {seconds:.0} s in all"
                    )?,
                }
                write!(f, " ({witnesses} witnesses); its host, process, NIC or cable is down")
            }
            Evidence::Stalls { windows, longest } => write!(
                f,
                "{suspect} is slow: it stalled in {windows} intervals, for up to {} ms; this is not a fault of the \
                 network",
                longest.as_millis()
            ),
        }
    }
}

/// A percentage with a reasonable number of digits.
struct Percent(u64, u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.0 as f64 / self.1.max(1) as f64;
        if share >= 10.0 { write!(f, "{share:.0} %") } else { write!(f, "{share:.2} %") }
    }
}

/// A reason why a diagnosis is not possible, or not complete.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Gap {
    /// There are too few probes: no window is complete, or a member received none.
    FewProbes,
    /// Losses are significant, but fewer than 3 members witness them, so that they fit several suspects.
    FewWitnesses {
        /// The suspect that fits best.
        suspect: Suspect,
        /// The number of witnesses.
        witnesses: usize,
    },
    /// Losses are significant, but another suspect fits almost as well.
    Ambiguous {
        /// The suspect that fits best.
        suspect: Suspect,
        /// The other suspect.
        rival: Suspect,
    },
    /// A member has answered nothing for a short time.
    Silent {
        /// The member.
        member: IpAddr,
        /// The time in which it answered nothing.
        duration: Duration,
    },
    /// So many results were excluded, because processes stalled, that nothing is left about these members' network.
    Stalled(Vec<IpAddr>),
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gap::FewProbes => write!(f, "too few probes have been answered or lost"),
            Gap::FewWitnesses { suspect, witnesses } => write!(
                f,
                "packets are lost, perhaps by {suspect}, but fewer than 3 members saw it ({witnesses}); add addresses"
            ),
            Gap::Ambiguous { suspect, rival } => {
                write!(
                    f,
                    "packets are lost by {suspect}, or by {rival}; more probes are needed to distinguish them"
                )
            }
            Gap::Silent { member, duration } => {
                write!(f, "{member} has answered nothing for {:.0} s", duration.as_secs_f64())
            }
            Gap::Stalled(members) => {
                write!(
                    f,
                    "nothing is known about the network of {}, because processes stalled",
                    List(members)
                )
            }
        }
    }
}

/// The result of [`diagnose`](super::diagnose).
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The faults that were found.
    pub faults: Vec<Fault>,
    /// The reasons why more faults may exist.
    pub gaps: Vec<Gap>,
    /// The number of probes that are evidence about the network.
    pub probes: u64,
    /// The number of those probes of which a packet was lost.
    pub losses: u64,
    /// The upper bound of the probability that a probe with any one member loses a packet, at 95 % confidence.
    pub loss_bound: f64,
}

/// A diagnosis in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No fault was found, and the evidence is complete.
    Healthy,
    /// At least one fault was found.
    Faulty,
    /// No fault was found, but the evidence is not complete.
    NotEnoughEvidence,
}

impl Diagnosis {
    /// Returns the diagnosis in one word.
    pub fn verdict(&self) -> Verdict {
        match (self.faults.is_empty(), self.gaps.is_empty()) {
            (false, _) => Verdict::Faulty,
            (true, false) => Verdict::NotEnoughEvidence,
            (true, true) => Verdict::Healthy,
        }
    }
}

/// Prints one line per fault and per gap, without a newline at the end.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = match self.verdict() {
            Verdict::Healthy => vec![format!(
                "healthy: {} of {} probes lost a packet; the loss at each NIC is below {:.2} % (95 % confidence)",
                self.losses,
                self.probes,
                100.0 * self.loss_bound
            )],
            Verdict::Faulty => self.faults.iter().map(|fault| format!("fault: {fault}")).collect(),
            Verdict::NotEnoughEvidence => {
                self.gaps.iter().map(|gap| format!("not enough evidence: {gap}")).collect()
            }
        };
        f.write_str(&lines.join("\n"))
    }
}
