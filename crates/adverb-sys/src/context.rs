//! Device contexts (open devices) and their operations.

use core::mem::offset_of;

use libc::{c_int, c_uint, c_void, pthread_mutex_t, size_t};

use crate::{
    ibv_advise_mr_advice, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_device_attr,
    ibv_device_attr_ex, ibv_modify_cq_attr, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_type,
    ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_rate_limit_attr,
    ibv_query_device_ex_input, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td,
    ibv_td_init_attr, ibv_values_ex, ibv_wc,
};

shapes! {
    /// The port attributes of the library's oldest version. The type is opaque in this crate.
    pub opaque _compat_ibv_port_attr;

    /// The provider's operations for posting and polling.
    ///
    /// libibverbs fills in every operation. If the device lacks an operation, the function returns EOPNOTSUPP. The
    /// fields with the prefix `_compat` are unused slots of a former interface.
    #[derive(Clone, Copy)]
    pub struct ibv_context_ops {
        /// An unused slot.
        pub _compat_query_device: Option<
            unsafe extern "C" fn(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int,
        >,
        /// An unused slot.
        pub _compat_query_port: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                port_num: u8,
                port_attr: *mut _compat_ibv_port_attr,
            ) -> c_int,
        >,
        /// An unused slot.
        pub _compat_alloc_pd: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_dealloc_pd: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_reg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_rereg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_dereg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// The implementation of [`ibv_alloc_mw`](crate::ibv_alloc_mw).
        pub alloc_mw: Option<unsafe extern "C" fn(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw>,
        /// The implementation of [`ibv_bind_mw`](crate::ibv_bind_mw).
        pub bind_mw: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int,
        >,
        /// The implementation of [`ibv_dealloc_mw`](crate::ibv_dealloc_mw).
        pub dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int>,
        /// An unused slot.
        pub _compat_create_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// The implementation of [`ibv_poll_cq`](crate::ibv_poll_cq).
        pub poll_cq:
            Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int>,
        /// The implementation of [`ibv_req_notify_cq`](crate::ibv_req_notify_cq).
        pub req_notify_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
        /// An unused slot.
        pub _compat_cq_event: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_resize_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_destroy_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_create_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_modify_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_query_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_destroy_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// The implementation of [`ibv_post_srq_recv`](crate::ibv_post_srq_recv).
        pub post_srq_recv: Option<
            unsafe extern "C" fn(
                srq: *mut ibv_srq,
                recv_wr: *mut ibv_recv_wr,
                bad_recv_wr: *mut *mut ibv_recv_wr,
            ) -> c_int,
        >,
        /// An unused slot.
        pub _compat_create_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_query_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_modify_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_destroy_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// The implementation of [`ibv_post_send`](crate::ibv_post_send).
        pub post_send: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp,
                wr: *mut ibv_send_wr,
                bad_wr: *mut *mut ibv_send_wr,
            ) -> c_int,
        >,
        /// The implementation of [`ibv_post_recv`](crate::ibv_post_recv).
        pub post_recv: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp,
                wr: *mut ibv_recv_wr,
                bad_wr: *mut *mut ibv_recv_wr,
            ) -> c_int,
        >,
        /// An unused slot.
        pub _compat_create_ah: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_destroy_ah: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_attach_mcast: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_detach_mcast: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// An unused slot.
        pub _compat_async_event: Option<unsafe extern "C" fn() -> *mut c_void>,
    }

    /// An open device (a device context).
    pub struct ibv_context {
        /// The device.
        pub device: *mut ibv_device,
        /// The provider's operations.
        pub ops: ibv_context_ops,
        /// The file descriptor for commands to the kernel.
        pub cmd_fd: c_int,
        /// The file descriptor of asynchronous events.
        pub async_fd: c_int,
        /// The number of completion vectors.
        pub num_comp_vectors: c_int,
        /// A field internal to the library.
        pub mutex: pthread_mutex_t,
        /// The value [`__VERBS_ABI_IS_EXTENDED`] if the context is the last field of a [`verbs_context`].
        pub abi_compat: *mut c_void,
    }

    /// A counter set. The type is opaque in this crate.
    pub opaque ibv_counters;
    /// The attributes for creating a counter set. The type is opaque in this crate.
    pub opaque ibv_counters_init_attr;
    /// The attributes for attaching counters. The type is opaque in this crate.
    pub opaque ibv_counter_attach_attr;
    /// Device memory. The type is opaque in this crate.
    pub opaque ibv_dm;
    /// The attributes for allocating device memory. The type is opaque in this crate.
    pub opaque ibv_alloc_dm_attr;
    /// A flow steering rule. The type is opaque in this crate.
    pub opaque ibv_flow;
    /// The attributes of a flow steering rule. The type is opaque in this crate.
    pub opaque ibv_flow_attr;
    /// A flow action. The type is opaque in this crate.
    pub opaque ibv_flow_action;
    /// The attributes of an ESP flow action. The type is opaque in this crate.
    pub opaque ibv_flow_action_esp_attr;
    /// A tag matching request. The type is opaque in this crate.
    pub opaque ibv_ops_wr;
    /// A receive work queue indirection table. The type is opaque in this crate.
    pub opaque ibv_rwq_ind_table;
    /// The attributes for creating an indirection table. The type is opaque in this crate.
    pub opaque ibv_rwq_ind_table_init_attr;
    /// A work queue. The type is opaque in this crate.
    pub opaque ibv_wq;
    /// The attributes for modifying a work queue. The type is opaque in this crate.
    pub opaque ibv_wq_attr;
    /// The attributes for creating a work queue. The type is opaque in this crate.
    pub opaque ibv_wq_init_attr;
    /// The attributes for opening a shared queue pair. The type is opaque in this crate.
    pub opaque ibv_qp_open_attr;
    /// An XRC domain. The type is opaque in this crate.
    pub opaque ibv_xrcd;
    /// The attributes for opening an XRC domain. The type is opaque in this crate.
    pub opaque ibv_xrcd_init_attr;
    /// Data internal to the library. The type is opaque in this crate.
    pub opaque verbs_ex_private;

    /// A device context with extended operations. The extended operations precede the [`ibv_context`] whose address
    /// callers hold.
    ///
    /// The library adds new fields at the start of the struct, so each field has a fixed distance from the end of
    /// the struct. A field exists if `sz`, the size of the struct in the library, includes the field. This crate
    /// doesn't declare operations newer than `query_port`, because the library exports symbols for them.
    #[allow(non_snake_case, reason = "C's own names")]
    pub struct verbs_context grows_at_start {
        /// The implementation of [`ibv_query_port`](crate::Ibverbs::ibv_query_port).
        pub query_port: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                port_num: u8,
                port_attr: *mut ibv_port_attr,
                port_attr_len: size_t,
            ) -> c_int,
        >,
        /// The implementation of [`ibv_advise_mr`](crate::ibv_advise_mr).
        pub advise_mr: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                advice: ibv_advise_mr_advice,
                flags: u32,
                sg_list: *mut ibv_sge,
                num_sges: u32,
            ) -> c_int,
        >,
        /// The implementation of [`ibv_alloc_null_mr`](crate::ibv_alloc_null_mr).
        pub alloc_null_mr: Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>,
        /// A function that this crate does not use.
        pub read_counters: Option<
            unsafe extern "C" fn(
                counters: *mut ibv_counters,
                counters_value: *mut u64,
                ncounters: u32,
                flags: u32,
            ) -> c_int,
        >,
        /// A function that this crate does not use.
        pub attach_counters_point_flow: Option<
            unsafe extern "C" fn(
                counters: *mut ibv_counters,
                attr: *mut ibv_counter_attach_attr,
                flow: *mut ibv_flow,
            ) -> c_int,
        >,
        /// A function that this crate does not use.
        pub create_counters: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_counters_init_attr,
            ) -> *mut ibv_counters,
        >,
        /// A function that this crate does not use.
        pub destroy_counters: Option<unsafe extern "C" fn(counters: *mut ibv_counters) -> c_int>,
        /// A function that this crate does not use.
        pub reg_dm_mr: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                dm: *mut ibv_dm,
                dm_offset: u64,
                length: size_t,
                access: c_uint,
            ) -> *mut ibv_mr,
        >,
        /// A function that this crate does not use.
        pub alloc_dm: Option<
            unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm,
        >,
        /// A function that this crate does not use.
        pub free_dm: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
        /// A function that this crate does not use.
        pub modify_flow_action_esp: Option<
            unsafe extern "C" fn(action: *mut ibv_flow_action, attr: *mut ibv_flow_action_esp_attr) -> c_int,
        >,
        /// A function that this crate does not use.
        pub destroy_flow_action: Option<unsafe extern "C" fn(action: *mut ibv_flow_action) -> c_int>,
        /// A function that this crate does not use.
        pub create_flow_action_esp: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                attr: *mut ibv_flow_action_esp_attr,
            ) -> *mut ibv_flow_action,
        >,
        /// The implementation of [`ibv_modify_qp_rate_limit`](crate::ibv_modify_qp_rate_limit).
        pub modify_qp_rate_limit:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int>,
        /// The implementation of [`ibv_alloc_parent_domain`](crate::ibv_alloc_parent_domain).
        pub alloc_parent_domain: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                attr: *mut ibv_parent_domain_init_attr,
            ) -> *mut ibv_pd,
        >,
        /// The implementation of [`ibv_dealloc_td`](crate::ibv_dealloc_td).
        pub dealloc_td: Option<unsafe extern "C" fn(td: *mut ibv_td) -> c_int>,
        /// The implementation of [`ibv_alloc_td`](crate::ibv_alloc_td).
        pub alloc_td: Option<
            unsafe extern "C" fn(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td,
        >,
        /// The implementation of [`ibv_modify_cq`](crate::ibv_modify_cq).
        pub modify_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int>,
        /// A function that this crate does not use.
        pub post_srq_ops: Option<
            unsafe extern "C" fn(
                srq: *mut ibv_srq,
                op: *mut ibv_ops_wr,
                bad_op: *mut *mut ibv_ops_wr,
            ) -> c_int,
        >,
        /// A function that this crate does not use.
        pub destroy_rwq_ind_table: Option<
            unsafe extern "C" fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int,
        >,
        /// A function that this crate does not use.
        pub create_rwq_ind_table: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_rwq_ind_table_init_attr,
            ) -> *mut ibv_rwq_ind_table,
        >,
        /// A function that this crate does not use.
        pub destroy_wq: Option<unsafe extern "C" fn(wq: *mut ibv_wq) -> c_int>,
        /// A function that this crate does not use.
        pub modify_wq: Option<unsafe extern "C" fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int>,
        /// A function that this crate does not use.
        pub create_wq: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                wq_init_attr: *mut ibv_wq_init_attr,
            ) -> *mut ibv_wq,
        >,
        /// The implementation of [`ibv_query_rt_values_ex`](crate::ibv_query_rt_values_ex).
        pub query_rt_values:
            Option<unsafe extern "C" fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int>,
        /// The implementation of [`ibv_create_cq_ex`](crate::ibv_create_cq_ex).
        pub create_cq_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_cq_init_attr_ex,
            ) -> *mut ibv_cq_ex,
        >,
        /// A field internal to the library.
        pub r#priv: *mut verbs_ex_private,
        /// The implementation of [`ibv_query_device_ex`](crate::Ibverbs::ibv_query_device_ex).
        pub query_device_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                input: *const ibv_query_device_ex_input,
                attr: *mut ibv_device_attr_ex,
                attr_size: size_t,
            ) -> c_int,
        >,
        /// A function that this crate does not use.
        pub ibv_destroy_flow: Option<unsafe extern "C" fn(flow: *mut ibv_flow) -> c_int>,
        /// An unused slot.
        pub ABI_placeholder2: Option<unsafe extern "C" fn()>,
        /// A function that this crate does not use.
        pub ibv_create_flow: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow,
        >,
        /// An unused slot.
        pub ABI_placeholder1: Option<unsafe extern "C" fn()>,
        /// A function that this crate does not use.
        pub open_qp: Option<
            unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp,
        >,
        /// The implementation of [`ibv_create_qp_ex`](crate::Ibverbs::ibv_create_qp_ex).
        pub create_qp_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
            ) -> *mut ibv_qp,
        >,
        /// The implementation of [`ibv_get_srq_num`](crate::ibv_get_srq_num).
        pub get_srq_num: Option<unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int>,
        /// The implementation of [`ibv_create_srq_ex`](crate::Ibverbs::ibv_create_srq_ex).
        pub create_srq_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
            ) -> *mut ibv_srq,
        >,
        /// A function that this crate does not use.
        pub open_xrcd: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                xrcd_init_attr: *mut ibv_xrcd_init_attr,
            ) -> *mut ibv_xrcd,
        >,
        /// A function that this crate does not use.
        pub close_xrcd: Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> c_int>,
        /// An unused slot.
        pub _ABI_placeholder3: u64,
        /// The size of this struct in the library, in bytes.
        pub sz: size_t,
        /// The device context.
        pub context: ibv_context,
    }
}

