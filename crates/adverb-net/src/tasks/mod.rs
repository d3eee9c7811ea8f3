//! Connections for tasks: calls that wait let other tasks run.

mod stream;
mod wait;

pub use endpoint::{Connector, Listener, ListenerBuilder, connect, connect_stream};
pub use one_sided::{AddressSpace, RemoteRegion};
pub use stream::{ReadHalf, Stream, WriteHalf};

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::net::{ToSocketAddrs, lookup_host};

use crate::access::RemoteAccess;
use crate::bootstrap::Listening;
use crate::driver::{Announcement, Core, Driver};
use crate::error::{BindError, ExposeError, WaitError};
use crate::options::Options;
use crate::readiness::readable_by_tasks;
use crate::session::{self, Handle, Origin, Paths};
use crate::shared_region::{Exposure, SharedRegion};
use wait::{TaskWait, yield_now};

crate::api::connection!(tasks async await #[doc = ""]);
crate::api::endpoint!(tasks async await #[doc = ""]);
crate::api::one_sided!(tasks async await #[doc = ""]);

/// A connection to a peer, which carries messages in order in both directions. Many tasks may use it at the same
/// time.
///
/// The receiver's [`max_message_size`](Options::max_message_size) limits the size of a message. A send waits until the
/// peer grants credits, so a slow receiver slows its sender, and memory use is bounded.
///
/// Clones are handles of the same connection. Dropping the last one aborts the connection, and does not wait;
/// [`close`](Connection::close) first waits until the peer has received everything. If the peer has closed the
/// connection, a thread of this process (`adverb-redial`) keeps the queue pair after the drop, until the peer has
/// received the acknowledgement of its last messages. This time is short unless packets are lost, and at most two
/// seconds. If the process exits at once, that acknowledgement may be lost, and the peer's `close` then returns an
/// error.
///
/// ```
/// use adverb::net::{Listener, connect};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let address = listener.local_addr();
/// tokio::spawn(async move {
///     let connection = listener.accept().await?;
///     // A long message is sent from the buffer in which it was received, without a copy.
///     while let Some(message) = connection.recv().await? {
///         connection.send(message).await?;
///     }
///     connection.close().await?;
///     Ok::<_, adverb::Error>(())
/// });
/// let connection = connect(address).await?;
/// connection.send(b"hello").await?;
/// assert_eq!(&connection.recv().await?.expect("an answer")[..], b"hello");
/// connection.close().await?;
/// # Ok::<(), adverb::Error>(())
/// # }).unwrap();
/// ```
///
/// # Cancellation
///
/// A dropped future frees no memory that the device uses: buffers stay allocated until their requests are complete, and
/// the connection continues. The section "Cancel safety" of each method describes all other effects.
#[derive(Clone)]
pub struct Connection {
    driver: Handle,
    /// Readable when the completion queue or the connection manager may have an event.
    events: Arc<AsyncFd<OwnedFd>>,
}

impl Connection {
    /// Makes an established driver usable by tasks.
    fn new(driver: Arc<Driver>, origin: Origin) -> io::Result<Connection> {
        let lane = driver.lane();
        let events = lane.event_fd().ok_or(io::ErrorKind::Unsupported)?;
        let events = match (driver.session(), lane.manager_events()) {
            (None, None) => readable_by_tasks(events),
            // The completion queue may change, or there is a second descriptor to watch.
            _ => readable_by_tasks(driver.watch_events()?),
        };
        let events = Arc::new(events?);
        Ok(Connection { driver: Handle::new(driver, origin), events })
    }

    /// Waits until `ready` returns a value.
    async fn wait<T, E: WaitError>(
        &self,
        timeout: Duration,
        mut ready: impl FnMut(&Driver, &mut Core) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        // A task that never has to wait yields now and then.
        tokio::task::coop::consume_budget().await;
        let driver = &self.driver;
        // A value that is available at once needs no timer.
        let value = loop {
            let value = driver.try_lock().map(|mut core| match driver.try_now(&mut core, &mut ready) {
                Ok(None) if timeout.is_zero() => Err(driver.timed_out(&core, timeout)),
                value => value,
            });
            match value {
                Some(value) => break value?,
                None => tokio::task::yield_now().await,
            }
        };
        if let Some(value) = value {
            return Ok(value);
        }
        let (mut wait, mut timer, mut limit) = (TaskWait::begin(driver), pin!(None), pin!(None));
        poll_fn(|cx| {
            let polled = wait.poll(cx, driver, &self.events, timer.as_mut(), &mut ready);
            // A spinning task is polled again at once, and setting a timer takes longer than most spins. So the time
            // limit counts from the end of the spin, at most a few dozen microseconds later.
            if polled.is_ready() || wait.is_spinning() || timeout == Duration::MAX {
                return polled;
            }
            if limit.is_none() {
                limit.set(Some(tokio::time::sleep(timeout)));
            }
            let expired = limit.as_mut().as_pin_mut().is_some_and(|limit| limit.poll(cx).is_ready());
            if !expired {
                return polled;
            }
            match driver.try_lock() {
                Some(core) => Poll::Ready(Err(driver.timed_out(&core, timeout))),
                None => yield_now(cx),
            }
        })
        .await
    }

    /// Breaks the lane, for tests.
    pub(super) fn break_lane(&self) -> adverb_verbs::Result<()> {
        self.driver.break_lane()
    }

    #[cfg(all(test, feature = "soft"))]
    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.driver.is_owned() {
            // The runtime's epoll descriptor is the parent's, too: dropping the registration would end the parent's.
            std::mem::forget(Arc::clone(&self.events));
        }
    }
}

/// Exposes a shared region. Registering it first may take long, so another thread does it.
async fn expose_region<'a>(
    driver: &'a Arc<Driver>,
    name: &str,
    region: &SharedRegion,
    access: RemoteAccess,
) -> Result<Announcement<'a>, ExposeError> {
    loop {
        let missing = match driver.try_expose_region(name, region, access)? {
            Ok(announcement) => return Ok(announcement),
            Err(missing) => missing,
        };
        let (peer, waiting) = (driver.peer(), missing.clone());
        match tokio::task::spawn_blocking(move || waiting.register_or_wait(peer)).await {
            Ok(registered) => registered?,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => missing.register_or_wait(peer)?,
            },
        }
    }
}

