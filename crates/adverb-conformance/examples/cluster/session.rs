//! The one-sided part of a session: the memory that this member exposes to the peer, and the transfers to the memory of
//! the peer.
//!
//! Each session allocates new items. The peer gets their pointers in the session's first message:
//!
//! - known bytes, which the peer reads;
//! - places for the peer's WRITEs. The peer numbers them, and announces each with immediate data or with a message, which
//!   RC orders after the WRITE. A place is written again only after this member has checked it.
//! - three words: a counter, a sum, and a word that the peer swaps. Only this peer changes them, so the peer knows every
//!   old value.
//!
//! The thread also has a counter and a word to swap that all peers change at the same time. Each addition to the counter
//! of a session is followed by one to that of the thread. A session that ends has executed a prefix of its requests, so the
//! counters differ by at most one for each session that ended.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use adverb::cluster::{
    Arena, Broker, Item, PeerId, PostError, RemotePtr, Ticket, TicketError, Transfer, TransferError,
    TransferOperation,
};
use adverb::memory::{Buffer, Payload};
use adverb_wire::random::SplitMix64;
use anyhow::{Context, Result, bail, ensure};

use crate::content::{Purpose, Side, Stream};
use crate::lines::{Counts, Fault, SessionReport, Tally};

/// The number and the size of the places for WRITEs.
const PLACES: u64 = 8;
const PLACE_SIZE: usize = 256;
/// The number of known bytes.
const KNOWN_SIZE: usize = 2048;
/// The offsets of the words in their item.
const COUNTER: usize = 0;
const SUM: usize = 8;
const SWAPPED: usize = 16;
/// The maximum number of outstanding tickets of a session.
const MAX_TICKETS: usize = 16;

/// The pointers to the memory of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointers {
    known: RemotePtr,
    places: RemotePtr,
    words: RemotePtr,
    shared: RemotePtr,
}

impl Pointers {
    /// The length of the byte representation.
    pub(crate) const LEN: usize = 4 * RemotePtr::ENCODED_LEN;

