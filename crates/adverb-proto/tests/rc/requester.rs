//! Packets of a requester, and its handling of forged responses.

use std::time::Duration;

use adverb_proto::types::{
    Access, PathMtu, QpState, RemoteAddress, Segment, SendFlags, SendOperation, Status,
};
use adverb_proto::{RetryCause, TraceEvent};
use adverb_wire::cm::Timeout;
use adverb_wire::{Aeth, NakCode, Rc, ReadResponse, Reth, RnrTimer, Send, Syndrome, Write};

use crate::harness::{ADDR, End, Options, ack, aeth, nak, pattern, rc, rnr_nak, solo, solo_with};

pub(crate) fn remote(offset: u64) -> RemoteAddress {
    RemoteAddress { addr: 0x5000 + offset, rkey: 0x1234 }
}

pub(crate) const WRITE: SendOperation = SendOperation::Write(RemoteAddress { addr: 0x5000, rkey: 0x1234 });
pub(crate) const READ: SendOperation = SendOperation::Read(RemoteAddress { addr: 0x5000, rkey: 0x1234 });

pub(crate) fn psns(sent: &[(Rc, u32)]) -> Vec<u32> {
    sent.iter().map(|(_, psn)| *psn).collect()
}

fn first_response(payload_len: usize) -> (Rc, Vec<u8>) {
    (Rc::ReadResponse(ReadResponse::First(aeth(1))), pattern(payload_len, 1))
}

#[test]
fn message_is_segmented_at_the_mtu() {
    let mut end = solo();
    end.post(1, WRITE, 0, 2500);
    let reth = Reth { va: 0x5000, rkey: 0x1234, length: 2500 };
    let expected = [Write::First(reth), Write::Middle, Write::Last(None)].map(Rc::Write);
    assert_eq!(end.sent(), [(expected[0], 0), (expected[1], 1), (expected[2], 2)]);
}

#[test]
fn message_of_exactly_the_mtu_is_one_packet() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 1024);
    assert_eq!(end.sent(), [(Rc::Send(Send::Only(None)), 0)]);
}

#[test]
fn immediate_and_invalidate_are_in_the_last_packet() {
    let mut end = solo();
    end.post(1, SendOperation::SendWithImm(5), 0, 1025);
    end.post(2, SendOperation::SendInvalidate(6), 0, 1025);
    end.post(3, SendOperation::SendInvalidate(7), 0, 1);
    let sent: Vec<_> = end.sent().into_iter().map(|(rc, _)| rc).collect();
    assert_eq!(
        sent,
        [
            Rc::Send(Send::First),
            Rc::Send(Send::Last(Some(5))),
            Rc::Send(Send::First),
            Rc::SendLastInvalidate(6),
            Rc::SendOnlyInvalidate(7),
        ]
    );
}

#[test]
fn last_packet_of_a_message_requests_an_acknowledgement() {
    let mut end = solo();
    end.post(1, WRITE, 0, 2500);
    end.post(2, WRITE, 0, 5);
    let ack_requests: Vec<_> = end.headers().iter().map(|header| header.ack_request).collect();
    assert_eq!(ack_requests, [false, false, true, true]);
}

#[test]
fn long_message_requests_an_acknowledgement_at_least_every_64_packets() {
    let mut end = solo_with(&Options { mtu: PathMtu::Mtu256, ..Options::default() });
    end.post(1, WRITE, 0, 200 * 256);
    let headers = end.headers();
    assert_eq!(headers.len(), 200);
    let mut since = 0;
    for header in &headers {
        since = if header.ack_request { 0 } else { since + 1 };
        assert!(since < 64);
    }
}

#[test]
fn last_packet_of_requests_that_consume_a_receive_is_solicited() {
    let mut end = solo();
    let segment = end.segment(0, 1500);
    end.try_post(1, SendOperation::Send, SendFlags::SOLICITED, &[segment]).unwrap();
    end.try_post(2, WRITE, SendFlags::SOLICITED, &[segment]).unwrap();
    let solicited: Vec<_> = end.headers().iter().map(|header| header.solicited).collect();
    assert_eq!(solicited, [false, true, false, false]);
}

