//! Connections for threads: calls that wait block their thread.

mod stream;

pub use endpoint::{Connector, Listener, ListenerBuilder, connect, connect_stream};
pub use one_sided::{AddressSpace, RemoteRegion};
pub use stream::{ReadHalf, Stream, WriteHalf};

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use adverb_verbs::internal::wait_either;

use crate::access::RemoteAccess;
use crate::bootstrap::Listening;
use crate::driver::{Announcement, Core, Driver};
use crate::error::{BindError, ExposeError, WaitError};
use crate::options::Options;
use crate::session::{self, Handle, Origin, Paths};
use crate::shared_region::{Exposure, SharedRegion};

crate::api::connection!(threads #[doc = ""]);
crate::api::endpoint!(threads #[doc = ""]);
crate::api::one_sided!(threads #[doc = ""]);

/// A connection to a peer, which carries messages in order in both directions. Many threads may use it at the same
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
/// use adverb::net::blocking::{Listener, connect};
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// std::thread::spawn(move || {
///     let connection = listener.accept()?;
///     // A long message is sent from the buffer in which it was received, without a copy.
///     while let Some(message) = connection.recv()? {
///         connection.send(message)?;
///     }
///     connection.close()?;
///     Ok::<_, adverb::Error>(())
/// });
/// let connection = connect(address)?;
/// connection.send(b"hello")?;
/// assert_eq!(&connection.recv()?.expect("an answer")[..], b"hello");
/// connection.close()?;
/// # Ok::<(), adverb::Error>(())
/// ```
#[derive(Clone)]
pub struct Connection {
    driver: Handle,
}

impl Connection {
    /// Makes an established driver usable by threads.
    fn new(driver: Arc<Driver>, origin: Origin) -> io::Result<Connection> {
        Ok(Connection { driver: Handle::new(driver, origin) })
    }

    /// Waits until `ready` returns a value.
    #[inline]
    fn wait<T, E: WaitError>(
        &self,
        timeout: Duration,
        ready: impl FnMut(&Driver, &mut Core) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        self.driver.wait(timeout, ready)
    }

    #[cfg(all(test, feature = "soft"))]
    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

/// Exposes a shared region, and registers it first if that is necessary.
fn expose_region<'a>(
    driver: &'a Arc<Driver>,
    name: &str,
    region: &SharedRegion,
    access: RemoteAccess,
) -> Result<Announcement<'a>, ExposeError> {
    driver.expose_region(name, region, access)
}

/// Looks up the addresses of a host.
fn resolve(address: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    Ok(address.to_socket_addrs()?.collect())
}

/// Looks up the host names of the alternate addresses.
fn resolve_names(paths: &mut Paths) {
    paths.resolve();
}

/// Listens at one of these addresses.
fn listen(
    addresses: Vec<SocketAddr>,
    options: Options,
    exposures: Vec<Exposure>,
) -> Result<Listening, BindError> {
    Listening::bind(&addresses, &options, &exposures, session::find)
}

/// Waits until a descriptor is readable, but no longer than `timeout`.
fn wait_readable(descriptor: &impl AsFd, timeout: Duration) -> io::Result<()> {
    wait_either(descriptor.as_fd(), None, Some(timeout)).map(drop)
}
