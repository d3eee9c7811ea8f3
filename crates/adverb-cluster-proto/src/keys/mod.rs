//! The exchange of the keys of arena segments, as a pure state machine.
//!
//! A [`Keys`] belongs to a [`Broker`](crate::Broker), whose control messages it writes and interprets. It announces the
//! segments of this member's arena to each peer, knows the segments that the peers announced, and resolves pointers to
//! them. It does no I/O: a driver owns the memory, and passes on messages.
//!
//! | input | output |
//! |---|---|
//! | [`publish`](Keys::publish), [`update`](Keys::update) | [`poll_released`](Keys::poll_released): segments that no peer may access anymore |
//! | [`open`](Keys::open), [`end`](Keys::end), [`end_ticket`](Keys::end_ticket) | [`poll_ready`](Keys::poll_ready), [`poll_output`](Keys::poll_output): messages to send |
//! | [`handle_message`](Keys::handle_message) | whether the peer's segments changed |
//! | | [`resolve`](Keys::resolve): the remote range of a pointer |
//!
//! # Withdrawal
//!
//! An access with an invalid key breaks the connection. So the memory of a withdrawn segment stays registered until each
//! peer that knows the key has confirmed the withdrawal, or its session has ended. A peer resolves no pointer to the
//! segment from the withdrawal on, and confirms when its transfers that were posted before have completed. Their tickets
//! end in order, so a count is sufficient.
//!
//! # Sessions
//!
//! All keys end with their session: a new session announces everything anew. Messages can arrive before the session is
//! [opened](Keys::open) at this end.
//!
//! # Peers are not trusted
//!
//! The number of a peer's segments is bounded, and a message that no correct peer sends ends the session.
//!
//! ```
//! use adverb_cluster_proto::keys::Keys;
//! use adverb_cluster_proto::{PeerId, RemotePtr};
//! use adverb_proto::types::RemoteMemory;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let peer = PeerId(0);
//! let (mut owner, mut user) = (Keys::new(1), Keys::new(1));
//! owner.publish(3, 4096)?; // member 3, with message slots of 4096 bytes
//! owner.update(&[(0, RemoteMemory { addr: 0x1000, rkey: 7, len: 4096 })]);
//! owner.open(peer, 1);
//! user.open(peer, 9); // the owner's epoch
//!
//! assert_eq!(owner.poll_ready(), Some(peer));
//! let message = owner.poll_output(peer, 4096).expect("the segment is announced");
//! assert_eq!(user.handle_message(peer, message, 0), Ok(true));
//!
//! let ptr = RemotePtr { member: 3, epoch: 9, segment: 0, offset: 16, len: 8 };
//! let range = user.resolve(peer, ptr)?;
//! assert_eq!((range.memory.addr, range.memory.rkey), (0x1010, 7));
//! # Ok(())
//! # }
//! ```

mod message;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use adverb_proto::types::RemoteMemory;

use crate::mutation::mutant;
use crate::{ConfigError, EndReason, PeerId, RemotePtr, RemotePtrError, RemoteRange};
use message::{Kind, MIN_SLOT_SIZE, Message};

/// The maximum number of a peer's segments, including withdrawn ones that were not confirmed.
pub const MAX_PEER_SEGMENTS: usize = 4096;

const INVALID_MESSAGE: EndReason = EndReason::ProtocolViolation { violation: "invalid control message" };

/// The keys of a broker's member and of its peers.
///
/// The [module documentation](self) describes its inputs and outputs.
#[derive(Debug)]
pub struct Keys {
    peers: Vec<KeyPeer>,
    publication: Option<Publication>,
    /// The peers that may have messages to send.
    ready: VecDeque<PeerId>,
    /// The last message.
    output: Vec<u8>,
}

/// The segments of this member.
#[derive(Debug)]
struct Publication {
    member: u32,
    /// The segments, by number.
    segments: Vec<PublishedSegment>,
    /// The numbers of withdrawn segments that no peer may access.
    released: VecDeque<u32>,
    /// The smallest number that a new segment can have.
    next_segment: u32,
}

#[derive(Debug)]
struct PublishedSegment {
    number: u32,
    memory: RemoteMemory,
    is_withdrawn: bool,
    /// The number of peers that know the key.
    peer_count: usize,
}

