//! Links that share an address, as those of several processes do.

#![cfg(target_os = "linux")]

mod support;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb_soft::link::{
    AddressShare, Bundle, Capture, FaultConfig, FaultLink, Link, TxPacket, UdpConfig, UdpLink,
};
use adverb_wire::cm::{Dreq, Mad, Message, ServiceId, SidrReq};
use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Psn, Qpn, Ud};
// ThreadSanitizer doesn't see the locks of the standard library, which is not instrumented.
use parking_lot::Mutex;

use support::{Packet, open_loopback};

const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// A link that a thread drives, as a process would.
struct Process {
    link: Arc<Mutex<UdpLink>>,
    received: Arc<Mutex<Vec<Packet>>>,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    fn new(link: UdpLink) -> Process {
        let (link, received) = (Arc::new(Mutex::new(link)), Arc::new(Mutex::new(Vec::new())));
        let is_ending = Arc::new(AtomicBool::new(false));
        let (driven, packets, ends) = (Arc::clone(&link), Arc::clone(&received), Arc::clone(&is_ending));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let mut batch = Vec::new();
                let count = driven.lock().receive(256, &mut |packet| batch.push(packet.into()));
                packets.lock().append(&mut batch);
                if count.unwrap() == 0 {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
        Process { link, received, is_ending, thread: Some(thread) }
    }

    /// Creates the first process at an address.
    fn first() -> Process {
        loop {
            let link = open_loopback(|config| config.shared = true);
            // Another process might have the address.
            if link.address_share() == AddressShare::new(0) {
                return Process::new(link);
            }
        }
    }

    fn open(address: IpAddr) -> Process {
        let mut config = UdpConfig::new(address);
        config.shared = true;
        Process::new(UdpLink::open(&config).unwrap())
    }

    fn address(&self) -> IpAddr {
        self.link.lock().local_addr().ip()
    }

    fn share(&self) -> AddressShare {
        self.link.lock().address_share().unwrap()
    }

    /// Waits until `count` packets have been received, and removes them.
    fn take(&self, count: usize) -> Vec<Packet> {
        let start = Instant::now();
        loop {
            let mut received = self.received.lock();
            if received.len() >= count {
                return std::mem::take(&mut received);
            }
            assert!(start.elapsed() < TEST_DEADLINE, "{} of {count} packets arrived", received.len());
            drop(received);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Returns a packet to a queue pair.
fn packet(source: SocketAddr, destination: SocketAddr, qpn: u32, psn: u32, payload: &[u8]) -> Vec<u8> {
    let flow = Flow::new(source, destination).unwrap();
    let operation = Operation::Ud(Ud { qkey: 0x8001_0000, source_qp: Qpn::GSI, immediate: None });
    let header = Header::new(Qpn::truncate(qpn), Psn::wrapping(psn), operation);
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(&header, 0, &[payload], &mut head).unwrap();
    [&head[..emitted.header_len], payload, &emitted.trailer].concat()
}

/// Sends a message to queue pair 1 until a process receives it: a packet may be lost when a process ends.
fn send_until_received(message: Message, address: IpAddr, to: &Process) {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (source, destination) = (peer.local_addr().unwrap(), SocketAddr::new(address, 4791));
    let bytes = packet(source, destination, 1, 7, &Mad { transaction_id: 1, message }.emit());
    let start = Instant::now();
    loop {
        peer.send_to(&bytes, destination).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let received = std::mem::take(&mut *to.received.lock());
        // Earlier messages, which were sent more often than needed, may arrive later.
        if let Some(found) = received.iter().find(|packet| packet.bytes == bytes && packet.source == source) {
            return assert_eq!((found.destination, found.hop_limit), (destination, Some(64)));
        }
        assert!(start.elapsed() < TEST_DEADLINE, "no packet arrived");
    }
}

/// Waits until the kernel delivers each packet to the right process, so that no process passes packets on.
fn await_direct_delivery(processes: &[Process], address: IpAddr) {
    let (destination, start) = (SocketAddr::new(address, 4791), Instant::now());
    let passed_on =
        || -> u64 { processes.iter().map(|process| process.link.lock().statistics().passed_on).sum() };
    loop {
        let before = passed_on();
        // The packets are from many ports, because the kernel may choose the socket by a hash of the port.
        for psn in 0..16 {
            let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
            for process in processes {
                let qpn = process.share().qpn(0x1_2345);
                let bytes = packet(peer.local_addr().unwrap(), destination, qpn, psn, b"payload!");
                peer.send_to(&bytes, destination).unwrap();
                process.take(1);
            }
        }
        if passed_on() == before {
            return;
        }
        assert!(start.elapsed() < TEST_DEADLINE, "packets are passed on");
    }
}

fn query(service_id: ServiceId) -> Message {
    Message::SidrReq(SidrReq { request_id: 5, pkey: 0xffff, service_id, private_data: Default::default() })
}

fn dreq(remote_comm_id: u32) -> Message {
    let (local_comm_id, remote_qpn) = (6, Qpn::truncate(9));
    Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data: Default::default() })
}

#[test]
fn each_process_receives_the_packets_to_its_queue_pairs_and_only_those() {
    let first = Process::first();
    let address = first.address();
    let mut processes = vec![first, Process::open(address), Process::open(address), Process::open(address)];
    let mut sender = open_loopback(|_| ());
    for round in 0..3 {
        for (index, process) in processes.iter().enumerate() {
            assert_eq!(process.share().index(), index as u8, "round {round}");
        }
        let source = sender.source_addr(0xc000);
        let destination = SocketAddr::new(address, 4791);
        await_direct_delivery(&processes, address);
        // The sender also sends GSO batches with packets to all processes. The kernel delivers a batch as a whole.
        let packets: Vec<Vec<u8>> = (0..400)
            .map(|psn| {
                let share = processes[psn as usize % 4].share();
                packet(source, destination, share.qpn(0x1_0000 + psn), psn, b"payload!")
            })
            .collect();
        for chunk in packets.chunks(8) {
            for bytes in chunk {
                let packet =
                    TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes };
                while sender.send(&[packet]).unwrap() == 0 {}
            }
            let batch: Vec<TxPacket<'_>> = chunk
                .iter()
                .map(|bytes| TxPacket {
                    source,
                    destination,
                    traffic_class: 0,
                    hop_limit: 0,
                    flow_label: 0,
                    bytes,
                })
                .collect();
            while sender.send(&batch).unwrap() == 0 {}
            // The packets are received at once, so that no queue between processes overflows.
            for process in &processes {
                for packet in process.take(4) {
                    assert_eq!(packet.source, source);
                    assert_eq!(packet.destination, destination);
                    let qpn = u32::from_be_bytes(packet.bytes[4..8].try_into().unwrap());
                    assert_eq!(AddressShare::of_qpn(Qpn::truncate(qpn)), process.share());
                }
            }
        }
        for process in &processes {
            assert_eq!(process.received.lock().len(), 0, "no packet arrived twice");
            assert_eq!(process.link.lock().statistics().not_passed_on, 0);
        }
        // A new process takes over the share of a process that has ended: in the last round, of the first process.
        let ended = [2, 1, 0][round];
        drop(processes.remove(ended));
        processes.insert(ended, Process::open(address));
    }
}

#[test]
fn a_process_sends_no_batch_to_several_processes_at_its_address() {
    let first = Process::first();
    let address = first.address();
    let processes = [first, Process::open(address), Process::open(address)];
    let destination = SocketAddr::new(address, 4791);
    let source = processes[0].link.lock().source_addr(0xc000);
    let packets: Vec<Vec<u8>> = (0..60)
        .map(|psn| {
            let share = processes[psn as usize / 2 % 3].share();
            packet(source, destination, share.qpn(0x1_0000 + psn), psn, b"payload!")
        })
        .collect();
    let batch: Vec<TxPacket<'_>> = packets
        .iter()
        .map(|bytes| TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes })
        .collect();
    assert_eq!(processes[0].link.lock().send(&batch).unwrap(), batch.len());
    for process in &processes {
        for packet in process.take(20) {
            let qpn = u32::from_be_bytes(packet.bytes[4..8].try_into().unwrap());
            assert_eq!(AddressShare::of_qpn(Qpn::truncate(qpn)), process.share());
        }
        assert_eq!(process.link.lock().statistics().passed_on, 0);
    }
}

