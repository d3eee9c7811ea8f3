//! A pool of registered memory.

mod chunk;
mod class;
mod lock;

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lock::Lock;

use super::PoolBuf;
use crate::device::ProtectionDomain;
use crate::error::{Error, Limit, Result};
use crate::os::OwnerProcess;

pub(super) use chunk::{Chunk, Slot};

/// An allocator of registered memory, for buffers of up to 1 GiB. A clone is another handle to the same pool.
///
/// Registering memory requires a system call and pins pages. A pool registers memory in chunks, and
/// [`allocate`](Pool::allocate) allocates a slot of a chunk, which costs about as much as `malloc`. Dropping a [`PoolBuf`],
/// on any thread, returns its slot. Slots have about ninety size classes, so less than a fifth of a slot
/// of more than 256 bytes is unused.
///
/// - **Threads** are distributed over partitions, each with its own chunks, so that they rarely contend for a lock.
/// - **Chunks** start at 64 KiB and grow with use to 2 MiB. Chunks of 2 MiB or more use huge pages if the system has
///   them. Idle chunks are deregistered and freed, except for up to [32 MiB](PoolBuilder::max_idle_bytes).
/// - **Peers** can't access the memory: it is registered without remote access.
///
/// Buffers may outlive the pool. A chunk is deregistered when the pool and all buffers in the chunk have been dropped.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// use adverb::memory::Pool;
/// use adverb::verbs::Device;
///
/// let pool = Pool::new(&Device::open("soft")?.create_protection_domain()?);
/// let mut buffer = pool.allocate(5)?;
/// buffer.copy_from_slice(b"hello");
/// let world = pool.allocate_copy(b" world")?;
/// assert_eq!([&buffer[..], &world[..]].concat(), b"hello world");
/// # }
/// # Ok::<(), adverb::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

/// A builder of a [`Pool`], returned by [`Pool::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    /// The number of partitions, or `None` for the number of CPUs.
    partitions: Option<usize>,
    max_bytes: usize,
    max_idle_bytes: usize,
}

/// The memory use of a [`Pool`], returned by [`Pool::stats`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// The number of registered bytes.
    pub registered_bytes: usize,
    /// The number of bytes in slots that buffers use, including the unused bytes at the end of a slot.
    pub used_bytes: usize,
    /// The number of chunks.
    pub chunk_count: usize,
}

/// The state that all handles to a pool share. It closes the pool when the last handle is dropped.
struct Handle(Arc<Shared>);

/// The pool. Its chunks keep it alive.
struct Shared {
    domain: ProtectionDomain,
    owner: OwnerProcess,
    partitions: Box<[Partition]>,
    max_bytes: usize,
    max_idle_bytes: usize,
    registered: AtomicUsize,
    /// The sum of `counted` of all classes.
    counted_idle: AtomicUsize,
}

/// One of the parts that threads are distributed over, with chunks of its own. Partitions don't share cache lines.
#[repr(align(128))]
struct Partition {
    classes: Box<[Lock<Class>]>,
}

/// The chunks with slots of one length.
#[derive(Default)]
struct Class {
    /// The free slots of each chunk, by its id.
    chunks: Vec<Option<FreeSlots>>,
    /// The ids of the chunks with free slots. The last one is used next.
    vacant: Vec<usize>,
    /// The number of bytes in idle chunks: those whose slots are all free.
    idle: usize,
    /// The class's part of the pool's `counted_idle`, with `counted >= idle`: the maximum of `idle` since the last
    /// `recount`. So a chunk that is used and becomes idle again leaves the shared counter alone.
    counted: usize,
    /// The number of bytes in all chunks.
    bytes: usize,
    /// Whether the last handle was dropped: idle chunks are freed.
    is_closed: bool,
}

/// The free slots of a chunk.
struct FreeSlots {
    slots: Vec<Slot>,
    /// The number of slots in the chunk.
    count: usize,
    /// The length of the chunk in bytes.
    len: usize,
    /// The index of the chunk's id in `vacant` of the class, if it has free slots.
    vacant_index: usize,
}

/// The action for a chunk after a slot was returned.
enum IdleAction {
    /// The chunk stays.
    Keep,
    /// The chunk that these slots belong to must be freed.
    Free(FreeSlots),
    /// The chunk is idle, and the idle chunks now exceed the pool's limit. The chunk stays if others can be freed.
    FreeExcess,
}

