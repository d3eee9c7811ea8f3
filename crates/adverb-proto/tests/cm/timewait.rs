//! Timewait: the numbers of an ended connection are not reused for a while.

use std::time::Duration;

use adverb_proto::cm::{CallError, Event, State};

use crate::harness::*;

#[test]
fn a_queue_pair_number_is_not_reused_before_timewait_ends() {
    let mut pair = Pair::automatic();
    let connect = pair.request();
    let id = pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, id, deadline).unwrap();
    pair.run();
    let timewait = pair.sides[CLIENT].config().timewait;
    pair.advance(timewait - Duration::from_nanos(1));
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::QpInUse(connect.local_qp.qpn)));
    assert_eq!(pair.sides[CLIENT].state(id), Some(State::TimeWait));
    pair.events[CLIENT].clear();
    pair.advance(Duration::from_nanos(1));
    assert_eq!(pair.event(CLIENT), Some(Event::TimewaitExit { id, qpn: connect.local_qp.qpn }));
    assert!(pair.sides[CLIENT].is_qpn_free(connect.local_qp.qpn));
    let reconnect = pair.request_with(|reconnect| reconnect.local_qp.qpn = connect.local_qp.qpn);
    pair.connect_with(CLIENT, &reconnect).unwrap();
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["established"]);
}

#[test]
fn a_communication_id_is_not_reused_before_timewait_ends() {
    let (mut pair, [client, _]) = Pair::connected();
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.run();
    // The generator always returns the same number.
    let raw = comm_id(client);
    let connect = pair.request();
    let next = pair.sides[CLIENT].connect(pair.now, &connect, &mut || raw).unwrap();
    assert_ne!(next, client);
}

#[test]
fn a_connect_that_timed_out_enters_timewait() {
    let mut pair = Pair::without_listener();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    let connect = pair.request();
    let id = pair.connect_with(CLIENT, &connect).unwrap();
    pair.advance(seconds(5));
    assert_eq!(pair.sides[CLIENT].state(id), Some(State::TimeWait));
    assert!(!pair.sides[CLIENT].is_qpn_free(connect.local_qp.qpn));
    pair.advance(seconds(1));
    assert_eq!(pair.outcomes(CLIENT), ["unreachable", "timewait over"]);
    pair.assert_no_state_left();
}

#[test]
fn a_rejected_queue_pair_may_connect_again_at_once() {
    let mut pair = Pair::without_listener();
    let connect = pair.request();
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["rejected"]);
    pair.assert_no_state_left();
    pair.connect_with(CLIENT, &connect).unwrap();
}

#[test]
fn a_connection_that_was_rejected_as_stale_enters_timewait() {
    let (mut pair, _) = Pair::connected();
    // The client restarts without its connections, but with the same GUID and queue pair number.
    pair.sides[CLIENT] = adverb_proto::cm::Manager::new(config(CLIENT));
    let adverb_wire::cm::Message::Req(req) = pair.last(CLIENT, "REQ").message else { panic!() };
    let connect = pair.request_with(|connect| connect.local_qp.qpn = req.qpn);
    let id = pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    assert_eq!(pair.expect_rejected(), 10);
    assert_eq!(pair.sides[CLIENT].state(id), Some(State::TimeWait));
    // The probe ended the server's old connection, because the client confirmed with a DREP.
    assert_eq!(pair.outcomes(SERVER), ["disconnected"]);
    pair.advance(seconds(1));
    let connect = pair.request_with(|connect| connect.local_qp.qpn = req.qpn);
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    assert!(pair.outcomes(CLIENT).ends_with(&["established"]));
}

#[test]
fn a_restarted_peer_connects_even_if_one_rej_dreq_or_drep_is_lost() {
    for lost in ["REJ", "DREQ", "DREP"] {
        let (mut pair, _) = Pair::connected();
        let adverb_wire::cm::Message::Req(req) = pair.last(CLIENT, "REQ").message else { panic!() };
        pair.sides[CLIENT] = adverb_proto::cm::Manager::new(config(CLIENT));
        pair.drop_first(lost, 1);
        let mut attempts = 0;
        while !pair.outcomes(CLIENT).ends_with(&["established"]) {
            attempts += 1;
            assert!(attempts <= 3, "{lost}: {}", pair.sent());
            let connect = pair.request_with(|connect| connect.local_qp.qpn = req.qpn);
            pair.connect_with(CLIENT, &connect).unwrap();
            pair.advance(seconds(2));
        }
    }
}

#[test]
fn a_restarted_listener_that_accepts_with_an_old_number_is_probed() {
    let (mut pair, [client, _]) = Pair::connected();
    let adverb_wire::cm::Message::Rep(rep) = pair.last(SERVER, "REP").message else { panic!() };
    pair.sides[SERVER] = adverb_proto::cm::Manager::new(config(SERVER));
    pair.listen(service());
    pair.automatic = false;
    pair.connect();
    pair.run();
    let request = pair.expect_request();
    let deadline = pair.deadline();
    let local_qp = adverb_proto::cm::LocalQp::new(rep.qpn);
    pair.sides[SERVER].accept(pair.now, request.id, &local_qp, &[], deadline).unwrap();
    pair.run();
    assert_eq!(pair.sides[CLIENT].state(client), Some(State::TimeWait), "{}", pair.sent());
    assert!(pair.sent().ends_with("<REP >REJ >DREQ <DREP"), "{}", pair.sent());
}

#[test]
fn a_req_of_a_connection_in_timewait_is_stale() {
    let (mut pair, [client, _]) = Pair::connected();
    let req = pair.last(CLIENT, "REQ");
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.run();
    pair.inject(SERVER, &req);
    pair.run();
    let adverb_wire::cm::Message::Rej(rej) = pair.last(SERVER, "REJ").message else { panic!() };
    assert_eq!(rej.reason.code(), 10);
    assert_eq!(pair.outcomes(SERVER), ["disconnected"], "no new request");
}

#[test]
fn a_peer_may_reuse_its_queue_pair_number_while_this_side_is_in_timewait() {
    let (mut pair, [client, _]) = Pair::connected();
    let adverb_wire::cm::Message::Req(req) = pair.last(CLIENT, "REQ").message else { panic!() };
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.run();
    pair.sides[CLIENT] = adverb_proto::cm::Manager::new(config(CLIENT));
    let connect = pair.request_with(|connect| connect.local_qp.qpn = req.qpn);
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    assert!(pair.outcomes(CLIENT).ends_with(&["established"]));
}

#[test]
fn a_pending_request_that_became_stale_is_rejected() {
    let mut pair = Pair::new();
    let connect = pair.request();
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let first = pair.expect_request().id;
    pair.sides[CLIENT] = adverb_proto::cm::Manager::new(config(CLIENT));
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    assert_eq!(pair.expect_rejected(), 10);
    let Some(Event::Rejected(rejection)) = pair.event(SERVER) else { panic!() };
    assert_eq!((rejection.id, rejection.reason.code()), (first, 10));
}
