//! A buffer has one owner: no second handle remains when it is posted.

use adverb::memory::Buffer;

fn second_handle(buffer: &Buffer) -> Buffer {
    buffer.clone()
}

fn main() {}
