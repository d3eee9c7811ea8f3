//! The handling of forged packets by the responder of an unreliable connection.

use adverb_proto::types::{Access, ArmFor, CompletedOperation, QpState, Status, Transport};
use adverb_proto::{DropReason, QueueEvent, Transition};
use adverb_wire::{Header, Operation, Psn, Rc, Reth, Send, Uc, Ud, Write};

use crate::harness::{ADDR, ALL, End, Options, PSN, QKEY, SIZE, pattern, solo_with};

const MTU: usize = 1024;
const FIRST: Uc = Uc::Send(Send::First);
const MIDDLE: Uc = Uc::Send(Send::Middle);
const LAST: Uc = Uc::Send(Send::Last(None));
const ONLY: Uc = Uc::Send(Send::Only(None));
const WRITE_MIDDLE: Uc = Uc::Write(Write::Middle);
const WRITE_LAST: Uc = Uc::Write(Write::Last(None));

fn options() -> Options {
    Options { transport: Transport::Uc, ..Options::default() }
}

fn solo() -> End {
    solo_with(&options())
}

fn reth(end: &End, offset: u64, length: u32) -> Reth {
    Reth { va: ADDR + offset, rkey: end.key, length }
}

fn write_only(end: &End, offset: u64, length: u32) -> Uc {
    Uc::Write(Write::Only(reth(end, offset, length), None))
}

fn write_first(end: &End, offset: u64, length: u32) -> Uc {
    Uc::Write(Write::First(reth(end, offset, length)))
}

/// Checks that a packet is dropped without a response, and changes no memory.
#[track_caller]
fn assert_dropped(end: &mut End, psn: u32, uc: Uc, payload: &[u8], reason: DropReason) {
    let before = end.memory.bytes(end.storage).to_vec();
    end.receive_uc(psn, uc, payload);
    assert!(end.memory.bytes(end.storage) == before, "dropped packets change nothing");
    assert_eq!(end.drops().last(), Some(&reason));
    assert_eq!(end.headers(), [], "no response is sent");
    assert_eq!(end.state(), QpState::ReadyToSend);
}

#[test]
fn message_in_sequence_completes_a_receive_without_a_response() {
    let mut end = solo();
    end.post_recv(1, 0, 4096);
    end.receive_uc(0, FIRST, &pattern(MTU, 1));
    end.receive_uc(1, MIDDLE, &pattern(MTU, 2));
    assert_eq!(end.statuses(), []);
    end.receive_uc(2, Uc::Send(Send::Last(Some(9))), b"end");
    let completion = end.completions()[0];
    let success = completion.outcome.unwrap();
    assert_eq!(success.length, 2 * 1024 + 3);
    let expected =
        CompletedOperation::Recv { immediate: Some(9), invalidated: None, source: None, has_grh: false };
    assert_eq!(success.operation, expected);
    assert_eq!(end.bytes(2048, 3), b"end");
    assert_eq!(end.headers(), []);
}

#[test]
fn acknowledgement_is_never_sent_even_if_requested() {
    let mut end = solo();
    let mut header = Header::new(end.qpn, Psn::wrapping(PSN), Operation::Uc(write_only(&end, 0, 4)));
    header.ack_request = true;
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_eq!(end.headers(), []);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn gap_within_a_message_drops_the_whole_message() {
    let mut end = solo();
    end.post_recv(1, 0, 8192);
    end.receive_uc(0, FIRST, &pattern(MTU, 1));
    end.receive_uc(2, MIDDLE, &pattern(MTU, 2));
    end.receive_uc(3, LAST, b"end");
    assert_eq!(end.statuses(), []);
    let stats = end.device.statistics();
    assert_eq!((stats.messages_dropped, stats.packets_missing), (1, 1));
    assert_eq!(end.drops(), [DropReason::OutOfSequence; 2]);
}

#[test]
fn lost_last_packet_drops_the_message_when_the_next_starts() {
    let mut end = solo();
    end.post_recv(1, 0, 8192);
    end.receive_uc(0, FIRST, &pattern(MTU, 1));
    end.receive_uc(2, ONLY, b"next");
    assert_eq!(end.bytes(0, 4), b"next", "the next message uses the receive from its start");
    let completions = end.completions();
    assert_eq!((completions.len(), completions[0].wr_id), (1, 1));
    assert_eq!(completions[0].outcome.unwrap().length, 4);
    assert_eq!(end.device.statistics().messages_dropped, 1);
}

#[test]
fn lost_first_packet_drops_the_rest() {
    let mut end = solo();
    end.post_recv(1, 0, 8192);
    end.receive_uc(1, MIDDLE, &pattern(MTU, 1));
    end.receive_uc(2, LAST, b"end");
    assert_eq!(end.statuses(), []);
    end.receive_uc(3, ONLY, b"next");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.device.statistics().packets_missing, 1);
}

