//! Service ID resolution: queries for UD queue pairs.

use adverb_proto::cm::{BindAddr, CallError, Event, ListenParams, Query, QueryId, ResolveParams, UDP_QKEY};
use adverb_proto::types::{Qpn, Transport};
use adverb_wire::cm::{Mad, Message, PrivateData, ServiceId, SidrReq, SidrStatus};

use crate::harness::*;

fn udp() -> ServiceId {
    ServiceId::udp_port(PORT)
}

fn pair() -> Pair {
    let mut pair = Pair::without_listener();
    let listen = ListenParams { service: udp(), bind: BindAddr::Any, transport: Transport::Ud, backlog: 2 };
    pair.sides[SERVER].listen(listen).unwrap();
    pair
}

fn send_query(pair: &mut Pair, service: ServiceId) -> QueryId {
    let (addrs, deadline) = (addrs(CLIENT), pair.deadline());
    let resolve = ResolveParams { addrs, service, source_port: 40_000, private_data: b"who?", deadline };
    let random = &mut pair.random;
    pair.sides[CLIENT].resolve_service(pair.now, &resolve, &mut || random_u32(random)).unwrap()
}

fn expect_query(pair: &mut Pair) -> Query {
    match pair.event(SERVER) {
        Some(Event::Query(query)) => *query,
        other => panic!("{other:?}"),
    }
}

fn send_response(pair: &mut Pair, query: QueryId) {
    pair.sides[SERVER].accept_query(pair.now, query, Qpn::truncate(0x99), UDP_QKEY, b"me").unwrap();
}

#[test]
fn a_query_gets_a_queue_pair_and_its_qkey() {
    let mut pair = pair();
    let id = send_query(&mut pair, udp());
    pair.run();
    let query = expect_query(&mut pair);
    assert_eq!(query.source, Some("10.0.0.1:40000".parse().unwrap()));
    assert_eq!((query.service, &query.private_data[..4]), (udp(), &b"who?"[..]));
    send_response(&mut pair, query.id);
    pair.run();
    let Some(Event::Resolved(resolution)) = pair.event(CLIENT) else { panic!() };
    assert_eq!((resolution.id, resolution.qpn.get(), resolution.qkey), (id, 0x99, 0x0123_4567));
    assert_eq!(resolution.private_data[..2], *b"me");
    assert_eq!(pair.sent(), ">SIDR_REQ <SIDR_REP");
    let (request, response) = (pair.log[0].1, pair.log[1].1);
    assert_eq!(request.transaction_id, response.transaction_id);
    pair.advance(seconds(1));
    pair.assert_no_state_left();
}

#[test]
fn a_lost_query_or_response_is_retransmitted_and_reported_once() {
    for kind in ["SIDR_REQ", "SIDR_REP"] {
        let mut pair = pair();
        pair.drop_first(kind, 1);
        send_query(&mut pair, udp());
        for _ in 0..4 {
            pair.advance(std::time::Duration::from_millis(100));
            if let Some(Event::Query(query)) = pair.event(SERVER) {
                send_response(&mut pair, query.id);
            }
        }
        pair.run();
        assert!(matches!(pair.event(CLIENT), Some(Event::Resolved(_))), "{kind}: {}", pair.sent());
        assert_eq!(pair.event(SERVER), None, "one query");
    }
}

#[test]
fn a_duplicate_query_is_reported_once() {
    let mut pair = pair();
    pair.set_delivery("SIDR_REQ", 1, Delivery::Twice);
    send_query(&mut pair, udp());
    pair.run();
    let query = expect_query(&mut pair);
    assert_eq!(pair.event(SERVER), None);
    send_response(&mut pair, query.id);
    pair.set_delivery("SIDR_REP", 1, Delivery::Twice);
    pair.run();
    assert!(matches!(pair.event(CLIENT), Some(Event::Resolved(_))));
    assert_eq!(pair.event(CLIENT), None, "one response");
}

#[test]
fn a_query_for_an_unknown_service_is_rejected() {
    let mut pair = pair();
    pair.listen(ServiceId::tcp_port(1));
    for service in [ServiceId::udp_port(1), ServiceId::tcp_port(1)] {
        let id = send_query(&mut pair, service);
        pair.run();
        let status = SidrStatus::ServiceIdNotSupported;
        assert_eq!(pair.event(CLIENT), Some(Event::QueryRejected { id, status, private_data: vec![0; 136] }));
    }
}

#[test]
fn an_application_rejects_a_query() {
    let mut pair = pair();
    let id = send_query(&mut pair, udp());
    pair.run();
    let query = expect_query(&mut pair).id;
    pair.sides[SERVER].reject_query(pair.now, query, SidrStatus::NoQueuePair, b"sorry").unwrap();
    let second = pair.sides[SERVER].reject_query(pair.now, query, SidrStatus::NoQueuePair, &[]);
    assert_eq!(second, Err(CallError::Unknown), "the query is already rejected");
    pair.run();
    let Some(Event::QueryRejected { id: rejected_id, status, private_data }) = pair.event(CLIENT) else {
        panic!()
    };
    assert_eq!((rejected_id, status), (id, SidrStatus::NoQueuePair));
    assert!(private_data.starts_with(b"sorry\0"), "{private_data:?}");
}

