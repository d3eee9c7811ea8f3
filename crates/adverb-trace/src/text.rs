//! Traces as text: the listing of each request with its packets and its completion, one line per event, the summary,
//! and the report on failures.

mod clock;
mod headers;
mod listing;
mod report;
mod summary;

use std::io::{self, Write};

use adverb_proto::trace::TraceEvent;
use adverb_proto::types::Qpn;

use crate::model::{DeviceId, Direction, PacketId, PacketRole, Request, RequestId, TimedEvent, Trace};
use clock::Times;

impl Trace {
    /// Writes a listing of the trace: for each request the work queue entry, the packets as trees of their headers, and
    /// the completion queue entry. Packets that belong to no request of an application follow, one line each: those of
    /// the connection manager, for example.
    ///
    /// Times are in microseconds since the first event. Devices that do not [share a clock](Trace::is_clock_shared) are
    /// listed with their own times, which are not comparable.
    ///
    /// ```
    /// # mod adverb { pub use adverb_trace as trace; }
    /// use adverb::trace::Trace;
    ///
    /// let mut listing = Vec::new();
    /// Trace::default().write_text(&mut listing)?;
    /// assert!(listing.starts_with(b"# Trace of 0 devices"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of `out`.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        listing::Listing::new(self).write(out)
    }

    /// Writes one line for each event: the time in microseconds since the first event, the device and the event. If a
    /// device received a packet of another recorded device's request, the request follows on the line.
    ///
    /// Devices that [share a clock](Trace::is_clock_shared) are merged in the order of their times; other devices follow
    /// each other.
    ///
    /// # Errors
    ///
    /// Returns the error of `out`.
    pub fn write_lines(&self, out: &mut impl Write) -> io::Result<()> {
        let times = Times::new(self);
        write_clock_note(&times, self, out)?;
        let width = self.devices.iter().map(|device| device.name.len()).max().unwrap_or(0);
        for clock in 0..times.clocks.count() {
            for (event, packet) in events_on(self, &times, clock) {
                let time = times.micros(event.device, event.time);
                let name = device_name(self, event.device);
                write!(out, "{time:>12} us  {name:width$}  {}", event.event)?;
                let packet = packet.and_then(|id| self.packet(id));
                if let Some(packet) = packet.filter(|packet| packet.direction == Direction::In)
                    && let Some(request) = role_request(&packet.role)
                    && self.request(request).is_some_and(|request| request.device != event.device)
                {
                    write!(out, ", {}", RequestName(self, request))?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }

    /// Writes a short summary: counts of requests and packets, retransmissions by cause, failed requests, the slowest
    /// requests, and the number of lost events.
    ///
    /// # Errors
    ///
    /// Returns the error of `out`.
    pub fn write_summary(&self, out: &mut impl Write) -> io::Result<()> {
        summary::write(self, out)
    }

    /// Writes a report on each request that failed: the peer, the last acknowledged sequence number, the
    /// retransmissions and timeouts, and the meaning of the completion's status. Flushed requests are only counted,
    /// because another request is the cause of their failure.
    ///
    /// This is the text for a flight recorder's dump. If the recording stopped at a timeout, the report describes the
    /// request that timed out.
    ///
    /// # Errors
    ///
    /// Returns the error of `out`.
    pub fn write_report(&self, out: &mut impl Write) -> io::Result<()> {
        report::write(self, out)
    }
}

/// The name of a request, such as `soft0 qp 0x000012 send #3 (RDMA WRITE)`.
struct RequestName<'a>(&'a Trace, RequestId);

impl core::fmt::Display for RequestName<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Some(request) = self.0.request(self.1) else { return f.write_str("unknown request") };
        f.write_str(device_name(self.0, request.device))?;
        if let Some(qpn) = request.qpn {
            write!(f, " qp {qpn}")?;
        }
        write!(f, " {} #{} ({})", request.queue.name(), request.number_in_queue, request.operation_name())
    }
}

/// Whether a request is the device's own: the connection manager uses queue pair 1.
fn is_own(request: &Request) -> bool {
    request.qpn == Some(Qpn::GSI)
}

fn device_name(trace: &Trace, device: DeviceId) -> &str {
    trace.device(device).map_or("", |device| &device.name)
}

/// Returns the request that a packet belongs to. An ACK belongs to the last request that it acknowledges.
fn role_request(role: &PacketRole) -> Option<RequestId> {
    match role {
        PacketRole::Request(request) | PacketRole::Response(request) => *request,
        PacketRole::Nak { nacked_request, .. } => *nacked_request,
        PacketRole::Ack { acked_requests, .. } => acked_requests.last().copied(),
        PacketRole::Cm { .. } | PacketRole::Cnp => None,
    }
}

/// Returns the events of the devices that have one clock, in order, with their packets.
fn events_on<'a>(
    trace: &'a Trace,
    times: &Times<'_>,
    clock: usize,
) -> Vec<(&'a TimedEvent, Option<PacketId>)> {
    let mut packets = 0;
    let mut events = Vec::new();
    for event in &trace.events {
        // The packets are in the order of their events.
        let is_packet =
            matches!(event.event, TraceEvent::PacketSent { .. } | TraceEvent::PacketReceived { .. });
        let packet = is_packet.then_some(PacketId(packets));
        packets += usize::from(is_packet);
        if times.clocks.of(event.device) == clock {
            events.push((event, packet));
        }
    }
    events.sort_by_key(|(event, _)| trace.host_nanos(event.device, event.time));
    events
}

/// Writes which devices have comparable times.
fn write_clock_note(times: &Times<'_>, trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    if times.clocks.count() < 2 {
        return writeln!(out, "# Times are in microseconds since the first event.");
    }
    writeln!(out, "# Times are in microseconds since the first event on the same clock. These devices have")?;
    writeln!(out, "# different clocks, so that a time of one can't be compared with a time of another:")?;
    for clock in 0..times.clocks.count() {
        let names: Vec<&str> = times.clocks.devices(clock).map(|device| device_name(trace, device)).collect();
        writeln!(out, "#   clock {clock}: {}", names.join(", "))?;
    }
    Ok(())
}
