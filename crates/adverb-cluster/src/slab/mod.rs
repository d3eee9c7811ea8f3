//! A slab allocator of offsets. It accesses no memory: a slab has a tag, which the caller chooses.
//!
//! ```text
//! Heap ── spare slabs (empty, of no class)
//!      └─ partitions, each with a lock ── classes ── slabs ── slots
//! ```
//!
//! - A slab is a range of [`Layout::slab_size`] bytes. While it belongs to a class, it is divided into slots of one size.
//! - A thread allocates from its partition, under the partition's lock alone. If the partition has no free slot of the
//!   class, it gets a slab: a spare one, else an empty one of another class or partition. Otherwise the slot is taken
//!   from another partition.
//! - A partition keeps one empty slab of each class. Further ones become spare.
//! - Allocating and freeing slots uses no heap memory: [`Heap::add_slabs`] allocates all bookkeeping in advance.

mod classes;
mod heap;
mod partition;
mod slot_set;
#[cfg(test)]
mod tests;

pub(crate) use classes::{InvalidLayout, Layout, SizeClasses};
pub(crate) use heap::{Heap, MAX_PARTITIONS, Slot};
pub(crate) use partition::ClassCounts;
