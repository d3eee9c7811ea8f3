//! Implementing `Memory` needs `unsafe`: the compiler can't check its requirements.

use std::ptr::NonNull;

use adverb::memory::Memory;

struct Mine(Box<[u8]>);

impl Memory for Mine {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::from(&self.0[..]).cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn main() {}
