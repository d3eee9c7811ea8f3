//! The trace as JSON for the page's scripts.
//!
//! Devices and queue pairs have named members. Requests, packets and the elements of the other long lists are arrays of
//! values in a fixed order, because a page may contain 100,000 of them; `model.js` names the values in the same order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write};

use adverb_proto::Time;
use adverb_proto::explain::{self, Explanation};
use adverb_proto::trace::{Queue, RecvQueueId, TraceEvent};
use adverb_proto::types::{Failure, Qpn, Status, Success};
use adverb_wire::Syndrome;

use super::ends::{Delivery, End, Ends};
use super::headers::{self, Field};
use super::order::{Ordered, Step};
use super::{ROW_LIMIT, texts};
use crate::json_text::{Hex, JsonText, Text};
use crate::model::{
    CqeState, Device, DeviceId, Direction, Packet, PacketId, PacketRole, PsnRange, Request, RequestId,
    TimedEvent, Trace, WorkRequest, WqeState,
};
use crate::names;

/// The maximum number of bytes of a payload that the page contains.
const MAX_PAYLOAD: usize = 64;

/// Writes the trace as one JSON object that is safe inside a `<script>` element.
pub(super) fn write(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let mut json = JsonText::default();
    append(trace, &mut json);
    json.take(|text| write_escaped(text, out))
}

/// Writes JSON text without the characters that could end a `<script>` element or a line of JavaScript. They occur only
/// in strings, where they can be escaped.
fn write_escaped(text: &[u8], out: &mut impl Write) -> io::Result<()> {
    let mut rest = text;
    let special_position = |text: &[u8]| {
        text.iter().position(|byte| matches!(byte, b'<' | b'>' | b'&') || *byte == LINE_SEPARATOR[0])
    };
    while let Some(at) = special_position(rest) {
        out.write_all(&rest[..at])?;
        rest = &rest[at..];
        let len = match rest {
            [0xe2, 0x80, last @ (0xa8 | 0xa9), ..] => {
                write!(out, "\\u20{:02x}", last - 0x80)?;
                LINE_SEPARATOR.len()
            }
            [byte @ (b'<' | b'>' | b'&'), ..] => {
                write!(out, "\\u{byte:04x}")?;
                1
            }
            _ => {
                out.write_all(&rest[..1])?;
                1
            }
        };
        rest = &rest[len..];
    }
    out.write_all(rest)
}

/// U+2028 in UTF-8. U+2029 differs in the last byte.
const LINE_SEPARATOR: [u8; 3] = [0xe2, 0x80, 0xa8];

fn append(trace: &Trace, json: &mut JsonText) {
    let ordered = Ordered::new(trace);
    let deliveries = &ordered.deliveries;
    let ends = &ordered.ends;
    let mut strings = Strings::default();
    let context = Context { trace, ordered: &ordered, ends };
    json.begin_object().field("rowLimit", ROW_LIMIT);
    append_list(json, "devices", trace.devices.iter().enumerate(), |json, device| {
        context.append_device(json, device);
    });
    append_list(json, "ends", &ends.list, append_end);
    append_list(json, "requests", &trace.requests, |json, request| context.append_request(json, request));
    append_list(json, "packets", trace.packets.iter().zip(deliveries), |json, (packet, delivery)| {
        context.append_packet(json, packet, *delivery, &mut strings);
    });
    let completers = Completers::new(trace);
    append_list(json, "otherEvents", &trace.other_events, |json, timed| {
        context.append_other_event(json, timed, &completers);
    });
    append_list(json, "doorbells", &ordered.doorbells, |json, doorbell| {
        json.begin_array().value(Index(ends.index(doorbell.device, doorbell.qpn)));
        json.value(context.nanos(doorbell.device, doorbell.time));
        append_request_ids(json, &doorbell.requests);
        json.end_array();
    });
    append_list(json, "retries", &ordered.retries, |json, retry| {
        json.begin_array().value(Index(ends.index(retry.device, retry.qpn)));
        json.value(context.nanos(retry.device, retry.time)).value(retry.psn.get()).value(Text(retry.cause));
        append_request_ids(json, &retry.requests);
        json.end_array();
    });
    append_steps(json, &ordered.steps);
    append_list(json, "names", &strings.list, |json, name| _ = json.value(name.as_str()));
    append_explanations(json, trace);
    json.end_object();
}

/// The parts of a trace that most values refer to.
struct Context<'a> {
    trace: &'a Trace,
    ordered: &'a Ordered,
    ends: &'a Ends,
}

