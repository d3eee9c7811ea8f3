//! A listener, and the handshakes of peers that have connected to it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adverb_verbs::internal::{Deadline, Interest, OwnerProcess, Watch, WithCauses};
use adverb_verbs::{self as verbs, cm, internal};
use parking_lot::Mutex;

use super::devices::ServedDevices;
use super::handshake::Handshake;
use super::log::FailureLog;
use super::sources::Sources;
use crate::driver::{Driver, Established, FindSession, LaneParts, LanePurpose, register_exposures};
use crate::error::{AcceptError, BindError, ExposeError, HandshakeError, os_error};
use crate::options::{Bootstrap, Options};
use crate::shared_region::Exposure;

/// The state that a listener of either API shares with the redialer. It can be stopped and started again.
pub(crate) struct Listening {
    owner: OwnerProcess,
    address: SocketAddr,
    options: Options,
    exposures: Arc<[Exposure]>,
    find: FindSession,
    devices: Arc<ServedDevices>,
    acceptor: Mutex<Option<Acceptor>>,
    /// The accepted connections of each source. They also count while the listener is stopped, and after it is started
    /// again.
    sources: Mutex<Sources<Driver>>,
    /// The number of calls that wait for a connection.
    accepting: AtomicUsize,
}

/// The registration of a call that waits for a connection. Until it is dropped, that call drives the handshakes.
pub(crate) struct Accepting<'a>(&'a Listening);

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        self.0.accepting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The result of [`Listening::poll`].
pub(crate) enum Accepted {
    Connection(Arc<Driver>),
    /// There is no connection. Poll again when the descriptor is readable, or after this time.
    Wait(Arc<AcceptFd>, Duration),
}

/// The result of [`Listening::serve`].
pub(crate) enum ServeResult {
    /// Serve again when the descriptor is readable, or after this time.
    Wait(Arc<AcceptFd>, Duration),
    /// A call that accepts drives the handshakes, the listener is stopped, its queue is full, or accepting has failed.
    Skipped,
}

/// A descriptor that is readable when a handshake can make progress, or the listener was stopped.
pub(crate) struct AcceptFd {
    watch: Watch,
    /// Ends when the listener stops.
    _stop: PipeReader,
}

impl AsFd for AcceptFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// The sockets of a listener, and the pending handshakes. Handshakes do not delay each other.
struct Acceptor {
    address: SocketAddr,
    find: FindSession,
    /// The regions that each peer gets.
    exposures: Arc<[Exposure]>,
    devices: Arc<ServedDevices>,
    tcp: Option<TcpListener>,
    manager: Option<cm::Listener>,
    /// The handshakes, by the tokens under which they are watched.
    pending: HashMap<u64, Handshake>,
    next_token: u64,
    /// The tokens of handshakes that are to be polled.
    ready: VecDeque<u64>,
    /// Connections that have not announced all regions. No call uses them, so the acceptor drives them.
    announcing: Vec<Announcing>,
    /// Connections that no call has accepted yet.
    connected: VecDeque<Arc<Driver>>,
    /// Whether the sockets are watched for further peers.
    has_accept_interest: bool,
    log: FailureLog,
    accept_fd: Arc<AcceptFd>,
    /// Dropping it makes the descriptor readable.
    _stop: PipeWriter,
}

/// A connection that announces the listener's regions.
struct Announcing {
    driver: Arc<Driver>,
    /// The number of the last region.
    last: u64,
    /// The time at which the connection is accepted anyway: the peer may not receive the announcements.
    deadline: Deadline,
}

/// A peer that has connected, and the handshake with it.
type Incoming = (SocketAddr, Result<Handshake, HandshakeError>);

/// The token of the sockets; the tokens of handshakes are greater.
const SOCKETS: u64 = 0;
/// Maximum number of pending handshakes, and of connections that no call has accepted. The kernel queues further peers.
const MAX_PENDING: usize = 256;
/// The time without progress after which a handshake is dropped while further peers may be queued.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// The interval in which connections that announce regions are polled. Most announce all of them at once.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(1);
/// The number of ports to try for port 0: a port that is free for TCP may be in use in the connection manager.
const PORT_ATTEMPTS: usize = 16;

