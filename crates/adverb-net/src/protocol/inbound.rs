//! The own ring, as who reads from it sees it.

use std::collections::VecDeque;

use super::outbound::{skip, units};
use super::{Credits, UNIT, Violation};

/// What has come, what was read, and what the peer knows of that.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// In units.
    ring: u64,
    most_writes: u64,
    /// Units written, and skipped, since the beginning.
    written: u64,
    /// Where unread writes are, how long they are, and up to where they take the ring.
    unread: VecDeque<(u32, u32, u64)>,
    read: u64,
    writes_read: u64,
    /// What the peer was told last.
    told: u64,
    writes_told: u64,
}

impl Inbound {
    /// A ring of this many bytes, for this many writes.
    pub(crate) fn new(ring: u32, most_writes: u32) -> Inbound {
        Inbound {
            ring: u64::from(ring / UNIT),
            most_writes: most_writes.into(),
            written: 0,
            unread: VecDeque::with_capacity(most_writes as usize),
            read: 0,
            writes_read: 0,
            told: 0,
            writes_told: 0,
        }
    }

    /// Takes in that the peer wrote `len` bytes.
    pub(crate) fn written(&mut self, len: u32) -> Result<(), Violation> {
        if len == 0 {
            return Err(Violation("it sent a write without frames"));
        }
        let (skipped, offset) = skip(self.written, self.ring, len);
        let end = self.written + skipped + units(len);
        if end - self.read > self.ring || self.unread.len() as u64 == self.most_writes {
            return Err(Violation("it wrote more than its credits allow"));
        }
        self.written = end;
        self.unread.push_back((offset, len, end));
        Ok(())
    }

    /// Where the oldest unread write is, and how long.
    pub(crate) fn unread(&self) -> Option<(u32, u32)> {
        self.unread.front().map(|(offset, len, _)| (*offset, *len))
    }

    /// Takes in that the oldest unread write was read: its place is free.
    pub(crate) fn read(&mut self) {
        if let Some((_, _, end)) = self.unread.pop_front() {
            self.read = end;
            self.writes_read += 1;
        }
    }

    /// Whether the peer must be told how much was read, because it might wait for it.
    pub(crate) fn must_tell(&self) -> bool {
        self.read - self.told >= self.ring / 4 || self.writes_read - self.writes_told >= self.most_writes / 2
    }

    /// What to tell the peer, who is told.
    pub(crate) fn tell(&mut self) -> Credits {
        (self.told, self.writes_told) = (self.read, self.writes_read);
        Credits::new(self.read, self.writes_read)
    }
}