impl Context<'_> {
    fn nanos(&self, device: DeviceId, time: Time) -> u64 {
        self.ordered.nanos(self.trace, device, time)
    }

    fn append_device(&self, json: &mut JsonText, (index, device): (usize, &Device)) {
        let clock = self.ordered.clocks.of(DeviceId(index));
        let origin = self.ordered.origins.get(clock).copied().unwrap_or_default();
        let unix =
            device.clock.unix_nanos.saturating_add(origin.saturating_sub(device.clock.monotonic_nanos));
        json.begin_object().field("name", device.name.as_str()).field("clock", clock);
        // The Unix time of the clock's first step, in milliseconds for JavaScript's `Date`.
        json.field("startMillis", (device.clock.unix_nanos > 0).then_some(unix / 1_000_000));
        json.field("lostCount", device.lost_count).field("stopCause", Text(device.stop_cause)).end_object();
    }

    fn append_request(&self, json: &mut JsonText, request: &Request) {
        json.begin_array().value(request.device.0);
        json.value(Index(request.qpn.and_then(|qpn| self.ends.index(request.device, qpn))));
        json.value(u8::from(request.queue == Queue::Recv))
            .value(request.number_in_queue)
            .value(Hex(request.wr_id));
        json.value(request.operation_name());
        append_work_request(json, request.posted.as_ref());
        json.begin_array();
        for (_, time) in request.times.steps() {
            json.value(time.map(|time| self.nanos(request.device, time)));
        }
        json.end_array();
        append_psns(json, request.psn_range);
        append_packet_ids(json, &request.packets);
        json.begin_array();
        for retransmission in &request.retransmissions {
            json.begin_array().value(self.nanos(request.device, retransmission.time));
            json.value(retransmission.psn.get()).value(Text(retransmission.cause)).end_array();
        }
        json.end_array();
        append_completion(json, request.outcome.as_ref());
        json.value(Index(request.cq.map(|cq| cq.number() as usize)));
        json.value(Index(request.peer_request.map(|peer| peer.0)));
        json.value(match request.wqe_state() {
            WqeState::Posted => "POSTED",
            WqeState::Processing => "PROCESSING",
            WqeState::Completed => "COMPLETED",
            WqeState::Error => "ERROR",
        });
        json.value(request.cqe_state().map(|state| match state {
            CqeState::Pending => "PENDING",
            CqeState::Polled => "POLLED",
            CqeState::Processed => "PROCESSED",
        }));
        append_packet_ids(json, &request.acks);
        json.end_array();
    }

    fn append_packet(&self, json: &mut JsonText, packet: &Packet, delivery: Delivery, strings: &mut Strings) {
        let header = &packet.header;
        let flags = [
            packet.direction == Direction::Out,
            packet.is_retransmission,
            delivery == Delivery::Lost,
            delivery == Delivery::Unknown,
            delivery == Delivery::Duplicate,
        ];
        let bth_flags = [header.solicited, header.migrated, header.fecn, header.becn, header.ack_request];
        json.begin_array().value(Index(self.ends.index(packet.device, packet.qpn)));
        json.value(self.nanos(packet.device, packet.time)).value(bits(&flags));
        json.value(header.opcode().byte()).value(strings.index(header.opcode().name()));
        json.value(header.dest_qp.get()).value(header.psn.get()).value(bits(&bth_flags)).value(header.pkey);
        json.begin_array();
        for (name, fields) in headers::extended(&header.operation) {
            json.begin_array().value(strings.index(name));
            for (field, value) in &fields {
                json.value(strings.index(field)).value(value.as_str());
            }
            json.end_array();
        }
        json.end_array().value(packet.payload_len);
        let payload = packet.payload.as_deref().map(|payload| &payload[..payload.len().min(MAX_PAYLOAD)]);
        json.value(payload.map(|payload| Text(HexDigits(payload))));
        match packet.dropped.or(delivery.drop_reason()) {
            Some(reason) => {
                let (name, text) = (reason.name().replace('_', " "), reason.to_string());
                json.begin_array().value(strings.index(&name)).value(strings.index(&text)).end_array();
            }
            None => append_null(json),
        }
        append_role(json, &packet.role);
        json.value(Index(packet.peer_packet.map(|peer| peer.0)));
        for address in [packet.source, packet.destination] {
            json.value(address.map(|address| strings.index(&address.to_string())));
        }
        json.value(packet.retry_cause.map(|cause| strings.index(&cause.to_string()))).end_array();
    }

    fn append_other_event(&self, json: &mut JsonText, timed: &TimedEvent, completers: &Completers) {
        let TimedEvent { device, time, event } = timed;
        let text = texts::other_event(event);
        let qpn = event.qpn().or_else(|| completers.qpn(*device, *time, event));
        json.begin_array().value(device.0);
        json.value(Index(qpn.and_then(|qpn| self.ends.index(*device, qpn))));
        json.value(self.nanos(*device, *time)).value(text.text.as_str());
        json.value(bits(&[text.is_at_application, text.is_failure])).end_array();
    }
}

