//! Messages that any host can send to queue pair 1.

use std::net::IpAddr;
use std::time::Duration;

use adverb_proto::cm::{AddrPair, Event, State};
use adverb_wire::cm::{
    AdditionalInfo, CmaHeader, Drep, Dreq, Mad, Message, MessageKind, Mra, Rej, RejectReason, Rep, Rtu,
    Timeout,
};

use crate::harness::*;

fn stranger() -> AddrPair {
    AddrPair { local: address(SERVER), remote: [10, 66, 66, 66].into() }
}

/// Returns a REQ with this communication ID and queue pair, and a random GUID.
fn forged_req(pair: &mut Pair, comm_id: u32, qpn: u32) -> Mad {
    let mut source = Pair::new();
    source.connect();
    let mut mad = source.sides[CLIENT].poll_transmit().unwrap().mad;
    if let Message::Req(req) = &mut mad.message {
        req.local_comm_id = comm_id;
        req.qpn = adverb_wire::Qpn::truncate(qpn);
        req.ca_guid = u64::from(random_u32(&mut pair.random));
    }
    mad
}

/// Returns the address of one of 65,536 hosts.
fn host(number: u32) -> IpAddr {
    [10, 99, (number >> 8) as u8, number as u8].into()
}

/// Returns a REQ whose source is [`host`] of the same number, and its addresses.
fn spoofed_req(pair: &mut Pair, number: u32) -> (Mad, AddrPair) {
    let mut mad = forged_req(pair, number, 0x100 + number);
    let addrs = AddrPair { local: address(SERVER), remote: host(number) };
    if let Message::Req(req) = &mut mad.message {
        req.primary_path.local_gid = adverb_proto::types::Gid::from(addrs.remote).bytes().into();
        let header = CmaHeader::new((addrs.remote, 1).into(), addrs.local).unwrap();
        req.private_data = header.prepend_to(&[]).unwrap();
    }
    (mad, addrs)
}

/// Returns a pair whose server listens, and has this number of half-open slots.
fn pair_with_half_open_slots(max_half_open: usize) -> Pair {
    let mut server_config = config(SERVER);
    server_config.max_half_open = max_half_open;
    let mut pair = Pair::with(config(CLIENT), server_config);
    let listen = adverb_proto::cm::ListenParams {
        service: service(),
        bind: adverb_proto::cm::BindAddr::Any,
        transport: adverb_proto::types::Transport::Rc,
        backlog: 1000,
    };
    pair.sides[SERVER].listen(listen).unwrap();
    pair
}

/// Accepts the server's requests, advances the time of the server alone, and returns the messages that it sent, with
/// their destinations.
fn sent_within(pair: &mut Pair, duration: Duration) -> Vec<(IpAddr, &'static str)> {
    let end = pair.now + duration;
    let mut sent = Vec::new();
    loop {
        while let Some(event) = pair.sides[SERVER].poll_event() {
            if let Event::Request(request) = event {
                let (local_qp, deadline) = (adverb_proto::cm::LocalQp::new(pair.qpn()), pair.deadline());
                pair.sides[SERVER].accept(pair.now, request.id, &local_qp, &[], deadline).unwrap();
            }
        }
        while let Some(datagram) = pair.sides[SERVER].poll_transmit() {
            sent.push((datagram.addrs.remote, name(&datagram.mad.message)));
        }
        match pair.sides[SERVER].poll_timeout().filter(|next| *next <= end) {
            Some(next) => pair.now = next,
            None => break,
        }
        let now = pair.now;
        pair.sides[SERVER].handle_timeout(now);
    }
    pair.now = end;
    sent
}

#[test]
fn a_spoofed_req_gets_five_reps_and_a_rej() {
    let mut pair = pair_with_half_open_slots(1024);
    let (req, addrs) = spoofed_req(&mut pair, 1);
    pair.inject_bytes(SERVER, addrs, &req.emit());
    let sent = sent_within(&mut pair, seconds(7));
    let names: Vec<&str> = sent.iter().map(|(_, name)| *name).collect();
    assert_eq!(names, ["REP", "REP", "REP", "REP", "REP", "REJ"]);
    assert!(sent.iter().all(|(to, _)| *to == host(1)));
}

