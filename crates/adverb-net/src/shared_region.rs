//! Memory of this process that many peers may access.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use adverb_verbs::internal::OwnerProcess;
use adverb_verbs::memory::{Memory, MemoryRegion, SharedMemory};
use adverb_verbs::{Access, Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::access::RemoteAccess;
use crate::domains::SharedDomain;
use crate::error::ExposeError;

/// Memory of this process that it exposes to many peers, with rights per peer.
///
/// The memory is registered once for each protection domain, and not for each connection. A
/// [listener](crate::blocking::ListenerBuilder::expose_region) exposes it to every peer, and
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
///     Listener::builder().expose_region("chunks", &chunks, RemoteAccess::READ).bind("127.0.0.1:0")?;
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
    owner: OwnerProcess,
    is_withdrawn: AtomicBool,
    state: Mutex<State>,
    /// Notified when a registration attempt ends, and when the last [use](SharedUse) of a withdrawn region ends.
    changed: Condvar,
    /// Locked while the region is withdrawn from all peers.
    withdrawal: Mutex<()>,
    /// Called before the memory is registered.
    #[cfg(all(test, feature = "soft", not(loom)))]
    before_registering: Mutex<Option<BeforeRegistering>>,
}

#[cfg(all(test, feature = "soft", not(loom)))]
type BeforeRegistering = Arc<dyn Fn() -> Result<()> + Send + Sync>;

#[derive(Default)]
struct State {
    registrations: Vec<Registration>,
    /// The connections that expose the memory, or have exposed it, by their addresses. The weak reference keeps the
    /// address from being used again.
    peers: HashMap<usize, Weak<dyn Exposer>>,
    /// The number of [`SharedUse`]s.
    use_count: usize,
}

/// A connection that exposes shared regions.
pub(crate) trait Exposer: Send + Sync {
    /// Ends the peer's access to a region that is withdrawn from all peers, and releases the registration.
    fn withdraw_region(&self, region: &SharedRegion);

    /// Continues after an attempt to register a region, if the connection waits for it.
    fn handle_registration_attempt(&self, attempt: &Attempt<'_>);
}

/// The registration in a shared protection domain.
struct Registration {
    domain: Weak<SharedDomain>,
    access: Access,
    /// `None` while a thread registers the memory, without the lock.
    region: Option<MemoryRegion>,
}

impl Registration {
    fn is_for(&self, domain: &Arc<SharedDomain>, access: Access) -> bool {
        self.access == access && Weak::as_ptr(&self.domain) == Arc::as_ptr(domain)
    }
}

/// A registration of a shared region for one exposure. [`SharedRegion::withdraw`] waits until it is dropped, so its owner
/// does not keep it during calls that take long.
pub(crate) struct SharedUse(SharedRegion);

impl SharedUse {
    pub(crate) fn region(&self) -> &SharedRegion {
        &self.0
    }
}

impl Drop for SharedUse {
    fn drop(&mut self) {
        let Inner { state, changed, is_withdrawn, .. } = &*self.0.0;
        let mut state = state.lock();
        state.use_count -= 1;
        if state.use_count == 0 && is_withdrawn.load(Ordering::Relaxed) {
            changed.notify_all();
        }
    }
}

/// The registration that a connection needs, and does not have.
#[derive(Clone)]
pub(crate) struct MissingRegistration {
    region: SharedRegion,
    domain: Arc<SharedDomain>,
    access: Access,
}

impl MissingRegistration {
    /// Whether a thread is registering the memory.
    pub(crate) fn is_in_progress(&self) -> bool {
        let state = self.region.0.state.lock();
        let mut known = state.registrations.iter();
        known.any(|registration| {
            registration.is_for(&self.domain, self.access) && registration.region.is_none()
        })
    }

    /// Lets a thread register the memory, unless one is registering it. The end of the attempt lets the connections
    /// continue that wait for it.
    pub(crate) fn start(&self) {
        let mut state = self.region.0.state.lock();
        let is_known = state.registrations.iter().any(|known| known.is_for(&self.domain, self.access));
        if is_known || self.region.is_withdrawn() {
            return;
        }
        self.region.begin_registration(&mut state, &self.domain, self.access);
        drop(state);
        let missing = self.clone();
        let spawned =
            std::thread::Builder::new().name("adverb-register".to_owned()).spawn(move || missing.run());
        if spawned.is_err() {
            self.run();
        }
    }

