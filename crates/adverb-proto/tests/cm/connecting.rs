//! Establishing connections, and the attributes of their queue pairs.

use std::time::Duration;

use adverb_proto::cm::{
    AddrPair, BindAddr, CallError, Event, ListenParams, LocalQp, Manager, RdAtomicLimits, State,
};
use adverb_proto::types::{PathMtu, Qpn, Transport};
use adverb_wire::cm::{Bits, Ece, Message, PathMtu as Mtu, ServiceId, Timeout, TransportService};

use crate::harness::*;

#[test]
fn a_connection_takes_three_messages() {
    let mut pair = Pair::automatic();
    let client = pair.connect();
    pair.run();
    let server = pair.expect_request().id;
    assert_eq!(pair.sent(), ">REQ <REP >RTU");
    assert_eq!(pair.outcomes(CLIENT), ["established"]);
    assert_eq!(pair.outcomes(SERVER), ["established"]);
    assert_eq!(pair.sides[CLIENT].state(client), Some(State::Established));
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
}

#[test]
fn both_queue_pairs_get_matching_attributes() {
    let mut pair = Pair::new();
    let mut connect = pair.request();
    connect.local_qp.rd_atomic_limits = RdAtomicLimits { max_dest_rd_atomic: 3, max_rd_atomic: 9 };
    connect.local_qp.retry_count = 5;
    connect.local_qp.rnr_retry = 2;
    connect.local_qp.ack_timeout = Timeout::new(13).unwrap();
    connect.path_mtu = PathMtu::Mtu512;
    let client = pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let request = pair.expect_request();
    assert_eq!(request.rd_atomic_limits, RdAtomicLimits { max_dest_rd_atomic: 9, max_rd_atomic: 3 });
    let mut local_qp = LocalQp::new(pair.qpn());
    local_qp.rd_atomic_limits = RdAtomicLimits { max_dest_rd_atomic: 7, max_rd_atomic: 16 };
    local_qp.rnr_retry = 1;
    let at_server = pair.sides[SERVER].qp_attributes(request.id, &local_qp).unwrap();
    pair.sides[SERVER].accept(pair.now, request.id, &local_qp, &[], pair.deadline()).unwrap();
    pair.run();
    let at_client = pair.sides[CLIENT].qp_attributes(client, &connect.local_qp).unwrap();

    assert_eq!(at_client.ready_to_receive.remote_qpn, local_qp.qpn);
    assert_eq!(at_server.ready_to_receive.remote_qpn, connect.local_qp.qpn);
    assert_eq!(at_client.ready_to_send.psn, at_server.ready_to_receive.psn);
    assert_eq!(at_server.ready_to_send.psn, at_client.ready_to_receive.psn);
    assert_ne!(at_client.ready_to_send.psn, at_server.ready_to_send.psn);
    assert_eq!(
        (at_client.ready_to_send.max_rd_atomic, at_server.ready_to_receive.max_dest_rd_atomic),
        (7, 7)
    );
    assert_eq!(
        (at_server.ready_to_send.max_rd_atomic, at_client.ready_to_receive.max_dest_rd_atomic),
        (3, 3)
    );
    assert_eq!((at_client.ready_to_send.retry_count, at_server.ready_to_send.retry_count), (5, 5));
    assert_eq!((at_client.ready_to_send.rnr_retry, at_server.ready_to_send.rnr_retry), (1, 2));
    assert_eq!((at_client.ready_to_send.timeout.code(), at_server.ready_to_send.timeout.code()), (13, 13));
    assert_eq!(at_client.ready_to_receive.path_mtu, PathMtu::Mtu512);
    assert_eq!(at_server.ready_to_receive.path_mtu, PathMtu::Mtu512);
    assert_eq!(at_client.ready_to_receive.path.remote(), address(SERVER));
    assert_eq!(at_server.ready_to_receive.path.remote(), address(CLIENT));
    assert_eq!((at_client.transport, at_client.pkey), (Transport::Rc, 0xffff));
}

#[test]
fn the_starting_psn_of_a_message_is_the_first_psn_that_its_receiver_sends() {
    // The starting PSN is the one that the sender of the message expects: vol. 1, 12.7, and cm_req_handler in Linux's
    // cm.c.
    let mut pair = Pair::automatic();
    pair.connect();
    pair.run();
    let id = pair.expect_request().id;
    let Message::Req(req) = pair.last(CLIENT, "REQ").message else { panic!() };
    let Message::Rep(rep) = pair.last(SERVER, "REP").message else { panic!() };
    let ready = pair.sides[SERVER].qp_attributes(id, &LocalQp::new(rep.qpn)).unwrap();
    assert_eq!((ready.ready_to_send.psn, ready.ready_to_receive.psn), (req.starting_psn, rep.starting_psn));
}

