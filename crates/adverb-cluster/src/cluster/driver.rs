//! The thread that establishes sessions: it accepts, dials, and runs the exchanges, without blocking.
//!
//! The [`Dialer`] decides when to dial, and an [`Exchange`] is the protocol. This thread never touches a broker: it sends
//! commands to the broker's mailbox, and the broker's thread replies with notices.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use adverb_cluster_proto::{EndReason, PeerId};
use adverb_proto::Time;
use adverb_verbs::internal::{Interest, WithCauses, start_connect, wait_many};
use adverb_verbs::{ConnectOptions, LinkLayer, QueuePair, QueuePairBuilder};
use parking_lot::Mutex;

use super::dialer::{Attempt, Dialer, MIN_BACKOFF, Outcome};
use super::error::{EstablishError, MemberStatus};
use super::exchange::{Exchange, ExchangeError, Hello, Local, NONCE_LEN, Step};
use super::key::ExchangeKey;
use super::membership::Membership;
use super::places::{self, Inbound};
use crate::broker::{BrokerError, Command, Mailbox, Notice, Notices, Offer};

/// The time limit of each step of an exchange.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of the last step. It is longer, because the dialing member has a session that the listening member must
/// not close while the exchange goes on. A member that dies closes its connection.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a broker may take to reply. A thread that doesn't poll takes longer.
const BROKER_TIMEOUT: Duration = Duration::from_secs(1);
/// The minimum time between updates of the members' addresses.
const MEMBER_IPS_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between warnings of one kind about inbound connections.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The state that the cluster's handle and its threads share.
pub(super) struct ClusterState {
    pub(super) membership: Box<dyn Membership>,
    pub(super) connect_options: ConnectOptions,
    pub(super) key: Arc<ExchangeKey>,
    pub(super) local: Local,
    pub(super) epoch: u64,
    pub(super) threads: Vec<BrokerThread>,
    pub(super) status: Mutex<Vec<MemberStatus>>,
    pub(super) notices: Arc<Notices>,
}

/// A thread of the application, seen from the connecting thread.
pub(super) struct BrokerThread {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) queue_pairs: QueuePairBuilder,
}

/// The reason why an attempt failed. [`AttemptError::identify`] adds the member.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("thread {thread} of this member does not poll its broker")]
    NotPolled { thread: u16 },
    #[error("the offered address {offered} is that of another host")]
    ForeignAddress { offered: IpAddr },
    #[error("too many connections are open, and others have sent more messages or are newer")]
    Evicted,
}

type Result<T> = std::result::Result<T, AttemptError>;

impl From<adverb_verbs::Error> for AttemptError {
    fn from(error: adverb_verbs::Error) -> AttemptError {
        ExchangeError::from(BrokerError::from(error)).into()
    }
}

impl AttemptError {
    /// Returns the public error of a failed attempt. `addr` is the peer's address, or `None` if it could not be
    /// resolved.
    fn identify(self, peer: PeerId, addr: Option<SocketAddr>, this_epoch: u64) -> EstablishError {
        use adverb_cluster_proto::SessionError;

        let Some(addr) = addr else {
            let source = match self {
                AttemptError::Io(error) => error,
                other => io::Error::other(other),
            };
            return EstablishError::Resolve { peer, source: Arc::new(source) };
        };
        let error = match self {
            AttemptError::Exchange(error) => error,
            AttemptError::Io(source) => {
                return EstablishError::Unreachable { peer, addr, source: Arc::new(source) };
            }
            AttemptError::NotPolled { thread } => return EstablishError::NotPolled { peer, thread },
            AttemptError::ForeignAddress { offered } => {
                return EstablishError::ForeignAddress { peer, addr, offered };
            }
            AttemptError::Evicted => return EstablishError::TooManyConnections { peer },
        };
        match error {
            ExchangeError::ListsDiffer => EstablishError::ListsDiffer { peer, addr },
            ExchangeError::UnknownProtocol => EstablishError::ProtocolMismatch { peer, addr },
            ExchangeError::Busy => EstablishError::NotReady { peer },
            ExchangeError::Unauthenticated => EstablishError::Authentication { peer, addr },
            ExchangeError::Stale { newest } => EstablishError::StaleEpoch { peer, epoch: this_epoch, newest },
            ExchangeError::Broker(BrokerError::Session(SessionError::StaleEpoch {
                newest,
                requested,
                ..
            })) => EstablishError::PeerStaleEpoch { peer, epoch: requested, newest },
            ExchangeError::Broker(error) => EstablishError::Broker { peer, source: Arc::new(error) },
        }
    }
}

