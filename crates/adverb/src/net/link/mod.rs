//! The connection itself: the protocol on a queue pair.
//!
//! Nobody works in the background: who calls does what there is to do. [`Link::drive`] takes completions in and posts what
//! has become possible; who has to wait drives whenever there is an event. The peer's device needs nobody here, so that a
//! program that does something else doesn't hold up a peer that reads what it was offered.

mod operation;
mod progress;
mod resume;
mod stream;
#[cfg(all(test, feature = "soft", not(loom)))]
mod tests;

pub(super) use operation::Asked;
pub(super) use resume::UNKNOWN;

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::message::{Message, Outgoing, SendError, Source};
use super::options::Options;
use super::protocol::handshake::HELLO_LEN;
use super::protocol::proof::{Role, SEAL_LEN, Seal};
use super::protocol::{
    ANNOUNCEMENT_LEN, Announced, Frame, FrameKind, HEADER_LEN, Inbound, LONGEST_MESSAGE, OFFER_LEN, OFFERS,
    Outbound, REPORTS, frame_len,
};
use super::session::{Bell, Home};
use crate::error::{Error, Result};
use crate::memory::{MemoryRegion, Pool, RegisteredBuf, RemoteMemory};
use crate::verbs::cm::Hold;
use crate::verbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, ProtectionDomain, QueuePair,
    QueuePairBuilder, RecvRequest, RemoteAddress, SendRequest,
};

/// What becomes a connection when its queue pair is connected.
pub(super) struct Parts {
    completions: CompletionQueue,
    pool: Pool,
    ring: MemoryRegion,
    peer: SocketAddr,
    options: Options,
}

