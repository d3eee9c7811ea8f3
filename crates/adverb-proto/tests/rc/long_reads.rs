//! READs that are longer than what may be under way at once: they are asked for in parts.

use adverb_proto::types::{QpState, RemoteAddress, SendOperation, Status};
use adverb_wire::{NakCode, Rc, ReadResponse, Reth};

use crate::harness::{ADDR, End, Options, aeth, nak, pattern, solo, solo_with};

const READ: SendOperation = SendOperation::Read(RemoteAddress { addr: 0x5000, rkey: 0x1234 });

/// An end that asks for parts of two packets.
fn reader(options: Options) -> End {
    solo_with(&Options { read_window: 4 * (1024 + 512), ..options })
}

/// A request for a part of two packets, or what is left of one.
fn part(first: u32, length: u32) -> (Rc, u32) {
    (Rc::ReadRequest(Reth { va: 0x5000 + u64::from(first) * 1024, rkey: 0x1234, length }), first)
}

fn hear(end: &mut End, psn: u32, response: ReadResponse) {
    end.hear(psn, Rc::ReadResponse(response), &pattern(1024, psn as u8));
}

/// Whether the region has what [`hear`] brought.
fn has_all(end: &End, packets: u32) -> bool {
    (0..packets).all(|psn| end.bytes(psn as usize * 1024, 1024) == pattern(1024, psn as u8))
}

#[test]
fn long_read_is_asked_for_in_parts_and_no_more_than_the_window_at_once() {
    let mut end = reader(Options::default());
    end.post(1, READ, 0, 7 * 1024);
    assert_eq!(end.says(), [part(0, 2048), part(2, 2048)]);
    hear(&mut end, 0, ReadResponse::First(aeth(1)));
    assert_eq!(end.says(), []);
    hear(&mut end, 1, ReadResponse::Last(aeth(1)));
    assert_eq!(end.says(), [part(4, 2048)]);
    hear(&mut end, 2, ReadResponse::First(aeth(2)));
    hear(&mut end, 3, ReadResponse::Last(aeth(2)));
    assert_eq!(end.says(), [part(6, 1024)]);
    hear(&mut end, 4, ReadResponse::First(aeth(3)));
    hear(&mut end, 5, ReadResponse::Last(aeth(3)));
    assert_eq!(end.statuses(), []);
    hear(&mut end, 6, ReadResponse::Only(aeth(4)));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert!(has_all(&end, 7));
}

/// Linux's rxe drops a request that goes beyond the one it remembers (`rxe_resp.c`, `duplicate_request`).
#[test]
fn part_that_is_asked_for_again_ends_where_it_ended() {
    let mut end = reader(Options::default());
    end.post(1, READ, 0, 7 * 1024);
    end.transmits();
    hear(&mut end, 0, ReadResponse::First(aeth(1)));
    end.wait();
    assert_eq!(end.says(), [part(1, 1024), part(2, 2048)]);
    // Some go on where they were, and some begin anew.
    for response in [ReadResponse::Last(aeth(1)), ReadResponse::Only(aeth(1))] {
        let mut end = reader(Options::default());
        end.post(1, READ, 0, 3 * 1024);
        end.transmits();
        hear(&mut end, 0, ReadResponse::First(aeth(1)));
        end.wait();
        end.transmits();
        hear(&mut end, 1, response);
        hear(&mut end, 2, ReadResponse::Only(aeth(2)));
        assert_eq!(end.statuses(), [(1, Status::Success)]);
        assert!(has_all(&end, 3));
    }
}

#[test]
fn part_whose_request_was_lost_is_asked_for_again() {
    let mut end = reader(Options::default());
    end.post(1, READ, 0, 4 * 1024);
    end.transmits();
    hear(&mut end, 0, ReadResponse::First(aeth(1)));
    hear(&mut end, 1, ReadResponse::Last(aeth(1)));
    assert_eq!(end.ask(2, nak(NakCode::SequenceError, 1), &[]), [part(2, 2048)]);
}

#[test]
fn every_part_takes_one_of_the_peers_slots() {
    let mut end = reader(Options { max_rd_atomic: 1, ..Options::default() });
    end.post(1, READ, 0, 4 * 1024);
    end.post(2, READ, 0, 8);
    assert_eq!(end.says(), [part(0, 2048)]);
    hear(&mut end, 0, ReadResponse::First(aeth(1)));
    assert_eq!(end.says(), []);
    hear(&mut end, 1, ReadResponse::Last(aeth(1)));
    assert_eq!(end.says(), [part(2, 2048)]);
    hear(&mut end, 2, ReadResponse::First(aeth(2)));
    hear(&mut end, 3, ReadResponse::Last(aeth(2)));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.says().len(), 1);
}

