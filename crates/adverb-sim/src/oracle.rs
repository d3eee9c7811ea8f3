//! The checks during a run and at its end.

use adverb_proto::types::{Completion, QpState, SendOperation, Status, Success};
use adverb_proto::{QueueEvent, ResourceCounts, Time, Transition};
use adverb_wire::{Aeth, Header, Operation, Rc, ReadResponse, Syndrome};

use crate::atomics::{self, Atomic, Kind};
use crate::model::concat_ranges;
use crate::scenario::Action;
use crate::scenario_run::{ScenarioRun, Task};
use crate::world::Actors;

impl ScenarioRun {
    /// Checks a device's events and completions.
    pub(crate) fn observe(&mut self, node: usize) {
        while let Some(event) = self.world.nodes[node].device.poll_queue_event() {
            self.handle_event(node, event);
        }
        let cq = self.world.nodes[node].cq;
        while let Some(completion) = self.world.nodes[node].device.poll_completion(cq) {
            self.complete(node, &completion);
        }
    }

    fn handle_event(&mut self, node: usize, event: QueueEvent) {
        let (qpn, what) = match event {
            QueueEvent::SendQueueDrained(qpn) => {
                if let Some((connection, side)) = self.world.nodes[node].actor.ends.get(&qpn).copied() {
                    self.connections[connection].sides[side].draining = false;
                    let _ = self.world.nodes[node].device.modify_qp(self.world.now, qpn, &Transition::Resume);
                    self.world.plan(self.world.now, Task::RunSteps { connection, side });
                    self.plan_pump(node);
                }
                return;
            }
            QueueEvent::RequestError(qpn) | QueueEvent::AccessError(qpn) => (qpn, event),
            QueueEvent::Fatal(qpn) => (qpn, event),
            QueueEvent::CqOverflow(_) => {
                return self.report_violation("a completion queue overflowed".to_owned());
            }
            _ => return,
        };
        let Some((connection, side)) = self.world.nodes[node].actor.ends.get(&qpn).copied() else { return };
        // Only a request that must be rejected causes these events.
        let is_rejection = matches!(what, QueueEvent::RequestError(_) | QueueEvent::AccessError(_));
        let peer = &self.connections[connection].directions[1 - side];
        let is_expected =
            peer.must_fail_from.is_some_and(|must_fail_from| peer.posted[must_fail_from].must_fail.is_some());
        if is_rejection && !is_expected && peer.revoked.is_none() {
            self.report_violation(format!(
                "connection {connection} side {side}: {what:?}, but all requests were valid"
            ));
        }
        let state = &mut self.connections[connection].sides[side];
        state.failed = true;
        state.draining = false;
        self.world.plan(self.world.now, Task::RunSteps { connection, side });
    }

    fn complete(&mut self, node: usize, completion: &Completion) {
        let id = completion.wr_id;
        let (connection, side) = ((id >> 33 & 0x3fff_ffff) as usize, (id >> 32 & 1) as usize);
        let number = (id & 0xffff_ffff) as usize;
        let known = self.world.nodes[node].actor.ends.get(&completion.qpn) == Some(&(connection, side));
        if !known {
            return self.report_violation(format!(
                "a completion of queue pair {} has the unknown ID {id:#x}",
                completion.qpn
            ));
        }
        let outcome = completion.outcome.map_err(|failure| failure.status);
        let result = if id >> 63 == 1 {
            self.complete_receive(connection, side, number, outcome)
        } else {
            self.complete_send(connection, side, number, outcome)
        };
        if let Err(what) = result {
            let queue = if id >> 63 == 1 { "receive" } else { "request" };
            let action = self.connections[connection].directions[side].posted.get(number).map(|p| p.action);
            let action = action.filter(|_| id >> 63 == 0);
            self.report_violation(format!(
                "connection {connection} side {side} {queue} {number} {action:?}: {what}"
            ));
        }
    }

    /// Checks that a receive completes once, in order, and with the sent data.
    fn complete_receive(
        &mut self,
        connection: usize,
        side: usize,
        number: usize,
        outcome: Result<Success, Status>,
    ) -> Result<(), String> {
        let state = &self.connections[connection].sides[side];
        let (node, failed) = (state.node, state.failed);
        let direction = &mut self.connections[connection].directions[1 - side];
        if number != direction.slots_done {
            return Err(format!("completed before receive {}", direction.slots_done));
        }
        direction.slots_done += 1;
        direction.slots[number].outcome = Some(outcome.map(|success| success.length));
        direction.starved |= direction.slots_done == direction.slots.len();
        match outcome {
            Ok(success) => {
                direction.check_received(number, &success, &self.world.nodes[node].memory)?;
                let request = direction.posted.iter().position(|posted| posted.consumes == Some(number));
                if request.is_some()
                    && direction.must_fail_from.is_some_and(|must_fail_from| request >= Some(must_fail_from))
                {
                    return Err("a message that must fail was delivered".to_owned());
                }
                let delay = self.scenario.connections[connection].programs[side].recv_delay;
                let at = self.world.now + delay;
                self.world.plan(at, Task::Receive { connection, side });
                Ok(())
            }
            Err(Status::Flushed) if failed => Ok(()),
            Err(status) => {
                // The receives in use when a request was rejected may fail.
                let may_fail = direction.must_fail_from.is_some() || direction.revoked.is_some();
                if may_fail { Ok(()) } else { Err(format!("failed without a cause: {status}")) }
            }
        }
    }