    /// Registers the memory.
    fn run(&self) {
        let MissingRegistration { region, domain, access } = self;
        let mut attempt = Attempt { region, domain, access: *access, error: None };
        if let Err(error) = region.attempt(domain, *access) {
            attempt.error = Some(Arc::new(error));
        }
    }

    /// Whether an attempt to register memory is the one that this registration waits for.
    pub(crate) fn is_attempted(&self, attempt: &Attempt<'_>) -> bool {
        &self.region == attempt.region
            && Arc::ptr_eq(&self.domain, attempt.domain)
            && self.access == attempt.access
    }

    /// Registers the memory for a connection to `peer`, or waits until another thread has registered it.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory can't be registered, or was withdrawn from all peers.
    pub(crate) fn register_or_wait(&self, peer: SocketAddr) -> Result<(), ExposeError> {
        match self.region.registration(&self.domain, self.access) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(ExposeError::Withdrawn),
            Err(error) => Err(ExposeError::memory(peer, error)),
        }
    }
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
        SharedRegion(Arc::new(Inner {
            memory,
            owner: OwnerProcess::current(),
            is_withdrawn: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            withdrawal: Mutex::default(),
            #[cfg(all(test, feature = "soft", not(loom)))]
            before_registering: Mutex::default(),
        }))
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
    /// The call locks each connection that has exposed the memory for a short time, one after the other. If two threads
    /// withdraw the region at the same time, both calls return when the peers have no access. The call does not wait for a
    /// registration in progress: no peer has a key of it, and its memory is deregistered when it is complete.
    pub fn withdraw(&self) {
        // In a forked child, the connections are those of the parent.
        if !self.0.owner.is_current() {
            return self.0.is_withdrawn.store(true, Ordering::SeqCst);
        }
        let _withdrawal = self.0.withdrawal.lock();
        let (registrations, peers) = {
            let mut state = self.0.state.lock();
            // Under the lock, so that no registration is added later.
            self.0.is_withdrawn.store(true, Ordering::SeqCst);
            (std::mem::take(&mut state.registrations), std::mem::take(&mut state.peers))
        };
        self.0.changed.notify_all();
        for peer in peers.values().filter_map(Weak::upgrade) {
            peer.withdraw_region(self);
        }
        drop(registrations);
        // Another thread may be dropping a connection, or releasing a registration without the connection's lock.
        let mut state = self.0.state.lock();
        while state.use_count > 0 {
            self.0.changed.wait(&mut state);
        }
    }

    /// Whether the region was [withdrawn](SharedRegion::withdraw) from all peers.
    pub fn is_withdrawn(&self) -> bool {
        self.0.is_withdrawn.load(Ordering::SeqCst)
    }

    /// Returns the registration in a shared domain with these rights. The first call registers the memory, without a
    /// lock. Calls that need the same registration meanwhile wait for it, so a thread of a runtime uses
    /// [`find_registration`](SharedRegion::find_registration). Returns `None` if the region was withdrawn from all peers.
    ///
    /// # Errors
    ///
    /// Returns the device's error if the memory can't be registered.
    pub(crate) fn registration(
        &self,
        domain: &Arc<SharedDomain>,
        access: Access,
    ) -> Result<Option<(MemoryRegion, SharedUse)>> {
        // The registrations of domains that have ended are dropped after the guard of the lock.
        let _ended;
        let mut state = self.0.state.lock();
        let is_live = |registration: &Registration| registration.domain.strong_count() > 0;
        let known = std::mem::take(&mut state.registrations);
        (state.registrations, _ended) = known.into_iter().partition::<Vec<_>, _>(is_live);
        loop {
            if self.is_withdrawn() {
                return Ok(None);
            }
            let mut known = state.registrations.iter();
            match known.find(|known| known.is_for(domain, access)).map(|known| known.region.clone()) {
                Some(Some(region)) => return Ok(Some((region, self.begin_use(&mut state)))),
                Some(None) => self.0.changed.wait(&mut state),
                None => break,
            }
        }
        self.begin_registration(&mut state, domain, access);
        drop(state);
        let attempt = Attempt { region: self, domain, access, error: None };
        let is_registered = self.attempt(domain, access).map(|registered| registered.is_some());
        // A withdrawal waits for the use of a registration, so none exists while the connections are notified.
        drop(attempt);
        if is_registered? { self.registration(domain, access) } else { Ok(None) }
    }

    /// Adds a registration. The caller drops the lock, and then [attempts](SharedRegion::attempt) it.
    fn begin_registration(&self, state: &mut State, domain: &Arc<SharedDomain>, access: Access) {
        state.registrations.push(Registration { domain: Arc::downgrade(domain), access, region: None });
    }

