//! Memory of this process that many peers may access.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use adverb_verbs::memory::{Memory, MemoryRegion, SharedMemory};
use adverb_verbs::{Access, Result};
use parking_lot::Mutex;

use crate::access::RemoteAccess;
use crate::domains::SharedDomain;

/// Memory of this process that it exposes to many peers, with rights per peer.
///
/// The memory is registered once for each protection domain, and not for each connection. A
/// [listener](crate::blocking::ListenerBuilder::expose) exposes it to every peer, and
/// [`Connection::expose_region`](crate::blocking::Connection::expose_region) to one peer, with the access that this peer
/// needs. [`Connection::withdraw`](crate::blocking::Connection::withdraw) ends the access of one peer, and
/// [`withdraw`](SharedRegion::withdraw) that of all.
///
/// Peers may change the memory at any time, so it is never a `[u8]`: [`read`](SharedRegion::read) and
/// [`write`](SharedRegion::write) copy bytes. A clone is another handle to the same memory. The memory is freed when the
/// last handle is dropped, and no listener and no connection exposes it.
///
/// ```
/// use adverb::net::blocking::{Listener, connect};
/// use adverb::net::{RemoteAccess, SharedRegion};
///
/// let chunks = SharedRegion::allocate(1 << 20)?;
/// chunks.write(4096, b"a chunk")?;
/// let listener =
///     Listener::builder().expose("chunks", &chunks, RemoteAccess::READ).bind("127.0.0.1:0")?;
/// let address = listener.local_addr();
/// let server = std::thread::spawn(move || listener.accept());
///
/// let client = connect(address)?;
/// let region = client.remote_region("chunks")?;
/// assert_eq!(&region.read(4096..4103)?[..], b"a chunk");
/// # drop(server.join().unwrap()?);
/// # Ok::<(), adverb::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedRegion(Arc<Inner>);

struct Inner {
    memory: SharedMemory,
    is_withdrawn: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    registrations: Vec<Registration>,
    /// The connections that expose the memory, or have exposed it.
    peers: Vec<Weak<dyn Exposer>>,
}

/// A connection that exposes shared regions.
pub(crate) trait Exposer: Send + Sync {
    /// Ends the peer's access to a region that is withdrawn from all peers, and releases the registration.
    fn withdraw_region(&self, region: &SharedRegion);
}

/// The registration in a shared protection domain.
struct Registration {
    domain: Weak<SharedDomain>,
    access: Access,
    region: MemoryRegion,
}

impl SharedRegion {
    /// Allocates `len` bytes of zeros.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Allocation`](adverb_verbs::Error::Allocation) if there is not enough memory, or `len` is 0.
    pub fn allocate(len: usize) -> Result<SharedRegion> {
        SharedMemory::allocate(len).map(SharedRegion::with_memory)
    }

    /// Takes memory of the caller, such as [`Pages`](adverb_verbs::memory::Pages) in huge pages.
    pub fn new(memory: impl Memory) -> SharedRegion {
        SharedRegion::with_memory(SharedMemory::new(memory))
    }

    fn with_memory(memory: SharedMemory) -> SharedRegion {
        let (is_withdrawn, state) = (AtomicBool::new(false), Mutex::default());
        SharedRegion(Arc::new(Inner { memory, is_withdrawn, state }))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.memory.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.0.memory.is_empty()
    }

    /// Copies `bytes.len()` bytes at `offset` out of the memory.
    ///
    /// If a peer writes at the same time, each copied byte has either the old or the new value.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`](adverb_verbs::Error::OutOfBounds) if the bytes don't all lie in the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.0.memory.read(offset, bytes)
    }

    /// Copies bytes into the memory at `offset`.
    ///
    /// # Errors
    ///
    /// Returns the same error as [`read`](SharedRegion::read).
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.0.memory.write(offset, bytes)
    }

    /// Returns the 64-bit word at `offset`, in the byte order of this machine. Peers may change it with atomic
    /// operations.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OutOfBounds`](adverb_verbs::Error::OutOfBounds) if the word doesn't lie in the memory, and
    /// [`Error::Unaligned`](adverb_verbs::Error::Unaligned) if `offset` isn't a multiple of 8.
    pub fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.0.memory.word(offset)
    }

    /// Ends the access of all peers, and deregisters the memory. The peers have no access any more when the call returns.
    /// [`Connection::withdraw`](crate::blocking::Connection::withdraw) describes the effect on their operations in
    /// flight.
    ///
    /// The memory cannot be exposed again: listeners no longer expose it, and
    /// [`expose_region`](crate::blocking::Connection::expose_region) returns an error. This process can still use it.
    ///
    /// The call locks each connection that has exposed the memory for a short time, one after the other.
    pub fn withdraw(&self) {
        self.0.is_withdrawn.store(true, Ordering::SeqCst);
        let State { registrations, peers } = std::mem::take(&mut *self.0.state.lock());
        for peer in peers.iter().filter_map(Weak::upgrade) {
            peer.withdraw_region(self);
        }
        drop(registrations);
    }

    /// Whether the region was [withdrawn](SharedRegion::withdraw) from all peers.
    pub fn is_withdrawn(&self) -> bool {
        self.0.is_withdrawn.load(Ordering::SeqCst)
    }

    /// Returns the memory, for a registration that no other connection uses.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.0.memory
    }

    /// Returns the registration in a shared domain with these rights. The first call registers the memory.
    ///
    /// # Errors
    ///
    /// Returns the device's error if the memory can't be registered.
    pub(crate) fn registration(&self, domain: &Arc<SharedDomain>, access: Access) -> Result<MemoryRegion> {
        let mut state = self.0.state.lock();
        state.registrations.retain(|registration| registration.domain.strong_count() > 0);
        let mut known = state.registrations.iter();
        let is_same = |registration: &&Registration| {
            registration.access == access && Weak::as_ptr(&registration.domain) == Arc::as_ptr(domain)
        };
        if let Some(registration) = known.find(is_same) {
            return Ok(registration.region.clone());
        }
        let region = domain.pool.protection_domain().register(self.0.memory.clone(), access)?;
        if !self.is_withdrawn() {
            let (domain, region) = (Arc::downgrade(domain), region.clone());
            state.registrations.push(Registration { domain, access, region });
        }
        Ok(region)
    }

    /// Adds a connection that exposes the region.
    pub(crate) fn add_peer(&self, peer: Weak<dyn Exposer>) {
        let peers = &mut self.0.state.lock().peers;
        if peers.len() == peers.capacity() {
            peers.retain(|peer| peer.strong_count() > 0);
            // Half of the list is free, so that it is rarely searched.
            let open = peers.len();
            peers.reserve(open + 1);
        }
        peers.push(peer);
    }
}

/// Two handles are equal if they refer to the same memory.
impl PartialEq for SharedRegion {
    fn eq(&self, other: &SharedRegion) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedRegion {}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRegion").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A region that a listener exposes to its peers.
#[derive(Clone, Debug)]
pub(crate) struct Exposure {
    pub(crate) name: String,
    pub(crate) region: SharedRegion,
    pub(crate) access: RemoteAccess,
}