    pub(crate) fn to_bytes(self) -> [u8; Pointers::LEN] {
        let mut bytes = [0; Pointers::LEN];
        let pointers = [self.known, self.places, self.words, self.shared];
        for (place, pointer) in bytes.chunks_exact_mut(RemotePtr::ENCODED_LEN).zip(pointers) {
            place.copy_from_slice(&pointer.to_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Pointers> {
        ensure!(bytes.len() == Pointers::LEN, "pointers of {} bytes", bytes.len());
        let pointer = |index: usize| {
            RemotePtr::from_bytes(
                &bytes[index * RemotePtr::ENCODED_LEN..(index + 1) * RemotePtr::ENCODED_LEN],
            )
        };
        Ok(Pointers { known: pointer(0)?, places: pointer(1)?, words: pointer(2)?, shared: pointer(3)? })
    }
}

/// The words of a thread that all peers change.
pub(crate) struct SharedWords {
    item: Item,
    /// The additions of sessions that ended, by their own counters.
    ended_adds: u64,
    ended_sessions: u64,
}

impl SharedWords {
    pub(crate) fn new(arena: &Arena) -> Result<SharedWords> {
        let item = arena.allocate_copy(&[0; 16])?;
        Ok(SharedWords { item, ended_adds: 0, ended_sessions: 0 })
    }

    /// Checks the words at the end, after the peers have reported the counts of all open sessions.
    pub(crate) fn check(&self, adds: u64, swaps: u64) -> Result<()> {
        let counter = self.item.word(0)?.load(Ordering::Acquire);
        let added = self.ended_adds + adds;
        ensure!(
            counter <= added && added - counter <= self.ended_sessions,
            "the counter of the thread is {counter}, after {added} additions in sessions of which {} ended",
            self.ended_sessions
        );
        let swapped = self.item.word(8)?.load(Ordering::Acquire);
        let is_exact = self.ended_sessions == 0;
        ensure!(
            swapped == swaps || !is_exact && swapped > swaps,
            "the swapped word of the thread is {swapped} after {swaps} swaps"
        );
        Ok(())
    }
}

/// The operation of a ticket.
enum Operation {
    Write,
    Read { offset: usize },
    Add { before: u64 },
    Swap { before: u64 },
    SharedSwap { compare: u64 },
    Batch { write: u64, len: usize, adds: u64 },
}

/// A kind of transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    WriteWithImm,
    Read,
    Add,
    Swap,
    SharedSwap,
}

/// The reason why nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// A limit of this program is reached. The request can be posted after other events.
    Later,
    /// The broker rejected the request, and reports when it may succeed.
    Blocked,
    /// The session has ended.
    NotOpen,
}

/// Returns the reason for an error that a correct program must expect, or the error itself.
pub(crate) fn refusal(error: PostError) -> Result<Refusal> {
    match error {
        PostError::WouldBlock { .. } => Ok(Refusal::Blocked),
        PostError::NotOpen { .. } => Ok(Refusal::NotOpen),
        error => Err(error).context("a request was rejected"),
    }
}

fn transfer_refusal(error: TransferError) -> Result<Refusal> {
    match error {
        TransferError::Post(error) => refusal(error),
        error => Err(error).context("a transfer was rejected"),
    }
}

/// The one-sided part of a session.
pub(crate) struct Session {
    pub(crate) thread: u16,
    pub(crate) this_side: Side,
    pub(crate) peer_side: Side,
    seed: u64,
    known: Item,
    places: Item,
    words: Item,
    /// The pointers to the memory of the peer, if they have arrived.
    pub(crate) pointers: Option<Pointers>,
    /// The requests of this side. The number of messages belongs to the thread.
    pub(crate) sent: Tally,
    /// The requests of the peer.
    pub(crate) received: Tally,
    /// The number of this side's WRITEs that the peer has checked.
    checked_writes: u64,
    /// The last value of the word of the peer's thread.
    shared_swapped: u64,
    last_shared_counter: Option<u64>,
    has_shared_swap: bool,
    tickets: VecDeque<(Ticket, Operation)>,
    pub(crate) random: SplitMix64,
    fault: Option<Fault>,
}

impl Session {
    pub(crate) fn new(
        arena: &Arena,
        thread: u16,
        this_side: Side,
        peer_side: Side,
        seed: u64,
    ) -> Result<Session> {
        let mut known = vec![0; KNOWN_SIZE];
        Stream::new(seed, thread, this_side, peer_side, Purpose::Known).fill(0, &mut known);
        let random = Stream::new(seed, thread, this_side, peer_side, Purpose::Message).word(u64::MAX);
        Ok(Session {
            thread,
            this_side,
            peer_side,
            seed,
            known: arena.allocate_copy(&known)?,
            places: arena.allocate_copy(&[0; PLACES as usize * PLACE_SIZE])?,
            words: arena.allocate_copy(&[0; 24])?,
            pointers: None,
            sent: Tally::default(),
            received: Tally::default(),
            checked_writes: 0,
            shared_swapped: 0,
            last_shared_counter: None,
            has_shared_swap: false,
            tickets: VecDeque::new(),
            random: SplitMix64(random),
            fault: None,
        })
    }

    /// Injects a fault into the session.
    pub(crate) fn set_fault(&mut self, fault: Option<Fault>) {
        self.fault = fault;
    }

    /// Returns the stream of this side's bytes.
    pub(crate) fn outgoing(&self, purpose: Purpose) -> Stream {
        Stream::new(self.seed, self.thread, self.this_side, self.peer_side, purpose)
    }

    /// Returns the stream of the peer's bytes.
    pub(crate) fn incoming(&self, purpose: Purpose) -> Stream {
        Stream::new(self.seed, self.thread, self.peer_side, self.this_side, purpose)
    }

    /// Returns the pointers to the memory of this side.
    pub(crate) fn local_pointers(&self, shared: &SharedWords) -> Pointers {
        Pointers {
            known: self.known.remote_ptr(),
            places: self.places.remote_ptr(),
            words: self.words.remote_ptr(),
            shared: shared.item.remote_ptr(),
        }
    }

    fn peer(&self) -> PeerId {
        PeerId(self.peer_side.member)
    }

    /// Returns the number of outstanding tickets.
    pub(crate) fn ticket_count(&self) -> usize {
        self.tickets.len()
    }

    /// Whether the next WRITE, announced by a message, can be posted.
    pub(crate) fn can_write(&self) -> bool {
        self.pointers.is_some()
            && self.sent.writes < self.checked_writes + PLACES
            && self.tickets.len() < MAX_TICKETS
    }

