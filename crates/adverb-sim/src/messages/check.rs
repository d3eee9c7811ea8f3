//! The checks of messages during a run and at its end.

use adverb_proto::types::{CompletedOperation, Completion, SendOperation, Status, Success, Transport};
use adverb_proto::{QueueEvent, ResourceCounts};
use adverb_wire::{GRH_LEN, IpHeader};

use super::endpoint::RECEIVE;
use super::run::{Endpoint, Message, MessageRun, Phase, Receiver, Task};
use crate::world::Actors;

impl MessageRun {
    /// Checks a device's events and completions.
    pub(super) fn observe(&mut self, node: usize) {
        while let Some(event) = self.world.nodes[node].device.poll_queue_event() {
            self.handle_event(node, event);
        }
        let cq = self.world.nodes[node].cq;
        while let Some(completion) = self.world.nodes[node].device.poll_completion(cq) {
            self.complete(node, &completion);
        }
        // If fewer receives than the armed limit are left, the limit event must have been generated.
        let srq = self.world.nodes[node].actor.srq;
        let left = self.world.nodes[node].device.query_srq(srq).map_or(0, |status| status.request_count);
        if let Some(limit) = self.world.nodes[node].actor.armed
            && left < limit as usize
        {
            self.report_violation(format!(
                "dev {node}: {left} shared receives remain, but the limit event for {limit} is missing"
            ));
        }
    }

    fn handle_event(&mut self, node: usize, event: QueueEvent) {
        match event {
            QueueEvent::SrqLimit(_) => match self.world.nodes[node].actor.armed.take() {
                Some(_) => {}
                None => self.report_violation(format!("dev {node}: limit event without an armed limit")),
            },
            QueueEvent::RequestError(qpn) | QueueEvent::AccessError(qpn) | QueueEvent::Fatal(qpn) => {
                let Some(endpoint) = self.world.nodes[node].actor.endpoints.get(&qpn).copied() else {
                    return;
                };
                if self.endpoints[endpoint].transport != Transport::Rc {
                    return self.report_violation(format!("endpoint {endpoint}: {event:?} without a cause"));
                }
                self.fail(endpoint);
            }
            QueueEvent::LastReceiveReached(qpn) => {
                let endpoint = self.world.nodes[node].actor.endpoints.get(&qpn).copied();
                if endpoint.is_none_or(|endpoint| !self.plan.endpoints[endpoint].has_srq) {
                    self.report_violation(format!("dev {node}: {event:?} without a shared receive queue"));
                }
            }
            QueueEvent::CqOverflow(_) => {
                self.report_violation(format!("dev {node}: a completion queue overflowed"));
            }
            _ => {}
        }
    }

    /// Records the failure of a reliable connection, which then reconnects.
    fn fail(&mut self, index: usize) {
        let peer = self.plan.endpoints[index].peer;
        let known = self.endpoints[index].failed || peer.is_some_and(|peer| self.endpoints[peer].failed);
        self.endpoints[index].failed = true;
        if !known && !self.endpoints[index].closed {
            self.failures += 1;
            let at = self.world.now + self.ack_timeout;
            let epoch = self.endpoints[index].epoch;
            self.world.plan(at, Task::Reconnect { endpoint: index, epoch });
        }
    }

    fn complete(&mut self, node: usize, completion: &Completion) {
        let outcome = completion.outcome.map_err(|failure| failure.status);
        let Some(endpoint) = self.world.nodes[node].actor.endpoints.get(&completion.qpn).copied() else {
            return self.report_violation(format!("completion of the unknown queue pair {}", completion.qpn));
        };
        let result = if completion.wr_id & RECEIVE != 0 {
            let number = (completion.wr_id & !RECEIVE) as usize;
            self.check_recv(node, endpoint, number, outcome)
                .map_err(|what| format!("receive {number}: {what}"))
        } else {
            let number = completion.wr_id as usize;
            self.check_sent(endpoint, number, outcome).map_err(|what| {
                let operation = self.messages.get(number).map(|message| message.operation);
                format!("message {number} {operation:?}: {what}")
            })
        };
        if let Err(what) = result {
            self.report_violation(format!("endpoint {endpoint} {what}"));
        }
        if !self.endpoints[endpoint].closed {
            self.world.plan(self.world.now, Task::RunSteps { endpoint });
        }
    }

