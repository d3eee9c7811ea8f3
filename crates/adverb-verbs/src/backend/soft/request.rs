//! Work requests in rdma-core's format, which the request lists use for every engine.

use std::ptr::NonNull;

use adverb_proto::PostError;
use adverb_proto::types::{
    Access, Destination, Qpn, RecvRequest, Segment, SendFlags, SendOperation, SendRequest, Transport,
    WindowBind,
};
use adverb_soft::memory::copy_out;
use adverb_soft::{BatchPostError, Error, Nic};
use adverb_sys::{self as sys, ibv_recv_wr, ibv_send_wr, ibv_sge};
use parking_lot::Mutex;

use super::AddressHandle;
use crate::backend::request_list::{operation_of, tag_of};

/// Posts a list of send requests, as a driver does. `inline_data` is scratch memory for inline data.
///
/// # Safety
///
/// The list is that of a `Chain` and ends with a null pointer. Its segments are readable, and so is the memory of the
/// segments of inline requests. The address handles of datagrams belong to this engine, and exist.
pub(super) unsafe fn post_sends(
    nic: &Nic,
    qpn: Qpn,
    transport: Transport,
    inline_data: &Mutex<Vec<u8>>,
    first: *mut ibv_send_wr,
    bad: &mut *mut ibv_send_wr,
) -> libc::c_int {
    // SAFETY: the caller guarantees that the list is valid.
    let requests = unsafe { chain(first, |request: &ibv_send_wr| request.next) };
    let decoded = requests.clone().map(|(request, tag)| {
        // SAFETY: the caller guarantees that the segments and the address handles are valid.
        unsafe { decode(request, tag, transport) }
    });
    let posted = if requests.clone().any(|(request, _)| is_inline(request)) {
        let mut bytes = inline_data.lock();
        bytes.clear();
        for (request, _) in requests.filter(|(request, _)| is_inline(request)) {
            // SAFETY: the caller guarantees that the memory of inline requests is readable.
            unsafe { copy_inline_data(request, &mut bytes) };
        }
        let mut rest = bytes.as_slice();
        nic.post_sends(
            qpn,
            decoded.map(|request| {
                let inline = request.flags.contains(SendFlags::INLINE).then(|| {
                    let length: usize = request.segments.iter().map(|segment| segment.length as usize).sum();
                    let (bytes, remaining) = rest.split_at(length.min(rest.len()));
                    rest = remaining;
                    bytes
                });
                (request, inline)
            }),
        )
    } else {
        nic.post_sends(qpn, decoded.map(|request| (request, None)))
    };
    report_result(posted, first, bad)
}

/// Returns the receive requests of a list.
///
/// # Safety
///
/// The list is that of a `Chain` and ends with a null pointer, and its segments are readable.
pub(super) unsafe fn recv_requests<'a>(first: *mut ibv_recv_wr) -> impl Iterator<Item = RecvRequest<'a>> {
    // SAFETY: the caller guarantees that the list is valid.
    let requests = unsafe { chain(first, |request: &ibv_recv_wr| request.next) };
    requests.map(|(request, tag): (&'a ibv_recv_wr, u64)| {
        // SAFETY: the caller guarantees that the segments are readable.
        let segments = unsafe { segments(request.sg_list, request.num_sge) };
        RecvRequest { wr_id: request.wr_id, tag, segments }
    })
}

/// Converts the result of posting to that of a driver: an error number, and the rejected request.
pub(super) fn report_result<W: Linked>(
    posted: Result<(), BatchPostError>,
    first: *mut W,
    bad: &mut *mut W,
) -> libc::c_int {
    let Err(failure) = posted else { return 0 };
    let mut at = first;
    for _ in 0..failure.posted_count {
        // SAFETY: this many requests of the list were posted, and at least one more follows.
        at = unsafe { (*at).next() };
    }
    *bad = at;
    match failure.error {
        Error::Post(PostError::QueueFull) => libc::ENOMEM,
        Error::NicFailed => libc::EIO,
        _ => libc::EINVAL,
    }
}

