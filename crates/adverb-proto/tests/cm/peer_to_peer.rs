//! Peer-to-peer connections, in which both sides send a REQ.

use adverb_proto::cm::{
    BindAddr, CallError, ConnectParams, ConnectionId, Event, ListenParams, LocalQp, State,
};
use adverb_proto::types::Transport;

use crate::harness::*;

/// Requests the same peer-to-peer connection at both sides. The pair then establishes connections automatically.
fn connect_both(pair: &mut Pair) -> [ConnectionId; 2] {
    pair.automatic = true;
    [CLIENT, SERVER].map(|side| {
        let local_qp = LocalQp::new(pair.qpn());
        let mut connect = ConnectParams::new(addrs(side), service(), local_qp, pair.deadline());
        connect.peer_to_peer = true;
        pair.connect_with(side, &connect).unwrap()
    })
}

#[test]
fn connects_to_each_others_listeners_make_two_connections() {
    let mut pair = Pair::automatic();
    let listen =
        ListenParams { service: service(), bind: BindAddr::Any, transport: Transport::Rc, backlog: 4 };
    pair.sides[CLIENT].listen(listen).unwrap();
    let ids = [CLIENT, SERVER].map(|side| {
        let local_qp = LocalQp::new(pair.qpn());
        let connect = ConnectParams::new(addrs(side), service(), local_qp, pair.deadline());
        pair.connect_with(side, &connect).unwrap()
    });
    pair.run();
    for side in [CLIENT, SERVER] {
        assert_eq!(pair.sides[side].state(ids[side]), Some(State::Established));
        assert_eq!(pair.outcomes(side), ["established", "established"]);
        assert_eq!(pair.sides[side].resource_counts().connections, 2);
    }
}

#[test]
fn a_peer_to_peer_collision_makes_one_connection() {
    let mut pair = Pair::without_listener();
    let ids = connect_both(&mut pair);
    pair.run();
    for side in [CLIENT, SERVER] {
        assert_eq!(pair.sides[side].state(ids[side]), Some(State::Established));
        assert_eq!(pair.outcomes(side), ["established"]);
        assert_eq!(pair.sides[side].resource_counts().connections, 1);
    }
    // The side with the greater GUID stays active, and the other becomes passive.
    assert_eq!(pair.sent(), ">REQ <REQ >REP <RTU");
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, ids[CLIENT], deadline).unwrap();
    pair.advance(seconds(1));
    pair.assert_no_state_left();
}

#[test]
fn a_peer_to_peer_connection_tolerates_the_loss_of_first_messages() {
    for lost in ["REQ", "REP", "RTU"] {
        for count in 1..3 {
            let mut pair = Pair::without_listener();
            pair.drop_first(lost, count);
            let ids = connect_both(&mut pair);
            pair.advance(seconds(4));
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
fn peer_to_peer_queue_pairs_get_matching_attributes() {
    let mut pair = Pair::without_listener();
    let ids = connect_both(&mut pair);
    pair.automatic = false;
    pair.run();
    let Some(Event::Accepted(at_client)) = pair.event(CLIENT) else { panic!() };
    let local_qp = LocalQp::new(adverb_wire::Qpn::truncate(0x11));
    let client = pair.sides[CLIENT].qp_attributes(at_client.id, &local_qp).unwrap();
    assert_eq!(
        pair.sides[CLIENT].accept(pair.now, at_client.id, &local_qp, &[], pair.now),
        Err(CallError::WrongState(State::ReqReceived))
    );
    pair.sides[CLIENT].establish(pair.now, at_client.id).unwrap();
    pair.run();
    let Some(Event::Accepted(at_server)) = pair.event(SERVER) else { panic!() };
    assert_eq!(at_server.id, ids[SERVER]);
    let server = pair.sides[SERVER].qp_attributes(at_server.id, &LocalQp::new(at_client.remote_qpn)).unwrap();
    assert_eq!(client.ready_to_send.psn, server.ready_to_receive.psn);
    assert_eq!(server.ready_to_send.psn, client.ready_to_receive.psn);
    assert_eq!(client.ready_to_receive.remote_qpn, at_client.remote_qpn);
    assert_eq!(server.ready_to_receive.remote_qpn, at_server.remote_qpn);
}

#[test]
fn peers_whose_messages_are_all_lost_are_unreachable() {
    let mut pair = Pair::without_listener();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    connect_both(&mut pair);
    pair.advance(seconds(6));
    assert_eq!(pair.outcomes(CLIENT), ["unreachable", "timewait over"]);
    pair.assert_no_state_left();
}

#[test]
fn an_early_peer_to_peer_req_without_a_listener_is_rejected() {
    let mut pair = Pair::without_listener();
    let local_qp = LocalQp::new(pair.qpn());
    let mut connect = ConnectParams::new(addrs(CLIENT), service(), local_qp, pair.deadline());
    connect.peer_to_peer = true;
    pair.connect_with(CLIENT, &connect).unwrap();
    let second = pair.request_with(|second| second.peer_to_peer = true);
    assert_eq!(pair.connect_with(CLIENT, &second), Err(CallError::ServiceInUse(service())));
    pair.run();
    assert_eq!(pair.expect_rejected(), 8);
    pair.assert_no_state_left();
}

#[test]
fn peers_with_different_services_do_not_connect() {
    let mut pair = Pair::without_listener();
    for (side, port) in [(CLIENT, 1), (SERVER, 2)] {
        let local_qp = LocalQp::new(pair.qpn());
        let service = adverb_wire::cm::ServiceId::tcp_port(port);
        let mut connect = ConnectParams::new(addrs(side), service, local_qp, pair.deadline());
        connect.peer_to_peer = true;
        pair.connect_with(side, &connect).unwrap();
    }
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["rejected"]);
    assert_eq!(pair.outcomes(SERVER), ["rejected"]);
}
