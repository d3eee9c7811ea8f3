//! Peers that fail the handshake: a listener rejects and logs them, and sends them no data. Their messages are encoded
//! by hand, as docs/protocol.md describes them.

#![cfg(feature = "soft")]

#[path = "common/attacker.rs"]
mod attacker;
mod common;
#[path = "common/connections.rs"]
mod connections;
#[path = "common/greeting.rs"]
mod greeting;
#[path = "common/random.rs"]
mod random;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::blocking::{Connector, Listener};
use adverb::net::{
    AcceptError, Bootstrap, ConnectError, ConnectionError, Key, KeyMismatch, Options, RecvError,
};
use adverb::verbs::{Device, Gid, RemoteAddress, SendRequest, SoftDevice, Status, Switch, cm};
use attacker::{Attacker, HostilePeer};
use common::{End, LogSubscriber};
use connections::device;
use greeting::greeting;
use random::Random;
use tracing::{Level, Subscriber};

/// The time for which an attacker waits for a message that must not arrive.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);

/// The maximum time until the listener has logged its peers.
const LOG_TIMEOUT: Duration = Duration::from_secs(60);

fn options(device: &Device) -> Options {
    let options = Options::new().device(device).connect_timeout(Duration::from_secs(2));
    // TCP uses loopback, and the device may have another address.
    options.timeout(Duration::from_secs(30)).allow_foreign_gid(true)
}

fn key() -> Key {
    Key::new([7; 32]).unwrap()
}

/// Runs `attack` while the listener accepts, and then stops the listener. Returns the log lines of the rejected peers.
fn attack_listener(listener: &Listener, attack: impl FnOnce(&Log)) -> Vec<String> {
    struct Stop<'a>(&'a Listener);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.stop();
        }
    }
    let log = Log::default();
    scope(|scope| {
        // Stops the listener after a failure too, so that no thread waits forever.
        let stop = Stop(listener);
        let accepting = scope.spawn(|| {
            tracing::subscriber::with_default(log.subscriber(), || {
                let error = listener.accept().unwrap_err();
                assert!(matches!(error, AcceptError::Stopped { .. }), "{error:?}");
            });
        });
        attack(&log);
        drop(stop);
        accepting.join().unwrap();
    });
    listener.start().unwrap();
    std::mem::take(&mut log.0.lock().unwrap())
}

/// Checks that the listener still accepts a peer with these options.
fn assert_accepts(listener: &Listener, options: &Options) {
    scope(|scope| {
        let client = scope.spawn(|| Connector::new().options(options).connect(listener.local_addr()));
        let server = listener.accept().unwrap();
        let client = client.join().unwrap().unwrap();
        client.send(b"hello").unwrap();
        assert_eq!(&server.recv().unwrap().unwrap()[..], b"hello");
    });
}

#[test]
fn a_peer_without_a_proof_gets_no_data_and_no_access() {
    let device = device();
    let options = options(&device).key(&key());
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();
    let greet_with_nonce = |endpoint| greeting(Some(endpoint), Some([9; 32]), None);
    let logged = attack_listener(&listener, |log| {
        let address = listener.local_addr();
        let attacker = Attacker::new(&device, address, greet_with_nonce);
        // The greeting has an endpoint, a nonce and a proof, and nothing else.
        assert_eq!((attacker.server_greeting[11], attacker.server_greeting.len()), (7, 16 + 28 + 32 + 32));
        // The listener's queue pair has no remote access, so the key isn't even checked.
        let remote_addr = RemoteAddress { addr: 0x1000, rkey: 0x1234 };
        let write = attacker.end.run(SendRequest::write(attacker.end.buffer(1, 8), remote_addr));
        assert_eq!(write.outcome().unwrap_err().status, Status::RemoteInvalidRequest);
        let attacker = Attacker::new(&device, address, greet_with_nonce);
        let read = attacker.end.run(SendRequest::read(attacker.end.buffer(1, 8), remote_addr));
        assert_eq!(read.outcome().unwrap_err().status, Status::RemoteInvalidRequest);
        // The listener receives one message, and doesn't reply if it isn't a proof.
        for message in [&[0; 64][..], &[0; 32], b"adverb\r\n\x02\x00", &[1]] {
            let attacker = Attacker::new(&device, address, greet_with_nonce);
            attacker.send(message);
            assert_eq!(attacker.receive_within(SILENCE_TIMEOUT), None);
            assert_ne!(attacker.send(message), None, "the listener posted one receive");
        }
        // The attackers with rejected operations are logged too.
        log.wait(6);
    });
    let proofs = logged.iter().filter(|line| line.contains("no valid proof of the key")).count();
    assert_eq!(proofs, 4, "{logged:#?}");
    assert_accepts(&listener, &options);
}

