use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr};

use super::super::tests::loopback;
use super::passing::ABSENCE_TIME;
use super::*;
use crate::link::local::{HELLO_MESSAGE, Names, VERSION, receive_files, verifiable_user};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the address of a test.
fn addr(test: u32) -> SocketAddr {
    SocketAddr::new(loopback(test).into(), 4791)
}

/// Opens a state at the address of a test, as a process does.
fn open(test: u32) -> io::Result<SharedAddress> {
    let mut config = UdpConfig::new(addr(test).ip());
    config.shared = true;
    Ok(SharedAddress::open(addr(test), verifiable_user().unwrap(), &config)?.0)
}

/// Opens two states at the address of a test, as two processes do.
fn two_processes(test: u32) -> (SharedAddress, SharedAddress) {
    let mut first = open(test).unwrap();
    let second = std::thread::spawn(move || open(test).unwrap());
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
    let packet = TxPacket {
        source: addr,
        destination: addr,
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        bytes: &bytes,
    };
    // The tests read no UDP sockets.
    from.send(&[packet], |_, _| Ok(false))
}

/// Sends packets to a process until one is written into its ring.
fn send_until_accepted(from: &mut SharedAddress, to: &mut SharedAddress) {
    let start = Instant::now();
    while send(from, to.address_share()) == Delivery::OverUdp {
        assert_eq!(to.receive(256, &mut |_| {}), 0);
        assert!(start.elapsed() < TEST_TIMEOUT, "the ring is not opened");
    }
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
fn packets_go_over_udp_until_the_process_opens_its_ring() {
    let (mut sender, mut receiver) = two_processes(6);
    for _ in 0..10 {
        assert_eq!(send(&mut sender, receiver.address_share()), Delivery::OverUdp);
        std::thread::sleep(Duration::from_millis(5));
    }
    receive_until(&mut receiver, |receiver, _| receiver.endpoint.has_rings());
    assert_eq!(send(&mut sender, receiver.address_share()), Delivery::Accepted);
    assert_eq!(receive_until(&mut receiver, |_, count| count > 0), 1);
}

#[test]
fn a_process_that_cannot_send_its_markers_now_stays_with_udp() {
    let (mut sender, mut receiver) = two_processes(10);
    let share = receiver.address_share();
    assert_eq!(send(&mut sender, share), Delivery::OverUdp);
    receive_until(&mut receiver, |receiver, _| receiver.endpoint.has_rings());
    let mut bytes = [0; 100];
    bytes[4..8].copy_from_slice(&share.qpn(0x1_0000).to_be_bytes());
    let (source, destination) = (addr(10), addr(10));
    let packet =
        TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes: &bytes };
    let mut markers = Vec::new();
    assert_eq!(sender.send(&[packet], |_, _| Err(io::ErrorKind::WouldBlock.into())), Delivery::OverUdp);
    let mut send_datagram = |port: u16, bytes: &[u8]| {
        markers.push((port, bytes.to_vec()));
        Ok(true)
    };
    assert_eq!(sender.send(&[packet], &mut send_datagram), Delivery::Accepted);
    assert_eq!(sender.send(&[packet], &mut send_datagram), Delivery::Accepted);
    let [(port, marker)] = &markers[..] else { panic!("{markers:?}") };
    assert_eq!(*port, source.port());
    // The receiver reads the ring after the marker, whichever it reads first.
    assert_eq!(receiver.receive(256, &mut |_| {}), 0);
    assert!(receiver.deadline().is_some());
    assert!(!receiver.endpoint.take_marker(&[0; 12]) && !receiver.endpoint.take_marker(&marker[1..]));
    assert!(receiver.endpoint.take_marker(marker));
    assert_eq!(receive_until(&mut receiver, |_, count| count > 0), 2);
    assert!(receiver.endpoint.take_marker(marker), "a late marker is no packet");
}

#[test]
fn a_broken_ring_is_replaced() {
    let (mut sender, mut receiver) = two_processes(7);
    send_until_accepted(&mut sender, &mut receiver);
    receive_until(&mut receiver, |_, count| count == 1);
    let message = b"no message";
    let peer = PeerAddr { addr: addr(7), share: Some(receiver.address_share()) };
    assert_eq!(sender.endpoint.send_message(peer, message), Delivery::Accepted);
    receive_until(&mut receiver, |receiver, _| !receiver.endpoint.has_rings());
    // The sender finds that the connection is closed.
    receive_until(&mut sender, |sender, _| !sender.endpoint.has_writer(peer));
    send_until_accepted(&mut sender, &mut receiver);
    assert_eq!(receive_until(&mut receiver, |_, count| count > 0), 1);
}

#[test]
fn a_wakeup_is_sent_once_until_it_is_read() {
    let (mut sender, mut receiver) = two_processes(5);
    send_until_accepted(&mut sender, &mut receiver);
    receive_until(&mut receiver, |_, count| count == 1);
    let mut buffer = [0; 16];
    let mut wakeups = 0;
    for _ in 0..1000 {
        assert_eq!(send(&mut sender, receiver.address_share()), Delivery::Accepted);
        receiver.endpoint.rings().read_and_prepare_sleep();
    }
    let source = receiver.endpoint.rings().first_reader();
    let stream = receiver.endpoint.inbound(source).unwrap();
    while let Ok((1, _)) = receive_files(stream, &mut buffer) {
        wakeups += 1;
    }
    assert_eq!(wakeups, 1);
}

