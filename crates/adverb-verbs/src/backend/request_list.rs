//! Work requests in the format of libibverbs, here called the library. They are built in place, in reusable memory.

use std::io;
use std::ptr::NonNull;

use adverb_proto::types::{
    Access, Destination, FlushPlacement, FlushRange, RecvRequest, RemoteAddress, Segment, SendFlags,
    SendOperation, SendRequest, WindowBind,
};
use adverb_sys::{self as sys, ibv_recv_wr, ibv_send_wr, ibv_sge};

use crate::backend::{AddressHandle, PostFailure};

/// Requests for a send queue.
pub(crate) type SendList = RequestList<ibv_send_wr>;

/// Requests for a receive queue.
pub(crate) type RecvList = RequestList<ibv_recv_wr>;

/// Requests that are posted together, with one doorbell.
///
/// Each request is linked to the next when the memory is allocated, so that building a request writes only the fields
/// that its operation has. Fields that an operation doesn't have, but that devices read, are 0
/// (librxe rejects a bind with immediate data).
pub(crate) struct RequestList<W: WorkRequest> {
    /// The slots, of which there are `capacity`. They are accessed only through this pointer, because they point to
    /// each other.
    slots: NonNull<Slot<W>>,
    capacity: usize,
    len: usize,
    /// The requests with several segments, and the index of their first segment in `segments`.
    multi_segment: Vec<(usize, usize)>,
    segments: Vec<Segment>,
}

/// A slot for one send request of at most one segment, which is the most common request.
pub(crate) struct SendSlot(NonNull<Slot<ibv_send_wr>>);

/// Requests in the format that the library requires: linked, ended by a null pointer, with readable segments. The
/// poster keeps the memory of the segments until the requests have completed, and also the address handles of
/// datagrams, which belong to the queue pair's domain. The code that fills a list guarantees this.
pub(crate) struct Chain<'a, W> {
    pub(super) first: *mut W,
    /// The pointer to which the library writes the first request that it rejected.
    pub(super) bad: &'a mut *mut W,
}

/// A request, the segment that most requests have, and the application's tag.
#[repr(C)]
struct Slot<W> {
    request: W,
    segment: Segment,
    tag: u64,
}

/// Returns the application's tag of a request.
///
/// # Safety
///
/// The request is part of a [`Chain`], and `request` was not derived from a reference to the request alone.
#[cfg(feature = "soft")]
#[inline(always)]
pub(super) unsafe fn tag_of<W>(request: *const W) -> u64 {
    // SAFETY: the requests of a chain are the first fields of slots, which have C's layout.
    unsafe { (*request.cast::<Slot<W>>()).tag }
}

// SAFETY: the pointers in a list point to the list itself, and are followed only while it is posted.
unsafe impl<W: WorkRequest> Send for RequestList<W> {}
// SAFETY: as above. Nothing is changed through a shared list.
unsafe impl<W: WorkRequest> Sync for RequestList<W> {}

