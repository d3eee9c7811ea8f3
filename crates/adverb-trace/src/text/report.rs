//! The report on failed requests.

use std::collections::HashMap;
use std::io::{self, Write};

use adverb_proto::Time;
use adverb_proto::trace::{Queue, StopCause, TimerKind, TraceEvent};
use adverb_proto::types::{Failure, Psn, Qpn, Status};

use super::clock::Times;
use super::{RequestName, device_name, write_clock_note};
use crate::model::{DeviceId, Direction, PsnRange, Request, RequestId, Retransmission, Trace};
use crate::names;

/// The maximum number of packets that a report lists: the last ones of a failed request.
const MAX_PACKETS: usize = 10;

/// The progress of a queue pair at the time of a failure.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// The first sequence number that is not acknowledged, and the time of the last acknowledgement.
    unacked: Option<(Psn, Time)>,
    /// The retransmissions since then.
    retransmissions: Vec<Retransmission>,
    /// The acknowledgement timeouts since then.
    timeouts: Vec<Time>,
}

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let times = Times::new(trace);
    write_clock_note(&times, trace, out)?;
    let (failures, flushed) = failures(trace);
    for (id, progress) in &failures {
        if let Some(request) = trace.request(*id) {
            writeln!(out)?;
            write_failure(trace, &times, out, *id, request, progress)?;
        }
    }
    if failures.is_empty() {
        writeln!(out, "No request failed.")?;
    }
    if flushed > 0 {
        writeln!(out, "\n{flushed} requests were flushed.")?;
    }
    for device in trace.devices.iter().filter(|device| device.lost_count > 0) {
        writeln!(out, "{}: {} older events were overwritten.", device.name, device.lost_count)?;
    }
    Ok(())
}

/// Returns the failed requests, each with the progress of its queue pair, and the number of flushed requests.
fn failures(trace: &Trace) -> (Vec<(RequestId, Progress)>, usize) {
    let mut failed: HashMap<(DeviceId, Qpn), Vec<RequestId>> = HashMap::new();
    let mut flushed = 0;
    for (index, request) in trace.requests.iter().enumerate() {
        match (request.outcome, request.qpn) {
            (Some(Err(Failure { status: Status::Flushed, .. })), _) => flushed += 1,
            (Some(Err(_)), Some(qpn)) => {
                failed.entry((request.device, qpn)).or_default().push(RequestId(index));
            }
            _ => {}
        }
    }
    let mut progresses: HashMap<(DeviceId, Qpn), Progress> = HashMap::new();
    let mut failures = Vec::new();
    let mut timed_out = vec![None; trace.devices.len()];
    for timed in &trace.events {
        let Some(qpn) = timed.event.qpn() else { continue };
        let key = (timed.device, qpn);
        let time = timed.time;
        match timed.event {
            TraceEvent::Acknowledged { psn, .. } => {
                progresses.insert(key, Progress { unacked: Some((psn, time)), ..Progress::default() });
            }
            TraceEvent::Retransmit { psn, cause, .. } => {
                let retransmission = Retransmission { time, psn, cause };
                progresses.entry(key).or_default().retransmissions.push(retransmission);
            }
            TraceEvent::TimerExpired { timer: TimerKind::AckTimeout, .. } => {
                progresses.entry(key).or_default().timeouts.push(time);
                if let Some(last) = timed_out.get_mut(timed.device.0) {
                    *last = Some(qpn);
                }
            }
            TraceEvent::Completed { queue, request, outcome: Err(_), .. } => {
                let is_failed = |id: &RequestId| {
                    trace
                        .request(*id)
                        .is_some_and(|failed| failed.queue == queue && failed.number_in_queue == request)
                };
                if let Some(ids) = failed.get_mut(&key)
                    && let Some(index) = ids.iter().position(is_failed)
                {
                    let progress = progresses.get(&key).cloned().unwrap_or_default();
                    failures.push((ids.remove(index), progress));
                }
            }
            _ => {}
        }
    }
    for (index, device) in trace.devices.iter().enumerate() {
        if device.stop_cause == StopCause::Timeout
            && let Some(Some(qpn)) = timed_out.get(index)
            && let Some(id) = oldest_outstanding(trace, DeviceId(index), *qpn)
        {
            failures.push((id, progresses.get(&(DeviceId(index), *qpn)).cloned().unwrap_or_default()));
        }
    }
    (failures, flushed)
}

