//! Memory that this side exposes to the peer, and its withdrawal.

use std::sync::Arc;

use adverb_net_proto::{MAX_NAME_LEN, RegisterMemory};
use adverb_verbs::memory::{Memory, MemoryRegion};
use parking_lot::MutexGuard;

use super::region::{Region, Revocation, remote_rights};
use super::send::refused;
use super::{Core, Driver, abort};
use crate::access::RemoteAccess;
use crate::error::{ConnectionError, ExposeError, SendErrorKind};
use crate::shared_region::{Attempt, Exposer, MissingRegistration, SharedRegion};

/// Memory that is exposed, and possibly not announced to the peer yet. Dropping it withdraws the memory, unless the
/// announcement is complete: the caller of a call that fails or is canceled may have no handle to the memory.
pub(crate) struct Announcement<'a> {
    driver: &'a Driver,
    /// The number of the region.
    number: u64,
    /// Whether the memory is registered for other connections, too.
    is_shared: bool,
    /// The numbers of the write with the frame and of the last window before it, once they are known.
    sent: Option<(u64, u64)>,
    is_complete: bool,
}

impl Announcement<'_> {
    /// Keeps the memory exposed, and returns the number of the region. The connection announces it while calls use the
    /// connection.
    pub(crate) fn detach(mut self) -> u64 {
        self.is_complete = true;
        self.number
    }
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            // Memory that only this connection has registered is deregistered, which ends the access without a window.
            self.driver.withdraw_if(self.is_shared, |number, _, _| number == self.number);
        }
    }
}

impl Driver {
    /// Registers new memory, and exposes it.
    pub(crate) fn expose(
        &self,
        name: &str,
        len: usize,
        access: RemoteAccess,
    ) -> Result<(MemoryRegion, Announcement<'_>), ExposeError> {
        self.check_name(&self.lock(), name)?;
        let region = Region::allocate(&self.lane(), len, remote_rights(access));
        let region = region.map_err(|error| ExposeError::memory(self.peer, error))?;
        let memory = region.memory.clone();
        Ok((memory, self.announce(&mut self.lock(), Some(name), region, access.bits())?))
    }

    /// Registers memory, and exposes it at the addresses from `base`.
    pub(crate) fn expose_addresses(
        &self,
        base: u64,
        memory: impl Memory,
        access: RemoteAccess,
    ) -> Result<(MemoryRegion, Announcement<'_>), ExposeError> {
        let region = Region::at(&self.lane(), base, memory, remote_rights(access));
        let region = region.map_err(|error| ExposeError::memory(self.peer, error))?;
        let memory = region.memory.clone();
        Ok((memory, self.announce(&mut self.lock(), None, region, access.bits_by_address())?))
    }

