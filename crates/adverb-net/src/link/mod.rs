//! The connection itself: the protocol on a queue pair.
//!
//! Nobody works in the background: who calls does what there is to do. [`Link::drive`] takes completions in and posts what
//! has become possible; who has to wait drives whenever there is an event. The peer's device needs nobody here, so that a
//! program that does something else doesn't hold up a peer that reads what it was offered.

mod closing;
mod operation;
mod progress;
mod resume;
mod sending;
mod stream;
#[cfg(all(test, feature = "soft", not(loom)))]
mod tests;

pub(super) use operation::Asked;
pub(super) use resume::UNKNOWN;
pub(super) use sending::Ready;
pub(super) use stream::Taken;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use adverb_verbs::internal::{CmHandle, Deadline, begin_drain, is_drained, wait_either};
use adverb_verbs::memory::{MemoryRegion, Pool, PoolBuf, RemoteMemory};
use adverb_verbs::{
    Access, ArmFor, Completion, CompletionQueue, ConnectOptions, Device, Error, ProtectionDomain, QueuePair,
    QueuePairBuilder, RecvRequest, RemoteAddress, Result, SendRequest,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::message::Message;
use super::options::Options;
use super::protocol::handshake::HELLO_LEN;
use super::protocol::proof::{Role, SEAL_LEN, Seal};
use super::protocol::{Announced, Inbound, LONGEST_MESSAGE, OFFERS, Outbound, REPORTS, Violation};
use super::session::{ResumeOrigin, WakeFd};

/// What becomes a connection when its queue pair is connected.
pub(super) struct Parts {
    completions: CompletionQueue,
    pool: Pool,
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
            None => device.create_protection_domain()?,
        };
        let pool = options.pool.clone().unwrap_or_else(|| Pool::builder().partitions(1).build(&domain));
        let (sends, recvs) =
            (send_depth(options.max_outstanding_writes), recv_depth(options.max_outstanding_writes));
        let completions = device.completion_queue(sends + recvs).events().create()?;
        let queue_pair = make(&domain)?.completion_queue(&completions).depth(sends, recvs);
        let queue_pair = queue_pair.access(Access::LOCAL_WRITE).create()?;
        queue_pair.post_recv(RecvRequest::new(pool.alloc(SEAL_LEN + HELLO_LEN)?).tag(RECEIVE))?;
        Ok((Parts { completions, pool, peer, options: options.clone() }, queue_pair))
    }

    /// How the queue pair is to be connected.
    pub(super) fn connect_options() -> ConnectOptions {
        // Credits see to it that the peer always has a receive: if it hadn't, that would be a fault, and not to be waited for.
        // Acknowledgements have time to come from a software NIC on a busy machine; without any it is two seconds. (Not seven
        // times: rxe takes that for ever, and a peer that is gone would never be noticed.)
        ConnectOptions::new().rnr_retry(0).ack_timeout(16).retry_count(6)
    }
}

/// A connection whose queue pair is connected; it can be used when the peer has said hello.
pub(super) struct Link {
    /// Where the peer was first found.
    peer: SocketAddr,
    role: Role,
    pub(super) options: Options,
    state: Mutex<State>,
    /// Up to which length messages go through the peer's ring, in the upper half, and which length is the most.
    limits: AtomicU64,
    /// Told when something has changed, or nobody waits for events any more.
    pub(super) news: Condvar,
    /// The means to reconnect, if both sides enable that.
    origin: OnceLock<ResumeOrigin>,
    /// The descriptor by which tasks wait.
    pub(super) wake_fd: OnceLock<WakeFd>,
}

/// What a connection goes over, for now.
pub(super) struct Lane {
    /// Dropped first: then nobody reads what was offered, or writes to the ring.
    queue_pair: QueuePair,
    /// The connection manager's side of it, if that made it.
    hold: Option<CmHandle>,
    pub(super) completions: CompletionQueue,
    pool: Pool,
    /// There from the hello on: a peer that hasn't shown who it is costs no memory.
    ring: OnceLock<MemoryRegion>,
    peer: SocketAddr,
}

