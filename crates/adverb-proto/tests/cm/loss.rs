//! Each message may be lost, at each step, and more than once.

use std::time::Duration;

use adverb_proto::cm::{Event, LocalQp, State};

use crate::harness::*;

/// A whole life of a connection in which the first `count` messages of a kind are lost.
fn survives(kind: &'static str, count: usize) {
    let mut pair = Pair::automatic();
    pair.lose(kind, count);
    let client = pair.connect();
    pair.pass(seconds(4));
    let server = pair.expect_request().id;
    assert_eq!(
        pair.sides[CLIENT].state(client),
        Some(State::Established),
        "{kind} × {count}: {}",
        pair.sent()
    );
    assert_eq!(
        pair.sides[SERVER].state(server),
        Some(State::Established),
        "{kind} × {count}: {}",
        pair.sent()
    );
    assert_eq!(pair.outcomes(CLIENT), ["established"]);
    assert_eq!(pair.outcomes(SERVER), ["established"]);

    pair.lose(kind, count);
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.pass(seconds(6));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected", "timewait over"]);
    assert_eq!(pair.outcomes(SERVER), ["disconnected", "timewait over"]);
    pair.assert_nothing_left();
}

#[test]
fn a_lost_req_is_repeated() {
    survives("REQ", 1);
    survives("REQ", 3);
}

#[test]
fn a_lost_rep_is_repeated() {
    survives("REP", 1);
    survives("REP", 3);
}

#[test]
fn a_lost_rtu_is_repeated_when_the_rep_is() {
    survives("RTU", 1);
    survives("RTU", 3);
}

#[test]
fn a_lost_rtu_is_repeated_though_the_rep_came_twice_before() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.flow();
    let server = pair.expect_request().id;
    let local_qp = LocalQp::new(pair.qpn());
    pair.sides[SERVER].accept(pair.now, server, &local_qp, &[], pair.deadline()).unwrap();
    pair.pass(Duration::from_millis(400));
    assert_eq!(pair.sent(), ">REQ <REP <REP");
    pair.lose("RTU", 1);
    pair.sides[CLIENT].establish(pair.now, client).unwrap();
    pair.pass(seconds(2));
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established), "{}", pair.sent());
}

#[test]
fn a_lost_dreq_is_repeated() {
    survives("DREQ", 1);
    survives("DREQ", 3);
}

#[test]
fn a_lost_drep_is_repeated_when_the_dreq_is() {
    survives("DREP", 1);
    survives("DREP", 3);
}

#[test]
fn a_lost_mra_costs_nothing_but_another() {
    let mut pair = Pair::new();
    pair.lose("MRA", 1);
    pair.connect();
    pair.pass(seconds(2));
    assert_eq!(pair.sent(), ">REQ >REQ <MRA >REQ <MRA");
}

#[test]
fn a_lost_rej_is_repeated_when_the_req_is() {
    let mut pair = Pair::deaf();
    pair.lose("REJ", 2);
    pair.connect();
    pair.pass(seconds(2));
    assert_eq!(pair.expect_rejected(), 8);
    assert_eq!(pair.sent(), ">REQ <REJ >REQ <REJ >REQ <REJ");
}

#[test]
fn an_applications_lost_rej_is_repeated_without_asking_it_again() {
    let mut pair = Pair::new();
    pair.lose("REJ", 1);
    pair.connect();
    pair.flow();
    let id = pair.expect_request().id;
    let reason = adverb_wire::cm::RejectReason::ConsumerReject;
    pair.sides[SERVER].reject(pair.now, id, reason, b"why").unwrap();
    pair.pass(Duration::from_millis(400));
    let Some(Event::Rejected(rejection)) = pair.event(CLIENT) else { panic!() };
    assert_eq!((rejection.reason.code(), &rejection.private_data[..3]), (28, &b"why"[..]));
    assert_eq!(pair.event(SERVER), None, "it was asked once");
}

#[test]
fn repetitions_come_at_growing_intervals() {
    let mut pair = Pair::deaf();
    pair.filter = Box::new(|_, _| Fate::Lose);
    let start = pair.now;
    pair.connect();
    let mut times = Vec::new();
    for _ in 0..49 {
        pair.pass(Duration::from_millis(100));
        if pair.log.len() > times.len() + 1 {
            times.push((pair.now - start).as_millis());
        }
    }
    assert_eq!(times, [300, 900, 1900, 4100]);
}

