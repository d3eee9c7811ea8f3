//! A piece of a region is no `&[u8]` either.

use adverb::memory::RegionSlice;

fn as_bytes(slice: &RegionSlice) -> &[u8] {
    slice
}

fn main() {}
