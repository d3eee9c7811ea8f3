//! A peer that sends arbitrary packets.

use adverb_proto::types::{QpState, RemoteAddress, SendFlags, SendOperation};
use adverb_proto::{IcrcCheck, RxMeta, Transition};
use adverb_wire::{
    Aeth, CompareSwap, FetchAdd, Flush, Header, Operation, Packet, Psn, Qpn, Rc, ReadResponse, Reth, Send,
    Syndrome, Write,
};

use crate::harness::{ADDR, End, Options, PSN, Random, SIZE, solo_with};

fn reth(random: &mut Random, key: u32) -> Reth {
    let offset = random.pick(&[0, 8, 9, SIZE - 1, SIZE, u64::MAX, 4096]);
    Reth {
        va: ADDR.wrapping_add(offset),
        rkey: random.pick(&[key, key, key, 0, key ^ 1]),
        length: random.pick(&[0, 1, 8, 1024, 1025, 3000, 1 << 31, u32::MAX]),
    }
}

fn aeth(random: &mut Random) -> Aeth {
    Aeth { syndrome: Syndrome::from_byte(random.next() as u8), msn: random.next() as u32 & 0xff_ffff }
}

fn operation(random: &mut Random, key: u32) -> Rc {
    let number = random.next() as u32;
    let immediate = if random.below(2) == 0 { None } else { Some(number) };
    match random.below(20) {
        0 => Rc::Send(Send::First),
        1 => Rc::Send(Send::Middle),
        2 => Rc::Send(Send::Last(immediate)),
        3 => Rc::Send(Send::Only(immediate)),
        4 => Rc::SendLastInvalidate(random.pick(&[key, number])),
        5 => Rc::SendOnlyInvalidate(random.pick(&[key, number])),
        6 => Rc::Write(Write::First(reth(random, key))),
        7 => Rc::Write(Write::Middle),
        8 => Rc::Write(Write::Last(immediate)),
        9 => Rc::Write(Write::Only(reth(random, key), immediate)),
        10 | 11 => Rc::ReadRequest(reth(random, key)),
        12 => Rc::ReadResponse(ReadResponse::First(aeth(random))),
        13 => Rc::ReadResponse(ReadResponse::Middle),
        14 => Rc::ReadResponse(ReadResponse::Last(aeth(random))),
        15 => Rc::ReadResponse(ReadResponse::Only(aeth(random))),
        16 => Rc::Acknowledge(aeth(random)),
        17 => Rc::AtomicAcknowledge(aeth(random), random.next()),
        18 => {
            let Reth { va, rkey, .. } = reth(random, key);
            match random.below(2) {
                0 => Rc::FetchAdd(FetchAdd { va, rkey, add: random.next() }),
                _ => Rc::CompareSwap(CompareSwap { va, rkey, swap: random.next(), compare: random.next() }),
            }
        }
        _ => match random.below(2) {
            0 => Rc::AtomicWrite(reth(random, key)),
            _ => Rc::Flush(Flush {
                global: random.below(2) == 0,
                persistent: random.below(2) == 0,
                whole_region: random.below(2) == 0,
                range: reth(random, key),
            }),
        },
    }
}

/// Returns an end in the state with this number: 0 is reset, 1 init, 2 ready to receive, 3 ready to send, and 4 send
/// queue drained. Receives are posted from init on, and send requests from ready to send on.
fn end_in(state: u64) -> End {
    let options = Options { psn: PSN, timeout: 1, ..Options::default() };
    let mut end = End::new(1, 2, &options);
    if state >= 1 {
        end.move_to_init(&options);
        for id in 0..4 {
            end.post_recv(id, 4096, 1500);
        }
    }
    if state >= 2 {
        let ready_to_receive = end.ready_to_receive(Qpn::truncate(0x77), &options);
        end.modify(ready_to_receive);
    }
    if state >= 3 {
        end.modify(End::ready_to_send(&options));
        let remote = RemoteAddress { addr: 0x5000, rkey: 0x1234 };
        for id in 0..4 {
            let segment = end.segment(id * 4096, 3000);
            end.try_post(id, SendOperation::Write(remote), SendFlags::SIGNALED, &[segment]).unwrap();
            end.try_post(id, SendOperation::Read(remote), SendFlags::SIGNALED, &[segment]).unwrap();
        }
    }
    if state == 4 {
        end.modify(Transition::Drain);
    }
    end
}

