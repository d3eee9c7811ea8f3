//! Streams whose queue pairs break while bytes pass.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use super::{Link, break_it, connected, ways};

/// How many bytes go each way: more than are under way at a time, many times over.
const TOTAL: usize = 8 << 20;

/// The byte at this place of a stream.
fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 17) as u8
}

/// Short writes, which go through the ring, and long ones, which are read from where they are.
fn len(number: usize) -> usize {
    [100, 3_000, 200_000, 17, 40_000, 600_000][number % 6] + number % 7
}

/// The next piece of what is written from this place on.
fn piece(number: usize, at: usize) -> Vec<u8> {
    (at..TOTAL.min(at + len(number))).map(byte).collect()
}

fn check(at: usize, bytes: &[u8]) {
    let wrong = bytes.iter().enumerate().position(|(offset, found)| *found != byte(at + offset));
    assert_eq!(wrong, None, "of {} bytes from {at}", bytes.len());
}

/// Breaks what they go over, one or both of them, until it is over; says how often.
fn harm(links: &[Arc<Link>; 2], over: &AtomicBool) -> u32 {
    let mut broken = 0;
    while !over.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(50 + u64::from(broken % 5) * 20));
        broken += u32::from(break_it(&links[broken as usize % 2]));
        if broken % 3 == 0 {
            break_it(&links[0]);
        }
    }
    broken
}

/// Fails unless the connection went on over several other queue pairs.
fn assert_went_on(link: &Link, broken: u32) {
    let generation = link.lock().resume.generation;
    println!("broken {broken} times, went on {generation} times");
    assert!(generation > 2, "it went on {generation} times");
}

#[test]
fn streams_of_threads_lose_and_double_no_byte() {
    for options in ways() {
        let (listener, left, right) = connected([&options, &options]);
        let links = [&left, &right].map(|connection| Arc::clone(connection.link()));
        let (over, done) = (&AtomicBool::new(false), &AtomicU32::new(0));
        scope(|scope| {
            scope.spawn(|| listener.accept().map(drop));
            let harmed = scope.spawn(|| harm(&links, over));
            let sides = [left, right].map(|connection| {
                scope.spawn(move || {
                    let (mut reader, mut writer) = connection.into_stream().into_split();
                    std::thread::scope(|scope| {
                        scope.spawn(move || {
                            let (mut number, mut at) = (0, 0);
                            while at < TOTAL {
                                let piece = piece(number, at);
                                writer.write_all(&piece).unwrap();
                                (number, at) = (number + 1, at + piece.len());
                            }
                            writer.shutdown().unwrap();
                        });
                        let (mut bytes, mut at) = (vec![0; 100_000], 0);
                        loop {
                            let count = reader.read(&mut bytes).unwrap();
                            check(at, &bytes[..count]);
                            at += count;
                            if count == 0 {
                                break;
                            }
                        }
                        assert_eq!(at, TOTAL);
                        // Nothing is made again that nobody uses, and the other side may still need it.
                        done.fetch_add(1, Ordering::Relaxed);
                        while done.load(Ordering::Relaxed) < 2 {
                            assert_eq!(reader.read(&mut bytes).unwrap(), 0);
                            sleep(Duration::from_millis(1));
                        }
                        over.store(true, Ordering::Relaxed);
                    });
                })
            });
            sides.into_iter().for_each(|side| side.join().unwrap());
            assert_went_on(&links[0], harmed.join().unwrap());
            listener.stop();
        });
    }
}

#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_tasks_lose_and_double_no_byte() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::net::{Connector, Listener, Stream};

    async fn write_and_read(stream: Stream, done: &AtomicU32) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let writing = async {
            let (mut number, mut at) = (0, 0);
            while at < TOTAL {
                let piece = piece(number, at);
                writer.write_all(&piece).await.unwrap();
                (number, at) = (number + 1, at + piece.len());
            }
            writer.shutdown().await.unwrap();
        };
        let reading = async {
            let (mut bytes, mut at) = (vec![0; 100_000], 0);
            loop {
                let count = reader.read(&mut bytes).await.unwrap();
                check(at, &bytes[..count]);
                at += count;
                if count == 0 {
                    break;
                }
            }
            assert_eq!(at, TOTAL);
            // As above.
            done.fetch_add(1, Ordering::Relaxed);
            while done.load(Ordering::Relaxed) < 2 {
                assert_eq!(reader.read(&mut bytes).await.unwrap(), 0);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::join!(writing, reading);
    }

    for options in ways() {
        let listener = Listener::bind_with(super::anywhere(&options), &options).await.unwrap();
        let connector = Connector::new().options(&options);
        let (left, right) = tokio::join!(connector.connect(listener.local_address()), listener.accept());
        let (left, right) = (left.unwrap(), right.unwrap());
        let links = [&left, &right].map(|connection| Arc::clone(connection.link()));
        let over = Arc::new(AtomicBool::new(false));
        let harmed = {
            let (links, over) = (links.clone(), Arc::clone(&over));
            std::thread::spawn(move || harm(&links, &over))
        };
        let done = AtomicU32::new(0);
        let [left, right] = [left, right].map(|side| write_and_read(side.into_stream(), &done));
        tokio::select! {
            _ = async { tokio::join!(left, right) } => {}
            _ = listener.accept() => panic!("nobody else comes"),
        }
        over.store(true, Ordering::Relaxed);
        assert_went_on(&links[0], harmed.join().unwrap());
    }
}
