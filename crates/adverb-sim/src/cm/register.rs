//! What was called for, what came of it, and whether that is right.

use std::collections::BTreeMap;

use adverb_proto::Time;
use adverb_proto::cm::{Manager, Ready, ResourceCounts};
use adverb_proto::types::{Qpn, RejectReason};

use super::Rules;
use super::application::Application;

/// Which side of a call somebody is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    /// Connects.
    Client,
    /// Accepts.
    Server,
    /// One of two that connect to each other: which node it is.
    Peer(usize),
    /// Asks for a datagram queue pair.
    Asker,
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Established,
    Rejected(RejectReason),
    Unreachable,
    Disconnected,
    /// Its own side wanted it no more.
    Dropped,
}

#[derive(Default)]
struct Call {
    parts: BTreeMap<Role, Part>,
    /// Who was asked, and until when it isn't to be asked again.
    asked: Option<(usize, Time)>,
    /// Whether some application took its time, or said no.
    slow: bool,
    sides: Vec<(Role, Ready, Option<Qpn>)>,
}

struct Part {
    since: Time,
    deadline: Time,
    outcome: Option<Outcome>,
}

/// All calls, by the token that goes with them as private data.
pub(super) struct Register {
    rules: Rules,
    calls: BTreeMap<u64, Call>,
    pub(super) violation: Option<String>,
}

impl Register {
    pub(super) fn new(rules: Rules) -> Register {
        Register { rules, calls: BTreeMap::new(), violation: None }
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.len() as u64
    }

    pub(super) fn established(&self) -> u64 {
        self.calls.values().filter(|call| call.sides.len() == 2).count() as u64
    }

    pub(super) fn violate(&mut self, now: Time, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(format!("{now}: {}", what.into()));
        }
    }

    /// Somebody calls, or accepts.
    pub(super) fn begin(&mut self, now: Time, token: u64, role: Role, deadline: Time) {
        let call = self.calls.entry(token).or_default();
        let part = Part { since: now, deadline, outcome: None };
        if call.parts.insert(role, part).is_some_and(|before| before.outcome.is_none()) {
            self.violate(now, format!("{role:?} started twice"));
        }
    }

    /// Some application takes its time with this, or says no.
    pub(super) fn not_prompt(&mut self, token: u64) {
        self.calls.entry(token).or_default().slow = true;
    }

    /// An application is asked. Once is enough, until even the memory of it may be gone.
    pub(super) fn request(&mut self, now: Time, token: u64, node: usize) {
        let Some(call) = self.calls.get_mut(&token) else {
            return self.violate(now, "connection request that no application made");
        };
        let again = call.asked.is_some_and(|(before, until)| before != node || now < until);
        if call.asked.is_some() {
            // From the second time on the first answer was lost, whatever it was.
            call.slow = true;
        }
        call.asked = Some((node, Time::MAX));
        if again {
            self.violate(now, "a connection request was reported twice");
        }
    }

    /// A request is gone that wasn't accepted.
    pub(super) fn withdrawn(&mut self, now: Time, token: u64) {
        self.not_prompt(token);
        self.remembered_until(token, now + self.rules.timewait);
    }

    /// The application's answer, or want of one, is remembered for so long.
    pub(super) fn remembered_until(&mut self, token: u64, time: Time) {
        if let Some((_, until)) = self.calls.get_mut(&token).and_then(|call| call.asked.as_mut()) {
            *until = time;
        }
    }

    /// A call has its outcome.
    pub(super) fn end(&mut self, now: Time, token: u64, role: Role, outcome: Outcome) {
        if role == Role::Server && outcome != Outcome::Established {
            self.remembered_until(token, now + self.rules.timewait);
        }
        let Some(call) = self.calls.get_mut(&token) else {
            return self.violate(now, "outcome of an unknown call");
        };
        if outcome == Outcome::Dropped || matches!(outcome, Outcome::Rejected(_)) {
            call.slow = true;
        }
        let slow = call.slow;
        let Some(part) = call.parts.get_mut(&role) else {
            return self.violate(now, format!("{role:?} never started"));
        };
        if let Some(before) = part.outcome.replace(outcome) {
            return self.violate(now, format!("{role:?} has two outcomes: {before:?}, {outcome:?}"));
        }
        let (since, deadline) = (part.since, part.deadline);
        if now > deadline {
            self.violate(now, format!("{role:?} ended after its deadline {deadline}: {outcome:?}"));
        }
        // Intervals grow to eight times the first, and there are three messages to be carried.
        let healthy = deadline - since.max(self.rules.heal_at);
        if outcome == Outcome::Unreachable && !slow && healthy > self.rules.response * 40 {
            self.violate(
                now,
                format!(
                    "{role:?} is reported unreachable, but the fabric has had no faults since {healthy:?}"
                ),
            );
        }
    }

    /// What a side's queue pair was told.
    pub(super) fn ready(&mut self, now: Time, token: u64, role: Role, ready: &Ready, qpn: Option<Qpn>) {
        let Some(call) = self.calls.get_mut(&token) else { return };
        call.sides.retain(|(side, ..)| *side != role);
        call.sides.push((role, *ready, qpn));
        let [(_, a, a_qpn), (_, b, b_qpn)] = &call.sides[..] else { return };
        let (from, to) = ((&a.ready_to_send, &b.ready_to_receive), (&b.ready_to_send, &a.ready_to_receive));
        let fits = [from, to].into_iter().all(|(sending, receiving)| {
            sending.psn == receiving.psn && sending.max_rd_atomic <= receiving.max_dest_rd_atomic
        });
        let numbers =
            Some(a.ready_to_receive.remote_qpn) == *b_qpn && Some(b.ready_to_receive.remote_qpn) == *a_qpn;
        let paths = a.ready_to_receive.path.local() == b.ready_to_receive.path.remote()
            && a.ready_to_receive.path.remote() == b.ready_to_receive.path.local();
        if !(fits && numbers && paths && a.ready_to_receive.path_mtu == b.ready_to_receive.path_mtu) {
            let what = format!("the parameters of the two sides do not match: {a:?} and {b:?}");
            self.violate(now, what);
        }
    }

    /// What a manager holds at any time.
    pub(super) fn check_bounds(
        &mut self,
        now: Time,
        resource_counts: &ResourceCounts,
        most_half_open: usize,
    ) {
        if resource_counts.half_open > most_half_open
            || resource_counts.connections > 200
            || resource_counts.queries > 200
        {
            self.violate(now, format!("a manager exceeds its bounds: {resource_counts:?}"));
        }
    }

    /// What is left when nothing more will happen.
    pub(super) fn check_end(&mut self, now: Time, manager: &Manager, application: &Application) {
        let ResourceCounts {
            connections, half_open, index_entries, queries, timers, events, datagrams, ..
        } = manager.resource_counts();
        if [connections, half_open, index_entries, queries, timers, events, datagrams] != [0; 7] {
            self.violate(now, format!("resources remain at the end: {:?}", manager.resource_counts()));
        }
        if !application.is_idle() {
            self.violate(now, "the end of a connection is never reported");
        }
    }

    /// Whether everything has an outcome.
    pub(super) fn check_calls(&mut self, now: Time) {
        let open = self.calls.values().flat_map(|call| &call.parts).find(|(_, part)| part.outcome.is_none());
        if let Some((role, part)) = open {
            let what = format!("{role:?} since {} has no outcome", part.since);
            self.violate(now, what);
        }
    }
}
