//! Lists of requests, for devices of every engine and for none.

use adverb_proto::types::{RecvRequest, SendFlags, SendOperation, SendRequest, WindowBind};

#[cfg(any(feature = "ibv", feature = "soft"))]
use super::request_list;
use super::{AddressHandle, MemoryWindow, Registration};

/// Send requests in rdma-core's form, which every engine takes, made in place and posted together.
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

    /// How many requests there are.
    pub(crate) fn len(&self) -> usize {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.len();
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        0
    }

    /// Adds the room of a request that is [put](SendList::put) there later.
    pub(crate) fn add_slot(&mut self) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.add_slot();
    }

    /// Puts a request in its room.
    pub(crate) fn put(&mut self, index: usize, request: &SendRequest<'_, &AddressHandle>) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.put(index, request);
    }

    /// Gives a request its id and its last flags.
    #[inline(always)]
    pub(crate) fn finish(&mut self, index: usize, wr_id: u64, flags: impl FnOnce(SendFlags) -> SendFlags) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.finish(index, wr_id, flags);
    }

    /// The operation and the flags of a request, which must be a SEND or a WRITE, with immediate data or without.
    pub(crate) fn decode(&mut self, index: usize) -> (SendOperation, SendFlags) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.decode(index);
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        (SendOperation::Send, SendFlags::empty())
    }

    /// Returns a request as it was posted, for recordings.
    pub(crate) fn posted(&self, index: usize) -> SendRequest<'_, ()> {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.posted(index);
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        unreachable!("without an engine no request is posted: {index}")
    }

    /// Says of a request to what it binds which window: posting needs more than the plain form tells. The request must
    /// keep both until it has completed.
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
                self.requests.set_bind(index, super::soft::binding(bind));
            }
            #[allow(unreachable_patterns, reason = "with one engine there is nothing else")]
            _ => unreachable!("a window and its region belong to one domain"),
        }
    }
}

/// Room for one send request of at most one segment in rdma-core's form, which every engine takes.
#[derive(Default)]
pub(crate) struct SendSlot {
    #[cfg(any(feature = "ibv", feature = "soft"))]
    pub(super) requests: request_list::SendSlot,
}

impl SendSlot {
    /// Makes it this request.
    #[inline(always)]
    pub(crate) fn put(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        self.requests.put(request);
    }

    /// As [`SendList::decode`].
    pub(crate) fn decode(&mut self) -> (SendOperation, SendFlags) {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.decode();
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        (SendOperation::Send, SendFlags::empty())
    }
}

/// Receive requests in rdma-core's form, which every engine takes, made in place and posted together.
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
    pub(crate) fn posted(&self, index: usize) -> RecvRequest<'_> {
        #[cfg(any(feature = "ibv", feature = "soft"))]
        return self.requests.posted(index);
        #[cfg(not(any(feature = "ibv", feature = "soft")))]
        unreachable!("without an engine no request is posted: {index}")
    }
}
