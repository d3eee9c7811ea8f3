//! Two ends on a fabric that loses, duplicates or reorders packets.

use adverb_proto::types::{PathMtu, QpState, SendOperation, Status};
use adverb_wire::Opcode;

use crate::harness::{Options, Pair, pattern};

fn options() -> Options {
    Options { mtu: PathMtu::Mtu256, timeout: 5, ..Options::default() }
}

/// Returns a connection with requests of many kinds posted.
fn mixed_requests() -> Pair {
    let mut pair = Pair::with(&options());
    pair.a.fill(0, &pattern(4000, 1));
    pair.b.fill(8192, &pattern(4000, 2));
    pair.b.fill(64, &100u64.to_ne_bytes());
    for id in 0..3 {
        pair.b.post_recv(100 + id, 20_000 + id * 2000, 2000);
    }
    pair.a.post(0, SendOperation::Write(pair.b.remote_addr(40_000)), 0, 1000);
    pair.a.post(1, SendOperation::Send, 100, 700);
    pair.a.post(2, SendOperation::Read(pair.b.remote_addr(8192)), 50_000, 1500);
    pair.a.post(3, SendOperation::FetchAdd { remote: pair.b.remote_addr(64), add: 5 }, 60_000, 8);
    pair.a.post(4, SendOperation::WriteWithImm(pair.b.remote_addr(42_000), 7), 0, 600);
    pair.a.post(5, SendOperation::AtomicWrite { remote: pair.b.remote_addr(128), bytes: *b"atomic w" }, 0, 0);
    pair.a.post(
        6,
        SendOperation::CompareSwap { remote: pair.b.remote_addr(64), compare: 105, swap: 9 },
        60_008,
        8,
    );
    pair.a.post(7, SendOperation::SendWithImm(3), 0, 10);
    pair
}

#[track_caller]
fn check_mixed_requests(pair: &mut Pair) {
    let expected: Vec<_> = (0..8).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.a.statuses(), expected);
    let expected: Vec<_> = (100..103).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.b.statuses(), expected);
    let source = pattern(4000, 1);
    assert_eq!(pair.b.bytes(40_000, 1000), &source[..1000]);
    assert_eq!(pair.b.bytes(20_000, 700), &source[100..800]);
    assert_eq!(pair.a.bytes(50_000, 1500), &pattern(4000, 2)[..1500]);
    assert_eq!(pair.b.bytes(42_000, 600), &source[..600]);
    assert_eq!(pair.b.bytes(128, 8), b"atomic w");
    assert_eq!((pair.a.word(60_000), pair.a.word(60_008), pair.b.word(64)), (100, 105, 9));
    assert_eq!(pair.a.device.resource_counts().timers, 0);
}

#[test]
fn loss_of_any_one_packet_is_recovered_from() {
    let mut pair = mixed_requests();
    pair.run_until_idle_where(|_, _| true);
    let packets = pair.packets;
    check_mixed_requests(&mut pair);
    for lost in 0..packets {
        let mut pair = mixed_requests();
        let mut index = 0;
        pair.run_until_idle_where(|_, _| {
            index += 1;
            index - 1 != lost
        });
        check_mixed_requests(&mut pair);
    }
}

#[test]
fn loss_of_two_packets_is_recovered_from() {
    for first in 0..24 {
        for second in first + 1..28 {
            let mut pair = mixed_requests();
            let mut index = 0;
            pair.run_until_idle_where(|_, _| {
                index += 1;
                index - 1 != first && index - 1 != second
            });
            check_mixed_requests(&mut pair);
        }
    }
}

#[test]
fn loss_of_the_first_19_responses_is_recovered_from() {
    let mut pair = mixed_requests();
    let mut dropped = 0;
    pair.run_until_idle_where(|from_a, _| {
        dropped += usize::from(!from_a && dropped < 20);
        from_a || dropped >= 20
    });
    check_mixed_requests(&mut pair);
}

#[test]
fn duplicated_packets_change_nothing() {
    let mut pair = mixed_requests();
    loop {
        let (from_a, from_b) = (pair.a.transmits(), pair.b.transmits());
        if from_a.is_empty() && from_b.is_empty() {
            break;
        }
        for bytes in from_a {
            pair.b.deliver(&bytes);
            pair.b.deliver(&bytes);
        }
        for bytes in from_b {
            pair.a.deliver(&bytes);
            pair.a.deliver(&bytes);
        }
    }
    pair.run_until_idle_where(|_, _| true);
    check_mixed_requests(&mut pair);
}

