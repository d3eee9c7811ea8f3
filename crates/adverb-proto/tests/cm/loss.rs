//! Loss of each message, once or several times.

use std::time::Duration;

use adverb_proto::cm::{Event, LocalQp, State};

use crate::harness::*;

/// Checks that a connection is established, and ends, although the first `count` messages of a kind are lost each time.
fn assert_lifecycle(kind: &'static str, count: usize) {
    let mut pair = Pair::automatic();
    pair.drop_first(kind, count);
    let client = pair.connect();
    pair.advance(seconds(4));
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

    pair.drop_first(kind, count);
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.advance(seconds(6));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected", "timewait over"]);
    assert_eq!(pair.outcomes(SERVER), ["disconnected", "timewait over"]);
    pair.assert_no_state_left();
}

#[test]
fn a_lost_req_is_retransmitted() {
    assert_lifecycle("REQ", 1);
    assert_lifecycle("REQ", 3);
}

#[test]
fn a_lost_rep_is_retransmitted() {
    assert_lifecycle("REP", 1);
    assert_lifecycle("REP", 3);
}

#[test]
fn a_lost_rtu_is_retransmitted_after_another_rep() {
    assert_lifecycle("RTU", 1);
    assert_lifecycle("RTU", 3);
}

#[test]
fn a_lost_rtu_is_retransmitted_although_two_reps_were_received() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.run();
    let server = pair.expect_request().id;
    let local_qp = LocalQp::new(pair.qpn());
    pair.sides[SERVER].accept(pair.now, server, &local_qp, &[], pair.deadline()).unwrap();
    pair.advance(Duration::from_millis(400));
    assert_eq!(pair.sent(), ">REQ <REP <REP");
    pair.drop_first("RTU", 1);
    pair.sides[CLIENT].establish(pair.now, client).unwrap();
    pair.advance(seconds(2));
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established), "{}", pair.sent());
}

#[test]
fn a_lost_dreq_is_retransmitted() {
    assert_lifecycle("DREQ", 1);
    assert_lifecycle("DREQ", 3);
}

#[test]
fn a_lost_drep_is_retransmitted_after_another_dreq() {
    assert_lifecycle("DREP", 1);
    assert_lifecycle("DREP", 3);
}

#[test]
fn a_lost_mra_is_retransmitted_after_another_req() {
    let mut pair = Pair::new();
    pair.drop_first("MRA", 1);
    pair.connect();
    pair.advance(seconds(2));
    assert_eq!(pair.sent(), ">REQ >REQ <MRA >REQ <MRA");
}

#[test]
fn a_lost_rej_is_retransmitted_after_another_req() {
    let mut pair = Pair::without_listener();
    pair.drop_first("REJ", 2);
    pair.connect();
    pair.advance(seconds(2));
    assert_eq!(pair.expect_rejected(), 8);
    assert_eq!(pair.sent(), ">REQ <REJ >REQ <REJ >REQ <REJ");
}

#[test]
fn an_applications_lost_rej_is_retransmitted_without_another_event() {
    let mut pair = Pair::new();
    pair.drop_first("REJ", 1);
    pair.connect();
    pair.run();
    let id = pair.expect_request().id;
    let reason = adverb_wire::cm::RejectReason::ConsumerReject;
    pair.sides[SERVER].reject(pair.now, id, reason, b"why").unwrap();
    pair.advance(Duration::from_millis(400));
    let Some(Event::Rejected(rejection)) = pair.event(CLIENT) else { panic!() };
    assert_eq!((rejection.reason.code(), &rejection.private_data[..3]), (28, &b"why"[..]));
    assert_eq!(pair.event(SERVER), None, "the request is reported once");
}

#[test]
fn retransmission_intervals_grow() {
    let mut pair = Pair::without_listener();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    let start = pair.now;
    pair.connect();
    let mut times = Vec::new();
    for _ in 0..49 {
        pair.advance(Duration::from_millis(100));
        if pair.log.len() > times.len() + 1 {
            times.push((pair.now - start).as_millis());
        }
    }
    assert_eq!(times, [300, 900, 1900, 4100]);
}

