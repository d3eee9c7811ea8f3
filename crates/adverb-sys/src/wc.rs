//! Completions.

use libc::c_uint;

use crate::__be32;

shapes! {
    /// How a request ended.
    pub enum ibv_wc_status: c_uint {
        /// Well.
        IBV_WC_SUCCESS = 0,
        /// The local buffer is too short for the message, or the message too long for the queue pair.
        IBV_WC_LOC_LEN_ERR = 1,
        /// The queue pair couldn't do it: something is inconsistent.
        IBV_WC_LOC_QP_OP_ERR = 2,
        /// The same of an end-to-end context, which nobody has.
        IBV_WC_LOC_EEC_OP_ERR = 3,
        /// A local segment isn't in a region that allows it.
        IBV_WC_LOC_PROT_ERR = 4,
        /// The queue pair went to the error state before it was done.
        IBV_WC_WR_FLUSH_ERR = 5,
        /// A window couldn't be bound.
        IBV_WC_MW_BIND_ERR = 6,
        /// The answer was of an unexpected kind.
        IBV_WC_BAD_RESP_ERR = 7,
        /// An RDMA WRITE with immediate data met a local protection error.
        IBV_WC_LOC_ACCESS_ERR = 8,
        /// The peer says that the request isn't valid.
        IBV_WC_REM_INV_REQ_ERR = 9,
        /// The peer says that the access isn't allowed.
        IBV_WC_REM_ACCESS_ERR = 10,
        /// The peer couldn't do it.
        IBV_WC_REM_OP_ERR = 11,
        /// The peer didn't answer, however often it was asked.
        IBV_WC_RETRY_EXC_ERR = 12,
        /// The peer had no receive posted, however often it was asked.
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        /// Reliable datagrams, which nobody has.
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        /// Reliable datagrams, which nobody has.
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        /// The peer aborted it.
        IBV_WC_REM_ABORT_ERR = 16,
        /// Reliable datagrams, which nobody has.
        IBV_WC_INV_EECN_ERR = 17,
        /// Reliable datagrams, which nobody has.
        IBV_WC_INV_EEC_STATE_ERR = 18,
        /// The device is broken.
        IBV_WC_FATAL_ERR = 19,
        /// There was no answer in time.
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        /// Something else.
        IBV_WC_GENERAL_ERR = 21,
        /// Tag matching failed.
        IBV_WC_TM_ERR = 22,
        /// Tag matching left the rendezvous to software.
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }

    /// What was completed. Valid only with success.
    pub enum ibv_wc_opcode: c_uint {
        /// A SEND.
        IBV_WC_SEND = 0,
        /// An RDMA WRITE.
        IBV_WC_RDMA_WRITE = 1,
        /// An RDMA READ.
        IBV_WC_RDMA_READ = 2,
        /// A compare and swap.
        IBV_WC_COMP_SWAP = 3,
        /// A fetch and add.
        IBV_WC_FETCH_ADD = 4,
        /// A window's binding.
        IBV_WC_BIND_MW = 5,
        /// A local invalidation.
        IBV_WC_LOCAL_INV = 6,
        /// A segmented packet.
        IBV_WC_TSO = 7,
        /// An ATOMIC WRITE.
        IBV_WC_ATOMIC_WRITE = 9,
        /// A receive. This bit is in every opcode of the receive side.
        IBV_WC_RECV = 1 << 7,
        /// A receive that an RDMA WRITE with immediate data consumed.
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
        /// Tag matching.
        IBV_WC_TM_ADD = 130,
        /// Tag matching.
        IBV_WC_TM_DEL = 131,
        /// Tag matching.
        IBV_WC_TM_SYNC = 132,
        /// Tag matching.
        IBV_WC_TM_RECV = 133,
        /// Tag matching.
        IBV_WC_TM_NO_TAG = 134,
        /// A vendor's own.
        IBV_WC_DRIVER1 = 135,
        /// A vendor's own.
        IBV_WC_DRIVER2 = 136,
        /// A vendor's own.
        IBV_WC_DRIVER3 = 137,
    }

    pub const ibv_wc_opcode since "45" {
        /// A FLUSH.
        IBV_WC_FLUSH = 8,
    }

    // ibv_wc.wc_flags
    pub const c_uint {
        /// The first forty bytes of the buffer are for the global route header.
        IBV_WC_GRH = 1 << 0,
        /// There is immediate data.
        IBV_WC_WITH_IMM = 1 << 1,
        /// The IP checksums are right.
        IBV_WC_IP_CSUM_OK = 1 << 2,
        /// The peer invalidated a key.
        IBV_WC_WITH_INV = 1 << 3,
        /// Tag matching.
        IBV_WC_TM_SYNC_REQ = 1 << 4,
        /// Tag matching.
        IBV_WC_TM_MATCH = 1 << 5,
        /// Tag matching.
        IBV_WC_TM_DATA_VALID = 1 << 6,
    }

    /// A completion. With a failure only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
    #[derive(Clone, Copy)]
    pub struct ibv_wc {
        /// What the request carried.
        pub wr_id: u64,
        /// How it ended.
        pub status: ibv_wc_status,
        /// What it was.
        pub opcode: ibv_wc_opcode,
        /// What the vendor says about a failure.
        pub vendor_err: u32,
        /// Bytes received or read; with a datagram, forty for the global route header included.
        pub byte_len: u32,
        /// Immediate data or an invalidated key.
        pub imm: ibv_wc_imm,
        /// The local queue pair.
        pub qp_num: u32,
        /// The peer's queue pair, of a datagram.
        pub src_qp: u32,
        /// `IBV_WC_*`: what there is.
        pub wc_flags: c_uint,
        /// The index of the P_Key, of special queue pairs.
        pub pkey_index: u16,
        /// The peer's local identifier, of a datagram.
        pub slid: u16,
        /// The service level, of a datagram.
        pub sl: u8,
        /// The low bits of the local identifier that was addressed, of a datagram.
        pub dlid_path_bits: u8,
    }

    /// Immediate data or an invalidated key; `wc_flags` says which.
    #[derive(Clone, Copy)]
    pub union ibv_wc_imm unnamed_in ibv_wc {
        /// With [`IBV_WC_WITH_IMM`].
        pub imm_data: __be32,
        /// With [`IBV_WC_WITH_INV`].
        pub invalidated_rkey: u32,
    }
}

impl ibv_wc {
    /// The immediate data, if `wc_flags` has [`IBV_WC_WITH_IMM`].
    #[must_use]
    #[inline]
    pub const fn imm_data(&self) -> __be32 {
        // SAFETY: both members are 32-bit integers.
        unsafe { self.imm.imm_data }
    }

    /// The key that the peer invalidated, if `wc_flags` has [`IBV_WC_WITH_INV`].
    #[must_use]
    #[inline]
    pub const fn invalidated_rkey(&self) -> u32 {
        // SAFETY: both members are 32-bit integers.
        unsafe { self.imm.invalidated_rkey }
    }
}
