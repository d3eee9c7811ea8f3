//! Operations between two ends on a fabric that loses nothing.

use adverb_proto::types::{
    CompletedOperation, FlushRange, PathMtu, SendFlags, SendOperation, SendRequest, Status, Success,
};

use crate::harness::{Options, Pair, pattern};

/// Returns lengths with every amount of padding, and lengths around multiples of the MTU.
fn lengths(mtu: u32) -> [u32; 12] {
    [0, 1, 2, 3, 4, 7, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 5, 7 * mtu - 3]
}

fn each_mtu(test: impl Fn(&mut Pair, u32)) {
    for mtu in PathMtu::ALL {
        let options = Options { mtu, ..Options::default() };
        test(&mut Pair::with(&options), u32::from(mtu.bytes()));
    }
}

#[test]
fn write_of_any_length_at_every_mtu_writes_its_range_only() {
    each_mtu(|pair, mtu| {
        for length in lengths(mtu) {
            let expected = pattern(length as usize, length as u8);
            pair.a.fill(100, &expected);
            pair.b.fill(0, &[0xee; 64 << 10]);
            pair.a.post(1, SendOperation::Write(pair.b.remote_addr(1003)), 100, length);
            pair.run();
            assert_eq!(pair.a.statuses(), [(1, Status::Success)]);
            assert_eq!(pair.b.bytes(1003, length as usize), expected);
            assert_eq!(pair.b.bytes(0, 1003), [0xee; 1003]);
            assert_eq!(pair.b.bytes(1003 + length as usize, 64), [0xee; 64]);
            assert!(pair.b.completions().is_empty());
        }
    });
}

#[test]
fn read_of_any_length_at_every_mtu_writes_its_buffer_only() {
    each_mtu(|pair, mtu| {
        for length in lengths(mtu) {
            let expected = pattern(length as usize, length as u8);
            pair.b.fill(1003, &expected);
            pair.a.fill(0, &[0xee; 64 << 10]);
            pair.a.post(1, SendOperation::Read(pair.b.remote_addr(1003)), 100, length);
            pair.run();
            let completions = pair.a.completions();
            assert_eq!(
                completions[0].outcome.unwrap(),
                Success { operation: CompletedOperation::Read, length }
            );
            assert_eq!(pair.a.bytes(100, length as usize), expected);
            assert_eq!(pair.a.bytes(0, 100), [0xee; 100]);
            assert_eq!(pair.a.bytes(100 + length as usize, 64), [0xee; 64]);
        }
    });
}

#[test]
fn send_of_any_length_at_every_mtu_fills_the_oldest_receive() {
    each_mtu(|pair, mtu| {
        for length in lengths(mtu) {
            let expected = pattern(length as usize, length as u8);
            pair.a.fill(100, &expected);
            pair.b.post_recv(7, 5000, 64 << 10);
            pair.b.post_recv(8, 200_000, 64 << 10);
            pair.a.post(1, SendOperation::Send, 100, length);
            pair.a.post(2, SendOperation::Send, 100, 1);
            pair.run();
            assert_eq!(pair.a.statuses(), [(1, Status::Success), (2, Status::Success)]);
            let completions = pair.b.completions();
            assert_eq!(completions[0].wr_id, 7);
            assert_eq!(completions[0].outcome.unwrap().length, length);
            assert_eq!(completions[1].wr_id, 8);
            assert_eq!(pair.b.bytes(5000, length as usize), expected);
        }
    });
}

#[test]
fn send_with_immediate_delivers_the_immediate_data() {
    for length in [0, 5, 3000] {
        let mut pair = Pair::new();
        pair.b.post_recv(7, 0, 4096);
        pair.a.post(1, SendOperation::SendWithImm(0xdead_beef), 0, length);
        pair.run();
        let received = pair.b.completions()[0].outcome.unwrap();
        let operation = CompletedOperation::Recv {
            immediate: Some(0xdead_beef),
            invalidated: None,
            source: None,
            has_grh: false,
        };
        assert_eq!(received, Success { operation, length });
    }
}

