//! Pages don't coerce to `&[u8]`: the slice would alias registered memory.

use adverb::memory::Pages;

fn as_bytes(pages: &Pages) -> &[u8] {
    pages
}

fn main() {}
