//! Whoever comes to a listener and isn't who it should be: refused, logged, and told nothing. What strangers say is made by
//! hand, as docs/protocol.md has it.

#![cfg(feature = "soft")]

mod common;
#[path = "common/greeting.rs"]
mod greeting;
#[path = "common/random.rs"]
mod random;

use std::fmt::{Debug, Write as _};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::Error;
use adverb::memory::MemoryRegion;
use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::net::{Bootstrap, Key, Options};
use adverb::verbs::{
    Access, Device, Endpoint, Gid, Psn, Qpn, RecvRequest, RemoteAddress, SendRequest, SoftDevice, Status,
    Switch, cm,
};
use common::End;
use greeting::greeting;
use random::Random;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The software NIC, unless another device is named.
fn device() -> Device {
    Device::open(&std::env::var("ADVERB_DEVICE").unwrap_or("soft".to_owned())).unwrap()
}

/// For how long a stranger listens for what mustn't come.
const A_WHILE: Duration = Duration::from_millis(300);

fn options(device: &Device) -> Options {
    let options = Options::new().device(device).connect_timeout(Duration::from_secs(2));
    // TCP goes over loopback, wherever the device is.
    options.timeout(Duration::from_secs(30)).allow_foreign_gid(true)
}

fn key() -> Key {
    Key::new([7; 32]).unwrap()
}

/// A queue pair that is anybody's, and a listener's answer to it.
struct Stranger {
    end: End,
    /// Closed, the listener would know that it has given up.
    _stream: TcpStream,
    answer: Vec<u8>,
}

const RECEIVE: u64 = 99;

impl Stranger {
    /// Greets a listener in its own way, and connects to the queue pair that it is told.
    fn new(device: &Device, address: SocketAddr, greet: impl FnOnce(Endpoint) -> Vec<u8>) -> Stranger {
        let end = End::new(device, 8, false);
        for _ in 0..4 {
            end.queue_pair.post_recv(RecvRequest::new(end.buffer(0, 256)).tag(RECEIVE)).unwrap();
        }
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        stream.write_all(&greet(end.queue_pair.endpoint())).unwrap();
        let mut answer = vec![0; 16];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..11], *b"adverb\r\n\x01\x00\x01", "{}", String::from_utf8_lossy(&answer));
        let mut body = vec![0; usize::from(answer[12])];
        stream.read_exact(&mut body).unwrap();
        answer.extend(body);
        let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
        let gid = Gid::new(answer[16..32].try_into().unwrap());
        let peer = Endpoint::new(gid, Qpn::new(word(36)).unwrap(), Psn::new(word(40)).unwrap());
        end.queue_pair.connect(&peer).unwrap();
        Stranger { end, _stream: stream, answer }
    }

    fn send(&self, bytes: &[u8]) -> Option<Status> {
        let mut buffer = self.end.domain.buffer(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        self.end.run(SendRequest::send(buffer)).outcome().err().map(|failure| failure.status)
    }

    /// What comes to it within this time.
    fn heard(&self, time: Duration) -> Option<Vec<u8>> {
        let (start, mut done) = (Instant::now(), Vec::new());
        while start.elapsed() < time {
            self.end.completions.poll(&mut done).unwrap();
            for completion in done.drain(..) {
                if completion.tag() == RECEIVE && completion.is_ok() {
                    return Some(completion.into_message().unwrap().to_vec());
                }
            }
            sleep(Duration::from_millis(10));
        }
        None
    }
}

/// Accepts at a listener while something is done to it, and then stops it. Returns what was logged of those who weren't
/// connected.
fn besiege(listener: &Listener, siege: impl FnOnce(&Log)) -> Vec<String> {
    struct Stop<'a>(&'a Listener);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.stop();
        }
    }
    let log = Log::default();
    scope(|scope| {
        // Also if the siege finds a fault, so that nobody waits for ever.
        let stop = Stop(listener);
        let accepting = scope.spawn(|| {
            tracing::subscriber::with_default(log.clone(), || {
                let error = listener.accept().unwrap_err();
                assert!(error.to_string().contains("stopped"), "{error}");
            });
        });
        siege(&log);
        drop(stop);
        accepting.join().unwrap();
    });
    listener.start().unwrap();
    std::mem::take(&mut log.0.lock().unwrap())
}

