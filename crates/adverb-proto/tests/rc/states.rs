//! The states of a queue pair and their transitions.

use adverb_proto::types::{Access, QpState, RecvRequest, RemoteAddress, SendFlags, SendOperation, Status};
use adverb_proto::{ModifyError, PostError, QueueEvent, Transition};
use adverb_wire::{Qpn, Rc, ReadResponse};

use crate::harness::{End, Options, Pair, aeth, solo};

const WRITE: SendOperation = SendOperation::Write(RemoteAddress { addr: 0x5000, rkey: 0x1234 });

/// Returns a new end in this state.
fn end_in(state: QpState) -> End {
    let options = Options::default();
    let mut end = End::new(1, 2, &options);
    let states = [
        QpState::Reset,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::ReadyToSend,
        QpState::SendQueueDrained,
        QpState::Error,
    ];
    let steps = states.iter().position(|reached| *reached == state).unwrap();
    for step in 1..=steps {
        let transition = match step {
            1 => init(&options),
            2 => end.ready_to_receive(Qpn::truncate(0x77), &options),
            3 => End::ready_to_send(&options),
            4 => Transition::Drain,
            _ => Transition::Error,
        };
        end.modify(transition);
    }
    assert_eq!(end.state(), state);
    end
}

fn init(options: &Options) -> Transition {
    Transition::Init(adverb_proto::Init::new(options.access))
}

#[test]
fn every_transition_of_a_reliable_connection_is_allowed_or_rejected_as_specified() {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    let options = Options::default();
    for from in [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, Error] {
        for index in 0..8 {
            let mut end = end_in(from);
            let (transition, allowed, to) = match index {
                0 => (init(&options), matches!(from, Reset | Init), Init),
                1 => (end.ready_to_receive(Qpn::truncate(0x77), &options), from == Init, ReadyToReceive),
                2 => (End::ready_to_send(&options), from == ReadyToReceive, ReadyToSend),
                3 => (Transition::Drain, from == ReadyToSend, SendQueueDrained),
                4 => (Transition::Resume, from == SendQueueDrained, ReadyToSend),
                5 => (Transition::Error, from != Reset, Error),
                6 => {
                    let access = Transition::ModifyAccess(Access::REMOTE_READ);
                    (access, matches!(from, ReadyToReceive | ReadyToSend), from)
                }
                _ => (Transition::Reset, true, Reset),
            };
            let modified = end.device.modify_qp(end.now, end.qpn, &transition);
            if allowed {
                assert_eq!(modified, Ok(()), "{from:?} {transition:?}");
                assert_eq!(end.state(), to);
            } else {
                assert_eq!(modified, Err(ModifyError::WrongState(from)), "{from:?} {transition:?}");
                assert_eq!(end.state(), from);
            }
        }
    }
}

#[test]
fn retry_counts_have_three_bits() {
    for (retry_count, rnr_retry) in [(8, 0), (0, 8)] {
        let options = Options { retry_count, rnr_retry, ..Options::default() };
        let mut end = end_in(QpState::ReadyToReceive);
        let modified = end.device.modify_qp(end.now, end.qpn, &End::ready_to_send(&options));
        assert!(matches!(modified, Err(ModifyError::OutOfRange(_))));
    }
}

#[test]
fn sends_are_rejected_before_ready_to_send() {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    for state in [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, Error] {
        let mut end = end_in(state);
        let segment = end.segment(0, 8);
        let posted = end.try_post(1, WRITE, SendFlags::SIGNALED, &[segment]);
        if state.may_post_send() {
            assert_eq!(posted, Ok(()));
        } else {
            assert_eq!(posted, Err(PostError::WrongState(state)));
        }
        assert_eq!(end.transmits().len(), usize::from(state == ReadyToSend));
    }
}

