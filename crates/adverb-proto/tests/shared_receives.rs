//! The rules of shared receive queues. Each test checks one rule.

#[path = "harness/mod.rs"]
mod harness;

use adverb_proto::memory::{DomainError, RemoteInvalidate};
use adverb_proto::types::{
    CompletedOperation, PathMtu, QpState, Qpn, RecvRequest, Segment, SendOperation, Status, Transport,
};
use adverb_proto::{
    CreateQpError, Device, DropReason, Init, PostError, QpConfig, QueueEvent, ReadyToReceive, ReadyToSend,
    SrqConfig, SrqError, Time, TraceEvent, Transition,
};
use adverb_wire::{GRH_LEN, Header, NakCode, Operation, Psn, Rc, Reth, Send, Uc, Ud, Write};

use harness::{ADDR, ALL, End, Options, PSN, Pair, QKEY, ack, nak, pattern, rnr_nak, solo_with};

const MTU: usize = 1024;
const ONLY: Rc = Rc::Send(Send::Only(None));
const FIRST: Rc = Rc::Send(Send::First);
const LAST: Rc = Rc::Send(Send::Last(None));

fn options() -> Options {
    Options { shared: true, ..Options::default() }
}

fn solo() -> End {
    solo_with(&options())
}

/// Creates another queue pair of the same device that uses the shared queue.
fn another_qp(end: &mut End, transport: Transport) -> Qpn {
    let mut config = QpConfig::new(transport, end.pd, end.cq, end.cq);
    config.srq = end.srq;
    let random = end.rng();
    let qpn = end.device.create_qp(config, random).unwrap();
    let psn = Psn::wrapping(PSN);
    let (init, ready_to_receive) = match transport {
        Transport::Ud => (Init::datagrams(QKEY), Transition::ReadyToReceiveUd),
        Transport::Rc | Transport::Uc => {
            let ready_to_receive =
                ReadyToReceive::unreliable(Qpn::truncate(0x88), end.path(), PathMtu::Mtu1024, psn);
            (Init::new(ALL), Transition::ReadyToReceive(ready_to_receive))
        }
    };
    for transition in
        [Transition::Init(init), ready_to_receive, Transition::ReadyToSend(ReadyToSend::unreliable(psn))]
    {
        end.device.modify_qp(end.now, qpn, &transition).unwrap();
    }
    qpn
}

/// Delivers a packet to one of the device's queue pairs.
fn receive_at(end: &mut End, qpn: Qpn, psn: u32, operation: Operation, payload: &[u8]) {
    let header = Header::new(qpn, Psn::wrapping(PSN) + psn, operation);
    let bytes = end.forge(&header, payload);
    end.deliver(&bytes);
}

#[test]
fn message_takes_the_oldest_shared_receive() {
    let mut end = solo();
    end.post_shared(1, 0, 64);
    end.post_shared(2, 64, 64);
    assert_eq!(end.exchange(0, ONLY, b"abcd"), [(ack(1), 0)]);
    assert_eq!(end.bytes(0, 4), b"abcd");
    let completion = end.completions()[0];
    assert_eq!((completion.wr_id, completion.qpn), (1, end.qpn));
    assert_eq!(end.shared_queue_len(), 1);
}

#[test]
fn messages_of_all_queue_pairs_take_receives_in_order() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Rc);
    for id in 0..4 {
        end.post_shared(id, id * 64, 64);
    }
    let (first, second) = (end.qpn, other);
    for (psn, qpn) in [(0, second), (0, first), (1, first), (1, second)] {
        receive_at(&mut end, qpn, psn, Operation::Rc(ONLY), b"abcd");
    }
    let completions = end.completions();
    let taken: Vec<_> = completions.iter().map(|completion| (completion.wr_id, completion.qpn)).collect();
    assert_eq!(taken, [(0, second), (1, first), (2, first), (3, second)]);
}

