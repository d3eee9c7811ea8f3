//! Processes that are killed while others talk to them.

use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::Error;
use adverb::net::blocking::{Connection, Connector};

use crate::child::{Process, device, listen, options};
use crate::{Letters, Random, number};

/// Within which time it is noticed: asked for after 200 ms of silence, and given up after another two seconds; and twice that
/// on a machine with more to do than it can.
const BOUND: Duration = Duration::from_secs(10);
/// How many are killed at a time.
const AT_ONCE: usize = 10;

/// Sends short messages and long ones until the connection ends; says how many.
pub(crate) fn send_all(connection: &Connection, letters: &Letters) -> (usize, Error) {
    for number in 0.. {
        if let Err(failure) = connection.send(letters.letter(number, len(number))) {
            return (number, failure.error);
        }
    }
    unreachable!("it never ends")
}

/// Receives them.
pub(crate) fn recv_all(connection: &Connection, letters: &Letters) -> (usize, Error) {
    for number in 0.. {
        match connection.recv() {
            Ok(Some(message)) => {
                assert!(message[..] == *letters.letter(number, len(number)), "message {number}");
            }
            Ok(None) => panic!("nobody closed it"),
            Err(error) => return (number, error),
        }
    }
    unreachable!("it never ends")
}

fn len(number: usize) -> usize {
    if number % 10 == 9 { 50_000 } else { number % 500 }
}

/// Connects with a process, kills that, and returns how long it took to notice and how many messages came.
fn kill_one(moment: Duration, listens: bool, letters: &Letters) -> (Duration, usize) {
    let (mut process, connection);
    if listens {
        let listener = listen();
        process = Process::start(&format!("connect {}", listener.local_addr()));
        connection = listener.accept().unwrap();
    } else {
        process = Process::start("listen");
        let address = process.says("listening ");
        connection = Connector::new().options(&options()).connect(address).unwrap();
    }
    scope(|scope| {
        let sending = scope.spawn(|| send_all(&connection, letters));
        let receiving = scope.spawn(|| recv_all(&connection, letters));
        sleep(moment);
        process.kill();
        let killed = Instant::now();
        let ((sent, failure), (received, other)) = (sending.join().unwrap(), receiving.join().unwrap());
        let noticed = killed.elapsed();
        for error in [failure, other] {
            assert!(
                matches!(error, Error::Disconnected { .. }),
                "after {sent} and {received} messages: {error}"
            );
        }
        assert!(noticed < BOUND, "a peer that was killed was noticed after {noticed:?}");
        (noticed, received)
    })
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// How much memory this process has, in KiB.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn who_is_killed_is_noticed_in_time_and_nothing_is_left() {
    let _guard = crate::own_process();
    let kills = number("ADVERB_KILLS", AT_ONCE);
    let (letters, mut random) = (Letters::new(), Random(number("ADVERB_SEED", 7) as u64));
    // Opened for as long as this takes.
    let device = device();
    let (resource_counts, mut after_first) = (device.resource_counts(), None);
    let (mut longest, mut all, mut received, mut done) = (Duration::ZERO, Duration::ZERO, 0, 0);
    while done < kills {
        let moments: Vec<_> =
            (0..AT_ONCE).map(|_| Duration::from_micros(random.below(500_000) as u64)).collect();
        let noticed: Vec<_> = scope(|scope| {
            let kill = |(at, moment): (usize, Duration)| {
                let letters = &letters;
                scope.spawn(move || kill_one(moment, at % 2 == 0, letters))
            };
            let killed: Vec<_> = moments.into_iter().enumerate().map(kill).collect();
            killed.into_iter().map(|killed| killed.join().unwrap()).collect()
        });
        done += noticed.len();
        longest = noticed.iter().map(|(noticed, _)| *noticed).chain([longest]).max().unwrap();
        all += noticed.iter().map(|(noticed, _)| *noticed).sum::<Duration>();
        received += noticed.iter().map(|(_, received)| received).sum::<usize>();
        assert_eq!(device.resource_counts(), resource_counts, "after {done}");
        let (descriptors, memory) = (descriptors(), memory());
        let (first_descriptors, first_memory) = *after_first.get_or_insert((descriptors, memory));
        assert_eq!(descriptors, first_descriptors, "descriptors after {done}");
        assert!(memory < first_memory + (64 << 10), "{memory} KiB after {done}, and {first_memory} at first");
        if done >= kills {
            println!(
                "{done} killed: noticed after {:?} on average, {longest:?} at most; {received} messages came; {memory} KiB, and \
                 {first_memory} after the first {AT_ONCE}",
                all / done as u32
            );
        }
    }
}
