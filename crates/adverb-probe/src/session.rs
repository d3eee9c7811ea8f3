//! The prober's state machine: the probes to one responder, from posting to their results.
//!
//! ```text
//! begin ──▶ posted ── handle_sent ──▶ sent ── handle_ack (ACK1, ACK2) ──▶ Answered, Impossible, Unstamped
//!                                      │
//!                                      └─ handle_timeout ──▶ timed out ──▶ Lost, ReturnLost, Late, Ended, Unreachable
//! ```
//!
//! A probe that timed out has no result yet. An answer can still arrive, and if the responder stopped or restarted in
//! the meantime, the network lost nothing. The result is [`Lost`](ProbeResult::Lost) or
//! [`ReturnLost`](ProbeResult::ReturnLost) only when the same run of the responder answered a later probe, or was found
//! alive.
//!
//! An epoch has 2^32 − 1 numbers. A session that has used them all begins no probe until the
//! [next epoch](Session::begin_epoch).

use std::collections::VecDeque;
use std::time::Duration;

use crate::figures::{Figures, Impossible, ProbeStamps, ResponderStamps};
use crate::format::{Ack, AckKind, Probe, Sequence};
use crate::stamp::Stamp;

#[cfg(test)]
mod tests;

/// The limits of a [`Session`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionConfig {
    /// Time after which a probe without complete answers has timed out.
    pub timeout: Duration,
    /// Further time for which the result of a probe that timed out stays open, for late answers.
    pub grace: Duration,
    /// Maximum number of probes that have neither a result nor timed out.
    pub max_outstanding: usize,
}

impl Default for SessionConfig {
    fn default() -> SessionConfig {
        SessionConfig {
            timeout: Duration::from_millis(500),
            grace: Duration::from_millis(500),
            max_outstanding: 64,
        }
    }
}

/// The result of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProbeResult {
    /// Both acknowledgements arrived in time.
    Answered(Figures),
    /// Both acknowledgements arrived after the timeout: a host was slow, or the network. This is not a loss.
    Late(Figures),
    /// Both acknowledgements arrived, but the timestamps contradict each other.
    Impossible(Impossible),
    /// Both acknowledgements arrived, but a timestamp is missing.
    Unstamped,
    /// One of the two acknowledgements was lost, so the probe was not. The round-trip time is unknown.
    ReturnLost,
    /// The probe, or both of its acknowledgements, were lost.
    Lost,
    /// The responder stopped or restarted before it answered. The network lost nothing.
    Ended,
    /// Neither the probe nor the lookup of the responder was answered: the responder's host is down, or the network
    /// delivers nothing.
    Unreachable,
    /// The device did not send the probe. The network lost nothing.
    NotSent,
}

impl ProbeResult {
    /// Returns the name of the result, as in JSON and in labels of metrics: `answered`, `return_lost`, and so on.
    pub fn name(&self) -> &'static str {
        match self {
            ProbeResult::Answered(_) => "answered",
            ProbeResult::Late(_) => "late",
            ProbeResult::Impossible(_) => "impossible",
            ProbeResult::Unstamped => "unstamped",
            ProbeResult::ReturnLost => "return_lost",
            ProbeResult::Lost => "lost",
            ProbeResult::Ended => "ended",
            ProbeResult::Unreachable => "unreachable",
            ProbeResult::NotSent => "not_sent",
        }
    }

    /// Returns the figures of the probe, if its result has any.
    pub fn figures(&self) -> Option<&Figures> {
        match self {
            ProbeResult::Answered(figures) | ProbeResult::Late(figures) => Some(figures),
            _ => None,
        }
    }
}

/// An event of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProbeEvent {
    /// The probe.
    pub probe: Probe,
    /// The event.
    pub kind: ProbeEventKind,
}

/// The kind of a [`ProbeEvent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProbeEventKind {
    /// The probe timed out. Its result follows.
    TimedOut,
    /// The result of the probe, which is its last event.
    Finished(ProbeResult),
}

