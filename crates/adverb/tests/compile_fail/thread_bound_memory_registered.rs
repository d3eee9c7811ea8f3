//! Memory that isn't `Send` can't be registered: its last handle may be dropped on any thread.

use std::ptr::NonNull;
use std::rc::Rc;

use adverb::memory::Memory;

struct Counted(Rc<[u8]>);

// SAFETY: none. The compiler must reject this.
unsafe impl Memory for Counted {
    fn as_ptr(&self) -> NonNull<u8> {
        NonNull::from(&*self.0).cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn main() {}
