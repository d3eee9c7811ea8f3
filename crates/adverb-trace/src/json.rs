//! Traces as JSON lines. docs/trace-format.md describes the format.

use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;

use adverb_proto::trace::{RecvQueueId, TraceEvent};
use adverb_proto::types::{
    CompletedOperation, Failure, RemoteAddress, Segment, SendFlags, SendOperation, Success,
};
use adverb_proto::{Cq, QueueEvent, Srq, Time};
use adverb_wire::{
    Aeth, CompareSwap, FetchAdd, Flush, Header, Operation, Rc, ReadResponse, Reth, Send, Uc, Ud,
    Write as RdmaWrite,
};

use crate::json_text::{Hex, JsonText, JsonValue, Text};
use crate::model::{
    Connection, CqeState, Device, DeviceId, Direction, Packet, PacketRole, Request, RequestId,
    Retransmission, TimedEvent, Trace, WorkRequest, WqeState,
};

/// The version of the format. It is incremented when a key changes its meaning or is removed, and not for new keys.
const VERSION: u32 = 1;

impl Trace {
    /// Writes the trace as JSON lines: one JSON object per line, for other programs.
    ///
    /// The first line contains the format's name and version. A line follows for each device, connection, request,
    /// packet and [other event](Trace::other_events), with its kind under the key `type`. The keys are listed in
    /// docs/trace-format.md.
    ///
    /// ```
    /// # mod adverb { pub use adverb_trace as trace; }
    /// use adverb::trace::Trace;
    ///
    /// let mut text = Vec::new();
    /// Trace::default().write_json_lines(&mut text)?;
    /// assert!(text.starts_with(br#"{"format":"adverb-trace","version":1,"#));
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if writing to `out` fails.
    pub fn write_json_lines(&self, out: &mut impl Write) -> io::Result<()> {
        let mut lines = Lines { json: JsonText::default(), out: BufWriter::with_capacity(1 << 16, out) };
        lines.write_line(|json| {
            json.field("format", "adverb-trace").field("version", VERSION);
            json.field("device_count", self.devices.len()).field("request_count", self.requests.len());
            json.field("packet_count", self.packets.len())
                .field("other_event_count", self.other_events.len());
        })?;
        for (index, device) in self.devices.iter().enumerate() {
            lines.write_line(|json| write_device(json, index, device))?;
        }
        for (index, device) in self.devices.iter().enumerate() {
            for connection in &device.connections {
                lines.write_line(|json| write_connection(json, DeviceId(index), connection))?;
            }
        }
        for (index, request) in self.requests.iter().enumerate() {
            lines.write_line(|json| write_request(json, index, request))?;
        }
        for (index, packet) in self.packets.iter().enumerate() {
            lines.write_line(|json| write_packet(json, index, packet))?;
        }
        for timed in &self.other_events {
            lines.write_line(|json| write_other_event(json, timed))?;
        }
        lines.out.flush()
    }
}

struct Lines<W: Write> {
    json: JsonText,
    out: BufWriter<W>,
}

impl<W: Write> Lines<W> {
    /// Writes an object whose fields `fill` appends.
    fn write_line(&mut self, fill: impl FnOnce(&mut JsonText)) -> io::Result<()> {
        self.json.begin_object();
        fill(&mut self.json);
        self.json.end_object();
        let out = &mut self.out;
        self.json.take(|text| {
            out.write_all(text)?;
            out.write_all(b"\n")
        })
    }
}

fn write_device(json: &mut JsonText, index: usize, device: &Device) {
    json.field("type", "device").field("device", index).field("name", device.name.as_str());
    json.field("host_id", Text(format_args!("{:#x}", device.clock.host_id)));
    json.field("monotonic_nanos", Text(device.clock.monotonic_nanos));
    json.field("unix_nanos", Text(device.clock.unix_nanos));
    json.field("lost_count", device.lost_count).field("stop_cause", device.stop_cause.name());
}

fn write_connection(json: &mut JsonText, device: DeviceId, connection: &Connection) {
    json.field("type", "connection").field("device", device.0).field("time", connection.time);
    json.field("qpn", connection.qpn.get()).field("transport", Text(connection.transport));
    json.field("remote_qpn", connection.remote_qpn.get());
    json.field("local", connection.local).field("remote", connection.remote);
    json.field("path_mtu", connection.path_mtu.bytes()).field("recv_psn", connection.recv_psn.get());
    json.optional("send_psn", connection.send_psn.map(|psn| psn.get()));
}

