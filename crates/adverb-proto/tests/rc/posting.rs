//! Posting requests, and their completions.

use adverb_proto::types::{
    ArmFor, CompletedOperation, PathMtu, QpState, RecvRequest, RemoteAddress, Segment, SendFlags,
    SendOperation, SendRequest, Status,
};
use adverb_proto::{CreateQpError, Device, PostError, QpConfig, QueueEvent};

use crate::harness::{ADDR, Options, Pair, solo, solo_with};

const WRITE: SendOperation = SendOperation::Write(RemoteAddress { addr: 0x5000, rkey: 0x1234 });
const READ: SendOperation = SendOperation::Read(RemoteAddress { addr: 0x5000, rkey: 0x1234 });

fn inline_request(operation: SendOperation) -> SendRequest<'static, ()> {
    SendRequest { wr_id: 1, tag: 0, operation, flags: SendFlags::INLINE, segments: &[], destination: None }
}

#[test]
fn full_send_queue_rejects_requests_until_one_completes() {
    let mut end = solo_with(&Options { max_wr: 3, ..Options::default() });
    for id in 0..3 {
        end.post(id, WRITE, 0, 8);
    }
    let segment = end.segment(0, 8);
    assert_eq!(end.try_post(3, WRITE, SendFlags::empty(), &[segment]), Err(PostError::QueueFull));
    end.transmits();
    end.receive_ack(0);
    assert_eq!(end.try_post(3, WRITE, SendFlags::empty(), &[segment]), Ok(()));
}

#[test]
fn full_receive_queue_rejects_requests() {
    let mut end = solo_with(&Options { max_wr: 2, ..Options::default() });
    end.post_recv(1, 0, 8);
    end.post_recv(2, 0, 8);
    let posted = end.device.post_recv(end.now, end.qpn, &RecvRequest { wr_id: 3, tag: 0, segments: &[] });
    assert_eq!(posted, Err(PostError::QueueFull));
}

#[test]
fn too_many_segments_are_rejected() {
    let mut end = solo();
    let segments = [end.segment(0, 1); 17];
    assert_eq!(end.try_post(1, WRITE, SendFlags::empty(), &segments), Err(PostError::TooManySegments));
    let posted =
        end.device.post_recv(end.now, end.qpn, &RecvRequest { wr_id: 3, tag: 0, segments: &segments });
    assert_eq!(posted, Err(PostError::TooManySegments));
    assert_eq!(end.try_post(1, WRITE, SendFlags::empty(), &segments[..16]), Ok(()));
}

#[test]
fn atomics_need_a_buffer_of_eight_bytes() {
    for length in [0, 4, 7, 9, 16] {
        let mut end = solo();
        let segment = end.segment(0, length);
        let add = SendOperation::FetchAdd { remote: RemoteAddress { addr: 0, rkey: 1 }, add: 1 };
        assert_eq!(end.try_post(1, add, SendFlags::empty(), &[segment]), Err(PostError::InvalidLength));
    }
}

#[test]
fn atomic_result_may_be_scattered() {
    let mut pair = Pair::new();
    pair.b.fill(0, &0x1122_3344_5566_7788u64.to_ne_bytes());
    let segments = [pair.a.segment(100, 3), pair.a.segment(200, 5)];
    let add = SendOperation::FetchAdd { remote: pair.b.remote_addr(0), add: 1 };
    pair.a.try_post(1, add, SendFlags::SIGNALED, &segments).unwrap();
    pair.run();
    let bytes = 0x1122_3344_5566_7788u64.to_ne_bytes();
    assert_eq!(pair.a.bytes(100, 3), &bytes[..3]);
    assert_eq!(pair.a.bytes(200, 5), &bytes[3..]);
}

