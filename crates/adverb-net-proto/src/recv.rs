//! The receive half: frames become messages, in order.

use std::collections::VecDeque;

use adverb_proto::types::RemoteAddress;

use crate::MAX_RENDEZVOUS;
use crate::frame::{ExposedRegion, Frame, FrameKind, HEADER_LEN};
use crate::memory::Buf;
use crate::mutation::mutant;
use crate::types::{Message, Violation};

/// The peer's side of sending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RecvState {
    /// More messages may arrive.
    Open,
    /// The peer has shut down sending.
    Shutdown,
    /// The peer has closed the connection. `ends` counts its shutdown and close frames.
    Closed { ends: u64 },
}

impl RecvState {
    /// Returns the number of shutdown and close frames received.
    fn ends(self) -> u64 {
        match self {
            RecvState::Open => 0,
            RecvState::Shutdown => 1,
            RecvState::Closed { ends } => ends,
        }
    }
}

/// A message in the order of arrival.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Entry<B> {
    /// A whole message.
    Message(Message<B>),
    /// A rendezvous message that is in the peer's memory.
    Rendezvous { len: u32, remote: RemoteAddress, immediate: Option<u32> },
    /// A rendezvous message that the device is reading: the parts that have arrived, and the number of those that have
    /// not.
    Reading { arrived: Option<B>, parts: u32, immediate: Option<u32> },
}

/// The receive half of a connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RecvHalf<B> {
    pub(crate) state: RecvState,
    pub(crate) inbox: VecDeque<Entry<B>>,
    /// The numbers of the messages in the inbox that are not whole, in order.
    pub(crate) incomplete: VecDeque<u64>,
    /// The rest of the message whose READs are not all posted: its memory here, and its address in the peer's memory.
    /// The READs of a message are posted after those of all earlier ones.
    pub(crate) unposted: Option<(B, RemoteAddress)>,
    /// The weight of the messages in the inbox for which memory is allocated.
    pub(crate) buffered: usize,
    /// The number of messages that were taken from the ring in this session. Shutdown and close count as messages.
    pub(crate) taken: u64,
}

/// Returns the weight of a message of this length in the inbox. The constant bounds the number of empty messages.
pub(crate) fn weight(len: usize) -> usize {
    len + 64
}

impl<B: Buf> RecvHalf<B> {
    pub(crate) fn new() -> RecvHalf<B> {
        RecvHalf {
            state: RecvState::Open,
            inbox: VecDeque::new(),
            incomplete: VecDeque::new(),
            unposted: None,
            buffered: 0,
            taken: 0,
        }
    }

    /// Whether all messages in the inbox are whole.
    pub(crate) fn is_whole(&self) -> bool {
        self.incomplete.is_empty()
    }

    /// Returns the place of a message in the inbox. Shutdown and close follow all messages.
    fn index_of(&self, number: u64) -> Option<usize> {
        let behind = (self.taken - self.state.ends()).checked_sub(number)?;
        self.inbox.len().checked_sub(usize::try_from(behind).ok()?)
    }

    /// Returns the place of the first incomplete message for which the predicate holds.
    pub(crate) fn find_incomplete(&self, predicate: impl Fn(&Entry<B>) -> bool) -> Option<usize> {
        let indices = self.incomplete.iter().filter_map(|number| self.index_of(*number));
        indices.into_iter().find(|index| self.inbox.get(*index).is_some_and(&predicate))
    }

    /// Discards all messages.
    pub(crate) fn discard(&mut self) {
        self.inbox.clear();
        self.incomplete.clear();
        self.unposted = None;
        self.buffered = 0;
    }

    /// Takes the next message, if it is whole.
    pub(crate) fn pop(&mut self) -> Option<Message<B>> {
        if mutant!(RendezvousOvertaken) {
            let index = self.inbox.iter().position(|entry| matches!(entry, Entry::Message(_)))?;
            self.inbox.swap(0, index);
        }
        if !matches!(self.inbox.front()?, Entry::Message(_)) {
            return None;
        }
        let Some(Entry::Message(message)) = self.inbox.pop_front() else { return None };
        if !mutant!(BufferedForever) {
            self.buffered = self.buffered.saturating_sub(weight(message.buf.as_ref().len()));
        }
        Some(message)
    }