impl<W: WorkRequest> RequestList<W> {
    /// Removes all requests.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        if !self.multi_segment.is_empty() {
            self.reset_segments();
        }
    }

    /// Adds a request, which the caller must [set](RequestList::set).
    #[inline(always)]
    fn push(&mut self) -> usize {
        if self.len == self.capacity {
            self.grow();
        }
        self.len += 1;
        self.len - 1
    }

    /// Sets the id, tag and segments of a request. Its other fields keep the values of an earlier request.
    #[inline(always)]
    fn set(&mut self, index: usize, wr_id: u64, tag: u64, segments: &[Segment]) -> &mut W {
        if segments.len() > 1 {
            self.store_segments(index, segments);
        }
        self.slot(index).set(wr_id, tag, segments)
    }

    /// Returns the number of requests.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn slot(&mut self, index: usize) -> &mut Slot<W> {
        debug_assert!(index < self.capacity);
        // SAFETY: all indices are from `push`, which allocates the slot, or are below `len`. The list is borrowed
        // exclusively.
        unsafe { self.slots.add(index).as_mut() }
    }

    /// Returns the request at `index`, its segments and its tag.
    fn parts(&self, index: usize) -> (&W, &[Segment], u64) {
        assert!(index < self.len, "a request of the list");
        // SAFETY: the slot exists, and the list is borrowed.
        let slot = unsafe { self.slots.add(index).as_ref() };
        let segments = match slot.request.segment_count() {
            0 => &[],
            1 => std::slice::from_ref(&slot.segment),
            count => {
                let multi_segment = self.multi_segment.iter().find(|(at, _)| *at == index);
                multi_segment.map_or(&[][..], |(_, start)| &self.segments[*start..*start + count])
            }
        };
        (&slot.request, segments, slot.tag)
    }

    /// Posts the list with a verb of the library.
    #[inline(always)]
    pub(super) fn post(&mut self, verb: impl FnOnce(Chain<'_, W>) -> libc::c_int) -> Result<(), PostFailure> {
        let Some(last) = self.len.checked_sub(1) else { return Ok(()) };
        if !self.multi_segment.is_empty() {
            self.point_to_segments();
        }
        self.slot(last).request.set_next(std::ptr::null_mut());
        let (first, mut bad) = (self.slots.as_ptr().cast(), std::ptr::null_mut());
        let code = verb(Chain { first, bad: &mut bad });
        self.link(last);
        if code == 0 { Ok(()) } else { Err(post_failure::<W>(code, first, bad)) }
    }

    /// Points a slot's request to the next slot.
    #[inline(always)]
    fn link(&mut self, index: usize) {
        if index + 1 < self.capacity {
            // SAFETY: another slot follows this one.
            let next = unsafe { self.slots.add(index + 1) };
            self.slot(index).request.set_next(next.as_ptr().cast());
        }
    }

    /// Doubles the capacity.
    #[cold]
    fn grow(&mut self) {
        let capacity = (self.capacity * 2).max(16);
        let mut slots = Vec::with_capacity(capacity);
        // SAFETY: the first `len` slots exist, and the list is borrowed.
        slots.extend_from_slice(unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), self.len) });
        slots.resize(capacity, Slot::EMPTY);
        let slots = NonNull::from(Box::leak(slots.into_boxed_slice())).cast();
        self.free();
        (self.slots, self.capacity) = (slots, capacity);
        for index in 0..capacity {
            self.slot(index).request.set_next(std::ptr::null_mut());
            self.link(index);
            self.point_to_own_segment(index);
        }
    }

    /// Stores the segments of a request that has several.
    #[cold]
    fn store_segments(&mut self, index: usize, segments: &[Segment]) {
        self.multi_segment.push((index, self.segments.len()));
        self.segments.extend_from_slice(segments);
    }

    /// Points requests with several segments to their segments, which no longer move.
    #[cold]
    fn point_to_segments(&mut self) {
        for at in 0..self.multi_segment.len() {
            let (index, start) = self.multi_segment[at];
            let segments = self.segments[start..].as_mut_ptr();
            self.slot(index).request.set_segments(segments.cast());
        }
    }

    /// Points all requests to their own segments again.
    #[cold]
    fn reset_segments(&mut self) {
        while let Some((index, _)) = self.multi_segment.pop() {
            self.point_to_own_segment(index);
        }
        self.segments.clear();
    }

    fn point_to_own_segment(&mut self, index: usize) {
        debug_assert!(index < self.capacity);
        let slot = self.slots.as_ptr();
        // SAFETY: the slot exists.
        let segment = unsafe { &raw mut (*slot.add(index)).segment };
        self.slot(index).request.set_segments(segment.cast());
    }

    fn free(&mut self) {
        if self.capacity > 0 {
            let slots = std::ptr::slice_from_raw_parts_mut(self.slots.as_ptr(), self.capacity);
            // SAFETY: `grow` created a box of exactly this many slots, which is freed once: the callers don't use the
            // pointer afterwards.
            drop(unsafe { Box::from_raw(slots) });
        }
    }
}

impl<W: WorkRequest> Default for RequestList<W> {
    fn default() -> RequestList<W> {
        RequestList {
            slots: NonNull::dangling(),
            capacity: 0,
            len: 0,
            multi_segment: Vec::new(),
            segments: Vec::new(),
        }
    }
}

