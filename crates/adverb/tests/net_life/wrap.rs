//! Rings, indices and counters that wrap many times.

use std::thread::scope;
use std::time::Instant;

use adverb::net::Options;
use adverb::net::blocking::Connection;
use adverb::verbs::Device;

use crate::connections::blocking_pair;
use crate::random::Random;
use crate::{MAX_LEN, Messages, number};

/// The ring size, and the maximum length of an eager message. Longer messages use rendezvous.
const RING_SIZE: u32 = 4 << 10;
const MAX_EAGER_LEN: usize = (RING_SIZE as usize / 4) - 16;

/// Returns a length from 0 to 64 KiB. Each power of two is equally frequent, so short lengths prevail.
fn len(random: &mut Random) -> usize {
    let bits = random.below(MAX_LEN.ilog2() as usize + 1) + 1;
    random.below(1 << bits).min(MAX_LEN)
}

/// Returns the number of ring units (16 bytes) of a message.
fn units(len: usize) -> usize {
    1 + if len <= MAX_EAGER_LEN { len.div_ceil(16) } else { 1 }
}

fn send(connection: &Connection, messages: &Messages, seed: u64, count: usize) -> (usize, usize) {
    let (mut random, mut bytes, mut unit_count) = (Random(seed), 0, 0);
    for number in 0..count {
        let len = len(&mut random);
        (bytes, unit_count) = (bytes + len, unit_count + units(len));
        connection.send(messages.message(number, len)).unwrap();
    }
    connection.shutdown().unwrap();
    (bytes, unit_count)
}

fn recv(connection: &Connection, messages: &Messages, seed: u64, count: usize) {
    let mut random = Random(seed);
    for number in 0..count {
        let message = connection.recv().unwrap().expect("the peer sends more messages");
        let expected = messages.message(number, len(&mut random));
        assert_eq!(message.len(), expected.len(), "message {number}");
        assert!(message[..] == *expected, "message {number} of {} bytes", message.len());
    }
    assert!(connection.recv().unwrap().is_none());
}

#[test]
fn rings_and_counters_wrap_with_messages_in_both_directions() {
    let _guard = crate::share_process();
    let count = number("ADVERB_MESSAGES", 100_000);
    let options = Options::new()
        .device(&Device::open("soft").unwrap())
        .recv_ring_size(RING_SIZE)
        .max_outstanding_writes(16);
    let (left, right) = blocking_pair(&options, &options);
    let (messages, start) = (&Messages::new(), Instant::now());
    let (bytes, units) = scope(|scope| {
        let senders = [(&left, 1), (&right, 2)];
        let senders = senders.map(|(from, seed)| scope.spawn(move || send(from, messages, seed, count)));
        let receivers = [(&left, 2), (&right, 1)];
        let receivers = receivers.map(|(to, seed)| scope.spawn(move || recv(to, messages, seed, count)));
        receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
        let [one, other] = senders.map(|sender| sender.join().unwrap());
        (one.0 + other.0, one.1.min(other.1))
    });
    let seconds = start.elapsed().as_secs_f64();
    // A write contains at most a quarter of the ring, which gives the minimum number of writes.
    let (ring, writes) = (RING_SIZE as usize / 16, units / (RING_SIZE as usize / 16 / 4));
    let (rings, unit_counts, write_counts) = (units / ring, units >> 21, writes >> 9);
    println!(
        "{count} messages each way, {:.1} GB, in {seconds:.0} s: {:.0} a second. At least, each way: the ring wrapped {rings} \
         times, the count of units {unit_counts} times, that of writes {write_counts} times",
        bytes as f64 / 1e9,
        2.0 * count as f64 / seconds
    );
    assert!(rings > count / 100, "{rings}");
    assert!(count < 10_000_000 || unit_counts > 10 && write_counts > 1_000, "{unit_counts}, {write_counts}");
    left.close().unwrap();
    right.close().unwrap();
}
