//! Requests: work that is posted to a queue pair.

mod batch;
mod completion;
mod in_flight;
pub(crate) mod operation;
mod ring;
mod scratch;
mod window;

pub(crate) use batch::Batch;
pub use completion::{Completion, RequestIds};
pub(crate) use in_flight::{Completing, InFlight, Marker, Posting, queue};
pub(crate) use operation::public_outcome;
pub use operation::{CompletedOperation, Success};
pub(crate) use scratch::Scratch;

use std::fmt;

use adverb_proto::types::{
    ExtendedOperation, FlushPlacement, FlushRange, LocalMemory, RemoteAddress, RemoteMemory, SendFlags,
    SendOperation,
};

use crate::device::UdDestination;
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
    pub(super) destination: Option<UdDestination>,
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

    /// Creates an ATOMIC WRITE: the eight bytes are written to the peer's memory as a whole, so that no reader sees only
    /// some of them. The peer receives no completion.
    ///
    /// The remote address must be a multiple of 8. The peer's memory and queue pair must allow remote writes. Use
    /// [`to_ne_bytes`](u64::to_ne_bytes) to write a word that a peer of the same byte order reads with
    /// [`word`](crate::memory::MemoryRegion::word).
    ///
    /// ATOMIC WRITE requires an RC queue pair and a device with
    /// [`has_atomic_write`](crate::DeviceAttributes::has_atomic_write). On other devices, a WRITE of eight aligned bytes
    /// is usually atomic, but the specification doesn't guarantee it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use std::sync::atomic::Ordering;
    /// use adverb::verbs::{Access, SendRequest};
    /// # let device = adverb::verbs::SoftDevice::loopback().open()?;
    /// # let domain = device.create_protection_domain()?;
    /// # let queue = device.completion_queue(16).create()?;
    /// # let end = || domain.queue_pair(adverb::verbs::Transport::Rc).completion_queue(&queue).depth(4, 4).create();
    /// # let (queue_pair, peer) = (end()?, end()?);
    /// # queue_pair.connect(&peer.endpoint())?;
    /// # peer.connect(&queue_pair.endpoint())?;
    ///
    /// // The peer registers memory that this side may write.
    /// let region = domain.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    ///
    /// let version: u64 = 7;
    /// let request = SendRequest::atomic_write(version.to_ne_bytes(), region.remote().at(64));
    /// let id = queue_pair.post_send(request)?;
    /// queue.wait(id, Duration::from_secs(5))?.result()?;
    /// assert_eq!(region.word(64)?.load(Ordering::Acquire), 7);
    /// # Ok::<(), adverb::Error>(())
    /// ```
    pub fn atomic_write(bytes: [u8; 8], remote: RemoteAddress) -> SendRequest {
        SendRequest::new(SendOperation::AtomicWrite { remote, bytes }, ())
    }

    /// Creates a FLUSH of a range of the peer's memory. When it completes, the bytes that earlier requests of this queue
    /// pair wrote to the range have the given placement: they are globally visible, persistent, or both. The completion
    /// of a WRITE alone guarantees neither.
    ///
    /// The range has at most 2 GiB. The peer's memory and queue pair must allow the flush, with
    /// [`FLUSH_GLOBAL`](crate::Access::FLUSH_GLOBAL) or [`FLUSH_PERSISTENT`](crate::Access::FLUSH_PERSISTENT).
    ///
    /// FLUSH requires an RC queue pair and a device that supports the placement: see
    /// [`DeviceAttributes::flush`](crate::DeviceAttributes::flush). The software NIC supports
    /// [`GLOBAL`](FlushPlacement::GLOBAL).
    ///
    /// ```
    /// # use std::time::Duration;
    /// use adverb::verbs::{Access, FlushPlacement, SendRequest};
    /// # let device = adverb::verbs::SoftDevice::loopback().open()?;
    /// # let domain = device.create_protection_domain()?;
    /// # let queue = device.completion_queue(16).create()?;
    /// # let end = || domain.queue_pair(adverb::verbs::Transport::Rc).completion_queue(&queue).depth(4, 4).create();
    /// # let (queue_pair, peer) = (end()?, end()?);
    /// # queue_pair.connect(&peer.endpoint())?;
    /// # peer.connect(&queue_pair.endpoint())?;
    ///
    /// // The peer registers memory that this side may write and flush.
    /// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
    /// let log = domain.allocate_region(4096, access)?;
    ///
    /// // One doorbell for both requests; the FLUSH executes after the WRITE.
    /// let mut record = domain.allocate_buffer(6)?;
    /// record.copy_from_slice(b"record");
    /// let write = SendRequest::write(record, log.remote().at(0)).unsignaled();
    /// let flush = SendRequest::flush(log.remote(), FlushPlacement::GLOBAL);
    /// let flushed = queue_pair.post_sends([write, flush])?.last().unwrap();
    /// queue.wait(flushed, Duration::from_secs(5))?.result()?;
    /// # Ok::<(), adverb::Error>(())
    /// ```
    pub fn flush(range: RemoteMemory, placement: FlushPlacement) -> SendRequest {
        // A length of more than 32 bits becomes `u32::MAX`, which `invalid_reason` rejects, too.
        let length = u32::try_from(range.len).unwrap_or(u32::MAX);
        SendRequest::new_flush(range.at(0), length, false, placement)
    }

    /// Creates a FLUSH of the whole memory region, or memory window, that has the key `rkey` at the peer. Otherwise it
    /// works like [`flush`](SendRequest::flush).
    pub fn flush_region(rkey: u32, placement: FlushPlacement) -> SendRequest {
        SendRequest::new_flush(RemoteAddress { addr: 0, rkey }, 0, true, placement)
    }

    fn new_flush(
        remote: RemoteAddress,
        length: u32,
        whole_region: bool,
        placement: FlushPlacement,
    ) -> SendRequest {
        let (global, persistent) =
            (placement.contains(FlushPlacement::GLOBAL), placement.contains(FlushPlacement::PERSISTENT));
        let range = FlushRange { remote, length, whole_region, global, persistent };
        SendRequest::new(SendOperation::Flush(range), ())
    }

    #[inline]
    pub(super) fn new(operation: SendOperation, payload: impl Into<Payload>) -> SendRequest {
        SendRequest {
            operation,
            flags: SendFlags::SIGNALED,
            payload: payload.into(),
            tag: 0,
            destination: None,
        }
    }

    /// Sets the destination of a datagram. Every SEND on a UD queue pair requires a destination.
    pub fn destination(mut self, destination: &UdDestination) -> SendRequest {
        self.destination = Some(destination.clone());
        self
    }

    /// Marks the request as unsignaled: the device produces no completion for it if it succeeds. Its
    /// [`Completion`](crate::Completion) is returned together with the completion of the next signaled request.
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
    /// [`max_inline_data`](crate::QueuePairBuilder::max_inline_data), and its memory must be registered at its virtual
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
        self.operation.local_memory().is_written()
    }

    /// Returns a reason to reject the request that doesn't depend on the queue pair.
    #[inline]
    pub(super) fn invalid_reason(&self) -> Option<&'static str> {
        if self.is_written_locally() {
            if self.flags.contains(SendFlags::INLINE) {
                return Some(
                    "only SEND and WRITE can be inline: READ and atomics write into their local memory",
                );
            }
            if !self.payload.segments().iter().all(PayloadSegment::is_locally_writable) {
                return Some("READ and atomics require local memory with LOCAL_WRITE access");
            }
            if self.operation.local_memory() == LocalMemory::Word && self.payload.len() != 8 {
                return Some("an atomic operation requires a payload of exactly 8 bytes");
            }
        } else if let Some(operation) = self.operation.extended() {
            return self.extended_invalid_reason(operation);
        } else if self.flags.contains(SendFlags::INLINE)
            && !self.payload.segments().iter().all(PayloadSegment::is_identity_mapped)
        {
            return Some(
                "inline data requires memory that is registered at its own address: the CPU reads it at the segment's \
                 address",
            );
        }
        None
    }

    /// Returns a reason to reject an ATOMIC WRITE or a FLUSH.
    fn extended_invalid_reason(&self, operation: ExtendedOperation) -> Option<&'static str> {
        if self.flags.contains(SendFlags::INLINE) {
            return Some("only SEND and WRITE can be inline: ATOMIC WRITE and FLUSH have no payload");
        }
        match operation {
            ExtendedOperation::AtomicWrite { remote, .. } if !remote.addr.is_multiple_of(8) => {
                Some("an ATOMIC WRITE requires a remote address that is a multiple of 8")
            }
            ExtendedOperation::Flush(range) if range.placement().is_empty() => {
                Some("a FLUSH requires a placement: GLOBAL, PERSISTENT or both")
            }
            ExtendedOperation::Flush(range) if range.length > MAX_FLUSH_LEN => Some(
                "a FLUSH of a range covers at most 2 GiB: flush several ranges, or the region with `flush_region`",
            ),
            ExtendedOperation::AtomicWrite { .. } | ExtendedOperation::Flush(_) => None,
        }
    }
}

