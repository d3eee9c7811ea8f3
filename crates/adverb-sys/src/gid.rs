//! Global identifiers, and a port's table of them.

use core::fmt;
use std::net::Ipv6Addr;

use libc::{c_int, c_uint, size_t, ssize_t};

use crate::{__be64, Ibverbs, ibv_context};

shapes! {
    /// A global identifier: sixteen bytes, which with RoCEv2 are an IPv6 address, or an IPv4 address mapped
    /// to one.
    #[derive(Clone, Copy)]
    pub union ibv_gid {
        /// The bytes, in the order in which they are sent.
        pub raw: [u8; 16],
        /// The two halves.
        pub global: ibv_gid_global,
    }

    /// The halves of a global identifier.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct ibv_gid_global inside ibv_gid.global {
        /// The subnet's prefix.
        pub subnet_prefix: __be64,
        /// The interface's identifier.
        pub interface_id: __be64,
    }

    /// What goes on the wire when a GID of this type is the source.
    pub enum ibv_gid_type: c_uint {
        /// InfiniBand.
        IBV_GID_TYPE_IB = 0,
        /// RoCE version 1: right above Ethernet.
        IBV_GID_TYPE_ROCE_V1 = 1,
        /// RoCE version 2: above UDP.
        IBV_GID_TYPE_ROCE_V2 = 2,
    }

    /// An entry of a GID table.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_gid_entry {
        /// The identifier.
        pub gid: ibv_gid,
        /// Its index in the port's table.
        pub gid_index: u32,
        /// The port.
        pub port_num: u32,
        /// An [`ibv_gid_type`].
        pub gid_type: u32,
        /// The index of the network interface that it belongs to, or zero.
        pub ndev_ifindex: u32,
    }
}

impl ibv_gid {
    /// The bytes, in the order in which they are sent.
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
    /// Asks for an entry of a GID table with its type and interface. 0 or an error number: ENODATA if the
    /// entry is empty, EOPNOTSUPP if the library is older than rdma-core 32.
    ///
    /// # Safety
    ///
    /// `context` is open, and `entry` valid for writes.
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int {
        match self._ibv_query_gid_ex {
            // SAFETY: the caller upholds what is asked for above; the library writes the size it is given.
            Some(query_gid_ex) => unsafe {
                query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>())
            },
            None => libc::EOPNOTSUPP,
        }
    }

    /// Asks for all entries of a device's GID tables that aren't empty. How many there are, or the negative
    /// of an error number, also if there are more than `max_entries`: -EOPNOTSUPP if the library is older
    /// than rdma-core 32, -EINVAL if `max_entries` is above 2047, because the kernel is told of at most 65535
    /// bytes.
    ///
    /// # Safety
    ///
    /// `context` is open, and `entries` valid for writes of `max_entries` entries.
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: size_t,
        flags: u32,
    ) -> ssize_t {
        match self._ibv_query_gid_table {
            // SAFETY: the caller upholds what is asked for above; the library writes entries of the size it
            // is given.
            Some(query_gid_table) => unsafe {
                query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>())
            },
            None => -(libc::EOPNOTSUPP as ssize_t),
        }
    }
}