#[test]
fn receive_is_taken_when_the_message_starts() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Rc);
    end.post_shared(1, 0, 4096);
    end.post_shared(2, 8192, 4096);
    end.receive(0, FIRST, &pattern(MTU, 1));
    receive_at(&mut end, other, 0, Operation::Rc(ONLY), b"short");
    end.receive(1, LAST, b"end");
    assert_eq!(end.statuses(), [(2, Status::Success), (1, Status::Success)]);
    assert_eq!(end.bytes(0, MTU), pattern(MTU, 1));
    assert_eq!(end.bytes(8192, 5), b"short");
}

#[test]
fn empty_shared_queue_causes_an_rnr_nak() {
    let mut end = solo();
    assert_eq!(end.exchange(0, ONLY, b"abcd"), [(rnr_nak(12, 0), 0)]);
    end.post_shared(1, 0, 64);
    assert_eq!(end.exchange(0, ONLY, b"abcd"), [(ack(1), 0)]);
}

#[test]
fn empty_shared_queue_drops_messages_of_unreliable_connections() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Uc);
    let send = Operation::Uc(Uc::Send(Send::Only(None)));
    receive_at(&mut end, other, 0, send, b"lost");
    assert_eq!(end.drops(), [DropReason::NoReceivePosted]);
    end.post_shared(1, 0, 64);
    receive_at(&mut end, other, 1, send, b"came");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn datagrams_take_shared_receives() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Ud);
    end.post_shared(1, 0, 256);
    let datagram = Ud { qkey: QKEY, source_qp: Qpn::truncate(3), immediate: None };
    receive_at(&mut end, other, 0, Operation::Ud(datagram), b"datagram");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.bytes(GRH_LEN, 8), b"datagram");
}

#[test]
fn datagram_too_long_for_a_shared_receive_is_dropped_and_the_receive_stays() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Ud);
    end.post_shared(1, 0, 16);
    let datagram = Operation::Ud(Ud { qkey: QKEY, source_qp: Qpn::truncate(3), immediate: None });
    receive_at(&mut end, other, 0, datagram, b"x");
    assert_eq!(end.drops(), [DropReason::MessageTooLong]);
    end.device.destroy_qp(other);
    assert_eq!(end.shared_queue_len(), 1);
    assert_eq!(end.exchange(0, ONLY, b"abcd"), [(ack(1), 0)]);
}

#[test]
fn write_with_immediate_takes_a_shared_receive_and_one_without_takes_none() {
    let mut end = solo();
    end.post_shared(1, 4096, 64);
    let reth = Reth { va: ADDR, rkey: end.key, length: 4 };
    end.exchange(0, Rc::Write(Write::Only(reth, None)), b"abcd");
    assert_eq!(end.shared_queue_len(), 1);
    end.exchange(1, Rc::Write(Write::Only(reth, Some(9))), b"abcd");
    let success = end.completions()[0].outcome.unwrap();
    assert_eq!(success.operation, CompletedOperation::RecvWrite { immediate: 9 });
    assert_eq!(end.shared_queue_len(), 0);
}

#[test]
fn queue_pair_with_a_shared_queue_rejects_receives() {
    let mut end = solo();
    let segments = [end.segment(0, 64)];
    let request = RecvRequest { wr_id: 1, tag: 0, segments: &segments };
    assert_eq!(end.device.post_recv(end.now, end.qpn, &request), Err(PostError::HasSharedReceiveQueue));
}

#[test]
fn full_shared_queue_and_too_many_segments_are_rejected() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    let mut config = SrqConfig::new(pd);
    config.max_wr = 2;
    config.max_sge = 1;
    let srq = device.create_srq(config).unwrap();
    let segment = Segment { addr: 0, length: 1, lkey: 1 };
    let mut post = |count: usize| {
        device.post_srq_recv(
            Time::ZERO,
            srq,
            &RecvRequest { wr_id: 1, tag: 0, segments: &vec![segment; count] },
        )
    };
    assert_eq!(post(2), Err(SrqError::TooManySegments));
    assert_eq!(post(1), Ok(()));
    assert_eq!(post(0), Ok(()));
    assert_eq!(post(1), Err(SrqError::QueueFull));
}

