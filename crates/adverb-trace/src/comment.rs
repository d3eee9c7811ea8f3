//! One line of text per packet, which names the request that the packet belongs to.

use std::fmt::{self, Write};

use adverb_proto::trace::Queue;
use adverb_wire::{NakCode, Operation, Rc, Syndrome};

use crate::model::{Packet, PacketId, PacketRole, PsnRange, Request, RequestId, Trace};

impl Trace {
    /// Returns the comment of each packet, in the order of [`packets`](Trace::packets).
    ///
    /// A comment names the packet's request, such as `soft0 qp 0x000012 send #3 RDMA WRITE 4096 bytes tag 0x7, packet 2
    /// of 4, retransmission (timeout)`. The two copies of a packet that was recorded at both ends have the same comment,
    /// unless the receiver dropped it, or it is an ACK or a NAK and the ends differ about the sequence numbers that it
    /// acknowledges for the first time. [`write_pcapng`](Trace::write_pcapng) writes these comments, and adds a note
    /// where payload, addresses or ports are unknown.
    ///
    /// ```
    /// # mod adverb { pub use adverb_trace as trace; }
    /// use adverb::trace::Trace;
    ///
    /// fn print_packets(trace: &Trace) {
    ///     for (packet, comment) in trace.packets().iter().zip(trace.packet_comments()) {
    ///         println!("{} {}: {comment}", packet.time, packet.header);
    ///     }
    /// }
    /// # print_packets(&Trace::default());
    /// ```
    pub fn packet_comments(&self) -> impl Iterator<Item = String> {
        let comments = Comments::new(self);
        (0..self.packets.len()).map(move |index| {
            let mut text = String::new();
            comments.write(PacketId(index), &mut text);
            text
        })
    }
}

/// The comments of a trace's packets.
pub(crate) struct Comments<'a> {
    trace: &'a Trace,
    /// The receive request whose message each packet belongs to.
    receives: Vec<Option<RequestId>>,
}