    /// Checks the completion of a message's request: each completes once, in order, and on reliable connections not
    /// before the message arrived.
    fn check_sent(
        &mut self,
        index: usize,
        number: usize,
        outcome: Result<Success, Status>,
    ) -> Result<(), String> {
        let message = self.messages.get_mut(number).ok_or("was never posted")?;
        if message.from != index || message.outcome.is_some() {
            return Err("completed twice, or on the wrong endpoint".to_owned());
        }
        message.outcome = Some(outcome.map_or_else(|status| status, |_| Status::Success));
        let current = message.epoch == self.endpoints[index].epoch;
        if current {
            if self.endpoints[index].completed.is_some_and(|last| last >= number) {
                return Err("completed out of order".to_owned());
            }
            self.endpoints[index].completed = Some(number);
        }
        let message = &self.messages[number];
        let reliable = self.endpoints[index].transport == Transport::Rc;
        match outcome {
            Ok(_) => {
                if reliable && message.forbidden {
                    return Err("succeeded, but must fail".to_owned());
                }
                if reliable && message.consumes_receive() && message.delivered != 1 {
                    return Err("succeeded before the message arrived".to_owned());
                }
                if reliable {
                    self.check_target(message, true)?;
                }
                self.record_window_change(index, number, current);
                Ok(())
            }
            Err(status) if !reliable => Err(format!("failed: {status}")),
            Err(status) => {
                let peer = self.plan.endpoints[index].peer.unwrap_or(index);
                let faults = self.endpoints[index].faults + self.endpoints[peer].faults;
                let excused = match status {
                    Status::Flushed => self.endpoints[index].failed || !current,
                    Status::RemoteAccess => message.forbidden || message.through_window,
                    Status::RetryExceeded => faults > 0 || self.endpoints[peer].failed,
                    _ => false,
                };
                if current {
                    self.fail(index);
                }
                if excused { Ok(()) } else { Err(format!("failed without a cause: {status}")) }
            }
        }
    }

    /// Records that an endpoint's window was bound or invalidated.
    fn record_window_change(&mut self, index: usize, number: usize, current: bool) {
        let (operation, node) = (self.messages[number].operation, self.endpoints[index].node);
        let Some(window) = &mut self.endpoints[index].window else { return };
        match operation {
            SendOperation::BindWindow(_) if current && window.phase == Phase::Binding => {
                window.phase = Phase::Bound;
            }
            SendOperation::LocalInvalidate(_) if current && window.phase == Phase::Invalidating => {
                window.phase = Phase::Free;
                window.snapshot = Some(self.world.nodes[node].memory.bytes(window.storage).to_vec());
            }
            _ => {}
        }
    }

    /// Checks the completion of a receive: each completes once, in order, and with a message that was sent to this
    /// endpoint.
    fn check_recv(
        &mut self,
        node: usize,
        index: usize,
        number: usize,
        outcome: Result<Success, Status>,
    ) -> Result<(), String> {
        let slot = self.slots.get_mut(number).ok_or("was never posted")?;
        if slot.done || slot.node != node {
            return Err("completed twice, or on the wrong device".to_owned());
        }
        slot.done = true;
        match slot.endpoint {
            Some(owner) => {
                if owner != index {
                    return Err("belongs to another endpoint".to_owned());
                }
                if self.endpoints[index].receives.pop_front() != Some(number) {
                    return Err("completed out of order".to_owned());
                }
                let epoch = self.endpoints[index].epoch;
                let at = self.world.now + self.plan.endpoints[index].recv_delay;
                self.world.plan(at, Task::Receive { endpoint: index, epoch });
            }
            None => {
                if !self.plan.endpoints[index].has_srq {
                    return Err("is not shared with this endpoint".to_owned());
                }
                // Shared receives are taken in order, and each queue pair uses at most one at a time.
                self.world.nodes[node].actor.shared.remove(&number);
                let older = self.world.nodes[node].actor.shared.range(..number).count();
                let sharing = self.plan.endpoints.iter().filter(|s| s.device == node && s.has_srq).count();
                if older > 2 * sharing {
                    return Err(format!("was used before {older} older receives"));
                }
                let at = self.world.now + self.plan.endpoints[index].recv_delay;
                self.world.plan(at, Task::ReceiveShared { node });
            }
        }
        match outcome {
            Ok(success) => self.check_message(node, index, number, &success),
            Err(Status::Flushed) if self.endpoints[index].failed => Ok(()),
            Err(status) => Err(format!("failed: {status}")),
        }
    }

