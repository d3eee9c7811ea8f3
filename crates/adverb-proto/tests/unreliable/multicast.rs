//! Multicast datagrams.

use std::net::IpAddr;

use adverb_proto::types::{Destination, Gid, Qpn, SendFlags, SendOperation, SendRequest, Transport};
use adverb_proto::{DropReason, Init, MulticastError, Path, QpConfig, ReadyToSend, Transition};
use adverb_wire::{GRH_LEN, Header, IpHeader, Operation, Psn, Rc, Send, Ud};

use crate::harness::{ADDR, End, Options, QKEY, solo_with};

const GROUP: &str = "239.1.2.3";

fn solo() -> End {
    solo_with(&Options { transport: Transport::Ud, ..Options::default() })
}

fn group() -> Gid {
    Gid::from(GROUP.parse::<IpAddr>().unwrap())
}

/// Creates another datagram queue pair of the end's device, with a receive at `offset`.
fn create_datagram_qp(end: &mut End, qkey: u32, wr_id: u64, offset: u64) -> Qpn {
    let config = QpConfig::ud(end.pd, end.cq, end.cq);
    let random = end.rng();
    let qpn = end.device.create_qp(config, random).unwrap();
    let ready_to_send = Transition::ReadyToSend(ReadyToSend::unreliable(Psn::ZERO));
    for transition in [Transition::Init(Init::datagrams(qkey)), Transition::ReadyToReceiveUd, ready_to_send] {
        end.device.modify_qp(end.now, qpn, &transition).unwrap();
    }
    let segments = [end.segment(offset, 256)];
    let request = adverb_proto::types::RecvRequest { wr_id, tag: 0, segments: &segments };
    end.device.post_recv(end.now, qpn, &request).unwrap();
    qpn
}

/// Delivers a datagram to the group, for all its members.
fn deliver_multicast(end: &mut End, payload: &[u8]) {
    deliver_to_group(end, Qpn::MULTICAST, payload);
}

/// Delivers a datagram that was sent to the group's address, for queue pair `qpn`.
fn deliver_to_group(end: &mut End, qpn: Qpn, payload: &[u8]) {
    let datagram = Ud { qkey: QKEY, source_qp: Qpn::truncate(5), immediate: None };
    let header = Header::new(qpn, Psn::ZERO, Operation::Ud(datagram));
    let address = end.address;
    end.address = GROUP.parse().unwrap();
    let bytes = end.forge(&header, payload);
    end.deliver(&bytes);
    end.address = address;
}

#[test]
fn datagram_to_a_group_is_delivered_to_every_attached_queue_pair() {
    let mut end = solo();
    let members = [create_datagram_qp(&mut end, QKEY, 1, 0), create_datagram_qp(&mut end, QKEY, 2, 512)];
    let unattached = create_datagram_qp(&mut end, QKEY, 3, 1024);
    for qpn in members {
        end.device.attach_multicast(qpn, group()).unwrap();
    }
    deliver_multicast(&mut end, b"to all");
    let completions = end.completions();
    let received: Vec<_> = completions.iter().map(|completion| (completion.wr_id, completion.qpn)).collect();
    assert_eq!(received, [(1, members[0]), (2, members[1])]);
    assert_eq!(end.bytes(GRH_LEN, 6), b"to all");
    assert_eq!(end.bytes(512 + GRH_LEN, 6), b"to all");
    assert_eq!(end.device.query_qp(unattached).unwrap().recv_queue_len, 1);
}

#[test]
fn grh_contains_the_group() {
    let mut end = solo();
    let qpn = create_datagram_qp(&mut end, QKEY, 1, 0);
    end.device.attach_multicast(qpn, group()).unwrap();
    deliver_multicast(&mut end, b"hello");
    let grh: [u8; GRH_LEN] = end.bytes(0, GRH_LEN).try_into().unwrap();
    assert_eq!(IpHeader::from_grh(&grh).unwrap().destination().to_string(), GROUP);
}

