//! Sessions: connections that outlive their queue pairs, and the redialer that reconnects them.

mod handle;
mod paths;
mod redial;
mod redialer;
mod resolver;
#[cfg(all(test, feature = "soft", not(loom)))]
pub(crate) mod tests;

pub(super) use handle::Handle;
pub(super) use paths::Paths;
use redialer::RedialHandle;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use adverb_net_proto::SessionId;
use parking_lot::Mutex;

use crate::bootstrap::Listening;
use crate::driver::{Driver, Lane, LaneRequest, LaneSource};
use crate::error::ConnectError;

/// The accepted sessions of this process. Their peers may reconnect to any of its listeners.
static SESSIONS: LazyLock<Mutex<HashMap<SessionId, Weak<Driver>>>> = LazyLock::new(Mutex::default);

/// Returns the accepted connection with this session, if it exists.
pub(super) fn find(id: &SessionId) -> Option<Arc<Driver>> {
    SESSIONS.lock().get(id)?.upgrade()
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
struct ResumeOrigin {
    driver: Weak<Driver>,
    origin: Origin,
}

/// Makes the connection of a driver reconnect when it fails, if both sides enable that.
fn enable_reconnect(driver: &Arc<Driver>, origin: Origin) {
    if let Some(id) = driver.session() {
        // The peer of a connector never dials.
        if let Origin::Accepted(_) = origin {
            let mut sessions = SESSIONS.lock();
            sessions.retain(|_, driver| driver.strong_count() > 0);
            // The first connection with an ID keeps it: a peer that has observed the ID cannot replace the connection.
            sessions.entry(id).or_insert_with(|| Arc::downgrade(driver));
        }
        let source = ResumeOrigin { driver: Arc::downgrade(driver), origin };
        driver.enable_reconnect(Box::new(source));
    }
}

impl LaneSource for ResumeOrigin {
    /// Makes the redialer reconnect the connection, or end it when the time limit expires.
    fn request(&self, count: u32, timeout: Duration) -> Result<Box<dyn LaneRequest>, ConnectError> {
        let driver = Weak::clone(&self.driver);
        let handle = match &self.origin {
            Origin::Connected(paths) => redialer::redial(driver, count, paths.clone(), timeout),
            Origin::Accepted(listening) => {
                redialer::await_redial(driver, count, Weak::clone(listening), timeout)
            }
        };
        let failed = |error| ConnectError::system("starting the reconnecting thread", error);
        Ok(Box::new(handle.map_err(failed)?))
    }

    fn destroy(&self, lane: Arc<Lane>) {
        redialer::destroy(lane);
    }
}

impl LaneRequest for RedialHandle {}
