//! The functions `ibv_wr_*`, which collect requests and post them together.

use std::ops::Range;

use adverb_proto::types::{
    Destination, FlushPlacement, FlushRange, Qpn, RemoteAddress, Segment, SendFlags, SendOperation,
    SendRequest, Transport,
};
use adverb_sys::*;
use libc::{c_int, c_void, size_t};
use parking_lot::lock_api::RawMutex as _;

use crate::ah::AddressHandle;
use crate::entry::{errno_of, fail};
use crate::post::{bind_window, copy_from};
use crate::qp::QueuePair;

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub(crate) struct Batch {
    requests: Vec<Request>,
    segments: Vec<Segment>,
    inline: Vec<u8>,
    /// The error of a request that couldn't be built, or 0.
    errno: c_int,
}

struct Request {
    wr_id: u64,
    operation: SendOperation,
    flags: SendFlags,
    segments: Range<usize>,
    inline: Option<Range<usize>>,
    destination: Option<Destination<*mut ibv_ah>>,
}

/// Returns the operations that a transport has.
pub(crate) fn supported(transport: Transport) -> u64 {
    let datagrams = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagrams
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW
        | IBV_QP_EX_WITH_SEND_WITH_INV;
    match transport {
        Transport::Ud => datagrams,
        Transport::Uc => unreliable,
        Transport::Rc => {
            unreliable
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                | IBV_QP_EX_WITH_ATOMIC_WRITE
                | IBV_QP_EX_WITH_FLUSH
        }
    }
}

/// Fills in all operations.
pub(crate) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
}

/// Returns the batch of a queue pair.
///
/// # Safety
///
/// The queue pair is alive, and the calling thread started the batch.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> &'a mut Batch {
    // SAFETY: only the thread that holds `batching` uses the batch, and each operation uses it once.
    unsafe { &mut *QueuePair::of(qp.cast()).batch.get() }
}

/// Adds a request.
///
/// # Safety
///
/// The same as for [`batch`].
unsafe fn add(qp: *mut ibv_qp_ex, operation: SendOperation) {
    // SAFETY: as the caller says; the program sets these fields before it adds a request.
    let (batch, wr_id, flags) = unsafe { (batch(qp), (*qp).wr_id, (*qp).wr_flags) };
    // The setters decide whether the data is inline.
    let flags = SendFlags::from_bits_truncate(flags).difference(SendFlags::INLINE);
    let at = batch.segments.len();
    let segments = at..at;
    batch.requests.push(Request { wr_id, operation, flags, segments, inline: None, destination: None });
}

/// Sets the inline data of the last request.
///
/// # Safety
///
/// The same as for [`batch`], and the buffers are valid for reads.
unsafe fn set_inline(qp: *mut ibv_qp_ex, buffers: impl Iterator<Item = (usize, usize)>) {
    // SAFETY: as the caller says.
    let batch = unsafe { batch(qp) };
    let start = batch.inline.len();
    for (address, length) in buffers {
        // SAFETY: as the caller says.
        unsafe { copy_from(address, length, &mut batch.inline) };
    }
    let length = batch.inline.len() - start;
    let Some(request) = batch.requests.last_mut() else { return };
    request.inline = Some(start..start + length);
    request.flags |= SendFlags::INLINE;
    // The length of a request is that of its segments.
    batch.segments.push(Segment { addr: 0, length: length as u32, lkey: 0 });
    request.segments = batch.segments.len() - 1..batch.segments.len();
}