    /// Checks that a received message is complete, unaltered and for this endpoint.
    fn check_message(
        &mut self,
        node: usize,
        index: usize,
        number: usize,
        success: &Success,
    ) -> Result<(), String> {
        let bytes = self.world.nodes[node].memory.bytes(self.slots[number].storage);
        let is_datagram = self.endpoints[index].transport == Transport::Ud;
        let start = if is_datagram { GRH_LEN } else { 0 };
        let (message, immediate) = match success.operation {
            CompletedOperation::RecvWrite { immediate } => (immediate as usize, Some(immediate)),
            CompletedOperation::Recv { immediate, .. } => {
                let head = bytes.get(start..start + 8).and_then(|head| head.first_chunk::<8>());
                (head.map_or(usize::MAX, |head| u64::from_le_bytes(*head) as usize), immediate)
            }
            other => return Err(format!("has the operation {other:?}")),
        };
        let found = self.messages.get(message).ok_or("contains an unknown message")?;
        let Message { from, to, epoch, forbidden, source_qpn, operation, .. } = *found;
        let is_addressee = to == Receiver::Endpoint(index) || (to == Receiver::Group && is_datagram);
        if forbidden || !is_addressee {
            return Err(format!("contains message {message} for another endpoint"));
        }
        if success.length as usize != start + found.bytes.len() {
            return Err(format!(
                "received {} bytes of message {message} with {} bytes",
                success.length,
                found.bytes.len()
            ));
        }
        let expected = match operation {
            SendOperation::WriteWithImm(_, immediate) => CompletedOperation::RecvWrite { immediate },
            SendOperation::SendInvalidate(key) => received(None, Some(key), None),
            SendOperation::SendWithImm(immediate) => {
                received(Some(immediate), None, is_datagram.then_some(source_qpn))
            }
            _ => received(None, None, is_datagram.then_some(source_qpn)),
        };
        if success.operation != expected {
            return Err(format!("received {:?}, expected {expected:?} ({immediate:?})", success.operation));
        }
        if let SendOperation::WriteWithImm(..) = operation {
            self.check_target(found, true)?;
        } else if bytes[start..start + found.bytes.len()] != found.bytes[..] {
            return Err(format!("message {message} was altered"));
        }
        if is_datagram {
            self.check_route(node, from, to, bytes)?;
        }
        let copies = self.world.fabric.counts.duplicated;
        let found = &mut self.messages[message];
        found.delivered += 1;
        let members =
            self.endpoints.iter().filter(|endpoint| endpoint.transport == Transport::Ud).count() as u64;
        let max = match (is_datagram, to) {
            (false, _) => 1,
            (true, Receiver::Group) => members * (1 + copies),
            (true, _) => 1 + copies,
        };
        if found.delivered > max {
            return Err(format!("message {message} arrived twice"));
        }
        if is_datagram {
            self.world.nodes[node].actor.datagrams += 1;
            return Ok(());
        }
        if epoch != self.endpoints[from].epoch {
            return Err(format!("message {message} is from an earlier connection"));
        }
        self.check_order(index, from, message)?;
        if let SendOperation::SendInvalidate(_) = operation {
            self.close_window(index);
        }
        Ok(())
    }

    /// Checks that messages arrive in order on a connection, and without loss on a reliable one.
    fn check_order(&mut self, index: usize, from: usize, message: usize) -> Result<(), String> {
        let Endpoint { outbox, arrived, delivered, transport, .. } = &mut self.endpoints[from];
        let place = outbox[*arrived..].iter().position(|other| *other == message);
        let place = place.ok_or_else(|| format!("message {message} arrived out of order at {index}"))?;
        if place > 0 && *transport == Transport::Rc {
            return Err(format!("message {message} arrived, but {place} earlier messages did not"));
        }
        *arrived += place + 1;
        *delivered += 1;
        Ok(())
    }