/// Returns the oldest send request of a queue pair of which a packet was sent and that has not completed.
fn oldest_outstanding(trace: &Trace, device: DeviceId, qpn: Qpn) -> Option<RequestId> {
    let is_outstanding = |request: &Request| {
        request.device == device
            && request.qpn == Some(qpn)
            && request.queue == Queue::Send
            && request.times.completed.is_none()
            && request.times.first_packet.is_some()
    };
    trace.requests.iter().position(is_outstanding).map(RequestId)
}

fn write_failure(
    trace: &Trace,
    times: &Times<'_>,
    out: &mut dyn Write,
    id: RequestId,
    request: &Request,
    progress: &Progress,
) -> io::Result<()> {
    let micros = |time: Time| times.micros(request.device, time);
    let verb = if request.outcome.is_some() { "Failed" } else { "Timed out" };
    writeln!(out, "{verb}: {}", RequestName(trace, id))?;
    writeln!(out, "  work request id: {:#x}", request.wr_id)?;
    if let Some(posted) = request.posted {
        writeln!(out, "  posted:          {} bytes, tag {:#x}", posted.length, posted.tag)?;
    }
    if let Some(Err(Failure { status, vendor_error })) = request.outcome {
        let (name, code) = (names::status_name(status), status.code());
        writeln!(out, "  status:          {name} ({code}), vendor error {vendor_error:#x}")?;
        writeln!(out, "  meaning:         {status}")?;
        if let Some(hint) = status.hint() {
            writeln!(out, "  to do:           {hint}")?;
        }
    }
    let device = trace.device(request.device);
    let connection = request.connection.and_then(|index| device?.connections.get(index));
    match connection {
        Some(connection) => {
            let (local, remote) = (connection.local, connection.remote);
            writeln!(out, "  peer:            qp {}, {local} > {remote}", connection.remote_qpn)?;
        }
        None => writeln!(out, "  peer:            not recorded")?,
    }
    if request.queue == Queue::Send {
        if let Some(PsnRange { first, last }) = request.psn_range {
            writeln!(out, "  PSNs:            {first} to {last}")?;
        }
        match (progress.unacked, connection.and_then(|connection| connection.send_psn)) {
            (Some((psn, time)), _) => {
                writeln!(
                    out,
                    "  acknowledged:    all before PSN {psn}, last PSN {} at {} us",
                    psn - 1,
                    micros(time)
                )?;
            }
            (None, Some(psn)) => {
                writeln!(out, "  acknowledged:    nothing since PSN {psn}")?;
            }
            (None, None) => writeln!(out, "  acknowledged:    nothing in this recording")?,
        }
    }
    let times = request.times;
    let steps = [
        ("post", times.posted),
        ("first packet", times.first_packet),
        ("last packet", times.last_packet),
        ("completion", times.completed),
        ("poll", times.polled),
    ];
    for (name, time) in steps {
        if let Some(time) = time {
            writeln!(out, "  {:16} {} us", format!("{name}:"), micros(time))?;
        }
    }
    if !progress.timeouts.is_empty() {
        let timeouts: Vec<String> = progress.timeouts.iter().map(|time| micros(*time).to_string()).collect();
        writeln!(out, "  timeouts:        {}, at {} us", timeouts.len(), timeouts.join(", "))?;
        if let [.., before, last] = progress.timeouts[..] {
            let interval = last - before;
            writeln!(out, "  timeout:         {interval:?} (time between the last two)")?;
        } else if let (Some(last), Some(first)) = (progress.timeouts.last(), times.first_packet) {
            let interval = *last - progress.unacked.map_or(first, |(_, time)| time.max(first));
            writeln!(out, "  timeout:         {interval:?}")?;
        }
    }
    writeln!(out, "  retransmissions: {} since the last acknowledgement", progress.retransmissions.len())?;
    for Retransmission { time, psn, cause } in &progress.retransmissions {
        writeln!(out, "    {} us from PSN {psn}: {}", micros(*time), names::cause_words(*cause))?;
    }
    let packets = request.packets.iter().chain(&request.acks);
    let mut packets: Vec<_> = packets.filter_map(|id| trace.packet(*id)).collect();
    packets.sort_by_key(|packet| packet.time);
    writeln!(out, "  last packets on {}:", device_name(trace, request.device))?;
    for packet in &packets[packets.len().saturating_sub(MAX_PACKETS)..] {
        let direction = if packet.direction == Direction::Out { "out" } else { "in " };
        writeln!(out, "    {} us {direction} {}", micros(packet.time), packet.header)?;
    }
    Ok(())
}
