//! Shared receive queues.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use crate::errno::set_errno;
use crate::{Ibverbs, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_xrcd};

shapes! {
    /// A shared receive queue.
    pub struct ibv_srq {
        /// The device.
        pub context: *mut ibv_context,
        /// The consumer's own.
        pub srq_context: *mut c_void,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The kernel's number.
        pub handle: u32,
        /// The library's own.
        pub mutex: pthread_mutex_t,
        /// The library's own.
        pub cond: pthread_cond_t,
        /// Asynchronous events that were acknowledged.
        pub events_completed: u32,
    }

    /// How much a shared receive queue holds.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_srq_attr {
        /// Requests.
        pub max_wr: u32,
        /// Segments of a request.
        pub max_sge: u32,
        /// An event is made when there are fewer requests than this; zero for none.
        pub srq_limit: u32,
    }

    // ibv_modify_srq
    pub const c_int {
        /// `max_wr`.
        IBV_SRQ_MAX_WR = 1 << 0,
        /// `srq_limit`.
        IBV_SRQ_LIMIT = 1 << 1,
    }

    /// How to make a shared receive queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_srq_init_attr {
        /// The consumer's own.
        pub srq_context: *mut c_void,
        /// How much it holds.
        pub attr: ibv_srq_attr,
    }

    /// What a shared receive queue is for.
    pub enum ibv_srq_type: c_uint {
        /// Queue pairs of one protection domain.
        IBV_SRQT_BASIC = 0,
        /// Extended reliable connections.
        IBV_SRQT_XRC = 1,
        /// Tag matching.
        IBV_SRQT_TM = 2,
    }

    /// Tag matching.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_tm_cap {
        /// Buffers in a list.
        pub max_num_tags: u32,
        /// Outstanding operations on a list.
        pub max_ops: u32,
    }

    /// How to make a shared receive queue, and what has been added since. It begins as an
    /// [`ibv_srq_init_attr`] does.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_srq_init_attr_ex {
        /// The consumer's own.
        pub srq_context: *mut c_void,
        /// How much it holds.
        pub attr: ibv_srq_attr,
        /// Which of the following are given.
        pub comp_mask: u32,
        /// What it is for.
        pub srq_type: ibv_srq_type,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The domain of extended reliable connections.
        pub xrcd: *mut ibv_xrcd,
        /// Where receives complete, of extended reliable connections.
        pub cq: *mut ibv_cq,
        /// Tag matching.
        pub tm_cap: ibv_tm_cap,
    }

    // ibv_srq_init_attr_ex.comp_mask
    pub const u32 {
        /// `srq_type` is given.
        IBV_SRQ_INIT_ATTR_TYPE = 1 << 0,
        /// `pd` is given.
        IBV_SRQ_INIT_ATTR_PD = 1 << 1,
        /// `xrcd` is given.
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
        /// `cq` is given.
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
        /// `tm_cap` is given.
        IBV_SRQ_INIT_ATTR_TM = 1 << 4,
    }
}

impl Ibverbs {
    /// Makes a shared receive queue with extended attributes. NULL with errno set if that fails.
    ///
    /// # Safety
    ///
    /// `context` is open, and `srq_init_attr_ex` valid for reads and writes, with what it names alive.
    pub unsafe fn ibv_create_srq_ex(
        &self,
        context: *mut ibv_context,
        srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq {
        // SAFETY: the caller upholds what is asked for above, and the extended attributes begin as the plain
        // ones do.
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

/// Asks for a shared receive queue's number. 0 or an error number.
///
/// # Safety
///
/// `srq` is alive, and `srq_num` valid for writes.
pub unsafe fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe {
        match verbs_op!((*srq).context, get_srq_num) {
            Some(get_srq_num) => get_srq_num(srq, srq_num),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Posts a list of requests to a shared receive queue. 0, or an error number with `bad_recv_wr` set to the
/// first that wasn't posted.
///
/// # Safety
///
/// `srq` is alive and its context has the operation. The list and its segments are valid for reads,
/// `bad_recv_wr` is valid for writes, and the memory that the segments name stays so, and isn't read, until
/// the requests are complete.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe { (*(*srq).context).ops.post_srq_recv.unwrap_unchecked()(srq, recv_wr, bad_recv_wr) }
}
