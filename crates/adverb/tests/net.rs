//! Messages arrive once, complete and in order, for all lengths of messages and rings. (`net_pairs` contains the tests
//! for any two devices.)

#![cfg(feature = "soft")]

#[path = "common/connections.rs"]
mod connections;
#[path = "common/random.rs"]
mod random;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::memory::Pages;
use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::net::{
    ConnectError, ConnectionError, ExposeError, Options, RecvError, RemoteAccess, RemoteError,
    RemoteErrorKind, SendError, SendErrorKind,
};
use adverb::verbs::{FaultConfig, SoftDevice, Switch};
use connections::{blocking_pair, minimal, options};
use random::Random;

fn pair(options: &Options) -> (Connection, Connection) {
    blocking_pair(options, options)
}

impl Random {
    /// Returns a length up to `max`. Short lengths are as frequent as long ones.
    fn len(&mut self, max: usize) -> usize {
        let bits = self.below(max.ilog2() as usize + 1) + 1;
        self.below(1 << bits).min(max)
    }
}

/// Fills a message so that each byte depends on the message's number and the byte's index.
fn fill(number: usize, bytes: &mut [u8]) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (number ^ at ^ at >> 8) as u8;
    }
}

fn check(number: usize, len: usize, bytes: &[u8]) {
    assert_eq!(bytes.len(), len, "message {number}");
    let wrong = bytes.iter().enumerate().position(|(at, byte)| *byte != (number ^ at ^ at >> 8) as u8);
    assert_eq!(wrong, None, "message {number} of {len} bytes");
}

/// Sends `count` messages of up to `max` bytes in both directions at the same time.
fn exchange((left, right): (Connection, Connection), count: usize, max: usize) {
    scope(|scope| {
        for (connection, seed) in [(&left, 1), (&right, 2)] {
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut bytes = vec![0; max];
                for number in 0..count {
                    let len = random.len(max);
                    fill(number, &mut bytes[..len]);
                    if number % 3 == 0 {
                        connection.send_with_imm(&bytes[..len], number as u32).unwrap();
                    } else {
                        connection.send(&bytes[..len]).unwrap();
                    }
                }
                connection.shutdown().unwrap();
            });
        }
        for (connection, seed) in [(&left, 2), (&right, 1)] {
            scope.spawn(move || {
                let mut random = Random(seed);
                for number in 0..count {
                    let message = connection.recv().unwrap().expect("the peer sends more messages");
                    check(number, random.len(max), &message);
                    assert_eq!(message.immediate(), (number % 3 == 0).then_some(number as u32));
                }
                assert!(connection.recv().unwrap().is_none());
                assert!(connection.recv().unwrap().is_none());
            });
        }
    });
    scope(|scope| {
        scope.spawn(|| left.close().unwrap());
        scope.spawn(|| right.close().unwrap());
    });
}

#[test]
fn messages_of_all_lengths_arrive_in_both_directions() {
    exchange(pair(&options()), 2_000, 64 << 10);
}

#[test]
fn messages_arrive_through_the_smallest_rings() {
    exchange(pair(&minimal(options())), 20_000, 300);
}

#[test]
fn messages_arrive_through_rings_of_odd_sizes() {
    for ring in [528, 1_008, 4_112] {
        exchange(pair(&options().recv_ring_size(ring).max_outstanding_writes(7)), 3_000, 2_000);
    }
}

#[test]
fn no_message_is_lost_despite_packet_loss() {
    let switch = Switch::default();
    let device = |number| {
        let faults = FaultConfig { loss_ppm: 20_000, ..FaultConfig::new(number) };
        let address = format!("10.0.0.{number}").parse().unwrap();
        SoftDevice::on_switch(&switch, address).faults(faults).open().unwrap()
    };
    let sides = [device(1), device(2)]
        .map(|device| options().device(&device).recv_ring_size(4096).max_outstanding_writes(16));
    let [client, server] = &sides;
    exchange(blocking_pair(client, server), 500, 50_000);
}

#[test]
fn sides_with_different_options_exchange_messages() {
    let (small, large) = (
        minimal(options()),
        options().recv_ring_size(1 << 20).max_outstanding_writes(256).eager_threshold(1 << 20),
    );
    exchange(blocking_pair(&small, &large), 1_000, 5_000);
    exchange(blocking_pair(&large, &small), 1_000, 5_000);
}

