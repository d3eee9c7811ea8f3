//! Who comes to a listener.

use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use adverb_verbs::internal::{Watch, wait_either};
use adverb_verbs::{Error, Result, cm, internal};
use parking_lot::Mutex;

use super::devices::ServedDevices;
use super::log::FailureLog;
use super::{Handshake, not_bound, not_watched, verb};
use crate::link::{Link, Parts};
use crate::{Bootstrap, Options};

/// A listener, of threads or of tasks: it can be stopped and started again.
pub(crate) struct Listening {
    address: SocketAddr,
    options: Options,
    devices: Arc<ServedDevices>,
    arrivals: Mutex<Option<Arrivals>>,
    /// How many wait for a connection.
    accepting: AtomicUsize,
}

/// Somebody waits for a connection, and lets those in who come, until this is dropped.
pub(crate) struct Accepting<'a>(&'a Listening);

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        self.0.accepting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What came of accepting.
pub(crate) enum Accepted {
    Connection(Box<Link>),
    /// Nobody, until the bell can be read, or this time has passed.
    Wait(Arc<Bell>, Duration),
}

/// Readable when somebody may have come, or the listener was stopped.
pub(crate) struct Bell {
    watch: Watch,
    /// Ends with the listening.
    _stop: PipeReader,
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// Where peers come, and those that have come and aren't connections yet: each in its own time, so that nobody waits for
/// another.
struct Arrivals {
    devices: Arc<ServedDevices>,
    tcp: Option<TcpListener>,
    manager: Option<cm::Listener>,
    pending: Vec<Handshake>,
    /// Connections that nobody has asked for yet.
    connected: VecDeque<Box<Link>>,
    /// Whether so many are pending that nobody else is looked at, until some are done or were slow.
    is_full: bool,
    log: FailureLog,
    bell: Arc<Bell>,
    /// Dropped, it rings the bell.
    _stop: PipeWriter,
}

/// How many may be on their way to be a connection. More wait to be looked at.
const MOST_PENDING: usize = 256;
/// How long each of them may do nothing while others may wait to be looked at.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many ports are tried if any will do, because one may be taken in one way and free in the other.
const ATTEMPTS: usize = 16;

impl Listening {
    /// Begins to listen at the first of the addresses that can be had.
    pub(crate) fn bind(addresses: &[SocketAddr], options: &Options) -> Result<Listening> {
        let mut failure = None;
        for address in addresses {
            match Listening::at(*address, options) {
                Ok(listening) => return Ok(listening),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| not_bound(io::Error::other("the host name has no address"))))
    }

