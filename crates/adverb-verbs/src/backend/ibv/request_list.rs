//! Lists of requests in the format of libibverbs, here called the library. They are built in place, in reusable memory.

use std::ptr::NonNull;

use adverb_proto::types::{RecvRequest, Segment, SendFlags, SendOperation, SendRequest};
use adverb_sys::{self as sys, ibv_recv_wr, ibv_send_wr, ibv_sge};

use super::operation::{encode, fast_operation_of};
use crate::backend::{AddressHandle, PostErrno};
use crate::request_id::RequestId;

/// Requests for a receive queue.
pub(crate) type RecvList = RequestList<ibv_recv_wr>;

/// Requests for a send queue.
#[derive(Default)]
pub(crate) struct SendList {
    pub(super) requests: RequestList<ibv_send_wr>,
    /// The operations of the requests that were [put](SendList::put) into the list, by index.
    operations: Vec<(usize, SendOperation)>,
}

/// Requests that are posted together, with one doorbell.
///
/// A request is linked to its predecessor when it is added, and building it writes only the fields that its operation has.
/// Fields that an operation doesn't have, but that devices read, are 0 (librxe rejects a bind with immediate data).
pub(crate) struct RequestList<W: WorkRequest> {
    /// The slots, of which there are `capacity`. They are accessed only through this pointer, because they point to
    /// each other. The slot before the first one exists, too, so that each request has a predecessor that points to it.
    slots: NonNull<Slot<W>>,
    capacity: usize,
    len: usize,
    /// The request that the library rejected when it posted the list last, if it reported one.
    bad: *mut W,
    /// The requests with several segments, and the index of their first segment in `segments`.
    multi_segment: Vec<(usize, usize)>,
    segments: Vec<Segment>,
}

/// A slot for one send request of at most one segment, which is the most common request.
pub(crate) struct SendSlot {
    slot: NonNull<Slot<ibv_send_wr>>,
    /// The request, if the library reported that it rejected it when it was posted last.
    bad: *mut ibv_send_wr,
}

/// Requests in the format that the library requires: linked, ended by a null pointer, with readable segments. The
/// poster keeps the memory of the segments until the requests have completed, and also the address handles of
/// datagrams, which belong to the queue pair's domain. The code that fills a list guarantees this.
pub(super) struct Chain<'a, W> {
    pub(super) first: *mut W,
    /// The pointer to which the library writes the first request that it rejected.
    pub(super) bad: &'a mut *mut W,
}

/// A request, the segment that most requests have, and the application's tag, if the request is recorded.
#[repr(C)]
struct Slot<W> {
    request: W,
    segment: Segment,
    tag: u64,
}

// SAFETY: the pointers in a list point to the list itself, and are followed only while it is posted.
unsafe impl<W: WorkRequest> Send for RequestList<W> {}
// SAFETY: as above. Nothing is changed through a shared list.
unsafe impl<W: WorkRequest> Sync for RequestList<W> {}

impl<W: WorkRequest> RequestList<W> {
    /// Removes all requests of a list in which each has at most one segment.
    #[inline(always)]
    pub(in crate::backend) fn clear_plain(&mut self) {
        debug_assert!(self.multi_segment.is_empty());
        self.len = 0;
    }

    /// Removes all requests.
    pub(in crate::backend) fn clear(&mut self) {
        self.len = 0;
        if !self.multi_segment.is_empty() {
            self.reset_segments();
        }
    }

    /// Adds a slot, and links it to the one before it. The caller must set its request.
    #[inline(always)]
    fn push(&mut self) -> &mut Slot<W> {
        if self.len == self.capacity {
            self.grow();
        }
        // SAFETY: the slot exists, because the capacity is larger than `len`.
        let mut slot = unsafe { self.slots.add(self.len) };
        self.len += 1;
        // SAFETY: the slot before the first one exists, too. The list is borrowed exclusively.
        unsafe {
            slot.sub(1).as_mut().request.set_next(slot.as_ptr().cast());
            slot.as_mut()
        }
    }

