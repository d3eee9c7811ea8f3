//! A hostile peer of a connection. For anything that it sends, the connection keeps its invariants.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use adverb_net_proto::{
    Completed, Config, Connection, Event, HELLO_LEN, Hello, Memory, Payload, PhaseKind, Post, Received,
    Region, Register, RegisterMemory, Role, SessionHello, Tag,
};
use adverb_proto::Time;
use adverb_proto::types::{RemoteAddress, RemoteMemory, Status};

const SESSION: [u8; 16] = [7; 16];
const RING_LEN: u32 = 1024;
const MAX_MESSAGE: u32 = 2000;
const RECV_BUFFER_LIMIT: usize = 1500;
/// The maximum size of the buffered messages: the limit of the receive buffer, the ring's frames, and one message.
const MAX_BUFFERED: usize = RECV_BUFFER_LIMIT + 5 * RING_LEN as usize + MAX_MESSAGE as usize + 64;
/// The maximum number of bytes kept for a replay. If the peer reads the ring but no rendezvous message, the connection
/// keeps all messages that it sends.
const MAX_KEPT: usize = 1 << 20;

/// The input, as a sequence of choices.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: u32) -> u32 {
        u32::from(self.byte().unwrap_or(0)) % end.max(1)
    }

    /// Returns the next four bytes as a number. Bytes after the end of the input are zero.
    fn number(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte().unwrap_or(0)))
    }
}

#[derive(Clone, Debug)]
struct TargetRegion {
    key: u32,
    len: u64,
}

impl Region for TargetRegion {
    fn remote(&self) -> RemoteMemory {
        RemoteMemory { addr: 0x1000, rkey: self.key, len: self.len }
    }
}

/// The memory of the connection. The peer can write the ring at any time.
struct TargetMemory {
    ring: Vec<u8>,
    regions: BTreeSet<u32>,
    next_key: u32,
    violation: Option<String>,
}

impl TargetMemory {
    fn register(&mut self, len: usize) -> TargetRegion {
        self.next_key += 1;
        self.regions.insert(self.next_key);
        TargetRegion { key: self.next_key, len: len as u64 }
    }

    fn release(&mut self, region: &TargetRegion) {
        if !self.regions.remove(&region.key) {
            self.violation = Some("a region was released twice".to_owned());
        }
    }
}

impl Memory for TargetMemory {
    type Buf = Vec<u8>;
    type Region = TargetRegion;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        if len > (MAX_MESSAGE + RING_LEN).max(16 << 10) as usize {
            self.violation = Some(format!("{len} bytes were allocated"));
        }
        Some(vec![0; len])
    }

    fn read_ring(&mut self, _: &TargetRegion, offset: u32, out: &mut Vec<u8>) {
        match self.ring.get(offset as usize..offset as usize + out.len()) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => self.violation = Some("a read exceeds the ring".to_owned()),
        }
    }
}

/// The connection, its driver and its queue pair.
struct Target {
    connection: Connection<Vec<u8>, TargetRegion>,
    memory: TargetMemory,
    config: Config,
    role: Role,
    now: Time,
    posted: VecDeque<(Tag, Option<Vec<u8>>)>,
    receives: u32,
    /// The hello of the current lane, and the one that the driver has passed on for the next lane.
    hello: Option<Hello>,
    successor: Option<Hello>,
    /// The number of writes with frames over the current lane, and the number whose credits the peer has returned.
    writes: u64,
    writes_read: u64,
    registering: Option<Register<Vec<u8>, TargetRegion>>,
    must_drain: bool,
    must_dial: bool,
}

/// Attacks a connection that sends, receives, breaks and resumes, with the hellos, the writes and the bytes in the ring
/// that `bytes` describe.
///
/// # Errors
///
/// Returns the violated invariant: requests stay within the peer's ring, its credits and the send queue; reads stay
/// within the connection's own ring; the memory is bounded; each region is released once, and all of them after the
/// end.
pub fn net_attack_from_bytes(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    let mut target = Target::new(&mut choices);
    while let Some(choice) = choices.byte() {
        target.step(choice, &mut choices);
        target.drive(&mut choices)?;
        target.check()?;
    }
    target.connection.abort();
    target.drive(&mut choices)?;
    target.finish()
}

