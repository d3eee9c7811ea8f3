//! Lists of requests for the software NIC, which are plain.

use std::ops::Range;

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
    /// The number of requests that were posted before the last failure.
    pub(super) posted_count: usize,
}

/// A send request.
struct Send {
    wr_id: u64,
    tag: u64,
    operation: SendOperation,
    flags: SendFlags,
    segments: Range<usize>,
    destination: Option<Destination<Path>>,
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
    }

    /// Returns the number of requests.
    pub(in crate::backend) fn len(&self) -> usize {
        self.requests.len()
    }

    // These functions aren't inlined into the path that posts to hardware, where every instruction counts.
    /// Adds a request.
    #[inline(never)]
    pub(in crate::backend) fn add(&mut self, request: &SendRequest<'_, &AddressHandle>) {
        let send = self.convert(request);
        self.requests.push(send);
    }

    /// Adds an empty slot, for a request that is [put](SendList::put) there later.
    pub(in crate::backend) fn add_slot(&mut self) {
        self.requests.push(Send {
            wr_id: 0,
            tag: 0,
            operation: SendOperation::Send,
            flags: SendFlags::empty(),
            segments: 0..0,
            destination: None,
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
        let segments = &self.segments[segments.clone()];
        SendRequest { wr_id, tag, operation, flags, segments, destination: None }
    }

    /// Returns the requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = SendRequest<'_, Path>> {
        self.requests.iter().map(|send| {
            let Send { wr_id, tag, operation, flags, ref segments, destination } = *send;
            SendRequest {
                wr_id,
                tag,
                operation,
                flags,
                segments: &self.segments[segments.clone()],
                destination,
            }
        })
    }

    #[inline(always)]
    fn convert(&mut self, request: &SendRequest<'_, &AddressHandle>) -> Send {
        let SendRequest { wr_id, tag, operation, flags, segments, ref destination } = *request;
        let start = self.segments.len();
        self.segments.extend_from_slice(segments);
        let segments = start..self.segments.len();
        let destination = destination.as_ref().map(plain_destination);
        Send { wr_id, tag, operation, flags, segments, destination }
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
    segments: Range<usize>,
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
    #[inline(never)]
    pub(in crate::backend) fn add(&mut self, request: &RecvRequest<'_>) {
        let start = self.segments.len();
        self.segments.extend_from_slice(request.segments);
        let segments = start..self.segments.len();
        self.requests.push(Recv { wr_id: request.wr_id, tag: request.tag, segments });
    }

    /// Returns a request as it was posted.
    pub(in crate::backend) fn posted_request(&self, index: usize) -> RecvRequest<'_> {
        self.plain(&self.requests[index])
    }

    /// Returns the requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = RecvRequest<'_>> {
        self.requests.iter().map(|recv| self.plain(recv))
    }

    fn plain(&self, recv: &Recv) -> RecvRequest<'_> {
        let segments = &self.segments[recv.segments.clone()];
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
