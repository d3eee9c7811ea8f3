//! The multicast groups of a NIC.

use std::io;

use adverb_proto::types::Gid;

use super::Engine;

/// The multicast groups that the link has joined.
#[derive(Default)]
pub(super) struct Groups(Vec<Gid>);

impl Engine {
    /// Makes the link join a multicast group, if it has not joined the group yet.
    pub(in crate::nic) fn join(&mut self, group: Gid) -> io::Result<()> {
        let groups = &mut self.groups.0;
        if self.port.has_link() && !groups.contains(&group) {
            self.port.join(group.ip())?;
            groups.push(group);
        }
        Ok(())
    }

    /// Makes the link leave the multicast groups that have no members.
    pub(in crate::nic) fn leave(&mut self) {
        let Engine { device, port, groups, .. } = self;
        groups.0.retain(|group| {
            let has_members = device.has_multicast_members(*group);
            if !has_members {
                port.leave(group.ip());
            }
            has_members
        });
    }
}
