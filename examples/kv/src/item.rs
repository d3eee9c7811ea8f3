//! The bytes of an item: a key and its value, in the memory of a server.
//!
//! | offset | field |
//! |---|---|
//! | 0 | the generation, 8 bytes; 0 means that the item was replaced or deleted |
//! | 8 | the checksum of the generation and of all bytes from offset 16 |
//! | 16 | the length of the value, 4 bytes |
//! | 20 | the length of the key, 2 bytes |
//! | 22 | zero, 2 bytes |
//! | 24 | the key, and then the value |
//!
//! All numbers are little-endian. A client reads an item while the server may reuse its memory. The NIC copies the cache
//! lines in any order, so the client can get any mixture of old and new bytes. The checksum covers all of them, so a mixture
//! is detected, wherever it is.

use crate::hash::hash;

/// The length of the fields before the key.
pub const HEADER_LEN: usize = 24;
/// The maximum length of a key.
pub const MAX_KEY_LEN: usize = u16::MAX as usize;
/// The generation of an item that was replaced or deleted.
pub const RETIRED: u64 = 0;

/// The offset after the checksum, which covers the generation and all bytes from here on.
const CHECKED: usize = 16;

/// An item that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// A number that increases with each PUT to the shard.
    pub generation: u64,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The reason why bytes are no item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ItemError {
    /// The item was replaced or deleted, and its memory was not reused yet.
    #[error("the item was replaced or deleted")]
    Retired,
    /// The bytes are a mixture of two items, or no item at all.
    #[error("the checksum does not match: the item changed while it was read")]
    Torn,
}

/// The checks of a read item.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Verify {
    /// Compare the checksum.
    #[default]
    Checksum,
    /// Check only that the lengths fit. Wrong values can be accepted: this is for runs that show it.
    LengthsOnly,
}

/// Returns the length of an item with this key and value.
pub fn encoded_len(key: &[u8], value: &[u8]) -> usize {
    HEADER_LEN + key.len() + value.len()
}

/// Writes an item to `bytes`, whose contents are replaced. The key must not exceed [`MAX_KEY_LEN`] bytes, and the value
/// must be shorter than 4 GiB.
pub fn encode(bytes: &mut Vec<u8>, Item { generation, key, value }: Item<'_>) {
    bytes.clear();
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    let checksum = hash(generation, &bytes[CHECKED..]);
    bytes[8..CHECKED].copy_from_slice(&checksum.to_le_bytes());
}

/// Returns the item at the start of `bytes`, which may be longer than the item.
///
/// # Errors
///
/// Returns [`ItemError::Retired`] if the generation is 0, and [`ItemError::Torn`] if the lengths or the checksum don't match.
pub fn parse(bytes: &[u8], verify: Verify) -> Result<Item<'_>, ItemError> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (Some(generation), Some(checksum), Some(lengths)) = (word(0), word(8), word(16)) else {
        return Err(ItemError::Torn);
    };
    if generation == RETIRED {
        return Err(ItemError::Retired);
    }
    let (value_len, key_len) = (lengths as u32 as usize, (lengths >> 32) as u16 as usize);
    let value_start = HEADER_LEN + key_len;
    let (Some(key), Some(value)) =
        (bytes.get(HEADER_LEN..value_start), bytes.get(value_start..value_start + value_len))
    else {
        return Err(ItemError::Torn);
    };
    if verify == Verify::Checksum && hash(generation, &bytes[CHECKED..value_start + value_len]) != checksum {
        return Err(ItemError::Torn);
    }
    Ok(Item { generation, key, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(generation: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![1, 2, 3];
        encode(&mut bytes, Item { generation, key, value });
        assert_eq!(bytes.len(), encoded_len(key, value));
        bytes
    }

    #[test]
    fn a_retired_item_is_recognized() {
        let mut bytes = encoded(5, b"key", b"value");
        bytes[..8].fill(0);
        assert_eq!(parse(&bytes, Verify::Checksum), Err(ItemError::Retired));
    }

    /// An item of the same key, partly overwritten by a newer one, has plausible lengths and the right key.
    #[test]
    fn a_mixture_is_accepted_only_without_the_checksum() {
        let (old, new) = (encoded(5, b"key", &[1; 200]), encoded(6, b"key", &[2; 200]));
        for at in (0..=old.len()).step_by(8) {
            for [first, second] in [[&old, &new], [&new, &old]] {
                let mixture = [&first[..at], &second[at..]].concat();
                let is_whole = mixture == *first || mixture == *second;
                assert_eq!(parse(&mixture, Verify::Checksum).is_ok(), is_whole, "cut at {at}");
                assert!(parse(&mixture, Verify::LengthsOnly).is_ok(), "cut at {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn items_are_parsed_from_longer_reads(
            generation in 1u64..,
            key in proptest::collection::vec(any::<u8>(), 0..40),
            value in proptest::collection::vec(any::<u8>(), 0..200),
            rest in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = encoded(generation, &key, &value);
            bytes.extend(rest);
            prop_assert_eq!(
                parse(&bytes, Verify::Checksum),
                Ok(Item { generation, key: &key, value: &value })
            );
        }

        #[test]
        fn any_changed_byte_is_detected(
            value in proptest::collection::vec(any::<u8>(), 0..200), at: usize, difference in 1u8..,
        ) {
            let mut bytes = encoded(9, b"a key", &value);
            let at = at % bytes.len();
            bytes[at] ^= difference;
            prop_assert!(parse(&bytes, Verify::Checksum).is_err());
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&bytes, Verify::LengthsOnly);
            prop_assert!(parse(&bytes, Verify::Checksum).is_err());
        }
    }
}