/// Whether somebody who has what it takes is connected all the same.
fn admits(listener: &Listener, options: &Options) {
    scope(|scope| {
        let client = scope.spawn(|| Connector::new().options(options).connect(listener.local_addr()));
        let server = listener.accept().unwrap();
        let client = client.join().unwrap().unwrap();
        client.send(b"hello").unwrap();
        assert_eq!(&server.recv().unwrap().unwrap()[..], b"hello");
    });
}

#[test]
fn who_has_no_proof_is_told_nothing_and_may_do_nothing() {
    let device = device();
    let options = options(&device).key(&key());
    let listener = Listener::bind_with("127.0.0.1:0", &options).unwrap();
    let asks = |endpoint| greeting(Some(endpoint), Some([9; 32]), None);
    let logged = besiege(&listener, |log| {
        let address = listener.local_addr();
        let stranger = Stranger::new(&device, address, asks);
        // An endpoint, a nonce and a proof, and not a byte more.
        assert_eq!((stranger.answer[11], stranger.answer.len()), (7, 16 + 28 + 32 + 32));
        // Its queue pair lets nobody do anything, whatever the key: it isn't the memory that refuses.
        let place = RemoteAddress { addr: 0x1000, rkey: 0x1234 };
        let write = stranger.end.run(SendRequest::write(stranger.end.buffer(1, 8), place));
        assert_eq!(write.outcome().unwrap_err().status, Status::RemoteInvalidRequest);
        let stranger = Stranger::new(&device, address, asks);
        let read = stranger.end.run(SendRequest::read(stranger.end.buffer(1, 8), place));
        assert_eq!(read.outcome().unwrap_err().status, Status::RemoteInvalidRequest);
        // One message is taken, and no answer comes to what isn't a proof.
        for lie in [&[0; 64][..], &[0; 32], b"adverb\r\n\x01\x00", &[1]] {
            let stranger = Stranger::new(&device, address, asks);
            stranger.send(lie);
            assert_eq!(stranger.heard(A_WHILE), None);
            assert_ne!(stranger.send(lie), None, "there was one receive");
        }
        // Those whose queue pairs were refused, too.
        log.wait(6);
    });
    let proofs = logged.iter().filter(|line| line.contains("no valid proof of the key")).count();
    assert_eq!(proofs, 4, "{logged:#?}");
    admits(&listener, &options);
}

