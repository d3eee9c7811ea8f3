//! Extended completion queues, whose completions are polled one by one and read field by field.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use crate::errno::set_errno;
use crate::{__be32, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_wc_opcode, ibv_wc_status};

shapes! {
    /// The attributes for creating an extended completion queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_cq_init_attr_ex {
        /// The minimum number of entries.
        pub cqe: u32,
        /// The consumer's context pointer.
        pub cq_context: *mut c_void,
        /// The completion channel, or NULL.
        pub channel: *mut ibv_comp_channel,
        /// The completion vector.
        pub comp_vector: u32,
        /// The `IBV_WC_EX_WITH_*` flags of the readable completion fields.
        pub wc_flags: u64,
        /// The mask of the fields below that are valid.
        pub comp_mask: u32,
        /// The `IBV_CREATE_CQ_ATTR_*` flags.
        pub flags: u32,
        /// The parent domain.
        pub parent_domain: *mut ibv_pd,
    }

    // ibv_cq_init_attr_ex.comp_mask
    pub const u32 {
        /// The mask bit of the field `flags`.
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0,
        /// The mask bit of the field `parent_domain`.
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
    }

    // ibv_cq_init_attr_ex.flags
    pub const u32 {
        /// Only one thread uses the queue at a time, so the queue needs no lock.
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0,
        /// The consumer guarantees that the queue doesn't overrun.
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }

    // ibv_cq_init_attr_ex.wc_flags
    pub const u64 {
        /// The flag that enables [`ibv_wc_read_byte_len`].
        IBV_WC_EX_WITH_BYTE_LEN = 1 << 0,
        /// The flag that enables [`ibv_wc_read_imm_data`].
        IBV_WC_EX_WITH_IMM = 1 << 1,
        /// The flag that enables [`ibv_wc_read_qp_num`].
        IBV_WC_EX_WITH_QP_NUM = 1 << 2,
        /// The flag that enables [`ibv_wc_read_src_qp`].
        IBV_WC_EX_WITH_SRC_QP = 1 << 3,
        /// The flag that enables [`ibv_wc_read_slid`].
        IBV_WC_EX_WITH_SLID = 1 << 4,
        /// The flag that enables [`ibv_wc_read_sl`].
        IBV_WC_EX_WITH_SL = 1 << 5,
        /// The flag that enables [`ibv_wc_read_dlid_path_bits`].
        IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
        /// The flag that enables [`ibv_wc_read_completion_ts`].
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
        /// The flag that enables reading the VLAN tag of a raw packet.
        IBV_WC_EX_WITH_CVLAN = 1 << 8,
        /// The flag that enables reading the tag of the flow steering rule that matched.
        IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
        /// The flag that enables reading the tag matching information.
        IBV_WC_EX_WITH_TM_INFO = 1 << 10,
        /// The flag that enables [`ibv_wc_read_completion_wallclock_ns`].
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
        /// The flags that every device supports.
        IBV_WC_STANDARD_FLAGS = (1 << 7) - 1,
    }

    /// The attributes of a poll; no attribute is defined yet.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_poll_cq_attr {
        /// The mask of optional fields, which must be zero.
        pub comp_mask: u32,
    }

    /// Tag matching information. The type is opaque in this crate.
    pub opaque ibv_wc_tm_info;

    /// An extended completion queue. The first fields are those of an [`ibv_cq`].
    pub struct ibv_cq_ex {
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
        /// The mask of optional fields.
        pub comp_mask: u32,
        /// The status of the current completion.
        pub status: ibv_wc_status,
        /// The work request ID of the current completion.
        pub wr_id: u64,
        /// The implementation of [`ibv_start_poll`].
        pub start_poll: Option<
            unsafe extern "C" fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int,
        >,
        /// The implementation of [`ibv_next_poll`].
        pub next_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_int>,
        /// The implementation of [`ibv_end_poll`].
        pub end_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
        /// The implementation of [`ibv_wc_read_opcode`].
        pub read_opcode: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode>,
        /// The implementation of [`ibv_wc_read_vendor_err`].
        pub read_vendor_err: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// The implementation of [`ibv_wc_read_byte_len`].
        pub read_byte_len: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// The implementation of [`ibv_wc_read_imm_data`] and [`ibv_wc_read_invalidated_rkey`].
        pub read_imm_data: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> __be32>,
        /// The implementation of [`ibv_wc_read_qp_num`].
        pub read_qp_num: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// The implementation of [`ibv_wc_read_src_qp`].
        pub read_src_qp: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// The implementation of [`ibv_wc_read_wc_flags`].
        pub read_wc_flags: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_uint>,
        /// The implementation of [`ibv_wc_read_slid`].
        pub read_slid: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// The implementation of [`ibv_wc_read_sl`].
        pub read_sl: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
        /// The implementation of [`ibv_wc_read_dlid_path_bits`].
        pub read_dlid_path_bits: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
        /// The implementation of [`ibv_wc_read_completion_ts`].
        pub read_completion_ts: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
        /// A function that this crate does not use.
        pub read_cvlan: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16>,
        /// A function that this crate does not use.
        pub read_flow_tag: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        /// A function that this crate does not use.
        pub read_tm_info: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)>,
        /// The implementation of [`ibv_wc_read_completion_wallclock_ns`].
        pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
    }
}

