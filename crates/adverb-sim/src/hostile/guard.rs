//! Memory that checks each access against the current packet's rights.

use std::cell::RefCell;

use adverb_proto::memory::{Fault, Memory, Pd, Registration, Span, StorageId};
use adverb_proto::types::Access;
use adverb_wire::{Operation, Rc, Uc};

/// Memory that checks the engine: the current packet must permit every access.
#[derive(Debug, Default)]
pub(super) struct Guard {
    areas: Vec<Area>,
    /// The rights of the current packet; `None` permits no access.
    pub(super) rights: Option<PacketRights>,
    /// Whether memory accesses fail currently.
    pub(super) is_failing: bool,
    violation: RefCell<Option<String>>,
    /// The number of permitted writes, atomics and flushes.
    pub(super) access_count: u64,
}

/// A memory region and its bytes. Each has its own storage.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) key: u32,
    pub(super) pd: Pd,
    pub(super) registration: Registration,
    /// Whether the region is registered and its key is valid.
    pub(super) valid: bool,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PacketRights {
    /// The protection domain of the queue pair.
    pub(super) pd: Pd,
    /// The remote access rights of the queue pair.
    pub(super) access: Access,
    /// The access of the operation.
    pub(super) access_kind: AccessKind,
}

/// The memory access of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AccessKind {
    /// A write of received or read data into segments.
    Scatter,
    /// An RDMA WRITE.
    Write,
    /// An atomic.
    Atomic,
    /// An atomic write of eight bytes.
    WriteWord,
    /// A flush.
    Flush(Access),
    /// A read of the data to send.
    Gather,
    /// An RDMA READ.
    Read,
}

impl AccessKind {
    /// Returns the memory access of a received packet, if any.
    pub(super) fn of(operation: &Operation) -> Option<AccessKind> {
        match operation {
            Operation::Rc(rc) => match rc {
                Rc::Send(_) | Rc::SendLastInvalidate(_) | Rc::SendOnlyInvalidate(_) => {
                    Some(AccessKind::Scatter)
                }
                Rc::ReadResponse(_) | Rc::AtomicAcknowledge(..) => Some(AccessKind::Scatter),
                Rc::Write(_) => Some(AccessKind::Write),
                Rc::CompareSwap(_) | Rc::FetchAdd(_) => Some(AccessKind::Atomic),
                Rc::AtomicWrite(_) => Some(AccessKind::WriteWord),
                Rc::Flush(flush) => {
                    let mut need = Access::empty();
                    need.set(Access::FLUSH_GLOBAL, flush.global);
                    need.set(Access::FLUSH_PERSISTENT, flush.persistent);
                    Some(AccessKind::Flush(need))
                }
                Rc::ReadRequest(_) | Rc::Acknowledge(_) => None,
            },
            Operation::Uc(Uc::Send(_)) | Operation::Ud(_) => Some(AccessKind::Scatter),
            Operation::Uc(Uc::Write(_)) => Some(AccessKind::Write),
            Operation::Cnp => None,
        }
    }

    /// Returns the memory access of a sent packet.
    pub(super) fn of_sent(operation: &Operation) -> AccessKind {
        if matches!(operation, Operation::Rc(Rc::ReadResponse(_))) {
            AccessKind::Read
        } else {
            AccessKind::Gather
        }
    }

    /// Returns the required right of the region, and whether the queue pair must also have it.
    fn need(self) -> (Access, bool) {
        match self {
            AccessKind::Scatter => (Access::LOCAL_WRITE, false),
            AccessKind::Gather => (Access::empty(), false),
            AccessKind::Write | AccessKind::WriteWord => (Access::REMOTE_WRITE, true),
            AccessKind::Atomic => (Access::REMOTE_ATOMIC, true),
            AccessKind::Read => (Access::REMOTE_READ, true),
            AccessKind::Flush(need) => (need, true),
        }
    }
}

impl Guard {
    /// Returns the storage of the next region.
    pub(super) fn next_storage(&self) -> StorageId {
        StorageId(self.areas.len() as u64)
    }

    pub(super) fn add(&mut self, key: u32, pd: Pd, registration: Registration) {
        let bytes = vec![0x5a; registration.length as usize];
        self.areas.push(Area { key, pd, registration, valid: true, bytes });
    }

    /// Returns all regions, including deregistered ones.
    pub(super) fn areas(&self) -> &[Area] {
        &self.areas
    }

