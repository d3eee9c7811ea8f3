//! Registered memory that peers address by offset.
//!
//! An [`Arena`] consists of segments: registered memory with remote rights that the caller chooses. The arena allocates
//! [items](Item) in the segments that it has allocated itself, but not in those that the caller lends. Segments are
//! added and withdrawn at run time.
//!
//! The allocator is a slab allocator: a slab, such as 1 MiB of a segment, is divided into slots of one size. Threads
//! use different partitions, which have a lock and free slots of their own, so they don't wait for each other. A slab
//! without items can get another slot size or partition. Messages are better allocated from a
//! [`Pool`](adverb_verbs::memory::Pool): its buffers are `[u8]`s, and no peer can access them.

mod error;
mod item;
mod segment;
mod stats;
#[cfg(all(test, feature = "soft"))]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use adverb_verbs::internal::OwnerProcess;
use adverb_verbs::memory::{MemoryRegion, Pages};
use adverb_verbs::{Access, ProtectionDomain};
use parking_lot::{Mutex, RwLock};

pub use error::ArenaError;
pub use item::{Draft, Item};
pub(crate) use segment::Segment;
pub use segment::{SegmentInfo, SegmentKind, Withdrawal};
pub use stats::{ArenaStats, ClassStats};

use crate::broker::Waker;
use crate::slab::{Heap, Layout, MAX_PARTITIONS, SizeClasses};
use crate::{RemotePtr, RemotePtrError};
use item::SlabMemory;

type Result<T, E = ArenaError> = std::result::Result<T, E>;

/// Registered memory that peers address by offset. A clone is another handle to the same arena.
///
/// Dropping the last handle withdraws all segments. Items keep their memory until they are dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use adverb::cluster::Arena;
/// use adverb::verbs::{Access, Device};
///
/// let domain = Device::open("soft")?.create_protection_domain()?;
/// let arena = Arena::builder().slab_size(64 << 10).create(&[domain])?;
/// let segment = arena.allocate_segment(1 << 20, Access::REMOTE_READ)?;
/// println!("segment {}: {:?}", segment.id, segment.kind);
///
/// let item = arena.allocate_copy(b"a value")?;
/// assert_eq!(item.to_vec(), b"a value");
/// println!("{}", arena.stats());
///
/// let withdrawal = arena.withdraw(segment.id)?;
/// assert!(!withdrawal.is_released()); // there is an item in the segment
/// drop(item);
/// assert!(withdrawal.is_released());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Arena(Arc<Handle>);

/// Withdraws all segments when the last handle is dropped.
struct Handle(Arc<ArenaState>);

struct ArenaState {
    owner: OwnerProcess,
    heap: Heap<Arc<SlabMemory>>,
    domains: Box<[ProtectionDomain]>,
    member: u32,
    epoch: u64,
    segments: RwLock<Segments>,
    /// The number of changes of the list of segments.
    version: AtomicU64,
    /// The brokers that announce the segments.
    watchers: Mutex<Vec<Weak<Waker>>>,
    /// Distributes keys over partitions. The state is random, so that a peer can't choose keys of one partition.
    key_hasher: RandomState,
}

#[derive(Default)]
struct Segments {
    by_id: BTreeMap<u32, Arc<Segment>>,
    next_id: u32,
}

/// The options of an [`Arena`], created by [`Arena::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ArenaBuilder {
    layout: Layout,
    partitions: usize,
    member: u32,
    epoch: u64,
}

impl ArenaBuilder {
    /// Sets the number of this member, which is in every [`RemotePtr`]. The default is 0.
    pub fn member(mut self, member: u32) -> ArenaBuilder {
        self.member = member;
        self
    }

    /// Sets the epoch of this member, which is in every [`RemotePtr`]. The default is 0.
    ///
    /// A member that restarts must have another epoch than before, so that peers recognize pointers of its earlier run.
    pub fn epoch(mut self, epoch: u64) -> ArenaBuilder {
        self.epoch = epoch;
        self
    }

    /// Sets the size of a slab in bytes, which is also the maximum length of an item: a multiple of 4096, at most 1 GiB. The
    /// default is 1 MiB.
    pub fn slab_size(mut self, bytes: usize) -> ArenaBuilder {
        self.layout.slab_size = bytes;
        self
    }

    /// Sets the size of the smallest slots in bytes. It is rounded up to the [alignment](ArenaBuilder::item_align). The
    /// default is 64.
    pub fn min_item_size(mut self, bytes: usize) -> ArenaBuilder {
        self.layout.min_item_size = bytes;
        self
    }

