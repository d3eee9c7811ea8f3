//! Packets of a datagram queue pair, datagrams between two ends, queue pair 1, and the port's MTU.

use adverb_proto::types::{
    Destination, PathMtu, QpState, Qpn, RemoteAddress, SendFlags, SendOperation, SendRequest, Status,
    Transport,
};
use adverb_proto::{CreateQpError, Device, Init, ModifyError, Path, PostError, QpConfig, Transition};
use adverb_wire::cm::GSI_QKEY;
use adverb_wire::{GRH_LEN, Operation, Ud};

use crate::harness::{End, Options, PSN, Pair, QKEY, pattern, solo_with};

fn options() -> Options {
    Options { transport: Transport::Ud, ..Options::default() }
}

fn solo() -> End {
    solo_with(&options())
}

fn pair() -> Pair {
    Pair::with(&options())
}

fn sent(end: &mut End) -> Vec<Ud> {
    let headers = end.headers();
    let datagram = |header: &adverb_wire::Header| match header.operation {
        Operation::Ud(datagram) => datagram,
        other => panic!("{other:?}"),
    };
    headers.iter().map(datagram).collect()
}

fn post_to(end: &mut End, wr_id: u64, destination: Destination<Path>) -> Result<(), PostError> {
    let segments = [end.segment(0, 8)];
    let request = SendRequest {
        wr_id,
        tag: 0,
        operation: SendOperation::Send,
        flags: SendFlags::SIGNALED,
        segments: &segments,
        destination: Some(destination),
    };
    end.device.post_send(end.now, end.qpn, &request)
}

#[test]
fn datagram_has_the_source_qpn_and_the_queue_key() {
    let mut end = solo();
    end.post(1, SendOperation::SendWithImm(5), 0, 8);
    let expected = Ud { qkey: QKEY, source_qp: end.qpn, immediate: Some(5) };
    assert_eq!(sent(&mut end), [expected]);
}

#[test]
fn each_datagram_is_sent_to_the_destination_of_its_request() {
    let mut end = solo();
    let hosts = ["10.0.0.7", "10.0.0.8", "10.0.0.9"];
    for (id, host) in hosts.into_iter().enumerate() {
        let path = Path::new(end.address, host.parse().unwrap(), 0xc000 + id as u16).unwrap();
        let destination = Destination { handle: path, qpn: Qpn::truncate(id as u32 + 100), qkey: QKEY };
        post_to(&mut end, id as u64, destination).unwrap();
    }
    for (id, host) in hosts.into_iter().enumerate() {
        let transmit = end.device.poll_transmit(end.now).unwrap();
        assert_eq!(transmit.path.remote().to_string(), host);
        assert_eq!(transmit.path.source_port(), 0xc000 + id as u16);
        assert_eq!(transmit.header.dest_qp.get(), id as u32 + 100);
    }
}

#[test]
fn datagram_needs_a_destination() {
    let mut end = solo();
    let request = SendRequest::<Path> {
        wr_id: 1,
        tag: 0,
        operation: SendOperation::Send,
        flags: SendFlags::empty(),
        segments: &[],
        destination: None,
    };
    assert_eq!(end.device.post_send(end.now, end.qpn, &request), Err(PostError::InvalidDestination));
    let without_path = Destination { handle: (), qpn: end.qpn, qkey: 1 };
    let request = SendRequest {
        wr_id: 1,
        tag: 0,
        operation: SendOperation::Send,
        flags: SendFlags::empty(),
        segments: &[],
        destination: Some(without_path),
    };
    assert_eq!(end.device.post_send(end.now, end.qpn, &request), Err(PostError::InvalidDestination));
}

#[test]
fn reliable_connection_rejects_a_destination() {
    let mut end = solo_with(&Options::default());
    let destination = Destination { handle: end.path(), qpn: end.qpn, qkey: 1 };
    assert_eq!(post_to(&mut end, 1, destination), Err(PostError::InvalidDestination));
}

#[test]
fn queue_key_with_the_high_bit_selects_the_senders_own() {
    let mut end = solo();
    let destination = Destination { handle: end.path(), qpn: end.qpn, qkey: 0x8000_0000 };
    post_to(&mut end, 1, destination).unwrap();
    assert_eq!(sent(&mut end)[0].qkey, QKEY);
}

