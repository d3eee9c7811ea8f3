//! The summary of a trace.

use std::io::{self, Write};

use adverb_proto::trace::{Queue, RetryCause, TraceEvent};
use adverb_proto::types::{Failure, Status};

use super::{RequestName, is_own};
use crate::model::{Direction, RequestId, Trace, WqeState};
use crate::names;

/// The maximum number of slow requests, and of failed requests, that a summary names.
const MAX_NAMED: usize = 5;

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let names: Vec<&str> = trace.devices.iter().map(|device| &*device.name).collect();
    writeln!(out, "devices:         {} ({})", names.len(), names.join(", "))?;
    let lost: u64 = trace.devices.iter().map(|device| device.lost_count).sum();
    writeln!(out, "events:          {} recorded, {lost} lost", trace.events.len())?;
    write_requests(trace, out)?;
    let count = |is_counted: &dyn Fn(&crate::model::Packet) -> bool| {
        trace.packets.iter().filter(|packet| is_counted(packet)).count()
    };
    let sent = count(&|packet| packet.direction == Direction::Out);
    let retransmitted = count(&|packet| packet.direction == Direction::Out && packet.is_retransmission);
    let dropped = count(&|packet| packet.dropped.is_some());
    let received = trace.packets.len() - sent;
    writeln!(
        out,
        "packets:         {sent} sent ({retransmitted} retransmitted), {received} received ({dropped} dropped)"
    )?;
    write_retransmissions(trace, out)?;
    write_failed(trace, out)?;
    write_slowest(trace, out)
}

fn write_requests(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let (mut succeeded, mut failed, mut outstanding) = (0, 0, 0);
    let requests = || trace.requests.iter().filter(|request| !is_own(request));
    for request in requests() {
        match request.wqe_state() {
            WqeState::Completed => succeeded += 1,
            WqeState::Error => failed += 1,
            WqeState::Posted | WqeState::Processing => outstanding += 1,
        }
    }
    let count = requests().count();
    writeln!(
        out,
        "requests:        {count}: {succeeded} succeeded, {failed} failed, {outstanding} outstanding"
    )
}

fn write_retransmissions(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let causes = [RetryCause::Timeout, RetryCause::SequenceNak, RetryCause::ImpliedNak, RetryCause::Rnr];
    let counts = causes.map(|wanted| {
        let is_wanted =
            |event: &TraceEvent| matches!(event, TraceEvent::Retransmit { cause, .. } if *cause == wanted);
        (wanted, trace.other_events.iter().filter(|timed| is_wanted(&timed.event)).count())
    });
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    write!(out, "retransmissions: {total}")?;
    let mut separator = ": ";
    for (cause, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        write!(out, "{separator}{count} by {}", names::cause_words(cause))?;
        separator = ", ";
    }
    writeln!(out)
}

fn write_failed(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let mut flushed = 0;
    let mut failed = Vec::new();
    for (index, request) in trace.requests.iter().enumerate() {
        match request.outcome {
            Some(Err(Failure { status: Status::Flushed, .. })) => flushed += 1,
            Some(Err(failure)) => failed.push((RequestId(index), failure)),
            _ => {}
        }
    }
    for (id, failure) in failed.iter().take(MAX_NAMED) {
        let (name, code) = (names::status_name(failure.status), failure.status.code());
        writeln!(out, "failed:          {}: {name} ({code}), {}", RequestName(trace, *id), failure.status)?;
    }
    if let Some(more) = failed.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
        writeln!(out, "failed:          {more} more")?;
    }
    if flushed > 0 {
        writeln!(out, "flushed:         {flushed} requests")?;
    }
    Ok(())
}

fn write_slowest(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    // Receives are excluded: their time depends on the time at which the peer sends.
    let sends = trace.requests.iter().enumerate().filter(|(_, request)| {
        request.queue == Queue::Send && request.wqe_state() == WqeState::Completed && !is_own(request)
    });
    let mut slowest: Vec<(u128, RequestId)> = sends
        .filter_map(|(index, request)| {
            let duration = request.times.completed? - request.times.posted?;
            Some((duration.as_nanos(), RequestId(index)))
        })
        .collect();
    slowest.sort_unstable_by_key(|(nanos, id)| (core::cmp::Reverse(*nanos), *id));
    for (nanos, id) in slowest.into_iter().take(MAX_NAMED) {
        let (micros, rest) = (nanos / 1000, nanos % 1000);
        writeln!(
            out,
            "slowest:         {micros}.{rest:03} us from post to completion: {}",
            RequestName(trace, id)
        )?;
    }
    Ok(())
}