/// The number of probes by result, and of acknowledgements that no probe was waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ProbeCounts {
    /// Probes that were begun.
    pub begun: u64,
    /// Probes whose result is [`ProbeResult::Answered`].
    pub answered: u64,
    /// Probes whose result is [`ProbeResult::Late`].
    pub late: u64,
    /// Probes whose result is [`ProbeResult::Impossible`].
    pub impossible: u64,
    /// Probes whose result is [`ProbeResult::Unstamped`].
    pub unstamped: u64,
    /// Probes whose result is [`ProbeResult::ReturnLost`].
    pub return_lost: u64,
    /// Probes whose result is [`ProbeResult::Lost`].
    pub lost: u64,
    /// Probes whose result is [`ProbeResult::Ended`].
    pub ended: u64,
    /// Probes whose result is [`ProbeResult::Unreachable`].
    pub unreachable: u64,
    /// Probes whose result is [`ProbeResult::NotSent`].
    pub not_sent: u64,
    /// Acknowledgements that had been received before.
    pub duplicate_acks: u64,
    /// Acknowledgements of probes of an ended epoch.
    pub stale_acks: u64,
    /// Acknowledgements of probes that were never sent, or long ago.
    pub unmatched_acks: u64,
}

impl ProbeCounts {
    /// Counts a result.
    pub fn record(&mut self, result: &ProbeResult) {
        *match result {
            ProbeResult::Answered(_) => &mut self.answered,
            ProbeResult::Late(_) => &mut self.late,
            ProbeResult::Impossible(_) => &mut self.impossible,
            ProbeResult::Unstamped => &mut self.unstamped,
            ProbeResult::ReturnLost => &mut self.return_lost,
            ProbeResult::Lost => &mut self.lost,
            ProbeResult::Ended => &mut self.ended,
            ProbeResult::Unreachable => &mut self.unreachable,
            ProbeResult::NotSent => &mut self.not_sent,
        } += 1;
    }

    /// Adds the counts of another session or window.
    pub fn merge(&mut self, other: &ProbeCounts) {
        let ProbeCounts {
            begun,
            answered,
            late,
            impossible,
            unstamped,
            return_lost,
            lost,
            ended,
            unreachable,
            not_sent,
            duplicate_acks,
            stale_acks,
            unmatched_acks,
        } = other;
        self.begun += begun;
        self.answered += answered;
        self.late += late;
        self.impossible += impossible;
        self.unstamped += unstamped;
        self.return_lost += return_lost;
        self.lost += lost;
        self.ended += ended;
        self.unreachable += unreachable;
        self.not_sent += not_sent;
        self.duplicate_acks += duplicate_acks;
        self.stale_acks += stale_acks;
        self.unmatched_acks += unmatched_acks;
    }

    /// Returns the number of probes whose result says something about the network: all but
    /// [`Ended`](ProbeResult::Ended) and [`NotSent`](ProbeResult::NotSent).
    pub fn conclusive(&self) -> u64 {
        let answered = self.answered + self.late + self.impossible + self.unstamped;
        answered + self.return_lost + self.lost + self.unreachable
    }

    /// Returns the share of conclusive probes that were not completely answered, between 0 and 1, or `None` if no probe
    /// is conclusive: `return_lost`, `lost` and `unreachable` divided by [`conclusive`](ProbeCounts::conclusive).
    ///
    /// Probes with the results `late`, `impossible` and `unstamped` are conclusive and not lost.
    pub fn loss(&self) -> Option<f64> {
        let missing = self.return_lost + self.lost + self.unreachable;
        (self.conclusive() > 0).then(|| missing as f64 / self.conclusive() as f64)
    }
}

/// The state of the responder, as a lookup found it: see [`Session::handle_lookup`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The run of the responder to which the probes were sent still serves its queue pair.
    Same,
    /// The responder serves a different queue pair, or none: the run to which the probes were sent has ended.
    Ended,
}

