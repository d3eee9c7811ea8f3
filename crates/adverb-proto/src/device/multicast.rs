//! Multicast groups and their attached queue pairs (vol. 1, 10.5; `rxe_mcast.c`).

use core::fmt;
use std::collections::HashMap;

use adverb_wire::{Operation, Packet, Qpn};

use super::Device;
use crate::Time;
use crate::memory::Memory;
use crate::mutation::mutant;
use crate::path::{IcrcChecker, RxMeta};
use crate::qp::Received;
use crate::trace::{DropReason, EventSink};
use crate::types::{Gid, Transport};

/// The groups that queue pairs are attached to.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The slots of each group's queue pairs.
    members: HashMap<Gid, Vec<u32>>,
    icrc_checker: IcrcChecker,
}

impl Groups {
    pub(super) fn detach_all(&mut self, slot: u32, groups: &[Gid]) {
        for group in groups {
            self.detach(slot, *group);
        }
    }

    fn detach(&mut self, slot: u32, group: Gid) {
        if let Some(members) = self.members.get_mut(&group) {
            members.retain(|member| *member != slot);
            if members.is_empty() {
                self.members.remove(&group);
            }
        }
    }

    /// Returns the number of groups that have attached queue pairs.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }
}

impl<S: EventSink> Device<S> {
    /// Attaches a datagram queue pair to a multicast group. Any number of queue pairs can be attached to one group. The
    /// caller must configure the link to receive the group's packets.
    ///
    /// A datagram to a group is sent to the group's address and [`Qpn::MULTICAST`], with the queue key that all members
    /// of the group share. The link decides whether queue pairs of the sender's device receive the datagram.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair does not exist, is not UD or is attached already, or if the address is not a
    /// multicast address.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), MulticastError> {
        if !group.is_multicast() {
            return Err(MulticastError::NotMulticast);
        }
        let slot = self.slot(qpn).ok_or(MulticastError::UnknownQp)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else { return Err(MulticastError::UnknownQp) };
        if qp.config.transport != Transport::Ud {
            return Err(MulticastError::UnsupportedTransport(qp.config.transport));
        }
        if qp.groups.contains(&group) {
            return Err(MulticastError::AlreadyAttached);
        }
        qp.groups.push(group);
        self.groups.members.entry(group).or_default().push(slot);
        Ok(())
    }

    /// Detaches a queue pair from a multicast group. Destroying a queue pair also detaches it.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair does not exist or is not attached to the group.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), MulticastError> {
        let slot = self.slot(qpn).ok_or(MulticastError::UnknownQp)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else { return Err(MulticastError::UnknownQp) };
        let position = qp.groups.iter().position(|attached| *attached == group);
        qp.groups.swap_remove(position.ok_or(MulticastError::NotAttached)?);
        self.groups.detach(slot, group);
        Ok(())
    }

    /// Whether any queue pair is attached to the group.
    pub fn has_multicast_members(&self, group: Gid) -> bool {
        self.groups.members.contains_key(&group)
    }

    /// Delivers a datagram to every queue pair that is attached to its group (vol. 1, 10.5.2). Drops a packet that was
    /// sent to a group's address but not to [`Qpn::MULTICAST`].
    pub(super) fn handle_multicast(
        &mut self,
        now: Time,
        rx_meta: &RxMeta,
        received: Received<'_>,
        packet: Option<&Packet<'_>>,
        memory: &mut impl Memory,
    ) {
        let header = received.header;
        let qpn = header.dest_qp;
        let group = Gid::from(rx_meta.destination.ip());
        if qpn != Qpn::MULTICAST {
            return self.drop_packet(now, qpn, header, DropReason::WrongAddress);
        }
        if !matches!(header.operation, Operation::Ud(_)) {
            return self.drop_packet(now, qpn, header, DropReason::WrongTransport);
        }
        if !self.has_multicast_members(group) {
            return self.drop_packet(now, qpn, header, DropReason::NoMulticastMember);
        }
        if let Some(packet) = packet
            && !self.groups.icrc_checker.is_intact(rx_meta, packet)
        {
            return self.drop_packet(now, qpn, header, DropReason::WrongIcrc);
        }
        let mut index = usize::from(mutant!(MulticastSkipsOneMember));
        // The group is looked up again for each member, because delivering borrows the device.
        while let Some(slot) = self.groups.members.get(&group).and_then(|members| members.get(index)).copied()
        {
            index += 1;
            let Some(qp) = self.qps[slot as usize].as_ref() else { continue };
            if !qp.can_receive() {
                self.drop_packet(now, qp.qpn, header, DropReason::WrongState);
            } else if !qp.is_in_partition(header.pkey) {
                self.drop_packet(now, qp.qpn, header, DropReason::WrongPkey);
            } else {
                self.deliver(now, slot, rx_meta, received, memory);
            }
        }
    }
}

/// The error of attaching a queue pair to a multicast group, or detaching it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MulticastError {
    /// The queue pair does not exist.
    UnknownQp,
    /// The queue pair is not UD.
    UnsupportedTransport(Transport),
    /// The address is not a multicast address.
    NotMulticast,
    /// The queue pair is already attached to the group.
    AlreadyAttached,
    /// The queue pair is not attached to the group.
    NotAttached,
}

impl fmt::Display for MulticastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MulticastError::UnknownQp => f.write_str("the queue pair does not exist"),
            MulticastError::UnsupportedTransport(transport) => {
                write!(f, "{transport} queue pairs do not support multicast: use UD")
            }
            MulticastError::NotMulticast => {
                f.write_str("not a multicast address: use one in 224.0.0.0/4 or ff00::/8")
            }
            MulticastError::AlreadyAttached => f.write_str("the queue pair is already attached to the group"),
            MulticastError::NotAttached => f.write_str("the queue pair is not attached to the group"),
        }
    }
}

impl core::error::Error for MulticastError {}