#[test]
fn receives_are_posted_before_any_queue_pair_is_ready() {
    let mut end = End::new(1, 2, &options());
    end.post_shared(1, 0, 64);
    end.connect(Qpn::truncate(0x77), &options());
    end.exchange(0, ONLY, b"abcd");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn limit_event_is_generated_once_below_the_limit() {
    let mut end = solo();
    for id in 0..8 {
        end.post_shared(id, 0, 64);
    }
    let srq = end.srq.unwrap();
    end.device.arm_srq(srq, 6).unwrap();
    for psn in 0..2 {
        end.receive(psn, ONLY, b"abcd");
        assert_eq!(
            end.queue_events(),
            [],
            "{} requests are left, which is not below the limit of 6",
            7 - psn
        );
    }
    end.receive(2, ONLY, b"abcd");
    assert_eq!(end.queue_events(), [QueueEvent::SrqLimit(srq)]);
    end.receive(3, ONLY, b"abcd");
    assert_eq!(end.queue_events(), [], "once");
    assert!(end.device.sink().iter().any(|(_, event)| *event == TraceEvent::SrqLimit { srq }));
}

#[test]
fn limit_event_is_generated_again_after_rearming() {
    let mut end = solo();
    for id in 0..4 {
        end.post_shared(id, 0, 64);
    }
    let srq = end.srq.unwrap();
    for psn in 0..3 {
        end.device.arm_srq(srq, 4).unwrap();
        end.receive(psn, ONLY, b"abcd");
        assert_eq!(end.queue_events(), [QueueEvent::SrqLimit(srq)]);
        assert_eq!(end.device.query_srq(srq).unwrap().limit, 0);
    }
}

#[test]
fn limit_of_zero_disarms_and_a_limit_beyond_the_depth_is_rejected() {
    let mut end = solo();
    end.post_shared(1, 0, 64);
    let srq = end.srq.unwrap();
    end.device.arm_srq(srq, 1).unwrap();
    end.device.arm_srq(srq, 0).unwrap();
    end.receive(0, ONLY, b"abcd");
    assert_eq!(end.queue_events(), []);
    assert_eq!(end.device.arm_srq(srq, 1025), Err(SrqError::InvalidLimit));
    assert_eq!(end.device.arm_srq(srq, 1024), Ok(()));
}

#[test]
fn error_of_a_queue_pair_leaves_the_shared_queue_unchanged() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Rc);
    end.post_shared(1, 0, 64);
    end.post_shared(2, 0, 64);
    end.modify(Transition::Error);
    assert_eq!(end.statuses(), []);
    assert_eq!(end.shared_queue_len(), 2);
    receive_at(&mut end, other, 0, Operation::Rc(ONLY), b"abcd");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn last_receive_reached_is_reported_once_when_a_queue_pair_fails() {
    let mut end = solo();
    end.modify(Transition::Error);
    assert_eq!(end.queue_events(), [QueueEvent::LastReceiveReached(end.qpn)]);
    end.modify(Transition::Error);
    assert_eq!(end.queue_events(), []);
    let mut own = solo_with(&Options::default());
    own.modify(Transition::Error);
    assert_eq!(own.queue_events(), [], "no event without a shared queue");
}

#[test]
fn error_flushes_the_shared_receive_in_use_and_no_other() {
    let mut end = solo();
    end.post_shared(1, 0, 4096);
    end.post_shared(2, 0, 4096);
    end.receive(0, FIRST, &pattern(MTU, 1));
    end.modify(Transition::Error);
    assert_eq!(end.statuses(), [(1, Status::Flushed)]);
    assert_eq!(end.queue_events(), [QueueEvent::LastReceiveReached(end.qpn)]);
    assert_eq!(end.shared_queue_len(), 1);
}

