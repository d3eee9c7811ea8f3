//! Shared receive queues of a device.

use super::Device;
use crate::Time;
use crate::event::{EventSink, TraceEvent, tell};
use crate::srq::{SharedQueue, Srq, SrqConfig, SrqError, SrqStatus};
use crate::types::RecvRequest;

impl<S: EventSink> Device<S> {
    /// Makes a shared receive queue. It takes memory as it fills.
    ///
    /// # Errors
    ///
    /// If there is no such domain.
    pub fn create_srq(&mut self, config: SrqConfig) -> Result<Srq, SrqError> {
        self.keys.hold_domain(config.pd).map_err(|_| SrqError::UnknownDomain)?;
        Ok(Srq(self.free_srqs.occupy(&mut self.srqs, SharedQueue::new(config))))
    }

    /// Ends a shared receive queue. What was posted to it is forgotten without a completion.
    ///
    /// # Errors
    ///
    /// If there is none, or queue pairs share it.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), SrqError> {
        let queue = self.shared_queue(srq)?;
        if queue.users > 0 {
            return Err(SrqError::InUse { queue_pair_count: queue.users });
        }
        let pd = queue.config.pd;
        self.free_srqs.vacate(&mut self.srqs, srq.0);
        self.keys.release_domain(pd);
        Ok(())
    }

    /// Posts a receive request for whichever queue pair a message comes to first. It completes in the receive
    /// completion queue of that one.
    ///
    /// # Errors
    ///
    /// If there is no such queue, or it is full, or the request has too many segments.
    pub fn post_srq_recv(&mut self, now: Time, srq: Srq, request: &RecvRequest<'_>) -> Result<(), SrqError> {
        self.shared_queue(srq)?.post(request)?;
        tell(&mut self.sink, now, || TraceEvent::PostedShared { srq, wr_id: request.wr_id });
        Ok(())
    }

    /// Asks for one [`QueueEvent::SrqLimit`](crate::QueueEvent::SrqLimit) when a message leaves fewer than `limit` requests in
    /// the queue; 0 takes that back.
    ///
    /// # Errors
    ///
    /// If there is no such queue, or it can never hold so many.
    pub fn arm_srq(&mut self, srq: Srq, limit: u32) -> Result<(), SrqError> {
        self.shared_queue(srq)?.arm(limit)
    }

    /// How a shared receive queue stands, or `None` if there is none.
    pub fn query_srq(&self, srq: Srq) -> Option<SrqStatus> {
        let queue = self.srqs.get(srq.0 as usize)?.as_ref()?;
        Some(SrqStatus { requests: queue.len(), limit: queue.limit(), queue_pairs: queue.users })
    }

    fn shared_queue(&mut self, srq: Srq) -> Result<&mut SharedQueue, SrqError> {
        match self.srqs.get_mut(srq.0 as usize) {
            Some(Some(queue)) => Ok(queue),
            _ => Err(SrqError::UnknownSrq),
        }
    }
}
