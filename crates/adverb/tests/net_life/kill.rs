//! Processes that are killed while peers exchange messages with them.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::blocking::{Connection, Connector};
use adverb::net::{ConnectionError, RecvError, SendErrorKind};

use crate::child::{Process, listen, options};
use crate::connections::device;
use crate::random::Random;
use crate::{Messages, number};

/// The time limit to detect a killed peer: keepalive starts after 200 ms without a packet and gives up after two more
/// seconds. The limit is longer for busy machines.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of processes that are killed at the same time.
const CONCURRENT_KILLS: usize = 10;

/// Sends short and long messages until the connection fails. Returns their number.
pub(crate) fn send_all(connection: &Connection, messages: &Messages) -> (usize, SendErrorKind) {
    for number in 0.. {
        if let Err(failure) = connection.send(messages.message(number, len(number))) {
            return (number, failure.kind);
        }
    }
    unreachable!("the loop has no end")
}

/// Receives the messages of [`send_all`], and checks them, until the connection fails. Returns their number.
pub(crate) fn recv_all(connection: &Connection, messages: &Messages) -> (usize, RecvError) {
    for number in 0.. {
        match connection.recv() {
            Ok(Some(message)) => {
                assert!(message[..] == *messages.message(number, len(number)), "message {number}");
            }
            Ok(None) => panic!("the peer closed the connection"),
            Err(error) => return (number, error),
        }
    }
    unreachable!("the loop has no end")
}

fn len(number: usize) -> usize {
    if number % 10 == 9 { 50_000 } else { number % 500 }
}

/// Connects to a process and kills it. Returns the time until the failure was detected, and the number of received
/// messages.
fn kill_one(delay: Duration, listens: bool, messages: &Messages) -> (Duration, usize) {
    let (mut process, connection);
    if listens {
        let listener = listen();
        process = Process::start(&format!("connect {}", listener.local_addr()));
        connection = listener.accept().unwrap();
    } else {
        process = Process::start("listen");
        let address = process.wait_for_line("listening ");
        connection = Connector::new().options(&options()).connect(address).unwrap();
    }
    scope(|scope| {
        let sending = scope.spawn(|| send_all(&connection, messages));
        let receiving = scope.spawn(|| recv_all(&connection, messages));
        sleep(delay);
        process.kill();
        let killed = Instant::now();
        let ((sent, failure), (received, other)) = (sending.join().unwrap(), receiving.join().unwrap());
        let detected = killed.elapsed();
        let (SendErrorKind::ConnectionLost(failure), RecvError::ConnectionLost(other)) = (failure, other)
        else {
            panic!("after {sent} and {received} messages, the connection works")
        };
        for error in [failure, other] {
            assert!(
                matches!(error, ConnectionError::PeerLost { .. }),
                "after {sent} and {received} messages: {error:?}"
            );
        }
        assert!(detected < DETECTION_TIMEOUT, "the failure was detected after {detected:?}");
        (detected, received)
    })
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the resident memory of this process in KiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn killed_peers_are_detected_in_time_and_leak_nothing() {
    let _guard = crate::own_process();
    let kills = number("ADVERB_KILLS", CONCURRENT_KILLS);
    let (messages, mut random) = (Messages::new(), Random(number("ADVERB_SEED", 7) as u64));
    // The device stays open during the test.
    let device = device();
    let (resource_counts, mut after_first) = (device.resource_counts(), None);
    let (mut max, mut total, mut received, mut done) = (Duration::ZERO, Duration::ZERO, 0, 0);
    while done < kills {
        let delays: Vec<_> =
            (0..CONCURRENT_KILLS).map(|_| Duration::from_micros(random.below(500_000) as u64)).collect();
        let detected: Vec<_> = scope(|scope| {
            let kill = |(at, delay): (usize, Duration)| {
                let messages = &messages;
                scope.spawn(move || kill_one(delay, at % 2 == 0, messages))
            };
            let killed: Vec<_> = delays.into_iter().enumerate().map(kill).collect();
            killed.into_iter().map(|killed| killed.join().unwrap()).collect()
        });
        done += detected.len();
        max = detected.iter().map(|(detected, _)| *detected).chain([max]).max().unwrap();
        total += detected.iter().map(|(detected, _)| *detected).sum::<Duration>();
        received += detected.iter().map(|(_, received)| received).sum::<usize>();
        assert_eq!(device.resource_counts(), resource_counts, "after {done}");
        let memory = memory();
        let (first_descriptors, first_memory) = *after_first.get_or_insert((descriptors(), memory));
        // A thread that notifies a channel keeps it open for a moment after the channel's queue is destroyed.
        let deadline = Instant::now() + DETECTION_TIMEOUT;
        while descriptors() > first_descriptors {
            assert!(
                Instant::now() < deadline,
                "{} descriptors after {done}, {first_descriptors} after the first",
                descriptors()
            );
            sleep(Duration::from_millis(10));
        }
        assert!(
            memory < first_memory + (64 << 10),
            "{memory} KiB after {done}, {first_memory} KiB after the first"
        );
        if done >= kills {
            println!(
                "{done} killed: detected after {:?} on average, {max:?} at most; {received} messages received; {memory} KiB, and \
                 {first_memory} after the first {CONCURRENT_KILLS}",
                total / done as u32
            );
        }
    }
}
