//! The registered memory of one of the two processes. It is kept between cases, because registration is slow.

use adverb::memory::{Buffer, MemoryRegion};
use adverb::verbs::{Access, ProtectionDomain};
use anyhow::{Context, Result, ensure};

use super::Port;
use super::message::Batch;
use crate::fixture::{ALL, READ_WRITE, check_equal, pattern, read};

/// The size of the memory for the peer.
const MEMORY_LEN: usize = 2 << 20;

/// The number of bytes after the slots that are checked, too.
const MARGIN: usize = 4096;

/// Memory for the peer, and buffers for requests.
pub(super) struct Store {
    pub(super) domain: ProtectionDomain,
    pub(super) memory: MemoryRegion,
    /// The number of bytes at the start that may not be 0.
    used: usize,
    buffers: Vec<Buffer>,
}

impl Store {
    pub(super) fn new(port: &Port) -> Result<Store> {
        let attributes = port.device.attributes();
        let access = if attributes.has_atomics { ALL } else { READ_WRITE };
        let access = if attributes.has_memory_windows { access | Access::WINDOW_BIND } else { access };
        let access = if attributes.flush.global { access | Access::FLUSH_GLOBAL } else { access };
        let domain = port.device.create_protection_domain()?;
        let memory = domain.allocate_region(MEMORY_LEN, access)?;
        Ok(Store { domain, memory, used: 0, buffers: Vec::new() })
    }

    /// Returns a buffer of this length, with any contents.
    pub(super) fn take(&mut self, len: usize) -> Result<Buffer> {
        let fits = |buffer: &Buffer| buffer.capacity() >= len;
        let mut buffer = match self.buffers.iter().position(fits) {
            Some(place) => self.buffers.swap_remove(place),
            None => self.domain.allocate_buffer(len.next_power_of_two().max(MARGIN))?,
        };
        buffer.set_range(0..len)?;
        Ok(buffer)
    }

    /// Keeps a buffer for reuse.
    pub(super) fn keep(&mut self, buffer: Option<Buffer>) {
        self.buffers.extend(buffer);
    }

    /// Clears the slots of a batch, and some bytes after them.
    pub(super) fn clear(&mut self, batch: &Batch) -> Result<()> {
        ensure!(batch.span() <= self.memory.len(), "the batch exceeds the memory");
        self.memory.write(0, &vec![0; self.used])?;
        self.used = (batch.span() + MARGIN).min(self.memory.len());
        Ok(())
    }

    /// Writes the messages of a batch to their slots.
    pub(super) fn write(&mut self, batch: &Batch) -> Result<()> {
        for index in 0..batch.count {
            self.memory.write(batch.offset_of(index), &pattern(batch.len as usize, batch.seed_of(index)))?;
        }
        Ok(())
    }

    /// Returns the messages of a batch that are complete in memory. Messages that `may_lack` packets must consist of
    /// complete packets of `mtu` bytes. All other bytes must be 0.
    pub(super) fn find(&self, batch: &Batch, mtu: usize, may_lack: impl Fn(u32) -> bool) -> Result<Vec<u32>> {
        let seen = read(&self.memory, 0, self.used)?;
        let mut expected = vec![0; seen.len()];
        let mut whole = Vec::new();
        for index in 0..batch.count {
            let at = batch.offset_of(index);
            let message = pattern(batch.len as usize, batch.seed_of(index));
            let slot = seen.get(at..at + message.len()).context("the batch has no such slot")?;
            if slot == message {
                whole.push(index);
                expected[at..at + message.len()].copy_from_slice(&message);
            } else if may_lack(index) {
                for (place, packet) in message.chunks(mtu).enumerate() {
                    let at = at + place * mtu;
                    if seen[at..at + packet.len()] == *packet {
                        expected[at..at + packet.len()].copy_from_slice(packet);
                    }
                }
            } else {
                check_equal(slot, &message).with_context(|| format!("message {index} in memory"))?;
            }
        }
        check_equal(&seen, &expected).context("memory as a whole")?;
        Ok(whole)
    }
}