#[test]
fn a_req_has_the_fields_that_linux_requires() {
    let mut pair = Pair::new();
    let mut connect = pair.request();
    connect.source_port = 40_000;
    connect.traffic_class = 0x68;
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let Message::Req(req) = pair.last(CLIENT, "REQ").message else { panic!() };
    assert_eq!(req.service_id.get(), 0x0106_0000 | u64::from(PORT));
    assert_eq!((req.pkey, req.path_mtu), (0xffff, Ok(Mtu::Mtu1024)));
    assert_eq!(req.transport, TransportService::ReliableConnection);
    assert_eq!(req.ca_guid, 0x1111_2222_3333_4444);
    assert_eq!(req.primary_path.local_gid.to_string(), "::ffff:10.0.0.1");
    assert_eq!(req.primary_path.remote_gid.to_string(), "::ffff:10.0.0.2");
    assert_eq!((req.primary_path.local_lid, req.primary_path.remote_lid), (0xffff, 0xffff));
    assert!(req.primary_path.hop_limit > 1 && !req.primary_path.subnet_local);
    assert_eq!(req.primary_path.traffic_class, 0x68);
    assert_eq!(req.max_cm_retries.get(), 15);
    let (header, _) = req.cma_header().unwrap();
    assert_eq!(header.source(), "10.0.0.1:40000".parse().unwrap());
    assert_eq!(header.destination(), address(SERVER));
    assert_eq!(req.private_data.as_bytes()[1], 0x40);
    let request = pair.expect_request();
    assert_eq!(request.source, Some("10.0.0.1:40000".parse().unwrap()));
    assert_eq!(request.path.traffic_class, 0x68);
}

#[test]
fn the_messages_of_a_handshake_have_one_transaction_id() {
    let mut pair = Pair::automatic();
    pair.connect();
    pair.run();
    let ids: Vec<u64> = pair.log.iter().map(|(_, mad)| mad.transaction_id).collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:x?}");
    let Message::Req(req) = pair.last(CLIENT, "REQ").message else { panic!() };
    assert_eq!(ids[0] as u32, req.local_comm_id);
}

#[test]
fn a_uc_request_is_accepted_only_with_a_uc_queue_pair() {
    let mut pair = Pair::without_listener();
    let listen =
        ListenParams { service: service(), bind: BindAddr::Any, transport: Transport::Uc, backlog: 1 };
    pair.sides[SERVER].listen(listen).unwrap();
    let mut connect = pair.request();
    connect.local_qp.transport = Transport::Uc;
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let request = pair.expect_request();
    assert_eq!(request.transport, Transport::Uc);
    let qpn = pair.qpn();
    let wrong = pair.sides[SERVER].accept(pair.now, request.id, &LocalQp::new(qpn), &[], pair.deadline());
    assert_eq!(wrong, Err(CallError::UnsupportedTransport(Transport::Rc)));
    let mut local_qp = LocalQp::new(qpn);
    local_qp.transport = Transport::Uc;
    pair.sides[SERVER].accept(pair.now, request.id, &local_qp, &[], pair.deadline()).unwrap();
}

#[test]
fn both_sides_get_the_peers_vendor_options() {
    let mut pair = Pair::new();
    let mut connect = pair.request();
    connect.local_qp.ece = Ece { vendor_id: Bits::truncate(0x2c9), options: 0x1234_5678 };
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let request = pair.expect_request();
    assert_eq!(request.ece, connect.local_qp.ece);
    let mut local_qp = LocalQp::new(pair.qpn());
    local_qp.ece = Ece { vendor_id: Bits::truncate(0x2c9), options: 0x78 };
    pair.sides[SERVER].accept(pair.now, request.id, &local_qp, &[], pair.deadline()).unwrap();
    pair.run();
    let Some(Event::Accepted(acceptance)) = pair.event(CLIENT) else { panic!() };
    assert_eq!(acceptance.ece, local_qp.ece);
}