#[test]
fn message_longer_than_two_to_the_31_is_rejected() {
    let mut end = solo();
    let lkey = end.key;
    let segment = |length| Segment { addr: ADDR, length, lkey };
    let max_message = [segment(1 << 30), segment(1 << 30)];
    let too_long = [segment(1 << 30), segment(1 << 30), segment(1)];
    assert_eq!(end.try_post(1, WRITE, SendFlags::empty(), &max_message), Ok(()));
    assert_eq!(end.try_post(2, WRITE, SendFlags::empty(), &too_long), Err(PostError::InvalidLength));
    let longer_than_u32 = [segment(u32::MAX), segment(u32::MAX), segment(u32::MAX)];
    assert_eq!(end.try_post(2, READ, SendFlags::empty(), &longer_than_u32), Err(PostError::InvalidLength));
}

#[test]
fn message_of_half_of_all_sequence_numbers_is_rejected() {
    let mut end = solo_with(&Options { mtu: PathMtu::Mtu256, ..Options::default() });
    let segment = Segment { addr: ADDR, length: 1 << 31, lkey: end.key };
    assert_eq!(end.try_post(1, READ, SendFlags::empty(), &[segment]), Err(PostError::InvalidLength));
}

#[test]
fn inline_bytes_and_the_inline_flag_need_each_other() {
    let mut end = solo();
    let request = SendRequest { flags: SendFlags::empty(), ..inline_request(WRITE) };
    assert_eq!(end.device.post_send_inline(end.now, end.qpn, &request, b"x"), Err(PostError::InvalidInline));
    let request = inline_request(WRITE);
    assert_eq!(end.device.post_send(end.now, end.qpn, &request), Err(PostError::InvalidInline));
}

#[test]
fn too_many_inline_bytes_are_rejected() {
    let mut end = solo();
    let request = inline_request(WRITE);
    assert_eq!(
        end.device.post_send_inline(end.now, end.qpn, &request, &[1; 257]),
        Err(PostError::InvalidInline)
    );
    assert_eq!(end.device.post_send_inline(end.now, end.qpn, &request, &[1; 256]), Ok(()));
}

#[test]
fn requests_that_return_bytes_cannot_be_inline() {
    let mut end = solo();
    let request = inline_request(READ);
    assert_eq!(
        end.device.post_send_inline(end.now, end.qpn, &request, &[1; 8]),
        Err(PostError::InvalidInline)
    );
}

#[test]
fn rejected_request_leaves_the_queue_unchanged() {
    let mut end = solo();
    let request = inline_request(WRITE);
    let _ = end.device.post_send_inline(end.now, end.qpn, &request, &[1; 300]);
    end.post(2, WRITE, 0, 8);
    let request = SendRequest { wr_id: 3, ..inline_request(WRITE) };
    end.device.post_send_inline(end.now, end.qpn, &request, b"inline").unwrap();
    let packets = end.transmits();
    assert_eq!(packets.len(), 2);
    assert_eq!(adverb_wire::Packet::parse(&packets[1]).unwrap().payload(), b"inline");
}

#[test]
fn queue_pair_needs_its_domain_and_completion_queues() {
    let mut device = Device::new(());
    let (pd, destroyed_pd) = (device.create_domain(), device.create_domain());
    device.destroy_domain(destroyed_pd).unwrap();
    let (cq, destroyed_cq) = (device.create_cq(8), device.create_cq(8));
    assert!(device.destroy_cq(destroyed_cq));
    assert_eq!(
        device.create_qp(QpConfig::rc(destroyed_pd, cq, cq), || 77),
        Err(CreateQpError::UnknownDomain)
    );
    let missing = device.create_qp(QpConfig::rc(pd, cq, destroyed_cq), || 77);
    assert_eq!(missing, Err(CreateQpError::UnknownCq(destroyed_cq)));
    let qpn = device.create_qp(QpConfig::rc(pd, cq, cq), || 77).unwrap();
    assert!(!device.destroy_cq(cq), "in use");
    assert!(device.destroy_domain(pd).is_err(), "in use");
    device.destroy_qp(qpn);
    assert!(device.destroy_cq(cq));
    assert!(device.destroy_domain(pd).is_ok());
}