impl<W: WorkRequest> Drop for RequestList<W> {
    fn drop(&mut self) {
        self.free();
    }
}

impl<W: WorkRequest> Slot<W> {
    const EMPTY: Slot<W> =
        Slot { request: W::EMPTY, segment: Segment { addr: 0, length: 0, lkey: 0 }, tag: 0 };

    /// Sets the fields that all requests have. Of several segments, it sets only their number.
    #[inline(always)]
    fn set(&mut self, wr_id: u64, tag: u64, segments: &[Segment]) -> &mut W {
        if let [segment] = segments {
            self.segment = *segment;
        }
        self.tag = tag;
        self.request.set_id(wr_id);
        self.request.set_segment_count(segments.len());
        &mut self.request
    }
}

impl<W: WorkRequest> Clone for Slot<W> {
    fn clone(&self) -> Slot<W> {
        Slot { request: self.request, segment: self.segment, tag: self.tag }
    }
}

impl SendSlot {
    /// Puts a request into the slot.
    #[inline(always)]
    pub(crate) fn put(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        assert!(request.segments.len() <= 1, "a slot has one segment");
        encode(self.slot().set(request.wr_id, request.tag, request.segments), request);
    }

    /// Returns the operation and the flags of the request, which must not bind a window.
    pub(crate) fn decode(&mut self) -> (SendOperation, SendFlags) {
        decode(&self.slot().request)
    }

    /// Posts the request with a verb of the library.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        verb: impl FnOnce(Chain<'_, ibv_send_wr>) -> libc::c_int,
    ) -> Result<(), PostFailure> {
        let (first, mut bad) = (self.0.as_ptr().cast(), std::ptr::null_mut());
        let code = verb(Chain { first, bad: &mut bad });
        if code == 0 { Ok(()) } else { Err(post_failure(code, first, bad)) }
    }

    #[inline(always)]
    fn slot(&mut self) -> &mut Slot<ibv_send_wr> {
        // SAFETY: this value owns the slot, and is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }
}

// SAFETY: as for `RequestList`.
unsafe impl Send for SendSlot {}
// SAFETY: as for `RequestList`.
unsafe impl Sync for SendSlot {}

impl Default for SendSlot {
    fn default() -> SendSlot {
        let slot = NonNull::from(Box::leak(Box::new(Slot::EMPTY)));
        // SAFETY: the slot was just created.
        let segment = unsafe { &raw mut (*slot.as_ptr()).segment };
        let mut single = SendSlot(slot);
        single.slot().request.set_segments(segment.cast());
        single
    }
}

impl Drop for SendSlot {
    fn drop(&mut self) {
        // SAFETY: the slot was created from a box, and is freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl SendList {
    /// Adds a request.
    #[inline(always)]
    pub(crate) fn add(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        let index = self.push();
        encode(self.set(index, request.wr_id, request.tag, request.segments), request);
    }

    /// Adds an empty slot, for a request that is [put](SendList::put) there later.
    pub(crate) fn add_slot(&mut self) {
        self.push();
    }

    /// Puts a request into its slot.
    pub(crate) fn put(&mut self, index: usize, request: &SendRequest<'_, &AddressHandle>) {
        assert!(index < self.len, "a request of the list");
        encode(self.set(index, request.wr_id, request.tag, request.segments), request);
    }

    /// Sets the id and the flags of a request.
    #[inline(always)]
    pub(crate) fn finish(&mut self, index: usize, wr_id: u64, flags: impl FnOnce(SendFlags) -> SendFlags) {
        assert!(index < self.len, "a request of the list");
        let request = &mut self.slot(index).request;
        request.wr_id = wr_id;
        request.send_flags = flags(SendFlags::from_bits_retain(request.send_flags)).bits();
    }

    /// Returns the operation and the flags of a request, which must not bind a window.
    pub(crate) fn decode(&mut self, index: usize) -> (SendOperation, SendFlags) {
        assert!(index < self.len, "a request of the list");
        decode(&self.slot(index).request)
    }

    /// Returns a request as it was posted, without its destination.
    pub(crate) fn posted_request(&self, index: usize) -> SendRequest<'_, ()> {
        let (wr, segments, tag) = self.parts(index);
        let operation = match wr.opcode {
            sys::IBV_WR_BIND_MW => {
                // SAFETY: binds have this member, and its pointers aren't followed.
                let bind = unsafe { wr.op.bind_mw };
                SendOperation::BindWindow(WindowBind {
                    rkey: bind.rkey,
                    // Only the region has the key, and may be dropped by now, because the request may have completed.
                    lkey: 0,
                    addr: bind.bind_info.addr,
                    length: bind.bind_info.length,
                    access: Access::from_bits_retain(bind.bind_info.mw_access_flags),
                })
            }
            _ => operation_of(wr),
        };
        let flags = SendFlags::from_bits_retain(wr.send_flags);
        SendRequest { wr_id: wr.wr_id, tag, operation, flags, segments, destination: None }
    }

