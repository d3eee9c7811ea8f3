//! The bootstrap exchange of two members over TCP, as a state machine without I/O.
//!
//! | message | sender | contents |
//! |---|---|---|
//! | hello | dialing member | protocol, cluster, both members, thread, purpose, nonce |
//! | welcome | listening member | code, nonce, tag |
//! | offer | dialing member | the [`Offer`] of its queue pair, tag |
//! | answer | listening member | code, newer epoch that has a session, offer, tag |
//! | ready | dialing member | code, tag |
//!
//! Their lengths are fixed. A tag is a keyed hash of all bytes of both sides so far. Each side has contributed a nonce, so a
//! tag of an earlier exchange is invalid in any other, and neither side changes a session before the other has proved that it
//! has the key. Without a secret, the key is public, and the tags prove nothing.
//!
//! Only the member with the larger number asks for a session. The other one *invites* it to do so, with an exchange
//! that ends after an empty offer.

use std::sync::Arc;

use super::key::{ExchangeKey, TAG_LEN};
use crate::broker::{BrokerError, Offer};

/// The code of a message that accepts.
pub(super) const ACCEPTED: u8 = 1;
/// The code for a member with another configuration.
pub(super) const REJECTED: u8 = 2;
/// The code for a member that should try again later.
const BUSY: u8 = 3;
/// The code for a member with another key.
const UNAUTHENTICATED: u8 = 4;
/// The code for a member of which a newer run has a session.
const STALE: u8 = 5;
/// The code for a host with another protocol or another version.
pub(super) const UNKNOWN_PROTOCOL: u8 = 6;

/// The first bytes: the protocol and its version.
const MAGIC: [u8; 8] = *b"advclu\0\x02";

pub(super) const NONCE_LEN: usize = 32;
pub(super) const WELCOME_LEN: usize = 1 + NONCE_LEN + TAG_LEN;
const OFFER_LEN: usize = Offer::ENCODED_LEN + TAG_LEN;
const ANSWER_LEN: usize = 1 + 8 + Offer::ENCODED_LEN + TAG_LEN;
const READY_LEN: usize = 1 + TAG_LEN;

/// The reason why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("the member has another list of members, or another number of threads")]
    ListsDiffer,
    #[error("the host does not use this version of the protocol")]
    UnknownProtocol,
    #[error("the member's thread is not ready")]
    Busy,
    #[error("the member has another key, or only one side has a key")]
    Unauthenticated,
    #[error("the member has a session with another run of this member, whose epoch {newest} is newer")]
    Stale { newest: u64 },
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

type Result<T> = std::result::Result<T, ExchangeError>;

/// The purpose of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The dialing member asks for a session.
    Session,
    /// The dialing member asks to be dialed.
    Invitation,
}

/// The first message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// A hash of the members' names and the number of threads, which must be equal at all members.
    pub(super) cluster: u64,
    /// The number of the dialing member.
    pub(super) from: u16,
    /// The number of the listening member.
    pub(super) to: u16,
    /// The thread whose session is to be established.
    pub(super) thread: u16,
    pub(super) purpose: Purpose,
}

impl Hello {
    pub(super) const LEN: usize = 23 + NONCE_LEN;

    pub(super) fn to_bytes(self, nonce: &[u8; NONCE_LEN]) -> [u8; Hello::LEN] {
        let mut bytes = [0; Hello::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.cluster.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.from.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.to.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.thread.to_be_bytes());
        bytes[22] = u8::from(self.purpose == Purpose::Invitation);
        bytes[23..].copy_from_slice(nonce);
        bytes
    }

    /// Parses a hello, which may come from any host. Returns `None` if the protocol is another one.
    fn from_bytes(bytes: &[u8]) -> Option<Hello> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (cluster, rest) = rest.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (thread, rest) = rest.split_first_chunk()?;
        let purpose = match rest.first()? {
            0 => Purpose::Session,
            1 => Purpose::Invitation,
            _ => return None,
        };
        Some(Hello {
            cluster: u64::from_be_bytes(*cluster),
            from: u16::from_be_bytes(*from),
            to: u16::from_be_bytes(*to),
            thread: u16::from_be_bytes(*thread),
            purpose,
        })
    }
}

/// The properties of the listening member, which a hello must match.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub(super) cluster: u64,
    pub(super) this_member: u16,
    pub(super) member_count: u16,
    pub(super) thread_count: u16,
}

