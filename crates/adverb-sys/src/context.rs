//! An open device: the operations that its provider fills in, and how the header finds them.

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
    /// The port attributes of long ago, which only the library looks into.
    pub opaque _compat_ibv_port_attr;

    /// What a provider does when work is posted and polled.
    ///
    /// libibverbs fills every operation in, those that the device doesn't have with one that answers
    /// EOPNOTSUPP. Those that begin with `_compat` are slots of an interface that is gone, and do nothing.
    #[derive(Clone, Copy)]
    pub struct ibv_context_ops {
        /// Gone.
        pub _compat_query_device: Option<
            unsafe extern "C" fn(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int,
        >,
        /// Gone.
        pub _compat_query_port: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                port_num: u8,
                port_attr: *mut _compat_ibv_port_attr,
            ) -> c_int,
        >,
        /// Gone.
        pub _compat_alloc_pd: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_dealloc_pd: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_reg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_rereg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_dereg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Makes a memory window: [`ibv_alloc_mw`](crate::ibv_alloc_mw).
        pub alloc_mw: Option<unsafe extern "C" fn(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw>,
        /// Binds a memory window of type 1: [`ibv_bind_mw`](crate::ibv_bind_mw).
        pub bind_mw: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int,
        >,
        /// Frees a memory window: [`ibv_dealloc_mw`](crate::ibv_dealloc_mw).
        pub dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int>,
        /// Gone.
        pub _compat_create_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Takes completions: [`ibv_poll_cq`](crate::ibv_poll_cq).
        pub poll_cq:
            Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int>,
        /// Arms a completion queue: [`ibv_req_notify_cq`](crate::ibv_req_notify_cq).
        pub req_notify_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
        /// Gone.
        pub _compat_cq_event: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_resize_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_destroy_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_create_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_modify_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_query_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_destroy_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Posts to a shared receive queue: [`ibv_post_srq_recv`](crate::ibv_post_srq_recv).
        pub post_srq_recv: Option<
            unsafe extern "C" fn(
                srq: *mut ibv_srq,
                recv_wr: *mut ibv_recv_wr,
                bad_recv_wr: *mut *mut ibv_recv_wr,
            ) -> c_int,
        >,
        /// Gone.
        pub _compat_create_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_query_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_modify_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_destroy_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Posts to a send queue: [`ibv_post_send`](crate::ibv_post_send).
        pub post_send: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp,
                wr: *mut ibv_send_wr,
                bad_wr: *mut *mut ibv_send_wr,
            ) -> c_int,
        >,
        /// Posts to a receive queue: [`ibv_post_recv`](crate::ibv_post_recv).
        pub post_recv: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp,
                wr: *mut ibv_recv_wr,
                bad_wr: *mut *mut ibv_recv_wr,
            ) -> c_int,
        >,
        /// Gone.
        pub _compat_create_ah: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_destroy_ah: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_attach_mcast: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_detach_mcast: Option<unsafe extern "C" fn() -> *mut c_void>,
        /// Gone.
        pub _compat_async_event: Option<unsafe extern "C" fn() -> *mut c_void>,
    }

    /// An open device.
    pub struct ibv_context {
        /// The device.
        pub device: *mut ibv_device,
        /// What the provider does.
        pub ops: ibv_context_ops,
        /// The descriptor for commands to the kernel.
        pub cmd_fd: c_int,
        /// The descriptor that is readable when there is an asynchronous event.
        pub async_fd: c_int,
        /// How many completion vectors there are.
        pub num_comp_vectors: c_int,
        /// The library's own.
        pub mutex: pthread_mutex_t,
        /// [`__VERBS_ABI_IS_EXTENDED`] if this is the end of a [`verbs_context`].
        pub abi_compat: *mut c_void,
    }

    /// A completion counter set; not used here.
    pub opaque ibv_counters;
    /// How to make a counter set; not used here.
    pub opaque ibv_counters_init_attr;
    /// How to attach counters; not used here.
    pub opaque ibv_counter_attach_attr;
    /// Memory on the device; not used here.
    pub opaque ibv_dm;
    /// How to make memory on the device; not used here.
    pub opaque ibv_alloc_dm_attr;
    /// A steering rule; not used here.
    pub opaque ibv_flow;
    /// How to make a steering rule; not used here.
    pub opaque ibv_flow_attr;
    /// What a steering rule does; not used here.
    pub opaque ibv_flow_action;
    /// How to encrypt; not used here.
    pub opaque ibv_flow_action_esp_attr;
    /// A request about tags; not used here.
    pub opaque ibv_ops_wr;
    /// A table of work queues; not used here.
    pub opaque ibv_rwq_ind_table;
    /// How to make a table of work queues; not used here.
    pub opaque ibv_rwq_ind_table_init_attr;
    /// A work queue outside a queue pair; not used here.
    pub opaque ibv_wq;
    /// How to change a work queue; not used here.
    pub opaque ibv_wq_attr;
    /// How to make a work queue; not used here.
    pub opaque ibv_wq_init_attr;
    /// How to open a shared queue pair; not used here.
    pub opaque ibv_qp_open_attr;
    /// An extended reliable connection domain; not used here.
    pub opaque ibv_xrcd;
    /// How to open an extended reliable connection domain; not used here.
    pub opaque ibv_xrcd_init_attr;
    /// The library's own.
    pub opaque verbs_ex_private;

    /// An open device with its extended operations, which precede the [`ibv_context`] that everyone holds.
    ///
    /// It grows at its head: an operation is found by its distance from the end, and is there if `sz`, which
    /// the library sets to its own size of this struct, reaches that far. Operations newer than `query_port`
    /// aren't declared, for those have symbols of their own.
    #[allow(non_snake_case, reason = "C's own names")]
    pub struct verbs_context grows_at_its_head {
        /// Asks for a port's attributes.
        pub query_port: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                port_num: u8,
                port_attr: *mut ibv_port_attr,
                port_attr_len: size_t,
            ) -> c_int,
        >,
        /// Gives advice about on-demand memory.
        pub advise_mr: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                advice: ibv_advise_mr_advice,
                flags: u32,
                sg_list: *mut ibv_sge,
                num_sges: u32,
            ) -> c_int,
        >,
        /// Makes a region that reads as nothing and forgets what is written.
        pub alloc_null_mr: Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>,
        /// Not used here.
        pub read_counters: Option<
            unsafe extern "C" fn(
                counters: *mut ibv_counters,
                counters_value: *mut u64,
                ncounters: u32,
                flags: u32,
            ) -> c_int,
        >,
        /// Not used here.
        pub attach_counters_point_flow: Option<
            unsafe extern "C" fn(
                counters: *mut ibv_counters,
                attr: *mut ibv_counter_attach_attr,
                flow: *mut ibv_flow,
            ) -> c_int,
        >,
        /// Not used here.
        pub create_counters: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_counters_init_attr,
            ) -> *mut ibv_counters,
        >,
        /// Not used here.
        pub destroy_counters: Option<unsafe extern "C" fn(counters: *mut ibv_counters) -> c_int>,
        /// Not used here.
        pub reg_dm_mr: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                dm: *mut ibv_dm,
                dm_offset: u64,
                length: size_t,
                access: c_uint,
            ) -> *mut ibv_mr,
        >,
        /// Not used here.
        pub alloc_dm: Option<
            unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm,
        >,
        /// Not used here.
        pub free_dm: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
        /// Not used here.
        pub modify_flow_action_esp: Option<
            unsafe extern "C" fn(action: *mut ibv_flow_action, attr: *mut ibv_flow_action_esp_attr) -> c_int,
        >,
        /// Not used here.
        pub destroy_flow_action: Option<unsafe extern "C" fn(action: *mut ibv_flow_action) -> c_int>,
        /// Not used here.
        pub create_flow_action_esp: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                attr: *mut ibv_flow_action_esp_attr,
            ) -> *mut ibv_flow_action,
        >,
        /// Paces a queue pair.
        pub modify_qp_rate_limit:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int>,
        /// Makes a parent domain.
        pub alloc_parent_domain: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                attr: *mut ibv_parent_domain_init_attr,
            ) -> *mut ibv_pd,
        >,
        /// Frees a thread domain.
        pub dealloc_td: Option<unsafe extern "C" fn(td: *mut ibv_td) -> c_int>,
        /// Makes a thread domain.
        pub alloc_td: Option<
            unsafe extern "C" fn(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td,
        >,
        /// Moderates a completion queue's events.
        pub modify_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int>,
        /// Not used here.
        pub post_srq_ops: Option<
            unsafe extern "C" fn(
                srq: *mut ibv_srq,
                op: *mut ibv_ops_wr,
                bad_op: *mut *mut ibv_ops_wr,
            ) -> c_int,
        >,
        /// Not used here.
        pub destroy_rwq_ind_table: Option<
            unsafe extern "C" fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int,
        >,
        /// Not used here.
        pub create_rwq_ind_table: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_rwq_ind_table_init_attr,
            ) -> *mut ibv_rwq_ind_table,
        >,
        /// Not used here.
        pub destroy_wq: Option<unsafe extern "C" fn(wq: *mut ibv_wq) -> c_int>,
        /// Not used here.
        pub modify_wq: Option<unsafe extern "C" fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int>,
        /// Not used here.
        pub create_wq: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                wq_init_attr: *mut ibv_wq_init_attr,
            ) -> *mut ibv_wq,
        >,
        /// Reads the device's clock.
        pub query_rt_values:
            Option<unsafe extern "C" fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int>,
        /// Makes an extended completion queue.
        pub create_cq_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_cq_init_attr_ex,
            ) -> *mut ibv_cq_ex,
        >,
        /// The library's own.
        pub r#priv: *mut verbs_ex_private,
        /// Asks for a device's extended attributes.
        pub query_device_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                input: *const ibv_query_device_ex_input,
                attr: *mut ibv_device_attr_ex,
                attr_size: size_t,
            ) -> c_int,
        >,
        /// Not used here.
        pub ibv_destroy_flow: Option<unsafe extern "C" fn(flow: *mut ibv_flow) -> c_int>,
        /// Keeps the place of something that is gone.
        pub ABI_placeholder2: Option<unsafe extern "C" fn()>,
        /// Not used here.
        pub ibv_create_flow: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow,
        >,
        /// Keeps the place of something that is gone.
        pub ABI_placeholder1: Option<unsafe extern "C" fn()>,
        /// Not used here.
        pub open_qp: Option<
            unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp,
        >,
        /// Makes a queue pair with extended attributes.
        pub create_qp_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
            ) -> *mut ibv_qp,
        >,
        /// Asks for a shared receive queue's number.
        pub get_srq_num: Option<unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int>,
        /// Makes a shared receive queue with extended attributes.
        pub create_srq_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
            ) -> *mut ibv_srq,
        >,
        /// Not used here.
        pub open_xrcd: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                xrcd_init_attr: *mut ibv_xrcd_init_attr,
            ) -> *mut ibv_xrcd,
        >,
        /// Not used here.
        pub close_xrcd: Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> c_int>,
        /// Keeps the place of something that is gone.
        pub _ABI_placeholder3: u64,
        /// How many bytes this struct had where the library was built.
        pub sz: size_t,
        /// What everyone holds.
        pub context: ibv_context,
    }
}