#[test]
fn write_with_immediate_consumes_a_receive_and_leaves_its_buffer_unchanged() {
    for length in [0, 5, 3000] {
        let mut pair = Pair::new();
        pair.b.post_recv(7, 0, 4096);
        let before = pair.b.bytes(0, 4096).to_vec();
        let expected = pattern(length as usize, 9);
        pair.a.fill(0, &expected);
        pair.a.post(1, SendOperation::WriteWithImm(pair.b.remote_addr(8192), 42), 0, length);
        pair.run();
        assert_eq!(pair.a.statuses(), [(1, Status::Success)]);
        let received = pair.b.completions()[0];
        assert_eq!(received.wr_id, 7);
        let operation = CompletedOperation::RecvWrite { immediate: 42 };
        assert_eq!(received.outcome.unwrap(), Success { operation, length });
        assert_eq!(pair.b.bytes(0, 4096), before);
        assert_eq!(pair.b.bytes(8192, length as usize), expected);
    }
}

#[test]
fn compare_swap_swaps_only_the_expected_value_and_returns_the_old_one() {
    let mut pair = Pair::new();
    pair.b.fill(64, &7u64.to_ne_bytes());
    let remote = pair.b.remote_addr(64);
    pair.a.post(1, SendOperation::CompareSwap { remote, compare: 7, swap: 9 }, 0, 8);
    pair.a.post(2, SendOperation::CompareSwap { remote, compare: 7, swap: 11 }, 8, 8);
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!((pair.a.word(0), pair.a.word(8), pair.b.word(64)), (7, 9, 9));
}

#[test]
fn fetch_add_wraps_and_returns_the_old_value() {
    let mut pair = Pair::new();
    pair.b.fill(64, &u64::MAX.to_ne_bytes());
    let remote = pair.b.remote_addr(64);
    pair.a.post(1, SendOperation::FetchAdd { remote, add: 3 }, 0, 8);
    pair.a.post(2, SendOperation::FetchAdd { remote, add: 5 }, 8, 8);
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!((pair.a.word(0), pair.a.word(8), pair.b.word(64)), (u64::MAX, 2, 7));
}

#[test]
fn atomic_write_writes_eight_bytes() {
    let mut pair = Pair::new();
    let remote = pair.b.remote_addr(4096);
    pair.a.post(1, SendOperation::AtomicWrite { remote, bytes: *b"together" }, 0, 0);
    pair.run();
    let completions = pair.a.completions();
    assert_eq!(completions[0].outcome.unwrap().operation, CompletedOperation::AtomicWrite);
    assert_eq!(pair.b.bytes(4096, 8), b"together");
}

#[test]
fn flush_of_a_range_and_of_a_region_completes() {
    for whole_region in [false, true] {
        let mut pair = Pair::new();
        let flush = FlushRange {
            remote: pair.b.remote_addr(4096),
            length: 100,
            whole_region,
            global: true,
            persistent: true,
        };
        pair.a.post(1, SendOperation::Flush(flush), 0, 0);
        pair.run();
        assert_eq!(pair.a.completions()[0].outcome.unwrap().operation, CompletedOperation::Flush);
    }
}