    /// Checks that a request completes once, in order, and after its effect.
    fn complete_send(
        &mut self,
        connection: usize,
        side: usize,
        number: usize,
        outcome: Result<Success, Status>,
    ) -> Result<(), String> {
        let direction = &mut self.connections[connection].directions[side];
        if number >= direction.posted.len() {
            return Err("was never posted".to_owned());
        }
        if number < direction.done {
            return Err("completed twice, or out of order".to_owned());
        }
        // The unsignaled requests before this one have succeeded.
        for skipped in direction.done..number {
            let direction = &self.connections[connection].directions[side];
            if direction.posted[skipped].signaled || direction.failed.is_some() {
                return Err(format!("completed before request {skipped}"));
            }
            self.succeed(connection, side, skipped)?;
        }
        match outcome {
            Ok(success) => {
                let direction = &self.connections[connection].directions[side];
                if direction.failed.is_some() {
                    return Err("succeeded after a failed request".to_owned());
                }
                if !direction.posted[number].signaled {
                    return Err("completed, but is unsignaled".to_owned());
                }
                if success.length != direction.posted[number].length {
                    return Err(format!("completed with {} bytes", success.length));
                }
                self.succeed(connection, side, number)?;
            }
            Err(status) => self.fail(connection, side, number, status)?,
        }
        let state = &mut self.connections[connection].sides[side];
        if state.waiting {
            state.waiting = false;
            self.world.plan(self.world.now, Task::RunSteps { connection, side });
        }
        Ok(())
    }

    fn succeed(&mut self, connection: usize, side: usize, number: usize) -> Result<(), String> {
        let (here, there) = {
            let sides = &self.connections[connection].sides;
            (sides[side].node, sides[1 - side].node)
        };
        let direction = &mut self.connections[connection].directions[side];
        direction.done = number + 1;
        direction.posted[number].outcome = Some(Status::Success);
        if direction.must_fail_from.is_some_and(|must_fail_from| number >= must_fail_from) {
            return Err("succeeded, but must fail".to_owned());
        }
        if let Some(slot) = direction.posted[number].consumes
            && slot >= direction.slots_done
        {
            return Err("succeeded before the peer's receive completed".to_owned());
        }
        direction.check_response(number, &self.world.nodes[here].memory)?;
        direction.check_written(number, &self.world.nodes[there].memory)?;
        if direction.posted[number].shared.is_some() {
            let found = concat_ranges(
                self.world.nodes[here].memory.bytes(direction.response.storage),
                &direction.posted[number].response,
            );
            direction.posted[number].expected_response = Some(found);
        }
        // The check of atomics needs the completion times.
        let now = self.world.now;
        direction.ended.insert(number, now);
        // The memory is deregistered now, but a retransmission of the READ may still arrive. The responder must not
        // reject it.
        let posted = &direction.posted[number];
        if posted.action == Action::ReadAndRelease
            && let SendOperation::Read(remote) = posted.operation
        {
            self.release(there, remote.rkey);
        }
        Ok(())
    }

