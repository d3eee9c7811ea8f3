//! The data of a server: its shards.
//!
//! A PUT writes a new item, marks the old one as retired, and then replaces the word of the index. So a client with a
//! cached word never reads the old value after a PUT has returned, and no client reads the new value and then the old
//! one. The memory of the old item is reused after a grace period, so that a client that reads the item late still
//! finds the mark.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use adverb::cluster::{Arena, ArenaError, Item as ArenaItem, RemotePtr};
use adverb::memory::MemoryRegion;
use adverb::verbs::{Access, ProtectionDomain};

use crate::index::{self, BUCKET_LEN, BUCKET_WORDS, Geometry, MAX_ITEM_LEN, Placement, UNIT, Word, Words};
use crate::item::{self, HEADER_LEN, Item, MAX_KEY_LEN, RETIRED};
use crate::protocol::{self, Description, Status};

/// The size of a slab, whose items have about the same length. It is as small as the longest item allows, because items
/// of different lengths need different slabs.
const SLAB_SIZE: usize = (MAX_ITEM_LEN + 1).next_power_of_two();

/// The options of a [`Store`].
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// The memory for items, in bytes.
    pub memory: usize,
    /// The number of shards. PUTs to different shards don't wait for each other.
    pub shards: usize,
    /// The number of buckets of each shard. A bucket has up to eight items.
    pub buckets: usize,
    /// The time before the memory of a replaced item is reused. It should be longer than a GET takes.
    pub grace: Duration,
}

/// 64 MiB, two shards of 16,384 buckets (262,144 items at most), and a grace period of 50 ms.
impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig { memory: 64 << 20, shards: 2, buckets: 1 << 14, grace: Duration::from_millis(50) }
    }
}

/// The error of a PUT.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The key or the value is too long.
    #[error("the key has at most {MAX_KEY_LEN} bytes, and the item has at most {MAX_ITEM_LEN} bytes")]
    TooLong,
    /// The item can't be allocated, usually because the memory is full.
    #[error("storing the item failed: {0}")]
    Arena(#[from] ArenaError),
}

/// The shards of a server. The threads of the server share it.
#[derive(Debug)]
pub struct Store {
    geometry: Geometry,
    shards: Vec<Mutex<Shard>>,
    arena: Arena,
}

#[derive(Debug)]
struct Shard {
    arena: Arena,
    number: usize,
    index: IndexMemory,
    index_ptr: RemotePtr,
    /// The items, by the positions of their words.
    items: Vec<Option<ArenaItem>>,
    retired: VecDeque<(Instant, ArenaItem)>,
    grace: Duration,
    generation: u64,
    eviction_count: u64,
    /// A buffer for the bytes of an item that is written, or whose key is compared.
    bytes: Vec<u8>,
}

/// The buckets of a shard, which peers read.
#[derive(Debug)]
struct IndexMemory(MemoryRegion);

impl Words for IndexMemory {
    fn word(&self, position: usize) -> &AtomicU64 {
        self.0.word(position * 8).expect("the region has a word for each position")
    }
}

impl Store {
    /// Creates the empty shards of one of `servers` servers. `member` and `epoch` are its number and epoch in the
    /// cluster, and `domains` are the protection domains of its threads.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory can't be allocated or registered.
    pub fn new(
        config: &StoreConfig,
        servers: usize,
        member: u32,
        epoch: u64,
        domains: &[ProtectionDomain],
    ) -> Result<Store, ArenaError> {
        let builder =
            Arena::builder().member(member).epoch(epoch).item_align(UNIT as usize).slab_size(SLAB_SIZE);
        let arena = builder.partitions(config.shards.next_power_of_two()).create(domains)?;
        // Peers may read, and nothing else.
        arena.allocate_segment(config.memory, Access::REMOTE_READ)?;
        let shards = (0..config.shards).map(|number| Shard::new(config, number, &arena, &domains[0]));
        let shards = shards.map(|shard| shard.map(Mutex::new)).collect::<Result<_, _>>()?;
        let geometry = Geometry { servers, shards: config.shards, buckets: config.buckets };
        Ok(Store { geometry, shards, arena })
    }

