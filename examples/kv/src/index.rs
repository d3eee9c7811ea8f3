//! The index of a shard: buckets of one cache line, which clients read.
//!
//! A bucket has eight words of eight bytes. A word is empty (0), or has a tag of the key and the location of the item:
//!
//! | bits | field |
//! |---|---|
//! | 0 to 31 | the offset of the item in its segment, in units of 64 bytes |
//! | 32 to 39 | the segment |
//! | 40 to 51 | the length of the item in units of 64 bytes, rounded up: at least 1 |
//! | 52 to 63 | the tag: 12 bits of the key's hash |
//!
//! A key is in one of two buckets: in the primary one, if that was not full when the key was stored. The position of a
//! key's word doesn't change while the key exists, and an aligned word is read and written as a whole, so a client that
//! reads a bucket needs no lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::hash::hash;

/// The size of a bucket in bytes: a cache line.
pub const BUCKET_LEN: usize = 64;
/// The number of words of a bucket.
pub const BUCKET_WORDS: usize = BUCKET_LEN / 8;
/// The unit of offsets and lengths in bytes, which is also the alignment of items.
pub const UNIT: u64 = 64;
/// The maximum length of an item in bytes.
pub const MAX_ITEM_LEN: usize = 0xfff * UNIT as usize;

const PLACEMENT_SEED: u64 = 0x6b76;

/// A word of the index. 0 means that it is empty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Word(pub u64);

impl Word {
    /// The word without an item.
    pub const EMPTY: Word = Word(0);

    /// Returns a word, or `None` if the location doesn't fit: the item is too long, the segment's number is larger than
    /// 255, or the offset is not a multiple of 64 below 256 GiB.
    pub fn new(tag: u16, segment: u32, offset: u64, len: usize) -> Option<Word> {
        let (segment, units) = (u8::try_from(segment).ok()?, len.max(1).div_ceil(UNIT as usize));
        let offset_units = u32::try_from(offset / UNIT).ok()?;
        if len > MAX_ITEM_LEN || !offset.is_multiple_of(UNIT) {
            return None;
        }
        let tag = u64::from(tag & 0xfff);
        Some(Word(u64::from(offset_units) | u64::from(segment) << 32 | (units as u64) << 40 | tag << 52))
    }

    /// Whether the word has no item.
    pub fn is_empty(self) -> bool {
        self == Word::EMPTY
    }

    /// Returns the tag.
    pub fn tag(self) -> u16 {
        (self.0 >> 52) as u16
    }

    /// Returns the number of the item's segment.
    pub fn segment(self) -> u32 {
        u32::from((self.0 >> 32) as u8)
    }

    /// Returns the offset of the item in its segment, in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.0 as u32) * UNIT
    }

    /// Returns the length to read in bytes: that of the item, rounded up to units.
    pub fn len(self) -> u64 {
        (self.0 >> 40 & 0xfff) * UNIT
    }
}

/// The placement of a key, which clients and servers compute from the key and the [`Geometry`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The hash of the key.
    pub hash: u64,
    /// The index of the server.
    pub server: usize,
    /// The shard of the server.
    pub shard: usize,
    /// The primary and the alternate bucket, which differ if there is more than one.
    pub buckets: [usize; 2],
    /// The tag in the word.
    pub tag: u16,
}

/// The number of servers, and the numbers of a server's shards and buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The number of servers.
    pub servers: usize,
    /// The number of shards of the server.
    pub shards: usize,
    /// The number of buckets of each shard.
    pub buckets: usize,
}

impl Geometry {
    /// Returns the placement of a key. The numbers must not be 0.
    pub fn place(&self, key: &[u8]) -> Placement {
        let hash = hash(PLACEMENT_SEED, key);
        let mut rest = hash;
        let mut take = |count: usize| {
            // The high half of the product is evenly distributed below `count`, and the low half is the rest of the
            // hash.
            let product = u128::from(rest) * count as u128;
            rest = product as u64;
            (product >> 64) as usize
        };
        let (server, shard, primary) = (take(self.servers), take(self.shards), take(self.buckets));
        let distance = if self.buckets > 1 { 1 + take(self.buckets - 1) } else { 0 };
        let alternate = (primary + distance) % self.buckets;
        Placement { hash, server, shard, buckets: [primary, alternate], tag: (hash & 0xfff) as u16 }
    }
}

impl Placement {
    /// Whether a word with this tag in this bucket can be the key's.
    pub fn allows(&self, bucket: usize, tag: u16) -> bool {
        self.tag == tag && self.buckets.contains(&bucket)
    }
}

/// The words of an index: registered memory, or a list for tests.
pub trait Words {
    /// Returns the word at a position, which is below the number of buckets × 8.
    fn word(&self, position: usize) -> &AtomicU64;
}

impl Words for Vec<AtomicU64> {
    fn word(&self, position: usize) -> &AtomicU64 {
        &self[position]
    }
}

/// Returns the word at a position. Words are little-endian in memory, as clients expect them.
pub fn load(words: &impl Words, position: usize) -> Word {
    Word(u64::from_le(words.word(position).load(Ordering::Acquire)))
}