#[test]
fn spoofed_reqs_get_two_messages_each_while_half_of_the_slots_are_occupied() {
    let mut pair = pair_with_half_open_slots(64);
    for number in 0..64 {
        let (req, addrs) = spoofed_req(&mut pair, number);
        pair.inject_bytes(SERVER, addrs, &req.emit());
    }
    // All requests are accepted, and none is established. When half of the deadlines have passed, half of the slots are
    // free.
    let sent = sent_within(&mut pair, Duration::from_millis(4999));
    assert_eq!(sent.len(), 64 * 2, "a REP and one retransmission each");
    let sent = sent_within(&mut pair, seconds(2));
    assert!(sent.len() <= 32, "{} REJs", sent.len());
    pair.assert_no_state_left();
}

#[test]
fn spoofed_reqs_with_one_source_get_two_messages_each_beyond_its_share() {
    let mut pair = pair_with_half_open_slots(1024);
    for number in 0..300 {
        let mut req = spoofed_req(&mut pair, 1).0;
        if let Message::Req(req) = &mut req.message {
            req.local_comm_id = number;
            req.qpn = adverb_wire::Qpn::truncate(0x100 + number);
        }
        let addrs = AddrPair { local: address(SERVER), remote: host(1) };
        pair.inject_bytes(SERVER, addrs, &req.emit());
    }
    assert_eq!(pair.sides[SERVER].resource_counts().half_open, 300);
    let sent = sent_within(&mut pair, seconds(7));
    assert!(sent.len() <= 300 * 2 + 64, "{} messages", sent.len());
}

#[test]
fn a_withheld_rej_is_sent_in_response_to_an_rtu() {
    let mut pair = pair_with_half_open_slots(2);
    let client = pair.connect();
    pair.automatic = true;
    pair.drop_first("RTU", usize::MAX);
    pair.advance(seconds(5));
    assert_eq!(pair.outcomes(SERVER), ["unreachable"]);
    assert!(!pair.sent().contains("REJ"), "{}", pair.sent());
    assert_eq!(pair.sides[CLIENT].state(client), Some(State::Established));
    let rtu = pair.last(CLIENT, "RTU");
    pair.inject(SERVER, &rtu);
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["established", "disconnected"]);
}

#[test]
fn one_source_cannot_occupy_all_slots() {
    let mut pair = pair_with_half_open_slots(64);
    // A request occupies a slot for 5 s, so 13 requests per second would keep 64 slots full. This is ten times that
    // rate.
    for number in 0..1000 {
        let mut req = forged_req(&mut pair, number, 0x100 + number);
        let addrs = AddrPair { local: address(SERVER), remote: host(1) };
        if let (Message::Req(req), Message::Req(model)) =
            (&mut req.message, spoofed_req(&mut pair, 1).0.message)
        {
            req.primary_path = model.primary_path;
            req.private_data = model.private_data;
        }
        pair.inject_bytes(SERVER, addrs, &req.emit());
        sent_within(&mut pair, Duration::from_millis(8));
    }
    let resource_counts = pair.sides[SERVER].resource_counts();
    assert_eq!(resource_counts.half_open, 32, "half of the slots");
    pair.automatic = true;
    pair.connect();
    pair.run();
    assert_eq!(pair.outcomes(CLIENT), ["established"]);
}

#[test]
fn an_invalid_message_is_counted_and_dropped() {
    let mut pair = Pair::new();
    pair.connect();
    let good = pair.sides[CLIENT].poll_transmit().unwrap().mad.emit();
    for length in 0..256 {
        pair.inject_bytes(SERVER, addrs(SERVER), &good[..length]);
    }
    pair.inject_bytes(SERVER, addrs(SERVER), &[good, good].concat());
    for byte in [0, 1, 2, 3, 16] {
        let mut bad = good;
        bad[byte] ^= 0x40;
        pair.inject_bytes(SERVER, addrs(SERVER), &bad);
    }
    assert_eq!(pair.sides[SERVER].statistics().malformed, 262);
    assert_eq!(pair.sides[SERVER].poll_transmit(), None, "no response is sent");
    assert_eq!(pair.sides[SERVER].poll_event(), None);
}