#[test]
fn both_sides_learn_whether_the_peer_has_an_srq() {
    let mut pair = Pair::new();
    let mut connect = pair.request();
    connect.local_qp.has_srq = true;
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let request = pair.expect_request();
    assert!(request.has_srq);
    let mut local_qp = LocalQp::new(pair.qpn());
    local_qp.has_srq = true;
    pair.sides[SERVER].accept(pair.now, request.id, &local_qp, &[], pair.deadline()).unwrap();
    pair.run();
    let Some(Event::Accepted(acceptance)) = pair.event(CLIENT) else { panic!() };
    assert!(acceptance.has_srq);
}

#[test]
fn a_request_over_ipv6_reaches_the_server() {
    let mut pair = Pair::new();
    let (local, remote) = ("fd77::1".parse().unwrap(), "fd77::2".parse().unwrap());
    let connect = pair.request_with(|connect| connect.addrs = AddrPair { local, remote });
    pair.connect_with(CLIENT, &connect).unwrap();
    let datagram = pair.sides[CLIENT].poll_transmit().unwrap();
    pair.inject_bytes(SERVER, AddrPair { local: remote, remote: local }, &datagram.mad.emit());
    let Some(Event::Request(request)) = pair.sides[SERVER].poll_event() else { panic!() };
    assert_eq!(request.source.map(|source| source.ip()), Some(local));
}

#[test]
fn addresses_of_two_families_are_rejected() {
    let mut pair = Pair::new();
    let remote = "fd77::2".parse().unwrap();
    let connect = pair.request_with(|connect| connect.addrs.remote = remote);
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::AddressFamilyMismatch));
}

#[test]
fn a_manager_connects_to_itself() {
    let mut manager = Manager::new(config(0));
    manager
        .listen(ListenParams {
            service: service(),
            bind: BindAddr::Any,
            transport: Transport::Rc,
            backlog: 1,
        })
        .unwrap();
    let mut pair = Pair::new();
    let addrs = AddrPair { local: address(0), remote: address(0) };
    let connect = pair.request_with(|connect| connect.addrs = addrs);
    let mut state = 3;
    let active = manager.connect(pair.now, &connect, &mut || random_u32(&mut state)).unwrap();
    let mut passive = None;
    loop {
        if let Some(datagram) = manager.poll_transmit() {
            manager.handle(pair.now, addrs, &datagram.mad.emit(), &mut || random_u32(&mut state));
        } else if let Some(event) = manager.poll_event() {
            match event {
                Event::Request(request) => {
                    passive = Some(request.id);
                    let same = manager.accept(pair.now, request.id, &connect.local_qp, &[], pair.deadline());
                    assert_eq!(same, Err(CallError::QpInUse(connect.local_qp.qpn)));
                    let local_qp = LocalQp::new(pair.qpn());
                    manager.accept(pair.now, request.id, &local_qp, &[], pair.deadline()).unwrap();
                }
                Event::Accepted(acceptance) => manager.establish(pair.now, acceptance.id).unwrap(),
                _ => {}
            }
        } else {
            break;
        }
    }
    assert_eq!(manager.state(active), Some(State::Established));
    assert_eq!(manager.state(passive.unwrap()), Some(State::Established));
}

#[test]
fn the_most_specific_listener_gets_the_request() {
    let mut pair = Pair::without_listener();
    let mut listen = |bind| {
        let listen = ListenParams { service: service(), bind, transport: Transport::Rc, backlog: 4 };
        pair.sides[SERVER].listen(listen).unwrap()
    };
    let (any, v4, exact) =
        (listen(BindAddr::Any), listen(BindAddr::AnyV4), listen(BindAddr::Address(address(SERVER))));
    for expected in [exact, v4, any] {
        pair.connect();
        pair.run();
        let request = pair.expect_request();
        assert_eq!(request.listener, expected);
        pair.sides[SERVER].close_listener(pair.now, expected).unwrap();
    }
    pair.connect();
    pair.run();
    assert_eq!(pair.expect_rejected(), 8);
}

#[test]
fn one_service_has_one_listener_at_one_address() {
    let mut pair = Pair::new();
    let listen =
        ListenParams { service: service(), bind: BindAddr::Any, transport: Transport::Rc, backlog: 4 };
    assert_eq!(pair.sides[SERVER].listen(listen), Err(CallError::ServiceInUse(service())));
    pair.listen(ServiceId::tcp_port(PORT + 1));
}