impl Local {
    fn matches(&self, hello: &Hello) -> bool {
        let is_expected = match hello.purpose {
            Purpose::Session => hello.from > self.this_member && hello.from < self.member_count,
            Purpose::Invitation => hello.from < self.this_member,
        };
        is_expected
            && hello.cluster == self.cluster
            && hello.to == self.this_member
            && hello.thread < self.thread_count
    }
}

/// The next action of the driver.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Step {
    /// Pass on more bytes.
    Read,
    /// Prepare a session, then call [`Exchange::prepared`] or [`Exchange::refuse`]. A listening member has the peer's hello
    /// and offer.
    Prepare(Option<(Hello, Offer)>),
    /// Connect the queue pair to the peer's, then call [`Exchange::connected`].
    Connect(Offer),
    /// Open the session. The exchange is complete once its output is written.
    Open(Offer),
    /// The peer invites this member. The exchange is complete.
    Invited(Hello),
    /// The exchange is complete once its output is written.
    Finish,
}

/// One side of an exchange.
pub(super) struct Exchange {
    key: Arc<ExchangeKey>,
    /// The number of the other member, as the hello contains it.
    peer: Option<u16>,
    transcript: Vec<u8>,
    /// The bytes of an incomplete message.
    input: Vec<u8>,
    output: Vec<u8>,
    state: ExchangeState,
}

enum ExchangeState {
    AwaitHello {
        local: Local,
        nonce: [u8; NONCE_LEN],
    },
    AwaitWelcome {
        purpose: Purpose,
    },
    AwaitOffer {
        hello: Hello,
    },
    AwaitAnswer,
    AwaitReady {
        offer: Offer,
    },
    /// The driver prepares the session. The offer is that of the dialing member.
    Preparing {
        offer: Option<Offer>,
    },
    /// The driver connects the queue pair. The second offer is that of the listening member, if this is its side.
    Connecting {
        offer: Offer,
        answer: Option<Offer>,
    },
    Complete,
}

impl Exchange {
    /// Starts an exchange as the dialing member. The nonce must be random.
    pub(super) fn dial(key: Arc<ExchangeKey>, hello: &Hello, nonce: &[u8; NONCE_LEN]) -> Exchange {
        let hello_bytes = hello.to_bytes(nonce);
        let mut exchange = Exchange::new(key, ExchangeState::AwaitWelcome { purpose: hello.purpose });
        exchange.peer = Some(hello.to);
        exchange.transcript.extend(hello_bytes);
        exchange.output.extend(hello_bytes);
        exchange
    }

    /// Starts an exchange as the listening member. The nonce must be random.
    pub(super) fn listen(key: Arc<ExchangeKey>, local: Local, nonce: [u8; NONCE_LEN]) -> Exchange {
        Exchange::new(key, ExchangeState::AwaitHello { local, nonce })
    }

    fn new(key: Arc<ExchangeKey>, state: ExchangeState) -> Exchange {
        Exchange { key, peer: None, transcript: Vec::new(), input: Vec::new(), output: Vec::new(), state }
    }

    /// Returns the number of the other member. A host that dials may claim any number.
    pub(super) fn peer(&self) -> Option<u16> {
        self.peer
    }

    /// Returns the bytes to write.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether a message of the peer is incomplete.
    pub(super) fn is_partial(&self) -> bool {
        !self.input.is_empty()
    }

    /// Returns the number of bytes that the exchange waits for. The driver must not read more.
    pub(super) fn missing_len(&self) -> usize {
        let len = match self.state {
            ExchangeState::AwaitHello { .. } => Hello::LEN,
            ExchangeState::AwaitWelcome { .. } => WELCOME_LEN,
            ExchangeState::AwaitOffer { .. } => OFFER_LEN,
            ExchangeState::AwaitAnswer => ANSWER_LEN,
            ExchangeState::AwaitReady { .. } => READY_LEN,
            ExchangeState::Preparing { .. } | ExchangeState::Connecting { .. } | ExchangeState::Complete => {
                return 0;
            }
        };
        len.saturating_sub(self.input.len())
    }

    /// Whether the listening member waits for the last message. The dialing member has a session then, which the listening
    /// member should not close without need.
    pub(super) fn awaits_ready(&self) -> bool {
        matches!(self.state, ExchangeState::AwaitReady { .. })
    }

