//! Changes to a completion queue, and waiting for solicited completions.

use std::time::Duration;

use adverb_proto::types::ArmFor;

use super::CompletionQueue;
use crate::deadline::Deadline;
use crate::error::{Error, Feature, Limit, Result};
use crate::request::Completion;

impl CompletionQueue {
    /// Changes the number of entries. More queue pairs can use a larger queue. The number can't become smaller than the
    /// number of entries that queue pairs have reserved. Requests may be in flight during the call.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`] if the queue pairs have reserved more than `depth` entries or if `depth`
    /// exceeds the device's limit, [`Error::Unsupported`] if the device can't resize queues (the caller must create a
    /// larger queue instead), and [`Error::CallFailed`] if the operation fails.
    pub fn resize(&self, depth: u32) -> Result<()> {
        self.check_depth(depth)?;
        self.with_reserved(|reserved| {
            if depth < reserved {
                let (requested, max) = (reserved.into(), depth.into());
                return Err(Error::LimitExceeded { limit: Limit::QueueDepths, requested, max });
            }
            self.backend().resize(depth)
        })
    }

    /// Sets event moderation: an event is raised once `count` completions are available, or `period` after the first of
    /// them. Moderation reduces the number of interrupts and increases latency. Moderation is disabled by default; a
    /// `count` of 0 or 1 with a zero period disables it again.
    ///
    /// See also [`start_poller`](CompletionQueue::start_poller), which polls many completions per wake-up under load without
    /// added latency.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the device doesn't support moderation, and [`Error::LimitExceeded`] if the
    /// values exceed its [limits](crate::DeviceAttributes::moderation).
    pub fn moderate(&self, count: u16, period: Duration) -> Result<()> {
        let device = self.device();
        let Some(limits) = device.attributes().moderation else {
            return Err(device.unsupported(Feature::Moderation));
        };
        let limit_error = |limit: Limit, requested: u128, max: u64| Error::LimitExceeded {
            limit,
            requested: u64::try_from(requested).unwrap_or(u64::MAX),
            max,
        };
        if count > limits.max_count {
            return Err(limit_error(Limit::ModerationCount, count.into(), limits.max_count.into()));
        }
        let period = period.as_micros();
        let max_period_micros = limits.max_period.as_micros();
        match u16::try_from(period) {
            Ok(short) if period <= max_period_micros => self.backend().moderate(count, short),
            _ => Err(limit_error(Limit::ModerationPeriod, period, max_period_micros as u64)),
        }
    }

    /// Moves the available completions to `out` and returns their number. If no completions are available, the caller
    /// sleeps until a [solicited](crate::SendRequest::solicited) or failed completion arrives, so that any number of
    /// unsolicited completions costs a single wake-up. If the timeout expires first, the call moves the unsolicited
    /// completions that are available to `out` and returns their number.
    ///
    /// While a thread waits in this method, no other thread may wait on the same queue, neither with this method nor with
    /// [`wait`](CompletionQueue::wait), which arms the queue for all completions.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue was created without
    /// [events](crate::CompletionQueueBuilder::events), and [`Error::CallFailed`] if the operation fails.
    pub fn wait_solicited(
        &self,
        out: &mut Vec<Completion>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<usize> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let deadline = Deadline::new(timeout);
        loop {
            self.arm(ArmFor::Solicited)?;
            // A completion that arrived before arming raises no event: poll before waiting.
            let count = self.poll(out)?;
            if count > 0 {
                return Ok(count);
            }
            if !self.wait_event(deadline.left())? {
                return self.poll(out);
            }
        }
    }
}
