//! Rejections and their reasons.

use adverb_proto::cm::{BindAddr, CallError, Config, Event, ListenParams, LocalQp};
use adverb_proto::types::{PathMtu, Transport};
use adverb_wire::cm::{
    Bits, CmaHeader, Message, PrivateData, RejectReason, Req, ServiceId, TransportService,
};

use crate::harness::*;

/// Returns the code of the reason with which a server rejects a valid request after `change`, or `None` if it does not
/// reject it.
fn reason_after(change: impl FnOnce(&mut Req)) -> Option<u16> {
    let mut pair = Pair::new();
    pair.connect();
    let mut mad = pair.sides[CLIENT].poll_transmit().unwrap().mad;
    let Message::Req(req) = &mut mad.message else { panic!() };
    change(req);
    let comm_id = req.local_comm_id;
    pair.inject(SERVER, &mad);
    let rej = pair.sides[SERVER].poll_transmit()?.mad;
    assert_eq!(rej.transaction_id, mad.transaction_id);
    let Message::Rej(rej) = rej.message else { panic!("{}", rej.message) };
    assert_eq!(rej.remote_comm_id, comm_id);
    assert_eq!(rej.rejected, adverb_wire::cm::MessageKind::Req);
    assert_eq!(pair.sides[SERVER].resource_counts().connections, 0, "no connection is left");
    Some(rej.reason.code())
}

#[test]
fn a_valid_request_is_not_rejected() {
    assert_eq!(reason_after(|_| {}), None);
}

#[test]
fn a_service_without_a_listener_is_rejected_as_invalid_service_id() {
    assert_eq!(reason_after(|req| req.service_id = ServiceId::tcp_port(1)), Some(8));
    assert_eq!(reason_after(|req| req.service_id = ServiceId::udp_port(PORT)), Some(8));
}

#[test]
fn another_transport_is_rejected_as_invalid_transport_type() {
    for transport in [
        TransportService::UnreliableConnection,
        TransportService::ReliableDatagram,
        TransportService::Extended,
    ] {
        assert_eq!(reason_after(|req| req.transport = transport), Some(9));
    }
}

#[test]
fn a_connection_to_a_datagram_listener_is_rejected_as_invalid_transport_type() {
    let mut pair = Pair::without_listener();
    let listen =
        ListenParams { service: service(), bind: BindAddr::Any, transport: Transport::Ud, backlog: 1 };
    pair.sides[SERVER].listen(listen).unwrap();
    pair.connect();
    pair.run();
    assert_eq!(pair.expect_rejected(), 9);
}

#[test]
fn a_path_to_another_address_is_rejected_as_invalid_gid_with_the_right_one() {
    let other_gid = "::ffff:10.9.9.9".parse().unwrap();
    assert_eq!(reason_after(|req| req.primary_path.remote_gid = other_gid), Some(12));
    let mut pair = Pair::new();
    pair.connect();
    let mut mad = pair.sides[CLIENT].poll_transmit().unwrap().mad;
    let Message::Req(req) = &mut mad.message else { panic!() };
    req.primary_path.remote_gid = other_gid;
    pair.inject(SERVER, &mad);
    pair.run();
    let Some(Event::Rejected(rejection)) = pair.event(CLIENT) else { panic!() };
    let expected: std::net::Ipv6Addr = "::ffff:10.0.0.2".parse().unwrap();
    assert_eq!(rejection.info.as_bytes(), expected.octets());
}

#[test]
fn a_path_from_another_address_is_rejected_as_invalid_gid() {
    let other_gid = "::ffff:10.9.9.9".parse().unwrap();
    assert_eq!(reason_after(|req| req.primary_path.local_gid = other_gid), Some(12));
}

#[test]
fn another_partition_is_rejected_as_invalid_gid() {
    assert_eq!(reason_after(|req| req.pkey = 0x8001), Some(12));
    assert_eq!(reason_after(|req| req.pkey = 0x7fff), Some(12));
}

#[test]
fn a_path_mtu_beyond_the_link_is_rejected_as_invalid_mtu_with_the_maximum() {
    let mut large = config(CLIENT);
    large.path_mtu = PathMtu::Mtu4096;
    let mut pair = Pair::with(large, config(SERVER));
    pair.listen(service());
    let connect = pair.request_with(|connect| connect.path_mtu = PathMtu::Mtu4096);
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let Some(Event::Rejected(rejection)) = pair.event(CLIENT) else { panic!() };
    assert_eq!((rejection.reason.code(), rejection.info.as_bytes()), (26, &[PathMtu::Mtu1024.code()][..]));
}

#[test]
fn an_invalid_queue_pair_number_is_rejected_as_unsupported_request() {
    for qpn in [0, 1, 0xff_ffff] {
        assert_eq!(reason_after(|req| req.qpn = adverb_wire::Qpn::truncate(qpn)), Some(5));
    }
}

#[test]
fn private_data_without_an_ip_header_is_rejected_as_consumer_reject() {
    assert_eq!(reason_after(|req| req.private_data = PrivateData::EMPTY), Some(28));
    assert_eq!(reason_after(|req| req.private_data = [0xff; 92].into()), Some(28));
}

#[test]
fn an_ip_header_with_other_addresses_is_rejected_as_consumer_reject() {
    let header = |source: [u8; 4], destination: [u8; 4]| {
        CmaHeader::new((source, 1).into(), destination.into()).unwrap().prepend_to(&[]).unwrap()
    };
    let (client, server) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    assert_eq!(reason_after(|req| req.private_data = header(client, server)), None);
    assert_eq!(reason_after(|req| req.private_data = header([10, 0, 0, 9], server)), Some(28));
    assert_eq!(reason_after(|req| req.private_data = header(client, [10, 0, 0, 9])), Some(28));
}