#[test]
fn messages_reach_the_listener_and_the_connection_whichever_process_ends() {
    let first = Process::first();
    let address = first.address();
    let processes = [Process::open(address), Process::open(address), Process::open(address)];
    let service = ServiceId::tcp_port(7471);
    processes[2].link.lock().address_sharing().unwrap().claim_service(service).unwrap();
    let conflict = first.link.lock().address_sharing().unwrap().claim_service(service).unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::AddrInUse);
    let id = processes[1].share().comm_id(0x123_4567);
    let check = |listener: &Process, connected: &Process| {
        send_until_received(query(service), address, listener);
        send_until_received(dreq(id), address, connected);
    };
    check(&processes[2], &processes[1]);
    // The first process received all messages until now.
    drop(first);
    check(&processes[2], &processes[1]);
    let [zero, one, two] = processes;
    drop(zero);
    check(&two, &one);
    // Another process can claim a service that was released.
    two.link.lock().address_sharing().unwrap().release_service(service);
    let successor = Process::open(address);
    successor.link.lock().address_sharing().unwrap().claim_service(service).unwrap();
    send_until_received(query(service), address, &successor);
    // Without a listener, and without the process of a connection, any process replies.
    drop((two, successor));
    send_until_received(query(service), address, &one);
    send_until_received(dreq(AddressShare::new(99).unwrap().comm_id(7)), address, &one);
    one.link.lock().address_sharing().unwrap().claim_service(service).unwrap();
    one.link.lock().address_sharing().unwrap().claim_service(service).unwrap();
    one.link.lock().address_sharing().unwrap().release_service(service);
    send_until_received(query(service), address, &one);
}

