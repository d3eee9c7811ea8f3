//! The register of all calls, with the attempts of their sides and the checks of their outcomes.

use std::collections::BTreeMap;

use adverb_proto::Time;
use adverb_proto::cm::{Manager, QpAttributes, ResourceCounts};
use adverb_proto::types::{Qpn, RejectReason};

use super::Rules;
use super::application::Application;

/// A side of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    /// The side that connects.
    Client,
    /// The side that accepts.
    Server,
    /// A node that connects peer to peer.
    Peer(usize),
    /// The side that requests a datagram queue pair.
    Resolver,
}

/// The outcome of a side's attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Established,
    Rejected(RejectReason),
    Unreachable,
    Disconnected,
    /// The side abandoned its attempt.
    Dropped,
}

/// A connection or a service ID resolution that an application requested.
#[derive(Default)]
struct Call {
    parts: BTreeMap<Role, Part>,
    /// The node that got the request, and the time until which a duplicate is a violation.
    requested: Option<(usize, Time)>,
    /// Whether an application was slow, or rejected or abandoned the call, so that a side may report its peer as
    /// unreachable.
    slow: bool,
    sides: Vec<(Role, QpAttributes, Option<Qpn>)>,
}

/// The attempt of one side: to connect, to accept or to resolve.
struct Part {
    since: Time,
    deadline: Time,
    outcome: Option<Outcome>,
}

/// All calls, by the token in their private data.
pub(super) struct Register {
    rules: Rules,
    calls: BTreeMap<u64, Call>,
    pub(super) violation: Option<String>,
}

impl Register {
    pub(super) fn new(rules: Rules) -> Register {
        Register { rules, calls: BTreeMap::new(), violation: None }
    }

    pub(super) fn call_count(&self) -> u64 {
        self.calls.len() as u64
    }

    pub(super) fn established_count(&self) -> u64 {
        self.calls.values().filter(|call| call.sides.len() == 2).count() as u64
    }

