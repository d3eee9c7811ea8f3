use super::super::tests::loopback;
use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens two states at the address of a test, as two processes do.
fn two_processes(test: u32) -> (SharedAddress, SharedAddress) {
    let address = loopback(test).into();
    let mut config = UdpConfig::new(address);
    config.shared = true;
    let open = move || SharedAddress::open(SocketAddr::new(address, 4791), &config).unwrap().0;
    let mut first = open();
    let second = std::thread::spawn(open);
    while !second.is_finished() {
        first.receive(1, &mut |_| panic!("a packet of another process"));
    }
    (first, second.join().unwrap())
}

/// Sends a packet to a queue pair of a process.
fn send(from: &mut SharedAddress, to: AddressShare) -> Delivery {
    let mut bytes = [0; 100];
    bytes[4..8].copy_from_slice(&to.qpn(0x1_0000).to_be_bytes());
    let addr = from.own.local_addr().unwrap();
    from.send(&[TxPacket {
        source: addr,
        destination: addr,
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        bytes: &bytes,
    }])
}

/// Receives until a condition holds, and returns the number of packets.
fn receive_until(process: &mut SharedAddress, is_done: impl Fn(&SharedAddress, usize) -> bool) -> usize {
    let (mut count, start) = (0, Instant::now());
    while !is_done(process, count) {
        count += process.receive(256, &mut |_| {});
        assert!(start.elapsed() < TEST_TIMEOUT, "{count} packets were received");
    }
    count
}

#[test]
fn packets_to_a_process_that_does_not_open_its_ring_go_over_udp() {
    let (mut sender, mut receiver) = two_processes(6);
    let (mut sent, start) = (0, Instant::now());
    while send(&mut sender, receiver.share()) == Delivery::Accepted {
        sent += 1;
        assert!(start.elapsed() < TEST_TIMEOUT, "{sent} packets are in the ring");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(sent > 0);
    assert_eq!(send(&mut sender, receiver.share()), Delivery::OverUdp);
    // The packets in the ring are not lost, and the ring is used again.
    receive_until(&mut receiver, |_, count| count == sent);
    assert_eq!(send(&mut sender, receiver.share()), Delivery::Accepted);
    assert_eq!(receive_until(&mut receiver, |_, count| count > 0), 1);
}

#[test]
fn a_broken_ring_is_replaced() {
    let (mut sender, mut receiver) = two_processes(7);
    assert_eq!(send(&mut sender, receiver.share()), Delivery::Accepted);
    receive_until(&mut receiver, |_, count| count == 1);
    let SharedAddress { outbound, names, readiness, .. } = &mut sender;
    outbound.write(names, readiness, receiver.share(), std::iter::once(&b"no message"[..]));
    receive_until(&mut receiver, |receiver, _| !receiver.has_rings());
    // The sender finds that the connection is closed.
    receive_until(&mut sender, |sender, _| !sender.outbound.has_ring(receiver.share()));
    assert_eq!(send(&mut sender, receiver.share()), Delivery::Accepted);
    assert_eq!(receive_until(&mut receiver, |_, count| count > 0), 1);
}

#[test]
fn a_wakeup_is_sent_once_until_it_is_read() {
    let (mut sender, mut receiver) = two_processes(5);
    assert_eq!(send(&mut sender, receiver.share()), Delivery::Accepted);
    receive_until(&mut receiver, |_, count| count == 1);
    let mut buffer = [0; 16];
    let mut wakeups = 0;
    for _ in 0..1000 {
        assert_eq!(send(&mut sender, receiver.share()), Delivery::Accepted);
        let SharedAddress { rings, .. } = &mut receiver;
        while rings[0].reader.read(&mut [0; MAX_MESSAGE_LEN]).unwrap().is_some() {}
        receiver.request_wakeups();
    }
    let source = receiver.rings[0].source;
    let Some(Source::Inbound(stream, _)) = receiver.sources.get(&source) else { panic!("no connection") };
    while let Ok((1, _)) = files::receive(stream, &mut buffer) {
        wakeups += 1;
    }
    assert_eq!(wakeups, 1);
}
