//! What became of a request.

use std::fmt;

use adverb_proto::types::{Failure, Qpn, Success};

use super::in_flight::Posting;
use crate::backend::RawOutcome;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Payload, RegisteredBuf};

/// Which request: what posting returned, and its completion repeats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub(super) u64);

/// The requests of a batch, in order: what posting it returned.
#[derive(Clone, Debug)]
pub struct RequestIds {
    /// What all ids of the queue begin with.
    base: u64,
    next: u32,
    left: u32,
}

impl RequestId {
    /// What the ids of a queue for datagrams have. (That of a shared receive queue may come to be one when it has requests
    /// already: there the outcomes say so.)
    pub(super) const DATAGRAM: u64 = 1 << 62;
}

impl RequestIds {
    /// The ids of the next `count` requests of a queue.
    pub(super) fn new(queue: &Posting, count: u32) -> RequestIds {
        let [_, _, _, _, position @ ..] = queue.id(0).to_be_bytes();
        let next = u32::from_be_bytes(position);
        RequestIds { base: queue.id(0) ^ u64::from(next), next, left: count }
    }
}

impl Iterator for RequestIds {
    type Item = RequestId;

    fn next(&mut self) -> Option<RequestId> {
        self.left = self.left.checked_sub(1)?;
        let id = RequestId(self.base | u64::from(self.next));
        self.next = self.next.wrapping_add(1);
        Some(id)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for RequestIds {}

/// What became of a request, and the memory that it had.
///
/// Every request that was posted has exactly one, also those that didn't ask the device for one: theirs come with the
/// next that did.
#[must_use = "it holds the request's buffers, and may say that it failed"]
#[derive(Debug)]
pub struct Completion {
    pub(super) id: RequestId,
    pub(super) tag: u64,
    pub(super) payload: Payload,
    pub(super) outcome: RawOutcome,
}

impl Completion {
    /// Which request: what posting it returned.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The number that the request was given by its maker, 0 if none.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// How it ended. A failure has neither operation nor length: devices leave them undefined.
    pub fn outcome(&self) -> std::result::Result<Success, Failure> {
        self.outcome.explain(self.id.0 & RequestId::DATAGRAM != 0)
    }

    /// The queue pair that the request was executed by: for a receive of a
    /// [shared queue](super::SharedReceiveQueue), the one that its message came to. Completions that the device wasn't
    /// asked for, and those with a [timestamp](Completion::timestamp), don't say.
    pub fn qpn(&self) -> Option<Qpn> {
        self.outcome.qpn()
    }

    /// When it was completed, in ticks of the device's [clock](super::DeviceAttributes::timestamp_clock). Only completions of a
    /// queue that was made with [timestamps](super::CompletionQueueBuilder::timestamps) have it, and of these not the ones
    /// that the device wasn't asked for.
    pub fn timestamp(&self) -> Option<u64> {
        self.outcome.timestamp()
    }

    /// Whether it succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.outcome.status == 0
    }

    /// What the request did.
    ///
    /// # Errors
    ///
    /// If it failed: with the status in words, and a hint.
    pub fn success(&self) -> Result<Success> {
        self.outcome().map_err(|failure| Error::RequestFailed { failure })
    }

    /// The memory that the request had.
    pub fn payload(&self) -> &Payload {
        self.settle();
        &self.payload
    }

    /// The memory that the request had, to use again. The request may have failed all the same.
    pub fn into_payload(self) -> Payload {
        self.settle();
        self.payload
    }

    /// The buffer that the request had, if it had just one, to use again. The request may have failed all the same.
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer> {
        self.payload.into_buffer()
    }

    /// The buffer of a pool that the request had, if it had just one, to use again. The request may have failed all the
    /// same.
    #[inline]
    pub fn into_registered(self) -> Option<RegisteredBuf> {
        self.payload.into_registered()
    }

    /// The message that a receive request got: its buffer, narrowed to the bytes that came.
    ///
    /// # Errors
    ///
    /// If the request failed, or isn't a receive into one buffer.
    pub fn into_message(self) -> Result<Buffer> {
        let length = self.success()?.length as usize;
        let mut buffer = self.into_buffer().ok_or_else(not_one_buffer)?;
        let start = buffer.range().start;
        buffer.set_range(start..start + length)?;
        Ok(buffer)
    }

    /// The message that a receive request got into a buffer of a pool, cut to the bytes that came.
    ///
    /// # Errors
    ///
    /// If the request failed, or isn't a receive into one such buffer.
    pub fn into_registered_message(self) -> Result<RegisteredBuf> {
        let length = self.success()?.length as usize;
        let mut buffer = self.into_registered().ok_or_else(not_one_buffer)?;
        buffer.resize(length)?;
        Ok(buffer)
    }
}

fn not_one_buffer() -> Error {
    Error::InvalidRequest { reason: "the request hadn't just one buffer of this kind".into() }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outcome() {
            Ok(success) => write!(f, "{:?}, {} bytes", success.operation, success.length),
            Err(failure) => fmt::Display::fmt(&failure.status, f),
        }
    }
}