    fn at(address: SocketAddr, options: &Options) -> Result<Listening> {
        let options = options.clone();
        let devices = Arc::new(ServedDevices::open(address.ip(), &options)?);
        let mut tried = 0;
        loop {
            match Arrivals::open(address, &options, &devices) {
                Ok((arrivals, address)) => {
                    let (arrivals, accepting) = (Mutex::new(Some(arrivals)), AtomicUsize::new(0));
                    return Ok(Listening { address, options, devices, arrivals, accepting });
                }
                Err(error) if address.port() != 0 || tried == ATTEMPTS || !is_taken(&error) => {
                    return Err(error);
                }
                Err(_) => tried += 1,
            }
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to wait for connections.
    pub(crate) fn accepting(&self) -> Accepting<'_> {
        self.accepting.fetch_add(1, Ordering::Relaxed);
        Accepting(self)
    }

    /// Lets those in who come, for connections of theirs to go on, for a while. If anybody accepts, that one does so.
    pub(crate) fn serve(&self, time: Duration) {
        let mut arrivals = self.arrivals.lock();
        let mut bell = None;
        // (Who begins to accept meanwhile waits for the lock, and then finds what was found here.)
        if let Some(arrivals) = &mut *arrivals
            && self.accepting.load(Ordering::Relaxed) == 0
            && arrivals.connected.len() < MOST_PENDING
        {
            match arrivals.poll(&self.options) {
                Ok(Some(link)) => arrivals.connected.push_back(link),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "could not accept a connection"),
            }
            bell = Some(Arc::clone(&arrivals.bell));
        }
        drop(arrivals);
        match bell {
            // If it can't be waited for, the time is soon over.
            Some(bell) => drop(wait_either(bell.as_fd(), None, Some(time))),
            None => std::thread::sleep(time),
        }
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    ///
    /// If the listener is stopped, or no more can be accepted.
    pub(crate) fn poll(&self, _: &Accepting<'_>) -> Result<Accepted> {
        let mut arrivals = self.arrivals.lock();
        let Some(arrivals) = &mut *arrivals else {
            let error = io::Error::other("the listener is stopped");
            return Err(verb("accepting a connection", error, "call `start` to listen again"));
        };
        let connected = arrivals.connected.pop_front();
        match connected.map_or_else(|| arrivals.poll(&self.options), |link| Ok(Some(link)))? {
            Some(link) => Ok(Accepted::Connection(link)),
            None => Ok(Accepted::Wait(Arc::clone(&arrivals.bell), arrivals.left())),
        }
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.arrivals.lock().is_some()
    }

    /// Listens again at the address where it did before.
    pub(crate) fn start(&self) -> Result<()> {
        let mut arrivals = self.arrivals.lock();
        if arrivals.is_none() {
            *arrivals = Some(Arrivals::open(self.address, &self.options, &self.devices)?.0);
        }
        Ok(())
    }

    /// Listens no more; who waits for a connection is told.
    pub(crate) fn stop(&self) {
        // Handshakes are given up without holding up who looks whether it still listens.
        let stopped = self.arrivals.lock().take();
        drop(stopped);
    }
}

impl Arrivals {
    /// Listens at an address: over TCP, or by the connection manager, or both at the same port.
    fn open(
        address: SocketAddr,
        options: &Options,
        devices: &Arc<ServedDevices>,
    ) -> Result<(Arrivals, SocketAddr)> {
        let (watch, (reader, writer)) =
            (Watch::new().map_err(not_watched)?, io::pipe().map_err(not_watched)?);
        let (tcp, address) = match options.bootstrap {
            Bootstrap::ConnectionManager => (None, address),
            Bootstrap::Auto | Bootstrap::Tcp => {
                let tcp = TcpListener::bind(address).map_err(not_bound)?;
                tcp.set_nonblocking(true).map_err(not_bound)?;
                let address = tcp.local_addr().map_err(not_bound)?;
                (Some(tcp), address)
            }
        };
        let manager = match options.bootstrap {
            Bootstrap::ConnectionManager => Some(listen(address, options, devices)?),
            Bootstrap::Auto if has_manager(address, devices) => match listen(address, options, devices) {
                Ok(manager) => Some(manager),
                Err(error) if is_taken(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!(%address, %error, "the connection manager cannot listen at this address; listening over TCP only");
                    None
                }
            },
            Bootstrap::Auto | Bootstrap::Tcp => None,
        };
        let address = manager
            .as_ref()
            .map_or(address, |manager| SocketAddr::new(address.ip(), manager.local_addr().port()));
        watch.add(reader.as_fd()).map_err(not_watched)?;
        let bell = Arc::new(Bell { watch, _stop: reader });
        let (pending, connected) = (Vec::new(), VecDeque::new());
        let arrivals = Arrivals {
            devices: Arc::clone(devices),
            tcp,
            manager,
            pending,
            connected,
            is_full: false,
            log: FailureLog::new(),
            bell,
            _stop: writer,
        };
        for fd in arrivals.doors() {
            arrivals.bell.watch.add(fd).map_err(not_watched)?;
        }
        Ok((arrivals, address))
    }

    /// Where peers come.
    fn doors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (tcp, manager) = (self.tcp.as_ref().map(AsFd::as_fd), self.manager.as_ref().map(AsFd::as_fd));
        tcp.into_iter().chain(manager)
    }

    /// Looks at the doors, or lets those wait who are there, as there is room.
    fn mind_the_doors(&mut self, is_full: bool) -> Result<()> {
        if is_full != self.is_full {
            self.is_full = is_full;
            let watch = &self.bell.watch;
            let minded =
                self.doors().try_for_each(|fd| if is_full { watch.remove(fd) } else { watch.add(fd) });
            minded.map_err(not_watched)?;
        }
        Ok(())
    }

