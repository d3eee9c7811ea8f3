//! Greetings, and proofs of a key.

use std::net::Ipv6Addr;

use adverb_verbs::{Endpoint, Gid, Psn, Qpn};
use proptest::prelude::*;

use super::handshake::{
    Flaw, Greeting, MAX_MESSAGE_LEN, PREFIX_LEN, Prefix, Refusal, RefusalCode, Side, VERSION,
};
use super::proof::{Credentials, Ends};
use crate::key::{HandshakeKey, Role};

proptest! {
    #[test]
    fn a_greeting_of_arbitrary_bytes_is_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let greeting = [b"adverb\r\n", &bytes[..]].concat();
        if let Ok(Greeting::Side(side)) = Greeting::parse(&greeting) {
            prop_assert!(greeting.starts_with(&Greeting::Side(side).emit()));
        }
    }
}

#[test]
fn greetings_are_parsed_as_they_were_emitted() {
    let (endpoint, nonce, proof) = (Some(endpoint(3)), Some([4; 32]), Some([5; 32]));
    let sides = [
        Side { endpoint, ..Side::default() },
        Side { endpoint, nonce, proof: None },
        Side { endpoint: None, nonce, proof },
        Side { endpoint, nonce, proof },
        Side::default(),
    ];
    let unknown = Refusal { version: VERSION + 1, code: RefusalCode::Unknown(0xff), message: "no".into() };
    let refusals = [refusal("no"), unknown].map(Greeting::Refusal);
    for greeting in sides.map(Greeting::Side).into_iter().chain(refusals) {
        let bytes = greeting.emit();
        assert_eq!(Greeting::parse(&bytes), Ok(greeting.clone()));
        assert_eq!(Greeting::parse(&[&bytes[..], &[0; 9]].concat()), Ok(greeting), "zeros may follow");
        assert!(Greeting::parse(&bytes[..bytes.len() - 1]).is_err());
    }
    let control = Greeting::parse(&Greeting::Refusal(refusal("no\n2026 all is well \x1b[2J")).emit());
    assert_eq!(control, Ok(Greeting::Refusal(refusal("no\u{fffd}2026 all is well \u{fffd}[2J"))));
    let long = Greeting::parse(&Greeting::Refusal(refusal(&"é".repeat(200))).emit());
    assert_eq!(long, Ok(Greeting::Refusal(refusal(&"é".repeat(MAX_MESSAGE_LEN / 2)))));
}

fn refusal(message: &str) -> Refusal {
    Refusal::new(RefusalCode::AddressNotServed, message)
}

#[test]
fn each_flaw_has_a_refusal_whose_code_and_message_arrive() {
    let longest = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff);
    for (flaw, code) in [
        (Flaw::NotAdverb, RefusalCode::Malformed),
        (Flaw::Version(u16::MAX), RefusalCode::Version),
        (Flaw::Malformed, RefusalCode::Malformed),
        (Flaw::ConnectorHasNoKey, RefusalCode::ConnectorHasNoKey),
        (Flaw::ListenerHasNoKey, RefusalCode::ListenerHasNoKey),
        (Flaw::KeyWrong, RefusalCode::KeyWrong),
        (Flaw::AddressNotServed(longest.into()), RefusalCode::AddressNotServed),
        (Flaw::ForeignGid(Gid::new(longest.octets())), RefusalCode::ForeignGid),
    ] {
        let received = Greeting::parse(&Greeting::Refusal(Refusal::from(&flaw)).emit());
        let expected = Refusal { version: VERSION, code, message: flaw.to_string() };
        assert_eq!(received, Ok(Greeting::Refusal(expected)));
    }
}