#[test]
fn reordered_packets_are_neither_lost_nor_executed_twice() {
    let mut pair = mixed_requests();
    for _ in 0..200 {
        let (from_a, from_b) = (pair.a.transmits(), pair.b.transmits());
        if from_a.is_empty() && from_b.is_empty() {
            let Some(_) = pair.a.wait() else { break };
            pair.b.now = pair.a.now;
        }
        from_a.iter().rev().for_each(|bytes| pair.b.deliver(bytes));
        from_b.iter().rev().for_each(|bytes| pair.a.deliver(bytes));
    }
    pair.run_until_idle_where(|_, _| true);
    // Reordering may exceed the retries, but must neither lose data nor execute a request twice.
    let statuses = pair.a.statuses();
    assert_eq!(statuses.len(), 8);
    if statuses.iter().all(|(_, status)| *status == Status::Success) {
        assert_eq!(pair.b.word(64), 9);
    }
}

#[test]
fn request_to_an_unreachable_peer_fails_after_all_retries() {
    let mut pair = mixed_requests();
    pair.run_until_idle_where(|_, _| false);
    let statuses = pair.a.statuses();
    assert_eq!(statuses[0], (0, Status::RetryExceeded));
    assert!(statuses[1..].iter().all(|(_, status)| *status == Status::Flushed));
    assert_eq!(pair.a.state(), QpState::Error);
    // The first transmission and six retransmissions wait 4.096 µs × 2⁵ each.
    assert_eq!(pair.a.now.as_nanos(), 7 * (4096 << 5));
}

#[test]
fn lost_nak_is_recovered_by_the_timeout() {
    let mut pair = Pair::with(&options());
    pair.a.fill(0, &pattern(1000, 5));
    pair.a.post(1, SendOperation::Write(pair.b.remote_addr(0)), 0, 1000);
    let mut index = 0;
    pair.run_until_idle_where(|from_a, packet| {
        index += 1;
        // The second packet and its NAK are lost.
        index != 2 && (from_a || packet.opcode() != Opcode::RcAcknowledge || index > 6)
    });
    assert_eq!(pair.a.statuses(), [(1, Status::Success)]);
    assert_eq!(pair.b.bytes(0, 1000), pattern(1000, 5));
    assert!(pair.a.device.statistics().ack_timeouts >= 1);
}

#[test]
fn requester_waits_for_a_slow_receiver() {
    let mut pair = Pair::with(&Options { rnr_retry: 7, ..options() });
    pair.a.post(1, SendOperation::Send, 0, 600);
    pair.run();
    for _ in 0..20 {
        pair.a.wait();
        pair.b.now = pair.a.now;
        pair.run();
    }
    assert_eq!(pair.a.statuses(), []);
    pair.b.post_recv(9, 0, 1000);
    pair.run_until_idle_where(|_, _| true);
    assert_eq!(pair.a.statuses(), [(1, Status::Success)]);
    assert_eq!(pair.b.statuses(), [(9, Status::Success)]);
    assert_eq!(pair.b.device.statistics().rnr_naks_sent, 21);
}

#[test]
fn access_error_has_its_status_at_both_ends() {
    let mut pair = Pair::with(&options());
    pair.b.post_recv(7, 0, 8);
    let mut remote_addr = pair.b.remote_addr(0);
    remote_addr.rkey ^= 1;
    pair.a.post(1, SendOperation::Write(remote_addr), 0, 8);
    pair.a.post(2, SendOperation::Write(pair.b.remote_addr(0)), 0, 8);
    pair.run_until_idle_where(|_, _| true);
    assert_eq!(pair.a.statuses(), [(1, Status::RemoteAccess), (2, Status::Flushed)]);
    assert_eq!(pair.b.statuses(), [(7, Status::Flushed)]);
    assert_eq!((pair.a.state(), pair.b.state()), (QpState::Error, QpState::Error));
}

#[test]
fn long_read_survives_a_lossy_path() {
    let mut pair = Pair::with(&Options { retry_count: 7, ..options() });
    pair.b.fill(0, &pattern(100_000, 9));
    pair.a.post(1, SendOperation::Read(pair.b.remote_addr(0)), 200_000, 100_000);
    let mut index = 0u64;
    pair.run_until_idle_where(|_, _| {
        index += 1;
        !index.is_multiple_of(13)
    });
    assert_eq!(pair.a.statuses(), [(1, Status::Success)]);
    assert_eq!(pair.a.bytes(200_000, 100_000), pattern(100_000, 9));
}