    /// Sets the ratio of one slot size to the next smaller one, from 1.05 to 4. The default is 1.25.
    ///
    /// Slots are aligned, and each size is enlarged as far as the same number of slots still fits into a slab, so the ratio
    /// of two sizes can be larger.
    pub fn growth_factor(mut self, factor: f64) -> ArenaBuilder {
        self.layout.growth_factor = factor;
        self
    }

    /// Sets the alignment of items: a power of two from 8 to 4096. The default is 64, so that no two items share a cache
    /// line.
    pub fn item_align(mut self, bytes: usize) -> ArenaBuilder {
        self.layout.item_align = bytes;
        self
    }

    /// Sets the number of partitions, from 1 to 4096. Each has a lock. The number is rounded up to a power of two. The default
    /// is the number of cores.
    ///
    /// A partition keeps up to one empty slab for each slot size that it used. Other partitions take those slabs when no
    /// others are left.
    pub fn partitions(mut self, count: usize) -> ArenaBuilder {
        self.partitions = count;
        self
    }

    /// Creates an arena without segments. Its segments will be registered in each of these protection domains: one for
    /// each device that serves peers.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::InvalidOption`] if an option is out of range, or if there is no domain.
    pub fn create(self, domains: &[ProtectionDomain]) -> Result<Arena> {
        if domains.is_empty() {
            let rule = "the arena needs at least one protection domain";
            return Err(ArenaError::InvalidOption { option: "domains", rule });
        }
        if !(1..=MAX_PARTITIONS).contains(&self.partitions) {
            let rule = "it must be from 1 to 4096";
            return Err(ArenaError::InvalidOption { option: "partitions", rule });
        }
        let heap = Heap::new(SizeClasses::new(&self.layout)?, self.partitions);
        Ok(Arena(Arc::new(Handle(Arc::new(ArenaState {
            owner: OwnerProcess::current(),
            heap,
            domains: domains.into(),
            member: self.member,
            epoch: self.epoch,
            segments: RwLock::default(),
            version: AtomicU64::new(0),
            watchers: Mutex::default(),
            key_hasher: RandomState::new(),
        })))))
    }
}

