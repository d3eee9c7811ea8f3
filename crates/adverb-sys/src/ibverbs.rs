//! libibverbs itself: what it exports.

use libc::{c_char, c_int, c_uint, c_void, size_t, ssize_t};

use crate::{
    __be16, __be64, _compat_ibv_port_attr, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_ece, ibv_event_type, ibv_gid, ibv_gid_entry,
    ibv_grh, ibv_mr, ibv_node_type, ibv_pd, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc, ibv_wc_status, ibv_wr_opcode,
};

symbols! {
    /// libibverbs, loaded.
    ///
    /// A field is a symbol, as the library exports it. The method of the same name is what C's header makes
    /// of it: often the same call, sometimes a better one. A test may copy the struct and put functions of
    /// its own in.
    pub struct Ibverbs from "libibverbs.so.1";

    called {
        /// Lists the devices: an array that ends with NULL, or NULL with errno set, which is ENOSYS where the
        /// kernel has no RDMA at all. `num_devices` may be NULL.
        ///
        /// # Safety
        ///
        /// `num_devices` is NULL or valid for writes. The result goes to
        /// [`ibv_free_device_list`](Self::ibv_free_device_list) once, after which only opened devices may be
        /// used.
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;

        /// Frees a list of devices.
        ///
        /// # Safety
        ///
        /// `list` comes from [`ibv_get_device_list`](Self::ibv_get_device_list), and isn't used afterwards.
        fn ibv_free_device_list(list: *mut *mut ibv_device);

        /// The kernel's name of a device, such as `mlx5_0`.
        ///
        /// # Safety
        ///
        /// `device` is in a list that isn't freed yet, or open. The result lives as long as it.
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;

        /// The node GUID of a device.
        ///
        /// # Safety
        ///
        /// `device` is in a list that isn't freed yet, or open.
        fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;

        /// Opens a device. NULL with errno set if that fails.
        ///
        /// # Safety
        ///
        /// `device` is in a list that isn't freed yet.
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;

        /// Closes a device. 0, or -1 with errno set.
        ///
        /// # Safety
        ///
        /// `context` is open, nothing that was made in it is left, and it isn't used afterwards.
        fn ibv_close_device(context: *mut ibv_context) -> c_int;

        /// Reads the next asynchronous event, and waits for it unless the descriptor is non-blocking. 0, or
        /// -1 with errno set.
        ///
        /// # Safety
        ///
        /// `context` is open, `event` is valid for writes, and each event that was read is acknowledged once.
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;

        /// Acknowledges an asynchronous event. Destroying the object that an event names waits for it.
        ///
        /// # Safety
        ///
        /// `event` was read by [`ibv_get_async_event`](Self::ibv_get_async_event), and not acknowledged yet.
        fn ibv_ack_async_event(event: *mut ibv_async_event);

        /// Asks for a device's attributes. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `context` is open, and `device_attr` valid for writes.
        fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;

        /// Asks for an entry of the GID table, which is zero if it is empty. 0 or -1.
        ///
        /// # Safety
        ///
        /// `context` is open, and `gid` valid for writes.
        fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;

        /// Asks for an entry of the P_Key table. 0 or -1.
        ///
        /// # Safety
        ///
        /// `context` is open, and `pkey` valid for writes.
        fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut __be16) -> c_int;

        /// Makes a protection domain. NULL with errno set if that fails.
        ///
        /// # Safety
        ///
        /// `context` is open.
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;

        /// Frees a protection domain, also a parent domain. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `pd` is alive, and isn't used after success.
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;

        /// Changes a registration in place. 0, or one of `IBV_REREG_MR_ERR_*`.
        ///
        /// # Safety
        ///
        /// `mr` is alive and no request uses it; `pd` and the memory are as for
        /// [`ibv_reg_mr`](Self::ibv_reg_mr) where `flags` says that they change.
        fn ibv_rereg_mr(
            mr: *mut ibv_mr,
            flags: c_int,
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: size_t,
            access: c_int,
        ) -> c_int;

        /// Ends a registration. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `mr` is alive, and isn't used after success.
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;

        /// Makes a completion channel. NULL with errno set if that fails.
        ///
        /// # Safety
        ///
        /// `context` is open.
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;

        /// Destroys a completion channel. 0 or an error number, EBUSY while a completion queue is attached to
        /// it.
        ///
        /// # Safety
        ///
        /// `channel` is alive, and isn't used after success.
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;

        /// Makes a completion queue of at least `cqe` entries. NULL with errno set if that fails.
        ///
        /// # Safety
        ///
        /// `context` is open, and `channel` is NULL or alive and made in it.
        fn ibv_create_cq(
            context: *mut ibv_context,
            cqe: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int,
        ) -> *mut ibv_cq;

        /// Changes how many entries a completion queue has. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `cq` is alive.
        fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;

        /// Destroys a completion queue, after waiting until its events are acknowledged. 0 or an error
        /// number.
        ///
        /// # Safety
        ///
        /// `cq` is alive, and isn't used after success.
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;

        /// Reads the next completion event, and waits for it unless the descriptor is non-blocking. 0, or -1
        /// with errno set.
        ///
        /// # Safety
        ///
        /// `channel` is alive, `cq` and `cq_context` are valid for writes, and each event is acknowledged
        /// once.
        fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut c_void,
        ) -> c_int;

        /// Acknowledges completion events. It takes a mutex, so that it pays to do several at once.
        ///
        /// # Safety
        ///
        /// `cq` is alive, and at least `nevents` of its events were read and not acknowledged yet.
        fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);

        /// Makes a shared receive queue, and writes the sizes it got to `srq_init_attr`. NULL with errno set
        /// if that fails.
        ///
        /// # Safety
        ///
        /// `pd` is alive, and `srq_init_attr` valid for reads and writes.
        fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;

        /// Changes a shared receive queue's size or limit. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `srq` is alive, and `srq_attr` valid for reads and writes.
        fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;

        /// Asks for a shared receive queue's attributes. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `srq` is alive, and `srq_attr` valid for writes.
        fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;

        /// Destroys a shared receive queue. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `srq` is alive, and isn't used after success.
        fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;

        /// Makes a queue pair, and writes the capacities it got to `qp_init_attr`. NULL with errno set if
        /// that fails.
        ///
        /// # Safety
        ///
        /// `pd` is alive, as is what `qp_init_attr` names, which itself is valid for reads and writes.
        fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;

        /// Changes a queue pair's state and attributes. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and `attr` valid for reads.
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;

        /// Asks for a queue pair's state and attributes. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and `attr` and `init_attr` are valid for writes.
        fn ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: c_int,
            init_attr: *mut ibv_qp_init_attr,
        ) -> c_int;

        /// Destroys a queue pair, after waiting until its events are acknowledged. 0 or an error number.
        ///
        /// Once it has succeeded, the device touches no memory on the queue pair's behalf.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and isn't used after success.
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;

        /// Makes an address handle. NULL with errno set if that fails.
        ///
        /// # Safety
        ///
        /// `pd` is alive, and `attr` valid for reads.
        fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;

        /// Works out the address to which a received datagram is answered. 0 or -1.
        ///
        /// # Safety
        ///
        /// `context` is open, `wc` is valid for reads, `grh` too if the completion says that there is one,
        /// and `ah_attr` for writes.
        fn ibv_init_ah_from_wc(
            context: *mut ibv_context,
            port_num: u8,
            wc: *mut ibv_wc,
            grh: *mut ibv_grh,
            ah_attr: *mut ibv_ah_attr,
        ) -> c_int;

        /// Makes the address handle to which a received datagram is answered. NULL with errno set if that
        /// fails.
        ///
        /// # Safety
        ///
        /// `pd` is alive, `wc` is valid for reads, and `grh` too if the completion says that there is one.
        fn ibv_create_ah_from_wc(
            pd: *mut ibv_pd,
            wc: *mut ibv_wc,
            grh: *mut ibv_grh,
            port_num: u8,
        ) -> *mut ibv_ah;

        /// Destroys an address handle. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `ah` is alive, no request that was posted with it is outstanding, and it isn't used after success.
        fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;

        /// Makes a datagram queue pair receive what is sent to a multicast group. 0 or an error number.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and `gid` valid for reads.
        fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

        /// Undoes [`ibv_attach_mcast`](Self::ibv_attach_mcast). 0 or an error number.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and `gid` valid for reads.
        fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

        /// A completion status in words.
        ///
        /// # Safety
        ///
        /// None beyond the library's own: every value is answered, with a constant string.
        fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;

        /// A type of node in words.
        ///
        /// # Safety
        ///
        /// None beyond the library's own: every value is answered, with a constant string.
        fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char;

        /// A port's state in words.
        ///
        /// # Safety
        ///
        /// None beyond the library's own: every value is answered, with a constant string.
        fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char;

        /// An asynchronous event in words.
        ///
        /// # Safety
        ///
        /// None beyond the library's own: every value is answered, with a constant string.
        fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
    }

    redirected {
        ibv_query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        ibv_reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    }

    optional {
        ibv_get_pkey_index: unsafe extern "C" fn(*mut ibv_context, u8, __be16) -> c_int;
        ibv_qp_to_qp_ex: unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex;
        ibv_reg_mr_iova: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, u64, c_int) -> *mut ibv_mr;
        ibv_reg_mr_iova2: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, u64, c_uint) -> *mut ibv_mr;
        ibv_get_device_index: unsafe extern "C" fn(*mut ibv_device) -> c_int;
        ibv_import_device: unsafe extern "C" fn(c_int) -> *mut ibv_context;
        ibv_import_pd: unsafe extern "C" fn(*mut ibv_context, u32) -> *mut ibv_pd;
        ibv_unimport_pd: unsafe extern "C" fn(*mut ibv_pd);
        ibv_import_mr: unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mr;
        ibv_unimport_mr: unsafe extern "C" fn(*mut ibv_mr);
        ibv_set_ece: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_ece) -> c_int;
        ibv_query_ece: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_ece) -> c_int;
        _ibv_query_gid_ex:
            unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, size_t) -> c_int;
        _ibv_query_gid_table:
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, size_t, u32, size_t) -> ssize_t;
        ibv_reg_dmabuf_mr: unsafe extern "C" fn(*mut ibv_pd, u64, size_t, u64, c_int, c_int) -> *mut ibv_mr;
        ibv_query_qp_data_in_order: unsafe extern "C" fn(*mut ibv_qp, ibv_wr_opcode, u32) -> c_int;
    }
}
