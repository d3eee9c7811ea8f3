//! Datagram queue pairs that are found by address and port, by ourselves and by rdma-core's `udaddy`.

use adverb::memory::Buffer;
use adverb::verbs::cm::{
    DatagramListener, DatagramService, MAX_DATAGRAM_REPLY_DATA, MAX_DATAGRAM_REQUEST_DATA, UD_QKEY,
};
use adverb::verbs::{Datagram, UdDestination};

use super::*;

/// A datagram queue pair that is ready, with receives.
struct Post {
    queue_pair: QueuePair,
    domain: ProtectionDomain,
    completions: CompletionQueue,
    receiving: Vec<RequestId>,
    room: usize,
}

impl Post {
    fn new(path: &Path, receives: u32) -> Post {
        let device = path.device().unwrap();
        let domain = device.create_protection_domain().unwrap();
        let completions = device.completion_queue(64).events().create().unwrap();
        let builder = path.datagram_queue_pair(&domain).unwrap().completion_queue(&completions);
        let queue_pair = builder.depth(16, 16).create().unwrap();
        let room = 40 + usize::from(device.port(path.port()).unwrap().active_mtu.bytes());
        let receiving =
            (0..receives).map(|_| queue_pair.post_recv(domain.buffer(room).unwrap()).unwrap()).collect();
        queue_pair.move_to_rts().unwrap();
        Post { queue_pair, domain, completions, receiving, room }
    }

    fn buffer(&self, text: &[u8]) -> Buffer {
        let mut buffer = self.domain.buffer(text.len()).unwrap();
        buffer.copy_from_slice(text);
        buffer
    }

    fn send(&self, request: SendRequest, recipient: &UdDestination) {
        let id = self.queue_pair.post_send(request.destination(recipient)).unwrap();
        self.completions.wait(id, PATIENCE).unwrap().result().unwrap();
    }

    fn receive(&mut self) -> Datagram {
        let id = self.receiving.remove(0);
        let datagram = self.completions.wait(id, PATIENCE).unwrap().into_datagram().unwrap();
        let buffer = self.domain.buffer(self.room).unwrap();
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

/// Looks for a datagram queue pair, in a thread.
fn asking(connector: Connector, peer: SocketAddr) -> thread::JoinHandle<adverb::Result<DatagramService>> {
    thread::spawn(move || connector.timeout(PATIENCE).resolve_service(peer))
}

/// Looks for a datagram queue pair at an address, from another, and sends datagrams both ways.
pub(crate) fn exercise(connector: Connector, address: IpAddr) {
    let (listener, peer) = listen(address);
    let asking = asking(connector.private_data(b"where are you?"), peer);
    let request = listener.accept_timeout(PATIENCE).unwrap().expect("a question");
    assert!(starts_with(request.private_data(), b"where are you?"));
    assert_eq!(request.path().local_addr().ip(), address);
    let mut server = Post::new(request.path(), 4);
    request.accept(&server.queue_pair, b"here").unwrap();
    let service = asking.join().unwrap().unwrap();
    assert!(starts_with(service.private_data(), b"here"));
    assert_eq!((service.qpn(), service.qkey()), (server.queue_pair.qpn(), UD_QKEY));
    assert_eq!(service.path().peer_addr(), peer);

    let mut client = Post::new(service.path(), 4);
    let recipient = service.ud_destination(&client.queue_pair).unwrap();
    for text in [&b"ping"[..], b"once more"] {
        client.send(SendRequest::send(client.buffer(text)), &recipient);
        let came = server.receive();
        assert_eq!(&came.message[..], text);
        let sender = came.reply_destination(&server.queue_pair, UD_QKEY).unwrap();
        server.send(SendRequest::send(server.buffer(b"pong")), &sender);
        assert_eq!(&client.receive().message[..], b"pong");
    }
}

#[test]
fn datagram_queue_pairs_are_found_over_every_address_and_talk_both_ways() {
    for address in addresses() {
        exercise(Connector::new(), address);
    }
}

#[test]
fn one_queue_pair_answers_many_who_ask() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    let asking: Vec<_> = (0..8u8).map(|n| asking(Connector::new().private_data(&[n]), peer)).collect();
    let mut server = None;
    for _ in 0..8 {
        let request = listener.accept_timeout(PATIENCE).unwrap().expect("a question");
        let echo = request.private_data()[0];
        let server: &Post = server.get_or_insert_with(|| Post::new(request.path(), 1));
        request.accept(&server.queue_pair, &[echo + 100]).unwrap();
    }
    let server = server.unwrap();
    for (n, asking) in (0..8).zip(asking) {
        let service = asking.join().unwrap().unwrap();
        assert_eq!((service.qpn(), service.private_data()[0]), (server.queue_pair.qpn(), n + 100));
    }
}

#[test]
fn a_port_without_a_datagram_listener_is_said_in_words() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    drop(listener);
    let error = asking(Connector::new(), peer).join().unwrap().unwrap_err();
    assert!(matches!(error, Error::CmRejected { reason: RejectReason::InvalidServiceId, .. }), "{error}");
    assert!(error.to_string().contains("no program on the host listens on it"), "{error}");
}

