//! What is checked while letters are under way, and at the end.

use adverb_proto::types::{CompletedOperation, Completion, SendOperation, Status, Success, Transport};
use adverb_proto::{Notice, ResourceCounts};
use adverb_wire::{GRH_LEN, IpHeader};

use super::office::{Letter, Office, Phase, Station, Task, To};
use super::station::RECEIVE;

impl Office {
    /// Looks at everything that a device has to say.
    pub(super) fn observe(&mut self, node: usize) {
        while let Some(notice) = self.nodes[node].device.poll_notice() {
            self.heed(node, notice);
        }
        let cq = self.nodes[node].cq;
        while let Some(completion) = self.nodes[node].device.poll_completion(cq) {
            self.complete(node, &completion);
        }
        // Whoever wanted to be told of few receives was told, or there aren't few.
        let srq = self.nodes[node].srq;
        let left = self.nodes[node].device.query_srq(srq).map_or(0, |status| status.requests);
        if let Some(limit) = self.nodes[node].armed
            && left < limit as usize
        {
            self.violate(format!(
                "dev {node}: {left} shared receives are left, and nobody was told of {limit}"
            ));
        }
    }

    fn heed(&mut self, node: usize, notice: Notice) {
        match notice {
            Notice::SrqLimit(_) => match self.nodes[node].armed.take() {
                Some(_) => {}
                None => self.violate(format!("dev {node}: a limit was told that nobody had asked for")),
            },
            Notice::RequestError(qpn) | Notice::AccessError(qpn) | Notice::Fatal(qpn) => {
                let Some(station) = self.nodes[node].stations.get(&qpn).copied() else { return };
                if self.stations[station].transport != Transport::Rc {
                    return self.violate(format!("station {station}: {notice:?} without a reason"));
                }
                self.fail(station);
            }
            Notice::LastReceiveReached(qpn) => {
                let station = self.nodes[node].stations.get(&qpn).copied();
                if station.is_none_or(|station| !self.plan.stations[station].shared) {
                    self.violate(format!("dev {node}: {notice:?} without a shared queue"));
                }
            }
            Notice::CqOverflow(_) => self.violate(format!("dev {node}: a completion queue overflowed")),
            _ => {}
        }
    }

    /// A reliable connection has failed, and is connected anew.
    fn fail(&mut self, index: usize) {
        let peer = self.plan.stations[index].peer;
        let known = self.stations[index].failed || peer.is_some_and(|peer| self.stations[peer].failed);
        self.stations[index].failed = true;
        if !known && !self.stations[index].closed {
            self.failures += 1;
            let at = self.now + self.long;
            let epoch = self.stations[index].epoch;
            self.plan_task(at, Task::Renew { station: index, epoch });
        }
    }

    fn complete(&mut self, node: usize, completion: &Completion) {
        let outcome = completion.outcome.map_err(|failure| failure.status);
        let Some(station) = self.nodes[node].stations.get(&completion.qpn).copied() else {
            return self.violate(format!("a completion names queue pair {}", completion.qpn));
        };
        let result = if completion.wr_id & RECEIVE != 0 {
            let number = (completion.wr_id & !RECEIVE) as usize;
            self.receive(node, station, number, outcome).map_err(|what| format!("receive {number}: {what}"))
        } else {
            let number = completion.wr_id as usize;
            self.sent(station, number, outcome).map_err(|what| {
                let operation = self.letters.get(number).map(|letter| letter.operation);
                format!("letter {number} {operation:?}: {what}")
            })
        };
        if let Err(what) = result {
            self.violate(format!("station {station} {what}"));
        }
        if !self.stations[station].closed {
            self.plan_task(self.now, Task::Go { station });
        }
    }

    /// A letter's request completes: each once, in order, and on reliable connections not before it arrived.
    fn sent(&mut self, index: usize, number: usize, outcome: Result<Success, Status>) -> Result<(), String> {
        let letter = self.letters.get_mut(number).ok_or("was never posted")?;
        if letter.from != index || letter.outcome.is_some() {
            return Err("completed again, or elsewhere".to_owned());
        }
        letter.outcome = Some(outcome.map_or_else(|status| status, |_| Status::Success));
        let current = letter.epoch == self.stations[index].epoch;
        if current {
            if self.stations[index].completed.is_some_and(|last| last >= number) {
                return Err("completed out of order".to_owned());
            }
            self.stations[index].completed = Some(number);
        }
        let letter = &self.letters[number];
        let reliable = self.stations[index].transport == Transport::Rc;
        match outcome {
            Ok(_) => {
                if reliable && letter.forbidden {
                    return Err("succeeded, but must be refused".to_owned());
                }
                if reliable && letter.consumes_receive() && letter.delivered != 1 {
                    return Err("succeeded before it arrived".to_owned());
                }
                if reliable {
                    self.check_target(letter, true)?;
                }
                self.window_changed(index, number, current);
                Ok(())
            }
            Err(status) if !reliable => Err(format!("failed: {status}")),
            Err(status) => {
                let peer = self.plan.stations[index].peer.unwrap_or(index);
                let faults = self.stations[index].faults + self.stations[peer].faults;
                let excused = match status {
                    Status::Flushed => self.stations[index].failed || !current,
                    Status::RemoteAccess => letter.forbidden || letter.through_window,
                    Status::RetryExceeded => faults > 0 || self.stations[peer].failed,
                    _ => false,
                };
                if current {
                    self.fail(index);
                }
                if excused { Ok(()) } else { Err(format!("failed without a reason: {status}")) }
            }
        }
    }

