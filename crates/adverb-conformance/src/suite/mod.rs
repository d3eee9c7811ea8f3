//! The tests, a file for each group.

mod addressing;
mod atomic_writes;
mod atomics;
mod batches;
mod buffers;
mod completion_queues;
mod connections;
mod datagram_refusals;
mod datagrams;
mod devices;
mod draining;
mod drops;
mod events;
mod extended_queues;
mod flushing;
mod inline;
mod loss;
mod multicast;
mod ordering;
mod partitions;
mod pollers;
mod polling;
mod protection;
mod queues;
mod rc;
mod receiver_not_ready;
mod regions;
mod registration;
mod remote_flushes;
mod reservation;
mod segments;
mod shared_receives;
mod signaling;
mod states;
mod statistics;
mod threads;
mod traffic;
mod transfers;
mod uc;
mod unreachable;
mod windows;

use crate::Test;

pub(crate) const GROUPS: &[&[Test]] = &[
    devices::TESTS,
    addressing::TESTS,
    traffic::TESTS,
    regions::TESTS,
    registration::TESTS,
    buffers::TESTS,
    rc::TESTS,
    uc::TESTS,
    datagrams::TESTS,
    datagram_refusals::TESTS,
    loss::TESTS,
    multicast::TESTS,
    atomics::TESTS,
    atomic_writes::TESTS,
    remote_flushes::TESTS,
    segments::TESTS,
    inline::TESTS,
    ordering::TESTS,
    queues::TESTS,
    batches::TESTS,
    signaling::TESTS,
    receiver_not_ready::TESTS,
    unreachable::TESTS,
    protection::TESTS,
    partitions::TESTS,
    flushing::TESTS,
    draining::TESTS,
    states::TESTS,
    reservation::TESTS,
    polling::TESTS,
    completion_queues::TESTS,
    extended_queues::TESTS,
    events::TESTS,
    pollers::TESTS,
    threads::TESTS,
    shared_receives::TESTS,
    windows::TESTS,
    connections::TESTS,
    drops::TESTS,
    statistics::TESTS,
];