impl Arena {
    /// Returns a builder with the default options.
    pub fn builder() -> ArenaBuilder {
        let partitions = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_PARTITIONS);
        let layout = Layout { slab_size: 1 << 20, min_item_size: 64, growth_factor: 1.25, item_align: 64 };
        ArenaBuilder { layout, partitions, member: 0, epoch: 0 }
    }

    /// Allocates a segment for items and registers it with these rights. `len` is rounded up to whole slabs.
    ///
    /// A slab has slots of one size, so each slot size in use takes at least one slab, and one in each partition that uses
    /// it while slabs are free. A segment of 16 MiB has 16 slabs of the default size, which is fewer than the 35 default
    /// slot sizes. For items of mixed sizes in small segments, choose a smaller [`slab_size`](ArenaBuilder::slab_size).
    ///
    /// `access` contains the rights of peers on every byte of the segment: [`REMOTE_READ`](Access::REMOTE_READ),
    /// [`REMOTE_WRITE`](Access::REMOTE_WRITE) and [`REMOTE_ATOMIC`](Access::REMOTE_ATOMIC), or nothing. Local writing is
    /// always allowed. To give peers different rights on different items, use one arena for each set of rights.
    ///
    /// The memory is zeroed. It is in huge pages if the system has enough of them reserved; [`SegmentInfo::kind`] contains
    /// the kind.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::InvalidOption`] if `len` is 0 or exceeds the address space, [`ArenaError::Allocation`] if the
    /// system has no memory, and [`ArenaError::Verbs`] if a device can't register it. The limit on locked memory (`RLIMIT_MEMLOCK`) is a common
    /// cause.
    pub fn allocate_segment(&self, len: usize, access: Access) -> Result<SegmentInfo> {
        let shared = &self.0.0;
        let slab_size = shared.heap.classes().max_size();
        let len = len.checked_next_multiple_of(slab_size).filter(|len| *len > 0).ok_or(
            ArenaError::InvalidOption {
                option: "len",
                rule: "a segment must have from 1 byte to 2^63 bytes",
            },
        )?;
        let pages = Pages::prefer_huge(len).map_err(|source| ArenaError::Allocation { len, source })?;
        let kind = if pages.is_huge() { SegmentKind::HugePages } else { SegmentKind::OrdinaryPages };
        let region = shared.domains[0].register(pages, access | Access::LOCAL_WRITE)?;
        let add_slabs = |segment: &Arc<Segment>| {
            let slab = |index: usize| {
                Arc::new(SlabMemory {
                    arena: Arc::clone(shared),
                    segment: Arc::clone(segment),
                    region: segment.regions[0].clone(),
                    base: index * slab_size,
                })
            };
            shared.heap.add_slabs((0..len / slab_size).map(slab));
        };
        shared.add_segment(kind, region, add_slabs)
    }

    /// Adds a region of the caller as a segment, in which the arena allocates nothing. Peers have the rights that the region
    /// was registered with.
    ///
    /// The caller accesses the bytes through the region, and makes pointers to them with
    /// [`remote_ptr`](Arena::remote_ptr).
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::ForeignRegion`] if the region's protection domain isn't one of the arena's, and
    /// [`ArenaError::Verbs`] if it can't be registered in the others.
    pub fn lend_segment(&self, region: MemoryRegion) -> Result<SegmentInfo> {
        self.0.0.add_segment(SegmentKind::Lent, region, |_| ())
    }

    /// Withdraws a segment: items aren't allocated in it anymore, and pointers to it are refused by this arena.
    ///
    /// The memory is deregistered when the last item in it has been dropped, and, if a [broker](crate::Broker::publish)
    /// announced it, when all peers have confirmed the withdrawal. A peer that has the key by other means and uses a pointer
    /// afterwards gets an error from its device, which ends the reliable connection. So a program must notify such peers
    /// first.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::UnknownSegment`] if the arena has no such segment.
    pub fn withdraw(&self, segment: u32) -> Result<Withdrawal> {
        let shared = &self.0.0;
        let removed = shared.segments.write().by_id.remove(&segment);
        let removed = removed.ok_or(ArenaError::UnknownSegment { segment })?;
        shared.note_change();
        let item_count = match removed.kind {
            SegmentKind::Lent => 0,
            _ => shared.heap.withdraw(|slab| slab.segment.id == segment),
        };
        Ok(Withdrawal { item_count, segment: Arc::downgrade(&removed) })
    }

    /// Returns descriptions of all segments, in the order in which they were added.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.0.0.segments.read().by_id.values().map(|segment| segment.info()).collect()
    }

    /// Allocates an item of `len` bytes, in the partition of the calling thread.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::ItemTooLarge`] if `len` exceeds the [slab size](ArenaBuilder::slab_size), and
    /// [`ArenaError::Full`] if no slot and no slab is free.
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<Draft> {
        self.allocate_in(thread_number(), len)
    }

    /// Allocates an item of `len` bytes in a partition: any number, which is taken modulo the number of partitions.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`allocate`](Arena::allocate).
    #[inline]
    pub fn allocate_in(&self, partition: usize, len: usize) -> Result<Draft> {
        let heap = &self.0.0.heap;
        let too_large = || ArenaError::ItemTooLarge { len, max: heap.classes().max_size() };
        let class = heap.classes().class_of(len).ok_or_else(too_large)?;
        let size = heap.classes().size(class);
        match heap.alloc(partition, class, len) {
            Some((slot, slab)) => Ok(Draft::new(slab, slot, slot.offset(size), len as u32)),
            None => Err(ArenaError::Full { len, slot_size: size as usize }),
        }
    }

    /// Allocates an item, copies `bytes` into it, and publishes it.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`allocate`](Arena::allocate).
    pub fn allocate_copy(&self, bytes: &[u8]) -> Result<Item> {
        let mut draft = self.allocate(bytes.len())?;
        draft.write(0, bytes)?;
        Ok(draft.publish())
    }

    /// Returns the partition of a key, for [`allocate_in`](Arena::allocate_in). Another arena assigns keys differently.
    ///
    /// If one thread serves the keys of each partition, threads don't contend for locks.
    pub fn partition_of(&self, key: &(impl Hash + ?Sized)) -> usize {
        self.0.0.key_hasher.hash_one(key) as usize & (self.partition_count() - 1)
    }

    /// Returns the number of partitions.
    pub fn partition_count(&self) -> usize {
        self.0.0.heap.partition_count()
    }

    /// Returns the size of the slots for items of `len` bytes, or `None` if `len` exceeds the slab size.
    pub fn slot_size(&self, len: usize) -> Option<usize> {
        let classes = self.0.0.heap.classes();
        classes.class_of(len).map(|class| classes.size(class) as usize)
    }

    /// Returns a pointer to bytes of a segment. For items, [`Item::remote_ptr`] does the same faster.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::UnknownSegment`] if the arena has no such segment, and [`ArenaError::InvalidPointer`] if the
    /// range doesn't lie in it.
    pub fn remote_ptr(&self, segment: u32, range: Range<u64>) -> Result<RemotePtr> {
        let ArenaState { member, epoch, .. } = *self.0.0;
        let Range { start: offset, end } = range;
        let len = end.checked_sub(offset);
        let segment_len = self.0.0.segment(segment)?.len() as u64;
        let ptr = RemotePtr { member, segment, epoch, offset, len: len.unwrap_or_default() };
        match len {
            Some(_) => ptr.check(member, epoch, segment_len)?,
            None => return Err(RemotePtrError::OutOfBounds { offset, len: 0, segment_len }.into()),
        }
        Ok(ptr)
    }

    /// Copies the first `bytes.len()` bytes that a pointer to this arena refers to. The pointer may come from a peer.
    ///
    /// The pointer is checked, but an arena doesn't know whether an item is at this place now.
    ///
    /// # Errors
    ///
    /// Returns [`ArenaError::InvalidPointer`] if the pointer is to another member, from another epoch, or out of bounds,
    /// or if it refers to fewer bytes; [`ArenaError::UnknownSegment`] if the segment was withdrawn; and
    /// [`ArenaError::Verbs`] if this process can't access the segment.
    pub fn read(&self, ptr: RemotePtr, bytes: &mut [u8]) -> Result<()> {
        let ArenaState { member, epoch, .. } = *self.0.0;
        let len = bytes.len() as u64;
        let bounds = RemotePtrError::OutOfBounds { offset: ptr.offset, len, segment_len: ptr.len };
        let part = ptr.part(0..len).ok_or(bounds)?;
        let segment = self.0.0.segment(part.segment)?;
        part.check(member, epoch, segment.len() as u64)?;
        Ok(segment.regions[0].read(part.offset as usize, bytes)?)
    }

    pub(crate) fn member(&self) -> u32 {
        self.0.0.member
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.0.0.epoch
    }

    /// Returns the index of a protection domain, if segments are registered in it.
    pub(crate) fn domain_index(&self, domain: &ProtectionDomain) -> Option<usize> {
        self.0.0.domains.iter().position(|other| other.id() == domain.id())
    }

    /// Wakes a broker when the list of segments changes.
    pub(crate) fn add_watcher(&self, waker: &Arc<Waker>) {
        self.0.0.watchers.lock().push(Arc::downgrade(waker));
    }

    /// Returns a number that changes after each change of the list of segments.
    pub(crate) fn segments_version(&self) -> u64 {
        self.0.0.version.load(Ordering::Acquire)
    }

    /// Returns the segments, by number. They stay registered while they are referenced.
    pub(crate) fn registered_segments(&self) -> Vec<Arc<Segment>> {
        self.0.0.segments.read().by_id.values().cloned().collect()
    }

    /// Returns the current counts.
    pub fn stats(&self) -> ArenaStats {
        let segments = self.0.0.segments.read().by_id.values().cloned().collect::<Vec<_>>();
        stats::collect(&self.0.0.heap, &segments)
    }
}