    /// Sets the window that a request binds, and its memory.
    pub(super) fn set_bind(&mut self, index: usize, bind: sys::ibv_send_wr_bind_mw) {
        assert!(index < self.len, "a request of the list");
        self.slot(index).request.op.bind_mw = bind;
    }
}

/// Sets the fields that only send requests have.
#[inline(always)]
fn encode(wr: &mut ibv_send_wr, request: &SendRequest<'_, &AddressHandle>) {
    wr.send_flags = request.flags.bits();
    if let Some(Destination { handle, qpn, qkey }) = &request.destination {
        let ah = match handle {
            #[cfg(feature = "ibv")]
            AddressHandle::Ibv(handle) => handle.handle.as_ptr(),
            // The software NIC uses the field as a pointer to its own handle.
            #[cfg(feature = "soft")]
            AddressHandle::Soft(handle) => std::ptr::from_ref(handle).cast_mut().cast(),
        };
        wr.wr.ud = sys::ibv_send_wr_ud { ah, remote_qpn: qpn.get(), remote_qkey: *qkey };
    }
    wr.imm.imm_data = 0;
    match request.operation {
        SendOperation::Send => wr.opcode = sys::IBV_WR_SEND,
        SendOperation::SendWithImm(immediate) => {
            wr.opcode = sys::IBV_WR_SEND_WITH_IMM;
            wr.imm.imm_data = immediate.to_be();
        }
        SendOperation::SendInvalidate(rkey) => {
            wr.opcode = sys::IBV_WR_SEND_WITH_INV;
            wr.imm.invalidate_rkey = rkey;
        }
        SendOperation::Write(remote) => {
            wr.opcode = sys::IBV_WR_RDMA_WRITE;
            wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey };
        }
        SendOperation::WriteWithImm(remote, immediate) => {
            wr.opcode = sys::IBV_WR_RDMA_WRITE_WITH_IMM;
            wr.imm.imm_data = immediate.to_be();
            wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey };
        }
        SendOperation::Read(remote) => {
            wr.opcode = sys::IBV_WR_RDMA_READ;
            wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey };
        }
        SendOperation::CompareSwap { remote, compare, swap } => {
            wr.opcode = sys::IBV_WR_ATOMIC_CMP_AND_SWP;
            wr.wr.atomic = sys::ibv_send_wr_atomic {
                remote_addr: remote.addr,
                compare_add: compare,
                swap,
                rkey: remote.rkey,
            };
        }
        SendOperation::FetchAdd { remote, add } => {
            wr.opcode = sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr.wr.atomic = sys::ibv_send_wr_atomic {
                remote_addr: remote.addr,
                compare_add: add,
                swap: 0,
                rkey: remote.rkey,
            };
        }
        SendOperation::LocalInvalidate(rkey) => {
            wr.opcode = sys::IBV_WR_LOCAL_INV;
            wr.imm.invalidate_rkey = rkey;
        }
        // The other fields are set with the window.
        SendOperation::BindWindow(_) => wr.opcode = sys::IBV_WR_BIND_MW,
        _ => encode_extended(wr, &request.operation),
    }
}

