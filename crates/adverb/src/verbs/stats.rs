//! What queues count.

use adverb_proto::vocabulary::Status;

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
    /// The most requests that were outstanding at once.
    pub high_water: u32,
}

/// What a queue pair has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueuePairStats {
    /// Its send queue.
    pub send: QueueStats,
    /// Its receive queue.
    pub recv: QueueStats,
}

impl QueueStats {
    #[inline]
    pub(super) fn count(&mut self, outcome: &RawOutcome) {
        if outcome.status == Status::Success.code() {
            self.succeeded += 1;
            self.bytes += u64::from(outcome.detail);
        } else if outcome.status == Status::Flushed.code() {
            self.flushed += 1;
        } else {
            self.failed += 1;
        }
    }
}