#[test]
fn rendezvous_buffers_return_to_the_pool() {
    let (left, right) = pair(&options());
    let max = 9 << 20;
    scope(|scope| {
        scope.spawn(|| {
            for (number, len) in [max, 100_000, 5, max, 16 << 10, (16 << 10) + 1].into_iter().enumerate() {
                let mut buffer = left.pool().allocate(len).unwrap();
                fill(number, &mut buffer);
                left.send(buffer).unwrap();
            }
        });
        for (number, len) in [max, 100_000, 5, max, 16 << 10, (16 << 10) + 1].into_iter().enumerate() {
            check(number, len, &right.recv().unwrap().unwrap());
        }
    });
    // The buffers of rendezvous messages are back in the pool. (Those of eager messages return with later completions.)
    assert!(matches!(left.recv_timeout(Duration::from_millis(100)), Err(RecvError::TimedOut { .. })));
    assert!(left.pool().stats().used_bytes < 64 << 10, "{:?}", left.pool());
}

#[test]
fn sending_a_message_above_the_limit_fails() {
    // The limit is 64 MiB by default, and at most 1 GiB with the option.
    for (options, max) in [(options(), 64 << 20), (options().max_message_size(1 << 30), 1 << 30)] {
        let (left, _right) = pair(&options);
        let bytes = vec![0; max + 1];
        let error = left.send(&bytes[..]).unwrap_err().kind;
        assert!(
            matches!(error, SendErrorKind::TooLong { max: limit, .. } if limit == max as u64),
            "{error:?}"
        );
    }
}

#[test]
fn a_stopped_receiver_blocks_the_sender_and_no_message_is_lost() {
    let options = minimal(options()).recv_buffer_limit(1000);
    let (left, right) = pair(&options);
    let (sent, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 100];
            while !stop.load(Ordering::Relaxed) {
                let number = sent.load(Ordering::Relaxed);
                fill(number, &mut bytes);
                left.send(&bytes).unwrap();
                sent.store(number + 1, Ordering::Relaxed);
            }
            left.shutdown().unwrap();
        });
        // Waits until the sender blocks. (Before its first message it makes no progress either.)
        let mut before = 0;
        loop {
            sleep(Duration::from_millis(300));
            let now = sent.load(Ordering::Relaxed);
            assert!(now < 100, "{now} messages were sent without a receive");
            if now == before && now > 0 {
                break;
            }
            before = now;
        }
        assert!(left.pool().stats().used_bytes <= 1 << 20 && right.pool().stats().used_bytes <= 1 << 20);
        stop.store(true, Ordering::Relaxed);
        let mut received = 0;
        while let Some(message) = right.recv().unwrap() {
            check(received, 100, &message);
            received += 1;
        }
        assert_eq!(received, sent.load(Ordering::Relaxed));
    });
}

