//! Paths, and their source ports.

use std::net::IpAddr;

use super::{Hop, HopState, PathEnd};
use crate::paths::ports_to_cover;

/// The result of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Route {
    /// The distinct paths, in the order in which they were found.
    pub paths: Vec<Path>,
    /// The number of source ports that were traced.
    pub port_count: usize,
    /// The number of probes that were sent.
    pub probe_count: u64,
}

/// A path, and the source ports that take it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// The first source port whose packets take this path.
    pub source_port: u16,
    /// All traced source ports whose packets take this path, including `source_port`.
    pub source_ports: Vec<u16>,
    /// The hops, the first hop first. If the path is [complete](Path::is_complete), the last hop is the destination.
    pub hops: Vec<Hop>,
    /// The reason why there are no further hops.
    pub end: PathEnd,
}

impl Path {
    /// Whether the path leads to the destination, and no hop is silent.
    pub fn is_complete(&self) -> bool {
        self.end == PathEnd::Destination && self.silent_hop_count() == 0
    }

    /// Returns the number of silent hops before the last hop that answered.
    pub fn silent_hop_count(&self) -> usize {
        self.hops.iter().filter(|hop| hop.state == HopState::Silent).count()
    }

    /// Returns the address of each hop, or `None` for a silent hop.
    pub fn addresses(&self) -> impl Iterator<Item = Option<IpAddr>> {
        self.hops.iter().map(Hop::address)
    }
}

impl Route {
    /// Adds the path of one source port. A path with a silent hop differs from a path on which that hop answered: the
    /// router that answered other source ports was probed so often that it would have answered this one, too.
    pub(super) fn add(&mut self, path: Path) {
        let is_same = |known: &&mut Path| known.end == path.end && known.addresses().eq(path.addresses());
        match self.paths.iter_mut().find(is_same) {
            Some(known) => known.source_ports.extend(path.source_ports),
            None => self.paths.push(path),
        }
    }
}

/// Returns the number of source ports to trace, so that all of `path_count` equally likely paths are found with the
/// probability `confidence`.
pub(super) fn ports_needed(path_count: usize, confidence: f64) -> usize {
    let count = path_count.clamp(1, 1 << 14) as u32;
    ports_to_cover(count, confidence).max(count) as usize
}