#[test]
fn what_was_overheard_is_no_good() {
    let switch = Switch::default();
    let file = std::env::temp_dir().join(format!("adverb-overheard-{}.pcapng", std::process::id()));
    let open = |last: u8| SoftDevice::on_switch(&switch, IpAddr::from([10, 40, 0, last]));
    let (victim, server) = (open(1).capture(&file).open().unwrap(), open(2).open().unwrap());
    let options = options(&server).key(&key());
    let listener = Listener::bind_with("127.0.0.1:0", &options).unwrap();

    // Somebody sits between who connects and the listener, and writes down what they say.
    let middle = TcpListener::bind("127.0.0.1:0").unwrap();
    let (asked, answered) = scope(|scope| {
        let client = scope.spawn(|| {
            let options = options.clone().device(&victim);
            Connector::new().options(&options).connect(middle.local_addr().unwrap()).unwrap()
        });
        let middle = scope.spawn(|| {
            let (mut from, mut to) =
                (middle.accept().unwrap().0, TcpStream::connect(listener.local_addr()).unwrap());
            let (mut asked, mut answered) = (vec![0; 16 + 28 + 32], vec![0; 16 + 28 + 32 + 32]);
            from.read_exact(&mut asked).unwrap();
            to.write_all(&asked).unwrap();
            to.read_exact(&mut answered).unwrap();
            from.write_all(&answered).unwrap();
            // It is a good relay, and stays until they have met.
            to.read_to_end(&mut Vec::new()).unwrap();
            (asked, answered)
        });
        let server = listener.accept().unwrap();
        let client = client.join().unwrap();
        client.send(b"hello").unwrap();
        assert_eq!(&server.recv().unwrap().unwrap()[..], b"hello");
        middle.join().unwrap()
    });
    drop(victim);
    let packets = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let at = packets.windows(8).position(|bytes| bytes == b"adverb\r\n").expect("a hello was sent");
    let sealed = packets[at - 32..at + 32].to_vec();

    let attacker = open(3).open().unwrap();
    let logged = besiege(&listener, |log| {
        let nonce = asked[44..].try_into().unwrap();
        // The same nonce, and the same proof.
        let stranger = Stranger::new(&attacker, listener.local_addr(), |endpoint| {
            greeting(Some(endpoint), Some(nonce), None)
        });
        assert_ne!(stranger.answer[44..], answered[44..], "the listener never says the same twice");
        stranger.send(&sealed);
        assert_eq!(stranger.heard(A_WHILE), None);
        // The very same greeting, of a queue pair that is long gone; and then who said it goes.
        let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
        stream.write_all(&asked).unwrap();
        stream.read_exact(&mut [0; 16 + 28 + 32 + 32]).unwrap();
        drop(stream);
        log.wait(2);
    });
    assert!(logged[0].contains("no valid proof of the key"), "{logged:#?}");
    assert!(
        logged[1].contains("the peer closed the connection") && logged[1].contains("same `Options::key`"),
        "{logged:#?}"
    );
    admits(&listener, &options);

    // The listener's answer again, to another client: somebody else listens in its place.
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = scope(|scope| {
        let client = scope.spawn(|| {
            let connector = Connector::new().options(&options.clone().device(&attacker));
            connector.connect(impostor.local_addr().unwrap()).unwrap_err()
        });
        let mut stream = impostor.accept().unwrap().0;
        stream.read_exact(&mut [0; 16 + 28 + 32]).unwrap();
        stream.write_all(&answered).unwrap();
        // Nothing more is said to it.
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        client.join().unwrap()
    });
    assert!(error.to_string().contains("different keys"), "{error}");
}

#[test]
fn a_stranger_cannot_aim_a_listener_at_a_third_party() {
    let device = device();
    let foreign = Gid::from(IpAddr::from([198, 51, 100, 9]));
    let greet = |listener: &Listener| {
        let end = End::new(&device, 8, false);
        let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
        stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
        let mut endpoint = end.queue_pair.endpoint();
        endpoint.gid = foreign;
        stream.write_all(&greeting(Some(endpoint), None, None)).unwrap();
        let mut answer = [0; 44];
        stream.read_exact(&mut answer).unwrap();
        answer
    };
    let strict = options(&device).allow_foreign_gid(false);
    let addr = SocketAddr::new(device.gid_for(1, None).unwrap().gid.udp_addr().ip(), 0);
    let listener = Listener::bind_with(addr, &strict).unwrap();
    let logged = besiege(&listener, |log| {
        let answer = greet(&listener);
        assert_eq!(answer[10], 2, "{}", String::from_utf8_lossy(&answer));
        log.wait(1);
    });
    assert!(logged[0].contains("GID ::ffff:198.51.100.9 is not an address of the TCP peer"), "{logged:#?}");
    admits(&listener, &strict);

    // The listener sends nothing before the connector's hello, so this reaches no third party.
    let listener = Listener::bind_with(addr, &options(&device)).unwrap();
    besiege(&listener, |log| {
        let answer = greet(&listener);
        // A kernel's device looks for a route when it connects the queue pair, and refuses where there is none.
        let (is_accepted, text) = (answer[10] == 1, String::from_utf8_lossy(&answer[16..]));
        assert!(is_accepted || !device.is_software() && !text.starts_with("GID "), "{text}");
        log.wait(1);
    });
}

#[test]
fn a_listener_cannot_aim_a_connector_at_a_third_party() {
    let device = device();
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = scope(|scope| {
        let client = scope.spawn(|| {
            let connector = Connector::new().options(&options(&device).allow_foreign_gid(false));
            connector.connect(impostor.local_addr().unwrap()).unwrap_err()
        });
        let mut stream = impostor.accept().unwrap().0;
        let mut asked = [0; 44];
        stream.read_exact(&mut asked).unwrap();
        asked[16..32].copy_from_slice(&Gid::from(IpAddr::from([198, 51, 100, 9])).bytes());
        stream.write_all(&asked).unwrap();
        client.join().unwrap()
    });
    assert!(error.to_string().contains("GID ::ffff:198.51.100.9 is not an address"), "{error}");
}

