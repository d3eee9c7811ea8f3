//! Long READs. A requester splits a READ that is longer than its read window into parts, and sends a request for each part.
//! A responder receives duplicate READ requests while response packets to the original request are still queued.

use adverb_proto::types::{QpState, RemoteAddress, SendOperation, Status};
use adverb_wire::{NakCode, Rc, ReadResponse, Reth};

use crate::harness::{ADDR, End, Options, aeth, nak, pattern, solo, solo_with};

const READ: SendOperation = SendOperation::Read(RemoteAddress { addr: 0x5000, rkey: 0x1234 });

/// Returns a requester that splits a READ into parts of two packets.
fn reader(options: Options) -> End {
    solo_with(&Options { read_window: 4 * (1024 + 512), ..options })
}

/// Returns the request for a part, and the request's sequence number. The part starts at packet number `first` of the READ
/// and has `length` bytes.
fn part(first: u32, length: u32) -> (Rc, u32) {
    (Rc::ReadRequest(Reth { va: 0x5000 + u64::from(first) * 1024, rkey: 0x1234, length }), first)
}

fn receive(end: &mut End, psn: u32, response: ReadResponse) {
    end.receive(psn, Rc::ReadResponse(response), &pattern(1024, psn as u8));
}

/// Whether the local buffer contains the bytes that [`receive`] delivers in the first `packets` packets.
fn has_all(end: &End, packets: u32) -> bool {
    (0..packets).all(|psn| end.bytes(psn as usize * 1024, 1024) == pattern(1024, psn as u8))
}

#[test]
fn long_read_is_split_into_parts_within_the_window() {
    let mut end = reader(Options::default());
    end.post(1, READ, 0, 7 * 1024);
    assert_eq!(end.sent(), [part(0, 2048), part(2, 2048)]);
    receive(&mut end, 0, ReadResponse::First(aeth(1)));
    assert_eq!(end.sent(), []);
    receive(&mut end, 1, ReadResponse::Last(aeth(1)));
    assert_eq!(end.sent(), [part(4, 2048)]);
    receive(&mut end, 2, ReadResponse::First(aeth(2)));
    receive(&mut end, 3, ReadResponse::Last(aeth(2)));
    assert_eq!(end.sent(), [part(6, 1024)]);
    receive(&mut end, 4, ReadResponse::First(aeth(3)));
    receive(&mut end, 5, ReadResponse::Last(aeth(3)));
    assert_eq!(end.statuses(), []);
    receive(&mut end, 6, ReadResponse::Only(aeth(4)));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert!(has_all(&end, 7));
}

/// Linux's rxe saves each READ request, and drops a duplicate that reads beyond the end of the saved request (`rxe_resp.c`,
/// `duplicate_request`).
#[test]
fn retransmitted_part_has_the_same_end() {
    let mut end = reader(Options::default());
    end.post(1, READ, 0, 7 * 1024);
    end.transmits();
    receive(&mut end, 0, ReadResponse::First(aeth(1)));
    end.wait();
    assert_eq!(end.sent(), [part(1, 1024), part(2, 2048)]);
    // Some peers continue the first response (Last), and others start a new response (Only).
    for response in [ReadResponse::Last(aeth(1)), ReadResponse::Only(aeth(1))] {
        let mut end = reader(Options::default());
        end.post(1, READ, 0, 3 * 1024);
        end.transmits();
        receive(&mut end, 0, ReadResponse::First(aeth(1)));
        end.wait();
        end.transmits();
        receive(&mut end, 1, response);
        receive(&mut end, 2, ReadResponse::Only(aeth(2)));
        assert_eq!(end.statuses(), [(1, Status::Success)]);
        assert!(has_all(&end, 3));
    }
}

#[test]
fn part_whose_request_was_lost_is_retransmitted() {
    let mut end = reader(Options::default());
    end.post(1, READ, 0, 4 * 1024);
    end.transmits();
    receive(&mut end, 0, ReadResponse::First(aeth(1)));
    receive(&mut end, 1, ReadResponse::Last(aeth(1)));
    assert_eq!(end.exchange(2, nak(NakCode::SequenceError, 1), &[]), [part(2, 2048)]);
}

#[test]
fn every_part_takes_one_of_the_peers_slots() {
    let mut end = reader(Options { max_rd_atomic: 1, ..Options::default() });
    end.post(1, READ, 0, 4 * 1024);
    end.post(2, READ, 0, 8);
    assert_eq!(end.sent(), [part(0, 2048)]);
    receive(&mut end, 0, ReadResponse::First(aeth(1)));
    assert_eq!(end.sent(), []);
    receive(&mut end, 1, ReadResponse::Last(aeth(1)));
    assert_eq!(end.sent(), [part(2, 2048)]);
    receive(&mut end, 2, ReadResponse::First(aeth(2)));
    receive(&mut end, 3, ReadResponse::Last(aeth(2)));
    assert_eq!(end.statuses(), [(1, Status::Success)]);
    assert_eq!(end.sent().len(), 1);
}