    pub(super) fn report_violation(&mut self, now: Time, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(format!("{now}: {}", what.into()));
        }
    }

    /// Records the start of a side's attempt.
    pub(super) fn begin(&mut self, now: Time, token: u64, role: Role, deadline: Time) {
        let call = self.calls.entry(token).or_default();
        let part = Part { since: now, deadline, outcome: None };
        if call.parts.insert(role, part).is_some_and(|before| before.outcome.is_none()) {
            self.report_violation(now, format!("{role:?} started twice"));
        }
    }

    /// Records that an application is slow or rejects the call.
    pub(super) fn mark_slow(&mut self, token: u64) {
        self.calls.entry(token).or_default().slow = true;
    }

    /// Records a connection request to an application, and checks that it isn't a duplicate.
    pub(super) fn record_request(&mut self, now: Time, token: u64, node: usize) {
        let Some(call) = self.calls.get_mut(&token) else {
            return self.report_violation(now, "connection request that no application made");
        };
        let is_duplicate = call.requested.is_some_and(|(before, until)| before != node || now < until);
        if call.requested.is_some() {
            // A second request means that the first response was lost.
            call.slow = true;
        }
        call.requested = Some((node, Time::MAX));
        if is_duplicate {
            self.report_violation(now, "a connection request was reported twice");
        }
    }

    /// Records the withdrawal of a request that wasn't accepted.
    pub(super) fn record_withdrawal(&mut self, now: Time, token: u64) {
        self.mark_slow(token);
        self.recognize_duplicates_until(token, now + self.rules.timewait);
    }

    /// Sets the time until which the manager must recognize duplicates of the request.
    pub(super) fn recognize_duplicates_until(&mut self, token: u64, time: Time) {
        if let Some((_, until)) = self.calls.get_mut(&token).and_then(|call| call.requested.as_mut()) {
            *until = time;
        }
    }

    /// Records the outcome of a side's attempt, and checks it.
    pub(super) fn end(&mut self, now: Time, token: u64, role: Role, outcome: Outcome) {
        if role == Role::Server && outcome != Outcome::Established {
            self.recognize_duplicates_until(token, now + self.rules.timewait);
        }
        let Some(call) = self.calls.get_mut(&token) else {
            return self.report_violation(now, "outcome of an unknown call");
        };
        if outcome == Outcome::Dropped || matches!(outcome, Outcome::Rejected(_)) {
            call.slow = true;
        }
        let slow = call.slow;
        let Some(part) = call.parts.get_mut(&role) else {
            return self.report_violation(now, format!("{role:?} never started"));
        };
        if let Some(before) = part.outcome.replace(outcome) {
            return self.report_violation(now, format!("{role:?} has two outcomes: {before:?}, {outcome:?}"));
        }
        let (since, deadline) = (part.since, part.deadline);
        if now > deadline {
            self.report_violation(now, format!("{role:?} ended after its deadline {deadline}: {outcome:?}"));
        }
        // Retransmission intervals grow to eight times the first one, and three messages must be delivered.
        let healthy = deadline - since.max(self.rules.faults_end_at);
        if outcome == Outcome::Unreachable && !slow && healthy > self.rules.response_timeout * 40 {
            self.report_violation(
                now,
                format!("{role:?} did not reach its peer, but the fabric had no faults for {healthy:?}"),
            );
        }
    }

    /// Records the parameters of a side's queue pair, and checks that both sides match.
    pub(super) fn record_qp_attributes(
        &mut self,
        now: Time,
        token: u64,
        role: Role,
        ready: &QpAttributes,
        qpn: Option<Qpn>,
    ) {
        let Some(call) = self.calls.get_mut(&token) else { return };
        call.sides.retain(|(side, ..)| *side != role);
        call.sides.push((role, *ready, qpn));
        let [(_, a, a_qpn), (_, b, b_qpn)] = &call.sides[..] else { return };
        let (from, to) = ((&a.ready_to_send, &b.ready_to_receive), (&b.ready_to_send, &a.ready_to_receive));
        let fits = [from, to].into_iter().all(|(sending, receiving)| {
            sending.psn == receiving.psn && sending.max_rd_atomic <= receiving.max_dest_rd_atomic
        });
        let numbers_match =
            Some(a.ready_to_receive.remote_qpn) == *b_qpn && Some(b.ready_to_receive.remote_qpn) == *a_qpn;
        let paths_match = a.ready_to_receive.path.local() == b.ready_to_receive.path.remote()
            && a.ready_to_receive.path.remote() == b.ready_to_receive.path.local();
        if !(fits
            && numbers_match
            && paths_match
            && a.ready_to_receive.path_mtu == b.ready_to_receive.path_mtu)
        {
            let what = format!("the parameters of the two sides do not match: {a:?} and {b:?}");
            self.report_violation(now, what);
        }
    }

    /// Checks the bounds of a manager's tables.
    pub(super) fn check_bounds(&mut self, now: Time, resource_counts: &ResourceCounts, max_half_open: usize) {
        if resource_counts.half_open > max_half_open
            || resource_counts.connections > 200
            || resource_counts.queries > 200
        {
            self.report_violation(now, format!("a manager exceeds its bounds: {resource_counts:?}"));
        }
    }

    /// Checks that no state remains at the end.
    pub(super) fn check_end(&mut self, now: Time, manager: &Manager, application: &Application) {
        let ResourceCounts {
            connections, half_open, index_entries, queries, timers, events, datagrams, ..
        } = manager.resource_counts();
        if [connections, half_open, index_entries, queries, timers, events, datagrams] != [0; 7] {
            self.report_violation(
                now,
                format!("resources remain at the end: {:?}", manager.resource_counts()),
            );
        }
        if !application.is_idle() {
            self.report_violation(now, "the end of a connection is never reported");
        }
    }

    /// Checks that every attempt has an outcome.
    pub(super) fn check_calls(&mut self, now: Time) {
        let open = self.calls.values().flat_map(|call| &call.parts).find(|(_, part)| part.outcome.is_none());
        if let Some((role, part)) = open {
            let what = format!("{role:?} since {} has no outcome", part.since);
            self.report_violation(now, what);
        }
    }
}
