//! What a queue pair does about congestion.

use std::time::Duration;

use adverb_proto::types::{QpState, SendOperation, Status};
use adverb_proto::{Congestion, Dcqcn, RxMeta, TimerKind, TraceEvent, Transition};
use adverb_wire::{Header, Operation, Psn, Rc, ReadResponse, Reth, Write};

use crate::harness::{ADDR, End, Options, PSN, ack, solo, solo_with};

/// Ten gigabits a second: a packet of 1024 bytes takes about 0.9 µs.
const LINE: u64 = 10_000_000_000;

fn options() -> Options {
    Options { congestion: Congestion::Dcqcn(Dcqcn::new(LINE)), ..Options::default() }
}

fn notify(end: &mut End) {
    let cnp = end.forge(&Header::cnp(end.qpn), &[]);
    end.deliver(&cnp);
}

/// Takes in an acknowledgement that a congested switch has marked.
fn hear_marked(end: &mut End, psn: u32) {
    let header = Header::new(end.qpn, Psn::wrapping(PSN) + psn, Operation::Rc(ack(0)));
    let bytes = end.forge(&header, &[]);
    let arrival = RxMeta { is_ecn_marked: true, ..end.arrival() };
    end.deliver_as(&arrival, &bytes);
}

/// Carries on until nothing is sent any more, and says how long that took and how many packets there were.
fn send_all(end: &mut End) -> (Duration, usize) {
    let start = end.now;
    let mut packets = 0;
    loop {
        packets += end.transmits().len();
        match end.device.poll_timeout() {
            // The acknowledge timer is far away.
            Some(next) if next - end.now < Duration::from_millis(1) => {
                end.now = next.max(end.now);
                end.device.handle_timeout(end.now);
            }
            _ => return (end.now - start, packets),
        }
    }
}

#[test]
fn marked_packet_is_answered_by_a_notification() {
    let mut end = solo();
    hear_marked(&mut end, 0);
    let headers = end.headers();
    assert_eq!(headers, [Header::cnp(end.remote_qpn)]);
    assert!(headers[0].becn);
    assert_eq!(end.device.statistics().ecn_marked_packets, 1);
    assert_eq!(end.device.statistics().cnps_sent, 1);
}

#[test]
fn unmarked_packets_cause_no_notification() {
    let mut end = solo();
    end.hear_ack(0);
    assert_eq!(end.headers(), []);
}

#[test]
fn notifications_are_at_least_fifty_microseconds_apart() {
    let mut end = solo();
    let mut sent = 0;
    for _ in 0..200 {
        hear_marked(&mut end, 0);
        sent += end.headers().len();
        end.now = end.now + Duration::from_micros(1);
    }
    assert_eq!(sent, 4);
    assert_eq!(end.device.statistics().ecn_marked_packets, 200);
}

#[test]
fn mark_that_comes_too_soon_is_not_remembered_for_later() {
    let mut end = solo();
    hear_marked(&mut end, 0);
    assert_eq!(end.headers().len(), 1);
    hear_marked(&mut end, 0);
    end.now = end.now + Duration::from_millis(1);
    assert_eq!(end.headers(), []);
    assert_eq!(end.device.poll_timeout(), None);
}

