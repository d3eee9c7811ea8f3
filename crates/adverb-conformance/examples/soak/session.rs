//! A session of two processes: one posts requests of all kinds in rounds, and the other checks the results.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use adverb::memory::{Buffer, MemoryRegion, RemoteMemory};
use adverb::verbs::{
    Access, CompletedOperation, Completion, CompletionQueue, ConnectOptions, Endpoint, MemoryWindow,
    ProtectionDomain, QueuePair, RecvRequest, SendRequest, Status, Transport, UdDestination,
};
use adverb_wire::random::SplitMix64;
use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::message::{self, HEADER_LEN};
use crate::worker::Worker;

/// The role of one end of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Posts requests.
    Client { peer: u8, seed: u64 },
    /// Checks the received messages.
    Server,
}

/// The end of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    /// Both ends have finished, or the session never began.
    Finished,
    /// The peer was killed, and a request failed after this time.
    Lost(Duration),
}

/// The acknowledgement timeout as a code: 537 ms.
const TIMEOUT: u8 = 17;
const RETRIES: u8 = 7;

/// The maximum time after which a request to a dead peer fails, by the rules of the transport.
pub(crate) const RETRY_BOUND: Duration = Duration::from_nanos(4096 * (1 << TIMEOUT) * (RETRIES as u64 + 1));

/// The additional time on a busy machine, for running the process and for detecting that the peer is dead.
pub(crate) const SLACK: Duration = Duration::from_millis(700);

/// The additional time if the machine doesn't run the process for a while, which is rare.
pub(crate) const MAX_SLACK: Duration = Duration::from_secs(10);

/// The maximum time of a round while the peer is running.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum message length.
const MAX_MESSAGE_LEN: usize = 16 << 10;

/// The layout of the server's memory: two words, bytes for READs, and slots for WRITEs.
const WORDS: usize = 4096;
const READABLE: usize = 64 << 10;
const SLOTS: usize = WORDS + READABLE;
const RELIABLE_SLOTS: usize = 16;
const UNRELIABLE_SLOTS: usize = 32;
const WINDOW: usize = SLOTS + (RELIABLE_SLOTS + UNRELIABLE_SLOTS) * MAX_MESSAGE_LEN;
const MEMORY_LEN: usize = WINDOW + MAX_MESSAGE_LEN;

const QKEY: u32 = 0x5eed;
const RECEIVES: usize = 48;

/// The tags of completions of receives and of some requests. Other requests are tagged with their numbers.
const RC: u64 = 1;
const UC: u64 = 2;
const UD: u64 = 3;
const BIND: u64 = 4;
const PROBE: u64 = 5;
const FIRST_NUMBER: u64 = 100;

/// The first line that peers exchange.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    session: u64,
    rc: Endpoint,
    uc: Endpoint,
    ud: Endpoint,
    memory: RemoteMemory,
}

/// The client's message at the end of a round.
#[derive(Debug, Serialize, Deserialize)]
struct RoundEnd {
    /// The numbers of all messages that were sent, in order.
    sent: Vec<u64>,
    /// The numbers of the WRITEs, with their offsets.
    written: Vec<(usize, u64)>,
    /// Whether this was the last round.
    last: bool,
}

/// The server's reply.
#[derive(Debug, Serialize, Deserialize)]
struct RoundReply {
    /// The number of unacknowledged messages and datagrams that arrived.
    unreliable: u64,
    window: Option<RemoteMemory>,
}

/// The expected result of a request.
#[derive(Debug)]
enum Expected {
    /// Success, without data.
    Done,
    /// The bytes at this offset of the server's memory.
    Bytes(usize),
    /// The value of a word.
    Word(u64),
}

/// One end of a session.
struct Session<'a> {
    worker: &'a Worker,
    id: u64,
    rc: QueuePair,
    uc: QueuePair,
    ud: QueuePair,
    destination: UdDestination,
    completions: CompletionQueue,
    domain: ProtectionDomain,
    memory: MemoryRegion,
    remote: RemoteMemory,
    stream: TcpStream,
    /// The time at which the death of the peer was detected.
    peer_died_at: Option<Instant>,
    /// The time of the last completion.
    last_progress_at: Instant,
    reuse: Vec<Buffer>,
    received: VecDeque<Completion>,
}