    /// A station's window was bound or invalidated.
    fn window_changed(&mut self, index: usize, number: usize, current: bool) {
        let (operation, node) = (self.letters[number].operation, self.stations[index].node);
        let Some(window) = &mut self.stations[index].window else { return };
        match operation {
            SendOperation::BindWindow(_) if current && window.phase == Phase::Binding => {
                window.phase = Phase::Bound;
            }
            SendOperation::LocalInvalidate(_) if current && window.phase == Phase::Invalidating => {
                window.phase = Phase::Free;
                window.snapshot = Some(self.nodes[node].memory.bytes(window.backing).to_vec());
            }
            _ => {}
        }
    }

    /// A receive completes: each once, in order, and with a letter that was written to this station.
    fn receive(
        &mut self,
        node: usize,
        index: usize,
        number: usize,
        outcome: Result<Success, Status>,
    ) -> Result<(), String> {
        let slot = self.slots.get_mut(number).ok_or("was never posted")?;
        if slot.done || slot.node != node {
            return Err("completed again, or elsewhere".to_owned());
        }
        slot.done = true;
        match slot.station {
            Some(owner) => {
                // Those of earlier epochs completed before their end, and are looked at only now.
                if owner != index {
                    return Err("is another station's".to_owned());
                }
                if self.stations[index].receives.pop_front() != Some(number) {
                    return Err("completed out of order".to_owned());
                }
                let epoch = self.stations[index].epoch;
                let at = self.now + self.plan.stations[index].recv_delay;
                self.plan_task(at, Task::Receive { station: index, epoch });
            }
            None => {
                if !self.plan.stations[index].shared {
                    return Err("isn't shared with this station".to_owned());
                }
                // They are taken in order, and each queue pair has one in use at most.
                self.nodes[node].shared.remove(&number);
                let older = self.nodes[node].shared.range(..number).count();
                let sharing = self.plan.stations.iter().filter(|s| s.device == node && s.shared).count();
                if older > 2 * sharing {
                    return Err(format!("was used before {older} older ones"));
                }
                let at = self.now + self.plan.stations[index].recv_delay;
                self.plan_task(at, Task::ReceiveShared { node });
            }
        }
        match outcome {
            Ok(success) => self.read(node, index, number, &success),
            Err(Status::Flushed) if self.stations[index].failed => Ok(()),
            Err(status) => Err(format!("failed: {status}")),
        }
    }

    /// Reads a letter: whole, not altered, and for whoever got it.
    fn read(&mut self, node: usize, index: usize, number: usize, success: &Success) -> Result<(), String> {
        let bytes = self.nodes[node].memory.bytes(self.slots[number].backing);
        let datagram = self.stations[index].transport == Transport::Ud;
        let start = if datagram { GRH_LEN } else { 0 };
        let (letter, immediate) = match success.operation {
            CompletedOperation::RecvWrite { immediate } => (immediate as usize, Some(immediate)),
            CompletedOperation::Recv { immediate, .. } => {
                let head = bytes.get(start..start + 8).and_then(|head| head.first_chunk::<8>());
                (head.map_or(usize::MAX, |head| u64::from_le_bytes(*head) as usize), immediate)
            }
            other => return Err(format!("says {other:?}")),
        };
        let found = self.letters.get(letter).ok_or("holds what nobody wrote")?;
        let Letter { from, to, epoch, forbidden, source_qpn, operation, .. } = *found;
        let for_us = to == To::Station(index) || (to == To::Group && datagram);
        if forbidden || !for_us {
            return Err(format!("holds letter {letter}, which isn't for it"));
        }
        if success.length as usize != start + found.bytes.len() {
            return Err(format!(
                "{} bytes came of letter {letter} with {}",
                success.length,
                found.bytes.len()
            ));
        }
        let expected = match operation {
            SendOperation::WriteImmediate(_, immediate) => CompletedOperation::RecvWrite { immediate },
            SendOperation::SendInvalidate(key) => received(None, Some(key), None),
            SendOperation::SendImmediate(immediate) => {
                received(Some(immediate), None, datagram.then_some(source_qpn))
            }
            _ => received(None, None, datagram.then_some(source_qpn)),
        };
        if success.operation != expected {
            return Err(format!("{:?} came, and {expected:?} was sent ({immediate:?})", success.operation));
        }
        if let SendOperation::WriteImmediate(..) = operation {
            self.check_target(found, true)?;
        } else if bytes[start..start + found.bytes.len()] != found.bytes[..] {
            return Err(format!("letter {letter} was altered"));
        }
        if datagram {
            self.check_route(node, from, to, bytes)?;
        }
        let copies = self.fabric.counts.duplicated;
        let found = &mut self.letters[letter];
        found.delivered += 1;
        let members =
            self.stations.iter().filter(|station| station.transport == Transport::Ud).count() as u64;
        let most = match (datagram, to) {
            (false, _) => 1,
            (true, To::Group) => members * (1 + copies),
            (true, _) => 1 + copies,
        };
        if found.delivered > most {
            return Err(format!("letter {letter} came again"));
        }
        if datagram {
            self.nodes[node].datagrams += 1;
            return Ok(());
        }
        if epoch != self.stations[from].epoch {
            return Err(format!("letter {letter} is from an earlier connection"));
        }
        self.arrive(index, from, letter)?;
        if let SendOperation::SendInvalidate(_) = operation {
            self.close_window(index);
        }
        Ok(())
    }

