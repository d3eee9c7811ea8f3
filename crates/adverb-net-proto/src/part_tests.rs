//! The parts of a connection, each alone: the receive half, the replay and the send queue.

use crate::immediate::Credits;
use crate::lane::{Lane, SendQueue};
use crate::recv::{RecvHalf, RecvState};
use crate::replay::{Content, Replay};
use crate::ring::SendRing;
use crate::send::UnreadRendezvous;
use crate::*;

const EXPOSE: FrameKind =
    FrameKind::Expose { name_len: 0, region: ExposedRegion { addr: 0, len: 0, rkey: 0, rights: 1 } };

const WITHDRAW: FrameKind = FrameKind::Withdraw { name_len: 0 };

fn message(len: u32) -> FrameKind {
    FrameKind::Message { len }
}

fn rendezvous(len: u32) -> FrameKind {
    FrameKind::Rendezvous { len, addr: 0, rkey: 0 }
}

/// Returns the bytes of a write with these frames.
fn write(kinds: &[FrameKind]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for kind in kinds {
        let frame = Frame { kind: *kind, immediate: None };
        let start = bytes.len();
        bytes.resize(start + frame.frame_len(), 0);
        frame.emit(&mut bytes[start..]);
    }
    bytes
}

/// Takes frames, of which messages have at most 100 bytes.
fn take(recv: &mut RecvHalf<Vec<u8>>, kinds: &[FrameKind]) -> Result<(), Violation> {
    recv.take_frames(write(kinds), 100, false, 0, |_, _| ())
}

#[test]
fn the_peers_messages_are_bounded() {
    let mut recv = RecvHalf::new();
    take(&mut recv, &[message(100), rendezvous(100)]).expect("the maximum");
    assert!(take(&mut recv, &[message(101)]).is_err());
    assert!(take(&mut recv, &[rendezvous(102)]).is_err());
    // Eight rendezvous messages are outstanding, whether they are being read or not reported as read.
    for done in [0, 3, 7] {
        let mut recv = RecvHalf::<Vec<u8>>::new();
        for count in done..9 {
            let result = recv.take_frames(write(&[rendezvous(1)]), 100, false, done, |_, _| ());
            assert_eq!(result.is_ok(), count < 8, "{count} with {done} not reported");
        }
    }
}

#[test]
fn only_frames_of_regions_and_a_close_follow_a_shutdown() {
    let shut_down = || {
        let mut recv = RecvHalf::new();
        take(&mut recv, &[message(1), FrameKind::Shutdown]).expect("a shutdown");
        assert_eq!((recv.state, recv.taken), (RecvState::Shutdown, 2));
        recv
    };
    for kind in [message(1), rendezvous(1), FrameKind::Shutdown] {
        assert!(take(&mut shut_down(), &[kind]).is_err(), "{kind:?}");
    }
    let mut recv = shut_down();
    take(&mut recv, &[EXPOSE, WITHDRAW, FrameKind::Close]).expect("frames that may follow");
    assert_eq!((recv.state, recv.taken), (RecvState::Closed { ends: 2 }, 3));
    for kind in [message(1), EXPOSE, WITHDRAW, FrameKind::Close] {
        assert!(take(&mut recv.clone(), &[kind]).is_err(), "{kind:?}");
    }
}

#[test]
fn messages_are_counted_until_they_are_received() {
    let mut recv = RecvHalf::new();
    take(&mut recv, &[message(10), rendezvous(10), message(20)]).expect("messages");
    assert_eq!((recv.taken, recv.buffered, recv.is_whole()), (3, 74 + 84, false));
    assert_eq!(recv.pop().map(|message| message.buf.len()), Some(10));
    assert_eq!((recv.pop(), recv.buffered, recv.inbox.len()), (None, 84, 2));
    recv.discard();
    assert_eq!((recv.buffered, recv.inbox.len(), recv.is_whole()), (0, 0, true));
    // A side that has closed only counts them.
    recv.take_frames(write(&[message(1), rendezvous(1)]), 100, true, 0, |_, _| ()).expect("messages");
    assert_eq!((recv.taken, recv.buffered, recv.inbox.len(), recv.is_whole()), (5, 0, 0, true));
}

#[test]
fn messages_behind_an_incomplete_one_are_received_again() {
    let mut recv = RecvHalf::new();
    take(&mut recv, &[message(10), rendezvous(10), message(20), FrameKind::Shutdown]).expect("messages");
    assert_eq!(recv.end_lane(), 1);
    assert_eq!((recv.taken, recv.state, recv.buffered), (1, RecvState::Open, 74));
    assert!(recv.is_whole() && recv.inbox.len() == 1);
    // The end of a lane loses no whole message, and no shutdown.
    take(&mut recv, &[message(10), FrameKind::Shutdown]).expect("messages");
    assert_eq!((recv.end_lane(), recv.end_lane()), (3, 3));
    assert_eq!((recv.state, recv.buffered), (RecvState::Shutdown, 2 * 74));
}

type TestReplay = Replay<Vec<u8>, u32>;

/// Returns the numbers of the messages that are replayed.
fn queued(replay: &TestReplay) -> Vec<u64> {
    replay.queue.iter().map(|item| item.number).collect()
}