    /// Posts a WRITE, alone or in a batch. Returns its number, which the caller must announce.
    pub(crate) fn post_write(
        &mut self,
        broker: &mut Broker,
        is_batch: bool,
        counts: &mut Counts,
    ) -> Result<std::result::Result<u64, Refusal>> {
        let Some(pointers) = self.pointers.filter(|_| self.can_write()) else {
            return Ok(Err(Refusal::Later));
        };
        let number = self.sent.writes;
        let (bytes, target) = self.next_write(broker, pointers)?;
        let len = bytes.len();
        let posted = if is_batch {
            let transfers = self.batch(broker, pointers, bytes, target);
            let operation = Operation::Batch { write: number, len, adds: self.sent.adds };
            transfers
                .and_then(|mut transfers| Ok((broker.post_batch(self.peer(), &mut transfers)?, operation)))
        } else {
            let posted = broker.post_write(self.peer(), bytes, target);
            posted.map(|ticket| (ticket, Operation::Write)).map_err(|refused| refused.error)
        };
        match posted {
            Ok((ticket, operation)) => {
                self.tickets.push_back((ticket, operation));
                counts.tickets += 1;
                self.sent.writes += 1;
                self.sent.adds += u64::from(is_batch);
                Ok(Ok(number))
            }
            Err(error) => Ok(Err(transfer_refusal(error)?)),
        }
    }

    /// Returns the bytes of the next WRITE, and its target.
    fn next_write(&mut self, broker: &Broker, pointers: Pointers) -> Result<(Buffer, RemotePtr)> {
        let number = self.sent.writes;
        let stream = self.outgoing(Purpose::Written);
        let len = 1 + stream.len(number, PLACE_SIZE - 1);
        let mut bytes = broker.protection_domain().allocate_buffer(len)?;
        stream.fill(number, &mut bytes);
        if self.fault == Some(Fault::WrongWrite) && number > 100 {
            bytes[0] ^= 1;
        }
        let start = number % PLACES * PLACE_SIZE as u64;
        let target = pointers.places.part(start..start + len as u64).context("a part of the places")?;
        Ok((bytes, target))
    }

    /// Returns a WRITE, a READ of the same bytes, an addition to the session's counter, and one to the thread's.
    fn batch(
        &self,
        broker: &Broker,
        pointers: Pointers,
        bytes: Buffer,
        target: RemotePtr,
    ) -> std::result::Result<Vec<Transfer>, TransferError> {
        let domain = broker.protection_domain();
        let buffer = |len| domain.allocate_buffer(len).map_or(Payload::Empty, Payload::from);
        let len = bytes.len();
        let counter = word(pointers.words, COUNTER);
        let shared = word(pointers.shared, 0);
        let add = TransferOperation::FetchAdd { add: 1 };
        let transfers = [
            (TransferOperation::Write, Payload::from(bytes), target),
            (TransferOperation::Read, buffer(len), target),
            (add, buffer(8), counter),
            (add, buffer(8), shared),
        ];
        let resolve = |(operation, local, pointer)| {
            Ok(Transfer { operation, local, remote: broker.resolve(self.peer(), pointer)? })
        };
        transfers.into_iter().map(resolve).collect()
    }

