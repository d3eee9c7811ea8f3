//! Memory that must stay on its thread can't be registered: the last handle to it may be dropped on any.

use std::ptr::NonNull;
use std::rc::Rc;

use adverb::memory::Memory;

struct Counted(Rc<[u8]>);

// SAFETY: there is none, and the compiler must say so.
unsafe impl Memory for Counted {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::from(&*self.0).cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn main() {}
