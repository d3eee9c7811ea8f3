//! Connections as byte streams: all written bytes are read in order, and then the end of the stream.

#![cfg(all(feature = "soft", feature = "tokio"))]

#[path = "common/connections.rs"]
mod connections;
#[path = "common/random.rs"]
mod random;

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use adverb::net::{Connection, Connector, Listener, Options, Stream, blocking};
use connections::options;
use random::Random;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

/// The minimum ring size, number of outstanding writes and a small buffer, so that all indices wrap often.
fn minimal(options: Options) -> Options {
    connections::minimal(options).recv_buffer_limit(1000)
}

async fn pair(options: &Options) -> (Stream, Stream) {
    let listener = Listener::builder().options(options).bind("127.0.0.1:0").await.unwrap();
    let connector = Connector::new().options(options);
    let connecting = connector.connect_stream(listener.local_addr());
    let (client, server) = tokio::join!(connecting, listener.accept_stream());
    (client.unwrap(), server.unwrap())
}

/// Returns a stream, and its other end as a connection.
async fn stream_and_connection(options: &Options) -> (Stream, Connection) {
    let listener = Listener::builder().options(options).bind("127.0.0.1:0").await.unwrap();
    let connector = Connector::new().options(options);
    let (client, server) = tokio::join!(connector.connect_stream(listener.local_addr()), listener.accept());
    (client.unwrap(), server.unwrap())
}

impl Random {
    /// Returns a length from 1 to `max`. Short lengths are as frequent as long ones.
    fn len(&mut self, max: usize) -> usize {
        let bits = self.below(max.ilog2() as usize + 1);
        1 + self.below(1 << bits)
    }
}

/// Returns the byte at an index of a stream.
fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 17) as u8
}

fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

#[track_caller]
fn check(from: usize, bytes: &[u8]) {
    let wrong = bytes.iter().enumerate().position(|(at, found)| *found != byte(from + at));
    assert_eq!(wrong, None, "of {} bytes from {from}", bytes.len());
}

/// Writes `total` bytes in random pieces, some of them vectored, and shuts the stream down.
async fn write_all(mut writer: impl AsyncWrite + Unpin, total: usize, max: usize) {
    let (mut random, mut at) = (Random(1), 0);
    while at < total {
        let piece = bytes(at, random.len(max).min(total - at));
        at += match random.below(4) {
            0 => {
                let (first, second) = piece.split_at(random.below(piece.len()));
                writer.write_vectored(&[IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)]).await
            }
            1 => writer.write(&piece).await,
            2 => writer.flush().await.map(|()| 0),
            _ => writer.write_all(&piece).await.map(|()| piece.len()),
        }
        .unwrap();
    }
    writer.shutdown().await.unwrap();
    assert!(writer.write(b"more").await.is_err());
}

