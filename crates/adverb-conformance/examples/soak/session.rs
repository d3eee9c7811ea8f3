//! Two processes at work with each other: one posts requests of every kind, in rounds, and the other looks at what
//! comes.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use adverb::memory::{Buffer, MemoryRegion, RemoteMemory};
use adverb::verbs::{
    Access, CompletedOperation, Completion, CompletionQueue, ConnectOptions, Endpoint, MemoryWindow,
    ProtectionDomain, QueuePair, RecvRequest, SendRequest, Status, Transport, UdDestination,
};
use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::message::{self, HEAD, Random};
use crate::station::Station;

/// Which end of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Posts requests.
    Client { peer: u8, seed: u64 },
    /// Looks at what comes.
    Server,
}

/// How a session ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    /// As both wanted; or before it began.
    Well,
    /// The peer was killed, and so long after that a request said so.
    Lost(Duration),
}

/// How long an acknowledgement is waited for, as a code: 134 ms.
const TIMEOUT: u8 = 15;
const RETRIES: u8 = 7;

/// By when a request to a peer that is gone must have failed, by the rules of the transport.
pub(crate) const RETRY_BOUND: Duration = Duration::from_nanos(4096 * (1 << TIMEOUT) * (RETRIES as u64 + 1));

/// What a machine with other things to do may take on top: to run the process, and to see that the peer is gone.
pub(crate) const SLACK: Duration = Duration::from_millis(700);

/// By when a round must be over, whatever happens but a peer that is gone.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest message.
const MAX_MESSAGE_LEN: usize = 16 << 10;

/// The memory that the server shows: two words, bytes to be read, and room for what is written.
const WORDS: usize = 4096;
const READABLE: usize = 64 << 10;
const SLOTS: usize = WORDS + READABLE;
const RELIABLE_SLOTS: usize = 16;
const UNRELIABLE_SLOTS: usize = 32;
const WINDOW: usize = SLOTS + (RELIABLE_SLOTS + UNRELIABLE_SLOTS) * MAX_MESSAGE_LEN;
const SHOWN: usize = WINDOW + MAX_MESSAGE_LEN;

const QKEY: u32 = 0x5eed;
const RECEIVES: usize = 48;

/// What completions of receives are tagged with, and of some requests. Others have numbers.
const RC: u64 = 1;
const UC: u64 = 2;
const UD: u64 = 3;
const BIND: u64 = 4;
const PROBE: u64 = 5;
const FIRST_NUMBER: u64 = 100;

/// What peers tell each other first.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    session: u64,
    rc: Endpoint,
    uc: Endpoint,
    ud: Endpoint,
    memory: RemoteMemory,
}

/// What the client says at the end of a round.
#[derive(Debug, Serialize, Deserialize)]
struct RoundEnd {
    /// The numbers of all messages that were sent, in order.
    sent: Vec<u64>,
    /// Where what was written, by its number.
    written: Vec<(usize, u64)>,
    /// Whether it was the last.
    last: bool,
}

/// What the server answers.
#[derive(Debug, Serialize, Deserialize)]
struct RoundReply {
    /// How many messages and datagrams without acknowledgements have come.
    unreliable: u64,
    window: Option<RemoteMemory>,
}

/// What the client expects of a request.
#[derive(Debug)]
enum Expected {
    /// That it succeeds.
    Done,
    /// These bytes of the server's.
    Bytes(usize),
    /// This word.
    Word(u64),
}

/// One end of a session.
struct Session<'a> {
    station: &'a Station,
    id: u64,
    rc: QueuePair,
    uc: QueuePair,
    ud: QueuePair,
    recipient: UdDestination,
    completions: CompletionQueue,
    domain: ProtectionDomain,
    memory: MemoryRegion,
    remote: RemoteMemory,
    stream: TcpStream,
    /// When the peer was seen to be gone.
    gone: Option<Instant>,
    /// When something was done last.
    worked: Instant,
    spare: Vec<Buffer>,
    received: VecDeque<Completion>,
}

/// A request failed: the peer is gone, or should be.
#[derive(Debug)]
struct Broken(Status);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a request failed: {}", self.0)
    }
}

impl std::error::Error for Broken {}

