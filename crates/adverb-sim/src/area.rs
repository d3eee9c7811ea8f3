//! Registered memory with its initial content.

use adverb_proto::EventSink;
use adverb_proto::memory::{Pd, Registration, RemoteInvalidate, StorageId};
use adverb_proto::types::{Access, RemoteAddress, Segment};

use crate::Random;
use crate::node::Node;

/// The length of the guard after each region, which must stay unchanged.
pub(crate) const GUARD: usize = 64;

/// A memory region and its guard.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) device: usize,
    pub(crate) storage: StorageId,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) length: u32,
    /// The initial bytes, including the guard.
    pub(crate) initial: Vec<u8>,
}

impl<A, S: EventSink> Node<A, S> {
    /// Creates an area of this node, whose index is `index`.
    pub(crate) fn create_area(
        &mut self,
        index: usize,
        random: &mut Random,
        pd: Pd,
        length: u32,
        access: Access,
    ) -> Area {
        let initial = random.bytes(length as usize + GUARD);
        let storage = self.memory.add(initial.clone());
        let addr = (random.u64() >> 16) & !0xfff | 0x1000;
        let mut area = Area { device: index, storage, key: 0, addr, length, initial };
        area.key = self.register_area(random, pd, &area, access, RemoteInvalidate::Denied);
        area
    }

    /// Registers an area. An area can be registered several times, with different rights.
    pub(crate) fn register_area(
        &mut self,
        random: &mut Random,
        pd: Pd,
        area: &Area,
        access: Access,
        remote_invalidate: RemoteInvalidate,
    ) -> u32 {
        let registration = Registration {
            addr: area.addr,
            length: u64::from(area.length),
            access,
            storage: area.storage,
            remote_invalidate,
        };
        self.register(random, pd, registration)
    }
}

impl Area {
    pub(crate) fn segment(&self, offset: u32, length: u32) -> Segment {
        Segment { addr: self.addr + u64::from(offset), length, lkey: self.key }
    }

    pub(crate) fn remote_address(&self, offset: u32) -> RemoteAddress {
        RemoteAddress { addr: self.addr + u64::from(offset), rkey: self.key }
    }
}
