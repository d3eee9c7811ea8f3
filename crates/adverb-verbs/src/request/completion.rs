//! Completions: the results of requests.

use std::fmt;

use adverb_proto::types::{self as plain, Failure, Qpn, TimestampSource};

use super::in_flight::Posting;
use super::operation::{Success, public_outcome};
use crate::backend::{RawOutcome, flag};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Payload, PayloadSegment, PoolBuf};
use crate::request_id::{RequestId, shared_queue_of};

/// The identifiers of the requests of a batch, in the order of posting.
#[derive(Clone, Debug)]
pub struct RequestIds {
    /// The upper bits, which all identifiers of the queue share.
    base: u64,
    next: u32,
    left: u32,
}

impl RequestIds {
    /// Returns the identifiers of the next `count` requests of a queue.
    pub(crate) fn new(queue: &Posting, count: u32) -> RequestIds {
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

/// The completion of a request: its result and its payload.
///
/// Every posted request has exactly one completion. The completion of an unsignaled request is returned together with
/// the completion of the next signaled request.
#[must_use = "a completion holds the request's buffers and may report a failure"]
#[derive(Debug)]
pub struct Completion {
    pub(crate) id: RequestId,
    pub(crate) tag: u64,
    pub(crate) payload: Payload,
    pub(crate) outcome: RawOutcome,
}

impl Completion {
    /// Returns the identifier that posting returned.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the tag of the request. The tag is 0 if the request sets no tag.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the operation and the length of a successful request, or the failure. A failure contains neither
    /// operation nor length, because devices leave them undefined.
    ///
    /// [`result`](Completion::result) returns the same as an [`Error`], for `?`: the error also names the peer, and has a hint.
    #[inline]
    pub fn outcome(&self) -> std::result::Result<Success, Failure> {
        public_outcome(self.plain_outcome())
    }

    /// Returns the plain form of the outcome.
    #[inline]
    pub(crate) fn plain_outcome(&self) -> std::result::Result<plain::Success, Failure> {
        self.outcome.decode(self.id.0 & RequestId::DATAGRAM != 0)
    }

    /// Returns the number of the queue pair that executed the request. For a receive of a [shared receive
    /// queue](crate::SharedReceiveQueue), this is the queue pair that received the message.
    ///
    /// Returns `None` for completions of unsignaled requests and for completions with a
    /// [timestamp](Completion::timestamp).
    pub fn qpn(&self) -> Option<Qpn> {
        self.outcome.qpn()
    }

    /// Returns the time at which the device completed the request, in ticks of the device's
    /// [clock](crate::DeviceAttributes::timestamp_clock).
    ///
    /// Returns `None` for completions of unsignaled requests, and if the completion queue was created without
    /// [timestamps](crate::CompletionQueueBuilder::timestamps).
    pub fn timestamp(&self) -> Option<u64> {
        self.outcome.timestamp()
    }

    /// Returns the component that observed the [timestamp](Completion::timestamp), or `None` without a timestamp.
    ///
    /// It is [`Device`](TimestampSource::Device) for every completion of an RDMA NIC. On a software device, it is
    /// [`Kernel`](TimestampSource::Kernel) for packets that were received through a UDP socket, and for datagrams whose
    /// completion queue has [send timestamps](crate::CompletionQueueBuilder::send_timestamps). It is
    /// [`Process`](TimestampSource::Process) for other sends, and for packets that stay in the process.
    pub fn timestamp_source(&self) -> Option<TimestampSource> {
        self.outcome.timestamp_source()
    }

    /// Whether the request succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.outcome.status == 0
    }

    /// Returns the operation and the length of a successful request, and otherwise an error. A program that matches the
    /// [status](Failure::status) of failures calls [`outcome`](Completion::outcome), which computes no error.
    ///
    /// # Errors
    ///
    /// Returns [`Error::RequestFailed`], with the status and the address of the peer, if the request failed. The
    /// address is `None` for datagrams, for requests of shared receive queues, and for completions with a
    /// [timestamp](Completion::timestamp).
    #[inline]
    pub fn result(&self) -> Result<Success> {
        let failed = |failure| Error::RequestFailed {
            failure,
            is_receive: self.outcome.flags & flag::RECV != 0 || shared_queue_of(self.id.0).is_some(),
            peer: self.outcome.peer().map(|peer| peer.udp_addr().ip()),
        };
        self.outcome().map_err(failed)
    }

    /// Returns the payload of the request.
    pub fn payload(&self) -> &Payload {
        self.update_window();
        &self.payload
    }

    /// Returns the payload of the request for reuse, whether the request succeeded or failed.
    pub fn into_payload(self) -> Payload {
        self.update_window();
        self.payload
    }

    /// Returns the buffer of the request for reuse, whether the request succeeded or failed. Returns `None` if the
    /// payload is not exactly one [`Buffer`].
    #[inline]
    pub fn into_buffer(self) -> Option<Buffer> {
        self.payload.into_buffer()
    }

    /// Returns the pool buffer of the request for reuse, whether the request succeeded or failed. Returns `None` if
    /// the payload is not exactly one [`PoolBuf`].
    #[inline]
    pub fn into_pool_buf(self) -> Option<PoolBuf> {
        self.payload.into_pool_buf()
    }

    /// Returns the received message: the buffer of the receive request, with its range set to the received bytes. On a UD
    /// queue pair, they include the 40 bytes of the GRH; [`into_datagram`](Completion::into_datagram) removes those.
    ///
    /// # Errors
    ///
    /// Returns [`Error::RequestFailed`] if the request failed, and [`Error::InvalidRequest`] if its payload is not
    /// exactly one [`Buffer`]. Both drop the payload; [`into_payload`](Completion::into_payload) returns it in all cases.
    pub fn into_message(self) -> Result<Buffer> {
        let length = self.result()?.length as usize;
        let reason = unexpected_payload(&self.payload);
        let mut buffer = self.into_buffer().ok_or_else(|| Error::InvalidRequest { reason: reason.into() })?;
        let start = buffer.range().start;
        buffer.set_range(start..start + length)?;
        Ok(buffer)
    }

    /// Returns the received message: the pool buffer of the receive request, resized to the received bytes. On a UD queue
    /// pair, they include the 40 bytes of the GRH; [`PoolBuf::split_to`] removes those.
    ///
    /// # Errors
    ///
    /// Returns [`Error::RequestFailed`] if the request failed, and [`Error::InvalidRequest`] if its payload is not
    /// exactly one [`PoolBuf`]. Both drop the payload; [`into_payload`](Completion::into_payload) returns it in all cases.
    pub fn into_pool_message(self) -> Result<PoolBuf> {
        let length = self.result()?.length as usize;
        let reason = unexpected_payload(&self.payload);
        let mut buffer =
            self.into_pool_buf().ok_or_else(|| Error::InvalidRequest { reason: reason.into() })?;
        buffer.resize(length)?;
        Ok(buffer)
    }
}

/// Returns the reason to reject a payload of this kind, with the method for it.
fn unexpected_payload(payload: &Payload) -> &'static str {
    match payload {
        Payload::Empty => "the request has no payload",
        Payload::One(PayloadSegment::Buffer(_)) => {
            "the payload is a buffer, and no pool buffer: call `into_message`, or `into_datagram` for a datagram"
        }
        Payload::One(PayloadSegment::PoolBuf(_)) => {
            "the payload is a pool buffer: call `into_pool_message`, which keeps the 40 bytes of a datagram's GRH"
        }
        Payload::One(PayloadSegment::Region(_)) => "the payload is a part of a region: call `into_payload`",
        Payload::Many(_) => "the payload has several segments: call `into_payload`",
        Payload::Window(_) => "the payload is a memory window: call `into_payload`",
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outcome() {
            Ok(success) => write!(f, "{:?}, {} bytes", success.operation, success.length),
            Err(failure) => fmt::Display::fmt(&failure.status, f),
        }
    }
}