/// Strings that many packets have in common. A packet contains their indices.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    indices: BTreeMap<String, usize>,
}

impl Strings {
    fn index(&mut self, name: &str) -> usize {
        if let Some(index) = self.indices.get(name) {
            return *index;
        }
        let index = self.list.len();
        self.list.push(name.to_owned());
        self.indices.insert(name.to_owned(), index);
        index
    }
}

/// The queue pairs whose requests completed on each completion queue, so that a completion event is shown at the queue
/// pair that caused it.
struct Completers(BTreeMap<(usize, u32), Vec<(Time, Qpn)>>);

impl Completers {
    fn new(trace: &Trace) -> Completers {
        let mut completers: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for request in &trace.requests {
            if let (Some(cq), Some(qpn), Some(time)) = (request.cq, request.qpn, request.times.completed) {
                completers.entry((request.device.0, cq.number())).or_default().push((time, qpn));
            }
        }
        completers.values_mut().for_each(|completions| completions.sort_by_key(|(time, _)| *time));
        Completers(completers)
    }

    fn qpn(&self, device: DeviceId, time: Time, event: &TraceEvent) -> Option<Qpn> {
        let TraceEvent::CqEventDelivered { cq } = event else { return None };
        let completions = self.0.get(&(device.0, cq.number()))?;
        let before = completions.partition_point(|(completed, _)| *completed <= time);
        completions.get(before.saturating_sub(1)).map(|(_, qpn)| *qpn)
    }
}

/// Bytes as hexadecimal digits.
struct HexDigits<'a>(&'a [u8]);

impl fmt::Display for HexDigits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// An index, or -1.
struct Index(Option<usize>);

impl crate::json_text::JsonValue for Index {
    fn append_to(self, text: &mut String) {
        match self.0 {
            Some(index) => index.append_to(text),
            None => text.push_str("-1"),
        }
    }
}

/// Returns the number whose bits are these, the lowest first.
fn bits(bits: &[bool]) -> u32 {
    bits.iter().rev().fold(0, |number, bit| number << 1 | u32::from(*bit))
}

/// Appends a member whose value is an array.
fn append_list<T>(
    json: &mut JsonText,
    name: &str,
    elements: impl IntoIterator<Item = T>,
    mut append: impl FnMut(&mut JsonText, T),
) {
    json.key(name).begin_array();
    elements.into_iter().for_each(|element| append(json, element));
    json.end_array();
}

fn append_null(json: &mut JsonText) {
    json.value(None::<u8>);
}

fn append_end(json: &mut JsonText, end: &End) {
    json.begin_object().field("device", end.device.0).field("qpn", end.qpn.get());
    json.field("peer", Index(end.peer));
    if let Some(connection) = &end.connection {
        json.field("transport", Text(connection.transport)).field("remoteQpn", connection.remote_qpn.get());
        json.field("local", Text(connection.local)).field("remote", Text(connection.remote));
        json.field("mtu", connection.path_mtu.bytes()).field("recvPsn", connection.recv_psn.get());
        json.field("sendPsn", connection.send_psn.map(|psn| psn.get()));
    }
    json.end_object();
}

fn append_work_request(json: &mut JsonText, posted: Option<&WorkRequest>) {
    let Some(posted) = posted else { return append_null(json) };
    let flags = posted.operation.map(|_| Text(names::flag_names(posted.flags)));
    json.begin_array().value(Hex(posted.tag)).value(flags);
    json.value(posted.length).value(posted.sge_count);
    match posted.first_sge {
        Some(segment) => {
            json.begin_array().value(Hex(segment.addr)).value(segment.length);
            json.value(Hex(segment.lkey.into())).end_array();
        }
        None => append_null(json),
    }
    let mut fields = Vec::new();
    if let Some(operation) = &posted.operation {
        let (name, value) = names::wr_opcode(operation);
        fields.push(("opcode", format!("{value} ({name})")));
        fields.extend(headers::posted_fields(operation));
    }
    if let Some(RecvQueueId::Srq(srq)) = posted.recv_queue {
        fields.push(("shared receive queue", srq.number().to_string()));
    }
    append_fields(json, &fields);
    json.end_array();
}

fn append_completion(json: &mut JsonText, outcome: Option<&Result<Success, Failure>>) {
    match outcome {
        Some(Ok(success)) => {
            let (name, value) = names::wc_opcode(&success.operation);
            json.begin_array()
                .value(0_u8)
                .value(Text(format_args!("{value} ({name})")))
                .value(success.length);
            append_fields(json, &texts::completed_operation(&success.operation));
            json.end_array();
        }
        Some(Err(failure)) => {
            json.begin_array().value(failure.status.code());
            json.value(Hex(failure.vendor_error.into())).end_array();
        }
        None => append_null(json),
    }
}

