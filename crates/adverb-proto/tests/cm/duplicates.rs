//! Messages that are duplicated, delayed or reordered.

use adverb_proto::cm::State;
use adverb_wire::cm::Message;

use crate::harness::*;

/// Checks that a connection is established and ends if messages of a kind are delivered this way.
fn assert_lifecycle(kind: &'static str, delivery: Delivery) {
    let mut pair = Pair::automatic();
    pair.set_delivery(kind, usize::MAX, delivery);
    let client = pair.connect();
    pair.advance(seconds(1));
    pair.release();
    assert_eq!(pair.outcomes(CLIENT), ["established"], "{kind} {delivery:?}: {}", pair.sent());
    assert_eq!(pair.outcomes(SERVER), ["established"], "{kind} {delivery:?}: {}", pair.sent());
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.advance(seconds(1));
    pair.release();
    pair.advance(seconds(6));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected", "timewait over"]);
    assert_eq!(pair.outcomes(SERVER), ["disconnected", "timewait over"]);
    pair.assert_no_state_left();
}

#[test]
fn every_message_may_be_duplicated() {
    for kind in ["REQ", "REP", "RTU", "DREQ", "DREP", "MRA", "REJ"] {
        assert_lifecycle(kind, Delivery::Twice);
    }
}

#[test]
fn every_message_may_be_delayed() {
    for kind in ["REQ", "REP", "RTU", "DREQ", "DREP"] {
        assert_lifecycle(kind, Delivery::Hold);
    }
}

#[test]
fn a_duplicate_req_is_reported_once() {
    let mut pair = Pair::new();
    pair.set_delivery("REQ", 1, Delivery::Twice);
    pair.connect();
    pair.run();
    pair.expect_request();
    assert_eq!(pair.event(SERVER), None);
    assert_eq!(pair.sides[SERVER].statistics().duplicates, 1);
}

#[test]
fn a_duplicate_req_gets_the_same_rep() {
    let mut pair = Pair::automatic();
    pair.connect();
    pair.run();
    let (req, rep) = (pair.last(CLIENT, "REQ"), pair.last(SERVER, "REP"));
    let (mut lossy, mut count) = (Pair::automatic(), 0);
    drop(pair);
    lossy.drop_first("RTU", usize::MAX);
    lossy.connect();
    lossy.run();
    assert_eq!(lossy.last(CLIENT, "REQ"), req, "the same seed yields the same request");
    lossy.inject(SERVER, &req);
    lossy.run();
    for (_, mad) in &lossy.log {
        if let Message::Rep(_) = mad.message {
            assert_eq!(*mad, rep);
            count += 1;
        }
    }
    assert_eq!(count, 2);
}

#[test]
fn a_req_of_an_established_connection_is_ignored() {
    let (mut pair, [_, server]) = Pair::connected();
    let req = pair.last(CLIENT, "REQ");
    let before = pair.log.len();
    pair.inject(SERVER, &req);
    pair.run();
    assert_eq!(pair.log.len(), before);
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
}

#[test]
fn a_duplicate_rep_gets_another_rtu() {
    let (mut pair, _) = Pair::connected();
    let (rep, rtu) = (pair.last(SERVER, "REP"), pair.last(CLIENT, "RTU"));
    pair.inject(CLIENT, &rep);
    pair.run();
    assert_eq!(pair.sent(), ">REQ <REP >RTU >RTU");
    assert_eq!(pair.last(CLIENT, "RTU"), rtu);
    assert_eq!(pair.event(CLIENT), None);
    assert_eq!(pair.event(SERVER), None);
}

#[test]
fn a_duplicate_rtu_is_reported_once() {
    let (mut pair, _) = Pair::connected();
    let rtu = pair.last(CLIENT, "RTU");
    pair.inject(SERVER, &rtu);
    pair.run();
    assert_eq!(pair.event(SERVER), None);
}

#[test]
fn a_duplicate_dreq_gets_another_drep() {
    let (mut pair, [client, _]) = Pair::connected();
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.run();
    let dreq = pair.last(CLIENT, "DREQ");
    pair.inject(SERVER, &dreq);
    pair.run();
    assert!(pair.sent().ends_with(">DREQ <DREP <DREP"), "{}", pair.sent());
    assert_eq!(pair.outcomes(SERVER), ["disconnected"]);
    let drep = pair.last(SERVER, "DREP");
    assert_eq!(drep.transaction_id, dreq.transaction_id);
}

#[test]
fn a_duplicate_rej_is_reported_once() {
    let mut pair = Pair::without_listener();
    pair.set_delivery("REJ", 1, Delivery::Twice);
    pair.connect();
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["rejected"]);
}

#[test]
fn a_message_after_the_end_of_its_connection_changes_nothing() {
    let (mut pair, [client, _]) = Pair::connected();
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.advance(seconds(1));
    pair.assert_no_state_left();
    pair.events.iter_mut().for_each(|events| events.clear());
    for (from, mad) in pair.log.clone() {
        // A REQ would start a new connection.
        if !matches!(mad.message, Message::Req(_)) {
            pair.inject(1 - from, &mad);
            pair.run();
        }
    }
    assert_eq!(pair.event(CLIENT), None);
    assert_eq!(pair.event(SERVER), None);
    pair.assert_no_state_left();
}
