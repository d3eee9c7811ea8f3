//! The tests, a file for each group.

mod addressing;
mod atomics;
mod devices;
mod flushing;
mod inline;
mod polling;
mod protection;
mod rc;
mod receiver_not_ready;
mod states;
mod statistics;
mod transfers;
mod uc;
mod unreachable;

use crate::Test;

/// All tests, group by group.
pub(crate) const GROUPS: &[&[Test]] = &[
    devices::TESTS,
    addressing::TESTS,
    rc::TESTS,
    uc::TESTS,
    atomics::TESTS,
    inline::TESTS,
    receiver_not_ready::TESTS,
    unreachable::TESTS,
    protection::TESTS,
    flushing::TESTS,
    states::TESTS,
    polling::TESTS,
    statistics::TESTS,
];