/// Sets an operation that `ibv_send_wr` has no fields for: its parameters are in the fields of atomics, and the
/// request must not be passed to `ibv_post_send`.
#[cold]
#[inline(never)]
fn encode_extended(wr: &mut ibv_send_wr, operation: &SendOperation) {
    let (opcode, remote, compare_add, swap) = match *operation {
        SendOperation::AtomicWrite { remote, bytes } => {
            (sys::IBV_WR_ATOMIC_WRITE, remote, u64::from_ne_bytes(bytes), 0)
        }
        SendOperation::Flush(range) => {
            let whole_region = if range.whole_region { WHOLE_REGION } else { 0 };
            let kind = u64::from(range.placement().bits()) | whole_region;
            (sys::IBV_WR_FLUSH, range.remote, range.length.into(), kind)
        }
        _ => unreachable!("every other operation has fields in `ibv_send_wr`"),
    };
    wr.opcode = opcode;
    wr.wr.atomic = sys::ibv_send_wr_atomic { remote_addr: remote.addr, compare_add, swap, rkey: remote.rkey };
}

/// The bit of a FLUSH of the whole region in an encoded request, next to the bits of the placement type.
const WHOLE_REGION: u64 = 1 << 8;

impl RecvList {
    /// Adds a request.
    #[inline(always)]
    pub(crate) fn add(&mut self, request: &RecvRequest<'_>) {
        let index = self.push();
        self.set(index, request.wr_id, request.tag, request.segments);
    }

    /// Returns a request as it was posted.
    pub(crate) fn posted_request(&self, index: usize) -> RecvRequest<'_> {
        let (wr, segments, tag) = self.parts(index);
        RecvRequest { wr_id: wr.wr_id, tag, segments }
    }
}

/// Returns the operation and the flags of a request that doesn't bind a window.
#[cold]
fn decode(wr: &ibv_send_wr) -> (SendOperation, SendFlags) {
    (operation_of(wr), SendFlags::from_bits_retain(wr.send_flags))
}

/// Returns the operation of a request that doesn't bind a window.
#[inline(always)]
pub(super) fn operation_of(wr: &ibv_send_wr) -> SendOperation {
    // SAFETY: these members of the unions consist of integers.
    let (rdma, immediate) = unsafe { (wr.wr.rdma, u32::from_be(wr.imm.imm_data)) };
    let remote = RemoteAddress { addr: rdma.remote_addr, rkey: rdma.rkey };
    match wr.opcode {
        sys::IBV_WR_SEND => SendOperation::Send,
        sys::IBV_WR_SEND_WITH_IMM => SendOperation::SendWithImm(immediate),
        sys::IBV_WR_RDMA_WRITE => SendOperation::Write(remote),
        sys::IBV_WR_RDMA_WRITE_WITH_IMM => SendOperation::WriteWithImm(remote, immediate),
        sys::IBV_WR_RDMA_READ => SendOperation::Read(remote),
        _ => rare_operation_of(wr),
    }
}

/// Returns the operation of a request that is posted less often. This is a separate function, because the software NIC
/// reads each request with [`operation_of`].
#[cold]
#[inline(never)]
fn rare_operation_of(wr: &ibv_send_wr) -> SendOperation {
    // SAFETY: this member of the union consists of integers.
    let rkey = unsafe { wr.imm.invalidate_rkey };
    match wr.opcode {
        sys::IBV_WR_SEND_WITH_INV => return SendOperation::SendInvalidate(rkey),
        sys::IBV_WR_LOCAL_INV => return SendOperation::LocalInvalidate(rkey),
        sys::IBV_WR_ATOMIC_CMP_AND_SWP
        | sys::IBV_WR_ATOMIC_FETCH_AND_ADD
        | sys::IBV_WR_ATOMIC_WRITE
        | sys::IBV_WR_FLUSH => {}
        _ => return SendOperation::Send,
    }
    // SAFETY: these requests have this member.
    let sys::ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey } = unsafe { wr.wr.atomic };
    let remote = RemoteAddress { addr: remote_addr, rkey };
    match wr.opcode {
        sys::IBV_WR_ATOMIC_FETCH_AND_ADD => SendOperation::FetchAdd { remote, add: compare_add },
        sys::IBV_WR_ATOMIC_CMP_AND_SWP => SendOperation::CompareSwap { remote, compare: compare_add, swap },
        sys::IBV_WR_ATOMIC_WRITE => SendOperation::AtomicWrite { remote, bytes: compare_add.to_ne_bytes() },
        _ => {
            let placement = FlushPlacement::from_bits_truncate(swap as u8);
            SendOperation::Flush(FlushRange {
                remote,
                length: compare_add as u32,
                whole_region: swap & WHOLE_REGION != 0,
                global: placement.contains(FlushPlacement::GLOBAL),
                persistent: placement.contains(FlushPlacement::PERSISTENT),
            })
        }
    }
}

