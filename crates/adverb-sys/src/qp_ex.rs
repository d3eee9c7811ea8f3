//! The `ibv_wr_*` functions, which start a batch, set the operation and data of each request, and complete the batch.

use libc::{c_int, c_uint, c_void, size_t};

use crate::{__be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_sge};

shapes! {
    /// A queue pair with the `ibv_wr_*` functions.
    pub struct ibv_qp_ex {
        /// The basic queue pair.
        pub qp_base: ibv_qp,
        /// The mask of optional fields.
        pub comp_mask: u64,
        /// The work request ID of the next request, to be set before the operation.
        pub wr_id: u64,
        /// The `IBV_SEND_*` flags of the next request, to be set before the operation.
        pub wr_flags: c_uint,
        /// The implementation of [`ibv_wr_atomic_cmp_swp`].
        pub wr_atomic_cmp_swp: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64),
        >,
        /// The implementation of [`ibv_wr_atomic_fetch_add`].
        pub wr_atomic_fetch_add:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64)>,
        /// The implementation of [`ibv_wr_bind_mw`].
        pub wr_bind_mw: Option<
            unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                mw: *mut ibv_mw,
                rkey: u32,
                bind_info: *const ibv_mw_bind_info,
            ),
        >,
        /// The implementation of [`ibv_wr_local_inv`].
        pub wr_local_inv: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
        /// The implementation of [`ibv_wr_rdma_read`].
        pub wr_rdma_read: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        /// The implementation of [`ibv_wr_rdma_write`].
        pub wr_rdma_write: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        /// The implementation of [`ibv_wr_rdma_write_imm`].
        pub wr_rdma_write_imm:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32)>,
        /// The implementation of [`ibv_wr_send`].
        pub wr_send: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        /// The implementation of [`ibv_wr_send_imm`].
        pub wr_send_imm: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: __be32)>,
        /// The implementation of [`ibv_wr_send_inv`].
        pub wr_send_inv: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
        /// The implementation of TCP segmentation offload (TSO), which this crate does not use.
        pub wr_send_tso: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16),
        >,
        /// The implementation of [`ibv_wr_set_ud_addr`].
        pub wr_set_ud_addr: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32),
        >,
        /// The implementation of `ibv_wr_set_xrc_srqn`, which this crate does not use.
        pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, remote_srqn: u32)>,
        /// The implementation of [`ibv_wr_set_inline_data`].
        pub wr_set_inline_data: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t),
        >,
        /// The implementation of [`ibv_wr_set_inline_data_list`].
        pub wr_set_inline_data_list: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_buf: size_t, buf_list: *const ibv_data_buf),
        >,
        /// The implementation of [`ibv_wr_set_sge`].
        pub wr_set_sge: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)>,
        /// The implementation of [`ibv_wr_set_sge_list`].
        pub wr_set_sge_list:
            Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: size_t, sg_list: *const ibv_sge)>,
        /// The implementation of [`ibv_wr_start`].
        pub wr_start: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        /// The implementation of [`ibv_wr_complete`].
        pub wr_complete: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int>,
        /// The implementation of [`ibv_wr_abort`].
        pub wr_abort: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        /// The implementation of [`ibv_wr_atomic_write`].
        pub wr_atomic_write: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void),
        >,
        /// The implementation of [`ibv_wr_flush`]. The struct of an older library ends before this field.
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

    // ibv_wr_flush, the argument `kind`
    pub const u8 since "45" {
        /// A FLUSH to global visibility.
        IBV_FLUSH_GLOBAL = 1 << 0,
        /// A FLUSH to persistence.
        IBV_FLUSH_PERSISTENT = 1 << 1,
    }

    // ibv_wr_flush, the argument `level`
    pub const u8 since "45" {
        /// A FLUSH of a range.
        IBV_FLUSH_RANGE = 0,
        /// A FLUSH of the whole memory region.
        IBV_FLUSH_MR = 1,
    }
}