/// Whether the message was sent.
fn is_sent(result: Result<(), SendError>) -> bool {
    match result {
        Ok(()) => true,
        Err(SendError { kind: SendErrorKind::WouldBlock { .. }, .. }) => false,
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn try_send_fails_without_credits() {
    let (left, right) = pair(&minimal(options()).recv_buffer_limit(0));
    let mut sent = 0;
    while is_sent(left.try_send(&[7; 100])) {
        sent += 1;
        assert!(sent < 100);
    }
    assert!(sent >= 2, "{sent}");
    for _ in 0..sent {
        assert_eq!(right.recv().unwrap().unwrap().len(), 100);
    }
    // The peer returns credits with its next message.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_sent(left.try_send(b"again")) {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn empty_messages_count_against_the_receive_buffer_limit() {
    let (left, right) = pair(&options().recv_buffer_limit(64 << 10));
    let mut sent = 0;
    // The peer drives the connection, but receives nothing.
    for _ in 0..200 {
        for _ in 0..100 {
            sent += usize::from(is_sent(left.try_send(&[])));
        }
        assert!(is_sent(right.try_send(b"still here")));
        left.recv().unwrap().unwrap();
    }
    assert!((500..5_000).contains(&sent), "{sent}");
    for _ in 0..sent {
        assert!(right.recv().unwrap().unwrap().is_empty());
    }
}

#[test]
fn failed_sends_return_their_buffers() {
    let options = options().keepalive(Duration::from_millis(100));
    let (left, right) = pair(&minimal(options));
    right.expose("memory", 4096, RemoteAccess::WRITE).unwrap();
    let remote = left.remote_region("memory").unwrap();
    let buffer = |len: usize| {
        let mut buffer = left.pool().allocate(len).unwrap();
        fill(len, &mut buffer);
        buffer
    };
    let check_returned = |len: usize, sent: Result<(), SendError>| {
        let failure = sent.unwrap_err();
        check(len, len, &failure.buffer.expect("the buffer comes back"));
        failure.kind
    };
    let check_written = |len: usize, written: Result<(), RemoteError>| {
        let failure = written.unwrap_err();
        check(len, len, &failure.buffer.expect("the buffer comes back"));
        failure.kind
    };
    // Without credits: eager messages, and rendezvous messages.
    while is_sent(left.try_send(buffer(100))) {}
    assert!(matches!(check_returned(100, left.try_send(buffer(100))), SendErrorKind::WouldBlock { .. }));
    assert!(matches!(
        check_returned(10_000, left.try_send(buffer(10_000))),
        SendErrorKind::WouldBlock { .. }
    ));
    // Writes outside of the region, while the connection fails, and after that.
    let refused = check_written(4097, remote.write(0, buffer(4097)));
    assert!(matches!(refused, RemoteErrorKind::OutOfBounds { .. }), "{refused:?}");
    drop(right);
    let written = check_written(4096, remote.write(0, buffer(4096)));
    assert!(matches!(written, RemoteErrorKind::ConnectionLost(_)), "{written:?}");
    for len in [100, 10_000] {
        let sent = check_returned(len, left.send(buffer(len)));
        assert!(matches!(sent, SendErrorKind::ConnectionLost(_)), "{sent:?}");
    }
    let written = check_written(8, remote.write(0, buffer(8)));
    assert!(matches!(written, RemoteErrorKind::ConnectionLost(_)), "{written:?}");
    // Borrowed bytes aren't returned.
    assert!(left.send(&[0; 10_000]).unwrap_err().buffer.is_none());
}

#[test]
fn a_message_of_one_connection_is_forwarded_over_another() {
    let (left, right) = pair(&options());
    let (next, last) = pair(&options());
    for len in [10, 100_000] {
        let mut bytes = vec![0; len];
        fill(1, &mut bytes);
        left.send(&bytes).unwrap();
        next.send(right.recv().unwrap().unwrap()).unwrap();
        check(1, len, &last.recv().unwrap().unwrap());
    }
    last.expose("memory", 100_000, RemoteAccess::WRITE).unwrap();
    left.send(&[7; 100_000]).unwrap();
    next.remote_region("memory").unwrap().write(0, right.recv().unwrap().unwrap()).unwrap();
}

#[test]
fn a_client_with_another_protocol_gets_an_error_message() {
    // No part of this test may have to wait for this timeout.
    let options = options().connect_timeout(Duration::from_secs(60));
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let send_raw = |request: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap_or_default();
        String::from_utf8_lossy(&response).into_owned()
    };
    let [version, http] = scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        let responses =
            [&b"adverb\r\n\x07\x00\x01\x00\x1c\x00\x00\x00"[..], b"GET / HTTP/1.1\r\n\r\n"].map(send_raw);
        // A client that sends nothing, and one that closes the connection, don't stop the listener.
        let _silent = TcpStream::connect(address).unwrap();
        drop(TcpStream::connect(address).unwrap());
        let client = Connector::new().options(&options).connect(address).unwrap();
        let server = accepting.join().unwrap();
        server.send(b"hello").unwrap();
        assert_eq!(&client.recv().unwrap().unwrap()[..], b"hello");
        responses
    });
    assert!(
        version.as_bytes()[11] == 1
            && version.contains("protocol version 7 was received, but only version 2 is supported"),
        "{version:?}"
    );
    assert!(http.as_bytes()[11] == 2 && http.contains("does not speak"), "{http:?}");
    let unreachable = Connector::new().options(&options).connect("127.0.0.1:1").unwrap_err();
    assert!(matches!(unreachable, ConnectError::Refused { .. }), "{unreachable:?}");
}

