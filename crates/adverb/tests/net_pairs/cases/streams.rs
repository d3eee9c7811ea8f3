//! Connections as streams of bytes.

use std::io::{Read, Write};
use std::thread::scope;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::end::wait;
use super::{End, Random};

/// The byte at this place of a stream.
fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 17) as u8
}

fn check(from: usize, bytes: &[u8]) {
    let wrong = bytes.iter().enumerate().position(|(at, found)| *found != byte(from + at));
    assert_eq!(wrong, None, "of {} bytes from {from}", bytes.len());
}

pub(super) fn exchange_much(end: End) {
    write_and_read(end, 1 << 20, 100_000);
}

pub(super) fn exchange_little(end: End) {
    // Too short to be read from where they are.
    write_and_read(end, 50_000, 3_000);
}

/// Writes so many bytes, at most `most` at a time, reads as many that the other end writes meanwhile, up to its end, and closes.
fn write_and_read(end: End, total: usize, most: usize) {
    let bytes: Vec<u8> = (0..total).map(byte).collect();
    let (mut lens, mut at) = (Random(5), 0);
    let mut piece = vec![0; most];
    match end {
        End::Threads(connection) => {
            let (mut reader, mut writer) = connection.into_stream().into_split();
            scope(|scope| {
                scope.spawn(|| {
                    let (mut lens, mut rest) = (Random(6), &bytes[..]);
                    while !rest.is_empty() {
                        let len = (1 + lens.len(most - 1)).min(rest.len());
                        rest = &rest[writer.write(&rest[..len]).unwrap()..];
                    }
                    writer.shutdown().unwrap();
                });
                loop {
                    let len = 1 + lens.len(most - 1);
                    let count = reader.read(&mut piece[..len]).unwrap();
                    check(at, &piece[..count]);
                    at += count;
                    if count == 0 {
                        break;
                    }
                }
            });
        }
        End::Tasks(connection) => wait(async {
            let (mut reader, mut writer) = connection.into_stream().into_split();
            let writing = async {
                let (mut lens, mut rest) = (Random(6), &bytes[..]);
                while !rest.is_empty() {
                    let len = (1 + lens.len(most - 1)).min(rest.len());
                    rest = &rest[writer.write(&rest[..len]).await.unwrap()..];
                }
                writer.shutdown().await.unwrap();
            };
            let reading = async {
                loop {
                    let len = 1 + lens.len(most - 1);
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
