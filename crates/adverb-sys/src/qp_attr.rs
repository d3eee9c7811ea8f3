//! The state and attributes of a queue pair, and changing them.

use libc::{c_int, c_uint};

use crate::{ibv_ah_attr, ibv_mtu, ibv_qp, ibv_qp_cap};

shapes! {
    /// A queue pair's state.
    pub enum ibv_qp_state: c_uint {
        /// As made.
        IBV_QPS_RESET = 0,
        /// Receives may be posted.
        IBV_QPS_INIT = 1,
        /// Ready to receive.
        IBV_QPS_RTR = 2,
        /// Ready to send.
        IBV_QPS_RTS = 3,
        /// The send queue is drained.
        IBV_QPS_SQD = 4,
        /// The send queue is in error.
        IBV_QPS_SQE = 5,
        /// In error: requests are flushed.
        IBV_QPS_ERR = 6,
        /// Nobody knows.
        IBV_QPS_UNKNOWN = 7,
    }

    /// How far a migration to the alternate path is.
    pub enum ibv_mig_state: c_uint {
        /// Done.
        IBV_MIG_MIGRATED = 0,
        /// To be armed.
        IBV_MIG_REARM = 1,
        /// Armed.
        IBV_MIG_ARMED = 2,
    }

    // ibv_modify_qp, ibv_query_qp: which attributes
    pub const c_int {
        /// `qp_state`.
        IBV_QP_STATE = 1 << 0,
        /// `cur_qp_state`.
        IBV_QP_CUR_STATE = 1 << 1,
        /// `en_sqd_async_notify`.
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        /// `qp_access_flags`.
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        /// `pkey_index`.
        IBV_QP_PKEY_INDEX = 1 << 4,
        /// `port_num`.
        IBV_QP_PORT = 1 << 5,
        /// `qkey`.
        IBV_QP_QKEY = 1 << 6,
        /// `ah_attr`.
        IBV_QP_AV = 1 << 7,
        /// `path_mtu`.
        IBV_QP_PATH_MTU = 1 << 8,
        /// `timeout`.
        IBV_QP_TIMEOUT = 1 << 9,
        /// `retry_cnt`.
        IBV_QP_RETRY_CNT = 1 << 10,
        /// `rnr_retry`.
        IBV_QP_RNR_RETRY = 1 << 11,
        /// `rq_psn`.
        IBV_QP_RQ_PSN = 1 << 12,
        /// `max_rd_atomic`.
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
        IBV_QP_ALT_PATH = 1 << 14,
        /// `min_rnr_timer`.
        IBV_QP_MIN_RNR_TIMER = 1 << 15,
        /// `sq_psn`.
        IBV_QP_SQ_PSN = 1 << 16,
        /// `max_dest_rd_atomic`.
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        /// `path_mig_state`.
        IBV_QP_PATH_MIG_STATE = 1 << 18,
        /// `cap`.
        IBV_QP_CAP = 1 << 19,
        /// `dest_qp_num`.
        IBV_QP_DEST_QPN = 1 << 20,
        /// `rate_limit`.
        IBV_QP_RATE_LIMIT = 1 << 25,
    }

    /// A queue pair's attributes.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_attr {
        /// The state to go to, or that it is in.
        pub qp_state: ibv_qp_state,
        /// The state that it is assumed to be in.
        pub cur_qp_state: ibv_qp_state,
        /// The most payload that a packet carries.
        pub path_mtu: ibv_mtu,
        /// How far a migration is.
        pub path_mig_state: ibv_mig_state,
        /// The key of datagrams.
        pub qkey: u32,
        /// The first packet sequence number that is received.
        pub rq_psn: u32,
        /// The first packet sequence number that is sent.
        pub sq_psn: u32,
        /// The peer's queue pair.
        pub dest_qp_num: u32,
        /// `IBV_ACCESS_*`: what peers may do.
        pub qp_access_flags: c_uint,
        /// How much it holds.
        pub cap: ibv_qp_cap,
        /// The path to the peer.
        pub ah_attr: ibv_ah_attr,
        /// The alternate path.
        pub alt_ah_attr: ibv_ah_attr,
        /// The index of the P_Key.
        pub pkey_index: u16,
        /// The alternate path's.
        pub alt_pkey_index: u16,
        /// Whether an event is made when the send queue is drained.
        pub en_sqd_async_notify: u8,
        /// Whether the send queue is being drained.
        pub sq_draining: u8,
        /// Reads and atomics that it has outstanding.
        pub max_rd_atomic: u8,
        /// Reads and atomics that it serves at a time.
        pub max_dest_rd_atomic: u8,
        /// How long a peer waits when there is no receive, encoded.
        pub min_rnr_timer: u8,
        /// The port.
        pub port_num: u8,
        /// How long it waits for an answer: 4.096 µs times this power of two, or for ever if zero.
        pub timeout: u8,
        /// How often it asks again.
        pub retry_cnt: u8,
        /// How often it asks again when there is no receive; seven is for ever.
        pub rnr_retry: u8,
        /// The alternate path's port.
        pub alt_port_num: u8,
        /// The alternate path's timeout.
        pub alt_timeout: u8,
        /// Pacing, in kbit/s.
        pub rate_limit: u32,
    }

    /// How to pace a queue pair.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_qp_rate_limit_attr {
        /// In kbit/s.
        pub rate_limit: u32,
        /// Bytes of a burst.
        pub max_burst_sz: u32,
        /// Bytes of a typical packet.
        pub typical_pkt_sz: u16,
        /// Zero.
        pub comp_mask: u32,
    }
}

/// Paces a queue pair. 0 or an error number.
///
/// # Safety
///
/// `qp` is alive, and `attr` valid for reads.
pub unsafe fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe {
        match verbs_op!((*qp).context, modify_qp_rate_limit) {
            Some(modify_qp_rate_limit) => modify_qp_rate_limit(qp, attr),
            None => libc::EOPNOTSUPP,
        }
    }
}
