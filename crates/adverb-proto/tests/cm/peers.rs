//! Two sides that connect to each other at the same time.

use adverb_proto::cm::{
    BindAddr, CallError, ConnectParams, ConnectionId, Event, ListenParams, LocalQp, State,
};
use adverb_proto::types::Transport;

use crate::harness::*;

/// Both connect to each other, and nobody listens.
fn meet(pair: &mut Pair) -> [ConnectionId; 2] {
    pair.automatic = true;
    [CLIENT, SERVER].map(|side| {
        let local_qp = LocalQp::new(pair.qpn());
        let mut connect = ConnectParams::new(addrs(side), service(), local_qp, pair.deadline());
        connect.peer_to_peer = true;
        pair.connect_with(side, &connect).unwrap()
    })
}

#[test]
fn two_that_connect_to_each_others_listeners_have_two_connections() {
    let mut pair = Pair::automatic();
    let listen =
        ListenParams { service: service(), bind: BindAddr::Any, transport: Transport::Rc, backlog: 4 };
    pair.sides[CLIENT].listen(listen).unwrap();
    let ids = [CLIENT, SERVER].map(|side| {
        let local_qp = LocalQp::new(pair.qpn());
        let connect = ConnectParams::new(addrs(side), service(), local_qp, pair.deadline());
        pair.connect_with(side, &connect).unwrap()
    });
    pair.flow();
    for side in [CLIENT, SERVER] {
        assert_eq!(pair.sides[side].state(ids[side]), Some(State::Established));
        assert_eq!(pair.outcomes(side), ["established", "established"]);
        assert_eq!(pair.sides[side].resource_counts().connections, 2);
    }
}

#[test]
fn two_peers_that_meet_have_one_connection() {
    let mut pair = Pair::deaf();
    let ids = meet(&mut pair);
    pair.flow();
    for side in [CLIENT, SERVER] {
        assert_eq!(pair.sides[side].state(ids[side]), Some(State::Established));
        assert_eq!(pair.outcomes(side), ["established"]);
        assert_eq!(pair.sides[side].resource_counts().connections, 1);
    }
    // The greater name asks, the lesser accepts.
    assert_eq!(pair.sent(), ">REQ <REQ >REP <RTU");
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, ids[CLIENT], deadline).unwrap();
    pair.pass(seconds(1));
    pair.assert_nothing_left();
}

#[test]
fn two_peers_meet_whatever_is_lost_first() {
    for lost in ["REQ", "REP", "RTU"] {
        for count in 1..3 {
            let mut pair = Pair::deaf();
            pair.lose(lost, count);
            let ids = meet(&mut pair);
            pair.pass(seconds(4));
            for side in [CLIENT, SERVER] {
                assert_eq!(
                    pair.sides[side].state(ids[side]),
                    Some(State::Established),
                    "{lost} × {count}: {}",
                    pair.sent()
                );
                assert_eq!(pair.outcomes(side), ["established"]);
            }
        }
    }
}

#[test]
fn what_two_peers_queue_pairs_are_told_fits_together() {
    let mut pair = Pair::deaf();
    let ids = meet(&mut pair);
    pair.automatic = false;
    pair.flow();
    let Some(Event::Accepted(at_client)) = pair.event(CLIENT) else { panic!() };
    let local_qp = LocalQp::new(adverb_wire::Qpn::truncate(0x11));
    let client = pair.sides[CLIENT].qp_attributes(at_client.id, &local_qp).unwrap();
    assert_eq!(
        pair.sides[CLIENT].accept(pair.now, at_client.id, &local_qp, &[], pair.now),
        Err(CallError::WrongState(State::ReqReceived))
    );
    pair.sides[CLIENT].establish(pair.now, at_client.id).unwrap();
    pair.flow();
    let Some(Event::Accepted(at_server)) = pair.event(SERVER) else { panic!() };
    assert_eq!(at_server.id, ids[SERVER]);
    let server = pair.sides[SERVER].qp_attributes(at_server.id, &LocalQp::new(at_client.remote_qpn)).unwrap();
    assert_eq!(client.ready_to_send.psn, server.ready_to_receive.psn);
    assert_eq!(server.ready_to_send.psn, client.ready_to_receive.psn);
    assert_eq!(client.ready_to_receive.remote_qpn, at_client.remote_qpn);
    assert_eq!(server.ready_to_receive.remote_qpn, at_server.remote_qpn);
}

#[test]
fn a_peer_that_never_comes_is_unreachable() {
    let mut pair = Pair::deaf();
    pair.filter = Box::new(|_, _| Fate::Lose);
    meet(&mut pair);
    pair.pass(seconds(6));
    assert_eq!(pair.outcomes(CLIENT), ["unreachable", "timewait over"]);
    pair.assert_nothing_left();
}

#[test]
fn one_side_that_comes_early_is_told_that_nobody_listens() {
    let mut pair = Pair::deaf();
    let local_qp = LocalQp::new(pair.qpn());
    let mut connect = ConnectParams::new(addrs(CLIENT), service(), local_qp, pair.deadline());
    connect.peer_to_peer = true;
    pair.connect_with(CLIENT, &connect).unwrap();
    let again = pair.request_with(|again| again.peer_to_peer = true);
    assert_eq!(pair.connect_with(CLIENT, &again), Err(CallError::ServiceInUse(service())));
    pair.flow();
    assert_eq!(pair.expect_rejected(), 8);
    pair.assert_nothing_left();
}

#[test]
fn peers_that_mean_different_services_do_not_meet() {
    let mut pair = Pair::deaf();
    for (side, port) in [(CLIENT, 1), (SERVER, 2)] {
        let local_qp = LocalQp::new(pair.qpn());
        let service = adverb_wire::cm::ServiceId::tcp_port(port);
        let mut connect = ConnectParams::new(addrs(side), service, local_qp, pair.deadline());
        connect.peer_to_peer = true;
        pair.connect_with(side, &connect).unwrap();
    }
    pair.flow();
    assert_eq!(pair.outcomes(CLIENT), ["rejected"]);
    assert_eq!(pair.outcomes(SERVER), ["rejected"]);
}
