//! `UdQueue` on a device of rdma-core: the one that `ADVERB_DEVICE` names, or the first one. Without a device, the tests
//! print that and pass.

#![cfg(feature = "ibv")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use adverb_probe::stamp::StampKind;
use adverb_probe::ud_queue::{Event, UdQueue};
use adverb_verbs::{Device, GidType, Traffic};

/// The limit of waits that succeed at once unless something is broken.
const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// The number of datagrams over each address.
const ROUND_TRIPS: u64 = 1000;

/// Returns the name of the device, and its addresses.
fn device() -> Option<(String, Vec<IpAddr>)> {
    let named = std::env::var("ADVERB_DEVICE").ok();
    let first = || Device::list_hardware().ok()?.into_iter().find(|info| info.unsupported_reason.is_none());
    let Some(name) = named.or_else(|| first().map(|info| info.name)) else {
        println!("skipped: no RDMA device");
        return None;
    };
    let device = Device::open(&name).unwrap();
    let gids = device.gids().unwrap();
    let usable = gids.iter().filter(|entry| entry.gid_type == GidType::RoceV2 && !entry.gid.is_link_local());
    Some((name, usable.map(|entry| entry.gid.ip()).collect()))
}

/// Opens a queue on the device at an address.
fn open(name: &str, address: IpAddr) -> UdQueue {
    let name = name.to_owned();
    UdQueue::builder(move || Device::open(&name)).local_addr(address).open().unwrap()
}

#[test]
fn queues_of_one_device_find_each_other_and_exchange_datagrams() {
    let Some((name, addresses)) = device() else { return };
    assert!(!addresses.is_empty(), "{name} has no RoCE v2 address");
    for address in addresses {
        let mut server = open(&name, address);
        let local = server.local().unwrap();
        let service = server.listen(0, b"epoch 7").unwrap();
        let stop = server.waker();
        let thread = std::thread::spawn(move || {
            while !server.is_stopped() {
                server.wait(Duration::MAX, |queue, event| match event {
                    Event::Received(datagram) => {
                        assert_eq!(datagram.source_addr(), address);
                        let traffic = Traffic::new().dscp(datagram.dscp());
                        queue.send(0, &datagram.source(), traffic, datagram.payload).unwrap();
                    }
                    Event::Sent(sent) => assert_eq!(sent.failure, None),
                    other => panic!("{other:?}"),
                });
            }
            server.stats()
        });
        let mut client = open(&name, address);
        let found = client.lookup(service, TEST_DEADLINE).unwrap();
        assert_eq!((found.destination, &found.private_data[..7]), (local, &b"epoch 7"[..]));
        let has_clock = client.device().unwrap().attributes().timestamp_clock.is_some();
        let kind = if has_clock { StampKind::Nic } else { StampKind::Process };
        for number in 0..ROUND_TRIPS {
            let traffic = Traffic::new().dscp((number % 64) as u8).flow_label(0x100 + (number % 64) as u32);
            let posted = client.send(number, &found.destination, traffic, &number.to_be_bytes()).unwrap();
            let deadline = Instant::now() + TEST_DEADLINE;
            let (mut sent_at, mut received_at) = (None, None);
            while sent_at.is_none() || received_at.is_none() {
                assert!(Instant::now() < deadline, "datagram {number} over {address} is missing");
                client.wait(Duration::from_secs(1), |_, event| match event {
                    Event::Sent(sent) => {
                        assert_eq!((sent.id, sent.failure, sent.posted_at), (number, None, posted.at));
                        sent_at = Some(sent.stamp);
                    }
                    Event::Received(datagram) => {
                        assert_eq!(datagram.payload, number.to_be_bytes());
                        assert_eq!(datagram.dscp(), (number % 64) as u8);
                        assert_eq!(datagram.source(), local);
                        received_at = Some(datagram.stamp);
                    }
                    other => panic!("{other:?}"),
                });
            }
            let [sent_at, received_at] = [sent_at, received_at].map(Option::unwrap);
            assert_eq!((sent_at.kind, received_at.kind), (kind, kind));
        }
        stop.stop();
        let stats = thread.join().unwrap();
        assert_eq!((stats.received, stats.answered), (ROUND_TRIPS, 1));
        let stats = client.stats();
        assert_eq!((stats.sent, stats.received, stats.unmatched), (ROUND_TRIPS, ROUND_TRIPS, 0));
        assert_eq!(stats.address_handles_created, 64, "handles are used again");
        println!("{address} of {name}: {ROUND_TRIPS} round trips, stamps by the {kind}");
    }
}
