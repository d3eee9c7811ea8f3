//! The checks of a packet before its queue pair handles it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use adverb_proto::{DropReason, IcrcCheck, Init, RxMeta, TraceEvent, Transition};
use adverb_wire::{
    Flow, Header, MAX_HEADER_LEN, Operation, Psn, Qpn, ROCE_PORT, Rc, Reth, Send, Uc, Ud, Write,
};

use crate::harness::{ADDR, End, Options, PSN, solo};

fn write(end: &End) -> Header {
    let reth = Reth { va: ADDR, rkey: end.key, length: 4 };
    Header::new(end.qpn, Psn::wrapping(PSN), Operation::Rc(Rc::Write(Write::Only(reth, None))))
}

#[track_caller]
fn assert_dropped(end: &End, reason: DropReason) {
    let last = end.device.sink().iter().rev().find_map(|(_, event)| match event {
        TraceEvent::Dropped { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(last, Some(reason));
    assert_ne!(end.bytes(0, 4), b"abcd");
}

#[test]
fn packet_for_an_unknown_queue_pair_is_dropped() {
    let mut end = solo();
    let header = Header { dest_qp: Qpn::truncate(end.qpn.get() ^ 1), ..write(&end) };
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_dropped(&end, DropReason::UnknownQp);
}

#[test]
fn packet_from_another_address_is_dropped() {
    let mut end = solo();
    let bytes = end.forge(&write(&end), b"abcd");
    let mut rx_meta = end.rx_meta();
    rx_meta.source.set_ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)));
    end.deliver_as(&rx_meta, &bytes);
    assert_dropped(&end, DropReason::WrongAddress);
}

