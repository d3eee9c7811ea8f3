//! The option that says which processes a link shares memory with.

/// The processes with which a link exchanges packets in shared memory instead of over UDP. tcpdump and firewalls don't see
/// these packets.
///
/// The receiver decides: a link with [`Never`](MemoryUse::Never) gets all packets over UDP, and sends all its packets over UDP.
/// Two links use shared memory only if both may do so. Until the receiver has prepared the memory, and always if it can't,
/// packets travel over UDP. Messages to queue pair 1, packets to multicast groups, and packets to other machines and other users
/// always do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MemoryUse {
    /// No processes.
    Never,
    /// The processes of the user that share the link's address and UDP port, as those with the same `soft:ADDRESS` do.
    #[default]
    SharedAddress,
    /// All processes of the user on this machine whose links have this option, whatever their addresses are. They must be in
    /// one network namespace. Two links of one process count as two processes.
    ///
    /// Don't use such a link to measure the network: only packets over UDP have the kernel's timestamps.
    AllLocal,
}
