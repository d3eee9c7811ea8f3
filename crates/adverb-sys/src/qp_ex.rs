//! Posting piece by piece: start, then for each request an operation and its data, then complete.

use libc::{c_int, c_uint, c_void, size_t};

use crate::{__be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_sge};

shapes! {
    /// A queue pair with the functions that post piece by piece.
    pub struct ibv_qp_ex {
        /// The queue pair.
        pub qp_base: ibv_qp,
        /// What there is.
        pub comp_mask: u64,
        /// What the next request's completion carries; set it before the operation.
        pub wr_id: u64,
        /// The next request's `IBV_SEND_*`; set them before the operation.
        pub wr_flags: c_uint,
        /// [`ibv_wr_atomic_cmp_swp`].
        pub wr_atomic_cmp_swp: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64),
        >,
        /// [`ibv_wr_atomic_fetch_add`].
        pub wr_atomic_fetch_add:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64)>,
        /// [`ibv_wr_bind_mw`].
        pub wr_bind_mw: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                mw: *mut ibv_mw,
                rkey: u32,
                bind_info: *const ibv_mw_bind_info,
            ),
        >,
        /// [`ibv_wr_local_inv`].
        pub wr_local_inv: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
        /// [`ibv_wr_rdma_read`].
        pub wr_rdma_read: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        /// [`ibv_wr_rdma_write`].
        pub wr_rdma_write: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        /// [`ibv_wr_rdma_write_imm`].
        pub wr_rdma_write_imm:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32)>,
        /// [`ibv_wr_send`].
        pub wr_send: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        /// [`ibv_wr_send_imm`].
        pub wr_send_imm: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: __be32)>,
        /// [`ibv_wr_send_inv`].
        pub wr_send_inv: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
        /// Segmented packets; not used here.
        pub wr_send_tso: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16),
        >,
        /// [`ibv_wr_set_ud_addr`].
        pub wr_set_ud_addr: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32),
        >,
        /// Extended reliable connections; not used here.
        pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, remote_srqn: u32)>,
        /// [`ibv_wr_set_inline_data`].
        pub wr_set_inline_data: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t),
        >,
        /// [`ibv_wr_set_inline_data_list`].
        pub wr_set_inline_data_list: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_buf: size_t, buf_list: *const ibv_data_buf),
        >,
        /// [`ibv_wr_set_sge`].
        pub wr_set_sge: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)>,
        /// [`ibv_wr_set_sge_list`].
        pub wr_set_sge_list:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: size_t, sg_list: *const ibv_sge)>,
        /// [`ibv_wr_start`].
        pub wr_start: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        /// [`ibv_wr_complete`].
        pub wr_complete: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int>,
        /// [`ibv_wr_abort`].
        pub wr_abort: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        /// [`ibv_wr_atomic_write`].
        pub wr_atomic_write: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void),
        >,
        /// [`ibv_wr_flush`]. An older library's struct ends before it.
        pub wr_flush: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                rkey: u32,
                remote_addr: u64,
                len: size_t,
                kind: u8,
                level: u8,
            ),
        > = since "45",
    }

    // ibv_wr_flush: how far the data has to come
    pub const u8 since "45" {
        /// To where everyone sees it.
        IBV_FLUSH_GLOBAL = 1 << 0,
        /// To where it survives.
        IBV_FLUSH_PERSISTENT = 1 << 1,
    }

    // ibv_wr_flush: which data
    pub const u8 since "45" {
        /// That of a range.
        IBV_FLUSH_RANGE = 0,
        /// That of the whole region.
        IBV_FLUSH_MR = 1,
    }
}

