//! The model of one direction of a connection: the expected result of each request.

use adverb_proto::Time;
use adverb_proto::memory::HeapMemory;
use adverb_proto::types::{CompletedOperation, SendOperation, Status, Success};

use crate::area::Area;
use crate::scenario::Action;
use crate::scenario_run::ScenarioNode;

/// One direction of a connection: requests of one side, executed in the other side's memory.
#[derive(Debug)]
pub(crate) struct Direction {
    /// The requester's memory with the bytes to send, which never change.
    pub(crate) source: Area,
    /// The requester's memory for responses, each in its own range.
    pub(crate) response: Area,
    /// The responder's memory that requests write and read.
    pub(crate) target: Area,
    /// The responder's memory for messages, each in its own range.
    pub(crate) receives: Area,
    /// The responder's memory that is read-only, write-only, of another domain, or invalidated.
    pub(crate) read_only: Area,
    pub(crate) write_only: Area,
    pub(crate) other_domain: Area,
    pub(crate) invalidated: Area,
    /// The responder's memory that is deregistered during the run, and its content at that time.
    pub(crate) revocable: Area,
    pub(crate) revoked: Option<Vec<u8>>,
    pub(crate) revocation_planned: bool,
    /// The key that the last SEND with invalidate invalidates.
    pub(crate) invalidated_key: Option<u32>,
    /// The content of the target if all posted requests succeed.
    pub(crate) image: Vec<u8>,
    /// Every change of the target, in order.
    pub(crate) changes: Vec<Change>,
    /// The ranges of READs since the last fence. Overlapping requests must be fenced.
    pub(crate) reads: Vec<(u32, u32)>,
    pub(crate) posted: Vec<Posted>,
    /// The number of completed requests.
    pub(crate) done: usize,
    /// The first request that failed.
    pub(crate) failed: Option<usize>,
    /// The first request that must fail.
    pub(crate) must_fail_from: Option<usize>,
    /// The length of the response area's used part.
    pub(crate) response_len: u32,
    /// The receives of the other side, in order.
    pub(crate) slots: Vec<Slot>,
    pub(crate) slots_done: usize,
    /// The length of the receive area's used part.
    pub(crate) receives_len: u32,
    /// The number of requests that consume receives.
    pub(crate) consumed: usize,
    /// The first PSN after each message, relative to the first PSN.
    pub(crate) message_ends: Vec<u32>,
    /// The completion times of requests.
    pub(crate) ended: std::collections::HashMap<usize, Time>,
    /// Whether the other side was ever without a receive.
    pub(crate) starved: bool,
}

/// A change of the target.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) request: usize,
    pub(crate) offset: u32,
    pub(crate) bytes: Vec<u8>,
}

/// A posted request.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) action: Action,
    pub(crate) operation: SendOperation,
    pub(crate) signaled: bool,
    pub(crate) length: u32,
    pub(crate) at: Time,
    /// The expected error status, if the request must fail.
    pub(crate) must_fail: Option<Status>,
    /// The receive that the request consumes.
    pub(crate) consumes: Option<usize>,
    /// The bytes that the request sends; empty if it has a response with data.
    pub(crate) payload: Vec<u8>,
    /// The ranges of the response in the response area, and the expected content, if known.
    pub(crate) response: Vec<(u32, u32)>,
    pub(crate) expected_response: Option<Vec<u8>>,
    /// The range of the target that the request changes.
    pub(crate) change: Option<(u32, u32)>,
    /// The shared word of an atomic.
    pub(crate) shared: Option<usize>,
    pub(crate) outcome: Option<Status>,
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The ranges in the receive area.
    pub(crate) places: Vec<(u32, u32)>,
    pub(crate) outcome: Option<Result<u32, Status>>,
}

