//! The handling of forged datagrams by a datagram queue pair.

use std::net::{IpAddr, SocketAddr};

use adverb_proto::memory::Pd;
use adverb_proto::types::{ArmFor, CompletedOperation, Gid, QpState, Qpn, RecvRequest, Status, Transport};
use adverb_proto::{DropReason, IcrcCheck, Init, ModifyError, PostError, QueueEvent, RxMeta, Transition};
use adverb_wire::{
    Flow, GRH_LEN, Header, IpHeader, MAX_HEADER_LEN, Operation, Psn, ROCE_PORT, Rc, Send, Uc, Ud,
};

use crate::harness::{End, Options, QKEY, pattern, solo_with};

fn options() -> Options {
    Options { transport: Transport::Ud, ..Options::default() }
}

fn solo() -> End {
    solo_with(&options())
}

fn datagram() -> Ud {
    Ud { qkey: QKEY, source_qp: Qpn::truncate(0x4567), immediate: None }
}

#[test]
fn payload_follows_forty_bytes() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    end.receive_datagram(datagram(), b"hello");
    assert_eq!(end.bytes(GRH_LEN, 5), b"hello");
    let completion = end.completions()[0];
    assert_eq!(completion.outcome.unwrap().length, 45);
}

#[test]
fn completion_has_the_sender_and_the_immediate_data() {
    let mut end = solo();
    for immediate in [None, Some(0), Some(u32::MAX)] {
        end.post_recv(1, 0, 256);
        end.receive_datagram(Ud { immediate, ..datagram() }, b"hello");
        let expected = CompletedOperation::Recv {
            immediate,
            invalidated: None,
            source: Some(Qpn::truncate(0x4567)),
            has_grh: true,
        };
        assert_eq!(end.completions()[0].outcome.unwrap().operation, expected);
    }
}

#[test]
fn grh_of_ipv4_is_in_the_last_twenty_bytes_and_the_first_are_zero() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    end.receive_datagram(datagram(), b"hello");
    let grh: [u8; GRH_LEN] = end.bytes(0, GRH_LEN).try_into().unwrap();
    assert_eq!(grh[..20], [0; 20]);
    assert_eq!(grh[20], 0x45);
    let ip = IpHeader::from_grh(&grh).unwrap();
    assert_eq!((ip.source(), ip.destination()), (end.peer, end.address));
    // The length includes the IP header, the UDP header, the base header, the datagram header, five bytes padded to
    // eight, and the ICRC.
    let length = 20 + 8 + 12 + 8 + 8 + 4;
    assert_eq!(u16::from_be_bytes([grh[22], grh[23]]), length);
    let sum: u32 = grh[20..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    assert_eq!(sum % 0xffff, 0, "the checksum is correct");
}

#[test]
fn grh_of_ipv6_is_its_whole_header() {
    let mut end = solo();
    let (peer, address): (IpAddr, IpAddr) = ("fd77::2".parse().unwrap(), "fd77::1".parse().unwrap());
    (end.peer, end.address) = (peer, address);
    end.post_recv(1, 0, 256);
    end.receive_datagram(datagram(), b"hello!!!");
    let grh: [u8; GRH_LEN] = end.bytes(0, GRH_LEN).try_into().unwrap();
    assert_eq!(grh[0] >> 4, 6);
    let ip = IpHeader::from_grh(&grh).unwrap();
    assert_eq!((ip.source(), ip.destination()), (peer, address));
    assert_eq!(u16::from_be_bytes([grh[4], grh[5]]), 8 + 12 + 8 + 8 + 4);
    assert_eq!(end.bytes(GRH_LEN, 8), b"hello!!!");
}