#[test]
fn answer_to_a_part_is_one_of_its_own() {
    // Neither goes it on over the end of the part, nor does the next begin in its middle.
    for (psn, response) in
        [(1, ReadResponse::Middle), (2, ReadResponse::Middle), (2, ReadResponse::Last(aeth(2)))]
    {
        let mut end = reader(Options::default());
        end.post(1, READ, 0, 4 * 1024);
        end.transmits();
        hear(&mut end, 0, ReadResponse::First(aeth(1)));
        if psn == 2 {
            hear(&mut end, 1, ReadResponse::Last(aeth(1)));
        }
        hear(&mut end, psn, response);
        assert_eq!(end.statuses(), [(1, Status::BadResponse)], "{psn}: {response:?}");
    }
}

#[test]
fn what_is_behind_a_long_read_waits_until_all_of_it_is_asked_for() {
    let mut end = reader(Options::default());
    end.post(1, READ, 0, 6 * 1024);
    end.post(2, SendOperation::Write(RemoteAddress { addr: ADDR, rkey: 0x1234 }), 0, 8);
    assert_eq!(end.says(), [part(0, 2048), part(2, 2048)]);
    hear(&mut end, 0, ReadResponse::First(aeth(1)));
    hear(&mut end, 1, ReadResponse::Last(aeth(1)));
    let said = end.says();
    assert_eq!(said[0], part(4, 2048));
    assert_eq!(said[1].1, 6);
}

/// A READ of so many packets, from the packet with this number on.
fn read_from(end: &End, packet: u64, packets: u64) -> Rc {
    let length = ((packets - packet) * 1024) as u32;
    Rc::ReadRequest(Reth { va: ADDR + packet * 1024, rkey: end.key, length })
}

/// The sequence numbers of the packets that an end sends.
fn psns(end: &mut End) -> Vec<u32> {
    end.says().iter().map(|(_, psn)| *psn).collect()
}

/// Sends so many packets.
fn send(end: &mut End, count: usize) {
    for _ in 0..count {
        let now = end.now;
        assert!(end.device.poll_transmit(now).is_some());
    }
}

/// A requester whose timer expires while a response is sent slowly asks for packets that are sent anyway.
#[test]
fn duplicate_read_of_packets_that_are_still_queued_is_answered_once() {
    let mut end = solo();
    let read = read_from(&end, 0, 8);
    end.hear(0, read, &[]);
    end.hear(0, read, &[]);
    send(&mut end, 3);
    for packet in [3, 4, 7] {
        let rest = read_from(&end, packet, 8);
        end.hear(packet as u32, rest, &[]);
    }
    assert_eq!(psns(&mut end), [3, 4, 5, 6, 7]);
    assert_eq!(end.device.statistics().duplicate_requests, 4);
    assert_eq!(end.device.statistics().retransmitted_responses, 0);
}

/// The requester drops what is behind a lost packet, so that nothing of it is sent before that packet.
#[test]
fn response_restarts_at_the_packet_that_a_duplicate_read_asks_for() {
    let mut end = solo();
    let read = read_from(&end, 0, 8);
    end.hear(0, read, &[]);
    send(&mut end, 5);
    for _ in 0..3 {
        let rest = read_from(&end, 2, 8);
        end.hear(2, rest, &[]);
    }
    assert_eq!(psns(&mut end), [2, 3, 4, 5, 6, 7]);
    assert_eq!(end.device.statistics().retransmitted_responses, 1);
    // A duplicate of a part loses nothing of what was queued.
    let mut end = solo();
    let read = read_from(&end, 0, 8);
    end.hear(0, read, &[]);
    send(&mut end, 5);
    let part = read_from(&end, 2, 4);
    end.hear(2, part, &[]);
    assert_eq!(psns(&mut end), [2, 3, 4, 5, 6, 7]);
    assert_eq!(end.state(), QpState::ReadyToSend);
}

#[test]
fn duplicate_reads_are_answered_in_their_order() {
    let mut end = solo();
    let (first, second) = (read_from(&end, 0, 2), read_from(&end, 0, 4));
    end.hear(0, first, &[]);
    end.hear(2, second, &[]);
    send(&mut end, 3);
    end.hear(0, first, &[]);
    end.hear(2, second, &[]);
    assert_eq!(psns(&mut end), [0, 1, 2, 3, 4, 5]);
}