    fn fail(&mut self, connection: usize, side: usize, number: usize, status: Status) -> Result<(), String> {
        let peer_failed = self.state(connection, 1 - side).is_none_or(|state| state == QpState::Error);
        let spec = &self.scenario.connections[connection];
        let (rnr_retry, retry_count) = (spec.rnr_retry, spec.retry_count);
        let ack_timeout = 4096u64 << spec.ack_timeout_exponent;
        // On a slow link, a packet may be queued for longer than the ACK timeout.
        let max_wait = self.scenario.faults.bottleneck.map_or(0, |slow| {
            u64::try_from(u128::from(slow.queue_capacity) * 8 * 1_000_000_000 / u128::from(slow.rate.max(1)))
                .unwrap_or(u64::MAX)
        });
        let now = self.world.now;
        let state = &self.connections[connection];
        // Only faults since this time can have caused the failure: all retries and the waits between them are
        // shorter.
        let since = now.as_nanos().saturating_sub(2 * (u64::from(retry_count) + 3) * ack_timeout + 2_000_000);
        let recent = state.faults.iter().filter(|at| at.as_nanos() >= since).count();
        let failed_before = state.sides[side].failed;
        let direction = &mut self.connections[connection].directions[side];
        direction.done = number + 1;
        direction.posted[number].outcome = Some(status);
        let first = direction.failed.is_none();
        let required_status = direction.posted[number].must_fail;
        if first {
            direction.failed = Some(number);
        }
        let excused = match status {
            Status::Flushed => !first || failed_before,
            _ if !first => false,
            status if required_status == Some(status) => direction.must_fail_from == Some(number),
            Status::RetryExceeded => {
                peer_failed || recent >= usize::from(retry_count) || max_wait > ack_timeout
            }
            Status::RnrRetryExceeded => rnr_retry != 7 && direction.starved,
            Status::RemoteAccess => direction.revoked.is_some(),
            _ => false,
        };
        let state = &mut self.connections[connection].sides[side];
        state.failed = true;
        state.draining = false;
        if excused {
            Ok(())
        } else {
            Err(format!(
                "failed without a cause ({recent} recent faults, peer failed: {peer_failed}): {status}"
            ))
        }
    }

    /// Checks that the MSN of a response is the number of messages that the responder has completed (vol. 1, 9.7.7.1).
    /// `side` is the requester.
    pub(crate) fn check_msn(&mut self, connection: usize, side: usize, header: &Header) {
        let Operation::Rc(rc) = header.operation else { return };
        let first = self.scenario.connections[connection].first_psns[side];
        let direction = &self.connections[connection].directions[side];
        let place = header.psn.get().wrapping_sub(first) & 0xff_ffff;
        let messages = |psn_offset: u32| direction.messages_before(psn_offset);
        let (msn, expected) = match rc {
            Rc::Acknowledge(Aeth { syndrome: Syndrome::Ack(_), msn }) => {
                // An acknowledgement before the first message has the PSN before the first PSN.
                (msn, if place == 0xff_ffff { 0 } else { messages(place + 1) })
            }
            Rc::Acknowledge(aeth) => (aeth.msn, messages(place)),
            Rc::ReadResponse(
                ReadResponse::First(aeth) | ReadResponse::Last(aeth) | ReadResponse::Only(aeth),
            )
            | Rc::AtomicAcknowledge(aeth, _) => (aeth.msn, messages(place) + 1),
            _ => return,
        };
        let known = place == 0xff_ffff || place <= direction.message_ends.last().copied().unwrap_or(0);
        if !known {
            self.report_violation(format!(
                "connection {connection}: a response to side {side} has psn {}, which was never sent",
                header.psn
            ));
        } else if msn as usize != expected {
            self.report_violation(format!(
                "connection {connection}: a response to side {side} for psn {} has msn {msn}, expected {expected}",
                header.psn
            ));
        }
    }

    /// Ends a run: checks that all requests completed or were flushed, that no other memory changed, and that no
    /// resources remain.
    pub(crate) fn finish(&mut self) {
        if self.world.log.violation.is_some() {
            return;
        }
        for connection in 0..self.connections.len() {
            for side in 0..2 {
                self.finish_side(connection, side);
            }
        }
        for connection in 0..self.connections.len() {
            for side in 0..2 {
                self.flush_side(connection, side);
            }
        }
        if self.world.log.violation.is_some() {
            return;
        }
        self.check_bytes();
        self.check_atomics();
        self.check_leaks();
    }

    /// Checks that a working queue pair completed all posted requests.
    fn finish_side(&mut self, connection: usize, side: usize) {
        let state = &self.connections[connection].sides[side];
        let Some(status) = self.world.nodes[state.node].device.query_qp(state.qpn) else { return };
        let steps = self.scenario.connections[connection].programs[side].steps.len();
        let (next, failed) = (state.step, state.failed);
        if failed || status.state == QpState::Error {
            return;
        }
        if status.send_queue_len != 0 || next < steps {
            return self.report_violation(format!(
                "connection {connection} side {side} is stuck in state {} at step {next} of {steps} with {} requests",
                status.state, status.send_queue_len
            ));
        }
        self.finish_unsignaled(connection, side);
    }

    /// Checks the unsignaled requests after the last completion. They succeeded, because failures are always reported.
    fn finish_unsignaled(&mut self, connection: usize, side: usize) {
        let direction = &self.connections[connection].directions[side];
        if direction.failed.is_some() {
            return;
        }
        for number in direction.done..direction.posted.len() {
            let signaled = self.connections[connection].directions[side].posted[number].signaled;
            let result = if signaled {
                Err("never completed".to_owned())
            } else {
                self.succeed(connection, side, number)
            };
            if let Err(what) = result {
                return self.report_violation(format!(
                    "connection {connection} side {side} request {number}: {what}"
                ));
            }
        }
    }