    pub(super) fn invalidate(&mut self, key: u32) {
        for area in self.areas.iter_mut().filter(|area| area.key == key) {
            area.valid = false;
        }
    }

    /// Deregisters a region.
    pub(super) fn remove(&mut self, index: usize) {
        self.areas[index].valid = false;
        self.areas[index].key = 0;
        self.areas[index].bytes = Vec::new();
    }

    /// Returns the first violation, if any.
    pub(super) fn violation(&self) -> Option<String> {
        self.violation.borrow().clone()
    }

    fn check(&self, span: Span, kinds: &[AccessKind]) -> Result<(), Fault> {
        let wrong = match self.areas.get(span.storage.0 as usize) {
            None => "the memory region does not exist",
            Some(area) => {
                let end = span.offset.checked_add(u64::from(span.length));
                match self.rights {
                    None => "no packet permits access",
                    Some(rights) if !kinds.iter().any(|kind| same_kind(*kind, rights.access_kind)) => {
                        "the packet does not permit this access"
                    }
                    Some(_) if !area.valid => "the memory region is deregistered or invalidated",
                    Some(rights) if area.pd != rights.pd => {
                        "the memory region belongs to another protection domain"
                    }
                    Some(_) if end.is_none_or(|end| end > area.registration.length) => "out of bounds",
                    Some(PacketRights { access, access_kind, .. }) => {
                        let (need, of_both) = access_kind.need();
                        if !area.registration.access.contains(need) {
                            "the memory region does not have the access right"
                        } else if of_both && !access.contains(need) {
                            "the queue pair does not have the access right"
                        } else {
                            return if self.is_failing { Err(Fault) } else { Ok(()) };
                        }
                    }
                }
            }
        };
        let what = format!("access to {span:?} under {:?}: {wrong}", self.rights);
        self.violation.borrow_mut().get_or_insert(what);
        Err(Fault)
    }

    fn bytes(&mut self, span: Span) -> &mut [u8] {
        self.access_count += 1;
        let bytes = &mut self.areas[span.storage.0 as usize].bytes;
        &mut bytes[span.offset as usize..][..span.length as usize]
    }

    fn word(&mut self, span: Span, kind: AccessKind) -> Result<&mut [u8; 8], Fault> {
        self.check(span, &[kind])?;
        if span.length != 8 {
            self.violation.borrow_mut().get_or_insert(format!("{span:?} is not 8 bytes long"));
        }
        self.bytes(span).first_chunk_mut().ok_or(Fault)
    }
}

fn same_kind(a: AccessKind, b: AccessKind) -> bool {
    core::mem::discriminant(&a) == core::mem::discriminant(&b)
}

impl Memory for Guard {
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Fault> {
        self.check(span, &[AccessKind::Scatter, AccessKind::Write])?;
        if span.length as usize != bytes.len() {
            self.violation
                .borrow_mut()
                .get_or_insert(format!("{span:?} and its bytes have different lengths"));
            return Err(Fault);
        }
        self.bytes(span).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), Fault> {
        self.check(span, &[AccessKind::Gather, AccessKind::Read])?;
        let bytes = &self.areas[span.storage.0 as usize].bytes;
        out.copy_from_slice(&bytes[span.offset as usize..][..span.length as usize]);
        Ok(())
    }

    fn compare_swap(&mut self, word: Span, compare: u64, swap: u64) -> Result<u64, Fault> {
        let word = self.word(word, AccessKind::Atomic)?;
        let old = u64::from_ne_bytes(*word);
        if old == compare {
            *word = swap.to_ne_bytes();
        }
        Ok(old)
    }

    fn fetch_add(&mut self, word: Span, add: u64) -> Result<u64, Fault> {
        let word = self.word(word, AccessKind::Atomic)?;
        let old = u64::from_ne_bytes(*word);
        *word = old.wrapping_add(add).to_ne_bytes();
        Ok(old)
    }

    fn write_word(&mut self, word: Span, bytes: [u8; 8]) -> Result<(), Fault> {
        *self.word(word, AccessKind::WriteWord)? = bytes;
        Ok(())
    }

    fn flush(&mut self, span: Span, _persistent: bool) -> Result<(), Fault> {
        self.check(span, &[AccessKind::Flush(Access::empty())])?;
        self.access_count += 1;
        Ok(())
    }
}