#[test]
fn datagram_is_at_most_one_packet_of_the_ports_mtu() {
    for mtu in PathMtu::ALL {
        let mut end = End::new(1, 2, &options());
        end.device.set_port_mtu(mtu);
        end.connect(Qpn::truncate(7), &options());
        let bytes = u32::from(mtu.bytes());
        end.post(1, SendOperation::Send, 0, bytes);
        let segments = [end.segment(0, bytes + 1)];
        let posted = end.try_post(2, SendOperation::Send, SendFlags::empty(), &segments);
        assert_eq!(posted, Err(PostError::InvalidLength));
        assert_eq!(end.transmits().len(), 1);
    }
}

#[test]
fn datagram_queue_pairs_support_only_send() {
    let mut end = solo();
    let remote = RemoteAddress { addr: 0, rkey: 1 };
    for operation in [
        SendOperation::Write(remote),
        SendOperation::WriteWithImm(remote, 1),
        SendOperation::Read(remote),
        SendOperation::FetchAdd { remote, add: 1 },
        SendOperation::SendInvalidate(1),
        SendOperation::LocalInvalidate(1),
    ] {
        let segments = [end.segment(0, 8)];
        let posted = end.try_post(1, operation, SendFlags::empty(), &segments);
        assert_eq!(posted, Err(PostError::Unsupported), "{operation:?}");
    }
}

#[test]
fn datagram_completes_when_it_was_sent() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 8);
    assert!(end.device.poll_transmit(end.now).is_some());
    assert_eq!(end.statuses(), []);
    assert!(end.device.poll_transmit(end.now).is_none());
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.device.poll_timeout(), None);
}

#[test]
fn psns_count_datagrams() {
    let mut end = solo();
    for id in 0..3 {
        end.post(id, SendOperation::Send, 0, 8);
    }
    let psns: Vec<u32> = end.headers().iter().map(|header| header.psn.get()).collect();
    assert_eq!(psns, [PSN, PSN + 1, PSN + 2]);
}

#[test]
fn datagrams_of_every_length_are_delivered() {
    let mut pair = pair();
    for length in [0, 1, 2, 3, 4, 5, 64, 1023, 1024, 1025, 4095, 4096] {
        pair.a.fill(0, &pattern(length as usize, 9));
        pair.b.post_recv(1, 0, 8192);
        pair.a.post(2, SendOperation::Send, 0, length);
        pair.run();
        assert_eq!(pair.b.bytes(GRH_LEN, length as usize), pattern(length as usize, 9));
    }
    assert_eq!(pair.b.statuses().len(), 12);
}

#[test]
fn datagrams_are_gathered_from_segments() {
    let mut pair = pair();
    pair.b.post_recv(1, 0, 256);
    pair.a.fill(0, b"abcdef");
    let segments = [pair.a.segment(4, 2), pair.a.segment(0, 3)];
    pair.a.try_post(1, SendOperation::Send, SendFlags::empty(), &segments).unwrap();
    pair.run();
    assert_eq!(pair.b.bytes(GRH_LEN, 5), b"efabc");
}

#[test]
fn inline_datagrams_keep_their_bytes_and_destinations() {
    let mut end = solo();
    for id in 0..3u8 {
        let destination =
            Destination { handle: end.path(), qpn: Qpn::truncate(u32::from(id) + 50), qkey: QKEY };
        let request = SendRequest {
            wr_id: u64::from(id),
            tag: 0,
            operation: SendOperation::Send,
            flags: SendFlags::INLINE,
            segments: &[],
            destination: Some(destination),
        };
        end.device.post_send_inline(end.now, end.qpn, &request, &[id; 5]).unwrap();
    }
    for (id, bytes) in end.transmits().iter().enumerate() {
        let packet = adverb_wire::Packet::parse(bytes).unwrap();
        assert_eq!(packet.header().dest_qp.get(), id as u32 + 50);
        assert_eq!(packet.payload(), [id as u8; 5]);
    }
}