/// Returns a replay in which the region 7 is message 1, between two messages of 10 bytes.
fn replay_of_three() -> TestReplay {
    let mut replay = TestReplay::new();
    replay.post(1, 0);
    replay.keep(write(&[message(10), rendezvous(10), EXPOSE, WITHDRAW, message(10)]));
    replay.end_lane(None, [UnreadRendezvous { number: 1, region: 7, immediate: None }].into_iter());
    assert_eq!(queued(&replay), [0, 1, 2]);
    replay
}

#[test]
fn a_replay_begins_with_the_first_message_that_the_peer_lacks() {
    assert_eq!(replay_of_three().kept_bytes(), 20);
    for (received, regions, rest) in [(0, vec![], 3), (1, vec![], 2), (2, vec![7], 1), (3, vec![7], 0)] {
        let mut replay = replay_of_three();
        assert_eq!(replay.begin_lane(received, 3), Some(regions), "{received} received");
        assert_eq!(replay.queue.len(), rest);
    }
}

#[test]
fn a_wrong_number_of_received_messages_is_refused() {
    // More than were sent, and more messages sent than are queued.
    for (received, taken) in [(4, 3), (3, 4), (0, 4), (2, 4)] {
        let mut replay = replay_of_three();
        assert_eq!(replay.begin_lane(received, taken), None, "{received} of {taken}");
        assert_eq!(queued(&replay), [0, 1, 2]);
    }
    // Messages that were forgotten.
    let mut replay = replay_of_three();
    replay.queue.pop_front();
    assert_eq!(replay.begin_lane(0, 3), None);
    // A message whose memory the driver has.
    let mut replay = replay_of_three();
    replay.queue[1].content = Content::Registering;
    assert_eq!(replay.begin_lane(2, 3), None);
    assert!(replay.begin_lane(1, 3).is_some());
}

#[test]
fn writes_are_kept_from_the_first_unread_rendezvous_message_on() {
    let two_writes = || {
        let mut replay = TestReplay::new();
        replay.post(1, 0);
        replay.post(2, 2);
        replay.keep(write(&[message(0), message(0)]));
        replay.keep(write(&[message(0)]));
        assert_eq!(replay.kept_bytes(), 48);
        replay
    };
    for (read, unread_rendezvous, kept) in
        [(0, None, 48), (1, None, 16), (2, None, 0), (2, Some(2), 16), (2, Some(1), 48), (2, Some(3), 0)]
    {
        let mut replay = two_writes();
        replay.acknowledge(read);
        replay.forget(unread_rendezvous, 3);
        assert_eq!(replay.kept_bytes(), kept, "{read} read, {unread_rendezvous:?} unread");
    }
}

#[test]
fn refused_and_unposted_writes_are_replayed() {
    let mut replay = TestReplay::new();
    replay.post(1, 5);
    replay.post(2, 6);
    assert_eq!(replay.refuse(), Some(6));
    replay.keep(write(&[message(1)]));
    assert_eq!(replay.refuse(), None);
    let unposted = write(&[message(1), FrameKind::Shutdown, FrameKind::Close]);
    replay.end_lane(Some((6, unposted)), std::iter::empty());
    assert_eq!(queued(&replay), [5, 6, 7, 8]);
    let messages = replay.take_messages();
    assert_eq!(messages.iter().map(|message| message.number).collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn half_of_the_send_queue_is_unsignaled() {
    let lane = Lane::<u32>::new(&Config::default(), Time::ZERO);
    let mut queue: SendQueue = lane.queue;
    let depth = Config::default().send_queue_depth();
    for count in 1..depth / 2 {
        assert!(!queue.post(Tag::Credits, false), "{count}");
    }
    assert!(!queue.awaits_completion() && queue.is_delivered());
    assert!(queue.post(Tag::Frames, false));
    assert!(queue.awaits_completion() && !queue.is_delivered());
    assert!(!queue.post(Tag::Credits, false));
    assert!(queue.has_room(depth / 2) && !queue.has_room(depth / 2 + 1));
    (1..depth / 2).for_each(|_| queue.complete(Tag::Credits));
    assert!(queue.awaits_completion() && !queue.is_delivered());
    queue.complete(Tag::Frames);
    assert!(!queue.awaits_completion() && queue.is_delivered());
    assert!(queue.post(Tag::Read, true) && queue.is_delivered() && queue.awaits_completion());
}

#[test]
fn a_write_that_fits_the_end_of_the_ring_is_placed_there() {
    let mut ring = SendRing::new(512, 8);
    assert_eq!([128; 4].map(|len| ring.place(len)), [Some(0), Some(128), Some(256), Some(384)]);
    assert_eq!(ring.place(1), None);
    let mut ring = SendRing::new(512, 8);
    assert_eq!([128, 128, 128, 112].map(|len| ring.place(len)), [Some(0), Some(128), Some(256), Some(384)]);
    ring.add_credits(Credits::new(8, 1)).expect("they were written");
    // One unit is skipped.
    assert_eq!((ring.place(17), ring.place(97)), (Some(0), None));
}
