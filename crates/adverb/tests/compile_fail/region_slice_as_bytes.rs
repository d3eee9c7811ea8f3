//! A slice of a region doesn't coerce to `&[u8]` either.

use adverb::memory::RegionSlice;

fn as_bytes(slice: &RegionSlice) -> &[u8] {
    slice
}

fn main() {}
