//! What queues count.

use adverb_proto::types::Status;

use crate::backend::RawOutcome;

/// What one queue of a queue pair has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueStats {
    /// Requests posted.
    pub posted: u64,
    /// Requests that succeeded.
    pub succeeded: u64,
    /// Requests that came back because the queue pair had failed.
    pub flushed: u64,
    /// Requests that failed otherwise.
    pub failed: u64,
    /// Bytes that completions reported: received, read, or fetched.
    pub bytes: u64,
    /// The most requests that were outstanding at once, as seen when completions came.
    pub max_outstanding: u32,
}

/// What a queue pair has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueuePairStats {
    /// Its send queue.
    pub send: QueueStats,
    /// Its receive queue: nothing, if it has a shared one.
    pub recv: QueueStats,
}

/// What a completion queue has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CompletionQueueStats {
    /// Completions that the device made. Requests that didn't ask for one aren't counted.
    pub polled_completion_count: u64,
    /// Those of them whose requests aren't known, because their queue pair was destroyed.
    pub stale_completion_count: u64,
    /// The most that one look found: the nearer to the depth, the more the poller is behind.
    pub max_poll_batch: u32,
    /// How many completions the queue pairs that use it may make at once.
    pub reserved_depth: u32,
}

/// What is counted where requests are posted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PostingStats {
    pub(super) posted: u64,
}

/// What is counted where requests complete.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompletingStats {
    succeeded: u64,
    flushed: u64,
    failed: u64,
    bytes: u64,
    pub(super) max_outstanding: u32,
}

impl QueueStats {
    pub(super) fn new(posting: PostingStats, completing: CompletingStats) -> QueueStats {
        let CompletingStats { succeeded, flushed, failed, bytes, max_outstanding } = completing;
        QueueStats { posted: posting.posted, succeeded, flushed, failed, bytes, max_outstanding }
    }
}

impl CompletingStats {
    /// Counts a request that succeeded, and its bytes.
    #[inline]
    pub(super) fn succeeded(&mut self, bytes: u32) {
        self.succeeded += 1;
        self.bytes += u64::from(bytes);
    }

    #[inline]
    pub(super) fn count(&mut self, outcome: &RawOutcome) {
        if outcome.status == Status::Success.code() {
            self.succeeded(outcome.length);
        } else if outcome.status == Status::Flushed.code() {
            self.flushed += 1;
        } else {
            self.failed += 1;
        }
    }
}
