//! An attempt to connect to one address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_net_proto::SessionId;
use adverb_verbs::internal::{Deadline, Watch, WithCauses};

use super::handshake::{FALLBACK_MTU, Handshake};
use super::{DialChannel, dial_channels, fill_random};
use crate::driver::{Established, LanePurpose};
use crate::error::{ConnectError, HandshakeError};
use crate::options::{Bootstrap, Options};

/// An attempt to connect to one address, over each [`DialChannel`] in turn. No call blocks: [poll](Dial::poll) it when
/// its descriptor is readable, and when the time [left](Dial::time_left) is over. Dropping it cancels the attempt.
pub(crate) struct Dial {
    peer: SocketAddr,
    options: Options,
    purpose: LanePurpose,
    deadline: Deadline,
    /// The channels that were not tried yet.
    channels: std::vec::IntoIter<DialChannel>,
    /// The handshake over the current channel.
    handshake: Option<Handshake>,
    /// The error of the last channel.
    failure: Option<ConnectError>,
    watch: Arc<Watch>,
}

impl Dial {
    /// Prepares an attempt to establish a new connection. It begins with the first poll.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has no file descriptors left, or the system provides no random numbers.
    pub(crate) fn new(peer: SocketAddr, options: &Options, deadline: Deadline) -> Result<Dial, ConnectError> {
        let session = options.reconnect.map(|_| new_session()).transpose()?;
        Dial::with_purpose(peer, options, LanePurpose::Connect(session), deadline)
    }

    /// Prepares an attempt to establish a lane. It begins with the first poll.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has no file descriptors left.
    pub(crate) fn with_purpose(
        peer: SocketAddr,
        options: &Options,
        purpose: LanePurpose,
        deadline: Deadline,
    ) -> Result<Dial, ConnectError> {
        let watch = Watch::new().map_err(|error| ConnectError::system("waiting for a peer", error))?;
        let watch = Arc::new(watch);
        let (options, channels) = dial_channels(peer, options);
        let channels = channels.into_iter();
        Ok(Dial { peer, options, purpose, deadline, channels, handshake: None, failure: None, watch })
    }