    /// Posts a transfer that needs no message.
    pub(crate) fn post(
        &mut self,
        broker: &mut Broker,
        kind: Kind,
        counts: &mut Counts,
    ) -> Result<std::result::Result<(), Refusal>> {
        let is_full = self.tickets.len() >= MAX_TICKETS;
        let Some(pointers) = self.pointers.filter(|_| !is_full) else { return Ok(Err(Refusal::Later)) };
        let peer = self.peer();
        let sent = self.sent;
        let domain = broker.protection_domain().clone();
        let (posted, operation) = match kind {
            Kind::WriteWithImm => {
                // The other places are reserved for WRITEs that messages announce, because only those confirm earlier
                // WRITEs.
                if sent.writes >= self.checked_writes + PLACES / 2 {
                    return Ok(Err(Refusal::Later));
                }
                let (bytes, target) = self.next_write(broker, pointers)?;
                let immediate = sent.writes as u32;
                self.sent.writes += 1;
                (broker.post_write_with_imm(peer, bytes, target, immediate), Operation::Write)
            }
            Kind::Read => {
                let offset = 8 * self.random.below(KNOWN_SIZE as u64 / 8) as usize;
                let len = 1 + self.random.below((KNOWN_SIZE - offset) as u64);
                let source =
                    pointers.known.part(offset as u64..offset as u64 + len).context("known bytes")?;
                let buffer = domain.allocate_buffer(len as usize)?;
                (broker.post_read(peer, buffer, source), Operation::Read { offset })
            }
            Kind::Add => {
                let add = self.random.next_u64() >> 20;
                self.sent.sum += add;
                let add = if self.fault == Some(Fault::ExtraAdd) { add + 1 } else { add };
                let posted =
                    broker.post_fetch_add(peer, domain.allocate_buffer(8)?, word(pointers.words, SUM), add);
                (posted, Operation::Add { before: sent.sum })
            }
            Kind::Swap => {
                let (before, after) = (self.swapped(sent.swaps), self.swapped(sent.swaps + 1));
                let target = word(pointers.words, SWAPPED);
                self.sent.swaps += 1;
                let posted =
                    broker.post_compare_swap(peer, domain.allocate_buffer(8)?, target, before, after);
                (posted, Operation::Swap { before })
            }
            Kind::SharedSwap => {
                if self.has_shared_swap {
                    return Ok(Err(Refusal::Later));
                }
                let compare = self.shared_swapped;
                let target = word(pointers.shared, 8);
                let posted =
                    broker.post_compare_swap(peer, domain.allocate_buffer(8)?, target, compare, compare + 1);
                self.has_shared_swap = posted.is_ok();
                (posted, Operation::SharedSwap { compare })
            }
        };
        match posted {
            Ok(ticket) => {
                self.tickets.push_back((ticket, operation));
                counts.tickets += 1;
                Ok(Ok(()))
            }
            Err(refused) => {
                self.sent = sent;
                Ok(Err(transfer_refusal(refused.error)?))
            }
        }
    }

    /// Returns the value of the swapped word after `count` swaps.
    fn swapped(&self, count: u64) -> u64 {
        swapped(self.outgoing(Purpose::Swapped), count)
    }

    /// Handles the end of a ticket, and checks its results.
    pub(crate) fn handle_completed(
        &mut self,
        ticket: Ticket,
        result: std::result::Result<(), TicketError>,
        payloads: impl Iterator<Item = Payload>,
        counts: &mut Counts,
    ) -> Result<()> {
        let (expected, operation) = self.tickets.pop_front().context("a ticket ended that was not posted")?;
        ensure!(ticket == expected, "{ticket:?} ended before {expected:?}");
        if matches!(operation, Operation::SharedSwap { .. }) {
            self.has_shared_swap = false;
        }
        if result.is_err() {
            counts.failed_tickets += 1;
            return Ok(());
        }
        counts.completed_tickets += 1;
        let mut buffers = payloads.map(|payload| payload.into_buffer().context("a payload without a buffer"));
        let mut next = || buffers.next().context("a payload is missing")?;
        match operation {
            Operation::Write => _ = next()?,
            Operation::Read { offset } => {
                let bytes = next()?;
                self.incoming(Purpose::Known).check(0, offset, &bytes).context("the bytes of a READ")?;
                counts.bytes += bytes.len() as u64;
                counts.reads += 1;
            }
            Operation::Add { before } => {
                let old = old_value(&next()?)?;
                ensure!(old == before, "a fetch-and-add returned {old} instead of {before}");
                counts.adds += 1;
            }
            Operation::Swap { before } => {
                let old = old_value(&next()?)?;
                ensure!(old == before, "a compare-and-swap returned {old:#x} instead of {before:#x}");
                counts.swaps += 1;
            }
            Operation::SharedSwap { compare } => {
                let old = old_value(&next()?)?;
                ensure!(old >= compare, "a shared word decreased from {compare} to {old}");
                self.sent.shared_swaps += u64::from(old == compare);
                self.shared_swapped = if old == compare { old + 1 } else { old };
                counts.swaps += 1;
            }
            Operation::Batch { write, len, adds } => {
                next()?;
                let bytes = next()?;
                ensure!(bytes.len() == len, "a READ returned {} bytes instead of {len}", bytes.len());
                let stream = self.outgoing(Purpose::Written);
                stream.check(write, 0, &bytes).context("the bytes of a READ after a WRITE")?;
                let (counter, shared) = (old_value(&next()?)?, old_value(&next()?)?);
                ensure!(counter == adds, "the counter of the session was {counter} instead of {adds}");
                let last = self.last_shared_counter.replace(shared);
                ensure!(last.is_none_or(|last| last < shared), "a shared counter decreased to {shared}");
                counts.bytes += len as u64;
                counts.reads += 1;
                counts.adds += 2;
                counts.batches += 1;
            }
        }
        ensure!(buffers.next().is_none(), "a ticket has more payloads than transfers");
        Ok(())
    }