pub(super) struct State {
    lane: Arc<Lane>,
    /// What is kept and counted so that the connection can go on over another lane.
    resume: resume::Resume,
    /// The peer's ring, once it has said where, and as long as it can be reached.
    outbound: Option<PeerRing>,
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
    /// How much all of it [weighs](weight), as far as there is memory for it.
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
    /// Whether the peer's device has the one, and the other.
    is_known_shut: bool,
    is_known_gone: bool,
    farewell: closing::Farewell,
    /// Whether no more messages come, and whether none are taken.
    peer_is_shut: bool,
    peer_is_gone: bool,
    /// Why there is no connection any more.
    end: Option<End>,
    /// Whether anything has changed for those who wait.
    has_news: bool,
    /// How many calls have gone without a look at the device.
    unlooked: u32,
    /// Whether the completion queue is armed, and all that came before is taken in: then an event says when to look again, and
    /// who takes that tells others.
    is_armed: bool,
    /// Room for completions.
    pub(super) done: Vec<Completion>,
    /// Room for READs that are posted together.
    reads: Vec<SendRequest>,
    pub(super) waiting: super::wait::Waiting,
}

struct PeerRing {
    outbound: Outbound,
    memory: RemoteMemory,
    longest_write: usize,
}

struct Batch {
    buffer: PoolBuf,
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
        come: Option<PoolBuf>,
        parts: u32,
        immediate: Option<u32>,
    },
}

#[derive(Clone, Debug)]
struct End {
    reason: String,
    hint: &'static str,
}

/// What requests are of, as their completions repeat it: bits.
const RECEIVE: u64 = 1;
/// What the peer must have when the connection is closed.
const DELIVERED: u64 = 2;
/// What tells the peer that this side sends no more.
const END: u64 = 4;
/// What tells the peer that this side is gone.
const GONE: u64 = 8;
/// What tells the peer that this side knows that it knows.
const FAREWELL: u64 = 16;
/// A one-sided operation; its number is above this bit.
const OPERATION: u64 = 32;
/// Of these, what may be of a write of frames.
const FRAMES: u64 = DELIVERED | END | GONE;

/// The maximum time until a device has flushed the requests of a failed queue pair.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How many calls may go without a look at the device. Who has to wait looks anyway.
const UNLOOKED: u32 = 16;

impl State {
    /// Whether it can't be used now, and may be again.
    pub(super) fn is_broken(&self) -> bool {
        self.resume.is_down() && self.end.is_none()
    }

    /// The same, since it had so many lanes before.
    fn is_broken_since(&self, generation: u32) -> bool {
        self.is_broken() && self.resume.generation == generation
    }

    /// What it goes over now.
    pub(super) fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane)
    }

    /// Has an event made when there is something new.
    fn arm(&mut self) -> Result<()> {
        self.lane.completions.arm(ArmFor::Any)?;
        self.is_armed = true;
        Ok(())
    }
}

