//! Queue pairs, and the functions that post requests.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use crate::errno::set_errno;
use crate::{
    Ibverbs, ibv_context, ibv_cq, ibv_pd, ibv_qp_ex, ibv_qp_state, ibv_recv_wr, ibv_rwq_ind_table,
    ibv_send_wr, ibv_srq, ibv_wr_opcode, ibv_xrcd,
};

shapes! {
    /// The type of a queue pair, which determines its transport.
    pub enum ibv_qp_type: c_uint {
        /// Reliable connection.
        IBV_QPT_RC = 2,
        /// Unreliable connection.
        IBV_QPT_UC = 3,
        /// Unreliable datagram.
        IBV_QPT_UD = 4,
        /// Raw Ethernet.
        IBV_QPT_RAW_PACKET = 8,
        /// The initiator of an extended reliable connection (XRC).
        IBV_QPT_XRC_SEND = 9,
        /// The target of an extended reliable connection (XRC).
        IBV_QPT_XRC_RECV = 10,
        /// A vendor-specific transport.
        IBV_QPT_DRIVER = 255,
    }

    /// The capacities of a queue pair.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_cap {
        /// The maximum number of requests in the send queue.
        pub max_send_wr: u32,
        /// The maximum number of requests in the receive queue.
        pub max_recv_wr: u32,
        /// The maximum number of segments of a send request.
        pub max_send_sge: u32,
        /// The maximum number of segments of a receive request.
        pub max_recv_sge: u32,
        /// The maximum length of inline data in bytes.
        pub max_inline_data: u32,
    }

    /// The attributes for creating a queue pair.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_init_attr {
        /// The consumer's context pointer.
        pub qp_context: *mut c_void,
        /// The completion queue of the send queue.
        pub send_cq: *mut ibv_cq,
        /// The completion queue of the receive queue.
        pub recv_cq: *mut ibv_cq,
        /// The shared receive queue, or NULL.
        pub srq: *mut ibv_srq,
        /// The requested capacities on input, and the actual capacities on output.
        pub cap: ibv_qp_cap,
        /// The queue pair type.
        pub qp_type: ibv_qp_type,
        /// Whether every send request is signaled.
        pub sq_sig_all: c_int,
    }

    /// The configuration of the receive hash.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_rx_hash_conf {
        /// The hash function.
        pub rx_hash_function: u8,
        /// The length of the key in bytes.
        pub rx_hash_key_len: u8,
        /// The key of the hash function.
        pub rx_hash_key: *mut u8,
        /// The packet fields to hash.
        pub rx_hash_fields_mask: u64,
    }

    /// The extended attributes for creating a queue pair. The first fields are those of an [`ibv_qp_init_attr`].
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_init_attr_ex {
        /// The consumer's context pointer.
        pub qp_context: *mut c_void,
        /// The completion queue of the send queue.
        pub send_cq: *mut ibv_cq,
        /// The completion queue of the receive queue.
        pub recv_cq: *mut ibv_cq,
        /// The shared receive queue, or NULL.
        pub srq: *mut ibv_srq,
        /// The requested capacities on input, and the actual capacities on output.
        pub cap: ibv_qp_cap,
        /// The queue pair type.
        pub qp_type: ibv_qp_type,
        /// Whether every send request is signaled.
        pub sq_sig_all: c_int,
        /// The mask of the fields below that are valid.
        pub comp_mask: u32,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The XRC domain.
        pub xrcd: *mut ibv_xrcd,
        /// The `IBV_QP_CREATE_*` flags.
        pub create_flags: u32,
        /// The maximum length of a TSO header in bytes.
        pub max_tso_header: u16,
        /// The indirection table of receive work queues.
        pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
        /// The configuration of the receive hash.
        pub rx_hash_conf: ibv_rx_hash_conf,
        /// The source queue pair number of sent packets.
        pub source_qpn: u32,
        /// The `IBV_QP_EX_WITH_*` flags of the `ibv_wr_*` functions that the consumer will use.
        pub send_ops_flags: u64,
    }

    // ibv_qp_init_attr_ex.comp_mask
    pub const u32 {
        /// The mask bit of the field `pd`.
        IBV_QP_INIT_ATTR_PD = 1 << 0,
        /// The mask bit of the field `xrcd`.
        IBV_QP_INIT_ATTR_XRCD = 1 << 1,
        /// The mask bit of the field `create_flags`.
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
        /// The mask bit of the field `max_tso_header`.
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
        /// The mask bit of the field `rwq_ind_tbl`.
        IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4,
        /// The mask bit of the field `rx_hash_conf`.
        IBV_QP_INIT_ATTR_RX_HASH = 1 << 5,
        /// The mask bit of the field `send_ops_flags`.
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
    }

    // ibv_qp_init_attr_ex.create_flags
    pub const u32 {
        /// Suppression of the loopback of the queue pair's own multicast packets.
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1,
        /// Delivery of the frame check sequence of raw packets.
        IBV_QP_CREATE_SCATTER_FCS = 1 << 8,
        /// Removal of the VLAN tag from received raw packets.
        IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9,
        /// The mask bit of the field `source_qpn`.
        IBV_QP_CREATE_SOURCE_QPN = 1 << 10,
        /// Padding of PCI writes to a cache line.
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11,
    }

    // ibv_qp_init_attr_ex.send_ops_flags
    pub const u64 {
        /// The flag that enables [`ibv_wr_rdma_write`](crate::ibv_wr_rdma_write).
        IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0,
        /// The flag that enables [`ibv_wr_rdma_write_imm`](crate::ibv_wr_rdma_write_imm).
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
        /// The flag that enables [`ibv_wr_send`](crate::ibv_wr_send).
        IBV_QP_EX_WITH_SEND = 1 << 2,
        /// The flag that enables [`ibv_wr_send_imm`](crate::ibv_wr_send_imm).
        IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
        /// The flag that enables [`ibv_wr_rdma_read`](crate::ibv_wr_rdma_read).
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
        /// The flag that enables [`ibv_wr_atomic_cmp_swp`](crate::ibv_wr_atomic_cmp_swp).
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
        /// The flag that enables [`ibv_wr_atomic_fetch_add`](crate::ibv_wr_atomic_fetch_add).
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
        /// The flag that enables [`ibv_wr_local_inv`](crate::ibv_wr_local_inv).
        IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
        /// The flag that enables [`ibv_wr_bind_mw`](crate::ibv_wr_bind_mw).
        IBV_QP_EX_WITH_BIND_MW = 1 << 8,
        /// The flag that enables [`ibv_wr_send_inv`](crate::ibv_wr_send_inv).
        IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
        /// The flag that enables TCP segmentation offload (TSO).
        IBV_QP_EX_WITH_TSO = 1 << 10,
        /// The flag that enables [`ibv_wr_atomic_write`](crate::ibv_wr_atomic_write).
        IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
    }

    pub const u64 since "45" {
        /// The flag that enables [`ibv_wr_flush`](crate::ibv_wr_flush).
        IBV_QP_EX_WITH_FLUSH = 1 << 11,
    }

    /// A queue pair.
    pub struct ibv_qp {
        /// The device context.
        pub context: *mut ibv_context,
        /// The consumer's context pointer.
        pub qp_context: *mut c_void,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The completion queue of the send queue.
        pub send_cq: *mut ibv_cq,
        /// The completion queue of the receive queue.
        pub recv_cq: *mut ibv_cq,
        /// The shared receive queue, or NULL.
        pub srq: *mut ibv_srq,
        /// The kernel's handle.
        pub handle: u32,
        /// The queue pair number.
        pub qp_num: u32,
        /// The state set by the last modification. Since then, the queue pair may have moved to the error state.
        pub state: ibv_qp_state,
        /// The queue pair type.
        pub qp_type: ibv_qp_type,
        /// A field internal to the library.
        pub mutex: pthread_mutex_t,
        /// A field internal to the library.
        pub cond: pthread_cond_t,
        /// The number of acknowledged asynchronous events.
        pub events_completed: u32,
    }

    /// The enhanced connection establishment (ECE) options of a connection.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_ece {
        /// The vendor's IEEE OUI.
        pub vendor_id: u32,
        /// The vendor-specific options.
        pub options: u32,
        /// The mask of optional fields, which must be zero.
        pub comp_mask: u32,
    }

    // ibv_query_qp_data_in_order, the argument
    pub const u32 since "46" {
        /// A request for capability flags as the result, instead of a boolean.
        IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1 << 0,
    }

    // results of ibv_query_qp_data_in_order
    pub const c_int since "46" {
        /// The whole message is written in order.
        IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1 << 0,
        /// The 128-byte blocks of a message are written in order.
        IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 1 << 1,
    }
}

