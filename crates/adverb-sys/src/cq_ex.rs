//! Extended completion queues: completions are looked at one by one, and only what is asked for is read.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use crate::errno::set_errno;
use crate::{__be32, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_wc_opcode, ibv_wc_status};

shapes! {
    /// How to make an extended completion queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_cq_init_attr_ex {
        /// At least so many entries.
        pub cqe: u32,
        /// The consumer's own.
        pub cq_context: *mut c_void,
        /// The channel, or NULL.
        pub channel: *mut ibv_comp_channel,
        /// Which vector announces completions.
        pub comp_vector: u32,
        /// `IBV_WC_EX_WITH_*`: what can be read.
        pub wc_flags: u64,
        /// Which of the following are given.
        pub comp_mask: u32,
        /// `IBV_CREATE_CQ_ATTR_*`.
        pub flags: u32,
        /// A parent domain.
        pub parent_domain: *mut ibv_pd,
    }

    // ibv_cq_init_attr_ex.comp_mask
    pub const u32 {
        /// `flags` is given.
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0,
        /// `parent_domain` is given.
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
    }

    // ibv_cq_init_attr_ex.flags
    pub const u32 {
        /// One thread at a time uses it, so that it needs no lock.
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0,
        /// The consumer sees to it that it doesn't overrun.
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }

    // ibv_cq_init_attr_ex.wc_flags
    pub const u64 {
        /// [`ibv_wc_read_byte_len`].
        IBV_WC_EX_WITH_BYTE_LEN = 1 << 0,
        /// [`ibv_wc_read_imm_data`].
        IBV_WC_EX_WITH_IMM = 1 << 1,
        /// [`ibv_wc_read_qp_num`].
        IBV_WC_EX_WITH_QP_NUM = 1 << 2,
        /// [`ibv_wc_read_src_qp`].
        IBV_WC_EX_WITH_SRC_QP = 1 << 3,
        /// [`ibv_wc_read_slid`].
        IBV_WC_EX_WITH_SLID = 1 << 4,
        /// [`ibv_wc_read_sl`].
        IBV_WC_EX_WITH_SL = 1 << 5,
        /// [`ibv_wc_read_dlid_path_bits`].
        IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
        /// [`ibv_wc_read_completion_ts`].
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
        /// The VLAN of a raw packet.
        IBV_WC_EX_WITH_CVLAN = 1 << 8,
        /// The tag of the steering rule that matched.
        IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
        /// Tag matching.
        IBV_WC_EX_WITH_TM_INFO = 1 << 10,
        /// [`ibv_wc_read_completion_wallclock_ns`].
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
        /// What every device can tell.
        IBV_WC_STANDARD_FLAGS = (1 << 7) - 1,
    }

    /// How to poll; so far nothing but zero.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_poll_cq_attr {
        /// Zero.
        pub comp_mask: u32,
    }

    /// Tag matching; not used here.
    pub opaque ibv_wc_tm_info;

    /// An extended completion queue. It begins as an [`ibv_cq`] does.
    pub struct ibv_cq_ex {
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
        /// What there is.
        pub comp_mask: u32,
        /// How the current completion's request ended.
        pub status: ibv_wc_status,
        /// What the current completion's request carried.
        pub wr_id: u64,
        /// [`ibv_start_poll`].
        pub start_poll: Option<
            unsafe extern "C" fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int,
        >,
        /// [`ibv_next_poll`].
        pub next_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_int>,
        /// [`ibv_end_poll`].
        pub end_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
        /// [`ibv_wc_read_opcode`].
        pub read_opcode: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode>,
        /// [`ibv_wc_read_vendor_err`].
        pub read_vendor_err: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// [`ibv_wc_read_byte_len`].
        pub read_byte_len: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// [`ibv_wc_read_imm_data`] and [`ibv_wc_read_invalidated_rkey`].
        pub read_imm_data: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> __be32>,
        /// [`ibv_wc_read_qp_num`].
        pub read_qp_num: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// [`ibv_wc_read_src_qp`].
        pub read_src_qp: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// [`ibv_wc_read_wc_flags`].
        pub read_wc_flags: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_uint>,
        /// [`ibv_wc_read_slid`].
        pub read_slid: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// [`ibv_wc_read_sl`].
        pub read_sl: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
        /// [`ibv_wc_read_dlid_path_bits`].
        pub read_dlid_path_bits: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
        /// [`ibv_wc_read_completion_ts`].
        pub read_completion_ts: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
        /// Not used here.
        pub read_cvlan: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16>,
        /// Not used here.
        pub read_flow_tag: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// Not used here.
        pub read_tm_info: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)>,
        /// [`ibv_wc_read_completion_wallclock_ns`].
        pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
    }
}