    /// On a connection letters come in order, and on a reliable one all of them.
    fn arrive(&mut self, index: usize, from: usize, letter: usize) -> Result<(), String> {
        let Station { outbox, arrived, delivered, transport, .. } = &mut self.stations[from];
        let place = outbox[*arrived..].iter().position(|other| *other == letter);
        let place = place.ok_or_else(|| format!("letter {letter} came out of order at {index}"))?;
        if place > 0 && *transport == Transport::Rc {
            return Err(format!("letter {letter} came, and {place} before it didn't"));
        }
        *arrived += place + 1;
        *delivered += 1;
        Ok(())
    }

    /// The header of the IP packet that a datagram came in.
    fn check_route(&self, node: usize, from: usize, to: To, bytes: &[u8]) -> Result<(), String> {
        let grh = bytes.first_chunk::<GRH_LEN>().ok_or("has no room for a route header")?;
        let ip = IpHeader::from_grh(grh).ok_or("has no route header")?;
        let destination = if to == To::Group { self.group() } else { self.nodes[node].address };
        let source = self.nodes[self.stations[from].node].address;
        if (ip.source(), ip.destination()) != (source, destination) {
            return Err(format!("came from {} to {}, says its route header", ip.source(), ip.destination()));
        }
        Ok(())
    }

    /// What a WRITE has left in memory of its own: all of it if it has arrived, and nothing but it in any case.
    fn check_target(&self, letter: &Letter, arrived: bool) -> Result<(), String> {
        let Some((node, backing, initial)) = &letter.target else { return Ok(()) };
        let found = self.nodes[*node].memory.bytes(*backing);
        for (index, byte) in found.iter().enumerate() {
            let written = letter.bytes.get(index);
            let right = match written {
                Some(written) if arrived => byte == written,
                Some(written) => byte == written || *byte == initial[index],
                None => *byte == initial[index],
            };
            if !right {
                return Err(format!("byte {index} of its target is {byte:#04x}"));
            }
        }
        Ok(())
    }

    /// The end of a run: everything is done, nothing else was touched, losses are counted, and nothing is left.
    pub(super) fn finish(&mut self) {
        for check in [
            Office::check_requests,
            Office::check_targets,
            Office::check_windows,
            Office::check_losses,
            Office::check_shared,
            Office::check_leaks,
        ] {
            if self.log.violation.is_some() {
                return;
            }
            if let Err(what) = check(self) {
                self.violate(what);
            }
        }
    }

    fn check_requests(&mut self) -> Result<(), String> {
        for (index, station) in self.stations.iter().enumerate() {
            let steps = self.plan.stations[index].steps.len();
            if station.step < steps {
                return Err(format!("station {index} is stuck at step {} of {steps}", station.step));
            }
        }
        for (number, letter) in self.letters.iter().enumerate() {
            let station = &self.stations[letter.from];
            if letter.epoch == station.epoch && letter.outcome.is_none() {
                return Err(format!("letter {number} of station {} never completed", letter.from));
            }
        }
        Ok(())
    }

    fn check_targets(&mut self) -> Result<(), String> {
        for (number, letter) in self.letters.iter().enumerate() {
            let arrived = letter.outcome == Some(Status::Success)
                && self.stations[letter.from].transport == Transport::Rc;
            self.check_target(letter, arrived).map_err(|what| format!("letter {number}: {what}"))?;
        }
        Ok(())
    }