/// A connection over TCP, and its exchange.
struct TcpExchange {
    /// Absent until the address is resolved.
    stream: Option<TcpStream>,
    addr: Option<SocketAddr>,
    is_connecting: bool,
    exchange: Exchange,
    /// The number of complete messages of the peer.
    message_count: usize,
    /// The attempt of this member, if it dialed.
    attempt: Option<Attempt>,
    session: Option<PreparedSession>,
    deadline: Instant,
    /// Whether the exchange is complete once its output is written.
    is_finishing: bool,
}

/// A session that a broker prepares.
struct PreparedSession {
    peer: PeerId,
    thread: u16,
    queue_pair: Arc<QueuePair>,
}

/// A limit on the warnings of one kind: one per [`WARNING_INTERVAL`].
#[derive(Default)]
struct WarningLimit {
    warned_at: Option<Instant>,
}

impl WarningLimit {
    /// Whether a warning may be logged now. The caller then logs it.
    fn admits(&mut self, now: Instant) -> bool {
        let is_quiet = self.warned_at.is_some_and(|warned_at| now < warned_at + WARNING_INTERVAL);
        if !is_quiet {
            self.warned_at = Some(now);
        }
        !is_quiet
    }
}

/// The connecting thread.
pub(super) struct Driver {
    shared: Arc<ClusterState>,
    listener: TcpListener,
    dialer: Dialer,
    connections: BTreeMap<u64, TcpExchange>,
    /// The number of the next connection, which is also that of its attempt to prepare a session.
    next_number: u64,
    inbound_count: usize,
    /// The last known addresses of the members, and the time at which they were updated.
    member_ips: Vec<Option<IpAddr>>,
    member_ips_updated_at: Option<Instant>,
    resolver: Option<Sender<(u64, u16)>>,
    started: Instant,
    exchange_warnings: WarningLimit,
    accept_warnings: WarningLimit,
    is_stopped: bool,
}

impl Driver {
    pub(super) fn new(shared: Arc<ClusterState>, listener: TcpListener, is_lazy: bool) -> Driver {
        let Local { this_member, member_count, thread_count, .. } = shared.local;
        Driver {
            shared,
            listener,
            dialer: Dialer::new(this_member, member_count, thread_count, is_lazy),
            connections: BTreeMap::new(),
            next_number: 1,
            inbound_count: 0,
            member_ips: vec![None; usize::from(member_count)],
            member_ips_updated_at: None,
            resolver: None,
            started: Instant::now(),
            exchange_warnings: WarningLimit::default(),
            accept_warnings: WarningLimit::default(),
            is_stopped: false,
        }
    }

