//! Borrowed memory can't be registered: the device would use it after the borrow ends.

use std::ptr::NonNull;

use adverb::memory::{Memory, MemoryRegion};
use adverb::verbs::{Access, ProtectionDomain};

struct Borrowed<'a>(&'a mut [u8]);

// SAFETY: none. The compiler must reject this.
unsafe impl Memory for Borrowed<'_> {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::from(&*self.0).cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn register(domain: &ProtectionDomain, bytes: &mut [u8]) -> adverb::verbs::Result<MemoryRegion> {
    domain.register(Borrowed(bytes), Access::LOCAL_WRITE)
}

fn main() {}