#[test]
fn new_message_resynchronizes_at_any_distance_ahead() {
    for ahead in [1, 2, 1000, (1 << 23) - 1] {
        let mut end = solo();
        end.post_recv(1, 0, 64);
        end.post_recv(2, 64, 64);
        end.receive_uc(ahead, ONLY, b"abcd");
        end.receive_uc(ahead + 1, ONLY, b"efgh");
        assert_eq!(end.statuses().len(), 2, "{ahead}");
        assert_eq!(end.device.statistics().packets_missing, u64::from(ahead));
        assert_eq!(end.device.statistics().messages_dropped, 0);
    }
}

#[test]
fn message_far_behind_is_a_new_one() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    end.receive_uc((1 << 24) - (1 << 20), ONLY, b"abcd");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn duplicate_packet_is_dropped() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    end.post_recv(2, 64, 64);
    end.receive_uc(0, ONLY, b"abcd");
    assert_dropped(&mut end, 0, ONLY, b"abcd", DropReason::PsnBelowExpected);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.device.statistics().duplicate_requests, 1);
}

#[test]
fn reordered_packet_is_dropped() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    end.receive_uc(1, ONLY, b"abcd");
    assert_dropped(&mut end, 0, ONLY, b"late", DropReason::PsnBelowExpected);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn late_packet_does_not_affect_the_current_message() {
    let mut end = solo();
    end.post_recv(1, 0, 4096);
    end.receive_uc(0, FIRST, &pattern(MTU, 1));
    end.receive_uc(1, MIDDLE, &pattern(MTU, 2));
    assert_dropped(&mut end, 0, FIRST, &pattern(MTU, 3), DropReason::PsnBelowExpected);
    end.receive_uc(2, LAST, b"end");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn first_in_place_of_a_last_starts_a_new_message() {
    let mut end = solo();
    end.post_recv(1, 0, 4096);
    end.receive_uc(0, FIRST, &pattern(MTU, 1));
    end.receive_uc(1, FIRST, &pattern(MTU, 2));
    end.receive_uc(2, LAST, b"end");
    assert_eq!(end.completions()[0].outcome.unwrap().length, 1027);
    assert_eq!(end.bytes(0, MTU), pattern(MTU, 2));
    assert_eq!(end.device.statistics().messages_dropped, 1);
}

#[test]
fn opcodes_out_of_order_drop_the_message() {
    for wrong in [WRITE_MIDDLE, WRITE_LAST] {
        let mut end = solo();
        end.post_recv(1, 0, 4096);
        end.receive_uc(0, FIRST, &pattern(MTU, 1));
        assert_dropped(&mut end, 1, wrong, &pattern(MTU, 2), DropReason::InvalidRequest);
        assert_dropped(&mut end, 2, LAST, b"end", DropReason::OutOfSequence);
        assert_eq!(end.statuses(), []);
    }
}

#[test]
fn middle_without_a_first_is_dropped() {
    let mut end = solo();
    end.post_recv(1, 0, 4096);
    for (psn, uc) in [MIDDLE, LAST, WRITE_MIDDLE, WRITE_LAST].into_iter().enumerate() {
        end.receive_uc(psn as u32, uc, &pattern(MTU, 1));
    }
    assert_eq!(end.statuses(), []);
    assert_eq!(end.drops().len(), 4);
}

#[test]
fn packet_with_a_wrong_payload_length_is_dropped() {
    let full = pattern(MTU, 1);
    for (uc, length) in [(FIRST, MTU - 4), (FIRST, 0), (ONLY, MTU + 4), (FIRST, MTU + 4)] {
        let mut end = solo();
        end.post_recv(1, 0, 8192);
        assert_dropped(
            &mut end,
            0,
            uc,
            &[full.as_slice(), &full].concat()[..length],
            DropReason::InvalidRequest,
        );
    }
    for (uc, length) in [(MIDDLE, MTU - 4), (LAST, 0), (LAST, MTU + 4)] {
        let mut end = solo();
        end.post_recv(1, 0, 8192);
        end.receive_uc(0, FIRST, &full);
        assert_dropped(
            &mut end,
            1,
            uc,
            &[full.as_slice(), &full].concat()[..length],
            DropReason::InvalidRequest,
        );
    }
}

#[test]
fn message_without_a_receive_is_dropped_and_a_later_one_arrives() {
    let mut end = solo();
    assert_dropped(&mut end, 0, ONLY, b"lost", DropReason::NoReceivePosted);
    end.post_recv(1, 0, 64);
    end.receive_uc(1, ONLY, b"came");
    assert_eq!(end.bytes(0, 4), b"came");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.device.statistics().messages_dropped, 1);
}

