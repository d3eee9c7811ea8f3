//! Sessions: connections that outlive their queue pairs, and the redialer that reconnects them.

mod paths;
mod redial;
pub(crate) mod redialer;
mod resolver;
#[cfg(all(test, feature = "soft", not(loom)))]
mod tests;

pub(super) use paths::Paths;
pub(super) use redialer::RedialHandle;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use adverb_verbs::Result;
use parking_lot::Mutex;

use super::bootstrap::Listening;
use super::driver::Driver;
use super::protocol::handshake::SessionId;

/// The accepted sessions of this process. Their peers may reconnect to any of its listeners.
static SESSIONS: LazyLock<Mutex<HashMap<SessionId, Weak<Driver>>>> = LazyLock::new(Mutex::default);

/// Returns the accepted connection with this session, if it exists.
pub(super) fn find(id: &SessionId) -> Option<Arc<Driver>> {
    SESSIONS.lock().get(id)?.upgrade()
}

/// The session that a connector requests.
#[derive(Clone, Debug)]
pub(super) enum SessionRequest {
    /// A new session with this ID.
    Begin(SessionId),
    /// The session of a connection that has no lane.
    Resume(Weak<Driver>),
    /// A session with this ID, to which the connector does not belong.
    #[cfg(all(test, feature = "soft", not(loom)))]
    Forge(SessionId),
}

/// Returns a request for a new session, with a random ID.
pub(super) fn begin() -> Result<SessionRequest> {
    let mut id = SessionId::default();
    let failed = |error| super::bootstrap::verb_error("reading random bytes", io::Error::other(error), "");
    getrandom::fill(&mut id).map_err(failed)?;
    Ok(SessionRequest::Begin(id))
}

/// The way in which a connection was established, and is established again.
#[derive(Clone)]
pub(super) enum Origin {
    /// This side dials the peer.
    Connected(Paths),
    /// The peer dials this listener, or another one of this process.
    Accepted(Weak<Listening>),
}

/// A connection, and the way in which it is reconnected.
pub(super) struct ResumeOrigin {
    driver: Weak<Driver>,
    origin: Origin,
}

/// Makes the connection of a driver reconnect when it fails, if both sides enable that. Returns the driver.
pub(super) fn enable_reconnect(driver: Arc<Driver>, origin: Origin) -> Arc<Driver> {
    if let Some(id) = driver.session() {
        // The peer of a connector never dials.
        if let Origin::Accepted(_) = origin {
            let mut sessions = SESSIONS.lock();
            sessions.retain(|_, driver| driver.strong_count() > 0);
            // The first connection with an ID keeps it: a peer that has observed the ID cannot replace the connection.
            sessions.entry(id).or_insert_with(|| Arc::downgrade(&driver));
        }
        driver.enable_reconnect(ResumeOrigin { driver: Arc::downgrade(&driver), origin });
    }
    driver
}

impl ResumeOrigin {
    /// Makes the redialer reconnect the connection, or end it when the time limit expires. `redial_count` is the number
    /// of times that the redialer was started for the connection. Never blocks. Dropping the handle cancels the work.
    ///
    /// # Errors
    ///
    /// Returns an error if the redialer's thread cannot be started.
    pub(super) fn redial(&self, redial_count: u32, timeout: Duration) -> io::Result<RedialHandle> {
        let driver = Weak::clone(&self.driver);
        match &self.origin {
            Origin::Connected(paths) => {
                redialer::redial(driver, redial_count, paths.resuming(&self.driver), timeout)
            }
            Origin::Accepted(listening) => {
                redialer::await_redial(driver, redial_count, Weak::clone(listening), timeout)
            }
        }
    }
}
