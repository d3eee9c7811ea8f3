//! Memory that is registered once and used many times.

mod chunk;
mod class;
mod lock;

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) use chunk::{Chunk, Slot};

use super::RegisteredBuf;
use crate::ProtectionDomain;
use crate::error::{Error, Result};
use lock::Lock;

/// Registered memory in pieces of any length up to 1 GiB. Cloning gives another handle to the same pool.
///
/// Registering memory takes a system call and pins pages; a pool does it by the chunk, and [`alloc`](Pool::alloc) takes a
/// piece of one, which costs about as much as `malloc` does. A [`RegisteredBuf`] goes home when it is dropped, on whatever
/// thread. Pieces have one of some ninety lengths, so that less than a fifth is wasted.
///
/// - **Threads** are spread over partitions with chunks of their own, so that they don't wait for each other.
/// - **Chunks** begin with 64 KiB and grow with use to 2 MiB, from where on they are in huge pages if there are any. Those
///   that are empty are given back to the system, but for [a few](PoolBuilder::max_idle_bytes).
/// - **No peer** can reach the memory: it is registered without remote rights.
///
/// Buffers may outlive the pool: a chunk is deregistered when the pool and all of its buffers are gone.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// use adverb::memory::Pool;
/// use adverb::verbs::Device;
///
/// let pool = Pool::new(&Device::open("soft")?.protection_domain()?);
/// let mut buffer = pool.alloc(5)?;
/// buffer.copy_from_slice(b"hello");
/// let world = pool.copy_from(b" world")?;
/// assert_eq!([&buffer[..], &world[..]].concat(), b"hello world");
/// # }
/// # Ok::<(), adverb::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

/// How to make a [`Pool`]: see [`Pool::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    partitions: usize,
    max_bytes: usize,
    max_idle_bytes: usize,
}

/// What a [`Pool`] has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolStats {
    /// How many bytes are registered.
    pub registered_bytes: usize,
    /// How many of them are in buffers, counting what is wasted at their ends.
    pub used_bytes: usize,
    /// How many chunks there are.
    pub chunk_count: usize,
}

/// What all handles to a pool hold: closes it when they are gone.
struct Handle(Arc<Shared>);

/// The pool. Its chunks hold it, until they are given back.
struct Shared {
    domain: ProtectionDomain,
    partitions: Box<[Partition]>,
    max_bytes: usize,
    max_idle_bytes: usize,
    registered: AtomicUsize,
    /// The sum of the classes' `counted`.
    kept: AtomicUsize,
}

/// What threads of the same number use. (On cache lines of its own.)
#[repr(align(128))]
struct Partition {
    classes: Box<[Lock<Class>]>,
}

/// The chunks of a length.
#[derive(Default)]
struct Class {
    /// By their ids.
    chunks: Vec<Option<FreeSlots>>,
    /// The ids of those that have free slots. The last is the next to be used.
    vacant: Vec<usize>,
    /// How many bytes are in chunks that have nothing but free slots.
    empty: usize,
    /// The most that `empty` was since it was last asked: what counts against the pool's `max_idle_bytes`. So a chunk that is emptied and
    /// used by turns counts once, and nobody else's memory is touched each time.
    counted: usize,
    /// How many bytes its chunks have.
    bytes: usize,
    /// Whether the pool is gone, and empty chunks with it.
    is_closed: bool,
}

/// The free slots of a chunk.
struct FreeSlots {
    slots: Vec<Slot>,
    /// How many there are when all are free.
    count: usize,
    /// How many bytes the chunk has.
    len: usize,
    /// Where its id is in the class' `vacant`, if it has any.
    place: usize,
}

/// What becomes of a chunk when a slot comes home.
enum Emptied {
    /// It stays.
    Stays,
    /// It is to be given back: its slots.
    Goes(FreeSlots),
    /// It is empty, and with it there is more than the pool keeps: if others can go, it stays.
    TooMuch,
}

/// What a chunk has at least, if it isn't one slot.
const MIN_CHUNK_LEN: usize = 64 << 10;
/// What it has at most.
const MAX_CHUNK_LEN: usize = 2 << 20;

impl Pool {
    /// A pool in this protection domain. Nothing is registered until something is needed.
    pub fn new(domain: &ProtectionDomain) -> Pool {
        Pool::builder().build(domain)
    }

    /// Begins to make a pool.
    pub fn builder() -> PoolBuilder {
        let partitions = std::thread::available_parallelism().map_or(1, usize::from);
        PoolBuilder { partitions, max_bytes: usize::MAX, max_idle_bytes: 32 << 20 }
    }

    /// The longest buffer: 1 GiB.
    pub const MAX_BUFFER_LEN: usize = class::MAX_LEN;