#[test]
fn destroying_a_queue_pair_returns_the_receive_in_use_to_the_front() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Rc);
    end.post_shared(1, 0, 4096);
    end.post_shared(2, 8192, 4096);
    end.receive(0, FIRST, &pattern(MTU, 1));
    end.device.destroy_qp(end.qpn);
    assert_eq!(end.statuses(), []);
    assert_eq!(end.shared_queue_len(), 2);
    for psn in 0..2 {
        receive_at(&mut end, other, psn, Operation::Rc(ONLY), b"abcd");
    }
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(end.bytes(8192, 4), b"abcd");
}

#[test]
fn reset_returns_the_receive_in_use() {
    let mut end = solo();
    end.post_shared(1, 0, 4096);
    end.receive(0, FIRST, &pattern(MTU, 1));
    assert_eq!(end.shared_queue_len(), 0);
    end.modify(Transition::Reset);
    assert_eq!(end.shared_queue_len(), 1);
    end.connect(Qpn::truncate(0x77), &options());
    end.exchange(0, ONLY, b"abcd");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn message_too_long_for_a_shared_receive_fails_only_its_connection() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Rc);
    end.post_shared(1, 0, 2);
    end.post_shared(2, 64, 64);
    assert_eq!(end.exchange(0, ONLY, b"abcd"), [(nak(NakCode::InvalidRequest, 0), 0)]);
    assert_eq!(end.statuses(), [(1, Status::LocalLength)]);
    assert_eq!(end.state(), QpState::Error);
    receive_at(&mut end, other, 0, Operation::Rc(ONLY), b"abcd");
    assert_eq!(end.statuses(), [(2, Status::Success)]);
}

#[test]
fn dropped_unreliable_message_leaves_its_shared_receive_for_the_next() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Uc);
    end.post_shared(1, 0, 4096);
    receive_at(&mut end, other, 0, Operation::Uc(Uc::Send(Send::First)), &pattern(MTU, 1));
    receive_at(&mut end, other, 2, Operation::Uc(Uc::Send(Send::Only(None))), b"next");
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.bytes(0, 4), b"next");
}

#[test]
fn receives_use_memory_of_the_shared_queues_domain() {
    let mut end = solo_with(&Options::default());
    let domain = end.device.create_domain();
    end.srq = Some(end.device.create_srq(SrqConfig::new(domain)).unwrap());
    let srq_domain_key = end.register_with(domain, ALL, RemoteInvalidate::Denied);
    let other = another_qp(&mut end, Transport::Rc);
    let qp_domain_key = end.key;
    end.key = srq_domain_key;
    end.post_shared(1, 0, 64);
    receive_at(&mut end, other, 0, Operation::Rc(ONLY), b"abcd");
    assert_eq!(end.statuses(), [(1, Status::Success)], "the domain of the shared queue is used");
    end.key = qp_domain_key;
    end.post_shared(2, 0, 64);
    receive_at(&mut end, other, 1, Operation::Rc(ONLY), b"abcd");
    assert_eq!(end.statuses(), [(2, Status::LocalProtection)], "the domain of the queue pair is not used");
    let third = another_qp(&mut end, Transport::Rc);
    let reth = Reth { va: ADDR, rkey: qp_domain_key, length: 4 };
    receive_at(&mut end, third, 0, Operation::Rc(Rc::Write(Write::Only(reth, None))), b"wxyz");
    assert_eq!(end.bytes(0, 4), b"wxyz", "a peer's request uses the domain of the queue pair");
}

