//! Shared receive queues (vol. 1, 10.2.9; `rxe_srq.c`).

use core::fmt;

use crate::memory::Pd;
use crate::mutation::mutant;
use crate::qp::RecvQueue;
use crate::types::RecvRequest;

/// The handle of a shared receive queue of a [`Device`](crate::Device).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Srq(pub(crate) u32);

impl Srq {
    /// Returns the handle with this number, for recordings of rdma-core's devices, which are not
    /// [`Device`](crate::Device)s.
    pub const fn from_number(number: u32) -> Srq {
        Srq(number)
    }
}

/// The configuration of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SrqConfig {
    /// The protection domain of the memory regions that the queue's requests use. Queue pairs of any domain may use the
    /// queue.
    pub pd: Pd,
    /// The maximum number of queued requests. Requests that queue pairs have taken for a message are not counted.
    pub max_wr: u32,
    /// The maximum number of segments of a request.
    pub max_sge: u32,
}

impl SrqConfig {
    /// Creates the configuration of a queue for 1024 requests of up to 16 segments.
    pub const fn new(pd: Pd) -> SrqConfig {
        SrqConfig { pd, max_wr: 1024, max_sge: 16 }
    }
}

/// A shared receive queue. It grows as it fills.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    queue: RecvQueue,
    pub(crate) config: SrqConfig,
    /// The armed limit: the queue generates one event when it has fewer requests. The limit is 0 if the queue is
    /// not armed.
    limit: u32,
    /// The number of queue pairs that use the queue.
    pub(crate) users: u32,
}

/// The result of moving the oldest request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MovedFront {
    /// The queue is empty.
    Nothing,
    /// A request was moved.
    One,
    /// A request was moved, and fewer than the armed limit are left.
    BelowLimit,
}

impl SharedQueue {
    pub(crate) fn new(mut config: SrqConfig) -> SharedQueue {
        // Segments are counted in 16 bits.
        config.max_sge = config.max_sge.min(u32::from(u16::MAX));
        SharedQueue { queue: RecvQueue::default(), config, limit: 0, users: 0 }
    }

    /// Adds a request and returns its number.
    pub(crate) fn post(&mut self, request: &RecvRequest<'_>) -> Result<u32, SrqError> {
        if self.len() >= self.config.max_wr as usize {
            return Err(SrqError::QueueFull);
        }
        if request.segments.len() > self.config.max_sge as usize {
            return Err(SrqError::TooManySegments);
        }
        Ok(self.queue.push(request))
    }

    /// Moves the oldest request to a queue pair, for a message that starts there.
    pub(crate) fn move_front_to(&mut self, queue: &mut RecvQueue) -> MovedFront {
        if !self.queue.move_front_to(queue) {
            return MovedFront::Nothing;
        }
        let is_below_limit = self.len() < self.limit as usize && !mutant!(SrqLimitEventMissing);
        if is_below_limit {
            // Each arming generates one event (vol. 1, 10.2.9).
            self.limit = 0;
            return MovedFront::BelowLimit;
        }
        MovedFront::One
    }

    /// Moves a request that the queue pair will not use back to the front of this queue.
    pub(crate) fn return_front_of(&mut self, queue: &mut RecvQueue) {
        if !mutant!(SrqRequestLost) {
            self.queue.return_front_of(queue);
        }
    }

    pub(crate) fn arm(&mut self, limit: u32) -> Result<(), SrqError> {
        if limit > self.config.max_wr {
            return Err(SrqError::InvalidLimit);
        }
        self.limit = limit;
        Ok(())
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}

/// The status of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqStatus {
    /// The number of queued requests. Requests that queue pairs have taken for a message are not counted.
    pub request_count: usize,
    /// The armed limit: the queue generates an event when it holds fewer requests. The value is 0 if the queue is not
    /// armed, or after the event.
    pub limit: u32,
    /// The number of queue pairs that use the queue.
    pub queue_pair_count: u32,
}

/// The error of creating, using or destroying a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SrqError {
    /// The shared receive queue does not exist.
    UnknownSrq,
    /// The protection domain does not exist.
    UnknownDomain,
    /// The queue is full.
    QueueFull,
    /// The request has more segments than the queue was created for.
    TooManySegments,
    /// The limit exceeds the queue's depth.
    InvalidLimit,
    /// Queue pairs use the shared receive queue.
    InUse {
        /// The number of queue pairs.
        queue_pair_count: u32,
    },
}

impl fmt::Display for SrqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SrqError::UnknownSrq => f.write_str("the shared receive queue does not exist"),
            SrqError::UnknownDomain => f.write_str("the protection domain does not exist"),
            SrqError::QueueFull => f.write_str(
                "the shared receive queue is full: poll completions, or create it with a larger depth",
            ),
            SrqError::TooManySegments => {
                f.write_str("the request has more segments than the shared receive queue was created for")
            }
            SrqError::InvalidLimit => f.write_str("the limit exceeds the shared receive queue's depth"),
            SrqError::InUse { queue_pair_count } => {
                write!(f, "{queue_pair_count} queue pairs use the shared receive queue: destroy them first")
            }
        }
    }
}

impl core::error::Error for SrqError {}
