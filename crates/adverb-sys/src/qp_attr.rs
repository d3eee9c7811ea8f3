//! The states and attributes of queue pairs.

use libc::{c_int, c_uint};

use crate::{ibv_ah_attr, ibv_mtu, ibv_qp, ibv_qp_cap};

shapes! {
    /// A queue pair's state.
    pub enum ibv_qp_state: c_uint {
        /// Reset: the initial state.
        IBV_QPS_RESET = 0,
        /// Initialized: receives may be posted.
        IBV_QPS_INIT = 1,
        /// Ready to receive.
        IBV_QPS_RTR = 2,
        /// Ready to send.
        IBV_QPS_RTS = 3,
        /// Send queue drained: the queue pair starts no new send requests.
        IBV_QPS_SQD = 4,
        /// Send queue error: send requests are flushed, and receives continue.
        IBV_QPS_SQE = 5,
        /// Error: requests are flushed.
        IBV_QPS_ERR = 6,
        /// An unknown state.
        IBV_QPS_UNKNOWN = 7,
    }

    /// The state of path migration.
    pub enum ibv_mig_state: c_uint {
        /// Migrated: the initial state, and the state after a migration.
        IBV_MIG_MIGRATED = 0,
        /// Rearm: the queue pair waits for the peer to rearm path migration.
        IBV_MIG_REARM = 1,
        /// Armed: the queue pair can migrate to the alternate path.
        IBV_MIG_ARMED = 2,
    }

    // The attribute masks of ibv_modify_qp and ibv_query_qp
    pub const c_int {
        /// The mask bit of the attribute `qp_state`.
        IBV_QP_STATE = 1 << 0,
        /// The mask bit of the attribute `cur_qp_state`.
        IBV_QP_CUR_STATE = 1 << 1,
        /// The mask bit of the attribute `en_sqd_async_notify`.
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        /// The mask bit of the attribute `qp_access_flags`.
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        /// The mask bit of the attribute `pkey_index`.
        IBV_QP_PKEY_INDEX = 1 << 4,
        /// The mask bit of the attribute `port_num`.
        IBV_QP_PORT = 1 << 5,
        /// The mask bit of the attribute `qkey`.
        IBV_QP_QKEY = 1 << 6,
        /// The mask bit of the attribute `ah_attr`.
        IBV_QP_AV = 1 << 7,
        /// The mask bit of the attribute `path_mtu`.
        IBV_QP_PATH_MTU = 1 << 8,
        /// The mask bit of the attribute `timeout`.
        IBV_QP_TIMEOUT = 1 << 9,
        /// The mask bit of the attribute `retry_cnt`.
        IBV_QP_RETRY_CNT = 1 << 10,
        /// The mask bit of the attribute `rnr_retry`.
        IBV_QP_RNR_RETRY = 1 << 11,
        /// The mask bit of the attribute `rq_psn`.
        IBV_QP_RQ_PSN = 1 << 12,
        /// The mask bit of the attribute `max_rd_atomic`.
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        /// The mask bit of the attributes `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
        IBV_QP_ALT_PATH = 1 << 14,
        /// The mask bit of the attribute `min_rnr_timer`.
        IBV_QP_MIN_RNR_TIMER = 1 << 15,
        /// The mask bit of the attribute `sq_psn`.
        IBV_QP_SQ_PSN = 1 << 16,
        /// The mask bit of the attribute `max_dest_rd_atomic`.
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        /// The mask bit of the attribute `path_mig_state`.
        IBV_QP_PATH_MIG_STATE = 1 << 18,
        /// The mask bit of the attribute `cap`.
        IBV_QP_CAP = 1 << 19,
        /// The mask bit of the attribute `dest_qp_num`.
        IBV_QP_DEST_QPN = 1 << 20,
        /// The mask bit of the attribute `rate_limit`.
        IBV_QP_RATE_LIMIT = 1 << 25,
    }

    /// A queue pair's attributes.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_attr {
        /// The new state in `ibv_modify_qp`, and the current state in `ibv_query_qp`.
        pub qp_state: ibv_qp_state,
        /// The assumed current state.
        pub cur_qp_state: ibv_qp_state,
        /// The maximum payload of a packet, an [`ibv_mtu`](crate::ibv_mtu).
        pub path_mtu: ibv_mtu,
        /// The state of path migration.
        pub path_mig_state: ibv_mig_state,
        /// The Q_Key.
        pub qkey: u32,
        /// The first PSN of received requests.
        pub rq_psn: u32,
        /// The first PSN of sent requests.
        pub sq_psn: u32,
        /// The peer's queue pair number.
        pub dest_qp_num: u32,
        /// The `IBV_ACCESS_*` flags of remote operations.
        pub qp_access_flags: c_uint,
        /// The capacities.
        pub cap: ibv_qp_cap,
        /// The path to the peer.
        pub ah_attr: ibv_ah_attr,
        /// The alternate path.
        pub alt_ah_attr: ibv_ah_attr,
        /// The P_Key index.
        pub pkey_index: u16,
        /// The alternate path's P_Key index.
        pub alt_pkey_index: u16,
        /// Whether an event is generated when the send queue is drained.
        pub en_sqd_async_notify: u8,
        /// Whether the send queue is being drained.
        pub sq_draining: u8,
        /// The maximum number of outstanding RDMA READs and atomics as requester.
        pub max_rd_atomic: u8,
        /// The maximum number of outstanding RDMA READs and atomics as responder.
        pub max_dest_rd_atomic: u8,
        /// The code of the minimum RNR backoff, which this queue pair's RNR NAKs demand of the peer.
        pub min_rnr_timer: u8,
        /// The number of the port.
        pub port_num: u8,
        /// The ACK timeout exponent: the timeout is 4.096 µs × 2ⁿ; zero means no timeout.
        pub timeout: u8,
        /// The maximum number of retransmissions.
        pub retry_cnt: u8,
        /// The maximum number of retries after an RNR NAK; 7 means no limit.
        pub rnr_retry: u8,
        /// The alternate path's port.
        pub alt_port_num: u8,
        /// The alternate path's ACK timeout exponent.
        pub alt_timeout: u8,
        /// The rate limit in kbit/s.
        pub rate_limit: u32,
    }

    /// The attributes of a queue pair's rate limit.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_rate_limit_attr {
        /// The rate limit in kbit/s.
        pub rate_limit: u32,
        /// The maximum burst size in bytes.
        pub max_burst_sz: u32,
        /// The typical packet size in bytes.
        pub typical_pkt_sz: u16,
        /// The mask of optional fields, which must be zero.
        pub comp_mask: u32,
    }
}

/// Sets a queue pair's rate limit. Returns 0 or an errno value.
///
/// # Safety
///
/// `qp` is alive, and `attr` is valid for reads.
pub unsafe fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!((*qp).context, modify_qp_rate_limit) {
            Some(modify_qp_rate_limit) => modify_qp_rate_limit(qp, attr),
            None => libc::EOPNOTSUPP,
        }
    }
}
