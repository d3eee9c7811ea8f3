//! Multicast groups of UD queue pairs.

use adverb_proto::explain::Call;
use adverb_proto::types::Gid;
use adverb_sys::ibv_gid;

use super::{QueuePair, check, unsupported};
use crate::error::{Feature, Result};

impl QueuePair {
    pub(in crate::backend) fn attach_multicast(&self, group: Gid, lid: u16) -> Result<()> {
        let (handle, gid) = (self.live_handle()?, ibv_gid::from(group.bytes()));
        // SAFETY: the queue pair exists, and the GID can be read.
        let code = unsafe { self.domain.device.library.ibv_attach_mcast(handle, &gid, lid) };
        let name = &self.domain.device.name;
        check(Call::Multicast, code, || {
            format!("attaching queue pair {} of {name} to the multicast group {}", self.qpn, group.ip())
        })
        .map_err(|error| unsupported(error, Feature::Multicast, name))
    }

    pub(in crate::backend) fn detach_multicast(&self, group: Gid, lid: u16) -> Result<()> {
        let (handle, gid) = (self.live_handle()?, ibv_gid::from(group.bytes()));
        // SAFETY: the queue pair exists, and the GID can be read.
        let code = unsafe { self.domain.device.library.ibv_detach_mcast(handle, &gid, lid) };
        check(Call::Multicast, code, || {
            format!("detaching queue pair {} from the multicast group {}", self.qpn, group.ip())
        })
    }
}