#[test]
fn packets_have_the_peers_qpn_the_default_pkey_and_the_migrated_bit() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    let header = end.headers()[0];
    assert_eq!(header.dest_qp.get(), 0x77);
    assert_eq!(header.pkey, 0xffff);
    assert!(header.migrated);
}

#[test]
fn acknowledgement_is_cumulative() {
    let mut end = solo();
    for id in 0..4 {
        end.post(id, WRITE, 0, 8);
    }
    end.transmits();
    end.receive(2, ack(3), &[]);
    assert_eq!(end.statuses(), [(0, Status::Success), (1, Status::Success), (2, Status::Success)]);
    end.receive(3, ack(4), &[]);
    assert_eq!(end.statuses(), [(3, Status::Success)]);
}

#[test]
fn acknowledgement_within_a_message_completes_only_earlier_messages() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.post(2, WRITE, 0, 3000);
    end.transmits();
    end.receive_ack(2);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn acknowledgement_of_unsent_packets_is_ignored() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.transmits();
    for psn in [1, 2, 1000, 0x7f_ffff, 0xff_ffff] {
        end.receive_ack(psn);
    }
    assert_eq!(end.statuses(), []);
    assert_eq!(end.state(), QpState::ReadyToSend);
    end.receive_ack(0);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn duplicate_acknowledgement_is_ignored() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.transmits();
    end.receive_ack(0);
    end.receive_ack(0);
    assert_eq!(end.statuses().len(), 1);
}