#[test]
fn segments_are_gathered_and_scattered_in_order() {
    for length in [10, 1024, 5000] {
        let mut pair = Pair::new();
        let expected = pattern(length, 3);
        // The three segments are not in memory order, and one is empty.
        let cut = length / 3;
        pair.a.fill(9000, &expected[..cut]);
        pair.a.fill(100, &expected[cut..]);
        let segments = [
            pair.a.segment(9000, cut as u32),
            pair.a.segment(50, 0),
            pair.a.segment(100, (length - cut) as u32),
        ];
        let write = SendOperation::Write(pair.b.remote_addr(77));
        pair.a.try_post(1, write, SendFlags::SIGNALED, &segments).unwrap();
        let read = SendOperation::Read(pair.b.remote_addr(77));
        let targets = [
            pair.a.segment(70_000, 1),
            pair.a.segment(80_000, cut as u32),
            pair.a.segment(90_000, (length - cut - 1) as u32),
        ];
        pair.a.try_post(2, read, SendFlags::SIGNALED | SendFlags::FENCE, &targets).unwrap();
        pair.run();
        assert_eq!(pair.a.statuses(), [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(pair.b.bytes(77, length), expected);
        assert_eq!(pair.a.bytes(70_000, 1), &expected[..1]);
        assert_eq!(pair.a.bytes(80_000, cut), &expected[1..=cut]);
        assert_eq!(pair.a.bytes(90_000, length - cut - 1), &expected[cut + 1..]);
    }
}

#[test]
fn inline_bytes_are_copied_when_they_are_posted() {
    let mut pair = Pair::new();
    for round in 0..300u64 {
        let mut bytes = pattern(200, round as u8);
        let request = SendRequest::<()> {
            wr_id: round,
            tag: 0,
            operation: SendOperation::Write(pair.b.remote_addr(0)),
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
            segments: &[],
            destination: None,
        };
        pair.a.device.post_send_inline(pair.a.now, pair.a.qpn, &request, &bytes).unwrap();
        let expected = bytes.clone();
        bytes.fill(0);
        if round % 3 == 0 {
            pair.run();
            assert_eq!(pair.b.bytes(0, 200), expected);
        }
    }
}

#[test]
fn completions_of_different_operations_are_in_the_order_of_posting() {
    let mut pair = Pair::new();
    for id in 0..12u64 {
        pair.b.post_recv(id, 300_000, 8192);
    }
    for id in (0..36u64).step_by(6) {
        let remote = pair.b.remote_addr(64);
        pair.a.post(id, SendOperation::Read(pair.b.remote_addr(0)), 0, 5000);
        pair.a.post(id + 1, SendOperation::Send, 0, 5000);
        pair.a.post(id + 2, SendOperation::FetchAdd { remote, add: 1 }, 8192, 8);
        pair.a.post(id + 3, SendOperation::Write(pair.b.remote_addr(9000)), 0, 1);
        pair.a.post(id + 4, SendOperation::SendWithImm(1), 0, 0);
        pair.a.post(id + 5, SendOperation::AtomicWrite { remote, bytes: [0; 8] }, 0, 0);
    }
    pair.run();
    let expected: Vec<_> = (0..36).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.a.statuses(), expected);
    let expected: Vec<_> = (0..12).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.b.statuses(), expected);
}

#[test]
fn unsignaled_requests_that_succeed_produce_no_completion() {
    let mut pair = Pair::new();
    let segment = pair.a.segment(0, 8);
    let write = SendOperation::Write(pair.b.remote_addr(0));
    pair.a.try_post(1, write, SendFlags::empty(), &[segment]).unwrap();
    pair.a.try_post(2, write, SendFlags::SIGNALED, &[segment]).unwrap();
    pair.run();
    assert_eq!(pair.a.statuses(), [(2, Status::Success)]);
}

#[test]
fn signal_all_signals_every_request() {
    let mut pair = Pair::with(&Options { signal_all: true, ..Options::default() });
    let segment = pair.a.segment(0, 8);
    pair.a.try_post(1, SendOperation::Write(pair.b.remote_addr(0)), SendFlags::empty(), &[segment]).unwrap();
    pair.run();
    assert_eq!(pair.a.statuses(), [(1, Status::Success)]);
}

#[test]
fn both_directions_work_at_once() {
    let mut pair = Pair::new();
    pair.a.fill(0, &pattern(50_000, 1));
    pair.b.fill(0, &pattern(50_000, 2));
    pair.a.post(1, SendOperation::Write(pair.b.remote_addr(100_000)), 0, 50_000);
    pair.b.post(1, SendOperation::Write(pair.a.remote_addr(100_000)), 0, 50_000);
    pair.a.post(2, SendOperation::Read(pair.b.remote_addr(0)), 200_000, 50_000);
    pair.b.post(2, SendOperation::Read(pair.a.remote_addr(0)), 200_000, 50_000);
    pair.run();
    assert_eq!(pair.b.bytes(100_000, 50_000), pattern(50_000, 1));
    assert_eq!(pair.a.bytes(100_000, 50_000), pattern(50_000, 2));
    assert_eq!(pair.a.bytes(200_000, 50_000), pattern(50_000, 2));
    assert_eq!(pair.b.bytes(200_000, 50_000), pattern(50_000, 1));
}

#[test]
fn sequence_numbers_wrap() {
    let mut pair = Pair::with(&Options { psn: 0xff_fff0, ..Options::default() });
    for id in 0..40 {
        let expected = pattern(2100, id as u8);
        pair.a.fill(0, &expected);
        pair.a.post(id, SendOperation::Write(pair.b.remote_addr(10_000)), 0, 2100);
        pair.a.post(id, SendOperation::Read(pair.b.remote_addr(10_000)), 20_000, 2100);
        pair.run();
        assert_eq!(pair.a.bytes(20_000, 2100), expected);
        assert_eq!(pair.a.statuses().len(), 2);
    }
}
