//! The listing of requests.

use std::collections::HashSet;
use std::io::{self, Write};

use adverb_proto::Time;
use adverb_proto::trace::{Queue, StopCause, TraceEvent};
use adverb_proto::types::{CompletedOperation, Psn, Qpn, SendOperation, Success};

use super::clock::{Micros, Times};
use super::{RequestName, device_name, headers, is_own, write_clock_note};
use crate::model::{
    CqeState, Device, DeviceId, Direction, Packet, PacketId, PacketRole, PsnRange, Request, RequestId,
    RequestTimes, Trace, WqeState,
};
use crate::names;

/// The maximum number of packets of a request that are listed as trees. Each further packet takes one line.
const MAX_TREES: usize = 8;

const RULE: &str = "# =============================================================================";

pub(super) struct Listing<'a> {
    trace: &'a Trace,
    times: Times<'a>,
    /// The recorded queue pairs, each with its peer.
    ends: HashSet<(Qpn, Qpn)>,
}

impl<'a> Listing<'a> {
    pub(super) fn new(trace: &'a Trace) -> Listing<'a> {
        let connections = trace.devices.iter().flat_map(|device| &device.connections);
        let ends = connections.map(|connection| (connection.qpn, connection.remote_qpn)).collect();
        Listing { trace, times: Times::new(trace), ends }
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let names: Vec<&str> = self.trace.devices.iter().map(|device| &*device.name).collect();
        let count = names.len();
        let devices = if count == 1 { "device" } else { "devices" };
        writeln!(out, "# Trace of {count} {devices}: {}", names.join(", "))?;
        write_clock_note(&self.times, self.trace, out)?;
        writeln!(
            out,
            "# Devices don't record Ethernet headers, so the trees begin with IP. RoCEv2 packets have"
        )?;
        writeln!(out, "# no local and no global route header.")?;
        let mut listed = vec![false; self.trace.packets.len()];
        for (index, device) in self.trace.devices.iter().enumerate() {
            self.write_device(out, DeviceId(index), device)?;
            for (number, request) in self.trace.requests.iter().enumerate() {
                if request.device.0 == index && !is_own(request) {
                    self.write_request(out, RequestId(number), request, &mut listed)?;
                }
            }
            self.write_other_events(out, DeviceId(index))?;
        }
        self.write_other_packets(out, &listed)
    }

    fn micros(&self, device: DeviceId, time: Time) -> Micros {
        self.times.micros(device, time)
    }

    fn write_device(&self, out: &mut dyn Write, id: DeviceId, device: &Device) -> io::Result<()> {
        writeln!(out, "\n{RULE}\n# DEVICE {}\n{RULE}", device.name)?;
        for connection in &device.connections {
            let (qpn, remote_qpn) = (connection.qpn, connection.remote_qpn);
            let time = self.micros(id, connection.time);
            write!(out, "# {time} us: {} qp {qpn} connected to qp {remote_qpn}", connection.transport)?;
            write!(out, ", {} > {}", connection.local, connection.remote)?;
            write!(out, ", MTU {}, first PSN received {}", connection.path_mtu.bytes(), connection.recv_psn)?;
            match connection.send_psn {
                Some(psn) => writeln!(out, ", sent {psn}")?,
                None => writeln!(out)?,
            }
        }
        if device.lost_count > 0 {
            let lost = device.lost_count;
            writeln!(out, "# {lost} older events were overwritten: the recording was full.")?;
        }
        match device.stop_cause {
            StopCause::Manual => Ok(()),
            StopCause::Failure => writeln!(out, "# The recording stopped at the first failed completion."),
            StopCause::Timeout => {
                writeln!(out, "# The recording stopped at the first acknowledgement timeout.")
            }
        }
    }

    fn write_request(
        &self,
        out: &mut dyn Write,
        id: RequestId,
        request: &Request,
        listed: &mut [bool],
    ) -> io::Result<()> {
        writeln!(out, "\n# {}", RequestName(self.trace, id))?;
        self.write_wqe(out, request)?;
        let sender = request.peer_request.and_then(|peer| self.trace.request(peer));
        let is_listed_at_sender = request.queue == Queue::Recv && sender.is_some();
        if is_listed_at_sender {
            for packet in &request.packets {
                self.write_line(out, *packet)?;
                mark(listed, *packet);
            }
        } else {
            for (index, packet) in request.packets.iter().chain(&request.acks).enumerate() {
                let is_listed = listed.get(packet.0).copied().unwrap_or(true);
                let is_tree = index < MAX_TREES && !is_listed;
                if is_tree {
                    self.write_packet(out, *packet)?;
                } else {
                    self.write_line(out, *packet)?;
                }
                mark(listed, *packet);
                if let Some(peer) = self.trace.packet(*packet).and_then(|packet| packet.peer_packet) {
                    mark(listed, peer);
                }
            }
        }
        self.write_cqe(out, request)
    }

    fn write_wqe(&self, out: &mut dyn Write, request: &Request) -> io::Result<()> {
        let name = request.operation_name();
        writeln!(out, "# Work Queue Entry (WQE) for {name}:")?;
        writeln!(out, "#   Work Request ID: {:#018x}", request.wr_id)?;
        match &request.posted {
            None => writeln!(out, "#   The request was posted before the recording began.")?,
            Some(posted) => {
                match &posted.operation {
                    Some(operation) => {
                        let (opcode, value) = names::wr_opcode(operation);
                        writeln!(out, "#   Opcode: {name} ({opcode}, {value})")?;
                        let flags = names::flag_names(posted.flags);
                        writeln!(out, "#   Send Flags: {:#04x} ({flags})", posted.flags.bits())?;
                        write_operation(out, operation)?;
                    }
                    None => writeln!(out, "#   Opcode: {name}")?,
                }
                writeln!(out, "#   Length: {} bytes", posted.length)?;
                writeln!(out, "#   Scatter/Gather Elements: {}", posted.sge_count)?;
                if let Some(segment) = &posted.first_sge {
                    let (addr, length, lkey) = (segment.addr, segment.length, segment.lkey);
                    writeln!(out, "#   SGE[0]: Address: {addr:#x}, Length: {length}, LKey: {lkey:#010x}")?;
                }
                if posted.sge_count > 1 {
                    writeln!(out, "#   SGE[1..]: not recorded")?;
                }
                if posted.tag != 0 {
                    writeln!(out, "#   Tag: {:#x}", posted.tag)?;
                }
                if let Some(queue) = &posted.recv_queue {
                    writeln!(out, "#   Queue: {queue}")?;
                }
            }
        }
        if let Some(PsnRange { first, last }) = request.psn_range {
            writeln!(out, "#   Packet Sequence Numbers: {}", Psns(first, last))?;
        }
        let state = match request.wqe_state() {
            WqeState::Posted => "POSTED",
            WqeState::Processing => "PROCESSING",
            WqeState::Completed => "COMPLETED",
            WqeState::Error => "ERROR",
        };
        writeln!(out, "#   State: {state}")?;
        let RequestTimes { posted, doorbell, first_packet, last_packet, acknowledged, .. } = request.times;
        let steps = [
            ("Posted", posted),
            ("Doorbell", doorbell),
            ("First Packet", first_packet),
            ("Last Packet", last_packet),
            ("Acknowledged", acknowledged),
        ];
        self.write_steps(out, request.device, &steps)?;
        for retransmission in &request.retransmissions {
            let time = self.micros(request.device, retransmission.time);
            let cause = names::cause_words(retransmission.cause);
            writeln!(out, "#   Retransmission: {time} us from PSN {}, cause: {cause}", retransmission.psn)?;
        }
        if let Some(peer) = request.peer_request {
            let label = if request.queue == Queue::Send { "Received By" } else { "Message Of" };
            writeln!(out, "#   {label}: {}", RequestName(self.trace, peer))?;
        }
        Ok(())
    }

    fn write_steps(
        &self,
        out: &mut dyn Write,
        device: DeviceId,
        steps: &[(&str, Option<Time>)],
    ) -> io::Result<()> {
        for (name, time) in steps {
            if let Some(time) = time {
                writeln!(out, "#   {name}: {} us", self.micros(device, *time))?;
            }
        }
        Ok(())
    }

    fn write_cqe(&self, out: &mut dyn Write, request: &Request) -> io::Result<()> {
        let RequestTimes { completed, polled, processed, .. } = request.times;
        let Some(outcome) = &request.outcome else {
            return match completed {
                Some(time) => {
                    let time = self.micros(request.device, time);
                    writeln!(out, "# No completion: the request is unsignaled and succeeded at {time} us.")
                }
                None => writeln!(out, "# No completion yet."),
            };
        };
        writeln!(out, "# Completion Queue Entry (CQE) for {}:", request.operation_name())?;
        writeln!(out, "#   Work Request ID: {:#018x}", request.wr_id)?;
        match outcome {
            Ok(success) => {
                writeln!(out, "#   Status: IBV_WC_SUCCESS (0)")?;
                write_success(out, success)?;
            }
            Err(failure) => {
                let (name, code) = (names::status_name(failure.status), failure.status.code());
                writeln!(out, "#   Status: {name} ({code}): {}", failure.status)?;
                writeln!(out, "#   Vendor Error: {:#010x}", failure.vendor_error)?;
                writeln!(out, "#   Opcode, Byte Length: undefined, because the request failed")?;
            }
        }
        if let Some(qpn) = request.qpn {
            writeln!(out, "#   QP Number: {qpn}")?;
        }
        let state = match request.cqe_state() {
            Some(CqeState::Processed) => "PROCESSED",
            Some(CqeState::Polled) => "POLLED",
            Some(CqeState::Pending) | None => "PENDING",
        };
        writeln!(out, "#   State: {state}")?;
        let steps = [("Completed", completed), ("Polled", polled), ("Processed", processed)];
        self.write_steps(out, request.device, &steps)
    }

    /// Writes a packet as a tree.
    fn write_packet(&self, out: &mut dyn Write, id: PacketId) -> io::Result<()> {
        let Some(packet) = self.trace.packet(id) else { return Ok(()) };
        write!(out, "{} us ", self.micros(packet.device, packet.time))?;
        headers::write_addresses(out, packet)?;
        self.write_notes(out, packet)?;
        headers::write_tree(out, packet)
    }

    fn write_line(&self, out: &mut dyn Write, id: PacketId) -> io::Result<()> {
        let Some(packet) = self.trace.packet(id) else { return Ok(()) };
        let direction = if packet.direction == Direction::Out { "out" } else { "in" };
        let time = self.micros(packet.device, packet.time);
        write!(out, "{time} us {} {direction} {}", device_name(self.trace, packet.device), packet.header)?;
        write!(out, ", {} bytes", packet.payload_len)?;
        self.write_notes(out, packet)
    }

    /// Writes the facts about a packet that its headers don't contain.
    fn write_notes(&self, out: &mut dyn Write, packet: &Packet) -> io::Result<()> {
        if let Some(cause) = packet.retry_cause {
            write!(out, " [retransmission: {}]", names::cause_words(cause))?;
        } else if packet.is_retransmission {
            write!(out, " [retransmission]")?;
        }
        match &packet.role {
            PacketRole::Ack { acked_psns: Some(PsnRange { first, last }), .. } => {
                write!(out, " [acknowledges PSN {}]", Psns(*first, *last))?;
            }
            PacketRole::Ack { acked_psns: None, .. } => write!(out, " [acknowledges nothing new]")?,
            PacketRole::Nak { acked_psns, .. } => {
                write!(out, " [rejects PSN {}", packet.header.psn)?;
                if let Some(PsnRange { first, last }) = acked_psns {
                    write!(out, ", acknowledges PSN {}", Psns(*first, *last))?;
                }
                write!(out, "]")?;
            }
            PacketRole::Cm { message } => write!(out, " [CM {}]", message.unwrap_or("message"))?,
            PacketRole::Cnp => write!(out, " [congestion notification]")?,
            PacketRole::Request(_) | PacketRole::Response(_) => {}
        }
        if let Some(reason) = packet.dropped {
            write!(out, " [dropped: {reason:?}]")?;
        }
        let peer = packet.peer_packet.and_then(|peer| self.trace.packet(peer));
        match (packet.direction, peer) {
            (Direction::Out, Some(peer)) => {
                write!(out, " [received by {}", device_name(self.trace, peer.device))?;
                if self.trace.is_clock_shared(packet.device, peer.device) {
                    write!(out, " at {} us", self.micros(peer.device, peer.time))?;
                }
                write!(out, "]")?;
            }
            (Direction::Out, None) if self.ends.contains(&(packet.header.dest_qp, packet.qpn)) => {
                write!(out, " [not received by the peer]")?;
            }
            (Direction::In, Some(peer)) => {
                write!(out, " [sent by {}", device_name(self.trace, peer.device))?;
                if self.trace.is_clock_shared(packet.device, peer.device) {
                    write!(out, " at {} us", self.micros(peer.device, peer.time))?;
                }
                write!(out, "]")?;
            }
            _ => {}
        }
        writeln!(out)
    }

    /// Writes the events of a device that belong to no single request.
    fn write_other_events(&self, out: &mut dyn Write, device: DeviceId) -> io::Result<()> {
        let mut other_events =
            self.trace.other_events.iter().filter(|timed| timed.device == device).peekable();
        if other_events.peek().is_some() {
            writeln!(out, "\n# Events of {}:", device_name(self.trace, device))?;
        }
        for timed in other_events {
            let time = self.micros(device, timed.time);
            match timed.event {
                TraceEvent::CqEventDelivered { .. } => {
                    writeln!(out, "# {time} us: {} (completion notification)", timed.event)?;
                }
                event => writeln!(out, "# {time} us: {event}")?,
            }
        }
        Ok(())
    }

    /// Writes the packets that belong to no recorded request of an application, such as those of the connection manager.
    /// A packet that was recorded at both ends is listed at its sender.
    fn write_other_packets(&self, out: &mut dyn Write, listed: &[bool]) -> io::Result<()> {
        let is_listed_at_sender =
            |packet: &Packet| packet.direction == Direction::In && packet.peer_packet.is_some();
        let mut others = (0..self.trace.packets.len())
            .map(PacketId)
            .filter(|id| !listed.get(id.0).copied().unwrap_or(true))
            .filter(|id| !self.trace.packet(*id).is_some_and(is_listed_at_sender))
            .peekable();
        if others.peek().is_some() {
            writeln!(out, "\n{RULE}\n# OTHER PACKETS\n{RULE}")?;
        }
        others.try_for_each(|id| self.write_line(out, id))
    }
}

fn mark(listed: &mut [bool], id: PacketId) {
    if let Some(is_listed) = listed.get_mut(id.0) {
        *is_listed = true;
    }
}

/// The first and the last of some sequence numbers.
struct Psns(Psn, Psn);

impl core::fmt::Display for Psns {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0 == self.1 { write!(f, "{}", self.0) } else { write!(f, "{} to {}", self.0, self.1) }
    }
}