impl Parts {
    /// All that a connection over this device needs, and a queue pair, which `make` begins to make. It has one receive, for the
    /// peer's hello, and gives the peer no rights: that is done when the peer has shown who it is.
    pub(super) fn new(
        device: &Device,
        peer: SocketAddr,
        options: &Options,
        make: impl FnOnce(&ProtectionDomain) -> Result<QueuePairBuilder>,
    ) -> Result<(Parts, QueuePair)> {
        let domain = match &options.pool {
            Some(pool) => pool.protection_domain().clone(),
            None => device.protection_domain()?,
        };
        let pool = options.pool.clone().unwrap_or_else(|| Pool::builder().partitions(1).build(&domain));
        let ring = domain.region(options.ring as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let (sends, recvs) = (send_depth(options.writes), recv_depth(options.writes));
        let completions = device.completion_queue(sends + recvs).events().create()?;
        let queue_pair = make(&domain)?.completion_queue(&completions).depth(sends, recvs);
        let queue_pair = queue_pair.access(Access::LOCAL_WRITE).create()?;
        queue_pair.post_recv(RecvRequest::new(pool.alloc(SEAL_LEN + HELLO_LEN)?).tag(RECEIVE))?;
        Ok((Parts { completions, pool, ring, peer, options: options.clone() }, queue_pair))
    }

    /// How the queue pair is to be connected.
    pub(super) fn connect_options() -> ConnectOptions {
        // Credits see to it that the peer always has a receive: if it hadn't, that would be a fault, and not to be waited for.
        // Acknowledgements have time to come from a software NIC on a busy machine; without any it is two seconds. (Not seven
        // times: rxe takes that for ever, and a peer that is gone would never be noticed.)
        ConnectOptions::new().rnr_retry(0).timeout(16).retry_count(6)
    }
}

/// A connection whose queue pair is connected; it can be used when the peer has said hello.
pub(super) struct Link {
    /// Where the peer was first found.
    peer: SocketAddr,
    role: Role,
    pub(super) options: Options,
    state: Mutex<State>,
    /// Told when something has changed, or nobody waits for events any more.
    pub(super) news: Condvar,
    /// Who makes it again when it breaks, if anybody does; and how tasks hear of that.
    home: OnceLock<Home>,
    pub(super) bell: OnceLock<Bell>,
}

/// What a connection goes over, for now.
pub(super) struct Lane {
    /// Dropped first: then nobody reads what was offered, or writes to the ring.
    queue_pair: QueuePair,
    /// The connection manager's side of it, if that made it.
    hold: Option<Hold>,
    pub(super) completions: CompletionQueue,
    pool: Pool,
    ring: MemoryRegion,
    peer: SocketAddr,
}

pub(super) struct State {
    lane: Arc<Lane>,
    /// What is kept and counted so that the connection can go on over another lane.
    resume: resume::Resume,
    /// The peer's ring, once it has said where, and as long as it can be reached.
    outbound: Option<PeerRing>,
    /// Up to which length messages go through that ring, and which length is the most.
    limits: (usize, u32),
    inbound: Inbound,
    /// What hellos are sealed with, if there is a key.
    seal: Option<Seal>,
    /// Whether to say hello when the peer has.
    owes_hello: bool,
    /// Frames that wait for room in the peer's ring, all in one write.
    batch: Option<Batch>,
    /// How many writes were begun, that in `batch` being the last.
    batches: u64,
    /// What has come and wasn't asked for, oldest first.
    inbox: VecDeque<Entry>,
    /// How many were taken out of it, since the beginning.
    taken: u64,
    /// Which of all that came, from the beginning, are to be read from where they are, and which are being read.
    to_read: VecDeque<u64>,
    reading: VecDeque<u64>,
    /// How many bytes that is.
    buffered: usize,
    /// Our messages that the peer is to read, oldest first: each a right to one buffer.
    offers: VecDeque<Offered>,
    /// What this side exposes: held while the peer may reach it, which is as long as the connection.
    exposed: Vec<Exposed>,
    /// What the peer exposes.
    announced: HashMap<String, Announced>,
    /// What it exposes by address, the latest last.
    addresses: Vec<Announced>,
    /// One-sided operations that somebody waits for, by their numbers.
    operations: HashMap<u64, operation::Operation>,
    next_operation: u64,
    /// How many of the peer's messages were read without the peer knowing.
    reads_to_tell: u32,
    /// Whether to tell the peer what was read, though it can't wait for room.
    owes_credits: bool,
    /// How many receives are to be posted.
    recvs_to_post: u32,
    /// How many bytes a request may have.
    longest_request: usize,
    /// How many requests the send queue has, and how many fit.
    in_flight: u32,
    send_depth: u32,
    /// Whether the last of them asks for no completion, so that nobody hears of it until another does.
    is_unheard: bool,
    /// How many writes were posted that the peer must have when the connection is closed, and how many it has.
    to_deliver: u64,
    delivered: u64,
    /// Whether no more messages are sent, and whether that was said together with that none are taken.
    is_shut: bool,
    is_gone: bool,
    /// Whether the peer knows the latter.
    is_known_gone: bool,
    /// Whether no more messages come, and whether none are taken.
    peer_is_shut: bool,
    peer_is_gone: bool,
    /// Why there is no connection any more.
    end: Option<End>,
    /// Whether anything has changed for those who wait.
    has_news: bool,
    /// How many calls have gone without a look at the device.
    unlooked: u32,
    /// Room for completions.
    pub(super) done: Vec<Completion>,
    pub(super) waiting: super::wait::Waiting,
}

struct PeerRing {
    outbound: Outbound,
    memory: RemoteMemory,
    longest_write: usize,
}

struct Batch {
    buffer: RegisteredBuf,
    len: usize,
    tag: u64,
    /// Whether it goes as soon as there is room; if not, more is to join it.
    is_due: bool,
    /// The number of the first message in it.
    first: u64,
}

/// A message that the peer is to read.
struct Offered {
    number: u64,
    region: MemoryRegion,
    immediate: Option<u32>,
}

/// Memory that the peer may reach.
struct Exposed {
    name: String,
    rights: u8,
    region: MemoryRegion,
}

enum Entry {
    Message(Message),
    /// A message that is to be read.
    Offer {
        len: u32,
        remote: RemoteAddress,
        immediate: Option<u32>,
    },
    /// A message that is being read: what has come of it, and how many parts haven't.
    Reading {
        come: Option<RegisteredBuf>,
        parts: u32,
        immediate: Option<u32>,
    },
}

#[derive(Clone, Debug)]
struct End {
    reason: String,
    hint: &'static str,
}

/// A message that is ready to be sent.
pub(super) struct Ready<'a> {
    body: Body<'a>,
    immediate: Option<u32>,
}

