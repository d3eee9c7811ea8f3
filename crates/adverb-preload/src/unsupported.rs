//! Operations that the software NIC doesn't have.

use adverb_sys::*;
use libc::{c_int, c_uint, c_void, size_t};

use crate::entry::fail;

/// Declares operations that fail with EOPNOTSUPP.
macro_rules! unsupported {
    ($($name:ident($($ty:ty),*) -> $ret:ty;)*) => {
        $(
            /// Fails with EOPNOTSUPP.
            pub(crate) extern "C" fn $name($(_: $ty),*) -> $ret {
                crate::calls::count(concat!("ibv_", stringify!($name)), libc::EOPNOTSUPP);
                fail(libc::EOPNOTSUPP)
            }
        )*
    };
}

unsupported! {
    unused() -> *mut c_void;
    alloc_null_mr(*mut ibv_pd) -> *mut ibv_mr;
    read_counters(*mut ibv_counters, *mut u64, u32, u32) -> c_int;
    attach_counters_point_flow(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int;
    create_counters(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters;
    destroy_counters(*mut ibv_counters) -> c_int;
    reg_dm_mr(*mut ibv_pd, *mut ibv_dm, u64, size_t, c_uint) -> *mut ibv_mr;
    alloc_dm(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm;
    free_dm(*mut ibv_dm) -> c_int;
    modify_flow_action_esp(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int;
    destroy_flow_action(*mut ibv_flow_action) -> c_int;
    create_flow_action_esp(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action;
    modify_qp_rate_limit(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int;
    modify_cq(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int;
    post_srq_ops(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int;
    destroy_rwq_ind_table(*mut ibv_rwq_ind_table) -> c_int;
    create_rwq_ind_table(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table;
    destroy_wq(*mut ibv_wq) -> c_int;
    modify_wq(*mut ibv_wq, *mut ibv_wq_attr) -> c_int;
    create_wq(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq;
    destroy_flow(*mut ibv_flow) -> c_int;
    create_flow(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow;
    open_qp(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp;
    open_xrcd(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd;
    close_xrcd(*mut ibv_xrcd) -> c_int;
}

/// Does nothing.
pub(crate) extern "C" fn nothing() {}
