//! Streams whose lanes fail while bytes are sent.

use std::io::{IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use adverb_verbs::Error;
use adverb_verbs::memory::Pool;

use super::{Stop, connected, fail_repeatedly, options_per_bootstrap, options_without_reconnect};
use crate::blocking::Stream;
use crate::driver::Driver;
use crate::error::{ConnectionError, SendErrorKind};
use crate::options::Options;

/// Returns the byte at this offset of the stream.
fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 17) as u8
}

/// Returns the bytes of a write at this offset of the stream. A short write is eager, and a long one a rendezvous.
fn piece(number: usize, at: usize) -> Vec<u8> {
    let len = [100, 3_000, 200_000, 17, 40_000, 600_000][number % 6] + number % 7;
    (at..at + len).map(byte).collect()
}

fn check(at: usize, bytes: &[u8]) {
    let wrong = bytes.iter().enumerate().position(|(offset, found)| *found != byte(at + offset));
    assert_eq!(wrong, None, "of {} bytes from {at}", bytes.len());
}

/// Breaks the lane of one side, of the other, or of both.
fn break_by_turns(drivers: &[Arc<Driver>; 2], round: u32) {
    for (side, driver) in drivers.iter().enumerate() {
        if round % 3 != side as u32 {
            driver.fail_lane();
        }
    }
}

#[test]
fn streams_of_threads_lose_and_duplicate_no_byte() {
    for options in options_per_bootstrap() {
        let (listener, left, right) = connected([&options, &options]);
        let drivers = [&left, &right].map(|connection| Arc::clone(connection.driver()));
        let (is_over, done, bytes) = (&AtomicBool::new(false), &AtomicUsize::new(0), &AtomicUsize::new(0));
        scope(|scope| {
            scope.spawn(|| listener.accept().map(drop));
            let _stop = Stop(&listener);
            let sides = [left, right].map(|connection| {
                let (mut reader, mut writer) = crate::blocking::Stream::new(connection).into_split();
                let writing = scope.spawn(move || {
                    let (mut number, mut at) = (0, 0);
                    while !is_over.load(Ordering::Relaxed) {
                        let piece = piece(number, at);
                        writer.write_all(&piece).unwrap();
                        (number, at) = (number + 1, at + piece.len());
                    }
                    writer.shutdown().unwrap();
                    bytes.fetch_add(at, Ordering::Relaxed);
                });
                let reading = scope.spawn(move || {
                    let (mut piece, mut at) = (vec![0; 100_000], 0);
                    loop {
                        let count = reader.read(&mut piece).unwrap();
                        check(at, &piece[..count]);
                        at += count;
                        if count == 0 {
                            break;
                        }
                    }
                    // An idle side doesn't drive its connection, and the peer may still wait for it.
                    done.fetch_add(1, Ordering::Relaxed);
                    while done.load(Ordering::Relaxed) < 2 {
                        assert_eq!(reader.read(&mut piece).unwrap(), 0);
                        sleep(Duration::from_millis(1));
                    }
                    at
                });
                (writing, reading)
            });
            let has_reconnected = fail_repeatedly(&drivers[0], |round| break_by_turns(&drivers, round));
            is_over.store(true, Ordering::Relaxed);
            assert!(has_reconnected);
            let read: usize = sides
                .into_iter()
                .map(|(writing, reading)| {
                    writing.join().unwrap();
                    reading.join().unwrap()
                })
                .sum();
            assert_eq!(read, bytes.load(Ordering::Relaxed));
        });
    }
}

#[test]
fn a_shutdown_fails_if_the_peer_closed_without_some_bytes() {
    for is_undelivered in [true, false] {
        let options = options_without_reconnect();
        let (_listener, left, right) = connected([&options, &options]);
        let driver = left.driver();
        // The peer reads nothing, so that the last bytes wait for credits.
        let bytes = [IoSlice::new(&[0; 1000])];
        while is_undelivered && driver.write_some(&mut driver.lock(), &bytes).unwrap().is_some() {}
        // The peer never drives its connection after that.
        right.driver().begin_close();
        while !driver.has_peer_closed() {
            driver.drive(&mut driver.lock());
            sleep(Duration::from_millis(1));
        }
        driver.fail_lane();
        let result = loop {
            driver.drive(&mut driver.lock());
            match driver.end_stream(&mut driver.lock()) {
                Ok(None) => sleep(Duration::from_millis(1)),
                result => break result,
            }
        };
        assert_eq!(result.is_err(), is_undelivered, "{result:?}");
    }
}