/// The keys that a broker and a peer exchanged in a session.
#[derive(Debug, Default)]
struct KeyPeer {
    /// The peer's epoch, if the session is open.
    epoch: Option<u64>,
    /// The segments of this member that the peer knows, by number.
    announced: Vec<(u32, Announced)>,
    /// The peer's member number, which the peer has announced.
    member: Option<u32>,
    /// The segments of the peer, by number.
    segments: Vec<(u32, RemoteMemory)>,
    /// The peer's withdrawn segments that must be confirmed, each with the number of ended tickets that permits it.
    confirmations: VecDeque<(u32, u64)>,
    ended_ticket_count: u64,
    /// Whether the peer is in the list of peers that may have messages to send.
    is_ready: bool,
}

/// The state of a segment that a peer knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Announced {
    /// The peer may use the key.
    Usable,
    /// The withdrawal was sent to the peer, which has not confirmed it.
    Withdrawing,
}

impl Keys {
    /// Creates the keys of a broker with `peer_count` peers. Nothing is published.
    pub fn new(peer_count: usize) -> Keys {
        let peers = core::iter::repeat_with(KeyPeer::default).take(peer_count).collect();
        Keys { peers, publication: None, ready: VecDeque::new(), output: Vec::new() }
    }

    /// Adds a peer, whose id is the number of peers before.
    pub fn add_peer(&mut self) {
        self.peers.push(KeyPeer::default());
    }

    /// Announces the segments of this member from now on. `slot_size` is the size of the broker's message slots.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::SlotTooSmall`] if the slots are too small for a key.
    pub fn publish(&mut self, member: u32, slot_size: u32) -> Result<(), ConfigError> {
        if slot_size < MIN_SLOT_SIZE {
            return Err(ConfigError::SlotTooSmall { size: slot_size, min: MIN_SLOT_SIZE });
        }
        if self.publication.is_none() {
            let (segments, released) = (Vec::new(), VecDeque::new());
            self.publication = Some(Publication { member, segments, released, next_segment: 0 });
        }
        Ok(())
    }

    /// Whether the segments of this member are announced.
    pub fn is_published(&self) -> bool {
        self.publication.is_some()
    }

    /// Sets the segments of this member's arena, in the order of their numbers. Segments that are missing are withdrawn. A
    /// number is never used for two segments, and a new segment has a larger number than all earlier ones. Without a
    /// [publication](Keys::publish), the call has no effect.
    pub fn update(&mut self, segments: &[(u32, RemoteMemory)]) {
        let Some(publication) = &mut self.publication else { return };
        publication.update(segments);
        for index in 0..self.peers.len() {
            if !mutant!(LaterSegmentsUnannounced) {
                self.mark_ready(PeerId(index as u16));
            }
        }
    }

    /// Returns a withdrawn segment that no peer may access anymore. The driver deregisters its memory.
    pub fn poll_released(&mut self) -> Option<u32> {
        self.publication.as_mut()?.released.pop_front()
    }