#[test]
fn a_flood_of_requests_fills_only_the_half_open_slots() {
    let mut server_config = config(SERVER);
    server_config.max_half_open = 8;
    let mut pair = Pair::with(config(CLIENT), server_config);
    let listen = adverb_proto::cm::ListenParams {
        service: service(),
        bind: adverb_proto::cm::BindAddr::Any,
        transport: adverb_proto::types::Transport::Rc,
        backlog: 1000,
    };
    pair.sides[SERVER].listen(listen).unwrap();
    for number in 0..1000 {
        let (req, addrs) = spoofed_req(&mut pair, number);
        pair.inject_bytes(SERVER, addrs, &req.emit());
    }
    let resource_counts = pair.sides[SERVER].resource_counts();
    assert_eq!((resource_counts.connections, resource_counts.half_open, resource_counts.events), (8, 8, 8));
    assert_eq!(pair.sides[SERVER].statistics().dropped_requests, 992);
    assert_eq!(pair.sides[SERVER].poll_transmit(), None);
    // The slots expire, and the service is available again.
    pair.now = pair.now + seconds(6);
    for _ in 0..2 {
        let now = pair.now;
        pair.sides[SERVER].handle_timeout(now);
        pair.now = pair.now + seconds(1);
    }
    while pair.sides[SERVER].poll_transmit().is_some() || pair.sides[SERVER].poll_event().is_some() {}
    pair.assert_no_state_left();
    pair.connect();
    pair.run();
    pair.expect_request();
}

#[test]
fn a_flood_affects_no_established_connection() {
    let (mut pair, [client, server]) = Pair::connected();
    for number in 0..3000 {
        let req = forged_req(&mut pair, number, 0x100 + number);
        pair.inject(SERVER, &req);
    }
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
    pair.automatic = false;
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.run();
    assert_eq!(pair.sides[SERVER].state(server), Some(State::TimeWait));
}

#[test]
fn unpolled_events_are_bounded() {
    let mut server_config = config(SERVER);
    server_config.max_connections = 16;
    let mut pair = Pair::with(config(CLIENT), server_config);
    pair.listen(service());
    for number in 0..1000 {
        let req = forged_req(&mut pair, number, 0x100 + number);
        pair.inject(SERVER, &req);
        // The sender of the request rejects it at once.
        let Message::Req(fields) = req.message else { panic!() };
        pair.inject_message(
            SERVER,
            Message::Rej(Rej {
                local_comm_id: number,
                remote_comm_id: 0,
                rejected: MessageKind::Other,
                reason: RejectReason::Timeout,
                additional_info: adverb_wire::cm::AdditionalInfo::new(&fields.ca_guid.to_be_bytes()).unwrap(),
                private_data: Default::default(),
            }),
        );
        pair.now = pair.now + seconds(1);
        let now = pair.now;
        pair.sides[SERVER].handle_timeout(now);
    }
    assert!(pair.sides[SERVER].resource_counts().events <= 17, "{:?}", pair.sides[SERVER].resource_counts());
    assert_eq!(pair.sides[SERVER].resource_counts().connections, 0);
}

#[test]
fn unpolled_messages_are_bounded() {
    let mut pair = Pair::without_listener();
    for number in 0..10_000 {
        let req = forged_req(&mut pair, number, 0x100);
        pair.inject(SERVER, &req);
    }
    assert_eq!(pair.sides[SERVER].resource_counts().datagrams, 4096);
    assert_eq!(pair.sides[SERVER].statistics().dropped_sends, 10_000 - 4096);
}