#[test]
fn fields_that_the_manager_does_not_use_are_ignored() {
    let reason = reason_after(|req| {
        req.primary_path.local_lid = 0;
        req.primary_path.remote_lid = 7;
        req.primary_path.hop_limit = 1;
        req.primary_path.packet_rate = Bits::MAX;
        req.primary_path.sl = Bits::MAX;
        req.end_to_end_flow_control = true;
        req.remote_cm_response_timeout = adverb_wire::cm::Timeout::MAX;
        req.sap_supported = true;
    });
    assert_eq!(reason, None);
}

#[test]
fn an_application_rejects_with_its_own_reason_and_private_data() {
    for reason in [RejectReason::ConsumerReject, RejectReason::NoResources, RejectReason::from_code(999)] {
        let mut pair = Pair::new();
        pair.connect();
        pair.run();
        let id = pair.expect_request().id;
        pair.sides[SERVER].reject(pair.now, id, reason, b"not today").unwrap();
        pair.run();
        let Some(Event::Rejected(rejection)) = pair.event(CLIENT) else { panic!() };
        assert_eq!(rejection.reason, reason);
        assert_eq!(rejection.private_data[..9], *b"not today");
        assert_eq!(
            pair.sides[SERVER].reject(pair.now, id, reason, &[]).unwrap_err(),
            CallError::WrongState(adverb_proto::cm::State::TimeWait)
        );
        pair.advance(seconds(1));
        pair.assert_no_state_left();
    }
}

#[test]
fn the_client_may_reject_the_acceptance() {
    let mut pair = Pair::new();
    let client = pair.connect();
    pair.run();
    let id = pair.expect_request().id;
    let local_qp = LocalQp::new(pair.qpn());
    let deadline = pair.deadline();
    pair.sides[SERVER].accept(pair.now, id, &local_qp, &[], deadline).unwrap();
    pair.run();
    pair.sides[CLIENT].reject(pair.now, client, RejectReason::ConsumerReject, b"never mind").unwrap();
    pair.run();
    let Some(Event::Rejected(rejection)) = pair.event(SERVER) else { panic!() };
    assert_eq!((rejection.id, rejection.reason.code()), (id, 28));
    assert_eq!(rejection.private_data[..10], *b"never mind");
    let Message::Rej(rej) = pair.last(CLIENT, "REJ").message else { panic!() };
    assert_eq!(rej.rejected, adverb_wire::cm::MessageKind::Rep);
}

#[test]
fn requests_beyond_the_backlog_are_dropped_and_retransmitted() {
    let mut pair = Pair::without_listener();
    let listen =
        ListenParams { service: service(), bind: BindAddr::Any, transport: Transport::Rc, backlog: 2 };
    pair.sides[SERVER].listen(listen).unwrap();
    for _ in 0..3 {
        pair.connect();
    }
    pair.run();
    assert_eq!(pair.events[SERVER].len(), 2);
    assert_eq!(pair.sides[SERVER].statistics().dropped_requests, 1);
    let first = pair.expect_request().id;
    pair.sides[SERVER].reject(pair.now, first, RejectReason::ConsumerReject, &[]).unwrap();
    pair.expect_request();
    pair.advance(seconds(1));
    pair.expect_request();
}

#[test]
fn a_closed_listener_rejects_unpolled_requests() {
    let mut pair = Pair::without_listener();
    let listener = pair.listen(service());
    let (polled, unpolled) = (pair.connect(), pair.connect());
    for _ in 0..2 {
        let mad = pair.sides[CLIENT].poll_transmit().unwrap().mad;
        pair.inject(SERVER, &mad);
    }
    let Some(Event::Request(request)) = pair.sides[SERVER].poll_event() else { panic!() };
    pair.sides[SERVER].close_listener(pair.now, listener).unwrap();
    assert_eq!(pair.sides[SERVER].close_listener(pair.now, listener), Err(CallError::Unknown));
    pair.run();
    let Some(Event::Rejected(rejection)) = pair.event(CLIENT) else { panic!() };
    assert_eq!((rejection.id, rejection.reason.code()), (unpolled, 8));
    assert_eq!(pair.event(SERVER), None);
    let local_qp = LocalQp::new(pair.qpn());
    let deadline = pair.deadline();
    pair.sides[SERVER].accept(pair.now, request.id, &local_qp, &[], deadline).unwrap();
    pair.automatic = true;
    pair.run();
    assert_eq!(pair.sides[CLIENT].state(polled), Some(adverb_proto::cm::State::Established));
}

#[test]
fn a_request_for_a_service_that_is_not_a_port_has_no_ip_header() {
    let mut pair = Pair::without_listener();
    let service = ServiceId::new(0x1000_0000_0000_0042);
    pair.listen(service);
    let mut connect = pair.request_with(|connect| connect.service = service);
    let data = [7; 92];
    connect.private_data = &data;
    pair.connect_with(CLIENT, &connect).unwrap();
    pair.run();
    let request = pair.expect_request();
    assert_eq!((request.source, &request.private_data[..]), (None, &data[..]));
}

#[test]
fn the_manager_holds_at_most_max_connections() {
    let mut client_config: Config = config(CLIENT);
    client_config.max_connections = 2;
    let mut pair = Pair::with(client_config, config(SERVER));
    pair.connect();
    pair.connect();
    let connect = pair.request();
    assert_eq!(pair.connect_with(CLIENT, &connect), Err(CallError::TooMany));
}
