//! What is posted to a queue pair.

use std::fmt;

use adverb_proto::types::{RemoteAddress, SendFlags, SendOperation};

use super::UdDestination;
use crate::error::Error;
use crate::memory::{Buffer, Payload, Piece, RegisteredBuf};

/// A request for a send queue: what to do, with which memory.
///
/// It asks for a completion unless [`unsignaled`](SendRequest::unsignaled) is called.
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
    /// Sends a message into the peer's next receive buffer.
    #[inline]
    pub fn send(payload: impl Into<Payload>) -> SendRequest {
        SendRequest::new(SendOperation::Send, payload)
    }

    /// Sends a message with 32 bits beside it.
    pub fn send_with_imm(payload: impl Into<Payload>, immediate: u32) -> SendRequest {
        SendRequest::new(SendOperation::SendImmediate(immediate), payload)
    }

    /// Sends a message that also takes back a right that the peer gave: its `rkey` is invalid afterwards.
    pub fn send_invalidate(payload: impl Into<Payload>, rkey: u32) -> SendRequest {
        SendRequest::new(SendOperation::SendInvalidate(rkey), payload)
    }

    /// Writes into the peer's memory. The peer isn't told.
    #[inline]
    pub fn write(payload: impl Into<Payload>, remote: RemoteAddress) -> SendRequest {
        SendRequest::new(SendOperation::Write(remote), payload)
    }

    /// Writes into the peer's memory, and tells it with 32 bits, which consume a receive request there.
    pub fn write_with_imm(payload: impl Into<Payload>, remote: RemoteAddress, immediate: u32) -> SendRequest {
        SendRequest::new(SendOperation::WriteImmediate(remote, immediate), payload)
    }

    /// Reads from the peer's memory, as many bytes as the payload has.
    #[inline]
    pub fn read(payload: impl Into<Payload>, remote: RemoteAddress) -> SendRequest {
        SendRequest::new(SendOperation::Read(remote), payload)
    }

    /// If the peer's 64-bit word is `compare`, makes it `swap`. The word as it was comes into the eight bytes of
    /// `original`, in this machine's byte order.
    pub fn compare_swap(
        original: impl Into<Payload>,
        remote: RemoteAddress,
        compare: u64,
        swap: u64,
    ) -> SendRequest {
        SendRequest::new(SendOperation::CompareSwap { remote, compare, swap }, original)
    }

    /// Adds to the peer's 64-bit word, wrapping. The word as it was comes into the eight bytes of `original`, in this
    /// machine's byte order.
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

    /// Names the recipient of a datagram: on a datagram queue pair every SEND needs one.
    pub fn destination(mut self, destination: &UdDestination) -> SendRequest {
        self.recipient = Some(destination.clone());
        self
    }

    /// Asks the device for no completion. The request's own comes together with the next that asks, and costs less.
    pub fn unsignaled(mut self) -> SendRequest {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }

    /// Waits until earlier READs and atomics of this queue pair are done.
    pub fn fence(mut self) -> SendRequest {
        self.flags.insert(SendFlags::FENCE);
        self
    }

    /// Wakes the peer, if it waits for solicited completions only.
    pub fn solicited(mut self) -> SendRequest {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }

    /// Has the device take the bytes while the request is posted, which is faster for short ones. Only for SEND and
    /// WRITE, as many bytes as the queue pair was created for, and memory that is registered under its own addresses.
    pub fn inline(mut self) -> SendRequest {
        self.flags.insert(SendFlags::INLINE);
        self
    }

    /// Gives the request a number that its completion repeats.
    pub fn tag(mut self, tag: u64) -> SendRequest {
        self.tag = tag;
        self
    }

    /// The request's memory, to use otherwise.
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

    /// What is wrong with the request whatever queue pair it is for, if anything.
    #[inline]
    pub(super) fn flaw(&self) -> Option<&'static str> {
        if self.is_written_locally() {
            if self.flags.contains(SendFlags::INLINE) {
                return Some("only SEND and WRITE can be inlined: nothing is written into inlined bytes");
            }
            if !self.payload.pieces().iter().all(Piece::is_locally_writable) {
                return Some("what comes back needs memory with the right LOCAL_WRITE");
            }
            if !matches!(self.operation, SendOperation::Read(_)) && self.payload.len() != 8 {
                return Some(
                    "an atomic operation works on eight bytes, and its payload must have just as many",
                );
            }
        } else if self.flags.contains(SendFlags::INLINE)
            && !self.payload.pieces().iter().all(Piece::is_at_its_own_address)
        {
            return Some(
                "memory that is registered under other addresses than its own can't be inlined: the bytes are looked \
                 for where they are said to be",
            );
        }
        None
    }
}

/// A request for a receive queue: where a message goes.
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct RecvRequest {
    pub(super) payload: Payload,
    pub(super) tag: u64,
}

impl RecvRequest {
    /// A place for a message: it may be shorter, and fails if it is longer.
    #[inline]
    pub fn new(payload: impl Into<Payload>) -> RecvRequest {
        RecvRequest { payload: payload.into(), tag: 0 }
    }

    /// Gives the request a number that its completion repeats.
    pub fn tag(mut self, tag: u64) -> RecvRequest {
        self.tag = tag;
        self
    }

    /// The request's memory, to use otherwise.
    pub fn into_payload(self) -> Payload {
        self.payload
    }
}

impl From<Buffer> for RecvRequest {
    fn from(buffer: Buffer) -> RecvRequest {
        RecvRequest::new(buffer)
    }
}

impl From<RegisteredBuf> for RecvRequest {
    fn from(buffer: RegisteredBuf) -> RecvRequest {
        RecvRequest::new(buffer)
    }
}

/// Posting failed: why, and the requests that weren't posted, with their memory.
///
/// If a device fails without saying how far it got, the requests count as posted: they are not here, and their memory
/// is freed when the queue pair is destroyed. (Linux soft-RoCE, for one, may execute a request whose posting failed.)
pub struct PostError<R> {
    /// Why.
    pub error: Error,
    /// The requests that weren't posted, in order.
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

/// Drops the requests: for callers that only want to know why.
impl<R> From<PostError<R>> for Error {
    fn from(error: PostError<R>) -> Error {
        error.error
    }
}