/// Creates an extended completion queue. Returns NULL and sets errno on failure.
///
/// # Safety
///
/// `context` is open, `cq_attr` is valid for reads, and the objects that it refers to are alive.
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    cq_attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller upholds the requirements above.
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

/// Casts an extended completion queue to an [`ibv_cq`], for the functions that arm, resize and destroy queues.
#[must_use]
#[inline]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Starts a poll. Returns 0 if there is a completion, ENOENT if there is none, or another errno value. If the result
/// is 0, the caller may call [`ibv_next_poll`] and must call [`ibv_end_poll`]. Otherwise the caller must call
/// neither.
///
/// # Safety
///
/// `cq` was created by [`ibv_create_cq_ex`] and is alive, `attr` is valid for reads, and no other poll is in progress.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller upholds the requirements above, and providers set this field for every such queue.
    unsafe { (*cq).start_poll.unwrap_unchecked()(cq, attr) }
}

/// Advances to the next completion. Returns 0 if there is a completion, ENOENT if there is none, or another errno
/// value.
///
/// # Safety
///
/// A poll of `cq` is in progress.
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller upholds the requirements above, and providers set this field for every such queue.
    unsafe { (*cq).next_poll.unwrap_unchecked()(cq) }
}

/// Ends a poll.
///
/// # Safety
///
/// A poll of `cq` is in progress.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller upholds the requirements above, and providers set this field for every such queue.
    unsafe { (*cq).end_poll.unwrap_unchecked()(cq) }
}

/// Declares functions that read a field of the current completion.
macro_rules! readers {
    ($($(#[$meta:meta])* fn $name:ident = $field:ident -> $ty:ty;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            ///
            /// A poll of `cq` is in progress, and the queue was created with the flag that enables this function, if
            /// there is such a flag.
            #[inline]
            pub unsafe fn $name(cq: *mut ibv_cq_ex) -> $ty {
                // SAFETY: the caller guarantees that the queue was created so that the provider sets this field.
                unsafe { (*cq).$field.unwrap_unchecked()(cq) }
            }
        )*
    };
}

readers! {
    /// Reads the opcode of a completed request. The opcode is valid only if the status is success.
    fn ibv_wc_read_opcode = read_opcode -> ibv_wc_opcode;
    /// Reads the vendor-specific error code.
    fn ibv_wc_read_vendor_err = read_vendor_err -> u32;
    /// Reads the number of bytes received or read.
    fn ibv_wc_read_byte_len = read_byte_len -> u32;
    /// Reads the immediate data.
    fn ibv_wc_read_imm_data = read_imm_data -> __be32;
    /// Reads the remote key that the peer invalidated.
    fn ibv_wc_read_invalidated_rkey = read_imm_data -> u32;
    /// Reads the number of the local queue pair.
    fn ibv_wc_read_qp_num = read_qp_num -> u32;
    /// Reads the number of the source queue pair of a datagram.
    fn ibv_wc_read_src_qp = read_src_qp -> u32;
    /// Reads the `IBV_WC_*` flags.
    fn ibv_wc_read_wc_flags = read_wc_flags -> c_uint;
    /// Reads the source LID of a datagram.
    fn ibv_wc_read_slid = read_slid -> u32;
    /// Reads the service level of a datagram.
    fn ibv_wc_read_sl = read_sl -> u8;
    /// Reads the low bits of the destination LID of a datagram.
    fn ibv_wc_read_dlid_path_bits = read_dlid_path_bits -> u8;
    /// Reads the time of completion by the device's clock.
    fn ibv_wc_read_completion_ts = read_completion_ts -> u64;
    /// Reads the time of completion by the wall clock, in nanoseconds.
    fn ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns -> u64;
}