impl Ibverbs {
    /// Creates a queue pair with extended attributes. Returns NULL and sets errno on failure.
    ///
    /// # Safety
    ///
    /// `context` is open, `qp_init_attr_ex` is valid for reads and writes, and the objects that it refers to are alive.
    pub unsafe fn ibv_create_qp_ex(
        &self,
        context: *mut ibv_context,
        qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        // SAFETY: the caller upholds the requirements above, and the extended attributes start with the plain ones.
        unsafe {
            if (*qp_init_attr_ex).comp_mask == IBV_QP_INIT_ATTR_PD {
                return self.ibv_create_qp((*qp_init_attr_ex).pd, qp_init_attr_ex.cast());
            }
            match verbs_op!(context, create_qp_ex) {
                Some(create_qp_ex) => create_qp_ex(context, qp_init_attr_ex),
                None => {
                    set_errno(libc::EOPNOTSUPP);
                    core::ptr::null_mut()
                }
            }
        }
    }

    /// Returns the queue pair as an [`ibv_qp_ex`] for `ibv_wr_*`, or NULL if the queue pair was created without
    /// [`IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`].
    ///
    /// # Safety
    ///
    /// `qp` is alive.
    pub unsafe fn ibv_qp_to_qp_ex(&self, qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        match self.ibv_qp_to_qp_ex {
            // SAFETY: the caller vouches for the queue pair.
            Some(ibv_qp_to_qp_ex) => unsafe { ibv_qp_to_qp_ex(qp) },
            None => core::ptr::null_mut(),
        }
    }

