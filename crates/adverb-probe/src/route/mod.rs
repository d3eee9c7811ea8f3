//! Tracing of the routes that probes take: the hops of each path between two hosts.