    /// Opens the session with a peer. `epoch` is the peer's.
    pub fn open(&mut self, peer: PeerId, epoch: u64) {
        if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
            state.epoch = Some(epoch);
        }
        self.mark_ready(peer);
    }

    /// Ends the session with a peer: neither side may use the other's keys.
    pub fn end(&mut self, peer: PeerId) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        let ended = core::mem::take(state);
        state.is_ready = ended.is_ready;
        if mutant!(KeysSurviveSession) {
            (state.member, state.segments) = (ended.member, ended.segments);
        }
        if mutant!(AnnouncementsSurviveSession) {
            state.announced = ended.announced;
            return;
        }
        if let Some(publication) = self.publication.as_mut().filter(|_| !mutant!(EndedSessionKeepsSegments)) {
            ended.announced.iter().for_each(|(number, _)| publication.forget(*number));
        }
    }

    /// Counts an ended ticket of a peer's session. Tickets end in the order in which they were posted.
    pub fn end_ticket(&mut self, peer: PeerId) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        state.ended_ticket_count += 1;
        if !state.confirmations.is_empty() && !mutant!(ConfirmationForgotten) {
            self.mark_ready(peer);
        }
    }

    /// Processes a control message of a peer. `outstanding_tickets` is the number of tickets that were posted to the peer
    /// and have not ended. Returns whether the peer's segments changed.
    ///
    /// # Errors
    ///
    /// Returns the reason to end the session, if no correct peer sends the message.
    pub fn handle_message(
        &mut self,
        from: PeerId,
        message: &[u8],
        outstanding_tickets: usize,
    ) -> Result<bool, EndReason> {
        let state = self.peers.get_mut(usize::from(from.0)).ok_or(INVALID_MESSAGE)?;
        match Message::parse(message).ok_or(INVALID_MESSAGE)? {
            Message::Addition { member, entries } => {
                if *state.member.get_or_insert(member) != member {
                    return Err(INVALID_MESSAGE);
                }
                for entry in entries {
                    let (number, memory) = message::parse_addition(entry).ok_or(INVALID_MESSAGE)?;
                    state.add(number, memory).ok_or(INVALID_MESSAGE)?;
                }
                Ok(true)
            }
            Message::Withdrawal { segments } => {
                for segment in segments {
                    let number = u32::from_le_bytes(*segment);
                    state.withdraw(number, outstanding_tickets).ok_or(INVALID_MESSAGE)?;
                }
                self.mark_ready(from);
                Ok(true)
            }
            Message::Confirmation { segments } => {
                let publication = self.publication.as_mut().ok_or(INVALID_MESSAGE)?;
                for segment in segments {
                    let number = u32::from_le_bytes(*segment);
                    let position = state.announced.binary_search_by_key(&number, |(number, _)| *number);
                    let position = position.map_err(|_| INVALID_MESSAGE)?;
                    if state.announced[position].1 != Announced::Withdrawing {
                        return Err(INVALID_MESSAGE);
                    }
                    state.announced.remove(position);
                    publication.forget(number);
                }
                // There may be room for a further segment.
                self.mark_ready(from);
                Ok(false)
            }
        }
    }

    /// Returns the memory that a pointer refers to. The range is valid until the driver passes on the next message of the
    /// peer. Transfers that were posted before that message stay valid.
    ///
    /// # Errors
    ///
    /// Returns [`RemotePtrError`] if the pointer is from another epoch or to another member, if the peer has not announced
    /// the segment in this session or has withdrawn it, or if the pointer is out of bounds.
    pub fn resolve(&self, peer: PeerId, ptr: RemotePtr) -> Result<RemoteRange, RemotePtrError> {
        let unknown = RemotePtrError::UnknownSegment { segment: ptr.segment };
        let state = self.peers.get(usize::from(peer.0)).ok_or(unknown)?;
        let epoch = state.epoch.ok_or(unknown)?;
        // The epoch is checked before the segment is searched, so that the error names the cause.
        if ptr.epoch != epoch && !mutant!(PointerEpochUnchecked) {
            return Err(RemotePtrError::StaleEpoch { epoch: ptr.epoch, current: epoch });
        }
        let member = state.member.ok_or(unknown)?;
        if ptr.member != member && !mutant!(PointerMemberUnchecked) {
            return Err(RemotePtrError::WrongMember { member: ptr.member, expected: member });
        }
        let position = state.segments.binary_search_by_key(&ptr.segment, |(number, _)| *number);
        let (_, memory) = state.segments[position.map_err(|_| unknown)?];
        ptr.check(member, epoch, memory.len)?;
        // The end of the segment doesn't exceed 64 bits, and the pointer lies in it.
        let memory = RemoteMemory { addr: memory.addr.wrapping_add(ptr.offset), len: ptr.len, ..memory };
        Ok(RemoteRange { epoch, memory })
    }

    /// Returns the number of segments that a peer has announced and not withdrawn.
    pub fn segment_count(&self, peer: PeerId) -> usize {
        self.peers.get(usize::from(peer.0)).map_or(0, |state| state.segments.len())
    }

    /// Returns a peer to which messages are to be sent. A peer whose messages were not all taken is returned again after
    /// [`mark_ready`](Keys::mark_ready).
    pub fn poll_ready(&mut self) -> Option<PeerId> {
        while let Some(peer) = self.ready.pop_front() {
            if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
                state.is_ready = false;
                if self.has_output(peer) {
                    return Some(peer);
                }
            }
        }
        None
    }

    /// Returns the number of peers that [`poll_ready`](Keys::poll_ready) may return.
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Whether [`poll_ready`](Keys::poll_ready) may return this peer.
    pub fn is_ready(&self, peer: PeerId) -> bool {
        self.peers.get(usize::from(peer.0)).is_some_and(|state| state.is_ready)
    }

    /// Makes [`poll_ready`](Keys::poll_ready) return a peer if there are messages to send to it.
    pub fn mark_ready(&mut self, peer: PeerId) {
        let state = self.peers.get_mut(usize::from(peer.0));
        if let Some(state) = state.filter(|state| !state.is_ready && state.epoch.is_some()) {
            state.is_ready = true;
            self.ready.push_back(peer);
        }
    }

    /// Whether there are messages to send to a peer.
    pub fn has_output(&self, peer: PeerId) -> bool {
        let state = self.peers.get(usize::from(peer.0));
        state.is_some_and(|state| state.next_kind(self.publication.as_ref()).is_some())
    }

    /// Takes the next message to a peer, which has at most `max_len` bytes. The caller must send it before any later one.
    pub fn poll_output(&mut self, peer: PeerId, max_len: usize) -> Option<&[u8]> {
        let state = self.peers.get_mut(usize::from(peer.0))?;
        let kind = state.next_kind(self.publication.as_ref())?;
        let max = kind.max_entry_count(max_len);
        let member = self.publication.as_ref().map_or(0, |publication| publication.member);
        message::start(&mut self.output, kind, member);
        let header_len = self.output.len();
        match (kind, &mut self.publication) {
            (Kind::Addition, Some(publication)) => {
                let output = &mut self.output;
                publication.take_additions(state, max, |number, memory| {
                    message::push_addition(output, number, memory);
                });
            }
            (Kind::Withdrawal, Some(publication)) => {
                let output = &mut self.output;
                publication.take_withdrawals(state, max, |number| message::push_number(output, number));
            }
            _ => {
                for _ in 0..max {
                    let Some(number) = state.take_confirmation() else { break };
                    message::push_number(&mut self.output, number);
                }
            }
        }
        (self.output.len() > header_len).then_some(&self.output)
    }

    /// Returns the bytes of the state. The call visits all peers.
    pub fn state_bytes(&self) -> usize {
        let peer_bytes = |state: &KeyPeer| {
            state.announced.capacity() * size_of::<(u32, Announced)>()
                + state.segments.capacity() * size_of::<(u32, RemoteMemory)>()
                + state.confirmations.capacity() * size_of::<(u32, u64)>()
        };
        let publication = self.publication.as_ref().map_or(0, |publication| {
            publication.segments.capacity() * size_of::<PublishedSegment>()
                + publication.released.capacity() * size_of::<u32>()
        });
        size_of::<Keys>()
            + self.peers.capacity() * size_of::<KeyPeer>()
            + self.peers.iter().map(peer_bytes).sum::<usize>()
            + publication
            + self.ready.capacity() * size_of::<PeerId>()
            + self.output.capacity()
    }
}