#[test]
fn who_gets_no_answer_gives_up_at_the_deadline() {
    let mut pair = Pair::new();
    pair.filter = Box::new(|_, _| Fate::Lose);
    let id = pair.connect();
    pair.pass(seconds(5) - Duration::from_nanos(1));
    assert_eq!(pair.event(CLIENT), None);
    pair.pass(Duration::from_nanos(1));
    assert_eq!(pair.event(CLIENT), Some(Event::Unreachable(id)));
    let rej = format!("CM REJ local {:#x} remote 0x0 of other reason: timeout (4)", number(id));
    assert_eq!(pair.last(CLIENT, "REJ").message.to_string(), rej);
}

#[test]
fn a_deadline_that_has_passed_fails_at_once() {
    let mut pair = Pair::new();
    let connect = pair.request_with(|connect| connect.deadline = adverb_proto::Time::ZERO);
    let id = pair.connect_with(CLIENT, &connect).unwrap();
    let now = pair.now;
    pair.sides[CLIENT].handle_timeout(now);
    assert_eq!(pair.sides[CLIENT].poll_event(), Some(Event::Unreachable(id)));
}

#[test]
fn repetitions_end_but_the_wait_lasts_until_the_deadline() {
    let mut pair = Pair::deaf();
    pair.filter = Box::new(|_, _| Fate::Lose);
    let connect = pair.request_with(|connect| connect.deadline = connect.deadline + seconds(600));
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.pass(seconds(500));
    assert_eq!(pair.log.len(), 16, "once, and 15 times again");
    assert_eq!(pair.event(CLIENT), None);
    pair.pass(seconds(105));
    assert_eq!(pair.outcomes(CLIENT), ["unreachable"]);
}

#[test]
fn who_accepts_and_hears_nothing_gives_up_at_its_deadline_and_says_so() {
    let mut pair = Pair::automatic();
    pair.filter = Box::new(|_, mad| if name(&mad.message) == "RTU" { Fate::Lose } else { Fate::Carry });
    let client = pair.connect();
    pair.pass(seconds(6));
    assert_eq!(pair.outcomes(SERVER), ["unreachable", "timewait over"]);
    // The client took it for established, and hears that it isn't.
    assert_eq!(pair.outcomes(CLIENT), ["established", "disconnected", "timewait over"]);
    assert_eq!(pair.sides[CLIENT].state(client), None);
    pair.assert_nothing_left();
}

#[test]
fn the_first_packet_stands_for_a_lost_rtu() {
    let mut pair = Pair::automatic();
    pair.filter = Box::new(|_, mad| if name(&mad.message) == "RTU" { Fate::Lose } else { Fate::Carry });
    pair.connect();
    pair.flow();
    let server = pair.expect_request().id;
    assert_eq!(pair.sides[SERVER].state(server), Some(State::RepSent));
    let adverb_wire::cm::Message::Rep(rep) = pair.last(SERVER, "REP").message else { panic!() };
    pair.sides[SERVER].communication_established(rep.qpn);
    pair.pass(seconds(10));
    assert_eq!(pair.outcomes(SERVER), ["established"]);
    assert_eq!(pair.outcomes(CLIENT), ["established"]);
    assert_eq!(pair.sent(), ">REQ <REP >RTU", "nothing is repeated then");
}

#[test]
fn a_first_packet_means_nothing_to_other_connections() {
    let (mut pair, [client, _]) = Pair::connected();
    let asked = pair.request();
    let id = pair.connect_with(CLIENT, &asked).unwrap();
    let unknown = pair.qpn();
    for qpn in [asked.local_qp.qpn, unknown] {
        pair.sides[CLIENT].communication_established(qpn);
    }
    assert_eq!(pair.sides[CLIENT].state(id), Some(State::ReqSent));
    assert_eq!(pair.sides[CLIENT].state(client), Some(State::Established));
    assert_eq!(pair.sides[CLIENT].poll_event(), None);
}

#[test]
fn a_rej_of_one_who_gave_up_finds_the_request() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.flow();
    let request = pair.expect_request();
    let deadline = pair.deadline();
    pair.sides[CLIENT].abort(pair.now, client, deadline).unwrap();
    pair.flow();
    let Some(Event::Rejected(rejection)) = pair.event(SERVER) else { panic!() };
    assert_eq!((rejection.id, rejection.reason.code()), (request.id, 4));
    assert_eq!(pair.event(CLIENT), None, "who gives up isn't told");
}

#[test]
fn a_rep_that_nobody_waits_for_is_rejected() {
    let mut pair = Pair::automatic();
    pair.lose("REJ", 1);
    let client = pair.connect();
    let deadline = pair.deadline();
    pair.sides[CLIENT].abort(pair.now, client, deadline).unwrap();
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.sent(), ">REQ >REJ <REP >REJ");
    pair.pass(seconds(10));
    assert_eq!(pair.outcomes(SERVER), ["rejected", "timewait over"]);
    pair.assert_nothing_left();
}
