//! Clusters in one process, on software NICs at loopback addresses.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adverb_verbs::Access;
use adverb_verbs::memory::{MemoryRegion, RemoteMemory};

use super::exchange::{Hello, NONCE_LEN, Purpose, REJECTED, UNKNOWN_PROTOCOL, WELCOME_LEN};
use super::*;
use crate::broker::{Event, Transfer, TransferError};
use crate::{BrokerError, EndReason, PostError, RemoteRange, TransferOperation};

/// The time after which a test that makes no progress fails.
pub(super) const TEST_DEADLINE: Duration = Duration::from_secs(60);
const MESSAGES: u32 = 200;
pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

/// The listeners of members. They stay open between the runs of a member, so that no other program takes a port.
pub(super) struct Ports(pub(super) Vec<TcpListener>);

impl Ports {
    pub(super) fn new(count: usize) -> Ports {
        Ports((0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect())
    }

    pub(super) fn builder(&self, member: usize) -> ClusterBuilder {
        let mut builder = Cluster::builder();
        for (name, listener) in NAMES.iter().zip(&self.0) {
            builder = builder.member(Member::new(*name, listener.local_addr().unwrap().to_string()));
        }
        let config = BrokerConfig { keepalive: Some(Duration::from_millis(200)), ..BrokerConfig::default() };
        builder.listener(self.0[member].try_clone().unwrap()).config(config)
    }

    pub(super) fn join(&self, member: usize, threads: usize) -> Cluster {
        self.builder(member).threads(threads).join(NAMES[member]).unwrap()
    }
}

/// The work of one thread of a member, with every other member.
struct Worker {
    number: u8,
    region: MemoryRegion,
    peers: HashMap<PeerId, PeerProgress>,
}

#[derive(Default, Debug)]
struct PeerProgress {
    sent: u32,
    received: u32,
    completed: bool,
    is_done_sent: bool,
    is_done_received: bool,
}

const WORD_OFFSET: u64 = 2048;

impl Worker {
    fn new(broker: &Broker, number: u8) -> Worker {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        Worker {
            number,
            region: broker.protection_domain().allocate_region(4096, access).unwrap(),
            peers: HashMap::new(),
        }
    }

    fn handle(&mut self, broker: &mut Broker, event: Event<'_>) {
        match event {
            Event::SessionOpened { peer, .. } => {
                self.peers.insert(peer, PeerProgress::default());
                let RemoteMemory { addr, rkey, len } = self.region.remote();
                let mut slot = broker.allocate_send_buf(peer).unwrap();
                slot.write(b"R").unwrap();
                slot.write(&addr.to_le_bytes()).unwrap();
                slot.write(&rkey.to_le_bytes()).unwrap();
                slot.write(&len.to_le_bytes()).unwrap();
                slot.write(&broker.epoch().to_le_bytes()).unwrap();
                broker.post_send(slot).unwrap();
            }
            Event::Message { from, bytes } => match bytes.split_first().unwrap() {
                (b'R', bytes) => self.transfer(broker, from, bytes),
                (b'M', bytes) => {
                    let progress = self.peers.get_mut(&from).unwrap();
                    assert_eq!(bytes, progress.received.to_le_bytes(), "messages stay in order");
                    progress.received += 1;
                }
                _ => {
                    let progress = self.peers.get_mut(&from).unwrap();
                    assert_eq!(progress.received, MESSAGES);
                    progress.is_done_received = true;
                }
            },
            Event::Completed { peer, result, payloads, .. } => {
                result.unwrap();
                let buffers: Vec<_> = payloads.map(|payload| payload.into_buffer().unwrap()).collect();
                assert_eq!(buffers[1][..], [self.number; 256], "the READ returns the bytes of the WRITE");
                self.peers.get_mut(&peer).unwrap().completed = true;
            }
            // A thread that has finished leaves.
            Event::SessionEnded { reason: EndReason::Left, .. } => {}
            Event::SessionEnded { peer, reason, .. } => panic!("the session with {peer} ended: {reason}"),
            _ => {}
        }
    }

