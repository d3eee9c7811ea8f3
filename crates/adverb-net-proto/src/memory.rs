//! The memory of a connection, which its driver provides.

use adverb_proto::types::RemoteMemory;

/// A buffer that the NIC can access.
///
/// A driver uses registered memory; a simulator uses `Vec<u8>`, which implements the trait.
pub trait Buf: AsRef<[u8]> + AsMut<[u8]> {
    /// Shortens the buffer.
    fn truncate(&mut self, len: usize);

    /// Splits the first `len` bytes off.
    #[must_use]
    fn split_to(&mut self, len: usize) -> Self;

    /// Removes the first `len` bytes.
    fn advance(&mut self, len: usize);

    /// Appends the buffer that was behind this one before [`split_to`](Buf::split_to).
    fn unsplit(&mut self, rest: Self);
}

impl Buf for Vec<u8> {
    fn truncate(&mut self, len: usize) {
        Vec::truncate(self, len);
    }

    fn split_to(&mut self, len: usize) -> Vec<u8> {
        let rest = self.split_off(len);
        std::mem::replace(self, rest)
    }

    fn advance(&mut self, len: usize) {
        self.drain(..len);
    }

    fn unsplit(&mut self, rest: Vec<u8>) {
        self.extend_from_slice(&rest);
    }
}

/// Registered memory that the peer may access.
pub trait Region {
    /// Returns the address, the key and the length that the peer needs.
    fn remote(&self) -> RemoteMemory;
}

/// The memory of a connection.
pub trait Memory {
    /// A buffer.
    type Buf: Buf;
    /// Registered memory: the ring, a message that the peer reads, or memory that is exposed to the peer.
    type Region: Region;

    /// Allocates a buffer of this length, or returns `None` if there is no memory.
    fn alloc(&mut self, len: usize) -> Option<Self::Buf>;

    /// Copies bytes from the ring to a buffer. The connection never reads the ring itself, which the peer may change.
    fn read_ring(&mut self, ring: &Self::Region, offset: u32, out: &mut Self::Buf);
}
