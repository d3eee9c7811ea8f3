//! Traces of connections between software NICs: every packet is named or belongs to a request.

#![cfg(all(feature = "soft", feature = "trace"))]

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use adverb::trace::{Direction, PacketRole, Trace, WqeState};
use adverb::verbs::cm::{Connection, ConnectionEvent, Connector, Listener, Path};
use adverb::verbs::{
    CompletionQueue, ConnectOptions, FaultConfig, QueuePair, RequestId, SendRequest, SoftDevice, Switch,
};

const TIMEOUT: Duration = Duration::from_secs(20);

/// The completion queue of a queue pair, and the receive that is posted to it.
struct Side {
    completions: CompletionQueue,
    receiving: RequestId,
}

impl Side {
    fn new(path: &Path) -> Result<(QueuePair, Side), adverb::verbs::Error> {
        let device = path.open_device()?;
        let domain = device.create_protection_domain()?;
        let completions = device.completion_queue(8).events().create()?;
        let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()?;
        let receiving = queue_pair.post_recv(domain.allocate_buffer(9000)?)?;
        Ok((queue_pair, Side { completions, receiving }))
    }

    fn send(&self, connection: &Connection, length: usize) {
        let buffer = connection.queue_pair().protection_domain().allocate_buffer(length).unwrap();
        let id = connection.queue_pair().post_send(SendRequest::send(buffer)).unwrap();
        self.completions.wait(id, TIMEOUT).unwrap().result().unwrap();
    }

    fn receive(&self) -> usize {
        self.completions.wait(self.receiving, TIMEOUT).unwrap().into_message().unwrap().len()
    }
}

/// Returns options of a connection over links that lose packets. A message is retransmitted for about two seconds, for
/// busy machines.
fn options() -> ConnectOptions {
    ConnectOptions::new().ack_timeout(16).retry_count(7)
}

/// Connects, sends a message in each direction, and disconnects.
fn exchange_messages(listener: &Listener, from: IpAddr) {
    let peer = listener.local_addr();
    let client = thread::spawn(move || {
        let mut side = None;
        let connector =
            Connector::new().timeout(TIMEOUT).options(options()).local_addr(SocketAddr::new(from, 0));
        let connected = connector.connect(peer, |path| {
            let (queue_pair, created) = Side::new(path)?;
            side = Some(created);
            Ok(queue_pair)
        });
        (connected.unwrap(), side.unwrap())
    });
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
    let (queue_pair, server_side) = Side::new(request.path()).unwrap();
    let server = request.accept(queue_pair, b"").unwrap();
    let (client, client_side) = client.join().unwrap();
    client_side.send(&client, 8000);
    assert_eq!(server_side.receive(), 8000);
    server_side.send(&server, 10);
    assert_eq!(client_side.receive(), 10);
    client.disconnect().unwrap();
    assert_eq!(server.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
    client.close(TIMEOUT).unwrap();
}

#[test]
fn packets_of_connections_are_named_and_matched() {
    let switch = Switch::default();
    let addresses = [[10, 9, 0, 1], [10, 9, 0, 2]].map(IpAddr::from);
    let devices = [0, 1].map(|index: usize| {
        let faults = FaultConfig { loss_ppm: 20_000, ..FaultConfig::new(index as u64) };
        SoftDevice::on_switch(&switch, addresses[index]).faults(faults).open().unwrap()
    });
    let recordings = devices.each_ref().map(|device| device.recording().start().unwrap());
    let listener = Listener::builder().options(options()).bind(SocketAddr::new(addresses[1], 0)).unwrap();
    for _ in 0..5 {
        exchange_messages(&listener, addresses[0]);
    }
    let trace = Trace::new(recordings.map(|active| active.stop()));
    let mut names = Vec::new();
    for packet in trace.packets() {
        match &packet.role {
            PacketRole::Cm { message } => names.push(message.expect("the header was recorded")),
            PacketRole::Request(request) | PacketRole::Response(request) => {
                assert!(request.is_some(), "{packet:?}");
            }
            _ => {}
        }
        // One recording stops before the other, and the connection manager may retransmit meanwhile.
        let is_matched = packet.direction == Direction::Out || packet.peer_packet.is_some();
        assert!(is_matched || matches!(packet.role, PacketRole::Cm { .. }), "{packet:?}");
    }
    for name in ["REQ", "REP", "RTU", "DREQ", "DREP"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let application_requests = trace.requests().iter().filter(|request| request.connection.is_some());
    let mut messages = 0;
    for request in application_requests.filter(|request| !request.packets.is_empty()) {
        assert_eq!(request.wqe_state(), WqeState::Completed, "{request:?}");
        assert!(request.peer_request.is_some(), "{request:?}");
        messages += 1;
    }
    assert_eq!(messages, 2 * 2 * 5);
    let mut text = Vec::new();
    trace.write_text(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let (requests, others) = text.split_once("# OTHER PACKETS").expect("the connection manager's packets");
    assert!(others.contains("[CM REQ]") && others.contains("[CM DREP]"), "{others}");
    assert!(!requests.contains("qp 0x000001 send"), "{requests}");
}
