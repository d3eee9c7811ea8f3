//! `UdQueue` on the software NIC, over UDP sockets and over a switch in memory.

#![cfg(feature = "soft")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use adverb_probe::ProbeError;
use adverb_probe::paths::flow_label_of;
use adverb_probe::stamp::StampKind;
use adverb_probe::ud_queue::{Destination, Event, LookupResult, UdQueue, UdQueueBuilder};
use adverb_verbs::{Device, Error, FaultConfig, Result, SoftDevice, Status, Switch, Traffic};

/// The limit of waits that succeed at once unless something is broken.
const TEST_DEADLINE: Duration = Duration::from_secs(30);

/// Returns a loopback address of this process and test.
fn loopback(number: u8) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high & 0x7f, low, number).into()
}

/// Opens a device at a UDP address.
fn sockets(address: IpAddr) -> impl FnMut() -> Result<Device> + Send {
    move || SoftDevice::at_addr(address).open()
}

/// Returns an address for a device on a switch. Each device of the process has its own, because the connection manager
/// finds devices by address.
fn fresh() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0x0a00_0001);
    Ipv4Addr::from_bits(NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// Returns an IPv6 address for a device on a switch.
fn fresh_v6() -> IpAddr {
    let IpAddr::V4(address) = fresh() else { unreachable!() };
    let [a, b] = [address.to_bits() >> 16, address.to_bits() & 0xffff].map(|half| half as u16);
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, a, b).into()
}

/// An address that no device has.
const ABSENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 255, 0, 1));

/// Opens a device on a switch in memory.
fn on_switch(switch: &Switch, address: IpAddr) -> impl FnMut() -> Result<Device> + Send + use<> {
    let switch = switch.clone();
    move || SoftDevice::on_switch(&switch, address).open()
}

/// Returns builders of two queues on a switch in memory.
fn builders() -> [UdQueueBuilder; 2] {
    let switch = Switch::default();
    [(); 2].map(|()| UdQueue::builder(on_switch(&switch, fresh())))
}

/// Two queues on a switch in memory.
fn pair() -> [UdQueue; 2] {
    builders().map(|builder| builder.open().unwrap())
}