/// Reads `total` bytes in random pieces, and the end of the stream.
async fn read_all(mut reader: impl AsyncRead + Unpin, total: usize, max: usize) {
    let (mut random, mut at) = (Random(2), 0);
    loop {
        let mut piece = vec![0; random.len(max)];
        let count = reader.read(&mut piece).await.unwrap();
        if count == 0 {
            break;
        }
        check(at, &piece[..count]);
        at += count;
    }
    assert_eq!(at, total);
    assert_eq!(reader.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_arrive_in_both_directions_for_all_write_lengths() {
    for (options, total, max) in [
        (options(), 4 << 20, 300_000),
        (options().max_message_size(1000), 200_000, 5_000),
        (options(), 200_000, 50),
        (minimal(options()), 100_000, 700),
    ] {
        let (left, right) = pair(&options).await;
        let ((left_reader, left_writer), (right_reader, right_writer)) =
            (left.into_split(), tokio::io::split(right));
        let tasks = [
            tokio::spawn(write_all(left_writer, total, max)),
            tokio::spawn(write_all(right_writer, total, max)),
            tokio::spawn(read_all(left_reader, total, max)),
            tokio::spawn(read_all(right_reader, total, max)),
        ];
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_stream_can_be_read_after_shutdown() {
    let (mut left, mut right) = pair(&options()).await;
    let client = async {
        left.write_all(b"a request of text").await.unwrap();
        left.shutdown().await.unwrap();
        left.shutdown().await.unwrap();
        let mut reply = String::new();
        left.read_to_string(&mut reply).await.unwrap();
        reply
    };
    let server = async {
        let mut request = Vec::new();
        right.read_to_end(&mut request).await.unwrap();
        right.write_all(format!("{} bytes", request.len()).as_bytes()).await.unwrap();
        // Dropping the stream still delivers the written bytes and the end.
        drop(right);
    };
    assert_eq!(tokio::join!(client, server).0, "17 bytes");
}

#[tokio::test]
async fn a_stream_is_a_buffered_reader() {
    let (mut left, right) = pair(&options()).await;
    left.write_all(b"one\ntwo\nthr").await.unwrap();
    left.write_all(b"ee\n").await.unwrap();
    drop(left);
    let mut lines = right.lines();
    for expected in [Some("one"), Some("two"), Some("three"), None] {
        assert_eq!(lines.next_line().await.unwrap().as_deref(), expected);
    }
}

/// Writes bytes, beginning with index `from`, until the stream has been blocked for a while. Returns their number.
async fn fill(stream: &mut Stream, from: usize, piece: usize) -> usize {
    let (mut written, mut idle_count) = (0, 0);
    // Sleeps so that other tasks, the stream's driver and the devices' threads can run.
    while idle_count < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        idle_count += 1;
        poll_fn(|cx| {
            while let Poll::Ready(count) =
                Pin::new(&mut *stream).poll_write(cx, &bytes(from + written, piece))
            {
                (written, idle_count) = (written + count.unwrap(), 0);
            }
            Poll::Ready(())
        })
        .await;
    }
    written
}

#[tokio::test]
async fn a_stopped_reader_blocks_the_writer_and_loses_nothing() {
    for piece in [100, 100_000] {
        let (mut left, right) = pair(&options().recv_buffer_limit(64 << 10)).await;
        let written = fill(&mut left, 0, piece).await;
        assert!((50_000..1 << 20).contains(&written), "{written} bytes were taken");
        let rest = async {
            left.write_all(&bytes(written, 5_000_000)).await.unwrap();
            left.shutdown().await.unwrap();
        };
        tokio::join!(rest, read_all(right, written + 5_000_000, 50_000));
    }
}

#[tokio::test]
async fn a_waiting_task_sleeps_after_spinning() {
    let (mut left, mut right) = pair(&options().recv_buffer_limit(64 << 10)).await;
    fill(&mut left, 0, 100_000).await;
    let (mut polls, bytes) = (0, bytes(0, 100_000));
    let waiting = poll_fn(|cx| {
        polls += 1;
        // A successful flush doesn't mean that credits are available.
        assert!(Pin::new(&mut left).poll_write(cx, &bytes).is_pending());
        assert!(matches!(Pin::new(&mut left).poll_flush(cx), Poll::Ready(Ok(()))));
        Pin::new(&mut left).poll_read(cx, &mut ReadBuf::new(&mut [0; 8])).map(drop)
    });
    timeout(Duration::from_millis(300), waiting).await.unwrap_err();
    // The time is only long enough for adaptive spinning.
    assert!(polls < 500, "the task was polled {polls} times");
    // The task is still woken.
    right.write_all(b"now").await.unwrap();
    timeout(Duration::from_secs(20), left.read_exact(&mut [0; 3])).await.unwrap().unwrap();
}

#[tokio::test]
async fn blocked_bytes_are_sent_without_a_flush() {
    let (mut left, mut right) = pair(&minimal(options())).await;
    let mut written = fill(&mut left, 0, 7).await;
    // `left` isn't polled from here on.
    let mut read = vec![0; written];
    timeout(Duration::from_secs(20), right.read_exact(&mut read)).await.unwrap().unwrap();
    check(0, &read);
    // The same again, but one half of the stream is dropped.
    written += fill(&mut left, written, 7).await;
    let (reader, writer) = left.into_split();
    drop(writer);
    let mut rest = Vec::new();
    timeout(Duration::from_secs(20), right.read_to_end(&mut rest)).await.unwrap().unwrap();
    check(read.len(), &rest);
    assert_eq!(read.len() + rest.len(), written);
    right.write_all(b"still here").await.unwrap();
    drop(right);
    let mut reply = String::new();
    { reader }.read_to_string(&mut reply).await.unwrap();
    assert_eq!(reply, "still here");
}

/// More short writes than the smallest ring can hold.
const MAX_WRITES: usize = 12;

#[tokio::test]
async fn a_blocked_shutdown_of_a_dropped_writer_is_sent() {
    for count in 0..MAX_WRITES {
        let (mut left, mut right) = pair(&minimal(options())).await;
        let mut written = 0;
        poll_fn(|cx| {
            for _ in 0..count {
                if let Poll::Ready(count) = Pin::new(&mut left).poll_write(cx, &bytes(written, 1)) {
                    written += count.unwrap();
                }
            }
            Poll::Ready(())
        })
        .await;
        let (_reader, writer) = left.into_split();
        drop(writer);
        let mut read = Vec::new();
        let end = timeout(Duration::from_secs(20), right.read_to_end(&mut read)).await;
        assert_eq!(end.expect("the end of the stream arrives").unwrap(), written);
        check(0, &read);
    }
}

#[tokio::test]
async fn a_blocked_shutdown_is_sent_without_further_polls() {
    // From no write up to one more than can be posted at once.
    for count in 0..6 {
        let (mut left, mut right) = pair(&minimal(options())).await;
        left.write_all(&bytes(0, 1)).await.unwrap();
        poll_fn(|cx| {
            for at in 1..count {
                assert!(Pin::new(&mut left).poll_write(cx, &bytes(at, 1)).is_ready());
            }
            let _ = Pin::new(&mut left).poll_shutdown(cx);
            Poll::Ready(())
        })
        .await;
        let mut read = Vec::new();
        let end = timeout(Duration::from_secs(20), right.read_to_end(&mut read)).await;
        assert_eq!(end.expect("the end of the stream arrives").unwrap(), count.max(1));
        check(0, &read);
    }
}

#[test]
fn dropping_a_blocking_writer_shuts_the_stream_down() -> io::Result<()> {
    for count in 0..MAX_WRITES {
        let options = minimal(options());
        let listener = blocking::Listener::builder().options(&options).bind("127.0.0.1:0")?;
        let address = listener.local_addr();
        let accepting = std::thread::spawn(move || listener.accept());
        // A write without credits fails at once.
        let options = options.timeout(Duration::ZERO);
        let left = blocking::Connector::new().options(&options).connect_stream(address)?;
        let right = accepting.join().unwrap()?;
        let (reader, mut writer) = left.into_split();
        let sent = (0..count).take_while(|at| writer.write_all(&bytes(*at, 1)).is_ok()).count();
        let dropping = std::thread::spawn(move || drop(writer));
        // Time until the other thread waits for credits, or has ended.
        std::thread::sleep(Duration::from_millis(20));
        let mut received = Vec::new();
        while let Some(message) = right.recv_timeout(Duration::from_secs(20))? {
            received.extend_from_slice(&message);
        }
        assert_eq!(received, bytes(0, sent));
        dropping.join().unwrap();
        drop(reader);
    }
    Ok(())
}

#[tokio::test]
async fn a_dropped_stream_delivers_all_written_bytes() {
    for total in [1, 100_000, 3_000_000] {
        let (mut left, right) = pair(&options()).await;
        let writing = async {
            left.write_all(&bytes(0, total)).await.unwrap();
            drop(left);
        };
        tokio::join!(writing, read_all(right, total, 50_000));
    }
}

#[tokio::test]
async fn a_dropped_peer_resets_the_stream() {
    let (mut left, right) = stream_and_connection(&options().keepalive(Duration::from_millis(100))).await;
    // Dropping a connection sends no close.
    drop(right);
    let start = Instant::now();
    let error = left.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let error = left.write_all(&bytes(0, 10)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    let error = left.shutdown().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

#[tokio::test]
async fn a_stream_interoperates_with_messages() {
    let (mut left, right) = stream_and_connection(&options()).await;
    for message in [&b"one "[..], b"", &bytes(0, 100_000)] {
        right.send_with_imm(message, 7).await.unwrap();
    }
    right.shutdown().await.unwrap();
    left.write_all(b"two").await.unwrap();
    left.flush().await.unwrap();
    assert_eq!(&right.recv().await.unwrap().unwrap()[..], b"two");
    let mut all = Vec::new();
    left.read_to_end(&mut all).await.unwrap();
    assert_eq!(all[..4], *b"one ");
    check(0, &all[4..]);
    assert_eq!(all.len(), 100_004);
}

#[tokio::test]
async fn dropped_reads_lose_no_bytes() {
    let (left, mut right) = pair(&minimal(options())).await;
    let writing = tokio::spawn(write_all(left, 50_000, 300));
    let (mut at, mut dropped) = (0, 0);
    loop {
        let mut piece = [0; 100];
        let read = {
            let mut read = pin!(right.read(&mut piece));
            poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await
        };
        match read {
            Poll::Ready(count) => match count.unwrap() {
                0 => break,
                count => {
                    check(at, &piece[..count]);
                    at += count;
                }
            },
            Poll::Pending => {
                dropped += 1;
                tokio::task::yield_now().await;
            }
        }
    }
    assert_eq!(at, 50_000);
    assert!(dropped > 10, "{dropped}");
    writing.await.unwrap();
}

#[test]
fn blocking_streams_carry_bytes_in_both_directions() -> io::Result<()> {
    for options in [options(), minimal(options())] {
        let listener = blocking::Listener::builder().options(&options).bind("127.0.0.1:0")?;
        let address = listener.local_addr();
        let thread = std::thread::spawn(move || {
            let (mut reader, mut writer) = listener.accept_stream()?.into_split();
            let copied = io::copy(&mut reader, &mut writer)?;
            writer.shutdown()?;
            io::Result::Ok(copied)
        });
        let stream = blocking::Connector::new().options(&options).connect_stream(address)?;
        let (mut reader, mut writer) = stream.into_split();
        let (total, max) = (300_000, 9_000);
        let writing = std::thread::spawn(move || {
            let (mut random, mut at) = (Random(3), 0);
            while at < total {
                let piece = bytes(at, random.len(max).min(total - at));
                let (first, second) = piece.split_at(random.below(piece.len()));
                at += writer.write_vectored(&[IoSlice::new(first), IoSlice::new(second)])?;
            }
            // Dropping the writer shuts the stream down.
            io::Result::Ok(())
        });
        let (mut random, mut at) = (Random(4), 0);
        loop {
            let mut piece = vec![0; random.len(max)];
            let count = reader.read(&mut piece)?;
            if count == 0 {
                break;
            }
            check(at, &piece[..count]);
            at += count;
        }
        assert_eq!(at, total);
        writing.join().unwrap()?;
        assert_eq!(thread.join().unwrap()?, total as u64);
    }
    Ok(())
}
