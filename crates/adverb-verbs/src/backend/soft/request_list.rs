//! Lists of requests for the software NIC, which are plain.

use std::ops::Range;
use std::slice;

use adverb_proto::types::{Destination, RecvRequest, Segment, SendFlags, SendOperation, SendRequest};
use adverb_proto::{Path, PostError};
use adverb_soft::BatchPostError;

use crate::backend::{AddressHandle, PostErrno};
use crate::request_id::RequestId;

/// Requests for a send queue.
#[derive(Default)]
pub(crate) struct SendList {
    requests: Vec<Send>,
    segments: Vec<Segment>,
    /// The destinations of datagrams.
    destinations: Vec<Destination<Path>>,
    /// The number of requests that were posted before the last failure.
    pub(super) posted_count: usize,
}

/// A send request. It is small, because many are posted together.
struct Send {
    wr_id: u64,
    tag: u64,
    operation: SendOperation,
    flags: SendFlags,
    /// The index of the destination, if the request is a datagram.
    destination: Option<u32>,
    segments: Segments,
}

/// The segments of a request.
enum Segments {
    One(Segment),
    /// A range of the list's segments.
    Several(Range<usize>),
}

impl Segments {
    /// Returns the segments of a request, and appends several of them to those of its list.
    #[inline(always)]
    fn new(segments: &[Segment], list: &mut Vec<Segment>) -> Segments {
        match segments {
            [segment] => Segments::One(*segment),
            _ => Segments::several(segments, list),
        }
    }

    #[cold]
    fn several(segments: &[Segment], list: &mut Vec<Segment>) -> Segments {
        let start = list.len();
        list.extend_from_slice(segments);
        Segments::Several(start..list.len())
    }

    /// Returns the segments as a slice, given those of the list.
    #[inline(always)]
    fn as_slice<'a>(&'a self, list: &'a [Segment]) -> &'a [Segment] {
        match self {
            Segments::One(segment) => slice::from_ref(segment),
            Segments::Several(range) => &list[range.clone()],
        }
    }
}

impl SendList {
    /// Returns the number of requests that were posted before the last failure.
    pub(in crate::backend) fn posted_count(&self) -> Option<usize> {
        Some(self.posted_count)
    }

    /// Removes all requests.
    #[inline(never)]
    pub(in crate::backend) fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
        self.destinations.clear();
    }

    /// Returns the number of requests.
    pub(in crate::backend) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request.
    #[inline(always)]
    pub(in crate::backend) fn add(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        let send = self.convert(request);
        self.requests.push(send);
    }

    /// Adds a raw request. This isn't inlined into the path that posts to hardware.
    #[inline(never)]
    pub(in crate::backend) fn add_raw(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        self.add(request);
    }

    /// Adds an empty slot, for a request that is [put](SendList::put) there later.
    pub(in crate::backend) fn add_slot(&mut self) {
        self.requests.push(Send {
            wr_id: 0,
            tag: 0,
            operation: SendOperation::Send,
            flags: SendFlags::empty(),
            destination: None,
            segments: Segments::Several(0..0),
        });
    }

    /// Puts a request into its slot.
    pub(in crate::backend) fn put(&mut self, index: usize, request: &SendRequest<'_, &AddressHandle>) {
        self.requests[index] = self.convert(request);
    }

    /// Sets the ids and the flags of all requests.
    #[inline(never)]
    pub(in crate::backend) fn finish(
        &mut self,
        ids: impl Iterator<Item = RequestId>,
        mut flags: impl FnMut(SendFlags) -> SendFlags,
    ) {
        for (send, id) in self.requests.iter_mut().zip(ids) {
            (send.wr_id, send.flags) = (id.0, flags(send.flags));
        }
    }

    /// Returns a request as it was posted, without its destination.
    pub(in crate::backend) fn posted_request(&self, index: usize) -> SendRequest<'_, ()> {
        let Send { wr_id, tag, operation, flags, ref segments, .. } = self.requests[index];
        let segments = segments.as_slice(&self.segments);
        SendRequest { wr_id, tag, operation, flags, segments, destination: None }
    }

    /// Returns the requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = SendRequest<'_, &Path>> {
        self.requests.iter().map(|send| {
            let Send { wr_id, tag, operation, flags, destination, ref segments } = *send;
            let destination = destination.map(|index| {
                let Destination { ref handle, qpn, qkey } = self.destinations[index as usize];
                Destination { handle, qpn, qkey }
            });
            let segments = segments.as_slice(&self.segments);
            SendRequest { wr_id, tag, operation, flags, segments, destination }
        })
    }

    #[inline(always)]
    fn convert(&mut self, request: &SendRequest<'_, &AddressHandle>) -> Send {
        let SendRequest { wr_id, tag, operation, flags, segments, ref destination } = *request;
        let destination = destination.as_ref().map(|destination| self.add_destination(destination));
        let segments = Segments::new(segments, &mut self.segments);
        Send { wr_id, tag, operation, flags, destination, segments }
    }

    /// Adds the destination of a request, and returns its index.
    #[cold]
    fn add_destination(&mut self, destination: &Destination<&AddressHandle>) -> u32 {
        let index = self.destinations.len();
        self.destinations.push(plain_destination(destination));
        u32::try_from(index).expect("a list of 2^32 datagrams exceeds the memory")
    }
}