#[test]
fn replayed_handshake_messages_are_rejected() {
    let switch = Switch::default();
    let file = std::env::temp_dir().join(format!("adverb-overheard-{}.pcapng", std::process::id()));
    let open = |last: u8| SoftDevice::on_switch(&switch, IpAddr::from([10, 40, 0, last]));
    let (victim, server) = (open(1).capture(&file).open().unwrap(), open(2).open().unwrap());
    let options = options(&server).key(&key());
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();

    // A relay between a connector and the listener records their greetings.
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let (client_greeting, server_greeting) = scope(|scope| {
        let client = scope.spawn(|| {
            let options = options.clone().device(&victim);
            Connector::new().options(&options).connect(relay.local_addr().unwrap()).unwrap()
        });
        let relay = scope.spawn(|| {
            let (mut from, mut to) =
                (relay.accept().unwrap().0, TcpStream::connect(listener.local_addr()).unwrap());
            let (mut client_greeting, mut server_greeting) =
                (vec![0; 16 + 28 + 32], vec![0; 16 + 28 + 32 + 32]);
            from.read_exact(&mut client_greeting).unwrap();
            to.write_all(&client_greeting).unwrap();
            to.read_exact(&mut server_greeting).unwrap();
            from.write_all(&server_greeting).unwrap();
            // The relay stays connected until the handshake is done.
            to.read_to_end(&mut Vec::new()).unwrap();
            (client_greeting, server_greeting)
        });
        let server = listener.accept().unwrap();
        let client = client.join().unwrap();
        client.send(b"hello").unwrap();
        assert_eq!(&server.recv().unwrap().unwrap()[..], b"hello");
        relay.join().unwrap()
    });
    drop(victim);
    let packets = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let at = packets.windows(8).position(|bytes| bytes == b"adverb\r\n").expect("the connector sent a hello");
    let sealed = packets[at - 32..at + 32].to_vec();

    let attacker_device = open(3).open().unwrap();
    let logged = attack_listener(&listener, |log| {
        let nonce = client_greeting[44..].try_into().unwrap();
        // An attacker with the same nonce and the same proof.
        let attacker = Attacker::new(&attacker_device, listener.local_addr(), |endpoint| {
            greeting(Some(endpoint), Some(nonce), None)
        });
        assert_ne!(
            attacker.server_greeting[44..],
            server_greeting[44..],
            "the listener's nonce and proof change"
        );
        attacker.send(&sealed);
        assert_eq!(attacker.receive_within(SILENCE_TIMEOUT), None);
        // A replay of the same greeting, whose queue pair is destroyed. Then the attacker disconnects.
        let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
        stream.write_all(&client_greeting).unwrap();
        stream.read_exact(&mut [0; 16 + 28 + 32 + 32]).unwrap();
        drop(stream);
        log.wait(2);
    });
    assert!(logged[0].contains("no valid proof of the key"), "{logged:#?}");
    assert!(
        logged[1].contains("ended the handshake") && logged[1].contains("same `Options::key`"),
        "{logged:#?}"
    );
    assert_accepts(&listener, &options);

    // A replay of the listener's greeting to another client, by an impostor.
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = scope(|scope| {
        let client = scope.spawn(|| {
            let connector = Connector::new().options(&options.clone().device(&attacker_device));
            connector.connect(impostor.local_addr().unwrap()).unwrap_err()
        });
        let mut stream = impostor.accept().unwrap().0;
        stream.read_exact(&mut [0; 16 + 28 + 32]).unwrap();
        stream.write_all(&server_greeting).unwrap();
        // The client sends nothing else.
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        client.join().unwrap()
    });
    let ConnectError::Authentication { mismatch: KeyMismatch::KeysDiffer, .. } = error else {
        panic!("{error:?}")
    };
}

