//! The requester of an unreliable connection: its packets, completions and states.

use adverb_proto::types::{
    CompletedOperation, PathMtu, QpState, RecvRequest, RemoteAddress, SendFlags, SendOperation, SendRequest,
    Status, Transport,
};
use adverb_proto::{PostError, QueueEvent, TraceEvent, Transition};
use adverb_wire::{Operation, Packet, Psn, Reth, Send, Uc, Write};

use crate::harness::{ADDR, End, Options, PSN, Pair, SIZE, pattern, solo_with};

fn options() -> Options {
    Options { transport: Transport::Uc, ..Options::default() }
}

fn solo() -> End {
    solo_with(&options())
}

fn pair() -> Pair {
    Pair::with(&options())
}

/// Returns all packets to send now, as operations and sequence numbers relative to [`PSN`].
fn sent(end: &mut End) -> Vec<(Uc, u32)> {
    let headers = end.headers();
    let sent = headers.iter().map(|header| match header.operation {
        Operation::Uc(uc) => (uc, Psn::wrapping(header.psn.get().wrapping_sub(PSN)).get()),
        other => panic!("{other:?}"),
    });
    sent.collect()
}

#[test]
fn message_is_segmented_at_every_mtu() {
    for mtu in PathMtu::ALL {
        let bytes = u32::from(mtu.bytes());
        let mut end = solo_with(&Options { mtu, ..options() });
        for length in [0, 1, bytes - 1, bytes, bytes + 1, 3 * bytes] {
            end.post(1, SendOperation::Send, 0, length);
            let packets = end.transmits();
            assert_eq!(packets.len() as u32, length.div_ceil(bytes).max(1), "{length} at {mtu:?}");
            let payloads: Vec<u8> =
                packets.iter().flat_map(|bytes| Packet::parse(bytes).unwrap().payload().to_vec()).collect();
            assert_eq!(payloads, end.bytes(0, length as usize));
        }
    }
}

#[test]
fn parts_of_a_message_are_first_middle_last() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 3000);
    let expected = [Send::First, Send::Middle, Send::Last(None)].map(Uc::Send);
    assert_eq!(sent(&mut end), expected.into_iter().zip(0..).collect::<Vec<_>>());
}

#[test]
fn immediate_data_is_in_the_last_packet() {
    let mut end = solo();
    end.post(1, SendOperation::SendWithImm(7), 0, 1025);
    end.post(2, SendOperation::SendWithImm(8), 0, 4);
    let expected = [Send::First, Send::Last(Some(7)), Send::Only(Some(8))].map(Uc::Send);
    assert_eq!(sent(&mut end), expected.into_iter().zip(0..).collect::<Vec<_>>());
}

#[test]
fn first_packet_of_a_write_has_its_range() {
    let mut end = solo();
    let remote = RemoteAddress { addr: 0x5000, rkey: 9 };
    let reth = |length| Reth { va: 0x5000, rkey: 9, length };
    end.post(1, SendOperation::Write(remote), 0, 2100);
    end.post(2, SendOperation::WriteWithImm(remote, 5), 0, 10);
    let expected =
        [Write::First(reth(2100)), Write::Middle, Write::Last(None), Write::Only(reth(10), Some(5))];
    assert_eq!(sent(&mut end), expected.map(Uc::Write).into_iter().zip(0..).collect::<Vec<_>>());
}

#[test]
fn no_packet_requests_an_acknowledgement() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 200 << 10);
    assert!(end.headers().iter().all(|header| !header.ack_request));
}

#[test]
fn request_completes_when_its_last_packet_was_sent() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 2000);
    assert!(end.device.poll_transmit(end.now).is_some());
    assert!(end.device.poll_transmit(end.now).is_some(), "the last packet is polled");
    assert_eq!(end.statuses(), [], "the request completes when the next packet is polled");
    assert!(end.device.poll_transmit(end.now).is_none());
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn completion_has_its_operation() {
    let mut end = solo();
    end.post(1, SendOperation::SendWithImm(1), 0, 8);
    end.post(2, SendOperation::Write(RemoteAddress { addr: 1, rkey: 2 }), 0, 8);
    end.transmits();
    let done: Vec<_> =
        end.completions().iter().map(|completion| completion.outcome.unwrap().operation).collect();
    assert_eq!(done, [CompletedOperation::Send, CompletedOperation::Write]);
}

