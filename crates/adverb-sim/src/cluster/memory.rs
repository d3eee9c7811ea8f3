//! The memory of a member, as its application and its NIC access it.

use adverb_cluster_proto::BrokerConfig;
use adverb_proto::types::{RemoteAddress, RemoteMemory, Segment};

use crate::rc_model::NicMemory;

/// The number of bytes that each peer may write and read in a member's exposed memory: 64, and two words for atomics.
pub(super) const AREA: usize = 80;
/// The size of a local buffer of a transfer.
pub(super) const BUFFER: usize = 64;

/// The maximum number of registered segments of a member, including withdrawn ones.
pub(super) const MAX_SEGMENTS: usize = 4;

/// The content of a local buffer that belongs to no transfer, and of memory that belongs to no segment.
const UNUSED: u8 = 0xdd;

/// A member's memory: the exposed areas, the segments, the message slots, and the buffers of transfers.
#[derive(Debug)]
pub(super) struct MemberMemory {
    bytes: Vec<u8>,
    key: u32,
    /// The size of the exposed areas, and of a segment.
    exposed: usize,
    /// The registered segments, by the position of their memory after the exposed areas.
    segments: [Option<Registered>; MAX_SEGMENTS],
    /// The offset of the message slots.
    slots: usize,
    slots_per_peer: usize,
    slot_size: usize,
    send_slots: usize,
    /// The offset of the buffers.
    buffers: usize,
    /// Whether a transfer uses each buffer.
    in_use: Vec<bool>,
    free: Vec<usize>,
    /// The first invalid access.
    pub(super) violation: Option<String>,
}

/// A registered segment.
#[derive(Clone, Copy, Debug)]
struct Registered {
    number: u32,
    rkey: u32,
}

/// The flag of the remote keys of segments.
const SEGMENT_KEY: u32 = 1 << 31;

/// Returns the remote key of a member's segment in an epoch.
fn segment_key(member: usize, epoch: u64, number: u32) -> u32 {
    SEGMENT_KEY | (member as u32) << 27 | (epoch as u32 & 0xff) << 19 | number & 0x7_ffff
}

impl MemberMemory {
    pub(super) fn new(config: &BrokerConfig, member_count: usize, key: u32, fill: u64) -> MemberMemory {
        let exposed = member_count * AREA;
        let slot_size = config.slot_size as usize;
        let slots_per_peer = usize::from(config.send_slots) + usize::from(config.recv_queue_depth());
        let slots = (1 + MAX_SEGMENTS) * exposed;
        let buffers = slots + member_count * slots_per_peer * slot_size;
        let buffer_count =
            member_count * (usize::from(config.queue_depth) + usize::from(config.send_queue_depth));
        let mut bytes = vec![UNUSED; buffers + buffer_count * BUFFER];
        for (index, byte) in bytes[..exposed].iter_mut().enumerate() {
            *byte = (fill.rotate_left(index as u32) >> 7) as u8;
        }
        MemberMemory {
            bytes,
            key,
            exposed,
            segments: [None; MAX_SEGMENTS],
            slots,
            slots_per_peer,
            slot_size,
            send_slots: usize::from(config.send_slots),
            buffers,
            in_use: vec![false; buffer_count],
            free: (0..buffer_count).rev().collect(),
            violation: None,
        }
    }

    /// Returns the range of `len` bytes at `offset` in a peer's area.
    pub(super) fn remote_range(&self, peer: usize, offset: usize, len: usize) -> RemoteMemory {
        RemoteMemory { addr: (peer * AREA + offset) as u64, rkey: self.key, len: len as u64 }
    }

    /// Returns the bytes of a peer's area.
    pub(super) fn area(&self, peer: usize) -> &[u8] {
        &self.bytes[peer * AREA..(peer + 1) * AREA]
    }

    /// Registers memory for a segment. Returns `None` if the memory of all segments is in use.
    pub(super) fn register(
        &mut self,
        member: usize,
        epoch: u64,
        number: u32,
        fill: u64,
    ) -> Option<RemoteMemory> {
        let place = self.segments.iter().position(Option::is_none)?;
        let rkey = segment_key(member, epoch, number);
        self.segments[place] = Some(Registered { number, rkey });
        let start = (1 + place) * self.exposed;
        for (index, byte) in self.bytes[start..start + self.exposed].iter_mut().enumerate() {
            *byte = (fill.rotate_left(index as u32) >> 7) as u8;
        }
        Some(RemoteMemory { addr: start as u64, rkey, len: self.exposed as u64 })
    }

