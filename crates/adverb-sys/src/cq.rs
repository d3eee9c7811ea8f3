//! Completion queues and completion channels.

use libc::{c_int, c_void, pthread_cond_t, pthread_mutex_t};

use crate::{ibv_context, ibv_wc};

shapes! {
    /// A completion channel: a file descriptor that becomes readable when there is a completion event.
    pub struct ibv_comp_channel {
        /// The device context.
        pub context: *mut ibv_context,
        /// The file descriptor.
        pub fd: c_int,
        /// The number of attached completion queues.
        pub refcnt: c_int,
    }

    /// A completion queue.
    pub struct ibv_cq {
        /// The device context.
        pub context: *mut ibv_context,
        /// The completion channel, or NULL.
        pub channel: *mut ibv_comp_channel,
        /// The consumer's context pointer.
        pub cq_context: *mut c_void,
        /// The kernel's handle.
        pub handle: u32,
        /// The number of entries.
        pub cqe: c_int,
        /// A field internal to the library.
        pub mutex: pthread_mutex_t,
        /// A field internal to the library.
        pub cond: pthread_cond_t,
        /// The number of acknowledged completion events.
        pub comp_events_completed: u32,
        /// The number of acknowledged asynchronous events.
        pub async_events_completed: u32,
    }

    /// The attributes for modifying a completion queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_modify_cq_attr {
        /// The mask of attributes to modify.
        pub attr_mask: u32,
        /// The event moderation.
        pub moderate: ibv_moderate_cq,
    }

    /// The event moderation of a completion queue. The device generates an event when either limit is reached.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_moderate_cq {
        /// The maximum number of completions per event.
        pub cq_count: u16,
        /// The maximum delay of an event in microseconds.
        pub cq_period: u16,
    }

    // ibv_modify_cq_attr.attr_mask
    pub const u32 {
        /// The mask bit of the field `moderate`.
        IBV_CQ_ATTR_MODERATE = 1 << 0,
    }
}

/// Polls up to `num_entries` completions. Returns the number of completions, or a negative number on failure.
///
/// # Safety
///
/// `cq` is alive, its device context implements `poll_cq`, and `wc` is valid for writes of `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe { (*(*cq).context).ops.poll_cq.unwrap_unchecked()(cq, num_entries, wc) }
}

/// Arms a completion queue: the next completion, or the next solicited completion, generates an event. Returns 0 or an
/// errno value.
///
/// A completion that is already in the queue generates no event, so the caller must poll once more after this call.
///
/// # Safety
///
/// `cq` is alive, and its device context implements `req_notify_cq`.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe { (*(*cq).context).ops.req_notify_cq.unwrap_unchecked()(cq, solicited_only) }
}

/// Modifies a completion queue's event moderation. Returns 0 or an errno value.
///
/// # Safety
///
/// `cq` is alive, and `attr` is valid for reads.
#[inline]
pub unsafe fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!((*cq).context, modify_cq) {
            Some(modify_cq) => modify_cq(cq, attr),
            None => libc::EOPNOTSUPP,
        }
    }
}
