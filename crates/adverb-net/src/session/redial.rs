//! The schedule of the dials of one broken connection: a pure state machine.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::internal::Deadline;

use super::Paths;
use crate::error::ConnectError;

/// The time between two rounds. A round dials each address once.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time of one dial, so that the other addresses are dialed too.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time for which a round waits for lookups of host names. Their results are then used in a later round.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(200);

/// The dials of one broken connection, in rounds, until one succeeds or the time limit expires.
pub(super) struct Redial {
    paths: Paths,
    deadline: Deadline,
    phase: Phase,
    /// The error of the last dial.
    failure: Option<Arc<ConnectError>>,
}

enum Phase {
    /// A round begins, at this index into the addresses.
    RoundStart { first: usize },
    /// The names in `pending` are being looked up.
    Resolving { first: usize, pending: Vec<String>, until: Instant },
    /// The first of these addresses is to be dialed.
    Ready { peers: VecDeque<SocketAddr> },
    /// An address is being dialed; these are next.
    Dialing { peers: VecDeque<SocketAddr> },
    /// All addresses have failed.
    Pausing { until: Instant },
    /// The peer does not know the session.
    Unknown,
}

/// The next step of a [`Redial`].
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Look up these names, and pass the results to [`Redial::handle_resolved`].
    Resolve(Vec<String>),
    /// Dial this address: see [`Redial::begin_dial`].
    Dial(SocketAddr),
    /// Poll again at this time, or after [`Redial::handle_resolved`] or [`Redial::handle_dial_failed`].
    WaitUntil(Instant),
    /// End the connection, with [`Redial::failure`].
    GiveUp,
}

impl Redial {
    pub(super) fn new(paths: Paths, deadline: Deadline) -> Redial {
        // The first address is usually the one whose lane has failed, so another one is dialed first.
        let phase = Phase::RoundStart { first: 1 };
        Redial { paths, deadline, phase, failure: None }
    }

    pub(super) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Returns the next step.
    pub(super) fn poll(&mut self, now: Instant) -> Action {
        if let Phase::Unknown = self.phase {
            return Action::GiveUp;
        }
        let left = self.deadline.left_at(now);
        if left.is_zero() && !matches!(self.phase, Phase::Dialing { .. }) {
            return Action::GiveUp;
        }
        loop {
            match &mut self.phase {
                Phase::RoundStart { first } => {
                    let (first, names) = (*first, Vec::from_iter(self.paths.names().map(str::to_owned)));
                    let until = now + LOOKUP_TIMEOUT.min(left);
                    self.phase = Phase::Resolving { first, pending: names.clone(), until };
                    if !names.is_empty() {
                        return Action::Resolve(names);
                    }
                }
                Phase::Resolving { pending, until, .. } if !pending.is_empty() && now < *until => {
                    return Action::WaitUntil(*until);
                }
                Phase::Resolving { first, .. } => {
                    let mut peers = VecDeque::from(self.paths.peers());
                    let count = peers.len().max(1);
                    peers.rotate_left(*first % count);
                    if peers.is_empty() {
                        let names = Vec::from_iter(self.paths.names()).join(", ");
                        let error = io::Error::other("the peer has no address");
                        self.failure = Some(Arc::new(ConnectError::resolve(&names, error)));
                    }
                    self.start_next(peers, now);
                }
                Phase::Ready { peers } => match peers.front() {
                    Some(peer) => return Action::Dial(*peer),
                    None => self.phase = Phase::Pausing { until: now + PAUSE },
                },
                Phase::Dialing { .. } => return Action::WaitUntil(self.deadline.at()),
                Phase::Pausing { until } if now < *until => {
                    return Action::WaitUntil((*until).min(self.deadline.at()));
                }
                Phase::Pausing { .. } => self.phase = Phase::RoundStart { first: 0 },
                Phase::Unknown => return Action::GiveUp,
            }
        }
    }

    /// Records the result of a lookup.
    pub(super) fn handle_resolved(&mut self, name: &str, addresses: &[SocketAddr]) {
        self.paths.set_resolved(name, addresses);
        if let Phase::Resolving { pending, .. } = &mut self.phase {
            pending.retain(|pending| pending != name);
        }
    }

    /// Notes that the address of [`Action::Dial`] is being dialed. Returns the time that the dial may take.
    pub(super) fn begin_dial(&mut self, now: Instant) -> Duration {
        if let Phase::Ready { peers } = &mut self.phase {
            peers.pop_front();
            self.phase = Phase::Dialing { peers: std::mem::take(peers) };
        }
        self.deadline.left_at(now).min(self.paths.options.connect_timeout).min(ATTEMPT_TIMEOUT)
    }

    /// Records the error of a dial.
    pub(super) fn handle_dial_failed(&mut self, error: ConnectError, now: Instant) {
        // Other rejections may be those of another program, which uses an address of the peer.
        let is_unknown = matches!(error, ConnectError::SessionUnknown { .. });
        self.failure = Some(Arc::new(error));
        if is_unknown {
            self.phase = Phase::Unknown;
            return;
        }
        if let Phase::Dialing { peers } = &mut self.phase {
            let peers = std::mem::take(peers);
            self.start_next(peers, now);
        }
    }

    /// Returns the error of the last dial, if one has failed.
    pub(super) fn failure(&self) -> Option<&Arc<ConnectError>> {
        self.failure.as_ref()
    }