#[test]
fn sequence_nak_acknowledges_earlier_packets_and_retransmits_the_rest() {
    let mut end = solo();
    for id in 0..4 {
        end.post(id, WRITE, 0, 8);
    }
    end.transmits();
    assert_eq!(psns(&end.exchange(2, nak(NakCode::SequenceError, 2), &[])), [2, 3]);
    assert_eq!(end.statuses(), [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn retransmission_within_a_message_starts_with_a_middle_packet() {
    let mut end = solo();
    end.post(1, WRITE, 0, 4096);
    end.transmits();
    let sent = end.exchange(2, nak(NakCode::SequenceError, 0), &[]);
    assert_eq!(sent, [(Rc::Write(Write::Middle), 2), (Rc::Write(Write::Last(None)), 3)]);
}

#[test]
fn second_nak_for_the_same_packet_is_ignored() {
    let mut end = solo();
    end.post(1, WRITE, 0, 4096);
    end.transmits();
    assert_eq!(end.exchange(1, nak(NakCode::SequenceError, 0), &[]).len(), 3);
    assert_eq!(end.exchange(1, nak(NakCode::SequenceError, 0), &[]), []);
}

#[test]
fn acknowledgement_during_a_retry_skips_acknowledged_packets() {
    let mut end = solo();
    end.post(1, WRITE, 0, 4096);
    end.transmits();
    end.wait();
    end.receive_ack(1);
    assert_eq!(psns(&end.sent()), [2, 3]);
}

#[test]
fn timeout_is_4096_ns_times_a_power_of_two() {
    for code in [1, 5, 14, 19] {
        let mut end = solo_with(&Options { timeout: code, ..Options::default() });
        end.post(1, WRITE, 0, 8);
        end.transmits();
        assert_eq!(end.wait(), Some(Duration::from_nanos(4096 << code)));
        assert_eq!(psns(&end.sent()), [0]);
    }
}

#[test]
fn timeout_code_zero_means_no_timeout() {
    let mut end = solo_with(&Options { timeout: 0, ..Options::default() });
    end.post(1, WRITE, 0, 8);
    end.transmits();
    assert_eq!(end.device.poll_timeout(), None);
}

#[test]
fn timer_restarts_with_each_acknowledgement_and_stops_with_the_last() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.post(2, WRITE, 0, 8);
    end.transmits();
    let timeout = Timeout::new(14).unwrap().duration();
    end.now = end.now + timeout / 2;
    end.receive_ack(0);
    assert_eq!(end.wait(), Some(timeout));
    end.transmits();
    end.receive(1, ack(2), &[]);
    assert_eq!(end.wait(), None, "nothing is outstanding");
}

#[test]
fn oldest_request_fails_after_retry_count_retries() {
    for retry_count in [0, 1, 7] {
        let mut end = solo_with(&Options { retry_count, ..Options::default() });
        end.post(1, WRITE, 0, 8);
        end.post(2, WRITE, 0, 8);
        assert_eq!(end.transmits().len(), 2);
        for _ in 0..retry_count {
            end.wait();
            assert_eq!(end.transmits().len(), 2);
        }
        assert_eq!(end.statuses(), []);
        end.wait();
        assert_eq!(end.transmits().len(), 0);
        assert_eq!(
            end.statuses(),
            [(1, Status::RetryExceeded), (2, Status::Flushed)],
            "a retry count of 7 is a limit"
        );
        assert_eq!(end.state(), QpState::Error);
    }
}

#[test]
fn progress_resets_the_retry_count() {
    let mut end = solo_with(&Options { retry_count: 1, ..Options::default() });
    end.post(1, WRITE, 0, 4096);
    end.transmits();
    for psn in 0..3 {
        end.wait();
        end.transmits();
        end.receive_ack(psn);
    }
    end.wait();
    end.transmits();
    assert_eq!(end.state(), QpState::ReadyToSend);
    end.receive_ack(3);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn requester_waits_for_the_rnr_backoff() {
    for code in [0, 1, 12, 31] {
        let mut end = solo();
        end.post(1, SendOperation::Send, 0, 8);
        end.transmits();
        assert_eq!(end.exchange(0, rnr_nak(code, 0), &[]), []);
        assert_eq!(end.wait(), Some(RnrTimer::new(code).unwrap().duration()));
        assert_eq!(psns(&end.sent()), [0]);
    }
}

#[test]
fn rnr_nak_acknowledges_earlier_packets() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.post(2, SendOperation::Send, 0, 8);
    end.transmits();
    end.receive(1, rnr_nak(1, 1), &[]);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn request_fails_after_rnr_retry_retries() {
    for rnr_retry in [0, 1, 6] {
        let mut end = solo_with(&Options { rnr_retry, ..Options::default() });
        end.post(1, SendOperation::Send, 0, 8);
        end.transmits();
        for _ in 0..rnr_retry {
            end.receive(0, rnr_nak(1, 0), &[]);
            end.wait();
            assert_eq!(end.transmits().len(), 1);
        }
        assert_eq!(end.statuses(), []);
        end.receive(0, rnr_nak(1, 0), &[]);
        assert_eq!(end.statuses(), [(1, Status::RnrRetryExceeded)]);
    }
}

#[test]
fn rnr_retry_seven_is_unlimited() {
    let mut end = solo_with(&Options { rnr_retry: 7, ..Options::default() });
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    for _ in 0..1000 {
        end.receive(0, rnr_nak(1, 0), &[]);
        end.wait();
        assert_eq!(end.transmits().len(), 1);
    }
    assert_eq!(end.statuses(), []);
}

#[test]
fn sequence_naks_during_an_rnr_backoff_neither_end_it_nor_consume_a_retry() {
    let mut end = solo_with(&Options { retry_count: 0, ..Options::default() });
    end.post(1, SendOperation::Send, 0, 8);
    end.post(2, WRITE, 0, 8);
    end.transmits();
    end.receive(0, rnr_nak(12, 0), &[]);
    for _ in 0..5 {
        assert_eq!(end.exchange(0, nak(NakCode::SequenceError, 0), &[]), []);
    }
    assert_eq!(end.statuses(), []);
    assert_eq!(end.wait(), Some(RnrTimer::new(12).unwrap().duration()));
    assert_eq!(psns(&end.sent()), [0, 1]);
}

#[test]
fn no_request_is_sent_during_an_rnr_backoff() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    end.receive(0, rnr_nak(12, 0), &[]);
    end.post(2, WRITE, 0, 8);
    assert_eq!(end.sent(), []);
}

#[test]
fn acknowledgement_ends_an_rnr_backoff() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 8);
    end.post(2, WRITE, 0, 8);
    end.transmits();
    end.receive(0, rnr_nak(0, 0), &[]);
    end.receive_ack(0);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(psns(&end.sent()), [1]);
}