#[test]
fn rest_of_a_message_without_a_receive_is_dropped_although_one_is_posted_later() {
    let mut end = solo();
    end.receive_uc(0, FIRST, &pattern(MTU, 1));
    end.post_recv(1, 0, 4096);
    end.receive_uc(1, MIDDLE, &pattern(MTU, 1));
    end.receive_uc(2, LAST, b"end");
    assert_eq!(end.statuses(), []);
    assert_eq!(end.device.statistics().messages_dropped, 1);
}

#[test]
fn message_longer_than_its_receive_is_dropped_and_the_receive_stays() {
    let mut end = solo();
    end.post_recv(1, 0, 1500);
    end.receive_uc(0, FIRST, &pattern(MTU, 1));
    assert_dropped(&mut end, 1, LAST, &pattern(MTU, 2), DropReason::InvalidRequest);
    end.receive_uc(2, ONLY, b"fits");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.bytes(0, 4), b"fits");
}

#[test]
fn write_in_several_packets_is_executed() {
    let mut end = solo();
    let first = write_first(&end, 100, 2050);
    end.receive_uc(0, first, &pattern(MTU, 1));
    end.receive_uc(1, WRITE_MIDDLE, &pattern(MTU, 2));
    end.receive_uc(2, WRITE_LAST, b"ab");
    assert_eq!(end.bytes(100, MTU), pattern(MTU, 1));
    assert_eq!(end.bytes(100 + 2 * MTU, 2), b"ab");
    assert_eq!(end.statuses(), [], "a WRITE takes no receive");
}

#[test]
fn write_after_a_gap_writes_nothing() {
    let mut end = solo();
    let first = write_first(&end, 0, 3072);
    end.receive_uc(0, first, &pattern(MTU, 1));
    assert_dropped(&mut end, 2, WRITE_LAST, &pattern(MTU, 2), DropReason::OutOfSequence);
}

