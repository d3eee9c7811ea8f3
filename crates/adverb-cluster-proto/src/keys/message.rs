//! Control messages, which carry keys between two [`Keys`](super::Keys).
//!
//! | bytes | addition | withdrawal | confirmation |
//! |---|---|---|---|
//! | 0 | 1 | 2 | 3 |
//! | 4–7 | number of the member | number of the member | number of the member |
//! | from 8 | for each segment: number, key (4 bytes each), address, length (8 bytes each) | numbers (4 bytes each) | numbers |
//!
//! All numbers are in little endian. Bytes 1 to 3 are zero. A message has at least one entry.

use adverb_proto::types::RemoteMemory;

const HEADER_LEN: usize = 8;
const ADDITION_LEN: usize = 24;
const NUMBER_LEN: usize = 4;

/// The minimum length of a slot that can carry every kind of message.
pub(super) const MIN_SLOT_SIZE: u32 = (HEADER_LEN + ADDITION_LEN) as u32;

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Addition = 1,
    Withdrawal = 2,
    Confirmation = 3,
}

impl Kind {
    /// Returns the number of entries that fit a message of `max_len` bytes.
    pub(super) fn max_entry_count(self, max_len: usize) -> usize {
        let entry_len = match self {
            Kind::Addition => ADDITION_LEN,
            Kind::Withdrawal | Kind::Confirmation => NUMBER_LEN,
        };
        max_len.saturating_sub(HEADER_LEN) / entry_len
    }
}

pub(super) fn start(message: &mut Vec<u8>, kind: Kind, member: u32) {
    message.clear();
    message.extend([kind as u8, 0, 0, 0]);
    message.extend(member.to_le_bytes());
}

/// Adds an entry to an addition.
pub(super) fn push_addition(message: &mut Vec<u8>, segment: u32, memory: RemoteMemory) {
    message.extend(segment.to_le_bytes());
    message.extend(memory.rkey.to_le_bytes());
    message.extend(memory.addr.to_le_bytes());
    message.extend(memory.len.to_le_bytes());
}

/// Adds an entry to a withdrawal or a confirmation.
pub(super) fn push_number(message: &mut Vec<u8>, segment: u32) {
    message.extend(segment.to_le_bytes());
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    Addition { member: u32, entries: &'a [[u8; ADDITION_LEN]] },
    Withdrawal { segments: &'a [[u8; NUMBER_LEN]] },
    Confirmation { segments: &'a [[u8; NUMBER_LEN]] },
}

impl Message<'_> {
    /// Parses a message, which may come from any peer.
    pub(super) fn parse(bytes: &[u8]) -> Option<Message<'_>> {
        let (&[kind, 0, 0, 0, m0, m1, m2, m3], entries) = bytes.split_first_chunk::<HEADER_LEN>()? else {
            return None;
        };
        if entries.is_empty() {
            return None;
        }
        if kind == Kind::Addition as u8 {
            let (entries, []) = entries.as_chunks::<ADDITION_LEN>() else { return None };
            return Some(Message::Addition { member: u32::from_le_bytes([m0, m1, m2, m3]), entries });
        }
        let (segments, []) = entries.as_chunks::<NUMBER_LEN>() else { return None };
        if kind == Kind::Withdrawal as u8 {
            Some(Message::Withdrawal { segments })
        } else if kind == Kind::Confirmation as u8 {
            Some(Message::Confirmation { segments })
        } else {
            None
        }
    }
}

/// Returns the number, the key and the range of an added segment, unless the end of the range exceeds 64 bits.
pub(super) fn parse_addition(entry: &[u8; ADDITION_LEN]) -> Option<(u32, RemoteMemory)> {
    let (words, _) = entry.as_chunks::<8>();
    let [first, addr, len] = [0, 1, 2].map(|index| u64::from_le_bytes(words[index]));
    addr.checked_add(len)?;
    Some((first as u32, RemoteMemory { addr, rkey: (first >> 32) as u32, len }))
}