/// Whether requests with this operation can be on the fast path: the common ones, whose bytes go to the peer.
#[inline(always)]
pub(super) const fn is_on_fast_path(operation: &SendOperation) -> bool {
    match operation {
        SendOperation::Send
        | SendOperation::SendWithImm(_)
        | SendOperation::Write(_)
        | SendOperation::WriteWithImm(..) => true,
        SendOperation::SendInvalidate(_)
        | SendOperation::Read(_)
        | SendOperation::CompareSwap { .. }
        | SendOperation::FetchAdd { .. }
        | SendOperation::AtomicWrite { .. }
        | SendOperation::Flush(_)
        | SendOperation::LocalInvalidate(_)
        | SendOperation::BindWindow(_) => false,
    }
}

/// The maximum length of a FLUSH of a range, which is that of every message (vol. 1, 9.7.7).
const MAX_FLUSH_LEN: u32 = 1 << 31;

/// A request for a receive queue: a payload that receives one message.
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct RecvRequest {
    pub(super) payload: Payload,
    pub(super) tag: u64,
}

impl RecvRequest {
    /// Creates a receive request. A message may be shorter than the payload. If the message is longer, the request
    /// fails on a reliable connection; on other transports, the device may drop the message and keep the request.
    ///
    /// On a UD queue pair, posting fails if the payload is shorter than 40 bytes, for the global route header (GRH), plus
    /// the MTU of the port, which is the queue pair's [`max_message_size`](crate::QueuePair::max_message_size).
    /// [`Datagram`](crate::Datagram) has an example.
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

/// A request that was outstanding when its queue pair was [reset](crate::QueuePair::reset).
#[derive(Debug)]
#[non_exhaustive]
pub struct ReclaimedRequest {
    /// The tag of the request.
    pub tag: u64,
    /// The payload of the request.
    pub payload: Payload,
}

/// The error of a post operation, with the requests that were not posted. These requests own their payloads.
///
/// If a device fails without reporting how many requests it accepted, all of them count as posted: the error doesn't
/// contain them, and their memory is freed when the queue pair is destroyed. (Linux soft-RoCE, for example, may execute
/// a request whose posting failed.) [`QueuePair::reset`](crate::QueuePair::reset) returns their memory earlier.
///
/// `Display` and [`source`](std::error::Error::source) are those of the cause.
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

impl<R> std::error::Error for PostError<R> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Drops the requests and keeps the cause.
impl<R> From<PostError<R>> for Error {
    fn from(error: PostError<R>) -> Error {
        error.error
    }
}