#[test]
fn request_rejected_in_rtr_is_not_executed_later() {
    let mut end = end_in(QpState::ReadyToReceive);
    let segment = end.segment(0, 8);
    end.try_post(1, WRITE, SendFlags::SIGNALED, &[segment]).unwrap_err();
    end.modify(End::ready_to_send(&Options::default()));
    assert_eq!(end.sent(), []);
}

#[test]
fn receives_are_posted_in_all_states_but_reset() {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    for state in [Reset, Init, ReadyToReceive, ReadyToSend, SendQueueDrained, Error] {
        let mut end = end_in(state);
        let segments = [end.segment(0, 8)];
        let posted =
            end.device.post_recv(end.now, end.qpn, &RecvRequest { wr_id: 5, tag: 0, segments: &segments });
        assert_eq!(posted.is_ok(), state != Reset, "{state:?}");
        let flushed = if state == Error { vec![(5, Status::Flushed)] } else { vec![] };
        assert_eq!(end.statuses(), flushed);
    }
}

#[test]
fn error_flushes_all_posted_requests_in_order() {
    let mut end = solo();
    for id in 0..10 {
        let segment = end.segment(0, 8);
        let flags = if id % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        end.try_post(id, WRITE, flags, &[segment]).unwrap();
        end.post_recv(100 + id, 0, 8);
    }
    end.transmits();
    end.modify(Transition::Error);
    let flushed = |id| (id, Status::Flushed);
    let expected: Vec<_> = (0..10).map(flushed).chain((100..110).map(flushed)).collect();
    assert_eq!(end.statuses(), expected, "signaled or not");
    assert_eq!(end.device.poll_timeout(), None);
    assert_eq!(end.sent(), []);
}

#[test]
fn posts_in_error_are_flushed_at_once() {
    let mut end = end_in(QpState::Error);
    let segment = end.segment(0, 8);
    end.try_post(1, WRITE, SendFlags::empty(), &[segment]).unwrap();
    assert_eq!(end.statuses(), [(1, Status::Flushed)]);
}

#[test]
fn unrequested_error_generates_an_event() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.transmits();
    end.receive(0, crate::harness::nak(adverb_wire::NakCode::RemoteAccess, 0), &[]);
    assert_eq!(end.queue_events(), [QueueEvent::Fatal(end.qpn)]);
    let mut end = solo();
    end.modify(Transition::Error);
    assert_eq!(end.queue_events(), []);
}

#[test]
fn reset_discards_posted_requests_without_completions() {
    let mut pair = Pair::new();
    pair.a.post(1, WRITE, 0, 8);
    pair.a.post_recv(2, 0, 8);
    pair.a.transmits();
    pair.a.modify(Transition::Reset);
    assert_eq!(pair.a.statuses(), []);
    assert_eq!(pair.a.sent(), []);
    let status = pair.a.device.query_qp(pair.a.qpn).unwrap();
    assert_eq!((status.send_queue_len, status.recv_queue_len), (0, 0));
    assert_eq!(pair.a.device.poll_timeout(), None);
}

#[test]
fn queue_pair_works_again_after_reset() {
    let options = Options::default();
    let mut pair = Pair::with(&options);
    pair.a.post(1, SendOperation::Write(pair.b.remote_addr(0)), 0, 8);
    pair.a.modify(Transition::Error);
    pair.a.completions();
    for end in [&mut pair.a, &mut pair.b] {
        end.modify(Transition::Reset);
    }
    let (a, b) = (pair.a.qpn, pair.b.qpn);
    pair.a.connect(b, &options);
    pair.b.connect(a, &options);
    pair.a.post(2, SendOperation::Write(pair.b.remote_addr(0)), 0, 8);
    pair.run();
    assert_eq!(pair.a.statuses(), [(2, Status::Success)]);
}

#[test]
fn drain_finishes_started_requests_and_starts_no_others() {
    let mut end = crate::harness::solo_with(&Options { window: 2, ..Options::default() });
    end.post(1, WRITE, 0, 4096);
    end.post(2, WRITE, 0, 8);
    assert_eq!(end.transmits().len(), 2);
    end.modify(Transition::Drain);
    assert_eq!(end.queue_events(), []);
    end.receive_ack(1);
    assert_eq!(end.transmits().len(), 2, "the rest of the first message");
    end.receive_ack(3);
    assert_eq!(end.transmits().len(), 0);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.queue_events(), [QueueEvent::SendQueueDrained(end.qpn)]);
}