#[test]
fn grh_has_the_ports_of_devices_with_their_own_port() {
    let (default_source, port_source) = ("10.0.0.2:49443".parse().unwrap(), "10.0.0.2:4792".parse().unwrap());
    let (default_destination, port_destination) =
        ("10.0.0.1:4791".parse().unwrap(), "10.0.0.1:4800".parse().unwrap());
    for (source, destination) in [
        (default_source, port_destination),
        (port_source, default_destination),
        (port_source, port_destination),
    ] {
        let mut end = solo();
        end.post_recv(1, 0, 256);
        let header = Header::new(end.qpn, Psn::ZERO, Operation::Ud(datagram()));
        let flow = Flow::new(source, destination).unwrap();
        let mut head = [0; MAX_HEADER_LEN];
        let emitted = flow.emit(&header, 0, &[b"abcd"], &mut head).unwrap();
        let bytes = [&head[..emitted.header_len], b"abcd", &emitted.trailer].concat();
        let rx_meta = RxMeta { source, destination, ..end.rx_meta() };
        // The ICRC covers the ports.
        let other_rx_meta = RxMeta { destination: SocketAddr::new(destination.ip(), 4900), ..rx_meta };
        end.deliver_as(&other_rx_meta, &bytes);
        assert_eq!(end.device.statistics().icrc_errors, 1);
        end.deliver_as(&rx_meta, &bytes);
        let grh: [u8; GRH_LEN] = end.bytes(0, GRH_LEN).try_into().unwrap();
        let ip = IpHeader::from_grh(&grh).unwrap();
        assert_eq!(
            (Gid::from(ip.source()), Gid::from(ip.destination())),
            (source.into(), destination.into())
        );
        assert_eq!(end.bytes(GRH_LEN, 4), b"abcd");
    }
}

#[test]
fn grh_has_the_known_ip_id() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    let header = Header::new(end.qpn, Psn::ZERO, Operation::Ud(datagram()));
    let flow = Flow::new(SocketAddr::new(end.peer, 0xc123), SocketAddr::new(end.address, ROCE_PORT)).unwrap();
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(&header, 0x1234, &[b"abcd"], &mut head).unwrap();
    let bytes = [&head[..emitted.header_len], b"abcd", &emitted.trailer].concat();
    let rx_meta = RxMeta { icrc: IcrcCheck::IpId(0x1234), ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
    assert_eq!(end.bytes(24, 2), [0x12, 0x34]);
}

#[test]
fn grh_has_the_ecn_mark() {
    for (peer, address) in [("10.0.0.2", "10.0.0.1"), ("fd77::2", "fd77::1")] {
        for is_ecn_marked in [false, true] {
            let mut end = solo();
            (end.peer, end.address) = (peer.parse().unwrap(), address.parse().unwrap());
            end.post_recv(1, 0, 256);
            let header = Header::new(end.qpn, Psn::ZERO, Operation::Ud(datagram()));
            let bytes = end.forge(&header, b"abcd");
            let rx_meta = RxMeta { is_ecn_marked, ..end.rx_meta() };
            end.deliver_as(&rx_meta, &bytes);
            let grh: [u8; GRH_LEN] = end.bytes(0, GRH_LEN).try_into().unwrap();
            let marks = IpHeader::from_grh(&grh).unwrap().traffic_class();
            assert_eq!(marks, if is_ecn_marked { 3 } else { 0 });
        }
    }
}

#[test]
fn datagram_of_any_length_up_to_the_mtu_is_delivered() {
    let mut end = solo();
    for length in [0, 1, 2, 3, 4, 1000, 4095, 4096] {
        end.post_recv(1, 0, 8192);
        let payload = pattern(length, 3);
        end.receive_datagram(datagram(), &payload);
        assert_eq!(end.bytes(GRH_LEN, length), payload);
        assert_eq!(end.completions()[0].outcome.unwrap().length as usize, GRH_LEN + length);
    }
}

#[test]
fn datagram_longer_than_the_mtu_is_dropped() {
    let mut end = solo();
    end.post_recv(1, 0, 8192);
    end.receive_datagram(datagram(), &pattern(4100, 3));
    assert_eq!(end.drops(), [DropReason::MessageTooLong]);
    assert_eq!(end.statuses(), []);
}

#[test]
fn datagram_longer_than_its_receive_is_dropped_and_the_receive_stays() {
    let mut end = solo();
    end.post_recv(1, 0, 50);
    end.receive_datagram(datagram(), b"eleven long");
    assert_eq!(end.drops(), [DropReason::MessageTooLong]);
    end.receive_datagram(datagram(), b"ten is it!");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.device.statistics().messages_dropped, 1);
}

