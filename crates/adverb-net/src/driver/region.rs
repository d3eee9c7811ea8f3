//! Registered memory that the peer may access: the ring, rendezvous messages, and exposed memory.
//!
//! If the connection shares its protection domain with others, the memory is registered without remote rights, and a
//! window that is bound on the lane's queue pair grants the peer its access. So no other peer can use the key.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use adverb_net_proto::MAX_NAME_LEN;
use adverb_verbs::internal::{WindowAccess, bind_whole};
use adverb_verbs::memory::{Memory, MemoryRegion, PoolBuf, RemoteMemory};
use adverb_verbs::{Access, Completion, Device, MemoryWindow, PostError, Result};

use super::{Core, Lane, LaneState};
use crate::access::RemoteAccess;
use crate::domains::SharedDomain;
use crate::error::BindError;
use crate::options::Options;
use crate::shared_region::{Exposure, MissingRegistration, SharedRegion, SharedUse};

/// The maximum number of requests in flight that bind windows. The send queue of a lane with windows has room for them.
pub(super) const MAX_BINDS: usize = 16;
/// The last byte of the tags of requests that bind windows. No [`Tag`](adverb_net_proto::Tag) has this number.
const BIND: u64 = 0xff;

/// Registered memory, which the peer may access.
pub(super) struct Region {
    pub(super) memory: MemoryRegion,
    /// The remote rights of the peer.
    access: Access,
    grant: Grant,
    /// The use of the shared region whose memory this is. It ends after the access.
    shared: Option<SharedUse>,
}

/// The origin of the peer's access.
enum Grant {
    /// The registration has the rights.
    Registration,
    /// The window must be bound first.
    Unbound(MemoryWindow),
    Window(BoundWindow),
}

/// A window that is bound, or being bound. Dropping it ends the access.
struct BoundWindow {
    access: WindowAccess,
    /// Filled when the bind has completed.
    _window: Arc<OnceLock<MemoryWindow>>,
}

impl BoundWindow {
    /// Frees the window. Returns `false` if the device fails to do that.
    fn revoke(&self) -> bool {
        #[cfg(all(test, feature = "soft", not(loom)))]
        if FAILING_REVOCATION.take() {
            return false;
        }
        self.access.revoke()
    }
}

impl Drop for BoundWindow {
    fn drop(&mut self) {
        // If the device fails to free the window, it does not deregister the memory either, which is then never freed.
        let _ = self.revoke();
    }
}

/// The result of revoking the access to a region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Revocation {
    /// The peer has no access.
    Revoked,
    /// The peer has access as long as the memory is registered.
    Registered,
    /// The device did not free the window, so the peer may have access until the queue pair is destroyed.
    Failed,
}

#[cfg(all(test, feature = "soft", not(loom)))]
thread_local! {
    static FAILING_REVOCATION: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `work`, in which the first revocation on this thread fails.
#[cfg(all(test, feature = "soft", not(loom)))]
pub(crate) fn with_revocation_failure<T>(work: impl FnOnce() -> T) -> T {
    FAILING_REVOCATION.set(true);
    let result = work();
    assert!(!FAILING_REVOCATION.take(), "no window was revoked");
    result
}

/// The windows of a lane whose binds are in flight.
#[derive(Default)]
pub(super) struct Binds {
    in_flight: Vec<(u64, Weak<OnceLock<MemoryWindow>>)>,
    last: u64,
    /// The number of calls that are registering memory without the connection's lock, and then bind a window.
    pub(super) reserved: usize,
}

impl Binds {
    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() + self.reserved < MAX_BINDS
    }

    /// Returns the number of the last bind.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Whether no bind up to this number is in flight.
    pub(super) fn are_complete(&self, last: u64) -> bool {
        self.in_flight.iter().all(|(number, _)| *number > last)
    }

    /// Forgets the binds of a lane that has no requests in flight.
    pub(super) fn clear(&mut self) {
        self.in_flight.clear();
    }

    /// Takes the window of a bind that has succeeded. It is freed if nothing needs it any more.
    fn complete(&mut self, wr_id: u64, completion: Completion) {
        let Some(index) = self.in_flight.iter().position(|(number, _)| *number == wr_id >> 8) else { return };
        let (_, slot) = self.in_flight.swap_remove(index);
        if let (Some(slot), Some(window)) = (slot.upgrade(), completion.into_window()) {
            // The slot is filled once.
            let _ = slot.set(window);
        }
    }
}

