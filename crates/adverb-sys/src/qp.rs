//! Queue pairs: making them, and posting to them.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use crate::errno::set_errno;
use crate::{
    Ibverbs, ibv_context, ibv_cq, ibv_pd, ibv_qp_ex, ibv_qp_state, ibv_recv_wr, ibv_rwq_ind_table,
    ibv_send_wr, ibv_srq, ibv_wr_opcode, ibv_xrcd,
};

shapes! {
    /// A transport.
    pub enum ibv_qp_type: c_uint {
        /// Reliable connection.
        IBV_QPT_RC = 2,
        /// Unreliable connection.
        IBV_QPT_UC = 3,
        /// Unreliable datagram.
        IBV_QPT_UD = 4,
        /// Raw Ethernet.
        IBV_QPT_RAW_PACKET = 8,
        /// The sending side of an extended reliable connection.
        IBV_QPT_XRC_SEND = 9,
        /// The receiving side of an extended reliable connection.
        IBV_QPT_XRC_RECV = 10,
        /// A vendor's own.
        IBV_QPT_DRIVER = 255,
    }

    /// How much a queue pair holds.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_cap {
        /// Requests in the send queue.
        pub max_send_wr: u32,
        /// Requests in the receive queue.
        pub max_recv_wr: u32,
        /// Segments of a request in the send queue.
        pub max_send_sge: u32,
        /// Segments of a request in the receive queue.
        pub max_recv_sge: u32,
        /// Bytes that are sent inline.
        pub max_inline_data: u32,
    }

    /// How to make a queue pair.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_init_attr {
        /// The consumer's own.
        pub qp_context: *mut c_void,
        /// Where requests complete.
        pub send_cq: *mut ibv_cq,
        /// Where receives complete.
        pub recv_cq: *mut ibv_cq,
        /// A shared receive queue, or NULL.
        pub srq: *mut ibv_srq,
        /// How much it holds: what is asked for, then what it got.
        pub cap: ibv_qp_cap,
        /// The transport.
        pub qp_type: ibv_qp_type,
        /// Whether every request is signalled.
        pub sq_sig_all: c_int,
    }

    /// How to hash received packets.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_rx_hash_conf {
        /// With what.
        pub rx_hash_function: u8,
        /// Bytes of the key.
        pub rx_hash_key_len: u8,
        /// The key.
        pub rx_hash_key: *mut u8,
        /// What.
        pub rx_hash_fields_mask: u64,
    }

    /// How to make a queue pair, and what has been added since. It begins as an [`ibv_qp_init_attr`] does.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_init_attr_ex {
        /// The consumer's own.
        pub qp_context: *mut c_void,
        /// Where requests complete.
        pub send_cq: *mut ibv_cq,
        /// Where receives complete.
        pub recv_cq: *mut ibv_cq,
        /// A shared receive queue, or NULL.
        pub srq: *mut ibv_srq,
        /// How much it holds: what is asked for, then what it got.
        pub cap: ibv_qp_cap,
        /// The transport.
        pub qp_type: ibv_qp_type,
        /// Whether every request is signalled.
        pub sq_sig_all: c_int,
        /// Which of the following are given.
        pub comp_mask: u32,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// The domain of an extended reliable connection.
        pub xrcd: *mut ibv_xrcd,
        /// `IBV_QP_CREATE_*`.
        pub create_flags: u32,
        /// Bytes of a segmented packet's header.
        pub max_tso_header: u16,
        /// Work queues for received packets.
        pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
        /// How to hash received packets.
        pub rx_hash_conf: ibv_rx_hash_conf,
        /// The number of another queue pair that it sends as.
        pub source_qpn: u32,
        /// `IBV_QP_EX_WITH_*`: which `ibv_wr_*` will be used.
        pub send_ops_flags: u64,
    }

    // ibv_qp_init_attr_ex.comp_mask
    pub const u32 {
        /// `pd` is given.
        IBV_QP_INIT_ATTR_PD = 1 << 0,
        /// `xrcd` is given.
        IBV_QP_INIT_ATTR_XRCD = 1 << 1,
        /// `create_flags` is given.
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
        /// `max_tso_header` is given.
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
        /// `rwq_ind_tbl` is given.
        IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4,
        /// `rx_hash_conf` is given.
        IBV_QP_INIT_ATTR_RX_HASH = 1 << 5,
        /// `send_ops_flags` is given.
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
    }

    // ibv_qp_init_attr_ex.create_flags
    pub const u32 {
        /// Don't receive what this queue pair sends to a multicast group.
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1,
        /// Keep the checksum of raw packets.
        IBV_QP_CREATE_SCATTER_FCS = 1 << 8,
        /// Take the VLAN tag off raw packets.
        IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9,
        /// `source_qpn` is given.
        IBV_QP_CREATE_SOURCE_QPN = 1 << 10,
        /// Pad writes to a cache line.
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11,
    }

    // ibv_qp_init_attr_ex.send_ops_flags
    pub const u64 {
        /// [`ibv_wr_rdma_write`](crate::ibv_wr_rdma_write).
        IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0,
        /// [`ibv_wr_rdma_write_imm`](crate::ibv_wr_rdma_write_imm).
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
        /// [`ibv_wr_send`](crate::ibv_wr_send).
        IBV_QP_EX_WITH_SEND = 1 << 2,
        /// [`ibv_wr_send_imm`](crate::ibv_wr_send_imm).
        IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
        /// [`ibv_wr_rdma_read`](crate::ibv_wr_rdma_read).
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
        /// [`ibv_wr_atomic_cmp_swp`](crate::ibv_wr_atomic_cmp_swp).
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
        /// [`ibv_wr_atomic_fetch_add`](crate::ibv_wr_atomic_fetch_add).
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
        /// [`ibv_wr_local_inv`](crate::ibv_wr_local_inv).
        IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
        /// [`ibv_wr_bind_mw`](crate::ibv_wr_bind_mw).
        IBV_QP_EX_WITH_BIND_MW = 1 << 8,
        /// [`ibv_wr_send_inv`](crate::ibv_wr_send_inv).
        IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
        /// Segmented packets.
        IBV_QP_EX_WITH_TSO = 1 << 10,
        /// [`ibv_wr_atomic_write`](crate::ibv_wr_atomic_write).
        IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
    }

    pub const u64 since "45" {
        /// [`ibv_wr_flush`](crate::ibv_wr_flush).
        IBV_QP_EX_WITH_FLUSH = 1 << 11,
    }

    /// A queue pair.
    pub struct ibv_qp {
        /// The device.
        pub context: *mut ibv_context,
        /// The consumer's own.
        pub qp_context: *mut c_void,
        /// The protection domain.
        pub pd: *mut ibv_pd,
        /// Where requests complete.
        pub send_cq: *mut ibv_cq,
        /// Where receives complete.
        pub recv_cq: *mut ibv_cq,
        /// The shared receive queue, or NULL.
        pub srq: *mut ibv_srq,
        /// The kernel's number.
        pub handle: u32,
        /// The number that peers use.
        pub qp_num: u32,
        /// The state to which it was last modified; it may have gone to the error state by itself.
        pub state: ibv_qp_state,
        /// The transport.
        pub qp_type: ibv_qp_type,
        /// The library's own.
        pub mutex: pthread_mutex_t,
        /// The library's own.
        pub cond: pthread_cond_t,
        /// Asynchronous events that were acknowledged.
        pub events_completed: u32,
    }

    /// A vendor's extensions of a connection.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_ece {
        /// The vendor, an IEEE OUI.
        pub vendor_id: u32,
        /// What the vendor makes of it.
        pub options: u32,
        /// Zero.
        pub comp_mask: u32,
    }

    // ibv_query_qp_data_in_order, the argument
    pub const u32 since "46" {
        /// Answer with capabilities instead of yes or no.
        IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1 << 0,
    }

    // ibv_query_qp_data_in_order, the answer
    pub const c_int since "46" {
        /// A message is written in order.
        IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1 << 0,
        /// The 128-byte blocks of a message are written in order.
        IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 1 << 1,
    }
}

