//! Trace events and statistics.

use adverb_proto::types::{CompletedOperation, QpState, SendFlags, SendOperation};
use adverb_proto::{Queue, RetryCause, TimerKind, TraceEvent};
use adverb_wire::{Header, NakCode, Opcode, Psn, Rc, Send, Syndrome};

use crate::harness::{End, Pair, solo};

#[test]
fn request_generates_events_from_post_to_completion() {
    let mut pair = Pair::new();
    pair.a.device.sink_mut().clear();
    pair.a.post(5, SendOperation::Write(pair.b.remote_addr(0)), 0, 8);
    pair.run();
    let events: Vec<TraceEvent> = pair.a.device.sink().iter().map(|(_, event)| *event).collect();
    let qpn = pair.a.qpn;
    let psn = Psn::wrapping(crate::harness::PSN);
    let [
        TraceEvent::PostedSend {
            qpn: posted_qpn,
            request: 0,
            wr_id: 5,
            tag: 0,
            operation,
            flags,
            length: 8,
            sge_count: 1,
            first_sge,
        },
        TraceEvent::Doorbell { qpn: doorbell_qpn },
        TraceEvent::PacketSent {
            qpn: sent_qpn,
            request: Some(0),
            header: out,
            payload_len: 8,
            is_retransmission: false,
        },
        TraceEvent::PacketReceived { qpn: received_qpn, request: Some(0), header: ack, payload_len: 0 },
        TraceEvent::Completed {
            qpn: completed_qpn,
            queue: Queue::Send,
            request: 0,
            wr_id: 5,
            outcome: Ok(success),
            ..
        },
        TraceEvent::Acknowledged { qpn: acked_qpn, psn: acked },
    ] = events[..]
    else {
        panic!("{events:#?}");
    };
    assert!(
        [posted_qpn, doorbell_qpn, sent_qpn, received_qpn, completed_qpn, acked_qpn]
            .iter()
            .all(|event_qpn| *event_qpn == qpn)
    );
    assert_eq!(operation, SendOperation::Write(pair.b.remote_addr(0)));
    assert!(flags.contains(SendFlags::SIGNALED));
    assert_eq!(first_sge.map(|segment| segment.length), Some(8));
    assert_eq!((out.opcode(), out.psn), (Opcode::RcWriteOnly, psn));
    assert_eq!((ack.opcode(), ack.psn), (Opcode::RcAcknowledge, psn));
    assert_eq!((success.operation, success.length), (CompletedOperation::Write, 8));
    assert_eq!(acked, psn + 1);
}

#[test]
fn responses_name_the_request_they_belong_to() {
    let mut pair = Pair::new();
    pair.a.device.sink_mut().clear();
    pair.a.post(1, SendOperation::Write(pair.b.remote_addr(0)), 0, 3000);
    pair.a.post(2, SendOperation::Read(pair.b.remote_addr(0)), 0, 3000);
    pair.a.post(3, SendOperation::FetchAdd { remote: pair.b.remote_addr(0), add: 1 }, 0, 8);
    pair.run();
    let mut requests = std::collections::BTreeMap::<(Opcode, u32), usize>::new();
    for (_, event) in pair.a.device.sink() {
        if let TraceEvent::PacketSent { request: Some(request), header, .. }
        | TraceEvent::PacketReceived { request: Some(request), header, .. } = event
        {
            *requests.entry((header.opcode(), *request)).or_default() += 1;
        }
        if let TraceEvent::PacketReceived { request, header, .. } = event {
            assert!(request.is_some(), "{header}");
        }
    }
    for (opcode, request) in [
        (Opcode::RcWriteFirst, 0),
        (Opcode::RcWriteLast, 0),
        (Opcode::RcReadRequest, 1),
        (Opcode::RcReadResponseFirst, 1),
        (Opcode::RcReadResponseLast, 1),
        (Opcode::RcFetchAdd, 2),
        (Opcode::RcAtomicAcknowledge, 2),
    ] {
        assert_eq!(requests.get(&(opcode, request)), Some(&1), "{opcode} {requests:?}");
    }
}

#[test]
fn unsignaled_request_ends_without_a_completion() {
    let mut pair = Pair::new();
    pair.a.device.sink_mut().clear();
    let segment = pair.a.segment(0, 8);
    let operation = SendOperation::Write(pair.b.remote_addr(0));
    pair.a.try_post(1, operation, SendFlags::empty(), &[segment]).unwrap();
    pair.run();
    let events: Vec<TraceEvent> = pair.a.device.sink().iter().map(|(_, event)| *event).collect();
    assert!(events.contains(&TraceEvent::CompletedUnsignaled { qpn: pair.a.qpn, request: 0 }), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, TraceEvent::Completed { .. })));
}