impl adverb_net_proto::Region for Region {
    fn remote(&self) -> RemoteMemory {
        match &self.grant {
            Grant::Window(window) => window.access.remote(),
            Grant::Registration | Grant::Unbound(_) => self.memory.remote(),
        }
    }
}

impl Region {
    /// Registers memory with `register` for a lane, whose peer gets these remote rights.
    fn register(
        lane: &Lane,
        access: Access,
        local: Access,
        register: impl FnOnce(Access) -> Result<MemoryRegion>,
    ) -> Result<Region> {
        let grant = lane.grant()?;
        let memory = register(local | registered_access(lane.has_windows(), access))?;
        Ok(Region { memory, access, grant, shared: None })
    }

    /// Allocates and registers memory.
    pub(super) fn allocate(lane: &Lane, len: usize, access: Access) -> Result<Region> {
        let domain = lane.pool.protection_domain();
        Region::register(lane, access, Access::LOCAL_WRITE, |access| domain.allocate_region(len, access))
    }

    /// Registers memory at the addresses from `base`.
    pub(super) fn at(lane: &Lane, base: u64, memory: impl Memory, access: Access) -> Result<Region> {
        let domain = lane.pool.protection_domain();
        Region::register(lane, access, Access::LOCAL_WRITE, |access| domain.register_at(memory, base, access))
    }

    /// Registers a message, which the peer reads.
    pub(super) fn message(lane: &Lane, buffer: PoolBuf) -> Result<Region> {
        Region::register(lane, Access::REMOTE_READ, Access::empty(), |access| buffer.register(access))
    }

    /// Returns memory that many connections expose, if it is registered in the lane's shared domain. Otherwise returns the
    /// missing registration.
    pub(super) fn shared(
        lane: &Lane,
        domain: &Arc<SharedDomain>,
        shared: &SharedRegion,
        access: Access,
    ) -> Result<Result<Region, MissingRegistration>> {
        match shared.find_registration(domain, Region::shared_access(lane, access)) {
            Ok((memory, shared)) => {
                let grant = lane.grant()?;
                Ok(Ok(Region { memory, access, grant, shared: Some(shared) }))
            }
            Err(missing) => Ok(Err(missing)),
        }
    }

    /// Registers memory that many connections expose in the domain of a lane that has its own. Returns `None` if the
    /// memory was withdrawn from all peers.
    fn register_alone(lane: &Lane, shared: &SharedRegion, access: Access) -> Result<Option<Region>> {
        let grant = lane.grant()?;
        let registered = Region::shared_access(lane, access);
        let domain = lane.pool.protection_domain();
        let found = shared.register_alone(|memory| domain.register(memory, registered))?;
        Ok(found.map(|(memory, shared)| Region { memory, access, grant, shared: Some(shared) }))
    }

    /// Returns the rights with which a shared region is registered for these remote rights.
    fn shared_access(lane: &Lane, access: Access) -> Access {
        Access::LOCAL_WRITE | registered_access(lane.has_windows(), access)
    }

    /// Registers exposed memory for a lane, if it is not registered for it. Without a lock, because it may take long.
    /// Returns the missing registration of a shared region, which the caller registers without the region: the
    /// withdrawal from all peers must not wait for that.
    pub(super) fn register_for(&mut self, lane: &Lane) -> Result<Option<MissingRegistration>> {
        let domain = lane.pool.protection_domain();
        let is_registered = self.memory.protection_domain() == domain;
        let is_granted = match &self.grant {
            Grant::Unbound(window) => window.is_usable(),
            Grant::Registration => !lane.has_windows(),
            Grant::Window(_) => false,
        };
        // A region that was withdrawn from all peers is released next.
        if is_registered && is_granted || self.is_withdrawn() {
            return Ok(None);
        }
        let access = self.access;
        *self = match (&self.shared, &lane.shared) {
            (Some(shared), Some(domain)) => match Region::shared(lane, domain, shared.region(), access)? {
                Ok(region) => region,
                Err(missing) => return Ok(Some(missing)),
            },
            (Some(shared), None) => match Region::register_alone(lane, shared.region(), access)? {
                Some(region) => region,
                None => return Ok(None),
            },
            (None, _) => Region::register(lane, access, Access::LOCAL_WRITE, |access| {
                match is_registered && self.memory.access() == access {
                    true => Ok(self.memory.clone()),
                    false => self.memory.register_in(domain, access),
                }
            })?,
        };
        Ok(None)
    }

