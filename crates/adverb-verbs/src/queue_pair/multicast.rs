//! Multicast: datagrams to all members of a group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adverb_proto::explain::Call;
use adverb_proto::types::{Gid, GidEntry, GidType, LinkLayer, Qpn, Transport};

use super::QueuePair;
use crate::backend;
use crate::device::{Traffic, UdDestination};
use crate::error::{Error, Feature, Result, WithCauses, call_failed};
use crate::logging::log_without_unwinding;

/// The groups that a queue pair belongs to. Dropping the queue pair leaves them.
#[derive(Default)]
pub(crate) struct Memberships(Mutex<Vec<Membership>>);

struct Membership {
    group: Gid,
    lid: u16,
    /// The socket that keeps the group joined in the kernel's IP stack, which announces the membership to the network.
    _ip: Option<UdpSocket>,
}

impl QueuePair {
    /// Joins a multicast group, on RoCE: the queue pair receives datagrams that are sent to this address with the
    /// queue pair's queue key, including those of other queue pairs on this machine, until it
    /// [leaves](QueuePair::leave_multicast) the group or is dropped.
    ///
    /// The group is joined at the device and, as any IP program does, on the network interface (IGMP or MLD), because
    /// many switches forward only groups that have been joined. Linux soft-RoCE also requires the membership of the
    /// interface.
    ///
    /// ```no_run
    /// # use adverb::verbs::{QueuePair, SendRequest};
    /// # fn example(member: &QueuePair, sender: &QueuePair) -> Result<(), Box<dyn std::error::Error>> {
    /// let group = "239.1.2.3".parse()?;
    /// member.join_multicast(group)?;
    /// let members = sender.create_multicast_destination(group, 0x1234)?;
    /// let hello = sender.protection_domain().allocate_buffer(5)?;
    /// sender.post_send(SendRequest::send(hello).destination(&members))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if `group` isn't a multicast address of the queue pair's address family, or
    /// if the queue pair isn't a UD queue pair or is already a member; [`Error::Unsupported`] on InfiniBand, where
    /// the subnet manager manages groups: see [`attach_multicast`](QueuePair::attach_multicast); and [`Error::CallFailed`]
    /// if the network interface or the device rejects the membership.
    pub fn join_multicast(&self, group: IpAddr) -> Result<()> {
        let gid = self.group_gid(group)?;
        let ip = match &self.source.gid.netdev {
            Some(netdev) => Some(join_ip(group, &self.source.gid, netdev).map_err(|error| {
                let action = format!("joining the multicast group {group} on {netdev}");
                call_failed(Call::Multicast, action, error)
            })?),
            // The interface may be in another network namespace, where another program must join the group.
            None => None,
        };
        self.attach(gid, 0, ip)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue pair isn't a member, and [`Error::CallFailed`] if the operation fails.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<()> {
        self.detach_multicast(self.group_gid(group)?, 0)
    }

    /// Creates the destination for datagrams to all members of a group, on RoCE. The sender need not be a member.
    /// `qkey` is the queue key of the members' queue pairs.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if `group` isn't a multicast address of the queue pair's address family,
    /// [`Error::Unsupported`] on InfiniBand, and [`Error::CallFailed`] if the operation fails.
    pub fn create_multicast_destination(&self, group: IpAddr, qkey: u32) -> Result<UdDestination> {
        let address = self.route(self.group_gid(group)?, 0, Traffic::new())?;
        Ok(UdDestination { address_handle: address, qpn: Qpn::MULTICAST, qkey })
    }

    /// Attaches the queue pair to a multicast group at the device only, without joining on the network interface. This
    /// method is for programs that join the group separately: on InfiniBand, with the subnet manager. `lid` is the
    /// group's local identifier, assigned by the subnet manager; it is 0 on RoCE.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if `group` isn't the GID of a multicast group, or if the queue pair isn't a
    /// UD queue pair or is already attached, and [`Error::CallFailed`] if the operation fails.
    pub fn attach_multicast(&self, group: Gid, lid: u16) -> Result<()> {
        self.attach(group, lid, None)
    }

