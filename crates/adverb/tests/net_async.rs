//! Async connections: messages as with blocking ones, and futures that are dropped at any point.

#![cfg(all(feature = "soft", feature = "tokio"))]

#[path = "common/connections.rs"]
mod connections;
#[path = "common/random.rs"]
mod random;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use adverb::net::{Connection, ConnectionError, Connector, Listener, Options, RecvError, RemoteAccess};
use adverb::verbs::{SoftDevice, Switch};
use connections::{minimal, options};
use random::Random;
use tokio::net::TcpStream;

async fn pair(options: &Options) -> (Connection, Connection) {
    pair_with(options, options).await
}

async fn pair_with(client: &Options, server: &Options) -> (Connection, Connection) {
    let listener = Listener::builder().options(server).bind("127.0.0.1:0").await.unwrap();
    let connector = Connector::new().options(client);
    let (client, server) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    (client.unwrap(), server.unwrap())
}

async fn send_all(connection: &Connection, count: usize, max: usize) {
    let mut random = Random(1);
    for number in 0..count {
        let bytes = vec![number as u8; random.below(max)];
        connection.send_with_imm(&bytes, number as u32).await.unwrap();
    }
    connection.shutdown().await.unwrap();
}

async fn recv_all(connection: &Connection, count: usize, max: usize) {
    let mut random = Random(1);
    for number in 0..count {
        let message = connection.recv().await.unwrap().expect("the peer sends more messages");
        assert_eq!((message.immediate(), message.len()), (Some(number as u32), random.below(max)));
        assert!(message.iter().all(|byte| *byte == number as u8));
    }
    assert!(connection.recv().await.unwrap().is_none());
}