impl KeyPeer {
    /// Adds a segment of the peer. Returns `None` if the number is in use, or if the peer has too many segments.
    fn add(&mut self, number: u32, memory: RemoteMemory) -> Option<()> {
        let is_full = self.segments.len() + self.confirmations.len() >= MAX_PEER_SEGMENTS;
        let position = self.segments.binary_search_by_key(&number, |(number, _)| *number).err()?;
        if is_full {
            return None;
        }
        self.segments.insert(position, (number, memory));
        Some(())
    }

    /// Removes a segment of the peer, and schedules its confirmation. Returns `None` if the segment doesn't exist.
    fn withdraw(&mut self, number: u32, outstanding_tickets: usize) -> Option<()> {
        let position = self.segments.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        if !mutant!(WithdrawnStillResolved) {
            self.segments.remove(position);
        }
        // Transfers that were posted before may use the key. Their tickets end in order.
        let outstanding = if mutant!(ConfirmedBeforeTransfers) { 0 } else { outstanding_tickets as u64 };
        self.confirmations.push_back((number, self.ended_ticket_count + outstanding));
        Some(())
    }

    /// Returns the kind of the next message, if one is due.
    fn next_kind(&self, publication: Option<&Publication>) -> Option<Kind> {
        self.epoch?;
        let is_due = |(_, ticket_count): &(u32, u64)| *ticket_count <= self.ended_ticket_count;
        if self.confirmations.front().is_some_and(is_due) {
            return Some(Kind::Confirmation);
        }
        let publication = publication?;
        if self.announced.iter().any(|announced| publication.is_withdrawal_due(announced)) {
            return Some(Kind::Withdrawal);
        }
        let has_room = self.announced.len() < MAX_PEER_SEGMENTS;
        let is_addition =
            |published: &PublishedSegment| !published.is_withdrawn && !self.knows(published.number);
        (has_room && publication.segments.iter().any(is_addition)).then_some(Kind::Addition)
    }