#[test]
fn shared_queue_belongs_to_its_domain() {
    let mut device = Device::new(());
    let pd = device.create_domain();
    let srq = device.create_srq(SrqConfig::new(pd)).unwrap();
    assert_eq!(device.destroy_domain(pd), Err(DomainError::InUse { user_count: 1 }));
    assert_eq!(device.destroy_srq(srq), Ok(()));
    assert_eq!(device.destroy_domain(pd), Ok(()));
    assert_eq!(device.create_srq(SrqConfig::new(pd)), Err(SrqError::UnknownDomain));
}

#[test]
fn shared_queue_in_use_is_not_destroyed() {
    let mut end = solo();
    let other = another_qp(&mut end, Transport::Ud);
    let srq = end.srq.unwrap();
    end.post_shared(1, 0, 64);
    assert_eq!(end.device.destroy_srq(srq), Err(SrqError::InUse { queue_pair_count: 2 }));
    end.device.destroy_qp(other);
    end.device.destroy_qp(end.qpn);
    assert_eq!(end.device.destroy_srq(srq), Ok(()), "destroyed with requests in it");
    assert_eq!(end.device.destroy_srq(srq), Err(SrqError::UnknownSrq));
    assert_eq!(end.device.arm_srq(srq, 1), Err(SrqError::UnknownSrq));
    assert_eq!(end.device.resource_counts().shared_receive_queues, 0);
}

#[test]
fn queue_pair_needs_an_existing_shared_queue() {
    let mut end = solo();
    let srq = end.srq.unwrap();
    end.device.destroy_qp(end.qpn);
    end.device.destroy_srq(srq).unwrap();
    let mut config = QpConfig::rc(end.pd, end.cq, end.cq);
    config.srq = Some(srq);
    let users = end.device.resource_counts().domain_users;
    assert_eq!(end.device.create_qp(config, || 55), Err(CreateQpError::UnknownSrq(srq)));
    assert_eq!(end.device.resource_counts().domain_users, users);
}

#[test]
fn acknowledgements_carry_no_credits() {
    let mut end = solo_with(&Options { credits: true, ..options() });
    end.post_shared(1, 0, 64);
    end.post_shared(2, 0, 64);
    assert_eq!(end.exchange(0, ONLY, b"abcd"), [(ack(1), 0)]);
}

#[test]
fn shared_receives_are_scattered_after_being_returned_and_taken_again() {
    let mut end = solo();
    let segments = [end.segment(0, 1000), end.segment(4096, 3), end.segment(8192, 500)];
    let request = RecvRequest { wr_id: 1, tag: 0, segments: &segments };
    end.device.post_srq_recv(end.now, end.srq.unwrap(), &request).unwrap();
    end.post_shared(2, 16384, 2000);
    for _ in 0..3 {
        end.receive(0, FIRST, &pattern(MTU, 1));
        end.modify(Transition::Reset);
        end.connect(Qpn::truncate(0x77), &options());
    }
    end.receive(0, FIRST, &pattern(MTU, 7));
    end.receive(1, LAST, b"end");
    let message = [pattern(MTU, 7), b"end".to_vec()].concat();
    assert_eq!([end.bytes(0, 1000), end.bytes(4096, 3), end.bytes(8192, 24)].concat(), message);
    end.receive(2, ONLY, b"next");
    assert_eq!(end.bytes(16384, 4), b"next");
}

#[test]
fn shared_queue_wraps() {
    let mut pair = Pair::with(&Options { mtu: PathMtu::Mtu256, ..options() });
    for id in 0..4 {
        pair.b.post_shared(id, id * 1024, 1024);
    }
    let mut order = Vec::new();
    for id in 0..100u64 {
        pair.a.post(id, SendOperation::Send, 0, 1000);
        pair.run();
        for (wr_id, status) in pair.b.statuses() {
            assert_eq!(status, Status::Success);
            order.push(wr_id);
            pair.b.post_shared(wr_id, wr_id * 1024, 1024);
        }
    }
    assert_eq!(order, (0..100).map(|id| id % 4).collect::<Vec<_>>());
}
