//! Coalescing of short requests.

use adverb_proto::types::SendFlags;

use crate::harness::{End, Options, ack, solo_with};
use crate::requester::{READ, WRITE, psns};

/// Returns an end with four outstanding short requests, so that further ones are coalesced.
fn end_with_four_outstanding(options: Options) -> End {
    let mut end = solo_with(&Options { coalesce_limit: 8, ..options });
    for request in 0..4 {
        end.post(request, WRITE, 0, 8);
        assert_eq!(psns(&end.sent()), [request as u32], "sent at once, because few requests are outstanding");
    }
    end
}

#[test]
fn short_requests_are_coalesced_while_many_are_outstanding() {
    let mut end = end_with_four_outstanding(Options::default());
    for request in 4..7 {
        end.post(request, WRITE, 0, 8);
        assert!(end.sent().is_empty(), "request {request} is held back");
    }
    end.post(7, WRITE, 0, 8);
    assert_eq!(psns(&end.sent()), [4, 5, 6, 7], "their number equals the number of outstanding requests");
    end.post(8, WRITE, 0, 8);
    end.post(9, WRITE, 0, 8);
    end.receive(3, ack(4), &[]);
    assert!(end.sent().is_empty(), "four requests are still outstanding");
    end.receive(4, ack(5), &[]);
    assert_eq!(psns(&end.sent()), [8, 9], "all are sent when fewer requests are outstanding");
}

#[test]
fn coalescing_scales_with_outstanding_requests_up_to_the_limit() {
    let mut end = end_with_four_outstanding(Options::default());
    let mut batches = Vec::new();
    for request in 4..32 {
        end.post(request, WRITE, 0, 8);
        let batch_len = end.sent().len();
        batches.extend((batch_len > 0).then_some(batch_len));
    }
    assert_eq!(batches, [4, 8, 8, 8]);
}

#[test]
fn only_short_requests_with_a_timeout_are_coalesced() {
    // The notification of a long WRITE, for example, is sent directly after it.
    let mut end = end_with_four_outstanding(Options::default());
    end.post(4, WRITE, 0, 8);
    assert!(end.sent().is_empty());
    end.post(5, WRITE, 0, 2048);
    assert_eq!(psns(&end.sent()), [4, 5, 6]);
    end.post(6, WRITE, 0, 8);
    assert_eq!(psns(&end.sent()), [7]);
    end.post(7, WRITE, 0, 8);
    assert!(end.sent().is_empty());
    end.post(8, READ, 0, 8);
    assert_eq!(psns(&end.sent()), [8, 9]);
    // Whether a request is solicited makes no difference.
    let mut end = end_with_four_outstanding(Options::default());
    let segment = end.segment(0, 8);
    end.try_post(4, WRITE, SendFlags::SOLICITED, &[segment]).unwrap();
    assert!(end.sent().is_empty());
    // Without a timeout, a lost acknowledgement would not be noticed.
    let mut end = end_with_four_outstanding(Options { timeout: 0, ..Options::default() });
    end.post(4, WRITE, 0, 8);
    assert_eq!(psns(&end.sent()), [4]);
}

#[test]
fn coalesced_requests_follow_retransmissions() {
    let mut end = end_with_four_outstanding(Options::default());
    end.post(4, WRITE, 0, 8);
    assert!(end.sent().is_empty());
    end.wait();
    assert_eq!(psns(&end.sent()), [0, 1, 2, 3], "the acknowledgement was lost");
    end.receive_ack(3);
    assert_eq!(psns(&end.sent()), [4]);
}
