//! The handling of duplicate requests by a responder.

use adverb_proto::types::{QpState, Status};
use adverb_wire::{CompareSwap, FetchAdd, Flush, Rc, ReadResponse, Reth};

use super::{MTU, SEND_ONLY, WRITE_LAST, reth, write_first, write_only};
use crate::harness::{ADDR, ALL, Options, ack, aeth, pattern, solo, solo_with};

#[test]
fn duplicate_write_gets_the_latest_acknowledgement_and_is_not_executed() {
    let mut end = solo();
    let request = write_only(&end, 0, 4);
    end.exchange(0, request, b"aaaa");
    end.exchange(1, request, b"bbbb");
    assert_eq!(end.exchange(0, request, b"aaaa"), [(ack(2), 1)]);
    assert_eq!(end.bytes(0, 4), b"bbbb");
    assert_eq!(end.device.statistics().duplicate_requests, 1);
}

#[test]
fn duplicate_send_is_acknowledged_and_consumes_nothing() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    end.post_recv(2, 64, 64);
    end.exchange(0, SEND_ONLY, b"aaaa");
    assert_eq!(end.exchange(0, SEND_ONLY, b"aaaa"), [(ack(1), 0)]);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.device.query_qp(end.qpn).unwrap().recv_queue_len, 1);
}

#[test]
fn duplicate_packet_of_an_incomplete_message_is_acknowledged() {
    let mut end = solo();
    let first = write_first(&end, 0, 1500);
    end.exchange(0, first, &pattern(MTU, 1));
    assert_eq!(end.exchange(0, first, &pattern(MTU, 2)), [(ack(0), 0)]);
    assert_eq!(end.bytes(0, MTU), pattern(MTU, 1));
    assert_eq!(end.exchange(1, WRITE_LAST, &[7; 476]), [(ack(1), 1)]);
}

#[test]
fn duplicate_read_is_executed_again() {
    let mut end = solo();
    let read = Rc::ReadRequest(reth(&end, 0, 2048));
    let first = end.exchange(0, read, &[]);
    assert_eq!(end.exchange(0, read, &[]), first);
    assert_eq!(end.device.statistics().retransmitted_responses, 1);
}

#[test]
fn duplicate_read_may_start_within_the_original() {
    let mut end = solo();
    let read = Rc::ReadRequest(reth(&end, 0, 3000));
    end.exchange(0, read, &[]);
    let rest = Rc::ReadRequest(reth(&end, 1024, 1976));
    let responses = end.exchange(1, rest, &[]);
    let expected = [ReadResponse::First(aeth(1)), ReadResponse::Last(aeth(1))].map(Rc::ReadResponse);
    assert_eq!(responses, [(expected[0], 1), (expected[1], 2)]);
}

#[test]
fn duplicate_read_with_another_key_is_dropped() {
    let mut end = solo();
    let other = end.register(ALL);
    let read = Rc::ReadRequest(reth(&end, 0, 2048));
    end.exchange(0, read, &[]);
    assert_eq!(end.exchange(0, Rc::ReadRequest(Reth { va: ADDR, rkey: other, length: 2048 }), &[]), []);
    assert_eq!(end.state(), QpState::ReadyToSend);
}

#[test]
fn duplicate_read_of_another_range_is_dropped() {
    let mut end = solo();
    let read = Rc::ReadRequest(reth(&end, 4096, 2048));
    end.exchange(0, read, &[]);
    for (psn, offset, length) in
        [(0, 4096, 2049), (0, 4095, 2048), (1, 4096, 2048), (1, 5120, 1025), (0, 5120, 1024)]
    {
        let request = Rc::ReadRequest(reth(&end, offset, length));
        assert_eq!(end.exchange(psn, request, &[]), [], "{psn} {offset} {length}");
    }
}

#[test]
fn duplicate_atomic_gets_the_saved_response_and_is_not_executed() {
    let mut end = solo();
    end.fill(64, &5u64.to_ne_bytes());
    let add = Rc::FetchAdd(FetchAdd { va: ADDR + 64, rkey: end.key, add: 10 });
    let response = [(Rc::AtomicAcknowledge(aeth(1), 5), 0)];
    assert_eq!(end.exchange(0, add, &[]), response);
    assert_eq!(end.exchange(0, add, &[]), response);
    assert_eq!(end.exchange(0, add, &[]), response);
    assert_eq!(end.word(64), 15);
}

#[test]
fn duplicate_compare_swap_gets_the_saved_response_and_is_not_executed() {
    let mut end = solo();
    end.fill(64, &5u64.to_ne_bytes());
    let swap = Rc::CompareSwap(CompareSwap { va: ADDR + 64, rkey: end.key, swap: 6, compare: 5 });
    let response = [(Rc::AtomicAcknowledge(aeth(1), 5), 0)];
    assert_eq!(end.exchange(0, swap, &[]), response);
    end.fill(64, &5u64.to_ne_bytes());
    assert_eq!(end.exchange(0, swap, &[]), response);
    assert_eq!(end.word(64), 5);
}

#[test]
fn duplicate_atomic_write_gets_a_response_and_is_not_executed() {
    let mut end = solo();
    let write = Rc::AtomicWrite(reth(&end, 64, 8));
    let response = [(Rc::ReadResponse(ReadResponse::Only(aeth(1))), 0)];
    assert_eq!(end.exchange(0, write, b"original"), response);
    end.fill(64, b"newerval");
    assert_eq!(end.exchange(0, write, b"original"), response);
    assert_eq!(end.bytes(64, 8), b"newerval");
}

#[test]
fn duplicate_flush_gets_a_response() {
    let mut end = solo();
    let flush =
        Rc::Flush(Flush { global: true, persistent: false, whole_region: false, range: reth(&end, 0, 8) });
    let response = [(Rc::ReadResponse(ReadResponse::Only(aeth(1))), 0)];
    assert_eq!(end.exchange(0, flush, &[]), response);
    assert_eq!(end.exchange(0, flush, &[]), response);
}

#[test]
fn only_the_responses_that_may_be_outstanding_are_saved() {
    let mut end = solo_with(&Options { max_dest_rd_atomic: 3, ..Options::default() });
    let add = Rc::FetchAdd(FetchAdd { va: ADDR, rkey: end.key, add: 1 });
    for psn in 0..5 {
        assert_eq!(end.exchange(psn, add, &[]).len(), 1);
    }
    for psn in 0..5 {
        assert_eq!(end.exchange(psn, add, &[]).len(), usize::from(psn >= 2), "{psn}");
    }
    assert_eq!(end.state(), QpState::ReadyToSend);
}
