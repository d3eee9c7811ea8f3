//! Disconnecting and aborting connections.

use std::time::Duration;

use adverb_proto::cm::{CallError, Event, State};
use adverb_wire::cm::Message;

use crate::harness::*;

#[test]
fn a_connection_ends_with_two_messages() {
    for side in [CLIENT, SERVER] {
        let (mut pair, ids) = Pair::connected();
        let deadline = pair.deadline();
        pair.sides[side].disconnect(pair.now, ids[side], deadline).unwrap();
        pair.run();
        assert!(pair.sent().ends_with([">DREQ <DREP", "<DREQ >DREP"][side]), "{}", pair.sent());
        for side in [CLIENT, SERVER] {
            assert_eq!(pair.event(side), Some(Event::Disconnected(ids[side])));
            assert_eq!(pair.sides[side].state(ids[side]), Some(State::TimeWait));
        }
    }
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let (mut pair, ids) = Pair::connected();
    let deadline = pair.deadline();
    for side in [CLIENT, SERVER] {
        pair.sides[side].disconnect(pair.now, ids[side], deadline).unwrap();
    }
    pair.advance(seconds(2));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected", "timewait over"]);
    assert_eq!(pair.outcomes(SERVER), ["disconnected", "timewait over"]);
    pair.assert_no_state_left();
}

#[test]
fn simultaneous_disconnects_end_although_all_messages_are_lost() {
    let (mut pair, ids) = Pair::connected();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    let deadline = pair.deadline();
    for side in [CLIENT, SERVER] {
        pair.sides[side].disconnect(pair.now, ids[side], deadline).unwrap();
    }
    pair.advance(seconds(6));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected", "timewait over"]);
    assert_eq!(pair.outcomes(SERVER), ["disconnected", "timewait over"]);
    pair.assert_no_state_left();
}

#[test]
fn an_unconfirmed_disconnect_ends_at_the_deadline() {
    let (mut pair, [client, server]) = Pair::connected();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    let deadline = pair.now + seconds(3);
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.advance(seconds(3));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected"]);
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established), "the server was not informed");
}

#[test]
fn a_peer_without_the_connection_confirms_a_disconnect() {
    let (mut pair, [client, server]) = Pair::connected();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    let deadline = pair.deadline();
    pair.sides[SERVER].disconnect(pair.now, server, deadline).unwrap();
    pair.advance(seconds(10));
    pair.filter = Box::new(|_, _| Delivery::Once);
    assert_eq!(pair.sides[SERVER].state(server), None);
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["disconnected"]);
}

#[test]
fn a_connection_ends_once() {
    let (mut pair, [client, _]) = Pair::connected();
    let deadline = pair.deadline();
    // A second call changes nothing: the connection is already being disconnected.
    for _ in 0..2 {
        pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
        assert_eq!(pair.sides[CLIENT].state(client), Some(State::DreqSent));
    }
    pair.advance(seconds(1));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected", "timewait over"]);
    let second = pair.sides[CLIENT].disconnect(pair.now, client, deadline);
    assert_eq!(second, Err(CallError::Unknown));
}

#[test]
fn a_second_disconnect_may_shorten_the_deadline() {
    let (mut pair, [client, _]) = Pair::connected();
    pair.drop_first("DREQ", usize::MAX);
    let (earlier, later) = (pair.now + Duration::from_millis(50), pair.deadline());
    assert!(earlier < later);
    pair.sides[CLIENT].disconnect(pair.now, client, later).unwrap();
    pair.sides[CLIENT].disconnect(pair.now, client, earlier).unwrap();
    pair.advance(Duration::from_millis(60));
    assert_eq!(pair.outcomes(CLIENT)[0], "disconnected");
}

#[test]
fn a_disconnect_before_the_rtu_ends_the_connection() {
    let mut pair = Pair::automatic();
    pair.drop_first("RTU", usize::MAX);
    let client = pair.connect();
    pair.run();
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.advance(seconds(1));
    assert_eq!(pair.outcomes(SERVER), ["disconnected", "timewait over"]);
    assert_eq!(pair.outcomes(CLIENT), ["established", "disconnected", "timewait over"]);
}

