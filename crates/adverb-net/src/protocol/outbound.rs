//! The peer's ring, as who writes to it sees it.

use super::{Credits, UNIT, Violation};

/// Where the next write goes, and whether it may.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// In units.
    ring: u64,
    most_writes: u64,
    /// Units written, and skipped, since the beginning.
    written: u64,
    /// Of these, how many the peer has read.
    read: u64,
    /// The same of writes.
    writes: u64,
    writes_read: u64,
}

impl Outbound {
    /// A ring of this many bytes, for this many writes.
    pub(crate) fn new(ring: u32, most_writes: u32) -> Outbound {
        Outbound {
            ring: u64::from(ring / UNIT),
            most_writes: most_writes.into(),
            written: 0,
            read: 0,
            writes: 0,
            writes_read: 0,
        }
    }

    /// Finds a place for `len` bytes, an offset in the ring: if there is one, it is taken.
    pub(crate) fn place(&mut self, len: u32) -> Option<u32> {
        let (offset, end) = self.find(len)?;
        self.written = end;
        self.writes += 1;
        Some(offset)
    }

    /// Whether there is a place for `len` bytes.
    pub(crate) fn fits(&self, len: u32) -> bool {
        self.find(len).is_some()
    }

    /// Where `len` bytes would begin and end.
    fn find(&self, len: u32) -> Option<(u32, u64)> {
        let (skipped, offset) = skip(self.written, self.ring, len);
        let end = self.written + skipped + units(len);
        let has_credit = end - self.read <= self.ring && self.writes - self.writes_read < self.most_writes;
        has_credit.then_some((offset, end))
    }

    /// How many writes there were.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    /// How many of them the peer has read.
    pub(crate) fn writes_read(&self) -> u64 {
        self.writes_read
    }

    /// Whether the peer has read all that was written.
    pub(crate) fn is_read(&self) -> bool {
        self.writes_read == self.writes
    }

    /// Takes in what the peer says it has read.
    pub(crate) fn credit(&mut self, credits: Credits) -> Result<(), Violation> {
        let read = self.read + credits.units_since(self.read);
        let writes_read = self.writes_read + credits.writes_since(self.writes_read);
        if read > self.written || writes_read > self.writes {
            return Err(Violation("it granted more credits than were in use"));
        }
        (self.read, self.writes_read) = (read, writes_read);
        Ok(())
    }
}

/// How many units `len` bytes take.
pub(super) fn units(len: u32) -> u64 {
    len.div_ceil(UNIT).into()
}

/// Where `len` bytes go that come after the first `count` units: they aren't cut in two by the ring's end, but skip what is
/// left of it. Both ends count alike, so that nobody has to say.
pub(super) fn skip(count: u64, ring: u64, len: u32) -> (u64, u32) {
    let at = count % ring;
    let (skipped, at) = if units(len) > ring - at { (ring - at, 0) } else { (0, at) };
    (skipped, at as u32 * UNIT)
}
