//! The handling of forged requests by a responder.

mod duplicates;

use adverb_proto::memory::RemoteInvalidate;
use adverb_proto::types::{Access, CompletedOperation, QpState, RecvRequest, Segment, Status};
use adverb_proto::{QueueEvent, Transition};
use adverb_wire::{
    CompareSwap, FetchAdd, Flush, Header, NakCode, Operation, Psn, Rc, ReadResponse, Reth, Send, Write,
};

use crate::harness::{ADDR, ALL, End, Options, PSN, SIZE, ack, aeth, nak, rnr_nak, solo, solo_with};

const MTU: usize = 1024;

fn reth(end: &End, offset: u64, length: u32) -> Reth {
    Reth { va: ADDR + offset, rkey: end.key, length }
}

fn write_only(end: &End, offset: u64, length: u32) -> Rc {
    Rc::Write(Write::Only(reth(end, offset, length), None))
}

fn write_first(end: &End, offset: u64, length: u32) -> Rc {
    Rc::Write(Write::First(reth(end, offset, length)))
}

const SEND_FIRST: Rc = Rc::Send(Send::First);
const SEND_MIDDLE: Rc = Rc::Send(Send::Middle);
const SEND_LAST: Rc = Rc::Send(Send::Last(None));
const SEND_ONLY: Rc = Rc::Send(Send::Only(None));
const WRITE_MIDDLE: Rc = Rc::Write(Write::Middle);
const WRITE_LAST: Rc = Rc::Write(Write::Last(None));

/// Checks that a request is rejected with an error that ends the connection.
#[track_caller]
fn assert_rejected(end: &mut End, psn: u32, rc: Rc, payload: &[u8], code: NakCode) {
    let before = end.memory.bytes(end.storage).to_vec();
    let msn = psn; // all earlier messages have one packet
    assert_eq!(end.exchange(psn, rc, payload), [(nak(code, msn), psn)]);
    assert_eq!(end.state(), QpState::Error);
    assert!(end.memory.bytes(end.storage) == before, "rejected requests change nothing");
}

#[test]
fn request_in_sequence_is_executed_and_acknowledged() {
    let mut end = solo();
    let request = write_only(&end, 10, 4);
    assert_eq!(end.exchange(0, request, b"abcd"), [(ack(1), 0)]);
    assert_eq!(end.bytes(10, 4), b"abcd");
}