#[test]
fn a_process_joins_however_many_others_join_before_it() {
    let names = Names::new(addr(9), verifiable_user().unwrap());
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (sender, started) = std::sync::mpsc::channel();
        let (names, is_done) = (&names, &is_done);
        // There is always a process that is joining, and the next one claims the name at once.
        scope.spawn(move || {
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                let _joining = names.claim(Name::Joining);
                let _ = sender.send(());
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        started.recv().unwrap();
        let opened = open(9);
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(opened.unwrap().address_share(), AddressShare::FIRST);
    });
}

/// The first message of a process with another version of the protocol.
const OTHER_HELLO: [u8; 2] = [HELLO_MESSAGE[0], VERSION + 1];

#[test]
fn a_process_does_not_join_processes_with_another_version() {
    let names = Names::new(addr(3), verifiable_user().unwrap());
    let listener = names.claim(Name::Share(AddressShare::FIRST)).unwrap();
    listener.set_nonblocking(false).unwrap();
    let other = std::thread::spawn(move || {
        let stream = listener.accept().unwrap().unwrap();
        nix::sys::socket::send(stream.as_raw_fd(), &OTHER_HELLO, MsgFlags::MSG_NOSIGNAL).unwrap();
        let mut buffer = [0; 16];
        let length = nix::sys::socket::recv(stream.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
        assert_eq!(buffer[..length], HELLO_MESSAGE);
        // The process closes the connection, and has its name until the other one has decided.
        listener
    });
    let error = open(3).unwrap_err();
    drop(other.join().unwrap());
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&format!("version {}", VERSION + 1)), "{error}");
}

#[test]
fn a_process_that_can_not_ask_another_one_has_no_sockets_in_its_place() {
    let names = Names::new(addr(4), verifiable_user().unwrap());
    let config = UdpConfig::new(addr(4).ip());
    // A process of this user that accepts no connections, for example because it is stopped.
    let _stopped = super::super::socket::open_shared_receiving(addr(4), &config).unwrap();
    let _listener = names.claim(Name::Share(AddressShare::FIRST)).unwrap();
    let mut connections = Vec::new();
    while let Ok(holder) = names.connect(names.local(), Name::Share(AddressShare::FIRST)) {
        connections.push(holder);
    }
    let shared = open(4).unwrap();
    assert_eq!((shared.address_share().index(), shared.lower.len()), (1, 0));
}

#[test]
fn a_process_with_another_version_gets_no_sockets() {
    let mut first = open(2).unwrap();
    let name = UnixAddr::new_abstract(format!("adverb/{}/share/0", addr(2)).as_bytes()).unwrap();
    let request = |hello: [u8; 2], first: &mut SharedAddress| {
        let stream =
            nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
        let stream = UnixStream::from(stream.unwrap());
        nix::sys::socket::connect(stream.as_raw_fd(), &name).unwrap();
        let join = [1];
        for message in [&hello[..], &join] {
            nix::sys::socket::send(stream.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL).unwrap();
        }
        let (mut buffer, start) = ([0; 16], Instant::now());
        loop {
            first.receive(1, &mut |_| {});
            if let Ok((length, files)) = receive_files(&stream, &mut buffer) {
                return (buffer[..length].to_vec(), files.len());
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "no response");
        }
    };
    assert_eq!(request(HELLO_MESSAGE, &mut first).1, 1);
    assert_eq!(request(OTHER_HELLO, &mut first), (HELLO_MESSAGE.to_vec(), 0));
}

#[test]
fn packets_to_an_absent_process_cost_no_lookup_until_some_time_has_passed() {
    let mut first = open(8).unwrap();
    let share = AddressShare::new(1).unwrap();
    let mut bytes = [0; 60];
    bytes[4..8].copy_from_slice(&share.qpn(0x1_0000).to_be_bytes());
    let source = addr(8);
    let packet = Datagram {
        source,
        traffic_class: 0,
        hop_limit: None,
        flow_label: 0,
        received_at: None,
        bytes: &bytes,
    };
    let absent_since = Instant::now();
    assert!(!first.accept_or_pass_on(&packet));
    // A process that takes the name now isn't found at once.
    let names = Names::new(addr(8), verifiable_user().unwrap());
    let listener = names.claim(Name::Share(share)).unwrap();
    let mut count = 0;
    while first.passed_packets() == (0, 0) {
        assert!(!first.accept_or_pass_on(&packet));
        count += 1;
        assert!(absent_since.elapsed() < TEST_TIMEOUT, "the process isn't found");
    }
    // On a busy machine, this thread may wait so long for a CPU that even the first of these packets is late.
    let is_late = absent_since.elapsed() >= ABSENCE_TIME;
    let (mut accepted, mut buffer) = (Vec::new(), [0; 256]);
    while let Ok(Some(stream)) = listener.accept() {
        accepted.push(stream);
    }
    assert!(count > 1 || is_late, "the process was looked for with each packet");
    assert_eq!((accepted.len(), first.passed_packets()), (1, (1, 0)));
    assert_eq!(receive_files(&accepted[0], &mut buffer).unwrap().0, HELLO_MESSAGE.len());
    assert!(receive_files(&accepted[0], &mut buffer).unwrap().0 > bytes.len());
}
