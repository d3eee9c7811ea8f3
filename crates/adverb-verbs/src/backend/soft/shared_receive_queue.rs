//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::explain::Call;
use adverb_proto::{Srq, SrqConfig};

use super::device::{MAX_DEPTH, MAX_SEGMENTS};
use super::request_list::{RecvList, post_result};
use super::{ProtectionDomain, nic_error};
use crate::backend::PostErrno;
use crate::error::{Error, Limit, Result};

pub(crate) struct SharedReceiveQueue {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) srq: Srq,
    destroyed: AtomicBool,
}

impl SharedReceiveQueue {
    /// Creates a queue, and returns it with the maximum number of segments of a request. Events of the queue contain
    /// `id`.
    pub(in crate::backend) fn new(
        domain: &Arc<ProtectionDomain>,
        depth: u32,
        segments: u32,
        id: u32,
    ) -> Result<(SharedReceiveQueue, u32)> {
        for (limit, requested, max) in [
            (Limit::SharedReceiveQueueDepth, depth, MAX_DEPTH),
            (Limit::RecvSegments, segments, MAX_SEGMENTS),
        ] {
            if requested > max {
                let (requested, max) = (requested.into(), max.into());
                return Err(Error::LimitExceeded { limit, requested, max });
            }
        }
        let device = &domain.device;
        let mut config = SrqConfig::new(domain.pd);
        (config.max_wr, config.max_sge) = (depth, segments);
        let created = device.nic.create_srq(config);
        let srq = created.map_err(|error| {
            nic_error(
                Call::Create,
                error,
                format!("creating a shared receive queue of depth {depth} on {}", device.name),
            )
        })?;
        device.shared.lock().insert(srq, id);
        let queue = SharedReceiveQueue { domain: Arc::clone(domain), srq, destroyed: AtomicBool::new(false) };
        Ok((queue, segments))
    }

    #[cold]
    pub(in crate::backend) fn post_recvs(&self, list: &mut RecvList) -> Result<(), PostErrno> {
        let posted = self.domain.device.nic.post_srq_recvs(self.srq, list.requests());
        let (posted_count, posted) = post_result(posted);
        list.posted_count = posted_count;
        posted
    }

    /// Requests an event for when fewer than `limit` requests remain.
    pub(in crate::backend) fn arm(&self, limit: u32) -> Result<()> {
        let armed = self.domain.device.nic.arm_srq(self.srq, limit);
        armed.map_err(|error| nic_error(Call::Query, error, "setting the limit of a shared receive queue"))
    }

    pub(in crate::backend) fn destroy(&self) -> Result<()> {
        let device = &self.domain.device;
        if !device.is_owned() || self.destroyed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // The lock is taken first, because the number may be reused as soon as it is free.
        let mut shared = device.shared.lock();
        let destroyed = device.nic.destroy_srq(self.srq);
        if destroyed.is_ok() {
            shared.remove(&self.srq);
        }
        destroyed.map_err(|error| nic_error(Call::Destroy, error, "destroying a shared receive queue"))
    }
}