    /// Checks the global route header of a datagram.
    fn check_route(&self, node: usize, from: usize, to: Receiver, bytes: &[u8]) -> Result<(), String> {
        let grh = bytes.first_chunk::<GRH_LEN>().ok_or("is too short for a GRH")?;
        let ip = IpHeader::from_grh(grh).ok_or("has no global route header")?;
        let destination = if to == Receiver::Group { self.group() } else { self.world.nodes[node].address };
        let source = self.world.nodes[self.endpoints[from].node].address;
        if (ip.source(), ip.destination()) != (source, destination) {
            return Err(format!("has a wrong route header: from {} to {}", ip.source(), ip.destination()));
        }
        Ok(())
    }

    /// Checks the target of a WRITE: if the WRITE arrived, the target contains all its data, and no other bytes
    /// changed.
    fn check_target(&self, message: &Message, arrived: bool) -> Result<(), String> {
        let Some((node, storage, initial)) = &message.target else { return Ok(()) };
        let found = self.world.nodes[*node].memory.bytes(*storage);
        for (index, byte) in found.iter().enumerate() {
            let written = message.bytes.get(index);
            let is_correct = match written {
                Some(written) if arrived => byte == written,
                Some(written) => byte == written || *byte == initial[index],
                None => *byte == initial[index],
            };
            if !is_correct {
                return Err(format!("byte {index} of the target is {byte:#04x}"));
            }
        }
        Ok(())
    }

    /// Checks the end of a run: all requests completed, no other memory changed, losses are counted, and no resources
    /// are left.
    pub(super) fn finish(&mut self) {
        for check in [
            MessageRun::check_requests,
            MessageRun::check_targets,
            MessageRun::check_windows,
            MessageRun::check_losses,
            MessageRun::check_shared,
            MessageRun::check_leaks,
        ] {
            if self.world.log.violation.is_some() {
                return;
            }
            if let Err(what) = check(self) {
                self.report_violation(what);
            }
        }
    }