fn write_request(json: &mut JsonText, index: usize, request: &Request) {
    json.field("type", "request").field("request", index).field("device", request.device.0);
    json.optional("qpn", request.qpn.map(|qpn| qpn.get()));
    json.field("queue", request.queue.name()).field("number_in_queue", request.number_in_queue);
    json.optional("connection", request.connection).field("wr_id", Hex(request.wr_id));
    if let Some(posted) = &request.posted {
        json.key("posted").begin_object();
        write_posted(json, posted);
        json.end_object();
    }
    json.key("times").begin_object();
    for (step, time) in request.times.steps() {
        json.optional(step, time);
    }
    json.end_object();
    json.field("wqe_state", wqe_state_name(request.wqe_state()));
    json.optional("cqe_state", request.cqe_state().map(cqe_state_name));
    json.optional("first_psn", request.psn_range.map(|range| range.first.get()));
    json.optional("last_psn", request.psn_range.map(|range| range.last.get()));
    for (key, packets) in [("packets", &request.packets), ("acks", &request.acks)] {
        json.key(key).begin_array();
        for packet in packets {
            json.value(packet.0);
        }
        json.end_array();
    }
    json.key("retransmissions").begin_array();
    for Retransmission { time, psn, cause } in &request.retransmissions {
        json.begin_object().field("time", *time).field("psn", psn.get()).field("cause", cause.name());
        json.end_object();
    }
    json.end_array();
    if let Some(outcome) = &request.outcome {
        json.key("outcome").begin_object();
        write_outcome(json, outcome);
        json.end_object();
    }
    json.optional("cq", request.cq.map(Cq::number))
        .optional("peer_request", request.peer_request.map(|peer| peer.0));
}

fn write_posted(json: &mut JsonText, posted: &WorkRequest) {
    json.field("tag", Hex(posted.tag));
    if let Some(operation) = &posted.operation {
        write_operation(json, operation);
        json.key("flags").begin_array();
        for (flag, name) in FLAGS {
            if posted.flags.contains(*flag) {
                json.value(*name);
            }
        }
        json.end_array();
    }
    json.field("length", posted.length).field("sge_count", posted.sge_count);
    if let Some(Segment { addr, length, lkey }) = posted.first_sge {
        json.key("first_sge").begin_object().field("addr", Hex(addr)).field("length", length);
        json.field("lkey", lkey).end_object();
    }
    if let Some(RecvQueueId::Srq(srq)) = posted.recv_queue {
        json.field("srq", srq.number());
    }
}

const FLAGS: &[(SendFlags, &str)] = &[
    (SendFlags::FENCE, "fence"),
    (SendFlags::SIGNALED, "signaled"),
    (SendFlags::SOLICITED, "solicited"),
    (SendFlags::INLINE, "inline"),
];

fn write_operation(json: &mut JsonText, operation: &SendOperation) {
    let name = match operation {
        SendOperation::Send => "send",
        SendOperation::SendWithImm(_) => "send_with_imm",
        SendOperation::SendInvalidate(_) => "send_invalidate",
        SendOperation::Write(_) => "write",
        SendOperation::WriteWithImm(..) => "write_with_imm",
        SendOperation::Read(_) => "read",
        SendOperation::CompareSwap { .. } => "compare_swap",
        SendOperation::FetchAdd { .. } => "fetch_add",
        SendOperation::AtomicWrite { .. } => "atomic_write",
        SendOperation::Flush(_) => "flush",
        SendOperation::LocalInvalidate(_) => "local_invalidate",
        SendOperation::BindWindow(_) => "bind_window",
    };
    json.field("operation", name);
    match operation {
        SendOperation::SendWithImm(immediate) => {
            json.field("immediate", *immediate);
        }
        SendOperation::SendInvalidate(rkey) | SendOperation::LocalInvalidate(rkey) => {
            json.field("invalidated_key", *rkey);
        }
        SendOperation::Write(remote) | SendOperation::Read(remote) => write_remote(json, remote),
        SendOperation::WriteWithImm(remote, immediate) => {
            write_remote(json, remote);
            json.field("immediate", *immediate);
        }
        SendOperation::CompareSwap { remote, compare, swap } => {
            write_remote(json, remote);
            json.field("compare", Hex(*compare)).field("swap", Hex(*swap));
        }
        SendOperation::FetchAdd { remote, add } => {
            write_remote(json, remote);
            json.field("add", Hex(*add));
        }
        SendOperation::AtomicWrite { remote, .. } => write_remote(json, remote),
        SendOperation::Flush(range) => {
            write_remote(json, &range.remote);
            json.field("whole_region", range.whole_region).field("global", range.global);
            json.field("persistent", range.persistent);
        }
        SendOperation::BindWindow(bind) => {
            json.field("window_rkey", bind.rkey).field("window_addr", Hex(bind.addr));
            json.field("window_length", Hex(bind.length));
        }
        SendOperation::Send => {}
    }
}