/// The minimum target length of a chunk. A chunk has as many slots as fit into its target length, but at least one.
const MIN_CHUNK_LEN: usize = 64 << 10;
/// The maximum length of a chunk with more than one slot.
const MAX_CHUNK_LEN: usize = 2 << 20;

impl Pool {
    /// Creates a pool in a protection domain. The pool registers no memory until the first allocation.
    pub fn new(domain: &ProtectionDomain) -> Pool {
        Pool::builder().create(domain)
    }

    /// Returns a builder with the default options.
    pub fn builder() -> PoolBuilder {
        PoolBuilder { partitions: None, max_bytes: usize::MAX, max_idle_bytes: 32 << 20 }
    }

    /// The maximum length of a buffer: 1 GiB.
    pub const MAX_BUFFER_LEN: usize = class::MAX_LEN;

    /// Allocates a buffer of `len` bytes. The bytes have arbitrary values, left from an earlier use.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`] if `len` exceeds [`MAX_BUFFER_LEN`](Pool::MAX_BUFFER_LEN). If no slot is free,
    /// returns [`Error::LimitExceeded`] if the pool would exceed its [limit](PoolBuilder::max_bytes),
    /// [`Error::Allocation`] if the system has no memory, and the device's error if the device can't register a chunk.
    /// The limit on locked memory (`RLIMIT_MEMLOCK`) is a common cause.
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<PoolBuf> {
        if len > Pool::MAX_BUFFER_LEN {
            return Err(Error::LimitExceeded {
                limit: Limit::PoolBufferLen,
                requested: len as u64,
                max: Pool::MAX_BUFFER_LEN as u64,
            });
        }
        let shared = &self.0.0;
        let (class, partition) = (class::of(len), shared.own_partition());
        let slot = shared.partitions[partition].classes[class].lock().take();
        let slot = match slot {
            Some(slot) => slot,
            None => shared.take_slow(partition, class)?,
        };
        Ok(PoolBuf::new(slot, len as u32))
    }

    /// Allocates a buffer and copies `bytes` into it.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`allocate`](Pool::allocate).
    pub fn allocate_copy(&self, bytes: &[u8]) -> Result<PoolBuf> {
        let mut buffer = self.allocate(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Returns the protection domain that the memory is registered in.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.0.0.domain
    }

    /// Deregisters and frees all idle chunks.
    pub fn release_idle(&self) {
        self.0.0.free_idle(false);
    }

    /// Returns the current memory use.
    pub fn stats(&self) -> PoolStats {
        let mut stats = PoolStats { registered_bytes: 0, used_bytes: 0, chunk_count: 0 };
        for (number, class) in self.0.0.classes() {
            let class = class.lock();
            stats.registered_bytes += class.bytes;
            for chunk in class.chunks.iter().flatten() {
                stats.chunk_count += 1;
                stats.used_bytes += (chunk.count - chunk.slots.len()) * class::len(number);
            }
        }
        stats
    }
}

impl PoolBuilder {
    /// Sets the number of partitions that threads are distributed over. The number is rounded up to a power of two.
    ///
    /// The default is the number of cores.
    pub fn partitions(mut self, count: usize) -> PoolBuilder {
        self.partitions = Some(count);
        self
    }

    /// Sets the maximum number of bytes that may be registered at once. The default is no limit.
    ///
    /// A connection (`adverb::net`) whose pool has no memory for a message of the peer ends. The manual's chapter about
    /// streams (`adverb::manual::streams`) says how much memory a connection needs.
    pub fn max_bytes(mut self, bytes: usize) -> PoolBuilder {
        self.max_bytes = bytes;
        self
    }

    /// Sets the maximum number of bytes in idle chunks that stay registered. The default is 32 MiB.
    ///
    /// The pool frees idle chunks beyond this number. Chunks with slots of other lengths than the one in use are freed
    /// first. A small number makes allocation slower: the system zeroes the memory of every new chunk, which takes
    /// about as long as receiving as many bytes.
    pub fn max_idle_bytes(mut self, bytes: usize) -> PoolBuilder {
        self.max_idle_bytes = bytes;
        self
    }

