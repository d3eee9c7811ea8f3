//! Posting of work requests.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use adverb_proto::types::{
    Access, Destination, Qpn, RecvRequest, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest,
    Transport, WindowBind,
};
use adverb_soft::BatchPostError;
use adverb_soft::memory::copy_out;
use adverb_sys::*;
use libc::c_int;

use crate::ah::AddressHandle;
use crate::entry::{errno_of, set_errno};
use crate::qp::QueuePair;

// `segments` casts one to the other.
const _: () = assert!(
    size_of::<Segment>() == size_of::<ibv_sge>()
        && std::mem::offset_of!(Segment, length) == std::mem::offset_of!(ibv_sge, length)
        && std::mem::offset_of!(Segment, lkey) == std::mem::offset_of!(ibv_sge, lkey)
);

/// A request with a pointer to the next.
pub(crate) trait Linked: Sized {
    fn next(&self) -> *mut Self;
}

impl Linked for ibv_send_wr {
    fn next(&self) -> *mut ibv_send_wr {
        self.next
    }
}

impl Linked for ibv_recv_wr {
    fn next(&self) -> *mut ibv_recv_wr {
        self.next
    }
}

/// Returns the requests of a list.
///
/// # Safety
///
/// The list ends with NULL, and isn't changed while the requests are used.
unsafe fn list<'a, W: Linked + 'a>(first: *mut W) -> impl Iterator<Item = &'a W> + Clone {
    // SAFETY: as the caller says.
    std::iter::successors(unsafe { first.as_ref() }, |wr| unsafe { wr.next().as_ref() })
}

thread_local! {
    /// The copies of segments at an unaligned address.
    static COPIED: UnsafeCell<Vec<Segment>> = const { UnsafeCell::new(Vec::new()) };
}

/// Returns the segments of a request.
///
/// # Safety
///
/// There are as many segments at the pointer, valid for reads. The result isn't used after the thread's next call.
#[inline]
unsafe fn segments<'a>(first: *mut ibv_sge, count: c_int) -> &'a [Segment] {
    let first: *const Segment = first.cast_const().cast();
    match usize::try_from(count) {
        // SAFETY: as the caller says; the types have the same layout, which is checked above.
        Ok(count @ 1..) if first.is_aligned() => unsafe { std::slice::from_raw_parts(first, count) },
        // SAFETY: as the caller says.
        Ok(count @ 1..) => unsafe { copy_segments(first, count) },
        _ => &[],
    }
}

/// Copies segments at an unaligned address: libiscsi has them in packed structures.
///
/// # Safety
///
/// As for [`segments`].
#[cold]
unsafe fn copy_segments<'a>(first: *const Segment, count: usize) -> &'a [Segment] {
    COPIED.with(|copied| {
        // SAFETY: the cell is the thread's own, and the last result is no longer used, as the caller says.
        let copied = unsafe { &mut *copied.get() };
        copied.clear();
        // SAFETY: the caller says that there are as many segments.
        copied.extend((0..count).map(|index| unsafe { first.add(index).read_unaligned() }));
        // SAFETY: the vector has as many elements, and is changed only by the thread's next call.
        unsafe { std::slice::from_raw_parts(copied.as_ptr(), count) }
    })
}

/// Returns the receive requests of a list.
///
/// # Safety
///
/// The list ends with NULL, and its segments are valid for reads. Each request is used before the next one is taken: see
/// [`segments`].
pub(crate) unsafe fn recv_requests<'a>(first: *mut ibv_recv_wr) -> impl Iterator<Item = RecvRequest<'a>> {
    // SAFETY: as the caller says.
    unsafe { list(first) }.map(|wr| {
        // SAFETY: as the caller says.
        let segments = unsafe { segments(wr.sg_list, wr.num_sge) };
        RecvRequest { wr_id: wr.wr_id, tag: 0, segments }
    })
}

/// Returns an errno value, and writes the address of the request that could not be posted to `bad`, as drivers do.
///
/// # Safety
///
/// The list has more requests than were posted, and `bad` is valid for writes.
#[inline]
pub(crate) unsafe fn post_result<W: Linked>(
    posted: Result<(), BatchPostError>,
    first: *mut W,
    bad: *mut *mut W,
) -> c_int {
    let Err(stopped) = posted else { return 0 };
    let mut at = first;
    // SAFETY: as the caller says.
    unsafe {
        for _ in 0..stopped.posted_count {
            at = (*at).next();
        }
        bad.write(at);
    }
    let errno = errno_of(stopped.error);
    set_errno(errno);
    errno
}

/// Appends bytes of the program's memory, which other threads may write at the same time.
///
/// # Safety
///
/// The bytes are valid for reads.
pub(crate) unsafe fn copy_from(address: usize, length: usize, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + length, 0);
    if let Some(from) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
        // SAFETY: as the caller says.
        unsafe { copy_out(from, &mut bytes[start..]) };
    }
}

/// Returns the operation of a request, or `None` if the software NIC doesn't have it.
///
/// # Safety
///
/// The objects that the request names are alive.
#[inline]
unsafe fn operation(wr: &ibv_send_wr) -> Option<SendOperation> {
    // SAFETY: these members of the unions are made of integers.
    let (rdma, immediate) = unsafe { (wr.wr.rdma, u32::from_be(wr.imm.imm_data)) };
    let remote = RemoteAddress { addr: rdma.remote_addr, rkey: rdma.rkey };
    Some(match wr.opcode {
        IBV_WR_SEND => SendOperation::Send,
        IBV_WR_SEND_WITH_IMM => SendOperation::SendWithImm(immediate),
        IBV_WR_RDMA_WRITE => SendOperation::Write(remote),
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOperation::WriteWithImm(remote, immediate),
        IBV_WR_RDMA_READ => SendOperation::Read(remote),
        // SAFETY: as the caller says.
        _ => return unsafe { rare_operation(wr) },
    })
}