/// Appends a flat array of names and values.
fn append_fields(json: &mut JsonText, fields: &[Field]) {
    json.begin_array();
    for (name, value) in fields {
        json.value(*name).value(value.as_str());
    }
    json.end_array();
}

fn append_role(json: &mut JsonText, role: &PacketRole) {
    json.begin_array();
    let index = |request: &Option<RequestId>| Index(request.map(|request| request.0));
    match role {
        PacketRole::Request(request) => _ = json.value("request").value(index(request)),
        PacketRole::Response(request) => _ = json.value("response").value(index(request)),
        PacketRole::Ack { acked_psns, acked_requests } => {
            json.value("ack");
            append_psns(json, *acked_psns);
            append_request_ids(json, acked_requests);
        }
        PacketRole::Nak { syndrome, acked_psns, acked_requests, nacked_request } => {
            json.value("nak");
            append_psns(json, *acked_psns);
            append_request_ids(json, acked_requests);
            json.value(index(nacked_request)).value(Text(syndrome)).value(syndrome.byte());
        }
        PacketRole::Cm { message } => _ = json.value("cm").value(message.unwrap_or("message")),
        PacketRole::Cnp => _ = json.value("cnp"),
    }
    json.end_array();
}

fn append_psns(json: &mut JsonText, range: Option<PsnRange>) {
    match range {
        Some(PsnRange { first, last }) => {
            _ = json.begin_array().value(first.get()).value(last.get()).end_array();
        }
        None => append_null(json),
    }
}

fn append_request_ids(json: &mut JsonText, requests: &[RequestId]) {
    json.begin_array();
    requests.iter().for_each(|request| _ = json.value(request.0));
    json.end_array();
}

fn append_packet_ids(json: &mut JsonText, packets: &[PacketId]) {
    json.begin_array();
    packets.iter().for_each(|packet| _ = json.value(packet.0));
    json.end_array();
}

/// Appends the steps: a string with one letter per step, and an array of their indices.
fn append_steps(json: &mut JsonText, steps: &[Step]) {
    let parts = |step: &Step| match *step {
        Step::Posted(index) => ('p', index),
        Step::Doorbell(index) => ('d', index),
        Step::Packet(index) => ('s', index),
        Step::Arrived(index) => ('a', index),
        Step::Retry(index) => ('r', index),
        Step::Completed(index) => ('c', index),
        Step::Polled(index) => ('l', index),
        Step::OtherEvent(index) => ('m', index),
    };
    let kinds: String = steps.iter().map(|step| parts(step).0).collect();
    json.field("stepKinds", kinds.as_str());
    append_list(json, "stepIndices", steps, |json, step| _ = json.value(parts(step).1));
}

/// Appends the statuses of failed requests and the syndromes of NAKs: code, names, and explanation.
fn append_explanations(json: &mut JsonText, trace: &Trace) {
    let failures = trace.requests.iter().filter_map(|request| request.outcome?.err());
    let codes: BTreeSet<u32> = failures.map(|failure| failure.status.code()).collect();
    append_list(json, "statuses", codes, |json, code| {
        let status = Status::from_code(code);
        json.begin_array()
            .value(code)
            .value(Text(format_args!("{status:?}")))
            .value(names::status_name(status));
        append_explanation(json, explain::status(status));
        json.end_array();
    });
    let syndrome = |packet: &Packet| match packet.role {
        PacketRole::Nak { syndrome, .. } => Some(syndrome.byte()),
        _ => None,
    };
    let syndromes: BTreeSet<u8> = trace.packets.iter().filter_map(syndrome).collect();
    append_list(json, "syndromes", syndromes, |json, byte| {
        json.begin_array().value(byte);
        append_explanation(json, explain::syndrome(Syndrome::from_byte(byte)));
        json.end_array();
    });
}

/// Appends the summary, the meaning, the causes and the checks.
fn append_explanation(json: &mut JsonText, explanation: Option<&Explanation>) {
    let Some(explanation) = explanation else { return append_null(json) };
    json.begin_array().value(explanation.summary).value(explanation.meaning);
    for texts in [explanation.causes, explanation.checks] {
        json.begin_array();
        texts.iter().for_each(|text| _ = json.value(*text));
        json.end_array();
    }
    json.end_array();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_cannot_end_a_script_element() {
        let text = "</script><!-- & \u{2028}\u{2029} \u{20ac} é \" \\ \n \u{1}";
        let mut json = JsonText::default();
        let mut escaped = Vec::new();
        json.value(text).take(|text| write_escaped(text, &mut escaped)).unwrap();
        let escaped = String::from_utf8(escaped).unwrap();
        assert!(!escaped.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "{escaped}");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }

    #[test]
    fn bits_begin_with_the_lowest() {
        assert_eq!(bits(&[true, false, true, true]), 0b1101);
        assert_eq!(bits(&[]), 0);
    }
}