#[test]
fn datagram_with_another_queue_key_is_dropped_and_counted() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    for qkey in [0, QKEY ^ 1, QKEY ^ 0x8000_0000, u32::MAX] {
        end.receive_datagram(Ud { qkey, ..datagram() }, b"hello");
    }
    assert_eq!(end.drops(), [DropReason::WrongQkey; 4]);
    assert_eq!(end.statuses(), []);
    assert_eq!(end.device.statistics().qkey_violations, 4);
    assert_eq!(end.state(), QpState::ReadyToSend);
    end.receive_datagram(datagram(), b"hello");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn datagram_without_a_receive_is_dropped_and_counted() {
    let mut end = solo();
    end.receive_datagram(datagram(), b"lost");
    assert_eq!(end.drops(), [DropReason::NoReceivePosted]);
    assert_eq!(end.device.statistics().messages_dropped, 1);
    end.post_recv(1, 0, 256);
    end.receive_datagram(datagram(), b"came");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn receive_shorter_than_the_grh_is_rejected() {
    let mut end = solo();
    let segments = [end.segment(0, 39)];
    let request = RecvRequest { wr_id: 1, tag: 0, segments: &segments };
    assert_eq!(end.device.post_recv(end.now, end.qpn, &request), Err(PostError::InvalidLength));
    let segments = [end.segment(0, 20), end.segment(64, 20)];
    let request = RecvRequest { wr_id: 1, tag: 0, segments: &segments };
    assert_eq!(end.device.post_recv(end.now, end.qpn, &request), Ok(()));
}

#[test]
fn grh_and_payload_are_scattered_over_segments() {
    let mut end = solo();
    let segments = [end.segment(0, 30), end.segment(100, 12), end.segment(200, 64)];
    let request = RecvRequest { wr_id: 1, tag: 0, segments: &segments };
    end.device.post_recv(end.now, end.qpn, &request).unwrap();
    end.receive_datagram(datagram(), b"abcdef");
    assert_eq!(end.bytes(110, 2), b"ab");
    assert_eq!(end.bytes(200, 4), b"cdef");
}

#[test]
fn datagrams_are_accepted_from_any_address() {
    let mut end = solo();
    for (id, host) in ["10.0.0.9", "192.0.2.1", "10.0.0.9"].into_iter().enumerate() {
        end.peer = host.parse().unwrap();
        end.post_recv(id as u64, 0, 256);
        end.receive_datagram(datagram(), b"hello");
        let grh: [u8; GRH_LEN] = end.bytes(0, GRH_LEN).try_into().unwrap();
        assert_eq!(IpHeader::from_grh(&grh).unwrap().source(), end.peer);
    }
    assert_eq!(end.statuses().len(), 3);
}

#[test]
fn sequence_numbers_of_datagrams_are_ignored() {
    let mut end = solo();
    for psn in [5, 5, 4, 0xff_ffff, 0] {
        end.post_recv(1, 0, 256);
        let header = Header::new(end.qpn, Psn::wrapping(psn), Operation::Ud(datagram()));
        let bytes = end.forge(&header, b"x");
        end.deliver(&bytes);
    }
    assert_eq!(end.statuses().len(), 5);
}

#[test]
fn corrupt_datagram_is_dropped() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    let header = Header::new(end.qpn, Psn::ZERO, Operation::Ud(datagram()));
    let mut bytes = end.forge(&header, b"hello");
    bytes[22] ^= 1;
    end.deliver(&bytes);
    assert_eq!(end.drops(), [DropReason::WrongIcrc]);
    // A datagram whose addresses changed in transit is corrupt, too.
    let bytes = end.forge(&header, b"hello");
    let rx_meta = RxMeta { source: "10.0.0.99:49443".parse().unwrap(), ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
    assert_eq!(end.drops(), [DropReason::WrongIcrc; 2]);
}

#[test]
fn datagram_of_another_partition_is_dropped() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    let mut header = Header::new(end.qpn, Psn::ZERO, Operation::Ud(datagram()));
    header.pkey = 0x1234;
    let bytes = end.forge(&header, b"hello");
    end.deliver(&bytes);
    assert_eq!(end.drops(), [DropReason::WrongPkey]);
}