/// The value of [`ibv_context::abi_compat`] if a context is the last field of a [`verbs_context`].
pub const __VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// Returns the [`verbs_context`] that contains a context, or NULL if the context is not part of one.
///
/// # Safety
///
/// `context` is an open device context, or one that the caller constructed. If the field `abi_compat` of the context is
/// [`__VERBS_ABI_IS_EXTENDED`], the context is the last field of a [`verbs_context`], of which the last `sz` bytes are
/// valid.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: `context` points to a context; the result isn't read here.
    unsafe {
        if (*context).abi_compat != __VERBS_ABI_IS_EXTENDED {
            return core::ptr::null_mut();
        }
        // The subtraction wraps, because the struct of an older library starts later than this one.
        context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// The extended operation of this name, if both the library and the provider have it.
///
/// The macro must be used in an `unsafe` block, with a context that meets the requirements of [`verbs_get_ctx`].
macro_rules! verbs_op {
    ($context:expr, $op:ident) => {{
        let context: *mut crate::ibv_context = $context;
        // Only `sz`, directly before the context, always exists. It determines which other fields exist.
        let needed = size_of::<crate::verbs_context>() - core::mem::offset_of!(crate::verbs_context, $op);
        if (*context).abi_compat != crate::__VERBS_ABI_IS_EXTENDED
            || *crate::before_context(context, core::mem::offset_of!(crate::verbs_context, sz), |v| &v.sz)
                < needed
        {
            None
        } else {
            *crate::before_context(context, core::mem::offset_of!(crate::verbs_context, $op), |v| &v.$op)
        }
    }};
}

/// Returns the address of the field at `offset` of the [`verbs_context`] that contains a context. The address is
/// computed from the context, because the start of the struct may be missing. The function argument only determines the
/// type.
///
/// # Safety
///
/// The context is the last field of a [`verbs_context`], which includes that field.
#[inline]
pub(crate) unsafe fn before_context<T>(
    context: *mut ibv_context,
    offset: usize,
    _: fn(&verbs_context) -> &T,
) -> *const T {
    // SAFETY: the caller guarantees that this many bytes precede the context.
    unsafe { context.byte_sub(offset_of!(verbs_context, context) - offset).cast() }
}