#[test]
fn greetings_fit_the_private_data_of_the_connection_manager() {
    let side = Side { endpoint: None, nonce: Some([1; 32]), proof: None };
    assert!(Greeting::Side(side).emit().len() <= adverb_verbs::cm::MAX_CONNECT_DATA);
    let side = Side { proof: Some([1; 32]), ..side };
    assert!(Greeting::Side(side).emit().len() <= adverb_verbs::cm::MAX_ACCEPT_DATA);
    let refusal = Greeting::Refusal(refusal(&"x".repeat(MAX_MESSAGE_LEN)));
    assert!(refusal.emit().len() <= adverb_verbs::cm::MAX_REJECT_DATA);
}

fn endpoint(number: u8) -> Endpoint {
    let (gid, qpn) = (Gid::new([number; 16]), Qpn::new(0x12_3400 + u32::from(number)).unwrap());
    let mut endpoint = Endpoint::new(gid, qpn, Psn::new(0xff_ffff).unwrap());
    (endpoint.lid, endpoint.mtu) = (5, 2048);
    endpoint
}

#[test]
fn other_versions_are_rejected_except_for_refusals() {
    let greeting = Greeting::Refusal(refusal("because")).emit();
    let mut prefix: [u8; PREFIX_LEN] = greeting[..PREFIX_LEN].try_into().unwrap();
    prefix[8] = 200;
    assert!(Prefix::parse(&prefix).is_ok());
    let other = [&prefix[..], b"because"].concat();
    let expected = Refusal { version: 200, ..refusal("because") };
    assert_eq!(Greeting::parse(&other), Ok(Greeting::Refusal(expected)), "it has the version of its sender");
    prefix[10] = 1;
    assert_eq!(Prefix::parse(&prefix).unwrap_err(), Flaw::Version(200));
    prefix[0] = b'x';
    assert_eq!(Prefix::parse(&prefix).unwrap_err(), Flaw::NotAdverb);
}

fn key(byte: u8) -> HandshakeKey {
    HandshakeKey::new(&adverb_verbs::Key::new([byte; 32]).unwrap())
}

/// Performs a handshake, with greetings that `change` modifies in flight. Returns the first flaw, and the side that
/// found it.
fn handshake(
    connector: Option<&HandshakeKey>,
    listener: Option<&HandshakeKey>,
    change: impl Fn(&mut Side, &mut Side, &mut Ends),
) -> Result<(), (Role, Flaw)> {
    let connector_credentials = Credentials::new(connector, [1; 32]);
    let ends = Ends { connector: endpoint(1), listener: endpoint(2) };
    let (mut seen, mut answer_seen) = (ends, Side::default());
    let Greeting::Side(mut connector_side) = connector_credentials.connector_greeting(None) else {
        panic!("a refusal")
    };
    change(&mut connector_side, &mut answer_seen, &mut seen);
    let listener_credentials = Credentials::new(listener, [2; 32]);
    let result = listener_credentials
        .listener_greeting(&connector_side, None, &seen)
        .map_err(|flaw| (Role::Listener, flaw))?;
    let (Greeting::Side(mut answer), listener_seal) = result else { panic!("a refusal") };
    change(&mut answer_seen, &mut answer, &mut seen);
    let connector_seal =
        connector_credentials.verify_answer(&answer, &ends).map_err(|flaw| (Role::Connector, flaw))?;
    let Some((connector_seal, listener_seal)) = connector_seal.zip(listener_seal) else { return Ok(()) };
    for (from, to, role) in [
        (&connector_seal, &listener_seal, Role::Listener),
        (&listener_seal, &connector_seal, Role::Connector),
    ] {
        let sealed = [&from.seal(b"hello")[..], b"hello"].concat();
        assert_eq!(to.open(&sealed), Ok(&b"hello"[..]), "{role:?}");
        assert_eq!(from.open(&sealed), Err(Flaw::KeyWrong), "a reflected hello is rejected");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(to.open(&changed), Err(Flaw::KeyWrong), "byte {at}");
            assert!(to.open(&sealed[..at]).is_err(), "{at} bytes");
        }
    }
    Ok(())
}