#[test]
fn a_connect_without_response_fails_at_the_deadline() {
    let mut pair = Pair::new();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    let id = pair.connect();
    pair.advance(seconds(5) - Duration::from_nanos(1));
    assert_eq!(pair.event(CLIENT), None);
    pair.advance(Duration::from_nanos(1));
    assert_eq!(pair.event(CLIENT), Some(Event::Unreachable(id)));
    let rej = format!("CM REJ local {:#x} remote 0x0 of other reason: timeout (4)", comm_id(id));
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
fn retransmissions_end_before_the_deadline() {
    let mut pair = Pair::without_listener();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    let connect = pair.request_with(|connect| connect.deadline = connect.deadline + seconds(600));
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.advance(seconds(500));
    assert_eq!(pair.log.len(), 16, "one transmission and 15 retransmissions");
    assert_eq!(pair.event(CLIENT), None);
    pair.advance(seconds(105));
    assert_eq!(pair.outcomes(CLIENT), ["unreachable"]);
}

#[test]
fn an_accept_without_rtu_fails_at_the_deadline_and_sends_a_rej() {
    let mut pair = Pair::automatic();
    pair.filter =
        Box::new(|_, mad| if name(&mad.message) == "RTU" { Delivery::Lose } else { Delivery::Once });
    let client = pair.connect();
    pair.advance(seconds(6));
    assert_eq!(pair.outcomes(SERVER), ["unreachable", "timewait over"]);
    // The client considered the connection established, and the REJ ends it.
    assert_eq!(pair.outcomes(CLIENT), ["established", "disconnected", "timewait over"]);
    assert_eq!(pair.sides[CLIENT].state(client), None);
    pair.assert_no_state_left();
}

#[test]
fn the_first_packet_replaces_a_lost_rtu() {
    let mut pair = Pair::automatic();
    pair.filter =
        Box::new(|_, mad| if name(&mad.message) == "RTU" { Delivery::Lose } else { Delivery::Once });
    pair.connect();
    pair.run();
    let server = pair.expect_request().id;
    assert_eq!(pair.sides[SERVER].state(server), Some(State::RepSent));
    let adverb_wire::cm::Message::Rep(rep) = pair.last(SERVER, "REP").message else { panic!() };
    pair.sides[SERVER].communication_established(rep.qpn);
    pair.advance(seconds(10));
    assert_eq!(pair.outcomes(SERVER), ["established"]);
    assert_eq!(pair.outcomes(CLIENT), ["established"]);
    assert_eq!(pair.sent(), ">REQ <REP >RTU", "no retransmission");
}

#[test]
fn a_first_packet_establishes_only_a_connection_that_waits_for_its_rtu() {
    let (mut pair, [client, _]) = Pair::connected();
    let connect = pair.request();
    let id = pair.connect_with(CLIENT, &connect).unwrap();
    let unknown = pair.qpn();
    for qpn in [connect.local_qp.qpn, unknown] {
        pair.sides[CLIENT].communication_established(qpn);
    }
    assert_eq!(pair.sides[CLIENT].state(id), Some(State::ReqSent));
    assert_eq!(pair.sides[CLIENT].state(client), Some(State::Established));
    assert_eq!(pair.sides[CLIENT].poll_event(), None);
}

#[test]
fn the_rej_of_a_client_that_aborts_ends_the_request() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.run();
    let request = pair.expect_request();
    let deadline = pair.deadline();
    pair.sides[CLIENT].abort(pair.now, client, deadline).unwrap();
    pair.run();
    let Some(Event::Rejected(rejection)) = pair.event(SERVER) else { panic!() };
    assert_eq!((rejection.id, rejection.reason.code()), (request.id, 4));
    assert_eq!(pair.event(CLIENT), None, "the client that aborted gets no further event");
}

#[test]
fn a_rep_for_an_ended_request_is_rejected() {
    let mut pair = Pair::automatic();
    pair.drop_first("REJ", 1);
    let client = pair.connect();
    let deadline = pair.deadline();
    pair.sides[CLIENT].abort(pair.now, client, deadline).unwrap();
    pair.advance(Duration::from_millis(1));
    assert_eq!(pair.sent(), ">REQ >REJ <REP >REJ");
    pair.advance(seconds(10));
    assert_eq!(pair.outcomes(SERVER), ["rejected", "timewait over"]);
    pair.assert_no_state_left();
}