/// Has a session.
pub(crate) fn run(station: &Station, stream: TcpStream, role: Role) -> Result<Ended> {
    let Some(mut session) = Session::begin(station, stream, role)? else { return Ok(Ended::Well) };
    let worked = match role {
        Role::Client { peer, seed } => Client::new(seed).run(&mut session, peer),
        Role::Server => Server::default().run(&mut session),
    };
    let ended = match worked {
        Ok(ended) => ended,
        Err(error) => match error.downcast_ref::<Broken>() {
            Some(Broken(status)) => session.lost(Some(*status))?,
            None => return Err(error),
        },
    };
    session.end()?;
    Ok(ended)
}

impl<'a> Session<'a> {
    /// Makes queue pairs, and connects them with the peer's. `None` if that is gone already.
    fn begin(station: &'a Station, stream: TcpStream, role: Role) -> Result<Option<Session<'a>>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let domain = station.device.create_protection_domain()?;
        let completions = station.device.completion_queue(1024).events().create()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let access = access | Access::REMOTE_ATOMIC | Access::WINDOW_BIND;
        let memory = domain.region(SHOWN, access)?;
        let queue_pair = |transport| {
            let builder = domain.queue_pair(transport).completion_queue(&completions);
            builder.depth(64, RECEIVES as u32).access(access).qkey(QKEY).create()
        };
        let [rc, uc, ud] = [Transport::Rc, Transport::Uc, Transport::Ud].map(queue_pair);
        let (rc, uc, ud) = (rc?, uc?, ud?);
        ud.move_to_rts()?;
        for (queue_pair, tag) in [(&rc, RC), (&uc, UC), (&ud, UD)] {
            for _ in 0..RECEIVES {
                queue_pair.post_recv(RecvRequest::new(domain.buffer(MAX_MESSAGE_LEN)?).tag(tag))?;
            }
        }
        let id = if let Role::Client { seed, .. } = role { seed } else { 0 };
        let mut hello = Hello {
            session: id,
            rc: rc.endpoint(),
            uc: uc.endpoint(),
            ud: ud.endpoint(),
            memory: memory.remote(),
        };
        // The server is ready before it says hello: the client sends at once.
        let options = ConnectOptions::new().ack_timeout(TIMEOUT).retry_count(RETRIES);
        let connect = |theirs: &Hello| -> Result<UdDestination> {
            rc.connect_with(&theirs.rc, &options)?;
            uc.connect_with(&theirs.uc, &options)?;
            Ok(ud.ud_destination(&theirs.ud, QKEY)?)
        };
        let mut lines = BufReader::new(&stream);
        let (theirs, recipient) = match role {
            Role::Client { .. } => {
                let Some(()) = write_line(&stream, &hello) else { return Ok(None) };
                let Some(theirs) = read_line::<Hello>(&mut lines) else { return Ok(None) };
                let recipient = connect(&theirs)?;
                (theirs, recipient)
            }
            Role::Server => {
                let Some(theirs) = read_line::<Hello>(&mut lines) else { return Ok(None) };
                hello.session = theirs.session;
                let mut readable = vec![0; READABLE];
                message::fill_body(theirs.session, 0, &mut readable);
                memory.write(WORDS, &readable)?;
                let recipient = connect(&theirs)?;
                let Some(()) = write_line(&stream, &hello) else { return Ok(None) };
                (theirs, recipient)
            }
        };
        stream.set_nonblocking(true)?;
        Ok(Some(Session {
            station,
            id: theirs.session,
            rc,
            uc,
            ud,
            recipient,
            completions,
            domain,
            memory,
            remote: theirs.memory,
            stream,
            gone: None,
            worked: Instant::now(),
            spare: Vec::new(),
            received: VecDeque::new(),
        }))
    }

