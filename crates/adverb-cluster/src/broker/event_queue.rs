//! The queue of events that were not delivered yet.

use super::event::{Filter, QueuedEvent};
use adverb_cluster_proto::PeerId;

/// Events in the order of their arrival. Taking the first event that a filter includes visits no other events.
///
/// Each event is in two linked lists: that of its kind, and that of its peer.
#[derive(Debug)]
pub(super) struct EventQueue {
    entries: Vec<Entry>,
    /// The entries without an event.
    free: Vec<usize>,
    /// The lists by kind: events of this side's requests, of the peers' requests, and of sessions.
    kinds: [List; 3],
    peers: Vec<List>,
    /// The number of events so far, which is the sequence number of the next one.
    next_sequence: u64,
}

#[derive(Debug)]
struct Entry {
    /// Absent if the entry is free.
    event: Option<QueuedEvent>,
    sequence: u64,
    /// The neighbors in the list of the kind, and in that of the peer.
    links: [Links; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Links {
    previous: Option<usize>,
    next: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    first: Option<usize>,
    last: Option<usize>,
}

/// The indices of [`Entry::links`].
const BY_KIND: usize = 0;
const BY_PEER: usize = 1;

/// The indices of [`EventQueue::kinds`].
const SENDS: usize = 0;
const RECEIVES: usize = 1;
const SESSIONS: usize = 2;

impl EventQueue {
    pub(super) fn new(peer_count: usize) -> EventQueue {
        EventQueue {
            entries: Vec::with_capacity(64),
            free: Vec::with_capacity(64),
            kinds: [List::default(); 3],
            peers: vec![List::default(); peer_count],
            next_sequence: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sequence number of the next event. All queued events have smaller ones.
    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Adds an event of one of the peers.
    pub(super) fn push(&mut self, event: QueuedEvent) {
        let (kind, peer) = (kind_of(&event), event.peer());
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let entry = Entry { event: Some(event), sequence, links: [Links::default(); 2] };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        append(&mut self.entries, &mut self.kinds[kind], BY_KIND, index);
        append(&mut self.entries, &mut self.peers[usize::from(peer.0)], BY_PEER, index);
    }

    /// Takes the first event that the filter includes, if its sequence number is below `end`.
    pub(super) fn pop(&mut self, filter: Filter, end: u64) -> Option<QueuedEvent> {
        let first = |kinds: &[usize]| {
            let firsts = kinds.iter().filter_map(|kind| self.kinds[*kind].first);
            firsts.min_by_key(|index| self.entries[*index].sequence)
        };
        let index = match filter {
            Filter::All => first(&[SENDS, RECEIVES, SESSIONS]),
            // Changes of sessions belong to both.
            Filter::Sends => first(&[SENDS, SESSIONS]),
            Filter::Receives => first(&[RECEIVES, SESSIONS]),
            Filter::Peer(PeerId(peer)) => self.peers.get(usize::from(peer))?.first,
        }?;
        let entry = self.entries.get_mut(index).filter(|entry| entry.sequence < end)?;
        let event = entry.event.take()?;
        let (kind, peer) = (kind_of(&event), event.peer());
        remove(&mut self.entries, &mut self.kinds[kind], BY_KIND, index);
        remove(&mut self.entries, &mut self.peers[usize::from(peer.0)], BY_PEER, index);
        self.free.push(index);
        Some(event)
    }
}

fn kind_of(event: &QueuedEvent) -> usize {
    match event {
        QueuedEvent::Message { .. } | QueuedEvent::Immediate { .. } | QueuedEvent::SegmentsChanged { .. } => {
            RECEIVES
        }
        QueuedEvent::Completed { .. } | QueuedEvent::Unblocked { .. } => SENDS,
        QueuedEvent::SessionOpened { .. } | QueuedEvent::SessionEnded { .. } => SESSIONS,
    }
}

fn append(entries: &mut [Entry], list: &mut List, by: usize, index: usize) {
    let previous = list.last.replace(index);
    match previous {
        Some(previous) => entries[previous].links[by].next = Some(index),
        None => list.first = Some(index),
    }
    entries[index].links[by] = Links { previous, next: None };
}

fn remove(entries: &mut [Entry], list: &mut List, by: usize, index: usize) {
    let Links { previous, next } = entries[index].links[by];
    match previous {
        Some(previous) => entries[previous].links[by].next = next,
        None => list.first = next,
    }
    match next {
        Some(next) => entries[next].links[by].previous = previous,
        None => list.last = previous,
    }
}

#[cfg(test)]
mod tests {
    use adverb_cluster_proto::EndReason;
    use proptest::prelude::*;

    use super::*;

    const PEERS: u16 = 3;

    fn event(kind: u8, peer: u16, number: u64) -> QueuedEvent {
        let peer = PeerId(peer);
        match kind {
            0 => QueuedEvent::Unblocked { peer },
            1 => QueuedEvent::SegmentsChanged { peer },
            2 => QueuedEvent::SessionOpened { peer, epoch: number },
            _ => QueuedEvent::SessionEnded { peer, epoch: number, reason: EndReason::Closed },
        }
    }

    fn filter(number: u8) -> Filter {
        match number {
            0 => Filter::All,
            1 => Filter::Sends,
            2 => Filter::Receives,
            number => Filter::Peer(PeerId(u16::from(number) - 3)),
        }
    }

    fn includes(filter: Filter, kind: u8, peer: u16) -> bool {
        match filter {
            Filter::All => true,
            Filter::Sends => kind != 1,
            Filter::Receives => kind != 0,
            Filter::Peer(PeerId(other)) => other == peer,
        }
    }

    proptest! {
        /// The queue returns the events that a list with the same filters returns.
        #[test]
        fn filters_take_events_in_order(steps in proptest::collection::vec((0..8u8, 0..4u8, 0..PEERS), 0..200)) {
            let mut queue = EventQueue::new(usize::from(PEERS));
            let mut model: Vec<(u64, u8, u16)> = Vec::new();
            for (step, kind, peer) in steps {
                if step < 4 {
                    let number = queue.next_sequence();
                    queue.push(event(kind, peer, number));
                    model.push((number, kind, peer));
                } else {
                    // The last filters are those of the peers, one of which doesn't exist.
                    let filter = filter((step - 4) + if step == 7 { peer as u8 + kind / 3 } else { 0 });
                    let end = queue.next_sequence().saturating_sub(u64::from(kind));
                    let position =
                        model.iter().position(|(number, kind, peer)| *number < end && includes(filter, *kind, *peer));
                    let expected = position.map(|position| model.remove(position));
                    let taken = queue.pop(filter, end).map(|event| format!("{event:?}"));
                    let expected = expected.map(|(number, kind, peer)| format!("{:?}", event(kind, peer, number)));
                    prop_assert_eq!(taken, expected);
                }
                prop_assert_eq!(queue.len(), model.len());
            }
        }
    }
}
