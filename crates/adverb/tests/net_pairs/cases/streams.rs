//! Connections as byte streams.

use std::io::{Read, Write};
use std::thread::scope;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::end::wait;
use super::failure::Interruption;
use super::{Random, StreamEnd};

/// Returns the byte at an index of a stream.
fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 17) as u8
}

fn check(from: usize, bytes: &[u8]) {
    let wrong = bytes.iter().enumerate().position(|(at, found)| *found != byte(from + at));
    assert_eq!(wrong, None, "of {} bytes from {from}", bytes.len());
}

pub(super) fn exchange_long(end: StreamEnd) {
    write_and_read(end, 1 << 20, 100_000);
}

pub(super) fn exchange_short(end: StreamEnd) {
    // Too short for rendezvous messages.
    write_and_read(end, 50_000, 3_000);
}

/// Writes `total` bytes in pieces of up to `max`, reads the same number of bytes of the peer meanwhile, up to the end
/// of its stream, and closes.
fn write_and_read(end: StreamEnd, total: usize, max: usize) {
    let bytes: Vec<u8> = (0..total).map(byte).collect();
    let (mut lens, mut at) = (Random(5), 0);
    let mut piece = vec![0; max];
    match end {
        StreamEnd::Threads(stream) => {
            let (mut reader, mut writer) = stream.into_split();
            scope(|scope| {
                scope.spawn(|| {
                    let (mut lens, mut rest) = (Random(6), &bytes[..]);
                    while !rest.is_empty() {
                        let len = (1 + lens.len(max - 1)).min(rest.len());
                        rest = &rest[writer.write(&rest[..len]).unwrap()..];
                    }
                    writer.shutdown().unwrap();
                });
                loop {
                    let len = 1 + lens.len(max - 1);
                    let count = reader.read(&mut piece[..len]).unwrap();
                    check(at, &piece[..count]);
                    at += count;
                    if count == 0 {
                        break;
                    }
                }
            });
        }
        StreamEnd::Tasks(stream) => wait(async {
            let (mut reader, mut writer) = stream.into_split();
            let writing = async {
                let (mut lens, mut rest) = (Random(6), &bytes[..]);
                while !rest.is_empty() {
                    let len = (1 + lens.len(max - 1)).min(rest.len());
                    rest = &rest[writer.write(&rest[..len]).await.unwrap()..];
                }
                writer.shutdown().await.unwrap();
            };
            let reading = async {
                loop {
                    let len = 1 + lens.len(max - 1);
                    let count = reader.read(&mut piece[..len]).await.unwrap();
                    check(at, &piece[..count]);
                    at += count;
                    if count == 0 {
                        break;
                    }
                }
            };
            tokio::join!(writing, reading);
        }),
    }
    assert_eq!(at, total);
}

fn exchange(end: &mut StreamEnd, byte: u8) -> u8 {
    let mut answer = [0];
    match end {
        StreamEnd::Threads(stream) => {
            stream.write_all(&[byte]).unwrap();
            stream.read_exact(&mut answer).unwrap();
        }
        StreamEnd::Tasks(stream) => wait(async {
            stream.write_all(&[byte]).await.unwrap();
            stream.read_exact(&mut answer).await.unwrap();
        }),
    }
    answer[0]
}

/// Writes bytes for a while, and checks the echo.
pub(super) fn write_despite_interruption(mut end: StreamEnd) {
    let interruption = Interruption::agree(|byte| exchange(&mut end, byte));
    let (mut lens, mut written, mut read) = (Random(12), 0, 0);
    let (start, mut last, mut gap) = (Instant::now(), Instant::now(), Duration::ZERO);
    let mut next = |from: usize| (from..from + 1 + lens.len(100_000)).map(byte).collect::<Vec<u8>>();
    let mut piece = vec![0; 50_000];
    let mut check_received = |piece: &[u8]| {
        check(read, piece);
        read += piece.len();
        (gap, last) = (gap.max(last.elapsed()), Instant::now());
    };
    match end {
        StreamEnd::Threads(stream) => {
            let (mut reader, mut writer) = stream.into_split();
            scope(|scope| {
                scope.spawn(|| {
                    while start.elapsed() < interruption.time {
                        let bytes = next(written);
                        writer.write_all(&bytes).unwrap();
                        written += bytes.len();
                    }
                    writer.shutdown().unwrap();
                });
                loop {
                    let count = reader.read(&mut piece).unwrap();
                    if count == 0 {
                        break;
                    }
                    check_received(&piece[..count]);
                }
            });
        }
        StreamEnd::Tasks(stream) => wait(async {
            let (mut reader, mut writer) = stream.into_split();
            let writing = async {
                while start.elapsed() < interruption.time {
                    let bytes = next(written);
                    writer.write_all(&bytes).await.unwrap();
                    written += bytes.len();
                }
                writer.shutdown().await.unwrap();
            };
            let reading = async {
                loop {
                    let count = reader.read(&mut piece).await.unwrap();
                    if count == 0 {
                        break;
                    }
                    check_received(&piece[..count]);
                }
            };
            tokio::join!(writing, reading);
        }),
    }
    assert_eq!(read, written);
    assert!(gap >= interruption.gap, "the network was not interrupted: the longest gap is {gap:?}");
    interruption.end();
}

/// Writes all received bytes back.
pub(super) fn copy_despite_interruption(mut end: StreamEnd) {
    let interruption = Interruption::agree(|byte| exchange(&mut end, byte));
    match end {
        StreamEnd::Threads(stream) => {
            let (mut reader, mut writer) = stream.into_split();
            std::io::copy(&mut reader, &mut writer).unwrap();
            writer.shutdown().unwrap();
        }
        StreamEnd::Tasks(stream) => wait(async {
            let (mut reader, mut writer) = stream.into_split();
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        }),
    }
    interruption.end();
}