#[test]
fn queue_pair_numbers_are_random_unique_and_never_special() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    let cq = device.create_cq(8);
    let mut numbers = [0, 1, 0xff_ffff, 0x0100_0000, 50, 50, 51].into_iter();
    let mut random = || numbers.next().unwrap();
    let first = device.create_qp(QpConfig::rc(pd, cq, cq), &mut random).unwrap();
    let second = device.create_qp(QpConfig::rc(pd, cq, cq), &mut random).unwrap();
    assert_eq!((first.get(), second.get()), (50, 51));
}

#[test]
fn completion_queue_overflow_is_reported_and_fails_its_queue_pair() {
    let mut end = solo_with(&Options { cq_capacity: 2, ..Options::default() });
    for id in 0..5 {
        end.post(id, WRITE, 0, 8);
    }
    end.transmits();
    end.receive_ack(3);
    assert_eq!(end.queue_events(), [QueueEvent::CqOverflow(end.cq), QueueEvent::Fatal(end.qpn)]);
    assert_eq!(end.state(), QpState::Error);
    assert_eq!(end.statuses(), [(0, Status::Success), (1, Status::Success)]);
    assert!(end.device.statistics().completions_lost >= 2);
}

#[test]
fn armed_queue_generates_one_event() {
    let mut end = solo();
    end.device.arm_cq(end.cq, ArmFor::Any);
    for id in 0..3 {
        end.post(id, WRITE, 0, 8);
    }
    end.transmits();
    end.receive_ack(2);
    assert_eq!(end.cq_events(), [end.cq]);
}

#[test]
fn queue_armed_for_solicited_generates_an_event_only_for_solicited_or_failed_completions() {
    let mut pair = Pair::new();
    for id in 0..3 {
        pair.b.post_recv(id, 0, 64);
    }
    pair.b.device.arm_cq(pair.b.cq, ArmFor::Solicited);
    let segment = pair.a.segment(0, 8);
    pair.a.try_post(1, SendOperation::Send, SendFlags::empty(), &[segment]).unwrap();
    pair.run();
    assert!(!pair.b.cq_events().contains(&pair.b.cq));
    pair.a.try_post(2, SendOperation::Send, SendFlags::SOLICITED, &[segment]).unwrap();
    pair.run();
    assert!(pair.b.cq_events().contains(&pair.b.cq));
    pair.b.device.arm_cq(pair.b.cq, ArmFor::Solicited);
    pair.b.modify(adverb_proto::Transition::Error);
    assert!(pair.b.cq_events().contains(&pair.b.cq));
}

#[test]
fn arming_for_solicited_keeps_an_earlier_arming_for_any() {
    let mut end = solo();
    end.device.arm_cq(end.cq, ArmFor::Any);
    end.device.arm_cq(end.cq, ArmFor::Solicited);
    end.post(1, WRITE, 0, 8);
    end.transmits();
    end.receive_ack(0);
    assert_eq!(end.cq_events(), [end.cq]);
}

#[test]
fn completion_has_its_operation_and_length() {
    let mut pair = Pair::new();
    pair.b.post_recv(1, 0, 64);
    pair.a.post(1, SendOperation::Send, 0, 33);
    pair.a.post(2, SendOperation::Write(pair.b.remote_addr(100)), 0, 44);
    pair.a.post(3, SendOperation::LocalInvalidate(pair.a.key), 0, 0);
    pair.run();
    let operations: Vec<_> = pair.a.completions().iter().map(|c| c.outcome.unwrap()).collect();
    assert_eq!(operations[0].operation, CompletedOperation::Send);
    assert_eq!((operations[1].operation, operations[1].length), (CompletedOperation::Write, 44));
    assert_eq!(operations[2].operation, CompletedOperation::LocalInvalidate);
}
