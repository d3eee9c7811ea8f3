//! Rings of messages in memory that two processes share. One process writes, the other reads.
//!
//! The reader checks all numbers, and copies each message before parsing it. A ring that violates the format ends the
//! connection.
//!
//! [`Writer`] and [`Reader`] are generic over the memory, so that loom checks the order of their accesses in a model of it.

#[cfg(any(all(test, not(loom)), fuzzing))]
#[allow(unreachable_pub, reason = "fuzz targets call the functions")]
pub mod fuzzing;
#[cfg(all(test, loom))]
mod loom_memory;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use self::memory::Mapping;

/// The memory of a ring, which both ends access at the same time: fields, and bytes for messages.
pub(super) trait RingMemory {
    /// The type of the counters.
    type Counter: Atomic<u64>;
    /// The type of the flags.
    type Flag: Atomic<u32>;

    /// The number of bytes for messages.
    const CAPACITY: usize;

    /// The length of a block. The writer continues in the next block only while the ring has unread messages. Otherwise it
    /// starts again at the first block, so a ring with few messages uses little memory, which stays in the CPU's cache.
    const BLOCK_LEN: usize;

    /// Returns the number of bytes that were written.
    fn written(&self) -> &Self::Counter;

    /// Returns the number of bytes that were read.
    fn read(&self) -> &Self::Counter;

    /// Returns the flag that the reader wants to be woken.
    fn wants_wakeup(&self) -> &Self::Flag;

    /// Returns the flag that the reader has opened the ring.
    fn is_opened(&self) -> &Self::Flag;

    /// Orders the accesses of this thread before the call before those after it, also stores before loads.
    fn fence(&self);

    /// Copies bytes to a position, up to the end of the memory.
    fn store(&self, position: u64, bytes: &[u8]);

    /// Copies bytes from a position, up to the end of the memory.
    fn load(&self, position: u64, out: &mut [u8]);

    /// Makes the kernel allocate the first `end` bytes for messages, of which the first `start` ones are allocated, with
    /// the fields.
    fn allocate(&self, start: usize, end: usize) -> io::Result<()>;
}

/// An atomic integer.
pub(super) trait Atomic<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
}

/// The length of the word before each message: the message's length, or [`SKIP`].
const WORD_LEN: usize = 8;

/// The word before unused bytes at the end of the memory.
const SKIP: u64 = u64::MAX;

/// The maximum length of a message.
pub(in crate::link) const MAX_MESSAGE_LEN: usize = 1 << 16;

// The first block is always allocated, so it must have space for each message and the word after it.
const _: () = assert!(record_len(MAX_MESSAGE_LEN) < Mapping::BLOCK_LEN);

fn offset<M: RingMemory>(position: u64) -> usize {
    position as usize % M::CAPACITY
}

/// The number of bytes that a message of this length takes.
const fn record_len(length: usize) -> usize {
    WORD_LEN + length.next_multiple_of(WORD_LEN)
}

/// The end of a ring that writes messages.
#[derive(Debug)]
pub(super) struct Writer<M = Mapping> {
    memory: M,
    /// The number of bytes for messages that the kernel has allocated. Without memory, an access to the others would end
    /// the process.
    allocated: usize,
    written: u64,
    /// The reader's count of read bytes, as this writer last saw it: when the ring seemed full, or at the end of a
    /// block.
    read: u64,
}

/// The result of writing a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Written {
    /// The message was written, and the reader needs no wake-up.
    Done,
    /// The message was written, and the reader must be woken.
    WakeReader,
    /// The ring has no space until the reader reads messages, or the kernel has no memory for the next block.
    Full,
}

impl Writer {
    /// Creates a ring.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system has no memory or no file descriptor.
    pub(super) fn create() -> io::Result<Writer> {
        Writer::new(Mapping::create()?)
    }

    /// Returns the file, from which another process opens the [`Reader`].
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file()
    }
}

impl<M: RingMemory> Writer<M> {
    fn new(memory: M) -> io::Result<Writer<M>> {
        let mut writer = Writer { memory, allocated: 0, written: 0, read: 0 };
        writer.allocate(M::BLOCK_LEN)?;
        Ok(writer)
    }

