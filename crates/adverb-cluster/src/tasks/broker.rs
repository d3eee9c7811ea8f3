//! The broker for tasks.

use std::time::Duration;

use super::{Readiness, leave};
use crate::{Broker, BrokerError, Event};

type Result<T, E = BrokerError> = std::result::Result<T, E>;

/// A [`Broker`] for a task of tokio, which waits without blocking the thread.
///
/// A dropped broker tells its peers that it leaves, without waiting.
///
/// ```
/// # #[cfg(feature = "soft")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use adverb::cluster::{AsyncBroker, Broker, Event, PeerId};
/// use adverb::verbs::SoftDevice;
///
/// let domain = SoftDevice::loopback().open()?.create_protection_domain()?;
/// let mut a = Broker::builder(&domain).epoch(7).create()?;
/// let mut b = Broker::builder(&domain).epoch(8).create()?;
/// let peer = PeerId(0);
/// let (offer_of_a, offer_of_b) = (a.prepare(peer)?, b.prepare(peer)?);
/// a.establish(peer, &offer_of_b)?;
/// b.establish(peer, &offer_of_a)?;
///
/// let (mut a, mut b) = (AsyncBroker::new(a)?, AsyncBroker::new(b)?);
/// a.broker_mut().send(peer, b"hello")?;
/// a.broker_mut().flush_all();
/// let mut message = None;
/// while message.is_none() {
///     b.poll(|_, event| {
///         if let Event::Message { bytes, .. } = event {
///             message = Some(bytes.to_vec());
///         }
///     })
///     .await?;
/// }
/// assert_eq!(message.as_deref(), Some(&b"hello"[..]));
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub struct AsyncBroker {
    broker: Broker,
    readiness: Readiness,
}

impl AsyncBroker {
    /// Registers a broker with the runtime of the current task.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::System`] if the descriptor can't be registered.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime whose I/O and time are enabled.
    pub fn new(broker: Broker) -> Result<AsyncBroker> {
        let action = "registering the descriptor of a broker with tokio";
        let readiness =
            Readiness::new(broker.fd()).map_err(|source| BrokerError::System { action, source })?;
        Ok(AsyncBroker { broker, readiness })
    }

    /// Returns the broker.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Returns the broker, to post requests, which [`poll`](AsyncBroker::poll) flushes.
    pub fn broker_mut(&mut self) -> &mut Broker {
        &mut self.broker
    }

    /// Deregisters the broker.
    pub fn into_inner(self) -> Broker {
        self.broker
    }

    /// Waits for events and delivers them to the handler, like [`Broker::poll`]. Returns their number, which is at least 1.
    ///
    /// If the future is dropped, no event is lost: the handler is called without waiting in between.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Broker::poll`].
    pub async fn poll(&mut self, mut handler: impl FnMut(&mut Broker, Event<'_>)) -> Result<usize> {
        loop {
            let count = self.broker.poll(&mut handler)?;
            if count > 0 {
                // A task that always has events must let others run.
                tokio::task::coop::consume_budget().await;
                return Ok(count);
            }
            if !self.broker.arm()? {
                self.readiness.wait(self.broker.timeout()).await;
            }
        }
    }

    /// Leaves all sessions, and waits until they have ended: see [`Broker::leave`]. If the future is dropped, the broker
    /// leaves nevertheless, while it is polled. The manual's chapter about clusters compares the ways to leave.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Broker::leave`].
    pub async fn leave(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        leave(&mut self.broker, &self.readiness, timeout.into()).await
    }
}
