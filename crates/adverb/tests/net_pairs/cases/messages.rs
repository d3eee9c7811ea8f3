//! Messages arrive once, complete and in order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::RemoteAccess;
use adverb::net::{RecvError, SendErrorKind};

use super::{End, Random, check, fill};

/// The maximum length of an eager message, by default.
const MAX_EAGER_LEN: usize = 16 << 10;

/// Lengths of eager and rendezvous messages, and the limits between them.
const LENGTHS: &[usize] = &[
    0,
    1,
    15,
    16,
    17,
    1000,
    MAX_EAGER_LEN - 1,
    MAX_EAGER_LEN,
    MAX_EAGER_LEN + 1,
    64 << 10,
    (64 << 10) + 1,
    1_000_000,
    8 << 20,
];

/// Sends messages, some with immediate data, and checks the echoes.
pub(super) fn send_lengths(end: End) {
    for (number, &len) in LENGTHS.iter().enumerate() {
        let mut buffer = end.pool().allocate(len).unwrap();
        fill(number, &mut buffer);
        let immediate = (number % 2 == 0).then_some(!(number as u32));
        match immediate {
            // Pool buffers and borrowed bytes in turns.
            Some(immediate) => end.send_with_imm(buffer, immediate).unwrap(),
            None => end.send(&buffer[..]).unwrap(),
        }
        let message = end.recv().unwrap().expect("the peer echoes the message");
        check(number, len, &message);
        assert_eq!(message.immediate(), immediate);
    }
    end.close().unwrap();
}

/// Sends every message back, with its immediate data.
pub(super) fn echo(end: End) {
    while let Some(message) = end.recv().unwrap() {
        match message.immediate() {
            Some(immediate) => end.send_with_imm(message, immediate).unwrap(),
            None => end.send(message).unwrap(),
        }
    }
    end.close().unwrap();
}

const MAX_LEN: usize = 64 << 20;

pub(super) fn send_max_len(end: End) {
    let mut buffer = end.pool().allocate(MAX_LEN).unwrap();
    fill(1, &mut buffer);
    end.send(buffer).unwrap();
    end.close().unwrap();
}

pub(super) fn recv_max_len(end: End) {
    check(1, MAX_LEN, &end.recv().unwrap().expect("the peer sends a message"));
    assert!(end.recv().unwrap().is_none());
    end.close().unwrap();
}

pub(super) fn exchange_long(end: End) {
    exchange(end, 300, 64 << 10);
}

pub(super) fn exchange_short(end: End) {
    exchange(end, 1_000, 300);
}

/// Sends and receives `count` messages of up to `max` bytes at the same time, like the peer.
fn exchange(end: End, count: usize, max: usize) {
    scope(|scope| {
        scope.spawn(|| {
            let (mut random, mut bytes) = (Random(1), vec![0; max]);
            for number in 0..count {
                let len = random.len(max);
                fill(number, &mut bytes[..len]);
                if number % 3 == 0 {
                    end.send_with_imm(&bytes[..len], number as u32).unwrap();
                } else {
                    end.send(&bytes[..len]).unwrap();
                }
            }
            end.shutdown().unwrap();
        });
        let mut random = Random(1);
        for number in 0..count {
            let message = end.recv().unwrap().expect("the peer sends more messages");
            check(number, random.len(max), &message);
            assert_eq!(message.immediate(), (number % 3 == 0).then_some(number as u32));
        }
        assert!(end.recv().unwrap().is_none());
        assert!(end.recv().unwrap().is_none());
    });
    end.close().unwrap();
}

/// The number of fed messages until the peer acknowledges them, and the number of repetitions.
const FED_COUNT: usize = 300;
const REPETITIONS: usize = 3;

fn fed_len(number: usize) -> usize {
    // Some lengths aren't coalesced: those longer than half of the limit, and rendezvous messages.
    match number % 100 {
        50 => 9_000,
        99 => 40_000,
        rest => rest,
    }
}

/// Feeds most of the messages and sends the others. Then waits for the acknowledgement, flushes, or closes.
pub(super) fn feed(end: End) {
    for time in 0..REPETITIONS {
        for number in 0..FED_COUNT {
            let mut bytes = vec![0; fed_len(number)];
            fill(number, &mut bytes);
            match number % 70 {
                0 => end.send(&bytes).unwrap(),
                1 => while !end.try_send(&bytes).unwrap() {},
                _ => end.feed(&bytes).unwrap(),
            }
        }
        match time {
            0 => {}
            1 => end.flush().unwrap(),
            _ => return end.close().unwrap(),
        }
        assert_eq!(&end.recv().unwrap().expect("the peer acknowledges")[..], b"received");
    }
}

pub(super) fn recv_fed(end: End) {
    for time in 0..REPETITIONS {
        for number in 0..FED_COUNT {
            check(number, fed_len(number), &end.recv().unwrap().expect("the peer sends more messages"));
        }
        if time + 1 < REPETITIONS {
            end.send(b"received").unwrap();
        }
    }
    assert!(end.recv().unwrap().is_none());
}

const THREADS: usize = 4;
const MESSAGES_PER_THREAD: usize = 250;