#[test]
fn requests_complete_in_order_without_any_peer() {
    let mut end = solo();
    for id in 0..100 {
        end.post(id, SendOperation::Send, 0, 1500);
    }
    assert_eq!(end.transmits().len(), 200);
    assert_eq!(end.statuses(), (0..100).map(|id| (id, Status::Success)).collect::<Vec<_>>());
    assert_eq!(end.device.poll_timeout(), None, "no timer is set");
}

#[test]
fn unsignaled_request_produces_no_completion() {
    let mut end = solo();
    let segments = [end.segment(0, 8)];
    end.try_post(1, SendOperation::Send, SendFlags::empty(), &segments).unwrap();
    end.transmits();
    assert_eq!(end.statuses(), []);
    assert_eq!(end.device.query_qp(end.qpn).unwrap().send_queue_len, 0);
}

#[test]
fn sequence_numbers_wrap() {
    let mut end = solo_with(&Options { psn: 0xff_ffff, ..options() });
    end.post(1, SendOperation::Send, 0, 2000);
    let psns: Vec<u32> = end.headers().iter().map(|header| header.psn.get()).collect();
    assert_eq!(psns, [0xff_ffff, 0]);
    assert_eq!(end.device.query_qp(end.qpn).unwrap().next_psn.get(), 1);
}

#[test]
fn nothing_is_retransmitted() {
    let mut pair = pair();
    for id in 0..20 {
        pair.a.post(id, SendOperation::Send, 0, 1500);
    }
    pair.run_until_idle_where(|_, _| false);
    assert_eq!(pair.packets, 40);
    assert_eq!(pair.a.device.statistics().retransmitted_packets, 0);
    assert_eq!(pair.a.statuses().len(), 20);
}

#[test]
fn operations_that_only_reliable_connections_support_are_rejected() {
    let mut end = solo();
    let remote = RemoteAddress { addr: ADDR, rkey: 1 };
    for operation in [
        SendOperation::Read(remote),
        SendOperation::FetchAdd { remote, add: 1 },
        SendOperation::CompareSwap { remote, compare: 1, swap: 2 },
        SendOperation::AtomicWrite { remote, bytes: [0; 8] },
        SendOperation::SendInvalidate(1),
    ] {
        let segments = [end.segment(0, 8)];
        let posted = end.try_post(1, operation, SendFlags::SIGNALED, &segments);
        assert_eq!(posted, Err(PostError::Unsupported), "{operation:?}");
    }
}

#[test]
fn destination_is_rejected() {
    let mut end = solo();
    let destination = adverb_proto::types::Destination { handle: end.path(), qpn: end.qpn, qkey: 1 };
    let request = SendRequest {
        wr_id: 1,
        tag: 0,
        operation: SendOperation::Send,
        flags: SendFlags::empty(),
        segments: &[],
        destination: Some(destination),
    };
    assert_eq!(end.device.post_send(end.now, end.qpn, &request), Err(PostError::InvalidDestination));
}

#[test]
fn wrong_segment_fails_the_send_queue_and_receiving_continues() {
    let mut pair = pair();
    pair.a.post_recv(9, 0, 64);
    let mut wrong = pair.a.segment(0, 8);
    wrong.lkey ^= 1;
    pair.a.try_post(1, SendOperation::Send, SendFlags::empty(), &[wrong]).unwrap();
    pair.a.post(2, SendOperation::Send, 0, 8);
    assert_eq!(pair.a.transmits().len(), 0);
    assert_eq!(pair.a.statuses(), [(1, Status::LocalProtection), (2, Status::Flushed)]);
    assert_eq!(pair.a.state(), QpState::SendQueueError);
    pair.b.post(3, SendOperation::Send, 0, 8);
    pair.run();
    assert_eq!(pair.a.statuses(), [(9, Status::Success)]);
}

