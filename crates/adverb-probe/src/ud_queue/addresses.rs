//! A bounded cache of address handles.

use std::collections::HashMap;

use adverb_verbs::{AddressHandle, Endpoint, Gid, Psn, QueuePair, Result, Traffic, UdDestination};

use super::Destination;

/// Address handles by destination and traffic options (DSCP, flow label and so on).
///
/// Creating a handle is a system call, and on the software NIC a handle with a flow label holds a UDP socket. The cache
/// drops the least recently used handle when it is full.
#[derive(Debug)]
pub(super) struct AddressCache {
    entries: HashMap<(Gid, Traffic), CachedHandle>,
    max_len: usize,
    /// Counts the uses of all handles.
    use_count: u64,
    pub(super) created_count: u64,
    pub(super) evicted_count: u64,
}

#[derive(Debug)]
struct CachedHandle {
    handle: AddressHandle,
    last_use: u64,
}

impl AddressCache {
    pub(super) fn new(max_len: usize) -> AddressCache {
        AddressCache { entries: HashMap::new(), max_len, use_count: 0, created_count: 0, evicted_count: 0 }
    }

    /// Returns the destination of a datagram from `queue_pair`, with a cached address handle if there is one.
    pub(super) fn get(
        &mut self,
        queue_pair: &QueuePair,
        destination: &Destination,
        traffic: Traffic,
    ) -> Result<UdDestination> {
        let Destination { gid, qpn, qkey } = *destination;
        self.use_count += 1;
        let last_use = self.use_count;
        if let Some(entry) = self.entries.get_mut(&(gid, traffic)) {
            entry.last_use = last_use;
            return Ok(UdDestination { address_handle: entry.handle.clone(), qpn, qkey });
        }
        // The oldest handle is dropped before the new one is created, because both may need a socket.
        while self.entries.len() >= self.max_len {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(key) = oldest.map(|(key, _)| *key) else { break };
            self.entries.remove(&key);
            self.evicted_count += 1;
        }
        let remote = Endpoint::new(gid, qpn, Psn::wrapping(0));
        let found = queue_pair.create_ud_destination_with(&remote, qkey, traffic)?;
        self.created_count += 1;
        self.entries.insert((gid, traffic), CachedHandle { handle: found.address_handle.clone(), last_use });
        Ok(found)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
