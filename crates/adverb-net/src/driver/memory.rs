//! The buffers of connections. A pool of registered memory allocates them.

use adverb_net_proto::{Buf, Memory};
use adverb_verbs::Error;
use adverb_verbs::memory::{Pool, PoolBuf};

use super::region::Region;

/// A pool's buffer, which implements the trait [`Buf`] of adverb-net-proto.
#[derive(Debug)]
pub(super) struct Buffer(pub(super) PoolBuf);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Buf for Buffer {
    fn truncate(&mut self, len: usize) {
        if len < self.0.len() {
            self.0.resize(len).expect("the buffer is longer");
        }
    }

    fn split_to(&mut self, len: usize) -> Buffer {
        Buffer(self.0.split_to(len).expect("the connection splits within the buffer"))
    }

    fn advance(&mut self, len: usize) {
        self.0.advance(len).expect("the connection advances within the buffer");
    }

    fn unsplit(&mut self, rest: Buffer) {
        self.0.unsplit(rest.0).expect("READs complete in order");
    }
}

/// The memory of a lane (a queue pair under a connection): its buffers are allocated from `pool`.
pub(super) struct LaneMemory<'a> {
    pool: &'a Pool,
    /// The error of the last failed allocation, if an allocation has failed.
    pub(super) failure: Option<Error>,
}

impl LaneMemory<'_> {
    pub(super) fn new(pool: &Pool) -> LaneMemory<'_> {
        LaneMemory { pool, failure: None }
    }
}

impl Memory for LaneMemory<'_> {
    type Buf = Buffer;
    type Region = Region;

    fn alloc(&mut self, len: usize) -> Option<Buffer> {
        match self.pool.allocate(len) {
            Ok(buffer) => Some(Buffer(buffer)),
            Err(error) => {
                self.failure = Some(error);
                None
            }
        }
    }

    fn read_ring(&mut self, ring: &Region, offset: u32, out: &mut Buffer) {
        ring.memory.read(offset as usize, &mut out.0).expect("the connection reads within the ring");
    }
}