#[test]
fn packet_to_another_address_is_dropped() {
    let mut end = solo();
    let bytes = end.forge(&write(&end), b"abcd");
    let rx_meta = RxMeta { destination: "10.0.0.9:4791".parse().unwrap(), ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
    assert_dropped(&end, DropReason::WrongAddress);
}

#[test]
fn packet_of_another_partition_is_dropped() {
    let mut end = solo();
    let header = Header { pkey: 0x8001, ..write(&end) };
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_dropped(&end, DropReason::WrongPkey);
}

#[test]
fn limited_members_may_send_only_to_full_members() {
    let mut end = solo();
    let header = Header { pkey: 0x7fff, ..write(&end) };
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_eq!(end.bytes(0, 4), b"abcd");

    let options = Options::default();
    let mut end = End::new(1, 2, &options);
    let init = Init { pkey: 0x7fff, ..Init::new(options.access) };
    end.modify(Transition::Init(init));
    let ready_to_receive = end.ready_to_receive(Qpn::truncate(0x77), &options);
    end.modify(ready_to_receive);
    let header = Header { pkey: 0x7fff, ..write(&end) };
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_dropped(&end, DropReason::WrongPkey);
}

#[test]
fn every_flipped_bit_that_the_icrc_covers_is_detected() {
    let mut end = solo();
    let good = end.forge(&write(&end), b"abcd");
    for bit in 0..good.len() * 8 {
        // FECN, BECN and the adjacent reserved bits may change in transit.
        if bit / 8 == 4 {
            continue;
        }
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(packet) = adverb_wire::Packet::parse(&bytes) {
            let rx_meta = end.rx_meta();
            end.device.handle_packet(end.now, &rx_meta, &packet, &mut end.memory);
        }
        assert_ne!(end.bytes(0, 4), b"abcd", "bit {bit}");
    }
    assert_eq!(end.sent(), []);
    assert!(end.device.statistics().icrc_errors > 100);
    end.deliver(&good);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn icrc_covers_the_ports_and_the_ip_id() {
    let mut end = solo();
    let bytes = end.forge(&write(&end), b"abcd");
    let mut rx_meta = end.rx_meta();
    rx_meta.source.set_port(0xc124);
    end.deliver_as(&rx_meta, &bytes);
    assert_dropped(&end, DropReason::WrongIcrc);
    let rx_meta = RxMeta { icrc: IcrcCheck::IpId(1), ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
    assert_dropped(&end, DropReason::WrongIcrc);
}

#[test]
fn unknown_ip_id_is_recovered() {
    let mut end = solo();
    let flow = Flow::new(SocketAddr::new(end.peer, 0xc123), SocketAddr::new(end.address, ROCE_PORT)).unwrap();
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(&write(&end), 0x5678, &[b"abcd"], &mut head).unwrap();
    let bytes = [&head[..emitted.header_len], b"abcd", &emitted.trailer].concat();
    let rx_meta = end.rx_meta();
    end.deliver_as(&rx_meta, &bytes);
    assert_dropped(&end, DropReason::WrongIcrc);
    let rx_meta = RxMeta { icrc: IcrcCheck::IpIdBelow(0x5678), ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
    assert_dropped(&end, DropReason::WrongIcrc);
    let rx_meta = RxMeta { icrc: IcrcCheck::AnyIpId, ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn ip_id_below_the_limit_is_accepted() {
    let mut end = solo();
    let bytes = end.forge(&write(&end), b"abcd");
    let rx_meta = RxMeta { icrc: IcrcCheck::IpIdBelow(1), ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn trusted_packets_are_not_checked() {
    let mut end = solo();
    let mut bytes = end.forge(&write(&end), b"abcd");
    *bytes.last_mut().unwrap() ^= 1;
    let rx_meta = RxMeta { icrc: IcrcCheck::Trusted, ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
    assert_eq!(end.bytes(0, 4), b"abcd");
}

#[test]
fn both_migration_states_are_accepted() {
    for migrated in [false, true] {
        let mut end = solo();
        let header = Header { migrated, ..write(&end) };
        let bytes = end.forge(&header, b"abcd");
        end.deliver(&bytes);
        assert_eq!(end.bytes(0, 4), b"abcd");
    }
}

#[test]
fn packets_of_other_transports_are_dropped() {
    let reth = |end: &End| Reth { va: ADDR, rkey: end.key, length: 4 };
    let ud = Ud { qkey: 1, source_qp: Qpn::truncate(0x77), immediate: None };
    for index in 0..3 {
        let mut end = solo();
        let operation = match index {
            0 => Operation::Uc(Uc::Write(Write::Only(reth(&end), None))),
            1 => Operation::Uc(Uc::Send(Send::Only(None))),
            _ => Operation::Ud(ud),
        };
        let bytes = end.forge(&Header { operation, ..write(&end) }, b"abcd");
        end.deliver(&bytes);
        assert_dropped(&end, DropReason::WrongTransport);
    }
}

#[test]
fn cnp_is_counted_and_changes_nothing() {
    let mut end = solo();
    let bytes = end.forge(&Header::cnp(end.qpn), &[]);
    end.deliver(&bytes);
    assert_eq!(end.device.statistics().cnps_received, 1);
    assert_eq!(end.sent(), []);
}

#[test]
fn packets_before_rtr_are_dropped() {
    let options = Options::default();
    let mut end = End::new(1, 2, &options);
    let bytes = end.forge(&write(&end), b"abcd");
    end.deliver(&bytes);
    assert_dropped(&end, DropReason::WrongState);
    end.move_to_init(&options);
    end.deliver(&bytes);
    assert_dropped(&end, DropReason::WrongState);
}

#[test]
fn addresses_are_checked_before_the_icrc() {
    let mut end = solo();
    let mut bytes = end.forge(&write(&end), b"abcd");
    *bytes.last_mut().unwrap() ^= 1;
    let mut rx_meta = end.rx_meta();
    rx_meta.source.set_ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)));
    end.deliver_as(&rx_meta, &bytes);
    assert_dropped(&end, DropReason::WrongAddress);
    assert_eq!(end.device.statistics().icrc_errors, 0);
}

#[test]
fn icrc_is_checked_before_the_sequence_number() {
    let mut end = solo();
    let header = Header { psn: Psn::wrapping(PSN) + 5, ..write(&end) };
    let mut bytes = end.forge(&header, b"abcd");
    *bytes.last_mut().unwrap() ^= 1;
    end.deliver(&bytes);
    assert_eq!(end.sent(), [], "no NAK for a corrupt packet");
}

#[test]
fn sequence_number_is_checked_before_access() {
    let mut end = solo();
    let reth = Reth { va: 0, rkey: 0, length: 4 };
    let sent = end.exchange(3, Rc::Write(Write::Only(reth, None)), b"abcd");
    assert_eq!(sent, [(crate::harness::nak(adverb_wire::NakCode::SequenceError, 0), 0)]);
}
