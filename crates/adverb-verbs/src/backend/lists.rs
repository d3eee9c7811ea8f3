//! Lists of requests for the devices of all backends. Each backend has its own kind, so that requests are built once.

use std::marker::PhantomData;

use adverb_proto::types::{RecvRequest, SendFlags, SendRequest, WindowBind};

use super::{AddressHandle, MemoryWindow, Registration};
use crate::request_id::RequestId;

#[cfg(feature = "ibv")]
use super::ibv;
#[cfg(feature = "soft")]
use super::soft;

/// Requests that are posted together, for devices of one backend: only the backend's own list has any.
///
/// The lists lie side by side, because an enum would cost the path of hardware's requests more instructions.
pub(crate) struct List<Ibv, Soft> {
    #[cfg(feature = "ibv")]
    pub(super) ibv: Ibv,
    /// The list for the software NIC, if it is for that.
    #[cfg(feature = "soft")]
    pub(super) soft: Option<Box<Soft>>,
    /// Whether the list has only requests of at most one segment for hardware, so that clearing it resets one counter.
    #[cfg(feature = "ibv")]
    is_plain: bool,
    backends: PhantomData<(Ibv, Soft)>,
}

/// Send requests that are posted together.
pub(crate) type SendList = List<ibv::SendList, soft::SendList>;

/// Receive requests that are posted together.
pub(crate) type RecvList = List<ibv::RecvList, soft::RecvList>;

/// The lists of a backend that isn't compiled in.
#[cfg(not(all(feature = "ibv", feature = "soft")))]
mod absent {
    #[derive(Default)]
    pub(crate) struct SendList;
    #[derive(Default)]
    pub(crate) struct RecvList;
}
#[cfg(not(feature = "ibv"))]
use absent as ibv;
#[cfg(not(feature = "soft"))]
use absent as soft;

/// Calls the list of the backend.
macro_rules! dispatch_list {
    ($value:expr, $list:ident => $call:expr) => {{
        #[cfg(feature = "soft")]
        if let Some($list) = &$value.soft {
            return $call;
        }
        #[cfg(feature = "ibv")]
        {
            let $list = &$value.ibv;
            $call
        }
        #[cfg(not(feature = "ibv"))]
        unreachable!("a backend has created the list")
    }};
    (mut $value:expr, $list:ident => $call:expr) => {{
        #[cfg(feature = "soft")]
        if let Some($list) = &mut $value.soft {
            return $call;
        }
        #[cfg(feature = "ibv")]
        {
            let $list = &mut $value.ibv;
            $call
        }
        #[cfg(not(feature = "ibv"))]
        unreachable!("a backend has created the list")
    }};
}

impl<Ibv: Default, Soft: Default> List<Ibv, Soft> {
    /// Creates a list for devices of rdma-core.
    #[cfg(feature = "ibv")]
    pub(super) fn ibv() -> List<Ibv, Soft> {
        List {
            ibv: Ibv::default(),
            #[cfg(feature = "soft")]
            soft: None,
            is_plain: true,
            backends: PhantomData,
        }
    }

    /// Creates a list for software NICs.
    #[cfg(feature = "soft")]
    pub(crate) fn soft() -> List<Ibv, Soft> {
        List {
            #[cfg(feature = "ibv")]
            ibv: Ibv::default(),
            soft: Some(Box::default()),
            #[cfg(feature = "ibv")]
            is_plain: false,
            backends: PhantomData,
        }
    }
}