/// A request with a pointer to the next one.
pub(super) trait Linked {
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

/// Returns the requests of a list, and the application's tags.
///
/// # Safety
///
/// The list is that of a `Chain`, ends with a null pointer, and isn't changed while the iterator is used.
unsafe fn chain<'a, W: 'a>(
    first: *mut W,
    next: impl Fn(&W) -> *mut W + Clone,
) -> impl Iterator<Item = (&'a W, u64)> + Clone {
    let existing = |pointer: *mut W| (!pointer.is_null()).then_some(pointer);
    // SAFETY: the caller guarantees that the list is valid.
    let pointers = std::iter::successors(existing(first), move |this| existing(next(unsafe { &**this })));
    // SAFETY: the caller guarantees that the list is valid, and the pointers belong to it.
    pointers.map(|pointer| unsafe { (&*pointer, tag_of(pointer)) })
}

/// Returns the segments of a request.
///
/// # Safety
///
/// `first` points to `count` readable segments.
unsafe fn segments<'a>(first: *mut ibv_sge, count: libc::c_int) -> &'a [Segment] {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees that the segments are readable. Both types have the same layout, as the list
    // asserts.
    unsafe { std::slice::from_raw_parts(first.cast(), count) }
}

fn is_inline(request: &ibv_send_wr) -> bool {
    request.send_flags & SendFlags::INLINE.bits() != 0
}

/// Copies the data of an inline request.
///
/// # Safety
///
/// The segments of the request, and their memory, are readable.
unsafe fn copy_inline_data(request: &ibv_send_wr, bytes: &mut Vec<u8>) {
    // SAFETY: the caller guarantees that the segments are readable.
    for segment in unsafe { segments(request.sg_list, request.num_sge) } {
        let start = bytes.len();
        bytes.resize(start + segment.length as usize, 0);
        let address = usize::try_from(segment.addr).unwrap_or(0);
        // The keys are ignored: any memory of the process is valid, as on other devices.
        if let Some(from) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
            // SAFETY: the caller guarantees that the memory is readable.
            unsafe { copy_out(from, &mut bytes[start..]) };
        }
    }
}

/// Decodes a request to the plain form.
///
/// # Safety
///
/// The segments of the request are readable, and the address handle of a datagram belongs to this engine, and exists.
#[inline(always)]
unsafe fn decode<'a>(
    wr: &'a ibv_send_wr,
    tag: u64,
    transport: Transport,
) -> SendRequest<'a, &'a AddressHandle> {
    // SAFETY: the caller guarantees that the segments are readable.
    let segments = unsafe { segments(wr.sg_list, wr.num_sge) };
    let operation = match wr.opcode {
        sys::IBV_WR_BIND_MW => bind_of(wr),
        _ => operation_of(wr),
    };
    let destination = (transport == Transport::Ud).then(|| {
        // SAFETY: datagrams have this member.
        let ud = unsafe { wr.wr.ud };
        // SAFETY: the caller guarantees that the handle belongs to this engine, and exists.
        let handle = unsafe { &*ud.ah.cast::<AddressHandle>() };
        Destination { handle, qpn: Qpn::truncate(ud.remote_qpn), qkey: ud.remote_qkey }
    });
    let flags = SendFlags::from_bits_retain(wr.send_flags);
    SendRequest { wr_id: wr.wr_id, tag, operation, flags, segments, destination }
}

/// Returns the operation of a request that binds a window.
#[cold]
fn bind_of(wr: &ibv_send_wr) -> SendOperation {
    // SAFETY: binds have this member, which consists of integers and of pointers that aren't followed.
    let bind = unsafe { wr.op.bind_mw };
    SendOperation::BindWindow(WindowBind {
        rkey: bind.rkey,
        lkey: bind.mw.addr() as u32,
        addr: bind.bind_info.addr,
        length: bind.bind_info.length,
        access: Access::from_bits_retain(bind.bind_info.mw_access_flags),
    })
}

/// Encodes a bind of a window to a region. The field that holds rdma-core's window holds the key of the region.
pub(crate) fn encode_bind(bind: &WindowBind) -> sys::ibv_send_wr_bind_mw {
    sys::ibv_send_wr_bind_mw {
        mw: std::ptr::without_provenance_mut(bind.lkey as usize),
        rkey: bind.rkey,
        bind_info: sys::ibv_mw_bind_info {
            mr: std::ptr::null_mut(),
            addr: bind.addr,
            length: bind.length,
            mw_access_flags: bind.access.bits(),
        },
    }
}