impl<'a> Comments<'a> {
    pub(crate) fn new(trace: &'a Trace) -> Comments<'a> {
        let mut receives = vec![None; trace.packets.len()];
        for (index, request) in trace.requests.iter().enumerate() {
            if request.queue == Queue::Recv {
                for packet in &request.packets {
                    if let Some(receive) = receives.get_mut(packet.0) {
                        *receive = Some(RequestId(index));
                    }
                }
            }
        }
        Comments { trace, receives }
    }

    /// Appends the comment of a packet to `out`.
    pub(crate) fn write(&self, id: PacketId, out: &mut String) {
        // Writing to a string doesn't fail.
        _ = self.try_write(id, out);
    }

    fn try_write(&self, id: PacketId, out: &mut String) -> fmt::Result {
        let Some(packet) = self.trace.packet(id) else { return Ok(()) };
        match &packet.role {
            PacketRole::Request(request) => self.write_request(id, packet, *request, out)?,
            PacketRole::Response(request) => self.write_response(packet, *request, out)?,
            PacketRole::Ack { acked_psns, acked_requests } => {
                match acked_psns {
                    Some(psns) => write!(out, "ACK of psn {psns}")?,
                    None => write!(out, "ACK of psn {}, nothing new", packet.header.psn)?,
                }
                self.write_covered(acked_requests, ": ", out)?;
            }
            PacketRole::Nak { syndrome, acked_psns, acked_requests, nacked_request } => {
                self.write_nak(packet, *syndrome, *nacked_request, out)?;
                if let Some(psns) = acked_psns {
                    write!(out, "; acknowledges psn {psns}")?;
                    self.write_covered(acked_requests, ": ", out)?;
                }
            }
            PacketRole::Cm { message: Some(message) } => write!(out, "CM {message}")?,
            PacketRole::Cm { message: None } => out.write_str("CM message")?,
            PacketRole::Cnp => {
                write!(out, "CNP: a switch marked packets of qp {} as congested", packet.header.dest_qp)?;
            }
        }
        if packet.is_retransmission {
            out.write_str(", retransmission")?;
            if let Some(cause) = packet.retry_cause {
                write!(out, " ({cause})")?;
            }
        }
        match packet.dropped {
            Some(reason) => write!(out, ", dropped: {reason}"),
            None => Ok(()),
        }
    }

    fn write_request(
        &self,
        id: PacketId,
        packet: &Packet,
        request: Option<RequestId>,
        out: &mut String,
    ) -> fmt::Result {
        let Some(request) = request.and_then(|request| self.trace.request(request)) else {
            write!(out, "{} psn {}, requester not recorded", packet.header.opcode(), packet.header.psn)?;
            return match self.receives.get(id.0).copied().flatten().and_then(|id| self.trace.request(id)) {
                Some(receive) => write!(out, ", received by {}", self.label(receive)),
                None => Ok(()),
            };
        };
        write!(out, "{}", self.label(request))?;
        // The sequence numbers of a READ are those of its responses.
        match packet.header.operation {
            Operation::Rc(Rc::ReadRequest(_)) => Ok(()),
            _ => write_place(packet, request, "packet", out),
        }
    }

    fn write_response(&self, packet: &Packet, request: Option<RequestId>, out: &mut String) -> fmt::Result {
        let Some(request) = request.and_then(|request| self.trace.request(request)) else {
            return write!(
                out,
                "{} psn {}, requester not recorded",
                packet.header.opcode(),
                packet.header.psn
            );
        };
        write!(out, "{}", self.label(request))?;
        write_place(packet, request, "response", out)
    }

    fn write_nak(
        &self,
        packet: &Packet,
        syndrome: Syndrome,
        nacked_request: Option<RequestId>,
        out: &mut String,
    ) -> fmt::Result {
        let psn = packet.header.psn;
        let consequence = match syndrome {
            Syndrome::RnrNak(timer) => {
                let wait = timer.duration();
                write!(out, "RNR NAK of psn {psn}: no receive is posted, wait {wait:?}")?;
                "delays"
            }
            Syndrome::Nak(code) => {
                write!(out, "NAK of psn {psn}: {code}")?;
                if code == NakCode::SequenceError { "requests retransmission of" } else { "rejects" }
            }
            Syndrome::Ack(_) | Syndrome::Reserved(_) => {
                write!(out, "NAK of psn {psn}: {syndrome}")?;
                "rejects"
            }
        };
        match nacked_request.and_then(|request| self.trace.request(request)) {
            Some(request) => write!(out, ", {consequence} {}", self.label(request)),
            None => Ok(()),
        }
    }

    /// Appends the requests that an ACK or NAK covers, such as `soft0 qp 0x000012 send #3, #5..#9`.
    fn write_covered(&self, requests: &[RequestId], before: &str, out: &mut String) -> fmt::Result {
        let requests = requests.iter().filter_map(|id| self.trace.request(*id));
        let mut runs: Vec<(&Request, u32)> = Vec::new();
        for request in requests {
            match runs.last_mut() {
                Some((first, last))
                    if last.wrapping_add(1) == request.number_in_queue
                        && are_in_same_queue(first, request) =>
                {
                    *last = request.number_in_queue;
                }
                _ => runs.push((request, request.number_in_queue)),
            }
        }
        let mut queue: Option<&Request> = None;
        for (first, last) in runs {
            match queue {
                Some(queue) if are_in_same_queue(queue, first) => out.write_str(", ")?,
                other => {
                    out.write_str(if other.is_some() { "; " } else { before })?;
                    write!(out, "{} ", QueueName(self.trace, first))?;
                }
            }
            queue = Some(first);
            match last.wrapping_sub(first.number_in_queue) {
                0 => write!(out, "#{last}")?,
                1 => write!(out, "#{}, #{last}", first.number_in_queue)?,
                _ => write!(out, "#{}..#{last}", first.number_in_queue)?,
            }
        }
        Ok(())
    }

    /// Returns the name of a request, with its operation, length and tag.
    pub(crate) fn label(&self, request: &'a Request) -> Label<'a> {
        Label(self.trace, request)
    }
}

/// Appends a packet's place in its request, such as `, packet 2 of 4`.
fn write_place(packet: &Packet, request: &Request, noun: &str, out: &mut String) -> fmt::Result {
    let Some(PsnRange { first, last }) = request.psn_range else { return write!(out, ", {noun}") };
    let count = last.since(first) + 1;
    let number = packet.header.psn.since(first) + 1;
    if (1..=count).contains(&number) {
        write!(out, ", {noun} {number} of {count}")
    } else {
        write!(out, ", {noun}")
    }
}

fn are_in_same_queue(one: &Request, other: &Request) -> bool {
    (one.device, one.qpn, one.queue) == (other.device, other.qpn, other.queue)
}

/// The name of a request's queue, such as `soft0 qp 0x000012 send`.
pub(crate) struct QueueName<'a>(pub(crate) &'a Trace, pub(crate) &'a Request);

impl fmt::Display for QueueName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueueName(trace, request) = self;
        if let Some(device) = trace.device(request.device) {
            write!(f, "{} ", device.name)?;
        }
        let shared = request.posted.and_then(|posted| posted.recv_queue);
        match (request.qpn, shared) {
            (Some(qpn), _) => write!(f, "qp {qpn} ")?,
            (None, Some(queue)) => write!(f, "{queue} ")?,
            (None, None) => {}
        }
        f.write_str(request.queue.name())
    }
}

/// The name of a request, with its operation, length and tag.
pub(crate) struct Label<'a>(&'a Trace, &'a Request);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Label(trace, request) = self;
        write!(f, "{} {}", QueueName(trace, request), ShortLabel(request))
    }
}

/// The number of a request, with its operation, length and tag, but without its queue.
pub(crate) struct ShortLabel<'a>(pub(crate) &'a Request);

impl fmt::Display for ShortLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.0;
        write!(f, "#{}", request.number_in_queue)?;
        match request.posted {
            Some(posted) => {
                let name = request.operation_name();
                write!(f, " {name} {} bytes tag {:#x}", posted.length, posted.tag)
            }
            None => f.write_str(", posted before the recording"),
        }
    }
}