#[test]
fn a_query_without_an_ip_header_is_rejected() {
    let mut pair = pair();
    let request =
        SidrReq { request_id: 5, pkey: 0xffff, service_id: udp(), private_data: PrivateData::EMPTY };
    pair.inject_message(SERVER, Message::SidrReq(request));
    let response = pair.sides[SERVER].poll_transmit().unwrap().mad;
    let Message::SidrRep(response) = response.message else { panic!() };
    assert_eq!((response.request_id, response.status), (5, SidrStatus::Rejected));
    assert_eq!(pair.sides[SERVER].resource_counts().queries, 0);
}

#[test]
fn a_query_without_response_ends_at_the_deadline() {
    let mut pair = pair();
    pair.filter = Box::new(|_, _| Delivery::Lose);
    let id = send_query(&mut pair, udp());
    pair.advance(seconds(5));
    assert_eq!(pair.event(CLIENT), Some(Event::QueryTimedOut(id)));
    pair.assert_no_state_left();
}

#[test]
fn a_query_that_the_application_ignores_expires() {
    let mut pair = pair();
    send_query(&mut pair, udp());
    pair.run();
    let query = expect_query(&mut pair).id;
    pair.advance(seconds(6));
    let late = pair.sides[SERVER].accept_query(pair.now, query, Qpn::truncate(2), 0, &[]);
    assert_eq!(late, Err(CallError::Unknown));
    pair.assert_no_state_left();
}

#[test]
fn an_unexpected_response_is_ignored() {
    let mut pair = pair();
    let id = send_query(&mut pair, udp());
    pair.run();
    let query = expect_query(&mut pair).id;
    send_response(&mut pair, query);
    let mad = pair.sides[SERVER].poll_transmit().unwrap().mad;
    let Message::SidrRep(good) = mad.message else { panic!() };
    for wrong in [
        adverb_wire::cm::SidrRep { request_id: good.request_id ^ 1, ..good },
        adverb_wire::cm::SidrRep { service_id: ServiceId::udp_port(1), ..good },
    ] {
        pair.inject_message(CLIENT, Message::SidrRep(wrong));
    }
    let stranger = adverb_proto::cm::AddrPair { remote: [10, 9, 9, 9].into(), ..addrs(CLIENT) };
    pair.inject_bytes(CLIENT, stranger, &mad.emit());
    pair.run();
    assert_eq!(pair.event(CLIENT), None);
    assert_eq!(pair.sides[CLIENT].statistics().unmatched, 3);
    pair.inject(CLIENT, &mad);
    pair.run();
    assert!(matches!(pair.event(CLIENT), Some(Event::Resolved(resolution)) if resolution.id == id));
}

#[test]
fn queries_beyond_the_backlog_are_dropped() {
    let mut pair = pair();
    for _ in 0..3 {
        send_query(&mut pair, udp());
    }
    pair.run();
    assert_eq!(pair.events[SERVER].len(), 2);
    assert_eq!(pair.sides[SERVER].statistics().dropped_requests, 1);
    let query = expect_query(&mut pair).id;
    send_response(&mut pair, query);
    expect_query(&mut pair);
    pair.advance(std::time::Duration::from_millis(300));
    expect_query(&mut pair);
}

#[test]
fn one_source_cannot_occupy_all_query_slots() {
    let mut server_config = config(SERVER);
    server_config.max_half_open = 64;
    let mut pair = Pair::with(config(CLIENT), server_config);
    let listen = ListenParams {
        service: ServiceId::udp_port(PORT),
        bind: BindAddr::Any,
        transport: Transport::Ud,
        backlog: 1000,
    };
    pair.sides[SERVER].listen(listen).unwrap();
    let send_query = |pair: &mut Pair, request_id, remote: std::net::IpAddr| {
        let header = adverb_wire::cm::CmaHeader::new((remote, 1).into(), address(SERVER)).unwrap();
        let private_data = header.prepend_to(&[]).unwrap();
        let request = SidrReq { request_id, pkey: 0xffff, service_id: listen.service, private_data };
        let mad = Mad { transaction_id: 1, message: Message::SidrReq(request) };
        let addrs = adverb_proto::cm::AddrPair { local: address(SERVER), remote };
        pair.inject_bytes(SERVER, addrs, &mad.emit());
    };
    for number in 0..1000 {
        send_query(&mut pair, number, [10, 99, 0, 1].into());
    }
    assert_eq!(pair.sides[SERVER].resource_counts().queries, 32, "half of the slots");
    send_query(&mut pair, 1, address(CLIENT));
    assert_eq!(pair.sides[SERVER].resource_counts().queries, 33);
    pair.advance(seconds(6));
    pair.assert_no_state_left();
}
