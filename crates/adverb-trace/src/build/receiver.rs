//! The messages that a queue pair receives, and the sequence numbers that its responses acknowledge.

use adverb_proto::types::Psn;
use adverb_wire::{Header, Operation, Rc, Send, Uc, Write};

use crate::model::{PacketId, PsnRange};

/// The responder of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The next sequence number of the peer's requests.
    expected: Option<Psn>,
    /// The value of `expected` before the last packet.
    expected_before: Option<Psn>,
    /// The packets of the current message that have been received.
    message: Vec<(Psn, PacketId)>,
    /// The message before the last packet, if that packet did not continue it.
    message_before: Vec<(Psn, PacketId)>,
    /// The last packet that was received.
    last_packet: Option<PacketId>,
    /// The first sequence number that no response has acknowledged.
    unacked: Option<Psn>,
    /// The sequence number after the newest READ or atomic response.
    after_responses: Option<Psn>,
}

/// The place of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The packet begins a message, or is one.
    Begin,
    /// The packet continues a message.
    Continue,
    /// The packet is a READ, an atomic, an ATOMIC WRITE or a FLUSH: it is no part of a message.
    Apart,
}

impl Receiver {
    /// Sets the first sequence number of the peer's requests.
    pub(super) fn start(&mut self, psn: Psn) {
        self.expected = Some(psn);
        self.unacked = Some(psn);
    }

    /// Records a packet with a request. `span` is the number of its sequence numbers.
    pub(super) fn receive(&mut self, header: &Header, span: u32, id: PacketId) {
        let psn = header.psn;
        self.last_packet = Some(id);
        self.expected_before = self.expected;
        self.message_before.clear();
        let place = place(&header.operation);
        let ahead = self.expected.map_or(0, |expected| psn.since(expected));
        match header.operation {
            // Each datagram is a message, and no sequence is expected.
            Operation::Ud(_) => return self.message = vec![(psn, id)],
            // A gap ends a message of an unreliable connection.
            Operation::Uc(_) if ahead > 0 => self.message.clear(),
            _ if ahead != 0 => return,
            _ => {}
        }
        self.expected = Some(psn + span);
        match place {
            Place::Begin => {
                self.message_before = core::mem::replace(&mut self.message, vec![(psn, id)]);
            }
            Place::Continue if self.message.last().is_some_and(|(last, _)| *last + 1 == psn) => {
                self.message.push((psn, id));
            }
            Place::Continue | Place::Apart => self.message_before = core::mem::take(&mut self.message),
        }
    }

    /// Records that the queue pair dropped a packet.
    pub(super) fn drop(&mut self, id: PacketId, is_reliable: bool) {
        if self.last_packet != Some(id) {
            return;
        }
        if self.message.last().is_some_and(|(_, last)| *last == id) {
            self.message.pop();
        }
        // A packet that is out of sequence does not end a message of a reliable connection.
        if is_reliable {
            self.expected = self.expected_before;
            if self.message.is_empty() {
                self.message = core::mem::take(&mut self.message_before);
            }
        }
    }

    /// Records that the queue pair rejected a packet. If the peer retransmits, it starts with that packet.
    pub(super) fn reject(&mut self, psn: Psn) {
        if self.expected.is_some_and(|expected| expected.since(psn) > 0) {
            self.expected = Some(psn);
        }
        while self.message.last().is_some_and(|(last, _)| last.since(psn) >= 0) {
            self.message.pop();
        }
    }

    /// Returns the packets of the message that the last packet completed.
    pub(super) fn take_message(&mut self) -> Vec<PacketId> {
        let message = core::mem::take(&mut self.message);
        match (message.last(), self.last_packet) {
            (Some((_, last)), Some(packet)) if *last == packet => {
                message.into_iter().map(|(_, id)| id).collect()
            }
            (_, Some(packet)) => vec![packet],
            (_, None) => Vec::new(),
        }
    }

    /// Records a response that acknowledges all packets before `end`. Returns the sequence numbers that it acknowledges
    /// for the first time.
    pub(super) fn acknowledge(&mut self, end: Psn) -> Option<PsnRange> {
        let first = self.unacked.unwrap_or(end - 1);
        if self.unacked.is_some_and(|unacked| end.since(unacked) <= 0) {
            return None;
        }
        self.unacked = Some(end);
        Some(PsnRange { first, last: end - 1 })
    }

    /// Records a READ or atomic response. Returns whether one with this sequence number was sent before.
    pub(super) fn respond(&mut self, psn: Psn) -> bool {
        self.acknowledge(psn + 1);
        let is_repeated = self.after_responses.is_some_and(|after| psn.since(after) < 0);
        if !is_repeated {
            self.after_responses = Some(psn + 1);
        }
        is_repeated
    }
}

fn place(operation: &Operation) -> Place {
    match operation {
        Operation::Rc(Rc::Send(send)) | Operation::Uc(Uc::Send(send)) => match send {
            Send::First | Send::Only(_) => Place::Begin,
            Send::Middle | Send::Last(_) => Place::Continue,
        },
        Operation::Rc(Rc::Write(write)) | Operation::Uc(Uc::Write(write)) => match write {
            Write::First(_) | Write::Only(..) => Place::Begin,
            Write::Middle | Write::Last(_) => Place::Continue,
        },
        Operation::Rc(Rc::SendOnlyInvalidate(_)) | Operation::Ud(_) => Place::Begin,
        Operation::Rc(Rc::SendLastInvalidate(_)) => Place::Continue,
        Operation::Rc(_) | Operation::Cnp => Place::Apart,
    }
}
