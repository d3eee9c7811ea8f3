//! The redialer: the one thread of a process that reconnects all broken connections, and keeps connections that linger.
//!
//! The thread exists while a connection is broken or lingers. It dials for connections that this side has established,
//! and drives the handshakes of listeners whose accepted connections are broken. It waits only in `epoll_wait`, so no
//! connection delays another one: dials and handshakes are state machines ([`Dial`], [`Listening::serve`]), and timers
//! are in a heap.
//!
//! A connection that the application has dropped lingers if the peer has closed it, and may not know that its close has
//! arrived. The thread polls such a connection, because its completion queue raises events for waiting callers only.
//!
//! Each broken connection has at most one dial. At most [`MAX_NEW_DIALS`] of the dials are new, so that a listener
//! whose process has lost all its connections is not flooded. A dial is new for [`NEW_DIAL_TIME`], so an unreachable
//! address delays other dials no longer than that.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use adverb_verbs::internal::{Deadline, Interest, OwnerProcess, Watch};
use parking_lot::Mutex;

use super::redial::{Action, PAUSE, Redial};
use super::{Paths, resolver};
use crate::bootstrap::{AcceptFd, Dial, Listening, ServeResult};
use crate::driver::{Driver, LINGER, Lane, LanePurpose};
use crate::error::ConnectError;

/// Maximum number of dials that began less than [`NEW_DIAL_TIME`] ago.
const MAX_NEW_DIALS: usize = 64;
/// The time for which a dial counts as new.
const NEW_DIAL_TIME: Duration = Duration::from_millis(50);

/// Minimum delay of a listener's timer.
const MIN_TIMER: Duration = Duration::from_millis(1);
/// The first interval between two polls of a lingering connection. Each further interval is twice as long.
const MIN_LINGER_POLL: Duration = Duration::from_millis(1);
/// The maximum interval between two polls of a lingering connection.
const MAX_LINGER_POLL: Duration = Duration::from_millis(32);

/// The requests to the redialer's thread, and the means to wake it.
static INBOX: Mutex<Inbox> = Mutex::new(Inbox { requests: Vec::new(), waker: None });

/// The token of the socket that wakes the thread; the tokens of connections and listeners are greater.
const WAKE: u64 = 0;
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(WAKE + 1);

struct Inbox {
    /// The first request writes a byte to the socket. The thread empties the socket before it takes the requests.
    requests: Vec<Request>,
    /// `Some` while the thread runs.
    waker: Option<Waker>,
}

/// The means to wake the thread, and the process that has the thread: a forked child doesn't.
struct Waker {
    socket: UnixStream,
    owner: OwnerProcess,
}

enum Request {
    /// Reconnect a connection.
    Insert(u64, Broken),
    /// A connection was reconnected, ended, or dropped.
    Cancel(u64),
    /// A host name was looked up.
    Resolved(String, Vec<SocketAddr>),
    /// A connection no longer uses a lane.
    Destroy(Arc<Lane>),
    /// The application has dropped a connection that lingers.
    Linger(Arc<Driver>),
}

/// A handle to a pending reconnect. Dropping the handle cancels the reconnect.
#[derive(Debug)]
pub(super) struct RedialHandle {
    token: u64,
    owner: OwnerProcess,
}

impl Drop for RedialHandle {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            return;
        }
        INBOX.lock().send(Request::Cancel(self.token));
    }
}

/// Dials a peer until the connection is reconnected, or ends the connection when the time limit expires. Never blocks.
///
/// # Errors
///
/// Returns an error if the thread cannot be started.
pub(super) fn redial(
    driver: Weak<Driver>,
    request_count: u32,
    paths: Paths,
    timeout: Duration,
) -> io::Result<RedialHandle> {
    let redial = Redial::new(paths, Deadline::new(timeout));
    let side = Side::Connector(Box::new(Connector { redial, attempt: Attempt::None }));
    insert(Broken { driver, request_count, side, timer: None })
}

/// Serves a listener until the peer has reconnected, or ends the connection when the time limit expires. Never blocks.
///
/// # Errors
///
/// Returns an error if the thread cannot be started.
pub(super) fn await_redial(
    driver: Weak<Driver>,
    request_count: u32,
    listening: Weak<Listening>,
    timeout: Duration,
) -> io::Result<RedialHandle> {
    let side = Side::Listener { listening, deadline: Deadline::new(timeout) };
    insert(Broken { driver, request_count, side, timer: None })
}