    fn start_next(&mut self, peers: VecDeque<SocketAddr>, now: Instant) {
        self.phase = match peers.is_empty() {
            true => Phase::Pausing { until: now + PAUSE },
            false => Phase::Ready { peers },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    const SECOND: Duration = Duration::from_secs(1);

    fn peer(number: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, number], 7471))
    }

    fn redial(addresses: &[u8], names: &[&str], now: Instant) -> Redial {
        let addresses = addresses.iter().map(|number| peer(*number)).collect();
        let names = Vec::from_iter(names.iter().map(|name| (*name).to_owned()));
        Redial::new(Paths::new(addresses, &names, &Options::new()), Deadline::after(now, 10 * SECOND))
    }

    fn refused() -> ConnectError {
        ConnectError::Refused { peer: peer(1), source: io::ErrorKind::ConnectionRefused.into() }
    }

    /// Fails the next dial, and returns its address.
    fn fail(redial: &mut Redial, now: Instant) -> SocketAddr {
        let Action::Dial(peer) = redial.poll(now) else { panic!("there is an address to dial") };
        redial.begin_dial(now);
        redial.handle_dial_failed(refused(), now);
        peer
    }

    #[test]
    fn the_first_address_is_dialed_last_in_the_first_round_only() {
        let now = Instant::now();
        let mut redial = redial(&[1, 2, 3], &["192.0.2.4:7471", "192.0.2.2:7471"], now);
        for number in [2, 3, 4, 1] {
            assert_eq!(fail(&mut redial, now), peer(number));
        }
        assert_eq!(redial.poll(now), Action::WaitUntil(now + PAUSE));
        let now = now + PAUSE;
        for number in [1, 2, 3, 4] {
            assert_eq!(fail(&mut redial, now), peer(number));
        }
        assert_eq!(redial.poll(now), Action::WaitUntil(now + PAUSE));
    }

    #[test]
    fn a_dial_takes_no_longer_than_the_time_that_is_left() {
        let now = Instant::now();
        let mut redial = redial(&[1], &[], now);
        assert_eq!(redial.poll(now), Action::Dial(peer(1)));
        assert_eq!(redial.poll(now), Action::Dial(peer(1)), "a dial may wait for its turn");
        assert_eq!(redial.begin_dial(now), ATTEMPT_TIMEOUT);
        assert_eq!(redial.poll(now), Action::WaitUntil(now + 10 * SECOND));
        redial.handle_dial_failed(refused(), now + 9 * SECOND);
        let now = now + 9 * SECOND + PAUSE;
        assert_eq!(redial.poll(now), Action::Dial(peer(1)));
        assert_eq!(redial.begin_dial(now), SECOND - PAUSE);
    }

    #[test]
    fn the_last_error_is_reported_when_the_time_limit_expires() {
        let start = Instant::now();
        let mut redial = redial(&[1], &[], start);
        fail(&mut redial, start);
        assert_eq!(redial.poll(start + 10 * SECOND), Action::GiveUp);
        assert!(matches!(**redial.failure().unwrap(), ConnectError::Refused { .. }));
    }

    #[test]
    fn a_session_that_the_peer_does_not_know_ends_at_once() {
        let now = Instant::now();
        let mut redial = redial(&[1, 2], &[], now);
        assert_eq!(redial.poll(now), Action::Dial(peer(2)));
        redial.begin_dial(now);
        redial.handle_dial_failed(ConnectError::SessionUnknown { peer: peer(2) }, now);
        assert_eq!(redial.poll(now), Action::GiveUp);
        assert!(matches!(**redial.failure().unwrap(), ConnectError::SessionUnknown { .. }));
    }

    #[test]
    fn a_lookup_that_hangs_does_not_delay_known_addresses_for_long() {
        let now = Instant::now();
        let mut redial = redial(&[1], &["a.example:1", "b.example:1"], now);
        let names = ["a.example:1", "b.example:1"].map(str::to_owned).to_vec();
        assert_eq!(redial.poll(now), Action::Resolve(names));
        assert_eq!(redial.poll(now), Action::WaitUntil(now + LOOKUP_TIMEOUT));
        redial.handle_resolved("a.example:1", &[peer(7)]);
        assert_eq!(redial.poll(now), Action::WaitUntil(now + LOOKUP_TIMEOUT));
        let now = now + LOOKUP_TIMEOUT;
        assert_eq!(fail(&mut redial, now), peer(7));
        // The result is used in the next round, and a failed lookup changes nothing.
        redial.handle_resolved("b.example:1", &[peer(8)]);
        redial.handle_resolved("a.example:1", &[]);
        assert_eq!(fail(&mut redial, now), peer(1));
        let now = now + PAUSE;
        assert!(matches!(redial.poll(now), Action::Resolve(_)));
        redial.handle_resolved("a.example:1", &[peer(9)]);
        redial.handle_resolved("b.example:1", &[]);
        for number in [1, 9, 8] {
            assert_eq!(fail(&mut redial, now), peer(number));
        }
    }

    #[test]
    fn a_peer_without_addresses_is_looked_up_in_every_round() {
        let now = Instant::now();
        let mut redial = redial(&[], &["a.example:1"], now);
        assert!(matches!(redial.poll(now), Action::Resolve(_)));
        redial.handle_resolved("a.example:1", &[]);
        assert_eq!(redial.poll(now), Action::WaitUntil(now + PAUSE));
        assert!(matches!(redial.poll(now + PAUSE), Action::Resolve(_)));
        assert_eq!(redial.poll(now + 10 * SECOND), Action::GiveUp);
        let ConnectError::Resolve { host, .. } = &**redial.failure().unwrap() else {
            panic!("another failure")
        };
        assert_eq!(&**host, "a.example:1");
    }
}