#[test]
fn a_connector_cannot_direct_a_listener_at_a_third_party() {
    let device = device();
    let foreign = Gid::from(IpAddr::from([198, 51, 100, 9]));
    let greet = |listener: &Listener| {
        let end = End::new(&device, 8, false);
        let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
        stream.set_read_timeout(Some(common::TIMEOUT)).unwrap();
        let mut endpoint = end.queue_pair.endpoint();
        endpoint.gid = foreign;
        stream.write_all(&greeting(Some(endpoint), None, None)).unwrap();
        let mut server_greeting = [0; 44];
        stream.read_exact(&mut server_greeting).unwrap();
        server_greeting
    };
    let strict = options(&device).allow_foreign_gid(false);
    let addr = SocketAddr::new(device.gid_for(1, None).unwrap().gid.udp_addr().ip(), 0);
    let listener = Listener::builder().options(&strict).bind(addr).unwrap();
    let logged = attack_listener(&listener, |log| {
        let server_greeting = greet(&listener);
        assert_eq!(server_greeting[10], 2, "{}", String::from_utf8_lossy(&server_greeting));
        log.wait(1);
    });
    assert!(logged[0].contains("GID ::ffff:198.51.100.9 is not an address of the TCP peer"), "{logged:#?}");
    assert_accepts(&listener, &strict);

    // The listener sends no packet before the connector's hello, so the foreign address receives nothing.
    let listener = Listener::builder().options(&options(&device)).bind(addr).unwrap();
    attack_listener(&listener, |log| {
        let server_greeting = greet(&listener);
        // A kernel device looks up a route when it connects the queue pair, and fails if there is none.
        let (is_accepted, text) = (server_greeting[10] == 1, String::from_utf8_lossy(&server_greeting[16..]));
        assert!(is_accepted || !device.is_software() && !text.starts_with("GID "), "{text}");
        log.wait(1);
    });
}

#[test]
fn a_listener_cannot_direct_a_connector_at_a_third_party() {
    let device = device();
    let foreign = Gid::from(IpAddr::from([198, 51, 100, 9]));
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = scope(|scope| {
        let client = scope.spawn(|| {
            let connector = Connector::new().options(&options(&device).allow_foreign_gid(false));
            connector.connect(impostor.local_addr().unwrap()).unwrap_err()
        });
        let mut stream = impostor.accept().unwrap().0;
        let mut client_greeting = [0; 44];
        stream.read_exact(&mut client_greeting).unwrap();
        client_greeting[16..32].copy_from_slice(&foreign.bytes());
        stream.write_all(&client_greeting).unwrap();
        client.join().unwrap()
    });
    assert!(matches!(error, ConnectError::ForeignGid { gid, .. } if gid == foreign), "{error:?}");
}

impl Random {
    /// Truncates, changes or replaces a greeting.
    fn mutate(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        match self.below(4) {
            0 => bytes.truncate(self.below(bytes.len())),
            1 => {
                let at = self.below(bytes.len());
                bytes[at] ^= 1 << self.below(8);
            }
            2 => {
                let at = self.below(16);
                bytes[at..].iter_mut().for_each(|byte| *byte = self.below(256) as u8);
            }
            _ => bytes = (0..self.below(56)).map(|_| self.below(256) as u8).collect(),
        }
        bytes
    }
}

#[test]
fn malformed_greetings_dont_stop_a_listener() {
    const COUNT: usize = 300;
    let device = device();
    for key in [None, Some(key())] {
        let mut options = options(&device).connect_timeout(Duration::from_secs(3));
        if let Some(key) = &key {
            options = options.key(key);
        }
        let listener = Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();
        let mut random = Random(1);
        let logged = attack_listener(&listener, |log| {
            let end = End::new(&device, 8, false);
            for _ in 0..COUNT {
                let nonce = key.as_ref().map(|_| [3; 32]);
                let bytes = random.mutate(greeting(Some(end.queue_pair.endpoint()), nonce, None));
                let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
                // The listener may reject the greeting before it is sent completely.
                let _ = stream.write_all(&bytes);
                if random.below(2) == 0 {
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    let _ = stream.read(&mut [0; 200]);
                }
            }
            // Some are rejected only at the timeout.
            log.wait(COUNT);
        });
        assert_eq!(Log::count(&logged), COUNT, "each rejection is logged or counted");
        assert_accepts(&listener, &options.connect_timeout(Duration::from_secs(5)));
    }
}

