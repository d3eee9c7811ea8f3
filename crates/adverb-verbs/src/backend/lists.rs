//! Lists of requests for the devices of all engines, also if no engine is compiled in.

use adverb_proto::types::{RecvRequest, SendFlags, SendOperation, SendRequest, WindowBind};

#[cfg(any(feature = "ibv", feature = "soft"))]
use super::request_list;
use super::{AddressHandle, MemoryWindow, Registration};

/// Send requests that are posted together. They are built in place, in rdma-core's format, which every engine accepts.
#[derive(Default)]
pub(crate) struct SendList {
    #[cfg(any(feature = "ibv", feature = "soft"))]
    pub(super) requests: request_list::SendList,
}

impl SendList {
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.clear();
    }

    /// Adds a request.
    #[inline(always)]
    pub(crate) fn add(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.add(request);
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.len();
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        0
    }

    /// Adds an empty slot, for a request that is [put](SendList::put) there later.
    pub(crate) fn add_slot(&mut self) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.add_slot();
    }

    /// Puts a request into its slot.
    pub(crate) fn put(&mut self, index: usize, request: &SendRequest<'_, &AddressHandle>) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.put(index, request);
    }

    /// Sets the id and the final flags of a request.
    #[inline(always)]
    pub(crate) fn finish(&mut self, index: usize, wr_id: u64, flags: impl FnOnce(SendFlags) -> SendFlags) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.finish(index, wr_id, flags);
    }

    /// Returns the operation and the flags of a request, which must be a SEND or a WRITE, with or without immediate
    /// data.
    pub(crate) fn decode(&mut self, index: usize) -> (SendOperation, SendFlags) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.decode(index);
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        (SendOperation::Send, SendFlags::empty())
    }

    /// Returns a request as it was posted, for recordings.
    pub(crate) fn posted_request(&self, index: usize) -> SendRequest<'_, ()> {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.posted_request(index);
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        unreachable!("without an engine no request is posted: {index}")
    }

    /// Sets the window that a request binds, and its region, which the plain form of the request doesn't contain. The
    /// request must keep both until it has completed.
    pub(crate) fn bind(
        &mut self,
        index: usize,
        window: &MemoryWindow,
        region: &Registration,
        bind: &WindowBind,
    ) {
        match (window, region) {
            #[cfg(feature = "ibv")]
            (MemoryWindow::Ibv(window), Registration::Ibv(region)) => {
                self.requests.bind(index, window, region, bind);
            }
            #[cfg(feature = "soft")]
            (MemoryWindow::Soft(_), Registration::Soft(_)) => {
                self.requests.set_bind(index, super::soft::encode_bind(bind));
            }
            #[allow(unreachable_patterns, reason = "with one engine, the patterns above are exhaustive")]
            _ => unreachable!("a window and its region belong to one domain"),
        }
    }
}

/// A slot for one send request of at most one segment, in rdma-core's format, which every engine accepts.
#[derive(Default)]
pub(crate) struct SendSlot {
    #[cfg(any(feature = "ibv", feature = "soft"))]
    pub(super) requests: request_list::SendSlot,
}

impl SendSlot {
    /// Puts a request into the slot.
    #[inline(always)]
    pub(crate) fn put(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.put(request);
    }

    /// Does the same as [`SendList::decode`].
    pub(crate) fn decode(&mut self) -> (SendOperation, SendFlags) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.decode();
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        (SendOperation::Send, SendFlags::empty())
    }
}

/// Receive requests that are posted together. They are built in place, in rdma-core's format, which every engine
/// accepts.
#[derive(Default)]
pub(crate) struct RecvList {
    #[cfg(any(feature = "ibv", feature = "soft"))]
    pub(super) requests: request_list::RecvList,
}

impl RecvList {
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.clear();
    }

    /// Adds a request.
    #[inline(always)]
    pub(crate) fn add(&mut self, request: &RecvRequest<'_>) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.add(request);
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.len();
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        0
    }

    /// Returns a request as it was posted, for recordings.
    pub(crate) fn posted_request(&self, index: usize) -> RecvRequest<'_> {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.posted_request(index);
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        unreachable!("without an engine no request is posted: {index}")
    }
}