pub(super) fn send_from_threads(end: End) {
    scope(|scope| {
        for sender in 0..THREADS {
            let end = &end;
            scope.spawn(move || {
                for number in 0..MESSAGES_PER_THREAD {
                    end.send(&(sender * MESSAGES_PER_THREAD + number).to_le_bytes()).unwrap();
                }
            });
        }
    });
    end.close().unwrap();
}

pub(super) fn recv_by_threads(end: End) {
    let sum = AtomicUsize::new(0);
    scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(message) = end.recv().unwrap() {
                    let number = usize::from_le_bytes((&message[..]).try_into().unwrap());
                    // Numbers start at 1, so that a missing first message changes the sum.
                    sum.fetch_add(number + 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), (1..=THREADS * MESSAGES_PER_THREAD).sum::<usize>());
    end.close().unwrap();
}

/// Lengths of messages after the shutdown of the other direction.
const REPLY_LENS: &[usize] = &[0, 100, 100_000, 5];

pub(super) fn shut_down(end: End) {
    for number in 0..3 {
        end.send(&[number; 10]).unwrap();
    }
    end.shutdown().unwrap();
    let error = end.send(b"more").unwrap_err();
    assert!(matches!(error, SendErrorKind::ShutDown { .. }), "{error:?}");
    for (number, &len) in REPLY_LENS.iter().enumerate() {
        check(number, len, &end.recv().unwrap().expect("the peer still sends"));
    }
    assert!(end.recv().unwrap().is_none());
    end.close().unwrap();
}

pub(super) fn reply_after_shutdown(end: End) {
    for number in 0..3 {
        assert_eq!(&end.recv().unwrap().expect("the peer sent a message")[..], [number; 10]);
    }
    assert!(end.recv().unwrap().is_none());
    for (number, &len) in REPLY_LENS.iter().enumerate() {
        let mut bytes = vec![0; len];
        fill(number, &mut bytes);
        end.send(&bytes).unwrap();
    }
    end.close().unwrap();
}

/// The number of messages before the close.
const LAST_COUNT: usize = 24;

fn last_len(number: usize) -> usize {
    if number.is_multiple_of(4) { 100_000 } else { 10 + number }
}

pub(super) fn send_and_close(end: End) {
    for number in 0..LAST_COUNT {
        let mut bytes = vec![0; last_len(number)];
        fill(number, &mut bytes);
        end.send(&bytes).unwrap();
    }
    end.close().unwrap();
}

pub(super) fn recv_late(end: End) {
    sleep(Duration::from_millis(200));
    for number in 0..LAST_COUNT {
        check(number, last_len(number), &end.recv().unwrap().expect("the peer sent a message"));
    }
    assert!(end.recv().unwrap().is_none());
}

/// Sends until no credits are left, and then lets the peer continue.
pub(super) fn exhaust_credits(end: End) {
    let go = end.remote_region("go").unwrap();
    let (start, mut last, mut sent) = (Instant::now(), Instant::now(), 0);
    // A message in flight occupies a slot of the send queue until it is acknowledged.
    while sent < 2 || last.elapsed() < Duration::from_millis(200) {
        assert!(start.elapsed() < super::TIMEOUT, "{sent} messages were sent");
        let mut bytes = [0; 100];
        fill(sent, &mut bytes);
        if end.try_send(&bytes).unwrap() {
            sent += 1;
            last = Instant::now();
        }
        assert!(sent < 100, "{sent} messages were sent without a receive");
    }
    assert!(end.pool().stats().used_bytes <= 1 << 20, "{:?}", end.pool());
    go.fetch_add(0, 1).unwrap();
    for number in sent..sent + 200 {
        let mut bytes = [0; 100];
        fill(number, &mut bytes);
        end.send(&bytes).unwrap();
    }
    end.send(&(sent + 200).to_le_bytes()).unwrap();
    end.close().unwrap();
}

/// Receives nothing until the peer sets a word, and then everything.
pub(super) fn recv_after_signal(end: End) {
    let go = end.expose("go", 8, RemoteAccess::ATOMIC).unwrap();
    let start = Instant::now();
    while go.word(0).unwrap().load(Ordering::Acquire) == 0 {
        assert!(start.elapsed() < super::TIMEOUT);
        sleep(Duration::from_millis(5));
    }
    let mut received = 0;
    let sent = loop {
        let message = end.recv().unwrap().expect("the last message contains the number of messages");
        assert!(end.pool().stats().used_bytes <= 1 << 20, "{:?}", end.pool());
        if let Ok(count) = message[..].try_into() {
            break usize::from_le_bytes(count);
        }
        check(received, 100, &message);
        received += 1;
    };
    assert_eq!(received, sent);
    assert!(end.recv().unwrap().is_none());
}

pub(super) fn recv_with_timeout(end: End) {
    let start = Instant::now();
    let error = end.recv_timeout(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, RecvError::TimedOut { .. }), "{error:?}");
    assert!(start.elapsed() < super::TIMEOUT / 3, "{:?}", start.elapsed());
    end.send(b"ping").unwrap();
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"pong");
    end.close().unwrap();
}

pub(super) fn reply_to_ping(end: End) {
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"ping");
    end.send(b"pong").unwrap();
    assert!(end.recv().unwrap().is_none());
}