impl Direction {
    /// Checks the range of the target that `request` wrote, except for bytes that later requests may have changed.
    pub(crate) fn check_written(&self, request: usize, memory: &HeapMemory) -> Result<(), String> {
        let Some((offset, length)) = self.posted[request].change else { return Ok(()) };
        let bytes = &memory.bytes(self.target.storage)[offset as usize..(offset + length) as usize];
        let first_later = self.changes.partition_point(|change| change.request <= request);
        let change = self.changes[..first_later].iter().rev().find(|change| change.request == request);
        let Some(change) = change else { return Ok(()) };
        for (index, (byte, expected)) in bytes.iter().zip(&change.bytes).enumerate() {
            let at = offset + index as u32;
            let covers = |later: &Change| later.offset <= at && at < later.offset + later.bytes.len() as u32;
            if byte != expected && !self.changes[first_later..].iter().any(covers) {
                return Err(format!(
                    "byte {index} in the peer's memory is {byte:#04x}, expected {expected:#04x}"
                ));
            }
        }
        Ok(())
    }

    /// Checks the response of a READ or an atomic.
    pub(crate) fn check_response(&self, request: usize, memory: &HeapMemory) -> Result<(), String> {
        let posted = &self.posted[request];
        let Some(expected) = &posted.expected_response else { return Ok(()) };
        let found = concat_ranges(memory.bytes(self.response.storage), &posted.response);
        match expected.iter().zip(&found).position(|(a, b)| a != b) {
            Some(index) => Err(format!(
                "byte {index} of the response is {:#04x}, expected {:#04x}",
                found[index], expected[index]
            )),
            None if expected.len() != found.len() => Err("the response has a wrong length".to_owned()),
            None => Ok(()),
        }
    }

    /// Checks the content of a completed receive.
    pub(crate) fn check_received(
        &self,
        slot: usize,
        success: &Success,
        memory: &HeapMemory,
    ) -> Result<(), String> {
        let request = self.posted.iter().position(|posted| posted.consumes == Some(slot));
        let Some(request) = request else { return Err("no message was sent for this receive".to_owned()) };
        let posted = &self.posted[request];
        if success.length != posted.length {
            return Err(format!("{} bytes received, {} bytes sent", success.length, posted.length));
        }
        let expected = match posted.operation {
            SendOperation::Send => received(None, None),
            SendOperation::SendWithImm(immediate) => received(Some(immediate), None),
            SendOperation::SendInvalidate(key) => received(None, Some(key)),
            SendOperation::WriteWithImm(_, immediate) => CompletedOperation::RecvWrite { immediate },
            other => return Err(format!("{other:?} does not consume a receive")),
        };
        if success.operation != expected {
            return Err(format!("received {:?}, expected {expected:?}", success.operation));
        }
        if let SendOperation::WriteWithImm(..) = posted.operation {
            return self.check_written(request, memory);
        }
        let found = concat_ranges(memory.bytes(self.receives.storage), &self.slots[slot].places);
        let found = &found[..posted.payload.len()];
        match found.iter().zip(&posted.payload).position(|(a, b)| a != b) {
            Some(index) => {
                Err(format!("byte {index} is {:#04x}, expected {:#04x}", found[index], posted.payload[index]))
            }
            None => Ok(()),
        }
    }

    /// Returns the number of messages that end at or before the PSN `psn_offset`, relative to the first PSN.
    pub(crate) fn messages_before(&self, psn_offset: u32) -> usize {
        self.message_ends.partition_point(|end| *end <= psn_offset)
    }