#[test]
fn without_a_controller_notifications_are_only_counted() {
    let mut end = solo();
    notify(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    assert_eq!(send_all(&mut end), (Duration::ZERO, 100));
    assert_eq!(end.device.statistics().cnps_received, 1);
    let told = |event: &TraceEvent| matches!(event, TraceEvent::CnpReceived { rate: None, .. });
    assert!(end.device.sink().iter().any(|(_, event)| told(event)));
}

#[test]
fn without_a_notification_nothing_is_paced() {
    let mut end = solo_with(&options());
    end.post(1, SendOperation::Send, 0, 100 << 10);
    assert_eq!(send_all(&mut end), (Duration::ZERO, 100));
}

#[test]
fn notification_spaces_packets_at_half_the_rate() {
    let mut end = solo_with(&options());
    notify(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    let (took, packets) = send_all(&mut end);
    assert_eq!(packets, 100);
    // 100 packets of 1.1 kB at 5 Gbit/s, and a little faster towards the end.
    assert!(took > Duration::from_micros(120) && took < Duration::from_micros(180), "{took:?}");
    let paced =
        |event: &TraceEvent| matches!(event, TraceEvent::TimerExpired { timer: TimerKind::Pacing, .. });
    assert!(end.device.sink().iter().filter(|(_, event)| paced(event)).count() > 50);
    let told = |event: &TraceEvent| matches!(event, TraceEvent::CnpReceived { rate: Some(rate), .. } if *rate == LINE / 2);
    assert!(end.device.sink().iter().any(|(_, event)| told(event)));
}

#[test]
fn more_notifications_slow_it_down_more() {
    let mut end = solo_with(&options());
    for _ in 0..4 {
        notify(&mut end);
        end.now = end.now + Duration::from_micros(50);
    }
    end.post(1, SendOperation::Send, 0, 20 << 10);
    let (took, _) = send_all(&mut end);
    // A sixteenth of the rate: 14 µs for each packet, less what recovers.
    assert!(took > Duration::from_micros(100), "{took:?}");
}

#[test]
fn rate_recovers_when_no_more_notifications_come() {
    let mut end = solo_with(&options());
    notify(&mut end);
    end.now = end.now + Duration::from_millis(10);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    let (took, packets) = send_all(&mut end);
    assert_eq!(packets, 100);
    // As fast as the link, and no faster.
    assert!(took > Duration::from_micros(70) && took < Duration::from_micros(95), "{took:?}");
}

#[test]
fn answers_to_reads_are_paced_too() {
    let mut end = solo_with(&options());
    notify(&mut end);
    end.hear(0, Rc::ReadRequest(Reth { va: ADDR, rkey: end.key, length: 100 << 10 }), &[]);
    let (took, packets) = send_all(&mut end);
    assert_eq!(packets, 100);
    assert!(took > Duration::from_micros(120), "{took:?}");
}

#[test]
fn acknowledgements_do_not_wait_for_the_pace() {
    let mut end = solo_with(&options());
    notify(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    let first = end.transmits().len();
    assert!(first < 20, "{first}");
    let reth = Reth { va: ADDR, rkey: end.key, length: 8 };
    let said = end.ask(0, Rc::Write(Write::Only(reth, None)), &[1; 8]);
    assert_eq!(said, [(ack(1), 0)]);
}

#[test]
fn answers_and_their_acknowledgement_keep_their_order_under_the_pace() {
    let mut end = solo_with(&options());
    notify(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    end.transmits();
    let reth = Reth { va: ADDR, rkey: end.key, length: 8 };
    end.hear(0, Rc::ReadRequest(reth), &[]);
    end.hear(1, Rc::Write(Write::Only(reth, None)), &[1; 8]);
    assert_eq!(end.says(), [], "the acknowledgement is behind the answer, which waits");
    let mut said = Vec::new();
    while said.len() < 2 {
        end.now = end.device.poll_timeout().unwrap();
        end.device.handle_timeout(end.now);
        said.extend(end.says().into_iter().filter(|(rc, _)| !matches!(rc, Rc::Send(_))));
    }
    assert!(matches!(said[0], (Rc::ReadResponse(ReadResponse::Only(_)), 0)), "{said:?}");
    assert_eq!(said[1], (ack(2), 1));
}

#[test]
fn what_the_pace_holds_back_uses_up_no_retries() {
    // The shortest timeout, 8 µs, and so slow a pace that a packet takes 50 times that.
    let mut dcqcn = Dcqcn::new(LINE);
    dcqcn.min_rate = 20_000_000;
    dcqcn.increase_interval = Duration::from_secs(1);
    let congestion = Congestion::Dcqcn(dcqcn);
    let mut end = solo_with(&Options { congestion, timeout: 1, retry_count: 2, ..options() });
    for _ in 0..20 {
        notify(&mut end);
        end.now = end.now + Duration::from_micros(50);
    }
    end.post(1, SendOperation::Send, 0, 1024);
    end.transmits();
    // The first try is lost, and the second has to wait for the pace.
    let mut tries = 1;
    while tries < 3 {
        end.now = end.device.poll_timeout().unwrap().max(end.now);
        end.device.handle_timeout(end.now);
        tries += end.transmits().len();
        assert_eq!(end.state(), QpState::ReadyToSend, "at {}", end.now);
    }
    end.hear_ack(0);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn queue_pair_in_error_paces_nothing() {
    let mut end = solo_with(&options());
    notify(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    end.transmits();
    end.modify(Transition::Error);
    assert_eq!(end.device.poll_timeout(), None);
    assert_eq!(end.statuses(), [(1, Status::Flushed)]);
}

#[test]
fn packets_of_those_who_heed_congestion_may_be_marked() {
    for (options, expected) in [(options(), true), (Options::default(), false)] {
        let mut end = solo_with(&options);
        end.post(1, SendOperation::Send, 0, 8);
        assert_eq!(end.device.poll_transmit(end.now).unwrap().ecn_capable, expected);
    }
}

#[test]
fn time_between_notifications_counts_from_when_they_are_sent() {
    let mut end = solo();
    hear_marked(&mut end, 0);
    end.now = end.now + Duration::from_micros(40);
    assert_eq!(end.headers().len(), 1);
    end.now = end.now + Duration::from_micros(40);
    hear_marked(&mut end, 0);
    assert_eq!(end.headers(), [], "40 µs after the last");
}

#[test]
fn notifications_themselves_are_not_to_be_marked() {
    let mut end = solo_with(&options());
    hear_marked(&mut end, 0);
    assert!(!end.device.poll_transmit(end.now).unwrap().ecn_capable);
}
