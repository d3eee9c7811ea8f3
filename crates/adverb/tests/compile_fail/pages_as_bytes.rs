//! Pages are no `&[u8]`: who registers them would hold a second way to their bytes.

use adverb::memory::Pages;

fn as_bytes(pages: &Pages) -> &[u8] {
    pages
}

fn main() {}
