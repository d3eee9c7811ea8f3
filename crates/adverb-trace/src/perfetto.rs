//! Traces for timeline viewers: the Trace Event Format of Chrome, which Perfetto reads.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};

use adverb_proto::Time;
use adverb_proto::trace::{Queue, RecvQueueId};
use adverb_proto::types::Qpn;

use crate::clock::Clocks;
use crate::comment::{Comments, ShortLabel};
use crate::json_text::{Hex, JsonText, JsonValue, Micros, Text};
use crate::model::{
    CqeState, DeviceId, Direction, Packet, PacketId, PacketRole, PsnRange, Request, Trace, WqeState,
};

impl Trace {
    /// Writes the trace as JSON in the Trace Event Format, which <https://ui.perfetto.dev> and `chrome://tracing`
    /// display as a timeline.
    ///
    /// - Each device is a process.
    /// - Each queue of requests is a track, on which each request is a slice from its post to its completion. Slices in it
    ///   show how long the request was queued and on the wire. After it, a slice shows how long the completion was
    ///   pending, until the application polled it.
    /// - Each queue pair is a track of its packets and of its other events. The name of a packet shows whether it is a
    ///   retransmission or a NAK, and whether it was dropped.
    /// - An arrow connects each packet that was sent with the same packet received, if both devices
    ///   [share a clock](Trace::is_clock_shared).
    ///
    /// The format has a single time axis. The time 0 is the first event of each clock. If the trace has several clocks,
    /// the names of the processes contain the devices' clocks; times of different clocks can't be compared.
    ///
    /// ```
    /// # mod adverb { pub use adverb_trace as trace; }
    /// use adverb::trace::Trace;
    ///
    /// let mut text = Vec::new();
    /// Trace::default().write_perfetto(&mut text)?;
    /// assert!(text.starts_with(br#"{"traceEvents":["#));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if writing to `out` fails.
    pub fn write_perfetto(&self, out: &mut impl Write) -> io::Result<()> {
        let clocks = Clocks::new(self);
        let spans = spans(self, &clocks);
        let mut writer = Writer {
            trace: self,
            clocks,
            spans,
            tracks: HashMap::new(),
            json: JsonText::default(),
            is_first: true,
            out: BufWriter::with_capacity(1 << 16, out),
        };
        writer.out.write_all(b"{\"traceEvents\":[\n")?;
        writer.write_devices()?;
        for (index, request) in self.requests.iter().enumerate() {
            writer.write_request(index, request)?;
        }
        writer.write_packets()?;
        writer.write_other_events()?;
        writer.out.write_all(b"\n]}\n")?;
        writer.out.flush()
    }
}

/// The first and the last time on a clock, in nanoseconds.
#[derive(Clone, Copy)]
struct Span {
    first: u64,
    last: u64,
}

/// Returns the first and the last time on each clock.
fn spans(trace: &Trace, clocks: &Clocks) -> Vec<Span> {
    let mut spans = vec![Span { first: u64::MAX, last: 0 }; clocks.count()];
    let mut add = |device: DeviceId, time: Time| {
        let nanos = trace.host_nanos(device, time);
        if let Some(span) = spans.get_mut(clocks.of(device)) {
            *span = Span { first: span.first.min(nanos), last: span.last.max(nanos) };
        }
    };
    for request in trace.requests() {
        times(request).for_each(|time| add(request.device, time));
    }
    trace.packets().iter().for_each(|packet| add(packet.device, packet.time));
    trace.other_events().iter().for_each(|timed| add(timed.device, timed.time));
    spans
}

/// Returns the known times of a request.
fn times(request: &Request) -> impl Iterator<Item = Time> {
    request.times.steps().into_iter().filter_map(|(_, time)| time)
}

/// A track of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Track {
    Qp(Qpn),
    RecvQueue(RecvQueueId),
}

struct Writer<'a, W: Write> {
    trace: &'a Trace,
    clocks: Clocks,
    spans: Vec<Span>,
    /// The thread id of each track. Ids differ between processes too, because Perfetto identifies threads by id.
    tracks: HashMap<(DeviceId, Track), usize>,
    json: JsonText,
    is_first: bool,
    out: BufWriter<W>,
}

