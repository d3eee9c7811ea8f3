//! Brokers and calls for tasks of tokio.

mod broker;
mod rpc;
#[cfg(all(test, feature = "soft"))]
mod tests;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::{Broker, BrokerError, PeerId};

pub use broker::AsyncBroker;
pub use rpc::{AsyncRpc, Caller, CallerError};

/// A descriptor of a broker, registered with tokio.
#[derive(Debug)]
struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    #[allow(deprecated, reason = "the replacement is unsafe, and this crate has no unsafe code")]
    fn new(fd: BorrowedFd<'_>) -> io::Result<Readiness> {
        Ok(Readiness(AsyncFd::with_interest(fd.try_clone_to_owned()?, Interest::READABLE)?))
    }

    /// Waits until the descriptor is readable, or the time has passed. The caller arms the broker before and polls it
    /// afterwards.
    async fn wait(&self, timeout: Option<Duration>) {
        let readable = async {
            if let Ok(mut guard) = self.0.readable().await {
                // The caller polls all sources of events after this, so the next readiness is a new one.
                guard.clear_ready();
            }
        };
        match timeout {
            Some(timeout) => drop(tokio::time::timeout(timeout, readable).await),
            None => readable.await,
        }
    }
}

/// Leaves all sessions of a broker, and waits until they have ended: [`Broker::leave`] without blocking the thread.
async fn leave(
    broker: &mut Broker,
    readiness: &Readiness,
    timeout: Option<Duration>,
) -> Result<bool, BrokerError> {
    let timeout = timeout.unwrap_or(Duration::MAX);
    let started = Instant::now();
    broker.start_leaving();
    loop {
        broker.arm()?;
        if !broker.has_sessions() {
            return Ok(true);
        }
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            (0..broker.peer_count()).for_each(|index| broker.close(PeerId(index as u16)));
            return Ok(false);
        }
        let pause = broker.timeout().map_or(left, |until| until.min(left));
        readiness.wait(Some(pause)).await;
    }
}
