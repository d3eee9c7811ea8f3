//! Sessions: connections that outlive their queue pairs, and the redialer that reconnects them.

mod paths;
mod redial;
mod redialer;
mod resolver;
#[cfg(all(test, feature = "soft", not(loom)))]
mod tests;
mod wake_fd;

pub(super) use paths::Paths;
pub(super) use redialer::RedialHandle;
pub(super) use wake_fd::WakeFd;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use adverb_verbs::Result;
use parking_lot::Mutex;

use super::bootstrap::Listening;
use super::link::Link;
use super::protocol::handshake::{Session, SessionId};

/// The accepted sessions of this process. Their peers may reconnect to any of its listeners.
static SESSIONS: LazyLock<Mutex<HashMap<SessionId, Weak<Link>>>> = LazyLock::new(Mutex::default);

/// Returns the accepted connection with this session, if it exists.
pub(super) fn find(id: &SessionId) -> Option<Arc<Link>> {
    SESSIONS.lock().get(id)?.upgrade()
}

/// Returns a new session with a random number.
pub(super) fn begin() -> Result<Session> {
    let mut id = SessionId::default();
    let failed = |error| super::bootstrap::verb("reading random bytes", io::Error::other(error), "");
    getrandom::fill(&mut id).map_err(failed)?;
    Ok(Session { id, received: None })
}

/// The side that established a connection, and establishes it again.
#[derive(Clone)]
pub(super) enum Origin {
    /// This side dials the peer.
    Connected(Paths),
    /// The peer dials this listener, or another one of this process.
    Accepted(Weak<Listening>),
}

/// The means by which a connection is reconnected.
pub(super) struct ResumeOrigin {
    link: Weak<Link>,
    origin: Origin,
}

/// Makes an established link a connection, which is reconnected when it fails, if both sides enable that.
pub(super) fn settle(link: Box<Link>, origin: Origin) -> Arc<Link> {
    let link: Arc<Link> = Arc::from(link);
    if let Some(id) = link.session() {
        // The peer of a connector never dials.
        if let Origin::Accepted(_) = origin {
            let mut sessions = SESSIONS.lock();
            sessions.retain(|_, link| link.strong_count() > 0);
            // The first connection with a number keeps it: a peer that has observed the number cannot replace the connection.
            sessions.entry(id).or_insert_with(|| Arc::downgrade(&link));
        }
        link.settle(ResumeOrigin { link: Arc::downgrade(&link), origin });
    }
    link
}

impl ResumeOrigin {
    /// Makes the redialer reconnect a connection that has had `generation` lanes before, or end it when the time limit expires.
    /// Never blocks. Dropping the handle cancels that.
    ///
    /// # Errors
    ///
    /// Returns an error if the redialer's thread cannot be started.
    pub(super) fn redial(
        &self,
        session: Session,
        generation: u32,
        timeout: Duration,
    ) -> io::Result<RedialHandle> {
        let link = Weak::clone(&self.link);
        match &self.origin {
            Origin::Connected(paths) => {
                redialer::redial(link, generation, paths.with_session(session), timeout)
            }
            Origin::Accepted(listening) => {
                redialer::await_redial(link, generation, Weak::clone(listening), timeout)
            }
        }
    }
}