/// The probes to one responder: see the [module](self). Times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    epoch: u32,
    /// The epochs that ended last, to recognize their late acknowledgements.
    ended_epochs: VecDeque<u32>,
    /// The responder's epoch, from its first acknowledgement.
    responder_epoch: Option<u32>,
    /// The number of the next probe.
    next: u32,
    /// Entries of probes, at the position of their number modulo the length. An entry stays after its result, to
    /// recognize duplicates.
    entries: Vec<Option<PendingProbe>>,
    /// Entries before this number have a result or timed out.
    oldest_waiting: u32,
    /// Entries before this number have a result.
    oldest_open: u32,
    /// Probes that have neither a result nor timed out.
    outstanding_count: usize,
    /// Probes that timed out and have no result.
    timed_out_count: usize,
    /// The highest number of a probe that this run of the responder acknowledged.
    newest_acked: Option<u32>,
    /// The last lookup that found this run of the responder alive.
    found_alive: Option<FoundAlive>,
    events: VecDeque<ProbeEvent>,
    counts: ProbeCounts,
}

/// A lookup that found the responder alive. Answers that the responder sent before may still be in flight, so probes are
/// lost only after the grace period.
#[derive(Clone, Copy, Debug)]
struct FoundAlive {
    /// Probes before this number had a result, or had timed out.
    before: u32,
    at: u64,
}

#[derive(Clone, Copy, Debug)]
struct PendingProbe {
    probe: Probe,
    posted: Stamp,
    phase: Phase,
    sent: Option<Stamp>,
    /// T5 and T6.
    first: Option<(Stamp, Stamp)>,
    second: Option<Option<ResponderStamps>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Posted; whether it was sent isn't known.
    Posted,
    Sent,
    TimedOut,
    Finished,
}

/// Minimum number of probes that a session remembers.
const MIN_ENTRIES: usize = 1024;

/// Number of ended epochs whose acknowledgements a session recognizes.
const ENDED_EPOCHS: usize = 8;

impl Session {
    /// Creates a session without probes, which begins with this epoch, a random number.
    ///
    /// # Panics
    ///
    /// Panics if the configuration allows no outstanding probe.
    pub fn with_epoch(epoch: u32, config: SessionConfig) -> Session {
        assert!(config.max_outstanding > 0, "a session without outstanding probes");
        Session {
            config,
            epoch,
            ended_epochs: VecDeque::with_capacity(ENDED_EPOCHS),
            responder_epoch: None,
            next: 0,
            // Most of the entries have a result, so that duplicates are recognized for a while.
            entries: vec![None; (config.max_outstanding * 4).max(MIN_ENTRIES).next_power_of_two()],
            oldest_waiting: 0,
            oldest_open: 0,
            outstanding_count: 0,
            timed_out_count: 0,
            newest_acked: None,
            found_alive: None,
            events: VecDeque::new(),
            counts: ProbeCounts::default(),
        }
    }

    /// Returns the current epoch, which the probes' sequences contain.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the responder's epoch, if it acknowledged a probe of this epoch.
    pub fn responder_epoch(&self) -> Option<u32> {
        self.responder_epoch
    }

    /// Whether an acknowledgement belongs to the current epoch, or to one that ended recently.
    pub fn is_own_epoch(&self, epoch: u32) -> bool {
        epoch == self.epoch || self.ended_epochs.contains(&epoch)
    }

    /// Returns the counts.
    pub fn counts(&self) -> &ProbeCounts {
        &self.counts
    }

    /// Returns the number of probes that have neither a result nor timed out.
    pub fn outstanding_count(&self) -> usize {
        self.outstanding_count
    }

    /// Returns the number of probes that timed out and have no result yet. If the session
    /// [is unresponsive](Session::is_unresponsive), look the responder up again: see
    /// [`handle_lookup`](Session::handle_lookup).
    pub fn timed_out_count(&self) -> usize {
        self.timed_out_count
    }

    /// Whether a probe timed out without complete answers, and no later one was answered: the responder may have stopped.
    /// This is false for the grace period after a lookup that found the responder alive.
    pub fn is_unresponsive(&self) -> bool {
        let is_found_alive = self.found_alive.is_some_and(|found| self.oldest_open < found.before);
        let is_open = |entry| self.result_due_at(entry).is_none();
        self.timed_out_count > 0 && !is_found_alive && self.timed_out().next_back().is_some_and(is_open)
    }

