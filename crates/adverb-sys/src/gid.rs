//! Global identifiers (GIDs), and the GID table of a port.

use core::fmt;
use std::net::Ipv6Addr;

use libc::{c_int, c_uint, size_t, ssize_t};

use crate::{__be64, Ibverbs, ibv_context};

shapes! {
    /// A global identifier (GID) of 16 bytes. In RoCEv2, a GID is an IPv6 address or an IPv4-mapped IPv6 address.
    #[derive(Clone, Copy)]
    pub union ibv_gid {
        /// The bytes in network order.
        pub raw: [u8; 16],
        /// The two 64-bit halves.
        pub global: ibv_gid_global,
    }

    /// The halves of a global identifier.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct ibv_gid_global inside ibv_gid.global {
        /// The subnet prefix.
        pub subnet_prefix: __be64,
        /// The interface identifier.
        pub interface_id: __be64,
    }

    /// The type of a GID, which determines the protocol of packets sent from that GID.
    pub enum ibv_gid_type: c_uint {
        /// InfiniBand.
        IBV_GID_TYPE_IB = 0,
        /// RoCEv1, directly over Ethernet.
        IBV_GID_TYPE_ROCE_V1 = 1,
        /// RoCEv2, over UDP.
        IBV_GID_TYPE_ROCE_V2 = 2,
    }

    /// An entry of a GID table.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_gid_entry {
        /// The GID.
        pub gid: ibv_gid,
        /// The index in the port's GID table.
        pub gid_index: u32,
        /// The number of the port.
        pub port_num: u32,
        /// The type of the GID, an [`ibv_gid_type`].
        pub gid_type: u32,
        /// The index of the network interface that the GID belongs to, or zero.
        pub ndev_ifindex: u32,
    }
}

impl ibv_gid {
    /// Returns the bytes in network order.
    #[must_use]
    #[inline]
    pub const fn octets(&self) -> [u8; 16] {
        // SAFETY: all members are sixteen bytes of integers without padding.
        unsafe { self.raw }
    }
}

impl From<[u8; 16]> for ibv_gid {
    fn from(raw: [u8; 16]) -> Self {
        Self { raw }
    }
}

impl PartialEq for ibv_gid {
    fn eq(&self, other: &Self) -> bool {
        self.octets() == other.octets()
    }
}

impl Eq for ibv_gid {}

impl fmt::Debug for ibv_gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.octets()), f)
    }
}

impl Ibverbs {
    /// Queries an entry of a GID table with its type and interface. Returns 0 or an errno value: ENODATA if the entry
    /// is empty, EOPNOTSUPP if the library is older than rdma-core 32.
    ///
    /// # Safety
    ///
    /// `context` is open, and `entry` is valid for writes.
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int {
        match self._ibv_query_gid_ex {
            // SAFETY: the caller upholds the requirements above, and the library writes the given size.
            Some(query_gid_ex) => unsafe {
                query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>())
            },
            None => libc::EOPNOTSUPP,
        }
    }

    /// Queries all nonempty entries of a device's GID tables. Returns the number of entries, or a negative errno
    /// value.
    ///
    /// The call fails if there are more than `max_entries` entries. It fails with -EOPNOTSUPP if the library is older
    /// than rdma-core 32, and with -EINVAL if `max_entries` exceeds 2047, because the kernel accepts at most 65,535
    /// bytes.
    ///
    /// # Safety
    ///
    /// `context` is open, and `entries` is valid for writes of `max_entries` entries.
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: size_t,
        flags: u32,
    ) -> ssize_t {
        match self._ibv_query_gid_table {
            // SAFETY: the caller upholds the requirements above, and the library writes entries of the given size.
            Some(query_gid_table) => unsafe {
                query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>())
            },
            None => -(libc::EOPNOTSUPP as ssize_t),
        }
    }
}