    /// Handles the number of this side's WRITEs that the peer has checked.
    pub(crate) fn handle_checked(&mut self, count: u64) -> Result<()> {
        ensure!(
            count <= self.sent.writes,
            "the peer has checked {count} of {} WRITEs, which is too many",
            self.sent.writes
        );
        // Replies may overtake each other.
        self.checked_writes = self.checked_writes.max(count);
        Ok(())
    }

    /// Checks the next WRITE of the peer, which was announced with this number.
    pub(crate) fn handle_write(&mut self, number: u64, counts: &mut Counts) -> Result<()> {
        let expected = self.received.writes;
        ensure!(number == expected, "WRITE {number} was announced instead of {expected}");
        let stream = self.incoming(Purpose::Written);
        let mut bytes = [0; PLACE_SIZE];
        let bytes = &mut bytes[..1 + stream.len(number, PLACE_SIZE - 1)];
        self.places.read((number % PLACES) as usize * PLACE_SIZE, bytes)?;
        stream.check(number, 0, bytes).with_context(|| format!("the bytes of WRITE {number}"))?;
        self.received.writes += 1;
        counts.bytes += bytes.len() as u64;
        counts.writes += 1;
        Ok(())
    }

    /// Checks the next WRITE of the peer, which was announced with immediate data.
    pub(crate) fn handle_immediate(
        &mut self,
        immediate: u32,
        length: u32,
        counts: &mut Counts,
    ) -> Result<()> {
        let number = self.received.writes;
        ensure!(immediate == number as u32, "immediate data {immediate} instead of {number}");
        let expected = 1 + self.incoming(Purpose::Written).len(number, PLACE_SIZE - 1);
        ensure!(length as usize == expected, "WRITE {number} has {length} bytes instead of {expected}");
        self.handle_write(number, counts)?;
        counts.writes -= 1;
        counts.immediates += 1;
        Ok(())
    }

    /// Checks the memory of this side against the final counts of the peer, except for messages.
    pub(crate) fn handle_final(&mut self, tally: Tally) -> Result<()> {
        let writes = self.received.writes;
        ensure!(tally.writes == writes, "the peer posted {} WRITEs, and {writes} arrived", tally.writes);
        let words = [COUNTER, SUM, SWAPPED].map(|offset| self.words.word(offset));
        let [counter, sum, swapped_word] = words;
        let (counter, sum) = (counter?.load(Ordering::Acquire), sum?.load(Ordering::Acquire));
        ensure!(counter == tally.adds, "the counter is {counter} after {} additions", tally.adds);
        ensure!(sum == tally.sum, "the sum is {sum} instead of {}", tally.sum);
        let word = swapped_word?.load(Ordering::Acquire);
        let expected = swapped(self.incoming(Purpose::Swapped), tally.swaps);
        ensure!(word == expected, "the swapped word is {word:#x} instead of {expected:#x}");
        let Tally { adds, sum, swaps, shared_swaps, .. } = tally;
        self.received = Tally { adds, sum, swaps, shared_swaps, ..self.received };
        Ok(())
    }

    /// Ends the session: all tickets must have ended.
    pub(crate) fn end(&self, shared: &mut SharedWords) -> Result<()> {
        if !self.tickets.is_empty() {
            bail!("the session ended before {} of its tickets", self.tickets.len());
        }
        shared.ended_adds += self.words.word(COUNTER)?.load(Ordering::Acquire);
        shared.ended_sessions += 1;
        Ok(())
    }

    pub(crate) fn report(&self) -> SessionReport {
        SessionReport {
            thread: self.thread,
            peer: self.peer_side.member,
            epoch: self.this_side.epoch,
            peer_epoch: self.peer_side.epoch,
            sent: self.sent,
            received: self.received,
        }
    }
}

fn swapped(stream: Stream, count: u64) -> u64 {
    if count == 0 { 0 } else { stream.word(count) }
}

/// Returns a pointer to a word of an item.
fn word(item: RemotePtr, offset: usize) -> RemotePtr {
    RemotePtr { offset: item.offset + offset as u64, len: 8, ..item }
}

fn old_value(buffer: &Buffer) -> Result<u64> {
    let bytes: [u8; 8] = buffer[..].try_into().context("an old value of eight bytes")?;
    Ok(u64::from_ne_bytes(bytes))
}
