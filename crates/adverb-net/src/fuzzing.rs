//! What a fuzzer drives of the protocol: all that needs no device.

use std::collections::VecDeque;
use std::net::IpAddr;

use adverb_verbs::memory::RemoteMemory;
use adverb_verbs::{Endpoint, Gid, Psn, Qpn};

use super::Key;
use super::bootstrap::belongs_to;
use super::protocol::handshake::{Greeting, HELLO_LEN, Hello};
use super::protocol::proof::{Ends, Introduction};
use super::protocol::{
    Frame, FrameKind, Immediate, Inbound, LONGEST_MESSAGE, LONGEST_RING, Outbound, longest_write,
};

/// Whatever a peer says is understood or refused, and what is understood means the same when it is said again; and two sides
/// meet if, and only if, both have the same key and nobody has changed what they said.
///
/// # Panics
///
/// If that isn't so.
pub fn meeting(bytes: &[u8]) {
    say(bytes);
    address(bytes);
    let mut script = Script(bytes.iter().copied().collect());
    meet(&mut script);
    write(&mut script);
}

/// Reads bytes as all that a peer may say.
fn say(bytes: &[u8]) {
    if let Ok(Greeting::Side(side)) = Greeting::parse(bytes) {
        assert!(bytes.starts_with(&Greeting::Side(side).emit()));
    }
    if let Ok(hello) = Hello::parse(bytes) {
        assert_eq!(hello.emit(), bytes);
        assert!(hello.max_message_size <= LONGEST_MESSAGE && hello.ring.len <= u64::from(LONGEST_RING));
    }
    // As frames are taken out of what a write brought.
    let mut rest = bytes;
    while !rest.is_empty() {
        let Ok(frame) = Frame::parse(rest) else { break };
        let (len, mut again) = (frame.len(), vec![0; frame.len()]);
        if let FrameKind::Message { len } = frame.kind {
            assert!(len as usize <= rest.len() - 16);
        }
        frame.emit(&mut again);
        let again = match frame.kind {
            // The header alone says how long they are.
            FrameKind::Message { .. } | FrameKind::Announcement { .. } => Frame { ..frame },
            _ => Frame::parse(&again).expect("it was emitted"),
        };
        assert_eq!(again, frame);
        rest = rest.get(len..).unwrap_or_default();
    }
    for word in bytes.chunks_exact(4) {
        let bits = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        assert!(
            Immediate::parse(bits).is_ok_and(|immediate| immediate.emit() == bits)
                || Immediate::parse(bits).is_err()
        );
    }
}

/// Checks a GID against a TCP peer: one that is accepted leads to that peer's host.
fn address(bytes: &[u8]) {
    let Some((gid, rest)) = bytes.split_first_chunk::<16>() else { return };
    let Some(peer) = rest.first_chunk::<4>() else { return };
    let (gid, peer) = (Gid::new(*gid), IpAddr::from(*peer));
    if belongs_to(gid, peer) {
        let addr = gid.udp_addr().ip();
        assert!(addr == peer || addr.is_loopback() && peer.is_loopback(), "{gid} isn't at {peer}");
    }
}

/// What is to happen, byte by byte; nothing when there are no more.
struct Script(VecDeque<u8>);

impl Script {
    fn next(&mut self) -> u8 {
        self.0.pop_front().unwrap_or_default()
    }

    /// Changes bytes on their way, or doesn't; they may also become shorter.
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

/// Two sides meet, with somebody between them.
fn meet(script: &mut Script) {
    let ((connectors, key), (listeners, other)) = (script.key(), script.key());
    let (connector, listener) = (script.endpoint(), script.endpoint());
    let asking = Introduction::new(key.as_ref(), [1; 32]);
    let asked = asking.ask(Some(connector)).emit();
    let mut arrived = asked.clone();
    script.harm(&mut arrived);
    let Ok(Greeting::Side(side)) = Greeting::parse(&arrived) else { return };
    let Some(told) = side.endpoint else { return };
    // Each side knows of the other's queue pair what the greeting says.
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
    let hello = Hello { ring, writes: 4, max_message_size: 0, session: None }.emit();
    for (from, to) in [(&seal, &listeners_seal), (&listeners_seal, &seal)] {
        let sealed = [&from.seal(&hello)[..], &hello].concat();
        assert_eq!(from.open(&sealed).ok(), None, "nobody hears itself");
        let mut arrived = sealed.clone();
        script.harm(&mut arrived);
        assert_eq!(to.open(&arrived).is_ok(), arrived == sealed);
    }
    // Somebody who has heard all that says it again, to a listener that chooses another number.
    let sealed = [&seal.seal(&hello)[..], &hello].concat();
    let again = Introduction::new(other.as_ref(), [3; 32]).answer(&side, Some(listener), &listeners_view);
    let (_, again) = again.expect("it was answered before");
    assert!(again.is_some_and(|again| again.open(&sealed).is_err()));
}

/// A peer writes into a ring, and tells credits, as it likes: places stay within the ring, and nothing unread is written over.
fn write(script: &mut Script) {
    let ring = (512 + u32::from(script.next()) * 16).next_multiple_of(16);
    let mut inbound = Inbound::new(ring, 4 + u32::from(script.next()) % 253);
    let mut outbound = Outbound::new(ring, 4);
    while !script.0.is_empty() {
        let (what, value) = (script.next(), u32::from(script.next()) << 8 | u32::from(script.next()));
        match what % 4 {
            0 if inbound.written(value).is_err() => return,
            1 => {
                if let Some((offset, len)) = inbound.unread() {
                    assert!(offset.checked_add(len).is_some_and(|end| end <= ring), "within the ring");
                    inbound.read();
                }
            }
            2 => {
                let len = value % longest_write(ring) + 1;
                if let Some(offset) = outbound.place(len) {
                    assert!(offset + len <= ring);
                }
            }
            3 => {
                let bits = value << 16 | u32::from(script.next()) << 8 | u32::from(script.next());
                if let Ok(Immediate::Frames(credits) | Immediate::Credits(credits)) = Immediate::parse(bits)
                    && outbound.credit(credits).is_err()
                {
                    return;
                }
            }
            _ => {}
        }
    }
}

const _: () = assert!(HELLO_LEN <= 256, "a script reaches every byte of it");