    /// Moves a queue pair to the error state, and checks that it flushes all posted requests.
    fn flush_side(&mut self, connection: usize, side: usize) {
        let state = &mut self.connections[connection].sides[side];
        if state.destroyed {
            return;
        }
        let was_failed = state.failed;
        let (node, qpn) = (state.node, state.qpn);
        state.failed = true;
        let _ = self.world.nodes[node].device.modify_qp(self.world.now, qpn, &Transition::Error);
        self.observe(node);
        self.connections[connection].sides[side].failed = was_failed;
        self.finish_unsignaled(connection, side);
        let sends = &self.connections[connection].directions[side];
        let receives = &self.connections[connection].directions[1 - side];
        if sends.done != sends.posted.len() {
            let (done, posted) = (sends.done, sends.posted.len());
            self.report_violation(format!(
                "connection {connection} side {side}: {done} of {posted} requests completed"
            ));
        } else if receives.slots_done != receives.slots.len() {
            let (done, posted) = (receives.slots_done, receives.slots.len());
            self.report_violation(format!(
                "connection {connection} side {side}: {done} of {posted} receives completed"
            ));
        }
    }

    fn check_bytes(&mut self) {
        for connection in 0..self.connections.len() {
            for side in 0..2 {
                let alive = {
                    let sides = &self.connections[connection].sides;
                    !sides[side].failed && !sides[side].destroyed
                };
                let direction = &self.connections[connection].directions[side];
                if let Err(what) = direction.check_memory(&self.world.nodes, alive) {
                    return self.report_violation(format!("connection {connection} side {side}: {what}"));
                }
            }
        }
    }

    fn check_atomics(&mut self) {
        for node in 0..self.world.nodes.len() {
            for word in 0..self.scenario.shared_words_per_device {
                let mut atomics = Vec::new();
                for connection in &self.connections {
                    for side in 0..2 {
                        if connection.sides[1 - side].node != node {
                            continue;
                        }
                        let direction = &connection.directions[side];
                        for (number, posted) in direction.posted.iter().enumerate() {
                            if posted.shared != Some(word)
                                || direction.must_fail_from.is_some_and(|d| number >= d)
                            {
                                continue;
                            }
                            let kind = match posted.operation {
                                SendOperation::FetchAdd { add, .. } => Kind::Add(add),
                                SendOperation::CompareSwap { compare, swap, .. } => {
                                    Kind::Swap { compare, swap }
                                }
                                _ => continue,
                            };
                            let old = posted
                                .expected_response
                                .as_ref()
                                .filter(|_| posted.outcome == Some(Status::Success));
                            let old = old.map(|bytes| {
                                u64::from_ne_bytes(bytes.as_slice().try_into().unwrap_or_default())
                            });
                            let end = direction.ended.get(&number).copied().unwrap_or(Time::MAX);
                            atomics.push(Atomic { kind, old, start: posted.at, end });
                        }
                    }
                }
                let area = &self.shared[node];
                let value = |bytes: &[u8]| {
                    u64::from_ne_bytes(bytes[word * 8..word * 8 + 8].try_into().unwrap_or_default())
                };
                let (first, last) =
                    (value(&area.initial), value(self.world.nodes[node].memory.bytes(area.storage)));
                if let Err(what) = atomics::check(first, last, &atomics) {
                    return self.report_violation(format!("dev {node} word {word}: {what}"));
                }
            }
        }
    }

    /// Destroys all objects, and checks that no resources remain.
    fn check_leaks(&mut self) {
        for connection in 0..self.connections.len() {
            for side in 0..2 {
                let state = &self.connections[connection].sides[side];
                let (node, qpn, destroyed) = (state.node, state.qpn, state.destroyed);
                if self.world.nodes[node].device.destroy_qp(qpn) == destroyed {
                    let what = if destroyed { "exists after its destruction" } else { "does not exist" };
                    self.report_violation(format!(
                        "connection {connection} side {side}: its queue pair {what}"
                    ));
                }
            }
        }
        for node in 0..self.world.nodes.len() {
            for key in std::mem::take(&mut self.world.nodes[node].keys) {
                let _ = self.world.nodes[node].device.deregister(key);
            }
            let cq = self.world.nodes[node].cq;
            let resource_counts = self.world.nodes[node].device.resource_counts();
            if resource_counts != ResourceCounts::default() || !self.world.nodes[node].device.destroy_cq(cq) {
                self.report_violation(format!("dev {node} still has {resource_counts}"));
            }
        }
    }
}