impl<W: Write> Writer<'_, W> {
    /// Writes an event: its phase, name and process, and the fields that `fill` appends.
    fn write_event(
        &mut self,
        phase: &str,
        name: impl JsonValue,
        device: DeviceId,
        fill: impl FnOnce(&mut JsonText),
    ) -> io::Result<()> {
        self.json.begin_object().field("ph", phase).field("name", name).field("pid", process(device));
        fill(&mut self.json);
        self.json.end_object();
        let separator: &[u8] = if self.is_first { b"" } else { b",\n" };
        self.is_first = false;
        let out = &mut self.out;
        self.json.take(|text| {
            out.write_all(separator)?;
            out.write_all(text)
        })
    }

    fn write_devices(&mut self) -> io::Result<()> {
        for (index, device) in self.trace.devices.iter().enumerate() {
            let id = DeviceId(index);
            let mut name = device.name.clone();
            if self.clocks.count() > 1 {
                let others = self.clocks.devices(self.clocks.of(id)).filter(|other| *other != id);
                let others: Vec<&str> =
                    others.filter_map(|other| Some(self.trace.device(other)?.name.as_str())).collect();
                if others.is_empty() {
                    name.push_str(" (own clock)");
                } else {
                    name.push_str(&format!(" (clock shared with {})", others.join(", ")));
                }
            }
            if device.lost_count > 0 {
                name.push_str(&format!(" ({} events lost)", device.lost_count));
            }
            self.write_event("M", "process_name", id, |json| {
                json.key("args").begin_object().field("name", name.as_str()).end_object();
            })?;
            self.write_event("M", "process_sort_index", id, |json| {
                json.key("args").begin_object().field("sort_index", index).end_object();
            })?;
        }
        Ok(())
    }

    /// Returns the thread id of a track. The first call for a track writes its name.
    fn thread_id(&mut self, device: DeviceId, track: Track) -> io::Result<usize> {
        let next = self.trace.devices.len() + self.tracks.len() + 1;
        let thread = *self.tracks.entry((device, track)).or_insert(next);
        if thread == next {
            let name = match track {
                Track::Qp(qpn) => format!("qp {qpn} packets"),
                Track::RecvQueue(queue) => queue.to_string(),
            };
            self.write_event("M", "thread_name", device, |json| {
                json.field("tid", thread);
                json.key("args").begin_object().field("name", name.as_str()).end_object();
            })?;
        }
        Ok(thread)
    }

    /// Returns a time in nanoseconds after the first event of the device's clock.
    fn since_start(&self, device: DeviceId, time: Time) -> u64 {
        let first = self.spans.get(self.clocks.of(device)).map_or(0, |span| span.first);
        self.trace.host_nanos(device, time).saturating_sub(first)
    }

    /// Writes the slices of a request. They are asynchronous, because the requests of a queue overlap. Viewers put
    /// requests whose outermost slices have the same name on one track, so the outermost slice has the queue's name.
    fn write_request(&mut self, index: usize, request: &Request) -> io::Result<()> {
        let device = request.device;
        let Some(start) = times(request).min() else { return Ok(()) };
        let track = match (request.qpn, request.posted.and_then(|posted| posted.recv_queue)) {
            (Some(qpn), _) => Track::Qp(qpn),
            (None, Some(queue)) => Track::RecvQueue(queue),
            (None, None) => return Ok(()),
        };
        let thread = self.thread_id(device, track)?;
        let queue = match track {
            Track::Qp(qpn) => format!("qp {qpn} {}", request.queue.name()),
            Track::RecvQueue(queue) => format!("{queue} {}", request.queue.name()),
        };
        let trace_end = self.spans.get(self.clocks.of(device)).map_or(0, |span| span.last - span.first);
        let start = self.since_start(device, start);
        let since_start = |time: Option<Time>| time.map(|time| self.since_start(device, time));
        let completed = since_start(request.times.completed).unwrap_or(trace_end).max(start);
        let polled = match (request.times.completed, request.cqe_state()) {
            (Some(_), Some(CqeState::Pending)) => Some(trace_end.max(completed)),
            (_, Some(CqeState::Polled | CqeState::Processed)) => {
                since_start(request.times.polled).map(|polled| polled.max(completed))
            }
            _ => None,
        };
        let first_packet = since_start(request.times.first_packet).map(|time| time.clamp(start, completed));
        let moving_until = match request.queue {
            Queue::Send => since_start(request.times.acknowledged),
            Queue::Recv => since_start(request.times.last_packet),
        };
        let doorbell = since_start(request.times.doorbell);
        let mut slices = Slices { writer: self, device, thread, id: index };
        slices.begin(&*queue, start)?;
        let state = match request.wqe_state() {
            WqeState::Error => ", failed",
            WqeState::Completed => "",
            WqeState::Posted | WqeState::Processing => ", not completed",
        };
        slices.begin_with_args(Text(format_args!("{}{state}", ShortLabel(request))), start, |json| {
            write_request_args(json, request);
        })?;
        let (waiting, moving) = match request.queue {
            Queue::Send => ("queued", "on the wire"),
            Queue::Recv => ("waiting for a message", "receiving"),
        };
        let queued_until = first_packet.unwrap_or(completed);
        slices.begin(waiting, start)?;
        if let Some(doorbell) = doorbell {
            slices.instant("doorbell", doorbell.clamp(start, queued_until))?;
        }
        slices.end(waiting, queued_until)?;
        if let Some(first) = first_packet {
            let last = moving_until.unwrap_or(completed).clamp(first, completed);
            slices.begin(moving, first)?;
            for retransmission in &request.retransmissions {
                let time = slices.writer.since_start(device, retransmission.time);
                let (psn, cause) = (retransmission.psn, retransmission.cause);
                let time = time.clamp(first, last);
                slices.instant(Text(format_args!("retransmission from psn {psn} ({cause})")), time)?;
            }
            slices.end(moving, last)?;
        }
        slices.end(Text(format_args!("{}{state}", ShortLabel(request))), completed)?;
        if let Some(polled) = polled {
            let name =
                if request.times.polled.is_some() { "completion pending" } else { "completion not polled" };
            slices.begin(name, completed)?;
            slices.end(name, polled)?;
        }
        slices.end(&*queue, polled.unwrap_or(completed))
    }

    fn write_packets(&mut self) -> io::Result<()> {
        let trace = self.trace;
        let comments = Comments::new(trace);
        let mut comment = String::new();
        for (index, packet) in trace.packets.iter().enumerate() {
            let device = packet.device;
            let thread = self.thread_id(device, Track::Qp(packet.qpn))?;
            let time = self.since_start(device, packet.time);
            comment.clear();
            comments.write(PacketId(index), &mut comment);
            self.write_event("i", PacketName(packet), device, |json| {
                json.field("cat", "packet").field("tid", thread).field("ts", Micros(time)).field("s", "t");
                json.key("args").begin_object().field("packet", index).field("comment", comment.as_str());
                json.field("header", Text(packet.header)).field("payload_len", packet.payload_len);
                json.end_object();
            })?;
            let Some(peer) = packet.peer_packet.filter(|peer| self.has_arrow(packet, *peer)) else {
                continue;
            };
            // An arrow has the number of the packet that was sent, and starts or ends at the instant event before it.
            let (phase, id) = match packet.direction {
                Direction::Out => ("s", index),
                Direction::In => ("f", peer.0),
            };
            self.write_event(phase, "packet", device, |json| {
                json.field("cat", "packet").field("tid", thread).field("ts", Micros(time)).field("id", id);
                if packet.direction == Direction::In {
                    json.field("bp", "e");
                }
            })?;
        }
        Ok(())
    }

    /// Whether an arrow connects the two copies of a packet: both name the other, and have one clock.
    fn has_arrow(&self, packet: &Packet, peer: PacketId) -> bool {
        self.trace.packet(peer).is_some_and(|peer| {
            peer.direction != packet.direction
                && peer
                    .peer_packet
                    .is_some_and(|id| self.trace.packet(id).is_some_and(|id| std::ptr::eq(id, packet)))
                && self.trace.is_clock_shared(packet.device, peer.device)
        })
    }

    fn write_other_events(&mut self) -> io::Result<()> {
        let trace = self.trace;
        for timed in &trace.other_events {
            let device = timed.device;
            let thread = match timed.event.qpn() {
                Some(qpn) => Some(self.thread_id(device, Track::Qp(qpn))?),
                None => None,
            };
            let time = self.since_start(device, timed.time);
            self.write_event("i", Text(timed.event), device, |json| {
                json.field("cat", "event").optional("tid", thread).field("ts", Micros(time));
                json.field("s", if thread.is_some() { "t" } else { "p" });
            })?;
        }
        Ok(())
    }
}