    /// Adds a request with an id and segments. Its other fields keep the values of an earlier request.
    #[inline(always)]
    fn add_slot(&mut self, wr_id: u64, segments: &[Segment]) -> &mut Slot<W> {
        if segments.len() > 1 {
            self.store_segments(self.len, segments);
        }
        let slot = self.push();
        slot.set(wr_id, segments);
        slot
    }

    /// Sets the id and segments of a request. Its other fields keep the values of an earlier request.
    fn set(&mut self, index: usize, wr_id: u64, segments: &[Segment]) -> &mut W {
        if segments.len() > 1 {
            self.store_segments(index, segments);
        }
        self.slot(index).set(wr_id, segments)
    }

    /// Returns the number of requests.
    #[inline]
    pub(in crate::backend) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn slot(&mut self, index: usize) -> &mut Slot<W> {
        debug_assert!(index < self.capacity);
        // SAFETY: all indices are from `push`, which allocates the slot, or are below `len`. The list is borrowed
        // exclusively.
        unsafe { self.slots.add(index).as_mut() }
    }

    /// Returns the slots of all requests.
    #[inline(always)]
    fn slots_mut(&mut self) -> &mut [Slot<W>] {
        // SAFETY: the first `len` slots exist, and the list is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_ptr(), self.len) }
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
    pub(super) fn post(&mut self, verb: impl FnOnce(Chain<'_, W>) -> libc::c_int) -> Result<(), PostErrno> {
        let Some(last) = self.len.checked_sub(1) else { return Ok(()) };
        if !self.multi_segment.is_empty() {
            self.point_to_segments();
        }
        self.slot(last).request.set_next(std::ptr::null_mut());
        self.bad = std::ptr::null_mut();
        PostErrno::check(verb(Chain { first: self.slots.as_ptr().cast(), bad: &mut self.bad }))
    }

    /// Returns the number of requests that were posted before the library rejected one. Only a pointer into the list
    /// shows which one it rejected: some providers leave it null, and may have posted any number of requests
    /// (`rxe_post_send` does).
    pub(in crate::backend) fn posted_count(&self) -> Option<usize> {
        let offset = self.bad.addr().checked_sub(self.slots.addr().get()).filter(|_| !self.bad.is_null());
        offset.map(|bytes| bytes / size_of::<Slot<W>>())
    }

    /// Doubles the capacity.
    #[cold]
    fn grow(&mut self) {
        let capacity = (self.capacity * 2).max(16);
        let mut slots = vec![Slot::EMPTY];
        slots.reserve_exact(capacity);
        slots.extend_from_slice(self.slots_mut());
        slots.resize(1 + capacity, Slot::EMPTY);
        let slots: NonNull<Slot<W>> = NonNull::from(Box::leak(slots.into_boxed_slice())).cast();
        self.free();
        // SAFETY: there is a slot before the first one.
        (self.slots, self.capacity) = (unsafe { slots.add(1) }, capacity);
        for index in 0..capacity {
            // SAFETY: both slots exist.
            let (previous, slot) = unsafe { (self.slots.add(index).sub(1), self.slots.add(index)) };
            // SAFETY: the slot exists, and no reference to it does.
            unsafe { (*previous.as_ptr()).request.set_next(slot.as_ptr().cast()) };
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
            // SAFETY: there is a slot before the first one.
            let first = unsafe { self.slots.sub(1) };
            let slots = std::ptr::slice_from_raw_parts_mut(first.as_ptr(), 1 + self.capacity);
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
            bad: std::ptr::null_mut(),
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

    /// Sets the fields that all requests have, except the tag. Of several segments, it sets only their number.
    #[inline(always)]
    fn set(&mut self, wr_id: u64, segments: &[Segment]) -> &mut W {
        if let [segment] = segments {
            self.segment = *segment;
        }
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
    /// Puts a request of at most one segment into the slot, and posts it with a verb of the library.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        request: &SendRequest<'_, &AddressHandle>,
        verb: impl FnOnce(Chain<'_, ibv_send_wr>) -> libc::c_int,
    ) -> Result<(), PostErrno> {
        assert!(request.segments.len() <= 1, "a slot has one segment");
        encode(self.slot().set(request.wr_id, request.segments), request);
        self.bad = std::ptr::null_mut();
        PostErrno::check(verb(Chain { first: self.slot.as_ptr().cast(), bad: &mut self.bad }))
    }

    /// Returns 0 if the library reported that it rejected the request. Otherwise it may have posted it.
    pub(in crate::backend) fn posted_count(&self) -> Option<usize> {
        (!self.bad.is_null()).then_some(0)
    }

    #[inline(always)]
    fn slot(&mut self) -> &mut Slot<ibv_send_wr> {
        // SAFETY: this value owns the slot, and is borrowed exclusively.
        unsafe { self.slot.as_mut() }
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
        let mut single = SendSlot { slot, bad: std::ptr::null_mut() };
        single.slot().request.set_segments(segment.cast());
        single
    }
}

impl Drop for SendSlot {
    fn drop(&mut self) {
        // SAFETY: the slot was created from a box, and is freed once.
        drop(unsafe { Box::from_raw(self.slot.as_ptr()) });
    }
}

impl SendList {
    /// Removes all requests.
    pub(in crate::backend) fn clear(&mut self) {
        self.requests.clear();
        self.operations.clear();
    }

    /// Removes all requests of a list in which each was [added](SendList::add) with at most one segment.
    #[inline(always)]
    pub(in crate::backend) fn clear_plain(&mut self) {
        debug_assert!(self.operations.is_empty());
        self.requests.clear_plain();
    }

    /// Returns the number of requests.
    #[inline]
    pub(in crate::backend) fn len(&self) -> usize {
        self.requests.len
    }

    /// Returns the number of requests that were posted before the library rejected one, if it reports it.
    pub(in crate::backend) fn posted_count(&self) -> Option<usize> {
        self.requests.posted_count()
    }

    /// Adds a request on the fast path, or a raw request.
    #[inline(always)]
    pub(in crate::backend) fn add(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        encode(&mut self.requests.add_slot(request.wr_id, request.segments).request, request);
    }

    /// Adds an empty slot, for a request that is [put](SendList::put) there later.
    pub(in crate::backend) fn add_slot(&mut self) {
        self.requests.push();
    }

    /// Puts a request into its slot.
    pub(in crate::backend) fn put(&mut self, index: usize, request: &SendRequest<'_, &AddressHandle>) {
        assert!(index < self.len(), "a request of the list");
        encode(self.requests.set(index, request.wr_id, request.segments), request);
        self.operations.push((index, request.operation));
    }

    /// Sets the ids and the flags of all requests.
    #[inline(always)]
    pub(in crate::backend) fn finish(
        &mut self,
        ids: impl Iterator<Item = RequestId>,
        mut flags: impl FnMut(SendFlags) -> SendFlags,
    ) {
        for (slot, id) in self.requests.slots_mut().iter_mut().zip(ids) {
            slot.request.wr_id = id.0;
            slot.request.send_flags = flags(SendFlags::from_bits_retain(slot.request.send_flags)).bits();
        }
    }

    /// Sets the tags of all requests.
    pub(in crate::backend) fn set_tags(&mut self, tags: impl Iterator<Item = u64>) {
        for (slot, tag) in self.requests.slots_mut().iter_mut().zip(tags) {
            slot.tag = tag;
        }
    }

    /// Returns the operation of a request, which isn't a raw request.
    pub(super) fn operation(&self, index: usize) -> SendOperation {
        let put = self.operations.iter().find(|(at, _)| *at == index);
        put.map_or_else(|| fast_operation_of(self.requests.parts(index).0), |(_, operation)| *operation)
    }

    /// Returns a request as it was posted, without its destination. It isn't a raw request.
    pub(in crate::backend) fn posted_request(&self, index: usize) -> SendRequest<'_, ()> {
        let (wr, segments, tag) = self.requests.parts(index);
        let (operation, flags) = (self.operation(index), SendFlags::from_bits_retain(wr.send_flags));
        SendRequest { wr_id: wr.wr_id, tag, operation, flags, segments, destination: None }
    }

    /// Posts each request with its own doorbell.
    pub(super) fn post_each(
        &mut self,
        mut post: impl FnMut(&SendOperation, Chain<'_, ibv_send_wr>) -> libc::c_int,
    ) -> Result<(), PostErrno> {
        let operations: Vec<SendOperation> = (0..self.len()).map(|index| self.operation(index)).collect();
        self.requests.post(|Chain { first, bad }| {
            let mut wr = first;
            for operation in &operations {
                // SAFETY: the chain has as many requests as the list, which is borrowed exclusively.
                let next = std::mem::replace(unsafe { &mut (*wr).next }, std::ptr::null_mut());
                let code = post(operation, Chain { first: wr, bad });
                // SAFETY: as above.
                unsafe { (*wr).next = next };
                if code != 0 {
                    return code;
                }
                wr = next;
            }
            0
        })
    }

    /// Sets the window that a request binds, and its memory.
    pub(super) fn set_bind(&mut self, index: usize, bind: sys::ibv_send_wr_bind_mw) {
        assert!(index < self.len(), "a request of the list");
        self.requests.slot(index).request.op.bind_mw = bind;
    }
}

impl RecvList {
    /// Adds a request.
    #[inline(always)]
    pub(in crate::backend) fn add(&mut self, request: &RecvRequest<'_>) {
        self.add_slot(request.wr_id, request.segments).tag = request.tag;
    }

    /// Returns a request as it was posted.
    pub(in crate::backend) fn posted_request(&self, index: usize) -> RecvRequest<'_> {
        let (wr, segments, tag) = self.parts(index);
        RecvRequest { wr_id: wr.wr_id, tag, segments }
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

#[cfg(test)]
mod tests {
    use adverb_proto::types::{FlushRange, RemoteAddress};

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
        let posted = list.requests.post(|Chain { first: mut wr, .. }| {
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
        let posted = list.requests.post(|Chain { first, .. }| {
            // SAFETY: the list has one request.
            assert_eq!(unsafe { (*first).imm.imm_data }, 0);
            0
        });
        assert!(posted.is_ok());
    }

    #[test]
    fn the_list_returns_the_requests_as_they_were_posted() {
        let remote = RemoteAddress { addr: 1 << 40, rkey: 9 };
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        let flush = SendOperation::Flush(FlushRange {
            remote,
            length: 1 << 31,
            whole_region: true,
            global: true,
            persistent: false,
        });
        let operations = [
            SendOperation::Send,
            SendOperation::SendWithImm(0x0102_0304),
            SendOperation::Write(remote),
            SendOperation::WriteWithImm(remote, 0x0102_0304),
            SendOperation::SendInvalidate(0x0102_0304),
            SendOperation::Read(remote),
            SendOperation::CompareSwap { remote, compare: 1, swap: 2 },
            SendOperation::FetchAdd { remote, add: 3 },
            SendOperation::LocalInvalidate(0x0102_0304),
            flush,
        ];
        let mut list = SendList::default();
        for (index, operation) in operations.into_iter().enumerate() {
            list.add_slot();
            list.put(index, &SendRequest { operation, flags, ..write(1, &[]) });
        }
        for operation in &operations[..4] {
            list.add(&SendRequest { operation: *operation, flags, ..write(1, &[]) });
        }
        for (index, operation) in operations.iter().chain(&operations[..4]).enumerate() {
            let posted = list.posted_request(index);
            assert_eq!((posted.operation, posted.flags), (*operation, flags));
        }
    }

    #[test]
    fn a_failure_reports_the_posted_count_if_it_is_known() {
        let mut list = SendList::default();
        for n in 0..5 {
            list.add(&write(n, &[segment(n)]));
        }
        let third = list.requests.post(|Chain { first, bad }| {
            // SAFETY: the list has five requests.
            *bad = unsafe { (*(*first).next).next };
            libc::ENOMEM
        });
        assert!(third.is_err());
        assert_eq!(list.requests.posted_count(), Some(2));
        assert!(list.requests.post(|_| libc::EIO).is_err());
        assert_eq!(list.requests.posted_count(), None);
    }
}