    /// Creates the pool in a protection domain.
    pub fn create(self, domain: &ProtectionDomain) -> Pool {
        let PoolBuilder { partitions, max_bytes, max_idle_bytes } = self;
        let partition = |_| Partition { classes: (0..class::COUNT).map(|_| Lock::default()).collect() };
        // The number is a power of two, so that a mask selects the partition of a thread.
        // Reading the number of CPUs takes several system calls, so it is read only if it is needed.
        let partitions =
            partitions.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let partitions = (0..partitions.clamp(1, 1 << 10).next_power_of_two()).map(partition).collect();
        let (registered, counted_idle) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Shared {
            domain: domain.clone(),
            owner: OwnerProcess::current(),
            partitions,
            max_bytes,
            max_idle_bytes,
            registered,
            counted_idle,
        };
        Pool(Arc::new(Handle(Arc::new(shared))))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child, a thread that the child doesn't have may hold a lock.
        if self.0.owner.is_current() {
            // Chunks in use keep the shared state alive, and are freed when their last buffers are dropped.
            self.0.free_idle(true);
        }
    }
}

impl Shared {
    /// Returns the partition of this thread.
    #[inline]
    fn own_partition(&self) -> usize {
        thread_number() & (self.partitions.len() - 1)
    }

    /// Returns a slot to its class.
    #[inline]
    fn return_slot(slot: Slot) {
        let slot = ManuallyDrop::new(slot);
        let Chunk { pool, partition, class: number, .. } = &*slot.chunk;
        if !pool.owner.is_current() {
            // A thread that this forked child doesn't have may hold the lock.
            return;
        }
        let mut class = pool.partitions[*partition].classes[*number].lock();
        // SAFETY: the value is moved out of `slot`, which is used afterwards only while the class is locked. Until the
        // lock is released, the chunk exists. The lock is part of the pool, which isn't dropped before that, because
        // dropping it takes the lock of every class first.
        match class.put(unsafe { std::ptr::read(&*slot) }) {
            IdleAction::Keep => {}
            IdleAction::Free(slots) => {
                drop(class);
                // Deregistering may take long.
                drop(slots);
            }
            IdleAction::FreeExcess => {
                let (pool, partition, number) = (Arc::clone(pool), *partition, *number);
                drop(class);
                pool.free_excess_idle(partition, number);
            }
        }
    }

    /// Takes a slot of a class that has no free slot in this partition: from a new chunk, or otherwise from another
    /// partition.
    #[cold]
    fn take_slow(self: &Arc<Shared>, partition: usize, class: usize) -> Result<Slot> {
        self.grow(partition, class).or_else(|_| {
            let mut others = self.partitions.iter();
            if let Some(slot) = others.find_map(|partition| partition.classes[class].lock().take()) {
                return Ok(slot);
            }
            self.free_idle(false);
            self.grow(partition, class)
        })
    }

    /// Adds a chunk, and takes a slot of it.
    fn grow(self: &Arc<Shared>, partition: usize, class: usize) -> Result<Slot> {
        let target = &self.partitions[partition].classes[class];
        let slot_len = class::len(class);
        // A new chunk doubles the class, so that classes with little use stay small.
        let count = (target.lock().bytes.clamp(MIN_CHUNK_LEN, MAX_CHUNK_LEN) / slot_len).max(1);
        let len = slot_len * count;
        let grown = |registered: usize| registered.checked_add(len).filter(|grown| *grown <= self.max_bytes);
        self.registered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).map_err(|registered| {
            Error::LimitExceeded {
                limit: Limit::PoolBytes,
                requested: (registered as u64).saturating_add(len as u64),
                max: self.max_bytes as u64,
            }
        })?;
        let chunk = Chunk::new(&self.domain, self, (partition, class), slot_len, count)
            .inspect_err(|_| self.record_deregistered(len))?;
        // All slow operations are done before the lock is taken.
        let slots = Slot::all_of(&chunk);
        let mut target = target.lock();
        target.add(&chunk, slots);
        // No other thread can have taken all slots, because the chunk was added under this lock.
        Ok(target.take().expect("a new chunk has free slots"))
    }

    /// Subtracts from the number of registered bytes.
    fn record_deregistered(&self, len: usize) {
        self.registered.fetch_sub(len, Ordering::Relaxed);
    }

    /// Frees idle chunks. If the pool is closed, chunks that become idle later are freed, too.
    fn free_idle(&self, is_closed: bool) {
        for (_, class) in self.classes() {
            let mut class = class.lock();
            class.is_closed |= is_closed;
            let freed = class.remove_idle(usize::MAX, &self.counted_idle);
            drop(class);
            drop(freed);
        }
    }