#[test]
fn connected_events_are_generated_on_transitions_and_on_demand() {
    let mut pair = Pair::new();
    let (qpn, remote) = (pair.a.qpn, pair.b.qpn);
    let connected = |pair: &Pair| -> Vec<TraceEvent> {
        let events = pair.a.device.sink().iter().map(|(_, event)| *event);
        events.filter(|event| matches!(event, TraceEvent::Connected { .. })).collect()
    };
    let events = connected(&pair);
    let [TraceEvent::Connected { send_psn: None, .. }, last] = events[..] else { panic!("{events:?}") };
    let TraceEvent::Connected { qpn: event_qpn, remote_qpn, send_psn: Some(psn), .. } = last else {
        panic!("{last:?}")
    };
    assert_eq!((event_qpn, remote_qpn, psn), (qpn, remote, Psn::wrapping(crate::harness::PSN)));
    pair.a.device.sink_mut().clear();
    let now = pair.a.now;
    pair.a.device.record_connections(now);
    assert_eq!(connected(&pair), [last]);
}

#[test]
fn timers_and_state_changes_generate_events() {
    let mut end = solo();
    let is_ready_to_send =
        |event: &TraceEvent| matches!(event, TraceEvent::StateChanged { to: QpState::ReadyToSend, .. });
    assert!(end.device.sink().iter().any(|(_, event)| is_ready_to_send(event)));
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    end.wait();
    let is_ack_timeout =
        |event: &TraceEvent| matches!(event, TraceEvent::TimerExpired { timer: TimerKind::AckTimeout, .. });
    assert!(end.device.sink().iter().any(|(_, event)| is_ack_timeout(event)));
}

#[test]
fn bytes_and_packets_are_counted_at_both_ends() {
    let mut pair = Pair::new();
    pair.a.post(1, SendOperation::Write(pair.b.remote_addr(0)), 0, 3000);
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
    assert!(lines.iter().any(|line| line.contains("out RC SEND only, qp ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.ends_with("post send #0 SEND, 8 bytes, tag 0x0")));
}

#[test]
fn sent_and_received_naks_generate_events() {
    let mut end = solo();
    end.receive(5, Rc::Send(Send::Only(None)), &[]);
    end.transmits();
    let syndrome = Syndrome::Nak(NakCode::SequenceError);
    let psn = Psn::wrapping(crate::harness::PSN);
    let has_event =
        |end: &End, event: TraceEvent| end.device.sink().iter().any(|(_, recorded)| *recorded == event);
    assert!(has_event(&end, TraceEvent::NakSent { qpn: end.qpn, psn, syndrome }));
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    end.receive(0, Rc::Acknowledge(adverb_wire::Aeth { syndrome, msn: 0 }), &[]);
    assert!(has_event(&end, TraceEvent::NakReceived { qpn: end.qpn, psn, syndrome }));
    assert!(has_event(&end, TraceEvent::Retransmit { qpn: end.qpn, psn, cause: RetryCause::SequenceNak }));
}

#[test]
fn sent_acknowledgements_generate_no_nak_events() {
    let mut end = solo();
    end.post_recv(1, 0, 8);
    end.receive(0, Rc::Send(Send::Only(None)), &[]);
    end.transmits();
    assert!(!end.device.sink().iter().any(|(_, event)| matches!(event, TraceEvent::NakSent { .. })));
}

#[test]
fn cnps_generate_packet_events() {
    let mut end = solo();
    let cnp = end.forge(&Header::cnp(end.qpn), &[]);
    end.deliver(&cnp);
    let is_received_cnp = |event: &TraceEvent| matches!(event, TraceEvent::PacketReceived { header, .. } if header.opcode() == Opcode::Cnp);
    assert!(end.device.sink().iter().any(|(_, event)| is_received_cnp(event)));
}

#[test]
fn every_event_prints_its_queue_pair() {
    let mut pair = Pair::new();
    pair.a.post(1, SendOperation::Send, 0, 8);
    pair.run();
    pair.b.post_recv(1, 0, 8);
    pair.run_until_idle_where(|_, _| true);
    for (_, event) in pair.a.device.sink().iter().chain(pair.b.device.sink()) {
        let line = event.to_string();
        assert!(line.starts_with("qp 0x") && line.len() > 14, "{line}");
    }
}
