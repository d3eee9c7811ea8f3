//! Each message may come twice, late, and in another order.

use adverb_proto::cm::State;
use adverb_wire::cm::Message;

use crate::harness::*;

/// A whole life of a connection in which messages of a kind have this fate.
fn survives(kind: &'static str, fate: Fate) {
    let mut pair = Pair::automatic();
    pair.fate(kind, usize::MAX, fate);
    let client = pair.connect();
    pair.pass(seconds(1));
    pair.release();
    assert_eq!(pair.outcomes(CLIENT), ["established"], "{kind} {fate:?}: {}", pair.sent());
    assert_eq!(pair.outcomes(SERVER), ["established"], "{kind} {fate:?}: {}", pair.sent());
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.pass(seconds(1));
    pair.release();
    pair.pass(seconds(6));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected", "timewait over"]);
    assert_eq!(pair.outcomes(SERVER), ["disconnected", "timewait over"]);
    pair.assert_nothing_left();
}

#[test]
fn every_message_may_come_twice() {
    for kind in ["REQ", "REP", "RTU", "DREQ", "DREP", "MRA", "REJ"] {
        survives(kind, Fate::Twice);
    }
}

#[test]
fn every_message_may_be_overtaken() {
    for kind in ["REQ", "REP", "RTU", "DREQ", "DREP"] {
        survives(kind, Fate::Hold);
    }
}

#[test]
fn a_repeated_req_asks_the_application_once() {
    let mut pair = Pair::new();
    pair.fate("REQ", 1, Fate::Twice);
    pair.connect();
    pair.flow();
    pair.expect_request();
    assert_eq!(pair.event(SERVER), None);
    assert_eq!(pair.sides[SERVER].statistics().duplicates, 1);
}

#[test]
fn a_repeated_req_gets_the_same_rep() {
    let mut pair = Pair::automatic();
    pair.connect();
    pair.flow();
    let (req, rep) = (pair.last(CLIENT, "REQ"), pair.last(SERVER, "REP"));
    let (mut lossy, mut count) = (Pair::automatic(), 0);
    drop(pair);
    lossy.lose("RTU", usize::MAX);
    lossy.connect();
    lossy.flow();
    assert_eq!(lossy.last(CLIENT, "REQ"), req, "the same seed, the same request");
    lossy.inject(SERVER, &req);
    lossy.flow();
    for (_, mad) in &lossy.log {
        if let Message::Rep(_) = mad.message {
            assert_eq!(*mad, rep);
            count += 1;
        }
    }
    assert_eq!(count, 2);
}

#[test]
fn a_req_of_an_established_connection_is_old_and_ignored() {
    let (mut pair, [_, server]) = Pair::connected();
    let req = pair.last(CLIENT, "REQ");
    let before = pair.log.len();
    pair.inject(SERVER, &req);
    pair.flow();
    assert_eq!(pair.log.len(), before);
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
}

#[test]
fn a_repeated_rep_gets_the_rtu_again() {
    let (mut pair, _) = Pair::connected();
    let (rep, rtu) = (pair.last(SERVER, "REP"), pair.last(CLIENT, "RTU"));
    pair.inject(CLIENT, &rep);
    pair.flow();
    assert_eq!(pair.sent(), ">REQ <REP >RTU >RTU");
    assert_eq!(pair.last(CLIENT, "RTU"), rtu);
    assert_eq!(pair.event(CLIENT), None);
    assert_eq!(pair.event(SERVER), None);
}

#[test]
fn a_repeated_rtu_establishes_once() {
    let (mut pair, _) = Pair::connected();
    let rtu = pair.last(CLIENT, "RTU");
    pair.inject(SERVER, &rtu);
    pair.flow();
    assert_eq!(pair.event(SERVER), None);
}

#[test]
fn a_repeated_dreq_gets_the_drep_again() {
    let (mut pair, [client, _]) = Pair::connected();
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.flow();
    let dreq = pair.last(CLIENT, "DREQ");
    pair.inject(SERVER, &dreq);
    pair.flow();
    assert!(pair.sent().ends_with(">DREQ <DREP <DREP"), "{}", pair.sent());
    assert_eq!(pair.outcomes(SERVER), ["disconnected"]);
    let drep = pair.last(SERVER, "DREP");
    assert_eq!(drep.transaction_id, dreq.transaction_id);
}

#[test]
fn a_rej_comes_twice_and_is_told_once() {
    let mut pair = Pair::deaf();
    pair.fate("REJ", 1, Fate::Twice);
    pair.connect();
    pair.flow();
    assert_eq!(pair.outcomes(CLIENT), ["rejected"]);
}

#[test]
fn a_message_that_comes_after_its_connection_changes_nothing() {
    let (mut pair, [client, _]) = Pair::connected();
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.pass(seconds(1));
    pair.assert_nothing_left();
    pair.events.iter_mut().for_each(|events| events.clear());
    for (from, mad) in pair.log.clone() {
        if !matches!(mad.message, Message::Req(_)) {
            pair.inject(1 - from, &mad);
            pair.flow();
        }
    }
    assert_eq!(pair.event(CLIENT), None);
    assert_eq!(pair.event(SERVER), None);
    pair.assert_nothing_left();
}