    /// A buffer of `len` bytes. They are whatever they were when they were last used.
    ///
    /// # Errors
    ///
    /// If that is more than 1 GiB; if there is no free piece, and no memory, or it can't be registered (the limit on locked
    /// memory is a common reason), or the pool is at its [limit](PoolBuilder::max_bytes).
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<RegisteredBuf> {
        if len > Pool::MAX_BUFFER_LEN {
            return Err(Error::TooLong { len: len as u64, most: Pool::MAX_BUFFER_LEN as u64 });
        }
        let shared = &self.0.0;
        let (class, partition) = (class::of(len), shared.own_partition());
        let slot = shared.partitions[partition].classes[class].lock().take();
        let slot = match slot {
            Some(slot) => slot,
            None => shared.find_more(partition, class)?,
        };
        Ok(RegisteredBuf::new(slot, len as u32))
    }

    /// A buffer of these bytes.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Pool::alloc).
    pub fn copy_from(&self, bytes: &[u8]) -> Result<RegisteredBuf> {
        let mut buffer = self.alloc(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// The protection domain that the memory is registered in.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.0.0.domain
    }

    /// Gives all empty chunks back to the system.
    pub fn release_idle(&self) {
        self.0.0.trim(false);
    }

    /// What it has at the moment.
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
    /// Over how many partitions threads are spread: as many as there are cores, unless set.
    pub fn partitions(mut self, count: usize) -> PoolBuilder {
        self.partitions = count;
        self
    }

    /// How many bytes may be registered at once: any number, unless set.
    pub fn max_bytes(mut self, bytes: usize) -> PoolBuilder {
        self.max_bytes = bytes;
        self
    }

    /// How many bytes are kept in empty chunks, of all lengths together: 32 MiB, unless set. (What other lengths left empty is
    /// given back first.) New memory has to be cleared by the system, which takes about as long as it takes a message to come.
    pub fn max_idle_bytes(mut self, bytes: usize) -> PoolBuilder {
        self.max_idle_bytes = bytes;
        self
    }

    /// Makes the pool, in this protection domain.
    pub fn build(self, domain: &ProtectionDomain) -> Pool {
        let PoolBuilder { partitions, max_bytes, max_idle_bytes } = self;
        let partition = |_| Partition { classes: (0..class::COUNT).map(|_| Lock::default()).collect() };
        // A power of two, so that a mask finds a thread's.
        let partitions = (0..partitions.clamp(1, 1 << 10).next_power_of_two()).map(partition).collect();
        let (registered, kept) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let shared =
            Shared { domain: domain.clone(), partitions, max_bytes, max_idle_bytes, registered, kept };
        Pool(Arc::new(Handle(Arc::new(shared))))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Chunks that are in use hold the pool, and go with the last of their buffers.
        self.0.trim(true);
    }
}

impl Shared {
    /// The partition of this thread.
    #[inline]
    fn own_partition(&self) -> usize {
        thread_number() & (self.partitions.len() - 1)
    }

    /// Takes a slot home, to wherever it is from.
    #[inline]
    fn take_home(slot: Slot) {
        let slot = ManuallyDrop::new(slot);
        let Chunk { pool, partition, class: number, .. } = &*slot.chunk;
        let mut class = pool.partitions[*partition].classes[*number].lock();
        // SAFETY: it is moved out of `slot`, which isn't looked at again but while the class is locked: until then it is there.
        // The lock lies in the pool, which isn't gone before the lock is released: whoever ends it takes the lock of every class
        // first.
        match class.put(unsafe { std::ptr::read(&*slot) }) {
            Emptied::Stays => {}
            Emptied::Goes(slots) => {
                drop(class);
                // Deregistering may take long.
                drop(slots);
            }
            Emptied::TooMuch => {
                let (pool, partition, number) = (Arc::clone(pool), *partition, *number);
                drop(class);
                pool.keep_less(partition, number);
            }
        }
    }

    /// A slot of a class that has none free here: from a new chunk, or where there can be none from another partition.
    #[cold]
    fn find_more(self: &Arc<Shared>, partition: usize, class: usize) -> Result<Slot> {
        self.grow(partition, class).or_else(|_| {
            let mut others = self.partitions.iter();
            if let Some(slot) = others.find_map(|partition| partition.classes[class].lock().take()) {
                return Ok(slot);
            }
            self.trim(false);
            self.grow(partition, class)
        })
    }

    /// Adds a chunk, and takes a slot of it.
    fn grow(self: &Arc<Shared>, partition: usize, class: usize) -> Result<Slot> {
        let home = &self.partitions[partition].classes[class];
        let slot_len = class::len(class);
        // As much as there is already, so that what is used little stays small.
        let count = (home.lock().bytes.clamp(MIN_CHUNK_LEN, MAX_CHUNK_LEN) / slot_len).max(1);
        let len = slot_len * count;
        let grown = |registered: usize| registered.checked_add(len).filter(|grown| *grown <= self.max_bytes);
        self.registered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).map_err(|registered| {
            Error::Limit {
                what: "the number of bytes in a pool".into(),
                asked: (registered as u64).saturating_add(len as u64),
                most: self.max_bytes as u64,
                hint: "drop buffers, or make the pool with a higher `max_bytes`".into(),
            }
        })?;
        let chunk = Chunk::new(&self.domain, self, (partition, class), slot_len, count)
            .inspect_err(|_| self.deregistered(len))?;
        // All that takes long is done before.
        let slots = Slot::all_of(&chunk);
        let mut home = home.lock();
        home.add(&chunk, slots);
        // Another thread may have been faster, but not with all that there is: the chunk was added under this lock.
        Ok(home.take().expect("there is a new chunk"))
    }

