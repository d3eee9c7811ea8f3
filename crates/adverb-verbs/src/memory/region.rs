//! Registered memory, shared with the device and with peers.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use adverb_proto::types::{Access, RemoteMemory, Segment};

use super::shared::{SharedBytes, check_bounds};
use super::{Buffer, Memory};
use crate::backend;
use crate::device::ProtectionDomain;
use crate::error::{Error, Limit, Result, WithCauses};

/// Registered memory that may be shared with the device and with peers.
///
/// The memory may change at any moment, so it is never a `[u8]`: [`read`](MemoryRegion::read) and
/// [`write`](MemoryRegion::write) copy bytes, and [`word`](MemoryRegion::word) gives atomic access to 64-bit words.
///
/// A clone is another handle to the same memory. The memory is deregistered and freed when the last handle has been
/// dropped and the last request that uses it has completed.
#[derive(Clone)]
pub struct MemoryRegion(Arc<Region>);

/// The access rights that let only the local device access the memory. Any other right may let a peer access it.
/// (WINDOW_BIND may do so even after the last window was unbound: rxe finishes writing a message that was being
/// received.)
const PRIVATE_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::ZERO_BASED)
    .union(Access::ON_DEMAND)
    .union(Access::HUGE_PAGES)
    .union(Access::RELAXED_ORDERING);

/// The registration and the memory under it.
pub(crate) struct Region {
    /// The registration. It is the first field, so that the device releases the memory before it is freed.
    registration: backend::Registration,
    keys: backend::MemoryKeys,
    pub(super) address: NonNull<u8>,
    pub(super) len: usize,
    access: Access,
    /// The domain that it is registered in: only queues of this domain may use it.
    domain: ProtectionDomain,
    /// The owner of the memory that `address` and `len` describe. Memory of another device has none, and a dangling
    /// address.
    memory: Option<Box<dyn Memory>>,
}

