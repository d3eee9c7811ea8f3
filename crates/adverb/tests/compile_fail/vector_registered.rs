//! A vector can't be registered: it may grow, and then moves its bytes.

use adverb::memory::MemoryRegion;
use adverb::verbs::{Access, ProtectionDomain};

fn register(domain: &ProtectionDomain) -> adverb::verbs::Result<MemoryRegion> {
    domain.register(vec![0u8; 4096], Access::LOCAL_WRITE)
}

fn main() {}
