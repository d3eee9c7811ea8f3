//! A vector can't be registered as it is: it may grow, and moves its bytes when it does.

use adverb::memory::MemoryRegion;
use adverb::verbs::{Access, ProtectionDomain};

fn register(domain: &ProtectionDomain) -> adverb::Result<MemoryRegion> {
    domain.register(vec![0u8; 4096], Access::LOCAL_WRITE)
}

fn main() {}