/// Declares functions that call the provider's functions in an [`ibv_qp_ex`].
macro_rules! requests {
    ($($(#[$meta:meta])* fn $name:ident = $field:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        $(
            $(#[$meta])*
            #[inline]
            pub unsafe fn $name(qp: *mut ibv_qp_ex, $($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller guarantees that the queue pair was created so that the provider sets this field.
                unsafe { (*qp).$field.unwrap_unchecked()(qp, $($arg),*) }
            }
        )*
    };
}

requests! {
    /// Starts a batch. Other threads that post to the queue pair wait until the batch ends.
    ///
    /// # Safety
    ///
    /// `qp` is the result of `ibv_qp_to_qp_ex` for a queue pair that is alive, and the calling thread has no other
    /// batch of that queue pair in progress.
    fn ibv_wr_start = wr_start();

    /// Posts the batch. Returns 0 or an errno value; on failure, no request is posted.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch. The memory of its segments stays valid until the requests complete.
    fn ibv_wr_complete = wr_complete() -> c_int;

    /// Discards the batch.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch.
    fn ibv_wr_abort = wr_abort();

    /// Adds a SEND.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_SEND`](crate::IBV_QP_EX_WITH_SEND).
    fn ibv_wr_send = wr_send();

    /// Adds a SEND with immediate data.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_SEND_WITH_IMM`](crate::IBV_QP_EX_WITH_SEND_WITH_IMM).
    fn ibv_wr_send_imm = wr_send_imm(imm_data: __be32);

    /// Adds a SEND that invalidates a remote key of the peer.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_SEND_WITH_INV`](crate::IBV_QP_EX_WITH_SEND_WITH_INV).
    fn ibv_wr_send_inv = wr_send_inv(invalidate_rkey: u32);

    /// Adds an RDMA WRITE.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_RDMA_WRITE`](crate::IBV_QP_EX_WITH_RDMA_WRITE).
    fn ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);

    /// Adds an RDMA WRITE with immediate data.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM`](crate::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).
    fn ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);

    /// Adds an RDMA READ.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_RDMA_READ`](crate::IBV_QP_EX_WITH_RDMA_READ).
    fn ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);

    /// Adds an 8-byte compare-and-swap.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP`](crate::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).
    fn ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);

    /// Adds an 8-byte fetch-and-add.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD`](crate::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).
    fn ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);

    /// Adds an 8-byte ATOMIC WRITE.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, the queue pair was created with
    /// [`IBV_QP_EX_WITH_ATOMIC_WRITE`](crate::IBV_QP_EX_WITH_ATOMIC_WRITE), and `atomic_wr` is valid for
    /// reads of eight bytes.
    fn ibv_wr_atomic_write = wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);

    /// Adds a FLUSH of earlier writes. `kind` is [`IBV_FLUSH_GLOBAL`] or [`IBV_FLUSH_PERSISTENT`].
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_FLUSH`](crate::IBV_QP_EX_WITH_FLUSH). An older library rejects that flag.
    fn ibv_wr_flush = wr_flush(rkey: u32, remote_addr: u64, len: size_t, kind: u8, level: u8);

    /// Adds a local invalidation of the remote key `invalidate_rkey`.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, and the queue pair was created with
    /// [`IBV_QP_EX_WITH_LOCAL_INV`](crate::IBV_QP_EX_WITH_LOCAL_INV).
    fn ibv_wr_local_inv = wr_local_inv(invalidate_rkey: u32);

    /// Adds a binding of a type 2 memory window with the remote key `rkey`.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch, the queue pair was created with
    /// [`IBV_QP_EX_WITH_BIND_MW`](crate::IBV_QP_EX_WITH_BIND_MW), `bind_info` is valid for
    /// reads, and the objects that it refers to are alive.
    fn ibv_wr_bind_mw = wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);

    /// Sets the destination of a datagram.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch and added a request to it, the queue pair's type is UD, and `ah` stays
    /// alive until the request completes.
    fn ibv_wr_set_ud_addr = wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);

    /// Sets the request's data, which is copied immediately.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch and added a request to it, and `addr` is valid for reads of `length`
    /// bytes.
    fn ibv_wr_set_inline_data = wr_set_inline_data(addr: *mut c_void, length: size_t);

    /// Sets the request's data from several buffers, which are copied immediately.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch and added a request to it, and `buf_list` is valid for reads of `num_buf`
    /// buffers, which are valid for reads.
    fn ibv_wr_set_inline_data_list =
        wr_set_inline_data_list(num_buf: size_t, buf_list: *const ibv_data_buf);

    /// Sets the request's data to one segment.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch and added a request to it. The memory stays valid until the request
    /// completes.
    fn ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);

    /// Sets the request's data to a list of segments.
    ///
    /// # Safety
    ///
    /// The calling thread has started a batch and added a request to it, and `sg_list` is valid for reads of `num_sge`
    /// segments. Their memory stays valid until the request completes.
    fn ibv_wr_set_sge_list = wr_set_sge_list(num_sge: size_t, sg_list: *const ibv_sge);
}