    /// Deregisters a segment, and frees its memory for another one. Returns `false` if it is not registered.
    pub(super) fn deregister(&mut self, number: u32) -> bool {
        let Some(place) = self.place(number) else { return false };
        self.segments[place] = None;
        let start = (1 + place) * self.exposed;
        self.bytes[start..start + self.exposed].fill(UNUSED);
        true
    }

    fn place(&self, number: u32) -> Option<usize> {
        self.segments.iter().position(|segment| segment.is_some_and(|segment| segment.number == number))
    }

    /// Whether a segment has this key.
    pub(super) fn is_registered(&self, rkey: u32) -> bool {
        self.segments.iter().flatten().any(|segment| segment.rkey == rkey)
    }

    /// Returns the bytes of a peer's area in a segment, if the segment is registered.
    pub(super) fn segment_area(&self, number: u32, peer: usize) -> Option<&[u8]> {
        let start = (1 + self.place(number)?) * self.exposed + peer * AREA;
        Some(&self.bytes[start..start + AREA])
    }

    pub(super) fn send_slot(&self, peer: usize, index: u16, length: u32) -> Segment {
        let slot = peer * self.slots_per_peer + usize::from(index);
        Segment { addr: (self.slots + slot * self.slot_size) as u64, length, lkey: 0 }
    }

    pub(super) fn recv_slot(&self, peer: usize, index: u16) -> Segment {
        self.send_slot(peer, self.send_slots as u16 + index, self.slot_size as u32)
    }

    pub(super) fn bytes(&self, segment: Segment) -> &[u8] {
        let start = segment.addr as usize;
        &self.bytes[start..start + segment.length as usize]
    }

    /// Writes bytes of the application.
    pub(super) fn write(&mut self, segment: Segment, bytes: &[u8]) {
        let start = segment.addr as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Takes a buffer for a transfer.
    pub(super) fn take_buffer(&mut self, length: usize) -> Option<Segment> {
        let index = self.free.pop()?;
        self.in_use[index] = true;
        Some(Segment { addr: (self.buffers + index * BUFFER) as u64, length: length as u32, lkey: 0 })
    }

    /// Frees the buffer of a transfer that ended, and overwrites it, so that a later access of the NIC is detected.
    pub(super) fn put_buffer(&mut self, segment: Segment) {
        let index = (segment.addr as usize - self.buffers) / BUFFER;
        self.in_use[index] = false;
        self.free.push(index);
        let start = self.buffers + index * BUFFER;
        self.bytes[start..start + BUFFER].fill(UNUSED);
    }

    fn check_buffer(&mut self, segment: Segment) {
        let Some(offset) = (segment.addr as usize).checked_sub(self.buffers) else { return };
        if !self.in_use[offset / BUFFER] && self.violation.is_none() {
            self.violation = Some("the NIC accessed the buffer of a ticket that had ended".to_owned());
        }
    }

    fn check_remote(&mut self, remote: RemoteAddress, length: usize) -> Option<usize> {
        let start = remote.addr as usize;
        let has_key =
            |segment: &Option<Registered>| segment.is_some_and(|segment| segment.rkey == remote.rkey);
        let place = self.segments.iter().position(has_key).map(|place| 1 + place);
        let place = place.or_else(|| (remote.rkey == self.key).then_some(0));
        let is_valid = place.is_some_and(|place| {
            start >= place * self.exposed && start + length <= (1 + place) * self.exposed
        });
        if !is_valid && self.violation.is_none() {
            let what = match place {
                Some(_) => "an invalid range",
                None if remote.rkey & SEGMENT_KEY != 0 => "the key of a segment that was deregistered",
                None => "a stale epoch",
            };
            self.violation = Some(format!("access with {what}"));
        }
        is_valid.then_some(start)
    }
}

impl NicMemory for MemberMemory {
    fn read_local(&mut self, segment: Segment) -> Vec<u8> {
        self.check_buffer(segment);
        self.bytes(segment).to_vec()
    }

    fn write_local(&mut self, segment: Segment, bytes: &[u8]) {
        self.check_buffer(segment);
        self.write(segment, bytes);
    }

    fn read_remote(&mut self, remote: RemoteAddress, length: u32) -> Option<Vec<u8>> {
        let start = self.check_remote(remote, length as usize)?;
        Some(self.bytes[start..start + length as usize].to_vec())
    }

    fn write_remote(&mut self, remote: RemoteAddress, bytes: &[u8]) -> Option<()> {
        let start = self.check_remote(remote, bytes.len())?;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Some(())
    }
}
