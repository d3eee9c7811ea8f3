//! Plain data of the connection's inputs and outputs.

use core::fmt;

use adverb_proto::types::{RemoteAddress, Status};

use crate::frame::ExposedRegion;
use crate::hello::{HELLO_LEN, SessionId};

/// The side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The side that dials, and redials after a failure.
    Connector,
    /// The side that accepts.
    Listener,
}

/// A protocol violation by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Violation(pub(crate) &'static str);

impl Violation {
    /// Creates the violation that a driver has found. The text is a clause about the peer: "it sent ...".
    pub const fn new(text: &'static str) -> Violation {
        Violation(text)
    }

    /// Returns the clause about the peer.
    pub const fn clause(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protocol violation by the peer: {}", self.0)
    }
}

impl std::error::Error for Violation {}

/// The kind of a request, which its completion repeats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Tag {
    /// A receive.
    Recv = 1,
    /// The hello.
    Hello = 2,
    /// A write with frames.
    Frames = 3,
    /// A write whose last frame is the close.
    Close = 4,
    /// A write that returns credits.
    Credits = 5,
    /// A write that reports rendezvous messages as read.
    RendezvousDone = 6,
    /// The write after which this side sends nothing more.
    CloseAck = 7,
    /// An empty write, which the peer's device acknowledges.
    Probe = 8,
    /// A READ of a rendezvous message, or of a part of it.
    Read = 9,
    /// A one-sided operation of the application, whose memory the driver keeps.
    Operation = 10,
}

impl Tag {
    const ALL: [Tag; 10] = [
        Tag::Recv,
        Tag::Hello,
        Tag::Frames,
        Tag::Close,
        Tag::Credits,
        Tag::RendezvousDone,
        Tag::CloseAck,
        Tag::Probe,
        Tag::Read,
        Tag::Operation,
    ];

    /// Returns the tag as the id of a work request.
    pub fn wr_id(self) -> u64 {
        self as u64
    }

    /// Returns the tag with this id.
    pub fn from_wr_id(wr_id: u64) -> Option<Tag> {
        let index = usize::try_from(wr_id).ok()?.checked_sub(1)?;
        Tag::ALL.get(index).copied()
    }
}

/// Requests for the driver to post, in the order of [`Connection::poll_post`](crate::Connection::poll_post).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Post<B> {
    /// Receives without a buffer, for WRITEs with immediate data. Their tag is [`Tag::Recv`].
    Receives {
        /// The number of receives.
        count: u32,
    },
    /// The hello, a SEND. The driver allocates its buffer, and seals it if there is a key. The request is signaled.
    Hello {
        /// The bytes of the hello.
        bytes: [u8; HELLO_LEN],
    },
    /// A WRITE with immediate data.
    Write {
        /// The kind of the request.
        tag: Tag,
        /// The frames; `None` for a write of zero bytes.
        buf: Option<B>,
        /// The place in the peer's ring.
        remote: RemoteAddress,
        /// The immediate data.
        immediate: u32,
        /// Whether the request is signaled. An unsignaled request that succeeds has no completion of its own.
        is_signaled: bool,
    },
    /// A signaled WRITE of zero bytes without immediate data.
    Probe {
        /// The peer's ring.
        remote: RemoteAddress,
    },
    /// A signaled READ.
    Read {
        /// The buffer for the bytes.
        buf: B,
        /// The peer's memory.
        remote: RemoteAddress,
    },
}

/// A write with one eager message, which [`Connection::send_at_once`](crate::Connection::send_at_once) returns. Its tag
/// is [`Tag::Frames`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EagerWrite<B> {
    /// The message's frame.
    pub buf: B,
    /// The place in the peer's ring.
    pub remote: RemoteAddress,
    /// The immediate data of the write.
    pub immediate: u32,
    /// Whether the request is signaled.
    pub is_signaled: bool,
}

impl<B> From<EagerWrite<B>> for Post<B> {
    fn from(write: EagerWrite<B>) -> Post<B> {
        let EagerWrite { buf, remote, immediate, is_signaled } = write;
        Post::Write { tag: Tag::Frames, buf: Some(buf), remote, immediate, is_signaled }
    }
}

/// A completed request.
///
/// Requests complete in the order in which they were posted. An unsignaled request that succeeds has no completion of
/// its own: the driver passes on [`Completed::Sent`] for it just before the next completion of the send queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Completed<B> {
    /// The peer's WRITE with immediate data arrived.
    Received {
        /// The immediate data.
        immediate: u32,
        /// The number of bytes written.
        len: u32,
    },
    /// A send request succeeded.
    Sent {
        /// The kind of the request.
        tag: Tag,
        /// The request's buffer.
        buf: Option<B>,
    },
    /// A request failed or was flushed.
    Failed {
        /// The kind of the request.
        tag: Tag,
        /// The request's buffer.
        buf: Option<B>,
        /// The status.
        status: Status,
    },
}

/// Memory of a message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Payload<B, R> {
    /// A buffer.
    Buf(B),
    /// A buffer that was registered for an earlier lane.
    Region(R),
}

/// Memory for the driver to register, without a lock held: registering may take long.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Register<B, R> {
    /// The id, for [`Connection::handle_registered`](crate::Connection::handle_registered).
    pub id: RegisterId,
    /// The memory.
    pub memory: RegisterMemory<B, R>,
}

/// The memory of a [`Register`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RegisterMemory<B, R> {
    /// New memory for the ring, which the peer may write.
    Ring {
        /// The length in bytes.
        len: u32,
    },
    /// The memory of a message, which the peer may read over the current lane. A region of an earlier lane is
    /// deregistered first.
    Message(Payload<B, R>),
    /// A region that this side exposes, and that is not registered for the current lane yet. The driver registers the
    /// same memory with the same rights for it.
    Exposed(R),
}

