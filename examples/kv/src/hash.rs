//! A 64-bit hash, for the checksum of items and the placement of keys.
//!
//! All members must compute the same hash, so the hash functions of the standard library, which are random or may
//! change, can't be used. The function has no secret: a peer that chooses its data can construct collisions, but
//! members trust each other.

/// An odd number without a pattern: the fractional part of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
const LANES: usize = 4;

/// Mixes a word into a state. For a fixed word, the function is a bijection of the state, and for a fixed state one of the
/// word: so data that differ in one word never have the same hash.
#[inline]
fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(MULTIPLIER);
    product ^ product >> 29
}

/// Returns the hash of `bytes`. Each `seed` selects another function.
///
/// The words are mixed into four lanes in turn. The multiplications of different lanes don't depend on each other, so a
/// CPU can overlap them.
pub fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut lanes = [seed, seed ^ 0x5851_f42d_4c95_7f2d, seed.rotate_left(21), !seed.rotate_left(42)];
    let (blocks, rest) = bytes.as_chunks::<{ 8 * LANES }>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = mix(*lane, u64::from_le_bytes(*word));
        }
    }
    let (words, tail) = rest.as_chunks::<8>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane = mix(*lane, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    let mut state = mix(bytes.len() as u64, u64::from_le_bytes(last));
    for lane in lanes {
        state = mix(state, lane);
    }
    // The high bits of a product depend on all bits of its factors, the low ones don't.
    mix(state, state >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn each_length_and_each_seed_has_another_hash() {
        let zeros = [0; 100];
        let by_length: HashSet<u64> = (0..=100).map(|len| hash(0, &zeros[..len])).collect();
        assert_eq!(by_length.len(), 101);
        let by_seed: HashSet<u64> = (0..1000).map(|seed| hash(seed, b"key")).collect();
        assert_eq!(by_seed.len(), 1000);
    }

    #[test]
    fn keys_are_spread_evenly() {
        let mut counts = [0u32; 64];
        for key in 0..64_000u64 {
            let hash = hash(1, &key.to_le_bytes());
            counts[(hash % 64) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    proptest! {
        /// A changed byte is in one word, so the hash always differs.
        #[test]
        fn a_changed_byte_changes_the_hash(
            bytes in proptest::collection::vec(any::<u8>(), 1..300), at: usize, difference in 1u8..,
        ) {
            let mut changed = bytes.clone();
            changed[at % bytes.len()] ^= difference;
            prop_assert_ne!(hash(7, &bytes), hash(7, &changed));
        }
    }
}