#[test]
fn links_without_sharing_use_the_address_exclusively() {
    let shared = Process::first();
    let error = UdpLink::open(&UdpConfig::new(shared.address())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let link = open_loopback(|_| ());
    assert_eq!(link.address_share(), None);
    let mut config = UdpConfig::new(link.local_addr().ip());
    config.shared = true;
    assert_eq!(UdpLink::open(&config).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(link);
    assert_eq!(UdpLink::open(&config).unwrap().address_share(), AddressShare::new(0));
}

#[test]
fn wrappers_keep_the_share_of_a_link_and_bundles_refuse_it() {
    let link = open_loopback(|config| config.shared = true);
    let (address, share) = (link.local_addr().ip(), link.address_share());
    let capture = Capture::new(std::io::sink());
    let mut link = FaultLink::new(capture.watch("wrapped", link), FaultConfig::new(1));
    assert_eq!(link.address_sharing().map(|sharing| sharing.address_share()), share);
    let mut bundle = Bundle::new().unwrap();
    assert_eq!(bundle.add(address, link).unwrap_err().kind(), ErrorKind::InvalidInput);
    bundle.add(address, UdpLink::open(&UdpConfig::new(address)).unwrap()).unwrap();
    assert!(bundle.address_sharing().is_none());
}

#[test]
fn many_links_join_and_leave_at_once() {
    let first = Process::first();
    let address = first.address();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..4 {
                    let process = Process::open(address);
                    let share = process.share();
                    send_until_received(dreq(share.comm_id(77)), address, &process);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(Process::open(address).share(), AddressShare::new(1).unwrap());
}

/// Sends packets to processes while others join and leave. Returns the number of packets that were passed on, and the
/// longest time, in milliseconds, that a process took to join.
fn send_while_others_join_and_leave() -> (u64, u64) {
    let first = Process::first();
    let address = first.address();
    let destination = SocketAddr::new(address, 4791);
    let is_ending = AtomicBool::new(false);
    let passed_on = AtomicU64::new(0);
    let longest_join = AtomicU64::new(0);
    let open = || {
        let start = Instant::now();
        let process = Process::open(address);
        longest_join.fetch_max(start.elapsed().as_millis() as u64, Ordering::Relaxed);
        process
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (is_ending, passed_on, open) = (&is_ending, &passed_on, &open);
            scope.spawn(move || {
                let mut round = thread;
                while !is_ending.load(Ordering::Relaxed) {
                    let process = open();
                    std::thread::sleep(Duration::from_micros(500 * (round % 4)));
                    passed_on.fetch_add(process.link.lock().statistics().passed_on, Ordering::Relaxed);
                    round += 1;
                }
            });
        }
        // The threads end even if a packet is lost.
        let lost = (0..40).find_map(|round| {
            let receiver = open();
            let qpn = receiver.share().qpn(0x1_2345);
            (0..20).find_map(|psn| {
                let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
                let bytes = packet(peer.local_addr().unwrap(), destination, qpn, psn, b"payload!");
                // The kernel loses a packet that arrives while it closes the socket of another process. A socket at
                // the wrong place in the kernel's list would lose the other packets, too.
                for _ in 0..10 {
                    peer.send_to(&bytes, destination).unwrap();
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_secs(1) {
                        let received = std::mem::take(&mut *receiver.received.lock());
                        if received.iter().any(|packet| packet.bytes == bytes) {
                            return None;
                        }
                        std::thread::sleep(Duration::from_micros(20));
                    }
                }
                Some(format!("packet {psn} of round {round} to {qpn:#x}"))
            })
        });
        is_ending.store(true, Ordering::Relaxed);
        assert_eq!(lost, None);
    });
    let passed_on = passed_on.load(Ordering::Relaxed) + first.link.lock().statistics().passed_on;
    (passed_on, longest_join.load(Ordering::Relaxed))
}

#[test]
fn the_kernel_delivers_each_packet_to_its_process_while_others_join_and_leave() {
    let start = Instant::now();
    loop {
        let (passed_on, longest_join) = send_while_others_join_and_leave();
        if passed_on == 0 {
            break;
        }
        // A process waits for a second for the response of another one, and then joins without it. Packets that reach
        // the wrong process are passed on. On a busy machine, this may occur, but not in each attempt.
        assert!(
            longest_join >= 1000 && start.elapsed() < TEST_DEADLINE,
            "{passed_on} packets were passed on; a process took at most {longest_join} ms to join"
        );
    }
}