#[test]
fn forged_packets_in_every_state_but_error_access_no_other_memory() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let payload = vec![0x5a; 5000];
    for round in 0..400 {
        let mut end = end_in(round % 5);
        // No peer may access this memory.
        let secret = end.memory.add(vec![7; 4096]);
        for step in 0..50 {
            let header = Header {
                psn: Psn::wrapping(PSN) + random.pick(&[0, 0, 0, 1, 2, 5, 0xff_ffff, 0x80_0000]),
                ack_request: random.below(2) == 0,
                ..Header::new(end.qpn, Psn::ZERO, Operation::Rc(operation(&mut random, end.key)))
            };
            let expected = end.device.query_qp(end.qpn).unwrap().expected_psn;
            let psn = if random.below(2) == 0 { expected + random.below(3) as u32 } else { header.psn };
            let header = Header { psn, ..header };
            let length = random.pick(&[0, 0, 1, 8, 1023, 1024, 1025, 4999]);
            let rx_meta = RxMeta { icrc: IcrcCheck::Trusted, ..end.rx_meta() };
            end.device.handle_split_packet(end.now, &rx_meta, &header, &payload[..length], &mut end.memory);
            let sent = end.transmits().len();
            assert!(sent < 400_000, "{sent} packets in response to one");
            if step % 16 == 15 {
                end.now = end.device.poll_timeout().unwrap_or(end.now).max(end.now);
                end.device.handle_timeout(end.now);
            }
            if end.state() == QpState::Error {
                break;
            }
        }
        assert!(end.memory.bytes(secret).iter().all(|byte| *byte == 7));
        let posted = end.device.query_qp(end.qpn).unwrap();
        assert!(posted.send_queue_len <= 8 && posted.recv_queue_len <= 4);
    }
}

#[test]
fn random_bytes_do_nothing() {
    let mut random = Random(42);
    let mut end = end_in(3);
    end.transmits();
    let before = end.memory.bytes(end.storage).to_vec();
    for _ in 0..20_000 {
        let length = random.below(80) as usize & !3;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        if length >= 12 && random.below(2) == 0 {
            // The packet is for an existing queue pair.
            bytes[1] &= 0xf0;
            let [_, a, b, c] = end.qpn.get().to_be_bytes();
            bytes[5..8].copy_from_slice(&[a, b, c]);
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let rx_meta = end.rx_meta();
            end.device.handle_packet(end.now, &rx_meta, &packet, &mut end.memory);
        }
    }
    assert_eq!(end.sent(), []);
    assert!(end.memory.bytes(end.storage) == before);
    assert_eq!(end.state(), QpState::ReadyToSend);
}

/// A peer that repeats requests, and then sends new ones, makes the responder hold at most four responses per slot: the
/// saved one, two retransmissions, and a first response after them. A READ has one retransmission.
#[test]
fn queued_retransmissions_are_bounded() {
    for (slots, is_read) in (1..=3).flat_map(|slots| [(slots, false), (slots, true)]) {
        let mut end = solo_with(&Options { max_dest_rd_atomic: slots, ..Options::default() });
        let request = if is_read {
            Rc::ReadRequest(Reth { va: ADDR, rkey: end.key, length: 8 })
        } else {
            Rc::FetchAdd(FetchAdd { va: ADDR, rkey: end.key, add: 1 })
        };
        let (slots, retransmissions) = (u32::from(slots), if is_read { 1 } else { 2 });
        for psn in 0..slots {
            assert_eq!(end.exchange(psn, request, &[]).len(), 1);
        }
        for _ in 0..100 {
            for psn in 0..slots {
                end.receive(psn, request, &[]);
            }
        }
        assert_eq!(end.device.resource_counts().responses as u32, (1 + retransmissions) * slots);
        for psn in slots..2 * slots {
            end.receive(psn, request, &[]);
            for _ in 0..100 {
                end.receive(psn, request, &[]);
            }
        }
        assert_eq!(end.device.resource_counts().responses as u32, (2 + retransmissions) * slots);
        assert_eq!(end.sent().len() as u32, (1 + retransmissions) * slots);
        assert_eq!(
            (end.state(), end.device.resource_counts().responses as u32),
            (QpState::ReadyToSend, slots)
        );
    }
}
