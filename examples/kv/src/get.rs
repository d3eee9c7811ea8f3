//! A one-sided GET, as a state machine: it returns the next step, such as a READ, and receives the bytes that were
//! read.
//!
//! The order is: the item that a cached word names, if there is one; the primary bucket; the items in it whose tag matches;
//! the alternate bucket; the items in it. A client that reads an item can be too late: the item was replaced, or its memory
//! was reused. Then it reads the primary bucket again, and after [`MAX_ATTEMPTS`] of these attempts asks the server.

use crate::index::{BUCKET_WORDS, Geometry, Placement, Word};
use crate::item::{Item, ItemError};

/// The maximum number of times that a GET starts again at the primary bucket. Then it asks the server.
pub const MAX_ATTEMPTS: u8 = 8;

/// A step of a GET.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Read a bucket of the key's shard.
    ReadBucket(usize),
    /// Read the item that a word names.
    ReadItem(Word),
    /// Ask the server.
    Call,
    /// The item that was just read is the key's.
    Found,
    /// The cache has no item with the key.
    Missing,
}

/// The reason why an item that was read is not the key's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// The lengths or the checksum don't match.
    Torn,
    /// The item was replaced or deleted.
    Retired,
    /// The memory was reused for an item of another key.
    Reused,
    /// Another key has the same bucket and the same tag.
    SameTag,
}

/// A GET in progress.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    placement: Placement,
    phase: Phase,
    attempts: u8,
    /// Whether an item of another key with the same tag was found.
    has_collision: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Cached,
    /// The bucket that is being read: 0 is the primary one.
    Bucket(usize),
    /// The bucket, its words, and the index of the word whose item is being read.
    Item(usize, [Word; BUCKET_WORDS], usize),
}

impl Get {
    /// Starts a GET. `cached` is the word of an earlier GET of the key.
    pub fn new(placement: Placement, cached: Option<Word>) -> (Get, Step) {
        let get = |phase| Get { placement, phase, attempts: 0, has_collision: false };
        match cached {
            Some(word) => (get(Phase::Cached), Step::ReadItem(word)),
            None => (get(Phase::Bucket(0)), Step::ReadBucket(placement.buckets[0])),
        }
    }

    /// Returns the placement of the key.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the word of the item that was found, or `None` if the cached word led to it.
    pub fn word(&self) -> Option<Word> {
        match &self.phase {
            Phase::Item(_, words, index) => Some(words[*index]),
            _ => None,
        }
    }

    /// Processes the words of the bucket that was read, and returns the next step.
    pub fn handle_bucket(&mut self, words: [Word; BUCKET_WORDS]) -> Step {
        match self.phase {
            Phase::Bucket(bucket) => self.try_items(bucket, words, 0),
            _ => Step::Call,
        }
    }

    /// Processes the item that was read. Returns the next step, and the reason if the item is not the key's.
    pub fn handle_item(
        &mut self,
        key: &[u8],
        geometry: &Geometry,
        read: Result<Item<'_>, ItemError>,
    ) -> (Step, Option<Rejection>) {
        let rejection = match read {
            Ok(item) if item.key == key => return (Step::Found, None),
            Ok(item) => {
                let other = geometry.place(item.key);
                let is_collision = match self.phase {
                    Phase::Item(bucket, ..) => {
                        let same_shard =
                            (other.server, other.shard) == (self.placement.server, self.placement.shard);
                        same_shard && other.allows(self.placement.buckets[bucket], self.placement.tag)
                    }
                    _ => false,
                };
                if is_collision { Rejection::SameTag } else { Rejection::Reused }
            }
            Err(ItemError::Retired) => Rejection::Retired,
            Err(ItemError::Torn) => Rejection::Torn,
        };
        let step = match (self.phase, rejection) {
            (Phase::Item(bucket, words, index), Rejection::SameTag) => {
                self.has_collision = true;
                self.try_items(bucket, words, index + 1)
            }
            _ => self.read_bucket(0),
        };
        (step, Some(rejection))
    }

    /// Returns the step that reads the next item with the key's tag, or, if there is none, the other bucket.
    fn try_items(&mut self, bucket: usize, words: [Word; BUCKET_WORDS], first: usize) -> Step {
        let matches = |word: &Word| !word.is_empty() && word.tag() == self.placement.tag;
        if let Some(index) = (first..BUCKET_WORDS).find(|index| matches(&words[*index])) {
            self.phase = Phase::Item(bucket, words, index);
            return Step::ReadItem(words[index]);
        }
        let [primary, alternate] = self.placement.buckets;
        if bucket == 0 && alternate != primary {
            self.phase = Phase::Bucket(1);
            return Step::ReadBucket(alternate);
        }
        // After a collision, the key may still exist: the memory of its item may have been reused for the other key
        // after the bucket was read.
        if self.has_collision { Step::Call } else { Step::Missing }
    }

