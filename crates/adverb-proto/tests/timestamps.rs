//! The timestamps of completions. Each test checks one rule.

#[path = "harness/mod.rs"]
mod harness;

use adverb_proto::types::{PathMtu, Qpn, SendFlags, SendOperation, Status, TimestampSource, Transport};
use adverb_proto::{RxMeta, Time, Timestamp, Transition};
use adverb_wire::{Header, Operation, Psn, Rc, Send, Ud};

use harness::{End, Options, PSN, QKEY, ack, solo_with, status};

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn options(transport: Transport) -> Options {
    Options { transport, timestamps: true, mtu: PathMtu::Mtu256, ..Options::default() }
}

/// Polls the completions with their timestamps.
fn stamps(end: &mut End) -> Vec<(u64, Option<Time>)> {
    let polled = std::iter::from_fn(|| end.device.poll_timed_completion(end.cq));
    polled.map(|(completion, stamp)| (completion.wr_id, stamp.map(|stamp| stamp.time))).collect()
}

/// Delivers a forged packet that the link received at `received_at`.
fn receive_at(end: &mut End, received_at: Time, psn: u32, rc: Rc, payload: &[u8]) {
    let bytes = end.forge(&Header::new(end.qpn, Psn::wrapping(PSN) + psn, Operation::Rc(rc)), payload);
    let rx_meta = RxMeta { received_at: Some(received_at.into()), ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
}

#[test]
fn completions_of_an_untimed_queue_have_no_timestamps() {
    let mut end = solo_with(&Options { timestamps: false, ..options(Transport::Ud) });
    assert!(!end.device.has_timestamps(end.cq));
    end.post(1, SendOperation::Send, 0, 8);
    assert_eq!(end.device.poll_transmit(at(5)).unwrap().timed, None);
    assert!(end.device.poll_transmit(at(6)).is_none());
    assert_eq!(stamps(&mut end), [(1, None)]);
}

#[test]
fn a_receive_has_the_time_of_its_last_packet() {
    let mut end = solo_with(&options(Transport::Rc));
    assert!(end.device.has_timestamps(end.cq));
    end.now = at(1000);
    end.post_recv(7, 0, 600);
    receive_at(&mut end, at(300), 0, Rc::Send(Send::First), &[1; 256]);
    receive_at(&mut end, at(400), 1, Rc::Send(Send::Middle), &[2; 256]);
    receive_at(&mut end, at(500), 2, Rc::Send(Send::Last(None)), &[3; 88]);
    assert_eq!(stamps(&mut end), [(7, Some(at(500)))]);
}

#[test]
fn without_a_receive_time_the_time_of_the_call_counts() {
    let mut end = solo_with(&options(Transport::Ud));
    end.now = at(1000);
    end.post_recv(7, 0, 256);
    end.receive_datagram(Ud { qkey: QKEY, source_qp: Qpn::truncate(0x4567), immediate: None }, b"hello");
    assert_eq!(stamps(&mut end), [(7, Some(at(1000)))]);
}

#[test]
fn a_reliable_send_has_the_time_of_its_acknowledgement() {
    let mut end = solo_with(&options(Transport::Rc));
    for wr_id in 1..=3 {
        end.post(wr_id, SendOperation::Send, 0, 8);
    }
    while let Some(transmit) = end.device.poll_transmit(at(10)) {
        assert_eq!(transmit.timed, None, "the packet completes nothing");
    }
    end.now = at(1000);
    receive_at(&mut end, at(600), 0, ack(1), &[]);
    receive_at(&mut end, at(700), 2, ack(3), &[]);
    // One acknowledgement covers two requests.
    assert_eq!(stamps(&mut end), [(1, Some(at(600))), (2, Some(at(700))), (3, Some(at(700)))]);
}

#[test]
fn an_unreliable_send_has_the_time_at_which_its_last_packet_was_sent() {
    for (transport, length, packets) in [(Transport::Ud, 8, 1), (Transport::Uc, 600, 3)] {
        let mut end = solo_with(&options(transport));
        let qpn = end.qpn;
        for wr_id in 1..=2 {
            end.post(wr_id, SendOperation::Send, 0, length);
            for packet in 1..=packets {
                let timed = end.device.poll_transmit(at(10)).unwrap().timed;
                assert_eq!(timed, (packet == packets).then_some(qpn));
            }
            assert_eq!(stamps(&mut end), [], "the packet isn't sent yet");
            end.device.packet_sent(at(100 * wr_id), qpn);
            assert_eq!(stamps(&mut end), [(wr_id, Some(at(100 * wr_id)))]);
        }
        // No request is left to complete.
        end.device.packet_sent(at(300), qpn);
        assert!(end.device.poll_transmit(at(400)).is_none());
        assert_eq!(stamps(&mut end), []);
    }
}

#[test]
fn a_packet_that_the_caller_does_not_report_counts_as_sent_when_the_next_is_polled() {
    let mut end = solo_with(&options(Transport::Ud));
    end.post(1, SendOperation::Send, 0, 8);
    assert!(end.device.poll_transmit(at(10)).unwrap().timed.is_some());
    assert!(end.device.poll_transmit(at(20)).is_none());
    assert_eq!(stamps(&mut end), [(1, Some(at(20)))]);
}

#[test]
fn a_packet_of_an_unsignaled_request_is_not_timed() {
    let mut end = solo_with(&options(Transport::Ud));
    let segments = [end.segment(0, 8)];
    end.try_post(1, SendOperation::Send, SendFlags::empty(), &segments).unwrap();
    assert_eq!(end.device.poll_transmit(at(10)).unwrap().timed, None);
    assert!(end.device.poll_transmit(at(20)).is_none());
    assert_eq!(stamps(&mut end), []);
}

#[test]
fn flushed_requests_have_the_time_of_the_transition() {
    let mut end = solo_with(&options(Transport::Rc));
    end.post_recv(1, 0, 8);
    end.now = at(900);
    end.modify(Transition::Error);
    let (completion, time) = end.device.poll_timed_completion(end.cq).unwrap();
    assert_eq!((status(&completion), time), (Status::Flushed, Some(at(900).into())));
}

#[test]
fn polling_without_timestamps_removes_them() {
    let mut end = solo_with(&options(Transport::Ud));
    for wr_id in 1..=3 {
        end.post(wr_id, SendOperation::Send, 0, 8);
        assert!(end.device.poll_transmit(at(wr_id)).is_some());
        end.device.packet_sent(at(10 * wr_id), end.qpn);
    }
    assert_eq!(end.device.poll_completion(end.cq).unwrap().wr_id, 1);
    assert_eq!(stamps(&mut end), [(2, Some(at(20))), (3, Some(at(30)))]);
}

#[test]
fn completions_that_overflow_the_queue_leave_no_timestamps() {
    let mut end = solo_with(&Options { cq_capacity: 2, ..options(Transport::Rc) });
    for wr_id in 1..=3 {
        end.post(wr_id, SendOperation::Send, 0, 8);
    }
    end.transmits();
    receive_at(&mut end, at(50), 2, ack(0), &[]);
    assert_eq!(stamps(&mut end), [(1, Some(at(50))), (2, Some(at(50)))]);
}

#[test]
fn a_timestamp_has_the_source_that_the_caller_named() {
    let mut end = solo_with(&options(Transport::Ud));
    let kernel = |nanos| Timestamp { time: at(nanos), source: TimestampSource::Kernel };
    for wr_id in 1..=2 {
        end.post(wr_id, SendOperation::Send, 0, 8);
        assert!(end.device.poll_transmit(at(wr_id)).is_some());
    }
    end.device.packet_sent(kernel(20), end.qpn);
    end.post_recv(7, 0, 256);
    let operation = Operation::Ud(Ud { qkey: QKEY, source_qp: Qpn::truncate(0x4567), immediate: None });
    let bytes = end.forge(&Header::new(end.qpn, Psn::ZERO, operation), b"hello");
    end.deliver_as(&RxMeta { received_at: Some(kernel(30)), ..end.rx_meta() }, &bytes);
    let stamps: Vec<_> = std::iter::from_fn(|| end.device.poll_timed_completion(end.cq)).collect();
    let stamps: Vec<_> = stamps.into_iter().map(|(completion, stamp)| (completion.wr_id, stamp)).collect();
    // The first request completed when the second was polled, at the process's time.
    assert_eq!(stamps, [(1, Some(at(2).into())), (2, Some(kernel(20))), (7, Some(kernel(30)))]);
}