/// The asynchronous slices of a request.
struct Slices<'w, 'a, W: Write> {
    writer: &'w mut Writer<'a, W>,
    device: DeviceId,
    thread: usize,
    id: usize,
}

impl<W: Write> Slices<'_, '_, W> {
    fn begin(&mut self, name: impl JsonValue, nanos: u64) -> io::Result<()> {
        self.write_event("b", name, nanos, |_| {})
    }

    fn begin_with_args(
        &mut self,
        name: impl JsonValue,
        nanos: u64,
        args: impl FnOnce(&mut JsonText),
    ) -> io::Result<()> {
        self.write_event("b", name, nanos, |json| {
            json.key("args").begin_object();
            args(json);
            json.end_object();
        })
    }

    fn instant(&mut self, name: impl JsonValue, nanos: u64) -> io::Result<()> {
        self.write_event("n", name, nanos, |_| {})
    }

    fn end(&mut self, name: impl JsonValue, nanos: u64) -> io::Result<()> {
        self.write_event("e", name, nanos, |_| {})
    }

    fn write_event(
        &mut self,
        phase: &str,
        name: impl JsonValue,
        nanos: u64,
        fill: impl FnOnce(&mut JsonText),
    ) -> io::Result<()> {
        let (thread, id) = (self.thread, self.id);
        self.writer.write_event(phase, name, self.device, |json| {
            json.field("cat", "request").field("id", Hex(id as u64)).field("tid", thread);
            json.field("ts", Micros(nanos));
            fill(json);
        })
    }
}

