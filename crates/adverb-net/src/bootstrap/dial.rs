//! An attempt to connect to one address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::internal::{Deadline, Watch};
use adverb_verbs::{Error, Result};

use super::{DialChannel, Handshake, dial_channels, no_address, not_watched};
use crate::Options;
use crate::driver::Established;

/// An attempt to connect to one address, over each [`DialChannel`] in turn. No call blocks: [poll](Dial::poll) it when
/// its descriptor is readable, and when the time [left](Dial::time_left) is over. Dropping it cancels the attempt.
pub(crate) struct Dial {
    peer: SocketAddr,
    options: Options,
    deadline: Deadline,
    /// The channels that were not tried yet.
    channels: std::vec::IntoIter<DialChannel>,
    /// The handshake over the current channel.
    handshake: Option<Handshake>,
    /// The error of the last channel.
    failure: Option<Error>,
    watch: Arc<Watch>,
}

impl Dial {
    /// Prepares an attempt, which begins with the first poll.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has no file descriptors left, or the system provides no random numbers.
    pub(crate) fn new(peer: SocketAddr, options: &Options, deadline: Deadline) -> Result<Dial> {
        let watch = Arc::new(Watch::new().map_err(not_watched)?);
        let (options, channels) = dial_channels(peer, options)?;
        let channels = channels.into_iter();
        Ok(Dial { peer, options, deadline, channels, handshake: None, failure: None, watch })
    }

    /// Makes progress. Returns the connection once it is established.
    ///
    /// # Errors
    ///
    /// Returns the error of the last channel if no channel has led to a connection, also when the time is up.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<Established>> {
        loop {
            let polled = match &mut self.handshake {
                Some(handshake) => handshake.poll(now),
                None => match self.channels.next() {
                    Some(channel) => match self.begin(channel, now) {
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
                Err(error) if may_try_next_channel(&error) => {
                    (self.handshake, self.failure) = (None, Some(error));
                }
                polled => return polled,
            }
        }
    }

    fn begin(&self, channel: DialChannel, now: Instant) -> Result<Handshake> {
        let watch = Arc::clone(&self.watch);
        match channel {
            DialChannel::Tcp => Handshake::over_tcp(self.peer, &self.options, self.deadline, now, watch),
            DialChannel::ConnectionManager(from) => {
                Handshake::by_manager(from, self.peer, &self.options, self.deadline, now, watch)
            }
        }
    }

    /// Returns the time after which the dial must be polled even if its descriptor is not readable.
    pub(crate) fn time_left(&self, now: Instant) -> Duration {
        self.handshake.as_ref().map_or(Duration::ZERO, |handshake| handshake.time_left(now))
    }
}

impl AsFd for Dial {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// Whether another channel may succeed after this error: not if the peer has answered, or time is up.
fn may_try_next_channel(error: &Error) -> bool {
    match error {
        Error::HandshakeRejected { .. } => false,
        Error::Unreachable { error, .. } => error.kind() != io::ErrorKind::TimedOut,
        _ => true,
    }
}
