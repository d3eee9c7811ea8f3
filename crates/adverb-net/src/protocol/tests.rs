//! Both ends of a ring against each other, and whatever bytes a peer sends.

use std::collections::VecDeque;

use adverb_verbs::memory::RemoteMemory;
use adverb_verbs::{Endpoint, Gid, Psn, Qpn};
use proptest::prelude::*;

use super::handshake::{Flaw, Greeting, HELLO_LEN, Hello, LONGEST_REASON, PREFIX_LEN, Prefix, Session, Side};
use super::proof::{Ends, Introduction, Role};
use super::*;
use crate::Key;

/// A ring with a byte for each of its bytes, between a writer and a reader that are as slow as they like.
struct Model {
    outbound: Outbound,
    inbound: Inbound,
    ring: Vec<u8>,
    /// Writes on their way: their lengths, and what they say of the other direction.
    coming: VecDeque<(u32, u8)>,
    /// What the reader has to find.
    expected: VecDeque<(u32, u8)>,
    /// Reports on their way back.
    reports: VecDeque<u32>,
    next: u8,
    written: u64,
}

impl Model {
    fn new(ring: u32, writes: u32) -> Model {
        Model {
            outbound: Outbound::new(ring, writes),
            inbound: Inbound::new(ring, writes),
            ring: vec![0; ring as usize],
            coming: VecDeque::new(),
            expected: VecDeque::new(),
            reports: VecDeque::new(),
            next: 0,
            written: 0,
        }
    }

    fn write(&mut self, len: u32) -> bool {
        assert!(len <= longest_write(self.ring.len() as u32));
        let fits = self.outbound.fits(len);
        let Some(offset) = self.outbound.place(len) else {
            assert!(!fits);
            return false;
        };
        assert!(fits && offset.is_multiple_of(UNIT));
        self.next = self.next.wrapping_add(1);
        // Nothing that is unread is written over: the reader would find other bytes than it expects.
        self.ring[offset as usize..(offset + len) as usize].fill(self.next);
        self.coming.push_back((len, self.next));
        self.expected.push_back((len, self.next));
        self.written += 1;
        true
    }

    fn arrive(&mut self) {
        if let Some((len, _)) = self.coming.pop_front() {
            self.inbound.written(len).expect("the writer has credit");
        }
    }

    fn read(&mut self) {
        let Some((offset, len)) = self.inbound.unread() else { return };
        let (expected_len, value) = self.expected.pop_front().expect("it was written");
        assert_eq!(len, expected_len);
        assert!(self.ring[offset as usize..(offset + len) as usize].iter().all(|byte| *byte == value));
        self.inbound.read();
        if self.inbound.must_tell() {
            self.reports.push_back(Immediate::Credits(self.inbound.tell()).emit());
            assert!(self.reports.len() <= REPORTS as usize, "more reports than there are receives for");
        }
    }

    fn report(&mut self) {
        if let Some(bits) = self.reports.pop_front() {
            let Ok(Immediate::Credits(credits)) = Immediate::parse(bits) else { panic!("{bits:#x}") };
            self.outbound.credit(credits).expect("what was written was read");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nothing_unread_is_overwritten_and_nobody_waits_for_ever(
        units in SHORTEST_RING / UNIT..100,
        writes in FEWEST_WRITES..40,
        steps in prop::collection::vec((0..4u8, any::<u32>()), 2_000),
    ) {
        let ring = units * UNIT;
        let mut model = Model::new(ring, writes);
        for (step, random) in steps {
            match step {
                0 => {
                    let len = 1 + random % longest_write(ring);
                    if !model.write(len) {
                        // With all that was told there must be room: otherwise who waits would wait for ever.
                        while !model.coming.is_empty() {
                            model.arrive();
                        }
                        while model.inbound.unread().is_some() {
                            model.read();
                        }
                        while !model.reports.is_empty() {
                            model.report();
                        }
                        prop_assert!(model.write(len));
                    }
                }
                1 => model.arrive(),
                2 => model.read(),
                _ => model.report(),
            }
        }
    }

    #[test]
    fn whatever_is_in_a_ring_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0..7u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(frame) = Frame::parse(&bytes) {
            let mut out = vec![0; frame.len()];
            frame.emit(&mut out);
            prop_assert_eq!(Frame::parse(&out), Ok(frame));
        }
    }

    #[test]
    fn whatever_a_peer_says_first_is_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(hello) = Hello::parse(&bytes) {
            prop_assert_eq!(&hello.emit()[..], &bytes[..]);
        }
        let greeting = [b"adverb\r\n", &bytes[..]].concat();
        if let Ok(Greeting::Side(side)) = Greeting::parse(&greeting) {
            prop_assert!(greeting.starts_with(&Greeting::Side(side).emit()));
        }
    }