#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_tasks_lose_and_duplicate_no_byte() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::{Connector, Listener, Stream};

    /// Returns the number of bytes that were written, and of those that were read.
    async fn write_and_read(stream: Stream, is_over: &AtomicBool, done: &AtomicUsize) -> (usize, usize) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let writing = async {
            let (mut number, mut at) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                let piece = piece(number, at);
                writer.write_all(&piece).await.unwrap();
                (number, at) = (number + 1, at + piece.len());
            }
            writer.shutdown().await.unwrap();
            at
        };
        let reading = async {
            let (mut piece, mut at) = (vec![0; 100_000], 0);
            loop {
                let count = reader.read(&mut piece).await.unwrap();
                check(at, &piece[..count]);
                at += count;
                if count == 0 {
                    break;
                }
            }
            // An idle side doesn't drive its connection, and the peer may still wait for it.
            done.fetch_add(1, Ordering::Relaxed);
            while done.load(Ordering::Relaxed) < 2 {
                assert_eq!(reader.read(&mut piece).await.unwrap(), 0);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            at
        };
        tokio::join!(writing, reading)
    }

    for options in options_per_bootstrap() {
        let listener = Listener::builder().options(&options).bind(super::any_port(&options)).await.unwrap();
        let connector = Connector::new().options(&options);
        let (left, right) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
        let (left, right) = (left.unwrap(), right.unwrap());
        let drivers = [&left, &right].map(|connection| Arc::clone(connection.driver()));
        let is_over = Arc::new(AtomicBool::new(false));
        let failing = {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                let has_reconnected = fail_repeatedly(&drivers[0], |round| break_by_turns(&drivers, round));
                is_over.store(true, Ordering::Relaxed);
                has_reconnected
            })
        };
        let done = AtomicUsize::new(0);
        let [left, right] =
            [left, right].map(|side| write_and_read(crate::Stream::new(side), &is_over, &done));
        let ((left_wrote, left_read), (right_wrote, right_read)) = tokio::select! {
            counts = async { tokio::join!(left, right) } => counts,
            _ = listener.accept() => panic!("no other peer connects"),
        };
        assert_eq!((left_wrote, right_wrote), (right_read, left_read));
        assert!(failing.join().unwrap());
    }
}

/// Returns options with a pool that has at most this number of bytes.
fn options_with_pool(max_bytes: usize) -> Options {
    let options = options_without_reconnect();
    let domain = options.device.as_ref().unwrap().create_protection_domain().unwrap();
    options.pool(&Pool::builder().max_bytes(max_bytes).create(&domain))
}

#[test]
fn a_pool_without_memory_for_a_message_of_the_peer_ends_the_connection_of_both() {
    let (_listener, left, right) = connected([&options_without_reconnect(), &options_with_pool(256 << 10)]);
    left.send(vec![1; 512 << 10]).unwrap();
    let error = right.closed();
    let ConnectionError::Device { source, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**source, Error::LimitExceeded { .. }), "{source:?}");
    let error = left.closed();
    assert!(matches!(error, ConnectionError::PeerAborted { .. }), "{error:?}");
}

#[test]
fn a_pool_without_memory_for_a_message_of_this_side_is_an_error_of_the_call() {
    let (_listener, left, right) = connected([&options_with_pool(256 << 10), &options_without_reconnect()]);
    let error = left.send(vec![1; 512 << 10]).unwrap_err();
    assert!(matches!(error.kind, SendErrorKind::Memory { .. }), "{error:?}");
    left.send(b"usable").unwrap();
    assert_eq!(&right.recv().unwrap().unwrap()[..], b"usable");
}

/// The manual names this limit.
#[test]
fn a_pool_with_twice_the_limit_of_the_receiver_and_four_mebibytes_suffices_for_a_stream() {
    for limit in [0, 4 << 20] {
        let receiver = options_with_pool(2 * limit + (4 << 20)).recv_buffer_limit(limit);
        let (_listener, left, right) = connected([&options_without_reconnect(), &receiver]);
        let [left, mut right] = [left, right].map(Stream::new);
        scope(|scope| {
            scope.spawn(|| {
                let (mut left, mut at) = (left, 0);
                for number in 0..60 {
                    let piece = piece(number, at);
                    left.write_all(&piece).unwrap();
                    at += piece.len();
                }
            });
            let (mut piece, mut at) = (vec![0; 100_000], 0);
            loop {
                let count = right.read(&mut piece).unwrap();
                check(at, &piece[..count]);
                at += count;
                if count == 0 {
                    break;
                }
                if at % 7 == 0 {
                    // The peer fills the buffer.
                    sleep(Duration::from_millis(1));
                }
            }
        });
    }
}