    /// Checks the bytes of all areas at the end of the run, as far as their content is known.
    pub(crate) fn check_memory(&self, nodes: &[ScenarioNode], alive: bool) -> Result<(), String> {
        let bytes = |area: &Area| nodes[area.device].memory.bytes(area.storage);
        let check_unchanged = |name: &str, area: &Area| check_unchanged(name, bytes(area), &area.initial);
        check_unchanged("source", &self.source)?;
        check_unchanged("read-only area", &self.read_only)?;
        check_unchanged("write-only area", &self.write_only)?;
        check_unchanged("other domain's area", &self.other_domain)?;
        check_unchanged("invalidated area", &self.invalidated)?;
        if let Some(revoked) = &self.revoked
            && bytes(&self.revocable) != revoked.as_slice()
        {
            return Err("memory was written after its deregistration".to_owned());
        }

        let mut expected = self.response.initial.clone();
        let mut known = vec![true; expected.len()];
        for posted in &self.posted {
            let sure = posted.outcome == Some(Status::Success) && posted.expected_response.is_some();
            let mut expected_response = posted.expected_response.as_deref().unwrap_or_default();
            for (offset, length) in &posted.response {
                let range = *offset as usize..(*offset + *length) as usize;
                if sure {
                    let (part, remainder) = expected_response.split_at(*length as usize);
                    expected_response = remainder;
                    expected[range].copy_from_slice(part);
                } else {
                    known[range].fill(false);
                }
            }
        }
        check_where_known("response area", bytes(&self.response), &expected, &known)?;

        let mut expected = self.receives.initial.clone();
        let mut known = vec![true; expected.len()];
        for (index, slot) in self.slots.iter().enumerate() {
            let posted = self.posted.iter().find(|posted| posted.consumes == Some(index));
            let payload = match (slot.outcome, posted) {
                (Some(Ok(_)), Some(posted))
                    if !matches!(posted.operation, SendOperation::WriteWithImm(..)) =>
                {
                    Some(posted.payload.as_slice())
                }
                (Some(Ok(_)), _) => Some(&[][..]),
                (_, None) => Some(&[][..]),
                _ => None,
            };
            let mut rest = payload.unwrap_or_default();
            for (offset, length) in &slot.places {
                let range = *offset as usize..(*offset + *length) as usize;
                match payload {
                    Some(_) => {
                        let (part, remainder) = rest.split_at(rest.len().min(*length as usize));
                        rest = remainder;
                        expected[range.start..range.start + part.len()].copy_from_slice(part);
                    }
                    None => known[range].fill(false),
                }
            }
        }
        check_where_known("receive area", bytes(&self.receives), &expected, &known)?;
        self.check_target(bytes(&self.target), alive)
    }

    /// Checks that the target contains the data of all successful requests. Later requests may or may not have been
    /// executed.
    fn check_target(&self, found: &[u8], alive: bool) -> Result<(), String> {
        let sure_count = if alive { self.posted.len() } else { self.failed.unwrap_or(self.done) };
        let mut expected = self.target.initial.clone();
        let mut maybe: Vec<&Change> = Vec::new();
        for change in &self.changes {
            if change.request < sure_count {
                let start = change.offset as usize;
                expected[start..start + change.bytes.len()].copy_from_slice(&change.bytes);
            } else if self.must_fail_from.is_none_or(|must_fail_from| change.request < must_fail_from) {
                maybe.push(change);
            }
        }
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let candidate = |change: &&&Change| {
                let within = index.checked_sub(change.offset as usize);
                within.and_then(|within| change.bytes.get(within)) == Some(found)
            };
            if found != expected && !maybe.iter().any(|change| candidate(&change)) {
                return Err(format!("byte {index} of the target is {found:#04x}, expected {expected:#04x}"));
            }
        }
        Ok(())
    }
}

fn received(immediate: Option<u32>, invalidated: Option<u32>) -> CompletedOperation {
    CompletedOperation::Recv { immediate, invalidated, source: None, has_grh: false }
}

/// Returns the concatenated bytes of several ranges.
pub(crate) fn concat_ranges(bytes: &[u8], places: &[(u32, u32)]) -> Vec<u8> {
    let piece = |(offset, length): &(u32, u32)| &bytes[*offset as usize..(*offset + *length) as usize];
    places.iter().map(piece).collect::<Vec<_>>().concat()
}

fn check_unchanged(name: &str, found: &[u8], expected: &[u8]) -> Result<(), String> {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        Some(index) => Err(format!("byte {index} of the {name} has changed")),
        None => Ok(()),
    }
}

fn check_where_known(name: &str, found: &[u8], expected: &[u8], known: &[bool]) -> Result<(), String> {
    let differs = |index: &usize| known[*index] && found[*index] != expected[*index];
    match (0..found.len()).find(differs) {
        Some(index) => Err(format!(
            "byte {index} of the {name} is {:#04x}, expected {:#04x}",
            found[index], expected[index]
        )),
        None => Ok(()),
    }
}