#[test]
fn member_with_another_queue_key_receives_nothing() {
    let mut end = solo();
    let (matching, mismatched) =
        (create_datagram_qp(&mut end, QKEY, 1, 0), create_datagram_qp(&mut end, QKEY ^ 1, 2, 512));
    for qpn in [mismatched, matching] {
        end.device.attach_multicast(qpn, group()).unwrap();
    }
    deliver_multicast(&mut end, b"hello");
    assert_eq!(end.completions().len(), 1);
    assert_eq!(end.device.statistics().qkey_violations, 1);
}

#[test]
fn member_without_a_receive_does_not_affect_others() {
    let mut end = solo();
    let qpn = create_datagram_qp(&mut end, QKEY, 1, 0);
    end.device.attach_multicast(end.qpn, group()).unwrap();
    end.device.attach_multicast(qpn, group()).unwrap();
    deliver_multicast(&mut end, b"hello");
    assert_eq!(end.completions().len(), 1);
    assert_eq!(end.drops(), [DropReason::NoReceivePosted]);
}

#[test]
fn datagram_to_a_group_without_members_is_dropped() {
    let mut end = solo();
    deliver_multicast(&mut end, b"hello");
    assert_eq!(end.drops(), [DropReason::NoMulticastMember]);
}

#[test]
fn datagram_to_a_group_for_one_queue_pair_is_dropped() {
    let mut end = solo();
    let qpn = create_datagram_qp(&mut end, QKEY, 1, 0);
    let mut gsi = QpConfig::ud(end.pd, end.cq, end.cq);
    gsi.max_recv_wr = 1;
    end.device.create_gsi(gsi).unwrap();
    let ready_to_send = Transition::ReadyToSend(ReadyToSend::unreliable(Psn::ZERO));
    for transition in [Transition::Init(Init::datagrams(QKEY)), Transition::ReadyToReceiveUd, ready_to_send] {
        end.device.modify_qp(end.now, Qpn::GSI, &transition).unwrap();
    }
    let segments = [end.segment(512, 256)];
    let request = adverb_proto::types::RecvRequest { wr_id: 2, tag: 0, segments: &segments };
    end.device.post_recv(end.now, Qpn::GSI, &request).unwrap();
    end.device.attach_multicast(qpn, group()).unwrap();
    for single in [Qpn::GSI, qpn, Qpn::truncate(0x123456)] {
        deliver_to_group(&mut end, single, b"hello");
    }
    assert_eq!(end.completions().len(), 0);
    assert_eq!(end.drops(), [DropReason::WrongAddress; 3]);
    assert_eq!(end.device.statistics().wrong_address_packets, 3);
    deliver_multicast(&mut end, b"hello");
    assert_eq!(end.completions().len(), 1, "the member receives the datagram to the group");
}

#[test]
fn detached_queue_pair_receives_nothing() {
    let mut end = solo();
    let qpn = create_datagram_qp(&mut end, QKEY, 1, 0);
    end.device.attach_multicast(qpn, group()).unwrap();
    end.device.detach_multicast(qpn, group()).unwrap();
    deliver_multicast(&mut end, b"hello");
    assert_eq!(end.completions().len(), 0);
    assert_eq!(end.device.detach_multicast(qpn, group()), Err(MulticastError::NotAttached));
}

#[test]
fn destroyed_queue_pair_is_in_no_group() {
    let mut end = solo();
    let qpn = create_datagram_qp(&mut end, QKEY, 1, 0);
    end.device.attach_multicast(qpn, group()).unwrap();
    assert_eq!(end.device.resource_counts().multicast_groups, 1);
    end.device.destroy_qp(qpn);
    assert_eq!(end.device.resource_counts().multicast_groups, 0);
    let later = create_datagram_qp(&mut end, QKEY, 2, 0);
    deliver_multicast(&mut end, b"hello");
    assert_eq!(
        end.device.query_qp(later).unwrap().recv_queue_len,
        1,
        "the queue pair that reuses its slot is not attached"
    );
}

