//! Congestion control of a queue pair.

use std::time::Duration;

use adverb_proto::types::{QpState, SendOperation, Status};
use adverb_proto::{Congestion, Dcqcn, RxMeta, TimerKind, TraceEvent, Transition};
use adverb_wire::{Header, Operation, Psn, Rc, ReadResponse, Reth, Write};

use crate::harness::{ADDR, End, Options, PSN, ack, solo, solo_with};

/// A line rate of 10 Gbit/s: a packet of 1024 bytes takes about 0.9 µs.
const LINE_RATE: u64 = 10_000_000_000;

fn options() -> Options {
    Options { congestion: Congestion::Dcqcn(Dcqcn::new(LINE_RATE)), ..Options::default() }
}

fn receive_cnp(end: &mut End) {
    let cnp = end.forge(&Header::cnp(end.qpn), &[]);
    end.deliver(&cnp);
}

/// Delivers an acknowledgement that a congested switch has marked.
fn receive_marked(end: &mut End, psn: u32) {
    let header = Header::new(end.qpn, Psn::wrapping(PSN) + psn, Operation::Rc(ack(0)));
    let bytes = end.forge(&header, &[]);
    let rx_meta = RxMeta { is_ecn_marked: true, ..end.rx_meta() };
    end.deliver_as(&rx_meta, &bytes);
}

/// Sends until no packet is left. Returns the time and the number of packets.
fn send_all(end: &mut End) -> (Duration, usize) {
    let start = end.now;
    let mut packets = 0;
    loop {
        packets += end.transmits().len();
        match end.device.poll_timeout() {
            // The acknowledgement timeout is much later.
            Some(next) if next - end.now < Duration::from_millis(1) => {
                end.now = next.max(end.now);
                end.device.handle_timeout(end.now);
            }
            _ => return (end.now - start, packets),
        }
    }
}

#[test]
fn marked_packet_causes_a_cnp() {
    let mut end = solo();
    receive_marked(&mut end, 0);
    let headers = end.headers();
    assert_eq!(headers, [Header::cnp(end.remote_qpn)]);
    assert!(headers[0].becn);
    assert_eq!(end.device.statistics().ecn_marked_packets, 1);
    assert_eq!(end.device.statistics().cnps_sent, 1);
}

#[test]
fn unmarked_packets_cause_no_cnp() {
    let mut end = solo();
    end.receive_ack(0);
    assert_eq!(end.headers(), []);
}

#[test]
fn cnps_are_at_least_fifty_microseconds_apart() {
    let mut end = solo();
    let mut sent = 0;
    for _ in 0..200 {
        receive_marked(&mut end, 0);
        sent += end.headers().len();
        end.now = end.now + Duration::from_micros(1);
    }
    assert_eq!(sent, 4);
    assert_eq!(end.device.statistics().ecn_marked_packets, 200);
}

#[test]
fn mark_within_the_interval_causes_no_later_cnp() {
    let mut end = solo();
    receive_marked(&mut end, 0);
    assert_eq!(end.headers().len(), 1);
    receive_marked(&mut end, 0);
    end.now = end.now + Duration::from_millis(1);
    assert_eq!(end.headers(), []);
    assert_eq!(end.device.poll_timeout(), None);
}