/// Waits until `handle` returns a value for an event.
fn wait_for<T>(queue: &mut UdQueue, mut handle: impl FnMut(&mut UdQueue, Event<'_>) -> Option<T>) -> T {
    let deadline = Instant::now() + TEST_DEADLINE;
    let mut found = None;
    while found.is_none() {
        assert!(Instant::now() < deadline, "the event doesn't arrive: {:?}", queue.stats());
        queue.wait(Duration::from_secs(1), |queue, event| {
            let value = handle(queue, event);
            if found.is_none() {
                found = value;
            }
        });
    }
    found.unwrap()
}

/// Waits for a datagram and returns its payload.
fn receive(queue: &mut UdQueue) -> Vec<u8> {
    wait_for(queue, |_, event| match event {
        Event::Received(datagram) => Some(datagram.payload.to_vec()),
        _ => None,
    })
}

/// Sends a datagram from one queue to another and checks all that the events say.
fn exchange(builders: [UdQueueBuilder; 2], kinds: [StampKind; 2]) {
    let [mut sender, mut receiver] = builders.map(|builder| builder.open().unwrap());
    let [from, to] = [&sender, &receiver].map(|queue| queue.local().unwrap());
    let traffic = Traffic::new().dscp(26).flow_label(0x123).hop_limit(9);
    let posted = sender.send(77, &to, traffic, b"one datagram").unwrap();
    assert_eq!(posted.at.kind, StampKind::Process);
    let sent = wait_for(&mut sender, |_, event| match event {
        Event::Sent(sent) => Some(sent),
        other => panic!("{other:?}"),
    });
    assert_eq!((sent.id, sent.failure, sent.posted_at), (77, None, posted.at));
    assert_eq!(sent.stamp.kind, kinds[0]);
    assert!(sent.stamp.nanos_since(posted.at).unwrap() >= 0, "{sent:?}");
    let stamp = wait_for(&mut receiver, |_, event| match event {
        Event::Received(datagram) => {
            assert_eq!(datagram.payload, b"one datagram");
            assert_eq!(datagram.source(), from);
            assert_eq!(datagram.source_addr(), from.gid.ip());
            assert_eq!((datagram.dscp(), datagram.hop_limit()), (26, 9));
            Some(datagram.stamp)
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(stamp.kind, kinds[1]);
    // Both are on the clock of this process, apart from the error of the kernel's clock conversion.
    let network = stamp.nanos_since(sent.stamp).unwrap();
    assert!((-2_000..10_000_000_000).contains(&network), "{network} ns");
    assert_eq!((sender.stats().sent, receiver.stats().received), (1, 1));
    assert_eq!((sender.stats().unmatched, receiver.stats().recv_failures), (0, 0));
}

#[test]
fn a_datagram_over_udp_has_all_that_the_sender_chose() {
    exchange(
        [1, 2].map(|number| UdQueue::builder(sockets(loopback(number)))),
        [StampKind::Kernel, StampKind::Kernel],
    );
}

#[test]
fn a_datagram_over_udp_and_ipv6_has_all_that_the_sender_chose() {
    let address: IpAddr = "::1".parse().unwrap();
    let builder = |_| UdQueue::builder(sockets(address)).local_addr(address);
    exchange([0, 1].map(builder), [StampKind::Kernel, StampKind::Kernel]);
}

#[test]
fn a_datagram_in_memory_has_all_that_the_sender_chose() {
    for addresses in [[fresh(), fresh()], [fresh_v6(), fresh_v6()]] {
        let switch = Switch::default();
        let builders = addresses.map(|address| UdQueue::builder(on_switch(&switch, address)));
        exchange(builders, [StampKind::Process; 2]);
    }
}

#[test]
fn sixty_four_flow_labels_are_sixty_four_source_ports() {
    let [mut sender, mut receiver] =
        [11, 12].map(|number| UdQueue::builder(sockets(loopback(number))).open().unwrap());
    let to = receiver.local().unwrap();
    for round in 0..2 {
        let mut ports = BTreeSet::new();
        // Ports above those that the system gives to programs.
        for port in 0xf000..0xf040 {
            let traffic = Traffic::new().flow_label(flow_label_of(port).unwrap());
            let posted = sender.send(port.into(), &to, traffic, &port.to_be_bytes()).unwrap();
            assert_eq!(posted.source_port, Some(port));
            let sent = wait_for(&mut sender, |_, event| match event {
                Event::Sent(sent) => Some(sent.id),
                _ => None,
            });
            assert_eq!(sent, u64::from(port));
            ports.extend(posted.source_port);
            assert_eq!(receive(&mut receiver), port.to_be_bytes());
        }
        assert_eq!(ports.len(), 64);
        assert_eq!(sender.stats().address_handles_created, 64, "round {round}: handles are used again");
    }
}

#[test]
fn the_address_handle_cache_is_bounded_and_keeps_used_handles() {
    let [builder, _] = builders();
    let mut queue = builder.max_address_handles(8).open().unwrap();
    let to = queue.local().unwrap();
    let send = |queue: &mut UdQueue, dscp: u8| {
        queue.send(0, &to, Traffic::new().dscp(dscp), b"").unwrap();
        queue.poll(|_, _| ());
    };
    for dscp in 1..64 {
        send(&mut queue, dscp);
        // The handle for this DSCP is used again and again, so it stays in the cache.
        send(&mut queue, 0);
    }
    assert_eq!(queue.address_handle_count(), 8);
    let stats = queue.stats();
    assert_eq!((stats.address_handles_created, stats.address_handles_evicted), (64, 56));
}

#[test]
fn without_a_free_slot_nothing_is_posted_and_completions_free_the_slots() {
    let [sender, receiver] = builders();
    let mut sender = sender.send_slots(4).open().unwrap();
    let mut receiver = receiver.open().unwrap();
    let to = receiver.local().unwrap();
    for round in 0..50u64 {
        let ids: [u64; 4] = std::array::from_fn(|index| u64::MAX - (4 * round + index as u64));
        for id in ids {
            sender.send(id, &to, Traffic::new(), &id.to_be_bytes()).unwrap();
        }
        assert_eq!(sender.free_send_slots(), 0);
        let refused = sender.send(0, &to, Traffic::new(), b"one too many");
        assert!(matches!(refused, Err(ProbeError::SendSlotsFull { slots: 4 })), "{refused:?}");
        let mut completed = Vec::new();
        while completed.len() < 4 {
            sender.wait(TEST_DEADLINE, |_, event| match event {
                Event::Sent(sent) => completed.push(sent.id),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(completed, ids, "each completion has the number of its request");
        assert_eq!(sender.free_send_slots(), 4);
        let mut received = Vec::new();
        while received.len() < 4 {
            receiver.wait(TEST_DEADLINE, |_, event| match event {
                Event::Received(datagram) => received.push(datagram.payload.to_vec()),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(received, ids.map(|id| id.to_be_bytes().to_vec()));
    }
    let stats = sender.stats();
    assert_eq!((stats.sent, stats.slots_exhausted, stats.unmatched), (200, 50, 0));
}

#[test]
fn a_payload_that_is_too_long_takes_no_slot() {
    let [mut sender, receiver] = pair();
    let to = receiver.local().unwrap();
    let max = sender.max_payload();
    let refused = sender.send(0, &to, Traffic::new(), &vec![0; max + 1]);
    assert!(matches!(refused, Err(ProbeError::PayloadTooLong { .. })), "{refused:?}");
    assert_eq!(sender.free_send_slots(), 64);
    sender.send(0, &to, Traffic::new(), &vec![7; max]).unwrap();
    let [_, mut receiver] = [sender, receiver];
    assert_eq!(receive(&mut receiver), vec![7; max]);
}

#[test]
fn a_receive_slot_is_posted_again_only_after_the_caller_has_read_it() {
    let [sender, receiver] = builders();
    let mut sender = sender.open().unwrap();
    let mut receiver = receiver.recv_slots(1).open().unwrap();
    let to = receiver.local().unwrap();
    let device = receiver.device().unwrap().clone();
    let dropped = || device.counters(1).unwrap().get("messages_dropped").unwrap();
    sender.send(0, &to, Traffic::new(), b"first").unwrap();
    wait_for(&mut receiver, |_, event| {
        let Event::Received(datagram) = event else { panic!("{event:?}") };
        assert_eq!(datagram.payload, b"first");
        // The only slot is in use, so the device drops the next datagram.
        let before = dropped();
        sender.send(1, &to, Traffic::new(), b"other").unwrap();
        let deadline = Instant::now() + TEST_DEADLINE;
        while dropped() == before {
            assert!(Instant::now() < deadline, "the datagram was not dropped");
            std::thread::yield_now();
        }
        assert_eq!(datagram.payload, b"first");
        Some(())
    });
    sender.send(2, &to, Traffic::new(), b"third").unwrap();
    assert_eq!(receive(&mut receiver), b"third");
    assert_eq!(receiver.stats().received, 2);
}

#[test]
fn a_panic_of_the_callers_function_loses_no_slots() {
    let [sender, receiver] = builders();
    let mut sender = sender.open().unwrap();
    let mut receiver = receiver.recv_slots(2).open().unwrap();
    let to = receiver.local().unwrap();
    for _ in 0..6 {
        // A check that follows a wait replaces the slot that the last panic lost.
        receiver.wait(Duration::from_millis(20), |_, _| ());
        sender.send(0, &to, Traffic::new(), b"panic").unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            receive_with(&mut receiver, |_| panic!("on purpose"));
        }));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
    }
    receiver.wait(Duration::from_millis(20), |_, _| ());
    sender.send(0, &to, Traffic::new(), b"after all").unwrap();
    assert_eq!(receive(&mut receiver), b"after all");
}

fn receive_with(queue: &mut UdQueue, mut handle: impl FnMut(&[u8])) {
    wait_for(queue, |_, event| match event {
        Event::Received(datagram) => {
            handle(datagram.payload);
            Some(())
        }
        _ => None,
    });
}

#[test]
fn a_waker_ends_a_wait_without_limit() {
    let [mut queue, _other] = pair();
    let waker = queue.waker();
    let thread = std::thread::spawn(move || {
        let mut waits = 0;
        while !queue.is_stopped() {
            assert_eq!(queue.wait(Duration::MAX, |_, _| ()), 0);
            waits += 1;
        }
        // All later waits end at once.
        (0..100).for_each(|_| assert_eq!(queue.wait(Duration::MAX, |_, _| ()), 0));
        waits
    });
    (0..50).for_each(|_| waker.wake());
    waker.stop();
    assert!(thread.join().unwrap() <= 51);
}

#[test]
fn a_queue_can_be_dropped_with_datagrams_in_flight_and_lookups_pending() {
    let [mut queue, peer] = pair();
    let to = peer.local().unwrap();
    for id in 0..64 {
        queue.send(id, &to, Traffic::new(), b"lost").unwrap();
    }
    queue.begin_lookup(1, SocketAddr::new(ABSENT, 7), TEST_DEADLINE).unwrap();
    drop(queue);
}

#[test]
fn a_queue_is_found_by_its_address_and_port() {
    let switch = Switch::default();
    for [service, client] in [
        [21, 22].map(|number| UdQueue::builder(sockets(loopback(number)))),
        builders(),
        [fresh_v6(), fresh_v6()].map(|address| UdQueue::builder(on_switch(&switch, address))),
    ] {
        let mut service = service.open().unwrap();
        let mut client = client.open().unwrap();
        let local = service.local().unwrap();
        let address = service.listen(0, b"epoch 1").unwrap();
        let stop = service.waker();
        let thread = std::thread::spawn(move || {
            while !service.is_stopped() {
                service.wait(Duration::MAX, |queue, event| {
                    let Event::Received(datagram) = event else { return };
                    queue.send(0, &datagram.source(), Traffic::new(), datagram.payload).unwrap();
                });
            }
            service.set_private_data(b"epoch 2").unwrap();
            service.stats()
        });
        let found = client.lookup(address, TEST_DEADLINE).unwrap();
        assert_eq!(found.destination, local);
        assert_eq!(&found.private_data[..7], b"epoch 1");
        // The same without blocking.
        client.begin_lookup(5, address, TEST_DEADLINE).unwrap();
        let result = looked_up(&mut client);
        assert_eq!((result.id, result.peer), (5, address));
        assert_eq!(result.service.unwrap(), found);
        client.send(1, &found.destination, Traffic::new(), b"ping").unwrap();
        assert_eq!(receive(&mut client), b"ping");
        stop.stop();
        let stats = thread.join().unwrap();
        assert_eq!((stats.answered, stats.rejected), (2, 0));
    }
}

fn looked_up(queue: &mut UdQueue) -> LookupResult {
    wait_for(queue, |_, event| match event {
        Event::LookedUp(result) => Some(result),
        _ => None,
    })
}

#[test]
fn a_port_without_a_service_is_rejected() {
    let [mut queue, peer] = pair();
    let address = SocketAddr::new(peer.gid().unwrap().gid.ip(), 7);
    let rejected = queue.lookup(address, TEST_DEADLINE);
    assert!(matches!(rejected, Err(ProbeError::Verbs(Error::CmRejected { .. }))), "{rejected:?}");
    queue.begin_lookup(3, address, TEST_DEADLINE).unwrap();
    let result = looked_up(&mut queue);
    assert!(matches!(result.service, Err(ProbeError::Verbs(Error::CmRejected { .. }))), "{result:?}");
    assert!(queue.listen(0, &[0; 137]).is_err(), "too much private data");
}

#[test]
fn a_lookup_of_an_absent_peer_ends_in_time_and_when_it_is_stopped() {
    let [mut queue, _peer] = pair();
    let absent = SocketAddr::new(ABSENT, 7);
    queue.begin_lookup(3, absent, Duration::from_millis(50)).unwrap();
    let result = looked_up(&mut queue);
    assert!(matches!(result.service, Err(ProbeError::Verbs(Error::Unreachable { .. }))), "{result:?}");
    let waker = queue.waker();
    let thread = std::thread::spawn(move || queue.lookup(absent, Duration::from_secs(3600)));
    std::thread::sleep(Duration::from_millis(20));
    waker.stop();
    assert!(matches!(thread.join().unwrap(), Err(ProbeError::Stopped { .. })));
}

#[test]
fn lookups_are_bounded() {
    let [mut queue, _peer] = pair();
    let absent = SocketAddr::new(ABSENT, 7);
    for id in 0..64 {
        queue.begin_lookup(id, absent, TEST_DEADLINE).unwrap();
    }
    let refused = queue.begin_lookup(64, absent, TEST_DEADLINE);
    assert!(matches!(refused, Err(ProbeError::TooManyLookups { max: 64 })), "{refused:?}");
}

/// The name of a device that can't be opened: no machine has its address.
const UNAVAILABLE: &str = "soft:192.0.2.77";

/// Opens a queue whose device fails after some packets, and whose next attempts to be opened fail too.
fn failing(switch: &Switch, packets: u64, failed_attempts: u32) -> (UdQueue, Arc<AtomicU32>) {
    let attempts = Arc::new(AtomicU32::new(0));
    let (counter, switch, address) = (Arc::clone(&attempts), switch.clone(), fresh());
    let builder = UdQueue::builder(move || {
        let device = SoftDevice::on_switch(&switch, address);
        let attempt = counter.fetch_add(1, Ordering::Relaxed);
        if attempt == 0 {
            let faults = FaultConfig { link_failure_after: Some(packets), ..FaultConfig::new(1) };
            return device.faults(faults).open();
        }
        if attempt <= failed_attempts {
            return Device::open(UNAVAILABLE);
        }
        device.open()
    });
    let queue = builder.reopen_delay(Duration::from_millis(1), Duration::from_millis(4)).open().unwrap();
    (queue, attempts)
}

#[test]
fn a_device_that_fails_is_opened_again() {
    let switch = Switch::default();
    let (mut queue, attempts) = failing(&switch, 10, 3);
    let mut peer = UdQueue::builder(on_switch(&switch, fresh())).open().unwrap();
    let to = peer.local().unwrap();
    let address = queue.listen(4444, b"epoch").unwrap();
    let before = queue.local().unwrap();
    let mut outcomes = Vec::new();
    let failure = loop {
        // Without polling, several are in flight when the link fails.
        for _ in 0..4 {
            let posted = queue.send(outcomes.len() as u64, &to, Traffic::new(), b"until it fails");
            if posted.is_err() {
                break;
            }
            outcomes.push(None);
        }
        let mut failure = None;
        queue.wait(TEST_DEADLINE, |_, event| match event {
            Event::Sent(sent) => outcomes[usize::try_from(sent.id).unwrap()] = Some(sent.failure),
            Event::Failed(error) => failure = Some(error),
            other => panic!("{other:?}"),
        });
        if let Some(error) = failure {
            break error;
        }
    };
    assert!(matches!(&failure, ProbeError::FatalEvent { .. }), "{failure}");
    // Each datagram has an outcome: it was sent (or lost with the link), or it was flushed.
    assert!(outcomes.iter().all(Option::is_some), "{outcomes:?}");
    let flushed =
        outcomes.iter().flatten().flatten().inspect(|failure| assert_eq!(failure.status, Status::Flushed));
    assert!(flushed.count() <= 4, "{outcomes:?}");
    // Until the device is opened again, the queue has no address and no slots.
    assert_eq!((queue.local(), queue.free_send_slots(), queue.max_payload()), (None, 0, 0));
    let refused = queue.send(0, &to, Traffic::new(), b"");
    assert!(matches!(refused, Err(ProbeError::DeviceFailed { .. })), "{refused:?}");
    wait_for(&mut queue, |_, event| match event {
        Event::Reopened => Some(()),
        other => panic!("{other:?}"),
    });
    assert_eq!(attempts.load(Ordering::Relaxed), 5, "one success, three failures, one success");
    let after = queue.local().unwrap();
    assert_eq!(after.gid, before.gid);
    assert_eq!((queue.stats().device_failures, queue.stats().reopens), (1, 1));
    // Datagrams pass again, and peers find the new queue pair at the old port.
    queue.send(9, &to, Traffic::new(), b"again").unwrap();
    // One wait may deliver earlier datagrams too.
    wait_for(&mut peer, |_, event| match event {
        Event::Received(datagram) => (datagram.payload == b"again").then_some(()),
        _ => None,
    });
    peer.begin_lookup(0, address, TEST_DEADLINE).unwrap();
    let found = loop {
        queue.wait(Duration::from_millis(1), |_, _| ());
        let mut found = None;
        peer.poll(|_, event| {
            if let Event::LookedUp(result) = event {
                found = Some(result.service.unwrap());
            }
        });
        if let Some(found) = found {
            break found;
        }
    };
    assert_eq!(found.destination, after);
}

/// A subscriber that passes on the errors of log lines.
struct LoggedErrors(mpsc::Sender<String>);

impl tracing::Subscriber for LoggedErrors {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "error" {
                self.0.send(format!("{value:?}")).unwrap();
            }
        });
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_log_line_has_the_causes_of_its_error() {
    let (mut queue, _) = failing(&Switch::default(), 0, 1);
    let absent = Destination { gid: ABSENT.into(), ..queue.local().unwrap() };
    let (sender, errors) = mpsc::channel();
    // With a single subscriber, tracing disables a line for all threads if a thread without it reaches the line first.
    let _other = tracing::Dispatch::new(LoggedErrors(sender.clone()));
    tracing::subscriber::with_default(LoggedErrors(sender), || {
        drop(queue.send(1, &absent, Traffic::new(), b"fails"));
        wait_for(&mut queue, |_, event| matches!(event, Event::Reopened).then_some(()));
    });
    let error = Device::open(UNAVAILABLE).unwrap_err();
    let cause = error.io_error().expect("the operating system has refused the address");
    let errors = Vec::from_iter(errors.try_iter());
    assert!(errors.contains(&format!("{error}: {cause}")), "{errors:?}");
}

#[test]
fn a_stop_ends_the_wait_for_a_device_that_stays_failed() {
    let switch = Switch::default();
    let (mut queue, _) = failing(&switch, 0, u32::MAX);
    let absent = Destination { gid: ABSENT.into(), ..queue.local().unwrap() };
    let mut lookups = 0;
    queue.begin_lookup(8, SocketAddr::new(ABSENT, 1), TEST_DEADLINE).unwrap();
    drop(queue.send(1, &absent, Traffic::new(), b"fails"));
    wait_for(&mut queue, |_, event| match event {
        Event::LookedUp(result) => {
            assert!(result.service.is_err());
            lookups += 1;
            None
        }
        Event::Failed(_) => Some(()),
        _ => None,
    });
    assert_eq!(lookups, 1, "the lookup has failed too");
    let waker = queue.waker();
    let thread = std::thread::spawn(move || {
        while !queue.is_stopped() {
            queue.wait(Duration::MAX, |_, event| panic!("{event:?}"));
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    waker.stop();
    thread.join().unwrap();
}
