//! Messages that identify themselves, so that all their bytes can be checked.

use adverb_wire::random::SplitMix64;
use anyhow::{Result, ensure};

/// The length of the header that identifies a message: session, number, length.
pub(crate) const HEADER_LEN: usize = 24;

/// Fills in a message.
pub(crate) fn fill(session: u64, number: u64, message: &mut [u8]) {
    let length = message.len() as u64;
    let (head, body) = message.split_at_mut(HEADER_LEN);
    for (place, word) in head.chunks_exact_mut(8).zip([session, number, length]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    fill_body(session, number, body);
}

/// Checks that a message has this session, number and content.
pub(crate) fn check(session: u64, number: u64, message: &[u8]) -> Result<()> {
    ensure!(message.len() >= HEADER_LEN, "message {number} has only {} bytes", message.len());
    let mut expected = vec![0; message.len()];
    fill(session, number, &mut expected);
    let wrong = message.iter().zip(&expected).filter(|(received, sent)| received != sent).count();
    ensure!(wrong == 0, "message {number} of {} bytes has {wrong} wrong ones", message.len());
    Ok(())
}

/// Returns the number in a message's header.
pub(crate) fn number(message: &[u8]) -> Result<u64> {
    ensure!(message.len() >= HEADER_LEN, "a message has only {} bytes", message.len());
    Ok(word(message, 1))
}

/// Returns the length in a message's header.
pub(crate) fn length(head: &[u8]) -> usize {
    word(head, 2) as usize
}

fn word(message: &[u8], index: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&message[8 * index..8 * index + 8]);
    u64::from_le_bytes(bytes)
}

/// Fills the body of a message, or memory that is only read.
pub(crate) fn fill_body(session: u64, number: u64, body: &mut [u8]) {
    let mut random = SplitMix64(session ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d));
    random.fill(body);
}