    /// Frees idle chunks until they are within the limit. The chunks of this class, which is in use, are freed last.
    #[cold]
    fn free_excess_idle(&self, partition: usize, class: usize) {
        // The counted bytes are too many, because they include chunks that are in use again.
        self.classes().for_each(|(_, class)| class.lock().recount(&self.counted_idle));
        let last = &self.partitions[partition].classes[class];
        let others = self.classes().map(|(_, class)| class).filter(|class| !std::ptr::eq(*class, last));
        for class in others.chain([last]) {
            let excess = self.counted_idle.load(Ordering::Relaxed).saturating_sub(self.max_idle_bytes);
            if excess == 0 {
                break;
            }
            let freed = class.lock().remove_idle(excess, &self.counted_idle);
            drop(freed);
        }
    }

    /// Returns all classes of all partitions, with their numbers.
    fn classes(&self) -> impl Iterator<Item = (usize, &Lock<Class>)> {
        self.partitions.iter().flat_map(|partition| partition.classes.iter().enumerate())
    }
}

impl Class {
    /// Takes a free slot, if there is one.
    #[inline]
    fn take(&mut self) -> Option<Slot> {
        let id = *self.vacant.last()?;
        let free = self.chunks[id].as_mut()?;
        if free.slots.len() == free.count {
            self.idle -= free.len;
        }
        let slot = free.slots.pop();
        if free.slots.is_empty() {
            self.vacant.pop();
        }
        slot
    }

    /// Returns a slot.
    #[inline]
    fn put(&mut self, slot: Slot) -> IdleAction {
        let id = slot.chunk.id.load(Ordering::Relaxed);
        let free = self.chunks[id].as_mut().expect("a chunk exists until all its slots are returned");
        if free.slots.is_empty() {
            free.vacant_index = self.vacant.len();
            self.vacant.push(id);
        }
        // The capacity was allocated when the chunk was created.
        free.slots.push(slot);
        if free.slots.len() < free.count {
            return IdleAction::Keep;
        }
        self.idle += free.len;
        if self.idle <= self.counted && !self.is_closed { IdleAction::Keep } else { self.decide_idle(id) }
    }

    /// Decides whether to keep a chunk whose slots are all free.
    #[cold]
    fn decide_idle(&mut self, id: usize) -> IdleAction {
        let free = self.chunks[id].as_ref().expect("the chunk exists");
        let pool = &*free.slots[0].chunk.pool;
        if self.is_closed || free.len > pool.max_idle_bytes {
            return IdleAction::Free(self.remove(id));
        }
        let added = self.idle - self.counted;
        let before = pool.counted_idle.fetch_add(added, Ordering::Relaxed);
        let exceeds_limit = before.saturating_add(added) > pool.max_idle_bytes;
        self.counted = self.idle;
        if exceeds_limit { IdleAction::FreeExcess } else { IdleAction::Keep }
    }

    /// Sets the counted bytes to those that are idle now.
    fn recount(&mut self, counted_idle: &AtomicUsize) {
        counted_idle.fetch_sub(self.counted - self.idle, Ordering::Relaxed);
        self.counted = self.idle;
    }

    /// Adds a chunk whose slots are all free.
    fn add(&mut self, chunk: &Arc<Chunk>, slots: Vec<Slot>) {
        let len = chunk.len();
        let free = FreeSlots { count: slots.len(), slots, len, vacant_index: self.vacant.len() };
        let id = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        chunk.id.store(id, Ordering::Relaxed);
        if id == self.chunks.len() {
            self.chunks.push(None);
        }
        self.chunks[id] = Some(free);
        self.vacant.push(id);
        self.idle += len;
        self.bytes += len;
    }

    /// Removes a chunk whose slots are all free.
    #[cold]
    fn remove(&mut self, id: usize) -> FreeSlots {
        let free = self.chunks[id].take().expect("the chunk exists");
        self.vacant.swap_remove(free.vacant_index);
        if let Some(moved) = self.vacant.get(free.vacant_index).and_then(|id| self.chunks[*id].as_mut()) {
            moved.vacant_index = free.vacant_index;
        }
        self.idle -= free.len;
        self.bytes -= free.len;
        free
    }

    /// Removes idle chunks of at least `bytes` bytes in total, or all idle chunks.
    fn remove_idle(&mut self, bytes: usize, counted_idle: &AtomicUsize) -> Vec<FreeSlots> {
        let mut removed = Vec::new();
        let rest = self.idle.saturating_sub(bytes);
        for id in 0..self.chunks.len() {
            if self.idle <= rest {
                break;
            }
            if self.chunks[id].as_ref().is_some_and(|free| free.slots.len() == free.count) {
                removed.push(self.remove(id));
            }
        }
        self.recount(counted_idle);
        removed
    }
}

/// Returns the number of this thread: 0, 1, … in the order of first use.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1));
        }
        number.get()
    })
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}
