//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::{Srq, SrqConfig};
use adverb_sys::ibv_recv_wr;

use super::device::{MAX_DEPTH, MAX_SEGMENTS};
use super::{ProtectionDomain, refusal, request};
use crate::backend::request_list::Chain;
use crate::error::{Error, Result};

pub(crate) struct SharedReceiveQueue {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) srq: Srq,
    gone: AtomicBool,
}

impl SharedReceiveQueue {
    /// Makes one; also says how many segments a request may have. Events of the queue will carry `id`.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        depth: u32,
        segments: u32,
        id: u32,
    ) -> Result<(SharedReceiveQueue, u32)> {
        for (what, asked, most) in [
            ("shared receive queue depth", depth, MAX_DEPTH),
            ("number of segments per receive request", segments, MAX_SEGMENTS),
        ] {
            if asked > most {
                let (asked, most) = (asked.into(), most.into());
                return Err(Error::LimitExceeded {
                    quantity: what.into(),
                    requested: asked,
                    max: most,
                    hint: "".into(),
                });
            }
        }
        let device = &domain.device;
        let mut config = SrqConfig::new(domain.pd);
        (config.max_wr, config.max_sge) = (depth, segments);
        let made = device.nic.create_srq(config);
        let srq = made.map_err(|error| {
            refusal(error, format!("creating a shared receive queue of depth {depth} on {}", device.name))
        })?;
        device.shared.lock().insert(srq, id);
        let queue = SharedReceiveQueue { domain: Arc::clone(domain), srq, gone: AtomicBool::new(false) };
        Ok((queue, segments))
    }

    #[cold]
    pub(crate) fn post_recvs(&self, Chain { first, bad }: Chain<'_, ibv_recv_wr>) -> libc::c_int {
        // SAFETY: a chain ends with a null pointer, and its segments can be read.
        let requests = unsafe { request::recv_requests(first) };
        request::answer(self.domain.device.nic.post_srq_recvs(self.srq, requests), first, bad)
    }

    /// Asks for an event when fewer requests than this are left.
    pub(crate) fn arm(&self, limit: u32) -> Result<()> {
        let armed = self.domain.device.nic.arm_srq(self.srq, limit);
        armed.map_err(|error| refusal(error, "setting the limit of a shared receive queue".to_owned()))
    }

    pub(crate) fn destroy(&self) -> Result<()> {
        let device = &self.domain.device;
        if !device.is_ours() || self.gone.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // First, because the number may be another's as soon as it is free.
        let mut shared = device.shared.lock();
        let destroyed = device.nic.destroy_srq(self.srq);
        if destroyed.is_ok() {
            shared.remove(&self.srq);
        }
        destroyed.map_err(|error| refusal(error, "destroying a shared receive queue".to_owned()))
    }
}