#[test]
fn fatal_naks_map_to_statuses() {
    for (code, status) in [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess),
        (NakCode::RemoteOperational, Status::RemoteOperation),
    ] {
        let mut end = solo();
        end.post(1, WRITE, 0, 8);
        end.post(2, WRITE, 0, 8);
        end.post(3, WRITE, 0, 8);
        end.transmits();
        end.receive(1, nak(code, 1), &[]);
        assert_eq!(end.statuses(), [(1, Status::Success), (2, status), (3, Status::Flushed)]);
        assert_eq!(end.state(), QpState::Error);
    }
}

#[test]
fn reserved_syndromes_are_dropped() {
    for byte in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0xff] {
        let mut end = solo();
        end.post(1, WRITE, 0, 8);
        end.transmits();
        end.receive(0, Rc::Acknowledge(Aeth { syndrome: Syndrome::from_byte(byte), msn: 0 }), &[]);
        assert_eq!(end.statuses(), [], "{byte:#x}");
        assert_eq!(end.state(), QpState::ReadyToSend);
    }
}

#[test]
fn read_consumes_the_psns_of_its_response() {
    let mut end = solo();
    end.post(1, READ, 0, 2500);
    end.post(2, WRITE, 0, 8);
    assert_eq!(psns(&end.sent()), [0, 3]);
}

#[test]
fn acknowledgement_beyond_an_outstanding_read_is_an_implied_nak() {
    let mut end = solo();
    end.post(1, READ, 0, 8);
    end.post(2, WRITE, 0, 8);
    end.transmits();
    assert_eq!(psns(&end.exchange(1, ack(2), &[])), [0, 1]);
    assert_eq!(end.statuses(), []);
    assert_eq!(end.device.statistics().implied_naks, 1);
}

#[test]
fn response_beyond_an_outstanding_read_is_an_implied_nak() {
    let mut end = solo();
    end.post(1, READ, 0, 8);
    end.post(2, READ, 64, 8);
    end.transmits();
    let response = Rc::ReadResponse(ReadResponse::Only(aeth(2)));
    assert_eq!(psns(&end.exchange(1, response, &[1; 8])), [0, 1]);
    assert_eq!(end.statuses(), []);
}

#[test]
fn requests_before_a_missing_response_are_acknowledged() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.post(2, READ, 0, 8);
    end.post(3, WRITE, 0, 8);
    end.transmits();
    end.receive_ack(2);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(psns(&end.sent()), [1, 2]);
}

#[test]
fn response_acknowledges_earlier_packets() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.post(2, READ, 0, 8);
    end.transmits();
    end.receive(1, Rc::ReadResponse(ReadResponse::Only(aeth(2))), b"contents");
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(end.bytes(0, 8), b"contents");
}

#[test]
fn retransmitted_read_continues_after_the_received_packets() {
    let mut end = solo();
    end.post(1, READ, 0, 3000);
    end.transmits();
    let (rc, payload) = first_response(1024);
    end.receive(0, rc, &payload);
    end.wait();
    let rest = Rc::ReadRequest(Reth { va: 0x5000 + 1024, rkey: 0x1234, length: 1976 });
    assert_eq!(end.sent(), [(rest, 1)]);
}

#[test]
fn response_after_a_restart_may_start_with_first_or_middle() {
    for restarted in [true, false] {
        let mut end = solo();
        end.post(1, READ, 0, 3000);
        end.transmits();
        let (rc, payload) = first_response(1024);
        end.receive(0, rc, &payload);
        end.wait();
        end.transmits();
        let next = if restarted { ReadResponse::First(aeth(1)) } else { ReadResponse::Middle };
        end.receive(1, Rc::ReadResponse(next), &pattern(1024, 2));
        end.receive(2, Rc::ReadResponse(ReadResponse::Last(aeth(1))), &pattern(952, 3));
        assert_eq!(end.statuses(), [(1, Status::Success)]);
        assert_eq!(end.bytes(0, 3000), [pattern(1024, 1), pattern(1024, 2), pattern(952, 3)].concat());
    }
}

