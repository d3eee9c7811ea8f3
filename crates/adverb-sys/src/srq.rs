//! Shared receive queues.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use crate::errno::set_errno;
use crate::{Ibverbs, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_xrcd};

shapes! {
    /// A shared receive queue.
    pub struct ibv_srq {
        /// The device context.
        pub context: *mut ibv_context,
        /// The consumer's context pointer.
        pub srq_context: *mut c_void,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The kernel's handle.
        pub handle: u32,
        /// A field internal to the library.
        pub mutex: pthread_mutex_t,
        /// A field internal to the library.
        pub cond: pthread_cond_t,
        /// The number of acknowledged asynchronous events.
        pub events_completed: u32,
    }

    /// The attributes of a shared receive queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_srq_attr {
        /// The maximum number of requests in the queue.
        pub max_wr: u32,
        /// The maximum number of segments of a request.
        pub max_sge: u32,
        /// The limit: an event is generated when the number of requests falls below the limit. Zero disables the
        /// event.
        pub srq_limit: u32,
    }

    // ibv_modify_srq
    pub const c_int {
        /// The mask bit of the field `max_wr`.
        IBV_SRQ_MAX_WR = 1 << 0,
        /// The mask bit of the field `srq_limit`.
        IBV_SRQ_LIMIT = 1 << 1,
    }

    /// The attributes for creating a shared receive queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_srq_init_attr {
        /// The consumer's context pointer.
        pub srq_context: *mut c_void,
        /// The capacities.
        pub attr: ibv_srq_attr,
    }

    /// The type of a shared receive queue.
    pub enum ibv_srq_type: c_uint {
        /// A basic shared receive queue, for queue pairs of one protection domain.
        IBV_SRQT_BASIC = 0,
        /// A shared receive queue for extended reliable connections (XRC).
        IBV_SRQT_XRC = 1,
        /// A shared receive queue with tag matching (TM).
        IBV_SRQT_TM = 2,
    }

    /// The tag matching (TM) capabilities of a shared receive queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_tm_cap {
        /// The maximum number of buffers in the tag list.
        pub max_num_tags: u32,
        /// The maximum number of outstanding operations on the tag list.
        pub max_ops: u32,
    }

    /// The extended attributes for creating a shared receive queue. The first fields are those of an
    /// [`ibv_srq_init_attr`].
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_srq_init_attr_ex {
        /// The consumer's context pointer.
        pub srq_context: *mut c_void,
        /// The capacities.
        pub attr: ibv_srq_attr,
        /// The mask of the fields below that are valid.
        pub comp_mask: u32,
        /// The type of the shared receive queue.
        pub srq_type: ibv_srq_type,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The XRC domain.
        pub xrcd: *mut ibv_xrcd,
        /// The completion queue of the receives, for XRC and tag matching.
        pub cq: *mut ibv_cq,
        /// The tag matching (TM) capabilities.
        pub tm_cap: ibv_tm_cap,
    }

    // ibv_srq_init_attr_ex.comp_mask
    pub const u32 {
        /// The mask bit of the field `srq_type`.
        IBV_SRQ_INIT_ATTR_TYPE = 1 << 0,
        /// The mask bit of the field `pd`.
        IBV_SRQ_INIT_ATTR_PD = 1 << 1,
        /// The mask bit of the field `xrcd`.
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
        /// The mask bit of the field `cq`.
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
        /// The mask bit of the field `tm_cap`.
        IBV_SRQ_INIT_ATTR_TM = 1 << 4,
    }
}

impl Ibverbs {
    /// Creates a shared receive queue with extended attributes. Returns NULL and sets errno on failure.
    ///
    /// # Safety
    ///
    /// `context` is open, `srq_init_attr_ex` is valid for reads and writes, and the objects that it refers to are
    /// alive.
    pub unsafe fn ibv_create_srq_ex(
        &self,
        context: *mut ibv_context,
        srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq {
        // SAFETY: the caller upholds the requirements above, and the extended attributes start with the plain ones.
        unsafe {
            let mask = (*srq_init_attr_ex).comp_mask;
            let has_type = mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
            let is_basic = mask & !IBV_SRQ_INIT_ATTR_TYPE == IBV_SRQ_INIT_ATTR_PD
                && (!has_type || (*srq_init_attr_ex).srq_type == IBV_SRQT_BASIC);
            if is_basic {
                return self.ibv_create_srq((*srq_init_attr_ex).pd, srq_init_attr_ex.cast());
            }
            match verbs_op!(context, create_srq_ex) {
                Some(create_srq_ex) => create_srq_ex(context, srq_init_attr_ex),
                None => {
                    set_errno(libc::EOPNOTSUPP);
                    core::ptr::null_mut()
                }
            }
        }
    }
}

/// Queries a shared receive queue's number. Returns 0 or an errno value.
///
/// # Safety
///
/// `srq` is alive, and `srq_num` is valid for writes.
pub unsafe fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!((*srq).context, get_srq_num) {
            Some(get_srq_num) => get_srq_num(srq, srq_num),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Posts a list of requests to a shared receive queue. Returns 0, or an errno value with `bad_recv_wr` set to the first
/// request that wasn't posted.
///
/// # Safety
///
/// `srq` is alive, and its device context implements `post_srq_recv`. The list and its segments are valid for reads,
/// and `bad_recv_wr` is valid for writes. The memory of the segments stays valid, and is not read, until the requests
/// complete.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe { (*(*srq).context).ops.post_srq_recv.unwrap_unchecked()(srq, recv_wr, bad_recv_wr) }
}
