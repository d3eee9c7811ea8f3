//! Memory of the peer, and the places in it.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_net_proto::ExposedRegion;
use adverb_verbs::RemoteAddress;

use crate::access::{BY_ADDRESS, RemoteAccess};
use crate::error::RemoteErrorKind;

/// Memory that the peer exposes.
#[derive(Clone, Debug)]
pub(crate) struct PeerRegion {
    region: ExposedRegion,
    lane: u32,
    /// All regions with the same name share it.
    name: Arc<RegionName>,
}

/// The name of memory, which is empty if the memory is exposed at addresses.
#[derive(Debug)]
struct RegionName {
    name: Box<str>,
    /// Whether the peer has withdrawn the memory.
    is_withdrawn: AtomicBool,
}

impl PeerRegion {
    /// Returns memory that the peer has exposed over the lane of this number. `earlier` is the memory that had the same
    /// name before.
    pub(crate) fn new(
        name: &str,
        region: ExposedRegion,
        lane: u32,
        earlier: Option<&PeerRegion>,
    ) -> PeerRegion {
        let new = || Arc::new(RegionName { name: name.into(), is_withdrawn: AtomicBool::new(false) });
        let name = earlier.map_or_else(new, |earlier| Arc::clone(&earlier.name));
        PeerRegion { region, lane, name }
    }

    /// Returns the name of the memory, which is empty if the memory is exposed at addresses.
    pub(crate) fn name(&self) -> &str {
        &self.name.name
    }

    /// Returns the operations that the peer permits.
    pub(crate) fn access(&self) -> RemoteAccess {
        RemoteAccess::from_bits(self.region.rights & !BY_ADDRESS)
    }

    /// Records that the peer has withdrawn the memory.
    pub(crate) fn set_withdrawn(&self) {
        self.name.is_withdrawn.store(true, Ordering::Relaxed);
    }

    /// Checks that the peer has not withdrawn the memory. Otherwise its device would reject the request, which ends the
    /// connection.
    pub(crate) fn check_exposed(&self, peer: SocketAddr) -> Result<(), RemoteErrorKind> {
        match self.name.is_withdrawn.load(Ordering::Relaxed) {
            true => Err(RemoteErrorKind::Withdrawn { peer, name: self.name().into() }),
            false => Ok(()),
        }
    }

    /// Returns the number of the lane over which the peer has exposed the memory.
    pub(crate) fn lane(&self) -> u32 {
        self.lane
    }

    /// Returns the length of the memory in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.region.len
    }

    /// Whether the memory is exposed at addresses.
    pub(crate) fn is_by_address(&self) -> bool {
        self.region.rights & BY_ADDRESS != 0
    }

    /// Returns the offsets of these addresses, if the memory contains all of them.
    pub(crate) fn offsets(&self, addresses: &Range<u64>) -> Option<Range<u64>> {
        let start = addresses.start.checked_sub(self.region.addr)?;
        let end = addresses
            .end
            .checked_sub(self.region.addr)
            .filter(|end| start <= *end && *end <= self.region.len)?;
        Some(start..end)
    }

    /// Returns the remote address of a range, if it is within the memory and permitted. Otherwise the peer's device
    /// would reject the request, which ends the connection.
    pub(crate) fn remote_addr(
        &self,
        offset: u64,
        len: usize,
        access: RemoteAccess,
    ) -> Result<RemoteAddress, RemoteErrorKind> {
        if !self.access().contains(access) {
            let name = (!self.is_by_address()).then(|| self.name().into());
            return Err(RemoteErrorKind::NotPermitted { name, access });
        }
        let (len, size) = (len as u64, self.region.len);
        match offset.checked_add(len) {
            Some(end) if end <= size => {
                Ok(RemoteAddress { addr: self.region.addr.wrapping_add(offset), rkey: self.region.rkey })
            }
            _ => Err(RemoteErrorKind::OutOfBounds { offset, len, size }),
        }
    }

    /// Returns the remote address of the word at an offset.
    pub(crate) fn word_addr(&self, offset: u64) -> Result<RemoteAddress, RemoteErrorKind> {
        if !offset.is_multiple_of(8) {
            return Err(RemoteErrorKind::Unaligned { offset });
        }
        self.remote_addr(offset, 8, RemoteAccess::ATOMIC)
    }

    /// Returns the [remote address](PeerRegion::remote_addr) of a range of offsets, and the range's length.
    pub(crate) fn range_addr(
        &self,
        range: &Range<u64>,
        access: RemoteAccess,
    ) -> Result<(RemoteAddress, usize), RemoteErrorKind> {
        let len = range.end.checked_sub(range.start).and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or(RemoteErrorKind::InvalidRange { start: range.start, end: range.end })?;
        Ok((self.remote_addr(range.start, len, access)?, len))
    }
}