    #[test]
    fn immediates_are_what_they_were(bits in any::<u32>()) {
        if let Ok(immediate) = Immediate::parse(bits) {
            prop_assert_eq!(immediate.emit(), bits);
        }
    }
}

#[test]
fn offers_that_were_read_are_told_by_their_number() {
    assert_eq!(Immediate::parse(Immediate::Read(3).emit()), Ok(Immediate::Read(3)));
    assert!(Immediate::parse(Immediate::Read(0).emit()).is_err());
}

#[test]
fn counts_wrap_many_times() {
    // As few units as there can be, and as many as fit: both go round what an immediate can count.
    for (ring, writes, rounds) in
        [(SHORTEST_RING, FEWEST_WRITES, 300_000), (LONGEST_RING, MOST_WRITES, 3_000)]
    {
        let mut model = Model { ring: Vec::new(), ..Model::new(ring, writes) };
        for round in 0..rounds {
            let len = longest_write(ring) - round % 100;
            while model.outbound.place(len).is_some() {
                model.inbound.written(len).expect("the writer has credit");
                model.written += 1;
            }
            while model.inbound.unread().is_some() {
                model.inbound.read();
            }
            let Ok(Immediate::Frames(credits)) =
                Immediate::parse(Immediate::Frames(model.inbound.tell()).emit())
            else {
                panic!("it was emitted")
            };
            model.outbound.credit(credits).expect("what was written was read");
        }
        assert!(model.written > u64::from(rounds) * 2);
    }
}

#[test]
fn a_peer_without_credit_is_refused() {
    let mut inbound = Inbound::new(512, 4);
    assert!(inbound.written(0).is_err());
    assert!(inbound.written(513).is_err());
    for _ in 0..4 {
        inbound.written(16).unwrap();
    }
    assert!(inbound.written(16).is_err());
    let mut outbound = Outbound::new(512, 4);
    outbound.place(100).unwrap();
    assert!(outbound.credit(Credits::new(8, 1)).is_err());
    assert!(outbound.credit(Credits::new(7, 2)).is_err());
    outbound.credit(Credits::new(7, 1)).unwrap();
}

#[test]
fn frames_and_greetings_are_what_they_were() {
    for kind in [
        FrameKind::Announcement {
            name_len: 0,
            memory: Announced { addr: 1, len: u64::MAX, rkey: 3, rights: 7, generation: 0 },
        },
        FrameKind::End,
        FrameKind::Gone,
        FrameKind::Offer { len: LONGEST_MESSAGE, addr: u64::MAX, rkey: 7 },
        FrameKind::Message { len: 0 },
    ] {
        for immediate in [None, Some(0), Some(u32::MAX)] {
            let frame = Frame { kind, immediate };
            let mut bytes = vec![0xff; frame.len()];
            frame.emit(&mut bytes);
            let has_immediate = immediate.is_some();
            if has_immediate && !matches!(kind, FrameKind::Message { .. } | FrameKind::Offer { .. }) {
                assert!(Frame::parse(&bytes).is_err(), "{frame:?} has nothing beside it");
                continue;
            }
            assert_eq!(Frame::parse(&bytes), Ok(frame));
            // Every bit of what belongs to the protocol means something, or must not be set.
            for bit in 0..8 * bytes.len() {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Frame::parse(&other), Ok(frame), "bit {} of byte {}", bit % 8, bit / 8);
            }
            assert!(Frame::parse(&bytes[..frame.len() - 1]).is_err());
        }
    }
    let (endpoint, nonce, proof) = (Some(endpoint(3)), Some([4; 32]), Some([5; 32]));
    let sides = [
        Side { endpoint, ..Side::default() },
        Side { endpoint, nonce, proof: None },
        Side { endpoint: None, nonce, proof },
        Side { endpoint, nonce, proof },
        Side::default(),
    ];
    for greeting in sides.map(Greeting::Side).into_iter().chain([Greeting::Refusal("no".into())]) {
        let bytes = greeting.emit();
        assert_eq!(Greeting::parse(&bytes), Ok(greeting.clone()));
        assert_eq!(Greeting::parse(&[&bytes[..], &[0; 9]].concat()), Ok(greeting), "zeros may follow");
        assert!(Greeting::parse(&bytes[..bytes.len() - 1]).is_err());
    }
    let harm = Greeting::parse(&Greeting::Refusal("no\n2026 all is well \x1b[2J".into()).emit());
    assert_eq!(harm, Ok(Greeting::Refusal("no\u{fffd}2026 all is well \u{fffd}[2J".into())));
    let long = Greeting::parse(&Greeting::Refusal("é".repeat(200)).emit());
    assert_eq!(long, Ok(Greeting::Refusal("é".repeat(LONGEST_REASON / 2))));
    let ring = RemoteMemory { addr: 1 << 63, rkey: 9, len: 4096 };
    let session = Some(Session { id: [7; 16], received: Some(u64::MAX) });
    let hello = Hello { ring, writes: 256, max_message_size: 1 << 30, session };
    assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
    assert!(Hello::parse(&hello.emit()[..HELLO_LEN - 1]).is_err());
    assert!(Hello::parse(&Hello { max_message_size: (1 << 30) + 1, ..hello }.emit()).is_err());
}

