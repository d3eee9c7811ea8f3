//! Work requests.

use libc::{c_int, c_uint, c_void, size_t};

use crate::{__be32, ibv_ah, ibv_mw, ibv_mw_bind_info};

shapes! {
    /// The opcode of a send request.
    pub enum ibv_wr_opcode: c_uint {
        /// An RDMA WRITE.
        IBV_WR_RDMA_WRITE = 0,
        /// An RDMA WRITE with immediate data, which consumes a receive of the peer.
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        /// A SEND.
        IBV_WR_SEND = 2,
        /// A SEND with immediate data.
        IBV_WR_SEND_WITH_IMM = 3,
        /// An RDMA READ.
        IBV_WR_RDMA_READ = 4,
        /// An 8-byte compare-and-swap.
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        /// An 8-byte fetch-and-add.
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        /// A local invalidation of a remote key.
        IBV_WR_LOCAL_INV = 7,
        /// A memory window binding.
        IBV_WR_BIND_MW = 8,
        /// A SEND that invalidates a remote key of the peer.
        IBV_WR_SEND_WITH_INV = 9,
        /// A packet with TCP segmentation offload (TSO).
        IBV_WR_TSO = 10,
        /// A vendor-specific opcode.
        IBV_WR_DRIVER1 = 11,
        /// An 8-byte ATOMIC WRITE.
        IBV_WR_ATOMIC_WRITE = 15,
    }

    pub const ibv_wr_opcode since "45" {
        /// A FLUSH, which makes earlier writes visible or persistent.
        IBV_WR_FLUSH = 14,
    }

    // ibv_send_wr.send_flags
    pub const c_uint {
        /// A fence: the request starts after earlier RDMA READs and atomics complete.
        IBV_SEND_FENCE = 1 << 0,
        /// A signaled request, which generates a completion.
        IBV_SEND_SIGNALED = 1 << 1,
        /// A solicited event at the peer.
        IBV_SEND_SOLICITED = 1 << 2,
        /// Inline data: the data is copied while the request is posted.
        IBV_SEND_INLINE = 1 << 3,
        /// Computation of the IP checksums by the device.
        IBV_SEND_IP_CSUM = 1 << 4,
    }

    /// A buffer of inline data.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_data_buf {
        /// The start address.
        pub addr: *mut c_void,
        /// The length in bytes.
        pub length: size_t,
    }

    /// A segment (scatter/gather element) of registered memory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ibv_sge {
        /// The start address.
        pub addr: u64,
        /// The length in bytes.
        pub length: u32,
        /// The memory region's local key.
        pub lkey: u32,
    }

    /// A receive request.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_recv_wr {
        /// The work request ID, which the completion carries.
        pub wr_id: u64,
        /// The next request in the list, or NULL.
        pub next: *mut ibv_recv_wr,
        /// The segments that receive the data.
        pub sg_list: *mut ibv_sge,
        /// The number of segments.
        pub num_sge: c_int,
    }

    /// A send request.
    #[derive(Clone, Copy)]
    pub struct ibv_send_wr {
        /// The work request ID, which the completion carries.
        pub wr_id: u64,
        /// The next request in the list, or NULL.
        pub next: *mut ibv_send_wr,
        /// The segments of the data to send. For READs and atomics, these segments receive the result.
        pub sg_list: *mut ibv_sge,
        /// The number of segments.
        pub num_sge: c_int,
        /// The opcode.
        pub opcode: ibv_wr_opcode,
        /// The `IBV_SEND_*` flags.
        pub send_flags: c_uint,
        /// The immediate data or the remote key to invalidate.
        pub imm: ibv_send_wr_imm,
        /// The destination at the peer.
        pub wr: ibv_send_wr_wr,
        /// The arguments of XRC.
        pub qp_type: ibv_send_wr_qp_type,
        /// The arguments of a memory window binding or of TCP segmentation offload (TSO).
        pub op: ibv_send_wr_op,
    }

    /// The immediate data or the remote key to invalidate. The opcode determines the valid member.
    #[derive(Clone, Copy)]
    pub union ibv_send_wr_imm unnamed_in ibv_send_wr {
        /// The immediate data.
        pub imm_data: __be32,
        /// The remote key to invalidate.
        pub invalidate_rkey: u32,
    }

    /// The destination at the peer. The opcode and the queue pair type determine the valid member.
    #[derive(Clone, Copy)]
    pub union ibv_send_wr_wr inside ibv_send_wr.wr {
        /// The destination of an RDMA READ or WRITE.
        pub rdma: ibv_send_wr_rdma,
        /// The destination and operands of an atomic.
        pub atomic: ibv_send_wr_atomic,
        /// The destination of a datagram.
        pub ud: ibv_send_wr_ud,
    }

    /// The destination of an RDMA READ or WRITE.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_rdma inside ibv_send_wr.wr.rdma {
        /// The remote address.
        pub remote_addr: u64,
        /// The remote key.
        pub rkey: u32,
    }

    /// The destination and operands of an atomic.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_atomic inside ibv_send_wr.wr.atomic {
        /// The remote address.
        pub remote_addr: u64,
        /// The value to compare with, or to add.
        pub compare_add: u64,
        /// The value to write if the comparison succeeds.
        pub swap: u64,
        /// The remote key.
        pub rkey: u32,
    }

    /// The destination of a datagram.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_ud inside ibv_send_wr.wr.ud {
        /// The address handle.
        pub ah: *mut ibv_ah,
        /// The peer's queue pair number.
        pub remote_qpn: u32,
        /// The peer's Q_Key.
        pub remote_qkey: u32,
    }

    /// The arguments that depend on the queue pair type.
    #[derive(Clone, Copy)]
    pub union ibv_send_wr_qp_type inside ibv_send_wr.qp_type {
        /// The arguments of XRC.
        pub xrc: ibv_send_wr_xrc,
    }

    /// The destination of an XRC message.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_xrc inside ibv_send_wr.qp_type.xrc {
        /// The number of the peer's shared receive queue.
        pub remote_srqn: u32,
    }

    /// The arguments of a memory window binding or of TCP segmentation offload (TSO).
    #[derive(Clone, Copy)]
    pub union ibv_send_wr_op unnamed_in ibv_send_wr {
        /// The arguments of a window binding.
        pub bind_mw: ibv_send_wr_bind_mw,
        /// The arguments of TSO.
        pub tso: ibv_send_wr_tso,
    }

    /// The arguments of a memory window binding.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_bind_mw inside ibv_send_wr.bind_mw {
        /// The memory window.
        pub mw: *mut ibv_mw,
        /// The new remote key of the window.
        pub rkey: u32,
        /// The memory to which the window is bound.
        pub bind_info: ibv_mw_bind_info,
    }

    /// The arguments of TCP segmentation offload (TSO).
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_tso inside ibv_send_wr.tso {
        /// The header of each TCP segment.
        pub hdr: *mut c_void,
        /// The length of the header in bytes.
        pub hdr_sz: u16,
        /// The maximum payload of a TCP segment in bytes.
        pub mss: u16,
    }
}
