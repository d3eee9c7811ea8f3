//! Futures that are dropped at any point lose no message and corrupt nothing.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread::{scope, sleep};
use std::time::Duration;

use adverb::net::{Connection, RemoteAccess};

use super::end::wait;
use super::{End, Random};

/// The last message.
const LAST: [u8; 8] = [0xff; 8];
/// The number of messages in the other direction. None of them may be lost.
const MESSAGES: u32 = 500;
/// The number of futures that are polled, and dropped unless they are ready.
const ROUNDS: usize = 2_000;
/// The number of the round from which on messages arrive. All receives of earlier rounds are dropped.
const FIRST_MESSAGE_ROUND: u32 = 200;

fn into_async(end: End) -> Connection {
    match end {
        End::Tasks(connection) => connection,
        End::Threads(_) => unreachable!("the case is for tasks"),
    }
}

pub(super) fn send_and_drop(end: End) {
    let connection = into_async(end);
    wait(async {
        let (mut random, mut next, mut sent, mut dropped) = (Random(7), 0, 0, 0);
        // A dropped receive loses no message.
        let mut expect = |message: &[u8]| {
            assert_eq!(message, u32::to_le_bytes(next));
            next += 1;
        };
        for number in 0..ROUNDS {
            // A dropped send sends the whole message or nothing.
            let mut bytes = vec![number as u8; 4 + random.below(300)];
            bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
            match random.below(8) {
                0 => {
                    connection.send(&bytes).await.unwrap();
                    sent += 1;
                }
                1..5 => dropped += usize::from(poll_once(&mut pin!(connection.send(&bytes))).await.is_none()),
                _ => match poll_once(&mut pin!(connection.recv())).await {
                    Some(message) => {
                        if let Some(message) = message.unwrap() {
                            expect(&message);
                        }
                    }
                    None => dropped += 1,
                },
            }
        }
        assert!(dropped > 50 && sent > 100, "{dropped} dropped, {sent} sent");
        // The connection still works.
        connection.send(&LAST).await.unwrap();
        connection.shutdown().await.unwrap();
        while let Some(message) = connection.recv().await.unwrap() {
            expect(&message);
        }
        assert_eq!(next, MESSAGES);
        connection.close().await.unwrap();
    });
}

pub(super) fn check_received(end: End) {
    let (start, started) = mpsc::channel();
    scope(|scope| {
        let end = &end;
        scope.spawn(move || {
            started.recv().expect("the first rounds are done");
            for number in 0..MESSAGES {
                end.send(&number.to_le_bytes()).unwrap();
            }
            end.shutdown().unwrap();
        });
        let mut start = Some(start);
        let (mut next, mut count) = (0, 0);
        loop {
            // The receiver pauses now and then, so that sends have to wait for credits.
            count += 1;
            if count % 20 == 0 {
                sleep(Duration::from_millis(2));
            }
            let message = end.recv().unwrap().expect("the last message has not arrived");
            if message[..] == LAST {
                break;
            }
            let number = u32::from_le_bytes(message[..4].try_into().unwrap());
            assert!(number >= next && (number as usize) < ROUNDS, "{number} after {next}");
            assert!(message[4..].iter().all(|byte| *byte == number as u8));
            next = number + 1;
            if number >= FIRST_MESSAGE_ROUND
                && let Some(start) = start.take()
            {
                start.send(()).unwrap();
            }
        }
        assert!(end.recv().unwrap().is_none());
    });
    end.close().unwrap();
}

/// Long enough that a device needs some time to read it.
const TABLE_LEN: usize = 256 << 10;

pub(super) fn operate_and_drop(end: End) {
    let connection = into_async(end);
    wait(async {
        let remote = connection.remote_region("table").await.unwrap();
        let mut random = Random(9);
        for number in 0..500u64 {
            // Some devices complete with the first poll (rxe with itself), others need several.
            match random.below(6) {
                0 => drop(poll_once(&mut pin!(remote.read(0..TABLE_LEN as u64))).await),
                1 => drop(poll_once(&mut pin!(remote.write(8, &[7; 100]))).await),
                2 => drop(poll_once(&mut pin!(remote.read_many([0..8, 100..200, 4095..4096]))).await),
                3 => drop(poll_once(&mut pin!(remote.fetch_add(0, 1 << 32))).await),
                4 => _ = remote.fetch_add(0, 1).await.unwrap(),
                _ => {
                    remote.write(4000, &number.to_le_bytes()).await.unwrap();
                    assert_eq!(remote.read(4000..4008).await.unwrap()[..], number.to_le_bytes());
                }
            }
        }
        let sum = remote.fetch_add(0, 0).await.unwrap();
        assert!(sum & 0xffff_ffff > 50, "{sum:#x}");
        connection.send(&sum.to_le_bytes()).await.unwrap();
        connection.close().await.unwrap();
    });
}

pub(super) fn expose(end: End) {
    let table = end
        .expose("table", TABLE_LEN, RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC)
        .unwrap();
    let sum = end.recv().unwrap().unwrap();
    assert_eq!(sum[..], table.word(0).unwrap().load(Ordering::Relaxed).to_le_bytes());
    assert!(end.recv().unwrap().is_none());
}

/// Polls a future once, before the caller drops it.
async fn poll_once<F: Future>(future: &mut Pin<&mut F>) -> Option<F::Output> {
    tokio::task::yield_now().await;
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