    /// Exposes memory that other connections expose, too. Registers it first if that is necessary, which takes long.
    pub(crate) fn expose_region(
        self: &Arc<Self>,
        name: &str,
        shared: &SharedRegion,
        access: RemoteAccess,
    ) -> Result<Announcement<'_>, ExposeError> {
        loop {
            match self.try_expose_region(name, shared, access)? {
                Ok(announcement) => return Ok(announcement),
                Err(missing) => missing.register_or_wait(self.peer)?,
            }
        }
    }

    /// Exposes memory that other connections expose, too. Returns the registration that is needed first, unless it exists.
    /// After a reconnect, the connection may need another registration.
    pub(crate) fn try_expose_region(
        self: &Arc<Self>,
        name: &str,
        shared: &SharedRegion,
        access: RemoteAccess,
    ) -> Result<Result<Announcement<'_>, MissingRegistration>, ExposeError> {
        self.check_name(&self.lock(), name)?;
        if shared.is_withdrawn() {
            return Err(ExposeError::Withdrawn);
        }
        let lane = self.lane();
        let Some(domain) = &lane.shared else {
            return Err(ExposeError::UnsharedDomain { peer: self.peer });
        };
        let region = Region::shared(&lane, domain, shared, remote_rights(access));
        let region = match region.map_err(|error| ExposeError::memory(self.peer, error))? {
            Ok(region) => region,
            Err(missing) => return Ok(Err(missing)),
        };
        let peer = Arc::downgrade(self);
        shared.add_peer(peer);
        let mut core = self.lock();
        // If the region is withdrawn after this check, the withdrawal finds this connection.
        if shared.is_withdrawn() {
            return Err(ExposeError::Withdrawn);
        }
        self.announce(&mut core, Some(name), region, access.bits()).map(Ok)
    }

    fn announce(
        &self,
        core: &mut MutexGuard<'_, Core>,
        name: Option<&str>,
        region: Region,
        rights: u8,
    ) -> Result<Announcement<'_>, ExposeError> {
        let is_shared = region.is_shared();
        let exposed = match name.map(|name| self.check_name(core, name)) {
            Some(Err(error)) => Err((error, region)),
            _ => core
                .connection
                .expose(name.unwrap_or_default(), region, rights)
                .map_err(|(refusal, region)| (refused(core, refusal).into(), region)),
        };
        let number = exposed.map_err(|(error, region)| {
            core.released.push(region);
            error
        });
        // Releases the region after an error, too: an ended connection has no other call that does.
        self.advance(core);
        Ok(Announcement { driver: self, number: number?, is_shared, sent: None, is_complete: false })
    }

    /// Checks the name of memory that is to be exposed.
    fn check_name(&self, core: &Core, name: &str) -> Result<(), ExposeError> {
        match name.len() {
            len if len > MAX_NAME_LEN => Err(ExposeError::NameTooLong { len, max: MAX_NAME_LEN }),
            _ if core.connection.is_exposed(name) => Err(ExposeError::NameInUse { peer: self.peer }),
            _ => Ok(()),
        }
    }

    /// Returns `Some` once the announcement of exposed memory is posted, and the window of the memory is bound: a
    /// withdrawal before that would fail the bind, and with it the lane.
    pub(crate) fn is_announced(
        &self,
        core: &mut Core,
        announcement: &mut Announcement<'_>,
    ) -> Result<Option<()>, SendErrorKind> {
        if announcement.sent.is_none() {
            // The end of a connection removes what it has not announced.
            self.check_ended(core)?;
            if core.connection.is_announced(announcement.number) {
                announcement.sent = Some((core.connection.last_write(), core.binds.last()));
            }
        }
        let posted = match announcement.sent {
            Some((write, bind)) if core.binds.are_complete(bind) => self.is_posted(core, write)?,
            _ => self.check_ended(core).map(|()| None)?,
        };
        announcement.is_complete |= posted.is_some();
        Ok(posted)
    }

    /// Polls the device. Returns whether the region with this number, and those before it, were announced, or the connection
    /// has ended.
    pub(crate) fn drive_announcements(&self, number: u64) -> bool {
        let mut core = self.lock();
        self.drive(&mut core);
        let connection = &core.connection;
        connection.is_announced(number) && connection.is_posted(connection.last_write())
            || connection.end_reason().is_some()
    }

    /// Withdraws the memory that is exposed under a name. Returns whether there was any.
    pub(crate) fn withdraw(&self, name: &str) -> bool {
        self.withdraw_if(true, |_, exposed, _| exposed == Some(name))
    }

    /// Withdraws exposed memory. Ends the lane if the device fails to end the access, or if `ends_lane` is set and nothing
    /// else ends it. The access through windows has ended when the lock is released, so a concurrent withdrawal that finds
    /// nothing returns no earlier.
    fn withdraw_if(
        &self,
        ends_lane: bool,
        mut is_withdrawn: impl FnMut(u64, Option<&str>, Option<&Region>) -> bool,
    ) -> bool {
        if !self.is_owned() {
            return false;
        }
        let mut core = self.lock();
        // Requests that bound windows hold registrations until they are polled.
        self.drive(&mut core);
        let (mut is_found, mut is_registered, mut has_failed) = (false, false, false);
        let is_known = core.connection.withdraw(|number, name, region| {
            let is_withdrawn = is_withdrawn(number, name, region);
            if is_withdrawn {
                is_found = true;
                let revocation = region.map_or(Revocation::Registered, Region::revoke);
                is_registered |= revocation == Revocation::Registered;
                has_failed |= revocation == Revocation::Failed;
            }
            is_withdrawn
        });
        if has_failed || is_known && is_registered && ends_lane {
            core.note_failure(|peer| ConnectionError::MemoryWithdrawn { peer });
            if core.connection.session().is_none() {
                abort(&mut core);
            }
            self.update_time(&mut core);
            let now = core.now;
            core.connection.handle_lane_failed(now);
        }
        self.advance(&mut core);
        is_found
    }
}

impl Exposer for Driver {
    fn withdraw_region(&self, shared: &SharedRegion) {
        self.withdraw_if(false, |_, _, region| region.is_some_and(|region| region.is_part_of(shared)));
    }

    fn handle_registration_attempt(&self, attempt: &Attempt<'_>) {
        if !self.is_owned() {
            return;
        }
        let mut core = self.lock();
        let Some((id, missing)) = core.missing.take() else { return };
        if missing.is_attempted(attempt)
            && let Some(error) = attempt.error()
        {
            core.note_failure(|peer| ConnectionError::Device { peer, source: Arc::clone(error) });
            core.connection.handle_register_failed(id, RegisterMemory::Ring { len: 0 });
        } else {
            // It may wait for another registration of the region.
            core.missing = Some((id, missing));
        }
        core.has_changes = true;
        self.advance(&mut core);
    }
}