    /// Processes bytes of the peer. After an error, the output must be written nevertheless.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Step> {
        let count = self.missing_len().min(bytes.len());
        self.input.extend(&bytes[..count]);
        if self.missing_len() > 0 {
            return Ok(Step::Read);
        }
        let message = std::mem::take(&mut self.input);
        match std::mem::replace(&mut self.state, ExchangeState::Complete) {
            ExchangeState::AwaitHello { local, nonce } => self.handle_hello(&message, local, &nonce),
            ExchangeState::AwaitWelcome { purpose } => self.handle_welcome(&message, purpose),
            ExchangeState::AwaitOffer { hello } => self.handle_offer(&message, hello),
            ExchangeState::AwaitAnswer => self.handle_answer(&message),
            ExchangeState::AwaitReady { offer } => {
                if self.verify(&message)? != [ACCEPTED] {
                    return Err(ExchangeError::UnknownProtocol);
                }
                Ok(Step::Open(offer))
            }
            waiting => {
                self.state = waiting;
                Ok(Step::Read)
            }
        }
    }

    fn handle_hello(&mut self, message: &[u8], local: Local, nonce: &[u8; NONCE_LEN]) -> Result<Step> {
        self.transcript.extend(message);
        let mut welcome = [ACCEPTED; 1 + NONCE_LEN];
        welcome[1..].copy_from_slice(nonce);
        let hello = Hello::from_bytes(message);
        self.peer = hello.map(|hello| hello.from);
        let (code, error) = match hello {
            Some(hello) if local.matches(&hello) => {
                self.write(&welcome);
                self.state = ExchangeState::AwaitOffer { hello };
                return Ok(Step::Read);
            }
            Some(_) => (REJECTED, ExchangeError::ListsDiffer),
            None => (UNKNOWN_PROTOCOL, ExchangeError::UnknownProtocol),
        };
        welcome[0] = code;
        self.write(&welcome);
        Err(error)
    }

    fn handle_welcome(&mut self, message: &[u8], purpose: Purpose) -> Result<Step> {
        // A member with another configuration may have another key too.
        check_code(message.first(), 0)?;
        self.verify(message)?;
        if purpose == Purpose::Invitation {
            self.write(&[0; Offer::ENCODED_LEN]);
            return Ok(Step::Finish);
        }
        self.state = ExchangeState::Preparing { offer: None };
        Ok(Step::Prepare(None))
    }

    fn handle_offer(&mut self, message: &[u8], hello: Hello) -> Result<Step> {
        let checked = self.verify(message);
        if hello.purpose == Purpose::Invitation {
            return checked.map(|_| Step::Invited(hello));
        }
        let offer = match checked.and_then(parse_offer) {
            Ok(offer) => offer,
            Err(error) => return Err(self.refuse(error)),
        };
        self.state = ExchangeState::Preparing { offer: Some(offer) };
        Ok(Step::Prepare(Some((hello, offer))))
    }

    /// Continues with the offer of this side, whose session is prepared.
    pub(super) fn prepared(&mut self, local: &Offer) -> Step {
        match std::mem::replace(&mut self.state, ExchangeState::Complete) {
            ExchangeState::Preparing { offer: None } => {
                self.write(&local.to_bytes());
                self.state = ExchangeState::AwaitAnswer;
                Step::Read
            }
            ExchangeState::Preparing { offer: Some(offer) } => {
                self.state = ExchangeState::Connecting { offer, answer: Some(*local) };
                Step::Connect(offer)
            }
            other => {
                self.state = other;
                Step::Read
            }
        }
    }

    fn handle_answer(&mut self, message: &[u8]) -> Result<Step> {
        let answer = self.verify(message)?;
        let (head, offer) = answer.split_first_chunk::<9>().ok_or(ExchangeError::UnknownProtocol)?;
        let [code, newest @ ..] = head;
        check_code(Some(code), u64::from_be_bytes(*newest))?;
        let offer = parse_offer(offer)?;
        self.state = ExchangeState::Connecting { offer, answer: None };
        Ok(Step::Connect(offer))
    }

    /// Continues after the queue pair was connected.
    pub(super) fn connected(&mut self) -> Step {
        match std::mem::replace(&mut self.state, ExchangeState::Complete) {
            ExchangeState::Connecting { offer, answer: Some(answer) } => {
                self.write_answer(ACCEPTED, 0, &answer.to_bytes());
                self.state = ExchangeState::AwaitReady { offer };
                Step::Read
            }
            ExchangeState::Connecting { offer, answer: None } => {
                // The peer opens its session after this message. Until then it sends nothing.
                self.write(&[ACCEPTED]);
                Step::Open(offer)
            }
            other => {
                self.state = other;
                Step::Read
            }
        }
    }

    /// Ends the exchange because of a failure of this side. A listening member sends the failure to the peer.
    pub(super) fn refuse(&mut self, error: ExchangeError) -> ExchangeError {
        use adverb_cluster_proto::SessionError::StaleEpoch;

        let (code, newest) = match &error {
            ExchangeError::ListsDiffer => (REJECTED, 0),
            ExchangeError::UnknownProtocol => (UNKNOWN_PROTOCOL, 0),
            ExchangeError::Unauthenticated => (UNAUTHENTICATED, 0),
            ExchangeError::Broker(BrokerError::Session(StaleEpoch { newest, .. })) => (STALE, *newest),
            _ => (BUSY, 0),
        };
        let is_dialing = match std::mem::replace(&mut self.state, ExchangeState::Complete) {
            ExchangeState::Preparing { offer } => offer.is_none(),
            ExchangeState::Connecting { answer, .. } => answer.is_none(),
            ExchangeState::AwaitWelcome { .. } | ExchangeState::AwaitAnswer => true,
            _ => false,
        };
        if !is_dialing {
            self.write_answer(code, newest, &[0; Offer::ENCODED_LEN]);
        }
        error
    }

    fn write_answer(&mut self, code: u8, newest: u64, offer: &[u8; Offer::ENCODED_LEN]) {
        let mut answer = [0; 9 + Offer::ENCODED_LEN];
        answer[0] = code;
        answer[1..9].copy_from_slice(&newest.to_be_bytes());
        answer[9..].copy_from_slice(offer);
        self.write(&answer);
    }

    /// Adds a message and its tag to the output.
    fn write(&mut self, message: &[u8]) {
        self.transcript.extend(message);
        self.output.extend(message);
        self.output.extend(self.key.tag(&self.transcript));
    }

    /// Checks the tag at the end of a message, and returns the rest.
    fn verify<'a>(&mut self, message: &'a [u8]) -> Result<&'a [u8]> {
        let (message, tag) = message.split_last_chunk::<TAG_LEN>().ok_or(ExchangeError::UnknownProtocol)?;
        self.transcript.extend(message);
        if !self.key.verifies(tag, &self.transcript) {
            return Err(ExchangeError::Unauthenticated);
        }
        Ok(message)
    }
}

