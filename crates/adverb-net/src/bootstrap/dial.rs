//! An attempt to connect to one address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::internal::{Deadline, Watch};
use adverb_verbs::{Error, Result};

use super::{Handshake, Way, no_address, not_watched, ways};
use crate::Options;
use crate::driver::Established;

/// An attempt to connect to one address, over each [`Way`] in turn. No call blocks: [poll](Dial::poll) it when its descriptor is
/// readable, and when the time [left](Dial::left) is over. Dropping it cancels the attempt.
pub(crate) struct Dial {
    peer: SocketAddr,
    options: Options,
    deadline: Deadline,
    /// The ways that were not tried yet.
    ways: std::vec::IntoIter<Way>,
    /// The handshake over the current way.
    handshake: Option<Handshake>,
    /// The error of the last way.
    failure: Option<Error>,
    watch: Arc<Watch>,
}

impl Dial {
    /// Prepares an attempt, which begins with the first poll.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no file descriptors or random numbers left.
    pub(crate) fn new(peer: SocketAddr, options: &Options, deadline: Deadline) -> Result<Dial> {
        let watch = Arc::new(Watch::new().map_err(not_watched)?);
        let (options, ways) = ways(peer, options)?;
        let ways = ways.into_iter();
        Ok(Dial { peer, options, deadline, ways, handshake: None, failure: None, watch })
    }

    /// Makes progress. Returns the connection once it is established.
    ///
    /// # Errors
    ///
    /// Returns the error of the last way if no way has led to a connection, also when the time is up.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<Established>> {
        loop {
            let polled = match &mut self.handshake {
                Some(handshake) => handshake.poll(now),
                None => match self.ways.next() {
                    Some(way) => match self.begin(way, now) {
                        Ok(handshake) => {
                            self.handshake = Some(handshake);
                            continue;
                        }
                        Err(error) => Err(error),
                    },
                    None => {
                        let none = || no_address(io::Error::other("no address could be tried"));
                        return Err(self.failure.take().unwrap_or_else(none));
                    }
                },
            };
            match polled {
                // The descriptors of the failed handshake are closed, so the watch no longer has them.
                Err(error) if is_worth_another_way(&error) => {
                    (self.handshake, self.failure) = (None, Some(error));
                }
                polled => return polled,
            }
        }
    }

    fn begin(&self, way: Way, now: Instant) -> Result<Handshake> {
        let watch = Arc::clone(&self.watch);
        match way {
            Way::Tcp => Handshake::over_tcp(self.peer, &self.options, self.deadline, now, watch),
            Way::ConnectionManager(from) => {
                Handshake::by_manager(from, self.peer, &self.options, self.deadline, now, watch)
            }
        }
    }

    /// Returns the time after which the dial must be polled even if its descriptor is not readable.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.handshake.as_ref().map_or(Duration::ZERO, |handshake| handshake.left(now))
    }
}

impl AsFd for Dial {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// Whether another way may succeed after this error: not if the peer has answered, or time is up.
fn is_worth_another_way(error: &Error) -> bool {
    match error {
        Error::HandshakeRejected { .. } => false,
        Error::Unreachable { error, .. } => error.kind() != io::ErrorKind::TimedOut,
        _ => true,
    }
}
