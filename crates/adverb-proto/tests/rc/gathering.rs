//! Short requests that go together.

use adverb_proto::types::SendFlags;

use crate::harness::{End, Options, ack, solo_with};
use crate::requester::{READ, WRITE, numbers};

/// An end with four short requests under way, behind which others gather.
fn gathering(options: Options) -> End {
    let mut end = solo_with(&Options { gather: 8, ..options });
    for request in 0..4 {
        end.post(request, WRITE, 0, 8);
        assert_eq!(numbers(&end.says()), [request as u32], "at once: the peer isn't busy");
    }
    end
}

#[test]
fn short_requests_go_together_when_many_are_under_way() {
    let mut end = gathering(Options::default());
    for request in 4..7 {
        end.post(request, WRITE, 0, 8);
        assert!(end.says().is_empty(), "request {request} waits for others");
    }
    end.post(7, WRITE, 0, 8);
    assert_eq!(numbers(&end.says()), [4, 5, 6, 7], "they are as many as are under way");
    end.post(8, WRITE, 0, 8);
    end.post(9, WRITE, 0, 8);
    end.hear(3, ack(4), &[]);
    assert!(end.says().is_empty(), "four are still under way");
    end.hear(4, ack(5), &[]);
    assert_eq!(numbers(&end.says()), [8, 9], "as soon as there are fewer, all that wait go");
}

#[test]
fn more_short_requests_go_together_the_more_are_under_way_but_not_more_than_they_may() {
    let mut end = gathering(Options::default());
    let mut trains = Vec::new();
    for request in 4..32 {
        end.post(request, WRITE, 0, 8);
        let train = end.says().len();
        trains.extend((train > 0).then_some(train));
    }
    assert_eq!(trains, [4, 8, 8, 8]);
}

#[test]
fn short_request_does_not_wait_with_others_than_its_like() {
    // The word that a long WRITE is there, for one: it goes right behind.
    let mut end = gathering(Options::default());
    end.post(4, WRITE, 0, 8);
    assert!(end.says().is_empty());
    end.post(5, WRITE, 0, 2048);
    assert_eq!(numbers(&end.says()), [4, 5, 6]);
    end.post(6, WRITE, 0, 8);
    assert_eq!(numbers(&end.says()), [7]);
    end.post(7, WRITE, 0, 8);
    assert!(end.says().is_empty());
    end.post(8, READ, 0, 8);
    assert_eq!(numbers(&end.says()), [8, 9]);
    // Somebody asked to be woken by this one.
    let mut end = gathering(Options::default());
    end.post(4, WRITE, 0, 8);
    let segment = end.segment(0, 8);
    end.try_post(5, WRITE, SendFlags::SOLICITED, &[segment]).unwrap();
    assert_eq!(numbers(&end.says()), [4, 5]);
    // Nobody would notice that the acknowledgement is lost.
    let mut end = gathering(Options { timeout: 0, ..Options::default() });
    end.post(4, WRITE, 0, 8);
    assert_eq!(numbers(&end.says()), [4]);
}

#[test]
fn short_requests_that_wait_go_behind_those_that_are_sent_again() {
    let mut end = gathering(Options::default());
    end.post(4, WRITE, 0, 8);
    assert!(end.says().is_empty());
    end.wait();
    assert_eq!(numbers(&end.says()), [0, 1, 2, 3], "the acknowledgement was lost");
    end.hear_ack(3);
    assert_eq!(numbers(&end.says()), [4]);
}