enum Body<'a> {
    Bytes(Outgoing<'a>),
    /// The first `len` bytes of these.
    Pieces {
        len: u32,
        pieces: &'a [IoSlice<'a>],
    },
    /// Somebody's own buffer, or a copy.
    Offer {
        len: u32,
        region: MemoryRegion,
        is_copy: bool,
        /// For what it was made.
        lane: Arc<Lane>,
    },
    Announcement {
        name: String,
        memory: Announced,
        region: MemoryRegion,
    },
    End,
    Gone,
}

/// What requests are of, as their completions repeat it: bits.
const RECEIVE: u64 = 1;
/// What the peer must have when the connection is closed.
const DELIVERED: u64 = 2;
/// What tells the peer that this side is gone.
const GONE: u64 = 4;
/// A one-sided operation; its number is above this bit.
const OPERATION: u64 = 8;

/// How many bytes of messages that are fed go at once: enough that the cost of a write is nothing beside them, and few enough
/// that many fit a ring.
const GATHERED: usize = 16 << 10;

/// How many calls may go without a look at the device. Who has to wait looks anyway.
const UNLOOKED: u32 = 16;

impl State {
    /// Whether it can't be used now, and may be again.
    pub(super) fn is_broken(&self) -> bool {
        self.resume.is_down() && self.end.is_none()
    }

    /// What it goes over now.
    pub(super) fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane)
    }

    /// Has an event made when there is something new.
    pub(super) fn arm(&self) -> Result<()> {
        self.lane.completions.arm(false)
    }
}

impl Link {
    /// A connection, of parts and their queue pair, which is connected. Who asked for it says hello at once.
    pub(super) fn new(
        parts: Parts,
        queue_pair: QueuePair,
        hold: Option<Hold>,
        role: Role,
        seal: Option<Seal>,
    ) -> Link {
        let Parts { completions, pool, ring, peer, options } = parts;
        let longest_request = queue_pair.longest_message() as usize;
        let state = State {
            lane: Arc::new(Lane { queue_pair, hold, completions, pool, ring, peer }),
            resume: resume::Resume::default(),
            outbound: None,
            limits: (0, LONGEST_MESSAGE),
            inbound: Inbound::new(options.ring, options.writes),
            seal,
            owes_hello: true,
            batch: None,
            batches: 0,
            inbox: VecDeque::new(),
            taken: 0,
            to_read: VecDeque::new(),
            reading: VecDeque::new(),
            buffered: 0,
            offers: VecDeque::new(),
            exposed: Vec::new(),
            announced: HashMap::new(),
            addresses: Vec::new(),
            operations: HashMap::new(),
            next_operation: 0,
            reads_to_tell: 0,
            owes_credits: false,
            recvs_to_post: recv_depth(options.writes) - 1,
            longest_request,
            in_flight: 0,
            send_depth: send_depth(options.writes),
            is_unheard: false,
            to_deliver: 0,
            delivered: 0,
            is_shut: false,
            is_gone: false,
            is_known_gone: false,
            peer_is_shut: false,
            peer_is_gone: false,
            end: None,
            has_news: false,
            unlooked: 0,
            done: Vec::with_capacity(64),
            waiting: super::wait::Waiting::default(),
        };
        let link = Link {
            peer,
            role,
            options,
            state: Mutex::new(state),
            news: Condvar::new(),
            home: OnceLock::new(),
            bell: OnceLock::new(),
        };
        if role == Role::Connector {
            link.say_hello(&mut link.lock());
        }
        link
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.lock().lane.peer
    }

    pub(super) fn pool(&self) -> Pool {
        self.lock().lane.pool.clone()
    }