    /// Detaches the queue pair from a multicast group.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the queue pair isn't attached, and [`Error::CallFailed`] if the operation fails.
    pub fn detach_multicast(&self, group: Gid, lid: u16) -> Result<()> {
        let mut memberships = self.datagrams.memberships.lock();
        let is_same = |membership: &Membership| membership.group == group && membership.lid == lid;
        let Some(index) = memberships.iter().position(is_same) else {
            let reason = format!("the queue pair is not a member of the multicast group {}", group.ip());
            return Err(Error::InvalidRequest { reason: reason.into() });
        };
        self.backend.detach_multicast(group, lid)?;
        drop(memberships.swap_remove(index));
        Ok(())
    }

    fn attach(&self, group: Gid, lid: u16, ip: Option<UdpSocket>) -> Result<()> {
        let reject = |reason: String| Err(Error::InvalidRequest { reason: reason.into() });
        if self.transport != Transport::Ud {
            return reject("only UD queue pairs can join a multicast group".to_owned());
        }
        if !group.is_multicast() {
            return reject(format!("{} is not a multicast address", group.ip()));
        }
        let mut memberships = self.datagrams.memberships.lock();
        if memberships.iter().any(|membership| membership.group == group && membership.lid == lid) {
            return reject(format!(
                "the queue pair is already a member of the multicast group {}",
                group.ip()
            ));
        }
        self.backend.attach_multicast(group, lid)?;
        memberships.push(Membership { group, lid, _ip: ip });
        Ok(())
    }

    /// Returns the GID of a group, computed as in `cma_iboe_set_mgid` of the kernel's cma.c, so that it reaches members
    /// that joined with the connection manager.
    fn group_gid(&self, group: IpAddr) -> Result<Gid> {
        if self.source.port.link_layer != LinkLayer::Ethernet {
            return Err(self.domain.unsupported(Feature::MulticastByIp));
        }
        let reject = |reason: String| Err(Error::InvalidRequest { reason: reason.into() });
        if !group.is_multicast() {
            return reject(format!("{group} is not a multicast address"));
        }
        let local = self.source.gid.gid.udp_addr().ip();
        if group.is_ipv4() != local.is_ipv4() {
            return reject(format!(
                "the multicast group {group} and the queue pair's address {local} have different IP versions: create the \
                 queue pair with a `local_addr` of the group's version"
            ));
        }
        let mut bytes = Gid::from(group).bytes();
        if group.is_ipv4() && self.source.gid.gid_type == GidType::RoceV1 {
            [bytes[0], bytes[1]] = [0xff, 0x0e];
        }
        Ok(Gid::new(bytes))
    }
}

impl Memberships {
    fn lock(&self) -> MutexGuard<'_, Vec<Membership>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves all groups, because a member of a group can't be destroyed.
    pub(super) fn leave_all(&self, queue_pair: &backend::QueuePair) {
        for Membership { group, lid, .. } in self.lock().drain(..) {
            if let Err(error) = queue_pair.detach_multicast(group, lid) {
                log_without_unwinding(
                    || tracing::error!(error = %WithCauses(&error), %group, "leaving a multicast group failed"),
                );
            }
        }
    }
}

/// Joins a group at the IP layer, on the network interface of a GID.
fn join_ip(group: IpAddr, gid: &GidEntry, netdev: &str) -> std::io::Result<UdpSocket> {
    match (group, gid.gid.udp_addr().ip()) {
        (IpAddr::V4(group), IpAddr::V4(local)) => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v4(&group, &local)?;
            Ok(socket)
        }
        (IpAddr::V6(group), _) => {
            let index = std::fs::read_to_string(format!("/sys/class/net/{netdev}/ifindex"))?;
            let index = index.trim().parse().map_err(std::io::Error::other)?;
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.join_multicast_v6(&group, index)?;
            Ok(socket)
        }
        _ => Err(std::io::ErrorKind::InvalidInput.into()),
    }
}