fn write_remote(json: &mut JsonText, remote: &RemoteAddress) {
    json.field("remote_addr", Hex(remote.addr)).field("rkey", remote.rkey);
}

fn write_outcome(json: &mut JsonText, outcome: &Result<Success, Failure>) {
    let success = match outcome {
        Ok(success) => success,
        Err(Failure { status, vendor_error }) => {
            json.field("status", status.code()).field("status_text", Text(status));
            json.field("vendor_error", *vendor_error);
            return;
        }
    };
    json.field("status", 0_u32).field("status_text", "success");
    let name = match success.operation {
        CompletedOperation::Send => "send",
        CompletedOperation::Write => "write",
        CompletedOperation::Read => "read",
        CompletedOperation::CompareSwap => "compare_swap",
        CompletedOperation::FetchAdd => "fetch_add",
        CompletedOperation::AtomicWrite => "atomic_write",
        CompletedOperation::Flush => "flush",
        CompletedOperation::BindWindow => "bind_window",
        CompletedOperation::LocalInvalidate => "local_invalidate",
        CompletedOperation::Recv { .. } => "recv",
        CompletedOperation::RecvWrite { .. } => "recv_write",
    };
    json.field("operation", name).field("length", success.length);
    match success.operation {
        CompletedOperation::Recv { immediate, invalidated, source, has_grh } => {
            json.optional("immediate", immediate).optional("invalidated_key", invalidated);
            json.optional("source_qpn", source.map(|qpn| qpn.get())).field("has_grh", has_grh);
        }
        CompletedOperation::RecvWrite { immediate } => {
            json.field("immediate", immediate);
        }
        _ => {}
    }
}

fn write_packet(json: &mut JsonText, index: usize, packet: &Packet) {
    json.field("type", "packet").field("packet", index).field("device", packet.device.0);
    let direction = match packet.direction {
        Direction::Out => "out",
        Direction::In => "in",
    };
    json.field("time", packet.time).field("direction", direction).field("qpn", packet.qpn.get());
    json.optional("source", packet.source).optional("destination", packet.destination);
    json.key("header").begin_object();
    write_header(json, &packet.header);
    json.end_object().field("payload_len", packet.payload_len);
    json.optional("payload", packet.payload.as_deref().map(HexBytes));
    json.field("is_retransmission", packet.is_retransmission);
    json.optional("retry_cause", packet.retry_cause.map(|cause| cause.name()));
    json.optional("dropped", packet.dropped.map(|reason| reason.name()));
    write_role(json, &packet.role);
    json.optional("peer_packet", packet.peer_packet.map(|peer| peer.0));
}

fn write_role(json: &mut JsonText, role: &PacketRole) {
    let write_request_id = |json: &mut JsonText, request: &Option<RequestId>| {
        json.optional("request", request.map(|request| request.0));
    };
    match role {
        PacketRole::Request(request) => {
            json.field("role", "request");
            write_request_id(json, request);
        }
        PacketRole::Response(request) => {
            json.field("role", "response");
            write_request_id(json, request);
        }
        PacketRole::Ack { acked_psns, acked_requests }
        | PacketRole::Nak { acked_psns, acked_requests, .. } => {
            if let PacketRole::Nak { syndrome, nacked_request, .. } = role {
                json.field("role", "nak").field("syndrome", syndrome.byte());
                json.optional("nacked_request", nacked_request.map(|request| request.0));
            } else {
                json.field("role", "ack");
            }
            json.optional("first_acked_psn", acked_psns.map(|range| range.first.get()));
            json.optional("last_acked_psn", acked_psns.map(|range| range.last.get()));
            json.key("acked_requests").begin_array();
            for request in acked_requests {
                json.value(request.0);
            }
            json.end_array();
        }
        PacketRole::Cm { message } => {
            json.field("role", "cm").optional("message", *message);
        }
        PacketRole::Cnp => {
            json.field("role", "cnp");
        }
    }
}