#[test]
fn response_after_a_restart_at_the_last_packet_may_be_only_or_last() {
    for only in [true, false] {
        let mut end = solo();
        end.post(1, READ, 0, 1500);
        end.transmits();
        let (rc, payload) = first_response(1024);
        end.receive(0, rc, &payload);
        end.wait();
        end.transmits();
        let next = if only { ReadResponse::Only(aeth(1)) } else { ReadResponse::Last(aeth(1)) };
        end.receive(1, Rc::ReadResponse(next), &pattern(476, 2));
        assert_eq!(end.statuses(), [(1, Status::Success)]);
    }
}

#[test]
fn duplicate_response_packet_is_ignored() {
    let mut end = solo();
    end.post(1, READ, 0, 1500);
    end.transmits();
    let (rc, payload) = first_response(1024);
    end.receive(0, rc, &payload);
    end.receive(0, rc, &pattern(1024, 99));
    end.receive(1, Rc::ReadResponse(ReadResponse::Last(aeth(1))), &pattern(476, 2));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.bytes(0, 1024), payload);
}

#[test]
fn missing_response_packet_causes_a_retransmission() {
    let mut end = solo();
    end.post(1, READ, 0, 3000);
    end.transmits();
    let (rc, payload) = first_response(1024);
    end.receive(0, rc, &payload);
    let sent = end.exchange(2, Rc::ReadResponse(ReadResponse::Last(aeth(1))), &pattern(952, 3));
    assert_eq!(sent, [(Rc::ReadRequest(Reth { va: 0x5000 + 1024, rkey: 0x1234, length: 1976 }), 1)]);
}

#[test]
fn response_of_a_wrong_length_or_position_is_a_bad_response() {
    for (response, length) in [
        (ReadResponse::First(aeth(1)), 1023),
        (ReadResponse::First(aeth(1)), 1025),
        (ReadResponse::Only(aeth(1)), 1024),
        (ReadResponse::Middle, 1024),
        (ReadResponse::Last(aeth(1)), 476),
    ] {
        let mut end = solo();
        let before = end.bytes(0, 4096).to_vec();
        end.post(1, READ, 0, 1500);
        end.transmits();
        end.receive(0, Rc::ReadResponse(response), &pattern(length, 1));
        assert_eq!(end.statuses(), [(1, Status::BadResponse)], "{response:?}");
        assert_eq!(end.bytes(0, 4096), before);
    }
}

#[test]
fn single_packet_response_is_neither_first_nor_last() {
    for response in [ReadResponse::First(aeth(1)), ReadResponse::Last(aeth(1)), ReadResponse::Middle] {
        let mut end = solo();
        end.post(1, READ, 0, 1024);
        end.transmits();
        end.receive(0, Rc::ReadResponse(response), &pattern(1024, 1));
        assert_eq!(end.statuses(), [(1, Status::BadResponse)], "{response:?}");
    }
}

#[test]
fn read_with_a_bad_segment_writes_to_no_segment() {
    let mut end = solo();
    let before = end.bytes(0, 8).to_vec();
    let segments = [end.segment(0, 4), Segment { addr: ADDR, length: 4, lkey: 0xbad }];
    end.try_post(1, READ, SendFlags::SIGNALED, &segments).unwrap();
    end.transmits();
    end.receive(0, Rc::ReadResponse(ReadResponse::Only(aeth(1))), &[1; 8]);
    assert_eq!(end.statuses(), [(1, Status::LocalProtection)]);
    assert_eq!(end.bytes(0, 8), before);
}