// SAFETY: the address belongs to a `Memory`, which may be used from any thread. This type accesses it by copies and
// word atomics, as `access` requires, and access through a `Buffer` is exclusive.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn new(
        domain: &ProtectionDomain,
        registration: backend::Registration,
        memory: Box<dyn Memory>,
        access: Access,
    ) -> Region {
        let (keys, address, len) = (registration.keys(), memory.as_ptr(), memory.len());
        let (domain, memory) = (domain.clone(), Some(memory));
        Region { registration, keys, address, len, access, domain, memory }
    }

    /// Creates a region of another device's memory, which this process can't access.
    pub(super) fn of_other_device(
        domain: &ProtectionDomain,
        registration: backend::Registration,
        len: usize,
        access: Access,
    ) -> Region {
        let (keys, address, domain) = (registration.keys(), NonNull::dangling(), domain.clone());
        Region { registration, keys, address, len, access, domain, memory: None }
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    #[inline]
    pub(super) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(super) fn is_identity_mapped(&self) -> bool {
        self.keys.is_identity_mapped
    }

    /// Returns the segment of the `length` bytes at `offset`.
    #[inline]
    pub(super) fn segment(&self, offset: usize, length: u32) -> Segment {
        Segment { addr: self.keys.addr + offset as u64, length, lkey: self.keys.lkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Err(error) = self.registration.deregister() {
            // The device may still write to the memory, so it can't be freed. It is leaked first, because a log
            // subscriber may panic.
            std::mem::forget(self.memory.take());
            tracing::error!(error = %WithCauses(&error), bytes = self.len, "deregistering memory failed; it is leaked");
        }
    }
}

impl MemoryRegion {
    pub(super) fn new(region: Region) -> MemoryRegion {
        MemoryRegion(Arc::new(region))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the length is 0. Always returns `false`, because a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this process can access the memory. Returns `false` for a
    /// [dma-buf](crate::ProtectionDomain::register_dmabuf).
    pub fn is_mapped(&self) -> bool {
        self.0.memory.is_some()
    }

    /// Returns the access rights that the region was registered with.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Returns the protection domain that the region is registered in.
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }

    /// Returns the local key (lkey).
    pub fn lkey(&self) -> u32 {
        self.0.keys.lkey
    }

    /// Returns the address, remote key and length with which a peer accesses this memory.
    ///
    /// The peer has the remote access rights that the region was registered with.
    pub fn remote(&self) -> RemoteMemory {
        let keys = self.0.keys;
        RemoteMemory { addr: keys.addr, rkey: keys.rkey, len: self.0.len as u64 }
    }

    /// Copies `bytes.len()` bytes at `offset` out of the region.
    ///
    /// If a peer writes at the same time, each copied byte has either the old or the new value.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the bytes don't all lie in the region, and [`Error::InvalidRequest`] if the
    /// region isn't [mapped](MemoryRegion::is_mapped).
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.0.bytes()?.read(offset, bytes)
    }

    /// Copies bytes into the region at `offset`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`read`](MemoryRegion::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.0.bytes()?.write(offset, bytes)
    }

    /// Returns the 64-bit word at `offset`, in the byte order of this machine. Peers may change it with atomic
    /// operations.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the word doesn't lie in the region, [`Error::Unaligned`] if its address isn't
    /// a multiple of 8, and [`Error::InvalidRequest`] if the region isn't [mapped](MemoryRegion::is_mapped).
    pub fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.0.bytes()?.word(offset)
    }

    /// Returns a part of the region, for a request. Any number of parts may be in flight, and they may overlap.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the range doesn't lie in the region, and [`Error::LimitExceeded`] if it is 4
    /// GiB or longer.
    pub fn slice(&self, range: Range<usize>) -> Result<RegionSlice> {
        let len = range.end.checked_sub(range.start).ok_or(Error::OutOfBounds {
            offset: range.start,
            len: 0,
            size: self.len(),
        })?;
        check_bounds(range.start, len, self.len())?;
        let len = u32::try_from(len).map_err(|_| Error::LimitExceeded {
            limit: Limit::SliceLen,
            requested: len as u64,
            max: u64::from(u32::MAX),
        })?;
        Ok(RegionSlice { region: Arc::clone(&self.0), offset: range.start, len: len as usize })
    }

    /// Returns the whole region as a slice for a window. It may be too long for a segment of a request.
    pub(crate) fn whole(&self) -> RegionSlice {
        RegionSlice { region: Arc::clone(&self.0), offset: 0, len: self.len() }
    }

    /// Converts the whole region into a buffer with one owner.
    ///
    /// # Errors
    ///
    /// Returns the region unchanged if
    ///
    /// - its access rights let a peer access it, directly or through a memory window;
    /// - another process can access it (see [`Memory::is_exclusive`]), or this process can't
    ///   ([`is_mapped`](MemoryRegion::is_mapped));
    /// - another handle or a request uses it; or
    /// - it is 4 GiB or longer.
    pub fn into_buffer(self) -> std::result::Result<Buffer, MemoryRegion> {
        let Ok(len) = u32::try_from(self.len()) else { return Err(self) };
        self.into_private().map(|region| Buffer::new(region, 0, len))
    }

    /// Returns the region if nothing else can access its memory, now or later, as [`Buffer`]s and pools require.
    pub(super) fn into_private(mut self) -> std::result::Result<Arc<Region>, MemoryRegion> {
        // There is no other handle, and none can be created, because `self` is consumed.
        let is_unshared = Arc::get_mut(&mut self.0)
            .is_some_and(|region| region.memory.as_ref().is_some_and(|memory| memory.is_exclusive()));
        if is_unshared && PRIVATE_ACCESS.contains(self.access()) { Ok(self.0) } else { Err(self) }
    }

    /// Deregisters the memory and returns it, if it has the type `T`, and this is the last handle to the region.
    /// Otherwise, returns the region.
    pub(super) fn into_memory<T: Memory>(self) -> std::result::Result<T, MemoryRegion> {
        let memory: Option<&dyn Any> = self.0.memory.as_deref().map(|memory| memory as _);
        if !memory.is_some_and(<dyn Any>::is::<T>) {
            return Err(self);
        }
        let mut region = Arc::try_unwrap(self.0).map_err(MemoryRegion)?;
        let deregistered = region.registration.deregister();
        let memory: Option<Box<dyn Any>> = region.memory.take().map(|memory| memory as _);
        match (deregistered, memory.map(<Box<dyn Any>>::downcast)) {
            (Ok(()), Some(Ok(memory))) => Ok(*memory),
            (Err(error), memory) => {
                // The device may still access the memory. It is leaked first, because a log subscriber may panic.
                std::mem::forget(memory);
                tracing::error!(error = %WithCauses(&error), bytes = region.len, "deregistering memory failed; it is leaked");
                Err(MemoryRegion::new(region))
            }
            (Ok(()), _) => unreachable!("the type was checked"),
        }
    }

    /// Registers the same memory again, in this or another protection domain, also of another device, with other access
    /// rights. Peers use the same addresses, and another key. The memory lives as long as either region.
    ///
    /// ```
    /// # fn main() -> adverb::verbs::Result<()> {
    /// use adverb::verbs::{Access, Device};
    ///
    /// let device = Device::open("soft")?;
    /// let (first, second) = (device.create_protection_domain()?, device.create_protection_domain()?);
    /// let region = first.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// // The peers of the second domain may only read.
    /// let read_only = region.register_in(&second, Access::REMOTE_READ)?;
    /// region.write(0, b"hello")?;
    /// let mut bytes = [0; 5];
    /// read_only.read(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if this process [can't access](MemoryRegion::is_mapped) the memory, and the same
    /// errors as [`register`](ProtectionDomain::register).
    pub fn register_in(&self, domain: &ProtectionDomain, access: Access) -> Result<MemoryRegion> {
        self.0.bytes()?;
        let memory: Option<&dyn Any> = self.0.memory.as_deref().map(|memory| memory as _);
        // If this region was registered again itself, its original is used.
        let origin = memory.and_then(<dyn Any>::downcast_ref).map_or(self, |Reregistered(origin)| origin);
        let memory = Reregistered(origin.clone());
        if self.0.is_identity_mapped() {
            domain.register(memory, access)
        } else {
            domain.register_at(memory, self.0.keys.addr, access)
        }
    }
}

