//! Replay: messages that the peer may not have received are kept, and replayed over the next lane.

use std::collections::VecDeque;

use crate::MAX_RING_SIZE;
use crate::frame::{Frame, FrameKind, HEADER_LEN};
use crate::memory::Buf;
use crate::mutation::mutant;
use crate::send::UnreadRendezvous;
use crate::types::{Payload, Unacknowledged};

/// The number of kept bytes beyond which nothing more is written. The peer's credits limit the unread bytes to the size
/// of its ring, so this limit matters only for a peer that reads its ring but never reads a rendezvous message.
const MAX_KEPT_BYTES: usize = 2 * MAX_RING_SIZE as usize;

/// A write that the device has returned, and whose messages the peer may not have received.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Kept<B> {
    /// The number of the write over the lane, counted from 1.
    write: u64,
    /// The number of its first message.
    first: u64,
    buf: B,
}

/// A message that is replayed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Outstanding<B, R> {
    pub(crate) number: u64,
    pub(crate) immediate: Option<u32>,
    pub(crate) content: Content<B, R>,
}

/// The content of an [`Outstanding`] message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Content<B, R> {
    /// A message whose memory isn't registered for the current lane.
    Message(Payload<B, R>),
    /// A message whose memory the driver is registering.
    Registering,
    /// A message that the peer can read over the current lane.
    Registered(R),
    Shutdown,
    Close,
}

/// The messages that are kept, and those that are replayed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Replay<B, R> {
    /// The writes in flight: their numbers, and the numbers of their first messages.
    posted: VecDeque<(u64, u64)>,
    kept: VecDeque<Kept<B>>,
    kept_bytes: usize,
    /// The number of writes that the peer has read.
    read: u64,
    /// The messages that are sent before any other, in order.
    pub(crate) queue: VecDeque<Outstanding<B, R>>,
}

impl<B: Buf, R> Replay<B, R> {
    pub(crate) fn new() -> Replay<B, R> {
        Replay {
            posted: VecDeque::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            read: 0,
            queue: VecDeque::new(),
        }
    }

    /// Whether so much is kept that nothing more is written.
    pub(crate) fn is_full(&self) -> bool {
        self.kept_bytes >= MAX_KEPT_BYTES
    }

    /// Returns the number of bytes in kept writes, and in messages that are replayed.
    pub(crate) fn kept_bytes(&self) -> usize {
        let queued = self.queue.iter().map(|item| match &item.content {
            Content::Message(Payload::Buf(buf)) => buf.as_ref().len(),
            _ => 0,
        });
        self.kept_bytes + queued.sum::<usize>()
    }

    /// Notes that a write is posted.
    pub(crate) fn post(&mut self, write: u64, first: u64) {
        self.posted.push_back((write, first));
    }

    /// Keeps the oldest write, which the device returned.
    pub(crate) fn keep(&mut self, buf: B) {
        if let Some((write, first)) = self.posted.pop_front() {
            if mutant!(ForgetWhenCompleted) {
                return;
            }
            self.kept_bytes += buf.as_ref().len();
            self.kept.push_back(Kept { write, first, buf });
        }
    }

    /// Removes the newest write, which the device refused, and returns the number of its first message.
    pub(crate) fn refuse(&mut self) -> Option<u64> {
        self.posted.pop_back().map(|(_, first)| first)
    }

    /// Notes that the peer has read this number of writes.
    pub(crate) fn acknowledge(&mut self, writes: u64) {
        self.read = writes;
    }

    /// Forgets the writes that the peer has read, up to the first rendezvous message that the peer has not read: the
    /// write with that message is kept, and so are all later ones. `unread_rendezvous` is the number of that message,
    /// and `end` the number of the first message that isn't posted.
    pub(crate) fn forget(&mut self, unread_rendezvous: Option<u64>, end: u64) {
        if mutant!(NothingForgotten) {
            return;
        }
        let unread_rendezvous =
            unread_rendezvous.filter(|_| !mutant!(ForgetPastRendezvous)).unwrap_or(u64::MAX);
        while let Some(oldest) = self.kept.front()
            && oldest.write <= self.read
        {
            let next = self.kept.get(1).map(|kept| kept.first);
            let next = next.or_else(|| self.posted.front().map(|(_, first)| *first));
            if unread_rendezvous < next.unwrap_or(end) {
                break;
            }
            if let Some(kept) = self.kept.pop_front() {
                self.kept_bytes -= kept.buf.as_ref().len();
            }
        }
    }

