//! READs that are longer than what may be under way at once: they are asked for in parts.

use adverb_proto::types::{RemoteAddress, SendOperation, Status};
use adverb_wire::{NakCode, Rc, ReadResponse, Reth};

use crate::harness::{ADDR, End, Options, aeth, nak, pattern, solo_with};

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