/// Memory that is already registered, in another domain.
struct Reregistered(MemoryRegion);

// SAFETY: this value holds the region, which holds its memory, and the region is mapped, as was checked when this value
// was created. Owners of either region access the bytes only by copies and atomics, as peers do, and neither becomes a
// buffer: this one isn't exclusive, and the original has another handle.
unsafe impl Memory for Reregistered {
    fn as_ptr(&self) -> NonNull<u8> {
        self.0.0.address
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_exclusive(&self) -> bool {
        false
    }
}

impl Region {
    /// Returns the bytes, if this process can access them.
    #[inline]
    fn bytes(&self) -> Result<SharedBytes<'_>> {
        match &self.memory {
            // SAFETY: the region keeps the memory, and a region that is shared accesses it in no other way.
            Some(_) => Ok(unsafe { SharedBytes::new(self.address, self.len) }),
            None => {
                let reason = "a dma-buf region has no address in this process: map the dma-buf at its exporter, or copy the bytes \
                              with requests";
                Err(Error::InvalidRequest { reason: reason.into() })
            }
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("len", &self.len()).field("access", &self.access()).finish()
    }
}

/// A part of a [`MemoryRegion`], returned by [`MemoryRegion::slice`].
#[derive(Clone)]
pub struct RegionSlice {
    region: Arc<Region>,
    offset: usize,
    /// The length, which fits into 32 bits unless the slice is for a window.
    len: usize,
}

impl RegionSlice {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the region that this is a part of.
    pub fn region(&self) -> MemoryRegion {
        MemoryRegion(Arc::clone(&self.region))
    }