#[test]
fn a_message_from_another_address_with_the_right_ids_is_ignored() {
    let (mut pair, [client, server]) = Pair::connected();
    let (server_id, client_id) = (comm_id(server), comm_id(client));
    let Message::Rep(rep) = pair.last(SERVER, "REP").message else { panic!() };
    let private = Default::default();
    for message in [
        Message::Rej(Rej {
            local_comm_id: client_id,
            remote_comm_id: server_id,
            rejected: MessageKind::Other,
            reason: RejectReason::ConsumerReject,
            additional_info: Default::default(),
            private_data: Default::default(),
        }),
        Message::Dreq(Dreq {
            local_comm_id: client_id,
            remote_comm_id: server_id,
            remote_qpn: rep.qpn,
            private_data: Default::default(),
        }),
        Message::Drep(Drep { local_comm_id: client_id, remote_comm_id: server_id, private_data: private }),
    ] {
        pair.inject_bytes(SERVER, stranger(), &Mad { transaction_id: 1, message }.emit());
        assert_eq!(pair.sides[SERVER].state(server), Some(State::Established), "{message}");
        assert_eq!(pair.sides[SERVER].poll_event(), None);
    }
}

#[test]
fn a_message_from_the_peer_with_wrong_ids_is_ignored() {
    let (mut pair, [client, server]) = Pair::connected();
    let (server_id, client_id) = (comm_id(server), comm_id(client));
    for (local_comm_id, remote_comm_id) in
        [(client_id ^ 1, server_id), (client_id, server_id ^ 1), (0, server_id), (0, 0)]
    {
        for reason in [RejectReason::ConsumerReject, RejectReason::Timeout, RejectReason::StaleConnection] {
            pair.inject_message(
                SERVER,
                Message::Rej(Rej {
                    local_comm_id,
                    remote_comm_id,
                    rejected: MessageKind::Rep,
                    reason,
                    additional_info: Default::default(),
                    private_data: Default::default(),
                }),
            );
        }
        assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
        assert_eq!(pair.sides[SERVER].poll_transmit(), None);
    }
}

#[test]
fn a_req_from_another_address_with_the_peers_guid_and_queue_pair_ends_no_connection() {
    let (mut pair, [_, server]) = Pair::connected();
    // The REQ has the GUID and queue pair of the client, but another address.
    let mut req = pair.last(CLIENT, "REQ");
    if let Message::Req(req) = &mut req.message {
        req.local_comm_id ^= 1;
    }
    pair.inject_bytes(SERVER, stranger(), &req.emit());
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
    let response = pair.sides[SERVER].poll_transmit().unwrap();
    assert_eq!(response.addrs, stranger(), "only the sender gets a response");
    assert_eq!(pair.sides[SERVER].poll_transmit(), None);
}

#[test]
fn a_rej_without_the_local_id_ends_no_established_connection() {
    let (mut pair, [client, server]) = Pair::connected();
    let Message::Req(req) = pair.last(CLIENT, "REQ").message else { panic!() };
    // The REJ has the peer's GUID and communication ID, but not the local one.
    let guid = AdditionalInfo::new(&req.ca_guid.to_be_bytes()).unwrap();
    let rej = Rej {
        local_comm_id: comm_id(client),
        remote_comm_id: 0,
        rejected: MessageKind::Other,
        reason: RejectReason::Timeout,
        additional_info: guid,
        private_data: Default::default(),
    };
    pair.inject_message(SERVER, Message::Rej(rej));
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
    assert_eq!(pair.sides[SERVER].statistics().unmatched, 1);
    let deadline = pair.deadline();
    pair.sides[SERVER].disconnect(pair.now, server, deadline).unwrap();
    pair.inject_message(SERVER, Message::Rej(rej));
    assert_eq!(pair.sides[SERVER].state(server), Some(State::DreqSent));
}

/// Returns a REQ with the GUID and queue pair of the client's established connection, for another connection.
fn stale_req(pair: &Pair, comm_id: u32) -> Mad {
    let mut mad = pair.last(CLIENT, "REQ");
    if let Message::Req(req) = &mut mad.message {
        req.local_comm_id = comm_id;
        req.service_id = adverb_wire::cm::ServiceId::tcp_port(1);
    }
    mad
}

