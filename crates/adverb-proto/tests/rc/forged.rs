//! Forged responses, which must match the outstanding requests in more than their sequence number.

use adverb_proto::types::{PathMtu, SendOperation, Status};
use adverb_wire::{Aeth, NakCode, Rc, ReadResponse, Syndrome};

use crate::harness::{End, Options, Pair, ack, aeth, nak, pattern, rnr_nak, solo, solo_with};
use crate::requester::{READ, WRITE, remote};

/// Returns an end that has completed three messages and has four in flight, with sequence numbers 3 to 6.
fn end_with_four_in_flight() -> End {
    let mut end = solo();
    for id in 0..7 {
        end.post(id, WRITE, 0, 8);
        end.transmits();
    }
    end.receive(2, ack(3), &[]);
    assert_eq!(end.statuses().len(), 3);
    end
}

#[test]
fn acknowledgements_with_an_impossible_msn_are_dropped() {
    for msn in [0, 2, 8, 9, 1000, 0x80_0000, 0xff_ffff] {
        for response in
            [ack(msn), nak(NakCode::RemoteAccess, msn), nak(NakCode::SequenceError, msn), rnr_nak(1, msn)]
        {
            let mut end = end_with_four_in_flight();
            for psn in 3..7 {
                end.receive(psn, response, &[]);
            }
            assert_eq!(end.statuses(), [], "{response:?}");
            assert_eq!(end.sent(), [], "nothing is retransmitted because of {response:?}");
            assert_eq!(end.device.statistics().mismatched_responses, 4);
            // The connection still works.
            end.receive(6, ack(7), &[]);
            assert_eq!(end.statuses().len(), 4);
        }
    }
}

#[test]
fn acknowledgements_may_have_the_msn_of_any_outstanding_message() {
    // The peer counts READs when it accepts the request, so the MSN may be ahead of the sequence number.
    for msn in 3..=7 {
        let mut end = end_with_four_in_flight();
        end.receive(3, ack(msn), &[]);
        assert_eq!(end.statuses(), [(3, Status::Success)], "{msn}");
    }
}

#[test]
fn a_request_whose_acknowledgements_have_wrong_msns_fails_by_timeout() {
    let mut end = solo_with(&Options { retry_count: 2, ..Options::default() });
    end.post(1, WRITE, 0, 8);
    end.transmits();
    for _ in 0..3 {
        end.receive(0, ack(77), &[]);
        assert_eq!(end.statuses(), []);
        end.wait();
        end.transmits();
    }
    assert_eq!(end.statuses(), [(1, Status::RetryExceeded)]);
}

#[test]
fn responses_with_an_impossible_msn_write_no_bytes() {
    let mut end = solo();
    let before = end.bytes(0, 64).to_vec();
    end.post(1, READ, 0, 64);
    end.post(2, SendOperation::FetchAdd { remote: remote(0), add: 1 }, 0, 8);
    end.transmits();
    for msn in [3, 1000, 0xff_ffff] {
        end.receive(0, Rc::ReadResponse(ReadResponse::Only(aeth(msn))), &[9; 64]);
        end.receive(1, Rc::AtomicAcknowledge(aeth(msn), 5), &[]);
    }
    assert_eq!(end.device.statistics().mismatched_responses, 6);
    assert_eq!((end.statuses(), end.bytes(0, 64)), (vec![], &before[..]));
    end.receive(0, Rc::ReadResponse(ReadResponse::Only(aeth(1))), &[7; 64]);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn a_response_of_another_kind_acknowledges_nothing() {
    for forged in [
        Rc::ReadResponse(ReadResponse::Middle),
        Rc::ReadResponse(ReadResponse::Only(aeth(1))),
        Rc::AtomicAcknowledge(aeth(1), 5),
        Rc::ReadResponse(ReadResponse::Only(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 1 })),
    ] {
        let mut end = solo();
        for id in 0..4 {
            end.post(id, WRITE, 0, 8);
        }
        end.transmits();
        for psn in 0..4 {
            end.receive(psn, forged, &[]);
        }
        assert_eq!(end.statuses(), [], "{forged:?}");
        assert_eq!(end.device.statistics().mismatched_responses, 4, "{forged:?}");
        end.receive(3, ack(4), &[]);
        assert_eq!(end.statuses().len(), 4);
    }
}

#[test]
fn a_response_without_an_msn_acknowledges_nothing() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.post(2, READ, 0, 3000);
    end.transmits();
    for psn in 1..4 {
        end.receive(psn, Rc::ReadResponse(ReadResponse::Middle), &pattern(1024, 1));
    }
    assert_eq!(end.statuses(), [], "the WRITE isn't acknowledged");
    assert_eq!(end.device.statistics().implied_naks, 3);
    assert_eq!(end.sent().len(), 2, "both requests are retransmitted once");
    end.receive(0, ack(1), &[]);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn msns_of_sends_reads_atomics_and_writes_agree_despite_losses() {
    let options = Options { mtu: PathMtu::Mtu256, timeout: 5, ..Options::default() };
    for lost in 0..40 {
        let mut pair = Pair::with(&options);
        for round in 0..5 {
            pair.b.post_recv(round, 20_000, 2000);
            pair.a.post(round * 4, SendOperation::Send, 0, 700);
            pair.a.post(round * 4 + 1, SendOperation::Read(pair.b.remote_addr(8192)), 50_000, 1500);
            let add = SendOperation::FetchAdd { remote: pair.b.remote_addr(64), add: 5 };
            pair.a.post(round * 4 + 2, add, 60_000, 8);
            pair.a.post(round * 4 + 3, SendOperation::Write(pair.b.remote_addr(0)), 0, 300);
        }
        let mut index = 0;
        pair.run_until_idle_where(|_, _| {
            index += 1;
            index % 41 != lost
        });
        assert_eq!(pair.a.statuses(), (0..20).map(|id| (id, Status::Success)).collect::<Vec<_>>());
        assert_eq!(pair.a.device.statistics().mismatched_responses, 0);
    }
}
