//! Rings whose other end violates the format, for fuzz targets and tests.
//!
//! The other process can change every byte of the memory at any time. Between two accesses of the tested end, a sequence of
//! steps changes fields and messages, or acts as a correct end does.

use super::*;

const CAPACITY: usize = Mapping::CAPACITY;

fn offset(position: u64) -> usize {
    super::offset::<Mapping>(position)
}

/// The steps, read from bytes. All values are 0 after the last byte.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a position of the other end, or any other number.
    fn position(&mut self, current: u64) -> u64 {
        match self.byte() % 4 {
            0 => self.word(),
            1 => current.wrapping_add(u64::from(self.byte())),
            2 => current.wrapping_add(self.word() % (2 * CAPACITY as u64)),
            _ => current.wrapping_sub(self.word() % (2 * CAPACITY as u64)),
        }
    }

    /// Returns a word before a message, or any other number.
    fn message_word(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => self.word(),
            1 => SKIP,
            2 => self.word() % (MAX_MESSAGE_LEN as u64 + 16),
            _ => u64::from(self.byte()),
        }
    }

    fn length(&mut self) -> usize {
        match self.byte() % 3 {
            0 => usize::from(self.byte()),
            1 => MAX_MESSAGE_LEN - usize::from(self.byte()),
            _ => self.word() as usize % (MAX_MESSAGE_LEN + 1),
        }
    }
}

/// A correct ring, before one end violates the format.
fn ring() -> (Writer, Reader) {
    let writer = Writer::create().expect("the system has memory for a ring");
    let file = writer.file().expect("a writer has the file");
    let reader = Reader::open(file.try_clone_to_owned().expect("a descriptor is free"));
    (writer, reader.expect("the file is that of a ring"))
}

/// Reads messages from a ring whose writer violates the format. A read returns a message within the bytes that the writer
/// claims, or an error.
///
/// # Panics
///
/// Panics if the reader violates this.
pub fn hostile_writer(bytes: &[u8]) {
    let (mut writer, mut reader) = ring();
    let mut steps = Steps(bytes);
    let mut out = vec![0; MAX_MESSAGE_LEN];
    while !steps.0.is_empty() {
        match steps.byte() % 8 {
            0 => {
                let written = steps.position(reader.read);
                writer.memory.written().store(written, Ordering::Release);
            }
            1 => writer.memory.read().store(steps.word(), Ordering::Relaxed),
            2 => {
                // The word of the next message, of the first one, or any other.
                let position = [reader.read, 0, steps.word()][usize::from(steps.byte() % 3)];
                let word = steps.message_word();
                writer.memory.store(position & !(WORD_LEN as u64 - 1), &word.to_ne_bytes());
            }
            3 => {
                let message = vec![7; steps.length()];
                writer.write(std::iter::once(&message[..]));
            }
            4 => writer.memory.wants_wakeup().store(steps.word() as u32, Ordering::Relaxed),
            5 => match steps.byte() % 16 {
                0 => reader.close(),
                wanted => reader.set_wants_wakeup(wanted % 2 == 0),
            },
            _ => {
                let capacity = if steps.byte() % 2 == 0 { MAX_MESSAGE_LEN } else { steps.length() };
                out.fill(0xcc);
                let start = reader.read;
                let is_readable = reader.is_readable();
                let result = reader.read(&mut out[..capacity]);
                assert_eq!(result == Ok(None), !is_readable);
                let Ok(length) = result else {
                    // The connection ends.
                    assert_eq!(reader.read, start);
                    return;
                };
                let passed = reader.read - start;
                let record = length.map_or(0, record_len) as u64;
                let skipped = passed - record;
                assert!(skipped == 0 || skipped == (CAPACITY - offset(start)) as u64, "{skipped}");
                assert!(passed <= reader.written.wrapping_sub(start) && passed <= CAPACITY as u64);
                assert!(out[capacity..].iter().all(|byte| *byte == 0xcc));
                if let Some(length) = length {
                    assert!(length <= capacity);
                    assert!(offset(reader.read - record) + record as usize <= CAPACITY);
                    assert_eq!(reader.memory.read().load(Ordering::Relaxed), reader.read);
                }
            }
        }
    }
}

/// Writes messages into a ring whose reader violates the format. The writer changes only its fields and the bytes of its
/// message, in memory that the kernel has allocated.
///
/// # Panics
///
/// Panics if the writer violates this.
pub fn hostile_reader(bytes: &[u8]) {
    let (mut writer, reader) = ring();
    let mut steps = Steps(bytes);
    let message: Vec<u8> = (0..MAX_MESSAGE_LEN).map(|index| index as u8).collect();
    let mut found = vec![0; MAX_MESSAGE_LEN];
    while !steps.0.is_empty() {
        match steps.byte() % 8 {
            0 => {
                let read = steps.position(writer.written);
                reader.memory.read().store(read, Ordering::Release);
            }
            // A correct reader has read all messages.
            1 => reader.memory.read().store(writer.written, Ordering::Release),
            2 => {
                let position = [writer.written, 0, steps.word()][usize::from(steps.byte() % 3)];
                reader.memory.store(position & !(WORD_LEN as u64 - 1), &steps.message_word().to_ne_bytes());
            }
            3 => reader.memory.wants_wakeup().store(steps.word() as u32, Ordering::Relaxed),
            4 => match steps.byte() % 4 {
                0 => reader.memory.is_opened().store(steps.word() as u32, Ordering::Relaxed),
                1 => reader.memory.written().store(steps.word(), Ordering::Relaxed),
                2 => writer.retry_wakeup(),
                _ => _ = (writer.is_half_empty(), writer.is_opened()),
            },
            _ => {
                let length = steps.length();
                let at = usize::from(steps.byte()).min(length);
                let (start, read) = (writer.written, reader.memory.read().load(Ordering::Relaxed));
                let wants_wakeup = reader.memory.wants_wakeup().load(Ordering::Relaxed) != 0;
                let (head, tail) = message[..length].split_at(at);
                let written = writer.write([head, tail].into_iter());
                let next = offset(writer.written) + WORD_LEN;
                assert!(next <= writer.allocated && writer.allocated <= CAPACITY, "{next}");
                if written == Written::Full {
                    assert_eq!(writer.written, start);
                    continue;
                }
                assert_eq!(written == Written::WakeReader, wants_wakeup);
                assert_eq!(writer.memory.written().load(Ordering::Relaxed), writer.written);
                assert_eq!(writer.memory.read().load(Ordering::Relaxed), read);
                let record = record_len(length);
                let skipped = writer.written - start - record as u64;
                assert!(skipped == 0 || skipped == (CAPACITY - offset(start)) as u64, "{skipped}");
                let position = writer.written - record as u64;
                assert!(offset(position) + record <= writer.allocated);
                let mut word = [0; WORD_LEN];
                writer.memory.load(position, &mut word);
                assert_eq!(u64::from_ne_bytes(word), length as u64);
                writer.memory.load(position + WORD_LEN as u64, &mut found[..length]);
                assert!(found[..length] == message[..length]);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    /// Calls a function with random steps.
    fn repeat(run: fn(&[u8])) {
        let mut state = 1_u64;
        for round in 0..200 {
            let steps: Vec<u8> = (0..round * 20)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            run(&steps);
        }
    }

    #[test]
    fn a_hostile_writer_violates_nothing() {
        repeat(super::hostile_writer);
    }

    #[test]
    fn a_hostile_reader_violates_nothing() {
        repeat(super::hostile_reader);
    }
}