fn insert(broken: Broken) -> io::Result<RedialHandle> {
    let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
    let mut inbox = INBOX.lock();
    inbox.start_thread()?;
    inbox.send(Request::Insert(token, broken));
    Ok(RedialHandle { token, owner: OwnerProcess::current() })
}

/// Keeps a connection until the peer knows that its close has arrived, or for [`LINGER`]. Never blocks.
pub(super) fn linger(driver: Arc<Driver>) {
    let mut inbox = INBOX.lock();
    match inbox.start_thread() {
        Ok(()) => inbox.send(Request::Linger(driver)),
        Err(error) => tracing::debug!(%error, "could not start a thread for a connection that lingers"),
    }
}

/// Destroys a lane that another one has replaced: in the redialer's thread if it runs, because the device may take
/// long, and the caller may be a thread of a runtime.
pub(super) fn destroy(lane: Arc<Lane>) {
    let mut inbox = INBOX.lock();
    if inbox.has_thread() {
        inbox.send(Request::Destroy(lane));
    }
}

/// Passes the result of a lookup to the thread.
fn resolved(name: &str, addresses: Vec<SocketAddr>) {
    INBOX.lock().send(Request::Resolved(name.to_owned(), addresses));
}

impl Inbox {
    /// Whether the thread runs.
    fn has_thread(&self) -> bool {
        self.waker.as_ref().is_some_and(|waker| waker.owner.is_current())
    }

    /// Starts the thread, unless it runs.
    fn start_thread(&mut self) -> io::Result<()> {
        if self.has_thread() {
            return Ok(());
        }
        // In a forked child, the requests refer to the parent's connections.
        std::mem::forget(std::mem::take(&mut self.requests));
        let (redialer, socket) = Redialer::new()?;
        let thread = std::thread::Builder::new().name("adverb-redial".to_owned());
        thread.spawn(move || redialer.run())?;
        self.waker = Some(Waker { socket, owner: OwnerProcess::current() });
        Ok(())
    }

    /// Queues a request. Does nothing if the thread doesn't run, because then no connection is broken.
    fn send(&mut self, request: Request) {
        let Some(waker) = self.waker.as_mut().filter(|waker| waker.owner.is_current()) else { return };
        if self.requests.is_empty() {
            // The write can't fail: the socket buffers few bytes, and the thread holds the other end.
            let _ = waker.socket.write_all(&[0]);
        }
        self.requests.push(request);
    }
}

/// A broken connection.
struct Broken {
    driver: Weak<Driver>,
    request_count: u32,
    side: Side,
    timer: Option<Instant>,
}

enum Side {
    Connector(Box<Connector>),
    Listener { listening: Weak<Listening>, deadline: Deadline },
}

struct Connector {
    redial: Redial,
    attempt: Attempt,
}

/// The current dial of a connection.
enum Attempt {
    None,
    /// The dial waits until fewer than [`MAX_NEW_DIALS`] dials are new.
    Queued,
    /// The dial is in progress, and counts as new until this time.
    Dialing {
        dial: Box<Dial>,
        new_until: Option<Instant>,
    },
}

/// A listener with broken accepted connections.
struct Server {
    listening: Weak<Listening>,
    /// The descriptor that is watched, unless a call of `accept` drives the handshakes.
    accept_fd: Option<Arc<AcceptFd>>,
    /// The number of broken connections.
    count: usize,
    timer: Option<Instant>,
}

/// A connection that lingers.
struct Lingering {
    driver: Arc<Driver>,
    until: Instant,
    /// The time until the next poll.
    interval: Duration,
    timer: Option<Instant>,
}

/// The result of a step of a connection.
enum Next {
    /// Step again at this time, or when the dial's descriptor is readable.
    Wait(Option<Instant>),
    Finished,
}

/// The state of the thread.
struct Redialer {
    watch: Watch,
    wake: UnixStream,
    connections: HashMap<u64, Broken>,
    /// The connection that the current step has taken out of `connections`, and the count of its request.
    stepping: Option<(Weak<Driver>, u32)>,
    servers: HashMap<u64, Server>,
    lingering: HashMap<u64, Lingering>,
    /// The timers of connections and servers, by their tokens. An entry that differs from the `timer` of its connection
    /// or server is obsolete.
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    /// The connections whose dials are queued.
    queue: VecDeque<u64>,
    new_dials: usize,
}