    /// Takes in who has come, and goes on with those that have. Returns one that has become a connection.
    fn poll(&mut self, options: &Options) -> Result<Option<Box<Link>>> {
        self.log.flush();
        let mut is_short = false;
        while self.pending.len() < MOST_PENDING {
            let (peer, handshake) = match self.next(options) {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // Those who are pending have what is short, and not for ever.
                Err(error) if is_shortage(&error) && !self.pending.is_empty() => {
                    is_short = true;
                    break;
                }
                Err(error) => return Err(error),
            };
            let watched = handshake.and_then(|handshake| {
                self.bell.watch.add(handshake.as_fd()).map_err(not_watched)?;
                Ok(handshake)
            });
            match watched {
                Ok(handshake) => self.pending.push(handshake),
                Err(error) => self.log.record(peer, &error),
            }
        }
        let is_full = is_short || self.pending.len() >= MOST_PENDING;
        let mut index = 0;
        while let Some(handshake) = self.pending.get_mut(index) {
            let polled = match handshake.poll() {
                // Who comes to keep others out doesn't for long.
                Ok(None) if is_full && handshake.silence() >= PATIENCE => Err(handshake.too_slow()),
                polled => polled,
            };
            match polled {
                Ok(None) => index += 1,
                Ok(Some(link)) => {
                    self.pending.swap_remove(index);
                    self.mind_the_doors(false)?;
                    match link.goes_on() {
                        // One that is here already goes on.
                        Some(broken) => broken.adopt(*link),
                        None => return Ok(Some(link)),
                    }
                }
                Err(error) => {
                    self.log.record(handshake.peer(), &error);
                    self.pending.swap_remove(index);
                }
            }
        }
        // Who is pending still has what was short.
        let is_short = is_short && !self.pending.is_empty();
        self.mind_the_doors(is_short || self.pending.len() >= MOST_PENDING)?;
        Ok(None)
    }

    /// The next who has come, and what is begun with it.
    fn next(&self, options: &Options) -> Result<Option<(SocketAddr, Result<Handshake>)>> {
        if let Some(tcp) = &self.tcp {
            match tcp.accept() {
                Ok((stream, peer)) => {
                    let devices = Arc::clone(&self.devices);
                    return Ok(Some((peer, Handshake::with_stream(stream, peer, devices, options))));
                }
                Err(error) if is_the_peers(&error) => {}
                Err(error) => {
                    let hint = "raise the limit of open files (`ulimit -n`)";
                    return Err(verb("accepting a connection", error, hint));
                }
            }
        }
        let Some(manager) = &self.manager else { return Ok(None) };
        let Some(request) = manager.try_accept()? else { return Ok(None) };
        let peer = request.path().peer_addr();
        Ok(Some((peer, Handshake::with_request(request, &self.devices, options))))
    }

    /// Returns the time until the next deadline: of a pending handshake, or of the log.
    fn left(&self) -> Duration {
        let patience = |pending: &Handshake| match self.is_full {
            true => PATIENCE.saturating_sub(pending.silence()),
            false => Duration::MAX,
        };
        let left = |pending: &Handshake| pending.left().min(patience(pending));
        self.pending.iter().map(left).min().unwrap_or(Duration::MAX).min(self.log.left())
    }
}

/// Whether nobody has come, or who came has gone: Linux tells a listener what became of a connection before it was taken.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable,
        TimedOut, WouldBlock,
    };
    let kind = error.kind();
    matches!(kind, WouldBlock | Interrupted | ConnectionAborted | ConnectionReset | TimedOut)
        || matches!(kind, HostUnreachable | NetworkUnreachable | NetworkDown)
        || error.raw_os_error() == Some(libc::EPROTO)
}

/// Whether the system has too little of something for another connection.
fn is_shortage(error: &Error) -> bool {
    use libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    let code = |error: &io::Error| error.raw_os_error();
    matches!(error, Error::Verb { error, .. } if matches!(code(error), Some(EMFILE | ENFILE | ENOBUFS | ENOMEM)))
}

fn listen(address: SocketAddr, options: &Options, devices: &ServedDevices) -> Result<cm::Listener> {
    let builder = cm::Listener::builder().timeout(options.connect_timeout).options(Parts::connect_options());
    let is_wildcard = address.ip().to_canonical().is_unspecified();
    internal::hardware_only(builder, is_wildcard && devices.has_hardware_manager()).bind(address)
}

/// Whether a listener at an address can be reached by the connection manager, too.
fn has_manager(address: SocketAddr, devices: &ServedDevices) -> bool {
    match devices {
        ServedDevices::One(device) => {
            device.attributes().has_connection_manager && device.has_addr(address.ip().to_canonical())
        }
        ServedDevices::Wildcard(_) => devices.has_hardware_manager(),
    }
}

/// Whether somebody else listens there.
fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Verb { error, .. } if error.kind() == io::ErrorKind::AddrInUse)
}