/// The failure of a request, which is expected if the peer is dead.
#[derive(Debug)]
struct RequestFailed(Status);

impl std::fmt::Display for RequestFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a request failed: {}", self.0)
    }
}

impl std::error::Error for RequestFailed {}

/// Runs a session.
pub(crate) fn run(worker: &Worker, stream: TcpStream, role: Role) -> Result<Ended> {
    let Some(mut session) = Session::begin(worker, stream, role)? else { return Ok(Ended::Finished) };
    let last_progress_at = match role {
        Role::Client { peer, seed } => Client::new(seed).run(&mut session, peer),
        Role::Server => Server::default().run(&mut session),
    };
    let ended = match last_progress_at {
        Ok(ended) => ended,
        Err(error) => match error.downcast_ref::<RequestFailed>() {
            Some(RequestFailed(status)) => session.lost(Some(*status))?,
            None => return Err(error),
        },
    };
    session.end()?;
    Ok(ended)
}

impl<'a> Session<'a> {
    /// Creates queue pairs, and connects them to the peer's. Returns `None` if the peer is dead already.
    fn begin(worker: &'a Worker, stream: TcpStream, role: Role) -> Result<Option<Session<'a>>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let domain = worker.device.create_protection_domain()?;
        let completions = worker.device.completion_queue(1024).events().create()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let access = access | Access::REMOTE_ATOMIC | Access::WINDOW_BIND;
        let memory = domain.allocate_region(MEMORY_LEN, access)?;
        let queue_pair = |transport| {
            let builder = domain.queue_pair(transport).completion_queue(&completions);
            builder.depth(64, RECEIVES as u32).access(access).qkey(QKEY).create()
        };
        let [rc, uc, ud] = [Transport::Rc, Transport::Uc, Transport::Ud].map(queue_pair);
        let (rc, uc, ud) = (rc?, uc?, ud?);
        ud.move_to_rts()?;
        for (queue_pair, tag) in [(&rc, RC), (&uc, UC), (&ud, UD)] {
            for _ in 0..RECEIVES {
                queue_pair.post_recv(RecvRequest::new(domain.allocate_buffer(MAX_MESSAGE_LEN)?).tag(tag))?;
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
        // The server is ready to receive before it sends its hello, because the client sends at once.
        let options = ConnectOptions::new().ack_timeout(TIMEOUT).retry_count(RETRIES);
        let connect = |peer_hello: &Hello| -> Result<UdDestination> {
            rc.connect_with(&peer_hello.rc, &options)?;
            uc.connect_with(&peer_hello.uc, &options)?;
            Ok(ud.create_ud_destination(&peer_hello.ud, QKEY)?)
        };
        let mut lines = BufReader::new(&stream);
        let (peer_hello, destination) = match role {
            Role::Client { .. } => {
                let Some(()) = write_line(&stream, &hello) else { return Ok(None) };
                let Some(peer_hello) = read_line::<Hello>(&mut lines) else { return Ok(None) };
                let destination = connect(&peer_hello)?;
                (peer_hello, destination)
            }
            Role::Server => {
                let Some(peer_hello) = read_line::<Hello>(&mut lines) else { return Ok(None) };
                hello.session = peer_hello.session;
                let mut readable = vec![0; READABLE];
                message::fill_body(peer_hello.session, 0, &mut readable);
                memory.write(WORDS, &readable)?;
                let destination = connect(&peer_hello)?;
                let Some(()) = write_line(&stream, &hello) else { return Ok(None) };
                (peer_hello, destination)
            }
        };
        stream.set_nonblocking(true)?;
        Ok(Some(Session {
            worker,
            id: peer_hello.session,
            rc,
            uc,
            ud,
            destination,
            completions,
            domain,
            memory,
            remote: peer_hello.memory,
            stream,
            peer_died_at: None,
            last_progress_at: Instant::now(),
            reuse: Vec::new(),
            received: VecDeque::new(),
        }))
    }

    /// Returns the next completion, or `None` if the peer is dead.
    fn next(&mut self) -> Result<Option<Completion>> {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.received.pop_front() {
                return match completion.outcome() {
                    Ok(_) => Ok(Some(completion)),
                    Err(failure) => Err(RequestFailed(failure.status).into()),
                };
            }
            if self.detect_peer_death() {
                return Ok(None);
            }
            ensure!(
                start.elapsed() < ROUND_TIMEOUT,
                "no completion arrived for {ROUND_TIMEOUT:?}, and the peer is running"
            );
            let mut received = Vec::new();
            self.completions.poll_timeout(&mut received, Duration::from_millis(20))?;
            if received.iter().any(Completion::is_ok) {
                self.last_progress_at = Instant::now();
            }
            self.received.extend(received);
        }
    }

    /// Detects whether the peer was killed: then its end of the TCP connection was closed.
    fn detect_peer_death(&mut self) -> bool {
        if self.peer_died_at.is_none() {
            let is_open = match self.stream.peek(&mut [0]) {
                Ok(count) => count > 0,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            };
            self.peer_died_at = (!is_open).then(Instant::now);
        }
        self.peer_died_at.is_some()
    }

    /// Waits until a request fails because the peer is dead, and checks the time.
    fn lost(&mut self, mut failed: Option<Status>) -> Result<Ended> {
        let start = Instant::now();
        while !self.detect_peer_death() {
            ensure!(
                start.elapsed() < SLACK,
                "a request failed ({failed:?}), and the peer is running; the last progress was {:?} earlier",
                start - self.last_progress_at
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let peer_died_at = self.peer_died_at.unwrap_or(start);
        let mut longest = Duration::ZERO;
        while failed.is_none() {
            // The outstanding requests may have completed before the peer was killed. In that case, another one is
            // needed.
            if self.rc.outstanding_send_count() == 0 {
                let probe = self.message(PROBE, HEADER_LEN)?;
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
            let (elapsed, outstanding) = (peer_died_at.elapsed(), self.rc.outstanding_send_count());
            // A process that isn't scheduled can't detect the failure.
            ensure!(
                elapsed < RETRY_BOUND + MAX_SLACK + longest,
                "{elapsed:?} after the peer was killed: {failed:?}, and {outstanding} requests are outstanding; a poll took \
                 at most {longest:?}, of 20 ms"
            );
        }
        ensure!(failed == Some(Status::RetryExceeded), "the first failed request has status {failed:?}");
        Ok(Ended::Lost(peer_died_at.elapsed()))
    }

    /// Ends the session, and checks that all posted requests have completed.
    fn end(self) -> Result<()> {
        for queue_pair in [&self.rc, &self.uc, &self.ud] {
            queue_pair.move_to_error()?;
            queue_pair.drain(ROUND_TIMEOUT)?;
            let left = (queue_pair.outstanding_send_count(), queue_pair.outstanding_recv_count());
            ensure!(left == (0, 0), "requests that never completed: {left:?}");
        }
        Ok(())
    }

    /// Returns a buffer of `length` bytes.
    fn buffer(&mut self, length: usize) -> Result<Buffer> {
        let mut buffer = match self.reuse.pop() {
            Some(buffer) => buffer,
            None => self.domain.allocate_buffer(MAX_MESSAGE_LEN)?,
        };
        buffer.set_range(0..length)?;
        Ok(buffer)
    }

    /// Returns a buffer with a message.
    fn message(&mut self, number: u64, length: usize) -> Result<Buffer> {
        let mut buffer = self.buffer(length)?;
        message::fill(self.id, number, &mut buffer);
        Ok(buffer)
    }

    /// Returns a message with a serialized value.
    fn serialize(&mut self, value: &impl Serialize) -> Result<Buffer> {
        let text = serde_json::to_vec(value)?;
        let mut buffer = self.buffer(text.len())?;
        buffer.copy_from_slice(&text);
        Ok(buffer)
    }

    /// Keeps a buffer for later requests.
    fn reuse(&mut self, mut buffer: Buffer) {
        buffer.reset_range();
        self.reuse.push(buffer);
    }

    /// Posts a receive with the same buffer.
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

    /// Returns the bytes that the peer wrote at an offset.
    fn written(&self, place: usize) -> Result<Vec<u8>> {
        let mut head = [0; HEADER_LEN];
        self.memory.read(place, &mut head)?;
        let mut bytes = vec![0; message::length(&head).clamp(HEADER_LEN, MAX_MESSAGE_LEN)];
        self.memory.read(place, &mut bytes)?;
        Ok(bytes)
    }
}

/// The end that posts requests.
struct Client {
    random: SplitMix64,
    /// The number of the next request.
    number: u64,
    /// The values of the server's words.
    words: [u64; 2],
    window: Option<RemoteMemory>,
    /// The slot of the next unacknowledged WRITE.
    next_slot: usize,
    unreliable_received: u64,
}

impl Client {
    fn new(seed: u64) -> Client {
        Client {
            random: SplitMix64(seed),
            number: FIRST_NUMBER,
            words: [0; 2],
            window: None,
            next_slot: 0,
            unreliable_received: 0,
        }
    }

    fn run(mut self, session: &mut Session<'_>, peer: u8) -> Result<Ended> {
        loop {
            let last = session.worker.is_stopping.load(std::sync::atomic::Ordering::Relaxed);
            if !self.round(session, peer, last)? {
                return session.lost(None);
            }
            if last {
                return Ok(Ended::Finished);
            }
        }
    }

    /// Runs a round. Returns whether the peer is running.
    fn round(&mut self, session: &mut Session<'_>, peer: u8, last: bool) -> Result<bool> {
        let mut expected = HashMap::new();
        let mut end = RoundEnd { sent: Vec::new(), written: Vec::new(), last };
        let mut bytes = 0;
        for _ in 0..1 + self.random.below(12) {
            bytes += self.post_reliable(session, &mut expected, &mut end)?;
        }
        let unreliable = self.random.below(8);
        for _ in 0..unreliable {
            bytes += self.post_unreliable(session)?;
        }
        let operations = expected.len() as u64;
        let message = session.serialize(&end)?;
        let number = self.take_number();
        expected.insert(number, Expected::Done);
        session.rc.post_send(SendRequest::send(message).tag(number))?;
        let mut reply = None;
        // The server's reply follows all reliable requests, and contains the counts of the unreliable ones.
        while !expected.is_empty() || reply.is_none() {
            let Some(completion) = session.next()? else { return Ok(false) };
            let tag = completion.tag();
            if tag == RC {
                let buffer = completion.into_message()?;
                let received: RoundReply = serde_json::from_slice(&buffer).context("the server's reply")?;
                reply = Some(received);
                session.repost_receive(RC, buffer)?;
                continue;
            }
            let buffer = completion.into_buffer().context("every request has a buffer")?;
            match expected.remove(&tag) {
                // Unreliable requests may be lost.
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
            session.reuse(buffer);
        }
        let Some(RoundReply { unreliable: received, window }) = reply else { return Ok(true) };
        self.window = window;
        let mut report = session.worker.report.lock().expect("no thread panics");
        report.rounds += 1;
        report.operations += operations;
        report.bytes += bytes;
        report.unreliable_sent += unreliable;
        report.unreliable_received += received - self.unreliable_received;
        *report.rounds_by_peer.entry(peer).or_default() += 1;
        self.unreliable_received = received;
        Ok(true)
    }

    /// Posts a reliable request, and returns its number of bytes.
    fn post_reliable(
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
                // Write through the window, and then invalidate it.
                let window = self.window.take().context("checked above")?;
                let write = SendRequest::write(session.message(number, length)?, window.at(0)).tag(number);
                session.rc.post_send(write)?;
                expected.insert(number, Expected::Done);
                let number = self.take_number();
                end.sent.push(number);
                let send = SendRequest::send_invalidate(session.message(number, HEADER_LEN)?, window.rkey);
                session.rc.post_send(send.tag(number))?;
                expected.insert(number, Expected::Done);
                return Ok((length + HEADER_LEN) as u64);
            }
            4..6 => {
                let offset = self.random.below((READABLE - length) as u64) as usize;
                expect = Expected::Bytes(offset);
                SendRequest::read(session.buffer(length)?, session.remote.at((WORDS + offset) as u64))
            }
            6..8 => {
                let add = self.random.next_u64();
                expect = Expected::Word(self.words[0]);
                self.words[0] = self.words[0].wrapping_add(add);
                SendRequest::fetch_add(session.buffer(8)?, session.remote.at(0), add)
            }
            _ => {
                let (old, swap) = (self.words[1], self.random.next_u64());
                // One in four compares with another value, and changes nothing.
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
    fn post_unreliable(&mut self, session: &mut Session<'_>) -> Result<u64> {
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
                // The server may not have checked the slots of the last rounds, so the slots are used in turn.
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
                    .post_send(SendRequest::send(message).destination(&session.destination).tag(number))?;
                Ok(length as u64)
            }
        }
    }

    fn take_number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    /// Returns the length of a message. Short lengths are as frequent as long ones.
    fn length(&mut self, max: usize) -> usize {
        let max = if self.random.below(2) == 0 { 256 } else { max };
        HEADER_LEN + self.random.below((max - HEADER_LEN) as u64) as usize
    }
}

/// The side that checks messages.
#[derive(Default)]
struct Server {
    /// The numbers of the messages that arrived in this round.
    received: Vec<u64>,
    /// The numbers of the last unacknowledged messages, because a datagram may be duplicated.
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
                // The client is finished, and may have exited.
                Ok(None) | Err(_) if self.is_last => return Ok(Ended::Finished),
                Ok(None) => return session.lost(None),
                Err(error) => return Err(error),
            };
            match completion.tag() {
                RC => self.check_reliable(session, completion)?,
                tag @ (UC | UD) => self.check_unreliable(session, completion, tag)?,
                BIND => {
                    self.window = completion.into_window();
                    self.send_reply(session)?;
                }
                _ => {
                    let buffer = completion.into_buffer().context("every request has a buffer")?;
                    session.reuse(buffer);
                    if self.is_last {
                        return Ok(Ended::Finished);
                    }
                }
            }
        }
    }

    /// Checks a message.
    fn check_reliable(&mut self, session: &mut Session<'_>, completion: Completion) -> Result<()> {
        let operation = completion.result()?.operation;
        let (immediate, invalidated) = match operation {
            CompletedOperation::RecvWrite { immediate } => {
                // The bytes are compared at the end of the round. Here they must form a complete message.
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
            // The reply is sent after the window is bound.
            let window = match self.window.take() {
                Some(window) => window,
                None => session.domain.create_memory_window()?,
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
            message::check(session.id, number - 1, &bytes).context("written through a window")?;
        }
        session.repost_receive(RC, buffer)
    }

    /// Checks that all messages of a round arrived once and in order.
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
        let message = session.serialize(&RoundReply { unreliable: self.unreliable, window })?;
        session.rc.post_send(SendRequest::send(message))?;
        Ok(())
    }

    /// Checks a message of an unreliable transport.
    fn check_unreliable(
        &mut self,
        session: &mut Session<'_>,
        completion: Completion,
        tag: u64,
    ) -> Result<()> {
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

/// Writes a line. Returns `None` if the peer has exited.
fn write_line(mut stream: &TcpStream, words: &impl Serialize) -> Option<()> {
    let mut line = serde_json::to_string(words).ok()?;
    line.push('\n');
    stream.write_all(line.as_bytes()).ok()
}

/// Reads a line. Returns `None` if the peer has exited.
fn read_line<T: DeserializeOwned>(lines: &mut impl BufRead) -> Option<T> {
    let mut line = String::new();
    lines.read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}