    fn read_bucket(&mut self, bucket: usize) -> Step {
        self.attempts += 1;
        if self.attempts > MAX_ATTEMPTS {
            return Step::Call;
        }
        self.phase = Phase::Bucket(bucket);
        self.has_collision = false;
        Step::ReadBucket(self.placement.buckets[bucket])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { servers: 1, shards: 1, buckets: 1 << 16 };
    const KEY: &[u8] = b"key";

    fn bucket(entries: &[Word]) -> [Word; BUCKET_WORDS] {
        let mut words = [Word::EMPTY; BUCKET_WORDS];
        words[1..1 + entries.len()].copy_from_slice(entries);
        words
    }

    fn word(placement: &Placement, number: u64) -> Word {
        Word::new(placement.tag, 0, number * 64, 64).unwrap()
    }

    fn item(key: &[u8]) -> Result<Item<'_>, ItemError> {
        Ok(Item { generation: 1, key, value: b"value" })
    }

    /// Returns another key with the tag of `KEY`. In a geometry with one bucket, both keys are in it.
    fn collision(geometry: &Geometry) -> Vec<u8> {
        let tag = geometry.place(KEY).tag;
        let keys = (0u32..).map(|number| number.to_le_bytes().to_vec());
        keys.into_iter().find(|key| geometry.place(key).tag == tag).unwrap()
    }

    #[test]
    fn a_key_is_found_in_its_primary_bucket() {
        let placement = GEOMETRY.place(KEY);
        let (mut get, step) = Get::new(placement, None);
        assert_eq!(step, Step::ReadBucket(placement.buckets[0]));
        let other_tag = Word::new(placement.tag ^ 1, 0, 0, 64).unwrap();
        let mine = word(&placement, 5);
        assert_eq!(get.handle_bucket(bucket(&[other_tag, mine])), Step::ReadItem(mine));
        assert_eq!(get.handle_item(KEY, &GEOMETRY, item(KEY)), (Step::Found, None));
        assert_eq!(get.word(), Some(mine));
    }

    #[test]
    fn a_key_is_missing_if_both_buckets_lack_it() {
        let placement = GEOMETRY.place(KEY);
        let (mut get, _) = Get::new(placement, None);
        assert_eq!(get.handle_bucket(bucket(&[])), Step::ReadBucket(placement.buckets[1]));
        assert_eq!(get.handle_bucket(bucket(&[])), Step::Missing);
    }

    #[test]
    fn a_cached_word_takes_one_read_or_leads_to_the_bucket() {
        let placement = GEOMETRY.place(KEY);
        let mine = word(&placement, 5);
        let (mut get, step) = Get::new(placement, Some(mine));
        assert_eq!(step, Step::ReadItem(mine));
        assert_eq!(get.handle_item(KEY, &GEOMETRY, item(KEY)), (Step::Found, None));
        for (read, rejection) in [
            (Err(ItemError::Torn), Rejection::Torn),
            (Err(ItemError::Retired), Rejection::Retired),
            (item(b"other"), Rejection::Reused),
        ] {
            let (mut get, _) = Get::new(placement, Some(mine));
            let expected = (Step::ReadBucket(placement.buckets[0]), Some(rejection));
            assert_eq!(get.handle_item(KEY, &GEOMETRY, read), expected);
        }
    }

    #[test]
    fn an_item_that_changes_again_and_again_is_requested_from_the_server() {
        let placement = GEOMETRY.place(KEY);
        let (mut get, mut step) = Get::new(placement, None);
        let mut bucket_reads = 0;
        while let Step::ReadBucket(_) = step {
            bucket_reads += 1;
            let mine = word(&placement, bucket_reads);
            assert_eq!(get.handle_bucket(bucket(&[mine])), Step::ReadItem(mine));
            step = get.handle_item(KEY, &GEOMETRY, Err(ItemError::Torn)).0;
        }
        assert_eq!((step, bucket_reads), (Step::Call, 1 + u64::from(MAX_ATTEMPTS)));
    }

    /// Memory that was reused for another key doesn't mean that the key is missing.
    #[test]
    fn reused_memory_leads_to_the_bucket() {
        let placement = GEOMETRY.place(KEY);
        let (mut get, _) = Get::new(placement, None);
        get.handle_bucket(bucket(&[word(&placement, 1)]));
        let expected = (Step::ReadBucket(placement.buckets[0]), Some(Rejection::Reused));
        assert_eq!(get.handle_item(KEY, &GEOMETRY, item(b"other")), expected);
    }

    #[test]
    fn a_key_with_the_same_tag_leads_to_the_next_word_and_then_to_the_server() {
        let single = Geometry { servers: 1, shards: 1, buckets: 1 };
        let other = collision(&single);
        let placement = single.place(KEY);
        let [first, second] = [1, 2].map(|number| word(&placement, number));
        let (mut get, _) = Get::new(placement, None);
        assert_eq!(get.handle_bucket(bucket(&[first, second])), Step::ReadItem(first));
        let expected = (Step::ReadItem(second), Some(Rejection::SameTag));
        assert_eq!(get.handle_item(KEY, &single, item(&other)), expected);
        let expected = (Step::Call, Some(Rejection::SameTag));
        assert_eq!(get.handle_item(KEY, &single, item(&other)), expected);
    }
}
