//! Both ends of a ring: places of writes, and the credits for them.

use std::collections::VecDeque;

use crate::immediate::Credits;
use crate::mutation::mutant;
use crate::{RING_ALIGN, Violation};

/// The peer's ring, as its writer counts it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SendRing {
    /// The size of the ring, in units.
    size: u64,
    max_writes: u64,
    /// Units written or skipped since the beginning.
    written: u64,
    /// The number of these that the peer has read.
    read: u64,
    writes: u64,
    writes_read: u64,
}

impl SendRing {
    /// Creates the counters of an empty ring of `size` bytes.
    pub(crate) fn new(size: u32, max_writes: u32) -> SendRing {
        SendRing {
            size: u64::from(size / RING_ALIGN),
            max_writes: max_writes.into(),
            written: 0,
            read: 0,
            writes: 0,
            writes_read: 0,
        }
    }

    /// Takes a place for `len` bytes, and returns its offset, if the credits suffice.
    pub(crate) fn place(&mut self, len: u32) -> Option<u32> {
        let (offset, end) = self.find(len)?;
        self.take(end);
        Some(offset)
    }

    /// Takes the place that [`find`](SendRing::find) has returned, with this end.
    pub(crate) fn take(&mut self, end: u64) {
        self.written = end;
        self.writes += 1;
    }

    /// Whether the credits suffice for `len` bytes.
    pub(crate) fn fits(&self, len: u32) -> bool {
        self.find(len).is_some()
    }

    /// Returns the offset and the end of a write of `len` bytes, if the credits suffice.
    pub(crate) fn find(&self, len: u32) -> Option<(u32, u64)> {
        let (mut skipped, offset) = skip(self.written, self.size, len);
        if mutant!(SkipUncounted) {
            skipped = 0;
        }
        let end = self.written + skipped + units(len);
        let has_units = end - self.read <= self.size || mutant!(IgnoreRingCredits);
        let has_writes = self.writes - self.writes_read < self.max_writes || mutant!(IgnoreWriteCredits);
        (has_units && has_writes).then_some((offset, end))
    }

    /// Returns the number of writes since the beginning.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    /// Returns the number of writes that the peer has read.
    pub(crate) fn writes_read(&self) -> u64 {
        self.writes_read
    }

    /// Whether the peer has read all writes.
    pub(crate) fn is_read(&self) -> bool {
        self.writes_read == self.writes
    }

    /// Adds credits of the peer.
    pub(crate) fn add_credits(&mut self, credits: Credits) -> Result<(), Violation> {
        let read = self.read + credits.units_since(self.read);
        let writes_read = self.writes_read + credits.writes_since(self.writes_read);
        if read > self.written || writes_read > self.writes {
            return Err(Violation("it granted more credits than were in use"));
        }
        (self.read, self.writes_read) = (read, writes_read);
        Ok(())
    }
}

/// An unread write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Unread {
    offset: u32,
    len: u32,
    /// The units written or skipped up to its end.
    end: u64,
}

/// This side's ring, as its reader counts it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RecvRing {
    /// The size of the ring, in units.
    size: u64,
    max_writes: u64,
    /// Units written or skipped since the beginning.
    written: u64,
    unread: VecDeque<Unread>,
    read: u64,
    writes_read: u64,
    /// The values of `read` and `writes_read` that were last reported to the peer.
    reported: u64,
    writes_reported: u64,
}

impl RecvRing {
    /// Creates the counters of an empty ring of `size` bytes.
    pub(crate) fn new(size: u32, max_writes: u32) -> RecvRing {
        RecvRing {
            size: u64::from(size / RING_ALIGN),
            max_writes: max_writes.into(),
            written: 0,
            unread: VecDeque::with_capacity(max_writes as usize),
            read: 0,
            writes_read: 0,
            reported: 0,
            writes_reported: 0,
        }
    }

    /// Adds a write of `len` bytes by the peer.
    pub(crate) fn add_write(&mut self, len: u32) -> Result<(), Violation> {
        if len == 0 {
            return Err(Violation("it sent a write without frames"));
        }
        let (skipped, offset) = skip(self.written, self.size, len);
        let end = self.written + skipped + units(len);
        if end - self.read > self.size || self.unread.len() as u64 == self.max_writes {
            return Err(Violation("it wrote more than its credits allow"));
        }
        self.written = end;
        self.unread.push_back(Unread { offset, len, end });
        Ok(())
    }

    /// Returns the offset and the length of the oldest unread write.
    pub(crate) fn unread(&self) -> Option<(u32, u32)> {
        self.unread.front().map(|write| (write.offset, write.len))
    }

    /// Frees the place of the oldest unread write, which was copied.
    pub(crate) fn free(&mut self) {
        if let Some(write) = self.unread.pop_front() {
            self.read = write.end;
            self.writes_read += 1;
        }
    }

    /// Whether credits must be reported, because the peer may be waiting for them.
    pub(crate) fn must_report(&self) -> bool {
        let is_due = self.read - self.reported >= self.size / 4
            || self.writes_read - self.writes_reported >= self.max_writes / 2;
        is_due && !mutant!(CreditsNeverSent)
    }

    /// Returns the credits for the peer, and notes that they are reported.
    pub(crate) fn report_credits(&mut self) -> Credits {
        if mutant!(CreditsBeforeRead) {
            return Credits::new(self.written, self.writes_read + self.unread.len() as u64);
        }
        let stale = Credits::new(self.reported, self.writes_reported);
        (self.reported, self.writes_reported) = (self.read, self.writes_read);
        if mutant!(StaleCredits) { stale } else { Credits::new(self.read, self.writes_read) }
    }
}

/// Returns the number of units of `len` bytes.
fn units(len: u32) -> u64 {
    len.div_ceil(RING_ALIGN).into()
}

/// Returns the number of units that a write after the first `count` units skips at the ring's end, and the write's
/// offset. Both ends compute the same, so no message carries an offset.
fn skip(count: u64, size: u64, len: u32) -> (u64, u32) {
    let at = count % size;
    let (skipped, at) = if units(len) > size - at { (size - at, 0) } else { (0, at) };
    (skipped, at as u32 * RING_ALIGN)
}

/// Returns the maximum length of a write: a quarter of the ring. A write of this length always fits a ring whose writes
/// are all read, even if it skips units at the ring's end, and the reader has not reported its last reads.
pub(crate) const fn max_write_len(ring: u32) -> u32 {
    ring / 4 / RING_ALIGN * RING_ALIGN
}
