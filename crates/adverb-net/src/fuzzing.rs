//! The parts of the protocol that need no device, for a fuzzer.

use std::collections::VecDeque;
use std::net::IpAddr;

use adverb_net_proto::Hello;
use adverb_verbs::memory::RemoteMemory;
use adverb_verbs::{Endpoint, Gid, Psn, Qpn};

use crate::bootstrap::belongs_to;
use crate::key::HandshakeKey;
use crate::protocol::handshake::Greeting;
use crate::protocol::proof::{Credentials, Ends};

/// Parses bytes as each message of a peer, and performs a handshake in which the bytes determine the changes to the
/// greetings. With keys, the handshake must succeed if and only if both sides have the same key, and no greeting was
/// changed.
///
/// # Panics
///
/// Panics if a parsed message is emitted as bytes that differ from the parsed ones, or if the handshake has the wrong
/// result.
pub fn handshake(bytes: &[u8]) {
    parse_messages(bytes);
    check_gid(bytes);
    let mut choices = Choices(bytes.iter().copied().collect());
    handshake_with_attacker(&mut choices);
    adverb_net_proto::fuzzing::rings(choices.0);
}

/// Parses bytes as each message of a peer.
fn parse_messages(bytes: &[u8]) {
    if let Ok(Greeting::Side(side)) = Greeting::parse(bytes) {
        assert!(bytes.starts_with(&Greeting::Side(side).emit()));
    }
    adverb_net_proto::fuzzing::parse(bytes);
}

/// Checks that a GID which is accepted for a TCP peer is an address of that peer's host.
fn check_gid(bytes: &[u8]) {
    let Some((gid, rest)) = bytes.split_first_chunk::<16>() else { return };
    let Some(peer) = rest.first_chunk::<4>() else { return };
    let (gid, peer) = (Gid::new(*gid), IpAddr::from(*peer));
    if belongs_to(gid, peer) {
        let addr = gid.udp_addr().ip();
        assert!(addr == peer || addr.is_loopback() && peer.is_loopback(), "{gid} isn't at {peer}");
    }
}

/// The choices of the handshake, one byte each. After the last byte, each choice is 0.
struct Choices(VecDeque<u8>);

impl Choices {
    fn next(&mut self) -> u8 {
        self.0.pop_front().unwrap_or_default()
    }

    /// Changes or truncates bytes in flight, or leaves them as they are.
    fn corrupt(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.next() % 4 {
            let at = usize::from(self.next());
            match bytes.get_mut(at) {
                Some(byte) => *byte ^= self.next(),
                None => bytes.truncate(at / 2),
            }
        }
    }

    fn endpoint(&mut self) -> Endpoint {
        let (gid, qpn, psn) = (self.next(), self.next(), self.next());
        let mut endpoint =
            Endpoint::new(Gid::new([gid; 16]), Qpn::truncate(qpn.into()), Psn::wrapping(psn.into()));
        (endpoint.lid, endpoint.mtu) = (self.next().into(), u16::from(self.next()) << 4);
        endpoint
    }

    fn key(&mut self) -> (u8, Option<HandshakeKey>) {
        let index = self.next() % 3;
        (
            index,
            (index > 0)
                .then(|| HandshakeKey::new(&adverb_verbs::Key::new([index; 16]).expect("it is long enough"))),
        )
    }
}

/// Performs a handshake with an attacker between both sides.
fn handshake_with_attacker(choices: &mut Choices) {
    let ((connector_key_index, key), (listener_key_index, listener_key)) = (choices.key(), choices.key());
    let (connector, listener) = (choices.endpoint(), choices.endpoint());
    let connector_credentials = Credentials::new(key.as_ref(), [1; 32]);
    let sent_greeting = connector_credentials.connector_greeting(Some(connector)).emit();
    let mut received = sent_greeting.clone();
    choices.corrupt(&mut received);
    let Ok(Greeting::Side(side)) = Greeting::parse(&received) else { return };
    let Some(received_endpoint) = side.endpoint else { return };
    // Each side knows the other's queue pair from its greeting.
    let listener_view = Ends { connector: received_endpoint, listener };
    let listener_credentials = Credentials::new(listener_key.as_ref(), [2; 32]);
    let Ok((answer, listener_seal)) =
        listener_credentials.listener_greeting(&side, Some(listener), &listener_view)
    else {
        assert!(side.nonce.is_some() != (listener_key_index > 0) || side.proof.is_some());
        return;
    };
    assert_eq!(side.nonce.is_some(), listener_key_index > 0, "both have a key, or neither");
    let sent_answer = answer.emit();
    let mut received_answer = sent_answer.clone();
    choices.corrupt(&mut received_answer);
    let Ok(Greeting::Side(answer)) = Greeting::parse(&received_answer) else { return };
    let Some(received_endpoint) = answer.endpoint else { return };
    let Ok(seal) =
        connector_credentials.verify_answer(&answer, &Ends { connector, listener: received_endpoint })
    else {
        let is_unchanged = received == sent_greeting && received_answer == sent_answer;
        assert!(
            !is_unchanged || connector_key_index != listener_key_index,
            "same key, unchanged greetings, and no connection"
        );
        return;
    };
    let Some((seal, listener_seal)) = seal.zip(listener_seal) else {
        assert!(connector_key_index == 0, "a connector with a key connected without a proof");
        return;
    };
    assert!(
        connector_key_index == listener_key_index && connector_key_index > 0,
        "a handshake with different keys succeeded"
    );
    assert_eq!(
        (received, received_answer),
        (sent_greeting, sent_answer),
        "a change of a greeting was not detected"
    );

    let ring = RemoteMemory { addr: 1, rkey: 2, len: 512 };
    let hello = Hello { ring, max_outstanding_writes: 4, max_message_size: 0, session: None }.emit();
    for (from, to) in [(&seal, &listener_seal), (&listener_seal, &seal)] {
        let sealed = [&from.seal(&hello)[..], &hello].concat();
        assert_eq!(from.open(&sealed).ok(), None, "a side rejects its own hello");
        let mut received = sealed.clone();
        choices.corrupt(&mut received);
        assert_eq!(to.open(&received).is_ok(), received == sealed);
    }
    // An attacker replays the greetings to a listener with another nonce.
    let sealed = [&seal.seal(&hello)[..], &hello].concat();
    let replayed = Credentials::new(listener_key.as_ref(), [3; 32]).listener_greeting(
        &side,
        Some(listener),
        &listener_view,
    );
    let (_, replayed) = replayed.expect("it was answered before");
    assert!(replayed.is_some_and(|replayed| replayed.open(&sealed).is_err()));
}
