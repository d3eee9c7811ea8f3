//! Events and statistics.

use adverb_proto::types::{QpState, SendOperation, Status};
use adverb_proto::{Queue, RetryCause, TimerKind, TraceEvent};
use adverb_wire::{Header, NakCode, Opcode, Psn, Rc, Send, Syndrome};

use crate::harness::{End, Pair, solo};

#[test]
fn life_of_a_request_is_told_from_post_to_completion() {
    let mut pair = Pair::new();
    pair.a.device.sink_mut().clear();
    pair.a.post(5, SendOperation::Write(pair.b.place(0)), 0, 8);
    pair.run();
    let events: Vec<TraceEvent> = pair.a.device.sink().iter().map(|(_, event)| *event).collect();
    let qpn = pair.a.qpn;
    let psn = adverb_wire::Psn::wrapping(crate::harness::PSN);
    assert_eq!(
        events,
        [
            TraceEvent::Posted { qpn, wr_id: 5, queue: Queue::Send },
            TraceEvent::Doorbell { qpn },
            TraceEvent::PacketOut {
                qpn,
                psn,
                opcode: Opcode::RcWriteOnly,
                payload_len: 8,
                is_retransmission: false
            },
            TraceEvent::PacketIn { qpn, psn, opcode: Opcode::RcAcknowledge, payload_len: 0 },
            TraceEvent::Completed { qpn, wr_id: 5, queue: Queue::Send, status: Status::Success },
            TraceEvent::Acknowledged { qpn, psn: psn + 1 },
        ]
    );
}

#[test]
fn timers_and_states_are_told() {
    let mut end = solo();
    let to = |event: &TraceEvent| matches!(event, TraceEvent::StateChanged { to: QpState::ReadyToSend, .. });
    assert!(end.device.sink().iter().any(|(_, event)| to(event)));
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    end.wait();
    let timer =
        |event: &TraceEvent| matches!(event, TraceEvent::TimerExpired { timer: TimerKind::AckTimeout, .. });
    assert!(end.device.sink().iter().any(|(_, event)| timer(event)));
}

#[test]
fn bytes_and_packets_are_counted_at_both_ends() {
    let mut pair = Pair::new();
    pair.a.post(1, SendOperation::Write(pair.b.place(0)), 0, 3000);
    pair.run();
    let (a, b) = (pair.a.device.statistics(), pair.b.device.statistics());
    assert_eq!((a.packets_sent, a.bytes_sent), (3, 3000));
    assert_eq!((b.packets_received, b.bytes_received), (3, 3000));
    assert_eq!(b.packets_sent, a.packets_received);
}

#[test]
fn events_print_as_lines() {
    let mut end = solo();
    end.post(0x10, SendOperation::Send, 0, 8);
    end.transmits();
    let lines: Vec<String> = end.device.sink().iter().map(|(_, event)| event.to_string()).collect();
    assert!(lines.iter().any(|line| line.ends_with("out RC SEND only psn 1000, 8 bytes")), "{lines:?}");
    assert!(lines.iter().any(|line| line.ends_with("post Send wr 0x10")));
}

#[test]
fn refusals_are_told_at_both_ends() {
    let mut end = solo();
    end.hear(5, Rc::Send(Send::Only(None)), &[]);
    end.transmits();
    let syndrome = Syndrome::Nak(NakCode::SequenceError);
    let psn = Psn::wrapping(crate::harness::PSN);
    let told = |end: &End, event: TraceEvent| end.device.sink().iter().any(|(_, told)| *told == event);
    assert!(told(&end, TraceEvent::NakSent { qpn: end.qpn, psn, syndrome }));
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    end.hear(0, Rc::Acknowledge(adverb_wire::Aeth { syndrome, msn: 0 }), &[]);
    assert!(told(&end, TraceEvent::NakReceived { qpn: end.qpn, psn, syndrome }));
    assert!(told(&end, TraceEvent::Retransmit { qpn: end.qpn, psn, cause: RetryCause::SequenceNak }));
}

#[test]
fn acknowledgements_sent_are_no_refusals() {
    let mut end = solo();
    end.post_recv(1, 0, 8);
    end.hear(0, Rc::Send(Send::Only(None)), &[]);
    end.transmits();
    assert!(!end.device.sink().iter().any(|(_, event)| matches!(event, TraceEvent::NakSent { .. })));
}

#[test]
fn congestion_notifications_are_told_as_packets_too() {
    let mut end = solo();
    let cnp = end.forge(&Header::cnp(end.qpn), &[]);
    end.deliver(&cnp);
    let come = |event: &TraceEvent| matches!(event, TraceEvent::PacketIn { opcode: Opcode::Cnp, .. });
    assert!(end.device.sink().iter().any(|(_, event)| come(event)));
}

#[test]
fn every_event_prints_its_queue_pair() {
    let mut pair = Pair::new();
    pair.a.post(1, SendOperation::Send, 0, 8);
    pair.run();
    pair.b.post_recv(1, 0, 8);
    pair.run_long_where(|_, _| true);
    for (_, event) in pair.a.device.sink().iter().chain(pair.b.device.sink()) {
        let line = event.to_string();
        assert!(line.starts_with("qp 0x") && line.len() > 14, "{line}");
    }
}