#[test]
fn reset_queue_pair_stays_attached() {
    let mut end = solo();
    let qpn = create_datagram_qp(&mut end, QKEY, 1, 0);
    end.device.attach_multicast(qpn, group()).unwrap();
    end.device.modify_qp(end.now, qpn, &Transition::Reset).unwrap();
    deliver_multicast(&mut end, b"hello");
    assert_eq!(end.drops(), [DropReason::WrongState]);
    for transition in [Transition::Init(Init::datagrams(QKEY)), Transition::ReadyToReceiveUd] {
        end.device.modify_qp(end.now, qpn, &transition).unwrap();
    }
    deliver_multicast(&mut end, b"hello");
    assert_eq!(end.drops(), [DropReason::WrongState, DropReason::NoReceivePosted]);
}

#[test]
fn only_datagram_queue_pairs_attach_to_groups_and_only_once() {
    let mut end = solo();
    let config = QpConfig::rc(end.pd, end.cq, end.cq);
    let random = end.rng();
    let connection = end.device.create_qp(config, random).unwrap();
    let attached = end.device.attach_multicast(connection, group());
    assert_eq!(attached, Err(MulticastError::UnsupportedTransport(Transport::Rc)));
    let unicast = Gid::from("10.0.0.1".parse::<IpAddr>().unwrap());
    assert_eq!(end.device.attach_multicast(end.qpn, unicast), Err(MulticastError::NotMulticast));
    let unknown_qpn = Qpn::truncate(0x55);
    assert_eq!(end.device.attach_multicast(unknown_qpn, group()), Err(MulticastError::UnknownQp));
    assert_eq!(end.device.attach_multicast(end.qpn, group()), Ok(()));
    assert_eq!(end.device.attach_multicast(end.qpn, group()), Err(MulticastError::AlreadyAttached));
    let v6 = Gid::from("ff05::17".parse::<IpAddr>().unwrap());
    assert_eq!(end.device.attach_multicast(end.qpn, v6), Ok(()));
}

#[test]
fn message_of_a_connection_to_the_multicast_qpn_is_dropped() {
    let mut end = solo();
    end.device.attach_multicast(end.qpn, group()).unwrap();
    let header = Header::new(Qpn::MULTICAST, Psn::ZERO, Operation::Rc(Rc::Send(Send::Only(None))));
    end.address = GROUP.parse().unwrap();
    let bytes = end.forge(&header, b"hello");
    end.deliver(&bytes);
    assert_eq!(end.drops(), [DropReason::WrongTransport]);
}

#[test]
fn corrupt_datagram_to_a_group_is_dropped() {
    let mut end = solo();
    let qpn = create_datagram_qp(&mut end, QKEY, 1, 0);
    end.device.attach_multicast(qpn, group()).unwrap();
    let datagram = Ud { qkey: QKEY, source_qp: Qpn::truncate(5), immediate: None };
    let header = Header::new(Qpn::MULTICAST, Psn::ZERO, Operation::Ud(datagram));
    end.address = GROUP.parse().unwrap();
    let mut bytes = end.forge(&header, b"hello");
    bytes[21] ^= 4;
    end.deliver(&bytes);
    assert_eq!(end.drops(), [DropReason::WrongIcrc]);
    assert_eq!(end.completions().len(), 0);
}

#[test]
fn datagram_to_a_group_is_sent_to_its_address_and_the_multicast_qpn() {
    let mut end = solo();
    let path = Path::new(end.address, GROUP.parse().unwrap(), 0xc001).unwrap();
    let segments = [adverb_proto::types::Segment { addr: ADDR, length: 4, lkey: end.key }];
    let request = SendRequest {
        wr_id: 1,
        tag: 0,
        operation: SendOperation::Send,
        flags: SendFlags::empty(),
        segments: &segments,
        destination: Some(Destination { handle: path, qpn: Qpn::MULTICAST, qkey: QKEY }),
    };
    end.device.post_send(end.now, end.qpn, &request).unwrap();
    let transmit = end.device.poll_transmit(end.now).unwrap();
    assert_eq!(transmit.header.dest_qp, Qpn::MULTICAST);
    assert_eq!(transmit.path.remote().to_string(), GROUP);
}
