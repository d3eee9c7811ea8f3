//! Datagram queue pairs that are resolved by address and port, by Adverb and by rdma-core's `udaddy`.

use adverb::memory::Buffer;
use adverb::verbs::cm::{
    DatagramListener, DatagramService, MAX_DATAGRAM_REPLY_DATA, MAX_DATAGRAM_REQUEST_DATA, UD_QKEY,
};
use adverb::verbs::{Datagram, UdDestination};

use super::*;

/// A datagram queue pair in RTS, with posted receives.
struct UdSide {
    queue_pair: QueuePair,
    domain: ProtectionDomain,
    completions: CompletionQueue,
    receiving: Vec<RequestId>,
    buffer_size: usize,
}

impl UdSide {
    fn new(path: &Path, receives: u32) -> UdSide {
        let device = path.open_device().unwrap();
        let domain = device.create_protection_domain().unwrap();
        let completions = device.completion_queue(64).events().create().unwrap();
        let builder = path.datagram_queue_pair(&domain).unwrap().completion_queue(&completions);
        let queue_pair = builder.depth(16, 16).create().unwrap();
        let buffer_size = 40 + usize::from(device.port(path.port()).unwrap().active_mtu.bytes());
        let receiving = (0..receives)
            .map(|_| queue_pair.post_recv(domain.allocate_buffer(buffer_size).unwrap()).unwrap())
            .collect();
        queue_pair.move_to_rts().unwrap();
        UdSide { queue_pair, domain, completions, receiving, buffer_size }
    }

    fn buffer(&self, text: &[u8]) -> Buffer {
        let mut buffer = self.domain.allocate_buffer(text.len()).unwrap();
        buffer.copy_from_slice(text);
        buffer
    }

    fn send(&self, request: SendRequest, destination: &UdDestination) {
        let id = self.queue_pair.post_send(request.destination(destination)).unwrap();
        self.completions.wait(id, TIMEOUT).unwrap().result().unwrap();
    }

    fn receive(&mut self) -> Datagram {
        let id = self.receiving.remove(0);
        let datagram = self.completions.wait(id, TIMEOUT).unwrap().into_datagram().unwrap();
        let buffer = self.domain.allocate_buffer(self.buffer_size).unwrap();
        self.receiving.push(self.queue_pair.post_recv(buffer).unwrap());
        datagram
    }
}

fn listen(address: IpAddr) -> (DatagramListener, SocketAddr) {
    let listener = DatagramListener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    assert_ne!(peer.port(), 0);
    (listener, peer)
}

/// Resolves a datagram service, on a thread.
fn spawn_resolve(
    connector: Connector,
    peer: SocketAddr,
) -> thread::JoinHandle<adverb::verbs::Result<DatagramService>> {
    thread::spawn(move || connector.timeout(TIMEOUT).resolve_service(peer))
}

/// Resolves a datagram service at an address, and sends datagrams in both directions.
pub(crate) fn exercise(connector: Connector, address: IpAddr) {
    let (listener, peer) = listen(address);
    let resolving = spawn_resolve(connector.private_data(b"client"), peer);
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client sent a request");
    assert!(starts_with(request.private_data(), b"client"));
    assert_eq!(request.path().local_addr().ip(), address);
    let mut server = UdSide::new(request.path(), 4);
    request.accept(&server.queue_pair, b"here").unwrap();
    let service = resolving.join().unwrap().unwrap();
    assert!(starts_with(service.private_data(), b"here"));
    assert_eq!((service.qpn(), service.qkey()), (server.queue_pair.qpn(), UD_QKEY));
    assert_eq!(service.path().peer_addr(), peer);

    let mut client = UdSide::new(service.path(), 4);
    let destination = service.create_ud_destination(&client.queue_pair).unwrap();
    for text in [&b"ping"[..], b"second"] {
        client.send(SendRequest::send(client.buffer(text)), &destination);
        let datagram = server.receive();
        assert_eq!(&datagram.message[..], text);
        let sender = datagram.create_reply_destination(&server.queue_pair, UD_QKEY).unwrap();
        server.send(SendRequest::send(server.buffer(b"pong")), &sender);
        assert_eq!(&client.receive().message[..], b"pong");
    }
}

