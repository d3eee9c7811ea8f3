//! Resizing and moderation of completion queues.

use std::sync::atomic::Ordering;

use adverb_sys as sys;

use super::{CompletionQueue, check};
use crate::error::{Error, Result};

impl CompletionQueue {
    pub(in crate::backend) fn resize(&self, depth: u32) -> Result<()> {
        let device = &self.device;
        let cqe = libc::c_int::try_from(depth).unwrap_or(libc::c_int::MAX);
        // SAFETY: the queue exists.
        let code = unsafe { device.library.ibv_resize_cq(self.handle.as_ptr(), cqe) };
        let action = || format!("resizing a completion queue on {} to depth {depth}", device.name);
        check(code, action).map_err(|error| {
            let hint = "create a completion queue of the right depth, and new queue pairs that use it";
            unsupported(error, || format!("resizing completion queues on {}", device.name), hint)
        })?;
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
        check(code, || format!("setting the moderation of a completion queue on {}", device.name)).map_err(
            |error| {
                let hint = "poll for a while after each event instead, as `Poller` does";
                unsupported(error, || format!("completion event moderation on {}", device.name), hint)
            },
        )
    }
}

/// Converts an error to [`Error::Unsupported`] if its number means that the operation isn't supported.
fn unsupported(error: Error, feature: impl FnOnce() -> String, hint: &'static str) -> Error {
    match &error {
        Error::Verb { error: cause, .. }
            if matches!(cause.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) =>
        {
            Error::Unsupported { feature: feature().into(), hint: hint.into() }
        }
        _ => error,
    }
}
