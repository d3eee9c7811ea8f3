//! End-to-end credits (vol. 1, 9.7.7).

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
    let sent = end.exchange(0, Rc::Send(Send::Only(None)), b"abcd");
    assert_eq!(sent, [(credit(4, 1), 0)]);
    assert_eq!(end.exchange(1, Rc::Send(Send::Only(None)), b"abcd"), [(credit(3, 2), 1)]);
}

#[test]
fn queue_pair_without_credits_sends_no_credit_limit() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    assert_eq!(end.exchange(0, Rc::Send(Send::Only(None)), b"abcd"), [(ack(1), 0)]);
}

#[test]
fn first_message_is_a_probe_and_credits_limit_the_rest() {
    let mut end = solo_with(&options());
    for id in 0..6 {
        end.post(id, SendOperation::Send, 0, 8);
    }
    assert_eq!(end.transmits().len(), 1, "one probe");
    end.receive(0, credit(3, 1), &[]);
    assert_eq!(end.transmits().len(), 3, "messages 2 to 4");
    end.receive(3, credit(0, 4), &[]);
    assert_eq!(end.transmits().len(), 1, "one probe again");
}

#[test]
fn requests_that_consume_no_receive_need_no_credit() {
    let mut end = solo_with(&options());
    let remote = RemoteAddress { addr: 0, rkey: 1 };
    end.post(1, SendOperation::Write(remote), 0, 8);
    end.post(2, SendOperation::Write(remote), 0, 8);
    end.post(3, SendOperation::Read(remote), 0, 8);
    end.post(4, SendOperation::Send, 0, 8);
    assert_eq!(end.transmits().len(), 3, "the SEND waits, because other requests are outstanding");
}

#[test]
fn peer_without_credits_does_not_limit_messages() {
    let mut end = solo_with(&options());
    for id in 0..6 {
        end.post(id, SendOperation::Send, 0, 8);
    }
    end.transmits();
    end.receive(0, ack(1), &[]);
    assert_eq!(end.transmits().len(), 5);
}

#[test]
fn duplicate_acknowledgement_may_carry_credits() {
    let mut end = solo_with(&options());
    for id in 0..6 {
        end.post(id, SendOperation::Send, 0, 8);
    }
    end.transmits();
    end.receive(0, credit(0, 1), &[]);
    assert_eq!(end.transmits().len(), 1);
    end.receive(0, credit(4, 1), &[]);
    assert_eq!(end.transmits().len(), 3, "messages 3 to 5");
}

#[test]
fn receive_posted_while_the_peer_has_no_credit_causes_an_unsolicited_acknowledgement() {
    let mut end = solo_with(&options());
    end.post_recv(1, 0, 64);
    assert_eq!(end.exchange(0, Rc::Send(Send::Only(None)), b"abcd"), [(credit(0, 1), 0)]);
    end.post_recv(2, 0, 64);
    end.post_recv(3, 0, 64);
    assert_eq!(end.sent(), [(credit(2, 1), 0)], "one acknowledgement for both receives");
    end.post_recv(4, 0, 64);
    assert_eq!(end.sent(), [], "the peer has credits, so no acknowledgement is sent");
}

#[test]
fn receive_causes_no_acknowledgement_without_credits_or_before_the_first_message() {
    let mut end = solo();
    end.post_recv(1, 0, 64);
    end.exchange(0, Rc::Send(Send::Only(None)), b"abcd");
    end.post_recv(2, 0, 64);
    assert_eq!(end.sent(), []);
    let mut end = solo_with(&options());
    end.post_recv(1, 0, 64);
    assert_eq!(end.sent(), []);
}

#[test]
fn unsolicited_credit_releases_messages() {
    let mut pair = Pair::with(&options());
    pair.b.post_recv(1, 0, 64);
    for id in 0..4 {
        pair.a.post(id, SendOperation::Send, 0, 8);
    }
    // The first message uses the only receive. The second is sent as a probe, and gets an RNR NAK.
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
fn probe_is_retransmitted_after_an_rnr_nak() {
    let mut end = solo_with(&options());
    end.post(1, SendOperation::Send, 0, 8);
    end.transmits();
    end.receive(0, rnr_nak(1, 0), &[]);
    assert!(end.wait().is_some());
    assert_eq!(end.transmits().len(), 1);
}

#[test]
fn with_credits_a_prompt_receiver_sends_rnr_naks_only_for_probes() {
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
    let statuses = pair.a.statuses();
    assert_eq!(statuses.len(), 100);
    assert!(statuses.iter().all(|(_, status)| *status == Status::Success), "{statuses:?}");
    assert!(pair.a.device.statistics().rnr_naks_received <= 25, "only probes get RNR NAKs");
}