/// Functions that call what a provider put in an [`ibv_qp_ex`].
macro_rules! requests {
    ($($(#[$meta:meta])* fn $name:ident = $field:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        $(
            $(#[$meta])*
            #[inline]
            pub unsafe fn $name(qp: *mut ibv_qp_ex, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller says that the queue pair was made so that the provider fills this in.
                unsafe { (*qp).$field.unwrap_unchecked()(qp, $($arg),*) }
            }
        )*
    };
}

requests! {
    /// Begins a batch. Other posts to the queue pair wait.
    ///
    /// # Safety
    ///
    /// `qp` is what `ibv_qp_to_qp_ex` made of a queue pair that is alive, and this thread has begun no other
    /// batch of it.
    fn ibv_wr_start = wr_start();

    /// Posts the batch. 0 or an error number, with which nothing was posted.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch. The memory that was named stays valid until the requests are complete.
    fn ibv_wr_complete = wr_complete() -> c_int;

    /// Forgets the batch.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch.
    fn ibv_wr_abort = wr_abort();

    /// A SEND.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_SEND`](crate::IBV_QP_EX_WITH_SEND).
    fn ibv_wr_send = wr_send();

    /// A SEND with immediate data.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_SEND_WITH_IMM`](crate::IBV_QP_EX_WITH_SEND_WITH_IMM).
    fn ibv_wr_send_imm = wr_send_imm(imm_data: __be32);

    /// A SEND that invalidates a key of the peer.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_SEND_WITH_INV`](crate::IBV_QP_EX_WITH_SEND_WITH_INV).
    fn ibv_wr_send_inv = wr_send_inv(invalidate_rkey: u32);

    /// An RDMA WRITE.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_RDMA_WRITE`](crate::IBV_QP_EX_WITH_RDMA_WRITE).
    fn ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);

    /// An RDMA WRITE with immediate data.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM`](crate::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).
    fn ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);

    /// An RDMA READ.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_RDMA_READ`](crate::IBV_QP_EX_WITH_RDMA_READ).
    fn ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);

    /// A compare and swap of eight bytes.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP`](crate::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).
    fn ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);

    /// A fetch and add of eight bytes.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD`](crate::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).
    fn ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);

    /// An ATOMIC WRITE of eight bytes.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, the queue pair was made with
    /// [`IBV_QP_EX_WITH_ATOMIC_WRITE`](crate::IBV_QP_EX_WITH_ATOMIC_WRITE), and `atomic_wr` is valid for
    /// reads of eight bytes.
    fn ibv_wr_atomic_write = wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);

    /// A FLUSH: earlier writes come as far as `kind` says, one of [`IBV_FLUSH_GLOBAL`] and
    /// [`IBV_FLUSH_PERSISTENT`].
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_FLUSH`](crate::IBV_QP_EX_WITH_FLUSH), which an older library refuses.
    fn ibv_wr_flush = wr_flush(rkey: u32, remote_addr: u64, len: size_t, kind: u8, level: u8);

    /// Invalidates a key of this side.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, and the queue pair was made with
    /// [`IBV_QP_EX_WITH_LOCAL_INV`](crate::IBV_QP_EX_WITH_LOCAL_INV).
    fn ibv_wr_local_inv = wr_local_inv(invalidate_rkey: u32);

    /// Binds a memory window of type 2 under a key.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch, the queue pair was made with
    /// [`IBV_QP_EX_WITH_BIND_MW`](crate::IBV_QP_EX_WITH_BIND_MW), and `bind_info` is valid for reads, with
    /// what it names alive.
    fn ibv_wr_bind_mw = wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);

    /// To whom a datagram goes.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch and a request in it, the queue pair is for datagrams, and `ah` stays
    /// alive until the request is complete.
    fn ibv_wr_set_ud_addr = wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);

    /// The request's data, copied now.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch and a request in it, and `addr` is valid for reads of `length` bytes.
    fn ibv_wr_set_inline_data = wr_set_inline_data(addr: *mut c_void, length: size_t);

    /// The request's data in pieces, copied now.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch and a request in it, and `buf_list` is valid for reads of `num_buf`
    /// pieces, as are they.
    fn ibv_wr_set_inline_data_list =
        wr_set_inline_data_list(num_buf: size_t, buf_list: *const ibv_data_buf);

    /// The request's data: one segment.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch and a request in it. The memory stays valid until the request is
    /// complete.
    fn ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);

    /// The request's data: segments.
    ///
    /// # Safety
    ///
    /// This thread has begun a batch and a request in it, and `sg_list` is valid for reads of `num_sge`
    /// segments. Their memory stays valid until the request is complete.
    fn ibv_wr_set_sge_list = wr_set_sge_list(num_sge: size_t, sg_list: *const ibv_sge);
}