fn process(device: DeviceId) -> usize {
    device.0 + 1
}

fn write_request_args(json: &mut JsonText, request: &Request) {
    json.field("number_in_queue", request.number_in_queue).field("wr_id", Hex(request.wr_id));
    if let Some(posted) = request.posted {
        json.field("operation", request.operation_name()).field("tag", Hex(posted.tag));
        json.field("length", posted.length);
    }
    if let Some(PsnRange { first, last }) = request.psn_range {
        json.field("first_psn", first.get()).field("last_psn", last.get());
    }
    json.field("packet_count", request.packets.len());
    json.field("retransmission_count", request.retransmissions.len());
    match &request.outcome {
        Some(Ok(success)) => {
            json.field("status", "success").field("completed_length", success.length);
        }
        Some(Err(failure)) => {
            json.field("status", Text(failure.status)).field("vendor_error", failure.vendor_error);
        }
        None => {}
    }
}

/// The name of a packet on the timeline, such as `out RC WRITE first psn 5`.
struct PacketName<'a>(&'a Packet);

impl JsonValue for PacketName<'_> {
    fn append_to(self, text: &mut String) {
        let packet = self.0;
        let direction = match packet.direction {
            Direction::Out => "out",
            Direction::In => "in",
        };
        let (opcode, psn) = (packet.header.opcode(), packet.header.psn);
        let prefix = match (packet.dropped.is_some(), packet.is_retransmission) {
            (true, _) => "DROPPED ",
            (false, true) => "RETRANSMISSION ",
            (false, false) => "",
        };
        match &packet.role {
            PacketRole::Nak { syndrome, .. } => {
                Text(format_args!("{prefix}NAK {direction} psn {psn}: {syndrome}")).append_to(text);
            }
            PacketRole::Cm { message } => {
                let message = message.unwrap_or("message");
                Text(format_args!("{prefix}{direction} CM {message}")).append_to(text);
            }
            _ => Text(format_args!("{prefix}{direction} {opcode} psn {psn}")).append_to(text),
        }
    }
}

#[cfg(test)]
mod tests;