impl Listening {
    /// Listens at the first of the addresses that is available, and exposes regions to each peer. There is at least one
    /// address. `find` returns the connection of a peer that reconnects.
    pub(crate) fn bind(
        addresses: &[SocketAddr],
        options: &Options,
        exposures: &[Exposure],
        find: FindSession,
    ) -> Result<Listening, BindError> {
        options.check()?;
        check_names(exposures)?;
        let mut bound = Listening::at(addresses[0], options, exposures, find);
        for address in &addresses[1..] {
            bound = bound.or_else(|_| Listening::at(*address, options, exposures, find));
        }
        bound
    }

    fn at(
        address: SocketAddr,
        options: &Options,
        exposures: &[Exposure],
        find: FindSession,
    ) -> Result<Listening, BindError> {
        let (mut options, exposures) = (options.clone(), Arc::<[Exposure]>::from(exposures));
        if !exposures.is_empty() {
            options.share_domain();
        }
        let devices =
            ServedDevices::open(address.ip(), &options).map_err(|error| no_device(address, error))?;
        let devices = Arc::new(devices);
        // Registering takes long, so it does not wait until a peer connects.
        for device in devices.iter() {
            register_exposures(device, address, &options, &exposures)?;
        }
        let mut attempt = 0;
        loop {
            match Acceptor::open(address, &options, &exposures, find, &devices) {
                Ok((acceptor, address)) => {
                    let (acceptor, accepting) = (Mutex::new(Some(acceptor)), AtomicUsize::new(0));
                    let (sources, owner) = (Mutex::new(Sources::new()), OwnerProcess::current());
                    return Ok(Listening {
                        owner,
                        address,
                        options,
                        exposures,
                        find,
                        devices,
                        acceptor,
                        sources,
                        accepting,
                    });
                }
                Err(BindError::AddrInUse { .. }) if address.port() == 0 && attempt < PORT_ATTEMPTS => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Registers a call that waits for connections.
    pub(crate) fn accepting(&self) -> Accepting<'_> {
        self.accepting.fetch_add(1, Ordering::Relaxed);
        Accepting(self)
    }

    /// Drives the handshakes on behalf of broken connections whose peers reconnect, unless a call that accepts drives
    /// them. Never blocks. New connections are queued for the next call that accepts.
    pub(crate) fn serve(&self, now: Instant) -> ServeResult {
        // A call that holds the lock drives the handshakes.
        let Some(mut acceptor) = self.acceptor.try_lock() else { return ServeResult::Skipped };
        let Some(acceptor) = &mut *acceptor else { return ServeResult::Skipped };
        loop {
            // (A call that begins to accept after this check finds the queued connections.)
            if self.accepting.load(Ordering::Relaxed) > 0 || acceptor.connected.len() >= MAX_PENDING {
                return ServeResult::Skipped;
            }
            match acceptor.poll(&self.options, &self.sources, now) {
                Ok(Some(driver)) => acceptor.connected.push_back(driver),
                Ok(None) => {
                    return ServeResult::Wait(Arc::clone(&acceptor.accept_fd), acceptor.time_left(now));
                }
                Err(error) => {
                    tracing::debug!(error = %WithCauses(&error), "could not accept a connection");
                    return ServeResult::Skipped;
                }
            }
        }
    }

    /// Returns the next connection, if there is one. Never blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the listener is stopped, or the system cannot accept another connection.
    pub(crate) fn poll(&self, _: &Accepting<'_>) -> Result<Accepted, AcceptError> {
        let now = Instant::now();
        let mut acceptor = self.acceptor.lock();
        let Some(acceptor) = &mut *acceptor else {
            return Err(AcceptError::Stopped { address: self.address });
        };
        let connected = acceptor.connected.pop_front();
        match connected
            .map_or_else(|| acceptor.poll(&self.options, &self.sources, now), |driver| Ok(Some(driver)))?
        {
            Some(driver) => Ok(Accepted::Connection(driver)),
            None => Ok(Accepted::Wait(Arc::clone(&acceptor.accept_fd), acceptor.time_left(now))),
        }
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.acceptor.lock().is_some()
    }

    /// Listens again at the same address.
    pub(crate) fn start(&self) -> Result<(), BindError> {
        let mut acceptor = self.acceptor.lock();
        if acceptor.is_none() {
            *acceptor = Some(
                Acceptor::open(self.address, &self.options, &self.exposures, self.find, &self.devices)?.0,
            );
        }
        Ok(())
    }

    /// Ends a listener that is dropped. In a forked child, it is leaked: a thread that the child doesn't have may hold its
    /// lock.
    pub(crate) fn end(listening: &Arc<Listening>) {
        if listening.owner.is_current() {
            // The redialer may hold a reference for a moment, so dropping this one does not always close the sockets.
            listening.stop();
        } else {
            std::mem::forget(Arc::clone(listening));
        }
    }

    /// Stops listening. Calls that wait for a connection return an error.
    pub(crate) fn stop(&self) {
        // The handshakes are dropped without the lock, so that `is_listening` is not delayed.
        let stopped = self.acceptor.lock().take();
        drop(stopped);
    }
}

impl Acceptor {
    /// Listens at an address: over TCP, or by the connection manager, or both at the same port.
    fn open(
        address: SocketAddr,
        options: &Options,
        exposures: &Arc<[Exposure]>,
        find: FindSession,
        devices: &Arc<ServedDevices>,
    ) -> Result<(Acceptor, SocketAddr), BindError> {
        let failed = |error| BindError::socket(address, error);
        let (watch, (reader, writer)) = (Watch::new().map_err(failed)?, io::pipe().map_err(failed)?);
        let (tcp, address) = match options.bootstrap {
            Bootstrap::ConnectionManager => (None, address),
            Bootstrap::Auto | Bootstrap::Tcp => {
                let tcp = TcpListener::bind(address).map_err(failed)?;
                tcp.set_nonblocking(true).map_err(failed)?;
                let address = tcp.local_addr().map_err(failed)?;
                (Some(tcp), address)
            }
        };
        let manager = match options.bootstrap {
            Bootstrap::ConnectionManager => Some(listen(address, options, devices)?),
            Bootstrap::Auto if has_manager(address, devices) => match listen(address, options, devices) {
                Ok(manager) => Some(manager),
                Err(error @ BindError::AddrInUse { .. }) => return Err(error),
                Err(error) => {
                    tracing::debug!(%address, error = %WithCauses(&error), "the connection manager cannot listen at this address; listening over TCP only");
                    None
                }
            },
            Bootstrap::Auto | Bootstrap::Tcp => None,
        };
        let address = manager
            .as_ref()
            .map_or(address, |manager| SocketAddr::new(address.ip(), manager.local_addr().port()));
        watch.add(reader.as_fd()).map_err(failed)?;
        let mut acceptor = Acceptor {
            address,
            find,
            exposures: Arc::clone(exposures),
            devices: Arc::clone(devices),
            tcp,
            manager,
            pending: HashMap::new(),
            next_token: SOCKETS + 1,
            ready: VecDeque::new(),
            announcing: Vec::new(),
            connected: VecDeque::new(),
            has_accept_interest: false,
            log: FailureLog::new(),
            accept_fd: Arc::new(AcceptFd { watch, _stop: reader }),
            _stop: writer,
        };
        acceptor.set_accept_interest(true).map_err(failed)?;
        Ok((acceptor, address))
    }

    /// Watches the sockets for further peers, or leaves those in the kernel's queues.
    fn set_accept_interest(&mut self, enabled: bool) -> io::Result<()> {
        if enabled == self.has_accept_interest {
            return Ok(());
        }
        self.has_accept_interest = enabled;
        let (tcp, manager) = (self.tcp.as_ref().map(AsFd::as_fd), self.manager.as_ref().map(AsFd::as_fd));
        let watch = &self.accept_fd.watch;
        let mut sockets = tcp.into_iter().chain(manager);
        sockets.try_for_each(|fd| match enabled {
            true => watch.add_as(fd, Interest::Read, SOCKETS),
            false => watch.remove(fd),
        })
    }

    /// Accepts peers, and polls the handshakes that can make progress. Returns a new connection, if one is established.
    /// A handshake that resumes a session has passed its lane to the broken connection.
    fn poll(
        &mut self,
        options: &Options,
        sources: &Mutex<Sources<Driver>>,
        now: Instant,
    ) -> Result<Option<Arc<Driver>>, AcceptError> {
        let address = self.address;
        let failed = |error| AcceptError::system(address, error);
        self.log.flush();
        let is_done = |announcing: &Announcing| {
            announcing.driver.drive_announcements(announcing.last)
                || announcing.deadline.left_at(now).is_zero()
        };
        if let Some(index) = self.announcing.iter().position(is_done) {
            return Ok(Some(self.announcing.swap_remove(index).driver));
        }
        let has_shortage = self.accept_peers(options, now)?;
        let is_full = has_shortage || self.pending.len() >= MAX_PENDING;
        self.find_ready(is_full, now).map_err(failed)?;
        while let Some(token) = self.ready.pop_front() {
            // A handshake may be ready and due at the same time.
            let Some(handshake) = self.pending.get_mut(&token) else { continue };
            let polled = match handshake.poll(now) {
                // A silent peer must not delay other peers for long.
                Ok(None) if is_full && handshake.silence(now) >= MAX_SILENCE => {
                    Err(handshake.silence_error(now))
                }
                polled => polled,
            };
            match polled {
                Ok(None) => {}
                Ok(Some(established)) => {
                    let peer = handshake.peer();
                    self.pending.remove(&token);
                    self.set_accept_interest(true).map_err(failed)?;
                    let Established::New(driver) = established else { continue };
                    if !sources.lock().add(peer.ip(), &driver, options) {
                        self.log.record(peer, &TOO_MANY_CONNECTIONS);
                        continue;
                    }
                    match expose(&driver, &self.exposures) {
                        Ok(Some(last))
                            if self.announcing.len() < MAX_PENDING && !driver.drive_announcements(last) =>
                        {
                            let deadline = Deadline::new(options.connect_timeout);
                            self.announcing.push(Announcing { driver, last, deadline });
                        }
                        Ok(_) => return Ok(Some(driver)),
                        Err(error) => self.log.record(peer, &WithCauses(&error)),
                    }
                }
                Err(error) => {
                    self.log.record(handshake.peer(), &error);
                    self.pending.remove(&token);
                }
            }
        }
        // The pending handshakes hold the resources that the system lacks.
        let has_shortage = has_shortage && !self.pending.is_empty();
        self.set_accept_interest(!has_shortage && self.pending.len() < MAX_PENDING).map_err(failed)?;
        Ok(None)
    }

    /// Begins handshakes with peers that have connected. Returns whether the system lacks resources for more.
    fn accept_peers(&mut self, options: &Options, now: Instant) -> Result<bool, AcceptError> {
        while self.pending.len() < MAX_PENDING {
            let (peer, handshake) = match self.next(options, now) {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // The pending handshakes release their resources when they end.
                Err(error) if is_shortage(&error) && !self.pending.is_empty() => return Ok(true),
                Err(error) => return Err(error),
            };
            let token = self.next_token;
            let watched = handshake.and_then(|handshake| {
                let watch = &self.accept_fd.watch;
                let watched = watch.add_as(handshake.as_fd(), Interest::Read, token);
                watched.map_err(|error| HandshakeError::system("waiting for a peer", error))?;
                Ok(handshake)
            });
            match watched {
                Ok(handshake) => {
                    self.next_token += 1;
                    self.pending.insert(token, handshake);
                    self.ready.push_back(token);
                }
                Err(error) => self.log.record(peer, &error),
            }
        }
        Ok(false)
    }

    /// Finds the handshakes that can make progress, and those whose time is up.
    fn find_ready(&mut self, is_full: bool, now: Instant) -> io::Result<()> {
        let mut ready = Vec::new();
        self.accept_fd.watch.wait(&mut ready, Some(Duration::ZERO))?;
        self.ready.extend(ready.into_iter().filter(|token| *token != SOCKETS));
        let is_due = |(_, handshake): &(&u64, &Handshake)| {
            handshake.time_left(now).is_zero() || is_full && handshake.silence(now) >= MAX_SILENCE
        };
        self.ready.extend(self.pending.iter().filter(is_due).map(|(token, _)| *token));
        Ok(())
    }

    /// Returns the next peer that has connected, and the handshake with it.
    fn next(&self, options: &Options, now: Instant) -> Result<Option<Incoming>, AcceptError> {
        if let Some(tcp) = &self.tcp {
            match tcp.accept() {
                Ok((stream, peer)) => {
                    let (devices, purpose) = (Arc::clone(&self.devices), LanePurpose::Accept(self.find));
                    let handshake = Handshake::with_stream(stream, peer, devices, options, purpose, now);
                    return Ok(Some((peer, handshake)));
                }
                Err(error) if is_caused_by_peer(&error) => {}
                Err(error) => return Err(AcceptError::system(self.address, error)),
            }
        }
        let Some(manager) = &self.manager else { return Ok(None) };
        let accepted = manager.try_accept().map_err(|error| AcceptError::device(self.address, error))?;
        let Some(request) = accepted else { return Ok(None) };
        let peer = request.path().peer_addr();
        let purpose = LanePurpose::Accept(self.find);
        Ok(Some((peer, Handshake::with_request(request, &self.devices, options, purpose, now))))
    }

    /// Returns the time until the next deadline: of a pending handshake, or of the log.
    fn time_left(&self, now: Instant) -> Duration {
        if !self.ready.is_empty() {
            return Duration::ZERO;
        }
        let silence_left = |pending: &Handshake| match self.has_accept_interest {
            true => Duration::MAX,
            false => MAX_SILENCE.saturating_sub(pending.silence(now)),
        };
        let left = |pending: &Handshake| pending.time_left(now).min(silence_left(pending));
        if !self.announcing.is_empty() {
            return ANNOUNCE_INTERVAL;
        }
        self.pending.values().map(left).min().unwrap_or(Duration::MAX).min(self.log.time_left())
    }
}

/// The log's text about a connection that is ended.
const TOO_MANY_CONNECTIONS: &str = "this source has as many connections as the listener permits (hint: raise \
     `Options::max_connections_per_source`, or use a key)";

/// Checks that no two regions have the same name.
fn check_names(exposures: &[Exposure]) -> Result<(), BindError> {
    let mut names = HashSet::new();
    match exposures.iter().find(|exposure| !names.insert(&exposure.name)) {
        Some(exposure) => Err(BindError::DuplicateRegionName { name: (*exposure.name).into() }),
        None => Ok(()),
    }
}

/// Exposes the listener's regions to a peer, except those that were withdrawn from all peers. Returns the number of the
/// last one.
fn expose(driver: &Arc<Driver>, exposures: &[Exposure]) -> Result<Option<u64>, ExposeError> {
    let mut exposures = exposures.iter().filter(|exposure| !exposure.region.is_withdrawn());
    exposures.try_fold(None, |last, exposure| {
        match driver.expose_region(&exposure.name, &exposure.region, exposure.access) {
            Ok(announcement) => Ok(Some(announcement.detach())),
            // It may have been withdrawn just now.
            Err(ExposeError::Withdrawn) => Ok(last),
            Err(error) => Err(error),
        }
    })
}

/// Whether no peer has connected, or the peer has aborted: Linux reports errors of a new connection to `accept`.
fn is_caused_by_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable,
        TimedOut, WouldBlock,
    };
    let kind = error.kind();
    matches!(kind, WouldBlock | Interrupted | ConnectionAborted | ConnectionReset | TimedOut)
        || matches!(kind, HostUnreachable | NetworkUnreachable | NetworkDown)
        || error.raw_os_error() == Some(libc::EPROTO)
}