#[test]
fn a_dreq_before_this_side_is_established_ends_the_connection() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.run();
    let id = pair.expect_request().id;
    let local_qp = adverb_proto::cm::LocalQp::new(pair.qpn());
    let deadline = pair.deadline();
    pair.sides[SERVER].accept(pair.now, id, &local_qp, &[], deadline).unwrap();
    pair.run();
    // A packet before the RTU establishes the connection for the server, which disconnects at once.
    pair.sides[SERVER].communication_established(local_qp.qpn);
    pair.sides[SERVER].disconnect(pair.now, id, deadline).unwrap();
    pair.run();
    assert_eq!(pair.sides[CLIENT].establish(pair.now, client), Err(CallError::WrongState(State::TimeWait)));
    assert_eq!(pair.outcomes(CLIENT), ["disconnected"]);
}

#[test]
fn a_dreq_for_another_queue_pair_is_ignored() {
    let (mut pair, [client, server]) = Pair::connected();
    let Message::Rtu(rtu) = pair.last(CLIENT, "RTU").message else { panic!() };
    let before = pair.log.len();
    let wrong = pair.qpn();
    pair.inject_message(
        SERVER,
        Message::Dreq(adverb_wire::cm::Dreq {
            local_comm_id: rtu.local_comm_id,
            remote_comm_id: rtu.remote_comm_id,
            remote_qpn: wrong,
            private_data: Default::default(),
        }),
    );
    pair.run();
    assert_eq!(pair.log.len(), before);
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
    assert_eq!(pair.sides[CLIENT].state(client), Some(State::Established));
}

#[test]
fn abort_ends_requested_accepted_and_established_connections() {
    // The connection is requested, without a response.
    let mut pair = Pair::new();
    let client = pair.connect();
    let deadline = pair.deadline();
    pair.sides[CLIENT].abort(pair.now, client, deadline).unwrap();
    pair.advance(seconds(1));
    assert_eq!(pair.outcomes(CLIENT), ["timewait over"]);
    // The request was received.
    let mut pair = Pair::new();
    pair.connect();
    pair.run();
    let id = pair.expect_request().id;
    pair.sides[SERVER].abort(pair.now, id, deadline).unwrap();
    pair.run();
    assert_eq!(pair.expect_rejected(), 28);
    // The request was accepted.
    let mut pair = Pair::new();
    pair.connect();
    pair.run();
    let id = pair.expect_request().id;
    let local_qp = adverb_proto::cm::LocalQp::new(pair.qpn());
    pair.sides[SERVER].accept(pair.now, id, &local_qp, &[], deadline).unwrap();
    pair.run();
    pair.sides[SERVER].abort(pair.now, id, deadline).unwrap();
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["rejected"]);
    // The connection is established.
    let (mut pair, [client, _]) = Pair::connected();
    pair.sides[CLIENT].abort(pair.now, client, deadline).unwrap();
    pair.sides[CLIENT].abort(pair.now, client, deadline).unwrap();
    pair.run();
    assert_eq!(pair.outcomes(SERVER), ["disconnected"]);
    assert_eq!(pair.sides[CLIENT].abort(pair.now, id, deadline), Err(CallError::Unknown));
}

#[test]
fn a_rej_of_an_established_connection_ends_it() {
    let (mut pair, [client, _]) = Pair::connected();
    let Message::Rtu(rtu) = pair.last(CLIENT, "RTU").message else { panic!() };
    pair.inject_message(
        CLIENT,
        Message::Rej(adverb_wire::cm::Rej {
            local_comm_id: rtu.remote_comm_id,
            remote_comm_id: rtu.local_comm_id,
            rejected: adverb_wire::cm::MessageKind::Other,
            reason: adverb_wire::cm::RejectReason::InvalidCommId,
            additional_info: Default::default(),
            private_data: Default::default(),
        }),
    );
    pair.run();
    assert_eq!(pair.event(CLIENT), Some(Event::Disconnected(client)));
}