    /// Begins a probe. The caller posts the returned probe and then calls [`handle_sent`](Session::handle_sent).
    /// `posted` is T1, a process timestamp. Returns `None` if too many probes are outstanding, or if the epoch
    /// [is exhausted](Session::is_exhausted).
    pub fn begin(&mut self, posted: Stamp, flow_label: u32, dscp: u8) -> Option<Probe> {
        if self.outstanding_count >= self.config.max_outstanding || self.is_exhausted() {
            return None;
        }
        let number = self.next;
        if let Some(old) = number.checked_sub(self.entries.len() as u32) {
            self.make_room(old)?;
        }
        self.next += 1;
        let sequence = Sequence { epoch: self.epoch, number };
        let probe = Probe { sequence, flow_label: flow_label & 0xf_ffff, dscp: dscp & 0x3f };
        let entry =
            PendingProbe { probe, posted, phase: Phase::Posted, sent: None, first: None, second: None };
        let position = self.position(number);
        self.entries[position] = Some(entry);
        self.outstanding_count += 1;
        self.counts.begun += 1;
        Some(probe)
    }

    /// Whether the epoch has used all its numbers.
    pub fn is_exhausted(&self) -> bool {
        self.next == u32::MAX
    }

    /// Begins the next epoch, with the same run of the responder. `epoch` is a random number. Returns `false`, without
    /// effect, while probes have no result: call this function again after the next [event](Session::poll_event).
    pub fn begin_epoch(&mut self, epoch: u32) -> bool {
        let has_all_results = self.outstanding_count == 0 && self.timed_out_count == 0;
        if has_all_results {
            self.replace_epoch(epoch);
        }
        has_all_results
    }

    /// Handles the send completion of a probe: T2, or `None` if the completion has no timestamp.
    pub fn handle_sent(&mut self, sequence: Sequence, stamp: Option<Stamp>) {
        if let Some(entry) = self.entry_mut(sequence) {
            if entry.phase == Phase::Posted {
                entry.phase = Phase::Sent;
            }
            entry.sent = stamp;
            self.finish_if_complete(sequence.number);
        }
    }

    /// Handles the failure to send a probe.
    pub fn handle_not_sent(&mut self, sequence: Sequence) {
        if self.entry_mut(sequence).is_some() {
            self.finish_if_open(sequence.number, ProbeResult::NotSent);
        }
    }

    /// Handles an acknowledgement. `received` is T5 (of ACK1), and `processed` is T6.
    pub fn handle_ack(&mut self, ack: &Ack, received: Stamp, processed: Stamp) {
        if ack.sequence.epoch != self.epoch {
            *match self.ended_epochs.contains(&ack.sequence.epoch) {
                true => &mut self.counts.stale_acks,
                false => &mut self.counts.unmatched_acks,
            } += 1;
            return;
        }
        let number = ack.sequence.number;
        if self.entry_mut(ack.sequence).is_none() {
            self.counts.unmatched_acks += 1;
            return;
        }
        if self.responder_epoch.is_some_and(|epoch| epoch != ack.responder_epoch) {
            // The responder restarted with the same queue pair number. The probes that timed out were sent to its
            // previous run, unless this is an answer to one of them.
            for timed_out in self.oldest_open..self.oldest_waiting {
                if timed_out != number {
                    self.finish_if_timed_out(timed_out, ProbeResult::Ended);
                }
            }
            (self.newest_acked, self.found_alive) = (None, None);
        }
        self.responder_epoch = Some(ack.responder_epoch);
        self.newest_acked = self.newest_acked.max(Some(number));
        let entry = self.entry_mut(ack.sequence).expect("a known probe");
        let is_new = match ack.kind {
            AckKind::First => {
                entry.first.is_none().then(|| entry.first = Some((received, processed))).is_some()
            }
            AckKind::Second(stamps) => entry.second.is_none().then(|| entry.second = Some(stamps)).is_some(),
        };
        if is_new {
            self.finish_if_complete(number);
        } else {
            self.counts.duplicate_acks += 1;
        }
    }

