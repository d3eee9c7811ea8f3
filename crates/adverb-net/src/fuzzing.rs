//! The parts of the protocol that a fuzzer drives: those that need no device.

use std::collections::VecDeque;
use std::net::IpAddr;

use adverb_net_proto::Hello;
use adverb_verbs::memory::RemoteMemory;
use adverb_verbs::{Endpoint, Gid, Psn, Qpn};

use super::Key;
use super::bootstrap::belongs_to;
use super::protocol::handshake::Greeting;
use super::protocol::proof::{Ends, Introduction};

/// Parses bytes as each message of a peer, and performs a handshake whose greetings the bytes change. The handshake succeeds if
/// and only if both sides have the same key, and no greeting was changed.
///
/// # Panics
///
/// If a parsed message has other bytes when it is emitted, or the handshake has the wrong result.
pub fn meeting(bytes: &[u8]) {
    say(bytes);
    address(bytes);
    let mut script = Script(bytes.iter().copied().collect());
    meet(&mut script);
    adverb_net_proto::fuzzing::rings(script.0);
}

/// Parses bytes as each message of a peer.
fn say(bytes: &[u8]) {
    if let Ok(Greeting::Side(side)) = Greeting::parse(bytes) {
        assert!(bytes.starts_with(&Greeting::Side(side).emit()));
    }
    adverb_net_proto::fuzzing::parse(bytes);
}

/// Checks a GID against the address of a TCP peer: an accepted GID is one of that host.
fn address(bytes: &[u8]) {
    let Some((gid, rest)) = bytes.split_first_chunk::<16>() else { return };
    let Some(peer) = rest.first_chunk::<4>() else { return };
    let (gid, peer) = (Gid::new(*gid), IpAddr::from(*peer));
    if belongs_to(gid, peer) {
        let addr = gid.udp_addr().ip();
        assert!(addr == peer || addr.is_loopback() && peer.is_loopback(), "{gid} isn't at {peer}");
    }
}

/// The choices of the handshake, one byte each. After the last byte, each choice is 0.
struct Script(VecDeque<u8>);

impl Script {
    fn next(&mut self) -> u8 {
        self.0.pop_front().unwrap_or_default()
    }

    /// Changes or truncates bytes in flight, or leaves them as they are.
    fn harm(&mut self, bytes: &mut Vec<u8>) {
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

    fn key(&mut self) -> (u8, Option<Key>) {
        let which = self.next() % 3;
        (which, (which > 0).then(|| Key::new([which; 16]).expect("it is long enough")))
    }
}

/// Performs a handshake with an attacker between both sides.
fn meet(script: &mut Script) {
    let ((connectors, key), (listeners, other)) = (script.key(), script.key());
    let (connector, listener) = (script.endpoint(), script.endpoint());
    let asking = Introduction::new(key.as_ref(), [1; 32]);
    let asked = asking.ask(Some(connector)).emit();
    let mut arrived = asked.clone();
    script.harm(&mut arrived);
    let Ok(Greeting::Side(side)) = Greeting::parse(&arrived) else { return };
    let Some(told) = side.endpoint else { return };
    // Each side knows the other's queue pair from the greeting.
    let listeners_view = Ends { connector: told, listener };
    let answering = Introduction::new(other.as_ref(), [2; 32]);
    let Ok((answer, listeners_seal)) = answering.answer(&side, Some(listener), &listeners_view) else {
        assert!(side.nonce.is_some() != (listeners > 0) || side.proof.is_some());
        return;
    };
    assert_eq!(side.nonce.is_some(), listeners > 0, "both have a key, or neither");
    let answered = answer.emit();
    let mut answer_arrived = answered.clone();
    script.harm(&mut answer_arrived);
    let Ok(Greeting::Side(answer)) = Greeting::parse(&answer_arrived) else { return };
    let Some(told) = answer.endpoint else { return };
    let Ok(seal) = asking.answered(&answer, &Ends { connector, listener: told }) else {
        let is_unchanged = arrived == asked && answer_arrived == answered;
        assert!(!is_unchanged || connectors != listeners, "same key, unchanged greetings, and no connection");
        return;
    };
    let Some((seal, listeners_seal)) = seal.zip(listeners_seal) else {
        assert!(connectors == 0, "a connector with a key connected without a proof");
        return;
    };
    assert!(connectors == listeners && connectors > 0, "another key was taken for the same");
    assert_eq!((arrived, answer_arrived), (asked, answered), "a change of a greeting went unnoticed");

    let ring = RemoteMemory { addr: 1, rkey: 2, len: 512 };
    let hello = Hello { ring, max_outstanding_writes: 4, max_message_size: 0, session: None }.emit();
    for (from, to) in [(&seal, &listeners_seal), (&listeners_seal, &seal)] {
        let sealed = [&from.seal(&hello)[..], &hello].concat();
        assert_eq!(from.open(&sealed).ok(), None, "nobody hears itself");
        let mut arrived = sealed.clone();
        script.harm(&mut arrived);
        assert_eq!(to.open(&arrived).is_ok(), arrived == sealed);
    }
    // An attacker replays the greetings to a listener with another nonce.
    let sealed = [&seal.seal(&hello)[..], &hello].concat();
    let again = Introduction::new(other.as_ref(), [3; 32]).answer(&side, Some(listener), &listeners_view);
    let (_, again) = again.expect("it was answered before");
    assert!(again.is_some_and(|again| again.open(&sealed).is_err()));
}