    /// Notes that there are fewer bytes registered.
    fn deregistered(&self, len: usize) {
        self.registered.fetch_sub(len, Ordering::Relaxed);
    }

    /// Gives empty chunks back, and if it is closing those that will be.
    fn trim(&self, closing: bool) {
        for (_, class) in self.classes() {
            let mut class = class.lock();
            class.is_closed |= closing;
            let emptied = class.remove_empty(usize::MAX, &self.kept);
            drop(class);
            drop(emptied);
        }
    }

    /// Gives empty chunks back until there are no more than are to be kept; those of this class, which is in use, last.
    #[cold]
    fn keep_less(&self, partition: usize, class: usize) {
        // Most are in use again that were counted when they were empty.
        self.classes().for_each(|(_, class)| class.lock().settle(&self.kept));
        let last = &self.partitions[partition].classes[class];
        let others = self.classes().map(|(_, class)| class).filter(|class| !std::ptr::eq(*class, last));
        for class in others.chain([last]) {
            let excess = self.kept.load(Ordering::Relaxed).saturating_sub(self.max_idle_bytes);
            if excess == 0 {
                break;
            }
            let emptied = class.lock().remove_empty(excess, &self.kept);
            drop(emptied);
        }
    }

    /// All classes of all partitions, with their numbers.
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
            self.empty -= free.len;
        }
        let slot = free.slots.pop();
        if free.slots.is_empty() {
            self.vacant.pop();
        }
        slot
    }

    /// Takes a slot back.
    #[inline]
    fn put(&mut self, slot: Slot) -> Emptied {
        let id = slot.chunk.id.load(Ordering::Relaxed);
        let free = self.chunks[id].as_mut().expect("a chunk stays until its slots are home");
        if free.slots.is_empty() {
            free.place = self.vacant.len();
            self.vacant.push(id);
        }
        // There was room for all when the chunk was made.
        free.slots.push(slot);
        if free.slots.len() < free.count {
            return Emptied::Stays;
        }
        self.empty += free.len;
        if self.empty <= self.counted && !self.is_closed { Emptied::Stays } else { self.keep(id) }
    }

    /// Sees whether a chunk is to be kept, all of whose slots are free.
    #[cold]
    fn keep(&mut self, id: usize) -> Emptied {
        let free = self.chunks[id].as_ref().expect("it is there");
        let pool = &*free.slots[0].chunk.pool;
        if self.is_closed || free.len > pool.max_idle_bytes {
            return Emptied::Goes(self.remove(id));
        }
        let more = self.empty - self.counted;
        let before = pool.kept.fetch_add(more, Ordering::Relaxed);
        let is_too_much = before.saturating_add(more) > pool.max_idle_bytes;
        self.counted = self.empty;
        if is_too_much { Emptied::TooMuch } else { Emptied::Stays }
    }

    /// Counts only what is empty now.
    fn settle(&mut self, kept: &AtomicUsize) {
        kept.fetch_sub(self.counted - self.empty, Ordering::Relaxed);
        self.counted = self.empty;
    }

    /// Adds a chunk, all of whose slots are free.
    fn add(&mut self, chunk: &Arc<Chunk>, slots: Vec<Slot>) {
        let len = chunk.len();
        let free = FreeSlots { count: slots.len(), slots, len, place: self.vacant.len() };
        let id = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        chunk.id.store(id, Ordering::Relaxed);
        if id == self.chunks.len() {
            self.chunks.push(None);
        }
        self.chunks[id] = Some(free);
        self.vacant.push(id);
        self.empty += len;
        self.bytes += len;
    }

    /// Removes a chunk, all of whose slots are free.
    #[cold]
    fn remove(&mut self, id: usize) -> FreeSlots {
        let free = self.chunks[id].take().expect("it is there");
        self.vacant.swap_remove(free.place);
        if let Some(moved) = self.vacant.get(free.place).and_then(|id| self.chunks[*id].as_mut()) {
            moved.place = free.place;
        }
        self.empty -= free.len;
        self.bytes -= free.len;
        free
    }

    /// Removes chunks all of whose slots are free, until they have as many bytes as are to go or there are none.
    fn remove_empty(&mut self, bytes: usize, kept: &AtomicUsize) -> Vec<FreeSlots> {
        let mut removed = Vec::new();
        let rest = self.empty.saturating_sub(bytes);
        for id in 0..self.chunks.len() {
            if self.empty <= rest {
                break;
            }
            if self.chunks[id].as_ref().is_some_and(|free| free.slots.len() == free.count) {
                removed.push(self.remove(id));
            }
        }
        self.settle(kept);
        removed
    }
}

/// Threads are numbered as they come.
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