impl Redialer {
    fn new() -> io::Result<(Redialer, UnixStream)> {
        let (watch, (wake, waker)) = (Watch::new()?, UnixStream::pair()?);
        // Neither end blocks: threads of runtimes write to the socket, and the redialer's thread reads it even if it is
        // empty.
        waker.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        watch.add_as(wake.as_fd(), Interest::Read, WAKE)?;
        let redialer = Redialer {
            watch,
            wake,
            connections: HashMap::new(),
            stepping: None,
            servers: HashMap::new(),
            lingering: HashMap::new(),
            timers: BinaryHeap::new(),
            queue: VecDeque::new(),
            new_dials: 0,
        };
        Ok((redialer, waker))
    }

    fn run(mut self) {
        let mut ready = Vec::new();
        while self.take_requests() {
            let now = Instant::now();
            for token in ready.drain(..).filter(|token| *token != WAKE) {
                self.step(token, now);
            }
            self.expire_timers(now);
            while self.new_dials < MAX_NEW_DIALS
                && let Some(token) = self.queue.pop_front()
            {
                self.step(token, now);
            }
            // The last connection may have ended just now. Nothing would wake the thread, which then ends.
            if self.is_idle() {
                continue;
            }
            let next = self.timers.peek().map(|Reverse((when, _))| when.saturating_duration_since(now));
            if let Err(error) = self.watch.wait(&mut ready, next) {
                tracing::warn!(%error, "could not wait for events of reconnecting connections");
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Executes the requests. Returns whether the thread continues; if not, the next broken connection starts another
    /// thread.
    fn take_requests(&mut self) -> bool {
        // The socket is read without the lock, so that threads of runtimes don't wait for the lock.
        let _ = self.wake.read(&mut [0; 16]);
        loop {
            let mut inbox = INBOX.lock();
            let requests = std::mem::take(&mut inbox.requests);
            if requests.is_empty() {
                if self.is_idle() {
                    let waker = inbox.waker.take();
                    drop(inbox);
                    drop(waker);
                    return false;
                }
                return true;
            }
            drop(inbox);
            let now = Instant::now();
            for request in requests {
                match request {
                    Request::Insert(token, broken) => {
                        if let Side::Listener { listening, .. } = &broken.side {
                            self.add_server(listening, now);
                        }
                        self.connections.insert(token, broken);
                        self.step(token, now);
                    }
                    Request::Cancel(token) => {
                        if let Some(broken) = self.connections.remove(&token) {
                            self.finish(broken);
                        }
                    }
                    Request::Resolved(name, addresses) => self.handle_resolved(&name, &addresses, now),
                    Request::Destroy(lane) => drop(lane),
                    Request::Linger(driver) => {
                        let (until, interval) = (now + LINGER, MIN_LINGER_POLL);
                        let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
                        self.linger(token, Lingering { driver, until, interval, timer: None }, now);
                    }
                }
            }
        }
    }

    /// Whether the thread has no connection.
    fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.lingering.is_empty()
    }

    fn expire_timers(&mut self, now: Instant) {
        while let Some(Reverse((when, token))) = self.timers.peek().copied()
            && when <= now
        {
            self.timers.pop();
            let connection = self.connections.get_mut(&token).map(|broken| &mut broken.timer);
            let timer = connection.or_else(|| self.servers.get_mut(&token).map(|server| &mut server.timer));
            let timer =
                timer.or_else(|| self.lingering.get_mut(&token).map(|lingering| &mut lingering.timer));
            if let Some(timer) = timer
                && *timer == Some(when)
            {
                *timer = None;
                self.step(token, now);
            }
        }
    }

    /// Advances a connection or a server as far as possible without blocking.
    fn step(&mut self, token: u64, now: Instant) {
        if self.servers.contains_key(&token) {
            return self.serve(token, now);
        }
        if let Some(lingering) = self.lingering.remove(&token) {
            return self.linger(token, lingering, now);
        }
        let Some(mut broken) = self.connections.remove(&token) else { return };
        self.stepping = Some((Weak::clone(&broken.driver), broken.request_count));
        let next = match &mut broken.side {
            Side::Connector(connector) => {
                self.step_connector(token, &broken.driver, broken.request_count, connector, now)
            }
            Side::Listener { deadline, .. } => {
                if deadline.left_at(now).is_zero() {
                    give_up(&broken.driver, broken.request_count, None);
                    Next::Finished
                } else {
                    Next::Wait(Some(deadline.at()))
                }
            }
        };
        self.stepping = None;
        match next {
            Next::Finished => self.finish(broken),
            Next::Wait(timer) => {
                self.set_timer(token, broken.timer, timer);
                broken.timer = timer;
                self.connections.insert(token, broken);
            }
        }
    }

    fn step_connector(
        &mut self,
        token: u64,
        driver: &Weak<Driver>,
        request_count: u32,
        connector: &mut Connector,
        now: Instant,
    ) -> Next {
        let Connector { redial, attempt } = connector;
        loop {
            if let Attempt::Dialing { dial, new_until } = attempt {
                match dial.poll(now) {
                    Ok(None) => {
                        if new_until.is_some_and(|until| until <= now) {
                            *new_until = None;
                            self.new_dials -= 1;
                        }
                        let due = now.checked_add(dial.time_left(now));
                        return Next::Wait(due.into_iter().chain(*new_until).min());
                    }
                    Ok(Some(_)) => return Next::Finished,
                    Err(error) => {
                        self.fail(redial, attempt, error, now);
                        note_failure(driver, request_count, redial);
                    }
                }
            }
            match redial.poll(now) {
                Action::Resolve(names) => {
                    names.iter().for_each(|name| resolver::resolve(name, resolved));
                }
                Action::Dial(_) if self.new_dials >= MAX_NEW_DIALS => {
                    if !matches!(attempt, Attempt::Queued) {
                        *attempt = Attempt::Queued;
                        self.queue.push_back(token);
                    }
                    return Next::Wait(None);
                }
                Action::Dial(peer) => {
                    let deadline = Deadline::after(now, redial.begin_dial(now));
                    let purpose = LanePurpose::Resume(Weak::clone(driver));
                    let dial = Dial::with_purpose(peer, &redial.paths().options, purpose, deadline);
                    let dial = dial.and_then(|dial| {
                        let watched = self.watch.add_as(dial.as_fd(), Interest::Read, token);
                        let failed = |error| ConnectError::system("waiting for a peer", error);
                        watched.map(|()| Box::new(dial)).map_err(failed)
                    });
                    match dial {
                        Ok(dial) => {
                            self.new_dials += 1;
                            *attempt = Attempt::Dialing { dial, new_until: Some(now + NEW_DIAL_TIME) };
                        }
                        Err(error) => {
                            self.fail(redial, attempt, error, now);
                            note_failure(driver, request_count, redial);
                        }
                    }
                }
                Action::WaitUntil(when) => return Next::Wait(Some(when)),
                Action::GiveUp => {
                    give_up(driver, request_count, redial.failure().cloned());
                    return Next::Finished;
                }
            }
        }
    }

    /// Ends a dial that has failed.
    fn fail(&mut self, redial: &mut Redial, attempt: &mut Attempt, error: ConnectError, now: Instant) {
        self.release(attempt);
        redial.handle_dial_failed(error, now);
    }

    /// Cancels a dial, if there is one.
    fn release(&mut self, attempt: &mut Attempt) {
        if let Attempt::Dialing { new_until: Some(_), .. } = attempt {
            self.new_dials -= 1;
        }
        *attempt = Attempt::None;
    }

    /// Cancels the dial of a connection that is reconnected, ended, or dropped, or stops serving its listener for it.
    fn finish(&mut self, mut broken: Broken) {
        match &mut broken.side {
            Side::Connector(connector) => self.release(&mut connector.attempt),
            Side::Listener { listening, .. } => self.remove_server(listening),
        }
    }

    fn handle_resolved(&mut self, name: &str, addresses: &[SocketAddr], now: Instant) {
        let mut waiting = Vec::new();
        for (token, broken) in &mut self.connections {
            if let Side::Connector(connector) = &mut broken.side
                && connector.redial.paths().names().any(|known| known == name)
            {
                connector.redial.handle_resolved(name, addresses);
                waiting.push(*token);
            }
        }
        waiting.into_iter().for_each(|token| self.step(token, now));
    }

    /// Polls a lingering connection, and drops it if it need not linger any longer.
    fn linger(&mut self, token: u64, mut lingering: Lingering, now: Instant) {
        if lingering.until <= now || !lingering.driver.is_lingering() {
            return;
        }
        let timer = Some(lingering.until.min(now + lingering.interval));
        lingering.interval = MAX_LINGER_POLL.min(2 * lingering.interval);
        self.set_timer(token, lingering.timer, timer);
        lingering.timer = timer;
        self.lingering.insert(token, lingering);
    }

    fn set_timer(&mut self, token: u64, current: Option<Instant>, timer: Option<Instant>) {
        if let Some(when) = timer
            && timer != current
        {
            self.timers.push(Reverse((when, token)));
        }
    }

    fn find_server(&self, listening: &Weak<Listening>) -> Option<u64> {
        let is_same = |(_, server): &(&u64, &Server)| Weak::ptr_eq(&server.listening, listening);
        self.servers.iter().find(is_same).map(|(token, _)| *token)
    }

    /// Counts a broken connection of a listener, which is served from now on.
    fn add_server(&mut self, listening: &Weak<Listening>, now: Instant) {
        if let Some(token) = self.find_server(listening)
            && let Some(server) = self.servers.get_mut(&token)
        {
            server.count += 1;
            return;
        }
        let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
        let listening = Weak::clone(listening);
        self.servers.insert(token, Server { listening, accept_fd: None, count: 1, timer: None });
        self.serve(token, now);
    }

    fn remove_server(&mut self, listening: &Weak<Listening>) {
        if let Some(token) = self.find_server(listening)
            && let Some(server) = self.servers.get_mut(&token)
        {
            server.count -= 1;
            if server.count == 0
                && let Some(mut server) = self.servers.remove(&token)
            {
                self.unwatch(&mut server);
            }
        }
    }

    /// Drives the handshakes of a listener, unless a call of `accept` does.
    fn serve(&mut self, token: u64, now: Instant) {
        let Some(mut server) = self.servers.remove(&token) else { return };
        let served = server.listening.upgrade().map(|listening| listening.serve(now));
        let timer = match served {
            Some(ServeResult::Wait(accept_fd, left)) => {
                if server.accept_fd.as_ref().is_none_or(|watched| !Arc::ptr_eq(watched, &accept_fd)) {
                    self.unwatch(&mut server);
                    match self.watch.add_as(accept_fd.as_fd(), Interest::Read, token) {
                        Ok(()) => server.accept_fd = Some(accept_fd),
                        Err(error) => tracing::debug!(%error, "could not watch a listener"),
                    }
                }
                // A listener whose descriptor can't be watched is polled.
                let left = if server.accept_fd.is_some() { left } else { PAUSE };
                now.checked_add(left.max(MIN_TIMER))
            }
            // The call of `accept` may return, and a stopped listener may be started again.
            Some(ServeResult::Skipped) => {
                self.unwatch(&mut server);
                Some(now + PAUSE)
            }
            // The listener was dropped. Peers can reconnect only to another listener while a caller
            // waits in its `accept`.
            None => {
                self.unwatch(&mut server);
                None
            }
        };
        self.set_timer(token, server.timer, timer);
        server.timer = timer;
        self.servers.insert(token, server);
    }

    fn unwatch(&self, server: &mut Server) {
        if let Some(watched) = server.accept_fd.take() {
            let _ = self.watch.remove(watched.as_fd());
        }
    }
}

impl Drop for Redialer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let requests = {
                let mut inbox = INBOX.lock();
                inbox.waker = None;
                std::mem::take(&mut inbox.requests)
            };
            let inserted = requests.into_iter().filter_map(|request| match request {
                Request::Insert(_, broken) => Some(broken),
                Request::Cancel(_) | Request::Resolved(..) | Request::Destroy(_) | Request::Linger(_) => None,
            });
            let broken = self.connections.drain().map(|(_, broken)| broken).chain(inserted);
            let broken = broken.map(|broken| (broken.driver, broken.request_count));
            for (driver, request_count) in broken.chain(self.stepping.take()) {
                let error = io::Error::other("the reconnecting thread has panicked");
                let error = ConnectError::system("reconnecting", error);
                give_up(&driver, request_count, Some(Arc::new(error)));
            }
        }
    }
}

/// Passes the error of a dial to the connection, whose own time limit may expire first.
fn note_failure(driver: &Weak<Driver>, request_count: u32, redial: &Redial) {
    if let Some((driver, error)) = driver.upgrade().zip(redial.failure()) {
        driver.note_request_failure(request_count, Arc::clone(error));
    }
}

fn give_up(driver: &Weak<Driver>, request_count: u32, error: Option<Arc<ConnectError>>) {
    if let Some(driver) = driver.upgrade() {
        driver.end_after(request_count, error);
    }
}