    /// Whether a window must be bound before the peer has access.
    pub(super) fn is_unbound(&self) -> bool {
        matches!(self.grant, Grant::Unbound(_))
    }

    /// Ends the access of the peer, if a window grants it.
    pub(super) fn revoke(&self) -> Revocation {
        match &self.grant {
            Grant::Registration => Revocation::Registered,
            Grant::Window(window) if !window.revoke() => Revocation::Failed,
            Grant::Window(_) | Grant::Unbound(_) => Revocation::Revoked,
        }
    }

    /// Whether the region is the memory of a shared region.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether the region is the memory of this shared region.
    pub(super) fn is_part_of(&self, shared: &SharedRegion) -> bool {
        self.shared.as_ref().is_some_and(|known| known.region() == shared)
    }

    /// Whether the memory was withdrawn from all peers.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.region().is_withdrawn())
    }

    /// Returns the buffer of a message, and ends the access to it.
    pub(super) fn reclaim(self) -> Option<PoolBuf> {
        let Region { memory, grant, .. } = self;
        drop(grant);
        memory.into_pool_buf().ok()
    }
}

/// Registers the regions that a listener at `address` exposes, before it accepts connections over a device.
pub(crate) fn register_exposures(
    device: &Device,
    address: SocketAddr,
    options: &Options,
    exposures: &[Exposure],
) -> Result<(), BindError> {
    let domain = options.shared_domain_of(device).map_err(|error| BindError::device(address, error))?;
    let Some(domain) = domain else { return Ok(()) };
    for Exposure { name, region, access } in exposures {
        if name.len() > MAX_NAME_LEN {
            return Err(BindError::RegionName { len: name.len(), max: MAX_NAME_LEN });
        }
        let access = registered_access(options.uses_windows(device), remote_rights(*access));
        let registered = region.registration(&domain, Access::LOCAL_WRITE | access);
        drop(registered.map_err(|error| BindError::region(name, error))?);
    }
    Ok(())
}

/// Returns the rights with which memory is registered for this remote access.
fn registered_access(has_windows: bool, access: Access) -> Access {
    if has_windows { Access::WINDOW_BIND } else { access }
}

impl Lane {
    /// Whether windows grant the peer its access.
    pub(super) fn has_windows(&self) -> bool {
        self.shared.is_some() && self.options.uses_windows(self.pool.protection_domain().device())
    }

    fn grant(&self) -> Result<Grant> {
        match self.has_windows() {
            true => Ok(Grant::Unbound(self.pool.protection_domain().create_memory_window()?)),
            false => Ok(Grant::Registration),
        }
    }
}

impl Core {
    /// Binds the window of a region on the queue pair of its lane, if it has a window that is not bound. Requests that
    /// are posted later are executed after the bind, so they may announce the key.
    pub(super) fn bind(&mut self, lane: &Arc<Lane>, region: &mut Region) {
        if !Arc::ptr_eq(&self.lane, lane) || self.lane_state != LaneState::Active || !region.is_unbound() {
            return;
        }
        let Grant::Unbound(window) = std::mem::replace(&mut region.grant, Grant::Registration) else {
            return;
        };
        let (request, access) = bind_whole(window, &region.memory, region.access);
        self.binds.last += 1;
        let number = self.binds.last;
        match lane.queue_pair.post_send(request.tag(number << 8 | BIND)) {
            Ok(_) => {
                let slot = Arc::default();
                self.binds.in_flight.push((number, Arc::downgrade(&slot)));
                debug_assert!(self.binds.in_flight.len() <= MAX_BINDS, "the send queue has no room");
                region.grant = Grant::Window(BoundWindow { access, _window: slot });
            }
            Err(PostError { error, .. }) => {
                self.note_device_failure(error);
                let now = self.now;
                self.connection.handle_lane_failed(now);
            }
        }
    }

    /// Handles the completion of a request that binds a window. Returns the completion if it is of another request.
    pub(super) fn handle_bind(&mut self, completion: Completion) -> Option<Completion> {
        let wr_id = completion.tag();
        if wr_id & 0xff != BIND {
            return Some(completion);
        }
        let is_ok = completion.is_ok();
        self.binds.complete(wr_id, completion);
        if !is_ok {
            let now = self.now;
            self.connection.handle_lane_failed(now);
        }
        None
    }
}

/// Returns the remote rights of an access.
pub(super) fn remote_rights(access: RemoteAccess) -> Access {
    access.access() & Access::REMOTE
}