    /// Returns the number of bytes that were written.
    pub(super) const fn written_len(&self) -> u64 {
        self.written
    }

    /// Whether the reader has read so much that at least half of the ring is free.
    pub(super) fn is_half_empty(&self) -> bool {
        let read = self.memory.read().load(Ordering::Relaxed);
        self.written.wrapping_sub(read) <= M::CAPACITY as u64 / 2
    }

    /// Whether a process has opened the [`Reader`].
    pub(super) fn is_opened(&self) -> bool {
        self.memory.is_opened().load(Ordering::Relaxed) != 0
    }

    /// Allocates the first `end` bytes for messages.
    fn allocate(&mut self, end: usize) -> io::Result<()> {
        if end > self.allocated {
            self.memory.allocate(self.allocated, end)?;
            self.allocated = end;
        }
        Ok(())
    }

    /// Writes a message that consists of pieces, with at most [`MAX_MESSAGE_LEN`] bytes.
    pub(super) fn write<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Written {
        let length: usize = pieces.clone().map(<[u8]>::len).sum();
        assert!(length <= MAX_MESSAGE_LEN, "a message of {length} bytes is too long");
        let record = record_len(length);
        let skipped = self.skipped_len(record);
        if !self.has_room(skipped + record) {
            return Written::Full;
        }
        if skipped > 0 {
            self.memory.store(self.written, &SKIP.to_ne_bytes());
        } else {
            // The word after the record is allocated, too, because it may become that of skipped bytes.
            let end = (offset::<M>(self.written) + record + WORD_LEN).next_multiple_of(M::BLOCK_LEN);
            if self.allocate(end.min(M::CAPACITY)).is_err() {
                return Written::Full;
            }
        }
        let start = self.written + skipped as u64;
        self.memory.store(start, &(length as u64).to_ne_bytes());
        let mut position = start + WORD_LEN as u64;
        for piece in pieces {
            self.memory.store(position, piece);
            position += piece.len() as u64;
        }
        self.written = start + record as u64;
        self.memory.written().store(self.written, Ordering::Release);
        // The reader has the same fence between its request and its search for messages, so that one of them sees the
        // other.
        self.memory.fence();
        let wants_wakeup = self.memory.wants_wakeup();
        if wants_wakeup.load(Ordering::Relaxed) != 0 && wants_wakeup.swap(0, Ordering::Relaxed) != 0 {
            Written::WakeReader
        } else {
            Written::Done
        }
    }

    /// Lets the next message wake the reader, because it could not be woken.
    pub(super) fn retry_wakeup(&self) {
        self.memory.wants_wakeup().store(1, Ordering::Relaxed);
    }

    /// Returns the number of unused bytes before the next record: those to the end of the memory, if the record doesn't
    /// fit there, or if it would be in a new block although the ring is empty.
    fn skipped_len(&mut self, record: usize) -> usize {
        let offset = offset::<M>(self.written);
        let (to_end, end) = (M::CAPACITY - offset, offset + record);
        if end > M::CAPACITY {
            return to_end;
        }
        // The word after the record must be in the block, too.
        let is_in_block = offset == 0
            || !offset.is_multiple_of(M::BLOCK_LEN) && offset / M::BLOCK_LEN == end / M::BLOCK_LEN;
        if is_in_block || offset < record {
            return 0;
        }
        self.read = self.memory.read().load(Ordering::Acquire);
        if self.read == self.written { to_end } else { 0 }
    }

    fn has_room(&mut self, length: usize) -> bool {
        let has_room = |read: u64| self.written.wrapping_sub(read) <= (M::CAPACITY - length) as u64;
        if has_room(self.read) {
            return true;
        }
        self.read = self.memory.read().load(Ordering::Acquire);
        has_room(self.read)
    }
}

/// The end of a ring that reads messages.
#[derive(Debug)]
pub(super) struct Reader<M = Mapping> {
    memory: M,
    read: u64,
    /// The number of written bytes when the reader last looked at it.
    written: u64,
    /// Whether later messages are ignored.
    is_closed: bool,
}

/// The error of a ring whose writer violates the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