#[test]
fn drain_of_an_idle_queue_ends_at_once_with_one_event() {
    let mut end = solo();
    end.modify(Transition::Drain);
    assert_eq!(end.queue_events(), [QueueEvent::SendQueueDrained(end.qpn)]);
    end.post(1, WRITE, 0, 8);
    assert_eq!(end.sent(), []);
    assert_eq!(end.queue_events(), []);
}

#[test]
fn each_drain_generates_an_event() {
    let mut end = solo();
    for _ in 0..3 {
        end.modify(Transition::Drain);
        assert_eq!(end.queue_events(), [QueueEvent::SendQueueDrained(end.qpn)]);
        end.modify(Transition::Resume);
    }
}

#[test]
fn resume_continues_without_another_post() {
    let mut end = solo();
    end.modify(Transition::Drain);
    end.post(1, WRITE, 0, 8);
    assert_eq!(end.sent(), []);
    end.modify(Transition::Resume);
    assert_eq!(end.transmits().len(), 1);
}

#[test]
fn drained_queue_pair_still_receives() {
    let mut pair = Pair::new();
    pair.b.modify(Transition::Drain);
    pair.b.post_recv(7, 0, 64);
    pair.a.post(1, SendOperation::Send, 0, 8);
    pair.a.post(2, SendOperation::Read(pair.b.remote_addr(0)), 64, 8);
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.b.statuses(), [(7, Status::Success)]);
}

#[test]
fn retransmission_continues_while_draining() {
    let mut end = solo();
    end.post(1, WRITE, 0, 8);
    end.transmits();
    end.modify(Transition::Drain);
    end.wait();
    assert_eq!(end.transmits().len(), 1);
    end.receive_ack(0);
    assert_eq!(end.queue_events(), [QueueEvent::SendQueueDrained(end.qpn)]);
}

#[test]
fn destroyed_queue_pair_leaves_no_state() {
    let mut end = solo();
    end.post(1, WRITE, 0, 4096);
    end.post(2, SendOperation::Read(RemoteAddress { addr: 0, rkey: 1 }), 0, 8);
    end.post_recv(3, 0, 8);
    let now = end.now;
    assert!(end.device.poll_transmit(now).is_some());
    assert!(end.device.destroy_qp(end.qpn));
    assert!(!end.device.destroy_qp(end.qpn));
    let resource_counts = end.device.resource_counts();
    assert_eq!(
        (
            resource_counts.queue_pairs,
            resource_counts.index_entries,
            resource_counts.ready_queue_pairs,
            resource_counts.timers
        ),
        (0, 0, 0, 0)
    );
    assert_eq!(end.sent(), []);
    assert_eq!(end.device.poll_timeout(), None);
    end.receive(1, Rc::ReadResponse(ReadResponse::Only(aeth(1))), &[1; 8]);
    assert_eq!(end.statuses(), []);
    assert_eq!(end.try_post(9, WRITE, SendFlags::empty(), &[]), Err(PostError::UnknownQp));
}

#[test]
fn slots_of_destroyed_queue_pairs_are_reused_safely() {
    let options = Options::default();
    let mut end = End::new(1, 2, &options);
    let config = adverb_proto::QpConfig::rc(end.pd, end.cq, end.cq);
    let mut random = end.rng();
    let first = end.device.create_qp(config, &mut random).unwrap();
    end.device.destroy_qp(first);
    let second = end.device.create_qp(config, &mut random).unwrap();
    assert_ne!(first, second);
    assert!(end.device.query_qp(first).is_none());
    assert_eq!(end.device.query_qp(second).unwrap().state, QpState::Reset);
}