impl Ibverbs {
    /// Makes a queue pair with extended attributes. NULL with errno set if that fails.
    ///
    /// # Safety
    ///
    /// `context` is open, and `qp_init_attr_ex` valid for reads and writes, with what it names alive.
    pub unsafe fn ibv_create_qp_ex(
        &self,
        context: *mut ibv_context,
        qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        // SAFETY: the caller upholds what is asked for above, and the extended attributes begin as the plain
        // ones do.
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

    /// The same queue pair for `ibv_wr_*`, or NULL if it wasn't made with
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

    /// Chooses a vendor's extensions, before the queue pair is connected. 0 or an error number.
    ///
    /// # Safety
    ///
    /// `qp` is alive, and `ece` valid for reads and writes.
    pub unsafe fn ibv_set_ece(&self, qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        match self.ibv_set_ece {
            // SAFETY: the caller upholds what is asked for above.
            Some(ibv_set_ece) => unsafe { ibv_set_ece(qp, ece) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// Asks for a vendor's extensions. 0 or an error number.
    ///
    /// # Safety
    ///
    /// `qp` is alive, and `ece` valid for writes.
    pub unsafe fn ibv_query_ece(&self, qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        match self.ibv_query_ece {
            // SAFETY: the caller upholds what is asked for above.
            Some(ibv_query_ece) => unsafe { ibv_query_ece(qp, ece) },
            None => libc::EOPNOTSUPP,
        }
    }

    /// Whether a message's data is written in order, so that memory may be polled for its end. 0 if that
    /// isn't known.
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

/// Posts a list of requests to a send queue. 0, or an error number with `bad_wr` set to the first that wasn't
/// posted.
///
/// # Safety
///
/// `qp` is alive and its context has the operation. The list and its segments are valid for reads, `bad_wr`
/// is valid for writes, and the memory that the segments name stays so until the requests are complete.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe { (*(*qp).context).ops.post_send.unwrap_unchecked()(qp, wr, bad_wr) }
}

/// Posts a list of requests to a receive queue. 0, or an error number with `bad_wr` set to the first that
/// wasn't posted.
///
/// # Safety
///
/// As for [`ibv_post_send`], and nobody reads the memory until the requests are complete.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe { (*(*qp).context).ops.post_recv.unwrap_unchecked()(qp, wr, bad_wr) }
}