/// Returns the operation of a request that is posted less often.
///
/// # Safety
///
/// The objects that the request names are alive.
#[cold]
unsafe fn rare_operation(wr: &ibv_send_wr) -> Option<SendOperation> {
    // SAFETY: these members of the unions are made of integers, and the opcode determines the valid ones.
    let (rkey, atomic) = unsafe { (wr.imm.invalidate_rkey, wr.wr.atomic) };
    let remote = RemoteAddress { addr: atomic.remote_addr, rkey: atomic.rkey };
    Some(match wr.opcode {
        IBV_WR_SEND_WITH_INV => SendOperation::SendInvalidate(rkey),
        IBV_WR_LOCAL_INV => SendOperation::LocalInvalidate(rkey),
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOperation::FetchAdd { remote, add: atomic.compare_add },
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            SendOperation::CompareSwap { remote, compare: atomic.compare_add, swap: atomic.swap }
        }
        IBV_WR_BIND_MW => {
            // SAFETY: such a request has this member, and its window and region are alive.
            unsafe {
                let bind = wr.op.bind_mw;
                let operation = bind_window(bind.rkey, &bind.bind_info);
                // As drivers do, so that the window's owner can send its peer the key.
                (*bind.mw).rkey = bind.rkey;
                operation
            }
        }
        _ => return None,
    })
}

/// Returns the operation that binds a window. A region that is NULL unbinds it.
///
/// # Safety
///
/// The region is NULL or alive.
pub(crate) unsafe fn bind_window(rkey: u32, info: &ibv_mw_bind_info) -> SendOperation {
    // SAFETY: as the caller says.
    let lkey = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    SendOperation::BindWindow(WindowBind {
        rkey,
        lkey,
        addr: info.addr,
        length: info.length,
        // Local access is the region's.
        access: Access::from_bits_truncate(info.mw_access_flags) & (Access::REMOTE | Access::ZERO_BASED),
    })
}

impl QueuePair {
    /// Posts send requests.
    ///
    /// # Safety
    ///
    /// The list ends with NULL, its segments and objects are alive, and `bad` is valid for writes.
    unsafe fn post_sends(&self, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
        let (mut posted_count, mut is_unsupported) = (0, false);
        // SAFETY: as the caller says.
        let requests = unsafe { list(first) }.map_while(|wr| {
            // SAFETY: as the caller says; the NIC posts each request before it takes the next one.
            let request = unsafe { self.request(wr) };
            if request.is_some() {
                // The NIC converts the requests under its lock.
                self.nic.counts.post();
                posted_count += 1;
            }
            is_unsupported = request.is_none();
            request
        });
        // SAFETY: as the caller says; the segments of inline requests are memory of the program.
        let mut posted = unsafe { self.nic.nic.post_sends_and_copy(self.qpn, requests) };
        if is_unsupported && posted.is_ok() {
            let error = adverb_soft::Error::Post(adverb_proto::PostError::Unsupported);
            posted = Err(BatchPostError { posted_count, error });
        }
        if posted.is_err() {
            self.nic.counts.reject();
        }
        // SAFETY: as the caller says.
        unsafe { post_result(posted, first, bad) }
    }

    /// Converts a request, or returns `None` if the software NIC doesn't have its operation.
    ///
    /// # Safety
    ///
    /// Its segments are valid for reads, and its address handle is alive. The result is used before the next request is
    /// converted: see [`segments`].
    #[inline]
    unsafe fn request<'a>(&self, wr: &'a ibv_send_wr) -> Option<SendRequest<'a, &'a AddressHandle>> {
        // SAFETY: as the caller says.
        let (segments, operation) = unsafe { (segments(wr.sg_list, wr.num_sge), operation(wr)?) };
        let destination = if self.transport == Transport::Ud {
            // SAFETY: datagrams have this member.
            let ud = unsafe { wr.wr.ud };
            if ud.ah.is_null() {
                return None;
            }
            // SAFETY: the address handle is alive.
            let handle = unsafe { AddressHandle::of(ud.ah) };
            Some(Destination { handle, qpn: Qpn::truncate(ud.remote_qpn), qkey: ud.remote_qkey })
        } else {
            None
        };
        let flags = SendFlags::from_bits_truncate(wr.send_flags);
        Some(SendRequest { wr_id: wr.wr_id, tag: 0, operation, flags, segments, destination })
    }
}

posting! {
    /// Posts send requests.
    fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr) {
        // SAFETY: the queue pair is alive, and the list is as the manual page requires.
        unsafe { QueuePair::of(qp).post_sends(wr, bad_wr) }
    }

    /// Posts receive requests.
    fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr) {
        // SAFETY: the queue pair is alive, and the list is as the manual page requires. The NIC posts each request before it
        // takes the next one.
        unsafe {
            let this = QueuePair::of(qp);
            post_result(this.nic.nic.post_recvs(this.qpn, recv_requests(wr)), wr, bad_wr)
        }
    }
}
