//! Datagrams of a `UdQueue` allocate nothing after a warm-up. This test has its own process, whose allocations are
//! counted.

#![cfg(all(feature = "soft", feature = "probe"))]

#[path = "common/counting.rs"]
mod counting;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use adverb::probe::ud_queue::{Destination, Event, UdQueue};
use adverb::verbs::{SoftDevice, Switch, Traffic};

/// The number of round trips per counted round.
const ROUND_TRIPS: u64 = 2000;

const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// Sends datagrams in turn over several paths and classes, and waits for the reply to each.
fn exchange(client: &mut UdQueue, server: &mut UdQueue, to: &Destination) {
    let deadline = Instant::now() + TEST_DEADLINE;
    for number in 0..ROUND_TRIPS {
        let [label, dscp] = [number % 16, number % 4];
        let traffic = Traffic::new().flow_label(0x3000 + label as u32).dscp(dscp as u8);
        client.send(number, to, traffic, &number.to_be_bytes()).unwrap();
        let (mut is_sent, mut is_answered) = (false, false);
        while !is_sent || !is_answered {
            server.poll(|queue, event| {
                if let Event::Received(datagram) = event {
                    let source = datagram.source();
                    queue.send(7, &source, Traffic::new().dscp(datagram.dscp()), datagram.payload).unwrap();
                }
            });
            client.poll(|_, event| match event {
                Event::Sent(sent) => is_sent = sent.id == number,
                Event::Received(datagram) => is_answered = datagram.payload == number.to_be_bytes(),
                other => panic!("{other:?}"),
            });
            assert!(Instant::now() < deadline, "datagram {number} is missing");
        }
    }
}

#[test]
fn datagrams_allocate_nothing_after_a_warm_up() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let loopback = move |number| IpAddr::from(Ipv4Addr::new(127, 64 | high & 0x3f, low, number));
    let switch = Switch::default();
    let in_memory = [1, 2].map(|number| {
        let switch = switch.clone();
        UdQueue::builder(move || SoftDevice::on_switch(&switch, [10, 9, 8, number].into()).open())
    });
    let over_udp =
        [1, 2].map(|number| UdQueue::builder(move || SoftDevice::at_addr(loopback(number)).open()));
    for (name, builders) in [("in memory", in_memory), ("over UDP", over_udp)] {
        let [mut client, mut server] = builders.map(|builder| builder.open().unwrap());
        let to = server.local().unwrap();
        counting::assert_no_allocations(name, 2, || exchange(&mut client, &mut server, &to));
        assert_eq!((client.stats().unmatched, server.stats().unmatched), (0, 0));
        assert_eq!(client.stats().address_handles_created, 16);
    }
}
