//! Both ends of a ring against each other, and whatever bytes a peer sends.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::handshake::{Flaw, Greeting, HELLO_LEN, Hello, PREFIX_LEN, Prefix};
use super::*;
use crate::memory::RemoteMemory;
use crate::verbs::{Endpoint, Gid, Psn, Qpn};

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
        let mut prefix = [0; PREFIX_LEN];
        prefix[..8].copy_from_slice(b"adverb\r\n");
        for (to, byte) in prefix[8..].iter_mut().zip(&bytes) {
            *to = *byte;
        }
        if let Ok(prefix) = Prefix::parse(&prefix) {
            let _ = Greeting::parse(prefix, bytes.get(8..).unwrap_or_default());
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
            memory: Announced { addr: 1, len: u64::MAX, rkey: 3, rights: 7 },
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
            assert_eq!(Frame::parse(&bytes), Ok(frame));
            assert!(Frame::parse(&bytes[..frame.len() - 1]).is_err());
        }
    }
    let endpoint = Endpoint {
        gid: Gid::new([3; 16]),
        lid: 5,
        mtu: 4096,
        qpn: Qpn::new(0x12_3456).unwrap(),
        psn: Psn::new(0xff_ffff).unwrap(),
    };
    for greeting in
        [Greeting::Endpoint(endpoint), Greeting::Refusal("no".into()), Greeting::Refusal("é".repeat(200))]
    {
        let bytes = greeting.emit();
        let (prefix, body) = bytes.split_first_chunk().unwrap();
        let prefix = Prefix::parse(prefix).unwrap();
        assert_eq!(prefix.len, body.len());
        let parsed = Greeting::parse(prefix, body).unwrap();
        match &greeting {
            Greeting::Refusal(reason) if reason.len() > 256 => {
                assert_eq!(parsed, Greeting::Refusal("é".repeat(128)));
            }
            _ => assert_eq!(parsed, greeting),
        }
    }
    let hello = Hello { ring: RemoteMemory { addr: 1 << 63, rkey: 9, len: 4096 }, writes: 256 };
    assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
    assert!(Hello::parse(&hello.emit()[..HELLO_LEN - 1]).is_err());
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
