//! The send half: messages become frames, and frames become writes.

use std::collections::VecDeque;

use crate::types::Tag;

/// The application's side of sending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum SendState {
    /// The application may send messages.
    Open,
    /// The application has shut down sending.
    Shutdown(ControlFrame),
    /// The application has closed the connection, and receives nothing more.
    Closing(ControlFrame),
}

/// A shutdown or close frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ControlFrame {
    /// The frame waits for the messages before it.
    Pending,
    /// The frame is in a batch, or was written.
    Taken,
    /// The peer has closed the connection, and this side has read all its messages. The peer may end the lane before a
    /// frame arrives.
    Unneeded,
}

/// The send half of a connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SendHalf<B, R> {
    pub(crate) state: SendState,
    /// The frames that wait for credits, all for one write.
    pub(crate) batch: Option<Batch<B>>,
    /// The rendezvous messages that the peer has not read, in order.
    pub(crate) unread_rendezvous: VecDeque<UnreadRendezvous<R>>,
    /// The number of the next message that becomes a frame.
    pub(crate) next: u64,
    /// The number of messages that the application has sent: more than `next` during a replay.
    pub(crate) taken: u64,
    /// The number of batches that were begun: each becomes a write.
    pub(crate) batch_count: u64,
    pub(crate) delivery: Delivery,
}

/// Whether a lane has delivered all messages that it was to deliver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Delivery {
    /// No request with messages has failed.
    Complete,
    /// The peer may lack messages, because a request with messages failed, or was never posted.
    Incomplete,
}

/// Frames that wait for credits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Batch<B> {
    pub(crate) buf: B,
    /// The number of bytes in use.
    pub(crate) len: usize,
    /// The number of the first message.
    pub(crate) first: u64,
    /// [`Tag::Frames`] or [`Tag::Close`].
    pub(crate) tag: Tag,
    pub(crate) timing: Timing,
}

/// The time at which a batch is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Timing {
    /// The batch is written with the first credits.
    Due,
    /// The batch is written after a flush, or when it is almost full.
    Coalescing,
}

/// A rendezvous message whose frame is in a batch or was written, and that the peer has not read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct UnreadRendezvous<R> {
    pub(crate) number: u64,
    pub(crate) region: R,
    pub(crate) immediate: Option<u32>,
}

impl<B, R> SendHalf<B, R> {
    pub(crate) fn new() -> SendHalf<B, R> {
        SendHalf {
            state: SendState::Open,
            batch: None,
            unread_rendezvous: VecDeque::new(),
            next: 0,
            taken: 0,
            batch_count: 0,
            delivery: Delivery::Complete,
        }
    }
}