    /// Has it made again when it breaks.
    pub(super) fn settle(&self, home: Home) {
        // It is settled once.
        let _ = self.home.set(home);
    }

    /// Takes the events of its completion queue.
    pub(super) fn take_events(&self) -> Result<()> {
        let lane = self.lane();
        while lane.completions.take_event()? {}
        Ok(())
    }

    /// Whether the connection manager knows that it has ended, if that made it.
    pub(super) fn was_ended_by_manager(&self) -> Result<bool> {
        self.lane().hold.as_ref().map_or(Ok(false), Hold::has_ended)
    }

    /// What it goes over now.
    pub(super) fn lane(&self) -> Arc<Lane> {
        self.lock().lane()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether the peer has said hello.
    pub(super) fn is_established(&self, state: &State) -> Result<Option<()>> {
        if state.resume.is_unknown {
            // The peer is told before this ends.
            if self.role == Role::Listener && state.in_flight > 0 && state.end.is_none() {
                return Ok(None);
            }
            return Err(Error::Refused { peer: self.peer, reason: resume::UNKNOWN.to_owned() });
        }
        match (&state.outbound, &state.end) {
            (Some(_), _) => Ok(Some(())),
            (None, Some(end)) => Err(self.ended(end)),
            (None, None) => Ok(None),
        }
    }

    /// Makes a message ready to be sent: what can be done without the connection.
    pub(super) fn ready<'a>(
        &self,
        message: Outgoing<'a>,
        immediate: Option<u32>,
    ) -> Result<Ready<'a>, SendError> {
        let (eager, most) = self.lock().limits;
        if message.bytes().len() <= eager {
            return Ok(Ready { body: Body::Bytes(message), immediate });
        }
        self.ready_to_offer(&self.lane(), most, message, immediate)
    }

    /// Makes a message ready that the peer is to read from where it is.
    fn ready_to_offer<'a>(
        &self,
        lane: &Arc<Lane>,
        most: u32,
        message: Outgoing<'a>,
        immediate: Option<u32>,
    ) -> Result<Ready<'a>, SendError> {
        let len = message.bytes().len();
        let Some(len) = u32::try_from(len).ok().filter(|len| *len <= most) else {
            let error = Error::TooLong { len: len as u64, most: most.into() };
            return Err(message.refused(error));
        };
        let (buffer, is_copy) = match message.0 {
            Source::Buffer(buffer) if buffer.is_of(lane.pool.protection_domain()) => (buffer, false),
            // Of another domain, the peer couldn't read it.
            _ => match lane.pool.copy_from(message.bytes()) {
                Ok(copy) => (copy, true),
                Err(error) => return Err(message.refused(error)),
            },
        };
        let region = buffer.register(Access::REMOTE_READ)?;
        Ok(Ready { body: Body::Offer { len, region, is_copy, lane: Arc::clone(lane) }, immediate })
    }

    /// Takes a message, if there is room: then `ready` is empty, and the number of the write that it goes with is returned.
    pub(super) fn try_send(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<Option<u64>> {
        let Some(Ready { body, .. }) = ready else { return Ok(Some(state.batches)) };
        // Also for what waits for something else than room.
        if let Some(end) = &state.end {
            return Err(self.ended(end));
        }
        if state.is_gone || state.is_shut && !matches!(body, Body::Gone) {
            return Err(self.disconnected("this side has ended it", ""));
        }
        if state.peer_is_gone {
            return Err(self.disconnected("the peer has closed it", ""));
        }
        // What the peer may have missed comes first.
        if state.outbound.is_none() || !state.resume.replay.is_empty() {
            return Ok(None);
        }
        if let Body::Offer { lane, .. } = body
            && !Arc::ptr_eq(lane, &state.lane)
        {
            *ready = ready.take().map(|ready| self.again(state, ready)).transpose()?;
        }
        self.take(state, ready)
    }

    /// Takes a message, whatever it is: see [`try_send`](Link::try_send).
    fn take(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<Option<u64>> {
        let Some(Ready { body, immediate }) = ready else { return Ok(Some(state.batches)) };
        let one: [IoSlice<'_>; 1];
        let (kind, bytes): (FrameKind, &[IoSlice<'_>]) = match body {
            Body::Bytes(message) => {
                one = [IoSlice::new(message.bytes())];
                (FrameKind::Message { len: one[0].len() as u32 }, &one)
            }
            Body::Pieces { len, pieces } => (FrameKind::Message { len: *len }, pieces),
            Body::Offer { .. } if state.offers.len() == OFFERS as usize => return Ok(None),
            Body::Offer { len, region, .. } => {
                let RemoteMemory { addr, rkey, .. } = region.remote();
                (FrameKind::Offer { len: *len, addr, rkey }, &[])
            }
            Body::Announcement { name, memory, .. } => {
                one = [IoSlice::new(name.as_bytes())];
                (FrameKind::Announcement { name_len: name.len() as u32, memory: *memory }, &one)
            }
            Body::End => (FrameKind::End, &[]),
            Body::Gone => (FrameKind::Gone, &[]),
        };
        let frame = Frame { kind, immediate: *immediate };
        let tag = if kind == FrameKind::Gone { GONE } else { DELIVERED };
        let number = state.resume.sent;
        let Some(write) = self.add_frame(state, &frame, bytes, tag)? else { return Ok(None) };
        state.resume.sent += u64::from(kind.is_numbered());
        state.is_shut |= matches!(kind, FrameKind::End | FrameKind::Gone);
        state.is_gone |= kind == FrameKind::Gone;
        match ready.take() {
            Some(Ready { body: Body::Offer { region, .. }, immediate }) => {
                state.offers.push_back(Offered { number, region, immediate });
            }
            Some(Ready { body: Body::Announcement { name, memory, region }, .. }) => {
                state.exposed.push(Exposed { name, rights: memory.rights, region });
            }
            _ => {}
        }
        Ok(Some(write))
    }

    /// Adds a frame to those that wait, or writes it at once if none does. Returns the number of the write, or nothing if
    /// there is no room.
    fn add_frame(
        &self,
        state: &mut State,
        frame: &Frame,
        body: &[IoSlice<'_>],
        tag: u64,
    ) -> Result<Option<u64>> {
        if let Some(end) = &state.end {
            return Err(self.ended(end));
        }
        let Some(PeerRing { longest_write, .. }) = state.outbound else { return Ok(None) };
        let len = frame.len();
        if let Some(batch) = &mut state.batch {
            if len > batch.buffer.len() - batch.len {
                return Ok(None);
            }
            put(frame, body, &mut batch.buffer[batch.len..batch.len + len]);
            batch.len += len;
            batch.tag |= tag;
            return Ok(Some(state.batches));
        }
        let goes_now = can_write(state, len);
        // If it has to wait others may join it.
        let mut buffer = state.lane.pool.alloc(if goes_now { len } else { longest_write })?;
        put(frame, body, &mut buffer[..len]);
        let batch = Batch { buffer, len, tag, is_due: true, first: state.resume.sent };
        state.batch = if goes_now { self.write(state, batch).err() } else { Some(batch) };
        state.batches += 1;
        match &state.end {
            Some(end) => Err(self.ended(end)),
            None => Ok(Some(state.batches)),
        }
    }

    /// Takes a message, and then waits until it is posted: `number` is that of its write, once it has one.
    pub(super) fn send(
        &self,
        state: &mut State,
        ready: &mut Option<Ready<'_>>,
        number: &mut Option<u64>,
    ) -> Result<Option<()>> {
        if number.is_none() {
            *number = self.try_send(state, ready)?;
            // It may have joined what was gathered.
            self.flush(state);
        }
        number.map_or(Ok(None), |number| self.is_posted(state, number))
    }

    /// Takes a message that is to go together with others: when enough has gathered, or somebody waits or flushes.
    pub(super) fn feed(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<Option<()>> {
        let Some(len) = ready.as_ref().map(Ready::frame_len) else { return Ok(Some(())) };
        if state.batch.as_ref().is_some_and(|batch| len > batch.buffer.len() - batch.len) {
            self.flush(state);
        }
        let Some(PeerRing { longest_write, .. }) = state.outbound else { return Ok(None) };
        let most = GATHERED.min(longest_write);
        if state.batch.is_none() && len <= most / 2 {
            state.batch = Some(Batch {
                buffer: state.lane.pool.alloc(most)?,
                len: 0,
                tag: 0,
                is_due: false,
                first: state.resume.sent,
            });
            state.batches += 1;
        }
        let taken = self.try_send(state, ready);
        match state.batch.as_ref().map(|batch| batch.len) {
            // It was refused.
            Some(0) => {
                state.batch = None;
                state.batches -= 1;
            }
            Some(len) if len > most / 4 * 3 => self.flush(state),
            _ => {}
        }
        Ok(taken?.map(drop))
    }

    /// Takes a message and posts it, if both can be done now.
    pub(super) fn try_send_now(&self, state: &mut State, ready: Ready<'_>) -> Result<(), SendError> {
        let mut ready = Some(ready);
        let sent = self.try_post(state, &mut ready);
        let failure = match sent {
            Ok(true) => return Ok(()),
            Ok(false) => Error::WouldBlock { what: "to send" },
            Err(error) => error,
        };
        Err(Ready::refused(ready, failure))
    }

    fn try_post(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<bool> {
        let Some(len) = ready.as_ref().map(Ready::frame_len) else { return Ok(true) };
        self.flush(state);
        // Otherwise it would be taken, and wait.
        let is_free = state.batch.is_none() && state.resume.replay.is_empty() && can_write(state, len);
        if !is_free && state.end.is_none() {
            return Ok(false);
        }
        Ok(self.try_send(state, ready)?.is_some())
    }

    /// The end of what this side sends.
    pub(super) fn end_frame() -> Ready<'static> {
        Ready { body: Body::End, immediate: None }
    }

    /// The end of the connection.
    pub(super) fn gone_frame() -> Ready<'static> {
        Ready { body: Body::Gone, immediate: None }
    }

    /// Whether the write of this number was posted.
    pub(super) fn is_posted(&self, state: &State, number: u64) -> Result<Option<()>> {
        if state.batches - u64::from(state.batch.is_some()) >= number {
            return Ok(Some(()));
        }
        match &state.end {
            Some(end) => Err(self.ended(end)),
            None => Ok(None),
        }
    }

    /// Tells the peer that this side is gone, with `ready`, unless the peer is; then waits until the peer has all.
    pub(super) fn close(&self, state: &mut State, ready: &mut Option<Ready<'_>>) -> Result<Option<()>> {
        if !state.peer_is_gone && ready.is_some() && self.try_send(state, ready)?.is_none() {
            return Ok(None);
        }
        // Who is alone has nobody to tell that it is gone.
        let is_over = state.is_known_gone || state.peer_is_gone || state.end.is_some();
        self.is_delivered(state, is_over)
    }

    /// Whether the peer has all that was sent, and either has read it or `is_over`.
    fn is_delivered(&self, state: &mut State, is_over: bool) -> Result<Option<()>> {
        let is_all_sent = state.batch.is_none() && !state.resume.is_behind();
        if is_all_sent && state.offers.is_empty() && state.reads_to_tell == 0 {
            // What the peer has read it has, though its device's word for it may not have come.
            let is_read = state.outbound.as_ref().is_some_and(|ring| ring.outbound.is_read());
            if is_read || state.delivered == state.to_deliver && is_over {
                return Ok(Some(()));
            }
        }
        if let Some(end) = &state.end {
            return Err(self.ended(end));
        }
        if state.is_unheard {
            self.ask(state);
        }
        Ok(None)
    }

    /// The next message, or `None` when there are no more, if that is known.
    pub(super) fn try_recv(&self, state: &mut State) -> Result<Option<Option<Message>>> {
        if let Some(Entry::Message(_)) = state.inbox.front() {
            let Some(Entry::Message(message)) = state.inbox.pop_front() else { unreachable!("it is there") };
            state.taken += 1;
            state.buffered -= message.len();
            // There may be room for what comes after it.
            self.advance(state);
            return Ok(Some(Some(message)));
        }
        match &state.end {
            _ if state.peer_is_shut && state.inbox.is_empty() => Ok(Some(None)),
            Some(end) => Err(self.ended(end)),
            None => Ok(None),
        }
    }

    /// Asks the peer's device whether it is there, and so whether it has all that was written, unless that is asked already.
    pub(super) fn ask(&self, state: &mut State) {
        let is_asked = state.in_flight > 0 && !state.is_unheard;
        if let (Some(ring), None, false) = (&state.outbound, &state.end, is_asked) {
            let request = SendRequest::write((), ring.memory.at(0));
            if progress::has_room(state) {
                self.post(state, request, true);
            }
        }
    }

    /// What `ready` has without a look at the device, which costs more than many a message. But it is looked at, by `drive`,
    /// before too many calls have gone without.
    pub(super) fn at_once<T>(
        &self,
        state: &mut State,
        ready: &mut impl FnMut(&Link, &mut State) -> Result<Option<T>>,
        drive: impl FnOnce(&mut State),
    ) -> Result<Option<T>> {
        state.unlooked += 1;
        if state.unlooked > UNLOOKED {
            drive(state);
        }
        ready(self, state)
    }

    /// Drives the connection, if `ready` has nothing before that, and looks whether it has something now. Also says whether
    /// anything is new for others who wait.
    #[cfg(feature = "tokio")]
    pub(super) fn look_once<T>(
        &self,
        ready: &mut impl FnMut(&Link, &mut State) -> Result<Option<T>>,
    ) -> (Result<Option<T>>, bool) {
        let mut state = self.lock();
        let mut has_news = false;
        let mut value = self.at_once(&mut state, ready, |state| has_news = self.drive(state));
        if let Ok(None) = value {
            self.flush(&mut state);
            has_news |= self.drive(&mut state);
            value = ready(self, &mut state);
        }
        // What was asked for may have made room for more.
        (value, has_news | std::mem::take(&mut state.has_news))
    }

    /// Drives the connection and looks whether `ready` has something; if not, an event is made when it may have. Also says
    /// whether anything is new for others who wait.
    pub(super) fn step<T>(
        &self,
        ready: &mut impl FnMut(&Link, &mut State) -> Result<Option<T>>,
    ) -> (Result<Option<T>>, bool) {
        let mut state = self.lock();
        let mut has_news = self.drive(&mut state);
        let mut value = ready(self, &mut state);
        if let Ok(None) = value {
            // What came before the arming makes no event: look again before waiting.
            value = state.arm().and_then(|()| {
                has_news |= self.drive(&mut state);
                ready(self, &mut state)
            });
        }
        (value, has_news | std::mem::take(&mut state.has_news))
    }

    /// Takes in what has happened, and does what can be done. Says whether anything is new for those who wait.
    pub(super) fn drive(&self, state: &mut State) -> bool {
        let mut done = std::mem::take(&mut state.done);
        let polled = state.lane.completions.poll(&mut done);
        self.polled(state, polled, &mut done);
        state.done = done;
        std::mem::take(&mut state.has_news)
    }

    /// Takes in what polling gave; says whether there was anything.
    pub(super) fn polled(
        &self,
        state: &mut State,
        polled: Result<usize>,
        done: &mut Vec<Completion>,
    ) -> bool {
        state.unlooked = 0;
        if let Err(error) = &polled {
            end(state, error.to_string(), "");
        }
        self.take_in(state, done);
        if state.resume.is_down() {
            self.suspend(state);
        }
        !matches!(polled, Ok(0))
    }

    /// Takes in completions.
    fn take_in(&self, state: &mut State, done: &mut Vec<Completion>) {
        if done.is_empty() {
            return;
        }
        state.has_news = true;
        for completion in done.drain(..) {
            if let Err(violation) = self.complete(state, completion) {
                end_for_good(state, violation.to_string(), "is the peer of the same version?");
            }
        }
        self.advance(state);
    }

    /// An error that says that the connection has ended.
    pub(super) fn disconnected(&self, reason: impl Into<String>, hint: &'static str) -> Error {
        Error::Disconnected { peer: self.peer, reason: reason.into(), hint: hint.into() }
    }

    fn ended(&self, end: &End) -> Error {
        self.disconnected(&*end.reason, end.hint)
    }
}

impl Ready<'_> {
    /// How many bytes its frame takes.
    fn frame_len(&self) -> usize {
        frame_len(match &self.body {
            Body::Bytes(message) => message.bytes().len(),
            Body::Pieces { len, .. } => *len as usize,
            Body::Offer { .. } => OFFER_LEN,
            Body::Announcement { name, .. } => ANNOUNCEMENT_LEN + name.len(),
            Body::End | Body::Gone => 0,
        })
    }

    /// Why it wasn't sent, with the buffer that it was made of, if it wasn't taken.
    pub(super) fn refused(ready: Option<Ready<'_>>, error: Error) -> SendError {
        let buffer = match ready.map(|ready| ready.body) {
            Some(Body::Bytes(message)) => return message.refused(error),
            Some(Body::Offer { region, is_copy: false, .. }) => RegisteredBuf::reclaim(region),
            _ => None,
        };
        SendError { error, buffer }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // A software NIC acknowledges with the next poll what the last one brought: the peer's last word, for one, and it waits
        // for that.
        let mut done = Vec::new();
        while self.completions.poll(&mut done).is_ok_and(|count| count > 0) {}
    }
}

/// Puts a frame where it just fits. Nothing of what was there before is left.
fn put(frame: &Frame, body: &[IoSlice<'_>], out: &mut [u8]) {
    frame.emit(out);
    let (begin, len) = match frame.kind {
        FrameKind::Message { len } => (HEADER_LEN, len),
        FrameKind::Announcement { name_len, .. } => (HEADER_LEN + ANNOUNCEMENT_LEN, name_len),
        FrameKind::Offer { .. } | FrameKind::End | FrameKind::Gone => return,
    };
    let (to_body, padding) = out[begin..].split_at_mut(len as usize);
    gather(body, to_body);
    padding.fill(0);
}

/// Copies as many of the pieces' bytes as there is room for, which must be filled by them.
fn gather(pieces: &[IoSlice<'_>], mut out: &mut [u8]) {
    for piece in pieces {
        let (to_piece, behind) = out.split_at_mut(piece.len().min(out.len()));
        to_piece.copy_from_slice(&piece[..to_piece.len()]);
        out = behind;
    }
    debug_assert!(out.is_empty(), "there are as many bytes as were promised");
}

/// Whether a write of `len` bytes can be posted now.
fn can_write(state: &State, len: usize) -> bool {
    let fits = state.outbound.as_ref().is_some_and(|ring| ring.outbound.fits(len as u32));
    fits && progress::has_room(state) && state.end.is_none() && !state.resume.is_down()
}

/// Notes why the connection has ended, if nothing else was the reason before; or only that it is down, if it may go on over
/// another lane.
fn end(state: &mut State, reason: String, hint: &'static str) {
    let is_over = state.peer_is_gone || state.is_known_gone;
    if !is_over && state.end.is_none() && state.resume.goes_down(&reason) {
        state.has_news = true;
    } else {
        end_for_good(state, reason, hint);
    }
}

/// Notes why the connection has ended, if nothing else was the reason before.
fn end_for_good(state: &mut State, reason: String, hint: &'static str) {
    state.has_news = true;
    state.end.get_or_insert(End { reason, hint });
}

/// How many receives there are: one for all that the peer may send before it hears from this side.
fn recv_depth(writes: u32) -> u32 {
    1 + writes + REPORTS + OFFERS
}

/// How many requests the send queue has: half of them may wait for others to be asked after; and one for each part in which
/// the longest message is read by a device that moves 8 MiB at once (rxe).
fn send_depth(writes: u32) -> u32 {
    2 * (writes + REPORTS + 2 * OFFERS) + LONGEST_MESSAGE / (8 << 20)
}