#[test]
fn each_part_has_its_own_response() {
    // The response to a part ends with the part's last packet. The next packet starts the response to the next part.
    for (psn, response) in
        [(1, ReadResponse::Middle), (2, ReadResponse::Middle), (2, ReadResponse::Last(aeth(2)))]
    {
        let mut end = reader(Options::default());
        end.post(1, READ, 0, 4 * 1024);
        end.transmits();
        receive(&mut end, 0, ReadResponse::First(aeth(1)));
        if psn == 2 {
            receive(&mut end, 1, ReadResponse::Last(aeth(1)));
        }
        receive(&mut end, psn, response);
        assert_eq!(end.statuses(), [(1, Status::BadResponse)], "{psn}: {response:?}");
    }
}

#[test]
fn requests_after_a_long_read_wait_until_all_its_parts_are_sent() {
    let mut end = reader(Options::default());
    end.post(1, READ, 0, 6 * 1024);
    end.post(2, SendOperation::Write(RemoteAddress { addr: ADDR, rkey: 0x1234 }), 0, 8);
    assert_eq!(end.sent(), [part(0, 2048), part(2, 2048)]);
    receive(&mut end, 0, ReadResponse::First(aeth(1)));
    receive(&mut end, 1, ReadResponse::Last(aeth(1)));
    let sent = end.sent();
    assert_eq!(sent[0], part(4, 2048));
    assert_eq!(sent[1].1, 6);
}

/// Returns a READ request for the end of a message of `packets` packets, from packet number `packet` on.
fn read_from(end: &End, packet: u64, packets: u64) -> Rc {
    let length = ((packets - packet) * 1024) as u32;
    Rc::ReadRequest(Reth { va: ADDR + packet * 1024, rkey: end.key, length })
}

/// Returns the sequence numbers of the packets that an end sends.
fn psns(end: &mut End) -> Vec<u32> {
    end.sent().iter().map(|(_, psn)| *psn).collect()
}

/// Makes an end send `count` packets, and discards them.
fn send(end: &mut End, count: usize) {
    for _ in 0..count {
        let now = end.now;
        assert!(end.device.poll_transmit(now).is_some());
    }
}

/// If a requester's timer expires during a slow response, the requester retransmits its request, although the responder
/// still has the requested packets queued.
#[test]
fn duplicate_read_of_queued_packets_gets_one_response() {
    let mut end = solo();
    let read = read_from(&end, 0, 8);
    end.receive(0, read, &[]);
    end.receive(0, read, &[]);
    send(&mut end, 3);
    for packet in [3, 4, 7] {
        let rest = read_from(&end, packet, 8);
        end.receive(packet as u32, rest, &[]);
    }
    assert_eq!(psns(&mut end), [3, 4, 5, 6, 7]);
    assert_eq!(end.device.statistics().duplicate_requests, 4);
    assert_eq!(end.device.statistics().retransmitted_responses, 0);
}

/// A requester drops the packets that follow a lost one. So the responder restarts at the lost packet, and sends the packets
/// that follow it again.
#[test]
fn response_restarts_at_the_first_packet_of_a_duplicate_read() {
    let mut end = solo();
    let read = read_from(&end, 0, 8);
    end.receive(0, read, &[]);
    send(&mut end, 5);
    for _ in 0..3 {
        let rest = read_from(&end, 2, 8);
        end.receive(2, rest, &[]);
    }
    assert_eq!(psns(&mut end), [2, 3, 4, 5, 6, 7]);
    assert_eq!(end.device.statistics().retransmitted_responses, 1);
    // A duplicate request that ends before the original one doesn't remove the later packets from the queue.
    let mut end = solo();
    let read = read_from(&end, 0, 8);
    end.receive(0, read, &[]);
    send(&mut end, 5);
    let part = read_from(&end, 2, 4);
    end.receive(2, part, &[]);
    assert_eq!(psns(&mut end), [2, 3, 4, 5, 6, 7]);
    assert_eq!(end.state(), QpState::ReadyToSend);
}

#[test]
fn duplicate_reads_get_responses_in_order() {
    let mut end = solo();
    let (first, second) = (read_from(&end, 0, 2), read_from(&end, 0, 4));
    end.receive(0, first, &[]);
    end.receive(2, second, &[]);
    send(&mut end, 3);
    end.receive(0, first, &[]);
    end.receive(2, second, &[]);
    assert_eq!(psns(&mut end), [0, 1, 2, 3, 4, 5]);
}