/// Writes the fields of a work request that depend on its operation.
fn write_operation(out: &mut dyn Write, operation: &SendOperation) -> io::Result<()> {
    if let Some(remote) = operation.remote() {
        writeln!(out, "#   Remote Address: {:#018x}", remote.addr)?;
        writeln!(out, "#   Remote Key: {:#010x}", remote.rkey)?;
    }
    match operation {
        SendOperation::SendWithImm(immediate) | SendOperation::WriteWithImm(_, immediate) => {
            writeln!(out, "#   Immediate Data: {immediate:#010x}")
        }
        SendOperation::SendInvalidate(rkey) | SendOperation::LocalInvalidate(rkey) => {
            writeln!(out, "#   Invalidated Key: {rkey:#010x}")
        }
        SendOperation::CompareSwap { compare, swap, .. } => {
            writeln!(out, "#   Compare: {compare:#018x}")?;
            writeln!(out, "#   Swap: {swap:#018x}")
        }
        SendOperation::FetchAdd { add, .. } => writeln!(out, "#   Add: {add:#018x}"),
        SendOperation::Flush(range) => {
            let target = if range.whole_region { "memory region" } else { "range" };
            let (global, persistent) = (range.global, range.persistent);
            writeln!(out, "#   Flush: {target} of {} bytes", range.length)?;
            writeln!(out, "#   Placement: globally visible: {global}, persistent: {persistent}")
        }
        SendOperation::BindWindow(bind) => {
            let (addr, length) = (bind.addr, bind.length);
            writeln!(out, "#   Window Key: {:#010x}, Range: {addr:#x}, {length} bytes", bind.rkey)
        }
        SendOperation::Send
        | SendOperation::Write(_)
        | SendOperation::Read(_)
        | SendOperation::AtomicWrite { .. } => Ok(()),
    }
}

fn write_success(out: &mut dyn Write, success: &Success) -> io::Result<()> {
    let (name, value) = names::wc_opcode(&success.operation);
    writeln!(out, "#   Opcode: {name} ({value})")?;
    writeln!(out, "#   Vendor Error: 0x00000000")?;
    writeln!(out, "#   Byte Length: {}", success.length)?;
    match success.operation {
        CompletedOperation::Recv { immediate, invalidated, source, has_grh } => {
            if let Some(immediate) = immediate {
                writeln!(out, "#   Immediate Data: {immediate:#010x}")?;
            }
            if let Some(rkey) = invalidated {
                writeln!(out, "#   Invalidated Key: {rkey:#010x}")?;
            }
            if let Some(source) = source {
                writeln!(out, "#   Source QP: {source}")?;
            }
            if has_grh {
                writeln!(out, "#   Global Route Header: in the first 40 bytes of the buffer")?;
            }
            Ok(())
        }
        CompletedOperation::RecvWrite { immediate } => {
            writeln!(out, "#   Immediate Data: {immediate:#010x}")
        }
        // The completions of send requests have no further fields.
        _ => Ok(()),
    }
}
