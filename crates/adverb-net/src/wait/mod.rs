//! Waiting for a connection: which callers spin, poll and sleep, and which of them are notified. A connection implements
//! [`Lock`] and [`Events`].

#[cfg(all(test, loom))]
mod loom_tests;
mod protocol;
#[cfg(feature = "tokio")]
mod wakers;

pub(crate) use protocol::{Block, CallerKind, Events, Lock, Notify, Waiters, WaitingCaller};
#[cfg(feature = "tokio")]
pub(crate) use wakers::{WakerId, Wakers};