impl Target {
    fn new(choices: &mut Choices<'_>) -> Target {
        let kind = choices.byte().unwrap_or(0);
        let config = Config {
            recv_ring_size: RING_LEN,
            max_outstanding_writes: 4,
            eager_threshold: 100,
            recv_buffer_limit: RECV_BUFFER_LIMIT,
            max_message_size: MAX_MESSAGE,
            max_read_len: 500,
            reconnect: (kind & 2 != 0).then(|| Duration::from_secs(60)),
            ..Config::default()
        }
        .clamped();
        let role = if kind & 1 == 0 { Role::Connector } else { Role::Listener };
        let hello = valid_hello(None);
        let connection = match role {
            Role::Connector => Connection::connect(config.clone(), SESSION, Time::ZERO),
            Role::Listener => Connection::accept(config.clone(), hello, Time::ZERO),
        };
        Target {
            connection,
            memory: TargetMemory {
                ring: vec![0; RING_LEN as usize],
                regions: BTreeSet::new(),
                next_key: 0,
                violation: None,
            },
            config,
            role,
            now: Time::ZERO,
            posted: VecDeque::new(),
            receives: 0,
            hello: (role == Role::Listener).then_some(hello),
            successor: None,
            writes: 0,
            writes_read: 0,
            registering: None,
            must_drain: false,
            must_dial: false,
        }
    }

    fn step(&mut self, choice: u8, choices: &mut Choices<'_>) {
        let now = self.now;
        let Target { connection, memory, .. } = self;
        match choice % 20 {
            0..4 => self.receive_write(choices),
            4 | 5 => {
                // The peer writes the connection's ring at any time.
                let (at, len) = (choices.below(64) as usize * 16, choices.below(80) as usize);
                for byte in memory.ring.iter_mut().skip(at).take(len) {
                    *byte = choices.byte().unwrap_or(0);
                }
            }
            6 => self.receive_hello(choices),
            7 | 8 => self.complete(choices),
            9 => {
                let status = [Status::Flushed, Status::RetryExceeded][choices.below(2) as usize];
                let failed = Completed::Failed { tag: Tag::Recv, buf: None, status };
                connection.handle_completion(memory, failed, now);
            }
            10 | 11 => {
                let bytes = vec![1; choices.below(101) as usize];
                let _result = if choice & 1 == 0 {
                    connection.send(memory, &bytes, Some(7))
                } else {
                    connection.feed(memory, &bytes, None)
                };
            }
            12 => {
                let region = memory.register(choices.below(200) as usize);
                let lane = connection.limits().map_or(0, |limits| limits.lane);
                if let Err((_, region)) = connection.send_region(memory, region, lane, None) {
                    memory.release(&region);
                }
            }
            13 | 14 => {
                let _received: Received<Vec<u8>> = connection.recv(memory, now);
            }
            15 => match choices.below(8) {
                0 => connection.shutdown(),
                1 => connection.close(now),
                2 => connection.handle_lane_failed(now),
                3 | 4 => {
                    let region = memory.register(64);
                    if let Err((_, region)) = connection.expose("region", region, 1) {
                        memory.release(&region);
                    }
                }
                6 if choice & 1 == 0 => drop(connection.withdraw(|_, _, _| true)),
                5 if connection.post_operation(connection.lane()).is_ok() => {
                    self.posted.push_back((Tag::Operation, None));
                }
                _ => connection.flush(),
            },
            16 => {
                self.now = now + Duration::from_millis(u64::from(choices.below(256)) * 20);
                connection.handle_timeout(memory, self.now);
            }
            17 => self.drain(),
            18 => self.dial(choices),
            _ => self.resume(choices),
        }
    }

