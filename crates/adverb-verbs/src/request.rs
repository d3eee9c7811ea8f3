//! Requests: work that is posted to a queue pair.

use std::fmt;

use adverb_proto::types::{RemoteAddress, SendFlags, SendOperation};

use super::UdDestination;
use crate::error::Error;
use crate::memory::{Buffer, Payload, PayloadSegment, PoolBuf};

/// A request for a send queue: an operation, its payload and its flags.
///
/// The request is signaled, that is, it produces a completion of its own, unless
/// [`unsignaled`](SendRequest::unsignaled) is called.
///
/// ```no_run
/// # use adverb::verbs::{QueuePair, SendRequest};
/// # use adverb::memory::{Buffer, RemoteMemory};
/// # fn example(queue_pair: &QueuePair, buffer: Buffer, table: RemoteMemory) -> Result<(), Box<dyn std::error::Error>> {
/// queue_pair.post_send(SendRequest::write(buffer, table.at(4096)).tag(7))?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct SendRequest {
    pub(super) operation: SendOperation,
    pub(super) flags: SendFlags,
    pub(super) payload: Payload,
    pub(super) tag: u64,
    pub(super) recipient: Option<UdDestination>,
}

impl SendRequest {
    /// Creates a SEND: the message is placed into the peer's next receive buffer.
    #[inline]
    pub fn send(payload: impl Into<Payload>) -> SendRequest {
        SendRequest::new(SendOperation::Send, payload)
    }

    /// Creates a SEND with 32 bits of immediate data, which the peer's completion contains.
    pub fn send_with_imm(payload: impl Into<Payload>, immediate: u32) -> SendRequest {
        SendRequest::new(SendOperation::SendWithImm(immediate), payload)
    }

    /// Creates a SEND that also invalidates `rkey` at the peer: the key of a memory window that the peer bound.
    pub fn send_invalidate(payload: impl Into<Payload>, rkey: u32) -> SendRequest {
        SendRequest::new(SendOperation::SendInvalidate(rkey), payload)
    }

    /// Creates a WRITE into the peer's memory. The peer receives no completion.
    #[inline]
    pub fn write(payload: impl Into<Payload>, remote: RemoteAddress) -> SendRequest {
        SendRequest::new(SendOperation::Write(remote), payload)
    }

    /// Creates a WRITE into the peer's memory with 32 bits of immediate data. The WRITE consumes a receive request of
    /// the peer, whose completion contains the immediate data.
    pub fn write_with_imm(payload: impl Into<Payload>, remote: RemoteAddress, immediate: u32) -> SendRequest {
        SendRequest::new(SendOperation::WriteWithImm(remote, immediate), payload)
    }

    /// Creates a READ of the peer's memory. The length of the payload is the number of bytes to read.
    #[inline]
    pub fn read(payload: impl Into<Payload>, remote: RemoteAddress) -> SendRequest {
        SendRequest::new(SendOperation::Read(remote), payload)
    }

    /// Creates an atomic compare-and-swap: if the peer's 64-bit word equals `compare`, the word is set to `swap`. The
    /// old value is written to the eight bytes of `original` in this machine's byte order.
    pub fn compare_swap(
        original: impl Into<Payload>,
        remote: RemoteAddress,
        compare: u64,
        swap: u64,
    ) -> SendRequest {
        SendRequest::new(SendOperation::CompareSwap { remote, compare, swap }, original)
    }

    /// Creates an atomic fetch-and-add: `add` is added to the peer's 64-bit word, wrapping on overflow. The old value
    /// is written to the eight bytes of `original` in this machine's byte order.
    pub fn fetch_add(original: impl Into<Payload>, remote: RemoteAddress, add: u64) -> SendRequest {
        SendRequest::new(SendOperation::FetchAdd { remote, add }, original)
    }

    #[inline]
    pub(super) fn new(operation: SendOperation, payload: impl Into<Payload>) -> SendRequest {
        SendRequest {
            operation,
            flags: SendFlags::SIGNALED,
            payload: payload.into(),
            tag: 0,
            recipient: None,
        }
    }

    /// Sets the destination of a datagram. Every SEND on a UD queue pair requires a destination.
    pub fn destination(mut self, destination: &UdDestination) -> SendRequest {
        self.recipient = Some(destination.clone());
        self
    }

    /// Marks the request as unsignaled: the device produces no completion for it if it succeeds. Its
    /// [`Completion`](super::Completion) is returned together with the completion of the next signaled request.
    /// Unsignaled requests cost less than signaled requests.
    pub fn unsignaled(mut self) -> SendRequest {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }

    /// Sets the fence flag: the device starts the request after earlier READs and atomics of this queue pair have
    /// completed.
    pub fn fence(mut self) -> SendRequest {
        self.flags.insert(SendFlags::FENCE);
        self
    }

    /// Sets the solicited-event flag: the completion at the peer also raises an event if the peer's completion queue
    /// is armed for solicited completions only.
    pub fn solicited(mut self) -> SendRequest {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }

    /// Sets the inline flag: the payload is copied while the request is posted, which is faster for short messages.
    ///
    /// Only SEND and WRITE can be inline. The payload is limited by
    /// [`max_inline_data`](super::QueuePairBuilder::max_inline_data), and its memory must be registered at its virtual
    /// addresses.
    pub fn inline(mut self) -> SendRequest {
        self.flags.insert(SendFlags::INLINE);
        self
    }

    /// Sets the tag: a number that the request's completion contains. The default is 0.
    pub fn tag(mut self, tag: u64) -> SendRequest {
        self.tag = tag;
        self
    }

    /// Returns the payload of a request that was not posted.
    pub fn into_payload(self) -> Payload {
        self.payload
    }

    /// Whether the device writes into the payload.
    #[inline]
    pub(super) fn is_written_locally(&self) -> bool {
        matches!(
            self.operation,
            SendOperation::Read(_) | SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. }
        )
    }

    /// Returns a reason to reject the request that doesn't depend on the queue pair.
    #[inline]
    pub(super) fn flaw(&self) -> Option<&'static str> {
        if self.is_written_locally() {
            if self.flags.contains(SendFlags::INLINE) {
                return Some(
                    "only SEND and WRITE can be inline: READ and atomics write into their local memory",
                );
            }
            if !self.payload.segments().iter().all(PayloadSegment::is_locally_writable) {
                return Some("READ and atomics require local memory with LOCAL_WRITE access");
            }
            if !matches!(self.operation, SendOperation::Read(_)) && self.payload.len() != 8 {
                return Some("an atomic operation requires a payload of exactly 8 bytes");
            }
        } else if self.flags.contains(SendFlags::INLINE)
            && !self.payload.segments().iter().all(PayloadSegment::is_at_its_own_address)
        {
            return Some(
                "inline data requires memory that is registered at its own address: the CPU reads it at the segment's \
                 address",
            );
        }
        None
    }
}

/// A request for a receive queue: a payload that receives one message.
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct RecvRequest {
    pub(super) payload: Payload,
    pub(super) tag: u64,
}

impl RecvRequest {
    /// Creates a receive request. A message may be shorter than the payload. The request fails if the message is
    /// longer.
    ///
    /// On a UD queue pair, the payload needs 40 bytes for the global route header plus the MTU of the port.
    #[inline]
    pub fn new(payload: impl Into<Payload>) -> RecvRequest {
        RecvRequest { payload: payload.into(), tag: 0 }
    }

    /// Sets the tag: a number that the request's completion contains. The default is 0.
    pub fn tag(mut self, tag: u64) -> RecvRequest {
        self.tag = tag;
        self
    }

    /// Returns the payload of a request that was not posted.
    pub fn into_payload(self) -> Payload {
        self.payload
    }
}

impl From<Buffer> for RecvRequest {
    fn from(buffer: Buffer) -> RecvRequest {
        RecvRequest::new(buffer)
    }
}

impl From<PoolBuf> for RecvRequest {
    fn from(buffer: PoolBuf) -> RecvRequest {
        RecvRequest::new(buffer)
    }
}

/// The error of a post operation, with the requests that were not posted. These requests own their payloads.
///
/// If a device fails without reporting how many requests it accepted, all of them count as posted: the error doesn't
/// contain them, and their memory is freed when the queue pair is destroyed. (Linux soft-RoCE, for example, may execute
/// a request whose posting failed.)
pub struct PostError<R> {
    /// The cause.
    pub error: Error,
    /// The requests that were not posted, in order.
    pub requests: Vec<R>,
}

impl<R> fmt::Debug for PostError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.requests.len();
        f.debug_struct("PostError").field("error", &self.error).field("request_count", &count).finish()
    }
}

impl<R> fmt::Display for PostError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<R> std::error::Error for PostError<R> {}

/// Drops the requests and keeps the cause.
impl<R> From<PostError<R>> for Error {
    fn from(error: PostError<R>) -> Error {
        error.error
    }
}