#[test]
fn a_req_with_the_peers_queue_pair_ends_no_established_connection() {
    let (mut pair, [client, server]) = Pair::connected();
    for number in 1..100 {
        let req = stale_req(&pair, number);
        pair.inject(SERVER, &req);
        pair.advance(Duration::from_millis(50));
    }
    for (side, id) in [(CLIENT, client), (SERVER, server)] {
        assert_eq!(pair.sides[side].state(id), Some(State::Established));
        assert_eq!(pair.outcomes(side), [""; 0]);
    }
}

#[test]
fn a_stale_req_is_rejected_and_probes_at_most_once_per_response_timeout() {
    let (mut pair, [client, server]) = Pair::connected();
    let interval = pair.sides[SERVER].config().response_timeout.duration();
    let before = pair.log.len();
    for number in 1..=1000 {
        let req = stale_req(&pair, number);
        pair.inject(SERVER, &req);
    }
    pair.run();
    let probes: Vec<Dreq> = pair.log[before..]
        .iter()
        .filter_map(|(_, mad)| if let Message::Dreq(dreq) = mad.message { Some(dreq) } else { None })
        .collect();
    let [probe] = &probes[..] else { panic!("{probes:?}") };
    assert_eq!((probe.local_comm_id, probe.remote_comm_id), (comm_id(server), comm_id(client)));
    assert_eq!(probe.remote_qpn.get(), 0, "a number that no connection has");
    assert_eq!(pair.log.len() - before, 1001, "a REJ for each REQ, and one probe");
    pair.advance(interval);
    let req = stale_req(&pair, 1001);
    pair.inject(SERVER, &req);
    pair.run();
    assert_eq!(pair.sides[SERVER].statistics().probes, 2);
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
}

#[test]
fn a_drep_ends_an_established_connection_only_after_a_probe_and_with_both_ids() {
    let (mut pair, [client, server]) = Pair::connected();
    let drep = |local_comm_id, remote_comm_id| {
        Message::Drep(Drep { local_comm_id, remote_comm_id, private_data: Default::default() })
    };
    let (client_id, server_id) = (comm_id(client), comm_id(server));
    pair.inject_message(SERVER, drep(client_id, server_id));
    assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
    let req = stale_req(&pair, 5);
    pair.inject(SERVER, &req);
    for (local, remote) in
        [(client_id ^ 1, server_id), (client_id, server_id ^ 1), (client_id, 0), (0, server_id)]
    {
        pair.inject_message(SERVER, drep(local, remote));
        assert_eq!(pair.sides[SERVER].state(server), Some(State::Established));
    }
    pair.inject_message(SERVER, drep(client_id, server_id));
    assert_eq!(pair.sides[SERVER].state(server), Some(State::TimeWait));
}

#[test]
fn an_unknown_rep_is_rejected_as_invalid_comm_id() {
    let mut pair = Pair::automatic();
    pair.connect();
    pair.run();
    let Message::Rep(rep) = pair.last(SERVER, "REP").message else { panic!() };
    let mut fresh = Pair::new();
    fresh.inject_message(CLIENT, Message::Rep(Rep { remote_comm_id: 5, local_comm_id: 6, ..rep }));
    let Message::Rej(rej) = fresh.sides[CLIENT].poll_transmit().unwrap().mad.message else { panic!() };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (5, 6));
    assert_eq!((rej.rejected, rej.reason.code()), (MessageKind::Rep, 6));
}

#[test]
fn an_unknown_rtu_is_rejected_as_invalid_comm_id() {
    let mut pair = Pair::new();
    let rtu = Rtu { local_comm_id: 6, remote_comm_id: 5, private_data: Default::default() };
    pair.inject_message(SERVER, Message::Rtu(rtu));
    let Message::Rej(rej) = pair.sides[SERVER].poll_transmit().unwrap().mad.message else { panic!() };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (5, 6));
    assert_eq!((rej.rejected, rej.reason.code()), (MessageKind::Other, 6));
}

