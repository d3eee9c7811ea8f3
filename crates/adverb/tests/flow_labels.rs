//! Flow labels determine UDP source ports: of datagrams and of connections, over UDP sockets.
//!
//! `cargo xtask traffic` runs these tests while the kernel captures the packets. Each packet carries its flow label as
//! immediate data, so the expected port can be computed from a capture.

#![cfg(feature = "soft")]

#[path = "common/sockets.rs"]
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use adverb::verbs::cm::{Connector, Listener};
use adverb::verbs::{
    CompletionQueue, ConnectOptions, Device, QueuePair, SendRequest, SoftDevice, Switch, Traffic, Transport,
};
use adverb_wire::{Frame, Operation, Rc, Send, Ud};
use sockets::{address, capture_file, open};

const QKEY: u32 = 0x77;
const TIMEOUT: Duration = Duration::from_secs(20);

/// 64 flow labels, with all values of the upper six bits. Their ports are above those that the system gives to programs.
fn labels() -> impl Iterator<Item = u32> {
    (0..64).map(|number| number << 14 | 0x3000 | (number * 61))
}

/// The port of a flow label, as Linux computes it.
fn port_of(label: u32) -> u16 {
    0xc000 + ((label % 0x4000) ^ (label / 0x4000)) as u16
}

#[test]
fn datagrams_leave_from_the_ports_of_their_flow_labels() {
    let file = capture_file("labels-ud");
    let receiver = End::new(&open(SoftDevice::at_addr(address(1))), Transport::Ud, Traffic::new());
    let device = open(SoftDevice::at_addr(address(2)).capture(&file));
    let sender = End::new(&device, Transport::Ud, Traffic::new());
    [&sender, &receiver].iter().for_each(|end| end.queue_pair.move_to_rts().unwrap());
    for label in labels() {
        let traffic = Traffic::new().flow_label(label);
        let remote = receiver.queue_pair.endpoint();
        let destination = sender.queue_pair.create_ud_destination_with(&remote, QKEY, traffic).unwrap();
        assert_eq!(destination.address_handle.source_port(), Some(port_of(label)), "label {label:#x}");
        sender
            .send(&receiver, |message| SendRequest::send_with_imm(message, label).destination(&destination));
    }
    drop((sender, device));
    let seen = captured(&file, address(2), Transport::Ud);
    assert_eq!(seen, labels().map(|label| (label, port_of(label))).collect());
    assert_eq!(seen.values().collect::<BTreeSet<_>>().len(), 64, "64 labels, 64 ports");
}

#[test]
fn packets_of_connections_leave_from_the_ports_of_their_flow_labels() {
    let file = capture_file("labels-rc");
    let receiving = open(SoftDevice::at_addr(address(11)));
    let device = open(SoftDevice::at_addr(address(12)).capture(&file));
    let mut ends = Vec::new();
    for label in labels() {
        let [sender, receiver] =
            [&device, &receiving].map(|device| End::new(device, Transport::Rc, Traffic::new()));
        // The ACK timeout is about a second, for busy machines.
        let options = ConnectOptions::new().traffic(Traffic::new().flow_label(label)).ack_timeout(18);
        sender.queue_pair.connect_with(&receiver.queue_pair.endpoint(), &options).unwrap();
        receiver.queue_pair.connect(&sender.queue_pair.endpoint()).unwrap();
        assert_eq!(sender.source_port(), port_of(label), "label {label:#x}");
        sender.send(&receiver, |message| SendRequest::send_with_imm(message, label));
        ends.push((sender, receiver));
    }
    drop((ends, device));
    let seen = captured(&file, address(12), Transport::Rc);
    assert_eq!(seen, labels().map(|label| (label, port_of(label))).collect());
}

