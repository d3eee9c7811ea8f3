//! Access rights to memory.

bitflags::bitflags! {
    /// Access rights to a memory region or window. Local reads are always allowed.
    ///
    /// The values are those of `ibv_access_flags`.
    ///
    /// ```
    /// # mod adverb { pub use adverb_proto::types as verbs; }
    /// use adverb::verbs::Access;
    ///
    /// let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    /// assert!(access.is_remote());
    /// assert!(!(Access::REMOTE_WRITE).is_consistent()); // REMOTE_WRITE requires LOCAL_WRITE
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// The local device may write. Receive buffers and the targets of READs and atomics need this right.
        const LOCAL_WRITE = 1 << 0;
        /// A peer may write, and execute ATOMIC WRITEs.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
        /// A peer may execute the atomic operations compare-and-swap and fetch-and-add.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const WINDOW_BIND = 1 << 4;
        /// Addresses are offsets from the start of the region or window, not virtual addresses.
        const ZERO_BASED = 1 << 5;
        /// Pages are not pinned; the device faults them in on access (on-demand paging, ODP).
        const ON_DEMAND = 1 << 6;
        /// The memory is in huge pages.
        const HUGE_PAGES = 1 << 7;
        /// A peer may flush its writes to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush its writes to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// The device may reorder its accesses to the memory, for speed. Devices that don't support this flag ignore
        /// it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// All rights of a peer.
    pub const REMOTE: Access = Access::REMOTE_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::FLUSH_GLOBAL)
        .union(Access::FLUSH_PERSISTENT);

    /// Whether the flags include any right of a peer.
    pub const fn is_remote(self) -> bool {
        self.intersects(Access::REMOTE)
    }

    /// Whether a peer may change the memory.
    pub const fn is_remotely_writable(self) -> bool {
        self.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC))
    }

    /// Whether the combination is valid: remote writes and atomics need local write access (vol. 1, 10.6.3).
    pub const fn is_consistent(self) -> bool {
        !self.is_remotely_writable() || self.contains(Access::LOCAL_WRITE)
    }
}