#[test]
fn request_without_ack_request_gets_no_acknowledgement() {
    let mut end = solo();
    let header = Header::new(end.qpn, Psn::wrapping(PSN), Operation::Rc(write_only(&end, 0, 4)));
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_eq!(end.sent(), []);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn requests_of_one_batch_get_one_acknowledgement() {
    let mut end = solo();
    for psn in 0..5 {
        let request = write_only(&end, 0, 4);
        end.receive(psn, request, b"abcd");
    }
    assert_eq!(end.sent(), [(ack(5), 4)]);
}

#[test]
fn out_of_sequence_request_gets_one_nak_with_the_expected_psn() {
    let mut end = solo();
    let request = write_only(&end, 0, 4);
    assert_eq!(end.exchange(3, request, b"abcd"), [(nak(NakCode::SequenceError, 0), 0)]);
    assert_eq!(end.exchange(4, request, b"abcd"), []);
    assert_eq!(end.exchange(3, request, b"abcd"), []);
    assert_ne!(end.bytes(0, 4), b"abcd");
    assert_eq!(end.state(), QpState::ReadyToSend);
}

#[test]
fn responder_continues_after_a_nak_when_the_expected_request_arrives() {
    let mut end = solo();
    let request = write_only(&end, 0, 4);
    end.exchange(2, request, b"abcd");
    assert_eq!(end.exchange(0, request, b"abcd"), [(ack(1), 0)]);
    assert_eq!(end.exchange(2, request, b"abcd"), [(nak(NakCode::SequenceError, 1), 1)]);
}

#[test]
fn unsent_nak_is_canceled_by_the_expected_request() {
    let mut end = solo();
    let request = write_only(&end, 0, 4);
    end.receive(1, request, b"abcd");
    end.receive(0, request, b"abcd");
    assert_eq!(end.sent(), [(ack(1), 0)]);
}

#[test]
fn read_response_is_segmented_at_the_mtu() {
    let mut end = solo();
    let request = Rc::ReadRequest(reth(&end, 0, 2500));
    end.receive(0, request, &[]);
    let packets = end.transmits();
    let parsed: Vec<_> = packets.iter().map(|bytes| adverb_wire::Packet::parse(bytes).unwrap()).collect();
    let operations: Vec<_> = parsed.iter().map(|packet| *packet.operation()).collect();
    let expected = [ReadResponse::First(aeth(1)), ReadResponse::Middle, ReadResponse::Last(aeth(1))];
    assert_eq!(operations, expected.map(|response| Operation::Rc(Rc::ReadResponse(response))));
    assert_eq!(parsed.iter().map(|packet| packet.payload().len()).collect::<Vec<_>>(), [1024, 1024, 452]);
    assert_eq!(parsed[2].header().psn, Psn::wrapping(PSN) + 2);
    assert_eq!([parsed[0].payload(), parsed[1].payload(), parsed[2].payload()].concat(), end.bytes(0, 2500));
}

#[test]
fn read_consumes_one_psn_per_response_packet() {
    let mut end = solo();
    let read = Rc::ReadRequest(reth(&end, 0, 2500));
    end.exchange(0, read, &[]);
    let write = write_only(&end, 0, 4);
    assert_eq!(end.exchange(3, write, b"abcd"), [(ack(2), 3)]);
}

#[test]
fn empty_read_consumes_one_psn_and_ignores_the_key() {
    let mut end = solo();
    let read = Rc::ReadRequest(Reth { va: 0xdead, rkey: 0, length: 0 });
    assert_eq!(end.exchange(0, read, &[]), [(Rc::ReadResponse(ReadResponse::Only(aeth(1))), 0)]);
    assert_eq!(end.exchange(1, read, &[]), [(Rc::ReadResponse(ReadResponse::Only(aeth(2))), 1)]);
}

#[test]
fn empty_write_ignores_the_key() {
    let mut end = solo();
    let write = Rc::Write(Write::Only(Reth { va: 0xdead, rkey: 0, length: 0 }, None));
    assert_eq!(end.exchange(0, write, &[]), [(ack(1), 0)]);
}

#[test]
fn read_response_acknowledges_earlier_packets() {
    let mut end = solo();
    let write = write_only(&end, 0, 4);
    let read = Rc::ReadRequest(reth(&end, 0, 4));
    end.receive(0, write, b"abcd");
    end.receive(1, read, &[]);
    assert_eq!(end.sent(), [(Rc::ReadResponse(ReadResponse::Only(aeth(2))), 1)]);
}

#[test]
fn acknowledgement_follows_earlier_responses() {
    let mut end = solo();
    let write = write_only(&end, 0, 4);
    let read = Rc::ReadRequest(reth(&end, 0, 2048));
    end.receive(0, read, &[]);
    end.receive(2, write, b"abcd");
    let psns: Vec<_> = end.sent().iter().map(|(_, psn)| *psn).collect();
    assert_eq!(psns, [0, 1, 2]);
}

#[test]
fn more_reads_than_the_responder_has_slots_are_an_invalid_request() {
    let mut end = solo_with(&Options { max_dest_rd_atomic: 2, ..Options::default() });
    let read = Rc::ReadRequest(reth(&end, 0, 8));
    end.receive(0, read, &[]);
    end.receive(1, read, &[]);
    end.receive(2, read, &[]);
    let sent = end.sent();
    assert_eq!(sent.len(), 3, "earlier responses are sent");
    assert_eq!(sent[2], (nak(NakCode::InvalidRequest, 2), 2));
    assert_eq!(end.state(), QpState::Error);
}

#[test]
fn read_without_slots_is_an_invalid_request() {
    let mut end = solo_with(&Options { max_dest_rd_atomic: 0, ..Options::default() });
    let read = Rc::ReadRequest(reth(&end, 0, 8));
    assert_rejected(&mut end, 0, read, &[], NakCode::InvalidRequest);
}

#[test]
fn send_without_a_receive_gets_rnr_nak_with_its_psn_and_the_local_timer() {
    let mut end = solo();
    let request = write_only(&end, 0, 4);
    end.exchange(0, request, b"abcd");
    assert_eq!(end.exchange(1, SEND_ONLY, b"abcd"), [(rnr_nak(12, 1), 1)]);
    assert_eq!(end.exchange(2, request, b"abcd"), [], "later packets are dropped without a response");
    assert_eq!(end.state(), QpState::ReadyToSend);
}

#[test]
fn send_retransmitted_after_rnr_nak_is_executed() {
    let mut end = solo();
    end.exchange(0, SEND_ONLY, b"abcd");
    end.post_recv(9, 0, 64);
    assert_eq!(end.exchange(0, SEND_ONLY, b"abcd"), [(ack(1), 0)]);
    assert_eq!(end.statuses(), [(9, Status::Success)]);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn write_with_immediate_without_a_receive_gets_rnr_nak_before_it_writes() {
    let mut end = solo();
    let before = end.bytes(0, 4).to_vec();
    let request = Rc::Write(Write::Only(reth(&end, 0, 4), Some(5)));
    assert_eq!(end.exchange(0, request, b"abcd"), [(rnr_nak(12, 0), 0)]);
    assert_eq!(end.bytes(0, 4), before);
}

#[test]
fn only_the_last_packet_of_a_write_with_immediate_needs_a_receive() {
    let mut end = solo();
    let first = write_first(&end, 0, 1030);
    assert_eq!(end.exchange(0, first, &[1; MTU]), [(ack(0), 0)]);
    let last = Rc::Write(Write::Last(Some(77)));
    assert_eq!(end.exchange(1, last, b"abcdef"), [(rnr_nak(12, 0), 1)]);
    end.post_recv(9, 5000, 64);
    assert_eq!(end.exchange(1, last, b"abcdef"), [(ack(1), 1)]);
    let completion = end.completions()[0].outcome.unwrap();
    assert_eq!(completion.operation, CompletedOperation::RecvWrite { immediate: 77 });
    assert_eq!(completion.length, 1030);
}

#[test]
fn first_and_middle_packets_must_fill_the_mtu() {
    for length in [0, 1, MTU - 1, MTU + 1] {
        let mut end = solo();
        end.post_recv(1, 0, 8192);
        assert_rejected(&mut end, 0, SEND_FIRST, &vec![1; length], NakCode::InvalidRequest);

        let mut end = solo();
        let first = write_first(&end, 0, 4096);
        assert_rejected(&mut end, 0, first, &vec![1; length], NakCode::InvalidRequest);

        let mut end = solo();
        end.post_recv(1, 0, 8192);
        end.exchange(0, SEND_FIRST, &[1; MTU]);
        assert_eq!(end.exchange(1, SEND_MIDDLE, &vec![1; length]), [(nak(NakCode::InvalidRequest, 0), 1)]);
    }
}

#[test]
fn last_packet_must_be_neither_empty_nor_longer_than_the_mtu() {
    for length in [0, MTU + 1] {
        let mut end = solo();
        end.post_recv(1, 0, 8192);
        end.exchange(0, SEND_FIRST, &[1; MTU]);
        assert_eq!(end.exchange(1, SEND_LAST, &vec![1; length]), [(nak(NakCode::InvalidRequest, 0), 1)]);
        assert_eq!(end.statuses(), [(1, Status::RemoteInvalidRequest)]);
    }
}

#[test]
fn only_packet_must_be_no_longer_than_the_mtu() {
    let mut end = solo();
    end.post_recv(1, 0, 8192);
    assert_rejected(&mut end, 0, SEND_ONLY, &[1; MTU + 1], NakCode::InvalidRequest);
    let mut end = solo();
    let write = write_only(&end, 0, MTU as u32 + 1);
    assert_rejected(&mut end, 0, write, &[1; MTU + 1], NakCode::InvalidRequest);
}

#[test]
fn middle_and_last_need_a_started_message() {
    for rc in [SEND_MIDDLE, SEND_LAST, WRITE_MIDDLE, WRITE_LAST, Rc::SendLastInvalidate(1)] {
        let mut end = solo();
        end.post_recv(1, 0, 8192);
        assert_rejected(&mut end, 0, rc, &[1; MTU], NakCode::InvalidRequest);
    }
}

#[test]
fn message_must_end_before_another_starts() {
    let others = |end: &End| {
        [
            SEND_FIRST,
            SEND_ONLY,
            WRITE_MIDDLE,
            WRITE_LAST,
            write_first(end, 0, 4096),
            Rc::SendOnlyInvalidate(1),
        ]
    };
    for index in 0..6 {
        let mut end = solo();
        end.post_recv(1, 0, 8192);
        end.exchange(0, SEND_FIRST, &[1; MTU]);
        let other = others(&end)[index];
        assert_eq!(end.exchange(1, other, &[1; MTU]), [(nak(NakCode::InvalidRequest, 0), 1)], "{other:?}");
    }
}

#[test]
fn read_or_atomic_within_a_message_is_an_invalid_request() {
    for index in 0..5 {
        let mut end = solo();
        let requests = [
            Rc::ReadRequest(reth(&end, 0, 8)),
            Rc::FetchAdd(FetchAdd { va: ADDR, rkey: end.key, add: 1 }),
            Rc::CompareSwap(CompareSwap { va: ADDR, rkey: end.key, swap: 1, compare: 1 }),
            Rc::Flush(Flush {
                global: true,
                persistent: false,
                whole_region: false,
                range: reth(&end, 0, 8),
            }),
            Rc::AtomicWrite(reth(&end, 0, 8)),
        ];
        let first = write_first(&end, 0, 4096);
        end.exchange(0, first, &[1; MTU]);
        let payload = if index == 4 { &[1u8; 8][..] } else { &[] };
        assert_eq!(
            end.exchange(1, requests[index], payload),
            [(nak(NakCode::InvalidRequest, 0), 1)],
            "{index}"
        );
    }
}

#[test]
fn write_must_have_as_many_bytes_as_its_length() {
    // ONLY has too few or too many bytes, FIRST has all bytes, LAST has too few or too many, and MIDDLE has all that
    // remain.
    let mut end = solo();
    let request = write_only(&end, 0, 8);
    assert_rejected(&mut end, 0, request, &[1; 7], NakCode::InvalidRequest);
    let mut end = solo();
    let request = write_only(&end, 0, 8);
    assert_rejected(&mut end, 0, request, &[1; 9], NakCode::InvalidRequest);
    let mut end = solo();
    let request = write_first(&end, 0, MTU as u32);
    assert_rejected(&mut end, 0, request, &[1; MTU], NakCode::InvalidRequest);
    for length in [5, 7] {
        let mut end = solo();
        let request = write_first(&end, 0, MTU as u32 + 6);
        end.exchange(0, request, &[1; MTU]);
        assert_eq!(end.exchange(1, WRITE_LAST, &vec![1; length]), [(nak(NakCode::InvalidRequest, 0), 1)]);
    }
    let mut end = solo();
    let request = write_first(&end, 0, 2 * MTU as u32);
    end.exchange(0, request, &[1; MTU]);
    assert_eq!(end.exchange(1, WRITE_MIDDLE, &[1; MTU]), [(nak(NakCode::InvalidRequest, 0), 1)]);
}

#[test]
fn message_longer_than_two_to_the_31_is_an_invalid_request() {
    let mut end = solo();
    let request = write_first(&end, 0, (1 << 31) + 1);
    assert_rejected(&mut end, 0, request, &[1; MTU], NakCode::InvalidRequest);
    let mut end = solo();
    let request = Rc::ReadRequest(reth(&end, 0, (1 << 31) + 1));
    assert_rejected(&mut end, 0, request, &[], NakCode::InvalidRequest);
}

#[test]
fn misaligned_atomic_is_an_invalid_request() {
    for offset in 1..8 {
        let mut end = solo();
        let add = Rc::FetchAdd(FetchAdd { va: ADDR + offset, rkey: end.key, add: 1 });
        assert_rejected(&mut end, 0, add, &[], NakCode::InvalidRequest);
        let mut end = solo();
        let write = Rc::AtomicWrite(reth(&end, offset, 8));
        assert_rejected(&mut end, 0, write, &[1; 8], NakCode::InvalidRequest);
    }
}

#[test]
fn atomic_write_must_have_eight_bytes() {
    for length in [0, 7, 9, 16] {
        let mut end = solo();
        let write = Rc::AtomicWrite(reth(&end, 0, length));
        assert_rejected(&mut end, 0, write, &[1; 8], NakCode::InvalidRequest);
    }
}

#[test]
fn access_that_the_queue_pair_denies_is_an_invalid_request() {
    for index in 0..5 {
        let missing = [
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_ATOMIC,
            Access::REMOTE_WRITE,
            Access::FLUSH_GLOBAL,
        ][index];
        let mut end = solo_with(&Options { access: ALL.difference(missing), ..Options::default() });
        let (request, payload): (Rc, &[u8]) = match index {
            0 => (write_only(&end, 0, 4), b"abcd"),
            1 => (Rc::ReadRequest(reth(&end, 0, 8)), b""),
            2 => (Rc::FetchAdd(FetchAdd { va: ADDR, rkey: end.key, add: 1 }), b""),
            3 => (Rc::AtomicWrite(reth(&end, 0, 8)), b"abcdefgh"),
            _ => {
                let range = reth(&end, 0, 8);
                (Rc::Flush(Flush { global: true, persistent: false, whole_region: false, range }), b"")
            }
        };
        assert_rejected(&mut end, 0, request, payload, NakCode::InvalidRequest);
        assert!(end.queue_events().contains(&QueueEvent::RequestError(end.qpn)));
        let status = end.device.query_qp(end.qpn).unwrap();
        assert_eq!(status.error_event, Some(QueueEvent::RequestError(end.qpn)));
    }
}

#[test]
fn modified_access_applies_to_later_requests() {
    let mut end = solo_with(&Options { access: Access::empty(), ..Options::default() });
    end.modify(Transition::ModifyAccess(Access::REMOTE_WRITE));
    let write = write_only(&end, 0, 4);
    assert_eq!(end.exchange(0, write, b"abcd"), [(ack(1), 0)]);
    assert_eq!(end.bytes(0, 4), b"abcd");
    end.modify(Transition::ModifyAccess(Access::REMOTE_READ));
    let write = write_only(&end, 0, 4);
    assert_rejected(&mut end, 1, write, b"efgh", NakCode::InvalidRequest);
}

#[test]
fn access_that_the_region_denies_is_an_access_error() {
    for index in 0..5 {
        let missing = [
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_ATOMIC,
            Access::REMOTE_WRITE,
            Access::FLUSH_PERSISTENT,
        ][index];
        let mut end = solo();
        end.key = end.register(ALL.difference(missing));
        let (request, payload): (Rc, &[u8]) = match index {
            0 => (write_only(&end, 0, 4), b"abcd"),
            1 => (Rc::ReadRequest(reth(&end, 0, 8)), b""),
            2 => (Rc::CompareSwap(CompareSwap { va: ADDR, rkey: end.key, swap: 1, compare: 1 }), b""),
            3 => (Rc::AtomicWrite(reth(&end, 0, 8)), b"abcdefgh"),
            _ => {
                let range = reth(&end, 0, 8);
                (Rc::Flush(Flush { global: false, persistent: true, whole_region: true, range }), b"")
            }
        };
        assert_rejected(&mut end, 0, request, payload, NakCode::RemoteAccess);
        assert!(end.queue_events().contains(&QueueEvent::AccessError(end.qpn)));
        let status = end.device.query_qp(end.qpn).unwrap();
        assert_eq!(status.error_event, Some(QueueEvent::AccessError(end.qpn)));
    }
}

#[test]
fn flush_without_placement_is_an_invalid_request() {
    let mut end = solo();
    let range = reth(&end, 0, 8);
    let flush = Rc::Flush(Flush { global: false, persistent: false, whole_region: false, range });
    assert_rejected(&mut end, 0, flush, &[], NakCode::InvalidRequest);
}

#[test]
fn range_outside_the_region_is_an_access_error() {
    let ranges = [
        (ADDR - 1, 4),
        (ADDR + SIZE - 3, 4),
        (ADDR + SIZE, 1),
        (ADDR.wrapping_sub(SIZE), 4),
        (u64::MAX - 2, 4),
        (u64::MAX, 1),
        (0, 4),
    ];
    for (va, length) in ranges {
        let mut end = solo();
        let request = Rc::Write(Write::Only(Reth { va, rkey: end.key, length }, None));
        assert_rejected(&mut end, 0, request, &vec![9; length as usize], NakCode::RemoteAccess);
        let mut end = solo();
        let request = Rc::ReadRequest(Reth { va, rkey: end.key, length });
        assert_rejected(&mut end, 0, request, &[], NakCode::RemoteAccess);
    }
    let mut end = solo();
    let request = Rc::FetchAdd(FetchAdd { va: ADDR + SIZE, rkey: end.key, add: 1 });
    assert_rejected(&mut end, 0, request, &[], NakCode::RemoteAccess);
}

#[test]
fn whole_range_of_a_long_write_is_checked_with_its_first_packet() {
    let mut end = solo();
    let request = write_first(&end, SIZE - 2000, 2001);
    assert_rejected(&mut end, 0, request, &[1; MTU], NakCode::RemoteAccess);
}

#[test]
fn range_up_to_the_last_byte_of_the_region_is_allowed() {
    let mut end = solo();
    let request = write_only(&end, SIZE - 4, 4);
    assert_eq!(end.exchange(0, request, b"last"), [(ack(1), 0)]);
    assert_eq!(end.bytes(SIZE as usize - 4, 4), b"last");
}

#[test]
fn unknown_key_is_an_access_error() {
    for rkey in [0, 1, u32::MAX] {
        let mut end = solo();
        let request = Rc::Write(Write::Only(Reth { va: ADDR, rkey, length: 4 }, None));
        assert_rejected(&mut end, 0, request, b"abcd", NakCode::RemoteAccess);
    }
}

#[test]
fn region_of_another_domain_is_an_access_error() {
    let mut end = solo();
    let other = end.device.create_domain();
    end.key = end.register_with(other, ALL, RemoteInvalidate::Denied);
    let request = write_only(&end, 0, 4);
    assert_rejected(&mut end, 0, request, b"abcd", NakCode::RemoteAccess);
}

#[test]
fn region_deregistered_during_a_write_is_not_written() {
    let mut end = solo();
    let request = write_first(&end, 0, 3000);
    end.exchange(0, request, &[1; MTU]);
    end.device.deregister(end.key).unwrap();
    let before = end.bytes(0, 4096).to_vec();
    assert_eq!(end.exchange(1, WRITE_MIDDLE, &[2; MTU]), [(nak(NakCode::RemoteAccess, 0), 1)]);
    assert_eq!(end.bytes(0, 4096), before);
}

#[test]
fn region_deregistered_during_a_read_is_not_read() {
    let mut end = solo();
    let request = Rc::ReadRequest(reth(&end, 0, 3000));
    end.receive(0, request, &[]);
    let now = end.now;
    assert!(end.device.poll_transmit(now).is_some());
    end.device.deregister(end.key).unwrap();
    assert_eq!(end.sent(), [(nak(NakCode::RemoteAccess, 1), 1)]);
    assert_eq!(end.state(), QpState::Error);
}

#[test]
fn message_longer_than_its_receive_is_an_invalid_request_and_a_length_error() {
    let mut end = solo();
    end.post_recv(1, 0, 10);
    end.post_recv(2, 64, 10);
    assert_eq!(end.exchange(0, SEND_ONLY, b"eleven bytes"), [(nak(NakCode::InvalidRequest, 0), 0)]);
    assert_eq!(end.statuses(), [(1, Status::LocalLength), (2, Status::Flushed)]);
}

/// Posts a receive with the local key `lkey`.
fn post_recv_with_key(end: &mut End, lkey: u32) {
    let segments = [Segment { addr: ADDR, length: 64, lkey }];
    end.device.post_recv(end.now, end.qpn, &RecvRequest { wr_id: 1, tag: 0, segments: &segments }).unwrap();
}

#[test]
fn receive_with_a_bad_key_is_a_remote_operational_error() {
    let mut end = solo();
    post_recv_with_key(&mut end, 77);
    assert_eq!(end.exchange(0, SEND_ONLY, b"abcd"), [(nak(NakCode::RemoteOperational, 0), 0)]);
    assert_eq!(end.statuses(), [(1, Status::LocalProtection)]);
}

#[test]
fn receive_into_memory_without_local_write_fails() {
    let mut end = solo();
    let key = end.register(Access::empty());
    post_recv_with_key(&mut end, key);
    assert_eq!(end.exchange(0, SEND_ONLY, b"abcd"), [(nak(NakCode::RemoteOperational, 0), 0)]);
}

#[test]
fn send_with_invalidate_invalidates_the_key() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    let key = end.register_with(end.pd, ALL, RemoteInvalidate::Allowed);
    assert_eq!(end.exchange(0, Rc::SendOnlyInvalidate(key), b"abcd"), [(ack(1), 0)]);
    let received = end.completions()[0].outcome.unwrap().operation;
    assert!(matches!(received, CompletedOperation::Recv { invalidated, .. } if invalidated == Some(key)));
    let request = Rc::Write(Write::Only(Reth { va: ADDR, rkey: key, length: 4 }, None));
    assert_rejected(&mut end, 1, request, b"abcd", NakCode::RemoteAccess);
}

#[test]
fn send_with_invalidate_of_a_key_that_does_not_allow_it_is_an_access_error() {
    for allowed_elsewhere in [false, true] {
        let mut end = solo();
        end.post_recv(1, 0, 64);
        let key = if allowed_elsewhere {
            let other = end.device.create_domain();
            end.register_with(other, ALL, RemoteInvalidate::Allowed)
        } else {
            end.key
        };
        assert_eq!(
            end.exchange(0, Rc::SendOnlyInvalidate(key), b"abcd"),
            [(nak(NakCode::RemoteAccess, 0), 0)]
        );
        assert_eq!(end.statuses(), [(1, Status::RemoteInvalidRequest)]);
    }
}

#[test]
fn msn_counts_only_completed_messages() {
    let mut end = solo();
    end.post_recv(1, 0, 8192);
    assert_eq!(end.exchange(0, SEND_FIRST, &[1; MTU]), [(ack(0), 0)]);
    assert_eq!(end.exchange(1, SEND_MIDDLE, &[1; MTU]), [(ack(0), 1)]);
    assert_eq!(end.exchange(2, SEND_LAST, &[1; 1]), [(ack(1), 2)]);
    let read = Rc::ReadRequest(reth(&end, 0, 3000));
    let sent = end.exchange(3, read, &[]);
    assert_eq!(sent[0], (Rc::ReadResponse(ReadResponse::First(aeth(2))), 3));
}

#[test]
fn queue_pair_in_error_sends_nothing() {
    let mut end = solo();
    let bad = Rc::Write(Write::Only(Reth { va: 0, rkey: 0, length: 4 }, None));
    assert_eq!(end.exchange(0, bad, b"abcd").len(), 1);
    assert_eq!(end.exchange(0, bad, b"abcd"), []);
    let good = write_only(&end, 0, 4);
    assert_eq!(end.exchange(0, good, b"abcd"), []);
}

#[test]
fn responses_before_a_rejected_request_are_sent() {
    let mut end = solo();
    let read = Rc::ReadRequest(reth(&end, 0, 2048));
    let bad = Rc::Write(Write::Only(Reth { va: 0, rkey: 0, length: 4 }, None));
    end.receive(0, read, &[]);
    end.receive(2, bad, b"abcd");
    let sent = end.sent();
    assert_eq!(sent.iter().map(|(_, psn)| *psn).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(sent[2].0, nak(NakCode::RemoteAccess, 1));
}

#[test]
fn memory_fault_is_a_remote_operational_error() {
    // The region's storage does not exist.
    let mut end = solo();
    let registration = adverb_proto::memory::Registration {
        addr: ADDR,
        length: 4096,
        access: ALL,
        storage: adverb_proto::memory::StorageId(99),
        remote_invalidate: RemoteInvalidate::Denied,
    };
    let random = end.rng();
    end.key = end.device.register(end.pd, registration, random).unwrap();
    let request = write_only(&end, 0, 4);
    assert_rejected(&mut end, 0, request, b"abcd", NakCode::RemoteOperational);
}

#[test]
fn first_packet_generates_the_established_event() {
    let options = Options::default();
    let mut end = End::new(1, 2, &options);
    end.remote_qpn = adverb_wire::Qpn::truncate(0x77);
    end.move_to_init(&options);
    let ready_to_receive = end.ready_to_receive(end.remote_qpn, &options);
    end.modify(ready_to_receive);
    let request = write_only(&end, 0, 4);
    assert_eq!(end.exchange(0, request, b"abcd"), [(ack(1), 0)], "requests are executed in RTR");
    assert_eq!(end.queue_events(), [QueueEvent::Established(end.qpn)]);
}

#[test]
fn distance_of_sequence_numbers_is_the_shorter_one() {
    let mut end = solo_with(&Options { psn: 2, ..Options::default() });
    // Number 0xffffff precedes number 2, so it is a duplicate and not ahead.
    let mut header = Header::new(end.qpn, Psn::MAX, Operation::Rc(write_only(&end, 0, 4)));
    header.ack_request = true;
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_eq!(end.headers()[0].psn, Psn::wrapping(1));
    assert_eq!(end.device.statistics().duplicate_requests, 1);
}