fn check_code(code: Option<&u8>, newest: u64) -> Result<()> {
    match code {
        Some(&ACCEPTED) => Ok(()),
        Some(&BUSY) => Err(ExchangeError::Busy),
        Some(&UNAUTHENTICATED) => Err(ExchangeError::Unauthenticated),
        Some(&STALE) => Err(ExchangeError::Stale { newest }),
        Some(&REJECTED) => Err(ExchangeError::ListsDiffer),
        _ => Err(ExchangeError::UnknownProtocol),
    }
}

fn parse_offer(bytes: &[u8]) -> Result<Offer> {
    let bytes = bytes.try_into().map_err(|_| ExchangeError::UnknownProtocol)?;
    Ok(Offer::from_bytes(bytes)?)
}

/// Returns the hash (FNV-1a) of the properties that must be equal at all members. It detects mistakes, not attacks.
pub(super) fn fingerprint(names: &[String], threads: u16) -> u64 {
    let separated = names.iter().flat_map(|name| name.bytes().chain([0]));
    separated.chain(threads.to_be_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use adverb_cluster_proto::{PeerId, SessionError};
    use adverb_verbs::{Endpoint, Key};

    use super::*;

    const HELLO: Hello = Hello { cluster: 7, from: 3, to: 2, thread: 1, purpose: Purpose::Session };
    const LOCAL: Local = Local { cluster: 7, this_member: 2, member_count: 4, thread_count: 2 };

    fn key(byte: u8) -> Arc<ExchangeKey> {
        Arc::new(ExchangeKey::new(Some(&Key::new([byte; 32]).unwrap())))
    }

    fn offer(epoch: u64) -> Offer {
        let gid = std::net::IpAddr::from([192, 0, 2, 7]).into();
        let endpoint =
            Endpoint::new(gid, adverb_proto::types::Qpn::truncate(5), adverb_proto::types::Psn::wrapping(6));
        Offer { endpoint, epoch, credits: 64, slot_size: 4096 }
    }

    fn dial(hello: &Hello, key: Arc<ExchangeKey>) -> Exchange {
        Exchange::dial(key, hello, &[1; NONCE_LEN])
    }

    fn listen(key: Arc<ExchangeKey>) -> Exchange {
        Exchange::listen(key, LOCAL, [2; NONCE_LEN])
    }

    /// Passes the output of one side to the other, in single bytes.
    fn pass(from: &mut Exchange, to: &mut Exchange) -> Result<Step> {
        let mut step = Ok(Step::Read);
        for byte in std::mem::take(from.output()) {
            assert!(matches!(step, Ok(Step::Read)), "the message is complete before its last byte");
            step = to.handle_bytes(&[byte]);
        }
        step
    }

    #[test]
    fn both_sides_open_a_session() {
        let (mut a, mut b) = (dial(&HELLO, key(1)), listen(key(1)));
        assert_eq!(pass(&mut a, &mut b).unwrap(), Step::Read);
        assert_eq!(pass(&mut b, &mut a).unwrap(), Step::Prepare(None));
        assert_eq!((a.missing_len(), b.missing_len()), (0, OFFER_LEN));
        assert_eq!(a.prepared(&offer(1)), Step::Read);
        assert_eq!(pass(&mut a, &mut b).unwrap(), Step::Prepare(Some((HELLO, offer(1)))));
        assert_eq!(b.prepared(&offer(2)), Step::Connect(offer(1)));
        assert_eq!(b.connected(), Step::Read);
        assert!(b.awaits_ready());
        assert_eq!(pass(&mut b, &mut a).unwrap(), Step::Connect(offer(2)));
        assert_eq!(a.connected(), Step::Open(offer(2)));
        assert_eq!(pass(&mut a, &mut b).unwrap(), Step::Open(offer(1)));
        assert_eq!((a.missing_len(), b.missing_len()), (0, 0));
        assert!(a.output().is_empty() && b.output().is_empty());
    }

    #[test]
    fn an_invitation_needs_no_answer() {
        let invitation = Hello { from: 1, purpose: Purpose::Invitation, ..HELLO };
        let (mut a, mut b) = (dial(&invitation, key(1)), listen(key(1)));
        assert_eq!(pass(&mut a, &mut b).unwrap(), Step::Read);
        assert_eq!(pass(&mut b, &mut a).unwrap(), Step::Finish);
        assert_eq!(pass(&mut a, &mut b).unwrap(), Step::Invited(invitation));
    }

    #[test]
    fn other_members_and_protocols_are_rejected() {
        let hellos = [
            Hello { cluster: 8, ..HELLO },
            Hello { from: 2, ..HELLO },
            Hello { from: 4, ..HELLO },
            Hello { to: 1, ..HELLO },
            Hello { thread: 2, ..HELLO },
            // Of two members, only one asks for sessions, and the other one invites it.
            Hello { from: 1, ..HELLO },
            Hello { purpose: Purpose::Invitation, ..HELLO },
        ];
        for hello in hellos {
            let (mut a, mut b) = (dial(&hello, key(1)), listen(key(1)));
            assert!(matches!(pass(&mut a, &mut b), Err(ExchangeError::ListsDiffer)), "{hello:?}");
            assert_eq!((b.output()[0], b.peer()), (REJECTED, Some(hello.from)));
            assert!(matches!(pass(&mut b, &mut a), Err(ExchangeError::ListsDiffer)));
        }
        let (mut a, mut b) = (dial(&HELLO, key(1)), listen(key(1)));
        assert!(matches!(b.handle_bytes(&[0xff; Hello::LEN]), Err(ExchangeError::UnknownProtocol)));
        assert_eq!(b.peer(), None);
        assert!(matches!(pass(&mut b, &mut a), Err(ExchangeError::UnknownProtocol)));
    }

    #[test]
    fn a_member_with_another_key_changes_nothing() {
        for (dialing, listening) in [(key(1), key(2)), (key(1), Arc::new(ExchangeKey::new(None)))] {
            for is_swapped in [false, true] {
                let (dialing, listening) = (Arc::clone(&dialing), Arc::clone(&listening));
                let (dialing, listening) =
                    if is_swapped { (listening, dialing) } else { (dialing, listening) };
                let (mut a, mut b) = (dial(&HELLO, dialing), listen(listening));
                assert_eq!(pass(&mut a, &mut b).unwrap(), Step::Read);
                assert!(matches!(pass(&mut b, &mut a), Err(ExchangeError::Unauthenticated)));
                // This dialing member doesn't check the welcome.
                a.state = ExchangeState::Preparing { offer: None };
                a.prepared(&offer(1));
                assert!(matches!(pass(&mut a, &mut b), Err(ExchangeError::Unauthenticated)));
                assert!(matches!(pass(&mut b, &mut a), Err(ExchangeError::Unauthenticated)));
            }
        }
    }

    /// Runs an exchange, and returns the bytes of the dialing member.
    fn record() -> Vec<u8> {
        let (mut a, mut b) = (dial(&HELLO, key(1)), listen(key(1)));
        let mut bytes = a.output().clone();
        pass(&mut a, &mut b).unwrap();
        pass(&mut b, &mut a).unwrap();
        a.prepared(&offer(1));
        bytes.extend(a.output().iter());
        pass(&mut a, &mut b).unwrap();
        b.prepared(&offer(2));
        b.connected();
        pass(&mut b, &mut a).unwrap();
        a.connected();
        bytes.extend(a.output().iter());
        bytes
    }

    #[test]
    fn a_recorded_exchange_cannot_be_replayed() {
        let bytes = record();
        let (hello, rest) = bytes.split_at(Hello::LEN);
        // The listening member has another nonce than in the recorded exchange.
        let mut b = Exchange::listen(key(1), LOCAL, [3; NONCE_LEN]);
        assert_eq!(b.handle_bytes(hello).unwrap(), Step::Read);
        assert!(matches!(b.handle_bytes(&rest[..OFFER_LEN]), Err(ExchangeError::Unauthenticated)));
        // With the same nonce the bytes are accepted, so nothing else refuses them.
        let mut b = listen(key(1));
        assert_eq!(b.handle_bytes(hello).unwrap(), Step::Read);
        assert!(matches!(b.handle_bytes(&rest[..OFFER_LEN]), Ok(Step::Prepare(Some(_)))));
    }

    #[test]
    fn altered_bytes_are_detected() {
        let bytes = record();
        // The bytes from 23 on: the nonce of the hello, and the later messages with their tags.
        for index in 23..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[index] ^= 0x10;
            let mut b = listen(key(1));
            let mut input = &bytes[..];
            let mut opens = false;
            while !input.is_empty() {
                let (head, tail) = input.split_at(b.missing_len().min(input.len()));
                match b.handle_bytes(head) {
                    Ok(Step::Prepare(_)) => {
                        b.prepared(&offer(2));
                        b.connected();
                    }
                    Ok(Step::Open(_)) => opens = true,
                    Ok(_) => {}
                    Err(_) => break,
                }
                input = tail;
            }
            assert!(!opens, "byte {index} was altered");
        }
    }

    #[test]
    fn a_stale_epoch_names_the_newest_one() {
        let (mut a, mut b) = (dial(&HELLO, key(1)), listen(key(1)));
        pass(&mut a, &mut b).unwrap();
        pass(&mut b, &mut a).unwrap();
        a.prepared(&offer(1));
        pass(&mut a, &mut b).unwrap();
        let stale = SessionError::StaleEpoch { peer: PeerId(3), newest: 9, requested: 1 };
        b.refuse(BrokerError::from(stale).into());
        let refused = pass(&mut b, &mut a).unwrap_err();
        assert!(matches!(refused, ExchangeError::Stale { newest: 9 }));
    }

    #[test]
    fn members_and_threads_change_the_fingerprint() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let original = fingerprint(&names(&["a", "bc"]), 2);
        assert_ne!(original, fingerprint(&names(&["ab", "c"]), 2));
        assert_ne!(original, fingerprint(&names(&["bc", "a"]), 2));
        assert_ne!(original, fingerprint(&names(&["a", "bc"]), 3));
    }
}
