//! The cost of timestamps over sockets.

use std::time::Instant;

use adverb_proto::types::Transport;
use adverb_soft::NicOptions;

use crate::node::Node;
use crate::support::open_loopback;

/// The number of messages of one measurement.
const MESSAGES: usize = 6400;

/// Measures the time per message, with messages posted in batches, in nanoseconds.
fn measure(transport: Transport, batch: usize, has_timestamps: bool) -> u128 {
    let [one, other] = [(), ()].map(|()| {
        let link = open_loopback(|_| ());
        Node::with_timestamps(transport, NicOptions::new([link.local_addr().ip()], link), has_timestamps)
    });
    one.connect(&other);
    other.connect(&one);
    let start = Instant::now();
    for _ in 0..MESSAGES / batch {
        for _ in 0..batch {
            other.post_recv();
        }
        one.post_sends(&other, &[7; 64], batch);
        other.await_completions(batch);
        while other.nic.poll(other.cq, 1, |_| ()) > 0 {}
        one.await_completions(batch);
    }
    start.elapsed().as_nanos() / MESSAGES as u128
}

/// Prints the cost: `cargo test --release -p adverb-soft --test timestamps -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_timestamps() {
    for (transport, batch) in
        [(Transport::Ud, 1), (Transport::Ud, 16), (Transport::Rc, 1), (Transport::Rc, 16)]
    {
        let mut rounds: Vec<[u128; 2]> = Vec::new();
        for _ in 0..9 {
            rounds.push([false, true].map(|has_timestamps| measure(transport, batch, has_timestamps)));
        }
        let median = |column: usize| {
            let mut values: Vec<u128> = rounds.iter().map(|round| round[column]).collect();
            values.sort_unstable();
            values[values.len() / 2]
        };
        println!(
            "{transport:?}, batches of {batch}: {} ns without timestamps, {} ns with",
            median(0),
            median(1)
        );
    }
}
