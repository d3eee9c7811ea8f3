//! Statistics of queues.

use adverb_proto::types::Status;

use crate::backend::RawOutcome;

/// Statistics of one queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueStats {
    /// The number of posted requests.
    pub posted_count: u64,
    /// The number of requests that succeeded.
    pub succeeded_count: u64,
    /// The number of requests that were flushed because the queue pair was in the error state.
    pub flushed_count: u64,
    /// The number of requests that failed with any other status.
    pub failed_count: u64,
    /// The number of bytes that completions reported: received, read, or fetched by atomics.
    pub completed_bytes: u64,
    /// The maximum number of requests outstanding at once, measured when completions are polled.
    pub max_outstanding: u32,
}

/// Statistics of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueuePairStats {
    /// The statistics of the send queue.
    pub send: QueueStats,
    /// The statistics of the receive queue. All values are 0 if the queue pair uses a shared receive queue.
    pub recv: QueueStats,
}

/// Statistics of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CompletionQueueStats {
    /// The number of completions that were polled from the device. The device produces none for unsignaled requests
    /// that succeed.
    pub polled_completion_count: u64,
    /// The number of polled completions that match no request, because their queue pair was destroyed.
    pub stale_completion_count: u64,
    /// The maximum number of completions that one poll returned. A value close to the depth means that polling is too
    /// slow.
    pub max_poll_batch: u32,
    /// The number of entries that queue pairs have reserved: the number of requests that may complete at once.
    pub reserved_depth: u32,
}

/// Counters of the posting side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PostingStats {
    pub(super) posted: u64,
}

/// Counters of the completing side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompletingStats {
    succeeded: u64,
    flushed: u64,
    failed: u64,
    completed_bytes: u64,
    pub(super) max_outstanding: u32,
}

impl QueueStats {
    pub(super) fn new(posting: PostingStats, completing: CompletingStats) -> QueueStats {
        let CompletingStats { succeeded, flushed, failed, completed_bytes, max_outstanding } = completing;
        QueueStats {
            posted_count: posting.posted,
            succeeded_count: succeeded,
            flushed_count: flushed,
            failed_count: failed,
            completed_bytes,
            max_outstanding,
        }
    }
}

impl CompletingStats {
    /// Counts a request that succeeded, and its bytes.
    #[inline]
    pub(super) fn count_success(&mut self, bytes: u32) {
        self.succeeded += 1;
        self.completed_bytes += u64::from(bytes);
    }

    #[inline]
    pub(super) fn count(&mut self, outcome: &RawOutcome) {
        if outcome.status == Status::Success.code() {
            self.count_success(outcome.length);
        } else if outcome.status == Status::Flushed.code() {
            self.flushed += 1;
        } else {
            self.failed += 1;
        }
    }
}