    /// Handles the passing of time: probes time out, and probes that timed out get a result. Received acknowledgements
    /// must have been handled before, or a prober that was suspended would count answered probes as lost.
    pub fn handle_timeout(&mut self, now: u64) {
        let timeout = nanos(self.config.timeout);
        while self.oldest_waiting < self.next {
            if let Some(entry) = self.get_mut(self.oldest_waiting)
                && matches!(entry.phase, Phase::Posted | Phase::Sent)
            {
                if now.saturating_sub(entry.posted.nanos) < timeout {
                    break;
                }
                entry.phase = Phase::TimedOut;
                let probe = entry.probe;
                self.outstanding_count -= 1;
                self.timed_out_count += 1;
                self.events.push_back(ProbeEvent { probe, kind: ProbeEventKind::TimedOut });
            }
            self.oldest_waiting += 1;
        }
        while self.oldest_open < self.oldest_waiting {
            let number = self.oldest_open;
            if let Some(&entry) = self.get(number)
                && entry.phase == Phase::TimedOut
            {
                // Until then, an answer can arrive, and the responder may have stopped before it answered.
                if self.result_due_at(&entry).is_none_or(|at| now < at) {
                    break;
                }
                self.finish_if_open(number, entry.incomplete());
            }
            self.oldest_open += 1;
        }
    }