#[test]
fn without_congestion_control_cnps_are_only_counted() {
    let mut end = solo();
    receive_cnp(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    assert_eq!(send_all(&mut end), (Duration::ZERO, 100));
    assert_eq!(end.device.statistics().cnps_received, 1);
    let is_cnp = |event: &TraceEvent| matches!(event, TraceEvent::CnpReceived { rate: None, .. });
    assert!(end.device.sink().iter().any(|(_, event)| is_cnp(event)));
}

#[test]
fn without_a_cnp_nothing_is_paced() {
    let mut end = solo_with(&options());
    end.post(1, SendOperation::Send, 0, 100 << 10);
    assert_eq!(send_all(&mut end), (Duration::ZERO, 100));
}

#[test]
fn cnp_paces_packets_at_half_the_rate() {
    let mut end = solo_with(&options());
    receive_cnp(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    let (elapsed, packets) = send_all(&mut end);
    assert_eq!(packets, 100);
    // 100 packets of 1.1 kB take 178 µs at 5 Gbit/s, and the rate increases every 55 µs.
    assert!(elapsed > Duration::from_micros(120) && elapsed < Duration::from_micros(180), "{elapsed:?}");
    let is_pacing =
        |event: &TraceEvent| matches!(event, TraceEvent::TimerExpired { timer: TimerKind::Pacing, .. });
    assert!(end.device.sink().iter().filter(|(_, event)| is_pacing(event)).count() > 50);
    let is_cnp = |event: &TraceEvent| matches!(event, TraceEvent::CnpReceived { rate: Some(rate), .. } if *rate == LINE_RATE / 2);
    assert!(end.device.sink().iter().any(|(_, event)| is_cnp(event)));
}

#[test]
fn further_cnps_reduce_the_rate_further() {
    let mut end = solo_with(&options());
    for _ in 0..4 {
        receive_cnp(&mut end);
        end.now = end.now + Duration::from_micros(50);
    }
    end.post(1, SendOperation::Send, 0, 20 << 10);
    let (elapsed, _) = send_all(&mut end);
    // At a sixteenth of the rate a packet takes 14 µs, and less after some recovery.
    assert!(elapsed > Duration::from_micros(100), "{elapsed:?}");
}

#[test]
fn rate_recovers_without_further_cnps() {
    let mut end = solo_with(&options());
    receive_cnp(&mut end);
    end.now = end.now + Duration::from_millis(10);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    let (elapsed, packets) = send_all(&mut end);
    assert_eq!(packets, 100);
    // The rate is the line rate, and not more.
    assert!(elapsed > Duration::from_micros(70) && elapsed < Duration::from_micros(95), "{elapsed:?}");
}

#[test]
fn read_responses_are_paced() {
    let mut end = solo_with(&options());
    receive_cnp(&mut end);
    end.receive(0, Rc::ReadRequest(Reth { va: ADDR, rkey: end.key, length: 100 << 10 }), &[]);
    let (elapsed, packets) = send_all(&mut end);
    assert_eq!(packets, 100);
    assert!(elapsed > Duration::from_micros(120), "{elapsed:?}");
}

#[test]
fn acknowledgements_are_not_paced() {
    let mut end = solo_with(&options());
    receive_cnp(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    let first = end.transmits().len();
    assert!(first < 20, "{first}");
    let reth = Reth { va: ADDR, rkey: end.key, length: 8 };
    let sent = end.exchange(0, Rc::Write(Write::Only(reth, None)), &[1; 8]);
    assert_eq!(sent, [(ack(1), 0)]);
}

#[test]
fn pacing_keeps_the_order_of_responses_and_acknowledgements() {
    let mut end = solo_with(&options());
    receive_cnp(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    end.transmits();
    let reth = Reth { va: ADDR, rkey: end.key, length: 8 };
    end.receive(0, Rc::ReadRequest(reth), &[]);
    end.receive(1, Rc::Write(Write::Only(reth, None)), &[1; 8]);
    assert_eq!(end.sent(), [], "the acknowledgement follows the response, which waits");
    let mut sent = Vec::new();
    while sent.len() < 2 {
        end.now = end.device.poll_timeout().unwrap();
        end.device.handle_timeout(end.now);
        sent.extend(end.sent().into_iter().filter(|(rc, _)| !matches!(rc, Rc::Send(_))));
    }
    assert!(matches!(sent[0], (Rc::ReadResponse(ReadResponse::Only(_)), 0)), "{sent:?}");
    assert_eq!(sent[1], (ack(2), 1));
}

#[test]
fn pacing_consumes_no_retries() {
    // The minimum timeout is 8 µs, and the rate is so low that a packet takes 50 times as long.
    let mut dcqcn = Dcqcn::new(LINE_RATE);
    dcqcn.min_rate = 20_000_000;
    dcqcn.increase_interval = Duration::from_secs(1);
    let congestion = Congestion::Dcqcn(dcqcn);
    let mut end = solo_with(&Options { congestion, timeout: 1, retry_count: 2, ..options() });
    for _ in 0..20 {
        receive_cnp(&mut end);
        end.now = end.now + Duration::from_micros(50);
    }
    end.post(1, SendOperation::Send, 0, 1024);
    end.transmits();
    // The first two transmissions are lost, and pacing delays the retransmissions.
    let mut attempts = 1;
    while attempts < 3 {
        end.now = end.device.poll_timeout().unwrap().max(end.now);
        end.device.handle_timeout(end.now);
        attempts += end.transmits().len();
        assert_eq!(end.state(), QpState::ReadyToSend, "at {}", end.now);
    }
    end.receive_ack(0);
    assert_eq!(end.statuses(), [(1, Status::Success)]);
}

#[test]
fn queue_pair_in_error_paces_nothing() {
    let mut end = solo_with(&options());
    receive_cnp(&mut end);
    end.post(1, SendOperation::Send, 0, 100 << 10);
    end.transmits();
    end.modify(Transition::Error);
    assert_eq!(end.device.poll_timeout(), None);
    assert_eq!(end.statuses(), [(1, Status::Flushed)]);
}

#[test]
fn packets_with_congestion_control_are_ecn_capable() {
    for (options, expected) in [(options(), true), (Options::default(), false)] {
        let mut end = solo_with(&options);
        end.post(1, SendOperation::Send, 0, 8);
        assert_eq!(end.device.poll_transmit(end.now).unwrap().ecn_capable, expected);
    }
}

#[test]
fn cnp_interval_starts_when_a_cnp_is_sent() {
    let mut end = solo();
    receive_marked(&mut end, 0);
    end.now = end.now + Duration::from_micros(40);
    assert_eq!(end.headers().len(), 1);
    end.now = end.now + Duration::from_micros(40);
    receive_marked(&mut end, 0);
    assert_eq!(end.headers(), [], "40 µs after the last");
}

#[test]
fn cnps_are_not_ecn_capable() {
    let mut end = solo_with(&options());
    receive_marked(&mut end, 0);
    assert!(!end.device.poll_transmit(end.now).unwrap().ecn_capable);
}
