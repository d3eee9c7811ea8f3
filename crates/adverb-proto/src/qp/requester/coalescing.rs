//! Coalescing of small requests.

use crate::qp::send_queue::{SendEntry, SendQueue};

/// The batches of small requests, which are held back while other requests are outstanding.
#[derive(Debug, Default)]
pub(super) struct Coalescing {
    /// The number of requests of the current batch that are not started: they are not held back.
    batch_left: u32,
    /// Whether the request that was started last is short.
    is_short: bool,
}

impl Coalescing {
    /// Decides whether the request at `index` is held back to be coalesced with others. If it isn't, the request counts as
    /// started. The acknowledgement of the outstanding requests ends the wait.
    #[inline]
    pub(super) fn hold_back(
        &mut self,
        queue: &SendQueue,
        index: usize,
        limit: usize,
        mtu: u32,
        has_timer: bool,
    ) -> bool {
        let is_short = |entry: &SendEntry| entry.length < mtu && !entry.needs_response();
        let next_is_short = queue.get(index).is_some_and(is_short);
        let are_short = self.is_short && next_is_short && queue.back().is_some_and(is_short);
        let waiting = queue.len() - index;
        let are_enough = index < limit.div_ceil(2) || waiting >= limit.min(index);
        // Without a timer, a lost acknowledgement would never be noticed.
        if are_enough || !are_short || !has_timer {
            self.batch_left = waiting as u32;
        }
        if self.batch_left == 0 {
            return true;
        }
        self.batch_left -= 1;
        self.is_short = next_is_short;
        false
    }
}