#[test]
fn wrong_segment_fails_only_the_send_queue() {
    let mut pair = pair();
    pair.a.post_recv(9, 0, 256);
    let mut wrong = pair.a.segment(0, 8);
    wrong.lkey ^= 1;
    pair.a.try_post(1, SendOperation::Send, SendFlags::empty(), &[wrong]).unwrap();
    pair.a.post(2, SendOperation::Send, 0, 8);
    pair.b.post(3, SendOperation::Send, 0, 8);
    pair.run();
    let expected = [(1, Status::LocalProtection), (2, Status::Flushed), (9, Status::Success)];
    assert_eq!(pair.a.statuses(), expected);
    assert_eq!(pair.a.state(), QpState::SendQueueError);
    pair.a.modify(Transition::Resume);
    pair.b.post_recv(8, 0, 256);
    pair.a.post(4, SendOperation::Send, 0, 8);
    pair.run();
    assert_eq!(pair.b.statuses().last(), Some(&(8, Status::Success)));
}

#[test]
fn datagram_can_be_sent_to_its_own_queue_pair() {
    let mut end = solo();
    end.remote_qpn = end.qpn;
    end.peer = end.address;
    end.post_recv(1, 0, 256);
    end.fill(1000, b"myself");
    end.post(2, SendOperation::Send, 1000, 6);
    for bytes in end.transmits() {
        end.deliver(&bytes);
    }
    assert_eq!(end.bytes(GRH_LEN, 6), b"myself");
    assert_eq!(end.statuses(), [(2, Status::Success), (1, Status::Success)]);
}

#[test]
fn lost_datagram_is_not_retransmitted() {
    let mut pair = pair();
    pair.b.post_recv(1, 0, 256);
    pair.a.post(2, SendOperation::Send, 0, 8);
    pair.run_until_idle_where(|_, _| false);
    assert_eq!(pair.a.statuses(), [(2, Status::Success)]);
    assert_eq!(pair.packets, 1);
}

#[test]
fn reset_discards_requests_and_restarts() {
    let mut end = solo();
    end.post(1, SendOperation::Send, 0, 8);
    end.modify(Transition::Reset);
    assert_eq!(end.transmits().len(), 0);
    end.connect(Qpn::truncate(9), &options());
    end.post(2, SendOperation::Send, 0, 8);
    assert_eq!(end.headers()[0].psn.get(), PSN);
    assert_eq!(end.statuses(), [(2, Status::Success)]);
}

#[test]
fn drain_stops_datagrams() {
    let mut end = solo();
    end.modify(Transition::Drain);
    end.post(1, SendOperation::Send, 0, 8);
    assert_eq!(end.transmits().len(), 0);
    end.modify(Transition::Resume);
    assert_eq!(end.transmits().len(), 1);
}

#[test]
fn general_service_interface_is_queue_pair_1_and_unique() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    let cq = device.create_cq(8);
    assert_eq!(device.create_gsi(QpConfig::rc(pd, cq, cq)), Err(CreateQpError::InvalidGsi));
    assert_eq!(device.create_gsi(QpConfig::ud(pd, cq, cq)), Ok(Qpn::GSI));
    assert_eq!(device.create_gsi(QpConfig::ud(pd, cq, cq)), Err(CreateQpError::InvalidGsi));
    let init = Transition::Init(Init::datagrams(GSI_QKEY));
    assert_eq!(device.modify_qp(adverb_proto::Time::ZERO, Qpn::GSI, &init), Ok(()));
    assert!(device.destroy_qp(Qpn::GSI));
    assert_eq!(device.create_gsi(QpConfig::ud(pd, cq, cq)), Ok(Qpn::GSI));
}

#[test]
fn path_mtu_above_the_ports_is_rejected() {
    for transport in [Transport::Rc, Transport::Uc] {
        let options = Options { transport, mtu: PathMtu::Mtu2048, ..Options::default() };
        let mut end = End::new(1, 2, &options);
        end.device.set_port_mtu(PathMtu::Mtu1024);
        end.move_to_init(&options);
        let ready_to_receive = end.ready_to_receive(Qpn::truncate(7), &options);
        let modified = end.device.modify_qp(end.now, end.qpn, &ready_to_receive);
        assert_eq!(modified, Err(ModifyError::OutOfRange("path_mtu")));
        assert_eq!(end.state(), QpState::Init);
        end.device.set_port_mtu(PathMtu::Mtu2048);
        assert_eq!(end.device.modify_qp(end.now, end.qpn, &ready_to_receive), Ok(()));
    }
}