    /// The next completion, if the peer isn't gone.
    fn next(&mut self) -> Result<Option<Completion>> {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.received.pop_front() {
                return match completion.outcome() {
                    Ok(_) => Ok(Some(completion)),
                    Err(failure) => Err(Broken(failure.status).into()),
                };
            }
            if self.is_gone() {
                return Ok(None);
            }
            ensure!(
                start.elapsed() < ROUND_TIMEOUT,
                "no completion arrived for {ROUND_TIMEOUT:?}, and the peer is running"
            );
            let mut received = Vec::new();
            self.completions.poll_timeout(&mut received, Duration::from_millis(20))?;
            if received.iter().any(Completion::is_ok) {
                self.worked = Instant::now();
            }
            self.received.extend(received);
        }
    }

    /// Whether the peer was killed: then its end of the TCP connection was closed.
    fn is_gone(&mut self) -> bool {
        if self.gone.is_none() {
            let is_there = match self.stream.peek(&mut [0]) {
                Ok(count) => count > 0,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            };
            self.gone = (!is_there).then(Instant::now);
        }
        self.gone.is_some()
    }

    /// Waits until a request says that the peer is gone, and looks whether it did so in time.
    fn lost(&mut self, mut failed: Option<Status>) -> Result<Ended> {
        let start = Instant::now();
        while !self.is_gone() {
            ensure!(
                start.elapsed() < SLACK,
                "a request failed ({failed:?}), and the peer is running; the last progress was {:?} earlier",
                start - self.worked
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let gone = self.gone.unwrap_or(start);
        let mut longest = Duration::ZERO;
        while failed.is_none() {
            // What was under way may have been done before the peer was killed: then there must be another.
            if self.rc.outstanding_send_count() == 0 {
                let probe = self.message(PROBE, HEAD)?;
                self.rc.post_send(SendRequest::send(probe).tag(PROBE))?;
            }
            let mut received = Vec::new();
            let start = Instant::now();
            self.completions.poll_timeout(&mut received, Duration::from_millis(20))?;
            longest = longest.max(start.elapsed());
            failed = received
                .iter()
                .find_map(|completion| completion.outcome().err())
                .map(|failure| failure.status);
            let (elapsed, outstanding) = (gone.elapsed(), self.rc.outstanding_send_count());
            // A process that isn't run can't look.
            ensure!(
                elapsed < RETRY_BOUND + SLACK + longest,
                "{elapsed:?} after the peer was killed: {failed:?}, and {outstanding} requests are outstanding; a poll took \
                 at most {longest:?}, of 20 ms"
            );
        }
        ensure!(failed == Some(Status::RetryExceeded), "the first failed request has status {failed:?}");
        Ok(Ended::Lost(gone.elapsed()))
    }

    /// Gets back all that was posted.
    fn end(self) -> Result<()> {
        for queue_pair in [&self.rc, &self.uc, &self.ud] {
            queue_pair.move_to_error()?;
            queue_pair.drain(ROUND_TIMEOUT)?;
            let left = (queue_pair.outstanding_send_count(), queue_pair.outstanding_recv_count());
            ensure!(left == (0, 0), "requests that never completed: {left:?}");
        }
        Ok(())
    }

    /// A buffer of so many bytes.
    fn buffer(&mut self, length: usize) -> Result<Buffer> {
        let mut buffer = match self.spare.pop() {
            Some(buffer) => buffer,
            None => self.domain.buffer(MAX_MESSAGE_LEN)?,
        };
        buffer.set_range(0..length)?;
        Ok(buffer)
    }

    /// A message, filled in.
    fn message(&mut self, number: u64, length: usize) -> Result<Buffer> {
        let mut buffer = self.buffer(length)?;
        message::fill(self.id, number, &mut buffer);
        Ok(buffer)
    }

    /// Words for the other end, as a message.
    fn words(&mut self, words: &impl Serialize) -> Result<Buffer> {
        let text = serde_json::to_vec(words)?;
        let mut buffer = self.buffer(text.len())?;
        buffer.copy_from_slice(&text);
        Ok(buffer)
    }

    /// Takes a buffer that is used no more.
    fn spare(&mut self, mut buffer: Buffer) {
        buffer.reset_range();
        self.spare.push(buffer);
    }

    /// Has a receive posted again.
    fn repost_receive(&mut self, tag: u64, mut buffer: Buffer) -> Result<()> {
        let queue_pair = match tag {
            RC => &self.rc,
            UC => &self.uc,
            _ => &self.ud,
        };
        buffer.reset_range();
        queue_pair.post_recv(RecvRequest::new(buffer).tag(tag))?;
        Ok(())
    }

    /// What was written to a place of ours.
    fn written(&self, place: usize) -> Result<Vec<u8>> {
        let mut head = [0; HEAD];
        self.memory.read(place, &mut head)?;
        let mut bytes = vec![0; message::length(&head).clamp(HEAD, MAX_MESSAGE_LEN)];
        self.memory.read(place, &mut bytes)?;
        Ok(bytes)
    }
}

/// The end that posts requests.
struct Client {
    random: Random,
    /// The number of the next request.
    number: u64,
    /// What the server's words are.
    words: [u64; 2],
    window: Option<RemoteMemory>,
    /// Where the next is written that isn't acknowledged.
    next_slot: usize,
    unreliable_came: u64,
}

impl Client {
    fn new(seed: u64) -> Client {
        Client {
            random: Random(seed),
            number: FIRST_NUMBER,
            words: [0; 2],
            window: None,
            next_slot: 0,
            unreliable_came: 0,
        }
    }

    fn run(mut self, session: &mut Session<'_>, peer: u8) -> Result<Ended> {
        loop {
            let last = session.station.stopping.load(std::sync::atomic::Ordering::Relaxed);
            if !self.round(session, peer, last)? {
                return session.lost(None);
            }
            if last {
                return Ok(Ended::Well);
            }
        }
    }

    /// A round; says whether the peer is still there.
    fn round(&mut self, session: &mut Session<'_>, peer: u8, last: bool) -> Result<bool> {
        let mut expected = HashMap::new();
        let mut end = RoundEnd { sent: Vec::new(), written: Vec::new(), last };
        let mut bytes = 0;
        for _ in 0..1 + self.random.below(12) {
            bytes += self.reliable(session, &mut expected, &mut end)?;
        }
        let unreliable = self.random.below(8);
        for _ in 0..unreliable {
            bytes += self.unreliable(session)?;
        }
        let operations = expected.len() as u64;
        let words = session.words(&end)?;
        let number = self.take_number();
        expected.insert(number, Expected::Done);
        session.rc.post_send(SendRequest::send(words).tag(number))?;
        let mut reply = None;
        // All that is reliable is done when the answer is there; what isn't, when it says so.
        while !expected.is_empty() || reply.is_none() {
            let Some(completion) = session.next()? else { return Ok(false) };
            let tag = completion.tag();
            if tag == RC {
                let buffer = completion.into_message()?;
                let received: RoundReply = serde_json::from_slice(&buffer).context("the server's words")?;
                reply = Some(received);
                session.repost_receive(RC, buffer)?;
                continue;
            }
            let buffer = completion.into_buffer().context("every request has a buffer")?;
            match expected.remove(&tag) {
                // What isn't reliable isn't waited for.
                None | Some(Expected::Done) => {}
                Some(Expected::Bytes(offset)) => {
                    let mut readable = vec![0; READABLE];
                    message::fill_body(session.id, 0, &mut readable);
                    ensure!(*buffer == readable[offset..][..buffer.len()], "the read bytes are wrong");
                }
                Some(Expected::Word(word)) => {
                    let received = u64::from_ne_bytes(buffer[..].try_into()?);
                    ensure!(received == word, "an atomic returned {received:#x} instead of {word:#x}");
                }
            }
            session.spare(buffer);
        }
        let Some(RoundReply { unreliable: received, window }) = reply else { return Ok(true) };
        self.window = window;
        let mut report = session.station.report.lock().expect("no thread panics");
        report.rounds += 1;
        report.operations += operations;
        report.bytes += bytes;
        report.unreliable_sent += unreliable;
        report.unreliable_received += received - self.unreliable_came;
        *report.with.entry(peer).or_default() += 1;
        self.unreliable_came = received;
        Ok(true)
    }

    /// Posts a reliable request, and says how many bytes it moves.
    fn reliable(
        &mut self,
        session: &mut Session<'_>,
        expected: &mut HashMap<u64, Expected>,
        end: &mut RoundEnd,
    ) -> Result<u64> {
        let (number, length) = (self.take_number(), self.length(MAX_MESSAGE_LEN));
        let mut expect = Expected::Done;
        let request = match self.random.below(9) {
            0 => {
                end.sent.push(number);
                SendRequest::send(session.message(number, length)?)
            }
            1 => {
                end.sent.push(number);
                SendRequest::send_with_imm(session.message(number, length)?, number as u32)
            }
            kind @ 2..4 => {
                let slot = end.written.len();
                let place = SLOTS + slot * MAX_MESSAGE_LEN;
                end.written.push((slot, number));
                let (buffer, remote) = (session.message(number, length)?, session.remote.at(place as u64));
                match kind {
                    2 => SendRequest::write(buffer, remote),
                    _ => SendRequest::write_with_imm(buffer, remote, slot as u32),
                }
            }
            4 if self.window.is_some() => {
                // Writes through the window, and then takes it from us.
                let window = self.window.take().context("looked for")?;
                let write = SendRequest::write(session.message(number, length)?, window.at(0)).tag(number);
                session.rc.post_send(write)?;
                expected.insert(number, Expected::Done);
                let number = self.take_number();
                end.sent.push(number);
                let send = SendRequest::send_invalidate(session.message(number, HEAD)?, window.rkey);
                session.rc.post_send(send.tag(number))?;
                expected.insert(number, Expected::Done);
                return Ok((length + HEAD) as u64);
            }
            4..6 => {
                let offset = self.random.below((READABLE - length) as u64) as usize;
                expect = Expected::Bytes(offset);
                SendRequest::read(session.buffer(length)?, session.remote.at((WORDS + offset) as u64))
            }
            6..8 => {
                let add = self.random.next();
                expect = Expected::Word(self.words[0]);
                self.words[0] = self.words[0].wrapping_add(add);
                SendRequest::fetch_add(session.buffer(8)?, session.remote.at(0), add)
            }
            _ => {
                let (old, swap) = (self.words[1], self.random.next());
                // One in four expects something else, and changes nothing.
                let compare = if self.random.below(4) == 0 { !old } else { old };
                expect = Expected::Word(old);
                self.words[1] = if compare == old { swap } else { old };
                SendRequest::compare_swap(session.buffer(8)?, session.remote.at(8), compare, swap)
            }
        };
        let moved = if matches!(expect, Expected::Word(_)) { 8 } else { length as u64 };
        expected.insert(number, expect);
        session.rc.post_send(request.tag(number))?;
        Ok(moved)
    }

    /// Posts a request without acknowledgement.
    fn unreliable(&mut self, session: &mut Session<'_>) -> Result<u64> {
        let number = self.take_number();
        match self.random.below(3) {
            0 => {
                let message = session.message(number, self.length(MAX_MESSAGE_LEN))?;
                let length = message.len();
                session.uc.post_send(SendRequest::send(message).tag(number))?;
                Ok(length as u64)
            }
            1 => {
                let message = session.message(number, self.length(MAX_MESSAGE_LEN))?;
                let length = message.len();
                // Not where one of the last rounds wrote that may not have been looked at.
                let slot = RELIABLE_SLOTS + self.next_slot % UNRELIABLE_SLOTS;
                self.next_slot += 1;
                let place = session.remote.at((SLOTS + slot * MAX_MESSAGE_LEN) as u64);
                let write = SendRequest::write_with_imm(message, place, (number as u32) << 8 | slot as u32);
                session.uc.post_send(write.tag(number))?;
                Ok(length as u64)
            }
            _ => {
                let message = session.message(number, self.length(4000))?;
                let length = message.len();
                session
                    .ud
                    .post_send(SendRequest::send(message).destination(&session.recipient).tag(number))?;
                Ok(length as u64)
            }
        }
    }

    fn take_number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    /// The length of a message: short ones are as frequent as long ones.
    fn length(&mut self, most: usize) -> usize {
        let most = if self.random.below(2) == 0 { 256 } else { most };
        HEAD + self.random.below((most - HEAD) as u64) as usize
    }
}

/// The end that looks at what comes.
#[derive(Default)]
struct Server {
    /// The numbers of messages that came in this round.
    received: Vec<u64>,
    /// Those that came last without acknowledgement: a datagram may come twice.
    recent: VecDeque<u64>,
    unreliable: u64,
    window: Option<MemoryWindow>,
    /// Whether the last round has ended.
    is_last: bool,
}

impl Server {
    fn run(mut self, session: &mut Session<'_>) -> Result<Ended> {
        loop {
            let completion = match session.next() {
                Ok(Some(completion)) => completion,
                // The client has all that it wanted, and may be gone before we know.
                Ok(None) | Err(_) if self.is_last => return Ok(Ended::Well),
                Ok(None) => return session.lost(None),
                Err(error) => return Err(error),
            };
            match completion.tag() {
                RC => self.reliable(session, completion)?,
                tag @ (UC | UD) => self.unreliable(session, completion, tag)?,
                BIND => {
                    self.window = completion.into_window();
                    self.send_reply(session)?;
                }
                _ => {
                    let buffer = completion.into_buffer().context("every request has a buffer")?;
                    session.spare(buffer);
                    if self.is_last {
                        return Ok(Ended::Well);
                    }
                }
            }
        }
    }

    /// Looks at a message.
    fn reliable(&mut self, session: &mut Session<'_>, completion: Completion) -> Result<()> {
        let operation = completion.result()?.operation;
        let (immediate, invalidated) = match operation {
            CompletedOperation::RecvWrite { immediate } => {
                // What was written there is looked at when the round ends; now it must be something whole.
                let bytes = session.written(SLOTS + immediate as usize * MAX_MESSAGE_LEN)?;
                message::check(session.id, message::number(&bytes)?, &bytes)?;
                let buffer = completion.into_buffer().context("every receive has a buffer")?;
                return session.repost_receive(RC, buffer);
            }
            CompletedOperation::Recv { immediate, invalidated, .. } => (immediate, invalidated),
            operation => bail!("a receive was {operation:?}"),
        };
        let buffer = completion.into_message()?;
        if let Ok(end) = serde_json::from_slice::<RoundEnd>(&buffer) {
            session.repost_receive(RC, buffer)?;
            self.check(session, &end)?;
            self.is_last = end.last;
            if self.window.as_ref().is_some_and(MemoryWindow::is_bound) {
                return self.send_reply(session);
            }
            // Answered when the window is bound.
            let window = match self.window.take() {
                Some(window) => window,
                None => session.domain.memory_window()?,
            };
            let shown = session.memory.slice(WINDOW..WINDOW + MAX_MESSAGE_LEN)?;
            session.rc.post_send(SendRequest::bind(window, shown, Access::REMOTE_WRITE).tag(BIND))?;
            return Ok(());
        }
        let number = message::number(&buffer)?;
        message::check(session.id, number, &buffer)?;
        ensure!(immediate.is_none_or(|immediate| immediate == number as u32), "wrong immediate data");
        self.received.push(number);
        if invalidated.is_some() {
            let bytes = session.written(WINDOW)?;
            message::check(session.id, number - 1, &bytes).context("through a window")?;
        }
        session.repost_receive(RC, buffer)
    }

    /// Looks whether all came that was sent in a round, once and in order.
    fn check(&mut self, session: &Session<'_>, end: &RoundEnd) -> Result<()> {
        let received = std::mem::take(&mut self.received);
        ensure!(received == end.sent, "messages {:?} were sent, but {received:?} arrived", end.sent);
        for &(slot, number) in &end.written {
            let bytes = session.written(SLOTS + slot * MAX_MESSAGE_LEN)?;
            message::check(session.id, number, &bytes).with_context(|| format!("written to slot {slot}"))?;
        }
        Ok(())
    }

    fn send_reply(&mut self, session: &mut Session<'_>) -> Result<()> {
        let window = self.window.as_ref().and_then(MemoryWindow::remote);
        let words = session.words(&RoundReply { unreliable: self.unreliable, window })?;
        session.rc.post_send(SendRequest::send(words))?;
        Ok(())
    }

    /// Looks at a message that might as well not have come.
    fn unreliable(&mut self, session: &mut Session<'_>, completion: Completion, tag: u64) -> Result<()> {
        let operation = completion.result()?.operation;
        let number = if let CompletedOperation::RecvWrite { immediate } = operation {
            let slot = (immediate & 0xff) as usize;
            let bytes = session.written(SLOTS + slot * MAX_MESSAGE_LEN)?;
            let number = message::number(&bytes)?;
            message::check(session.id, number, &bytes).context("written without acknowledgement")?;
            ensure!(
                (number as u32) << 8 == immediate & !0xff,
                "slot {slot} has {number}, not {immediate:#x}"
            );
            let buffer = completion.into_buffer().context("every receive has a buffer")?;
            session.repost_receive(tag, buffer)?;
            number
        } else {
            let buffer = match tag {
                UC => completion.into_message()?,
                _ => completion.into_datagram()?.message,
            };
            let number = message::number(&buffer)?;
            message::check(session.id, number, &buffer).context("sent without acknowledgement")?;
            session.repost_receive(tag, buffer)?;
            number
        };
        if !self.recent.contains(&number) {
            self.recent.push_back(number);
            self.unreliable += 1;
            if self.recent.len() > 64 {
                self.recent.pop_front();
            }
        }
        Ok(())
    }
}

/// Says something; `None` if nobody is there.
fn write_line(mut stream: &TcpStream, words: &impl Serialize) -> Option<()> {
    let mut line = serde_json::to_string(words).ok()?;
    line.push('\n');
    stream.write_all(line.as_bytes()).ok()
}

/// Hears something; `None` if nobody is there.
fn read_line<T: DeserializeOwned>(lines: &mut impl BufRead) -> Option<T> {
    let mut line = String::new();
    lines.read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}
