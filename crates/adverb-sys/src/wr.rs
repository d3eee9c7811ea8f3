//! Work requests.

use libc::{c_int, c_uint, c_void, size_t};

use crate::{__be32, ibv_ah, ibv_mw, ibv_mw_bind_info};

shapes! {
    /// What a request does.
    pub enum ibv_wr_opcode: c_uint {
        /// Writes to the peer's memory.
        IBV_WR_RDMA_WRITE = 0,
        /// Writes to the peer's memory, and consumes a receive there.
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        /// Sends a message.
        IBV_WR_SEND = 2,
        /// Sends a message with four bytes more.
        IBV_WR_SEND_WITH_IMM = 3,
        /// Reads the peer's memory.
        IBV_WR_RDMA_READ = 4,
        /// Compares and swaps eight bytes of the peer's memory.
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        /// Adds to eight bytes of the peer's memory.
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        /// Invalidates a key of this side.
        IBV_WR_LOCAL_INV = 7,
        /// Binds a memory window.
        IBV_WR_BIND_MW = 8,
        /// Sends a message, and invalidates a key of the peer.
        IBV_WR_SEND_WITH_INV = 9,
        /// Sends a packet in segments.
        IBV_WR_TSO = 10,
        /// A vendor's own.
        IBV_WR_DRIVER1 = 11,
        /// Writes eight bytes of the peer's memory at once.
        IBV_WR_ATOMIC_WRITE = 15,
    }

    pub const ibv_wr_opcode since "45" {
        /// Makes earlier writes visible or persistent.
        IBV_WR_FLUSH = 14,
    }

    // ibv_send_wr.send_flags
    pub const c_uint {
        /// Wait until earlier READs and atomics are complete.
        IBV_SEND_FENCE = 1 << 0,
        /// Make a completion.
        IBV_SEND_SIGNALED = 1 << 1,
        /// The peer's completion is solicited.
        IBV_SEND_SOLICITED = 1 << 2,
        /// The data is copied while posting.
        IBV_SEND_INLINE = 1 << 3,
        /// The device makes the IP checksums.
        IBV_SEND_IP_CSUM = 1 << 4,
    }

    /// A piece of data that is copied while posting.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_data_buf {
        /// Where it begins.
        pub addr: *mut c_void,
        /// Bytes.
        pub length: size_t,
    }

    /// A piece of registered memory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ibv_sge {
        /// Where it begins.
        pub addr: u64,
        /// Bytes.
        pub length: u32,
        /// The region's key for local use.
        pub lkey: u32,
    }

    /// A request for a receive queue.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_recv_wr {
        /// What its completion carries.
        pub wr_id: u64,
        /// The next one in the list, or NULL.
        pub next: *mut ibv_recv_wr,
        /// Where the data goes.
        pub sg_list: *mut ibv_sge,
        /// How many segments there are.
        pub num_sge: c_int,
    }

    /// A request for a send queue.
    #[derive(Clone, Copy)]
    pub struct ibv_send_wr {
        /// What its completion carries.
        pub wr_id: u64,
        /// The next one in the list, or NULL.
        pub next: *mut ibv_send_wr,
        /// Where the data comes from or, with READs and atomics, goes.
        pub sg_list: *mut ibv_sge,
        /// How many segments there are.
        pub num_sge: c_int,
        /// What it does.
        pub opcode: ibv_wr_opcode,
        /// `IBV_SEND_*`.
        pub send_flags: c_uint,
        /// Immediate data or a key to invalidate.
        pub imm: ibv_send_wr_imm,
        /// Where at the peer.
        pub wr: ibv_send_wr_wr,
        /// Extended reliable connections.
        pub qp_type: ibv_send_wr_qp_type,
        /// The window to bind or the packet to segment.
        pub op: ibv_send_wr_op,
    }

    /// Immediate data or a key to invalidate; the opcode says which.
    #[derive(Clone, Copy)]
    pub union ibv_send_wr_imm unnamed_in ibv_send_wr {
        /// Of a request with immediate data.
        pub imm_data: __be32,
        /// Of a request that invalidates.
        pub invalidate_rkey: u32,
    }

    /// Where at the peer; the opcode and the queue pair's type say how.
    #[derive(Clone, Copy)]
    pub union ibv_send_wr_wr inside ibv_send_wr.wr {
        /// Of a READ or WRITE.
        pub rdma: ibv_send_wr_rdma,
        /// Of an atomic.
        pub atomic: ibv_send_wr_atomic,
        /// Of a datagram.
        pub ud: ibv_send_wr_ud,
    }

    /// Where a READ or WRITE goes.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_rdma inside ibv_send_wr.wr.rdma {
        /// The peer's address.
        pub remote_addr: u64,
        /// The peer's key.
        pub rkey: u32,
    }

    /// Where an atomic goes, and with what.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_atomic inside ibv_send_wr.wr.atomic {
        /// The peer's address.
        pub remote_addr: u64,
        /// What is compared with, or added.
        pub compare_add: u64,
        /// What is put in if they are equal.
        pub swap: u64,
        /// The peer's key.
        pub rkey: u32,
    }

    /// To whom a datagram goes.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_ud inside ibv_send_wr.wr.ud {
        /// The address.
        pub ah: *mut ibv_ah,
        /// The peer's queue pair.
        pub remote_qpn: u32,
        /// The peer's key for datagrams.
        pub remote_qkey: u32,
    }

    /// What else depends on the queue pair's type.
    #[derive(Clone, Copy)]
    pub union ibv_send_wr_qp_type inside ibv_send_wr.qp_type {
        /// Of an extended reliable connection.
        pub xrc: ibv_send_wr_xrc,
    }

    /// To which shared receive queue a message goes.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_xrc inside ibv_send_wr.qp_type.xrc {
        /// The shared receive queue's number.
        pub remote_srqn: u32,
    }

    /// What two more opcodes need.
    #[derive(Clone, Copy)]
    pub union ibv_send_wr_op unnamed_in ibv_send_wr {
        /// Of a window's binding.
        pub bind_mw: ibv_send_wr_bind_mw,
        /// Of a segmented packet.
        pub tso: ibv_send_wr_tso,
    }

    /// Which window is bound, and to what.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_bind_mw inside ibv_send_wr.bind_mw {
        /// The window.
        pub mw: *mut ibv_mw,
        /// The key that it gets.
        pub rkey: u32,
        /// To what.
        pub bind_info: ibv_mw_bind_info,
    }

    /// How a packet is segmented.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_send_wr_tso inside ibv_send_wr.tso {
        /// The header of each segment.
        pub hdr: *mut c_void,
        /// Bytes of it.
        pub hdr_sz: u16,
        /// The most payload of a segment.
        pub mss: u16,
    }
}
