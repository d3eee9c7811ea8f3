//! The memory of one process, as its connection and its NIC access it.

use std::collections::BTreeMap;

use adverb_net_proto::{Memory, Payload, Region};
use adverb_proto::memory::{Fault, Span, StorageId};
use adverb_proto::types::{RemoteAddress, RemoteMemory, Segment};

use crate::rc_model::NicMemory;

/// The content of memory that was allocated and not written.
const UNUSED: u8 = 0xdd;
/// The address of the first byte of each region. Only their keys distinguish regions.
pub(super) const REGION_BASE: u64 = 0x1000;
/// The storage of the buffers of requests, for a device. The storage of a region is its key.
pub(super) const LOCAL_STORAGE: StorageId = StorageId(1 << 40);
/// The number of bits of an offset in a buffer.
const LOCAL_BITS: u32 = 20;

/// Returns the address of a lent buffer, for a device.
pub(super) fn local_address(addr: u64) -> u64 {
    addr << LOCAL_BITS
}

/// A handle to registered memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ModelRegion {
    rkey: u32,
    len: u64,
}

impl Region for ModelRegion {
    fn remote(&self) -> RemoteMemory {
        RemoteMemory { addr: REGION_BASE, rkey: self.rkey, len: self.len }
    }
}

/// Registered memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Registered {
    /// A ring: its bytes, and for each of them 1 if it was written and not read.
    Ring { bytes: Vec<u8>, unread: Vec<u8> },
    /// A message or an exposed region.
    Message(Vec<u8>),
    /// A message or an exposed region that was registered for an earlier lane.
    StaleMessage(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct ProcessMemory {
    regions: BTreeMap<u32, Registered>,
    next_rkey: u32,
    /// The buffers of requests in flight, by their addresses.
    in_flight: BTreeMap<u64, Vec<u8>>,
    /// An invalid access since the last check.
    pub(super) violation: Option<&'static str>,
}

impl ProcessMemory {
    /// Returns the number of regions.
    pub(super) fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Returns the keys and the lengths of the regions that the peer can access.
    pub(super) fn registered(&self) -> impl Iterator<Item = (u32, usize)> {
        self.regions.keys().filter_map(|rkey| self.registered_len(*rkey).map(|len| (*rkey, len)))
    }

    /// Returns the length of a region, if the peer can access its bytes.
    pub(super) fn registered_len(&self, rkey: u32) -> Option<usize> {
        match self.regions.get(&rkey)? {
            Registered::Ring { bytes, .. } | Registered::Message(bytes) => {
                Some(bytes.len()).filter(|len| *len > 0)
            }
            Registered::StaleMessage(_) => None,
        }
    }

    /// Returns the number of buffers of requests in flight.
    pub(super) fn in_flight_count(&self) -> usize {
        self.in_flight.len()
    }

    /// Lends a buffer to the NIC, and returns its segment.
    pub(super) fn lend(&mut self, buf: Vec<u8>) -> Segment {
        let addr = (1..).find(|addr| !self.in_flight.contains_key(addr)).unwrap_or(0);
        let length = buf.len() as u32;
        self.in_flight.insert(addr, buf);
        Segment { addr, length, lkey: 0 }
    }

    /// Takes a buffer back from the NIC.
    pub(super) fn take_back(&mut self, addr: u64) -> Option<Vec<u8>> {
        self.in_flight.remove(&addr)
    }

    fn insert(&mut self, memory: Registered, len: usize) -> ModelRegion {
        self.next_rkey += 1;
        self.regions.insert(self.next_rkey, memory);
        ModelRegion { rkey: self.next_rkey, len: len as u64 }
    }

    pub(super) fn register_ring(&mut self, len: u32) -> ModelRegion {
        let len = len as usize;
        self.insert(Registered::Ring { bytes: vec![UNUSED; len], unread: vec![0; len] }, len)
    }

    /// Registers a message or an exposed region.
    pub(super) fn register(&mut self, bytes: Vec<u8>) -> ModelRegion {
        let len = bytes.len();
        self.insert(Registered::Message(bytes), len)
    }

    /// Marks all messages as registered for an earlier lane.
    pub(super) fn invalidate_messages(&mut self) {
        for memory in self.regions.values_mut() {
            if let Registered::Message(bytes) = memory {
                *memory = Registered::StaleMessage(std::mem::take(bytes));
            }
        }
    }

    /// Registers the memory of a message or an exposed region. A region that is registered already gets a new key.
    pub(super) fn register_payload(&mut self, payload: Payload<Vec<u8>, ModelRegion>) -> ModelRegion {
        let bytes = self.reclaim(payload);
        self.register(bytes)
    }

    /// Deregisters memory, and returns the bytes of a message.
    pub(super) fn release(&mut self, region: &ModelRegion) -> Vec<u8> {
        match self.regions.remove(&region.rkey) {
            Some(Registered::Message(bytes) | Registered::StaleMessage(bytes)) => bytes,
            Some(Registered::Ring { .. }) => Vec::new(),
            None => {
                self.violation = Some("a region was released twice");
                Vec::new()
            }
        }
    }

    /// Returns the bytes of a message, and deregisters its memory.
    pub(super) fn reclaim(&mut self, payload: Payload<Vec<u8>, ModelRegion>) -> Vec<u8> {
        match payload {
            Payload::Buf(bytes) => bytes,
            Payload::Region(region) => self.release(&region),
        }
    }
}

impl Memory for ProcessMemory {
    type Buf = Vec<u8>;
    type Region = ModelRegion;

    fn alloc(&mut self, len: usize) -> Option<Vec<u8>> {
        Some(vec![UNUSED; len])
    }

    fn read_ring(&mut self, ring: &ModelRegion, offset: u32, out: &mut Vec<u8>) {
        let range = offset as usize..offset as usize + out.len();
        if let Some(Registered::Ring { bytes, unread }) = self.regions.get_mut(&ring.rkey) {
            out.copy_from_slice(&bytes[range.clone()]);
            unread[range].fill(0);
        } else {
            self.violation = Some("a ring was read after its release");
        }
    }
}

fn range(remote: RemoteAddress, length: usize, size: usize) -> Option<std::ops::Range<usize>> {
    let start = remote.addr.checked_sub(REGION_BASE)? as usize;
    (start + length <= size).then_some(start..start + length)
}

impl NicMemory for ProcessMemory {
    fn read_local(&mut self, segment: Segment) -> Vec<u8> {
        self.in_flight.get(&segment.addr).cloned().unwrap_or_else(|| {
            self.violation = Some("the NIC read a buffer that was not in flight");
            vec![UNUSED; segment.length as usize]
        })
    }

    fn write_local(&mut self, segment: Segment, bytes: &[u8]) {
        match self.in_flight.get_mut(&segment.addr) {
            Some(buf) => buf[..bytes.len()].copy_from_slice(bytes),
            None => self.violation = Some("the NIC wrote a buffer that was not in flight"),
        }
    }

    fn read_remote(&mut self, remote: RemoteAddress, length: u32) -> Option<Vec<u8>> {
        match self.regions.get(&remote.rkey) {
            Some(Registered::Message(bytes)) => {
                Some(bytes[range(remote, length as usize, bytes.len())?].to_vec())
            }
            _ => {
                self.violation = Some("the peer read memory that was not registered");
                None
            }
        }
    }

    fn write_remote(&mut self, remote: RemoteAddress, bytes: &[u8]) -> Option<()> {
        let Some(Registered::Ring { bytes: ring, unread }) = self.regions.get_mut(&remote.rkey) else {
            self.violation = Some("the peer wrote memory that was not registered");
            return None;
        };
        let range = range(remote, bytes.len(), ring.len())?;
        if unread[range.clone()].contains(&1) {
            self.violation = Some("a place in the ring was overwritten before it was read");
        }
        ring[range.clone()].copy_from_slice(bytes);
        unread[range].fill(1);
        Some(())
    }
}

/// The memory as a device accesses it.
impl adverb_proto::memory::Memory for ProcessMemory {
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Fault> {
        let written = if span.storage == LOCAL_STORAGE {
            let (addr, offset) = split_local(span.offset);
            let buf = self.in_flight.get_mut(&addr);
            let target = buf.and_then(|buf| buf.get_mut(offset..offset + bytes.len()));
            target.map(|target| target.copy_from_slice(bytes))
        } else {
            let remote = RemoteAddress { addr: REGION_BASE + span.offset, rkey: span.storage.0 as u32 };
            self.write_remote(remote, bytes)
        };
        written.ok_or(Fault)
    }

    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), Fault> {
        let (bytes, start) = if span.storage == LOCAL_STORAGE {
            let (addr, offset) = split_local(span.offset);
            (self.in_flight.get(&addr), offset)
        } else {
            let bytes = self.regions.get(&(span.storage.0 as u32)).and_then(|region| match region {
                Registered::Message(bytes) => Some(bytes),
                Registered::Ring { .. } | Registered::StaleMessage(_) => None,
            });
            (bytes, span.offset as usize)
        };
        let bytes = bytes.and_then(|bytes| bytes.get(start..start + out.len())).ok_or(Fault)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn compare_swap(&mut self, _: Span, _: u64, _: u64) -> Result<u64, Fault> {
        Err(Fault)
    }

    fn fetch_add(&mut self, _: Span, _: u64) -> Result<u64, Fault> {
        Err(Fault)
    }

    fn write_word(&mut self, word: Span, bytes: [u8; 8]) -> Result<(), Fault> {
        adverb_proto::memory::Memory::write(self, word, &bytes)
    }

    fn flush(&mut self, _: Span, _: bool) -> Result<(), Fault> {
        Ok(())
    }
}

/// Returns the address of the lent buffer at an offset of [`LOCAL_STORAGE`], and the offset in this buffer.
fn split_local(offset: u64) -> (u64, usize) {
    (offset >> LOCAL_BITS, (offset & ((1 << LOCAL_BITS) - 1)) as usize)
}