#[test]
fn a_question_is_rejected_in_words_or_by_dropping_it() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    for in_words in [true, false] {
        let asking = asking(Connector::new(), peer);
        let request = listener.accept_timeout(PATIENCE).unwrap().expect("a question");
        if in_words {
            request.reject(b"not today").unwrap();
        } else {
            drop(request);
        }
        let error = asking.join().unwrap().unwrap_err();
        let Error::CmRejected { reason: RejectReason::ConsumerReject, private_data, .. } = &error else {
            panic!("{error}");
        };
        assert!(!in_words || starts_with(private_data, b"not today"), "{private_data:?}");
    }
}

#[test]
fn nobody_who_answers_is_waited_for_in_vain() {
    let Some(address) = ipv4() else { return };
    let (_listener, peer) = listen(address);
    let before = Instant::now();
    let error = Connector::new().timeout(Duration::from_millis(300)).resolve_service(peer).unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { error, .. } if error.kind() == ErrorKind::TimedOut),
        "{error}"
    );
    assert!(error.to_string().contains("resolving the service ID"), "{error}");
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
}

#[test]
fn looking_up_works_by_its_descriptor() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    let mut looking = Connector::new().timeout(PATIENCE).begin_resolve_service(peer).unwrap();
    let mut server = None;
    let service = until_readable(|| {
        if let Some(request) = listener.try_accept().unwrap() {
            let post = Post::new(request.path(), 1);
            request.accept(&post.queue_pair, b"").unwrap();
            server = Some(post);
        }
        looking.poll().unwrap()
    });
    assert_eq!(service.qpn(), server.unwrap().queue_pair.qpn());
    assert!(looking.poll().is_err(), "it was given already");
    assert!(looking.deadline() > Instant::now());
}

#[test]
fn what_does_not_fit_datagrams_is_refused() {
    let Some(address) = ipv4() else { return };
    let (listener, peer) = listen(address);
    let long =
        Connector::new().private_data(&[1; MAX_DATAGRAM_REQUEST_DATA + 1]).resolve_service(peer).unwrap_err();
    assert!(matches!(long, Error::LimitExceeded { .. }), "{long}");
    let ask = || {
        let asking = asking(Connector::new().private_data(&[7; MAX_DATAGRAM_REQUEST_DATA]), peer);
        (listener.accept_timeout(PATIENCE).unwrap().expect("a question"), asking)
    };

    let (request, asked) = ask();
    assert_eq!(request.private_data()[..MAX_DATAGRAM_REQUEST_DATA], [7; MAX_DATAGRAM_REQUEST_DATA]);
    let (connected, _desk) = Desk::new(request.path()).unwrap();
    let error = request.accept(&connected, b"").unwrap_err();
    assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
    assert!(asked.join().unwrap().is_err(), "a refusal to answer is an answer");

    let (request, asked) = ask();
    let post = Post::new(request.path(), 1);
    let error = request.accept(&post.queue_pair, &[0; MAX_DATAGRAM_REPLY_DATA + 1]).unwrap_err();
    assert!(matches!(error, Error::LimitExceeded { .. }), "{error}");
    assert!(asked.join().unwrap().is_err());

    let (request, asked) = ask();
    let builder = post.domain.queue_pair(adverb::verbs::Transport::Ud).completion_queue(&post.completions);
    let other_key = builder.depth(4, 4).port(request.path().port()).qkey(5).create().unwrap();
    let error = request.accept(&other_key, b"").unwrap_err();
    assert!(error.to_string().contains("Q_Key"), "{error}");
    assert!(asked.join().unwrap().is_err());

    let (request, asked) = ask();
    request.accept(&post.queue_pair, &[9; MAX_DATAGRAM_REPLY_DATA]).unwrap();
    let service = asked.join().unwrap().unwrap();
    assert_eq!(service.private_data()[..MAX_DATAGRAM_REPLY_DATA], [9; MAX_DATAGRAM_REPLY_DATA]);
    assert!(service.ud_destination(&connected).is_err(), "a connection's queue pair sends no datagrams");
}

