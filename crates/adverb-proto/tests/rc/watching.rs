//! Events and statistics.

use adverb_proto::vocabulary::{QpState, SendOperation, Status};
use adverb_proto::{Event, Queue, TimerKind};
use adverb_wire::Opcode;

use crate::harness::{Pair, solo};

#[test]
fn life_of_a_request_is_told_from_post_to_completion() {
    let mut pair = Pair::new();
    pair.a.device.sink_mut().clear();
    pair.a.post(5, SendOperation::Write(pair.b.place(0)), 0, 8);
    pair.run();
    let events: Vec<Event> = pair.a.device.sink().iter().map(|(_, event)| *event).collect();
    let qpn = pair.a.qpn;
    let psn = adverb_wire::Psn::wrapping(crate::harness::PSN);
    assert_eq!(
        events,
        [
            Event::Posted { qpn, wr_id: 5, queue: Queue::Send },
            Event::Doorbell { qpn },
            Event::PacketOut { qpn, psn, opcode: Opcode::RcWriteOnly, payload_len: 8, again: false },
            Event::PacketIn { qpn, psn, opcode: Opcode::RcAcknowledge, payload_len: 0 },
            Event::Completed { qpn, wr_id: 5, queue: Queue::Send, status: Status::Success },
            Event::Acknowledged { qpn, psn: psn + 1 },
        ]
    );
}

#[test]
fn timers_and_states_are_told() {
    let mut end = solo();
    let to = |event: &Event| matches!(event, Event::State { to: QpState::ReadyToSend, .. });
    assert!(end.device.sink().iter().any(|(_, event)| to(event)));
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    end.wait();
    let timer = |event: &Event| matches!(event, Event::Timer { timer: TimerKind::Acknowledge, .. });
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