fn write_header(json: &mut JsonText, header: &Header) {
    json.field("opcode", header.opcode().byte()).field("opcode_name", header.opcode().name());
    json.field("dest_qpn", header.dest_qp.get()).field("psn", header.psn.get());
    json.field("solicited", header.solicited).field("migrated", header.migrated).field("pkey", header.pkey);
    json.field("fecn", header.fecn).field("becn", header.becn).field("ack_request", header.ack_request);
    match &header.operation {
        Operation::Rc(operation) => write_rc(json, operation),
        Operation::Uc(Uc::Send(send)) => write_send(json, send),
        Operation::Uc(Uc::Write(write)) => write_rdma_write(json, write),
        Operation::Ud(Ud { qkey, source_qp, immediate }) => {
            json.field("qkey", *qkey).field("source_qpn", source_qp.get()).optional("immediate", *immediate);
        }
        Operation::Cnp => {}
    }
}

fn write_rc(json: &mut JsonText, operation: &Rc) {
    match operation {
        Rc::Send(send) => write_send(json, send),
        Rc::SendLastInvalidate(rkey) | Rc::SendOnlyInvalidate(rkey) => {
            json.field("invalidated_key", *rkey);
        }
        Rc::Write(write) => write_rdma_write(json, write),
        Rc::ReadRequest(reth) | Rc::AtomicWrite(reth) => write_reth(json, reth),
        Rc::ReadResponse(ReadResponse::Middle) => {}
        Rc::ReadResponse(ReadResponse::First(aeth) | ReadResponse::Last(aeth) | ReadResponse::Only(aeth))
        | Rc::Acknowledge(aeth) => write_aeth(json, aeth),
        Rc::AtomicAcknowledge(aeth, original) => {
            write_aeth(json, aeth);
            json.field("original", Hex(*original));
        }
        Rc::CompareSwap(CompareSwap { va, rkey, swap, compare }) => {
            json.field("remote_addr", Hex(*va)).field("rkey", *rkey);
            json.field("compare", Hex(*compare)).field("swap", Hex(*swap));
        }
        Rc::FetchAdd(FetchAdd { va, rkey, add }) => {
            json.field("remote_addr", Hex(*va)).field("rkey", *rkey).field("add", Hex(*add));
        }
        Rc::Flush(Flush { global, persistent, whole_region, range }) => {
            write_reth(json, range);
            json.field("whole_region", *whole_region).field("global", *global);
            json.field("persistent", *persistent);
        }
    }
}

fn write_send(json: &mut JsonText, send: &Send) {
    if let Send::Last(immediate) | Send::Only(immediate) = send {
        json.optional("immediate", *immediate);
    }
}

fn write_rdma_write(json: &mut JsonText, write: &RdmaWrite) {
    if let RdmaWrite::First(reth) | RdmaWrite::Only(reth, _) = write {
        write_reth(json, reth);
    }
    if let RdmaWrite::Last(immediate) | RdmaWrite::Only(_, immediate) = write {
        json.optional("immediate", *immediate);
    }
}

fn write_reth(json: &mut JsonText, reth: &Reth) {
    json.field("remote_addr", Hex(reth.va)).field("rkey", reth.rkey).field("dma_length", reth.length);
}

fn write_aeth(json: &mut JsonText, aeth: &Aeth) {
    json.field("syndrome", aeth.syndrome.byte()).field("syndrome_text", Text(aeth.syndrome));
    json.field("msn", aeth.msn);
}

