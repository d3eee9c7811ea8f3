//! End-to-end credits (vol. 1, 9.7.7.2).

use adverb_proto::types::{RemoteAddress, SendOperation, Status};
use adverb_wire::{Aeth, Credits, Rc, Send, Syndrome};

use crate::harness::{Options, Pair, ack, rnr_nak, solo, solo_with};

fn options() -> Options {
    Options { credits: true, ..Options::default() }
}

fn credit(count: u32, msn: u32) -> Rc {
    Rc::Acknowledge(Aeth { syndrome: Syndrome::Ack(Credits::at_most(count)), msn })
}

#[test]
fn acknowledgements_carry_as_many_credits_as_there_are_receives() {
    let mut end = solo_with(&options());
    for id in 0..5 {
        end.post_recv(id, 0, 64);
    }
    let said = end.ask(0, Rc::Send(Send::Only(None)), b"abcd");
    assert_eq!(said, [(credit(4, 1), 0)]);
    assert_eq!(end.ask(1, Rc::Send(Send::Only(None)), b"abcd"), [(credit(3, 2), 1)]);
}

#[test]
fn without_credits_acknowledgements_say_so() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    assert_eq!(end.ask(0, Rc::Send(Send::Only(None)), b"abcd"), [(ack(1), 0)]);
}

#[test]
fn first_message_is_a_probe_and_then_credits_decide() {
    let mut end = solo_with(&options());
    for id in 0..6 {
        end.post(id, SendOperation::Send, 0, 8);
    }
    assert_eq!(end.transmits().len(), 1, "one probe");
    end.hear(0, credit(3, 1), &[]);
    assert_eq!(end.transmits().len(), 3, "messages 2 to 4");
    end.hear(3, credit(0, 4), &[]);
    assert_eq!(end.transmits().len(), 1, "one probe again");
}

#[test]
fn what_consumes_no_receive_needs_no_credit() {
    let mut end = solo_with(&options());
    let remote = RemoteAddress { addr: 0, rkey: 1 };
    end.post(1, SendOperation::Write(remote), 0, 8);
    end.post(2, SendOperation::Write(remote), 0, 8);
    end.post(3, SendOperation::Read(remote), 0, 8);
    end.post(4, SendOperation::Send, 0, 8);
    assert_eq!(end.transmits().len(), 3, "the SEND waits: it would be no probe");
}

#[test]
fn peer_that_does_not_count_is_not_limited() {
    let mut end = solo_with(&options());
    for id in 0..6 {
        end.post(id, SendOperation::Send, 0, 8);
    }
    end.transmits();
    end.hear(0, ack(1), &[]);
    assert_eq!(end.transmits().len(), 5);
}

#[test]
fn credits_may_come_with_a_repeated_acknowledgement() {
    let mut end = solo_with(&options());
    for id in 0..6 {
        end.post(id, SendOperation::Send, 0, 8);
    }
    end.transmits();
    end.hear(0, credit(0, 1), &[]);
    assert_eq!(end.transmits().len(), 1);
    end.hear(0, credit(4, 1), &[]);
    assert_eq!(end.transmits().len(), 3, "messages 3 to 5");
}

#[test]
fn receive_posted_after_the_last_credit_was_used_is_told_unasked() {
    let mut end = solo_with(&options());
    end.post_recv(1, 0, 64);
    assert_eq!(end.ask(0, Rc::Send(Send::Only(None)), b"abcd"), [(credit(0, 1), 0)]);
    end.post_recv(2, 0, 64);
    end.post_recv(3, 0, 64);
    assert_eq!(end.says(), [(credit(2, 1), 0)], "both at once");
    end.post_recv(4, 0, 64);
    assert_eq!(end.says(), [], "the peer has some, and hears of the rest in time");
}

#[test]
fn nothing_is_told_unasked_without_credits_or_before_there_was_need() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    end.ask(0, Rc::Send(Send::Only(None)), b"abcd");
    end.post_recv(2, 0, 64);
    assert_eq!(end.says(), []);
    let mut end = solo_with(&options());
    end.post_recv(1, 0, 64);
    assert_eq!(end.says(), []);
}

#[test]
fn credit_that_comes_unasked_lets_messages_go() {
    let mut pair = Pair::with(&options());
    pair.b.post_recv(1, 0, 64);
    for id in 0..4 {
        pair.a.post(id, SendOperation::Send, 0, 8);
    }
    // The first uses the only receive; the second goes as a probe, and waits.
    pair.run();
    assert_eq!(pair.b.statuses().len(), 1);
    pair.a.wait();
    pair.b.now = pair.a.now;
    for id in 2..6 {
        pair.b.post_recv(id, 0, 64);
    }
    pair.run();
    assert_eq!(pair.b.statuses().len(), 3);
    assert_eq!(pair.a.device.statistics().rnr_naks_received, 1);
}

#[test]
fn probe_without_a_receive_waits_like_any_other() {
    let mut end = solo_with(&options());
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    end.hear(0, rnr_nak(1, 0), &[]);
    assert!(end.wait().is_some());
    assert_eq!(end.transmits().len(), 1);
}

#[test]
fn with_credits_a_prompt_receiver_sees_no_rnr() {
    let mut pair = Pair::with(&Options { credits: true, window: 64, ..Options::default() });
    let mut posted = 0;
    for id in 0..4 {
        pair.b.post_recv(id, 0, 64);
    }
    for id in 0..100 {
        pair.a.post(id, SendOperation::Send, 0, 8);
    }
    let mut received = 0;
    while received < 100 {
        pair.run();
        let completions = pair.b.completions().len();
        received += completions;
        for _ in 0..completions {
            pair.b.post_recv(posted, 0, 64);
            posted += 1;
        }
        if completions == 0 {
            pair.a.wait();
            pair.b.now = pair.a.now;
        }
    }
    assert_eq!(pair.a.statuses().len(), 100);
    assert!(pair.a.device.statistics().rnr_naks_received <= 25, "only probes meet an empty queue");
    assert!(!pair.a.statuses().iter().any(|(_, status)| *status != Status::Success));
}
