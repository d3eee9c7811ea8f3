//! Work completions.

use libc::c_uint;

use crate::__be32;

shapes! {
    /// The status of a completed request.
    pub enum ibv_wc_status: c_uint {
        /// Success.
        IBV_WC_SUCCESS = 0,
        /// The local buffer is too short for the message, or the message exceeds the queue pair's maximum message
        /// size.
        IBV_WC_LOC_LEN_ERR = 1,
        /// An internal consistency error of the queue pair.
        IBV_WC_LOC_QP_OP_ERR = 2,
        /// An internal consistency error of an end-to-end context (reliable datagrams only).
        IBV_WC_LOC_EEC_OP_ERR = 3,
        /// A local segment refers to memory that isn't registered for the operation.
        IBV_WC_LOC_PROT_ERR = 4,
        /// The request was flushed because the queue pair moved to the error state.
        IBV_WC_WR_FLUSH_ERR = 5,
        /// A memory window couldn't be bound.
        IBV_WC_MW_BIND_ERR = 6,
        /// The responder returned an unexpected opcode.
        IBV_WC_BAD_RESP_ERR = 7,
        /// A protection error occurred on a local buffer during an RDMA WRITE with immediate data.
        IBV_WC_LOC_ACCESS_ERR = 8,
        /// The responder reported an invalid request.
        IBV_WC_REM_INV_REQ_ERR = 9,
        /// The responder reported an access violation.
        IBV_WC_REM_ACCESS_ERR = 10,
        /// The responder failed to complete the request.
        IBV_WC_REM_OP_ERR = 11,
        /// The retransmission limit was exceeded without a response.
        IBV_WC_RETRY_EXC_ERR = 12,
        /// The RNR retry limit was exceeded.
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        /// A reliable datagram domain violation (reliable datagrams only).
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        /// The responder reported an invalid reliable datagram request (reliable datagrams only).
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        /// The responder aborted the operation.
        IBV_WC_REM_ABORT_ERR = 16,
        /// An invalid end-to-end context number (reliable datagrams only).
        IBV_WC_INV_EECN_ERR = 17,
        /// An invalid state of an end-to-end context (reliable datagrams only).
        IBV_WC_INV_EEC_STATE_ERR = 18,
        /// A fatal error of the device.
        IBV_WC_FATAL_ERR = 19,
        /// A response timeout.
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        /// An error that no other status describes.
        IBV_WC_GENERAL_ERR = 21,
        /// Tag matching failed.
        IBV_WC_TM_ERR = 22,
        /// A tag matching rendezvous that software must complete.
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }

    /// The opcode of a completed request. The opcode is valid only if the status is success.
    pub enum ibv_wc_opcode: c_uint {
        /// A SEND.
        IBV_WC_SEND = 0,
        /// An RDMA WRITE.
        IBV_WC_RDMA_WRITE = 1,
        /// An RDMA READ.
        IBV_WC_RDMA_READ = 2,
        /// A compare-and-swap.
        IBV_WC_COMP_SWAP = 3,
        /// A fetch-and-add.
        IBV_WC_FETCH_ADD = 4,
        /// A memory window binding.
        IBV_WC_BIND_MW = 5,
        /// A local invalidation.
        IBV_WC_LOCAL_INV = 6,
        /// A TSO request.
        IBV_WC_TSO = 7,
        /// An ATOMIC WRITE.
        IBV_WC_ATOMIC_WRITE = 9,
        /// A receive. Every opcode of receive completions has this bit set.
        IBV_WC_RECV = 1 << 7,
        /// A receive consumed by an RDMA WRITE with immediate data.
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
        /// An addition of a buffer to the tag list.
        IBV_WC_TM_ADD = 130,
        /// A removal of a buffer from the tag list.
        IBV_WC_TM_DEL = 131,
        /// A synchronization of the tag list.
        IBV_WC_TM_SYNC = 132,
        /// A receive into a tagged buffer.
        IBV_WC_TM_RECV = 133,
        /// A receive of a message without a tag.
        IBV_WC_TM_NO_TAG = 134,
        /// A vendor-specific opcode.
        IBV_WC_DRIVER1 = 135,
        /// A vendor-specific opcode.
        IBV_WC_DRIVER2 = 136,
        /// A vendor-specific opcode.
        IBV_WC_DRIVER3 = 137,
    }

    pub const ibv_wc_opcode since "45" {
        /// A FLUSH.
        IBV_WC_FLUSH = 8,
    }

    // ibv_wc.wc_flags
    pub const c_uint {
        /// The receive buffer starts with a 40-byte global route header.
        IBV_WC_GRH = 1 << 0,
        /// The completion has immediate data.
        IBV_WC_WITH_IMM = 1 << 1,
        /// The IP checksums are correct.
        IBV_WC_IP_CSUM_OK = 1 << 2,
        /// The completion has the remote key that the peer invalidated.
        IBV_WC_WITH_INV = 1 << 3,
        /// The consumer must synchronize the tag list with the device.
        IBV_WC_TM_SYNC_REQ = 1 << 4,
        /// The message matched a buffer in the tag list.
        IBV_WC_TM_MATCH = 1 << 5,
        /// All data of the message is in the tagged buffer.
        IBV_WC_TM_DATA_VALID = 1 << 6,
    }

    /// A work completion. If the status isn't success, only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
    #[derive(Clone, Copy)]
    pub struct ibv_wc {
        /// The work request ID of the completed request.
        pub wr_id: u64,
        /// The status of the completed request.
        pub status: ibv_wc_status,
        /// The opcode of the completed request.
        pub opcode: ibv_wc_opcode,
        /// The vendor-specific error code.
        pub vendor_err: u32,
        /// The number of bytes received or read. For a datagram, the number includes 40 bytes for the global route
        /// header.
        pub byte_len: u32,
        /// The immediate data or the invalidated remote key.
        pub imm: ibv_wc_imm,
        /// The number of the local queue pair.
        pub qp_num: u32,
        /// The number of the source queue pair of a datagram.
        pub src_qp: u32,
        /// The `IBV_WC_*` flags.
        pub wc_flags: c_uint,
        /// The P_Key index, valid only for GSI queue pairs.
        pub pkey_index: u16,
        /// The source LID of a datagram.
        pub slid: u16,
        /// The service level of a datagram.
        pub sl: u8,
        /// The low bits of the destination LID of a datagram.
        pub dlid_path_bits: u8,
    }

    /// The immediate data or the invalidated remote key. `wc_flags` determines the valid member.
    #[derive(Clone, Copy)]
    pub union ibv_wc_imm unnamed_in ibv_wc {
        /// The immediate data, valid with [`IBV_WC_WITH_IMM`].
        pub imm_data: __be32,
        /// The invalidated remote key, valid with [`IBV_WC_WITH_INV`].
        pub invalidated_rkey: u32,
    }
}

impl ibv_wc {
    /// Returns the immediate data, valid only if `wc_flags` contains [`IBV_WC_WITH_IMM`].
    #[must_use]
    #[inline]
    pub const fn imm_data(&self) -> __be32 {
        // SAFETY: both members are 32-bit integers.
        unsafe { self.imm.imm_data }
    }

    /// Returns the remote key that the peer invalidated, valid only if `wc_flags` contains [`IBV_WC_WITH_INV`].
    #[must_use]
    #[inline]
    pub const fn invalidated_rkey(&self) -> u32 {
        // SAFETY: both members are 32-bit integers.
        unsafe { self.imm.invalidated_rkey }
    }
}
