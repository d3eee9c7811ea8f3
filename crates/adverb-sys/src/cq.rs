//! Completion queues and the channels that announce completions.

use libc::{c_int, c_void, pthread_cond_t, pthread_mutex_t};

use crate::{ibv_context, ibv_wc};

shapes! {
    /// A descriptor that is readable when a completion queue has something.
    pub struct ibv_comp_channel {
        /// The device.
        pub context: *mut ibv_context,
        /// The descriptor.
        pub fd: c_int,
        /// How many completion queues are attached.
        pub refcnt: c_int,
    }

    /// A completion queue.
    pub struct ibv_cq {
        /// The device.
        pub context: *mut ibv_context,
        /// The channel, or NULL.
        pub channel: *mut ibv_comp_channel,
        /// The consumer's own.
        pub cq_context: *mut c_void,
        /// The kernel's number.
        pub handle: u32,
        /// How many entries there are.
        pub cqe: c_int,
        /// The library's own.
        pub mutex: pthread_mutex_t,
        /// The library's own.
        pub cond: pthread_cond_t,
        /// Completion events that were acknowledged.
        pub comp_events_completed: u32,
        /// Asynchronous events that were acknowledged.
        pub async_events_completed: u32,
    }

    /// How to change a completion queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_modify_cq_attr {
        /// What changes.
        pub attr_mask: u32,
        /// When an event is made.
        pub moderate: ibv_moderate_cq,
    }

    /// When a completion event is made: at the first of the two.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_moderate_cq {
        /// After so many completions.
        pub cq_count: u16,
        /// After so many microseconds.
        pub cq_period: u16,
    }

    // ibv_modify_cq_attr.attr_mask
    pub const u32 {
        /// `moderate`.
        IBV_CQ_ATTR_MODERATE = 1 << 0,
    }
}

/// Takes up to `num_entries` completions: how many there were, or a negative number.
///
/// # Safety
///
/// `cq` is alive, its context has the operation, and `wc` is valid for writes of `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe { (*(*cq).context).ops.poll_cq.unwrap_unchecked()(cq, num_entries, wc) }
}

/// Asks for an event at the next completion, or at the next solicited one. 0 or an error number.
///
/// A completion that is there already makes no event: poll once more after this.
///
/// # Safety
///
/// `cq` is alive, and its context has the operation.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe { (*(*cq).context).ops.req_notify_cq.unwrap_unchecked()(cq, solicited_only) }
}

/// Changes when a completion queue makes events. 0 or an error number.
///
/// # Safety
///
/// `cq` is alive, and `attr` valid for reads.
#[inline]
pub unsafe fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe {
        match verbs_op!((*cq).context, modify_cq) {
            Some(modify_cq) => modify_cq(cq, attr),
            None => libc::EOPNOTSUPP,
        }
    }
}
