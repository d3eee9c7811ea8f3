//! All that is counted goes round many times.

use std::thread::scope;
use std::time::Instant;

use adverb::net::Options;
use adverb::net::blocking::Connection;
use adverb::verbs::Device;

use crate::{LONGEST, Letters, Random, number, pair};

/// The ring, and the longest message that goes through it. Longer ones are read from where they are.
const RING: u32 = 4 << 10;
const EAGER: usize = (RING as usize / 4) - 16;

/// Lengths from 0 to 64 KiB: of each power of two as many, so that there are far more short ones than long ones.
fn len(random: &mut Random) -> usize {
    let bits = random.below(LONGEST.ilog2() as usize + 1) + 1;
    random.below(1 << bits).min(LONGEST)
}

/// How many units of 16 bytes a message takes in the ring.
fn units(len: usize) -> usize {
    1 + if len <= EAGER { len.div_ceil(16) } else { 1 }
}

fn send(connection: &Connection, letters: &Letters, seed: u64, count: usize) -> (usize, usize) {
    let (mut random, mut bytes, mut places) = (Random(seed), 0, 0);
    for number in 0..count {
        let len = len(&mut random);
        (bytes, places) = (bytes + len, places + units(len));
        connection.send(letters.letter(number, len)).unwrap();
    }
    connection.shutdown().unwrap();
    (bytes, places)
}

fn recv(connection: &Connection, letters: &Letters, seed: u64, count: usize) {
    let mut random = Random(seed);
    for number in 0..count {
        let message = connection.recv().unwrap().expect("there are more");
        let expected = letters.letter(number, len(&mut random));
        assert_eq!(message.len(), expected.len(), "message {number}");
        assert!(message[..] == *expected, "message {number} of {} bytes", message.len());
    }
    assert!(connection.recv().unwrap().is_none());
}

#[test]
fn everything_wraps_many_times_with_messages_both_ways() {
    let _guard = crate::share_process();
    let count = number("ADVERB_MESSAGES", 100_000);
    let options =
        Options::new().device(&Device::open("soft").unwrap()).recv_ring_size(RING).max_outstanding_writes(16);
    let (left, right) = pair(&options, &options);
    let (letters, start) = (&Letters::new(), Instant::now());
    let (bytes, units) = scope(|scope| {
        let senders = [(&left, 1), (&right, 2)];
        let senders = senders.map(|(from, seed)| scope.spawn(move || send(from, letters, seed, count)));
        let receivers = [(&left, 2), (&right, 1)];
        let receivers = receivers.map(|(to, seed)| scope.spawn(move || recv(to, letters, seed, count)));
        receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
        let [one, other] = senders.map(|sender| sender.join().unwrap());
        (one.0 + other.0, one.1.min(other.1))
    });
    let seconds = start.elapsed().as_secs_f64();
    // A write has at most a quarter of the ring, so that there were at least so many.
    let (ring, writes) = (RING as usize / 16, units / (RING as usize / 16 / 4));
    let (rings, unit_counts, write_counts) = (units / ring, units >> 21, writes >> 9);
    println!(
        "{count} messages each way, {:.1} GB, in {seconds:.0} s: {:.0} a second. At least, each way: the ring went round {rings} \
         times, the count of units {unit_counts} times, that of writes {write_counts} times",
        bytes as f64 / 1e9,
        2.0 * count as f64 / seconds
    );
    assert!(rings > count / 100, "{rings}");
    assert!(count < 10_000_000 || unit_counts > 10 && write_counts > 1_000, "{unit_counts}, {write_counts}");
    left.close().unwrap();
    right.close().unwrap();
}