impl Reader {
    /// Opens a ring.
    ///
    /// # Errors
    ///
    /// Returns an error if the file isn't that of a ring, or the operating system has no memory.
    pub(super) fn open(file: OwnedFd) -> io::Result<Reader> {
        Ok(Reader::new(Mapping::open(file)?))
    }
}

impl<M: RingMemory> Reader<M> {
    fn new(memory: M) -> Reader<M> {
        memory.is_opened().store(1, Ordering::Relaxed);
        Reader { memory, read: 0, written: 0, is_closed: false }
    }

    /// Ignores messages that are written from now on.
    pub(super) fn close(&mut self) {
        self.written = self.memory.written().load(Ordering::Acquire);
        self.is_closed = true;
    }

    /// Sets whether the writer wakes the reader. After a call with `true`, the caller must execute a
    /// [fence](Reader::wakeup_fence) and then look for messages.
    #[inline]
    pub(super) fn set_wants_wakeup(&self, wanted: bool) {
        let flag = self.memory.wants_wakeup();
        // The memory usually has the value, and writing to it would take longer.
        if (flag.load(Ordering::Relaxed) != 0) != wanted {
            flag.store(wanted.into(), Ordering::Relaxed);
        }
    }

    /// Orders requests for wake-ups, of this ring and of others, before the search for messages that follows them.
    pub(super) fn wakeup_fence(&self) {
        self.memory.fence();
    }

    /// Whether the ring has a message, or is broken.
    #[inline]
    pub(super) fn is_readable(&mut self) -> bool {
        if self.read == self.written && !self.is_closed {
            self.written = self.memory.written().load(Ordering::Acquire);
        }
        self.read != self.written
    }