/// Looks up the addresses of a host.
async fn resolve(address: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    Ok(lookup_host(address).await?.collect())
}

/// Looks up the host names of the alternate addresses. A name that cannot be resolved now may be resolvable later.
async fn resolve_names(paths: &mut Paths) {
    for name in Vec::from_iter(paths.names().map(str::to_owned)) {
        if let Ok(addresses) = lookup_host(&name).await {
            paths.set_resolved(&name, &Vec::from_iter(addresses));
        }
    }
}

/// Listens at one of these addresses. Opening devices blocks, above all for hardware.
async fn listen(
    addresses: Vec<SocketAddr>,
    options: Options,
    exposures: Vec<Exposure>,
) -> Result<Listening, BindError> {
    let address = addresses[0];
    let bind = move || Listening::bind(&addresses, &options, &exposures, session::find);
    let bound = tokio::task::spawn_blocking(bind).await;
    bound.map_err(|error| BindError::System { address, source: io::Error::other(error) })?
}

/// Waits until a descriptor is readable, but no longer than `timeout`.
async fn wait_readable(descriptor: &impl AsFd, timeout: Duration) -> io::Result<()> {
    let descriptor = readable_by_tasks(descriptor.as_fd())?;
    match tokio::time::timeout(timeout, descriptor.readable()).await {
        Ok(readable) => readable.map(drop),
        Err(_) => Ok(()),
    }
}