#[test]
fn exposed_memory_is_accessed_without_calls_of_the_peer() {
    let (left, right) = pair(&options());
    let table = right
        .expose("table", 1 << 20, RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC)
        .unwrap();
    let log = right.expose("log", 64, RemoteAccess::READ).unwrap();
    table.write(4096, b"a row").unwrap();
    // From here on the peer makes no calls.
    let remote = left.remote_region("table").unwrap();
    assert_eq!(remote.len(), 1 << 20);
    assert_eq!(&remote.read(4096..4101).unwrap()[..], b"a row");
    remote.write(100, b"written").unwrap();
    let mut bytes = [0; 7];
    table.read(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"written");
    let rows = remote.read_many([100..107, 4096..4101, 0..0, 0..1 << 20]).unwrap();
    assert_eq!(
        (&rows[0][..], &rows[1][..], rows[2].len(), rows[3].len()),
        (&b"written"[..], &b"a row"[..], 0, 1 << 20)
    );

    assert_eq!(remote.fetch_add(8, 5).unwrap(), 0);
    assert_eq!(remote.compare_swap(8, 5, 7).unwrap(), 5);
    assert_eq!(remote.compare_swap(8, 5, 9).unwrap(), 7);
    assert_eq!(table.word(8).unwrap().load(Ordering::Relaxed), 7);

    // Invalid operations are rejected, and the connection continues.
    let outside = remote.read((1 << 20) - 1..(1 << 20) + 1).unwrap_err().kind;
    assert!(matches!(outside, RemoteErrorKind::OutOfBounds { .. }), "{outside:?}");
    let outside = remote.write(u64::MAX, b"x").unwrap_err().kind;
    assert!(matches!(outside, RemoteErrorKind::OutOfBounds { .. }), "{outside:?}");
    let [begin, end] = [5, 3];
    let backwards = remote.read(begin..end).unwrap_err().kind;
    assert!(matches!(backwards, RemoteErrorKind::InvalidRange { start: 5, end: 3 }), "{backwards:?}");
    let unaligned = remote.fetch_add(4, 1).unwrap_err().kind;
    assert!(matches!(unaligned, RemoteErrorKind::Unaligned { offset: 4 }), "{unaligned:?}");
    let remote_log = left.remote_region("log").unwrap();
    for (refused, needed) in [
        (remote_log.write(0, b"x").unwrap_err(), RemoteAccess::WRITE),
        (remote_log.fetch_add(0, 1).unwrap_err(), RemoteAccess::ATOMIC),
    ] {
        assert!(
            matches!(refused.kind, RemoteErrorKind::NotPermitted { access, .. } if access == needed),
            "{refused:?}"
        );
    }
    assert_eq!(remote_log.read(0..64).unwrap().len(), log.len());

    // A write, and then the notification of it.
    remote.write_with_imm(0, b"data", 42).unwrap();
    let message = right.recv().unwrap().unwrap();
    assert_eq!((message.len(), message.immediate()), (0, Some(42)));
    let mut bytes = [0; 4];
    table.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"data");
    left.close().unwrap();
}

#[test]
fn threads_increment_a_remote_counter_while_messages_are_sent() {
    const EACH: u64 = 500;
    let (left, right) = pair(&minimal(options()));
    let counter = right.expose("counter", 8, RemoteAccess::ATOMIC).unwrap();
    scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let remote = left.remote_region("counter").unwrap();
                for _ in 0..EACH {
                    remote.fetch_add(0, 1).unwrap();
                    left.send(b"counted").unwrap();
                }
            });
        }
        for _ in 0..4 * EACH {
            assert_eq!(&right.recv().unwrap().unwrap()[..], b"counted");
        }
    });
    assert_eq!(counter.word(0).unwrap().load(Ordering::Relaxed), 4 * EACH);
}

