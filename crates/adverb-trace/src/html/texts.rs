//! Texts of events.

use adverb_proto::QueueEvent;
use adverb_proto::trace::{TimerKind, TraceEvent};
use adverb_proto::types::{CompletedOperation, QpState};

use super::headers::Field;

/// The form in which the diagram shows an event that belongs to no single request or packet.
pub(super) struct EventText {
    /// The text of the row.
    pub(super) text: String,
    /// Whether the diagram shows the event at the application. It shows the other events at the device.
    pub(super) is_at_application: bool,
    /// Whether the event is or announces a failure.
    pub(super) is_failure: bool,
}

/// Describes an event of [`Trace::other_events`](crate::Trace::other_events).
pub(super) fn other_event(event: &TraceEvent) -> EventText {
    let (is_at_application, is_failure) = match event {
        TraceEvent::CqEventDelivered { .. } | TraceEvent::SrqLimit { .. } => (true, false),
        TraceEvent::QueueEventDelivered { event } => (true, is_failure(event)),
        TraceEvent::TimerExpired { timer: TimerKind::AckTimeout, .. }
        | TraceEvent::Dropped { .. }
        // A program moves a queue pair to the error state to disconnect. If a failure does, the failure has its own mark.
        | TraceEvent::StateChanged { to: QpState::SendQueueError, .. } => (false, true),
        _ => (false, false),
    };
    let text = match event {
        TraceEvent::Connected { transport, remote_qpn, .. } => {
            format!("{transport} connected to {remote_qpn}")
        }
        TraceEvent::StateChanged { from, to, .. } => {
            format!("QP {} → {}", state_name(*from), state_name(*to))
        }
        TraceEvent::TimerExpired { timer, .. } => match timer {
            TimerKind::AckTimeout => "ACK timeout expired".to_owned(),
            TimerKind::Rnr => "RNR backoff ended".to_owned(),
            timer => format!("{timer} timer expired"),
        },
        TraceEvent::CnpReceived { rate: Some(rate), .. } => {
            format!("congestion: rate {} Mbit/s", rate / 1_000_000)
        }
        TraceEvent::CnpReceived { rate: None, .. } => "congestion reported".to_owned(),
        TraceEvent::CqEventDelivered { cq } => format!("completion event, CQ {}", cq.number()),
        TraceEvent::SrqLimit { srq } => format!("SRQ {} is below its limit", srq.number()),
        TraceEvent::QueueEventDelivered { event } => queue_event(event),
        TraceEvent::Dropped { psn, opcode, reason, .. } => format!("dropped {opcode} PSN {psn}: {reason}"),
        event => event.to_string(),
    };
    EventText { text, is_at_application, is_failure }
}

/// Returns the short name of a state.
const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::ReadyToReceive => "RTR",
        QpState::ReadyToSend => "RTS",
        QpState::SendQueueDrained => "SQD",
        QpState::SendQueueError => "SQE",
        QpState::Error => "ERROR",
    }
}

fn is_failure(event: &QueueEvent) -> bool {
    matches!(
        event,
        QueueEvent::CqOverflow(_)
            | QueueEvent::RequestError(_)
            | QueueEvent::AccessError(_)
            | QueueEvent::Fatal(_)
    )
}

fn queue_event(event: &QueueEvent) -> String {
    match event {
        QueueEvent::CqOverflow(cq) => format!("event: CQ {} is full", cq.number()),
        QueueEvent::Established(_) => "event: communication established".to_owned(),
        QueueEvent::SrqLimit(srq) => format!("event: SRQ {} limit", srq.number()),
        QueueEvent::LastReceiveReached(_) => "event: last receive reached".to_owned(),
        QueueEvent::SendQueueDrained(_) => "event: send queue drained".to_owned(),
        QueueEvent::RequestError(_) => "event: invalid request of the peer".to_owned(),
        QueueEvent::AccessError(_) => "event: access violation of the peer".to_owned(),
        QueueEvent::Fatal(_) => "event: queue pair failed".to_owned(),
        event => format!("event: {event:?}"),
    }
}

/// Returns the parameters of a completion's operation.
pub(super) fn completed_operation(operation: &CompletedOperation) -> Vec<Field> {
    let mut fields = Vec::new();
    match *operation {
        CompletedOperation::Recv { immediate, invalidated, source, has_grh } => {
            fields.extend(immediate.map(|immediate| ("immediate data", format!("{immediate:#x}"))));
            fields.extend(invalidated.map(|rkey| ("invalidated rkey", format!("{rkey:#x}"))));
            fields.extend(source.map(|qpn| ("source QP", qpn.to_string())));
            fields.extend(has_grh.then(|| ("GRH", "40 bytes at the start of the buffer".to_owned())));
        }
        CompletedOperation::RecvWrite { immediate } => {
            fields.push(("immediate data", format!("{immediate:#x}")));
        }
        _ => {}
    }
    fields
}

#[cfg(test)]
mod tests {
    use adverb_proto::types::Qpn;

    use super::*;

    #[test]
    fn a_disconnect_is_not_marked_as_a_failure() {
        let changed = |to| {
            let event = TraceEvent::StateChanged { qpn: Qpn::truncate(17), from: QpState::ReadyToSend, to };
            other_event(&event)
        };
        let disconnected = changed(QpState::Error);
        assert_eq!((disconnected.text.as_str(), disconnected.is_failure), ("QP RTS → ERROR", false));
        assert!(changed(QpState::SendQueueError).is_failure);
    }
}