/// Replaces the word at a position, after all earlier writes.
pub fn store(words: &impl Words, position: usize, word: Word) {
    words.word(position).store(word.0.to_le(), Ordering::Release);
}

/// Returns the positions of the words in a key's two buckets, those of the primary bucket first.
pub fn positions(placement: &Placement) -> impl Iterator<Item = usize> {
    let [primary, alternate] = placement.buckets;
    let alternate = (alternate != primary).then_some(alternate);
    [Some(primary), alternate]
        .into_iter()
        .flatten()
        .flat_map(|bucket| bucket * BUCKET_WORDS..(bucket + 1) * BUCKET_WORDS)
}

/// Returns the position of a key's word. `has_key` tells whether the item at a position with the key's tag has the key.
pub fn find(
    words: &impl Words,
    placement: &Placement,
    mut has_key: impl FnMut(usize) -> bool,
) -> Option<usize> {
    positions(placement).find(|position| {
        let word = load(words, *position);
        !word.is_empty() && word.tag() == placement.tag && has_key(*position)
    })
}

/// Returns an empty position for a key, in its primary bucket if that is not full.
pub fn find_empty(words: &impl Words, placement: &Placement) -> Option<usize> {
    positions(placement).find(|position| load(words, *position).is_empty())
}

/// Returns the words of a bucket that a client has read.
pub fn parse_bucket(bytes: &[u8]) -> Option<[Word; BUCKET_WORDS]> {
    let (words, []) = bytes.as_chunks::<8>() else { return None };
    let words: &[[u8; 8]; BUCKET_WORDS] = words.try_into().ok()?;
    Some(words.map(|word| Word(u64::from_le_bytes(word))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const GEOMETRY: Geometry = Geometry { servers: 3, shards: 2, buckets: 5 };

    #[test]
    fn a_location_that_does_not_fit_is_refused() {
        assert!(Word::new(1, 0, 0, MAX_ITEM_LEN).is_some());
        assert!(Word::new(1, 0, 0, MAX_ITEM_LEN + 1).is_none());
        assert!(Word::new(1, 256, 0, 64).is_none());
        assert!(Word::new(1, 0, 32, 64).is_none());
        assert!(Word::new(1, 0, UNIT << 32, 64).is_none());
    }

    #[test]
    fn keys_are_placed_evenly() {
        let mut counts = HashMap::new();
        for key in 0..30_000u32 {
            let placement = GEOMETRY.place(&key.to_le_bytes());
            assert_ne!(placement.buckets[0], placement.buckets[1]);
            *counts.entry((placement.server, placement.shard, placement.buckets[0])).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 30);
        assert!(counts.values().all(|count| (800..1200).contains(count)), "{counts:?}");
        let single = Geometry { servers: 1, shards: 1, buckets: 1 };
        assert_eq!(positions(&single.place(b"key")).count(), BUCKET_WORDS);
    }

    proptest! {
        #[test]
        fn a_word_keeps_its_fields(tag in 0u16..0x1000, segment in 0u32..256, unit: u32, len in 1..=MAX_ITEM_LEN) {
            let offset = u64::from(unit) * UNIT;
            let word = Word::new(tag, segment, offset, len).unwrap();
            prop_assert!(!word.is_empty());
            prop_assert_eq!((word.tag(), word.segment(), word.offset()), (tag, segment, offset));
            prop_assert!(word.len() >= len as u64 && word.len() < len as u64 + UNIT);
        }

        /// Compares random insertions, replacements and deletions in a small index with a map.
        #[test]
        fn the_index_is_a_map(operations in proptest::collection::vec((0u8..60, 0u8..3), 0..400)) {
            let words: Vec<AtomicU64> =
                (0..GEOMETRY.buckets * BUCKET_WORDS).map(|_| AtomicU64::new(0)).collect();
            // The key of each position, and the word of each key.
            let mut keys = vec![None; words.len()];
            let mut model: HashMap<u8, Word> = HashMap::new();
            for (step, (key, operation)) in operations.into_iter().enumerate() {
                let placement = GEOMETRY.place(&[key]);
                let found = find(&words, &placement, |position| keys[position] == Some(key));
                prop_assert_eq!(found.map(|position| load(&words, position)), model.get(&key).copied());
                if operation == 0 {
                    if let Some(position) = found {
                        store(&words, position, Word::EMPTY);
                        keys[position] = None;
                        model.remove(&key);
                    }
                } else if let Some(position) = found.or_else(|| find_empty(&words, &placement)) {
                    let word = Word::new(placement.tag, 1, step as u64 * UNIT, 64).unwrap();
                    store(&words, position, word);
                    keys[position] = Some(key);
                    model.insert(key, word);
                } else {
                    let is_full = positions(&placement).all(|position| keys[position].is_some());
                    prop_assert!(is_full, "a key is refused only if both buckets are full");
                }
            }
            let used = keys.iter().flatten().count();
            prop_assert_eq!(used, model.len());
        }
    }
}