    /// Takes frames of a write. Messages share its buffer. Discards the messages if `discards` is set, because this
    /// side has closed the connection. `done` counts the rendezvous messages that were read, and not reported to the
    /// peer. Calls `announced` with the name of each region that the peer exposes, and the region, or `None` if the peer
    /// withdraws it.
    pub(crate) fn take_frames(
        &mut self,
        frames: B,
        max_message_size: u32,
        discards: bool,
        done: u32,
        mut announced: impl FnMut(&str, Option<ExposedRegion>),
    ) -> Result<(), Violation> {
        let mut rest = Some(frames);
        while let Some(mut frames) = rest.take() {
            let frame = Frame::parse(frames.as_ref())?;
            let may_follow_shutdown = matches!(
                frame.kind,
                FrameKind::Close | FrameKind::Expose { .. } | FrameKind::Withdraw { .. }
            );
            let is_late = match self.state {
                RecvState::Open => false,
                RecvState::Shutdown => !may_follow_shutdown,
                RecvState::Closed { .. } => true,
            };
            if is_late {
                return Err(Violation("it sent frames after its shutdown"));
            }
            if let FrameKind::Message { len } | FrameKind::Rendezvous { len, .. } = frame.kind
                && len > max_message_size
            {
                return Err(Violation("it sent a message longer than the maximum"));
            }
            let number = self.taken;
            self.taken += u64::from(frame.kind.is_numbered());
            let frame_len = frame.frame_len();
            let mut this = if frame_len < frames.as_ref().len() {
                let this = frames.split_to(frame_len);
                rest = Some(frames);
                this
            } else {
                frames
            };
            let immediate = frame.immediate;
            match frame.kind {
                FrameKind::Message { .. } | FrameKind::Rendezvous { .. } if discards => {}
                FrameKind::Message { len } => {
                    this.advance(HEADER_LEN);
                    this.truncate(len as usize);
                    self.buffered += weight(len as usize);
                    self.inbox.push_back(Entry::Message(Message { buf: this, immediate }));
                }
                FrameKind::Rendezvous { len, addr, rkey } => {
                    if self.incomplete.len() + done as usize >= MAX_RENDEZVOUS as usize {
                        return Err(Violation("it sent more rendezvous messages than allowed"));
                    }
                    let remote = RemoteAddress { addr, rkey };
                    self.incomplete.push_back(number);
                    self.inbox.push_back(Entry::Rendezvous { len, remote, immediate });
                }
                kind @ (FrameKind::Expose { .. } | FrameKind::Withdraw { .. }) => {
                    let name = kind.name_range().and_then(|range| this.as_ref().get(range));
                    let name = name.and_then(|name| std::str::from_utf8(name).ok());
                    let name = name.ok_or(Violation("it sent a name of a region that is not UTF-8"))?;
                    let region = match kind {
                        FrameKind::Expose { region, .. } => Some(region),
                        _ => None,
                    };
                    announced(name, region);
                }
                FrameKind::Shutdown => self.state = RecvState::Shutdown,
                FrameKind::Close => self.state = RecvState::Closed { ends: self.state.ends() + 1 },
            }
        }
        Ok(())
    }

    /// Adds a part of the oldest message that the device is reading. READs complete in order. Returns whether the
    /// message is whole.
    pub(crate) fn add_part(&mut self, part: B) -> bool {
        let index = self.find_incomplete(|entry| matches!(entry, Entry::Reading { .. }));
        let Some(index) = index else { return false };
        let Some(entry) = self.inbox.get_mut(index) else { return false };
        let Entry::Reading { arrived, parts, immediate, .. } = entry else { return false };
        *parts = parts.saturating_sub(1);
        let buf = match arrived.take() {
            None => part,
            Some(mut buf) => {
                buf.unsplit(part);
                buf
            }
        };
        if *parts > 0 {
            *arrived = Some(buf);
            return false;
        }
        *entry = Entry::Message(Message { buf, immediate: *immediate });
        self.incomplete.pop_front();
        true
    }

    /// Ends the lane: removes the messages behind the first one that is not whole, which the peer replays. Returns the
    /// number of messages received.
    pub(crate) fn end_lane(&mut self) -> u64 {
        let is_whole = |entry: &Entry<B>| matches!(entry, Entry::Message(_));
        let whole = self.find_incomplete(|_| true).unwrap_or(self.inbox.len());
        self.incomplete.clear();
        self.unposted = None;
        let lost = (self.inbox.len() - whole) as u64;
        if lost > 0 {
            if mutant!(ReceivedCountsUnread) {
                self.inbox.retain(|entry| is_whole(entry));
                return self.taken;
            }
            self.taken -= lost;
            // Shutdown and close follow all messages.
            if !mutant!(EndsNotRolledBack) {
                self.taken -= self.state.ends();
                self.state = RecvState::Open;
            }
            self.inbox.truncate(whole);
            let len = |entry: &Entry<B>| match entry {
                Entry::Message(message) => weight(message.buf.as_ref().len()),
                Entry::Rendezvous { .. } | Entry::Reading { .. } => 0,
            };
            self.buffered = self.inbox.iter().map(len).sum();
        }
        self.taken
    }
}