#[test]
fn datagram_services_are_resolved_at_every_address() {
    for address in addresses() {
        exercise(Connector::new(), address);
    }
}

#[test]
fn one_queue_pair_serves_many_requests() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    let resolving: Vec<_> =
        (0..8u8).map(|n| spawn_resolve(Connector::new().private_data(&[n]), peer)).collect();
    let mut server = None;
    for _ in 0..8 {
        let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client sent a request");
        let echo = request.private_data()[0];
        let server: &UdSide = server.get_or_insert_with(|| UdSide::new(request.path(), 1));
        request.accept(&server.queue_pair, &[echo + 100]).unwrap();
    }
    let server = server.unwrap();
    for (n, resolving) in (0..8).zip(resolving) {
        let service = resolving.join().unwrap().unwrap();
        assert_eq!((service.qpn(), service.private_data()[0]), (server.queue_pair.qpn(), n + 100));
    }
}

#[test]
fn resolving_a_service_without_a_listener_is_rejected() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    drop(listener);
    let error = spawn_resolve(Connector::new(), peer).join().unwrap().unwrap_err();
    assert!(matches!(error, Error::CmRejected { reason: RejectReason::InvalidServiceId, .. }), "{error}");
    assert!(error.hint().unwrap().contains("no program on the host listens on it"), "{error}");
}

#[test]
fn a_datagram_request_is_rejected_explicitly_or_by_dropping_it() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    for explicit in [true, false] {
        let resolving = spawn_resolve(Connector::new(), peer);
        let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client sent a request");
        if explicit {
            request.reject(b"not today").unwrap();
        } else {
            drop(request);
        }
        let error = resolving.join().unwrap().unwrap_err();
        let Error::CmRejected { reason: RejectReason::ConsumerReject, private_data, .. } = &error else {
            panic!("{error}");
        };
        assert!(!explicit || starts_with(private_data, b"not today"), "{private_data:?}");
    }
}

#[test]
fn resolving_a_service_times_out_if_the_listener_doesnt_accept() {
    let Some(address) = ipv4() else { return };
    let (_listener, peer) = listen(address);
    let timeout = Duration::from_millis(300);
    let connector = Connector::new().timeout(timeout);
    let (error, _) = fail_at_deadline(timeout, || connector.resolve_service(peer).unwrap_err());
    assert!(
        matches!(&error, Error::Unreachable { source, .. } if source.kind() == ErrorKind::TimedOut),
        "{error}"
    );
    assert!(error.to_string().contains("resolving the service ID"), "{error}");
}

#[test]
fn a_service_is_resolved_without_blocking() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    let mut pending = Connector::new().timeout(TIMEOUT).begin_resolve_service(peer).unwrap();
    let mut server = None;
    let service = poll_until_ready(|| {
        if let Some(request) = listener.try_accept().unwrap() {
            let side = UdSide::new(request.path(), 1);
            request.accept(&side.queue_pair, b"").unwrap();
            server = Some(side);
        }
        pending.poll().unwrap()
    });
    assert_eq!(service.qpn(), server.unwrap().queue_pair.qpn());
    assert!(pending.poll().is_err(), "the service was already returned");
    assert!(pending.deadline() > Instant::now());
}