#[test]
fn send_queue_in_error_flushes_posted_requests() {
    let mut end = solo();
    let mut wrong = end.segment(0, 8);
    wrong.lkey ^= 1;
    end.try_post(1, SendOperation::Send, SendFlags::empty(), &[wrong]).unwrap();
    end.transmits();
    end.post(2, SendOperation::Send, 0, 8);
    assert_eq!(end.statuses(), [(1, Status::LocalProtection), (2, Status::Flushed)]);
}

#[test]
fn send_queue_in_error_resumes() {
    let mut pair = pair();
    pair.b.post_recv(9, 0, 64);
    let mut wrong = pair.a.segment(0, 8);
    wrong.lkey ^= 1;
    pair.a.try_post(1, SendOperation::Send, SendFlags::empty(), &[wrong]).unwrap();
    pair.a.transmits();
    pair.a.modify(Transition::Resume);
    assert_eq!(pair.a.state(), QpState::ReadyToSend);
    pair.a.post(2, SendOperation::Send, 0, 8);
    pair.run();
    assert_eq!(pair.b.statuses(), [(9, Status::Success)]);
}

#[test]
fn message_whose_second_segment_is_wrong_is_started_and_dropped_by_the_peer() {
    let mut pair = pair();
    pair.b.post_recv(9, 0, 4096);
    let (right, mut wrong) = (pair.a.segment(0, 1024), pair.a.segment(0, 1024));
    wrong.lkey ^= 1;
    pair.a.try_post(1, SendOperation::Send, SendFlags::empty(), &[right, wrong]).unwrap();
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, Status::LocalProtection)]);
    pair.a.modify(Transition::Resume);
    pair.a.post(2, SendOperation::Send, 64, 8);
    pair.run();
    let completions = pair.b.completions();
    assert_eq!(completions.len(), 1, "only the second message");
    assert_eq!(completions[0].outcome.unwrap().length, 8);
    assert_eq!(pair.b.device.statistics().messages_dropped, 1);
}

#[test]
fn send_queue_is_drained_when_the_started_message_was_sent() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 2000);
    end.post(2, SendOperation::Send, 0, 8);
    assert!(end.device.poll_transmit(end.now).is_some());
    end.modify(Transition::Drain);
    assert_eq!(end.queue_events(), []);
    assert_eq!(end.transmits().len(), 1, "the rest of the started message");
    assert_eq!(end.queue_events(), [QueueEvent::SendQueueDrained(end.qpn)]);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    end.modify(Transition::Resume);
    assert_eq!(end.transmits().len(), 1);
}

#[test]
fn error_flushes_unsent_requests() {
    let mut end = solo();
    for id in 1..4 {
        end.post(id, SendOperation::Send, 0, 8);
    }
    end.post_recv(9, 0, 64);
    assert!(end.device.poll_transmit(end.now).is_some());
    end.modify(Transition::Error);
    let expected = [(1, Status::Success), (2, Status::Flushed), (3, Status::Flushed), (9, Status::Flushed)];
    assert_eq!(end.statuses(), expected, "the first message was sent");
    assert_eq!(end.transmits().len(), 0);
}

#[test]
fn inline_bytes_are_delivered() {
    let mut pair = pair();
    pair.b.post_recv(9, 0, 64);
    let request = SendRequest::<()> {
        wr_id: 1,
        tag: 0,
        operation: SendOperation::Send,
        flags: SendFlags::SIGNALED | SendFlags::INLINE,
        segments: &[],
        destination: None,
    };
    pair.a.device.post_send_inline(pair.a.now, pair.a.qpn, &request, b"inline").unwrap();
    pair.run();
    assert_eq!(pair.b.bytes(0, 6), b"inline");
}

#[test]
fn only_the_last_packet_of_a_solicited_request_is_solicited() {
    let mut end = solo();
    let segments = [end.segment(0, 1500)];
    end.try_post(1, SendOperation::Send, SendFlags::SOLICITED, &segments).unwrap();
    let write = SendOperation::Write(RemoteAddress { addr: 1, rkey: 1 });
    end.try_post(2, write, SendFlags::SOLICITED, &segments).unwrap();
    let solicited: Vec<bool> = end.headers().iter().map(|header| header.solicited).collect();
    assert_eq!(solicited, [false, true, false, false], "a WRITE is never solicited");
}