    /// Runs until the cluster is dropped.
    pub(super) fn run(mut self) {
        while !self.is_stopped {
            let now = self.now();
            while let Some(attempt) = self.dialer.poll_attempt(now) {
                self.start_attempt(attempt);
            }
            if let Err(error) = self.wait_and_progress() {
                tracing::error!(%error, "waiting for members failed: no more sessions are established");
                break;
            }
        }
        self.shared.notices.close();
        for number in Vec::from_iter(self.connections.keys().copied()) {
            self.remove(number);
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    /// Waits until a socket is ready, a broker replies, or a deadline passes, and processes it.
    fn wait_and_progress(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let deadlines = self.connections.values().map(|connection| connection.deadline);
        let until_deadline = deadlines.map(|at| at.saturating_duration_since(now)).min();
        let until_attempt = self.dialer.poll_timeout().map(|at| at - self.now());
        let timeout = until_deadline.into_iter().chain(until_attempt).min();
        let mut fds =
            vec![(self.shared.notices.as_fd(), Interest::Read), (self.listener.as_fd(), Interest::Read)];
        let mut numbers = Vec::with_capacity(self.connections.len());
        for (number, connection) in &self.connections {
            if let Some(stream) = &connection.stream {
                numbers.push(*number);
                fds.push((stream.as_fd(), connection.interest()));
            }
        }
        let ready = wait_many(&fds, timeout)?;
        self.handle_notices();
        if ready.get(1) == Some(&true) {
            self.accept();
        }
        for (number, _) in numbers.into_iter().zip(&ready[2..]).filter(|(_, is_ready)| **is_ready) {
            if let Err(error) = self.progress(number) {
                self.fail(number, error);
            }
        }
        let now = Instant::now();
        let expired = self.connections.iter().filter(|(_, connection)| connection.deadline <= now);
        for number in Vec::from_iter(expired.map(|(number, _)| *number)) {
            let connection = self.connections.get(&number);
            let error = match connection.and_then(TcpExchange::awaited_thread) {
                Some(thread) => AttemptError::NotPolled { thread },
                None => io::Error::from(io::ErrorKind::TimedOut).into(),
            };
            self.fail(number, error);
        }
        Ok(())
    }

    fn handle_notices(&mut self) {
        let now = self.now();
        for notice in self.shared.notices.take() {
            match notice {
                Notice::Taken { thread } => self.dialer.set_polled(thread, true, now),
                Notice::Closed { thread } => {
                    self.dialer.set_polled(thread, false, now);
                    (0..self.shared.local.member_count)
                        .for_each(|member| self.count_sessions(PeerId(member)));
                }
                Notice::Wanted { thread, peer } => self.dialer.handle_wanted(peer, thread, now),
                Notice::SessionOpened { thread, peer } => {
                    self.dialer.handle_opened(peer, thread, now);
                    self.count_sessions(peer);
                    self.set_last_error(peer, None);
                }
                Notice::SessionEnded { thread, peer, reason } => {
                    self.dialer.handle_ended(peer, thread, reason == EndReason::Left, now);
                    self.set_last_end(peer, reason);
                    self.count_sessions(peer);
                }
                Notice::Prepared { attempt, result } => {
                    let result = result.map_err(ExchangeError::from);
                    self.step(attempt, |driver, connection| match result {
                        Ok(offer) => {
                            let step = connection.exchange.prepared(&offer);
                            driver.perform(attempt, connection, step)
                        }
                        Err(error) => Err(connection.exchange.refuse(error).into()),
                    });
                }
                Notice::Opened { attempt, result } => match result {
                    Ok(()) => self.finish(attempt),
                    Err(error) => self.fail(attempt, ExchangeError::from(error).into()),
                },
                Notice::Resolved { attempt, result } => {
                    self.step(attempt, |driver, connection| driver.connect(connection, result?));
                }
                Notice::Stop => self.is_stopped = true,
            }
        }
    }

    /// Accepts a connection.
    fn accept(&mut self) {
        let (stream, addr) = match self.listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                // For example, the process has no free descriptor.
                if self.accept_warnings.admits(Instant::now()) {
                    tracing::warn!(%error, "accepting members' connections fails");
                }
                std::thread::sleep(MIN_BACKOFF);
                return;
            }
        };
        let Ok(nonce) = random_nonce() else { return };
        if stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).is_err() {
            return;
        }
        if self.inbound_count >= places::place_count(self.member_ips.len()) {
            self.evict();
        }
        self.inbound_count += 1;
        let exchange = Exchange::listen(Arc::clone(&self.shared.key), self.shared.local, nonce);
        self.add(Some(stream), Some(addr), exchange, None);
    }

    /// Closes an inbound connection, to make room for a new one.
    fn evict(&mut self) {
        let now = Instant::now();
        if self.member_ips_updated_at.is_none_or(|at| now > at + MEMBER_IPS_INTERVAL) {
            self.member_ips_updated_at = Some(now);
            for (member, ip) in self.member_ips.iter_mut().enumerate() {
                let known = self.shared.membership.known_addr(member);
                *ip = known.map(|addr| addr.ip().to_canonical()).or(*ip);
            }
        }
        let inbound = self.connections.iter().filter(|(_, connection)| connection.attempt.is_none());
        let inbound = Vec::from_iter(inbound.filter_map(|(number, connection)| {
            let ip = connection.addr?.ip().to_canonical();
            Some(Inbound { number: *number, ip, message_count: connection.message_count })
        }));
        let members = self.member_ips.iter().copied().flatten();
        if let Some(number) = places::choose_evicted(&inbound, members) {
            self.fail(number, AttemptError::Evicted);
        }
    }

    fn start_attempt(&mut self, attempt: Attempt) {
        let Local { cluster, this_member, .. } = self.shared.local;
        let Attempt { peer, thread, purpose } = attempt;
        let hello = Hello { cluster, from: this_member, to: peer.0, thread, purpose };
        // Without random bytes, the nonce is zero, and the attempt fails below.
        let nonce = random_nonce();
        let exchange =
            Exchange::dial(Arc::clone(&self.shared.key), &hello, nonce.as_ref().unwrap_or(&[0; NONCE_LEN]));
        let number = self.add(None, None, exchange, Some(attempt));
        if let Err(error) = nonce {
            return self.fail(number, error.into());
        }
        match self.shared.membership.known_addr(usize::from(peer.0)) {
            Some(addr) => self.step(number, |driver, connection| driver.connect(connection, addr)),
            None => self.resolve(number, peer),
        }
    }

    /// Resolves a member's address in a thread that may block.
    fn resolve(&mut self, number: u64, peer: PeerId) {
        if self.resolver.is_none() {
            let (requests, received) = mpsc::channel();
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("adverb-resolve".into());
            match thread.spawn(move || run_resolver(&shared, &received)) {
                Ok(_) => self.resolver = Some(requests),
                Err(error) => return self.fail(number, error.into()),
            }
        }
        if let Some(resolver) = &self.resolver {
            // The thread ends only with this one.
            let _ = resolver.send((number, peer.0));
        }
    }

    fn connect(&mut self, connection: &mut TcpExchange, addr: SocketAddr) -> Result<()> {
        let stream = start_connect(addr)?;
        stream.set_nodelay(true)?;
        connection.stream = Some(stream);
        connection.addr = Some(addr);
        connection.is_connecting = true;
        if let Some(Attempt { peer, .. }) = connection.attempt {
            self.member_ips[usize::from(peer.0)] = Some(addr.ip().to_canonical());
        }
        connection.reset_deadline();
        Ok(())
    }

    fn add(
        &mut self,
        stream: Option<TcpStream>,
        addr: Option<SocketAddr>,
        exchange: Exchange,
        attempt: Option<Attempt>,
    ) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        // A resolver may take longer than a step.
        let timeout = if stream.is_some() { STEP_TIMEOUT } else { READY_TIMEOUT };
        let connection = TcpExchange {
            stream,
            addr,
            is_connecting: false,
            exchange,
            message_count: 0,
            attempt,
            session: None,
            deadline: Instant::now() + timeout,
            is_finishing: false,
        };
        self.connections.insert(number, connection);
        number
    }

    /// Performs a step of a connection that may not exist anymore. A failure ends the connection.
    fn step(&mut self, number: u64, step: impl FnOnce(&mut Driver, &mut TcpExchange) -> Result<()>) {
        let Some(mut connection) = self.connections.remove(&number) else { return };
        let result = step(self, &mut connection).and_then(|()| Ok(connection.write()?));
        self.connections.insert(number, connection);
        match result {
            Ok(()) => self.finish_if_written(number),
            Err(error) => self.fail(number, error),
        }
    }

    /// Reads and writes as far as the socket allows.
    fn progress(&mut self, number: u64) -> Result<()> {
        let Some(mut connection) = self.connections.remove(&number) else { return Ok(()) };
        let result = self.progress_connection(number, &mut connection);
        self.connections.insert(number, connection);
        result?;
        self.finish_if_written(number);
        Ok(())
    }

    fn progress_connection(&mut self, number: u64, connection: &mut TcpExchange) -> Result<()> {
        if connection.interest() == Interest::Nothing {
            // Only an error or the end of the connection is reported then.
            return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
        }
        let Some(stream) = &connection.stream else { return Ok(()) };
        if connection.is_connecting {
            if let Some(error) = stream.take_error()? {
                return Err(error.into());
            }
            connection.is_connecting = false;
            connection.reset_deadline();
        }
        connection.write()?;
        loop {
            let mut bytes = [0; 256];
            let wanted = connection.exchange.missing_len().min(bytes.len());
            if wanted == 0 {
                return Ok(());
            }
            let Some(bytes) = connection.read(&mut bytes[..wanted])? else { return Ok(()) };
            let step = connection.exchange.handle_bytes(bytes)?;
            // Only a complete message extends the deadline, so a peer that sends single bytes gets no more time than
            // others.
            if !connection.exchange.is_partial() {
                connection.message_count += 1;
                self.perform(number, connection, step)?;
                connection.write()?;
            }
        }
    }

    fn perform(&mut self, number: u64, connection: &mut TcpExchange, step: Step) -> Result<()> {
        match step {
            Step::Read => {
                connection.reset_deadline();
                Ok(())
            }
            Step::Prepare(peer) => {
                let prepared = match (peer, connection.attempt) {
                    (Some((hello, offer)), _) => {
                        self.prepare(number, PeerId(hello.from), hello.thread, Some(offer.epoch))
                    }
                    (None, Some(Attempt { peer, thread, .. })) => self.prepare(number, peer, thread, None),
                    (None, None) => Err(ExchangeError::UnknownProtocol.into()),
                };
                match prepared {
                    Ok(session) => connection.session = Some(session),
                    Err(AttemptError::Exchange(error)) => {
                        return Err(connection.exchange.refuse(error).into());
                    }
                    Err(error) => {
                        connection.exchange.refuse(ExchangeError::Busy);
                        return Err(error);
                    }
                }
                connection.reset_deadline();
                Ok(())
            }
            Step::Connect(offer) => {
                if let Err(error) = self.connect_queue_pair(connection, &offer) {
                    connection.exchange.refuse(ExchangeError::Busy);
                    return Err(error);
                }
                let step = connection.exchange.connected();
                self.perform(number, connection, step)
            }
            Step::Open(offer) => {
                connection.write()?;
                if !connection.exchange.has_output() {
                    // The peer may close the connection before the broker replies.
                    connection.stream = None;
                }
                connection.reset_deadline();
                let Some(PreparedSession { peer, thread, .. }) = connection.session else { return Ok(()) };
                let mailbox = &self.shared.threads[usize::from(thread)].mailbox;
                mailbox.send(Command::Open { peer, attempt: number, offer });
                Ok(())
            }
            Step::Invited(hello) => {
                self.dialer.handle_invitation(PeerId(hello.from), hello.thread, self.now());
                connection.is_finishing = true;
                Ok(())
            }
            Step::Finish => {
                connection.is_finishing = true;
                Ok(())
            }
        }
    }

    /// Asks a broker to prepare a session over a new queue pair.
    fn prepare(
        &self,
        number: u64,
        peer: PeerId,
        thread: u16,
        peer_epoch: Option<u64>,
    ) -> Result<PreparedSession> {
        let Some(BrokerThread { mailbox, queue_pairs }) = self.shared.threads.get(usize::from(thread)) else {
            return Err(ExchangeError::ListsDiffer.into());
        };
        if !mailbox.is_taken() {
            return Err(ExchangeError::Busy.into());
        }
        let queue_pair = Arc::new(queue_pairs.clone().create()?);
        let session = PreparedSession { peer, thread, queue_pair: Arc::clone(&queue_pair) };
        mailbox.send(Command::Prepare { peer, attempt: number, queue_pair, peer_epoch });
        Ok(session)
    }

    fn connect_queue_pair(&self, connection: &TcpExchange, offer: &Offer) -> Result<()> {
        let (Some(session), Some(addr)) = (&connection.session, connection.addr) else { return Ok(()) };
        let queue_pair = &session.queue_pair;
        let device = queue_pair.protection_domain().device();
        let is_on_ip_network = device.is_on_ip_network() && queue_pair.link_layer() != LinkLayer::InfiniBand;
        let (offered, addr): (IpAddr, _) = (offer.endpoint.gid.udp_addr().ip(), addr.ip().to_canonical());
        // A member must not direct this member's packets to a third party.
        if is_on_ip_network && offered != addr && !(offered.is_loopback() && addr.is_loopback()) {
            return Err(AttemptError::ForeignAddress { offered });
        }
        Ok(queue_pair.connect_with(&offer.endpoint, &self.shared.connect_options)?)
    }

    fn finish_if_written(&mut self, number: u64) {
        let connection = self.connections.get(&number);
        if connection.is_some_and(|connection| connection.is_finishing && !connection.exchange.has_output()) {
            self.finish(number);
        }
    }

    /// Ends a connection whose exchange is complete.
    fn finish(&mut self, number: u64) {
        let now = self.now();
        if let Some(attempt) = self.remove(number) {
            self.dialer.handle_finished(attempt, Outcome::Established, now);
        }
    }

    /// Ends a connection whose exchange failed.
    fn fail(&mut self, number: u64, error: AttemptError) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        // The peer may learn the reason.
        let _ = connection.write();
        let (addr, peer) = (connection.addr, connection.exchange.peer());
        // Members with wrong settings connect repeatedly, and other hosts connect for other reasons.
        let is_io = matches!(error, AttemptError::Io(_));
        let is_busy = matches!(error, AttemptError::Evicted | AttemptError::Exchange(ExchangeError::Busy));
        let now = self.now();
        let attempt = self.remove(number);
        let Local { this_member, member_count, .. } = self.shared.local;
        let Some(peer) = peer.filter(|peer| *peer < member_count && *peer != this_member) else {
            tracing::debug!(
                addr = addr.map(tracing::field::display),
                error = %WithCauses(&error),
                "a connection of an unknown host was closed"
            );
            return;
        };
        let peer = PeerId(peer);
        let error = error.identify(peer, addr, self.shared.epoch);
        let cause = WithCauses(&error);
        if let Some(attempt) = attempt {
            let outcome = if is_io { Outcome::Unreachable } else { Outcome::Failed };
            let Attempt { thread, purpose, .. } = attempt;
            if self.dialer.handle_finished(attempt, outcome, now) {
                tracing::warn!(
                    thread,
                    error = %cause,
                    "a session was not established: the cluster keeps trying"
                );
            } else {
                tracing::debug!(thread, ?purpose, error = %cause, "a session was not established");
            }
            return self.set_last_error(peer, Some(error));
        }
        if !is_io && !is_busy && self.exchange_warnings.admits(Instant::now()) {
            tracing::warn!(error = %cause, "an inbound session was not established");
        } else {
            tracing::debug!(error = %cause, "an inbound session was not established");
        }
        // Any host can claim to be a member. A member that closes the connection knows the reason better.
        if !is_io && !is_busy && self.dialer.open_session_count(peer) == 0 {
            self.set_last_error(peer, Some(error));
        }
    }

    fn set_last_error(&self, peer: PeerId, error: Option<EstablishError>) {
        if let Some(status) = self.shared.status.lock().get_mut(usize::from(peer.0)) {
            status.last_error = error;
        }
    }

    fn set_last_end(&self, peer: PeerId, reason: EndReason) {
        if let Some(status) = self.shared.status.lock().get_mut(usize::from(peer.0)) {
            status.last_end = Some(reason);
        }
    }

    /// Updates the number of open sessions in the state of a member.
    fn count_sessions(&self, peer: PeerId) {
        if let Some(status) = self.shared.status.lock().get_mut(usize::from(peer.0)) {
            status.open_session_count = self.dialer.open_session_count(peer);
        }
    }

    /// Removes a connection, and returns its attempt if this member dialed. Its session is closed, unless it is open.
    fn remove(&mut self, number: u64) -> Option<Attempt> {
        let connection = self.connections.remove(&number)?;
        if let Some(PreparedSession { peer, thread, .. }) = connection.session {
            let mailbox = &self.shared.threads[usize::from(thread)].mailbox;
            mailbox.abort(peer, number);
        }
        if connection.attempt.is_none() {
            self.inbound_count -= 1;
        }
        connection.attempt
    }
}