    /// Receives a write with immediate data, which is sometimes nearly valid.
    fn receive_write(&mut self, choices: &mut Choices<'_>) {
        if self.receives == 0 {
            return;
        }
        self.receives -= 1;
        let (immediate, len) = match choices.below(4) {
            0 => (choices.number(), choices.number() % (2 * RING_LEN)),
            1 => (1 << 30 | choices.below(32) | choices.below(8) << 21, 0),
            2 => ((2 + choices.below(2)) << 30 | choices.below(4), 0),
            _ => (choices.below(32) | choices.below(8) << 21, choices.below(20) * 16),
        };
        let is_established = self.connection.phase() == PhaseKind::Established;
        self.connection.handle_completion(&mut self.memory, Completed::Received { immediate, len }, self.now);
        if is_established && immediate >> 30 < 2 {
            let read = (u64::from(immediate >> 21)).wrapping_sub(self.writes_read) & 0x1ff;
            self.writes_read += read;
        }
    }

    fn receive_hello(&mut self, choices: &mut Choices<'_>) {
        if self.role == Role::Listener {
            return;
        }
        let hello = arbitrary_hello(None, choices);
        let bytes = match &hello {
            Some(hello) => hello.emit(),
            None => [(); HELLO_LEN].map(|()| choices.byte().unwrap_or(0)),
        };
        let was_established = self.connection.phase() == PhaseKind::Established;
        self.connection.handle_hello(&mut self.memory, &bytes, self.now);
        if !was_established && self.connection.phase() == PhaseKind::Established {
            self.hello = hello;
            (self.writes, self.writes_read) = (0, 0);
        }
    }

    /// Completes the oldest request.
    fn complete(&mut self, choices: &mut Choices<'_>) {
        let Some((tag, buf)) = self.posted.pop_front() else { return };
        let completed = match choices.below(16) {
            0 => Completed::Failed { tag, buf, status: Status::RetryExceeded },
            _ => Completed::Sent { tag, buf },
        };
        self.connection.handle_completion(&mut self.memory, completed, self.now);
    }

    fn drain(&mut self) {
        if !std::mem::take(&mut self.must_drain) {
            return;
        }
        let left = self.posted.drain(..).collect();
        self.receives = 0;
        self.connection.handle_drained(&mut self.memory, left, self.now);
        (self.hello, self.writes, self.writes_read) = (self.successor.take(), 0, 0);
    }

    fn dial(&mut self, choices: &mut Choices<'_>) {
        if !std::mem::take(&mut self.must_dial) {
            return;
        }
        if choices.below(4) == 0 {
            self.connection.handle_dial_failed(self.now);
        } else {
            let _attached = self.connection.attach(self.config.lane(), self.now);
        }
    }

    fn resume(&mut self, choices: &mut Choices<'_>) {
        let received = u64::from(choices.below(8));
        // A listener's driver parses a hello before it looks for the session.
        let hello = arbitrary_hello(Some(received), choices).map(|hello| Hello::parse(&hello.emit()));
        let Some(Ok(hello)) = hello else { return };
        let was_disconnected = self.connection.phase() == PhaseKind::Disconnected;
        if self.connection.resume(hello, self.config.lane(), self.now) {
            if was_disconnected {
                (self.hello, self.writes, self.writes_read) = (Some(hello), 0, 0);
            } else {
                self.successor = Some(hello);
            }
        }
    }