    fn take_confirmation(&mut self) -> Option<u32> {
        let (number, ticket_count) = *self.confirmations.front()?;
        if ticket_count > self.ended_ticket_count {
            return None;
        }
        self.confirmations.pop_front();
        Some(number)
    }

    fn knows(&self, number: u32) -> bool {
        self.announced.binary_search_by_key(&number, |(number, _)| *number).is_ok()
    }
}

impl Publication {
    fn update(&mut self, segments: &[(u32, RemoteMemory)]) {
        for published in &mut self.segments {
            let is_current = segments.binary_search_by_key(&published.number, |(number, _)| *number).is_ok();
            published.is_withdrawn |= !is_current;
        }
        for (number, memory) in segments.iter().copied() {
            // Numbers only increase, so the list stays sorted.
            if number >= self.next_segment {
                self.next_segment = number.saturating_add(1);
                let published = PublishedSegment { number, memory, is_withdrawn: false, peer_count: 0 };
                self.segments.push(published);
            }
        }
        self.release();
    }

    /// Releases withdrawn segments that no peer knows.
    fn release(&mut self) {
        let is_released = |published: &mut PublishedSegment| {
            published.is_withdrawn && (published.peer_count == 0 || mutant!(ReleasedBeforeConfirmation))
        };
        let released = self.segments.extract_if(.., is_released).map(|published| published.number);
        self.released.extend(released);
    }

    /// Counts a peer that doesn't know a segment anymore.
    fn forget(&mut self, number: u32) {
        if let Ok(position) = self.segments.binary_search_by_key(&number, |published| published.number) {
            self.segments[position].peer_count -= 1;
            self.release();
        }
    }

    /// Takes segments that a peer doesn't know.
    fn take_additions(&mut self, peer: &mut KeyPeer, max: usize, mut take: impl FnMut(u32, RemoteMemory)) {
        let max = max.min(MAX_PEER_SEGMENTS.saturating_sub(peer.announced.len()));
        let mut count = 0;
        for published in &mut self.segments {
            if count == max {
                return;
            }
            let number = published.number;
            let position = peer.announced.binary_search_by_key(&number, |(number, _)| *number);
            let (Err(position), false) = (position, published.is_withdrawn) else { continue };
            peer.announced.insert(position, (number, Announced::Usable));
            published.peer_count += 1;
            take(number, published.memory);
            count += 1;
        }
    }

    /// Takes segments whose withdrawal must be sent to a peer.
    fn take_withdrawals(&self, peer: &mut KeyPeer, max: usize, mut take: impl FnMut(u32)) {
        let due = peer.announced.iter_mut().filter(|announced| self.is_withdrawal_due(announced));
        for (number, announced) in due.take(max) {
            *announced = Announced::Withdrawing;
            take(*number);
        }
    }

    /// Whether the withdrawal of a segment must be sent to a peer, which knows the segment.
    fn is_withdrawal_due(&self, (number, announced): &(u32, Announced)) -> bool {
        let position = self.segments.binary_search_by_key(number, |published| published.number);
        *announced == Announced::Usable
            && !mutant!(WithdrawalUnannounced)
            && position.is_ok_and(|position| self.segments[position].is_withdrawn)
    }
}