#[test]
fn response_of_another_kind_than_the_request_is_dropped() {
    let operations = [
        (WRITE, Rc::ReadResponse(ReadResponse::Only(aeth(1)))),
        (WRITE, Rc::AtomicAcknowledge(aeth(1), 5)),
        (READ, Rc::AtomicAcknowledge(aeth(1), 5)),
        (
            SendOperation::FetchAdd { remote: remote(0), add: 1 },
            Rc::ReadResponse(ReadResponse::Only(aeth(1))),
        ),
    ];
    for (operation, response) in operations {
        let mut end = solo();
        end.post(1, operation, 0, 8);
        end.transmits();
        let payload = if matches!(response, Rc::ReadResponse(_)) { &[1u8; 8][..] } else { &[] };
        end.receive(0, response, payload);
        assert_eq!(end.statuses(), [], "{response:?}");
        assert_eq!(end.device.statistics().mismatched_responses, 1, "{response:?}");
        // The response counts as lost, so the request is retransmitted.
        end.wait();
        assert_eq!(end.sent().len(), 1, "{response:?}");
    }
}

#[test]
fn response_that_carries_a_nak_is_a_bad_response() {
    let mut end = solo();
    end.post(1, READ, 0, 8);
    end.transmits();
    let bad = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 1 };
    end.receive(0, Rc::ReadResponse(ReadResponse::Only(bad)), &[1; 8]);
    assert_eq!(end.statuses(), [(1, Status::BadResponse)]);
}

#[test]
fn outstanding_reads_and_atomics_are_limited() {
    let mut end = solo_with(&Options { max_rd_atomic: 2, ..Options::default() });
    for id in 0..5 {
        end.post(id, SendOperation::FetchAdd { remote: remote(0), add: 1 }, id * 8, 8);
    }
    assert_eq!(psns(&end.sent()), [0, 1]);
    end.receive(0, Rc::AtomicAcknowledge(aeth(1), 5), &[]);
    assert_eq!(psns(&end.sent()), [2]);
    end.receive(1, Rc::AtomicAcknowledge(aeth(2), 5), &[]);
    end.receive(2, Rc::AtomicAcknowledge(aeth(3), 5), &[]);
    assert_eq!(psns(&end.sent()), [3, 4]);
}

#[test]
fn atomic_write_counts_as_a_read() {
    let mut end = solo_with(&Options { max_rd_atomic: 1, ..Options::default() });
    end.post(1, SendOperation::AtomicWrite { remote: remote(0), bytes: [1; 8] }, 0, 0);
    end.post(2, READ, 0, 8);
    assert_eq!(psns(&end.sent()), [0]);
    end.receive(0, Rc::ReadResponse(ReadResponse::Only(aeth(1))), &[]);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(psns(&end.sent()), [1]);
}

#[test]
fn writes_do_not_wait_for_reads_unless_fenced() {
    let mut end = solo();
    end.post(1, READ, 0, 8);
    end.post(2, WRITE, 64, 8);
    end.post_fenced(3, WRITE, 64, 8);
    assert_eq!(psns(&end.sent()), [0, 1], "the fenced one waits");
    end.receive(0, Rc::ReadResponse(ReadResponse::Only(aeth(1))), &[1; 8]);
    assert_eq!(psns(&end.sent()), [2]);
}

#[test]
fn fence_waits_for_atomics_but_not_for_writes() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.post_fenced(2, WRITE, 0, 8);
    assert_eq!(psns(&end.sent()), [0, 1]);
    end.post(3, SendOperation::FetchAdd { remote: remote(0), add: 1 }, 0, 8);
    end.post_fenced(4, WRITE, 0, 8);
    assert_eq!(psns(&end.sent()), [2]);
    end.receive(2, Rc::AtomicAcknowledge(aeth(3), 5), &[]);
    assert_eq!(psns(&end.sent()), [3]);
}

#[test]
fn full_window_pauses_sending_and_its_last_packet_requests_an_acknowledgement() {
    let mut end = solo_with(&Options { window: 4, ..Options::default() });
    end.post(1, WRITE, 0, 8 * 1024);
    let headers = end.headers();
    assert_eq!(headers.len(), 4);
    assert!(headers[3].ack_request);
    end.receive_ack(1);
    assert_eq!(psns(&end.sent()), [4, 5]);
}