/// Whether the system lacks descriptors or memory for another connection.
fn is_shortage(error: &AcceptError) -> bool {
    use libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(os_error(error), Some(EMFILE | ENFILE | ENOBUFS | ENOMEM))
}

fn listen(
    address: SocketAddr,
    options: &Options,
    devices: &ServedDevices,
) -> Result<cm::Listener, BindError> {
    let builder =
        cm::Listener::builder().timeout(options.connect_timeout).options(LaneParts::connect_options(options));
    let is_wildcard = address.ip().to_canonical().is_unspecified();
    let builder = internal::hardware_only(builder, is_wildcard && devices.has_hardware_manager());
    builder.bind(address).map_err(|error| BindError::manager(address, error))
}

/// Returns the error of a listener without a device. The address may not belong to this machine.
fn no_device(address: SocketAddr, error: Option<verbs::Error>) -> BindError {
    if let Err(error) = TcpListener::bind((address.ip(), 0))
        && error.kind() == io::ErrorKind::AddrNotAvailable
    {
        return BindError::socket(address, error);
    }
    match error {
        Some(error) if !address.ip().to_canonical().is_unspecified() => BindError::device(address, error),
        error => BindError::NoDevice { address, source: error.map(Box::new) },
    }
}

/// Whether the connection manager can listen at this address.
fn has_manager(address: SocketAddr, devices: &ServedDevices) -> bool {
    match devices {
        ServedDevices::One(device) => {
            device.attributes().has_connection_manager && device.has_addr(address.ip().to_canonical())
        }
        ServedDevices::Wildcard(_) => devices.has_hardware_manager(),
    }
}