/// Greetings fit the connection manager's messages.
#[test]
fn greetings_fit_what_carries_them() {
    let side = Side { endpoint: None, nonce: Some([1; 32]), proof: None };
    assert!(Greeting::Side(side).emit().len() <= adverb_verbs::cm::MAX_CONNECT_DATA);
    let side = Side { proof: Some([1; 32]), ..side };
    assert!(Greeting::Side(side).emit().len() <= adverb_verbs::cm::MAX_ACCEPT_DATA);
    let refusal = Greeting::Refusal("x".repeat(LONGEST_REASON));
    assert!(refusal.emit().len() <= adverb_verbs::cm::MAX_REJECT_DATA);
}

fn endpoint(number: u8) -> Endpoint {
    let (gid, qpn) = (Gid::new([number; 16]), Qpn::new(0x12_3400 + u32::from(number)).unwrap());
    let mut endpoint = Endpoint::new(gid, qpn, Psn::new(0xff_ffff).unwrap());
    (endpoint.lid, endpoint.mtu) = (5, 2048);
    endpoint
}

#[test]
fn other_versions_are_refused_but_for_what_they_refuse() {
    let greeting = Greeting::Refusal("because".into()).emit();
    let mut prefix: [u8; PREFIX_LEN] = greeting[..PREFIX_LEN].try_into().unwrap();
    prefix[8] = 200;
    assert!(Prefix::parse(&prefix).is_ok());
    prefix[10] = 1;
    assert_eq!(Prefix::parse(&prefix).unwrap_err(), Flaw::Version(200));
    prefix[0] = b'x';
    assert_eq!(Prefix::parse(&prefix).unwrap_err(), Flaw::NotAdverb);
}

/// Two sides meet, and each says the other's hello opened: or what was wrong with it.
fn meet(
    connector: Option<&Key>,
    listener: Option<&Key>,
    harm: impl Fn(&mut Side, &mut Side, &mut Ends),
) -> Result<(), (Role, Flaw)> {
    let asking = Introduction::new(connector, [1; 32]);
    let ends = Ends { connector: endpoint(1), listener: endpoint(2) };
    let (mut seen, mut answer_seen) = (ends, Side::default());
    let Greeting::Side(mut asked) = asking.ask(None) else { panic!("it isn't a refusal") };
    harm(&mut asked, &mut answer_seen, &mut seen);
    let answering = Introduction::new(listener, [2; 32]);
    let answered = answering.answer(&asked, None, &seen).map_err(|flaw| (Role::Listener, flaw))?;
    let (Greeting::Side(mut answer), listeners) = answered else { panic!("it isn't a refusal") };
    harm(&mut answer_seen, &mut answer, &mut seen);
    let connectors = asking.answered(&answer, &ends).map_err(|flaw| (Role::Connector, flaw))?;
    let Some((connectors, listeners)) = connectors.zip(listeners) else { return Ok(()) };
    for (from, to, role) in
        [(&connectors, &listeners, Role::Listener), (&listeners, &connectors, Role::Connector)]
    {
        let sealed = [&from.seal(b"hello")[..], b"hello"].concat();
        assert_eq!(to.open(&sealed), Ok(&b"hello"[..]), "{role:?}");
        assert_eq!(from.open(&sealed), Err(Flaw::KeyWrong), "what was said is no good to who said it");
        for at in 0..sealed.len() {
            let mut harmed = sealed.clone();
            harmed[at] ^= 1;
            assert_eq!(to.open(&harmed), Err(Flaw::KeyWrong), "byte {at}");
            assert!(to.open(&sealed[..at]).is_err(), "{at} bytes");
        }
    }
    Ok(())
}

