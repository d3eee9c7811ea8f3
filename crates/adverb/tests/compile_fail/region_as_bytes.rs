//! Memory that a peer may write is never a `&[u8]`.

use adverb::memory::MemoryRegion;

fn as_bytes(region: &MemoryRegion) -> &[u8] {
    region
}

fn indexed(region: &MemoryRegion) -> u8 {
    region[0]
}

fn as_reference(region: &MemoryRegion) -> &[u8] {
    region.as_ref()
}

fn main() {}