#[test]
fn an_unknown_dreq_gets_a_drep() {
    let mut pair = Pair::new();
    let remote_qpn = pair.qpn();
    let dreq = Dreq { local_comm_id: 6, remote_comm_id: 5, remote_qpn, private_data: Default::default() };
    pair.inject_message(SERVER, Message::Dreq(dreq));
    let mad = pair.sides[SERVER].poll_transmit().unwrap().mad;
    let Message::Drep(drep) = mad.message else { panic!() };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id, mad.transaction_id), (5, 6, 99));
    assert_eq!(pair.sides[SERVER].resource_counts().connections, 0);
}

#[test]
fn responses_get_no_response() {
    let mut pair = Pair::new();
    let private_data = Default::default();
    pair.inject_message(SERVER, Message::Drep(Drep { local_comm_id: 6, remote_comm_id: 5, private_data }));
    for reason in [RejectReason::Timeout, RejectReason::InvalidCommId, RejectReason::StaleConnection] {
        for remote_comm_id in [0, 5] {
            pair.inject_message(
                SERVER,
                Message::Rej(Rej {
                    local_comm_id: 6,
                    remote_comm_id,
                    rejected: MessageKind::Other,
                    reason,
                    additional_info: Default::default(),
                    private_data: Default::default(),
                }),
            );
        }
    }
    for acknowledged in [MessageKind::Req, MessageKind::Rep, MessageKind::Other, MessageKind::Reserved] {
        pair.inject_message(
            SERVER,
            Message::Mra(Mra {
                local_comm_id: 6,
                remote_comm_id: 5,
                acknowledged,
                service_timeout: Timeout::MAX,
                private_data: Default::default(),
            }),
        );
    }
    assert_eq!(pair.sides[SERVER].poll_transmit(), None);
    assert_eq!(pair.sides[SERVER].poll_event(), None);
}

#[test]
fn a_message_gets_at_most_one_response() {
    // Every message that was sent is delivered again to both sides, from the peer and from another address, in several
    // states.
    let (mut pair, [client, _]) = Pair::connected();
    let deadline = pair.deadline();
    pair.sides[CLIENT].disconnect(pair.now, client, deadline).unwrap();
    pair.run();
    let log = pair.log.clone();
    for round in 0..3 {
        for (_, mad) in &log {
            for side in [CLIENT, SERVER] {
                for addrs in [addrs(side), AddrPair { local: address(side), remote: [10, 66, 66, 66].into() }]
                {
                    pair.inject_bytes(side, addrs, &mad.emit());
                    let responses = std::iter::from_fn(|| pair.sides[side].poll_transmit()).count();
                    assert!(responses <= 1, "{responses} to {}", mad.message);
                }
            }
        }
        pair.advance(seconds([1, 10, 100][round]));
    }
}

#[test]
fn an_mra_does_not_extend_the_deadline() {
    let mut pair = Pair::new();
    let id = pair.connect();
    pair.run();
    let server = pair.expect_request().id;
    pair.filter = Box::new(|_, _| Delivery::Lose);
    pair.inject_message(
        CLIENT,
        Message::Mra(Mra {
            local_comm_id: comm_id(server),
            remote_comm_id: comm_id(id),
            acknowledged: MessageKind::Req,
            service_timeout: Timeout::MAX,
            private_data: Default::default(),
        }),
    );
    pair.advance(seconds(5));
    assert_eq!(pair.event(CLIENT), Some(Event::Unreachable(id)));
}

#[test]
fn a_constant_generator_still_yields_different_ids() {
    let mut pair = Pair::new();
    for random in [0, 1, u32::MAX] {
        let (first, second) = (pair.request(), pair.request());
        let first = pair.sides[CLIENT].connect(pair.now, &first, &mut || random).unwrap();
        let second = pair.sides[CLIENT].connect(pair.now, &second, &mut || random).unwrap();
        assert_ne!(first, second);
        assert!(comm_id(first) != 0 && comm_id(second) != 0);
    }
}