#[test]
fn waiting_for_unexposed_memory_times_out() {
    let (left, right) = pair(&options().timeout(Duration::from_millis(50)));
    let is_timeout = |error: &RemoteError| matches!(error.kind, RemoteErrorKind::RegionTimedOut { .. });
    assert!(left.remote_region("nothing").is_err_and(|error| is_timeout(&error)));
    let error = right.expose(&"long".repeat(17), 8, RemoteAccess::READ).unwrap_err();
    assert!(matches!(error, ExposeError::NameTooLong { len: 68, max: 64 }), "{error:?}");
    right.shutdown().unwrap();
    // The shutdown may arrive later than the timeout.
    let mut found = left.remote_region("nothing");
    while found.as_ref().is_err_and(is_timeout) {
        found = left.remote_region("nothing");
    }
    let error = found.unwrap_err();
    assert!(matches!(error.kind, RemoteErrorKind::NotExposed { .. }), "{error:?}");
}

#[test]
fn vectors_and_shared_bytes_are_sent() {
    let (left, right) = pair(&options());
    for len in [0, 100, 100_000] {
        left.send(vec![7; len]).unwrap();
        let shared = right.recv().unwrap().unwrap().freeze();
        assert_eq!(shared, vec![7; len]);
        right.send(shared).unwrap();
        assert_eq!(&left.recv().unwrap().unwrap()[..], vec![7; len]);
    }
}

#[test]
fn a_send_with_its_own_time_limit_waits_no_longer() {
    let options = minimal(options());
    let (left, _right) = pair(&options);
    let error = loop {
        if let Err(error) = left.send_timeout(&[1; 100], Duration::from_millis(20)) {
            break error;
        }
    };
    assert!(
        matches!(error.kind, SendErrorKind::TimedOut { timeout, .. } if timeout == Duration::from_millis(20)),
        "{error:?}"
    );
}

#[test]
fn a_read_fills_a_buffer_of_the_caller() {
    let (left, right) = pair(&options());
    let table = right.expose("table", 4096, RemoteAccess::READ).unwrap();
    table.write(100, b"a row").unwrap();
    let remote = left.remote_region("table").unwrap();
    let buffer = left.pool().allocate(5).unwrap();
    let place = buffer.as_ptr();
    let buffer = remote.read_into(100, buffer).unwrap();
    assert_eq!((&buffer[..], buffer.as_ptr()), (&b"a row"[..], place));

    // A buffer that the device doesn't use is returned.
    let error = remote.read_into(4095, buffer).unwrap_err();
    assert!(matches!(error.kind, RemoteErrorKind::OutOfBounds { .. }), "{error:?}");
    assert_eq!(&error.buffer.unwrap()[..], b"a row");
    let foreign = right.pool().allocate(5).unwrap();
    let error = remote.read_into(0, foreign).unwrap_err();
    assert!(
        matches!(error.kind, RemoteErrorKind::ForeignBuffer { .. }) && error.buffer.is_some(),
        "{error:?}"
    );

    let _pages = right.expose_addresses(1 << 20, Pages::new(8192).unwrap(), RemoteAccess::READ).unwrap();
    let space = left.address_space().unwrap();
    let buffer = space.read_into((1 << 20) + 100, left.pool().allocate(8).unwrap()).unwrap();
    assert_eq!(buffer[..], [0; 8]);
    let error = space.read_into(0, buffer).unwrap_err();
    assert!(
        matches!(error.kind, RemoteErrorKind::UnknownAddresses { .. }) && error.buffer.is_some(),
        "{error:?}"
    );
}

#[test]
fn the_end_of_a_connection_can_be_awaited() {
    let (left, right) = pair(&options());
    assert!(left.local_addr().ip().is_loopback(), "{}", left.local_addr());
    let error = scope(|scope| {
        let closed = scope.spawn(|| left.closed());
        left.send(b"meanwhile").unwrap();
        assert_eq!(&right.recv().unwrap().unwrap()[..], b"meanwhile");
        assert!(!closed.is_finished());
        drop(right);
        closed.join().unwrap()
    });
    assert!(matches!(error, ConnectionError::PeerAborted { .. }), "{error:?}");
    // The reason stays.
    assert_eq!(left.closed().to_string(), error.to_string());
}
