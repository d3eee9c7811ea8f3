//! The functions of libibverbs.

use libc::{c_char, c_int, c_uint, c_void, size_t, ssize_t};

use crate::{
    __be16, __be64, _compat_ibv_port_attr, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_ece, ibv_event_type, ibv_gid, ibv_gid_entry,
    ibv_grh, ibv_mr, ibv_node_type, ibv_pd, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc, ibv_wc_status, ibv_wr_opcode,
};

symbols! {
    /// The loaded libibverbs.
    ///
    /// Each field is a symbol that the library exports. The method of the same name has the behavior of the
    /// C header: most methods call the symbol, others call a newer function. A test may copy the struct and replace
    /// functions.
    pub struct Ibverbs from "libibverbs.so.1";

    called {
        /// Returns a NULL-terminated array of the devices, or NULL with errno set. errno is ENOSYS if the kernel has no
        /// RDMA support. `num_devices` may be NULL.
        ///
        /// # Safety
        ///
        /// `num_devices` is NULL or valid for writes. The caller passes the result to
        /// [`ibv_free_device_list`](Self::ibv_free_device_list) once. After that, the caller uses only devices that it
        /// has opened.
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;

        /// Frees a list of devices.
        ///
        /// # Safety
        ///
        /// `list` was returned by [`ibv_get_device_list`](Self::ibv_get_device_list), and isn't used afterwards.
        fn ibv_free_device_list(list: *mut *mut ibv_device);

        /// Returns the kernel's name of a device, such as `mlx5_0`.
        ///
        /// # Safety
        ///
        /// `device` is in a device list that isn't freed yet, or a context of the device is open. The returned string
        /// is valid while the device is valid.
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;

        /// Returns the node GUID of a device.
        ///
        /// # Safety
        ///
        /// `device` is in a device list that isn't freed yet, or a context of the device is open.
        fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;

        /// Opens a device. Returns NULL and sets errno on failure.
        ///
        /// # Safety
        ///
        /// `device` is in a device list that isn't freed yet.
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;

        /// Closes a device. Returns 0, or -1 with errno set.
        ///
        /// # Safety
        ///
        /// `context` is open, all objects created in the context are destroyed, and `context` isn't used afterwards.
        fn ibv_close_device(context: *mut ibv_context) -> c_int;

        /// Reads the next asynchronous event, and waits for it unless the file descriptor is non-blocking. Returns 0,
        /// or -1 with errno set.
        ///
        /// # Safety
        ///
        /// `context` is open, `event` is valid for writes, and each event that was read is acknowledged once.
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;

        /// Acknowledges an asynchronous event. The functions that destroy an object wait until its events are
        /// acknowledged.
        ///
        /// # Safety
        ///
        /// `event` was read by [`ibv_get_async_event`](Self::ibv_get_async_event), and not acknowledged yet.
        fn ibv_ack_async_event(event: *mut ibv_async_event);

        /// Queries a device's attributes. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `context` is open, and `device_attr` is valid for writes.
        fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;

        /// Queries an entry of the GID table. An empty entry is all zeros. Returns 0 or -1.
        ///
        /// # Safety
        ///
        /// `context` is open, and `gid` is valid for writes.
        fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;

        /// Queries an entry of the P_Key table. Returns 0 or -1.
        ///
        /// # Safety
        ///
        /// `context` is open, and `pkey` is valid for writes.
        fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut __be16) -> c_int;

        /// Creates a protection domain. Returns NULL and sets errno on failure.
        ///
        /// # Safety
        ///
        /// `context` is open.
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;

        /// Frees a protection domain or a parent domain. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `pd` is alive, and isn't used after success.
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;

        /// Changes a registration in place. Returns 0 or one of `IBV_REREG_MR_ERR_*`.
        ///
        /// # Safety
        ///
        /// `mr` is alive, and no outstanding request uses the region. If `flags` changes the protection domain or the
        /// memory, the new protection domain or memory meets the requirements of [`ibv_reg_mr`](Self::ibv_reg_mr).
        fn ibv_rereg_mr(
            mr: *mut ibv_mr,
            flags: c_int,
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: size_t,
            access: c_int,
        ) -> c_int;

        /// Deregisters a memory region. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `mr` is alive, and isn't used after success.
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;

        /// Creates a completion channel. Returns NULL and sets errno on failure.
        ///
        /// # Safety
        ///
        /// `context` is open.
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;

        /// Destroys a completion channel. Returns 0 or an errno value: EBUSY while a completion queue is attached.
        ///
        /// # Safety
        ///
        /// `channel` is alive, and isn't used after success.
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;

        /// Creates a completion queue of at least `cqe` entries. Returns NULL and sets errno on failure.
        ///
        /// # Safety
        ///
        /// `context` is open, and `channel` is NULL or alive and created in `context`.
        fn ibv_create_cq(
            context: *mut ibv_context,
            cqe: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int,
        ) -> *mut ibv_cq;

        /// Changes the number of entries of a completion queue. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `cq` is alive.
        fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;

        /// Destroys a completion queue, after waiting until its events are acknowledged. Returns 0 or an errno
        /// value.
        ///
        /// # Safety
        ///
        /// `cq` is alive, and isn't used after success.
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;

        /// Reads the next completion event, and waits for it unless the file descriptor is non-blocking. Returns 0, or
        /// -1 with errno set.
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

        /// Acknowledges completion events. Each call locks a mutex, so acknowledging several events in one
        /// call is cheaper.
        ///
        /// # Safety
        ///
        /// `cq` is alive, and at least `nevents` of its events were read and not acknowledged yet.
        fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);

        /// Creates a shared receive queue, and writes its actual capacities to `srq_init_attr`. Returns NULL and sets
        /// errno on failure.
        ///
        /// # Safety
        ///
        /// `pd` is alive, and `srq_init_attr` is valid for reads and writes.
        fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;

        /// Modifies a shared receive queue's size or limit. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `srq` is alive, and `srq_attr` is valid for reads and writes.
        fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;

        /// Queries a shared receive queue's attributes. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `srq` is alive, and `srq_attr` is valid for writes.
        fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;

        /// Destroys a shared receive queue. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `srq` is alive, and isn't used after success.
        fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;

        /// Creates a queue pair, and writes its actual capacities to `qp_init_attr`. Returns NULL and sets errno on
        /// failure.
        ///
        /// # Safety
        ///
        /// `pd` is alive, `qp_init_attr` is valid for reads and writes, and the objects that it refers to are alive.
        fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;

        /// Modifies a queue pair's state and attributes. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and `attr` is valid for reads.
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;

        /// Queries a queue pair's state and attributes. Returns 0 or an errno value.
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

        /// Destroys a queue pair, after waiting until its events are acknowledged. Returns 0 or an errno value.
        ///
        /// After success, the device accesses no memory for the queue pair.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and isn't used after success.
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;

        /// Creates an address handle. Returns NULL and sets errno on failure.
        ///
        /// # Safety
        ///
        /// `pd` is alive, and `attr` is valid for reads.
        fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;

        /// Initializes the address attributes for a reply to a received datagram. Returns 0 or -1.
        ///
        /// # Safety
        ///
        /// `context` is open, `wc` is valid for reads, `grh` is valid for reads if the completion has the flag
        /// `IBV_WC_GRH`, and `ah_attr` is valid for writes.
        fn ibv_init_ah_from_wc(
            context: *mut ibv_context,
            port_num: u8,
            wc: *mut ibv_wc,
            grh: *mut ibv_grh,
            ah_attr: *mut ibv_ah_attr,
        ) -> c_int;

        /// Creates an address handle for a reply to a received datagram. Returns NULL and sets errno on failure.
        ///
        /// # Safety
        ///
        /// `pd` is alive, `wc` is valid for reads, and `grh` is valid for reads if the completion has the flag
        /// `IBV_WC_GRH`.
        fn ibv_create_ah_from_wc(
            pd: *mut ibv_pd,
            wc: *mut ibv_wc,
            grh: *mut ibv_grh,
            port_num: u8,
        ) -> *mut ibv_ah;

        /// Destroys an address handle. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `ah` is alive, no request posted with `ah` is outstanding, and `ah` isn't used after success.
        fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;

        /// Attaches a datagram queue pair to a multicast group. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and `gid` is valid for reads.
        fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

        /// Detaches a queue pair from a multicast group. Returns 0 or an errno value.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and `gid` is valid for reads.
        fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

        /// Returns a description of a completion status.
        ///
        /// # Safety
        ///
        /// There are no requirements: the library returns a constant string for every value.
        fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;

        /// Returns a description of a node type.
        ///
        /// # Safety
        ///
        /// There are no requirements: the library returns a constant string for every value.
        fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char;

        /// Returns a description of a port state.
        ///
        /// # Safety
        ///
        /// There are no requirements: the library returns a constant string for every value.
        fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char;

        /// Returns a description of an asynchronous event.
        ///
        /// # Safety
        ///
        /// There are no requirements: the library returns a constant string for every value.
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