impl TcpExchange {
    fn interest(&self) -> Interest {
        let has_output = self.exchange.has_output();
        match self.exchange.missing_len() {
            _ if self.is_connecting || has_output => Interest::Write,
            0 => Interest::Nothing,
            _ => Interest::Read,
        }
    }

    /// Returns the thread whose broker must reply, if that is the next step.
    fn awaited_thread(&self) -> Option<u16> {
        let session = self.session.as_ref()?;
        (self.exchange.missing_len() == 0).then_some(session.thread)
    }

    /// Sets the time limit of the next step.
    fn reset_deadline(&mut self) {
        let timeout = match () {
            () if self.exchange.awaits_ready() => READY_TIMEOUT,
            () if self.awaited_thread().is_some() => BROKER_TIMEOUT,
            () => STEP_TIMEOUT,
        };
        self.deadline = Instant::now() + timeout;
    }

    /// Writes as much as the socket accepts.
    fn write(&mut self) -> io::Result<()> {
        let Some(stream) = self.stream.as_mut().filter(|_| !self.is_connecting) else { return Ok(()) };
        let output = self.exchange.output();
        while !output.is_empty() {
            match stream.write(output) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads bytes, or returns `None` if there are none yet.
    fn read<'a>(&mut self, bytes: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        loop {
            match stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => return Ok(Some(&bytes[..count])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn random_nonce() -> io::Result<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// Resolves addresses until the driver has ended.
fn run_resolver(shared: &ClusterState, requests: &Receiver<(u64, u16)>) {
    while let Ok((attempt, member)) = requests.recv() {
        let result = shared.membership.resolve(usize::from(member));
        shared.notices.push(Notice::Resolved { attempt, result });
    }
}