/// What [`ibv_context::abi_compat`] is when a context is the end of a [`verbs_context`].
pub const __VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// The extended context around a context, or NULL if there is none.
///
/// # Safety
///
/// `context` is open, or made by hand: if its `abi_compat` says that it is extended, then it is the last
/// field of a [`verbs_context`], or at least of so many bytes of one as its `sz` says.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: `context` points to a context; the result isn't read here.
    unsafe {
        if (*context).abi_compat != __VERBS_ABI_IS_EXTENDED {
            return core::ptr::null_mut();
        }
        // Wrapping, because an older library's struct begins later than ours.
        context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// The extended operation of this name, if the library that made the context is new enough to have it, and
/// the provider does.
///
/// To be used in an `unsafe` block, by someone who knows that the context is what [`verbs_get_ctx`] asks for.
macro_rules! verbs_op {
    ($context:expr, $op:ident) => {{
        let context: *mut crate::ibv_context = $context;
        // Only `sz`, right before the context, is certain to be there, until it says how far the struct
        // reaches.
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

/// The address of the field that is at `offset` of the [`verbs_context`] around a context, counted from the
/// context, because the beginning may not be there. The function only tells the type.
///
/// # Safety
///
/// The context is the last field of a [`verbs_context`], which reaches as far back as that field.
#[inline]
pub(crate) unsafe fn before_context<T>(
    context: *mut ibv_context,
    offset: usize,
    _: fn(&verbs_context) -> &T,
) -> *const T {
    // SAFETY: the caller says that this many bytes precede the context.
    unsafe { context.byte_sub(offset_of!(verbs_context, context) - offset).cast() }
}
