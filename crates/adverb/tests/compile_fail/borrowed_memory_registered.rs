//! Memory that is only borrowed can't be registered: the device would have it for longer than the loan.

use std::ptr::NonNull;

use adverb::memory::{Memory, MemoryRegion};
use adverb::verbs::{Access, ProtectionDomain};

struct Borrowed<'a>(&'a mut [u8]);

// SAFETY: there is none, and the compiler must say so.
unsafe impl Memory for Borrowed<'_> {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::from(&*self.0).cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn register(domain: &ProtectionDomain, bytes: &mut [u8]) -> adverb::Result<MemoryRegion> {
    domain.register(Borrowed(bytes), Access::LOCAL_WRITE)
}

fn main() {}