    /// Ends the lane: queues all messages that the peer may not have received. `unposted` are the frames that were
    /// never posted.
    pub(crate) fn end_lane(
        &mut self,
        unposted: Option<(u64, B)>,
        unread_rendezvous: impl Iterator<Item = UnreadRendezvous<R>>,
    ) {
        let mut messages = Vec::new();
        let unposted = unposted.filter(|_| !mutant!(ReplayLosesUnposted));
        let writes = self.kept.drain(..).map(|kept| (kept.first, kept.buf)).chain(unposted);
        for (first, frames) in writes {
            split_frames(first, frames, &mut messages);
        }
        for UnreadRendezvous { number, region, immediate } in unread_rendezvous {
            let content = Content::Message(Payload::Region(region));
            messages.push(Outstanding { number, immediate, content });
        }
        for mut item in self.queue.drain(..) {
            if let Content::Registered(region) = item.content {
                item.content = Content::Message(Payload::Region(region));
            }
            messages.push(item);
        }
        messages.sort_by_key(|message| message.number);
        self.queue.extend(messages);
        self.posted.clear();
        (self.kept_bytes, self.read) = (0, 0);
    }

    /// Removes the messages that the peer has received, and returns their regions. Returns `None` if the peer's number
    /// can't be right, or if one of these messages is being registered.
    pub(crate) fn begin_lane(&mut self, received: u64, taken: u64) -> Option<Vec<R>> {
        let end = if mutant!(ReplayAll) { 0 } else { received };
        let count = self.queue.iter().take_while(|item| item.number < end).count();
        let first = self.queue.get(count).map_or(taken, |item| item.number);
        let is_complete = received <= taken
            && first <= received
            && (self.queue.len() - count) as u64 >= taken - received
            && !self.queue.iter().take(count).any(|item| matches!(item.content, Content::Registering));
        // After an error, the messages stay queued, so that their regions are reported or released.
        if !is_complete {
            return None;
        }
        let released = self.queue.drain(..count).filter_map(|item| match item.content {
            Content::Message(Payload::Region(region)) | Content::Registered(region) => Some(region),
            _ => None,
        });
        let released = released.collect();
        if mutant!(ReplaySkipsFirst) && self.queue.len() > 1 {
            self.queue.pop_front();
        }
        Some(released)
    }

    /// Takes all queued messages, once the connection has ended.
    pub(crate) fn take_messages(&mut self) -> Vec<Unacknowledged<B, R>> {
        let mut messages = Vec::new();
        for item in std::mem::take(&mut self.queue) {
            let Outstanding { number, immediate, content } = item;
            match content {
                Content::Message(payload) => messages.push(Unacknowledged { number, payload, immediate }),
                Content::Registered(region) => {
                    messages.push(Unacknowledged { number, payload: Payload::Region(region), immediate });
                }
                Content::Registering => self.queue.push_back(Outstanding { number, immediate, content }),
                Content::Shutdown | Content::Close => {}
            }
        }
        messages
    }
}

/// Splits frames into messages. [`Replay::end_lane`] adds rendezvous messages itself, and the frames of exposed
/// regions aren't replayed.
fn split_frames<B: Buf, R>(first: u64, mut frames: B, messages: &mut Vec<Outstanding<B, R>>) {
    let mut number = first;
    while let Ok(frame) = Frame::parse(frames.as_ref())
        && frame.frame_len() <= frames.as_ref().len()
    {
        let mut this = frames.split_to(frame.frame_len());
        let content = match frame.kind {
            FrameKind::Message { len } => {
                this.advance(HEADER_LEN);
                this.truncate(len as usize);
                Some(Content::Message(Payload::Buf(this)))
            }
            FrameKind::Shutdown => Some(Content::Shutdown),
            FrameKind::Close => Some(Content::Close),
            FrameKind::Rendezvous { .. } | FrameKind::Expose { .. } | FrameKind::Withdraw { .. } => None,
        };
        if let Some(content) = content {
            messages.push(Outstanding { number, immediate: frame.immediate, content });
        }
        number += u64::from(frame.kind.is_numbered());
    }
}