#[test]
fn request_with_a_bad_key_fails_after_earlier_requests_complete() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    let bad = Segment { addr: ADDR, length: 8, lkey: 0xbad };
    end.try_post(2, WRITE, SendFlags::empty(), &[bad]).unwrap();
    end.post(3, WRITE, 0, 8);
    assert_eq!(psns(&end.sent()), [0]);
    assert_eq!(end.statuses(), []);
    end.receive_ack(0);
    end.transmits();
    let expected = [(1, Status::Success), (2, Status::LocalProtection), (3, Status::Flushed)];
    assert_eq!(end.statuses(), expected);
}

#[test]
fn read_into_memory_without_local_write_fails() {
    let mut end = solo();
    let key = end.register(Access::empty());
    let segment = Segment { addr: ADDR, length: 8, lkey: key };
    end.try_post(1, READ, SendFlags::SIGNALED, &[segment]).unwrap();
    end.transmits();
    end.receive(0, Rc::ReadResponse(ReadResponse::Only(aeth(1))), &[1; 8]);
    assert_eq!(end.statuses(), [(1, Status::LocalProtection)]);
}

#[test]
fn request_is_not_retransmitted_after_its_region_is_deregistered() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.transmits();
    end.device.deregister(end.key).unwrap();
    end.wait();
    assert_eq!(end.sent(), []);
    assert_eq!(end.statuses(), [(1, Status::LocalProtection)]);
}

#[test]
fn atomic_response_is_written_in_native_byte_order() {
    let mut end = solo();
    end.post(1, SendOperation::FetchAdd { remote: remote(0), add: 1 }, 16, 8);
    end.transmits();
    end.receive(0, Rc::AtomicAcknowledge(aeth(1), 0x0123_4567_89ab_cdef), &[]);
    assert_eq!(end.word(16), 0x0123_4567_89ab_cdef);
}

#[test]
fn local_invalidate_waits_for_earlier_requests_and_sends_no_packet() {
    let mut end = solo();
    let key = end.register(Access::empty());
    end.post(1, WRITE, 0, 8);
    end.post(2, SendOperation::LocalInvalidate(key), 0, 0);
    end.post(3, WRITE, 0, 8);
    assert_eq!(psns(&end.sent()), [0]);
    end.receive_ack(0);
    assert_eq!(psns(&end.sent()), [1]);
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
    let segment = Segment { addr: ADDR, length: 8, lkey: key };
    end.receive(1, ack(2), &[]);
    end.try_post(4, WRITE, SendFlags::SIGNALED, &[segment]).unwrap();
    end.transmits();
    assert_eq!(end.statuses(), [(3, Status::Success), (4, Status::LocalProtection)]);
}

#[test]
fn second_local_invalidate_of_a_key_fails_the_queue_pair() {
    let mut end = solo();
    let key = end.register(Access::empty());
    end.post(1, SendOperation::LocalInvalidate(key), 0, 0);
    end.post(2, SendOperation::LocalInvalidate(key), 0, 0);
    end.transmits();
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::LocalQpOperation)]);
}

#[test]
fn retransmission_event_has_its_cause() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.transmits();
    end.wait();
    let is_retransmission =
        |event: &TraceEvent| matches!(event, TraceEvent::Retransmit { cause: RetryCause::Timeout, .. });
    assert!(end.device.sink().iter().any(|(_, event)| is_retransmission(event)));
    let sent: Vec<_> = end.headers();
    assert_eq!(rc(&sent[0]), Rc::Write(Write::Only(Reth { va: 0x5000, rkey: 0x1234, length: 8 }, None)));
    assert_eq!(end.device.statistics().retransmitted_packets, 1);
}

#[test]
fn responses_in_rtr_are_dropped() {
    let options = Options::default();
    let mut end = End::new(1, 2, &options);
    end.move_to_init(&options);
    let ready_to_receive = end.ready_to_receive(adverb_wire::Qpn::truncate(0x77), &options);
    end.modify(ready_to_receive);
    end.receive_ack(0);
    assert_eq!(end.statuses(), []);
    assert_eq!(end.state(), QpState::ReadyToReceive);
}