    /// Makes progress. Returns the connection once it is established.
    ///
    /// # Errors
    ///
    /// Returns the error of the last channel if no channel has led to a connection, also when the time is up.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<Established>, ConnectError> {
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
                        let none = || {
                            let source = io::Error::other("no channel could be tried");
                            ConnectError::Unreachable { peer: self.peer, source }
                        };
                        return Err(self.failure.take().unwrap_or_else(none));
                    }
                },
            };
            let timeout = self.deadline.timeout;
            let polled = polled.map_err(|error: HandshakeError| error.for_connector(self.peer, timeout));
            match polled {
                Err(error) if self.must_dial_with_smaller_mtu() => {
                    tracing::info!(peer = %self.peer, error = %WithCauses(&error), mtu = FALLBACK_MTU.bytes(), "dialing again with a smaller path MTU");
                    self.options.mtu = FALLBACK_MTU;
                    if let LanePurpose::Connect(Some(session)) = &mut self.purpose {
                        // The listener may have accepted the first dial, and knows its session.
                        *session = new_session()?;
                    }
                    (self.handshake, self.failure) = (None, Some(error));
                    self.channels = vec![DialChannel::Tcp].into_iter();
                }
                // The descriptors of the failed handshake are closed, so the watch no longer has them.
                Err(error) if may_try_next_channel(&error) => {
                    (self.handshake, self.failure) = (None, Some(error));
                }
                polled => return polled,
            }
        }
    }

    /// Whether the path may pass only shorter packets than those of the failed handshake. A connection manager
    /// negotiates the MTU itself.
    fn must_dial_with_smaller_mtu(&self) -> bool {
        self.options.bootstrap != Bootstrap::ConnectionManager
            && self.handshake.as_ref().is_some_and(Handshake::has_lost_long_hello)
    }

    fn begin(&self, channel: DialChannel, now: Instant) -> Result<Handshake, HandshakeError> {
        let (purpose, watch) = (self.purpose.clone(), Arc::clone(&self.watch));
        match channel {
            DialChannel::Tcp => {
                Handshake::over_tcp(self.peer, &self.options, purpose, self.deadline, now, watch)
            }
            DialChannel::ConnectionManager(from) => {
                Handshake::by_manager(from, self.peer, &self.options, purpose, self.deadline, now, watch)
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

/// Returns the random ID of a new session.
fn new_session() -> Result<SessionId, ConnectError> {
    let mut id = SessionId::default();
    fill_random(&mut id)?;
    Ok(id)
}

/// Whether another channel may succeed after this error: not if the peer has answered, or time is up.
fn may_try_next_channel(error: &ConnectError) -> bool {
    !matches!(
        error,
        ConnectError::TimedOut { .. }
            | ConnectError::RdmaUnreachable { .. }
            | ConnectError::Authentication { .. }
            | ConnectError::Version { .. }
            | ConnectError::NotAdverb { .. }
            | ConnectError::Rejected { .. }
            | ConnectError::ForeignGid { .. }
            | ConnectError::ProtocolViolation { .. }
            | ConnectError::SessionUnknown { .. }
    )
}

#[cfg(all(test, feature = "soft", not(loom)))]
mod tests {
    use adverb_verbs::memory::Pool;
    use adverb_verbs::{Device, Error, SoftDevice, internal};

    use super::*;
    use crate::bootstrap::{Accepted, Listening};
    use crate::error::HandshakeStage;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn options() -> Options {
        Options::new().connect_timeout(TIMEOUT).reconnect(TIMEOUT)
    }

    fn listen() -> Listening {
        Listening::bind(&["127.0.0.1:0".parse().unwrap()], &options(), &[], |_| None).unwrap()
    }

    fn accept(listening: &Listening) -> Option<Arc<crate::driver::Driver>> {
        match listening.poll(&listening.accepting()).unwrap() {
            Accepted::Connection(driver) => Some(driver),
            Accepted::Wait(..) => None,
        }
    }

    /// Polls a dial as if it were `now`, until the condition holds.
    fn poll_until(dial: &mut Dial, now: Instant, mut condition: impl FnMut(&Dial) -> bool) {
        let start = Instant::now();
        while !condition(dial) {
            assert!(dial.poll(now).unwrap().is_none());
            assert!(start.elapsed() < TIMEOUT, "the dial makes no progress");
            std::thread::yield_now();
        }
    }

    /// Returns a dial whose hello has arrived at the listener's device, and the time when it began. The listener has
    /// not handled the hello.
    fn dial(listening: &Listening) -> (Dial, Instant) {
        let now = Instant::now();
        let mut dial = Dial::new(listening.address(), &options(), Deadline::after(now, TIMEOUT)).unwrap();
        let is_awaiting = |dial: &Dial| dial.handshake.as_ref().is_some_and(Handshake::is_awaiting_hello);
        poll_until(&mut dial, now, |dial| {
            is_awaiting(dial) || {
                assert!(accept(listening).is_none());
                false
            }
        });
        poll_until(&mut dial, now, |dial| dial.time_left(now) == TIMEOUT);
        (dial, now)
    }

    /// Polls a dial as if it were `now`, and the listener, until both have the connection.
    fn establish(dial: &mut Dial, now: Instant, listening: &Listening) {
        let (mut connected, mut accepted) = (None, None);
        while connected.is_none() || accepted.is_none() {
            if connected.is_none() {
                connected = dial.poll(now).unwrap();
            }
            accepted = accepted.or_else(|| accept(listening));
        }
    }

    #[test]
    fn a_listener_that_has_the_hello_has_the_whole_time_to_answer() {
        let listening = listen();
        let (mut dial, now) = dial(&listening);
        establish(&mut dial, now + TIMEOUT * 9 / 10, &listening);
        assert_eq!(dial.options.mtu, Options::new().mtu);
    }

    #[test]
    fn a_device_without_a_network_at_the_same_address_is_not_used() {
        let _before = SoftDevice::loopback().open().unwrap();
        let listening = listen();
        let _after = SoftDevice::loopback().open().unwrap();
        let (mut dial, now) = dial(&listening);
        assert!(!internal::is_isolated(dial.options.device.as_ref().unwrap()));
        establish(&mut dial, now, &listening);
    }

    /// Memory may run out after the queue pair is connected, such as locked memory.
    #[test]
    fn a_lack_of_memory_is_an_error_of_the_device() {
        let listening = listen();
        let domain = Device::open("soft").unwrap().create_protection_domain().unwrap();
        let pool = Pool::builder().partitions(1).max_bytes(1 << 20).create(&domain);
        let mut used: Vec<_> = std::iter::from_fn(|| pool.allocate(4096).ok()).collect();
        // The buffer for the listener's hello, and none for this side's.
        used.pop();
        let (options, now) = (Options::new().pool(&pool), Instant::now());
        let mut dial = Dial::new(listening.address(), &options, Deadline::after(now, TIMEOUT)).unwrap();
        let error = loop {
            assert!(accept(&listening).is_none());
            match dial.poll(now) {
                Ok(established) => assert!(established.is_none()),
                Err(error) => break error,
            }
        };
        let ConnectError::Device { source, .. } = error else { panic!("{error:?}") };
        assert!(matches!(*source, Error::LimitExceeded { .. }), "{source:?}");
    }

    #[test]
    fn a_listener_that_has_the_hello_and_does_not_answer_is_not_dialed_again() {
        let listening = listen();
        let (mut dial, now) = dial(&listening);
        let error = dial.poll(now + TIMEOUT).map(drop).unwrap_err();
        let ConnectError::TimedOut { timeout: TIMEOUT, stage: HandshakeStage::Hello, .. } = error else {
            panic!("{error:?}")
        };
        let hint = error.hint().unwrap();
        assert!(hint.contains("calls `accept`") && !hint.contains("firewall"), "{hint}");
        assert_eq!(dial.options.mtu, Options::new().mtu);
    }

    #[test]
    fn a_listener_does_not_accept_a_connector_that_has_aborted() {
        let listening = listen();
        drop(dial(&listening));
        let (mut second, now) = dial(&listening);
        let (mut is_connected, mut accepted) = (false, Vec::new());
        while !is_connected || accepted.is_empty() {
            accepted.extend(accept(&listening));
            is_connected = is_connected || second.poll(now).unwrap().is_some();
        }
        accepted.extend(accept(&listening));
        assert_eq!(accepted.len(), 1);
    }

    #[test]
    fn a_dial_with_a_smaller_mtu_begins_another_session() {
        let listening = listen();
        let (mut dial, now) = dial(&listening);
        let session = |dial: &Dial| match dial.purpose {
            LanePurpose::Connect(Some(id)) => id,
            _ => panic!("the dial begins no session"),
        };
        let first = session(&dial);
        // As if the listener's hello were lost.
        listening.stop();
        poll_until(&mut dial, now, |dial| dial.time_left(now) <= Duration::from_secs(2));
        // No listener answers the second dial.
        let _ = dial.poll(now + Duration::from_secs(3));
        assert_eq!(dial.options.mtu, FALLBACK_MTU);
        assert_ne!(session(&dial), first);
    }
}