    /// Performs the driver's work.
    fn drive(&mut self, choices: &mut Choices<'_>) -> Result<(), String> {
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Release(region) => self.memory.release(&region),
                Event::Drain => self.must_drain = true,
                Event::Redial { .. } => self.must_dial = true,
                _ => {}
            }
        }
        if self.registering.is_none() {
            self.registering = self.connection.poll_register();
        }
        if choices.below(4) > 0
            && let Some(Register { id, memory }) = self.registering.take()
        {
            let region = match memory {
                RegisterMemory::Ring { len } => self.memory.register(len as usize),
                RegisterMemory::Message(Payload::Buf(buf)) => self.memory.register(buf.len()),
                RegisterMemory::Exposed(region) | RegisterMemory::Message(Payload::Region(region)) => {
                    self.memory.release(&region);
                    self.memory.register(region.len as usize)
                }
            };
            self.connection.handle_registered(id, region, self.now);
        }
        for _ in 0..1000 {
            let Some(post) = self.connection.poll_post(&mut self.memory, self.now) else {
                return Ok(());
            };
            self.post(post)?;
        }
        Err("the connection does not stop posting".to_owned())
    }

    fn post(&mut self, post: Post<Vec<u8>>) -> Result<(), String> {
        let (tag, buf) = match post {
            Post::Receives { count } => {
                self.receives += count;
                return Ok(());
            }
            Post::Hello { .. } => (Tag::Hello, None),
            Post::Write { tag, buf, remote, .. } => {
                let len = buf.as_ref().map_or(0, Vec::len);
                self.check_write_range(remote, len)?;
                self.writes += u64::from(len > 0);
                (tag, buf)
            }
            Post::Probe { remote } => {
                self.check_write_range(remote, 0)?;
                (Tag::Probe, None)
            }
            Post::Read { buf, .. } => (Tag::Read, Some(buf)),
        };
        self.posted.push_back((tag, buf));
        Ok(())
    }

    /// Checks that a write stays within the peer's ring.
    fn check_write_range(&self, remote: RemoteAddress, len: usize) -> Result<(), String> {
        let Some(hello) = &self.hello else { return Ok(()) };
        let offset = remote.addr.wrapping_sub(hello.ring.addr);
        if remote.rkey != hello.ring.rkey || offset.saturating_add(len as u64) > hello.ring.len {
            return Err(format!("a write of {len} bytes to offset {offset} exceeds the peer's ring"));
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        if let Some(what) = self.memory.violation.take() {
            return Err(what);
        }
        let (buffered, kept) = self.connection.buffered_bytes();
        if buffered > MAX_BUFFERED || kept > MAX_KEPT {
            return Err(format!("{buffered} bytes are buffered, and {kept} are kept"));
        }
        if self.posted.len() > self.config.send_queue_depth() as usize {
            return Err(format!("{} requests are in flight", self.posted.len()));
        }
        if self.receives > self.config.recv_queue_depth() {
            return Err(format!("{} receives are posted", self.receives));
        }
        let max_writes = self.hello.map_or(u64::MAX, |hello| hello.max_outstanding_writes.into());
        if self.connection.phase() == PhaseKind::Established
            && self.writes.saturating_sub(self.writes_read) > max_writes
        {
            return Err(format!("{} writes, of which {} were read", self.writes, self.writes_read));
        }
        Ok(())
    }

    /// Ends the connection, and checks that nothing stays registered.
    fn finish(mut self) -> Result<(), String> {
        self.drain();
        let mut choices = Choices(&[1; 8]);
        self.drive(&mut choices)?;
        self.drive(&mut choices)?;
        if self.connection.phase() != PhaseKind::Closed {
            return Err(format!("the connection did not end: {:?}", self.connection.phase()));
        }
        for message in self.connection.take_unacknowledged() {
            if let Payload::Region(region) = message.payload {
                self.memory.release(&region);
            }
        }
        self.check()?;
        match self.memory.regions.len() {
            0 => Ok(()),
            count => Err(format!("{count} regions stayed registered")),
        }
    }
}

fn valid_hello(received: Option<u64>) -> Hello {
    Hello {
        ring: RemoteMemory { addr: 0x7000, rkey: 9, len: 512 },
        max_outstanding_writes: 4,
        max_message_size: 1000,
        session: Some(SessionHello { id: SESSION, received }),
    }
}

/// Returns a hello that may be wrong in one field, or `None` for a malformed one.
fn arbitrary_hello(received: Option<u64>, choices: &mut Choices<'_>) -> Option<Hello> {
    let mut hello = valid_hello(received);
    match choices.below(12) {
        0 => return None,
        1 => hello.ring.len = u64::from(choices.below(64)) * 16,
        2 => hello.ring.addr = u64::MAX - u64::from(choices.below(255)),
        3 => hello.max_outstanding_writes = choices.below(256),
        4 => hello.max_message_size = choices.number(),
        5 => hello.session = None,
        6 => hello.session = Some(SessionHello { id: SESSION, received: Some(choices.number().into()) }),
        7 => hello.session = Some(SessionHello { id: [1; 16], received }),
        8 => hello.session = Some(SessionHello { id: SESSION, received: Some(choices.below(8).into()) }),
        _ => {}
    }
    Some(hello)
}
