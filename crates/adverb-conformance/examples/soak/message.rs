//! Messages that say what they should be, so that every byte of them can be checked.

use anyhow::{Result, ensure};

/// Numbers that look random and follow from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of the numbers below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// How long the part is that says which message it is: session, number, length.
pub(crate) const HEAD: usize = 24;

/// Fills in a message.
pub(crate) fn fill(session: u64, number: u64, message: &mut [u8]) {
    let length = message.len() as u64;
    let (head, body) = message.split_at_mut(HEAD);
    for (place, word) in head.chunks_exact_mut(8).zip([session, number, length]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    fill_body(session, number, body);
}

/// Checks a message, which must be this one.
pub(crate) fn check(session: u64, number: u64, message: &[u8]) -> Result<()> {
    ensure!(message.len() >= HEAD, "message {number} has only {} bytes", message.len());
    let mut expected = vec![0; message.len()];
    fill(session, number, &mut expected);
    let wrong = message.iter().zip(&expected).filter(|(came, sent)| came != sent).count();
    ensure!(wrong == 0, "message {number} of {} bytes has {wrong} wrong ones", message.len());
    Ok(())
}

/// The number that a message says it has.
pub(crate) fn number(message: &[u8]) -> Result<u64> {
    ensure!(message.len() >= HEAD, "a message has only {} bytes", message.len());
    Ok(word(message, 1))
}

/// The length that a message says it has.
pub(crate) fn length(head: &[u8]) -> usize {
    word(head, 2) as usize
}

fn word(message: &[u8], index: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&message[8 * index..8 * index + 8]);
    u64::from_le_bytes(bytes)
}

/// What is behind the head, and what memory is filled with that is only read.
pub(crate) fn fill_body(session: u64, number: u64, body: &mut [u8]) {
    let mut random = Random(session ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d));
    for chunk in body.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
}
