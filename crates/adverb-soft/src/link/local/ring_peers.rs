//! The option that says with which processes a link has rings.

/// The processes with which a link exchanges packets through rings in shared memory instead of over UDP. tcpdump and firewalls
/// don't see these packets.
///
/// The receiver decides: a link with [`None`](RingPeers::None) gets all packets over UDP, and sends all its packets over UDP. Two
/// links have rings only if both may have them. Until the receiver has opened the ring, and always if it can't, packets travel
/// over UDP. Messages to queue pair 1, packets to multicast groups, and packets to other machines and other users always do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum RingPeers {
    /// No processes.
    None,
    /// The processes of the user that share the link's address and UDP port, as those with the same `soft:ADDRESS` do.
    #[default]
    SharedAddress,
    /// All processes of the user in this network namespace whose links have this option, whatever their addresses are. Two
    /// links of one process count as two processes.
    ///
    /// No device has this option by default, because it has limits that the design page `shared-address.md` lists. Don't use such a
    /// link to measure the network: only packets over UDP have the kernel's timestamps.
    AllLocal,
}
