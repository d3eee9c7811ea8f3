//! Both ends of a ring against each other, and arbitrary bytes of a peer.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::immediate::{Credits, Immediate};
use crate::ring::{RecvRing, SendRing, max_write_len};
use crate::*;

/// A ring between a writer and a reader that are arbitrarily slow.
struct Model {
    send: SendRing,
    recv: RecvRing,
    bytes: Vec<u8>,
    /// Writes in flight: their lengths.
    in_flight: VecDeque<u32>,
    /// The lengths and bytes that the reader must find.
    expected: VecDeque<(u32, u8)>,
    reports: VecDeque<u32>,
    next: u8,
}

impl Model {
    fn new(size: u32, writes: u32) -> Model {
        Model {
            send: SendRing::new(size, writes),
            recv: RecvRing::new(size, writes),
            bytes: vec![0; size as usize],
            in_flight: VecDeque::new(),
            expected: VecDeque::new(),
            reports: VecDeque::new(),
            next: 0,
        }
    }

    fn write(&mut self, len: u32) -> bool {
        let fits = self.send.fits(len);
        let Some(offset) = self.send.place(len) else {
            assert!(!fits);
            return false;
        };
        assert!(fits && offset.is_multiple_of(RING_ALIGN));
        self.next = self.next.wrapping_add(1);
        self.bytes[offset as usize..(offset + len) as usize].fill(self.next);
        self.in_flight.push_back(len);
        self.expected.push_back((len, self.next));
        true
    }

    fn arrive(&mut self) {
        if let Some(len) = self.in_flight.pop_front() {
            self.recv.add_write(len).expect("the writer has credits");
        }
    }

    fn read(&mut self) {
        let Some((offset, len)) = self.recv.unread() else { return };
        let (expected_len, value) = self.expected.pop_front().expect("it was written");
        assert_eq!(len, expected_len);
        assert!(self.bytes[offset as usize..(offset + len) as usize].iter().all(|byte| *byte == value));
        self.recv.free();
        if self.recv.must_report() {
            self.reports.push_back(Immediate::Credits(self.recv.report_credits()).emit());
            assert!(self.reports.len() < UNCREDITED_WRITES as usize, "more reports than receives");
        }
    }

    fn report(&mut self) {
        if let Some(bits) = self.reports.pop_front() {
            let Ok(Immediate::Credits(credits)) = Immediate::parse(bits) else { panic!("{bits:#x}") };
            self.send.add_credits(credits).expect("written bytes were read");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn unread_bytes_are_not_overwritten_and_a_writer_always_gets_credits(
        units in MIN_RING_SIZE / RING_ALIGN..100,
        writes in MIN_OUTSTANDING_WRITES..40,
        steps in prop::collection::vec((0..4u8, any::<u32>()), 1_000),
    ) {
        let size = units * RING_ALIGN;
        let mut model = Model::new(size, writes);
        for (step, random) in steps {
            match step {
                0 => {
                    let len = 1 + random % max_write_len(size);
                    if !model.write(len) {
                        while !model.in_flight.is_empty() {
                            model.arrive();
                        }
                        while model.recv.unread().is_some() {
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
    fn parsed_frames_are_emitted_unchanged(bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0..7u8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(frame) = Frame::parse(&bytes) {
            let mut out = vec![0; frame.frame_len()];
            frame.emit(&mut out);
            prop_assert_eq!(Frame::parse(&out), Ok(frame));
        }
    }

    #[test]
    fn frames_are_parsed_as_emitted(len in 0..=MAX_MESSAGE_SIZE, addr: u64, rkey: u32, immediate: Option<u32>) {
        let frame = Frame { kind: FrameKind::Rendezvous { len, addr, rkey }, immediate };
        let mut out = vec![0xff; frame.frame_len()];
        frame.emit(&mut out);
        prop_assert_eq!(Frame::parse(&out), Ok(frame));
    }

    #[test]
    fn immediates_are_parsed_as_emitted(bits: u32) {
        if let Ok(immediate) = Immediate::parse(bits) {
            prop_assert_eq!(immediate.emit(), bits);
        }
    }

    #[test]
    fn hellos_are_parsed_as_emitted(received: Option<u64>, id: [u8; 16], rkey: u32, addr: u64, writes in 4..=256u32) {
        let ring = adverb_proto::types::RemoteMemory { addr, rkey, len: 4096 };
        let session = Some(SessionHello { id, received });
        let hello = Hello { ring, max_outstanding_writes: writes, max_message_size: 77, session };
        prop_assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
        let none = Hello { session: None, ..hello };
        prop_assert_eq!(Hello::parse(&none.emit()), Ok(none));
    }
}

#[test]
fn invalid_hellos_are_refused() {
    let good = Hello::unknown_session().emit();
    assert_eq!(Hello::parse(&good), Ok(Hello::unknown_session()));
    for at in [0, 8, 11, 15, 32, 48, 56, 57] {
        let mut bytes = good;
        bytes[at] ^= 0x55;
        assert!(Hello::parse(&bytes).is_err(), "byte {at}");
    }
    assert!(Hello::parse(&good[..63]).is_err());
}

#[test]
fn invalid_credits_are_refused() {
    let mut ring = SendRing::new(512, 4);
    assert_eq!(ring.place(32), Some(0));
    assert!(ring.add_credits(Credits::new(3, 1)).is_err());
    assert!(ring.add_credits(Credits::new(2, 2)).is_err());
    assert!(!ring.is_read());
    ring.add_credits(Credits::new(2, 1)).expect("they were written");
    assert!(ring.is_read());

    let mut ring = RecvRing::new(512, 4);
    assert!(ring.add_write(0).is_err());
    (0..4).for_each(|_| ring.add_write(16).expect("four writes are allowed"));
    assert!(ring.add_write(16).is_err());
}

#[test]
fn tags_are_ids_of_requests() {
    for wr_id in 1..=10 {
        assert_eq!(Tag::from_wr_id(wr_id).map(Tag::wr_id), Some(wr_id));
    }
    assert_eq!(Tag::from_wr_id(0), None);
    assert_eq!(Tag::from_wr_id(11), None);
}

#[test]
fn sizes_are_clamped() {
    let config =
        Config { recv_ring_size: 1, max_outstanding_writes: 1, max_read_len: 0, ..Config::default() };
    let config = config.clamped();
    assert_eq!((config.recv_ring_size, config.max_outstanding_writes), (512, 4));
    assert!(config.max_message_size.div_ceil(config.max_read_len) <= 128);
    assert_eq!(config.recv_queue_depth(), 1 + 4 + 8 + 8);
}

#[path = "parse_tests.rs"]
mod parsing;
#[path = "part_tests.rs"]
mod parts;