#[test]
fn a_connection_manager_uses_the_ports_of_flow_labels() {
    let (server, client) = (open(SoftDevice::at_addr(address(21))), open(SoftDevice::at_addr(address(22))));
    let options = |label| ConnectOptions::new().traffic(Traffic::new().flow_label(label));
    let listener = Listener::builder().options(options(0x2_3def)).bind((address(21), 0).into()).unwrap();
    let peer = listener.local_addr();
    let [left, right] = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let connector = Connector::new().local_addr((address(22), 0).into()).options(options(0x1_3abc));
            let connection = connector.connect(peer, |path| {
                let completions = client.completion_queue(256).create()?;
                let domain = client.create_protection_domain()?;
                path.queue_pair(&domain)?.completion_queue(&completions).create()
            });
            connection.unwrap()
        });
        let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
        let completions = server.completion_queue(256).create().unwrap();
        let domain = server.create_protection_domain().unwrap();
        let builder = request.path().queue_pair(&domain).unwrap().completion_queue(&completions);
        let accepted = request.accept(builder.create().unwrap(), b"").unwrap();
        [connecting.join().unwrap(), accepted]
    });
    let port = |queue_pair: &QueuePair| queue_pair.query().unwrap().peer.unwrap().source_port;
    assert_eq!(port(left.queue_pair()), Some(port_of(0x1_3abc)));
    assert_eq!(port(right.queue_pair()), Some(port_of(0x2_3def)));
}

#[test]
fn without_a_flow_label_datagrams_and_connections_share_the_permanent_ports() {
    let device = open(SoftDevice::at_addr(address(31)));
    let ends = [(); 64].map(|()| End::new(&device, Transport::Rc, Traffic::new()));
    let mut connection_ports = BTreeSet::new();
    for pair in ends.chunks(2) {
        pair[0].queue_pair.connect(&pair[1].queue_pair.endpoint()).unwrap();
        connection_ports.insert(pair[0].source_port());
    }
    let sender = End::new(&device, Transport::Ud, Traffic::new());
    let datagram_ports: BTreeSet<u16> = (1..=64)
        .map(|host| {
            let handle =
                sender.queue_pair.create_address_handle(Ipv4Addr::new(127, 1, 2, host).into()).unwrap();
            handle.source_port().unwrap()
        })
        .collect();
    assert_eq!(datagram_ports.len(), 16, "{datagram_ports:?}");
    assert!(
        connection_ports.len() > 4 && connection_ports.is_subset(&datagram_ports),
        "{connection_ports:?}"
    );
}

#[test]
fn a_port_stays_open_while_a_queue_pair_or_an_address_handle_uses_it() {
    let device = open(SoftDevice::at_addr(address(41)));
    let is_open = |label| UdpSocket::bind((address(41), port_of(label))).is_err();
    let traffic = |label| Traffic::new().flow_label(label);
    // Two labels of a connection and of an address handle, and more than the limit of others.
    let (connection, handle) = (0x3001, 0x3002);
    let end = End::new(&device, Transport::Rc, traffic(connection));
    end.queue_pair.connect(&End::new(&device, Transport::Rc, Traffic::new()).queue_pair.endpoint()).unwrap();
    let keeper = End::new(&device, Transport::Ud, Traffic::new());
    let kept = keeper.queue_pair.create_address_handle_with(address(1), traffic(handle)).unwrap();
    let fill = |others: u32| {
        let datagrams = End::new(&device, Transport::Ud, Traffic::new());
        let handles: Vec<_> = (0..300)
            .map(|number| {
                let label = others + number;
                (label, datagrams.queue_pair.create_address_handle_with(address(1), traffic(label)).unwrap())
            })
            .collect();
        handles.iter().filter(|(label, handle)| handle.source_port() == Some(port_of(*label))).count()
    };
    // 254 others fit (the limit is 256 for each address), and again when those are unused.
    assert_eq!(fill(0x3100), 254);
    assert!(is_open(connection) && is_open(handle) && is_open(0x3100));
    assert_eq!(fill(0x3300), 254);
    assert!(is_open(connection) && is_open(handle) && !is_open(0x3100) && is_open(0x3300));
    drop((end, kept, keeper));
    assert_eq!(fill(0x3500), 256);
    assert!(!is_open(connection) && !is_open(handle) && is_open(0x3500));
}