    /// Registers the memory, without a lock. Returns `None` if the region was withdrawn from all peers meanwhile.
    fn attempt(
        &self,
        domain: &Arc<SharedDomain>,
        access: Access,
    ) -> Result<Option<(MemoryRegion, SharedUse)>> {
        #[cfg(all(test, feature = "soft", not(loom)))]
        self.call_before_registering()?;
        let region = domain.pool.protection_domain().register(self.0.memory.clone(), access)?;
        let mut state = self.0.state.lock();
        let Some(known) = state.registrations.iter_mut().find(|known| known.is_for(domain, access)) else {
            // The region is deregistered without the lock.
            drop(state);
            return Ok(None);
        };
        known.region = Some(region.clone());
        let shared_use = self.begin_use(&mut state);
        Ok(Some((region, shared_use)))
    }

    /// Returns the registration in a shared domain with these rights, if there is one. Never waits for a registration in
    /// progress.
    pub(crate) fn find_registration(
        &self,
        domain: &Arc<SharedDomain>,
        access: Access,
    ) -> Result<(MemoryRegion, SharedUse), MissingRegistration> {
        let mut state = self.0.state.lock();
        let mut known = state.registrations.iter();
        match known.find(|known| known.is_for(domain, access)).and_then(|known| known.region.clone()) {
            Some(region) => Ok((region, self.begin_use(&mut state))),
            None => Err(MissingRegistration { region: self.clone(), domain: Arc::clone(domain), access }),
        }
    }

    /// Registers the memory in a domain that no other connection uses. Returns `None` if the region was withdrawn from all
    /// peers.
    pub(crate) fn register_alone(
        &self,
        register: impl FnOnce(SharedMemory) -> Result<MemoryRegion>,
    ) -> Result<Option<(MemoryRegion, SharedUse)>> {
        let region = register(self.0.memory.clone())?;
        let mut state = self.0.state.lock();
        if self.is_withdrawn() {
            // The region is deregistered without the lock.
            drop(state);
            return Ok(None);
        }
        let shared_use = self.begin_use(&mut state);
        Ok(Some((region, shared_use)))
    }

    fn begin_use(&self, state: &mut State) -> SharedUse {
        state.use_count += 1;
        SharedUse(self.clone())
    }

    /// Adds a connection that exposes the region.
    pub(crate) fn add_peer(&self, peer: Weak<dyn Exposer>) {
        let peers = &mut self.0.state.lock().peers;
        if peers.len() == peers.capacity() {
            peers.retain(|_, peer| peer.strong_count() > 0);
            // Half of the map is free, so that it is rarely searched.
            peers.reserve(peers.len() + 1);
        }
        peers.insert(Weak::as_ptr(&peer).addr(), peer);
    }
}

#[cfg(all(test, feature = "soft", not(loom)))]
impl SharedRegion {
    /// Sets a function that each registration calls first.
    pub(crate) fn set_before_registering(&self, before: impl Fn() -> Result<()> + Send + Sync + 'static) {
        *self.0.before_registering.lock() = Some(Arc::new(before));
    }

    fn call_before_registering(&self) -> Result<()> {
        let before = self.0.before_registering.lock().clone();
        before.map_or(Ok(()), |before| before())
    }

    /// Returns the number of connections that the region knows.
    pub(crate) fn peer_count(&self) -> usize {
        self.0.state.lock().peers.len()
    }
}

/// An attempt to register the memory. Its end lets the callers and the connections continue that wait for it.
pub(crate) struct Attempt<'a> {
    region: &'a SharedRegion,
    domain: &'a Arc<SharedDomain>,
    access: Access,
    /// The error, if no caller returns it.
    error: Option<Arc<Error>>,
}

impl Attempt<'_> {
    /// Returns the error of the device, if the connections that wait for the registration end with it.
    pub(crate) fn error(&self) -> Option<&Arc<Error>> {
        self.error.as_ref()
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let Inner { state, changed, .. } = &*self.region.0;
        let peers = {
            let mut state = state.lock();
            let is_failed =
                |known: &Registration| known.is_for(self.domain, self.access) && known.region.is_none();
            // No memory is deregistered here: a failed attempt has no region.
            state.registrations.retain(|known| !is_failed(known));
            state.peers.values().cloned().collect::<Vec<_>>()
        };
        changed.notify_all();
        // One connection at a time is kept alive: the drop of its last handle must end it.
        for peer in peers {
            if let Some(peer) = peer.upgrade() {
                peer.handle_registration_attempt(self);
            }
        }
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