#[test]
fn message_that_is_too_long_is_rejected() {
    let mut end = solo();
    let segments = [end.segment(0, u32::MAX)];
    let posted = end.try_post(1, SendOperation::Send, SendFlags::empty(), &segments);
    assert_eq!(posted, Err(PostError::InvalidLength));
}

#[test]
fn messages_and_writes_of_all_lengths_are_delivered() {
    let mut pair = pair();
    let mut at = 0;
    for (id, length) in [0u32, 1, 3, 4, 1023, 1024, 1025, 2048, 5000, 65536].into_iter().enumerate() {
        let id = id as u64;
        pair.b.post_recv(id, at, length.max(1));
        let payload = pattern(length as usize, id as u8);
        pair.a.fill(0, &payload);
        pair.a.post(id, SendOperation::Send, 0, length);
        pair.run();
        assert_eq!(pair.b.bytes(at as usize, length as usize), payload);
        let target = pair.b.remote_addr(at);
        pair.a.fill(0, &pattern(length as usize, 0x55));
        pair.a.post(id, SendOperation::Write(target), 0, length);
        pair.run();
        assert_eq!(pair.b.bytes(at as usize, length as usize), pattern(length as usize, 0x55));
        at += u64::from(length);
    }
    assert!(at < SIZE);
    assert_eq!(pair.b.statuses().len(), 10);
}

#[test]
fn both_directions_work_at_once() {
    let mut pair = pair();
    for id in 0..10 {
        pair.a.post_recv(100 + id, 0, 2000);
        pair.b.post_recv(100 + id, 0, 2000);
        pair.a.post(id, SendOperation::Send, 4096, 2000);
        pair.b.post(id, SendOperation::Send, 4096, 2000);
    }
    pair.run();
    assert_eq!(pair.a.statuses().len(), 20);
    assert_eq!(pair.b.statuses().len(), 20);
    assert_eq!(pair.packets, 40, "no acknowledgements are sent");
}

#[test]
fn sends_are_rejected_in_reset_and_receives_are_posted_in_init() {
    let mut end = End::new(1, 2, &options());
    let segments = [end.segment(0, 8)];
    let posted = end.try_post(1, SendOperation::Send, SendFlags::empty(), &segments);
    assert_eq!(posted, Err(PostError::WrongState(QpState::Reset)));
    end.move_to_init(&options());
    let request = RecvRequest { wr_id: 1, tag: 0, segments: &segments };
    assert_eq!(end.device.post_recv(end.now, end.qpn, &request), Ok(()));
}

#[test]
fn connection_rejects_the_transition_of_datagrams() {
    let mut end = End::new(1, 2, &options());
    end.move_to_init(&options());
    let modified = end.device.modify_qp(end.now, end.qpn, &Transition::ReadyToReceiveUd);
    assert!(modified.is_err());
    assert_eq!(end.state(), QpState::Init);
}

#[test]
fn packets_generate_events() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    let is_sent_packet = |event: &TraceEvent| {
        matches!(event, TraceEvent::PacketSent { payload_len: 8, is_retransmission: false, .. })
    };
    assert!(end.device.sink().iter().any(|(_, event)| is_sent_packet(event)));
}

#[test]
fn a_paused_queue_pair_sends_at_most_one_packet_until_it_is_resumed() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 1024);
    end.device.pause_qp(end.qpn);
    let before = sent(&mut end).len();
    assert!(before <= 1);
    end.post(2, SendOperation::Send, 0, 3072);
    assert_eq!(sent(&mut end), []);
    end.device.resume_qp(end.now, end.qpn);
    assert_eq!(before + sent(&mut end).len(), 4);
    // A queue pair that was paused while it had nothing to send sends nothing.
    end.device.pause_qp(end.qpn);
    end.post(3, SendOperation::Send, 0, 1);
    assert_eq!(sent(&mut end), []);
    end.device.resume_qp(end.now, end.qpn);
    assert_eq!(sent(&mut end).len(), 1);
}
