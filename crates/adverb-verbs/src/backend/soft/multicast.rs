//! Multicast groups of UD queue pairs.

use adverb_proto::explain::Call;
use adverb_proto::types::Gid;

use super::{QueuePair, nic_error};
use crate::error::Result;

impl QueuePair {
    pub(in crate::backend) fn attach_multicast(&self, group: Gid, _lid: u16) -> Result<()> {
        self.check_not_destroyed()?;
        let attached = self.domain.device.nic.attach_multicast(self.qpn, group);
        attached.map_err(|error| {
            nic_error(
                Call::Multicast,
                error,
                format!("attaching queue pair {} to the multicast group {}", self.qpn, group.ip()),
            )
        })
    }

    pub(in crate::backend) fn detach_multicast(&self, group: Gid, _lid: u16) -> Result<()> {
        self.check_not_destroyed()?;
        let detached = self.domain.device.nic.detach_multicast(self.qpn, group);
        detached.map_err(|error| {
            nic_error(
                Call::Multicast,
                error,
                format!("detaching queue pair {} from the multicast group {}", self.qpn, group.ip()),
            )
        })
    }
}
