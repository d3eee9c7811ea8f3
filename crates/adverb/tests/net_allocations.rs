//! Messages of connections allocate nothing after a warm-up, at neither end: short messages that are copied, and
//! coalesced messages; for threads and for tasks. This test has its own process, whose allocations are counted.

#![cfg(all(feature = "soft", feature = "tokio"))]

#[path = "common/counting.rs"]
mod counting;

use std::thread::scope;
use std::time::Duration;

use adverb::net::{Options, blocking};
use adverb::verbs::{Device, SoftDevice, Switch};
use counting::{ROUNDS, allocations, assert_allocation_free};

const MESSAGES: u64 = 2_000;
/// The number of warm-up rounds.
const WARM_UP_ROUNDS: usize = 10;
/// The number of messages in flight.
const IN_FLIGHT: u64 = 10;

fn options(device: &Device) -> Options {
    Options::new().device(device)
}

fn connect(one: &Device, other: &Device) -> (blocking::Connection, blocking::Connection) {
    connect_with(&options(one), other)
}

fn connect_with(client: &Options, other: &Device) -> (blocking::Connection, blocking::Connection) {
    let server = client.clone().device(other);
    let listener = blocking::Listener::builder().options(&server).bind("127.0.0.1:0").unwrap();
    scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        let connector = blocking::Connector::new().options(client);
        (connector.connect(listener.local_addr()).unwrap(), accepting.join().unwrap())
    })
}

/// Checks that [`MESSAGES`] allocate nothing after enough rounds that all buffers have been in use.
fn assert_no_allocations(name: &str, run: impl FnMut()) {
    counting::assert_no_allocations(name, WARM_UP_ROUNDS, run);
}

#[test]
fn messages_of_connections_allocate_nothing_after_a_warm_up() {
    let loopback = SoftDevice::loopback().open().unwrap();
    let switch = Switch::default();
    let [here, there] = ["10.0.0.1", "10.0.0.2"]
        .map(|address| SoftDevice::on_switch(&switch, address.parse().unwrap()).open().unwrap());
    for (name, one, other) in [("loopback", &loopback, &loopback), ("mem", &here, &there)] {
        let (left, right) = connect(one, other);
        assert_no_allocations(&format!("{name}, send"), || {
            for _ in 0..MESSAGES / IN_FLIGHT {
                (0..IN_FLIGHT).for_each(|_| left.send(&[7; 64]).unwrap());
                (0..IN_FLIGHT).for_each(|_| assert_eq!(right.recv().unwrap().unwrap().len(), 64));
            }
        });
        assert_no_allocations(&format!("{name}, there and back"), || {
            for _ in 0..MESSAGES / 2 {
                left.send(&[7; 64]).unwrap();
                right.send(right.recv().unwrap().unwrap()).unwrap();
                left.recv().unwrap().unwrap();
            }
        });
        assert_no_allocations(&format!("{name}, feed"), || {
            for _ in 0..MESSAGES / 100 {
                (0..100).for_each(|_| left.feed(&[7; 64]).unwrap());
                left.flush().unwrap();
                (0..100).for_each(|_| assert_eq!(right.recv().unwrap().unwrap().len(), 64));
            }
        });
    }

    // Also if messages are kept for a replay until the peer has read them.
    let (left, right) = connect_with(&options(&here).reconnect(Duration::from_secs(5)), &there);
    assert_no_allocations("mem, with reconnect, there and back", || {
        for _ in 0..MESSAGES / 2 {
            left.send(&[7; 64]).unwrap();
            right.send(right.recv().unwrap().unwrap()).unwrap();
            left.recv().unwrap().unwrap();
        }
    });
    // The buffer of a rendezvous message is a region of its own while the peer reads it.
    let mut message = left.pool().allocate(64 << 10).unwrap();
    let mut round_trip = || {
        left.send(std::mem::replace(&mut message, left.pool().allocate(0).unwrap())).unwrap();
        right.send(right.recv().unwrap().unwrap()).unwrap();
        message = left.recv().unwrap().unwrap().into_buffer();
    };
    (0..100).for_each(|_| round_trip());
    let before = allocations();
    (0..500).for_each(|_| round_trip());
    let count = allocations() - before;
    println!("mem, 64 KiB: {count} allocations for 1000 messages");
    // Two allocations each: the buffer's memory handle, and the state that it shares with requests.
    assert!((2000..2100).contains(&count), "{count}");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (left, right) = runtime.block_on(async {
        let listener =
            adverb::net::Listener::builder().options(&options(&there)).bind("127.0.0.1:0").await.unwrap();
        let connector = adverb::net::Connector::new().options(&options(&here));
        let (left, right) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
        (left.unwrap(), right.unwrap())
    });
    // All rounds run in one `block_on`, because each call of it allocates.
    let counts = runtime.block_on(async {
        let mut counts = [0; WARM_UP_ROUNDS + ROUNDS];
        for count in &mut counts {
            let before = allocations();
            for _ in 0..MESSAGES / 2 {
                left.send(&[7; 64]).await.unwrap();
                right.send(right.recv().await.unwrap().unwrap()).await.unwrap();
                left.recv().await.unwrap().unwrap();
            }
            *count = allocations() - before;
        }
        counts
    });
    assert_allocation_free("mem, there and back by tasks", *counts.last_chunk().unwrap());
}