    /// Copies the next message into `out`, and returns its length, or `None` if there is no message. The message must
    /// not be longer than `out`.
    ///
    /// # Errors
    ///
    /// Returns an error if the writer has violated the format.
    #[inline]
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Broken> {
        if !self.is_readable() {
            return Ok(None);
        }
        let available = self.written.wrapping_sub(self.read);
        if available > M::CAPACITY as u64 {
            return Err(Broken);
        }
        let available = available as usize;
        let mut word = [0; WORD_LEN];
        let to_end = M::CAPACITY - offset::<M>(self.read);
        self.memory.load(self.read, &mut word);
        let mut start = self.read;
        let mut available = available;
        if u64::from_ne_bytes(word) == SKIP {
            available = available.checked_sub(to_end).filter(|left| *left >= WORD_LEN).ok_or(Broken)?;
            start += to_end as u64;
            self.memory.load(start, &mut word);
        }
        let length = usize::try_from(u64::from_ne_bytes(word)).map_err(|_| Broken)?;
        if length > out.len() || record_len(length) > available.min(M::CAPACITY - offset::<M>(start)) {
            return Err(Broken);
        }
        self.memory.load(start + WORD_LEN as u64, &mut out[..length]);
        self.read = start + record_len(length) as u64;
        self.memory.read().store(self.read, Ordering::Release);
        Ok(Some(length))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CAPACITY: usize = Mapping::CAPACITY;

    fn offset(position: u64) -> usize {
        super::offset::<Mapping>(position)
    }

    fn ring() -> (Writer, Reader) {
        let writer = Writer::create().unwrap();
        assert!(!writer.is_opened());
        let reader = Reader::open(writer.file().unwrap().try_clone_to_owned().unwrap()).unwrap();
        assert!(writer.is_opened());
        (writer, reader)
    }

    fn message(number: usize) -> Vec<u8> {
        let length = number * 7919 % (MAX_MESSAGE_LEN + 1);
        (0..length).map(|index| (index + number) as u8).collect()
    }

    #[test]
    fn messages_of_all_lengths_are_read_in_order() {
        let (mut writer, mut reader) = ring();
        let mut out = vec![0; MAX_MESSAGE_LEN];
        let (mut written, mut read) = (0, 0);
        while read < 2000 {
            let next = message(written);
            let (head, tail) = next.split_at(next.len() / 3);
            if writer.write([head, tail].into_iter()) == Written::Full {
                let length = reader.read(&mut out).unwrap().unwrap();
                assert!(out[..length] == message(read));
                read += 1;
            } else {
                written += 1;
            }
        }
        while let Some(length) = reader.read(&mut out).unwrap() {
            assert!(out[..length] == message(read));
            read += 1;
        }
        assert_eq!(read, written);
    }

    #[test]
    fn a_ring_with_few_messages_uses_one_block() {
        let (mut writer, mut reader) = ring();
        let (bytes, mut out) = ([7; 1000], vec![0; MAX_MESSAGE_LEN]);
        for _ in 0..10_000 {
            assert!(offset(writer.written) <= Mapping::BLOCK_LEN);
            assert_eq!(writer.write(std::iter::once(&bytes[..])), Written::Done);
            assert_eq!(reader.read(&mut out), Ok(Some(1000)));
        }
        // While the reader is slow, all of the memory is used.
        let record = record_len(bytes.len());
        let count = (0..).take_while(|_| writer.write(std::iter::once(&bytes[..])) == Written::Done).count();
        assert!((count + 2) * record > CAPACITY, "{count}");
    }

    #[test]
    fn another_thread_reads_all_messages() {
        let (mut writer, mut reader) = ring();
        let thread = std::thread::spawn(move || {
            let (mut out, mut sum) = (vec![0; MAX_MESSAGE_LEN], 0);
            for number in 0..20_000_u64 {
                let length = loop {
                    match reader.read(&mut out).unwrap() {
                        Some(length) => break length,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(out[..length], number.to_ne_bytes()[..]);
                sum += number;
            }
            sum
        });
        for number in 0..20_000_u64 {
            while writer.write(std::iter::once(&number.to_ne_bytes()[..])) == Written::Full {
                std::thread::yield_now();
            }
        }
        assert_eq!(thread.join().unwrap(), 20_000 * 19_999 / 2);
    }

    #[test]
    fn the_writer_wakes_a_reader_that_wants_it_once() {
        let (mut writer, reader) = ring();
        let mut write = || writer.write(std::iter::once(&b"message"[..]));
        assert_eq!(write(), Written::Done);
        reader.set_wants_wakeup(true);
        assert_eq!((write(), write()), (Written::WakeReader, Written::Done));
        reader.set_wants_wakeup(true);
        reader.set_wants_wakeup(false);
        assert_eq!(write(), Written::Done);
    }

    #[test]
    fn a_broken_ring_is_an_error() {
        let mut out = vec![0; MAX_MESSAGE_LEN];
        for (written, word) in [
            (u64::MAX, 8),
            (CAPACITY as u64 + 8, 8),
            (8, 8),
            (16, 9),
            (CAPACITY as u64, MAX_MESSAGE_LEN as u64 + 1),
            (CAPACITY as u64, SKIP),
            (16, SKIP - 1),
        ] {
            let (writer, mut reader) = ring();
            writer.memory.store(0, &word.to_ne_bytes());
            writer.memory.written().store(written, Ordering::Release);
            assert_eq!(reader.read(&mut out), Err(Broken), "{written} {word}");
        }
    }

    #[test]
    fn the_word_after_each_record_is_allocated() {
        let mut out = vec![0; MAX_MESSAGE_LEN];
        // Records of these lengths end exactly at the end of a block.
        for length in [56, 120, 248, 2040, 65_528] {
            let bytes = vec![7; length];
            let (mut writer, mut reader) = ring();
            for number in 0..100_000 / record_len(length) * 64 {
                let next = offset(writer.written) + WORD_LEN;
                assert!(next <= writer.allocated.min(CAPACITY), "{length}: {next} > {}", writer.allocated);
                if writer.write(std::iter::once(&bytes[..])) == Written::Full || number % 1000 == 999 {
                    while reader.read(&mut out).unwrap().is_some() {}
                }
            }
        }
    }

    #[test]
    fn a_closed_ring_has_only_the_messages_before() {
        let (mut writer, mut reader) = ring();
        let mut out = vec![0; MAX_MESSAGE_LEN];
        writer.write(std::iter::once(&b"before"[..]));
        reader.close();
        writer.write(std::iter::once(&b"after"[..]));
        assert_eq!((reader.read(&mut out), reader.read(&mut out)), (Ok(Some(6)), Ok(None)));
    }
}