impl Link {
    /// A connection, of parts and their queue pair, which is connected. Who asked for it says hello at once.
    pub(super) fn new(
        parts: Parts,
        queue_pair: QueuePair,
        hold: Option<CmHandle>,
        role: Role,
        seal: Option<Seal>,
    ) -> Link {
        let Parts { completions, pool, peer, options } = parts;
        let longest_request = queue_pair.max_message_size() as usize;
        let state = State {
            lane: Arc::new(Lane { queue_pair, hold, completions, pool, ring: OnceLock::new(), peer }),
            resume: resume::Resume::default(),
            outbound: None,
            inbound: Inbound::new(options.recv_ring_size, options.max_outstanding_writes),
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
            recvs_to_post: recv_depth(options.max_outstanding_writes) - 1,
            longest_request,
            in_flight: 0,
            send_depth: send_depth(options.max_outstanding_writes),
            is_unheard: false,
            to_deliver: 0,
            delivered: 0,
            is_shut: false,
            is_gone: false,
            is_known_shut: false,
            is_known_gone: false,
            farewell: closing::Farewell::default(),
            peer_is_shut: false,
            peer_is_gone: false,
            end: None,
            has_news: false,
            unlooked: 0,
            is_armed: false,
            done: Vec::with_capacity(64),
            reads: Vec::with_capacity(OFFERS as usize),
            waiting: super::wait::Waiting::default(),
        };
        let link = Link {
            peer,
            role,
            options,
            state: Mutex::new(state),
            limits: AtomicU64::new(LONGEST_MESSAGE.into()),
            news: Condvar::new(),
            origin: OnceLock::new(),
            wake_fd: OnceLock::new(),
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

    /// Enables reconnecting.
    pub(super) fn settle(&self, origin: ResumeOrigin) {
        // It is called once.
        let _ = self.origin.set(origin);
    }

    /// Takes the events of its completion queue, so that the device is looked at next.
    pub(super) fn take_events(&self) -> Result<()> {
        let lane = self.lane();
        while lane.completions.try_event()? {}
        self.lock().is_armed = false;
        Ok(())
    }

    /// Takes the events that have woken a task: those of its completion queue, and the connection manager's. There may be both
    /// at once, and a task isn't woken again for what is left. Others who wait are to be told: they may have relied on an event
    /// that this one has taken.
    #[cfg(feature = "tokio")]
    pub(super) fn woken(&self) -> Result<()> {
        self.take_events()?;
        self.heed_manager(&mut self.lock());
        Ok(())
    }

    /// Ends the connection if the peer's connection manager has: the kernel's does that when a program dies.
    pub(super) fn heed_manager(&self, state: &mut State) {
        let lane = state.lane();
        let (Some(hold), Some(_)) = (&lane.hold, lane.manager_events()) else { return };
        let reason = match hold.has_ended() {
            Ok(false) => return,
            Ok(true) => "the peer's connection manager disconnected".to_owned(),
            Err(error) => error.to_string(),
        };
        // All that has come came before that.
        let mut done = std::mem::take(&mut state.done);
        while lane.completions.poll(&mut done).is_ok_and(|count| count > 0) {
            self.take_in(state, &mut done);
        }
        state.done = done;
        // Who has said that it is gone goes.
        if !state.peer_is_gone {
            end(state, reason, "check whether the peer's program has exited");
            if state.resume.is_down() {
                self.suspend(state);
            }
        }
    }

    /// Whether the connection manager knows that it has ended, if that made it.
    pub(super) fn was_ended_by_manager(&self) -> Result<bool> {
        self.lane().hold.as_ref().map_or(Ok(false), CmHandle::has_ended)
    }

    /// What it goes over now.
    pub(super) fn lane(&self) -> Arc<Lane> {
        self.lock().lane()
    }

    /// Breaks the lane as a failure of the network does, for tests.
    #[cfg(feature = "tokio")]
    pub(super) fn break_lane(&self) -> Result<()> {
        self.lane().queue_pair.move_to_error()
    }

    /// Up to which length messages go through the peer's ring, and which length is the most.
    fn limits(&self) -> (u32, u32) {
        let limits = self.limits.load(Ordering::Relaxed);
        ((limits >> 32) as u32, limits as u32)
    }

    fn set_limits(&self, eager: u32, most: u32) {
        self.limits.store(u64::from(eager) << 32 | u64::from(most), Ordering::Relaxed);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether the peer has said hello.
    pub(super) fn is_established(&self, state: &mut State) -> Result<Option<()>> {
        if state.resume.is_interrupting() && state.end.is_none() {
            self.poll_interrupt(state);
            if state.resume.is_interrupting() {
                return Ok(None);
            }
            self.say_hello(state);
        }
        if state.resume.is_unknown {
            // The peer is told before this ends.
            if self.role == Role::Listener && state.in_flight > 0 && state.end.is_none() {
                return Ok(None);
            }
            return Err(Error::HandshakeRejected { peer: self.peer, reason: resume::UNKNOWN.to_owned() });
        }
        match (&state.outbound, &state.end) {
            (Some(_), _) => Ok(Some(())),
            (None, Some(end)) => Err(self.ended(end)),
            (None, None) => Ok(None),
        }
    }

    /// The next message, or `None` when there are no more, if that is known.
    pub(super) fn try_recv(&self, state: &mut State) -> Result<Option<Option<Message>>> {
        if let Some(Entry::Message(_)) = state.inbox.front() {
            let Some(Entry::Message(message)) = state.inbox.pop_front() else { unreachable!("it is there") };
            state.taken += 1;
            state.buffered -= weight(message.len());
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

    /// Looks whether `ready` has something; if not, an event is made when it may have. Drives the connection, unless nothing has
    /// come since it was last about to sleep; and once only, if it has just been driven. Also says whether anything is new for
    /// others who wait.
    pub(super) fn step<T>(
        &self,
        is_driven: bool,
        ready: &mut impl FnMut(&Link, &mut State) -> Result<Option<T>>,
    ) -> (Result<Option<T>>, bool) {
        let mut state = self.lock();
        // Of one that is found broken nothing comes, and somebody has to see to it.
        let is_asleep = |state: &State| state.is_armed && !state.resume.is_down();
        let mut has_news = !is_driven && !is_asleep(&state) && self.drive(&mut state);
        let mut value = ready(self, &mut state);
        if let Ok(None) = value
            && !is_asleep(&state)
        {
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
        // The first of them has made the event.
        (state.has_news, state.is_armed) = (true, false);
        for completion in done.drain(..) {
            if let Err(violation) = self.complete(state, completion) {
                break_off(state, violation);
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

impl Lane {
    /// Makes the memory that the peer writes to.
    fn make_ring(&self, len: u32) -> Result<&MemoryRegion> {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let ring = self.pool.protection_domain().region(len as usize, rights)?;
        Ok(self.ring.get_or_init(|| ring))
    }

    /// That memory.
    fn ring(&self) -> Result<&MemoryRegion> {
        let none = || Error::InvalidRequest {
            reason: "the connection has no receive ring before the handshake is complete".into(),
        };
        self.ring.get().ok_or_else(none)
    }

    /// Readable when the connection manager may know that the peer has ended the connection, where a kernel tells that of
    /// programs that died.
    pub(super) fn manager_events(&self) -> Option<BorrowedFd<'_>> {
        let is_hardware = !self.pool.protection_domain().device().is_software();
        self.hold.as_ref().filter(|_| is_hardware).map(CmHandle::event_fd)
    }

    /// Moves the queue pair to the error state and takes the completions of all its requests. The software NIC flushes
    /// requests at once, so the call waits only for other devices, and for at most [`DRAIN_TIMEOUT`].
    fn drain(&self, done: &mut Vec<Completion>) -> Result<()> {
        begin_drain(&self.queue_pair)?;
        let mut deadline = None;
        loop {
            self.completions.poll(done)?;
            if is_drained(&self.queue_pair)? {
                return Ok(());
            }
            self.completions.arm(ArmFor::Any)?;
            // A completion that arrived before arming raises no event: poll before waiting.
            self.completions.poll(done)?;
            if is_drained(&self.queue_pair)? {
                return Ok(());
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::new(DRAIN_TIMEOUT));
            if !self.completions.wait_event(deadline.left())? {
                return Err(Error::Timeout { timeout: DRAIN_TIMEOUT, action: "draining a queue pair" });
            }
        }
    }

    /// Waits for completions, but not longer than this, nor when the connection manager knows something.
    pub(super) fn sleep(&self, done: &mut Vec<Completion>, time: Duration) -> Result<usize> {
        let (Some(manager), Some(events)) = (self.manager_events(), self.completions.event_fd()) else {
            return self.completions.poll_timeout(done, time);
        };
        let deadline = Deadline::new(time);
        loop {
            self.completions.arm(ArmFor::Any)?;
            // What came before the arming makes no event.
            let count = self.completions.poll(done)?;
            if count > 0 {
                return Ok(count);
            }
            let left = deadline.left();
            wait_either(events, Some(manager), (left < Duration::MAX).then_some(left))
                .map_err(|error| super::bootstrap::verb("waiting for an event", error, ""))?;
            let is_event = self.completions.try_event()?;
            let count = self.completions.poll(done)?;
            // An event may be of what was found without it.
            if count > 0 || !is_event || deadline.left().is_zero() {
                return Ok(count);
            }
        }
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

/// Ends the connection to a peer that doesn't keep the rules, which can reach nothing here from now on, though the application
/// may hold the connection for long.
fn break_off(state: &mut State, violation: Violation) {
    end_for_good(state, violation.to_string(), "use the same version of Adverb on both sides");
    if let Err(error) = state.lane.queue_pair.move_to_error() {
        tracing::warn!(%error, "could not stop a queue pair after a protocol violation");
    }
}

/// What a message that waits to be asked for counts: its bytes, and about what it takes to remember it, so that messages without
/// any aren't taken in without end.
fn weight(len: usize) -> usize {
    len + 64
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
