//! Memory that several protection domains register, and the access to shared bytes.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{Memory, Pages, access};
use crate::error::{Error, Result};

/// Memory that any number of protection domains, also of several devices, may [register](crate::ProtectionDomain::register)
/// at the same time.
///
/// Like a [`MemoryRegion`](super::MemoryRegion), it may change at any moment, so it is never a `[u8]`. A clone is another
/// handle to the same memory, which is freed when the last handle and the last region that was registered from it have
/// been dropped.
///
/// ```
/// use adverb::memory::SharedMemory;
/// use adverb::verbs::{Access, Device};
///
/// let memory = SharedMemory::allocate(4096)?;
/// let domain = Device::open("soft")?.create_protection_domain()?;
/// let region = domain.register(memory.clone(), Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// memory.write(7, b"here")?;
/// let mut bytes = [0; 4];
/// region.read(7, &mut bytes)?;
/// assert_eq!(&bytes, b"here");
/// # Ok::<(), adverb::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedMemory(Arc<dyn Memory>);

impl SharedMemory {
    /// Takes ownership of memory.
    pub fn new(memory: impl Memory) -> SharedMemory {
        SharedMemory(Arc::new(memory))
    }

    /// Allocates `len` bytes of zeros in ordinary [pages](Pages::new).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Allocation`] if there is not enough memory, or `len` is 0.
    pub fn allocate(len: usize) -> Result<SharedMemory> {
        let pages = Pages::new(len).map_err(|source| Error::Allocation { len, source })?;
        Ok(SharedMemory::new(pages))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `bytes.len()` bytes at `offset` out of the memory.
    ///
    /// If a peer writes at the same time, each copied byte has either the old or the new value.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the bytes don't all lie in the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.bytes().read(offset, bytes)
    }

    /// Copies bytes into the memory at `offset`.
    ///
    /// # Errors
    ///
    /// Returns the same error as [`read`](SharedMemory::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.bytes().write(offset, bytes)
    }

    /// Returns the 64-bit word at `offset`, in the byte order of this machine. Peers may change it with atomic
    /// operations.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`] if the word doesn't lie in the memory, and [`Error::Unaligned`] if its address isn't
    /// a multiple of 8.
    pub fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.bytes().word(offset)
    }

    fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: this handle keeps the memory. No other code accesses it, except the regions that are registered from
        // handles, which are never buffers, because a handle isn't exclusive.
        unsafe { SharedBytes::new(self.0.as_ptr(), self.0.len()) }
    }
}

// SAFETY: the memory lives as long as this handle. All handles, and the regions that are registered from them, access it
// by the copies and atomics of `access` only: it never becomes a buffer, because it is not exclusive.
unsafe impl Memory for SharedMemory {
    fn as_ptr(&self) -> NonNull<u8> {
        self.0.as_ptr()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_exclusive(&self) -> bool {
        false
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").field("len", &self.len()).finish()
    }
}

/// Bytes that a device, peers and other threads may access at the same time.
#[derive(Clone, Copy)]
pub(super) struct SharedBytes<'a> {
    address: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> SharedBytes<'a> {
    /// # Safety
    ///
    /// The address and the length are those of a [`Memory`] that exists during the lifetime, and all accesses to it are
    /// those that `access` allows.
    #[inline]
    pub(super) unsafe fn new(address: NonNull<u8>, len: usize) -> SharedBytes<'a> {
        SharedBytes { address, len, memory: PhantomData }
    }

    /// Copies bytes at `offset` out of the memory.
    #[inline]
    pub(super) fn read(self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let from = self.at(offset, bytes.len())?;
        // SAFETY: the memory has this many bytes at `from`, and they are shared as `access` requires. `bytes` is
        // borrowed exclusively.
        unsafe { access::load(from, NonNull::from(&mut *bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes into the memory at `offset`.
    #[inline]
    pub(super) fn write(self, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: the memory has this many bytes at `to`, and they are shared as `access` requires.
        unsafe { access::store(to, bytes) };
        Ok(())
    }

    /// Returns the word at `offset`.
    #[inline]
    pub(super) fn word(self, offset: usize) -> Result<&'a AtomicU64> {
        let address = self.at(offset, 8)?;
        if !address.cast::<AtomicU64>().is_aligned() {
            return Err(Error::Unaligned { offset });
        }
        // SAFETY: the word lies within the memory and is aligned, as checked. The memory is borrowed for the lifetime of
        // the reference. Concurrent accesses are those that `access` allows, with the semantics that it describes.
        Ok(unsafe { address.cast::<AtomicU64>().as_ref() })
    }

    /// Returns the address of bytes.
    #[inline]
    fn at(self, offset: usize, len: usize) -> Result<NonNull<u8>> {
        check_bounds(offset, len, self.len)?;
        // SAFETY: the offset lies within the memory, as checked.
        Ok(unsafe { self.address.add(offset) })
    }
}

/// Checks that a range lies in `size` bytes.
pub(super) fn check_bounds(offset: usize, len: usize, size: usize) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfBounds { offset, len, size }),
    }
}