/// rdma-core's program `udaddy`: the client sends messages with its queue pair's number as immediate data, and the server
/// answers with as many.
const UDADDY: &str = "udaddy";

const MESSAGES: u32 = 5;

/// The port of that program, which takes no other: one test at a time uses it.
const PORT: u16 = 7174;

#[test]
fn datagrams_go_to_programs_written_in_c_and_come_from_them() {
    let programs = Programs::find();
    for (theirs, ours) in &programs.addresses {
        ask_a_server_written_in_c(&programs, *theirs);
        answer_a_client_written_in_c(&programs, *ours);
    }
}

fn ask_a_server_written_in_c(programs: &Programs, address: IpAddr) {
    let (ip, count) = (address.to_string(), MESSAGES.to_string());
    let Some(mut server) = programs.start(UDADDY, &["-b", &ip, "-c", "1", "-C", &count, "-S", "100"]) else {
        return;
    };
    let peer = SocketAddr::new(address, PORT);
    let deadline = Instant::now() + PATIENCE;
    let service = loop {
        match Connector::new().timeout(PATIENCE).resolve_service(peer) {
            Ok(service) => break service,
            // It isn't up yet.
            Err(Error::CmRejected { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let mut client = Post::new(service.path(), MESSAGES);
    let recipient = service.ud_destination(&client.queue_pair).unwrap();
    let own = client.queue_pair.qpn().get();
    for _ in 0..MESSAGES {
        client.send(SendRequest::send_with_imm(client.buffer(&[b'x'; 100]), own), &recipient);
    }
    for _ in 0..MESSAGES {
        let came = client.receive();
        assert_eq!((came.source_qpn, came.message.len()), (service.qpn(), 100));
    }
    assert!(server.wait().unwrap().success());
}

fn answer_a_client_written_in_c(programs: &Programs, address: IpAddr) {
    let listener = DatagramListener::bind(SocketAddr::new(address, PORT)).unwrap();
    let (ip, count) = (address.to_string(), MESSAGES.to_string());
    let Some(mut client) = programs.start(UDADDY, &["-s", &ip, "-c", "1", "-C", &count, "-S", "100"]) else {
        return;
    };
    let request = listener.accept_timeout(PATIENCE).unwrap().expect("a question");
    let mut server = Post::new(request.path(), MESSAGES);
    request.accept(&server.queue_pair, b"").unwrap();
    let mut sender = None;
    for _ in 0..MESSAGES {
        let came = server.receive();
        assert_eq!(came.immediate, Some(came.source_qpn.get()));
        assert_eq!(came.message.len(), 100);
        sender = Some(came.reply_destination(&server.queue_pair, UD_QKEY).unwrap());
    }
    let sender = sender.unwrap();
    let own = server.queue_pair.qpn().get();
    for _ in 0..MESSAGES {
        server.send(SendRequest::send_with_imm(server.buffer(&[b'y'; 100]), own), &sender);
    }
    assert!(client.wait().unwrap().success());
}
