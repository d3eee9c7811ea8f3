//! The pace of the probes to the hops at one distance.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::TraceOptions;
use super::tracer::Terminal;

/// The state of all hops at one distance, which different source ports pass.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// For each hop that answered, the number of source ports that it answered.
    answers: BTreeMap<(IpAddr, Option<Terminal>), usize>,
    /// The number of source ports that have an unanswered probe and no answer, including those with a silent hop.
    unanswered_count: usize,
    /// The number of source ports for which the hop is silent.
    silent_count: usize,
    /// The time between two probes to one hop. Zero until a hop that answers other ports doesn't answer one.
    interval: Duration,
    /// The time of the last change of `interval`.
    changed_at: Option<Instant>,
    /// The time before which no probe is sent.
    next_at: Option<Instant>,
}

/// The first time between two probes to a hop that limits its answers: a little more than one second, which is the
/// default of Linux (`icmp_ratelimit`).
const FIRST_INTERVAL: Duration = Duration::from_millis(1050);

/// The maximum time between two probes to a hop.
const MAX_INTERVAL: Duration = Duration::from_millis(2100);

/// The number of silent source ports after which the hops of other ports get fewer probes.
const SILENT_PORTS: usize = 2;

/// The maximum number of probes from each of these other ports, if hops of the level answer: a rate limit may have
/// suppressed one answer.
const REDUCED_ATTEMPTS: u8 = 2;

impl Level {
    /// Returns the time of the next probe to this level: `now` or later.
    pub(super) fn next_at(&self, now: Instant) -> Instant {
        self.next_at.map_or(now, |next_at| next_at.max(now))
    }

    /// Notes that a probe was sent.
    pub(super) fn note_sent(&mut self, now: Instant) {
        if !self.interval.is_zero() {
            // Different hops have different limits.
            self.next_at = Some(now + self.interval / self.answers.len().max(1) as u32);
        }
    }

    /// Notes the first answer to a source port.
    pub(super) fn note_answer(&mut self, address: IpAddr, terminal: Option<Terminal>, was_unanswered: bool) {
        *self.answers.entry((address, terminal)).or_default() += 1;
        self.unanswered_count -= usize::from(was_unanswered);
    }

    /// Notes that a probe, sent at `sent_at`, was not answered. `is_first` is whether all earlier probes from its
    /// source port to this level were answered.
    pub(super) fn note_timeout(&mut self, sent_at: Instant, now: Instant, is_first: bool) {
        self.unanswered_count += usize::from(is_first);
        if self.answers.is_empty() || self.changed_at.is_some_and(|changed_at| sent_at < changed_at) {
            // If no hop answers, the timeout suggests no rate limit. A probe from before the change was sent at the former rate.
            return;
        }
        self.interval = (2 * self.interval).clamp(FIRST_INTERVAL, MAX_INTERVAL);
        self.changed_at = Some(now);
        self.next_at = Some(now + self.interval);
    }

    /// Notes that the hop is silent for one more source port.
    pub(super) fn note_silent(&mut self) {
        self.silent_count += 1;
    }

    /// Notes that a late answer arrived for a source port for which the hop was silent.
    pub(super) fn note_late_answer(&mut self, address: IpAddr, terminal: Option<Terminal>) {
        self.silent_count -= 1;
        self.note_answer(address, terminal, true);
    }

    /// Returns the number of unanswered probes after which the hop is silent for a source port.
    pub(super) fn max_attempts(&self, options: &TraceOptions) -> u8 {
        let attempts = match (self.answers.is_empty(), self.silent_count >= SILENT_PORTS) {
            (true, true) => 1,
            (true, false) => options.attempts,
            (false, true) => options.limited_attempts.min(REDUCED_ATTEMPTS),
            (false, false) => options.limited_attempts,
        };
        attempts.max(1)
    }

    /// Whether a hop at this level answered a probe.
    pub(super) fn has_answered(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Returns the hop that at least `port_count` source ports pass, if all tested source ports do.
    pub(super) fn unanimous(&self, port_count: usize) -> Option<(IpAddr, Option<Terminal>)> {
        let (&hop, &count) = self.answers.first_key_value()?;
        let is_unanimous = self.answers.len() == 1 && self.unanswered_count == 0 && count >= port_count;
        is_unanimous.then_some(hop)
    }
}
