//! What can be changed about a completion queue, and waiting for marked completions.

use std::time::Duration;

use super::deadline::Deadline;
use super::{Completion, CompletionQueue};
use crate::error::{Error, Result};

impl CompletionQueue {
    /// Gives it room for so many completions: more, so that more queue pairs can use it, or less, but at least for those
    /// that do. Requests may be in flight meanwhile.
    ///
    /// # Errors
    ///
    /// If the queue pairs that use it need more, or the device has less. [`Error::Unsupported`] if the device can't: then
    /// make a larger one.
    pub fn resize(&self, depth: u32) -> Result<()> {
        self.check_depth(depth)?;
        self.with_reserved(|reserved| {
            if depth < reserved {
                return Err(Error::LimitExceeded {
                    quantity: "the number of requests that may complete at once".into(),
                    requested: reserved.into(),
                    max: depth.into(),
                    hint: "drop queue pairs that use the completion queue first".into(),
                });
            }
            self.backend().resize(depth)
        })
    }

    /// Has events wait for company: until there are `count` completions, or `period` has passed since the first. Fewer
    /// interrupts, for a delay. One completion makes an event at once unless this was called; `count` 0 or 1 and no period
    /// undo it.
    ///
    /// Also see [`poller`](CompletionQueue::poller), which takes many completions per wake-up under load without delay.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device can't; its [`moderation`](super::DeviceAttributes::moderation) says so, and how
    /// much it can.
    pub fn moderate(&self, count: u16, period: Duration) -> Result<()> {
        let device = self.device();
        let Some(most) = device.attributes().moderation else {
            return Err(Error::Unsupported {
                feature: format!("having completion events wait, on {},", device.name()).into(),
                hint: "poll for a while after each event instead, as a poller does".into(),
            });
        };
        let limit = |what: &'static str, asked: u128, most: u64| Error::LimitExceeded {
            quantity: what.into(),
            requested: u64::try_from(asked).unwrap_or(u64::MAX),
            max: most,
            hint: "the device's attribute `moderation` tells".into(),
        };
        if count > most.max_count {
            return Err(limit("the number of completions per event", count.into(), most.max_count.into()));
        }
        let period = period.as_micros();
        let most_period = most.max_period.as_micros();
        match u16::try_from(period) {
            Ok(short) if period <= most_period => self.backend().moderate(count, short),
            _ => Err(limit("the microseconds that an event may wait", period, most_period as u64)),
        }
    }

    /// Takes the completions that there are, adds them to `out`, and says how many; if there are none, sleeps until one
    /// comes that its sender marked as [solicited](super::SendRequest::solicited), or that failed. So many unmarked ones cost
    /// one wake-up. 0 if none came in time; unmarked ones that did come are taken then.
    ///
    /// One thread at a time does so: one that [waits](CompletionQueue::wait) otherwise wants to be woken by all.
    ///
    /// # Errors
    ///
    /// If the device can't be asked, or the queue was made without [events](super::CompletionQueueBuilder::events).
    pub fn poll_solicited(&self, out: &mut Vec<Completion>, timeout: Duration) -> Result<usize> {
        let deadline = Deadline::new(timeout);
        loop {
            self.arm(true)?;
            // What came before the arming makes no event: look before waiting.
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