    /// Writes a pattern to the peer's memory, reads it back, and increments a word.
    fn transfer(&self, broker: &mut Broker, peer: PeerId, bytes: &[u8]) {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let rkey = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        let (addr, len, epoch) = (word(0), word(12), word(20));
        assert_eq!((len, Some(epoch)), (4096, broker.peer_epoch(peer)));
        let at = |offset, len| RemoteRange { epoch, memory: RemoteMemory { addr: addr + offset, rkey, len } };
        let domain = broker.protection_domain().clone();
        let mut pattern = domain.allocate_buffer(256).unwrap();
        pattern.fill(self.number);
        let place = u64::from(self.number) * 256;
        let mut transfers = vec![
            Transfer { operation: TransferOperation::Write, local: pattern.into(), remote: at(place, 256) },
            Transfer {
                operation: TransferOperation::Read,
                local: domain.allocate_buffer(256).unwrap().into(),
                remote: at(place, 256),
            },
            Transfer {
                operation: TransferOperation::FetchAdd { add: 1 },
                local: domain.allocate_buffer(8).unwrap().into(),
                remote: at(WORD_OFFSET, 8),
            },
        ];
        broker.post_batch(peer, &mut transfers).unwrap();
    }

    /// Sends as many messages as possible. Returns whether all messages were sent and received.
    fn advance(&mut self, broker: &mut Broker, peer_count: usize) -> bool {
        for (peer, progress) in &mut self.peers {
            while progress.sent < MESSAGES {
                let mut message = [b'M'; 5];
                message[1..].copy_from_slice(&progress.sent.to_le_bytes());
                match broker.send(*peer, &message) {
                    Ok(()) => progress.sent += 1,
                    Err(PostError::WouldBlock { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let is_done = progress.sent == MESSAGES && progress.completed && !progress.is_done_sent;
            if is_done && broker.send(*peer, b"D").is_ok() {
                progress.is_done_sent = true;
            }
        }
        let is_done = |progress: &PeerProgress| progress.is_done_sent && progress.is_done_received;
        self.peers.len() == peer_count && self.peers.values().all(is_done)
    }

    fn run(mut self, mut broker: Broker, finished_count: &AtomicUsize) {
        let started = Instant::now();
        while !self.advance(&mut broker, 2) {
            broker.wait(Duration::from_millis(100)).unwrap();
            broker.poll(|broker, event| self.handle(broker, event)).unwrap();
            assert!(started.elapsed() < TEST_DEADLINE, "member {}: {:?}", self.number, self.peers);
        }
        broker.flush_all();
        // The threads of other members may still need their sessions with this thread.
        finished_count.fetch_add(1, Ordering::AcqRel);
        while finished_count.load(Ordering::Acquire) < 6 {
            broker.wait(Duration::from_millis(1)).unwrap();
            broker.poll(|broker, event| self.handle(broker, event)).unwrap();
            assert!(started.elapsed() < TEST_DEADLINE, "another thread failed");
        }
        let mut bytes = [0; 256];
        for number in (0..3).filter(|number| *number != self.number) {
            self.region.read(usize::from(number) * 256, &mut bytes).unwrap();
            assert_eq!(bytes, [number; 256]);
        }
        assert_eq!(self.region.word(WORD_OFFSET as usize).unwrap().load(Ordering::Acquire), 2);
        drop(broker);
    }
}

#[test]
fn threads_of_three_members_exchange_messages_and_data() {
    let ports = Ports::new(3);
    // No session may end because the machine is busy.
    let options = ConnectOptions::new().ack_timeout(20);
    let config = BrokerConfig { keepalive: None, ..BrokerConfig::default() };
    let builder = |member| ports.builder(member).threads(2).connect_options(options).config(config);
    let clusters: Vec<Cluster> = (0..3).map(|member| builder(member).join(NAMES[member]).unwrap()).collect();
    let finished_count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (number, cluster) in (0..).zip(&clusters) {
            for thread in 0..2 {
                let broker = cluster.take_broker(thread).unwrap();
                let worker = Worker::new(&broker, number);
                let finished_count = &finished_count;
                scope.spawn(move || worker.run(broker, finished_count));
            }
        }
    });
    assert!(matches!(clusters[0].take_broker(0), Err(ClusterError::BrokerTaken { thread: 0 })));
    assert_eq!((clusters[0].peer("b"), clusters[0].peer("a")), (Some(PeerId(1)), None));
}

/// Polls brokers until each has opened a session, and returns the epochs of the peers.
fn await_sessions(brokers: &mut [&mut Broker]) -> Vec<u64> {
    let started = Instant::now();
    let mut epochs = vec![None; brokers.len()];
    while epochs.iter().any(Option::is_none) {
        for (broker, epoch) in brokers.iter_mut().zip(&mut epochs) {
            broker
                .poll(|_, event| match event {
                    Event::SessionOpened { epoch: opened, .. } => *epoch = Some(opened),
                    Event::SessionEnded { .. } => *epoch = None,
                    _ => {}
                })
                .unwrap();
        }
        assert!(started.elapsed() < TEST_DEADLINE, "no session: {epochs:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    epochs.into_iter().flatten().collect()
}

/// Polls two brokers until they have a session.
pub(super) fn await_open((a, to_b): (&mut Broker, PeerId), (b, to_a): (&mut Broker, PeerId)) {
    let started = Instant::now();
    while !(a.is_open(to_b) && b.is_open(to_a)) {
        a.poll(|_, _| ()).unwrap();
        b.poll(|_, _| ()).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
}

/// Sends a message from one broker to another.
pub(super) fn send_and_receive(from: &mut Broker, to: &mut Broker, peer: PeerId, text: &[u8]) {
    let started = Instant::now();
    let (mut is_sent, mut is_received) = (false, false);
    while !is_received {
        // On a busy machine, a session can end and be established again.
        is_sent = is_sent || from.send(peer, text).is_ok();
        let ended = |event: Event<'_>| matches!(event, Event::SessionEnded { .. });
        from.poll(|_, event| is_sent = is_sent && !ended(event)).unwrap();
        to.poll(|_, event| is_received |= matches!(event, Event::Message { bytes, .. } if bytes == text))
            .unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
}

#[test]
fn a_member_that_restarts_has_a_new_epoch() {
    let ports = Ports::new(2);
    let (to_a, to_b) = (PeerId(0), PeerId(1));
    let mut clusters = [Some(ports.join(0, 1)), Some(ports.join(1, 1))];
    let mut brokers: Vec<Option<Broker>> =
        clusters.iter().map(|cluster| Some(cluster.as_ref().unwrap().take_broker(0).unwrap())).collect();
    // The member that dials restarts first, then the one that listens.
    for restarted in [1, 0] {
        let [a, b] = &mut brokers[..] else { unreachable!() };
        let (a, b) = (a.as_mut().unwrap(), b.as_mut().unwrap());
        await_open((a, to_b), (b, to_a));
        send_and_receive(a, b, to_b, b"from a");
        send_and_receive(b, a, to_a, b"from b");
        let old_epoch = clusters[restarted].as_ref().unwrap().epoch();

        brokers[restarted] = None;
        clusters[restarted] = None;
        let cluster = ports.builder(restarted).join(NAMES[restarted]).unwrap();
        assert!(cluster.epoch() > old_epoch);
        brokers[restarted] = Some(cluster.take_broker(0).unwrap());
        clusters[restarted] = Some(cluster);

        let started = Instant::now();
        let [a, b] = &mut brokers[..] else { unreachable!() };
        let (a, b) = (a.as_mut().unwrap(), b.as_mut().unwrap());
        let epochs = await_sessions(&mut [&mut *a, &mut *b]);
        println!("member {restarted} was back after {:?}", started.elapsed());
        let expected = clusters.iter().map(|cluster| cluster.as_ref().unwrap().epoch());
        assert!(epochs.into_iter().rev().eq(expected));
        send_and_receive(a, b, to_b, b"again from a");
        send_and_receive(b, a, to_a, b"again from b");

        // Memory of the earlier run is refused before anything is posted.
        await_open((a, to_b), (b, to_a));
        let (other, peer) = if restarted == 0 { (b, to_a) } else { (a, to_b) };
        let remote = RemoteRange { epoch: old_epoch, memory: RemoteMemory { addr: 0, rkey: 0, len: 8 } };
        let refused = other.post_read(peer, (), remote).unwrap_err();
        assert!(matches!(refused.error, TransferError::Post(PostError::StaleEpoch { .. })));
    }
}

/// Polls a broker until a session ends. Returns the last message before, and the reason.
fn await_end(broker: &mut Broker) -> (Vec<u8>, EndReason) {
    let started = Instant::now();
    let (mut last_message, mut reason) = (Vec::new(), None);
    while reason.is_none() {
        broker.wait(Duration::from_millis(100)).unwrap();
        let polled = broker.poll(|_, event| match event {
            Event::Message { bytes, .. } => last_message = bytes.to_vec(),
            Event::SessionEnded { reason: ended, .. } => reason = Some(ended),
            _ => {}
        });
        polled.unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    (last_message, reason.unwrap())
}

#[test]
fn members_leave_with_a_message_and_return() {
    let ports = Ports::new(2);
    // No session may end because the machine is busy.
    let options = ConnectOptions::new().ack_timeout(20);
    let config = BrokerConfig { keepalive: None, ..BrokerConfig::default() };
    let join =
        |member| ports.builder(member).connect_options(options).config(config).join(NAMES[member]).unwrap();
    let a = join(0);
    let mut broker_a = a.take_broker(0).unwrap();
    let mut last_epoch = 0;
    for run in 0..3 {
        let b = join(1);
        let mut broker_b = b.take_broker(0).unwrap();
        await_open((&mut broker_a, PeerId(1)), (&mut broker_b, PeerId(0)));
        assert_eq!(broker_a.peer_epoch(PeerId(1)), Some(b.epoch()));
        assert!(b.epoch() > last_epoch);
        last_epoch = b.epoch();
        // The message waits for a flush, so leaving must post it.
        broker_b.send(PeerId(0), b"the last").unwrap();
        let started = Instant::now();
        let ended = std::thread::scope(|scope| {
            let polling = scope.spawn(|| await_end(&mut broker_a));
            match run {
                0 => assert!(broker_b.leave(TEST_DEADLINE).unwrap()),
                1 => {
                    b.leave();
                    assert_eq!(await_end(&mut broker_b).1, EndReason::Closed);
                }
                _ => drop(broker_b),
            }
            println!("run {run}: left after {:?}", started.elapsed());
            polling.join().unwrap()
        });
        println!("run {run}: ended after {:?}", started.elapsed());
        assert_eq!(ended, (b"the last".to_vec(), EndReason::Left));
    }
}

#[test]
fn a_dead_member_blocks_no_other_member() {
    // Member "a" listens but never answers, and has the smallest number, so both others dial it first.
    let ports = Ports::new(3);
    let (b, c) = (ports.join(1, 1), ports.join(2, 1));
    let (mut broker_b, mut broker_c) = (b.take_broker(0).unwrap(), c.take_broker(0).unwrap());
    await_sessions(&mut [&mut broker_b, &mut broker_c]);
    send_and_receive(&mut broker_b, &mut broker_c, PeerId(2), b"from b");
    assert!(!broker_b.is_open(PeerId(0)));
}

#[test]
fn hosts_that_are_no_members_are_rejected() {
    let ports = Ports::new(2);
    let (a, b) = (ports.join(0, 1), ports.join(1, 1));
    let (mut broker_a, mut broker_b) = (a.take_broker(0).unwrap(), b.take_broker(0).unwrap());
    let purpose = Purpose::Session;
    let valid = Hello { cluster: a.shared.local.cluster, from: 1, to: 0, thread: 0, purpose };
    let to_bytes = |hello: Hello| hello.to_bytes(&[0; NONCE_LEN]);
    let hellos = [
        (REJECTED, to_bytes(Hello { cluster: valid.cluster ^ 1, ..valid })),
        (REJECTED, to_bytes(Hello { from: 0, ..valid })),
        (REJECTED, to_bytes(Hello { from: 2, ..valid })),
        (REJECTED, to_bytes(Hello { to: 1, ..valid })),
        (REJECTED, to_bytes(Hello { thread: 1, ..valid })),
        (UNKNOWN_PROTOCOL, [0xff; Hello::LEN]),
    ];
    for (code, hello) in hellos {
        let mut stream = TcpStream::connect(ports.0[0].local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(TEST_DEADLINE)).unwrap();
        stream.write_all(&hello).unwrap();
        let mut answer = [0; WELCOME_LEN];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[0], code);
    }
    // Connections that send no bytes are closed, and members still connect.
    let _silent: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(ports.0[0].local_addr().unwrap()).unwrap()).collect();
    await_sessions(&mut [&mut broker_a, &mut broker_b]);
    send_and_receive(&mut broker_a, &mut broker_b, PeerId(1), b"from a");
}

#[test]
fn members_with_other_keys_get_no_session() {
    let ports = Ports::new(3);
    let join = |member: usize, key: Option<[u8; 32]>| {
        let builder = ports.builder(member);
        let builder = key.iter().fold(builder, |builder, secret| builder.key(&Key::new(secret).unwrap()));
        builder.join(NAMES[member]).unwrap()
    };
    let clusters = [join(0, Some([1; 32])), join(1, Some([1; 32])), join(2, None)];
    let mut brokers = clusters.each_ref().map(|cluster| cluster.take_broker(0).unwrap());
    let started = Instant::now();
    let [a, b, c] = &mut brokers;
    let mut refused_count = 0;
    while !(a.is_open(PeerId(1)) && b.is_open(PeerId(0)) && refused_count == 20) {
        for broker in [&mut *a, &mut *b, &mut *c] {
            broker.poll(|_, _| ()).unwrap();
        }
        // Meanwhile, a member without the key has dialed many times, and so has a host that is no member.
        if refused_count < 20 {
            let mut stream = TcpStream::connect(ports.0[0].local_addr().unwrap()).unwrap();
            stream.set_read_timeout(Some(TEST_DEADLINE)).unwrap();
            let hello = Hello {
                cluster: clusters[0].shared.local.cluster,
                from: 1,
                to: 0,
                thread: 0,
                purpose: Purpose::Session,
            };
            stream.write_all(&hello.to_bytes(&[0; NONCE_LEN])).unwrap();
            stream.read_exact(&mut [0; WELCOME_LEN]).unwrap();
            stream.write_all(&[0; 44 + 32]).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            assert_eq!(answer[0], 4, "not authenticated");
            refused_count += 1;
        }
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    assert!(!a.is_open(PeerId(2)) && !b.is_open(PeerId(2)));
    assert!(!c.is_open(PeerId(0)) && !c.is_open(PeerId(1)));
    send_and_receive(a, b, PeerId(1), b"from a");
}

#[test]
fn lazy_sessions_are_established_by_either_side() {
    let ports = Ports::new(3);
    // No session may end because the machine is busy.
    let options = ConnectOptions::new().ack_timeout(20);
    let config = BrokerConfig { keepalive: None, ..BrokerConfig::default() };
    let builder = |member| ports.builder(member).lazy(true).connect_options(options).config(config);
    let join = |member| builder(member).join(NAMES[member]).unwrap();
    let clusters = [join(0), join(1), join(2)];
    let mut brokers = clusters.each_ref().map(|cluster| cluster.take_broker(0).unwrap());
    let [a, b, c] = &mut brokers;
    assert!(matches!(a.send(PeerId(1), b"early"), Err(PostError::NotOpen { .. })));
    assert!(matches!(a.connect(PeerId(3)), Err(BrokerError::Session(_))));
    // The member with the larger number dials, and the one with the smaller number asks it to.
    a.connect(PeerId(1)).unwrap();
    await_open((a, PeerId(1)), (b, PeerId(0)));
    c.connect(PeerId(1)).unwrap();
    await_open((b, PeerId(2)), (c, PeerId(1)));
    send_and_receive(a, b, PeerId(1), b"from a");
    send_and_receive(b, c, PeerId(2), b"from b");
    assert!(!a.is_open(PeerId(2)) && !c.is_open(PeerId(0)), "neither member asked for this session");
}

#[test]
fn a_member_whose_clock_went_back_returns() {
    let ports = Ports::new(2);
    // No keepalive: only the refused offer makes `a` check whether the earlier run lives.
    let config = BrokerConfig { keepalive: None, ..BrokerConfig::default() };
    let a = ports.builder(0).config(config).connect_options(ConnectOptions::new().ack_timeout(12));
    let a = a.join("a").unwrap();
    let mut broker_a = a.take_broker(0).unwrap();
    for (epoch, leaves) in [(5, true), (4, false), (3, false), (6, true)] {
        let b = ports.builder(1).epoch(epoch).join("b").unwrap();
        let mut broker_b = b.take_broker(0).unwrap();
        let started = Instant::now();
        while broker_a.peer_epoch(PeerId(1)) != Some(epoch) || !broker_b.is_open(PeerId(0)) {
            broker_a.poll(|_, _| ()).unwrap();
            broker_b.poll(|_, _| ()).unwrap();
            assert!(started.elapsed() < TEST_DEADLINE, "epoch {epoch} gets no session");
        }
        println!("epoch {epoch} has a session after {:?}", started.elapsed());
        send_and_receive(&mut broker_b, &mut broker_a, PeerId(0), b"from b");
        drop(b);
        if !leaves {
            // The run dies: its queue pair doesn't exist anymore, and no message says so.
            broker_b.close(PeerId(0));
        }
    }
}

#[test]
fn an_older_run_does_not_replace_one_that_lives() {
    let ports = Ports::new(2);
    // No session may end because the machine is busy.
    let options = ConnectOptions::new().ack_timeout(20);
    let a = ports.builder(0).connect_options(options).join("a").unwrap();
    let mut broker_a = a.take_broker(0).unwrap();
    let join = |epoch| ports.builder(1).connect_options(options).epoch(epoch).join("b").unwrap();
    let b = join(5);
    let mut broker_b = b.take_broker(0).unwrap();
    await_open((&mut broker_a, PeerId(1)), (&mut broker_b, PeerId(0)));
    send_and_receive(&mut broker_b, &mut broker_a, PeerId(0), b"from b");
    let older = join(4);
    let mut broker_older = older.take_broker(0).unwrap();
    for _ in 0..300 {
        for broker in [&mut broker_a, &mut broker_b, &mut broker_older] {
            broker.poll(|_, event| assert!(!matches!(event, Event::SessionEnded { .. }))).unwrap();
        }
        assert!(broker_a.peer_epoch(PeerId(1)) == Some(5) && !broker_older.is_open(PeerId(0)));
        std::thread::sleep(Duration::from_millis(1));
    }
    // A newer run takes over.
    let newer = join(6);
    let mut broker_newer = newer.take_broker(0).unwrap();
    let started = Instant::now();
    while broker_a.peer_epoch(PeerId(1)) != Some(6) {
        for broker in [&mut broker_a, &mut broker_b, &mut broker_older, &mut broker_newer] {
            broker.poll(|_, _| ()).unwrap();
        }
        assert!(started.elapsed() < TEST_DEADLINE);
    }
}

#[test]
fn invalid_options_are_refused() {
    let member = |name| Member::new(name, "127.0.0.1:1");
    let builder = || Cluster::builder().member(member("a"));
    assert!(matches!(builder().join("b"), Err(ClusterError::UnknownMember { .. })));
    assert!(matches!(builder().member(member("a")).join("a"), Err(ClusterError::DuplicateMember { .. })));
    assert!(matches!(builder().threads(0).join("a"), Err(ClusterError::OutOfRange { .. })));
    assert!(matches!(Cluster::builder().join("a"), Err(ClusterError::OutOfRange { .. })));
}

/// A subscriber that counts the warnings about failing calls of `accept`.
struct AcceptWarnings;

static ACCEPT_WARNINGS: AtomicUsize = AtomicUsize::new(0);

impl tracing::Subscriber for AcceptWarnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            let is_about_accept = format!("{value:?}").starts_with("accepting ");
            ACCEPT_WARNINGS.fetch_add(usize::from(is_about_accept), Ordering::SeqCst);
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

/// As without free descriptors, `accept` fails again and again.
#[test]
fn a_listener_that_can_not_accept_logs_one_warning() {
    // The connecting thread has no subscriber of its own.
    tracing::subscriber::set_global_default(AcceptWarnings).unwrap();
    let ports = Ports::new(2);
    let _cluster = ports.join(0, 1);
    let socket = TcpStream::from(OwnedFd::from(ports.0[0].try_clone().unwrap()));
    socket.shutdown(Shutdown::Both).unwrap();
    let deadline = Instant::now() + TEST_DEADLINE;
    while ACCEPT_WARNINGS.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "no warning");
        std::thread::sleep(Duration::from_millis(10));
    }
    // About 50 further failures.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(ACCEPT_WARNINGS.load(Ordering::SeqCst), 1);
}