    /// Returns the arena, for [`Broker::publish`](adverb::cluster::Broker::publish).
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns the numbers of servers, shards and buckets.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the number of items that were removed because their buckets were full.
    pub fn eviction_count(&self) -> u64 {
        (0..self.shards.len()).map(|shard| self.with_shard(shard, |shard| shard.eviction_count)).sum()
    }

    /// Stores a value. If both buckets of the key are full, the oldest item in them is removed.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if the item is too long or the memory is full. The old value stays then.
    pub fn put(&self, key: &[u8], value: &[u8], now: Instant) -> Result<(), StoreError> {
        let placement = self.geometry.place(key);
        self.with_shard(placement.shard, |shard| shard.put(&placement, key, value, now))
    }

    /// Deletes a key, and returns whether it existed.
    pub fn delete(&self, key: &[u8], now: Instant) -> bool {
        let placement = self.geometry.place(key);
        self.with_shard(placement.shard, |shard| shard.delete(&placement, key, now))
    }

    /// Appends the value of a key to `value`, and returns whether it exists.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>) -> bool {
        let placement = self.geometry.place(key);
        self.with_shard(placement.shard, |shard| shard.get(&placement, key, value))
    }

    /// Executes a request, and writes the reply to `reply`, whose contents are replaced. Returns `false` if the method is
    /// unknown.
    pub fn handle(&self, method: u16, request: &[u8], now: Instant, reply: &mut Vec<u8>) -> bool {
        reply.clear();
        reply.push(Status::Ok as u8);
        let status = match (method, protocol::parse_request(request)) {
            (protocol::DESCRIBE, _) => {
                self.describe().encode(reply);
                Status::Ok
            }
            (protocol::GET, Some((key, []))) if self.get(key, reply) => Status::Ok,
            (protocol::GET, Some((_, []))) => Status::Missing,
            (protocol::PUT, Some((key, value))) => match self.put(key, value, now) {
                Ok(()) => Status::Ok,
                Err(StoreError::Arena(ArenaError::Full { .. })) => Status::Full,
                Err(_) => Status::Invalid,
            },
            (protocol::DELETE, Some((key, []))) if self.delete(key, now) => Status::Ok,
            (protocol::DELETE, Some((_, []))) => Status::Missing,
            (protocol::GET | protocol::PUT | protocol::DELETE, _) => Status::Invalid,
            _ => return false,
        };
        reply[0] = status as u8;
        true
    }

    fn describe(&self) -> Description {
        let shards = 0..self.shards.len();
        let shards = shards.map(|shard| self.with_shard(shard, |shard| shard.index_ptr)).collect();
        Description { buckets: self.geometry.buckets as u32, shards }
    }

    fn with_shard<T>(&self, shard: usize, action: impl FnOnce(&mut Shard) -> T) -> T {
        // A shard stays valid if a thread panics: its fields are changed in an order that allows it.
        action(&mut self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shard {
    fn new(
        config: &StoreConfig,
        number: usize,
        arena: &Arena,
        domain: &ProtectionDomain,
    ) -> Result<Shard, ArenaError> {
        let len = config.buckets * BUCKET_LEN;
        let region = domain.allocate_region(len, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let segment = arena.lend_segment(region.clone())?;
        let index_ptr = arena.remote_ptr(segment.id, 0..len as u64)?;
        let mut items = Vec::new();
        items.resize_with(config.buckets * BUCKET_WORDS, || None);
        Ok(Shard {
            arena: arena.clone(),
            number,
            index: IndexMemory(region),
            index_ptr,
            items,
            retired: VecDeque::new(),
            grace: config.grace,
            generation: 0,
            eviction_count: 0,
            bytes: Vec::new(),
        })
    }

    fn find(&mut self, placement: &Placement, key: &[u8]) -> Option<usize> {
        let Shard { index, items, bytes, .. } = self;
        index::find(index, placement, |position| {
            items[position].as_ref().is_some_and(|item| {
                bytes.resize(HEADER_LEN + key.len(), 0);
                // Reading fails if the item is shorter: then it has another key.
                item.read(0, bytes).is_ok() && lengths(bytes).0 == key.len() && bytes[HEADER_LEN..] == *key
            })
        })
    }

    fn put(
        &mut self,
        placement: &Placement,
        key: &[u8],
        value: &[u8],
        now: Instant,
    ) -> Result<(), StoreError> {
        self.reclaim(now);
        let len = item::encoded_len(key, value);
        if key.len() > MAX_KEY_LEN || len > MAX_ITEM_LEN {
            return Err(StoreError::TooLong);
        }
        let position = self.find(placement, key).or_else(|| index::find_empty(&self.index, placement));
        // The new item is allocated before the old one is retired, so that a PUT to full memory changes nothing.
        let mut draft = self.arena.allocate_in(self.number, len)?;
        let position = position.unwrap_or_else(|| {
            self.eviction_count += 1;
            self.oldest(placement)
        });
        self.generation += 1;
        item::encode(&mut self.bytes, Item { generation: self.generation, key, value });
        draft.write(0, &self.bytes)?;
        let new = draft.publish();
        let RemotePtr { segment, offset, .. } = new.remote_ptr();
        let word = Word::new(placement.tag, segment, offset, len).ok_or(StoreError::TooLong)?;
        self.retire(position, now);
        index::store(&self.index, position, word);
        self.items[position] = Some(new);
        self.reclaim(now);
        Ok(())
    }

    fn delete(&mut self, placement: &Placement, key: &[u8], now: Instant) -> bool {
        let Some(position) = self.find(placement, key) else { return false };
        self.retire(position, now);
        index::store(&self.index, position, Word::EMPTY);
        self.reclaim(now);
        true
    }

    fn get(&mut self, placement: &Placement, key: &[u8], value: &mut Vec<u8>) -> bool {
        let Some(position) = self.find(placement, key) else { return false };
        let Some(item) = &self.items[position] else { return false };
        // `find` has copied the header.
        let (key_len, value_len) = lengths(&self.bytes);
        let start = value.len();
        value.resize(start + value_len, 0);
        item.read(HEADER_LEN + key_len, &mut value[start..]).is_ok()
    }

    /// Marks the item at a position as retired: clients that have its word read the bucket again.
    fn retire(&mut self, position: usize, now: Instant) {
        let Some(item) = self.items[position].take() else { return };
        if let Ok(generation) = item.word(0) {
            generation.store(RETIRED, Ordering::Release);
        }
        self.retired.push_back((now, item));
    }

    /// Frees the items whose grace period has ended.
    fn reclaim(&mut self, now: Instant) {
        while let Some((retired_at, _)) = self.retired.front() {
            if now.saturating_duration_since(*retired_at) < self.grace {
                return;
            }
            self.retired.pop_front();
        }
    }

    /// Returns the position of the oldest item in the two buckets of a key.
    fn oldest(&self, placement: &Placement) -> usize {
        let generation = |position: &usize| {
            let item = self.items[*position].as_ref();
            let word = item.and_then(|item| item.word(0).ok());
            word.map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
        };
        index::positions(placement).min_by_key(generation).expect("a bucket has words")
    }
}

/// Returns the lengths of the key and of the value in an item's header.
fn lengths(header: &[u8]) -> (usize, usize) {
    let field = |at: usize, len: usize| {
        header[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    (field(20, 2), field(16, 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb::verbs::SoftDevice;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn store(config: StoreConfig) -> Store {
        let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
        Store::new(&config, 1, 0, 1, &[domain]).unwrap()
    }

    fn value_of(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        store.get(key, &mut value).then_some(value)
    }

    #[test]
    fn a_replaced_item_is_retired_and_its_memory_kept_for_the_grace_period() {
        let grace = Duration::from_secs(1);
        let store = store(StoreConfig { memory: 1 << 20, shards: 1, buckets: 8, grace });
        let (start, item_count) = (Instant::now(), || store.arena().stats().item_count());
        store.put(b"key", b"old", start).unwrap();
        store.put(b"key", b"new", start).unwrap();
        assert_eq!(value_of(&store, b"key").as_deref(), Some(&b"new"[..]));
        assert_eq!(item_count(), 2);
        store.put(b"key", b"newer", start + grace).unwrap();
        assert_eq!(item_count(), 2, "the oldest one is freed");
        assert!(store.delete(b"key", start + 2 * grace));
        assert_eq!(item_count(), 1, "the deleted one has its own grace period");
    }

    #[test]
    fn without_a_grace_period_memory_is_reused_at_once() {
        let config = StoreConfig { memory: 1 << 20, shards: 1, buckets: 8, grace: Duration::ZERO };
        let store = store(config);
        for _ in 0..10_000 {
            store.put(b"key", &[1; 1000], Instant::now()).unwrap();
        }
        assert_eq!(store.arena().stats().item_count(), 1);
    }

    #[test]
    fn a_full_bucket_evicts_its_oldest_item() {
        let store = store(StoreConfig { memory: 1 << 20, shards: 1, buckets: 1, ..StoreConfig::default() });
        for key in 0..20u8 {
            store.put(&[key], b"value", Instant::now()).unwrap();
        }
        let kept: Vec<u8> = (0..20).filter(|key| value_of(&store, &[*key]).is_some()).collect();
        assert_eq!(kept, (12..20).collect::<Vec<u8>>());
        assert_eq!(store.eviction_count(), 12);
    }

    #[test]
    fn invalid_requests_and_full_memory_are_reported() {
        let grace = Duration::from_secs(1);
        let store = store(StoreConfig { memory: 1 << 20, shards: 1, buckets: 8, grace });
        let (now, mut reply, mut request) = (Instant::now(), Vec::new(), Vec::new());
        assert!(!store.handle(99, b"", now, &mut reply));
        assert!(store.handle(protocol::GET, &[9], now, &mut reply));
        assert_eq!(reply, [Status::Invalid as u8]);
        protocol::encode_request(&mut request, b"key", &vec![0; MAX_ITEM_LEN]);
        assert!(store.handle(protocol::PUT, &request, now, &mut reply));
        assert_eq!(reply, [Status::Invalid as u8]);
        // Replaced items fill the memory, because their grace period does not end.
        protocol::encode_request(&mut request, b"key", &[0; 100_000]);
        let statuses = (0..20).map(|_| {
            assert!(store.handle(protocol::PUT, &request, now, &mut reply));
            reply[0]
        });
        assert!(statuses.collect::<Vec<u8>>().ends_with(&[Status::Full as u8]));
        assert_eq!(value_of(&store, b"key").map(|value| value.len()), Some(100_000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Compares random operations with a map. The buckets have enough words for all keys.
        #[test]
        fn the_store_is_a_map(operations in proptest::collection::vec((0u8..40, 0u8..3, 0usize..300), 0..200)) {
            let grace = Duration::from_millis(5);
            let store = store(StoreConfig { memory: 16 << 20, shards: 2, buckets: 64, grace });
            let start = Instant::now();
            let mut model: HashMap<u8, Vec<u8>> = HashMap::new();
            for (step, (key, operation, len)) in operations.into_iter().enumerate() {
                let now = start + Duration::from_millis(step as u64);
                match operation {
                    0 => prop_assert_eq!(store.delete(&[key], now), model.remove(&key).is_some()),
                    _ => {
                        let value = vec![step as u8; len];
                        store.put(&[key], &value, now).unwrap();
                        model.insert(key, value);
                    }
                }
                prop_assert_eq!(value_of(&store, &[key]), model.get(&key).cloned());
            }
            for key in 0..40 {
                prop_assert_eq!(value_of(&store, &[key]), model.get(&key).cloned());
            }
            prop_assert_eq!(store.eviction_count(), 0);
        }
    }
}