/// The id of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegisterId {
    pub(crate) lane: u32,
    pub(crate) target: RegisterTarget,
}

/// The purpose of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RegisterTarget {
    Ring,
    /// The message of this number.
    Message(u64),
    /// The exposed region of this number.
    Exposed(u64),
}

/// A received message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message<B> {
    /// The bytes.
    pub buf: B,
    /// The immediate data.
    pub immediate: Option<u32>,
}

/// The result of [`Connection::recv`](crate::Connection::recv).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Received<B> {
    /// The next message.
    Message(Message<B>),
    /// No message has arrived.
    Pending,
    /// The peer has shut down sending, and all messages were received.
    Shutdown,
    /// The connection has ended.
    Ended(EndReason),
}

/// A message that the peer may not have received when the connection ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Unacknowledged<B, R> {
    /// The number of the message, counted from 0.
    pub number: u64,
    /// The message's memory.
    pub payload: Payload<B, R>,
    /// The immediate data.
    pub immediate: Option<u32>,
}

/// A change that the driver or the application must know.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Event<R> {
    /// The lane is established: messages can be sent.
    Established {
        /// The number of the lane, counted from 0.
        lane: u32,
    },
    /// The peer exposes memory over the current lane.
    Exposed {
        /// The name of the region; empty if the region is found by its addresses.
        name: String,
        /// The region.
        region: ExposedRegion,
    },
    /// The peer has withdrawn the memory that it exposed over the current lane under this name, if it exposed any.
    Withdrawn {
        /// The name.
        name: String,
    },
    /// The region isn't used any more: the driver deregisters it.
    Release(R),
    /// The driver moves the queue pair to the error state, passes on the completions of all its requests, resets or
    /// destroys it, and calls [`handle_drained`](crate::Connection::handle_drained).
    Drain,
    /// The connector dials again, and then calls [`attach`](crate::Connection::attach) or
    /// [`handle_dial_failed`](crate::Connection::handle_dial_failed).
    Redial {
        /// The session.
        session: SessionId,
    },
    /// The connection has ended, and has no lane.
    Closed(EndReason),
}

/// The reason of a connection's end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum EndReason {
    /// This side closed the connection, the peer's device has all messages, and the peer has read the rendezvous
    /// messages among them. The peer's application may still discard them: see
    /// [`Connection::close`](crate::Connection::close).
    Closed,
    /// The peer closed the connection.
    PeerClosed,
    /// The peer ended the connection without a close: its program has exited or dropped the connection, or it had no memory
    /// for a message.
    PeerAborted,
    /// The application aborted the connection.
    Aborted,
    /// A request failed.
    RequestFailed(Status),
    /// The device, its connection manager or the driver reported a failure.
    LaneFailed,
    /// The peer didn't complete the handshake in time.
    HandshakeTimedOut,
    /// The peer didn't take all messages before the time limit of the close.
    CloseTimedOut,
    /// The lane failed, and no other was established in time.
    ReconnectTimedOut,
    /// The peer doesn't know the session.
    SessionUnknown,
    /// The peer has dialed again, so the lane was replaced.
    Replaced,
    /// Memory could not be allocated or registered.
    OutOfMemory,
    /// The peer violated the protocol.
    ProtocolViolation(Violation),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Closed => write!(f, "the connection was closed"),
            EndReason::PeerClosed => write!(f, "the peer closed the connection"),
            EndReason::PeerAborted => {
                write!(
                    f,
                    "the peer's program exited, dropped the connection without closing it, or had no memory for a message"
                )
            }
            EndReason::Aborted => write!(f, "the connection was aborted"),
            EndReason::RequestFailed(status) => write!(f, "a request failed: {status}"),
            EndReason::LaneFailed => write!(f, "the queue pair of the connection failed"),
            EndReason::HandshakeTimedOut => write!(f, "the peer did not complete the handshake in time"),
            EndReason::CloseTimedOut => {
                write!(f, "the peer did not take all messages before the time limit of the close")
            }
            EndReason::ReconnectTimedOut => {
                write!(f, "the connection failed and was not re-established in time")
            }
            EndReason::SessionUnknown => write!(
                f,
                "the peer does not know the session: its program has restarted, closed the connection, or stopped waiting"
            ),
            EndReason::Replaced => write!(f, "the peer reconnected over another path"),
            EndReason::OutOfMemory => {
                write!(f, "the memory of a message could not be allocated or registered")
            }
            EndReason::ProtocolViolation(violation) => violation.fmt(f),
        }
    }
}

/// The reason why a call was refused. A refused call has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SendError {
    /// Credits, memory or an established lane are missing, the send queue is full, or a replay is unfinished: the
    /// caller tries again after the next completion.
    WouldBlock,
    /// This side has shut down sending.
    Shutdown,
    /// The message is too long for an eager message, or for the peer.
    TooLong {
        /// The length of the message.
        len: u64,
        /// The maximum.
        max: u32,
    },
    /// The region was registered for an earlier lane, or the operation belongs to one.
    StaleRegion,
    /// The connection has ended, or the peer has closed it.
    Ended(EndReason),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::WouldBlock => {
                write!(f, "the connection cannot take the message yet: poll, and try again")
            }
            SendError::Shutdown => write!(f, "this side has shut down sending"),
            SendError::TooLong { len, max } => {
                write!(f, "the message has {len} bytes: the maximum is {max}")
            }
            SendError::StaleRegion => {
                write!(f, "the region was registered for an earlier lane: register it again")
            }
            SendError::Ended(reason) => reason.fmt(f),
        }
    }
}

impl std::error::Error for SendError {}
