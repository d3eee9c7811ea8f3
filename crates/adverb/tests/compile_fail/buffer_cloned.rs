//! A buffer has one owner: there is no second handle to keep back when one is posted.

use adverb::memory::Buffer;

fn second_handle(buffer: &Buffer) -> Buffer {
    buffer.clone()
}

fn main() {}