impl SendList {
    /// Removes all requests.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        #[cfg(feature = "ibv")]
        if self.is_plain {
            return self.ibv.clear_plain();
        }
        self.clear_all();
    }

    #[inline(never)]
    fn clear_all(&mut self) {
        #[cfg(feature = "ibv")]
        {
            self.is_plain = true;
            #[cfg(feature = "soft")]
            {
                self.is_plain = self.soft.is_none();
            }
        }
        dispatch_list!(mut self, list => list.clear());
    }

    /// Adds a request on the fast path.
    #[inline(always)]
    pub(crate) fn add(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        #[cfg(feature = "ibv")]
        {
            self.is_plain &= request.segments.len() <= 1;
        }
        dispatch_list!(mut self, list => list.add(request));
    }

    /// Adds a raw request. On hardware, every instruction of it counts.
    #[inline(always)]
    pub(crate) fn add_raw(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        #[cfg(feature = "soft")]
        if let Some(list) = &mut self.soft {
            // With copies, the request and its segment stay in registers if the device is hardware.
            match *request.segments {
                [segment] => list.add_raw(&SendRequest { segments: &[segment], ..*request }),
                _ => list.add_raw(&{ *request }),
            }
            return;
        }
        self.add(request);
    }

    /// Returns the number of requests that were posted before the last failure, if the device reports it.
    #[cold]
    pub(crate) fn posted_count(&self) -> Option<usize> {
        dispatch_list!(self, list => list.posted_count())
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        dispatch_list!(self, list => list.len())
    }

    /// Adds an empty slot, for a request that is [put](SendList::put) there later.
    pub(crate) fn add_slot(&mut self) {
        dispatch_list!(mut self, list => list.add_slot());
    }

    /// Puts a request into its slot.
    pub(crate) fn put(&mut self, index: usize, request: &SendRequest<'_, &AddressHandle>) {
        #[cfg(feature = "ibv")]
        {
            self.is_plain = false;
        }
        dispatch_list!(mut self, list => list.put(index, request));
    }

    /// Sets the ids and the final flags of all requests.
    #[inline(always)]
    pub(crate) fn finish(
        &mut self,
        ids: impl Iterator<Item = RequestId>,
        flags: impl FnMut(SendFlags) -> SendFlags,
    ) {
        dispatch_list!(mut self, list => list.finish(ids, flags));
    }

    /// Sets the tags of all requests, for a recording.
    #[cold]
    pub(crate) fn set_tags(&mut self, _tags: impl Iterator<Item = u64>) {
        #[cfg(feature = "ibv")]
        self.ibv.set_tags(_tags);
    }

    /// Returns a request as it was posted, without its destination. It isn't a raw request.
    pub(crate) fn posted_request(&self, index: usize) -> SendRequest<'_, ()> {
        dispatch_list!(self, list => list.posted_request(index))
    }

    /// Sets the window that a request binds, and its region, which the plain form of the request doesn't contain. The
    /// request must keep both until it has completed.
    pub(crate) fn bind(
        &mut self,
        _index: usize,
        window: &MemoryWindow,
        region: &Registration,
        _bind: &WindowBind,
    ) {
        match (window, region) {
            #[cfg(feature = "ibv")]
            (MemoryWindow::Ibv(window), Registration::Ibv(region)) => {
                self.ibv.bind(_index, window, region, _bind);
            }
            // The plain form has the keys of both.
            #[cfg(feature = "soft")]
            (MemoryWindow::Soft(_), Registration::Soft(_)) => {}
            #[allow(unreachable_patterns, reason = "with one backend, the patterns above are exhaustive")]
            _ => unreachable!("a window and its region belong to one domain"),
        }
    }
}

/// Reusable memory for one send request of at most one segment on a connection, the most common request.
pub(crate) enum SendSlot {
    #[cfg(feature = "ibv")]
    Ibv(ibv::SendSlot),
    /// The software NIC needs no memory for it.
    #[cfg(feature = "soft")]
    Soft,
}

impl SendSlot {
    /// Returns the number of requests that were posted before the last failure, if the device reports it.
    #[cold]
    pub(crate) fn posted_count(&self) -> Option<usize> {
        match self {
            #[cfg(feature = "ibv")]
            SendSlot::Ibv(slot) => slot.posted_count(),
            #[cfg(feature = "soft")]
            SendSlot::Soft => Some(0),
            #[cfg(not(any(feature = "ibv", feature = "soft")))]
            _ => unreachable!(),
        }
    }
}

impl RecvList {
    /// Removes all requests.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        #[cfg(feature = "ibv")]
        if self.is_plain {
            return self.ibv.clear_plain();
        }
        self.clear_all();
    }

    #[inline(never)]
    fn clear_all(&mut self) {
        #[cfg(feature = "ibv")]
        {
            self.is_plain = true;
            #[cfg(feature = "soft")]
            {
                self.is_plain = self.soft.is_none();
            }
        }
        dispatch_list!(mut self, list => list.clear());
    }

    /// Adds a request.
    #[inline(always)]
    pub(crate) fn add(&mut self, request: &RecvRequest<'_>) {
        #[cfg(feature = "ibv")]
        {
            self.is_plain &= request.segments.len() <= 1;
        }
        dispatch_list!(mut self, list => list.add(request));
    }

    /// Returns the number of requests that were posted before the last failure, if the device reports it.
    #[cold]
    pub(crate) fn posted_count(&self) -> Option<usize> {
        dispatch_list!(self, list => list.posted_count())
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        dispatch_list!(self, list => list.len())
    }

    /// Returns a request as it was posted, for recordings.
    pub(crate) fn posted_request(&self, index: usize) -> RecvRequest<'_> {
        dispatch_list!(self, list => list.posted_request(index))
    }
}