#[test]
fn only_who_has_the_key_is_met() {
    let (key, other) = (Key::new([7; 32]).unwrap(), Key::new([8; 32]).unwrap());
    let meet_with = |connector, listener| meet(connector, listener, |_, _, _| {});
    assert_eq!(meet_with(None, None), Ok(()));
    assert_eq!(meet_with(Some(&key), Some(&key)), Ok(()));
    assert_eq!(meet_with(Some(&key), Some(&other)), Err((Role::Connector, Flaw::KeyWrong)));
    assert_eq!(meet_with(None, Some(&key)), Err((Role::Listener, Flaw::ConnectorHasNoKey)));
    assert_eq!(meet_with(Some(&key), None), Err((Role::Listener, Flaw::ListenerHasNoKey)));
}

#[test]
fn who_changes_what_they_say_to_each_other_is_noticed() {
    let key = Key::new([7; 32]).unwrap();
    let with = |harm: fn(&mut Side, &mut Side, &mut Ends)| meet(Some(&key), Some(&key), harm);
    let wrong = Err((Role::Connector, Flaw::KeyWrong));
    assert_eq!(with(|asked, _, _| asked.nonce.iter_mut().for_each(|nonce| nonce[0] ^= 1)), wrong);
    assert_eq!(with(|_, answer, _| answer.nonce.iter_mut().for_each(|nonce| nonce[0] ^= 1)), wrong);
    assert_eq!(with(|_, answer, _| answer.proof.iter_mut().for_each(|proof| proof[31] ^= 0x80)), wrong);
    // Another queue pair was put in the place of one of theirs.
    assert_eq!(with(|_, _, ends| ends.connector = endpoint(9)), wrong);
    assert_eq!(with(|_, _, ends| ends.listener.qpn = Qpn::new(9).unwrap()), wrong);
    assert_eq!(with(|_, _, ends| ends.listener.psn = Psn::new(9).unwrap()), wrong);
    // All else that a greeting says of a queue pair.
    assert_eq!(with(|_, _, ends| ends.connector.mtu = 256), wrong);
    assert_eq!(with(|_, _, ends| ends.listener.mtu = 256), wrong);
    assert_eq!(with(|_, _, ends| ends.connector.lid = 6), wrong);
    assert_eq!(with(|_, _, ends| ends.listener.lid = 6), wrong);
    assert_eq!(with(|_, answer, _| answer.proof = None), Err((Role::Connector, Flaw::Malformed)));
    let stripped =
        |_: &mut Side, answer: &mut Side, _: &mut Ends| (answer.nonce, answer.proof) = (None, None);
    assert_eq!(with(stripped), Err((Role::Connector, Flaw::ListenerHasNoKey)));
    assert_eq!(
        with(|asked, _, _| asked.proof = asked.nonce),
        Err((Role::Listener, Flaw::Malformed)),
        "who asks proves nothing"
    );
}

#[test]
fn what_was_said_before_is_no_good_again() {
    let key = Key::new([7; 32]).unwrap();
    let ends = Ends { connector: endpoint(1), listener: endpoint(2) };
    let asking = Introduction::new(Some(&key), [1; 32]);
    let Greeting::Side(asked) = asking.ask(None) else { panic!("it isn't a refusal") };
    let answer = |nonce| {
        let answered = Introduction::new(Some(&key), nonce).answer(&asked, None, &ends).unwrap();
        let (Greeting::Side(answer), Some(seal)) = answered else { panic!("it isn't a refusal") };
        (answer, seal)
    };
    let (first, _) = answer([2; 32]);
    let sealed = asking.answered(&first, &ends).unwrap().unwrap();
    let sealed = [&sealed.seal(b"hello")[..], b"hello"].concat();
    // The same greeting again, word by word, and the same queue pairs: only the listener's number is another.
    let (_, seal) = answer([3; 32]);
    assert_eq!(seal.open(&sealed), Err(Flaw::KeyWrong));
    // The listener's answer again, to who asks with another number.
    let again = Introduction::new(Some(&key), [4; 32]).answered(&first, &ends);
    assert!(matches!(again, Err(Flaw::KeyWrong)));
}
