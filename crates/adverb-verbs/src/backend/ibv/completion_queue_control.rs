//! Resizing and moderation of completion queues.

use std::sync::atomic::Ordering;

use adverb_proto::explain::Call;
use adverb_sys as sys;

use super::{CompletionQueue, check, unsupported};
use crate::error::{Feature, Result};

impl CompletionQueue {
    pub(in crate::backend) fn resize(&self, depth: u32) -> Result<()> {
        let device = &self.device;
        let cqe = libc::c_int::try_from(depth).unwrap_or(libc::c_int::MAX);
        // SAFETY: the queue exists.
        let code = unsafe { device.library.ibv_resize_cq(self.handle.as_ptr(), cqe) };
        let action = || format!("resizing a completion queue on {} to depth {depth}", device.name);
        check(Call::Create, code, action)
            .map_err(|error| unsupported(error, Feature::Resize, &device.name))?;
        self.depth.store(depth, Ordering::Release);
        Ok(())
    }

    pub(in crate::backend) fn moderate(&self, count: u16, period: u16) -> Result<()> {
        let device = &self.device;
        let mut attr = sys::ibv_modify_cq_attr::zeroed();
        attr.attr_mask = sys::IBV_CQ_ATTR_MODERATE;
        attr.moderate = sys::ibv_moderate_cq { cq_count: count, cq_period: period };
        // SAFETY: the queue exists, and the attributes can be read.
        let code = unsafe { sys::ibv_modify_cq(self.handle.as_ptr(), &mut attr) };
        let action = || format!("setting the moderation of a completion queue on {}", device.name);
        check(Call::Create, code, action)
            .map_err(|error| unsupported(error, Feature::Moderation, &device.name))
    }
}