    /// Sets a queue pair's enhanced connection establishment (ECE) options, before the queue pair is connected. Returns
    /// 0 or an errno value.
    ///
    /// # Safety
    ///
    /// `qp` is alive, and `ece` is valid for reads and writes.
    pub unsafe fn ibv_set_ece(&self, qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        match self.ibv_set_ece {
            // SAFETY: the caller upholds the requirements above.
            Some(ibv_set_ece) => unsafe { ibv_set_ece(qp, ece) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// Queries a queue pair's enhanced connection establishment (ECE) options. Returns 0 or an errno value.
    ///
    /// # Safety
    ///
    /// `qp` is alive, and `ece` is valid for writes.
    pub unsafe fn ibv_query_ece(&self, qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        match self.ibv_query_ece {
            // SAFETY: the caller upholds the requirements above.
            Some(ibv_query_ece) => unsafe { ibv_query_ece(qp, ece) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// Returns whether message data is written in order, so that the consumer can poll memory for the end of a
    /// message. Returns 0 if the data may be written out of order, or if the order is unknown.
    ///
    /// # Safety
    ///
    /// `qp` is alive.
    pub unsafe fn ibv_query_qp_data_in_order(&self, qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int {
        match self.ibv_query_qp_data_in_order {
            // SAFETY: the caller vouches for the queue pair.
            Some(ibv_query_qp_data_in_order) => unsafe { ibv_query_qp_data_in_order(qp, op, flags) },
            None => 0,
        }
    }
}

/// Posts a list of requests to a send queue. Returns 0, or an errno value with `bad_wr` set to the first request that
/// wasn't posted.
///
/// # Safety
///
/// `qp` is alive, and its device context implements `post_send`. The list and its segments are valid for reads, and
/// `bad_wr` is valid for writes. The memory of the segments stays valid until the requests complete.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe { (*(*qp).context).ops.post_send.unwrap_unchecked()(qp, wr, bad_wr) }
}

/// Posts a list of requests to a receive queue. Returns 0, or an errno value with `bad_wr` set to the first request
/// that wasn't posted.
///
/// # Safety
///
/// `qp` is alive, and its device context implements `post_recv`. The list and its segments are valid for reads, and
/// `bad_wr` is valid for writes. The memory of the segments stays valid, and is not read, until the requests complete.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe { (*(*qp).context).ops.post_recv.unwrap_unchecked()(qp, wr, bad_wr) }
}
