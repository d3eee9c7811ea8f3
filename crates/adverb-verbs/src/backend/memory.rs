//! The memory that a backend registers.

use std::any::Any;
use std::ptr::NonNull;

/// Memory that can be registered with a device.
///
/// [`Pages`](crate::memory::Pages) implements this trait for memory that Adverb allocates. Implement the trait to
/// register other memory.
///
/// # Safety
///
/// While the value exists, and even if it is moved, [`as_ptr`](Memory::as_ptr), [`len`](Memory::len) and
/// [`is_exclusive`](Memory::is_exclusive) always return the same values, and the bytes that they describe stay
/// allocated, initialized, readable and writable, from any thread. No other code of this process reads or writes these
/// bytes, neither through other pointers nor through methods of the value. If `is_exclusive` returns true, no other
/// process and no system call reads or writes them either.
///
/// A `Box<[u8]>` doesn't qualify: moving a `Box` asserts that its pointer is unique, and the device has a copy of the
/// pointer.
pub unsafe trait Memory: Any + Send + Sync {
    /// Returns the address of the first byte.
    fn as_ptr(&self) -> NonNull<u8>;

    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether only this process can access the bytes. Only such memory can become a
    /// [`Buffer`](crate::memory::Buffer).
    ///
    /// The default implementation returns true.
    fn is_exclusive(&self) -> bool {
        true
    }
}