/// Makes an extended completion queue. NULL with errno set if that fails.
///
/// # Safety
///
/// `context` is open, and `cq_attr` valid for reads, with what it names alive.
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    cq_attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller upholds what is asked for above.
    unsafe {
        match verbs_op!(context, create_cq_ex) {
            Some(create_cq_ex) => create_cq_ex(context, cq_attr),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// The same queue for functions that take a plain one: arming, resizing, destroying.
#[must_use]
#[inline]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Begins to poll: 0 if there is a completion to look at, ENOENT if there is none, or another error number.
/// Only after 0 follow [`ibv_next_poll`] and [`ibv_end_poll`].
///
/// # Safety
///
/// `cq` was made by [`ibv_create_cq_ex`] and is alive, `attr` is valid for reads, and no other poll is under
/// way.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller upholds what is asked for above; providers fill this in for every such queue.
    unsafe { (*cq).start_poll.unwrap_unchecked()(cq, attr) }
}

/// Goes to the next completion: 0 if there is one, ENOENT if there isn't, or another error number.
///
/// # Safety
///
/// A poll is under way.
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller upholds what is asked for above; providers fill this in for every such queue.
    unsafe { (*cq).next_poll.unwrap_unchecked()(cq) }
}

/// Ends the poll.
///
/// # Safety
///
/// A poll is under way.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller upholds what is asked for above; providers fill this in for every such queue.
    unsafe { (*cq).end_poll.unwrap_unchecked()(cq) }
}

/// Functions that read something of the current completion.
macro_rules! readers {
    ($($(#[$meta:meta])* fn $name:ident = $field:ident -> $ty:ty;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            ///
            /// A poll is under way, and the queue was made with the flag for this, if there is one.
            #[inline]
            pub unsafe fn $name(cq: *mut ibv_cq_ex) -> $ty {
                // SAFETY: the caller says that the queue was made so that the provider fills this in.
                unsafe { (*cq).$field.unwrap_unchecked()(cq) }
            }
        )*
    };
}

readers! {
    /// What was completed. Valid only with success.
    fn ibv_wc_read_opcode = read_opcode -> ibv_wc_opcode;
    /// What the vendor says about a failure.
    fn ibv_wc_read_vendor_err = read_vendor_err -> u32;
    /// Bytes received or read.
    fn ibv_wc_read_byte_len = read_byte_len -> u32;
    /// Immediate data.
    fn ibv_wc_read_imm_data = read_imm_data -> __be32;
    /// The key that the peer invalidated.
    fn ibv_wc_read_invalidated_rkey = read_imm_data -> u32;
    /// The local queue pair.
    fn ibv_wc_read_qp_num = read_qp_num -> u32;
    /// The peer's queue pair, of a datagram.
    fn ibv_wc_read_src_qp = read_src_qp -> u32;
    /// `IBV_WC_*`: what there is.
    fn ibv_wc_read_wc_flags = read_wc_flags -> c_uint;
    /// The peer's local identifier, of a datagram.
    fn ibv_wc_read_slid = read_slid -> u32;
    /// The service level, of a datagram.
    fn ibv_wc_read_sl = read_sl -> u8;
    /// The low bits of the local identifier that was addressed, of a datagram.
    fn ibv_wc_read_dlid_path_bits = read_dlid_path_bits -> u8;
    /// When it was completed, by the device's clock.
    fn ibv_wc_read_completion_ts = read_completion_ts -> u64;
    /// When it was completed, in nanoseconds of the wall clock.
    fn ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns -> u64;
}