operations! {
    /// Starts a batch.
    fn wr_start(qp: *mut ibv_qp_ex) {
        // SAFETY: the queue pair is alive.
        unsafe { QueuePair::of(qp.cast()) }.batching.lock();
        // SAFETY: the lock is held now.
        let batch = unsafe { batch(qp) };
        batch.requests.clear();
        batch.segments.clear();
        batch.inline.clear();
        batch.errno = 0;
    }

    /// Posts the requests of a batch.
    fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
        // SAFETY: the queue pair is alive, and the calling thread started the batch.
        let (this, batch) = unsafe { (QueuePair::of(qp.cast()), batch(qp)) };
        let posted = if batch.errno != 0 {
            Err(batch.errno)
        } else {
            let requests = batch.requests.iter().map(|request| {
                // The NIC converts the requests under its lock.
                this.nic.counts.post();
                let destination = request.destination.map(|to| {
                    // SAFETY: the address handle is alive until the batch is posted.
                    let handle = unsafe { AddressHandle::of(to.handle) };
                    Destination { handle, qpn: to.qpn, qkey: to.qkey }
                });
                let send = SendRequest {
                    wr_id: request.wr_id,
                    tag: 0,
                    operation: request.operation,
                    flags: request.flags,
                    segments: &batch.segments[request.segments.clone()],
                    destination,
                };
                (send, request.inline.clone().map(|range| &batch.inline[range]))
            });
            let posted = this.nic.nic.post_sends(this.qpn, requests);
            posted.inspect_err(|_| this.nic.counts.reject()).map_err(|stopped| errno_of(stopped.error))
        };
        // SAFETY: the calling thread holds the lock.
        unsafe { this.batching.unlock() };
        posted.err().map_or(0, fail)
    }

    /// Discards a batch.
    fn wr_abort(qp: *mut ibv_qp_ex) {
        // SAFETY: the queue pair is alive, and the calling thread started the batch.
        unsafe { QueuePair::of(qp.cast()).batching.unlock() };
    }

    /// Adds a SEND.
    fn wr_send(qp: *mut ibv_qp_ex) {
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::Send) };
    }

    /// Adds a SEND with immediate data.
    fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) {
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::SendWithImm(u32::from_be(imm_data))) };
    }

    /// Adds a SEND that invalidates a remote key.
    fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::SendInvalidate(invalidate_rkey)) };
    }

    /// Adds an RDMA WRITE.
    fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::Write(RemoteAddress { addr: remote_addr, rkey })) };
    }

    /// Adds an RDMA WRITE with immediate data.
    fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32) {
        let remote = RemoteAddress { addr: remote_addr, rkey };
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::WriteWithImm(remote, u32::from_be(imm_data))) };
    }

    /// Adds an RDMA READ.
    fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::Read(RemoteAddress { addr: remote_addr, rkey })) };
    }

    /// Adds a compare-and-swap.
    fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
        let remote = RemoteAddress { addr: remote_addr, rkey };
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::CompareSwap { remote, compare, swap }) };
    }

    /// Adds a fetch-and-add.
    fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, value: u64) {
        let remote = RemoteAddress { addr: remote_addr, rkey };
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::FetchAdd { remote, add: value }) };
    }

    /// Adds an ATOMIC WRITE.
    fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void) {
        let remote = RemoteAddress { addr: remote_addr, rkey };
        // SAFETY: eight bytes are valid for reads, and the calling thread started the batch.
        unsafe {
            let bytes = atomic_wr.cast::<[u8; 8]>().read_unaligned();
            add(qp, SendOperation::AtomicWrite { remote, bytes });
        }
    }

    /// Adds a FLUSH.
    fn wr_flush(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: size_t, kind: u8, level: u8) {
        let placement = FlushPlacement::from_bits_truncate(kind);
        let range = FlushRange {
            remote: RemoteAddress { addr: remote_addr, rkey },
            length: u32::try_from(len).unwrap_or(u32::MAX),
            whole_region: level == IBV_FLUSH_MR,
            global: placement.contains(FlushPlacement::GLOBAL),
            persistent: placement.contains(FlushPlacement::PERSISTENT),
        };
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::Flush(range)) };
    }

    /// Adds a local invalidation.
    fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
        // SAFETY: the calling thread started the batch.
        unsafe { add(qp, SendOperation::LocalInvalidate(invalidate_rkey)) };
    }

    /// Adds a binding of a memory window.
    fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info) {
        // SAFETY: the window and its region are alive, and the calling thread started the batch.
        unsafe {
            add(qp, bind_window(rkey, &*bind_info));
            (*mw).rkey = rkey;
        }
    }

    /// Fails the batch: the software NIC has no segmentation offload for programs.
    fn wr_send_tso(qp: *mut ibv_qp_ex, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) {
        // SAFETY: the calling thread started the batch.
        unsafe { batch(qp) }.errno = libc::EOPNOTSUPP;
    }

    /// Fails the batch: the software NIC has no XRC.
    fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, _remote_srqn: u32) {
        // SAFETY: the calling thread started the batch.
        unsafe { batch(qp) }.errno = libc::EOPNOTSUPP;
    }

    /// Sets the destination of a datagram.
    fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
        // SAFETY: the calling thread started the batch.
        let batch = unsafe { batch(qp) };
        if ah.is_null() {
            batch.errno = libc::EINVAL;
        } else if let Some(request) = batch.requests.last_mut() {
            let qpn = Qpn::truncate(remote_qpn);
            request.destination = Some(Destination { handle: ah, qpn, qkey: remote_qkey });
        }
    }

    /// Sets the inline data.
    fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t) {
        // SAFETY: the data is valid for reads, and the calling thread started the batch.
        unsafe { set_inline(qp, [(addr.expose_provenance(), length)].into_iter()) };
    }

    /// Sets the inline data to that of several buffers.
    fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: size_t, buf_list: *const ibv_data_buf) {
        // SAFETY: the list and its data are valid for reads, and the calling thread started the batch.
        unsafe {
            let buffers = (0..num_buf).map(|at| *buf_list.add(at));
            set_inline(qp, buffers.map(|buffer| (buffer.addr.expose_provenance(), buffer.length)));
        }
    }

    /// Sets the segment.
    fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
        let sge = ibv_sge { addr, length, lkey };
        // SAFETY: the calling thread started the batch.
        unsafe { wr_set_sge_list(qp, 1, &raw const sge) };
    }

    /// Sets the segments.
    fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: size_t, sg_list: *const ibv_sge) {
        // SAFETY: the calling thread started the batch.
        let batch = unsafe { batch(qp) };
        let start = batch.segments.len();
        for at in 0..num_sge {
            // SAFETY: the list has as many segments.
            let ibv_sge { addr, length, lkey } = unsafe { *sg_list.add(at) };
            batch.segments.push(Segment { addr, length, lkey });
        }
        if let Some(request) = batch.requests.last_mut() {
            request.segments = start..batch.segments.len();
        }
    }
}