/// Returns a destination with the path of its address handle, whose owner keeps the path open.
fn plain_destination(destination: &Destination<&AddressHandle>) -> Destination<Path> {
    let Destination { handle, qpn, qkey } = *destination;
    match handle {
        AddressHandle::Soft(handle) => Destination { handle: handle.plain_path(), qpn, qkey },
        #[cfg(feature = "ibv")]
        AddressHandle::Ibv(_) => unreachable!("a destination belongs to its queue pair's domain"),
    }
}

/// Requests for a receive queue.
#[derive(Default)]
pub(crate) struct RecvList {
    requests: Vec<Recv>,
    segments: Vec<Segment>,
    /// The number of requests that were posted before the last failure.
    pub(super) posted_count: usize,
}

/// A receive request.
struct Recv {
    wr_id: u64,
    tag: u64,
    segments: Segments,
}

impl RecvList {
    /// Returns the number of requests that were posted before the last failure.
    pub(in crate::backend) fn posted_count(&self) -> Option<usize> {
        Some(self.posted_count)
    }

    /// Removes all requests.
    #[inline(never)]
    pub(in crate::backend) fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
    }

    /// Returns the number of requests.
    pub(in crate::backend) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request.
    #[inline(always)]
    pub(in crate::backend) fn add(&mut self, request: &RecvRequest<'_>) {
        let RecvRequest { wr_id, tag, segments } = *request;
        // The usual request is written straight to its place, without a variable for the segments.
        match *segments {
            [segment] => self.requests.push(Recv { wr_id, tag, segments: Segments::One(segment) }),
            _ => {
                let segments = Segments::several(segments, &mut self.segments);
                self.requests.push(Recv { wr_id, tag, segments });
            }
        }
    }

    /// Returns a request as it was posted.
    pub(in crate::backend) fn posted_request(&self, index: usize) -> RecvRequest<'_> {
        self.plain(&self.requests[index])
    }

    /// Returns the requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = RecvRequest<'_>> {
        self.requests.iter().map(|recv| self.plain(recv))
    }

    fn plain<'a>(&'a self, recv: &'a Recv) -> RecvRequest<'a> {
        let segments = recv.segments.as_slice(&self.segments);
        RecvRequest { wr_id: recv.wr_id, tag: recv.tag, segments }
    }
}

/// Converts the result of posting to the number of posted requests and the result. The error numbers are those that
/// drivers return.
pub(super) fn post_result(posted: Result<(), BatchPostError>) -> (usize, Result<(), PostErrno>) {
    let Err(BatchPostError { posted_count, error }) = posted else { return (0, Ok(())) };
    let number = match error {
        adverb_soft::Error::Post(PostError::QueueFull) => libc::ENOMEM,
        adverb_soft::Error::NicFailed => libc::EIO,
        _ => libc::EINVAL,
    };
    (posted_count, PostErrno::check(number))
}