fn write_other_event(json: &mut JsonText, timed: &TimedEvent) {
    json.field("type", "other_event").field("device", timed.device.0).field("time", timed.time);
    json.field("event", event_name(&timed.event)).optional("qpn", timed.event.qpn().map(|qpn| qpn.get()));
    match &timed.event {
        TraceEvent::SrqLimit { srq } => {
            json.field("srq", srq.number());
        }
        TraceEvent::Acknowledged { psn, .. } => {
            json.field("psn", psn.get());
        }
        TraceEvent::NakReceived { psn, syndrome, .. } | TraceEvent::NakSent { psn, syndrome, .. } => {
            json.field("psn", psn.get()).field("syndrome", syndrome.byte());
        }
        TraceEvent::Retransmit { psn, cause, .. } => {
            json.field("psn", psn.get()).field("cause", cause.name());
        }
        TraceEvent::Dropped { psn, opcode, reason, .. } => {
            json.field("psn", psn.get()).field("opcode", opcode.byte()).field("reason", reason.name());
        }
        TraceEvent::CnpReceived { rate, .. } => {
            json.optional("rate", *rate);
        }
        TraceEvent::TimerExpired { timer, .. } => {
            json.field("timer", timer.name());
        }
        TraceEvent::CqEventDelivered { cq } => {
            json.field("cq", cq.number());
        }
        TraceEvent::QueueEventDelivered { event } => write_queue_event(json, event),
        TraceEvent::StateChanged { from, to, .. } => {
            json.field("from", Text(from)).field("to", Text(to));
        }
        _ => {}
    }
    json.field("text", Text(timed.event));
}

fn write_queue_event(json: &mut JsonText, event: &QueueEvent) {
    let name = match event {
        QueueEvent::CqOverflow(_) => "cq_overflow",
        QueueEvent::Established(_) => "established",
        QueueEvent::SrqLimit(_) => "srq_limit",
        QueueEvent::LastReceiveReached(_) => "last_receive_reached",
        QueueEvent::SendQueueDrained(_) => "send_queue_drained",
        QueueEvent::RequestError(_) => "request_error",
        QueueEvent::AccessError(_) => "access_error",
        QueueEvent::Fatal(_) => "fatal",
        _ => "other",
    };
    json.field("queue_event", name);
    match event {
        QueueEvent::CqOverflow(cq) => {
            json.field("cq", cq.number());
        }
        QueueEvent::SrqLimit(srq) => {
            json.field("srq", Srq::number(*srq));
        }
        _ => {}
    }
}

fn event_name(event: &TraceEvent) -> &'static str {
    match event {
        TraceEvent::Connected { .. } => "connected",
        TraceEvent::PostedSend { .. } => "posted_send",
        TraceEvent::PostedRecv { .. } => "posted_recv",
        TraceEvent::SrqLimit { .. } => "srq_limit",
        TraceEvent::Doorbell { .. } => "doorbell",
        TraceEvent::DatagramAddrs { .. } => "datagram_addrs",
        TraceEvent::PacketSent { .. } => "packet_sent",
        TraceEvent::PacketReceived { .. } => "packet_received",
        TraceEvent::Dropped { .. } => "dropped",
        TraceEvent::Acknowledged { .. } => "acknowledged",
        TraceEvent::NakReceived { .. } => "nak_received",
        TraceEvent::NakSent { .. } => "nak_sent",
        TraceEvent::Retransmit { .. } => "retransmit",
        TraceEvent::CnpReceived { .. } => "cnp_received",
        TraceEvent::TimerExpired { .. } => "timer_expired",
        TraceEvent::Completed { .. } => "completed",
        TraceEvent::CompletedUnsignaled { .. } => "completed_unsignaled",
        TraceEvent::Polled { .. } => "polled",
        TraceEvent::CqEventDelivered { .. } => "cq_event_delivered",
        TraceEvent::QueueEventDelivered { .. } => "queue_event_delivered",
        TraceEvent::StateChanged { .. } => "state_changed",
        _ => "other",
    }
}

const fn wqe_state_name(state: WqeState) -> &'static str {
    match state {
        WqeState::Posted => "posted",
        WqeState::Processing => "processing",
        WqeState::Completed => "completed",
        WqeState::Error => "error",
    }
}

const fn cqe_state_name(state: CqeState) -> &'static str {
    match state {
        CqeState::Pending => "pending",
        CqeState::Polled => "polled",
        CqeState::Processed => "processed",
    }
}

/// A time, in nanoseconds on its device's clock.
impl JsonValue for Time {
    fn append_to(self, text: &mut String) {
        self.as_nanos().append_to(text);
    }
}

impl JsonValue for SocketAddr {
    fn append_to(self, text: &mut String) {
        Text(self).append_to(text);
    }
}

/// Bytes as a string of hexadecimal digits.
struct HexBytes<'a>(&'a [u8]);

impl JsonValue for HexBytes<'_> {
    fn append_to(self, text: &mut String) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        text.push('"');
        for byte in self.0 {
            text.extend([byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)])));
        }
        text.push('"');
    }
}

#[cfg(test)]
mod tests;