#[tokio::test]
async fn messages_of_all_lengths_arrive_in_both_directions() {
    for (options, count, max) in [(options(), 1_000, 40_000), (minimal(options()), 5_000, 300)] {
        let (left, right) = pair(&options).await;
        tokio::join!(
            send_all(&left, count, max),
            send_all(&right, count, max),
            recv_all(&left, count, max),
            recv_all(&right, count, max),
        );
        let (left, right) = tokio::join!(left.close(), right.close());
        left.unwrap();
        right.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_on_several_threads_share_a_connection() {
    const EACH: usize = 500;
    let (left, right) = pair(&minimal(options())).await;
    let mut tasks = tokio::task::JoinSet::new();
    for sender in 0..4 {
        let left = left.clone();
        tasks.spawn(async move {
            for number in 0..EACH {
                left.send(&(sender * EACH + number).to_le_bytes()).await.unwrap();
            }
            0
        });
        let right = right.clone();
        tasks.spawn(async move {
            let mut sum = 0;
            for _ in 0..EACH {
                let message = right.recv().await.unwrap().unwrap();
                sum += usize::from_le_bytes((&message[..]).try_into().unwrap());
            }
            sum
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), (0..4 * EACH).sum());
}

#[tokio::test]
async fn a_task_that_never_waits_yields_to_other_tasks() {
    let (left, right) = pair(&options()).await;
    let other = tokio::spawn(async {});
    // Each operation completes without waiting.
    for _ in 0..1_000 {
        left.send(b"hello").await.unwrap();
        right.recv().await.unwrap().unwrap();
    }
    assert!(other.is_finished());
}

#[tokio::test]
async fn dropped_futures_lose_and_corrupt_no_message() {
    let drops = std::env::var("ADVERB_CANCELLED").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000);
    let (left, right) = pair(&minimal(options()).eager_threshold(100)).await;
    let (mut random, mut next, mut sent, mut dropped) = (Random(7), 0, 0, 0);
    // A dropped receive loses no message. A dropped send sends the whole message or nothing.
    let mut expect = |message: &[u8]| {
        let number = u32::from_le_bytes(message[..4].try_into().unwrap());
        assert!(number >= next && number < 1 << 30, "{number} after {next}");
        assert!(message[4..].iter().all(|byte| *byte == number as u8));
        next = number + 1;
    };
    let mut number = 0;
    while dropped < drops {
        number += 1;
        let mut bytes = vec![number as u8; 4 + random.below(300)];
        bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
        // In turns, credits and messages are exhausted.
        let sends = if number / 32 % 2 == 0 { 1..7 } else { 1..2 };
        match random.below(8) {
            0 => {
                // The peer must receive until the message is sent, to return credits.
                let mut send = pin!(left.send(&bytes));
                while poll_once(&mut send).await.is_none() {
                    if let Ok(Some(message)) = right.recv_timeout(Duration::from_millis(5)).await {
                        expect(&message);
                    }
                }
                sent += 1;
            }
            choice if sends.contains(&choice) => {
                dropped += usize::from(poll_once(&mut pin!(left.send(&bytes))).await.is_none());
            }
            _ => {
                let received = poll_once(&mut pin!(right.recv())).await;
                match received {
                    Some(message) => expect(&message.unwrap().expect("the connection is open")),
                    None => dropped += 1,
                }
            }
        }
    }
    println!("{dropped} of {number} futures were dropped before they were ready, {sent} were sent");
    assert!(sent > number / 20);
    // The connection still works.
    let end = async {
        left.send(&[0xff; 8]).await.unwrap();
        left.close().await.unwrap();
    };
    let rest = async {
        let mut last = None;
        while let Some(message) = right.recv().await.unwrap() {
            last = Some(message);
        }
        assert_eq!(&last.unwrap()[..], &[0xff; 8]);
    };
    tokio::join!(end, rest);
}

/// Polls a future once, before the caller drops it.
async fn poll_once<F: Future>(future: &mut std::pin::Pin<&mut F>) -> Option<F::Output> {
    tokio::task::yield_now().await;
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[tokio::test]
async fn receives_time_out_and_a_dropped_peer_is_detected() {
    let (left, right) = pair(&options().keepalive(Duration::from_millis(100))).await;
    let error = left.recv_timeout(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, RecvError::TimedOut { .. }), "{error:?}");
    drop(right);
    let start = Instant::now();
    let error = left.recv().await.unwrap_err();
    assert!(matches!(error, RecvError::ConnectionLost(ConnectionError::PeerAborted { .. })), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_silent_peer_blocks_no_other_and_accept_may_be_dropped() {
    let options = options().connect_timeout(Duration::from_secs(30));
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").await.unwrap();
    let _silent = TcpStream::connect(listener.local_addr()).await.unwrap();
    let connector = Connector::new().options(&options);
    let connecting = connector.connect(listener.local_addr());
    let accepting = async {
        loop {
            // Each new accept continues the pending handshakes.
            if let Ok(accepted) = tokio::time::timeout(Duration::from_millis(1), listener.accept()).await {
                return accepted;
            }
        }
    };
    let start = Instant::now();
    let (client, server) = tokio::join!(connecting, accepting);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    client.unwrap().send(b"hello").await.unwrap();
    assert_eq!(&server.unwrap().recv().await.unwrap().unwrap()[..], b"hello");
}

#[tokio::test]
async fn async_and_blocking_connections_interoperate() {
    let options = options();
    let listener = adverb::net::blocking::Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let thread = std::thread::spawn(move || {
        let connection = listener.accept()?;
        while let Some(message) = connection.recv()? {
            connection.send(message)?;
        }
        Ok::<(), adverb::Error>(connection.close()?)
    });
    let connection = Connector::new().options(&options).connect(address).await.unwrap();
    for len in [0, 5, 100_000] {
        connection.send(&vec![7; len]).await.unwrap();
        assert_eq!(connection.recv().await.unwrap().unwrap().len(), len);
    }
    connection.close().await.unwrap();
    thread.join().unwrap().unwrap();
}

#[tokio::test]
async fn operations_on_remote_memory_may_be_dropped() {
    // Between two devices an operation completes only after the task has waited for it.
    let switch = Switch::default();
    let sides = ["10.0.0.1", "10.0.0.2"].map(|address| {
        let device = SoftDevice::on_switch(&switch, address.parse().unwrap()).open().unwrap();
        Options::new().device(&device)
    });
    let (left, right) = pair_with(&sides[0], &sides[1]).await;
    let table = right
        .expose("table", 4096, RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC)
        .await
        .unwrap();
    let remote = left.remote_region("table").await.unwrap();
    let (mut random, mut dropped) = (Random(9), 0);
    for number in 0..2_000u64 {
        dropped += usize::from(match random.below(7) {
            0 => poll_once(&mut pin!(remote.read(0..4096))).await.is_none(),
            1 => poll_once(&mut pin!(remote.write(8, &[7; 100]))).await.is_none(),
            2 => poll_once(&mut pin!(remote.read_many([0..8, 100..200, 4095..4096]))).await.is_none(),
            3 => poll_once(&mut pin!(remote.fetch_add(0, 1 << 32))).await.is_none(),
            4 => {
                let buffer = left.pool().allocate(64).unwrap();
                poll_once(&mut pin!(remote.read_into(8, buffer))).await.is_none()
            }
            5 => {
                remote.fetch_add(0, 1).await.unwrap();
                false
            }
            _ => {
                remote.write(4000, &number.to_le_bytes()).await.unwrap();
                assert_eq!(remote.read(4000..4008).await.unwrap()[..], number.to_le_bytes());
                false
            }
        });
    }
    assert!(dropped > 100, "{dropped}");
    let sum = remote.fetch_add(0, 0).await.unwrap();
    assert_eq!(table.word(0).unwrap().load(std::sync::atomic::Ordering::Relaxed), sum);
    assert!(sum & 0xffff_ffff > 100);
    left.close().await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_connection_can_be_awaited() {
    let (left, right) = pair(&options()).await;
    left.send_timeout(vec![1; 10], Duration::from_secs(60)).await.unwrap();
    assert_eq!(right.recv().await.unwrap().unwrap().len(), 10);
    let table = right.expose("table", 64, RemoteAccess::READ).await.unwrap();
    table.write(8, b"row").unwrap();
    let remote = left.remote_region("table").await.unwrap();
    let buffer = remote.read_into(8, left.pool().allocate(3).unwrap()).await.unwrap();
    assert_eq!(&buffer[..], b"row");

    let mut closed = pin!(left.closed());
    assert!(poll_once(&mut closed).await.is_none());
    drop(right);
    let error = closed.await;
    assert!(matches!(error, ConnectionError::PeerAborted { .. }), "{error:?}");
}

#[tokio::test]
async fn a_forked_child_that_drops_a_connection_leaves_its_parent_the_events() {
    let (left, right) = pair(&options().keepalive(None)).await;
    let receiving = std::sync::Arc::new(left);
    let receiver = std::sync::Arc::clone(&receiving);
    let received = tokio::spawn(async move { receiver.recv().await });
    // The task waits for an event.
    tokio::time::sleep(Duration::from_millis(200)).await;
    // SAFETY: the child only drops the connection, which is tested.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: neither function has preconditions, and the child never uses the connection again.
        unsafe {
            libc::alarm(20);
            drop(std::ptr::read(&raw const *receiving));
            libc::_exit(0)
        }
    }
    let mut status = -1;
    // SAFETY: `status` is writable.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child hung or crashed");
    right.send(b"still here").await.unwrap();
    let message = tokio::time::timeout(Duration::from_secs(10), received).await.expect("no event");
    assert_eq!(message.unwrap().unwrap().unwrap()[..], b"still here"[..]);
}