    fn check_requests(&mut self) -> Result<(), String> {
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let steps = self.plan.endpoints[index].steps.len();
            if endpoint.step < steps {
                return Err(format!("endpoint {index} is stuck at step {} of {steps}", endpoint.step));
            }
        }
        for (number, message) in self.messages.iter().enumerate() {
            let endpoint = &self.endpoints[message.from];
            if message.epoch == endpoint.epoch && message.outcome.is_none() {
                return Err(format!("message {number} of endpoint {} never completed", message.from));
            }
        }
        Ok(())
    }

    fn check_targets(&mut self) -> Result<(), String> {
        for (number, message) in self.messages.iter().enumerate() {
            let arrived = message.outcome == Some(Status::Success)
                && self.endpoints[message.from].transport == Transport::Rc;
            self.check_target(message, arrived).map_err(|what| format!("message {number}: {what}"))?;
        }
        Ok(())
    }

    /// Checks the regions that have windows: bytes inside a window may have changed only while the window was bound,
    /// and bytes outside must be unchanged.
    fn check_windows(&mut self) -> Result<(), String> {
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let Some(window) = &endpoint.window else { continue };
            let found = self.world.nodes[endpoint.node].memory.bytes(window.storage);
            if window.phase == Phase::Free
                && window.snapshot.as_ref().is_some_and(|snapshot| snapshot != found)
            {
                return Err(format!(
                    "endpoint {index}: memory was written after the invalidation of its window"
                ));
            }
            let mut allowed = vec![None::<Vec<u8>>; found.len()];
            for message in window.writers.iter().map(|number| &self.messages[*number]) {
                let SendOperation::Write(remote) = message.operation else { continue };
                let start = (remote.addr - window.addr) as usize;
                for (offset, byte) in message.bytes.iter().enumerate() {
                    allowed[start + offset].get_or_insert_default().push(*byte);
                }
            }
            let wrong = (0..found.len()).find(|at| {
                let byte = found[*at];
                byte != window.initial[*at]
                    && allowed[*at].as_ref().is_none_or(|bytes| !bytes.contains(&byte))
            });
            if let Some(at) = wrong {
                return Err(format!(
                    "endpoint {index}: byte {at} of the window's memory was written without permission"
                ));
            }
        }
        Ok(())
    }

    /// Checks that every datagram was delivered or counted as dropped, and that the losses of unreliable connections
    /// are counted.
    fn check_losses(&mut self) -> Result<(), String> {
        for (index, node) in self.world.nodes.iter().enumerate() {
            let (stats, sink) = (node.device.statistics(), node.device.sink());
            let accounted = node.actor.datagrams + sink.datagrams_dropped + sink.wrong_keys;
            if sink.datagrams_in != accounted || stats.qkey_violations != sink.wrong_keys {
                return Err(format!(
                    "dev {index}: {} datagrams arrived, but {} + {} + {} are counted",
                    sink.datagrams_in, node.actor.datagrams, sink.datagrams_dropped, sink.wrong_keys
                ));
            }
            let (mut lost, mut behind) = (0, 0);
            for (number, endpoint) in self.endpoints.iter().enumerate() {
                let Some(peer) = self.plan.endpoints[number].peer else { continue };
                if endpoint.transport != Transport::Uc || self.endpoints[peer].node != index {
                    continue;
                }
                lost += (endpoint.outbox.len() - endpoint.delivered) as u64;
                let sender = self.world.nodes[endpoint.node].device.query_qp(endpoint.qpn);
                let receiver = node.device.query_qp(self.endpoints[peer].qpn);
                if let Some((sender, receiver)) = sender.zip(receiver) {
                    behind += u64::from(sender.next_psn.since(receiver.expected_psn).max(0).unsigned_abs());
                }
            }
            if lost > stats.packets_missing + stats.messages_dropped + behind {
                return Err(format!(
                    "dev {index}: {lost} messages were lost, but {} packets and {} messages are counted",
                    stats.packets_missing, stats.messages_dropped
                ));
            }
        }
        Ok(())
    }

    /// Checks that every shared receive has completed, is queued, or is in use.
    fn check_shared(&mut self) -> Result<(), String> {
        for (index, node) in self.world.nodes.iter().enumerate() {
            let waiting = node.device.query_srq(node.actor.srq).map_or(0, |status| status.request_count);
            let sharing = |(number, endpoint): &(usize, &Endpoint)| {
                endpoint.node == index && self.plan.endpoints[*number].has_srq
            };
            let in_use: usize = (self.endpoints.iter().enumerate().filter(sharing))
                .filter_map(|(_, endpoint)| node.device.query_qp(endpoint.qpn))
                .map(|status| status.recv_queue_len)
                .sum();
            if node.actor.shared.len() != waiting + in_use {
                return Err(format!(
                    "dev {index}: of {} shared receives, {waiting} are posted and {in_use} are in use",
                    node.actor.shared.len()
                ));
            }
        }
        Ok(())
    }

    /// Destroys all objects, and checks that no resources remain.
    fn check_leaks(&mut self) -> Result<(), String> {
        for index in 0..self.endpoints.len() {
            let Endpoint { node, qpn, .. } = self.endpoints[index];
            let device = &mut self.world.nodes[node].device;
            if !device.destroy_qp(qpn) {
                return Err(format!("endpoint {index}: the queue pair does not exist"));
            }
            if let Some(window) = self.endpoints[index].window.take() {
                device.destroy_window(window.key).map_err(|error| format!("endpoint {index}: {error}"))?;
            }
        }
        for (index, node) in self.world.nodes.iter_mut().enumerate() {
            node.device.destroy_srq(node.actor.srq).map_err(|error| format!("dev {index}: {error}"))?;
            for key in std::mem::take(&mut node.keys) {
                node.device.deregister(key).map_err(|error| format!("dev {index}: {error}"))?;
            }
            while node.device.poll_queue_event().is_some() {}
            let resource_counts = node.device.resource_counts();
            if resource_counts != ResourceCounts::default() {
                return Err(format!("dev {index} still has {resource_counts}"));
            }
        }
        Ok(())
    }
}

impl Message {
    fn consumes_receive(&self) -> bool {
        matches!(
            self.operation,
            SendOperation::Send
                | SendOperation::SendWithImm(_)
                | SendOperation::SendInvalidate(_)
                | SendOperation::WriteWithImm(..)
        )
    }
}

fn received(
    immediate: Option<u32>,
    invalidated: Option<u32>,
    source: Option<adverb_proto::types::Qpn>,
) -> CompletedOperation {
    CompletedOperation::Recv { immediate, invalidated, source, has_grh: source.is_some() }
}