    /// Memory around windows, and in them: nothing but what was written through them while they were open.
    fn check_windows(&mut self) -> Result<(), String> {
        for (index, station) in self.stations.iter().enumerate() {
            let Some(window) = &station.window else { continue };
            let found = self.nodes[station.node].memory.bytes(window.backing);
            if window.phase == Phase::Free
                && window.snapshot.as_ref().is_some_and(|snapshot| snapshot != found)
            {
                return Err(format!("station {index}: memory was written after its window was invalidated"));
            }
            let mut allowed = vec![None::<Vec<u8>>; found.len()];
            for letter in window.writers.iter().map(|number| &self.letters[*number]) {
                let SendOperation::Write(remote) = letter.operation else { continue };
                let start = (remote.addr - window.addr) as usize;
                for (offset, byte) in letter.bytes.iter().enumerate() {
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
                    "station {index}: byte {at} at its window was written by nobody who may"
                ));
            }
        }
        Ok(())
    }

    /// Every datagram that came was delivered or is counted as dropped; and what unreliable connections lost is.
    fn check_losses(&mut self) -> Result<(), String> {
        for (index, node) in self.nodes.iter().enumerate() {
            let (stats, watch) = (node.device.statistics(), node.device.sink());
            let accounted = node.datagrams + watch.datagrams_dropped + watch.wrong_keys;
            if watch.datagrams_in != accounted || stats.qkey_violations != watch.wrong_keys {
                return Err(format!(
                    "dev {index}: {} datagrams came, and {} + {} + {} are accounted for",
                    watch.datagrams_in, node.datagrams, watch.datagrams_dropped, watch.wrong_keys
                ));
            }
            let (mut lost, mut behind) = (0, 0);
            for (number, station) in self.stations.iter().enumerate() {
                let Some(peer) = self.plan.stations[number].peer else { continue };
                if station.transport != Transport::Uc || self.stations[peer].node != index {
                    continue;
                }
                lost += (station.outbox.len() - station.delivered) as u64;
                let sender = self.nodes[station.node].device.query_qp(station.qpn);
                let receiver = node.device.query_qp(self.stations[peer].qpn);
                if let Some((sender, receiver)) = sender.zip(receiver) {
                    behind += u64::from(sender.next_psn.since(receiver.expected_psn).max(0).unsigned_abs());
                }
            }
            if lost > stats.packets_missing + stats.messages_dropped + behind {
                return Err(format!(
                    "dev {index}: {lost} letters are lost, and {} packets and {} messages are counted",
                    stats.packets_missing, stats.messages_dropped
                ));
            }
        }
        Ok(())
    }

    /// Every shared receive has completed, waits, or is in use.
    fn check_shared(&mut self) -> Result<(), String> {
        for (index, node) in self.nodes.iter().enumerate() {
            let waiting = node.device.query_srq(node.srq).map_or(0, |status| status.requests);
            let sharing = |(number, station): &(usize, &Station)| {
                station.node == index && self.plan.stations[*number].shared
            };
            let in_use: usize = (self.stations.iter().enumerate().filter(sharing))
                .filter_map(|(_, station)| node.device.query_qp(station.qpn))
                .map(|status| status.recv_queue)
                .sum();
            if node.shared.len() != waiting + in_use {
                return Err(format!(
                    "dev {index}: of {} shared receives {waiting} wait and {in_use} are in use",
                    node.shared.len()
                ));
            }
        }
        Ok(())
    }

    /// When all is given back, nothing is left.
    fn check_leaks(&mut self) -> Result<(), String> {
        for index in 0..self.stations.len() {
            let Station { node, qpn, .. } = self.stations[index];
            let device = &mut self.nodes[node].device;
            if !device.destroy_qp(qpn) {
                return Err(format!("station {index}: its queue pair is gone"));
            }
            if let Some(window) = self.stations[index].window.take() {
                device.destroy_window(window.key).map_err(|error| format!("station {index}: {error}"))?;
            }
        }
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.device.destroy_srq(node.srq).map_err(|error| format!("dev {index}: {error}"))?;
            for key in std::mem::take(&mut node.keys) {
                node.device.deregister(key).map_err(|error| format!("dev {index}: {error}"))?;
            }
            while node.device.poll_notice().is_some() {}
            let resource_counts = node.device.resource_counts();
            if resource_counts != ResourceCounts::default() {
                return Err(format!("dev {index} still has {resource_counts}"));
            }
        }
        Ok(())
    }
}

impl Letter {
    fn consumes_receive(&self) -> bool {
        matches!(
            self.operation,
            SendOperation::Send
                | SendOperation::SendImmediate(_)
                | SendOperation::SendInvalidate(_)
                | SendOperation::WriteImmediate(..)
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