impl Random {
    /// A greeting, cut short, changed, prolonged, or nothing like one.
    fn harm(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
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
fn no_bytes_stop_a_listener() {
    const COUNT: usize = 300;
    let device = device();
    for key in [None, Some(key())] {
        let mut options = options(&device).connect_timeout(Duration::from_millis(500));
        if let Some(key) = &key {
            options = options.key(key);
        }
        let listener = Listener::bind_with("127.0.0.1:0", &options).unwrap();
        let mut random = Random(1);
        let logged = besiege(&listener, |log| {
            let end = End::new(&device, 8, false);
            for _ in 0..COUNT {
                let nonce = key.as_ref().map(|_| [3; 32]);
                let bytes = random.harm(greeting(Some(end.queue_pair.endpoint()), nonce, None));
                let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
                // It may be refused before it has said all.
                let _ = stream.write_all(&bytes);
                if random.below(2) == 0 {
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    let _ = stream.read(&mut [0; 200]);
                }
            }
            // Of some, when their time is up.
            log.wait(COUNT);
        });
        assert_eq!(Log::count(&logged), COUNT, "each is in the log, or counted there");
        admits(&listener, &options.connect_timeout(Duration::from_secs(5)));
    }
}

#[test]
fn no_private_data_stops_a_listener() {
    let device = device();
    let address = SocketAddr::new(device.gid_for(1, None).unwrap().gid.ip(), 0);
    let options = options(&device).bootstrap(Bootstrap::ConnectionManager).key(&key());
    let listener = Listener::bind_with(address, &options).unwrap();
    let mut random = Random(2);
    let logged = besiege(&listener, |log| {
        for number in 0..50 {
            let mut data = greeting(None, Some([3; 32]), None);
            match number {
                0 => data[8] = 7,
                _ => data = random.harm(data),
            }
            let connector = cm::Connector::new().timeout(Duration::from_secs(5)).private_data(&data);
            let made = connector.connect(listener.local_addr(), |path| {
                let (domain, completions) =
                    (device.create_protection_domain()?, device.completion_queue(8).create()?);
                path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()
            });
            match made {
                // It is to prove that it has the key, and doesn't.
                Ok(connection) => drop(connection),
                Err(Error::CmRejected { private_data, .. }) => {
                    assert!(private_data.starts_with(b"adverb\r\n\x01\x00\x02"), "{private_data:?}");
                    let reason = String::from_utf8_lossy(&private_data[16..]);
                    assert!(number > 0 || reason.contains("protocol version 7 was received"), "{reason}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        log.wait(50);
    });
    assert_eq!(Log::count(&logged), 50, "{logged:#?}");
    // Eight lines a second, and a count.
    assert!(logged.len() < 50, "{logged:#?}");
    admits(&listener, &options);
}

/// A peer that is connected, and then does what it likes.
struct Guest {
    stranger: Stranger,
    /// What the listener said.
    hello: Vec<u8>,
    /// Held while it is written to.
    _ring: MemoryRegion,
    /// How many bytes of the listener's ring it has written.
    written: u64,
}

impl Guest {
    fn new(device: &Device, options: &Options) -> (Connection, Guest) {
        let listener = Listener::bind_with("127.0.0.1:0", options).unwrap();
        let (server, stranger, ring) = scope(|scope| {
            let server = scope.spawn(|| listener.accept().unwrap());
            let greet = |endpoint| greeting(Some(endpoint), None, None);
            let stranger = Stranger::new(device, listener.local_addr(), greet);
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let ring = stranger.end.domain.region(4096, rights).unwrap();
            let mut hello = b"adverb\r\n\x01\x00".to_vec();
            hello.extend(64u16.to_le_bytes());
            hello.extend(4096u32.to_le_bytes());
            hello.extend(ring.remote().addr.to_le_bytes());
            hello.extend(ring.remote().rkey.to_le_bytes());
            hello.extend((1u32 << 30).to_le_bytes());
            // No session.
            hello.resize(64, 0);
            assert_eq!(stranger.send(&hello), None);
            (server.join().unwrap(), stranger, ring)
        });
        let hello = stranger.heard(common::PATIENCE).expect("the listener says hello");
        (server, Guest { stranger, hello, _ring: ring, written: 0 })
    }

    /// Writes frames where the next are expected: from the beginning of a ring that is long enough.
    fn write(&mut self, frames: &[u8]) -> Option<Status> {
        let mut buffer = self.stranger.end.buffer(0, frames.len());
        buffer.copy_from_slice(frames);
        let addr = u64::from_le_bytes(self.hello[16..24].try_into().unwrap()) + self.written;
        let rkey = u32::from_le_bytes(self.hello[24..28].try_into().unwrap());
        self.written += frames.len().next_multiple_of(16) as u64;
        let write = SendRequest::write_with_imm(buffer, RemoteAddress { addr, rkey }, 0);
        self.stranger.end.run(write).outcome().err().map(|failure| failure.status)
    }
}

/// A frame of an announcement, without the name's bytes.
fn announcement(rights: u8, name_len: u8) -> [u8; 48] {
    let mut frame = [0; 48];
    (frame[0], frame[4], frame[16], frame[24], frame[36]) = (5, name_len, 1, 1, rights);
    frame
}

#[test]
fn who_offers_more_than_is_taken_is_disconnected() {
    let device = device();
    let (server, mut guest) = Guest::new(&device, &options(&device).max_message_size(100_000));
    assert_eq!(guest.hello[28..32], 100_000u32.to_le_bytes());
    let before = server.pool().stats().used_bytes;
    let mut offer = [0; 32];
    offer[0] = 2;
    offer[4..8].copy_from_slice(&100_001u32.to_le_bytes());
    assert_eq!(guest.write(&offer), None);
    let error = server.recv().unwrap_err();
    assert!(error.to_string().contains("longer than the maximum"), "{error}");
    assert!(server.pool().stats().used_bytes <= before + 4096, "{:?}", server.pool());
    // Though the connection is still there, it can't reach any of its memory.
    assert_ne!(guest.write(&offer), None);
}

#[test]
fn nobody_exposes_more_than_can_be_remembered() {
    let device = device();
    let by_name = [announcement(1, 1).as_slice(), &[b'n'; 16][..1], &[0; 15]].concat();
    let cases: [(&[u8], &[u8], &str); 3] = [
        // By addresses, again and again; also if there is a name that makes it look as if it were known.
        (&[], &announcement(9, 0), "it exposed too many regions"),
        (&announcement(1, 0), &announcement(9, 0), "it exposed too many regions"),
        (
            &by_name,
            &[announcement(9, 1).as_slice(), &[b'n'; 16]].concat(),
            "it sent a malformed expose frame",
        ),
    ];
    for (first, again, words) in cases {
        let (server, mut guest) = Guest::new(&device, &options(&device).recv_ring_size(16 << 20));
        if !first.is_empty() {
            assert_eq!(guest.write(first), None);
        }
        let many = again.repeat(1000);
        let error = (0..6).find_map(|_| {
            guest.write(&many);
            match server.recv_timeout(Duration::from_millis(200)) {
                Err(Error::Timeout { .. }) => None,
                other => Some(other.unwrap_err().to_string()),
            }
        });
        assert!(error.as_ref().is_some_and(|error| error.contains(words)), "{error:?}");
    }
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Returns the count of peers that lines tell of: one each, or as many as were suppressed.
    fn count(lines: &[String]) -> usize {
        let of_line = |line: &String| match line.split_once("suppressed: ") {
            Some((_, count)) => count.split_whitespace().next().unwrap().parse().unwrap(),
            None => 1,
        };
        lines.iter().map(of_line).sum()
    }

    /// Waits until the log tells of so many peers.
    fn wait(&self, peers: usize) {
        let start = Instant::now();
        while Log::count(&self.0.lock().unwrap()) < peers {
            assert!(start.elapsed() < common::PATIENCE, "{:#?}", self.0.lock().unwrap());
            sleep(Duration::from_millis(1));
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                write!(self.0, "{field}: {value:?} ").unwrap();
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