/// The common fields of requests for send queues and receive queues.
pub(crate) trait WorkRequest: Copy {
    const EMPTY: Self;
    fn set_id(&mut self, wr_id: u64);
    fn set_next(&mut self, next: *mut Self);
    fn set_segments(&mut self, segments: *mut ibv_sge);
    fn set_segment_count(&mut self, count: usize);
    fn segment_count(&self) -> usize;
}

/// Implements [`WorkRequest`]: both kinds of requests have these fields.
macro_rules! work_request {
    ($name:ident) => {
        impl WorkRequest for $name {
            const EMPTY: $name = $name::zeroed();

            #[inline(always)]
            fn set_id(&mut self, wr_id: u64) {
                self.wr_id = wr_id;
            }

            #[inline(always)]
            fn set_next(&mut self, next: *mut $name) {
                self.next = next;
            }

            #[inline(always)]
            fn set_segments(&mut self, segments: *mut ibv_sge) {
                self.sg_list = segments;
            }

            #[inline(always)]
            fn set_segment_count(&mut self, count: usize) {
                self.num_sge = libc::c_int::try_from(count).unwrap_or(libc::c_int::MAX);
            }

            fn segment_count(&self) -> usize {
                usize::try_from(self.num_sge).unwrap_or(0)
            }
        }
    };
}

work_request!(ibv_send_wr);
work_request!(ibv_recv_wr);

// Segments are passed to the library unchanged.
const _: () = {
    assert!(size_of::<Segment>() == size_of::<ibv_sge>());
    assert!(align_of::<Segment>() == align_of::<ibv_sge>());
    assert!(std::mem::offset_of!(Segment, addr) == std::mem::offset_of!(ibv_sge, addr));
    assert!(std::mem::offset_of!(Segment, length) == std::mem::offset_of!(ibv_sge, length));
    assert!(std::mem::offset_of!(Segment, lkey) == std::mem::offset_of!(ibv_sge, lkey));
    // A pointer to a slot is also a pointer to its request.
    assert!(std::mem::offset_of!(Slot<ibv_send_wr>, request) == 0);
    assert!(std::mem::offset_of!(Slot<ibv_recv_wr>, request) == 0);
};

/// Returns the failure of posting a list. Only a pointer into the list shows the rejected request: some providers leave
/// it null, and may have posted any number of requests (`rxe_post_send` does).
#[cold]
fn post_failure<W>(code: libc::c_int, first: *const W, bad: *const W) -> PostFailure {
    let offset = bad.addr().checked_sub(first.addr()).filter(|_| !bad.is_null());
    PostFailure {
        error: io::Error::from_raw_os_error(code.abs()),
        posted: offset.map(|bytes| bytes / size_of::<Slot<W>>()),
    }
}

#[cfg(test)]
mod tests {
    use adverb_proto::types::{RemoteAddress, SendFlags};

    use super::*;

    fn segment(n: u64) -> Segment {
        Segment { addr: n, length: n as u32, lkey: 7 }
    }