#[test]
fn any_number_of_flow_labels_can_be_used_one_after_the_other() {
    let device = open(SoftDevice::at_addr(address(43)));
    let end = End::new(&device, Transport::Ud, Traffic::new());
    for label in 0x3000..0x3000 + 400 {
        let traffic = Traffic::new().flow_label(label);
        let handle = end.queue_pair.create_address_handle_with(address(1), traffic).unwrap();
        assert_eq!(handle.source_port(), Some(port_of(label)), "label {label:#x}");
    }
}

#[test]
fn on_a_switch_every_flow_label_has_its_port() {
    let device = SoftDevice::on_switch(&Switch::default(), "10.0.0.1".parse().unwrap()).open().unwrap();
    let sender = End::new(&device, Transport::Ud, Traffic::new().flow_label(0xf_ffff));
    let handle = sender.queue_pair.create_address_handle("10.0.0.2".parse().unwrap()).unwrap();
    assert_eq!(handle.source_port(), Some(0xffc0), "the queue pair's label");
}

#[test]
fn a_device_that_shares_its_address_sends_from_its_own_port() {
    let [_default, other] = [(); 2].map(|()| open(SoftDevice::at_addr(address(51))));
    let own: SocketAddr = other.gids().unwrap()[0].gid.udp_addr();
    assert_ne!(own.port(), 4791);
    let sender = End::new(&other, Transport::Ud, Traffic::new());
    let traffic = Traffic::new().flow_label(0x3123);
    let handle = sender.queue_pair.create_address_handle_with(address(1), traffic).unwrap();
    assert_eq!(handle.source_port(), Some(own.port()));
}

/// A queue pair.
struct End {
    queue_pair: QueuePair,
    completions: CompletionQueue,
}

impl End {
    fn new(device: &Device, transport: Transport, traffic: Traffic) -> End {
        let domain = device.create_protection_domain().unwrap();
        let completions = device.completion_queue(16).events().create().unwrap();
        let builder = domain.queue_pair(transport).completion_queue(&completions).depth(4, 4);
        End { queue_pair: builder.qkey(QKEY).traffic(traffic).create().unwrap(), completions }
    }

    /// The port that a connection's packets leave from.
    fn source_port(&self) -> u16 {
        self.queue_pair.query().unwrap().peer.unwrap().source_port.unwrap()
    }

    /// Sends a message, and waits until it has arrived.
    fn send(&self, receiver: &End, request: impl FnOnce(adverb::memory::Buffer) -> SendRequest) {
        let [message, receive_buffer] = [(self, 20), (receiver, 40 + 4096)]
            .map(|(end, length)| end.queue_pair.protection_domain().allocate_buffer(length).unwrap());
        let receiving = receiver.queue_pair.post_recv(receive_buffer).unwrap();
        let sending = self.queue_pair.post_send(request(message)).unwrap();
        self.completions.wait(sending, TIMEOUT).unwrap().result().unwrap();
        receiver.completions.wait(receiving, TIMEOUT).unwrap().result().unwrap();
    }
}

/// Returns the immediate data and source ports of the packets from an address in a capture (draft-ietf-opsawg-pcapng,
/// 4.3).
fn captured(file: &Path, source: IpAddr, transport: Transport) -> BTreeMap<u32, u16> {
    const ENHANCED_PACKET: u32 = 6;
    let bytes = std::fs::read(file).unwrap();
    std::fs::remove_file(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut seen) = (0, BTreeMap::new());
    while at + 12 <= bytes.len() {
        if word(at) == ENHANCED_PACKET {
            let frame = Frame::parse(&bytes[at + 28..][..word(at + 20) as usize]).unwrap();
            let label = match frame.packet().header().operation {
                Operation::Ud(Ud { immediate, .. }) if transport == Transport::Ud => immediate,
                Operation::Rc(Rc::Send(Send::Only(immediate))) if transport == Transport::Rc => immediate,
                _ => None,
            };
            if frame.ip().source() == source
                && let Some(label) = label
            {
                seen.insert(label, frame.source().port());
            }
        }
        at += word(at + 4) as usize;
    }
    seen
}