#[test]
fn write_with_immediate_takes_a_receive_and_leaves_its_buffer_unchanged() {
    let mut end = solo();
    end.post_recv(1, 4096, 64);
    let before = end.bytes(4096, 64).to_vec();
    let write = Uc::Write(Write::Only(reth(&end, 0, 4), Some(77)));
    end.receive_uc(0, write, b"abcd");
    let success = end.completions()[0].outcome.unwrap();
    assert_eq!(success.operation, CompletedOperation::RecvWrite { immediate: 77 });
    assert_eq!(end.bytes(4096, 64), before);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn write_with_immediate_without_a_receive_is_dropped_before_it_writes() {
    let mut end = solo();
    let write = Uc::Write(Write::Only(reth(&end, 0, 4), Some(77)));
    assert_dropped(&mut end, 0, write, b"abcd", DropReason::NoReceivePosted);
}

#[test]
fn write_needs_key_bounds_and_rights() {
    let mut end = solo();
    let read_only = end.register(Access::REMOTE_READ);
    let key = end.key;
    for (psn, (offset, rkey, length)) in
        [(0, key ^ 1, 4), (SIZE - 3, key, 4), (u64::MAX - ADDR - 1, key, 4), (0, read_only, 4)]
            .into_iter()
            .enumerate()
    {
        let reth = Reth { va: ADDR.wrapping_add(offset), rkey, length };
        let write = Uc::Write(Write::Only(reth, None));
        assert_dropped(&mut end, psn as u32, write, b"abcd", DropReason::InvalidRequest);
    }
    assert_eq!(end.queue_events(), [], "no event is generated");
    assert_eq!(end.device.statistics().messages_dropped, 4);
}

#[test]
fn write_needs_the_queue_pairs_right() {
    let access = ALL.difference(Access::REMOTE_WRITE);
    let mut end = solo_with(&Options { access, ..options() });
    let write = write_only(&end, 0, 4);
    assert_dropped(&mut end, 0, write, b"abcd", DropReason::InvalidRequest);
}

#[test]
fn empty_write_ignores_its_key() {
    let mut end = solo();
    end.post_recv(1, 0, 8);
    let reth = Reth { va: 0, rkey: 0xdead, length: 0 };
    end.receive_uc(0, Uc::Write(Write::Only(reth, Some(3))), &[]);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn write_whose_length_is_not_that_of_its_packets_is_dropped() {
    let mut end = solo();
    let write = write_only(&end, 0, 8);
    assert_dropped(&mut end, 0, write, b"abcd", DropReason::InvalidRequest);
    let first = write_first(&end, 0, 1024);
    assert_dropped(&mut end, 1, first, &pattern(MTU, 1), DropReason::InvalidRequest);
}

#[test]
fn key_is_looked_up_for_each_packet() {
    let mut end = solo();
    let first = write_first(&end, 0, 2048);
    end.receive_uc(0, first, &pattern(MTU, 1));
    end.device.deregister(end.key).unwrap();
    assert_dropped(&mut end, 1, WRITE_LAST, &pattern(MTU, 2), DropReason::InvalidRequest);
}

#[test]
fn receive_with_a_wrong_key_fails_the_queue_pair() {
    let mut end = solo();
    let mut segment = end.segment(0, 64);
    segment.lkey ^= 1;
    let request = adverb_proto::types::RecvRequest { wr_id: 1, tag: 0, segments: &[segment] };
    end.device.post_recv(end.now, end.qpn, &request).unwrap();
    end.post_recv(2, 0, 64);
    end.receive_uc(0, ONLY, b"abcd");
    assert_eq!(end.statuses(), [(1, Status::LocalProtection), (2, Status::Flushed)]);
    assert_eq!(end.state(), QpState::Error);
    assert_eq!(end.queue_events(), [QueueEvent::Fatal(end.qpn)]);
    assert_eq!(end.headers(), []);
}

#[test]
fn packets_of_other_transports_are_dropped() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    end.receive(0, Rc::Send(Send::Only(None)), b"abcd");
    end.receive_datagram(Ud { qkey: QKEY, source_qp: end.qpn, immediate: None }, b"abcd");
    assert_eq!(end.drops(), [DropReason::WrongTransport; 2]);
    assert_eq!(end.statuses(), []);
}

#[test]
fn nothing_is_received_in_error_or_before_ready() {
    let mut end = End::new(1, 2, &options());
    end.move_to_init(&options());
    end.post_recv(1, 0, 64);
    end.receive_uc(0, ONLY, b"abcd");
    assert_eq!(end.drops(), [DropReason::WrongState]);
    end.modify(Transition::Error);
    end.receive_uc(0, ONLY, b"abcd");
    assert_eq!(end.drops(), [DropReason::WrongState; 2]);
}

#[test]
fn first_packet_before_ready_to_send_generates_an_event() {
    let mut end = End::new(1, 2, &options());
    end.move_to_init(&options());
    end.post_recv(1, 0, 64);
    let ready_to_receive = end.ready_to_receive(end.qpn, &options());
    end.modify(ready_to_receive);
    end.receive_uc(0, ONLY, b"abcd");
    assert_eq!(end.queue_events(), [QueueEvent::Established(end.qpn)]);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn solicited_message_generates_an_event_on_a_queue_armed_for_solicited() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    end.post_recv(2, 0, 64);
    end.device.arm_cq(end.cq, ArmFor::Solicited);
    end.receive_uc(0, ONLY, b"abcd");
    assert_eq!(end.cq_events(), []);
    let mut header = Header::new(end.qpn, Psn::wrapping(PSN) + 1, Operation::Uc(ONLY));
    header.solicited = true;
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_eq!(end.cq_events(), [end.cq]);
}

#[test]
fn expected_psn_wraps() {
    let mut end = solo_with(&Options { psn: 0xff_ffff, ..options() });
    end.post_recv(1, 0, 2048);
    for (psn, uc, payload) in [(0xff_ffff, FIRST, &pattern(MTU, 1)[..]), (0, LAST, b"end")] {
        let header = Header::new(end.qpn, Psn::wrapping(psn), Operation::Uc(uc));
        let bytes = end.forge(&header, payload);
        end.deliver(&bytes);
    }
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.device.statistics().packets_missing, 0);
}

#[test]
fn corrupt_packet_counts_as_missing() {
    let mut end = solo();
    end.post_recv(1, 0, 4096);
    end.receive_uc(0, FIRST, &pattern(MTU, 1));
    let header = Header::new(end.qpn, Psn::wrapping(PSN) + 1, Operation::Uc(MIDDLE));
    let mut bytes = end.forge(&header, &pattern(MTU, 2));
    bytes[40] ^= 1;
    end.deliver(&bytes);
    end.receive_uc(2, LAST, b"end");
    assert_eq!(end.statuses(), []);
    assert_eq!(end.device.statistics().icrc_errors, 1);
    assert_eq!(end.device.statistics().messages_dropped, 1);
}