    fn write<'a>(n: u64, segments: &'a [Segment]) -> SendRequest<'a, &'a AddressHandle> {
        let operation = SendOperation::Write(RemoteAddress { addr: 1000 + n, rkey: 9 });
        SendRequest { wr_id: n, tag: 0, operation, flags: SendFlags::SIGNALED, segments, destination: None }
    }

    /// Returns the contents of the requests that a device receives: ids, remote addresses and segments.
    fn chain_contents(list: &mut SendList) -> Vec<(u64, u64, Vec<u64>)> {
        let mut chain_contents = Vec::new();
        let posted = list.post(|Chain { first: mut wr, .. }| {
            while let Some(request) = NonNull::new(wr) {
                // SAFETY: the list is linked, and ends with a null pointer.
                let request = unsafe { request.as_ref() };
                let count = usize::try_from(request.num_sge).expect("a count");
                // SAFETY: the request has this many segments, and a WRITE has a remote address.
                let (segments, remote) = unsafe {
                    (std::slice::from_raw_parts(request.sg_list, count), request.wr.rdma.remote_addr)
                };
                chain_contents.push((
                    request.wr_id,
                    remote,
                    segments.iter().map(|segment| segment.addr).collect(),
                ));
                wr = request.next;
            }
            0
        });
        assert!(posted.is_ok());
        chain_contents
    }

    #[test]
    fn a_reused_list_contains_the_added_requests() {
        let mut list = SendList::default();
        assert_eq!(chain_contents(&mut list), []);
        for count in [1, 2, 1, 40, 3, 0, 100, 1] {
            list.clear();
            let mut expected = Vec::new();
            for n in 0..count {
                // Every third request has several segments, every fifth has none.
                let segments: Vec<Segment> = match n {
                    n if n % 3 == 2 => (0..n).map(segment).collect(),
                    n if n % 5 == 4 => Vec::new(),
                    n => vec![segment(n)],
                };
                list.add(&write(n, &segments));
                expected.push((n, 1000 + n, segments.iter().map(|segment| segment.addr).collect()));
            }
            assert_eq!(chain_contents(&mut list), expected, "{count} requests");
            assert_eq!(chain_contents(&mut list), expected, "{count} requests, posted again");
        }
    }

    #[test]
    fn no_field_of_an_earlier_request_remains() {
        let mut list = SendList::default();
        for operation in [SendOperation::LocalInvalidate(7), SendOperation::Send] {
            list.clear();
            list.add(&SendRequest { operation, ..write(1, &[]) });
        }
        let posted = list.post(|Chain { first, .. }| {
            // SAFETY: the list has one request.
            assert_eq!(unsafe { (*first).imm.imm_data }, 0);
            0
        });
        assert!(posted.is_ok());
    }

    #[test]
    fn operations_round_trip() {
        let remote = RemoteAddress { addr: 1 << 40, rkey: 9 };
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        let flush = |global, persistent, whole_region| {
            SendOperation::Flush(FlushRange { remote, length: 1 << 31, whole_region, global, persistent })
        };
        let operations = [
            SendOperation::Send,
            SendOperation::SendWithImm(0x0102_0304),
            SendOperation::SendInvalidate(0x0102_0304),
            SendOperation::Write(remote),
            SendOperation::WriteWithImm(remote, 0x0102_0304),
            SendOperation::Read(remote),
            SendOperation::CompareSwap { remote, compare: 1, swap: 2 },
            SendOperation::FetchAdd { remote, add: 3 },
            SendOperation::LocalInvalidate(0x0102_0304),
            SendOperation::AtomicWrite { remote, bytes: [1, 2, 3, 4, 5, 6, 7, 8] },
            flush(true, false, false),
            flush(false, true, false),
            flush(true, true, true),
        ];
        let mut list = SendList::default();
        let mut slot = SendSlot::default();
        for operation in operations {
            let request = SendRequest { operation, flags, ..write(1, &[]) };
            list.add(&request);
            slot.put(&request);
            assert_eq!(slot.decode(), (operation, flags));
        }
        for (index, operation) in operations.into_iter().enumerate() {
            assert_eq!(list.decode(index), (operation, flags));
        }
    }

    #[test]
    fn a_failure_reports_the_posted_count_if_it_is_known() {
        let mut list = SendList::default();
        for n in 0..5 {
            list.add(&write(n, &[segment(n)]));
        }
        let third = list.post(|Chain { first, bad }| {
            // SAFETY: the list has five requests.
            *bad = unsafe { (*(*first).next).next };
            libc::ENOMEM
        });
        assert_eq!(third.err().and_then(|failure| failure.posted), Some(2));
        let unknown = list.post(|_| libc::EIO);
        assert_eq!(unknown.err().map(|failure| failure.posted), Some(None));
    }
}
