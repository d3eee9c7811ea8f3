//! Connections that outlive their queue pairs: who finds them again, and who makes new queue pairs for them.

use std::collections::HashMap;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use adverb_verbs::internal::{Deadline, Watch};
use adverb_verbs::{Error, Result};
use parking_lot::Mutex;

use super::Options;
use super::blocking::connect_link;
use super::bootstrap::Listening;
use super::link::{Link, UNKNOWN};
use super::protocol::handshake::{Session, SessionId};

/// Those whose peers may come again, to whichever listener of this program.
static SESSIONS: LazyLock<Mutex<HashMap<SessionId, Weak<Link>>>> = LazyLock::new(Mutex::default);

/// How long to wait before all paths are tried once more.
const PAUSE: Duration = Duration::from_millis(50);
/// How long to try one path, if there is time for others.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The connection of this number, if it is here.
pub(super) fn find(id: &SessionId) -> Option<Arc<Link>> {
    SESSIONS.lock().get(id)?.upgrade()
}

/// A number for a new connection.
pub(super) fn begin() -> Result<Session> {
    let mut id = SessionId::default();
    let failed = |error| super::bootstrap::verb("reading random bytes", io::Error::other(error), "");
    getrandom::fill(&mut id).map_err(failed)?;
    Ok(Session { id, received: None })
}

/// The ways to a peer: addresses, and names that are looked up each time.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) names: Vec<String>,
    /// As they were wanted, before a path decided on a device.
    pub(super) options: Options,
}

impl Paths {
    /// All addresses that there are now, each once. A name that can't be looked up now has none.
    pub(super) fn resolve(&self) -> Vec<SocketAddr> {
        let mut found = self.addresses.clone();
        for name in &self.names {
            match name.to_socket_addrs() {
                Ok(addresses) => found.extend(addresses),
                Err(error) => tracing::debug!(name, %error, "could not resolve a host name"),
            }
        }
        let mut known = Vec::new();
        found.retain(|address| {
            !known.contains(address) && {
                known.push(*address);
                true
            }
        });
        found
    }
}

/// Where a connection comes from, and comes from again.
#[derive(Clone)]
pub(super) enum Origin {
    /// It was made by this side, which goes there again.
    Connected(Paths),
    /// The peer came here, and does so again: to this listener, or to another of this program.
    Accepted(Weak<Listening>),
}

/// Where a connection can be reached by those who make it again.
pub(super) struct Home {
    link: Weak<Link>,
    origin: Origin,
}

/// Makes a connection of a link: from now on it is made again when it breaks, if both sides want that.
pub(super) fn settle(link: Box<Link>, origin: Origin) -> Arc<Link> {
    let link: Arc<Link> = Arc::from(link);
    if let Some(id) = link.session() {
        // Who connected goes, and isn't come to.
        if let Origin::Accepted(_) = origin {
            let mut sessions = SESSIONS.lock();
            sessions.retain(|_, link| link.strong_count() > 0);
            // Whose number it is stays so: who has overheard it, and says the same, doesn't take the other's place.
            sessions.entry(id).or_insert_with(|| Arc::downgrade(&link));
        }
        link.settle(Home { link: Arc::downgrade(&link), origin });
    }
    link
}

impl Home {
    /// Has a thread make the connection again, or give it up after some time.
    pub(super) fn revive(&self, session: Session, generation: u32, time: Duration) -> io::Result<()> {
        let (link, origin) = (Weak::clone(&self.link), self.origin.clone());
        let reviver = Reviver { link, session, generation, deadline: Deadline::new(time) };
        let thread = std::thread::Builder::new().name("adverb-reconnect".to_owned());
        let run = move || match origin {
            Origin::Connected(paths) => reviver.go(paths),
            Origin::Accepted(listening) => reviver.be_come_to(&listening),
        };
        thread.spawn(run).map(drop)
    }
}

/// What makes a connection again.
struct Reviver {
    link: Weak<Link>,
    session: Session,
    generation: u32,
    deadline: Deadline,
}

impl Reviver {
    /// Connects again, over one of the paths.
    fn go(self, mut paths: Paths) {
        paths.options.session = Some(self.session);
        let mut reason = "no path to the peer was tried".to_owned();
        // Which path to try first: not the one that has just failed.
        let mut first = 1;
        while self.has_time(&reason) {
            match self.try_all(&paths, first) {
                Ok(()) => return,
                Err(Error::HandshakeRejected { reason, .. }) if reason == UNKNOWN => {
                    return self.give_up(&reason);
                }
                Err(error) => reason = error.to_string(),
            }
            first = 0;
            std::thread::sleep(PAUSE.min(self.deadline.left()));
        }
    }

    /// Lets the peer in when it comes again.
    fn be_come_to(self, listening: &Weak<Listening>) {
        while self.has_time("the peer did not reconnect") {
            let pause = PAUSE.min(self.deadline.left());
            match listening.upgrade() {
                Some(listening) => listening.serve(pause),
                // There may be another.
                None => std::thread::sleep(pause),
            }
        }
    }

    /// Whether somebody still has the connection, and it is broken, and there is time; if there isn't, it is given up.
    fn has_time(&self, reason: &str) -> bool {
        let is_wanted = self.link.upgrade().is_some_and(|link| link.is_broken(self.generation));
        if is_wanted && self.deadline.left().is_zero() {
            self.give_up(&format!("{reason} within {:?}", self.deadline.timeout));
            return false;
        }
        is_wanted
    }

    fn give_up(&self, reason: &str) {
        if let Some(link) = self.link.upgrade() {
            link.give_up_after(self.generation, reason);
        }
    }

    /// Tries each path once.
    fn try_all(&self, paths: &Paths, first: usize) -> Result<()> {
        let mut peers = paths.resolve();
        let count = peers.len().max(1);
        peers.rotate_left(first % count);
        let mut failure = super::bootstrap::no_address(io::Error::other("the peer has no address"));
        for peer in peers {
            let time = self.deadline.left().min(paths.options.connect_timeout).min(ATTEMPT);
            match connect_link(peer, &paths.options, &Deadline::new(time)) {
                Ok(link) => {
                    if let Some(broken) = self.link.upgrade() {
                        broken.adopt(*link);
                    }
                    return Ok(());
                }
                // Others who refuse may be somebody else, whom a path leads to that is down.
                Err(Error::HandshakeRejected { peer, reason }) if reason == UNKNOWN => {
                    return Err(Error::HandshakeRejected { peer, reason });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// Readable when there is something new of a connection, whatever it goes over.
pub(super) struct Bell {
    watch: Watch,
    _reader: PipeReader,
    /// Dropped, it rings for good.
    writer: Mutex<Option<PipeWriter>>,
}

impl Bell {
    #[cfg(feature = "tokio")]
    pub(super) fn new(events: BorrowedFd<'_>, manager: Option<BorrowedFd<'_>>) -> io::Result<Bell> {
        let (watch, (reader, writer)) = (Watch::new()?, io::pipe()?);
        watch.add(reader.as_fd())?;
        let bell = Bell { watch, _reader: reader, writer: Mutex::new(Some(writer)) };
        bell.watch(events, manager)?;
        Ok(bell)
    }

    /// Watches another completion queue's events too, and those of what its connection manager knows.
    pub(super) fn watch(&self, events: BorrowedFd<'_>, manager: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.watch.add(events)?;
        manager.map_or(Ok(()), |manager| self.watch.add(manager))
    }

    /// From now on there is always something new.
    pub(super) fn ring_for_good(&self) {
        self.writer.lock().take();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}