#[test]
fn messages_of_connections_are_dropped() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    end.receive(0, Rc::Send(Send::Only(None)), b"abcd");
    end.receive_uc(0, Uc::Send(Send::Only(None)), b"abcd");
    assert_eq!(end.drops(), [DropReason::WrongTransport; 2]);
}

#[test]
fn solicited_datagram_generates_an_event_on_a_queue_armed_for_solicited() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    end.post_recv(2, 0, 256);
    end.device.arm_cq(end.cq, ArmFor::Solicited);
    end.receive_datagram(datagram(), b"abcd");
    assert_eq!(end.cq_events(), []);
    let mut header = Header::new(end.qpn, Psn::ZERO, Operation::Ud(datagram()));
    header.solicited = true;
    let bytes = end.forge(&header, b"abcd");
    end.deliver(&bytes);
    assert_eq!(end.cq_events(), [end.cq]);
}

#[test]
fn receive_into_wrong_memory_fails_the_queue_pair() {
    let mut end = solo();
    let other: Pd = end.device.create_domain();
    let key = end.register_with(other, crate::harness::ALL, adverb_proto::memory::RemoteInvalidate::Denied);
    let mut segment = end.segment(0, 64);
    segment.lkey = key;
    let request = RecvRequest { wr_id: 1, tag: 0, segments: &[segment] };
    end.device.post_recv(end.now, end.qpn, &request).unwrap();
    end.receive_datagram(datagram(), b"abcd");
    assert_eq!(end.statuses(), [(1, Status::LocalProtection)]);
    assert_eq!(end.state(), QpState::Error);
    assert_eq!(end.queue_events(), [QueueEvent::Fatal(end.qpn)]);
}

#[test]
fn nothing_is_received_before_ready_and_in_error() {
    let mut end = End::new(1, 2, &options());
    end.modify(Transition::Init(Init::datagrams(QKEY)));
    end.post_recv(1, 0, 256);
    end.receive_datagram(datagram(), b"abcd");
    end.modify(Transition::ReadyToReceiveUd);
    end.receive_datagram(datagram(), b"abcd");
    assert_eq!(end.statuses(), [(1, Status::Success)], "the state ready to receive suffices");
    end.modify(Transition::Error);
    end.receive_datagram(datagram(), b"abcd");
    assert_eq!(end.drops(), [DropReason::WrongState; 2]);
}

#[test]
fn datagram_queue_pair_rejects_the_transition_of_connections() {
    let mut end = End::new(1, 2, &options());
    end.modify(Transition::Init(Init::datagrams(QKEY)));
    let connected = end.ready_to_receive(end.qpn, &Options { transport: Transport::Uc, ..options() });
    let modified = end.device.modify_qp(end.now, end.qpn, &connected);
    assert_eq!(modified, Err(ModifyError::WrongState(QpState::Init)));
}

#[test]
fn error_flushes_receives() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    end.post_recv(2, 0, 256);
    end.modify(Transition::Error);
    assert_eq!(end.statuses(), [(1, Status::Flushed), (2, Status::Flushed)]);
    end.post_recv(3, 0, 256);
    assert_eq!(end.statuses(), [(3, Status::Flushed)]);
}

#[test]
fn split_datagram_is_received_like_a_contiguous_one() {
    let mut end = solo();
    end.post_recv(1, 0, 256);
    let header = Header::new(end.qpn, Psn::ZERO, Operation::Ud(datagram()));
    let rx_meta = end.rx_meta();
    end.device.handle_split_packet(end.now, &rx_meta, &header, b"parts", &mut end.memory);
    assert_eq!(end.bytes(GRH_LEN, 5), b"parts");
    let grh: [u8; GRH_LEN] = end.bytes(0, GRH_LEN).try_into().unwrap();
    assert_eq!(
        u16::from_be_bytes([grh[22], grh[23]]),
        20 + 8 + 12 + 8 + 8 + 4,
        "the length includes all headers"
    );
}