    pub(super) fn segment(&self) -> Segment {
        self.region.segment(self.offset, self.len as u32)
    }

    /// Returns the address that peers use for the first byte.
    pub(super) fn addr(&self) -> u64 {
        self.segment().addr
    }

    pub(super) fn lkey(&self) -> u32 {
        self.region.keys.lkey
    }

    #[inline]
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        self.region.domain()
    }

    /// Returns the region's access rights.
    pub(crate) fn access(&self) -> Access {
        self.region.access
    }

    pub(super) fn registration(&self) -> &backend::Registration {
        &self.region.registration
    }

    pub(super) fn is_locally_writable(&self) -> bool {
        self.region.access.contains(Access::LOCAL_WRITE)
    }

    pub(super) fn is_identity_mapped(&self) -> bool {
        self.region.is_identity_mapped()
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionSlice").field("offset", &self.offset).field("len", &self.len).finish()
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn every_alignment_and_length_is_copied_exactly() {
        let domain = Device::open("soft").unwrap().create_protection_domain().unwrap();
        let region = domain.allocate_region(256, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let message: Vec<u8> = (1..=160).collect();
        for offset in 0..17 {
            for length in (0..40).chain(60..90).chain(120..160) {
                region.write(0, &[0; 256]).unwrap();
                region.write(offset, &message[..length]).unwrap();
                let mut expected = [0; 256];
                expected[offset..offset + length].copy_from_slice(&message[..length]);
                let mut all = [1; 256];
                region.read(0, &mut all).unwrap();
                assert_eq!(all, expected, "{length} bytes at {offset}");
                let mut out = vec![0; length];
                region.read(offset, &mut out).unwrap();
                assert_eq!(out, message[..length]);
            }
        }
    }

    #[test]
    fn copied_words_are_never_torn() {
        let domain = Device::open("soft").unwrap().create_protection_domain().unwrap();
        let region = domain.allocate_region(256, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC).unwrap();
        let words = || (0..32).map(|index| region.word(8 * index).unwrap());
        std::thread::scope(|threads| {
            let copying = threads.spawn(|| {
                for round in 0..20_000usize {
                    // The first write copies whole words, with and without blocks of 64 bytes. The second one changes
                    // bytes outside the words that are checked.
                    region.write(0, &[round as u8; 128][..8 * (1 + round % 16)]).unwrap();
                    region.write(251, &[round as u8; 5]).unwrap();
                }
            });
            while !copying.is_finished() {
                for word in words().take(16) {
                    let bytes = word.load(std::sync::atomic::Ordering::Relaxed).to_ne_bytes();
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
                }
                let mut copy = [0; 128];
                region.read(0, &mut copy).unwrap();
                for word in copy.as_chunks::<8>().0 {
                    assert!(word.iter().all(|byte| *byte == word[0]), "{word:?}");
                }
            }
            copying.join().unwrap();
        });
    }

    #[test]
    fn reregistering_repeatedly_keeps_two_registrations() {
        let device = Device::open("soft").unwrap();
        let domain = || device.create_protection_domain().unwrap();
        let region = domain().allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        let mut reregistered = region.register_in(&domain(), region.access()).unwrap();
        for _ in 0..3 {
            let before = Arc::downgrade(&reregistered.0);
            reregistered = reregistered.register_in(&domain(), region.access()).unwrap();
            assert!(before.upgrade().is_none(), "the previous registration is still held");
        }
        assert_eq!((reregistered.len(), reregistered.access()), (region.len(), region.access()));
        reregistered.write(7, b"here").unwrap();
        let mut bytes = [0; 4];
        region.read(7, &mut bytes).unwrap();
        assert_eq!(&bytes, b"here");
    }
}