#[test]
fn malformed_private_data_doesnt_stop_a_listener() {
    let device = device();
    let address = SocketAddr::new(device.gid_for(1, None).unwrap().gid.ip(), 0);
    let options = options(&device).bootstrap(Bootstrap::ConnectionManager).key(&key());
    let start = Instant::now();
    let listener = Listener::builder().options(&options).bind(address).unwrap();
    let mut random = Random(2);
    let logged = attack_listener(&listener, |log| {
        for number in 0..50 {
            let mut data = greeting(None, Some([3; 32]), None);
            match number {
                0 => data[8] = 7,
                _ => data = random.mutate(data),
            }
            let connector = cm::Connector::new().timeout(Duration::from_secs(5)).private_data(&data);
            let result = connector.connect(listener.local_addr(), |path| {
                let (domain, completions) =
                    (device.create_protection_domain()?, device.completion_queue(8).create()?);
                path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()
            });
            match result {
                // The peer must prove that it has the key, but disconnects.
                Ok(connection) => drop(connection),
                Err(adverb::verbs::Error::CmRejected { private_data, .. }) => {
                    assert!(private_data.starts_with(b"adverb\r\n\x02\x00\x02"), "{private_data:?}");
                    let reason = String::from_utf8_lossy(&private_data[16..]);
                    assert!(number > 0 || reason.contains("protocol version 7 was received"), "{reason}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        log.wait(50);
    });
    assert_eq!(Log::count(&logged), 50, "{logged:#?}");
    // At most eight lines per second are logged, with a count of the others.
    let max_lines = 9 * (start.elapsed().as_secs() as usize + 1);
    assert!(logged.len() <= max_lines, "at most {max_lines} lines: {logged:#?}");
    assert_accepts(&listener, &options);
}

/// Returns an expose frame, without the bytes of the name.
fn expose_frame(rights: u8, name_len: u8) -> [u8; 48] {
    let mut frame = [0; 48];
    (frame[0], frame[4], frame[16], frame[24], frame[36]) = (5, name_len, 1, 1, rights);
    frame
}

#[test]
fn a_rendezvous_above_the_size_limit_fails_the_connection() {
    let device = device();
    let (server, mut peer) = HostilePeer::new(&device, &options(&device).max_message_size(100_000));
    assert_eq!(peer.hello[28..32], 100_000u32.to_le_bytes());
    let before = server.pool().stats().used_bytes;
    let mut rendezvous = [0; 32];
    rendezvous[0] = 2;
    rendezvous[4..8].copy_from_slice(&100_001u32.to_le_bytes());
    assert_eq!(peer.write(&rendezvous), None);
    let error = server.closed();
    let ConnectionError::ProtocolViolation { reason, .. } = error else { panic!("{error:?}") };
    assert!(reason.contains("longer than the maximum"), "{reason}");
    assert!(server.pool().stats().used_bytes <= before + 4096, "{:?}", server.pool());
    // The connection object still exists, but the peer can't access its memory.
    assert_ne!(peer.write(&rendezvous), None);
}

#[test]
fn exposing_too_many_regions_fails_the_connection() {
    let device = device();
    let by_name = [expose_frame(1, 1).as_slice(), &[b'n'; 16][..1], &[0; 15]].concat();
    let cases: [(&[u8], &[u8], &str); 3] = [
        // Regions without a name are exposed repeatedly, also after a region with a name.
        (&[], &expose_frame(9, 0), "it exposed too many regions"),
        (&expose_frame(1, 0), &expose_frame(9, 0), "it exposed too many regions"),
        (
            &by_name,
            &[expose_frame(9, 1).as_slice(), &[b'n'; 16]].concat(),
            "it sent a malformed expose frame",
        ),
    ];
    for (first, repeated, reason) in cases {
        let (server, mut peer) = HostilePeer::new(&device, &options(&device).recv_ring_size(16 << 20));
        if !first.is_empty() {
            assert_eq!(peer.write(first), None);
        }
        let many = repeated.repeat(1000);
        let error = (0..6).find_map(|_| {
            peer.write(&many);
            match server.recv_timeout(Duration::from_millis(200)) {
                Err(RecvError::TimedOut { .. }) => None,
                other => Some(other.unwrap_err().to_string()),
            }
        });
        assert!(error.as_ref().is_some_and(|error| error.contains(reason)), "{error:?}");
    }
}

/// The logged lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Returns a subscriber that adds warnings and errors to the lines.
    fn subscriber(&self) -> impl Subscriber + Send + Sync + use<> {
        let lines = self.0.clone();
        LogSubscriber::new(Level::WARN, move |line| lines.lock().unwrap().push(line))
    }

    /// Returns the number of peers in the lines: one each, or the number of suppressed lines.
    fn count(lines: &[String]) -> usize {
        let count_of_line = |line: &String| match line.split_once("suppressed: ") {
            Some((_, count)) => count.split_whitespace().next().unwrap().parse().unwrap(),
            None => 1,
        };
        lines.iter().map(count_of_line).sum()
    }

    /// Waits until the log has lines of `peers` peers.
    fn wait(&self, peers: usize) {
        let start = Instant::now();
        while Log::count(&self.0.lock().unwrap()) < peers {
            assert!(start.elapsed() < LOG_TIMEOUT, "{:#?}", self.0.lock().unwrap());
            sleep(Duration::from_millis(1));
        }
    }
}