#[test]
fn a_queue_pair_has_one_connection() {
    let mut pair = Pair::automatic();
    let connect = pair.request();
    pair.connect_with(CLIENT, &connect).unwrap();
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::QpInUse(connect.local_qp.qpn)));
    pair.run();
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::QpInUse(connect.local_qp.qpn)));
    assert!(!pair.sides[CLIENT].is_qpn_free(connect.local_qp.qpn));
}

#[test]
fn management_multicast_and_ud_queue_pairs_are_rejected() {
    let mut pair = Pair::new();
    for qpn in [0, 1, 0xff_ffff] {
        let connect = pair.request_with(|connect| connect.local_qp.qpn = Qpn::truncate(qpn));
        assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::OutOfRange("qpn")));
    }
    let mut connect = pair.request();
    connect.local_qp.transport = Transport::Ud;
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::UnsupportedTransport(Transport::Ud)));
}

#[test]
fn values_out_of_range_are_rejected() {
    let mut pair = Pair::new();
    let mut connect = pair.request();
    connect.local_qp.retry_count = 8;
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::OutOfRange("retry_count")));
    let mut connect = pair.request();
    connect.local_qp.rnr_retry = 8;
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::OutOfRange("rnr_retry")));
    let connect = pair.request_with(|connect| connect.path_mtu = PathMtu::Mtu2048);
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::OutOfRange("path_mtu")));
    pair.assert_no_state_left();
}

#[test]
fn calls_in_the_wrong_state_are_rejected() {
    let (mut pair, [client, server]) = Pair::connected();
    let local_qp = LocalQp::new(pair.qpn());
    let (now, deadline) = (pair.now, pair.deadline());
    let wrong = Err(CallError::WrongState(State::Established));
    assert_eq!(pair.sides[SERVER].accept(now, server, &local_qp, &[], deadline), wrong);
    assert_eq!(pair.sides[CLIENT].establish(now, client), wrong);
    let reason = adverb_wire::cm::RejectReason::ConsumerReject;
    assert_eq!(pair.sides[CLIENT].reject(now, client, reason, &[]), wrong);
    assert_eq!(pair.sides[CLIENT].establish(now, server), Err(CallError::Unknown));
    let connecting = pair.connect();
    let wrong = Err(CallError::WrongState(State::ReqSent));
    assert_eq!(pair.sides[CLIENT].disconnect(now, connecting, deadline), wrong);
    assert!(pair.sides[CLIENT].qp_attributes(connecting, &local_qp).is_err());
    for error in [CallError::Unknown, CallError::WrongState(State::TimeWait), CallError::TooMany] {
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn an_mra_makes_the_client_wait_for_a_slow_accept() {
    let mut pair = Pair::new();
    pair.connect();
    pair.advance(Duration::from_millis(300));
    assert_eq!(pair.sent(), ">REQ >REQ <MRA");
    let id = pair.expect_request().id;
    pair.advance(Duration::from_millis(2000));
    assert_eq!(pair.sent(), ">REQ >REQ <MRA", "the client waits after the MRA");
    pair.automatic = true;
    let local_qp = LocalQp::new(pair.qpn());
    pair.sides[SERVER].accept(pair.now, id, &local_qp, &[], pair.deadline()).unwrap();
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["established"]);
    assert_eq!(pair.outcomes(SERVER), ["established"]);
}

#[test]
fn the_server_waits_for_a_slow_establish() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.run();
    let id = pair.expect_request().id;
    let local_qp = LocalQp::new(pair.qpn());
    pair.sides[SERVER].accept(pair.now, id, &local_qp, &[], pair.deadline()).unwrap();
    pair.advance(seconds(2));
    assert_eq!(pair.sent(), ">REQ <REP <REP <REP <REP");
    pair.sides[CLIENT].establish(pair.now, client).unwrap();
    pair.run();
    assert_eq!(pair.outcomes(SERVER), ["established"]);
}

#[test]
fn a_request_that_the_application_ignores_is_rejected() {
    let mut pair = Pair::new();
    let connect = pair.request_with(|connect| connect.deadline = connect.deadline + seconds(60));
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.advance(seconds(6));
    let id = pair.expect_request().id;
    assert_eq!(pair.event(SERVER), Some(Event::Unreachable(id)));
    assert_eq!(pair.expect_rejected(), 3);
    pair.advance(seconds(1));
    pair.assert_no_state_left();
}
