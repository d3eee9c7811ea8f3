//! Shared receive queues of a device.

use super::Device;
use crate::Time;
use crate::srq::{SharedQueue, Srq, SrqConfig, SrqError, SrqStatus};
use crate::trace::{EventSink, RecvQueueId, TraceEvent, record};
use crate::types::RecvRequest;

impl<S: EventSink> Device<S> {
    /// Creates a shared receive queue. The queue allocates memory when requests are posted, not at creation.
    ///
    /// # Errors
    ///
    /// Returns [`SrqError::UnknownDomain`] if the protection domain does not exist.
    pub fn create_srq(&mut self, config: SrqConfig) -> Result<Srq, SrqError> {
        self.keys.add_domain_user(config.pd).map_err(|_| SrqError::UnknownDomain)?;
        Ok(Srq(self.free_srqs.occupy(&mut self.srqs, SharedQueue::new(config))))
    }

    /// Destroys a shared receive queue and discards its requests without completions.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue does not exist, or if queue pairs use it.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), SrqError> {
        let queue = self.shared_queue(srq)?;
        if queue.users > 0 {
            return Err(SrqError::InUse { queue_pair_count: queue.users });
        }
        let pd = queue.config.pd;
        self.free_srqs.vacate(&mut self.srqs, srq.0);
        self.keys.remove_domain_user(pd);
        Ok(())
    }

    /// Posts a receive request for the first queue pair that needs one. The request completes in the receive completion
    /// queue of that queue pair.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue does not exist or is full, or if the request has too many segments.
    pub fn post_srq_recv(&mut self, now: Time, srq: Srq, request: &RecvRequest<'_>) -> Result<(), SrqError> {
        let number = self.shared_queue(srq)?.post(request)?;
        record(&mut self.sink, now, || TraceEvent::posted_recv(RecvQueueId::Srq(srq), number, request));
        Ok(())
    }

    /// Arms a shared receive queue: the queue generates one [`QueueEvent::SrqLimit`](crate::QueueEvent::SrqLimit) when
    /// it holds fewer than `limit` requests after a queue pair has taken one for a message. A limit of 0 disarms the
    /// queue.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue does not exist, or if the limit exceeds the queue's depth.
    pub fn arm_srq(&mut self, srq: Srq, limit: u32) -> Result<(), SrqError> {
        self.shared_queue(srq)?.arm(limit)
    }

    /// Returns the status of a shared receive queue, or `None` if it does not exist.
    pub fn query_srq(&self, srq: Srq) -> Option<SrqStatus> {
        let queue = self.srqs.get(srq.0 as usize)?.as_ref()?;
        Some(SrqStatus { request_count: queue.len(), limit: queue.limit(), queue_pair_count: queue.users })
    }

    fn shared_queue(&mut self, srq: Srq) -> Result<&mut SharedQueue, SrqError> {
        match self.srqs.get_mut(srq.0 as usize) {
            Some(Some(queue)) => Ok(queue),
            _ => Err(SrqError::UnknownSrq),
        }
    }
}