    /// Returns the time at which [`handle_timeout`](Session::handle_timeout) must be called.
    pub fn poll_timeout(&self) -> Option<u64> {
        let after = |entry: &PendingProbe, delay: Duration| entry.posted.nanos.saturating_add(nanos(delay));
        let waiting = match self.outstanding_count {
            0 => None,
            _ => self.first_waiting().map(|entry| after(entry, self.config.timeout)),
        };
        let result_due = match self.timed_out_count {
            0 => None,
            _ => self.timed_out().next().and_then(|entry| self.result_due_at(entry)),
        };
        match (waiting, result_due) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Handles the result of a lookup of the responder. After [`Lookup::Same`], the probes that timed out are lost, unless
    /// they are answered within the grace period. [`Lookup::Ended`] ends the epoch, and `epoch` is the random number of
    /// the next one.
    pub fn handle_lookup(&mut self, lookup: Lookup, epoch: u32, now: u64) {
        match lookup {
            Lookup::Same => {
                // A second lookup doesn't prolong the grace period of the first one's probes.
                if self.is_unresponsive() {
                    self.found_alive = Some(FoundAlive { before: self.oldest_waiting, at: now });
                }
            }
            Lookup::Ended => {
                self.finish_all(ProbeResult::Ended);
                self.replace_epoch(epoch);
                self.responder_epoch = None;
            }
        }
    }

    /// Ends the epoch, whose probes all have a result.
    fn replace_epoch(&mut self, epoch: u32) {
        if self.ended_epochs.len() == ENDED_EPOCHS {
            self.ended_epochs.pop_front();
        }
        self.ended_epochs.push_back(self.epoch);
        self.epoch = epoch;
        (self.newest_acked, self.found_alive) = (None, None);
        self.next = 0;
        self.oldest_waiting = 0;
        self.oldest_open = 0;
        self.entries.fill(None);
    }

    /// Ends the session: probes that timed out and whose responder was not found again are unreachable, and probes that
    /// are outstanding end without a verdict.
    pub fn finish(&mut self) {
        for number in self.oldest_open..self.next {
            let Some(entry) = self.get_mut(number) else { continue };
            let result = match (entry.phase, entry.answer_count()) {
                (Phase::TimedOut, 0) => ProbeResult::Unreachable,
                (Phase::TimedOut, _) => entry.incomplete(),
                _ => ProbeResult::Ended,
            };
            self.finish_if_open(number, result);
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ProbeEvent> {
        self.events.pop_front()
    }

    /// Gives the probe whose entry is needed a result. Returns `None` if it has not timed out.
    fn make_room(&mut self, old: u32) -> Option<()> {
        let newest_acked = self.newest_acked;
        let Some(entry) = self.get_mut(old) else { return Some(()) };
        let result = match (entry.phase, entry.answer_count()) {
            (Phase::Posted | Phase::Sent, _) => return None,
            (_, 0) if newest_acked.is_some_and(|newest| newest > old) => ProbeResult::Lost,
            // The responder was found neither alive nor stopped.
            (_, 0) => ProbeResult::Unreachable,
            _ => entry.incomplete(),
        };
        self.finish_if_open(old, result);
        Some(())
    }

    fn position(&self, number: u32) -> usize {
        number as usize & (self.entries.len() - 1)
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut PendingProbe> {
        let position = self.position(number);
        self.entries[position].as_mut().filter(|entry| entry.is_number(number))
    }

    fn entry_mut(&mut self, sequence: Sequence) -> Option<&mut PendingProbe> {
        (sequence.epoch == self.epoch).then(|| self.get_mut(sequence.number)).flatten()
    }

    fn get(&self, number: u32) -> Option<&PendingProbe> {
        self.entries[self.position(number)].as_ref().filter(|entry| entry.is_number(number))
    }

    fn first_waiting(&self) -> Option<&PendingProbe> {
        let mut entries = (self.oldest_waiting..self.next).filter_map(|number| self.get(number));
        entries.find(|entry| matches!(entry.phase, Phase::Posted | Phase::Sent))
    }

    fn timed_out(&self) -> impl DoubleEndedIterator<Item = &PendingProbe> {
        let entries = (self.oldest_open..self.oldest_waiting).filter_map(|number| self.get(number));
        entries.filter(|entry| entry.phase == Phase::TimedOut)
    }

    /// Returns the time at which a probe that timed out gets its result, or `None` if the responder may have stopped.
    fn result_due_at(&self, entry: &PendingProbe) -> Option<u64> {
        let (number, grace) = (entry.probe.sequence.number, nanos(self.config.grace));
        let timeout = nanos(self.config.timeout);
        // Only the send completion is missing, or this run of the responder answered a later probe.
        let is_decided = entry.answer_count() == 2 || self.newest_acked.is_some_and(|newest| newest > number);
        let decided = is_decided.then(|| entry.posted.nanos.saturating_add(timeout).saturating_add(grace));
        let found_alive = self.found_alive.filter(|found| number < found.before);
        decided.or_else(|| found_alive.map(|found| found.at.saturating_add(grace)))
    }

    fn finish_if_complete(&mut self, number: u32) {
        let Some(entry) = self.get_mut(number) else { return };
        let (Some((acked, processed)), Some(responder)) = (entry.first, entry.second) else { return };
        if entry.phase == Phase::Posted {
            // The send completion follows.
            return;
        }
        let result = match (entry.sent, responder) {
            (Some(sent), Some(responder)) => {
                let stamps = ProbeStamps { posted: entry.posted, sent, responder, acked, processed };
                match Figures::compute(&stamps) {
                    Ok(figures) if entry.phase == Phase::TimedOut => ProbeResult::Late(figures),
                    Ok(figures) => ProbeResult::Answered(figures),
                    Err(impossible) => ProbeResult::Impossible(impossible),
                }
            }
            _ => ProbeResult::Unstamped,
        };
        self.finish_if_open(number, result);
    }

    fn finish_if_timed_out(&mut self, number: u32, result: ProbeResult) {
        if self.get_mut(number).is_some_and(|entry| entry.phase == Phase::TimedOut) {
            self.finish_if_open(number, result);
        }
    }

    fn finish_if_open(&mut self, number: u32, result: ProbeResult) {
        let Some(entry) = self.get_mut(number) else { return };
        let probe = entry.probe;
        match std::mem::replace(&mut entry.phase, Phase::Finished) {
            Phase::Finished => return,
            Phase::TimedOut => self.timed_out_count -= 1,
            Phase::Posted | Phase::Sent => self.outstanding_count -= 1,
        }
        self.counts.record(&result);
        self.events.push_back(ProbeEvent { probe, kind: ProbeEventKind::Finished(result) });
    }

    fn finish_all(&mut self, result: ProbeResult) {
        for number in self.oldest_open..self.next {
            self.finish_if_open(number, result);
        }
    }
}

impl PendingProbe {
    fn is_number(&self, number: u32) -> bool {
        self.probe.sequence.number == number
    }

    /// Returns the result of a probe that timed out, with a responder that didn't stop.
    fn incomplete(&self) -> ProbeResult {
        match self.answer_count() {
            0 => ProbeResult::Lost,
            1 => ProbeResult::ReturnLost,
            // Only the send completion is missing.
            _ => ProbeResult::Unstamped,
        }
    }

    /// Returns the number of acknowledgements that arrived.
    fn answer_count(&self) -> usize {
        usize::from(self.first.is_some()) + usize::from(self.second.is_some())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