#[test]
fn invalid_arguments_of_datagram_services_are_rejected() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    let long =
        Connector::new().private_data(&[1; MAX_DATAGRAM_REQUEST_DATA + 1]).resolve_service(peer).unwrap_err();
    assert!(matches!(long, Error::LimitExceeded { .. }), "{long}");
    let request_service = || {
        let resolving = spawn_resolve(Connector::new().private_data(&[7; MAX_DATAGRAM_REQUEST_DATA]), peer);
        (listener.accept_timeout(TIMEOUT).unwrap().expect("the client sent a request"), resolving)
    };

    let (request, pending) = request_service();
    assert_eq!(request.private_data()[..MAX_DATAGRAM_REQUEST_DATA], [7; MAX_DATAGRAM_REQUEST_DATA]);
    let (connected, _side) = Side::new(request.path()).unwrap();
    let error = request.accept(&connected, b"").unwrap_err();
    assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
    assert!(pending.join().unwrap().is_err(), "a request that cannot be accepted is rejected");

    let (request, pending) = request_service();
    let side = UdSide::new(request.path(), 1);
    let error = request.accept(&side.queue_pair, &[0; MAX_DATAGRAM_REPLY_DATA + 1]).unwrap_err();
    assert!(matches!(error, Error::LimitExceeded { .. }), "{error}");
    assert!(pending.join().unwrap().is_err());

    let (request, pending) = request_service();
    let builder = side.domain.queue_pair(adverb::verbs::Transport::Ud).completion_queue(&side.completions);
    let other_key = builder.depth(4, 4).port(request.path().port()).qkey(5).create().unwrap();
    let error = request.accept(&other_key, b"").unwrap_err();
    assert!(error.to_string().contains("Q_Key"), "{error}");
    assert!(pending.join().unwrap().is_err());

    let (request, pending) = request_service();
    request.accept(&side.queue_pair, &[9; MAX_DATAGRAM_REPLY_DATA]).unwrap();
    let service = pending.join().unwrap().unwrap();
    assert_eq!(service.private_data()[..MAX_DATAGRAM_REPLY_DATA], [9; MAX_DATAGRAM_REPLY_DATA]);
    assert!(service.create_ud_destination(&connected).is_err(), "an RC queue pair sends no datagrams");
}

/// rdma-core's program `udaddy`. The client sends messages with its queue pair number as immediate data, and the server
/// sends the same number of messages back.
const UDADDY: &str = "udaddy";

const MESSAGES: u32 = 5;

/// The port of that program, which can't be changed. Only one test uses it.
const PORT: u16 = 7174;

#[test]
fn datagrams_are_exchanged_with_udaddy() {
    let programs = Programs::find();
    for (theirs, ours) in &programs.addresses {
        exchange_with_a_udaddy_server(&programs, *theirs);
        exchange_with_a_udaddy_client(&programs, *ours);
    }
}

fn exchange_with_a_udaddy_server(programs: &Programs, address: IpAddr) {
    let (ip, count) = (address.to_string(), MESSAGES.to_string());
    let Some(mut server) = programs.start(UDADDY, &["-b", &ip, "-c", "1", "-C", &count, "-S", "100"]) else {
        return;
    };
    let peer = SocketAddr::new(address, PORT);
    let deadline = Instant::now() + TIMEOUT;
    let service = loop {
        match Connector::new().timeout(TIMEOUT).resolve_service(peer) {
            Ok(service) => break service,
            // The program has not started to listen yet.
            Err(Error::CmRejected { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let mut client = UdSide::new(service.path(), MESSAGES);
    let destination = service.create_ud_destination(&client.queue_pair).unwrap();
    let own_qpn = client.queue_pair.qpn().get();
    for _ in 0..MESSAGES {
        client.send(SendRequest::send_with_imm(client.buffer(&[b'x'; 100]), own_qpn), &destination);
    }
    for _ in 0..MESSAGES {
        let datagram = client.receive();
        assert_eq!((datagram.source_qpn, datagram.message.len()), (service.qpn(), 100));
    }
    assert!(server.wait().unwrap().success());
}

fn exchange_with_a_udaddy_client(programs: &Programs, address: IpAddr) {
    let listener = DatagramListener::bind(SocketAddr::new(address, PORT)).unwrap();
    let (ip, count) = (address.to_string(), MESSAGES.to_string());
    let Some(mut client) = programs.start(UDADDY, &["-s", &ip, "-c", "1", "-C", &count, "-S", "100"]) else {
        return;
    };
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client sent a request");
    let mut server = UdSide::new(request.path(), MESSAGES);
    request.accept(&server.queue_pair, b"").unwrap();
    let mut sender = None;
    for _ in 0..MESSAGES {
        let datagram = server.receive();
        assert_eq!(datagram.immediate, Some(datagram.source_qpn.get()));
        assert_eq!(datagram.message.len(), 100);
        sender = Some(datagram.create_reply_destination(&server.queue_pair, UD_QKEY).unwrap());
    }
    let sender = sender.unwrap();
    let own_qpn = server.queue_pair.qpn().get();
    for _ in 0..MESSAGES {
        server.send(SendRequest::send_with_imm(server.buffer(&[b'y'; 100]), own_qpn), &sender);
    }
    assert!(client.wait().unwrap().success());
}