#[test]
fn a_handshake_needs_the_same_key_on_both_sides() {
    let (key, other) = (key(7), key(8));
    let handshake_with = |connector, listener| handshake(connector, listener, |_, _, _| {});
    assert_eq!(handshake_with(None, None), Ok(()));
    assert_eq!(handshake_with(Some(&key), Some(&key)), Ok(()));
    assert_eq!(handshake_with(Some(&key), Some(&other)), Err((Role::Connector, Flaw::KeyWrong)));
    assert_eq!(handshake_with(None, Some(&key)), Err((Role::Listener, Flaw::ConnectorHasNoKey)));
    assert_eq!(handshake_with(Some(&key), None), Err((Role::Listener, Flaw::ListenerHasNoKey)));
}

#[test]
fn changed_greetings_are_detected() {
    let key = key(7);
    let with = |change: fn(&mut Side, &mut Side, &mut Ends)| handshake(Some(&key), Some(&key), change);
    let wrong = Err((Role::Connector, Flaw::KeyWrong));
    assert_eq!(
        with(|connector_side, _, _| connector_side.nonce.iter_mut().for_each(|nonce| nonce[0] ^= 1)),
        wrong
    );
    assert_eq!(with(|_, answer, _| answer.nonce.iter_mut().for_each(|nonce| nonce[0] ^= 1)), wrong);
    assert_eq!(with(|_, answer, _| answer.proof.iter_mut().for_each(|proof| proof[31] ^= 0x80)), wrong);
    // An attacker replaces a queue pair.
    assert_eq!(with(|_, _, ends| ends.connector = endpoint(9)), wrong);
    assert_eq!(with(|_, _, ends| ends.listener.qpn = Qpn::new(9).unwrap()), wrong);
    assert_eq!(with(|_, _, ends| ends.listener.psn = Psn::new(9).unwrap()), wrong);
    // An attacker changes another attribute of a queue pair.
    assert_eq!(with(|_, _, ends| ends.connector.mtu = 256), wrong);
    assert_eq!(with(|_, _, ends| ends.listener.mtu = 256), wrong);
    assert_eq!(with(|_, _, ends| ends.connector.lid = 6), wrong);
    assert_eq!(with(|_, _, ends| ends.listener.lid = 6), wrong);
    assert_eq!(with(|_, answer, _| answer.proof = None), Err((Role::Connector, Flaw::Malformed)));
    let stripped =
        |_: &mut Side, answer: &mut Side, _: &mut Ends| (answer.nonce, answer.proof) = (None, None);
    assert_eq!(with(stripped), Err((Role::Connector, Flaw::ListenerHasNoKey)));
    assert_eq!(
        with(|connector_side, _, _| connector_side.proof = connector_side.nonce),
        Err((Role::Listener, Flaw::Malformed)),
        "the connector's greeting contains no proof"
    );
}

#[test]
fn replayed_messages_are_rejected() {
    let key = key(7);
    let ends = Ends { connector: endpoint(1), listener: endpoint(2) };
    let connector_credentials = Credentials::new(Some(&key), [1; 32]);
    let Greeting::Side(connector_side) = connector_credentials.connector_greeting(None) else {
        panic!("a refusal")
    };
    let answer = |nonce| {
        let result =
            Credentials::new(Some(&key), nonce).listener_greeting(&connector_side, None, &ends).unwrap();
        let (Greeting::Side(answer), Some(seal)) = result else { panic!("a refusal") };
        (answer, seal)
    };
    let (first, _) = answer([2; 32]);
    let sealed = connector_credentials.verify_answer(&first, &ends).unwrap().unwrap();
    let sealed = [&sealed.seal(b"hello")[..], b"hello"].concat();
    // A hello is replayed to a listener with another nonce. The greeting and the queue pairs are the same.
    let (_, seal) = answer([3; 32]);
    assert_eq!(seal.open(&sealed), Err(Flaw::KeyWrong));
    // The listener's answer is replayed to a connector with another nonce.
    let replayed = Credentials::new(Some(&key), [4; 32]).verify_answer(&first, &ends);
    assert!(matches!(replayed, Err(Flaw::KeyWrong)));
}
