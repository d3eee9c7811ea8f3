//! Registered memory in vectors, for tests, simulations and examples.

use super::{Fault, Memory, Span, StorageId};

/// Registered memory in vectors. A [`StorageId`] is the index of a vector.
///
/// ```
/// use adverb_proto::memory::{HeapMemory, Memory, Span};
///
/// let mut memory = HeapMemory::default();
/// let storage = memory.add(vec![0; 64]);
/// memory.write(Span { storage, offset: 8, length: 2 }, b"hi").unwrap();
/// assert_eq!(&memory.bytes(storage)[8..10], b"hi");
/// ```
#[derive(Clone, Debug, Default)]
pub struct HeapMemory {
    storages: Vec<Vec<u8>>,
}

impl HeapMemory {
    /// Adds a vector with these bytes and returns its index.
    pub fn add(&mut self, bytes: Vec<u8>) -> StorageId {
        self.storages.push(bytes);
        StorageId(self.storages.len() as u64 - 1)
    }

    /// Returns the bytes of a vector, or an empty slice if the vector does not exist.
    pub fn bytes(&self, storage: StorageId) -> &[u8] {
        usize::try_from(storage.0).ok().and_then(|index| self.storages.get(index)).map_or(&[], Vec::as_slice)
    }

    /// Returns the bytes of a vector for writing, or an empty slice if the vector does not exist.
    pub fn bytes_mut(&mut self, storage: StorageId) -> &mut [u8] {
        let index = usize::try_from(storage.0).ok();
        index.and_then(|index| self.storages.get_mut(index)).map_or(&mut [], Vec::as_mut_slice)
    }

    fn get(&self, span: Span) -> Result<&[u8], Fault> {
        let start = usize::try_from(span.offset).map_err(|_| Fault)?;
        let end = start.checked_add(span.length as usize).ok_or(Fault)?;
        self.bytes(span.storage).get(start..end).ok_or(Fault)
    }

    fn get_mut(&mut self, span: Span) -> Result<&mut [u8], Fault> {
        let start = usize::try_from(span.offset).map_err(|_| Fault)?;
        let end = start.checked_add(span.length as usize).ok_or(Fault)?;
        self.bytes_mut(span.storage).get_mut(start..end).ok_or(Fault)
    }

    fn word_mut(&mut self, word: Span) -> Result<&mut [u8; 8], Fault> {
        self.get_mut(word)?.first_chunk_mut().ok_or(Fault)
    }
}

impl Memory for HeapMemory {
    #[inline]
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Fault> {
        let target = self.get_mut(span)?;
        if target.len() != bytes.len() {
            return Err(Fault);
        }
        target.copy_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), Fault> {
        let source = self.get(span)?;
        if source.len() != out.len() {
            return Err(Fault);
        }
        out.copy_from_slice(source);
        Ok(())
    }

    fn compare_swap(&mut self, word: Span, compare: u64, swap: u64) -> Result<u64, Fault> {
        let word = self.word_mut(word)?;
        let old = u64::from_ne_bytes(*word);
        if old == compare {
            *word = swap.to_ne_bytes();
        }
        Ok(old)
    }

    fn fetch_add(&mut self, word: Span, add: u64) -> Result<u64, Fault> {
        let word = self.word_mut(word)?;
        let old = u64::from_ne_bytes(*word);
        *word = old.wrapping_add(add).to_ne_bytes();
        Ok(old)
    }

    fn write_word(&mut self, word: Span, bytes: [u8; 8]) -> Result<(), Fault> {
        *self.word_mut(word)? = bytes;
        Ok(())
    }

    fn flush(&mut self, span: Span, _persistent: bool) -> Result<(), Fault> {
        self.get(span).map(|_| ())
    }
}