impl ArenaState {
    /// Registers a region's memory in the domains that it isn't registered in, and adds it as a segment. Calls `then`
    /// before the segment can be withdrawn.
    fn add_segment(
        &self,
        kind: SegmentKind,
        region: MemoryRegion,
        then: impl FnOnce(&Arc<Segment>),
    ) -> Result<SegmentInfo> {
        let domain_id = region.protection_domain().id();
        if self.domains.iter().all(|domain| domain.id() != domain_id) {
            return Err(ArenaError::ForeignRegion { domain: domain_id });
        }
        let register = |domain: &ProtectionDomain| {
            if domain.id() == domain_id {
                Ok(region.clone())
            } else {
                region.register_in(domain, region.access())
            }
        };
        let regions = self.domains.iter().map(register).collect::<Result<_, _>>()?;
        let mut segments = self.segments.write();
        let id = segments.next_id;
        segments.next_id = id.checked_add(1).ok_or(ArenaError::InvalidOption {
            option: "segments",
            rule: "an arena can't have more than 2^32 segments in its life",
        })?;
        let segment = Arc::new(Segment { id, kind, regions });
        then(&segment);
        let info = segment.info();
        segments.by_id.insert(id, segment);
        drop(segments);
        self.note_change();
        Ok(info)
    }

    /// Makes the brokers announce a change of the list of segments.
    fn note_change(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
        self.watchers.lock().retain(|watcher| match watcher.upgrade() {
            Some(waker) => {
                waker.wake();
                true
            }
            None => false,
        });
    }

    fn segment(&self, segment: u32) -> Result<Arc<Segment>> {
        let found = self.segments.read().by_id.get(&segment).cloned();
        found.ok_or(ArenaError::UnknownSegment { segment })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.0.owner.is_current() {
            // A thread that this forked child doesn't have may hold a lock.
            return;
        }
        // The slabs have references to the arena, so without this call it would never be freed. A slab with items is
        // freed with its last item.
        let segments = std::mem::take(&mut self.0.segments.write().by_id);
        self.0.heap.withdraw(|_| true);
        drop(segments);
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ArenaState { member, epoch, .. } = *self.0.0;
        f.debug_struct("Arena")
            .field("member", &member)
            .field("epoch", &epoch)
            .field("stats", &self.stats())
            .finish()
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
